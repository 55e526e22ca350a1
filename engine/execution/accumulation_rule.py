"""Rules for summing the gradients of an input and for freeing them: PyTorch's, and others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Accumulate = Literal["inplace", "out_of_place", "list"]
Release = Literal["eager", "never"]

GraphRule = Literal["freed", "kept"]
"""When nodes free their saved tensors: as they run, or not at all (`retain_graph=True`)."""

_NAMES = {"inplace": "", "out_of_place": "out of place", "list": "list"}


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The rule for the gradients in an input buffer.

    Args:
        accumulate: "inplace": a gradient is added to the waiting one, in place if nothing else holds that (PyTorch,
            input_buffer.cpp). "out_of_place": each sum is a new tensor, and the waiting one is freed immediately.
            "list": all gradients are kept; when the task runs, the first two are summed into a new tensor, the others
            are added to it in place, and the list is freed (HIPS/autograd, vsum).
        release: "eager": gradients are freed when their task has run. "never": they are kept until the backward ends,
            including all gradients of a list, as HIPS/autograd did before its #219. A leaf's gradient becomes its .grad
            in either case.

    Raises:
        ValueError: If a rule is unknown; the message names the known ones.
    """

    accumulate: Accumulate = "inplace"
    release: Release = "eager"

    def __post_init__(self) -> None:
        rules = (
            ("accumulate", self.accumulate, get_args(Accumulate)),
            ("release", self.release, get_args(Release)),
        )
        for name, value, known in rules:
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; expected one of {', '.join(map(repr, known))}")

    @property
    def name(self) -> str:
        """The rule in words: "list", "never released", "out of place, never released"; "" for PyTorch's own."""
        words = (_NAMES[self.accumulate], "never released" if self.keeps else "")
        return ", ".join(filter(None, words))

    @property
    def lists(self) -> bool:
        """True if gradients wait in a list until their task runs."""
        return self.accumulate == "list"

    @property
    def keeps(self) -> bool:
        """True if consumed gradients are kept."""
        return self.release == "never"

    def of(self, policy: str) -> str:
        """Return the name of a policy under this rule: "heap", "heap, list"."""
        return f"{policy}, {self.name}" if self.name else policy

    def check_native(self) -> None:
        """Check that PyTorch's own engine follows this rule.

        Raises:
            NotImplementedError: If it does not.
        """
        if self != PYTORCHS:
            raise NotImplementedError(
                f"PyTorch's own engine always adds in place and frees eagerly; for another rule ({self.name}), use "
                'engine="direct"'
            )


PYTORCHS = Accumulation()
