"""A page in the tab is as a new one: nothing of the page before is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from .tab import Tab

pytestmark = pytest.mark.e2e

STATE = """() => ({
    size: [innerWidth, innerHeight], stored: [localStorage.length, sessionStorage.length],
    isDark: matchMedia('(prefers-color-scheme: dark)').matches,
    isForced: matchMedia('(forced-colors: active)').matches,
    isStill: matchMedia('(prefers-reduced-motion: reduce)').matches,
    hovered: document.querySelectorAll(':hover').length,
})"""


def test_a_page_keeps_nothing_of_the_one_before(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><body>page")

    def opened(**options: object) -> Page:
        page = tab.open(**options)
        page.goto(path.as_uri())
        return page

    first = opened().evaluate(STATE)
    page = opened(viewport={"width": 500, "height": 400}, color_scheme="dark", reduced_motion="reduce")
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.emulate_media(forced_colors="active")
    page.mouse.move(20, 20)
    page.evaluate("() => { localStorage.kept = sessionStorage.kept = 1; console.log('heard'); }")
    changed = page.evaluate(STATE)
    assert all(changed[name] != value for name, value in first.items())
    page = opened()
    page.evaluate("console.log('not heard')")
    assert page.evaluate(STATE) == first
    assert heard == ["heard"]
