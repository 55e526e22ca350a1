"""Operations on tensors without bytes, with what their kernels are known to allocate besides what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...inspector.torch_internals.operators import FakeOperations, Operator, leaves_of
from ...inspector.torch_internals.tensors import storage_of
from ..memory.layouts import layout_of, scratch_of_copy
from .kernel_runs import NOT_LISTED, KernelRun, LaidOut, kernel_run, name_of

_aten = torch.ops.aten
_CPU = torch.device("cpu")

_IN_PLACE: Mapping[object, Callable[..., Tensor]] = {
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_fill.int_Scalar: _aten.index_fill_.int_Scalar,
    _aten.index_fill.int_Tensor: _aten.index_fill_.int_Tensor,
    _aten.index_put.default: _aten.index_put_.default,
    _aten.logical_and.default: _aten.logical_and_.default,
    _aten.masked_scatter.default: _aten.masked_scatter_.default,
    _aten.put.default: _aten.put_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
}
"""What most formulas do to zeros of their own in place, but out of place if watched (areAnyTensorSubclassLike)."""


OUT_OF_PLACE = ("ScatterReduceBackward", "IndexReduceBackward")
"""Formulas which do so out of place on any tensors (FunctionsManual.cpp, scatter_reduce_backward)."""


FILLED_IN_PLACE = (
    *("ClampBackward", "ClampMaxBackward", "ClampMinBackward"),
    *("FmaxBackward", "FminBackward", "MaximumBackward", "MinimumBackward"),
)
"""Formulas which fill tensors of their own in place, but out of place if watched (torch 2.14, FunctionsManual.cpp,
masked_fill_inplace_if_safe)."""


class FakeKernels(FakeOperations):  # type: ignore[no-untyped-call]
    """Fake operations whose events have what CPU kernels take for themselves, and whose results are laid out as theirs.

    A kernel of which no rule tells that is run alone (`kernel_run`). Where it can't be, layouts still tell what matrix
    products take of what BLAS can't read, sums in another dtype, and copies of transposed matrices.

    Attributes:
        in_place: what runs is a formula that works in place on tensors which it has made.
        fills_in_place: what runs is one of `FILLED_IN_PLACE`.
        unknown: why it is not known what operators take for themselves, with their names.
    """

    in_place = True
    fills_in_place = False

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.unknown: dict[tuple[str, str], None] = {}
        self._workspace: int | None = None  # of the operation that runs; None: not known

    def start(self) -> None:
        super().start()
        self.unknown = {}

    def run(self, operator: Any, args: Any, kwargs: Any) -> Any:
        result = super().run(operator, args, kwargs)
        self._workspace = None
        if not isinstance(operator, Operator):
            self.unknown[NOT_LISTED, str(operator)] = None
            return result
        results = [each for each in leaves_of(result) if isinstance(each, Tensor)]
        if results and all(each.device != self._device for each in results):
            return result
        found = self.kernel_run(operator, args, kwargs, results)
        if isinstance(found, str):
            self.unknown[found, name_of(operator)] = None
        elif found is not None:
            self._workspace = found.workspace_bytes
            laid_out = iter(found.outputs)
            return tree_map_only(Tensor, lambda fake: _laid_out(fake, next(laid_out, None)), result)
        return result

    def kernel_run(
        self, operator: Operator, args: Any, kwargs: Any, results: Sequence[Tensor]
    ) -> KernelRun | str | None:
        """What is known of the operator's kernel, as `kernel_run` says it."""
        return kernel_run(operator, args, kwargs, results, in_backward=True)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        in_place = _IN_PLACE.get(operator)
        if self.fills_in_place and operator is _aten.masked_fill.Scalar:
            in_place = _aten.masked_fill_.Scalar
        if in_place is not None and self.in_place and self.number(args[0]) >= 0:
            operator = in_place
        result = super().__torch_dispatch__(operator, types, args, kwargs)
        find = _SCRATCH.get(operator)
        if self._workspace is not None:
            self._take_scratch([self._workspace] if self._workspace else [])
        elif find is not None and isinstance(result, Tensor) and result.device == self._device == _CPU:
            self._take_scratch([nbytes for nbytes in find(result, *args) if nbytes])
        return result

    def _take_scratch(self, sizes: list[int]) -> None:
        """Notes blocks that the kernel frees before it returns."""
        first = len(self.nbytes)
        self.nbytes += sizes
        self.events += range(first, len(self.nbytes))
        self.events += (~number for number in reversed(range(first, len(self.nbytes))))


def _laid_out(fake: Tensor, layout: LaidOut | None) -> Tensor:
    """The result of an operation, with the strides and the storage that its kernel gives it."""
    if layout is None:
        return fake
    storage = storage_of(fake)
    if storage is None or storage.nbytes < layout.nbytes:
        whole = torch.empty(layout.nbytes // fake.element_size(), dtype=fake.dtype, device=fake.device)
        return whole.as_strided(layout.shape, layout.strides)
    if layout.strides == fake.stride():
        return fake
    return torch.empty_strided(layout.shape, layout.strides, dtype=fake.dtype, device=fake.device)


def _of_product(result: Tensor, *arguments: Any) -> list[int]:
    """Copies of matrices that BLAS can't read, the last one first (LinearAlgebra.cpp, addmm_impl_cpu_).

    In a batch one product after the other takes them; this is the first one's share.
    """
    matrices = [each for each in arguments if isinstance(each, Tensor)][-2:]
    if not result.numel() or not matrices[0].shape[-1]:
        return []
    if result.dim() == 3 and result[0].numel() * matrices[0].shape[-1] < _SMALL_IN_BATCH:
        return []
    matrices = [each[0] if each.dim() == 3 else each for each in matrices if each.dim() > 1]  # no vectors
    return [each.numel() * each.element_size() for each in reversed(matrices) if not _is_for_blas(each)]


_SMALL_IN_BATCH = 400  # multiplications below which a batch goes without BLAS (bmm_out_or_baddbmm_)


def _is_for_blas(matrix: Tensor) -> bool:
    """Whether one of its dimensions is stepped through one by one, and the other without overlap."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    return (down == 1 and right >= max(1, rows)) or (right == 1 and down >= max(1, columns))


def _of_sum(result: Tensor, tensor: Tensor, *arguments: Any) -> list[int]:
    """What is summed in another dtype is cast first, as a whole (ReduceOpsUtils.h, make_reduction)."""
    return [tensor.numel() * result.element_size()] if tensor.dtype != result.dtype else []


def _of_copy(result: Tensor, *arguments: Any) -> list[int]:
    source = next(each for each in reversed(arguments[:2]) if isinstance(each, Tensor))  # of copy_ the second one
    if source.dtype != result.dtype or not source.layout is result.layout is torch.strided:
        return []
    return [scratch_of_copy(layout_of(source), layout_of(result))]


_SCRATCH: Mapping[object, Callable[..., list[int]]] = {
    _aten.mm.default: _of_product,
    _aten.addmm.default: _of_product,
    _aten.bmm.default: _of_product,
    _aten.baddbmm.default: _of_product,
    _aten.mv.default: _of_product,
    _aten.addmv.default: _of_product,
    _aten.sum.default: _of_sum,
    _aten.sum.dim_IntList: _of_sum,
    _aten.mean.default: _of_sum,
    _aten.mean.dim: _of_sum,
    _aten.clone.default: _of_copy,
    _aten.copy_.default: _of_copy,
    _aten._to_copy.default: _of_copy,
}
"""By operator what its kernel allocates and frees: bytes, in order."""
