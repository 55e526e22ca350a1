"""Memory of HIPS autograd's own backward, seen through tracemalloc: it frees sums, and keeps saved values."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from tapescope.engine.session.hips.levels import hips_levels, hips_time
from tapescope.engine.studies.workloads import workload

autograd = pytest.importorskip("autograd")
np = pytest.importorskip("autograd.numpy")
from numpy.testing import assert_array_equal  # noqa: E402

from tapescope.tests.says import Snapshots, raises  # noqa: E402


def fan_out(x, z, uses=20):
    for _ in range(uses):
        z = np.dot(x, z)
    return np.sum(z)


def first(x, z):
    return x


def matrices(width=256):
    random = np.random.default_rng(0)
    return random.standard_normal((width, width)) / width, random.standard_normal((width, width))


def test_the_gradient_and_the_peak_are_those_of_plain_autograd() -> None:
    x, z = matrices()
    gradient, found = hips_levels(fan_out, x, z)
    tracemalloc.start()
    try:
        expected = autograd.grad(fan_out)(x, z)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert_array_equal(gradient, expected)
    assert found.peak_bytes == pytest.approx(peak, rel=0.02)


def test_each_node_is_a_step_and_no_saved_value_is_let_go() -> None:
    x, z = matrices()
    _, found = hips_levels(fan_out, x, z)
    assert len(found.peaks) == 1 + 20 + 1  # the sum, the products, the start
    matrix = x.nbytes
    assert found.start_bytes == pytest.approx(19 * matrix, rel=0.02)
    assert min(found.peaks) > 19 * matrix


def test_the_gradient_of_another_argument_and_of_a_tuple() -> None:
    x, z = matrices(8)
    gradient, _ = hips_levels(fan_out, x, z, argnum=1)
    assert_array_equal(gradient, autograd.grad(fan_out, 1)(x, z))
    found, _ = hips_levels(lambda both: fan_out(*both), (x, z))
    for each, expected in zip(found, autograd.grad(lambda both: fan_out(*both))((x, z)), strict=True):
        assert_array_equal(each, expected)


@pytest.mark.filterwarnings("ignore:Output seems independent of input")
def test_a_value_that_does_not_depend_on_the_argument_is_refused() -> None:
    with raises(ValueError, "first", "1"):
        hips_levels(first, 1.0, 2.0, argnum=1)


@pytest.mark.parametrize(
    ("fun", "argnum", "facts"),
    [
        (object(), 0, ("fun", "object", "autograd.numpy")),
        (fan_out, None, ("argnum", "None")),
        (first, 2, ("argnum", "2", "2 arguments")),
        (lambda x: x, 0, ("fun", "<lambda>", "2 arguments")),
    ],
    ids=["not a function", "no number", "too large a number", "one argument"],
)
def test_bad_input_is_a_sentence(fun, argnum, facts, snapshot: Snapshots):
    with raises((TypeError, ValueError), *facts) as refused:
        hips_levels(fun, 1.0, 2.0, argnum=argnum)
    snapshot("hips", refused.value)


def test_its_time_is_measured_without_looking() -> None:
    assert not tracemalloc.is_tracing()
    assert hips_time(fan_out, *matrices(8)) > 0


def test_where_autograd_is_not_installed_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "autograd.numpy", None)
    for call in (lambda: hips_levels(first, 1.0, 2.0), lambda: hips_time(first, 1.0), workload("rnn").in_numpy):
        with raises(ModuleNotFoundError, "HIPS", "'tapescope[hips]'"):
            call()


def test_its_forward_has_a_level_at_each_node_and_all_steps_have_a_clock() -> None:
    x, z = matrices()
    _, found = hips_levels(fan_out, x, z)
    assert [round(level / x.nbytes) for level in found.forward] == [*range(1, 21), 20, 20][: len(found.forward)]
    assert max(found.forward) == found.forward_peak_bytes
    assert len(found.ns) == len(found.forward) + len(found.peaks) and list(found.ns) == sorted(found.ns)
