"""Old paths of modules go on working for one version, say where to find them now, and pickles made by them load."""

from __future__ import annotations

import importlib
import pickle
import pickletools
import subprocess
import sys
import warnings

import pytest
import torch

import tapescope as ts
from tapescope.moved import MOVED, RENAMED


def test_each_row_leads_to_modules_that_are_there() -> None:
    for old, new in MOVED.items():
        assert importlib.util.find_spec(f"tapescope.{new.split()[0]}"), old
        assert all(importlib.util.find_spec(f"tapescope.{each}") for each in new.split()), old


@pytest.mark.parametrize(
    ("old", "name", "now"),
    [
        ("engine.policies", "CLASSIC", "engine.orders.policies"),
        ("engine.policies", "Policy", "engine.queue.policy"),
        ("engine.schedule", "queue_lengths", "engine.queue.pending"),
        ("engine.sizes", "size_text", "engine.words.sizes"),
        ("engine.direct", "Stepper", "engine.sessions.stepper"),
        ("widgets.theme", "LIGHT", "widgets.pages.theme"),
    ],
)
def test_an_old_path_gives_what_stands_elsewhere_now_and_names_it(
    old: str, name: str, now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"tapescope.{old}", raising=False)
    with pytest.warns(DeprecationWarning, match=f"tapescope.{now}"):
        module = importlib.import_module(f"tapescope.{old}")
    assert getattr(module, name) is getattr(importlib.import_module(f"tapescope.{now}"), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("room", "name"),
    [
        ("engine.trace", "Trace"),
        ("engine.workloads", "workload"),
        ("engine.stops", "Stops"),
        ("engine.ensembles", "find_ensembles"),
        ("inspector.graph", "Graph"),
        ("widgets.deck", "Deck"),
    ],
)
def test_a_room_that_is_called_as_a_module_was_has_its_names(room: str, name: str) -> None:
    module = importlib.import_module(f"tapescope.{room}")
    inside = importlib.import_module(f"tapescope.{MOVED[room].split()[0]}")
    with pytest.warns(DeprecationWarning, match="goes with the next version"):
        assert getattr(module, name) is getattr(inside, name)


def test_what_has_another_name_now_is_found_by_the_old_one() -> None:
    for old, name in RENAMED.items():
        module, _, old_name = old.rpartition(".")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            found = getattr(importlib.import_module(f"tapescope.{module}"), old_name)
        places = [importlib.import_module(f"tapescope.{new}") for new in MOVED[module].split()]
        assert found is next(getattr(place, name) for place in places if hasattr(place, name)), old


def test_what_was_pickled_by_old_paths_loads() -> None:
    graph = ts.graph(torch.ones(2, requires_grad=True).exp().sum())
    kept = [graph.tasks[0], ts.Accumulation("list", "never"), ts.Category.BUFFER]
    old_of = {now: old for old, new in MOVED.items() for now in new.split()}
    written = pickle.dumps(kept, protocol=0).decode()
    for now, old in old_of.items():
        written = written.replace(f"ctapescope.{now}\n", f"ctapescope.{old}\n")
    named = {
        str(value).partition(" ")[0] for code, value, _ in pickletools.genops(written.encode()) if code.name == "GLOBAL"
    }
    assert {"tapescope.inspector.graph", "tapescope.engine.accumulation", "tapescope.engine.timeline"} <= named
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert pickle.loads(written.encode()) == kept


EACH_FIRST = """
import importlib, pathlib, sys, torch
import tapescope

root = pathlib.Path(tapescope.__file__).parent
rooms = "inspector", "engine", "widgets", "commands"
files = [root / each for each in sys.argv[1:]] or sorted(each for room in rooms for each in (root / room).rglob("*.py"))
for path in files:
    for name in [each for each in sys.modules if each.partition(".")[0] == "tapescope"]:
        del sys.modules[name]
    sys.modules["tapescope"] = package = type(sys)("tapescope")
    package.__path__ = [str(root)]
    parts = path.relative_to(root).with_suffix("").parts
    importlib.import_module(".".join(("tapescope", *parts)).removesuffix(".__init__"))
"""
SOME = ("__main__.py", "widgets/deck/still.py", "widgets/deck/recording.py", "engine/trace/recorder.py")


@pytest.mark.parametrize("files", [SOME, pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"])
def test_each_module_can_be_the_first_that_is_imported_and_takes_no_old_path(files: tuple[str, ...]) -> None:
    """Of a room that is called as a module was, Python asks for the names of its modules before it imports them."""
    command = [sys.executable, "-W", "error::DeprecationWarning:tapescope", "-c", EACH_FIRST, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
