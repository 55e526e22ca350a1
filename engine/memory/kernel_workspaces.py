"""Workspaces of kernels, found by running each distinct operator once on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...inspector.threads import Caller
from ...inspector.torch_private.allocators import (
    WAITS_S,
    one_recording,
    profiler_is_on,
    recordings_ended,
    start_allocation_events,
    stop_allocation_events,
)
from ...inspector.torch_private.operators import (
    FakeOperations,
    Operator,
    is_pointwise,
    leaves_of,
    real_arguments,
    schema_name,
    span,
    with_tensors_for_numbers,
)
from ...inspector.torch_private.tensors import SPARSE, View, storage_of
from ...inspector.torch_private.thread_state import unobserved
from ..execution.gradient_layouts import layout_of, scratch_of_copy

MOST_BYTES = 2**31
"""The largest total of arguments and results with which an operator is run alone, in bytes. They must also fit into
half of the free memory."""

_CPU = torch.device("cpu")

PASSIVE = frozenset(
    (
        *("_reshape_alias", "_unsafe_view", "alias", "detach", "lift_fresh", "set_"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full"),
        *("fill_", "zero_", "fill", "scalar_tensor", "_efficientzerotensor", "resize_", "arange"),
    )
)
"""Operators that allocate only their results. So do views."""

COPIES = frozenset(("clone", "copy_", "_to_copy"))
"""Operators with a rule, see `FakeKernels`."""

RUN_ALONE = frozenset(
    (
        # Products of matrices.
        *("mm", "addmm", "addmm_", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "addr", "addbmm"),
        # Convolutions.
        *("convolution", "convolution_backward", "mkldnn_convolution", "_slow_conv2d_backward", "slow_conv3d_forward"),
        *("slow_conv_transpose2d", "slow_conv_transpose3d", "slow_conv_dilated2d", "slow_conv_dilated3d"),
        *("_conv_depthwise2d", "conv_depthwise3d", "unfold_backward", "im2col", "col2im"),
        # Pooling.
        *("avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward"),
        *("_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
        *("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
        *("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
        # Normalizations.
        *("native_batch_norm_backward", "native_layer_norm_backward", "native_group_norm_backward"),
        *("_fused_rms_norm_backward", "native_layer_norm", "native_group_norm"),
        # Sampling and padding.
        *("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward"),
        *("_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward"),
        *("_upsample_nearest_exact3d_backward", "upsample_linear1d_backward", "upsample_bilinear2d_backward"),
        *("upsample_bicubic2d_backward", "upsample_trilinear3d_backward", "_upsample_bilinear2d_aa_backward"),
        *("_upsample_bicubic2d_aa_backward", "grid_sampler_2d_backward", "grid_sampler_3d_backward"),
        *("constant_pad_nd", "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
        *("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"),
        # Attention and softmax.
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        *("_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
        *("_masked_softmax_backward", "logsumexp"),
        # Rows, slices and indices.
        *("embedding", "embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward"),
        *("index", "index_select", "index_add", "index_add_", "index_put"),
        *("index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put", "index_copy", "index_fill"),
        *("index_fill_", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce"),
        *("masked_fill", "masked_fill_", "select_backward", "slice_backward", "diagonal_backward", "select_scatter"),
        *("slice_scatter", "diagonal_scatter", "as_strided_scatter", "take", "put", "put_", "cat", "stack", "repeat"),
        *("roll", "flip", "tril", "triu"),
        *("split_with_sizes_copy", "pixel_shuffle", "pixel_unshuffle", "trace"),
        # Sums and other reductions.
        *("sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min", "any", "all", "prod", "var", "std"),
        *("var_mean", "std_mean", "norm", "linalg_vector_norm", "cumsum", "cumprod", "nansum", "logcumsumexp"),
        "count_nonzero",
        # Losses and activations that are not plain elementwise operators.
        *("nll_loss_backward", "nll_loss2d_backward", "mse_loss", "mse_loss_backward", "smooth_l1_loss_backward"),
        *("huber_loss_backward", "binary_cross_entropy_backward", "soft_margin_loss_backward"),
        *("multi_margin_loss_backward", "multilabel_margin_loss_backward", "glu_backward", "elu_backward"),
        *("leaky_relu_backward", "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward"),
        *("log_sigmoid_backward", "softplus_backward", "softshrink_backward", "hardshrink_backward"),
        *("rrelu_with_noise_backward", "_prelu_kernel_backward", "mish_backward", "gelu_backward"),
        # Operators of forwards only.
        *("nll_loss_forward", "nll_loss2d_forward", "_scaled_dot_product_flash_attention_for_cpu", "native_batch_norm"),
        *("_native_batch_norm_legit", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d"),
        *("upsample_bicubic2d", "upsample_trilinear3d", "grid_sampler_2d", "grid_sampler_3d", "_embedding_bag"),
        *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
        *("glu", "huber_loss", "smooth_l1_loss", "binary_cross_entropy", "log_sigmoid_forward", "topk", "sort"),
        # Fourier transforms.
        *("_fft_c2c", "_fft_c2r", "_fft_r2c"),
    )
)
"""The names of operators that may be run on zeros of any shapes in a graph: they do not read addresses or positions
outside a tensor from their arguments. oneDNN's recurrent layers do; a made-up workspace crashes their backward."""


