"""Reasons why a predicted figure is an estimate, and whether the true figure is higher or lower."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ...inspector.graph.graph import Graph
from ...inspector.graph.phrases import MOST_NAMED, joined
from ...inspector.text.sizes_and_counts import size_text

Direction = Literal["at least", "at most", "unknown"]
"""The direction of the true figure: "at least" or "at most" the predicted one, or "unknown"."""


class Estimate(str):
    """A reason why a figure is an estimate, as a sentence, with the direction of the true figure.

    Attributes:
        direction: see `Direction`.
    """

    __slots__ = ("direction",)
    direction: Direction

    def __new__(cls, reason: str, direction: Direction = "unknown") -> Estimate:
        found = super().__new__(cls, reason)
        found.direction = direction
        return found


def direction_of(reasons: Iterable[str]) -> Direction | None:
    """Return the direction of a figure that is an estimate for all these reasons; None without reasons."""
    found = {reason.direction if isinstance(reason, Estimate) else "unknown" for reason in reasons}
    if not found:
        return None
    return found.pop() if len(found) == 1 else "unknown"


def bounded_size(nbytes: int, reasons: Iterable[str]) -> str:
    """Return `5.0 MiB`, or `at least 5.0 MiB`, `at most 5.0 MiB` or `about 5.0 MiB` if there are reasons."""
    direction = direction_of(reasons)
    words = {None: "", "unknown": "about "}.get(direction, f"{direction} ")
    return words + size_text(nbytes)


def estimate_sentence(reasons: Iterable[str], whose: str = "", most: int = MOST_NAMED) -> str:
    """Return `An estimate: the workspace of mm is not known. The true figure may be higher.`, or `The peak of bfs is an
    estimate: ...`; "" without reasons.

    Args:
        reasons: the reasons, as in `Timeline.estimates`; each is named once. Plain strings have no direction, and the
            sentence then names none.
        whose: the name of the figure, at the start of the sentence.
        most: the number of reasons to name; the others are only counted.
    """
    said = list(dict.fromkeys(reasons))
    if not said:
        return ""
    more = f"; and {len(said) - most:,} more" if len(said) > most else ""
    truth = _TRUTH[direction_of(said)] if any(isinstance(each, Estimate) for each in said) else ""
    return f"{f'{whose} is an' if whose else 'An'} estimate: {'; '.join(said[:most])}{more}.{truth}"


_TRUTH = {
    "at least": " The true figure may be higher.",
    "at most": " The true figure may be lower.",
    "unknown": " The true figure may be higher or lower.",
    None: "",
}


def main_reason(reasons: Sequence[str]) -> str:
    """Return the most specific reason, shortened, for places with room for one; "" without reasons.

    The general `WORKSPACE` is used only if no other reason names the kernels.
    """
    found = next((reason for reason in reasons if reason != WORKSPACE), next(iter(reasons), ""))
    return found.replace(f"{_UNKNOWN}:", "misses")


_UNKNOWN = "not known from a dry run"

WORKSPACE = Estimate(
    "a dry run sees the results of operations, not all of their kernels' workspace; ts.profile measures that",
    "at least",
)
"""The reason why a dry run is an estimate if a kernel was not run alone."""

OF_SHAPES = Estimate(
    "the tape was freed, so only the shapes of its gradients are known: each counts as a new array, and arrays that "
    "the forward left are not counted"
)
"""The reason why a dry run of a tape's graph is less exact without the tape."""

OF_PYTHON = Estimate("a tape's arrays are counted, but not Python's own objects, which need some KiB more", "at least")
"""The reason why every prediction for a tape is an estimate."""

OF_A_TAPE = Estimate(f"{OF_PYTHON}; each kind of primitive was called once, on zeros", "at least")
"""The reason why a dry run of a tape is an estimate."""

UNLISTED_HOOKS = Estimate(
    "PyTorch does not list some hooks; if they are on tensors of this graph, the tensors they hold are not known"
)
"""The reason why a dry run is an estimate if hooks exist and torch does not report on which tensors."""

OTHER_FORMULAS = {
    "ProdBackward": "products over a dimension, for which PyTorch uses another formula without values",
    "CumprodBackward": "products over a dimension, for which PyTorch uses another formula without values",
    "BinaryCrossEntropy": "formulas with a step that is in place only with values",
    "SgnBackward0": "zeros that have no bytes with values",
    **dict.fromkeys(
        ("IndexReduce", "MaskedFillBackward1", "MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"),
        "formulas that pick elements by their values",
    ),
}
"""Formulas for which a dry run is known to predict too little or too much, by a part of the node's name."""

DTENSORS = "communication of DTensors in the backward"

