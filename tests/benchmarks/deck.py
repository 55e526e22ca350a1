"""The deck in Chromium: live in JupyterLab, and as a saved page."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import Effort, Row

import tapescope as ts
from tapescope.engine.studies.workloads import workload

sys.path.append(str(Path(__file__).parents[1]))

from e2e.chromium import chromium, find_chromium
from e2e.lab import RUN_CELL, Notebook, lab_server
from e2e.shown import ShownDeck
from playwright.sync_api import Browser

_BUNDLE = Path(ts.__file__).parent / "widgets" / "static" / "deck.js"

_SETUP = """
import torch, tapescope as ts
from tapescope.engine.studies.workloads import workload
def chain(length):
    x = torch.ones(4, requires_grad=True)
    for _ in range(length // 2):
        x = x * 1.0001 + 0.1
    return x.sum()
"""
LIMIT_MS = 60_000

# From the click on `step` to the next state in the DOM.
_CLICK = """deck => new Promise(resolve => {
    const start = performance.now();
    new MutationObserver((_, observer) => {
        observer.disconnect();
        resolve(performance.now() - start);
    }).observe(deck, { attributeFilter: ['data-t'] });
    deck.querySelector('[data-act=step]').click();
})"""
# Runs a cell: milliseconds from its start, and from its end, to the frame after the one in which its graph is drawn.
_PAINT = f"""async index => {{
    const start = performance.now();
    const painted = () => new Promise((resolve, reject) => requestAnimationFrame(function look(now) {{
        const deck = document.querySelector('.tapescope-deck')?.shadowRoot?.querySelector('.deck');
        const seen = deck?.querySelector('[data-mirror=graph] [data-state]');
        if (now - start > {LIMIT_MS}) reject(new Error('nothing was painted'));
        else requestAnimationFrame(seen ? () => resolve(performance.now()) : look);
    }}));
    const [ended, shown] = await Promise.all([({RUN_CELL})(index).then(() => performance.now()), painted()]);
    return [shown - start, Math.max(0, shown - ended)];
}}"""
# The mean time of a frame, over so many milliseconds.
_FRAME = """(_, duration) => new Promise(resolve => {
    let frames = 0, start = 0;
    requestAnimationFrame(function frame(now) {
        start ||= now;
        if (now - start >= duration) return resolve((now - start) / frames);
        frames++;
        requestAnimationFrame(frame);
    });
})"""


def rows(effort: Effort) -> Iterator[Row]:
    yield Row("bundle of the page", "kB", (_BUNDLE.stat().st_size / 1e3,), 300)
    if find_chromium() is None:
        yield Row("the deck in a browser", "ms", outcome="no Chromium here")
        return
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        yield from page_rows(browser, Path(folder), effort)
        yield from large_page_rows(browser, Path(folder), effort)
        with lab_server(Path(folder) / "lab") as lab:
            page = browser.new_page(viewport={"width": 1400, "height": 1200})
            yield from live_rows(Notebook(page, lab, "bench"), effort)


def page_rows(browser: Browser, folder: Path, effort: Effort) -> Iterator[Row]:
    """Playing a saved page at the highest speed, by tasks and by the clock: unrolled LSTM cells, forward and backward
    measured, a lifetime per storage."""
    run = ts.profile(workload("lstm_cell").build(steps=4 if effort.tiny else 1500)[1])
    path = run.save_html(folder / "playing.html")
    for axis in ("tasks", "the clock"):
        page = browser.new_page(viewport={"width": 1400, "height": 1200})
        page.goto(path.as_uri())
        deck = ShownDeck(page)
        deck.speed(2 if effort.tiny else 1000)
        if axis == "the clock":
            deck.key("c")
        deck.press("play")
        windows = min(effort.repetitions, 10)  # of a second each: the deck plays for twenty
        frames = tuple(deck.evaluate(_FRAME, 100 if effort.tiny else 1000) for _ in range(windows))
        page.close()
        yield Row(f"a frame while {len(run.order):,} tasks play, by {axis} (60 a second: 17 ms)", "ms", frames, 17)


def large_page_rows(browser: Browser, folder: Path, effort: Effort) -> Iterator[Row]:
    """A saved page of 100,000 tasks: opened, played at the highest speed, searched and unfolded."""
    run = ts.profile(workload("lstm_cell").build(steps=4 if effort.tiny else 6650)[1])
    path = run.save_html(folder / "large.html")
    what = f"saved page of {len(run.order):,} tasks"
    yield Row(f"{what}: its size", "kB", (path.stat().st_size / 1e3,))
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable", {"timeDomain": "threadTicks"})  # other processes do not lengthen them

    def script_ms() -> float:
        values = {each["name"]: each["value"] for each in metrics.send("Performance.getMetrics")["metrics"]}
        return float(1e3 * values["ScriptDuration"])

    def shown_after(act: Callable[[], object]) -> float:
        start = time.perf_counter()
        act()
        deck.rests()
        return 1e3 * (time.perf_counter() - start)

    start = time.perf_counter()
    page.goto(path.as_uri())
    deck = ShownDeck(page)
    yield Row(f"{what}: to open", "ms", (1e3 * (time.perf_counter() - start),), 4000)
    deck.speed(2 if effort.tiny else 1000)
    deck.press("play")
    found = []
    for _ in range(min(effort.repetitions, 5)):
        start, before = time.perf_counter(), script_ms()
        frame_ms = deck.evaluate(_FRAME, 100 if effort.tiny else 1000)
        frames = 1e3 * (time.perf_counter() - start) / frame_ms
        found.append((script_ms() - before) / frames)
    yield Row(f"{what}: script of a frame while it plays", "ms", tuple(found), 8)
    deck.press("pause")
    yield Row(f"{what}: a search", "ms", (shown_after(lambda: deck.search("mul").first.wait_for()),), 200)
    deck.key("Escape")
    yield Row(f"{what}: unfolded", "ms", (shown_after(lambda: deck.key("Shift+BracketRight")),), 1000)
    page.close()


def live_rows(notebook: Notebook, effort: Effort) -> Iterator[Row]:
    """In JupyterLab: the first paint, a step, and a large graph."""
    notebook.run(_SETUP)
    repetitions = min(effort.repetitions, 10)
    name, many = ("linear50", 200) if effort.tiny else ("resnet50", 100_000)
    title = "a tiny model" if effort.tiny else "ResNet-50"
    notebook.kernel(f"make_loss = workload({name!r}).build()[1]")
    forward = "with ts.capture():\n    loss = make_loss()"
    opened = [_opened(notebook, forward) for _ in range(repetitions)]
    yield Row(f"{title}: from the cell's end to its first paint", "ms", tuple(each["ended"] for each in opened), 500)
    yield Row(f"{title}: from the cell's start to its first paint", "ms", tuple(each["started"] for each in opened))
    yield Row(f"{title}: what the kernel sends for it, code included", "kB", tuple(each["kB"] for each in opened), 500)
    deck = ShownDeck(notebook.page)
    clicks = tuple(deck.evaluate(_CLICK) for _ in range(min(effort.repetitions, 5) * 5))
    yield Row("click on step to changed DOM, live", "ms", clicks, 100)
    opened = [_opened(notebook, f"loss = chain({many})") for _ in range(min(effort.repetitions, 3))]
    started = tuple(each["started"] for each in opened)
    yield Row(f"{many:,} tasks: from the cell's start to its first paint", "ms", started, 4000)
    yield Row(f"{many:,} tasks: what the kernel sends", "kB", tuple(each["kB"] for each in opened), 10_000)


def _opened(notebook: Notebook, forward: str) -> dict[str, float]:
    """Opens a deck on a fresh loss. Milliseconds to the first paint, and what came over the network for it."""
    notebook.kernel("import ipywidgets; ipywidgets.Widget.close_all()")
    notebook.clear()
    notebook.kernel(forward)
    cell = notebook.add("deck = ts.debug(loss)")
    received = 0

    def count(payload: str | bytes) -> None:
        nonlocal received
        received += len(payload)

    for socket in notebook.sockets:
        socket.on("framereceived", count)
    started, ended = notebook.page.evaluate(_PAINT, cell.index)
    for socket in notebook.sockets:
        socket.remove_listener("framereceived", count)
    return {"started": started, "ended": ended, "kB": received / 1e3}
