"""A user's script on the command line: run as Python would run it, or one of its functions (`SCRIPT.py:FUNCTION`)."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from torch import Tensor, nn

from ..engine.api.make_loss import has_run_backward, to_return_instead
from ..inspector.capture.build_graph import read_graph, why_no_graph
from ..inspector.capture.capture import capture
from ..inspector.graph.graph import Graph
from ..inspector.torch_private.sequence_numbers import sequence_nr
from ..inspector.validation import expect_callable
from ..widgets.terminal.user_traceback import without_own_frames


def script_path(script: str) -> Path:
    """Where the script is.

    Raises:
        ValueError: there is none.
    """
    path = Path(os.path.abspath(script))
    if not path.is_file():
        raise ValueError(f"there is no script {script}")
    return path


def run_script(path: Path, name: str, arguments: Sequence[str]) -> None:
    """Runs a script as `python NAME ARGUMENTS` does: in this process, as `__main__`, which it stays.

    What it raises comes out as it is, SystemExit included. Python, when it shows that, leaves out what is not the
    script's doing.
    """
    sys.argv[:] = [name, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", str(path))
    vars(module).update(
        __file__=str(path), __loader__=loader, __cached__=None, __annotations__={}, __builtins__=builtins
    )
    sys.modules["__main__"] = module
    try:
        _run_as_main(path, vars(module))
    except BaseException:
        _hide_own_frames()
        raise


def _run_as_main(path: Path, names: dict[str, Any]) -> None:
    with io.open_code(str(path)) as file:
        code = compile(file.read(), str(path), "exec", dont_inherit=True)
    exec(code, names)


def _hide_own_frames() -> None:
    """What Python calls for an error that nobody caught, its own or a hook of the user's, sees the user's frames."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        without_own_frames(error, _run_as_main)
        before(kind, error, error.__traceback__)

    sys.excepthook = hook


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
                with capture(every_call=True) as tape:
                    result = function()
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                return Drawn(_graph_so_far(tape.graph), error)
    except UserError as error:
        return Drawn(None, error.error)
    loss, model = _loss_and_model(result, function_name)
    try:
        return Drawn(read_graph(loss, model).owned())  # the loss ends here, and ts.find_batches asks the nodes
    except RuntimeError as error:
        raise ValueError(f"{function_name}() returned a loss without a graph: {error}") from error


@contextmanager
def make_loss_of(target: str, needs_graph: bool = False) -> Iterator[Callable[[], Tensor]]:
    """What makes the loss of `SCRIPT.py:FUNCTION`, while the script's folder is on sys.path. See `draw_function`.

    Args:
        target: the script and its function.
        needs_graph: a loss without a graph is refused.

    Raises:
        ValueError: as there.
        UserError: the script raised; and so does what is given, if the function raises.
    """
    _, function_name = _parts(target)

    with _users_function(target) as function:
        looked_at = False

        def make_loss() -> Tensor:
            nonlocal looked_at
            since = sequence_nr()
            try:
                result = function()
            except (Exception, SystemExit) as error:
                raise UserError(error) from error
            loss = _loss_and_model(result, function_name)[0]
            if not looked_at:  # once: it takes time, and calls are measured
                looked_at = True
                if needs_graph and not loss.requires_grad:
                    raise ValueError(f"{function_name}() returned a loss without a graph: {why_no_graph(loss)}")
                if has_run_backward(loss, since):
                    raise ValueError(
                        f"{function_name}() has run the backward of its loss itself; return the loss before that"
                    )
            return loss

        yield make_loss


@contextmanager
def made_by(target: str) -> Iterator[object]:
    """What `SCRIPT.py:FUNCTION` returns, while the script's folder is on sys.path.

    Raises:
        ValueError: the target names no script or no function.
        UserError: the script raised, or the function.
    """
    with _users_function(target) as function:
        try:
            made = function()
        except (Exception, SystemExit) as error:
            raise UserError(error) from error
        yield made


@contextmanager
def functions_of(*targets: str) -> Iterator[list[Callable[..., Any]]]:
    """The functions of several `SCRIPT.py:FUNCTION`, while the scripts' folders are on sys.path. A script that several
    are of is imported once.

    Raises:
        ValueError: a target names no script or no function.
        UserError: a script raised.
    """
    found: list[Callable[..., Any]] = []
    modules: dict[Path, ModuleType] = {}
    paths = [_parts(target)[0] for target in targets]
    with ExitStack() as stack:
        for path, target in zip(paths, targets, strict=True):
            if path not in modules:
                stack.enter_context(_beside(path))
                modules[path] = _load(path)
            found.append(_function(modules[path], _parts(target)[1]))
        yield found


def backward_of(target: str) -> None:
    """Makes the loss of `SCRIPT.py:FUNCTION`, and runs its backward.

    Raises:
        ValueError: as in `make_loss_of`.
        UserError: the script raised, in the backward, too.
    """
    with make_loss_of(target) as make_loss:
        loss = make_loss()
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise UserError(error) from error


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
    with functions_of(target) as (function,):
        try:
            expect_callable(function, 0, target, "a function that makes all it needs itself")
        except TypeError as error:
            raise ValueError(str(error)) from None
        yield function


@contextmanager
def _beside(path: Path) -> Iterator[None]:
    """A script's folder is on sys.path meanwhile, so that it finds its neighbours."""
    sys.path.insert(0, str(path.parent))
    try:
        yield
    finally:
        sys.path.remove(str(path.parent))


def _load(path: Path) -> ModuleType:
    """Imports the script under its own name, as its neighbours would, unless a module of that name is there already."""
    name = path.stem if path.stem not in sys.modules else f"tapescope script {path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
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
    wanted = f"expected a loss tensor or a pair (loss, model){to_return_instead(result)}"
    raise ValueError(f"{function_name}() returned {_describe(result)}; {wanted}")


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of ({', '.join(type(part).__name__ for part in value)})"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
