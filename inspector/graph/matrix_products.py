"""Matrix products of a graph's nodes: their factors, shapes and settings, read without unpacking anything."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.graph import Node

from ..torch_private.saved_variables import packed_slots, saved_slots, saved_value
from ..torch_private.tensors import storage_of, version_of
from .graph import Graph, TensorMeta
from .kinds import Kind

Side = Literal["left", "right"]
Kept = Literal["saved", "not saved", "modified", "packed", "gone"]


@dataclass(frozen=True, slots=True)
class Factor:
    """One of the two factors of a product.

    Attributes:
        slot: the node's name for it: `_saved_mat2` is the slot "mat2".
        output: the number of the task's output that is the factor's gradient.
        wanted: whether another task reads that gradient.
        shape: the factor's shape.
        kept: "saved" if the node has the factor; "not saved" if the backward does not need it, "modified" if it was
            modified in place since, "packed" by `saved_tensors_hooks` (a checkpoint), "gone" after a backward.
        identity: equal for factors with the same bytes in the same layout; None if the node does not have the factor.
    """

    slot: str
    output: int
    wanted: bool
    shape: tuple[int, ...]
    kept: Kept
    identity: Hashable = None

    @property
    def numel(self) -> int:
        """The number of its elements."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Product:
    """The product that a task's node computed in the forward; its backward computes up to two with the same factors.

    If G is the result's gradient, A's gradient is `alpha * G @ B^H`, and B's is `alpha * A^H @ G`.

    Attributes:
        task: the id of the task.
        function: "mm", "addmm", "bmm", "baddbmm", "linear" or "convolution".
        left, right: the factors as the function takes them: (m, k) and (k, n), behind a batch for bmm and baddbmm. For
            "linear" `right` is the weight (n, k), for "convolution" the factors are input and weight.
        addend: the number of the output that is the addend's (bias) gradient, if that is wanted.
        result: the shape, dtype and device of the result and of its gradient.
        alpha, beta: the factors of addmm and baddbmm; 1 for other functions.
        settings: a convolution's stride, padding, dilation, output_padding, transposed and groups, by name.
    """

    task: int
    function: str
    left: Factor
    right: Factor
    addend: int | None
    result: TensorMeta
    alpha: float = 1
    beta: float = 1
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def wanted(self) -> tuple[int, ...]:
        """The outputs that are products and that another task reads."""
        return tuple(factor.output for factor in (self.left, self.right) if factor.wanted)

    @property
    def signature(self) -> Hashable:
        """A key that is equal for products that one batched product can compute."""
        sides = [(factor.wanted, factor.shape) for factor in (self.left, self.right)]
        return self.function, *sides, self.addend, self.result, self.alpha, self.beta, self.settings

    def factor(self, output: int) -> Factor:
        """Return the factor whose gradient is this output."""
        return self.left if output == self.left.output else self.right

    def other(self, output: int) -> Factor:
        """Return the factor that is multiplied with the result's gradient for this output."""
        return self.right if output == self.left.output else self.left

    def __str__(self) -> str:
        """Return the product as text: `addmm 32×64 @ 64×64`."""
        left, right = ("×".join(map(str, factor.shape)) for factor in (self.left, self.right))
        return f"{self.function} {left} {'*' if self.settings else '@'} {right}"


@dataclass(frozen=True, slots=True)
class _Form:
    """The names of a node type's factors, each with the number of its gradient's output; and the addend's output."""

    function: str
    left: tuple[str, int]
    right: tuple[str, int]
    addend: int | None = None


_FORMS = {
    "MmBackward0": _Form("mm", ("self", 0), ("mat2", 1)),
    "AddmmBackward0": _Form("addmm", ("mat1", 1), ("mat2", 2), 0),
    "BmmBackward0": _Form("bmm", ("self", 0), ("mat2", 1)),
    "BaddbmmBackward0": _Form("baddbmm", ("batch1", 1), ("batch2", 2), 0),
    "LinearBackward0": _Form("linear", ("input", 0), ("weight", 1), 2),
    "ConvolutionBackward0": _Form("convolution", ("input", 0), ("weight", 1), 2),
}
"""derivatives.yaml. LinearBackward0 only exists on devices with a linear kernel (MPS); elsewhere it is addmm."""

_SETTINGS = ("stride", "padding", "dilation", "output_padding", "transposed", "groups")


def products_of(graph: Graph) -> dict[int, Product]:
    """Map task ids to the graph's products of dense matrices of known shape.

    It runs no hooks and keeps no tensors. It takes time linear in the size of the graph. Nodes whose factors have
    unknown shapes are left out: those of a freed or packed bmm, and those of a graph from a file.
    """
    found = {}
    for task, node in zip(graph.tasks, graph.nodes, strict=False):
        form = _FORMS.get(task.name) if task.kind is Kind.CPP else None
        if form is not None and len(task.inputs) == 1:
            wanted = {edge.output for edge in graph.out_edges[task.id]}
            product = _product(task.id, node, form, wanted, task.inputs[0])
            if product is not None:
                found[task.id] = product
    return found


def _product(task: int, node: Node, form: _Form, wanted: set[int], result: TensorMeta) -> Product | None:
    if result.shape is None:
        return None
    kept: dict[str, tuple[Kept, tuple[int, ...] | None, Hashable]] = {}
    for slot in saved_slots(node):
        tensor = slot.tensor
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        storage = storage_of(tensor)
        layout = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()
        identity = None if storage is None else (storage.address, version_of(tensor), *layout)
        kept[slot.name] = "modified" if slot.modified else "saved", tuple(tensor.shape), identity
    packed = {name for name, _ in packed_slots(node)}
    (left, left_number), (right, right_number) = form.left, form.right
    sides = [
        _kept(node, left, kept, packed, right_number in wanted),
        _kept(node, right, kept, packed, left_number in wanted),
    ]
    shapes = [shape for _, shape, _ in sides]
    if None in shapes and form.function in ("bmm", "baddbmm"):  # which do not save the sizes of the other factor
        batch, rows, columns = result.shape
        if (known := shapes[1]) is not None:
            shapes[0] = batch, rows, known[1]
        elif (known := shapes[0]) is not None:
            shapes[1] = batch, known[2], columns
    if shapes[0] is None or shapes[1] is None:
        return None
    settings = tuple((name, saved_value(node, name)) for name in _SETTINGS) if form.function == "convolution" else ()
    return Product(
        task,
        form.function,
        Factor(left, left_number, left_number in wanted, shapes[0], sides[0][0], sides[0][2]),
        Factor(right, right_number, right_number in wanted, shapes[1], sides[1][0], sides[1][2]),
        form.addend if form.addend in wanted else None,
        result,
        saved_value(node, "alpha", 1),
        saved_value(node, "beta", 1),
        settings,
    )


def _kept(
    node: Node,
    slot: str,
    kept: dict[str, tuple[Kept, tuple[int, ...] | None, Hashable]],
    packed: set[str],
    needed: bool,
) -> tuple[Kept, tuple[int, ...] | None, Hashable]:
    if slot in kept:
        return kept[slot]
    sizes = saved_value(node, f"{slot}_sym_sizes")
    shape = None if sizes is None else tuple(map(int, sizes))
    if slot in packed:
        return "packed", shape, None
    return "gone" if needed else "not saved", shape, None
