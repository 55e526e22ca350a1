"""A comparison of branches: their orders, their gradients, and their predicted memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.text.report import ShownAsTable
from ...inspector.text.sizes_and_counts import percent_text, size_text
from ...inspector.torch_private.tensors import all_elements
from ...inspector.torch_private.thread_state import unobserved
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..execution.undo_history import HasGrad
from ..memory.dry_run import dry_run
from ..memory.estimates import estimate_sentence
from ..memory.task_memory import Footprints
from ..planning.simulate import schedule, simulate
from .branches import Branch


@dataclass(frozen=True, slots=True)
class LeafDifference:
    """The .grad of one leaf after its task on one branch, compared with the current branch.

    Attributes:
        task: id of the leaf's task.
        name: the leaf's name, or a description of its task.
        norm: its 2-norm; None if the task has not run on the branch, or its gradient was not kept.
        relative: the norm of the difference divided by the norm on the current branch; 0 if they are bitwise equal.
            None if there is nothing to compare, or a gradient cannot be read.
    """

    task: int
    name: str
    norm: float | None
    relative: float | None


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch, compared with the current branch.

    Attributes:
        branch: the branch.
        parts_at: the number of tasks after which the orders differ or one of them ends; None if they are equal.
        leaves: the leaves' gradients, in order of task.
        peak_bytes: predicted peak of a backward in this branch's order, completed by its policy; None if not predicted.
    """

    branch: Branch
    parts_at: int | None
    leaves: tuple[LeafDifference, ...]
    peak_bytes: int | None

    @property
    def different(self) -> list[LeafDifference]:
        """Leaves whose gradients differ, the largest difference first."""
        found = [leaf for leaf in self.leaves if leaf.relative]
        return sorted(found, key=lambda leaf: -math.inf if math.isnan(leaf.relative or 0) else -(leaf.relative or 0))


@dataclass(frozen=True, eq=False)
class BranchComparison(ShownAsTable):
    """A comparison of a session's branches, shown as a table in a notebook.

    Attributes:
        graph: the graph, without its nodes.
        rows: the branches by number.
        note: the reason why memory was not predicted; "" if it was.
        estimates: the reasons why the predicted peaks are estimates, in sentences.
    """

    graph: Graph
    rows: tuple[BranchRow, ...]
    note: str = ""
    estimates: tuple[str, ...] = ()

    words = ("branch", "policy", "ran", "forked", "order", "gradients")

    @property
    def current(self) -> BranchRow:
        """The row of the current branch."""
        return next(row for row in self.rows if row.branch.is_current)

    @property
    def cells(self) -> list[list[str]]:
        """The cells of the table, the headings first."""
        found = [["branch", "policy", "ran", "forked", "edits", "order", "gradients", "predicted peak"]]
        for row in self.rows:
            branch = row.branch
            forked = "" if branch.parent is None else f"from {branch.parent} after {branch.forked_at:,}"
            here = branch.is_current
            found.append(
                [
                    f"{branch.number}{' (current)' if here else ''}",
                    branch.policy,
                    f"{len(branch.order):,}" + (f" (+{branch.ahead:,} undone)" if branch.ahead else ""),
                    forked,
                    str(len(branch.edits) or ""),
                    "" if here else "same" if row.parts_at is None else f"differs after {row.parts_at:,}",
                    "" if here else _gradients(row),
                    "–" if row.peak_bytes is None else size_text(row.peak_bytes),
                ]
            )
        return found

    @property
    def sentences(self) -> list[str]:
        """Sentences that sum up the table, with the largest difference of each branch."""
        found = []
        current = f"that of branch {self.current.branch.number}"
        for row in self.rows:
            for leaf in row.different[:1]:
                whose = f"{row.branch.name.capitalize()}: the gradient of {leaf.name}"
                if leaf.relative is None or not math.isfinite(leaf.relative):
                    found.append(f"{whose} cannot be compared with {current}: one is not finite, or the latter is 0.")
                else:
                    found.append(f"{whose} differs from {current} by {percent_text(leaf.relative)}.")
        if self.note:
            found.append(f"Memory was not predicted: {self.note}")
        elif estimate := estimate_sentence(self.estimates, "The predicted memory"):
            found.append(estimate)
        return found

    def records(self) -> list[dict[str, object]]:
        """Return one row per branch and leaf, for pandas."""
        return [
            {
                "branch": row.branch.number,
                "policy": row.branch.policy,
                "task": leaf.task,
                "leaf": leaf.name,
                "norm": leaf.norm,
                "relative_difference": leaf.relative,
            }
            for row in self.rows
            for leaf in row.leaves
        ]

    def __repr__(self) -> str:
        return f"<BranchComparison of {len(self.rows)} branches>"


