"""What a task answers that is asked in a dry run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..memory.footprint import Footprint
from ..memory.layouts import TensorLayout, layout_of


class Gradient(NamedTuple):
    """A gradient on its way, as far as it matters to memory."""

    layout: TensorLayout
    dtype: torch.dtype
    device: torch.device
    conjugated: bool = False
    negated: bool = False

    @staticmethod
    def of(tensor: Tensor) -> Gradient:
        return Gradient(layout_of(tensor), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())


class Answer(NamedTuple):
    """What a task does: its footprint, and the gradients that it gives."""

    footprint: Footprint
    gradients: tuple[Gradient | None, ...]
    unknown: tuple[tuple[str, str], ...] = ()  # why it is not known what operators take for themselves, and their names
