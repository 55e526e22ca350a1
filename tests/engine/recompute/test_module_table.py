"""A recompute plan by module: what is saved and paid there, each operation counted once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tapescope.engine.recompute.module_table import HEADINGS, module_cells, module_sentences
from tapescope.engine.recompute.plan import PlanPrediction, RecomputePlan
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.inspector.capture.forward_program import ForwardProgram
from tapescope.tests.says import Snapshots, says

BATCH, WIDTH = 16, 8
_, DROPPED, NEWLY_KEPT, REPLAYS, REPLAY_TIME, OPERATIONS = HEADINGS


class Layer(nn.Module):
    """Its exp() saves what it makes, and the product before it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x).exp())  # type: ignore[no-any-return]


def recorded(layers: int) -> ForwardProgram:
    model = nn.Sequential(*[Layer() for _ in range(layers)])
    x = torch.randn(BATCH, WIDTH)
    return record_forward(lambda: model(x).sum(), 1)


def plan_of(program: ForwardProgram, *names: str, seconds: float | None = None) -> RecomputePlan:
    """The plan that drops what these operations made."""
    drop = [
        storage
        for each in program.operations
        if each.name.split(".")[1] in names
        for storage, _ in each.makes
        if program.storages[storage].obstacle is None
    ]
    predicted = None if seconds is None else PlanPrediction((2,), (1,), 1.0, seconds, 0.0)
    return RecomputePlan.of(program, drop, predicted)


def rows(plan: RecomputePlan) -> dict[str, dict[str, str]]:
    headings, *found = module_cells(plan)
    return {row[0]: dict(zip(headings, row, strict=True)) for row in found}


def test_equal_modules_are_one_row_with_what_they_save_and_what_is_paid() -> None:
    found = rows(plan_of(recorded(3), "exp", "native_batch_norm", seconds=0.006))
    layers, norms, whole = found["*"], found["*.norm"], [*found.values()][-1]
    assert (layers[DROPPED], layers[REPLAYS], layers[OPERATIONS]) == ("1.5 KiB", "3", "exp ×3")
    assert (norms[REPLAYS], norms[OPERATIONS]) == ("3", "native_batch_norm ×3")
    assert (whole[REPLAYS], whole[REPLAY_TIME], whole[OPERATIONS]) == ("6", "6.0 ms", "")
    assert sum(float(row[REPLAY_TIME].split()[0]) for row in (layers, norms)) == pytest.approx(6.0, abs=0.1)


def test_what_is_only_kept_or_made_on_the_way_says_so_and_claims_no_bytes_let_go(snapshot: Snapshots) -> None:
    kept = rows(plan_of(recorded(3), "exp"))["*.linear"]
    assert kept[NEWLY_KEPT] == "1.5 KiB"
    says(kept[OPERATIONS], "addmm ×3")
    assert kept[DROPPED] == kept[REPLAYS] == kept[REPLAY_TIME] == ""
    passed = rows(plan_of(recorded(3), "exp", "addmm"))["*.linear"]
    assert (passed[DROPPED], passed[NEWLY_KEPT], passed[REPLAYS]) == ("", "", "3")
    says(passed[OPERATIONS], "addmm ×3")
    snapshot("plan_recompute", "\n".join(each[OPERATIONS] for each in (kept, passed)))


def test_words_are_explained_where_they_are(snapshot: Snapshots) -> None:
    program = recorded(2)
    assert module_sentences(plan_of(program, "native_batch_norm")) == []
    (kept,) = module_sentences(plan_of(program, "exp"))
    (on_the_way,) = module_sentences(plan_of(program, "exp", "addmm"))
    snapshot("plan_recompute", f"{kept}\n{on_the_way}")


def test_an_operation_that_makes_several_storages_runs_again_once() -> None:
    plan = plan_of(recorded(2), "native_batch_norm")
    assert len(plan.dropped) == 5, (
        "mean and deviation of both, and the first one's result, which the second layer saves"
    )
    assert rows(plan)["*.norm"]["recomputed"] == "2"


def test_one_row_has_no_sum_and_nothing_dropped_no_row() -> None:
    program = recorded(2)
    assert list(rows(plan_of(program, "native_batch_norm"))) == ["*.norm"]
    assert len(module_cells(plan_of(program))) == 1


def test_many_modules_end_in_one_row_for_the_rest() -> None:
    def program(count: int) -> ForwardProgram:
        model = nn.Sequential()
        for number in range(count):
            model.add_module(f"layer{'abcdefghijklmnop'[number]}", nn.Tanh())
        weight = torch.randn(4, requires_grad=True)
        return record_forward(lambda: model(weight).sum(), 1)

    names = list(rows(plan_of(program(13), "tanh")))
    assert len(names) == 14, "a thirteenth row takes no more room than '1 more'"
    assert {*names[:-1]} == {f"layer{letter}" for letter in "abcdefghijklm"}
    found = rows(plan_of(program(15), "tanh"))
    *_, more, whole = found
    says(more, 3)
    assert found[more][OPERATIONS] == "tanh ×3" and found[whole][DROPPED] == "240 B"
