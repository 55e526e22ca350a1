"""`ts.debug`: a backward that runs one task at a time."""

from __future__ import annotations

from typing import TypeVar

from ...inspector.graph.freed_nodes import first_over
from ...inspector.graph.graph import Outputs
from ...inspector.hips.tape import HipsTape, not_native
from ...inspector.torch_private.saved_variables import FREED
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..execution.backward_arguments import BackwardCall
from ..execution.saved_tensor_errors import backward_begins, explain_spoiled_graph
from ..recording.run import Engine
from ..recording.statistics import Level
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy
from ..session.batching.run_batches import AnyBatch, check_batch
from ..session.direct_session import Stepper
from ..session.native_session import NO_HISTORY, NativeSession
from .backward import check_choices

AnyHistory = bool | int | str
"""Whether there is one, or the bytes that it may take, a number or "2GiB"; "auto"."""


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
    """Starts a backward that runs one task at a time. `trace` may be None.

    With engine="direct" any ready task may run next: see `Stepper` for what the session can do and what it refuses.
    With "native" PyTorch's own engine runs everything, and stops: see `NativeSession`.

    session = ts.debug(loss, policy="bfs")
    session.ready           # the ready queue in the order in which it will pop, with keys
    session.step()          # runs the next task; session.step(task) runs any other ready one
    session.run()           # runs the rest; the gradients are where loss.backward() puts them

    Args:
        call: the outputs where it starts, or a tape; or all arguments of the backward.
        history: whether tasks can be taken back (`Stepper.back`), or how many bytes of gradients may be kept for that
            (a number, or "2GiB"). "auto" is yes in a deck and in a terminal's prompt, else no.
        accumulation: how gradients that meet are summed, and when they are let go.
        batch: "auto" runs products of several tasks as one, in one step, where `ts.find_batches` finds that they can,
            see `Stepper`. A history wants single tasks, and so there is none where it is "auto".
        queues: "one" ready queue for all devices, or one "per device", see `Stepper` and `NativeSession`. None: with
            engine="direct" as PyTorch's engine does, a queue for each device; with "native", for the sake of a total
            order, one.

    Raises:
        NotImplementedError: a history is asked for with engine="native": PyTorch's engine can't take tasks back; or
            another accumulation than its own, or batch=; or a queue per device with what needs one for all.
        RuntimeError: a backward has freed the graph.
    """
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
    """The session, if no backward has run through its graph. Else closes it, and says so before anything runs.

    Raises:
        RuntimeError: PyTorch's sentence, and where the graph has been freed.
    """
    graph, needed = session.graph, session.needed
    over = first_over(node for task_id, node in enumerate(graph.nodes) if needed is None or task_id in needed)
    if over is None:
        backward_begins()
        return session
    session.close()
    where = graph.describe(graph.nodes.index(over))
    error = RuntimeError(f"{FREED} A backward has run through {where}; compute the loss again, then ts.debug(loss)")
    explain_spoiled_graph(error, graph, ())
    raise error
