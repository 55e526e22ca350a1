"""Reads the folder of a recorded step without trusting its content."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ....inspector.files import json_object, load_file, open_untrusted, path_of
from ....inspector.text.sizes_and_counts import size_text
from ...api.environment import Autocast, read_autocast
from .batch import TensorFacts
from .random_state import RandomNumbers

FORMAT, VERSION = "tapescope.black_box", 1
STATE, FACTS = "state.pt", "facts.json"

_WHAT = "a file of a black box"
_MOST_FACTS = 2**27  # bytes; the names of a large model need some megabytes
_MOST_MICRO_BATCHES = 2**10


@dataclass(frozen=True, slots=True)
class RecordedMicroBatch:
    """One recorded forward with its backward, see `step_recorder.MicroBatch`.

    Attributes:
        origin: the source of the batch.
        batch: the batch as JSON.
        left_out: parts of the batch that were not recorded.
        written: parts of the batch that were modified in place before they were recorded.
        autocast: the autocast settings at the first module's call.
        backward: whether the backward had run.
        facts: all facts as JSON, from which random number states are read.
    """

    origin: str
    batch: Any
    left_out: tuple[str, ...]
    written: tuple[str, ...]
    autocast: Autocast
    backward: bool
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A recorded step, as read from its folder.

    Attributes:
        folder: the path of the folder.
        step: the step's number.
        kind, sentence: the reason for recording it.
        error: the class and the message of the exception that it raised; None if it raised none.
        traceback: the traceback of that exception.
        machine, flags: the machine and PyTorch's flags at the time.
        training: the training mode of each module, by name.
        requires_grad: whether each parameter requires a gradient, by name.
        gradients: when the recorded gradients were read, see `write.Reason`.
        micro_batches: the recorded micro-batches in order.
        before: the number of earlier micro-batches that are not recorded.
        tensors: the dtype, shape, strides and device of each tensor, by name.
    """

    folder: Path
    step: int
    kind: str
    sentence: str
    error: tuple[str, str] | None
    traceback: str
    models: tuple[str, ...]
    machine: Mapping[str, str]
    flags: Mapping[str, Any]
    training: Mapping[str, bool]
    requires_grad: Mapping[str, bool]
    gradients: str | None
    micro_batches: tuple[RecordedMicroBatch, ...]
    before: int
    tensors: Mapping[str, TensorFacts]

    def named(self, prefix: str) -> dict[str, TensorFacts]:
        """Return the tensors whose names start with a prefix, by the rest of the name."""
        return {name.removeprefix(prefix): each for name, each in self.tensors.items() if name.startswith(prefix)}

    def load(self) -> dict[str, Tensor]:
        """Load all tensors, on the CPU.

        Raises:
            ValueError: if the file does not match the facts, or there is not enough memory.
        """
        path = self.folder / STATE
        if not os.path.lexists(path):
            raise ValueError(f"{path} does not exist")
        with open_untrusted(path, _WHAT, follow_link=False) as file:
            return _load(file, self.tensors)

    def random_numbers(self, number: int, tensors: Mapping[str, Tensor]) -> RandomNumbers:
        """Return the random number states at the start of a micro-batch."""
        prefix = f"{number}/random/"
        states = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
        facts = self.micro_batches[number].facts
        content = {name: facts.get(name) for name in ("python", "numpy")}
        try:
            return RandomNumbers.read(content, states)
        except ValueError as error:
            raise ValueError(f"{self.folder} cannot be used: {error}") from None


_WANTED = "expected the folder of one step that ts.training(..., black_box=FOLDER) wrote"


def _steps_in(folder: Path) -> str:
    steps = sorted(each.name for each in folder.glob("step_*"))
    return f"; {folder} has {', '.join(steps[:5])}" if steps else ""


def read_step(folder: object) -> RecordedStep:
    """Read the facts in a step's folder. The tensors are not loaded.

    Raises:
        TypeError: if `folder` is not a path.
        ValueError: if it is not the folder of a step, or its content is malformed.
        OSError: if it cannot be read.
    """
    place = path_of(folder, "ts.replay()")
    if not place.is_dir():
        what = "is not a folder" if os.path.lexists(place) else "does not exist"
        raise ValueError(f"the folder of a step, {place}, {what}; {_WANTED}{_steps_in(place.parent)}")
    if not os.path.lexists(place / FACTS):
        raise ValueError(f"{place} has no {FACTS}; {_WANTED}{_steps_in(place)}")
    return load_file(
        place / FACTS,
        _WHAT,
        _MOST_FACTS,
        lambda content: _step(place, json_object(content, FORMAT, VERSION)),
        follow_link=False,
    )


