"""Finds tensors that a model uses and does not register, in plain attributes, lists and dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from torch import Tensor, nn

from ....inspector.torch_private.tensors import is_leaf

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_MOST_ITEMS = 64  # of a container: a replay buffer may have millions
_DEPTH = 3  # of containers in containers


class Unregistered(NamedTuple):
    """A leaf that requires a gradient and is not among a module's parameters.

    Attributes:
        name: its expression from the model, such as `experts[0].weight`.
        tensor: the leaf.
        attribute: the attribute that holds it, such as `experts`.
        kind: the attribute's class, such as `list`.
        advice: the class of torch.nn that registers it.
    """

    name: str
    tensor: Tensor
    attribute: str
    kind: str
    advice: str


def unregistered(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[Unregistered]:
    """Yield the leaves in plain attributes of modules, given with their paths."""
    for path, module in list(modules):
        for name, value in list(vars(module).items()):
            if name in _OF_EVERY_MODULE:
                continue
            attribute = f"{path}.{name}" if path else name
            if isinstance(value, Tensor):
                if _is_trainable(value):
                    yield Unregistered(attribute, value, attribute, type(value).__name__, "nn.Parameter")
            elif isinstance(value, list | tuple | dict):
                kind, is_dict = type(value).__name__, isinstance(value, dict)
                for item, tensor, is_module in _items(attribute, value, _DEPTH):
                    advice = f"nn.{'Module' if is_module else 'Parameter'}{'Dict' if is_dict else 'List'}"
                    yield Unregistered(item, tensor, attribute, kind, advice)


def _items(
    expression: str, container: list[object] | tuple[object, ...] | dict[object, object], depth: int
) -> Iterator[tuple[str, Tensor, bool]]:
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in list(islice(pairs, _MOST_ITEMS)):
        item = f"{expression}[{key!r}]"
        if isinstance(value, nn.Module):
            for name, parameter in value.named_parameters():
                if _is_trainable(parameter):
                    yield f"{item}.{name}", parameter, True
        elif isinstance(value, Tensor):
            if _is_trainable(value):
                yield item, value, False
        elif isinstance(value, list | tuple | dict) and depth:
            yield from _items(item, value, depth - 1)


def _is_trainable(tensor: Tensor) -> bool:
    return tensor.requires_grad and is_leaf(tensor)
