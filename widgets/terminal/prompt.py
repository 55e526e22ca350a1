"""A prompt in the terminal, like pdb's, over a backward: `session.interact()`, `tapescope debug SCRIPT.py`."""

from __future__ import annotations

import sys
from cmd import Cmd
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ...engine.session.verbs import Verbs
from . import tables as tables
from .commands import BackCommands, ChangeCommands, EndCommands, LookCommands, RunCommands, StopCommands, commands_of
from .completion import offered, whole
from .console import plain, say, show, whole_words
from .prompt_session import Debuggee, Names, assigns, goes_back, sentence, users_frame
from .stops import Session

SHORT = {
    "s": "step",
    "n": "over",
    "next": "over",
    "step_over": "over",
    "finish": "out",
    "r": "out",
    "return": "out",
    "step_out": "out",
    "c": "continue",
    "cont": "continue",
    "run": "continue",
    "u": "until",
    "unt": "until",
    "run_to": "until",
    "w": "where",
    "bt": "where",
    "l": "list",
    "i": "info",
    "ready": "queue",
    "p": "print",
    "!": "execute",
    "b": "break",
    "cl": "delete",
    "clear": "delete",
    "history": "memory",
    "q": "quit",
    "exit": "quit",
    "EOF": "quit",
    "h": "help",
}

GROUPS = {
    "run": ("step", "over", "out", "until", "continue", "policy"),
    "go back": ("back", "goto", "branch", "branches"),
    "look": ("where", "list", "info", "queue", "find", "print", "pp", "saved", "memory", "check"),
    "stop": ("break", "tbreak", "watch", "stops", "enable", "disable", "delete", "stop"),
    "change": ("zero", "scale", "clip", "replace", "restore", "execute"),
    "end": ("save", "close", "quit", "help"),
}

REPEATED = frozenset(("step", "over", "out", "until", "continue", "back"))
"""What Enter alone does again. A change of a gradient is not among them."""


def interact(session: Verbs) -> None:
    """A prompt over a session. `quit` leaves it, and the session as it then is.

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
    """Reads commands and runs them.

    Args:
        at: what they are about.
        first: commands that are run first, as if they had been typed.

    Attributes:
        commands: by name what each does.
        groups: their names as help lists them.
    """

    prompt = "(tapescope) "

    def __init__(self, at: Debuggee, first: Sequence[str] = ()) -> None:
        super().__init__()
        self.at = at
        self.groups = GROUPS
        self.commands = commands_of([*(each(at) for each in _COMMANDS), self])
        self._first = list(first)

    def talk(self) -> None:
        """Reads commands and runs them, until one leaves."""
        while self._first:
            line = self._first.pop(0)
            print(f"{self.prompt}{line}")
            if self.onecmd(line):
                return
        while True:
            try:
                with whole_words():
                    self.cmdloop()
            except KeyboardInterrupt:
                print("\ninterrupted")
            else:
                return

    def do_help(self, arg: str) -> None:
        """help [COMMAND]  (h, ?): what there is, or what a command does"""
        if arg:
            name = SHORT.get(arg, arg)
            if name not in self._listed():
                self.default(arg)
            say(*(line.removeprefix(" " * 8) for line in self._help(name)))
            return
        made = tables.table("", "", "")
        made.show_header = False
        for group, names in self.groups.items():
            for place, name in enumerate(names):
                usage, _, does = self._help(name)[0].partition(": ")
                made.add_row(plain("" if place else group, "dim"), plain(usage), plain(does))
        show(made)

    def precmd(self, line: str) -> str:
        if not sys.stdin.isatty():  # a terminal has shown it
            print("" if line == "EOF" else line)
        return line

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        if line.startswith("!") or assigns(line):
            return "execute", line.removeprefix("!"), line
        command, argument, line = super().parseline(line)
        return SHORT.get(command, command) if command else command, argument, line

    def onecmd(self, line: str) -> bool:
        command = self.parseline(line)[0]
        try:
            leaves = self._does(line)
        except BrokenPipeError:  # nobody reads what is said
            raise
        except (ValueError, TypeError, RuntimeError, NotImplementedError, OSError) as error:
            say(f"*** {sentence(error)}", style="red")
            leaves = False
        if command is not None:
            self.lastcmd = line if command in REPEATED else ""
        return leaves

    def emptyline(self) -> bool:
        return self.onecmd(self.lastcmd) if self.lastcmd else False

    def default(self, line: str) -> None:
        word, *rest = line.split()
        near = get_close_matches(word, [*self._listed(), *SHORT], 3)
        hint = f"the nearest are {', '.join(near)}" if near else "help lists them"
        if not rest and word.isidentifier() and not near:
            hint += f"; p {word} shows a variable"
        raise ValueError(f"there is no command {word!r}: {hint}")

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        if text.startswith("!"):
            return offered("execute", self.at.session, self.at.stops, self.at.known, text, "")
        words = {*self._listed(), *(word for word in SHORT if len(word) > 2 and word != "EOF")}
        return whole(sorted(word for word in words if word.startswith(text)))

    def completedefault(self, *given: Any) -> list[str]:
        text, line, begin, _ = given
        command = self.parseline(line)[0] or ""
        before = line[:begin].partition(" ")[2]
        return offered(command, self.at.session, self.at.stops, self.at.known, text, before)

    def complete_help(self, text: str, *ignored: Any) -> list[str]:
        return self.completenames(text)

    def _does(self, line: str) -> bool:
        """Runs a line. Whether the prompt is left then."""
        command, argument, line = self.parseline(line)
        if not line:
            return self.emptyline()
        if command not in self.commands:
            self.default(line)
        return bool(self.commands[command or ""](argument or ""))

    def _listed(self) -> list[str]:
        return [name for names in self.groups.values() for name in names]

    def _help(self, name: str) -> list[str]:
        return (self.commands[name].__doc__ or "").rstrip().splitlines()


_COMMANDS = (RunCommands, BackCommands, LookCommands, StopCommands, ChangeCommands, EndCommands)
