"""The ways in which a session went: doing something else after going back begins a new branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..queue.policy import Choice, Policy, names_in_turn
from ..tasks.history import Edited, Ran, nbytes_of
from ..trace.trace import Trace
from ..words.phrases import counted


@dataclass(eq=False, slots=True, repr=False)
class Branch:
    """One way in which a session went.

    Attributes:
        number: counts from 1, in the order in which branches began.
        parent: the number of the branch from which it parted; None for the first.
        forked_at: how many tasks it has in common with its parent.
        order: the ids of the tasks that ran, in order.
        by_hand: of these what was chosen by hand.
        edits: the gradients that were replaced by hand.
        terms: from which position on which policy picked.
        trace: what was recorded, if anything was; of the current branch the session has it.
        is_current: whether the session stands on it.
        gradients: by the id of its task the .grad of a leaf after it, of the leaf's shape, as far as the session has
            gone back over that. None where that would have been more than the history's budget.
        shared: how many of its first tasks have run in the session as it stands.
        ahead: of the current branch: how many more had run before the session went back.
    """

    number: int
    parent: int | None
    forked_at: int
    order: tuple[int, ...]
    by_hand: frozenset[int]
    edits: tuple[Edited, ...]
    terms: tuple[tuple[int, Policy | Choice], ...]
    trace: Trace | None
    is_current: bool = False
    gradients: dict[int, Tensor | None] | None = field(default_factory=dict)
    shared: int = 0
    ahead: int = 0

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    @property
    def name(self) -> str:
        """`branch 2`."""
        return f"branch {self.number}"

    @property
    def policy(self) -> str:
        """The policy's name; "bfs, then dfs" where one took over from another."""
        return names_in_turn(policy for _, policy in self.terms)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that are kept with it; several branches may keep the same."""
        return sum(nbytes_of(each) for each in (self.gradients or {}).values() if each is not None)

    def describe(self) -> str:
        """`branch 2, 40 tasks under heap, forked from branch 1 after 12 tasks, 1 edit`."""
        parts = [f"{self.name}, {counted(len(self.order), 'task')} under {self.policy}"]
        if self.ahead:
            parts.append(f"{self.ahead:,} more taken back")
        if self.parent is not None:
            parts.append(f"forked from branch {self.parent} after {counted(self.forked_at, 'task')}")
        if self.edits:
            parts.append(counted(len(self.edits), "edit"))
        return ", ".join(parts)

    def goes_on_with(self, position: int, task: int, edits: Sequence[Edited]) -> bool:
        """Whether this task, with these edits in force, is what ran next on it."""
        if position >= len(self.order) or self.order[position] != task:
            return False
        return _same(edits, [edit for edit in self.edits if edit.position <= position])


class Branches:
    """What a session has gone back from.

    The session goes along one of them: `current`. What it has gone back from is this branch's `future` as long as it is
    followed task by task; once something else runs, it is kept, and a new branch begins.

    Args:
        budget_bytes: for the gradients that are kept with branches.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.current = 1
        self.origins: dict[int, tuple[int | None, int]] = {1: (None, 0)}  # parent, forked_at
        self.future: Branch | None = None
        self.kept: dict[int, Branch] = {}
        self._at_most = 0  # bytes of gradients: counted all over only where this is too much

    @property
    def gradient_bytes(self) -> int:
        kept = {id(each): each for branch in self._left for each in (branch.gradients or {}).values()}
        return sum(nbytes_of(each) for each in kept.values() if each is not None)

    @property
    def _left(self) -> list[Branch]:
        return [*self.kept.values(), *([] if self.future is None else [self.future])]

    def leave(self, snapshot: Callable[[], Branch]) -> None:
        """The session is going back. What it had come to is noted, unless it was on its way there again."""
        if self.future is None:
            self.future = snapshot()
            self.future.is_current = False

    def take_back(self, position: int, entry: Ran, is_leaf: bool) -> None:
        """The task of this position is being taken back; its .grad is still what it made of it."""
        after = entry.grads[0].after() if is_leaf and entry.grads else None
        for branch in self._left:
            if branch.shared > position:
                branch.shared = position
                if is_leaf and branch.gradients is not None:
                    branch.gradients[entry.task] = after
        if after is not None:
            self._keep_within_budget(nbytes_of(after))

    def go_on(self, position: int, task: int, edits: Sequence[Edited]) -> None:
        """This task is going to run at this position."""
        future = self.future
        if future is not None and not future.goes_on_with(position, task, edits):
            self.kept[future.number] = future
            self.future = next(
                (each for each in self._left if each.shared == position and each.goes_on_with(position, task, edits)),
                None,
            )
            if self.future is None:
                parent, self.current = self.current, max(self.origins) + 1
                self.origins[self.current] = (parent, position)
            else:
                self.current = self.future.number
                del self.kept[self.current]
        for branch in self._left:
            if branch.shared == position and branch.goes_on_with(position, task, edits):
                branch.shared += 1
        if self.future is not None and position + 1 == len(self.future.order):
            self.future = None  # all that was taken back has run again

    def _keep_within_budget(self, more_bytes: int) -> None:
        self._at_most += more_bytes
        for branch in self._left:  # the oldest first
            if self._at_most > self.budget_bytes:
                self._at_most = self.gradient_bytes
            if self._at_most <= self.budget_bytes:
                return
            branch.gradients = None
        self._at_most = self.gradient_bytes


def _same(edits: Sequence[Edited], others: Sequence[Edited]) -> bool:
    """Whether the same tensors were put in the same places."""
    return len(edits) == len(others) and all(
        (one.position, one.task) == (other.position, other.task)
        and all(mine is theirs for mine, theirs in zip(one.after, other.after, strict=True))
        for one, other in zip(edits, others, strict=True)
    )
