"""The names of a loop's modules, and the columns that their parameters fill."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from weakref import ReferenceType, ref

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from ...inspector.torch_private.optimizer_steps import parameters_of
from ...inspector.torch_private.sequence_numbers import UNNUMBERED, number_of

_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)


class _Kept:
    """A weak reference to a module. A container can be a temporary, as in `nn.ModuleList([a, b])` written in the call:
    when it is freed, a new module with its living children replaces it.
    """

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
    """The models of a loop: those passed, or those seen. They are held weakly.

    Names are those of the single model. If there are several, they begin with its class: `Generator.net.0`, and
    `Generator_2` for the second model of a class.
    """

    def __init__(self) -> None:
        self._models: list[tuple[str, _Kept]] = []

    def add(self, module: nn.Module) -> None:
        """Add a model, unless it is a submodule of a known one. Known models that are its submodules are removed."""
        known = [each for _, each in self]
        if any(module is each for each in known):  # in nearly every call
            return
        if any(module is each for model in known for each in model.modules()):
            return
        inside = {id(each) for each in module.modules()}
        self._models = [(name, kept) for name, kept in self._models if id(kept()) not in inside]
        title = type(module).__name__
        taken = {name for name, _ in self._models}
        number = next(i for i in range(1, len(taken) + 2) if _numbered(title, i) not in taken)
        self._models.append((_numbered(title, number), _Kept(module)))

    def __iter__(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the living models with their names."""
        return ((name, model) for name, kept in self._models if (model := kept()) is not None)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Return all modules by path; the path of a single model is empty."""
        found = list(self)
        for name, model in found:
            for path, module in model.named_modules():
                yield _path(name, path, len(found)), module

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return all parameters by name, shared ones once."""
        found = list(self)
        for name, model in found:
            for path, parameter in model.named_parameters():
                yield _path(name, path, len(found)), parameter

    def name_of(self, sought: nn.Module | Tensor) -> str | None:
        """Return the path of a module, or the name of a parameter or buffer; None if it is not in the models."""
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


class ModuleColumns:
    """Assigns a column to each module with parameters, and one to each optimizer's parameters outside all modules.

    Attributes:
        names: the name of each column: the module's path, or for a parameter of the outermost module the parameter's
            name.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._columns: dict[int, tuple[ReferenceType[Tensor], int]] = {}  # by the parameter's id
        self._order: dict[int, int] = {}  # by column
        self._sorted: list[int] = []

    def meet(self, models: WatchedModels, optimizers: Iterable[Optimizer]) -> None:
        """Add new parameters, and remove those that were freed."""
        self._columns = {key: known for key, known in self._columns.items() if known[0]() is not None}
        for name, parameter in models.parameters():
            if id(parameter) not in self._columns:
                self._add(name.rpartition(".")[0] or name, parameter)
        for optimizer in optimizers:
            for each in parameters_of(optimizer):
                if id(each) not in self._columns:
                    self._add(f"others of {type(optimizer).__name__}", each)

    def _add(self, name: str, parameter: Tensor) -> None:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        self._columns[id(parameter)] = ref(parameter), self._numbers[name]

    def of(self, parameters: Sequence[Tensor]) -> list[int]:
        """Return the column of each parameter; all must be known."""
        return [self._columns[id(each)][1] for each in parameters]

    def knows(self, parameters: Iterable[Tensor]) -> bool:
        return all(map(self._columns.__contains__, map(id, parameters)))

    @property
    def known(self) -> Collection[tuple[ReferenceType[Tensor], int]]:
        """Return all known parameters with their columns."""
        return self._columns.values()

    def learn_order(self, roots: Iterable[Tensor]) -> None:
        """Find the time in the backward at which each column's gradients are complete: when the last node that adds to
        them runs.
        """
        for column, number in _last_users(roots, {key: column for key, (_, column) in self._columns.items()}).items():
            self._order.setdefault(column, number)
        self._sorted = []

    @property
    def in_backward_order(self) -> list[int]:
        """The columns in the order in which the backward completes them. Columns not seen in a backward follow, last
        one first.
        """
        if len(self._sorted) < len(self.names):
            known = sorted(self._order, key=lambda column: (-self._order[column], -column))
            self._sorted = known + [each for each in reversed(range(len(self.names))) if each not in self._order]
        return self._sorted


def _last_users(roots: Iterable[Tensor], columns: dict[int, int]) -> dict[int, int]:
    """Return, for each column, the lowest sequence number of a node that passes a gradient to its parameters."""
    found: dict[int, int] = {}
    stack: list[Node] = [each.grad_fn for each in roots if each.grad_fn is not None]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        number = number_of(node)
        for following, _ in node.next_functions:
            if following is None:
                continue
            variable = getattr(following, "variable", None)
            if variable is not None and number_of(following) == UNNUMBERED:
                column = columns.get(id(variable))
                if column is not None:
                    found[column] = min(number, found.get(column, number))
            elif following not in seen:
                seen.add(following)
                stack.append(following)
    return found
