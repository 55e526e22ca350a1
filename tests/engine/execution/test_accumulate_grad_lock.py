"""While a leaf gets its .grad no lock is held and no code of the user's is called, as in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tapescope as ts


def inner() -> Tensor:
    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        loss = (x * 2).sum()
    ts.backward(loss, engine="direct")
    assert x.grad is not None
    return x.grad


class RunsABackward(TorchFunctionMode):
    busy = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if not self.busy and getattr(function, "__name__", "") in ("__get__", "__set__"):
            self.busy = True
            inner()
            self.busy = False
        return found


class RunsADispatchedBackward(TorchDispatchMode):
    busy = False

    def __init__(self) -> None:
        super().__init__()
        self.loss = (torch.ones(2, requires_grad=True) * 2).sum()  # below autograd none could be made

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.busy and "detach" in str(operator):
            self.busy = True
            ts.backward(self.loss, engine="direct")
            self.busy = False
        return operator(*args, **(kwargs or {}))


class Leaf(Tensor):
    """Its own functions run a backward whenever its .grad is looked at."""

    busy = False

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("__get__", "__set__") and not cls.busy:
            cls.busy = True
            inner()
            cls.busy = False
        return super().__torch_function__(function, types, args, kwargs or {})


def finishes(work: Any) -> bool:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    if raised:
        raise raised[0]
    return not thread.is_alive()


@pytest.mark.parametrize("mode", [RunsABackward, RunsADispatchedBackward])
def test_a_mode_may_run_a_backward_as_a_leaf_gets_its_grad(mode: Any) -> None:
    weight, under = torch.ones(2, requires_grad=True), mode()

    def run() -> None:
        loss = (weight * 3).sum()
        with under:
            ts.backward(loss, engine="direct")

    assert finishes(run)
    assert weight.grad is not None and weight.grad.tolist() == [3, 3]


def test_so_may_a_leaf_of_a_subclass() -> None:
    weight = torch.ones(2).as_subclass(Leaf).requires_grad_()

    def run() -> None:
        loss = (weight * 3).sum().as_subclass(Tensor)
        ts.backward(loss, engine="direct")

    assert finishes(run)
    with torch._C.DisableTorchFunction():
        assert weight.grad is not None and weight.grad.tolist() == [3, 3]
