"""A session of PyTorch's own engine: where it stops, what it shows, and that nothing of it is left."""

from __future__ import annotations

import contextvars
import gc
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tapescope as ts
from tapescope.engine.planning.policies import CLASSIC
from tapescope.engine.recording.run import Engine
from tapescope.engine.schedule.dependencies import dependencies
from tapescope.engine.schedule.policy import Policy
from tapescope.inspector.torch_private.hooks import node_hooks
from tapescope.tests.says import Snapshots, raises, says, says_none_of
from tapescope.tests.warm_python import WarmPython

from ..backward_programs import random_program
from ..comparing import ENGINES, assert_equal, engine_order, gradients_of

LIMIT_S = 30.0  # far beyond what anything here takes


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    wait_for(lambda: not session_threads())


def session_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tapescope backward"]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "this never came true"
        time.sleep(0.001)


def native(loss: Tensor, **options: object) -> ts.types.NativeSession:
    return ts.debug(loss, engine="native", **options)


def fan() -> tuple[Tensor, Tensor]:
    x = torch.ones(2, requires_grad=True)
    return x, torch.stack([x.exp(), x.sin(), x.cos()]).sum()


def names(tasks: list[ts.Task]) -> list[str]:
    return [task.short_name for task in tasks]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(CLASSIC), st.booleans())
def test_steps_run_what_the_queue_foretold_and_leave_pytorchs_gradients(seed: int, policy: str, limited: bool) -> None:
    leaves, loss = random_program(seed)
    inputs = leaves[seed % 6 : seed % 6 + 2] if limited else None
    loss.backward(inputs=inputs)
    expected = [leaf.grad for leaf in leaves]
    leaves, loss = random_program(seed)
    inputs = leaves[seed % 6 : seed % 6 + 2] if limited else None
    ran: list[int] = []

    def step_all() -> None:
        with native(loss, inputs=inputs, policy=policy) as session:
            while session.current is not None:
                foretold = session.ready[0].task
                assert foretold is session.current
                assert session.step() is foretold
                ran.append(foretold.id)
                assert session.order == ran
            assert session.ready == [] and list(session.trace.order) == ran

    assert engine_order(ts.graph(loss), step_all) == ran
    assert_equal([leaf.grad for leaf in leaves], expected, bitwise=policy == "heap")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from(CLASSIC), st.sampled_from(CLASSIC))
def test_another_policy_at_a_stop_holds_for_all_that_comes_after_the_current_task(
    seed: int, steps: int, first: str, second: str
) -> None:
    _, loss = random_program(seed)
    session = native(loss, policy=first)
    for _ in range(steps):
        if session.current is not None:
            session.step()
    session.policy = second
    assert session.policy == second
    taken = [] if session.current is None or not steps else [session.current.id]
    expected = rest_by_hand(session.graph, [*session.order, *taken], second)
    run = session.run()
    assert run.order == run.planned
    assert without_ties(session.graph, run.order) == without_ties(session.graph, expected)


def without_ties(graph: ts.Graph, order: Sequence[int]) -> list[int]:
    """Leaves have equal numbers under "heap": which of them runs first is the engine's business."""
    return [-1 if graph.tasks[task].is_leaf else task for task in order]


def rest_by_hand(graph: ts.Graph, ran: list[int], policy: str) -> list[int]:
    """The order of a policy that takes over after some tasks have run, as plainly as can be."""
    missing = dependencies(graph)
    arrived: list[int] = []
    ready: list[int] = []
    order: list[int] = []

    def arrive(task: int) -> None:
        missing[task] -= 1
        if not missing[task]:
            arrived.append(task)
            ready.append(task)

    key = {
        "bfs": lambda task: arrived.index(task),
        "dfs": lambda task: -arrived.index(task),
        "heap": lambda task: -graph.tasks[task].sequence_nr,
    }[policy]
    for root in graph.roots:
        arrive(root.task)
    while ready:
        given = ran[len(order) : len(order) + 1]
        task = given[0] if given else min(ready, key=key)
        ready.remove(task)
        order.append(task)
        for edge in graph.out_edges[task]:
            arrive(edge.next_task)
    return order


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_a_dynamic_policy_foretells_the_queue_at_each_stop(seed: int) -> None:
    _, loss = random_program(seed)
    pick = random.Random(seed)
    policy = Policy("random", "", lambda task, arrival: (pick.randrange(9),), dynamic=True)
    session = native(loss, policy=policy)
    for number in range(len(session.graph)):
        foretold = session.ready[0].task
        if number == 7:
            session.policy = "bfs"
        elif number == 14:
            session.policy = policy
        assert session.current is foretold
        assert session.step() is foretold
    assert session.current is None


