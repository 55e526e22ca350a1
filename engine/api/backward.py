"""`ts.backward`: PyTorch's backward in the order of a scheduling policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, get_args

from torch import Tensor

from ...inspector.graph.graph import Outputs
from ...inspector.hips.tape import HipsTape, not_native
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.validation import expect_choice, expect_truth
from ..execution.accumulation_rule import PYTORCHS, Accumulate, Accumulation, Release
from ..execution.backward_arguments import BackwardCall, Inputs
from ..execution.unsupported import refuse_transforms
from ..planning.policies import find_policy
from ..recording.run import Engine, Run
from ..recording.statistics import Level
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy, Choice, Policy
from ..session.batching.batch_argument import AnyBatch, check_batch
from ..session.direct_session import Stepper, run_measured
from ..session.error_notes.explain_error import errors_explained
from ..session.native_engine import Plan, run_native
from ..session.native_fast_path import run_without_graph

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
    """Run `torch.autograd.backward` in the order of a policy, with the same arguments, gradients and errors.

    While a backward runs, its order is in the nodes' sequence numbers. Another backward of the same leaves at the same
    time (in another thread, or in a hook) avoids these numbers if its order allows it; otherwise a warning says so.

    Args:
        tensors, grad_tensors, retain_graph, create_graph, inputs: as in `torch.autograd.backward`. Or a tape
            (`ts.hips.tape`), whose gradient is then in `tape.gradient`; "dfs" is autograd's own order.
        policy: a policy's name ("bfs", "dfs", "heap"), a `Policy`, or a callable (ready tasks, state) -> task.
        engine: "native" runs PyTorch's C++ engine with the policy's order pinned; everything works as in training.
            "direct" calls one node at a time from Python, in the current thread; see `Stepper` for its limitations.
            None is "native", or "direct" for a tape, which only that engine can run.
        trace: what `Run.trace` records of each task: "off" its times, queue and shapes, "cheap" and "full" also
            statistics of its gradients. None, the default, records nothing and adds no hooks.
        queues: for graphs on accelerators, "one" queue for all devices gives the policy's total order. "per device"
            keeps PyTorch's thread for each device, so that devices overlap, and the policy orders each device's own
            tasks. With engine="direct" tasks run one at a time, in the order in which the devices would start them; see
            `Stepper`.
        memory: measure the memory that each task allocates and frees, on each device: `Run.timeline`, `Run.timelines`,
            `Run.peak()`. Of the forward this finds its results and the saved tensors. A constant that nodes save and
            your code holds counts as an input (`Timeline.constant_bytes`), unless a capture with every_call recorded
            its creation. `ts.profile` also measures the forward, and so has everything. For queues="per device" see
            `ts.profile`.
        accumulate, release: how gradients are summed, and when they are freed; see `Accumulation`. Rules other than
            PyTorch's need engine="direct".
        batch: "auto" runs matrix products as one where `ts.find_batches` allows it, by its rules or by a `GroupRules`;
            needs engine="direct". `Run.batches` lists the batches, and those that could not run with the reason.
            Gradients are equal within rounding, and gradients of one batch share a storage.

    Returns:
        A `Run`.

    Raises:
        NotImplementedError: the direct engine cannot run this faithfully.
        ValueError: unknown policy or engine.
        RuntimeError: a tensor without a graph, and any error of `torch.autograd.backward`.
        PolicyError: a user's own policy chose a task that was not ready; the native engine has executed nothing then.
    """
    if engine is None:
        engine = "direct" if isinstance(tensors, HipsTape) else "native"
    check_choices(engine, trace)
    check_batch(batch, engine)
    call = BackwardCall(tensors, grad_tensors, retain_graph, create_graph, inputs)
    accumulation = Accumulation(accumulate, release)
    expect_choice(queues, get_args(Queues), "queues")
    expect_truth(memory, "memory")
    chosen = find_policy(policy)
    if not isinstance(tensors, HipsTape):
        with errors_explained():
            refuse_transforms()
    if engine == "native":
        if isinstance(tensors, HipsTape):
            raise not_native()
        accumulation.check_native()
    if not memory:
        return run_backward(call, chosen, engine, trace, queues, accumulation, batch)()
    if isinstance(tensors, HipsTape):
        return run_tape(call, tensors, chosen, trace, accumulation, batch)
    from ..memory.measure_backward import Measurement

    if engine == "direct":
        with Measurement() as measurement:
            return run_measured(call, chosen, trace, accumulation, measurement, batch, queues)
    plan = Plan.of(call, chosen)
    with Measurement() as measurement:
        return run_native(call, plan, trace, queues, measurement)


keep_compiler_out(backward)


def run_backward(
    call: BackwardCall,
    policy: Policy | Choice,
    engine: Engine,
    trace: Level | None,
    queues: Queues,
    accumulation: Accumulation = PYTORCHS,
    batch: AnyBatch = None,
) -> Callable[[], Run]:
    """Run a call whose arguments have been checked. Return a function that returns the run.

    A loop that does not read its runs does not create them.
    """
    if engine == "direct":
        with Stepper(
            call, policy=policy, trace=trace, accumulation=accumulation, batch=batch, queues=queues
        ) as stepper:
            run = stepper.run()
    elif trace is None and (late := run_without_graph(call, policy, queues)) is not None:
        return late
    else:
        run = run_native(call, Plan.of(call, policy), trace, queues)
    return lambda: run


keep_compiler_out(run_backward)


def run_tape(
    call: BackwardCall,
    tape: HipsTape,
    policy: AnyPolicy,
    trace: Level | None,
    accumulation: Accumulation,
    batch: AnyBatch = None,
    forward: TapedForward | None = None,
) -> Run:
    """Run a complete backward of a tape and measure its memory, including the forward if that was recorded."""
    from ..session.hips.array_memory import ArrayWatch  # imports the package autograd

    with ArrayWatch(tape, forward) as watch:
        stepper = partial(Stepper, call, policy=policy, trace=trace, accumulation=accumulation, batch=batch)
        with stepper(measuring=lambda *_: watch) as session:
            run = session.run()
            timeline = watch.timeline(accumulation)
            return replace(run, timeline=timeline, footprints=watch.footprints(timeline))


def check_choices(engine: Engine, trace: Level | None) -> None:
    """Raise if the engine or the trace level is unknown.

    Raises:
        ValueError: the message lists the known ones.
    """
    if not (isinstance(engine, str) and engine in get_args(Engine)):
        raise ValueError(f"unknown engine {engine!r}; expected one of {', '.join(map(repr, get_args(Engine)))}")
    if trace is not None and not (isinstance(trace, str) and trace in get_args(Level)):
        known = ", ".join(map(repr, get_args(Level)))
        raise ValueError(f"unknown trace level {trace!r}; expected one of {known}, or None to record nothing")
