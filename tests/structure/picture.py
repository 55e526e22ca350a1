"""The packages of the code and the imports between them as one SVG, laid out by tapescope's own layout."""

from __future__ import annotations

from html import escape
from math import inf

from tapescope.inspector.drawing.layered_layout import arrange
from tapescope.inspector.drawing.layout_types import Extent, Link
from tapescope.inspector.drawing.svg_text import text_width

from .imports import LAYERS, PACKAGES, ROOT, Imports, package_of

_COLOURS = {"inspector": ("#dbeafe", "#1e3a5f"), "engine": ("#dcfce7", "#1c4532"), "widgets": ("#fef3c7", "#57430f")}
_OTHER = ("#ede9fe", "#3b2f66")
_SIZE = 13  # font size in pixels
_HEIGHT = 34
_MARGIN = 16


def package_imports(imports: Imports) -> dict[str, frozenset[str]]:
    """Return the packages that each package's modules import."""
    found: dict[str, set[str]] = {package: set() for package in LAYERS if (ROOT / package.replace(".", "/")).exists()}
    for module, others in imports.items():
        package = package_of(module)
        if package in found:
            found[package] |= {package_of(other) for other in others if package_of(other) in found} - {package}
    return {package: frozenset(others) for package, others in found.items()}


def without_shortcuts(packages: dict[str, frozenset[str]]) -> dict[str, list[str]]:
    """Return the same without imports that others imply: A -> C if there are A -> B and B -> C."""
    reached: dict[str, set[str]] = {}
    for package in sorted(packages, key=LAYERS.index):
        reached[package] = set(packages[package]).union(*(reached[other] for other in packages[package]))
    return {
        package: [other for other in sorted(others) if not any(other in reached[between] for between in others)]
        for package, others in packages.items()
    }


def draw(imports: Imports) -> str:
    """Return the picture. An arrow leads from a package to one that it imports; implied imports are left out."""
    packages = without_shortcuts(package_imports(imports))
    names = sorted(packages, key=LAYERS.index, reverse=True)
    rank_of: dict[str, int] = {}
    for name in names:
        rank_of[name] = 1 + max((rank_of[other] for other in names if name in packages[other]), default=-1)
    halves = [text_width(_label(name), _SIZE) / 2 + 12 for name in names]
    extents = [Extent(half, half, _HEIGHT, _HEIGHT) for half in halves]
    arrows = [(names.index(name), names.index(other)) for name in names for other in packages[name]]
    links = [Link(source, target, wire) for wire, (source, target) in enumerate(arrows)]
    plan = arrange(extents, [9 * rank_of[name] for name in names], links, [], [], tall=inf)
    parts = [_HEAD.format(width=round(plan.width + 2 * _MARGIN), height=round(plan.height + 2 * _MARGIN))]
    for points in plan.links.values():
        way = " L".join(f"{x + _MARGIN:.1f},{y + _MARGIN:.1f}" for x, y in points)
        parts.append(f'<path d="M{way}" marker-end="url(#arrow)"/>')
    for name, half, x, y in zip(names, halves, plan.xs, plan.ys, strict=True):
        package = name.partition(".")[0]
        parts.append(
            f'<rect class="{package if package in PACKAGES else "other"}" x="{x - half + _MARGIN:.1f}" '
            f'y="{y + _MARGIN:.1f}" width="{2 * half:.1f}" height="{_HEIGHT}" rx="6"/>'
            f'<text x="{x + _MARGIN:.1f}" y="{y + _MARGIN + 22:.1f}">{escape(_label(name))}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _label(package: str) -> str:
    return package.replace(".", " / ")


def _rules(dark: bool) -> str:
    colours = {**_COLOURS, "commands": _OTHER}
    ink, line = ("#e5e7eb", "#8b949e") if dark else ("#1f2937", "#6b7280")
    packages = " ".join(f".{name} {{ fill: {pair[dark]}; }}" for name, pair in colours.items())
    return f"text {{ fill: {ink}; }} path, rect {{ stroke: {line}; }} marker path {{ fill: {line}; }} {packages}"


_HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" width="{{width}}" role="img">
<title>The packages of tapescope's code and which imports which</title>
<style>
text {{{{ font: {_SIZE}px system-ui, sans-serif; text-anchor: middle; }}}}
path {{{{ fill: none; stroke-width: 1.2; }}}}
{_rules(False).replace("{", "{{").replace("}", "}}")}
@media (prefers-color-scheme: dark) {{{{ {_rules(True).replace("{", "{{").replace("}", "}}")} }}}}
</style>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0,0 L8,4 L0,8 z" stroke="none"/></marker></defs>"""
