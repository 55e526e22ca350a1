"""The contents of a box and their sizes: a task with its parameters, a row of chips, a closed or an open box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from ..graph.graph import Graph, Task
from ..graph.kinds import short_name
from .fold import ROW_LINE, FoldedCalls
from .layout_types import LAYOUT, Arrangement, Extent, Point
from .svg_text import shorten, shorten_path, text_width

TASK_HEIGHT: int = LAYOUT["TASK_HEIGHT"]
PILL_HEIGHT: int = LAYOUT["PILL_HEIGHT"]
PILL_LINE: int = LAYOUT["PILL_LINE"]
CHIP, CHIP_GAP = 12, 5
# A row of more chips than this is drawn narrow, because a row of 50 has to fit into a notebook.
MOST_ROOMY: int = LAYOUT["MOST_ROOMY"]
NARROW_CHIP, NARROW_GAP = 10, 3
DOT: int = LAYOUT["DOT"]
BESIDE: int = LAYOUT["BESIDE"]  # pixels between a task and its pills, and between two pills
LONGEST_SIDE: int = LAYOUT["LONGEST_SIDE"]  # pixels; longer rows of pills are broken into lines
SPINE: int = LAYOUT["SPINE"]  # from the left edge of a task to its glyph, where wires enter and leave
MOST_PILLS: int = LAYOUT["MOST_PILLS"]
PAD: int = LAYOUT["PAD"]  # pixels around the contents of an open box
HEADER: int = LAYOUT["HEADER"]  # the height of an open box's title
CARDS_BEHIND: int = LAYOUT["CARDS_BEHIND"]  # pixels by which the cards behind a box stick out
WIDEST_LABEL: int = LAYOUT["WIDEST_LABEL"]
WIDEST_FOLDED: int = LAYOUT["WIDEST_FOLDED"]
CHEVRON: int = LAYOUT["CHEVRON"]  # width of the arrow that the deck draws before the title of an open box
BEFORE_LAYERS: int = LAYOUT["BEFORE_LAYERS"]
MOST_BUTTONS, BUTTON, BUTTON_PITCH = 6, 28, 32  # up to 6 equal layers get numbered buttons; sizes in pixels
MOST_CELLS, CELL, CELL_PITCH = 23, 7, 9  # up to 23 layers get cells; more share one strip
STRIP_WIDTH: int = LAYOUT["STRIP_WIDTH"]
NEARLY_STRAIGHT: int = LAYOUT["NEARLY_STRAIGHT"]


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle in pixels, relative to the top left corner of the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class PlacedTask:
    """A drawn task.

    `caption` names the module if the task is its only one. `chip` is True if the task is too small for its label.
    """

    task: int
    rect: Rect
    label: str
    caption: str = ""
    chip: bool = False


@dataclass(frozen=True, slots=True)
class Pill:
    """The AccumulateGrad task of a parameter, drawn beside one of its users; many parameters of a task share one pill.

    `dot` is True if the pill is too small for its label.
    """

    tasks: tuple[int, ...]
    user: int
    rect: Rect
    label: str
    dot: bool = False


@dataclass(frozen=True, slots=True)
class Stub:
    """The end at `task` of a wire that is not drawn in full; `others` are the tasks at the other end.

    `kind` is "parameter" (a further use of a parameter whose pill is elsewhere), "to" or "from" (other tasks).
    """

    kind: str
    task: int
    others: tuple[int, ...]
    rect: Rect
    label: str


@dataclass(frozen=True, slots=True)
class ChipRow:
    """A row of chips and the label beside it."""

    tasks: tuple[int, ...]
    rect: Rect
    label: str


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A module, open or closed. `title` and `subtitle` are shortened to fit. `depth` counts the boxes around it.

    `layers_at` is the distance from the left edge to the buttons of its equal layers, 0 if it has none. `shades` counts
    the boxes under its label; each of them darkens the background a little.
    """

    group: FoldedCalls
    rect: Rect
    title: str
    subtitle: str
    depth: int
    layers_at: float = 0
    shades: int = 0


