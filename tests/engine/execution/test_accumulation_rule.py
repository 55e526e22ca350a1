"""Under every rule for summing and freeing gradients they are PyTorch's, and a session shows and undoes them
correctly."""

from __future__ import annotations

import gc
import weakref

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import tapescope as ts
from tapescope.engine.session.direct_session import Stepper
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import random_policy, random_program
from ..session.test_undo import grads, same, small_model, start_again, wander

OTHERS = [("inplace", "never"), *((how, release) for how in ("out_of_place", "list") for release in ("eager", "never"))]
ALL = [("inplace", "eager"), *OTHERS]


def fan_out(uses: int = 4) -> tuple[Tensor, Tensor]:
    """A loss in which one gradient is the sum of so many."""
    x = torch.arange(3.0, requires_grad=True)
    y = x * 1
    return x, torch.stack([(y * (use + 1)).sin().sum() for use in range(uses)]).sum()


def by_pytorch(seed: int) -> list[Tensor | None]:
    leaves, loss = random_program(seed)
    loss.backward()
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize(("accumulate", "release"), OTHERS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_under_heap_the_sums_are_pytorchs_bit_for_bit(accumulate, release, seed):
    leaves, loss = random_program(seed)
    ts.backward(loss, engine="direct", accumulate=accumulate, release=release)
    assert same([leaf.grad for leaf in leaves], by_pytorch(seed))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), rule=st.sampled_from(OTHERS), order=st.integers(0, 9))
def test_in_any_order_they_are_those_of_adding_in_place_in_that_order(seed, rule, order):
    found = []
    for accumulate, release in (("inplace", "eager"), rule):
        leaves, loss = random_program(seed)
        ts.backward(loss, policy=random_policy(order), engine="direct", accumulate=accumulate, release=release)
        found.append([leaf.grad for leaf in leaves])
    assert same(*found)


@pytest.mark.parametrize(("accumulate", "release"), OTHERS)
def test_second_derivatives_go_through_the_sums(accumulate, release):
    x, loss = fan_out()
    ts.backward(loss, create_graph=True, engine="direct", accumulate=accumulate, release=release)
    y, other = fan_out()
    (first,) = torch.autograd.grad(other, y, create_graph=True)
    (expected,) = torch.autograd.grad(first.sum(), y)
    assert x.grad is not None
    torch.testing.assert_close(torch.autograd.grad(x.grad.sum(), x)[0], expected)
    x.grad = None


@pytest.mark.parametrize(("accumulate", "release"), ALL)
def test_a_sparse_gradient_joins_a_dense_one(accumulate, release):
    table = torch.randn(5, 2, requires_grad=True)
    picked = torch.tensor([1, 3])

    def loss() -> Tensor:
        rows = torch.nn.functional.embedding(picked, table, sparse=True)
        return rows.sum() + (table * table).sum() + torch.nn.functional.embedding(picked + 1, table, sparse=True).sum()

    loss().backward()
    expected, table.grad = table.grad, None
    ts.backward(loss(), engine="direct", accumulate=accumulate, release=release)
    torch.testing.assert_close(table.grad, expected)


def test_what_waits_is_shown_as_the_sum_and_the_list_stays():
    _, loss = fan_out()
    with ts.debug(loss, policy="bfs", accumulate="list") as session:
        summed = next(task for task in session.graph.tasks if len(session.graph.in_edges[task.id]) == 4)
        while session.current != summed:
            session.step()
        (shown,), (again,) = session.waiting(summed), session.gradients
        assert shown is not again
        assert torch.equal(shown, again)
        (came,) = session._backward.buffers.by_task[summed.id].waiting()
        assert len(came) == 4
        assert torch.equal(shown, came[0] + came[1] + came[2] + came[3])
        session.scale(2)
        assert session._backward.buffers.by_task[summed.id].waiting() == ((session.gradients[0],),)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    chance=st.randoms(use_true_random=False),
    budget=st.sampled_from([1 << 30, 300, 0]),
    rule=st.sampled_from(OTHERS),
)
def test_whatever_was_done_before_the_last_run_gives_pytorchs_gradients(seed, chance, budget, rule):
    leaves, loss = random_program(seed)
    accumulate, release = rule
    with ts.debug(loss, history=budget, accumulate=accumulate, release=release) as session:
        wander(session, chance, 25)
        start_again(session)
        session.run()
        assert same([leaf.grad for leaf in leaves], by_pytorch(seed))


