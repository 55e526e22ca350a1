"""The facts behind PyTorch's errors about freed graphs and modified saved tensors: the tensor that leads to the earlier
graph, and the task that saved the modified tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import local

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy

from ...inspector.garbage_collector import all_objects
from ...inspector.graph.freed_nodes import is_freed
from ...inspector.graph.graph import Edge, Graph, unique_name
from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import variable_name
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.saved_variables import (
    WrittenSlot,
    hides_saved,
    holds_saved,
    written_slots,
)
from ...inspector.torch_private.sequence_numbers import sequence_nr
from ...inspector.torch_private.tensors import is_fake, node_of, storage_of
from ...inspector.torch_private.thread_state import unobserved

_MOST_SHOWN = 3
_BE = "is", "are"
_REPLACED = "an earlier value of "
_MOST_VIEWS = 8  # views, or other tasks without saved tensors, between a freed task and a tensor the program holds


class _Last(local):
    """The next sequence number at the start of this thread's last two backwards."""

    began: int | None = None
    before: int | None = None


_last = _Last()


def backward_begins() -> int | None:
    """Record that a backward begins. Return the next sequence number at the start of the previous one in this thread;
    nodes with lower numbers are older than that backward. None if there was none."""
    now = sequence_nr()
    if now != _last.began:  # otherwise it is the same backward, which begins in several steps
        _last.before, _last.began = _last.began, now
    return _last.before


def backward_continues() -> None:
    """Record that planning created nodes since the backward began, so the next start is still the same backward."""
    _last.began = sequence_nr()


@dataclass(frozen=True, slots=True)
class FreedGraph:
    """The part of a graph that an earlier backward has freed, in clauses.

    Attributes:
        crossings: the tasks that lead into it, each with the tensor that it uses; none if all of the graph has run.
        extent: the number of its tasks.
        remedy: imperatives.
    """

    crossings: tuple[str, ...]
    extent: str
    remedy: str

    def __str__(self) -> str:
        return "; ".join(
            [*(f"{each}, which is in an earlier graph" for each in self.crossings), self.extent, self.remedy]
        )


def freed_graph(
    graph: Graph,
    ran: Collection[int] | None,
    since: int | None = None,
    maker: Callable[[Node], object] | None = None,
) -> FreedGraph | None:
    """Return the part of a graph that an earlier backward has freed; None if there is none, or it cannot be told from
    the tasks of this backward. Nothing is run or unpacked for it.

    Args:
        graph: the graph, with its nodes.
        ran: the tasks that this backward has run; None if unknown.
        since: if `ran` is unknown, the sequence number from which on nodes are newer than the previous backward.
        maker: returns the operation that created a node, in words, if the forward was not captured; None if unknown.
    """
    if not graph.nodes or graph.is_tape:
        return None
    over = {task_id for task_id, node in enumerate(graph.nodes) if is_freed(node)}
    if ran is not None:
        freed, since = over.difference(ran), None
    elif since is not None:
        freed = {task_id for task_id in over if graph.tasks[task_id].sequence_nr < since}
    else:
        return None
    if not freed:
        return None
    crossings = _crossings(graph, freed, over, since)
    if not crossings:
        if ran is None:
            return None
        return FreedGraph(
            (),
            f"an earlier backward has run through {counted(len(freed), 'task')} of this graph, "
            f"{graph.describe(max(freed))} first, and freed their saved tensors",
            "compute the loss again, or pass retain_graph=True to the earlier backward",
        )
    names = [_name_in_frames(graph, edge) or _name_elsewhere(graph, edge) for edge in crossings[:_MOST_SHOWN]]
    uses = []
    for name, edge in zip(names, crossings, strict=False):
        user, made = (_described(graph, each, maker) for each in (edge.task, edge.next_task))
        meta = graph.tasks[edge.next_task].inputs[edge.input]
        uses.append(f"{user} uses {f'{name}, ' if name else ''}the result of {made}, {meta}")
    more = f"; {counted(len(crossings), 'tensor')} lead there" if len(crossings) > len(names) else ""
    said = counted(len(freed), "task")
    if ran is not None:
        extent = f"an earlier backward has freed {said} of that graph{more}"
    else:
        extent = f"{said} of that graph {_BE[len(freed) > 1]} older than the backward before this one, and freed{more}"
    written = [name.removeprefix(_REPLACED).partition(" of ")[0] for name in names if name is not None]
    known = list(dict.fromkeys(f"{each}.detach()" for each in written if " " not in each))  # only valid code
    remedy = (
        f"what to do: call {joined(known) if known else '.detach() on that tensor'} for the loss that does not need "
        "gradients through it (for a carried state: before the next step); if it depends on the parameters, compute it "
        "again in each step; if both losses need it, pass retain_graph=True to the earlier backward"
    )
    return FreedGraph(tuple(uses), extent, remedy)


