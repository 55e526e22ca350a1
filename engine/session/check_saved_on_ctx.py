"""Saved values that go wrong: tensors modified since the forward, or kept on `ctx` outside `save_for_backward`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType

from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.kinds import Kind, kind_of
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.operation_inputs import KeptInputs, KeptTensor, argument_names, names_by_place
from ...inspector.torch_private.checkpoints import random_states, regions_around
from ...inspector.torch_private.nodes import leaf_of
from ...inspector.torch_private.saved_variables import SAVED_FOR_FORWARD, attributes_of, saved_slots
from ...inspector.torch_private.tensors import base_of, storage_of, version_of
from .float64_replay import OperationReplay

_DEEPEST = 4  # levels of nested containers that are compared


def modified_since(node: Node, inputs: KeptInputs | None) -> Iterator[str]:
    """Describe saved tensors that were modified in place since, so that the backward will raise."""
    modified = [slot.tensor for slot in saved_slots(node) if slot.modified]
    if modified:
        known = [_input_of(inputs, tensor) for tensor in modified]
        names = sorted({kept.name for kept in known if kept is not None and kept.modified})
        saved = " and ".join(names) or "a tensor"
        yield f"it saved {saved}, which was modified in place since the forward: running it will raise"


def check_attributes(node: Node, inputs: KeptInputs | None) -> tuple[list[str], list[str], list[str]]:
    """Check the tensors kept as attributes of `ctx`, outside `save_for_backward`.

    Returns:
        Faults: inputs that were modified since, which PyTorch does not detect. Warnings: inputs and outputs that are
        neither freed nor checked. Names of attributes with other tensors, which is allowed.
    """
    faults: list[str] = []
    warnings: list[str] = []
    others: dict[str, None] = {}
    for attribute, tensor in _attributes(node):
        kept = _input_of(inputs, tensor)
        if _is_output(tensor, node):
            warnings.append(
                f"it keeps its output as ctx.{attribute}, outside ctx.save_for_backward: this reference cycle keeps "
                "their memory until Python's garbage collector runs, and in-place modification is not detected"
            )
        elif kept is not None and kept.modified:
            faults.append(
                f"it keeps {kept.name} as ctx.{attribute}, outside ctx.save_for_backward, and {kept.name} was modified "
                "in place since the forward: its backward uses the new values without an error"
            )
        elif kept is not None or _made_by_next(tensor, node):
            name = kept.name if kept is not None else "an input"
            warnings.append(
                f"it keeps {name} as ctx.{attribute}, outside ctx.save_for_backward: it stays in memory after the "
                "backward, as long as the graph, and in-place modification is not detected"
            )
        else:
            others[attribute] = None
    return faults, warnings, list(others)


def _attributes(node: Node) -> Iterator[tuple[str, Tensor]]:
    attributes = [each for each in attributes_of(node).items() if each[0] != SAVED_FOR_FORWARD]
    return ((name, tensor) for name, value in attributes for tensor in tensors_of(value))


def _is_output(tensor: Tensor, node: Node) -> bool:
    return any(each is not None and each.grad_fn is node for each in (tensor, base_of(tensor)))


def outputs_on_ctx(node: Node) -> Iterator[str]:
    """Yield the attributes of `ctx` with the node's own output, a reference cycle."""
    for attribute, tensor in _attributes(node):
        if _is_output(tensor, node):
            yield attribute


def changed_on_ctx(node: Node, call: Callable[[], object]) -> list[str]:
    """Return the names of the `ctx` attributes or saved tensors that a call changes. Raises whatever the call
    raises."""
    before = _state_of_ctx(node)
    call()
    after = _state_of_ctx(node)
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _state_of_ctx(node: Node) -> dict[str, object]:
    found = {f"ctx.{name}": _state(value) for name, value in attributes_of(node).items()}
    found.update((slot.name, version_of(slot.tensor)) for slot in saved_slots(node))
    return found


def _state(value: object, depth: int = 0) -> object:
    if isinstance(value, Tensor):
        return id(value), version_of(value)
    if isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), repr(value)
    if depth < _DEEPEST:
        if isinstance(value, dict):
            return id(value), tuple((id(key), _state(each, depth + 1)) for key, each in value.items())
        if isinstance(value, list | tuple | set | frozenset | deque):
            return id(value), tuple(_state(each, depth + 1) for each in value)
        if hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
            return id(value), tuple((name, _state(each, depth + 1)) for name, each in vars(value).items())
    return id(value)


def _made_by_next(tensor: Tensor, node: Node) -> bool:
    """Return whether the tensor is an input: a next node receives its gradient."""
    below = [child for child, _ in node.next_functions if child is not None]
    if tensor.grad_fn is not None:
        return tensor.grad_fn in below
    return any(kind_of(child) is Kind.ACCUMULATE_GRAD and leaf_of(child) is tensor for child in below)


def _input_of(inputs: KeptInputs | None, tensor: Tensor) -> KeptTensor | None:
    """Return the input that this tensor is: same memory, same view."""
    storage = storage_of(tensor)
    if inputs is None or storage is None:
        return None
    for kept in inputs.tensors:
        found = storage_of(kept.tensor)
        same = found is not None and found.address == storage.address and kept.tensor.shape == tensor.shape
        if same and kept.tensor.storage_offset() == tensor.storage_offset() and kept.tensor.stride() == tensor.stride():
            return kept
    return None


def written_unmarked(replay: OperationReplay) -> list[str]:
    """Return the inputs that a custom Function's forward wrote to without returning them."""
    if not replay.is_function:
        return []
    outcome = replay.run(replay.points)
    names = names_by_place(argument_names(replay.operation.function), len(outcome.args))
    results = list(tensors_of(outcome.result))
    returned = {name for name, value in zip(names, outcome.args, strict=True) if any(each is value for each in results)}
    return [name for name in replay.written if name not in returned]


def other_random_numbers(node: Node, replay: OperationReplay) -> list[str]:
    """Describe an operation whose checkpoint recomputes it with other random numbers than its forward drew."""
    regions = [region for region in regions_around(node) if not random_states(region)]
    if not replay.random or not regions:
        return []
    return [
        f"its checkpoint recomputes {replay.operation.name} with other random numbers than its forward drew, so its "
        "gradients, and those of what follows it in the region, are of another mask: pass preserve_rng_state=True to "
        "torch.utils.checkpoint.checkpoint()"
    ]
