"""`tapescope demo`: runs a workload's backward under several policies and both engines, and compares with PyTorch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from torch import Tensor, nn

from ..engine.api.backward import backward
from ..engine.api.profile import profile
from ..engine.planning.policies import find_policy
from ..engine.planning.simulate import schedule
from ..engine.schedule.dependencies import queue_lengths
from ..engine.schedule.policy import is_dynamic
from ..engine.session.direct_session import Stepper
from ..engine.studies.makespan import makespan
from ..engine.studies.ready_workload import Size, Workload
from ..inspector.capture.build_graph import read_graph
from ..inspector.capture.capture import capture
from ..inspector.graph.graph import Graph
from .json_output import tell

Gradients = dict[str, Tensor]
MakeLoss = Callable[[], Tensor]
FIRST_TASKS = 10
REPEATS = {"small": 3, "full": 1}


@dataclass(frozen=True, slots=True)
class Result:
    """One backward under one policy and engine."""

    policy: str
    engine: str
    order: tuple[int, ...]
    longest_queue: int
    elapsed_ns: int
    gradients: Gradients


def run_demo(workload: Workload, policies: Sequence[str], size: Size, folder: Path, console: Console) -> bool:
    """Print the results, and save the graph's picture and a page that plays the backward in `folder`.

    Returns:
        Whether all gradients and orders are right.
    """
    console.print(f"[bold]{workload.title}[/bold] ({workload.name}, {size})\n[dim]{workload.source}[/dim]")
    model, make_loss = workload.build(size)
    drawn = _graph(model, make_loss)
    parameters = sum(1 for _ in model.parameters())
    console.print(f"{len(drawn):,} tasks, {len(drawn.edges):,} edges, {parameters:,} parameter tensors\n")
    repeats = REPEATS[size]
    _native("heap", model, make_loss)  # the first backward of a process includes one-time set-up
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        elapsed_ns, expected, results = _measure(policies, model, make_loss, len(drawn), repeats, progress)
    console.print(_table(results, drawn, expected, elapsed_ns))
    fastest = f"the fastest of {repeats} interleaved runs" if repeats > 1 else "one run each"
    console.print(f"[dim]time: {fastest}; not reliable on a busy machine[/dim]")
    console.print("\n[dim]the first tasks, in order[/dim]")
    for result in results:
        if result.engine == "direct":
            names = groupby(task.parameter or task.short_name for task in map(drawn.task, result.order))
            runs = ((name, len(list(same))) for name, same in names)
            first = [name if count == 1 else f"{name} ×{count}" for name, count in islice(runs, FIRST_TASKS)]
            line = f"[bold]{result.policy:6}[/bold] {', '.join(first + ['…'] * any(runs))}"
            console.print(line, no_wrap=True, overflow="ellipsis")
    path = drawn.save_svg(folder / f"{workload.name}.svg")
    page = profile(make_loss, model=model).save_html(folder / f"{workload.name}.html")
    devices = _save_devices(workload, policies, drawn, make_loss, folder)
    right = all(_agrees(result, expected) and _in_order(result, drawn) for result in results)
    tell(
        lambda: {
            "workload": workload.name,
            "size": size,
            "tasks": len(drawn),
            "edges": len(drawn.edges),
            "right": right,
            "picture": path,
            "page": page,
            "devices_page": devices,
            "pytorch_ns": elapsed_ns,
            "results": [_json_content(result, drawn, expected) for result in results],
        }
    )
    console.print(f"\nPicture of the graph: {path}", soft_wrap=True, markup=False)
    console.print(f"Page that plays the backward and its memory: {page}", soft_wrap=True, markup=False)
    if devices is not None:
        console.print(f"Page that plays it on simulated devices: {devices}", soft_wrap=True, markup=False)
    return right


def _save_devices(
    workload: Workload, policies: Sequence[str], drawn: Graph, make_loss: MakeLoss, folder: Path
) -> Path | None:
    """Save a page with a ready queue per device for a workload that is meant for several; else return None."""
    named = [each for each in policies if not is_dynamic(find_policy(each))]
    if not workload.device_of or not named:
        return None
    apart = workload.device_of if len(drawn.devices) == 1 else None
    run = backward(make_loss(), trace="off")
    simulated = makespan(drawn, policies=named, durations=run, device_of=apart)
    return simulated.save_html(folder / f"{workload.name}_devices.html")


def _json_content(result: Result, drawn: Graph, expected: Gradients) -> dict[str, object]:
    return {
        "policy": result.policy,
        "engine": result.engine,
        "tasks": len(result.order),
        "longest_queue": result.longest_queue,
        "elapsed_ns": result.elapsed_ns,
        "largest_difference": _largest_difference(result.gradients, expected)
        if result.gradients.keys() == expected.keys()
        else None,
        "in_order": _in_order(result, drawn),
    }


def _graph(model: nn.Module, make_loss: MakeLoss) -> Graph:
    with capture(model, every_call=True):
        loss = make_loss()
    return read_graph(loss, model)


def _gradients(model: nn.Module) -> Gradients:
    """Return the parameters' gradients and set them to None, so that the next backward starts without any."""
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def _pytorch(model: nn.Module, make_loss: MakeLoss) -> tuple[int, Gradients]:
    loss = make_loss()
    start = time.perf_counter_ns()
    torch.autograd.backward(loss)
    return time.perf_counter_ns() - start, _gradients(model)


