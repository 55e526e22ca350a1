"""Sums are autograd's own, bit for bit and as much in place; what somebody looks at is not changed under their eyes."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("autograd")

import autograd
import autograd.numpy as np
import numpy
from autograd.core import add_outgrads, vspace

from tapescope.engine.execution.accumulation_rule import Accumulate
from tapescope.engine.session.hips.gradient_sums import HIPS_BUFFERS, carried, combined, value_of
from tapescope.tests.says import raises

PAIR = (numpy.zeros(3), numpy.zeros(2))
RULES = get_args(Accumulate)


def indexed(place: Any, gradient: Any) -> Any:
    """The sparse gradient that an index of an array of three gives."""
    _, end = autograd.core.trace(autograd.core.VJPNode.new_root(), lambda x: x[place], numpy.zeros(3))
    (found,) = end.vjp(gradient)
    return found


GRADIENTS = st.lists(
    st.one_of(
        st.floats(-2, 2).map(lambda value: numpy.full(3, value)),
        st.tuples(st.integers(0, 2), st.floats(-2, 2)).map(lambda each: indexed(*each)),
    ),
    min_size=1,
    max_size=6,
)


def autograds(gradients: list[Any]) -> Any:
    total = None
    for gradient in gradients:
        total = add_outgrads(total, gradient)
    assert total is not None
    return total[0]


@given(GRADIENTS, st.sampled_from(RULES))
def test_a_buffer_holds_what_autograd_would_sum_to(gradients: list[Any], rule: Accumulate) -> None:
    space = vspace(numpy.zeros(3))
    buffer = HIPS_BUFFERS[rule](space, 1)
    for gradient in gradients:
        (tensor,) = carried(gradient, space, [0], is_read=False)
        buffer.add(0, tensor)
    assert value_of(buffer.shown()[0]).tobytes() == autograds(gradients).tobytes()  # type: ignore[arg-type]
    assert combined(space, buffer.take()).tobytes() == autograds(gradients).tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_an_element_of_a_container_is_added_to_its_own_array_and_zeros_stand_for_the_others(rule: Accumulate) -> None:
    space = vspace(PAIR)
    _, end = autograd.core.trace(autograd.core.VJPNode.new_root(), lambda pair: pair[1], PAIR)
    (taken,) = end.vjp(numpy.ones(2))
    buffer = HIPS_BUFFERS[rule](space, 2)
    for number, tensor in zip((1,), carried(taken, space, [1], is_read=True), strict=True):
        assert tensor.tolist() == [1.0, 1.0]
        buffer.add(number, tensor)
    for number, tensor in enumerate(carried((numpy.ones(3), numpy.ones(2)), space, [0, 1], is_read=True)):
        buffer.add(number, tensor)
    first, second = combined(space, buffer.take())
    assert (first.tolist(), second.tolist()) == ([1.0, 1.0, 1.0], [2.0, 2.0])


def test_a_sum_is_added_to_in_place_unless_somebody_holds_it() -> None:
    space = vspace(numpy.zeros(3))
    buffer = HIPS_BUFFERS["inplace"](space, 1)

    def add() -> Any:
        buffer.add(0, carried(numpy.ones(3), space, [0], is_read=True)[0])
        return value_of(buffer.gradients[0])  # type: ignore[arg-type]

    first = add()
    total = add()
    assert total is not first and first.tolist() == [1.0, 1.0, 1.0], "the first is its formula's"
    assert add() is total
    held = buffer.gradients[0]
    assert held is not None
    assert add() is not total and held.tolist() == [3.0, 3.0, 3.0]
    assert buffer.shown()[0].tolist() == [4.0, 4.0, 4.0]  # type: ignore[union-attr]


def test_other_values_than_arrays_are_refused_and_what_torch_cannot_view_is_copied() -> None:
    space = vspace(numpy.zeros(3))
    with raises(TypeError, "str"):
        carried("three", space, [0], is_read=True)
    backwards = numpy.arange(3.0)[::-1]
    (tensor,) = carried(backwards, space, [0], is_read=True)
    assert value_of(tensor) is backwards and tensor.tolist() == [2.0, 1.0, 0.0]
    fixed = numpy.broadcast_to(1.0, 3)
    (tensor,) = carried(fixed, space, [0], is_read=True)
    assert tensor.data_ptr() == fixed.ctypes.data and np.sum(tensor.numpy()) == 3.0
