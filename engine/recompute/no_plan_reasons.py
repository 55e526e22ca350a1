"""Sentences that explain why no plan was found, and the obstacles: fused kernels and existing checkpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import partial
from types import MethodType
from typing import Any, Literal

from torch import nn

from ...inspector.capture.forward_program import ForwardProgram
from ...inspector.graph.graph import Graph
from ...inspector.graph.phrases import joined
from ...inspector.text.sizes_and_counts import counted, percent_text, share_text, size_text
from ...inspector.torch_private.checkpoints import region_code, region_of
from .budget import Wanted
from .module_table import ms_text, operation_name
from .predicted_memory import RecomputedMemory
from .solvers import Goal, greedy

LeftAloneBecause = Literal["within budget", "too small", "time", "no lower peak"]

WORTH_IT = 0.01
"""Smallest share of the peak that a plan has to save."""

_REENTRANT = "CheckpointFunctionBackward"
_SWITCHES = (
    "activation_checkpointing_disable",
    "gradient_checkpointing_disable",
)  # methods of transformers models, from version 5 on and before


def not_worth_it(
    wanted: Wanted, program: ForwardProgram, memory: RecomputedMemory, plain_ns: float, ratio: float, blamed: bool
) -> tuple[LeftAloneBecause, str]:
    """Return why nothing is dropped: a value for `PlannedRecompute.left_alone_because`, and a sentence.

    Args:
        plain_ns: time of a step without a plan.
        ratio: measured time of recomputation and recording, divided by the estimated time.
        blamed: whether another note already names a reason other than time.
    """
    plain = memory.plain_peak_bytes
    limit = percent_text(wanted.overhead)
    within = "" if wanted.overhead == math.inf else f" within the {limit} of a step's time that is allowed"
    said = f"Nothing is dropped: no choice was found that lowers the peak of {size_text(plain)} by 1 %{within}."
    if not within or blamed:
        return "no lower peak", said
    # The greedy solver takes milliseconds, which is good enough to tell the reasons apart.
    least = greedy(memory, Goal(peak_bytes=int((1 - WORTH_IT) * plain)))
    if least.levels.peak_bytes > (1 - WORTH_IT) * plain:
        return "no lower peak", f"{said} None was found without a time limit, either."
    again = {number for each in least.dropped for number in program.storages[each].program}
    itself = sum(program.operations[number].seconds for number in again)
    seconds, allowed = ratio * least.levels.replay_ns / 1e9, wanted.extra_ns(plain_ns) / 1e9
    if seconds > 2 * itself:
        return (
            "too small",
            f"{said} Its operations are too small: the smallest sufficient choice recomputes "
            f"{counted(len(again), 'operation')}, which takes {ms_text(itself)}, and {ms_text(seconds - itself)} more "
            f"to record and call them; {ms_text(allowed)} is allowed.",
        )
    most = greedy(memory, Goal())
    lowest, price = most.levels.peak_bytes, ratio * most.levels.replay_ns / plain_ns
    return (
        "time",
        f"{said} Lowering it by 1 % takes {ms_text(seconds)}; {ms_text(allowed)} is allowed. "
        f"For {percent_text(price)} of a step's time (overhead={price:.2g}) the peak falls to {size_text(lowest)}, by "
        f"{share_text(plain - lowest, plain)}.",
    )


def fused_kernels(program: ForwardProgram) -> tuple[str, ...]:
    """Return a sentence about saved storages of fused kernels and how to avoid these; empty if there are none."""
    kernels: Counter[str] = Counter()
    saved_bytes = sum(each.nbytes for each in program.saved)
    modules: dict[str, None] = {}
    for each in program.saved:
        if each.is_fused and each.made_by is not None:
            made_by = program.operations[each.made_by]
            kernels[made_by.name] += each.nbytes
            modules[made_by.module or "outside any module"] = None
    if not kernels:
        return ()
    name = kernels.most_common(1)[0][0]
    switch = f"torch.backends.{'mkldnn' if 'mkldnn' in name else 'cudnn'}.flags(enabled=False)"
    return (
        f"{size_text(kernels.total())} of the {size_text(saved_bytes)} that nodes save belong to the "
        f"fused kernel {operation_name(name)} ({joined(list(modules))}), which cannot be recomputed because it has "
        f"hidden state. Plan and train under `with {switch}:`, or use nn.LSTMCell or nn.GRUCell: both run single "
        "operations, which can be recomputed.",
    )


def checkpoint_sentence(graph: Graph, modules: Iterable[nn.Module]) -> str | None:
    """Return a note that regions already use torch.utils.checkpoint and how to turn it off, or None if none does.

    Args:
        graph: the forward's graph, with its nodes.
        modules: the modules that the forward called.
    """
    names: dict[str, None] = {}
    regions: set[object] = set()
    for task, node in zip(graph.tasks, graph.nodes, strict=True):
        # A reentrant checkpoint is a node of the graph; others only show in what their nodes have packed.
        region = region_of(node)
        if task.name == _REENTRANT:
            regions.add(task.id)
            names[_title(getattr(node, "run_function", None))] = None
        elif region is not None and region not in regions:
            regions.add(region)
            names[_title(region_code(region)[0])] = None
    if not regions:
        return None
    how = f"remove torch.utils.checkpoint from {joined([each for each in names if each] or ['them'])}"
    outermost = sorted(modules, key=lambda each: sum(1 for _ in each.modules()), reverse=True)
    found = ((each, name) for each in outermost for name in _SWITCHES if callable(getattr(each, name, None)))
    if (switch := next(found, None)) is not None:
        how = f"model.{switch[1]}(), where model is the {type(switch[0]).__name__}"
    return (
        f"{counted(len(regions), 'region')} of this forward {'is' if len(regions) == 1 else 'are'} under "
        f"torch.utils.checkpoint, which already drops their saved tensors, so a plan finds little to drop. Turn "
        f"checkpointing off and plan again: {how}."
    )


def _title(called: Any) -> str:
    """Return the class of the module or the name of the function that a region calls; "" if unknown."""
    while isinstance(called, partial | list):
        called = called.func if isinstance(called, partial) else (called[0] if called else None)
    if isinstance(called, MethodType):
        called = called.__self__
    if isinstance(called, nn.Module):
        return type(called).__name__
    return str(getattr(called, "__qualname__", ""))
