"""PyTorch's own engine with a queue for each device, in JupyterLab: page and kernel step either device's thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from .conftest import CLOSE_ALL, GRADIENTS_AGREE, REMEMBER, SET_ASIDE
from .lab import Lab, Notebook
from .shown import ShownDeck

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WHY_NOT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import second_device
print(second_device.why_not() or "")
"""

MODEL = """
%load_ext tapescope
second_device.load()
import torch, tapescope as ts
from torch import nn

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4).to("second:0"), nn.Linear(4, 4).to("second:1")
    def forward(self, x):
        left, right = x.to("second:0"), x.to("second:1")
        for _ in range(3):
            left, right = self.left(left).tanh(), self.right(right).tanh()
        return left.cpu().sum() + right.cpu().sum()

torch.manual_seed(0)
model, x = Branches(), torch.randn(5, 4)

def captured():
    model.zero_grad()
    with ts.capture(model):
        return model(x)

captured().backward()
expected = [parameter.grad.clone() for parameter in model.parameters()]
"""


@pytest.fixture(scope="module")
def lab_page(lab: Lab, browser: Browser) -> Iterator[Notebook]:
    """Open a page with a separate kernel, which must know the devices before its first backward."""
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    notebook = Notebook(page, lab, "devices")
    if why := notebook.kernel(WHY_NOT):
        pytest.skip(why)
    notebook.kernel(SET_ASIDE)
    notebook.run(MODEL)
    notebook.kernel(REMEMBER)
    yield notebook
    left = notebook.kernel(CLOSE_ALL)
    page.close()
    assert left == "", "threads of the deck outlive it"
    assert notebook.trouble == []


def queue_of(shown: ShownDeck, device: str) -> Locator:
    return shown.root.locator(f".queue [data-device='{device}']")


def test_each_device_is_stepped_by_its_own_queue_until_it_stands_still(lab_page: Notebook) -> None:
    shown = ShownDeck(lab_page.run("deck = ts.debug(captured(), engine='native', queues='per device')").element)
    ran = "[str(deck.graph.tasks[each].device) for each in deck.order]"
    cpu, far = queue_of(shown, "cpu"), queue_of(shown, "second:1")
    expect(far.get_by_role("button", name="step second:1")).to_be_disabled()
    steps = 0
    while (button := cpu.get_by_role("button", name="step cpu")).is_enabled():
        button.click()
        steps += 1
        shown.expect(t=steps, status="stopped")
    assert lab_page.value(ran) == ["cpu"] * steps
    for more in range(2):
        far.get_by_role("button", name="step second:1").click()
        shown.expect(t=steps + more + 1, status="stopped")
    lab_page.run("%tapescope step on second:0")
    shown.expect(t=steps + 3)
    assert lab_page.value(ran)[steps:] == ["second:1", "second:1", "second:0"]
    shown.press("end")
    shown.expect(status="finished")
    assert lab_page.value(GRADIENTS_AGREE)


def test_meanwhile_the_next_cells_backward_ends(lab_page: Notebook) -> None:
    shown = ShownDeck(lab_page.run("deck = ts.debug(captured(), engine='native', queues='per device')").element)
    while (button := queue_of(shown, "cpu").get_by_role("button", name="step cpu")).is_enabled():
        before = int(shown.data("t"))
        button.click()
        shown.expect(t=before + 1)
    lab_page.run("other = Branches(); other(x).backward(); other.left.weight.grad.cpu()")
    shown.expect(status="stopped")
    lab_page.run("deck.run()")
    shown.expect(status="finished")
    assert lab_page.value(GRADIENTS_AGREE)
