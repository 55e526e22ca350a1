"""Results of `ts.find_batches`: the matrix products of a backward and its forward that could run as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ....inspector.drawing.annotations import Outline, letters
from ....inspector.files import write_svg
from ....inspector.graph.graph import Fold, Graph, Task
from ....inspector.graph.matrix_products import Product, Side
from ....inspector.graph.phrases import folded, joined, module_title, pattern, was_captured
from ....inspector.renderers import GraphTheme, text_of
from ....inspector.text.report import ShownAsFindings
from ....inspector.text.sizes_and_counts import counted, size_text
from ....inspector.validation import expect_number
from ...recording.batch_report import GroupKind

Direction = Literal["backward", "forward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

_MOST_ROWS = 40  # rows shown in a table; records() has all
_ALIKE = 3  # from this many groups on, those that differ only in their place share a row
_MOST_SAID = 5  # refusals listed in sentences
_RIGHT = ("level", "launches", "copies")  # columns of numbers


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Thresholds for joining products. The defaults are TorchScript's (torch/csrc/jit/passes/batch_mm.cpp); the sizes
    among them were measured there on a TITAN V in float32.

    Args:
        min_fusion_size: fewer products are not joined.
        how_many_is_many: at least this many products that share a factor form their own group, separate from others of
            their shape. In the forward they become one wide product of that factor and the others side by side; with
            fewer, the factor is stacked. The backward, as run by `batch=`, never stacks a shared factor.
        largest_side_numel: factors with more elements are not stacked, because large products gain nothing (PyTorch
            #59905).
        fast_inner: a tree becomes one product if each member sums over fewer rows than this,
        fast_side: or if both dimensions of the result are smaller, or both larger, than this.
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
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def fast_for_reduce(self, rows: int, inner: int, columns: int) -> bool:
        """Return whether a sum of products (rows, inner) @ (inner, columns) is faster as one
        (`shape_is_fast_for_reduce`)."""
        side = self.fast_side
        return inner < self.fast_inner or (rows < side and columns < side) or (rows > side and columns > side)


@dataclass(frozen=True, slots=True)
class Group:
    """Products that could run as one.

    Attributes:
        kind: "bmm" for products of one shape, stacked; "grouped_conv" for convolutions of one shape as one with groups;
            "tree" for a sum over t of x_t^T g_t as one product of the concatenated x and g.
        direction: "backward" or "forward".
        tasks: ids of the tasks whose nodes multiply, ascending. In a forward group, the tasks its products created.
        outputs: numbers of the tasks' outputs that the group computes; empty for a forward group. A tree computes one,
            the sum; the tasks' other outputs are not affected and may belong to another group.
        product: the first task's product. In a tree, the others may have other numbers of rows.
        shared: the factors that are one tensor for all members and need no stacking.
        levels: levels in the graph of the first and last member, counted from the roots; for a forward group, from the
            inputs.
        launches_before, launches_after: number of kernels one by one (products, sums of a tree and of biases) and as a
            group, including copies for stacking. As in `Batch`.
        stacked_bytes: bytes of copies for stacking, which live beside the originals while the group runs. If the
            gradients of all members are one tensor, which only the run shows, less is copied, with one launch less.
        into: for a tree, the task and the number of its input where PyTorch sums.
        held_bytes: for a tree, bytes of factors that its members keep until the last of them is ready; PyTorch may free
            them much earlier.
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
    def gains(self) -> bool:
        """True if fewer kernels are launched as a group, including copies."""
        return self.launches_after < self.launches_before

    @property
    def label(self) -> str:
        """A short description, `16 × addmm → bmm` or `50 × addmm summed → one mm`."""
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
    """Products that are near each other and were not joined.

    Attributes:
        tasks: ids of their tasks.
        why: the reason, in a sentence.
        direction: "backward" or "forward".
    """

    tasks: tuple[int, ...]
    why: str
    direction: Direction = "backward"


