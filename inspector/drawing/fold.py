"""Folding of tasks that are drawn as one: closed modules, chains of views, and runs of equal blocks ("×12")."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from ..graph.graph import Fold, Graph
from ..graph.kinds import Kind, short_name
from ..graph.paths_and_repeats import Edges, RepeatedPart, find_shapes, first_task, fold_runs, ranks_of, tasks_of
from ..graph.source_lines import Source
from ..text.sizes_and_counts import counted
from .layout_types import LAYOUT

VIEWS = frozenset({"View", "UnsafeView", "Clone", "Transpose", "Expand", "Permute"})


def fold_views(
    graph: Graph, children: Sequence[RepeatedPart | int], links: Iterable[tuple[int, int]]
) -> list[RepeatedPart | int]:
    """Merge each chain of two or more views into one part. `links` are (upper, lower) places of children."""
    is_view = [isinstance(child, int) and short_name(graph.tasks[child].name) in VIEWS for child in children]
    if not any(is_view):
        return list(children)
    after: dict[int, int | None] = {}
    before: dict[int, int | None] = {}
    for upper, lower in links:
        after[upper] = lower if after.get(upper, lower) == lower else None
        before[lower] = upper if before.get(lower, upper) == upper else None

    def next_view(place: int | None) -> int | None:
        following = None if place is None or not is_view[place] else after.get(place)
        return following if following is not None and is_view[following] and before[following] == place else None

    replaced: set[int] = set()
    folded: list[RepeatedPart | int] = []
    for place in range(len(children)):
        following = next_view(place)
        if following is None or next_view(before.get(place)) == place:
            continue  # not the first of a chain
        chain = [place]
        while following is not None:
            chain.append(following)
            following = next_view(following)
        if len(chain) == len(children):
            return list(children)  # the box itself is the chain
        replaced.update(chain)
        part = RepeatedPart("", "", 0)
        part.is_views = True
        part.tasks = sorted(child for each in chain if isinstance(child := children[each], int))
        part.children = list(part.tasks)
        folded.append(part)
    kept = [child for place, child in enumerate(children) if place not in replaced]
    return sorted([*kept, *folded], key=first_task)


ROW_LENGTH: int = LAYOUT["ROW_LENGTH"]  # this many siblings of the same name are drawn as a row of chips
ROW_LINE: int = LAYOUT["ROW_LINE"]  # chips per line; a longer row becomes a grid
MOST_SHOWN = 60  # a repeated block with more tasks is drawn closed
MOST_LOOSE = 120  # in a box with more items, runs of tasks outside of modules are also folded
MOST_DRAWN = 200_000  # boxes and tasks: 70 MB of SVG
_MOST_NAMES = 3  # in the title of a folded run of tasks


@dataclass(frozen=True, slots=True)
class FoldedCalls:
    """Module calls drawn as one box.

    Attributes:
        items: groups and task ids drawn in the box, oldest first; for a closed group, the ids of its tasks.
        size: number of tasks in one layer, including those of its parameters.
        times: number of equal layers the box represents; `items` are those of one of them.
        repeat: number of the run of equal layers; None for a single module.
        is_views: whether the group is a chain of views rather than a module.
        members: titles of the equal layers, the first created first.
        paths: the same as full module paths.
        layers: the tasks of each equal layer; tasks at the same index correspond to one another.
    """

    path: str
    title: str
    subtitle: str
    items: tuple[FoldedCalls | int, ...]
    size: int
    closed: bool = False
    times: int = 1
    repeat: int | None = None
    is_views: bool = False
    members: tuple[str, ...] = ()
    layers: tuple[tuple[int, ...], ...] = ()
    paths: tuple[str, ...] = ()

    def tasks(self) -> Iterator[int]:
        """Yield the ids of all tasks drawn in the group or in groups below it."""
        stack: list[FoldedCalls | int] = [self]
        while stack:
            item = stack.pop()
            if isinstance(item, FoldedCalls):
                stack.extend(reversed(item.items))
            else:
                yield item


@dataclass(frozen=True, slots=True)
class Folded:
    """A graph's tasks in groups. AccumulateGrad tasks are in no group: parameters are drawn beside their users.

    `stands_in[task]` is the task drawn in place of `task`: itself, or its counterpart in a folded run. `between` maps
    the number of each edge from one block of a folded run to another to that run's `FoldedCalls.repeat`.
    """

    items: tuple[FoldedCalls | int, ...]
    stands_in: tuple[int, ...]
    between: dict[int, int]


def fold_graph(graph: Graph, fold: Fold = "repeats") -> Folded:
    """Group a graph's tasks by the module calls that created them.

    Args:
        graph: the graph, with or without module calls.
        fold: "fit" folds runs of equal siblings and chains of views, and `first_view` decides which groups are closed.
            "repeats" folds runs of equal siblings. "none" opens everything. A number closes all modules from that depth
            on (0: the outermost). A collection of module paths closes those modules.

    Raises:
        ValueError: `fold` is an unknown string, a negative depth, or contains a path that is not in the graph.
    """
    if isinstance(fold, str):
        if fold not in ("fit", "repeats", "none"):
            raise ValueError(
                f'unknown fold {fold!r}; expected "fit", "repeats", "none", a depth, '
                f"or a collection of module paths such as [{fold!r}]"
            )
    elif isinstance(fold, int):
        if fold < 0:
            raise ValueError(f"fold must be a depth of at least 0 (the outermost modules), got {fold}")
    elif unknown := sorted(set(fold) - {call.path for call in graph.calls}):
        raise ValueError(
            f"unknown module path in fold: {', '.join(map(repr, unknown))}; expected paths of modules of this graph"
        )
    return _Folding(graph, fold).run()


def refuse_too_many(graph: Graph, folded: Folded) -> None:
    """Raise ValueError if more tasks would be drawn than viewers can show."""
    count, stack = 0, list(folded.items)
    while stack:
        item = stack.pop()
        if isinstance(item, int) or item.closed:
            count += 1
        else:
            stack.extend(item.items)
    if count > MOST_DRAWN:
        advice = (
            'use fold="repeats", or a depth such as fold=1, which closes the modules below the outermost'
            if graph.calls
            else "capture the forward (with ts.capture(model): ...) so that equal modules can be folded"
        )
        raise ValueError(
            f"{counted(count, 'task')} would be drawn one by one, but viewers can show at most {MOST_DRAWN:,}; {advice}"
        )


def is_pill(graph: Graph, task: int) -> bool:
    """Return whether the task is a leaf with a user, which is drawn as a pill beside that user."""
    return graph.tasks[task].kind in (Kind.ACCUMULATE_GRAD, Kind.UNTRACKED) and bool(graph.in_edges[task])


class _Folding:
    """State of one `fold_graph` call, which works from the outermost box inwards, through open boxes."""

    def __init__(self, graph: Graph, fold: Fold) -> None:
        self._graph = graph
        self._fold = fold
        self._folds_repeats = isinstance(fold, str) and fold != "none"
        self._pills = bytearray(len(graph.tasks))
        self._uses: list[list[tuple[int, int]]] = [[] for _ in graph.tasks]  # task -> (output, parameter's task)
        self._edges: Edges = []
        self._place = [0] * len(graph.tasks)  # for each task, the index of its child in the current box
        self._stands_in = list(range(len(graph.tasks)))
        self._between: dict[int, int] = {}
        self._repeats = 0
        self._shapes: list[int] = []  # for each task

    def run(self) -> Folded:
        pills = self._pills
        for task in self._graph.tasks:
            pills[task.id] = is_pill(self._graph, task.id)
        for number, edge in enumerate(self._graph.edges):
            if pills[edge.next_task]:
                self._uses[edge.task].append((edge.output, edge.next_task))
            else:
                self._edges.append((edge.task, edge.next_task, number))
        parts = _parts(self._graph, self._pills)
        if self._folds_repeats:
            self._shapes = find_shapes(self._graph, parts, self._edges, self._uses)
        top = RepeatedPart("", "", -1)
        # The model's call is not drawn as a box if it is the only outermost one.
        roots = [
            part for call, part in zip(self._graph.calls, parts, strict=True) if call.parent is None and part.tasks
        ]
        children: list[RepeatedPart | int] = [
            task.id for task in self._graph.tasks if task.call is None and not self._pills[task.id]
        ]
        if len(roots) == 1 and roots[0].path == "":
            children += roots[0].children
            for part in parts:
                part.depth -= 1
        else:
            children += roots
        top.children = sorted(children, key=first_task)
        boxes = [(top, self._edges)]
        for box, edges in boxes:  # the loop appends to `boxes`
            if not box.closed:
                boxes.extend(self._settle(box, edges))
        self._follow_nested_runs()
        self._let_parameters_stand_in()
        groups: dict[int, FoldedCalls] = {}
        for box, _ in reversed(boxes):
            groups[id(box)] = self._group(box, groups)
        return Folded(groups[id(top)].items, tuple(self._stands_in), self._between)

    def _settle(self, box: RepeatedPart, edges: Edges) -> list[tuple[RepeatedPart, Edges]]:
        """Decide what is drawn in one box. Return its parts, each with the edges inside it (none if closed)."""
        children, ranks = self._without_circles(box.children, edges)
        if isinstance(self._fold, str):
            merged = _merge_parallel_calls(children, ranks)
            if len(merged) < len(children):
                children, ranks = self._without_circles(merged, edges)
        # A line of chips counts as one item.
        tasks = self._graph.tasks
        alike = Counter(
            (rank, tasks[child].name) for child, rank in zip(children, ranks, strict=True) if isinstance(child, int)
        )
        items = len(children) - alike.total()
        items += sum(count if count < ROW_LENGTH else ceil(count / ROW_LINE) for count in alike.values())
        many = items > MOST_LOOSE
        if self._folds_repeats and (many or any(isinstance(child, RepeatedPart) for child in children)):
            shapes = [self._shape(child, place) for place, child in enumerate(children)]
            folded = fold_runs(
                children, shapes, self._edges_between(children, edges), self._source_of if many else None
            )
            if len(folded) < len(children):
                children, _ = self._without_circles(folded, edges)
        children = [_unwrapped(child) for child in children]
        if self._fold == "fit" and not box.is_views:
            place = self._place
            links = [(place[task], place[child]) for task, child, _ in edges if place[task] != place[child]]
            folded = fold_views(self._graph, children, links)
            if len(folded) < len(children):
                folded, _ = self._without_circles(folded, edges)
            children = folded
        box.children = children
        inner = self._inner_edges(children, edges)
        opened = []
        for index, child in enumerate(children):
            if isinstance(child, int):
                continue
            if child.members:
                self._show_one(child)
                inner[index] = self._within_shown(child, inner[index])
            child.above = box.path
            child.closed = self._is_closed(child)
            opened.append((child, [] if child.closed else inner[index]))
        return opened

    def _source_of(self, task: int) -> Source | None:
        return self._graph.tasks[task].source

    def _shape(self, child: RepeatedPart | int, place: int) -> object:
        """Return a key that is equal for parts of one run, whose paths differ only in numbers.

        The key of merged parallel calls is unique.
        """
        if isinstance(child, int):
            return self._shapes[child]
        return (child.shape, re.sub(r"\d+", "*", child.path)) if child.shape >= 0 else -1 - place

    def _without_circles(
        self, children: list[RepeatedPart | int], edges: Edges
    ) -> tuple[list[RepeatedPart | int], list[int]]:
        """Return the children and their ranks, with parts on cycles replaced by their contents.

        A module can be on a cycle because data may leave it and come back through another module.
        """
        while True:
            for index, child in enumerate(children):
                for task in (child,) if isinstance(child, int) else child.tasks:
                    self._place[task] = index
            place = self._place
            links = {(place[task], place[child]) for task, child, _ in edges if place[task] != place[child]}
            ranks, order = ranks_of(len(children), links)
            if len(order) == len(children):
                return children, ranks
            # `ranks_of` omits children on a cycle and after one; with reversed edges, those on a cycle and before one.
            # Children omitted by both are on a cycle or between two cycles.
            below = set(range(len(children))).difference(order)
            _, order = ranks_of(len(children), ((target, source) for source, target in links))
            on_circle = below.difference(order)
            children = sorted(
                (
                    piece
                    for index, child in enumerate(children)
                    for piece in (_pieces(child) if index in on_circle else (child,))
                ),
                key=first_task,
            )

    def _inner_edges(self, children: Sequence[RepeatedPart | int], edges: Edges) -> dict[int, Edges]:
        inner: dict[int, Edges] = defaultdict(list)
        place = self._place
        for edge in edges:
            index = place[edge[0]]
            if index == place[edge[1]] and not isinstance(children[index], int):
                inner[index].append(edge)
        return inner

    def _edges_between(self, children: Sequence[RepeatedPart | int], edges: Edges) -> dict[int, list[tuple[int, int]]]:
        """Return for each child its edges to siblings: (index of the sibling, hash of the places that they connect)."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        place = self._place
        for task, child, number in edges:
            source, target = place[task], place[child]
            if source != target:
                edge = self._graph.edges[number]
                ends = (
                    task - first_task(children[source]),
                    edge.output,
                    child - first_task(children[target]),
                    edge.input,
                )
                found[source].append((target, hash(ends)))
        return found

    def _show_one(self, part: RepeatedPart) -> None:
        """Draw the last created member for the whole run; a backward reaches it first."""
        part.repeat = self._repeats
        self._repeats += 1
        shown = part.members[-1]
        tasks = tasks_of(shown)
        for member in part.members[:-1]:
            for hidden, task in zip(tasks_of(member), tasks, strict=True):
                self._stands_in[hidden] = task
        if all(isinstance(child, int) for child in shown):
            part.class_name, part.made_at = self._names_of(tasks), self._lines_of(tasks)
        part.children = shown[0].children if len(shown) == 1 and isinstance(shown[0], RepeatedPart) else shown
        part.tasks = tasks

    def _names_of(self, tasks: Sequence[int]) -> str:
        """Return a title for a row of tasks, such as "Sin, Mul and 4 more"."""
        names = list(dict.fromkeys(self._graph.tasks[task].short_name for task in tasks))
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES + 1 else []
        shown = names[:_MOST_NAMES] if more else names
        return " and ".join([", ".join(shown), *more])

    def _lines_of(self, tasks: Sequence[int]) -> str:
        """Return the lines of a row of tasks, "model.py:60–66" if one function created all, otherwise "12 tasks"."""
        sources = [self._source_of(task) for task in tasks]
        known = [source for source in sources if source is not None]
        if len(known) < len(sources) or len({(source.file, source.function) for source in known}) > 1:
            return counted(len(tasks), "task")
        first, last = (extreme(source.line for source in known) for extreme in (min, max))
        return replace(known[0], line=first).short + (f"–{last}" if last > first else "")

    def _within_shown(self, part: RepeatedPart, edges: Edges) -> Edges:
        turn = self._place  # reused: tasks in this part have no other use for it
        for number, member in enumerate(part.members):
            for task in tasks_of(member):
                turn[task] = number
        last = len(part.members) - 1
        for task, child, edge in edges:
            if turn[task] != turn[child]:
                assert part.repeat is not None
                self._between[edge] = part.repeat
        return [edge for edge in edges if turn[edge[0]] == turn[edge[1]] == last]

    def _is_closed(self, part: RepeatedPart) -> bool:
        fold = self._fold
        if isinstance(fold, str):
            return fold == "repeats" and bool(part.members) and len(part.tasks) > MOST_SHOWN
        return part.depth >= fold if isinstance(fold, int) else part.path in fold

    def _follow_nested_runs(self) -> None:
        """Extend `_between` to nested runs, whose hidden members have the same edges as the drawn one."""
        edges, stands_in = self._graph.edges, self._stands_in
        drawn = {(edges[number].task, edges[number].next_task): repeat for number, repeat in self._between.items()}
        if not drawn:
            return
        for task, child, number in self._edges:
            while number not in self._between and (stands_in[task] != task or stands_in[child] != child):
                task, child = stands_in[task], stands_in[child]
                if (repeat := drawn.get((task, child))) is not None:
                    self._between[number] = repeat

    def _let_parameters_stand_in(self) -> None:
        """Represent a parameter of hidden blocks by the corresponding parameter of the drawn block."""
        stands_in = self._stands_in
        seen = {parameter for task, uses in enumerate(self._uses) if stands_in[task] == task for _, parameter in uses}
        for task, uses in enumerate(self._uses):
            shown = stands_in[task]
            if shown == task:
                continue
            while stands_in[shown] != shown:  # one step per level of nested runs
                shown = stands_in[shown]
            stands_in[task] = shown
            for (_, parameter), (_, drawn) in zip(uses, self._uses[shown], strict=True):
                if parameter not in seen:
                    stands_in[parameter] = drawn

    def _group(self, part: RepeatedPart, groups: dict[int, FoldedCalls]) -> FoldedCalls:
        items: Iterable[FoldedCalls | int]
        if part.closed:
            items = part.tasks
        else:
            items = (child if isinstance(child, int) else groups[id(child)] for child in part.children)
        parameters = {parameter for task in part.tasks for _, parameter in self._uses[task]}
        title, subtitle = _labels(part)
        return FoldedCalls(
            path=part.path,
            title=title,
            subtitle=subtitle,
            items=tuple(items),
            size=len(part.tasks) + len(parameters),
            closed=part.closed,
            times=len(part.members) or 1,
            repeat=part.repeat,
            is_views=part.is_views,
            members=tuple(_member_title(part, member) for member in part.members),
            paths=tuple(_member_title(part, member, "") for member in part.members),
            layers=tuple(tuple(tasks_of(member)) for member in part.members),
        )


