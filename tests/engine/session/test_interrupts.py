"""An interrupt (Ctrl-C) at any line of a step or a run: the session is over or goes on right, and holds nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.inspector.garbage_collector import collector_paused
from tapescope.tests.says import raises

from ..interrupts import interrupted, lines_run

KINDS: dict[str, dict[str, Any]] = {
    "direct": {},
    "with a history": {"history": True},
    "untraced": {"trace": None},
    "of the user's own policy": {"policy": lambda ready, state: ready[-1]},
    "native": {"engine": "native"},
}


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    gc.collect()
    with collector_paused():
        yield


def program() -> tuple[Tensor, Tensor, ref[Any]]:
    """A loss, its parameter, and what its graph saves."""
    weight = torch.full((2, 2), 0.5, requires_grad=True)
    hidden = (weight * 3).exp()
    return (hidden * hidden).sum(), weight, ref(hidden.untyped_storage())


def session_of(kind: str) -> tuple[Any, Tensor, ref[Any]]:
    loss, weight, saved = program()
    session = ts.debug(loss, **KINDS[kind])
    session.step()
    return session, weight, saved


def right() -> Tensor:
    loss, weight, _ = program()
    loss.backward()
    assert weight.grad is not None
    return weight.grad


def after_an_interrupt(kind: str, verb: Callable[[Any], object], at: int, left: Callable[[], list[str]]) -> None:
    session, weight, saved = session_of(kind)
    place = interrupted(lambda: verb(session), at)
    if session.over is None:
        session.run()
        assert torch.equal(weight.grad, right()), place
    else:
        assert weight.grad is None or torch.equal(weight.grad, right()), place
        with raises(RuntimeError, session.over, "ts.debug(loss)"):
            session.step()
    session.close()
    assert saved() is None, f"interrupted at {place}, it holds saved tensors"
    assert not left(), place
    loss, weight, _ = program()
    ts.backward(loss, engine="direct")
    assert torch.equal(weight.grad, right()), place


def go_back(session: Any) -> None:
    session.step()
    session.back(2)


@pytest.mark.parametrize(
    ("kind", "verb", "each"),
    [
        *(pytest.param(kind, "step", 6, id=f"{kind}: step") for kind in KINDS),
        *(pytest.param(kind, "run", 29, id=f"{kind}: run") for kind in KINDS),
        pytest.param("with a history", go_back, 29, id="going back"),
        *(pytest.param(kind, "step", 1, id=f"{kind}: each line", marks=pytest.mark.slow) for kind in KINDS),
        *(pytest.param(kind, "run", 1, id=f"{kind}: run, each line", marks=pytest.mark.slow) for kind in KINDS),
        pytest.param("with a history", go_back, 1, id="going back, each line", marks=pytest.mark.slow),
    ],
)
def test_after_an_interrupt_at_any_line_a_session_is_over_or_goes_on(
    kind: str, verb: str | Callable[[Any], object], each: int, left_behind: Callable[[], list[str]]
) -> None:
    call = (lambda session: getattr(session, verb)()) if isinstance(verb, str) else verb
    session, _, _ = session_of(kind)
    lines = lines_run(lambda: call(session))
    session.close()
    assert lines > 20
    for at in range(1, lines + 1, each):
        after_an_interrupt(kind, call, at, left_behind)


def test_two_interrupts_whose_errors_are_kept_do_not_keep_a_session_under_way() -> None:
    first, _, _ = session_of("direct")
    lines = lines_run(lambda: first.gradients)
    kept: list[KeyboardInterrupt] = []
    for at in range(1, lines):
        session, _, _ = session_of("direct")
        interrupted(lambda: session.gradients, at, at + 1, at + 2, kept=kept)
        if session.over is None:
            session.step(session.current)
        session.close()
        assert session.over
    assert kept
