"""Which tasks are drawn as one: modules as boxes, closed modules, and runs of equal blocks folded into one ("×12").

The result is a tree of groups whose siblings never depend on each other in a circle, so that each box can be laid out on
its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .graph import Fold, Graph
from .kinds import Kind

ROW_LENGTH = 16  # so many like siblings are drawn as a row of chips
MOST_SHOWN = 60  # a repeated block with more tasks is drawn closed
LEAST_HIDDEN = 8  # folding a run must hide so many tasks to be worth a frame
LONGEST_PERIOD = 32

Edges = list[tuple[int, int, int]]  # (task, next task, number of the edge in Graph.edges)


@dataclass(frozen=True, slots=True)
class Group:
    """Some module calls drawn as one box.

    `items` are the groups and task ids drawn in it, oldest first; of a closed group the ids of its tasks. `times` is how
    many equal runs of siblings it stands for, of which `items` is one; `repeat` numbers the groups for which that is more
    than one. `size` counts the tasks of one of them, its parameters' included.
    """

    path: str
    title: str
    subtitle: str
    items: tuple[Group | int, ...]
    size: int
    closed: bool = False
    times: int = 1
    repeat: int | None = None

    def tasks(self) -> Iterator[int]:
        """The ids of all tasks drawn in the group or in groups below it."""
        stack: list[Group | int] = [self]
        while stack:
            item = stack.pop()
            if isinstance(item, Group):
                stack.extend(reversed(item.items))
            else:
                yield item


@dataclass(frozen=True, slots=True)
class Folded:
    """A graph's tasks in groups. AccumulateGrad tasks are in no group: a parameter is drawn beside the tasks that use it.

    `stands_in[task]` is the task drawn in the place of `task`, itself where it is not one of a folded run. `between` has
    the edges that lead from one of a run of folded blocks to another: edge number -> `Group.repeat`.
    """

    items: tuple[Group | int, ...]
    stands_in: tuple[int, ...]
    between: dict[int, int]


def fold_graph(graph: Graph, fold: Fold = "repeats") -> Folded:
    """Groups a graph's tasks by the module calls that made them.

    Args:
        graph: with or without module calls.
        fold: "repeats" folds runs of equal siblings, "none" opens everything, a number closes the modules from that depth
            on (0: the outermost), a collection of module paths closes those.

    Raises:
        ValueError: an unknown word, a negative depth, or the path of no module of the graph.
    """
    _check(graph, fold)
    return _Folding(graph, fold).run()


def is_pill(graph: Graph, task: int) -> bool:
    """Whether the task is drawn as a pill beside its user: an AccumulateGrad that has one."""
    return graph.tasks[task].kind is Kind.ACCUMULATE_GRAD and bool(graph.in_edges[task])


def ranks_of(count: int, links: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The longest way from a source to each of `count` items, and the items on no circle, sources first.

    Where links form a circle, the items on it and below it are missing from the second list.
    """
    successors: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in links:
        successors[source].append(target)
        missing[target] += 1
    ranks = [0] * count
    order = [item for item in range(count) if not missing[item]]
    for item in order:
        next_rank = ranks[item] + 1
        for successor in successors[item]:
            if ranks[successor] < next_rank:
                ranks[successor] = next_rank
            missing[successor] -= 1
            if not missing[successor]:
                order.append(successor)
    return ranks, order


def _check(graph: Graph, fold: Fold) -> None:
    if isinstance(fold, str):
        if fold not in ("repeats", "none"):
            raise ValueError(
                f'unknown fold {fold!r}: expected "repeats", "none", a depth, or a collection of module paths such as [{fold!r}]'
            )
    elif isinstance(fold, int):
        if fold < 0:
            raise ValueError(f"fold={fold}: a depth counts from 0, the outermost modules")
    elif unknown := sorted(set(fold) - {call.path for call in graph.calls}):
        raise ValueError(f"fold: no module of this graph has the path {', '.join(map(repr, unknown))}")


