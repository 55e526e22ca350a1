"""Every printed table fits into a terminal, even if the program's names are long."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts

LONG = "the_encoder_of_the_sequence_with_attention_and_a_feed_forward"


class Named(nn.Module):
    def __init__(self, inner: nn.Module, name: str = LONG) -> None:
        super().__init__()
        self.add_module(name, inner)

    def forward(self, value: Tensor) -> Tensor:
        (inner,) = self.children()
        called: Tensor = inner(value)
        return called


def make_model() -> nn.Module:
    layers = [Named(Named(nn.Linear(8, 8, bias=False))) for _ in range(2)]
    return nn.Sequential(*layers, nn.Linear(8, 1, bias=False))


MODEL, UNUSED = make_model(), make_model()
OPTIMIZER = torch.optim.AdamW(MODEL.parameters())


def make_loss(model: nn.Module = MODEL) -> Tensor:
    loss: Tensor = model(torch.ones(2, 8)).sum()
    return loss


def captured() -> Tensor:
    with ts.capture(MODEL):
        return make_loss()


def step() -> None:
    OPTIMIZER.zero_grad()
    make_loss().backward()
    OPTIMIZER.step()


def run(policy: str) -> ts.Run:
    return ts.backward(captured(), policy=policy, trace="cheap", memory=True)


def steps() -> object:
    with ts.record_steps(steps=2) as recorded:
        for _ in range(3):
            step()
    return recorded


def branches() -> Any:
    with ts.debug(captured(), history=True) as session:
        session.step(count=3)
        session.back(2)
        session.step(session.ready[-1])
        session.run()
        return session.compare_branches()


def shown_by_a_deck() -> list[object]:
    with ts.deck(captured()) as deck:
        deck.break_at(f"0.{LONG}")
        return [deck.compare(["heap", "delay_accumulate"]), deck.stops, deck.branches]


def fit() -> ts.types.Fit:
    def batch(size: int = 2) -> Tensor:
        return torch.ones(size, 8)

    return ts.fits(make_model(), batch, torch.optim.Adam, "1MB", lambda model, batch: model(batch).sum())


def accumulated() -> object:
    return ts.studies.accumulation("needless", repetitions=1, additions=3)


POLICIES = ["bfs", "delay_accumulate", "critical_path"]
RULES = partial(ts.compare, accumulate=["inplace", "list"], release=["eager", "never"])
PRINTED: dict[str, Callable[[], object]] = {
    "compare": lambda: ts.compare(make_loss, POLICIES, repetitions=1, model=MODEL),
    "compare with rules": lambda: RULES(make_loss, POLICIES[:2], repetitions=1, step=ts.profile_step(step)),
    "plan": lambda: ts.plan_order(captured(), [*POLICIES, "postorder"]),
    "accumulation_study": accumulated,
    "find_unused": lambda: ts.find_unused(make_loss, nn.ModuleDict({"used": MODEL, "left_out": UNUSED})),
    "fits": fit,
    "groups": lambda: ts.find_batches(captured()),
    "makespan": lambda: ts.makespan(captured(), policies=POLICIES),
    "makespan on two": lambda: ts.makespan(captured(), policies=POLICIES, device_of={f"0.{LONG}": "cuda:0"}),
    "makespan of one": lambda: ts.makespan(captured()),
    "find_order_dependence": lambda: ts.find_order_dependence(make_loss, "bfs", model=MODEL),
    "plan_recompute": lambda: ts.plan_recompute(make_loss, 0.9, seconds=0.1, model=MODEL),
    "profile_step": lambda: ts.profile_step(step),
    "a step's peak": lambda: ts.profile_step(step).peak(),
    "record_steps": steps,
    "diff": lambda: ts.diff(run("heap"), run("bfs")),
    "unpack_order": lambda: ts.orders.unpack_order(captured()),
    "batches": lambda: ts.backward(captured(), engine="direct", batch="auto").batches,
    "branches": branches,
    "a deck's": shown_by_a_deck,
}


@pytest.mark.parametrize("what", PRINTED)
def test_no_line_of_a_table_is_wider_than_a_terminal(what: str) -> None:
    found = PRINTED[what]()
    for each in found if isinstance(found, list) else [found]:
        text = str(each)
        said = set("\n".join([*getattr(each, "sentences", ()), *getattr(each, "answer", ())]).splitlines())
        lines = [line for line in text.splitlines() if line not in said and ": " not in line]
        assert [line for line in lines if len(line) > 80] == []
        for row in getattr(each, "cells", [[]])[1:]:
            figures = [found[0] for cell in row if (found := re.match(r"\d[\d,.]*(?= |$)", cell))]
            assert [figure for figure in figures if figure not in text] == []


def test_what_tasks_allocate_is_one_line() -> None:
    assert len(repr(ts.orders.dry_run(ts.graph(make_loss())))) <= 80
