"""The command line: `tapehead demo`, `compare`, `advise`, `bench`, `workloads`, `graph`, `view`, `diff`, `debug`.

Bad input is one sentence and exit code 2. Code 1: a user's script raised, gradients of a demo are wrong, two runs
differ, or a workload could not be measured. Code 130: a study was interrupted, and what it had measured is printed.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar, get_args

from .engine.memory.accumulation import Accumulate, Accumulation, Release

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from .engine.studies.accumulation_study import AccumulationStudy
    from .engine.studies.mirror_study import MirrorStudy
    from .engine.studies.order_study import OrderStudy
    from .engine.workloads.workloads import Size, Workload
    from .inspector.graph.graph import Fold, Graph

_Study = TypeVar("_Study", bound="AccumulationStudy | MirrorStudy")

DEMO_POLICIES = ("bfs", "dfs", "heap")


class Parser(argparse.ArgumentParser):
    """Says what is wrong without the usage in front of it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. `arguments` are those after the program's name; by default the process's own."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return _refuse("the command line draws its tables with rich, which is missing: pip install rich")
    return int(options.command(options, Console(highlight=False)))


def _refuse(why: object) -> int:
    print(f"tapehead: {_in_words(why) if isinstance(why, OSError) else why}", file=sys.stderr)
    return 2


def _in_words(error: OSError) -> str:
    """What the system says of a file, without its number."""
    if error.filename is None:
        return error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        return f"there is no file {error.filename}"
    if isinstance(error, IsADirectoryError):
        return f"{error.filename} is a folder, not a file"
    if isinstance(error, PermissionError):
        return f"{error.filename} may not be read or written by you"
    return f"{error.filename}: {error.strerror}"


