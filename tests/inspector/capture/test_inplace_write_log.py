"""The writer of a saved tensor: the call and its line, for each kind of write that makes PyTorch refuse the
backward."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.inspector.capture.inplace_writes import WritesSeen, writes_between
from tapescope.inspector.torch_private.saved_variables import MODIFIED
from tapescope.inspector.torch_private.tensors import storage_of
from tapescope.tests.says import Snapshots, says, says_none_of


def base() -> Tensor:
    x = torch.ones(2, 4, requires_grad=True)
    return (x * 2).exp()  # which keeps its result


def set_element(y: Tensor) -> None:
    y[0] = 0


def add_to(y: Tensor) -> None:
    y += 1


def write_view(y: Tensor) -> None:
    y[0].mul_(2)


def write_into(y: Tensor) -> None:
    torch.add(torch.ones(2, 4), 1, out=y.detach())


def without_grad(y: Tensor) -> None:
    with torch.no_grad():
        y.mul_(2)


def relu_in_place(y: Tensor) -> None:
    nn.ReLU(inplace=True)(y)


def dropout_in_place(y: Tensor) -> None:
    nn.functional.dropout(y, 0.5, True, True)


def operator_of_ops(y: Tensor) -> None:
    torch.ops.aten.add_(y, 1)


def initialize(y: Tensor) -> None:
    nn.init.normal_(y.detach())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        return y.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda y: y.add_(1),
    "add_ ": add_to,
    "__setitem__": set_element,
    "mul_": write_view,
    "add": write_into,
    "mul_ ": lambda y: y.detach().mul_(2),
    "mul_  ": without_grad,
    "relu": relu_in_place,
    "dropout": dropout_in_place,
    "copy_": lambda y: y.detach().copy_(torch.zeros(2, 4)),
    "_foreach_mul_": lambda y: torch._foreach_mul_([y.detach()], 2.0),
    "add_  ": operator_of_ops,
    "normal_": initialize,
    "zero_": lambda y: y.detach().view(-1)[1:3].zero_(),
    "Doubled": lambda y: Doubled.apply(y),
}


def notes_of(loss: Tensor) -> str:
    with pytest.raises(RuntimeError, match=MODIFIED) as raised:
        ts.backward(loss)
    return "\n".join(getattr(raised.value, "__notes__", []))


def of_the_log(notes: str) -> str:
    """The notes with versions, whose writes are from the log; another one lists statements of the source."""
    return "\n".join(line for line in notes.splitlines() if "version" in line)


@pytest.mark.parametrize("what", WRITES)
def test_each_kind_of_write_is_named_with_its_line(what: str) -> None:
    write = WRITES[what]
    with ts.capture(every_call=True):
        y = base()
        write(y)
        loss = y.sum()
    notes = notes_of(loss)
    line = write.__code__.co_firstlineno if hasattr(write, "__code__") else 0
    found = re.search(rf"version \d.*\b{what.strip()}\b.*\btest_inplace_write_log\.py:(\d+).*version \d", notes)
    assert found is not None, notes
    assert not line or line <= int(found[1]) <= line + 2


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizers_write_is_named_where_its_step_was_called(kind: type[Any], options: dict[str, bool]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = kind(model.parameters(), 0.1, **options)
    with ts.capture(model, every_call=True):
        one, other = model(torch.ones(2, 4)).sum(), model(torch.ones(2, 4)).pow(2).sum()
        one.backward()
        optimizer.step()
    notes = notes_of(other)
    line = test_an_optimizers_write_is_named_where_its_step_was_called.__code__.co_firstlineno + 8
    assert re.search(rf"1\.weight.*version \d+.*\b\w+_\s.*\btest_inplace_write_log\.py:{line}\b", notes), notes


def test_several_writes_are_named_in_order_and_one_that_nobody_saw_leaves_them_unnamed(
    snapshot: Snapshots,
) -> None:
    with ts.capture(every_call=True):
        y = base()
        loss = y.sin().sum()
        with torch.no_grad():
            y.mul_(2)
            y[0] = 0
    notes = notes_of(loss)
    here = r".*\btest_inplace_write_log\.py:\d+\b.*"
    assert re.search(rf"version 0.*\bmul_{here}\b__setitem__{here}version 2", notes), notes
    snapshot("backward", notes)
    with ts.capture(every_call=True):
        y = base()
        loss = y.sin().sum()
    with torch.no_grad():
        y.mul_(2)
    notes = notes_of(loss)
    says(notes, "version 0", "version 1")
    says_none_of(of_the_log(notes), "mul_")
    snapshot("backward", notes)


def test_bytes_at_the_address_of_others_are_not_told_with_their_writes() -> None:
    for _ in range(50):
        with WritesSeen():
            torch.ones(8).add_(1)
        fresh = torch.ones(8)
        fresh.add_(1)
        assert (found := storage_of(fresh)) is not None
        assert writes_between(found.address, 0, 1) == []


def test_what_writes_through_data_is_no_write_that_autograd_noticed() -> None:
    with ts.capture(every_call=True):
        y = base()
        loss = y.sin().sum()
        y.data.mul_(3)
    y.detach().add_(1)
    notes = notes_of(loss)
    says(notes, "version 0", "version 1")
    says_none_of(of_the_log(notes), "mul_", "add_")


def test_a_checkpoints_forward_may_write_what_it_makes() -> None:
    def part(y: Tensor) -> Tensor:
        y = y * 2
        y += 1
        return y.tanh()

    w, judge = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    part(judge).sum().backward()
    with ts.capture(every_call=True):
        loss = checkpoint(part, w, use_reentrant=False).sum()
    ts.backward(loss)
    assert torch.equal(w.grad, judge.grad)


def test_nothing_is_kept_alive_by_having_been_written() -> None:
    import gc
    from weakref import ref

    gc.disable()
    try:
        with ts.capture(every_call=True):
            y = torch.ones(100)
            y.add_(1)
            y.data.mul_(2)
        kept = ref(y), ref(y.untyped_storage())
        del y
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()


def test_other_modes_of_the_user_see_the_calls_of_the_program_alone() -> None:
    class Counting(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    def program() -> None:
        y = torch.ones(3)
        y.add_(1)
        nn.functional.relu(y, inplace=True)
        torch.add(y, 1, out=y)

    with Counting() as plain:
        program()
    with Counting() as seen, WritesSeen():
        program()
    assert seen.seen == plain.seen
