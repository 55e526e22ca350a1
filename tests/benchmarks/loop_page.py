"""The page of a long training loop: how long it takes to write, and to open in Chromium."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from measure import Effort, Row, seconds

import tapescope as ts
from tapescope.engine.training.training_result import Training

sys.path.append(str(Path(__file__).parents[1]))

from e2e.chromium import chromium, find_chromium

_PARTS = ("q", "k", "v", "o", "ln1", "ln2", "up", "down")

# From the start of the navigation to the frame after the one in which all is drawn.
_OPENED = """() => new Promise(resolve => requestAnimationFrame(function look(now) {
    const shown = document.querySelector('.ts-loop[data-ready] .moving')?.shadowRoot?.querySelector('h3');
    requestAnimationFrame(shown ? () => resolve(performance.now()) : look);
}))"""
# The mean time of a frame, while one zooms in and out.
_ZOOM = """async frames => {
    const picture = document.querySelector('.moving').shadowRoot.querySelector('.picture');
    const box = picture.getBoundingClientRect(), start = performance.now();
    for (let at = 0; at < frames; at++) {
        const deltaY = at % 40 < 20 ? -60 : 60;
        const where = {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2};
        picture.dispatchEvent(new WheelEvent('wheel', {deltaY, ...where, cancelable: true}));
        await new Promise(requestAnimationFrame);
    }
    return (performance.now() - start) / frames;
}"""


def rows(effort: Effort) -> Iterator[Row]:
    steps, modules = (100, 10) if effort.tiny else (10_000, 200)
    training = long_loop(steps, modules)
    what = f"{steps:,} steps of {modules} modules"
    repetitions = min(effort.repetitions, 10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loop.html"
        written = tuple(1e3 * seconds(lambda: training.save_html(path)) for _ in range(repetitions))
        yield Row(f"page of a loop, {what}: to write", "ms", written)
        yield Row(f"page of a loop, {what}: its size", "kB", (path.stat().st_size / 1e3,))
        yield Row(f"page of a loop, {what}: in a notebook", "kB", (len(training._repr_html_()) / 1e3,))
        if find_chromium() is None:
            yield Row("page of a loop in a browser", "ms", outcome="no Chromium here")
            return
        opened, frames = [], []
        with chromium() as browser:
            for _ in range(repetitions):
                page = browser.new_page(viewport={"width": 1420, "height": 900})
                page.goto(path.as_uri(), wait_until="commit")
                opened.append(page.evaluate(_OPENED))
                frames.append(page.evaluate(_ZOOM, 5 if effort.tiny else 80))
                page.close()
        yield Row(f"page of a loop, {what}: to open", "ms", tuple(opened), 1000)
        yield Row(f"page of a loop, {what}: a frame while one zooms", "ms", tuple(frames), 33)


def long_loop(steps: int, modules: int) -> Training:
    """A loop of which there are numbers alone."""
    torch.manual_seed(0)
    training = ts.training()
    names = [f"encoder.layers.{each // 8}.{_PARTS[each % 8]}" for each in range(modules)]
    training.norms.name(names, list(reversed(range(modules))), ["AdamW"])
    gradients = 10 ** (0.3 * torch.randn(steps, modules) + torch.linspace(-2, 0, modules))
    gradients[steps * 7 // 10, modules // 3] = torch.nan
    rates = torch.linspace(1e-3, 1e-5, steps)
    losses = 3 * torch.linspace(0, -3, steps).exp() + 0.2 * torch.rand(steps)
    training.norms.add(range(steps), gradients, torch.stack((losses, rates, torch.zeros(steps)), 1))
    for step in range(0, steps, 10):
        training.norms.add_sample(step, torch.ones(modules), 1e-3 * gradients[step])
    return training
