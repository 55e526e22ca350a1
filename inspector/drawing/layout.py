"""Layout of a graph's picture: `layout(graph)` returns the position of every element.

The layout is plain data, used by the SVG and the deck. Each box is laid out separately, the innermost first
(`layered_layout.py`), from its contents (`boxes.py`) and the wires that cross its edges (`edges_across_boxes.py`).

widgets/js/src/layout implements the same layout in TypeScript, since boxes open and close in the browser. Change both
together; tests/widgets/deck/test_layout_agrees.py compares them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..garbage_collector import collector_paused
from ..graph.graph import Fold, Graph
from ..graph.kinds import short_name
from ..graph.paths_and_repeats import ranks_of
from ..text.sizes_and_counts import shape_text
from .boxes import (
    HEADER,
    MOST_PILLS,
    PAD,
    BoxCell,
    Canvas,
    Cell,
    ChipRow,
    FoldedCell,
    Pill,
    PlacedBox,
    PlacedTask,
    PlacedWire,
    Rect,
    RowCell,
    Side,
    Stub,
    TaskCell,
    UnplacedBox,
)
from .edges_across_boxes import Contents, Use, Wiring
from .fold import Folded, fold_graph, refuse_too_many
from .layered_layout import arrange
from .layout_types import LAYOUT, Arrangement, Link, Point, Port
from .svg_text import shorten_middle

__all__ = ["ChipRow", "Layout", "Pill", "PlacedBox", "PlacedTask", "PlacedWire", "Rect", "Stub", "layout"]

TALL: float = LAYOUT["TALL"]  # default maximum height of the picture's columns
WIDEST_SIDE: int = LAYOUT["WIDEST_SIDE"]  # maximum width of a parameter's name beside its user
SHAPE_LINE = 13.0  # pixels below an item for the shapes of its inputs
LEAST_TALL: float = LAYOUT["LEAST_TALL"]  # columns of a box may be cut lower, but not below this


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of a graph's elements in pixels. y grows downwards, in the direction of the gradients.

    `shown_by[task]` is the task drawn in place of `task`: itself, its counterpart in a run of folded blocks, or any
    task of the closed box around it. `boxes` are sorted with the outermost first.
    """

    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    tasks: tuple[PlacedTask, ...]
    pills: tuple[Pill, ...]
    stubs: tuple[Stub, ...]
    rows: tuple[ChipRow, ...]
    wires: tuple[PlacedWire, ...]
    shown_by: tuple[int, ...]


def layout(graph: Graph, fold: Fold = "repeats") -> Layout:
    """Lay out a graph. `fold` selects the modules drawn closed; see `Graph.save_svg`."""
    return lay_out(graph, fold_graph(graph, fold))


def lay_out(graph: Graph, folded: Folded, tall: float = TALL, *, shapes: bool = False) -> Layout:
    """Lay out a folded graph in columns no taller than `tall`, unless a single rank is taller.

    `shapes` leaves room for shapes below each item, and adds them to the names of parameters.
    """
    with collector_paused():
        refuse_too_many(graph, folded)
        wiring = Wiring(graph, folded)
        top, cells = _Assembly(wiring, tall, shapes).lay_out()
        canvas = Canvas()
        canvas.pending.append(UnplacedBox(top, cells, 0, 0, 0, top.height))
        while canvas.pending:
            canvas.pending.pop().place(canvas)
        wires = [*canvas.wires, *_joined(wiring, canvas)]
        return Layout(
            width=top.width,
            height=top.height,
            boxes=tuple(sorted(canvas.boxes, key=lambda box: box.depth)),
            tasks=tuple(canvas.tasks),
            pills=tuple(canvas.pills),
            stubs=tuple(canvas.stubs),
            rows=tuple(canvas.rows),
            wires=tuple(wires),
            shown_by=folded.stands_in,
        )


def _joined(wiring: Wiring, canvas: Canvas) -> list[PlacedWire]:
    """Return the wires between cells, joined from their pieces: out of boxes, across, into boxes."""
    wires = []
    exits, links, entries = canvas.exits, canvas.links, canvas.entries
    for number, wire in enumerate(wiring.wires):
        points = links.get(number, [])
        if number in exits or number in entries:
            points = _chained([*reversed(exits.get(number, ())), points, *entries.get(number, ())])
        if points:
            kind = "gradient" if wire.source is not None and wire.target is not None else "between"
            rounded = tuple([(round(x, 1), round(y, 1)) for x, y in points])
            wires.append(PlacedWire(kind, tuple(wire.edges), wire.source, wire.target, rounded))
    return wires


