"""A backward through what an earlier one has freed, or through saved tensors that were written since: which tensor ties
it to the earlier graph, and who saved what, as notes on PyTorch's error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from threading import local
from typing import TYPE_CHECKING

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy

from ...inspector.garbage_collector import all_objects
from ...inspector.graph.freed_nodes import begun_by_session, is_over
from ...inspector.graph.graph import Edge, Graph, told_apart
from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import variable_name
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.saved_variables import (
    FREED,
    MODIFIED,
    WrittenSlot,
    hides_saved,
    holds_saved,
    written_slots,
)
from ...inspector.torch_private.sequence_numbers import sequence_nr
from ...inspector.torch_private.tensors import is_fake, storage_of
from ...inspector.torch_private.thread_state import unobserved

if TYPE_CHECKING:
    pass

_FREED = FREED.partition(" (")[0]
_NOTE = "tapescope: "
_MOST_SHOWN = 3
_BE = "is", "are"
_MOST_VIEWS = 8  # or other tasks that keep nothing, between what is freed and the tensor that a program holds


class _Last(local):
    """The two backwards that this thread has begun last: what the next node was to be numbered then."""

    began: int | None = None
    before: int | None = None


_last = _Last()


def backward_begins() -> int | None:
    """To be called as a backward begins: gives what the next node of this thread was to be numbered as the one before
    it began. What is older was made before that one; None where there was none."""
    now = sequence_nr()
    if now != _last.began:  # else it is the same one, which begins in several steps
        _last.before, _last.began = _last.began, now
    return _last.before


def backward_continues() -> None:
    """To be called where planning has made nodes since the backward began: what begins next is still that one."""
    _last.began = sequence_nr()


def explain_spoiled_graph(
    error: BaseException,
    graph: Graph,
    ran: Collection[int] | None,
    since: int | None = None,
    maker: Callable[[int], object] | None = None,
) -> None:
    """Notes on either error what led to it; on any other nothing. Nothing is run or unpacked for that.

    Args:
        error: what the backward raised.
        graph: the graph, with its nodes.
        ran: the tasks which this backward has run before; None: nobody knows.
        since: where nobody does, the number from which on nodes are younger than the backward before this one.
        maker: what made the node of a sequence number, in words, where nobody captured the forward; None: not known.
    """
    said = str(error)
    if not isinstance(error, RuntimeError) or not graph.nodes or graph.is_tape:
        return
    if said.startswith(_FREED):
        notes: Iterator[str] = chain(_of_freed(graph, ran, since), begun_by_session(graph))
    elif MODIFIED in said:
        notes = _of_written(graph, maker)
    else:
        return
    for note in notes:
        error.add_note(f"{_NOTE}{note}")


def crossings_told(graph: Graph, since: int) -> list[str]:
    """What `explain_spoiled_graph` would note if a backward ran now into what is freed, and older than this number."""
    return list(_of_freed(graph, None, since))


def _of_freed(graph: Graph, ran: Collection[int] | None, since: int | None) -> Iterator[str]:
    over = {task_id for task_id, node in enumerate(graph.nodes) if is_over(node)}
    if ran is not None:
        freed, since = over.difference(ran), None
    elif since is not None:
        freed = {task_id for task_id in over if graph.tasks[task_id].sequence_nr < since}
    else:
        return
    if not freed:
        return
    crossings = _crossings(graph, freed, over, since)
    if not crossings:
        if ran is not None:
            yield (
                f"an earlier backward has run through {counted(len(freed), 'task')} of this graph, "
                f"{graph.describe(max(freed))} first, and nothing was computed since that still keeps what it saved; "
                "what to do: compute the loss again, or pass retain_graph=True to the earlier backward"
            )
        return
    names = [
        _in_frames(graph, edge) or _held_elsewhere(graph.nodes[edge.next_task], edge.input)
        for edge in crossings[:_MOST_SHOWN]
    ]
    for name, edge in zip(names, crossings, strict=False):
        yield (
            f"{told_apart(graph, edge.task)} takes {f'{name}, ' if name else ''}"
            f"the result of {told_apart(graph, edge.next_task)}, {_meta(graph, edge)}: it is of an earlier graph"
        )
    more = f"; {counted(len(crossings), 'tensor')} lead there" if len(crossings) > len(names) else ""
    said = counted(len(freed), "task")
    if ran is not None:
        yield f"an earlier backward has freed {said} of that graph{more}"
    else:
        yield f"{said} of that graph {_BE[len(freed) > 1]} older than the backward before this one, and freed{more}"
    written = [name.partition(" of ")[0] for name in names if name is not None]
    known = [
        f"{each}.detach()" for each in written if " " not in each
    ]  # else it is described, as no one would write it
    yield (
        f"what to do: {joined(known) if known else '.detach() of what is taken there'} in whichever of the two losses "
        "need not go through it (a state that is carried on: before the next step); where both must, "
        "retain_graph=True in the earlier backward"
    )


def _crossings(graph: Graph, freed: Collection[int], over: Collection[int], since: int | None) -> list[Edge]:
    """The edges by which this backward gets from what it may run to what is freed, one for each tensor. What is below a
    freed task was made before that, and so is part of the earlier graph, freed or not."""
    below = _reached(freed, [[edge.next_task for edge in edges] for edges in graph.out_edges])
    leading = _reached(freed, [[edge.task for edge in edges] for edges in graph.in_edges])
    old = below & leading
    if since is not None:
        old |= {each for each in leading if graph.tasks[each].sequence_nr < since and not _keeps(graph, each)}
    found: dict[tuple[int, int], Edge] = {}
    for edge in graph.edges:
        if edge.next_task in old and edge.task not in old and _is_new(graph, edge.task, freed, over, since):
            found.setdefault((edge.next_task, edge.input), edge)
    return list(found.values())


def _reached(start: Collection[int], following: Sequence[Sequence[int]]) -> set[int]:
    found, waiting = set(start), list(start)
    while waiting:
        for each in following[waiting.pop()]:
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def _meta(graph: Graph, edge: Edge) -> str:
    return str(graph.tasks[edge.next_task].inputs[edge.input])


def _is_new(graph: Graph, task_id: int, freed: Collection[int], over: Collection[int], since: int | None) -> bool:
    """Whether this task, or one from which its gradients come, was made since: it kept something, and the earlier
    backward did not free it. Of one that keeps nothing this is told by its number, where another is known."""
    seen, waiting = {task_id}, [task_id]
    while waiting:
        at = waiting.pop()
        if since is not None and graph.tasks[at].sequence_nr >= since:
            return True
        if at not in freed and (at in over or _keeps(graph, at)):
            return True
        for edge in graph.in_edges[at]:
            if edge.task not in seen:
                seen.add(edge.task)
                waiting.append(edge.task)
    return False


def _keeps(graph: Graph, task_id: int) -> bool:
    """Whether the task's node is seen to keep something."""
    node = graph.nodes[task_id]
    return not hides_saved(node) and holds_saved(node)