def test_run_to_stops_before_a_task_and_run_finishes(snapshot: Snapshots) -> None:
    x, loss = fan()
    session = native(loss, policy="bfs")
    sine = next(task for task in session.graph.tasks if task.short_name == "Sin")
    assert session.run_to(sine) is sine is session.current
    assert names([session.graph.tasks[task] for task in session.order]) == ["Sum", "Stack", "Exp"]
    assert session.run_to(sine) is sine
    with raises(ValueError, "SumBackward0 (1st)") as ran:
        session.run_to(session.order[0])
    snapshot("debug", ran.value)
    run = session.run()
    assert len(run.order) == len(session.graph) == len(session.trace)
    expected = x.detach().exp() + x.detach().cos() - x.detach().sin()
    torch.testing.assert_close(x.grad, expected)
    says(repr(session), "NativeSession", "bfs", "6 of 6", 0)
    snapshot("debug", repr(session))
    with raises(RuntimeError, 6) as over:
        session.step()
    snapshot("debug", over.value)
    assert session.run().order == run.order


def test_run_to_what_inputs_make_needless_is_refused(snapshot: Snapshots) -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with native((x.exp() * y.sin()).sum(), inputs=[x]) as session:
        needless = next(task for task in session.graph.tasks if task.short_name == "Sin")
        with raises(ValueError, "SinBackward0", "inputs=") as raised:
            session.run_to(needless)
    snapshot("debug", raised.value)


def test_another_task_than_the_next_is_refused(snapshot: Snapshots) -> None:
    _, loss = fan()
    with native(loss, policy="bfs") as session:
        session.step()
        session.step()
        current, other, _ = session.ready
        with raises(NotImplementedError, "ExpBackward0 (3rd)", "SinBackward0 (4th)", 'engine="direct"') as raised:
            session.step(other)
        snapshot("debug", raised.value)
        assert session.step(current) is current.task
        assert session.step(other.task.id) is other.task


def test_gradients_are_seen_and_replaced_at_a_stop(snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda gradient: gradient * 10)
    loss = y.sum()
    session = native(loss)
    assert [each.tolist() for each in session.gradients] == [1.0]
    session.step()
    (gradient,) = session.gradients
    assert gradient.tolist() == [10.0, 10.0]
    assert session.waiting(session.current)[0] is gradient
    with raises(NotImplementedError, "AccumulateGrad (3rd)", 'engine="direct"') as raised:
        session.waiting(2)
    snapshot("debug", raised.value)
    session.replace([torch.tensor([1.0, 2.0])])
    assert session.gradients[0].tolist() == [1.0, 2.0]
    run = session.run()
    assert x.grad.tolist() == [3.0, 6.0]
    (edit,) = run.trace.of(0).edits
    assert edit.input == 0


@pytest.mark.parametrize(
    ("make", "error", "facts"),
    [
        (lambda: [torch.ones(3)], ValueError, (0, "shape", "torch.Size([])", "torch.Size([3])")),
        (lambda: [torch.ones((), dtype=torch.float64)], ValueError, (0, "dtype", "torch.float32", "torch.float64")),
        (lambda: [torch.ones((), device="meta")], ValueError, (0, "device", "cpu", "meta")),
        (lambda: [3], TypeError, (0, "None", "int")),
        (lambda: [None, None], ValueError, (1, 2)),
    ],
    ids=["shape", "dtype", "device", "type", "number"],
)
def test_gradients_that_do_not_fit_are_refused_and_the_session_goes_on(
    make: Callable[[], list[object]], error: type[Exception], facts: tuple[object, ...], snapshot: Snapshots
) -> None:
    x = torch.ones(2, requires_grad=True)
    session = native(x.exp().sum())
    with raises(error, "SumBackward0", *facts) as raised:
        session.replace(make())
    snapshot("debug", raised.value)
    session.run()
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_a_gradient_can_be_taken_away() -> None:
    x = torch.ones(2, requires_grad=True)
    session = native(x.exp().sum())
    session.replace(None)
    session.run()
    assert x.grad is None