@dataclass(frozen=True, slots=True)
class PlacedWire:
    """A line in the picture: the numbers of the edges it represents, the tasks at its ends, and its corners.

    `kind` is "gradient", "parameter" (to a pill or stub) or "between" (to or from another block of a folded run;
    `source` or `target` is None). A wire without points is too small to be drawn.
    """

    kind: str
    edges: tuple[int, ...]
    source: int | None
    target: int | None
    points: tuple[Point, ...]


@dataclass(slots=True)
class Canvas:
    """The elements placed so far. Wires between cells are collected in pieces, the outermost first."""

    boxes: list[PlacedBox] = field(default_factory=list)
    tasks: list[PlacedTask] = field(default_factory=list)
    pills: list[Pill] = field(default_factory=list)
    stubs: list[Stub] = field(default_factory=list)
    rows: list[ChipRow] = field(default_factory=list)
    wires: list[PlacedWire] = field(default_factory=list)
    exits: dict[int, list[list[Point]]] = field(default_factory=dict)
    links: dict[int, list[Point]] = field(default_factory=dict)
    entries: dict[int, list[list[Point]]] = field(default_factory=dict)
    pending: list[UnplacedBox] = field(default_factory=list)  # boxes whose content is not placed yet


@dataclass(frozen=True, slots=True)
class Side:
    """A pill or stub to be placed beside its user. `edges` are the edges that its wire represents."""

    kind: str  # "pill", "parameter", "to" or "from"
    tasks: tuple[int, ...]
    label: str
    edges: tuple[int, ...]

    @property
    def width(self) -> float:
        glyph = 20 if self.kind == "pill" else 24
        return ceil(text_width(self.label)) + glyph + 8


class TaskCell:
    """A task on its spine, with pills and stubs to its right, and `below` pixels of room under it."""

    def __init__(self, task: Task, caption: str, sides: Sequence[Side], below: float = 0.0) -> None:
        self.task = task.id
        self.label = shorten(short_name(task.name), WIDEST_LABEL)
        self.caption = shorten_path(caption, 110) if caption else ""
        captioned = text_width(self.caption) + 7 if caption else 0
        self.width = max(44, 2 * ceil((text_width(self.label) + captioned + 28) / 2))
        self.sides = sides
        self.extent = _extent_beside(self.width, sides, below)

    def place(self, x: float, y: float, canvas: Canvas) -> None:
        rect = Rect(x - SPINE, y, self.width, TASK_HEIGHT)
        canvas.tasks.append(PlacedTask(self.task, rect, self.label, self.caption))
        _place_sides(self.task, self.sides, rect, canvas)


def _extent_beside(width: float, sides: Sequence[Side], below: float) -> Extent:
    """Return the extent of an item of that width on its spine, with pills and stubs to its right."""
    lines = _lines(sides)
    room = max((sum(side.width + BESIDE for side in line) for line in lines), default=0)
    height = TASK_HEIGHT + max(PILL_LINE * (max(len(lines), 1) - 1), below)
    return Extent(SPINE, width - SPINE + room, height, TASK_HEIGHT)


def _lines(sides: Sequence[Side]) -> list[list[Side]]:
    lines: list[list[Side]] = []
    length = inf
    for side in sides:
        length += side.width + BESIDE
        if length > LONGEST_SIDE:
            lines.append([])
            length = side.width + BESIDE
        lines[-1].append(side)
    return lines


