"""Console of the prompt: arguments, output and Ctrl-C."""

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
    """Return text as one line, without interpreting markup. Control characters are replaced."""
    shown = "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in str(text))
    return Text(shown, style=style)


def step_words(text: str) -> tuple[str, str | None]:
    """Split an argument such as `3 on cuda:0` into the count or task, and the device; None if no device is named."""
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
    """Split an argument into an expression and, if one follows, a task such as `53rd` or `#26`."""
    expression, _, last = text.rpartition(" ")
    named = last.startswith("#") or last.endswith(("st", "nd", "rd", "th"))
    return [expression, last] if expression and named and is_typed_task(last) else [text]


_UNBROKEN = 10_000  # columns; output to a pipe is not wrapped


def show(what: RenderableType) -> None:
    """Print to a terminal with colours, wrapped to its width, or to a pipe as plain text without wrapping."""
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
    """Print lines of text without interpreting markup."""
    for line in lines:
        show(plain(line, style))


class Interrupt:
    """State of `first_interrupt`: whether Ctrl-C was pressed."""

    pressed = False


@contextmanager
def first_interrupt(stop: Callable[[], None]) -> Iterator[Interrupt]:
    """Call `stop` on the first Ctrl-C in the `with` block, and raise KeyboardInterrupt on the second.

    Signal handlers can only be set in the main thread; in other threads Ctrl-C is unchanged.
    """
    interrupt = Interrupt()
    # None is a handler that was not set from Python; it could not be restored.
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield interrupt
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.pressed:
            raise KeyboardInterrupt
        interrupt.pressed = True
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def prompt_words() -> Iterator[None]:
    """Make Tab treat `encoder.layer.3`, `model.py:120` and `norm>1e3` as single words in the `with` block."""
    try:
        import readline
    except ImportError:  # Windows
        yield
        return
    before = readline.get_completer_delims()
    readline.set_completer_delims(DELIMITERS)
    if "libedit" in (readline.__doc__ or ""):  # macOS; it does not know the binding that cmd.Cmd uses
        readline.parse_and_bind("bind ^I rl_complete")
    try:
        yield
    finally:
        readline.set_completer_delims(before)
