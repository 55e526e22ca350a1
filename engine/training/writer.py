"""The loop's numbers and findings, written to the user's logger as they come."""

from __future__ import annotations

from .logger import Logger, numbers_of
from .part import LoopPart
from .record import Training


class Writer(LoopPart):
    """Writes once a step what has come since the last. Norms are read a step late, so that nothing waits for an
    accelerator: each has the number of its own step.

    Args:
        logger: to which.
        depth: see `numbers_of`.
    """

    def __init__(self, logger: Logger, depth: int) -> None:
        self._logger = logger
        self._depth = depth
        self._next = 0  # the first step that was not written
        self._findings = 0  # how many were
        self._raised = False

    def begins(self, training: Training) -> None:
        self._training = training
        self._logger.begin()

    def step_ends(self, number: int) -> None:
        self._write()

    def ends(self) -> None:
        """The loop's own `log` may not come between the last step's end and this."""
        if not self._raised:
            self._logger.commit()  # else the last step would replace the one before it
            self._write()

    def _write(self) -> None:
        self._raised = True  # unless all goes well: who has raised is told of the end, too
        numbers = numbers_of(self._training.norms, self._depth, self._next)
        found = self._training.findings
        new, self._findings = found[self._findings :], len(found)
        self._next = max(numbers, default=self._next - 1) + 1
        self._logger.write(numbers, new)
        self._raised = False
