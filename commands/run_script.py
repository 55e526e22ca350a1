"""Run a user's script or module in this process as Python runs it, without importing torch before it does."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any


def script_path(script: str) -> Path:
    """Return the path of a script.

    Raises:
        ValueError: the script does not exist.
    """
    path = Path(os.path.abspath(script))
    if path.is_dir():
        raise ValueError(f"script {script} is a folder; run a package with -m")
    if not path.is_file():
        near = f"; did you mean {script}.py?" if path.with_name(f"{path.name}.py").is_file() else ""
        raise ValueError(f"script {script} does not exist{near}")
    return path


def run_script(path: Path, name: str, arguments: Sequence[str]) -> None:
    """Run a script in this process as `python NAME ARGUMENTS` does. It stays the module `__main__`.

    Errors, including SystemExit, are raised unchanged. When Python prints them, frames of tapescope are left out.
    """
    module = _new_main(name, arguments, os.path.dirname(os.path.realpath(path)))
    loader = SourceFileLoader("__main__", str(path))
    vars(module).update(__file__=str(path), __loader__=loader, __cached__=None, __annotations__={})

    def run() -> None:
        with io.open_code(str(path)) as file:
            code = compile(file.read(), str(path), "exec", dont_inherit=True)
        exec(code, vars(module))

    _run_as_main(run)


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Run a module in this process as `python -m NAME ARGUMENTS` does, otherwise like `run_script`."""
    _new_main("-m", arguments, os.getcwd())
    # runpy's function for `python -m` itself: it sets sys.argv[0], and runs in the module `__main__`, which stays.
    run: Callable[[str], Any] = runpy._run_module_as_main  # type: ignore[attr-defined]
    _run_as_main(lambda: run(name))


def _new_main(name: str, arguments: Sequence[str], folder: str) -> ModuleType:
    """Set sys.argv and sys.path, and put an empty module `__main__` into sys.modules."""
    sys.argv[:] = [name, *arguments]
    # Python puts the folder first on sys.path, unless it was started with -P.
    if not sys.flags.safe_path:
        sys.path[0] = folder
    module = ModuleType("__main__")
    vars(module).update(__builtins__=builtins)
    # pickle and multiprocessing look up the script's classes in `__main__`.
    sys.modules["__main__"] = module
    return module


def _run_as_main(run: Callable[[], None]) -> None:
    try:
        run()
    except BaseException:
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            """Call Python's or the user's hook with only the user's frames."""
            if "torch" in sys.modules:
                from ..widgets.terminal.user_traceback import without_own_frames

                without_own_frames(error, _run_as_main)
            else:  # importing that module would import torch
                while traceback is not None:
                    if traceback.tb_frame.f_code is run.__code__:
                        error.__traceback__ = traceback.tb_next
                    traceback = traceback.tb_next
            before(kind, error, error.__traceback__)

        sys.excepthook = hook
        raise


def script_and_function(target: str) -> tuple[Path, str]:
    """Split `SCRIPT.py:FUNCTION`.

    Raises:
        ValueError: it has another form, or the script does not exist.
    """
    script, colon, function_name = target.rpartition(":")
    if not colon or not script or not function_name.isidentifier():
        raise ValueError(f"expected SCRIPT.py:FUNCTION, got {target!r}")
    path = Path(script).resolve()
    if not path.is_file():
        near = f"; did you mean {script}.py:{function_name}?" if path.with_name(f"{path.name}.py").is_file() else ""
        raise ValueError(f"script {script} does not exist{near}")
    if path.suffix != ".py":
        raise ValueError(f"a script's name must end in .py, got {script}")
    return path, function_name
