"""What a mirrored forward let go of, in the deck: the inspector says what makes it again, the queue who does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect
from torch import Tensor, nn

import tapehead as th
from tapehead.engine.record_forward import record_forward
from tapehead.engine.schedule import schedule
from tapehead.widgets.document import Document, schedule_content
from tapehead.widgets.page import page_html

from .chromium import trouble_of
from .shown import ShownDeck

pytestmark = pytest.mark.e2e


def test_inspector_and_queue_say_what_is_made_again(browser: Browser, tmp_path: Path) -> None:
    first, second, x = nn.Linear(64, 64), nn.Linear(64, 64), torch.ones(256, 64)

    def make_loss() -> Tensor:
        return nn.functional.gelu(first(x)).sum() + nn.functional.gelu(second(x)).sum()

    program = record_forward(make_loss, 1)
    plan = th.MirrorPlan.of(program, [each.number for each in program.saved if each.obstacle is None])
    for _ in range(2):
        with th.mirror(plan):
            loss = make_loss()
    graph = th.graph(loss)
    order = schedule(graph, "bfs")
    document = Document(graph, "mirrored", "direct")
    document.content["schedules"] = [schedule_content(graph, th.POLICIES["bfs"], order)]
    document.content["position"] = len(order)
    path = tmp_path / "deck.html"
    path.write_text(page_html(document.packed(), "mirrored"), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    trouble = trouble_of(page)
    page.goto(path.as_uri())
    deck = ShownDeck(page)
    earlier, later = (task for task in order if graph.tasks[task].name == "GeluBackward0")
    deck.scrub(order.index(earlier))
    expect(page.locator(".now")).to_contain_text("replays 1 first")
    expect(page.locator(f".queue li[data-task='{later}'] .again")).to_have_text("replays 1 first")
    deck.activate(deck.task(later))
    expect(deck.inspector).to_contain_text("let go, made again by addmm as task")
    expect(deck.inspector).to_contain_text("64 KiB let go")
    assert trouble == []
    page.close()