class LaidOut(NamedTuple):
    """The layout of a kernel's result: shape, strides, and the bytes of its storage, which may exceed the need. The
    storage of a `mse_loss`, for example, has room for all elements before the mean."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int


class KernelRun(NamedTuple):
    """The memory of one kernel run.

    Attributes:
        workspace_bytes: the most bytes that it had allocated at once besides its results.
        outputs: the layout of each returned tensor; None for one of the kernel's arguments.
    """

    workspace_bytes: int
    outputs: tuple[LaidOut | None, ...]


NOT_LISTED = "not among the operators that are run alone"
STORES_UNKNOWN = "the size of sparse tensors is not known without their values"
TOO_LARGE = "too large to be run alone"
ELSEWHERE = "not run alone, which is done on the CPU only"
WATCHED = "not run alone while a profiler is running"
MEASURED = "not run alone because another thread was measuring memory"
REFUSED = "run alone without a usable result"
"""Reasons why an operator's workspace is not known."""

_MOST_FOUND = 20_000
"""The size of the cache: shapes that change at each step would fill it without end."""

_found: dict[object, KernelRun | str] = {}


def kernel_run(
    operator: Operator,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    results: Sequence[Tensor],
    most_bytes: int | None = None,
    in_backward: bool = False,
) -> KernelRun | str | None:
    """Return the memory of the operator's kernel for tensors like these; None if it only allocates its results; or the
    reason why it is not known.

    The operator runs on tensors of the same shapes, strides and dtypes, once per process for each setting of threads,
    oneDNN and determinism. Modes, hooks and random number generators are not involved, and afterwards all of its memory
    is freed.

    Args:
        operator: the operator.
        args, kwargs: its arguments; the tensors may be fake.
        results: the fake tensors that it returns.
        most_bytes: the largest total of arguments and results, in bytes; None for `MOST_BYTES`.
        in_backward: whether a formula of PyTorch calls it. The forward has turned Python numbers into tensors there.
    """
    name = name_of(operator)
    if operator.is_view or operator.namespace == "prim" or name in PASSIVE:
        return None
    tensors = [*_tensors_in((args, kwargs)), *results]
    lazy = any(each.is_conj() or each.is_neg() for each in tensors)
    if name in COPIES and not lazy:
        return None
    pointwise = is_pointwise(operator)
    tiny = pointwise and name not in RUN_ALONE and not lazy and len({each.dtype for each in tensors}) == 1
    if tiny and not any(isinstance(each, int | float | complex) for each in args):
        return None
    if any(each.device != _CPU for each in tensors):
        return None if pointwise else ELSEWHERE
    if any(each.layout in SPARSE for each in tensors):
        return STORES_UNKNOWN
    if not (pointwise or name in RUN_ALONE or name in COPIES) or any(
        each.layout is not torch.strided for each in tensors
    ):
        return NOT_LISTED
    key = operator, _key((args, kwargs), tiny), in_backward, _settings()
    found = _found.get(key)
    if found is None:
        if not tiny and not fits_alone(tensors, most_bytes):
            return TOO_LARGE
        caller = Caller("a prediction that runs a kernel alone", is_brief=True)
        try:
            if (why := _in_the_way(caller)) is not None:
                return why
            while len(_found) >= _MOST_FOUND:
                del _found[next(iter(_found))]
            # Zeros are valid indices for every gather and scatter. Ones keep pointwise divisions and logarithms finite.
            found = _found[key] = _run(operator, args, kwargs, 1 if pointwise else 0, tiny, in_backward)
        finally:
            caller.ended = True
    return None if tiny and found == KernelRun(0, ()) else found


