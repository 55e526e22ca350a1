"""The modules of a loop as columns of a table, each with the parameters that are its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from weakref import ReferenceType, ref

from torch import Tensor
from torch.autograd.graph import Node
from torch.optim import Optimizer

from ...inspector.torch_internals.optimizer_steps import parameters_of
from ...inspector.torch_internals.sequence_numbers import UNNUMBERED, number_of
from .names import WatchedModels


class ModuleColumns:
    """A column for each module that has parameters of its own, and one for what each optimizer holds besides.

    Attributes:
        names: of the columns: the module's path; of a parameter of the outermost module its name.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._columns: dict[int, tuple[ReferenceType[Tensor], int]] = {}  # by the parameter's id
        self._order: dict[int, int] = {}  # by column
        self._sorted: list[int] = []

    def meet(self, models: WatchedModels, optimizers: Iterable[Optimizer]) -> None:
        """Learns of parameters that were not there before; forgets those that are there no more."""
        self._columns = {key: known for key, known in self._columns.items() if known[0]() is not None}
        for name, parameter in models.parameters():
            if id(parameter) not in self._columns:
                self._add(name.rpartition(".")[0] or name, parameter)
        for optimizer in optimizers:
            for each in parameters_of(optimizer):
                if id(each) not in self._columns:
                    self._add(f"others of {type(optimizer).__name__}", each)

    def _add(self, name: str, parameter: Tensor) -> None:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        self._columns[id(parameter)] = ref(parameter), self._numbers[name]

    def of(self, parameters: Sequence[Tensor]) -> list[int]:
        """The column of each; all have been met."""
        return [self._columns[id(each)][1] for each in parameters]

    def knows(self, parameters: Iterable[Tensor]) -> bool:
        return all(id(each) in self._columns for each in parameters)

    @property
    def known(self) -> Collection[tuple[ReferenceType[Tensor], int]]:
        """All parameters that were met, with their columns."""
        return self._columns.values()

    def learn_order(self, roots: Iterable[Tensor]) -> None:
        """Sees from a graph when in its backward each column's gradient is complete: where its last user runs."""
        for column, number in _last_users(roots, {key: column for key, (_, column) in self._columns.items()}).items():
            self._order.setdefault(column, number)
        self._sorted = []

    @property
    def in_backward_order(self) -> list[int]:
        """The columns as the backward completes them, first ones first; those it was not seen for as the forward has
        them, from its end."""
        if len(self._sorted) < len(self.names):
            known = sorted(self._order, key=lambda column: (-self._order[column], -column))
            self._sorted = known + [each for each in reversed(range(len(self.names))) if each not in self._order]
        return self._sorted


def _last_users(roots: Iterable[Tensor], columns: dict[int, int]) -> dict[int, int]:
    """By column the least sequence number of a node that hands a gradient to a parameter of it."""
    found: dict[int, int] = {}
    stack: list[Node] = [each.grad_fn for each in roots if each.grad_fn is not None]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        number = number_of(node)
        for following, _ in node.next_functions:
            if following is None:
                continue
            variable = getattr(following, "variable", None)
            if variable is not None and number_of(following) == UNNUMBERED:
                column = columns.get(id(variable))
                if column is not None:
                    found[column] = min(number, found.get(column, number))
            elif following not in seen:
                seen.add(following)
                stack.append(following)
    return found
