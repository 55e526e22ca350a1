"""A backward of a graph like one that has run follows its order without the queue, and nobody can tell."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import fields
from typing import Any
from unittest import mock
from weakref import ref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tapescope as ts
from tapescope.engine.execution.find_hooks import HookWatch
from tapescope.engine.execution.torch_nodes import TaskRunner
from tapescope.engine.planning.order_cache import CACHED_ORDERS, forget_orders
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.policy import Policy
from tapescope.engine.schedule.ready_queue import KeyedQueue
from tapescope.engine.session.direct_engine import DirectBackward
from tapescope.engine.session.direct_session import Stepper
from tapescope.inspector.graph.operations_and_calls import Facts
from tapescope.tests.says import raises

from ..backward_programs import random_program

POLICIES = ("heap", "bfs", "dfs", "delay_accumulate", "random", "lpmf")


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """No order is known yet, graphs need not be large, and what other tests left is not looked for: hooks, captures."""
    forget_orders()
    hooks = mock.patch.multiple(HookWatch, registered=lambda self: False, possible=lambda self: False)
    captures = mock.patch.object(Facts, "alive", return_value=False)
    with hooks, captures, mock.patch.object(TaskRunner, "hook_watch", lambda self: self.watch):
        yield
    forget_orders()


def branches() -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    u, v = x.exp() * y, (y.sin() + x).cos()
    return ((u * v).tanh() + v.exp() * u.sum()).sum(), [x, y]


def pushes(call: Callable[[], object]) -> int:
    """Count the tasks added to queues meanwhile."""
    with mock.patch.object(KeyedQueue, "push", autospec=True, side_effect=KeyedQueue.push) as push:
        call()
    return int(push.call_count)


def slowly() -> Any:
    """A context in which each task runs by itself."""
    return mock.patch.object(DirectBackward, "is_plain", property(lambda self: False))


def whole(policy: str, trace: Any = None) -> Stepper:
    session = ts.debug(branches()[0], policy=policy, trace=trace)
    session.run()
    return session


@pytest.mark.parametrize("policy", POLICIES)
def test_the_second_time_the_queue_hears_of_the_root_alone(policy: str) -> None:
    first = pushes(lambda: whole(policy))
    assert first > 10
    assert pushes(lambda: whole(policy)) < first - 10
    forget_orders()
    assert pushes(lambda: whole(policy)) == first


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_order_gradients_and_trace_are_those_of_single_tasks(seed: int, policy: str) -> None:
    def run() -> tuple[ts.Run, list[Tensor | None]]:
        torch.manual_seed(1)
        leaves, loss = random_program(seed)
        done = ts.backward(loss, engine="direct", policy=policy, trace="off")
        return done, [leaf.grad for leaf in leaves]

    run()
    fast, gradients = run()
    with slowly():
        slow, expected = run()
    assert fast.order == slow.order
    assert [str(each) for each in gradients] == [str(each) for each in expected]
    for one, other in zip(gradients, expected, strict=True):
        assert (one is None and other is None) or torch.equal(one.to_dense(), other.to_dense())
    assert fast.trace is not None and slow.trace is not None and fast.trace.labels == slow.trace.labels
    for column in fields(fast.trace.columns):
        if not column.name.endswith("_ns"):
            assert getattr(fast.trace.columns, column.name) == getattr(slow.trace.columns, column.name), column.name


def shown(session: Stepper) -> tuple[object, ...]:
    """All that a stop shows."""
    backward = session._backward
    waiting = {task: [str(each) for each in buffer.shown()] for task, buffer in backward.buffers.by_task.items()}
    return list(session.order), [repr(each) for each in session.ready], session.planned, session.current, waiting


@pytest.mark.parametrize("policy", POLICIES)
def test_where_it_stops_the_queue_is_what_it_would_have_been(policy: str) -> None:
    order = whole(policy).order
    for task in order[1:-2]:
        found: list[object] = []
        for context in (nullcontext(), slowly()):
            with context:
                session = ts.debug(branches()[0], policy=policy)
                session.run_to(task)
            states = [shown(session)]
            session.step(session.ready[-1].task)
            states.append(shown(session))
            session.policy = "bfs"
            session.run_to(session.planned[-1])
            states.append(shown(session))
            session.run()
            found.append((*states, session.trace.columns.order, session.trace.columns.label, session.trace.labels))
        assert repr(found[0]) == repr(found[1])


def test_who_has_run_another_task_first_goes_on_by_the_policy() -> None:
    whole("heap")
    found = []
    for together in (True, False):
        session = ts.debug(branches()[0])
        session.run_to(session.planned[4])
        session.step(session.ready[-1].task)
        if together:
            session.run()
        else:
            while session.current is not None:
                session.step()
        found.append(list(session.order))
    assert found[0] == found[1]


def made_in_turn(first: bool) -> Tensor:
    """One graph but for which branch was made first, or where an edge leads."""
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    a, b = (x.exp(), y.exp().exp()) if first else (y.exp().exp(), x.exp())
    return (a + b).sum()


def led_elsewhere(first: bool) -> Tensor:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    a, b = x.exp(), y.exp()
    c = (a if first else b).exp()
    return (c + a * 1 + b * 1).sum()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [made_in_turn, led_elsewhere])
def test_a_graph_that_is_not_like_it_has_its_own_order(make: Callable[[bool], Tensor], policy: str) -> None:
    orders, graphs = [], []
    for first in (True, False):
        for _ in range(2):
            run = ts.backward(make(first), engine="direct", policy=policy)
        with slowly():
            again = ts.backward(make(first), engine="direct", policy=policy)
        assert run.order == again.order
        orders.append(run.order)
        graphs.append(run.graph)
    assert graphs[0].like is not graphs[1].like


def test_the_order_is_not_followed_in_a_graph_that_is_not_like_it() -> None:
    """These two have as many tasks of the same kinds, and the one's order is not the other's."""
    ts.backward(made_in_turn(True), engine="direct")
    loss = made_in_turn(False)
    graph = ts.graph(loss)
    ours = schedule(graph, "heap")
    (kept,) = CACHED_ORDERS._found.values()
    assert len(kept) == len(ours) and list(kept) != ours
    run = ts.backward(loss, engine="direct")
    assert list(run.order) == ours


def test_a_policy_of_the_users_own_is_asked_each_time() -> None:
    asked: list[int] = []

    def key(task: ts.Task, arrival: int) -> tuple[int, ...]:
        asked.append(task.id)
        return (arrival,)

    for _ in range(3):
        before = len(asked)
        run = ts.backward(branches()[0], engine="direct", policy=Policy("mine", "as they come", key))
        assert len(asked) - before >= len(run.order)


class OfTheUsers:
    """A key that may hold much."""

    def __call__(self, task: ts.Task, arrival: int) -> tuple[int, ...]:
        return (arrival,)


class Unhashable(OfTheUsers):
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [OfTheUsers, Unhashable])
def test_a_kept_order_holds_nothing_of_a_policy_of_the_users_own(kind: type[OfTheUsers]) -> None:
    policy: Policy | None = Policy("mine", "as they come", kind(), keeps=True)
    orders = [list(ts.backward(branches()[0], engine="direct", policy=policy).order) for _ in range(3)]
    assert orders == [list(whole("bfs").order)] * 3
    key = ref(policy.key)
    del policy
    gc.collect()
    assert key() is None


class Looking(TorchDispatchMode):
    """Calls something at each operation of the tasks."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._look()
        return operator(*args, **(kwargs or {}))