def _step(folder: Path, content: dict[str, Any]) -> RecordedStep:
    why = _a(dict, content["why"])
    micro_batches = tuple(_micro_batch(_a(dict, each)) for each in _a(list, content["micro_batches"]))
    if len(micro_batches) > _MOST_MICRO_BATCHES:
        raise ValueError(f"the folder lists {len(micro_batches):,} micro-batches, more than are accepted")
    gradients = content["gradients"]
    return RecordedStep(
        folder,
        _a(int, content["step"]),
        _a(str, why["kind"]),
        _a(str, why["sentence"]),
        (_a(str, why["error"]), _a(str, why["message"])) if "error" in why else None,
        _a(str, why.get("traceback", "")),
        tuple(_a(str, each) for each in _a(list, content["models"])),
        _of(str, content["machine"]),
        {
            _a(str, name): _a(str, value) if isinstance(value, str) else value
            for name, value in _a(dict, content["flags"]).items()
        },
        _of(bool, content["training"]),
        _of(bool, content["requires_grad"]),
        None if gradients is None else _a(str, gradients),
        micro_batches,
        _a(int, content["micro_batches_before"]),
        {_a(str, name): TensorFacts.read(each) for name, each in _a(dict, content["tensors"]).items()},
    )


def _micro_batch(content: dict[str, Any]) -> RecordedMicroBatch:
    return RecordedMicroBatch(
        _a(str, content["from"]),
        _a(dict, content["batch"]),
        tuple(_a(str, each) for each in _a(list, content["left_out"])),
        tuple(_a(str, each) for each in _a(list, content["written_in_place"])),
        read_autocast(content["autocast"]),
        _a(bool, content["backward"]),
        content,
    )


def _a(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError
    return shown(value) if isinstance(value, str) else value


def shown(text: str) -> str:
    """Return the text without control characters, which a terminal would interpret."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


def _of(kind: type, content: Any) -> dict[str, Any]:
    return {_a(str, name): _a(kind, value) for name, value in _a(dict, content).items()}


def _load(file: IO[bytes], facts: Mapping[str, TensorFacts]) -> dict[str, Tensor]:
    nbytes = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if "byteorder" in entries and _word(archive, entries["byteorder"]) != sys.byteorder:
            raise ValueError("the file has another byte order than this machine")
        needed = 0
        for number, (name, each) in enumerate(facts.items()):
            entry = entries.get(f"data/{number}")
            if entry is None:
                raise ValueError(f"the bytes of {name} are missing")
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != each.nbytes:
                raise ValueError(f"{name} should be {each}, {size_text(each.nbytes)}, but has {entry.file_size:,} B")
            needed += each.nbytes
        if needed > nbytes:
            raise ValueError(f"its tensors should have {size_text(needed)}, but the file has {size_text(nbytes)}")
        if needed > (free := _free_memory()):
            raise ValueError(f"its tensors need {size_text(needed)}, but only {size_text(free)} of memory are free")
        found = {}
        for number, (name, each) in enumerate(facts.items()):
            with archive.open(entries[f"data/{number}"]) as content:
                found[name] = _tensor(content, each)
        return found


def _word(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    """Return the text of a small entry, or the beginning of an entry that unpacks to more."""
    with archive.open(entry) as content:
        return content.read(16).decode("ascii", "replace")


def _tensor(content: IO[bytes], facts: TensorFacts) -> Tensor:
    if not facts.nbytes:
        return torch.empty(facts.shape, dtype=facts.dtype, device="cpu")
    read = bytearray(content.read(facts.nbytes))
    if len(read) != facts.nbytes:
        raise ValueError("the file is truncated")
    values = torch.frombuffer(read, dtype=torch.uint8).view(facts.dtype)
    return values.as_strided(facts.shape, facts.strides).clone()  # the clone is aligned like other torch tensors


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**63
