"""Reasons why a predicted figure is an estimate, and whether the true value is above or below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ...inspector.graph.graph import Graph
from ...inspector.graph.phrases import MOST_NAMED, joined
from ...inspector.text.sizes_and_counts import size_text

Direction = Literal["at least", "at most", "unknown"]
"""The true figure is "at least" or "at most" the predicted one, or on an unknown side of it."""


class Estimate(str):
    """A reason why a figure is an estimate: a sentence, and on which side of the figure the true one is.

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
    """Return the direction of a figure that is an estimate for all these reasons; None without a reason."""
    found = {reason.direction if isinstance(reason, Estimate) else "unknown" for reason in reasons}
    if not found:
        return None
    return found.pop() if len(found) == 1 else "unknown"


def bounded_size(nbytes: int, reasons: Iterable[str]) -> str:
    """`5.0 MiB`; `at least 5.0 MiB`, `at most 5.0 MiB` or `about 5.0 MiB` where these make it an estimate."""
    direction = direction_of(reasons)
    words = {None: "", "unknown": "about "}.get(direction, f"{direction} ")
    return words + size_text(nbytes)


def estimate_sentence(reasons: Iterable[str], whose: str = "", most: int = MOST_NAMED) -> str:
    """`An estimate: the workspace of mm is not known. The true figure may be higher.`, or `The peak of bfs is an
    estimate: ...`; "" where there is no reason.

    Args:
        reasons: as in `Timeline.estimates`; each is said once. Plain texts have no direction, and none is said.
        whose: what the figure is, at the beginning of the sentence.
        most: so many are said; of the others only how many there are.
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


def told_first(reasons: Sequence[str]) -> str:
    """The reason to say where there is room for one alone, in few words; "" where there is none.

    That a dry run does not see all that kernels take is said where no other says of which.
    """
    found = next((reason for reason in reasons if not reason.startswith(_GENERAL)), next(iter(reasons), ""))
    return found.replace("not known from a dry run:", "misses")


_GENERAL = "a dry run sees "


WORKSPACE = Estimate(
    "a dry run sees what operations return, not all that their kernels allocate for themselves while they run; "
    "ts.profile measures that",
    "at least",
)
"""Why a dry run is an estimate where a kernel was not run alone."""

OF_SHAPES = Estimate(
    "of a tape that is gone the shapes of its gradients alone are known: each is taken for a new array, and what the "
    "forward left is not counted"
)
"""Why a dry run of a tape's graph, without the tape, is still less exact."""

OF_PYTHON = Estimate("of a tape the arrays are counted, not Python's own objects, which take some KiB more", "at least")
"""Why every prediction of a tape is an estimate."""

OF_A_TAPE = Estimate(f"{OF_PYTHON}; and of its primitives one of each kind was asked, on zeros", "at least")
"""Why a dry run of a tape is one."""

UNLISTED_HOOKS = Estimate(
    "there are hooks which nothing lists; if tensors of this graph had them, what these hold is not known"
)
"""Why a dry run is an estimate where hooks exist and torch does not say on which tensors."""

OTHER_FORMULAS = {
    "ProdBackward": "products over a dimension, for which PyTorch has another formula where there are no values",
    "CumprodBackward": "products over a dimension, for which PyTorch has another formula where there are no values",
    "BinaryCrossEntropy": "formulas with a step in place where there are values",
    "SgnBackward0": "zeros of which there are no bytes where there are values",
    **dict.fromkeys(
        ("IndexReduce", "MaskedFillBackward1", "MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"),
        "formulas that pick elements by their values",
    ),
}
"""By what a node's name has in it: of what a dry run is known to say too little, or too much."""

DTENSORS = "what DTensors send and receive in the backward"

PASSING = {
    "torch.nn.modules._functions.BackwardHookFunction": None,
    "torch.distributed.fsdp._fully_shard._fsdp_state.RegisterPreBackwardFunction": "what FSDP gathers in the backward",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.RegisterPostBackwardFunction": (
        "what FSDP reduces and frees in the backward"
    ),
    "torch.distributed.tensor._api._ToTorchTensor": DTENSORS,
    "torch.distributed.tensor._api._FromTorchTensor": DTENSORS,
    "torch.nn.parallel.distributed._DDPSink": "what DistributedDataParallel reduces in the backward",
}
"""torch's own Functions that give each gradient on as it comes, and what else they do, of which nothing is known."""

NOT_CALLED = "custom Functions, whose code is not called"
OF_A_SUBCLASS = "nodes that saved tensors of a subclass, whose code is not called"
COMPILED = "compiled regions"
HOOKED = "tasks with hooks, which were not run"
NEED_VALUES = "nodes that can't run without values"
DEFINED = "primitives that you have defined, whose formulas are not called"
HELD_LEAVES = (
    "leaves that are no parameters, which the forward may have made and something holds: they are not counted, and a "
    "forward under ts.capture(every_call=True) tells"
)
CASTS = (
    "casts of weights that torch.autocast, which is open, may have cached in an earlier forward: they are counted, and "
    "a forward under ts.capture() shows which are its own"
)
UNSAVED_CASTS = "casts of weights that torch.autocast, which is open, has cached and no node saved. Graphs"
EARLIER = (
    "tensors outside the graph that the capture saw being made before the forward's first node, and after other nodes: "
    "they may be of an earlier step, and are not counted; a capture around one forward tells. Graphs"
)
BESIDE = (
    "nodes of results that the graph does not lead to, which hide or have packed what they saved: it is not counted. "
    "Graphs"
)
HIDDEN = "nodes that hide what they keep from the forward"
CHECKPOINTED = "nodes packed by saved_tensors_hooks (a checkpoint, which computes them again)"
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
        *("what FSDP gathers in the backward", "what FSDP reduces and frees in the backward"),
    )
)
"""Memory that a dry run does not count: the true figure is at least the predicted one."""

_MAY_BE_OLDER = frozenset((CASTS,))
"""Memory that a dry run counts and that may be older than the forward: the true figure is at most the predicted one."""

SAME_IN_EVERY_ORDER = frozenset((*OTHER_FORMULAS.values(), HELD_LEAVES, EARLIER, BESIDE, CASTS))
"""Limits that are the same in every order."""


def limit_sentence(graph: Graph, what: str, task_ids: list[int], unknown: str = "not known from a dry run") -> Estimate:
    """Return the sentence about tasks of which something is not known."""
    sentence = f"{unknown}: {what}: {len(task_ids):,}, the first is {graph.describe(task_ids[0])}"
    return Estimate(sentence, "at least" if what in _NOT_COUNTED else "at most" if what in _MAY_BE_OLDER else "unknown")


def kernel_sentence(graph: Graph, why: str, operators: Iterable[str], task_ids: Iterable[int]) -> Estimate:
    """Of which operators it is not known what they take for themselves, and in which tasks."""
    named = joined([*operators])
    return Estimate(limit_sentence(graph, f"the workspace of {named} ({why})", [*task_ids]), "at least")


_LONGEST = 120
"""The longest part of an error's text that a message quotes, in characters."""


def needs_values(error: Exception) -> str:
    """Return the sentence for an error of torch's own (C++ or Python): an operation that needs values raised it. Raises
    any other error again, as a mistake of tapescope's."""
    traceback, name = error.__traceback__, ""
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    if not isinstance(error, RuntimeError) and name.partition(".")[0] != "torch":
        raise error
    text = str(error).partition("\n")[0]
    more = f": {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}" if text else ""
    return f"{NEED_VALUES} ({type(error).__name__}{more})"
