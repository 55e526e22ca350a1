"""Figures of saved pages, as a reader meets them."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page

from .tab import Tab

CUT_OR_OVERLAPPING = """() => [...document.querySelectorAll('.figure:not([hidden] *)')].flatMap(figure => {
    const edge = figure.querySelector('.room').getBoundingClientRect();
    const boxes = [...figure.querySelectorAll('.plot text, .room p')]
        .map(text => [text.textContent, text.getBoundingClientRect()])
        .filter(([, box]) => box.width);
    return boxes.flatMap(([name, box], index) => [
        ...(box.right > edge.right + 1 || box.left < edge.left - 1 ? [name + ' is cut'] : []),
        ...boxes.slice(index + 1).filter(([, other]) =>
            box.left < other.right && other.left < box.right && box.top + 3 < other.bottom && other.top + 3 < box.bottom
        ).map(([other]) => name + ' overlaps ' + other),
    ]);
})"""
"""Names and numbers in figures that can't be read: they reach beyond the figure, or lie upon another."""


_TWO_FRAMES = "() => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))"
"""Scrolling, which closes what is said of a point, is heard of in the next frame."""


def opened(tab: Tab, address: str, scheme: Any, width: int) -> tuple[Page, list[str]]:
    """Open a page, and list what goes wrong on it and what it asks of a network."""
    page = tab.open(color_scheme=scheme, viewport={"width": width, "height": 900})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda found: trouble.append(found.url) if found.url != address else None)
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    return page, trouble


def hover(page: Page, place: Locator, across: float = 0.5) -> None:
    """Move the pointer over a figure, or something in it."""
    place.scroll_into_view_if_needed()
    page.evaluate(_TWO_FRAMES)
    box = place.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + across * box["width"], box["y"] + box["height"] / 2, steps=3)


def focus(page: Page, name: str) -> None:
    """Give a figure the keys."""
    page.locator(f"[data-figure={name}] .room").focus()
    page.evaluate(_TWO_FRAMES)


def colour_of(line: Locator) -> str:
    return str(line.evaluate("each => getComputedStyle(each).stroke"))