def _parts(graph: Graph, pills: bytearray) -> list[RepeatedPart]:
    """Return one part per module call, in the order of the calls, each with its children oldest first."""
    parts: list[RepeatedPart] = []
    for call in graph.calls:
        depth = 0 if call.parent is None else parts[call.parent].depth + 1
        parts.append(RepeatedPart(call.path, call.class_name, depth))
    for task in graph.tasks:
        if task.call is not None and not pills[task.id]:
            parts[task.call].children.append(task.id)
    for call, part in zip(reversed(graph.calls), reversed(parts), strict=True):
        part.children.sort(key=first_task)
        part.tasks = sorted(tasks_of(part.children))
        if part.tasks and call.parent is not None:
            parts[call.parent].children.append(part)
    return parts


def _pieces(child: RepeatedPart | int) -> Iterable[RepeatedPart | int]:
    """Return the pieces of a part that cannot be drawn as one box."""
    if isinstance(child, int):
        return (child,)
    return [piece for member in child.members for piece in member] if child.members else child.children


def _unwrapped(child: RepeatedPart | int) -> RepeatedPart | int:
    """Return the innermost of nested boxes around a single task."""
    while (
        isinstance(child, RepeatedPart)
        and len(child.tasks) == 1
        and not child.members
        and isinstance(child.children[0], RepeatedPart)
    ):
        child = child.children[0]
    return child


