"""References are counted while no other thread holds all objects. Every look at these is known to those who count."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from threading import Event, Thread, get_ident
from types import FrameType, SimpleNamespace

import pytest

import tapescope
from tapescope.inspector import garbage_collector, threads


def test_a_count_is_repeated_when_another_thread_has_looked_meanwhile() -> None:
    counts: list[int] = []

    def look() -> None:
        with garbage_collector.all_objects():
            pass

    def count() -> int:
        counts.append(len(counts))
        if len(counts) == 1:
            other = Thread(target=look)
            other.start()
            other.join()
        return counts[-1]

    assert garbage_collector.undisturbed(count) == 1 and counts == [0, 1]


def test_a_count_that_looks_itself_is_not_repeated() -> None:
    counts: list[int] = []

    def count() -> int:
        with garbage_collector.all_objects():
            counts.append(len(counts))
        return counts[-1]

    assert garbage_collector.undisturbed(count) == 0 and counts == [0]


def test_a_count_waits_for_a_look_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, waiting, looked = Event(), Event(), Event()

    def look() -> None:
        with garbage_collector.all_objects():
            looking.set()
            waiting.wait()
            looked.set()

    other = Thread(target=look)
    other.start()
    looking.wait()
    monkeypatch.setattr(
        garbage_collector, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: waiting.set())
    )
    try:
        assert garbage_collector.undisturbed(looked.is_set)
    finally:
        waiting.set()
        other.join()


def test_all_objects_are_looked_at_in_one_place() -> None:
    root = Path(tapescope.__file__).parent
    files = (
        file for folder in ("commands", "engine", "inspector", "widgets") for file in (root / folder).rglob("*.py")
    )
    assert [str(each.relative_to(root)) for each in files if "gc.get_objects(" in each.read_text()] == [
        "inspector/garbage_collector.py"
    ]


def test_a_thread_is_at_work_after_an_interrupted_wait_for_it() -> None:
    begun, go_on, interrupted, main = Event(), Event(), Event(), get_ident()
    done: list[int] = []

    def work() -> None:
        begun.set()
        go_on.wait()
        done.append(1)

    def interrupt() -> None:
        def waits() -> bool:
            frame: FrameType | None = sys._current_frames()[main]
            names = []
            while frame is not None:
                names.append((frame.f_code.co_filename, frame.f_code.co_name))
                frame = frame.f_back
            return names[0][1] in ("wait", "_wait_for_tstate_lock") and (threads.__file__, "join") in names

        while not waits():
            pass
        # A signal that arrives between the call of `wait` and the system call that sleeps wakes nobody: send it again.
        signal.pthread_kill(main, signal.SIGINT)
        while not interrupted.wait(2.0):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threads.DaemonThread(work, "a test's thread")
    thread.start()
    assert begun.wait()
    other = Thread(target=interrupt, daemon=True)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        thread.join()
    interrupted.set()
    assert thread.is_at_work and not done
    go_on.set()
    thread.join()
    assert not thread.is_at_work and done == [1]
