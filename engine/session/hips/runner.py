"""The nodes of a HIPS autograd tape, run as autograd's own backward runs them (core.py, backward_pass)."""

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
from .gradient_sums import HIPS_BUFFERS, HipsBuffer, HipsListBuffer, carried, carry, flat, value_of, whole


class HipsRunner(Runner):
    """Calls the vjp of one node at a time.

    Under "dfs" tasks run in autograd's own order (util.py, toposort), and gradients are equal bit for bit. What an
    index gives back is summed as autograd does it, and is shown as the array which it would add; that is only computed
    where a trace or a watchpoint reads it. Nodes keep what they need for another backward, as autograd's own do.

    Known limitations: the gradients of a primitive's arguments are all there before the first is added, where autograd
    computes those of more than two one by one; numpy's random numbers are not put back with a task that is taken back.

    Args:
        tape: the tape.
        gradient: that of the function's value.
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
        """The nodes of a tape. A gradient may be an array, too; what measures is an
        `ArrayWatch`.

        Raises:
            NotImplementedError: an argument of `torch.autograd.backward` which means nothing here.
            RuntimeError: the function's value is not one real number, and no gradient of it is given.
            ValueError, TypeError: the gradient is of another shape, or none.
        """
        if call.retain_graph is False:
            raise NotImplementedError(
                "retain_graph=False: the nodes of HIPS autograd's keep what they need as long as there is the tape; "
                "let the tape go instead"
            )
        if call.create_graph:
            raise NotImplementedError(
                "create_graph=True: a backward of HIPS autograd's gets a tape of its own only inside a function that "
                f"is taped: ts.hips.tape(lambda x: ... autograd.grad({tape.function})(x) ..., x)"
            )
        if call.inputs is not None:
            raise NotImplementedError(
                "inputs=: which arguments get gradients is said when the tape is made: "
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
        value = whole(node.space, gradients)
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
                raise ValueError(f"the vjp of {task.name} gave {len(found)} gradients for {expected}")
            for parent, gradient in zip(node.parents, found, strict=True):
                outputs += carried(gradient, parent.space, places(node, parent), read)
            del found
        if self._watch is not None:
            self._watch.end(task.id, outputs)
        if on_end is not None:
            on_end(outputs)
        if self.on_outputs is not None and not task.is_leaf:
            self.on_outputs(task.id, gradients, outputs, outputs)
        gradients.reverse()  # the first goes first
        gradients.clear()
        return outputs

    def free(self, task: Task) -> None:
        """Nodes keep what they saved."""

    def leaf(self, task_id: int) -> HipsLeaf:
        return self._leaf


def _without_grad(body: Callable[[], None], order: Callable[[], Sequence[int]]) -> None:
    with torch.no_grad():  # gradients of gradients on the way are not needed
        body()


class HipsLeaf:
    """The function's argument as the engine knows leaves: its .grad is the tape's gradient, carried by a tensor."""

    def __init__(self, tape: HipsTape) -> None:
        self._tape = tape
        self._carrier: Tensor | None = None

    @property
    def grad(self) -> Tensor | None:
        """The tensor on the array; of a container all of its elements in a row."""
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
    """That of the function's value: ones where it is one number, as autograd.grad has it."""
    space = tape.nodes[tape.end.id].space
    (meta,) = metas_of(space)
    if isinstance(given, list | tuple) and len(given) == 1:
        (given,) = given
    if given is None:
        if space.size != 1:
            what = "complex" if space.iscomplex else f"an array of shape {tuple(space.shape)}"
            raise RuntimeError(
                f"the value of {tape.function} is {what}, and a backward starts from one real number: sum it, or give "
                "grad_tensors=, the gradient of the value. A Jacobian is a backward for each of its rows"
            )
        return space.ones()
    value = given.detach().numpy() if isinstance(given, Tensor) else given
    if not isinstance(value, np.ndarray | np.generic | float | complex):
        raise TypeError(f"grad_tensors for a tape is an array, a scalar or a tensor, not {a_kind(given)}")
    if vspace(value).shape != space.shape:
        raise ValueError(
            f"the value of {tape.function} has shape {tuple(meta.shape or ())}; the gradient in grad_tensors has "
            f"{np.shape(value)}"
        )
    return value