def compare_branches(
    graph: Graph,
    leaves: Mapping[int, HasGrad],
    branches: Sequence[Branch],
    needed: Collection[int] | None,
    retain_graph: bool,
    footprints: Footprints | None = None,
    accumulation: Accumulation = PYTORCHS,
) -> BranchComparison:
    """Compare branches with the current one.

    Args:
        graph: the graph, with its nodes.
        leaves: its leaves, by task.
        branches: the branches, one of which is the current one.
        needed: ids of the tasks that run; None for all.
        retain_graph: whether the backward keeps saved tensors.
        footprints: the memory that tasks allocate; if None, a dry run predicts it, as `ts.simulate` does.
        accumulation: how the backward sums gradients, and when it frees them.
    """
    note = ""
    if footprints is None:
        try:
            with _grads_as_before(leaves, branches):
                footprints = dry_run(graph)
        except Exception as error:  # a node's own code may raise anything
            note = str(error).partition("\n")[0]
    current = next(branch for branch in branches if branch.is_current)
    grads = {branch.number: _grads(branch, leaves) for branch in branches}
    rows = []
    estimates: dict[str, None] = {}
    for branch in branches:
        found = [
            _difference(graph, task_id, grads[branch.number].get(task_id), grads[current.number].get(task_id))
            for task_id in leaves
        ]
        peak = None
        if footprints is not None:
            order = schedule(graph, branch.terms[-1][1], needed, branch.order)
            predicted = simulate(
                footprints.graph,
                order,
                footprints,
                retain_graph=retain_graph,
                accumulate=accumulation.accumulate,
                release=accumulation.release,
            )
            peak = predicted.peak_bytes
            estimates.update(dict.fromkeys(predicted.estimates))
        pairs = enumerate(zip(branch.order, current.order, strict=False))
        ends_at = min(len(branch.order), len(current.order))
        parts_at = next((position for position, (one, other) in pairs if one != other), ends_at)
        same = branch.order == current.order
        rows.append(BranchRow(branch, None if same else parts_at, tuple(found), peak))
    return BranchComparison(replace(graph, nodes=()), tuple(rows), note, tuple(estimates))


def _grads(branch: Branch, leaves: Mapping[int, HasGrad]) -> dict[int, Tensor | None]:
    """Return each leaf's .grad after its task on this branch, by task; for shared tasks, the leaf's present .grad."""
    found: dict[int, Tensor | None] = {}
    for position, task_id in enumerate(branch.order):
        if task_id in leaves:
            if position < branch.shared:
                found[task_id] = leaves[task_id].grad
            elif branch.gradients is not None:
                found[task_id] = branch.gradients.get(task_id)
    return found


@contextmanager
def _grads_as_before(leaves: Mapping[int, HasGrad], branches: Sequence[Branch]) -> Iterator[None]:
    """Set the leaves' .grad to None meanwhile, since a prediction is of a backward from the start."""
    ran = next(set(branch.order) for branch in branches if branch.is_current)
    found = [leaf for task_id, leaf in leaves.items() if task_id in ran]
    grads = [leaf.grad for leaf in found]
    try:
        for leaf in found:
            leaf.grad = None
        yield
    finally:
        for leaf, grad in zip(found, grads, strict=True):
            leaf.grad = grad


def _difference(graph: Graph, task_id: int, one: Tensor | None, other: Tensor | None) -> LeafDifference:
    name = graph.tasks[task_id].parameter or graph.describe(task_id)
    if one is None:
        return LeafDifference(task_id, name, None, None)
    with unobserved():
        mine, others = all_elements(one), None if other is None else all_elements(other)
        norm = None if mine is None else _norm(mine)
        if one is other:
            return LeafDifference(task_id, name, norm, 0.0)
        if mine is None or others is None or mine.shape != others.shape:
            return LeafDifference(task_id, name, norm, None)
        if torch.equal(mine, others):
            return LeafDifference(task_id, name, norm, 0.0)
        base = _norm(others)
        apart = _norm(mine - others)
    return LeafDifference(task_id, name, norm, apart / base if base else math.inf if apart else 0.0)


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)))


def _gradients(row: BranchRow) -> str:
    compared = [leaf for leaf in row.leaves if leaf.relative is not None]
    different = row.different
    if not compared:
        return "nothing to compare"
    if not different:
        return f"{len(compared):,} equal"
    largest = different[0].relative
    by = f", by up to {percent_text(largest)}" if largest is not None and math.isfinite(largest) else ""
    return f"{len(different):,} of {len(compared):,} differ{by}"
