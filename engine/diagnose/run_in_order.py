"""Runs a backward in one order and records a fingerprint of each gradient and the bytes that tasks share."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.capture.build_graph import read_graph as graph_of
from ...inspector.capture.capture import capture
from ...inspector.capture.operator_traits import traits_of, written_by
from ...inspector.graph.graph import Edge, Graph
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.source_lines import Source, source_at, users_place
from ...inspector.torch_private.engine import real_graph_task_id
from ...inspector.torch_private.hooks import leaf_hooks, node_hooks, own, post_accumulate_hooks, register_post_hook
from ...inspector.torch_private.nodes import leaf_of
from ...inspector.torch_private.operators import Operator, SeenOperations
from ...inspector.torch_private.random_states import accelerators_awake, random_states
from ...inspector.torch_private.tensors import (
    FollowedStorage,
    all_elements,
    bytes_below,
    dense,
    equal_elements,
    parts_of,
)
from ...inspector.torch_private.thread_state import unobserved
from ..api.backward import backward
from ..api.make_loss import MakeLoss, loss_of
from ..api.restore_state import AsFound
from ..execution.run_hooks import hook_name
from ..schedule.policy import Choice, Policy


@dataclass(frozen=True, slots=True)
class SharedWrite:
    """A task's write to a tensor that another task reads.

    Attributes:
        task: the id of the task that writes.
        operation: the operation, such as `mul_`.
        source: the user's line, if Python calls the operation.
    """

    task: int
    operation: str
    source: Source | None


class StorageTouches(SeenOperations):  # type: ignore[no-untyped-call]
    """A mode around a backward that records reads and writes of storages that existed before the task.

    Known limitations: reads and writes outside torch's operations (through NumPy, in an extension) are not recorded.
    """

    sees_backward = True

    def __init__(self) -> None:
        super().__init__()
        self._task: int | None = None
        self._made: dict[int, FollowedStorage] = {}  # storages allocated by the current task
        self._touched: dict[int, _Touched] = {}

    def begin(self, task: int, gradients: Sequence[Tensor | None]) -> None:
        """Attribute the following operations to a task, which receives these gradients."""
        self._task = task
        self._made = {}
        for tensor in tensors_of(gradients):
            self._read(tensor)

    def end(self) -> None:
        self._task = None
        self._made = {}

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._task is None:  # the engine's own sums, and tensor hooks
            return operator(*args, **kwargs)
        for tensor in tensors_of((args, kwargs)):
            self._read(tensor)
        if traits_of(operator).may_write:
            for tensor in written_by(operator, args, kwargs):
                self._written(tensor, operator)
        result = operator(*args, **kwargs)
        for tensor in tensors_of(result):
            for part in parts_of(tensor):
                storage = bytes_below(part)
                if storage is not None and storage._cdata not in self._touched and storage._cdata not in self._made:
                    self._made[storage._cdata] = FollowedStorage(part)
        return result

    def writes_to(self, task: int) -> list[SharedWrite]:
        """Return other tasks' writes to tensors that a task reads, in order, or its own writes if there are none."""
        found = [touched for touched in self._touched.values() if task in touched.readers]
        writes = [write for touched in found for write in touched.writes]
        others = [write for write in writes if write.task != task]
        return others or writes

    def _read(self, tensor: Tensor) -> None:
        for touched in self._those_of(tensor):
            assert self._task is not None
            touched.readers[self._task] = None

    def _written(self, tensor: Tensor, operator: Operator) -> None:
        assert self._task is not None
        place = users_place()
        name = operator._schema.name.rpartition("::")[2]
        for touched in self._those_of(tensor):
            touched.writes.append(SharedWrite(self._task, name, None if place is None else source_at(place)))

    def _those_of(self, tensor: Tensor) -> list[_Touched]:
        found = []
        for part in parts_of(tensor):
            storage = bytes_below(part)
            if storage is None or part.is_meta:
                continue
            made = self._made.get(storage._cdata)
            if made is not None and made.alive:
                continue
            touched = self._touched.get(storage._cdata)
            if touched is None:
                touched = self._touched[storage._cdata] = _Touched(FollowedStorage(part), {}, [])
            found.append(touched)
        return found


