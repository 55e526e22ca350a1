"""Colours and fonts of tapescope's figures and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine.memory.categories import Category
from ...inspector.drawing.svg_style import COLOURS
from ...inspector.renderers import GraphTheme
from ...inspector.validation import expect_choice

Colours = Mapping[str, str]

_TEXT_ON = (
    *("saved", "buffer", "pgrad", "work", "other", "held", "unknown", "listed", "consumed", "param", "state"),
    "sunk",
)


def _with_text(colours: dict[str, str]) -> Colours:
    """Add a text colour for each background, such as `on-saved`: white or near black, whichever has more contrast."""
    on = {f"on-{name}": "#111215" if _luminance(colours[name]) > 0.19 else "#ffffff" for name in _TEXT_ON}
    return colours | on


def _luminance(colour: str) -> float:
    """Return the relative luminance as defined by WCAG 2."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
LIGHT, DARK = _with_text(COLOURS["light"]), _with_text(COLOURS["dark"])


# For a figure on a page of unknown theme. The background is transparent; text is grey, with a contrast of 4.3 to 1
# on white and on JupyterLab's black. If the page's theme is known, `follow_page` replaces these colours by the theme's.
# The three grey inks differ by one step, so that the style sheet can tell them apart by their colour.
AUTO: Colours = {
    **LIGHT,
    "panel": "rgba(0,0,0,0)",
    "line": "rgba(128,134,146,0.25)",
    "line2": "rgba(128,134,146,0.6)",
    "ink": "#767b84",
    "ink2": "#767b85",
    "ink3": "#767b86",
}
_FOLLOW = (
    *("ink", "ink2", "ink3", "accent", "saved", "buffer", "pgrad", "work", "other", "held", "listed", "consumed"),
    *("param", "state"),
)
_PAGES = (
    ('body:is([data-jp-theme-light="true"],.vscode-light,[data-theme="light"])', LIGHT),
    ('body:is([data-jp-theme-light="false"],.vscode-dark,[data-theme="dark"])', DARK),
)


def colours_of(theme: GraphTheme) -> Colours:
    """Return the colours for a theme, or for any theme if it is "auto"."""
    known = {"auto": AUTO, "light": LIGHT, "dark": DARK}
    expect_choice(theme, tuple(known), "theme")
    return known[theme]


def follow_page() -> str:
    """Return a style sheet that gives plotly figures in `AUTO` colours those of the surrounding page's theme."""
    rules = []
    for page, colours in _PAGES:
        for name in _FOLLOW:
            red, green, blue = (int(AUTO[name][at : at + 2], 16) for at in (1, 3, 5))
            for what in ("fill", "stroke"):
                # plotly sets colours as inline styles, which only !important overrides.
                where = f'.js-plotly-plot [style*="{what}: rgb({red}, {green}, {blue})"]'
                rules.append(f"{page} {where}{{{what}:{colours[name]}!important}}")
    return "\n".join(rules)


def in_light(svg: str) -> str:
    """Return a drawing with the `AUTO` colours replaced by those of the light theme."""
    for name, colour in AUTO.items():
        if name not in ("line", "line2") and colour != LIGHT[name]:
            svg = svg.replace(colour, LIGHT[name])
    return svg


# For pages that follow the reader's theme: references to CSS variables, which `variables` defines.
LATER: Colours = {name: f"var(--{name})" for name in LIGHT}

CATEGORY_COLOURS = {
    Category.SAVED: "saved",
    Category.BUFFER: "buffer",
    Category.GRADIENT: "pgrad",
    Category.FORWARD: "other",
    Category.HELD: "held",
    Category.WORKSPACE: "work",
    Category.UNKNOWN: "unknown",
    Category.LISTED: "listed",
    Category.CONSUMED: "consumed",
    Category.PARAMETER: "param",
    Category.STATE: "state",
}


def variables(colours: Colours) -> str:
    """Return the colours as definitions of CSS variables, such as `--ink:#1b1d22;...`."""
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


def figure_style(colours: Colours) -> dict[str, Any]:
    """Return the options that all plotly layouts share."""
    return {
        "font": {"family": FONT, "size": 11, "color": colours["ink2"]},
        "paper_bgcolor": colours["panel"],
        "plot_bgcolor": colours["panel"],
    }


def axis_style(colours: Colours, title: str = "") -> dict[str, Any]:
    """Return the options that axes share, with the axis's title if there is one."""
    named = {"title": {"text": title, "standoff": 8}} if title else {}
    lines = {"showline": False, "zeroline": False, "gridcolor": colours["line"]}
    return {**lines, "tickfont": {"color": colours["ink3"]}, **named}


def hover_label(colours: Colours) -> dict[str, Any]:
    """Return the style of hover boxes. They cover other marks, so they always have a background."""
    colours = LIGHT if colours is AUTO else colours
    return {
        "bgcolor": colours["panel"],
        "bordercolor": colours["line2"],
        "font": {"family": FONT, "size": 11, "color": colours["ink"]},
    }
