"""`import tapescope` takes no time: names are there when they are asked for, as if they had been there."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import unwrap
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

import tapescope as ts
from tapescope.tests.says import raises
from tapescope.tests.warm_python import WarmPython, warm_python

from .public_names import NAMESPACES


def alone(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def with_torch() -> Iterator[Callable[[str], str]]:
    """Runs a script in a process that has imported torch, and nothing of tapescope; returns what it prints."""
    with warm_python("torch") as python:

        def printed(script: str) -> str:
            done = python.run("-c", script)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        yield printed


def test_importing_it_loads_neither_torch_nor_what_draws_or_runs() -> None:
    loaded = alone(
        "import sys, tapescope\n"
        "ours = [sys.modules[name] for name in sys.modules if name.partition('.')[0] == 'tapescope']\n"
        "print('torch' in sys.modules, *sorted({each.__name__ for each in ours if not hasattr(each, '__path__')}))"
    )
    assert loaded == (
        "False tapescope.errors tapescope.public.hips tapescope.public.orders "
        "tapescope.public.studies tapescope.public.types"
    )


@pytest.mark.parametrize("space", [ts, *(getattr(ts, name) for name in sorted(NAMESPACES))], ids=lambda at: at.__name__)
def test_what_type_checkers_and_editors_see_is_what_is_there(space: ModuleType) -> None:
    source = ast.parse(Path(str(space.__file__)).read_text(encoding="utf-8"))
    (block,) = [node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "public"]
    seen = {alias.asname: (node.module, alias.name) for node in imports for alias in node.names}
    named = {name: (*place.split(":"), name)[:2] for name, place in space._MODULE_OF.items()}
    assert seen == named
    assert {*space.__all__} - (NAMESPACES if space is ts else set()) == {*seen}
    for name, (module, its_name) in seen.items():
        assert unwrap(getattr(space, name)) is unwrap(getattr(sys.modules[f"tapescope.{module}"], its_name))


def test_a_namespace_can_be_imported() -> None:
    script = "import tapescope.types\nfrom tapescope.orders import POLICIES\nprint(tapescope.types.Timeline.__name__)"
    assert alone(script) == "Timeline"


def test_all_of_it_can_be_asked_for_at_once(with_torch: Callable[[str], str]) -> None:
    script = "from tapescope import *\nimport tapescope\nassert all(each in globals() for each in tapescope.__all__)"
    assert with_torch(script) == ""
    assert set(ts.__all__) <= set(dir(ts))


def test_what_completion_offers_is_for_users() -> None:
    names = {name for name in dir(ts) if not name.startswith("__")}
    assert names == {*ts.__all__} and len(names) <= 60


def test_what_is_not_there_is_said_so() -> None:
    with raises(AttributeError, "'tapescope'", "'nothing'"):
        ts.nothing  # noqa: B018
    assert not hasattr(ts, "_repr_html_")


def test_a_name_can_be_patched_before_anybody_has_asked_for_it(with_torch: Callable[[str], str]) -> None:
    script = (
        "import tapescope as ts\n"
        "from unittest import mock\n"
        "with mock.patch('tapescope.graph', 1):\n"
        "    assert ts.graph == 1\n"
        "assert callable(ts.graph)\n"
        "ts.debug = 2\n"
        "assert ts.debug == 2"
    )
    assert with_torch(script) == ""
    with mock.patch.object(ts, "graph", 1):
        assert ts.graph == 1
    assert callable(ts.graph)


EACH_FIRST = """
import importlib, pathlib, sys, torch
import tapescope

root = pathlib.Path(tapescope.__file__).parent
packages = "inspector", "engine", "widgets", "commands"
files = [root / each for each in sys.argv[1:]]
files = files or sorted(each for one in packages for each in (root / one).rglob("*.py"))
for path in files:
    for name in [each for each in sys.modules if each.partition(".")[0] == "tapescope"]:
        del sys.modules[name]
    sys.modules["tapescope"] = package = type(sys)("tapescope")
    package.__path__ = [str(root)]
    parts = path.relative_to(root).with_suffix("").parts
    importlib.import_module(".".join(("tapescope", *parts)).removesuffix(".__init__"))
"""
SOME = ("__main__.py", "widgets/deck/still_picture.py", "widgets/deck/run_player.py", "engine/recording/recorder.py")


@pytest.mark.parametrize("files", [SOME, pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"])
def test_each_module_can_be_the_first_that_is_imported(files: tuple[str, ...], fresh_python: WarmPython) -> None:
    done = fresh_python.run("-c", EACH_FIRST, *files)
    assert done.returncode == 0, done.stderr[-3000:]


def test_it_can_be_asked_for_by_several_threads_at_once() -> None:
    script = (
        "import tapescope as ts\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    asked = [pool.submit(getattr, ts, name) for name in ts.__all__]\n"
        "    assert all(each.result() is getattr(ts, name) for each, name in zip(asked, ts.__all__))"
    )
    assert alone(script) == ""
