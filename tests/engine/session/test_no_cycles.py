"""A session, a run and a backward are freed with their last reference, without the garbage collector."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.execution import undo_python_state as hook_state
from tapescope.engine.recording.fast_recorder import FastRecorder
from tapescope.engine.recording.recorder import Recorder
from tapescope.engine.session.batching.product_groups import Groups
from tapescope.engine.session.direct_engine import DirectBackward
from tapescope.engine.session.native_stepping import NativeBackward
from tapescope.inspector.garbage_collector import collector_paused
from tapescope.inspector.graph.graph import Graph

OURS = (
    Recorder,
    FastRecorder,
    DirectBackward,
    NativeBackward,
    ts.types.Stepper,
    ts.types.NativeSession,
    ts.Run,
    Graph,
    Groups,
)


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    loss, _ = program(2)
    ts.backward(loss, engine="direct")  # what is kept once for all
    loss, _ = program(2)
    ts.backward(loss)
    del loss
    gc.collect()
    with collector_paused():
        yield


def divide(gradient: Tensor) -> None:
    raise ZeroDivisionError


def program(tasks: int, fails: bool = False) -> tuple[Tensor, ref[Any]]:
    x = torch.full((3,), 0.5, requires_grad=True)
    y = x.exp()
    saved = ref(y.untyped_storage())
    for _ in range(tasks):
        y = y * 1.001
    if fails:
        y.register_hook(divide)
    return y.sum(), saved


def left() -> list[str]:
    """Return tapescope's objects that are alive. For a graph that is compared with later ones, its outline is kept,
    without nodes."""
    for thread in threading.enumerate():
        if thread.name == "tapescope backward":
            thread.join()
    found = [each for each in gc.get_objects() if type(each) in OURS]
    return sorted(type(each).__name__ for each in found if not isinstance(each, Graph) or each.nodes)


def half(session: Any) -> None:
    session.step(count=2)


def failing(session: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        session.run()


STATES: dict[str, Callable[[Any], object]] = {
    "fresh": lambda session: None,
    "half": half,
    "run": lambda session: session.run(),
    "closed": lambda session: (half(session), session.close()),
    "an error": failing,
    "looked at": lambda session: (half(session), repr(session), session.ready, session.planned, session.trace),
    "watched": lambda session: (session.watch("nan"), session.run()),
}
KINDS: dict[str, dict[str, Any]] = {
    "direct": {},
    "untraced": {"trace": None},
    "history": {"history": True},
    "batches": {"batch": "auto"},
    "bfs": {"policy": "bfs"},
    "native": {"engine": "native"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", STATES)
def test_a_session_is_gone_with_its_name(kind: str, state: str) -> None:
    before = left()
    loss, saved = program(6, fails=state == "an error")
    session = ts.debug(loss, **KINDS[kind])
    del loss
    STATES[state](session)
    del session
    assert left() == before
    assert saved() is None


@pytest.mark.parametrize("tasks", [10, 1100])
@pytest.mark.parametrize("trace", [None, "off", "cheap"])
@pytest.mark.parametrize("engine", ["direct", "native"])
@pytest.mark.parametrize("captured", [False, True])
def test_a_backward_is_gone_with_its_run(captured: bool, engine: Any, trace: Any, tasks: int) -> None:
    with ts.capture() if captured else nullcontext():
        other, _ = program(2)  # graphs are compared with earlier ones only where no captured graph is alive
    before = left()
    loss, saved = program(tasks)
    ts.backward(loss, engine=engine, trace=trace)
    del loss
    assert left() == before
    assert saved() is None
    del other


def test_the_code_of_a_hook_is_not_kept() -> None:
    codes = []
    for number in range(3):
        names: dict[str, Any] = {}
        exec(f"log = []\ndef hook(gradient):\n    log.append({number})", names)
        codes.append(ref(names["hook"].__code__))
        x = torch.ones(2, requires_grad=True)
        handle = x.register_hook(names["hook"])
        with ts.debug((x * 2).sum(), history=True) as session:
            session.run()
        handle.remove()
        del names, handle, session, x
    gc.collect()  # a function and its module hold each other
    assert [code() for code in codes] == [None, None, None]
    assert len(hook_state._globals) < 1000
