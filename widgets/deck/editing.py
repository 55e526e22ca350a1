"""How the gradients that wait in a deck's backward are changed and checked, from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ...engine.queue.ready_queue import AnyTask
from ...engine.sessions.native_session import NativeSession
from ...engine.sessions.stepper import Stepper
from ...front_door import verbs_end_where_called
from .deck_traits import DeckTraits

if TYPE_CHECKING:
    from ...engine.checking.check_task import Check


@verbs_end_where_called
class Editing(DeckTraits):
    """The verbs that change what waits for a task, and the one that checks its backward."""

    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None, task: AnyTask | None = None) -> None:
        """Gives a waiting task these gradients, one per input number; the current task if none is given.

        Raises:
            ValueError: their number, shape, dtype, device or layout differs, or one is given where none came.
            TypeError: one is no tensor.
            NotImplementedError: with the native engine only those of the current task can be replaced.
        """
        self._edit(lambda session: session.replace(gradients, task), task)

    def scale(self, factor: float, task: AnyTask | None = None) -> None:
        """Multiplies the gradients that wait for a task, by default the current one."""
        self._edit(lambda session: session.scale(factor, task), task)

    def zero(self, task: AnyTask | None = None) -> None:
        """Makes the gradients that wait for a task zero, by default for the current one."""
        self._edit(lambda session: session.zero(task), task)

    def clip(self, max_norm: float, task: AnyTask | None = None) -> None:
        """Scales the gradients that wait for a task, by default for the current one, so that the norm of them all is at
        most `max_norm`.

        Raises:
            ValueError: the norm is NaN or infinite, so that nothing could bring it down.
        """
        self._edit(lambda session: session.clip(max_norm, task), task)

    def restore(self, task: AnyTask | None = None) -> None:
        """Gives a waiting task the gradients again which it had before they were edited.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine, which doesn't keep them.
        """
        self._asking.ask(lambda: self._live.edits.restore(task))

    def check(self, task: AnyTask | None = None) -> Check:
        """Compares a task's backward with finite differences of its forward operation; see `Check`.

        The forward's inputs must be there: `ts.capture(keep_inputs=True)` keeps them.
        """
        return self._asking.ask(lambda: self._live.edits.check(task))

    def _edit(self, change: Callable[[Stepper | NativeSession], object], task: AnyTask | None) -> None:
        self._asking.ask(lambda: self._live.edits.edit(lambda: change(self._live.session), task))
