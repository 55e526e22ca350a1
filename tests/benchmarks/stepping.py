"""The cost of both engines compared with `loss.backward()`, each on a fresh forward with all gradients None."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from measure import Effort, Row, ratios, seconds
from torch import Tensor

import tapescope as ts
from tapescope.engine.execution.backward_arguments import BackwardCall
from tapescope.engine.planning.policies import POLICIES
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.session.native_engine import Plan, run_native
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.torch_private.nodes import call_node, leaf_of
from tapescope.inspector.torch_private.saved_variables import free_saved, saved_variables

Prepare = Callable[[Tensor], Callable[[], Any]]
"""From a fresh loss to what is measured."""


PINNED = replace(POLICIES["heap"], name="pinned")
"""PyTorch's own order, but pinned: another one would cost or save time of its own."""


def rows(effort: Effort) -> Iterator[Row]:
    model, make_loss = workload("mlp_norm").build(layers=2 if effort.tiny else 500)
    tasks = len(ts.graph(make_loss()))

    def timed(prepare: Prepare) -> Callable[[], float]:
        def once() -> float:
            model.zero_grad(set_to_none=True)
            return seconds(prepare(make_loss()))

        return once

    plain = timed(lambda loss: loss.backward)
    plain_known = timed(known_backward)

    def ratio(what: str, prepare: Prepare, goal: float | None = None, known: bool = False) -> Row:
        """`known`: beside a backward whose graph was walked and is held, too, which slows it down by itself."""
        name = f"{what} / loss.backward(){' while a walked graph is held' * known}, mlp_norm"
        return Row(name, "×", ratios(timed(prepare), plain_known if known else plain, effort.repetitions), goal)

    def beyond_plain(what: str, prepare: Prepare, goal: float) -> Row:
        """Microseconds for each task more than in a plain backward."""
        slower = timed(prepare)
        slower(), plain()
        values = tuple((slower() - plain()) / tasks * 1e6 for _ in range(effort.repetitions))
        return Row(f"{what}: a task beyond loss.backward(), mlp_norm", "µs", values, goal)

    def per_task(what: str, prepare: Prepare) -> Row:
        """Microseconds for each task."""
        taken = timed(prepare)
        taken()
        return Row(f"{what}: a task, mlp_norm", "µs", tuple(taken() / tasks * 1e6 for _ in range(effort.repetitions)))

    yield ratio("direct: ts.debug(loss, trace=None).run()", lambda loss: ts.debug(loss, trace=None).run, 1.5)
    yield ratio("direct: ts.backward()", lambda loss: lambda: ts.backward(loss, engine="direct"))
    yield ratio("direct: of that reading the graph", lambda loss: partial(ts.graph, loss))
    yield ratio("direct: of that the nodes, called from Python", nodes_alone)
    yield ratio("direct: the same, and their saved tensors freed", lambda loss: nodes_alone(loss, frees=True))
    yield ratio("native: ts.backward(), all in all", lambda loss: lambda: ts.backward(loss, policy=PINNED))
    yield ratio("native: of that planning (walk, schedule)", lambda loss: lambda: planned(loss))
    yield ratio("native: of that running, pinned", pinned)
    yield ratio("native: of that running, pinned", pinned, 1.05, known=True)
    yield per_task("native session: making and starting one", started)
    yield beyond_plain("native session, started: run to a breakpoint", run_to_the_last, 30)
    yield beyond_plain("native session, started: a stop before each", step_through, 150)


def nodes_alone(loss: Tensor, frees: bool = False) -> Callable[[], object]:
    """The least that a backward in Python takes: nodes in a known order, and sums. It checks no hook and no error."""
    graph = ts.graph(loss)
    order, nodes = schedule(graph, "heap"), list(graph.nodes)
    shapes = [[meta.shape for meta in task.inputs] for task in graph.tasks]
    edges = [[(edge.output, edge.next_task, edge.input) for edge in each] for each in graph.out_edges]
    leaves = [task.is_leaf for task in graph.tasks]
    buffers: list[list[Any]] = [[None] * len(each) for each in shapes]
    buffers[graph.roots[0].task][graph.roots[0].input] = torch.ones_like(loss)

    def run() -> None:
        with torch.no_grad():
            for task_id in order:
                node, gradients, buffers[task_id] = nodes[task_id], buffers[task_id], []
                if leaves[task_id]:
                    leaf_of(node).grad = gradients[0].detach()
                    continue
                outputs = call_node(node, gradients)
                if frees:
                    free_saved(saved_variables(node))
                for output, next_task, number in edges[task_id]:
                    gradient, buffer = outputs[output], buffers[next_task]
                    if gradient.shape != shapes[next_task][number]:
                        gradient = gradient.sum_to_size(shapes[next_task][number])
                    buffer[number] = gradient if buffer[number] is None else buffer[number] + gradient

    return run


def known_backward(loss: Tensor) -> Callable[[], object]:
    graph = ts.graph(loss)
    return lambda: (loss.backward(), graph)


def planned(loss: Tensor) -> tuple[BackwardCall, Plan]:
    call = BackwardCall(loss)
    return call, Plan.of(call, PINNED)


def pinned(loss: Tensor) -> Callable[[], ts.Run]:
    call, plan = planned(loss)
    return lambda: run_native(call, plan)


def started(loss: Tensor) -> Callable[[], ts.types.NativeSession]:
    """The walk, the plan, the pin, the thread, and two hooks for each task. Closed after the clock has stopped."""
    return lambda: native_session(loss)


def run_to_the_last(loss: Tensor) -> Callable[[], object]:
    session = native_session(loss)
    last = session.graph.tasks[-1]
    return lambda: (session.run_to(last), session.run())


def step_through(loss: Tensor) -> Callable[[], object]:
    session = native_session(loss)

    def steps() -> None:
        while session.current is not None:
            session.step()

    return steps


def native_session(loss: Tensor) -> ts.types.NativeSession:
    """Stopped before its first task."""
    session = ts.debug(loss, engine="native", policy="bfs")
    session.gradients  # noqa: B018 -- starts it
    return session
