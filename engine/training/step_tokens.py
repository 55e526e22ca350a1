"""Which steps' graphs are alive: a token for each step hangs on nodes of its graphs, and dies with the last of them."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from functools import partial
from weakref import ref

from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.marks import nodes_of
from ...inspector.torch_internals.modes import function_mode_is_on, unobserved
from ...inspector.torch_internals.nodes import notes_on
from ...inspector.torch_internals.sequence_numbers import UNNUMBERED, number_of, sequence_nr

_numbers = itertools.count()


class _Token:
    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int | None) -> None:
        self.step = step


class StepTokens:
    """Marks what a loop makes by the step in which it is made; no node lives longer for it.

    A node is of the step in which its sequence number was given, by the thread that made this. Other threads have
    numbers of their own, so whether it is of this loop a token tells, on it or on another node of its graph.
    """

    def __init__(self) -> None:
        self._key = f"tapescope step {next(_numbers)}"
        self._token = _Token(None)
        self._alive: dict[int, ref[_Token]] = {}
        self._starts: list[int] = []

    def begin(self) -> None:
        """What is marked from here on is of another step; they are counted from 0."""
        step = len(self._starts)
        self._token = _Token(step)
        self._alive[step] = ref(self._token, partial(_forget, self._alive, step))
        self._starts.append(sequence_nr())

    def end(self) -> None:
        """What is marked from here on is of no step."""
        self._token = _Token(None)

    def alive(self) -> list[int]:
        """The steps of which a graph is alive, earliest first. The one under way is among them."""
        return list(self._alive)

    def mark(self, result: object) -> None:
        """Marks the nodes that made these tensors."""
        if type(result) is Tensor and not function_mode_is_on():
            node = result.grad_fn
            if node is not None:
                notes_on(node).setdefault(self._key, self._token)
        elif result is not None:
            with unobserved():
                for node in nodes_of(result):
                    notes_on(node).setdefault(self._key, self._token)

    def step_of(self, node: Node) -> int | None:
        """In which step the node was made; None: before the first one, or it is a leaf's."""
        number = number_of(node)
        step = -1 if number == UNNUMBERED else bisect_right(self._starts, number) - 1
        return None if step < 0 else step

    def marked_in(self, node: Node) -> int | None:
        """The step whose token hangs on it."""
        token: _Token | None = notes_on(node).get(self._key)
        return None if token is None else token.step


def _forget(alive: dict[int, ref[_Token]], step: int, token: ref[_Token]) -> None:
    alive.pop(step, None)
