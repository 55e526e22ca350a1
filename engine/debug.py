"""`th.debug`: a backward that runs one task at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from torch import Tensor

from ..inspector.graph import Outputs
from .backward import check_choices
from .direct import Stepper
from .needed import Inputs
from .policies import AnyPolicy
from .run import Engine
from .session import NativeSession
from .statistics import Level


@overload
def debug(
    tensors: Outputs,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Inputs | None = None,
    *,
    policy: AnyPolicy = "heap",
    engine: Literal["direct"] = "direct",
    trace: Level | None = "off",
) -> Stepper: ...


@overload
def debug(
    tensors: Outputs,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Inputs | None = None,
    *,
    policy: AnyPolicy = "heap",
    engine: Literal["native"],
    trace: Level | None = "off",
) -> NativeSession: ...


@overload
def debug(
    tensors: Outputs,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Inputs | None = None,
    *,
    policy: AnyPolicy = "heap",
    engine: Engine,
    trace: Level | None = "off",
) -> Stepper | NativeSession: ...


def debug(
    tensors: Outputs,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Inputs | None = None,
    *,
    policy: AnyPolicy = "heap",
    engine: Engine = "direct",
    trace: Level | None = "off",
) -> Stepper | NativeSession:
    """Starts a backward that runs one task at a time. Arguments as for `th.backward`; `trace` may be None.

    With engine="direct" any ready task may run next: see `Stepper` for what the session can do and what it refuses.
    With "native" PyTorch's own engine runs everything, and stops: see `NativeSession`.

    session = th.debug(loss, policy="bfs")
    session.ready           # the ready queue in the order in which it will pop, with keys
    session.step()          # runs the next task; session.step(task) runs any other ready one
    session.run()           # runs the rest; the gradients are where loss.backward() puts them
    """
    check_choices(engine, trace)
    kind = Stepper if engine == "direct" else NativeSession
    return kind(tensors, grad_tensors, retain_graph, create_graph, inputs, policy=policy, trace=trace)
