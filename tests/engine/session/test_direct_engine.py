"""A stepped session: `ts.debug`."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.execution.input_buffer import InputBuffer
from tapescope.tests.says import Snapshots, raises, says


def fan(x: Tensor) -> Tensor:
    return torch.stack([x.exp(), x.sin(), x.cos()]).sum()


def names(session: ts.types.Stepper) -> list[str]:
    return [entry.task.name.removesuffix("Backward0") for entry in session.ready]


def test_the_ready_queue_is_seen_in_pop_order_with_its_keys() -> None:
    session = ts.debug(fan(torch.ones(1, requires_grad=True)), policy="heap")
    assert session.current is not None and session.current.name == "SumBackward0"
    session.step()
    session.step()
    assert names(session) == ["Cos", "Sin", "Exp"]
    assert [entry.label for entry in session.ready] == ["#2", "#1", "#0"]
    session.step()
    assert names(session) == ["Sin", "Exp"]


def test_arrivals_are_the_keys_of_bfs_and_dfs() -> None:
    for policy, expected in (("bfs", ["Exp", "Sin", "Cos"]), ("dfs", ["Cos", "Sin", "Exp"])):
        session = ts.debug(fan(torch.ones(1, requires_grad=True)), policy=policy)
        session.step()
        session.step()
        assert names(session) == expected
        assert sorted(entry.label for entry in session.ready) == ["@2", "@3", "@4"]


def test_any_ready_task_can_be_run_by_hand() -> None:
    x = torch.ones(1, requires_grad=True)
    session = ts.debug(fan(x))
    session.step()
    session.step()
    exp = session.ready[-1].task
    assert session.step(exp) is exp
    assert names(session) == ["Cos", "Sin"]
    assert session.step(session.ready[-1]).name == "SinBackward0"
    run = session.run()
    assert [run.graph.tasks[task].name for task in run.order[2:5]] == ["ExpBackward0", "SinBackward0", "CosBackward0"]
    torch.testing.assert_close(x.grad, (x.exp() + x.cos() - x.sin()).detach())


def test_what_waits_for_a_task_can_be_seen_and_kept() -> None:
    x = torch.ones(2, requires_grad=True)
    session = ts.debug((x.exp() * 2 + x.exp().sin() * 3).sum())
    leaf = session.graph.tasks[-1]
    assert session.waiting(leaf) == (None,)
    kept = []
    while session.current is not leaf:
        session.step()
        (gradient,) = session.waiting(leaf)
        if gradient is not None:
            kept.append((gradient, gradient.clone()))
    assert len(kept) >= 2
    session.run()
    assert all(torch.equal(gradient, copy) for gradient, copy in kept), "a gradient that was looked at has been changed"


def test_a_task_that_is_not_ready_is_refused_with_the_reason(snapshot: Snapshots) -> None:
    session = ts.debug(fan(torch.ones(1, requires_grad=True)))
    leaf = session.graph.tasks[-1]
    with raises(ValueError, "AccumulateGrad (6th)", 3) as waits:
        session.step(leaf)
    done = session.step()
    with raises(ValueError, "SumBackward0 (1st)") as has_run:
        session.step(done)
    with raises(ValueError, 99, 0, 5, "step(count=99)"):
        session.step(99)
    with raises(ValueError, "AccumulateGrad (6th)", "step(count=5)"):
        session.step(5)
    for raised in (waits, has_run):
        snapshot("debug", raised.value)
    session.run()


def test_after_the_last_task_there_is_none() -> None:
    x = torch.ones(1, requires_grad=True)
    session = ts.debug(fan(x))
    for _ in range(len(session.graph)):
        session.step()
    assert session.current is None and session.ready == []
    with raises(RuntimeError, 6):
        session.step()


def test_a_user_policy_that_chooses_wrongly_can_be_overruled() -> None:
    x = torch.ones(1, requires_grad=True)
    session = ts.debug(fan(x), policy=lambda ready, state: state.graph.tasks[5])
    with raises(ts.PolicyError, "AccumulateGrad", "SumBackward0"):
        session.step()
    assert session.order == []
    while session.ready:
        session.step(session.ready[0].task)
    assert x.grad is not None


def test_a_failed_step_ends_the_session_and_says_where(snapshot: Snapshots) -> None:
    layer = nn.Linear(2, 2)
    with ts.capture():
        hidden = layer(torch.ones(1, 2))
        loss = hidden.exp().sum()

    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError("mine")

    hidden.register_hook(fail)
    session = ts.debug(loss)
    session.step()
    session.step()
    with pytest.raises(ZeroDivisionError) as caught:
        session.step()
    says(caught.value.__notes__[0], "AddmmBackward0", "3rd", "test_direct_engine.py:")
    with raises(RuntimeError, "ZeroDivisionError", "AddmmBackward0", "3rd", "ts.debug(loss)") as over:
        session.step()
    snapshot("debug", over.value)
    says(repr(session), "ZeroDivisionError")
    assert torch.is_grad_enabled()


def test_a_closed_session_holds_no_gradients_and_does_not_go_on() -> None:
    with ts.debug(fan(torch.ones(1, requires_grad=True))) as session:
        session.step()
        session.step()
        assert session.waiting(0)[0] is not None
    session.close()
    assert session.waiting(0) == (None,)
    with raises(RuntimeError, "closed", "ts.debug(loss)"):
        session.run()


def test_hooks_registered_at_a_stop_run() -> None:
    x = torch.ones(1, requires_grad=True)
    y = x.exp()
    loss = y.sin().sum()
    for steps in (0, 1):
        x.grad = None
        session = ts.debug(loss, retain_graph=True)
        for _ in range(steps):
            session.step()
        handle = y.register_hook(lambda gradient: gradient * 0)
        session.run()
        handle.remove()
        assert torch.equal(x.grad, torch.zeros(1))


@pytest.mark.parametrize("length", [1, 1500])
def test_gradients_retained_at_a_stop_are_filled(length: int) -> None:
    y = x = torch.ones(1, requires_grad=True)
    for _ in range(length):
        y = y * 1
    session = ts.debug(y.exp().sum())
    y.retain_grad()
    session.run()
    torch.testing.assert_close(y.grad, torch.ones(1).exp())
    assert x.grad is not None


def test_a_session_says_what_it_is_doing(snapshot: Snapshots) -> None:
    session = ts.debug(fan(torch.ones(1, requires_grad=True)), policy="bfs")
    says(repr(session), "Stepper", "bfs", "0 of 6", 1)
    snapshot("debug", repr(session))
    run = session.run()
    says(repr(run), "Run", 6, "bfs", "direct", 3)
    snapshot("debug", repr(run))


def test_only_sums_that_nobody_else_holds_are_added_to_in_place() -> None:
    with torch.no_grad():
        buffer = InputBuffer(1)
        first, second = torch.ones(2), torch.full((2,), 2.0)
        buffer.add(0, first)
        assert buffer.gradients[0] is first
        buffer.add(0, second)
        address = buffer.gradients[0].data_ptr()
        buffer.add(0, torch.full((2,), 4.0))
        assert buffer.gradients[0].data_ptr() == address, "the buffer's own sum is reused"
        assert torch.equal(first, torch.ones(2)) and torch.equal(second, torch.full((2,), 2.0))
        view = buffer.gradients[0].view(2, 1)
        buffer.add(0, first)
        assert torch.equal(view, torch.full((2, 1), 7.0)), "its bytes belong to another tensor too"
        seen = buffer.gradients[0]
        buffer.add(0, first)
        assert torch.equal(seen, torch.full((2,), 8.0)), "what somebody looked at stays as it was"


def test_a_policy_is_asked_once_for_each_state_of_the_queue() -> None:
    asked = []

    def alternate(ready: list[ts.Task], state: object) -> ts.Task:
        asked.append(len(ready))
        return ready[len(asked) % len(ready)]

    session = ts.debug(fan(torch.ones(1, requires_grad=True)), policy=alternate)
    while session.ready:
        assert session.current is session.current
        expected = session.current
        assert session.step() is expected
    assert len(asked) == len(session.graph)


def test_a_session_can_be_stepped_inside_a_checkpoint_group_of_the_users() -> None:
    x = torch.ones(2, requires_grad=True)
    session = ts.debug(torch.utils.checkpoint.checkpoint(torch.exp, x, use_reentrant=False).sum())
    session.step()
    with torch.utils.checkpoint.GraphExecGroup():
        session.step()
    session.run()
    assert x.grad is not None


def test_entries_of_the_queue_read_as_one_line() -> None:
    session = ts.debug(fan(torch.ones(1, requires_grad=True)))
    session.step()
    session.step()
    assert repr(session.ready) == "[<#2 <Task 2 Cos>>, <#1 <Task 1 Sin>>, <#0 <Task 0 Exp>>]"


class _Both(torch.autograd.Function):
    """Gives both inputs the same gradient, the very tensor."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first + second

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient


