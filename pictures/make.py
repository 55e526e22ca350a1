"""Makes README's pictures of today's code: `python pictures/make.py`. Needs Chromium and the extra `dev`."""

from __future__ import annotations

import io
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from torch import nn

import tapescope as ts
from tapescope.widgets.pages.html_page import html_page

HERE = Path(__file__).parent
SIZE = {"width": 1420, "height": 720}  # a deck in a notebook, all of it
SHARP = 2  # pixels of the still picture for each of the page's
NARROW = "body{width:1000px;box-sizing:border-box}"  # style of a page that needs no more, so that its text is larger
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


def recorded_loop() -> ts.Training:
    """Record a loop with a leak and a loss that is NaN."""
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
    return training


def saved_pages(folder: Path) -> Iterator[Path]:
    """Save one page of each kind, of small programs: two orders, a loop with faults, a whole step, a fit, a plan."""
    _, make_loss = ts.workload("linear50").build()
    yield ts.compare(make_loss, ["bfs", "heap"]).save_html(folder / "orders.html")
    yield recorded_loop().save_html(folder / "training.html")

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
    yield from report_pages(folder)


class Block(nn.Module):
    """A transformer block with attention weights, as in the guide on recomputation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(64), nn.MultiheadAttention(64, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.norm(x)
        x = x + self.attention(n, n, n)[0]
        return x + self.mlp(x)


def report_pages(folder: Path) -> Iterator[Path]:
    """Save what a notebook shows of three guides: the report on a peak, a plan's budgets, and norms drawn by plotly."""
    _, make_loss = ts.workload("linear50").build()
    memory = folder / "memory.html"
    report = ts.profile(make_loss, policy="bfs").peak()
    memory.write_text(html_page("memory", report._repr_html_(), NARROW), encoding="utf-8")
    yield memory
    model, x = nn.Sequential(*(Block() for _ in range(4))), torch.randn(8, 128, 64)
    yield (
        ts.plan_recompute(lambda: model(x).square().mean(), budget=0.5, progress=False)
        .explore()
        .save_html(folder / "recompute.html")
    )
    norms = recorded_loop().to_pandas().pivot(index="step", columns="module", values="gradient_norm")
    figure = norms.plot(backend="plotly", log_y=True, height=400)
    figure.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font_color="#808590", margin_t=20)
    figure.update_xaxes(gridcolor="#80859040").update_yaxes(gridcolor="#80859040")
    exports = folder / "exports.html"
    style = f"<style>:root{{color-scheme:light dark;background:Canvas}}{NARROW}</style>"
    exports.write_text(
        f"<!doctype html>{style}{figure.to_html(full_html=False, default_height='400px')}", encoding="utf-8"
    )
    yield exports


def page_pictures(make: Callable[[Path], Iterator[Path]] = saved_pages) -> None:
    """The tops of saved pages, for the guides."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = list(make(Path(folder)))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for theme in THEMES:
            for path in pages:
                page = browser.new_page(viewport=SIZE, color_scheme=theme)
                page.goto(path.as_uri())
                page.wait_for_timeout(1000)
                wide, tall = page.evaluate("[document.body.offsetWidth, document.body.offsetHeight]")
                clip = {"x": 0, "y": 0, "width": wide, "height": min(SIZE["height"], tall)}
                shown = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
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