def without_gain(groups: Iterable[Group]) -> Iterator[Refused]:
    """Yield the products of the groups that save no launch."""
    useless = [group for group in groups if not group.gains]
    if useless:
        before, after = sum(each.launches_before for each in useless), sum(each.launches_after for each in useless)
        copied = size_text(sum(each.stacked_bytes for each in useless))
        why = f"joining saves no launch: {before:,} launches become {after:,}, for {copied} of copies"
        yield Refused(tuple(task for each in useless for task in each.tasks), why, useless[0].direction)


def unequal_shapes(products: Sequence[Product]) -> str:
    """Return the reason why products of different shapes are not joined, and whether grouped_mm could run them.

    Each of its groups has two sizes in common with the others, whichever they are.
    """
    shapes = f"different shapes: {joined(list(dict.fromkeys(map(str, products))))}"
    if any(len(each.left.shape) != 2 or each.result.dtype == torch.float64 for each in products):
        return shapes
    sizes = {
        "rows": [each.left.shape[0] for each in products],
        "inner sizes": [each.left.shape[1] for each in products],
        "columns": [each.right.shape[1] for each in products],
    }
    differing = [name for name, found in sizes.items() if len(set(found)) > 1]
    if len(differing) > 1:
        names = joined(differing)
        return f"{shapes}; padded until only one of {names} differs, torch.nn.functional.grouped_mm could run them"
    (name,) = differing
    values = joined([f"{size:,}" for size in sizes[name]], most=8)
    values = f"{name} {values}" if name == "inner sizes" else f"{values} {name}"
    return f"different shapes, of {values}; torch.nn.functional.grouped_mm could run them"


