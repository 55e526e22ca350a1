"""DTensors: which part of a gradient is this rank's, as far as it can be known without running anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from .saved import attributes_of


def given_part(node: Node) -> tuple[int, ...] | None:
    """The shape of this rank's part of the gradient which the node of a DTensor's own Function gives; None: of others.

    These are those behind `to_local` and `redistribute`, which know how the gradient is to be split.
    """
    kept = attributes_of(node)
    split = kept.get("dtensor_spec") or kept.get("current_spec")
    return None if split is None or type(split).__name__ != "DTensorSpec" else _part_of(split)


def _part_of(split: Any) -> tuple[int, ...] | None:
    try:
        shape, _ = torch.distributed.tensor._utils.compute_local_shape_and_global_offset(
            split.shape, split.mesh, split.placements
        )
    except (RuntimeError, ValueError, NotImplementedError):  # placements of somebody's own
        return None
    return tuple(shape)


def gives_on(node: Node) -> bool:
    """Whether a node behind `redistribute` gives the gradient on as it comes: the forward has completed sums."""
    split: Any = attributes_of(node).get("current_spec")
    return type(split).__name__ == "DTensorSpec" and any(each.is_partial() for each in split.placements)


def is_partly_here(tensor: Tensor) -> bool:
    """Return whether it is a DTensor of which this rank has only a part, or one summand."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    placements: Any = getattr(tensor, "placements", ())
    return mesh is not None and mesh.size() > 1 and not all(each.is_replicate() for each in placements)
