"""The deck by keyboard alone, with colours that can be read, nothing cut, and without motion where none is wanted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

import tapescope as ts
from tapescope.engine.studies.workloads import workload

from .shown import ShownDeck

pytestmark = pytest.mark.e2e

READABLE = 4.5
"""Contrast of text to its ground: WCAG 2.2, level AA."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured run: all phases that a page can have without a step, and a clock."""
    torch.manual_seed(0)
    run = ts.profile(workload("gpt2").build(layers=3)[1], trace="cheap")
    return run.save_html(tmp_path_factory.mktemp("everyone") / "run.html")


def opened(page: Page, path: Path, width: int = 1420, height: int = 900) -> ShownDeck:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(path.as_uri())
    return ShownDeck(page)


# The focus inside of the deck's shadow root, as a test can compare it; tags what it has been on.
FOCUSED = """deck => {
    const focused = deck.getRootNode().activeElement;
    focused?.setAttribute('data-visited', '');
    return focused === null ? 'outside' : 'inside';
}"""
# Controls that Tab has not been on. Of those that share one stop, the others are reached by arrow keys.
UNREACHED = """deck => [
    ...deck.querySelectorAll('button, input, select, canvas[tabindex], [role=separator]'),
].filter(each => {
    if (each.disabled || !each.getClientRects().length || each.hasAttribute('data-visited')) return false;
    const shared = each.closest('[role=tablist], [data-mirror], .list');
    return !(each.tabIndex < 0 && shared?.querySelector('[data-visited]'));
}).map(each => each.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize(("width", "height"), [(1420, 900), pytest.param(916, 700, marks=pytest.mark.slow)])
def test_tab_reaches_every_control(page: Page, path: Path, width: int, height: int) -> None:
    deck = opened(page, path, width, height)
    deck.scrub(30)  # so that one can go back, and tasks are ready
    deck.root.focus()
    for _ in range(120):
        page.keyboard.press("Tab")
        if deck.evaluate(FOCUSED) == "outside":
            break
    else:
        raise AssertionError("the deck is a trap")
    assert deck.evaluate("deck => deck.querySelectorAll('[data-visited]').length") > 20
    assert deck.evaluate(UNREACHED) == []


def test_a_whole_session_by_keys(page: Page, path: Path) -> None:
    """Nothing is clicked; where a key leaves the focus, the next one works."""
    deck = opened(page, path)
    press, said = page.keyboard.press, deck.root.get_by_role("status").first
    press("ArrowRight")
    deck.expect(t=1)
    expect(said).to_contain_text(re.compile(r"\b2nd\b"))
    press("p")
    expect(deck.root).not_to_have_attribute("data-t", "1")
    peak = int(deck.data("t"))
    press("b")
    press("Home")
    press("r")
    deck.expect(t=peak)
    expect(deck.root.get_by_role("button", name=re.compile("^breakpoint")).first).to_have_attribute(
        "aria-pressed", "true"
    )
    press("2")
    deck.expect(policy="bfs")
    press("1")
    deck.expect(policy="heap")
    press("Home")
    press("Space")
    expect(deck.root.get_by_role("button", name=re.compile("^Pause"))).to_be_visible()
    press("Space")
    expect(deck.root.get_by_role("button", name=re.compile("^Play"))).to_be_visible()
    press("/")
    page.keyboard.type("gelu")
    press("ArrowDown")
    press("Enter")
    expect(deck.root).to_be_focused()
    expect(deck.inspector).to_contain_text("GeluBackward0")
    press("Escape")
    press("Shift+BracketLeft")
    expect(deck.mirror.locator("[aria-expanded='true']")).to_have_count(0)
    deck.root.locator(".graph canvas").first.focus()
    press("Tab")  # into the list of what is in view, which is one stop
    while deck.mirror.locator("button:focus[aria-expanded]").count() == 0:
        press("ArrowDown")
    box = deck.mirror.locator("button:focus").get_attribute("data-key")
    press("Enter")
    expect(deck.mirror.locator(f"[data-key='{box}']")).to_have_attribute("aria-expanded", "true")
    press("Escape")
    press("w")
    deck.settles(frame_height, 900)
    press("?")
    expect(deck.root.get_by_role("dialog", name="keys")).to_be_visible()
    press("Escape")
    expect(deck.root.get_by_role("dialog", name="keys")).to_have_count(0)
    press("Escape")
    deck.settles(frame_height, 884)
    press("s")
    panel = deck.root.get_by_role("dialog", name="stops")
    expect(panel.get_by_role("combobox", name="kind")).to_be_visible()
    press("Escape")
    expect(panel).to_have_count(0)
    press("c")
    expect(deck.root.get_by_role("button", name="clock")).to_have_attribute("aria-pressed", "true")
    press("End")
    deck.expect(running=-1)


def frame_height(deck: ShownDeck) -> float:
    found = deck.root.locator(".frame").bounding_box()
    assert found is not None
    return found["height"]


# Record all text that is painted on canvases from now on, each with its contrast to the colour below it.
WATCH = """() => {
    const draw = CanvasRenderingContext2D.prototype.fillText;
    const probe = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgb = colour => {
        probe.clearRect(0, 0, 1, 1);
        probe.fillStyle = colour;
        probe.fillRect(0, 0, 1, 1);
        return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    };
    window.light = colour => {
        const [red, green, blue] = colour.map(value => value / 255)
            .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    window.over = (above, share, below) => above.map((value, at) => value * share + below[at] * (1 - share));
    window.contrast = (one, other) => {
        const [more, less] = [light(one), light(other)].sort((a, b) => b - a);
        return (more + 0.05) / (less + 0.05);
    };
    window.panel = () => {
        const deck = document.querySelector('.tapescope-deck').shadowRoot.querySelector('.deck');
        return rgb(getComputedStyle(deck).getPropertyValue('--panel'));
    };
    window.painted = new Map();
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        const width = this.measureText(text).width;
        const left = x - width * ({ center: 0.5, right: 1, end: 1 }[this.textAlign] ?? 0);
        const seen = new Map();
        for (let part = 0; window.watched && part <= 8; part++) {
            const at = { x: left + width * part / 8, y: this.textBaseline === 'middle' ? y : y - 3 };
            const pixel = this.getTransform().transformPoint(at);
            if (pixel.x < 0 || pixel.y < 0 || pixel.x >= this.canvas.width || pixel.y >= this.canvas.height) continue;
            const [red, green, blue, alpha] = this.getImageData(pixel.x, pixel.y, 1, 1).data;
            const ground = over([red, green, blue], alpha / 255, panel()).map(Math.round).join();
            seen.set(ground, (seen.get(ground) ?? 0) + 1);
        }
        if (seen.size) {
            const [[most]] = [...seen].sort(([, one], [, other]) => other - one);
            const ground = most.split(',').map(Number);
            painted.set(`${text} on ${most}`, contrast(over(rgb(this.fillStyle), this.globalAlpha, ground), ground));
        }
        return draw.apply(this, arguments);
    };
}"""
# The text of each element that is seen, and its contrast to the ground that is painted below it.
WRITTEN = """deck => {
    const parts = colour => {
        const found = colour.match(/[0-9.]+/g).map(Number);
        const [red, green, blue, alpha = 1] = found;
        return { rgb: [red, green, blue].map(each => colour.startsWith('color(') ? each * 255 : each), alpha };
    };
    const ground = element => {
        if (!element) return panel();
        const { rgb, alpha } = parts(getComputedStyle(element).backgroundColor);
        return alpha === 1 ? rgb : over(rgb, alpha, ground(element.parentElement));
    };
    const isSeen = each => {
        for (let at = each; at !== deck; at = at.parentElement) if (getComputedStyle(at).opacity === '0') return false;
        return each.getClientRects().length && getComputedStyle(each).visibility === 'visible';
    };
    return [...deck.querySelectorAll('*')].filter(each =>
        [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()) &&
        !each.closest('style, .sr, :disabled, [data-mirror]') && isSeen(each)
    ).map(each => [each.textContent.slice(0, 60), contrast(parts(getComputedStyle(each).color).rgb, ground(each))]);
}"""


def poses(deck: ShownDeck) -> Iterator[str]:
    """Yield the states of the deck with their own texts, except a search, which fades other tasks while it is typed."""
    deck.scrub(30)
    yield "half way, by tasks"
    deck.key("c")
    deck.key("?")
    yield "by the clock, with the keys"
    deck.root.page.keyboard.press("Escape")
    deck.key("2")
    deck.key("b")
    deck.key("s")
    yield "another policy, with a breakpoint"
    deck.root.page.keyboard.press("Escape")
    deck.key("1")
    deck.unfold_all()
    yield "unfolded"
    deck.key("f")
    deck.key("End")
    yield "all done"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_all_text_has_contrast_on_canvases_too(page: Page, path: Path, scheme: Any) -> None:
    page.add_init_script(f"({WATCH})()")
    other: Any = {"light": "dark", "dark": "light"}[scheme]
    page.emulate_media(color_scheme=scheme)
    deck = opened(page, path)
    for pose in poses(deck):
        deck.rests()
        page.emulate_media(color_scheme=other)
        deck.expect(theme=other)
        deck.rests()
        page.evaluate("() => { window.watched = true; painted.clear(); }")
        page.emulate_media(color_scheme=scheme)  # so that all is drawn anew, and nothing moves
        deck.expect(theme=scheme)
        deck.settles(lambda _: page.evaluate("painted.size > 20"), True)
        deck.rests()
        painted, written = page.evaluate("[...painted]"), deck.evaluate(WRITTEN)
        page.evaluate("() => { window.watched = false; }")
        assert len(written) > 60
        assert [each for each in [*painted, *written] if each[1] < READABLE] == [], pose


# Texts that do not fit. A name may be longer than the space for it; a tooltip then shows it.
CUT = """deck => [...deck.querySelectorAll('*')].filter(each =>
    [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()) && each.getClientRects().length &&
    !each.closest('style, .sr, [data-mirror]') && getComputedStyle(each).overflowX !== 'visible' &&
    each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 1
).filter(each => !(each.matches('.n, .m, .row .t') && each.closest('[title]')))
    .map(each => `${each.tagName}.${each.className} ${each.textContent}`)"""


@pytest.mark.parametrize(
    ("width", "height"),
    [(1000, 700), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((1420, 900), (916, 700)))],
)
def test_from_900_pixels_on_no_label_is_cut_and_no_page_scrolls(
    page: Page, path: Path, width: int, height: int
) -> None:
    deck = opened(page, path, width, height)
    for pose in poses(deck):
        deck.rests()
        assert deck.evaluate(CUT) == [], pose
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), pose
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), pose


# Presses a key, and tells whether the pictures of the second frame after it are those at rest.
AT_ONCE = """async (deck, key) => {
    const frame = () => new Promise(requestAnimationFrame);
    const canvases = [...deck.querySelectorAll('.graph canvas, .time .moving')];
    const pictures = () => canvases.map(each => each.toDataURL()).join();
    deck.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
    await frame();
    await frame();
    await frame(); // in which the one before is seen
    const soon = pictures(), moves = deck.getAnimations({ subtree: true }).length;
    while (!('rests' in deck.dataset)) await frame();
    return !moves && soon === pictures();
}"""


def test_with_less_motion_all_is_there_in_the_next_frame(page: Page, path: Path) -> None:
    page.emulate_media(reduced_motion="reduce")
    deck = opened(page, path)
    for key in ("ArrowRight", "p", "End", "{", "}", "f", "Home", "2"):  # a step, jumps, folds, the whole, a policy
        deck.rests()
        assert deck.evaluate(AT_ONCE, key), key
    assert deck.evaluate(
        "deck => [...deck.querySelectorAll('*')].every(each => getComputedStyle(each).transitionDuration === '0s'"
        " && getComputedStyle(each).animationName === 'none')"
    )


def test_forced_colours_are_those_of_the_timeline_and_what_is_chosen_is_seen(page: Page, path: Path) -> None:
    page.emulate_media(forced_colors="active")
    deck = opened(page, path)
    deck.scrub(30)
    deck.rests()
    assert deck.canvas_is_drawn(".time .moving")
    chosen, other = deck.tabs.first, deck.tabs.nth(1)
    assert ground_of(chosen) != ground_of(other)
    assert ground_of(deck.root.locator(".queue .now").first) != ground_of(deck.root.locator(".queue .row").first)


def ground_of(element: Locator) -> str:
    return str(element.evaluate("each => getComputedStyle(each).backgroundColor"))
