"""Each verb explains PyTorch's errors, in the forward and in the backward, once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import says

MODEL = nn.Linear(3, 3)


def fails_in_forward() -> Tensor:
    scale = torch.ones(3, requires_grad=True)
    scale.add_(1)
    return MODEL(scale).sum()


def fails_in_backward() -> Tensor:
    gate = MODEL(torch.ones(2, 3)).sigmoid()
    gate.mul_(2)
    return gate.sum()


def fails_in_hook() -> Tensor:
    net = nn.Sequential(MODEL, nn.ReLU(inplace=True))
    with net[0].register_full_backward_hook(lambda module, given, taken: None):
        return net(torch.ones(2, 3)).sum()


def line_of(make_loss: Callable[[], Tensor], after: int = 2) -> str:
    return f"test_verbs.py:{make_loss.__code__.co_firstlineno + after}"


def under_policy(make_loss: Callable[[], Tensor]) -> None:
    with ts.policy("bfs"):
        make_loss().backward()


def in_training(make_loss: Callable[[], Tensor]) -> None:
    with ts.training(MODEL):
        make_loss().backward()


def in_capture(make_loss: Callable[[], Tensor]) -> None:
    with ts.capture():
        make_loss().backward()


def debugged(make_loss: Callable[[], Tensor], engine: str) -> None:
    with ts.capture():
        loss = make_loss()
    session = ts.debug(loss, engine=engine)
    try:
        session.run()
    finally:
        session.close()


VERBS: dict[str, Callable[[Callable[[], Tensor]], object]] = {
    "capture": in_capture,
    "training": in_training,
    "policy": under_policy,
    "profile": ts.profile,
    "profile, direct": lambda make_loss: ts.profile(make_loss, engine="direct"),
    "profile_step": lambda make_loss: ts.profile_step(lambda: make_loss().backward()),
    "find_nan": ts.find_nan,
    "find_unused": lambda make_loss: ts.find_unused(make_loss, MODEL),
    "compare": lambda make_loss: ts.compare(make_loss, policies=["bfs"]),
    "debug, direct": lambda make_loss: debugged(make_loss, "direct"),
    "debug, native": lambda make_loss: debugged(make_loss, "native"),
}


def notes_of(verb: str, make_loss: Callable[[], Tensor]) -> list[str]:
    with pytest.raises(RuntimeError) as raised:
        VERBS[verb](make_loss)
    return [each for each in raised.value.__notes__ if "what_went_wrong.md" in each]


@pytest.mark.parametrize("verb", VERBS)
def test_an_error_of_the_forward(verb: str) -> None:
    (note,) = notes_of(verb, fails_in_forward)
    says(note, "scale", line_of(fails_in_forward), "torch.no_grad()")


@pytest.mark.parametrize("verb", VERBS)
def test_an_error_of_the_backward(verb: str) -> None:
    (note,) = notes_of(verb, fails_in_backward)
    says(note, "SigmoidBackward0", line_of(fails_in_backward), "clone()")


@pytest.mark.parametrize("verb", VERBS)
def test_an_error_of_a_hook(verb: str) -> None:
    (note,) = notes_of(verb, fails_in_hook)
    says(note, "0 (Linear)", "1 (ReLU)", line_of(fails_in_hook, 3), "inplace=False")


def test_an_explained_error_keeps_nothing_of_the_loop_alive() -> None:
    def train() -> list[ref[Tensor]]:
        seen = []
        for _ in range(2):
            gate = MODEL(torch.ones(2, 3)).sigmoid()
            gate.mul_(2)
            seen.append(ref(gate))
            with suppress(RuntimeError), ts.capture():
                gate.sum().backward()
            del gate
            assert seen[-1]() is None
        return seen

    assert len(train()) == 2
