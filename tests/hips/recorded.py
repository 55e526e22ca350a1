"""A pytest plugin: each gradient that a test computes with autograd is computed from a tape, too, and compared.

`-p recorded` replaces autograd's `make_vjp`, from which `grad`, `jacobian`, `hessian` and the others are made. Under
dfs, autograd's own order, a tape's gradient must have the same bits; under bfs and heap, which sum in other orders, it
must be close. A test fails if a gradient differs or tapescope raises. RECORDED_RESULTS names a file for the counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import autograd.core
import autograd.differential_operators
import autograd.test_util
import numpy as np
import pytest
from autograd.tracer import isbox

import tapescope as ts

POLICIES = ("dfs", "bfs", "heap")
REFUSED = (
    "sees no dependence of",
    "from which a backward starts",
    "torch has no dtype like",
)

_make_vjp = autograd.core.make_vjp
_counts: Counter[str] = Counter()
_depth = 0


@contextmanager
def _inside() -> Iterator[None]:
    """Leave alone what is computed inside: a gradient within a traced function is part of that function's tape."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def recorded_make_vjp(fun: Callable[[Any], Any], x: Any) -> tuple[Callable[[Any], Any], Any]:
    """Autograd's make_vjp, whose gradients are compared with those of a tape of `fun`."""
    if _depth or isbox(x):
        return _make_vjp(fun, x)
    with _inside():
        state = np.random.get_state()
        vjp, value = _make_vjp(fun, x)
        after = np.random.get_state()
        np.random.set_state(state)  # functions that draw numbers draw the same
        try:
            tape = ts.hips.tape(fun, x)
        except (TypeError, ValueError) as error:
            refusal = next((each for each in REFUSED if each in str(error)), None)
            if refusal is None:
                raise
            _counts[f"no tape: {refusal}"] += 1
            return vjp, value
        finally:
            np.random.set_state(after)

    def compared(g: Any) -> Any:
        if _depth or isbox(g):
            return vjp(g)
        with _inside():
            gradient = vjp(g)
            if any(map(isbox, _leaves(gradient))):  # `fun` refers to a box of an open forward-mode trace
                return gradient
            for policy in POLICIES:
                ts.backward(tape, g, policy=policy)
                _expect(tape.gradient, gradient, exact=policy == "dfs")
        _counts["gradients"] += 1
        _counts["tasks"] += len(tape.nodes)
        return gradient

    return compared, value


def _expect(found: Any, expected: Any, exact: bool) -> None:
    pairs = list(zip(map(np.asarray, _leaves(found)), map(np.asarray, _leaves(expected)), strict=True))
    assert type(found) is type(expected), f"{type(found).__name__} instead of {type(expected).__name__}"
    for one, other in pairs:
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if exact:
            assert one.tobytes() == other.tobytes(), f"{one} instead of {other}, to the bit"
        else:
            np.testing.assert_allclose(one, other, rtol=1e-3 if one.dtype.itemsize < 8 else 1e-7, atol=1e-9)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def pytest_configure(config: pytest.Config) -> None:
    autograd.core.make_vjp = recorded_make_vjp
    autograd.differential_operators._make_vjp = recorded_make_vjp
    autograd.differential_operators.make_vjp = autograd.wrap_util.unary_to_nary(recorded_make_vjp)
    autograd.make_vjp = autograd.differential_operators.make_vjp
    autograd.test_util.make_vjp = recorded_make_vjp


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        _counts[report.outcome] += 1


def pytest_unconfigure(config: pytest.Config) -> None:
    if file := os.environ.get("RECORDED_RESULTS"):
        Path(file).write_text(json.dumps(_counts), encoding="utf-8")
