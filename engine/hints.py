"""What could be done about a peak: a flat table of hints, each of which speaks only where the timeline has its fact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ..inspector.graph import Graph, Task
from .sizes import size_text
from .storage_words import StorageWords, joined
from .timeline import Category, Storage, Timeline

if TYPE_CHECKING:
    from ..inspector.facts import Operation
    from ..inspector.graph_file import StoredOperation

_LEAST_SHARE = 0.01  # of the peak: what is less is not worth a sentence
_SCALAR_BYTES = 16  # of the widest one, complex128: the loss is held by everybody
_MANY = 8  # gradients that wait for one kind of task
_PICKING = {  # the backward of each fills zeros of its input's size with what came
    "Index": "index once and use the result often",
    "Select": "`unbind` or `split` once instead of many selections: then one tensor is filled",
    "Slice": "`split` or `chunk` once instead of many slices: then one tensor is filled",
    "Gather": "gather from a smaller tensor, or write the loss with `cross_entropy`, which makes no such gradient",
    "IndexSelect": "select from a smaller tensor, or once for several uses",
    "MaskedSelect": "multiply by the mask, or select once for several uses",
    "Embedding": "`Embedding(sparse=True)` makes a gradient of the rows that were used only",
}
_DIVIDING = ("Select", "Slice", "Index")
_PICKING_EARLIER = "index earlier, or before what is expensive, where nothing else needs the rest of that tensor"
_COPYING = ("Clone", "ToCopy", "Copy")
_VIEWING = (
    "T",
    "Transpose",
    "Permute",
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Unsqueeze",
    "Squeeze",
    "Alias",
    "AsStrided",
)


@dataclass(frozen=True, slots=True)
class Hint:
    """One thing that could be done about a peak: how many bytes of it this is about, what is the case, what to do."""

    nbytes: int
    fact: str
    advice: str

    def __str__(self) -> str:
        return f"{size_text(self.nbytes)}: {self.fact}. {self.advice[:1].upper()}{self.advice[1:]}."


@dataclass(frozen=True)
class Peak:
    """What the hints look at.

    Attributes:
        timeline: the memory of one backward.
        storages: those alive at its peak, with the category which each had then.
        others: peaks in bytes that are known of other policies, by name.
    """

    timeline: Timeline
    storages: Sequence[tuple[Storage, Category]]
    others: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def words(self) -> StorageWords:
        return StorageWords(self.timeline)

    @cached_property
    def tasks_of(self) -> dict[Operation | StoredOperation, list[Task]]:
        """The tasks which an operation of the forward made."""
        found: dict[Operation | StoredOperation, list[Task]] = {}
        for task in self.timeline.graph.tasks:
            if task.operation is not None and not task.is_leaf:
                found.setdefault(task.operation, []).append(task)
        return found

    def of(self, *categories: Category) -> list[Storage]:
        return [storage for storage, category in self.storages if category in categories]


def hints(peak: Peak) -> tuple[Hint, ...]:
    """All hints, the one about most bytes first."""
    least = _LEAST_SHARE * peak.timeline.peak_bytes
    found = [hint for rule in HINTS for hint in rule(peak) if hint.nbytes >= least]
    return tuple(sorted(found, key=lambda hint: -hint.nbytes))


def picked_in_full(peak: Peak) -> Iterator[Hint]:
    """A gradient of an indexing operation, made in the full size of what was indexed."""
    graph = peak.timeline.graph
    found: dict[tuple[str, str | None], list[tuple[Storage, Task, int]]] = {}
    for storage in peak.of(Category.BUFFER, Category.GRADIENT, Category.HELD):
        task = _maker(peak, storage)
        if task is None or task.short_name not in _PICKING or not _is_output(peak, storage):
            continue
        came = sum(meta.nbytes or 0 for meta in task.inputs)
        if storage.nbytes >= 2 * came > 0:
            found.setdefault((task.short_name, graph.module(task)), []).append((storage, task, came))
    for (name, _), each in found.items():
        many = len(each) > 1
        alone = name in _DIVIDING and not any(_has_siblings(graph, task) for _, task, _ in each)
        yield Hint(
            sum(storage.nbytes for storage, _, _ in each),
            f"{graph.describe(each[0][1])}{f' and {len(each) - 1:,} more like it' if many else ''} "
            f"{'make gradients' if many else 'makes a gradient'} of the full size of what was indexed, of which "
            f"{size_text(sum(came for _, _, came in each))} at most can differ from zero",
            _PICKING_EARLIER if alone else _PICKING[name],
        )


def _has_siblings(graph: Graph, task: Task) -> bool:
    """Whether other tasks give to what it gives to by the same kind of indexing."""
    return any(
        other.task != task.id and graph.tasks[other.task].short_name == task.short_name
        for edge in graph.out_edges[task.id]
        for other in graph.in_edges[edge.next_task]
    )


def _is_output(peak: Peak, storage: Storage) -> bool:
    """Whether it is what the task itself gave, not the sum of that and of what had come before: this is made later."""
    for number in range(storage.number - 1, -1, -1):
        if peak.timeline.maker(number).task != storage.made_by.task:
            return True
        if peak.timeline.nbytes[number] == storage.nbytes:
            return False
    return True


def made_double(peak: Peak) -> Iterator[Hint]:
    """Gradients or saved tensors in float64, where no parameter is."""
    graph = peak.timeline.graph
    leaves = {meta.dtype for task in graph.tasks if task.is_leaf for meta in task.inputs}
    if not leaves or any(map(_is_double, leaves)):
        return
    double = {task.id for task in graph.tasks if any(_is_double(meta.dtype) for meta in task.inputs)}
    if not double:
        return
    nbytes = 0
    for storage in peak.of(Category.BUFFER, Category.HELD):
        nbytes += (
            storage.nbytes if any(each.kind == "buffer" and each.task in double for each in storage.kept_by) else 0
        )
    for storage in peak.of(Category.SAVED, Category.FORWARD):
        made = storage.made_by.operation and peak.tasks_of.get(storage.made_by.operation)
        nbytes += storage.nbytes if made and all(task.id in double for task in made) else 0
    turning = [
        graph.tasks[edge.task]
        for edge in graph.edges
        if edge.task in double and not _is_double(graph.tasks[edge.next_task].inputs[edge.input].dtype)
    ]
    where = joined([graph.describe(task) for task in dict.fromkeys(turning)]) or graph.describe(min(double))
    widest = max(leaves, key=lambda dtype: dtype.itemsize)
    yield Hint(
        nbytes,
        f"float64, though no parameter is wider than {str(widest).removeprefix('torch.')}; it begins at {where}",
        f"`.float()` there, or {str(widest).removeprefix('torch.')} from the start: NumPy's arrays are float64 unless "
        "told otherwise",
    )


def held_gradients(peak: Peak) -> Iterator[Hint]:
    """Gradients that a hook or retain_grad() holds."""
    held = peak.of(Category.HELD)
    if held:
        made_by = peak.words.made_by(held)
        yield Hint(
            sum(storage.nbytes for storage in held),
            f"{_count(held, 'gradient')} made by {made_by} {_is(held)} held by a hook or retain_grad()",
            "keep of a gradient what you need, a norm or a copy on the CPU; call retain_grad() only while you look",
        )


def held_outputs(peak: Peak) -> Iterator[Hint]:
    """Values of the forward that no node needs any more, and that the user's code still holds."""
    since = max(peak.timeline.peak_place, 0)
    outputs = [
        storage
        for storage in peak.of(Category.FORWARD, Category.SAVED)
        if not any(keeper.kind == "saved" for keeper in peak.words.keepers(storage, since))
        and (storage.number in peak.timeline.held or not storage.kept_by)
        and storage.nbytes > _SCALAR_BYTES
    ]
    if outputs:
        sources = dict.fromkeys(each.made_by.source.short for each in outputs if each.made_by.source)
        yield Hint(
            sum(storage.nbytes for storage in outputs),
            f"{_count(outputs, 'value')} made by {peak.words.made_by(outputs)}"
            f"{f' ({joined(list(sources))})' if sources else ''} {_is(outputs)} needed by no task any more, but your "
            f"code holds {'them' if len(outputs) > 1 else 'it'}",
            f"let go of {_them(outputs)} before the backward, or keep what is small; `.detach()` keeps all the bytes",
        )


