"""Makes README's pictures of today's code: `python pictures/make.py`. Needs Chromium and the extra `dev`."""

from __future__ import annotations

import io
import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from torch import nn

import tapescope as ts

HERE = Path(__file__).parent
SIZE = {"width": 1420, "height": 720}  # a deck in a notebook, all of it
SHARP = 2  # pixels of the still picture for each of the page's
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

FILM = (
    ("", 1500),
    *(("ArrowRight", 350),) * 8,  # the backwards of the sum: the queue grows
    *(("Shift+ArrowRight", 350),) * 4,
    ("p", 2500),  # 49 gradients of one weight wait
    *(("Shift+ArrowRight", 350),) * 5,
    ("End", 900),
    ("3", 900),  # the same backward under HEAP
    ("Home", 900),
    *(("ArrowRight", 350),) * 6,
    *(("Shift+ArrowRight", 350),) * 4,
    ("p", 2500),
)
"""Keys, and for how many milliseconds the film shows what they lead to. README's text speaks of both orders."""


@contextmanager
def decks(path: Path, sharp: int) -> Iterator[Iterator[tuple[str, Page]]]:
    """Open a saved deck in either theme, at rest."""

    def pages() -> Iterator[tuple[str, Page]]:
        for theme in THEMES:
            page = browser.new_page(viewport=SIZE, device_scale_factor=sharp, color_scheme=theme)
            page.goto(path.as_uri())
            at_rest(page)
            yield theme, page
            page.close()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield pages()
        browser.close()


def at_rest(page: Page) -> None:
    """Wait until nothing on the page moves."""
    page.locator(".tapescope-deck .deck[data-rests]").wait_for()


def deck_pictures() -> None:
    """The deck on one Linear used fifty times, in either theme: a film of two orders, and a still at BFS' peak."""
    _, make_loss = ts.workload("linear50").build()
    with tempfile.TemporaryDirectory() as folder:
        path = ts.profile(make_loss, policy="bfs", trace="full").save_html(Path(folder) / "linear50.html")
        with decks(path, SHARP) as pages:
            for theme, page in pages:
                page.keyboard.press("p")
                page.locator(".tapescope-deck .deck:not([data-t='0'])").wait_for()
                at_rest(page)
                page.screenshot(path=HERE / f"deck_{theme}.png")
        with decks(path, 1) as pages:
            for theme, page in pages:
                film(page, HERE / f"hero_{theme}.webp")


def film(page: Page, path: Path) -> None:
    """Write an animated picture of the deck as `FILM` plays it."""
    frames = []
    for key, _ in FILM:
        if key:
            page.keyboard.press(key)
            page.wait_for_timeout(400)  # the camera follows the running task
            at_rest(page)
        frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    lasting = [milliseconds for _, milliseconds in FILM]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=lasting, loop=0, quality=72, method=6)


def saved_pages(folder: Path) -> Iterator[Path]:
    """Save one page of each kind, of small programs: two orders, a loop with faults, a whole step, a fit."""
    _, make_loss = ts.workload("linear50").build()
    yield ts.compare(make_loss, ["bfs", "heap"]).save_html(folder / "orders.html")

    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    with warnings.catch_warnings(), ts.training(model, optimizer) as training:
        warnings.simplefilter("ignore")  # the findings are on the page
        for step in range(60):
            batch = torch.randn(32, 64)
            loss = model(batch).square().mean() + (math.nan if step == 37 else 0)
            losses.append(loss)  # a leak
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    yield training.save_html(folder / "training.html")

    encoder = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    adam = torch.optim.Adam(encoder.parameters())

    def one_step() -> None:
        encoder(torch.randn(8, 64, 64)).square().mean().backward()
        adam.step()
        adam.zero_grad()

    yield ts.profile_step(one_step).save_html(folder / "step.html")
    fit = ts.fits(
        lambda: nn.TransformerEncoderLayer(512, 8, batch_first=True),
        lambda size=16: torch.randn(size, 128, 512),
        lambda parameters: torch.optim.Adam(parameters),
        "2GB",
        lambda model, batch: model(batch).square().mean(),
    )
    yield fit.save_html(folder / "fits.html")


def page_pictures() -> None:
    """The tops of saved pages, for the guides."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = list(saved_pages(Path(folder)))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for theme in THEMES:
            for path in pages:
                page = browser.new_page(viewport=SIZE, color_scheme=theme)
                page.goto(path.as_uri())
                page.wait_for_timeout(2000)
                shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                shown.save(HERE / f"{path.stem}_{theme}.webp", quality=85, method=6)
                page.close()
        browser.close()


def graph_picture() -> None:
    """The backward of GPT-2; "small" has the graph of the full size."""
    _, make_loss = ts.workload("gpt2").build()
    with ts.capture():
        loss = make_loss()
    ts.graph(loss).save_svg(HERE / "gpt2.svg")


if __name__ == "__main__":
    deck_pictures()
    page_pictures()
    graph_picture()
