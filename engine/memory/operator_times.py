"""Times of operators on fake tensors, measured by running each distinct one alone on real tensors of its shapes."""

from __future__ import annotations

from collections import Counter
from time import thread_time
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ...inspector.graph.node_metadata import tensors_of
from ...inspector.torch_private.operators import Operator, SeenOperations, is_pointwise, real_like
from ...inspector.torch_private.tensors import View
from ...inspector.torch_private.thread_state import unobserved
from .kernel_workspaces import COPIES, NOT_LISTED, PASSIVE, REFUSED, RUN_ALONE, TOO_LARGE, fits_alone, name_of

_TIMED = frozenset(
    (
        *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_fused_rms_norm"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
        *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d"),
        *("replication_pad3d", "pixel_shuffle", "pixel_unshuffle", "_embedding_bag", "topk", "sort"),
        *("bernoulli", "bernoulli_", "native_dropout", "uniform_", "normal_", "rand", "rand_like"),
        *("randn", "randn_like", "randperm"),
        *("nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy", "huber_loss", "smooth_l1_loss", "glu"),
        *("_scaled_dot_product_flash_attention_for_cpu", "_weight_norm_interface", "log_sigmoid_forward"),
    )
)
"""More operators that may be run on zeros, used by forwards. They do not read outside their arguments, either."""

_ALONE = RUN_ALONE | COPIES | _TIMED | (PASSIVE - {"set_", "resize_"})
_AGAIN_BELOW = 0.2  # seconds below which an operator is run twice, and the shorter time counts


class OperatorTimes(SeenOperations):  # type: ignore[no-untyped-call]
    """Mode that times each operation on fake CPU tensors while it is active, including those of a backward.

    Each distinct operation (operator, shapes, strides, other arguments) runs alone on real tensors, at most twice, if
    it may be run on zeros and ones and its tensors fit into memory. Views take no time.

    Known limitations: the numbers are zeros or ones, the tensors are either all in the CPU's cache or not at all, and
    nothing else runs at the same time.

    Attributes:
        seconds: the times of this thread's operations in order; None for one that was not run.
        untimed: the reasons why operations were not run, with their counts.
    """

    sees_backward = True

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []
        self.untimed: Counter[tuple[str, str]] = Counter()
        self._known: dict[object, float | str] = {}

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = operator(*args, **kwargs)
        found: float | str = 0.0
        if not operator.is_view:
            key = operator, *map(_alike, tree_leaves((args, kwargs)))
            if key not in self._known:
                self._known[key] = _taken(operator, args, kwargs, result)
            found = self._known[key]
        if isinstance(found, str):
            self.untimed[name_of(operator), found] += 1
        self.seconds.append(None if isinstance(found, str) else found)
        return result


def _alike(value: object) -> object:
    """Return a key that is equal for arguments with which an operator takes equally long."""
    return View.of(value)._replace(offset=0) if isinstance(value, Tensor) else repr(value)


def _taken(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> float | str:
    """Return the shortest time, or the reason why there is none."""
    tensors = [*tensors_of((args, kwargs)), *tensors_of(result)]
    pointwise = is_pointwise(operator)
    if not (pointwise or name_of(operator) in _ALONE) or any(each.layout is not torch.strided for each in tensors):
        return NOT_LISTED
    if not fits_alone(tensors):
        return TOO_LARGE
    with unobserved():
        args, kwargs = tree_map_only(Tensor, lambda tensor: real_like(tensor, 1 if pointwise else 0), (args, kwargs))
        try:
            taken = _once(operator, args, kwargs)
            return min(taken, _once(operator, args, kwargs)) if taken < _AGAIN_BELOW else taken
        except Exception:
            return REFUSED


def _once(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    began = thread_time()
    operator(*args, **kwargs)  # the time includes the free of its result, as in a backward
    return thread_time() - began
