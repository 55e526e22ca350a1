"""The command line: `tapescope run`, `demo`, `compare`, `advise`, `fits`, `bench`, `graph`, `debug` and others.

Exit codes: 2 for invalid input, with a message of one sentence. 1 if a user's script raised, a step does not fit, a
demo has wrong gradients, two runs differ, a replay differs from its recording, a workload could not be measured, or
nobody reads the output any more. 130 if a study was interrupted; the results until then are printed. `run` has its
script's exit code, or 70 for findings of `--fail-on`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from .commands.command_arguments import Parser, check_arguments, refuse
from .commands.json_output import answered, answering, as_json, asks_for_json, exit_code_of
from .inspector.text.option_form import options_named

COMMANDS = {
    "run": "run",
    "demo": "graph_view_diff",
    "compare": "compare_advise",
    "advise": "compare_advise",
    "fits": "fits",
    "bench": "bench",
    "workloads": "graph_view_diff",
    "graph": "graph_view_diff",
    "debug": "debug",
    "replay": "replay",
    "diff": "graph_view_diff",
    "view": "graph_view_diff",
    "mcp": "mcp",
}
"""The module of each command, in the order in which help lists them."""

_FUNCTIONS = {
    "profile": "compare",
    "peak": "compare",
    "plan_order": "compare",
    "record_steps": "run --profile",
    "training": "run",
    "find_nan": "debug --watch nan",
    "find_batches": "graph --groups",
    "svg": "graph",
}
"""The commands for functions of `tapescope` whose names people type as commands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `arguments` are by default those of the process."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # Most commands import torch. `tapescope run` must not, since a script may set torch's environment variables.
    parser = command_line(given[0] if given and given[0] in COMMANDS else None)
    with answering() as answer:
        try:
            if given and given[0] not in COMMANDS and not given[0].startswith("-"):
                parser.error(_unknown(given[0]))
            options = parser.parse_args(given)
        except SystemExit as end:
            if answer.error is not None and asks_for_json(given):
                print(as_json(answer, exit_code_of(end)))
            raise
    if options.command is None:
        parser.print_help()
        return 2
    try:
        code = answered(options, _run)
        sys.stdout.flush()
    except BrokenPipeError:
        if given[0] in ("run", "debug"):  # of the user's script
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it exits
        return 1
    return code


def _run(options: argparse.Namespace) -> int:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return refuse("the command line needs rich to print tables; pip install rich")
    try:
        check_arguments(options)
    except (ValueError, OSError) as error:
        return refuse(error)
    with options_named(vars(options)):
        return int(options.command(options, Console(highlight=False)))


def command_line(only: str | None = None) -> Parser:
    """Return the argument parser with all commands, or with one."""
    parser = Parser(
        prog="tapescope",
        description="A visual debugger for PyTorch's backward pass.",
        examples=(
            "tapescope run train.py --epochs 1",
            "tapescope demo resnet50",
            "tapescope graph train.py:make_loss",
            "tapescope compare train.py:make_loss",
            "tapescope debug --watch nan train.py",
        ),
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions of tapescope, torch and Python")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, module in COMMANDS.items():
        if only in (None, name):
            getattr(import_module(f".commands.{module}", __package__), f"add_{name}")(commands)
    return parser


def _unknown(word: str) -> str:
    """Return the message for a first argument that is not a command."""
    script = word.rpartition(":")[0]
    if word.endswith(".py") or Path(word).is_file():
        near = f"did you mean `tapescope run {word}` or `tapescope debug {word}`?"
    elif script.endswith(".py"):
        near = f"did you mean `tapescope compare {word}` or `tapescope graph {word}`?"
    elif word in _FUNCTIONS:
        near = f"did you mean `tapescope {_FUNCTIONS[word]}`?"
    elif found := get_close_matches(word, COMMANDS, 1):
        near = f"did you mean `tapescope {found[0]}`?"
    else:
        near = f"expected one of {', '.join(COMMANDS)}"
    return f"unknown command {word!r}; {near}"


class _Version(argparse.Action):
    """Prints versions, from the packages' metadata: importing torch takes over a second."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from . import __version__
        from .inspector.torch_private.private_names import NEWEST_TESTED, is_untested

        torch = version("torch")
        print(f"tapescope {__version__}, torch {torch}, Python {platform.python_version()}")
        if is_untested(torch):
            print(f"torch {torch} is newer than the newest version tested, {NEWEST_TESTED}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