def test_two_leaves_never_share_the_values_of_a_sparse_gradient() -> None:
    first, second = torch.ones(10, 3, requires_grad=True), torch.ones(10, 3, requires_grad=True)
    rows = nn.functional.embedding(torch.tensor([1, 2, 2]), _Both.apply(first, second), sparse=True)
    ts.backward(rows.sum(), engine="direct")
    assert first.grad.layout is second.grad.layout is torch.sparse_coo
    first.grad._values().zero_()
    assert torch.equal(second.grad.to_dense()[1:3], torch.tensor([[1.0], [2.0]]).expand(2, 3))


class _Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ZeroDivisionError


@pytest.mark.slow
def test_a_thousand_sessions_leave_nothing() -> None:
    """Sessions that ran to the end, were closed at a stop, freed or failed, in turns; nothing waits for the garbage
    collector."""

    def one(number: int) -> list[weakref.ref[Tensor]]:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        if number % 4 == 3:
            y = _Failing.apply(y)
        loss = y.sum()
        session = ts.debug(loss, policy="bfs", trace="cheap")
        found = [weakref.ref(each) for each in (x, y, loss)]
        if number % 4 == 3:
            with suppress(ZeroDivisionError):
                session.run()
        elif number % 4 == 0:
            session.run()
        else:
            session.step()
            found.append(weakref.ref(session.gradients[0]))
            if number % 4 == 1:
                session.close()
        return found

    threads = threading.active_count()
    objects = []
    gc.disable()
    try:
        for number in range(1000):
            assert all(each() is None for each in one(number)), number
            if number in (99, 999):
                objects.append(len(gc.get_objects()))
    finally:
        gc.enable()
    assert objects[1] - objects[0] < 100 and threading.active_count() == threads