def _parser() -> Parser:
    parser = Parser(prog="tapehead", description="A debugger for PyTorch's backward pass that you can look at.")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    demo = commands.add_parser("demo", help="step a ready model's backward under several policies, check it, draw it")
    demo.add_argument("workload", nargs="?", default="resnet50", help="one of `tapehead workloads` (resnet50)")
    demo.add_argument("--policy", nargs="+", action="extend", metavar="NAME", help="policies to run (bfs dfs heap)")
    demo.add_argument("--size", choices=("small", "full"), default="small", help="how large a model (small)")
    demo.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where to save the picture (out)")
    demo.set_defaults(command=_demo)

    compare = commands.add_parser(
        "compare", help="measure and predict memory under several policies, of a ready model or your own code"
    )
    compare.add_argument(
        "target",
        metavar="WORKLOAD | SCRIPT.py:FUNCTION",
        help="one of `tapehead workloads`, or a function as `tapehead graph` takes it, which is run many times",
    )
    compare.add_argument("--policy", nargs="+", action="extend", metavar="NAME", help="policies (bfs dfs heap)")
    compare.add_argument(
        "--accumulate",
        nargs="+",
        choices=get_args(Accumulate),
        default=["inplace"],
        help="how gradients that meet are summed, one or several (inplace, PyTorch's own)",
    )
    compare.add_argument(
        "--release",
        nargs="+",
        choices=get_args(Release),
        default=["eager"],
        help="when what a task has consumed is let go, one or both (eager, PyTorch's own)",
    )
    compare.add_argument("--size", choices=("small", "full"), default="small", help="how large a ready model (small)")
    compare.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where to save the page (out)")
    compare.set_defaults(command=_compare)

    advise = commands.add_parser(
        "advise", help="look for what could be changed in a program, try it on it, and say what it gains"
    )
    advise.add_argument(
        "target",
        metavar="WORKLOAD | SCRIPT.py:FUNCTION",
        help="as `tapehead compare` takes it; it is run some ten times",
    )
    advise.add_argument("--size", choices=("small", "full"), default="small", help="how large a ready model (small)")
    advise.set_defaults(command=_advise)

    bench = commands.add_parser("bench", help="measure ready models on PyTorch's engine, and print a table")
    benches = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    orders = benches.add_parser(
        "orders", help="time and memory under several orders: the benchmark of PyTorch PR #4746"
    )
    orders.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="of `tapehead workloads` (the six that the PR measured)"
    )
    orders.add_argument(
        "--policies", "--policy", nargs="+", action="extend", metavar="NAME", help="orders to run (bfs dfs heap)"
    )
    orders.add_argument("--size", choices=("small", "full"), default="small", help="how large the models (small)")
    orders.add_argument("--device", default="cpu", metavar="NAME", help="where they live, such as cuda (cpu)")
    orders.add_argument("--repetitions", type=int, default=12, metavar="N", help="how often each is timed (12)")
    orders.add_argument("--markdown", action="store_true", help="print the table as GitHub shows it")
    orders.add_argument("--html", type=Path, metavar="FILE", help="write a page with table and figure, too")
    orders.add_argument("--json", type=Path, metavar="FILE", help="write every single time, too")
    orders.set_defaults(command=_bench_orders)
    accumulation = benches.add_parser(
        "accumulation", help="memory of every way to sum gradients, beside the gradient by hand: HIPS/autograd #219"
    )
    accumulation.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="those with a gradient written by hand (rnn fan_out needless)"
    )
    accumulation.add_argument("--size", choices=("small", "full"), default="small", help="how large (small)")
    accumulation.add_argument(
        "--dtype", choices=("float32", "float64"), nargs="+", action="extend", help="of the numbers (float32)"
    )
    accumulation.add_argument("--repetitions", type=int, default=3, metavar="N", help="how often each is timed (3)")
    accumulation.add_argument("--html", type=Path, metavar="FILE", help="write a page with tables and figures, too")
    accumulation.set_defaults(command=_bench_accumulation)
    mirroring = benches.add_parser(
        "mirroring", help="memory and time of checkpoints, of torch.compile's memory budget, and of th.mirror"
    )
    mirroring.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="of `tapehead workloads` (eight, from an RNN to ResNet-152)"
    )
    mirroring.add_argument(
        "--size",
        choices=("small", "desk", "full"),
        default="desk",
        help="how large; desk is between, what two cores step in seconds (desk)",
    )
    mirroring.add_argument("--device", default="cpu", metavar="NAME", help="where they live, such as cuda (cpu)")
    mirroring.add_argument("--repetitions", type=int, default=5, metavar="N", help="how often each is timed (5)")
    mirroring.add_argument("--seconds", type=float, default=5.0, metavar="S", help="for each search for a plan (5)")
    mirroring.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes minutes")
    mirroring.add_argument("--html", type=Path, metavar="FILE", help="write a page with tables and figures, too")
    mirroring.set_defaults(command=_bench_mirroring)

    workloads = commands.add_parser("workloads", help="list the ready models")
    workloads.set_defaults(command=_workloads)

    graph = commands.add_parser("graph", help="draw the backward graph of your own code")
    graph.add_argument(
        "target", metavar="SCRIPT.py:FUNCTION", help="a function without arguments; it returns a loss, or (loss, model)"
    )
    graph.add_argument("--svg", type=Path, default=Path("backward.svg"), metavar="FILE", help="(backward.svg)")
    graph.add_argument(
        "--fold",
        type=_fold,
        default="repeats",
        help="modules to draw closed: repeats, none, a depth, or paths with commas between (repeats)",
    )
    graph.add_argument(
        "--groups",
        nargs="?",
        const="backward",
        choices=("backward", "forward"),
        help="outline the products that could run as one, and print them: of the backward, or of the forward",
    )
    graph.set_defaults(command=_graph)

    debug = commands.add_parser("debug", help="run your script with a prompt at each .backward() that it calls")
    debug.add_argument(
        "--break", action="append", default=[], dest="breaks", metavar="WHERE", help="run to a breakpoint"
    )
    debug.add_argument(
        "--watch",
        action="append",
        default=[],
        metavar="CONDITION",
        help="run to a watchpoint; --engine native is faster, and takes no task back",
    )
    debug.add_argument("--policy", default="heap", metavar="NAME", help="which task runs next (heap, PyTorch's own)")
    debug.add_argument(
        "--engine", choices=("direct", "native"), help="which runs the backward (direct; what it refuses, native)"
    )
    debug.add_argument(
        "--batch", choices=("auto",), help="run products of several tasks as one where they can; takes no task back"
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
    debug.add_argument("--rank", type=int, default=0, metavar="N", help="which rank has the prompt (torchrun); 0")
    debug.add_argument("--keep-inputs", action="store_true", help="keep what `check` needs: takes memory")
    debug.add_argument(
        "-c", "--command", action="append", default=[], dest="commands", help="give this to the prompt, as if typed"
    )
    debug.add_argument(
        "target", metavar="SCRIPT.py", help="the script; or SCRIPT.py:FUNCTION, a function as `tapehead graph` takes it"
    )
    debug.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own")
    debug.set_defaults(command=_debug)

    diff = commands.add_parser("diff", help="say where two saved runs part, in order, values and memory")
    diff.add_argument("first", type=Path, metavar="A.tape.json", help="a file that run.save() wrote")
    diff.add_argument("second", type=Path, metavar="B.tape.json", help="another one: of another commit, dtype, device")
    diff.add_argument("--tolerance", type=float, metavar="SHARE", help="relative differences to pass over (by dtype)")
    diff.set_defaults(command=_diff)

    view = commands.add_parser("view", help="play a saved run in the browser: the deck as one page")
    view.add_argument("trace", type=Path, metavar="RUN.tape.json", help="a file that run.save() wrote")
    view.add_argument("--out", type=Path, metavar="FILE", help="the page (beside the trace, ending in .html)")
    view.add_argument("--no-open", action="store_true", help="only write the page")
    view.set_defaults(command=_view)
    return parser


def _fold(text: str) -> Fold:
    if text == "repeats" or text == "none":
        return text
    return int(text) if text.isdecimal() else text.split(",")


def _demo(options: argparse.Namespace, console: Console) -> int:
    from .commands.demo import run_demo

    try:
        found, policies = _chosen(options)
    except (ValueError, OSError) as error:
        return _refuse(error)
    if run_demo(found, policies, options.size, options.out, console):
        return 0
    print("tapehead: an engine disagrees with PyTorch: see the table", file=sys.stderr)
    return 1


@contextmanager
def _program(target: str, size: Size) -> Iterator[tuple[str, str, str, Callable[[], Tensor]]]:
    """Name, title and source of a ready model or of a user's function, and what makes its loss."""
    from .commands.script import make_loss_of
    from .engine.workloads.workloads import workload

    if ":" in target or target.endswith(".py"):
        with make_loss_of(target) as make_loss:
            yield Path(target).name.replace(".py:", "-"), Path(target).name, "", make_loss
    else:
        found = workload(target)
        yield found.name, f"{found.title} ({found.name}, {size})", found.source, found.build(size)[1]


def _compare(options: argparse.Namespace, console: Console) -> int:
    from .commands.script import UserError
    from .engine.queue.ready_queue import PolicyError
    from .engine.studies.compare import compare
    from .widgets.terminal.user_traceback import users_traceback

    if find_spec("plotly") is None:
        return _refuse("the page draws its figures with plotly, which is missing: pip install plotly")
    target: str = options.target
    with ExitStack() as script:
        try:
            policies = _policies(options)
            name, title, source, make_loss = script.enter_context(_program(target, options.size))
            options.out.mkdir(parents=True, exist_ok=True)
            _print_title(title, source, console)
            comparison = compare(make_loss, policies, accumulate=options.accumulate, release=options.release)
        except UserError as error:
            print(users_traceback(error.error), end="", file=sys.stderr)
            print(f"tapehead: {target} raised {type(error.error).__name__}", file=sys.stderr)
            return 1
        except (ValueError, OSError, NotImplementedError, PolicyError) as error:
            return _refuse(error)
    console.print(comparison.table)
    for sentence in comparison.sentences:
        console.print(f"\n{sentence}", markup=False)
    console.print(f"\n[bold]{comparison.highest.policy}[/bold]")
    console.print(comparison.peak(comparison.highest.policy))
    path = comparison.save_html(options.out / f"{name}-compare.html", title)
    console.print(f"\nFigures, and the peak of each policy, are in {path}", soft_wrap=True, markup=False)
    return 0


def _advise(options: argparse.Namespace, console: Console) -> int:
    from .commands.script import UserError
    from .engine.ensembles.advice import advise
    from .widgets.terminal.user_traceback import users_traceback

    target: str = options.target
    with ProgressLine() as line:
        try:
            with _program(target, options.size) as (_, title, source, make_loss):
                advice = advise(make_loss, progress=line.show)
        except UserError as error:
            line.clear()
            print(users_traceback(error.error), end="", file=sys.stderr)
            print(f"tapehead: {target} raised {type(error.error).__name__}", file=sys.stderr)
            return 1
        except (ValueError, OSError) as error:
            line.clear()
            return _refuse(error)
    _print_title(title, source, console)
    console.print(advice, crop=False)  # a line of its code is never cut
    return 0


def _print_title(title: str, source: str, console: Console) -> None:
    console.print(title, style="bold", markup=False)
    if source:
        console.print(source, style="dim", markup=False)
    console.print()


def _bench_orders(options: argparse.Namespace, console: Console) -> int:
    from .engine.studies.order_study import ORDERS_STUDIED, WORKLOADS_STUDIED, order_study

    if options.html is not None and find_spec("plotly") is None:
        return _refuse("the page draws its figure with plotly, which is missing: pip install plotly")
    with ProgressLine() as line:
        try:
            _place_for("--html", options.html)
            _place_for("--json", options.json)
            study = order_study(
                list(dict.fromkeys(options.workloads)) or WORKLOADS_STUDIED,
                list(dict.fromkeys(options.policies or ORDERS_STUDIED)),
                size=options.size,
                device=options.device,
                repetitions=options.repetitions,
                progress=line.show,
            )
        except (ValueError, OSError) as error:
            line.clear()
            return _refuse(error)
        except KeyboardInterrupt:
            line.clear()
            print("tapehead: interrupted before anything was measured", file=sys.stderr)
            return 130
    failed = None
    for save, path in ((study.save_html, options.html), (study.save_json, options.json)):
        if path is not None:
            try:
                print(f"tapehead: written to {save(path)}", file=sys.stderr)
            except OSError as error:
                failed = error
    if options.markdown:
        print(study.markdown, end="")
    else:
        _print_study(study, console)
    if failed is not None:
        return _refuse(failed)
    return 130 if study.interrupted else 1 if study.refused else 0


def _bench_accumulation(options: argparse.Namespace, console: Console) -> int:
    import torch

    from .engine.studies.accumulation_study import STUDIED, accumulation_study, save_studies
    from .engine.workloads.workloads import workload

    def studies(tell: Callable[[str], object]) -> Iterator[AccumulationStudy]:
        size, repetitions = options.size, options.repetitions
        for each in [workload(name) for name in dict.fromkeys(options.workloads or STUDIED)]:
            for name in dict.fromkeys(options.dtype or ["float32"]):
                dtype = getattr(torch, name)
                yield accumulation_study(each, size=size, dtype=dtype, repetitions=repetitions, progress=tell)

    return _bench_one_by_one(studies, save_studies, options, console)


def _bench_mirroring(options: argparse.Namespace, console: Console) -> int:
    from .engine.studies.mirror_study import STUDIED, mirror_study, save_studies
    from .engine.workloads.workloads import workload

    def studies(tell: Callable[[str], object]) -> Iterator[MirrorStudy]:
        for each in [workload(name) for name in dict.fromkeys(options.workloads or STUDIED)]:
            yield mirror_study(
                each,
                size=options.size,
                device=options.device,
                repetitions=options.repetitions,
                seconds=options.seconds,
                compiled=not options.no_compile,
                progress=tell,
            )

    return _bench_one_by_one(studies, save_studies, options, console)


def _bench_one_by_one(
    measured: Callable[[Callable[[str], object]], Iterator[_Study]],
    save: Callable[[Sequence[_Study], Path], Path],
    options: argparse.Namespace,
    console: Console,
) -> int:
    """Prints each study as it is made, and writes the page of all. `measured` is given what shows progress."""
    if options.html is not None and find_spec("plotly") is None:
        return _refuse("the page draws its figures with plotly, which is missing: pip install plotly")
    studies: list[_Study] = []
    interrupted = False
    with ProgressLine() as line:
        try:
            _place_for("--html", options.html)
            for study in measured(line.show):
                line.clear()
                _print_study_of_one(study, console)
                studies.append(study)
        except (ValueError, OSError) as error:
            line.clear()
            return _refuse(error)
        except KeyboardInterrupt:
            line.clear()
            said = "; what was measured until then is above" if studies else " before anything was measured"
            print(f"tapehead: interrupted{said}", file=sys.stderr)
            if not studies:
                return 130
            interrupted = True
    console.print(f"Measured on {studies[0].machine}.", style="dim", markup=False)
    if options.html is not None:
        try:
            print(f"tapehead: written to {save(studies, options.html)}", file=sys.stderr)
        except OSError as error:
            return _refuse(error)
    return 130 if interrupted else 0


def _print_study_of_one(study: AccumulationStudy | MirrorStudy, console: Console) -> None:
    console.print(study.title, style="bold", markup=False)
    console.print(f"{study.workload.title} · {study.workload.source}\n", style="dim", markup=False)
    console.print(study.table)
    for sentence in study.sentences:
        console.print(f"\n{sentence}", markup=False)
    console.print()


def _print_study(study: OrderStudy, console: Console) -> None:
    if study.rows:
        console.print(study.table)
    for sentence in study.sentences:
        console.print(f"\n{sentence}", markup=False)
    console.print()
    for row in study.rows:
        console.print(f"{row.name}: {row.sentence}", style="dim", markup=False)
    console.print()
    for sentence in (*study.how_measured, f"Measured on {study.machine}."):
        console.print(sentence, style="dim", markup=False)


class ProgressLine:
    """What is being done, on one line of a terminal's stderr that is written anew; elsewhere a line per workload.

    It has no thread, which would be measured, too.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._before = ""

    def show(self, said: str) -> None:
        """`linear50 (5 of 6): bfs, round 3 of 12`."""
        if self._terminal:
            print(f"\r\x1b[K{said}", end="", file=sys.stderr, flush=True)
        elif (head := said.partition(":")[0]) != self._before:
            self._before = head
            print(f"measuring {head}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *raised: object) -> None:
        self.clear()


def _place_for(option: str, path: Path | None) -> None:
    """Makes the folder for what comes out. Better told now than when all is measured that there can be none."""
    if path is not None:
        if path.is_dir():
            raise ValueError(f"{option}: {path} is a folder, not the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)


def _chosen(options: argparse.Namespace) -> tuple[Workload, list[str]]:
    """The workload and the policies that are meant; makes the folder for what comes out."""
    from .engine.workloads.workloads import workload

    policies = _policies(options)
    found = workload(options.workload)
    options.out.mkdir(parents=True, exist_ok=True)
    return found, policies


def _policies(options: argparse.Namespace) -> list[str]:
    from .engine.orders.policies import find_policy

    policies = list(dict.fromkeys(options.policy or DEMO_POLICIES))
    for policy in policies:
        find_policy(policy)
    return policies


def _workloads(options: argparse.Namespace, console: Console) -> int:
    from rich.table import Table

    from .engine.workloads.workloads import WORKLOADS

    table = Table.grid(padding=(0, 2, 0, 0))
    for found in WORKLOADS.values():
        small, full = (
            " ".join(f"{knob}={value}" for knob, value in knobs.items()) for knobs in (found.small, found.full)
        )
        table.add_row(f"[bold]{found.name}[/bold]", found.title)
        table.add_row("", f"[dim]{found.source}[/dim]")
        table.add_row("", f"small: {small}")
        table.add_row("", f"full: {full}\n")
    console.print(table)
    return 0


def _graph(options: argparse.Namespace, console: Console) -> int:
    from .commands.script import draw_function
    from .widgets.terminal.user_traceback import users_traceback

    try:
        drawn = draw_function(options.target)
        if drawn.error is not None:
            print(users_traceback(drawn.error), end="", file=sys.stderr)
        if drawn.graph is not None:
            _save(drawn.graph, options, console)
    except (ValueError, OSError) as error:
        return _refuse(error)
    if drawn.error is None:
        return 0
    until = "the picture shows the graph built until then" if drawn.graph is not None else "there was no graph yet"
    print(f"tapehead: {options.target} raised {type(drawn.error).__name__}; {until}", file=sys.stderr)
    return 1


def _view(options: argparse.Namespace, console: Console) -> int:
    from .engine.trace.run_reader import load
    from .widgets.deck.page import is_page_of
    from .widgets.deck.run_document import save_run

    path: Path = options.trace
    out: Path = options.out or path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.json')}.html")
    try:
        run = load(path)
        if options.out is None and out.exists() and not is_page_of(out, path.name):
            raise ValueError(f"{out} is there already, and was not made from {path.name}; say where to with --out FILE")
        out.parent.mkdir(parents=True, exist_ok=True)
        page = save_run(run, out, source=path.name)
    except (ValueError, OSError) as error:
        return _refuse(error)
    console.print(f"The run plays in {page}", soft_wrap=True, markup=False)
    if not options.no_open:
        webbrowser.open(page.resolve().as_uri())
    return 0


def _debug(options: argparse.Namespace, console: Console) -> int:
    from .commands.script import UserError, backward_of, run_script, script_path
    from .engine.batching.group_runner import check_batch
    from .engine.orders.policies import find_policy
    from .widgets.terminal.every_backward import EveryBackward, ended_well
    from .widgets.terminal.user_traceback import users_traceback

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
        )
        debugger.prompt.ask_for(options.breaks, options.watch)
        if of_function:
            if options.arguments:
                raise ValueError(f"{target} takes no arguments, so {options.arguments[0]!r} can't be one")
            with debugger:
                backward_of(target)
            return 2 if debugger.in_vain else 0
        path = script_path(target)
    except UserError as error:
        print(users_traceback(error.error), end="", file=sys.stderr)
        return 1
    except (ValueError, NotImplementedError, OSError) as error:
        return _refuse(error)
    try:
        with debugger:
            run_script(path, target, options.arguments)
    except SystemExit as end:
        if not debugger.in_vain or not ended_well(end):
            raise
    return 2 if debugger.in_vain else 0


def _diff(options: argparse.Namespace, console: Console) -> int:
    from .engine.finding.diff import diff
    from .engine.trace.run_reader import load

    paths: tuple[Path, Path] = options.first, options.second
    names = paths[0].name, paths[1].name
    if names[0] == names[1]:
        names = str(paths[0]), str(paths[1])
    try:
        found = diff(load(paths[0]), load(paths[1]), tolerance=options.tolerance, names=names)
    except (ValueError, OSError) as error:
        return _refuse(error)
    console.print(found)
    return 1 if found.differs else 0


def _save(graph: Graph, options: argparse.Namespace, console: Console) -> None:
    if isinstance(options.fold, list):
        known = {call.path for call in graph.calls}
        for path in options.fold:
            if path not in known:
                raise ValueError(f"--fold: there is no module {path!r}; outermost are: {_outermost(graph)}")
    if options.svg.suffix != ".svg" or options.svg.is_dir():
        raise ValueError(f"--svg: {options.svg} is not the name of an .svg file")
    options.svg.parent.mkdir(parents=True, exist_ok=True)
    if options.groups is None:
        path = graph.save_svg(options.svg, fold=options.fold)
    else:
        from .engine.batching.group_search import groups

        found = groups(graph)
        console.print(found)
        path = found.save_svg(options.svg, options.groups, fold=options.fold)
    console.print(f"{len(graph):,} tasks, {len(graph.edges):,} edges, drawn in {path}", soft_wrap=True, markup=False)


def _outermost(graph: Graph) -> str:
    names = dict.fromkeys(call.path.partition(".")[0] for call in graph.calls if call.path)
    return ", ".join(names) or "none"


if __name__ == "__main__":
    sys.exit(main())
