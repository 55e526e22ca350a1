"""Reports as HTML tables for notebook output and saved pages, in the colours of the surrounding page.

JupyterLab and GitHub remove the style sheet from untrusted notebooks, so cells also have the essential styles inline.
In a trusted notebook the style sheet overrides JupyterLab's equal column widths and grey rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Protocol

from ...engine.memory.categories import Category
from ...engine.recording.peak_report import PeakReport
from ...inspector.text.report import ShownAsTable
from ...inspector.text.sizes_and_counts import share_text, size_text
from .figure_still import figure_svg
from .glossary import CATEGORIES, COLUMNS
from .memory_figures import category_drawing
from .theme import AUTO, CATEGORY_COLOURS, LIGHT

if TYPE_CHECKING:
    from ...engine.diagnose.advise import Advice
    from ...engine.memory.timeline import Timeline

_PEAKS = ("peak", "predicted peak")
_BOLD = (*_PEAKS, "policy", "gradient", "number", "branch")
_MOST_GROUPS = 5  # per category
_CODE = re.compile(r"`([^`]+)`")
# `tr:nth-child(n)` matches every row; it only makes the rule more specific than JupyterLab's.
STYLE = """
.ts-report{font-variant-numeric:tabular-nums;max-width:100%;overflow-x:auto}
.ts-report p{margin:0 0 4px;max-width:110ch}
.ts-report table{border-collapse:collapse;table-layout:auto;width:100%;margin:10px 0 0}
.ts-report :is(td,th){padding:5px 16px 5px 0;background:none}
.ts-report th{font-weight:400;opacity:.72;white-space:nowrap}
.ts-report tbody tr:nth-child(n){border-top:1px solid rgba(128,134,145,.28);background:none}
.ts-report .num{white-space:nowrap}
.ts-report .wide{min-width:240px}
.ts-report .where{overflow-wrap:anywhere;min-width:170px}
.ts-report .soft{opacity:.72}
.ts-report .bar{display:block;height:4px;border-radius:2px;background:currentColor;opacity:.55;margin:5px 0 0 auto}
.ts-report .hint{border-left:2px solid var(--accent,#c23b10);padding-left:10px;margin:12px 0 0}
"""
_ADVICE = """
.ts-advice h4{font-size:1em;margin:16px 0 4px}
.ts-advice ul{margin:0;padding-left:18px}
.ts-advice li{margin:0 0 4px;max-width:110ch}
.ts-advice details{margin:6px 0 0}
.ts-advice summary{cursor:pointer}
.ts-advice pre{margin:6px 0 0;padding:10px 12px;overflow-x:auto;font-size:12px;line-height:1.45;
border:1px solid rgba(128,134,145,.28);border-radius:4px}
"""


def peak_html(report: PeakReport) -> str:
    """Return a peak report as HTML, including its style sheet."""
    first, *others = report.answer
    parts = [f"<p><b>{escape(first)}</b></p>", *(f"<p>{escape(sentence)}</p>" for sentence in others)]
    rows = []
    for category, groups, rest in report.shown(_MOST_GROUPS):
        nbytes = report.categories[category]
        name = category_html(category)
        share = _non_breaking(share_text(nbytes, report.nbytes))
        rows.append(_row(f"<b>{_non_breaking(size_text(nbytes))}</b>", f"<b>{share}</b>", name, ""))
        for group in groups:
            details = "<br>".join(
                f'<span class="soft">{word}</span> {escape(text)}' for word, text in report.sentences(group)
            )
            nbytes_text, share = size_text(group.nbytes), share_text(group.nbytes, report.nbytes)
            title = escape(report.title(group))
            rows.append(_row(_non_breaking(nbytes_text), _non_breaking(share), title, details))
        if rest:
            rows.append(_row("", "", f'<span class="soft">{rest}</span>', ""))
    parts.append(
        f"<table><thead><tr><th{_cell(True)}>bytes</th><th{_cell(True)}>share</th>"
        f"<th{_cell(False)}>tensor, made at</th><th{_cell(False)}>made by, kept, freed</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    for hint in report.hints:
        advice = _CODE.sub(r"<code>\1</code>", escape(hint.advice[:1].upper() + hint.advice[1:]))
        parts.append(f'<p class="hint"><b>Hint: {size_text(hint.nbytes)}</b> {escape(hint.fact)}. {advice}.</p>')
    return f'<div class="ts-report"><style>{STYLE}</style>{"".join(parts)}</div>'


class MeasuredRun(Protocol):
    """A run with its memory, as far as its HTML needs it."""

    @property
    def timeline(self) -> Timeline | None: ...

    def peak(self) -> PeakReport: ...


def run_html(run: MeasuredRun) -> str:
    """Return a run as HTML: its sentence, its memory by category as a picture, and the report on its peak."""
    parts = [f"<p>{escape(repr(run).strip('<>'))}</p>"]
    if run.timeline is not None and len(run.timeline.order):
        picture = figure_svg(category_drawing(run.timeline, AUTO), "none") or ""
        parts += [picture, peak_html(run.peak()).replace(f"<style>{STYLE}</style>", "")]
    return f'<div class="ts-report"><style>{STYLE}</style>{"".join(parts)}</div>'


class PeakRow(Protocol):
    """A row of a table. Its peak is None if it has not run."""

    @property
    def peak_bytes(self) -> int | None: ...


class PeakTable(Protocol):
    """A result shown as a table with bars for peaks: of `ts.compare`, `ts.plan_order`, or a deck."""

    @property
    def rows(self) -> Sequence[PeakRow]: ...

    @property
    def cells(self) -> Sequence[Sequence[str]]: ...

    @property
    def sentences(self) -> Iterable[str]: ...


def table_html(comparison: PeakTable) -> str:
    """Return a comparison's sentences and table as HTML, including its style sheet."""
    peaks = [row.peak_bytes for row in comparison.rows]
    most = max((peak for peak in peaks if peak), default=1)
    bars = [None if peak is None else 100 * peak / most for peak in peaks]
    right = (
        *("peak", "predicted", "predicted peak", "dry run", "above the bound", "longest queue", "planned in", "time"),
        *("ran", "edits", "whole step"),
    )
    return cells_html(comparison.cells, comparison.sentences, right, bars)


def cells_html(
    cells: Sequence[Sequence[str]],
    sentences: Iterable[str] = (),
    right: Collection[str] = (),
    bars: Sequence[float | None] = (),
) -> str:
    """Return sentences and a table as HTML, including their style sheet.

    Args:
        cells: the rows of the table, with the headings first.
        sentences: text above the table.
        right: headings of right-aligned columns.
        bars: for each row, the length in percent of the bar below its peak; None for no bar.
    """
    headings, *rows = cells
    head = "".join(
        f"<th{_cell(heading in right)}{_title(COLUMNS.get(heading, ''))}>{escape(heading)}</th>" for heading in headings
    )
    body = []
    for row, texts in enumerate(rows):
        bar = bars[row] if row < len(bars) else None
        found = [
            _text(heading, text, heading in right, bar if heading in _PEAKS else None)
            for heading, text in zip(headings, texts, strict=True)
        ]
        body.append(f"<tr>{''.join(found)}</tr>")
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>" if rows else ""
    return f'<div class="ts-report"><style>{STYLE}</style>{paragraphs}{table}</div>'


def phases_html(result: ShownAsTable) -> str:
    """Return a result's sentences and table of numbers as HTML, including its style sheet."""
    headings = result.cells[0]
    return cells_html(result.cells, result.sentences, [each for each in headings if each not in result.words])


def advice_html(advice: Advice) -> str:
    """Return advice as HTML: a table, then each item's facts and code, including its style sheet.

    Only the code of the item with the largest gain is expanded.
    """
    cells = [[text.replace(" ×", "\u00a0×") for text in row] for row in advice.cells]
    parts = [cells_html(cells, advice.sentences, ("forward + backward", "peak", "differs by"))]
    for item in advice:
        facts = "".join(f"<li>{escape(fact)}</li>" for fact in item.facts)
        parts.append(f"<h4>{escape(item.title)}: {escape(item.said)}</h4><ul>{facts}</ul>")
        if item.code is not None:
            opened = " open" if item is advice.best else ""
            code = f"<pre><code>{escape(item.code)}</code></pre>"
            parts.append(f"<details{opened}><summary>the code</summary>{code}</details>")
    return f'<div class="ts-advice"><style>{_ADVICE}</style>{"".join(parts)}</div>'


def _text(heading: str, text: str, right: bool, bar: float | None) -> str:
    shown = escape(_non_breaking(text) if right else text)
    if heading in _BOLD:
        shown = f"<b>{shown}</b>"
    if bar is not None:
        shown += f'<span class="bar" style="width:{bar:.1f}%"></span>'
    return f"<td{_cell(right)}>{shown}</td>"


def category_html(category: Category) -> str:
    """Return a category's colour and name, with its meaning on hover."""
    name = CATEGORY_COLOURS[category]
    # Notebooks do not define the variables of saved pages, so there is a fallback.
    colour = f"var(--{name},{LIGHT[name]})"
    return f'<span style="color:{colour}">■</span> <b{_title(CATEGORIES[category])}>{category.title}</b>'


def _row(nbytes: str, share: str, what: str, details: str) -> str:
    return (
        f"<tr><td{_cell(True)}>{nbytes}</td><td{_cell(True)}>{share}</td>"
        f"<td{_cell(False, 'where')}>{what}</td><td{_cell(False, 'wide')}>{details}</td></tr>"
    )


def _title(text: str) -> str:
    """Return an attribute with a hover text."""
    return f' title="{escape(text)}"' if text else ""


def _cell(right: bool, name: str = "") -> str:
    """Return the attributes of a cell. Its alignment is inline, because style sheets are often removed."""
    if right:
        return ' class="num" style="text-align:right;vertical-align:top"'
    named = f' class="{name}"' if name else ""
    return f'{named} style="text-align:left;vertical-align:top"'


def _non_breaking(text: str) -> str:
    """Return the text with non-breaking spaces, which keep a number and its unit on one line."""
    return text.replace(" ", "\u00a0")
