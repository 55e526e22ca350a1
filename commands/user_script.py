"""A function of a user's script on the command line (`SCRIPT.py:FUNCTION`)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from ..engine.api.graph import graph
from ..engine.api.graph_of_forward import unfinished_forward
from ..engine.api.make_loss import has_run_backward, to_return_instead
from ..inspector.capture.build_graph import read_graph, why_no_graph
from ..inspector.capture.capture import capture
from ..inspector.graph.graph import Graph
from ..inspector.text.sizes_and_counts import shape_text
from ..inspector.torch_private.sequence_numbers import sequence_nr
from ..inspector.validation import expect_callable
from .run_script import script_and_function


@dataclass(frozen=True, slots=True)
class Drawn:
    """Result of a user's function: its graph, and the error that it raised.

    After an error the graph is the one built until then, or None.
    """

    graph: Graph | None
    error: BaseException | None = None


def draw_function(target: str) -> Drawn:
    """Run `SCRIPT.py:FUNCTION` with the script's folder on sys.path, and read its graph.

    The function takes no arguments. It returns a loss; a pair of a loss and the model, which names the parameters; or a
    pair of a model and its inputs, which runs the model's forward: a dict as `model(**inputs)`, a tuple as
    `model(*inputs)`.

    Raises:
        ValueError: the script or function does not exist, or the function returns something else.
    """
    _, function_name = script_and_function(target)
    try:
        with _users_function(target) as function:
            try:
                with capture(every_call=True) as tape:
                    result = function()
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                with suppress(ValueError):  # it had built no graph
                    return Drawn(tape.graph(), error)
                return Drawn(None, error)
            if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module):
                return _draw_forward(*result, function_name)
    except UserError as error:
        return Drawn(None, error.error)
    loss, model = _loss_and_model(result, function_name)
    try:
        # The loss is freed here, but ts.find_batches still needs the nodes.
        return Drawn(read_graph(loss, model).owned())
    except RuntimeError as error:
        raise ValueError(f"{function_name}() returned a loss without a graph: {error}") from error


def _draw_forward(model: nn.Module, inputs: object, function_name: str) -> Drawn:
    args = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, Mapping) else (inputs,)
    try:
        return Drawn(graph(model, *args, **(inputs if isinstance(inputs, Mapping) else {})))
    except Exception as error:
        if unfinished_forward(error) is None:
            raise ValueError(f"{function_name}() returned a model without a graph: {error}") from error
        with suppress(ValueError):  # it had built no graph
            return Drawn(graph(error), error)
        return Drawn(None, error)


@contextmanager
def make_loss_of(target: str, needs_graph: bool = True) -> Iterator[Callable[[], Tensor]]:
    """Yield a function that returns the loss of `SCRIPT.py:FUNCTION`. See `draw_function`.

    The script's folder is on sys.path in the `with` block.

    Args:
        target: the script and its function.
        needs_graph: whether to raise ValueError for a loss without a graph.

    Raises:
        ValueError: as in `draw_function`; or the loss has no graph, or several elements.
        UserError: the script raised. The yielded function also raises it, if the user's function raises.
    """
    _, function_name = script_and_function(target)

    with _users_function(target) as function:
        checked = False

        def make_loss() -> Tensor:
            nonlocal checked
            since = sequence_nr()
            try:
                result = function()
            except (Exception, SystemExit) as error:
                raise UserError(error) from error
            loss = _loss_and_model(result, function_name, of_loss=True)[0]
            if not checked:  # only in the first call, because later calls are timed
                checked = True
                if loss.is_nested or loss.numel() != 1:
                    shape = "nested" if loss.is_nested else f"of shape {shape_text(loss.shape)}"
                    raise ValueError(
                        f"{function_name}() returned a tensor {shape}; expected one element, such as its .sum()"
                    )
                if needs_graph and not loss.requires_grad:
                    raise ValueError(f"{function_name}() returned a loss without a graph: {why_no_graph(loss)}")
                if has_run_backward(loss, since):
                    raise ValueError(
                        f"{function_name}() has already run the backward of its loss; return the loss without "
                        "calling backward()"
                    )
            return loss

        yield make_loss


@contextmanager
def made_by(target: str) -> Iterator[object]:
    """Yield the result of `SCRIPT.py:FUNCTION`, with the script's folder on sys.path.

    Raises:
        ValueError: the script or function does not exist.
        UserError: the script or the function raised.
    """
    with _users_function(target) as function:
        try:
            made = function()
        except (Exception, SystemExit) as error:
            raise UserError(error) from error
        yield made


@contextmanager
def functions_of(*targets: str) -> Iterator[list[Callable[..., Any]]]:
    """Yield the functions of several `SCRIPT.py:FUNCTION`, with the scripts' folders on sys.path.

    A script that contains several of the functions is imported once.

    Raises:
        ValueError: a script or function does not exist.
        UserError: a script raised.
    """
    found: list[Callable[..., Any]] = []
    modules: dict[Path, ModuleType] = {}
    paths = [script_and_function(target)[0] for target in targets]
    with ExitStack() as stack:
        for path, target in zip(paths, targets, strict=True):
            if path not in modules:
                sys.path.insert(0, str(path.parent))  # so that the script can import modules next to it
                stack.callback(sys.path.remove, str(path.parent))
                modules[path] = _load(path)
            found.append(_function(modules[path], script_and_function(target)[1]))
        yield found


def backward_of(target: str) -> None:
    """Compute the loss of `SCRIPT.py:FUNCTION` and run its backward.

    Raises:
        ValueError: as in `make_loss_of`.
        UserError: the script or the backward raised.
    """
    with make_loss_of(target) as make_loss:
        loss = make_loss()
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise UserError(error) from error


class UserError(Exception):
    """An error raised by the user's script."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


@contextmanager
def _users_function(target: str) -> Iterator[Callable[[], Any]]:
    with functions_of(target) as (function,):
        try:
            expect_callable(function, 0, target, "a function without arguments")
        except TypeError as error:
            raise ValueError(str(error)) from None
        yield function


def _load(path: Path) -> ModuleType:
    """Import the script under its own name, as modules next to it would, unless that name is already in use."""
    name = path.stem if path.stem not in sys.modules else f"tapescope script {path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up the module of a class there
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
    own = [key for key, value in vars(module).items() if isfunction(value) and value.__module__ == module.__name__]
    raise ValueError(
        f"{Path(str(module.__file__)).name} has no function {name!r}; its functions: {', '.join(own) or 'none'}"
    )


def _loss_and_model(result: object, function_name: str, of_loss: bool = False) -> tuple[Tensor, nn.Module | None]:
    """Return the loss, and the model if there is one. `of_loss`: the function must return a loss, not a forward."""
    match result:
        case Tensor():
            return result, None
        case (Tensor() as loss, nn.Module() as model):
            return loss, model
    found = "None" if result is None else f"a value of type {type(result).__name__}"
    if isinstance(result, tuple):
        found = f"a tuple of ({', '.join(type(part).__name__ for part in result)})"
    wanted = f"expected a loss tensor or a pair (loss, model){to_return_instead(result)}"
    if isinstance(result, nn.Module) and not of_loss:
        wanted = "to draw its forward, return a pair of the model and its inputs, such as (model, x)"
    raise ValueError(f"{function_name}() returned {found}; {wanted}")
