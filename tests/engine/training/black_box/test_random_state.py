"""The states of random generators as the black box reads them: equal to those of the generators' own functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from tapescope.engine.training.black_box import random_state
from tapescope.engine.training.black_box.random_state import RandomNumbers

WORDS = numpy.arange(624, dtype=numpy.uint32)

DRAWS: dict[str, Callable[[], object]] = {
    "a number of Python's": random.random,
    "bits": lambda: random.getrandbits(1),
    "the first normal number of a pair": lambda: random.gauss(0, 1),
    "Python's seed": lambda: random.seed(3),
    "a number of NumPy's": numpy.random.rand,
    "a normal number of NumPy's": numpy.random.randn,
    "NumPy's seed": lambda: numpy.random.seed(3),
    "another second normal number": lambda: numpy.random.set_state(("MT19937", WORDS, 5, 1, 0.5)),
}


@pytest.fixture(autouse=True)
def generators_as_before() -> Iterator[None]:
    before = random.getstate(), numpy.random.get_state()
    yield
    random.setstate(before[0])
    numpy.random.set_state(before[1])


def own_states() -> tuple[Any, ...]:
    name, words, *rest = numpy.random.get_state()
    return random.getstate(), (name, words.tolist(), *rest)


def read_states() -> tuple[Any, ...]:
    found = RandomNumbers.now()
    assert found.numpy is not None
    name, words, *rest = found.numpy
    return found.python, (name, words.tolist(), *rest)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_states_are_those_after_the_last_draw(draw: Callable[[], object]) -> None:
    numpy.random.set_state(("MT19937", WORDS, 5, 0, 0.0))
    for _ in range(3):  # the second of two normal numbers leaves the words as they were
        RandomNumbers.now()
        draw()
        assert read_states() == own_states()


def test_states_are_read_again_only_after_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    first = RandomNumbers.now()
    again = RandomNumbers.now()
    assert again.python is first.python and again.numpy is first.numpy
    monkeypatch.setattr(random_state, "_shows_draws", lambda kind, draw: False)  # not CPython
    assert RandomNumbers.now().python is not first.python and read_states() == own_states()


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_generator_of_numpy_is_read_each_time() -> None:
    usual = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(1))
        before = RandomNumbers.now().numpy
        numpy.random.rand()
        assert RandomNumbers.now().numpy != before
    finally:
        numpy.random.set_bit_generator(usual)
    assert read_states() == own_states()
