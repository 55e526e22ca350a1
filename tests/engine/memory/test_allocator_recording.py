"""The CUDA allocator's history: hand-made ones of the form that torch documents, and, on CUDA, real ones."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapescope.engine.memory.allocator_events import MARK_BYTES, AllocatorEvent, AllocatorRecording, Instant
from tapescope.engine.memory.allocator_recording import (
    CudaAllocator,
    CudaRecording,
    Failure,
    Level,
    Reserved,
    blocks_of,
    read_history,
)
from tapescope.engine.memory.timeline import BlockLevels
from tapescope.tests.says import raises

SEGMENT = 2 * 2**20


class History:
    """Tells an allocator's history entry by entry, as torch.cuda.memory._snapshot() gives it."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.marks: list[int] = []

    def says(self, action: str, size: int, addr: int | None = None, **others: Any) -> None:
        self.entries.append(
            {
                "action": action,
                "size": size,
                "stream": 0,
                "frames": [],
                "time_us": 1_700_000_000_000_000 + len(self.entries),
                "pool_id": (0, 0),
                **({} if addr is None else {"addr": addr}),
                **others,
            }
        )

    def alloc(self, addr: int, size: int) -> None:
        self.says("alloc", size, addr)

    def free(self, addr: int, size: int, completed: bool = True) -> None:
        self.says("free_requested", size, addr)
        if completed:
            self.says("free_completed", size, addr)

    def mark(self, addr: int) -> None:
        self.marks.append(addr)
        self.alloc(addr, MARK_BYTES)
        self.free(addr, MARK_BYTES)

    def read(self, **others: Any) -> CudaRecording:
        return read_history(self.entries, self.marks, **others)


def ns(entry: int) -> int:
    return (1_700_000_000_000_000 + entry) * 1000


def test_blocks_live_from_alloc_until_their_free_is_requested() -> None:
    history = History()
    history.alloc(0x1000, 400)
    history.alloc(0x2000, 100)
    history.free(0x1000, 400, completed=False)  # another stream still uses it
    history.mark(0x3000)
    history.says("free_completed", 400, 0x1000)
    history.free(0x9000, 8)  # was there before
    recording = history.read()
    assert recording.rows == [
        AllocatorEvent(ns(0), 0x1000, 400),
        AllocatorEvent(ns(1), 0x2000, 100),
        AllocatorEvent(ns(2), 0x1000, -400),
        AllocatorEvent(ns(7), 0x9000, -8),
    ]
    assert recording.marks == [Instant(3, ns(3))] and recording.tasks == []


def test_a_block_as_large_as_a_mark_is_no_mark() -> None:
    history = History()
    history.alloc(0x1000, MARK_BYTES)
    history.mark(0x2000)
    history.free(0x1000, MARK_BYTES)
    history.alloc(0x2000, MARK_BYTES)  # where the mark was
    history.free(0x2000, MARK_BYTES)
    recording = history.read()
    assert [(row.address, row.nbytes) for row in recording.rows] == [
        (0x1000, MARK_BYTES),
        (0x1000, -MARK_BYTES),
        (0x2000, MARK_BYTES),
        (0x2000, -MARK_BYTES),
    ]
    assert [mark.row for mark in recording.marks] == [1]


def test_what_is_reserved_changes_with_segments() -> None:
    history = History()
    history.alloc(0x1000, 400)
    history.says("segment_alloc", SEGMENT, 0x100000)
    history.alloc(0x100000, 2**20)
    history.says("segment_map", 20 * 2**20, 0x900000)  # of expandable segments
    history.says("segment_unmap", 10 * 2**20, 0x900000)
    history.says("segment_free", SEGMENT, 0x100000)
    history.says("snapshot", 0, 0)
    recording = history.read(reserved_before=5)
    assert recording.reserved == [
        Reserved(0, ns(0), 5),
        Reserved(1, ns(1), 5 + SEGMENT),
        Reserved(2, ns(3), 5 + SEGMENT + 20 * 2**20),
        Reserved(2, ns(4), 5 + SEGMENT + 10 * 2**20),
        Reserved(2, ns(5), 5 + 10 * 2**20),
    ]
    assert len(recording.rows) == 2


def test_running_out_of_memory_is_told() -> None:
    history = History()
    history.alloc(0x1000, 400)
    history.says("oom", 2**40, device_free=2**30)
    history.mark(0x2000)
    assert history.read().failures == [Failure(1, ns(1), 2**40, 2**30)]


def test_marks_that_are_missing_are_an_error() -> None:
    history = History()
    history.mark(0x1000)
    history.mark(0x1000)
    history.entries = history.entries[3:]  # overwritten by later ones
    with raises(RuntimeError, 1, 2, "CUDA"):
        history.read()


def test_an_empty_history_is_no_error() -> None:
    recording = read_history([], [])
    assert (recording.rows, recording.marks, recording.reserved, recording.failures) == ([], [], [], [])


