"""Differences between two runs in the statistics of their gradients and in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...inspector.graph.phrases import joined, was_captured
from ...inspector.text.sizes_and_counts import nth, size_text
from ..memory.categories import Category
from ..memory.estimates import estimate_sentence
from ..memory.timeline import Storage, Timeline
from ..recording.peak_report import PeakGroup, groups_of, title_of
from ..recording.statistics import Statistics
from ..recording.task_records import RecordedGradient


class Apart(NamedTuple):
    """The difference between two gradients.

    Attributes:
        share: a lower bound of the relative difference, see `apart`. It is infinite if the gradients cannot be
            compared: one is missing, has another shape, or has NaN or infinite elements that the other does not have.
        by: the statistic that differs most: "norm", "mean", "least", "largest", "NaN", "infinite", "shape", "missing".
        first, second: its value for the two gradients.
        ratio: the factor from the first gradient's statistics to the second's, negative for the opposite sign; None if
            no factor fits all of them, or both gradients are zero.
    """

    share: float
    by: str
    first: float | str | None = None
    second: float | str | None = None
    ratio: float | None = None


EQUAL = Apart(0.0, "norm")


def apart(first: RecordedGradient | None, second: RecordedGradient | None) -> Apart | None:
    """Return the difference between two gradients; None if it is unknown because there are no statistics.

    The gradients a and b have been freed, so their relative difference |a - b| / max(|a|, |b|) cannot be computed.
    Three of their statistics bound it from below:

    - the norms: ||a| - |b|| <= |a - b|;
    - the means: |mean(a) - mean(b)| * sqrt(count) <= |a - b| (Cauchy and Schwarz);
    - the least and the largest element: |max(a) - max(b)| <= |a - b|.

    Histograms give no such bound and are not compared.
    """
    if first is None or second is None:
        found = ["none" if gradient is None else "a gradient" for gradient in (first, second)]
        return EQUAL if first is second else Apart(math.inf, "missing", found[0], found[1])
    if first.meta.shape != second.meta.shape:
        return Apart(math.inf, "shape", _shape(first), _shape(second))
    mine, other = first.statistics, second.statistics
    if mine is None or other is None or mine.nan_count is None or other.nan_count is None:
        return None
    if mine.nan_count != other.nan_count:
        return Apart(math.inf, "NaN", mine.nan_count, other.nan_count)
    if mine.inf_count != other.inf_count:
        return Apart(math.inf, "infinite", mine.inf_count, other.inf_count)
    if mine.norm is None or other.norm is None:
        return EQUAL
    norm = max(mine.norm, other.norm)
    bounds = [_relative("norm", mine.norm, other.norm, norm)]
    if mine.layout == other.layout:  # of two layouts, one may store zeros that the other omits
        count = max((mine.count or 0) - mine.nan_count - (mine.inf_count or 0), 1)
        bounds.append(_relative("mean", mine.mean, other.mean, norm / math.sqrt(count)))
        bounds.append(_relative("least", mine.min, other.min, norm))
        bounds.append(_relative("largest", mine.max, other.max, norm))
    return max(bounds, key=lambda each: each.share)._replace(ratio=_ratio(mine, other))


_FITS = 1e-3
"""The relative deviation, of the norm, up to which a factor fits a statistic; rounding in float16 stays below it."""


def _ratio(first: Statistics, second: Statistics) -> float | None:
    """Return the factor between two gradients, see `Apart`; the mean and the extremes decide about its sign."""
    if not first.norm or not second.norm or first.layout != second.layout:
        return None
    ratio, allowed = second.norm / first.norm, _FITS * second.norm
    mine, other = (first.min, first.max, first.mean), (second.min, second.max, second.mean)
    if None in mine or None in other:
        return None
    least, largest, mean = (ratio * (each or 0.0) for each in mine)
    count = math.sqrt(max(first.count or 1, 1))
    for sign, expected in ((1, (least, largest, mean)), (-1, (-largest, -least, -mean))):
        off = [abs(each - (found or 0.0)) for each, found in zip(expected, other, strict=True)]
        if max(off[0], off[1], off[2] * count) <= allowed:
            return sign * ratio
    return None


def _relative(by: str, first: float | None, second: float | None, of: float) -> Apart:
    if first is None or second is None or first == second or not of:
        return EQUAL
    return Apart(abs(first - second) / of, by, first, second)


def _shape(gradient: RecordedGradient) -> str:
    shape = gradient.meta.shape
    return "nested" if shape is None else "×".join(map(str, shape)) or "a scalar"


_MOST_GROUPS = 3  # groups named in a sentence; `only` has all


@dataclass(frozen=True, slots=True)
class LevelDifference:
    """The first difference between two memory levels, in the first run's order.

    Attributes:
        tasks: the id of the common task in each run; None if the levels differ at the start of the backward.
        nbytes: the highest level in each run while the task ran, or the level at the start.
    """

    tasks: tuple[int, int] | None
    nbytes: tuple[int, int]


@dataclass(frozen=True, eq=False)
class MemoryDifference:
    """The differences between two runs in memory.

    Attributes:
        timelines: the timelines of the two runs, measured or predicted.
        pairs: the matched tasks: ids in the first graph to ids in the second.
    """

    timelines: tuple[Timeline, Timeline]
    pairs: Mapping[int, int]

    @property
    def peaks(self) -> tuple[int, int]:
        """The two peaks, in bytes."""
        return self.timelines[0].peak_bytes, self.timelines[1].peak_bytes

    @property
    def differs(self) -> bool:
        """True if the peaks differ."""
        return self.peaks[0] != self.peaks[1]

    @cached_property
    def first(self) -> LevelDifference | None:
        """The first task at which the levels differ; None if they are equal for all common tasks."""
        mine, other = self.timelines
        if mine.start_bytes != other.start_bytes:
            return LevelDifference(None, (mine.start_bytes, other.start_bytes))
        for place, task in enumerate(mine.order):
            twin = self.pairs.get(task)
            if twin is not None and twin in other.places:
                levels = mine.task_peaks[place], other.task_peaks[other.places[twin]]
                if levels[0] != levels[1]:
                    return LevelDifference((task, twin), levels)
        return None

    @cached_property
    def only(self) -> tuple[tuple[PeakGroup, ...], tuple[PeakGroup, ...]]:
        """The storages alive at the peak of one run only, by category, module and source line, the largest first.

        A storage counts as alive at both peaks if both have one of the same size and purpose: the .grad of the same
        leaf, or allocated by the same task, or saved by the same tasks. If its task is in one run only, the other
        storage must have been allocated by a task or operation of the same name in a module of the same path.
        """
        known = dict(zip(self.pairs, self.pairs, strict=True)), {other: mine for mine, other in self.pairs.items()}
        alive = _alive(self.timelines[0], known[0]), _alive(self.timelines[1], known[1])
        for key in ("paired", "named"):
            mine, other = ([getattr(each, key) for each in found] for found in alive)
            both = Counter(mine) & Counter(other)
            both.pop(None, None)
            alive = _without(alive[0], mine, both), _without(alive[1], other, both)
        first, second = (
            groups_of(timeline, [(each.storage, each.category) for each in found])
            for timeline, found in zip(self.timelines, alive, strict=True)
        )
        return tuple(sorted(first, key=_size)), tuple(sorted(second, key=_size))

    def sentences(self, names: tuple[str, str], of_device: bool = False) -> Iterator[str]:
        """Yield sentences about the differences. names: of the runs. of_device: whether to name the device."""
        first, second = self.timelines
        on = f" on {first.device}" if of_device else ""
        if not self.differs:
            yield f"The memory peak{on} is {size_text(self.peaks[0])} in both."
        else:
            peaks = [
                f"{_exactly(nbytes, beside)} in {name}, {_when(timeline)}"
                for name, timeline, nbytes, beside in zip(
                    names, self.timelines, self.peaks, self.peaks[::-1], strict=True
                )
            ]
            yield f"The memory peak{on} is {peaks[0]}, and {peaks[1]}."
        if first.basis != second.basis:
            yield f"The peak of {names[0]} is {_basis(first)}, the peak of {names[1]} is {_basis(second)}."
        for name, timeline in zip(names, self.timelines, strict=True):
            if estimate := estimate_sentence(timeline.estimates, f"The peak of {name}"):
                yield estimate
        if (parted := self.first) is None:
            yield f"Memory{on} is the same during every task that both run."
            return
        levels = f"{_exactly(*parted.nbytes)} in {names[0]}, {_exactly(*parted.nbytes[::-1])} in {names[1]}"
        if parted.tasks is None:
            yield f"Memory{on} differs before the first task: {levels}."
        else:
            place = nth(first.places[parted.tasks[0]] + 1)
            yield f"Memory{on} first differs at the {place} task, {first.graph.describe(parted.tasks[0])}: {levels}."
        for name, timeline, groups in zip(names, self.timelines, self.only, strict=True):
            if groups:
                nbytes = sum(group.nbytes for group in groups)
                yield f"{size_text(nbytes)} are alive only at the peak of {name}{on}: {_listed(timeline, groups)}."


@dataclass(frozen=True, slots=True)
class _Alive:
    """A storage at the peak of one run.

    Attributes:
        paired: its size, its category and the tasks that allocate and use it, as ids of the first run; None if one of
            them is in one run only.
        named: its size, its category and the task that allocates it, by names.
    """

    storage: Storage
    category: Category
    paired: Hashable | None
    named: Hashable


def _alive(timeline: Timeline, known: Mapping[int, int]) -> list[_Alive]:
    """Return the storages alive at the peak. `known` maps this run's tasks to those of the first run."""
    found: list[_Alive] = []
    for number in timeline.alive():
        storage = timeline.storage(number)
        if storage.nbytes:
            category = timeline.category_at(number, timeline.peak_event, timeline.peak_place)
            paired, named = _keys(timeline, storage, known)
            size = storage.nbytes, category
            found.append(_Alive(storage, category, None if paired is None else (*size, paired), (*size, named)))
    return found


