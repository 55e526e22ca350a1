"""Products that run as one give PyTorch's gradients, and what wants single tasks gets them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.function_levels import allocated_levels
from tapescope.engine.memory.timeline import IN_TREE
from tapescope.engine.session.direct_session import Stepper
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.graph.graph import unique_name
from tapescope.inspector.text.sizes_and_counts import nth, size_text
from tapescope.inspector.torch_private.engine import retains_any
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ...backward_programs import random_policy
from ...comparing import assert_equal, gradients_of

SMALL = {
    "ensemble": {"members": 5, "layers": 3, "width": 6, "batch": 4},
    "mixture_of_experts": {"experts": 4, "tokens": 24, "width": 8, "hidden": 8},
    "linear50": {"uses": 8, "width": 6, "batch": 3},
    "rnn": {"batch": 3, "width": 5, "steps": 6},
    "mlp_norm": {"layers": 3, "width": 8, "batch": 4},
}


def small_ensemble(members: int = 5, own_inputs: bool = False) -> tuple[list[Tensor], Callable[[], Tensor]]:
    """The leaves, and what makes a loss."""
    torch.manual_seed(3)
    models = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(members)]
    x = torch.randn(3, 4)
    inputs = [torch.randn(3, 4) if own_inputs else x for _ in models]
    leaves = [leaf for model in models for leaf in model.parameters()]
    return leaves, lambda: torch.stack([model(each) for model, each in zip(models, inputs, strict=True)]).square().sum()


def shared_linear(uses: int = 6, bias: bool = True) -> tuple[list[Tensor], Callable[[], Tensor]]:
    torch.manual_seed(3)
    layer = nn.Linear(4, 4, bias=bias)
    inputs = torch.randn(uses, 3, 4)
    return list(layer.parameters()), lambda: torch.stack([layer(x).tanh() for x in inputs]).square().sum()


def check(leaves: Sequence[Tensor], make_loss: Callable[[], Tensor], **options: object) -> ts.Run:
    """Runs it in batches, and says that the gradients are PyTorch's."""
    runs: list[ts.Run] = []
    expected = gradients_of(leaves, lambda: make_loss().backward())
    found = gradients_of(
        leaves,
        lambda: runs.append(ts.backward(make_loss(), engine="direct", batch="auto", **options)),  # type: ignore[arg-type]
    )
    assert_equal(found, expected, bitwise=False)
    assert sorted(runs[0].order) == list(range(len(runs[0].graph)))
    return runs[0]


def batched(run: ts.Run | Stepper) -> ts.types.Batches:
    assert run.batches is not None
    return run.batches


def only_reason(of: ts.Run | Stepper) -> str:
    (why,) = {fallback.why for fallback in batched(of).fallbacks}
    return why


