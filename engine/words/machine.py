"""What a number was measured on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from .phrases import counted


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
    return Machine(_cpu(), cores, torch.__version__, torch.get_num_threads(), accelerator)


def _cpu() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
