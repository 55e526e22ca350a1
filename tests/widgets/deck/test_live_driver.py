"""The thread that runs a deck's session."""

from __future__ import annotations

import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager

import pytest
import torch

from tapescope.tests.says import Snapshots, raises
from tapescope.widgets.deck.live_driver import Driver


def test_commands_run_in_the_order_in_which_they_come_in_one_thread() -> None:
    driver, ran = Driver(), []

    def command(number: int) -> int:
        ran.append((number, threading.get_ident()))
        return number

    asked = [driver.do(lambda number=number: command(number)) for number in range(100)]  # type: ignore[misc]
    assert [each.result(5) for each in asked] == list(range(100))
    assert [number for number, _ in ran] == list(range(100))
    assert threading.get_ident() not in {thread for _, thread in ran}


def test_the_thread_ends_when_nothing_is_left_and_another_one_follows() -> None:
    driver = Driver()
    first = driver.do(threading.current_thread).result(5)
    first.join(5)
    assert not first.is_alive()
    assert driver.do(threading.current_thread).result(5) is not first


def test_what_a_command_raises_goes_to_who_waits_and_the_next_one_runs() -> None:
    driver = Driver()
    failed, after = driver.do(lambda: 1 // 0), driver.do(lambda: 7)
    with pytest.raises(ZeroDivisionError):
        failed.result(5)
    assert after.result(5) == 7


def test_the_thread_has_the_state_of_the_one_that_made_the_driver() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        driver = Driver()
    found = driver.do(lambda: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), variable.get()))
    assert found.result(5) == (False, True, "mine")


def test_stop_is_heard_by_what_was_asked_before_it_alone() -> None:
    driver, begun, go_on = Driver(), threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        go_on.wait(5)
        return driver.stop_asked

    first, second = driver.do(wait), driver.do(lambda: driver.stop_asked)
    assert begun.wait(5)
    driver.stop()
    third = driver.do(lambda: driver.stop_asked)
    go_on.set()
    assert [each.result(5) for each in (first, second, third)] == [True, True, False]
    assert not driver.stop_asked


def test_who_waits_for_a_dropped_command_is_told() -> None:
    driver, begun, go_on = Driver(), threading.Event(), threading.Event()
    under_way = driver.do(lambda: (begun.set(), go_on.wait(5)))
    dropped = driver.do(lambda: 1)
    assert begun.wait(5)
    driver.drop()
    go_on.set()
    with pytest.raises(CancelledError):
        dropped.result(5)
    under_way.result(5)


def test_a_state_that_can_not_be_entered_keeps_nobody_waiting() -> None:
    driver = Driver()

    class Broken:
        @contextmanager
        def entered(self) -> Iterator[None]:
            raise OSError("no device")
            yield

    state, driver._state = driver._state, Broken()  # type: ignore[assignment]
    with pytest.raises(OSError, match="no device"):
        driver.do(lambda: 1).result(5)
    with driver._lock:  # nothing begins before all are queued
        given_up, waits = (driver._queue(driver._commands, lambda: 1) for _ in range(2))
        given_up.cancel()
    with pytest.raises(OSError, match="no device"):
        waits.result(5)
    driver._state = state
    assert driver.do(lambda: 1).result(5) == 1


def test_a_profiler_of_the_caller_is_refused_in_words(snapshot: Snapshots) -> None:
    with torch.profiler.profile(), raises(NotImplementedError, "thread", "profiler") as raised:
        Driver()
    snapshot("deck", raised.value)


ENDS_LATE = """
import os, threading, time
from tapescope.widgets.deck.live_driver import Driver

class Kept:
    def __del__(self):
        time.sleep(0.3)
        os.write(1, b"freed")

local = threading.local()
driver = Driver()
driver.do(lambda: setattr(local, "kept", Kept())).result()
"""


def test_the_interpreter_waits_for_what_the_thread_frees_at_its_end() -> None:
    """torch keeps tensors for each thread; a thread that frees them while the interpreter ends aborts the process."""
    ran = subprocess.run([sys.executable, "-c", ENDS_LATE], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "freed"), ran.stderr


def test_a_driver_and_what_it_ran_are_let_go() -> None:
    driver, kept = Driver(), torch.ones(2)
    driver.do(kept.sum).result(5)
    dead = weakref.ref(driver), weakref.ref(kept)
    thread = driver._thread
    if thread is not None:
        thread.join(5)
    del driver, kept, thread
    gc.collect()
    assert [each() for each in dead] == [None, None]
