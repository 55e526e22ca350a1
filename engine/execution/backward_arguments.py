"""The arguments of a backward: its roots, their gradients, `inputs=`, and the tasks that these need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import Module

from ...inspector.capture.build_graph import read_graph as graph_of
from ...inspector.graph.graph import Graph, Outputs
from ...inspector.hips.tape import HipsTape, not_native, refuse_parts
from ...inspector.torch_private.compiled import compiled_autograd_is_on
from ...inspector.torch_private.engine import EngineRun, first_gradients, run_completed, torch_backward
from ...inspector.torch_private.thread_state import without_torch_function
from ...inspector.validation import expect, expect_outputs, expect_truth
from .unsupported import refuse_transforms


def expect_flags(retain_graph: object, create_graph: object) -> None:
    """Raise TypeError for flags that PyTorch's engine cannot interpret as integers."""
    if retain_graph is not None:
        expect_truth(retain_graph, "retain_graph")
    expect_truth(create_graph, "create_graph")


def as_gradients(
    grad_tensors: Tensor | Iterable[Tensor | None] | None,
) -> Tensor | tuple[Tensor | None, ...] | None:
    """Return gradients with each generator read once. PyTorch checks the gradients themselves."""
    if isinstance(grad_tensors, Tensor | None):
        return grad_tensors
    wanted = "a tensor, or for each output a tensor or None"
    if isinstance(grad_tensors, str):
        raise TypeError(f"grad_tensors is a str; expected {wanted}. To choose a policy, pass policy={grad_tensors!r}")
    expect(grad_tensors, Iterable, "grad_tensors", wanted)
    if isinstance(grad_tensors, Module):
        raise TypeError(f"grad_tensors is a module; expected {wanted}")
    return tuple(grad_tensors)


def root_gradients(
    outputs: Sequence[Tensor | GradientEdge], grad_tensors: Tensor | Sequence[Tensor | None] | None
) -> tuple[Tensor | None, ...]:
    """Return one gradient per output: the passed one, or ones for a scalar, by the rules of
    `torch.autograd.backward`."""
    if grad_tensors is None:
        given: list[Tensor | None] = [None] * len(outputs)
    else:
        given = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors)
    if len(given) != len(outputs):
        raise RuntimeError(
            f"got {len(outputs)} tensors and {len(given)} gradients; pass one for each tensor, or none at all"
        )
    try:
        return first_gradients(outputs, given)
    except RuntimeError as error:
        for position, (output, gradient) in enumerate(zip(outputs, given, strict=True)):
            if gradient is None and isinstance(output, Tensor) and output.numel() != 1:
                error.add_note(
                    f"tapescope: output {position} has shape {tuple(output.shape)}; reduce it to a scalar "
                    "(loss.sum() or loss.mean()), or pass its gradient in grad_tensors"
                )
        raise


def check_root_gradients(
    outputs: Sequence[Tensor | GradientEdge], grad_tensors: Tensor | Sequence[Tensor | None] | None
) -> None:
    """Raise the errors of `root_gradients` without creating the ones for scalars, which PyTorch creates later."""
    with without_torch_function():
        scalars = [isinstance(each, Tensor) and each.numel() == 1 and each.is_floating_point() for each in outputs]
    if grad_tensors is not None or not all(scalars):
        root_gradients(outputs, grad_tensors)


Inputs = Tensor | GradientEdge | Sequence[Tensor] | Sequence[GradientEdge] | Sequence[Tensor | GradientEdge]


def expect_inputs(inputs: Sequence[Tensor | GradientEdge]) -> None:
    """Check inputs as `torch.autograd.backward` does, which then makes them retain their gradients.

    Raises:
        RuntimeError: If there is none, or one is not a tensor or does not require grad.
    """
    if not inputs:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    for each in inputs:
        if not isinstance(each, Tensor | GradientEdge):
            raise RuntimeError(f"all inputs have to be Tensors or GradientEdges, but got {type(each).__name__}")
    for each in inputs:
        if isinstance(each, Tensor) and not each.requires_grad:
            error = RuntimeError("can't retain_grad on Tensor that has requires_grad=False")  # PyTorch's own words
            error.add_note(
                f"tapescope: one of inputs, of shape {tuple(each.shape)}, does not require grad, so no gradient can be"
                " accumulated into it; call .requires_grad_() on it before the forward"
            )
            raise error


