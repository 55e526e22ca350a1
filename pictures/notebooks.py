"""Makes the guides' pictures of notebooks, docs/_static: `python pictures/notebooks.py`.

Needs Chromium and the extra `dev`. It skips Notebook 7 and marimo where they are not installed.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent

from PIL import Image
from playwright.sync_api import Browser, Page

import tapescope as ts
from tapescope.tests.e2e.chromium import chromium
from tapescope.tests.e2e.lab import Notebook, lab_server
from tapescope.tests.e2e.shown import ShownDeck

STATIC = Path(__file__).parents[1] / "docs" / "_static"
SIZE = {"width": 1420, "height": 900}
PLACE = 15  # the task before which the deck stands, as the guide says
MODEL = """import torch
{imports}
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
x = torch.randn(8, 32, 64)"""
MAGIC = "%%tapescope --model model loss\nloss = model(x).square().mean()"
MARIMO = """with ts.capture(model):
    loss = model(x).square().mean()
deck = ts.debug(loss)
deck"""
SCROLL = """deck => {
    deck.scrollIntoView({block: 'end'});
    let around = deck;  // marimo's output scrolls by itself; the top of the deck stays in view
    while (around && !around.scrollTop) around = around.parentElement ?? around.getRootNode().host;
    if (around) around.scrollTop = 0;
}"""
PORT = 28_718


def save(page: Page, name: str) -> None:
    """Save what the window shows with a palette, which makes a third of the file. It keeps the legends' few pixels."""
    shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    shown = shown.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    shown.save(STATIC / f"{name}.png", optimize=True)


def stand(deck: ShownDeck) -> None:
    for step in range(1, PLACE):
        deck.press("step")
        deck.expect(t=step)
    deck.rests()


def jupyter(browser: Browser, application: str, at: str, name: str) -> None:
    """Open a deck in JupyterLab or Notebook 7, and save it in either theme."""
    with tempfile.TemporaryDirectory() as folder, lab_server(Path(folder), application) as server:
        page = browser.new_page(viewport=SIZE)
        notebook = Notebook(page, server, "encoder", at)
        if application == "jupyterlab":
            page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        notebook.run(MODEL.format(imports="%load_ext tapescope\n"))
        cell = notebook.run(MAGIC)
        deck = ShownDeck(cell.element)
        stand(deck)
        for theme in ("light", "dark"):
            notebook.theme(f"JupyterLab {theme.capitalize()}")
            cell.element.evaluate("cell => cell.scrollIntoView({block: 'start'})")
            page.wait_for_timeout(1000)
            deck.rests()
            save(page, f"{name}_{theme}")
        page.close()


def marimo(browser: Browser) -> None:
    """Open a deck in marimo's editor, and save it in either theme."""
    for theme in ("light", "dark"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "encoder.py"
            head = f'# /// script\n# [tool.marimo.display]\n# theme = "{theme}"\n# ///\nimport marimo\n\n'
            cells = "".join(
                f"\n\n@app.cell\ndef _():\n{indent(cell, '    ')}\n    return\n"
                for cell in (MODEL.format(imports="import tapescope as ts\n"), MARIMO)
            )
            path.write_text(f'{head}app = marimo.App(width="full")\n{cells}', encoding="utf-8")
            command = [sys.executable, "-m", "marimo", "edit", path, "--headless", "--no-token", "--port", str(PORT)]
            paths = os.pathsep.join(filter(None, (str(Path(ts.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
            with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}) as server:
                try:
                    page = browser.new_page(viewport=SIZE)
                    page.set_default_timeout(120_000)  # the kernel imports torch
                    page.wait_for_timeout(8000)
                    page.goto(f"http://127.0.0.1:{PORT}")
                    page.wait_for_timeout(8000)
                    page.keyboard.press("Control+Shift+KeyR")  # run all cells
                    deck = ShownDeck(page)
                    stand(deck)
                    deck.root.evaluate(SCROLL)
                    page.wait_for_timeout(1000)
                    save(page, f"marimo_{theme}")
                    page.close()
                finally:
                    server.terminate()


if __name__ == "__main__":
    with chromium() as browser:
        jupyter(browser, "jupyterlab", "lab/tree/{}?reset", "jupyterlab")
        if find_spec("notebook"):
            jupyter(browser, "notebook", "notebooks/{}", "notebook")
        if find_spec("marimo"):
            marimo(browser)
