"""The page of a training loop, as a browser shows it: offline, in either theme, without a kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import nn

import tapescope as ts
from tapescope.engine.training.training_result import Training
from tapescope.tests.says import Snapshots, says

from .tab import Tab
from .theme_around import expect_theme_of_the_page_around

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore:ts.training:UserWarning")]

STEPS = 40
BAD = 17


class Doubtful(nn.Module):
    """A layer whose gradient is NaN on demand, with everything below it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        return y + (y * 0).abs().sqrt() if self.fails else y


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()), Doubtful(), nn.Sequential(nn.Linear(8, 8), nn.Tanh())]
    model = nn.ModuleDict({"<b>in": nn.Linear(4, 8), "blocks": nn.Sequential(*blocks), "head": nn.Linear(8, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ts.training(model, optimizer, black_box=tmp_path_factory.mktemp("a box")) as training:
        for step in range(STEPS):
            blocks[1].fails = step == BAD
            optimizer.zero_grad()
            x = model["blocks"](model["<b>in"](torch.randn(3, 4)))
            model["head"](x).square().mean().backward()
            if step == BAD:
                saved = [each.detach().clone() for each in model.parameters()]
            optimizer.step()
            if step == BAD:
                with torch.no_grad():
                    for parameter, before in zip(model.parameters(), saved, strict=True):
                        parameter.copy_(before)
    return training


@pytest.fixture(params=[("light", 1420, 900), ("dark", 1000, 700), ("dark", 900, 700)], ids=lambda value: str(value[1]))
def page(tab: Tab, trained: Training, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Page, list[str]]:
    """The page, and what went wrong on it or over the network."""
    scheme, width, height = request.param
    address = trained.save_html(tmp_path / "page.html", "<b>&mine").as_uri()
    page = tab.open(color_scheme=scheme, viewport={"width": width, "height": height})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda found: trouble.append(found.url) if found.url != address else None)
    page.goto(address)
    page.wait_for_selector(".ts-loop[data-ready] h3")
    return page, trouble


def expect_chosen(page: Page, wanted: str) -> None:
    """Waits for the frame in which it is shown."""
    expect(page.locator("h3")).to_have_text(re.compile(f"^{re.escape(wanted)}"))


# The colours of the heat map's cells in a column of pixels, from the top.
PIXELS = """(canvas, x) => {
    const pen = canvas.getContext('2d'), ratio = devicePixelRatio;
    const {data} = pen.getImageData(Math.round(x * ratio), 0, 1, canvas.height);
    return Array.from({length: canvas.height}, (_, y) => [...data.slice(4 * y, 4 * y + 3)].join());
}"""


CUT = """list => [...list.querySelectorAll('small')]
    .filter(each => each.scrollHeight > each.clientHeight).map(each => each.textContent)"""
"""The sentences that are cut. A long list scrolls instead."""


def test_it_opens_at_the_first_finding_and_fits_its_window(page: tuple[Page, list[str]], trained: Training) -> None:
    shown, trouble = page
    first = trained.findings[0]
    assert first.step == BAD
    expect_chosen(shown, f"step {BAD} ·")
    assert shown.locator(".finding").count() == len(trained.findings) > 1
    assert shown.locator(".finding[aria-pressed=true] small").inner_text() == first.sentence
    assert shown.locator(".title").inner_text() == "<b>&mine"
    assert shown.locator(".findings").evaluate(CUT) == []
    assert shown.evaluate(
        "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
    )
    assert trouble == []


def test_keys_choose_steps_modules_and_findings(page: tuple[Page, list[str]], trained: Training) -> None:
    shown, trouble = page
    press = shown.keyboard.press
    press("Home")
    for _ in trained.norms.modules:
        press("ArrowUp")
    expect_chosen(shown, "step 0 · head")
    for key, wanted in (
        ("ArrowRight", "step 1 · head"),
        ("ArrowDown", f"step 1 · {trained.norms.modules[1]}"),
        ("End", f"step {STEPS - 1} · {trained.norms.modules[1]} Linear"),
        ("ArrowLeft", f"step {STEPS - 2} · {trained.norms.modules[1]}"),
        ("n", f"step {trained.findings[0].step} ·"),
        ("n", f"step {trained.findings[1].step} ·"),
        ("p", f"step {trained.findings[0].step} ·"),
    ):
        press(key)
        expect_chosen(shown, wanted)
    press("u")
    expect(shown.locator(".tabs [aria-pressed=true]")).to_have_text("update ratio")
    press("?")
    expect(shown.locator(".help")).to_be_visible()
    press("Escape")
    expect(shown.locator(".help")).to_be_hidden()
    assert trouble == []


def test_numbers_beside_it_are_those_of_the_loop(page: tuple[Page, list[str]], trained: Training) -> None:
    shown, _ = page
    shown.keyboard.press("Home")
    for _ in trained.norms.modules:
        shown.keyboard.press("ArrowUp")
    expect_chosen(shown, "step 0 · head")
    ink = shown.evaluate("getComputedStyle(document.querySelector('.ts-loop')).getPropertyValue('--ink').trim()")
    key = shown.locator("canvas").first.evaluate(PIXELS, 16)[40:52]
    assert ",".join(str(int(ink[at : at + 2], 16)) for at in (1, 3, 5)) in key, "the losses' lines have a legend"
    facts = dict(each.inner_text().split("\n") for each in shown.locator(".cell .fact").all())
    for name, value in (
        ("gradient norm", trained.norms.gradients[0, 0]),
        ("weight norm", trained.norms.weights[0, 0]),
        ("update ÷ weight", trained.norms.ratios[0, 0]),
        ("loss", trained.norms.losses[0, 0]),
        ("learning rate", trained.norms.learning_rates[0, 0]),
    ):
        assert float(facts[name].replace("−", "-")) == pytest.approx(float(value), rel=0.06), name


def test_the_map_is_red_where_a_norm_is_not_finite_and_nowhere_else(
    page: tuple[Page, list[str]], trained: Training
) -> None:
    shown, _ = page
    shown.keyboard.press("Home")
    expect_chosen(shown, "step 0 ·")
    canvas = shown.locator("canvas").first
    width = canvas.bounding_box()["width"]  # type: ignore[index]
    left, right = 176, (80 if width > 900 else 64)
    bad = shown.evaluate("getComputedStyle(document.querySelector('.ts-loop')).getPropertyValue('--bad').trim()")
    red = ",".join(str(int(bad[at : at + 2], 16)) for at in (1, 3, 5))
    for step in (BAD - 1, BAD, BAD + 1):
        x = left + (step + 0.5) * (width - left - right) / STEPS - 3
        heat = canvas.evaluate(PIXELS, x)[170:-40]
        count = trained.norms.gradients[step].isnan().sum()
        if count:
            assert heat.count(red) > 5 * int(count), step
        else:
            assert red not in heat, step


def test_a_click_chooses_a_cell_and_the_wheel_zooms_about_it(page: tuple[Page, list[str]], trained: Training) -> None:
    shown, _ = page
    box = shown.locator(".picture").bounding_box()
    assert box is not None
    left, right = 176, (80 if box["width"] > 900 else 64)
    x = box["x"] + left + (20 + 0.5) * (box["width"] - left - right) / STEPS
    shown.mouse.click(x, box["y"] + 164 + 5)
    expect_chosen(shown, f"step 20 · {trained.norms.modules[0]}")
    tip, y = shown.locator(".tip.on"), box["y"] + 164 + 5
    shown.mouse.move(x + 60, y)
    before = int(tip.inner_text().split()[-2].strip(":"))
    shown.mouse.wheel(0, -600)
    shown.mouse.click(x + 60, y)
    expect_chosen(shown, f"step {before} · {trained.norms.modules[0]}")  # what is under the pointer stays there
    shown.mouse.move(x, y)
    assert 20 < int(tip.inner_text().split()[-2].strip(":")) < before, "steps are wider now"


def test_a_kept_step_says_how_it_runs_again_and_others_what_keeps_them(
    page: tuple[Page, list[str]], trained: Training, snapshot: Snapshots
) -> None:
    shown, _ = page
    kept = next(each for each in trained.findings if each.kind == "black box")
    commands = shown.locator(".backward code")
    assert f"tapescope replay '{kept.at}' " in commands.first.inner_text(), "its folder has a space in its name"
    assert "ts.replay(" in commands.nth(1).inner_text()
    shown.keyboard.press("End")
    expect(commands).to_have_count(0)
    snapshot("page", shown.locator("section.backward").inner_text())
    shown.locator(".backward .plain").click()
    expect_chosen(shown, f"step {kept.step} ·")


def test_a_leak_has_its_holder_on_a_line_of_its_own_and_others_like_it_folded(
    tab: Tab, tmp_path: Path, snapshot: Snapshots
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    store = {}
    with ts.training(model, optimizer) as training:
        for step in range(6):
            optimizer.zero_grad()
            store[step] = model(torch.ones(2, 4))
            store[step].sum().backward()
            optimizer.step()
    (leak,) = training.findings
    shown = tab.open()
    shown.goto(training.save_html(tmp_path / "page.html").as_uri())
    row = shown.locator(".finding")
    assert row.locator("code").inner_text() == leak.tensor and leak.tensor.endswith("store[0]")
    says(row.locator(".more").inner_text(), f"{leak.alike - 1} more")
    assert len(re.findall(r"\b\d+ B\b", row.inner_text())) == 1, "the bytes stand in the sentence alone"
    says(row.locator("small").last.inner_text(), ".detach()", ".item()")
    snapshot("page", f"{row.locator('.more').inner_text()}\n{row.locator('small').last.inner_text()}")


def test_the_only_finite_loss_is_drawn_and_the_shell_s_command_is_given(tab: Tab, tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ts.training(model, optimizer) as training:
        for step in range(6):
            optimizer.zero_grad()
            (model(torch.ones(2, 4)).sum() * (torch.nan if step else 1.0)).backward()
            optimizer.step()
    shown = tab.open(viewport={"width": 1300, "height": 900})
    shown.goto(training.save_html(tmp_path / "page.html").as_uri())
    shown.wait_for_selector(".ts-loop[data-ready] h3")
    canvas = shown.locator("canvas").first
    ink = shown.evaluate("getComputedStyle(document.querySelector('.ts-loop')).getPropertyValue('--ink').trim()")
    colour = ",".join(str(int(ink[at : at + 2], 16)) for at in (1, 3, 5))
    wide = (canvas.bounding_box()["width"] - 176 - 80) / 6  # type: ignore[index]
    above_the_rate = slice(0, 220)
    assert colour in canvas.evaluate(PIXELS, 176 + 0.5 * wide)[above_the_rate]
    assert colour not in canvas.evaluate(PIXELS, 176 + 4.2 * wide)[above_the_rate]
    assert "tapescope run --black-box black_box SCRIPT.py" in shown.locator(".backward code").all_inner_texts()


def test_a_training_without_steps_shows_how_to_watch_a_loop_and_nothing_else(tab: Tab, tmp_path: Path) -> None:
    training = ts.training(nn.Linear(2, 2))
    page = tab.open()
    page.goto(training.save_html(tmp_path / "page.html").as_uri())
    page.wait_for_selector(".ts-loop[data-ready] .nothing p")
    says(page.locator(".nothing").inner_text(), "with ts.training(...):")
    assert page.locator("canvas, aside").count() == 0


def test_the_theme_is_that_of_the_page_around(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    expect_theme_of_the_page_around(shown, ".ts-loop")