class _Part:
    """A group in the making. `members` are the equal runs of siblings that it folds; `children` is the one shown."""

    __slots__ = (
        "above",
        "calls",
        "children",
        "class_name",
        "closed",
        "depth",
        "members",
        "path",
        "repeat",
        "shape",
        "tasks",
    )

    def __init__(self, path: str, class_name: str, depth: int) -> None:
        self.path, self.class_name, self.depth = path, class_name, depth
        self.children: list[_Part | int] = []
        self.tasks: list[int] = []
        self.members: list[list[_Part | int]] = []
        self.above = ""  # the path of the box around it
        self.calls = 1
        self.closed = False
        self.repeat: int | None = None
        self.shape = -1  # parts of the same shape have the same modules, tasks and inner edges


def _first(child: _Part | int) -> int:
    return child if isinstance(child, int) else child.tasks[0]


def _tasks(children: Iterable[_Part | int]) -> list[int]:
    tasks = []
    for child in children:
        if isinstance(child, int):
            tasks.append(child)
        else:
            tasks.extend(child.tasks)
    return tasks


class _Folding:
    """The state of one `fold_graph`: works from the outermost box inwards, into what is drawn open."""

    def __init__(self, graph: Graph, fold: Fold) -> None:
        self._graph = graph
        self._fold = fold
        self._pills = bytearray(len(graph.tasks))
        self._uses: list[list[tuple[int, int]]] = [[] for _ in graph.tasks]  # task -> (output, parameter's task)
        self._edges: Edges = []
        self._place = [0] * len(graph.tasks)  # the index of the child that holds a task, in the box at work
        self._stands_in = list(range(len(graph.tasks)))
        self._between: dict[int, int] = {}
        self._repeats = 0
        self._shapes: list[int] = []  # of the tasks

    def run(self) -> Folded:
        self._split_off_parameters()
        parts = _parts(self._graph, self._pills)
        if self._fold == "repeats":
            self._shapes = _find_shapes(self._graph, parts, self._edges, self._uses)
        top = _Part("", "", -1)
        top.children = _top_children(self._graph, self._pills, parts)
        boxes = [(top, self._edges)]
        for box, edges in boxes:  # grows while it runs
            if not box.closed:
                boxes.extend(self._settle(box, edges))
        self._let_parameters_stand_in()
        groups: dict[int, Group] = {}
        for box, _ in reversed(boxes):
            groups[id(box)] = self._group(box, groups)
        return Folded(groups[id(top)].items, tuple(self._stands_in), self._between)

    def _split_off_parameters(self) -> None:
        pills = self._pills
        for task in self._graph.tasks:
            pills[task.id] = is_pill(self._graph, task.id)
        for number, edge in enumerate(self._graph.edges):
            if pills[edge.next_task]:
                self._uses[edge.task].append((edge.output, edge.next_task))
            else:
                self._edges.append((edge.task, edge.next_task, number))

    def _settle(self, box: _Part, edges: Edges) -> list[tuple[_Part, Edges]]:
        """Decides what is drawn in one box. Gives the open parts in it, each with the edges inside of it."""
        children, ranks = self._without_circles(box.children, edges)
        if not isinstance(self._fold, int) and self._fold in ("repeats", "none"):
            merged = _merge_parallel_calls(children, ranks)
            if len(merged) < len(children):
                children, _ = self._without_circles(merged, edges)
        if self._fold == "repeats" and any(isinstance(child, _Part) for child in children):
            shapes = [self._shapes[child] if isinstance(child, int) else child.shape for child in children]
            folded = _fold_runs(children, shapes, self._edges_between(children, edges))
            if len(folded) < len(children):
                children, _ = self._without_circles(folded, edges)
        box.children = children = [_unwrapped(child) for child in children]
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

    def _without_circles(self, children: list[_Part | int], edges: Edges) -> tuple[list[_Part | int], list[int]]:
        """The children, and their ranks. Parts on a circle are dissolved: a module need not be convex in the graph."""
        while True:
            for index, child in enumerate(children):
                for task in (child,) if isinstance(child, int) else child.tasks:
                    self._place[task] = index
            place = self._place
            links = {(place[task], place[child]) for task, child, _ in edges if place[task] != place[child]}
            ranks, order = ranks_of(len(children), links)
            if len(order) == len(children):
                return children, ranks
            below = set(range(len(children))).difference(order)
            _, order = ranks_of(len(children), ((target, source) for source, target in links))
            on_circle = below.difference(order)
            children = sorted(
                (
                    piece
                    for index, child in enumerate(children)
                    for piece in (_pieces(child) if index in on_circle else (child,))
                ),
                key=_first,
            )

    def _inner_edges(self, children: Sequence[_Part | int], edges: Edges) -> dict[int, Edges]:
        inner: dict[int, Edges] = defaultdict(list)
        place = self._place
        for edge in edges:
            index = place[edge[0]]
            if index == place[edge[1]] and not isinstance(children[index], int):
                inner[index].append(edge)
        return inner

    def _edges_between(self, children: Sequence[_Part | int], edges: Edges) -> dict[int, list[tuple[int, int]]]:
        """For each child its edges to siblings: (index of the sibling, what the edge joins, from the first tasks on)."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        place = self._place
        for task, child, number in edges:
            source, target = place[task], place[child]
            if source != target:
                edge = self._graph.edges[number]
                ends = (task - _first(children[source]), edge.output, child - _first(children[target]), edge.input)
                found[source].append((target, hash(ends)))
        return found

    def _show_one(self, part: _Part) -> None:
        """Of a run of equal members the last created, which a backward meets first, is drawn for all."""
        part.repeat = self._repeats
        self._repeats += 1
        shown = part.members[-1]
        tasks = _tasks(shown)
        for member in part.members[:-1]:
            for hidden, task in zip(_tasks(member), tasks, strict=True):
                self._stands_in[hidden] = task
        part.children = shown[0].children if len(shown) == 1 and isinstance(shown[0], _Part) else shown
        part.tasks = tasks

    def _within_shown(self, part: _Part, edges: Edges) -> Edges:
        turn = self._place  # of no further use for tasks in this part
        for number, member in enumerate(part.members):
            for task in _tasks(member):
                turn[task] = number
        last = len(part.members) - 1
        for task, child, edge in edges:
            if turn[task] != turn[child]:
                assert part.repeat is not None
                self._between[edge] = part.repeat
        return [edge for edge in edges if turn[edge[0]] == turn[edge[1]] == last]

    def _is_closed(self, part: _Part) -> bool:
        fold = self._fold
        if isinstance(fold, str):
            return bool(part.members) and len(part.tasks) > MOST_SHOWN
        return part.depth >= fold if isinstance(fold, int) else part.path in fold

    def _let_parameters_stand_in(self) -> None:
        """A parameter used by folded blocks alone is represented by the one that the shown block uses in its place."""
        stands_in = self._stands_in
        seen = {parameter for task, uses in enumerate(self._uses) if stands_in[task] == task for _, parameter in uses}
        for task, uses in enumerate(self._uses):
            shown = stands_in[task]
            if shown == task:
                continue
            while stands_in[shown] != shown:  # as deep as folded runs are nested
                shown = stands_in[shown]
            stands_in[task] = shown
            for (_, parameter), (_, drawn) in zip(uses, self._uses[shown], strict=True):
                if parameter not in seen:
                    stands_in[parameter] = drawn

    def _group(self, part: _Part, groups: dict[int, Group]) -> Group:
        items: Iterable[Group | int]
        if part.closed:
            items = part.tasks
        else:
            items = (child if isinstance(child, int) else groups[id(child)] for child in part.children)
        parameters = {parameter for task in part.tasks for _, parameter in self._uses[task]}
        title, subtitle = _labels(part)
        return Group(
            path=part.path,
            title=title,
            subtitle=subtitle,
            items=tuple(items),
            size=len(part.tasks) + len(parameters),
            closed=part.closed,
            times=len(part.members) or 1,
            repeat=part.repeat,
        )


def _parts(graph: Graph, pills: bytearray) -> list[_Part]:
    """One part per module call, in the order of the calls, each with its children oldest first."""
    parts: list[_Part] = []
    for call in graph.calls:
        depth = 0 if call.parent is None else parts[call.parent].depth + 1
        parts.append(_Part(call.path, call.class_name, depth))
    for task in graph.tasks:
        if task.call is not None and not pills[task.id]:
            parts[task.call].children.append(task.id)
    for call, part in zip(reversed(graph.calls), reversed(parts), strict=True):
        part.children.sort(key=_first)
        part.tasks = sorted(_tasks(part.children))
        if part.tasks and call.parent is not None:
            parts[call.parent].children.append(part)
    return parts


def _top_children(graph: Graph, pills: bytearray, parts: list[_Part]) -> list[_Part | int]:
    """What no module call holds. The model's own call is not drawn where it is the only outermost one."""
    roots = [part for call, part in zip(graph.calls, parts, strict=True) if call.parent is None and part.tasks]
    children: list[_Part | int] = [task.id for task in graph.tasks if task.call is None and not pills[task.id]]
    if len(roots) == 1 and roots[0].path == "":
        children += roots[0].children
        for part in parts:
            part.depth -= 1
    else:
        children += roots
    return sorted(children, key=_first)


