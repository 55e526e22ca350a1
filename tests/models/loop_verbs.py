"""Verbs used inside a training loop, which must train as without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from judge import WrongError, held, nothing_changes, nothing_left, tolerated
from loops import Loop, Way, as_it_is
from results import Cell
from stranger import Stranger
from torch import Tensor, nn

import tapescope as ts

_SEARCH_S = 0.1
_BUDGET = 0.5


def installed(loop: Loop) -> Cell:
    """All of the training under an order of ours."""
    expected = _trained(loop)
    worst = 0.0
    for policy in ("heap", "bfs"):
        with nothing_left(), ts.policy(policy):
            found = _trained(loop)
        worst = max(worst, tolerated(policy, found, expected, loop.dtype))
    return Cell("right", "equal" if not worst else f"{worst:.0e}")


def recorded(loop: Loop) -> Cell:
    """The first two steps of the training, with its own optimizer, closure and clipping: whole, and one followed."""
    expected = _trained(loop)
    with nothing_left(), ts.record_steps(steps=2) as steps:
        found = _trained(loop)
    tolerated("heap", found, expected)
    if len(steps) != 2:
        raise WrongError(f"{len(steps)} steps were recorded instead of 2")
    for step in steps:
        missing = {"forward", "backward", "optimizer"} - {phase.phase for phase in step.phases}
        if missing:
            raise WrongError(f"the {step.number + 1}. step has no {' and no '.join(sorted(missing))}")
    run = steps[1].run
    if len(run.order) != len(run.graph) or list(run.timeline.nbytes) != list(steps[1].timeline.nbytes):
        raise WrongError("the followed backward is not that of its step")
    return Cell("right", ts.size_text(steps[1].peak_bytes))


def profiled(loop: Loop) -> Cell:
    """Each step is measured first; the second one is predicted from the first."""
    runs: list[ts.Run] = []

    def way(make_loss: Callable[[], Tensor], model: nn.Module) -> Tensor:
        with _put_back(model):
            runs.append(ts.profile(make_loss))
        return make_loss()

    _compared(loop, way)
    last = runs[-1]
    found = ts.simulate(last.graph, "heap", last.footprints)
    return held("", found, last.peak_bytes)


def recomputed(loop: Loop) -> Cell:
    """Planned at the first step, followed at each."""
    plans: list[ts.types.PlannedRecompute] = []
    peaks: list[int] = []

    def way(make_loss: Callable[[], Tensor], model: nn.Module) -> Tensor:
        if not plans:
            with nothing_changes(Stranger(model, make_loss)):
                plans.append(ts.plan_recompute(make_loss, _BUDGET, seconds=_SEARCH_S, repetitions=1))
        if len(peaks) < 2:
            with _put_back(model):
                peaks.append(ts.profile(lambda: _under(plans[0], make_loss)).peak_bytes)
        return _under(plans[0], make_loss)

    _compared(loop, way)
    cell = held("", plans[0].timeline, peaks[0])
    return Cell(cell.outcome, f"{ts.size_text(plans[0].plain_peak_bytes)} to {cell.text}")


def _under(plan: ts.types.RecomputePlan, make_loss: Callable[[], Tensor]) -> Tensor:
    with ts.recompute(plan):
        return make_loss()


def find_nan(loop: Loop) -> Cell:
    """Nothing is found, at any step."""

    def way(make_loss: Callable[[], Tensor], model: nn.Module) -> Tensor:
        with nothing_changes(Stranger(model, make_loss)):
            report = ts.find_nan(make_loss)
        if report:
            raise WrongError(f"found: {report.sentences[0]}")
        return make_loss()

    _compared(loop, way)
    return Cell("right", "none")


def find_unused(loop: Loop) -> Cell:
    """The parameters named at each step get no gradient in it."""
    claimed: list[set[str]] = []

    def way(make_loss: Callable[[], Tensor], model: nn.Module) -> Tensor:
        with nothing_changes(Stranger(model, make_loss)):
            report = ts.find_unused(make_loss, model)
        claimed.append({each.name for each in report})
        with _put_back(model):
            make_loss().backward()
            right = {
                name
                for name, each in model.named_parameters()
                if each.requires_grad and (each.grad is None or not each.grad.any())
            }
        if claimed[-1] != right:
            raise WrongError(f"said of {sorted(claimed[-1])[:3]}, right is {sorted(right)[:3]}")
        return make_loss()

    _compared(loop, way)
    return Cell("right", f"{len(claimed[-1])}")


def _trained(loop: Loop, way: Way = as_it_is) -> dict[str, Tensor | None]:
    return {name: each.detach().clone() for name, each in loop.train(way).state_dict().items()}


def _compared(loop: Loop, way: Way) -> None:
    """Training this way comes to the same as training plainly, to the bit."""
    expected = _trained(loop)
    with nothing_left():
        found = _trained(loop, way)
    tolerated("heap", found, expected)


@contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Return a context for a separate step: no .grad before it; buffers, .grad and generators are restored
    afterwards."""
    grads = {each: each.grad for each in model.parameters()}
    buffers = {each: each.clone() for each in model.buffers()}
    for each in grads:
        each.grad = None
    with torch.random.fork_rng([]):
        yield
    for each, grad in grads.items():
        each.grad = grad
    for each, value in buffers.items():
        each.copy_(value)


VERBS: Mapping[str, Callable[[Loop], Cell]] = {
    "ts.policy": installed,
    "whole steps": recorded,
    "calibrated": profiled,
    "recomputed": recomputed,
    "find_nan": find_nan,
    "find_unused": find_unused,
}
"""By the heading of their column."""
