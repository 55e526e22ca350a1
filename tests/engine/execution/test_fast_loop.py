"""Tasks that run in one loop do what single ones do, and are recorded as those are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.execution.fast_loop import FastLoop
from tapescope.engine.execution.find_hooks import HookWatch
from tapescope.engine.execution.torch_nodes import TaskRunner
from tapescope.engine.recording import fast_recorder as bare_statistics
from tapescope.engine.session.direct_engine import DirectBackward
from tapescope.tests.says import raises, says

from ..backward_programs import random_policy, random_program

Made = tuple[Tensor, list[Tensor]]
"""A loss, and the leaves below it."""


def with_nothing_to_give() -> Made:
    x = torch.randn(4, requires_grad=True)
    first, _, third = x.reshape(2, 2).repeat(2, 1).split([1, 2, 1])
    return (first * third.detach()).sum() + x.unbind()[2] * 2, [x]


def with_a_sparse_gradient() -> Made:
    table = nn.Embedding(10, 3, sparse=True)
    rows = table(torch.tensor([1, 1, 4]))
    return (rows.exp() + table(torch.tensor([2]))).sum(), [table.weight]


def with_broadcasts_and_casts() -> Made:
    x, y = torch.randn(5, 3, requires_grad=True), torch.randn(3, dtype=torch.float64, requires_grad=True)
    return ((x + y) * x.double() + y.mean().to(torch.float32)).sum(), [x, y]


def with_a_leaf_of_another_dtype() -> Made:
    x = torch.randn(3, requires_grad=True)
    x.grad_dtype = torch.float64
    return x.exp().sum(), [x]


def with_half_a_graph() -> Made:
    x = torch.randn(4, requires_grad=True)
    _, kept = torch.sort(x * 2), torch.linalg.qr(torch.randn(3, 3, requires_grad=True) + x[0])
    return kept.R.sum() + x.sum(), [x]


def with_complex_numbers() -> Made:
    x = torch.randn(4, requires_grad=True)
    return (torch.complex(x, x * 2) * torch.tensor(1j)).abs().sum(), [x]


def with_a_compressed_leaf() -> Made:
    x = torch.eye(3).to_sparse_csr().requires_grad_()
    return (x @ torch.ones(3, 2)).sum(), [x]


def with_a_frozen_leaf() -> Made:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    loss = (x * y).exp().sum()
    x.requires_grad_(False)
    return loss, [x, y]


def with_gradients_that_are_given_on() -> Made:
    """Gradients passed on unchanged, as views of all or some elements, modified in place, and conjugated."""
    x = torch.randn(6, 4, requires_grad=True)
    y = x.t() + x.reshape(4, 6)
    z = (y.reshape(2, 12) + y.reshape(2, 12)).permute(1, 0) * 1
    z[3:] = 2.0
    w = z.flatten().unfold(0, 6, 3).sum(1)
    parts = torch.complex(w, w * 3).conj().imag
    return parts.expand(3, -1).sum() + z.t().flip(0).mean() + x.diagonal().sum(), [x]


PROGRAMS: dict[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        with_nothing_to_give,
        with_a_sparse_gradient,
        with_broadcasts_and_casts,
        with_a_leaf_of_another_dtype,
        with_half_a_graph,
        with_complex_numbers,
        with_a_compressed_leaf,
        with_a_frozen_leaf,
        with_gradients_that_are_given_on,
    )
}


@pytest.fixture(autouse=True)
def no_hooks_about() -> Iterator[None]:
    """Also where other tests have left some in the process; and graphs need not be large."""
    none = mock.patch.multiple(HookWatch, registered=lambda self: False, possible=lambda self: False)
    with none, mock.patch.object(TaskRunner, "hook_watch", lambda self: self.watch):
        yield


def in_one_loop(
    make: Callable[[], Made], together: bool, policy: Callable[[], object] = lambda: "heap", **how: object
) -> tuple[ts.Run, list[Tensor | None], int]:
    """The run, the gradients, and how often the loop was entered."""
    torch.manual_seed(0)
    loss, leaves = make()
    plain = DirectBackward.is_plain if together else property(lambda self: False)
    with (
        mock.patch.object(DirectBackward, "is_plain", plain),
        mock.patch.object(FastLoop, "_run_plain", autospec=True, side_effect=FastLoop._run_plain) as loop,
    ):
        run = ts.backward(loss, engine="direct", policy=policy(), **how)
    return run, [leaf.grad for leaf in leaves], loop.call_count


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.layout is not torch.strided:
        return one.layout is other.layout and torch.equal(one.to_dense(), other.to_dense())
    return torch.equal(one, other) and one.stride() == other.stride() and one.dtype is other.dtype


def hold_against_single_tasks(make: Callable[[], Made], entered: bool = True, **how: object) -> None:
    fast, gradients, entries = in_one_loop(make, True, trace="off", **how)
    slow, expected, none = in_one_loop(make, False, trace="off", **how)
    assert not none
    assert entries if entered else not entries
    assert all(map(same, gradients, expected))
    assert fast.order == slow.order
    assert fast.trace is not None and slow.trace is not None
    for column in fields(fast.trace.columns):
        if column.name not in ("started_ns", "ended_ns"):
            assert getattr(fast.trace.columns, column.name) == getattr(slow.trace.columns, column.name), column.name
    for what in ("labels", "forms", "hooks", "edits"):
        assert getattr(fast.trace, what) == getattr(slow.trace, what)
    for level in ("cheap", "full"):
        measured, again, _ = in_one_loop(make, True, trace=level, **how)
        expectation, _, _ = in_one_loop(make, False, trace=level, **how)
        assert all(map(same, again, expected))
        for task in slow.order:
            one, other = measured.trace[task], expectation.trace[task]
            assert repr((one.inputs, one.outputs)) == repr((other.inputs, other.outputs))  # NaN is not equal to itself
    times = fast.trace.columns
    assert all(0 <= times.started_ns[task] <= times.ended_ns[task] for task in fast.order)
    untraced, again, _ = in_one_loop(make, True, **how)
    assert untraced.order == fast.order and all(map(same, again, expected))


@pytest.mark.parametrize("policy", ["heap", "bfs", "chosen"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_random_programs_are_recorded_as_single_tasks_are(seed: int, policy: str) -> None:
    def make() -> Made:
        leaves, loss = random_program(seed)
        return loss, leaves

    hold_against_single_tasks(make, policy=lambda: random_policy(seed) if policy == "chosen" else policy)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("how", [{}, {"retain_graph": True}, {"create_graph": True}], ids=str)
def test_unusual_gradients_are_recorded_as_single_tasks_are(name: str, how: dict[str, bool]) -> None:
    entered = name != "with_a_leaf_of_another_dtype"  # what its task takes is not what the graph says
    hold_against_single_tasks(PROGRAMS[name], entered, **how)


def test_a_gradient_that_is_given_on_is_measured_once() -> None:
    def make() -> Made:
        x = torch.randn(6, 4, requires_grad=True)
        return ((x.t() + x.view(4, 6).exp()) * torch.randn(4, 6)).sum(), [x]

    with mock.patch.object(bare_statistics, "numbers_at_once", wraps=bare_statistics.numbers_at_once) as measured:
        run, _, _ = in_one_loop(make, True, trace="cheap")
    assert run.trace is not None
    rows = sum(each is not None for record in run.trace for each in (*record.inputs, *record.outputs))
    assert measured.call_count == 5 < rows  # sum's two, mul's, exp's, and what comes to x


def test_gradients_that_count_no_writes_are_measured() -> None:
    def make() -> Made:
        x = torch.randn(6, 4, requires_grad=True)
        return (x.t().exp() + x.t()).sum(), [x]

    def measured(together: bool) -> str:
        torch.manual_seed(0)
        loss, _ = make()
        plain = DirectBackward.is_plain if together else property(lambda self: False)
        with torch.inference_mode(), mock.patch.object(DirectBackward, "is_plain", plain):
            run = ts.backward(loss, engine="direct", trace="cheap")
        return repr([(record.inputs, record.outputs) for record in run.trace or ()])

    assert measured(True) == measured(False)


def test_what_raises_is_the_task_that_has_not_ended() -> None:
    for together in (True, False):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = (y * 2).sum()
        with torch.no_grad():
            y.add_(1)  # which ExpBackward0 has saved
        plain = DirectBackward.is_plain if together else property(lambda self: False)
        with mock.patch.object(DirectBackward, "is_plain", plain):
            session = ts.debug(z)
            with raises(RuntimeError, "inplace operation", "version 1") as raised:
                session.run()
        says(raised.value.__notes__[0], "ExpBackward0")
        columns = session.trace.columns
        (open_task,) = [task for task in columns.order if columns.ended_ns[task] < 0]
        assert session.graph.tasks[open_task].name == "ExpBackward0"


def test_labels_are_those_of_single_tasks_while_another_thread_looks() -> None:
    def make() -> Made:
        x = torch.ones(2, requires_grad=True)
        y = x
        for _ in range(3000):
            y = y * 1.0
        return y.sum(), [x]

    torch.manual_seed(0)
    session = ts.debug(make()[0])
    session.run_to(1500)
    before = session.trace
    session.run()
    assert list(session.trace.columns.label[: len(before.columns.label)]) == list(before.columns.label)
    assert session.trace.labels[session.trace.columns.label[0]].text == "#"
