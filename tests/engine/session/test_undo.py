"""Going back: whatever was stepped, taken back, edited and forked, what runs in the end is PyTorch's backward."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import tapescope as ts
from tapescope.engine.execution.backward_arguments import BackwardCall
from tapescope.engine.session.direct_session import Stepper
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..backward_programs import random_policy, random_program
from ..comparing import second_time

BUDGETS = [1 << 30, 300, 0]


def small_model() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(4, 6)
    return model, lambda: model(x).square().sum()


def grads(model: nn.Module) -> list[Tensor | None]:
    return [None if each.grad is None else each.grad.clone() for each in model.parameters()]


def same(found: list[Tensor | None], expected: list[Tensor | None]) -> bool:
    return all(
        one is None is other or (one is not None and other is not None and torch.equal(one, other))
        for one, other in zip(found, expected, strict=True)
    )


def wander(session: Stepper, chance: random.Random, moves: int) -> None:
    """Does whatever one can do to a session."""
    for _ in range(moves):
        move = chance.choice(["step", "step", "hand", "back", "edit", "restore", "policy", "branch", "goto"])
        if move == "back" and session.order:
            session.back(chance.randint(1, len(session.order)))
        elif move == "policy":
            session.policy = chance.choice(["bfs", "dfs", "heap", random_policy(chance.randrange(9))])
        elif move == "branch":
            session.goto(branch=chance.choice(session.branches).number)
        elif move == "goto" and (session.needed is None):
            session.goto(chance.randrange(len(session.graph)))
        elif session.left:
            if move == "step":
                session.step()
            elif move == "hand":
                session.step(chance.choice(session.ready))
            elif move == "edit":
                session.scale(chance.choice([0.0, 0.5, 2.0]), chance.choice(session.ready))
            elif move == "restore" and session.history is not None and session.history.edits:
                edited = session.history.edits[-1].task
                if edited not in session.order:
                    session.restore(edited)


def start_again(session: Stepper) -> None:
    """To the beginning, where nothing is edited, under PyTorch's policy."""
    if session.order:
        session.back(len(session.order))
    assert session.history is not None
    for task in {edit.task for edit in session.history.edits}:
        session.restore(task)
    session.policy = "heap"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), chance=st.randoms(use_true_random=False), budget=st.sampled_from(BUDGETS))
def test_whatever_was_done_before_the_last_run_gives_pytorchs_gradients(
    seed: int, chance: random.Random, budget: int
) -> None:
    leaves, loss = random_program(seed)
    loss.backward()
    expected = [leaf.grad for leaf in leaves]
    leaves, loss = random_program(seed)
    session = Stepper(loss, history=budget, trace="cheap")
    wander(session, chance, 40)
    start_again(session)
    assert all(leaf.grad is None for leaf in leaves)
    run = session.run()
    assert same([leaf.grad for leaf in leaves], expected)
    fresh = Stepper(random_program(seed)[1])
    fresh.run()
    assert list(run.order) == session.order == fresh.order == list(session.trace.order)
    assert [session.trace.queue(place) for place in range(len(fresh.order))] == [
        fresh.trace.queue(place) for place in range(len(fresh.order))
    ]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("seed", range(12))
def test_a_grad_that_was_there_is_added_to_once_and_stays_the_same_tensor(seed: int, budget: int) -> None:
    model, make_loss = small_model()
    make_loss().backward()
    model[2].weight.grad = None
    kept = [each.grad for each in model.parameters()]
    first = grads(model)
    make_loss().backward()
    twice = grads(model)
    for each, tensor, values in zip(model.parameters(), kept, first, strict=True):
        each.grad = tensor
        if tensor is not None:
            tensor.copy_(values)
    session = Stepper(make_loss(), history=budget)
    wander(session, random.Random(seed), 40)
    start_again(session)
    assert same(grads(model), first)
    session.run()
    assert same(grads(model), twice)
    assert all(was is None or each.grad is was for each, was in zip(model.parameters(), kept, strict=True))


