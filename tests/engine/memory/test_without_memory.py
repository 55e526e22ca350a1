"""Tensors without memory, on meta or fake: a backward of theirs is predicted as if they existed, and not measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import tapescope as ts
from tapescope.tests.says import raises, says

MakeLoss = Callable[[], Tensor]


class Attention(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        many, long, width = x.shape
        query, key, value = self.mix(self.norm(x)).view(many, long, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return x + self.out(mixed.transpose(1, 2).reshape(many, long, width))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.blocks = nn.Sequential(Attention(), Attention())

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def real() -> MakeLoss:
    model, tokens = Language(), torch.randint(0, 50, (4, 16))
    return lambda: model(tokens)


def on_meta() -> MakeLoss:
    with torch.device("meta"):
        model, tokens = Language(), torch.zeros(4, 16, dtype=torch.long)
    return lambda: model(tokens)


def fake() -> MakeLoss:
    mode = FakeTensorMode()
    with mode:
        model, tokens = Language(), torch.zeros(4, 16, dtype=torch.long)

    def make_loss() -> Tensor:
        with mode:
            return model(tokens)

    return make_loss


@pytest.mark.parametrize("make", [on_meta, fake])
@pytest.mark.parametrize("policy", ["heap", "bfs"])
def test_their_backward_is_predicted_as_if_they_existed(make: Callable[[], MakeLoss], policy: str) -> None:
    measured = ts.profile(real(), policy).timeline
    assert measured is not None
    make_loss = make()  # holds the tokens, which else only nodes would
    loss = make_loss()
    drawn = ts.graph(loss)
    found = ts.simulate(drawn, policy)
    assert (found.start_bytes, found.peak_bytes) == (measured.start_bytes, measured.peak_bytes)
    assert found.device == ("meta" if make is on_meta else "cpu")
    assert bool(found.estimates) is (make is on_meta)  # what kernels take for themselves is asked of the CPU alone
    assert ts.plan_order(loss)[policy].peak_bytes == measured.peak_bytes
    assert found.basis == "dry run"
    says(ts.peak_report(found), "dry run")
    assert not any(leaf.grad is not None for leaf in drawn.leaves.values())


def test_what_variables_hold_of_fake_tensors_is_known_and_views_in_between_are_nobodys() -> None:
    with FakeTensorMode():
        x = torch.ones(4, 4).requires_grad_()
        held, passing = x.sin().view(16), x.cos().view(2, 8).view(16)
        loss = (held * passing).sum()
        del passing
    drawn = ts.graph(loss)
    (product,) = (task.id for task in drawn.tasks if task.name == "MulBackward0")
    assert {each.slot: each.held for each in drawn.saved if each.task == product} == {"self": True, "other": False}
    assert held.shape == (16,)


@pytest.mark.parametrize(
    "verb",
    [
        ts.profile,
        lambda make_loss: ts.profile(make_loss, engine="direct"),
        lambda make_loss: ts.backward(make_loss(), memory=True),
        ts.compare,
        ts.find_nan,
        ts.advise,
    ],
)
@pytest.mark.parametrize(("make", "fact"), [(on_meta, "meta"), (fake, "FakeTensorMode")])
def test_what_measures_or_looks_at_numbers_refuses_them(
    make: Callable[[], MakeLoss], fact: str, verb: Callable[[MakeLoss], object]
) -> None:
    with raises(ValueError, fact, "ts.simulate(ts.graph(loss))"):
        verb(make())


def test_symbolic_sizes_are_refused_by_name() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.randn(6, 4, requires_grad=True))
    with raises(NotImplementedError, "MulBackward0"):
        ts.graph((x * 3).tanh().sum())


def test_predictions_of_fakes_under_a_capture_give_no_warning_of_torchs() -> None:
    torch.set_warn_always(True)  # torch says it once a process
    try:
        with FakeTensorMode(), warnings.catch_warnings():
            warnings.simplefilter("error")
            model = nn.Linear(4, 4)
            with ts.capture(every_call=True):
                loss = model(torch.randn(2, 4)).sum()
            assert ts.simulate(ts.graph(loss)).peak_bytes > 0
    finally:
        torch.set_warn_always(False)
