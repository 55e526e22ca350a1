"""What `torch.autograd.detect_anomaly` adds to a task: a search for NaN, and the forward's traceback of what failed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.torch_internals.nodes import notes_on
from ..words.warn import warn


def check_nan(name: str, outputs: Sequence[Tensor | None]) -> None:
    """Raises for the first gradient with a NaN in it, in the engine's words (engine.cpp, evaluate_function)."""
    for number, output in enumerate(outputs):
        if output is not None and torch.isnan(output.detach()).any():
            raise RuntimeError(f"Function '{name}' returned nan values in its {number}th output.")


def warn_of_forward(node: Node) -> None:
    """Shows where the forward made the node, as anomaly mode noted it (python_anomaly_mode.cpp, print_stack)."""
    notes = notes_on(node)
    if "traceback_" not in notes:
        warn(
            f"Error detected in {node.name()}. No forward pass information available. Enable detect anomaly during "
            "forward pass for more information."
        )
        return
    warn(
        f"Error detected in {node.name()}. Traceback of forward call that caused the error:\n"
        f"{''.join(notes['traceback_'])}"
    )
    parent = notes.get("parent_")
    while parent is not None:
        notes = notes_on(parent)
        if "traceback_" not in notes:
            break
        warn(
            f"\n\nPrevious calculation was induced by {parent.name()}. Traceback of forward call that induced the "
            f"previous calculation:\n{''.join(notes['traceback_'])}"
        )
        parent = notes.get("parent_")