def _place_sides(task: int, sides: Sequence[Side], beside: Rect, canvas: Canvas) -> None:
    """Place the lines of pills and stubs to the right of a task or a folded box; lines below the first share a rail."""
    edge, middle = beside.right, beside.y + TASK_HEIGHT / 2
    rail = edge + BESIDE / 2
    for number, line in enumerate(_lines(sides)):
        center = middle + number * PILL_LINE
        before: tuple[Point, ...] = ((edge, middle),)
        if number:
            before = ((edge, middle), (rail, middle), (rail, center))
        x = edge + BESIDE
        for side in line:
            rect = Rect(x, center - PILL_HEIGHT / 2, side.width, PILL_HEIGHT)
            if side.kind == "pill":
                canvas.pills.append(Pill(side.tasks, task, rect, side.label))
            else:
                canvas.stubs.append(Stub(side.kind, task, side.tasks, rect, side.label))
            source, target, points = task, side.tasks[0], (*before, (x, center))
            if side.kind == "from":
                source, target, points = target, source, points[::-1]
            kind = "parameter" if side.kind in ("pill", "parameter") else "gradient"
            canvas.wires.append(PlacedWire(kind, side.edges, source, target, points))
            before = ((rect.right, center),)
            x = rect.right + BESIDE


class RowCell:
    """Many tasks of the same name as a row of chips, or as a grid if there are very many.

    A parameter of a single chip is a dot beside it. A parameter shared by chips is a pill to the right, with a wire
    below the row that connects it to its users.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        own: dict[int, list[Side]],
        shared: Sequence[tuple[Side, dict[int, tuple[int, ...]]]],
    ) -> None:
        self.tasks = [task.id for task in tasks]
        self.own, self.shared = own, shared
        self.label = f"{shorten(short_name(tasks[0].name), WIDEST_LABEL)} ×{len(tasks)}"
        # The deck also uses this layout, and writes the number of finished tasks below the label.
        progress = text_width(f"{len(tasks):,} of {len(tasks):,} done")
        self.label_width = ceil(max(text_width(self.label, bold=True), progress)) + 4
        self.grid = len(tasks) > ROW_LINE
        most = max((len(sides) for sides in own.values()), default=0)
        dot_columns = min(most, 1) if most <= 2 else ceil(most / 2)
        self.chip, gap = (NARROW_CHIP, NARROW_GAP) if len(tasks) > MOST_ROOMY else (CHIP, CHIP_GAP)
        self.pitch = self.chip + gap + (DOT + 3) * dot_columns
        self.line = ROW_LINE // (1 + dot_columns) if self.grid else len(tasks)
        self.line_pitch = self.chip + 6 + (6 if most > 1 else 0)
        lines = ceil(len(tasks) / self.line)
        self.chips_height = self.chip + (lines - 1) * self.line_pitch + (6 if most > 1 else 0)
        self.chips_width = self.line * self.pitch - gap
        height = self.chips_height + 22 * len(shared)
        pills = max((side.width + 16 for side, _ in shared), default=0)
        half = self.chips_width / 2
        foot = self.chips_height if self.grid else self.chip
        self.extent = Extent(half + self.label_width + 10, half + pills, height, foot)
        self._number = {task: number for number, task in enumerate(self.tasks)}

    def port(self, task: int | None) -> float:
        if self.grid or task is None:
            return 0
        return self._number[task] * self.pitch + self.chip / 2 - self.chips_width / 2

    def place(self, x: float, y: float, canvas: Canvas) -> None:
        edge, chip = x - self.chips_width / 2, self.chip
        canvas.rows.append(
            ChipRow(tuple(self.tasks), Rect(edge - self.label_width - 10, y, self.label_width, chip), self.label)
        )
        for number, task in enumerate(self.tasks):
            left, top = edge + number % self.line * self.pitch, y + number // self.line * self.line_pitch
            canvas.tasks.append(PlacedTask(task, Rect(left, top, chip, chip), "", chip=True))
            for position, side in enumerate(self.own.get(task, ())):
                dot = Rect(left + chip + 3 + position // 2 * (DOT + 3), top + 2 + position % 2 * (DOT + 1), DOT, DOT)
                canvas.pills.append(Pill(side.tasks, task, dot, side.label, dot=True))
                points = _to_dot(left + chip, top + chip / 2, dot) if position < 2 else ()
                canvas.wires.append(PlacedWire("parameter", side.edges, task, side.tasks[0], points))
        y += self.chips_height  # the wires of shared parameters are below the chips
        for line, (side, users) in enumerate(self.shared):
            rail = y + 13 + 22 * line
            pill = edge + self.chips_width + 16
            rect = Rect(pill, rail - PILL_HEIGHT / 2, side.width, PILL_HEIGHT)
            first = next(iter(users))
            if side.kind == "pill":
                canvas.pills.append(Pill(side.tasks, first, rect, side.label))
            else:
                canvas.stubs.append(Stub(side.kind, first, side.tasks, rect, side.label))
            if self.grid:  # one wire for the whole grid
                every = tuple(edge for edges in users.values() for edge in edges)
                start = edge + self.chip / 2 + 3
                points = ((start, y), (start, rail), (pill, rail))
                canvas.wires.append(PlacedWire("parameter", every, first, side.tasks[0], points))
                continue
            for task, edges in users.items():
                number = self._number[task]
                start = edge + number % self.line * self.pitch + self.chip / 2 + 3
                foot = y - self.chips_height + number // self.line * self.line_pitch + self.chip
                points = ((start, foot), (start, rail), (pill, rail))
                canvas.wires.append(PlacedWire("parameter", edges, task, side.tasks[0], points))


def _to_dot(x: float, y: float, dot: Rect) -> tuple[Point, ...]:
    center = dot.y + DOT / 2
    return ((x, y), (dot.x, y)) if center == y else ((x, y), (x + 1.5, y), (x + 1.5, center), (dot.x, center))


class FoldedCell:
    """A closed box as one row: name and class on its spine, with stubs to its right, and `below` pixels under it."""

    def __init__(
        self, graph: Graph, group: FoldedCalls, depth: int, sides: Sequence[Side], shades: int, below: float = 0.0
    ) -> None:
        self.group, self.depth, self.sides, self.shades = group, depth, sides, shades
        self.title, self.subtitle, widest = _fitted_label(group, WIDEST_FOLDED)
        if group.is_views:  # the deck also uses this layout, and shows the name of the running view
            names = {short_name(graph.tasks[task].name) for task in group.items if isinstance(task, int)}
            running = (f"{shorten(name, WIDEST_FOLDED)} ⋯ {len(group.items)}" for name in names)
            widest = max(widest, *(text_width(text, bold=True) for text in running))
        self.width = max(44, ceil(widest) + 30)
        behind = CARDS_BEHIND if group.times > 1 else 0
        beside = _extent_beside(self.width, sides, below)
        self.extent = Extent(
            beside.left, max(beside.right, self.width - SPINE + behind), beside.height + behind, TASK_HEIGHT
        )

    def place(self, x: float, y: float, canvas: Canvas) -> None:
        rect = Rect(x - SPINE, y, self.width, TASK_HEIGHT)
        canvas.boxes.append(PlacedBox(self.group, rect, self.title, self.subtitle, self.depth, shades=self.shades))
        _place_sides(next(self.group.tasks()), self.sides, rect, canvas)


def _open_label(group: FoldedCalls, width: float) -> tuple[str, str, float]:
    """Return title, subtitle and width of an open box; for equal layers, wide enough for the title of each."""
    if group.times == 1:
        return _fitted_label(group, width)
    labels = [_fitted_label(replace(group, title=title), width) for title in dict.fromkeys(group.members)]
    shown = _fitted_label(replace(group, title=group.members[-1]), width)
    return shown[0], shown[1], max(label for _, _, label in labels)


def layers_width(count: int) -> float:
    """Return the total width of the buttons for `count` equal layers."""
    if count > MOST_CELLS:
        return STRIP_WIDTH
    width, pitch = (CELL, CELL_PITCH) if count > MOST_BUTTONS else (BUTTON, BUTTON_PITCH)
    return (count - 1) * pitch + width


def _fitted_label(group: FoldedCalls, width: float) -> tuple[str, str, float]:
    """Return title, subtitle and their total width. The subtitle is shortened before the title."""
    title = shorten_path(group.title, width, bold=True)
    left = width - text_width(title, bold=True) - 6
    subtitle = shorten(group.subtitle, left) if left > 24 else ""
    # The subtitle of equal layers ends with their number, which is never cut.
    if group.times > 1 and subtitle != group.subtitle:
        subtitle = group.subtitle
        title = shorten_path(group.title, max(60, width - text_width(subtitle) - 6), bold=True)
    return title, subtitle, text_width(title, bold=True) + (6 + text_width(subtitle) if subtitle else 0)


class BoxCell:
    """An open box around its contents, which are laid out already."""

    def __init__(
        self,
        group: FoldedCalls,
        depth: int,
        cells: Sequence[Cell],
        inside: Arrangement,
        weights: Sequence[int],
        shades: int,
    ) -> None:
        self.group, self.depth, self.cells, self.inside, self.shades = group, depth, cells, inside, shades
        self.title, self.subtitle, label = _open_label(group, max(320, inside.width))
        headed = label + PAD + CHEVRON
        self.layers_at = ceil(headed + BEFORE_LAYERS) if group.times > 1 else 0
        if self.layers_at:
            headed = self.layers_at + layers_width(group.times)
        self.width = ceil(max(inside.width + 2 * PAD, headed + PAD))
        self.height = HEADER + inside.height + PAD
        self.margin = (self.width - inside.width) / 2
        self.entry_x = {wire: points[0][0] + self.margin for wire, points in inside.entries.items()}
        self.exit_x = {wire: points[-1][0] + self.margin for wire, points in inside.exits.items()}
        self.axis = self._axis(weights)
        behind = CARDS_BEHIND if group.times > 1 else 0
        self.extent = Extent(self.axis, self.width - self.axis + behind, self.height + behind, self.height)

    def _axis(self, weights: Sequence[int]) -> float:
        """Return the x of the heaviest wire's entry or exit, or the middle, whichever keeps wires straightest."""
        middle = self.width / 2
        entry = _main_port(self.entry_x, weights, middle)
        leave = _main_port(self.exit_x, weights, entry)
        if abs(entry - leave) <= NEARLY_STRAIGHT or abs(entry - middle) < self.width / 4:
            return entry
        return leave if abs(leave - middle) < self.width / 4 else middle

    def place(self, x: float, y: float, canvas: Canvas) -> None:
        left = x - self.axis
        canvas.boxes.append(
            PlacedBox(
                self.group,
                Rect(left, y, self.width, self.height),
                self.title,
                self.subtitle,
                self.depth,
                self.layers_at,
                self.shades,
            )
        )
        canvas.pending.append(UnplacedBox(self.inside, self.cells, left + self.margin, y + HEADER, y, y + self.height))


