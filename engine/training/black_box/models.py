"""The models of a loop: their parameters and buffers by name, and the buffers as they were before a forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ....inspector.torch_private.tensors import beneath_transforms, version_of
from .batch import why_not_kept

_LARGE = 2**16  # bytes of a buffer that is copied only where its version has moved: masks, tables of positions
_ANEW = 64  # after so many forwards modules are walked again, should there be others


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's module, of one that torch has wrapped."""
    while True:
        if isinstance(module, DataParallel | DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):  # torch.compile's
            module = inner
        else:
            return module


def named(modules: Sequence[nn.Module], of: str) -> Iterator[tuple[str, Any]]:
    """Parameters, buffers or modules ("parameters", "buffers", "modules") by name.

    Of several models theirs come first, `Generator.net.0.weight`, and `Generator_2...` of a second one of a class.
    """
    titles: list[str] = []
    for module in modules:
        title, number = type(module).__name__, 1
        while title in titles:
            number += 1
            title = f"{type(module).__name__}_{number}"
        titles.append(title)
    for title, module in zip(titles, modules, strict=True):
        for name, each in getattr(module, f"named_{of}")():
            yield name if len(modules) == 1 else f"{title}.{name}".rstrip("."), each


class Models:
    """Those that are called in a loop. They live no longer for being known here.

    Attributes:
        parameters: by name; of what is called for the first time they are added.
    """

    def __init__(self, modules: Sequence[nn.Module] = ()) -> None:
        self.parameters: list[tuple[str, nn.Parameter]] = []
        self._models: list[ref[nn.Module]] = []
        self._inside: WeakSet[nn.Module] = WeakSet()  # all their modules, and those without parameters
        self._slots: list[tuple[str, dict[str, Tensor | None], str, bool]] = []  # of each buffer where it is bound
        self._age = 0
        self._are_exchanged = False  # parameters, for the length of a torch.func.functional_call, as they were walked
        for module in modules:
            self.add(module)

    @property
    def modules(self) -> list[nn.Module]:
        """They, none of them within another one."""
        return [module for kept in self._models if (module := kept()) is not None]

    def add(self, module: nn.Module) -> bool:
        """Adds what is called, unless it is known or has neither parameters nor buffers. Says whether it was new."""
        module = unwrapped(module)
        if module in self._inside:
            return False
        if not has_tensors(module):
            self._inside.add(module)  # a loss function, say
            return False
        inside = {id(each) for each in module.modules()}
        self._models = [ref(each, self._gone) for each in self.modules if id(each) not in inside]
        self._models.append(ref(module, self._gone))
        self.walk()
        return True

    def _gone(self, dead: object) -> None:
        self.walk()

    def walk(self) -> None:
        """Collect parameters and buffers again."""
        self._age = 0
        modules = self.modules
        self._inside.update(each for module in modules for each in module.modules())
        self.parameters = list(named(modules, "parameters"))
        self._are_exchanged = not all(isinstance(each, nn.Parameter) for _, each in self.parameters)
        self._slots = []
        seen: set[int] = set()
        for path, owner in named(modules, "modules"):
            for name, buffer in owner._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    told = not isinstance(owner, _NormBase)
                    self._slots.append((f"{path}.{name}" if path else name, owner._buffers, name, told))

    def grow_older(self) -> None:
        """A forward begins."""
        self._age += 1
        if self._age > _ANEW:
            self.walk()

    def backward_begins(self) -> None:
        """Collect parameters again if some were replaced."""
        if self._are_exchanged:
            self.walk()

    @property
    def gradients(self) -> list[Tensor]:
        """Return the models that are alive."""
        return [grad for _, each in self.parameters if (grad := each.grad) is not None]

    def buffers(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Each as it is now, and whether its version tells of all that is written into it: a norm's does not."""
        for name, bound, own, told in self._slots:
            buffer = bound.get(own)
            if buffer is not None:
                yield name, beneath_transforms(buffer), told

    def left_out(self) -> list[str]:
        """Return the tensors that cannot be written as bytes, with the reasons."""
        tensors = [*self.parameters, *((name, each) for name, each, _ in self.buffers())]
        return [f"{name} ({why})" for name, each in tensors if (why := why_not_kept(each))]


def has_tensors(module: nn.Module) -> bool:
    """Return whether a module has parameters or buffers."""
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


class BufferCopies:
    """Copies of buffers, which are written again and again."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # of large ones identity and version as they were copied

    def take(self, buffers: Iterator[tuple[str, Tensor, bool]], known: bool = False) -> None:
        """Copies all that may have changed.

        Args:
            known: those that are copied already stay as they are; only others are.
        """
        ours: list[Tensor] = []
        theirs: list[Tensor] = []
        for name, buffer, told in buffers:
            copy = self.by_name.get(name)
            if copy is not None and known:
                continue
            if copy is None and why_not_kept(buffer):
                continue
            if told and buffer.nbytes > _LARGE:
                at = id(buffer), version_of(buffer)
                if self._seen.get(name) == at and copy is not None:
                    continue
                self._seen[name] = at
            if copy is None or copy.shape != buffer.shape or copy.dtype != buffer.dtype:
                self.by_name[name] = buffer.detach().clone()
            else:
                ours.append(copy)
                theirs.append(buffer.detach())
        if ours:
            torch._foreach_copy_(ours, theirs)