def _in_the_way(caller: Caller) -> str | None:
    """Acquire torch's profiler for this caller; return the reason if that fails.

    If another thread is measuring, wait for it, at most `WAITS_S` and once for each measurement. A measurement of the
    same thread would wait for itself.
    """
    global _waited_for
    before = None if _waited_for is None else _waited_for()
    has_waited = before is not None and before is one_recording.holder
    other = one_recording.wait_for(caller, 0 if has_waited else WAITS_S)
    if other is None:
        return WATCHED if profiler_is_on() else None
    if other.thread == caller.thread:
        return WATCHED
    _waited_for = ref(other)
    return f"{MEASURED} ({other.verb}; waited {WAITS_S:.0f} s)"


_waited_for: ref[Caller] | None = None
"""The measurement for whose end a prediction has already waited `WAITS_S`; no other one waits for it again."""


@cache
def name_of(operator: Operator) -> str:
    """Return the operator's name without overload: "mm"."""
    return schema_name(operator).partition("::")[2]


def _run(
    operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], fill: int, tiny: bool, in_backward: bool
) -> KernelRun | str:
    with unobserved():
        args, kwargs = real_arguments(operator, args, kwargs, fill, tiny)
        if in_backward:
            args = with_tensors_for_numbers(operator, args)
        with recordings_ended():
            start_allocation_events()
            try:
                result = operator(*args, **kwargs)
            except Exception:
                return REFUSED
            rows = stop_allocation_events().rows
        given = {storage.address for each in _tensors_in((args, kwargs)) if (storage := storage_of(each)) is not None}
        outputs: list[LaidOut | None] = []
        returned: dict[int, int] = {}  # by address
        for each in _tensors_in(result):
            storage = storage_of(each)
            if storage is None:
                return REFUSED
            if storage.address in given:
                outputs.append(None)
                continue
            if storage.address in returned:
                return REFUSED  # another output is also on it
            returned[storage.address] = storage.nbytes
            outputs.append(LaidOut(tuple(each.shape), each.stride(), storage.nbytes))
    level = highest = 0
    alive: dict[int, int] = {}
    for _, _, address, nbytes, _ in rows:
        if nbytes > 0:
            alive[address] = nbytes
        elif alive.pop(address, 0) != -nbytes:
            continue  # allocated before
        level += nbytes
        highest = max(highest, level)
    if level != sum(returned.values()):
        return REFUSED  # it keeps memory for its next call
    return KernelRun(highest - level, () if tiny else tuple(outputs))


def _tensors_in(values: object) -> list[Tensor]:
    return [each for each in leaves_of(values) if isinstance(each, Tensor)]


