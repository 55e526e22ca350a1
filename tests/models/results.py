"""The contents of the table's cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["right", "estimate", "refused", "wrong", "skipped"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one verb with one third-party model.

    Attributes:
        outcome: "right"; "estimate": it says so of itself, and may be off; "refused", in a sentence of ours; "wrong";
            "skipped": the library is not installed.
        text: figures, or what was refused or wrong.
    """

    outcome: Outcome
    text: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The results of all verbs with one third-party model.

    Attributes:
        name: library and model.
        cells: by verb.
        seconds: how long it took.
    """

    name: str
    cells: dict[str, Cell]
    seconds: float

    @property
    def is_wrong(self) -> bool:
        return any(cell.outcome == "wrong" for cell in self.cells.values())
