"""`ts.debug`: a backward that runs one task at a time."""

from __future__ import annotations

from typing import TypeVar

from ...inspector.graph.freed_nodes import is_freed
from ...inspector.graph.graph import Outputs
from ...inspector.hips.tape import HipsTape, not_native
from ...inspector.torch_private.saved_variables import FREED
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..execution.backward_arguments import BackwardCall
from ..execution.saved_tensor_errors import backward_begins
from ..execution.unsupported import refuse_transforms
from ..recording.run import Engine
from ..recording.statistics import Level
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy
from ..session.batching.batch_argument import AnyBatch, check_batch
from ..session.direct_session import Stepper
from ..session.error_notes.explain_error import explain_error
from ..session.native_session import NO_HISTORY, NativeSession
from .backward import check_choices

AnyHistory = bool | int | str
"""Whether to keep a history, or the limit of its bytes as a number or "2GiB"; or "auto"."""


def debug(
    call: Outputs | HipsTape | BackwardCall,
    *,
    policy: AnyPolicy = "heap",
    engine: Engine = "direct",
    trace: Level | None = "off",
    history: AnyHistory = "auto",
    accumulation: Accumulation = PYTORCHS,
    batch: AnyBatch = None,
    queues: Queues | None = None,
) -> Stepper | NativeSession:
    """Start a backward that runs one task at a time.

    With engine="direct" any ready task may run next; see `Stepper` for the session's abilities and limitations.
    With "native" PyTorch's own engine runs everything, and stops on request; see `NativeSession`.

        session = ts.debug(loss, policy="bfs")
        session.ready           # the ready queue in the order in which it pops, with keys
        session.step()          # run the next task; session.step(task) runs any other ready one
        session.run()           # run the rest; the gradients are where loss.backward() puts them

    Args:
        call: the outputs where it starts, or a tape; or all arguments of the backward.
        policy: as in `ts.backward`.
        engine: "direct" or "native".
        trace: the level of recording, as in `ts.backward`; None records nothing.
        history: whether tasks can be undone (`Stepper.back`), or the number of bytes of gradients that may be kept for
            that, as a number or "2GiB". "auto" is True in a deck and at a terminal's prompt, otherwise False.
        accumulation: how gradients are summed, and when they are freed.
        batch: "auto" runs products of several tasks as one, in one step, where `ts.find_batches` allows it; see
            `Stepper`. A history needs single tasks, so `history="auto"` keeps none then.
        queues: "one" ready queue for all devices, or one "per device"; see `Stepper` and `NativeSession`. None is, with
            engine="direct", a queue for each device, as in PyTorch's engine; with "native" it is one queue, which gives
            a total order.

    Raises:
        NotImplementedError: with engine="native", a history, an accumulation other than PyTorch's, or batch= was
            requested; or a queue per device together with an argument that needs one queue.
        RuntimeError: a backward has freed the graph; or the call is inside a transform of torch.func, or while a CUDA
            graph is captured.
    """
    refuse_transforms("ts.debug")
    check_choices(engine, trace)
    check_batch(batch, engine)
    if engine == "direct":
        history = False if history == "auto" else history
        return unused(
            Stepper(
                call,
                policy=policy,
                trace=trace,
                history=history,
                accumulation=accumulation,
                batch=batch,
                queues=queues,
            )
        )
    call = BackwardCall.of(call)
    if isinstance(call.tensors, HipsTape):
        raise not_native()
    accumulation.check_native()
    if history not in ("auto", False):
        raise NotImplementedError(NO_HISTORY)
    return unused(NativeSession(call, policy=policy, trace=trace, queues="one" if queues is None else queues))


S = TypeVar("S", Stepper, NativeSession)


def unused(session: S) -> S:
    """Return the session if no backward has run through its graph; otherwise close it before anything runs.

    Raises:
        RuntimeError: the graph has been freed; the message is PyTorch's, with the node.
    """
    graph, needed = session.graph, session.needed
    nodes = (node for task_id, node in enumerate(graph.nodes) if needed is None or task_id in needed)
    over = next(filter(is_freed, nodes), None)
    if over is None:
        backward_begins()
        return session
    session.close()
    where = graph.describe(graph.nodes.index(over))
    error = RuntimeError(f"{FREED} A backward has run through {where}; compute the loss again, then ts.debug(loss)")
    explain_error(error, graph, ())
    raise error
