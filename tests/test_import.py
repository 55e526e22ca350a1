"""`import tapehead` takes no time: names and modules are there when they are asked for, as if they had been there."""

from __future__ import annotations

import ast
import subprocess
import sys
from inspect import unwrap
from pathlib import Path
from unittest import mock

import pytest

import tapehead as th

SOURCE = ast.parse(Path(th.__file__).read_text(encoding="utf-8"))


def alone(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def each_in_a_process_that_has_torch(*scripts: str) -> None:
    """All of them in one go: torch takes longer to import than they do."""
    alone(
        "import os, sys, torch\n"
        f"for script in {scripts!r}:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        exec(script, {'__name__': '__main__'})\n"
        "        sys.exit()\n"
        "    assert os.waitpid(child, 0)[1] == 0, script\n"
    )


def test_importing_it_loads_neither_torch_nor_what_draws_or_runs() -> None:
    loaded = alone(
        "import sys, tapehead\n"
        "ours = [sys.modules[name] for name in sys.modules if name.partition('.')[0] == 'tapehead']\n"
        "print('torch' in sys.modules, *sorted(each.__name__ for each in ours if not hasattr(each, '__path__')))"
    )
    assert loaded == "False tapehead.front_door tapehead.moved tapehead.rooms"


def test_what_type_checkers_and_editors_see_is_what_is_there() -> None:
    (block,) = [node for node in SOURCE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == th._MODULE_OF
    assert sorted(seen) == sorted(th.__all__)
    for name, module in seen.items():
        assert unwrap(getattr(th, name)) is unwrap(getattr(sys.modules[f"tapehead.{module}"], name))


def test_all_of_it_can_be_asked_for_at_once() -> None:
    script = "from tapehead import *\nimport tapehead\nassert all(each in globals() for each in tapehead.__all__)"
    assert alone(script) == ""
    assert set(th.__all__) <= set(dir(th))


def test_what_completion_offers_is_for_users() -> None:
    rooms = {"commands", "engine", "inspector", "widgets"}
    assert {name for name in dir(th) if not name.startswith("__")} == {*th.__all__, *rooms}


def test_modules_are_there_without_an_import_of_their_own() -> None:
    each_in_a_process_that_has_torch(
        "import tapehead as th\nassert th.engine.queue.policy.Policy is th.Policy",
        "import tapehead as th\nassert th.Graph is th.inspector.graph.graph.Graph",
        "import tapehead.engine.queue.policy\nassert tapehead.engine.trace.run.Run.__name__ == 'Run'",
    )


def test_a_room_that_is_called_as_a_module_was_has_its_old_names_and_its_modules() -> None:
    said = alone(
        "import tapehead as th, warnings\n"
        "warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    assert th.engine.trace.Trace is th.Trace\n"
        "print(caught[0].category.__name__)\n"
        "print(th.engine.trace.run.__name__)"
    )
    assert said.split() == ["DeprecationWarning", "tapehead.engine.trace.run"]


def test_what_is_not_there_is_said_so() -> None:
    for where in (th, th.engine, th.engine.queue, th.engine.trace):
        with pytest.raises(AttributeError, match=f"module '{where.__name__}' has no attribute 'nothing'"):
            where.nothing  # noqa: B018
        assert not hasattr(where, "_repr_html_")


def test_a_name_can_be_patched_before_anybody_has_asked_for_it() -> None:
    script = (
        "import tapehead as th\n"
        "from unittest import mock\n"
        "with mock.patch('tapehead.graph', 1):\n"
        "    assert th.graph == 1\n"
        "assert callable(th.graph)\n"
        "th.debug = 2\n"
        "assert th.debug == 2"
    )
    assert alone(script) == ""
    with mock.patch.object(th, "graph", 1):
        assert th.graph == 1
    assert callable(th.graph)


def test_it_can_be_asked_for_by_several_threads_at_once() -> None:
    script = (
        "import tapehead as th\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    asked = [pool.submit(getattr, th, name) for name in th.__all__]\n"
        "    assert all(each.result() is getattr(th, name) for each, name in zip(asked, th.__all__))"
    )
    assert alone(script) == ""
