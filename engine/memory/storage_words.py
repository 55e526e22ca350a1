"""Who made a storage, who keeps it and what frees it, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ...inspector.graph.graph import Task, module_name
from ...inspector.graph.kinds import Kind
from ..words.phrases import _MOST_NAMED, folded, joined, module_title, operation_title, ordinal, pattern, task_name
from .timeline import GRADIENT_GRAPH, IN_TREE, ON_CTX, Category, Keeper, Storage, Timeline

MADE_IN_FORWARD = "made in the forward"
"""The name of what no capture saw."""


class StorageWords:
    """Sentences about the storages of one timeline, of one or of many at once."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._graph = timeline.graph
        self._tasks = timeline.graph.tasks

    def name(self, storage: Storage) -> str:
        """A short name for a label: what made it, and where."""
        if storage.number in self._timeline.grads:
            return f"{self._leaf(self._timeline.grads[storage.number])}.grad"
        maker = storage.made_by
        if maker.task is not None:
            what = f"{self._tasks[maker.task].short_name} #{maker.task}"
        else:
            what = operation_title(maker.operation.name) if maker.operation else MADE_IN_FORWARD
        return what if maker.module is None else f"{module_title(self._graph, maker.module)} · {what}"

    def made_by(self, storages: Iterable[Storage]) -> str:
        """`50 × AddmmBackward0 in the backward`, `linear in the forward`: so many tasks or operations, not storages.

        `MmBackward0 in the backward, made again`: what a node needs and did not keep, such as in a checkpointed region.
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
            again = ", made again" if any(keeper.kind == "saved" for keeper in storage.kept_by) else ""
            return f"in the backward{again}", task_name(self._tasks[maker.task])
        if maker.operation is not None:
            return "in the forward", operation_title(maker.operation.name)
        root = self._timeline.born_as[storage.number] == Category.BUFFER  # of the loss, before the first task
        return "", "backward() itself" if root or storage.born >= 0 else "the forward"

    def keepers(self, storage: Storage, since: int = -1) -> list[Keeper]:
        """What keeps it from a place of the order on: a task that has run before keeps nothing any more."""

        def still(keeper: Keeper) -> bool:
            if keeper.kind not in ("saved", "buffer", "list", "consumed") or keeper.task is None:
                return True
            place = self._timeline.places.get(keeper.task, len(self._timeline.order))
            return since < 0 or place < since if keeper.kind == "consumed" else place >= since

        return [keeper for keeper in storage.kept_by if still(keeper)]

    def kept_by(self, storages: Sequence[Storage], category: Category, since: int = -1) -> str:
        """Who keeps them from a place of the order on, where they are of this category.

        `saved by 3 × ReluBackward0 (layer1.*)`, `48 gradients of weight wait for 48 × TBackward0 (lin)`. A
        gradient that several tasks get, one after the other, waits for the first.
        """
        saving: dict[int, None] = {}
        left: dict[int, None] = {}
        waiting: dict[tuple[str, str, str], tuple[set[int], dict[int, None]]] = {}
        lists: tuple[set[int], dict[int, None]] = set(), {}
        consumed: dict[int, None] = {}
        grads: dict[int, None] = {}
        nodes: dict[str, dict[int, None]] = {}
        user = backward = 0
        for storage in storages:
            keepers = self.keepers(storage, since)
            ahead = False
            for keeper in keepers:
                if keeper.slot == IN_TREE and keeper.task is not None:
                    left[keeper.task] = None
                elif keeper.kind == "saved" and keeper.task is not None:
                    saving[keeper.task] = None
                elif keeper.kind == "list" and keeper.task is not None:
                    lists[0].add(storage.number)
                    lists[1][keeper.task] = None
                elif keeper.kind == "consumed" and keeper.task is not None:
                    consumed[keeper.task] = None
                elif keeper.kind == "buffer" and keeper.task is not None and not ahead:
                    ahead = True
                    task = self._tasks[keeper.task]
                    key = (pattern(self._bound_for(task)), task_name(task), pattern(self._where(task)))
                    numbers, tasks = waiting.setdefault(key, (set(), {}))
                    numbers.add(storage.number)
                    tasks[task.id] = None
                elif keeper.kind == "grad" and keeper.task is not None and not (ahead and category is Category.BUFFER):
                    grads[keeper.task] = None
                elif keeper.kind == "node" and keeper.task is not None:
                    nodes.setdefault(self._how_long(keeper.slot or ""), {})[keeper.task] = None
                user += keeper.kind == "user"
                backward += keeper.kind == "backward"
        sentences = []
        if saving:
            sentences.append("saved by " + joined(self._named(saving)))
        if left:
            sentences.append(f"left for the one product of a sum, which {joined(self._named(left))} makes")
        if lists[0]:
            numbers, tasks = lists
            gradients = f"{len(numbers):,} gradients wait" if len(numbers) > 1 else "a gradient waits"
            which = "lists" if len(tasks) > 1 else "list"
            sentences.append(f"{gradients} to be summed, in the {which} for {joined(self._named(tasks))}")
        kinds = sorted(waiting.values(), key=lambda kind: -len(kind[0]))
        for numbers, tasks in kinds[:_MOST_NAMED]:
            gradients = f"{len(numbers):,} gradients" if len(numbers) > 1 else "a gradient"
            verb = "wait" if len(numbers) > 1 else "waits"
            bound_for = folded(self._bound_for(self._tasks[task]) for task in tasks)
            sentences.append(f"{gradients}{bound_for} {verb} for {joined(self._named(tasks))}")
        more = len(kinds) - _MOST_NAMED
        if more > 0:
            sentences.append(f"gradients for {more:,} more kind{'s' if more > 1 else ''} of task")
        if grads:
            leaves: dict[str, list[str]] = {}
            for task_id in grads:
                leaves.setdefault(pattern(self._leaf(task_id)), []).append(self._leaf(task_id))
            sentences.append(".grad of " + joined([_times(len(each), folded(each)) for each in leaves.values()]))
        if consumed:
            sentences.append(f"consumed by {joined(self._named(consumed))}, and never let go")
        for how_long, tasks in nodes.items():
            which = "nodes" if len(tasks) > 1 else "node"
            sentences.append(f"held by the {which} of {joined(self._named(tasks))}{how_long}")
        if user:
            who = self._holder(storages) if category is Category.HELD else "your code"
            sentences.append(f"held by {who}" + (f" ({user:,} of them)" if user < len(storages) else ""))
        if backward:
            sentences.append("held by the call of backward() until its end")
        return "; ".join(sentences) or _UNKNOWN_KEEPER.get(category, "not known")

    def may_be_grad(self, storage: Storage) -> bool:
        """Whether the user's code made it inside of a task, where a backward of its own writes a .grad: a reentrant
        checkpoint's, or that of a custom Function."""
        task = storage.made_by.task
        return task is not None and self._tasks[task].kind in (Kind.CHECKPOINT, Kind.FUNCTION)

    def _holder(self, storages: Sequence[Storage]) -> str:
        """Who may hold what no task waits for and no leaf of the graph has as .grad."""
        inside = any(self.may_be_grad(storage) for storage in storages)
        return "your code, a hook or a .grad that was written inside" if inside else "your code or a hook"

    def _how_long(self, slot: str) -> str:
        """Why a node keeps something although it has run, or never runs."""
        if slot.startswith(ON_CTX):
            return ", on ctx"
        return " in the graph of the gradients" if slot == GRADIENT_GRAPH else ", which does not run"

    def freed_by(self, storages: Sequence[Storage]) -> str:
        """`when task 12 AddmmBackward0 (blocks.3.mlp, model.py:120) has run`, `never: it stays as .grad`."""
        count = len(self._timeline.order)
        staying = [storage for storage in storages if storage.died is None]
        with_graph = [storage for storage in staying if self._goes_with_graph(storage)]
        forever = [storage for storage in staying if storage not in with_graph]
        dying = [storage.died for storage in storages if storage.died is not None]
        places = sorted({place for place in dying if 0 <= place < count})
        sentences = []
        if len(places) == 1:
            task = self._timeline.order[places[0]]
            inside = all(storage.category is Category.WORKSPACE for storage in storages)
            described = self._graph.describe(task)
            sentences.append(f"inside {described}" if inside else f"when {described} has run")
        elif places:
            names = Counter(task_name(self._tasks[self._timeline.order[place]]) for place in places)
            kinds = joined([_times(number, name) for name, number in names.most_common()])
            last = self._graph.describe(self._timeline.order[places[-1]])
            sentences.append(
                f"when {kinds} have run, the last of them {last}, the {ordinal(places[-1] + 1)} of {count:,}"
            )
        if any(place >= count for place in dying):
            sentences.append("as backward() returns")
        if with_graph:
            some = f"{len(with_graph):,} of {len(storages):,} " if len(with_graph) < len(storages) else ""
            sentences.append(f"{some}with the graph")
        if forever:
            some = f"{len(forever):,} of {len(storages):,} " if len(forever) < len(storages) else ""
            sentences.append(f"{some}never: {self._reason(forever)}")
        return "; ".join(sentences)

    def _goes_with_graph(self, storage: Storage) -> bool:
        kinds = {keeper.kind for keeper in storage.kept_by}
        return "node" in kinds and not kinds & {"user", "grad"}

    def _reason(self, storages: Sequence[Storage]) -> str:
        it, stays = ("it", "stays") if len(storages) == 1 else ("they", "stay")
        numbers = [storage.number for storage in storages]
        if all(number in self._timeline.grads for number in numbers):
            return f"{it} {stays} as .grad"
        if any(number in self._timeline.held for number in numbers):
            holds = [number for number in numbers if number in self._timeline.held]
            who = self._holder(storages) if all(each.category is Category.HELD for each in storages) else "your code"
            return f"{who} holds " + ("it" if len(numbers) == 1 else "them" if holds == numbers else "some of them")
        if any(storage.category is Category.SAVED for storage in storages):
            them = "it" if len(storages) == 1 else "them"
            return f"the nodes that save {them} keep {them} after the backward, too"
        return f"{it} {'was' if len(storages) == 1 else 'were'} alive as backward() returned"

    def _named(self, task_ids: Iterable[int]) -> list[str]:
        """`3 × ReluBackward0 (layer1.*)` for each kind of task and place, most first."""
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
        return self._tasks[task_id].parameter or f"the leaf of task {task_id}"

    def _bound_for(self, task: Task) -> str:
        """` of lin.weight` where all that becomes of a gradient in this task's buffer is that leaf's."""
        graph = self._graph
        for _ in range(8):  # a weight's gradient passes a view or two
            if task.is_leaf:
                return f" of {task.parameter}" if task.parameter else ""
            edges = graph.out_edges[task.id]
            if len(edges) != 1:
                return ""
            task = graph.tasks[edges[0].next_task]
        return ""


_UNKNOWN_KEEPER = {
    Category.WORKSPACE: "used inside the task that made it",
    Category.BUFFER: "a gradient on its way to the next task",
    Category.GRADIENT: "the .grad of a leaf",
    Category.HELD: "held by your code or a hook",
    Category.SAVED: "a node saves it",
    Category.LISTED: "a gradient in a list, to be summed with others",
    Category.CONSUMED: "consumed by a task, and never let go",
}


def _times(count: int, what: str) -> str:
    return what if count == 1 else f"{count:,} × {what}"
