"""Events of torch's allocators: recording allocations and frees with torch's profiler or the CUDA history."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from operator import itemgetter
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple

import torch

from ..threads import Caller, ExclusiveUse
from .thread_state import unobserved

one_recording = ExclusiveUse()
"""Held while an allocator is recorded, because torch's profiler crashes if two threads use it."""

WAITS_S = 10.0
"""Seconds that a measurement waits for another thread's prediction, which measures one kernel, and vice versa."""


def begin_recording(verb: str, besides: str = "") -> Caller:
    """Acquire `one_recording` for a measurement. It is released when the caller has `ended` or is garbage collected.

    Args:
        verb: the measurement, for messages.
        besides: text to append to the error message.

    Raises:
        RuntimeError: Another measurement is running.
    """
    caller = Caller(verb, stays=True)
    try:
        other = one_recording.wait_for(caller, WAITS_S)
        if other is not None:
            waited = f" (waited {WAITS_S:.0f} s for it)" if other.is_brief else ""
            raise RuntimeError(
                f"{other.verb} is already measuring memory, in this or another thread{waited}; torch supports one "
                f"measurement at a time{besides}"
            )
    except BaseException:
        caller.ended = True
        raise
    return caller


_leaves_out: tuple[int, Callable[[], AbstractContextManager[None]]] | None = None


@contextmanager
def leaving_out(apart: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let `left_out_of_recording` in this thread open `apart`; a recording leaves out the allocations inside of it."""
    global _leaves_out
    _leaves_out = get_ident(), apart
    try:
        yield
    finally:
        _leaves_out = None


_NOTHING = nullcontext()


def left_out_of_recording() -> AbstractContextManager[None]:
    """Return a context whose allocations, tapescope's own, are left out of a recording of the program."""
    if _leaves_out is None or _leaves_out[0] != get_ident():
        return _NOTHING
    return _leaves_out[1]()


class AllocationEvents(NamedTuple):
    """Events of the CPU's and the accelerators' allocators in one thread and in the engine's device threads.

    Attributes:
        rows: (nanoseconds since 1970, device, address, bytes, thread) in order of time. Bytes are negative for a freed
            block. For a caching allocator they are the size of the block, which may exceed the requested size. Thread
            numbers are assigned by the profiler.
        tasks: start time in nanoseconds and thread of each engine task, tensor hooks included, without tasks nested in
            another one. Empty if tasks were not recorded.
    """

    rows: list[tuple[int, torch.device, int, int, int]]
    tasks: list[tuple[int, int]]


def profiler_is_on() -> bool:
    """Return whether one of torch's profilers is running; torch supports only one at a time."""
    return bool(torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled)


def profiled_range(name: Callable[[], str]) -> AbstractContextManager[None]:
    """Return a context that is a range in the trace of the user's profiler, if one is running."""
    return _range(name()) if profiler_is_on() and _PROFILER not in _recordings else nullcontext()


@contextmanager
def _range(name: str) -> Iterator[None]:
    with unobserved():
        scope = torch.ops.profiler._record_function_enter_new(name, None)
    try:
        yield
    finally:
        with unobserved():
            torch.ops.profiler._record_function_exit._RecordFunction(scope)


def start_allocation_events(tasks: bool = False) -> None:
    """Start recording allocator events of this thread, and of the engine runs it starts, with torch's profiler.

    The CPU's allocator does not report the end of blocks allocated before the recording; accelerators' allocators do.
    Without `tasks` no operation is timed, and the overhead is about one microsecond per block. In that case accelerator
    events in the engine's device threads are missing.

    Raises:
        RuntimeError: A profiler is already running, in any thread; torch supports only one.
    """
    if profiler_is_on():
        raise RuntimeError(
            "a torch profiler is already running, and measuring memory needs it; leave torch.profiler.profile() first"
        )
    _recordings.add(_PROFILER)  # first, because an interrupt may come as soon as the profiler has started
    _start_profiler(tasks)
    with unobserved():
        _open_scope.append(torch.ops.profiler._record_function_enter_new("tapescope", None))
    _log_errors_alone(True)


def _start_profiler(tasks: bool) -> None:
    profiler = torch._C._profiler
    activities = {profiler.ProfilerActivity.CPU}
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO,
        False,  # shapes
        True,  # memory
        False,  # stacks
        False,  # floating point operations
        False,  # modules
        profiler._ExperimentalConfig(),
    )
    with (
        quiet_kineto(),
        suppress(RuntimeError),
    ):  # torch 2.11 raises if an interrupt came between this call and the next
        torch._C._autograd._prepare_profiler(config, activities)
    scopes = {profiler.RecordScope.USER_SCOPE} | ({profiler.RecordScope.FUNCTION} if tasks else set())
    torch._C._autograd._enable_profiler(config, activities, scopes)  # type: ignore[call-arg]


