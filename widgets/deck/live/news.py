"""What a live session tells its deck, and the deck its page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ....engine.stops.stopped import Stop
from ....engine.tasks.history import History
from ..document import Json

Status = Literal["stopped", "running", "finished", "failed", "closed"]


@dataclass(frozen=True, slots=True)
class News:
    """How a live session is, and what has changed.

    Attributes:
        position: how many tasks have run.
        current: the id of the task that runs next; None: none is left, or the policy fails to choose.
        status: see `Deck.status`.
        trouble: why it failed, or why something that was asked for could not be, in words.
        stopped: the breakpoint or watchpoint at which it has stopped: `text`, `lines`, `task`, `number`, `why`.
        history: what going back costs: `bytes`, of these `gradient_bytes` and `saved_bytes`, and how far it can go:
            `reach`. None where no task can be taken back.
        forgotten: the ids of tasks of which what was recorded holds no more: they were taken back.
        records: what was recorded of tasks since the last news, by id. It is newer than what is forgotten.
        checks: what was found when tasks were checked since the last news, by id.
        live: the session's own schedule, where it is another than before: what has run, and what is planned.
        others: what other policies would do, and what branches did, where that is something else than before.
        branches: the ways in which the session went, where there are others than before.
        groups: which products could run as one, where that was looked for; see `group_content`.
        replayed: by id of a task that ran since the last news how many storages it made again, and the nanoseconds.
    """

    position: int
    current: int | None
    status: Status
    trouble: str = ""
    stopped: Json | None = None
    history: Json | None = None
    forgotten: tuple[int, ...] = ()
    records: Json = field(default_factory=dict)
    checks: Json = field(default_factory=dict)
    live: Json | None = None
    others: list[Json] | None = None
    branches: list[Json] | None = None
    groups: Json | None = None
    replayed: Json = field(default_factory=dict)


def stopped_content(stop: Stop) -> Json:
    """A stop in words, without the tensors of which it speaks."""
    return {
        "why": stop.why,
        "number": stop.number,
        "task": stop.task,
        "text": stop.text,
        "lines": list(stop.all_lines),
    }


def history_content(history: History, branches_bytes: int) -> Json:
    """What going back costs, with the gradients that are kept to compare branches."""
    gradient_bytes = history.gradient_bytes + branches_bytes
    saved_bytes = history.saved_bytes  # this is counted
    return {
        "bytes": gradient_bytes + saved_bytes,
        "gradient_bytes": gradient_bytes,
        "saved_bytes": saved_bytes,
        "reach": history.reach,
    }
