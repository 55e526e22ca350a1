"""`th.backward`: PyTorch's backward in the order of a scheduling policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from torch import Tensor
from torch.autograd.graph import GradientEdge

from ..inspector.graph import Outputs
from ..inspector.walk import graph as graph_of
from .direct import Stepper, cannot
from .native import execute_pinned
from .policies import AnyPolicy, find_policy, policy_name
from .roots import as_outputs, root_gradients
from .run import Engine, Run
from .schedule import schedule


def backward(
    tensors: Outputs,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | GradientEdge | Sequence[GradientEdge] | None = None,
    *,
    policy: AnyPolicy = "heap",
    engine: Engine = "native",
) -> Run:
    """`torch.autograd.backward` in the order of a policy. Same arguments, same gradients, same errors.

    Args:
        tensors, grad_tensors, retain_graph, create_graph, inputs: as in `torch.autograd.backward`.
        policy: a policy's name ("bfs", "dfs", "heap"), a `Policy`, or a callable (ready tasks, state) -> task.
        engine: "native" runs PyTorch's C++ engine with the policy's order pinned to it; all works as in training.
            "direct" calls one node after the other from Python, on the current thread; see `Stepper` for what it
            refuses. It never frees the graph, as if `retain_graph` were True.

    Raises:
        NotImplementedError: the direct engine can't do this faithfully.
        ValueError: unknown policy or engine.
        RuntimeError: a tensor without a graph, and whatever `torch.autograd.backward` raises.
        PolicyError: a policy of the user's own chose a task that was not ready. The native engine has then executed
            nothing.
    """
    if engine not in get_args(Engine):
        raise ValueError(f"there is no engine {engine!r}; known are {', '.join(get_args(Engine))}")
    chosen = find_policy(policy)
    tensors = as_outputs(tensors)
    if engine == "direct":
        if create_graph:
            raise cannot("build a graph of the backward (create_graph=True)")
        if inputs is not None:
            raise cannot("leave out what inputs= makes needless")
        with Stepper(tensors, grad_tensors, policy=policy) as stepper:
            return stepper.run()
    graph = graph_of(tensors)
    root_gradients(tensors, grad_tensors)  # says what is wrong with them
    planned = schedule(graph, chosen)
    order, elapsed_ns = execute_pinned(graph, planned, tensors, grad_tensors, retain_graph, create_graph, inputs)
    return Run(graph, policy_name(chosen), "native", tuple(order), tuple(planned), elapsed_ns)
