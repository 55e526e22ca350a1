"""`tapescope debug`: runs a script with a prompt at each .backward() call."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ..engine.execution.accumulation_rule import Accumulate, Accumulation, Release
from .command_arguments import Commands, print_misplaced, refuse
from .json_output import printed, tell_error

if TYPE_CHECKING:
    from rich.console import Console


def add_debug(commands: Commands) -> None:
    """Add `tapescope debug`."""
    debug = commands.add_parser(
        "debug",
        help="run your script with a prompt at each .backward() call",
        examples=(
            "tapescope debug train.py --epochs 1",
            "tapescope debug --watch nan --break 'encoder.*' train.py",
            "torchrun --nproc-per-node 2 -m tapescope debug --rank 1 train.py",
        ),
    )
    debug.add_argument(
        "--break",
        action="append",
        default=[],
        dest="breaks",
        metavar="WHERE",
        help="run to this breakpoint; repeat for several",
    )
    debug.add_argument(
        "--watch",
        action="append",
        default=[],
        metavar="CONDITION",
        help="run to this watchpoint; repeat for several; --engine native is faster, but cannot undo",
    )
    debug.add_argument(
        "--policy", default="heap", metavar="NAME", help="the policy that orders tasks (heap, as in PyTorch)"
    )
    debug.add_argument(
        "--engine",
        choices=("direct", "native"),
        help="the engine that runs the backward (direct, or native if direct refuses)",
    )
    debug.add_argument(
        "--batch", choices=("auto",), help="run matrix products of several tasks together if possible; cannot undo"
    )
    debug.add_argument(
        "--queues",
        choices=("one", "per-device"),
        help="one ready queue for all devices, or one per device (per-device, as in PyTorch; one for --engine native)",
    )
    debug.add_argument(
        "--accumulate", choices=get_args(Accumulate), default="inplace", help="how gradients are summed (inplace)"
    )
    debug.add_argument(
        "--release", choices=get_args(Release), default="eager", help="when consumed gradients are freed (eager)"
    )
    debug.add_argument("--skip", type=int, default=0, metavar="N", help="run the first N backwards without a prompt")
    debug.add_argument("--rank", type=int, default=0, metavar="N", help="the rank of torchrun that has the prompt (0)")
    debug.add_argument("--keep-inputs", action="store_true", help="keep the inputs of operations, for `check`")
    debug.add_argument(
        "-c",
        "--command",
        action="append",
        default=[],
        dest="commands",
        metavar="LINE",
        help="run this command at the prompt first; repeat for several",
    )
    debug.add_argument("target", metavar="SCRIPT.py", help="the script, or SCRIPT.py:FUNCTION as for `tapescope graph`")
    debug.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    debug.set_defaults(command=_debug)


def _debug(options: argparse.Namespace, console: Console) -> int:
    from ..engine.planning.policies import find_policy
    from ..engine.schedule.device_queues import QUEUES
    from ..engine.session.batching.batch_argument import check_batch
    from ..widgets.terminal.script_debugger import EveryBackward, ended_well
    from ..widgets.terminal.user_traceback import users_traceback
    from .run_script import run_script, script_path
    from .user_script import UserError, backward_of

    target: str = options.target
    of_function = ":" in target and not Path(target).is_file()
    try:
        find_policy(options.policy)
        check_batch(options.batch, options.engine or "direct")
        accumulation = Accumulation(options.accumulate, options.release)
        if options.engine == "native":
            accumulation.check_native()
        debugger = EveryBackward(
            options.engine,
            options.policy,
            options.skip,
            options.commands,
            options.keep_inputs,
            options.batch,
            accumulation,
            options.rank,
            None if options.queues is None else QUEUES[options.queues],
        )
        debugger.prompt.set_stops(options.breaks, options.watch)
        if of_function:
            if options.arguments:
                raise ValueError(f"{target} takes no arguments, got {options.arguments[0]!r}")
            with printed(), debugger:
                backward_of(target)
            return 2 if debugger.matched_nothing else 0
        path = script_path(target)
        own = ("--break", "--watch", "--policy", "--engine", "--batch", "--skip", "--keep-inputs")
        print_misplaced(own, options.arguments, "debug", target)
    except UserError as error:
        traceback = users_traceback(error.error)
        tell_error(f"{target} raised {type(error.error).__name__}", traceback)
        print(traceback, end="", file=sys.stderr)
        return 1
    except (ValueError, NotImplementedError, OSError) as error:
        return refuse(error)
    try:
        with printed(), debugger:
            run_script(path, target, options.arguments)
    except SystemExit as end:
        # A successful exit of the script must not hide that no stop matched.
        if not debugger.matched_nothing or not ended_well(end):
            raise
    return 2 if debugger.matched_nothing else 0
