"""What users pass, looked at where it enters: each refusal names the argument, what it is, and what it should be."""

from __future__ import annotations

from types import UnionType


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
        what = "None" if value is None else f"a {type(value).__name__}"
        raise TypeError(f"{name} is {what}; expected {wanted}")


def expect_number(value: object, kind: type | UnionType, name: str, wanted: str) -> None:
    """Refuses what is no number of this kind, truth values included."""
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}; expected {wanted}")
    expect(value, kind, name, wanted)
