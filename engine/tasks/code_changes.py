"""What the code of tasks changes besides gradients, for taking tasks back."""

from __future__ import annotations

from weakref import ref

from torch import Tensor

from .history import Ran


class CodeChanges:
    """What is noted while tasks run that may be taken back. Of a tape's nodes there is nothing: they are pure."""

    @property
    def callbacks_left(self) -> int:
        """How many callbacks tasks have left for the end of the backward."""
        return 0

    def begin(self, entry: Ran) -> None:
        """A task is going to run that may be taken back: notes what it may change besides gradients."""

    def end(self, entry: Ran) -> None:
        """It has run: notes what its code changed."""

    def why_not_back(self, entry: Ran) -> str | None:
        """Why a task that has run can't be taken back; None: it can."""
        return None

    @property
    def why_end_stays(self) -> str | None:
        """Why what was done after the last task can't be undone; None: it can."""
        return None

    def undo_end(self) -> None:
        """Tasks are going to be taken back: what was done after the last one is undone first."""

    def reopen(self, callbacks: int, another: bool) -> None:
        """Tasks have been taken back: so many callbacks had been left by then. In a checkpoint's eyes what follows is
        `another` backward: it computes again what it computes once in each."""

    def retaining(self) -> dict[int, list[ref[Tensor]]]:
        """By task the tensors which its node made, as far as Python has them: they may be told to `retain_grad`."""
        return {}
