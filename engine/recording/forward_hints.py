"""Hints about values of the forward that live longer, or are larger, than they need to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from ...inspector.graph.graph import Graph, Task, unique_name
from ...inspector.graph.phrases import joined
from ...inspector.text.sizes_and_counts import percent_text, shape_text, size_text
from ..memory.categories import Category
from ..memory.timeline import Storage
from .peak_facts import COPYING, SCALAR_BYTES, VIEWING, Hint, Peak, count_text, is_text, them_text, through_views

_MOST_OF_VIEW = 0.5  # the largest share of its storage for which a view is said to keep too much
_LEAST_OF_FORWARD = 0.2  # of the forward's peak: the least that variables keep for a hint
_TIMES = 4  # a product that is this many times larger than its factors is called broadcast
_LEAST_OF_PARTS = 0.25  # of the peak: the least that other parts of a loss keep for a hint
_SMALL = 1024  # bytes of the terms of a loss
_SUMMING = ("Add", "Sub", "Neg", "Mul", "Div", "Mean", "Sum", "Stack", "Cat", "Select", "Unbind", "ToCopy", *VIEWING)


def held_outputs(peak: Peak) -> Iterator[Hint]:
    """Yield hints about values of the forward that no node needs any longer and user code still holds."""
    since = max(peak.timeline.peak_place, 0)
    end = len(peak.timeline.order)
    outputs: list[Storage] = []
    views: list[Storage] = []
    for storage in peak.of(Category.FORWARD, Category.SAVED):
        kinds = {keeper.kind for keeper in peak.words.keepers(storage, since)}
        stays = storage.died is None or storage.died >= end
        if storage.nbytes <= SCALAR_BYTES or not (
            kinds == {"user"} or (not kinds and stays and storage.made_by.operation)
        ):
            continue
        reference = peak.references.get(storage.number)
        (views if reference is not None and reference.share < _MOST_OF_VIEW else outputs).append(storage)
    if views:
        share = max(peak.references[storage.number].share for storage in views)
        yield Hint(
            sum(storage.nbytes for storage in views),
            f"{count_text(views, 'value')} made by {peak.words.made_by(views)}{_places(views)} {is_text(views)} held "
            f"only by a view of at most {percent_text(share)} of the storage{_names(peak, views)}",
            "keep a `.clone()` of the view, which frees the rest",
            "held view",
        )
    if outputs:
        yield Hint(
            sum(storage.nbytes for storage in outputs),
            f"{count_text(outputs, 'value')} made by {peak.words.made_by(outputs)}{_places(outputs)} "
            f"{is_text(outputs)} no longer needed by any task, but your code holds "
            f"{them_text(outputs)}{_names(peak, outputs)}",
            f"delete {them_text(outputs)} before the backward, or keep a small part; `.detach()` keeps all bytes",
            "held output",
        )


def _places(storages: Sequence[Storage]) -> str:
    sources = dict.fromkeys(each.made_by.source.short for each in storages if each.made_by.source)
    return f" ({joined(list(sources))})" if sources else ""


def _names(peak: Peak, storages: Sequence[Storage]) -> str:
    """Return the references to storages: ` as trainer.outputs[3]`, or else the variables that they were assigned to."""
    references = [peak.references.get(each.number) for each in storages]
    names = list(dict.fromkeys(each.text for each in references if each is not None))
    names = names or list(dict.fromkeys(each.made_by.variable for each in storages if each.made_by.variable))
    return f" as {joined(names)}" if names else ""


def forward_variables(peak: Peak) -> Iterator[Hint]:
    """Yield a hint about values that no node saves and that only variables of the forward keep alive at its peak.

    The operation that reaches the peak, and those after it, need their inputs; of these only copies count.
    """
    timeline = peak.timeline
    at_peak = timeline.maker(timeline.events[peak.event - 1]).operation if peak.event else None
    if at_peak is None:
        return
    graph = timeline.graph
    later = (timeline.maker(number) for number in timeline.events[peak.event - 1 :] if number >= 0)
    operations = {each.operation for each in later if each.task is None and each.operation is not None}
    found = (task.sequence_nr for each in operations for task in peak.tasks_of.get(each, ()))
    first = min(found, default=inf)
    needed = {
        graph.tasks[through_views(graph, edge)[0]].operation
        for task in graph.tasks
        if task.sequence_nr >= first and not task.is_leaf
        for edge in graph.out_edges[task.id]
    }
    idle, copies = [], []
    for storage in peak.of(Category.FORWARD):
        operation = storage.made_by.operation
        if operation is at_peak or operation not in peak.tasks_of or storage.nbytes <= SCALAR_BYTES:
            continue
        if operation in needed:
            is_copy = any(task.short_name in COPYING for task in peak.tasks_of[operation])
            copies += [storage] if is_copy else []
        else:
            idle.append(storage)
    kept = [*idle, *copies]
    nbytes = sum(storage.nbytes for storage in kept)
    if not idle or nbytes < _LEAST_OF_FORWARD * timeline.levels[peak.event]:
        return
    names = list(
        dict.fromkeys(
            f"{each.made_by.variable or f'the result of {peak.words.made_by([each])}'}{_places([each])}"
            for each in kept
        )
    )
    yield Hint(
        nbytes,
        f"{joined(names)} {is_text(kept)} alive at the forward's peak, although no node saves {them_text(kept)}: the "
        f"forward's {'variables hold' if len(names) > 1 else 'variable holds'} {them_text(kept)}",
        "`del` a variable after its last use, or assign the next value to the same name; a loss that is computed over "
        "chunks of the batch needs only one chunk at a time",
        "forward variable",
    )


def broadcast_products(peak: Peak) -> Iterator[Hint]:
    """Yield hints about products, and differences, of broadcast tensors that a sum reduces at once."""
    graph = peak.timeline.graph
    for task in graph.tasks:
        if task.short_name not in ("Sum", "Mean") or not graph.out_edges[task.id]:
            continue
        chain = [task, graph.tasks[through_views(graph, graph.out_edges[task.id][0])[0]]]
        if chain[-1].short_name in ("Pow", "Abs") and len(graph.out_edges[chain[-1].id]) == 1:
            chain.append(graph.tasks[through_views(graph, graph.out_edges[chain[-1].id][0])[0]])
        made = chain[-1]
        if made.short_name not in ("Mul", "Sub") or (len(chain) > 2) != (made.short_name == "Sub"):
            continue
        large = made.inputs[0].nbytes or 0
        if (
            not large
            or max(_factors(peak, made), default=inf) * _TIMES > large
            or (task.inputs[0].nbytes or inf) * 2 > large
        ):
            continue
        tasks, operations = {each.id for each in chain}, {each.operation for each in chain} - {None}
        found = [
            storage
            for storage, _ in peak.storages
            if storage.made_by.task in tasks or storage.made_by.operation in operations
        ]
        what, instead = "product", "`torch.einsum`, or a matrix product such as `a @ b.mT`"
        if made.short_name == "Sub":
            what, instead = "difference", "`torch.cdist`, or `a.square().sum(-1)` and a matrix product"
        yield Hint(
            sum(storage.nbytes for storage in found if storage.nbytes * _TIMES > large),
            f"{unique_name(graph, made)} is the backward of a broadcast {what}, {shape_text(made.inputs[0].shape)}, "
            f"{size_text(large)}, which {unique_name(graph, task)} reduces to {shape_text(task.inputs[0].shape)}",
            f"use {instead}: these never create the {what}",
            "broadcast",
        )


def _factors(peak: Peak, task: Task) -> list[float]:
    """Return the bytes of both arguments of a product or difference; an infinite number if one is unknown."""
    graph = peak.timeline.graph
    found: list[float] = [
        graph.tasks[edge.next_task].inputs[edge.input].nbytes or inf for edge in graph.out_edges[task.id]
    ]
    if len(found) == 1 and task.short_name == "Mul":  # the other one has no gradient, so the product has saved it
        saved: list[float] = [
            storage.nbytes
            for storage in map(peak.timeline.storage, range(len(peak.timeline.nbytes)))
            if any(keeper.kind == "saved" and keeper.task == task.id for keeper in storage.kept_by)
        ]
        found += saved or [peak.timeline.baseline.nbytes]  # it is older than the forward
    return found


def independent_parts(peak: Peak) -> Iterator[Hint]:
    """Yield a hint if the loss is a sum of parts that share only leaves, each of which could have its own backward."""
    timeline = peak.timeline
    part_of = _parts(timeline.graph)
    kept: dict[int, int] = {}  # bytes at the peak that only the tasks of one part keep
    for storage in peak.of(Category.SAVED):
        parts = {
            part_of.get(each.task)
            for each in peak.words.keepers(storage)
            if each.kind == "saved" and each.task is not None
        }
        if len(parts) == 1 and (part := parts.pop()) is not None:
            kept[part] = kept.get(part, 0) + storage.nbytes
    running = part_of.get(timeline.peak_task) if timeline.peak_task is not None else None
    if running is None:
        running = max(kept, key=kept.__getitem__, default=None)
    nbytes = sum(kept.values()) - kept.get(running, 0) if running is not None else 0
    if not nbytes or nbytes < _LEAST_OF_PARTS * timeline.peak_bytes:
        return
    count = len(set(part_of.values()))
    yield Hint(
        nbytes,
        f"the loss is a sum of {count:,} parts that share only leaves, and at the peak these are the saved tensors of "
        "the other parts",
        "call backward() for each part right after its forward, which adds to the same .grad: then the saved tensors "
        f"of two parts are never alive together, and this task has at most {size_text(timeline.peak_bytes - nbytes)}",
        "sum of parts",
    )


def _parts(graph: Graph) -> dict[int, int]:
    """Return the part of the loss that each task belongs to, by id; leaves and the sum itself belong to none."""
    heads: dict[int, None] = {}
    waiting, summing = [root.task for root in graph.roots], set()
    while waiting:
        task = graph.tasks[waiting.pop()]
        below = [
            (edge.next_task, graph.tasks[edge.next_task].inputs[edge.input].nbytes) for edge in graph.out_edges[task.id]
        ]
        if task.short_name in _SUMMING and below and all((nbytes or inf) <= _SMALL for _, nbytes in below):
            new = [each for each, _ in below if each not in summing]
            summing.update(new)
            waiting += new
        elif not task.is_leaf:
            heads[task.id] = None
    part_of: dict[int, int] = {}
    for part, head in enumerate(heads):
        reached, todo, joined_parts = {head}, [head], set()
        while todo:
            at = todo.pop()
            if at in part_of:
                joined_parts.add(part_of[at])
                continue
            for edge in graph.out_edges[at]:
                if edge.next_task not in reached and not graph.tasks[edge.next_task].is_leaf:
                    reached.add(edge.next_task)
                    todo.append(edge.next_task)
        part_of.update((each, part) for each in reached)
        if joined_parts:
            part_of = {each: part if old in joined_parts else old for each, old in part_of.items()}
    return part_of
