"""Simulated backwards on several devices, played task by task: `Gantt.deck()`, `MakespanReport.deck()`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...engine.planning.policies import POLICIES
from ...engine.schedule.policy import Policy
from ...engine.studies.gantt import ESTIMATED, Gantt
from .page_data import Document, schedule_content, title_of
from .player_widget import Played
from .run_page_data import clock_content
from .save_deck import save_page
from .still_picture import Moment

_NOT_PREDICTED = "The devices are simulated from the times of the tasks. The memory of this order is not predicted."


def devices_document(rows: Sequence[Gantt]) -> Document:
    """Return page data of simulated schedules of one graph, with a ready queue per device. The first one is shown."""
    first = rows[0]
    document = Document(first.graph, title_of(first.graph), "native")
    content = document.content
    content["devices"] = sorted(first.rows)
    content["tasks"]["device"] = [content["devices"].index(first.device_of[task.id]) for task in first.graph.tasks]
    content["queues"] = "per device"
    content["is_simulated"] = True
    for row in rows:
        policy = POLICIES.get(row.policy) or Policy(row.policy, "as simulated", key=lambda task, arrival: (arrival,))
        note = f"{_NOT_PREDICTED} {ESTIMATED}" if row.estimated else _NOT_PREDICTED
        content["schedules"].append(schedule_content(row.graph, policy, row.order, note=note, clock=clock_content(row)))
    return document


def save_devices(rows: Sequence[Gantt], path: str | Path) -> Path:
    """Write simulated schedules as one page that plays without a kernel or a network; see `save_page`."""
    document = devices_document(rows)
    return save_page(document.packed(), path, document.content["title"])


class SimulatedDevices(Played):
    """A widget that plays simulated schedules of a backward in a notebook. Nothing is executed."""

    def __init__(self, rows: Sequence[Gantt]) -> None:
        self._rows = rows
        document = devices_document(rows)
        self._packed = document.packed()
        super().__init__(rows[0].graph, document.content["title"], _is_live=False)

    def __repr__(self) -> str:
        return f"<SimulatedDevices of {self._rows[0]!r}>"

    def packed(self) -> bytes:
        return self._packed

    def moment(self) -> Moment:
        """The moment before the first task."""
        first = self._rows[0]
        return Moment(first.policy, 0, len(first.order), {}, first.order)
