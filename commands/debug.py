"""`tapescope debug`: a script runs with a prompt at each .backward() that it calls."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ..engine.execution.accumulation_rule import Accumulate, Accumulation, Release
from ..engine.schedule.device_queues import QUEUES
from .command_arguments import Commands, refuse
from .json_output import printed, tell_error

if TYPE_CHECKING:
    from rich.console import Console


def add_debug(commands: Commands) -> None:
    """Adds `tapescope debug`."""
    debug = commands.add_parser(
        "debug",
        help="run your script with a prompt at each .backward() that it calls",
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
        help="run to a breakpoint, any of several",
    )
    debug.add_argument(
        "--watch",
        action="append",
        default=[],
        metavar="CONDITION",
        help="run to a watchpoint, any of several; --engine native is faster, and takes no task back",
    )
    debug.add_argument("--policy", default="heap", metavar="NAME", help="which task runs next (heap, PyTorch's own)")
    debug.add_argument(
        "--engine", choices=("direct", "native"), help="which runs the backward (direct; what it refuses, native)"
    )
    debug.add_argument(
        "--batch", choices=("auto",), help="run products of several tasks as one where they can; takes no task back"
    )
    debug.add_argument(
        "--queues",
        choices=tuple(QUEUES),
        help="one ready queue for all devices, or one for each (each, as PyTorch's engine; native, unless told: one)",
    )
    debug.add_argument(
        "--accumulate",
        choices=get_args(Accumulate),
        default="inplace",
        help="how gradients that meet are summed (inplace)",
    )
    debug.add_argument(
        "--release", choices=get_args(Release), default="eager", help="when consumed gradients are let go (eager)"
    )
    debug.add_argument("--skip", type=int, default=0, metavar="N", help="let the first N backwards run by themselves")
    debug.add_argument("--rank", type=int, default=0, metavar="N", help="which rank has the prompt, of torchrun (0)")
    debug.add_argument("--keep-inputs", action="store_true", help="keep what `check` needs: takes memory")
    debug.add_argument(
        "-c",
        "--command",
        action="append",
        default=[],
        dest="commands",
        metavar="LINE",
        help="give this to the prompt, as if typed; once or several times",
    )
    debug.add_argument(
        "target",
        metavar="SCRIPT.py",
        help="the script; or SCRIPT.py:FUNCTION, a function as `tapescope graph` takes it",
    )
    debug.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own")
    debug.set_defaults(command=_debug)


def _debug(options: argparse.Namespace, console: Console) -> int:
    from ..engine.planning.policies import find_policy
    from ..engine.session.batching.run_batches import check_batch
    from ..widgets.terminal.script_debugger import EveryBackward, ended_well
    from ..widgets.terminal.user_traceback import users_traceback
    from .user_script import UserError, backward_of, run_script, script_path

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
                raise ValueError(f"{target} takes no arguments, so {options.arguments[0]!r} can't be one")
            with printed(), debugger:
                backward_of(target)
            return 2 if debugger.matched_nothing else 0
        path = script_path(target)
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
        if not debugger.matched_nothing or not ended_well(end):
            raise
    return 2 if debugger.matched_nothing else 0
