"""Writes a recorded unit as the folder of a step."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....inspector.graph.phrases import joined
from ....inspector.text.sizes_and_counts import counted, size_text
from ...api.environment import flags_now, machine_now
from .batch import TensorFacts, own_copy, why_not_kept
from .batch_source import inputs_alone
from .models import Models, named
from .read_step import FACTS, FORMAT, STATE, VERSION
from .step_recorder import MicroBatch, Unit

README = "README.md"
MOST_FOLDERS = 16
"""The most folders in one black box. The first bad steps explain more than later ones."""
_ENTRY = 512  # largest overhead per tensor in torch's file, in bytes


@dataclass(frozen=True, slots=True)
class Written:
    """The content of a step's folder.

    Attributes:
        tensors: the loop's tensors, by name.
        facts: everything else, as JSON.
        readme: a text that describes the folder.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    readme: str

    @property
    def nbytes(self) -> int:
        """The size on disk in bytes, without the texts."""
        return sum(each.numel() * each.element_size() + _ENTRY for each in self.tensors.values())


def write_step(box: Path, name: str, written: Written, limit: int) -> Path:
    """Write a folder under a temporary name, and rename it once it is complete.

    Args:
        box: the directory that contains the folders of steps.
        name: the name of the folder, such as `step_37`; `step_37_2` is used if that exists.
        limit: the most bytes for all folders in the box together.

    Raises:
        ValueError: if the step does not fit into the limit.
        OSError: if the folder cannot be written.
    """
    box.mkdir(mode=0o700, parents=True, exist_ok=True)
    folders = [each for each in box.iterdir() if each.name.startswith("step_")]
    if len(folders) >= MOST_FOLDERS:
        raise ValueError(f"there are already {len(folders)} folders in {box}; delete those that you no longer need")
    there = bytes_in(box)
    if there + written.nbytes > limit:
        held = f", and {size_text(there)} are in {box}" if there else ""
        raise ValueError(
            f"it has {size_text(written.nbytes)}{held}, and the limit is {size_text(limit)}: "
            'pass a larger one, such as ts.training(..., limit="8GB")'
        )
    free = shutil.disk_usage(box).free
    if written.nbytes > free:
        raise ValueError(
            f"it has {size_text(written.nbytes)}, but only {size_text(free)} are free on the disk of {box}"
        )
    beside = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=box))  # mkdtemp makes it readable by this user only
    try:
        _fill(beside, written)
        place, number = box / name, 1
        while place.exists() or place.is_symlink():
            number += 1
            place = box / f"{name}_{number}"
        beside.rename(place)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return place


def bytes_in(box: Path) -> int:
    """Return the bytes of all files in a folder and its subfolders, without following links."""
    found = 0
    for folder, _, files in os.walk(box):
        for name in files:
            try:
                found += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # deleted by another process meanwhile
                continue
    return found


def _fill(folder: Path, written: Written) -> None:
    tensors = {name: own_copy(each, "cpu") for name, each in written.tensors.items()}
    facts = {name: TensorFacts.of(tensors[name], each.device).as_json() for name, each in written.tensors.items()}
    with _new(folder / STATE) as file:
        torch.save(tensors, file)
    _check_entries(folder / STATE, tensors)
    content = {"format": FORMAT, "version": VERSION, **written.facts, "tensors": facts}
    for name, text in ((FACTS, json.dumps(content, indent=1)), (README, written.readme)):
        with _new(folder / name) as file:
            file.write(text.encode())


