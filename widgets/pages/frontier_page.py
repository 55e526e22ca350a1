"""A page with a slider over recompute plans: curve, costs, modules and storages, without a kernel or a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ...engine.memory.categories import Category
from ...engine.memory.timeline import Timeline
from ...engine.recompute.module_table import module_sentences, ms_text, operation_name
from ...engine.recompute.plan import PlannedStorage
from ...engine.recompute.planned_recompute import PlanFrontier, PlannedRecompute, prediction_of
from ...inspector.graph.graph import Graph
from ...inspector.graph.phrases import task_name
from ...inspector.graph.source_lines import PACKAGE
from ...inspector.text.sizes_and_counts import percent_text, share_text, size_text
from .html_page import HEADER_STYLE, MARK, html_page
from .report_html import cells_html
from .theme import DARK, FONT, LIGHT, variables

CODE = PACKAGE / "widgets" / "static" / "frontier.js"
"""The script of the page: widgets/js/src/frontier, bundled."""

_MOST_BINS = 480  # points of a curve
_MOST_STORAGES = 40  # the largest storages are listed
_FATES = {"dropped": "d", "intermediate": "w", "kept": "k", "newly kept": "n"}
_ABSENT = "-"

_STYLE = f"""
.ts-frontier{{color-scheme:light;{variables(LIGHT)};background:var(--panel);color:var(--ink);
  font:400 12px/17px {FONT};font-variant-numeric:tabular-nums;border:1px solid var(--line);border-radius:8px;
  max-width:1360px;margin:0 auto;overflow:hidden;text-align:left;container-type:inline-size}}
@media (prefers-color-scheme:dark){{.ts-frontier:not([data-theme=light]){{color-scheme:dark;{variables(DARK)}}}}}
.ts-frontier[data-theme=dark]{{color-scheme:dark;{variables(DARK)}}}
.ts-frontier *{{box-sizing:border-box}}
.ts-frontier[data-ready] .still,.ts-frontier:not([data-ready]) .moving{{display:none}}
.ts-frontier .still,.ts-frontier section{{padding:12px 16px}}
.ts-frontier section+section,.ts-frontier header+.still,.ts-frontier header~.moving{{border-top:1px solid var(--line)}}
.ts-frontier h3{{font-size:12px;line-height:17px;font-weight:600;margin:0 0 6px;color:var(--ink)}}
.ts-frontier h3 span{{font-weight:400;color:var(--ink3);margin-left:8px}}
.ts-frontier .figures{{display:flex;flex-wrap:wrap;gap:4px 36px;margin:0 0 8px}}
.ts-frontier .figures div{{min-width:108px}}
.ts-frontier .figures b{{display:block;font-size:22px;line-height:28px;font-weight:600;letter-spacing:-.01em}}
.ts-frontier .figures span{{color:var(--ink3)}}
.ts-frontier .budget{{display:grid;grid-template-columns:max-content 1fr max-content;gap:0 12px;align-items:center;
  color:var(--ink3)}}
.ts-frontier input[type=range]{{width:100%;margin:0;height:28px;accent-color:var(--accent);cursor:pointer}}
.ts-frontier :focus-visible{{outline:2px solid var(--saved);outline-offset:1px}}
.ts-frontier .charts{{display:grid;grid-template-columns:minmax(0,1fr) minmax(230px,300px);gap:8px 24px}}
@container (max-width:760px){{.ts-frontier .charts{{grid-template-columns:minmax(0,1fr)}}}}
@container (max-width:480px){{
  .ts-frontier .budget{{grid-template-columns:1fr max-content}}
  .ts-frontier .budget input{{grid-area:1/1/2/3}}
}}
.ts-frontier svg{{display:block;width:100%;overflow:visible}}
.ts-frontier header svg{{width:auto}}
.ts-frontier svg text{{font:400 11px {FONT};fill:var(--ink3);font-variant-numeric:tabular-nums}}
.ts-frontier svg .strong{{fill:var(--ink);font-weight:600}}
.ts-frontier .key{{display:flex;flex-wrap:wrap;gap:2px 16px;color:var(--ink2);margin:0 0 4px}}
.ts-frontier .key i{{display:inline-block;width:14px;height:0;border-top:2px solid;vertical-align:middle;
  margin:0 6px 2px 0}}
