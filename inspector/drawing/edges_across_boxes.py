"""The items directly in each box of a folded graph, and the wires that cross its edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..graph.graph import Graph
from ..graph.paths_and_repeats import ranks_of
from .fold import ROW_LENGTH, Folded, FoldedCalls, is_pill
from .layout_types import LAYOUT

LONG: int = LAYOUT["LONG"]  # a wire that spans more ranks than this is long
# More long wires than this from or to one task are not drawn; both ends get a stub instead.
LARGE_FAN: int = LAYOUT["LARGE_FAN"]


@dataclass(slots=True)
class Wire:
    """Edges drawn as one line. `source` and `target` are drawn tasks; None for another block of a folded run."""

    source: int | None
    target: int | None
    edges: list[int]


@dataclass(slots=True)
class Contents:
    """The contents of a box, open or closed. `group` is None for the whole picture; `around` is the enclosing box.

    An item is a task's id, the `Wiring.box_item` of a box, or the `Wiring.row_item` of a row. Links are (source item,
    target item, wire); entries and exits are (item, wire).
    """

    group: FoldedCalls | None
    around: int
    depth: int
    items: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    links: list[tuple[int, int, int]] = field(default_factory=list)
    entries: list[tuple[int, int]] = field(default_factory=list)
    exits: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a parameter: task `user` passes its gradient along `edges` to the AccumulateGrad task `parameter`."""

    user: int
    parameter: int
    output: int
    edges: list[int]