def _crossings(graph: Graph, freed: Collection[int], over: Collection[int], since: int | None) -> list[Edge]:
    """Return the edges on which this backward reaches freed tasks, one per tensor. Tasks below a freed task are older,
    so they belong to the earlier graph whether they are freed or not."""
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


def _is_new(graph: Graph, task_id: int, freed: Collection[int], over: Collection[int], since: int | None) -> bool:
    """Return whether this task, or one above it, is newer than the earlier backward: it has saved tensors that are not
    freed. A task without saved tensors is judged by its sequence number, if the limit is known."""
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
    """Return whether the task's node visibly has saved tensors."""
    node = graph.nodes[task_id]
    return not hides_saved(node) and holds_saved(node)


def _described(graph: Graph, task_id: int, maker: Callable[[Node], object] | None) -> str:
    made = None if maker is None or graph.tasks[task_id].source is not None else maker(graph.nodes[task_id])
    return unique_name(graph, task_id) + (f" of {made}" if made else "")


def _name_elsewhere(graph: Graph, edge: Edge) -> str | None:
    """Return the program's reference to the tensor: `trainer.hidden`. If the forward has replaced the tensor, the one
    that replaced it is the same output of a newer node of the same kind, and has the same shape."""
    from ...inspector.references.find_referrers import who_holds

    node, number = graph.nodes[edge.next_task], edge.input
    shape = graph.tasks[edge.next_task].inputs[number].shape

    def replaces(tensor: Tensor) -> bool:
        newer = None if is_lazy(tensor) else node_of(tensor)
        return type(newer) is type(node) and tensor.output_nr == number and tuple(tensor.shape) == shape

    with all_objects() as objects:
        tensors = (each for each in objects if issubclass(type(each), Tensor) and not is_lazy(each))
        made = [*islice((each for each in tensors if _is_output(node, number, each)), 1)]
    if not made:
        name = variable_name(replaces)
        return f"{_REPLACED}{name}" if name else None
    with unobserved():
        (holder,) = who_holds(made)
    return holder.text if holder.kind == "named" else None


def _name_in_frames(graph: Graph, edge: Edge) -> str | None:
    roots = {root.task for root in graph.roots}
    for _ in range(_MOST_VIEWS):
        node, number = graph.nodes[edge.next_task], edge.input
        name = variable_name(partial(_is_output, node, number))
        if name is not None or edge.task in roots or _keeps(graph, edge.task) or is_freed(graph.nodes[edge.task]):
            return name
        above = graph.in_edges[edge.task]
        if len(above) != 1:
            return None
        (edge,) = above
    return None


def _is_output(node: Node, number: int, tensor: Tensor) -> bool:
    return node_of(tensor) is node and tensor.output_nr == number


def modified_tensors(graph: Graph, maker: Callable[[Node], object] | None = None) -> Iterator[str]:
    """Yield a clause for each saved tensor that was modified in place, with the task that saved it, and its versions.

    Args:
        graph: the graph, with its nodes.
        maker: see `freed_graph`.
    """
    if not graph.nodes or graph.is_tape:
        return
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
    for task_id, slot in found[:_MOST_SHOWN]:
        name = _slot_name(slot, leaves)
        called = f", {name}," if name else ""
        yield (
            f"{_described(graph, task_id, maker)} saved {slot.name}{called} at version {slot.version}; it was "
            f"modified{recorded_writes(slot)} and is now at version {slot.now}"
        )
    if len(found) > _MOST_SHOWN:
        yield f"{counted(len(found) - _MOST_SHOWN, 'other saved tensor')} of this graph also modified in place"


def recorded_writes(slot: WrittenSlot) -> str:
    """Return the calls that modified a slot's tensor, if recorded: ` by add_ at train.py:45`; else ""."""
    from ...inspector.capture.inplace_writes import writes_between

    storage = None if slot.tensor is None else storage_of(slot.tensor)
    writes = [] if storage is None else writes_between(storage.address, slot.version, slot.now)
    if not writes:
        return ""
    said = list(dict.fromkeys(map(str, writes)))
    more = [f"{counted(len(said) - _MOST_SHOWN, 'other call')}"] if len(said) > _MOST_SHOWN else []
    return f" by {joined([*said[:_MOST_SHOWN], *more])}"


def _slot_name(slot: WrittenSlot, leaves: Mapping[int, str]) -> str | None:
    """Return the name of the slot's tensor; None if unknown."""
    storage = None if slot.tensor is None else storage_of(slot.tensor)
    if slot.tensor is None or storage is None:
        return None
    if storage.address in leaves:
        return leaves[storage.address]
    if is_fake(slot.tensor):
        return None
    address = storage.address
    return variable_name(
        lambda each: not is_lazy(each) and (its := storage_of(each)) is not None and its.address == address
    )