def test_the_peak_counter_can_be_told_after_it_was_reset() -> None:
    levels = [Level(10, 1024, SEGMENT), Level(20, 512, SEGMENT)]
    assert read_history([], [], levels=levels, peak_before=600).peak_allocated == 1024
    assert read_history([], [], levels=levels, peak_before=2000).peak_allocated == 2000


def test_a_recording_is_split_at_a_mark() -> None:
    history = History()
    history.alloc(0x1000, 400)
    history.says("segment_alloc", SEGMENT, 0x100000)
    history.mark(0x3000)
    history.alloc(0x2000, 100)
    history.says("oom", 7, device_free=3)
    history.mark(0x3000)
    history.free(0x1000, 400)
    history.mark(0x4000)
    history.says("oom", 8, device_free=3)
    history.says("segment_alloc", SEGMENT, 0x900000)
    history.alloc(0x1000, 50)
    levels = [Level(400, 9000, SEGMENT), Level(100, 512, SEGMENT), Level(150, 1024, 2 * SEGMENT)]
    whole = history.read(levels=levels, peak_before=600)
    before, after = whole.split(1)
    assert [(row.address, row.nbytes) for row in before.rows] == [(0x1000, 400), (0x2000, 100)]
    assert [(row.address, row.nbytes) for row in after.rows] == [(0x1000, -400), (0x1000, 50)]
    assert before.rows + after.rows == whole.rows
    assert (before.marks, after.marks) == ([Instant(1, ns(2))], [Instant(1, ns(12))])
    assert [each.nbytes for each in before.reserved] == [0, SEGMENT]
    assert after.reserved == [Reserved(0, ns(7), SEGMENT), Reserved(1, ns(16), 2 * SEGMENT)]
    assert (before.failures, after.failures) == ([Failure(2, ns(6), 7, 3)], [Failure(1, ns(15), 8, 3)])
    assert (before.levels, after.levels) == (levels[:1], levels[1:])
    assert (before.peak_allocated, after.peak_before, after.peak_allocated) == (9000, 9000, 9000)


def test_a_recording_without_levels_is_split_too() -> None:
    history = History()
    history.mark(0x1000)
    history.alloc(0x2000, 5)
    history.mark(0x1000)
    for number, recording in enumerate(history.read().split(0)):
        assert recording.levels == [] and len(recording.marks) == len(recording.rows) == number


def test_blocks_are_told_by_task() -> None:
    history = History()
    for _ in range(5):
        history.mark(0x1000)
    tasks = [(7, False), (7, True), (3, False), (3, True)]
    noted = [(1, 10, 99), (90, 900, 999), (5, 60, 100), (7, 50, 101), (9, 40, 100), (8, 70, 100)]
    recording = history.read(levels=[Level(*each) for each in noted], peak_before=11).split(0)[1]
    blocks = blocks_of(recording, tasks)
    assert blocks == BlockLevels(array("q", [7, 9]), array("q", [60, 70]), array("q", [101, 100]), 900)
    assert (list(blocks.rounding), list(blocks.unused)) == ([53, 61], [41, 30])
    assert (blocks.peak_allocated, recording.peak_allocated) == (900, 900)
    assert blocks_of(history.read(), [(0, False), *tasks]) is None
    assert blocks_of(AllocatorRecording([], [], []), []) is None


@given(
    st.lists(st.sampled_from(["alloc", "free", "late", "complete", "mark", "segment", "other"]), max_size=60), st.data()
)
def test_levels_at_marks_are_those_of_a_slow_account(steps: list[str], data: st.DataObject) -> None:
    history = History()
    alive: dict[int, int] = {}
    late: dict[int, int] = {}
    levels: list[int] = []
    reserved = 0
    for step in steps:
        free = next(addr for addr in range(0x1000, 0x100000, 0x100) if addr not in alive and addr not in late)
        some = data.draw(st.sampled_from(sorted(alive))) if alive and step in ("free", "late") else None
        match step:
            case "alloc":
                alive[free] = data.draw(st.sampled_from([1, 400, MARK_BYTES + 1]))
                history.alloc(free, alive[free])
            case "free" if some:
                history.free(some, alive.pop(some))
            case "late" if some:
                late[some] = alive.pop(some)
                history.free(some, late[some], completed=False)
            case "complete" if late:
                history.says("free_completed", late.pop(addr := min(late)), addr)
            case "mark":
                history.mark(free)
                levels.append(sum(alive.values()))
            case "segment":
                history.says("segment_alloc", SEGMENT, 0x1000000)
                reserved += SEGMENT
            case "other":
                history.says("snapshot", 0, 0)
    recording = history.read()
    assert [sum(row.nbytes for row in recording.rows[: mark.row]) for mark in recording.marks] == levels
    assert sum(row.nbytes for row in recording.rows) == sum(alive.values())
    assert (recording.reserved[-1].nbytes if recording.reserved else 0) == reserved
    assert [mark.ns for mark in recording.marks] == sorted(mark.ns for mark in recording.marks)


