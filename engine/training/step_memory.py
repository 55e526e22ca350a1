"""Memory over one training step, and the peak of each of its phases."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ...inspector.text.sizes_and_counts import size_text
from ..memory.baseline import Baseline
from ..memory.categories import OF_A_STEP, TEMPORARIES, CategoryWalk
from ..memory.lifetimes import Lifetimes

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
PHASES = FORWARD, BACKWARD, OPTIMIZER

AFTER_BACKWARD, BETWEEN = "after backward", "between"
"""Further phases of a recorded step: AFTER_BACKWARD begins when a backward ends (clipping, for example); BETWEEN is
the time before the first forward and after the optimizer (zero_grad, loading of data)."""


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The peak of a phase of a step.

    Attributes:
        phase: its name: "forward", "backward" or "optimizer"; in a recorded step also others, see `PHASES`.
        nbytes: the bytes alive at the peak.
        parts: these bytes by category, see `OF_A_STEP`.
    """

    phase: str
    nbytes: int
    parts: Mapping[str, int]


def cells_of(phases: Sequence[PhasePeak]) -> list[list[str]]:
    """Return a table with a column for each phase, a row for each category that occurs, and the totals."""
    used = [each for each in OF_A_STEP if any(each in phase.parts for phase in phases)]
    rows = [["", *(phase.phase for phase in phases)]]
    rows += [[each, *(size_text(phase.parts.get(each, 0)) for phase in phases)] for each in used]
    return [*rows, ["in all", *(size_text(phase.nbytes) for phase in phases)]]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a step.

    Attributes:
        name: "forward", "backward", "after backward", "optimizer" or "between".
        event: the index of its first event.
        start_ns: its start, in nanoseconds since the step began.
        optimizer: the class of the optimizer that steps in it, or has stepped before it.
    """

    name: str
    event: int
    start_ns: int
    optimizer: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class StepTimeline(Lifetimes):
    """The memory of one device over one training step, measured or predicted.

    A level is the sum of all blocks alive that were allocated since the recording began, plus parameters, buffers,
    gradients and optimizer state from before. Blocks are numbered; those that exist at the start of the step come
    first.

    Attributes:
        device: the device, "cpu" or "cuda:0".
        before: the number of blocks that exist at the start of the step.
        nbytes: the size of each block.
        kinds: the category of each block, see `OF_A_STEP`; it is the same for its whole lifetime.
        events: `n` for the allocation of block n, `~n` for its release.
        event_ns: the time of each event, in nanoseconds since the step began. Empty if predicted.
        phases: the phases in order; one may occur several times.
        elapsed_ns: the duration of the step; 0 if predicted.
        names: the name of each block, such as `0.weight`, or the operation that allocates it. Empty if measured.
    """

    device: str
    before: int
    nbytes: array[int]
    kinds: Sequence[str]
    events: array[int]
    event_ns: array[int]
    phases: tuple[Phase, ...]
    elapsed_ns: int
    names: Sequence[str] = ()

    def __repr__(self) -> str:
        basis = "measured" if self.elapsed_ns else "predicted"
        peak = f"peak {self.peak_bytes:,} bytes, in the {self.peak_phase.name}"
        return f"<StepTimeline of {self.device}, {basis}: {peak}>"

    @property
    def baseline(self) -> Baseline:
        """The memory that existed at the start of the step, which its levels include."""
        return Baseline(self.parts_at(0))

    @property
    def peak_phase(self) -> Phase:
        """The phase in which the peak was reached."""
        return self.phase_at(self.peak_event - 1)

    def phase_at(self, event: int) -> Phase:
        """Return the phase of an event; the first phase for -1."""
        starts = [phase.event for phase in self.phases]
        return self.phases[max(bisect_right(starts, max(event, 0)) - 1, 0)]

    def parts_at(self, event: int) -> dict[str, int]:
        """Return the bytes of each category before the event of this index; `len(events)`: at the end of the step."""
        walk = self._walk()
        walk.go_to(event, 0)
        return {each: nbytes for each in OF_A_STEP if (nbytes := walk.nbytes_of.get(each, 0))}

    def _walk(self) -> CategoryWalk[str]:
        return CategoryWalk(self.events, self.nbytes, self.kinds, self.before)

    @cached_property
    def peaks(self) -> tuple[PhasePeak, ...]:
        """The peak of each phase; for one that occurs several times, the highest."""
        highest: dict[str, tuple[int, int]] = {}  # by phase: the bytes, and the index of the next event
        for phase, following in pairwise((*self.phases, self._end)):
            levels = self.levels[phase.event : following.event + 1]
            nbytes = max(levels)
            if phase.name not in highest or nbytes > highest[phase.name][0]:
                highest[phase.name] = nbytes, phase.event + levels.index(nbytes)
        return tuple(PhasePeak(name, nbytes, self.parts_at(event)) for name, (nbytes, event) in highest.items())

    @cached_property
    def category_levels(self) -> Mapping[str, array[int]]:
        """Return the bytes of each category before the first and after each event; they add up to `levels`."""
        columns: dict[str, array[int]] = {each: array("q") for each in OF_A_STEP if each in self.kinds}
        walk = self._walk()
        for event in range(len(self.events) + 1):
            walk.go_to(event, 0)
            for each, column in columns.items():
                column.append(walk.nbytes_of.get(each, 0))
        return columns

    def temporaries_of(self, name: str) -> int:
        """Return the highest bytes of temporaries in a phase, which a fused optimizer, for example, does not need."""
        ends = [(phase.event, following.event) for phase, following in pairwise((*self.phases, self._end))]
        column = self.category_levels.get(TEMPORARIES, array("q"))
        found = [
            max(column[first : last + 1])
            for (first, last), phase in zip(ends, self.phases, strict=True)
            if phase.name == name and column
        ]
        return max(found, default=0)

    @property
    def _end(self) -> Phase:
        return Phase("", len(self.events), self.elapsed_ns)


def predicted_step(
    device: str,
    events: Iterable[int],
    nbytes: Sequence[int],
    starts: Sequence[tuple[str, int]],
    kinds: Mapping[int, str],
    names: Sequence[str],
) -> StepTimeline:
    """Return the last of the steps that were run on fake tensors.

    Args:
        device: the device.
        events: allocations and releases of storages in all steps, `n` and `~n`.
        nbytes: the bytes of each storage; 0 on another device.
        starts: the phases of the step in order, each with the index of its first event.
        kinds: the category of each storage; "temporaries" if missing.
        names: the name of each storage.
    """
    first = starts[0][1]
    alive: dict[int, None] = {}
    shown: list[int] = []  # the numbers of the storages, in the order in which the step counts them
    numbers: dict[int, int] = {}
    found = array("q")
    counted = [0]  # by event of the step how many of those before it are on this device
    for place, event in enumerate(events):
        if place == first:
            shown = list(alive)
            numbers = {number: new for new, number in enumerate(shown)}
        number = event if event >= 0 else ~event
        if place < first:
            if event < 0:
                alive.pop(number, None)
            elif nbytes[number]:
                alive[number] = None
            continue
        if nbytes[number] and event >= 0:
            numbers[number] = len(shown)
            shown.append(number)
        if nbytes[number]:
            found.append(numbers[number] if event >= 0 else ~numbers[number])
        counted.append(len(found))
    return StepTimeline(
        device,
        len(alive),
        array("q", (nbytes[number] for number in shown)),
        tuple(kinds.get(number, TEMPORARIES) for number in shown),
        found,
        array("q"),
        tuple(Phase(name, counted[start - first], 0) for name, start in starts),
        0,
        [names[number] for number in shown],
    )
