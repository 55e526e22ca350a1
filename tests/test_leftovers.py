"""Side effects of tests are found, and named."""

from __future__ import annotations

import threading

import torch

from .leftovers import HOOKS, Leftovers


def test_a_hook_that_nobody_can_free_is_found_and_one_that_goes_is_not() -> None:
    before = Leftovers()
    x = torch.ones(2, requires_grad=True)
    x.exp().register_hook(lambda gradient: None)
    assert before.sentences() == [], "it went with its tensor"
    y = x.exp()
    handle = y.register_hook(lambda gradient: None)
    try:
        assert before.sentences() == [HOOKS]
    finally:
        handle.remove()


def test_a_mode_and_a_thread_are_found() -> None:
    before, over = Leftovers(), threading.Event()
    thread = threading.Thread(target=over.wait, name="tapescope that hangs", daemon=True)
    with torch.no_grad():
        assert before.sentences() == ["grad mode was True, and is False"]
    thread.start()
    try:
        assert before.sentences(grace_s=0.01) == ["the thread 'tapescope that hangs' still runs"]
    finally:
        over.set()
        thread.join()
    assert before.sentences() == []
