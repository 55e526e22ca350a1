"""Makes README's pictures of today's code: `python pictures/make.py`. Needs Chromium and the extra `dev`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

import tapescope as ts

HERE = Path(__file__).parent
SIZE = {"width": 1420, "height": 720}  # a deck in a notebook, all of it
SHARP = 2  # pixels of the picture for each of the page's


def deck_pictures() -> None:
    """The deck on a ResNet-50 at the peak of its backward, in either theme."""
    _, make_loss = ts.workload("resnet50").build()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = ts.profile(make_loss).save_html(Path(folder) / "resnet50.html")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for theme in themes:
            page = browser.new_page(viewport=SIZE, device_scale_factor=SHARP, color_scheme=theme)
            page.goto(path.as_uri())
            rests = page.locator(".tapescope-deck .deck[data-rests]")
            rests.wait_for()
            page.keyboard.press("p")
            page.locator(".tapescope-deck .deck:not([data-t='0'])").wait_for()
            rests.wait_for()
            page.screenshot(path=HERE / f"deck_{theme}.png")
        browser.close()


def graph_picture() -> None:
    """The backward of GPT-2; "small" has the graph of the full size."""
    _, make_loss = ts.workload("gpt2").build()
    with ts.capture():
        loss = make_loss()
    ts.graph(loss).save_svg(HERE / "gpt2.svg")


if __name__ == "__main__":
    deck_pictures()
    graph_picture()
