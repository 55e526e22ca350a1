"""The console below the prompt: typed arguments, width and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..deck.task_and_stop_syntax import is_typed_task
from .completion import DELIMITERS


def plain(text: object, style: str = "") -> Text:
    """One line as it is: without markup being read in it, or what would move a terminal's cursor."""
    shown = "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in str(text))
    return Text(shown, style=style)


def step_words(text: str) -> tuple[str, str | None]:
    """`3 on cuda:0`: how many or which task, and of which device; None where none is named."""
    match = re.fullmatch(r"(?:(.*) )?on (\S+)", text.strip())
    return (match[1] or "", match[2]) if match else (text, None)


class ArgumentError(ValueError):
    """An argument of the wrong kind. The prompt adds the verb's usage to the message."""


def one_number(arg: str) -> int:
    """Read a count, or the number of a branch or breakpoint."""
    if not arg.isdecimal():
        raise ArgumentError(f"expected a number, got {arg!r}")
    return int(arg)


def split_task(text: str) -> list[str]:
    """An expression, and behind it the task that is meant, `53rd` or `#26`, if one is."""
    expression, _, last = text.rpartition(" ")
    named = last.startswith("#") or last.endswith(("st", "nd", "rd", "th"))
    return [expression, last] if expression and named and is_typed_task(last) else [text]


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
