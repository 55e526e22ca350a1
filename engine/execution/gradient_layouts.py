"""Layouts of gradients: whether the engine adds in place or copies, and the layout of a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from threading import Lock

from torch import Tensor

from ...inspector.torch_private.tensors import SPARSE, local_of, stored_bytes


def contiguous(shape: Sequence[int], itemsize: int) -> TensorLayout:
    """Return the layout of a new tensor of this shape."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    nbytes = itemsize
    for size in shape:
        nbytes *= size
    return TensorLayout(tuple(shape), tuple(reversed(strides)), True, nbytes)


def layout_of(tensor: Tensor) -> TensorLayout:
    """Return the layout of a tensor. A nested tensor, which has no shape or strides, counts as a vector."""
    if tensor.layout in SPARSE:
        return sparse(tensor.shape, stored_bytes(tensor))
    if tensor.is_nested:
        return contiguous((tensor.numel(),), tensor.element_size())
    local = local_of(tensor)
    shape, strides = tuple(local.shape), local.stride()
    nbytes = local.numel() * local.element_size()
    return TensorLayout(shape, strides, is_dense(shape, strides), nbytes, wrapped=local is not tensor)


def sparse(shape: Sequence[int], nbytes: int) -> TensorLayout:
    """Return the layout of a sparse tensor with this many bytes. Gradients are never added to it in place."""
    return replace(contiguous(shape, 1), dense=False, nbytes=nbytes, sparse=True)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements fill their span without gaps or overlaps, in any order of dimensions.

    The rule is that of TensorImpl.cpp, compute_non_overlapping_and_dense.
    """
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def same_strides(one: TensorLayout, other: TensorLayout) -> bool:
    """Return whether two layouts of one shape have equal strides, ignoring dimensions of size 1."""
    pairs = zip(one.shape, one.strides, other.strides, strict=True)
    return all(size == 1 or stride == its for size, stride, its in pairs)


def is_contiguous(layout: TensorLayout) -> bool:
    return 0 in layout.shape or same_strides(layout, contiguous(layout.shape, 1))


def suits(gradient: TensorLayout, leaf: TensorLayout) -> bool:
    """Return whether the gradient may become the leaf's .grad (grad_layout_contract.h, obeys_layout_contract)."""
    if gradient.sparse:
        return True
    if not leaf.dense or gradient.shape != leaf.shape:
        return is_contiguous(gradient)
    expanded = any(size == 1 and stride == 0 for size, stride in zip(gradient.shape, gradient.strides, strict=True))
    return not expanded and same_strides(gradient, leaf)


def copy_for(gradient: TensorLayout, leaf: TensorLayout) -> TensorLayout:
    """Return the layout of the copy that becomes .grad if the gradient itself cannot (clone_obey_contract)."""
    if gradient.sparse:
        return gradient
    if gradient.shape == leaf.shape and leaf.dense:
        return replace(leaf, nbytes=gradient.nbytes)
    return replace(contiguous(gradient.shape, 1), nbytes=gradient.nbytes)


_TRANSPOSED_BY_BLOCKS = 60 * 60  # least number of elements, and the size of a block


