"""What the modules and parameters of a training loop are called."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import ref

from torch import Tensor, nn

_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)


class _Kept:
    """A module that is referred to weakly. A container may be written in the very call, and die with it: then another
    one with the same parts, those that are alive, stands for it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = ref(module)
        children = module.named_children() if isinstance(module, _CONTAINERS) else ()
        self._parts = [(name, _Kept(child)) for name, child in children]

    def __call__(self) -> nn.Module | None:
        module = self._module()
        parts = (
            [] if module is not None else [(name, part) for name, each in self._parts if (part := each()) is not None]
        )
        if not parts:
            return module
        module = nn.Module()
        for name, part in parts:
            module.add_module(name, part)
        return module


class WatchedModels:
    """The models of a loop, those given or those seen; they live no longer for being known here.

    Names are those of the model. Where there are several: `Generator.net.0`, and `Generator_2` for a second of a class.
    """

    def __init__(self) -> None:
        self._models: list[tuple[str, _Kept]] = []

    def add(self, module: nn.Module) -> None:
        """One more, unless it is a part of one that is there. Those that are parts of it stand there no more."""
        known = [each for _, each in self]
        if any(module is each for model in known for each in model.modules()):
            return
        inside = {id(each) for each in module.modules()}
        self._models = [(name, kept) for name, kept in self._models if id(kept()) not in inside]
        title = type(module).__name__
        taken = {name for name, _ in self._models}
        number = next(i for i in range(1, len(taken) + 2) if _numbered(title, i) not in taken)
        self._models.append((_numbered(title, number), _Kept(module)))

    def __iter__(self) -> Iterator[tuple[str, nn.Module]]:
        """The models that are alive, with what each is called among several."""
        return ((name, model) for name, kept in self._models if (model := kept()) is not None)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """All modules by their paths; of a single model its own is empty."""
        found = list(self)
        for name, model in found:
            for path, module in model.named_modules():
                yield _path(name, path, len(found)), module

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters by their names, shared ones once."""
        found = list(self)
        for name, model in found:
            for path, parameter in model.named_parameters():
                yield _path(name, path, len(found)), parameter

    def name_of(self, sought: nn.Module | Tensor) -> str | None:
        """The path of a module, or the name of a parameter or buffer."""
        found = list(self)
        for name, model in found:
            parts = model.named_modules() if isinstance(sought, nn.Module) else _tensors_of(model)
            for path, each in parts:
                if each is sought:
                    return _path(name, path, len(found))
        return None


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _numbered(title: str, number: int) -> str:
    return title if number == 1 else f"{title}_{number}"


def _path(name: str, path: str, models: int) -> str:
    return path if models == 1 else f"{name}.{path}" if path else name
