"""Statistics of gradients, held against torch's own functions on the elements that are finite."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import tapescope as ts
from tapescope.engine.recording.statistics import (
    EDGES,
    _numbers_later,
    _values,
    as_statistics,
    form_of,
    measure,
    statistics,
)
from tapescope.tests.says import Snapshots, says

FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 3e38, -1e-40, 1e-12, 1e3])
TENSORS = st.lists(FLOATS, max_size=20).map(torch.tensor)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def found(gradient: Tensor | None, level: str = "cheap") -> ts.types.Statistics:
    result = statistics(gradient, level)
    assert result is not None
    return result


def close(number: float | None, expected: Tensor) -> bool:
    return number is not None and math.isclose(number, float(expected), rel_tol=1e-4, abs_tol=1e-44)


@given(TENSORS, st.sampled_from(DTYPES))
def test_the_numbers_are_those_of_torch_over_finite_elements(gradient: Tensor, dtype: torch.dtype) -> None:
    gradient = gradient.to(dtype)
    seen = found(gradient)
    finite = gradient[gradient.isfinite()].double()
    assert (seen.count, seen.shape, seen.dtype) == (gradient.numel(), tuple(gradient.shape), dtype)
    assert seen.nan_count == gradient.isnan().sum()
    assert seen.inf_count == gradient.isinf().sum()
    assert seen.zero_count == (gradient == 0).sum()
    if len(finite):
        assert (seen.min, seen.max) == (finite.min(), finite.max())
        assert close(seen.norm, finite.norm())
        assert seen.mean is not None
        # what cancels out is lost to the precision of the largest element
        assert abs(seen.mean - float(finite.mean())) <= 1e-5 * float(finite.abs().max())
    else:
        assert seen.min is seen.max is seen.mean is seen.norm is None


@given(TENSORS, st.sampled_from(DTYPES))
def test_what_an_accelerator_computes_without_waiting_is_what_the_cpu_computes(
    gradient: Tensor, dtype: torch.dtype
) -> None:
    gradient = gradient.to(dtype)
    later = as_statistics(form_of(gradient), _numbers_later(_values(gradient), 0).tolist())
    now = found(gradient)
    for name in ("count", "min", "max", "nan_count", "inf_count", "zero_count"):
        assert getattr(later, name) == getattr(now, name)
    for name in ("mean", "norm"):
        one, other = getattr(later, name), getattr(now, name)
        assert one == other or math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6 * (now.norm or 0) + 1e-44)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("size", [1023, 1025, 5_000, 2**20 + 7])
def test_zeros_are_counted_one_by_one_in_gradients_of_any_size(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    gradient = torch.randn(size).mul(3).to(dtype)
    gradient[torch.rand(size) < 0.4] = 0
    gradient[::7] = gradient[::7] * -0.0
    if dtype.is_floating_point:
        gradient[5], gradient[11] = 1e-40, math.nan
    seen = found(gradient)
    assert seen.zero_count == sum(number == 0 for number in gradient.tolist())
    assert found(gradient[::2]).zero_count == sum(number == 0 for number in gradient[::2].tolist())


@pytest.mark.parametrize("level", ["cheap", "full"])
def test_how_dimensions_are_permuted_makes_no_difference(level: str) -> None:
    torch.manual_seed(0)
    gradient = torch.randn(30, 20, 7, 5)
    for order in ((1, 0, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)):
        one, other = found(gradient, level), found(gradient.permute(order), level)
        assert other.shape == tuple(gradient.shape[place] for place in order)
        assert replace(other, shape=one.shape) == one


@given(TENSORS, st.sampled_from(DTYPES))
def test_each_element_is_in_its_bin_or_counted_as_zero_nan_or_infinite(gradient: Tensor, dtype: torch.dtype) -> None:
    gradient = gradient.to(dtype)
    seen = found(gradient, "full")
    assert seen.histogram is not None
    counts = seen.histogram.counts
    assert sum(counts) + seen.zero_count + seen.nan_count + seen.inf_count == gradient.numel()
    edges = torch.tensor(EDGES, dtype=_values(gradient).dtype)
    for place, count in enumerate(counts):
        values = _values(gradient)
        inside = (values >= edges[place]) & (values < edges[place + 1]) & values.isfinite() & (values != 0)
        assert count == inside.sum()


def test_bins_are_the_same_on_both_sides_of_zero() -> None:
    assert len(EDGES) == 65 and EDGES[32] == 0
    assert [-edge for edge in reversed(EDGES)] == list(EDGES)
    assert (
        found(torch.tensor([0.02, -0.02]), "full").histogram.counts[::-1]
        == found(torch.tensor([0.02, -0.02]), "full").histogram.counts
    )


def test_norms_of_half_precision_and_of_large_numbers_do_not_overflow() -> None:
    assert found(torch.full((100,), 6e4, dtype=torch.float16)).norm == pytest.approx(6e5, rel=1e-3)
    assert found(torch.full((100,), 3e38, dtype=torch.bfloat16)).norm == pytest.approx(3e39, rel=1e-2)
    assert found(torch.full((4,), 3e38)).mean == pytest.approx(3e38)
    assert found(torch.full((4,), 1e-30)).norm == pytest.approx(2e-30)
    assert found(torch.full((4,), 1e200, dtype=torch.float64)).norm == pytest.approx(2e200)


def test_complex_gradients_by_their_absolute_values() -> None:
    seen = found(torch.tensor([3 + 4j, 0j, complex(math.nan, 1)]))
    assert (seen.min, seen.max, seen.norm, seen.nan_count, seen.zero_count) == (0, 5, 5, 1, 1)
    assert seen.dtype is torch.complex64


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        (torch.tensor([True, False, True]), (0, 1, 2 / 3, 1)),
        (torch.tensor([-3, 4, 2**40]), (-3, 2**40, (2**40 + 1) / 3, 0)),
        (torch.tensor(2.0), (2, 2, 2, 0)),
        (torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), (1, 2, 1.5, 0)),
        (torch.tensor(1.5).expand(1000, 1000), (1.5, 1.5, 1.5, 0)),
    ],
    ids=["bool", "int", "0-dim", "float8", "expanded"],
)
def test_other_kinds_of_numbers(gradient: Tensor, expected: tuple[float, ...]) -> None:
    for level in ("cheap", "full"):
        seen = found(gradient, level)
        assert (seen.min, seen.max, seen.mean, seen.zero_count) == pytest.approx(expected)
        assert seen.count == gradient.numel()


def test_sparse_gradients_over_what_they_store() -> None:
    coo = torch.sparse_coo_tensor(
        torch.tensor([[1, 1, 3]]), torch.tensor([[1.0, 2.0], [3.0, 0.0], [-1.0, 5.0]]), (6, 2)
    )
    for gradient in (coo, coo.coalesce()):
        seen = found(gradient, "full")
        assert seen.layout is torch.sparse_coo and seen.count == 12 and seen.max == 5
        assert seen.zero_count == 12 - int(gradient._values().count_nonzero())
    csr = torch.eye(4).to_sparse_csr()
    assert (found(csr).mean, found(csr).norm, found(csr).zero_count, found(csr).count) == (1, 2, 12, 16)


def test_no_gradient_and_level_off_have_no_statistics() -> None:
    assert statistics(None, "full") is None
    assert statistics(torch.ones(3), "off") is None


class OwnBytes(Tensor):
    """A subclass that runs operations itself, must not be asked to, and wraps no other tensor."""

    @staticmethod
    def __new__(cls, values: Tensor) -> Tensor:
        return Tensor._make_subclass(cls, values)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was asked for")


class Scaled(Tensor):
    """Integers and their scale: its inner tensors are not its elements."""

    @staticmethod
    def __new__(cls, integers: Tensor, scale: Tensor):
        return Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scale.dtype)

    def __init__(self, integers: Tensor, scale: Tensor) -> None:
        self.integers, self.scale = integers, scale

    def __tensor_flatten__(self):
        return ["integers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Scaled(inner["integers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was asked for")


def jagged_with_a_hole() -> Tensor:
    values = torch.tensor([1.0, math.nan, -2.0, 0.0])  # the NaN is in none of the rows
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 4]), torch.tensor([1, 2]))


def doubled(values: Tensor) -> Tensor:
    return TwoTensor(values.clone(), values.clone())


READABLE = {
    "nested": lambda values: torch.nested.nested_tensor([values[:2], values[2:]]),
    "jagged": lambda values: torch.nested.nested_tensor([values[:2], values[2:]], layout=torch.jagged),
    "two tensors": lambda values: TwoTensor(values[:2].clone(), values[2:].clone()),
    "wrapper of a wrapper": lambda values: TwoTensor(*map(doubled, values.view(2, 2))),
    "own bytes": OwnBytes,
    "mkldnn": lambda values: values.to_mkldnn(),
    "float8": lambda values: values.to(torch.float8_e5m2),
    "complex32": lambda values: values.to(torch.complex32),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse", "ignore:ComplexHalf")
@pytest.mark.parametrize("kind", READABLE)
@pytest.mark.parametrize("level", ["cheap", "full"])
def test_the_elements_of_rare_layouts_and_wrapper_subclasses_are_read(kind: str, level: str) -> None:
    seen = found(READABLE[kind](torch.tensor([1.0, math.nan, math.inf, 0.0])), level)
    twice = 2 if kind == "wrapper of a wrapper" else 1
    assert (seen.count, seen.nan_count, seen.inf_count) == (4 * twice, twice, twice)
    assert (seen.zero_count, seen.norm, seen.unavailable) == (twice, pytest.approx(twice**0.5), None)


def test_what_is_in_no_row_of_a_jagged_tensor_is_not_its_own() -> None:
    seen = found(jagged_with_a_hole())
    assert (seen.count, seen.nan_count, seen.min, seen.max) == (3, 0, -2.0, 1.0)


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_quantized_gradients_are_read() -> None:
    values = torch.tensor([0.0, 0.5, -1.0])
    seen = found(torch.quantize_per_tensor(values, 0.5, 0, torch.qint8))
    assert (seen.count, seen.min, seen.max, seen.zero_count) == (3, -1.0, 0.5, 1)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: torch.ones(3, device="meta"), "meta"),
        (lambda: FakeTensorMode().from_tensor(torch.ones(3)), "FakeTensor"),
        (lambda: LoggingTensor(torch.ones(3)), "LoggingTensor"),
        (lambda: Scaled(torch.ones(3, dtype=torch.int8), torch.tensor(math.nan)), "Scaled"),
    ],
    ids=["meta", "fake", "no inner tensors", "scaled"],
)
def test_what_cannot_be_measured_says_why(make, named: str, snapshot: Snapshots) -> None:
    gradient = make()
    for level in ("cheap", "full"):
        seen = found(gradient, level)
        says(seen.unavailable, named)
        assert seen.min is seen.count is seen.nan_count is seen.histogram is None
        assert seen.dtype is gradient.dtype
    if named in ("meta", "FakeTensor"):
        snapshot("trace", seen.unavailable)


def test_an_error_inside_is_told_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(values: Tensor, unstored: int) -> list[float]:
        raise NotImplementedError("no such kernel\nand more")

    monkeypatch.setattr("tapescope.engine.recording.statistics._numbers_now", broken)
    assert found(torch.ones(2)).unavailable == "NotImplementedError: no such kernel"


def test_modes_and_subclasses_of_the_users_see_nothing() -> None:
    seen: list[object] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Named(Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    gradient = torch.ones(3)
    named = gradient.as_subclass(Named)
    with Functions(), Dispatch():
        results = [found(each, "full") for each in (gradient, named)]
    assert not seen
    assert [result.norm for result in results] == [pytest.approx(3**0.5)] * 2


def test_a_measurement_keeps_neither_the_gradient_nor_a_graph() -> None:
    gradient = torch.ones(3, requires_grad=True) * 2
    alive = weakref.ref(gradient)
    storage = weakref.ref(gradient.untyped_storage())
    version = gradient._version
    kept = measure(gradient, "full")
    assert gradient._version == version
    assert not any(isinstance(each, Tensor) and each.requires_grad for each in (kept.numbers,))
    del gradient
    gc.collect()
    assert alive() is None and storage() is None
    assert kept.read().max == 2


@pytest.mark.gpu
def test_cheap_statistics_on_cuda_wait_for_nothing_until_they_are_read() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA")
    gradients = [
        torch.tensor([1.0, math.nan, -math.inf, 0, 3e38], device="cuda"),
        torch.randn(1000, 7, device="cuda").bfloat16(),
        torch.zeros(0, device="cuda"),
        torch.ones(3, device="cuda", dtype=torch.complex64),
        torch.eye(4).to_sparse().cuda(),
    ]
    for gradient in gradients:
        measure(gradient, "cheap")  # loads kernels
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)  # whoever waits, waits for this
        busy = torch.cuda.Event()
        busy.record()
        kept = [measure(gradient, "cheap") for gradient in gradients]
        assert not busy.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for measurement, gradient in zip(kept, gradients, strict=True):
        seen, expected = measurement.read(), found(gradient.cpu())
        assert (seen.min, seen.max, seen.nan_count, seen.inf_count, seen.zero_count) == (
            expected.min,
            expected.max,
            expected.nan_count,
            expected.inf_count,
            expected.zero_count,
        )
        assert seen.norm == pytest.approx(expected.norm, rel=1e-4)
    full = measure(gradients[1], "full").read()
    assert full.histogram == found(gradients[1].cpu(), "full").histogram