def needed_tasks(graph: Graph, inputs: Sequence[Tensor | GradientEdge]) -> frozenset[int]:
    """Return the tasks from which a path leads to one of the inputs, including theirs (engine.cpp, init_to_execute)."""
    tasks = {node: task_id for task_id, node in enumerate(graph.nodes)}
    leaves = {leaf: task_id for task_id, leaf in graph.leaves.items()}
    stack: list[int] = []
    for each in inputs:
        if isinstance(each, Tensor) and each.is_leaf:  # get_gradient_edge fails for compressed sparse leaves
            task_id = leaves.get(each)
        else:
            edge = each if isinstance(each, GradientEdge) else get_gradient_edge(each)
            task_id = tasks.get(edge.node)
        if task_id is not None:
            stack.append(task_id)
    needed: set[int] = set()
    while stack:
        task_id = stack.pop()
        if task_id not in needed:
            needed.add(task_id)
            stack.extend(edge.task for edge in graph.in_edges[task_id])
    return frozenset(needed)


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """The arguments of one `torch.autograd.backward`, with each generator read once, or of a tape's backward.

    `Stepper` and `NativeSession` accept one in place of the loss.

    Args:
        tensors: the outputs from which the backward starts, one or several; or a tape (`ts.hips.tape`).
        grad_tensors: the gradient of each output, of the output's shape; None for a scalar output, or for all.
        retain_graph: whether nodes keep their saved tensors; None for the value of `create_graph`.
        create_graph: whether the backward builds a graph, for the second derivative.
        inputs: the tensors whose gradients are computed; tasks that do not lead to them do not run. None for all
            leaves.

    Attributes:
        engine_run: the function that runs the engine, if torch has completed the arguments; see `completed`.

    Raises:
        TypeError: If a flag is not a bool, or a sequence cannot be iterated. PyTorch checks the rest.
    """

    tensors: Outputs | HipsTape
    grad_tensors: Any = None
    retain_graph: bool | None = None
    create_graph: bool = False
    inputs: Inputs | None = None
    # A default instead of the factory would be lost in a subclass without slots.
    engine_run: EngineRun | None = field(default_factory=lambda: None, init=False, repr=False)

    def __post_init__(self) -> None:
        expect_flags(self.retain_graph, self.create_graph)
        if isinstance(self.tensors, HipsTape):
            return
        tensors, inputs = self.tensors, self.inputs
        if not isinstance(tensors, Tensor | GradientEdge):
            refuse_parts(tensors)
            expect_outputs(tensors)
        read: dict[str, Any] = {
            "tensors": (tensors,) if isinstance(tensors, Tensor | GradientEdge) else tuple(tensors),
            "grad_tensors": as_gradients(self.grad_tensors),
        }
        if isinstance(inputs, Tensor | GradientEdge):
            read["inputs"] = (inputs,)
        elif inputs is not None:
            wanted = "a tensor, a GradientEdge, or several of them"
            expect(inputs, Iterable, "inputs", wanted)
            if isinstance(inputs, Module):
                raise TypeError(f"inputs is a module; expected {wanted}, such as its parameters()")
            # a dict: dict(model.named_parameters())
            read["inputs"] = tuple(inputs.values() if isinstance(inputs, Mapping) else inputs)
        for name, value in read.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def completed(
        engine_run: EngineRun,
        tensors: Sequence[Tensor | GradientEdge],
        grad_tensors: Sequence[Tensor | None],
        retain_graph: bool,
        create_graph: bool,
        inputs: Sequence[Any],
    ) -> BackwardCall:
        """Return a call whose arguments torch has checked and completed, as a `Redirect` receives them."""
        call = object.__new__(BackwardCall)
        given = tuple(tensors), tuple(grad_tensors), retain_graph, create_graph, tuple(inputs) or None, engine_run
        for name, value in zip(BackwardCall.__slots__, given, strict=True):
            object.__setattr__(call, name, value)
        return call

    @staticmethod
    def of(given: Outputs | HipsTape | BackwardCall) -> BackwardCall:
        """Return the call itself, or a call with only these outputs."""
        return given if isinstance(given, BackwardCall) else BackwardCall(given)

    @property
    def outputs(self) -> Sequence[Tensor | GradientEdge]:
        """The tensors where the backward starts, of any shape.

        Raises:
            NotImplementedError: If the call is for a tape.
        """
        if isinstance(self.tensors, HipsTape):
            raise not_native()
        assert isinstance(self.tensors, tuple), "converted by __post_init__"
        return self.tensors

    @property
    def limits(self) -> tuple[Tensor | GradientEdge, ...] | None:
        """The tensors of `inputs=`, of any shape; None if it was not passed."""
        assert isinstance(self.inputs, tuple | None), "converted by __post_init__"
        return self.inputs

    @property
    def keep_graph(self) -> bool:
        """True if the backward frees nothing of the graph."""
        return self.create_graph if self.retain_graph is None else self.retain_graph

    @property
    def given(self) -> tuple[bool, ...]:
        """Per output, whether its gradient was passed."""
        if self.grad_tensors is None or isinstance(self.grad_tensors, Tensor):
            return (self.grad_tensors is not None,) * len(self.outputs)
        return tuple(gradient is not None for gradient in self.grad_tensors)

    def graph(self) -> Graph:
        """Return the graph that would run.

        Raises:
            RuntimeError: If compiled autograd is on, or inside a transform of torch.func; with PyTorch's message, if a
                passed gradient has another shape, or is missing for a non-scalar output.
            NotImplementedError: If the call is for a tape.
        """
        if compiled_autograd_is_on():
            raise RuntimeError(
                "compiled autograd replaces the engine whose order tapescope controls; switch it off for this backward"
            )
        refuse_transforms()
        graph = graph_of(self.outputs)
        check_root_gradients(self.outputs, self.grad_tensors)
        return graph

    def needed(self, graph: Graph) -> frozenset[int] | None:
        """Return the ids of the tasks that `inputs=` needs; None for all."""
        if self.limits is None:
            return None
        wanted = [each for each in self.limits if not isinstance(each, Tensor) or each.requires_grad]
        if any(not isinstance(each, Tensor | GradientEdge) for each in wanted):
            return frozenset()  # torch will raise the error
        return needed_tasks(graph, wanted)

    def run(self) -> None:
        """Run PyTorch's own backward, and raise its errors."""
        if self.engine_run is None:
            torch_backward(self.outputs, self.grad_tensors, self.retain_graph, self.create_graph, inputs=self.limits)
        else:
            given = self.outputs, self.grad_tensors, self.keep_graph, self.create_graph, self.limits or ()
            run_completed(self.engine_run, *given)

    def run_with(self, root: GradientEdge, gradient: Tensor) -> None:
        """Do the same with one more root, for a call without `inputs=`."""
        outputs = *self.outputs, root
        if self.engine_run is None:
            gradients = *root_gradients(self.outputs, self.grad_tensors), gradient
            torch_backward(outputs, gradients, self.retain_graph, self.create_graph)
        else:
            gradients = *self.grad_tensors, gradient
            run_completed(self.engine_run, outputs, gradients, self.keep_graph, self.create_graph)