def saved_twice(peak: Peak) -> Iterator[Hint]:
    """A saved tensor and a copy of it that is saved, too: the operation that made it made one node, which copies."""
    graph = peak.timeline.graph
    saved: dict[tuple[Operation | StoredOperation | None, int], list[Storage]] = {}
    for storage in peak.of(Category.SAVED):
        saved.setdefault((storage.made_by.operation, storage.nbytes), []).append(storage)
    copies: dict[int, tuple[Storage, Task]] = {}
    for (operation, nbytes), storages in saved.items():
        made = [] if operation is None else peak.tasks_of.get(operation, [])
        copying = [task for task in made if task.short_name in _COPYING]
        if len(copying) != 1 or any(task.short_name not in (*_COPYING, *_VIEWING) for task in made):
            continue
        source: Task | None = copying[0]
        while source is not None and (source.operation is operation or source.short_name in _VIEWING):
            edges = graph.out_edges[source.id]
            source = graph.tasks[edges[0].next_task] if len(edges) == 1 else None
        if source is not None and source.operation is not None and (source.operation, nbytes) in saved:
            copies |= {storage.number: (storage, copying[0]) for storage in storages}
    if copies:
        found = [copy for copy, _ in copies.values()]
        tasks = dict.fromkeys(task for _, task in copies.values())
        yield Hint(
            sum(copy.nbytes for copy in found),
            f"{_count(found, 'saved tensor')} {_is(found)} a copy of a tensor that is saved, too: "
            f"{joined([graph.describe(task) for task in tasks])} copied {_them(found)} in the forward",
            "use the original, or copy before its first use, so that only the copy is kept",
        )


