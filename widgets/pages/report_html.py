"""Reports as HTML, for a notebook's output and for a page: tables in words, in the colours of their surroundings.

JupyterLab takes the style sheet out of a notebook that its reader has not run, and so does GitHub: what a table needs
to be read is said in its cells. Where JupyterLab leaves it in, its own has columns of equal width and grey rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Protocol

from ...engine.memory.lifetimes import Category
from ...engine.recording.peak_report import PeakGroup, PeakReport
from ...inspector.text.report import ShownAsTable
from ...inspector.text.sizes_and_counts import share_text, size_text
from .theme import CATEGORY_COLOURS, LIGHT

if TYPE_CHECKING:
    from ...engine.diagnose.advise import Advice

CATEGORIES = {
    Category.SAVED: "a node keeps it for its backward",
    Category.BUFFER: "a gradient on its way: it waits for the task that takes it",
    Category.GRADIENT: "the .grad of a leaf, which stays when the backward has ended",
    Category.FORWARD: "of the forward: no node keeps it, your code does, as it does the loss",
    Category.HELD: "a gradient that is neither a .grad nor on its way: a hook or retain_grad() holds it",
    Category.WORKSPACE: "made and freed inside one task",
    Category.UNKNOWN: "none of these, as far as can be told: what a library keeps for itself, say",
    Category.LISTED: 'one of several gradients that wait in a list for their task to sum them (accumulate="list")',
    Category.CONSUMED: 'what waited for a task that has run, and is never let go (release="never")',
    Category.PARAMETER: "a parameter or a buffer of the model, where a whole step is shown",
    Category.STATE: "what an optimizer keeps from step to step, where a whole step is shown",
}
COLUMNS = {
    "peak": "the highest level of the backward: all bytes asked for since just before the forward, and not yet freed",
    "predicted": "simulated in this order from the measured run of another policy, or by the plan of a recomputed "
    "forward; exact: equal to the byte",
    "dry run": "predicted before any backward ran, from the forward alone",
    "peak in": "the task in which the peak was reached",
    "longest queue": "the most tasks that were ready to run at one moment",
    "time": "the median of backwards whose memory was not recorded",
}

_PEAKS = ("peak", "predicted peak")
_BOLD = (*_PEAKS, "policy", "gradient", "number", "branch")
_MOST_GROUPS = 5  # of each category
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
    """A report on a peak. It brings its own style."""
    first, *others = report.answer
    parts = [f"<p><b>{escape(first)}</b></p>", *(f"<p>{escape(sentence)}</p>" for sentence in others)]
    rows = []
    for category, groups, rest in report.shown(_MOST_GROUPS):
        nbytes = report.categories[category]
        name = category_html(category)
        share = _unbroken(share_text(nbytes, report.nbytes))
        rows.append(_row(f"<b>{_unbroken(size_text(nbytes))}</b>", f"<b>{share}</b>", name, ""))
        rows += [_group_row(report, group) for group in groups]
        if rest:
            rows.append(_row("", "", f'<span class="soft">{rest}</span>', ""))
    parts.append(
        f"<table><thead><tr><th{_cell(True)}>bytes</th><th{_cell(True)}>share</th>"
        f"<th{_cell(False)}>what, made where</th><th{_cell(False)}>made by, kept, freed</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    parts += [
        f'<p class="hint"><b>Hint: {size_text(hint.nbytes)}</b> {_hint(hint.fact, hint.advice)}</p>'
        for hint in report.hints
    ]
    return f'<div class="ts-report"><style>{STYLE}</style>{"".join(parts)}</div>'


class PeakRow(Protocol):
    """A row of a table. One that has not run has no peak."""

    @property
    def peak_bytes(self) -> int | None: ...


class PeakTable(Protocol):
    """What shows itself as a table with bars for peaks: `ts.compare`'s, `ts.plan_order`'s, a deck's."""

    @property
    def rows(self) -> Sequence[PeakRow]: ...

    @property
    def cells(self) -> Sequence[Sequence[str]]: ...

    @property
    def sentences(self) -> Iterable[str]: ...


def table_html(comparison: PeakTable) -> str:
    """The rows of a comparison and what they say. It brings its own style."""
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
    """A table of text, its headings first, below what it says. It brings its own style.

    Args:
        right: the headings of columns of numbers.
        bars: for each row the length of the bar below its peak, in percent.
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
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>" if rows else ""
    return f'<div class="ts-report"><style>{STYLE}</style>{said}{table}</div>'


def phases_html(result: ShownAsTable) -> str:
    """A table of numbers with what it says above. It brings its own style."""
    headings = result.cells[0]
    return cells_html(result.cells, result.sentences, [each for each in headings if each not in result.words])


def advice_html(advice: Advice) -> str:
    """A table, what it stands on item by item, and the code of each change: that of the largest gain is open. It brings
    its own style."""
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
    shown = escape(_unbroken(text) if right else text)
    if heading in _BOLD:
        shown = f"<b>{shown}</b>"
    if bar is not None:
        shown += f'<span class="bar" style="width:{bar:.1f}%"></span>'
    return f"<td{_cell(right)}>{shown}</td>"


def category_html(category: Category) -> str:
    """Its colour, its name, and what that means on hover."""
    return f'<span style="color:{_colour(category)}">■</span> <b{_title(CATEGORIES[category])}>{category.title}</b>'


def _group_row(report: PeakReport, group: PeakGroup) -> str:
    story = "<br>".join(f'<span class="soft">{word}</span> {escape(said)}' for word, said in report.sentences(group))
    nbytes, share = size_text(group.nbytes), share_text(group.nbytes, report.nbytes)
    return _row(_unbroken(nbytes), _unbroken(share), escape(report.title(group)), story)


def _row(nbytes: str, share: str, what: str, story: str) -> str:
    return (
        f"<tr><td{_cell(True)}>{nbytes}</td><td{_cell(True)}>{share}</td>"
        f"<td{_cell(False, 'where')}>{what}</td><td{_cell(False, 'wide')}>{story}</td></tr>"
    )


def _title(text: str) -> str:
    """What opens on hover."""
    return f' title="{escape(text)}"' if text else ""


def _hint(fact: str, advice: str) -> str:
    return f"{escape(fact)}. {escape(advice[:1].upper() + advice[1:])}."


def _cell(right: bool, name: str = "") -> str:
    """What a cell says of itself."""
    if right:
        return ' class="num" style="text-align:right;vertical-align:top"'
    named = f' class="{name}"' if name else ""
    return f'{named} style="text-align:left;vertical-align:top"'


def _unbroken(text: str) -> str:
    """A number and its unit stay on one line."""
    return text.replace(" ", "\u00a0")


def _colour(category: Category) -> str:
    name = CATEGORY_COLOURS[category]
    return f"var(--{name},{LIGHT[name]})"
