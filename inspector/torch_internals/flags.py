"""Flags of torch, of this thread or of the process, that a program may set as it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Flag = tuple[Callable[[], Any], Callable[[Any], object]]
"""A function that reads a flag, and one that sets it."""


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


grad_layout_is_enforced: Callable[[], bool] = getattr(torch._C, "_is_grad_layout_enforcement_enabled", lambda: True)
"""Whether an AccumulateGrad copies a gradient whose strides are not its leaf's, instead of keeping it as .grad. Torch
2.13 and later can turn this off (`torch.autograd.enforce_grad_layout_policy`)."""

enforce_grad_layout: Callable[[bool], object] = getattr(
    torch._C, "_set_grad_layout_enforcement_enabled", lambda enforced: None
)


def _attribute(module: Any, name: str) -> Flag:
    return lambda: getattr(module, name), lambda value: setattr(module, name, value)


FLAGS: list[Flag] = [
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (grad_layout_is_enforced, enforce_grad_layout),
    (_anomaly, lambda value: torch.set_anomaly_enabled(*value)),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_deterministic, _set_deterministic),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    *(_attribute(torch.backends.mkldnn, name) for name in ("enabled", "deterministic")),
]
"""The default device is none of them, but a mode. Filters of warnings stay: modules that are imported as a program runs
add their own."""
