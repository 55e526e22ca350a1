"""The page of a training loop in a notebook's output: its keys are its own, and it follows the theme."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tapescope.tests.says import says

from .lab import Notebook

pytestmark = pytest.mark.e2e

LOOP = """
import torch, tapescope as ts
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with ts.training(model, optimizer) as training:
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def shown(notebook: Notebook) -> Locator:
    notebook.kernel(LOOP)
    notebook.run("training")
    shown = notebook.page.locator(".jp-OutputArea .ts-loop[data-ready]")
    expect(shown.locator("h3")).to_be_visible()
    return shown


def test_the_arrow_keys_are_its_own(notebook: Notebook, shown: Locator) -> None:
    cells = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell")
    before = cells.count()
    shown.locator(".picture").focus()
    for key, wanted in (
        ("Home", "step 0 · 2 Linear"),
        ("ArrowRight", "step 1 · 2 Linear"),
        ("ArrowDown", "step 1 · 0 Linear"),
    ):
        notebook.page.keyboard.press(key)
        expect(shown.locator("h3")).to_have_text(wanted)
    expect(cells).to_have_count(before)


@pytest.mark.slow
def test_the_theme_of_jupyterlab_is_followed(notebook: Notebook, shown: Locator) -> None:
    colours = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data].join()"
    canvas = shown.locator("canvas").first
    light = canvas.evaluate(colours)
    notebook.theme("JupyterLab Dark")
    try:
        expect(shown).to_have_attribute("data-theme", "dark")
        expect(shown.locator(".frame")).to_have_css("background-color", "rgb(24, 25, 29)")
        notebook.page.evaluate("() => new Promise(requestAnimationFrame)")
        assert canvas.evaluate(colours) != light
    finally:
        notebook.theme("JupyterLab Light")
    assert shown.evaluate("root => root.scrollWidth <= root.clientWidth")


KEPT = """
import tempfile

def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def loss_of(model, batch):
    return model(*batch).sum() * float("nan")

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with ts.training(model, optimizer, black_box=tempfile.mkdtemp()) as training:
    for step in range(8):
        optimizer.zero_grad()
        (model(torch.ones(3, 4)).sum() * (float("nan") if step == 5 else 1)).backward()
        optimizer.step()
page = training.page(make_model, loss_of)
"""


def test_enter_opens_the_backward_of_a_kept_step_in_its_place_as_a_deck(notebook: Notebook) -> None:
    notebook.kernel(LOOP + KEPT)
    notebook.run("page")
    shown = notebook.page.locator(".jp-OutputArea .ts-loop[data-ready]")
    shown.locator(".picture").focus()
    notebook.page.keyboard.press("Home")
    for _ in range(5):
        notebook.page.keyboard.press("ArrowRight")
    notebook.page.keyboard.press("ArrowDown")
    expect(shown.locator(".go")).to_contain_text(re.compile(r"\bbackward\b.*\bstep 5\b"))
    notebook.page.keyboard.press("Enter")
    deck = notebook.page.locator(".tapescope-deck")
    expect(deck).to_be_visible()
    expect(deck).to_have_count(1)
    expect(shown.locator(".picture")).to_be_hidden()
    assert notebook.kernel("print(page.deck.position, len(page.deck.graph.tasks) > 5)").split() == ["0", "True"]
    expect(deck.locator(".deck")).to_be_focused()
    notebook.page.keyboard.press("ArrowRight")
    expect(deck.locator(".deck")).to_be_focused()
    notebook.page.keyboard.press("w")
    notebook.page.keyboard.press("Escape")  # the deck's own first: it filled the window
    expect(shown.locator(".picture")).to_be_hidden()
    notebook.page.keyboard.press("Escape")
    expect(deck).to_have_count(0)
    expect(shown.locator(".picture")).to_be_focused()
    expect(shown.locator("h3")).to_have_text("step 5 · 0 Linear")
    notebook.page.keyboard.press("Enter")
    expect(deck).to_be_visible()
    notebook.page.get_by_role("button", name="‹ loop").click()
    expect(deck).to_have_count(0)
    expect(shown.locator(".picture")).to_be_focused()
    notebook.page.keyboard.press("Enter")
    expect(deck).to_be_visible()
    busy = notebook.add("import time; time.sleep(3)")
    busy.start()
    notebook.page.get_by_role("button", name="‹ loop").click()
    expect(shown.locator(".picture")).to_be_visible(timeout=1_500)
    expect(deck).to_have_count(0)
    says(notebook.kernel("page.open_step(3); print(page._error.value)"), "<b>ValueError: ", "step 3", 5)
