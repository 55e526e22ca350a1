"""`ts.find_batches`: which products of matrices of a backward, and of its forward, could run as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ....inspector.drawing.annotations import Outline, letters
from ....inspector.files import write_file
from ....inspector.graph.graph import Fold, Graph, Task
from ....inspector.graph.matrix_products import Product, Side
from ....inspector.graph.phrases import folded, joined, module_title, pattern, was_captured
from ....inspector.renderers import GraphTheme, text_of
from ....inspector.text.report import ShownAsFindings
from ....inspector.text.sizes_and_counts import counted, size_text
from ....inspector.validation import expect_number
from ...recording.batch_report import GroupKind

if TYPE_CHECKING:
    pass

Direction = Literal["backward", "forward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

_MOST_ROWS = 40  # in a table that is shown; records() has all
_ALIKE = 3  # groups that differ in their place alone: so many make one row
_MOST_SAID = 5  # refusals in sentences


@dataclass(frozen=True, slots=True)
class GroupRules:
    """From when on products are joined. The defaults are TorchScript's (torch/csrc/jit/passes/batch_mm.cpp), the sizes
    among them measured there on a TITAN V with float32.

    Args:
        min_fusion_size: fewer products are not joined.
        how_many_is_many: from so many on, products that share a factor are a group of their own, apart from others of
            their shape; and products of the forward are made as one wide product of that factor and the others side by
            side, where with fewer it is one more to be stacked. The backward, as `batch=` runs it, stacks no factor
            that is shared, however few share it.
        largest_side_numel: factors of more elements are not stacked: large products gain nothing (PyTorch #59905).
        fast_inner: a tree is one product where each member sums over fewer rows than this,
        fast_side: or where the result is smaller than this, or larger, in both directions.
    """

    min_fusion_size: int = 4
    how_many_is_many: int = 8
    largest_side_numel: int = 1024 * 2048
    fast_inner: int = 512
    fast_side: int = 256

    def __post_init__(self) -> None:
        least_of = {
            "min_fusion_size": 2,
            "how_many_is_many": 2,
            "largest_side_numel": 0,
            "fast_inner": 0,
            "fast_side": 0,
        }
        for name, least in least_of.items():
            expect_number(getattr(self, name), int, name, "a whole number")
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be {least} at least")

    def fast_for_reduce(self, rows: int, inner: int, columns: int) -> bool:
        """Whether a sum of products (rows, inner) @ (inner, columns) is faster as one (`shape_is_fast_for_reduce`)."""
        side = self.fast_side
        return inner < self.fast_inner or (rows < side and columns < side) or (rows > side and columns > side)


@dataclass(frozen=True, slots=True)
class Group:
    """Products that could run as one.

    Attributes:
        kind: "bmm": of one shape, stacked. "grouped_conv": convolutions of one shape as one with groups. "tree": what
            is added up anyway, sum over t of x_t^T g_t, as one product of x and g put one below the other.
        direction: "backward" or "forward".
        tasks: the ids of the tasks whose nodes multiply, ascending. Of a forward group they were made by its products.
        outputs: the numbers of the tasks' outputs that the group makes; of a forward group none. A tree makes one, the
            sum: the other outputs of its tasks stay where they are, and may be another group's.
        product: that of the first task. In a tree the others may have other numbers of rows.
        shared: the factors that are one and the same tensor for all members and need no stacking.
        levels: of the graph, those of the first and the last member, counted from the roots; in a forward group from
            the inputs.
        into: of a tree the task, and the number of its input, where PyTorch sums.
        launches_before, launches_after: kernels one by one: products, the sums of a tree and of biases; and in the
            group, those among them that stack. As in `Batch`.
        stacked_bytes: of the copies that stacking makes, there beside the originals as long as the group runs. Where
            the gradients of all members are one tensor, which only the run shows, less is copied, by one launch less.
        held_bytes: of a tree the factors which its members keep until the last of them is ready, and which PyTorch may
            have freed long before.
    """

    kind: GroupKind
    direction: Direction
    tasks: tuple[int, ...]
    outputs: tuple[int, ...]
    product: Product
    shared: tuple[Side, ...]
    levels: tuple[int, int]
    launches_before: int
    launches_after: int
    stacked_bytes: int
    into: tuple[int, int] | None = None
    held_bytes: int = 0

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def label(self) -> str:
        """`16 × addmm → bmm`, `50 × addmm summed → one mm`."""
        count, function = f"{len(self.tasks):,} ×", self.product.function
        if self.kind == "tree":
            return f"{count} {function} summed → one {'bmm' if len(self.product.result.shape or ()) == 3 else 'mm'}"
        if self.kind == "grouped_conv":
            return f"{count} convolution → one with groups"
        if len(self.shared) == 2 and self.direction == "forward":
            return f"{count} the same {function}"
        return f"{count} {function} → {'one wide mm' if self.shared else 'bmm'}"


@dataclass(frozen=True, slots=True)
class Refused:
    """Products that lie together and were not joined.

    Attributes:
        tasks: the ids of their tasks.
        why: the reason, in a sentence.
        direction: "backward" or "forward".
    """

    tasks: tuple[int, ...]
    why: str
    direction: Direction = "backward"


@dataclass(frozen=True, eq=False, repr=False)
class Groups(ShownAsFindings):
    """The groups of a graph. In a notebook the table shows itself.

    Attributes:
        graph: the graph, without its nodes.
        rules: by which they were found.
        found: backward groups first, each in the order in which they can run; trees after the others.
        refused: what is not joined, and why.
        products: all products of the graph, by the id of the task.
    """

    graph: Graph
    rules: GroupRules
    found: tuple[Group, ...]
    refused: tuple[Refused, ...]
    products: Mapping[int, Product] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.found)

    def __getitem__(self, number: int) -> Group:
        return self.found[number]

    @property
    def backward(self) -> tuple[Group, ...]:
        """The groups of the backward."""
        return self.of_direction("backward")

    @property
    def forward(self) -> tuple[Group, ...]:
        """The groups of the forward."""
        return self.of_direction("forward")

    def of_direction(self, direction: Direction) -> tuple[Group, ...]:
        """The groups of either, in the order in which they were found."""
        return tuple(group for group in self.found if group.direction == direction)

    @cached_property
    def _of(self) -> dict[int, list[Group]]:
        groups: dict[int, list[Group]] = {}
        for group in self.found:
            for task in group.tasks:
                groups.setdefault(task, []).append(group)
        return groups

    def of(self, task: Task | int) -> tuple[Group, ...]:
        """The groups that a task is in: one of the backward and one of the forward at most, and a tree for each output.

        Raises:
            ValueError: there is no such task.
        """
        return tuple(self._of.get(self.graph.task(task).id, ()))

    def where(self, group: Group) -> str:
        """The modules of a group in one phrase, `*` for what differs: `members.*.layers.0`; of a tree its parameter."""
        if group.into is not None and (name := self.graph.tasks[group.into[0]].parameter):
            return name
        return modules_of(self.graph, group.tasks)

    def refused_title(self, refused: Refused) -> str:
        """What was not joined and where, in one phrase: `8 × addmm in experts.*.0`."""
        functions = Counter(self.products[task].function for task in refused.tasks)
        what = joined([f"{count:,} × {function}" for function, count in functions.most_common()])
        return f"{what} in {modules_of(self.graph, refused.tasks)}" if was_captured(self.graph) else what

    def outlines(self, direction: Direction = "backward") -> list[Outline]:
        """The groups of one direction for a picture, each by a letter."""
        return [
            Outline(letters(number), f"{group.label}, {self.where(group)}", group.tasks, direction == "forward")
            for number, group in enumerate(self.of_direction(direction))
        ]

    def to_svg(self, direction: Direction = "backward", *, fold: Fold = "fit", theme: GraphTheme = "auto") -> str:
        """The graph with the groups of one direction outlined in it. See `Graph.save_svg` for `fold` and `theme`.

        Raises:
            ValueError: there is no such direction.
        """
        from ....inspector.drawing.svg import graph_to_svg

        if direction not in DIRECTIONS:
            raise ValueError(f"unknown direction {direction!r}; known: {', '.join(DIRECTIONS)}")
        return graph_to_svg(self.graph, fold=fold, theme=theme, outlines=self.outlines(direction))

    def save_svg(
        self,
        path: str | Path,
        direction: Direction = "backward",
        *,
        fold: Fold = "fit",
        theme: GraphTheme = "auto",
    ) -> Path:
        """Writes `to_svg()` to a file."""
        return write_file(path, self.to_svg(direction, fold=fold, theme=theme))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the table says, in words."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if len(self.products) < 2:
            count = "One task" if self.products else "No task"
            yield f"{count} of this graph multiplies matrices whose shapes can be told: there is nothing to join."
            return
        yield self.summary("backward")
        if trees := [group for group in self.backward if group.kind == "tree"]:
            names = joined([self._sum_name(group) for group in trees])
            held = size_text(sum(group.held_bytes for group in trees))
            yield f"What is summed for {names} waits for the last of its products, and keeps {held} of factors for it."
        yield self.summary("forward")
        said = dict.fromkeys(f"{self.refused_title(refused)}: {refused.why}." for refused in self.refused)
        for sentence in list(said)[:_MOST_SAID]:
            yield f"Not joined, {sentence}"
        if len(said) > _MOST_SAID:
            yield f"{counted(len(said) - _MOST_SAID, 'more reason')} in .refused."

    def summary(self, direction: Direction) -> str:
        """What the groups of one direction come to, in a sentence."""
        groups = self.of_direction(direction)
        if direction == "forward" and not was_captured(self.graph):
            return "The forward was not seen, so its own groups are not known: run it under ts.capture()."
        if not groups:
            alone = not any(refused.direction == direction for refused in self.refused)
            why = ": no two that are alike lie side by side" if alone else ""
            return f"None of the {counted(len(self.products), 'product')} can be joined in the {direction}{why}."
        taken = len({task for group in groups for task in group.tasks})
        before = sum(group.launches_before for group in groups)
        after = sum(group.launches_after for group in groups)
        copied = sum(group.stacked_bytes for group in groups)
        return (
            f"In the {direction}, {counted(len(groups), 'group')} {'take' if len(groups) > 1 else 'takes'} {taken:,} "
            f"of {counted(len(self.products), 'product')}: {before:,} launches become {after:,}, "
            f"{f'for {size_text(copied)} of copies' if copied else 'without a copy'}."
        )

    def _sum_name(self, group: Group) -> str:
        task, number = group.into or (group.tasks[0], 0)
        found = self.graph.tasks[task]
        return found.parameter or f"input {number} of {self.graph.describe(task)}"

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first: many that differ in their place alone in one row."""
        rows = [["groups", "products", "of", "where", "level", "launches", "copies"]]
        alike: dict[tuple[str, ...], list[Group]] = {}
        for group in self.found:
            key = group.direction, group.label, str(group.product), pattern(self.where(group))
            alike.setdefault(key, []).append(group)
        parts = [
            part for found in alike.values() for part in ([found] if len(found) >= _ALIKE else [[g] for g in found])
        ]
        for found in parts[:_MOST_ROWS]:
            group = found[0]
            first = min(g.levels[0] for g in found)
            last = max(g.levels[1] for g in found)
            rows.append(
                [
                    f"{len(found):,} {group.direction}",
                    group.label,
                    str(group.product),
                    folded(map(self.where, found)),
                    f"{first:,}" if first == last else f"{first:,} to {last:,}",
                    f"{sum(g.launches_before for g in found):,} → {sum(g.launches_after for g in found):,}",
                    size_text(sum(g.stacked_bytes for g in found)),
                ]
            )
        if len(parts) > _MOST_ROWS:
            rows.append([f"and {len(parts) - _MOST_ROWS:,} more", *[""] * 6])
        return rows

    @property
    def right(self) -> Sequence[str]:
        """The headings of columns of numbers."""
        return _RIGHT

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per group, for `pandas.DataFrame(groups.records())`."""
        return [
            {
                "direction": group.direction,
                "kind": group.kind,
                "members": len(group),
                "function": group.product.function,
                "left": group.product.left.shape,
                "right": group.product.right.shape,
                "dtype": group.product.result.dtype,
                "device": group.product.result.device,
                "where": self.where(group),
                "first_level": group.levels[0],
                "last_level": group.levels[1],
                "launches_before": group.launches_before,
                "launches_after": group.launches_after,
                "stacked_bytes": group.stacked_bytes,
                "held_bytes": group.held_bytes,
                "tasks": group.tasks,
                "outputs": group.outputs,
            }
            for group in self.found
        ]

    __repr__ = ShownAsFindings.__str__

    def _repr_html_(self) -> str:
        # A label and a product's shapes stay on one line: the place, whatever its length, is what may wrap.
        cells = [[*(text.replace(" ", "\u00a0") for text in row[:3]), *row[3:]] for row in self.cells]
        return text_of("findings as HTML", cells, self.sentences, _RIGHT)


_RIGHT = ("level", "launches", "copies")


def modules_of(graph: Graph, tasks: Iterable[int]) -> str:
    """The modules of some tasks in one phrase, `*` for what differs; a dash where no capture saw any."""
    if not was_captured(graph):
        return "–"
    alike: dict[str, dict[str, None]] = {}
    for task in tasks:
        path = graph.module(task)
        name = module_title(graph, path)
        alike.setdefault(pattern(path or name), {})[path or name] = None
    return joined([folded(paths) for paths in alike.values()])