@dataclass(slots=True)
class _Touched:
    """A storage that existed before the task, kept so that its address is not reused."""

    storage: FollowedStorage
    readers: dict[int, None]
    writes: list[SharedWrite]


Print = tuple[int, ...]
"""64 bits for each dense part of a tensor; empty if its bytes cannot be read."""

_CHUNK = 2**20  # elements hashed at once: 8 MiB of integers
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# splitmix64's constants (Steele, Lea, Flood 2014), as signed integers. With weights in arithmetic progression two
# small changes could cancel.
_STEP, _MIX = -7046029254386353131, -4658895280553007687


class BitPrints:
    """Computes fingerprints on the tensors' devices and reads them after the run, once per device.

    No task waits for an accelerator.
    """

    def __init__(self) -> None:
        self._taken: dict[torch.device, list[Tensor]] = {}
        self._numbers: dict[torch.device, list[int]] = {}
        self._weights: dict[torch.device, Tensor] = {}

    def of(self, tensor: Tensor) -> Callable[[], Print]:
        """Compute a fingerprint now; call the result after `read`."""
        places = []
        with unobserved():
            for values in _values(tensor):
                device = values.device
                if device not in self._weights:
                    # Odd weights: multiplying by an odd number is invertible modulo 2^64, so no change is lost.
                    numbers = torch.arange(1, _CHUNK + 1, dtype=torch.int64, device=device) * _STEP
                    mixed = (numbers ^ (numbers >> 30)) * _MIX
                    self._weights[device] = (mixed ^ (mixed >> 31)) | 1
                taken = self._taken.setdefault(device, [])
                places.append((device, len(taken)))
                taken.append(_print_of(values, self._weights[device]))
        return lambda: tuple(self._numbers[device][place] for device, place in places)

    def read(self) -> None:
        with unobserved():
            for device, taken in self._taken.items():
                self._numbers[device] = torch.stack(taken).tolist()
        self._taken.clear()
        self._weights.clear()


def _values(tensor: Tensor) -> Iterable[Tensor]:
    for part in parts_of(tensor):
        if part.is_meta:
            continue
        if part.is_nested:
            yield from part.detach().unbind()
        else:
            yield part.int_repr() if part.is_quantized else dense(part.detach())


def _print_of(values: Tensor, weights: Tensor) -> Tensor:
    """Return the sum modulo 2^64 of all elements' bits, each multiplied with the weight of its position."""
    values = values.resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
    bits = values.contiguous().flatten().view(_INTEGERS[values.element_size()])
    found = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, len(bits), _CHUNK):
        chunk = bits[start : start + _CHUNK]
        # Chained, so that swapping two chunks changes the fingerprint.
        found = found * _STEP + (chunk.to(torch.int64) * weights[: len(chunk)]).sum()
    return found


Prints = tuple[Print | None, ...]
Gradients = Sequence[Tensor | None]