def _find_shapes(graph: Graph, parts: list[_Part], edges: Edges, uses: list[list[tuple[int, int]]]) -> list[int]:
    """Gives equal numbers to parts of equal shape, and returns such numbers for the tasks.

    Shape is class, tasks, gradient shapes, inner edges and the outputs that lead to parameters. Positions are task ids
    from the part's first one on: one forward creates a call's nodes one after the other.
    """
    numbers: dict[object, int] = {}
    metas: dict[object, int] = {}
    shapes = []
    for task, used in zip(graph.tasks, uses, strict=True):
        key = (
            task.name,
            tuple(metas.setdefault(meta, len(metas)) for meta in task.inputs),
            tuple(out for out, _ in used),
        )
        shapes.append(numbers.setdefault(key, len(numbers)))
    own_edges: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for task, child, number in edges:
        call = _common_call(graph, parts, task, child)
        if call is not None:
            edge = graph.edges[number]
            own_edges[call].append((task, edge.output, child, edge.input))
    for call in range(len(parts) - 1, -1, -1):
        part = parts[call]
        if not part.tasks:
            continue
        first = part.tasks[0]
        inner = tuple((task - first, output, child - first, number) for task, output, child, number in own_edges[call])
        content = tuple(
            (_first(child) - first, shapes[child] if isinstance(child, int) else child.shape) for child in part.children
        )
        part.shape = numbers.setdefault((part.class_name, content, inner), len(numbers))
    return shapes


