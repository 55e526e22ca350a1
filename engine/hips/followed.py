"""Tapes that are recorded in a context have their forward's memory followed. The package autograd need not be there."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...inspector.tapes.values import FOLLOWED

if TYPE_CHECKING:
    from .taped_forward import TapedForward


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
        from .array_log import Tracing
        from .taped_forward import TapedForward

        if self.watch is None:
            self._open.enter_context(Tracing())
        else:
            self.watch.log.over = True
        self.watch = TapedForward(root)

    def made(self, node: Any) -> None:
        """A primitive was called, and this is its node."""
        if self.watch is not None:  # else its trace began before
            self.watch.made(node)
