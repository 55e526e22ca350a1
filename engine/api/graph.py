"""`ts.graph`: the graph below a loss, or that of a model's forward."""

from __future__ import annotations

from typing import Any, overload

from torch import nn

from ...inspector.capture.build_graph import graph as graph_of_loss
from ...inspector.graph.graph import Graph, Outputs, ParameterNames
from ...inspector.hips.tape import HipsTape
from ...inspector.torch_private.compiled import keep_compiler_out


@overload
def graph(outputs: Outputs | HipsTape, model: ParameterNames | None = None) -> Graph: ...
@overload
def graph(outputs: nn.Module, *inputs: Any, **named_inputs: Any) -> Graph: ...
@overload
def graph(outputs: BaseException) -> Graph: ...
def graph(outputs: Any, *inputs: Any, **named_inputs: Any) -> Graph:
    """Return the autograd graph of a loss, of a model's forward, or of a forward that raised.

    `ts.graph(loss)` reads the graph that a backward from the loss would run, and executes nothing.

    `ts.graph(model, *inputs)` calls the model once and returns the graph of its results that require grad. No backward
    runs, and the state that the forward changes (running statistics, random number generators) is restored. The picture
    shows shapes on the edges, and frozen parameters, buffers and inputs as grey pills.

    `ts.graph(error)` returns the graph that such a forward had built when it raised the error. The picture shows the
    failed call and its shapes in red.

    Args:
        outputs: a tensor (the loss), a `GradientEdge`, or a sequence of them; a tape (`ts.hips.tape`); a module; or the
            exception that `ts.graph(model, *inputs)` raised.
        inputs, named_inputs: the arguments of the module's forward. For a loss, the only one is `model`: a module, or a
            mapping of names to tensors, that names the leaves. If the forward was captured (`ts.capture`), the capture
            supplies the names, and also module paths, source lines and operations. A module also names its submodules
            that the forward called directly, if they have parameters.

    Returns:
        The graph. It does not keep the loss alive: after the loss is freed, the graph still has its tasks and edges,
        but no nodes and no saved tensors. A graph read from a temporary, as in `ts.graph(make_loss())`, or from a
        `GradientEdge` keeps its nodes and their saved tensors alive until a backward frees them. The graph of a model's
        forward has no nodes; its `saved` was read before the results were freed.

    Raises:
        RuntimeError: an output has no graph: it doesn't require grad, or was computed under `torch.no_grad()`. A
            model's forward raises its own errors, unchanged but for a note.
        TypeError: an output is neither a tensor nor a `GradientEdge`; or a model returned no tensor.
        ValueError: `outputs` is an exception that no `ts.graph(model, *inputs)` raised.

    Known limitations: `ts.graph(model, *inputs)` keeps the arguments of all operations until it returns, which needs up
    to twice the memory of the forward. Modules before the first one that needs a gradient are not in the graph.
    """
    # Imported here, so that a loss needs none of the names of torch on which a capture depends.
    if isinstance(outputs, nn.Module):
        from .graph_of_forward import graph_of_forward

        return graph_of_forward(outputs, inputs, named_inputs)
    if isinstance(outputs, BaseException):
        from .graph_of_forward import graph_of_error

        return graph_of_error(outputs)
    return graph_of_loss(outputs, *inputs, **named_inputs)


keep_compiler_out(graph)
