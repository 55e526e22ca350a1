"""Colours, type and glyphs of the drawn graph. Kinds differ in fill, outline and glyph, never in colour alone."""

from __future__ import annotations

import re

from ..graph.kinds import Kind
from ..shown import GraphTheme
from .outlines import HUES

_LIGHT = {
    "bg": "#ffffff",
    "panel": "#ffffff",
    "sunk": "#f1f2f4",
    "line": "#d9dce2",
    "line2": "#b2b8c2",
    "wire": "#a3aab6",
    "ink": "#1b1d22",
    "ink2": "#50555f",
    "ink3": "#656b76",
    "shade": "#1b1d22",
    "violet": "#6a4fb3",
    "violet-soft": "#f1edfb",
    "hue0": "#1f6fd6",
    "hue1": "#0d8166",
    "hue2": "#8b3fc4",
    "hue3": "#b4286f",
    "hue4": "#6c7a12",
    "hue5": "#0e7d96",
    "accent": "#c23b10",
    "accent-ink": "#ffffff",
    "accent-soft": "#fbeae4",
    "done": "#e4e6ea",
    "done-ink": "#555b66",
    "red": "#b3261e",
    "red-soft": "#fcecea",
}
_DARK = {
    "bg": "#18191d",
    "panel": "#202227",
    "sunk": "#2b2e34",
    "line": "#353841",
    "line2": "#5b616d",
    "wire": "#6b7280",
    "ink": "#e9eaed",
    "ink2": "#b0b5bf",
    "ink3": "#9aa0ac",
    "shade": "#ffffff",
    "violet": "#b7a2f2",
    "violet-soft": "#2c2740",
    "hue0": "#6aa7ff",
    "hue1": "#45cfa5",
    "hue2": "#c493ff",
    "hue3": "#ff7ab6",
    "hue4": "#c3cf52",
    "hue5": "#56c7de",
    "accent": "#ff7f55",
    "accent-ink": "#1d0d06",
    "accent-soft": "#3a221a",
    "done": "#2b2e34",
    "done-ink": "#a0a6b1",
    "red": "#ff8a80",
    "red-soft": "#3d2422",
}

BOX_OPACITY = 0.032
MOST_SHADES = 8  # boxes in one another that labels are told apart by
QUIETEST_INK = (3, 6)  # in so many boxes the third, and the second ink have a contrast below 4.5


def _with_grounds(colours: dict[str, str]) -> dict[str, str]:
    """Adds what is below the labels in so many boxes: wires are hidden behind them, and the ground is not."""
    bg, shade = ([int(colours[name][at : at + 2], 16) for at in (1, 3, 5)] for name in ("bg", "shade"))
    for count in range(MOST_SHADES + 1):
        left = (1 - BOX_OPACITY) ** count
        mixed = (round(left * one + (1 - left) * other) for one, other in zip(bg, shade, strict=True))
        colours[f"ground{count}"] = "#" + "".join(f"{each:02x}" for each in mixed)
    return colours


_LIGHT, _DARK = _with_grounds(_LIGHT), _with_grounds(_DARK)

