"""`ts.profile`: the memory of one fresh forward and its backward, measured."""

from __future__ import annotations

from typing import get_args

import torch
from torch import nn

from ...inspector.capture.capture import capture
from ...inspector.hips.tape import HipsTape
from ...inspector.text.progress import telling
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.torch_private.sequence_numbers import sequence_nr
from ...inspector.validation import expect, expect_choice, expect_model
from ..execution.accumulation_rule import Accumulate, Accumulation, Release
from ..execution.backward_arguments import BackwardCall, expect_flags
from ..memory.measurement import Measurement
from ..memory.out_of_memory import out_of_memory_explained
from ..planning.policies import find_policy
from ..recording.run import Engine, Run
from ..recording.statistics import Level
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy
from ..session.batching.run_batches import AnyBatch, check_batch
from ..session.direct_session import run_measured
from ..session.hips.levels import FollowedTapes
from ..session.native_engine import Plan, run_native
from .backward import check_choices, run_tape
from .make_loss import MakeLoss, expect_make_loss, loss_or_tape, refuse_whole_step


def profile(
    make_loss: MakeLoss,
    policy: AnyPolicy = "heap",
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    trace: Level | None = None,
    device: torch.device | str | None = None,
    engine: Engine = "native",
    accumulate: Accumulate = "inplace",
    release: Release = "eager",
    batch: AnyBatch = None,
    model: nn.Module | None = None,
    queues: Queues = "one",
) -> Run:
    """Runs a forward and its backward, and follows each block of memory from its birth.

    Args:
        make_loss: runs the forward and returns the loss, one element. Gradients are added to .grad as by any backward.
            Or it returns a tape (`ts.hips.tape`), whose backward the direct engine runs.
        policy: as in `ts.backward`.
        retain_graph, create_graph: as in `torch.autograd.backward`.
        trace: as in `ts.backward`. What the statistics allocate meanwhile is not counted. It is there while they are
            computed: those of "full", whose histograms need more than the gradient itself, can double what the process
            takes.
        device: whose memory is measured. None: of each device on which the backward runs; `Run.timelines` has them,
            `Run.timeline` is the accelerator's, and of several that of the highest peak.
        engine, accumulate, release: as in `ts.backward`.
        batch: as in `ts.backward`. What tasks of a group allocate counts to the last of them, and there are no
            `footprints`: what ran as one does not tell what other orders take.
        model: names modules and parameters after this module, where the forward calls parts of it and never itself;
            several are one `nn.ModuleDict({"G": generator, "D": critic})`. None: after each outermost module that is
            called.
        queues: as in `ts.backward`. With "per device" on PyTorch's engine tasks overlap: each has what its own thread
            does, and the peaks are of this run, as they depend on which of two gradients that meet comes second and on
            how the devices stand; there are no `footprints`. For predictions measure with "one".

    Returns:
        A `Run` with `timeline` (what was alive when: bytes, who made it, who kept it), `footprints` (for
        `ts.simulate`: what each task did, so that any other order can be predicted) and `peak()`.

    Known limitations: what other threads allocate, and memory that torch's allocator does not give (scratch memory of
    oneDNN, Python's own objects), is not seen. Of accelerators the blocks are measured, as their allocators tell
    torch's profiler. One CUDA device has a history, with the bytes as they were asked for, unless CUDA is first used
    inside make_loss or the model is not on the current device: then give `device`. There all threads are seen; what
    libraries take at their first use and keep (cuBLAS: up to 32 MiB) counts as not attributed, so run a step before;
    hooks of tensors count to the task before; and the device's peak counters are reset:
    `Timeline.blocks.peak_allocated` says what torch.cuda.max_memory_allocated() would.

    The direct engine's memory is that of PyTorch's, to the byte, but where it frees later what nodes hide from Python
    (see `Stepper`): slices that were assigned to, and checkpointed regions, in a process where anything has hooks.

    Raises:
        TypeError: make_loss is no function, or returned no tensor.
        ValueError: it returned more than one element; or memory is not measured on one of its devices.
        NotImplementedError: gradients are to be summed or let go otherwise than PyTorch's engine does, or tasks to run
            as one, on that one; or the direct engine refuses the graph.
        RuntimeError: make_loss has run the backward itself; a torch profiler is at work, or a history of CUDA memory is
            being recorded; and what forward and backward raise.
    """
    expect_make_loss(make_loss, "ts.profile")
    expect_model(model)
    expect_flags(retain_graph, create_graph)
    check_choices(engine, trace)
    check_batch(batch, engine)
    expect_choice(queues, get_args(Queues), "queues")
    if device is not None:
        expect(device, torch.device | str, "device", 'a device or its name, such as "cuda:0"')
    accumulation = Accumulation(accumulate, release)
    if engine == "native":
        accumulation.check_native()
    chosen = find_policy(policy)
    with telling(None, "profiling") as tell, Measurement(device) as measurement:
        tell("the forward")
        with capture(model, measurement.observe), FollowedTapes() as followed:
            since = sequence_nr()
            measurement.begin_forward()
            with out_of_memory_explained():
                loss = make_loss()
            measurement.observe(None, loss)
        made = loss_or_tape(loss)
        refuse_whole_step(made, since)
        tell("the backward, and what it took")
        call = BackwardCall(made, None, retain_graph, create_graph)
        if not isinstance(made, HipsTape):
            if engine == "direct":
                return run_measured(call, chosen, trace, accumulation, measurement, batch, queues)
            return run_native(call, Plan.of(call, chosen), trace, queues, measurement)
    return run_tape(call, made, chosen, trace, accumulation, batch, followed.watch)


keep_compiler_out(profile)
