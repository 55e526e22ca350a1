"""A training loop as a document: the data of its page, which programs can read too."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from ...inspector.files import json_object, load_file
from .findings import PHASES, Finding, FindingKind, StepTime, numbered
from .memory_samples import BASELINE, HELD
from .training_result import Training

FORMAT = "tapescope.training"
VERSION = 2
"""Version 1 had the batch among the activations."""

PAGE_BEGINS, DATA_BEGINS = '<div class="ts-loop"', '<script type="application/json">'
"""The starts of a loop and of its document in a page."""
_PAGE_BEGAN = '<div class="th-loop"'  # in pages written under the former name

_MOST_MODULES = 100_000
_MOST_BYTES = 2**27  # of a page; its numbers, at most two million of each kind, take some tens of megabytes


@dataclass(frozen=True, slots=True, eq=False)
class TrainingDocument:
    """The data of a training loop, in arrays.

    Attributes:
        steps: the number of steps. They are counted from 0.
        every: the interval of weight and update samples, in steps.
        sentences: the number of steps, and the parts that could not be watched.
        findings: as in `Training`.
        modules: the modules' paths, in the order in which the backward completes their gradients.
        classes: the class of each module whose name is a number, and of such modules around it, by path.
        optimizers: the names of the optimizers.
        rows: int64 of (rows, 2): the first and the last step of each row.
        gradients: float32 of (rows, modules): gradient norms; -1 without a gradient.
        samples: int64 of (samples, 2): the first and the last step of each row of `weights` and `updates`.
        weights, updates: float32 of (samples, modules): their norms; -1 without an update.
        losses, learning_rates: float32 of (rows, optimizers): float32's least number if unknown.
        looks: int64 of (looks, 2): the first and the last step of each row of `memory`.
        memory: float32 of (looks, 6): bytes held, see `memory_samples.HELD`.
        baseline_steps: int64 of (baselines, 2): the first and the last step of each row of `baselines`.
        baselines: float64 of (baselines, 5): bytes from before the step, see `memory_samples.BASELINE`.
        skipped: bool of (rows,): whether a gradient scaler skipped a step.
        kept: the black box's folder of each kept step.
        black_box: whether there was a black box.
        step_time: the mean time of a step, or None.
    """

    steps: int
    every: int
    sentences: tuple[str, ...]
    findings: tuple[Finding, ...]
    modules: tuple[str, ...]
    classes: dict[str, str]
    optimizers: tuple[str, ...]
    rows: Tensor
    gradients: Tensor
    samples: Tensor
    weights: Tensor
    updates: Tensor
    losses: Tensor
    learning_rates: Tensor
    looks: Tensor
    memory: Tensor
    baseline_steps: Tensor
    baselines: Tensor
    skipped: Tensor
    kept: tuple[tuple[int, str], ...]
    black_box: bool
    step_time: StepTime | None = None

    def to_json(self) -> str:
        """Return one line of JSON. Arrays of numbers are base64 of float32, little-endian, row by row."""
        return json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "steps": self.steps,
                "every": self.every,
                "sentences": self.sentences,
                "findings": [asdict(each) for each in self.findings],
                "modules": self.modules,
                "classes": self.classes,
                "optimizers": self.optimizers,
                "rows": self.rows.flatten().tolist(),
                "samples": self.samples.flatten().tolist(),
                "looks": self.looks.flatten().tolist(),
                "baseline_steps": self.baseline_steps.flatten().tolist(),
                "baselines": self.baselines.flatten().long().tolist(),
                **{name: _packed(getattr(self, name)) for name in _ARRAYS},
                "skipped": self.skipped.nonzero().flatten().tolist(),
                "kept": self.kept,
                "black_box": self.black_box,
                "step_time": None if self.step_time is None else asdict(self.step_time),
            },
            separators=(",", ":"),
        )


_ARRAYS = {
    "gradients": ("rows", "modules"),
    "weights": ("samples", "modules"),
    "updates": ("samples", "modules"),
    "losses": ("rows", "optimizers"),
    "learning_rates": ("rows", "optimizers"),
    "memory": ("looks", "held"),
}
"""The names of the numbers of rows and columns of each array."""


def document_of(training: Training, most: int | None = None) -> TrainingDocument:
    """Return the document of a loop. While the loop runs, the last steps are missing.

    Args:
        most: the most gradient norms. If there are more, the same number of rows is pooled into each row, which holds
            the largest of each number, or NaN.
    """
    norms = training.norms
    rows, gradients, losses, rates = norms.steps, norms.gradients, norms.scalar(0), norms.scalar(1)
    skipped, samples, weights, updates = norms.skipped, norms.sampled_steps, norms.weights, norms.updates
    modules = len(norms.modules)
    if not rows.shape[0]:
        losses = rates = torch.empty(0, len(norms.optimizers), dtype=torch.float32, device="cpu")
        skipped = torch.empty(0, dtype=torch.bool, device="cpu")
    size = 1 if most is None else _pool_size(rows.shape[0], modules, most)
    of_samples = 1 if most is None else _pool_size(samples.shape[0], modules, most)
    return TrainingDocument(
        training.steps,
        training.every,
        tuple(training.sentences),
        tuple(training.findings),
        tuple(norms.modules),
        _numbered_classes(norms.modules, training.module_classes),
        tuple(numbered(norms.optimizers)),
        _pooled_steps(rows, size),
        _pooled(gradients, size),
        _pooled_steps(samples, of_samples),
        _pooled(weights, of_samples),
        _pooled(updates, of_samples),
        _pooled(losses, size),
        _pooled(rates, size),
        torch.stack((training.memory.firsts, training.memory.lasts), 1),
        training.memory.values
        if training.memory.count
        else torch.empty(0, len(HELD), dtype=torch.float32, device="cpu"),
        torch.stack((training.baselines.firsts, training.baselines.lasts), 1),
        training.baselines.values.reshape(-1, len(BASELINE)),
        _pooled(skipped[:, None].float(), size)[:, 0] > 0,
        tuple(kept_steps(training).items()),
        training.black_box is not None,
        training.step_time,
    )


def _numbered_classes(modules: Sequence[str], classes: Mapping[str, str]) -> dict[str, str]:
    """Return the class of each module whose name is a number, by path: `layers.3 Linear` says more than `layers.3`."""
    around = {path[:end] for path in modules for end, sign in enumerate(f"{path}.") if sign == "."}
    return {path: classes[path] for path in around if path.rpartition(".")[2].isdecimal() and path in classes}


def kept_steps(training: Training) -> dict[int, str]:
    """Return the black box's folder of each kept step."""
    return {each.step: each.at for each in training.findings if each.kind == "black box" and each.at is not None}


