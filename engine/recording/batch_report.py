"""Report on batched tasks: the products that ran as one, and those that did not (`trace.batches`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ...inspector.text.report import ShownAsFindings
from ...inspector.text.sizes_and_counts import counted, size_text

GroupKind = Literal["bmm", "grouped_conv", "tree"]

_MOST_ROWS = 40
_MOST_SAID = 5  # fallbacks named in the sentences


@dataclass(frozen=True, slots=True)
class Batch:
    """Products that ran as one.

    Attributes:
        kind: as in `Group`.
        tasks: the ids of its tasks, in their order in the trace; for a tree, in the order in which they ran.
        launches_before: the number of kernels that PyTorch launches for the same products, including the sums of a tree
            and of biases.
        launches: the number of kernels that were launched, including those that copied operands together.
        copied_bytes: the bytes of these copies, which exist beside the originals until the product is computed.
        held_bytes: for a tree, the bytes of operands that only wait for the product: those of all tasks but the last.
        elapsed_ns: the time, including copies; on an accelerator until everything was launched, not completed. For a
            tree, the time of the one product only.
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
        """The number of kernel launches saved. Negative if the copies needed more launches than were saved."""
        return self.launches_before - self.launches


@dataclass(frozen=True, slots=True)
class Fallback:
    """A group of tasks that did not run as one, or not completely.

    Attributes:
        kind: as in `Group`.
        tasks: the ids of its tasks that ran alone, in the order of the group.
        why: the reason, in a sentence that names a task.
    """

    kind: GroupKind
    tasks: tuple[int, ...]
    why: str


@dataclass(frozen=True, eq=False, repr=False)
class Batches(ShownAsFindings):
    """The products of a backward that ran as one: a sequence of `Batch`, in order. A notebook shows the table.

    Attributes:
        batches: the products that ran as one.
        fallbacks: the groups that did not run as one, with the reasons.
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
        """Return the batches in which a task ran: one of its outputs may belong to a tree, the others to another
        group."""
        return self._of.get(task, ())

    @property
    def steps(self) -> list[list[int]]:
        """The tasks that ran together in each step, the chosen one first. Tasks of trees run one by one."""
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
        """The number of kernel launches saved in total."""
        return sum(batch.launches_saved for batch in self.batches)

    @property
    def copied_bytes(self) -> int:
        """The bytes of all copies; only those of one batch exist at a time."""
        return sum(batch.copied_bytes for batch in self.batches)

    @property
    def elapsed_ns(self) -> int:
        """The time of all batches in nanoseconds."""
        return sum(batch.elapsed_ns for batch in self.batches)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The report in words."""
        if not self.batches and not self.fallbacks:
            return ("No tasks were batched.",)
        found = []
        if self.batches:
            before = sum(batch.launches_before for batch in self)
            after = sum(batch.launches for batch in self)
            tasks = {task for batch in self for task in batch.tasks}
            found.append(
                f"{len(self):,} {'batch' if len(self) == 1 else 'batches'} ran {counted(len(tasks), 'task')}: "
                f"{before:,} launches became {after:,}, in {self.elapsed_ns / 1e6:.2f} ms, for "
                f"{size_text(self.copied_bytes)} of copies."
            )
        for each in self.fallbacks[:_MOST_SAID]:
            found.append(f"Not batched: {counted(len(each.tasks), 'task')}: {each.why}.")
        if len(self.fallbacks) > _MOST_SAID:
            found.append(f"{counted(len(self.fallbacks) - _MOST_SAID, 'more group')} in .fallbacks.")
        return tuple(found)

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, headings first, with only the first of many batches."""
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

    right = ("tasks", "launches", "copies", "kept", "µs")
    __repr__ = ShownAsFindings.__str__
