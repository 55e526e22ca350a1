"""The colours and type of all that tapescope draws about memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine.memory.lifetimes import Category
from ...inspector.drawing.svg_style import COLOURS
from ...inspector.renderers import GraphTheme
from ...inspector.validation import expect_choice

Colours = Mapping[str, str]

_TEXT_ON = (
    *("saved", "buffer", "pgrad", "work", "other", "held", "unknown", "listed", "consumed", "param", "state"),
    "sunk",
)


def _with_text(colours: dict[str, str]) -> Colours:
    """Adds, for what text stands on, whichever of white and near black can be read better there: `on-saved`."""
    on = {f"on-{name}": "#111215" if _luminance(colours[name]) > 0.19 else "#ffffff" for name in _TEXT_ON}
    return colours | on


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 has it."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
LIGHT, DARK = _with_text(COLOURS["light"]), _with_text(COLOURS["dark"])


# For a figure on whatever page it is shown. Nothing is behind it; words are grey, 4.3 to 1 against white and against
# JupyterLab's black; where the page's theme is known, each of these colours becomes that theme's own (`follow_page`).
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
    """Those of a figure that is drawn for one theme, or, "auto", for any."""
    known = {"auto": AUTO, "light": LIGHT, "dark": DARK}
    expect_choice(theme, tuple(known), "theme")
    return known[theme]


def follow_page() -> str:
    """A style sheet that gives figures of plotly's in the colours `AUTO` those of the page around them, at any time."""
    rules = []
    for page, colours in _PAGES:
        for name in _FOLLOW:
            red, green, blue = (int(AUTO[name][at : at + 2], 16) for at in (1, 3, 5))
            for what in ("fill", "stroke"):
                where = f'.js-plotly-plot [style*="{what}: rgb({red}, {green}, {blue})"]'
                rules.append(f"{page} {where}{{{what}:{colours[name]}!important}}")
    return "\n".join(rules)


def in_light(svg: str) -> str:
    """A drawing in the colours `AUTO` in those of the light theme."""
    for name, colour in AUTO.items():
        if name not in ("line", "line2") and colour != LIGHT[name]:
            svg = svg.replace(colour, LIGHT[name])
    return svg


# For a page that follows its reader's theme: `variables` gives these their values.
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
    """The colours as CSS variables: `--ink:#1b1d22;...`."""
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


def figure_style(colours: Colours) -> dict[str, Any]:
    """What the layouts of all figures of plotly have in common."""
    return {
        "font": {"family": FONT, "size": 11, "color": colours["ink2"]},
        "paper_bgcolor": colours["panel"],
        "plot_bgcolor": colours["panel"],
    }


def hover_label(colours: Colours) -> dict[str, Any]:
    """How what is said under the pointer looks. It lies over other things, so it always has a background."""
    colours = LIGHT if colours is AUTO else colours
    return {
        "bgcolor": colours["panel"],
        "bordercolor": colours["line2"],
        "font": {"family": FONT, "size": 11, "color": colours["ink"]},
    }
