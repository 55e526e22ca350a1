"""`ts.diff` on several devices: two CUDA devices if there are, and the second device."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.says import says

from ..memory.test_accelerator_memory import measured, two_and_cpu


def test_memory_is_compared_on_each_device_that_both_have(accelerators: tuple[torch.device, torch.device]) -> None:
    model, make_loss = two_and_cpu(accelerators)
    heap, bfs = (measured(model, make_loss, policy) for policy in ("heap", "bfs"))
    found = ts.diff(heap, bfs)
    assert found.memory is not None
    compared = [found.memory, *found.elsewhere]
    assert [each.timelines[0].device for each in compared] == list(heap.timelines)
    for each in compared:
        first, second = each.timelines
        assert first.device == second.device
        assert each.peaks == (heap.timelines[first.device].peak_bytes, bfs.timelines[first.device].peak_bytes)
        says(found, first.device)
    assert found.differs


def test_runs_on_different_devices_are_compared_where_they_ran(
    accelerators: tuple[torch.device, torch.device],
) -> None:
    (model, make_loss), (other, other_loss) = two_and_cpu(accelerators), two_and_cpu(accelerators[::-1])
    found = ts.diff(measured(model, make_loss), measured(other, other_loss))
    assert found.memory is not None
    assert {each.timelines[0].device for each in (found.memory, *found.elsewhere)} == {*map(str, accelerators), "cpu"}
    on_cpu = torch.nn.Linear(4, 4)
    plain = measured(on_cpu, lambda: on_cpu(torch.ones(2, 4)).sum())
    with_cpu = ts.diff(measured(model, make_loss), plain)
    assert with_cpu.memory is not None and not with_cpu.elsewhere
    assert with_cpu.memory.timelines[1].device == "cpu" != with_cpu.memory.timelines[0].device
