"""Why a tensor has no graph below it, as far as the tensor itself and the mode of the moment tell."""

from __future__ import annotations

import torch
from torch import Tensor

from ..torch_internals.modes import functorch_is_active


def why_no_graph(tensor: Tensor) -> str:
    """The reason, to stand behind a colon, without a full stop."""
    if tensor.is_inference():
        return "it was computed under torch.inference_mode(), which records nothing"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return (
            f"it holds {str(tensor.dtype).removeprefix('torch.')}, and whole numbers and truth values have no gradient "
            "(argmax, round to an integer type, a comparison)"
        )
    if functorch_is_active():
        return (
            "it was computed inside a transform of torch.func (vmap, grad, ...), which records no graph there, or none "
            "of this tensor; ask outside of the transform"
        )
    if not torch.is_grad_enabled():
        return "gradients are switched off here, by torch.no_grad() or torch.set_grad_enabled(False)"
    return (
        "it was computed under torch.no_grad(), or cut off by .detach(), .data or .item(), or nothing that went into "
        "it requires grad, as where all parameters are frozen"
    )