def _new(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _check_entries(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check that torch.save numbered the tensors' bytes in order, which lets the reader work without pickle."""
    with zipfile.ZipFile(path) as archive:
        sizes = {entry.filename.partition("/")[2]: entry.file_size for entry in archive.infolist()}
    for number, (name, each) in enumerate(tensors.items()):
        if sizes.get(f"data/{number}") != each.numel() * each.element_size():
            raise ValueError(f"torch.save wrote the bytes of {name} to an unexpected entry")


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for writing a step.

    Attributes:
        kind: "non-finite", "exception", or the kind of a finding.
        sentence: the reason as a sentence.
        error: the exception that was raised, if any.
        gradients: when the current gradients were complete: "after the backward" or "before the optimizer's step";
            None: they are incomplete, or gone.
    """

    kind: str
    sentence: str
    error: BaseException | None = None
    gradients: str | None = None


def unit_as_written(step: int, unit: Unit, models: Models, reason: Reason) -> Written:
    """Return the content of the folder for a unit.

    Raises:
        NotImplementedError: a parameter or buffer cannot be written as bytes.
    """
    if left_out := models.left_out():
        raise NotImplementedError(f"parts of the model cannot be written as bytes: {joined(left_out)}")
    models.walk()
    now: Mapping[str, Tensor] = dict(models.parameters)
    tensors: dict[str, Tensor] = {}
    for name, each in now.items():
        tensors[f"parameter/{name}"] = each if unit.parameters is None else unit.parameters.get(name, each)
    for name, each in unit.gradients_before.items():
        tensors[f"gradient before/{name}"] = each
    without = []
    for name, each in now.items():
        if reason.gradients is not None and each.grad is not None:
            if why := why_not_kept(each.grad):
                without.append(f"{name} ({why})")
            else:
                tensors[f"gradient/{name}"] = each.grad
    micro_batches = []
    for number, micro_batch in enumerate(unit.micro_batches):
        content, own = _micro_batch(micro_batch)
        micro_batches.append(content)
        tensors |= {f"{number}/{name}": each for name, each in own.items()}
    facts: dict[str, Any] = {
        "step": step,
        "why": {"kind": reason.kind, "sentence": reason.sentence, **_error(reason.error)},
        "machine": machine_now(),
        "flags": flags_now(),
        "models": [type(each).__name__ for each in models.modules],
        "training": {name: each.training for name, each in named(models.modules, "modules")},
        "requires_grad": {name: each.requires_grad for name, each in now.items()},
        "gradients": reason.gradients,
        "gradients_left_out": without,
        "micro_batches": micro_batches,
        "micro_batches_before": unit.dropped,
    }
    return Written(tensors, facts, "\n".join(_readme(step, unit, models, reason, tensors, facts)) + "\n")


def _micro_batch(kept: MicroBatch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    batch = kept.fetched.as_json()
    tensors = {f"batch/{number}": kept.fetched.content(each) for number, each in enumerate(batch.tensors)}
    tensors |= {f"buffer/{name}": each for name, each in kept.buffers.by_name.items()}
    tensors |= {f"random/{device}": each for device, each in kept.random.torch.items()}
    tensors["random at the model"] = kept.at_model
    if kept.loss is not None:
        tensors["loss"] = kept.loss
    if kept.scale is not None:
        tensors["scale"] = kept.scale
    content = {
        "from": kept.fetched.origin,
        "batch": batch.json,
        "left_out": batch.left_out,
        "written_in_place": kept.fetched.written,
        "autocast": kept.autocast,
        "backward": kept.done,
        **kept.random.as_json(),
    }
    return content, tensors


def _error(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {}
    try:
        message = str(error)
    except Exception:
        message = "?"
    return {"error": type(error).__name__, "message": message, "traceback": "".join(traceback.format_exception(error))}


def _readme(
    step: int, unit: Unit, models: Models, reason: Reason, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> Iterator[str]:
    origins = dict.fromkeys(each.fetched.origin for each in unit.micro_batches)
    yield f"# Step {step} of a training loop\n"
    yield f"{reason.sentence}\n"
    yield "It runs again, forward and backward, with two functions of your script:\n"
    yield "    tapescope replay FOLDER train.py:make_model train.py:loss_of\n"
    yield "FOLDER is this folder. `make_model()` returns the model, with any values; `loss_of(model, batch)` returns"
    yield "the tensor on which the loop calls `.backward()`. In Python: `ts.replay(folder, make_model, loss_of)`.\n"
    yield "## Contents\n"
    yield "**These are your data: check them before you pass the folder on.**\n"
    yield f"`{STATE}`, which `torch.load(..., weights_only=True)` opens as a dict, {size_text(_bytes(tensors))}:\n"
    parameters = [each for name, each in tensors.items() if name.startswith("parameter/")]
    kinds = ", ".join(facts["models"])
    yield f"- `parameter/...`: the weights of {kinds}, {counted(len(parameters), 'tensor')}, before this step"
    yield f"- `0/batch/...`: training data, {counted(len(unit.micro_batches), 'batch')} from {joined([*origins])}"
    yield "- `0/buffer/...`: buffers before the forward"
    yield "- `0/random/...`: states of torch's random generators; Python's and NumPy's are in `facts.json`"
    yield "- `0/loss`, `gradient/...`: the loss and the gradients, if they were computed\n"
    yield "`facts.json`: numbers and strings of the batch, names and shapes, the machine and torch's version, flags,"
    yield "and the traceback of an exception, with paths of your files.\n"
    yield "Not recorded: code, the optimizer's state, and other state of the loop.\n"
    if alone := inputs_alone(origins):
        yield f"{alone}\n"
    for said in [place for each in facts["micro_batches"] for place in each["left_out"]]:
        yield f"Not recorded of the batch: {said}.\n"


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors.values())