@pytest.mark.parametrize("budget", BUDGETS)
def test_back_shows_what_was_there(budget: int) -> None:
    _, make_loss = small_model()
    session, follower = Stepper(make_loss(), history=budget), Stepper(small_model()[1]())
    session.run()
    while session.order:
        session.back()
        assert session.current is not None
    while session.left:
        assert [each.label for each in session.ready] == [each.label for each in follower.ready]
        for entry in session.ready:
            for mine, theirs in zip(session.waiting(entry), follower.waiting(entry.task.id), strict=True):
                assert (mine is None) == (theirs is None)
                assert mine is None or theirs is None or torch.equal(mine, theirs)
        assert session.step().id == follower.step().id
        session.back()
        session.step()


def test_goto_goes_back_and_on() -> None:
    _, make_loss = small_model()
    session = Stepper(make_loss(), history=True)
    order = list(session.run().order)
    assert session.goto(order[3]).id == order[3] and session.order == order[:3]
    assert session.goto(order[7]).id == order[7] and session.order == order[:7]
    assert session.goto(session.graph.tasks[order[0]]).id == order[0] and session.order == []


def test_doing_something_else_begins_a_branch_and_keeps_the_old_one() -> None:
    model, make_loss = small_model()
    make_loss().backward()
    plain = grads(model)
    model.zero_grad()
    session = Stepper(make_loss(), history=True)
    session.run()
    assert [branch.number for branch in session.branches] == [1]
    session.back(len(session.order) - 2)
    session.zero()
    session.run()
    first, second = session.branches
    assert (second.parent, second.forked_at, second.is_current, len(second.edits)) == (1, 2, True, 1)
    assert not first.is_current and first.edits == ()
    edited = grads(model)
    assert not same(edited, plain)
    comparison = session.compare_branches()
    assert comparison.rows[0].parts_at is None and comparison.rows[0].different
    assert {leaf.name for leaf in comparison.rows[0].leaves} == {
        task.parameter or session.graph.describe(task) for task in session.graph.tasks if task.is_leaf
    }
    session.goto(branch=1)
    assert same(grads(model), plain) and session.branches[0].is_current
    assert not session.compare_branches().rows[0].different
    session.goto(branch=2)
    assert same(grads(model), edited)
    assert len(session.branches) == 2
    session.back()
    session.step()
    assert len(session.branches) == 2, "what runs again is no other branch"


@pytest.mark.parametrize(
    "rule", [ts.types.Accumulation(), ts.types.Accumulation("list", "never")], ids=lambda rule: rule.name
)
def test_a_comparison_has_each_branchs_gradients_order_and_peak(rule: ts.types.Accumulation) -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(8, 64)

    def make_loss() -> Tensor:
        return torch.stack([(x @ weight.t()).sum() for _ in range(10)]).sum()

    session = Stepper(make_loss(), history=True, accumulation=rule)
    session.run()
    session.back(len(session.order))
    session.policy = "bfs"
    session.run()
    one, two = session.compare_branches().rows
    assert (one.branch.policy, two.branch.policy) == ("heap", "bfs")
    assert one.parts_at is not None and two.peak_bytes >= one.peak_bytes
    weight.grad = None
    assert [row.peak_bytes for row in (one, two)] == [
        ts.simulate(ts.graph(make_loss()), policy, accumulate=rule.accumulate, release=rule.release).peak_bytes
        for policy in ("heap", "bfs")
    ]
    assert (two.peak_bytes > one.peak_bytes) == (rule == ts.types.Accumulation()), "lists wait"
    assert "(current)" in str(session.compare_branches()) and "<table" in session.compare_branches()._repr_html_()


def test_the_trace_tells_of_the_branch_that_is_current() -> None:
    _, make_loss = small_model()
    session = Stepper(make_loss(), history=True, trace="cheap")
    session.step()
    session.step()
    session.scale(2)
    edited = session.current
    session.step()
    assert len(session.trace) == 3 and session.trace.of(edited).edits
    session.back(2)
    assert len(session.trace) == 1 and session.trace.of(edited) is None and not session.trace.edits
    session.policy = "bfs"
    session.run()
    says(session.trace.policy, "heap", "bfs")
    assert session.trace.policy.startswith("heap") and len(session.trace) == len(session.graph)
    session.back(len(session.order))
    assert session.policy == "heap" and session.trace.policy == "heap"


