"""Events of torch's allocators."""

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
"""Taken while an allocator is recorded: torch's profiler crashes where two threads use it."""

WAITS_S = 10.0
"""Seconds for which a measurement waits for another thread's prediction, which runs a kernel alone, and vice versa."""


def begin_recording(verb: str, besides: str = "") -> Caller:
    """Takes `one_recording` for a measurement. It is free again when the caller has `ended`, or is gone.

    Args:
        verb: the measurement, for messages.
        besides: the end of the sentence that refuses it.

    Raises:
        RuntimeError: another measurement is under way.
    """
    caller = Caller(verb, stays=True)
    try:
        other = one_recording.wait_for(caller, WAITS_S)
        if other is not None:
            waited = f", for which it has waited {WAITS_S:.0f} s" if other.is_brief else ""
            raise RuntimeError(
                f"memory is being measured already, in this thread or in another one, by {other.verb}{waited}: torch "
                f"can do so once at a time{besides}"
            )
    except BaseException:
        caller.ended = True
        raise
    return caller


_leaves_out: tuple[int, Callable[[], AbstractContextManager[None]]] | None = None


@contextmanager
def leaving_out(apart: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let `not_the_programs` in this thread open `apart`, so that a recording leaves out the allocations inside."""
    global _leaves_out
    _leaves_out = get_ident(), apart
    try:
        yield
    finally:
        _leaves_out = None


def not_the_programs() -> AbstractContextManager[None]:
    """A context for what tapescope itself allocates while a program runs: a recording of the program leaves it out."""
    if _leaves_out is None or _leaves_out[0] != get_ident():
        return nullcontext()
    return _leaves_out[1]()


class AllocationEvents(NamedTuple):
    """What the allocators of the CPU and of accelerators did in one thread, and in those of the engine's devices.

    Attributes:
        rows: (nanoseconds since 1970, device, address, bytes, thread) in order of time; bytes are negative for a block
            that was freed. A caching allocator's are of the block, which may be larger than what was asked for. Threads
            are numbers of the profiler's own.
        tasks: nanoseconds at which the engine began each task that is not nested in another one, its tensor hooks
            included, and the thread. Empty where tasks were not asked for.
    """

    rows: list[tuple[int, torch.device, int, int, int]]
    tasks: list[tuple[int, int]]


def profiler_is_on() -> bool:
    """Whether one of torch's profilers is at work: there can be one alone."""
    return bool(torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled)


def start_allocation_events(tasks: bool = False) -> None:
    """Lets torch's profiler note what allocators do in this thread, and in what it starts on the engine.

    The CPU's does not tell of the end of blocks that were there before; accelerators' do. Without `tasks` no operation
    is timed, which leaves the cost at about one microsecond for each block; then nothing is told of what accelerators
    do in the engine's own threads.

    Raises:
        RuntimeError: a profiler is at work already, in any thread; there can be one alone.
    """
    if profiler_is_on():
        raise RuntimeError(
            "a torch profiler is at work, and memory is measured by the same one: leave torch.profiler.profile() first"
        )
    _recordings.add(_PROFILER)  # before it begins: an interrupt may come as soon as it has
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
    with _quiet_kineto(), suppress(RuntimeError):  # torch 2.11: where an interrupt came between this and the next
        torch._C._autograd._prepare_profiler(config, activities)
    scopes = {profiler.RecordScope.USER_SCOPE} | ({profiler.RecordScope.FUNCTION} if tasks else set())
    torch._C._autograd._enable_profiler(config, activities, scopes)  # type: ignore[call-arg]


_PROFILER, _CUDA_HISTORY = "the profiler", "the CUDA history"
_recordings: set[str] = set()  # those of tapescope's that are under way


class recordings_ended:
    """A context that ends the recordings begun in it, also if an interrupt (Ctrl-C) comes as one begins or ends."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = set(_recordings)

    def __exit__(self, *error: object) -> None:
        try:
            end_recordings(self._before)
        except BaseException:  # Ctrl-C; to end them twice does no harm
            end_recordings(self._before)
            raise


def end_recordings(but: Collection[str] = ()) -> None:
    """End the recordings that are under way, except these, and drop what they recorded."""
    if _PROFILER in _recordings and _PROFILER not in but:
        _end_scope()
        if not torch._C._autograd._profiler_enabled():
            _start_profiler(tasks=False)  # it may be prepared: torch 2.11 then prepares no other, be it the user's
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
def _quiet_kineto() -> Iterator[None]:
    """Kineto, when first used, reads here how much to print; by itself each run of it prints two lines."""
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
_open_scope: list[Any] = []  # around all that is recorded: outside of any, what accelerators do has no address
_ERRORS = 2  # glog's level of errors
_logged_before: list[int] = []  # the level that was there, while it is raised


def _log_errors_alone(raised: bool) -> None:
    """Raises the level from which on torch's C++ side logs, or puts it back.

    It warns of each block that is freed and was there before a profiler. Where the number is not found (another build
    of torch), the warning comes, once for a thousand such blocks.
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
    """What was noted since `start_allocation_events`."""
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
    rows.sort(key=itemgetter(0))  # stable: what has one time keeps its order
    tasks.sort()
    return AllocationEvents(rows, tasks)


def start_cuda_history(most: int) -> None:
    """Lets the CUDA allocator write down what it does, on all devices: up to so many entries, then without the oldest.

    Raises:
        RuntimeError: it does so already; there can be one history alone. Or it can't: another allocator is in use.
    """
    torch.cuda.init()  # type: ignore[no-untyped-call]
    if torch.cuda.get_allocator_backend() != "native":
        raise RuntimeError(
            f"the CUDA allocator in use is {torch.cuda.get_allocator_backend()}, of which torch keeps no history; "
            'memory is measured with the one called "native"'
        )
    if torch._C._cuda_isHistoryEnabled():
        raise RuntimeError(
            "the history of CUDA memory is being recorded already, and torch keeps one alone: end that first, with "
            "torch.cuda.memory._record_memory_history(enabled=None)"
        )
    _recordings.add(_CUDA_HISTORY)
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, stacks="python", max_entries=most, clear_history=True
    )


def stop_cuda_history(device: int) -> list[dict[str, Any]]:
    """What the allocator of this device did since `start_cuda_history`: torch's entries, oldest first."""
    try:
        entries: list[dict[str, Any]] = torch.cuda.memory._snapshot(device)["device_traces"][device]
        return entries
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)  # also frees the entries
        _recordings.discard(_CUDA_HISTORY)