@pytest.mark.parametrize("policy", ["heap", lambda ready, state: ready[len(ready) // 2]])
@pytest.mark.parametrize("name", SMALL)
def test_every_workload_gets_pytorchs_gradients(name, policy):
    model, make_loss = workload(name).build(**SMALL[name])
    leaves = list(model.parameters())
    if any(module.training and isinstance(module, nn.Dropout) for module in model.modules()):
        model.eval()
    run = check(leaves, make_loss, policy=policy, trace="cheap")
    assert run.trace is not None
    assert run.trace.batches.batches == batched(run).batches


def test_a_layer_of_an_ensemble_runs_in_one_step(snapshot: Snapshots):
    _leaves, make_loss = small_ensemble()
    with ts.debug(make_loss(), batch="auto") as session:
        assert session.together == [session.current]
        while len(session.together) == 1:
            session.step()
        (first, *others) = session.together
        assert len(others) == 4
        says(repr(session), 5)
        snapshot("debug", repr(session))
        ran = len(session.order)
        assert session.step() == first
        assert session.order[ran:] == [first.id, *(task.id for task in others)]
        (batch,) = batched(session)
        assert (batch.kind, len(batch.tasks)) == ("bmm", 5)
        assert batch.launches_before > batch.launches
        session.run()
    assert [len(batch.tasks) for batch in batched(session)] == [5, 5]
    assert not batched(session).fallbacks


def scaled_products() -> Tensor:
    """Return the loss of addmms with alpha and beta, with biases of the result's rows, columns, and one number."""
    torch.manual_seed(3)
    found = []
    for shape in ((2, 4), (4,), (1,), (1, 4)):
        biases, weights = ([torch.randn(size, requires_grad=True) for _ in range(5)] for size in (shape, (3, 4)))
        found += [
            torch.addmm(bias, torch.randn(2, 3), weight, alpha=3, beta=2)
            for bias, weight in zip(biases, weights, strict=True)
        ]
    return torch.stack(found).square().sum()


def products_of_one_factor(count: int, side: str, kind: str = "mm") -> Tensor:
    """Some products, fewer than TorchScript's many, with a factor in common on this side."""
    torch.manual_seed(count)
    shape = (2, 3, 3) if kind == "bmm" else (3, 3)
    one = torch.randn(shape, requires_grad=kind == "tree")
    others = [torch.randn(shape, requires_grad=True) for _ in range(count)]
    products = [one @ each if side == "left" else each @ one for each in others]
    return sum((product.square().sum() for product in products), start=torch.zeros(()))


FORESEEN = {
    **{
        f"{count} {kind} with one {side} factor": partial(products_of_one_factor, count, side, kind)
        for kind in ("mm", "bmm", "tree")
        for side in ("left", "right")
        for count in (4, 7, 9)
    },
    "four networks on one input": lambda: small_ensemble(members=4)[1](),
    "an ensemble of 9": lambda: workload("ensemble").build(**SMALL["ensemble"] | {"members": 9})[1](),
    "a weight used 8 times": lambda: workload("linear50").build(**SMALL["linear50"])[1](),
    "an unrolled cell": lambda: workload("rnn").build(**SMALL["rnn"])[1](),
    "products with factors": scaled_products,
}


@pytest.mark.parametrize("name", FORESEEN)
def test_the_launches_and_copies_that_groups_foresees_are_those_that_are_counted(name):
    loss = FORESEEN[name]()
    foreseen = {
        (each.kind, each.tasks): (each.launches_before, each.launches_after, each.stacked_bytes)
        for each in ts.find_batches(loss).backward
    }
    run = ts.backward(loss, engine="direct", batch="auto")
    counted = {
        (each.kind, tuple(sorted(each.tasks))): (each.launches_before, each.launches, each.copied_bytes)
        for each in batched(run)
    }
    assert counted == foreseen
    assert counted


def test_what_comes_later_is_held_back_for_the_group_whatever_the_policy(snapshot: Snapshots):
    leaves, make_loss = small_ensemble()
    for policy in ("heap", "dfs", "bfs"):
        run = check(leaves, make_loss, policy=policy, trace="off")
        assert run.trace is not None
        for batch in batched(run):
            places = [run.order.index(task) for task in batch.tasks]
            assert max(places) - min(places) == len(batch.tasks) - 1
            facts = 4, nth(min(places) + 1)
            reasons = [record.reason for task in batch.tasks if (record := run.trace.of(task))]
            assert len(reasons) == 5 and len(set(reasons[1:])) == 1
            says(reasons[1], *facts)
            if policy == "heap" and batch is batched(run)[0]:
                snapshot("backward", reasons[1])


@pytest.mark.parametrize("policy", ["heap", "bfs", lambda ready, state: ready[len(state.order) % len(ready)]])
def test_the_plan_holds_back_as_the_run_does(policy):
    _leaves, make_loss = small_ensemble()
    with ts.debug(make_loss(), batch="auto", policy=policy) as session:
        plan = session.planned
        for _ in range(4):
            session.step()
        assert session.planned == plan
        session.run()
        assert session.order == plan
        assert len(batched(session)) == 2


def test_inputs_that_are_one_are_not_copied():
    shared, own = (batched(check(*small_ensemble(members=8, own_inputs=own)))[-1].copied_bytes for own in (False, True))
    assert shared < own


def test_the_gradient_of_a_shared_weight_is_one_product():
    leaves, make_loss = shared_linear(6)
    run = check(leaves, make_loss)
    (batch,) = [batch for batch in batched(run) if batch.kind == "tree"]
    assert (len(batch.tasks), batch.launches_before, batch.launches) == (6, 11, 3)
    assert batch.held_bytes == 5 * 2 * 3 * 4 * 4
    assert run.batches is not None
    says(repr(run), run.batches.launches_saved)


def test_gradients_that_are_there_are_added_to():
    for leaves, make_loss in (small_ensemble(), shared_linear()):
        make_loss().backward()
        once = [leaf.grad.clone() for leaf in leaves if leaf.grad is not None]
        before = [leaf.grad for leaf in leaves]
        ts.backward(make_loss(), engine="direct", batch="auto")
        for leaf, grad, first in zip(leaves, before, once, strict=True):
            assert leaf.grad is grad
            torch.testing.assert_close(leaf.grad, 2 * first)


def test_a_kept_graph_runs_again_and_a_freed_one_raises_pytorchs_error():
    for leaves, make_loss in (small_ensemble(), shared_linear()):
        loss = make_loss()
        expected = gradients_of(leaves, lambda: make_loss().backward())
        for keep in (True, False):
            found = gradients_of(leaves, lambda: ts.backward(loss, retain_graph=keep, engine="direct", batch="auto"))
            assert_equal(found, expected, bitwise=False)
        with raises(RuntimeError, "retain_graph=True"):
            ts.backward(loss, engine="direct", batch="auto")
        with raises(RuntimeError, "retain_graph=True"):
            loss.backward()


def test_a_factor_that_was_modified_raises_pytorchs_error():
    leaves, make_loss = small_ensemble()
    loss = make_loss()
    session = ts.debug(loss, batch="auto")
    with torch.no_grad():
        leaves[2].add_(1)
    with raises(RuntimeError, "version 2", "version 1") as raised:
        session.run()
    assert "AddmmBackward0" in raised.value.__notes__[0]
    assert session.batches is not None


def test_a_factor_that_a_tree_waits_with_may_not_be_modified():
    layer = nn.Linear(3, 3)
    inputs = [torch.randn(2, 3) for _ in range(5)]
    with ts.debug(torch.stack([layer(x) for x in inputs]).sum(), batch="auto") as session:
        while session.step().short_name != "Addmm":
            pass
        for x in inputs:
            x.add_(1)
        with pytest.raises(RuntimeError, match="modified"):
            session.run()


def test_a_gradient_that_a_tree_waits_with_may_not_be_modified(snapshot: Snapshots):
    weight = torch.randn(3, 3, requires_grad=True)
    biases = [torch.randn(2, 3, requires_grad=True) for _ in range(5)]
    loss = torch.stack([torch.addmm(bias, torch.randn(2, 3), weight) for bias in biases]).square().sum()
    with ts.debug(loss, batch="auto", policy="dfs") as session:
        while session.current is None or session.current.short_name != "Addmm":
            session.step()
        (gradient,) = session.gradients
        session.step()
        assert gradient is not None
        gradient.mul_(2)
        with raises(RuntimeError, f"AddmmBackward0 ({nth(len(session.order))})") as raised:
            session.run()
    snapshot("debug", raised.value)


def test_a_hook_that_comes_while_a_tree_waits_sees_the_single_tasks_from_there_on(snapshot: Snapshots):
    leaves, make_loss = shared_linear(6, bias=False)
    expected = gradients_of(leaves, lambda: make_loss().backward())
    seen: list[bool] = []

    def backward() -> None:
        with ts.debug(make_loss(), batch="auto", policy="dfs") as session:
            ran = 0
            while ran < 2:
                ran += session.step().short_name == "Mm"
            handles = [
                session.graph.nodes[task.id].register_prehook(lambda given: seen.append(given[0] is not None))
                for task in session.graph.tasks
                if task.short_name == "T" and task.id not in session.order
            ]
            session.run()
            assert len(seen) == len(handles) > 2
            snapshot("debug", only_reason(session))
            for handle in handles:
                handle.remove()

    assert_equal(gradients_of(leaves, backward), expected, bitwise=False)
    assert sum(seen) >= 4


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_random_ensembles_and_trees_get_pytorchs_gradients(seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    dtype = chance.choice([torch.float64, torch.float32, torch.complex128])
    width, count = chance.randint(1, 4), chance.randint(2, 6)
    shared = torch.randn(width, width, dtype=dtype, requires_grad=True)
    weights = [torch.randn(width, width, dtype=dtype, requires_grad=True) for _ in range(count)]
    biases = [torch.randn(chance.choice([1, width]), dtype=dtype, requires_grad=True) for _ in range(count)]
    inputs = [torch.randn(chance.randint(1, 3), width, dtype=dtype, requires_grad=True) for _ in range(count)]
    alpha, beta = chance.choice([1, 0.5]), chance.choice([1, 2])
    turned = chance.random() < 0.5
    kinds = [chance.randrange(4) for _ in range(chance.randint(1, 3))]

    def make_loss() -> Tensor:
        found = []
        for x, weight, bias in zip(inputs, weights, biases, strict=True):
            for kind in kinds:
                if kind == 0:
                    x = x @ (shared.T if turned else shared)
                elif kind == 1:
                    x = torch.addmm(bias, x, weight, alpha=alpha, beta=beta)
                elif kind == 2:
                    x = torch.bmm(x[None], weight[None])[0]
                else:
                    x = (x @ weight) * 0.5
            found.append(x.abs().square().sum() if dtype.is_complex else x.square().sum())
        return torch.stack(found).sum()

    rules = ts.types.GroupRules(min_fusion_size=2, how_many_is_many=2)
    leaves = [shared, *weights, *biases, *inputs]
    expected = gradients_of(leaves, lambda: make_loss().backward())
    found = gradients_of(
        leaves, lambda: ts.backward(make_loss(), policy=random_policy(seed), engine="direct", batch=rules)
    )
    assert_equal(found, expected, bitwise=False)


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_run_as_one_with_groups(transposed):
    torch.manual_seed(0)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    models = [kind(2, 4, 3, padding=1, groups=2) for _ in range(4)]
    inputs = [torch.randn(2, 2, 5, 5, requires_grad=True) for _ in models]
    leaves = [*inputs, *(leaf for model in models for leaf in model.parameters())]

    def make_loss() -> Tensor:
        return torch.stack([model(x) for model, x in zip(models, inputs, strict=True)]).square().sum()

    (batch,) = batched(check(leaves, make_loss))
    assert (batch.kind, batch.launches_before) == ("grouped_conv", 12)


@pytest.mark.parametrize("shared", ["input", "weight", "nothing"])
@pytest.mark.parametrize("sizes", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (1, 1, 1)])
def test_products_without_elements_run_as_one(sizes, shared):
    rows, inner, columns = sizes
    inputs = [torch.randn(rows, inner, requires_grad=shared != "input") for _ in range(4)]
    weights = [torch.randn(inner, columns, requires_grad=shared != "weight") for _ in range(4)]
    inputs, weights = (
        inputs[:1] * 4 if shared == "input" else inputs,
        weights[:1] * 4 if shared == "weight" else weights,
    )
    biases = [torch.randn(columns, requires_grad=True) for _ in range(4)]
    leaves = [leaf for leaf in (*inputs, *weights, *biases) if leaf.requires_grad]

    def make_loss() -> Tensor:
        return torch.stack([torch.addmm(*each) for each in zip(biases, inputs, weights, strict=True)]).square().sum()

    (batch,) = batched(check(leaves, make_loss))
    assert len(batch.tasks) == 4


def test_convolutions_of_an_empty_batch_run_as_one():
    models = [nn.Conv2d(2, 4, 3) for _ in range(4)]
    inputs = [torch.randn(0, 2, 5, 5, requires_grad=True) for _ in models]
    leaves = [*inputs, *(leaf for model in models for leaf in model.parameters())]
    run = check(leaves, lambda: torch.stack([model(x) for model, x in zip(models, inputs, strict=True)]).square().sum())
    assert [len(batch.tasks) for batch in batched(run)] == [4]


class Doubling(Tensor):
    """Would double each product, if it were asked."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = super().__torch_function__(function, types, args, kwargs or {})
        return found * 2 if function in (torch.mm, torch.bmm, torch.stack, torch.cat) else found


def test_factors_that_are_subclasses_are_asked_as_little_as_by_the_engine():
    weights = [torch.randn(3, 3).as_subclass(Doubling).requires_grad_() for _ in range(5)]
    inputs = [torch.randn(2, 3, requires_grad=True) for _ in weights]

    def make_loss() -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            apart = [x @ weight for x, weight in zip(inputs, weights, strict=True)]
            return torch.stack([*apart, *(x @ weights[0] for x in inputs)]).square().sum()

    run = check(inputs, make_loss)
    assert {batch.kind for batch in batched(run)} == {"bmm", "tree"}


@pytest.mark.parametrize("kind", ["node", "tensor", "replacing"])
def test_hooked_tasks_run_by_themselves_and_the_hook_sees_what_it_always_does(kind, snapshot: Snapshots):
    leaves, make_loss = small_ensemble()
    seen: list[list[Tensor]] = []

    def hooked() -> Tensor:
        loss = make_loss()
        seen.append([])
        product = next(n for n in ts.graph(loss).nodes if n.name() == "AddmmBackward0")

        def watcher(gradient: Tensor) -> Tensor | None:
            seen[-1].append(gradient.clone())
            return gradient * 2 if kind == "replacing" else None

        if kind == "node":
            product.register_prehook(lambda gradients: seen[-1].append(gradients[0].clone()))
        else:
            tensors[0].register_hook(watcher)
        return loss

    tensors: list[Tensor] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, output: tensors.append(output) if isinstance(module, nn.Linear) else None
    )
    try:

        def fresh() -> Tensor:
            tensors.clear()
            return hooked()

        run = check(leaves, fresh)
    finally:
        handle.remove()
    torch.testing.assert_close(seen[1], seen[0])
    assert len(seen[0]) == 1
    (fallback,) = batched(run).fallbacks
    says(fallback.why, "AddmmBackward0")
    if kind != "replacing":
        snapshot("backward", fallback.why)
    assert len(batched(run)) == 1


def test_retained_gradients_are_filled_once():
    _leaves, make_loss = small_ensemble()
    grads = []
    for run in (lambda loss: loss.backward(), lambda loss: ts.backward(loss, engine="direct", batch="auto")):
        kept: list[Tensor] = []
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, given, output: kept.append(output) if isinstance(module, nn.Linear) else None
        )
        loss = make_loss()
        handle.remove()
        for each in kept:
            each.retain_grad()
        run(loss)
        grads.append([each.grad for each in kept])
    torch.testing.assert_close(grads[1], grads[0])


class Noted(torch.autograd.Function):
    called = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Noted.called += 1
        return gradient * 2


def test_to_ask_whether_gradients_are_retained_runs_nothing():
    Noted.called = 0
    x = torch.randn(3, requires_grad=True)
    first, second = (y := Noted.apply(x)), y.exp()
    third = Noted.apply(second)
    last = third.sum()
    nodes = [each.grad_fn for each in (last, first, third, second)]
    assert not retains_any(nodes) and not Noted.called
    first.retain_grad()
    assert retains_any(nodes) and not Noted.called
    assert first.grad is None and x.grad is None
    last.backward()
    assert Noted.called == 2


def test_between_a_tree_and_its_sum_a_retained_gradient_is_seen():
    weight = torch.randn(3, 3, requires_grad=True)
    turned = [weight.t() for _ in range(5)]
    assert not retains_any([each.grad_fn for each in turned if each.grad_fn is not None])
    turned[2].retain_grad()
    assert retains_any([each.grad_fn for each in turned if each.grad_fn is not None])
    assert turned[2].grad is None
    inputs = torch.randn(5, 2, 3)
    ts.backward(
        torch.stack([x @ each for x, each in zip(inputs, turned, strict=True)]).sum(), engine="direct", batch="auto"
    )
    torch.testing.assert_close(turned[2].grad, inputs[2].sum(0)[:, None].expand(3, 3))


def test_a_breakpoint_on_a_member_splits_its_group():
    leaves, make_loss = small_ensemble()
    expected = gradients_of(leaves, lambda: make_loss().backward())

    def backward() -> None:
        with ts.debug(make_loss(), batch="auto") as session:
            members = [task.id for task in session.graph.tasks if task.short_name == "Addmm"]
            session.break_at(members[2])
            session.run()
            assert session.current is not None
            assert session.current.id == members[2]
            session.run()
            assert session.left == 0
            (fallback,) = batched(session).fallbacks
            says(fallback.why, f"breakpoint 1 (#{members[2]})", "AddmmBackward0")

    assert_equal(gradients_of(leaves, backward), expected, bitwise=False)


def test_a_run_to_a_member_splits_its_group_and_one_to_the_first_does_not(snapshot: Snapshots):
    _leaves, make_loss = small_ensemble()
    for place, splits in ((0, False), (3, True)):
        with ts.debug(make_loss(), batch="auto", policy="bfs") as session:
            while len(session.together) == 1:
                session.step()
            task = session.together[place]
            assert session.run_to(task) == task
            assert task.id not in session.order
            assert bool(batched(session).fallbacks) is splits
            if splits:
                reason, stop = only_reason(session), unique_name(session.graph, task)
                says(reason, stop)
                snapshot("debug", reason.replace(stop, "TASK"))
            session.run()


def test_two_products_of_one_line_are_told_apart_where_one_is_run_too_early():
    weights = [torch.ones(4, 4, requires_grad=True) for _ in range(4)]
    loss = torch.stack([torch.ones(2, 4) @ weight for weight in weights]).sum()
    with ts.debug(loss, batch="auto") as session:
        while sum(entry.task.short_name == "Mm" for entry in session.ready) < 2:
            session.step()
        first, *_ = session.ready
        stop = next(task for task in session.graph.tasks if task.short_name == "Mm" and task.id != first.task.id)
        session.run_to(stop)
        session.run()
        reason = only_reason(session)
    says(reason, f"#{stop.id} {session.graph.describe(stop)}")
    says_none_of(reason, f"#{first.task.id}")


def test_a_member_that_is_run_by_hand_too_early_splits_its_group():
    leaves, make_loss = small_ensemble()
    expected = gradients_of(leaves, lambda: make_loss().backward())

    def backward() -> None:
        with ts.debug(make_loss(), batch="auto") as session:
            while not (batched(session) and any(entry.task.short_name == "Addmm" for entry in session.ready)):
                session.step()
            early = next(entry.task for entry in session.ready if entry.task.short_name == "Addmm")
            session.step(early)
            assert session.order[-1] == early.id
            session.run()
            reason, early_name = only_reason(session), unique_name(session.graph, early)
            says(reason, early_name, "AddmmBackward0")
            assert reason.count("AddmmBackward0") == 2

    assert_equal(gradients_of(leaves, backward), expected, bitwise=False)


@pytest.mark.parametrize("when", ["at once", "in the middle"])
@pytest.mark.parametrize("what", ["watchpoint", "history"])
def test_what_looks_at_single_tasks_gets_them_and_no_part_of_a_sum_is_lost(what, when, snapshot: Snapshots):
    leaves, make_loss = shared_linear()
    expected = gradients_of(leaves, lambda: make_loss().backward())

    def backward() -> None:
        with ts.debug(make_loss(), batch="auto", policy="dfs") as session:
            if when == "in the middle":
                ran = 0
                while ran < 3:
                    ran += session.step().short_name == "Addmm"
            if what == "watchpoint":
                session.watch("nan")
            else:
                session.keep_history()
            session.run()
            reason = only_reason(session)
            says(reason, "AddmmBackward0", *(["watchpoint 1 (nan)"] if what == "watchpoint" else []))
            if when == "at once":
                snapshot("debug", reason)
            if what == "history":
                session.back(len(session.order) if when == "at once" else 2)
                session.run()

    assert_equal(gradients_of(leaves, backward), expected, bitwise=False)


@pytest.mark.parametrize("name", ["ensemble", "linear50", "rnn"])
def test_memory_is_measured_as_the_allocator_says(name):
    model, make_loss = workload(name).build(**SMALL[name])

    def compute(step: Callable[[], None]) -> None:
        loss = make_loss()
        step()
        ts.backward(loss, engine="direct", batch="auto")
        step()

    model.zero_grad()
    _, levels = allocated_levels(compute)
    model.zero_grad()
    run = ts.profile(make_loss, engine="direct", batch="auto")
    assert run.timeline is not None
    assert batched(run)
    assert run.peak_bytes == levels.peak_bytes
    assert run.footprints is None
    model.zero_grad()
    alone = ts.profile(make_loss, engine="direct").timeline
    assert alone is not None
    assert run.timeline.start_bytes == alone.start_bytes
    assert run.timeline.end_bytes == alone.end_bytes
    says(repr(run.peak()), size_text(run.peak_bytes))


def test_factors_that_a_sum_waits_with_are_said_to_be_left_for_it(snapshot: Snapshots):
    _model, make_loss = workload("rnn").build(batch=3, width=16, steps=12)
    run = ts.profile(make_loss, engine="direct", batch="auto")
    assert run.timeline is not None
    (tree,) = [batch for batch in batched(run) if batch.kind == "tree"]
    left = [each for each in run.timeline if any(keeper.slot == IN_TREE for keeper in each.kept_by)]
    assert len(left) == 11
    assert {(keeper.kind, keeper.task) for each in left for keeper in each.kept_by[-1:]} == {("saved", tree.tasks[-1])}
    assert not any(keeper.kind == "user" for each in left for keeper in each.kept_by)
    numbers = {each.number for each in left}
    (kept,) = {record["kept_by"] for record in run.peak().records() if record["number"] in numbers}
    says(kept, "MmBackward0")
    says(run.peak(), kept)
    snapshot("peak", kept)


def test_an_edited_gradient_goes_into_the_group():
    leaves, make_loss = small_ensemble()
    grads = []
    for batch in (None, "auto"):

        def backward(batch: str | None = batch) -> None:
            with ts.debug(make_loss(), batch=batch, policy="bfs") as session:  # type: ignore[call-overload]
                while session.current is None or session.current.short_name != "Addmm":
                    session.step()
                session.scale(3)
                session.run()

        grads.append(gradients_of(leaves, backward))
    assert_equal(grads[1], grads[0], bitwise=False)


def test_another_policy_in_the_middle_keeps_the_groups():
    _leaves, make_loss = small_ensemble()
    with ts.debug(make_loss(), batch="auto", policy="bfs") as session:
        while not batched(session):
            session.step()
        session.policy = "dfs"
        session.run()
    assert [len(batch.tasks) for batch in batched(session)] == [5, 5]


def test_what_can_never_run_as_one_says_so(snapshot: Snapshots):
    leaves, make_loss = small_ensemble()
    loss = make_loss()
    with warnings.catch_warnings(action="ignore"):  # torch's, of the cycle
        run = ts.backward(loss, create_graph=True, engine="direct", batch="auto")
    for fallback in batched(run).fallbacks:
        says(fallback.why, "create_graph=True", "AddmmBackward0")
    for leaf in leaves:
        leaf.grad = None
    run = ts.backward(make_loss(), inputs=leaves[:2], engine="direct", batch="auto")
    says(batched(run).fallbacks[0].why, "inputs=")
    run = ts.backward(make_loss(), engine="direct", accumulate="list", batch="auto")
    says(batched(run).fallbacks[0].why, "(list)")
    with torch.autograd.set_detect_anomaly(True):
        run = ts.backward(make_loss(), engine="direct", batch="auto")
    snapshot("backward", batched(run).fallbacks[0].why)
    assert not any(len(batched(each)) for each in (run,))


def test_native_and_nonsense_are_refused_with_a_sentence(snapshot: Snapshots):
    leaves, make_loss = small_ensemble()
    with raises(NotImplementedError, "batch=", 'engine="direct"'):
        ts.profile(make_loss, batch="auto")
    for call in (ts.backward, ts.debug):
        with raises(NotImplementedError, "batch=", 'engine="direct"') as native:
            call(make_loss(), engine="native", batch="auto")
        with raises(ValueError, "batch='all'", '"auto"', "ts.types.GroupRules") as unknown:
            call(make_loss(), engine="direct", batch="all")
    snapshot("backward", native.value)
    snapshot("backward", unknown.value)
    assert all(leaf.grad is None for leaf in leaves)
    assert ts.backward(make_loss(), engine="direct").batches is None


def test_an_error_in_a_hook_ends_the_session_and_says_where():
    _leaves, make_loss = small_ensemble()
    loss = make_loss()

    def fail(gradient: Tensor) -> None:
        raise ValueError("no")

    node = next(each for each in ts.graph(loss).nodes if each.name() == "AddmmBackward0")
    session = ts.debug(loss, batch="auto")
    handle = node.register_prehook(lambda gradients: fail(gradients[0]))
    with pytest.raises(ValueError, match="no") as raised:
        session.run()
    handle.remove()
    assert "AddmmBackward0" in raised.value.__notes__[0]
    with pytest.raises(RuntimeError, match="ValueError"):
        session.step()


def test_many_small_tasks_take_the_quick_loop_around_the_groups():
    leaves, make_loss = small_ensemble(members=115)
    run = check(leaves, make_loss, trace=None)
    assert len(run.graph) > 1000
    assert [len(batch.tasks) for batch in batched(run)] == [115, 115]


def test_step_over_counts_all_that_ran_together():
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(5))
    x = torch.randn(2, 3)
    with ts.capture(model):
        loss = torch.stack([each(x) for each in model]).sum()
    with ts.debug(loss, batch="auto") as session:
        while len(session.together) == 1:
            session.step()
        assert session.step_over() is not None
        session.run()
        assert session.left == 0
