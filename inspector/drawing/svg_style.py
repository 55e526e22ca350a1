"""Colours, fonts and glyphs of the drawn graph. Kinds differ in fill, outline and glyph, never in colour alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..graph.kinds import Kind
from ..renderers import GraphTheme
from .annotations import HUES

COLOURS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("colours.json").read_text(encoding="utf-8"))
"""All colours by theme: those of all pages, and those of the deck, whose build reads them here. A picture of a graph
uses some of both and replaces others, since its background is white or nearly black."""

_NAMES = (
    *("bg", "panel", "sunk", "line", "line2", "wire", "ink", "ink2", "ink3", "shade", "violet", "violet-soft"),
    *("hue0", "hue1", "hue2", "hue3", "hue4", "hue5"),
    *("accent", "accent-ink", "accent-soft", "done", "done-ink", "red", "red-soft"),
)
LIGHT, DARK = (
    {name: (COLOURS[theme] | COLOURS[f"deck {theme}"] | COLOURS[f"drawing {theme}"])[name] for name in _NAMES}
    for theme in ("light", "dark")
)

BOX_OPACITY = 0.032
MOST_SHADES = 8  # nested boxes up to which labels have their own background
QUIETEST_INK = (3, 6)  # depths at which the third and the second ink fall below a contrast of 4.5


# The background of labels for each depth of boxes, which hides wires but matches the box.
for _colours in (LIGHT, DARK):
    _bg, _shade = ([int(_colours[_name][_at : _at + 2], 16) for _at in (1, 3, 5)] for _name in ("bg", "shade"))
    for _count in range(MOST_SHADES + 1):
        _left = (1 - BOX_OPACITY) ** _count
        _mixed = (round(_left * one + (1 - _left) * other) for one, other in zip(_bg, _shade, strict=True))
        _colours[f"ground{_count}"] = "#" + "".join(f"{each:02x}" for each in _mixed)

_HEADERS = """
text{font:400 11px Inter,system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:$ink}
text{font-variant-numeric:tabular-nums}
.ts-page{fill:$bg}
.ts-title{fill:$ink2}
.ts-raised{fill:$red}
.ts-mid{text-anchor:middle}
.ts-wires path{fill:none;stroke:$wire;stroke-width:1.1}
.ts-wires .ts-parameter{stroke:$line2}
.ts-wires .ts-between{stroke-dasharray:4 3}
.ts-head text{paint-order:stroke;stroke:$ground1;stroke-width:5px;stroke-linejoin:round}
.ts-head .ts-name{font-weight:600}
.ts-soft{fill:$ink3}
"""
_BY_SHADES = "".join(
    f".ts-in{count} text{{stroke:$ground{count}}}\n.ts-in{count} .ts-soft{{fill:${ink}}}\n"
    for count in range(MOST_SHADES + 1)
    for ink in [("ink3", "ink2", "ink")[sum(count >= most for most in QUIETEST_INK)]]
)
_DRAWN = (
    f".ts-box rect{{fill:$shade;fill-opacity:{BOX_OPACITY};stroke:$line}}"
    + """
