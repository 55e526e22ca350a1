"""Runs the nodes of a HIPS autograd tape as autograd's own backward does (core.py, backward_pass)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ....inspector.graph.graph import Task
from ....inspector.hips.tape import HipsTape
from ....inspector.hips.tape_nodes import metas_of, places, vspace
from ....inspector.validation import a_kind
from ...execution.accumulation_rule import Accumulate
from ...execution.backward_arguments import BackwardCall
from ...execution.node_runner import Measuring, OnEnd, Runner
from .array_memory import ArrayWatch
from .gradient_sums import HIPS_BUFFERS, HipsBuffer, HipsListBuffer, carried, carry, combined, flat, value_of


class HipsRunner(Runner):
    """Runs one node of a tape at a time by calling its vjp.

    Under "dfs" tasks run in autograd's own order (util.py, toposort), and gradients are bitwise equal. Sparse gradients
    of indexing are summed as autograd does it, and are shown as the array they would add, which is computed only if a
    trace or watchpoint reads it. Nodes keep their saved values for another backward, as autograd's own do.

    Known limitations: the gradients of a primitive's arguments are all computed before the first is added; autograd
    computes those of more than two one by one. Undo does not restore numpy's random numbers.

    Args:
        tape: the tape.
        gradient: the gradient of the function's value.
        memory: measures the memory.
    """

    keep_graph = True
    frees = False

    def __init__(self, tape: HipsTape, gradient: Any, memory: ArrayWatch | None = None) -> None:
        self.graph = tape.graph
        self.inside = _without_grad
        self._tape = tape
        self._leaf = HipsLeaf(tape)
        self.memory = self._watch = memory
        self.roots = [*carried(gradient, tape.nodes[tape.end.id].space, [0], is_read=True)]

    @classmethod
    def of(cls, call: BackwardCall, tape: HipsTape, measuring: Measuring | None = None) -> Self:
        """Return the runner of a tape. A gradient may also be an array; `measuring` must return an `ArrayWatch`.

        Raises:
            NotImplementedError: an argument of `torch.autograd.backward` that does not apply to a tape.
            RuntimeError: the function's value is not one real number, and no gradient of it is passed.
            ValueError: the gradient has another shape.
            TypeError: the gradient is not an array, a scalar or a tensor.
        """
        if call.retain_graph is False:
            raise NotImplementedError(
                "retain_graph=False: HIPS autograd's nodes keep their saved values as long as the tape; delete the "
                "tape instead"
            )
        if call.create_graph:
            raise NotImplementedError(
                "create_graph=True: HIPS autograd records a backward only inside a function that "
                f"is taped: ts.hips.tape(lambda x: ... autograd.grad({tape.function})(x) ..., x)"
            )
        if call.inputs is not None:
            raise NotImplementedError(
                "inputs=: choose the arguments to differentiate when the tape is created: "
                "ts.hips.tape(fun, *args, argnum=)"
            )
        watch = None if measuring is None else measuring(tape.graph, (), (), True, False)
        assert watch is None or isinstance(watch, ArrayWatch)
        return cls(tape, _first_gradient(tape, call.grad_tensors), watch)

    def buffer(self, task_id: int, accumulate: Accumulate) -> HipsBuffer | HipsListBuffer:
        buffer = HIPS_BUFFERS[accumulate](self._tape.nodes[task_id].space, len(self.graph.tasks[task_id].inputs))
        if self._watch is not None:
            self._watch.waits(task_id, buffer)
        return buffer

    def run(
        self, task: Task, gradients: list[Tensor | None], hooks: bool, on_end: OnEnd | None = None
    ) -> list[Tensor | None]:
        node = self._tape.nodes[task.id]
        value = combined(node.space, gradients)
        if self._watch is not None:
            self._watch.start(task.id, gradients)
        if self.on_outputs is not None and task.is_leaf:
            self.on_outputs(task.id, gradients, (), None)
        outputs: list[Tensor | None] = []
        if task.is_leaf:
            self._tape.gradient = value
        else:
            read = on_end is not None or self.on_outputs is not None
            found = list(node.vjp(value))
            if len(found) != len(node.parents):
                expected = f"{len(node.parents)} arguments" if len(node.parents) > 1 else "one argument"
                raise ValueError(f"the vjp of {task.name} returned {len(found)} gradients for {expected}")
            for parent, gradient in zip(node.parents, found, strict=True):
                outputs += carried(gradient, parent.space, places(node, parent), read)
            del found
        if self._watch is not None:
            self._watch.end(task.id, outputs)
        if on_end is not None:
            on_end(outputs)
        if self.on_outputs is not None and not task.is_leaf:
            self.on_outputs(task.id, gradients, outputs, outputs)
        gradients.reverse()  # list.clear() frees from the end, so the first gradient is freed first
        gradients.clear()
        return outputs

    def free(self, task: Task) -> None:
        """Do nothing: nodes keep their saved values."""

    def leaf(self, task_id: int) -> HipsLeaf:
        return self._leaf


def _without_grad(body: Callable[[], None], order: Callable[[], Sequence[int]]) -> None:
    with torch.no_grad():  # sums of carried tensors must not build a graph
        body()


class HipsLeaf:
    """The function's argument as the engine sees leaves: its .grad is the tape's gradient, carried by a tensor."""

    def __init__(self, tape: HipsTape) -> None:
        self._tape = tape
        self._carrier: Tensor | None = None

    @property
    def grad(self) -> Tensor | None:
        """The tensor on the array; for a container, all of its elements in one vector."""
        gradient = self._tape.gradient
        if gradient is None:
            return None
        if self._carrier is None or value_of(self._carrier) is not gradient:
            self._carrier = carry(gradient, flat(self._tape.nodes[-1].space, gradient))
        return self._carrier

    @grad.setter
    def grad(self, grad: Tensor | None) -> None:
        self._tape.gradient = None if grad is None else value_of(grad)
        self._carrier = grad


def _first_gradient(tape: HipsTape, given: Any) -> Any:
    """Return the gradient of the function's value: ones for a single number, as in autograd.grad."""
    space = tape.nodes[tape.end.id].space
    (meta,) = metas_of(space)
    if isinstance(given, list | tuple) and len(given) == 1:
        (given,) = given
    if given is None:
        if space.size != 1:
            kind = "complex" if space.iscomplex else f"an array of shape {tuple(space.shape)}"
            raise RuntimeError(
                f"the value of {tape.function} is {kind}, and a backward starts from one real number: sum it, or pass "
                "its gradient as grad_tensors=. For a Jacobian, run one backward per row"
            )
        return space.ones()
    value = given.detach().numpy() if isinstance(given, Tensor) else given
    if not isinstance(value, np.ndarray | np.generic | float | complex):
        raise TypeError(f"grad_tensors for a tape must be an array, a scalar or a tensor, got {a_kind(given)}")
    if vspace(value).shape != space.shape:
        raise ValueError(
            f"grad_tensors must have the shape of the value of {tape.function}, {tuple(meta.shape or ())}, got "
            f"{np.shape(value)}"
        )
    return value