def summed() -> tuple[Tensor, list[Tensor]]:
    """While a gradient is added to one that waits, the task that runs next is ready."""
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    return (y * 2 + y * 3 + y * 4).sum(), [x]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [branches, summed])
def test_who_looks_while_it_runs_sees_the_queue(make: Callable[[], tuple[Tensor, list[Tensor]]], policy: str) -> None:
    ts.backward(make()[0], engine="direct", policy=policy, trace="off")
    found = []
    for context in (nullcontext(), slowly()):
        looks: list[str] = []
        session = ts.debug(make()[0], policy=policy)
        with context, Looking(lambda: looks.append(repr((session.ready, session.planned)))):
            session.run()
        found.append(list(dict.fromkeys(looks)))
    assert len(found[0]) >= 3
    assert found[0] == found[1]


def test_stop_asked_for_while_it_runs() -> None:
    whole("heap", "off")
    found = []
    for context in (nullcontext(), slowly()):
        session = ts.debug(branches()[0])
        seen: list[None] = []

        def look(session: Stepper = session, seen: list[None] = seen) -> None:
            seen.append(None)
            if len(session.order) == 5:
                session.stop()

        with context, Looking(look):
            session.run()
        assert session.stopped is not None and session.stopped.why == "asked"
        found.append(repr(shown(session)))
    assert found[0] == found[1]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_breakpoint_that_is_made_while_it_runs_stops_it(ahead: bool) -> None:
    if ahead:
        whole("heap", "off")
    found = []
    for context in (nullcontext(), slowly()):
        session = ts.debug(branches()[0])
        made: list[ts.Breakpoint] = []

        def look(session: Stepper = session, made: list[ts.Breakpoint] = made) -> None:
            if len(session.order) == 5 and not made:
                made.append(session.break_at(session.planned[8]))

        with context, Looking(look):
            session.run()
        assert session.stopped is not None and session.stopped.why == "breakpoint" and made[0].hits == 1
        found.append(repr(shown(session)))
        session.run()
        assert session.current is None
    assert found[0] == found[1]


def spoiled(spoil: bool) -> Tensor:
    """A backward whose saved tensors may have been modified."""
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    z = (y * 2).cos().sum()
    if spoil:
        with torch.no_grad():
            y.add_(1)
    return z


def test_an_error_is_the_same() -> None:
    ts.backward(spoiled(False), engine="direct")
    notes = []
    for context in (nullcontext(), slowly()):
        with context, raises(RuntimeError, "inplace operation", "version 1") as raised:
            ts.backward(spoiled(True), engine="direct")
        notes.append(raised.value.__notes__)
    assert notes[0] == notes[1]


def test_back_from_the_end() -> None:
    whole("heap", "off")
    found = []
    for context in (nullcontext(), slowly()):
        with context:
            session = ts.debug(branches()[0])
            session.run_to(session.planned[6])
        session.keep_history()
        session.run()
        session.back(3)
        found.append(repr(shown(session)))
        session.run()
    assert found[0] == found[1]
