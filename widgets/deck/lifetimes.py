"""Lifetimes in rows: storages that equal layers made alike are one, those with most bytes × time first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.memory.storage_words import MADE_IN_FORWARD, StorageWords
from ...engine.memory.timeline import Category, Storage, Timeline
from ...engine.words.phrases import folded, operation_title, pattern
from ...inspector.graph.graph import module_name

_MOST_ROWS = 24
_MOST_BARS = 4  # of one row: of more than that one bar is drawn, from the first birth to the last death
_MOST_IN_WORDS = 200  # storages of a row whose makers and keepers are counted

_STAYS = (Category.PARAMETER, Category.STATE)  # from step to step: it has no lifetime in one

Alike = tuple[str, str, int, int]
"""Who made it and where, without numbers, its bytes and its category."""


def lifetime_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Rows of storages, by bytes × time. Time counts in events of the backward, since tasks without show nothing.

    Each has `name` and `module`: what made them and where, a `*` for numbers that differ; `count`, and `nbytes` of one
    of them; `storages`: in order of birth, of more than four the first born and the last freed; and in words
    `made_by`, `kept_by` and `freed_by`.
    """
    first, end = timeline.starts[0], len(timeline.events)
    births, deaths = timeline.births, timeline.deaths
    groups: dict[Alike, list[int]] = {}
    areas: dict[Alike, int] = {}
    makers = _Makers(timeline)
    for number, nbytes in enumerate(timeline.nbytes):
        area = nbytes * (deaths.get(number, end) - max(births[number], first))
        if area > 0 and timeline.born_as[number] not in _STAYS:
            key = (*makers.of(number), nbytes, int(timeline.category_at(number)))
            groups.setdefault(key, []).append(number)
            areas[key] = areas.get(key, 0) + area
    words = StorageWords(timeline)
    largest = sorted(groups, key=lambda key: (-areas[key], groups[key][0]))[:_MOST_ROWS]
    return [_row(key, groups[key], timeline, words) for key in largest]


def _row(key: Alike, numbers: Sequence[int], timeline: Timeline, words: StorageWords) -> dict[str, Any]:
    name, _, nbytes, category = key
    storages = [timeline.storage(number) for number in numbers[:_MOST_IN_WORDS]]
    kept_by = words.kept_by(storages, Category(category))
    if name == MADE_IN_FORWARD and any(storage.kept_by for storage in storages):
        name = kept_by.partition(";")[0]  # nothing tells them apart but who keeps them
    return {
        "name": name,
        "module": module_name(folded(_path(storage, timeline) for storage in storages)),
        "count": len(numbers),
        "nbytes": nbytes,
        "storages": _drawn(numbers, timeline),
        "made_by": words.made_by(storages),
        "kept_by": kept_by,
        "freed_by": words.freed_by(storages),
    }


def _drawn(numbers: Sequence[int], timeline: Timeline) -> list[int]:
    if len(numbers) <= _MOST_BARS:
        return list(numbers)
    deaths, never = timeline.deaths, len(timeline.events)
    last = max(numbers, key=lambda number: deaths.get(number, never))
    return [numbers[0]] if last == numbers[0] else [numbers[0], last]


def _path(storage: Storage, timeline: Timeline) -> str:
    """The module that made it, of a .grad that which has the parameter."""
    leaf = timeline.grads.get(storage.number)
    parameter = None if leaf is None else timeline.graph.tasks[leaf].parameter
    return (storage.made_by.module or "") if parameter is None else parameter.rpartition(".")[0]


class _Makers:
    """What made storages, and where, in words without numbers."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._tasks = timeline.graph.tasks
        self._known: dict[object, tuple[str, str]] = {}

    def of(self, number: int) -> tuple[str, str]:
        timeline = self._timeline
        leaf = timeline.grads.get(number)
        maker = timeline.maker(number)
        if leaf is None and timeline.is_of_step and timeline.births[number] >= timeline.starts[-1]:
            return "made after the backward", ""
        key = (leaf, maker.task, maker.operation if maker.task is None else None, maker.module)
        if key not in self._known:
            self._known[key] = self._words(leaf, maker.task, maker.operation, maker.module)
        return self._known[key]

    def _words(self, leaf: int | None, task: int | None, operation: Any, module: str | None) -> tuple[str, str]:
        if leaf is not None:
            path, _, last = (self._tasks[leaf].parameter or "").rpartition(".")
            return f"{last}.grad" if last else "gradient of a leaf", pattern(path)
        where = pattern(module or "")
        if task is not None:
            return self._tasks[task].short_name, where
        return operation_title(operation.name) if operation else MADE_IN_FORWARD, where
