"""On whose storage the outputs of a task that was asked are."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ...inspector.torch_internals.operators import FakeOperations
from ...inspector.torch_internals.tensors import is_view, storage_of
from ..memory.footprint import TaskOutput
from ..memory.layouts import layout_of


def origins_of(
    operations: FakeOperations, given: list[Tensor | None], outputs: list[Tensor | None], stored: list[Tensor | None]
) -> Iterator[TaskOutput | None]:
    inputs = {id(each): number for number, each in reversed([*enumerate(given)]) if each is not None}
    storages = {storage_of(each): inputs[id(each)] for each in given if each is not None}
    numbers: dict[int, int] = {}  # of a task's own blocks, the first output on each
    firsts: dict[int, int] = {}  # of the tensors given so far, by id() the output
    for position, (whole, output) in enumerate(zip(outputs, stored, strict=True)):
        if whole is None or output is None:
            yield None
            continue
        layout, keeps_base = layout_of(whole), is_view(output)
        same = inputs.get(id(whole), -1)
        before = firsts.setdefault(id(whole), position)
        block = operations.number(output)
        if same >= 0:
            yield TaskOutput("input", same, layout, keeps_base)
        elif before < position:
            yield TaskOutput("output", before, layout, keeps_base)
        elif block in numbers:
            yield TaskOutput("output view", numbers[block], layout, keeps_base)
        elif block >= 0:
            numbers[block] = position
            yield TaskOutput("block", block, layout, keeps_base)
        else:
            storage = storage_of(output)
            shared = -1 if storage is None else storages.get(storage, -1)
            yield TaskOutput("view" if shared >= 0 else "outside", shared, layout, keeps_base)