GATHERED = "parameters that FSDP gathers in the backward"
REDUCED = "gradients that FSDP reduces and parameters that it frees in the backward"

PASSING = {
    "torch.nn.modules._functions.BackwardHookFunction": None,
    "torch.distributed.fsdp._fully_shard._fsdp_state.RegisterPreBackwardFunction": GATHERED,
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.RegisterPostBackwardFunction": REDUCED,
    "torch.distributed.tensor._api._ToTorchTensor": DTENSORS,
    "torch.distributed.tensor._api._FromTorchTensor": DTENSORS,
    "torch.nn.parallel.distributed._DDPSink": "gradients that DistributedDataParallel reduces in the backward",
}
"""torch's own Functions that return each gradient unchanged, with the other things they do, whose memory is unknown."""

NOT_CALLED = "custom Functions, which are not called"
OF_A_SUBCLASS = "nodes that saved tensors of a subclass, which are not called"
COMPILED = "compiled regions"
HOOKED = "tasks with hooks, which were not run"
NEED_VALUES = "nodes that cannot run without values"
DEFINED = "primitives that you defined, whose formulas are not called"
HELD_LEAVES = (
    "leaves that are not parameters and are held outside the graph: the forward may have created them, and they are "
    "not counted; run the forward under ts.capture(every_call=True) to find out"
)
CASTS = (
    "casts of weights that an open torch.autocast may have cached in an earlier forward: they are counted; run the "
    "forward under ts.capture() to see which are its own"
)
UNSAVED_CASTS = "casts of weights that an open torch.autocast has cached and no node saved"
EARLIER = (
    "tensors outside the graph that the capture saw before the forward's first node and after other nodes: they may "
    "belong to an earlier step and are not counted; capture a single forward to find out"
)
BESIDE = (
    "nodes of other results of the forward, which hide their saved tensors or have packed them: these are not counted"
)
HIDDEN = "nodes that hide the tensors they keep from the forward"
CHECKPOINTED = "nodes packed by saved_tensors_hooks (a checkpoint, which recomputes them)"
PACKED = "nodes whose saved tensors were packed by saved_tensors_hooks (a checkpoint, save_on_cpu)"
REENTRANT = "reentrant checkpoints"
NO_STORAGE = "nodes that keep sparse or nested tensors"
NO_STORAGE_ON_CTX = "custom Functions that keep sparse or nested tensors"

_NOT_COUNTED = frozenset(
    (
        *(
            HELD_LEAVES,
            EARLIER,
            BESIDE,
            UNSAVED_CASTS,
            CHECKPOINTED,
            REENTRANT,
            NO_STORAGE,
            NO_STORAGE_ON_CTX,
            "nested tensors",
        ),
        *(GATHERED, REDUCED),
    )
)
"""Memory that a dry run does not count, so the true figure is at least the predicted one."""

_MAY_BE_OLDER = frozenset((CASTS,))
"""Memory that a dry run counts and that may be from before the forward, so the true figure is at most the predicted."""

SAME_IN_EVERY_ORDER = frozenset((*OTHER_FORMULAS.values(), HELD_LEAVES, EARLIER, BESIDE, CASTS))
"""Limits that are the same in every order."""


def limit_sentence(graph: Graph, what: str, task_ids: list[int], unknown: str = _UNKNOWN) -> Estimate:
    """Return the sentence about tasks for which something is not known: `what` with their number, and the first."""
    which = f"the first of {len(task_ids):,} tasks" if len(task_ids) > 1 else "the only task"
    sentence = f"{unknown}: {what}; {which} is {graph.describe(task_ids[0])}"
    return Estimate(sentence, "at least" if what in _NOT_COUNTED else "at most" if what in _MAY_BE_OLDER else "unknown")


def kernel_sentence(graph: Graph, why: str, operators: Iterable[str], task_ids: Iterable[int]) -> Estimate:
    """Return the sentence that names the operators whose workspace is not known, and their tasks."""
    named = joined([*operators])
    return Estimate(limit_sentence(graph, f"the workspace of {named} ({why})", [*task_ids]), "at least")


_LONGEST = 120
"""The longest part of an error's text that a message quotes, in characters."""


def needs_values(error: Exception) -> str:
    """Return the sentence for an error that torch itself (C++ or Python) raised in an operation that needs values.
    Raise any other error again, as a fault of tapescope."""
    traceback, name = error.__traceback__, ""
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    if not isinstance(error, RuntimeError) and name.partition(".")[0] != "torch":
        raise error
    text = str(error).partition("\n")[0]
    more = f": {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}" if text else ""
    return f"{NEED_VALUES} ({type(error).__name__}{more})"
