"""Everything of torch that is private, in one place: each function names what it needs.

Checked by tests/test_torch_internals.py, so that a torch release which changes one of them fails there first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import Node


def input_metadata(node: Node) -> list[tuple[tuple[int, ...] | None, torch.dtype, torch.device]]:
    """Shape (None for nested tensors), dtype and device of each gradient that `node` takes. Needs `Node._input_metadata`."""
    found: list[Any] = []
    for meta in node._input_metadata:  # type: ignore[attr-defined]
        nested = meta.is_nested_tensor or meta.is_cpp_nested_tensor
        found.append((None if nested else tuple(meta.shape), meta.dtype, meta.device))
    return found
