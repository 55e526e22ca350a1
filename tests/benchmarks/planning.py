"""The cost of planning an order, its growth, and the memory that the planned orders save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log
from statistics import median

from measure import Effort, Row, ratios, repeated, seconds
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.planning.order_cache import forget_orders
from tapescope.engine.planning.policies import find_policy
from tapescope.engine.planning.policy_orders import bound
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.studies.workloads import WORKLOADS, workload
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.engine.graph_shapes import SHAPES

_TASKS = (1_000, 3_000, 10_000, 30_000, 100_000)
_GOALS = {10_000: 1.0, 100_000: 10.0}
_SHAPES: dict[str, tuple[str, Callable[[int], dict[str, int]]]] = {
    "a chain": ("mlp_norm", lambda tasks: {"layers": tasks // 8, "width": 4, "batch": 2}),
    "many branches": ("ensemble", lambda tasks: {"members": tasks // 19, "width": 4, "batch": 2}),
}
_COSTS = {"resnet50": 1.05, "mlp_norm": 1.15, "din": None}


def rows(effort: Effort) -> Iterator[Row]:
    for shape in SHAPES:
        yield _any_shape(shape, effort)
    for shape in _SHAPES:
        yield from _growth(shape, effort)
    for name, goal in _COSTS.items():
        if not (effort.tiny and name == "resnet50"):
            yield _cost_of_auto(name, goal, effort)
    for name in ("linear50", "din") if effort.tiny else WORKLOADS:
        yield _saved_by_auto(name)


def _any_shape(shape: str, effort: Effort) -> Row:
    """Seconds until "auto" has its order, the dry run included, where no plan is kept."""
    graph = ts.graph(SHAPES[shape](100 if effort.tiny else 10_000))

    def plan() -> None:
        forget_orders()
        bound(find_policy("auto"), Problem(graph))

    return Row(f'"auto" planned: {len(graph):,} tasks, {shape}', "s", repeated(plan, min(effort.repetitions, 5)), 1.0)


def _growth(shape: str, effort: Effort) -> Iterator[Row]:
    """Seconds of `ts.plan_order`: a dry run, the portfolio's orders with their simulations, and the lower bound."""
    name, knobs = _SHAPES[shape]
    points: list[tuple[float, float]] = []
    for wanted in (50, 100) if effort.tiny else _TASKS:
        _, make_loss = workload(name).build(**knobs(wanted))
        graph = ts.graph(make_loss())
        times = 1 if wanted > 10_000 else min(effort.repetitions, 3)
        found = repeated(lambda graph=graph: ts.plan_order(graph), times)
        points.append((log(len(graph)), log(median(found))))
        yield Row(f"ts.plan_order: {len(graph):,} tasks, {shape}", "s", found, _GOALS.get(wanted))
        yield Row("    of that the dry run", "s", repeated(lambda graph=graph: dry_run(graph), times))
    said = f"grows with the number of tasks to the power of {_slope(points):.2f}"
    yield Row(f"ts.plan_order: {shape}", "s", outcome=said)


def _slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the line that fits best."""
    x, y = (sum(each) / len(points) for each in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def _cost_of_auto(name: str, goal: float | None, effort: Effort) -> Row:
    """A backward under "auto", with its plan at hand, over a plain one."""
    model, make_loss = workload(name).build(**({"layers": 4} if effort.tiny and name == "mlp_norm" else {}))

    def plain() -> float:
        return seconds(_fresh(model, make_loss).backward)

    def auto() -> float:
        loss = _fresh(model, make_loss)
        with ts.policy("auto"):
            return seconds(loss.backward)

    tasks = len(ts.graph(make_loss()))
    return Row(f'{name}, {tasks:,} tasks: policy "auto" / plain', "×", ratios(auto, plain, effort.repetitions), goal)


def _fresh(model: nn.Module, make_loss: Callable[[], Tensor]) -> Tensor:
    model.zero_grad(set_to_none=True)
    return make_loss()


def _saved_by_auto(name: str) -> Row:
    """The peak under "auto" over that under HEAP, measured; and what was predicted, and what no order is below."""
    _, make_loss = workload(name).build()
    heap, auto = ts.compare(make_loss, ["heap", "auto"], repetitions=1).rows
    bound = ts.plan_order(make_loss()).bound_bytes
    what = (
        f"{name}: peak, auto {size_text(auto.peak_bytes)} (predicted {size_text(auto.dry_run_bytes)}) / "
        f"heap {size_text(heap.peak_bytes)} ({size_text(heap.dry_run_bytes)}); lower bound {size_text(bound)}"
    )
    return Row(what, "×", (auto.peak_bytes / heap.peak_bytes,), 1.0)
