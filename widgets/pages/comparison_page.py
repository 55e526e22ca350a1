"""A comparison as one self-contained HTML page."""

from __future__ import annotations

from html import escape

from ...engine.execution.accumulation_rule import PYTORCHS
from ...engine.recording.peak_report import PeakReport
from ...engine.studies.comparison import Comparison, Row
from ...inspector.text.sizes_and_counts import size_text
from .figure_html import Figures
from .glossary import CATEGORIES, COLUMNS, glossary_section
from .memory_figures import category_drawing, lifetimes_drawing, memory_drawing, peak_drawing
from .page_frame import page_frame
from .recompute_figures import recomputed_html
from .report_html import category_html, peak_html, table_html
from .theme import LATER

_STYLE = """
[role=tablist]{display:flex;flex-wrap:wrap;gap:2px;padding:2px;width:fit-content;max-width:100%;
  background:var(--sunk);border-radius:6px}
[role=tab]{border:0;background:none;font:inherit;color:var(--ink2);height:26px;padding:0 10px;border-radius:4px;
  cursor:pointer;max-width:100%;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
[role=tab][aria-selected=true]{background:var(--panel);color:var(--ink);box-shadow:0 1px 2px rgba(20,24,35,.12)}
[role=tab] b{font-weight:600;margin-right:6px}
.panel{margin:10px -12px -10px}
@media (scripting:none){.panel[hidden]{display:block}}
.key{display:flex;flex-wrap:wrap;gap:2px 16px;margin:0 0 4px}
"""

_POINTS = 700  # per line; a plot is about 1,100 pixels wide, and a page repeats the lines at least four times


def page_html(comparison: Comparison, title: str) -> str:
    """Return the page of a comparison."""
    figures = Figures()
    memory = figures.html("memory", "Memory by policy", memory_drawing(comparison.timelines, LATER, _POINTS))
    recomputed = recomputed_html(comparison, figures, _POINTS)
    panels = [_panel(comparison, row, number, figures) for number, row in enumerate(comparison.rows)]
    tabs = []
    for number, row in enumerate(comparison.rows):
        chosen = row is comparison.highest
        tabs.append(
            f'<button role="tab" id="tab-{number}" aria-controls="panel-{number}" '
            f'aria-selected="{str(chosen).lower()}" '
            f'tabindex="{0 if chosen else -1}"><b>{escape(row.policy)}</b>{size_text(row.peak_bytes)}</button>'
        )
    # The glossary has the table's columns, and the categories that occur in the comparison.
    there = {category for row in comparison.rows for category in row.timeline.category_levels}
    words = {escape(word): meaning for word, meaning in COLUMNS.items()}
    words |= {category_html(category): meaning for category, meaning in CATEGORIES.items() if category in there}
    body = f"""<section>{table_html(comparison)}</section>
<section><h2>Memory<span>the highest level while each task ran</span></h2>
{memory}</section>
{recomputed}
<section><div role="tablist" aria-label="policy">{"".join(tabs)}</div>
{"".join(panels)}</section>
{glossary_section(words)}"""
    return page_frame(title, _subtitle(comparison), body, figures, _STYLE)


def _subtitle(comparison: Comparison) -> str:
    devices = ", ".join(dict.fromkeys(row.timeline.device for row in comparison.rows))
    # With one rule other than PyTorch's, ts.compare runs all rows on the direct engine.
    other_rule = any(row.timeline.accumulation != PYTORCHS for row in comparison.rows)
    engine = "tapescope's direct engine" if comparison.graph.is_tape or other_rule else "PyTorch's engine"
    measured = f"{len(comparison.graph):,} tasks on {devices}, measured on {engine}."
    return f"{measured} {comparison.before.sentence()}".rstrip()


def _key(report: PeakReport) -> str:
    """Return the categories at the peak with their bytes. The treemap cannot label the small ones."""
    amounts = (
        f"<span>{category_html(category)} {size_text(report.categories[category])}</span>"
        for category, _, _ in report.shown(0)
    )
    return f'<p class="key">{"".join(amounts)}</p>'


def _panel(comparison: Comparison, row: Row, number: int, figures: Figures) -> str:
    report = comparison.peak(row.policy)
    category = category_drawing(row.timeline, LATER, _POINTS)
    drawings = {
        "category": ("By category", "the highest level while each task ran", category),
        "peak": ("At the peak", "by category, module and source line; click to zoom in", peak_drawing(report, LATER)),
        "lifetimes": ("Lifetimes", "largest bytes × time first", lifetimes_drawing(row.timeline, LATER)),
    }
    parts = [f"<div>{peak_html(report)}</div>"]
    for name, (heading, note, drawing) in drawings.items():
        figure = figures.html(f"{name}-{number}", f"{heading}: {row.policy}", drawing)
        if name == "peak":
            figure = _key(report) + figure
        parts.append(f"<div><h2>{heading}<span>{note}</span></h2>{figure}</div>")
    hidden = "" if row is comparison.highest else " hidden"
    name = f'id="panel-{number}" aria-labelledby="tab-{number}"'
    return f'<div class="panel" role="tabpanel" {name}{hidden}>{"".join(parts)}</div>'
