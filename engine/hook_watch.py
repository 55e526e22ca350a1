"""Whether a graph has Python hooks at all: for many nodes cheaper than asking each one."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from weakref import ref

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ..inspector.torch_internals import is_own, without_torch_function


class HookWatch:
    """Looks once for Python hooks on the nodes and tensors of a graph, and notices later ones.

    Each hook of `register_hook` and its kin stands in an OrderedDict under the number of its handle, and handles are
    counted; a tensor whose gradient is retained says so. Both are found among the objects which Python's garbage
    collector tracks; where some are frozen (`gc.freeze`), nothing can be said. Hooks of modules and optimizers look the
    same: they cost the time of asking the nodes, and nothing else.
    """

    def __init__(self, nodes: Collection[Node]) -> None:
        of_graph = frozenset(nodes)
        self._handles = RemovableHandle.next_id
        self._found = gc.get_freeze_count() > 0
        self._tensors: list[ref[Tensor]] = []  # of these nodes; only they can be told to retain their gradient
        tensors = _subclasses(Tensor)
        with without_torch_function():
            for found in gc.get_objects():
                kind = type(found)
                if kind is OrderedDict:
                    self._found = self._found or (
                        bool(found) and all(type(key) is int for key in found) and not is_own(found)
                    )
                elif kind in tensors and _node_of(found) in of_graph:
                    self._tensors.append(ref(found))

    @contextmanager
    def own_hooks(self) -> Iterator[None]:
        """What is registered meanwhile by this thread is no hook of the user's."""
        before = RemovableHandle.next_id
        yield
        self._handles += RemovableHandle.next_id - before

    def possible(self) -> bool:
        """Whether there may be hooks; also those which came since."""
        return self.registered() or any(tensor.retains_grad for each in self._tensors if (tensor := each()) is not None)

    def registered(self) -> bool:
        """The same without retained gradients; costs next to nothing."""
        return self._found or RemovableHandle.next_id != self._handles


def _node_of(tensor: Tensor) -> Node | None:
    try:
        return None if tensor.is_leaf else tensor.grad_fn
    except RuntimeError:  # a view that was modified where that is forbidden: no graph leads to it
        return None


def _subclasses(kind: type) -> set[type]:
    found = {kind}
    subclass: type
    for subclass in kind.__subclasses__():
        found |= _subclasses(subclass)
    return found
