"""The deck in Notebook 7, which is JupyterLab's parts around a single notebook."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from .lab import Notebook, lab_server
from .shown import ShownDeck

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("notebook") is None, reason="Notebook is not installed: pip install notebook"),
]

CELLS = (
    "%load_ext tapescope\n"
    "import torch\n"
    "model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))",
    "%%tapescope --model model loss\nloss = model(torch.randn(32, 64)).sum()",
)


def test_the_magic_opens_a_deck_that_steps_by_buttons_and_keys_in_both_themes(browser: Browser, tmp_path: Path) -> None:
    with lab_server(tmp_path, "notebook") as server:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        notebook = Notebook(page, server, "deck", at="notebooks/{}")
        notebook.trouble.clear()  # what Notebook itself throws as it starts
        notebook.run(CELLS[0])
        cell = notebook.run(CELLS[1])
        deck = ShownDeck(cell.element)
        deck.expect(t=0, status="stopped")
        deck.press("step")
        deck.expect(t=1)
        deck.key("ArrowRight")
        deck.expect(t=2)
        light = deck.evaluate("root => getComputedStyle(root).backgroundColor")
        notebook.theme("JupyterLab Dark")
        assert deck.evaluate("root => getComputedStyle(root).backgroundColor") != light
        deck.press("end")
        deck.expect(status="finished")
        expect(cell.element.locator(".jp-RenderedImage, .jp-RenderedSVG")).to_be_hidden()
        assert notebook.value("all(each.grad is not None for each in model.parameters())")
        assert notebook.trouble == []
        page.close()