@dataclass(frozen=True, eq=False, repr=False)
class Groups(ShownAsFindings):
    """The groups of a graph, shown as a table in a notebook.

    Attributes:
        graph: the graph, without its nodes.
        rules: the thresholds used.
        found: the groups; backward groups first, in an order in which they can run, then trees, then forward groups.
        refused: products that were not joined, with the reason.
        products: all products of the graph, by task id.
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
        """Return the groups of a direction, in the order in which they were found."""
        return tuple(group for group in self.found if group.direction == direction)

    @cached_property
    def _of(self) -> dict[int, list[Group]]:
        groups: dict[int, list[Group]] = {}
        for group in self.found:
            for task in group.tasks:
                groups.setdefault(task, []).append(group)
        return groups

    def of(self, task: Task | int) -> tuple[Group, ...]:
        """Return the groups that contain a task: at most one of the backward, one of the forward, and a tree per
        output.

        Raises:
            ValueError: the task does not exist.
        """
        return tuple(self._of.get(self.graph.task(task).id, ()))

    def where(self, group: Group) -> str:
        """Return a group's modules in one phrase, with `*` for what differs (`members.*.layers.0`); for a tree, its
        parameter."""
        if group.into is not None and (name := self.graph.tasks[group.into[0]].parameter):
            return name
        return modules_of(self.graph, group.tasks)

    def refused_title(self, refused: Refused) -> str:
        """Return a title for products that were not joined: `8 × addmm in experts.*.0`."""
        functions = Counter(self.products[task].function for task in refused.tasks)
        what = joined([f"{count:,} × {function}" for function, count in functions.most_common()])
        return f"{what} in {modules_of(self.graph, refused.tasks)}" if was_captured(self.graph) else what

    def outlines(self, direction: Direction = "backward") -> list[Outline]:
        """Return outlines of the groups of one direction for a picture, each with a letter."""
        return [
            Outline(letters(number), f"{group.label}, {self.where(group)}", group.tasks, direction == "forward")
            for number, group in enumerate(self.of_direction(direction))
        ]

    def to_svg(self, direction: Direction = "backward", *, fold: Fold = "fit", theme: GraphTheme = "auto") -> str:
        """Return the graph as SVG with the groups of one direction outlined. See `Graph.save_svg` for `fold` and
        `theme`.

        Raises:
            ValueError: the direction is unknown.
        """
        from ....inspector.drawing.svg import graph_to_svg

        if direction not in DIRECTIONS:
            raise ValueError(f"unknown direction {direction!r}; expected one of {', '.join(DIRECTIONS)}")
        return graph_to_svg(self.graph, fold=fold, theme=theme, outlines=self.outlines(direction))

    def save_svg(
        self,
        path: str | Path,
        direction: Direction = "backward",
        *,
        fold: Fold = "fit",
        theme: GraphTheme = "auto",
    ) -> Path:
        """Write `to_svg()` to a file."""
        return write_svg(path, self.to_svg(direction, fold=fold, theme=theme))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that sum up the table."""
        if len(self.products) < 2:
            count = "One task" if self.products else "No task"
            sentence = f"{count} of this graph multiplies matrices of known shapes, so there is nothing to join."
            hidden = sum("DifferentiableGraph" in task.name for task in self.graph.tasks)
            if not hidden:
                return (sentence,)
            return (
                sentence,
                f"{counted(hidden, 'task')} of TorchScript may multiply without showing it; call the module from "
                "before torch.jit.script or torch.jit.trace.",
            )
        found = [self.summary("backward")]
        if trees := [group for group in self.backward if group.kind == "tree"]:
            names = []
            for group in trees:
                task, number = group.into or (group.tasks[0], 0)
                name = self.graph.tasks[task].parameter
                names.append(name or f"input {number} of {self.graph.describe(task)}")
            held = size_text(sum(group.held_bytes for group in trees))
            found.append(
                f"The sum for {joined(names)} waits for the last of its products, which keeps {held} of factors alive."
            )
        found.append(self.summary("forward"))
        reasons = list(dict.fromkeys(f"{self.refused_title(refused)}: {refused.why}." for refused in self.refused))
        found += [f"Not joined, {reason}" for reason in reasons[:_MOST_SAID]]
        if len(reasons) > _MOST_SAID:
            found.append(f"{counted(len(reasons) - _MOST_SAID, 'more reason')} in .refused.")
        return tuple(found)

    def summary(self, direction: Direction) -> str:
        """Return a sentence that sums up the groups of one direction."""
        groups = self.of_direction(direction)
        if direction == "forward" and not was_captured(self.graph):
            return "The forward was not captured, so its groups are unknown; run it under ts.capture()."
        if not groups:
            alone = not any(refused.direction == direction for refused in self.refused)
            why = ": no two of the same shape are independent" if alone else ""
            return f"None of the {counted(len(self.products), 'product')} can be joined in the {direction}{why}."
        taken = len({task for group in groups for task in group.tasks})
        before = sum(group.launches_before for group in groups)
        after = sum(group.launches_after for group in groups)
        copied = sum(group.stacked_bytes for group in groups)
        return (
            f"In the {direction}, {counted(len(groups), 'group')} {'contain' if len(groups) > 1 else 'contains'} "
            f"{taken:,} of {counted(len(self.products), 'product')}: {before:,} launches become {after:,}, "
            f"{f'for {size_text(copied)} of copies' if copied else 'without a copy'}."
        )

    @property
    def cells(self) -> list[list[str]]:
        """The cells of the table, the headings first; groups that differ only in their place share a row."""
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

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per group, for `pandas.DataFrame(groups.records())`."""
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

    right = _RIGHT
    __repr__ = ShownAsFindings.__str__

    def _repr_html_(self) -> str:
        # A label and a product's shapes stay on one line; only the place may wrap.
        cells = [[*(text.replace(" ", "\u00a0") for text in row[:3]), *row[3:]] for row in self.cells]
        return text_of("findings as HTML", cells, self.sentences, _RIGHT)


def modules_of(graph: Graph, tasks: Iterable[int]) -> str:
    """Return the modules of tasks in one phrase, with `*` for what differs; a dash if nothing was captured."""
    if not was_captured(graph):
        return "–"
    alike: dict[str, dict[str, None]] = {}
    for task in tasks:
        path = graph.module(task)
        name = module_title(graph, path)
        alike.setdefault(pattern(path or name), {})[path or name] = None
    return joined([folded(paths) for paths in alike.values()])
