"""Builds and reads the counter of `allocations.cpp`."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_name("allocations.cpp")

COMPILER = next((found for each in ("c++", "g++", "clang++") if (found := shutil.which(each))), None)


def build(folder: Path) -> Path:
    """Compiles the counter into a folder; needs `COMPILER`."""
    library = folder / "liballocations.so"
    command = [str(COMPILER), "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def metered(library: Path, *command: str, capture: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs this Python with the counter below it, in one thread."""
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "TAPESCOPE_TRACEBACKS": "full"}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=capture, text=True)


class Meter:
    """The bytes that torch's CPU allocator holds, in a process of `metered`.

    Attributes:
        base: what it held as the meter was made.
    """

    def __init__(self) -> None:
        self._counter = ctypes.CDLL(None)
        for name in ("metered_now", "metered_highest", "metered_others"):
            getattr(self._counter, name).restype = ctypes.c_long
        gc.collect()
        self.base = self.now

    @property
    def now(self) -> int:
        return int(self._counter.metered_now())

    @property
    def scratch(self) -> int:
        """Return the most bytes that libraries held since the last `highest` (oneDNN), beside torch's allocator."""
        return int(self._counter.metered_others())

    def highest(self, run: Callable[[], object]) -> int:
        """The most that is held while this runs, above the base."""
        self._counter.metered_reset()
        run()
        return int(self._counter.metered_highest()) - self.base
