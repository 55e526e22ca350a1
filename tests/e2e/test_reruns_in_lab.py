"""A cell that is run again and again: what its deck took, on the page and in the kernel, is given back."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .lab import Cell, Notebook
from .shown import ShownDeck

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RUNS = 30
MOST_GROWTH = 3_500_000  # bytes, of all runs together: code that is compiled; a document kept of each were more

MODEL = """
import gc, torch, tapescope as ts
from ipywidgets.widgets import widget
from tapescope.engine.studies.workloads import workload
from tapescope.widgets.deck.deck import Deck
make_loss = workload("gpt2").build(layers=2)[1]

def captured():
    with ts.capture():
        return make_loss()

def decks():
    gc.collect()
    return sum(isinstance(each, Deck) for each in list(widget._instances.values()))

def kept():
    gc.collect()
    return sum(issubclass(type(each), Deck) for each in gc.get_objects())
"""


def heap_bytes(notebook: Notebook) -> int:
    """Return the size of the page's JavaScript heap after garbage collection."""
    session = notebook.page.context.new_cdp_session(notebook.page)
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
        notebook.page.wait_for_timeout(100)
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return int(used)


def rerun(notebook: Notebook, cell: Cell, times: int) -> None:
    for _ in range(times):
        cell.run()
        shown = ShownDeck(cell.element)
        shown.expect(t=0, status="stopped")
        expect(notebook.page.locator(".tapescope-deck")).to_have_count(1)


@pytest.mark.parametrize("source", ["deck = ts.debug(captured())", "ts.debug(captured())"], ids=["named", "unnamed"])
def test_a_cell_that_is_run_thirty_times_keeps_one_deck(notebook: Notebook, source: str) -> None:
    notebook.run(MODEL)
    cell = notebook.add(source)
    rerun(notebook, cell, 8)  # what is made once and kept: compiled code, too
    before = heap_bytes(notebook)
    rerun(notebook, cell, RUNS)
    after = heap_bytes(notebook)
    print(f"\n{source}: {(after - before) / 1e6:.2f} MB more, {notebook.value('[decks(), kept()]')} decks")
    assert after - before < MOST_GROWTH
    notebook.wait_for("decks() == 1")
    assert notebook.value("sum(type(each).__name__ == 'Layout' for each in widget._instances.values())") == 1
    if "=" in source:  # the others are in IPython's own list of results
        assert notebook.value("kept()") == 1
