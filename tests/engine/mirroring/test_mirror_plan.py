"""A plan for mirroring: what it drops and keeps, and its file."""

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
from tapescope.engine.mirroring.plan import MirrorPrediction, RecomputePlan
from tapescope.engine.orders.graph_order import GraphOrder, graph_digest
from tapescope.engine.orders.schedule import schedule
from tapescope.engine.programs.record_forward import record_forward
from tapescope.inspector.capturing.forward_program import ForwardProgram

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


def test_what_a_replay_reads_is_kept(program: ForwardProgram) -> None:
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
        "aten.mul.Tensor": "dropped on the way",
        "aten.tanh.default": "dropped",
        "aten.exp.default": "kept",
    }
    assert plan.dropped == {tanh, mul} and plan.dropped_bytes == plan.newly_kept_bytes == x.nbytes
    assert plan.replay_seconds == program.seconds_of(tanh) + program.seconds_of(mul)
    assert str(plan) == "1 of 2 saved storages are dropped, 96 B; 96 B newly kept"


def test_places_are_those_among_the_operations_with_gradients(program: ForwardProgram) -> None:
    def with_more() -> Tensor:
        with torch.no_grad():
            factor = weight.abs().max()
        return make_loss() * factor

    plan = RecomputePlan.of(record_forward(with_more, 1), [])
    assert plan.operations == (*RecomputePlan.of(program, []).operations, "aten.mul.Tensor")
    places = [(each.operation, each.made_by) for each in plan.storages]
    assert places == [("aten.max.default", -1), ("aten.tanh.default", 2), ("aten.exp.default", 3)]


def test_what_no_dropped_storage_needs_is_left_out(program: ForwardProgram) -> None:
    exp, mul = made_by(program, "aten.exp.default"), made_by(program, "aten.mul.Tensor")
    assert RecomputePlan.of(program, [exp, mul]).dropped == {exp}
    assert str(RecomputePlan.of(program, [mul])) == "nothing is dropped"


def test_what_cannot_be_made_again_is_refused(program: ForwardProgram) -> None:
    with pytest.raises(ValueError, match="storage 0 .* can't be made again, since no operation of the forward made it"):
        RecomputePlan.of(program, [0])
    with pytest.raises(ValueError, match="there is no storage 99"):
        RecomputePlan.of(program, [99])


def test_a_plan_is_for_forwards_of_equal_operations_and_sizes(program: ForwardProgram) -> None:
    plan = RecomputePlan.of(program, [])
    assert plan.fits(record_forward(make_loss, 1))
    assert not plan.fits(record_forward(lambda: (x @ weight).tanh().sum(), 1))


def test_a_saved_plan_is_read_as_it_was(program: ForwardProgram, tmp_path: Path) -> None:
    predicted = MirrorPrediction((5, 9, 7), (5, 6, 7), 1.5, 0.25, 0.125)
    plan = RecomputePlan.of(program, [made_by(program, "aten.tanh.default")], predicted)
    read = RecomputePlan.load(plan.save(tmp_path / "a.mirror.json"))
    assert (read.fingerprint, read.operations, read.storages) == (plan.fingerprint, plan.operations, plan.storages)
    assert read.predicted == predicted
    assert (predicted.plain_peak_bytes, predicted.peak_bytes, predicted.seconds) == (9, 7, 1.875)
    assert RecomputePlan.load(replace(plan, predicted=None).save(tmp_path / "a.mirror.json")).predicted is None
    assert [each.name for each in tmp_path.iterdir()] == ["a.mirror.json"]
    assert str(read).endswith("; predicted peak 7 B, of 9 B without") and read.policy == "heap"


def branches(rows: int) -> Callable[[], Tensor]:
    return lambda: torch.stack([(each @ weight).tanh().exp() for each in torch.randn(3, rows, 4)]).sum()


