"""Finds tensors that a model does not register: in plain attributes, lists, dicts, and objects that are not modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from torch import Tensor, nn

from ....inspector.graph.source_lines import is_library
from ....inspector.torch_private.tensors import is_leaf

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_MOST_ITEMS = 64  # items of a container that are visited: a replay buffer may have millions
_DEPTH = 3  # levels of nested containers that are visited


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
    """Yield the unregistered leaves in plain attributes of modules. `modules` are pairs of a path and a module."""
    for path, module in list(modules):
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.requires_grad and is_leaf(buffer):
                attribute = f"{path}.{name}" if path else name
                yield Unregistered(attribute, buffer, attribute, "buffer", "nn.Parameter")
        for name, value in list(vars(module).items()):
            if name in _OF_EVERY_MODULE or isinstance(value, nn.Module):
                continue
            attribute, kind = f"{path}.{name}" if path else name, type(value).__name__
            for item, tensor, is_module in _leaves_in(attribute, value, _DEPTH):
                if isinstance(value, Tensor):
                    advice = "nn.Parameter"
                elif isinstance(value, list | tuple | dict):
                    what = "Module" if is_module else "Parameter"
                    advice = f"nn.{what}{'Dict' if isinstance(value, dict) else 'List'}"
                else:
                    advice = "nn.Module"
                yield Unregistered(item, tensor, attribute, kind, advice)


def _leaves_in(expression: str, value: object, depth: int) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield the leaves in a value with their expressions, and whether each is a parameter of a module."""
    if isinstance(value, nn.Module):
        for name, parameter in value.named_parameters():
            if parameter.requires_grad:
                yield f"{expression}.{name}", parameter, True
    elif isinstance(value, Tensor):
        if value.requires_grad and is_leaf(value):
            yield expression, value, False
    elif depth:
        for part, each in _parts(value):
            yield from _leaves_in(f"{expression}{part}", each, depth - 1)


def _parts(value: object) -> list[tuple[str, object]]:
    """Return the items of a container, or the attributes of an instance of a user's class."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in islice(list(value.items()), _MOST_ITEMS)]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", each) for number, each in enumerate(value[:_MOST_ITEMS])]
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None) or "<frozen"  # one of Python's own
    attributes = None if is_library(file) else getattr(value, "__dict__", None)
    if not isinstance(attributes, dict):
        return []
    found = list(attributes.items())[:_MOST_ITEMS]
    return [(f".{name}", each) for name, each in found if isinstance(each, nn.Module | Tensor)]