def stretched(hook: Callable[[int], object], tasks: int = 50) -> tuple[Tensor, Tensor]:
    """A leaf, and the loss of a chain above it, where the hook is called with 0, 1, ... before one task each."""
    x = torch.ones(2, requires_grad=True)
    y = x * 1
    for number in reversed(range(tasks)):
        y.register_hook(lambda gradient, number=number: hook(number) and None)
        y = y * 1
    return x, y.sum()


def test_stop_from_another_thread_stops_before_the_next_task() -> None:
    reached, stopped = threading.Event(), threading.Event()

    def wait(number: int) -> None:
        if number == 20:
            reached.set()
            assert stopped.wait(LIMIT_S)

    x, loss = stretched(wait)
    session = native(loss)

    def stop() -> None:
        assert reached.wait(LIMIT_S)
        session.stop()
        stopped.set()

    thread = threading.Thread(target=stop)
    thread.start()
    run = session.run()
    thread.join()
    assert len(run.order) == 22 and session.current is not None  # the sum, the last product, and 20 more
    assert len(session.run().order) == len(session.graph)
    assert torch.equal(x.grad, torch.ones(2))


@contextmanager
def on_signal(handler: Callable[[], object]) -> Iterator[Callable[[int], None]]:
    """Gives a hook which at its 20th call sends a signal, and waits until the main thread has handled it."""
    handled = threading.Event()

    def handle(number: int, frame: object) -> None:
        handled.set()
        handler()

    def hook(number: int) -> None:
        if number == 20:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            assert handled.wait(LIMIT_S)

    old = signal.signal(signal.SIGUSR1, handle)
    try:
        yield hook
    finally:
        signal.signal(signal.SIGUSR1, old)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_stop_from_a_signal_stops_a_run() -> None:
    stopped = threading.Event()

    def stop() -> None:
        session.stop()
        stopped.set()

    with on_signal(stop) as send:
        x, loss = stretched(lambda number: (send(number), number == 20 and stopped.wait(LIMIT_S)))
        session = native(loss)
        run = session.run()
        assert len(run.order) == 22
        session.run()
    assert torch.equal(x.grad, torch.ones(2))


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_an_interrupt_of_the_caller_ends_the_session_and_goes_on(snapshot: Snapshots) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with on_signal(interrupt) as send:
        x, loss = stretched(
            lambda number: (send(number), number == 20 and wait_for(lambda: session._backward.worker.abandoned))
        )
        session = native(loss, policy="bfs")
        graph = session.graph
        before = [node._sequence_nr() for node in graph.nodes]
        with pytest.raises(KeyboardInterrupt):
            session.run()
    assert not session_threads()
    assert_untouched(graph, before)
    assert len(session.order) == 22 and x.grad is None
    with raises(RuntimeError, "KeyboardInterrupt", "ts.debug(loss)") as raised:
        session.step()
    snapshot("debug", raised.value)


