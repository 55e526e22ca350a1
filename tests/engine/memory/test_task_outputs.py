"""The assumed outputs of stack and cat equal those of the nodes when called."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.memory import task_outputs as parted


def leaf(*shape: int, dtype: torch.dtype = torch.float32, needs: bool = True) -> Tensor:
    return torch.ones(shape, dtype=dtype, requires_grad=needs)


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    "stack": lambda: torch.stack([leaf(3, 4), leaf(3, 4)]).exp(),
    "stack inside": lambda: torch.stack([leaf(3, 4), leaf(3, 4).t().sin().t()], dim=1).exp(),
    "stack at the end": lambda: torch.stack([leaf(3, 4), leaf(3, 4)], dim=-1).exp().transpose(0, 1),
    "stack of numbers": lambda: torch.stack([leaf(), leaf()]).exp(),
    "stack of what broadcasts": lambda: torch.stack([leaf(1, 4).expand(3, 4), leaf(3, 4)]).exp(),
    "stack with a constant": lambda: torch.stack([leaf(3, 4), leaf(3, 4, needs=False)]).exp(),
    "one tensor often": lambda: torch.stack([leaf(3, 4).sin()] * 5).exp(),
    "cat": lambda: torch.cat([leaf(3, 4), leaf(2, 4)]).exp(),
    "cat inside": lambda: torch.cat([leaf(3, 1, 4), leaf(3, 2, 4)], dim=1).exp(),
    "cat at the end": lambda: torch.cat([leaf(3, 4), leaf(3, 5)], dim=-1).exp(),
    "cat of unlike types": lambda: torch.cat([leaf(3), leaf(3, dtype=torch.float64)]).exp(),
    "cat with a constant": lambda: torch.cat([leaf(3, 4), leaf(2, 4, needs=False)]).exp(),
    "cat with an empty vector": lambda: torch.cat([leaf(0), leaf(2, 4)]).exp(),
    "cat of channels last": lambda: torch.cat(
        [leaf(2, 3, 4, 4).contiguous(memory_format=torch.channels_last) for _ in range(2)], dim=1
    ).exp(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_footprints_are_those_of_the_nodes_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ts.graph(PROGRAMS[name]().sum())
    told = ts.orders.dry_run(graph)
    monkeypatch.setattr("tapescope.engine.memory.dry_run.PARTING", ())
    asked = ts.orders.dry_run(graph)
    assert told.tasks == asked.tasks
    assert (told.start, told.limits) == (asked.start, asked.limits)


@pytest.mark.parametrize("name", PROGRAMS)
def test_most_are_told_without_a_call(name: str) -> None:
    graph = ts.graph(PROGRAMS[name]().sum())
    (task,) = (task for task in graph.tasks if task.name in parted.PARTING)
    edges = graph.out_edges[task.id]
    takes = {edge.output: graph.tasks[edge.next_task].inputs[edge.input] for edge in edges}
    gradient = ts.orders.dry_run(graph).tasks[task.id].inputs[0]
    parts = parted.parts_of(graph.nodes[task.id], gradient, task.inputs[0].dtype, takes)
    asked = name in ("cat of unlike types", "cat with a constant", "cat with an empty vector")
    assert (parts is None) == asked


def fan(edges: int) -> Tensor:
    return torch.stack([leaf(2) for _ in range(edges)]).sum()


def one_leaf(edges: int) -> Tensor:
    return torch.stack([leaf(2)] * edges).sum()


def split(edges: int) -> Tensor:
    return torch.cat([part.sin() for part in leaf(2 * edges).split(2)]).sum()


def unbound(edges: int) -> Tensor:
    return torch.stack([*leaf(edges, 2).unbind()]).sum()


def calls(what: Callable[[], object]) -> int:
    """Return the number of functions that it calls, a measure of its cost that needs no clock."""
    profile = cProfile.Profile()
    profile.runcall(what)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    "program",
    [fan, *(pytest.param(each, marks=pytest.mark.slow) for each in (one_leaf, split, unbound))],
    ids=lambda program: program.__name__,
)
def test_what_is_asked_of_a_graph_grows_with_its_edges_and_no_faster(program: Callable[[int], Tensor]) -> None:
    ts.orders.dry_run(ts.graph(program(2)))  # what torch loads the first time

    def work(edges: int) -> list[int]:
        graph = ts.graph(program(edges))
        footprints = ts.orders.dry_run(graph)
        return [
            calls(lambda: ts.orders.dry_run(graph)),
            *(calls(partial(ts.simulate, graph, policy, footprints)) for policy in ("heap", "bfs", "lpmf")),
            calls(lambda: ts.plan_order(graph, ["postorder", "liu"], footprints=footprints)),
        ]

    work_of_few, work_of_many = work(400), work(1600)
    assert all(many < 6 * few for few, many in zip(work_of_few, work_of_many, strict=True))
    assert work_of_many[0] < 1000 * 1600  # a fake tensor made by an operation costs as many