.ts-frontier .key i.box{{height:8px;border:0;border-radius:2px;width:8px}}
.ts-frontier .told{{min-height:17px;color:var(--ink2);margin:2px 0 0;overflow:hidden;
  text-overflow:ellipsis;white-space:nowrap}}
.ts-frontier .said p{{margin:0 0 2px;max-width:110ch;color:var(--ink2)}}
.ts-frontier .said p:first-child{{color:var(--ink)}}
.ts-frontier .whole{{display:flex;height:10px;border-radius:3px;overflow:hidden;background:var(--sunk);
  margin:0 0 6px;gap:1px}}
.ts-frontier .scroll{{overflow-x:auto}}
.ts-frontier table{{border-collapse:collapse;width:100%;margin:0;table-layout:auto;font-size:12px}}
.ts-frontier.ts-frontier :is(td,th){{padding:4px 16px 4px 0;text-align:left;vertical-align:baseline;background:none;
  border:0;white-space:nowrap;max-width:none}}
.ts-frontier th{{font-weight:400;color:var(--ink3)}}
.ts-frontier tbody tr:nth-child(n){{border-top:1px solid var(--line);background:none}}
.ts-frontier.ts-frontier .number{{text-align:right}}
.ts-frontier td:last-child{{padding-right:0;white-space:normal;color:var(--ink2)}}
.ts-frontier tr.soft td{{color:var(--ink3)}}
.ts-frontier .fate{{white-space:nowrap}}
.ts-frontier .fate i{{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px}}
"""


def page_html(frontier: PlanFrontier, title: str, measured: Mapping[str, Timeline]) -> str:
    """Return the page; see `PlanFrontier.save_html`."""
    header = f"<header>{MARK}<h1>{escape(title)}</h1></header>"
    return html_page(title, frontier_html(frontier, measured, header), HEADER_STYLE)


def frontier_html(frontier: PlanFrontier, measured: Mapping[str, Timeline] | None = None, header: str = "") -> str:
    """Return the plans as HTML for a page or a notebook; without scripts they are a table.

    `header` is the HTML above them.

    Raises:
        ValueError: if a measured timeline belongs to a different graph.
    """
    # "<" is escaped because text in the JSON could otherwise close the <script> element.
    content = json.dumps(_content(frontier, measured or {}), separators=(",", ":")).replace("<", "\\u003c")
    headings = frontier.cells[0]
    still = cells_html(frontier.cells, [*frontier.explored.sentences, *frontier.sentences], headings)
    return (
        f'<div class="ts-frontier"><style>{_STYLE}</style>{header}<div class="still">{still}</div>'
        f'<div class="moving"></div>'
        f'<script type="application/json">{content}</script></div><script>{CODE.read_text(encoding="utf-8")}</script>'
    )


def _content(frontier: PlanFrontier, measured: Mapping[str, Timeline]) -> dict[str, Any]:
    plans = frontier.plans
    plain = plans[0].timeline
    count = len(plain.order)
    size = max(1, -(-count // _MOST_BINS))
    starts = range(0, count, size)
    for name, timeline in measured.items():
        if len(timeline.order) != count:
            raise ValueError(
                f"{name!r} belongs to a different graph: its backward ran {len(timeline.order):,} tasks, the plans are "
                f"for {count:,}"
            )
    every = {each.number: each for plan in reversed(plans) for each in plan.storages}
    listed = sorted(every.values(), key=lambda each: (-each.nbytes, each.number))[:_MOST_STORAGES]
    return {
        "tasks": count,
        "size": size,
        "names": [_name(plain.graph, plain.order[start]) for start in starts],
        "place": frontier.place,
        "asked": frontier.asked,
        "measured": [{"name": name, **_curve(each, size)} for name, each in measured.items()],
        "notes": frontier.sentences,
        "storages": [_described(each) for each in listed],
        "others": len(every) - len(listed),
        "plans": [
            {
                **_curve(plan.timeline, size),
                **_figures(plan, plans[0]),
                "replays": _replays(plan.timeline, size),
                "cells": plan.cells,
                "fates": _fates(plan, listed),
                "totals": [
                    [_FATES[fate], sum(each.nbytes for each in plan.storages if each.fate == fate)] for fate in _FATES
                ],
            }
            for plan in plans
        ],
    }


def _name(graph: Graph, task: int) -> str:
    name, where = task_name(graph.tasks[task]), graph.module(task) or graph.tasks[task].parameter
    return f"{name} in {where}" if where else name


def _curve(timeline: Timeline, size: int) -> dict[str, Any]:
    """Return the highest level in each bin, the level at the end, and the peak."""
    peaks = list(timeline.task_peaks)
    levels = [max(peaks[start : start + size]) for start in range(0, len(peaks), size)]
    levels = levels or [timeline.start_bytes]
    return {"levels": levels, "end": timeline.end_bytes, "peak": timeline.peak_bytes}


def _replays(timeline: Timeline, size: int) -> list[list[int]]:
    """Return the bytes of saved storages recomputed in each bin, as [bin, bytes]."""
    found: dict[int, int] = {}
    for place in range(len(timeline.order)):
        for event in range(timeline.starts[place], timeline.starts[place + 1]):
            number = timeline.events[event]
            if number >= 0 and timeline.born_as[number] == Category.SAVED:
                found[place // size] = found.get(place // size, 0) + timeline.nbytes[number]
    return [[place, nbytes] for place, nbytes in found.items()]


def _figures(plan: PlannedRecompute, plain: PlannedRecompute) -> dict[str, Any]:
    predicted = prediction_of(plan)
    peak, before = plan.peak_bytes, plain.peak_bytes
    more = predicted.seconds / predicted.plain_seconds - 1
    count = sum(each.fate == "dropped" for each in plan.storages)
    if not plan.dropped:
        sentences = [
            f"Nothing is dropped: the peak is {size_text(before)}, and a step takes {ms_text(predicted.plain_seconds)}."
        ]
    else:
        saved = sum(bool(each.saved_by) for each in plan.storages)
        kept = f", and {size_text(plan.newly_kept_bytes)} newly kept to recompute them" if plan.newly_kept_bytes else ""
        sentences = [
            f"The predicted peak of the backward falls from {size_text(before)} to {size_text(peak)}, by "
            f"{share_text(before - peak, before)}.",
            f"{count:,} of the {saved:,} saved storages that the forward made are dropped, "
            f"{size_text(plan.dropped_bytes)}{kept}.",
            f"A step of {ms_text(predicted.plain_seconds)} takes {percent_text(more)} longer: "
            f"{ms_text(predicted.replay_seconds)} for recomputation, {ms_text(predicted.recording_seconds)} for "
            "recording the forward.",
            *module_sentences(plan),
        ]
    if plan.left_alone is not None:
        sentences.append(plan.left_alone)
    sentences += plan.notes
    return {
        "seconds": predicted.seconds - predicted.plain_seconds,
        "figures": [
            ["predicted peak", size_text(peak)],
            ["of the peak without a plan", share_text(peak, before)],
            ["longer step", percent_text(more)],
            ["dropped", size_text(plan.dropped_bytes)],
        ],
        "sentences": sentences,
    }


def _described(storage: PlannedStorage) -> list[str]:
    return [
        size_text(storage.nbytes),
        operation_name(storage.operation),
        storage.module or "outside any module",
        ms_text(storage.seconds),
        "" if storage.obstacle is None else f"cannot be recomputed, since {storage.obstacle}",
    ]


def _fates(plan: PlannedRecompute, listed: Sequence[PlannedStorage]) -> str:
    """Return a letter for the fate of each listed storage."""
    fates = {each.number: _FATES[each.fate] for each in plan.storages}
    return "".join(fates.get(each.number, _ABSENT) for each in listed)
