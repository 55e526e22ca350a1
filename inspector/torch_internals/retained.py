"""Which tensors have been told to retain their gradient (`Tensor.retain_grad`): torch lists them nowhere."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from .compiled import keep_compiler_out

_retain_grad: Any = vars(torch._C.TensorBase)["retain_grad"]


class _Noting:
    """Stands as `retain_grad` in torch.Tensor's class, gives torch's own method, and notes of which tensor.

    A function in its place would be one that torch.compile looks into, and that modes get to see. This is none:
    `torch.Tensor.retain_grad` is torch's own as before. Who takes that from the class may call it without being noted,
    but for the tables of torch itself, which only compare it.

    Attributes:
        asked: how often a tensor's method has been taken.
        tensors: those tensors, by `id`.
        taken_from_class: whether somebody has the method of all tensors.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.tensors: dict[int, ref[Tensor]] = {}
        self.taken_from_class = False
        self._counter = itertools.count(1)  # counts without a lock

    def __get__(self, tensor: Tensor | None, kind: type) -> Callable[..., None]:
        if tensor is None:
            taker = str(sys._getframe(1).f_globals.get("__name__"))
            self.taken_from_class |= not taker.startswith(_TABLES)
        else:
            self.note(tensor)
            self.asked = next(self._counter)
        method: Callable[..., None] = _retain_grad.__get__(tensor, kind)
        return method

    def note(self, tensor: Tensor) -> None:
        number = id(tensor)
        self.tensors[number] = ref(tensor, partial(self._forget, number))

    def _forget(self, number: int, dead: ref[Tensor]) -> None:
        if self.tensors.get(number) is dead:
            del self.tensors[number]


for _called_in_compiled_code in (_Noting.__get__, _Noting._forget):
    keep_compiler_out(_called_in_compiled_code)

_TABLES = "torch._dynamo.", "torch.overrides"

noting = _Noting()
"""Of it `asked` says whether anybody has been told since one last looked."""

_complete = False


def note_retained() -> None:
    """From now on it is noted who is told to retain a gradient."""
    if "retain_grad" not in vars(Tensor):
        Tensor.retain_grad = noting  # type: ignore[method-assign, assignment]


def retained_before(tensors: Iterable[Tensor]) -> None:
    """These retain their gradient; all others that do, have been told since `note_retained`."""
    global _complete
    for tensor in tensors:
        noting.note(tensor)
    _complete = True


def retaining() -> list[Tensor] | None:
    """The tensors of this process that retain their gradient. None where that can't be told: somebody may have called
    what does it from C++, as TorchScript and `torch.ops` do, or has put something of his own in its place.

    Known limitation: TorchScript that was loaded from a file and retains gradients inside is not noticed.
    """
    unseen = (
        not _complete
        or vars(Tensor).get("retain_grad") is not noting
        or noting.taken_from_class
        or "retain_grad" in vars(torch.ops.aten)
        or torch.jit._state._python_cu.get_functions()  # type: ignore[func-returns-value]
        or torch.jit._recursive.concrete_type_store.type_store
    )
    if unseen:
        return None
    tensors = [each() for each in tuple(noting.tensors.values())] if noting.tensors else []
    return [tensor for tensor in tensors if tensor is not None and tensor.retains_grad]
