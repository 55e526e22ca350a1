"""Several devices over time, as the page's data: when each task ran, and why a device stood still."""

from __future__ import annotations

from typing import Any

from ...engine.studies.gantt import Gantt

Json = dict[str, Any]


def clock_content(gantt: Gantt) -> Json:
    """By place when each task started, how long it took, and when it was ready; and `still_content`."""
    bars = [gantt.bars[task_id] for task_id in gantt.order]
    return {
        "start": [bar.start_ns for bar in bars],
        "duration": [bar.elapsed_ns for bar in bars],
        "ready": [bar.ready_ns for bar in bars],
        "still": still_content(gantt),
    }


def still_content(gantt: Gantt) -> list[Json]:
    """The longest time in which a device stood still for the sake of an order, in words; none where that is hardly any.

    `device` is its number among the page's, which are in the order of their names.
    """
    idle = gantt.starved
    if idle is None:
        return []
    device = sorted(gantt.rows).index(idle.device)
    return [{"device": device, "from": idle.start_ns, "to": idle.end_ns, "text": gantt.starved_text}]
