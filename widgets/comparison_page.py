"""A comparison as one HTML page that needs no network: plotly.js is inside."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from ..engine.compare import Comparison, Row
from ..engine.peak import PeakReport
from ..engine.sizes import size_text
from .glossary import CATEGORIES, COLUMNS
from .memory_figures import Drawing, category_drawing, lifetimes_drawing, memory_drawing, peak_drawing
from .report_html import category_html, peak_html, table_html
from .theme import DARK, FONT, LATER, LIGHT, variables

_STYLE = f"""
:root{{color-scheme:light dark;{variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;padding:8px;background:var(--bg);color:var(--ink);font:400 12px/17px {FONT};
  font-variant-numeric:tabular-nums;-webkit-font-smoothing:antialiased}}
main{{max-width:1360px;margin:0 auto;overflow:hidden;
  background:var(--panel);border:1px solid var(--line);border-radius:8px}}
header{{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:center;padding:12px}}
header svg{{color:var(--accent);flex:none}}
h1{{font-size:14px;line-height:20px;font-weight:600;margin:0;overflow-wrap:anywhere}}
header p{{margin:0;color:var(--ink3)}}
section,.panel>div{{border-top:1px solid var(--line);padding:10px 12px}}
h2{{font-size:12px;font-weight:600;margin:0 0 6px}}
h2 span{{font-weight:400;color:var(--ink3);margin-left:8px}}
[role=tablist]{{display:flex;flex-wrap:wrap;gap:2px;padding:2px;width:fit-content;max-width:100%;
  background:var(--sunk);border-radius:6px}}
[role=tab]{{border:0;background:none;font:inherit;color:var(--ink2);height:26px;padding:0 10px;border-radius:4px;
  cursor:pointer;max-width:100%;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}}
[role=tab][aria-selected=true]{{background:var(--panel);color:var(--ink);box-shadow:0 1px 2px rgba(20,24,35,.12)}}
[role=tab] b{{font-weight:600;margin-right:6px}}
:focus-visible{{outline:2px solid var(--accent);outline-offset:1px}}
.panel{{margin:10px -12px -10px}}
.figure{{margin:0 -12px;min-width:0}}
.th-report{{color:var(--ink)}}
.key{{display:flex;flex-wrap:wrap;gap:2px 16px;margin:0 0 4px}}
dl{{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0}}
dd{{margin:0;color:var(--ink2)}}
dt b{{font-weight:400}}
"""

_SCRIPT = r"""
"use strict";
const drawings = JSON.parse(document.getElementById("drawings").textContent);
const scheme = matchMedia("(prefers-color-scheme: dark)");
// Named one by one: among those that plotly would show is one that sends the figure's data to a server.
const buttons = [["zoom2d", "pan2d", "resetScale2d"]];
const config = {responsive: true, displaylogo: false, modeBarButtons: buttons};
function coloured(value, style) {
  if (typeof value === "string") {
    return value.startsWith("\u0001") ? style.getPropertyValue("--" + value.slice(1)).trim() : value;
  }
  if (Array.isArray(value)) return value.map(each => coloured(each, style));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, style)]));
  }
  return value;
}
function draw() {
  const style = getComputedStyle(document.documentElement);
  for (const place of document.querySelectorAll(".figure")) {
    if (place.closest("[hidden]")) continue;
    const {data, layout} = coloured(drawings[place.dataset.drawing], style);
    Plotly.react(place, data, layout, {...config, displayModeBar: layout.xaxis ? "hover" : false});
  }
}
const tabs = [...document.querySelectorAll("[role=tab]")];
function select(tab, focus) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  draw();
}
tabs.forEach((tab, number) => {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (step) select(tabs[(number + step + tabs.length) % tabs.length], true);
  });
});
scheme.addEventListener("change", draw);
draw();
"""

_MARK = (
    '<svg width="20" height="20" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6" '
    'aria-hidden="true"><circle cx="5.5" cy="8" r="3.2"/><circle cx="14.5" cy="8" r="3.2"/>'
    '<path d="M2.5 14.5h15" stroke-linecap="round"/></svg>'
)


def save_page(comparison: Comparison, path: Path, title: str) -> Path:
    """Writes the page. See `Comparison.save_html`."""
    path.write_text(page_html(comparison, title), encoding="utf-8")
    return path


def page_html(comparison: Comparison, title: str) -> str:
    """The page of a comparison."""
    drawings: dict[str, Drawing] = {"memory": memory_drawing(comparison.timelines, LATER)}
    panels = [_panel(comparison, row, number, drawings) for number, row in enumerate(comparison.rows)]
    tabs = "".join(_tab(comparison, row, number) for number, row in enumerate(comparison.rows))
    data = json.dumps(drawings, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · tapehead</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>{_MARK}<h1>{escape(title)}</h1>
<p>{escape(_subtitle(comparison))}</p></header>
<section>{table_html(comparison)}</section>
<section><h2>Memory<span>the highest level while each task ran</span></h2>
<div class="figure" data-drawing="memory"></div></section>
<section><div role="tablist" aria-label="policy">{tabs}</div>
{"".join(panels)}</section>
<section><h2>Words</h2>{_words(comparison)}</section>
</main>
<script type="application/json" id="drawings">{data}</script>
<script>{get_plotlyjs()}</script>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _subtitle(comparison: Comparison) -> str:
    devices = ", ".join(dict.fromkeys(row.timeline.device for row in comparison.rows))
    said = f"{len(comparison.graph):,} tasks on {devices}, measured on PyTorch's engine."
    return f"{said} {comparison.before.sentence}" if comparison.before else said


def _words(comparison: Comparison) -> str:
    """What the page's words mean, one line each: of the categories those which are there."""
    there = {category for row in comparison.rows for category in row.timeline.category_levels}
    lines = [(escape(word), meaning) for word, meaning in COLUMNS.items()]
    lines += [(category_html(category), meaning) for category, meaning in CATEGORIES.items() if category in there]
    return f"<dl>{''.join(f'<dt>{word}</dt><dd>{escape(meaning)}</dd>' for word, meaning in lines)}</dl>"


