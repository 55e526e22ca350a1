"""A page of ours that stands in another one takes that one's theme."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect


def expect_theme_of_the_page_around(page: Page, root: str) -> None:
    """Expect the theme of the surrounding page in the elements that this selector finds."""
    found = page.locator(root)
    html, body = "document.documentElement", "document.body"
    for where, what in ((body, "data-theme"), (html, "theme")):  # marimo's, and Colab's
        for theme in ("dark", "light"):
            page.evaluate(f"{where}.setAttribute('{what}', '{theme}')")
            expect(found).to_have_attribute("data-theme", theme)
        page.evaluate(f"{where}.removeAttribute('{what}')")
        expect(found).not_to_have_attribute("data-theme", re.compile(""))  # the system is asked
    page.evaluate("document.body.classList.add('vscode-dark')")
    expect(found).to_have_attribute("data-theme", "dark")
