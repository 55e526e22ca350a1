"""Which device's memory is meant."""

from __future__ import annotations

import torch

from ...inspector.graph.graph import Graph


def device_of(graph: Graph, wanted: torch.device | str | None = None) -> torch.device:
    """The wanted one, with its number; by default the one accelerator on which the backward runs, else the CPU.

    Of tensors without memory (`device="meta"`, whose tasks PyTorch runs on the CPU) it is "meta".

    Raises:
        ValueError: it runs on several of which each could be meant.
    """
    device = None if wanted is None else torch.device(wanted)
    if device is not None and (device.type in ("cpu", "meta") or device.index is not None):
        return device
    accelerators = [each for each in graph.devices if each.type != "cpu"]
    found = sorted(str(each) for each in accelerators if device is None or each.type == device.type)
    if len(found) > 1:
        raise ValueError(
            f"this backward runs on {' and '.join(found)}, and memory is that of one device: say of which, as in "
            f'th.profile(make_loss, device="{found[0]}")'
        )
    if found:
        return torch.device(found[0])
    return device or torch.device("meta" if _on_meta(graph) else "cpu")


def _on_meta(graph: Graph) -> bool:
    return any(meta.device.type == "meta" for task in graph.tasks for meta in task.inputs)
