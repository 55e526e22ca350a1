"""Checks of what users pass: each error names the argument, its type, and what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from inspect import signature
from types import UnionType
from typing import Any

from torch import Tensor, nn


def expect(value: object, kind: type | UnionType, name: str, wanted: str) -> None:
    """Refuses what is of another type.

    Args:
        value: what was passed.
        kind: what it should be an instance of.
        name: of the argument.
        wanted: what to pass, in words.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {a_kind(value)}; expected {wanted}")


def expect_number(value: object, kind: type | UnionType, name: str, wanted: str) -> None:
    """Refuses what is no number of this kind, truth values included."""
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}; expected {wanted}")
    expect(value, kind, name, wanted)


def expect_truth(value: object, name: str) -> None:
    """Refuses what is neither True nor False: of anything else Python would make one of them in silence."""
    if not isinstance(value, int) or value not in (0, 1):
        what = value if isinstance(value, int | float) else a_kind(value)
        raise TypeError(f"{name} is {what}; expected True or False")


def expect_choice(value: object, known: tuple[str, ...], name: str) -> None:
    """Refuses what is none of these words."""
    if not (isinstance(value, str) and value in known):
        raise ValueError(f"{name} is {value!r}; expected {' or '.join(map(repr, known))}")


def expect_callable(value: object, arguments: int, name: str, wanted: str) -> None:
    """Refuses what can't be called with so many arguments by position, as far as its signature tells.

    A module of torch's own takes tensors, whatever its signature: with others it raises from inside of a kernel.
    """
    called: object = value
    if isinstance(value, nn.Module):
        if type(value).__module__.startswith("torch."):
            raise TypeError(f"{name} is a module, {type(value).__name__}; expected {wanted}")
        called = value.forward
    if not callable(called):
        raise TypeError(f"{name} is {a_kind(value)}; expected {wanted}")
    try:
        takes = signature(called)
    except (TypeError, ValueError):  # written in C
        return
    try:
        takes.bind(*[None] * arguments)
    except TypeError as error:
        title = getattr(value, "__qualname__", type(value).__name__)
        count = ("no arguments", "one argument")[arguments] if arguments < 2 else f"{arguments} arguments"
        raise TypeError(f"{name} is {title}, which can't be called with {count} ({error}); expected {wanted}") from None


def expect_model(model: object) -> None:
    """Refuses what can't name a forward's modules.

    Raises:
        TypeError: it is neither None nor a module.
    """
    wanted = (
        'the module to name things after; several are one, nn.ModuleDict({"G": generator, "D": critic}). '
        "None names them after what is called"
    )
    expect(model, nn.Module | None, "model", wanted)


def expect_outputs(value: object) -> None:
    """Refuses what a backward can't start from, and says what was meant: the loss, not the model nor a dict of losses.

    Raises:
        TypeError: it is neither a tensor nor what tensors can be got from one after the other.
    """
    wanted = f"expected a tensor or a sequence of tensors, got {a_kind(value)}"
    if isinstance(value, nn.Module):
        raise TypeError(f"{wanted}, which is a model: pass the loss that was made with it, such as model(x).sum()")
    if isinstance(value, Mapping):
        tensors = [key for key, each in value.items() if isinstance(each, Tensor) and each.requires_grad]
        named = "loss" if "loss" in tensors else next(iter(tensors), None)
        raise TypeError(wanted if named is None else f"{wanted}: pass what is in it, such as the one under {named!r}")
    if isinstance(value, str):
        raise TypeError(f"{wanted}: pass the loss itself, not its name")
    if type(value).__module__ == "numpy":
        raise TypeError(f"{wanted}, which has no graph below it: pass the tensor that it was made from")
    if callable(value):
        raise TypeError(f"{wanted}: pass the loss that it makes, by calling it")
    if not isinstance(value, Tensor | Iterable):
        raise TypeError(f"{wanted}: pass the loss")


def a_kind(value: object) -> str:
    """What a value is, in the midst of a sentence: "an int", "a Tensor", "None"."""
    if value is None:
        return "None"
    name = type(value).__name__
    with_an = "AEFHILMNORSX" if name[:2].isupper() else "aeioAEIO"  # "an SGD", spoken letter by letter
    return f"{'an' if name[0] in with_an else 'a'} {name}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean 'heap'?` of the nearest known one, and `;` where none is near: to stand behind the word."""
    near = get_close_matches(word, [*known], 1)
    return f", did you mean {near[0]!r}?" if near else ";"


def asked_in_vain(asked: object, name: str, what: str, elsewhere: Mapping[str, str]) -> Any:
    """For a `__getattr__`: raises what Python would, but of names of which it is known where they are.

    Args:
        asked: whose attribute.
        name: which.
        what: what it is, in the midst of a sentence: "a session".
        elsewhere: by name what to do instead; `{name}` in it is the name.

    Raises:
        AttributeError: always, unless it is a property, whose own AttributeError is raised again.
    """
    if hasattr(type(asked), name):
        return object.__getattribute__(asked, name)
    if name in elsewhere:
        raise AttributeError(f"{what} has no {name}: {elsewhere[name].format(name=name)}")
    raise AttributeError(f"{type(asked).__name__!r} object has no attribute {name!r}", name=name, obj=asked)