_PROFILER, _CUDA_HISTORY = "the profiler", "the CUDA history"
_recordings: set[str] = set()  # tapescope's running recordings


class recordings_ended:
    """A context that ends the recordings begun in it, even if Ctrl-C interrupts the start or end of one."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = set(_recordings)

    def __exit__(self, *error: object) -> None:
        try:
            end_recordings(self._before)
        except BaseException:  # Ctrl-C; ending a recording twice is harmless
            end_recordings(self._before)
            raise


def end_recordings(but: Collection[str] = ()) -> None:
    """End the running recordings except those in `but`, and discard their events."""
    if _PROFILER in _recordings and _PROFILER not in but:
        _end_scope()
        if not torch._C._autograd._profiler_enabled():
            _start_profiler(tasks=False)  # torch 2.11: a prepared profiler that never ran blocks all later ones
        torch._C._autograd._disable_profiler()
        _recordings.discard(_PROFILER)
    if _CUDA_HISTORY in _recordings and _CUDA_HISTORY not in but:
        torch.cuda.memory._record_memory_history(enabled=None)
        _recordings.discard(_CUDA_HISTORY)


def _end_scope() -> None:
    _log_errors_alone(False)
    while _open_scope:
        with unobserved():
            torch.ops.profiler._record_function_exit._RecordFunction(_open_scope.pop())


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """Set Kineto's log level, which it reads at its first use. By default each run prints two lines."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]


_ALLOCATION = "[memory]"
_EVALUATE = "autograd::engine::evaluate_function: "
_open_scope: list[Any] = []  # around the recording: outside of a scope, accelerator events have no address
_ERRORS = 2  # glog's level of errors
_logged_before: list[int] = []  # the previous level while it is raised


def _log_errors_alone(raised: bool) -> None:
    """Raise the log level of torch's C++ code to errors, or restore it.

    torch warns about each freed block that was allocated before the profiler started. If the level's symbol is not
    found (another build of torch), the warning appears, once per thousand blocks.
    """
    number = _log_level()
    if number is not None and raised:
        _logged_before.append(number.value)
        number.value = max(number.value, _ERRORS)
    elif number is not None and _logged_before:
        number.value = _logged_before.pop()


@cache
def _log_level() -> ctypes.c_int | None:
    for name in ("libc10.so", "libc10.dylib", "c10.dll"):
        with suppress(OSError, ValueError):
            library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    return None


def stop_allocation_events() -> AllocationEvents:
    """Return the events recorded since `start_allocation_events`."""
    _end_scope()
    profiled = torch._C._autograd._disable_profiler()
    _recordings.discard(_PROFILER)
    rows: list[tuple[int, torch.device, int, int, int]] = []
    tasks: list[tuple[int, int]] = []
    todo: list[tuple[Any, bool]] = [(profiled.experimental_event_tree(), False)]
    del profiled
    while todo:
        events, nested = todo.pop()
        rows += [
            (event.start_time_ns, (fields := event.extra_fields).device, fields.ptr, fields.alloc_size, event.start_tid)
            for event in events
            if event.name == _ALLOCATION
        ]
        for event in events:
            name = event.name
            if name != _ALLOCATION:
                task = name.startswith(_EVALUATE)
                if task and not nested:
                    tasks.append((event.start_time_ns, event.start_tid))
                todo.append((event.children, nested or task))
    rows.sort(key=itemgetter(0))  # stable: events of equal times keep their order
    tasks.sort()
    return AllocationEvents(rows, tasks)


def start_cuda_history(most: int) -> None:
    """Start recording the CUDA allocator's history on all devices. Beyond `most` entries the oldest are dropped.

    Raises:
        RuntimeError: A history is already being recorded, or the allocator in use does not support one.
    """
    torch.cuda.init()  # type: ignore[no-untyped-call]
    if torch.cuda.get_allocator_backend() != "native":
        raise RuntimeError(
            f"the CUDA allocator in use is {torch.cuda.get_allocator_backend()}, for which torch records no history; "
            'measuring memory needs the allocator "native"'
        )
    if torch._C._cuda_isHistoryEnabled():
        raise RuntimeError(
            "the history of CUDA memory is already being recorded, and torch supports only one; end it first with "
            "torch.cuda.memory._record_memory_history(enabled=None)"
        )
    _recordings.add(_CUDA_HISTORY)
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, stacks="python", max_entries=most, clear_history=True
    )


def stop_cuda_history(device: int) -> list[dict[str, Any]]:
    """Return torch's entries for this device's allocator since `start_cuda_history`, oldest first."""
    try:
        entries: list[dict[str, Any]] = torch.cuda.memory._snapshot(device)["device_traces"][device]
        return entries
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)  # also frees the entries
        _recordings.discard(_CUDA_HISTORY)
