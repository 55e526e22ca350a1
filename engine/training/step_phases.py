"""The phases of a recorded training loop, and the timeline of each step made of them and the allocator's events."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..memory.allocator_events import AllocatorEvent, AllocatorRecording
from ..memory.categories import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE, TEMPORARIES, Kind
from ..memory.census import Place
from .follow_loop import BackwardGiven, LoopFollower, RunBackward
from .memory_census import Holders, Walked
from .step_memory import AFTER_BACKWARD, BACKWARD, BETWEEN, FORWARD, OPTIMIZER, Phase, StepTimeline


@dataclass(slots=True)
class PhaseStart:
    """The start of a phase.

    Attributes:
        phase: its name.
        mark: the number of the allocator's mark there.
        walked: places of gradients, state or parameters, for the categories that were read at this start.
        optimizer: the class name of the optimizer whose step begins here or has ended.
        ended: places of storages freed since the previous phase began.
    """

    phase: str
    mark: int
    walked: Walked
    optimizer: str = ""
    ended: Sequence[Place] = ()


@dataclass(slots=True)
class SeenStep:
    """A training step.

    Attributes:
        first: the number of its first moment.
        optimizers: the class names of the optimizers that stepped in it, in order.
        skipped: the class names of those whose steps a gradient scaler skipped.
    """

    first: int
    optimizers: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


class LoopListener(Protocol):
    """The callbacks of `StepPhases`."""

    def mark(self) -> int:
        """Mark the allocator's events, and return the number of the mark."""

    def backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        """Run an outermost backward."""

    def forward_begins(self) -> None: ...

    def stepped(self) -> None:
        """An optimizer has stepped, or its step was skipped."""

    def step_begins(self, number: int) -> None: ...

    def complete(self) -> None:
        """All wanted steps have ended."""


class StepPhases(LoopFollower):
    """Notes where each phase of a loop begins, and which phases make a step.

    A step ends where the first forward after its last optimizer begins. The last optimizer is known only later: when
    an optimizer that has stepped steps again, the step has ended at `_may_end`. From the second step on it is known at
    once: all optimizers of the first step have stepped. With `wanted=None` steps begin where `begin_step` is called.

    Args:
        holders: collects the modules and optimizers, and reads where their memory is.
        listener: the recording.
        wanted: how many steps to note.

    Attributes:
        moments: where phases begin, in order.
        steps: those that have begun.
        by_hand: whether `next_step` ends the steps.
    """

    def __init__(self, holders: Holders, listener: LoopListener, wanted: int | None) -> None:
        super().__init__()
        self.moments: list[PhaseStart] = []
        self.steps: list[SeenStep] = []
        self._holders = holders
        self._listener = listener
        self.wanted = wanted
        self._stepped: set[int] = set()  # ids of the optimizers that have stepped in this step
        self._known: set[int] = set()  # ids of those that stepped in the first step
        self._may_end: int | None = None  # the moment at which this step has ended if no other optimizer steps
        self.by_hand = False

    def begin(self) -> None:
        """Begin the first step."""
        self.steps.append(SeenStep(0))
        self._enter(BETWEEN)

    def begin_step(self) -> None:
        """End the step, and begin another one."""
        self._listener.step_begins(len(self.steps))
        self.steps.append(SeenStep(len(self.moments)))
        self._enter(BETWEEN)

    def next_step(self) -> None:
        """End the step; from now on only this method ends steps."""
        self.by_hand = True
        if not self._over:
            self._next_step(None)
        if not self._over:
            self._enter(BETWEEN, GRADIENTS, STATE)

    def end(self) -> None:
        """End the last phase, and ignore all that follows."""
        if not self._over:
            self._over = True
            self._enter("", GRADIENTS, STATE)

    @property
    def phase(self) -> str:
        return self.moments[-1].phase

    def _enter(self, phase: str, *walk: Kind, optimizer: str = "") -> None:
        ended = self._holders.ended()  # before new storages can reuse their addresses
        of = {GRADIENTS: self._holders.gradients, STATE: self._holders.state}
        walked: Walked = {name: of[name]() for name in walk}
        if phase == FORWARD:  # parameters may have been moved since, as by `.data = ...`
            walked.update(self._holders.parameters())
        elif phase == BACKWARD:
            walked.update(self._holders.new_parameters())
        self.moments.append(PhaseStart(phase, self._listener.mark(), walked, optimizer, ended))

    def _forward_begins(self, module: nn.Module, given: object) -> None:
        self._holders.add_module(module)
        if self.phase == FORWARD:
            return
        is_over = self._may_end is not None and self._stepped >= self._known and self._known
        if is_over and self.wanted is not None and not self.by_hand:
            self._next_step(len(self.moments))
            if self._over:
                return
        self._listener.forward_begins()
        self._enter(FORWARD, GRADIENTS)
        if self._may_end is not None and self.moments[self._may_end].phase != FORWARD:
            self._may_end = len(self.moments) - 1

    def _backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        self._enter(BACKWARD)
        try:
            return self._listener.backward(run, given)
        finally:
            self._enter(AFTER_BACKWARD, GRADIENTS)

    def _before_step(self, optimizer: Optimizer, is_nested: bool) -> None:
        self._holders.add_optimizer(optimizer)
        if self.wanted is not None and id(optimizer) in self._stepped and not is_nested and not self.by_hand:
            self._next_step(self._may_end)

    def _optimizer_begins(self, optimizer: Optimizer, has_closure: bool) -> None:
        self.steps[-1].optimizers.append(type(optimizer).__name__)
        self._enter(OPTIMIZER, GRADIENTS, STATE, optimizer=type(optimizer).__name__)

    def _optimizer_ends(self, optimizer: Optimizer, is_skipped: bool) -> None:
        if is_skipped:
            self.steps[-1].skipped.append(type(optimizer).__name__)
        self._stepped.add(id(optimizer))
        # An optimizer may step in a hook of the backward, which then continues.
        phase = BACKWARD if self._in_backward else BETWEEN
        self._enter(phase, GRADIENTS, STATE, optimizer=type(optimizer).__name__)
        self._may_end = len(self.moments) - 1
        self._listener.stepped()

    def _closure_begins(self, optimizer: Optimizer) -> None:
        self._listener.forward_begins()
        self._enter(FORWARD, GRADIENTS)

    def _closure_ends(self, optimizer: Optimizer) -> None:
        self._enter(OPTIMIZER, GRADIENTS, optimizer=type(optimizer).__name__)

    def _next_step(self, moment: int | None) -> None:
        """Begin the next step at this moment; None: at the next one."""
        if not self._known:
            self._known = set(self._stepped)
        self._stepped.clear()
        self._may_end = None
        self.steps.append(SeenStep(len(self.moments) if moment is None else moment))
        if self.wanted is not None and len(self.steps) > self.wanted:
            self.end()
            self._listener.complete()
        else:
            self._listener.step_begins(len(self.steps) - 1)