def fits_alone(tensors: Sequence[Tensor], most_bytes: int | None = None) -> bool:
    """Return whether there is memory to run an operator alone with these arguments and results."""
    return sum(map(_nbytes, tensors)) <= min(MOST_BYTES if most_bytes is None else most_bytes, _free_bytes() // 2)


def _nbytes(tensor: Tensor) -> int:
    """Return the bytes of such a tensor and of a copy, in case the kernel makes one. A column of a matrix comes with
    all bytes between its elements."""
    return max(tensor.numel(), span(View.of(tensor))) * tensor.element_size()


def _key(values: object, tiny: bool) -> tuple[object, ...]:
    """Return a key that is equal for arguments with which the same kernel runs."""
    return tuple(
        ((each.dtype, each.dim()) if tiny else View.of(each)._replace(offset=0))
        if isinstance(each, Tensor)
        else repr(each)
        for each in leaves_of(values)
    )


def _settings() -> tuple[object, ...]:
    """Return the settings that decide which kernel runs and how it divides its work."""
    return (
        torch.get_num_threads(),
        torch.backends.mkldnn.enabled,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


def _free_bytes() -> int:
    """Return the bytes that the process may still allocate; a terabyte if the system does not report it."""
    found = [2**40]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # a container's own limit; "max" without a limit
        most, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
        found.append(most - used)
    return min(found)


_aten = torch.ops.aten

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
"""Operations that most formulas run in place on their own zeros, but out of place under a mode
(areAnyTensorSubclassLike)."""


OUT_OF_PLACE = ("ScatterReduceBackward", "IndexReduceBackward")
"""Formulas that run them out of place on any tensors (FunctionsManual.cpp, scatter_reduce_backward)."""


FILLED_IN_PLACE = (
    *("ClampBackward", "ClampMaxBackward", "ClampMinBackward"),
    *("FmaxBackward", "FminBackward", "MaximumBackward", "MinimumBackward"),
)
"""Formulas that fill their own tensors in place, but out of place under a mode (torch 2.14, FunctionsManual.cpp,
masked_fill_inplace_if_safe)."""


class FakeKernels(FakeOperations):  # type: ignore[no-untyped-call]
    """Fake operations with the workspaces of CPU kernels among their events, and results laid out as the kernels do.

    A kernel without a rule is run alone (`kernel_run`). If that is not possible, the layouts still show some of it:
    copies of matrices that BLAS cannot read, sums in another dtype, and copies of transposed matrices.

    Attributes:
        in_place: whether the running formula works in place on tensors that it created.
        fills_in_place: whether the running formula is one of `FILLED_IN_PLACE`.
        unknown: (reason, operator) for each operator whose workspace is not known.
    """

    in_place = True
    fills_in_place = False

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.unknown: dict[tuple[str, str], None] = {}
        self._workspace: int | None = None  # of the running operation; None if unknown

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
        """Return the operator's kernel run, as `kernel_run` does."""
        return kernel_run(operator, args, kwargs, results, in_backward=True)

    def call(self, operator: Any, args: Any, kwargs: Any) -> Any:
        in_place = _IN_PLACE.get(operator)
        if self.fills_in_place and operator is _aten.masked_fill.Scalar:
            in_place = _aten.masked_fill_.Scalar
        if in_place is not None and self.in_place and self.number(args[0]) >= 0:
            operator = in_place
        result = super().call(operator, args, kwargs)
        find = _SCRATCH.get(operator)
        if self._workspace is not None:
            self._take_scratch([self._workspace] if self._workspace else [])
        elif find is not None and isinstance(result, Tensor) and result.device == self._device == _CPU:
            self._take_scratch([nbytes for nbytes in find(result, *args) if nbytes])
        return result

    def _take_scratch(self, sizes: list[int]) -> None:
        """Record blocks that the kernel frees before it returns."""
        first = len(self.nbytes)
        self.nbytes += sizes
        self.events += range(first, len(self.nbytes))
        self.events += (~number for number in reversed(range(first, len(self.nbytes))))


def _laid_out(fake: Tensor, layout: LaidOut | None) -> Tensor:
    """Return the result of an operation with the strides and the storage size that its kernel uses."""
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
    """Return the bytes of copies of matrices that BLAS cannot read, the last one first (LinearAlgebra.cpp,
    addmm_impl_cpu_).

    In a batch, one product after the other makes them; these are the first product's.
    """
    matrices = [each for each in arguments if isinstance(each, Tensor)][-2:]
    if not result.numel() or not matrices[0].shape[-1]:
        return []
    if result.dim() == 3 and result[0].numel() * matrices[0].shape[-1] < _SMALL_IN_BATCH:
        return []
    matrices = [each[0] if each.dim() == 3 else each for each in matrices if each.dim() > 1]  # no vectors
    return [each.numel() * each.element_size() for each in reversed(matrices) if not _is_for_blas(each)]


_SMALL_IN_BATCH = 400  # multiplications below which a batch does not use BLAS (bmm_out_or_baddbmm_)


def _is_for_blas(matrix: Tensor) -> bool:
    """Return whether one dimension has stride 1, and the other does not overlap."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    return (down == 1 and right >= max(1, rows)) or (right == 1 and down >= max(1, columns))


def _of_sum(result: Tensor, tensor: Tensor, *arguments: Any) -> list[int]:
    """Return the bytes of the cast that precedes a sum in another dtype (ReduceOpsUtils.h, make_reduction)."""
    return [tensor.numel() * result.element_size()] if tensor.dtype != result.dtype else []


def _of_copy(result: Tensor, *arguments: Any) -> list[int]:
    source = next(each for each in reversed(arguments[:2]) if isinstance(each, Tensor))  # for copy_, the second
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
"""Rules by operator: the bytes that its kernel allocates and frees, in order."""
