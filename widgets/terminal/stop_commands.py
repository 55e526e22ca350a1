"""Breakpoints and watchpoints, as commands."""

from __future__ import annotations

from typing import Any, Literal

from ...engine.words.phrases import counted
from . import prompt_tables as tables
from .prompt_arguments import nothing, numbers, something
from .prompt_commands import Commands
from .prompt_stops import read_break, read_watch
from .prompt_terminal import say, show
from .prompt_text import plain


class StopCommands(Commands):
    """What stops a run."""

    def do_break(self, arg: str) -> None:
        """break WHERE [, hit N] [, CONDITION]  (b): stop before tasks; break alone lists what there is

        WHERE is a task (53rd), a node's name (Addmm), a module (encoder.layer.3: as it is entered), a parameter (before
        its gradient is accumulated), a line (model.py:120). Names may be patterns (encoder.*.norm*). task:, kind:,
        module:, grad: and line: in front say which is meant. CONDITION is an expression, see print; break if CONDITION
        asks it before each task. hit N stops at the Nth only.
        """
        if arg:
            self._ask("break", arg, read_break(arg, self.at.test))
        else:
            self.do_stops("")

    def do_tbreak(self, arg: str) -> None:
        """tbreak WHERE ...: a breakpoint that is deleted when it has stopped a run"""
        self._ask("break", something(arg, "tbreak WHERE"), read_break(arg, self.at.test), once=True)

    def do_watch(self, arg: str) -> None:
        """watch CONDITION [at MODULE]: stop where a gradient is produced that is so

        nan, inf, zero, norm>1e3, norm<1e-8, ratio>100 (of a module's output to input gradients), upcast, shape, missing
        (a parameter has no gradient at the end), or if EXPRESSION of gradient and task. One or another: nan or inf;
        both: zero and norm<1. MODULE may be a pattern: watch norm>1e3 or ratio>100 at encoder.*
        """
        self._ask("watch", arg, read_watch(arg, self.at.watch_test))

    def do_stops(self, arg: str) -> None:
        """stops: the breakpoints and watchpoints"""
        nothing(arg, "stops")
        found = list(self.at.stops)
        show(
            tables.stops_table(found, self.at.session)
            if found
            else plain("no breakpoint or watchpoint; help break, help watch")
        )

    def do_enable(self, arg: str) -> None:
        """enable N: let it stop runs again"""
        for number in numbers(arg, "enable N"):
            self.at.stops.enable(number, True)

    def do_disable(self, arg: str) -> None:
        """disable N: it stays, and stops nothing"""
        for number in numbers(arg, "disable N"):
            self.at.stops.enable(number, False)

    def do_delete(self, arg: str) -> None:
        """delete N  (clear, cl): take a breakpoint or watchpoint away"""
        for number in numbers(arg, "delete N"):
            self.at.stops.delete(number)

    def do_stop(self, arg: str) -> None:
        """stop: nothing runs while the prompt waits; Ctrl-C stops what does"""
        nothing(arg, "stop")
        say("nothing runs while the prompt waits; Ctrl-C stops a run before its next task, close ends the session")

    def _ask(self, kind: Literal["break", "watch"], text: str, make: Any, once: bool = False) -> None:
        asked = self.at.stops.ask(kind, text.strip(), make, once=once)
        entry = asked.entry
        assert entry is not None, "it was just made"
        tasks = "any task" if entry.tasks is None else counted(len(entry.tasks), "task")
        what = "breakpoint" if kind == "break" else "watchpoint"
        say(f"{what} {asked.number}: {tables.entry_text(entry, self.at.session)}, at {tasks}")
