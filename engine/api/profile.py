"""`ts.profile`: the measured memory of one fresh forward and its backward."""

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
from ..memory.measure_backward import Measurement
from ..planning.policies import find_policy
from ..recording.run import Engine, Run
from ..recording.statistics import Level
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy
from ..session.batching.batch_argument import AnyBatch, check_batch
from ..session.direct_session import run_measured
from ..session.error_notes.explain_error import errors_explained
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
    """Run a forward and its backward, and record the lifetime of each block of memory.

    Known limitations: memory allocated by other threads, or outside torch's allocator (scratch memory of oneDNN, Python
    objects), is not seen. On accelerators the blocks are those the allocators report to torch's profiler.

    On one CUDA device the allocator's history is used, with the requested sizes, unless CUDA is first used inside
    make_loss or the model is not on the current device; pass `device` then. The history includes all threads. Memory
    that libraries allocate at first use and keep (cuBLAS: up to 32 MiB) counts as not attributed, so run a step before.
    Memory of tensor hooks counts to the task before them. The device's peak counters are reset:
    `Timeline.blocks.peak_allocated` is what torch.cuda.max_memory_allocated() would return.

    The direct engine's memory equals PyTorch's to the byte, except where it frees saved tensors later because nodes
    hide them from Python (see `Stepper`): in slices that were assigned to, and in checkpointed regions, if anything in
    the process has hooks.

    Args:
        make_loss: runs the forward and returns the loss, one element. Gradients are added to .grad as by any backward.
            It may return a tape (`ts.hips.tape`), whose backward the direct engine runs.
        policy: as in `ts.backward`.
        retain_graph, create_graph: as in `torch.autograd.backward`.
        trace: as in `ts.backward`. Memory that the statistics allocate is not counted, but it exists while they are
            computed: those of "full", whose histograms need more memory than the gradient, can double the memory of the
            process.
        device: the device to measure. None measures each device on which the backward runs: `Run.timelines` has all of
            them, and `Run.timeline` is the accelerator's, for several the one with the highest peak.
        engine, accumulate, release: as in `ts.backward`.
        batch: as in `ts.backward`. Memory of a batch counts to its last task, and there are no `footprints`, because
            batches do not predict other orders.
        model: the module from which modules and parameters are named, needed if the forward calls only parts of it;
            pass several as one `nn.ModuleDict({"G": generator, "D": critic})`. None names them from each outermost
            module called.
        queues: as in `ts.backward`. With "per device" on PyTorch's engine tasks overlap. Each task then has the memory
            of its own thread, and the peaks are those of this run: they depend on which of two summed gradients arrives
            second, and on the progress of the devices. There are no `footprints`; use "one" for predictions.

    Returns:
        A `Run` with `timeline` (the lifetimes of all blocks: bytes, creator, references), `footprints` (for
            `ts.simulate`: the memory of each task, from which any other order can be predicted) and `peak()`.

    Raises:
        TypeError: `make_loss` is not a function, or returned no tensor.
        ValueError: it returned more than one element; or memory cannot be measured on one of its devices.
        NotImplementedError: PyTorch's own engine cannot sum or free gradients this way, or batch tasks; or the direct
            engine refuses the graph.
        RuntimeError: `make_loss` has run the backward itself; a torch profiler or a CUDA memory history is active; and
            any error of the forward and backward.
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
            with errors_explained():
                loss = make_loss()
            measurement.observe(None, loss)
        made = loss_or_tape(loss)
        refuse_whole_step(made, since)
        tell("the backward")
        call = BackwardCall(made, None, retain_graph, create_graph)
        if not isinstance(made, HipsTape):
            if engine == "direct":
                return run_measured(call, chosen, trace, accumulation, measurement, batch, queues)
            return run_native(call, Plan.of(call, chosen), trace, queues, measurement)
    return run_tape(call, made, chosen, trace, accumulation, batch, followed.watch)


keep_compiler_out(profile)
