"""Backwards of several products as one product: stacked if they stay separate, concatenated if they are summed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ....inspector.graph.graph import Graph
from ....inspector.graph.matrix_products import Product
from ....inspector.torch_private.saved_variables import saved_tensor, saved_value

FUNCTIONS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution"})
"""Functions whose backwards can be batched. "linear" is a node only on Apple's MPS."""

Outputs = list[Tensor | None]
"""A task's outputs, by number."""


@dataclass(slots=True)
class Tally:
    """Counts the kernels launched, and the bytes of copies that put operands together."""

    launches: int = 0
    copied_bytes: int = 0

    def copied(self, copy: Tensor) -> Tensor:
        self.launches += 1
        self.copied_bytes += copy.nbytes
        return copy


@dataclass(frozen=True, slots=True)
class Operands:
    """The operands of one member of a group.

    Attributes:
        product: its product in the forward.
        gradient: the gradient of the result.
        others: by output number, the factor by which the gradient is multiplied.
        by_columns: the outputs that PyTorch lays out column by column, like the factor (FunctionsManual.cpp,
            mm_mat1_grad and mm_mat2_grad). The gradient of a Linear's weight is then contiguous when it arrives there.
        width: the number of the task's outputs.
    """

    product: Product
    gradient: Tensor
    others: dict[int, Tensor]
    by_columns: frozenset[int]
    width: int

    @classmethod
    def of(cls, product: Product, node: Node, gradient: Tensor, outputs: Collection[int]) -> Operands:
        """Return the operands of these outputs. Raises PyTorch's error if a factor was modified in place since the
        forward."""
        both = (product.left.output, product.right.output)  # convolution_backward needs both factors for either output
        taken = both if product.function == "convolution" else outputs
        others = {output: saved_tensor(node, product.other(output).slot) for output in taken}
        by_columns = set()
        for output in outputs:
            slot = product.factor(output).slot
            strides = saved_value(node, f"{slot}_sym_strides")
            if strides is not None and tuple(strides) == (1, saved_value(node, f"{slot}_sym_sizes")[0]):
                by_columns.add(output)
        return cls(product, gradient, others, frozenset(by_columns), len(node.next_functions))


def alone(operands: Operands, output: int) -> Tensor:
    """Return this output of one task."""
    return _product(operands, output, operands.gradient, operands.others[output], Tally())