_SUM = 4
"""The allowed error of a sum of n gradients, in units in the last place per gradient. Summing in any
order has an error of at most n - 1 units (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). The reference
is such a sum, too, so two sums can differ by twice as much."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The detailed records of some tasks.

    Attributes:
        taken, given: copies of each task's inputs, if they are not the sum of the gradients sent to it, and of its
            outputs.
        wrong_sums: the tasks whose input is not the sum of the gradients sent to it.
        drew: the tasks that drew random numbers.
        hooks: for each task, the names of the user's hooks on its node or leaf.
        touches: the bytes that all tasks read and wrote.
    """

    touches: StorageTouches
    taken: dict[int, list[Tensor | None]] = field(default_factory=dict)
    given: dict[int, list[Tensor | None]] = field(default_factory=dict)
    wrong_sums: set[int] = field(default_factory=set)
    drew: set[int] = field(default_factory=set)
    hooks: dict[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrderRun:
    """The record of one backward.

    Attributes:
        graph: its graph, without nodes.
        order: the ids of its tasks in the order in which they ran.
        taken, given: the fingerprints of each task's inputs and outputs; a leaf's output is its final .grad.
        gradients: the .grad of each leaf, by the id of its task; other leaves, such as a checkpoint's, have numbers
            after those.
        fed_inside: leaves to which a nested backward adds too, as in a reentrant checkpoint.
        looked: the detailed records, if requested.
    """

    graph: Graph
    order: tuple[int, ...]
    taken: dict[int, Prints]
    given: dict[int, Prints]
    gradients: dict[int, Tensor | None]
    fed_inside: frozenset[int]
    looked: Looked | None


def run_in_order(
    world: AsFound, model: torch.nn.Module | None, make_loss: MakeLoss, policy: Policy | Choice, closer: Collection[int]
) -> OrderRun | None:
    """Run forward and backward from the restored initial state, without any .grad.

    Args:
        closer: the tasks to record in detail.

    Returns:
        The record of the run; None if the loss has no graph.
    """
    with world.run(zeroed=True), ExitStack() as stack:
        with capture(model, every_call=True):
            loss = loss_of(make_loss())
        if not loss.requires_grad:
            return None
        graph = graph_of(loss, model)
        notes = _Notes(graph, closer)
        stack.callback(notes.close)
        notes.open()
        with nullcontext() if notes.looked is None else notes.looked.touches:
            run = backward(loss, policy=policy)
        leaves = {task_id: leaf.grad for task_id, leaf in graph.leaves.items()}
        known = set(map(id, graph.leaves.values()))
        others = [leaf.grad for leaf in world.leaves if id(leaf) not in known]
        leaves.update(enumerate(others, len(graph)))
        return notes.end(tuple(run.order), leaves)


class _Notes:
    """Hooks before and after each node. A leaf's hooks also fire in nested backwards, which are not tasks."""

    def __init__(self, graph: Graph, closer: Collection[int]) -> None:
        self.looked = Looked(StorageTouches()) if closer else None
        self._graph, self._closer = graph, closer
        self._prints = BitPrints()
        self._taken: dict[int, list[Callable[[], Print] | None]] = {}
        self._given: dict[int, list[Callable[[], Print] | None]] = {}
        self._arrived: dict[Edge, Tensor] = {}
        self._random: tuple[Any, ...] = ()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._graph_task: int | None = None
        self._fed_inside: set[int] = set()

    def open(self) -> None:
        for task, node in zip(self._graph.tasks, self._graph.nodes, strict=True):
            if self.looked is not None and task.id in self._closer:
                self.looked.hooks[task.id] = _hooks(node, task.is_leaf)
            self._handles.append(own(node.register_prehook(partial(self._before, task.id))))
            self._handles.append(register_post_hook(node, partial(self._after, task.id)))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()  # handles keep the nodes alive

    def end(self, order: tuple[int, ...], leaves: dict[int, Tensor | None]) -> OrderRun:
        for leaf, grad in leaves.items():
            self._given[leaf] = [self._print_of(grad)]
        self._prints.read()
        taken, given = ({task: _read(noted) for task, noted in each.items()} for each in (self._taken, self._given))
        with unobserved():
            copies = {leaf: None if grad is None else grad.detach().clone() for leaf, grad in leaves.items()}
        return OrderRun(
            replace(self._graph, nodes=()), order, taken, given, copies, frozenset(self._fed_inside), self.looked
        )

    def _is_inside(self) -> bool:
        """Return whether a nested backward (a checkpoint's) calls this, whose graph task has another id.

        The first hook that fires belongs to the outer backward.
        """
        number = real_graph_task_id()
        if self._graph_task is None:
            self._graph_task = number
        return number != self._graph_task

    def _before(self, task_id: int, taken: Gradients) -> None:
        if self._is_inside():
            self._fed_inside.add(task_id)
            return
        self._taken[task_id] = list(map(self._print_of, taken))
        if self.looked is None:
            return
        if task_id in self._closer:
            with unobserved():
                edges = self._graph.in_edges[task_id]
                roots = [root.input for root in self._graph.roots if root.task == task_id]
                arrived = [(edge.input, self._arrived.pop(edge, None)) for edge in edges]
                for number, gradient in enumerate(taken):
                    parts = [part for place, part in arrived if place == number and part is not None]
                    found = None if gradient is None else all_elements(gradient)
                    if found is not None and parts and number not in roots and not _is_sum_of(found, parts):
                        self.looked.wrong_sums.add(task_id)
                if task_id in self.looked.wrong_sums:
                    self.looked.taken[task_id] = list(map(_copied, taken))
            self._random = _random_states()
        self.looked.touches.begin(task_id, taken)

    def _after(self, task_id: int, given: Gradients, taken: Gradients) -> None:
        if self._is_inside():
            return
        if not self._graph.tasks[task_id].is_leaf:
            self._given[task_id] = list(map(self._print_of, given))
        if self.looked is None:
            return
        self.looked.touches.end()
        with unobserved():
            if task_id in self._closer:
                if not all(map(_is_same_state, self._random, _random_states())):
                    self.looked.drew.add(task_id)
                self.looked.given[task_id] = list(map(_copied, given))
            for edge in self._graph.out_edges[task_id]:
                if edge.next_task in self._closer and (copy := _copied(given[edge.output])) is not None:
                    self._arrived[edge] = copy

    def _print_of(self, gradient: Tensor | None) -> Callable[[], Print] | None:
        return None if gradient is None else self._prints.of(gradient)


def _read(noted: Sequence[Callable[[], Print] | None]) -> Prints:
    return tuple(None if each is None else each() for each in noted)


def _is_sum_of(found: Tensor, parts: Sequence[Tensor]) -> bool:
    """Return whether a tensor is the sum of the parts, in any order, within the rounding of its dtype."""
    if any(part.shape != found.shape for part in parts):
        return False
    if len(parts) == 1:
        return bool(equal_elements(found, parts[0]).all())
    exact = torch.complex128 if found.is_complex() else torch.float64
    if found.device.type == "mps":  # MPS has no float64
        exact = found.dtype
    wide = [part.to(exact) for part in parts]
    expected, size = wide[0].clone(), wide[0].abs()
    for part in wide[1:]:
        expected += part
        size += part.abs()
    allowed = size * (_SUM * len(parts) * torch.finfo(found.dtype).eps) + torch.finfo(found.dtype).tiny
    apart = (found.to(exact) - expected).abs() <= allowed
    unknown = ~(found.isfinite() & expected.isfinite())  # a sum may overflow in one order only
    return bool((apart | unknown).all())


def _hooks(node: Node, is_leaf: bool) -> tuple[str, ...]:
    before, after = node_hooks(node)
    leaf = leaf_of(node) if is_leaf else None
    of_leaf = [] if leaf is None else [*leaf_hooks(leaf), *post_accumulate_hooks(leaf)]
    return tuple(map(hook_name, [*before, *after, *of_leaf]))


def _copied(gradient: Tensor | None) -> Tensor | None:
    plain = None if gradient is None else all_elements(gradient)
    return None if plain is None else plain.clone()


def _random_states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    drawn = () if numpy is None else numpy.random.get_state()[1:3]
    return *random_states(accelerators_awake()).values(), random.getstate(), *drawn


def _is_same_state(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    same = one == other
    return bool(same.all() if hasattr(same, "all") else same)  # NumPy arrays compare elementwise
