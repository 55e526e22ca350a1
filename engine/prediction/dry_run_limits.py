"""What a dry run does not know, in words."""

from __future__ import annotations

from collections.abc import Iterable

from ...inspector.graph.graph import Graph
from ..words.phrases import joined

WORKSPACE = (
    "a dry run sees what operations return, not all that their kernels allocate for themselves while they run; "
    "th.profile measures that"
)
"""Why a dry run is an estimate where a kernel was not run alone."""

OF_SHAPES = (
    "of a tape that is gone the shapes of its gradients alone are known: each is taken for a new array, and what the "
    "forward left is not counted"
)
"""Why a dry run of a tape's graph, without the tape, is still less exact."""

OF_PYTHON = "of a tape the arrays are counted, not Python's own objects, which take some KiB more"
"""Why every prediction of a tape is an estimate."""

OF_A_TAPE = f"{OF_PYTHON}; and of its primitives one of each kind was asked, on zeros"
"""Why a dry run of a tape is one."""

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
DEFINED = "primitives that you have defined, whose formulas are not called"


def limit_sentence(graph: Graph, what: str, task_ids: list[int]) -> str:
    """Of which tasks something is not known."""
    return f"not known from a dry run: {what}: {len(task_ids):,}, the first is {graph.describe(task_ids[0])}"


def kernel_sentence(graph: Graph, why: str, operators: Iterable[str], task_ids: Iterable[int]) -> str:
    """Of which operators it is not known what they take for themselves, and in which tasks."""
    named = joined([*operators])
    return limit_sentence(graph, f"the workspace of {named} ({why})", [*task_ids])
