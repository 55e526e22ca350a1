"""`tapescope compare` and `tapescope advise`: run a program and measure its memory and time."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ..engine.execution.accumulation_rule import Accumulate, GraphRule, Release
from .command_arguments import Commands, ProgressLine, policies_of, print_title, program, refuse, script_raised
from .json_output import tell

if TYPE_CHECKING:
    from rich.console import Console


def add_compare(commands: Commands) -> None:
    """Add `tapescope compare`."""
    compare = commands.add_parser(
        "compare",
        help="measure and predict the memory of a workload or your own code under several policies",
        examples=(
            "tapescope compare linear50",
            "tapescope compare train.py:make_loss --policy bfs heap auto",
        ),
    )
    compare.add_argument(
        "target",
        metavar="WORKLOAD | SCRIPT.py:FUNCTION",
        help="one of `tapescope workloads`, or a function as for `tapescope graph`; it runs many times",
    )
    compare.add_argument("--policy", nargs="+", action="extend", metavar="NAME", help="policies (bfs dfs heap)")
    compare.add_argument(
        "--accumulate",
        nargs="+",
        choices=get_args(Accumulate),
        default=["inplace"],
        help="how gradients are summed, one or several rules (inplace, as in PyTorch)",
    )
    compare.add_argument(
        "--release",
        nargs="+",
        choices=get_args(Release),
        default=["eager"],
        help="when consumed gradients are freed, one or both (eager, as in PyTorch)",
    )
    compare.add_argument(
        "--graph",
        nargs="+",
        choices=get_args(GraphRule),
        default=["freed"],
        help="when nodes free their saved tensors, one or both (freed, as they run)",
    )
    compare.add_argument("--size", choices=("small", "full"), default="small", help="size of a workload (small)")
    compare.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="folder of the page (out)")
    compare.set_defaults(command=_compare)


def add_advise(commands: Commands) -> None:
    """Add `tapescope advise`."""
    advise = commands.add_parser(
        "advise",
        help="find possible savings in a program, try them, and report the gain",
        examples=(
            "tapescope advise ensemble",
            "tapescope advise train.py:make_loss",
        ),
    )
    advise.add_argument(
        "target",
        metavar="WORKLOAD | SCRIPT.py:FUNCTION",
        help="as for `tapescope compare`; it runs about ten times",
    )
    advise.add_argument("--size", choices=("small", "full"), default="small", help="size of a workload (small)")
    advise.set_defaults(command=_advise)


def _compare(options: argparse.Namespace, console: Console) -> int:
    from ..engine.schedule.ready_queue import PolicyError
    from ..engine.studies.compare import compare
    from .user_script import UserError

    target: str = options.target
    with ExitStack() as script:
        try:
            policies = policies_of(options)
            name, title, source, make_loss = script.enter_context(program(target, options.size))
            options.out.mkdir(parents=True, exist_ok=True)  # report an error now, not after minutes of work
            print_title(title, source, console)
            rules = {"accumulate": options.accumulate, "release": options.release, "graph": options.graph}
            comparison = compare(make_loss, policies, **rules)
        except UserError as error:
            return script_raised(error.error, f"{target} raised {type(error.error).__name__}")
        except (ValueError, OSError, NotImplementedError, PolicyError) as error:
            return refuse(error)
    console.print(comparison.table)
    for sentence in comparison.sentences:
        console.print(f"\n{sentence}", markup=False)
    console.print(f"\n[bold]{comparison.highest.policy}[/bold]")
    console.print(comparison.peak(comparison.highest.policy))
    page = options.out / f"{name}-compare.html"
    path = comparison.save_html(page, title)
    highest = comparison.highest.policy
    tell(
        lambda: {
            "title": title,
            "tasks": len(comparison.graph),
            "policies": comparison.records(),
            "sentences": comparison.sentences,
            "highest": highest,
            "peak": comparison.peak(highest).answer,
            "page": path,
        }
    )
    console.print(f"\nFigures and the peak of each policy: {path}", soft_wrap=True, markup=False)
    return 0


def _advise(options: argparse.Namespace, console: Console) -> int:
    from ..engine.diagnose.advise import advise
    from .user_script import UserError

    target: str = options.target
    with ProgressLine() as line:
        try:
            with program(target, options.size) as (_, title, source, make_loss):
                advice = advise(make_loss, progress=line.show)
        except UserError as error:
            line.clear()
            return script_raised(error.error, f"{target} raised {type(error.error).__name__}")
        except (ValueError, OSError) as error:
            line.clear()
            return refuse(error)
    print_title(title, source, console)
    tell(
        lambda: {
            "title": title,
            "sentences": advice.sentences,
            "peak_bytes": advice.peak_bytes,
            "forward_peak_bytes": advice.forward_peak_bytes,
            "items": [
                {
                    "title": item.title,
                    "verdict": item.verdict,
                    "said": item.said,
                    "facts": item.facts,
                    "code": item.code,
                }
                for item in advice
            ],
        }
    )
    console.print(advice, crop=False)  # lines of code must not be cut
    return 0
