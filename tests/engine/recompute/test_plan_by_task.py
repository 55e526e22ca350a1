"""The effect of a recompute plan on each task, compared with the tasks' actual recomputation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.recompute.plan import PlanPrediction, RecomputePlan
from tapescope.engine.recompute.plan_by_task import (
    ReplayClock,
    check_fits,
    dropped_saves,
    planned_replays,
    recompute_signs,
)
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.inspector.capture.forward_program import ForwardProgram
from tapescope.inspector.drawing.annotations import SIGN_TITLES
from tapescope.inspector.drawing.svg import graph_to_svg
from tapescope.tests.says import Snapshots, raises, says

from ..recomputed_programs import MakeLoss, everything, some


class Normed(nn.Module):
    """Layers whose operations have several results, are written into, and share what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batch_norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.layer_norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.batch_norm(self.conv(x)).relu_().mean((2, 3)).repeat(1, 4)
        z = self.linear(self.layer_norm(y))
        return torch.tanh(z * torch.sigmoid(z)).sum()


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for each in x:
            state = self.cell(each, state)
        assert state is not None
        return state[0].sum()


def loss_of(model: nn.Module, *shape: int) -> MakeLoss:
    x = torch.randn(*shape)
    return lambda: model(x)


LOSSES = {"normed": loss_of(Normed(), 2, 3, 8, 8), "cell": loss_of(Cell(), 4, 2, 8)}


def recomputed(make_loss: MakeLoss, plan: RecomputePlan) -> Tensor:
    """Return the loss of the second forward under the plan; the first one recomputes and compares every storage."""
    for _ in range(2):
        with ts.recompute(plan):
            loss = make_loss()
    return loss


def half(seed: int) -> Callable[[ForwardProgram], RecomputePlan]:
    return lambda program: some(program, seed)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("choose", [everything, *map(half, range(3))], ids=["all", "half", "another half", "a third"])
@pytest.mark.parametrize("policy", ["heap", "bfs"])
def test_each_task_makes_again_what_was_planned(
    name: str, choose: Callable[[ForwardProgram], RecomputePlan], policy: str
) -> None:
    plan = choose(record_forward(LOSSES[name], 1))
    loss = recomputed(LOSSES[name], plan)
    graph = ts.graph(loss)
    clock = ReplayClock(graph)
    assert dropped_saves(graph)
    session = ts.debug(loss, policy=policy)
    really = {}
    while session.left:
        task = session.step()
        if (made := clock.lap()) is not None:
            really[task.id] = made[0]
            assert made[1] > 0
    planned: dict[int, int] = {}
    for each in planned_replays(plan, session.order):
        planned[each.task] = planned.get(each.task, 0) + len(each.made)
    assert planned == really
    assert clock.lap() is None, "nothing more has run"


def test_a_plan_tells_its_replays_what_a_step_takes_longer() -> None:
    program = record_forward(LOSSES["normed"], 1)
    dropped = everything(program).dropped
    tasks = range(len(program.graph))
    levels = (1,) * len(program.graph)
    plan = RecomputePlan.of(program, dropped, PlanPrediction(levels, levels, 1.0, 0.25, 0.0))
    replays = planned_replays(plan, reversed(tasks))
    assert sum(each.seconds for each in replays) == pytest.approx(0.25)
    numbers = [made.number for each in replays for made in each.made]
    assert sorted(numbers) == sorted(plan.dropped), "each once"


def test_what_is_kept_for_a_replay_is_told_of_the_task_that_replays(snapshot: Snapshots) -> None:
    first, second = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def make_loss() -> Tensor:
        return ((first + second).tanh() * second).sum()

    program = record_forward(make_loss, 1)
    tanh = next(each.makes[0][0] for each in program.operations if "tanh" in each.name)
    plan = RecomputePlan.of(program, [tanh])
    names = [task.name for task in program.graph.tasks]
    order = [names.index(name) for name in ("SumBackward0", "MulBackward0", "TanhBackward0", "AddBackward0")]
    (replay,) = planned_replays(plan, order)
    assert (names[replay.task], [each.operation for each in replay.kept]) == ("MulBackward0", ["aten.add.Tensor"])
    signs = {names[each.task]: each for each in recompute_signs(plan, order)}
    assert {name: sign.kinds for name, sign in signs.items()} == {
        "MulBackward0": ("recomputed", "kept"),
        "TanhBackward0": ("dropped",),
    }
    for sign in signs.values():
        says(sign.title, 1, "256 B")
    snapshot("plan_recompute", "\n".join(sign.title for sign in signs.values()))
    picture = graph_to_svg(program.graph, signs=list(signs.values()))
    assert picture.count('data-signs="recomputed kept"') == picture.count('data-signs="dropped"') == 1
    for words in SIGN_TITLES.values():
        assert f">{words}</text>" in picture
    assert "ts-sign" not in graph_to_svg(program.graph).partition("</style>")[2]


def test_a_plan_that_does_not_fit_is_refused_with_the_reason(snapshot: Snapshots) -> None:
    make_loss = LOSSES["cell"]
    program = record_forward(make_loss, 1)
    plan = everything(program)

    def refused(given: RecomputePlan, loss: Tensor, *facts: object) -> None:
        graph = ts.graph(loss)
        with raises(ValueError, "recompute", *facts) as raised:
            check_fits(given, graph, dropped_saves(graph))
        snapshot("debug", raised.value)

    check_fits(plan, graph := ts.graph(recomputed(make_loss, plan)), dropped_saves(graph))
    refused(plan, make_loss(), "ts.recompute(plan)")
    other = some(program, 1)
    refused(other, recomputed(make_loss, plan), "AddmmBackward0", "mat1")
    longer = loss_of(Cell(), 6, 2, 8)
    refused(everything(record_forward(longer, 1)), recomputed(make_loss, plan), len(program.graph))
    predicted = replace(plan, predicted=PlanPrediction((1, 1), (1, 1), 1.0, 1.0, 1.0))
    refused(predicted, recomputed(make_loss, plan), 2, len(program.graph))
    with raises(TypeError, "recompute", "ts.plan_recompute", "str") as raised:
        check_fits("plan", graph, ())  # type: ignore[arg-type]
    snapshot("debug", raised.value)