def test_an_edit_is_undone_by_restore_or_by_going_back_before_it(snapshot: Snapshots) -> None:
    _, make_loss = small_model()
    session = Stepper(make_loss(), history=True)
    session.step()
    (was,) = session.gradients
    session.scale(3)
    assert torch.equal(session.gradients[0], was * 3)
    session.restore()
    assert session.gradients[0] is was and session.trace.edits == ()
    session.scale(3)
    session.step()
    session.back()
    assert torch.equal(session.gradients[0], was * 3), "an edit belongs to its task"
    session.back()
    session.step()
    assert torch.equal(session.gradients[0], was)
    current = session.graph.describe(session.current.id)
    with raises(ValueError, current) as raised:
        session.restore()
    snapshot("debug", raised.value)


def test_history_holds_no_more_gradients_than_its_budget() -> None:
    _, make_loss = small_model()
    session = Stepper(make_loss(), history=500)
    while session.left:
        session.step()
        assert session.history.gradient_bytes <= 500
    session.back(len(session.order))
    assert session.history.gradient_bytes == 0


def test_what_a_history_may_take_is_a_size_as_people_write_it(snapshot: Snapshots) -> None:
    session = Stepper(small_model()[1](), history="2 KiB")
    assert session.history is not None and session.history.budget_bytes == 2048
    session = Stepper(small_model()[1]())
    session.keep_history("2kB")
    assert session.history is not None and session.history.budget_bytes == 2000
    with raises(ValueError, "history", "'much'", '"8GB"') as raised:
        Stepper(small_model()[1](), history="much")
    snapshot("debug", raised.value)


def test_history_says_what_saved_tensors_it_holds() -> None:
    x = torch.randn(100, requires_grad=True)
    session = Stepper(x.exp().sum(), history=True)
    assert session.history.saved_bytes == 0
    session.run()
    assert session.history.saved_bytes == 400, "what exp saved"
    session.back(2)
    assert session.history.saved_bytes == 0


def test_after_the_session_the_graph_is_freed_as_after_any_backward() -> None:
    _, make_loss = small_model()
    loss = make_loss()
    session = Stepper(loss, history=True)
    session.run()
    session.close()
    with raises(RuntimeError, second_time()):
        loss.backward()


def test_forget_frees_what_ran_and_begins_anew(snapshot: Snapshots) -> None:
    saved = torch.ones(2)
    alive = weakref.ref(saved)
    x = torch.ones(2, requires_grad=True)
    session = Stepper((x.exp() * saved).sum(), history=True)
    del saved
    session.step()
    session.step()
    assert alive() is not None
    session.forget()
    assert alive() is None and session.history.nbytes == 0
    with raises(ValueError, "back(1)", "forget()", 2) as raised:
        session.back()
    snapshot("debug", raised.value)
    session.run()
    session.back(2)
    assert x.grad is None


def test_a_retained_gradient_is_not_added_up() -> None:
    for budget in BUDGETS:
        x = torch.ones(3, requires_grad=True)
        hidden = x * 2
        hidden.retain_grad()
        session = Stepper((hidden.exp() + hidden).sum(), history=budget)
        session.run()
        expected = hidden.grad.clone()
        session.back(3)
        session.run()
        assert torch.equal(hidden.grad, expected)
        session.back(len(session.order))
        assert hidden.grad is None


class Noisy(torch.autograd.Function):
    """Adds noise to its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + torch.rand_like(gradient)


@pytest.mark.parametrize("budget", BUDGETS)
def test_random_numbers_are_drawn_again(budget: int) -> None:
    x = torch.zeros(4, requires_grad=True)
    session = Stepper(Noisy.apply(Noisy.apply(x).exp()).sum(), history=budget)
    session.run()
    first = x.grad.clone()
    state = torch.get_rng_state()
    session.back(2)
    session.run()
    assert torch.equal(x.grad, first) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("budget", BUDGETS)
def test_checkpoints_compute_again_after_going_back(budget: int) -> None:
    model, _ = small_model()
    x = torch.randn(4, 6, requires_grad=True)

    def make_loss() -> Tensor:
        return checkpoint(model, checkpoint(torch.sin, x, use_reentrant=False), use_reentrant=False).square().sum()

    make_loss().backward()
    expected = grads(model)
    model.zero_grad()
    session = Stepper(make_loss(), history=budget)
    for steps, count in ((6, 4), (8, 10), (5, 1)):
        for _ in range(min(steps, session.left)):
            session.step()
        session.back(min(count, len(session.order)))
    session.run()
    assert same(grads(model), expected)


class RunningMean(nn.Module):
    """Binds its buffer anew instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return x


