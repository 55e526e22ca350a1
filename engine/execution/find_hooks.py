"""Search for Python hooks: whether a graph has any, and the hooks of living tensors."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from itertools import compress
from types import FrameType
from weakref import ref

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ...inspector.garbage_collector import all_objects
from ...inspector.torch_private.engine import is_own
from ...inspector.torch_private.hooks import (
    hooks_registered,
    leaf_hooks,
    note_already_retained,
    noting,
    retaining,
    start_noting_retained,
)
from ...inspector.torch_private.thread_state import without_torch_function
from .run_hooks import Hook, hook_name


class TensorHooks:
    """The tensors of a graph's nodes and their hooks. The tensors are found once, among all objects that Python's
    garbage collector tracks, which takes about 50 ms in a process with little more than torch. Hooks are read on
    access.

    Known limitations: hooks of freed tensors also run, and nothing lists them; frozen tensors (`gc.freeze`) are not
    found.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        task_of: dict[Node, int] = {node: task_id for task_id, node in enumerate(nodes)}
        self._tensors: dict[int, list[ref[Tensor]]] = {}
        self._others: list[ref[Tensor]] = []
        kinds = subclasses(Tensor)
        with without_torch_function(), all_objects() as objects:
            # A fast filter: of a million objects, some thousands are left.
            for found in compress(objects, map(kinds.__contains__, map(type, objects))):
                if (node := node_of(found)) is None:
                    continue
                if (task_id := task_of.get(node)) is not None:
                    self._tensors.setdefault(task_id, []).append(ref(found))
                else:
                    self._others.append(ref(found))

    @property
    def tasks(self) -> Sequence[int]:
        """The tasks, ascending, with tensors that were Python objects at the time of the search."""
        return sorted(self._tensors)

    def others(self) -> Iterator[Tensor]:
        """Yield the living tensors of other nodes that were Python objects at the time of the search."""
        return (tensor for each in self._others if (tensor := each()) is not None)

    def of(self, task_id: int) -> list[Hook]:
        """Return the hooks that run before the task in the engine's order: by output number, then retained
        gradients."""
        alive = self.alive(task_id)
        if not alive:
            return []
        with without_torch_function():
            hooks = [Hook("tensor", hook_name(hook)) for tensor in alive for hook in leaf_hooks(tensor)]
            return hooks + [Hook("retain_grad", "retain_grad") for tensor in alive if tensor.retains_grad]

    def retained(self, task_id: int) -> list[Tensor]:
        """Return the tensors that retain the task's gradients (`retain_grad`), by output number."""
        alive = self.alive(task_id)
        if not alive:
            return []
        with without_torch_function():
            return [tensor for tensor in alive if tensor.retains_grad]

    def alive(self, task_id: int) -> list[Tensor]:
        """Return the living Python tensors that the task's node created in the forward, by output number."""
        alive = [tensor for each in self._tensors.get(task_id, ()) if (tensor := each()) is not None]
        if len(alive) < 2:
            return alive
        with without_torch_function():
            return sorted(alive, key=lambda tensor: tensor.output_nr)