def scratch_of_copy(source: TensorLayout, copy: TensorLayout) -> int:
    """Return the scratch bytes with which the CPU copies a transposed matrix by blocks (Copy.cpp,
    copy_transpose_valid)."""
    count = prod(source.shape)
    transposed = len(source.shape) == 2 and source.strides == (1, source.shape[0])
    if not transposed or count < _TRANSPOSED_BY_BLOCKS or not is_contiguous(copy) or source.nbytes != copy.nbytes:
        return 0
    return _TRANSPOSED_BY_BLOCKS * (source.nbytes // count)


@lru_cache(maxsize=4096)
def sum_of(one: TensorLayout, other: TensorLayout) -> TensorLayout:
    """Return the layout of a sum in a new block (TensorIterator.cpp, fast_set_up and reorder_dimensions).

    The sum of two sparse tensors stores the entries of both.
    """
    if one.sparse and other.sparse:
        return replace(one, nbytes=one.nbytes + other.nbytes)
    if one.sparse or other.sparse:
        return replace(contiguous(one.shape, 1), nbytes=(other if one.sparse else one).nbytes)
    if one.shape != other.shape:
        return one if one.nbytes >= other.nbytes else other
    if is_contiguous(one) and is_contiguous(other):
        return replace(contiguous(one.shape, 1), nbytes=one.nbytes, wrapped=one.wrapped)
    if one.dense and other.dense and one.strides == other.strides:
        return one
    strides = [0] * len(one.shape)
    step = 1
    for dimension in _innermost_first(one, other):
        strides[dimension] = step
        step *= max(one.shape[dimension], 1)
    return TensorLayout(one.shape, tuple(strides), True, one.nbytes, wrapped=one.wrapped)


def _innermost_first(one: TensorLayout, other: TensorLayout) -> list[int]:
    """Return the sum's order of dimensions: by the strides of the first term, and by the second's if those are
    ambiguous."""
    order = list(reversed(range(len(one.shape))))
    for start in range(1, len(order)):
        place = start
        for before in reversed(range(start)):
            comparison = _compare(order[before], order[place], one, other)
            if comparison > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif comparison < 0:
                break
    return order


def _compare(inner: int, outer: int, *terms: TensorLayout) -> int:
    """Return a positive number if two neighbours must be swapped, negative if they are in order, 0 if ambiguous."""
    for term in terms:
        ours, its = term.strides[inner], term.strides[outer]
        if ours and its and ours != its:
            return 1 if ours > its else -1
        if ours and its and term.shape[inner] > term.shape[outer]:
            return 1
    return 0


class Layouts:
    """Numbers for layouts, with cached results, to compare millions of tensors quickly."""

    def __init__(self) -> None:
        self.dense: list[bool] = []  # whether the engine may add in place
        self.nbytes: list[int] = []
        self._layouts: list[TensorLayout] = []
        self._numbers: dict[TensorLayout, int] = {}
        self._sums: dict[tuple[int, int], int] = {}
        self._suits: dict[tuple[int, int], bool] = {}
        self._lock = Lock()  # simulations in several threads share the numbers

    def number(self, layout: TensorLayout) -> int:
        found = self._numbers.get(layout)
        if found is not None:
            return found
        with self._lock:
            if layout not in self._numbers:
                self._layouts.append(layout)
                self.dense.append(layout.dense and not layout.wrapped)
                self.nbytes.append(layout.nbytes)
                self._numbers[layout] = len(self._layouts) - 1
            return self._numbers[layout]

    def __getitem__(self, number: int) -> TensorLayout:
        return self._layouts[number]

    def sum(self, one: int, other: int) -> int:
        found = self._sums.get((one, other))
        if found is None:
            found = self._sums[one, other] = self.number(sum_of(self._layouts[one], self._layouts[other]))
        return found

    def suits(self, gradient: int, leaf: int) -> bool:
        found = self._suits.get((gradient, leaf))
        if found is None:
            found = self._suits[gradient, leaf] = suits(self._layouts[gradient], self._layouts[leaf])
        return found

    def differ(self, one: int, other: int) -> bool:
        """Return whether the shapes differ, or strides of dimensions larger than 1."""
        first, second = self._layouts[one], self._layouts[other]
        if first.sparse or second.sparse:
            return first != second
        return first.shape != second.shape or not same_strides(first, second)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The shape and strides of a tensor, and other facts that decide whether memory is shared or copied.

    Attributes:
        dense: whether its elements fill its span without gaps or overlaps (c10: is_non_overlapping_and_dense).
        nbytes: the bytes of a dense copy; for a sparse tensor, of a copy of its values and indices.
        sparse: whether it is a COO tensor; its strides then have no meaning.
        wrapped: whether it is one rank's part of a DTensor, to which gradients are never added in place
            (input_buffer.cpp).
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dense: bool
    nbytes: int
    sparse: bool = False
    wrapped: bool = False
