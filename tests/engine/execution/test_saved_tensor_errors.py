"""The two commonest errors of a backward: what ties it to an earlier one, and who saved what was written since."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.execution import saved_tensor_errors as spoiled_graph
from tapescope.inspector.torch_private.saved_variables import FREED, MODIFIED
from tapescope.tests.says import Snapshots, says, says_none_of

OF_TENSOR = "float32 cpu"  # of the notes that name a tensor of an earlier graph
SECOND_TIME = FREED.partition(" (")[0]


def policed(loss: Tensor, **options: Any) -> None:
    with ts.policy("bfs"):
        loss.backward(**options)


VERBS: dict[str, Callable[..., object]] = {
    "backward": ts.backward,
    "bfs": lambda loss, **options: ts.backward(loss, policy="bfs", **options),
    "traced": lambda loss, **options: ts.backward(loss, trace="off", **options),
    "direct": lambda loss, **options: ts.backward(loss, engine="direct", **options),
    "policy": policed,
    "debug": lambda loss, **options: ts.debug(loss, **options).run(),
    "debug native": lambda loss, **options: ts.debug(loss, engine="native", **options).run(),
}


def causes(call: Callable[[], object], said: str) -> list[str]:
    """Return the notes on PyTorch's own error, without the one that names the task that raised it."""
    found: list[str] = []

    def noted(finding: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
        def find(*arguments: Any) -> Iterator[str]:
            for note in finding(*arguments):
                found.append(note)
                yield note

        return find

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_notes_on_freed", "_notes_on_modified", "begun_by_session"):
            patch.setattr(spoiled_graph, name, noted(getattr(spoiled_graph, name)))
        with pytest.raises(RuntimeError, match=said) as raised:
            call()
    notes = getattr(raised.value, "__notes__", [])
    assert [note for note in notes if note.removeprefix("tapescope: ") in found] == [
        f"tapescope: {each}" for each in found
    ]
    return found


def plain_error(loss: Tensor) -> str:
    with pytest.raises(RuntimeError) as raised:
        loss.backward()
    return str(raised.value)


@pytest.mark.parametrize("verb", VERBS)
def test_both_states_of_an_lstm_that_are_carried_on_are_named_and_no_other_tensor(
    verb: str, snapshot: Snapshots
) -> None:
    cell, x = nn.LSTMCell(4, 4), torch.randn(2, 4)

    def train(detach: bool = False) -> None:
        hidden = None
        for _ in range(3):
            with ts.capture(cell):
                h, c = cell(x, hidden)
                loss = h.pow(2).sum()
            VERBS[verb](loss)
            hidden = (h.detach(), c.detach()) if detach else (h, c)

    told = causes(train, SECOND_TIME)
    taken = [note for note in told if OF_TENSOR in note]
    assert len(taken) == 2, told
    (state,) = [note for note in taken if "hidden[0]" in note]
    (inner,) = [note for note in taken if "hidden[1]" in note]
    for note, made in ((state, "MulBackward0"), (inner, "AddBackward0")):
        says(note, "train()", "2×4 float32 cpu")
        assert re.search(rf"hidden\[\d\].*{made} \(.*test_saved_tensor_errors\.py:\d+\).*2×4", note), note
    says(told[-2], "10 tasks")
    says(told[-1], "hidden[0].detach()", "hidden[1].detach()", "retain_graph=True")
    if verb == "direct":
        snapshot("backward", "\n".join(told))
    train(detach=True)


@pytest.mark.parametrize("verb", VERBS)
def test_what_no_variable_holds_any_more_is_told_by_its_task(verb: str, snapshot: Snapshots) -> None:
    w = torch.ones(3, requires_grad=True)

    def train() -> None:
        state = torch.zeros(3)
        for _ in range(2):
            state = (state * w).tanh()
            VERBS[verb](state.exp().sum())

    told = causes(train, SECOND_TIME)
    (taken,) = [note for note in told if OF_TENSOR in note]
    assert re.search(r"MulBackward0.*TanhBackward0", taken), taken
    if not verb.startswith("debug"):  # a session names the task alone
        says(taken, "an earlier value of state")
    if verb == "direct":
        snapshot("backward", "\n".join(told))


@pytest.mark.parametrize("verb", ["traced", "direct", "debug", "debug native"])
def test_of_two_losses_over_one_part_the_tensor_where_they_meet_is_named(verb: str) -> None:
    w = torch.ones(3, requires_grad=True)

    def train() -> None:
        shared = (w * 2).exp()
        one, other = shared.sin().sum(), shared.cos().sum()
        VERBS[verb](one)
        VERBS[verb](other)

    told = causes(train, SECOND_TIME)
    (taken,) = [note for note in told if OF_TENSOR in note]
    assert re.search(r"CosBackward0.* shared .*train\(\).*ExpBackward0", taken), taken
    says(told[-1], "retain_graph=True")


@pytest.mark.parametrize("verb", VERBS)
def test_where_all_of_it_has_run_no_tensor_is_blamed(verb: str, snapshot: Snapshots) -> None:
    w = torch.ones(3, requires_grad=True)
    loss = (w * 2).exp().sum()
    kept = (w * 2).exp().sum()
    ts.backward(loss)
    said = plain_error(loss)
    told = causes(lambda: VERBS[verb](loss), re.escape(said))
    assert len(told) == 1
    says(told[0], "2 tasks", "ExpBackward0", "retain_graph=True")
    says_none_of(told[0], "detach()")
    if verb == "direct":
        snapshot("backward", told[0])
    VERBS[verb](kept, retain_graph=True)
    VERBS[verb](kept)


@pytest.mark.parametrize("verb", VERBS)
def test_packed_tensors_are_not_unpacked_for_it(verb: str) -> None:
    w = torch.ones(3, requires_grad=True)
    unpacked = 0

    def unpack(tensor: Tensor) -> Tensor:
        nonlocal unpacked
        unpacked += 1
        return tensor

    def losses() -> tuple[Tensor, Tensor]:
        with saved_tensors_hooks(lambda tensor: tensor, unpack):
            shared = w.exp()
            return shared.sin().sum(), shared.cos().sum()

    counts = []
    for run in (torch.autograd.backward, VERBS[verb]):
        one, other = losses()
        run(one)
        unpacked = 0
        causes(lambda run=run, other=other: run(other), SECOND_TIME)
        counts.append(unpacked)
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("verb", ["traced", "direct", "debug"])
def test_a_checkpoint_that_is_carried_on(verb: str) -> None:
    w = torch.ones(3, requires_grad=True)

    def train() -> None:
        state = torch.ones(3)
        for _ in range(2):
            before = state
            state = checkpoint(lambda value: (value * w).tanh(), before, use_reentrant=False)
            VERBS[verb]((state * w).sum())

    told = causes(train, SECOND_TIME)
    (taken,) = [note for note in told if OF_TENSOR in note]
    says(taken, "before", "train()", "TanhBackward0")


@pytest.mark.parametrize("verb", VERBS)
def test_a_gan_whose_discriminator_has_stepped_before_the_generators_backward(verb: str, snapshot: Snapshots) -> None:
    made, judge = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(judge.parameters(), foreach=True)
    with ts.capture(judge):
        fake = made(torch.randn(8, 4))
        g_loss = -judge(fake).mean()
        d_loss = judge(fake.detach()).mean()
    VERBS[verb](d_loss)
    version = judge[2].weight._version
    optimizer.step()
    told = causes(lambda: VERBS[verb](g_loss), MODIFIED)
    saved = [note for note in told if "mat2" in note]
    assert [re.findall(r"\b\d\.weight", note) for note in saved] == [["2.weight"], ["0.weight"]]
    says(saved[0], f"version {version}", f"version {judge[2].weight._version}", "test_saved_tensor_errors.py")
    if verb == "direct":
        snapshot("backward", "\n".join(told))


@pytest.mark.parametrize("verb", VERBS)
def test_a_result_that_was_written_is_named_with_the_task_that_saved_it(verb: str, snapshot: Snapshots) -> None:
    w = torch.ones(3, requires_grad=True)

    def train() -> None:
        y = (w * 2).exp()
        loss = y.sin().sum()
        with torch.no_grad():
            y.mul_(2)
            y[0] = 0
        VERBS[verb](loss)

    told = causes(train, MODIFIED)
    assert len(told) == 2, "the sine's and the exponential's"
    says(told[0], "SinBackward0", "self", "version 0", "version 2")
    says(told[1], "ExpBackward0", "result", "version 0", "version 2")
    for note in told:
        (says_none_of if verb == "debug native" else says)(note, "train()")  # whose tasks run in another thread
    if verb == "direct":
        snapshot("backward", "\n".join(told))


def test_of_a_functions_tensors_the_written_one_is_named() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
            ctx.save_for_backward(one, other)
            return one * other

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            one, other = ctx.saved_tensors
            return gradient * other, gradient * one

    w, other = torch.ones(3, requires_grad=True), torch.ones(3)
    loss = Product.apply(w, other).sum()
    other += 1
    told = causes(lambda: ts.backward(loss), MODIFIED)
    says(told[0], "ProductBackward", "other", "test_of_a_functions_tensors_the_written_one_is_named()")


def test_other_errors_get_no_such_note() -> None:
    w = torch.ones(3, requires_grad=True)
    inner = w.exp().sum()
    inner.backward()
    y = (w * 2).exp()
    y.register_hook(lambda gradient: inner.backward())
    assert causes(lambda: ts.backward(y.sum(), trace="off"), SECOND_TIME) == [], "of a graph that is not this one"

    def failing(gradient: Tensor) -> None:
        raise RuntimeError("no second time")

    y = (w * 2).exp()
    y.register_hook(failing)
    for engine in ("native", "direct"):
        assert causes(lambda engine=engine: ts.backward(y.sum(), engine=engine), "no second time") == []