def _merge_parallel_calls(children: list[RepeatedPart | int], ranks: list[int]) -> list[RepeatedPart | int]:
    """Merge independent calls of one module into one part, so that their tasks can form rows."""
    alike: dict[tuple[str, int], list[RepeatedPart]] = defaultdict(list)
    for child, rank in zip(children, ranks, strict=True):
        if isinstance(child, RepeatedPart) and all(isinstance(task, int) for task in child.children):
            alike[child.path, rank].append(child)
    merged: list[RepeatedPart | int] = []
    replaced: set[RepeatedPart | int] = set()
    for parts in alike.values():
        if len(parts) >= ROW_LENGTH:
            part = RepeatedPart(parts[0].path, parts[0].class_name, parts[0].depth)
            part.calls = len(parts)
            part.tasks = sorted(tasks_of(parts))
            part.children = list(part.tasks)
            merged.append(part)
            replaced.update(parts)
    return sorted([*(child for child in children if child not in replaced), *merged], key=first_task)


def _labels(part: RepeatedPart) -> tuple[str, str]:
    """Return a box's title (its name relative to the enclosing box) and subtitle (its class, or that of the layers)."""
    if part.is_views:
        return f"⋯ {counted(len(part.children), 'view')}", ""
    if not part.members:
        title = _name_below(part.above, part.path) or part.class_name
        calls = f", {part.calls} calls" if part.calls > 1 else ""
        return title, (part.class_name if title != part.class_name else "") + calls
    if part.class_name and not any(isinstance(child, RepeatedPart) for child in part.members[-1]):
        return part.class_name, f"{part.made_at} ×{len(part.members):,}"
    first, last = (_member_title(part, part.members[at]) for at in (0, -1))
    title = last if first == last else f"{first} – {last}"
    lasts = [child for child in part.members[-1] if isinstance(child, RepeatedPart)]
    one = ", ".join(dict.fromkeys(child.class_name for child in lasts))
    loose = len(part.members[-1]) - len(lasts)
    if loose:
        one = f"({one} + {counted(loose, 'task')})"
    return title, f"{one} ×{len(part.members):,}"


def _member_title(part: RepeatedPart, member: Sequence[RepeatedPart | int], above: str | None = None) -> str:
    """Return the title of a member: `cell`; `cell, head`; `layers.0 – layers.5`.

    `above` is the prefix to leave out of paths; None means the enclosing box.
    """
    above = part.above if above is None else above
    parts = (child for child in member if isinstance(child, RepeatedPart))
    names = list(dict.fromkeys(_name_below(above, child.path) or child.class_name for child in parts))
    if not names:
        return part.class_name
    return f"{names[0]} – {names[-1]}" if len(names) > 3 else ", ".join(names)


def _name_below(above: str, path: str) -> str:
    return path.removeprefix(f"{above}.") if above else path