def test_taken_back_a_list_is_a_list_again():
    _, loss = fan_out()
    with ts.debug(loss, policy="bfs", accumulate="list", history=True) as session:
        summed = next(task for task in session.graph.tasks if len(session.graph.in_edges[task.id]) == 4)
        session.run_to(summed)
        buffers = session._backward.buffers.by_task
        counts = [len(buffers[summed.id].waiting()[0])]
        session.zero()
        session.step()
        session.back()
        counts.append(len(buffers[summed.id].waiting()[0]))  # edited before it ran: that stays
        session.restore()
        counts.append(len(buffers[summed.id].waiting()[0]))
        session.back()
        counts.append(len(buffers[summed.id].waiting()[0]))
        assert counts == [4, 1, 4, 3]


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient")


@pytest.mark.parametrize("how", ["ends", "raises", "is closed"])
def test_never_lasts_until_the_backward_ends(how):
    x = torch.ones(3, requires_grad=True)
    y = Raises.apply(x) if how == "raises" else x * 3
    seen: list[weakref.ref[Tensor]] = []

    def see(gradient: Tensor) -> None:
        seen.append(weakref.ref(gradient))

    z = y * 2
    z.register_hook(see)
    session = ts.debug(z.exp().sum(), release="never")
    multiplied = next(task.id for task in session.graph.tasks if session.graph.nodes[task.id] is z.grad_fn)
    session.run_to(multiplied)
    session.step()
    gc.collect()
    assert seen[0]() is not None
    if how == "raises":
        with pytest.raises(ValueError, match="no gradient"):
            session.run()
    elif how == "ends":
        session.run()
    else:
        session.close()
    gc.collect()
    assert seen[0]() is None


def test_without_it_the_same_gradient_goes_with_its_task():
    x = torch.ones(3, requires_grad=True)
    z = x * 2
    seen: list[weakref.ref[Tensor]] = []
    z.register_hook(lambda gradient: seen.append(weakref.ref(gradient)))
    with ts.debug(z.exp().sum()) as session:
        session.run_to(next(task.id for task in session.graph.tasks if session.graph.nodes[task.id] is z.grad_fn))
        session.step()
        assert seen[0]() is None


def test_what_is_not_known_or_not_possible_is_said(snapshot: Snapshots):
    _, loss = fan_out()
    with raises(ValueError, "accumulate", "'lists'", "'inplace'", "'out_of_place'", "'list'") as raised:
        ts.debug(loss, accumulate="lists")
    snapshot("debug", raised.value)
    with raises(ValueError, "release", "'late'", "'eager'", "'never'"):
        ts.backward(loss, engine="direct", release="late")
    for start in (ts.debug, ts.backward):
        with raises(NotImplementedError, "list", 'engine="direct"') as raised:
            start(loss, engine="native", accumulate="list", release="never")
    snapshot("debug", raised.value)
    assert isinstance(ts.debug(loss, accumulate="out_of_place"), Stepper)


def test_a_rule_has_a_name(snapshot: Snapshots):
    names = [ts.types.Accumulation(accumulate, release).name for accumulate, release in ALL]
    assert names[0] == "" and len(set(names)) == len(ALL)
    snapshot("debug", "\n".join(names[1:]))
    says(ts.types.Accumulation("list").of("heap"), "heap", "list")


def test_a_model_trains_alike():
    model, make_loss = small_model()
    found = []
    for accumulate, release in ALL:
        model.zero_grad()
        ts.backward(make_loss(), engine="direct", accumulate=accumulate, release=release)
        found.append(grads(model))
    assert all(same(each, found[0]) for each in found)
