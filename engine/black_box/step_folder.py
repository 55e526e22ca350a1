"""The folder of one step: what is in it, and how it is written."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..words.sizes import size_text
from .tensors import TensorFacts, own_copy

FORMAT, VERSION = "tapescope.black_box", 1
STATE, FACTS, README = "state.pt", "facts.json", "README.md"
MOST_FOLDERS = 16
"""In one black box: the first bad step tells more than those that follow it."""
_ENTRY = 512  # bytes around each tensor in torch's file, at most


@dataclass(frozen=True, slots=True)
class Written:
    """What is to be written of a step.

    Attributes:
        tensors: by name, as they are in the loop.
        facts: the rest, as JSON.
        readme: says what is in it.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    readme: str

    @property
    def nbytes(self) -> int:
        """What it takes on the disk, without the texts."""
        return sum(each.numel() * each.element_size() + _ENTRY for each in self.tensors.values())


def write_step(box: Path, name: str, written: Written, limit: int) -> Path:
    """Writes a folder beside its place, and renames it when it is whole.

    Args:
        box: where folders of steps are.
        name: of the folder, `step_37`; `step_37_2` if that is there.
        limit: bytes that all in the box may have together.

    Raises:
        ValueError: it does not fit into the limit, in a sentence.
        OSError: the system does not let it be written.
    """
    box.mkdir(mode=0o700, parents=True, exist_ok=True)
    folders = [each for each in box.iterdir() if each.name.startswith("step_")]
    if len(folders) >= MOST_FOLDERS:
        raise ValueError(
            f"there are {len(folders)} folders in {box} already; what is not wanted any more can be deleted"
        )
    there = bytes_in(box)
    if there + written.nbytes > limit:
        held = f", and {size_text(there)} are in {box}" if there else ""
        raise ValueError(
            f"it has {size_text(written.nbytes)}{held}, and the limit is {size_text(limit)}: "
            'ts.training(..., limit="8GB") would take more'
        )
    free = shutil.disk_usage(box).free
    if written.nbytes > free:
        raise ValueError(f"it has {size_text(written.nbytes)}, and {size_text(free)} are free on the disk of {box}")
    beside = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=box))  # nobody else may look into it
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
    """The bytes of all files in a folder and those in it; links are not followed."""
    found = 0
    for folder, _, files in os.walk(box):
        for name in files:
            try:
                found += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # somebody clears it meanwhile
                continue
    return found


def _fill(folder: Path, written: Written) -> None:
    tensors = {name: own_copy(each, "cpu") for name, each in written.tensors.items()}
    facts = {name: TensorFacts.of(tensors[name], each.device).as_json() for name, each in written.tensors.items()}
    with _new(folder / STATE) as file:
        torch.save(tensors, file)
    _check_entries(folder / STATE, tensors)
    told = {"format": FORMAT, "version": VERSION, **written.facts, "tensors": facts}
    for name, text in ((FACTS, json.dumps(told, indent=1)), (README, written.readme)):
        with _new(folder / name) as file:
            file.write(text.encode())


def _new(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _check_entries(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """torch numbers the bytes of tensors in their order: reading relies on it, and runs no pickle."""
    with zipfile.ZipFile(path) as archive:
        sizes = {entry.filename.partition("/")[2]: entry.file_size for entry in archive.infolist()}
    for number, (name, each) in enumerate(tensors.items()):
        if sizes.get(f"data/{number}") != each.numel() * each.element_size():
            raise ValueError(f"torch.save has put the bytes of {name} where they can't be found")
