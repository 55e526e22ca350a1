"""Whether a graph has Python hooks at all: for many nodes cheaper than asking each one."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Collection
from types import FrameType
from weakref import ref

from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.torch_internals.engine import is_own
from ...inspector.torch_internals.hooks import hooks_registered
from ...inspector.torch_internals.modes import without_torch_function

Registry = OrderedDict[int, object]
"""Hooks by the numbers of their handles."""


class HookWatch:
    """Looks once for Python hooks on the nodes and tensors of a graph, and notices later ones.

    Each hook of `register_hook` and its kin stands in an OrderedDict under the number of its handle, and handles are
    counted; a tensor whose gradient is retained says so. Both are found among the objects which Python's garbage
    collector tracks; where some are frozen (`gc.freeze`), nothing can be said. Hooks of modules and optimizers look the
    same, and are told apart by who holds them.
    """

    def __init__(self, nodes: Collection[Node]) -> None:
        self._handles = hooks_registered()
        # Of these nodes; only they can be told to retain their gradient.
        self._tensors, registries = tensors_and_hooks(nodes)
        self._found = gc.get_freeze_count() > 0 or not _belong_to_modules(registries)

    def possible(self) -> bool:
        """Whether there may be hooks; also those which came since."""
        return self.registered() or any(tensor.retains_grad for each in self._tensors if (tensor := each()) is not None)

    def registered(self) -> bool:
        """The same without retained gradients; costs next to nothing."""
        return self._found or hooks_registered() != self._handles


_none_of = 0
"""So many hooks had been registered when none was left on any tensor or node of the process."""


def no_hooks(look: bool) -> bool:
    """Whether no tensor and no node of this process has a Python hook, as far as that is known.

    Args:
        look: where it is not known, looks through all objects of the process. That there are none is then known until
            another hook is registered.
    """
    global _none_of
    registered = hooks_registered()
    if registered != _none_of and look and not HookWatch(()).registered():
        _none_of = registered
    return registered == _none_of


def _belong_to_modules(registries: list[Registry]) -> bool:
    held = _held_by_objects(registries)
    return all(id(registry) in held for registry in registries)


def _held_by_objects(registries: list[Registry]) -> set[int]:
    """By id those of the dicts that Python objects hold, and other things: hooks of modules and optimizers. Those of
    nodes are held by C++ alone, or by a tensor or the node."""
    held: set[int] = set()
    for holder in gc.get_referrers(*registries) if registries else ():
        if holder is not registries and not isinstance(holder, Tensor | Node | FrameType):
            held.update(map(id, gc.get_referents(holder)))
    return held


def _has_hooks(found: Registry) -> bool:
    return bool(found) and not is_own(found) and all(type(key) is int for key in found)


def tensors_and_hooks(nodes: Collection[Node]) -> tuple[list[ref[Tensor]], list[Registry]]:
    """The tensors which these nodes made, as far as Python has them, and all that looks like hooks of anything. Looks
    through all objects of the process."""
    of_graph, kinds = frozenset(nodes), subclasses(Tensor)
    tensors: list[ref[Tensor]] = []
    hooks: list[Registry] = []
    with without_torch_function():
        for found in gc.get_objects():
            kind = type(found)
            if kind is OrderedDict:
                if _has_hooks(found):
                    hooks.append(found)
            elif kind in kinds and node_of(found) in of_graph:
                tensors.append(ref(found))
    return tensors, hooks


def of_tensors(hooks: list[Registry]) -> list[ref[Registry]]:
    """Those of tensors and nodes."""
    held = _held_by_objects(hooks)
    return [ref(each) for each in hooks if id(each) not in held]


def node_of(tensor: Tensor) -> Node | None:
    """The node that made it."""
    try:
        return None if tensor.is_leaf else tensor.grad_fn
    except RuntimeError:  # a view that was modified where that is forbidden: no graph leads to it
        return None


def subclasses(kind: type) -> set[type]:
    """The class and all that are derived from it."""
    found = {kind}
    subclass: type
    for subclass in kind.__subclasses__():
        found |= subclasses(subclass)
    return found