class _Spread(torch.autograd.Function):
    """Gives a sparse gradient whose values are one row, seen eight times."""

    values = torch.ones(1, 3)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(torch.arange(8).view(1, 8), _Spread.values.expand(8, 3), (8, 3))


@pytest.mark.parametrize("engine", ["native", "direct"])
def test_a_sparse_gradient_with_gaps_or_overlaps_is_copied(engine: Literal["native", "direct"]) -> None:
    x = torch.ones(8, 3, requires_grad=True)
    for times in (1, 2):
        ts.backward(_Spread.apply(x).sum(), engine=engine)
        assert torch.equal(x.grad.to_dense(), torch.full((8, 3), float(times)))
        assert x.grad._values().data_ptr() != _Spread.values.data_ptr()


def test_threads_that_share_a_leaf_lose_no_gradient() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            leaf = torch.zeros(32, 32, requires_grad=True)
            losses = [(leaf.t() * float(factor)).sum() for factor in (1, 2)]
            start = threading.Barrier(2)

            def work(loss: Tensor) -> None:
                start.wait()
                ts.backward(loss, engine="direct")

            threads = [threading.Thread(target=work, args=(loss,)) for loss in losses]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert torch.equal(leaf.grad, torch.full((32, 32), 3.0))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("verb", ["step", "run", "replace", "gradients", "policy"])
