"""The command line: `tapescope run`, `demo`, `compare`, `advise`, `fits`, `bench`, `graph`, `debug` and others.

Exit codes: 2 for invalid input, with a message of one sentence. 1 if a user's script raised, a step does not fit, a
demo has wrong gradients, two runs differ, a replay differs from its recording, or a workload could not be measured. 130
if a study was interrupted; the results until then are printed. `run` has its script's exit code, or 70 for findings of
`--fail-on`.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from importlib import import_module

from .commands.command_arguments import Parser, refuse
from .commands.json_output import answered, answering, as_json, asks_for_json, exit_code_of

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `arguments` are by default those of the process."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # Most commands import torch. `tapescope run` must not, since a script may set torch's environment variables.
    parser = command_line(given[0] if given and given[0] in COMMANDS else None)
    with answering() as answer:
        try:
            options = parser.parse_args(given)
        except SystemExit as end:
            if answer.error is not None and asks_for_json(given):
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
