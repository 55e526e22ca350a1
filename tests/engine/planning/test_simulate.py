"""Predicted memory: against torch.profiler's own account of PyTorch's engine, and against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.execution.gradient_layouts import (
    TensorLayout,
    contiguous,
    copy_for,
    is_dense,
    layout_of,
    suits,
    sum_of,
)
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.estimates import direction_of
from tapescope.engine.memory.task_memory import Footprint, Footprints, LeafState, StartStorage, TaskOutput
from tapescope.engine.memory.timeline import Maker, Timeline
from tapescope.engine.planning.simulate import schedule, simulate
from tapescope.inspector.graph.graph import Edge, Graph, Root, Task, TensorMeta
from tapescope.inspector.graph.kinds import Kind
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import random_policy, random_program
from ..profiled import profiled

KILOBYTE = contiguous((16, 16), 4)
META = TensorMeta((16, 16), torch.float32, torch.device("cpu"))


def random_order(graph: ts.Graph, seed: int) -> list[int]:
    return schedule(graph, random_policy(seed))


def deltas(timeline: Timeline) -> list[list[int]]:
    """Return the bytes allocated and freed at each place."""
    found, starts = list(timeline.deltas), timeline.starts
    return [found[starts[place] : starts[place + 1]] for place in range(len(timeline.order))]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(0, 10_000), st.booleans())
def test_random_programs_in_random_orders_event_by_event(seed: int, order: int, accumulated: bool) -> None:
    alive = []

    def make_loss() -> Tensor:
        leaves, loss = random_program(seed)
        for leaf in leaves if accumulated else ():
            leaf.grad = torch.zeros_like(leaf)
        alive[:] = leaves
        return loss

    run = ts.profile(make_loss, "heap")
    assert run.footprints is not None
    expected = profiled(make_loss, lambda graph: random_order(graph, order))
    found = simulate(run.graph, expected.order, run.footprints)
    assert (found.start_bytes, found.end_bytes) == (expected.start, expected.end)
    if not found.estimates:
        assert deltas(found) == expected.tasks
        assert found.peak_bytes == expected.peak


def reused(uses: int, width: int, batch: int = 2) -> tuple[nn.Linear, Callable[[], Tensor]]:
    linear, x = nn.Linear(width, width, bias=False), torch.randn(batch, width)
    return linear, lambda: torch.stack([linear(x * number) for number in range(uses)]).sum()


@pytest.mark.parametrize("policy", ["bfs", "heap"])
def test_a_linear_used_many_times_holds_all_its_gradients_under_bfs(policy: str) -> None:
    uses, width, batch = 10, 64, 2
    linear, make_loss = reused(uses, width, batch)
    timeline = simulate(ts.graph(make_loss()), policy)
    weight, activation, loss = 4 * width * width, 4 * batch * width, 4
    # BFS runs all Mm before any T: each weight gradient waits. Under HEAP T's view keeps its base, so that the first
    # sum of two is made in a third block, and the later ones in place.
    gradients = uses + 1 if policy == "bfs" else 3
    start = uses * activation + loss + loss  # x * number is saved; the loss and its gradient
    assert timeline.start_bytes == start
    waiting = {"bfs": 0, "heap": uses - 2}[policy]  # activations whose Mm has not run at the peak
    assert timeline.peak_bytes == 2 * loss + waiting * activation + gradients * weight
    expected = profiled(make_loss, lambda graph: schedule(graph, policy))
    assert (timeline.peak_bytes, timeline.end_bytes) == (expected.peak, expected.end)
    assert timeline.end_bytes == weight + loss
    assert linear.weight.grad is not None


def test_a_storage_that_three_nodes_save_is_counted_once_and_dies_with_the_last() -> None:
    x = torch.randn(32, 32, requires_grad=True)

    def make_loss() -> Tensor:
        y = x.tanh()  # saved by tanh, and twice by the product
        return (y * y).sum()

    graph = ts.graph(make_loss())
    timeline = simulate(graph)
    (number,) = [number for number in range(len(timeline)) if len(timeline.saved.get(number, ())) == 3]
    storage = timeline.storage(number)
    tanh = next(task.id for task in graph.tasks if task.name == "TanhBackward0")
    assert (storage.nbytes, storage.died) == (4096, timeline.order.index(tanh))
    assert timeline.start_bytes == 4096 + 4 + 4 == profiled(make_loss, lambda graph: schedule(graph, "heap")).start


def test_retain_graph_keeps_what_is_saved() -> None:
    x = torch.randn(32, 32, requires_grad=True)

    def make_loss() -> Tensor:
        return x.tanh().exp().sum()

    expected = profiled(make_loss, lambda graph: schedule(graph, "heap"), retain_graph=True)
    x.grad = None
    graph = ts.graph(make_loss())
    kept, freed = simulate(graph, retain_graph=True), simulate(graph)
    assert (kept.start_bytes, kept.peak_bytes, kept.end_bytes) == (expected.start, expected.peak, expected.end)
    assert kept.end_bytes == freed.end_bytes + 2 * 4096
    assert deltas(kept) == expected.tasks


def test_what_the_user_holds_stays_and_becomes_a_forward_value_when_no_node_needs_it() -> None:
    x, kept = torch.randn(32, 32, requires_grad=True), []

    def make_loss() -> Tensor:
        kept[:] = [x.tanh()]
        return kept[0].sum()

    graph = ts.graph(make_loss())
    timeline = simulate(graph)
    (number,) = timeline.held & set(timeline.saved)
    assert timeline.storage(number).died is None
    assert timeline.category_at(number, 0) is Category.SAVED and timeline.category_at(number) is Category.FORWARD
    x.grad = None
    assert timeline.end_bytes == profiled(make_loss, lambda graph: schedule(graph, "heap")).end


def test_a_gradient_that_becomes_grad_is_not_copied_and_the_first_is_held_by_backward() -> None:
    x = torch.randn(32, 32, requires_grad=True)
    graph = ts.graph(x.exp().sum())
    timeline = simulate(graph)
    ((number, leaf),) = timeline.grads.items()
    assert graph.tasks[leaf].is_leaf
    storage = timeline.storage(number)
    assert graph.tasks[storage.made_by.task or 0].name == "ExpBackward0"
    assert (storage.category, timeline.category_at(number, 0)) == (Category.GRADIENT, Category.BUFFER)
    assert [keeper.kind for keeper in storage.kept_by] == ["buffer", "grad"]
    root = timeline.before - 1
    assert timeline.storage(root).died == len(graph)
    assert [keeper.kind for keeper in timeline.keepers(root)][-1] == "backward"
    assert timeline.inputs[0] == root


# Graphs created by hand, of tasks that torch does not know.


def tasks_of(*nexts: Sequence[int | None], leaves: int = 0) -> Graph:
    """A graph of these tasks, the last of which is the root; for each output the id of the task that gets it."""
    count = len(nexts)
    tasks = tuple(
        Task(
            number, *(("AccumulateGrad", Kind.ACCUMULATE_GRAD) if number < leaves else ("F", Kind.CPP)), number, (META,)
        )
        for number in range(count)
    )
    edges = tuple(
        Edge(number, output, to, 0)
        for number, each in enumerate(nexts)
        for output, to in enumerate(each)
        if to is not None
    )
    return Graph(tasks, edges, (Root(count - 1, 0),))


def block(number: int = 0, *, view: bool = False, held: bool = False, layout: TensorLayout = KILOBYTE) -> TaskOutput:
    return TaskOutput("block", number, layout, keeps_base=view, held=held)


def from_input(origin: str = "input", *, view: bool = False, layout: TensorLayout = KILOBYTE) -> TaskOutput:
    return TaskOutput(origin, 0, layout, keeps_base=view)  # type: ignore[arg-type]


def does(*outputs: TaskOutput | None, blocks: int | None = None, **rest: object) -> Footprint:
    """A task that makes so many blocks of 1 KiB and gives these outputs."""
    count = sum(output is not None and output.origin == "block" for output in outputs) if blocks is None else blocks
    given: dict[str, object] = {"inputs": (KILOBYTE,), **rest}
    return Footprint(tuple(range(count)), (1024,) * count, outputs, **given)  # type: ignore[arg-type]


def footprints(graph: Graph, *tasks: Footprint | None, has_grad: bool = False, **rest: object) -> Footprints:
    leaves = {task.id: LeafState(KILOBYTE, has_grad) for task in graph.tasks if task.is_leaf}
    return Footprints(
        graph, "cpu", "calibrated", tasks, **{"start": (), "leaves": leaves, "roots": (KILOBYTE,), **rest}
    )  # type: ignore[arg-type]


def kilobytes(timeline: Timeline) -> list[list[int]]:
    return [[change // 1024 for change in changes] for changes in deltas(timeline)]


def test_a_sum_is_made_in_place_where_nothing_else_holds_the_first_term() -> None:
    graph = tasks_of([], [0], [0], [1, 2], leaves=1)
    own = simulate(graph, (3, 2, 1, 0), footprints(graph, None, does(block()), does(block()), does(block(0), block(1))))
    # The second term lives until its task has ended.
    assert kilobytes(own) == [[1, 1], [1, -1], [1, -1, -1], []]
    assert own.start_bytes == 1024  # the root's gradient, which backward() holds
    assert own.end_bytes == 1024


def test_a_view_keeps_its_base_so_that_the_first_sum_is_a_new_block() -> None:
    graph = tasks_of([], [0], [0], [1, 2], leaves=1)
    views = does(block(0, view=True))
    found = simulate(graph, (3, 2, 1, 0), footprints(graph, None, views, views, does(block(0), block(1))))
    assert kilobytes(found) == [[1, 1], [1, -1], [1, -1, 1, -1, -1], []]


def test_one_tensor_for_two_tasks_is_not_summed_into() -> None:
    graph = tasks_of([], [0], [0], [1, 2], leaves=1)
    passes = does(from_input())
    twice = does(block(), TaskOutput("output", 0, KILOBYTE, keeps_base=False))
    found = simulate(graph, (3, 2, 1, 0), footprints(graph, None, passes, passes, twice))
    assert kilobytes(found) == [[1], [], [1, -1], []]
    assert list(found.inputs) == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("given", "has_grad", "expected"),
    [
        (KILOBYTE, False, []),  # becomes .grad itself
        (KILOBYTE, True, [-1]),  # is added to it
        (replace(KILOBYTE, strides=(1, 16)), False, [1, -1]),  # is copied into the leaf's layout
        (replace(KILOBYTE, strides=(0, 0), dense=False), False, [1, -1]),
    ],
)
def test_what_becomes_grad(given: TensorLayout, has_grad: bool, expected: list[int]) -> None:
    graph = tasks_of([], [0], leaves=1)
    found = simulate(graph, (1, 0), footprints(graph, None, does(block(layout=given)), has_grad=has_grad))
    assert kilobytes(found)[1] == expected
    assert bool(found.grads) is not has_grad


def test_a_gradient_which_a_hook_holds_is_copied_and_stays() -> None:
    graph = tasks_of([], [0], leaves=1)
    found = simulate(graph, (1, 0), footprints(graph, None, does(block(held=True))))
    assert kilobytes(found) == [[1], [1]]
    assert found.held == {1} and found.category_at(1) is Category.HELD and found.grads == {2: 0}
    by_input = footprints(graph, does(held_inputs=(0,)), does(block()))
    assert kilobytes(simulate(graph, (1, 0), by_input)) == [[1], [1]]


def test_blocks_that_are_kept_until_another_task_has_run(snapshot: Snapshots) -> None:
    graph = tasks_of([None], [None], [0, 1])
    keeps = does(None, blocks=1, kept=((0, 0),))
    found = footprints(graph, does(None), keeps, does(block(0), block(1)))
    in_time, late = simulate(graph, (2, 1, 0), found), simulate(graph, (2, 0, 1), found)
    assert kilobytes(in_time) == [[1, 1], [1, -1], [-1, -1]]
    assert Category(in_time.born_as[3]) is Category.SAVED
    assert not in_time.estimates
    assert kilobytes(late) == [[1, 1], [-1], [1, -1, -1]]
    (estimate,) = late.estimates
    says(estimate, 1, "F")
    assert late.direction == "at least"
    snapshot("simulate", estimate)
    forever = footprints(graph, does(None), replace(keeps, kept=((0, -1),)), does(block(0), block(1)))
    assert kilobytes(simulate(graph, (2, 1, 0), forever)) == [[1, 1], [1, -1], [-1]]


def test_other_layouts_than_were_seen_make_an_estimate(snapshot: Snapshots) -> None:
    graph = tasks_of([None], [0])
    other = replace(KILOBYTE, strides=(1, 16))
    found = simulate(graph, (1, 0), footprints(graph, does(None, inputs=(other,)), does(block())))
    (estimate,) = found.estimates
    says(estimate, 1, "F")
    assert found.direction == "unknown"
    snapshot("simulate", estimate)
    row = contiguous((1, 256), 4)  # a stride in a dimension of size 1 is nothing
    seen = does(None, inputs=(replace(row, strides=(7, 1)),))
    assert not simulate(graph, (1, 0), footprints(graph, seen, does(block(layout=row)))).estimates


def test_what_is_not_known_of_makes_an_estimate(snapshot: Snapshots) -> None:
    graph = tasks_of([None], [0])
    for tasks in ((does(None), does(None)), (does(None), None)):
        found = simulate(graph, (1, 0), footprints(graph, *tasks, limits=("a sentence",)))
        assert found.estimates[0] == "a sentence"
        says(found.estimates[1], 1)
    snapshot("simulate", found.estimates[1])


def test_what_is_no_graph_no_footprints_or_no_order_is_told_what_to_pass() -> None:
    x = torch.randn(4, requires_grad=True)
    loss = x.exp().sum()
    graph = ts.graph(loss)
    with raises(TypeError, "Tensor", "ts.simulate(ts.graph(loss))"):
        simulate(loss)  # type: ignore[arg-type]
    run = ts.backward(x.exp().sum())
    with raises(TypeError, "Run", ".graph"):
        simulate(run)  # type: ignore[arg-type]
    with raises(TypeError, "ts.profile(...).footprints", "Run"):
        simulate(graph, "heap", run)  # type: ignore[arg-type]
    with raises(TypeError, "float"):
        simulate(graph, [1.5])  # type: ignore[list-item]
    assert simulate(graph, list(torch.tensor(simulate(graph).order))).order == simulate(graph).order


def test_an_estimate_states_the_share_of_workspace() -> None:
    run = ts.profile(lambda: nn.Conv3d(4, 4, 3)(torch.ones(1, 4, 8, 8, 8, requires_grad=True)).sum())
    assert run.footprints is not None
    exact = simulate(run.graph, run.order, run.footprints)
    assert not exact.estimates and exact.workspace_share > 0.5
    flagged = simulate(run.graph, run.order, replace(run.footprints, limits=("a sentence",)))
    given, share = flagged.estimates
    assert given == "a sentence"
    says(share, f"{exact.workspace_share:.1%}")


def test_another_device_counts_nothing() -> None:
    graph = tasks_of([], [0], leaves=1)
    far = replace(
        footprints(graph, None, does(TaskOutput("outside", -1, KILOBYTE, False))), device="meta", roots=(None,)
    )
    assert len(simulate(graph, (1, 0), far)) == 0


def test_what_inputs_leaves_out_is_not_run(snapshot: Snapshots) -> None:
    x, y = torch.randn(32, 32, requires_grad=True), torch.randn(32, 32, requires_grad=True)
    graph = ts.graph((x.exp() * y.tanh()).sum())
    order = ts.backward((x.exp() * y.tanh()).sum(), inputs=[x]).order
    x.grad = None
    found = simulate(graph, order)
    assert len(found.order) == len(graph) - 2 and set(found.grads.values()) == {order[-1]}
    says(found.estimates[-1], 1)
    assert direction_of(found.estimates[-1:]) == "at most"
    snapshot("simulate", found.estimates[-1])
    assert found.end_bytes == 4096 + 4 + 4096  # .grad, the loss, and what TanhBackward0 keeps


def test_an_order_that_is_not_legal_is_refused(snapshot: Snapshots) -> None:
    graph = tasks_of([], [0], [1], leaves=1)
    found = footprints(graph, None, does(block()), does(block()))
    cases: list[tuple[tuple[int, ...], tuple[object, ...]]] = [
        ((2, 0, 1), ("AccumulateGrad", "2nd", "F", "3rd")),
        ((2, 0), ("AccumulateGrad", "2nd", "F")),
        ((2, 1, 1, 0), ("F", "2nd", "3rd")),
        ((2, 1, 3), (3, 0, 2)),
    ]
    for order, facts in cases:
        with raises(ValueError, *facts) as raised:
            simulate(graph, order, found)
        snapshot("simulate", raised.value)
    dynamic = ts.Policy("late", "", lambda task, arrival: (0,), dynamic=True)
    with raises(ValueError, "late") as raised:
        simulate(graph, dynamic, found)
    snapshot("simulate", raised.value)


def test_footprints_of_another_graph_are_refused_and_those_of_the_same_forward_run_again_are_not(
    snapshot: Snapshots,
) -> None:
    graph = tasks_of([], [0], [1], leaves=1)
    found = footprints(graph, None, does(block()), does(block()))
    assert kilobytes(simulate(replace(graph, calls=()), (2, 1, 0), found)) == kilobytes(simulate(graph, "heap", found))
    smaller = replace(graph.tasks[1], inputs=(TensorMeta((1,), torch.float32, torch.device("cpu")),))
    cases: list[tuple[ts.Graph, tuple[object, ...]]] = [
        (tasks_of([], [0]), (3, 2)),
        (tasks_of([], [0], [0], leaves=1), ()),
        (replace(graph, tasks=(graph.tasks[0], smaller, graph.tasks[2])), ("F",)),
    ]
    for other, facts in cases:
        with raises(ValueError, *facts) as raised:
            simulate(other, "heap", found)
        snapshot("simulate", raised.value)


def test_simulations_with_the_same_footprints_do_not_disturb_each_other() -> None:
    graph = tasks_of([None], [None], [0, 1])
    keeps = does(None, blocks=1, kept=((0, 0),))
    found = footprints(
        graph,
        does(None),
        keeps,
        does(block(0), block(1)),
        start=(StartStorage(1024, ((0, "self"),), False, Maker(None, None, None)),),
    )
    first = kilobytes(simulate(graph, (2, 1, 0), found))
    assert first == [[1, 1], [1, -1], [-1, -1, -1]]
    assert kilobytes(simulate(graph, (2, 1, 0), found, retain_graph=True)) == [[1, 1], [1, -1], [-1, -1]]
    assert kilobytes(simulate(graph, (2, 0, 1), found)) == [[1, 1], [-1, -1], [1, -1, -1]]
    assert kilobytes(simulate(graph, (2, 1, 0), found)) == first
    assert kilobytes(simulate(replace(graph), (2, 1, 0), found)) == first, "not taken from the cache"


def test_a_policy_and_its_order_are_the_same() -> None:
    _, make_loss = reused(5, 8)
    graph = ts.graph(make_loss())
    found = dry_run(graph)
    for policy in ("bfs", "dfs", lambda ready, state: ready[-1]):
        named, listed = simulate(graph, policy, found), simulate(graph, schedule(graph, policy), found)
        assert (named.events, named.order) == (listed.events, listed.order)


@given(st.data())
def test_layouts_of_sums_and_copies_are_torchs(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))

    def draw() -> Tensor:
        order = data.draw(st.permutations(range(len(shape))))
        full = torch.zeros([shape[dimension] for dimension in order])
        tensor = full.permute([order.index(dimension) for dimension in range(len(shape))])
        expanded = data.draw(st.integers(0, len(shape)))
        return tensor if expanded == len(shape) else tensor.narrow(expanded, 0, 1).expand(shape)

    one, other = draw(), draw()
    assert significant(sum_of(layout_of(one), layout_of(other))) == significant(layout_of(one + other))
    leaf = draw().requires_grad_()
    root = (leaf * 1).sum()
    root.backward()
    assert leaf.grad is not None
    gradient = one.clone(memory_format=torch.preserve_format)
    assert suits(layout_of(gradient), layout_of(leaf)) is stolen(leaf, gradient)
    assert significant(copy_for(layout_of(one), layout_of(leaf))) == significant(layout_of(copied(leaf, one)))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 0), (3, 1)), ((), ()), ((2, 3), (1, 2)), ((2, 3), (3, 2)), ((4,), (0,)), ((1, 4), (7, 1)), ((1,), (0,))]
    + [((2, 3, 4), (4, 8, 1)), ((2, 3, 4), (12, 4, 2)), ((2, 2), (1, 1)), ((2, 2), (2, 2)), ((1, 1), (5, 9))],
)
def test_what_is_dense_is_torchs_own(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    tensor = torch.empty_strided(shape, strides)
    keeps_its_strides = torch.empty_like(tensor).stride() == strides  # what a dense tensor's likes do
    assert is_dense(shape, strides) is (keeps_its_strides or not tensor.numel())


def significant(layout: TensorLayout) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(layout.shape, layout.strides, strict=True) if size != 1]


class _Gives(torch.autograd.Function):
    """Gives a tensor made on the spot as gradient, which nobody else holds."""

    @staticmethod
    def forward(ctx, x, make):  # type: ignore[no-untyped-def]
        ctx.make = make
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return ctx.make(), None


def stolen(leaf: Tensor, like: Tensor) -> bool:
    leaf.grad, made = None, []

    def make() -> Tensor:
        tensor = torch.empty_strided(like.shape, like.stride())
        made.append(tensor.data_ptr())
        return tensor

    _Gives.apply(leaf, make).backward()
    assert leaf.grad is not None
    return leaf.grad.data_ptr() == made[0]


def copied(leaf: Tensor, gradient: Tensor) -> Tensor:
    leaf.grad = None
    _Gives.apply(leaf, lambda: gradient).backward()
    assert leaf.grad is not None and leaf.grad is not gradient
    return leaf.grad


def chain(count: int) -> tuple[Graph, Footprints]:
    graph = tasks_of([None], *([number] for number in range(count - 1)))
    saved = tuple(StartStorage(1024, ((number, "self"),), False, Maker(None, None, None)) for number in range(count))
    tasks = (does(block()),) * count
    return graph, footprints(graph, *tasks, start=saved)


def test_a_large_graph() -> None:
    graph, found = chain(50_000)
    timeline = simulate(graph, range(len(graph) - 1, -1, -1), found)
    assert timeline.peak_bytes == (len(graph) + 2) * 1024
    assert timeline.end_bytes == 0
    assert kilobytes(timeline)[1:-1] == [[1, -1, -1]] * (len(graph) - 2)


@pytest.mark.parametrize("policy", sorted({*ts.orders.POLICIES} - {"comm_first"}))
def test_any_policy_is_simulated_from_a_run_whose_nodes_are_freed(policy: str) -> None:
    def make_loss() -> Tensor:
        torch.manual_seed(0)
        x = torch.randn(16, 16, requires_grad=True)
        return ((x.exp() @ x).tanh() * x.sin()).sum() + (x.cos() * x).sum()

    run = ts.profile(make_loss)
    found = ts.simulate(run.graph, policy, run.footprints)
    fresh = ts.graph(make_loss())
    again = ts.simulate(fresh, policy, run.footprints)
    assert found.order == again.order and found.peak_bytes == again.peak_bytes
