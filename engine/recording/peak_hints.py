"""Hints on how to lower a peak, and the hooks that may keep a gradient alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import Node

from ...inspector.graph.graph import Graph, Task, unique_name
from ...inspector.graph.kinds import Kind
from ...inspector.graph.node_metadata import hooks_noted
from ...inspector.graph.phrases import joined, module_title
from ...inspector.graph.source_lines import Source
from ...inspector.text.sizes_and_counts import dtype_name, share_text, size_text
from ...inspector.torch_private.hooks import leaf_hooks, node_hooks, post_accumulate_hooks
from ...inspector.torch_private.nodes import leaf_of
from ..execution.run_hooks import hook_name
from ..memory.categories import Category
from ..memory.timeline import ON_CTX, Storage, Timeline
from .forward_hints import broadcast_products, forward_variables, held_outputs, independent_parts
from .peak_facts import COPYING, VIEWING, Hint, Peak, count_text, is_text, task_of, them_text, through_views

if TYPE_CHECKING:
    pass

_WORDS = "_hook_words"  # an attribute of a graph: the descriptions of hooks by task id
_MODULES_HOOK = "BackwardHookFunctionBackward"  # the node that `register_full_backward_hook` adds to the graph


def keep_holders(timeline: Timeline) -> None:
    """Read the hooks while the nodes exist, if a hook holds any gradient."""
    graph = timeline.graph
    held = Category.HELD in timeline.born_as or any(category is Category.HELD for _, _, category in timeline.changes)
    if held and graph.nodes:
        words = {task.id: found for task in graph.tasks if (found := holders(graph, task))}
        vars(graph)[_WORDS] = words


def holders(graph: Graph, task: Task) -> list[str]:
    """Return the hooks in words: "`list.append`, registered at train.py:41".

    For a tensor's hook, a capture of the forward knows the line that registered it. For a hook of a leaf or node, which
    may be older than the forward, the line is where the hook was defined. Without torch's nodes, as in a graph from a
    file, no hooks are known.
    """
    words: dict[int, list[str]] = vars(graph).get(_WORDS, {})
    if task.id in words:
        return words[task.id]
    node = graph.nodes[task.id] if graph.nodes else None
    return list(dict.fromkeys(_hook_holders(graph, task, node))) if isinstance(node, Node) else []


def _hook_holders(graph: Graph, task: Task, node: Node) -> Iterator[str]:
    for note in hooks_noted(node):
        source = note.operation.source
        by = note.hook if note.hook == "retain_grad()" else f"`{note.hook}`"
        how = "called" if note.hook == "retain_grad()" else "registered"
        yield by if source is None else f"{by}, {how} at {source.short}"
    if task.is_leaf:
        leaf = leaf_of(node)
        yield from map(_written, [*leaf_hooks(leaf), *post_accumulate_hooks(leaf)])
    before, after = node_hooks(node)
    if task.name == _MODULES_HOOK:
        yield f"a full backward hook of {module_title(graph, _hooked(graph, task))}"
    else:
        yield from map(_written, [*before, *after])


def _hooked(graph: Graph, task: Task) -> str | None:
    """Return the path of the module to which this hook's node belongs. The node of its outputs is created after its
    call."""
    for edge in graph.out_edges[task.id]:
        call = graph.tasks[edge.next_task].call
        while call is not None:
            if graph.calls[call].parent == task.call:
                return graph.calls[call].path
            call = graph.calls[call].parent
    return graph.module(task)


def _written(hook: Any) -> str:
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    name = f"`{hook_name(hook)}`"
    return name if code is None else f"{name}, defined at {Source(code.co_filename, code.co_firstlineno, '').short}"


_LEAST_SHARE = 0.01  # of the peak: smaller amounts get no hint
_MOST_HOOKS = 3
_MANY = 8  # waiting gradients for one kind of task
_PICKING = {  # the backward of each writes its gradient into zeros of its input's size
    "Index": "index once and use the result often",
    "Select": "`unbind` or `split` once instead of many selections: then one tensor is filled",
    "Slice": "`split` or `chunk` once instead of many slices: then one tensor is filled",
    "Gather": "gather from a smaller tensor, or write the loss with `cross_entropy`, which creates no such gradient",
    "IndexSelect": "select from a smaller tensor, or select once for several uses",
    "MaskedSelect": "multiply by the mask, or select once for several uses",
    "Take": "take from a smaller tensor, or take once for several uses",
    "Diagonal": "compute only the diagonal: `(a * b).sum(-1)` is the diagonal of `a @ b.mT`",
    "Embedding": "`Embedding(sparse=True)` creates a gradient of the used rows only. Your optimizer must support it, "
    "as SGD, SparseAdam and, on the CPU, Adagrad do (Adam and AdamW do not)",
}
_DIVIDING = ("Select", "Slice", "Index")
_PICKING_EARLIER = "index earlier, before expensive operations, if nothing else needs the rest of that tensor"
_SAVED_ARGUMENTS = {  # the slots of nodes that save one of several arguments, by the output for it
    "Mul": ("self", "other"),
    "Mm": ("self", "mat2"),
    "Bmm": ("self", "mat2"),
    "Addmm": ("", "mat1", "mat2"),
}


def hints(peak: Peak) -> tuple[Hint, ...]:
    """Return all hints, largest number of bytes first."""
    least = _LEAST_SHARE * peak.timeline.peak_bytes
    rules = HINTS if peak.phase == "backward" else FORWARD_HINTS
    found = [hint for rule in rules for hint in rule(peak) if hint.nbytes >= least]
    return tuple(sorted(found, key=lambda hint: -hint.nbytes))


_GRADIENTS = (Category.BUFFER, Category.LISTED, Category.CONSUMED, Category.GRADIENT, Category.HELD)


def picked_in_full(peak: Peak) -> Iterator[Hint]:
    """Yield hints about gradients of indexing operations that have the full size of the indexed tensor."""
    graph = peak.timeline.graph
    found: dict[tuple[str, str | None], list[tuple[Storage, Task, int]]] = {}
    for storage in peak.of(*_GRADIENTS):
        task = task_of(peak, storage)
        if task is None or task.short_name not in _PICKING or not _is_output(peak, storage):
            continue
        came = sum(meta.nbytes or 0 for meta in task.inputs)
        if task.short_name == "Embedding" and not _may_be_sparse(graph, task):
            continue
        if storage.nbytes >= 2 * came > 0:
            found.setdefault((task.short_name, graph.module(task)), []).append((storage, task, came))
    for (name, _), each in found.items():
        more = len({task.id for _, task, _ in each}) - 1
        many = len(each) > 1
        alone = name in _DIVIDING and not any(_has_siblings(graph, task) for _, task, _ in each)
        yield Hint(
            sum(storage.nbytes for storage, _, _ in each),
            f"{graph.describe(each[0][1])}{f' and {more:,} more like it' if more else ''} "
            f"{'create' if more else 'creates'} {'gradients' if many else 'a gradient'} of the full size of the "
            f"indexed tensor, of which at most {size_text(sum(came for _, _, came in each))} can differ from zero"
            f"{_zeros(peak, dict.fromkeys(task.id for _, task, _ in each))}",
            _PICKING_EARLIER if alone else _PICKING[name],
            "indexing",
        )


def _zeros(peak: Peak, tasks: Iterable[int]) -> str:
    """Return the measured share of zeros in the tasks' outputs, in words, if the trace has statistics."""
    count = zeros = 0
    for record in [peak.trace.of(task) for task in tasks] if peak.trace is not None else []:
        for given in record.outputs if record is not None else ():
            if given is not None and given.statistics is not None and given.statistics.zero_count is not None:
                count += given.statistics.count or 0
                zeros += given.statistics.zero_count
    return f"; measured: {share_text(zeros, count)} of it is zero" if count else ""


