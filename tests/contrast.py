"""How well the texts of an SVG of ours can be read: each against what is painted below it, by its own style sheet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from xml.etree import ElementTree

Colour = tuple[float, float, float]

SVG = "{http://www.w3.org/2000/svg}"
_INHERITED = ("fill", "fill-opacity", "stroke", "stroke-width")
_LEAST_HALO = 2.5  # pixels of stroke: a letter's surroundings are that colour


@dataclass(frozen=True)
class Read:
    """A text, the class that it or its part has, and its contrast."""

    text: str
    classes: str
    contrast: float


@dataclass(frozen=True)
class _Place:
    x: float = 0.0
    y: float = 0.0
    scale: float = 1.0

    def moved(self, transform: str | None) -> _Place:
        place = self
        for kind, numbers in re.findall(r"(\w+)\(([^)]*)\)", transform or ""):
            first, *others = map(float, numbers.split())
            if kind == "translate":
                x, y = first * place.scale, (others[0] if others else 0.0) * place.scale
                place = replace(place, x=place.x + x, y=place.y + y)
            else:
                place = replace(place, scale=place.scale * first)
        return place


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float
    colour: Colour
    opacity: float


def texts_of(svg: str) -> list[Read]:
    """All texts of a picture in one theme, without variables. Only rects are taken for what is below them."""
    root = ElementTree.fromstring(svg)
    page = _Page("".join(each.text or "" for each in root.iter(f"{SVG}style")))
    return list(page.read(root))


class _Page:
    def __init__(self, sheet: str) -> None:
        self._rules = []
        for order, (selector, body) in enumerate(re.findall(r"([^{}]+)\{([^{}]*)\}", sheet)):
            parts = [_compound(each) for each in selector.split()]
            classes = sum(len(names) for _, names in parts)
            weight = (classes, sum(bool(tag) for tag, _ in parts), order)
            self._rules.append((weight, parts, _declared(body)))
        self._rules.sort(key=lambda rule: rule[0])
        self._boxes: list[_Box] = []

    def read(self, root: ElementTree.Element) -> Iterator[Read]:
        usual = {"fill": "#000000", "fill-opacity": "1", "stroke": "none", "stroke-width": "1"}
        waiting: list[tuple[ElementTree.Element, list[ElementTree.Element], dict[str, str], _Place]]
        waiting = [(root, [], usual, _Place())]
        while waiting:  # in the order in which they are painted
            element, around, inherited, place = waiting.pop()
            chain = [*around, element]
            style = self._style(chain, inherited)
            place = place.moved(element.get("transform"))
            if element.tag == f"{SVG}rect":
                self._paint(element, style, place)
            elif element.tag == f"{SVG}text":
                yield from self._text(element, chain, style, place)
                continue
            waiting += [(each, chain, style, place) for each in reversed(element)]

    def _style(self, chain: list[ElementTree.Element], inherited: dict[str, str]) -> dict[str, str]:
        style = dict(inherited)
        for _, parts, declared in self._rules:
            if _matches(parts, chain):
                style |= {name: value for name, value in declared.items() if name in _INHERITED}
        own = _declared(chain[-1].get("style") or "")
        return style | {name: value for name, value in own.items() if name in _INHERITED}

    def _paint(self, element: ElementTree.Element, style: dict[str, str], place: _Place) -> None:
        if style["fill"] == "none":
            return
        x, y, width, height = (float(element.get(name, 0)) for name in ("x", "y", "width", "height"))
        left, top = place.x + x * place.scale, place.y + y * place.scale
        right, bottom = left + width * place.scale, top + height * place.scale
        opacity = float(style["fill-opacity"])
        self._boxes.append(_Box(left, top, right, bottom, _colour(style["fill"]), opacity))

    def _text(
        self, element: ElementTree.Element, chain: list[ElementTree.Element], style: dict[str, str], place: _Place
    ) -> Iterator[Read]:
        x = place.x + place.scale * float(element.get("x", 0))
        y = place.y + place.scale * (float(element.get("y", 0)) - 4)
        below = (1.0, 1.0, 1.0)
        for box in self._boxes:
            if box.left <= x <= box.right and box.top <= y <= box.bottom:
                below = _over(box.colour, box.opacity, below)
        for each in (element, *element):
            found = style if each is element else self._style([*chain, each], style)
            if text := (each.text or "").strip():
                halo = found["stroke"] != "none" and float(found["stroke-width"].removesuffix("px")) >= _LEAST_HALO
                ground = _colour(found["stroke"]) if halo else below
                yield Read(text, each.get("class") or "", _contrast(_colour(found["fill"]), ground))


def _compound(text: str) -> tuple[str, frozenset[str]]:
    tag, *names = text.split(".")
    return tag, frozenset(names)


def _declared(body: str) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (each.partition(":") for each in body.split(";"))}


def _matches(parts: list[tuple[str, frozenset[str]]], chain: list[ElementTree.Element]) -> bool:
    *outer, last = parts
    if not _is(last, chain[-1]):
        return False
    at = len(chain) - 1
    for part in reversed(outer):
        at = next((place for place in range(at - 1, -1, -1) if _is(part, chain[place])), -1)
        if at < 0:
            return False
    return True


def _is(part: tuple[str, frozenset[str]], element: ElementTree.Element) -> bool:
    tag, names = part
    return (not tag or element.tag == SVG + tag) and names <= set((element.get("class") or "").split())


def _colour(text: str) -> Colour:
    text = text.lstrip("#")
    red, green, blue = (int(text[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return red, green, blue


def _over(colour: Colour, opacity: float, below: Colour) -> Colour:
    red, green, blue = (opacity * one + (1 - opacity) * other for one, other in zip(colour, below, strict=True))
    return red, green, blue


def _contrast(one: Colour, other: Colour) -> float:
    """Return the contrast as defined by WCAG 2."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Colour) -> float:
    red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
