"""A footprint as the simulation runs it: numbers in flat lists, which it only has to append."""

from __future__ import annotations

from typing import NamedTuple

from .footprint import Footprint, Origin, Output
from .layouts import Layouts
from .timeline import Category

OUTSIDE = -1  # in place of a storage's number: it is not counted, and others hold it, too
NO_TENSOR = 0  # in place of a tensor's number: no gradient

_SAVED, _BUFFER = int(Category.SAVED), int(Category.BUFFER)
_HELD, _WORKSPACE = int(Category.HELD), int(Category.WORKSPACE)


class Program(NamedTuple):
    """A footprint in numbers, blocks counted by birth.

    Attributes:
        events: births and deaths of the blocks: `n` and `~n`.
        nbytes, born_as, uses: of each block its size, its category, and how many tensors hold it at first.
        inputs: the layouts that are expected, -1 for none.
        blocks, layouts, counts, bases: of each new tensor its block, its layout, the references to it (1), and of which
            tensor it is a view (of none).
        outputs: for each output which of the new tensors it is; -1: none.
        more: what to go by instead of the last five, where outputs are not just new tensors, or where more is kept.
    """

    events: list[int]
    nbytes: list[int]
    born_as: list[int]
    uses: list[int]
    inputs: list[int]
    blocks: list[int]
    layouts: list[int]
    counts: list[int]
    bases: list[int]
    outputs: list[int]
    more: More | None


class More(NamedTuple):
    """Of each output its origin, its number, its layout, whether it keeps its base, and whether a hook holds it."""

    outputs: list[tuple[Origin, int, int, bool, bool] | None]
    kept: list[tuple[int, int]]
    held_inputs: tuple[int, ...]


def compile_footprint(footprint: Footprint, layouts: Layouts) -> Program:
    """The program of a footprint. Layouts that are new get a number."""
    order = [block for block in footprint.trace if block >= 0]
    rank = {block: number for number, block in enumerate(order)}
    events = [rank[event] if event >= 0 else ~rank[~event] for event in footprint.trace]
    born_as = dict.fromkeys(order, _WORKSPACE)
    for output in footprint.outputs:
        if output is not None and output.origin == "block":
            born_as[output.number] = _BUFFER
    for block, task_id in footprint.kept:
        born_as[block] = _SAVED if task_id >= 0 else _HELD
    # What nobody is said to keep goes as the task's own call ends.
    dead = {~event for event in footprint.trace if event < 0}
    events.extend(~rank[block] for block in order if born_as[block] == _WORKSPACE and block not in dead)
    outputs = [output for output in footprint.outputs if output is not None]
    numbers = {output.number: number for number, output in enumerate(outputs)}
    others = footprint.kept or footprint.held_inputs or len(numbers) < len(outputs)
    more = None
    if others or any(output.origin != "block" or output.keeps_base or output.held for output in outputs):
        more = More(
            [None if output is None else _numbered(output, rank, layouts) for output in footprint.outputs],
            [(rank[block], task_id) for block, task_id in footprint.kept],
            footprint.held_inputs,
        )
        outputs = []
    return Program(
        events,
        nbytes=[footprint.blocks[block] for block in order],
        born_as=list(born_as.values()),
        uses=[int(more is None and category == _BUFFER) for category in born_as.values()],
        inputs=[-1 if layout is None else layouts.number(layout) for layout in footprint.inputs],
        blocks=[rank[output.number] for output in outputs],
        layouts=[layouts.number(output.layout) for output in outputs],
        counts=[1] * len(outputs),
        bases=[NO_TENSOR] * len(outputs),
        outputs=[-1 if output is None else numbers[output.number] for output in footprint.outputs],
        more=more,
    )


def _numbered(output: Output, rank: dict[int, int], layouts: Layouts) -> tuple[Origin, int, int, bool, bool]:
    number = rank[output.number] if output.origin == "block" else output.number
    return output.origin, number, layouts.number(output.layout), output.keeps_base, output.held
