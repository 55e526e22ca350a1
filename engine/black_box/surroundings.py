"""What a step depends on besides its tensors: torch's version, threads, flags, the machine, autocast."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from ...inspector.torch_internals.modes import autocast_devices
from ..words.machine import this_machine

Autocast = dict[str, str]
"""By device, where it is on, the dtype."""


def _set_dtype(value: str) -> None:
    torch.set_default_dtype(getattr(torch, value))


_FLOATS = ("float16", "bfloat16", "float32", "float64")

FLAGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], bool]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads, lambda value: type(value) is int and 0 < value < 2**12),
    "default dtype": (
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        _set_dtype,
        lambda value: value in _FLOATS,
    ),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        lambda value: torch.use_deterministic_algorithms(value, warn_only=True),
        lambda value: isinstance(value, bool),
    ),
    "float32 matmul precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        lambda value: value in ("highest", "high", "medium"),
    ),
}
"""By name what reads it, what sets it, and whether that is a value of it."""


def _backend(module: Any, name: str) -> None:
    def read() -> Any:
        return getattr(module, name)

    def write(value: Any) -> None:
        setattr(module, name, value)

    FLAGS[f"{module.__name__.removeprefix('torch.backends.')}.{name}"] = read, write, lambda value: value in (0, 1)


for _module, _names in (
    (torch.backends.cudnn, ("enabled", "benchmark", "deterministic")),
    (torch.backends.mkldnn, ("enabled", "deterministic")),
):
    for _name in _names:
        if hasattr(_module, _name):
            _backend(_module, _name)


def flags_now() -> dict[str, Any]:
    """The value of each."""
    return {name: read() for name, (read, _, _) in FLAGS.items()}


@contextmanager
def flags_as(wanted: Mapping[str, Any]) -> Iterator[None]:
    """Meanwhile the flags are so."""
    with ExitStack() as stack:
        for name, value in wanted.items():
            if name in FLAGS and FLAGS[name][2](value):
                read, write, _ = FLAGS[name]
                before = read()
                if before != value:
                    stack.callback(write, before)
                    write(value)
        yield


def autocast_now() -> Autocast:
    """Where it is on in this thread."""
    return {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in autocast_devices()
        if torch.is_autocast_enabled(device)
    }


@contextmanager
def autocast_as(wanted: Autocast) -> Iterator[None]:
    """Meanwhile autocast is on for these devices."""
    with ExitStack() as stack:
        for device, dtype in wanted.items():
            stack.enter_context(torch.autocast(device, getattr(torch, dtype)))
        yield


def read_autocast(told: object) -> Autocast:
    """The same of JSON.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(told, dict) or not all(device in autocast_devices() for device in told):
        raise ValueError("what is said of autocast names devices that have none here")
    if not all(dtype in _FLOATS for dtype in told.values()):
        raise ValueError("what is said of autocast names dtypes that it does not have")
    return told


def autocast_words(state: Autocast) -> str:
    """`autocast to bfloat16 on the cpu`; `no autocast`."""
    return " and ".join(f"autocast to {dtype} on {device}" for device, dtype in state.items()) or "no autocast"


def machine_now() -> dict[str, str]:
    """What figures depend on that can't be set."""
    told = {"torch": str(torch.__version__), "processor": this_machine().cpu, "system": platform.platform()}
    with suppress(AttributeError, RuntimeError):
        told["vector instructions"] = torch.backends.cpu.get_cpu_capability()
    with suppress(AttributeError, RuntimeError):
        if torch.accelerator.is_available():
            here = torch.device(torch.accelerator.current_accelerator() or "cpu")
            told["accelerator"] = str(this_machine(here).accelerator)
    return told
