"""From what an allocator did over several steps of a loop to a timeline for each of them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import torch

from ..memory.allocator_events import AllocatorEvent, AllocatorRecording
from ..memory.census import Place
from ..memory.lifetimes import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE, TEMPORARIES
from .memory_census import Walked
from .step_boundaries import PhaseStart
from .step_timeline import BACKWARD, BETWEEN, FORWARD, Phase, StepTimeline


@dataclass(slots=True)
class BlockSeen:
    """One block of the recording. `born` and `died` are rows; born -1: it was there before; died None: it stays."""

    nbytes: int
    address: int
    born: int
    phase: str
    kind: str | None = None
    died: int | None = None


@dataclass(slots=True)
class Window:
    """What was seen of several steps on one device.

    Attributes:
        recording: of the device's allocator, over all of it.
        moments: where phases begin, see `LoopWatch`; the last one is the end.
        nbytes: by place the bytes of what was walked there.
        parameters: what is walked in the end.
        device: whose memory.
        apart: pairs of marks around what is not the loop's.
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
        """The first row after a moment."""
        return self.recording.marks[self.moments[moment].mark][0]

    def ns(self, moment: int) -> int:
        return self.recording.marks[self.moments[moment].mark][1]

    def timeline(self, start: int, end: int) -> StepTimeline:
        """The memory of the step that begins with one moment, and ends with another."""
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
        """The same as an allocator's events: what is there as the step begins is born first."""
        base, blocks = self.ns(start), self.blocks
        found = [AllocatorEvent(base, blocks[number].address, blocks[number].nbytes) for number in self.there(start)]
        for row, number, born in self.events(start, end):
            nbytes = blocks[number].nbytes
            found.append(
                AllocatorEvent(self.recording.rows[row].ns, blocks[number].address, nbytes if born else -nbytes)
            )
        return found

    def there(self, start: int) -> list[int]:
        """The blocks that are there at a moment."""
        row = self.row(start)
        return [
            number
            for number, block in enumerate(self.blocks)
            if block.born < row and not self._ended_before(number, row)
        ]

    def events_before(self, events: Sequence[tuple[int, int, bool]], mark: int) -> int:
        """How many of these happened before a mark."""
        return bisect_left(events, self.recording.marks[mark][0], key=itemgetter(0))

    def events(self, start: int, end: int) -> list[tuple[int, int, bool]]:
        """Each birth and death between two moments: (row, block, whether it is born)."""
        return list(self._events(self.row(start), self.row(end)))

    def _events(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Ends that no row tells come after the row before."""
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
    """Follows the rows once, and says of each block what it is, by the addresses that were walked at the moments."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._live: dict[int, int] = {}
        self._older: set[int] = set()  # addresses of what is older than the recording
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
        our_blocks: set[int] = set()  # addresses
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
        """The addresses of those on this device."""
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
            if number is None:  # it was there before, or is none of the allocator's
                number = self._live[address] = len(window.blocks)
                window.blocks.append(BlockSeen(window.nbytes[window.device, address], address, -1, ""))
                self._older.add(address)
            if window.blocks[number].kind != STATE or kind == STATE:
                window.blocks[number].kind = kind

    def _end_older(self, address: int, row: int) -> None:
        """It has ended, though no row says so: its storage has gone, or a new block is where it was."""
        self._older.discard(address)
        number = self._live.pop(address, None)
        if number is not None:
            self._window.blocks[number].died = row
