"""A recorded training step: its memory by phase and category, its optimizers and its backwards."""

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
from ...inspector.text.sizes_and_counts import share_text, size_text
from ..memory.baseline import OLDER_THAN_RECORDING
from ..memory.categories import GRADIENTS, STATE
from ..memory.device_choice import chosen_device
from ..recording.run import Run
from .step_backward import StepBackwards
from .step_memory import AFTER_BACKWARD, BETWEEN, FORWARD, PhasePeak, StepTimeline, cells_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_SAID = 4  # categories in a sentence; the table has all


@dataclass(frozen=True, eq=False, repr=False)
class TrainingStep(ShownAsTable):
    """A recorded training step: the result of `ts.profile_step`. It prints, and displays itself, as a table.

    Attributes:
        number: its place among the recorded steps, from 0.
        timelines: the memory of each device: accelerators first, the one with the highest peak in front.
        optimizers: the classes of the optimizers that stepped in it, in order.
        skipped: those whose step a gradient scaler skipped, because gradients were not finite.
        like_before: whether its phases have the same peaks as those of the step before; None for the first step.
    """

    number: int
    timelines: Mapping[str, StepTimeline]
    optimizers: tuple[str, ...]
    skipped: tuple[str, ...]
    like_before: bool | None = None
    _backwards: StepBackwards | None = None

    @property
    def timeline(self) -> StepTimeline:
        """The memory of the default device: the first of `timelines`."""
        return next(iter(self.timelines.values()))

    @cached_property
    def run(self) -> Run:
        """The backward that contains the peak of the step, or the last one before it: its graph, and as `run.timeline`
        the memory of
        the whole step, including parameters and state; `run.timelines` has that of each device.

        Raises:
            ValueError: it was not traced task by task, for example under `ts.policy`.
        """
        if self._backwards is None:
            raise ValueError("this step has no graph, because its backward was not traced")
        with collector_paused():
            return self._backwards.at_peak()

    @property
    def peak_bytes(self) -> int:
        """The peak in bytes, see `StepTimeline`."""
        return self.timeline.peak_bytes

    @property
    def phases(self) -> tuple[PhasePeak, ...]:
        """The peak of each phase, in bytes, by category."""
        return self.timeline.peaks

    @property
    def state_made(self) -> int:
        """The bytes by which the optimizers' state grew in it, on all devices."""
        at_end = sum(each.parts_at(len(each.events)).get(STATE, 0) for each in self.timelines.values())
        return at_end - self._state_at_start()

    def _state_at_start(self) -> int:
        return sum(each.parts_at(0).get(STATE, 0) for each in self.timelines.values())

    def peak(self, device: torch.device | str | None = None) -> StepPeak:
        """Return the allocations alive at the peak of the step.

        Args:
            device: the device. None: that of `timeline`.

        Raises:
            ValueError: the memory of the device was not recorded.
        """
        whose = self.timeline.device if device is None else chosen_device(device, self.timelines)
        return StepPeak(self, self.timelines[whose])

    @cached_property
    def beside_backward(self) -> tuple[int, int]:
        """Return the bytes alive before the forward of `run`, and the peak of the step outside that forward and
        backward."""
        timeline = self.timeline
        measured = self.run.timeline
        assert measured is not None, "a step's run has its memory"
        first, last = (measured.starts[place] - timeline.before for place in (0, -1))
        starts = [phase.event for phase in timeline.phases if phase.name == FORWARD and phase.event <= first]
        begin = max(starts, default=0)
        outside = (*timeline.levels[: begin + 1], *timeline.levels[last:])
        return timeline.levels[begin], max(outside)

    def deck(self) -> Any:
        """Return the step as a widget for a notebook, which plays `run` with the memory of the whole step: forward,
        backward and
        optimizer.

        Raises:
            ValueError: it was not traced task by task.
            ModuleNotFoundError: `anywidget` is not installed.
        """
        try:
            return drawn("step as a deck", self)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "step.deck() needs a notebook with anywidget: pip install 'tapescope[notebook]'. "
                "step.save_html(path) writes a page that plays without"
            ) from error

    def save_html(self, path: str | Path) -> Path:
        """Write the content of `deck` as one page that plays without a kernel or a network connection."""
        return saved("step as a page", self, path)

    def to_pandas(self, table: Literal["phases", "blocks", "tasks"] = "phases") -> Any:
        """Return the step as a pandas.DataFrame.

        Args:
            table: "phases": a row for each phase on each device: `step`, `device`, `phase`, `optimizer`, `started_s`
                and `ended_s` in seconds since the step began, `bytes_before`, `bytes_after`, `peak_bytes`, and the
                bytes of each category at that peak. "blocks": a row for each storage, as in `records`. "tasks": a row
                for each task of the backward of `run`, see `Run.to_pandas`.

        Raises:
            ModuleNotFoundError: pandas is not installed.
            ValueError: the table is unknown, or the backward was not traced task by task ("tasks").
        """
        return drawn("step as a table", self, table)

    def save_perfetto(self, path: str | PathLike[str]) -> Path:
        """Write the step as a trace for Perfetto and chrome://tracing, see `Run.save_perfetto`.

        Its phases are slices, and each memory category is a counter. If the backward of `run` was traced, it has its
        tasks, with arrows from the forward's operations.

        Raises:
            TypeError: path is not a path.
            OSError: the file cannot be written.
        """
        return saved("steps for Perfetto", [self], path)

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Draw the step's memory over time by category, with its phases. Needs plotly."""
        return drawn("step as a figure", self, theme)

    def __repr__(self) -> str:
        peak = f"peak {size_text(self.peak_bytes)} in {place_of(self.timeline.peak_phase.name)}"
        events = f"{len(self.timeline.events):,} events, {self.timeline.elapsed_ns / 1e6:.1f} ms"
        return f"<TrainingStep {self.number}: {peak}, {events}>"

    words = ("",)
    html = "phases as HTML"

    @property
    def cells(self) -> list[list[str]]:
        return cells_of(self.phases)

    @property
    def sentences(self) -> list[str]:
        before = self.timeline.baseline
        standing = f"{size_text(before.nbytes)} existed at its start: {before.listed}."
        said = [standing] if before.nbytes else []
        return [
            *self.peak().answer,
            *self._elsewhere(),
            *self._older_gradients(),
            *self._apart(),
            *said,
            OLDER_THAN_RECORDING,
        ]

    def _older_gradients(self) -> Iterator[str]:
        """Yield a sentence if the previous step's gradients stay alive through the forward, where nothing uses them."""
        timeline = self.timeline
        forward = next((each for each in timeline.peaks if each.phase == FORWARD), None)
        older = timeline.parts_at(0).get(GRADIENTS, 0)
        nbytes = min(older, forward.parts.get(GRADIENTS, 0)) if forward is not None else 0
        if nbytes * 100 < self.peak_bytes:
            return
        at_peak = timeline.peak_phase.name == FORWARD
        yield (
            f"{size_text(nbytes)} of gradients of the previous step stay alive through the forward, which "
            f"{'contains' if at_peak else 'does not contain'} the peak: call "
            "optimizer.zero_grad(set_to_none=True) before the forward."
        )

    def _elsewhere(self) -> Iterator[str]:
        """Describe the peaks of other devices that are at least one percent of this one's."""
        for device, timeline in self.timelines.items():
            if timeline is not self.timeline and timeline.peak_bytes * 100 >= self.peak_bytes:
                where = place_of(timeline.peak_phase.name)
                yield f"On {device} it is at its highest in {where}: {size_text(timeline.peak_bytes)}."

    def _apart(self) -> Iterator[str]:
        """Describe differences from the other steps."""
        made = self.state_made
        if made > 0 and self._state_at_start() == 0:
            state = f"{state_of(self.optimizers)} is created in it, {size_text(made)}"
            yield f"It is a first step: {state}. Later ones differ."
        if self.skipped:
            which = joined([f"{each}'s step" for each in self.skipped])
            yield f"The gradient scaler skipped {which} because gradients were not finite."
        if not self.optimizers and not self.skipped:
            yield "No optimizer stepped in it."
        if self._backwards is not None and (why := self._backwards.why_none):
            yield f"It has no run, deck or page: {why}."

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per storage, for `pandas.DataFrame(step.records())`.

        The keys are `device`; `number` on that device; `bytes`; `category`; `born` and `died`, the phases of allocation
        and release ("before" and "" if it existed before and stays); `born_ns` and `died_ns` since the step began; and
        `at_peak` of its device.
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
    """The peak of a step on one device. It prints, and displays itself, as a table.

    Attributes:
        step: the step.
        timeline: the memory of that device over the whole step.
    """

    step: TrainingStep
    timeline: StepTimeline

    @property
    def nbytes(self) -> int:
        """The bytes alive at the peak, see `StepTimeline`."""
        return self.timeline.peak_bytes

    @property
    def phase(self) -> str:
        """The phase that contains the peak."""
        return self.timeline.peak_phase.name

    @cached_property
    def categories(self) -> dict[str, int]:
        """Bytes by category, in descending order."""
        parts = self.timeline.parts_at(self.timeline.peak_event)
        return dict(sorted(parts.items(), key=lambda part: -part[1]))

    @property
    def shares(self) -> str:
        """Describe the largest categories: `60 % is activations and 40 % is Adam's state`; at most four."""
        named = [
            f"{share_text(nbytes, self.nbytes)} is {state_of(self.step.optimizers) if kind == STATE else kind}"
            for kind, nbytes in self.categories.items()
            if nbytes * 100 >= self.nbytes
        ]
        return joined(named[:_MOST_SAID], _MOST_SAID)

    @property
    def answer(self) -> tuple[str, ...]:
        """The peak and its largest categories, as sentences."""
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


_PLACES = {BETWEEN: "the time outside forward and backward", AFTER_BACKWARD: "the phase after the backward"}


def place_of(phase: str) -> str:
    """Return the name of a phase for use after "in": `the backward`, `the phase after the backward`."""
    return _PLACES.get(phase, f"the {phase}")


def state_of(optimizers: Sequence[str]) -> str:
    """Return `Adam's state` or `the optimizers' state`."""
    classes = set(optimizers)
    return f"{optimizers[0]}'s state" if len(classes) == 1 else "the optimizers' state"


def step_began_ns(step: TrainingStep) -> int:
    """Return the start of a step, on the clock of the memory of its run.

    Raises:
        ValueError: no backward of it was traced.
    """
    timeline = step.run.timeline
    assert timeline is not None, "a step's run has a timeline"
    return timeline.event_ns[0] - (0 if step.timeline.before else step.timeline.event_ns[0])
