"""Files are written whole or not at all, and each loader refuses wrong ones in a sentence that names the file."""

from __future__ import annotations

import gzip
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import tapescope
import tapescope as ts
from tapescope.engine.recompute import plan as plan_file
from tapescope.engine.recording import run_file
from tapescope.engine.training import training_file
from tapescope.engine.training.black_box import read_step
from tapescope.inspector.files import atomic_write, write_file
from tapescope.tests.says import raises

pytestmark = pytest.mark.filterwarnings("ignore:ts.training:UserWarning")


class Loader(NamedTuple):
    load: Callable[[Path], object]
    limit: tuple[Any, str]
    """Its module, and the constant in it that bounds the bytes."""


LOADERS = {
    "run.json": Loader(ts.load, (run_file, "_LARGEST")),
    "plan.json": Loader(ts.types.RecomputePlan.load, (plan_file, "_LARGEST")),
    "loop.html": Loader(training_file.read_page, (training_file, "_MOST_BYTES")),
    "facts.json": Loader(lambda path: read_step.read_step(path.parent), (read_step, "_MOST_FACTS")),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the content that tapescope writes into each kind of file."""
    folder = tmp_path_factory.mktemp("files")
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    ts.backward(model(torch.ones(1, 2)).sum()).save(folder / "run.json")
    ts.plan_recompute(lambda: model(torch.ones(1, 2)).sum(), budget="1GB").save(folder / "plan.json")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ts.training(model, optimizer, black_box=folder / "box") as training:
        (model(torch.ones(1, 2)).sum() * float("nan")).backward()
        optimizer.step()
    training.save_html(folder / "loop.html")
    [step] = (folder / "box").iterdir()
    os.link(step / "facts.json", folder / "facts.json")
    return {name: (folder / name).read_bytes() for name in LOADERS}


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[: content.find(b'"format"') + 40],
    "not JSON": lambda content: b"no JSON at all",
    "not text": lambda content: bytes(range(128, 256)),
    "a list": lambda content: b"[1, 2]",
    "cut off and compressed": lambda content: gzip.compress(content)[:-20],
    "damaged and compressed": lambda content: gzip.compress(content)[:20] + bytes(100),
    "nested deeply": lambda content: b'{"format":' + b"[" * 100_000,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", LOADERS)
def test_each_loader_refuses_wrong_content(name: str, wrong: str, written: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(WRONG[wrong](written[name]))
    with raises(ValueError, tmp_path / name, "load") as raised:
        LOADERS[name].load(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("other", LOADERS)
@pytest.mark.parametrize("name", LOADERS)
def test_each_loader_refuses_the_files_of_others(
    name: str, other: str, written: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(written[other])
    if name == other:
        LOADERS[name].load(tmp_path / name)
        return
    with raises(ValueError, tmp_path / name):
        LOADERS[name].load(tmp_path / name)


@pytest.mark.parametrize("name", LOADERS)
def test_each_loader_refuses_a_large_file_and_what_is_not_a_file(
    name: str, written: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    with monkeypatch.context() as patched:
        patched.setattr(*LOADERS[name].limit, 100)
        for content in (written[name], gzip.compress(bytes(100_000))):
            path.write_bytes(content)
            with raises(ValueError, path, "100 bytes"):
                LOADERS[name].load(path)
    path.unlink()
    path.mkdir()
    with raises(ValueError, path, "folder"):
        LOADERS[name].load(path)
    path.rmdir()
    os.mkfifo(path)
    with raises(ValueError, path, "regular file"):  # and does not wait for a writer
        LOADERS[name].load(path)


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_file_is_whole_or_as_it_was(before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            file.flush()
            assert (path.read_bytes() if path.exists() else None) == before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if before is None else [before])
    write_file(path, "é")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ["é".encode()]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link, new, plain = (tmp_path / name for name in ("path", "link", "new", "plain"))
    path.touch(mode=0o640)
    link.symlink_to(path)
    write_file(link, b"content")
    assert link.is_symlink() and path.read_bytes() == b"content" and stat.S_IMODE(path.stat().st_mode) == 0o640
    plain.touch()
    assert stat.S_IMODE(write_file(new, b"").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_devices_are_written_to() -> None:
    write_file(os.devnull, b"nothing")
    assert not Path(os.devnull).is_file()


def test_an_error_names_the_path_that_was_asked_for(tmp_path: Path) -> None:
    for path, kind in ((tmp_path, IsADirectoryError), (tmp_path / "none" / "file", FileNotFoundError)):
        with pytest.raises(kind) as raised:
            write_file(path, b"")
        assert raised.value.filename == str(path)


def test_a_pipe_and_a_log_that_is_appended_to_are_written_directly(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    script = (
        "import os, sys\n"
        "from tapescope.inspector.files import write_file\n"
        "write_file('/dev/stdout', 'after\\n')\n"
        "os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND), 1)\n"
        "write_file('/dev/stdout', 'after\\n')\n"
    )
    parent = str(Path(tapescope.__file__).parents[1])
    command = [sys.executable, "-c", script, str(log)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True, cwd=parent)
    assert piped.stdout == "after\n" and log.read_text() == "before\nafter\n"
