"""Run by test_find_hooks.py in a separate process, which forks wherever a claim changes its state."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import tapescope as ts

Way = Callable[[Tensor], None]
retain_grad = vars(torch._C.TensorBase)["retain_grad"]


def deep(x: Tensor) -> tuple[Tensor, Tensor]:
    """Enough tasks that nodes are not asked one by one; a tensor on the way, and the loss."""
    hidden = x.sin()
    loss = hidden
    for _ in range(1200):
        loss = loss * 1.0
    return hidden, loss.sum()


def kept(retain: Way, backward: Callable[[Tensor], object]) -> Tensor | None:
    """Return the retained gradients after a backward."""
    hidden, loss = deep(torch.linspace(0, 1, 3, requires_grad=True))
    retain(hidden)
    backward(loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hidden.grad


def direct(loss: Tensor) -> object:
    return ts.backward(loss, engine="direct")


class Derived(Tensor):
    def retain_grad(self) -> None:
        super().retain_grad()


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def under_a_mode(tensor: Tensor) -> None:
    with Mode():
        tensor.retain_grad()


def as_another_class(tensor: Tensor) -> None:
    derived = tensor.as_subclass(Derived)
    derived.retain_grad()
    tensor.retain_grad()


def from_torchscript(tensor: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(scripted)(tensor)


def scripted(tensor: Tensor) -> None:
    tensor.retain_grad()


NOTED: dict[str, Way] = {
    "the method": lambda tensor: tensor.retain_grad(),
    "nothing": lambda tensor: None,
}
PAST_THE_NOTES: dict[str, Way] = {
    "the class's method": lambda tensor: Tensor.retain_grad(tensor),
    "a class derived from Tensor": as_another_class,
    "a mode": under_a_mode,
    "torch.ops": lambda tensor: torch.ops.aten.retain_grad(tensor),
    "TorchScript": from_torchscript,
}


def in_another_process(claim: Callable[[], None]) -> None:
    child = os.fork()
    if not child:
        try:
            claim()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def gradients_are_retained_as_by_pytorch(name: str, retain: Way) -> None:
    expected = kept(retain, lambda loss: loss.backward())
    for _ in range(2):
        found = kept(retain, direct)
        assert (found is None) == (expected is None), name
        assert expected is None or torch.equal(found, expected), name


def objects_are_not_looked_through_again_where_nothing_was_registered() -> None:
    with mock.patch.object(gc, "get_objects", wraps=gc.get_objects) as looks:
        for retain in NOTED.values():
            kept(retain, direct)
        kept(NOTED["nothing"], lambda loss: ts.backward(loss, trace="off"))
        assert not looks.called
        hidden, loss = deep(torch.ones(2, requires_grad=True))
        hidden.register_hook(lambda gradient: None)
        direct(loss)
        assert not looks.called, "each step may register a hook, so the nodes are asked"
        direct(deep(torch.ones(2, requires_grad=True))[1])
        assert looks.called, "no hook was registered since the last backward, so one look serves many"


def what_retained_its_gradient_before_is_known() -> None:
    hidden, loss = deep(torch.ones(2, requires_grad=True))
    other, other_loss = deep(torch.ones(2, requires_grad=True))
    hidden.retain_grad(), other.retain_grad()
    direct(loss)
    direct(other_loss)
    assert hidden.grad is not None and other.grad is not None


def a_gradient_retained_at_a_stop_is_kept() -> None:
    hidden, loss = deep(torch.ones(2, requires_grad=True))
    session = ts.debug(loss)
    session.step()
    hidden.retain_grad()
    session.run()
    assert hidden.grad is not None


def a_hook_of_a_tensor_that_comes_during_a_native_run_is_recorded() -> None:
    hidden, loss = deep(torch.ones(2, requires_grad=True))
    session = ts.debug(loss, engine="native")
    session.step()
    assert session.trace is not None
    hidden.register_hook(lambda gradient: None)
    hooks = [hook.kind for record in session.run().trace for hook in record.hooks]
    assert hooks == ["tensor"]


def torch_sees_its_own_method() -> None:
    assert Tensor.retain_grad is retain_grad
    assert torch.ones(2).retain_grad.__self__ is not None


def compiled_code_is_compiled_as_before() -> None:
    def counts() -> list[dict[str, int]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

        @torch.compile(backend="eager")
        def program(x: Tensor) -> Tensor:
            hidden = x.sin()
            hidden.retain_grad()
            return hidden.sum()

        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for _ in range(3):
                program(torch.ones(3, requires_grad=True)).backward()
        return [dict(torch._dynamo.utils.counters[name]) for name in ("frames", "graph_break", "stats")]

    noting = vars(Tensor)["retain_grad"]
    after = counts()
    with mock.patch.object(Tensor, "retain_grad", retain_grad):
        assert counts() == after
    assert vars(Tensor)["retain_grad"] is noting


in_another_process(what_retained_its_gradient_before_is_known)
gradients_are_retained_as_by_pytorch("the first look", NOTED["the method"])
for name, retain in NOTED.items():
    gradients_are_retained_as_by_pytorch(name, retain)
a_gradient_retained_at_a_stop_is_kept()
in_another_process(objects_are_not_looked_through_again_where_nothing_was_registered)
for name, retain in PAST_THE_NOTES.items():
    in_another_process(lambda name=name, retain=retain: gradients_are_retained_as_by_pytorch(name, retain))
in_another_process(a_hook_of_a_tensor_that_comes_during_a_native_run_is_recorded)
in_another_process(torch_sees_its_own_method)
in_another_process(compiled_code_is_compiled_as_before)
