"""A pytest plugin: every `.backward()` of the tests goes to tapescope; what became of each test is one line of a file.

`-p redirected`, and in the environment TAPESCOPE_RESULTS=FILE and TAPESCOPE_REDIRECT="bfs native", "bfs native full"
(with a trace) or "plain". A line is written when a test starts, too, so that one which ends the process is known.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import tapescope as ts

SECONDS_PER_TEST = 120

_redirect = os.environ["TAPESCOPE_REDIRECT"].split()
_results = Path(os.environ["TAPESCOPE_RESULTS"])


def _write(test: str, outcome: str, text: str = "", backwards: int = 0) -> None:
    line = {"test": test, "outcome": outcome, "text": text, "backwards": backwards}
    with _results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _time_is_up(signal_number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the test took more than {SECONDS_PER_TEST} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _write(item.nodeid, "started")
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.alarm(SECONDS_PER_TEST)
    try:
        return (yield)
    finally:
        signal.alarm(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if _redirect == ["plain"]:
        return (yield)
    policy, engine, *level = _redirect
    with ts.policy(policy, engine=engine, trace=level[0] if level else None) as installation:
        try:
            return (yield)
        finally:
            item.user_properties.append(("backwards", installation.backwards))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        backwards = dict(report.user_properties).get("backwards", 0)
        _write(report.nodeid, report.outcome, "" if report.passed else report.longreprtext, int(str(backwards)))
