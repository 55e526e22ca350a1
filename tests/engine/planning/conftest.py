"""Lets the exact search and the lower bound take posed problems, which have blocks in place of footprints."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tapescope.engine.planning import exact_search as limit_search
from tapescope.engine.planning import lower_bound

from .problems import BlockStates, PosedProblem, all_tame, certain_blocks


@pytest.fixture(autouse=True)
def _posed_problems_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, posed in (
        (limit_search, "MemoryStates", BlockStates),
        (limit_search, "Commuting", all_tame),
        (
            lower_bound,
            "CertainMemoryReader",
            lambda problem: SimpleNamespace(read=lambda order: certain_blocks(problem)),
        ),
    ):
        monkeypatch.setattr(module, name, _either(getattr(module, name), posed))


def _either(usual: Callable[..., Any], posed: Callable[..., Any]) -> Callable[..., Any]:
    return lambda problem, *others: (posed if isinstance(problem, PosedProblem) else usual)(problem, *others)
