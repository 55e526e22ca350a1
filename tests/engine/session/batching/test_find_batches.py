from __future__ import annotations

import doctest
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.session.batching import product_groups as groups_module
from tapescope.engine.session.batching.product_groups import Group
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, raises, says


def captured(name: str, **knobs: int) -> ts.types.Groups:
    model, make_loss = workload(name).build(**knobs)
    with ts.capture(model):
        loss = make_loss()
    return ts.find_batches(loss)


def weight(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def reachable(graph: ts.Graph) -> list[set[int]]:
    """Return all tasks that wait for each task, by brute force; ids do not follow the edges."""
    found: list[set[int]] = [set() for _ in graph.tasks]
    changed = True
    while changed:
        changed = False
        for edge in graph.edges:
            more = found[edge.next_task] | {edge.next_task}
            if not more <= found[edge.task]:
                found[edge.task] |= more
                changed = True
    return found


def contracted_edges(graph: ts.Graph, found: Sequence[Group]) -> dict[object, set[object]]:
    """The graph with one vertex for each group: a tree's stands between its members and the task that sums."""
    place: dict[int, object] = {task.id: task.id for task in graph.tasks}
    nexts: dict[object, set[object]] = {}
    trees = [group for group in found if group.kind == "tree"]
    for number, group in enumerate(found):
        if group.kind != "tree":
            place.update(dict.fromkeys(group.tasks, ("stack", number)))
    for edge in graph.edges:
        nexts.setdefault(place[edge.task], set()).add(place[edge.next_task])
    for number, group in enumerate(trees):
        assert group.into is not None
        for task in group.tasks:
            (first,) = (edge for edge in graph.out_edges[task] if edge.output == group.outputs[0])
            nexts.setdefault(place[task], set()).add(("tree", number))
            # The product is handed on where the member's would have been.
            nexts.setdefault(("tree", number), set()).add(place[first.next_task])
    return nexts


def assert_acyclic(nexts: dict[object, set[object]]) -> None:
    waits: dict[object, int] = dict.fromkeys(nexts, 0) | {v: 0 for each in nexts.values() for v in each}
    for each in nexts.values():
        for vertex in each:
            waits[vertex] += 1
    free = [vertex for vertex, count in waits.items() if not count]
    ran = 0
    while free:
        ran += 1
        for vertex in nexts.get(free.pop(), ()):
            waits[vertex] -= 1
            if not waits[vertex]:
                free.append(vertex)
    assert ran == len(waits)


def random_loss(seed: int) -> Tensor:
    """Products of few shapes, of leaves that are used again and again, added and applied in any order."""
    drawn = random.Random(seed)
    leaves = [weight(3, 3) for _ in range(3)] + [weight(3, 2), weight(2, 3)]
    made = [torch.randn(3, 3) @ leaf for leaf in leaves[:2]]
    for _ in range(drawn.randint(4, 24)):
        left = drawn.choice([*made, *leaves])
        fitting = [each for each in [*made, *leaves] if each.shape[0] == left.shape[1]]
        operation = drawn.randrange(4)
        if operation == 0:
            made.append(left.relu())
        elif operation == 1:
            made.append(left + drawn.choice([each for each in [*made, *leaves] if each.shape == left.shape]))
        else:
            made.append(left @ (drawn.choice(fitting) if operation == 2 else drawn.choice(fitting).t().t()))
    return torch.stack([each.sum() for each in made]).sum()


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_groups_are_independent_and_all_of_them_joined_leave_no_cycle(seed: int, least: int) -> None:
    with ts.capture():
        loss = random_loss(seed)
    found = ts.find_batches(loss, ts.types.GroupRules(min_fusion_size=least, how_many_is_many=2))
    below = reachable(found.graph)
    for group in found:
        assert len(group) >= least
        if group.kind != "tree":
            assert not any(below[task].intersection(group.tasks) for task in group.tasks)
    for direction in (found.backward, found.forward):
        assert_acyclic(contracted_edges(found.graph, direction))
        made = [(task, output) for group in direction for task in group.tasks for output in group.outputs or (None,)]
        assert len(made) == len(set(made))  # nothing is made twice


def test_an_ensemble_of_16_members_and_4_layers_is_4_groups_of_16() -> None:
    found = captured("ensemble", members=16, batch=4, width=8)
    assert [len(group) for group in found.backward] == [16] * 4
    assert [len(group) for group in found.forward] == [16] * 4
    assert {group.kind for group in found} == {"bmm"}
    assert [found.where(group) for group in found.backward] == [f"members.*.{layer}" for layer in (6, 4, 2, 0)]
    # All members see one input, whose product with all gradients is one wide mm; it gets no gradient itself.
    assert [group.shared for group in found.backward] == [(), (), (), ("left",)]
    assert [group.outputs for group in found.backward] == [(1, 2)] * 3 + [(2,)]
    assert not found.refused


def test_losses_added_up_in_a_loop_are_on_different_levels_and_still_together() -> None:
    x, total = torch.randn(4, 3), torch.zeros(())
    for _ in range(6):
        total = total + (x @ weight(3, 5)).relu().mm(weight(5, 2)).sum()
    found = ts.find_batches(total)
    assert [len(group) for group in found.backward] == [6, 6]
    assert all(first < last for first, last in (group.levels for group in found.backward))


def test_a_linear_used_50_times_is_one_tree_of_50_products_and_49_sums(snapshot: Snapshots) -> None:
    found = captured("linear50")
    (tree,) = found.backward
    assert (tree.kind, len(tree), tree.outputs) == ("tree", 50, (2,))
    assert tree.launches_before == 50 + 49
    assert tree.into is not None
    assert found.graph.tasks[tree.into[0]].parameter == "linear.weight"
    says(tree.label, "50 × addmm", "mm")
    snapshot("find_batches", tree.label)
    gradients = 50 * 8 * 512 * 4
    assert tree.shared == ("left",)  # each use has the same input, which is not copied
    assert (tree.stacked_bytes, tree.held_bytes) == (gradients, gradients + 8 * 512 * 4)


def test_a_tree_is_what_its_members_sum_to() -> None:
    x, steps = torch.randn(3, 4), 6
    cell = nn.Linear(4, 4, bias=False)
    state, kept = x, []
    for _ in range(steps):
        kept.append(state)
        state = cell(state).tanh()
    found = ts.find_batches(state.sum())
    (tree,) = [group for group in found if group.kind == "tree"]
    assert len(tree) == steps
    assert tree.levels[0] < tree.levels[1]
    # The shapes of the factors that it reports suffice to compute their sum.
    gradients: list[Tensor] = []
    states = list(kept)
    result = states[-1] @ cell.weight.t()
    gradient = 1 - result.tanh() ** 2
    for each in reversed(states):
        gradients.append(gradient)
        gradient = (gradient @ cell.weight) * (1 - each**2)
    made = torch.cat(gradients).mT @ torch.cat(states[::-1])
    state.sum().backward()
    torch.testing.assert_close(cell.weight.grad, made)


def test_a_weight_transposed_once_is_summed_before_it_is_transposed_back() -> None:
    turned, x = weight(5, 3).t(), torch.randn(2, 3, requires_grad=True)
    found = ts.find_batches(sum(((x * n) @ turned).relu().sum() for n in range(1, 6)))
    (tree,) = [group for group in found if group.kind == "tree"]
    assert tree.into is not None
    assert found.graph.tasks[tree.into[0]].short_name == "T"
    # The other halves make a stack, and share the weight, which is not copied.
    (stack,) = [group for group in found.backward if group.kind == "bmm"]
    assert (stack.tasks, stack.outputs, tree.outputs, stack.shared) == (tree.tasks, (0,), (1,), ("right",))


def test_a_tree_takes_unequal_rows() -> None:
    linear = nn.Linear(4, 4, bias=False)
    found = ts.find_batches([linear(torch.randn(rows, 4)).relu().sum() for rows in (1, 2, 3, 5)])
    (tree,) = found.backward
    assert (tree.kind, len(tree), tree.stacked_bytes) == ("tree", 4, 2 * (1 + 2 + 3 + 5) * 4 * 4)


def test_a_parameter_used_as_left_and_right_factor_is_two_sums() -> None:
    square = weight(3, 3)
    terms = [torch.randn(3, 3) @ square for _ in range(4)] + [square @ torch.randn(3, 3) for _ in range(4)]
    trees = [group for group in ts.find_batches(torch.stack(terms).sum()).backward if group.kind == "tree"]
    assert sorted((len(tree), tree.outputs) for tree in trees) == [(4, (0,)), (4, (1,))]


def test_convolutions_of_one_shape_are_one_with_groups() -> None:
    kernels = [weight(5, 2, 3, 3) for _ in range(4)]
    image = torch.randn(1, 2, 8, 8)
    found = ts.find_batches(torch.stack([torch.conv2d(image, kernel, padding=1).sum() for kernel in kernels]).sum())
    (group,) = found.backward
    assert (group.kind, len(group), group.outputs) == ("grouped_conv", 4, (1,))
    other = torch.stack([torch.conv2d(image, kernel, padding=n // 2).sum() for n, kernel in enumerate(kernels)])
    assert not ts.find_batches(other.sum()).backward  # two with one padding, two with another


def test_those_which_share_a_factor_leave_the_others_alone() -> None:
    x = torch.randn(4, 3)
    with ts.capture():
        parts = [x @ weight(3, 3) for _ in range(8)] + [torch.randn(4, 3) @ weight(3, 3) for _ in range(4)]
        loss = torch.stack(parts).sum()
    found = ts.find_batches(loss)
    assert [(len(group), group.shared) for group in found.backward] == [(8, ("left",)), (4, ())]
    assert [(len(group), group.shared) for group in found.forward] == [(8, ("left",)), (4, ())]
    found = ts.find_batches(loss, ts.types.GroupRules(how_many_is_many=9))
    assert [(len(group), group.shared) for group in found.backward] == [(12, ())]
    assert [(len(group), group.shared) for group in found.forward] == [(12, ())]


def test_a_factor_that_few_share_is_stacked_in_the_forward_alone() -> None:
    x = torch.randn(4, 3)
    with ts.capture():
        loss = torch.stack([x @ weight(3, 3) for _ in range(4)]).exp().sum()
    found = ts.find_batches(loss)
    assert [(len(group), group.shared) for group in found.backward] == [(4, ("left",))]
    assert [(len(group), group.shared) for group in found.forward] == [(4, ())]


def test_the_same_product_again_and_again_is_said_to_be_that(snapshot: Snapshots) -> None:
    (group,) = captured("linear50", uses=9, width=16).forward
    assert (group.shared, group.launches_after, group.stacked_bytes) == (("left", "right"), 1, 0)
    says(group.label, 9, "addmm")
    snapshot("find_batches", group.label)


def test_an_unrolled_cell_has_one_wide_product_of_all_its_inputs() -> None:
    found = captured("lstm_cell", steps=12, width=8)
    trees = [group for group in found.backward if group.kind == "tree"]
    assert {found.where(tree) for tree in trees} == {"cell.weight_ih", "cell.weight_hh"}
    (wide,) = found.forward  # steps depend on each other, what they get of their inputs does not
    assert (len(wide), wide.shared) == (12, ("right",))


def stacked(make: Callable[[int], Tensor], count: int = 4) -> Tensor:
    return torch.stack([make(number).sum() for number in range(count)]).sum()


def modified(number: int) -> Tensor:
    hidden = weight(2, 3) * 1
    made = hidden @ weight(3, 2)
    hidden.detach().zero_()
    return made


def packed(number: int) -> Tensor:
    factor = weight(3, 2)
    return checkpoint(lambda x: x @ factor, weight(2, 3), use_reentrant=False)  # type: ignore[no-any-return]


REFUSED: dict[str, tuple[Callable[[], Tensor], tuple[object, ...]]] = {
    "rows": (
        lambda: stacked(lambda n: torch.randn(7 * n + 1, 3) @ weight(3, 2)),
        ("rows", 1, 8, 15, 22, "torch.nn.functional.grouped_mm"),
    ),
    "inner": (
        lambda: stacked(lambda n: torch.randn(2, 3 + n % 2) @ weight(3 + n % 2, 2)),
        ("inner sizes", 3, 4, "torch.nn.functional.grouped_mm"),
    ),
    "columns": (
        lambda: stacked(lambda n: torch.randn(2, 3) @ weight(3, 4 + n)),
        ("columns", 4, 5, 6, 7, "torch.nn.functional.grouped_mm"),
    ),
    "shapes": (
        lambda: stacked(lambda n: torch.randn(2, 3 + n) @ weight(3 + n, 4 + n)),
        ("mm 2×3 @ 3×4", "mm 2×4 @ 4×5", "inner sizes", "columns", "torch.nn.functional.grouped_mm"),
    ),
    "double": (
        lambda: stacked(lambda n: torch.randn(7 * n + 1, 3).double() @ weight(3, 2).double()),
        ("mm 1×3 @ 3×2", "mm 8×3 @ 3×2"),
    ),
    "no gain": (
        lambda: stacked(lambda n: torch.nn.functional.linear(torch.randn(2, 3), weight(3, 3)), 3),
        ("3 launches become 3", "144 B"),
    ),
    "few": (
        lambda: stacked(lambda n: torch.randn(2, 3) @ weight(3, 2), 3),
        ("only 3 are mm 2×3 @ 3×2", "min_fusion_size is 4"),
    ),
    "large": (
        lambda: stacked(lambda n: weight(1, 2048) @ weight(2048, 1025)),
        ("mm 1×2048 @ 2048×1025", "2,099,200", "largest_side_numel (2,097,152)"),
    ),
    "modified": (
        lambda: stacked(modified),
        ('"self"', "mm"),
    ),
    "packed": (
        lambda: stacked(packed),
        ('"self"', "mm", "saved_tensors_hooks"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_joined_is_said_with_the_reason(name: str, snapshot: Snapshots) -> None:
    make, facts = REFUSED[name]
    found = ts.find_batches(make(), ts.types.GroupRules(min_fusion_size=3) if name == "no gain" else None)
    assert not found.backward
    (refused,) = found.refused
    says(refused.why, *facts)
    (said,) = [sentence for sentence in found.sentences if refused.why in sentence]
    says(said, f"{len(refused.tasks)} × mm")
    snapshot("find_batches", said)
    assert len(refused.tasks) == len(found.products)


def test_grouped_mm_runs_products_of_which_one_size_differs() -> None:
    sizes, grouped_mm = (16, 32, 64, 8), torch.nn.functional.grouped_mm
    ends = torch.tensor(sizes).cumsum(0, dtype=torch.int32)
    for rows, inner, columns in ((sizes, 8, 12), (4, sizes, 12), (4, 8, sizes)):
        shapes = zip(
            *(each if isinstance(each, tuple) else (each,) * 4 for each in (rows, inner, columns)), strict=True
        )
        pairs = [(torch.randn(m, k, requires_grad=True), weight(k, n)) for m, k, n in shapes]
        products = [left @ right for left, right in pairs]
        (refused,) = ts.find_batches(torch.stack([each.sum() for each in products]).sum()).refused
        says(refused.why, 16, 32, 64, 8, "torch.nn.functional.grouped_mm")
        left, right = zip(*pairs, strict=True)
        made = grouped_mm(
            torch.cat(left, 1) if inner is sizes else torch.cat(left) if rows is sizes else torch.stack(left),
            torch.cat(right) if inner is sizes else torch.cat(right, 1) if columns is sizes else torch.stack(right),
            offs=ends,
        )
        one_by_one = torch.stack(products) if inner is sizes else torch.cat(products, 1 if columns is sizes else 0)
        assert torch.allclose(made, one_by_one, atol=1e-4)


def test_four_members_with_inputs_of_their_own_are_not_joined_in_the_forward() -> None:
    members = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)) for _ in range(4)]
    with ts.capture():
        loss = torch.stack([member(torch.randn(2, 8)) for member in members]).sum()
    found = ts.find_batches(loss)
    assert found.backward and not found.forward
    (refused,) = [each for each in found.refused if each.direction == "forward"]
    assert len(refused.tasks) == 8
    says(refused.why, "8 launches become 8", "copies")


def test_what_is_refused_in_modules_is_said_to_be_there() -> None:
    found = captured("mixture_of_experts")
    assert not found.found
    assert {found.refused_title(refused) for refused in found.refused} == {"16 × addmm in experts.each.*.*"}
    assert len([sentence for sentence in found.sentences if "experts.each.*.*" in sentence]) == 1


def test_products_that_lie_by_themselves_are_said_to(snapshot: Snapshots) -> None:
    loss = (torch.randn(2, 3) @ weight(3, 4) @ weight(4, 5)).sum()
    found = ts.find_batches(loss)
    assert not found.found and not found.refused and len(found.products) == 2
    says(found.sentences[0], 2)
    snapshot("find_batches", found.sentences[0])


def test_a_threshold_that_is_changed_joins_what_was_refused(snapshot: Snapshots) -> None:
    loss = stacked(lambda n: weight(2, 3) @ weight(3, 2), 3)
    assert len(ts.find_batches(loss, ts.types.GroupRules(min_fusion_size=3)).backward) == 1
    with raises(TypeError, "rules", "ts.types.GroupRules", 4) as no_rules:
        ts.find_batches(torch.ones(2, requires_grad=True).sum(), rules=4)  # type: ignore[arg-type]
    with raises(ValueError, "min_fusion_size", 1, 2) as too_few:
        ts.types.GroupRules(min_fusion_size=1)
    snapshot("find_batches", no_rules.value)
    snapshot("find_batches", too_few.value)


def test_a_sum_is_one_product_where_torchscript_found_it_fast(snapshot: Snapshots) -> None:
    rules = ts.types.GroupRules()
    assert rules.fast_for_reduce(300, 511, 100)
    assert not rules.fast_for_reduce(300, 512, 100)
    assert rules.fast_for_reduce(255, 512, 255)
    assert rules.fast_for_reduce(257, 512, 257)
    linear = nn.Linear(8, 300, bias=False)
    found = ts.find_batches(stacked(lambda n: linear(torch.randn(600, 8))))
    assert [group.kind for group in found.backward] == ["bmm"]  # not summed in one, they can still be stacked
    says(found.refused[0].why, "8×600 @ 600×300")
    snapshot("find_batches", found.refused[0].why)


def test_without_a_capture_the_forward_is_not_known() -> None:
    found = ts.find_batches(stacked(lambda n: torch.randn(2, 3) @ weight(3, 2)))
    assert not found.forward
    says(repr(found), "ts.capture()")


def test_a_group_of_each_task_is_found_and_written_down() -> None:
    found = captured("ensemble", members=4, batch=4, width=8)
    group = found[0]
    assert found.of(group.tasks[2])[0] is group
    assert found.of(found.graph.roots[0].task) == ()
    record = found.records()[0]
    assert (record["members"], record["where"], record["tasks"]) == (4, "members.*.6", group.tasks)
    assert (record["launches_before"], record["launches_after"]) == (4 * (2 + 1), 2 + 1 + 3)  # the sums of biases, too
    says(repr(found), "4 × addmm")
    assert found.cells[1][1] == group.label
    says(group.label, "4 × addmm", "bmm")
    assert "<table" in found._repr_html_()
    assert not found.graph.nodes


def test_a_graph_from_a_file_is_refused_with_a_sentence(snapshot: Snapshots) -> None:
    loss = stacked(lambda n: torch.randn(2, 3) @ weight(3, 2))
    graph = ts.find_batches(loss).graph
    with raises(ValueError) as raised:
        ts.find_batches(graph)
    snapshot("find_batches", raised.value)


def test_a_graph_without_products_is_told_so(snapshot: Snapshots) -> None:
    found = ts.find_batches(torch.ones(3, requires_grad=True).exp().sum())
    assert (len(found), len(found.products)) == (0, 0)
    snapshot("find_batches", found.sentences[0])


def test_the_example_is_right() -> None:
    assert doctest.testmod(groups_module).failed == 0
