"""A session in several threads: one at a time steps it, and any number look."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.schedule.policy import QueueState
from tapescope.inspector.graph.graph import Task
from tapescope.tests.says import Snapshots, raises


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def program(branches: int = 30) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    weights = [torch.randn(3, 3, requires_grad=True) for _ in range(branches)]
    rows = torch.ones(3, 3)
    return sum(((rows @ weight).sin().sum() for weight in weights), torch.zeros(())), weights


def expected() -> list[Tensor]:
    loss, weights = program()
    loss.backward()
    return [weight.grad for weight in weights]  # type: ignore[misc]


def last(ready: Sequence[Task], state: QueueState) -> Task:
    return ready[-1]


@contextmanager
def reading(read: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Another thread reads again and again; what it raises is given."""
    raised: list[BaseException] = []
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                read()
                begun.set()
        except BaseException as error:
            raised.append(error)
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        begun.wait()
        yield raised
    finally:
        over.set()
        thread.join()


def has(error: BaseException, *facts: object) -> bool:
    """Return whether an error's text has each of these facts."""
    return all(str(fact) in str(error) for fact in facts)


READS: dict[str, Callable[[Any], object]] = {
    "current": lambda session: session.current,
    "ready": lambda session: session.ready,
    "repr": repr,
    "planned": lambda session: session.planned,
    "together": lambda session: getattr(session, "together", None),
    "left": lambda session: (session.left, session.order, session.stopped, session.over),
    "result": lambda session: session.result(),
    "waiting": lambda session: session.waiting(session.ready[0]) if session.ready and session.graph.nodes else None,
}
SESSIONS: dict[str, dict[str, Any]] = {
    "heap": {},
    "bfs": {"policy": "bfs"},
    "untraced": {"trace": None},
    "batches": {"batch": "auto"},
    "the user's own": {"policy": last},
    "history": {"history": True},
    "native": {"engine": "native"},
}


@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.parametrize("read", [each for each in READS if each != "waiting"])
def test_who_only_reads_a_running_session_disturbs_nothing(kind: str, read: str) -> None:
    loss, weights = program()
    session = ts.debug(loss, **SESSIONS[kind])
    with reading(lambda: READS[read](session)) as raised:
        session.run()
    assert not raised and not session.left
    for weight, right in zip(weights, expected(), strict=True):
        assert weight.grad is not None and torch.allclose(weight.grad, right)
    session.close()


def test_current_is_none_only_once_all_have_run() -> None:
    x = torch.ones(4, requires_grad=True)
    y = x
    for _ in range(100):
        y = y.sin()
    session = ts.debug(y.sum())
    early = []

    def read() -> None:
        left = session.left
        if session.current is None and left and session.left:
            early.append(left)

    with reading(read) as raised:
        session.run()
    assert not raised and not early and session.current is None
    session.close()


@pytest.mark.parametrize("policy", ["heap", "bfs", "dfs"])
def test_reading_changes_no_order(policy: str) -> None:
    loss, _ = program(12)
    with ts.debug(loss, policy=policy) as session:
        while session.current is not None:
            by_hand = session.ready[-1] if len(session.order) == 3 else None
            assert session.planned[len(session.order)] == session.current.id == session.ready[0].task.id
            session.step(by_hand)
        looked = session.order[:]
    loss, _ = program(12)
    with ts.debug(loss, policy=policy) as session:
        session.step(count=3)
        session.step(session.ready[-1])
        session.run()
        assert session.order == looked


@pytest.mark.parametrize("engine", ["direct", "native"])
@pytest.mark.parametrize("verbs", [("step", "step"), ("step", "run"), ("run", "run")])
def test_of_two_threads_that_step_one_session_one_is_told_so(engine: str, verbs: tuple[str, str]) -> None:
    right = expected()
    for _ in range(4):
        loss, weights = program()
        session = ts.debug(loss, engine=engine)  # type: ignore[arg-type]
        wrong: list[BaseException] = []
        start = threading.Barrier(2)

        def work(verb: str, session: Any = session, start: Any = start, wrong: Any = wrong) -> None:
            start.wait()
            while session.left:
                try:
                    getattr(session, verb)()
                except RuntimeError as error:
                    if not (has(error, f"session.{verb}()", "thread") or has(error, len(session.graph))):
                        wrong.append(error)
                        return

        threads = [threading.Thread(target=work, args=(verb,)) for verb in verbs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and session.over is None
        for weight, grad in zip(weights, right, strict=True):
            assert weight.grad is not None and torch.equal(weight.grad, grad)
        session.close()


def test_an_edit_beside_a_step_of_another_thread_is_of_the_task_that_it_was_for() -> None:
    """Scaling by 1 changes nothing, whichever task comes next meanwhile."""
    right = expected()
    loss, weights = program()
    session = ts.debug(loss)

    def scale() -> None:
        try:
            session.scale(1.0)
        except (RuntimeError, ValueError) as error:
            in_another_thread = has(error, "session.", "thread")
            if not (in_another_thread or isinstance(error, ValueError) or has(error, len(session.graph))):
                raise

    with reading(scale) as raised:
        while session.left:
            try:
                session.step()
            except RuntimeError as error:
                if not has(error, "session.step()", "thread"):
                    raise
    assert not raised
    for weight, grad in zip(weights, right, strict=True):
        assert weight.grad is not None and torch.equal(weight.grad, grad)
    session.close()


@pytest.mark.parametrize("engine", ["direct", "native"])
@pytest.mark.parametrize("asks", ["current", "planned"])
def test_a_policy_that_asks_the_session_what_comes_next_is_told_not_to(
    engine: str, asks: str, snapshot: Snapshots
) -> None:
    sessions: list[Any] = []

    def choose(ready: Sequence[Task], state: QueueState) -> Task:
        for session in sessions:
            assert session.ready is not None
            getattr(session, asks)
        return ready[0]

    x = torch.ones(2, requires_grad=True)
    loss = (x.sin() + x.cos()).sum()
    if engine == "native":
        with ts.debug(loss, engine="native", policy=choose) as session:
            sessions.append(session)
            session.run()
        assert x.grad is not None
        return
    with ts.debug(loss, policy=choose) as session:
        sessions.append(session)
        with raises(ts.PolicyError, "choose", f"session.{asks}") as raised:
            session.run()
        if asks == "current":
            snapshot("debug", raised.value)
        sessions.clear()
        session.run()
    assert x.grad is not None
