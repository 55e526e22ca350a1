"""The results of checks: one finding per program and check, and an entry's findings with their counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["equal", "same error", "nondeterministic", "refused", "failed", "not compared"]

# The possible outcomes of an entry's programs.
COMPARED, RAISES, NOTHING = "compared", "raise in the forward", "have nothing to differentiate"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of one program.

    Attributes:
        program: its name; the entry's, where none of its programs could be compared.
        check: the check's name.
        outcome: "equal" (bit for bit, or closely where the order is another), "same error" (type and message),
            "nondeterministic" (PyTorch's own gradients are not the same twice), "refused" by the direct engine,
            "failed", or "not compared".
        reason: more about it, unless both did the same.
    """

    program: str
    check: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """The results of the checks of one entry.

    Attributes:
        entry: its name.
        programs: how many were compared, raise in the forward, or have nothing to differentiate.
        outcomes: how often each (check, outcome) came.
        findings: those which are not equal.
    """

    entry: str
    programs: Counter[str]
    outcomes: Counter[tuple[str, str]]
    findings: tuple[Finding, ...]
