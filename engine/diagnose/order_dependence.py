"""The result of `ts.find_order_dependence`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, Literal

from ...inspector.graph.graph import Graph, unique_name
from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import Source
from ...inspector.text.report import ShownAsFindings
from ...inspector.text.sizes_and_counts import counted, percent_text

How = Literal["rounding", "result", "written", "unsteady"]
Cause = Literal["write", "random", "hook"]

_PERCENT = 0.01


@dataclass(frozen=True, slots=True)
class Departure:
    """A task at which orders start to differ: its inputs are equal bit by bit, and its results are not.

    Attributes:
        task: the task's id.
        how: "rounding": equal gradients are summed in another order. "result": the task returns different results for
            equal gradients. "written": its input differs from the gradients sent to it. "unsteady": it returns
            different results for equal gradients even in the same order.
        orders: the orders in which this happens.
        module, source: the module and the line of the forward that the task belongs to.
        story: the explanation, in sentences.
        advice: how to fix it; "" if no fix is needed.
        writer: the id of another task that modifies this task's input in place; None if none was recorded.
        cause: "write" for a write in place to the task's input, "random" for random numbers that it draws, "hook" for a
            hook that runs there. None if unknown.
    """

    task: int
    how: How
    orders: tuple[str, ...]
    module: str | None
    source: Source | None
    story: str
    advice: str
    writer: int | None = None
    cause: Cause | None = None

    @property
    def is_dependence(self) -> bool:
        """True if more than rounding depends on the order."""
        return self.how in ("result", "written")


@dataclass(frozen=True, slots=True)
class GradientApart:
    """A leaf whose gradient differs in at least one bit under some order.

    Attributes:
        leaf: its name, or its shape if it has no name.
        order: the order with the largest difference from the first order.
        share: the 2-norm of the difference divided by that of the first order's gradient; infinite if one is missing
            or not finite.
        close: whether `torch.testing.assert_close` accepts the two as equal, with its tolerances for the dtype.
    """

    leaf: str
    order: str
    share: float
    close: bool


@dataclass(frozen=True, eq=False, repr=False)
class OrderDependence(ShownAsFindings):
    """The differences between a backward's results in several orders. True if any exceeds rounding, or gradients cannot
    be read: `assert not ts.find_order_dependence(make_loss)`.

    Attributes:
        orders: the orders that ran; the others are compared with the first.
        departures: the tasks at which orders start to differ, those by more than rounding first, in the first order.
        gradients: the leaves whose gradients differ in any bit, the largest difference first.
        leaves: the number of leaves.
        open_pairs: the number of pairs of tasks that may run in either order; None if there are too many to count.
        both_ways: the number of these pairs that ran in both orders.
        graph: the backward's graph without its nodes; None if the loss has no graph.
        unread: the ids of the tasks whose gradients could not be read, and so were not compared.
    """

    orders: tuple[str, ...]
    departures: tuple[Departure, ...]
    gradients: tuple[GradientApart, ...]
    leaves: int
    open_pairs: int | None
    both_ways: int | None
    graph: Graph | None
    unread: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return any(each.is_dependence for each in self.departures) or bool(self.unread)

    @property
    def same_bits(self) -> bool:
        """True if all gradients are equal bit by bit under all orders."""
        return not self.gradients and not self.unread

    @property
    def first(self) -> Departure | None:
        """The first task at which the backward depends on its order by more than rounding."""
        return next((each for each in self.departures if each.is_dependence), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in sentences."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if self.graph is None:
            yield "The loss has no graph, so there is no backward to check."
            return
        first, *others = self.orders
        rounding = [each for each in self.departures if each.how == "rounding"]
        unsteady = [each for each in self.departures if each.how == "unsteady"]
        found = [each for each in self.departures if each.is_dependence]
        if self.unread:
            yield (
                f"The gradients of {len(self.unread)} of {counted(len(self.graph), 'task')} cannot be read, and were "
                "not compared: they may depend on the order."
            )
        if found:
            yield f"The backward depends on the order of its tasks, in {counted(len(found), 'task')}."
        elif unsteady:
            yield "The order cannot be checked, because results differ even between two runs in the same order."
        elif self.same_bits:
            yield f"The backward does not depend on its order: {self._all()} equal bit by bit in all tried orders."
        elif not self.gradients:
            pass
        elif rounding:
            yield "The backward depends on its order only by rounding, in sums of gradients taken in another order."
        else:
            yield "Gradients computed within a task differ (in a reentrant checkpoint, say); the place is not recorded."
        if self.gradients:
            far = self.gradients[0]
            apart = sum(not each.close for each in self.gradients)
            within = "all within" if not apart else f"{apart:,} of them beyond"
            yield (
                f"{len(self.gradients):,} of {counted(self.leaves, 'gradient')} differ from those under {first}, "
                f"{within} torch.testing's tolerance; {far.leaf} differs most, by {_share_text(far.share)} "
                f"under {far.order}."
            )
        if found and rounding:
            yield f"{counted(len(rounding), 'sum')} of gradients also round differently, which is not a fault."
        yield f"It ran under {joined([first, *others], len(self.orders))}."
        if self.open_pairs:
            yield (
                f"Of {counted(self.open_pairs, 'pair')} of tasks that may run in either order, "
                f"{self.both_ways:,} ran in both orders."
            )
        elif self.open_pairs == 0:
            yield "No two tasks of this graph may run in either order."

    def _all(self) -> str:
        return "its gradient is" if self.leaves == 1 else f"all {self.leaves:,} gradients are"

    @cached_property
    def cells(self) -> list[list[str]]:
        """Return the table as rows of text, the headings first. Sums that only round differently share a row."""
        rows = []
        rounding = []
        for each in self.departures:
            assert self.graph is not None
            task = unique_name(self.graph, each.task)
            if each.how == "rounding":
                rounding.append(task)
            else:
                rows.append([task, joined(each.orders), " ".join(part for part in (each.story, each.advice) if part)])
        if rounding:
            under = dict.fromkeys(order for each in self.departures if each.how == "rounding" for order in each.orders)
            said = "equal gradients are summed in another order and round differently; this is not a fault"
            rows.append([joined(rounding), joined(list(under)), said])
        return [["task", "under", "what happens, and what to do"], *rows]

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per departure, for `pandas.DataFrame(found.records())`."""
        return [
            {
                "task": each.task,
                "name": None if self.graph is None else self.graph.tasks[each.task].name,
                "how": each.how,
                "orders": ", ".join(each.orders),
                "module": each.module,
                "source": each.source and each.source.short,
                "story": each.story,
                "advice": each.advice,
                "writer": each.writer,
            }
            for each in self.departures
        ]

    __repr__ = ShownAsFindings.__str__


def _share_text(share: float) -> str:
    if not isfinite(share):
        return "a missing or infinite value"
    return f"{percent_text(share) if share >= _PERCENT else f'{share:.1e}'} of its norm"
