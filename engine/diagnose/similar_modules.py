"""Finds modules of one class that a forward called from the same place."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.utils.parametrize import type_before_parametrizations

from ...inspector.graph.graph import Graph
from ...inspector.graph.matrix_products import products_of
from ...inspector.graph.phrases import folded, joined, pattern
from ...inspector.torch_private.call_watchers import watching_modules
from ...inspector.torch_private.sequence_numbers import sequence_nr
from ...inspector.torch_private.thread_state import functorch_is_active


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a module in the first forward. `index` counts the calls of the same module."""

    module: nn.Module
    index: int
    parent: _Call | None
    start: int
    end: int = -1

    @property
    def root(self) -> _Call:
        call = self
        while call.parent is not None:
            call = call.parent
        return call


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Modules of one class called from the same place, and similar modules elsewhere."""

    calls: tuple[_Call, ...]
    paths: tuple[str, ...]
    root: nn.Module | None
    more: tuple[str, ...]


class CallLog:
    """The module calls of a forward, in order."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record the calls that this thread makes in this context. No tensor is kept."""
        thread, counts = get_ident(), Counter[nn.Module]()
        running: list[_Call] = []

        def entered(module: nn.Module, arguments: object) -> None:
            if is_dynamo_compiling() or get_ident() != thread or functorch_is_active():
                return
            call = _Call(module, counts[module], running[-1] if running else None, sequence_nr())
            counts[module] += 1
            running.append(call)
            self.calls.append(call)

        def left(module: nn.Module, arguments: object, result: object) -> None:
            if is_dynamo_compiling() or get_ident() != thread or functorch_is_active():
                return
            while running:
                call = running.pop()
                call.end = sequence_nr()
                if call.module is module:
                    return

        with watching_modules(entered, left):
            yield


def families_of(log: CallLog, drawn: Graph, model: nn.Module | None) -> Iterator[Family]:
    """Yield possible ensembles, outer ones first. Families that differ only in their place are merged into one."""
    multiplying = sorted(drawn.tasks[task].sequence_nr for task in products_of(drawn))
    names: dict[nn.Module, dict[nn.Module, str]] = {}  # by root

    def root_of(call: _Call) -> nn.Module:
        return model if model is not None else call.root.module

    def path_of(call: _Call) -> str:
        """Return the module's path below the model or the outermost called module; "" for that itself."""
        root = root_of(call)
        if root not in names:
            names[root] = {module: name for name, module in root.named_modules()}
        return names[root].get(call.module, "")

    siblings: dict[Hashable, list[_Call]] = {}
    for call in log.calls:
        first = bisect_left(multiplying, call.start)
        if first == len(multiplying) or multiplying[first] >= call.end:
            continue
        # The children of a Sequential form a chain, so each one depends on the one before.
        if call.parent is None or not isinstance(call.parent.module, nn.Sequential):
            path = path_of(call)
            container = path.rpartition(".")[0] if path else None
            siblings.setdefault((call.parent, container, _class_of(call.module)), []).append(call)
    alike: dict[Hashable, list[tuple[list[_Call], tuple[str, ...]]]] = {}
    for calls in siblings.values():
        if len({call.module for call in calls}) > 1:
            paths = tuple(map(path_of, calls))
            paths = paths if all(paths) else ()
            key = tuple(map(pattern, paths)) or calls[0], tuple(structure(call.module) for call in calls)
            alike.setdefault(key, []).append((calls, paths))
    for (calls, paths), *others in alike.values():
        root = None if not paths else root_of(calls[0])
        more = tuple(dict.fromkeys(folded_paths(each) for _, each in others if each != paths))
        yield Family(tuple(calls), paths, root, more)


def folded_paths(paths: Iterable[str]) -> str:
    """Fold paths into a pattern such as `blocks.3.*`, or into a list if they have no common form."""
    alike: dict[str, list[str]] = {}
    for path in paths:
        alike.setdefault(pattern(path), []).append(path)
    return joined([folded(each) for each in alike.values()])


def _class_of(module: nn.Module) -> type[nn.Module]:
    """Return a module's class; for a parametrized module, whose class is unique, return the original class."""
    kind: type[nn.Module] = type_before_parametrizations(module)
    return kind


def structure(module: nn.Module) -> Hashable:
    """Return a key that is equal for modules that can run with each other's parameters and buffers."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return (
        tuple((name, _class_of(each), each.training) for name, each in module.named_modules()),
        tuple((name, each.shape, each.dtype, each.device, each.requires_grad) for name, each in tensors),
    )


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class, quoted if it is not an identifier."""
    name = _class_of(module).__name__
    return name if name.isidentifier() else repr(name)
