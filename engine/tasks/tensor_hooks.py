"""The hooks of the tensors that a graph's nodes made in the forward, as far as the tensors live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from weakref import ref

from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.collector import all_objects
from ...inspector.torch_internals.hooks import hooks_registered, leaf_hooks
from ...inspector.torch_internals.modes import without_torch_function
from .hook_watch import HookWatch, node_of, subclasses
from .task_hooks import Hook, hook_name


class TensorHooks:
    """Looks once, among all that Python's garbage collector tracks, for the tensors; their hooks are read when asked.
    The look takes some 50 ms in a process that has imported torch and little else.

    Known limitations: hooks of tensors that are gone run too, and nothing lists them; tensors that were frozen
    (`gc.freeze`) are not found.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        task_of: dict[Node, int] = {node: task_id for task_id, node in enumerate(nodes)}
        self._tensors: dict[int, list[ref[Tensor]]] = {}
        self._others: list[ref[Tensor]] = []
        kinds = subclasses(Tensor)
        with without_torch_function(), all_objects() as objects:
            for found in compress(objects, map(kinds.__contains__, map(type, objects))):  # of a million some thousands
                if (node := node_of(found)) is None:
                    continue
                if (task_id := task_of.get(node)) is not None:
                    self._tensors.setdefault(task_id, []).append(ref(found))
                else:
                    self._others.append(ref(found))

    @property
    def tasks(self) -> Sequence[int]:
        """The tasks, ascending, of whose tensors some lived as Python objects when they were looked for."""
        return sorted(self._tensors)

    def others(self) -> Iterator[Tensor]:
        """The tensors of other nodes that lived as Python objects when they were looked for, and still do."""
        return (tensor for each in self._others if (tensor := each()) is not None)

    def of(self, task_id: int) -> list[Hook]:
        """What runs before the task, in the engine's order: hooks by output number, then retained gradients."""
        alive = self.alive(task_id)
        if not alive:
            return []
        with without_torch_function():
            hooks = [Hook("tensor", hook_name(hook)) for tensor in alive for hook in leaf_hooks(tensor)]
            return hooks + [Hook("retain_grad", "retain_grad") for tensor in alive if tensor.retains_grad]

    def retained(self, task_id: int) -> list[Tensor]:
        """The tensors in which the task's gradients are kept (`retain_grad`), by output number."""
        alive = self.alive(task_id)
        if not alive:
            return []
        with without_torch_function():
            return [tensor for tensor in alive if tensor.retains_grad]

    def alive(self, task_id: int) -> list[Tensor]:
        """The tensors which the task's node made in the forward and that live as Python objects, by output number."""
        alive = [tensor for each in self._tensors.get(task_id, ()) if (tensor := each()) is not None]
        if len(alive) < 2:
            return alive
        with without_torch_function():
            return sorted(alive, key=lambda tensor: tensor.output_nr)


class LateTensorHooks:
    """The same for tasks as they run: while no tensor and no node of the process has a hook, nobody looks for tensors.

    Attributes:
        quiet: whether there are no hooks, nor retained gradients; asked at each task.
    """

    _hooked_at = -1
    """So many hooks had been registered when some were found: until the next one, that is not looked for again."""

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