def test_torch_still_takes_what_it_is_told() -> None:
    wanted = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    assert {"enabled", "context", "stacks", "max_entries", "clear_history"} <= set(wanted)
    assert "device" in inspect.signature(torch.cuda.memory._snapshot).parameters
    assert "device" in inspect.signature(torch.cuda.memory.memory_stats_as_nested_dict).parameters


def test_other_devices_are_refused() -> None:
    with raises(ValueError, "CudaAllocator", "CUDA", "cpu"):
        CudaAllocator("cpu")


@pytest.fixture
def ended_history() -> Iterator[None]:
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


def requested() -> int:
    return torch.cuda.memory_stats().get("requested_bytes.all.current", 0)


@pytest.mark.gpu
@pytest.mark.usefixtures("ended_history")
def test_cuda_tells_each_block_as_it_was_asked_for() -> None:
    old = torch.empty(1000, dtype=torch.uint8, device="cuda")
    allocator = CudaAllocator()
    before = requested()
    allocator.start()
    block = torch.empty(12_345, dtype=torch.uint8, device="cuda")
    allocator.mark()
    large = torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda")
    address, large_address, old_address = block.data_ptr(), large.data_ptr(), old.data_ptr()
    del block, old
    allocator.mark()
    after = requested()
    recording = allocator.stop()
    assert [(row.address, row.nbytes) for row in recording.rows] == [
        (address, 12_345),
        (large_address, 30 * 2**20),
        (address, -12_345),
        (old_address, -1000),
    ]
    assert [mark.row for mark in recording.marks] == [1, 4]
    assert sum(row.nbytes for row in recording.rows) == after - before
    assert recording.reserved[-1].nbytes == torch.cuda.memory_reserved()
    del large


@pytest.mark.gpu
@pytest.mark.usefixtures("ended_history")
def test_a_history_which_the_user_records_is_left_alone() -> None:
    torch.cuda.memory._record_memory_history()
    with raises(RuntimeError, "CUDA"):
        CudaAllocator().start()
    assert torch._C._cuda_isHistoryEnabled()


@pytest.mark.gpu
@pytest.mark.usefixtures("ended_history")
def test_afterwards_no_history_is_recorded_and_another_recording_begins_empty() -> None:
    for _ in range(2):
        allocator = CudaAllocator()
        allocator.start()
        block = torch.empty(100, device="cuda")
        recording = allocator.stop()
        assert [row.nbytes for row in recording.rows] == [400]
        assert not torch._C._cuda_isHistoryEnabled()
        del block


@pytest.mark.gpu
@pytest.mark.usefixtures("ended_history")
def test_a_backward_on_the_engines_own_thread_is_between_its_marks() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
    x = torch.randn(32, 64, device="cuda")
    model(x).sum().backward()  # libraries take their workspaces at first use
    model.zero_grad()
    loss = model(x).sum()
    before = requested()
    allocator = CudaAllocator()
    allocator.start()
    allocator.mark()
    loss.grad_fn.register_hook(lambda *gradients: allocator.mark())
    loss.backward()
    allocator.mark()
    after = requested()
    recording = allocator.stop()
    rows = [mark.row for mark in recording.marks]
    assert len(rows) == 3 and rows == sorted(rows) and rows[-1] == len(recording.rows)
    assert sum(row.nbytes for row in recording.rows) == after - before
    gradients = sum(parameter.grad.nbytes for parameter in model.parameters())
    alive: dict[int, int] = {}
    for row in recording.rows:
        if row.nbytes > 0:
            alive[row.address] = row.nbytes
        else:
            alive.pop(row.address, None)
    assert sum(alive.values()) == gradients


@pytest.mark.gpu
@pytest.mark.usefixtures("ended_history")
def test_levels_are_the_allocators_own_and_the_lost_peak_is_told() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    high = torch.empty(50 * 2**20, dtype=torch.uint8, device="cuda")
    del high
    peak_of_user = torch.cuda.max_memory_allocated()
    allocator = CudaAllocator()
    allocator.start()
    allocator.note_levels()
    assert torch.cuda.max_memory_allocated() < peak_of_user, "as the docstring says"
    allocator.mark()
    first = torch.cuda.memory_allocated()
    block = torch.empty(3 * 2**20 + 1, dtype=torch.uint8, device="cuda")
    with_block = torch.cuda.memory_allocated()
    del block
    allocator.mark()
    small = torch.empty(1, dtype=torch.uint8, device="cuda")
    allocator.mark()
    recording = allocator.stop()
    last = Level(
        *(torch.cuda.memory_stats()[f"{name}_bytes.all.peak"] for name in ("requested", "allocated", "reserved"))
    )
    assert [level.allocated for level in recording.levels] == [first, with_block, first + 512, first + 512]
    assert with_block > first + 3 * 2**20
    assert recording.levels[1].requested == recording.levels[0].requested + 3 * 2**20 + 1
    assert recording.levels[2].requested == recording.levels[0].requested + 1
    assert recording.levels[3] == last
    assert all(level.requested <= level.allocated <= level.reserved for level in recording.levels)
    assert recording.peak_before == recording.peak_allocated == peak_of_user
    del small
