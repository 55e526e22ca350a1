"""`ts.backward`: PyTorch's backward in the order of a scheduling policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, get_args

from torch import Tensor

from ...inspector.graph.graph import Outputs
from ...inspector.hips.tape import HipsTape, not_native
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.validation import expect_choice, expect_truth
from ..execution.accumulation_rule import Accumulate, Accumulation, Release
from ..execution.backward_arguments import BackwardCall, Inputs
from ..planning.policies import find_policy
from ..recording.run import Engine, Run
from ..recording.statistics import Level
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy
from ..session.batching.run_batches import AnyBatch, check_batch
from ..session.direct_session import Stepper, run_measured
from ..session.native_engine import Plan, run_native
from ..session.native_fast_path import run_unread

if TYPE_CHECKING:
    from ..session.hips.array_memory import TapedForward


def backward(
    tensors: Outputs | HipsTape,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Inputs | None = None,
    *,
    policy: AnyPolicy = "heap",
    engine: Engine | None = None,
    trace: Level | None = None,
    queues: Queues = "one",
    memory: bool = False,
    accumulate: Accumulate = "inplace",
    release: Release = "eager",
    batch: AnyBatch = None,
) -> Run:
    """`torch.autograd.backward` in the order of a policy. Same arguments, same gradients, same errors.

    Args:
        tensors, grad_tensors, retain_graph, create_graph, inputs: as in `torch.autograd.backward`. Or a tape
            (`ts.hips.tape`), whose gradient is then in `tape.gradient`; "dfs" is autograd's own order.
        policy: a policy's name ("bfs", "dfs", "heap"), a `Policy`, or a callable (ready tasks, state) -> task.
        engine: "native" runs PyTorch's C++ engine with the policy's order pinned to it; all works as in training.
            "direct" calls one node after the other from Python, on the current thread; see `Stepper` for what it
            refuses. None: "native", and of a tape "direct", which alone can run it.
        trace: what `Run.trace` records of each task: "off" its times, queue and shapes, "cheap" and "full" statistics
            of its gradients, too. None, the default, records nothing and hooks nothing into the graph.
        queues: where the graph is on accelerators, "one" queue for all devices gives the policy's total order; "per
            device" leaves each device the thread which PyTorch has for it, so that they overlap, and the policy orders
            each device's own tasks; with engine="direct" one task at a time, in the order in which the devices would
            start them, see `Stepper`.
        memory: measures what each task allocates and frees: `Run.timeline`, `Run.peak()`, on each device on which it
            runs: `Run.timelines`. Of the forward it finds its results and what the nodes keep; a constant that nodes
            save and your code holds counts as an input (`Timeline.constant_bytes`) unless a capture with every_call saw
            it made.
            `ts.profile` sees the forward, too, and so all there is. With queues="per device" it is of this run, see
            there.
        accumulate, release: how gradients that meet are summed, and when they are let go, see `Accumulation`. Other
            rules than PyTorch's need engine="direct".
        batch: "auto" runs products of matrices as one where `ts.find_batches` finds that they can, by its rules or by a
            `GroupRules`; needs engine="direct". `Run.batches` tells what did, and what did not and why. Gradients are
            equal within rounding, and those that were made together are parts of one storage.

    While a backward runs, its order is in the nodes' sequence numbers. Another backward of the same leaves at that
    moment (in another thread, or in a hook) goes around them if its order allows; if not, a warning tells.

    Raises:
        NotImplementedError: the direct engine can't do this faithfully.
        ValueError: unknown policy or engine.
        RuntimeError: a tensor without a graph, and whatever `torch.autograd.backward` raises.
        PolicyError: a policy of the user's own chose a task that was not ready. The native engine has then executed
            nothing.
    """
    from ..memory.measurement import Measurement

    if engine is None:
        engine = "direct" if isinstance(tensors, HipsTape) else "native"
    check_choices(engine, trace)
    check_batch(batch, engine)
    call = BackwardCall(tensors, grad_tensors, retain_graph, create_graph, inputs)
    accumulation = Accumulation(accumulate, release)
    expect_choice(queues, get_args(Queues), "queues")
    expect_truth(memory, "memory")
    chosen = find_policy(policy)
    if engine == "direct":
        if not memory:
            with Stepper(
                call, policy=chosen, trace=trace, accumulation=accumulation, batch=batch, queues=queues
            ) as stepper:
                return stepper.run()
        if isinstance(tensors, HipsTape):
            return run_tape(call, tensors, chosen, trace, accumulation, batch)
        with Measurement() as measurement:
            return run_measured(call, chosen, trace, accumulation, measurement, batch, queues)
    if isinstance(tensors, HipsTape):
        raise not_native()
    accumulation.check_native()
    if trace is None and not memory and (run := run_unread(call, chosen, queues)) is not None:
        return run
    plan = Plan.of(call, chosen)
    if not memory:
        return run_native(call, plan, trace, queues)
    with Measurement() as measurement:
        return run_native(call, plan, trace, queues, measurement)


keep_compiler_out(backward)


def run_tape(
    call: BackwardCall,
    tape: HipsTape,
    policy: AnyPolicy,
    trace: Level | None,
    accumulation: Accumulation,
    batch: AnyBatch = None,
    forward: TapedForward | None = None,
) -> Run:
    """A whole backward of a tape whose memory is measured; where its forward was, from there on."""
    from ..session.hips.array_memory import ArrayWatch  # which needs the package autograd

    with ArrayWatch(tape, forward) as watch:
        stepper = partial(Stepper, call, policy=policy, trace=trace, accumulation=accumulation, batch=batch)
        with stepper(measuring=lambda *_: watch) as session:
            run = session.run()
            timeline = watch.timeline(accumulation)
            return replace(run, timeline=timeline, footprints=watch.footprints(timeline))


def check_choices(engine: Engine, trace: Level | None) -> None:
    """Says which engines and levels of a trace there are, if these are none.

    Raises:
        ValueError: with the list.
    """
    if not (isinstance(engine, str) and engine in get_args(Engine)):
        raise ValueError(f"there is no engine {engine!r}; known are {', '.join(get_args(Engine))}")
    if trace is not None and not (isinstance(trace, str) and trace in get_args(Level)):
        known = ", ".join(map(repr, get_args(Level)))
        raise ValueError(f"there is no trace {trace!r}; known are {known}, and None to record nothing")
