"""`tapescope demo`, `workloads`, `graph`, `view` and `diff`: show workloads, graphs and saved runs."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from .command_arguments import Commands, policies_of, refuse
from .json_output import tell, tell_error

if TYPE_CHECKING:
    from rich.console import Console

    from ..inspector.graph.graph import Fold, Graph


def add_demo(commands: Commands) -> None:
    """Add `tapescope demo`."""
    demo = commands.add_parser(
        "demo",
        help="run a workload's backward under several policies, check it, and draw it",
        examples=(
            "tapescope demo resnet50",
            "tapescope demo lstm_cell --policy bfs heap lpmf",
        ),
    )
    demo.add_argument("workload", nargs="?", default="resnet50", help="one of `tapescope workloads` (resnet50)")
    demo.add_argument("--policy", nargs="+", action="extend", metavar="NAME", help="policies to run (bfs dfs heap)")
    demo.add_argument("--size", choices=("small", "full"), default="small", help="size of the workload (small)")
    demo.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="folder of the picture and page (out)"
    )
    demo.set_defaults(command=_demo)


def add_workloads(commands: Commands) -> None:
    """Add `tapescope workloads`."""
    workloads = commands.add_parser(
        "workloads", help="list the built-in workloads", examples=("tapescope workloads", "tapescope workloads --json")
    )
    workloads.set_defaults(command=_workloads)


def add_graph(commands: Commands) -> None:
    """Add `tapescope graph`."""
    graph = commands.add_parser(
        "graph",
        help="draw the backward graph of your own code, or a model's forward",
        examples=(
            "tapescope graph train.py:make_loss",
            "tapescope graph train.py:model_and_inputs",
            "tapescope graph train.py:make_loss --svg out.svg --fold none",
        ),
    )
    graph.add_argument(
        "target",
        metavar="SCRIPT.py:FUNCTION",
        help="a function without arguments that returns a loss, (loss, model), or (model, inputs) to draw a forward",
    )
    graph.add_argument(
        "--svg", type=Path, default=Path("backward.svg"), metavar="FILE", help="the picture's file (backward.svg)"
    )
    graph.add_argument(
        "--fold",
        type=_fold,
        default="fit",
        help="modules to fold: fit, repeats, none, a depth, or comma-separated paths (fit)",
    )
    graph.add_argument(
        "--groups",
        nargs="?",
        const="backward",
        choices=("backward", "forward"),
        help="outline and print the matrix products that could run together, in the backward or the forward (backward)",
    )
    graph.set_defaults(command=_graph)


def add_diff(commands: Commands) -> None:
    """Add `tapescope diff`."""
    diff = commands.add_parser(
        "diff",
        help="compare two saved runs: order, values and memory",
        examples=("tapescope diff before.tape.json after.tape.json",),
    )
    diff.add_argument("first", type=Path, metavar="A.tape.json", help="a file that run.save() wrote")
    diff.add_argument(
        "second",
        type=Path,
        metavar="B.tape.json",
        help="another file, for example from another commit, dtype or device",
    )
    diff.add_argument(
        "--tolerance", type=float, metavar="SHARE", help="ignore relative differences up to this (depends on dtype)"
    )
    diff.set_defaults(command=_diff)


def add_view(commands: Commands) -> None:
    """Add `tapescope view`."""
    view = commands.add_parser(
        "view",
        help="show a saved run in the browser, as a page with a deck",
        examples=(
            "tapescope view run.tape.json",
            "tapescope view run.tape.json --out run.html --no-open",
            "tapescope view run.tape.json --out run.perfetto.json",
        ),
    )
    view.add_argument("trace", type=Path, metavar="RUN.tape.json", help="a file that run.save() wrote")
    view.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (next to the trace, ending in .html), or a .perfetto.json file for ui.perfetto.dev",
    )
    view.add_argument(
        "--report", metavar="NAME", help="write this report of an installed package to --out (tapescope.reports)"
    )
    view.add_argument("--no-open", action="store_true", help="write the page without opening it")
    view.set_defaults(command=_view)


def _fold(text: str) -> Fold:
    if text == "fit" or text == "repeats" or text == "none":
        return text
    return int(text) if text.isdecimal() else text.split(",")


def _demo(options: argparse.Namespace, console: Console) -> int:
    from ..engine.studies.workloads import workload
    from .demo import run_demo

    try:
        policies = policies_of(options)
        found = workload(options.workload)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        return refuse(error)
    if run_demo(found, policies, options.size, options.out, console):
        return 0
    print("tapescope: gradients or orders differ from PyTorch's; see the table", file=sys.stderr)
    return 1


def _workloads(options: argparse.Namespace, console: Console) -> int:
    from rich.table import Table

    from ..engine.studies.workload_table import WORKLOAD_TABLE

    tell(
        lambda: {
            "workloads": [
                {"name": name, "title": each.title, "source": each.source, "small": each.small, "full": each.full}
                for name, each in WORKLOAD_TABLE.items()
            ]
        }
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, found in WORKLOAD_TABLE.items():
        small, full = (
            " ".join(f"{knob}={value}" for knob, value in knobs.items()) for knobs in (found.small, found.full)
        )
        table.add_row(f"[bold]{name}[/bold]", found.title)
        table.add_row("", f"[dim]{found.source}[/dim]")
        table.add_row("", f"small: {small}")
        table.add_row("", f"full: {full}\n")
    console.print(table)
    return 0


def _graph(options: argparse.Namespace, console: Console) -> int:
    from ..widgets.terminal.user_traceback import users_traceback
    from .user_script import draw_function

    try:
        drawn = draw_function(options.target)
        if drawn.error is not None:
            traceback = users_traceback(drawn.error)
            print(traceback, end="", file=sys.stderr)
        if drawn.graph is not None:
            _save(drawn.graph, options, console)
    except (ValueError, OSError) as error:
        return refuse(error)
    if drawn.error is None:
        return 0
    until = "the picture shows the graph built until then" if drawn.graph is not None else "no graph had been built"
    sentence = f"{options.target} raised {type(drawn.error).__name__}; {until}"
    tell_error(sentence, traceback)
    print(f"tapescope: {sentence}", file=sys.stderr)
    return 1


def _save(graph: Graph, options: argparse.Namespace, console: Console) -> None:
    if isinstance(options.fold, list):
        known = dict.fromkeys(call.path for call in graph.calls)
        for path in options.fold:
            if path not in known:
                outermost = dict.fromkeys(each.partition(".")[0] for each in known if each)
                raise ValueError(
                    f"--fold: unknown module {path!r}; outermost modules: {', '.join(outermost) or 'none'}"
                )
    if options.svg.suffix != ".svg" or options.svg.is_dir():
        raise ValueError(f"--svg must be the name of an .svg file, got {options.svg}")
    if options.groups is not None and (graph.forward or graph.raised):
        raise ValueError("--groups needs the graph of a loss: return the loss, or (loss, model)")
    options.svg.parent.mkdir(parents=True, exist_ok=True)
    if options.groups is None:
        path = graph.save_svg(options.svg, fold=options.fold)
    else:
        from ..engine.session.batching.find_batches import find_batches

        found = find_batches(graph)
        console.print(found)
        path = found.save_svg(options.svg, options.groups, fold=options.fold)
    tell(
        lambda: {
            "picture": path,
            "tasks": [
                {
                    "id": task.id,
                    "name": task.name,
                    "parameter": task.parameter,
                    "module": None if task.call is None else graph.calls[task.call].path,
                    "source": None if task.source is None else task.source.short,
                }
                for task in graph.tasks
            ],
            "edges": [(edge.task, edge.output, edge.next_task, edge.input) for edge in graph.edges],
        }
    )
    if graph.forward is not None or graph.failed is not None:
        console.print(str(graph.summary()), soft_wrap=True, markup=False)
    console.print(f"{len(graph):,} tasks, {len(graph.edges):,} edges; picture: {path}", soft_wrap=True, markup=False)


def _view(options: argparse.Namespace, console: Console) -> int:
    from ..engine.recording.perfetto import ENDINGS
    from ..engine.recording.run_file import load
    from ..widgets.deck.run_page_data import save_run
    from ..widgets.deck.save_deck import is_page_of

    path: Path = options.trace
    out: Path = options.out or path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.json')}.html")
    try:
        if options.report is not None and options.out is None:
            raise ValueError("--report needs --out FILE, the file to write")
        run = load(path)
        # Do not overwrite a file that the user has not named.
        if options.out is None and out.exists() and not is_page_of(out, path.name):
            raise ValueError(f"{out} exists and is not a page of {path.name}; choose another file with --out FILE")
        out.parent.mkdir(parents=True, exist_ok=True)
        if options.report is not None:
            run.report(options.report).render(out)
            tell(lambda: {"page": out})
            console.print(f"Report {options.report}: {out}", soft_wrap=True, markup=False)
            return 0
        if out.name.endswith(ENDINGS):
            saved = run.save_perfetto(out)
            tell(lambda: {"page": saved})
            console.print(f"Trace for ui.perfetto.dev: {saved}", soft_wrap=True, markup=False)
            return 0
        page = save_run(run, out, source=path.name)
    except (ValueError, TypeError, OSError) as error:
        return refuse(error)
    tell(lambda: {"page": page})
    console.print(f"Page that plays the run: {page}", soft_wrap=True, markup=False)
    if not options.no_open:
        webbrowser.open(page.resolve().as_uri())
    return 0


def _diff(options: argparse.Namespace, console: Console) -> int:
    from ..engine.diagnose.diff import diff
    from ..engine.recording.run_file import load

    paths: tuple[Path, Path] = options.first, options.second
    names = paths[0].name, paths[1].name
    if names[0] == names[1]:
        names = str(paths[0]), str(paths[1])
    try:
        found = diff(load(paths[0]), load(paths[1]), tolerance=options.tolerance, names=names)
    except (ValueError, OSError) as error:
        return refuse(error)
    tell(lambda: {"differs": found.differs, "sentences": found.sentences, "rows": found.records()})
    console.print(found)
    return 1 if found.differs else 0