def _may_be_sparse(graph: Graph, task: Task) -> bool:
    """Return whether the gradient may be sparse: it goes directly to a leaf that receives no dense gradient."""
    takers = [graph.tasks[edge.next_task] for edge in graph.out_edges[task.id]]
    return all(
        taker.is_leaf and all(graph.tasks[edge.task].short_name == "Embedding" for edge in graph.in_edges[taker.id])
        for taker in takers
    )


def _has_siblings(graph: Graph, task: Task) -> bool:
    """Return whether other tasks of the same kind of indexing have the same next task."""
    return any(
        other.task != task.id and graph.tasks[other.task].short_name == task.short_name
        for edge in graph.out_edges[task.id]
        for other in graph.in_edges[edge.next_task]
    )


def _is_output(peak: Peak, storage: Storage) -> bool:
    """Return whether the storage is the task's own output, and not the later sum with an earlier gradient."""
    for number in range(storage.number - 1, -1, -1):
        if peak.timeline.maker(number).task != storage.made_by.task:
            return True
        if peak.timeline.nbytes[number] == storage.nbytes:
            return False
    return True


def made_double(peak: Peak) -> Iterator[Hint]:
    """Yield hints about float64 gradients or saved tensors if all parameters, or all but a few, are narrower."""
    graph = peak.timeline.graph
    leaves = {task.id: meta.dtype for task in graph.tasks if task.is_leaf for meta in task.inputs}
    narrow = [dtype for dtype in leaves.values() if not _is_double(dtype)]
    double = {task.id for task in graph.tasks if any(_is_double(meta.dtype) for meta in task.inputs)}
    turning = [
        graph.tasks[task]
        for task in dict.fromkeys(
            edge.task
            for edge in graph.edges
            if edge.task in double and not _is_double(graph.tasks[edge.next_task].inputs[edge.input].dtype)
        )
    ]
    if not turning or len(narrow) < len(leaves) - len(narrow):
        return
    nbytes = 0
    for storage in peak.of(*_GRADIENTS):
        waits = [each.task for each in storage.kept_by if each.kind in ("buffer", "list", "grad")]
        nbytes += storage.nbytes if not double.isdisjoint(waits) else 0
    for storage in peak.of(Category.SAVED, Category.FORWARD):
        made = storage.made_by.operation and peak.tasks_of.get(storage.made_by.operation)
        nbytes += storage.nbytes if made and all(task.id in double for task in made) else 0
    widest = dtype_name(max(narrow, key=lambda dtype: dtype.itemsize))
    where = joined([unique_name(graph, task) for task in turning])
    wide = [
        graph.tasks[task].parameter or "a leaf without a name" for task, dtype in leaves.items() if _is_double(dtype)
    ]
    whose = f"like {joined(wide)} but no other parameter" if wide else f"although no parameter is wider than {widest}"
    yield Hint(
        nbytes,
        f"float64, {whose}; it begins at {where}; in {widest} that would be {size_text(nbytes // 2)}",
        _narrowing(turning[0], wide, widest),
        "float64",
    )


