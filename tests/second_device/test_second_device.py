"""The second device is what tests take it for: an accelerator, as PyTorch sees it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn


def test_kernels_give_what_the_cpu_gives(accelerators: tuple[torch.device, torch.device]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    x = torch.randn(2, 3, 4, 4)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.to(accelerators[0])
    model(x.to(accelerators[0])).sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad.device == accelerators[0]
        torch.testing.assert_close(parameter.grad.cpu(), gradient)


def test_each_device_has_a_thread_of_its_own(accelerators: tuple[torch.device, torch.device]) -> None:
    x = torch.ones(2, requires_grad=True)
    threads = {}
    parts = [x.to(device).exp() for device in accelerators]
    for part in [*parts, total := parts[0].cpu() + parts[1].cpu()]:
        part.grad_fn.register_prehook(
            lambda gradients, device=part.device: threads.setdefault(device, threading.get_ident()) and None
        )
    total.sum().backward()
    assert len(set(threads.values())) == 3
    assert threads[torch.device("cpu")] == threading.get_ident()


def test_allocated_bytes_are_counted_by_device(accelerators: tuple[torch.device, torch.device]) -> None:
    if accelerators[0].type == "cuda":
        pytest.skip("CUDA's allocator is PyTorch's own")
    counter = torch.get_device_module(accelerators[0]).memory_allocated
    before = counter(0), counter(1)
    kept = torch.empty(10, device=accelerators[1])
    assert (counter(0), counter(1)) == (before[0], before[1] + kept.nbytes)
    del kept
    assert (counter(0), counter(1)) == before