.ts-box .ts-behind{fill:$sunk;fill-opacity:1;stroke:$line2}
.ts-box .ts-front{fill:$bg;fill-opacity:1;stroke:$line2}
.ts-card rect{fill:$panel;fill-opacity:1;stroke:$line2}
.ts-quiet rect{fill:none;stroke:none}
.ts-layer rect{fill:$panel;stroke:$line2}
.ts-layer-done rect{fill:$done;stroke:none}
.ts-layer-running rect{fill:$accent;stroke:none}
.ts-layer-begun rect{fill:$accent-soft}
.ts-shown rect{stroke:$ink2;stroke-width:1.6}
.ts-layer .ts-ring{fill:none}
.ts-layer text{stroke:none;fill:$ink2}
.ts-layer-done text{fill:$done-ink}
.ts-layer-running text{fill:$accent-ink}
.ts-task rect{fill:$panel;stroke:$line2}
.ts-task .ts-glyph{fill:none;stroke:$ink3;stroke-width:1.2}
.ts-task .ts-solid{fill:$ink2;stroke:none}
.ts-pill rect{fill:$sunk;stroke:$line2}
.ts-pill .ts-glyph{fill:$ink3;stroke:none}
.ts-pill text{fill:$ink2}
.ts-stub rect{fill:$bg;stroke:$line2;stroke-dasharray:3 2}
.ts-stub .ts-glyph{fill:none;stroke:$ink3;stroke-width:1.2}
.ts-stub text{fill:$ink2}
.ts-function rect{fill:$violet-soft;stroke:$violet}
.ts-function .ts-glyph{fill:$violet;stroke:none}
.ts-compiled rect{fill:$sunk;stroke:$ink2;stroke-width:2}
.ts-compiled .ts-glyph{fill:$ink2;stroke:none}
.ts-copy_slices rect{fill:$sunk;stroke:$ink3}
.ts-checkpoint rect{stroke:$ink2;stroke-dasharray:5 2}
.ts-module_hook rect{stroke:$ink3;stroke-dasharray:1.5 2}
.ts-error rect{fill:$red-soft;stroke:$red;stroke-width:1.6}
.ts-error .ts-glyph{stroke:$red;stroke-width:1.6}
.ts-failed rect{fill:$red-soft;stroke:$red;stroke-width:1.6}
.ts-failed .ts-glyph{stroke:$red;stroke-width:1.6}
.ts-failed text{fill:$red}
.ts-pill.ts-untracked rect{fill:$line;stroke:$line2}
.ts-pill.ts-untracked .ts-glyph{fill:none;stroke:$ink2}
.ts-wires .ts-to-failed{stroke:$red}
.ts-shape{font-size:9px;fill:$ink2;paint-order:stroke;stroke:$bg;stroke-width:3px;stroke-linejoin:round}
.ts-shape.ts-raised{fill:$red}
.ts-outline rect{fill:none;stroke-width:1.8}
.ts-outline.ts-dashed rect{stroke-dasharray:4 2.4}
.ts-sign rect{fill:$bg;stroke:$hue0;stroke-width:1.3}
.ts-sign .ts-dropped{stroke-dasharray:2 1.6}
.ts-sign .ts-kept{fill:$hue0}
.ts-sign .ts-arc{fill:none;stroke:$ink;stroke-width:1.3;stroke-linecap:round}
.ts-sign .ts-tip{fill:$ink}
.ts-sign .ts-plus{fill:none;stroke:$bg;stroke-width:1.6}
.ts-row text{stroke:none}
.ts-now-done rect{fill:$done;fill-opacity:1}
.ts-now-running rect{fill:$accent;fill-opacity:1;stroke:$accent}
.ts-now-ready rect{fill:$accent-soft;fill-opacity:1;stroke:$accent;stroke-width:1.6}
.ts-quiet.ts-now-done rect{fill:none}
.ts-now-done .ts-glyph{stroke:$done-ink}
.ts-now-running .ts-glyph{stroke:$accent-ink}
.ts-now-running .ts-solid{fill:$accent-ink}
.ts-pill.ts-now-running .ts-glyph{fill:$accent-ink}
.ts-now-done text{fill:$done-ink}
.ts-now-done .ts-soft{fill:$done-ink}
.ts-now-running text{fill:$accent-ink}
.ts-now-running .ts-soft{fill:$accent-ink}
.ts-bar{fill:$accent}
.ts-now-running .ts-bar{fill:$accent-ink}
.ts-tag text{font-size:9px;font-weight:600;fill:$bg}
"""
)
_BY_HUE = "".join(
    f".ts-hue{hue} rect{{stroke:$hue{hue}}}\n"
    f".ts-tag.ts-hue{hue} rect{{fill:$hue{hue};stroke-width:1.2}}\n"
    f".ts-tag.ts-dashed.ts-hue{hue} rect{{fill:$bg}}\n"
    f".ts-tag.ts-dashed.ts-hue{hue} text{{fill:$hue{hue}}}\n"
    for hue in range(HUES)
)
_RULES = "\n".join(filter(None, (_HEADERS + _BY_SHADES + _DRAWN + _BY_HUE).splitlines()))  # later rules win

# Each glyph is within 4 px of (0, 0).
GLYPHS = {
    Kind.CPP: '<path class="ts-glyph" d="M-3-2.6H3L0 2.8z"/>',
    Kind.FUNCTION: '<path class="ts-glyph" d="M0-4 4 0 0 4-4 0z"/>',
    Kind.ACCUMULATE_GRAD: '<circle class="ts-glyph" r="2.5"/>',
    Kind.COPY_SLICES: '<path class="ts-glyph" d="M-3 3-2 0 2-4 4-2 0 2z"/>',
    Kind.COMPILED: '<path class="ts-glyph" d="M1-4-3 1H0L-1 4 3-1H0z"/>',
    Kind.CHECKPOINT: '<path class="ts-glyph" d="M3-1A3 3 0 1 0 3 1M3-4V-1H0"/>',
    Kind.MODULE_HOOK: '<path class="ts-glyph" d="M1-4V1A2 2 0 0 1-3 1V0"/>',
    Kind.ERROR: '<path class="ts-glyph" d="M-3-3 3 3M3-3-3 3"/>',
    Kind.PRIMITIVE: '<path class="ts-glyph" d="M-2.7-2.7H2.7V2.7H-2.7z"/>',
    Kind.FAILED: '<path class="ts-glyph" d="M0-4V1.4M0 3V4.2"/>',
    Kind.UNTRACKED: '<circle class="ts-glyph" r="2.5"/>',
}
STUB_GLYPHS = {
    "parameter": '<path class="ts-glyph" d="M-3 3 3-3M-1-3H3V1"/>',
    "to": '<path class="ts-glyph" d="M0-4V3M-3 0 0 3 3 0"/>',
    "from": '<path class="ts-glyph" d="M0 4V-3M-3 0 0-3 3 0"/>',
}


def style_sheet(theme: GraphTheme) -> str:
    """Return the rules for elements below `.ts-<theme>`.

    Only "auto" needs CSS variables; the other themes work in any renderer.
    """
    rules = "\n".join(f".ts-{theme} {rule}" for rule in _RULES.splitlines())
    if theme == "auto":
        rules = re.sub(r"\$([a-z0-9-]+)", r"var(--ts-\1)", rules)
        light, dark = (
            ";".join(f"--ts-{name}:{colour}" for name, colour in colours.items()) for colours in (LIGHT, DARK)
        )
        return f".ts-auto{{{light}}}\n@media (prefers-color-scheme:dark){{.ts-auto{{{dark}}}}}\n{rules}"
    colours = DARK if theme == "dark" else LIGHT
    return re.sub(r"\$([a-z0-9-]+)", lambda match: colours[match[1]], rules)
