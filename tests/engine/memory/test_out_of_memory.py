"""A failed allocation: under each verb, the notes on the error name the holders, and the program can continue."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory import out_of_memory
from tapescope.engine.memory.out_of_memory import GRADIENTS, OTHERS, PARAMETERS, SAVED, STATE, explain_out_of_memory
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, says, says_none_of

TOO_MUCH = 2**48


class Greedy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + torch.empty(TOO_MUCH, device=gradient.device).sum()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.softmax(layer(x), -1)
        for layer in self.layers:
            x = layer(Greedy.apply(x))
        return x.sum()


def policed(make_loss: Callable[[], Tensor]) -> None:
    with ts.policy("bfs"):
        make_loss().backward()


def trained(make_loss: Callable[[], Tensor]) -> None:
    with ts.training():
        make_loss().backward()


VERBS: dict[str, Callable[[Callable[[], Tensor]], object]] = {
    "backward": lambda make_loss: ts.backward(make_loss()),
    "direct": lambda make_loss: ts.backward(make_loss(), engine="direct"),
    "traced": lambda make_loss: ts.backward(make_loss(), trace="off"),
    "policy": policed,
    "training": trained,
    "debug": lambda make_loss: ts.debug(make_loss()).run(),
    "profile": lambda make_loss: ts.profile(make_loss),
    "compare": lambda make_loss: ts.compare(make_loss, ["heap"]),
}


def notes(call: Callable[[], object]) -> list[str]:
    with pytest.raises((RuntimeError, torch.OutOfMemoryError)) as raised:
        call()
    return list(getattr(raised.value, "__notes__", ()))


def parameters_alive() -> int:
    """The bytes of all parameters there are, those that other tests have left among them."""
    alive = {
        each.data_ptr(): each.nbytes for each in gc.get_objects() if type(each) is nn.Parameter and not each.is_meta
    }
    return sum(alive.values())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The bytes by category of each error that was explained."""
    found: list[dict[str, int]] = []

    def notes(self: Any) -> Iterator[str]:
        found.append(dict(self.parts))
        return said(self)

    said = out_of_memory._Holding.notes
    monkeypatch.setattr(out_of_memory._Holding, "notes", notes)
    return found


def says_all_of(note: str, parts: dict[str, int]) -> None:
    """Assert that a note says the bytes of each category, and of all."""
    says(note, *map(size_text, parts.values()), size_text(sum(parts.values())))


@pytest.mark.parametrize("verb", VERBS)
def test_who_held_what_is_said_once(verb: str, held: list[dict[str, int]]) -> None:
    model, batch = Model(), torch.randn(512, 64)
    gc.collect()
    told = notes(lambda: VERBS[verb](lambda: model(batch)))
    (parts,) = held
    (holding,) = [note for note in told if "SoftmaxBackward0" in note]
    says_all_of(holding, parts)
    assert parts[PARAMETERS] == pytest.approx(parameters_alive(), rel=0.01)
    assert parts[SAVED] >= 3 * 512 * 64 * 4
    says(holding, "CPU", "3 × SoftmaxBackward0")
    says(told[-1], "ts.fits")


def test_the_notes_name_what_holds_most_and_what_may_help(snapshot: Snapshots) -> None:
    holding = out_of_memory._Holding.__new__(out_of_memory._Holding)
    holding.device = torch.device("cuda", 1)
    holding.parts = Counter({SAVED: 3 * 2**30, PARAMETERS: 2**30, OTHERS: 2**20})
    holding.savers = {("SoftmaxBackward0", "blocks.*"): (2**31, ["blocks.0", "blocks.1"])}
    holding.largest = "(131072,) float32, 512 KiB"
    snapshot("backward", "\n".join(holding.notes()))