def _measure(
    policies: Sequence[str], model: nn.Module, make_loss: MakeLoss, tasks: int, repeats: int, progress: Progress
) -> tuple[int, Gradients, list[Result]]:
    """Return PyTorch's time and gradients, and two results per policy: the fastest of `repeats` interleaved runs."""
    bars = {policy: progress.add_task(f"stepping {policy}", total=tasks * repeats) for policy in policies}
    plain: tuple[int, Gradients] = sys.maxsize, {}
    # Only the fastest runs are kept, because the gradients of a large model are gigabytes.
    fastest: dict[tuple[str, str], Result] = {}
    for _ in range(repeats):
        plain = min(plain, _pytorch(model, make_loss), key=itemgetter(0))
        for policy, bar in bars.items():
            for run in (partial(_step, stepped=partial(progress.advance, bar)), _native):
                result = run(policy, model, make_loss)
                key = policy, result.engine
                fastest[key] = min(fastest.get(key, result), result, key=attrgetter("elapsed_ns"))
    return *plain, [*fastest.values()]


def _step(policy: str, model: nn.Module, make_loss: MakeLoss, stepped: Callable[[], None]) -> Result:
    elapsed_ns = 0
    with Stepper(make_loss(), policy=policy) as session:
        while session.current:
            start = time.perf_counter_ns()
            session.step()
            elapsed_ns += time.perf_counter_ns() - start
            stepped()
    longest_queue = max(queue_lengths(session.graph, session.order))
    return Result(policy, "direct", tuple(session.order), longest_queue, elapsed_ns, _gradients(model))


def _native(policy: str, model: nn.Module, make_loss: MakeLoss) -> Result:
    run = backward(make_loss(), policy=policy, engine="native")
    return Result(policy, "native", run.order, run.longest_queue, run.elapsed_ns, _gradients(model))


def _largest_difference(gradients: Gradients, expected: Gradients) -> float:
    return torch.stack([(gradients[name] - expected[name]).abs().max() for name in expected]).max().item()


def _agrees(result: Result, expected: Gradients) -> bool:
    """Return whether the gradients agree up to rounding: each error's norm is below a thousandth of the gradient's."""
    if result.gradients.keys() != expected.keys():
        return False
    return all(
        (gradient - expected[name]).norm() <= 1e-3 * expected[name].norm() + 1e-6
        for name, gradient in result.gradients.items()
    )


def _in_order(result: Result, drawn: Graph) -> bool:
    """Return whether the order is the one that the policy predicts from the graph alone."""
    return list(result.order) == schedule(drawn, result.policy)


def _agreement(result: Result, expected: Gradients) -> str:
    if missing := sorted(expected.keys() ^ result.gradients.keys()):
        return f"[red]missing or unexpected: {', '.join(missing[:3])}[/red]"
    if all(torch.equal(gradient, expected[name]) for name, gradient in result.gradients.items()):
        return "bitwise equal"
    difference = _largest_difference(result.gradients, expected)
    return f"within {difference:.1e}" if _agrees(result, expected) else f"[red]off by {difference:.1e}[/red]"


def _table(results: Sequence[Result], drawn: Graph, expected: Gradients, elapsed_ns: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("policy")
    table.add_column("engine")
    for heading in ("tasks", "longest\nqueue", "time\nms"):
        table.add_column(heading, justify="right")
    table.add_column("gradients vs\nloss.backward()")
    table.add_column("order")
    table.add_row("PyTorch", "", "", "", f"{elapsed_ns / 1e6:.1f}", "", "")
    for result in results:
        order = {"direct": "the policy's (stepped)", "native": "the policy's (pinned)"}[result.engine]
        table.add_row(
            f"[bold]{result.policy}[/bold]" if result.engine == "direct" else "",
            result.engine,
            f"{len(result.order):,}",
            f"{result.longest_queue:,}",
            f"{result.elapsed_ns / 1e6:.1f}",
            _agreement(result, expected),
            order if _in_order(result, drawn) else "[red]not the policy's order[/red]",
        )
    return table
