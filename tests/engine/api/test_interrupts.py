"""An interrupt (Ctrl-C) in any verb leaves the process as it was: modes, hooks, threads, profilers, locks, leaves."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts

from ..interrupts import interrupted, lines_run


class Program:
    """A model that was trained for a step, and what a program may see of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Softmax(-1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.rows = torch.randn(3, 4)
        self.step()

    def loss(self) -> Tensor:
        return (self.model(self.rows) ** 2).sum()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def state(self) -> list[Any]:
        """Return the state that a verb which only predicts or measures does not change."""
        held = [*self.model.parameters(), *(value for each in self.optimizer.state.values() for value in each.values())]
        return [torch.random.get_rng_state(), *held]


def graph(program: Program) -> Any:
    return ts.graph(program.loss())


def recorded(program: Program) -> None:
    with ts.record_steps():
        program.step()


def trained(program: Program) -> None:
    with ts.training(program.model, program.optimizer):
        program.step()


def fitted(program: Program) -> None:
    ts.fits(
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        lambda: torch.randn(3, 4),
        torch.optim.Adam,
        "1GB",
        lambda model, rows: model(rows).sum(),
    )


def recomputed(program: Program) -> None:
    recomputing = ts.recompute(budget=0.9, seconds=0.1)
    for _ in range(2):
        recomputing(program.loss).backward()
    program.optimizer.zero_grad()


def planned_backwards(program: Program) -> None:
    with ts.policy("bfs"):
        program.loss().backward()


VERBS: dict[str, Callable[[Program], object]] = {
    "simulate": lambda program: ts.simulate(graph(program)),
    "plan": lambda program: ts.plan_order(program.loss()),
    "search": lambda program: ts.backward(program.loss(), policy="search(0.05)"),
    "profile": lambda program: ts.profile(program.loss),
    "measured": lambda program: ts.backward(program.loss(), memory=True),
    "compare": lambda program: ts.compare(program.loss),
    "fits": fitted,
    "find_nan": lambda program: ts.find_nan(program.loss),
    "find_unused": lambda program: ts.find_unused(program.loss, program.model),
    "plan_recompute": lambda program: ts.plan_recompute(program.loss, "1GB", seconds=0.1),
    "recomputed": recomputed,
    "record_steps": recorded,
    "training": trained,
    "policy": planned_backwards,
    "direct": lambda program: ts.backward(program.loss(), engine="direct"),
    "native": lambda program: ts.backward(program.loss(), policy="bfs"),
}
CHANGING = {"record_steps", "training"}
"""Those whose program steps."""


def interrupt(verb: str, at: int, left_behind: Callable[[], list[str]]) -> None:
    program = Program()
    before = [each.clone() for each in program.state()]
    place = interrupted(lambda: VERBS[verb](program), at)
    # Python 3.11's ExitStack.__exit__ holds an error that one of its callbacks raises, whose traceback holds its frame:
    # contexts that an interrupt kept from closing are closed when the collector frees that cycle.
    left = left_behind() and [gc.collect(), *left_behind()][1:]
    assert not left, f"{verb}, interrupted at {place}: {left}"
    if verb not in CHANGING:
        for then, now in zip(before, program.state(), strict=True):
            assert torch.equal(then, now), f"{verb}, interrupted at {place}: {now}"
    loss = program.loss()
    program.optimizer.zero_grad()
    loss.backward()
    right = [weight.grad for weight in program.model.parameters()]
    program.optimizer.zero_grad()
    ts.profile(program.loss)
    for weight, grad in zip(program.model.parameters(), right, strict=True):
        assert torch.equal(weight.grad, grad), place


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("samples", [3, pytest.param(150, marks=pytest.mark.slow)])
def test_an_interrupt_leaves_the_process_as_it_was(
    verb: str, samples: int, left_behind: Callable[[], list[str]]
) -> None:
    VERBS[verb](Program())
    lines = lines_run(lambda: VERBS[verb](Program()))
    assert lines
    for sample in range(samples):
        interrupt(verb, 1 + (lines - 1) * sample // samples + (7919 * sample) % max(1, lines // samples), left_behind)
