"""What `ts.find_order_dependence` has found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, Literal

from ...inspector.graph.graph import Graph, told_apart
from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import Source
from ...inspector.text.report import ShownAsFindings
from ...inspector.text.sizes_and_counts import counted, percent_text

How = Literal["rounding", "result", "written", "unsteady"]
Cause = Literal["write", "random", "hook"]

_PERCENT = 0.01


@dataclass(frozen=True, slots=True)
class Departure:
    """A task with which orders begin to differ: what it goes by is equal to the bit, and what comes of it is not.

    Attributes:
        task: its id.
        how: "rounding": gradients that are equal are summed up in another order. "result": it makes something else of
            equal gradients. "written": what it takes is not what was given to it. "unsteady": it makes something else
            of equal gradients even in the same order.
        orders: the orders under which it does, the first one first.
        module, source: the task's, of the forward.
        story: what happens there, in sentences.
        advice: what to do; "" where there is nothing to be done.
        writer: the id of another task that writes in place into what this one reads; None where none was seen.
        cause: a "write" in place into what the task reads; "random" numbers that it draws; a "hook" that runs there.
            None: not seen.
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
        """Whether more than rounding depends on the order."""
        return self.how in ("result", "written")


@dataclass(frozen=True, slots=True)
class GradientApart:
    """A leaf whose gradient is another one, to the bit, under some order.

    Attributes:
        leaf: its name, or its shape where it has none.
        order: under which it is furthest from that of the first order.
        share: how far, the 2-norm of the difference over that of the first one's; infinite where one is missing or not
            finite.
        close: whether `torch.testing.assert_close` would take the two for equal, by its tolerances for the dtype.
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
        orders: that were run; the first is the one that the others are held against.
        departures: where orders begin to differ, those by more than rounding first, as they come in the first order.
        gradients: the leaves whose gradients differ in any bit, the furthest first.
        leaves: how many leaves there are.
        open_pairs: how many pairs of tasks the graph leaves in either order; None where that is too many to count.
        both_ways: how many of these ran both ways round.
        graph: the backward's graph without its nodes; None where the loss has none.
        unread: the ids of the tasks whose gradients could not be read, and so not be compared.
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
        """Whether all gradients are equal to the bit under all orders."""
        return not self.gradients and not self.unread

    @property
    def first(self) -> Departure | None:
        """Where the backward begins to depend on its order by more than rounding."""
        return next((each for each in self.departures if each.is_dependence), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, in words."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if self.graph is None:
            yield "The loss has no graph: there is no backward whose order could matter."
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
            yield "Whether the backward depends on its order can't be told: it differs in the same order, too."
        elif self.same_bits:
            yield f"The backward does not depend on its order: {self._all()} equal to the bit under all tried."
        elif not self.gradients:
            pass
        elif rounding:
            yield "The backward depends on its order by rounding alone: sums of gradients, taken in another order."
        else:
            yield "Gradients differ that are made inside of a task, as in a reentrant checkpoint; where is not seen."
        if self.gradients:
            far = self.gradients[0]
            apart = sum(not each.close for each in self.gradients)
            within = "all within" if not apart else f"{apart:,} of them beyond"
            yield (
                f"{len(self.gradients):,} of {counted(self.leaves, 'gradient')} differ from those under {first}, "
                f"{within} torch.testing's tolerance; the furthest is that of {far.leaf}, by {_share_text(far.share)} "
                f"under {far.order}."
            )
        if found and rounding:
            yield f"Besides, {counted(len(rounding), 'sum')} of gradients round differently, which is no fault."
        yield f"It ran under {joined([first, *others], len(self.orders))}."
        if self.open_pairs:
            yield (
                f"Of {counted(self.open_pairs, 'pair')} of tasks that the graph leaves in either order, "
                f"{self.both_ways:,} ran both ways round."
            )
        elif self.open_pairs == 0:
            yield "The graph leaves no two tasks in either order."

    def _all(self) -> str:
        return "its gradient is" if self.leaves == 1 else f"all {self.leaves:,} gradients are"

    @cached_property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first. Sums that round share a row."""
        rows = []
        rounding = []
        for each in self.departures:
            assert self.graph is not None
            task = told_apart(self.graph, each.task)
            if each.how == "rounding":
                rounding.append(task)
            else:
                rows.append([task, joined(each.orders), " ".join(part for part in (each.story, each.advice) if part)])
        if rounding:
            under = dict.fromkeys(order for each in self.departures if each.how == "rounding" for order in each.orders)
            said = "equal gradients are added up in another order, and rounded differently: no fault"
            rows.append([joined(rounding), joined(list(under)), said])
        return [["task", "under", "what happens, and what to do"], *rows]

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per departure, for `pandas.DataFrame(found.records())`."""
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
        return "what is not finite or not there"
    return f"{percent_text(share) if share >= _PERCENT else f'{share:.1e}'} of its norm"