def waiting_gradients(peak: Peak) -> Iterator[Hint]:
    """Many gradients that wait for one kind of task, because the order runs those last."""
    timeline = peak.timeline
    graph = timeline.graph
    since = max(timeline.peak_place, 0)
    waiting: dict[tuple[str, str | None], list[Storage]] = {}
    for storage in peak.of(Category.BUFFER):
        tasks = [keeper.task for keeper in peak.words.keepers(storage, since) if keeper.kind == "buffer"]
        if tasks and tasks[0] is not None:
            task = graph.tasks[tasks[0]]
            waiting.setdefault((task.name, graph.module(task)), []).append(storage)
    for each in waiting.values():
        nbytes = sum(storage.nbytes for storage in each)
        if len(each) < _MANY or 4 * nbytes < timeline.peak_bytes:
            continue
        lower = sorted(
            (peak_bytes, name) for name, peak_bytes in peak.others.items() if peak_bytes < timeline.peak_bytes
        )
        kept_by = peak.words.kept_by(each, Category.BUFFER, since)
        better = f": under {lower[0][1]} the peak is {size_text(lower[0][0])}" if lower else ", such as heap or dfs"
        yield Hint(
            nbytes,
            f"{kept_by}, made by {peak.words.made_by(each)}",
            f"an order that runs these tasks as soon as they are ready keeps fewer of them waiting{better}",
        )


Rule = Callable[[Peak], Iterable[Hint]]
HINTS: tuple[Rule, ...] = (picked_in_full, made_double, held_gradients, held_outputs, saved_twice, waiting_gradients)


def _maker(peak: Peak, storage: Storage) -> Task | None:
    task = storage.made_by.task
    return None if task is None else peak.timeline.graph.tasks[task]


def _is_double(dtype: torch.dtype) -> bool:
    return dtype in (torch.float64, torch.complex128)


def _count(storages: Sequence[Storage], noun: str) -> str:
    return f"{len(storages):,} {noun}{'s' if len(storages) > 1 else ''}"


def _is(storages: Sequence[Storage]) -> str:
    return "are" if len(storages) > 1 else "is"


def _them(storages: Sequence[Storage]) -> str:
    return "them" if len(storages) > 1 else "it"
