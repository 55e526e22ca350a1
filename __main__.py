"""The command line: `tapescope demo`, `compare`, `advise`, `fits`, `bench`, `workloads`, `graph`, `debug` and others.

Exit codes: 2 for invalid input, with a message of one sentence. 1 if a user's script raised, a step does not fit, a
demo has wrong gradients, two runs differ, a replay differs from its recording, or a workload could not be measured. 130
if a study was interrupted; the results until then are printed.
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
"""The commands, in the order in which help lists them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `arguments` are by default those of the process."""
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
        return refuse("the command line needs rich to print tables; pip install rich")
    return int(options.command(options, Console(highlight=False)))


def command_line() -> Parser:
    """Return the argument parser with all commands."""
    parser = Parser(
        prog="tapescope",
        description="A visual debugger for PyTorch's backward pass.",
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
    """Prints versions. An action imports torch only if the option is used; argparse's own needs the text up front."""

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
