"""The requests to the second device by stream, and whether real streams could have raced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node

from . import NAME

Stream = tuple[int, int]
"""A device's index and the stream's number."""

_NO_KERNELS = {"record", "block", "allocate", "free", "record_stream", "wait for stream", "wait for device"}


class Line(NamedTuple):
    """One request: a kernel, an event recorded or waited for, a block allocated or freed.

    `reads` and `writes` are blocks by address; of a block taken, let go or noted for a stream, `writes` has it.
    """

    what: str
    device: int
    stream_id: int
    event: int
    reads: list[int]
    writes: list[int]

    @property
    def stream(self) -> Stream:
        return self.device, self.stream_id

    @property
    def is_kernel(self) -> bool:
        return self.what not in _NO_KERNELS


@contextmanager
def written_down() -> Iterator[list[Line]]:
    """Record the requests to the devices meanwhile; the list is filled at the end."""
    device: Any = torch.get_device_module(NAME)
    lines: list[Line] = []
    device.take_lines()
    device.write_down(True)
    try:
        yield lines
    finally:
        device.write_down(False)
        lines.extend(Line(*line) for line in device.take_lines())


def stream_of(node: Node) -> Stream | None:
    """The stream on which PyTorch's engine runs a node; None on the CPU."""
    device: Any = torch.get_device_module(NAME)
    found: Stream | None = device.stream_of(node)
    return found


@dataclass
class _Block:
    """A block in use: the stream of its birth, who wrote it last, who has read it since, for whom it is noted."""

    owner: Stream
    wrote: tuple[Stream, int] | None = None
    read: dict[Stream, int] = field(default_factory=dict)
    noted: set[Stream] = field(default_factory=set)

    def uses(self) -> list[tuple[Stream, int]]:
        return [*self.read.items(), *([self.wrote] if self.wrote else [])]


class HappensBefore:
    """The kernels that have certainly ended before others begin, if streams run concurrently, as CUDA's do.

    Each stream counts its kernels, and knows up to which kernel of every other stream it has waited. An event carries
    that from stream to stream; where the host waits, all that is asked for later comes after.

    Attributes:
        races: kernels that use a block which a kernel of another stream may still write, or that write one which it may
            still read.
        early: blocks let go while a stream other than their own may still use them, and of which the allocator does not
            know so (`record_stream`): it could give them to somebody else.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self.races: list[str] = []
        self.early: list[str] = []
        self._clocks: dict[Stream, Counter[Stream]] = {}
        self._host: Counter[Stream] = Counter()
        self._events: dict[int, Counter[Stream]] = {}
        self._blocks: dict[int, _Block] = {}
        for line in lines:
            self._take(line)

    def _clock(self, stream: Stream) -> Counter[Stream]:
        """Return, for each stream, the kernel up to which this one has waited, including waits of the host."""
        found = self._clocks.setdefault(stream, Counter())
        found |= self._host
        return found

    def _take(self, line: Line) -> None:
        if line.is_kernel:
            self._run(line)
        elif line.what == "record":
            self._events[line.event] = Counter(self._clock(line.stream))
        elif line.what == "block":
            self._clocks[line.stream] = self._clock(line.stream) | self._events.get(line.event, Counter())
        elif line.what in ("wait for stream", "wait for device"):
            for stream in list(self._clocks):
                if stream == line.stream or (line.what == "wait for device" and stream[0] == line.device):
                    self._host |= self._clock(stream)
        else:
            self._take_block(line)

    def _take_block(self, line: Line) -> None:
        (address,) = line.writes
        if line.what == "allocate":
            self._blocks[address] = _Block(line.stream)
        elif line.what == "record_stream" and address in self._blocks:
            self._blocks[address].noted.add(line.stream)
        elif line.what == "free" and (block := self._blocks.pop(address, None)) is not None:
            waited = self._clock(block.owner)
            for stream, number in block.uses():
                if stream != block.owner and waited[stream] < number and stream not in block.noted:
                    self.early.append(f"a block of stream {block.owner} that {stream} may still use")

    def _run(self, line: Line) -> None:
        stream, clock = line.stream, self._clock(line.stream)
        clock[stream] += 1
        for address in {*line.reads, *line.writes}:
            block = self._blocks.setdefault(address, _Block(stream))
            others = block.uses() if address in line.writes else [block.wrote] if block.wrote else []
            for other, number in others:
                if other != stream and clock[other] < number:
                    self.races.append(f"{line.what} on {stream} does not wait for {other}")
        for address in line.writes:
            block = self._blocks[address]
            block.wrote, block.read = (stream, clock[stream]), {}
        for address in line.reads:
            self._blocks[address].read[stream] = clock[stream]