def _pool_size(rows: int, columns: int, most: int) -> int:
    room = max(1, most // max(1, columns))
    return max(1, -(-rows // room))


def _pooled_steps(steps: Tensor, size: int) -> Tensor:
    if size == 1 or not steps.shape[0]:
        return steps
    ends = [min(start + size, steps.shape[0]) - 1 for start in range(0, steps.shape[0], size)]
    return torch.stack((steps[::size, 0], steps[ends, 1]), 1)


def _pooled(values: Tensor, size: int) -> Tensor:
    if size == 1 or not values.numel():
        return values
    return torch.stack([part.amax(0) for part in torch.split(values, size)])


def read_page(path: Path) -> TrainingDocument:
    """Read the data of a page that `Training.save_html` wrote. No code of the page runs.

    Raises:
        ValueError: it is not such a page, a later version wrote it, or its parts do not match.
        OSError: it cannot be read.
    """
    return load_file(path, "a page of a training loop", _MOST_BYTES, _read_page)


def _read_page(content: bytearray) -> TrainingDocument:
    text = content.decode("utf-8", "replace")
    begins = max(map(text.find, (PAGE_BEGINS, _PAGE_BEGAN)))
    start = text.find(DATA_BEGINS, begins)
    end = text.find("</script>", start)
    if min(begins, start, end) < 0:
        raise ValueError("training.save_html() writes one")
    return read_document(text[start + len(DATA_BEGINS) : end])


def read_document(text: str) -> TrainingDocument:
    """Read the result of `to_json`. Damaged data raises one of the errors that `load_file` reports as wrong content."""
    found = json_object(text, FORMAT, VERSION)
    modules, optimizers = _texts(found["modules"]), _texts(found["optimizers"])
    if len(modules) > _MOST_MODULES:
        raise ValueError(f"it has {len(modules):,} modules; at most {_MOST_MODULES:,} are supported")
    rows, samples, looks = (_spans(found[name]) for name in ("rows", "samples", "looks"))
    befores = _spans(found.get("baseline_steps", []))  # missing in older pages
    counts = {
        "rows": rows.shape[0],
        "samples": samples.shape[0],
        "looks": looks.shape[0],
        "held": len(HELD),
        "modules": len(modules),
        "optimizers": len(optimizers),
    }
    if found["version"] == 1:
        counts["held"] -= 1
    arrays = {name: _unpacked(name, found[name], counts[high], counts[wide]) for name, (high, wide) in _ARRAYS.items()}
    if found["version"] == 1:
        at = HELD.index("batch")
        memory = arrays["memory"]
        arrays["memory"] = torch.cat((memory[:, :at], torch.zeros_like(memory[:, :1]), memory[:, at:]), 1)
    skipped = torch.zeros(rows.shape[0], dtype=torch.bool, device="cpu")
    for each in found["skipped"]:
        if type(each) is not int or not 0 <= each < rows.shape[0]:
            raise ValueError(f"{each} is not a row")
        skipped[each] = True
    return TrainingDocument(
        int(found["steps"]),
        int(found["every"]),
        _texts(found["sentences"]),
        tuple(map(_finding, found["findings"])),
        modules,
        {str(path): str(name) for path, name in dict(found.get("classes", {})).items()},  # missing in older pages
        optimizers,
        rows,
        samples=samples,
        looks=looks,
        baseline_steps=befores,
        baselines=_bytes(found.get("baselines", []), befores.shape[0]),
        skipped=skipped,
        kept=tuple((int(step), str(folder)) for step, folder in found["kept"]),
        black_box=bool(found["black_box"]),
        step_time=_step_time(found.get("step_time")),  # missing in older pages
        **arrays,
    )


def _step_time(given: dict[str, Any] | None) -> StepTime | None:
    if given is None:
        return None
    rate = given["samples_per_second"]
    seconds = {phase: float(given["seconds"][phase]) for phase in PHASES}
    return StepTime(seconds, int(given["steps"]), None if rate is None else float(rate), str(given["device"]))


def _finding(given: dict[str, Any]) -> Finding:
    known = {"alike": None, **given}  # older pages lack `alike`
    finding = Finding(**{each.name: known[each.name] for each in fields(Finding)})
    if finding.kind not in get_args(FindingKind) or not isinstance(finding.sentence, str):
        raise ValueError(f"{finding.kind!r} is not a kind of finding")
    return finding


def _texts(given: Sequence[object]) -> tuple[str, ...]:
    if not all(isinstance(each, str) for each in given):
        raise ValueError("a name is not a string")
    return tuple(map(str, given))


def _spans(given: list[int]) -> Tensor:
    """Return an array of spans as int64 of shape (rows, 2)."""
    if len(given) % 2 or not all(type(each) is int for each in given):
        raise ValueError("its rows of steps are not pairs of whole numbers")
    return torch.tensor(given, dtype=torch.int64, device="cpu").reshape(-1, 2)


def _bytes(given: list[int], rows: int) -> Tensor:
    """Return an array of bytes as float64 of shape (rows, 5)."""
    if len(given) != rows * len(BASELINE) or not all(type(each) is int for each in given):
        raise ValueError(f"its baselines are not {rows:,} rows of {len(BASELINE)} whole numbers")
    return torch.tensor(given, dtype=torch.float64, device="cpu").reshape(rows, len(BASELINE))


def _packed(values: Tensor) -> str:
    if not values.numel():
        return ""
    content = bytearray(4 * values.numel())
    torch.frombuffer(content, dtype=torch.float32).copy_(values.detach().float().flatten())
    return b64encode(content).decode()


def _unpacked(name: str, text: str, rows: int, columns: int) -> Tensor:
    expected = 4 * rows * columns
    if len(text) != -(-expected // 3) * 4:
        raise ValueError(f"{name} are not {rows:,} rows of {columns:,} numbers")
    if not expected:
        return torch.empty(rows, columns, dtype=torch.float32, device="cpu")
    try:
        content = bytearray(b64decode(text, validate=True))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return torch.frombuffer(content, dtype=torch.float32).reshape(rows, columns)