def _common_call(graph: Graph, parts: list[_Part], one: int, other: int) -> int | None:
    """The innermost call in which both tasks were made."""
    a, b = graph.tasks[one].call, graph.tasks[other].call
    while a != b and a is not None and b is not None:
        depth, other_depth = parts[a].depth, parts[b].depth
        if depth >= other_depth:
            a = graph.calls[a].parent
        if other_depth >= depth:
            b = graph.calls[b].parent
    return a if a == b else None


def _pieces(child: _Part | int) -> Iterable[_Part | int]:
    """What a part falls into when it cannot be drawn as one box."""
    if isinstance(child, int):
        return (child,)
    return [piece for member in child.members for piece in member] if child.members else child.children


def _unwrapped(child: _Part | int) -> _Part | int:
    """A part with one task is drawn as that task: of boxes around boxes around it the innermost is enough."""
    while (
        isinstance(child, _Part)
        and len(child.tasks) == 1
        and not child.members
        and isinstance(child.children[0], _Part)
    ):
        child = child.children[0]
    return child


def _merge_parallel_calls(children: list[_Part | int], ranks: list[int]) -> list[_Part | int]:
    """Many calls of one module that don't depend on each other become one part, so that their tasks can form rows."""
    alike: dict[tuple[str, int], list[_Part]] = defaultdict(list)
    for child, rank in zip(children, ranks, strict=True):
        if isinstance(child, _Part) and all(isinstance(task, int) for task in child.children):
            alike[child.path, rank].append(child)
    merged: list[_Part | int] = []
    gone: set[_Part | int] = set()
    for parts in alike.values():
        if len(parts) >= ROW_LENGTH:
            part = _Part(parts[0].path, parts[0].class_name, parts[0].depth)
            part.calls = len(parts)
            part.tasks = sorted(_tasks(parts))
            part.children = list(part.tasks)
            merged.append(part)
            gone.update(parts)
    return sorted([*(child for child in children if child not in gone), *merged], key=_first)


