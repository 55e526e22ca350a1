"""Every verb that takes a make_loss refuses other arguments, and says what to return instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import Snapshots, raises, says

MODEL = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
VERBS: dict[str, Callable[[Callable[[], Tensor]], object]] = {
    "profile": ts.profile,
    "compare": lambda make_loss: ts.compare(make_loss, "heap", repetitions=1),
    "find_nan": ts.find_nan,
    "find_unused": lambda make_loss: ts.find_unused(make_loss, MODEL),
    "plan_recompute": lambda make_loss: ts.plan_recompute(make_loss, seconds=0.1),
    "find_order_dependence": lambda make_loss: ts.find_order_dependence(make_loss, "bfs"),
    "advise": lambda make_loss: ts.advise(make_loss, rounds=1),
    "record_forward": lambda make_loss: ts.record_forward(make_loss, 1),
}


def loss() -> Tensor:
    made: Tensor = MODEL(torch.ones(2, 3)).sum()
    return made


def generator() -> Iterator[Tensor]:
    yield loss()


RETURNED: dict[str, tuple[Callable[[], object], list[str]]] = {
    "a dict": (lambda: {"loss": loss()}, ["dict", '["loss"]']),
    "a model's output": (lambda: SimpleNamespace(loss=loss()), ["SimpleNamespace", ".loss"]),
    "a pair": (lambda: (loss(), 1), ["tuple", "Tensor, int"]),
    "a number": (lambda: loss().item(), ["float", ".item()"]),
    "a NumPy scalar": (lambda: loss().detach().numpy()[()], ["float32", ".item()"]),
    "a generator": (generator, ["generator", "`yield`"]),
    "the model": (lambda: MODEL, ["Sequential", "model(x).sum()"]),
    "nothing": (lambda: None, ["None", "ts.profile_step"]),
}


@pytest.mark.parametrize("what", RETURNED)
def test_what_is_no_loss_is_answered_with_what_to_return(what: str, snapshot: Snapshots) -> None:
    returned, facts = RETURNED[what]
    with raises(TypeError, "make_loss()", *facts) as raised:
        ts.find_nan(returned)  # type: ignore[arg-type]
    if what != "a NumPy scalar":
        snapshot("find_nan", raised.value)


@pytest.mark.parametrize("verb", VERBS)
def test_a_make_loss_that_runs_its_own_backward_is_told_so(verb: str, snapshot: Snapshots) -> None:
    def make_loss() -> Tensor:
        made = loss()
        made.backward()  # type: ignore[no-untyped-call]
        return made

    with raises(RuntimeError, "make_loss()", ".backward()", "ts.profile_step(step)") as raised:
        VERBS[verb](make_loss)
    if verb == "profile":
        snapshot("profile", raised.value)


NO_GRAPH: dict[str, tuple[Callable[[], Tensor], str]] = {
    "inference": (torch.inference_mode()(loss), "inference_mode"),
    "a class": (lambda: loss().argmax(), "int64"),
    "detached": (lambda: loss().detach(), ".detach()"),
}


@pytest.mark.parametrize("how", NO_GRAPH)
def test_why_a_loss_has_no_graph_is_said_in_errors_and_findings(how: str, snapshot: Snapshots) -> None:
    make_loss, why = NO_GRAPH[how]
    with raises(RuntimeError, why) as raised:
        ts.profile(make_loss)
    says(ts.find_nan(make_loss), why)
    snapshot("profile", raised.value)
    with torch.no_grad(), raises(RuntimeError, "torch.no_grad()", "torch.set_grad_enabled(False)"):
        ts.graph(loss())
    with raises(RuntimeError, "torch.func"):
        torch.func.vmap(lambda row: ts.graph(MODEL(row).sum()))(torch.ones(2, 3))


def test_a_size_without_its_unit_is_asked_about(snapshot: Snapshots) -> None:
    with raises(ValueError, "budget", "50 bytes", '"50 MiB"', 0.5) as raised:
        ts.plan_recompute(loss, budget=50)
    snapshot("plan_recompute", raised.value)
    with raises(ValueError, "memory", "24 bytes", '"24GB"'):
        ts.fits(MODEL, lambda: torch.ones(2, 3), torch.optim.SGD, 24)
