"""A recompute plan: what it drops and keeps, and its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tapescope as ts
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.recompute.plan import GraphOrder, PlanPrediction, RecomputePlan, graph_digest
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.inspector.capture.forward_program import ForwardProgram
from tapescope.tests.says import Snapshots, raises, says, says_none_of

x = torch.randn(6, 4)
weight = torch.randn(4, 4, requires_grad=True)

PREDICTED = {
    "plain_levels": [1, 1],
    "levels": [1, 1],
    "plain_seconds": [1],
    "replay_seconds": [1],
    "recording_seconds": [1],
}


def make_loss() -> Tensor:
    h = (x @ weight).mul(2).tanh()
    return (h * h.exp()).sum()


@pytest.fixture(scope="module")
def program() -> ForwardProgram:
    return record_forward(make_loss, 1)


def made_by(program: ForwardProgram, name: str) -> int:
    """The number of the storage that the first operation of this name made."""
    return next(each.makes[0][0] for each in program.operations if each.name == name)


def fates(plan: RecomputePlan) -> dict[str, str]:
    return {each.operation: each.fate for each in plan.storages}


def test_what_a_replay_reads_is_kept(program: ForwardProgram, snapshot: Snapshots) -> None:
    tanh, mul = made_by(program, "aten.tanh.default"), made_by(program, "aten.mul.Tensor")
    plan = RecomputePlan.of(program, [tanh])
    assert fates(plan) == {
        "aten.mul.Tensor": "newly kept",
        "aten.tanh.default": "dropped",
        "aten.exp.default": "kept",
    }
    plan = RecomputePlan.of(program, [tanh, mul])
    assert fates(plan) == {
        "aten.mm.default": "newly kept",
        "aten.mul.Tensor": "intermediate",
        "aten.tanh.default": "dropped",
        "aten.exp.default": "kept",
    }
    assert plan.dropped == {tanh, mul} and plan.dropped_bytes == plan.newly_kept_bytes == x.nbytes
    assert plan.replay_seconds == program.seconds_of(tanh) + program.seconds_of(mul)
    says(plan, 1, 2, "96 B")
    snapshot("plan_recompute", plan)


def test_places_are_those_among_the_operations_with_gradients(program: ForwardProgram) -> None:
    def with_more() -> Tensor:
        with torch.no_grad():
            factor = weight.abs().max()
        return make_loss() * factor

    plan = RecomputePlan.of(record_forward(with_more, 1), [])
    assert plan.operations == (*RecomputePlan.of(program, []).operations, "aten.mul.Tensor")
    places = [(each.operation, each.made_by) for each in plan.storages]
    assert places == [("aten.max.default", -1), ("aten.tanh.default", 2), ("aten.exp.default", 3)]


def test_what_no_dropped_storage_needs_is_left_out(program: ForwardProgram, snapshot: Snapshots) -> None:
    exp, mul = made_by(program, "aten.exp.default"), made_by(program, "aten.mul.Tensor")
    assert RecomputePlan.of(program, [exp, mul]).dropped == {exp}
    nothing = RecomputePlan.of(program, [mul])
    assert not nothing.dropped
    snapshot("plan_recompute", nothing)


def test_what_cannot_be_made_again_is_refused(program: ForwardProgram, snapshot: Snapshots) -> None:
    with raises(ValueError, "storage 0") as made_before:
        RecomputePlan.of(program, [0])
    with raises(ValueError, 99, len(program.storages) - 1) as unknown:
        RecomputePlan.of(program, [99])
    snapshot("plan_recompute", made_before.value)
    snapshot("plan_recompute", unknown.value)


def test_a_plan_is_for_forwards_of_equal_operations_and_sizes(program: ForwardProgram) -> None:
    plan = RecomputePlan.of(program, [])
    assert plan.fits(record_forward(make_loss, 1))
    assert not plan.fits(record_forward(lambda: (x @ weight).tanh().sum(), 1))


def test_a_saved_plan_is_read_as_it_was(program: ForwardProgram, tmp_path: Path, snapshot: Snapshots) -> None:
    predicted = PlanPrediction((5, 9, 7), (5, 6, 7), 1.5, 0.25, 0.125)
    plan = RecomputePlan.of(program, [made_by(program, "aten.tanh.default")], predicted)
    read = RecomputePlan.load(plan.save(tmp_path / "a.recompute.json"))
    assert (read.fingerprint, read.operations, read.storages) == (plan.fingerprint, plan.operations, plan.storages)
    assert read.predicted == predicted
    assert (predicted.plain_peak_bytes, predicted.peak_bytes, predicted.seconds) == (9, 7, 1.875)
    assert RecomputePlan.load(replace(plan, predicted=None).save(tmp_path / "a.recompute.json")).predicted is None
    assert [each.name for each in tmp_path.iterdir()] == ["a.recompute.json"]
    says(read, "7 B", "9 B")
    snapshot("plan_recompute", read)
    assert read.policy == "heap"


def branches(rows: int) -> Callable[[], Tensor]:
    return lambda: torch.stack([(each @ weight).tanh().exp() for each in torch.randn(3, rows, 4)]).sum()


def test_the_order_that_was_planned_for_is_saved_and_runs_the_backward(tmp_path: Path, snapshot: Snapshots) -> None:
    program = record_forward(branches(6), 1)
    graph = program.graph
    order = GraphOrder("bfs", tuple(schedule(graph, "bfs")), graph_digest(graph))
    assert list(order.tasks) != schedule(graph, "heap")
    plan = replace(RecomputePlan.of(program, [made_by(program, "aten.tanh.default")]), planned_order=order)
    read = RecomputePlan.load(plan.save(tmp_path / "plan.json"))
    assert read.planned_order == order
    says(read, "bfs", "ts.backward(loss, policy=plan.policy)")
    snapshot("plan_recompute", read)
    assert schedule(graph, read.policy) == list(order.tasks)
    started = schedule(graph, "heap")[:3]
    rest = [task for task in order.tasks if task not in started]
    assert schedule(graph, read.policy, ran=started) == [*started, *rest]
    with raises(ValueError, len(graph), 3) as smaller:
        schedule(ts.graph(weight.exp().sum()), read.policy)
    with raises(ValueError, "ts.plan_recompute") as wider:
        schedule(record_forward(branches(7), 1).graph, read.policy)
    says_none_of(wider.value, 3)
    snapshot("plan_recompute", smaller.value)
    snapshot("plan_recompute", wider.value)


def test_a_file_of_the_first_version_has_no_order(program: ForwardProgram, tmp_path: Path) -> None:
    plan = RecomputePlan.of(program, [made_by(program, "aten.tanh.default")])
    path = plan.save(tmp_path / "plan.json")
    content = json.loads(path.read_text())
    del content["order"]
    path.write_text(json.dumps({**content, "version": 1}))
    read = RecomputePlan.load(path)
    assert read.storages == plan.storages and read.planned_order is None and read.policy == "heap"


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"format": "other"}, ('"format"', "tapescope.mirror")),
        ({"version": 3}, ('"version"', 3)),
        ({"operations": [99]}, ("operations",)),
        ({"made_by": [-1, -1, -1]}, ('"fate"', "storage 4")),
        ({"made_by": [0]}, ('"made_by"', 1, 3)),
        ({"obstacle": ["no"]}, ('"obstacle"', 1)),
        ({"saved_slot": []}, ('"saved_slot"', 0)),
        ({"predicted": {"levels": []}}, ('"predicted.plain_levels"',)),
        ({"predicted": {**PREDICTED, "levels": [1]}}, ('"predicted.plain_levels"', 2, 1)),
        ({"obstacle": ["so", "so", "so"]}, ('"fate"', "storage 4")),
        ({"order": "dfs"}, ('"order"',)),
        ({"order": {"name": "dfs", "graph": "a"}}, ('"order.tasks"',)),
        ({"order": {"name": "dfs", "graph": "a", "tasks": [0, 0]}}, ('"order.tasks"',)),
        ({"order": {"name": 1, "graph": "a", "tasks": [0]}}, ('"order.name"',)),
        ({"order": {"name": "dfs", "graph": "a", "tasks": [0]}, "predicted": PREDICTED}, ('"order"', 1, 2)),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    program: ForwardProgram,
    tmp_path: Path,
    change: dict[str, object],
    facts: tuple[object, ...],
    snapshot: Snapshots,
) -> None:
    path = RecomputePlan.of(program, [made_by(program, "aten.tanh.default")]).save(tmp_path / "plan.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with raises(ValueError, "plan.json", *facts) as raised:
        RecomputePlan.load(path)
    snapshot("plan_recompute", raised.value)


@pytest.mark.parametrize("content", [b"[]", b"", b"\x80PK", b'{"format":"tapescope.mirror"'])
def test_what_is_no_plan_is_refused_in_a_sentence(tmp_path: Path, content: bytes, snapshot: Snapshots) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with raises(ValueError, "plan.json", *([] if content else ["empty"])) as raised:
        RecomputePlan.load(tmp_path / "plan.json")
    if content == b"[]":
        snapshot("plan_recompute", raised.value)


def test_a_dropouts_mask_is_named_by_what_fills_it() -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    program = record_forward(lambda: functional.dropout(weight * 2, 0.5).exp().sum(), 1)
    plan = RecomputePlan.of(program, [each.number for each in program.saved if each.obstacle is None])
    names = {each.operation for each in plan.storages}
    assert "aten.bernoulli_.float" in names and not any("empty" in name for name in names)
