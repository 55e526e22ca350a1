"""`tapescope bench`: measures built-in workloads or the user's functions on PyTorch's engine, and prints a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from ..engine.execution.accumulation_rule import GraphRule
from .command_arguments import Commands, ProgressLine, place_for, refuse, script_raised
from .json_output import tell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..engine.studies.accumulation_study import AccumulationStudy
    from ..engine.studies.ready_workload import Size, Workload
    from ..engine.studies.recompute_study import RecomputeStudy
    from .user_script import UserError

_Study = TypeVar("_Study", bound="AccumulationStudy | RecomputeStudy")
_TARGET = "WORKLOAD | SCRIPT.py:FUNCTION"


def add_bench(commands: Commands) -> None:
    """Add `tapescope bench`."""
    bench = commands.add_parser(
        "bench",
        help="measure workloads on PyTorch's engine and print a table",
        examples=("tapescope bench orders", "tapescope bench accumulation rnn", "tapescope bench recompute gpt2"),
    )
    benches = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    _add_orders(benches)
    _add_accumulation(benches)
    _add_recompute(benches)
    _add_batching(benches)


def _add_orders(benches: Commands) -> None:
    orders = benches.add_parser(
        "orders",
        help="time and memory under several orders: the benchmark of PyTorch PR #4746",
        examples=(
            "tapescope bench orders",
            "tapescope bench orders resnet50 linear50 --size full --device cuda",
            "tapescope bench orders train.py:make_loss",
        ),
    )
    orders.add_argument(
        "workloads",
        nargs="*",
        metavar=_TARGET,
        help="one of `tapescope workloads`, or a function that returns the loss (the ten workloads of the PR)",
    )
    orders.add_argument(
        "--policies", "--policy", nargs="+", action="extend", metavar="NAME", help="orders to run (bfs dfs heap)"
    )
    orders.add_argument("--size", choices=("small", "full"), help="size of built-in workloads (small)")
    orders.add_argument("--device", metavar="NAME", help="device of built-in workloads, such as cuda (cpu)")
    orders.add_argument("--repetitions", type=int, default=12, metavar="N", help="number of timed repetitions (12)")
    orders.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    orders.add_argument("--html", type=Path, metavar="FILE", help="also write a page with table and figure")
    orders.set_defaults(command=_bench_orders)


def _add_accumulation(benches: Commands) -> None:
    accumulation = benches.add_parser(
        "accumulation",
        help="memory of all accumulation rules, compared with a hand-written gradient: HIPS/autograd #219",
        examples=(
            "tapescope bench accumulation rnn --html accumulation.html",
            "tapescope bench accumulation train.py:make_loss",
        ),
    )
    accumulation.add_argument(
        "workloads",
        nargs="*",
        metavar=_TARGET,
        help="a workload with a hand-written gradient, or a function that returns the loss (rnn fan_out elementwise "
        "needless)",
    )
    accumulation.add_argument("--size", choices=("small", "full"), help="size of built-in workloads (small)")
    accumulation.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        nargs="+",
        action="extend",
        help="dtype of built-in workloads (float32)",
    )
    accumulation.add_argument(
        "--graph",
        choices=get_args(GraphRule),
        nargs="+",
        action="extend",
        help="when nodes free their saved tensors: freed, as they run; kept, when the backward has ended (freed kept)",
    )
    accumulation.add_argument("--repetitions", type=int, default=3, metavar="N", help="number of timed repetitions (3)")
    accumulation.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page with tables and figures, over steps and over time"
    )
    accumulation.set_defaults(command=_bench_accumulation)


def _add_recompute(benches: Commands) -> None:
    recompute = benches.add_parser(
        "recompute",
        help="memory and time of checkpoints, of torch.compile's memory budget, and of ts.recompute",
        examples=(
            "tapescope bench recompute gpt2 --compile",
            "tapescope bench recompute train.py:make_loss",
        ),
    )
    recompute.add_argument(
        "workloads",
        nargs="*",
        metavar=_TARGET,
        help="one of `tapescope workloads`, or a function that returns the loss (rnn unet resnet50)",
    )
    recompute.add_argument(
        "--size",
        choices=("small", "desk", "full"),
        help="size of built-in workloads; a step of desk takes seconds on two cores (small)",
    )
    recompute.add_argument("--device", metavar="NAME", help="device of built-in workloads, such as cuda (cpu)")
    recompute.add_argument(
        "--repetitions", type=int, default=5, metavar="N", help="number of timed steps of each way (5)"
    )
    recompute.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="time limit of each search for a plan (5)"
    )
    recompute.add_argument("--compile", action="store_true", help="include torch.compile, which takes minutes")
    recompute.add_argument("--html", type=Path, metavar="FILE", help="also write a page with tables and figures")
    recompute.set_defaults(command=_bench_recompute)


def _add_batching(benches: Commands) -> None:
    batching = benches.add_parser(
        "batching",
        help="products of an ensemble that eager, TorchScript, torch.compile and tapescope join: PyTorch #18157",
        examples=("tapescope bench batching", "tapescope bench batching --members 4 10 32 --no-compile"),
    )
    batching.add_argument(
        "--members",
        type=int,
        nargs="+",
        action="extend",
        metavar="K",
        help="numbers of members of the ensembles (4 10)",
    )
    batching.add_argument(
        "--repetitions", type=int, default=12, metavar="N", help="number of timed steps of each way (12)"
    )
    batching.add_argument(
        "--no-compile",
        action="store_true",
        help="leave out torch.compile, which compiles for about 15 s per ten members",
    )
    batching.set_defaults(command=_bench_batching)


def _bench_orders(options: argparse.Namespace, console: Console) -> int:
    from ..engine.studies.order_study import ORDERS_STUDIED, WORKLOADS_STUDIED, order_study
    from .user_script import UserError

    with ProgressLine() as line, ExitStack() as scripts:
        try:
            place_for("--html", options.html)
            study = order_study(
                _programs(options, WORKLOADS_STUDIED, ("size", "device"), scripts),
                list(dict.fromkeys(options.policies or ORDERS_STUDIED)),
                size=options.size or "small",
                device=options.device or "cpu",
                repetitions=options.repetitions,
                progress=line.show,
            )
        except UserError as error:
            line.clear()
            return _raised(error)
        except (ValueError, OSError) as error:
            line.clear()
            return refuse(error)
        except KeyboardInterrupt:
            line.clear()
            print("tapescope: interrupted before anything was measured", file=sys.stderr)
            return 130
    failed = None
    tell(lambda: study.content() | {"interrupted": study.interrupted})
    if options.html is not None:
        try:
            print(f"tapescope: written to {study.save_html(options.html)}", file=sys.stderr)
        except OSError as error:
            failed = error
    if options.markdown:
        print(study.markdown, end="")
    else:
        if study.rows:
            # rich squeezes a table that is too wide, so measure it without the console's limit.
            unbounded = console.options.update(max_width=1000)
            fits = console.measure(study.table, options=unbounded).maximum <= console.width
            console.print(study.table if fits else study.narrow_table)
        for sentence in study.sentences:
            console.print(f"\n{sentence}", markup=False)
        console.print()
        for row in study.rows:
            console.print(f"{row.name}: {row.sentence}", style="dim", markup=False)
        console.print()
        for sentence in (*study.how_measured, f"Measured on {study.machine}."):
            console.print(sentence, style="dim", markup=False)
    # The table is printed first, so that a page that cannot be written does not cost the results.
    if failed is not None:
        return refuse(failed)
    return 130 if study.interrupted else 1 if study.refused else 0


def _bench_accumulation(options: argparse.Namespace, console: Console) -> int:
    import torch

    from ..engine.studies.accumulation_study import STUDIED, accumulation_study, save_studies
    from ..engine.studies.ready_workload import OwnProgram

    def studies(
        tell: Callable[[str], object], so_far: Callable[[AccumulationStudy], object] | None, scripts: ExitStack
    ) -> Iterator[AccumulationStudy]:
        size: Size = options.size or "small"
        for each in _programs(options, STUDIED, ("size", "dtype"), scripts):
            for name in ["float32"] if isinstance(each, OwnProgram) else dict.fromkeys(options.dtype or ["float32"]):
                yield accumulation_study(
                    each,
                    size=size,
                    dtype=getattr(torch, name),
                    graph=list(dict.fromkeys(options.graph or get_args(GraphRule))),
                    repetitions=options.repetitions,
                    progress=tell,
                    so_far=so_far,
                )

    return _bench_one_by_one(studies, save_studies, options, console, _dtypes_side_by_side)


def _dtypes_side_by_side(studies: Sequence[AccumulationStudy]) -> Iterator[Table]:
    """Yield a table of each program measured in several dtypes: the peaks, and their ratios to the reference."""
    from ..inspector.text.report import cells_table
    from ..inspector.text.sizes_and_counts import dtype_name, size_text

    programs: dict[str, list[AccumulationStudy]] = {}
    for each in studies:
        programs.setdefault(each.workload.name, []).append(each)
    for name, found in programs.items():
        rows = [row.name for row in found[0].rows if all(row.name in study for study in found)]
        if len(found) > 1:
            headings = [name, *(dtype_name(study.dtype) for study in found)]
            cells = [
                [row, *(f"{size_text(study[row].peak_bytes)}  {study.ratio(row):.2f} ×" for study in found)]
                for row in rows
            ]
            yield cells_table([headings, *cells], headings[1:])


def _bench_recompute(options: argparse.Namespace, console: Console) -> int:
    from ..engine.studies.recompute_study import QUICK, recompute_study, save_studies

    def studies(
        tell: Callable[[str], object], so_far: Callable[[RecomputeStudy], object] | None, scripts: ExitStack
    ) -> Iterator[RecomputeStudy]:
        for each in _programs(options, QUICK, ("size", "device"), scripts):
            yield recompute_study(
                each,
                size=options.size or "small",
                device=options.device or "cpu",
                repetitions=options.repetitions,
                seconds=options.seconds,
                compiled=options.compile,
                progress=tell,
                so_far=so_far,
            )

    return _bench_one_by_one(studies, save_studies, options, console)


def _bench_batching(options: argparse.Namespace, console: Console) -> int:
    from ..engine.studies.batching_study import MEMBERS_STUDIED, batching_study

    with ProgressLine() as line:
        try:
            members = list(dict.fromkeys(options.members or MEMBERS_STUDIED))
            study = batching_study(
                members, compiled=not options.no_compile, repetitions=options.repetitions, progress=line.show
            )
        except ValueError as error:
            line.clear()
            return refuse(error)
        except KeyboardInterrupt:
            line.clear()
            print("tapescope: interrupted before the first ensemble was measured", file=sys.stderr)
            return 130
    tell(
        lambda: {
            "rows": study.records(),
            "refused": {row.name: dict(row.refused) for row in study.rows if row.refused},
            "sentences": study.sentences,
            "machine": str(study.machine),
            "interrupted": study.interrupted,
        }
    )
    console.print(study.table)
    for sentence in (*study.sentences, f"Measured on {study.machine}."):
        console.print(f"\n{sentence}", markup=False)
    return 130 if study.interrupted else 0


def _bench_one_by_one(
    measured: Callable[[Callable[[str], object], Callable[[_Study], object] | None, ExitStack], Iterator[_Study]],
    save: Callable[[Sequence[_Study], Path], Path],
    options: argparse.Namespace,
    console: Console,
    beside: Callable[[Sequence[_Study]], Iterator[Table]] = lambda studies: iter(()),
) -> int:
    """Print each study when it is finished. Write the page whenever there is more to show. Return the exit code.

    Args:
        measured: yields the studies. Its arguments are a progress callback, a callback for a study that is not finished
            yet (None without a page), and a stack that closes scripts at the end.
        save: writes the page.
        options: the command's options.
        console: the console.
        beside: yields tables of several studies.
    """
    from .user_script import UserError

    studies: list[_Study] = []
    interrupted = False

    def page_so_far(study: _Study) -> None:
        with suppress(OSError):  # reported when the page is written at the end
            save([*studies, study], options.html)

    with ProgressLine() as line, ExitStack() as scripts:
        try:
            place_for("--html", options.html)
            for study in measured(line.show, None if options.html is None else page_so_far, scripts):
                line.clear()
                _print_study_of_one(study, console)
                studies.append(study)
                if interrupted := study.interrupted:
                    print("tapescope: interrupted", file=sys.stderr)
                    break
        except UserError as error:
            line.clear()
            return _raised(error)
        except (ValueError, OSError, NotImplementedError) as error:
            line.clear()
            return refuse(error)
        except KeyboardInterrupt:
            line.clear()
            finished = "; finished studies are printed above" if studies else " before the first study was finished"
            print(f"tapescope: interrupted{finished}", file=sys.stderr)
            if not studies:
                return 130
            interrupted = True
    tell(
        lambda: {
            "studies": [
                {
                    "workload": each.workload.name,
                    "title": each.title,
                    "sentences": each.sentences,
                    "rows": each.records(),
                    "machine": str(each.machine),
                }
                for each in studies
            ],
            "interrupted": interrupted,
        }
    )
    for table in beside(studies):
        console.print(table)
        console.print()
    console.print(f"Measured on {studies[0].machine}.", style="dim", markup=False)
    if options.html is not None:
        try:
            print(f"tapescope: written to {save(studies, options.html)}", file=sys.stderr)
        except OSError as error:
            return refuse(error)
    return 130 if interrupted else 0


def _programs(
    options: argparse.Namespace, usual: Sequence[str], of_ready: Sequence[str], scripts: ExitStack
) -> list[Workload]:
    """Return the workloads to measure: built-in ones, and functions of the user.

    Raises:
        ValueError: a workload, script or function is unknown, or an option for built-in workloads is set, and all are
            functions of the user.
        UserError: a script raised.
    """
    from ..engine.studies.ready_workload import own_program
    from ..engine.studies.workloads import workload
    from .user_script import make_loss_of

    names = list(dict.fromkeys(options.workloads or usual))
    options_set = [f"--{name}" for name in of_ready if getattr(options, name) is not None]
    if options_set and all(map(_is_script, names)):
        raise ValueError(f"{options_set[0]} applies only to built-in workloads; set it in {names[0]} instead")
    return [
        own_program(scripts.enter_context(make_loss_of(name)), Path(name).name) if _is_script(name) else workload(name)
        for name in names
    ]


def _is_script(name: str) -> bool:
    return ":" in name or name.endswith(".py")


def _raised(error: UserError) -> int:
    return script_raised(error.error, f"your function raised {type(error.error).__name__}")


def _print_study_of_one(study: AccumulationStudy | RecomputeStudy, console: Console) -> None:
    console.print(study.title, style="bold", markup=False)
    about = " · ".join(filter(None, (study.workload.title, study.workload.source)))
    console.print(f"{about}\n", style="dim", markup=False)
    console.print(study.table)
    for sentence in study.sentences:
        console.print(f"\n{sentence}", markup=False)
    console.print()