def with_forwards(moments: Sequence[PhaseStart], starts: Sequence[int]) -> list[PhaseStart]:
    """Return the moments; in a step that called no module, the phase before its first backward is its forward.

    Args:
        starts: the numbers of the moments at which steps begin.
    """
    found = list(moments)
    for start, end in zip(starts, (*starts[1:], len(found)), strict=True):
        first = next((place for place in range(start, end) if found[place].phase in (FORWARD, BACKWARD)), start)
        if first > start and found[first].phase == BACKWARD:
            found[first - 1] = replace(found[first - 1], phase=FORWARD)
    return found


@dataclass(slots=True)
class BlockSeen:
    """One block of the recording. `born` and `died` are rows. If `born` is -1, the block existed before; if `died` is
    None, it stays.
    """

    nbytes: int
    address: int
    born: int
    phase: str
    kind: str | None = None
    died: int | None = None


@dataclass(slots=True)
class Window:
    """Several recorded steps on one device.

    Attributes:
        recording: the events of the device's allocator.
        moments: where phases begin, see `StepPhases`; the last one is the end.
        nbytes: the bytes of the storage at each place.
        parameters: the places of parameters and buffers at the end.
        device: the device.
        apart: pairs of marks around allocations that are not the loop's.
    """

    recording: AllocatorRecording
    moments: Sequence[PhaseStart]
    nbytes: Mapping[Place, int]
    parameters: Walked
    device: torch.device
    apart: Sequence[tuple[int, int]] = ()
    blocks: list[BlockSeen] = field(default_factory=list)
    block_of: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        _Naming(self).run()

    def row(self, moment: int) -> int:
        """Return the first row after a moment."""
        return self.recording.marks[self.moments[moment].mark][0]

    def ns(self, moment: int) -> int:
        return self.recording.marks[self.moments[moment].mark][1]

    def timeline(self, start: int, end: int) -> StepTimeline:
        """Return the memory of the step between two moments."""
        base = self.ns(start)
        there, events = self.there(start), self.events(start, end)
        numbers = {number: new for new, number in enumerate(there)}
        for _, number, born in events:
            if born:
                numbers[number] = len(numbers)
        phases = tuple(
            Phase(
                each.phase,
                self.events_before(events, each.mark),
                self.recording.marks[each.mark][1] - base,
                each.optimizer,
            )
            for each in self.moments[start:end]
        )
        return StepTimeline(
            str(self.device),
            len(there),
            array("q", (self.blocks[number].nbytes for number in numbers)),
            tuple(self.blocks[number].kind or TEMPORARIES for number in numbers),
            array("q", (numbers[number] if born else ~numbers[number] for _, number, born in events)),
            array("q", (self.recording.rows[row].ns - base for row, _, _ in events)),
            phases,
            self.ns(end) - base,
        )

    def rows(self, start: int, end: int) -> list[AllocatorEvent]:
        """Return the step's allocator events; blocks that are older than it are allocated first."""
        base, blocks = self.ns(start), self.blocks
        found = [AllocatorEvent(base, blocks[number].address, blocks[number].nbytes) for number in self.there(start)]
        for row, number, born in self.events(start, end):
            nbytes = blocks[number].nbytes
            found.append(
                AllocatorEvent(self.recording.rows[row].ns, blocks[number].address, nbytes if born else -nbytes)
            )
        return found

    def there(self, start: int) -> list[int]:
        """Return the numbers of the blocks alive at a moment."""
        row = self.row(start)
        return [
            number
            for number, block in enumerate(self.blocks)
            if block.born < row and not self._ended_before(number, row)
        ]

    def events_before(self, events: Sequence[tuple[int, int, bool]], mark: int) -> int:
        """Return how many of these events happened before a mark."""
        return bisect_left(events, self.recording.marks[mark][0], key=itemgetter(0))

    def events(self, start: int, end: int) -> list[tuple[int, int, bool]]:
        """Return each allocation and release between two moments: (row, block, whether it is an allocation)."""
        return list(self._events(self.row(start), self.row(end)))

    def _events(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the events of one row range; a release without a row is placed after the previous row."""
        ended: dict[int, list[int]] = {}
        for number, block in enumerate(self.blocks):
            if block.died is not None and first < block.died <= last and self._unseen_end(number, block.died):
                ended.setdefault(block.died - 1, []).append(number)
        for row in range(first, last):
            number = self.block_of[row]
            if number >= 0:
                yield row, number, self.blocks[number].born == row
            for number in ended.get(row, ()):
                yield row, number, False

    def _ended_before(self, number: int, row: int) -> bool:
        died = self.blocks[number].died
        return died is not None and (died < row or (died == row and self._unseen_end(number, died)))

    def _unseen_end(self, number: int, row: int) -> bool:
        return row >= len(self.block_of) or self.block_of[row] != number


class _Naming:
    """Follows the rows once and sets the category of each block, by the addresses read at the moments."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._live: dict[int, int] = {}
        self._older: set[int] = set()  # addresses of blocks older than the recording
        self._ours = [False] * (len(window.recording.rows) + 1)
        for first, last in window.apart:
            marks = window.recording.marks
            for row in range(marks[first][0], marks[last][0]):
                self._ours[row] = True

    def run(self) -> None:
        window = self._window
        moments = iter([*enumerate(window.moments)])
        following = next(moments, None)
        phase = BETWEEN
        our_blocks: set[int] = set()  # addresses of tapescope's own blocks
        for number, row in enumerate(window.recording.rows):
            while following is not None and window.row(following[0]) <= number:
                phase = self._moment(following[1], number)
                following = next(moments, None)
            block = -1
            if row.nbytes > 0 and self._ours[number]:
                our_blocks.add(row.address)
            elif row.nbytes > 0:
                our_blocks.discard(row.address)
                self._end_older(row.address, number)
                block = self._live[row.address] = len(window.blocks)
                window.blocks.append(BlockSeen(row.nbytes, row.address, number, phase))
            elif row.address in our_blocks:
                our_blocks.remove(row.address)
            elif row.address in self._live:
                block = self._live.pop(row.address)
                window.blocks[block].died = number
                self._older.discard(row.address)
            window.block_of.append(block)
        while following is not None:
            self._moment(following[1], len(window.recording.rows))
            following = next(moments, None)
        for kind, places in window.parameters.items():
            self._name(kind, self._here(places))

    def _here(self, places: Sequence[Place]) -> list[int]:
        """Return the addresses on this device."""
        return [address for device, address in places if device == self._window.device]

    def _moment(self, moment: PhaseStart, row: int) -> str:
        blocks = self._window.blocks
        for address in self._here(moment.ended):
            if address in self._older:
                self._end_older(address, row)
        for kind in (GRADIENTS, STATE, PARAMETERS, BUFFERS):
            self._name(kind, self._here(moment.walked.get(kind, ())))
        if moment.phase == BACKWARD:
            for number in self._live.values():
                if blocks[number].kind is None and blocks[number].phase == FORWARD:
                    blocks[number].kind = ACTIVATIONS
        elif moment.phase == FORWARD:
            for number in self._live.values():
                if blocks[number].kind is None and blocks[number].phase == BETWEEN:
                    blocks[number].kind = BATCH
        return moment.phase

    def _name(self, kind: str, addresses: Sequence[int]) -> None:
        window = self._window
        for address in addresses:
            number = self._live.get(address)
            if number is None:  # older than the recording, or not from this allocator
                number = self._live[address] = len(window.blocks)
                window.blocks.append(BlockSeen(window.nbytes[window.device, address], address, -1, ""))
                self._older.add(address)
            # State wins over .grad: an optimizer may keep a gradient's storage, as SGD's first momentum buffer. A
            # parameter stays one, also if the optimizer's state refers to it.
            block, fixed = window.blocks[number], (PARAMETERS, BUFFERS)
            if kind in fixed or (block.kind not in fixed and (block.kind != STATE or kind == STATE)):
                block.kind = kind

    def _end_older(self, address: int, row: int) -> None:
        """Note the end of a block that no row reports: its storage is gone, or a new block has its address."""
        self._older.discard(address)
        number = self._live.pop(address, None)
        if number is not None:
            self._window.blocks[number].died = row
