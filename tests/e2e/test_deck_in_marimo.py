"""The deck in marimo: the last value of a cell is displayed live."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import tapescope as ts

from .chromium import trouble_of
from .shown import ShownDeck

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("marimo") is None, reason="marimo is not installed: pip install 'tapescope[marimo]'"),
]

NOTEBOOK = """
# /// script
# [tool.marimo.display]
# theme = "{theme}"
# ///
import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import torch
    import tapescope as ts

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    loss = model(torch.ones(2, 3)).sum()
    deck = ts.debug(loss)
    deck
    return (deck,)
"""


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def address(tmp_path: Path, theme: str) -> Iterator[str]:
    """Return the address at which marimo serves the notebook."""
    path = tmp_path / "notebook.py"
    path.write_text(NOTEBOOK.format(theme=theme).lstrip())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "marimo", "run", str(path), "--headless", "--no-token", "--port", str(port)]
    paths = os.pathsep.join(filter(None, (str(Path(ts.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}) as server:
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until and server.poll() is None:
                with socket.socket() as asking:
                    if asking.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def test_a_cell_that_ends_with_a_session_shows_a_deck_that_steps(browser: Browser, address: str, theme: str) -> None:
    page = browser.new_page()
    trouble = trouble_of(page)
    page.goto(address)
    deck = ShownDeck(page)
    deck.expect(t=0, status="stopped")
    deck.press("step")
    deck.expect(t=1, status="stopped")
    deck.key("ArrowRight")
    deck.expect(t=2)
    background = deck.evaluate("root => getComputedStyle(root).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background)[:3])) < 100) == (theme == "dark")
    deck.press("end")
    deck.expect(status="finished")
    page.close()
    assert not [each for each in trouble if "preload" not in each]
