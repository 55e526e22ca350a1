"""The prompt of `session.interact()` and `tapescope debug SCRIPT.py`, which debugs a backward as pdb debugs code."""

from __future__ import annotations

import sys
from cmd import Cmd
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

from ...engine.session.verbs import Verbs
from ..deck.verbs import GROUPS, SHORT, Surface, verbs_on
from . import commands as commands
from . import tables as tables
from .completion import completions, with_space
from .console import ArgumentError, plain, prompt_words, say, show
from .expressions import Names, is_assignment, users_frame
from .prompt_session import Debuggee, goes_back, message_of
from .stops import Session


def interact(session: Verbs) -> None:
    """Open a prompt for a session. `quit` leaves the prompt and keeps the session's state.

    Raises:
        RuntimeError: the session is over.
    """
    assert isinstance(session, Session)
    session._check_open()
    if goes_back(session) and session.history is None:
        session.keep_history()
    prompt = Prompt(Debuggee(Names(users_frame())))
    prompt.at.enter(session)
    prompt.at.greet()
    prompt.talk()


class Prompt(Cmd):
    """Command loop of the prompt.

    Args:
        at: the session and variables that commands use.
        first: commands to run before reading any, as if they had been typed.

    Attributes:
        verbs: the verbs available at this prompt, by name.
        commands: the function that runs each verb.
    """

    prompt = "(tapescope) "
    surface: Surface = "prompt"

    def __init__(self, at: Debuggee, first: Sequence[str] = ()) -> None:
        super().__init__()
        self.at = at
        self.verbs = verbs_on(self.surface)
        self.commands: dict[str, Callable[[str], bool | None]] = {
            name: getattr(self, f"do_{name}", None) or partial(getattr(commands, f"do_{name}"), at)
            for name in self.verbs
        }
        self._first = list(first)

    def talk(self) -> None:
        """Read and run commands until one leaves the prompt."""
        while self._first:
            line = self._first.pop(0)
            print(f"{self.prompt}{line}")
            if self.onecmd(line):
                return
        while True:
            try:
                with prompt_words():
                    self.cmdloop()
            except KeyboardInterrupt:
                print("\ninterrupted")
            else:
                return

    def do_help(self, arg: str) -> None:
        if arg:
            name = SHORT.get(arg, arg)
            if name not in self.verbs:
                self.default(arg)
            say(*self.verbs[name].help_lines)
            return
        made = tables.table("", "", "")
        made.show_header = False
        for group, verbs in GROUPS.items():
            for place, verb in enumerate(verb for verb in verbs if self.surface in verb.on):
                usage, _, does = verb.help_lines[0].partition(": ")
                made.add_row(plain("" if place else group, "dim"), plain(usage), plain(does))
        show(made)

    def precmd(self, line: str) -> str:
        if not sys.stdin.isatty():  # a terminal has already echoed the line
            print("" if line == "EOF" else line)
        return line

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        if line.startswith("!") or is_assignment(line):
            return "execute", line.removeprefix("!"), line
        command, argument, line = super().parseline(line)
        return SHORT.get(command, command) if command else command, argument, line

    def onecmd(self, line: str) -> bool:
        command = self.parseline(line)[0]
        try:
            # Only errors about the command are shown here. KeyboardInterrupt reaches `talk`.
            leaves = self._run_line(line)
        except BrokenPipeError:  # the reader of the output has exited; a message could not be printed either
            raise
        except (ValueError, TypeError, RuntimeError, NotImplementedError, OSError) as error:
            say(f"*** {message_of(error)}", style="red")
            leaves = False
        if command is not None:
            self.lastcmd = line if command in self.verbs and self.verbs[command].repeats else ""
        return leaves

    def emptyline(self) -> bool:
        return self.onecmd(self.lastcmd) if self.lastcmd else False

    def default(self, line: str) -> NoReturn:
        word, *rest = line.split()
        near = get_close_matches(word, [*self.verbs, *SHORT], 3)
        hint = f"did you mean {', '.join(near)}?" if near else "help lists the commands"
        if not rest and word.isidentifier() and not near:
            hint += f"; p {word} prints a variable"
        raise ValueError(f"unknown command {word!r}; {hint}")

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        if text.startswith("!"):
            return completions("execute", self.at.session, self.at.stops, self.at.known, text, "")
        words = {*self.verbs, *(word for word in SHORT if len(word) > 2 and word != "EOF")}
        return with_space(sorted(word for word in words if word.startswith(text)))

    def completedefault(self, *arguments: Any) -> list[str]:
        text, line, begin, _ = arguments
        command = self.parseline(line)[0] or ""
        before = line[:begin].partition(" ")[2]
        return completions(command, self.at.session, self.at.stops, self.at.known, text, before)

    def complete_help(self, text: str, *ignored: Any) -> list[str]:
        return self.completenames(text)

    def _run_line(self, line: str) -> bool:
        """Run a line. Return whether to leave the prompt."""
        command, argument, line = self.parseline(line)
        if not line:
            return self.emptyline()
        if command is None or command not in self.verbs:
            self.default(line)
        verb = self.verbs[command]
        verb.check(argument or "")
        try:
            return bool(self.commands[command]((argument or "").strip()))
        except ArgumentError as error:
            raise ValueError(f"{error}; usage: {verb.usage}") from None
