"""A tape of HIPS autograd's in the deck: the programs of its issue #219, as they were written there, step and play."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

import tapescope as ts
from tapescope.tests.says import says

from .chromium import trouble_of
from .lab import Notebook
from .shown import ShownDeck
from .tab import Tab

pytest.importorskip("autograd")
pytestmark = pytest.mark.e2e

PROGRAMS = """
import torch, autograd, numpy, tapescope as ts
from tapescope.engine.studies.workload_models_autograd import fan_out_program, needless_program, rnn_program
from tapescope.engine.studies.workload_models_autograd import FanOut, NeedlessAdditions, VanillaRNN

torch.manual_seed(0)
def programs():
    return {
        "rnn": rnn_program(VanillaRNN(8, 3), torch.randn(4, 8), torch.ones(4, 1)),
        "fan_out": fan_out_program(FanOut(8, 5), torch.ones(8, 8)),
        "needless": needless_program(NeedlessAdditions(8, 6)),
    }
made = programs()
def opened(name):
    fun, args = made[name]
    return ts.hips.tape(fun, *args)
def as_autograd(name, tape):
    fun, args = made[name]
    expected = autograd.grad(fun)(*args)
    pairs = zip(tape.gradient, expected) if isinstance(expected, tuple) else [(tape.gradient, expected)]
    return all(one.tobytes() == other.tobytes() for one, other in pairs)
"""


@pytest.fixture(scope="module")
def programs(open_notebook: Notebook) -> None:
    open_notebook.run(PROGRAMS)


@pytest.fixture
def lab_page(notebook: Notebook, programs: None) -> Notebook:
    return notebook


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        pytest.param("rnn", "negative", "sum", marks=pytest.mark.slow),
        ("fan_out", "sum", "dot"),
        ("needless", "sum", "add"),
    ],
)
def test_the_programs_of_the_thread_step_in_the_deck_to_autograds_own_gradients(
    lab_page: Notebook, name: str, first: str, second: str
) -> None:
    shown = ShownDeck(lab_page.run(f"tape = opened({name!r})\ndeck = ts.debug(tape, policy='dfs')").element)
    begins = lab_page.value("deck.current_task")
    shown.expect(t=0, status="stopped", policy="dfs", running=begins)
    expect(shown.task(begins)).to_contain_text(first)
    shown.press("step")
    shown.expect(t=1)
    waiting = lab_page.value(
        "[each.task.id for each in deck.ready if each.task is not deck.graph.tasks[deck.current_task]]"
    )
    shown.settles(lambda deck: deck.queue, waiting)
    running = int(shown.data("running"))
    expect(shown.task(running)).to_contain_text(second)
    expect(shown.inspector).to_contain_text("workload_models_autograd.py")
    said = shown.root.locator(".time canvas[role=img]").get_attribute("aria-label") or ""
    says(said, "memory", "peak")
    expect(shown.root.locator(".time .peak")).to_contain_text(re.compile(r"predicted.* tape\b"))
    shown.press("back")
    shown.expect(t=0)
    shown.press("breakpoint")
    shown.expect(status="finished")
    assert lab_page.value(f"as_autograd({name!r}, tape)")


def test_what_the_numpy_sees_is_edited_on_the_page(lab_page: Notebook) -> None:
    shown = ShownDeck(lab_page.run("tape = opened('needless')\ndeck = ts.debug(tape, policy='dfs')").element)
    shown.press("step")
    shown.expect(t=1)
    edits = shown.inspector.locator(".edits")
    edits.get_by_label("factor").fill("3")
    edits.get_by_role("button", name="×").click()
    expect(shown.inspector.locator("[data-edited]")).to_contain_text("edited")
    shown.press("breakpoint")
    shown.expect(status="finished")
    assert lab_page.value("bool((tape.gradient == 3.0).all())")


def test_a_measured_run_of_a_tape_is_a_page_with_its_memory(tab: Tab, tmp_path: Path) -> None:
    import autograd.numpy as np
    import numpy

    def fan_out(x, z):  # type: ignore[no-untyped-def]
        for _ in range(6):
            z = np.dot(x, z)
        return np.sum(z)

    arrays = numpy.full((64, 64), 0.01), numpy.ones((64, 64))
    run = ts.backward(ts.hips.tape(fan_out, *arrays), policy="dfs", memory=True, accumulate="list", trace="full")
    page = tab.open(viewport={"width": 1400, "height": 1200})
    trouble = trouble_of(page)
    page.goto(run.save_html(tmp_path / "tape.html").as_uri())
    shown = ShownDeck(page)
    shown.expect(policy="dfs", t=0)
    shown.scrub(7)
    waiting = shown.root.locator(".lg [data-category=listed]")
    assert int(waiting.get_attribute("data-bytes") or 0) >= 3 * 64 * 64 * 8
    assert shown.canvas_is_drawn(".time .still canvas")
    tab.leave()
    assert trouble == []
