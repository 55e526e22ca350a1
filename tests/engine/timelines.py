"""Timelines described step by step, for tests: allocations, frees and changes of category, task by task."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.timeline import Maker, Timeline
from tapescope.inspector.graph.graph import Graph


class Told:
    """Describes a timeline: first the storages left by the forward (`left`), then for each `task` those allocated
    (`born`) and freed (`dies`)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order: list[int] = []
        self.nbytes: list[int] = []
        self.categories: list[int] = []
        self.makers: list[Maker] = []
        self.saved: dict[int, tuple[tuple[int, str], ...]] = {}
        self.held: set[int] = set()
        self.grads: dict[int, int] = {}
        self.events: list[int] = []
        self.starts: list[int] = []
        self.changes: list[tuple[int, int, Category]] = []
        self.waits: dict[int, dict[int, int]] = {}

    def left(
        self,
        nbytes: int,
        category: Category = Category.SAVED,
        maker: Maker | None = None,
        saved: Sequence[tuple[int, str]] = (),
        held: bool = False,
    ) -> int:
        number = self._new(nbytes, category)
        self.makers.append(maker or Maker(None, None, None))
        if saved:
            self.saved[number] = tuple(saved)
        if held:
            self.held.add(number)
        return number

    def task(self, task_id: int) -> None:
        self.order.append(task_id)
        self.starts.append(len(self.events))

    def born(self, nbytes: int, category: Category = Category.BUFFER) -> int:
        number = self._new(nbytes, category)
        self.events.append(number)
        return number

    def dies(self, *numbers: int) -> None:
        self.events += [~number for number in numbers]

    def becomes(self, number: int, category: Category) -> None:
        self.changes.append((len(self.events), number, category))

    def waits_in(self, task_id: int, number: int, at: int = 0) -> None:
        self.waits.setdefault(task_id, {})[at] = number

    def done(self, *die_last: int, clock: bool = False) -> Timeline:
        """`die_last`: what dies as backward() returns, after the last task."""
        self.starts.append(len(self.events))
        self.dies(*die_last)
        rows = [
            self.waits.get(task, {}).get(at, -1)
            for task in self.order
            for at in range(len(self.graph.tasks[task].inputs))
        ]
        return Timeline(
            self.graph,
            tuple(self.order),
            "cpu",
            "measured",
            array("q", self.events),
            array("q", self.starts),
            array("q", self.nbytes),
            array("b", self.categories),
            self.changes,
            len(self.makers),
            self.makers,
            self.saved,
            frozenset(self.held),
            self.grads,
            array("q", rows),
            array("q", range(0, 1000 * len(self.events), 1000)) if clock else array("q"),
        )

    def _new(self, nbytes: int, category: Category) -> int:
        self.nbytes.append(nbytes)
        self.categories.append(category)
        return len(self.nbytes) - 1