def stacked(
    members: Sequence[Operands], outputs: Collection[int], addend: tuple[int, ...] | None, tally: Tally
) -> list[Outputs]:
    """Return these outputs of several tasks of one shape, with one product per output.

    The outputs are slices of one tensor, and laid out as PyTorch's, except the gradients of convolutions' inputs, whose
    channels lie between those of others. An operand that is the same tensor for all members is not copied.

    Args:
        members: the operands of the tasks.
        outputs: numbers of the outputs.
        addend: the shape of the biases of addmm, whose gradients are summed all at once; None to leave them out.
        tally: counts launches and copies.
    """
    first = members[0]
    found: list[Outputs] = [[None] * each.width for each in members]
    if first.product.function == "convolution":
        _convolutions(members, outputs, found, tally)
        return found
    if len(first.product.result.shape or ()) == 3:
        batch = first.gradient.shape[0]
        gradients = tally.copied(torch.cat([each.gradient for each in members]))
        for output in outputs:
            others = tally.copied(torch.cat([each.others[output] for each in members]))
            made = _product(first, output, gradients, others, tally)
            _hand_out(made, [batch] * len(members), output, found)
    else:
        gradients = _stack_gradients(members, outputs, tally)
        for output in outputs:
            others = _stack([each.others[output] for each in members], tally)
            made = _product(first, output, gradients, others, tally)
            by_columns = output in first.by_columns
            rows = (made.mT if by_columns else made).flatten(0, 1)
            _hand_out(rows, [rows.shape[0] // len(members)] * len(members), output, found, by_columns)
        if addend is not None:
            _addends(members, gradients, addend, found, tally)
    return found


def summed(members: Sequence[Operands], output: int, tally: Tally) -> Tensor:
    """Return the sum of this output over several tasks, as one product of concatenated operands.

    If all members share the other factor, the gradients are summed first.
    """
    last = members[-1]
    gradients, others = [each.gradient for each in members], [each.others[output] for each in members]
    if len(members) == 1:
        return _product(last, output, gradients[0], others[0], tally)
    if _is_one(others):
        gradient = tally.copied(torch.stack(gradients)).sum(0)
        tally.launches += 1
        return _product(last, output, gradient, others[0], tally)
    along = -1 if output == last.product.left.output else -2
    gradient, other = (tally.copied(torch.cat(each, along)) for each in (gradients, others))
    return _product(last, output, gradient, other, tally)


def _product(operands: Operands, output: int, gradient: Tensor, other: Tensor, tally: Tally) -> Tensor:
    """Return the gradient of a factor of a matrix product, batched or not (derivatives.yaml conjugates alpha)."""
    product, by_columns = operands.product, output in operands.by_columns
    is_left = output == product.left.output
    left, right = (gradient, other.mH) if is_left else (other.mH, gradient)
    if by_columns:
        left, right = (other.conj(), gradient.mT) if is_left else (gradient.mT, other.conj())
    if left.dim() == 2:
        made = torch.mm(left, right)
    elif left.shape[0] > 1 and right.stride(0) == 0 and left.stride(0) == left.shape[1] * left.stride(1):
        # a batch with one repeated right factor is one product of all rows
        made = torch.mm(left.flatten(0, 1), right[0]).view(*left.shape[:2], right.shape[-1])
    else:
        made = torch.bmm(left, right)
    tally.launches += 1
    if product.alpha != 1:
        made.mul_(product.alpha.conjugate())
        tally.launches += 1
    return made.mT if by_columns else made


def _stack_gradients(members: Sequence[Operands], outputs: Collection[int], tally: Tally) -> Tensor:
    """Return the gradients as (members, rows, columns).

    They are stored side by side if the columns of all are then the rows of one product with a shared factor, as for the
    weights of networks on one input.
    """
    gradients = [each.gradient for each in members]
    first = members[0]
    right = first.product.right.output
    wide = right in outputs and right in first.by_columns and _is_one([each.others[right] for each in members])
    if not wide or _is_one(gradients):
        return _stack(gradients, tally)
    rows, columns = gradients[0].shape
    return tally.copied(torch.cat(gradients, 1)).view(rows, len(members), columns).transpose(0, 1)


def _stack(tensors: Sequence[Tensor], tally: Tally) -> Tensor:
    first = tensors[0]
    if _is_one(tensors):
        return first.expand(len(tensors), *first.shape)
    if first.stride(-1) != 1 and first.stride(-2) == 1:  # keep the layout: transposing each copy would be slower
        return tally.copied(torch.stack([each.mT for each in tensors])).mT
    return tally.copied(torch.stack(list(tensors)))


def _is_one(tensors: Sequence[Tensor]) -> bool:
    """Return whether these tensors are the same matrix; they may be different objects, because unpacking creates a new
    one."""
    places = ((each.data_ptr(), each.shape, each.stride(), each.is_conj(), each.is_neg()) for each in tensors)
    first = next(places)
    return all(place == first for place in places)


def _hand_out(
    made: Tensor, sizes: Sequence[int], output: int, found: Sequence[Outputs], by_columns: bool = False
) -> None:
    """Split into slices without a shared version counter, because each has a different owner from here on."""
    for each, part in zip(found, torch.unsafe_split_with_sizes(made, list(sizes)), strict=True):
        each[output] = part.mT if by_columns else part


def _addends(
    members: Sequence[Operands],
    gradients: Tensor,
    shape: tuple[int, ...],
    found: Sequence[Outputs],
    tally: Tally,
) -> None:
    """Compute the gradients of biases: the stacked `gradients` summed to their `shape`."""
    product = members[0].product
    assert product.addend is not None
    padded = (*([1] * (2 - len(shape))), *shape)
    along = [dim for dim, size in enumerate(padded, 1) if size == 1 != gradients.shape[dim]]
    made = gradients.sum(along, keepdim=True) if along else gradients
    tally.launches += bool(along)
    if product.beta != 1:
        made = made * product.beta.conjugate()
        tally.launches += 1
    made = made.reshape(len(members), *shape).flatten(0, 1)
    _hand_out(made, [shape[0]] * len(members), product.addend, found)


def _convolutions(
    members: Sequence[Operands], outputs: Collection[int], found: Sequence[Outputs], tally: Tally
) -> None:
    """Compute them as one convolution with more groups: channels and kernels concatenated."""
    product = members[0].product
    left, right, addend = product.left.output, product.right.output, product.addend
    gradient = tally.copied(torch.cat([each.gradient for each in members], 1))
    inputs = tally.copied(torch.cat([each.others[right] for each in members], 1))
    kernels = tally.copied(torch.cat([each.others[left] for each in members]))
    settings = dict(product.settings)
    groups = settings.pop("groups") * len(members)
    mask = [left in outputs, right in outputs, addend is not None]
    made = torch.ops.aten.convolution_backward(
        gradient,
        inputs,
        kernels,
        None if addend is None else [gradient.shape[1]],
        **settings,
        groups=groups,
        output_mask=mask,
    )
    tally.launches += sum(mask)
    for output, along, wanted, total in zip((left, right, addend), (1, 0, 0), mask, made, strict=True):
        if wanted and output is not None:
            sizes = [total.shape[along] // len(members)] * len(members)
            for each, part in zip(found, torch.unsafe_split_with_sizes(total, sizes, along), strict=True):
                each[output] = part


def addend_shape(graph: Graph, products: Sequence[Product]) -> tuple[int, ...] | None:
    """Return the shape to which the gradients of all addmms' biases are summed, usually (columns,); None if it is not
    one shape."""
    shapes = set()
    for product in products:
        if product.addend is None or product.function != "addmm":
            return None
        edge = next(edge for edge in graph.out_edges[product.task] if edge.output == product.addend)
        shapes.add(graph.tasks[edge.next_task].inputs[edge.input].shape)
    (shape, *more) = shapes
    return None if more or not shape or shape == products[0].result.shape else shape


def launches_of(product: Product, outputs: Collection[int], addend: tuple[int, ...] | None) -> int:
    """Return the number of kernels for these outputs of one task, or of a stack without the copies of its operands.

    They are products, multiplications by alpha and beta, and the sum for a bias.

    Args:
        product: the product.
        outputs: numbers of the outputs.
        addend: as in `stacked`.
    """
    launches = len(outputs) * (1 + (product.alpha != 1))
    if product.function == "convolution":
        return launches + (product.addend is not None)
    if addend is not None:
        launches += (prod(addend) != prod(product.result.shape or ())) + (product.beta != 1)
    return launches
