"""What ran as one in a backward, and what did not: `trace.batches`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ...inspector.text.report import ShownAsFindings
from ...inspector.text.sizes_and_counts import counted, size_text

_MOST_ROWS = 40
_MOST_SAID = 5  # fallbacks in sentences


@dataclass(frozen=True, slots=True)
class Batch:
    """Products that ran as one.

    Attributes:
        kind: as in `Group`.
        tasks: the ids of its tasks, in the order in which they stand in the trace; of a tree in that in which they ran.
        launches_before: kernels which PyTorch launches for the same: products, the sums of a tree and of biases.
        launches: kernels that were launched for it, those among them that put operands together.
        copied_bytes: of these copies, which are there beside the originals until the product is made.
        held_bytes: of a tree the operands that its tasks left behind, which nothing else keeps: those of all but the
            last.
        elapsed_ns: how long it took, the copies included; on an accelerator until all was launched, not until it was
            done. Of a tree the one product alone.
    """

    kind: GroupKind
    tasks: tuple[int, ...]
    launches_before: int
    launches: int
    copied_bytes: int
    held_bytes: int
    elapsed_ns: int

    @property
    def launches_saved(self) -> int:
        """Kernels less than PyTorch launches. Below 0 where putting together took more than it saved."""
        return self.launches_before - self.launches


@dataclass(frozen=True, slots=True)
class Fallback:
    """A group that did not run as one, or not all of it.

    Attributes:
        kind: as in `Group`.
        tasks: the ids of its tasks that ran by themselves, in the order in which the group has them.
        why: the reason, in a sentence that names a task.
    """

    kind: GroupKind
    tasks: tuple[int, ...]
    why: str


@dataclass(frozen=True, eq=False, repr=False)
class Batches(ShownAsFindings):
    """What ran as one in a backward: a sequence of `Batch`, in order. In a notebook the table shows itself.

    Attributes:
        batches: those that ran.
        fallbacks: what did not run as one, and why.
    """

    batches: tuple[Batch, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __getitem__(self, number: int) -> Batch:
        return self.batches[number]

    def of(self, task: int) -> tuple[Batch, ...]:
        """Those that a task ran in: of its outputs one may be a tree's, the others another group's."""
        return self._of.get(task, ())

    @property
    def steps(self) -> list[list[int]]:
        """The tasks that ran in one step each time, the one that was picked first: those of trees run one by one."""
        return [list(batch.tasks) for batch in self.batches if batch.kind != "tree"]

    @cached_property
    def _of(self) -> dict[int, tuple[Batch, ...]]:
        found: dict[int, tuple[Batch, ...]] = {}
        for batch in self.batches:
            for task in batch.tasks:
                found[task] = (*found.get(task, ()), batch)
        return found

    @property
    def launches_saved(self) -> int:
        """Kernels less than PyTorch launches, all in all."""
        return sum(batch.launches_saved for batch in self.batches)

    @property
    def copied_bytes(self) -> int:
        """Of all copies; at one time there are those of one batch."""
        return sum(batch.copied_bytes for batch in self.batches)

    @property
    def elapsed_ns(self) -> int:
        """How long what ran as one took."""
        return sum(batch.elapsed_ns for batch in self.batches)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What happened, in words."""
        if not self.batches and not self.fallbacks:
            return ("Nothing ran as one.",)
        found = []
        if self.batches:
            before = sum(batch.launches_before for batch in self)
            after = sum(batch.launches for batch in self)
            tasks = {task for batch in self for task in batch.tasks}
            found.append(
                f"{len(self):,} {'batch' if len(self) == 1 else 'batches'} took {counted(len(tasks), 'task')}: "
                f"{before:,} launches became {after:,}, in {self.elapsed_ns / 1e6:.2f} ms, for "
                f"{size_text(self.copied_bytes)} of copies."
            )
        for each in self.fallbacks[:_MOST_SAID]:
            found.append(f"Not as one: {counted(len(each.tasks), 'task')}: {each.why}.")
        if len(self.fallbacks) > _MOST_SAID:
            found.append(f"{counted(len(self.fallbacks) - _MOST_SAID, 'more group')} in .fallbacks.")
        return tuple(found)

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first; of many batches the beginning."""
        rows = [["batch", "tasks", "launches", "copies", "kept", "µs"]]
        for batch in self.batches[:_MOST_ROWS]:
            rows.append(
                [
                    batch.kind,
                    f"{len(batch.tasks):,}",
                    f"{batch.launches_before:,} → {batch.launches:,}",
                    size_text(batch.copied_bytes),
                    size_text(batch.held_bytes) if batch.held_bytes else "",
                    f"{batch.elapsed_ns / 1e3:,.1f}",
                ]
            )
        if len(self) > _MOST_ROWS:
            rows.append([f"and {len(self) - _MOST_ROWS:,} more", "", "", "", "", ""])
        return rows

    @property
    def right(self) -> Sequence[str]:
        """The headings of columns of numbers."""
        return _RIGHT

    __repr__ = ShownAsFindings.__str__


_RIGHT = ("tasks", "launches", "copies", "kept", "µs")


GroupKind = Literal["bmm", "grouped_conv", "tree"]
