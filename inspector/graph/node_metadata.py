"""Marks in nodes' metadata, by which a capture's records are found. A sequence number alone is ambiguous."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from ..torch_private.nodes import notes_on
from ..torch_private.sequence_numbers import UNNUMBERED, number_of
from ..torch_private.tensors import nodes_beneath_transforms
from ..torch_private.thread_state import functorch_is_active
from .operations_and_calls import Facts, Operation

_MARK = "tapescope"  # key of a node's Operation in its metadata
_CREATED = "tapescope: created"  # key of the time at which torch reported the node
_HOOKS = "tapescope: hooks"  # key of the calls that registered hooks of its tensors
HOOKING = ("register_hook", "retain_grad")
"""The functions that register a hook on a tensor that is not a leaf."""


_HOLDERS = (tuple, list, Mapping)
_PLAIN = frozenset({NoneType, bool, int, float, str})
"""Types of most arguments that are not tensors. Checking that they are not mappings either takes half a microsecond."""


class HookNote(NamedTuple):
    """A registered hook of a tensor. `hook` is its name, not the hook itself, which may lead back to the node."""

    hook: str
    operation: Operation


def tensors_of(value: object, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors in a value: a tensor, or tuples, lists and mappings of them."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) in _PLAIN:
        return
    elif depth and isinstance(value, tuple | list):
        for each in value:
            yield from tensors_of(each, depth - 1)
    elif depth and isinstance(value, Mapping):
        for each in list(value.values()):
            yield from tensors_of(each, depth - 1)


def nodes_of(value: object, depth: int = 3) -> Iterator[Node]:
    """Yield the nodes of the tensors in a value; inside transforms of torch.func, those of each level."""
    for tensor in tensors_of(value, depth):
        node = tensor.grad_fn
        if node is not None:
            yield node
        if functorch_is_active():
            yield from nodes_beneath_transforms(tensor)


def mark(nodes: Iterable[Node], operation: Operation) -> None:
    """Mark nodes with an operation. An existing mark, made by an inner call, is kept."""
    for node in nodes:
        notes_on(node).setdefault(_MARK, operation)


def mark_result(result: object, operation: Operation) -> None:
    """Mark the nodes of a torch function's result, nearly always one tensor."""
    if isinstance(result, Tensor) and not functorch_is_active():
        node = result.grad_fn
        if node is not None:
            notes_on(node).setdefault(_MARK, operation)
    else:
        mark(nodes_of(result), operation)


def mark_new(node: Node, operation: Operation, created_ns: int) -> None:
    """Mark a node that torch has just created; a nested capture marks it again."""
    notes: dict[str, Any] = node.metadata  # type: ignore[assignment]
    notes[_MARK] = operation
    notes[_CREATED] = created_ns


def mark_again(nodes: Iterable[Node], operation: Operation) -> None:
    """Replace this capture's marks of new nodes by the operation that made them. Another capture's marks stay."""
    for node in nodes:
        notes = notes_on(node)
        made = notes.get(_MARK)
        if made is not None and made.facts is operation.facts:
            notes[_MARK] = operation


def unmarked_nodes(result: object) -> list[Node]:
    """Return the nodes of a function's result that have no mark yet."""
    return [node for node in nodes_of(result) if _MARK not in notes_on(node)]


def mark_foreign(arguments: Sequence[object], start: int, newest: object = None) -> None:
    """Mark the nodes of arguments that another thread made, whose numbers are like those of the operation's own nodes.

    An argument that is the thread's `newest` result is skipped, because reading its number would be a large part of the
    capture's cost.
    """
    inside_transforms = functorch_is_active()
    for argument in arguments:
        if argument is newest or type(argument) in _PLAIN:
            continue
        if isinstance(argument, Tensor) and not inside_transforms:
            node = argument.grad_fn
            if node is not None and number_of(node) >= start:
                notes_on(node).setdefault(_MARK, None)
        elif isinstance(argument, _HOLDERS) or inside_transforms:
            for node in nodes_of(argument, depth=1):
                if number_of(node) >= start:
                    notes_on(node).setdefault(_MARK, None)


def note_hook(tensor: Tensor, hook: object, operation: Operation) -> None:
    """Record in a tensor's node that this operation (`register_hook`, `retain_grad`) registered a hook."""
    node = tensor.grad_fn
    if node is not None:
        name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
        note = HookNote("retain_grad()" if hook is None else str(name), operation)
        notes_on(node).setdefault(_HOOKS, []).append(note)


def hooks_noted(node: Node) -> tuple[HookNote, ...]:
    """Return the recorded hooks of a node's tensors, oldest first, including hooks removed since."""
    return tuple(notes_on(node).get(_HOOKS, ()))


def operation_of(node: Node) -> Operation | None:
    """Return the operation whose result this node made, if a capture saw it."""
    return notes_on(node).get(_MARK)


def made_during(facts: Facts, node: Node) -> bool:
    """Return whether the node was made in the capture that wrote `facts`, or in a capture nested with it."""
    operation = notes_on(node).get(_MARK)
    return operation is not None and operation.facts.thread == facts.thread and number_of(node) >= facts.first


def creation_times(operations: Mapping[Node, Operation], numbers: Mapping[Node, int]) -> dict[Node, int]:
    """Map the nodes of recorded operations, except leaves' nodes, to `Task.created_ns`, given all sequence numbers."""
    if not operations:
        return {}
    times = {
        node: notes_on(node).get(_CREATED, operation.created_ns)
        for node, operation in operations.items()
        if numbers[node] != UNNUMBERED
    }
    # torch's report of a node comes before the record of its operation, whose start is unknown then.
    start = min(min(each.began_ns for each in set(operations.values())), min(times.values(), default=sys.maxsize))
    return {node: ns - start for node, ns in times.items()}


def operations_of(
    found: Mapping[Node, tuple[tuple[Node | None, int], ...]], oldest_first: Collection[Node]
) -> dict[Node, Operation]:
    """Map each node that a capture recorded to the operation that made it.

    Only the nodes of an operation's results carry a mark. A node below them with a sequence number in the operation's
    interval (the TBackward0 of a linear) was made by it as well, and gets the operation of its newer user. A leaf's
    AccumulateGrad belongs to the first operation that used the leaf. Nodes of another thread have no mark.
    """
    operations: dict[Node, Operation] = {}
    for node in reversed(list(oldest_first)):
        operation = notes_on(node).get(_MARK) or operations.get(node)
        if operation is None:
            continue
        operations[node] = operation
        for child, _ in found[node]:
            if child is None:
                continue
            number = number_of(child)
            if operation.start <= number < operation.end and _MARK not in notes_on(child):
                operations.setdefault(child, operation)
            elif number == UNNUMBERED:
                operations[child] = operation  # the last assignment is by the oldest user
    return operations
