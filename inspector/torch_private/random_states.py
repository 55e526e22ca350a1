"""Random number generators of devices, the CPU's and accelerators'."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident

import torch
from torch import Tensor

RandomStates = dict[torch.device, Tensor]

_CPU = torch.device("cpu")


def accelerators_awake() -> list[torch.device]:
    """The accelerators here, if anything has been asked of one: what would wake them is not done."""
    here = torch.accelerator.current_accelerator()
    if here is None:
        return []
    is_awake = getattr(torch.get_device_module(here), "is_initialized", torch.accelerator.is_available)
    return [torch.device(here.type, number) for number in range(torch.accelerator.device_count())] if is_awake() else []


def random_states(devices: Iterable[torch.device]) -> RandomStates:
    """The states of torch's random generators, of the CPU's and of these devices'."""
    states = {_CPU: torch.get_rng_state()}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            states[device] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_random_states(states: Mapping[torch.device, Tensor]) -> None:
    """Puts `random_states` back."""
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def same_random_states(devices: Iterable[torch.device]) -> Iterator[None]:
    """A context after which these generators and the CPU's are as they were."""
    states = random_states(devices)
    try:
        yield
    finally:
        set_random_states(states)


@contextmanager
def watching_states_taken(taken: Callable[[Tensor], object]) -> Iterator[None]:
    """Calls `taken` with each state that `torch.get_rng_state` gives in this thread, as it does to checkpoints: no
    dispatch mode sees these tensors made."""
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
    """Random numbers of this device, the CPU's or another, come from here on."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(number)
    elif device.type == "mps":  # there is one, and no choice of it
        torch.mps.manual_seed(number)
    else:
        module = torch.get_device_module(device)
        with module.device(device):
            module.manual_seed(number)


def generator_of(device: torch.device) -> torch.Generator:
    """The generator of this device, where torch shows it; else the CPU's."""
    if device.type in ("cpu", "meta"):
        return torch.default_generator
    shown = getattr(torch.get_device_module(device), "default_generators", ())
    number = torch.accelerator.current_device_index() if device.index is None else device.index
    return shown[number] if number < len(shown) else torch.default_generator