class LateTensorHooks:
    """Tensor hooks found as tasks run: while no tensor or node of the process has a hook, tensors are not searched.

    Attributes:
        quiet: whether there are no hooks or retained gradients; checked at each task.
    """

    _hooked_at = -1
    """The number of hooks registered when some were last found. Until another is registered, there is no new search."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._tensors: TensorHooks | None = None
        self._watch: HookWatch | None = None
        if hooks_registered() != LateTensorHooks._hooked_at:
            watch = HookWatch(nodes)
            if watch.possible():
                LateTensorHooks._hooked_at = hooks_registered()
            else:
                self._watch = watch
        if self._watch is None:
            self._tensors = TensorHooks(nodes)

    @property
    def quiet(self) -> bool:
        return self._tensors is None and self._watch is not None and not self._watch.registered()

    def of(self, task_id: int) -> list[Hook]:
        """See `TensorHooks.of`."""
        if self.quiet:
            return []
        if self._tensors is None:
            self._tensors = TensorHooks(self._nodes)
        return self._tensors.of(task_id)


Registry = OrderedDict[int, object]
"""Hooks by the ids of their handles."""


class HookWatch:
    """Searches once for Python hooks on the nodes and tensors of a graph, and notices later ones.

    Each hook of `register_hook` and the like is in an OrderedDict under the id of its handle, and handle ids are
    counted (`RemovableHandle.next_id`); a tensor that retains its gradient has a flag. Both are found among the objects
    that Python's garbage collector tracks; with frozen objects (`gc.freeze`) the search is inconclusive. Hooks of
    modules and optimizers look the same, and are distinguished by their holders.

    The search is slow with many objects, so it runs once. While no hook is registered after it, there are none; calls
    of `retain_grad` are recorded from then on.
    """

    def __init__(self, nodes: Collection[Node]) -> None:
        global _none_of
        self._next_handle = RemovableHandle.next_id
        self._handles = hooks_registered()
        self._asked = noting.accesses
        self._found = False
        with without_torch_function():
            found = retaining() if no_hooks(look=False) else None
            if found is None:
                start_noting_retained()
                found, hooks = look_through()
                frozen = gc.get_freeze_count() > 0
                self._found = frozen or not _held_by_objects(hooks).issuperset(map(id, hooks))
                if not frozen:
                    note_already_retained([tensor for tensor in found if tensor.retains_grad])
                if not self._found:
                    _none_of = self._handles
            # Only tensors of these nodes matter for retained gradients.
            self._tensors = made_by(nodes, found)

    def possible(self) -> bool:
        """Return whether there may be hooks, including later ones."""
        return self.registered() or any(tensor.retains_grad for each in self._tensors if (tensor := each()) is not None)

    def registered(self) -> bool:
        """Return whether there may be new hooks, at almost no cost. Earlier calls of retain_grad() do not count."""
        if RemovableHandle.next_id == self._next_handle and noting.accesses == self._asked:
            return self._found
        self._next_handle = RemovableHandle.next_id  # some handles may be tapescope's own
        self._found = self._found or hooks_registered() != self._handles or noting.accesses != self._asked
        return self._found


_none_of = 0
"""The number of hooks registered when a search found none left on any tensor or node of the process."""


def no_hooks(look: bool) -> bool:
    """Return whether it is known that no tensor and no node of this process has a Python hook.

    Args:
        look: whether to search all objects of the process if it is not known. The result holds until another hook is
            registered.
    """
    return hooks_registered() == _none_of or (look and not HookWatch(()).registered())


_seen = _looked = -1
"""The number of hooks registered at the last call of `look_is_cheap`, and at the last one that allowed a search."""


def look_is_cheap() -> bool:
    """Return whether no hooks are known to exist, or whether one search may show that for many backwards.

    A search pays off if no hook was registered since the last call and no search was made since then. A program may
    register a hook in each step, or keep one.
    """
    global _seen, _looked
    if no_hooks(look=False):
        return True
    before, _seen = _seen, hooks_registered()
    if _seen != before or _seen == _looked:
        return False
    _looked = _seen
    return True


def _held_by_objects(registries: list[Registry]) -> set[int]:
    """Return the ids of the dicts that Python objects hold: hooks of modules and optimizers, and other ids.

    Hooks of nodes and tensors are held by C++ alone, or by the tensor or node. They are not returned even if something
    else holds them too, such as a user's list or a record to restore them.
    """
    held: set[int] = set()
    of_graphs: set[int] = set()
    for holder in gc.get_referrers(*registries) if registries else ():
        if holder is not registries and not isinstance(holder, FrameType):
            found = of_graphs if isinstance(holder, Tensor | Node) else held
            found.update(map(id, gc.get_referents(holder)))
    return held - of_graphs


def look_through() -> tuple[list[Tensor], list[Registry]]:
    """Return all Python tensors, and all dicts that look like hooks. Must be called with torch functions disabled."""
    kinds = subclasses(Tensor)
    wanted = {*kinds, OrderedDict}
    tensors: list[Tensor] = []
    hooks: list[Registry] = []
    with all_objects() as objects:
        for found in compress(objects, map(wanted.__contains__, map(type, objects))):  # of a million some thousands
            if type(found) in kinds:
                tensors.append(found)
            elif found and not is_own(found) and all(type(key) is int for key in found):
                hooks.append(found)
    return tensors, hooks


def made_by(nodes: Collection[Node], tensors: list[Tensor]) -> list[ref[Tensor]]:
    """Return the tensors that these nodes created. Must be called with torch functions disabled."""
    if not tensors:
        return []
    of_graph = frozenset(nodes)
    return [ref(tensor) for tensor in tensors if node_of(tensor) in of_graph]


def of_tensors(hooks: list[Registry]) -> list[ref[Registry]]:
    """Return the hooks of tensors and nodes."""
    held = _held_by_objects(hooks)
    return [ref(each) for each in hooks if id(each) not in held]


def node_of(tensor: Tensor) -> Node | None:
    """Return the node that created the tensor."""
    try:
        return None if tensor.is_leaf else tensor.grad_fn
    except RuntimeError:  # grad_fn of a view after a forbidden in-place change; no graph leads to it
        return None


def subclasses(kind: type) -> set[type]:
    """Return the class and all its subclasses."""
    found = {kind}
    subclass: type
    for subclass in kind.__subclasses__():
        found |= subclasses(subclass)
    return found
