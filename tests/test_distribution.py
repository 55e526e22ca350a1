"""The tests that run in one process, and those that run first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from .distribution import FIRST, TOGETHER, WholeFiles

ROOT = Path(__file__).parents[1]


def test_the_files_that_are_named_are_there() -> None:
    paths = [path for paths in TOGETHER.values() for path in paths] + [name for name in FIRST if name not in TOGETHER]
    assert all((ROOT / path).is_file() for path in paths)


def test_a_process_gets_whole_files_and_those_that_share_a_server_and_the_long_ones_first(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, other_lab, *_ = TOGETHER["JupyterLab"]
    many = [f"tests/many.py::test[{number}::x]" for number in range(9)]
    few = ["tests/few.py::test_a", "tests/few.py::test_b"]
    device, server, *_ = FIRST
    assert server == "JupyterLab"
    long = TOGETHER[device][0]
    tests = [*few, *many, f"{lab}::test_a", f"{long}::test_c", f"{other_lab}::test_b"]
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    scheduler = WholeFiles(pytestconfig)
    nodes = [_Node(), _Node()]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    given = [[tests[index] for index in node.given] for node in nodes]
    assert given == [[f"{long}::test_c", *many], [f"{lab}::test_a", f"{other_lab}::test_b", *few]]


class _Node:
    """A process, which receives the numbers of its tests."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        pass
