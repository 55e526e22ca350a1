"""What is found in a training loop, each as a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FindingKind = Literal[
    "leak",
    "silent write",
    "never stepped",
    "without gradient",
    "skipped",
    "learning rate",
    "norm",
    "non-finite",
    "unread",
    "second backward",
    "stale cast",
    "black box",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found in a training loop. As text it is the sentence.

    Attributes:
        kind: what it is.
        step: where it was found first; steps are counted from 0.
        sentence: all of it in words: the place, the size, and what to do.
        module, tensor: the names of what it is about, where it is one.
        size: its bytes.
        at: `file:line` in the user's code.
        last_step: where it was found last, if it went on.
        certain: whether it is so, and not only likely.
        alike: of a leak how many holders there are that differ by an index at most; `tensor` is the first of them.
    """

    kind: FindingKind
    step: int
    sentence: str
    module: str | None = None
    tensor: str | None = None
    size: int | None = None
    at: str | None = None
    last_step: int | None = None
    certain: bool = True
    alike: int | None = None

    def __str__(self) -> str:
        return self.sentence

    @property
    def subject(self) -> tuple[str | None, ...]:
        """What it is about: two findings with the same are one, which went on."""
        return self.kind, self.module, self.tensor, self.at
