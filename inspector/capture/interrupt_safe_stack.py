"""A stack of contexts that is closed when its `with` block ends, is interrupted on entry, or is never closed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from traceback import extract_tb
from types import FrameType, TracebackType
from weakref import finalize

from torch.autograd.graph import saved_tensors_hooks

from ..graph.source_lines import innermost_user_line
from ..torch_private.private_names import explain
from ..torch_private.thread_state import disables_hooks, why_hooks_are_disabled


class Opened:
    """Contexts that are open on behalf of an object.

    Args:
        owner: the object; when it is collected, the contexts are closed.
        enter: enters the contexts into the stack passed to it. Ctrl-C is delayed until it returns, and then closes
            them. Neither it nor the contexts may refer to the owner.
    """

    def __init__(self, owner: object, enter: Callable[[ExitStack], None]) -> None:
        self._stack = ExitStack()
        # With GeneratorExit, as Python closes the contexts of a generator that is never resumed.
        self._forgotten = finalize(owner, self._stack.__exit__, GeneratorExit, GeneratorExit(), None)
        self._forgotten.atexit = False
        try:
            with _interrupts_wait():
                enter(self._stack)
        except BaseException:
            self._forgotten()
            raise

    def close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the contexts, passing the exception to them. Ctrl-C waits until all are closed.

        A hook that misses a private name of torch raises inside the user's own call, so the error gets a note.
        """
        if isinstance(error, AttributeError | ImportError) and (sentence := explain(error)) is not None:
            error.add_note(f"tapescope: {sentence}")
        with _interrupts_wait():
            self._stack.__exit__(kind, error, traceback)
        self._forgotten.detach()


@contextmanager
def hooks_opened(hooks: saved_tensors_hooks, verb: str) -> Iterator[None]:
    """Open tapescope's own hooks around the user's code.

    Args:
        verb: the verb that opens them, for messages.

    Raises:
        NotImplementedError: `torch.autograd.graph.disable_saved_tensors_hooks` is open, or the code opens it.
    """
    refuse_disabled_hooks(verb)
    with hooks:
        try:
            yield
        except RuntimeError as error:
            if not disables_hooks(error):
                raise
            frames = (frame for frame in extract_tb(error.__traceback__) if frame.filename != contextlib.__file__)
            line = innermost_user_line(frames)
            where = "the forward" if line is None else f"the forward at {line.short}"
            raise _no_hooks(verb, str(error), f"which {where} uses") from error


def refuse_disabled_hooks(verb: str) -> None:
    """Raise NotImplementedError if `torch.autograd.graph.disable_saved_tensors_hooks` is open."""
    if (why := why_hooks_are_disabled()) is not None:
        raise _no_hooks(verb, why, "in which it is called")


def _no_hooks(verb: str, why: str, place: str) -> NotImplementedError:
    """Return the error for code without hooks on saved tensors; `why` is the reason passed to PyTorch."""
    follows = "saved_tensors_hooks, by which it follows what a forward saves"
    if "torch.func" in why:
        return NotImplementedError(
            f"{verb} cannot follow torch.func.grad, vjp, jacrev and hessian, {place}: they turn off {follows}. Use "
            f"torch.autograd.grad(..., create_graph=True) there, or {verb} for the forward outside of them"
        )
    return NotImplementedError(
        f"{verb} cannot work under torch.autograd.graph.disable_saved_tensors_hooks, {place} "
        f"({why.rstrip('.')}): it turns off {follows}. Call {verb} outside of it"
    )


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block. Python raises it in the main thread only."""
    before = signal.getsignal(signal.SIGINT)
    # SIG_DFL, SIG_IGN and handlers from C are not callable, and stay as they are.
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    noted: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted:
            before(*noted[-1])
