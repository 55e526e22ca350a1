"""Sentences about storages: their makers, their holders, and when they are freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...inspector.graph.graph import Task, module_name
from ...inspector.graph.kinds import Kind
from ...inspector.graph.phrases import MOST_NAMED, folded, joined, module_title, operation_title, pattern, task_name
from ...inspector.text.sizes_and_counts import nth
from .categories import Category
from .timeline import GRADIENT_GRAPH, IN_TREE, LEAF, ON_CTX, RANDOM_STATE, Keeper, Storage, Timeline

MADE_IN_FORWARD = "made in the forward"
"""The name of a storage whose operation no capture saw."""
AFTER_BACKWARD = "what follows the backward"
"""The maker, in a whole step, of storages allocated after the last task: mostly the optimizer."""


@dataclass(slots=True)
class _Kept:
    """The holders of some storages, by kind.

    Attributes:
        saving: the tasks whose nodes saved them.
        recomputing: the tasks of checkpointed regions that are recomputed with these random states.
        left: the tasks that compute a sum as one product, for which earlier tasks left them.
        waiting: the gradients in input buffers and the tasks they wait for, by kind and place.
        listed, lists: the gradients in lists, and the tasks they wait for.
        consumed: the tasks that have consumed them without freeing them.
        grads: the tasks of the leaves whose .grad they are.
        nodes: the tasks whose nodes hold them in other ways, by duration.
        user, backward: the numbers of storages held by user code and by the call of backward().
    """

    saving: dict[int, None] = field(default_factory=dict)
    recomputing: dict[int, None] = field(default_factory=dict)
    left: dict[int, None] = field(default_factory=dict)
    waiting: dict[tuple[str, str, str], tuple[set[int], dict[int, None]]] = field(default_factory=dict)
    listed: set[int] = field(default_factory=set)
    lists: dict[int, None] = field(default_factory=dict)
    consumed: dict[int, None] = field(default_factory=dict)
    grads: dict[int, None] = field(default_factory=dict)
    nodes: dict[str, dict[int, None]] = field(default_factory=dict)
    user: int = 0
    backward: int = 0


class StorageWords:
    """Sentences about storages of one timeline, one or many at a time.

    Args:
        timeline: the timeline.
        references: the program's references to storages that it holds, by number: `trainer.outputs[3]`.
    """

    def __init__(self, timeline: Timeline, references: Mapping[int, str] | None = None) -> None:
        self._timeline = timeline
        self._references = references or {}
        self._graph = timeline.graph.in_order(timeline.order)
        self._tasks = timeline.graph.tasks

    def name(self, storage: Storage) -> str:
        """Return a short name for a label: the maker, and where it is."""
        if storage.number in self._timeline.grads:
            return f"{self._leaf(self._timeline.grads[storage.number])}.grad"
        maker = storage.made_by
        if maker.task is not None:
            what = f"{self._tasks[maker.task].short_name}, {nth(self._timeline.order.index(maker.task) + 1)}"
        else:
            what = operation_title(maker.operation.name) if maker.operation else MADE_IN_FORWARD
        return what if maker.module is None else f"{module_title(self._graph, maker.module)} · {what}"

    def made_by(self, storages: Iterable[Storage]) -> str:
        """Return `50 × AddmmBackward0 in the backward` or `linear in the forward`, with numbers of tasks or operations.

        `MmBackward0 in the backward, recomputed` is a tensor that a node needs and did not keep, such as in a
        checkpointed region. `ToCopyBackward0 in the backward, copied from cuda:1` is a gradient from another device.
        """
        found: dict[str, Counter[str]] = {}
        makers = set()
        for storage in storages:
            when, what = self._maker(storage)
            maker = (storage.made_by.task, storage.made_by.operation, what)
            found.setdefault(when, Counter())[what] += maker not in makers
            makers.add(maker)
        return "; ".join(
            (joined([_times(count, what) for what, count in names.most_common()]) + " " + when).strip()
            for when, names in found.items()
        )

    def _maker(self, storage: Storage) -> tuple[str, str]:
        maker = storage.made_by
        if maker.task is not None:
            again = ", recomputed" if any(keeper.kind == "saved" for keeper in storage.kept_by) else ""
            return f"in the backward{again}{self._copied(storage, maker.task)}", task_name(self._tasks[maker.task])
        if maker.operation is not None:
            return "in the forward", operation_title(maker.operation.name)
        if (owner := _OWNERS.get(storage.category)) is not None:
            return "", owner
        if self._timeline.is_of_step and storage.born == len(self._timeline.order):
            return "", AFTER_BACKWARD
        root = self._timeline.born_as[storage.number] == Category.BUFFER  # of the loss, before the first task
        return "", "backward() itself" if root or storage.born >= 0 else "the forward"

    def _copied(self, storage: Storage, task: int) -> str:
        """Return the devices from which a task copied its gradient, in words; "" if none."""
        timeline = self._timeline
        if len(timeline.graph.devices) == 1 or timeline.born_as[storage.number] != Category.BUFFER:
            return ""
        devices = {str(meta.device) for meta in self._tasks[task].inputs}
        return f", copied from {joined(sorted(devices))}" if devices and timeline.device not in devices else ""

    def keepers(self, storage: Storage, since: int = -1) -> list[Keeper]:
        """Return the keepers from a place of the order on, without tasks that have run before it."""

        def still(keeper: Keeper) -> bool:
            if keeper.kind not in ("saved", "buffer", "list", "consumed") or keeper.task is None:
                return True
            place = self._timeline.places.get(keeper.task, len(self._timeline.order))
            return since < 0 or place < since if keeper.kind == "consumed" else place >= since

        return [keeper for keeper in storage.kept_by if still(keeper)]

    def kept_by(self, storages: Sequence[Storage], category: Category, since: int = -1) -> str:
        """Return the holders of storages of this category from a place of the order on.

        For example `saved by 3 × ReluBackward0 (layer1.*)`, `48 gradients of weight wait for 48 × TBackward0 (lin)`. A
        gradient that several tasks receive one after the other waits for the first.
        """
        found = _Kept()
        for storage in storages:
            self._sort(found, storage, self.keepers(storage, since), category)
        if said := "; ".join(self._said(found, storages, category)):
            return said
        if category is Category.WORKSPACE and all(storage.died == -1 for storage in storages):
            return "used inside the operation that made it"
        return _UNKNOWN_KEEPER.get(category, "not known")

    def _sort(self, found: _Kept, storage: Storage, keepers: Sequence[Keeper], category: Category) -> None:
        """Record the holders of one storage."""
        ahead = False  # whether an earlier task that receives it was found
        for keeper in keepers:
            task = keeper.task
            found.user += keeper.kind == "user"
            found.backward += keeper.kind == "backward"
            if task is None:
                continue
            if keeper.slot == IN_TREE:
                found.left[task] = None
            elif keeper.slot == RANDOM_STATE:
                found.recomputing[task] = None
            elif keeper.kind == "saved":
                found.saving[task] = None
            elif keeper.kind == "list":
                found.listed.add(storage.number)
                found.lists[task] = None
            elif keeper.kind == "consumed":
                found.consumed[task] = None
            elif keeper.kind == "buffer" and not ahead:
                ahead = True
                waits_for = self._tasks[task]
                key = (pattern(self._bound_for(waits_for)), task_name(waits_for), pattern(self._where(waits_for)))
                numbers, tasks = found.waiting.setdefault(key, (set(), {}))
                numbers.add(storage.number)
                tasks[task] = None
            elif keeper.kind == "grad" and not (ahead and category is Category.BUFFER):
                found.grads[task] = None
            elif keeper.kind == "node":
                found.nodes.setdefault(self._how_long(keeper.slot or ""), {})[task] = None

    def _said(self, found: _Kept, storages: Sequence[Storage], category: Category) -> Iterator[str]:
        """Yield one phrase for each kind of holder."""
        if found.saving:
            yield "saved by " + joined(self._named(found.saving))
        if found.recomputing:
            needing = joined(self._named(found.recomputing))
            yield f"the random state that a checkpoint saved, to recompute the saved tensors of {needing}"
        if found.left:
            yield f"kept for the one product of a sum, which {joined(self._named(found.left))} computes"
        if found.listed:
            which = "lists" if len(found.lists) > 1 else "list"
            for_whom = joined(self._named(found.lists))
            yield f"{_gradients(len(found.listed))} to be summed, in the {which} for {for_whom}"
        yield from self._of_buffers(found)
        if found.grads:
            leaves: dict[str, list[str]] = {}
            for task_id in found.grads:
                leaves.setdefault(pattern(self._leaf(task_id)), []).append(self._leaf(task_id))
            yield ".grad of " + joined([_times(len(each), folded(each)) for each in leaves.values()])
        if found.consumed:
            yield f"consumed by {joined(self._named(found.consumed))} and never freed"
        for how_long, tasks in found.nodes.items():
            which = "nodes" if len(tasks) > 1 else "node"
            yield f"held by the {which} of {joined(self._named(tasks))}{how_long}"
        if found.user and category not in (Category.PARAMETER, Category.STATE):
            who = self._holder(storages) if category is Category.HELD else "your code"
            names = list(
                dict.fromkeys(self._references[each.number] for each in storages if each.number in self._references)
            )
            held_as = f" as {joined(names)}" if names else ""
            yield f"held by {who}{held_as}" + (f" ({found.user:,} of them)" if found.user < len(storages) else "")
        if found.backward:
            yield "held by the call of backward() until its end"

    def _of_buffers(self, found: _Kept) -> Iterator[str]:
        """Yield `48 gradients of weight wait for 48 × TBackward0 (lin)`, largest numbers first."""
        kinds = sorted(found.waiting.values(), key=lambda kind: -len(kind[0]))
        for numbers, tasks in kinds[:MOST_NAMED]:
            bound_for = folded(self._bound_for(self._tasks[task]) for task in tasks)
            yield f"{_gradients(len(numbers), bound_for)} for {joined(self._named(tasks))}"
        more = len(kinds) - MOST_NAMED
        if more > 0:
            yield f"gradients for {more:,} more kind{'s' if more > 1 else ''} of task"

    def may_be_grad(self, storage: Storage) -> bool:
        """Return whether user code allocated it inside a task that may run a nested backward, which writes a .grad: a
        reentrant checkpoint, or a custom Function."""
        task = storage.made_by.task
        return task is not None and self._tasks[task].kind in (Kind.CHECKPOINT, Kind.FUNCTION)

    def _holder(self, storages: Sequence[Storage]) -> str:
        """Return the possible holders of a gradient that no task waits for and that is not the .grad of a leaf."""
        inside = any(self.may_be_grad(storage) for storage in storages)
        return "your code, a hook or a .grad written by a nested backward" if inside else "your code or a hook"

    def _how_long(self, slot: str) -> str:
        """Return why a node keeps a storage although it has run, or never runs."""
        if slot.startswith(ON_CTX):
            return ", on ctx"
        if slot == LEAF:
            return ", as its leaf"
        return " in the graph of the gradients" if slot == GRADIENT_GRAPH else ", which does not run"

    def freed_by(self, storages: Sequence[Storage]) -> str:
        """Return `when task 12 AddmmBackward0 (blocks.3.mlp, model.py:120) has run`, or `never: it stays as .grad`."""
        count = len(self._timeline.order)
        staying = [storage for storage in storages if storage.died is None]
        kinds_of = {storage.number: {keeper.kind for keeper in storage.kept_by} for storage in staying}
        with_graph = [
            storage
            for storage in staying
            if "node" in kinds_of[storage.number] and not kinds_of[storage.number] & {"user", "grad"}
        ]
        forever = [storage for storage in staying if storage not in with_graph]
        dying = [storage.died for storage in storages if storage.died is not None]
        places = sorted({place for place in dying if 0 <= place < count})
        sentences = []
        if early := [storage for storage in storages if storage.died == -1]:
            sentences.append(f"in the forward{self._last_before_death(early)}")
        if len(places) == 1:
            task = self._timeline.order[places[0]]
            inside = all(storage.category is Category.WORKSPACE for storage in storages)
            described = self._graph.describe(task)
            sentences.append(f"inside {described}" if inside else f"when {described} has run")
        elif places:
            names = Counter(task_name(self._tasks[self._timeline.order[place]]) for place in places)
            kinds = joined([_times(number, name) for name, number in names.most_common()])
            last = self._graph.describe(self._timeline.order[places[-1]])
            sentences.append(f"when {kinds} have run, the last of them {last}, the {nth(places[-1] + 1)} of {count:,}")
        if any(place >= count for place in dying):
            sentences.append("after the backward" if self._timeline.is_of_step else "as backward() returns")
        if with_graph:
            some = f"{len(with_graph):,} of {len(storages):,} " if len(with_graph) < len(storages) else ""
            sentences.append(f"{some}with the graph")
        if forever:
            some = f"{len(forever):,} of {len(storages):,} " if len(forever) < len(storages) else ""
            sentences.append(f"{some}never: {self._reason(forever)}")
        return "; ".join(sentences)

    def _last_before_death(self, storages: Sequence[Storage]) -> str:
        """Return `, after sort at model.py:12`: the last operation that allocated before the last of these was
        freed."""
        timeline = self._timeline
        event = max(timeline.deaths[storage.number] for storage in storages)
        number = next((each for each in reversed(timeline.events[:event]) if each >= 0), None)
        operation = None if number is None else timeline.maker(number).operation
        if operation is None:
            return ""
        at = f" at {operation.source.short}" if operation.source else ""
        return f", after {operation_title(operation.name)}{at}"

    def _reason(self, storages: Sequence[Storage]) -> str:
        it, stays = ("it", "stays") if len(storages) == 1 else ("they", "stay")
        if owners := {_OWNERS.get(storage.category, "") for storage in storages} - {""}:
            return f"{it} {stays} with {joined(sorted(owners))}"
        numbers = [storage.number for storage in storages]
        if all(number in self._timeline.grads for number in numbers):
            return f"{it} {stays} as .grad"
        if any(number in self._timeline.held for number in numbers):
            holds = [number for number in numbers if number in self._timeline.held]
            who = self._holder(storages) if all(each.category is Category.HELD for each in storages) else "your code"
            return f"{who} holds " + ("it" if len(numbers) == 1 else "them" if holds == numbers else "some of them")
        if any(storage.category is Category.SAVED for storage in storages):
            them = "it" if len(storages) == 1 else "them"
            return f"the nodes that saved {them} keep {them} after the backward"
        return f"{it} {'was' if len(storages) == 1 else 'were'} alive as backward() returned"

    def _named(self, task_ids: Iterable[int]) -> list[str]:
        """Return `3 × ReluBackward0 (layer1.*)` for each kind of task and place, largest numbers first."""
        kinds: dict[tuple[str, str], list[Task]] = {}
        for task_id in task_ids:
            task = self._tasks[task_id]
            kinds.setdefault((task_name(task), pattern(self._where(task))), []).append(task)
        names = []
        for tasks in sorted(kinds.values(), key=lambda tasks: -len(tasks)):
            where, name = module_name(folded(map(self._where, tasks))), task_name(tasks[0])
            names.append(_times(len(tasks), f"{name} ({where})" if where else name))
        return names

    def _where(self, task: Task) -> str:
        return task.parameter or self._graph.module(task) or ""

    def _leaf(self, task_id: int) -> str:
        return self._tasks[task_id].parameter or "a leaf without a name"

    def _bound_for(self, task: Task) -> str:
        """Return ` of lin.weight` if a gradient in this task's buffer only becomes that leaf's gradient."""
        graph = self._graph
        for _ in range(8):  # a weight's gradient passes a view or two
            if task.is_leaf:
                return f" of {task.parameter}" if task.parameter else ""
            edges = graph.out_edges[task.id]
            if len(edges) != 1:
                return ""
            task = graph.tasks[edges[0].next_task]
        return ""


_OWNERS = {Category.PARAMETER: "the model", Category.STATE: "the optimizer"}
"""The owners of storages that stay from step to step."""

_UNKNOWN_KEEPER = {
    Category.WORKSPACE: "used inside the task that made it",
    Category.PARAMETER: "the model keeps it",
    Category.STATE: "the optimizer keeps it from step to step",
    Category.FORWARD: "not saved by a node; held by the code of the forward",
    Category.BUFFER: "a gradient waiting for the next task",
    Category.GRADIENT: "the .grad of a leaf",
    Category.HELD: "held by your code or a hook",
    Category.SAVED: "saved by a node",
    Category.LISTED: "a gradient in a list, to be summed with others",
    Category.CONSUMED: "consumed by a task and never freed",
}


def _times(count: int, what: str) -> str:
    return what if count == 1 else f"{count:,} × {what}"


def _gradients(count: int, bound_for: str = "") -> str:
    """Return `a gradient waits` or `48 gradients of weight wait`."""
    return f"{count:,} gradients{bound_for} wait" if count > 1 else f"a gradient{bound_for} waits"