def _narrowing(task: Task, wide: Sequence[str], narrow: str) -> str:
    """Return the advice, which depends on the operation that created the first float64 tensor."""
    if wide:
        return f"make {joined(wide)} {narrow}, like the others; NumPy's arrays are float64 by default"
    if task.short_name in COPYING:
        return f"remove the conversion, or call `.to(torch.{narrow})` right after the part that needs the precision"
    return (
        f"another argument of that operation is float64: create it with `dtype=torch.{narrow}` or convert it before. "
        "NumPy's arrays, and tensors from `torch.from_numpy` and `torch.tensor` on them, are float64 by default"
    )


def other_rule(peak: Peak) -> Iterator[Hint]:
    """Yield hints about gradients that are alive because they are not summed on arrival, or not freed."""
    since = max(peak.timeline.peak_place, 0)
    if listed := peak.of(Category.LISTED):
        yield Hint(
            sum(storage.nbytes for storage in listed),
            peak.words.kept_by(listed, Category.LISTED, since),
            'by PyTorch\'s rule (accumulate="inplace") they are added on arrival and need the memory of only one',
            "accumulate",
        )
    if consumed := peak.of(Category.CONSUMED):
        yield Hint(
            sum(storage.nbytes for storage in consumed),
            f"{count_text(consumed, 'gradient')} {is_text(consumed)} "
            f"{peak.words.kept_by(consumed, Category.CONSUMED, since)}",
            'PyTorch\'s rule (release="eager") frees a gradient when the task that consumed it has run',
            "release",
        )


