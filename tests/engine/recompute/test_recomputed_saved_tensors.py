"""The tensors that a recomputed forward dropped, by the task that saves them: found without recomputing them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.recompute.plan_by_task import dropped_saves
from tapescope.tests.says import says

from ..recomputed_programs import plan_all

MODEL = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Tanh(), nn.Linear(16, 4))
X = torch.ones(4, 8)


def make_loss() -> Tensor:
    return MODEL(X).sum()  # type: ignore[no-any-return]


def recomputed() -> tuple[Tensor, ts.recompute]:
    plan = plan_all(make_loss)
    for _ in range(2):  # the first forward keeps all
        with ts.recompute(plan) as context:
            loss = make_loss()
    return loss, context


def test_each_is_named_with_its_task_its_size_and_what_makes_it_again() -> None:
    loss, context = recomputed()
    graph = ts.graph(loss)
    found = dropped_saves(graph)
    assert {graph.tasks[each.task].name for each in found} == {"GeluBackward0", "TanhBackward0", "AddmmBackward0"}
    gelu = next(each for each in found if graph.tasks[each.task].name == "GeluBackward0")
    assert (gelu.slot, gelu.nbytes, gelu.meta.shape, gelu.made_by) == ("self", 4 * 16 * 4, (4, 16), "addmm")
    tanh = next(each for each in found if graph.tasks[each.task].name == "TanhBackward0")
    says(tanh.made_by, "tanh", "gelu", "addmm")
    assert len({each.storage for each in found}) == context.report.dropped
    assert context.report.replayed == 0, "nothing was made again for that"


def test_what_was_not_recomputed_and_what_was_made_again_is_none() -> None:
    assert dropped_saves(ts.graph(make_loss())) == []
    loss, _ = recomputed()
    loss.backward(retain_graph=True)
    assert dropped_saves(ts.graph(loss)) == []
