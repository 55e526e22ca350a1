"""Marks on the nodes of a loop by the step in which they are created, and the tensors that are alive."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import compress
from weakref import ref

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ....inspector.garbage_collector import all_objects
from ....inspector.graph.node_metadata import nodes_of
from ....inspector.torch_private.nodes import notes_on
from ....inspector.torch_private.sequence_numbers import UNNUMBERED, number_of, sequence_nr
from ....inspector.torch_private.tensors import node_of
from ....inspector.torch_private.thread_state import unobserved

_numbers = itertools.count()


class _Token:
    """The mark of one step. `is_late`: put on nodes that were alive after the step and that no module returned."""

    __slots__ = ("__weakref__", "is_late", "step")

    def __init__(self, step: int | None, is_late: bool = False) -> None:
        self.step = step
        self.is_late = is_late


class StepTokens:
    """Marks a loop's nodes with the step in which they are created, without keeping any node alive.

    A node belongs to the step in which the loop's thread assigned its sequence number. Sequence numbers are counted per
    thread (node.h), so a token on the node, or on another node of its graph, tells whether it belongs to this loop.

    Attributes:
        key: the key of a token in a node's metadata.
        token: the current step's token.
    """

    def __init__(self) -> None:
        self.key = f"tapescope step {next(_numbers)}"
        self.token = _Token(None)
        self._alive: dict[int, ref[_Token]] = {}
        self._late: dict[int, ref[_Token]] = {}
        self._starts: list[int] = []

    def begin(self) -> None:
        """Start the next step, counted from 0. Nodes marked from now on belong to it."""
        step = len(self._starts)
        self.token = _Token(step)
        self._alive[step] = ref(self.token, partial(_forget, self._alive, step))
        self._starts.append(sequence_nr())

    def end(self) -> None:
        """End the current step. Nodes marked from now on belong to no step."""
        self.token = _Token(None)

    def alive(self) -> list[int]:
        """Return the steps with a graph that is alive, earliest first, including the current step."""
        return sorted({*self._alive, *self._late})

    def mark(self, result: object) -> None:
        """Mark the nodes that created these tensors."""
        for node in nodes_of(result):
            notes_on(node).setdefault(self.key, self.token)

    def mark_alive(self, tensors: Iterable[Tensor]) -> None:
        """Mark the nodes of those tensors, all that are alive, that were created in the loop and have no mark.

        An average of weights is computed outside of modules, and no backward runs through it, so `mark` never sees it.
        """
        token = _Token(self.token.step, is_late=True)
        if token.step is None:
            return
        self._late[token.step] = ref(token, partial(_forget, self._late, token.step))
        for each in tensors:
            node = node_of(each)
            if node is not None and self.step_of(node) is not None:
                notes_on(node).setdefault(self.key, token)

    def step_of(self, node: Node) -> int | None:
        """Return the step in which a node was created; None before the first step, or for a leaf's node."""
        number = number_of(node)
        step = -1 if number == UNNUMBERED else bisect_right(self._starts, number) - 1
        return None if step < 0 else step

    def marked_in(self, node: Node) -> int | None:
        """Return the step of a node's token."""
        token: _Token | None = notes_on(node).get(self.key)
        return None if token is None else token.step

    def is_marked_late(self, node: Node) -> bool:
        """Return whether `mark_alive` put the node's token there."""
        token: _Token | None = notes_on(node).get(self.key)
        return token is not None and token.is_late


def _forget(alive: dict[int, ref[_Token]], step: int, token: ref[_Token]) -> None:
    alive.pop(step, None)


class AliveObjects:
    """The tensors and optimizers that Python's garbage collector tracks, found once for all observers of a step.

    Listing the objects of a process takes 30 to 100 ms, longer than many a step.
    """

    def __init__(self) -> None:
        self._step: int | None = None
        self._tensors: list[ref[Tensor]] = []
        self._optimizers: list[ref[Optimizer]] = []

    def tensors(self, step: int) -> Iterator[Tensor]:
        """Yield the tensors that were alive at the first call in this step, without the lazy ones."""
        self._look(step)
        return (each for reference in self._tensors if (each := reference()) is not None)

    def optimizers(self) -> list[Optimizer]:
        """Return the optimizers that were alive when tensors were listed last."""
        return [each for reference in self._optimizers if (each := reference()) is not None]

    def clear(self) -> None:
        """Drop the references to tensors: `torch.utils.swap_tensors` refuses tensors that have weak ones."""
        self._step = None
        self._tensors.clear()

    def _look(self, step: int) -> None:
        if step == self._step:
            return
        kinds: list[type] = [Tensor, Optimizer]
        for each in kinds:
            kinds += type.__subclasses__(each)
        with unobserved(), all_objects() as objects:
            # A filter in C: of some 300,000 objects a thousand are tensors.
            found = list(compress(objects, map(set(kinds).__contains__, map(type, objects))))
            self._tensors = [ref(each) for each in found if isinstance(each, Tensor) and not is_lazy(each)]
            self._optimizers = [
                ref(each) for each in found if isinstance(each, Optimizer) and "param_groups" in vars(each)
            ]
            found.clear()
        self._step = step