def test_the_order_that_was_planned_for_is_saved_and_runs_the_backward(tmp_path: Path) -> None:
    program = record_forward(branches(6), 1)
    graph = program.graph
    order = GraphOrder("bfs", tuple(schedule(graph, "bfs")), graph_digest(graph))
    assert list(order.tasks) != schedule(graph, "heap")
    plan = replace(RecomputePlan.of(program, [made_by(program, "aten.tanh.default")]), planned_order=order)
    read = RecomputePlan.load(plan.save(tmp_path / "plan.json"))
    assert read.planned_order == order and str(read).endswith("bfs: ts.backward(loss, policy=plan.policy)")
    assert schedule(graph, read.policy) == list(order.tasks)
    started = schedule(graph, "heap")[:3]
    rest = [task for task in order.tasks if task not in started]
    assert schedule(graph, read.policy, ran=started) == [*started, *rest]
    with pytest.raises(ValueError, match="planned for another graph, of .* tasks, where this one has 3; plan again"):
        schedule(ts.graph(weight.exp().sum()), read.policy)
    with pytest.raises(ValueError, match="whose tasks, edges or sizes are others"):
        schedule(record_forward(branches(7), 1).graph, read.policy)


def test_a_file_of_the_first_version_has_no_order(program: ForwardProgram, tmp_path: Path) -> None:
    plan = RecomputePlan.of(program, [made_by(program, "aten.tanh.default")])
    path = plan.save(tmp_path / "plan.json")
    content = json.loads(path.read_text())
    del content["order"]
    path.write_text(json.dumps({**content, "version": 1}))
    read = RecomputePlan.load(path)
    assert read.storages == plan.storages and read.planned_order is None and read.policy == "heap"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, '"format" is not tapescope.mirror'),
        ({"version": 3}, "written by a newer tapescope"),
        ({"operations": [99]}, "operations"),
        ({"made_by": [-1, -1, -1]}, "drops storage 4, which can't be made again"),
        ({"made_by": [0]}, '"made_by" has 1 entries, not'),
        ({"obstacle": ["no"]}, '"obstacle" has 1 entries'),
        ({"saved_slot": []}, '"saved_slot" has 0 entries'),
        ({"predicted": {"levels": []}}, '"predicted.plain_levels" is missing'),
        ({"predicted": {**PREDICTED, "levels": [1]}}, '"predicted.plain_levels" has 2 entries, not 1'),
        ({"obstacle": ["so", "so", "so"]}, "drops storage 4, which can't be made again"),
        ({"order": "dfs"}, '"order" is not an object'),
        ({"order": {"name": "dfs", "graph": "a"}}, '"order.tasks" is missing'),
        ({"order": {"name": "dfs", "graph": "a", "tasks": [0, 0]}}, '"order.tasks" has an entry twice'),
        ({"order": {"name": 1, "graph": "a", "tasks": [0]}}, '"order.name" is not a text'),
        ({"order": {"name": "dfs", "graph": "a", "tasks": [0]}, "predicted": PREDICTED}, "has 1 tasks, but 2 levels"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    program: ForwardProgram, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = RecomputePlan.of(program, [made_by(program, "aten.tanh.default")]).save(tmp_path / "plan.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match="is not a plan that this tapescope can load") as raised:
        RecomputePlan.load(path)
    assert message in str(raised.value)


@pytest.mark.parametrize("content", [b"[]", b"", b"\x80PK", b'{"format":"tapescope.mirror"'])
def test_what_is_no_plan_is_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"plan\.json is not a plan that this tapescope can load: "):
        RecomputePlan.load(tmp_path / "plan.json")


def test_a_dropouts_mask_is_named_by_what_fills_it() -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    program = record_forward(lambda: functional.dropout(weight * 2, 0.5).exp().sum(), 1)
    plan = RecomputePlan.of(program, [each.number for each in program.saved if each.obstacle is None])
    names = {each.operation for each in plan.storages}
    assert "aten.bernoulli_.float" in names and not any("empty" in name for name in names)
