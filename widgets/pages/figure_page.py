"""One HTML page with tables and figures that needs no network: plotly.js is inside, and the reader's theme counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Protocol, TypeVar

from plotly.offline import get_plotlyjs

from ...engine.words.machine import Machine
from ...engine.workloads.ready_workload import Workload
from .theme import DARK, FONT, LATER, LIGHT, Colours, variables

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
:focus-visible{{outline:2px solid var(--accent);outline-offset:1px}}
.figure{{margin:0 -12px;min-width:0}}
.ts-report{{color:var(--ink)}}
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
scheme.addEventListener("change", draw);
draw();
"""

_MARK = (
    '<svg width="20" height="20" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6" '
    'aria-hidden="true"><circle cx="5.5" cy="8" r="3.2"/><circle cx="14.5" cy="8" r="3.2"/>'
    '<path d="M2.5 14.5h15" stroke-linecap="round"/></svg>'
)


def figure_page(
    title: str, subtitle: str, body: str, drawings: Mapping[str, Any], style: str = "", script: str = ""
) -> str:
    """The page.

    Args:
        title, subtitle: text.
        body: HTML, of `<section>`s. `<div class="figure" data-drawing="NAME">` is where a drawing goes.
        drawings: by name plotly's data and layout, in the colours `LATER` (theme.py), which the page fills in.
        style, script: what this page has besides. The script may call `draw()`, which draws what is not hidden.
    """
    data = json.dumps(drawings, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · tapescope</title>
<style>{_STYLE}{style}</style>
</head>
<body>
<main>
<header>{_MARK}<h1>{escape(title)}</h1>
<p>{escape(subtitle)}</p></header>
{body}
</main>
<script type="application/json" id="drawings">{data}</script>
<script>{get_plotlyjs()}</script>
<script>{_SCRIPT}{script}</script>
</body>
</html>
"""


class Study(Protocol):
    """What a page shows of a study beside its table and its figure: what was measured, and on what."""

    @property
    def title(self) -> str: ...

    @property
    def workload(self) -> Workload: ...

    @property
    def machine(self) -> Machine: ...


S = TypeVar("S", bound=Study)


def studies_page(
    title: str,
    studies: Sequence[S],
    table: Callable[[S], str],
    drawing: Callable[[S, Colours], Mapping[str, Any]],
    words: Mapping[str, str],
) -> str:
    """A page of studies, one below the other, and what their words mean.

    Args:
        title: text.
        studies: those, of one machine.
        table: makes a study's table, as HTML.
        drawing: draws its figure in these colours.
        words: meanings.
    """
    parts = [
        f"<section><h2>{escape(study.title)}<span>{escape(_about(study.workload))}</span>"
        f'</h2>{table(study)}<div class="figure" data-drawing="{number}"></div></section>'
        for number, study in enumerate(studies)
    ]
    said = words_html({escape(word): meaning for word, meaning in words.items()})
    drawings = {str(number): drawing(study, LATER) for number, study in enumerate(studies)}
    subtitle = f"Measured on {studies[0].machine}."
    return figure_page(title, subtitle, "\n".join([*parts, f"<section><h2>Words</h2>{said}</section>"]), drawings)


def _about(workload: Workload) -> str:
    return " · ".join(filter(None, (workload.title, workload.source)))


def words_html(words: Mapping[str, str]) -> str:
    """What words mean, one line each: by word in HTML its meaning in text."""
    return f"<dl>{''.join(f'<dt>{word}</dt><dd>{escape(meaning)}</dd>' for word, meaning in words.items())}</dl>"
