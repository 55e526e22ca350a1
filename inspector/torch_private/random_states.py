"""Random number generators of the CPU and of accelerators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident

import torch
from torch import Tensor

RandomStates = dict[torch.device, Tensor]

_CPU = torch.device("cpu")


def accelerators_awake() -> list[torch.device]:
    """Return the accelerators if they are initialized; this does not initialize them."""
    here = torch.accelerator.current_accelerator()
    if here is None:
        return []
    is_awake = getattr(torch.get_device_module(here), "is_initialized", torch.accelerator.is_available)
    return [torch.device(here.type, number) for number in range(torch.accelerator.device_count())] if is_awake() else []


def random_states(devices: Iterable[torch.device]) -> RandomStates:
    """Return the states of torch's random generators for the CPU and these devices."""
    states = {_CPU: torch.get_rng_state()}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            states[device] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_random_states(states: Mapping[torch.device, Tensor]) -> None:
    """Restore `random_states`."""
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def same_random_states(devices: Iterable[torch.device]) -> Iterator[None]:
    """Restore these devices' generators and the CPU's on exit."""
    states = random_states(devices)
    try:
        yield
    finally:
        set_random_states(states)


@contextmanager
def watching_states_taken(taken: Callable[[Tensor], object]) -> Iterator[None]:
    """Call `taken` with each state that `torch.get_rng_state` returns in this thread, for example to checkpoints.

    No dispatch mode sees these tensors being created.
    """
    original, thread = torch.get_rng_state, get_ident()

    def watched() -> Tensor:
        state = original()
        if get_ident() == thread:
            taken(state)
        return state

    torch.get_rng_state = watched
    try:
        yield
    finally:
        torch.get_rng_state = original


def seed(device: torch.device, number: int) -> None:
    """Seed the random generator of this device, the CPU or another."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(number)
    elif device.type == "mps":  # has a single generator
        torch.mps.manual_seed(number)
    else:
        module = torch.get_device_module(device)
        # An accelerator's `manual_seed` seeds the current device.
        with module.device(device):
            module.manual_seed(number)


def generator_of(device: torch.device) -> torch.Generator:
    """Return the generator of this device if torch exposes it, otherwise the CPU's."""
    if device.type in ("cpu", "meta"):
        return torch.default_generator
    shown = getattr(torch.get_device_module(device), "default_generators", ())
    number = torch.accelerator.current_device_index() if device.index is None else device.index
    return shown[number] if number < len(shown) else torch.default_generator
