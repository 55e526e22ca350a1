"""The debugger's verbs in JupyterLab: what the page asks for happens in the kernel, and what happens there is shown."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .conftest import GRADIENTS_AGREE
from .lab import Notebook
from .shown import ShownDeck

pytestmark = pytest.mark.e2e

MODEL = """
%load_ext tapescope
import torch, tapescope as ts
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)
    def forward(self, x):
        return self.out(x)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x

torch.manual_seed(0)
model, x = nn.Sequential(Block(), Block(), Head()), torch.randn(5, 4)

def captured(of=lambda out: out.square().mean()):
    model.zero_grad()
    with ts.capture(model, keep_inputs=True):
        return of(model(x))

captured().backward()
expected = [parameter.grad.clone() for parameter in model.parameters()]
planned = ts.backward(captured(), policy="heap", retain_graph=True).order
"""


@pytest.fixture(scope="module")
def model(open_notebook: Notebook) -> None:
    open_notebook.run(MODEL)


@pytest.fixture
def lab_page(notebook: Notebook, model: None) -> Notebook:
    return notebook


def add_stop(shown: ShownDeck, text: str, kind: str = "break") -> None:
    """Types into the panel of stops, and closes it."""
    shown.key("s")
    panel = shown.root.get_by_role("dialog", name="stops")
    panel.get_by_role("combobox", name="kind").select_option(kind)
    field = panel.get_by_role("combobox").last
    field.fill(text)
    panel.get_by_role("button", name="add").click()
    expect(field).to_have_value("")
    panel.get_by_role("button", name="close").click()


@pytest.mark.parametrize("engine", [pytest.param("direct", marks=pytest.mark.slow), "native"])
def test_a_module_that_is_typed_on_the_page_stops_the_run_in_the_kernel(lab_page: Notebook, engine: str) -> None:
    shown = ShownDeck(lab_page.run(f"deck = ts.debug(captured(), engine={engine!r})").element)
    add_stop(shown, "0.down")
    shown.press("breakpoint")
    shown.expect(stopped="breakpoint", status="stopped")
    banner = shown.root.locator(".stopped")
    expect(banner).to_contain_text(re.compile(r"breakpoint 1 \(0\.down\).* \w+ \(0\.down, \d+[a-z]{2}"))
    lab_page.wait_for("deck.stopped is not None")
    assert lab_page.value("deck.graph.module(deck.current)") == "0.down"
    assert lab_page.value("[each.text for each in deck.stops]") == ["0.down"]
    lab_page.run("%tapescope delete 1")
    shown.expect(stops=0)
    lab_page.run("%tapescope run")
    shown.expect(status="finished", stopped="")
    assert lab_page.value(GRADIENTS_AGREE)


@pytest.mark.slow
def test_what_is_made_wrongly_is_said_where_it_is_typed(lab_page: Notebook, shown: ShownDeck) -> None:
    shown.key("s")
    panel = shown.root.get_by_role("dialog", name="stops")
    field = panel.get_by_role("combobox", name="where")
    field.fill("0.dwon")
    panel.get_by_role("button", name="add").click()
    expect(panel.get_by_role("alert")).to_contain_text(re.compile(r"\"0\.dwon\".* 0\.down\b"))
    panel.get_by_role("button", name="close").click()
    shown.press("step")
    shown.expect(t=1, status="stopped")


def test_a_gradient_that_turns_to_nan_stops_the_run_and_the_page_walks_back_to_where(lab_page: Notebook) -> None:
    cell = lab_page.run("deck = ts.debug(captured(lambda out: out.clamp(max=-9).add(9).log().mul(0).sum()))")
    shown = ShownDeck(cell.element)
    add_stop(shown, "nan", kind="watch")
    shown.press("breakpoint")
    shown.expect(stopped="watchpoint")
    banner = shown.root.locator(".stopped")
    log = lab_page.value("next(each.id for each in deck.graph.tasks if each.name == 'LogBackward0')")
    expect(banner).to_contain_text("LogBackward0 (")
    expect(banner.get_by_role("listitem").first).to_be_visible()  # the origin is shown at once
    assert lab_page.value("deck.order[-1]") == log
    lab_page.run("%tapescope back")
    shown.expect(t=lab_page.value("deck.position"), running=log, stopped="")


def test_the_session_is_taken_back_from_the_page_and_runs_on_to_the_same_gradients(
    lab_page: Notebook, shown: ShownDeck
) -> None:
    lab_page.kernel("deck.run()")
    shown.expect(status="finished")
    expect(shown.root.locator(".held")).to_have_text(re.compile(r"\d [KM]?i?B$"))
    shown.scrub(6)
    shown.root.locator(".rewind").click()
    lab_page.wait_for("deck.position == 6")
    shown.expect(t=6, status="stopped", running=lab_page.value("planned[6]"))
    assert lab_page.value("all(p.grad is None for p in model[0].parameters())")
    lab_page.kernel("deck.run()")
    shown.expect(status="finished")
    assert lab_page.value(GRADIENTS_AGREE)


@pytest.mark.slow
def test_an_edit_after_going_back_is_a_branch_from_which_the_other_can_be_gone_on(
    lab_page: Notebook, shown: ShownDeck
) -> None:
    lab_page.kernel("deck.run(); deck.back(deck.position - 4)")
    shown.expect(t=4, status="stopped")
    edits = shown.inspector.locator(".edits")
    edits.get_by_label("factor").fill("3")
    edits.get_by_role("button", name="×").click()
    expect(shown.inspector.locator("[data-edited]")).to_contain_text("edited")
    shown.press("breakpoint")
    shown.expect(status="finished")
    lab_page.wait_for("len(deck.branches) == 2")
    assert not lab_page.value(GRADIENTS_AGREE)
    tab = shown.root.locator("[role=tab][data-branch='1']")
    tab.click()
    shown.expect(policy="branch 1")
    shown.root.locator(".run-on button").click()
    lab_page.wait_for("deck.branches[0].is_current")
    shown.expect(policy="heap")
    assert lab_page.value(GRADIENTS_AGREE)
    compared = lab_page.run("deck.compare_branches()")
    assert "<table" in compared.outputs[0]["data"]["text/html"]
    assert lab_page.value("len(deck.compare_branches().rows[1].different)") > 0


@pytest.mark.slow
def test_keys_step_over_a_module_and_out_of_it(lab_page: Notebook, shown: ShownDeck) -> None:
    first = lab_page.value("next(each for each in planned if deck.graph.module(deck.graph.tasks[each]) == '1.down')")
    ran = "all(t.id in deck.order for t in deck.graph.tasks if re.match({!r}, deck.graph.module(t) or ''))"
    lab_page.kernel(f"import re; deck.run_to({first})")
    for key, module in (("o", r"1\.down$"), ("Shift+O", r"1(\.|$)")):
        lab_page.kernel(f"deck.goto({first})")
        shown.expect(running=first)
        assert not lab_page.value(ran.format(module))
        shown.key(key)
        lab_page.wait_for(ran.format(module))
        lab_page.wait_for("deck.status == 'stopped'")
        shown.expect(t=lab_page.value("deck.position"))
        assert not lab_page.value(ran.format(r"0\."))


@pytest.mark.slow
def test_a_custom_function_with_a_wrong_backward_is_named_by_a_check_on_the_page(lab_page: Notebook) -> None:
    cell = lab_page.run("deck = ts.debug(captured(lambda out: Square.apply(out).sum()))")
    shown = ShownDeck(cell.element)
    square = lab_page.value("next(each.id for each in deck.graph.tasks if each.name == 'SquareBackward')")
    lab_page.kernel(f"deck.run_to({square})")
    shown.expect(running=square)
    shown.inspector.get_by_role("button", name="check").click()
    section = shown.inspector.locator("[data-check]")
    expect(section).to_have_attribute("data-check", "wrong")
    assert lab_page.value(f"deck.check({square}).ok") is False


@pytest.mark.slow
def test_what_is_asked_of_pytorchs_engine_in_vain_is_said_and_ends_nothing(lab_page: Notebook) -> None:
    shown = ShownDeck(lab_page.run("deck = ts.debug(captured(), engine='native')").element)
    lab_page.kernel("deck.step(count=4)")
    shown.expect(t=4)
    shown.scrub(2)
    expect(shown.root.locator(".rewind")).to_be_hidden()
    with pytest.raises(AssertionError, match="NotImplementedError"):
        lab_page.run("deck.back()")
    lab_page.kernel("deck.run()")
    assert lab_page.value(GRADIENTS_AGREE)