def _key(report: PeakReport) -> str:
    """The categories at the peak with their bytes: the treemap has no room to name the small ones."""
    amounts = (
        f"<span>{category_html(category)} {size_text(report.categories[category])}</span>"
        for category, _, _ in report.shown(0)
    )
    return f'<p class="key">{"".join(amounts)}</p>'


def _tab(comparison: Comparison, row: Row, number: int) -> str:
    chosen = row is comparison.highest
    return (
        f'<button role="tab" id="tab-{number}" aria-controls="panel-{number}" aria-selected="{str(chosen).lower()}" '
        f'tabindex="{0 if chosen else -1}"><b>{escape(row.policy)}</b>{size_text(row.peak_bytes)}</button>'
    )


def _panel(comparison: Comparison, row: Row, number: int, drawings: dict[str, Drawing]) -> str:
    report = comparison.peak(row.policy)
    figures = {
        "category": ("By category", "the highest level while each task ran", category_drawing(row.timeline, LATER)),
        "peak": ("At the peak", "by category, module and source line; click to go in", peak_drawing(report, LATER)),
        "lifetimes": ("Lifetimes", "largest bytes × time first", lifetimes_drawing(row.timeline, LATER)),
    }
    parts = [f"<div>{peak_html(report)}</div>"]
    for name, (heading, note, drawing) in figures.items():
        drawings[f"{name}-{number}"] = drawing
        figure = f'<div class="figure" data-drawing="{name}-{number}"></div>'
        if name == "peak":
            figure = _key(report) + figure
        parts.append(f"<div><h2>{heading}<span>{note}</span></h2>{figure}</div>")
    hidden = "" if row is comparison.highest else " hidden"
    name = f'id="panel-{number}" aria-labelledby="tab-{number}"'
    return f'<div class="panel" role="tabpanel" {name}{hidden}>{"".join(parts)}</div>'
