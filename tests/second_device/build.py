"""Compiles the second device into a folder: `python build.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch.utils.cpp_extension import load

if __name__ == "__main__":
    source = Path(__file__).with_name("device.cpp")
    load("second_device", [str(source)], extra_cflags=["-O0"], build_directory=sys.argv[1], is_python_module=False)
    os._exit(0)  # the device has been loaded, and nothing here has any use for it
