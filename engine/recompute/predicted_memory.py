"""The predicted memory of a backward with recomputation, derived from the backward without it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..memory.categories import Category
from ..memory.task_memory import Footprint, Footprints, StartStorage
from ..memory.timeline import Timeline
from .droppable_storages import FOR_RECOMPUTATION, RecomputeStorage


@dataclass(frozen=True, slots=True)
class RecomputedLevels:
    """The memory levels and the recompute time of a backward, for one choice of dropped storages.

    Attributes:
        peak_bytes: the highest level of the backward.
        start_bytes: the level when it starts.
        replay_ns: time of all recomputation.
        peaks: the highest level during each task, including its recomputation, by position in the order.
    """

    peak_bytes: int
    start_bytes: int
    replay_ns: float
    peaks: list[int]

    @property
    def peak_place(self) -> int:
        """The position of the task in which the peak is reached; -1 if the backward starts at the peak."""
        return -1 if self.start_bytes == self.peak_bytes else self.peaks.index(self.peak_bytes)


class RecomputedMemory:
    """The memory levels of one backward in one order, for any choice of dropped storages.

    The tasks' own allocations do not depend on the choice. So the levels of the plain backward are shifted by the
    dropped storages, the newly kept ones, and the recomputed ones. A task recomputes the tensors its node saved before
    it allocates anything. A recomputed or newly kept storage stays alive until the last node that saved it, and the
    last recomputation that reads it, are done. A recomputation frees inputs that nothing else needs as soon as it ends.

    Args:
        storages: the storages of the forward.
        plain: the backward without recomputation, simulated in the requested order.
    """

    def __init__(self, storages: Sequence[RecomputeStorage], plain: Timeline) -> None:
        self.storages = storages
        self.plain = plain
        place_of = plain.places
        self.places = [sorted(place_of[task] for task in each.keepers if task in place_of) for each in storages]
        self._holders = list(map(len, self.places))
        self._levels = plain.levels
        self._freed_at = [plain.deaths.get(each.start, -1) for each in storages]  # start is -1 for a newly kept one
        self._place_freed = [plain.place_of(event) if event >= 0 else -1 for event in self._freed_at]
        # A storage that something else also holds is never freed: dropping it saves nothing.
        self.held = [each.start >= 0 and event < 0 for each, event in zip(storages, self._freed_at, strict=True)]
        self._plain_peaks = list(plain.task_peaks)
        self._end = max(self._levels[plain.starts[-1] :])

    @property
    def plain_peak_bytes(self) -> int:
        """The peak of the plain backward."""
        return self.plain.peak_bytes

    def reached(self, dropped: Iterable[int]) -> set[int]:
        """Return the storages of `dropped` that nodes save, and those needed to recompute these."""
        chosen = dropped if isinstance(dropped, set | frozenset) else set(dropped)
        storages = self.storages
        found: set[int] = set()
        stack = [number for number in chosen if self.places[number]]
        while stack:
            number = stack.pop()
            if number not in found:
                found.add(number)
                stack.extend(each for each in storages[number].needs if each in chosen)
        return found

    def newly_kept(self, dropped: Collection[int]) -> set[int]:
        """Return the inputs of recomputation that are neither dropped nor alive in the plain backward.

        Args:
            dropped: a result of `reached`.
        """
        storages = self.storages
        return {
            each
            for number in dropped
            for each in storages[number].needs
            if each not in dropped and storages[each].start < 0
        }

    def kept_bytes(self, dropped: Collection[int]) -> int:
        """Return the bytes of saved storages that are kept, and of newly kept ones.

        Args:
            dropped: a result of `reached`.
        """
        storages = self.storages
        kept = sum(each.nbytes for number, each in enumerate(storages) if self.places[number] and number not in dropped)
        return kept + sum(storages[number].nbytes for number in self.newly_kept(dropped))

    def without(self, numbers: Iterable[int]) -> int:
        """Return the peak if these storages never existed: a lower bound for dropping any of them."""
        gone: dict[int, int] = {}  # by the place that frees them
        for number in numbers:
            if self._freed_at[number] >= 0:
                place = self._place_freed[number]
                gone[place] = gone.get(place, 0) + self.storages[number].nbytes
        highest, below = self._end, 0
        for place in reversed(range(len(self._plain_peaks))):
            below += gone.get(place, 0)
            highest = max(highest, self._plain_peaks[place] - below)
        return max(highest, self._levels[self.plain.starts[0]] - sum(gone.values()))

    def levels_if_dropped(self, dropped: Iterable[int]) -> RecomputedLevels:
        """Return the levels of the backward if these storages are dropped, in O(tasks + recomputed storages).

        They equal those of `timeline`. Writing its lifetimes takes dozens of times as long, and a search asks for
        thousands of choices.
        """
        run = _Run(self, self.reached(dropped))
        levels, starts, peaks = self._levels, self.plain.starts, self._plain_peaks
        found: list[int] = []
        after = 0
        for place, transient, shift, retained in run.places():
            # Tasks between two positions with changes are all shifted by the same bytes.
            if run.shift_before:
                found.extend([peak + run.shift_before for peak in peaks[after:place]])
            else:
                found.extend(peaks[after:place])
            highest = levels[starts[place]] + transient
            if not retained:
                highest = max(highest, peaks[place] + shift)
            else:
                # The plain backward frees these within the task; from each such event on the level is higher here.
                begin = starts[place]
                for event, nbytes in sorted((self._freed_at[number], nbytes) for number, nbytes in retained):
                    highest = max(highest, max(levels[begin : event + 1]) + shift)
                    shift += nbytes
                    begin = event + 1
                highest = max(highest, max(levels[begin : starts[place + 1] + 1]) + shift)
            found.append(highest)
            after = place + 1
        found.extend([peak + run.shift for peak in peaks[after:]])
        start = levels[starts[0]] + run.start_shift
        return RecomputedLevels(max(start, self._end + run.shift, *found), start, run.replay_ns, found)

    def timeline(self, dropped: Iterable[int]) -> Timeline:
        """Return the timeline of the backward, event by event, if these storages are dropped."""
        reached = self.reached(dropped)
        found = _recomputed_timeline(self, reached)
        if any(self.storages[number].allocates_inside for number in reached):
            found = replace(found, estimates=(*found.estimates, INSIDE))
        return found


INSIDE = "the workspace of recomputed attention or half-precision matrix products is not known"
"""The reason why the memory of a plan is an estimate."""


class _Event(Enum):
    """An event of a recomputation: a storage is allocated; memory used only during the call; the state of a random
    generator is freed; a storage is freed."""

    MADE = 0
    EXTRA = 1
    STATE_GONE = 2
    GONE = 3


def state_bytes(storages: Sequence[RecomputeStorage], dropped: Collection[int], number: int) -> int:
    """Return the bytes of generator state kept for a storage; the outputs of one call share one state."""
    each = storages[number]
    return 0 if any(sibling < number and sibling in dropped for sibling in each.siblings) else each.state_bytes


class _Run:
    """A simulation of the reference counts that keep storages alive, one position of the order after the other.

    Attributes:
        dropped: the dropped storages.
        needed: the kept storages that recomputation reads.
        shift: bytes by which the level is above that of the plain backward.
        shift_before: the same, before the current position.
        start_shift: the same, at the start of the backward.
        replay_ns: time of the recomputation so far.
        log: the events of recomputation: (position, event, number of the storage, bytes).
    """

    def __init__(self, memory: RecomputedMemory, dropped: set[int]) -> None:
        self._memory = memory
        self._storages = storages = memory.storages
        self.dropped = dropped
        holders = self._holders = memory._holders.copy()
        self.needed: set[int] = set()
        shift = 0
        for number in dropped:
            each = storages[number]
            shift += state_bytes(storages, dropped, number)
            # A storage that something else holds stays alive, so dropping it frees nothing.
            if each.start >= 0 and not memory.held[number]:
                shift -= each.nbytes
            for need in each.needs:
                holders[need] += 1
                if need not in dropped:
                    self.needed.add(need)
        for number in self.needed:
            if storages[number].start < 0:
                shift += storages[number].nbytes
        self.start_shift = self.shift = self.shift_before = shift
        self.replay_ns = 0.0
        self.log: list[tuple[int, _Event, int, int]] = []
        self._made: set[int] = set()
        self._highest = 0
        self._place = 0

    def places(self) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
        """Yield the positions with changes: (position, highest shift while recomputing, shift afterwards, retained).

        `retained` lists the storages that the plain backward frees there but recomputation still needs, as pairs of
        number and bytes.
        """
        memory, storages, holders = self._memory, self._storages, self._holders
        by_place: dict[int, list[int]] = {}
        for number in sorted(self.dropped | self.needed):
            for place in memory.places[number]:
                by_place.setdefault(place, []).append(number)
        for place in sorted(by_place):
            numbers = by_place[place]
            self._place = place
            self.shift_before = self._highest = self.shift
            # A node unpacks its saved tensors before it computes (the generated apply() functions, Functions.cpp), so
            # recomputation comes before the task's own allocations.
            for number in numbers:
                if number in self.dropped and number not in self._made:
                    self._replay(number)
            # The engine releases saved tensors after the node has run (Engine::evaluate_function in engine.cpp calls
            # release_variables()), so what was recomputed is alive until the last task that saved it has run.
            retained = []
            after = self.shift
            for number in numbers:
                holders[number] -= 1
                if place == memory._place_freed[number] and holders[number]:
                    retained.append((number, storages[number].nbytes))
                    after += storages[number].nbytes
            yield place, self._highest, self.shift, retained
            self.shift = after
        self.shift_before = self.shift

    def _replay(self, wanted: int) -> None:
        """Recompute a storage, after the dropped storages it is computed from."""
        storages, dropped, made = self._storages, self.dropped, self._made
        stack = [wanted]
        while stack:
            number = stack[-1]
            if number in made:
                stack.pop()
                continue
            missing = [each for each in storages[number].needs if each in dropped and each not in made]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            self._run(number)

    def _run(self, number: int) -> None:
        storages, holders, made = self._storages, self._holders, self._made
        each = storages[number]
        extra = each.extra_bytes + each.state_bytes
        born = [number]
        for sibling in each.siblings:
            if sibling in self.dropped and sibling not in made and holders[sibling]:
                born.append(sibling)
            else:  # an output that nothing needs is freed as soon as the call returns
                extra += storages[sibling].nbytes
        self.replay_ns += each.replay_ns
        for one in born:
            made.add(one)
            self.shift += storages[one].nbytes
            self.log.append((self._place, _Event.MADE, one, storages[one].nbytes))
        self._highest = max(self._highest, self.shift + extra)
        if extra:
            self.log.append((self._place, _Event.EXTRA, number, extra))
        for one in born:
            if state := state_bytes(storages, self.dropped, one):
                self.shift -= state
                self.log.append((self._place, _Event.STATE_GONE, one, state))
            for need in storages[one].needs:
                self._release(need)

    def _release(self, number: int) -> None:
        """Release a storage after a recomputation that reads it."""
        self._holders[number] -= 1
        if not self._holders[number] and not self._memory.held[number]:
            nbytes = self._storages[number].nbytes
            self.shift -= nbytes
            self.log.append((self._place, _Event.GONE, number, nbytes))


def _recomputed_timeline(memory: RecomputedMemory, dropped: set[int]) -> Timeline:
    plain, storages = memory.plain, memory.storages
    run = _Run(memory, dropped)
    retained: set[int] = set()  # freed by a recomputation, not by the plain backward's event
    for _, _, _, kept in run.places():
        retained.update(number for number, _ in kept)
    by_place: dict[int, list[tuple[_Event, int, int]]] = {}
    for place, event, number, nbytes in run.log:
        by_place.setdefault(place, []).append((event, number, nbytes))
    writer = _Writer(memory, dropped, [number for number in sorted(run.needed) if storages[number].start < 0])
    skipped = {~storages[number].start for number in retained}
    for place in range(len(plain.order)):
        writer.begin_place()
        for event, number, nbytes in by_place.get(place, ()):
            writer.replay(place, event, number, nbytes)
        for index in range(plain.starts[place], plain.starts[place + 1]):
            writer.copy(index, plain.events[index] in skipped)
    writer.begin_place()
    for index in range(plain.starts[-1], len(plain.events)):
        writer.copy(index, False)
    return writer.timeline()


def recomputed_footprints(memory: RecomputedMemory, dropped: Iterable[int], footprints: Footprints) -> Footprints:
    """Return footprints of the backward with recomputation, for `ts.simulate` and `ts.plan_order`.

    They are exact up to one difference: a storage kept for recomputation is freed at the end of the task that reads it,
    not before the task runs. In a different order different tasks would recompute first; use `RecomputedMemory` in that
    order.

    Args:
        memory: the predicted memory in one order.
        dropped: numbers of the dropped storages.
        footprints: the footprints of the plain backward.
    """
    storages, order = memory.storages, memory.plain.order
    run = _Run(memory, memory.reached(dropped))
    retained = [number for _, _, _, kept in run.places() for number, _ in kept]
    frees: dict[int, int] = {}  # by storage, the position of the recomputation that frees it
    for place, event, number, _ in run.log:
        if event is _Event.GONE:
            frees[number] = place
    gone = {storages[number].start for number in run.dropped}
    keepers = {number: list(start.keepers) for number, start in enumerate(footprints.start)}
    for number in retained:
        if number not in run.dropped:
            keepers[storages[number].start].append((order[frees[number]], FOR_RECOMPUTATION))
    start = [
        replace(each, keepers=tuple(keepers[number]))
        for number, each in enumerate(footprints.start)
        if number not in gone
    ]
    start += [
        StartStorage(
            storages[number].nbytes, ((order[frees[number]], FOR_RECOMPUTATION),), False, storages[number].made_by
        )
        for number in sorted(run.needed)
        if storages[number].start < 0 and number in frees
    ]
    tasks = list(footprints.tasks)
    by_task: dict[int, list[tuple[_Event, int, int]]] = {}
    for place, event, number, nbytes in run.log:
        by_task.setdefault(order[place], []).append((event, number, nbytes))
    for task, events in by_task.items():
        last = {
            number: frees.get(number, max(memory.places[number], default=-1))
            for event, number, _ in events
            if event is _Event.MADE
        }
        tasks[task] = _with_replays(tasks[task], events, {number: order[place] for number, place in last.items()}, task)
    return replace(footprints, tasks=tuple(tasks), start=tuple(start))


def _with_replays(
    footprint: Footprint | None, events: Iterable[tuple[_Event, int, int]], until: dict[int, int], task: int
) -> Footprint | None:
    """Return the footprint of a task with its recomputation in front."""
    if footprint is None:
        return None
    blocks: list[int] = []
    trace: list[int] = []
    block_of: dict[int, int] = {}
    for event, number, nbytes in events:
        if event is _Event.GONE and number in block_of:
            trace.append(~block_of[number])
        elif event is _Event.EXTRA or event is _Event.MADE:
            trace.append(len(blocks))
            if event is _Event.MADE:
                block_of[number] = len(blocks)
            else:
                trace.append(~len(blocks))
            blocks.append(nbytes)
    count = len(blocks)
    freed = {~block for block in trace if block < 0}
    kept = tuple((block, until[number]) for number, block in block_of.items() if block not in freed)
    return replace(
        footprint,
        trace=(*trace, *(each + count if each >= 0 else each - count for each in footprint.trace)),
        blocks=(*blocks, *footprint.blocks),
        outputs=tuple(
            replace(each, number=each.number + count) if each is not None and each.origin == "block" else each
            for each in footprint.outputs
        ),
        kept=(*kept, *((block + count, until_task) for block, until_task in footprint.kept)),
    )


class _Writer:
    """Writes the timeline of a backward with recomputation; storages are numbered in order of allocation."""

    def __init__(self, memory: RecomputedMemory, dropped: set[int], newly_kept: Sequence[int]) -> None:
        plain, storages = memory.plain, memory.storages
        self._plain = plain
        self._storages = storages
        gone = {storages[number].start for number in dropped}
        there = [number for number in range(plain.before) if number not in gone]
        self._number_of = {number: place for place, number in enumerate(there)}  # by number in the plain backward
        self._nbytes = [plain.nbytes[number] for number in there]
        self._born_as = [plain.born_as[number] for number in there]
        self._makers = [plain.makers[number] for number in there]
        self._saved = {
            self._number_of[number]: keepers for number, keepers in plain.saved.items() if number in self._number_of
        }
        self._number_by_storage: dict[int, int] = {}  # by number in `storages`
        for number in newly_kept:
            self._number_by_storage[number] = len(self._nbytes)
            self._makers.append(storages[number].made_by)
            self._append(storages[number].nbytes, Category.SAVED)
        self._state_of: dict[int, int] = {}
        for number in sorted(dropped):
            if state := state_bytes(storages, dropped, number):
                self._state_of[number] = len(self._nbytes)
                self._makers.append(storages[number].made_by)
                self._append(state, Category.SAVED)
        self._before = len(self._nbytes)
        for number, each in enumerate(storages):
            if each.start in self._number_of:
                self._number_by_storage[number] = self._number_of[each.start]
        self._events: list[int] = []
        self._starts: list[int] = []
        self._index_of: list[int] = []  # by event of the plain backward

    def begin_place(self) -> None:
        self._starts.append(len(self._events))

    def _append(self, nbytes: int, category: int) -> int:
        self._nbytes.append(nbytes)
        self._born_as.append(int(category))
        return len(self._nbytes) - 1

    def replay(self, place: int, event: _Event, number: int, nbytes: int) -> None:
        """Write an event of a recomputation."""
        each = self._storages[number]
        if event is _Event.EXTRA:
            born = self._append(nbytes, Category.WORKSPACE)
            self._events += [born, ~born]
        elif event is _Event.MADE:
            born = self._append(nbytes, Category.SAVED if each.keepers else Category.WORKSPACE)
            self._events.append(born)
            self._number_by_storage[number] = born
            if each.start >= 0:  # freed by the plain backward's event unless a recomputation frees it
                self._number_of[each.start] = born
                self._saved[born] = self._plain.saved.get(each.start, ())
        else:
            dies = (self._number_by_storage if event is _Event.GONE else self._state_of)[number]
            self._events.append(~dies)
            if dies < self._before and dies not in self._saved:
                self._saved[dies] = ((self._plain.order[place], FOR_RECOMPUTATION),)

    def copy(self, index: int, skipped: bool) -> None:
        """Copy an event of the plain backward."""
        self._index_of.append(len(self._events))
        number = self._plain.events[index]
        if skipped:
            return
        if number >= 0:
            self._number_of[number] = self._append(self._plain.nbytes[number], self._plain.born_as[number])
            self._events.append(self._number_of[number])
        elif (here := self._number_of.get(~number)) is not None:
            self._events.append(~here)

    def _index(self, index: int) -> int:
        """Return the new index of an event of the plain backward.

        Changes of category before the first event of a task come before its recomputation.
        """
        place = bisect_left(self._plain.starts, index)
        if place < len(self._starts) and self._plain.starts[place] == index:
            return self._starts[place]
        return self._index_of[index] if index < len(self._index_of) else len(self._events)

    def timeline(self) -> Timeline:
        plain, number_of = self._plain, self._number_of
        return replace(
            plain,
            events=array("q", self._events),
            starts=array("q", self._starts),
            nbytes=array("q", self._nbytes),
            born_as=array("q", self._born_as),
            changes=[
                (self._index(index), number_of[number], category)
                for index, number, category in plain.changes
                if number in number_of
            ],
            before=self._before,
            makers=self._makers,
            saved=self._saved,
            held=frozenset(number_of[number] for number in plain.held if number in number_of),
            grads={number_of[number]: task for number, task in plain.grads.items()},
            inputs=array("q", [number_of.get(number, -1) if number >= 0 else -1 for number in plain.inputs]),
            event_ns=array("q"),
            blocks=None,
        )
