"""The pause of Python's garbage collector ends whatever happens."""

from __future__ import annotations

import gc

import pytest

from tapescope.inspector.graph.collector import collector_paused


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