def _main_port(ports: dict[int, float], weights: Sequence[int], otherwise: float) -> float:
    """Return the x of the heaviest wire's port; of several equally heavy wires, the middle one's."""
    if not ports:
        return otherwise
    heaviest = max(weights[wire] for wire in ports)
    equal = sorted(x for wire, x in ports.items() if weights[wire] == heaviest)
    return equal[len(equal) // 2]


Cell = TaskCell | RowCell | FoldedCell | BoxCell


@dataclass(frozen=True, slots=True)
class UnplacedBox:
    """The contents of a box, to be placed with the corner at (x, y). Wires enter at `top` and leave at `bottom`."""

    inside: Arrangement
    cells: Sequence[Cell]
    x: float
    y: float
    top: float
    bottom: float

    def place(self, canvas: Canvas) -> None:
        x, y, inside = self.x, self.y, self.inside
        for cell, at, down in zip(self.cells, inside.xs, inside.ys, strict=True):
            cell.place(x + at, y + down, canvas)
        for wire, points in inside.links.items():
            canvas.links[wire] = [(x + at, y + down) for at, down in points]
        for wire, points in inside.entries.items():
            moved = [(x + at, y + down) for at, down in points]
            canvas.entries.setdefault(wire, []).append([(moved[0][0], self.top), *moved])
        for wire, points in inside.exits.items():
            moved = [(x + at, y + down) for at, down in points]
            canvas.exits.setdefault(wire, []).append([*moved, (moved[-1][0], self.bottom)])