def test_an_interrupt_while_the_thread_starts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def before(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    def after(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    for interrupted in (before, after):
        x, loss = fan()
        graph = ts.graph(loss)
        numbers = [node._sequence_nr() for node in graph.nodes]
        session = native(loss, policy="bfs")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.step()
        session.close()
        wait_for(lambda: not session_threads())
        assert_untouched(graph, numbers)
        assert x.grad is None
        loss.backward()


VERBS: dict[str, Callable[[ts.types.NativeSession], object]] = {
    "step": lambda session: session.step(),
    "run": lambda session: session.run(),
    "run_to": lambda session: session.run_to(0),
    "gradients": lambda session: session.gradients,
    "replace": lambda session: session.replace(None),
    "policy": lambda session: setattr(session, "policy", "dfs"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_are_refused_from_inside_the_backward_and_in_two_threads_at_once(verb: str, snapshot: Snapshots) -> None:
    refused: list[str] = []

    def refuse() -> None:
        with pytest.raises(RuntimeError) as caught:
            VERBS[verb](session)
        refused.append(str(caught.value))

    def hook(number: int) -> None:
        if number == 0:
            refuse()
            other = threading.Thread(target=refuse)
            other.start()
            other.join()

    x, loss = stretched(hook, tasks=2)
    session = native(loss)
    session.run()
    inside, twice = refused
    for said in refused:
        says(said, f"session.{verb}", "session.run()", "stop()", "close()")
    says(inside, "hook")
    says_none_of(inside, "thread")
    says(twice, "thread")
    says_none_of(twice, "hook")
    if verb == "step":
        snapshot("debug", inside)
        snapshot("debug", twice)
    assert torch.equal(x.grad, torch.ones(2))
    session.close()  # its hooks hold it, and it the graph which holds them


@pytest.mark.parametrize("where", ["a hook", "another thread"])
def test_close_while_the_session_runs_ends_it(where: str, snapshot: Snapshots) -> None:
    closers: list[threading.Thread] = []

    def hook(number: int) -> None:
        if number == 20 and where == "a hook":
            session.close()
        elif number == 20:
            closers.append(threading.Thread(target=session.close))
            closers[0].start()
            wait_for(lambda: session._backward.worker.abandoned)

    x, loss = stretched(hook)
    graph = ts.graph(loss)
    numbers = [node._sequence_nr() for node in graph.nodes]
    session = native(loss, policy="bfs")
    assert len(session.run().order) == 22
    for closer in closers:
        closer.join()
    assert x.grad is None and not session_threads()
    assert_untouched(graph, numbers)
    with raises(RuntimeError, "closed", "ts.debug(loss)") as raised:
        session.step()
    if where == "a hook":
        snapshot("debug", raised.value)


def test_a_close_in_the_hooks_before_the_first_task_refuses_the_step() -> None:
    loss = torch.ones(2, requires_grad=True).exp().sum()
    session = native(loss)
    loss.register_hook(lambda gradient: session.close())
    with raises(RuntimeError, "closed", "ts.debug(loss)"):
        session.step()


def test_a_stop_that_was_asked_for_before_the_run_holds_for_it_once() -> None:
    x, loss = fan()
    session = native(loss)
    session.stop()
    assert session.run().order == ()
    session.step()
    session.stop()
    last = session.graph.tasks[session.run().planned[-1]]
    session.stop()
    assert len(session.order) == 1 and session.run_to(last) is not last
    assert len(session.order) == 1 and session.run_to(last) is last
    assert len(session.run().order) == len(session.graph) and x.grad is not None


@pytest.mark.parametrize("how", ["closed", "failed", "closed in a hook"])
def test_an_ended_session_that_is_held_has_let_go_of_the_graph(how: str) -> None:
    saved = torch.ones(3)
    y = torch.ones(3, requires_grad=True) * 2

    def end(gradient: Tensor) -> None:
        if how == "failed":
            raise ZeroDivisionError
        if how == "closed in a hook":
            session.close()

    y.register_hook(end)
    loss = (y * saved).sum()
    session = native(loss)
    tasks, alive = session.graph.tasks, weakref.ref(saved)
    session.step()
    if how == "failed":
        with pytest.raises(ZeroDivisionError):
            session.run()
    elif how == "closed":
        session.close()
    else:
        session.run()
    del saved, y, loss
    gc.collect()
    assert alive() is None
    assert session.graph.tasks is tasks and session.graph.nodes == ()
    assert session.ready == [] and session.current is None and len(session.trace) == len(session.order)


def assert_untouched(graph: ts.Graph, numbers: list[int]) -> None:
    assert [node._sequence_nr() for node in graph.nodes] == numbers
    assert [node_hooks(node) for node in graph.nodes] == [([], [])] * len(graph)


def test_a_closed_session_has_let_go_of_the_gradients_that_waited() -> None:
    _, loss = fan()
    seen: list[weakref.ref[Tensor]] = []
    session = native(loss, policy="bfs")
    session.step()
    session.step()
    seen.append(weakref.ref(session.gradients[0]))
    kept = Kept()
    loss.grad_fn.next_functions[0][0].next_functions[0][0].metadata["kept"] = kept
    alive = weakref.ref(kept)
    del loss, kept
    session.close()
    del session
    assert [each() for each in (*seen, alive)] == [None, None]


class Kept:
    """Something that can be looked after."""


@pytest.mark.parametrize("how", ["close", "with", "collected", "never started"])
def test_an_abandoned_session_leaves_no_thread_hook_or_number(how: str) -> None:
    _, loss = fan()
    graph = ts.graph(loss)
    numbers = [node._sequence_nr() for node in graph.nodes]
    session = native(loss, policy="bfs", retain_graph=True)
    if how != "never started":
        session.step()
        session.step()
        assert len(session_threads()) == 1
    if how == "with":
        with session:
            pass
    elif how != "collected":
        session.close()
        session.close()
        says(repr(session), "closed")
        with raises(RuntimeError, "closed", "ts.debug(loss)"):
            session.step()
    else:
        del session
    wait_for(lambda: not session_threads())
    assert_untouched(graph, numbers)
    loss.backward()


def test_a_closed_session_keeps_what_was_accumulated() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    session = native((x.exp() + y).sum())
    while y.grad is None:
        session.step()
    session.close()
    assert torch.equal(y.grad, torch.ones(2)) and x.grad is None


def test_a_user_who_catches_everything_does_not_keep_a_session_alive() -> None:
    caught: list[BaseException] = []
    x = torch.ones(2, requires_grad=True)

    def swallow(gradients: object) -> None:
        try:
            with torch.enable_grad():
                (x * 2).sum().backward()
        except BaseException as error:
            caught.append(error)

    y = x * 3
    y.grad_fn.register_prehook(swallow)
    session = native(y.sum())
    session.step()
    session.close()
    assert caught == [] and not session_threads()


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("mine")


def test_an_error_arrives_in_the_caller_with_task_module_and_line(snapshot: Snapshots) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return Failing.apply(self.inner(x))

    model = nn.Sequential(Model())
    with ts.capture():
        loss = model(torch.ones(1, 2)).sum()
    session = native(loss, policy="bfs")
    graph = session.graph
    numbers = [node._sequence_nr() for node in graph.nodes]
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        session.run()
    (note,) = caught.value.__notes__
    says(note, "tapescope", "FailingBackward", "module 0", "2nd", "test_session.py:")
    snapshot("debug", note)
    assert [entry.name for entry in caught.traceback][-1] == "backward"
    assert not session_threads()
    assert_untouched(graph, numbers)
    with raises(RuntimeError, "ZeroDivisionError", "ts.debug(loss)") as over:
        session.run()
    snapshot("debug", over.value)


def test_a_hook_that_raises_at_a_stop_is_told_from_the_task_that_had_run(snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()

    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError

    y.register_hook(fail)
    session = native(y.sum())
    with pytest.raises(ZeroDivisionError) as caught:
        session.step()
    (note,) = caught.value.__notes__
    says(note, "tapescope", "hooks", "ExpBackward0 (2nd)")
    snapshot("debug", note)
    assert session.order == [1]


def test_backwards_in_hooks_and_checkpoints_are_no_tasks_of_the_session() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2

    def inner(gradient: Tensor) -> None:
        with torch.enable_grad():
            (x * 3).sum().backward()

    y.register_hook(inner)
    z = torch.utils.checkpoint.checkpoint(lambda y: (y * x).sum(), y, use_reentrant=True)
    session = native(z)
    stops = []
    while session.current is not None:
        stops.append(session.step().id)
    assert sorted(stops) == list(range(len(session.graph)))
    assert torch.equal(x.grad, torch.full((2,), 7.0))


def test_hooks_that_come_at_a_stop_are_seen_by_it() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    z = y * 3
    session = native(z.sum())
    session.step()
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 10,))
    session.step()
    assert session.gradients[0].tolist() == [30.0, 30.0]
    x.register_hook(lambda gradient: gradient * 5)
    leaf = session.graph.nodes[-1]
    leaf.register_prehook(lambda gradients: (gradients[0] + 1,))
    session.step()
    assert session.gradients[0].tolist() == [301.0, 301.0]
    session.run()
    assert x.grad.tolist() == [301.0, 301.0]


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class Renaming(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


def test_torchs_state_of_the_caller_holds_in_the_sessions_thread() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")

    def state() -> list[object]:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        return [
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
            torch.ones(1).device,
            (torch.ones(2, 2) @ torch.ones(2, 2)).dtype,
            hooks and hooks[0](torch.ones(1)) == "packed",
            torch._C._is_multithreading_enabled(),
            variable.get(),
            torch.is_grad_enabled(),
        ]

    def collect(run: Callable[[Tensor], object]) -> tuple[list[object], list[str], list[str]]:
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        loss = y.sum()
        seen: list[object] = []
        y.register_hook(lambda gradient: seen.append((state(), (gradient * 2).tolist())) and None)
        counting, renaming = Counting(), Renaming()
        variable.set("mine")
        with (
            torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: "packed", lambda packed: None),
            torch.autograd.set_multithreading_enabled(False),
            torch.device("meta"),
            counting,
            renaming,
        ):
            counting.names.clear()
            renaming.names.clear()
            run(loss)
        return seen, counting.names, [name for name in renaming.names if name == "mul"]

    gradient = torch.ones(())
    expected = collect(lambda loss: loss.backward(gradient))
    found = collect(lambda loss: native(loss, grad_tensors=gradient, trace=None).run())
    assert found[0] == expected[0] and expected[0]
    assert found[2] == expected[2]
    assert [name for name in found[1] if "mul" in name] == [name for name in expected[1] if "mul" in name]


def test_what_the_sessions_thread_cannot_have_is_refused(snapshot: Snapshots) -> None:
    _, loss = fan()
    with torch.profiler.profile(), raises(NotImplementedError, "profiler", 'engine="direct"') as profiled:
        native(loss)
    snapshot("debug", profiled.value)
    _, loss = fan()
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), raises(NotImplementedError, "FakeTensorMode", 'engine="direct"') as fake:
        native(loss)
    snapshot("debug", fake.value)
    with (
        torch._dynamo.compiled_autograd._enable(lambda graph: graph),
        raises(RuntimeError, "compiled autograd") as compiled,
    ):
        native(loss)
    snapshot("debug", compiled.value)


def test_hundreds_of_sessions_leave_nothing() -> None:
    """Sessions that ran to the end, were closed at a stop, failed or were freed, in turns."""

    def one(number: int) -> list[weakref.ref[Tensor]]:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        if number % 4 == 3:
            y = Failing.apply(y)
        loss = y.sum()
        session = native(loss, policy="bfs", trace="cheap")
        found = [weakref.ref(each) for each in (x, y, loss)]
        if number % 4 == 3:
            with pytest.raises(ZeroDivisionError):
                session.run()
        elif number % 4 == 0:
            session.run()
        else:
            session.step()
            found.append(weakref.ref(session.gradients[0]))
            if number % 4 == 1:
                session.close()
        return found

    kept: list[weakref.ref[Tensor]] = []
    objects = []
    for number in range(300):
        kept.extend(one(number))
        if number in (99, 299):
            wait_for(lambda: not session_threads())
            gc.collect()
            wait_for(lambda: not any(each() is not None for each in kept))
            kept.clear()
            objects.append(len(gc.get_objects()))
    assert objects[1] - objects[0] < 100


def test_an_open_session_does_not_hold_up_the_interpreters_end(fresh_python: WarmPython) -> None:
    script = (
        "import torch, tapescope as ts\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "session = ts.debug(x.exp().sum(), engine='native')\n"
        "session.step()\n"
        "kept = [session]; kept.append(kept)\n"
        "print(session.current.short_name, flush=True)\n"
    )
    done = fresh_python.start("-c", script).end(120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Exp\n", "")


def test_two_sessions_at_once_share_leaves_and_each_keeps_its_order() -> None:
    layer = nn.Linear(4, 4)
    leaves = list(layer.parameters())
    losses = [layer(torch.ones(2, 4)).sum(), layer(torch.ones(3, 4)).square().sum()]
    expected = gradients_of(leaves, lambda: [loss.backward(retain_graph=True) for loss in losses])
    sessions = [native(loss, policy=policy) for loss, policy in zip(losses, ("bfs", "dfs"), strict=True)]
    while any(session.current for session in sessions):
        for session in sessions:
            if session.current is not None:
                foretold = session.current
                assert session.step() is foretold
    assert_equal([leaf.grad for leaf in leaves], expected, bitwise=False)
    for node, _ in losses[0].grad_fn.next_functions[0][0].next_functions:
        assert node is None or "Accumulate" not in node.name() or node._sequence_nr() == 2**64 - 1


def test_a_session_in_a_thread_other_than_the_main_one() -> None:
    x, loss = fan()
    runs: list[ts.Run] = []
    thread = threading.Thread(target=lambda: runs.append(native(loss).run()))
    thread.start()
    thread.join()
    assert len(runs[0].order) == 6 and x.grad is not None


def test_debug_picks_the_engine(snapshot: Snapshots) -> None:
    _, loss = fan()
    assert type(ts.debug(loss)) is ts.types.Stepper
    assert type(ts.debug(loss, engine="native")) is ts.types.NativeSession
    with raises(ValueError, "'turbo'", "native", "direct") as raised:
        ts.debug(loss, engine="turbo")
    snapshot("debug", raised.value)


def test_a_session_has_the_callers_device_and_streams_and_one_queue(accelerator: torch.device) -> None:
    x = torch.ones(64, device=accelerator, requires_grad=True)
    stream = torch.Stream(accelerator)
    seen = []
    with stream:
        y = (x * 2).cpu() + torch.ones(64, requires_grad=True)
        loss = y.sum()
        y.register_hook(
            lambda gradient: seen.append((torch.accelerator.current_stream(), threading.current_thread().name))
        )
        session = native(loss, policy="bfs")
        while session.current is not None:
            foretold = session.current
            assert session.step() is foretold
    assert seen == [(stream, "tapescope backward")]
    assert torch.equal(x.grad, torch.full((64,), 2.0, device=accelerator))


def test_the_time_that_it_ran_leaves_stops_out_and_grows_while_it_runs() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[int] = []
    y = x.exp()
    hook = y.register_hook(lambda gradient: seen.append(session.result().elapsed_ns))
    session = native(y.sin().sum(), policy="heap")
    assert session.result().elapsed_ns == 0
    session.step()
    stopped = session.result().elapsed_ns
    time.sleep(0.05)
    assert 0 < session.result().elapsed_ns == stopped
    began = time.perf_counter_ns()
    ended = session.run().elapsed_ns
    assert stopped < seen[0] < ended < stopped + time.perf_counter_ns() - began
    time.sleep(0.01)
    assert session.result().elapsed_ns == ended
    hook.remove()  # it holds the session, which holds its node


@pytest.mark.parametrize("seed", range(5))
def test_second_derivatives_are_added_in_pytorchs_order(seed: int) -> None:
    """A new thread counts its nodes from zero: they would be taken for older than the forward's."""

    def second(backward: Callable[[Tensor], object]) -> tuple[Tensor, ...]:
        torch.manual_seed(seed)
        chance = random.Random(seed)
        leaves = [torch.randn(4, dtype=torch.double, requires_grad=True) for _ in range(3)]
        values = list(leaves)
        for _ in range(12):
            one, other = chance.choice(values), chance.choice(values)
            made = one * other, one.sin() + other, one.exp() * 0.1, (one * other).tanh(), one / (other * other + 1)
            values.append(chance.choice(made))
        backward(sum(each.sum() for each in values))
        squares = sum((leaf.grad * leaf.grad).sin().sum() for leaf in leaves)
        return torch.autograd.grad(squares + sum((each * each).sum() for each in values), leaves)

    def stepped(loss: Tensor) -> None:
        session = ts.types.NativeSession(ts.types.BackwardCall(loss, create_graph=True))
        session.step()
        assert (torch.ones(1, requires_grad=True) * 2).grad_fn is not None, "made while it stands still"
        session.run()

    expected = second(lambda loss: loss.backward(create_graph=True))
    assert all(map(torch.equal, second(stepped), expected))


GOING_BACK: list[Callable[[ts.types.NativeSession], object]] = [
    lambda session: session.back(),
    lambda session: session.back(3),
    lambda session: session.goto(session.order[0]),
    lambda session: session.goto(branch=1),
    lambda session: session.history,
    lambda session: session.keep_history(),
    lambda session: session.forget(),
    lambda session: session.compare_branches(),
]


@pytest.mark.parametrize("verb", GOING_BACK)
def test_what_goes_back_is_refused_as_a_history_is(
    verb: Callable[[ts.types.NativeSession], object], snapshot: Snapshots
) -> None:
    x, loss = fan()
    with pytest.raises(NotImplementedError) as of_a_history:
        native(loss, history=True)
    says(of_a_history.value, "history", 'engine="direct"')
    if verb is GOING_BACK[0]:
        snapshot("debug", of_a_history.value)
    with native(loss) as session:
        session.step()
        with pytest.raises(NotImplementedError) as refusal:
            verb(session)
        assert str(refusal.value) == str(of_a_history.value)
        session.run()
    y, again = fan()
    again.backward()
    assert torch.equal(x.grad, y.grad), "the refusals changed nothing"


def test_goto_goes_on_and_restore_says_what_is_not_kept(snapshot: Snapshots) -> None:
    _, loss = fan()
    with native(loss) as session:
        target = session.planned[3]
        assert session.goto(target) is session.graph.tasks[target] is session.current
        session.scale(2.0)
        with raises(NotImplementedError, "gradients", 'engine="direct"') as not_kept:
            session.restore()
        snapshot("debug", not_kept.value)
        with raises(ValueError, "goto()", "task") as nowhere:
            session.goto()
        snapshot("debug", nowhere.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_count_of_steps_runs_what_so_many_steps_run(engine: Engine) -> None:
    x, loss = fan()
    with ts.debug(loss, engine=engine, retain_graph=True) as session:
        one_by_one = [session.step().id for _ in range(session.left)]
    expected, x.grad = x.grad, None
    with ts.debug(loss, engine=engine) as session:
        assert session.step(count=3).id == one_by_one[2] and session.left == len(one_by_one) - 3
        assert session.step(session.current, count=2).id == one_by_one[4]
        assert session.step(count=1000).id == one_by_one[-1] and session.left == 0 and session.stopped is None
        assert session.order == one_by_one
        assert torch.equal(x.grad, expected)
        with raises(RuntimeError, len(one_by_one)):
            session.step(count=2)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_count_of_steps_ends_early_at_what_stops_a_run(engine: Engine) -> None:
    x = torch.ones(2, requires_grad=True)
    hidden = x.exp()
    loss = torch.stack([hidden.sin(), hidden.cos()]).sum()
    with ts.debug(loss, engine=engine) as session:
        session.break_at(session.planned[2])
        assert session.step(count=10).id == session.planned[1]
        assert session.stopped is not None and session.stopped.task == session.planned[2]
        hidden.register_hook(lambda gradient: session.stop())
        session.step(count=10)
        assert session.stopped is not None and session.stopped.why == "asked" and session.left
        session.run()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_count_that_is_no_number_of_tasks_is_refused_before_anything_runs(
    engine: Engine, snapshot: Snapshots
) -> None:
    _, loss = fan()
    with ts.debug(loss, engine=engine) as session:
        for count in (0, -1):
            with raises(ValueError, f"step(count={count})", 1) as too_few:
                session.step(count=count)
        for wrong, kind in ((2.5, "float"), ("3", "str"), (None, "None"), (True, "True")):
            with raises(TypeError, "count", kind) as no_number:
                session.step(count=wrong)
        if engine == "direct":
            snapshot("debug", too_few.value)
            snapshot("debug", no_number.value)
        assert session.order == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_session_saves_what_has_run_as_its_run_does(engine: Engine, tmp_path: Path) -> None:
    _, loss = fan()
    with ts.debug(loss, engine=engine) as session:
        session.step(count=2)
        saved = ts.load(session.save_trace(tmp_path / "part.tape.json"))
        assert list(saved.order) == session.order and saved.engine == engine
