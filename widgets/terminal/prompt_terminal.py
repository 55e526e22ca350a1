"""The terminal below the prompt: its width, Ctrl-C, and what Tab takes for a word."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console, RenderableType
from rich.table import Table

from .prompt_completion import DELIMITERS
from .prompt_text import plain

_UNBROKEN = 10_000  # columns: through a pipe no line is broken


def show(what: RenderableType) -> None:
    """Prints it: at a terminal in its width, in colours; through a pipe without, and no line is broken."""
    console = Console(highlight=False, markup=False, emoji=False)
    wraps = isinstance(what, Table)
    if console.is_terminal:
        console.print(what, soft_wrap=not wraps)
        return
    if "COLUMNS" not in os.environ:
        console.width = _UNBROKEN
    with console.capture() as captured:
        console.print(what, soft_wrap=not wraps)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def say(*lines: object, style: str = "") -> None:
    """Prints lines of text as they are."""
    for line in lines:
        show(plain(line, style))


class Interrupt:
    """Whether Ctrl-C was pressed."""

    asked = False


@contextmanager
def first_interrupt(stop: Callable[[], None]) -> Iterator[Interrupt]:
    """Meanwhile a first Ctrl-C calls `stop`, and a second raises KeyboardInterrupt. In the main thread alone."""
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield interrupt
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def whole_words() -> Iterator[None]:
    """Meanwhile Tab takes `encoder.layer.3`, `model.py:120` and `norm>1e3` for one word each."""
    try:
        import readline
    except ImportError:  # Windows
        yield
        return
    before = readline.get_completer_delims()
    readline.set_completer_delims(DELIMITERS)
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
    try:
        yield
    finally:
        readline.set_completer_delims(before)
