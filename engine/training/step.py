"""One training step, recorded: its memory by phase and category, and what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.phrases import joined
from ...inspector.renderers import GraphTheme, drawn, saved
from ...inspector.text.report import ShownAsTable
from ...inspector.text.sizes_and_counts import nth, share_text, size_text
from ..memory.baseline import OLDER_THAN_RECORDING
from ..memory.device_choice import chosen_device
from ..memory.lifetimes import STATE
from ..recording.run import Run
from .step_backward import StepBackwards
from .step_timeline import AFTER_BACKWARD, BETWEEN, FORWARD, PhasePeak, StepTimeline, cells_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_SAID = 4  # categories in a sentence; the table has all


@dataclass(frozen=True, eq=False, repr=False)
class TrainingStep(ShownAsTable):
    """A training step that was recorded: what `ts.profile_step` gives. In a notebook, and printed, it is a table.

    Attributes:
        number: its place among those that were recorded, the first is 0.
        timelines: by device its memory: accelerators first, of several the one that is highest.
        optimizers: the classes of the optimizers that stepped in it, in order.
        skipped: those whose step a gradient scaler left out, as gradients were not finite.
        like_before: whether its phases are as high as those of the step before; None: there was none.
    """

    number: int
    timelines: Mapping[str, StepTimeline]
    optimizers: tuple[str, ...]
    skipped: tuple[str, ...]
    like_before: bool | None = None
    _backwards: StepBackwards | None = None

    @property
    def timeline(self) -> StepTimeline:
        """The memory of the device that is meant where none is said: the first of `timelines`."""
        return next(iter(self.timelines.values()))

    @cached_property
    def run(self) -> Run:
        """The backward in which the step is at its highest, or the last before that: its graph, and as `run.timeline`
        the memory of the whole step, with what parameters and state take; `run.timelines` has that of each device.

        Raises:
            ValueError: it was not followed task by task, under `ts.policy` for example.
        """
        if self._backwards is None:
            raise ValueError("there is no graph of this step: it was not followed")
        with collector_paused():
            return self._backwards.at_peak()

    @property
    def peak_bytes(self) -> int:
        """The most that is alive at once, see `StepTimeline`."""
        return self.timeline.peak_bytes

    @property
    def phases(self) -> tuple[PhasePeak, ...]:
        """The peak of each phase, in bytes, with its categories."""
        return self.timeline.peaks

    @property
    def state_made(self) -> int:
        """The bytes by which the optimizers' state has grown in it, on all devices: in a first step all, else none."""
        at_end = sum(each.parts_at(len(each.events)).get(STATE, 0) for each in self.timelines.values())
        return at_end - self._state_at_start()

    def _state_at_start(self) -> int:
        return sum(each.parts_at(0).get(STATE, 0) for each in self.timelines.values())

    def peak(self, device: torch.device | str | None = None) -> StepPeak:
        """What is alive when the step is at its highest.

        Args:
            device: whose peak. None: that of `timeline`.

        Raises:
            ValueError: its memory was not recorded.
        """
        whose = self.timeline.device if device is None else chosen_device(device, self.timelines)
        return StepPeak(self, self.timelines[whose])

    @cached_property
    def beside_backward(self) -> tuple[int, int]:
        """Bytes: what is there as the forward before the backward of `run` begins, and the most that the step has
        outside of these two."""
        timeline = self.timeline
        measured = self.run.timeline
        assert measured is not None, "a step's run has its memory"
        first, last = (measured.starts[place] - timeline.before for place in (0, -1))
        starts = [phase.event for phase in timeline.phases if phase.name == FORWARD and phase.event <= first]
        begin = max(starts, default=0)
        outside = (*timeline.levels[: begin + 1], *timeline.levels[last:])
        return timeline.levels[begin], max(outside)

    def deck(self) -> Any:
        """The step as a widget, in a notebook, that plays `run` with the memory of the whole step: forward, backward
        and optimizer.

        Raises:
            ValueError: it was not followed task by task.
            ModuleNotFoundError: `anywidget` is missing.
        """
        try:
            return drawn("step as a deck", self)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "step.deck() needs a notebook with anywidget: pip install 'tapescope[notebook]'. "
                "step.save_html(path) writes a page that plays without"
            ) from error

    def save_html(self, path: str | Path) -> Path:
        """Writes what `deck` shows as one page that plays it, without a kernel or a network."""
        return saved("step as a page", self, path)

    def to_pandas(self, table: Literal["phases", "blocks", "tasks"] = "phases") -> Any:
        """The step as a pandas.DataFrame.

        Args:
            table: "phases": a row for each phase on each device: `step`, `device`, `phase`, `optimizer`, `started_s`
                and `ended_s` in seconds since the step began, `bytes_before`, `bytes_after`, `peak_bytes`, and the
                bytes of each category at that peak. "blocks": a row for each block of memory, as `records`. "tasks": a
                row for each task of the backward of `run`, see `Run.to_pandas`.

        Raises:
            ModuleNotFoundError: pandas is not installed.
            ValueError: there is no such table; or its backward was not followed task by task ("tasks").
        """
        return drawn("step as a table", self, table)

    def save_perfetto(self, path: str | PathLike[str]) -> Path:
        """Writes the step as a trace that ui.perfetto.dev and chrome://tracing open, see `Run.save_perfetto`.

        Its phases are slices, and memory is a counter of each category; the backward of `run`, if it was followed, has
        its tasks, with arrows from the forward's operations.

        Raises:
            TypeError: path is no path.
            OSError: it can't be written.
        """
        return saved("steps for Perfetto", [self], path)

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """The step's memory over time, by category, with its phases. Needs plotly."""
        return drawn("step as a figure", self, theme)

    def __repr__(self) -> str:
        peak = f"peak {size_text(self.peak_bytes)} in {place_of(self.timeline.peak_phase.name)}"
        events = f"{len(self.timeline.events):,} events, {self.timeline.elapsed_ns / 1e6:.1f} ms"
        return f"<TrainingStep, the {nth(self.number + 1)} of those recorded: {peak}, {events}>"

    words = ("",)
    html = "phases as HTML"

    @property
    def cells(self) -> list[list[str]]:
        return cells_of(self.phases)

    @property
    def sentences(self) -> list[str]:
        before = self.timeline.baseline
        standing = f"{size_text(before.nbytes)} were there as it began: {before.listed}."
        said = [standing] if before.nbytes else []
        return [*self.peak().answer, *self._elsewhere(), *self._apart(), *said, OLDER_THAN_RECORDING]

    def _elsewhere(self) -> Iterator[str]:
        """The peaks of other devices, as far as they are one percent of this one's."""
        for device, timeline in self.timelines.items():
            if timeline is not self.timeline and timeline.peak_bytes * 100 >= self.peak_bytes:
                where = place_of(timeline.peak_phase.name)
                yield f"On {device} it is at its highest in {where}: {size_text(timeline.peak_bytes)}."

    def _apart(self) -> Iterator[str]:
        """What is not as in other steps."""
        made = self.state_made
        if made > 0 and self._state_at_start() == 0:
            state = f"{state_of(self.optimizers)} is made in it, {size_text(made)}"
            yield f"It is a first step: {state}. Later ones differ."
        if self.skipped:
            which = joined([f"{each}'s step" for each in self.skipped])
            yield f"The gradient scaler left out {which}, as gradients were not finite."
        if not self.optimizers and not self.skipped:
            yield "No optimizer stepped in it."
        if self._backwards is not None and (why := self._backwards.why_none):
            yield f"It has no run, deck or page: {why}."

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per block, for `pandas.DataFrame(step.records())`.

        `device`; `number`, of those on it; `bytes`; `category`; `born` and `died`, the phases ("before" and "" where it
        was there before and stays); `born_ns` and `died_ns` since the step began; `at_peak` of its device.
        """
        return [row for timeline in self.timelines.values() for row in _records(timeline)]


def _records(timeline: StepTimeline) -> list[dict[str, Any]]:
    alive = set(timeline.alive(timeline.peak_event))
    found = [
        {
            "device": timeline.device,
            "number": number,
            "bytes": nbytes,
            "category": timeline.kinds[number],
            "born": "before",
            "died": "",
            "born_ns": None,
            "died_ns": None,
            "at_peak": number in alive,
        }
        for number, nbytes in enumerate(timeline.nbytes)
    ]
    for event, each in enumerate(timeline.events):
        row = found[each if each >= 0 else ~each]
        when = "born" if each >= 0 else "died"
        row |= {when: timeline.phase_at(event).name, f"{when}_ns": timeline.event_ns[event]}
    return found


@dataclass(frozen=True, eq=False, repr=False)
class StepPeak(ShownAsTable):
    """What is alive when a step is at its highest on one device. In a notebook, and printed, it is a table.

    Attributes:
        step: whose peak it is.
        timeline: the memory of that device, over the whole step.
    """

    step: TrainingStep
    timeline: StepTimeline

    @property
    def nbytes(self) -> int:
        """The peak: all bytes that are alive at it, see `StepTimeline`."""
        return self.timeline.peak_bytes

    @property
    def phase(self) -> str:
        """The phase that the peak is in."""
        return self.timeline.peak_phase.name

    @cached_property
    def categories(self) -> dict[str, int]:
        """Bytes by category, most first."""
        parts = self.timeline.parts_at(self.timeline.peak_event)
        return dict(sorted(parts.items(), key=lambda part: -part[1]))

    @property
    def shares(self) -> str:
        """`60 % is activations and 40 % is Adam's state`: what of it is what, most first, and no more than four."""
        named = [
            f"{share_text(nbytes, self.nbytes)} is {state_of(self.step.optimizers) if kind == STATE else kind}"
            for kind, nbytes in self.categories.items()
            if nbytes * 100 >= self.nbytes
        ]
        return joined(named[:_MOST_SAID], _MOST_SAID)

    @property
    def answer(self) -> tuple[str, ...]:
        """The peak and what most of it is, in sentences."""
        of = "" if len(self.step.timelines) == 1 else f" on {self.timeline.device}"
        where = f"The step is at its highest{of} in {place_of(self.phase)}: {size_text(self.nbytes)}."
        return where, f"At the peak {self.shares}."

    def __repr__(self) -> str:
        return f"<StepPeak: {' '.join(self.answer)}>"

    words = ("",)
    html = "phases as HTML"

    @property
    def cells(self) -> list[list[str]]:
        rows = [[kind, size_text(nbytes), share_text(nbytes, self.nbytes)] for kind, nbytes in self.categories.items()]
        return [["", "at the peak", "share"], *rows, ["in all", size_text(self.nbytes), "100 %"]]

    @property
    def sentences(self) -> Sequence[str]:
        return self.answer


_PLACES = {BETWEEN: "what is between forwards", AFTER_BACKWARD: "what follows the backward"}


def place_of(phase: str) -> str:
    """`the backward`, `what follows the backward`: where something is, after "in"."""
    return _PLACES.get(phase, f"the {phase}")


def state_of(optimizers: Sequence[str]) -> str:
    """`Adam's state`, `the optimizers' state`."""
    classes = set(optimizers)
    return f"{optimizers[0]}'s state" if len(classes) == 1 else "the optimizers' state"


def step_began_ns(step: TrainingStep) -> int:
    """When a step began, on the clock of the memory of its run.

    Raises:
        ValueError: no backward of it was followed.
    """
    timeline = step.run.timeline
    assert timeline is not None, "a step's run has its memory"
    return timeline.event_ns[0] - (0 if step.timeline.before else step.timeline.event_ns[0])
