"""The frame of saved pages of comparisons and studies: title, style, script and glossary. They load no other files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import count
from typing import Any, Protocol, TypeVar

from ...engine.api.environment import Machine
from ...engine.studies.ready_workload import Workload
from ...inspector.graph.source_lines import PACKAGE
from . import report_html
from .figure_html import Figures
from .glossary import glossary_section
from .html_page import HEADER_STYLE, MARK, html_page
from .theme import CATEGORY_COLOURS, LATER, Colours

CODE = PACKAGE / "widgets" / "static" / "figures.js"
"""The script for hover, legends, zoom and tabs, bundled from widgets/js/src/figures."""

_STYLE = """
*{box-sizing:border-box}
body{font-variant-numeric:tabular-nums}
main{max-width:1360px;margin:0 auto;overflow:hidden;
  background:var(--panel);border:1px solid var(--line);border-radius:8px}
header p{margin:0;color:var(--ink3);flex:1 1 300px}
section,.panel>div{border-top:1px solid var(--line);padding:10px 12px}
h2{font-size:12px;font-weight:600;margin:0 0 6px;overflow-wrap:anywhere}
h2:not(:first-child){margin-top:14px}
h2 span{font-weight:400;color:var(--ink3);margin-left:8px}
:focus-visible{outline:2px solid var(--saved);outline-offset:1px}
dl{display:grid;grid-template-columns:fit-content(40%) minmax(0,1fr);gap:2px 16px;margin:0;overflow-wrap:anywhere}
dd{margin:0;color:var(--ink2)}
dt b{font-weight:400}
@media print{body{padding:0}main{border:0}}
"""

_FIGURE = """
.figure{container-type:inline-size;margin:6px -12px 0;min-width:0}
.scroll{overflow-x:auto}
.room{padding:0 var(--right) 0 var(--left);outline-offset:-3px;
  min-width:calc(210px + var(--left) + var(--right))}
.plot{display:block;overflow:visible;font-size:11px;touch-action:pan-y;user-select:none;-webkit-user-select:none}
.room p{margin:3px 0 8px;color:var(--ink2);font-size:11px;line-height:14px;text-align:center}
.plot svg{overflow:visible}
.plot svg.cut{overflow:hidden}
.plot path{vector-effect:non-scaling-stroke}
.off{display:none}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;padding:2px 12px 4px var(--left);color:var(--ink2)}
.legend>*{display:flex;gap:6px;align-items:center;font:inherit;line-height:20px;color:inherit;background:none;
  border:0;padding:0 2px;margin:0;text-align:left;border-radius:3px}
.legend button{cursor:pointer}
.legend button:hover{color:var(--ink)}
.legend button[aria-pressed=false]{text-decoration:line-through;color:var(--ink3)}
.legend button[aria-pressed=false] svg{opacity:.3}
.legend svg{flex:none}
.legend:empty{display:none}
.legend .reset{color:var(--accent)}
.cursor{stroke:var(--line2);pointer-events:none}
.chosen{fill:var(--accent);opacity:.14;pointer-events:none}
.plot .at{stroke:var(--ink);stroke-width:2}
.tree{position:relative;overflow:hidden;cursor:default}
.tree i{position:absolute;font-style:normal;overflow:hidden;white-space:nowrap;text-overflow:ellipsis;
  line-height:15px;padding:1px 4px 0;box-shadow:inset 0 0 0 .5px var(--panel)}
.tree i{container-type:size}
.tree s{text-decoration:none}
@container (max-width:26px) or (max-height:14px){.tree s{display:none}}
/* The title bar of a low box is lower than its name, which what is in the box would cover. */
@container (max-height:63px){.tree .in s{display:none}}
.tree .in{cursor:zoom-in}
.tree .at{box-shadow:inset 0 0 0 2px var(--ink)}
.tip{position:fixed;z-index:9;max-width:min(640px,calc(100vw - 16px));padding:6px 8px;background:var(--ink);
  color:var(--panel);font-size:11px;line-height:15px;border-radius:6px;pointer-events:none;overflow-wrap:anywhere;
  white-space:pre-wrap}
.tip div{padding-left:14px;text-indent:-14px}
.tip div.plain{padding:0;text-indent:0}
.tip s{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px;text-decoration:none}
@container (max-width:560px){
  .beside .room{--right:24px}
  .beside .gutter{display:none}
  .legend{padding-left:12px}
}
@media (min-width:1000px){
  .side{display:grid;grid-template-columns:minmax(0,1fr) auto}
  .side .legend{order:1;flex-flow:column nowrap;padding:10px 16px 0 0}
}
@media print{
  .figure,.tree{break-inside:avoid;print-color-adjust:exact;-webkit-print-color-adjust:exact}
  .legend .reset,.tip{display:none}
}
""" + "".join(
    f".c-{name}{{background:var(--{name});color:var(--on-{name})}}\n" for name in ("sunk", *CATEGORY_COLOURS.values())
)


def page_frame(title: str, subtitle: str, body: str, figures: Figures, style: str = "") -> str:
    """Return a page.

    Args:
        title, subtitle: text.
        body: HTML, a sequence of `<section>`s that contain the figures.
        figures: the figures in `body`.
        style: additional CSS.
    """
    # Each report includes its style sheet, because a notebook shows reports one by one. A page needs it only once.
    body = body.replace(f"<style>{report_html.STYLE}</style>", "")
    # A browser does not run a script element of this type; the page's code reads the hover data from it.
    main = f"""<main>
<header>{MARK}<h1>{escape(title)}</h1>
<p>{escape(subtitle)}</p></header>
{body}
</main>
<script type="application/octet-stream" id="hover-data">{figures.packed}</script>
<script>{CODE.read_text(encoding="utf-8")}</script>"""
    return html_page(title, main, f"{report_html.STYLE}{HEADER_STYLE}{_STYLE}{_FIGURE}{style}")


class Study(Protocol):
    """A study on a page: the title, workload and machine shown next to its table and figure."""

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
    drawings: Mapping[str, Callable[[S, Colours], Mapping[str, Any]]],
    words: Mapping[str, str],
) -> str:
    """Return a page of studies, one below the other, and a glossary.

    Args:
        title: text.
        studies: studies measured on one machine.
        table: returns a study's table as HTML.
        drawings: functions that return a figure of a study in the colours passed, by heading; "" for none.
        words: the glossary, by word.
    """
    figures = Figures()
    names = count()
    parts = []
    for study in studies:
        drawn = (
            (f"<h2>{escape(heading)}</h2>" if heading else "")
            + figures.html(str(next(names)), f"{study.title} {heading}".rstrip(), dict(drawing(study, LATER)))
            for heading, drawing in drawings.items()
        )
        head = f"<h2>{escape(study.title)}<span>{escape(_about(study.workload))}</span></h2>"
        parts.append(f"<section>{head}{table(study)}{''.join(drawn)}</section>")
    parts.append(glossary_section({escape(word): meaning for word, meaning in words.items()}))
    return page_frame(title, f"Measured on {studies[0].machine}.", "\n".join(parts), figures)


def _about(workload: Workload) -> str:
    return " · ".join(filter(None, (workload.title, workload.source)))
