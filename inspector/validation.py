"""Checks of users' arguments. Each error names the argument, its type, and the expected value.

torch is imported where it is needed: the command line answers mistakes without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from inspect import signature
from types import UnionType
from typing import Any


def expect(value: object, kind: type | UnionType, name: str, wanted: str) -> None:
    """Check the type of an argument.

    Args:
        value: the argument.
        kind: the expected type.
        name: the argument's name.
        wanted: description of the expected value, for the message.

    Raises:
        TypeError: `value` is not an instance of `kind`.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {a_kind(value)}; expected {wanted}")


def expect_number(value: object, kind: type | UnionType, name: str, wanted: str) -> None:
    """Check that an argument is a number of this kind; booleans are rejected."""
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}; expected {wanted}")
    expect(value, kind, name, wanted)


def expect_truth(value: object, name: str) -> None:
    """Check that an argument is True or False, since Python would convert any other value silently."""
    if not isinstance(value, int) or value not in (0, 1):
        what = value if isinstance(value, int | float) else a_kind(value)
        raise TypeError(f"{name} is {what}; expected True or False")


def expect_choice(value: object, known: tuple[str, ...], name: str) -> None:
    """Check that an argument is one of the known values."""
    if not (isinstance(value, str) and value in known):
        raise ValueError(f"{name} is {value!r}; expected {' or '.join(map(repr, known))}")


def expect_callable(value: object, arguments: int, name: str, wanted: str) -> None:
    """Check that an argument can be called with this number of positional arguments, according to its signature.

    torch's own modules are rejected, because they only accept tensors, whatever their signature says.
    """
    from torch import nn

    called: object = value
    if isinstance(value, nn.Module):
        if type(value).__module__.startswith("torch."):
            raise TypeError(f"{name} is a module, {type(value).__name__}; expected {wanted}")
        called = value.forward
    if not callable(called):
        raise TypeError(f"{name} is {a_kind(value)}; expected {wanted}")
    try:
        takes = signature(called)
    except (TypeError, ValueError):  # implemented in C, without a signature
        return
    try:
        takes.bind(*[None] * arguments)
    except TypeError as error:
        title = getattr(value, "__qualname__", type(value).__name__)
        count = ("no arguments", "one argument")[arguments] if arguments < 2 else f"{arguments} arguments"
        raise TypeError(
            f"{name} is {title}, which cannot be called with {count} ({error}); expected {wanted}"
        ) from None


def expect_model(model: object) -> None:
    """Check that an argument can name a forward's modules.

    Raises:
        TypeError: `model` is neither None nor a module.
    """
    from torch import nn

    wanted = (
        'the module that names the parameters, such as nn.ModuleDict({"G": generator, "D": critic}) for several, or '
        "None, which names them after the called modules"
    )
    expect(model, nn.Module | None, "model", wanted)


def expect_outputs(value: object) -> None:
    """Check that a backward can start from an argument; the error suggests the loss instead of a model or a dict.

    Raises:
        TypeError: `value` is neither a tensor nor an iterable.
    """
    if type(value) in (tuple, list):  # which most calls pass, some of them in each step
        return
    from torch import Tensor, nn

    wanted = f"expected a tensor or a sequence of tensors, got {a_kind(value)}"
    if isinstance(value, nn.Module):
        raise TypeError(f"{wanted}, which is a model: pass the loss computed with it, such as model(x).sum()")
    if isinstance(value, Mapping):
        tensors = [key for key, each in value.items() if isinstance(each, Tensor) and each.requires_grad]
        named = "loss" if "loss" in tensors else next(iter(tensors), None)
        raise TypeError(
            wanted if named is None else f"{wanted}: pass the tensor in it, such as the one under {named!r}"
        )
    if isinstance(value, str):
        raise TypeError(f"{wanted}: pass the loss itself, not its name")
    if type(value).__module__ == "numpy":
        raise TypeError(f"{wanted}, which has no graph: pass the tensor that it was made from")
    if callable(value):
        raise TypeError(f"{wanted}: call it, and pass the loss that it returns")
    if not isinstance(value, Tensor | Iterable):
        raise TypeError(f"{wanted}: pass the loss")


def a_kind(value: object) -> str:
    """Return the type of a value for use in a sentence: "an int", "a Tensor", "None"."""
    if value is None:
        return "None"
    name = type(value).__name__
    with_an = "AEFHILMNORSX" if name[:2].isupper() else "aeioAEIO"  # "an SGD", spoken letter by letter
    return f"{'an' if name[0] in with_an else 'a'} {name}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return text to follow an unknown word: ` (did you mean 'heap'?);` for the nearest known word, otherwise `;`."""
    near = get_close_matches(word, [*known], 1)
    return f" (did you mean {near[0]!r}?);" if near else ";"


def raise_no_attribute(asked: object, name: str, what: str, elsewhere: Mapping[str, str]) -> Any:
    """Raise AttributeError from a `__getattr__`, with advice for names that users may look for on this object.

    Args:
        asked: the object.
        name: the missing attribute.
        what: description of the object for use in a sentence: "a session".
        elsewhere: advice by name; `{name}` in it is replaced by the name.

    Raises:
        AttributeError: Always. If `name` is a property, its own AttributeError is raised again.
    """
    if hasattr(type(asked), name):
        return object.__getattribute__(asked, name)
    if name in elsewhere:
        raise AttributeError(f"{what} has no {name}: {elsewhere[name].format(name=name)}")
    raise AttributeError(f"{type(asked).__name__!r} object has no attribute {name!r}", name=name, obj=asked)
