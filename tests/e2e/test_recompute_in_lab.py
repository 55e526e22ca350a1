"""A forward under a plan, stepped in a notebook: planned and measured recompute times."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tapescope.inspector.text.sizes_and_counts import size_text

from .lab import Notebook
from .shown import ShownDeck

pytestmark = pytest.mark.e2e

RECOMPUTED = """
import torch, tapescope as ts
from torch import nn

torch.manual_seed(0)
layers = nn.Sequential(*[nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)])
rows = torch.randn(256, 32)

def make_loss():
    return layers(rows).square().sum()

plan = ts.plan_recompute(make_loss, 0.8, solver="greedy", seconds=0.1, repetitions=1)

def recomputed():
    with ts.recompute(plan), ts.capture(layers):
        return make_loss()

recomputed()
"""


def test_a_deck_steps_a_plan_and_measures_its_replays(notebook: Notebook) -> None:
    notebook.kernel(RECOMPUTED)
    shown = ShownDeck(notebook.run("deck = ts.debug(recomputed(), recompute=plan)").element)
    expect(shown.root.locator(".time .peak")).to_contain_text("plan")
    plain = shown.root.locator(".lg [data-curve=plain] b")
    expect(plain).to_have_text(size_text(notebook.value("plan.plain.task_peaks[0]")))
    expect(shown.root.locator(".key [data-sign=recomputed]")).to_be_visible()
    place = notebook.value("deck._live.document.content['schedules'][0]['order'].index("
                           "deck._live.document.content['schedules'][0]['replays']['task'][0])")  # fmt: skip
    for _ in range(place):
        shown.press("step")
    shown.expect(t=place)
    row = shown.root.locator(".now")
    replays = re.compile(r"\d[a-z]+ [1-9]\d*\b.* [\d.]+ ms")
    expect(row).to_contain_text(replays)
    planned = row.inner_text()
    shown.press("step")
    shown.expect(t=place + 1)
    shown.press("back")
    expect(row).to_contain_text(replays)
    assert row.inner_text() != planned, "measured"
    expect(shown.inspector).to_contain_text(re.compile(r"\b[\d.]+ ms, planned [\d.]+ ms"))
