"""The pause of Python's garbage collector ends whatever happens."""

from __future__ import annotations

import gc
import threading

import pytest

from tapescope.inspector.garbage_collector import collector_paused


def test_it_pauses_and_goes_on_unless_it_was_off() -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_interrupt_just_as_it_is_disabled_leaves_it_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    disable = gc.disable

    def interrupted() -> None:
        disable()
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "disable", interrupted)
    with pytest.raises(KeyboardInterrupt), collector_paused():
        raise AssertionError("never entered")
    assert gc.isenabled()


def test_pauses_of_two_threads_that_overlap_leave_it_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled, inside, ended = gc.isenabled, threading.Event(), threading.Event()

    def read_early() -> bool:
        """The other thread's pause ends between the second one's question and its `gc.disable`."""
        found = enabled()
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            ended.wait(0.2)
        return found

    def pause() -> None:
        with collector_paused():
            ended.wait(1.0)

    monkeypatch.setattr(gc, "isenabled", read_early)
    other = threading.Thread(target=pause)
    with collector_paused():
        other.start()
        inside.wait(0.2)
    ended.set()
    other.join()
    assert enabled()


def test_an_interrupt_does_not_enable_what_the_user_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector_paused():
        pass

    def interrupted() -> bool:
        raise KeyboardInterrupt

    gc.disable()
    try:
        monkeypatch.setattr(gc, "isenabled", interrupted)
        with pytest.raises(KeyboardInterrupt), collector_paused():
            raise AssertionError("never entered")
        monkeypatch.undo()
        assert not gc.isenabled()
    finally:
        gc.enable()