def _fold_runs(
    children: list[_Part | int], shapes: list[int], edges: dict[int, list[tuple[int, int]]]
) -> list[_Part | int]:
    """Folds each run of equal siblings, of a period of one or more with at least one module in it, into one part."""
    folded: list[_Part | int] = []
    next_part = len(children)
    first_part_from = [0] * len(children)
    for index in range(len(children) - 1, -1, -1):
        if isinstance(children[index], _Part):
            next_part = index
        first_part_from[index] = next_part
    start = 0
    while start < len(children):
        period, times = _longest_run(children, shapes, edges, start, first_part_from[start])
        if times > 1:
            end = start + period * times
            members = [children[index : index + period] for index in range(start, end, period)]
            folded.append(_run_part(members))
            start = end
        else:
            folded.append(children[start])
            start += 1
    return folded


def _longest_run(
    children: list[_Part | int], shapes: list[int], edges: dict[int, list[tuple[int, int]]], start: int, first_part: int
) -> tuple[int, int]:
    """The period and the number of equal members of the longest run that begins at `start`; (1, 1) if none is worth it."""
    best = (1, 1)
    shape = shapes[start]
    for period in range(first_part - start + 1, min(LONGEST_PERIOD, (len(children) - start) // 2) + 1):
        if shapes[start + period] != shape:
            continue
        times = 1
        while _equal_members(children, shapes, edges, start, start + period * times, period):
            times += 1
        hidden = (times - 1) * len(_tasks(children[start : start + period]))
        if hidden >= LEAST_HIDDEN and period * times > best[0] * best[1]:
            best = (period, times)
    return best


def _equal_members(
    children: list[_Part | int],
    shapes: list[int],
    edges: dict[int, list[tuple[int, int]]],
    one: int,
    other: int,
    period: int,
) -> bool:
    """Whether the siblings [one, one + period) and [other, other + period) have the same shapes and edges inside."""
    if shapes[one : one + period] != shapes[other : other + period]:
        return False
    if period == 1:
        return True
    for place in range(period):
        a, b = one + place, other + place
        if _first(children[a]) - _first(children[one]) != _first(children[b]) - _first(children[other]):
            return False
        inner = [(target - one, ends) for target, ends in edges.get(a, ()) if one <= target < one + period]
        if inner != [(target - other, ends) for target, ends in edges.get(b, ()) if other <= target < other + period]:
            return False
    return True


def _run_part(members: list[list[_Part | int]]) -> _Part:
    parts = [child for child in members[-1] if isinstance(child, _Part)]
    above = parts[0].path.rpartition(".")[0] if len(members[-1]) > 1 else parts[0].path
    part = _Part(above, parts[0].class_name, min(each.depth for each in parts))
    part.members = members
    part.tasks = _tasks(child for member in members for child in member)
    return part


def _labels(part: _Part) -> tuple[str, str]:
    """Title and subtitle of a box: the name below the box around it, and the class."""
    if not part.members:
        title = _name_below(part.above, part.path) or part.class_name
        calls = f", {part.calls} calls" if part.calls > 1 else ""
        return title, (part.class_name if title != part.class_name else "") + calls
    firsts, lasts = ([child for child in part.members[at] if isinstance(child, _Part)] for at in (0, -1))
    names = [_name_below(part.above, child.path) or child.class_name for child in (*firsts, *lasts)]
    half = len(firsts)
    title = ", ".join(dict.fromkeys(names[:half])) if names[:half] == names[half:] else f"{names[0]} – {names[-1]}"
    classes = ", ".join(dict.fromkeys(child.class_name for child in lasts))
    return title, f"{classes} ×{len(part.members)}" + ("" if part.closed else ", one shown")


def _name_below(above: str, path: str) -> str:
    return path.removeprefix(f"{above}.") if above else path
