"""`ts.orders.check_order`: find the precedences that an order breaks, and whether any order can keep them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...inspector.capture.build_graph import read_graph as graph_of
from ...inspector.graph.graph import Graph, Outputs, unique_name
from ...inspector.renderers import text_of
from ...inspector.text.report import findings_rich, findings_text
from ...inspector.text.sizes_and_counts import counted, nth
from ..recording.run import Run
from ..schedule.policy import AnyPolicy, Policy, is_dynamic, policy_name
from .constraints import Constraint, Precedence, as_constraints, constrained, obstacle_to, resolve, running_steps
from .policies import find_policy
from .simulate import schedule

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_SAID = 5  # breaks in sentences
_MOST_ROWS = 40  # breaks in a table


@dataclass(frozen=True, slots=True)
class Break:
    """The first place where an order breaks a precedence.

    Attributes:
        constraint: the precedence.
        first: the id of the next task that should have run before `then`.
        then: the id of the first task that runs too early.
        places: the places of both in the order, from 0.
    """

    constraint: Precedence
    first: int
    then: int
    places: tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class OrderCheck:
    """The result of checking an order against constraints. It is true if the order keeps them all.

    Attributes:
        graph: the graph, without its nodes.
        policy: the name of the policy that gave the order.
        order: the ids of the tasks.
        count: the number of constraints.
        precedences: the constraints as precedences between tasks of this graph.
        broken: the first violation of each broken precedence, in the order in which they occur.
        remedy: a policy that keeps all constraints; None if nothing is broken, or no order can keep them.
        obstacle: the reason why no order can keep them, as a sentence.
    """

    graph: Graph
    policy: str
    order: tuple[int, ...]
    count: int
    precedences: tuple[Precedence, ...]
    broken: tuple[Break, ...]
    remedy: Policy | None
    obstacle: str | None
    _remedy_text: str = ""

    def __bool__(self) -> bool:
        return self.holds

    @property
    def holds(self) -> bool:
        """True if the order keeps all constraints."""
        return not self.broken

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result as sentences."""
        constraints = counted(self.count, "constraint")
        if not self.count:
            return (f"There are no constraints, so the order of {self.policy} keeps them all.",)
        if self.holds:
            which = f"all {constraints}" if self.count > 1 else "the constraint"
            return (f"The order of {self.policy} keeps {which}.",)
        numbers = {each.constraint.number for each in self.broken}
        steps = f", in {counted(len(self.broken), 'step')}" if len(self.broken) > len(numbers) else ""
        of = f"{len(numbers):,} of {constraints}" if self.count > 1 else "the constraint"
        found = [f"The order of {self.policy} breaks {of}{steps}."]
        for each in self.broken[:_MOST_SAID]:
            first, then = unique_name(self.graph, each.first), unique_name(self.graph, each.then)
            first_place, then_place = each.places
            found.append(
                f"C{str(each.constraint)[1:]}: {then} runs {nth(then_place + 1)} of {len(self.order):,},"
                f" before {first}, which runs {nth(first_place + 1)}."
            )
        if len(self.broken) > _MOST_SAID:
            more = len(self.broken) - _MOST_SAID
            found.append(f"{counted(more, 'more step')} {'is' if more == 1 else 'are'} broken later.")
        if self.obstacle is not None:
            found.append(f"No order keeps them: {self.obstacle}.")
        else:
            where = "pass it as policy= to ts.backward, or to ts.policy around a step"
            found.append(f"{self._remedy_text} keeps them: {where}.")
        return tuple(found)

    @property
    def cells(self) -> list[list[str]]:
        """The broken precedences as text cells, headings first; at most 40 rows."""
        describe = self.graph.describe
        rows = [["constraint", "runs too early", "at", "should come first", "at"]]
        for each in self.broken[:_MOST_ROWS]:
            numbers = [nth(place + 1) for place in each.places]
            said = f"{each.constraint.number}: {each.constraint.text}"
            rows.append([said, describe(each.then), numbers[1], describe(each.first), numbers[0]])
        return rows

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per broken precedence, for `pandas.DataFrame(check.records())`."""
        return [
            {
                "constraint": each.constraint.number,
                "text": each.constraint.text,
                "then": each.then,
                "then_place": each.places[1],
                "first": each.first,
                "first_place": each.places[0],
            }
            for each in self.broken
        ]

    def __repr__(self) -> str:
        return findings_text(self.sentences, [[]])

    def __rich__(self) -> RenderableType:
        return findings_rich(self.sentences, [[]])

    def _repr_html_(self) -> str:
        first, *others = self.sentences
        said = [first, *others[-1:]] if self.broken else [first]
        return text_of("findings as HTML", self.cells, said, ("at",))


def check_order(of: Outputs | Graph | Run, constraints: Iterable[Constraint], policy: AnyPolicy = "heap") -> OrderCheck:
    """Check whether an order keeps constraints, and where it first breaks each. Runs nothing.

    Args:
        of: a loss (as for `ts.graph`) or a graph, to check the policy's order; or a run, to check its own order.
        constraints: as in `ts.orders.constrained`. Constraints by tensor do not work for a finished run, because its
            nodes have freed them.
        policy: the policy whose order is checked, and on which the remedy is based.

    Raises:
        ValueError, TypeError: a constraint is malformed, or a place is not in the graph; the policy is unknown, or
            decides while the backward runs; or it is a constrained policy whose constraints cannot be met.
    """
    chosen = find_policy(policy)
    given = as_constraints(constraints)
    if isinstance(of, Run):
        graph, name, order = of.graph, f"this run under {of.policy}", list(of.order)
    else:
        graph = of if isinstance(of, Graph) else graph_of(of)
        if is_dynamic(chosen):
            raise ValueError(f"policy {policy_name(chosen)} decides while the backward runs; check its run instead")
        name, order = policy_name(chosen), schedule(graph, chosen)
    needed = None if len(order) == len(graph) else frozenset(order)
    steps = running_steps(resolve(graph, given), needed)
    place_of = {task_id: place for place, task_id in enumerate(order)}
    broken = []
    for step in steps:
        then_place, then = min((place_of[task_id], task_id) for task_id in step.then)
        late = [(place, task_id) for task_id in step.first if (place := place_of[task_id]) > then_place]
        if late:
            first_place, first = min(late)
            broken.append(Break(step, first, then, (first_place, then_place)))
    broken.sort(key=lambda each: each.places[1])
    remedy = obstacle = None
    if broken:
        obstacle = obstacle_to(graph, steps, needed)
        remedy = constrained(chosen, given) if obstacle is None and not is_dynamic(chosen) else None
    said = f'"{policy}"' if isinstance(policy, str) else "policy"
    return OrderCheck(
        replace(graph, nodes=()),
        name,
        tuple(order),
        len(given),
        tuple(steps),
        tuple(broken),
        remedy,
        obstacle,
        f"ts.orders.constrained({said}, constraints)",
    )
