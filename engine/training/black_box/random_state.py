"""States of the random number generators (Python's, NumPy's, torch's on all devices) as JSON and tensors."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from ctypes import string_at
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ....inspector.torch_private.random_states import RandomStates, accelerators_awake, random_states, set_random_states

_WORDS = 624  # words of a Mersenne twister's state
_TORCH_NBYTES = 5056  # bytes of the state of torch's CPU generator


@dataclass(frozen=True, slots=True)
class RandomNumbers:
    """The states of the global random number generators.

    Attributes:
        python: the result of `random.getstate()`.
        numpy: the result of `numpy.random.get_state()`; None if NumPy was not imported.
        torch: the states of torch's generators by device.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...] | None
    torch: RandomStates

    @classmethod
    def now(cls) -> RandomNumbers:
        """Read the states. Python's and NumPy's are read again only if their generators have been used since."""
        python: Any = getattr(random.getstate, "__self__", None)
        is_usual = type(python) is random.Random and _shows_draws(random.Random, random.Random.random)
        memory = (_memory(python), python.gauss_next) if is_usual else None
        numpy = sys.modules.get("numpy")
        return cls(
            _python.read(memory, random.getstate),
            None if numpy is None else _numpy.read(_memory_of_numpy(numpy.random), numpy.random.get_state),
            random_states(accelerators_awake()),
        )

    def restore(self) -> None:
        """Set all generators to these states, except those of devices that this machine lacks."""
        random.setstate(self.python)
        if self.numpy is not None and (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.set_state(self.numpy)
        here = {torch.device("cpu"), *accelerators_awake()}
        set_random_states({device: state for device, state in self.torch.items() if device in here})

    def as_json(self) -> dict[str, Any]:
        """Return the states as JSON, without torch's."""
        version, words, gauss = self.python
        content: dict[str, Any] = {"python": [version, list(words), gauss], "numpy": None}
        if self.numpy is not None and self.numpy[0] == "MT19937":
            content["numpy"] = [self.numpy[0], self.numpy[1].tolist(), *map(float, self.numpy[2:])]
        return content

    @classmethod
    def read(cls, content: object, states: dict[str, Tensor]) -> RandomNumbers:
        """Read the states from JSON and from torch's states by device.

        Raises:
            ValueError: if a state is malformed.
        """
        match content:
            case {"python": [int(version), list(words), float() | None as gauss], "numpy": numpy}:
                if version != 3 or len(words) != _WORDS + 1 or not _are_words(words) or words[-1] > _WORDS:
                    raise ValueError("the state of Python's random numbers is malformed")
                cpu = states.get("cpu")
                if cpu is None or cpu.dtype != torch.uint8 or cpu.shape != (_TORCH_NBYTES,):
                    raise ValueError("the state of torch's random numbers is malformed")
                devices = {torch.device(name): state for name, state in states.items()}
                return cls((version, tuple(words), gauss), _numpy_state(numpy), devices)
        raise ValueError("the states of the random numbers are malformed")


def _numpy_state(content: object) -> tuple[Any, ...] | None:
    match content:
        case None:
            return None
        case ["MT19937", list(words), float(place), float(has_gauss), float(gauss)]:
            if len(words) == _WORDS and _are_words(words) and 0 <= place <= _WORDS and has_gauss in (0, 1):
                return "MT19937", words, int(place), int(has_gauss), gauss
    raise ValueError("the state of NumPy's random numbers is malformed")


def _are_words(words: list[Any]) -> bool:
    return all(type(word) is int and 0 <= word < 2**32 for word in words)


class _LastState:
    """The state of a generator that was read last, and the generator's memory at that time.

    Reading the 624 words of a Mersenne twister as Python objects takes tens of microseconds, comparing its memory one.
    """

    def __init__(self) -> None:
        self._last: tuple[object, tuple[Any, ...]] | None = None

    def read(self, memory: object, read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the state. `memory` is the generator's; None: unknown."""
        last = self._last
        if last is None or memory is None or last[0] != memory:
            last = self._last = memory, read()
        return last[1]


_python, _numpy = _LastState(), _LastState()


def _memory(generator: object) -> bytes:
    """Return the memory of an object implemented in C, without its header, which counts references."""
    header = object.__basicsize__
    return string_at(id(generator) + header, type(generator).__basicsize__ - header)


def _memory_of_numpy(module: Any) -> tuple[bytes, bytes] | None:
    """Return the memory of NumPy's global generator, with the second number of a pair of normal ones, and its words."""
    generator: Any = getattr(module.get_state, "__self__", None)
    if not _shows_draws(module.RandomState, _draw_second_normal) or type(generator) is not module.RandomState:
        return None
    words = generator._bit_generator
    if type(words) is not module.MT19937:
        return None
    return _memory(generator), string_at(words.ctypes.state_address, 4 * (_WORDS + 1))


def _draw_second_normal(generator: Any) -> None:
    generator.standard_normal()


@cache
def _shows_draws(kind: Callable[[int], Any], draw: Callable[[Any], object]) -> bool:
    """Return whether drawing from a generator of this class changes the object's own memory, as it does in CPython."""
    generator = kind(0)
    draw(generator)
    before = _memory(generator)
    draw(generator)
    return _memory(generator) != before
