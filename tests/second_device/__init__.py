"""A second kind of device, on the host's memory, for testing code for accelerators without one.

PyTorch's engine gives each of its two devices a worker thread and a ready queue of its own. A process takes to it
before its first backward, which starts those threads, and for good: `pytest --second-device` does that, and
`test_alone.py` runs it so. Where hooks have run in such a thread Python may abort at its exit (PyTorch's issue #38228),
so such a process ends by `os._exit`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch.utils.cpp_extension import get_default_build_root

NAME = "second"
COUNT = 2

_FOLDER = Path(__file__).parent
_SOURCES = (_FOLDER / "device.cpp", _FOLDER / "build.py")
_LIBRARY = "second_device.so"


def why_not() -> str | None:
    """Why the device can't be compiled here; None where it can, or has been."""
    if _library().exists():
        return None
    missing = [name for name in ("g++", "ninja") if shutil.which(name, path=_path()) is None]
    return f"the second device needs {' and '.join(missing)} to be compiled" if missing else None


def load() -> None:
    """Makes the devices `second:0` and `second:1` known to torch, and compiles them first where nobody has."""
    library = _library()
    if not library.exists():
        _compile(library)
    spec = importlib.util.spec_from_file_location("second_device", library)
    assert spec is not None and spec.loader is not None
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module(device))
    device.register_hooks()


def _library() -> Path:
    """Return the path of the library, compiled once from these sources with this torch."""
    sources = b"".join(source.read_bytes() for source in _SOURCES)
    version = f"{torch.__version__} {sys.version}".encode()
    digest = hashlib.sha256(sources + version).hexdigest()[:16]
    return Path(get_default_build_root()) / f"tapescope_second_device_{digest}" / _LIBRARY


def _path() -> str:
    """Return the search path for programs: pip installs ninja beside Python, whose folder a shell need not know."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])


def _compile(library: Path) -> None:
    """Compile the library. Several processes may do so at the same time, each in a folder of its own."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        command = [sys.executable, str(_FOLDER / "build.py"), folder]
        subprocess.run(command, check=True, env={**os.environ, "PATH": _path()})
        os.replace(Path(folder) / _LIBRARY, library)


def _device_module(device: Any) -> ModuleType:
    """Return the module that torch uses for this device, like `torch.cuda`."""

    def number_of(which: Any) -> int:
        return which if isinstance(which, int) else torch.device(which).index or 0

    class Current:
        """`with torch.second.device(1):`"""

        def __init__(self, index: Any) -> None:
            self._index = number_of(index)

        def __enter__(self) -> None:
            self._before = device.current_device()
            device.set_device(self._index)

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None:
            device.set_device(self._before)

    module = ModuleType(f"torch.{NAME}")
    its = vars(module)
    its.update(device=Current, current_device=device.current_device, device_count=device.device_count)
    its.update(is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False)
    its.update(_lazy_init=lambda: None, synchronize=lambda device=None: None)
    its.update(manual_seed=torch.default_generator.manual_seed, manual_seed_all=torch.default_generator.manual_seed)
    its.update(get_rng_state=lambda device=None: torch.get_rng_state())
    its.update(set_rng_state=lambda state, device=None: torch.set_rng_state(state))
    its.update(get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16])
    its.update(memory_allocated=lambda which: device.memory_allocated(number_of(which)))
    its.update(set_memory_limit=device.set_memory_limit)
    its.update(write_down=device.write_down, take_lines=device.take_lines, stream_of=device.stream_of)
    return module
