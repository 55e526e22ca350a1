"""Steps simulated with batches of several sizes, and the search for the largest batch that fits into memory."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...inspector.text.progress import Tell, telling
from ...inspector.torch_private.operators import zeros_shared
from .simulated_step import FakeStep, Workspaces, fake_step, rounded
from .training_recipe import Recipe

LARGEST_TRIED = 2**20


class TriedBatches:
    """Steps on fake tensors with batches of several sizes, each run once."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._steps: dict[int | None, FakeStep] = {}
        self._learned: tuple[Workspaces, ...] | None = None

    def step(self, size: int | None) -> FakeStep:
        """Run a step with a batch of this size. Workspaces of kernels too large to run come from smaller batches."""
        if size not in self._steps:
            with telling(None, "fitting") as tell:
                tell("two steps on fake tensors" + ("" if size is None else f", with a batch of {size:,}"))
                found = fake_step(self._recipe.sized(size), learned=self._learned or ())
                if found.too_large and self._learned is None and size is not None and size > 2:
                    found = fake_step(self._recipe.sized(size), learned=self.learned())
            self._steps[size] = found
        return self._steps[size]

    @property
    def known(self) -> tuple[Workspaces, ...]:
        """Return the workspaces measured with smaller batches that have run."""
        return self._learned or ()

    def learned(self) -> tuple[Workspaces, ...]:
        """Measure the kernels' workspaces with batches of 2 and 3; of 1 and 2 if the program takes no batch of 3.

        Convolutions use another algorithm for a batch of 1, so its workspaces are not on a line with larger ones.
        """
        if self._learned is None:
            self._learned = ()
            sizes = next((pair for pair in ((2, 3), (1, 2)) if all(map(self._works, pair))), ())
            self._learned = tuple(Workspaces(size, self.step(size).workspaces) for size in sizes)
        return self._learned

    def _works(self, size: int) -> bool:
        try:
            self.step(size)
        except NotImplementedError:
            raise
        except Exception:  # a batch norm takes no batch of one, for example
            return False
        return True

    def largest(self, memory: int) -> int | None:
        """Return the largest size that fits; 0 if none does, None if all tried sizes do."""
        with telling(None, "looking for the largest batch") as tell, zeros_shared():
            return self._largest(memory, tell)

    def _largest(self, memory: int, tell: Tell) -> int | None:
        tell("the smallest ones")
        small = next((size for size in (1, 2) if self._works(size) and self._works(size + 1)), 1)
        known: dict[int, int] = {}
        for size in (small, small + 1):
            known[size] = self._peak(size)
        line = _Line.through(self._steps[small], self._steps[small + 1], small)
        if line is not None and (likely := line.largest(memory)) is not None:
            tell(f"{likely:,}")
            known[likely] = self._peak(likely)
            if line.holds_at(likely, self._steps[likely]):
                return likely
        while True:
            fitting = max((size for size, peak in known.items() if peak <= memory), default=0)
            not_fitting = min((size for size, peak in known.items() if peak > memory), default=None)
            if fitting >= LARGEST_TRIED:
                return None
            if not_fitting is not None and not_fitting <= max(fitting + 1, small):
                return fitting
            size = _guess(known, memory, fitting, not_fitting)
            tell(f"{size:,} (try {len(known) - 1})")
            known[size] = self._peak(size)

    def _peak(self, size: int) -> int:
        try:
            return self.step(size).peak_bytes
        except Exception as error:
            error.add_note(f"tapescope: with a batch of {size:,}, tried by ts.fits to find the largest one that fits")
            raise


@dataclass(frozen=True, slots=True)
class _Line:
    """The steps of all batch sizes, if the bytes of each tensor lie on a line through those of two sizes.

    Attributes:
        step: the simulated step of the smaller size.
        size: the smaller size.
        slopes: by block of that step, the bytes that it grows by from one size to the next.
    """

    step: FakeStep
    size: int
    slopes: Sequence[int]

    @classmethod
    def through(cls, step: FakeStep, following: FakeStep, size: int) -> _Line | None:
        """Return the line through the steps of a size and the next one; None if they allocate and free differently."""
        if not _same_events(step, following):
            return None
        pairs = zip(step.exact_bytes, following.exact_bytes, strict=True)
        return cls(step, size, [second - first for first, second in pairs])

    def at(self, size: int) -> list[int]:
        """Return the bytes of each block at this size."""
        more = size - self.size
        return [first + more * slope for first, slope in zip(self.step.exact_bytes, self.slopes, strict=True)]

    def largest(self, memory: int) -> int | None:
        """Return the largest size that fits by this line; None if it is not between the second size and the limit."""
        fitting, not_fitting = self.size + 1, LARGEST_TRIED
        if not self._peak(fitting) <= memory < self._peak(not_fitting):
            return None
        while not_fitting - fitting > 1:
            size = (fitting + not_fitting) // 2
            if self._peak(size) <= memory:
                fitting = size
            else:
                not_fitting = size
        return fitting if fitting > self.size + 1 else None

    def holds_at(self, size: int, step: FakeStep) -> bool:
        """Return whether the simulated step of another size is as the line predicts it, to the byte."""
        return _same_events(self.step, step) and self.at(size) == list(step.exact_bytes)

    def _peak(self, size: int) -> int:
        nbytes = array("q", (rounded(each, self.step.device) for each in self.at(size)))
        return replace(self.step.timeline, nbytes=nbytes).peak_bytes


def _same_events(one: FakeStep, other: FakeStep) -> bool:
    first, second = one.timeline, other.timeline
    return first.before == second.before and first.events == second.events


def _guess(known: Mapping[int, int], memory: int, fitting: int, not_fitting: int | None) -> int:
    """Return a size above the largest that fits and below the smallest that does not.

    It is where a line through these two points meets the memory, or through the two largest while all fit. A peak is
    the maximum of several lines, which a line through two points can miss, so every third guess is the middle.
    """
    if not_fitting is not None and len(known) % 3 == 1:
        return (fitting + not_fitting) // 2
    first, second = sorted(known)[-2:] if not_fitting is None else (fitting or min(known), not_fitting)
    slope = (known[second] - known[first]) / (second - first) if second > first else 0
    guess = LARGEST_TRIED if slope <= 0 else int(first + (memory - known[first]) / slope)
    highest = LARGEST_TRIED if not_fitting is None else not_fitting - 1
    return min(max(guess, fitting + 1), highest)
