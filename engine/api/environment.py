"""What a run depends on besides its tensors: the machine, torch's version, threads, flags, autocast."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.thread_state import autocast_devices


@dataclass(frozen=True, slots=True)
class Machine:
    """What a number was measured on.

    Attributes:
        cpu: its model.
        cores: those which this process may use.
        torch: its version.
        threads: how many torch computes with.
        accelerator: the name of the GPU that is meant; None: the CPU alone.
    """

    cpu: str
    cores: int
    torch: str
    threads: int
    accelerator: str | None = None

    def __str__(self) -> str:
        parts = (self.accelerator, self.cpu, counted(self.cores, "core"), f"torch {self.torch}")
        return ", ".join([part for part in parts if part is not None] + [counted(self.threads, "thread")])


def this_machine(device: torch.device | str = "cpu") -> Machine:
    """This one; with its GPU, where `device` is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = torch.device(device)
    accelerator = None
    if found.type != "cpu":
        named = getattr(torch.get_device_module(found), "get_device_name", None)
        accelerator = found.type if named is None else named(found)
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    return Machine(cpu, cores, torch.__version__, torch.get_num_threads(), accelerator)


Autocast = dict[str, str]
"""By device, where it is on, the dtype."""


_FLOATS = ("float16", "bfloat16", "float32", "float64")

FLAGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], bool]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads, lambda value: type(value) is int and 0 < value < 2**12),
    "default dtype": (
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda value: torch.set_default_dtype(getattr(torch, value)),
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