def test_a_session_is_not_told_to_go_on_from_inside_itself(verb: str) -> None:
    def call() -> object:
        match verb:
            case "replace":
                return session.replace(None)
            case "gradients":
                return session.gradients
            case "policy":
                session.policy = "bfs"
                return None
            case _:
                return getattr(session, verb)()

    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y.register_hook(lambda gradient: call())
    session = ts.debug(y.sum())
    with raises(RuntimeError, f"session.{verb}", "session.run()", "stop()", "close()", "hook"):
        session.run()


def test_a_session_closed_in_a_hook_ends_after_that_task() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y.register_hook(lambda gradient: session.close())
    session = ts.debug(y.sum())
    run = session.run()
    assert [run.graph.tasks[task].short_name for task in run.order] == ["Sum", "Exp"] and x.grad is None
    assert session.current is None and session.ready == []
    with raises(RuntimeError, "closed", "ts.debug(loss)"):
        session.step()


def test_a_stop_asked_for_before_the_run_is_not_lost() -> None:
    session = ts.debug(fan(torch.ones(1, requires_grad=True)))
    session.stop()
    assert len(session.run().order) == 0
    assert len(session.run().order) == 6


def test_a_closed_session_holds_no_saved_tensors() -> None:
    factor = torch.ones(2)
    alive = weakref.ref(factor)
    session = ts.debug((torch.ones(2, requires_grad=True) * factor).sum())
    del factor
    session.step()
    assert alive() is not None
    session.close()
    assert alive() is None and len(session.graph) == 3


def test_a_policy_that_fails_leaves_the_session_to_another() -> None:
    x = torch.ones(1, requires_grad=True)
    session = ts.debug(fan(x), policy=lambda ready, state: 7)
    with pytest.raises(ts.PolicyError):
        session.run()
    session.policy = "heap"
    session.run()
    assert x.grad is not None


def test_what_is_given_to_a_session_must_be_its_own(snapshot: Snapshots) -> None:
    one, other = (ts.debug(fan(torch.ones(1, requires_grad=True))) for _ in range(2))
    with raises(ValueError, repr(other.current), repr(one.graph.tasks[other.current.id])) as of_another:
        one.step(other.current)
    with raises(TypeError, "gradient", "float") as no_gradient:
        one.replace(0.0)
    with raises(TypeError, "Linear", "model", "loss") as no_loss:
        ts.debug(nn.Linear(1, 1))
    for raised in (of_another, no_gradient, no_loss):
        snapshot("debug", raised.value)


def test_hooks_on_several_tensors_on_an_accelerator_belong_to_one_backward(accelerator: torch.device) -> None:
    x = torch.ones(2, device=accelerator, requires_grad=True)
    a, b = x.exp(), x.sin()
    seen: list[int] = []
    torch.autograd.graph.register_multi_grad_hook((a, b), lambda gradients: seen.append(len(gradients)))
    session = ts.debug((a * b).sum())
    while session.current is not None:
        session.step()
    assert seen == [2]


@pytest.mark.parametrize("trace", ["cheap", None])
def test_a_hook_runs_in_a_long_backward_though_the_program_holds_its_dict(trace: Any) -> None:
    leaf, ran = torch.ones(3, requires_grad=True), []
    handle = leaf.register_hook(lambda gradient: ran.append(gradient.tolist()))
    held = [leaf._backward_hooks]
    loss = leaf * 1.0
    for _ in range(1500):
        loss = loss * 1.0
    ts.backward(loss.sum(), engine="direct", trace=trace)
    handle.remove()
    assert ran == [[1.0] * 3]
    del held
