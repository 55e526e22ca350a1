"""A folder from somebody else: what no black box would write is refused in a sentence, before memory is taken."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import Snapshots, raises


def make_model() -> nn.Module:
    return nn.Linear(3, 1)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(*batch).sum() * float("nan")
    return loss


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A step whose loss is not finite."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer, black_box=tmp_path), pytest.warns(UserWarning, match="ts.training"):
        (model(torch.ones(4, 3)).sum() * float("nan")).backward()
    return tmp_path / "step_0"


def replayed(folder: Path) -> ts.types.StepReplay:
    return ts.replay(folder, make_model, loss_of)


Facts = dict[str, Any]
ALIKE = {"another type", "another dtype", "more than can be said", "a negative size", "many dimensions"}
"""Those whose text is that of another one but for names and numbers."""

CHANGES: dict[str, tuple[Callable[[Facts], object], list[object]]] = {
    "another format": (lambda told: told.update(format="other"), ["facts.json"]),
    "another version": (lambda told: told.update(version=2), ["facts.json", '"version"', 2, 1]),
    "a missing part": (lambda told: told.pop("flags"), ["facts.json"]),
    "another type": (lambda told: told.update(step="37"), ["facts.json"]),
    "no micro-batches": (lambda told: told["micro_batches"].clear(), []),
    "a huge tensor": (
        lambda told: told["tensors"]["0/batch/0"].update(shape=[2**40, 3], strides=[3, 1]),
        ["0/batch/0", "float32"],
    ),
    "more than can be said": (lambda told: told["tensors"]["0/batch/0"].update(shape=[2**60, 3]), [2**60]),
    "a negative size": (lambda told: told["tensors"]["0/batch/0"].update(shape=[-4, 3]), [-4]),
    "strides that overlap": (lambda told: told["tensors"]["0/batch/0"].update(strides=[0, 1]), [0, 1]),
    "many dimensions": (
        lambda told: told["tensors"]["0/batch/0"].update(shape=[1] * 99, strides=[1] * 99),
        [[1] * 99],
    ),
    "an unknown dtype": (lambda told: told["tensors"]["0/batch/0"].update(dtype="load"), ["'load'"]),
    "another dtype": (lambda told: told["tensors"]["0/batch/0"].update(dtype="float64"), ["0/batch/0", "float64 4×3"]),
    "an unknown device": (lambda told: told["tensors"]["0/batch/0"].update(device="../x"), ["'../x'"]),
    "random words": (lambda told: told["micro_batches"][0]["python"][1].append(1), ["Python"]),
    "a batch of code": (
        lambda told: told["micro_batches"][0].update(batch={"call": "os.system"}),
        [],
    ),
    "a tensor that is not there": (
        lambda told: told["micro_batches"][0].update(batch={"tensor": 9, "requires_grad": False}),
        ["tensor 9"],
    ),
    "a field that is no name": (
        lambda told: told["micro_batches"][0].update(batch={"record": [["a b", {"value": 1}]], "class": "os:system"}),
        ["'a b'"],
    ),
    "no states of torch": (lambda told: told["tensors"].pop("0/random/cpu"), ["state.pt", "0/loss", "5,056 B"]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CHANGES)
def test_facts_that_are_not_as_they_were_written_are_refused(folder: Path, change: str, snapshot: Snapshots) -> None:
    alter, facts = CHANGES[change]
    told = json.loads((folder / "facts.json").read_text())
    alter(told)
    (folder / "facts.json").write_text(json.dumps(told))
    with raises(ValueError, *facts, str(folder)) as raised:
        replayed(folder)
    if change not in ALIKE:
        snapshot("replay", raised.value)


@pytest.mark.parametrize("text", ["", "[", "[]", "null", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass")])
def test_facts_that_are_no_facts_are_refused(folder: Path, text: str | bytes) -> None:
    (folder / "facts.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError, match=r"facts\.json"):
        replayed(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["facts.json", "state.pt"])
def test_links_and_pipes_are_not_followed(folder: Path, name: str, tmp_path: Path, snapshot: Snapshots) -> None:
    path = folder / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with raises(ValueError, name) as raised:
        replayed(folder)
    snapshot("replay", str(raised.value).replace(name, "FILE"))
    path.unlink()
    os.mkfifo(path)
    with raises(ValueError, name) as raised:
        replayed(folder)
    snapshot("replay", str(raised.value).replace(name, "FILE"))


@pytest.mark.filterwarnings("ignore")
def test_a_state_that_is_cut_off_or_packed_is_refused(folder: Path) -> None:
    path = folder / "state.pt"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with raises(ValueError, "state.pt"):
        replayed(folder)
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    with raises(ValueError, "state.pt", "parameter/weight", "float32 1×3"):
        replayed(folder)


@pytest.mark.filterwarnings("ignore")
def test_what_torchs_pickle_says_is_not_asked(folder: Path) -> None:
    """Only bytes are read: a pickle that was put there does nothing."""
    path = folder / "state.pt"
    with zipfile.ZipFile(path) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, part in parts.items():
            archive.writestr(name, b"cos\nsystem\n(S'false'\ntR." if name.endswith("data.pkl") else part)
    assert replayed(folder).same


@pytest.mark.filterwarnings("ignore")
def test_an_entry_that_unpacks_to_more_than_it_should_is_not_unpacked(
    folder: Path, monkeypatch: Any, snapshot: Snapshots
) -> None:
    path = folder / "state.pt"
    with zipfile.ZipFile(path) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            packed = name.endswith("/byteorder")
            content = part + b" " * 2**24 if packed else part
            archive.writestr(name, content, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    monkeypatch.setattr(zipfile.ZipFile, "read", None)  # which unpacks all of it
    with raises(ValueError, "state.pt") as raised:
        replayed(folder)
    snapshot("replay", raised.value)


@pytest.mark.filterwarnings("ignore")
def test_what_a_folder_says_can_t_steer_a_terminal(folder: Path) -> None:
    told = json.loads((folder / "facts.json").read_text())
    told["why"]["sentence"] = "\x1b]0;mine\x07 bad \u202e"
    told["machine"]["torch"] = "\x1b[2J"
    told["flags"]["default dtype"] = "\x1b[2J"
    (folder / "facts.json").write_text(json.dumps(told))
    said = str(replayed(folder))
    assert " bad " in said and "2J" in said and all(each.isprintable() or each == "\n" for each in said)
