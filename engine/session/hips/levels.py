"""Memory levels of HIPS autograd: over the nodes of a gradient, and in forwards whose memory is recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from time import perf_counter_ns
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from ....inspector.hips.observers import FOLLOWED
from ....inspector.validation import expect_callable, expect_number
from ...memory.function_levels import StepLevels, TracedSteps, levels_traced

if TYPE_CHECKING:
    from .array_memory import TapedForward


class FollowedTapes:
    """Records the forward of the tape that starts last in this context: `watch`. Does nothing without a tape."""

    watch: TapedForward | None = None

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self._token = FOLLOWED.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        FOLLOWED.reset(self._token)
        self._open.close()

    def begun(self, root: Any) -> None:
        """Start recording: a trace begins at this node, the argument's."""
        from .array_memory import TapedForward, Tracing

        if self.watch is None:
            self._open.enter_context(Tracing())
        else:
            self.watch.log.over = True
        self.watch = TapedForward(root)

    def made(self, node: Any) -> None:
        """Record the node of a primitive that was called."""
        if self.watch is not None:  # otherwise its trace started before this context
            self.watch.made(node)


def hips_levels(fun: Callable[..., Any], *args: Any, argnum: int = 0) -> tuple[Any, StepLevels]:
    """Run `autograd.grad(fun, argnum)(*args)` with autograd's own backward, and record the memory level at each node.

    Args:
        fun: a function on `autograd.numpy` that returns a scalar.
        args: its arguments.
        argnum: index of the argument to differentiate.

    Returns:
        The gradient, and the levels; see `traced_levels`.

    Raises:
        ModuleNotFoundError: the package autograd is not installed.
        TypeError: `fun` is not a function of that many arguments, or `argnum` is not a number.
        ValueError: `argnum` is out of range, or the value of `fun` does not depend on that argument.
    """
    expect_callable(fun, len(args), "fun", "a function on autograd.numpy that accepts the arguments that follow")
    expect_number(argnum, int, "argnum", "the number of one of them")
    if not 0 <= argnum < len(args):
        raise ValueError(
            f"argnum must be from 0 to {len(args) - 1}, the index of one of the {len(args)} arguments, got {argnum}"
        )
    find_autograd()
    from autograd.core import backward_pass
    from autograd.extend import vspace
    from autograd.tracer import toposort, trace

    from ....inspector.hips.tape_nodes import ToldNode

    def compute(steps: TracedSteps) -> Any:
        def of_one(x: Any) -> Any:
            return fun(*args[:argnum], x, *args[argnum + 1 :])

        value, end = trace(ToldNode.new_root(steps.forward_step), of_one, args[argnum])
        if end is None:
            raise ValueError(f"the value of {getattr(fun, '__name__', fun)} does not depend on argument {argnum}")

        def announced(vjp: Callable[[Any], Any], gradient: Any) -> Any:
            steps.step()
            return vjp(gradient)

        for node in toposort(end):
            node.vjp = partial(announced, node.vjp)
        gradient = backward_pass(vspace(value).ones(), end)
        steps.step()
        return gradient

    return levels_traced(compute)


def hips_time(fun: Callable[..., Any], *args: Any, argnum: int = 0) -> int:
    """Return the nanoseconds of that backward alone, after a fresh forward and without recording memory."""
    make_vjp = find_autograd().make_vjp
    from autograd.extend import vspace

    vjp, value = make_vjp(fun, argnum)(*args)
    first = vspace(value).ones()
    began = perf_counter_ns()
    vjp(first)
    return perf_counter_ns() - began


def find_autograd() -> ModuleType:
    """Import and return the package `autograd`, with `autograd.numpy`.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    try:
        import_module("autograd.numpy")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("autograd", "numpy"):
            raise
        raise ModuleNotFoundError(
            "this needs HIPS autograd, which is not installed: pip install 'tapescope[hips]'", name=error.name
        ) from None
    return import_module("autograd")