def held_gradients(peak: Peak) -> Iterator[Hint]:
    """Yield hints about gradients held by hooks, their lists or retain_grad(), and tensors that a leaf's hooks keep."""
    graph = peak.timeline.graph
    of_leaves: list[Storage] = []
    others: list[Storage] = []
    for storage in peak.of(Category.HELD):
        maker = task_of(peak, storage)
        if maker is not None and maker.is_leaf:
            of_leaves.append(storage)
        elif maker is None or not peak.words.may_be_grad(storage) or _holders(graph, [storage]):
            others.append(storage)
    for held, noun, advice in (
        (others, "gradient", "keep only the part of a gradient that you need, such as a norm, or a copy on the CPU"),
        (
            of_leaves,
            "tensor",
            "an optimizer that steps in a hook keeps its state; keep only the needed part of a gradient",
        ),
    ):
        if held:
            by = _holders(graph, held)
            yield Hint(
                sum(storage.nbytes for storage in held),
                f"{count_text(held, noun)} made by {peak.words.made_by(held)} {is_text(held)} held by a hook or "
                f"retain_grad(){f': {_listed(by)}' if by else ''}",
                f"{advice}; call retain_grad() only while debugging",
                "held by hook",
            )


def _holders(graph: Graph, held: Sequence[Storage]) -> list[str]:
    """Return the known hooks that may hold these storages."""
    tasks = {keeper.task for storage in held for keeper in storage.kept_by if keeper.kind == "buffer"}
    tasks |= {storage.made_by.task for storage in held}
    return list(dict.fromkeys(each for task in tasks if task is not None for each in holders(graph, graph.tasks[task])))


def _listed(hooks: Sequence[str]) -> str:
    """Join hooks with semicolons, as their descriptions contain commas."""
    more = f"; and {len(hooks) - _MOST_HOOKS:,} more" if len(hooks) > _MOST_HOOKS else ""
    return "; ".join(hooks[:_MOST_HOOKS]) + more


def kept_on_ctx(peak: Peak) -> Iterator[Hint]:
    """Yield hints about values that a custom Function put on its `ctx` and no task needs any longer."""
    since = max(peak.timeline.peak_place, 0)
    place_of = peak.timeline.places
    kept = []
    for storage in peak.of(Category.FORWARD, Category.SAVED):
        keepers = peak.words.keepers(storage, since)
        on_ctx = [keeper for keeper in keepers if keeper.kind == "node" and (keeper.slot or "").startswith(ON_CTX)]
        tasks = [keeper.task for keeper in on_ctx if keeper.task is not None]
        if any(peak.timeline.graph.tasks[task].kind is Kind.CHECKPOINT for task in tasks):
            continue  # that code is PyTorch's
        ran = all(task in place_of and place_of[task] < since for task in tasks)
        if on_ctx and len(on_ctx) == len(keepers) and ran:
            kept.append(storage)
    if kept:
        yield Hint(
            sum(storage.nbytes for storage in kept),
            f"{count_text(kept, 'value')} made by {peak.words.made_by(kept)} {is_text(kept)} no longer needed by any "
            f"task, but {is_text(kept)} {peak.words.kept_by(kept, Category.SAVED, since)}",
            f"use `ctx.save_for_backward`, which frees {them_text(kept)} when the task has run",
            "held on ctx",
        )


