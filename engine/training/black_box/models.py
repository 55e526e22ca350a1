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

_LARGE = 2**16  # bytes; a larger buffer (a mask, a table of positions) is copied only if its version has changed
_ANEW = 64  # forwards after which the modules are walked again, since the user may have added some


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside torch's wrappers (DataParallel, DistributedDataParallel, torch.compile)."""
    while True:
        if isinstance(module, DataParallel | DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):  # torch.compile's
            module = inner
        else:
            return module


def named(modules: Sequence[nn.Module], of: str) -> Iterator[tuple[str, Any]]:
    """Yield the parameters, buffers or modules (`of` is "parameters", "buffers" or "modules") with their names.

    If there are several models, names begin with the model's class: `Generator.net.0.weight`, and `Generator_2...` for
    the second model of a class.
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
    """The models that a loop calls, held weakly.

    Attributes:
        parameters: the parameters with their names. Those of a new model are added at its first call.
    """

    def __init__(self, modules: Sequence[nn.Module] = ()) -> None:
        self.parameters: list[tuple[str, nn.Parameter]] = []
        self._models: list[ref[nn.Module]] = []
        self._inside: WeakSet[nn.Module] = WeakSet()  # all their submodules, and modules without parameters
        self._slots: list[tuple[str, dict[str, Tensor | None], str, bool]] = []  # see `walk`
        self._age = 0
        self._are_exchanged = False  # the walk was inside torch.func.functional_call, which swaps parameters
        for module in modules:
            self.add(module)

    @property
    def modules(self) -> list[nn.Module]:
        """The models that are alive; none is a submodule of another."""
        return [module for kept in self._models if (module := kept()) is not None]

    def add(self, module: nn.Module) -> bool:
        """Add a called module, unless it is known or has no parameters and buffers. Return whether it was added."""
        if module in self._inside or (module := unwrapped(module)) in self._inside:
            return False
        if not has_tensors(module):
            self._inside.add(module)  # such as a loss function
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
                    is_versioned = not isinstance(owner, _NormBase)
                    self._slots.append((f"{path}.{name}" if path else name, owner._buffers, name, is_versioned))

    def note_forward(self) -> None:
        """Note that a forward begins; after many of them, walk the modules again."""
        self._age += 1
        if self._age > _ANEW:
            self.walk()

    def backward_begins(self) -> None:
        """Collect parameters again if some were replaced."""
        if self._are_exchanged:
            self.walk()

    @property
    def gradients(self) -> list[Tensor]:
        """The existing `.grad`s of the parameters."""
        return [grad for _, each in self.parameters if (grad := each.grad) is not None]

    def buffers(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Yield each buffer with its name, and whether its version counts all writes, as not in torch's batch norms."""
        for name, bound, own, is_versioned in self._slots:
            buffer = bound.get(own)
            if buffer is not None:
                yield name, beneath_transforms(buffer), is_versioned

    def left_out(self) -> list[str]:
        """Return the tensors that cannot be written as bytes, with the reasons."""
        tensors = [*self.parameters, *((name, each) for name, each, _ in self.buffers())]
        return [f"{name} ({why})" for name, each in tensors if (why := why_not_kept(each))]


def has_tensors(module: nn.Module) -> bool:
    """Return whether a module has parameters or buffers."""
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


class BufferCopies:
    """Copies of buffers, updated in place for each micro-batch."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # id and version of large buffers when they were copied

    def take(self, buffers: Iterator[tuple[str, Tensor, bool]], known: bool = False) -> None:
        """Copy the buffers that may have changed.

        Args:
            known: if True, leave existing copies unchanged, and copy only new buffers.
        """
        ours: list[Tensor] = []
        theirs: list[Tensor] = []
        for name, buffer, is_versioned in buffers:
            copy = self.by_name.get(name)
            if copy is not None and known:
                continue
            if copy is None and why_not_kept(buffer):
                continue
            if is_versioned and buffer.nbytes > _LARGE:
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