class Wiring:
    """The boxes of a folded graph from the outermost inwards, their items, ranks and wires.

    Attributes:
        boxes: the boxes; number 0 is the whole picture.
        wires: the wires by number.
        ends: for each wire, the items at both ends: tasks or closed boxes.
        anchor: for each task, the item that shows it: a task or a closed box. For an AccumulateGrad, its own id.
        caption: for each task that is the only one of a module without parameters, that module.
        rows: the tasks of each row of chips.
        uses: the parameters of each drawn task, by output.
        stubbed: numbers of the wires that are not drawn but marked with stubs at both ends.
    """

    def __init__(self, graph: Graph, folded: Folded) -> None:
        self.graph = graph
        self.boxes: list[Contents] = []
        self.wires: list[Wire] = []
        self.anchor = list(folded.stands_in)
        self.caption: dict[int, FoldedCalls] = {}
        self.rows: list[list[int]] = []
        self.uses: dict[int, list[Use]] = {}
        self.stubbed: list[int] = []
        self._holder = [0] * len(graph.tasks)
        self.ends: list[tuple[int, int]] = []
        self._place_tasks(folded)
        self._join(folded)
        crossings = [self._crossing(number) for number in range(len(self.wires))]
        self._rank(crossings)
        self._choose_stubbed(crossings)
        self._lift(crossings)
        self._lead_round(folded)
        self._form_rows()

    def box_item(self, box: int) -> int:
        return len(self.graph.tasks) + box

    def row_item(self, row: int) -> int:
        return len(self.graph.tasks) + len(self.boxes) + row

    def box_of(self, item: int) -> int:
        """Return the number of the box that directly contains an item."""
        tasks = len(self.graph.tasks)
        return self._holder[item] if item < tasks else self.boxes[item - tasks].around

    def _place_tasks(self, folded: Folded) -> None:
        drawn = Contents(None, -1, 0)
        self.boxes.append(drawn)
        stack: list[tuple[int, tuple[FoldedCalls | int, ...]]] = [(0, folded.items)]
        closed: dict[int, int] = {}
        while stack:
            box, items = stack.pop()
            contents = self.boxes[box]
            for item in reversed(items):  # the latest created first, as a backward runs them
                if isinstance(item, int):
                    contents.items.append(item)
                    self._holder[item] = box
                elif item.size == 1 and item.times == 1 and len(item.items) == 1 and isinstance(item.items[0], int):
                    contents.items.append(item.items[0])
                    self._holder[item.items[0]] = box
                    self.caption[item.items[0]] = item
                else:
                    number = len(self.boxes)
                    self.boxes.append(Contents(item, box, contents.depth + 1))
                    contents.items.append(self.box_item(number))
                    if item.closed:
                        closed |= dict.fromkeys(item.tasks(), self.box_item(number))
                    else:
                        stack.append((number, item.items))
        if closed:
            self.anchor = [closed.get(task, task) for task in self.anchor]

    def _join(self, folded: Folded) -> None:
        """Merge all edges between two drawn items into one wire, and collect the uses of parameters."""
        tasks = len(self.graph.tasks)
        numbers: dict[tuple[int, int], int] = {}
        uses: dict[tuple[int, int], Use] = {}
        drawn_parameter: dict[tuple[int, int], int] = {}
        pills = bytearray(is_pill(self.graph, task.id) for task in self.graph.tasks)
        anchor, stands_in = self.anchor, folded.stands_in
        for edge in self.graph.edges:
            if pills[edge.next_task] and stands_in[edge.task] == edge.task:
                drawn_parameter[edge.task, edge.output] = edge.next_task
        for number, edge in enumerate(self.graph.edges):
            source = anchor[edge.task]
            if pills[edge.next_task]:
                if source < tasks:
                    parameter = drawn_parameter[source, edge.output]
                    use = uses.get((source, parameter))
                    if use is None:
                        use = uses[source, parameter] = Use(source, parameter, edge.output, [])
                        self.uses.setdefault(source, []).append(use)
                    use.edges.append(number)
                continue
            target = anchor[edge.next_task]
            if source == target or number in folded.between:
                continue
            wire = numbers.get((source, target))
            if wire is None:
                numbers[source, target] = len(self.wires)
                self.wires.append(Wire(stands_in[edge.task], stands_in[edge.next_task], [number]))
                self.ends.append((source, target))
            else:
                self.wires[wire].edges.append(number)

    def _crossing(self, wire: int) -> tuple[int, int, int]:
        """Return the innermost box around both ends of a wire, and the two items of that box that it connects."""
        source, target = self.ends[wire]
        here, there = self.box_of(source), self.box_of(target)
        boxes, tasks = self.boxes, len(self.graph.tasks)
        while here != there:
            deep, other = boxes[here].depth, boxes[there].depth
            if deep >= other:
                source, here = tasks + here, boxes[here].around
            if other >= deep:
                target, there = tasks + there, boxes[there].around
        return here, source, target

    def _rank(self, crossings: list[tuple[int, int, int]]) -> None:
        links: list[list[tuple[int, int]]] = [[] for _ in self.boxes]
        for box, source, target in crossings:
            links[box].append((source, target))
        for contents, found in zip(self.boxes, links, strict=True):
            index = {item: number for number, item in enumerate(contents.items)}
            pairs = {(index[source], index[target]) for source, target in found}
            contents.ranks, _ = ranks_of(len(index), pairs)
            # Move each item without predecessors to the rank directly above its first successor.
            lowest: dict[int, int] = {}
            for source, target in pairs:
                lowest[source] = min(lowest.get(source, contents.ranks[target]), contents.ranks[target])
            entered = {target for _, target in pairs}
            for source, rank in lowest.items():
                if source not in entered:
                    contents.ranks[source] = rank - 1

    def _choose_stubbed(self, crossings: list[tuple[int, int, int]]) -> None:
        """Find the wires that would fill the picture: large fans of long wires, and wires without room in a box."""
        rank = {
            item: rank for contents in self.boxes for item, rank in zip(contents.items, contents.ranks, strict=True)
        }
        fans: dict[tuple[str, int], list[int]] = defaultdict(list)
        spans = []
        for wire, (_, source, target) in enumerate(crossings):
            span = rank[target] - rank[source]
            spans.append(span)
            if span > LONG:
                fans["from", self.ends[wire][0]].append(wire)
                fans["to", self.ends[wire][1]].append(wire)
        stubbed = {wire for fan in fans.values() if len(fan) > LARGE_FAN for wire in fan}
        # A wire needs a place in each rank it passes. The shortest are drawn first, until a box has no places left.
        room = [12 * len(contents.items) + 500 for contents in self.boxes]
        for wire in sorted(range(len(spans)), key=spans.__getitem__):
            if wire not in stubbed:
                room[crossings[wire][0]] -= spans[wire] - 1
                if room[crossings[wire][0]] < 0:
                    stubbed.add(wire)
        self.stubbed = sorted(stubbed)

    def _lift(self, crossings: list[tuple[int, int, int]]) -> None:
        """Add each wire to every box whose edge it crosses, and to the innermost box around it."""
        stubbed = set(self.stubbed)
        for wire, (box, source, target) in enumerate(crossings):
            if wire not in stubbed:
                self.boxes[box].links.append((source, target, wire))
                for item, crossed in self._ways_out(self.ends[wire][0], box):
                    crossed.exits.append((item, wire))
                for item, crossed in self._ways_out(self.ends[wire][1], box):
                    crossed.entries.append((item, wire))

    def _ways_out(self, item: int, outside: int) -> Iterator[tuple[int, Contents]]:
        """Yield the boxes around an item, from the innermost to below `outside`, each with the item inside it."""
        box = self.box_of(item)
        while box != outside:
            yield item, self.boxes[box]
            item, box = self.box_item(box), self.boxes[box].around

    def _lead_round(self, folded: Folded) -> None:
        """Lead edges from one folded block to the next out at the bottom of the frame, and in at its top."""
        frames = {
            contents.group.repeat: number
            for number, contents in enumerate(self.boxes)
            if contents.group is not None and contents.group.repeat is not None and not contents.group.closed
        }
        leaving: dict[tuple[int, int], list[int]] = defaultdict(list)
        coming: dict[tuple[int, int], list[int]] = defaultdict(list)
        for edge, repeat in folded.between.items():
            frame = frames.get(repeat)
            if frame is not None:
                leaving[frame, self.anchor[self.graph.edges[edge].task]].append(edge)
                coming[frame, self.anchor[self.graph.edges[edge].next_task]].append(edge)
        for out, ends in ((True, leaving), (False, coming)):
            for (frame, item), edges in ends.items():
                around = self.boxes[frame].around
                ways = list(self._ways_out(item, around))
                side = ways[-1][1].exits if out else ways[-1][1].entries
                if any(self.ends[wire][0 if out else 1] == item for _, wire in side):
                    continue  # a wire from outside the run is already drawn here
                wire = len(self.wires)
                task = folded.stands_in[
                    self.graph.edges[edges[0]].task if out else self.graph.edges[edges[0]].next_task
                ]
                self.wires.append(Wire(task, None, edges) if out else Wire(None, task, edges))
                self.ends.append((item, item))
                for way, contents in ways:
                    (contents.exits if out else contents.entries).append((way, wire))

    def _form_rows(self) -> None:
        """Merge 16 or more tasks of the same name and rank in a box into a row."""
        tasks = self.graph.tasks
        row_of: dict[int, int] = {}
        for contents in self.boxes:
            if len(contents.items) < ROW_LENGTH:
                continue
            alike: dict[tuple[int, str], list[int]] = defaultdict(list)
            for item, rank in zip(contents.items, contents.ranks, strict=True):
                if item < len(tasks):
                    alike[rank, tasks[item].name].append(item)
            found = [items for items in alike.values() if len(items) >= ROW_LENGTH]
            if not found:
                continue
            for items in found:
                row_of.update(dict.fromkeys(items, self.row_item(len(self.rows))))
                self.rows.append(items)
            ranks = {row_of.get(item, item): rank for item, rank in zip(contents.items, contents.ranks, strict=True)}
            contents.items, contents.ranks = list(ranks), list(ranks.values())
        self.row_of = row_of