def saved_twice(peak: Peak) -> Iterator[Hint]:
    """Yield hints about saved tensors that are copies of other saved tensors, made by an operation with one copying
    node."""
    graph = peak.timeline.graph
    saved = peak.of(Category.SAVED)
    values: dict[tuple[int, int], Storage] = {}  # by task and output: the storage of a saved result
    for storage in saved:
        for keeper in storage.kept_by:
            if keeper.kind == "saved" and keeper.task is not None and keeper.slot is not None:
                value = _value_in(graph, graph.tasks[keeper.task], keeper.slot)
                if value is not None:
                    values[value] = storage
    copies: dict[int, tuple[Storage, Task]] = {}
    for storage in saved:
        made = [] if storage.made_by.operation is None else peak.tasks_of.get(storage.made_by.operation, [])
        copying = [task for task in made if task.short_name in COPYING]
        if len(copying) != 1 or any(task.short_name not in (*COPYING, *VIEWING) for task in made):
            continue
        edges = graph.out_edges[copying[0].id]
        source = values.get(through_views(graph, edges[0])) if len(edges) == 1 else None
        if source is not None and source is not storage and source.nbytes == storage.nbytes:
            copies[storage.number] = storage, copying[0]
    if copies:
        found = [copy for copy, _ in copies.values()]
        tasks = dict.fromkeys(task for _, task in copies.values())
        yield Hint(
            sum(copy.nbytes for copy in found),
            f"{count_text(found, 'saved tensor')} {is_text(found)} a copy of a tensor that is also saved: "
            f"{joined([unique_name(graph, task) for task in tasks])} copied {them_text(found)} in the forward",
            "use the original, or copy before its first use, so that only the copy is kept",
            "copy",
        )


def _value_in(graph: Graph, task: Task, slot: str) -> tuple[int, int] | None:
    """Return the task and output that created the tensor in a slot, skipping views; None if unknown."""
    if slot == "result":
        return task.id, 0
    takes = _SAVED_ARGUMENTS.get(task.short_name, ("self",) if len(graph.out_edges[task.id]) == 1 else ())
    edges = [edge for edge in graph.out_edges[task.id] if slot in takes and edge.output == takes.index(slot)]
    return through_views(graph, edges[0]) if edges else None


def waiting_gradients(peak: Peak) -> Iterator[Hint]:
    """Yield hints about many gradients that wait for one kind of task and could have been consumed in another order."""
    timeline = peak.timeline
    graph = timeline.graph
    since = max(timeline.peak_place, 0)
    lower = sorted((peak_bytes, name) for name, peak_bytes in peak.others.items() if peak_bytes < timeline.peak_bytes)
    if peak.others and not lower:
        return
    place_of = peak.timeline.places
    waiting: dict[tuple[str, str | None], tuple[list[Storage], set[int]]] = {}
    for storage in peak.of(Category.BUFFER):
        ids = [keeper.task for keeper in peak.words.keepers(storage, since) if keeper.kind == "buffer"]
        if not ids or ids[0] is None or place_of[ids[0]] <= since:
            continue
        if all(place_of.get(edge.task, -1) < since for edge in graph.in_edges[ids[0]]):
            task = graph.tasks[ids[0]]
            storages, tasks = waiting.setdefault((task.name, graph.module(task)), ([], set()))
            storages.append(storage)
            tasks.add(task.id)
    for each, tasks in waiting.values():
        nbytes = sum(storage.nbytes for storage in each)
        if len(tasks) < _MANY or 4 * nbytes < timeline.peak_bytes:
            continue
        kept_by = peak.words.kept_by(each, Category.BUFFER, since)
        better = f": under {lower[0][1]} the peak is {size_text(lower[0][0])}" if lower else "; `ts.compare` tries some"
        yield Hint(
            nbytes,
            f"{kept_by}, made by {peak.words.made_by(each)}",
            f"an order that runs these tasks as soon as they are ready keeps fewer gradients waiting{better}",
            "order",
        )


Rule = Callable[[Peak], Iterable[Hint]]
HINTS: tuple[Rule, ...] = (
    picked_in_full,
    made_double,
    other_rule,
    held_gradients,
    held_outputs,
    kept_on_ctx,
    saved_twice,
    waiting_gradients,
    broadcast_products,
    independent_parts,
)
FORWARD_HINTS: tuple[Rule, ...] = (forward_variables, broadcast_products)


def _is_double(dtype: torch.dtype) -> bool:
    return dtype in (torch.float64, torch.complex128)
