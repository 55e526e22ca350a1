"""Choice of the device whose memory is predicted or measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import torch

from ...inspector.graph.graph import Graph
from ...inspector.graph.phrases import joined
from ...inspector.validation import expect


def device_of(graph: Graph, wanted: torch.device | str | None = None) -> torch.device:
    """Return `wanted` with its index; by default the accelerator on which the backward runs, else the CPU.

    If there are several accelerators, return the one on which nodes keep most bytes. For tensors without memory
    (`device="meta"`, whose tasks PyTorch runs on the CPU) return "meta".

    Raises:
        ValueError: If `wanted` has no index and the backward runs on several devices of that type.
    """
    device = None if wanted is None else torch.device(wanted)
    if device is not None and (device.type in ("cpu", "meta") or device.index is not None):
        return device
    accelerators = [each for each in graph.devices if each.type != "cpu"]
    found = sorted(str(each) for each in accelerators if device is None or each.type == device.type)
    if len(found) > 1 and device is not None:
        raise ValueError(f'this backward runs on {joined(found)}; choose one of them, as in device="{found[0]}"')
    if found:
        kept: Counter[str] = Counter()  # the bytes that nodes keep on each device
        sizes = {(str(each.device), each.storage): each.storage_bytes or 0 for each in graph.saved}
        for (name, _), nbytes in sizes.items():
            kept[name] += nbytes
        return torch.device(min(found, key=lambda each: (-kept[each], each)))
    return device or torch.device("meta" if _on_meta(graph) else "cpu")


def devices_of(graph: Graph) -> list[torch.device]:
    """Return the devices whose memory the backward uses, the CPU first; only "meta" for tensors without memory."""
    if _on_meta(graph):
        return [torch.device("meta")]
    return sorted(graph.devices, key=lambda device: (device.type != "cpu", str(device)))


def chosen_device(wanted: torch.device | str, found: Collection[str]) -> str:
    """Return the device in `found` that `wanted` names, by its full name or by its type if there is only one.

    Raises:
        TypeError, ValueError: If `wanted` is not a device, or names none or several of them.
    """
    expect(wanted, torch.device | str, "device", 'a device: "cpu", "cuda:0"')
    name = str(wanted)
    of_kind = [name] if name in found else [each for each in found if each.partition(":")[0] == name]
    if len(of_kind) == 1:
        return of_kind[0]
    raise ValueError(f"the memory of device={name!r} is not known; expected one of {joined(list(found))}")


def measurable(device: torch.device) -> torch.device:
    """Return the device with its index.

    Raises:
        ValueError: If memory cannot be measured on such a device, or the device does not exist.
    """
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "meta":
        raise ValueError(f"memory can be measured on the CPU and on accelerators, not on {device}")
    here = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if here is not None and here.type == device.type else 0
    number = device.index if device.index is not None else torch.accelerator.current_device_index() if count else 0
    if number >= count:
        raise ValueError(f"device {device} does not exist; torch sees {count or 'no'} {device.type} devices")
    return torch.device(device.type, number)


def _on_meta(graph: Graph) -> bool:
    return any(meta.device.type == "meta" for task in graph.tasks for meta in task.inputs)