_HEADERS = """
text{font:400 11px Inter,system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:$ink}
text{font-variant-numeric:tabular-nums}
.th-page{fill:$bg}
.th-title{fill:$ink2}
.th-raised{fill:$red}
.th-mid{text-anchor:middle}
.th-wires path{fill:none;stroke:$wire;stroke-width:1.1}
.th-wires .th-parameter{stroke:$line2}
.th-wires .th-between{stroke-dasharray:4 3}
.th-head text{paint-order:stroke;stroke:$ground1;stroke-width:5px;stroke-linejoin:round}
.th-head .th-name{font-weight:600}
.th-soft{fill:$ink3}
"""
_BY_SHADES = "".join(
    f".th-in{count} text{{stroke:$ground{count}}}\n.th-in{count} .th-soft{{fill:${ink}}}\n"
    for count in range(MOST_SHADES + 1)
    for ink in [("ink3", "ink2", "ink")[sum(count >= most for most in QUIETEST_INK)]]
)
_DRAWN = (
    f".th-box rect{{fill:$shade;fill-opacity:{BOX_OPACITY};stroke:$line}}"
    + """
.th-box .th-behind{fill:$sunk;fill-opacity:1;stroke:$line2}
.th-box .th-front{fill:$bg;fill-opacity:1;stroke:$line2}
.th-card rect{fill:$panel;fill-opacity:1;stroke:$line2}
.th-quiet rect{fill:none;stroke:none}
.th-layer rect{fill:$panel;stroke:$line2}
.th-layer-done rect{fill:$done;stroke:none}
.th-layer-running rect{fill:$accent;stroke:none}
.th-layer-begun rect{fill:$accent-soft}
.th-shown rect{stroke:$ink2;stroke-width:1.6}
.th-layer .th-ring{fill:none}
.th-layer text{stroke:none;fill:$ink2}
.th-layer-done text{fill:$done-ink}
.th-layer-running text{fill:$accent-ink}
.th-task rect{fill:$panel;stroke:$line2}
.th-task .th-glyph{fill:none;stroke:$ink3;stroke-width:1.2}
.th-task .th-solid{fill:$ink2;stroke:none}
.th-pill rect{fill:$sunk;stroke:$line2}
.th-pill .th-glyph{fill:$ink3;stroke:none}
.th-pill text{fill:$ink2}
.th-stub rect{fill:$bg;stroke:$line2;stroke-dasharray:3 2}
.th-stub .th-glyph{fill:none;stroke:$ink3;stroke-width:1.2}
.th-stub text{fill:$ink2}
.th-function rect{fill:$violet-soft;stroke:$violet}
.th-function .th-glyph{fill:$violet;stroke:none}
.th-compiled rect{fill:$sunk;stroke:$ink2;stroke-width:2}
.th-compiled .th-glyph{fill:$ink2;stroke:none}
.th-copy_slices rect{fill:$sunk;stroke:$ink3}
.th-checkpoint rect{stroke:$ink2;stroke-dasharray:5 2}
.th-module_hook rect{stroke:$ink3;stroke-dasharray:1.5 2}
.th-error rect{fill:$red-soft;stroke:$red;stroke-width:1.6}
.th-error .th-glyph{stroke:$red;stroke-width:1.6}
.th-outline rect{fill:none;stroke-width:1.8}
.th-outline.th-dashed rect{stroke-dasharray:4 2.4}
.th-sign rect{fill:$bg;stroke:$hue0;stroke-width:1.3}
.th-sign .th-let-go{stroke-dasharray:2 1.6}
.th-sign .th-kept{fill:$hue0}
.th-sign .th-arc{fill:none;stroke:$ink;stroke-width:1.3;stroke-linecap:round}
.th-sign .th-tip{fill:$ink}
.th-sign .th-plus{fill:none;stroke:$bg;stroke-width:1.6}
.th-row text{stroke:none}
.th-now-done rect{fill:$done;fill-opacity:1}
.th-now-running rect{fill:$accent;fill-opacity:1;stroke:$accent}
.th-now-ready rect{fill:$accent-soft;fill-opacity:1;stroke:$accent;stroke-width:1.6}
.th-quiet.th-now-done rect{fill:none}
.th-now-done .th-glyph{stroke:$done-ink}
.th-now-running .th-glyph{stroke:$accent-ink}
.th-now-running .th-solid{fill:$accent-ink}
.th-pill.th-now-running .th-glyph{fill:$accent-ink}
.th-now-done text{fill:$done-ink}
.th-now-done .th-soft{fill:$done-ink}
.th-now-running text{fill:$accent-ink}
.th-now-running .th-soft{fill:$accent-ink}
.th-bar{fill:$accent}
.th-now-running .th-bar{fill:$accent-ink}
.th-tag text{font-size:9px;font-weight:600;fill:$bg}
"""
)
_BY_HUE = "".join(
    f".th-hue{hue} rect{{stroke:$hue{hue}}}\n"
    f".th-tag.th-hue{hue} rect{{fill:$hue{hue};stroke-width:1.2}}\n"
    f".th-tag.th-dashed.th-hue{hue} rect{{fill:$bg}}\n"
    f".th-tag.th-dashed.th-hue{hue} text{{fill:$hue{hue}}}\n"
    for hue in range(HUES)
)
_RULES = "\n".join(filter(None, (_HEADERS + _BY_SHADES + _DRAWN + _BY_HUE).splitlines()))  # the later ones win

# Each within 4 px of (0, 0).
GLYPHS = {
    Kind.CPP: '<circle class="th-glyph" r="3"/>',
    Kind.FUNCTION: '<path class="th-glyph" d="M0-4 4 0 0 4-4 0z"/>',
    Kind.ACCUMULATE_GRAD: '<circle class="th-glyph" r="2.5"/>',
    Kind.COPY_SLICES: '<path class="th-glyph" d="M-3 3-2 0 2-4 4-2 0 2z"/>',
    Kind.COMPILED: '<path class="th-glyph" d="M1-4-3 1H0L-1 4 3-1H0z"/>',
    Kind.CHECKPOINT: '<path class="th-glyph" d="M3-1A3 3 0 1 0 3 1M3-4V-1H0"/>',
    Kind.MODULE_HOOK: '<path class="th-glyph" d="M1-4V1A2 2 0 0 1-3 1V0"/>',
    Kind.ERROR: '<path class="th-glyph" d="M-3-3 3 3M3-3-3 3"/>',
    Kind.PRIMITIVE: '<path class="th-glyph" d="M-2.7-2.7H2.7V2.7H-2.7z"/>',
}
STUB_GLYPHS = {
    "parameter": '<path class="th-glyph" d="M-3 3 3-3M-1-3H3V1"/>',
    "to": '<path class="th-glyph" d="M0-4V3M-3 0 0 3 3 0"/>',
    "from": '<path class="th-glyph" d="M0 4V-3M-3 0 0-3 3 0"/>',
}


def style_sheet(theme: GraphTheme) -> str:
    """The rules for all that is below `.th-<theme>`. Only "auto" needs variables; the others work in any renderer."""
    rules = "\n".join(f".th-{theme} {rule}" for rule in _RULES.splitlines())
    if theme == "auto":
        rules = re.sub(r"\$([a-z0-9-]+)", r"var(--th-\1)", rules)
        return (
            f".th-auto{{{_variables(_LIGHT)}}}\n"
            f"@media (prefers-color-scheme:dark){{.th-auto{{{_variables(_DARK)}}}}}\n{rules}"
        )
    colours = _DARK if theme == "dark" else _LIGHT
    return re.sub(r"\$([a-z0-9-]+)", lambda match: colours[match[1]], rules)


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--th-{name}:{colour}" for name, colour in colours.items())