def test_a_forward_that_fails_tells_gradients_and_state(held: list[dict[str, int]]) -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    for layer in model.layers:
        layer(torch.ones(2, 64)).sum().backward()
    optimizer.step()

    def failing() -> Tensor:
        return torch.empty(TOO_MUCH)

    def in_loop() -> None:
        with ts.policy("heap"):
            failing()

    weights = sum(each.nbytes for each in model.parameters())

    def in_training() -> None:
        with ts.training():
            failing()

    for call in (lambda: ts.profile(failing), lambda: ts.find_nan(failing), in_loop, in_training):
        holding, helping = notes(call)
        parts = held.pop()
        assert not held
        says_all_of(holding, parts)
        assert parts[GRADIENTS] >= weights
        assert parts[STATE] >= 2 * weights
        says(helping, "ts.fits")


def test_other_errors_get_no_such_note() -> None:
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    explain_out_of_memory(error)
    assert not hasattr(error, "__notes__")


def test_nothing_is_held_afterwards() -> None:
    model, batch = Model(), torch.randn(4, 64)
    before = len([each for each in gc.get_objects() if issubclass(type(each), Tensor)])
    notes(lambda: ts.backward(model(batch)))
    gc.collect()
    assert len([each for each in gc.get_objects() if issubclass(type(each), Tensor)]) <= before
    model.layers[0](batch).sum().backward()
    assert model.layers[0].weight.grad is not None


@pytest.mark.parametrize("verb", ["backward", "direct", "policy", "debug", "profile"])
def test_who_holds_the_largest_of_the_others_is_said(verb: str) -> None:
    model, batch = Model(), torch.randn(4, 64)
    trainer = SimpleNamespace(store=[0, {"o": torch.ones(3 * 2**21)}])
    told = notes(lambda: VERBS[verb](lambda: model(batch)))
    (holding,) = [note for note in told if "CPU" in note]
    says(holding, "(6291456,) float32", "24.0 MiB", "trainer", "trainer.store[1]['o']", "test_out_of_memory.py")
    says(holding, "test_who_holds_the_largest_of_the_others_is_said()")
    alive = ref(trainer.store.pop()["o"])
    assert alive() is None


@pytest.fixture
def small(accelerators: tuple[torch.device, torch.device]) -> Iterator[torch.device]:
    device = accelerators[1]
    if device.type == "cuda":
        pytest.skip("CUDA limits a share of its memory")
    gc.collect()  # else a tensor of the test before may be the largest
    module: Any = torch.get_device_module(device)
    module.set_memory_limit(device.index, module.memory_allocated(device.index) + 3 * 2**20)
    yield device
    module.set_memory_limit(device.index, 0)


@pytest.mark.parametrize("verb", ["backward", "direct", "policy", "debug"])
def test_a_device_with_a_limit_says_what_it_held(verb: str, small: torch.device, held: list[dict[str, int]]) -> None:
    model, batch = Model().to(small), torch.randn(512, 64, device=small)
    kept = torch.zeros(2**17, device=small)
    told = notes(lambda: VERBS[verb](lambda: model(batch)))
    (parts,) = held
    (holding,) = [note for note in told if "(131072,)" in note]
    says_all_of(holding, parts)
    assert parts[SAVED] >= 3 * 512 * 64 * 4
    says(holding, small, "(131072,) float32", "512 KiB", "kept", "test_out_of_memory.py")
    says(holding, "test_a_device_with_a_limit_says_what_it_held()")
    assert kept.sum() == 0


@pytest.mark.parametrize("verb", ["profile", "compare", "find_nan", "find_order_dependence"])
def test_the_function_that_ran_out_is_named_and_none_of_tapescope(verb: str) -> None:
    def make_loss() -> Tensor:
        most_of_it = torch.ones(2**21)
        return torch.empty(2**46) * most_of_it

    gc.collect()
    (held,) = [note for note in notes(lambda: getattr(ts, verb)(make_loss)) if "most_of_it" in note]
    says(held, "8.0 MiB", f"test_out_of_memory.py:{make_loss.__code__.co_firstlineno}")
    says_none_of(held, "traceback", "contextlib")
