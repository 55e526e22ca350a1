"""`SCRIPT.py:FUNCTION` on the command line: a user's function, run under a capture to draw its graph, or compared."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from .inspector.capture import capture
from .inspector.graph import Graph
from .inspector.walk import graph

HERE = Path(__file__).parent
LIBRARY = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What came of a user's function: its graph, and the error if it raised (then the graph up to it, if any)."""

    graph: Graph | None
    error: BaseException | None = None


def draw_function(target: str) -> Drawn:
    """Runs `SCRIPT.py:FUNCTION` with the script's folder on sys.path.

    The function takes no arguments and returns a loss, or a loss and the model to name parameters after.

    Raises:
        ValueError: the target names no script or no function, or the function returns something else.
    """
    _, function_name = _parts(target)
    try:
        with _users_function(target) as function:
            try:
                with capture() as tape:
                    result = function()
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                return Drawn(_graph_so_far(tape.graph), error)
    except UserError as error:
        return Drawn(None, error.error)
    loss, model = _loss_and_model(result, function_name)
    try:
        return Drawn(graph(loss, model))
    except RuntimeError as error:
        raise ValueError(f"{function_name}() returned a loss without a graph: {error}") from error


@contextmanager
def make_loss_of(target: str) -> Iterator[Callable[[], Tensor]]:
    """What makes the loss of `SCRIPT.py:FUNCTION`, while the script's folder is on sys.path. See `draw_function`.

    Raises:
        ValueError: as there.
        UserError: the script raised; and so does what is given, if the function raises.
    """
    _, function_name = _parts(target)

    with _users_function(target) as function:

        def make_loss() -> Tensor:
            try:
                result = function()
            except (Exception, SystemExit) as error:
                raise UserError(error) from error
            return _loss_and_model(result, function_name)[0]

        yield make_loss


class UserError(Exception):
    """What the script itself raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _parts(target: str) -> tuple[Path, str]:
    script, colon, function_name = target.rpartition(":")
    if not colon or not script or not function_name.isidentifier():
        raise ValueError(f"expected SCRIPT.py:FUNCTION, got {target!r}")
    path = Path(script).resolve()
    if not path.is_file():
        raise ValueError(f"there is no script {script}")
    if path.suffix != ".py":
        raise ValueError(f"{script} is not a Python script: its name does not end in .py")
    return path, function_name


@contextmanager
def _users_function(target: str) -> Iterator[Callable[[], Any]]:
    path, function_name = _parts(target)
    sys.path.insert(0, str(path.parent))
    try:
        yield _function(_load(path), function_name)
    finally:
        sys.path.remove(str(path.parent))


def _load(path: Path) -> ModuleType:
    """Imports the script under its own name, as its neighbours would, unless a module of that name is there already."""
    name = path.stem if path.stem not in sys.modules else f"tapehead script {path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up here
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(error) from error
    return module


def _function(module: ModuleType, name: str) -> Callable[[], Any]:
    function: Callable[[], Any] | None = getattr(module, name, None)
    if function is not None and callable(function):
        return function
    own = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and not isinstance(value, type)
    ]
    raise ValueError(
        f"{Path(str(module.__file__)).name} has no function {name!r}; it has: {', '.join(own) or 'no functions'}"
    )


def _graph_so_far(read: Callable[[], Graph]) -> Graph | None:
    try:
        return read()
    except ValueError:
        return None


def _loss_and_model(result: object, function_name: str) -> tuple[Tensor, nn.Module | None]:
    match result:
        case Tensor():
            return result, None
        case (Tensor() as loss, nn.Module() as model):
            return loss, model
    raise ValueError(f"{function_name}() returned {_describe(result)}; expected a loss tensor or a pair (loss, model)")


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of ({', '.join(type(part).__name__ for part in value)})"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def users_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, less the frames of Python's library, of installed packages and of tapehead."""
    report = traceback.TracebackException.from_exception(error)
    reports: list[traceback.TracebackException | None] = [report]
    while reports:
        if each := reports.pop():
            own = [frame for frame in each.stack if _is_users(frame.filename)]
            each.stack = traceback.StackSummary.from_list(own)
            reports += [each.__cause__, each.__context__]
    return "".join(report.format())


def _is_users(filename: str) -> bool:
    path = Path(filename)
    packages = (HERE / "inspector", HERE / "engine", HERE / "widgets", *LIBRARY)
    return not filename.startswith("<") and path != Path(__file__) and not any(map(path.is_relative_to, packages))