def _chained(pieces: Sequence[Sequence[Point]]) -> list[Point]:
    """Join the pieces of a wire, each from the end of the one before, and drop points on straight vertical lines."""
    points: list[Point] = []
    for piece in pieces:
        for x, y in piece:
            point = (round(x, 1), round(y, 1))
            if points and points[-1] == point:
                continue
            if len(points) > 1 and points[-1][0] == points[-2][0] == point[0]:
                points[-1] = point
            else:
                points.append(point)
    return points


class _Assembly:
    """Builds the cells of every box, the innermost first, and lays them out."""

    def __init__(self, wiring: Wiring, tall: float, shapes: bool) -> None:
        self.wiring = wiring
        self.tall = tall
        self.shapes = shapes
        self.below = SHAPE_LINE if shapes else 0.0
        self.graph = wiring.graph
        self.owner = self._owners()
        self.marks = self._marks()
        self.weights = self._weights()
        self.cells: dict[int, Cell] = {}  # cells of boxes, by item

    def lay_out(self) -> tuple[Arrangement, list[Cell]]:
        """Return the arrangement of the whole picture, and its cells."""
        wiring = self.wiring
        # The number of boxes that darken each box's background: itself and those around it, up to the nearest run of
        # equal layers, whose cards are bright.
        shades = [0]
        for contents in wiring.boxes[1:]:
            assert contents.group is not None
            shades.append(1 if contents.group.times > 1 else shades[contents.around] + 1)
        # Boxes have lower numbers than those inside them, so the size of an inner box is known before it is placed.
        for number in range(len(wiring.boxes) - 1, 0, -1):
            contents = wiring.boxes[number]
            assert contents.group is not None
            item = wiring.box_item(number)
            if contents.group.closed:
                sides = self.marks.get(item, [])
                around = shades[contents.around]
                self.cells[item] = FoldedCell(self.graph, contents.group, contents.depth - 1, sides, around, self.below)
            else:
                inside, cells = self._lay_out_box(contents)
                depth, weights = contents.depth - 1, self.weights
                self.cells[item] = BoxCell(contents.group, depth, cells, inside, weights, shades[number])
        return self._lay_out_box(wiring.boxes[0])

    def _lay_out_box(self, contents: Contents) -> tuple[Arrangement, list[Cell]]:
        wires, row_of, weights = self.wiring.wires, self.wiring.row_of, self.weights
        cells = [self._cell(item) for item in contents.items]
        index = {item: number for number, item in enumerate(contents.items)}
        if row_of:
            index |= {task: index[row] for task, row in row_of.items() if row in index}
        links: list[Link] = []
        drawn: dict[tuple[int, int, float, float], int] = {}
        for source, target, wire in contents.links:
            a, b = index[source], index[target]
            leaves = _distance_from_axis(cells[a], wire, wires[wire].source, leaves=True)
            arrives = _distance_from_axis(cells[b], wire, wires[wire].target, leaves=False)
            same = drawn.setdefault((a, b, leaves, arrives), wire)
            if same == wire:
                links.append(Link(a, b, wire, leaves, arrives, weights[wire], self._output(wire)))
            else:  # all chips of a grid share one wire
                wires[same].edges.extend(wires[wire].edges)
        entries, exits = [], []
        for item, wire in contents.entries:
            shift = _distance_from_axis(cells[index[item]], wire, wires[wire].target, leaves=False)
            entries.append(Port(index[item], wire, shift, weights[wire]))
        for item, wire in contents.exits:
            shift = _distance_from_axis(cells[index[item]], wire, wires[wire].source, leaves=True)
            exits.append(Port(index[item], wire, shift, weights[wire], self._output(wire)))
        extents = [cell.extent for cell in cells]
        tall = max(LEAST_TALL, self.tall - contents.depth * (HEADER + PAD))
        return arrange(extents, contents.ranks, links, entries, exits, tall), cells

    def _cell(self, item: int) -> Cell:
        cell = self.cells.get(item)
        if cell is not None:
            return cell
        if item >= len(self.graph.tasks):
            return self._row(self.wiring.rows[item - self.wiring.row_item(0)])
        caption = self.wiring.caption.get(item)
        uses = self.wiring.uses.get(item, ())
        sides = [(use.output, self._side(use)) for use in uses]
        if len(sides) > MOST_PILLS:
            sides = _summed(sides)
        beside = [*(side for _, side in sides), *self.marks.get(item, ())]
        return TaskCell(self.graph.tasks[item], caption.title if caption else "", beside, self.below)

    def _row(self, items: list[int]) -> RowCell:
        own: dict[int, list[Side]] = defaultdict(list)
        shared: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
        for item in items:
            for use in self.wiring.uses.get(item, ()):
                shared[use.parameter][item] = tuple(use.edges)
        found = []
        for parameter, users in shared.items():
            first = next(iter(users))
            kind = "pill" if self.owner[parameter] in users else "parameter"
            side = Side(kind, (parameter,), self._parameter_label(parameter, kind, first), users[first])
            if len(users) == 1:
                own[first].append(side)
            else:
                found.append((side, users))
        for mark_kind in ("to", "from"):
            marked = {item: side for item in items for side in self.marks.get(item, ()) if side.kind == mark_kind}
            if marked:
                others = tuple(dict.fromkeys(other for side in marked.values() for other in side.tasks))
                edges = tuple(edge for side in marked.values() for edge in side.edges)
                side = Side(mark_kind, others, self._mark_label(others), edges)
                found.append((side, {item: side.edges for item, side in marked.items()}))
        return RowCell([self.graph.tasks[item] for item in items], own, found)

    def _side(self, use: Use) -> Side:
        kind = "pill" if self.owner[use.parameter] == use.user else "parameter"
        return Side(kind, (use.parameter,), self._parameter_label(use.parameter, kind, use.user), tuple(use.edges))

    def _parameter_label(self, parameter: int, kind: str, user: int) -> str:
        task = self.graph.tasks[parameter]
        if task.parameter is None:
            shape = str(task.inputs[0]).split(" ")[0] if task.inputs else ""
            return f"leaf {shape}".rstrip()
        name = task.parameter
        if kind == "pill":
            module = self.graph.module(user)
            if module and name.startswith(f"{module}."):
                name = name[len(module) + 1 :]
        shape = f" {shape_text(task.inputs[0].shape)}" if self.shapes and task.inputs else ""
        return shorten_middle(name, WIDEST_SIDE) + shape

    def _output(self, wire: int) -> int:
        return self.graph.edges[self.wiring.wires[wire].edges[0]].output

    def _weights(self) -> list[int]:
        """Return for each wire the length of the longest path from its target. The longest path is drawn straight."""
        edges = self.graph.edges
        longest, _ = ranks_of(len(self.graph.tasks), ((edge.next_task, edge.task) for edge in edges))
        return [1 + max(longest[edges[edge].next_task] for edge in wire.edges) for wire in self.wiring.wires]

    def _owners(self) -> dict[int, int]:
        """Return for each parameter the task that gets its pill: a user in the same module, or else the first user."""
        users: dict[int, list[int]] = defaultdict(list)
        for user in sorted(self.wiring.uses):
            for use in self.wiring.uses[user]:
                users[use.parameter].append(user)
        owners = {}
        for parameter, tasks in users.items():
            name = self.graph.tasks[parameter].parameter
            owners[parameter] = tasks[0]
            if name and len(tasks) > 1:
                own = [task for task in tasks if (module := self.graph.module(task)) and name.startswith(f"{module}.")]
                owners[parameter] = (own or tasks)[0]
        return owners

    def _marks(self) -> dict[int, list[Side]]:
        """Return for each item the stubs of wires that are not drawn in full."""
        ends: dict[tuple[str, int], list[int]] = defaultdict(list)
        for number in self.wiring.stubbed:
            source, target = self.wiring.ends[number]
            ends["to", source].append(number)
            ends["from", target].append(number)
        marks: dict[int, list[Side]] = defaultdict(list)
        for (kind, item), numbers in ends.items():
            wires = [self.wiring.wires[number] for number in numbers]
            others = [wire.target if kind == "to" else wire.source for wire in wires]
            tasks = tuple(other for other in others if other is not None)
            edges = tuple(edge for wire in wires for edge in wire.edges)
            marks[item].append(Side(kind, tasks, self._mark_label(tasks), edges))
        return marks

    def _mark_label(self, tasks: Sequence[int]) -> str:
        names = {short_name(self.graph.tasks[task].name) for task in tasks}
        name = names.pop() if len(names) == 1 else "tasks"
        return name if len(tasks) == 1 else f"{name} ×{len(tasks)}"


def _distance_from_axis(cell: Cell, wire: int, task: int | None, leaves: bool) -> float:
    """Return where a wire of a cell's `task` enters or leaves the cell, relative to the cell's axis."""
    if isinstance(cell, BoxCell):
        return (cell.exit_x if leaves else cell.entry_x)[wire] - cell.axis
    return cell.port(task) if isinstance(cell, RowCell) else 0


def _summed(sides: list[tuple[int, Side]]) -> list[tuple[int, Side]]:
    """Merge the parameters of a task into one pill, and one stub for those drawn elsewhere."""
    summed = []
    for kind in ("pill", "parameter"):
        same = [side for _, side in sides if side.kind == kind]
        if same:
            tasks = tuple(task for side in same for task in side.tasks)
            edges = tuple(edge for side in same for edge in side.edges)
            label = same[0].label if len(same) == 1 else f"{len(same)} parameters"
            summed.append((sides[0][0], Side(kind, tasks, label, edges)))
    return summed
