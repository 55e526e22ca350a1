"""The browser tab in which tests open their pages, one after the other: a new tab costs a second of CPU time more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Browser, Page

VISITS = 40
"""Pages opened in a tab before another tab replaces it, so that memory a renderer keeps of each does not add up."""

FORGET = "() => { try { localStorage.clear(); sessionStorage.clear(); } catch { /* a blank page has no storage */ } }"
SIZE = {"width": 1280, "height": 720}
MEDIA = {"color_scheme": "light", "forced_colors": "none", "reduced_motion": "no-preference"}


class Tab:
    """Opens blank pages as `browser.new_page` does, but only one at a time.

    Each page has the requested size and media, no listeners, no stored values, and no pointer over it. Tests that use
    what Playwright cannot undo in a page (init scripts, touch, CPU throttling) call `browser.new_page`.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._visits = 0
        self._page: Page | None = None
        self._is_open = False
        self._listeners: list[tuple[Any, Callable[..., Any]]] = []

    def open(self, viewport: dict[str, int] = SIZE, **media: str) -> Page:
        assert media.keys() <= MEDIA.keys(), "this option needs browser.new_page"
        self.leave()
        if self._page is None or self._visits == VISITS:
            self._replace_page()
        self._visits += 1
        self._page.set_viewport_size(viewport)
        self._page.emulate_media(**MEDIA | media)
        self._is_open = True
        return self._page

    def leave(self) -> None:
        """Goes back to a blank page and removes all listeners, once they have heard of everything until then."""
        if not self._is_open:
            return
        self._is_open = False
        self._page.evaluate(FORGET)
        self._page.goto("about:blank")
        self._page.mouse.move(-1, -1)
        for event, listener in self._listeners:
            self._page.remove_listener(event, listener)
        self._listeners.clear()

    def _replace_page(self) -> None:
        if self._page is not None:
            self._page.close()
        self._page = self._browser.new_page()
        self._visits = 0
        listen = self._page.on

        def on(event: Any, listener: Callable[..., Any]) -> None:
            self._listeners.append((event, listener))
            listen(event, listener)

        self._page.on = on
