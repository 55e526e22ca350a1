"""A sequence in chunks over a cache, and hooks that rebuild its states from the last: PyTorch RFC #198225."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


@dataclass(frozen=True)
class State:
    """The number of a saved state, and the position of the saved view in it."""

    number: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Rebuilding(saved_tensors_hooks):
    """Keeps one state of the cache, the last, and what each chunk overwrote: state k comes from state k+1 alone."""

    def __init__(self, slots: list[Tensor]) -> None:
        super().__init__(self.pack, self.unpack)
        self.slots = slots
        self.asked: list[int] = []
        self.overwritten: list[Tensor] = []
        self.numbers: dict[int, int] = {}  # by address
        self.states: list[Tensor] = []
        self.buffer = torch.empty(0)
        self.at = -1

    def follow(self, before: Tensor, state: Tensor) -> None:
        self.overwritten.append(before.detach()[self.slots[len(self.states)]].clone())
        self.numbers[state.data_ptr()] = len(self.states)
        self.states.append(state)

    def close(self) -> None:
        """The forward is over: all states but the last go."""
        self.buffer = self.states[-1].detach().clone()
        self.at = len(self.states) - 1
        self.states.clear()
        self.numbers.clear()

    def pack(self, tensor: Tensor) -> Tensor | State:
        number = self.numbers.get(tensor.data_ptr())
        return tensor if number is None else State(number, tuple(tensor.size()), tensor.stride())

    def unpack(self, packed: Tensor | State) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        self.asked.append(packed.number)
        if packed.number > self.at:
            raise RuntimeError(f"state {packed.number} is asked for, and state {self.at} is the last that is left")
        while self.at > packed.number:
            self.buffer[self.slots[self.at]] = self.overwritten[self.at]
            self.at -= 1
        return self.buffer.clone().as_strided(packed.size, packed.stride)


class Chunked(nn.Module):
    """Attention of each chunk over a cache of keys that are values, too; its slots are overwritten in turn."""

    def __init__(self, width: int = 4, length: int = 6) -> None:
        super().__init__()
        self.length = length
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.policy = nn.Linear(width, 3)
        self.value = nn.Linear(width, 1)

    def read(self, query: Tensor, cache: Tensor) -> Tensor:
        return (query @ cache.T).softmax(-1) @ cache

    def forward(self, chunks: list[Tensor], hooks: Rebuilding | None, policy_gradient: bool) -> Tensor:
        """The loss. The critic of a policy gradient reads the states again, from the last to the first, as returns
        are summed up; a language model's loss reads each once."""
        cache = torch.zeros(self.length, chunks[0].shape[1])
        states, losses = [], []
        for number, chunk in enumerate(chunks):
            before, cache = cache, cache.index_copy(0, slots_of(number, self.length), self.key(chunk))
            if hooks is not None:
                hooks.follow(before, cache)
            states.append(cache)
            read = self.read(self.query(chunk), cache)
            losses.append(-self.policy(read).log_softmax(-1)[:, 0].mean())
        if policy_gradient:
            target = torch.zeros(1)
            for chunk, cache in zip(reversed(chunks), reversed(states), strict=True):
                target = 0.9 * target + 1
                losses.append((self.value(self.read(chunk, cache)).mean() - target).square().sum())
        return torch.stack(losses).sum()


def slots_of(number: int, length: int, size: int = 2) -> Tensor:
    return torch.arange(number * size, (number + 1) * size) % length


def chunked_loss(
    count: int = 5, policy_gradient: bool = True, rebuild: bool = True
) -> tuple[Chunked, Tensor, Rebuilding]:
    """A model, a loss of a sequence of so many chunks, and the hooks under which its forward has run."""
    torch.manual_seed(0)
    model = Chunked()
    chunks = list(torch.randn(count, 2, 4))
    hooks = Rebuilding([slots_of(number, model.length) for number in range(count)])
    if not rebuild:
        return model, model(chunks, None, policy_gradient), hooks
    with hooks:
        loss = model(chunks, hooks, policy_gradient)
    hooks.close()
    return model, loss, hooks
