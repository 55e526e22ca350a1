"""How gradients that meet at a task are summed, and when what waited for it is let go: PyTorch's rule, and others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Accumulate = Literal["inplace", "out_of_place", "list"]
Release = Literal["eager", "never"]

_NAMES = {"inplace": "", "out_of_place": "out of place", "list": "list"}


@dataclass(frozen=True, slots=True)
class Accumulation:
    """What becomes of the gradients in an input buffer.

    Args:
        accumulate: "inplace": what comes is added to what waits, in place where nobody else holds that (PyTorch,
            input_buffer.cpp). "out_of_place": each sum is a new tensor, and what waited is let go at once. "list": all
            that comes is kept; when the task runs, the first two are summed into a new tensor, the others are added to
            that in place, and the list is let go (HIPS/autograd, vsum).
        release: "eager": what waited is let go when its task has run. "never": it is kept until the backward ends, a
            list with all that is in it, as HIPS/autograd did before its #219. What waited for a leaf has become its
            .grad: that alone.

    Raises:
        ValueError: there is no such rule; says which there are.
    """

    accumulate: Accumulate = "inplace"
    release: Release = "eager"

    def __post_init__(self) -> None:
        _check("accumulate", self.accumulate, get_args(Accumulate))
        _check("release", self.release, get_args(Release))

    @property
    def name(self) -> str:
        """ "" for PyTorch's own rule, "list", "never released", "out of place, never released"."""
        words = (_NAMES[self.accumulate], "never released" if self.keeps else "")
        return ", ".join(filter(None, words))

    @property
    def lists(self) -> bool:
        """Whether what comes waits in a list until its task runs."""
        return self.accumulate == "list"

    @property
    def keeps(self) -> bool:
        """Whether what has been consumed is kept."""
        return self.release == "never"

    def of(self, policy: str) -> str:
        """The name of a policy under this rule: "heap", "heap, list"."""
        return f"{policy}, {self.name}" if self.name else policy

    def check_native(self) -> None:
        """Says that PyTorch's own engine has one rule.

        Raises:
            NotImplementedError: this is another one.
        """
        if self != PYTORCHS:
            raise NotImplementedError(
                f"PyTorch's own engine adds in place and lets go at once; to accumulate otherwise ({self.name}), use "
                'engine="direct"'
            )


def _check(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"there is no {what}={given!r}; known are {', '.join(map(repr, known))}")


PYTORCHS = Accumulation()
