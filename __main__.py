"""The command line: `tapescope demo`, `compare`, `advise`, `fits`, `bench`, `workloads`, `graph`, `debug` and others.

Bad input is one sentence and exit code 2. Code 1: a user's script raised, a step does not fit, gradients of a demo are
wrong, two runs differ, a replay is not what was recorded, or a workload could not be measured. Code 130: a study was
interrupted, and what it had measured is printed.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence

from .commands.bench import add_bench
from .commands.command_arguments import Parser, refuse
from .commands.compare_advise import add_advise, add_compare
from .commands.debug import add_debug
from .commands.fits import add_fits
from .commands.graph_view_diff import add_demo, add_diff, add_graph, add_view, add_workloads
from .commands.json_output import answered, answering, as_json, asks_for_json, exit_code_of
from .commands.mcp import add_mcp
from .commands.replay import add_replay

COMMANDS = (
    add_demo,
    add_compare,
    add_advise,
    add_fits,
    add_bench,
    add_workloads,
    add_graph,
    add_debug,
    add_replay,
    add_diff,
    add_view,
    add_mcp,
)
"""In the order in which help lists them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. `arguments` are those after the program's name; by default the process's own."""
    parser = command_line()
    with answering() as answer:
        try:
            options = parser.parse_args(arguments)
        except SystemExit as end:
            if answer.error is not None and asks_for_json(sys.argv[1:] if arguments is None else arguments):
                print(as_json(answer, exit_code_of(end)))
            raise
    if options.command is None:
        parser.print_help()
        return 2
    return answered(options, _run)


def _run(options: argparse.Namespace) -> int:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return refuse("the command line draws its tables with rich, which is missing: pip install rich")
    return int(options.command(options, Console(highlight=False)))


def command_line() -> Parser:
    """What reads the arguments, with all commands."""
    parser = Parser(
        prog="tapescope",
        description="A debugger for PyTorch's backward pass that you can look at.",
        examples=(
            "tapescope demo resnet50",
            "tapescope graph train.py:make_loss",
            "tapescope compare train.py:make_loss",
            "tapescope debug --watch nan train.py",
        ),
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions of tapescope, torch and Python")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser


class _Version(argparse.Action):
    """Torch is loaded only where its version is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import torch

        from . import __version__
        from .inspector.torch_private.private_names import NEWEST_TESTED, is_untested

        print(f"tapescope {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
        if is_untested(torch.__version__):
            print(f"torch {torch.__version__} is newer than the newest version tested, {NEWEST_TESTED}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