def normed() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), RunningMean(), inner)


def at_once(model: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(model, x, use_reentrant=False)


def by_lambda_and_without_random_state(model: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(lambda each: model(each), x, use_reentrant=False, preserve_rng_state=False)


def in_a_row(model: nn.Module, x: Tensor) -> Tensor:
    return checkpoint_sequential([*model, torch.sin], 2, x, use_reentrant=False)


def twice(model: nn.Module, x: Tensor) -> Tensor:
    return at_once(model, x) * at_once(model, x + 1)


CHECKPOINTED = [at_once, by_lambda_and_without_random_state, in_a_row, twice]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("forward", CHECKPOINTED, ids=lambda forward: forward.__name__)
def test_statistics_that_a_checkpoint_writes_again_are_written_once_after_going_back(
    forward: Callable[[nn.Module, Tensor], Tensor], budget: int
) -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    model = normed()
    forward(model, x).sum().backward()
    expected, state = [each.clone() for each in model.buffers()], torch.get_rng_state()
    for seed in range(4):
        chance = random.Random(seed)
        model = normed()
        session = Stepper(forward(model, x).sum(), history=budget)
        before = [each.clone() for each in model.buffers()]
        for _ in range(40):
            if session.order and chance.random() < 0.4:
                session.back(chance.randint(1, len(session.order)))
            elif session.left:
                session.step()
        if chance.random() < 0.5 and session.order:
            session.back(len(session.order))
            assert same([*model.buffers()], before)
        session.run()
        assert same([*model.buffers()], expected)
        if forward is not by_lambda_and_without_random_state:
            assert torch.equal(torch.get_rng_state(), state)


def test_a_task_that_can_not_be_taken_back_says_why(snapshot: Snapshots) -> None:
    model, _ = small_model()
    x = torch.randn(4, 6, requires_grad=True)
    session = Stepper(checkpoint(model, x, use_reentrant=True).sum(), history=True)
    session.run()
    after = grads(model)
    with raises(ValueError, f"back({len(session.order)})", 1, "CheckpointFunctionBackward (2nd)", ".grad") as raised:
        session.back(len(session.order))
    snapshot("debug", raised.value)
    assert same(grads(model), after)


def selective(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    kept = [torch.ops.aten.addmm.default, torch.ops.aten.sin.default]
    return checkpoint(function, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, kept))


@pytest.mark.parametrize("way", ["back", "goto"])
def test_a_selective_checkpoint_is_not_taken_back_as_it_computes_again_only_once(way: str, snapshot: Snapshots) -> None:
    model, _ = small_model()
    x = torch.randn(4, 6)
    selective(model, x).sum().backward()
    expected = grads(model)
    model.zero_grad()
    session = Stepper(selective(model, x).sum(), history=True)
    begin = session.current
    session.step()
    session.back()
    assert session.current is begin, "a task above the region"
    session.run()
    go = {"back": lambda: session.back(len(session.order)), "goto": lambda: session.goto(begin)}[way]
    with raises(ValueError, create_selective_checkpoint_contexts.__name__) as raised:
        go()
    if way == "back":
        snapshot("debug", raised.value)
    assert same(grads(model), expected)


def test_beside_a_selective_checkpoint_no_region_is_computed_again() -> None:
    """Another region's tasks may run between those of a selective one, which would be computed again with it."""
    x = torch.rand(3, requires_grad=True)

    def forward() -> Tensor:
        one = selective(lambda each: each.sin().exp().sin(), x)
        other = checkpoint(lambda each: each.cos().exp(), x * 1, use_reentrant=False)
        return (one * other).sum()

    (expected,) = torch.autograd.grad(forward(), x)
    for seed in range(8):
        x.grad = None
        session, chance = Stepper(forward(), history=True), random.Random(seed)
        while session.left:
            session.step(chance.choice(session.ready))
            if chance.random() < 0.5:
                with suppress(ValueError):
                    session.back(chance.randint(1, len(session.order)))
        assert torch.equal(x.grad, expected)


def test_an_optimizers_step_in_a_hook_is_not_taken_back(snapshot: Snapshots) -> None:
    def step(leaf: Tensor) -> None:
        with torch.no_grad():
            leaf.sub_(leaf.grad)
        leaf.grad = None

    def step_unseen(leaf: Tensor) -> None:
        leaf.data.sub_(leaf.grad)

    for hook in (step, step_unseen):
        weight = nn.Parameter(torch.ones(2))
        weight.register_post_accumulate_grad_hook(hook)
        session = Stepper((weight * 2).sum(), history=True)
        session.run()
        with raises(ValueError, "back(1)", "AccumulateGrad (3rd)", "hook") as raised:
            session.back()
        if hook is step:
            snapshot("debug", raised.value)
        assert torch.equal(weight, torch.full((2,), -1.0))


@pytest.mark.parametrize("budget", BUDGETS)
def test_hooks_that_change_gradients_in_place_do_so_once(budget: int) -> None:
    x = torch.ones(3, requires_grad=True)

    def make_loss() -> Tensor:
        hidden = x * 2
        hidden.register_hook(lambda gradient: gradient.mul_(3))
        return (hidden.exp() * 1.5).sum()

    make_loss().backward()
    expected, x.grad = x.grad, None
    session = Stepper(make_loss(), history=budget)
    for _ in range(3):
        session.run()
        session.back(2)
    session.run()
    assert torch.equal(x.grad, expected)


def test_what_was_written_in_place_and_a_graph_of_the_backward_go_back_too() -> None:
    x = torch.randn(5, requires_grad=True)

    def make_loss() -> Tensor:
        written = x * 3
        written[1:3] = x[:2] * 2
        return (written * written).sum()

    make_loss().backward()
    expected, x.grad = x.grad, None
    session = Stepper(BackwardCall(make_loss(), create_graph=True), history=True)
    session.run()
    session.back(len(session.order) - 1)
    assert x.grad is None
    session.run()
    assert torch.equal(x.grad, expected) and x.grad.grad_fn is not None
    x.grad = None
    session = Stepper(make_loss(), history=100)
    session.run()
    session.back(4)
    session.run()
    assert torch.equal(x.grad, expected)


def test_inputs_limits_what_runs_again() -> None:
    model, make_loss = small_model()
    weight = model[2].weight
    make_loss().backward(inputs=[weight])
    expected, weight.grad = weight.grad, None
    session = Stepper(BackwardCall(make_loss(), inputs=[weight]), history=0)
    session.run()
    session.back(3)
    session.run()
    assert torch.equal(weight.grad, expected) and model[0].weight.grad is None


def test_callbacks_and_hooks_on_several_tensors_run_at_the_end_of_what_ran_last() -> None:
    seen = []
    x = torch.ones(2, requires_grad=True)
    hidden = x * 2
    hidden.register_hook(lambda g: torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("end")))
    session = Stepper(hidden.exp().sum(), history=True)
    session.step()
    session.step()
    session.step()
    session.back(2)
    session.run()
    assert seen == ["end"], "the callback of an undone task"


def test_going_back_too_far_or_without_a_history_is_refused(snapshot: Snapshots) -> None:
    _, make_loss = small_model()
    session = Stepper(make_loss())
    session.step()
    with raises(RuntimeError, "history=True", "keep_history()") as without:
        session.back()
    session.keep_history()
    with raises(ValueError, "back(1)", 1) as too_far:
        session.back()
    says_none_of(too_far.value, "forget()")
    session.step()
    with raises(ValueError, "back(0)", 1) as too_few:
        session.back(0)
    session.back()
    assert len(session.order) == 1
    with raises(ValueError, "branch", 7, 1) as no_branch:
        session.goto(branch=7)
    session.close()
    with raises(RuntimeError, "closed", "ts.debug(loss)"):
        session.back()
    for raised in (without, too_far, too_few, no_branch):
        snapshot("debug", raised.value)


def test_nothing_is_left_of_a_session_that_went_back() -> None:
    x = torch.ones(1000, requires_grad=True)
    grad = torch.ones(1000)
    alive = weakref.ref(grad)
    session = Stepper(BackwardCall(x * 2, grad), history=True)
    del grad
    session.run()
    session.back(2)
    session.scale(2)
    session.run()
    session.close()
    del session
    assert alive() is None


@pytest.mark.parametrize("budget", BUDGETS)
def test_sparse_gradients_go_back(budget: int) -> None:
    table = nn.Embedding(5, 3, sparse=True)

    def make_loss() -> Tensor:
        return (table(torch.tensor([1, 1, 4])) * 2).sum() + table(torch.tensor([0])).sum()

    for already in (False, True):
        table.weight.grad = None
        for _ in range(1 + already):
            make_loss().backward()
        expected = table.weight.grad.to_dense()
        table.weight.grad = None
        if already:
            make_loss().backward()
        session = Stepper(make_loss(), history=budget)
        for count in (1, 3, len(session.graph)):
            session.run()
            session.back(count)
        session.run()
        assert torch.equal(table.weight.grad.to_dense(), expected)
        assert session.history.gradient_bytes >= 0


def test_what_others_added_to_a_grad_is_not_lost(snapshot: Snapshots) -> None:
    weight = torch.ones(2, requires_grad=True)
    session = Stepper((weight * 2).sum(), history=True)
    session.run()
    (weight * 3).sum().backward()
    with raises(RuntimeError, ".grad", "AccumulateGrad (3rd)", "None") as raised:
        session.back()
    snapshot("debug", raised.value)
    assert torch.equal(weight.grad, torch.full((2,), 5.0)) and not session.left
    weight.grad = None
    session.back()
    session.run()
    assert torch.equal(weight.grad, torch.full((2,), 2.0))


def test_a_function_that_frees_by_itself_is_not_run_twice(snapshot: Snapshots) -> None:
    class Frees(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            ctx.maybe_clear_saved_tensors()
            return gradient * x.exp()

    x = torch.ones(2, requires_grad=True)
    session = Stepper(Frees.apply(x * 2).sum(), history=True)
    session.run()
    with raises(ValueError, "back(4)", 2, "FreesBackward (2nd)") as raised:
        session.back(4)
    snapshot("debug", raised.value)
    session.back(2)
    session.run()
    assert torch.allclose(x.grad, 2 * torch.full((2,), 2.0).exp())


def test_a_root_gradient_changed_in_place_refuses_what_it_spoils_and_leaves_the_session(snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    hidden = x * 2
    hidden.register_hook(lambda gradient: gradient.mul_(2))
    gradient = torch.ones(2)
    session = Stepper(BackwardCall(hidden, gradient), history=True)
    session.run()
    with raises(RuntimeError, "history", "gradient", "in place") as raised:
        session.back(2)
    snapshot("debug", raised.value)
    assert not session.left and torch.equal(x.grad, torch.full((2,), 4.0))
    session.back()
    session.run()
    assert torch.equal(x.grad, torch.full((2,), 4.0))


def test_what_was_taken_back_of_a_branch_is_told_until_it_has_run_again(snapshot: Snapshots) -> None:
    _, make_loss = small_model()
    session = Stepper(make_loss(), history=True)
    session.run()
    session.back(4)
    (branch,) = session.branches
    assert (len(branch.order), branch.ahead) == (len(session.graph) - 4, 4)
    says(repr(branch), 4)
    snapshot("debug", repr(branch))
    session.goto(branch=1)
    assert not session.left and session.branches[0].ahead == 0


def test_a_module_is_entered_again_after_going_back() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 1))
    with ts.capture(model):
        loss = model(torch.randn(2, 3)).sum()
    session = ts.debug(loss, history=True)
    session.break_at("module:0")
    for _ in range(3):
        session.run()
        assert session.stopped is not None
        first, ran = session.current, len(session.order)
        session.run()
        assert session.stopped is None
        session.back(len(session.order) - ran + 2)
    session.run()
    assert session.current == first


def test_a_branch_with_nan_is_said_to_have_it(snapshot: Snapshots) -> None:
    weight = torch.ones(2, requires_grad=True)
    session = Stepper((weight * 2).sum(), history=True)
    session.run()
    session.back(2)
    session.scale(float("nan"))
    session.run()
    compared = session.compare_branches()
    (leaf,) = compared.rows[0].different
    assert leaf.relative is None or not math.isfinite(leaf.relative)
    says(compared, "1 of 1", leaf.name, "branch 2")
    snapshot("debug", compared)
