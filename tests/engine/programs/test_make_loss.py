"""What is no make_loss is answered with what to return in its place, by every verb that takes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts

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


RETURNED: dict[str, tuple[Callable[[], object], str]] = {
    "a dict": (lambda: {"loss": loss()}, r'return its \["loss"\]'),
    "a model's output": (lambda: SimpleNamespace(loss=loss()), "return its .loss"),
    "a pair": (lambda: (loss(), 1), "return one of them, or the sum of losses"),
    "a number": (lambda: loss().item(), r"return the tensor, without .item"),
    "a NumPy scalar": (lambda: loss().detach().numpy()[()], r"return the tensor, without .item"),
    "a generator": (generator, "has a `yield`"),
    "the model": (lambda: MODEL, r"such as model\(x\).sum"),
    "nothing": (lambda: None, "ts.profile_step"),
}


@pytest.mark.parametrize("what", RETURNED)
def test_what_is_no_loss_is_answered_with_what_to_return(what: str) -> None:
    returned, said = RETURNED[what]
    with pytest.raises(TypeError, match=rf"make_loss\(\) returned .*{said}"):
        ts.find_nan(returned)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", VERBS)
def test_a_make_loss_that_runs_its_own_backward_is_told_so(verb: str) -> None:
    def make_loss() -> Tensor:
        made = loss()
        made.backward()  # type: ignore[no-untyped-call]
        return made

    with pytest.raises(RuntimeError, match=r"has run the backward of its loss itself.*without calling .backward\(\)"):
        VERBS[verb](make_loss)


NO_GRAPH: dict[str, tuple[Callable[[], Tensor], str]] = {
    "inference": (torch.inference_mode()(loss), "inference_mode"),
    "a class": (lambda: loss().argmax(), "holds int64"),
    "detached": (lambda: loss().detach(), r"cut off by .detach\(\)"),
}


@pytest.mark.parametrize("how", NO_GRAPH)
def test_why_a_loss_has_no_graph_is_said_in_errors_and_findings(how: str) -> None:
    make_loss, why = NO_GRAPH[how]
    with pytest.raises(RuntimeError, match=why):
        ts.profile(make_loss)
    assert why.replace("\\", "") in str(ts.find_nan(make_loss))
    with torch.no_grad(), pytest.raises(RuntimeError, match="switched off here"):
        ts.graph(loss())
    with pytest.raises(RuntimeError, match=r"inside a transform of torch\.func .*outside"):
        torch.func.vmap(lambda row: ts.graph(MODEL(row).sum()))(torch.ones(2, 3))


def test_a_size_without_its_unit_is_asked_about() -> None:
    with pytest.raises(ValueError, match='budget is 50, which would be 50 bytes; write .*"50 MiB".* 0.5 for half'):
        ts.plan_recompute(loss, budget=50)
    with pytest.raises(ValueError, match='memory is 24, which would be 24 bytes; write .*"24GB"'):
        ts.fits(MODEL, lambda: torch.ones(2, 3), torch.optim.SGD, 24)
