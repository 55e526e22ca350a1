"""Why no plan was found, in sentences; and what stands in the way of plans: fused kernels, checkpoints."""

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
"""A plan that saves less of the peak is no plan."""

_FUSED = "runs a fused kernel with a state of its own"
_REENTRANT = "CheckpointFunctionBackward"
_SWITCHES = (
    "activation_checkpointing_disable",
    "gradient_checkpointing_disable",
)  # of transformers, from 5 on and before


def not_worth_it(
    wanted: Wanted, program: ForwardProgram, memory: RecomputedMemory, plain_ns: float, ratio: float, blamed: bool
) -> tuple[LeftAloneBecause, str]:
    """Say why a model is left alone, as in `PlannedRecompute.left_alone_because` and as a sentence.

    Args:
        blamed: something else than time is to blame, and is said.
        plain_ns: what a step takes without a plan.
        ratio: of what replays and recording were measured to take to what was reckoned with.
    """
    plain = memory.plain_peak_bytes
    limit = percent_text(wanted.overhead)
    within = "" if wanted.overhead == math.inf else f" in the {limit} of a step that it may take"
    said = f"Left alone: no choice was found that lowers the peak of {size_text(plain)} by 1 %{within}."
    if not within or blamed:
        return "no lower peak", said
    least = greedy(memory, Goal(peak_bytes=int((1 - WORTH_IT) * plain)))
    if least.levels.peak_bytes > (1 - WORTH_IT) * plain:
        return "no lower peak", f"{said} With any time, none was found either."
    again = {number for each in least.dropped for number in program.storages[each].program}
    itself = sum(program.operations[number].seconds for number in again)
    whole, allowed = ratio * least.levels.replay_ns / 1e9, wanted.extra_ns(plain_ns) / 1e9
    if whole > 2 * itself:
        return (
            "too small",
            f"{said} Its operations are too small: to run {counted(len(again), 'operation')} again, the least, takes "
            f"{ms_text(itself)} by itself, and to note and call them {ms_text(whole - itself)} more; "
            f"{ms_text(allowed)} are allowed.",
        )
    most = greedy(memory, Goal())
    lowest, price = most.levels.peak_bytes, ratio * most.levels.replay_ns / plain_ns
    return (
        "time",
        f"{said} The time is the reason: to lower it by 1 % takes {ms_text(whole)}; {ms_text(allowed)} are allowed. "
        f"For {percent_text(price)} of a step (overhead={price:.2g}) it falls to {size_text(lowest)}, by "
        f"{share_text(plain - lowest, plain)}.",
    )


def fused_kernels(program: ForwardProgram) -> tuple[str, ...]:
    """How much of what nodes save is a fused kernel's, and what to do about it, in a sentence; (): it is nothing."""
    kernels: Counter[str] = Counter()
    modules: dict[str, None] = {}
    for each in program.saved:
        if each.obstacle is not None and each.obstacle.endswith(_FUSED) and each.made_by is not None:
            made_by = program.operations[each.made_by]
            kernels[made_by.name] += each.nbytes
            modules[made_by.module or "outside any module"] = None
    if not kernels:
        return ()
    name = kernels.most_common(1)[0][0]
    switch = f"torch.backends.{'mkldnn' if 'mkldnn' in name else 'cudnn'}.flags(enabled=False)"
    return (
        f"{size_text(kernels.total())} of the {size_text(_saved_bytes(program))} that nodes save are those of the "
        f"fused kernel {operation_name(name)} ({joined(list(modules))}), which can't run again: it keeps a "
        f"state of its own. Under `with {switch}:`, planned and trained, or written as cells (nn.LSTMCell, nn.GRUCell) "
        "it is single operations, which can.",
    )


def mostly_fused(program: ForwardProgram) -> bool:
    """Whether more than half of what nodes save is a fused kernel's."""
    fused = sum(each.nbytes for each in program.saved if each.obstacle is not None and each.obstacle.endswith(_FUSED))
    return 2 * fused > _saved_bytes(program)


def _saved_bytes(program: ForwardProgram) -> int:
    return sum(each.nbytes for each in program.saved)


def checkpoint_sentence(graph: Graph, modules: Iterable[nn.Module]) -> str | None:
    """That regions are under torch.utils.checkpoint, and how to turn that off; None where none is.

    Args:
        graph: with its nodes.
        modules: those that the forward called.
    """
    names: dict[str, None] = {}
    regions: set[object] = set()
    for task, node in zip(graph.tasks, graph.nodes, strict=True):
        region = region_of(node)
        if task.name == _REENTRANT:
            regions.add(task.id)
            names[_title(getattr(node, "run_function", None))] = None
        elif region is not None and region not in regions:
            regions.add(region)
            names[_title(region_code(region)[0])] = None
    if not regions:
        return None
    how = f"take torch.utils.checkpoint from around {joined([each for each in names if each] or ['them'])}"
    outermost = sorted(modules, key=lambda each: sum(1 for _ in each.modules()), reverse=True)
    found = ((each, name) for each in outermost for name in _SWITCHES if callable(getattr(each, name, None)))
    if (switch := next(found, None)) is not None:
        how = f"model.{switch[1]}(), of {type(switch[0]).__name__}"
    return (
        f"{counted(len(regions), 'region')} of this forward {'is' if len(regions) == 1 else 'are'} under "
        f"torch.utils.checkpoint, which has let go of what single operations there save, so that a plan finds next to "
        f"nothing. Turn checkpoints off, and plan again: {how}."
    )


def _title(called: Any) -> str:
    """What a region calls, by the class of a module or the name of a function; "": that is not known."""
    while isinstance(called, partial | list):
        called = called.func if isinstance(called, partial) else (called[0] if called else None)
    if isinstance(called, MethodType):
        called = called.__self__
    if isinstance(called, nn.Module):
        return type(called).__name__
    return str(getattr(called, "__qualname__", ""))
