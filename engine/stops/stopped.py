"""Why a session stopped before its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Why = Literal["breakpoint", "watchpoint", "asked"]


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """Why a session stopped: a sentence for a person, and what it speaks of.

    Attributes:
        why: a breakpoint, a watchpoint, or somebody called `stop`.
        number: of the breakpoint or watchpoint.
        task: the id of the task it is about: the one to come for a breakpoint, for a watchpoint the one that gave the
            gradient.
        text: what it is, and at which task, with its module and source line.
        lines: what else is known: of a bad gradient the way back to its origin.
        tensors: by name the tensors which it speaks of, the session's own in their own shapes, not copies.
        since: how many tasks have run since that one. Not 0 only where an accelerator was not waited for.
        unread: the ids of tasks whose gradients a watchpoint could not read; the session's last stop speaks of them.
        hint: what would let it say more, in the first stop of a session that has a reason to; "": nothing.
    """

    why: Why
    number: int | None
    task: int | None
    text: str
    lines: tuple[str, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    since: int = 0
    hint: str = ""
    unread: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "\n".join((self.text, *(f"  {line}" for line in self.all_lines)))

    @property
    def all_lines(self) -> tuple[str, ...]:
        """`lines`, and the hint where there is one."""
        return (*self.lines, self.hint) if self.hint else self.lines