def _keys(timeline: Timeline, storage: Storage, known: Mapping[int, int]) -> tuple[Hashable | None, Hashable]:
    maker, graph = storage.made_by, timeline.graph
    leaf = timeline.grads.get(storage.number)
    if leaf is not None:
        return (("leaf", known[leaf]) if leaf in known else None), ("leaf", graph.tasks[leaf].parameter or leaf)
    if maker.task is not None:
        task = graph.tasks[maker.task]
        paired = ("task", known[maker.task]) if maker.task in known else None
        return paired, ("task", task.name, task.parameter or graph.module(task))
    named = "forward", maker.operation and maker.operation.name, maker.module
    if saved := timeline.saved.get(storage.number):
        are_paired = all(task in known for task, _ in saved)
        return (frozenset((known[task], slot) for task, slot in saved) if are_paired else None), named
    return named, named


def _without(alive: list[_Alive], keys: list[Hashable | None], both: Counter[Hashable | None]) -> list[_Alive]:
    """Return the storages that the other run does not have."""
    left, found = both.copy(), []
    for each, key in zip(alive, keys, strict=True):
        if left[key]:
            left[key] -= 1
        else:
            found.append(each)
    return found


def _size(group: PeakGroup) -> int:
    return -group.nbytes


def _when(timeline: Timeline) -> str:
    task = timeline.peak_task
    if task is None:
        return "at the start of the backward" if timeline.peak_place < 0 else "at the end of the backward"
    return f"in {timeline.graph.describe(task)}"


def _basis(timeline: Timeline) -> str:
    return timeline.basis if timeline.basis == "measured" else f"predicted ({timeline.basis})"


def _exactly(nbytes: int, beside: int) -> str:
    """Return a size as text, in exact bytes if it would otherwise read the same as the other size."""
    return size_text(nbytes) if size_text(nbytes) != size_text(beside) else f"{nbytes:,} bytes"


def _listed(timeline: Timeline, groups: tuple[PeakGroup, ...]) -> str:
    captured = was_captured(timeline.graph)
    said = []
    for group in groups:
        what = group.category.plural if len(group.storages) > 1 else group.category.title
        where = f" of {title_of(timeline.graph, group)}" if captured else f" made by {group.made_by}"
        said.append(f"{size_text(group.nbytes)} {what}{where}")
    return joined(said, _MOST_GROUPS)
