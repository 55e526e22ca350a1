"""Runs forwards by a plan: saved tensors are dropped, and recomputed when the backward needs them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from ...inspector.capturing.opened import Opened, refuse_disabled_hooks
from ...inspector.graph.words import counted
from ...inspector.torch_internals.compiled import compiled_code_refused
from ..words.sizes import size_text
from .calls import PURPOSE, followed
from .plan import PlannedStorage, RecomputePlan
from .watch import MirrorTally, MirrorWatch, banned_sentence, state_of


@dataclass(frozen=True, slots=True)
class RecomputeReport:
    """What a mirrored forward and its backward came to, so far.

    Attributes:
        forwards: how many forwards ran as planned, to the plan's end or to that of the `with` block.
        dropped: how many storages that nodes save were let go of; dropped_bytes: their sizes.
        replayed: how many were made again, those on the way included; replayed_bytes: their sizes.
        operations: how many operations that took; seconds: how long, on the host.
        banned: the storages which the plan drops and which are kept, with the reason: making them again failed, or gave
            something else.
        notes: what else did not go as planned, in sentences.
    """

    forwards: int
    dropped: int
    dropped_bytes: int
    replayed: int
    replayed_bytes: int
    operations: int
    seconds: float
    banned: tuple[tuple[PlannedStorage, str], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        said = [
            f"{_count(self.dropped, 'saved storage')} let go of, {size_text(self.dropped_bytes)}.",
            f"{_count(self.replayed, 'storage')} made again, {size_text(self.replayed_bytes)}, by "
            f"{counted(self.operations, 'operation')} in {1e3 * self.seconds:.1f} ms.",
        ]
        if self.banned:
            said.append(f"{banned_sentence(self.banned)}.")
        return "\n".join([*said, *self.notes])


def _count(number: int, what: str) -> str:
    return f"1 {what} was" if number == 1 else f"{number:,} {what}s were"


class apply_plan:
    """The context manager behind `ts.recompute(plan)`; see there for what it promises and raises."""

    def __init__(self, plan: RecomputePlan) -> None:
        self.plan = plan
        self._idle = not plan.dropped
        self._tally = MirrorTally()
        self._opened: Opened | None = None

    def __repr__(self) -> str:
        return f"<recompute: {self.plan}>"

    def __enter__(self) -> apply_plan:
        if self._opened is not None:
            raise RuntimeError("this ts.recompute is open already; make another one with ts.recompute(plan)")
        if self._idle:
            return self
        watch, contexts = followed(state_of(self.plan), self._tally)
        self._opened = Opened(self, partial(_enter, contexts, watch))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._idle:
            return
        opened, self._opened = self._opened, None
        assert opened is not None, "it was not entered"
        opened.close(kind, error, traceback)

    @property
    def report(self) -> RecomputeReport:
        """What came of it so far, the replays of backwards after the `with` block included."""
        tally, state = self._tally, state_of(self.plan)
        return RecomputeReport(
            tally.forwards,
            tally.dropped,
            tally.dropped_bytes,
            tally.storages,
            tally.nbytes,
            tally.operations,
            tally.seconds,
            state.banned_storages(state.banned),
            tuple(tally.notes),
        )


def _enter(contexts: Iterable[AbstractContextManager[object]], watch: MirrorWatch, stack: ExitStack) -> None:
    stack.push(lambda kind, error, traceback: watch.close(raised=error is not None))
    refuse_disabled_hooks(PURPOSE)
    stack.enter_context(compiled_code_refused("it can't be mirrored"))
    for each in contexts:
        stack.enter_context(each)
