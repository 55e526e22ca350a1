"""The phases of a training step, and what each of them has at its highest, by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..words.sizes import size_text

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
PHASES = FORWARD, BACKWARD, OPTIMIZER

AFTER_BACKWARD, BETWEEN = "after backward", "between"
"""What else there is of a step that is recorded: from the end of a backward to what follows, clipping for example; and
what comes before the first forward and after the optimizer, where gradients are set to zero and data is loaded."""

PARAMETERS, BUFFERS, BATCH = "parameters", "buffers", "batch"
GRADIENTS, STATE, ACTIVATIONS, TEMPORARIES = "gradients", "optimizer state", "activations", "temporaries"
CATEGORIES = PARAMETERS, BUFFERS, BATCH, STATE, GRADIENTS, ACTIVATIONS, TEMPORARIES
"""What bytes are: activations are there when the backward starts, and not before the forward; of a step that is
recorded, the batch is what is made between forwards and there as one starts; temporaries are what is none of the
others, what kernels take for themselves among them."""


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """What a phase of a step has at its highest.

    Attributes:
        phase: its name, "forward", "backward" or "optimizer"; of a step that is recorded also another, see `PHASES`.
        nbytes: all that is alive then.
        parts: of these bytes those of each category, see `CATEGORIES`.
    """

    phase: str
    nbytes: int
    parts: Mapping[str, int]


def phase_peaks(
    events: Sequence[int], nbytes: Sequence[int], starts: Sequence[tuple[str, int]], kinds: Mapping[int, str]
) -> tuple[PhasePeak, ...]:
    """The peak of each phase.

    Args:
        events: births and deaths of blocks in order, `n` and `~n`.
        nbytes: the size of each block.
        starts: the phases in order, each with the event that is its first; one may come several times. What comes
            before them is of none.
        kinds: by block its category; "temporaries" where none is said.
    """
    level: Counter[str] = Counter()
    whole = 0
    found: dict[str, PhasePeak] = {}
    phases = iter([*starts, ("", len(events))])
    phase, (following, start) = "", next(phases)

    def note() -> None:
        if phase and (phase not in found or whole > found[phase].nbytes):
            found[phase] = PhasePeak(phase, whole, {each: level[each] for each in CATEGORIES if level[each]})

    for place, event in enumerate([*events, None]):
        while place == start and following:
            phase, (following, start) = following, next(phases)
            note()
        if event is None:
            break
        block = event if event >= 0 else ~event
        size = nbytes[block] if event >= 0 else -nbytes[block]
        level[kinds.get(block, TEMPORARIES)] += size
        whole += size
        note()
    return tuple(found.values())


def cells_of(phases: Sequence[PhasePeak]) -> list[list[str]]:
    """A table of them: a column for each phase, a row for each category that one of them has, and what it is in all."""
    used = [each for each in CATEGORIES if any(each in phase.parts for phase in phases)]
    rows = [["", *(phase.phase for phase in phases)]]
    rows += [[each, *(size_text(phase.parts.get(each, 0)) for phase in phases)] for each in used]
    return [*rows, ["in all", *(size_text(phase.nbytes) for phase in phases)]]
