"""Memory levels of HIPS autograd: over the nodes of a gradient, and forwards whose memory is followed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from time import perf_counter_ns
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from ....inspector.hips.observers import FOLLOWED
from ....inspector.validation import expect_callable, expect_number
from ...memory.function_levels import Step, StepLevels, TracedSteps, levels_traced

if TYPE_CHECKING:
    from .array_memory import TapedForward


class FollowedTapes:
    """Follows the forward of the tape that begins last in this context: `watch`. Without a tape nothing is at work."""

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
        """A trace begins at this node, the argument's."""
        from .array_memory import TapedForward, Tracing

        if self.watch is None:
            self._open.enter_context(Tracing())
        else:
            self.watch.log.over = True
        self.watch = TapedForward(root)

    def made(self, node: Any) -> None:
        """A primitive was called, and this is its node."""
        if self.watch is not None:  # else its trace began before
            self.watch.made(node)


def hips_levels(fun: Callable[..., Any], *args: Any, argnum: int = 0) -> tuple[Any, StepLevels]:
    """Runs `autograd.grad(fun, argnum)(*args)` by autograd's own backward, and looks at the memory at each node.

    Args:
        fun: a function on `autograd.numpy`, which gives a scalar.
        args: what it takes.
        argnum: of which argument the gradient is wanted.

    Returns:
        The gradient, and the levels: see `traced_levels`.

    Raises:
        ModuleNotFoundError: the package autograd is not installed.
        TypeError: `fun` is no function of so many arguments; `argnum` is no number.
        ValueError: there is no such argument, or the value of `fun` does not depend on it.
    """
    expect_callable(fun, len(args), "fun", "a function on autograd.numpy which takes the arguments that follow")
    expect_number(argnum, int, "argnum", "the number of one of them")
    if not 0 <= argnum < len(args):
        raise ValueError(f"argnum is {argnum}; expected the number of one of the {len(args)} arguments")
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
        for node in toposort(end):
            node.vjp = _announced(node.vjp, steps.step)
        gradient = backward_pass(vspace(value).ones(), end)
        steps.step()
        return gradient

    return levels_traced(compute)


def hips_time(fun: Callable[..., Any], *args: Any, argnum: int = 0) -> int:
    """Nanoseconds of that backward alone, after a fresh forward: nothing is looked at meanwhile."""
    make_vjp = find_autograd().make_vjp
    from autograd.extend import vspace

    vjp, value = make_vjp(fun, argnum)(*args)
    first = vspace(value).ones()
    began = perf_counter_ns()
    vjp(first)
    return perf_counter_ns() - began


def find_autograd() -> ModuleType:
    """The package `autograd`, with `autograd.numpy`.

    Raises:
        ModuleNotFoundError: it is not installed.
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


def _announced(vjp: Callable[[Any], Any], step: Step) -> Callable[[Any], Any]:
    def announced(gradient: Any) -> Any:
        step()
        return vjp(gradient)

    return announced
