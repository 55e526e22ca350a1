"""The environment of a run besides its tensors: the machine, torch's version, threads, flags, autocast."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.thread_state import autocast_devices


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which a number was measured.

    Attributes:
        cpu: the CPU's model.
        cores: the number of cores this process may use.
        torch: torch's version.
        threads: the number of threads torch uses.
        accelerator: name of the GPU used; None for the CPU alone.
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
    """Return this machine, with its GPU if `device` is one."""
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
"""The dtype of each device for which autocast is on."""


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
"""For each flag: a function that reads it, one that sets it, and one that checks a value."""


for _module, _names in (
    (torch.backends.cudnn, ("enabled", "benchmark", "deterministic")),
    (torch.backends.mkldnn, ("enabled", "deterministic")),
):
    for _name in _names:
        if hasattr(_module, _name):
            FLAGS[f"{_module.__name__.removeprefix('torch.backends.')}.{_name}"] = (
                partial(getattr, _module, _name),
                partial(setattr, _module, _name),
                lambda value: value in (0, 1),
            )


def flags_now() -> dict[str, Any]:
    """Return the present value of each flag."""
    return {name: read() for name, (read, _, _) in FLAGS.items()}


@contextmanager
def flags_as(wanted: Mapping[str, Any]) -> Iterator[None]:
    """Set the flags, and restore them afterwards."""
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
    """Return the devices and dtypes for which autocast is on in this thread."""
    return {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in autocast_devices()
        if torch.is_autocast_enabled(device)
    }


@contextmanager
def autocast_as(wanted: Autocast) -> Iterator[None]:
    """Turn on autocast for these devices."""
    with ExitStack() as stack:
        for device, dtype in wanted.items():
            stack.enter_context(torch.autocast(device, getattr(torch, dtype)))
        yield


def read_autocast(settings: object) -> Autocast:
    """Return autocast settings read from JSON.

    Raises:
        ValueError: they are not valid here.
    """
    if not isinstance(settings, dict) or not all(device in autocast_devices() for device in settings):
        raise ValueError("the autocast settings name a device that does not support autocast on this machine")
    if not all(dtype in _FLOATS for dtype in settings.values()):
        raise ValueError("the autocast settings name a dtype that autocast does not support")
    return settings


def autocast_words(state: Autocast) -> str:
    """Return a description, `autocast to bfloat16 on the cpu` or `no autocast`."""
    return " and ".join(f"autocast to {dtype} on {device}" for device, dtype in state.items()) or "no autocast"


def machine_now() -> dict[str, str]:
    """Return facts about the machine that influence results and cannot be set."""
    facts = {"torch": str(torch.__version__), "processor": this_machine().cpu, "system": platform.platform()}
    with suppress(AttributeError, RuntimeError):
        facts["vector instructions"] = torch.backends.cpu.get_cpu_capability()
    with suppress(AttributeError, RuntimeError):
        if torch.accelerator.is_available():
            here = torch.device(torch.accelerator.current_accelerator() or "cpu")
            facts["accelerator"] = str(this_machine(here).accelerator)
    return facts