def _held_elsewhere(node: Node, number: int) -> str | None:
    """Who holds the tensor: `trainer.hidden`."""
    from ...inspector.references.find_referrers import who_holds

    with all_objects() as objects:
        tensors = (each for each in objects if issubclass(type(each), Tensor) and not is_lazy(each))
        made = [*islice((each for each in tensors if _is_made_by(node, number, each)), 1)]
    if not made:
        return None
    with unobserved():
        (holder,) = who_holds(made)
    return holder.text if holder.kind == "named" else None


def _in_frames(graph: Graph, edge: Edge) -> str | None:
    roots = {root.task for root in graph.roots}
    for _ in range(_MOST_VIEWS):
        node, number = graph.nodes[edge.next_task], edge.input
        name = variable_name(partial(_is_made_by, node, number))
        if name is not None or edge.task in roots or _keeps(graph, edge.task) or is_over(graph.nodes[edge.task]):
            return name
        above = graph.in_edges[edge.task]
        if len(above) != 1:
            return None
        (edge,) = above
    return None


def _is_made_by(node: Node, number: int, tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is node and tensor.output_nr == number
    except RuntimeError:  # one of several views whose base was written
        return False


def _of_written(graph: Graph, maker: Callable[[int], object] | None) -> Iterator[str]:
    found: list[tuple[int, WrittenSlot]] = []
    with unobserved():
        for task_id in reversed(range(len(graph))):
            found.extend((task_id, slot) for slot in written_slots(graph.nodes[task_id]))
    if not found:
        return
    leaves = {
        storage.address: (graph.tasks[task_id].parameter or "a leaf")
        for task_id, leaf in graph.leaves.items()
        if (storage := storage_of(leaf)) is not None
    }
    of_leaf = False
    for task_id, slot in found[:_MOST_SHOWN]:
        name, is_leaf = _written_name(slot, leaves)
        of_leaf |= is_leaf
        called = f", {name}," if name else ""
        task = graph.tasks[task_id]
        made = None if maker is None or task.source is not None else maker(task.sequence_nr)
        who = told_apart(graph, task_id) + (f" of {made}" if made else "")
        yield (
            f"{who} saved {slot.name}{called} at version {slot.version}; it has been written since{_by_whom(slot)} "
            f"and is at version {slot.now}"
        )
    if len(found) > _MOST_SHOWN:
        yield f"so have {counted(len(found) - _MOST_SHOWN, 'other saved tensor')} of this graph been written"
    if of_leaf:
        yield (
            "what to do: run this backward before what writes the parameters (an optimizer's step(), as a rule), or "
            "compute the loss again after it"
        )
    else:
        yield (
            "what to do: make a new tensor in place of writing into this one (y = y + 1, not y += 1), or write after "
            "the backward"
        )


def _by_whom(slot: WrittenSlot) -> str:
    """The calls that wrote it, where somebody watched: ` by add_ at train.py:45`."""
    from ...inspector.capture.inplace_writes import writes_between

    storage = None if slot.tensor is None else storage_of(slot.tensor)
    writes = [] if storage is None else writes_between(storage.address, slot.version, slot.now)
    if not writes:
        return ""
    said = list(dict.fromkeys(map(str, writes)))
    more = [f"{counted(len(said) - _MOST_SHOWN, 'other call')}"] if len(said) > _MOST_SHOWN else []
    return f" by {joined([*said[:_MOST_SHOWN], *more])}"


def _written_name(slot: WrittenSlot, leaves: Mapping[int, str]) -> tuple[str | None, bool]:
    """What the slot's tensor is called, and whether it is a leaf."""
    storage = None if slot.tensor is None else storage_of(slot.tensor)
    if slot.tensor is None or storage is None:
        return None, False
    if storage.address in leaves:
        return leaves[storage.address], True
    if is_fake(slot.tensor):
        return None, False
    return variable_name(lambda tensor: _has_bytes(tensor, storage.address)), False


def _has_bytes(tensor: Tensor, address: int) -> bool:
    storage = None if is_lazy(tensor) else storage_of(tensor)
    return storage is not None and storage.address == address
