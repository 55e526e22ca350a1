"""The arguments of one backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...inspector.capturing.walk import read_graph as graph_of
from ...inspector.graph.graph import Graph, Outputs
from ...inspector.tapes.hips_tape import HipsTape, not_native
from ...inspector.torch_internals.compiled import compiled_autograd_is_on
from ...inspector.torch_internals.engine import torch_backward
from .backward_inputs import Inputs, inputs_tuple, needed_tasks
from .refusals import refuse_transforms
from .roots import as_gradients, as_outputs, check_root_gradients, expect_flags, given_gradients


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """The arguments of one `torch.autograd.backward`, of whose generators each is read once; or of that of a tape.

    `Stepper` and `NativeSession` take one where more is to be said than the loss.

    Args:
        tensors: the outputs where the backward starts, one or several; or a tape (`ts.hips.tape`).
        grad_tensors: by output its gradient, of the output's shape; None where the output is a scalar, or for all.
        retain_graph: whether nodes keep what they saved; None: as `create_graph`.
        create_graph: whether the backward gets a graph of its own, for the second derivative.
        inputs: the tensors whose gradients are wanted; the tasks that no path to them needs do not run. None: all
            leaves.

    Raises:
        TypeError: a flag is none, or what should be several can't be gone through. The rest is PyTorch's to judge.
    """

    tensors: Outputs | HipsTape
    grad_tensors: Any = None
    retain_graph: bool | None = None
    create_graph: bool = False
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        expect_flags(self.retain_graph, self.create_graph)
        if isinstance(self.tensors, HipsTape):
            return
        read = {"tensors": as_outputs(self.tensors), "grad_tensors": as_gradients(self.grad_tensors)}
        if self.inputs is not None:
            read["inputs"] = inputs_tuple(self.inputs)
        for name, value in read.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def of(given: Outputs | HipsTape | BackwardCall) -> BackwardCall:
        """The call itself, or the one with nothing but these outputs."""
        return given if isinstance(given, BackwardCall) else BackwardCall(given)

    @property
    def outputs(self) -> Sequence[Tensor | GradientEdge]:
        """The tensors where the backward starts, of any shape.

        Raises:
            NotImplementedError: it is one of a tape.
        """
        if isinstance(self.tensors, HipsTape):
            raise not_native()
        return as_outputs(self.tensors)

    @property
    def limits(self) -> tuple[Tensor | GradientEdge, ...] | None:
        """The tensors that `inputs=` names, of any shape; None: it was not given."""
        return None if self.inputs is None else inputs_tuple(self.inputs)

    @property
    def keep_graph(self) -> bool:
        """Whether the backward frees nothing of the graph."""
        return self.create_graph if self.retain_graph is None else self.retain_graph

    @property
    def given(self) -> tuple[bool, ...]:
        """Per output, whether its gradient was given."""
        return given_gradients(self.outputs, self.grad_tensors)

    def graph(self) -> Graph:
        """The graph that would run.

        Raises:
            RuntimeError: compiled autograd is on; this is inside a transform of torch.func; or as PyTorch says it, a
                given gradient has another shape, or is missing where the output is no scalar. What can't be told before
                is not looked at.
            NotImplementedError: it is one of a tape.
        """
        if compiled_autograd_is_on():
            raise RuntimeError(
                "compiled autograd replaces the engine whose order tapescope pins; switch it off for this backward"
            )
        refuse_transforms()
        graph = graph_of(self.outputs)
        check_root_gradients(self.outputs, self.grad_tensors)
        return graph

    def needed(self, graph: Graph) -> frozenset[int] | None:
        """The ids of the tasks which `inputs=` leaves; None: all."""
        if self.limits is None:
            return None
        wanted = [each for each in self.limits if not isinstance(each, Tensor) or each.requires_grad]
        if any(not isinstance(each, Tensor | GradientEdge) for each in wanted):
            return frozenset()  # torch is going to refuse it
        return needed_tasks(graph, wanted)

    def run(self) -> None:
        """Runs PyTorch's own backward. Raises what that raises."""
        torch_backward(self.outputs, self.grad_tensors, self.retain_graph, self.create_graph, inputs=self.limits)
