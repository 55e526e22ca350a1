"""A study of recomputation beside checkpoints per block, selective checkpoints and torch.compile's memory budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from ...inspector.renderers import GraphTheme, drawn, saved_page
from ...inspector.text.progress import TimeLeft, telling
from ...inspector.text.report import ShownAsTable, row_called
from ...inspector.text.sizes_and_counts import percent_text, size_text
from ...inspector.validation import expect, expect_callable, expect_choice, expect_number, expect_truth
from ..api.environment import Machine, this_machine
from ..api.restore_state import AsFound
from ..api.time_backwards import Spread, turns
from ..recompute.budget import OVERHEAD, expect_seconds
from ..recompute.plan import RecomputePlan
from ..recompute.plan_recompute import plan_recompute
from ..recompute.planned_recompute import PlannedRecompute, replanned
from ..recompute.solvers import FoundDrops
from .comparison import predicted_text
from .measured_steps import MeasuredWay, StepBench
from .order_study import usable_device
from .ready_workload import OwnProgram, Size, Workload
from .torch_alternatives import PRODUCTS, OwnModules, checkpointed, selective
from .torch_alternatives import compiled as compiled_within_budget
from .workloads import workload

if TYPE_CHECKING:
    import plotly.graph_objects as go

DESK: Mapping[str, Mapping[str, int]] = {
    "rnn": {"batch": 16, "width": 512, "steps": 50},
    "lstm_cell": {"steps": 50, "batch": 4, "width": 32},
    "lstm_lm": {"vocabulary": 33278, "width": 200, "steps": 35, "batch": 10},
    "seq2seq": {"vocabulary": 8000, "width": 500, "steps": 30, "batch": 16, "layers": 2},
    "resnet50": {"batch": 4, "pixels": 224},
    "resnet152": {"batch": 4, "pixels": 224},
    "gpt2": {"vocabulary": 1024, "context": 256, "width": 768, "batch": 4, "heads": 12, "layers": 4, "dropout": 10},
    "unet": {"batch": 1, "pixels": 572, "channels": 16},
}
"""Sizes whose steps take two cores a few seconds: fewer images of training size; four blocks of GPT-2 small, with its
dropout, on shorter texts; a narrower U-Net."""

STUDIED = tuple(DESK)
QUICK = ("rnn", "unet", "resnet50")
"""Workloads whose small sizes take two cores a minute together, without torch.compile."""

NOTHING = "nothing"
BLOCKS = "checkpoint per block"
SELECTIVE = "selective checkpoint"
COMPILED = "torch.compile, half the budget"
CHEAP = "all cheap operations (MXNet)"
WITHIN = f"ts.recompute, {percent_text(OVERHEAD)} overhead"
BELOW = "ts.recompute, below checkpoint"
HALF = "ts.recompute, half the peak"

_BELOW = 0.98  # of the peak under checkpoints: the budget of the plan that has to stay below it
_MEASURED = 4  # steps that a measurement of memory takes
_PLANNED = 30  # steps that planning takes, about
_MXNET_KEPT = {
    *("cat", "_log_softmax", "nll_loss_forward", "nll_loss2d_forward", "native_dropout"),
    *("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm"),
}
"""Beside products, the operations that MXNet's first mirroring does not recompute, by their names in torch."""

_ALIKE = 0.005  # share of a peak; smaller differences count as equal

StudySize = Literal["small", "desk", "full"]


@dataclass(frozen=True, slots=True)
class StudiedWay:
    """The measurements of one way to save memory.

    Attributes:
        name: its name, such as `checkpoint per block`.
        peak_bytes: peak memory of a step, forward and backward, above the level before it.
        backward_peak_bytes: the same for the backward alone.
        times_ns: time of each step in nanoseconds, including recording and recomputation.
        time_ratio: time divided by that of an unchanged step, for each round.
        same_gradients: whether the gradients have the same bits as those of an unchanged step.
        same_state: whether the tensors that the forward writes (running statistics) have the same bits.
        plan: the plan, for ways that use `ts.recompute`.
    """

    name: str
    peak_bytes: int
    backward_peak_bytes: int
    times_ns: tuple[int, ...]
    time_ratio: Spread
    same_gradients: bool
    same_state: bool
    plan: PlannedRecompute | None = None

    @property
    def elapsed_ns(self) -> float:
        """The median time of a step."""
        return Spread.of(self.times_ns).middle

    @property
    def ratio_text(self) -> str:
        """The time ratio as text, such as `1.04 × ± 3 %`; after ± is half the interquartile range over the rounds."""
        noise = f" ± {100 * self.time_ratio.half_width:.0f} %" if len(self.times_ns) > 1 else ""
        return f"{self.time_ratio.middle:.2f} ×{noise}"

    @property
    def predicted_bytes(self) -> int | None:
        """The predicted peak of the backward; None for ways without a plan."""
        return None if self.plan is None else self.plan.peak_bytes

    @property
    def predicted_ratio(self) -> float | None:
        """The predicted time of a step divided by that of an unchanged step."""
        if self.plan is None or self.plan.predicted is None:
            return None
        return self.plan.predicted.seconds / self.plan.predicted.plain_seconds

    @property
    def error(self) -> float | None:
        """The error of the predicted peak of the backward, as a share of the measured peak."""
        return None if self.predicted_bytes is None else self.predicted_bytes / self.backward_peak_bytes - 1

    @property
    def time_error(self) -> float | None:
        """The error of the predicted time ratio, as a share of the measured one."""
        return None if self.predicted_ratio is None else self.predicted_ratio / self.time_ratio.middle - 1

    @property
    def bits(self) -> str:
        """`same bits`, or the difference from an unchanged step."""
        if self.same_gradients:
            return "same bits" if self.same_state else "same gradients, statistics differ"
        return "differ by rounding"


@dataclass(frozen=True, slots=True, eq=False)
class RecomputeStudy(ShownAsTable):
    """Memory and time of one model under each way to save memory, displayed as a table in a notebook.

    Attributes:
        workload, size, knobs, device: the model, and the device it ran on.
        rows: the measured ways; the first is the unchanged step.
        refused: the reason for each way that could not be measured, by name.
        machine: the machine it ran on.
        interrupted: whether ways or rounds are missing because the study was interrupted.
    """

    workload: Workload
    size: StudySize | None
    knobs: Mapping[str, int]
    device: str
    rows: tuple[StudiedWay, ...]
    refused: Mapping[str, str]
    machine: Machine
    interrupted: bool = False

    words = ("way", "gradients")
    html = "recomputation as HTML"

    def __getitem__(self, name: str) -> StudiedWay:
        """Return a row by its name.

        Raises:
            ValueError: if there is no such row.
        """
        return row_called(name, ((row.name, row) for row in self.rows), between="; ")

    def __contains__(self, name: object) -> bool:
        return any(row.name == name for row in self.rows)

    def ratio(self, name: str) -> float:
        """Return the peak of a way divided by that of an unchanged step."""
        return self[name].peak_bytes / self[NOTHING].peak_bytes

    @property
    def title(self) -> str:
        """The model and its sizes, such as `resnet50: batch=4 pixels=224`."""
        knobs = " ".join(f"{knob}={value}" for knob, value in self.knobs.items())
        return f"{self.workload.name}: {knobs}" if knobs else self.workload.name

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, headings first."""
        rows = [
            [
                row.name,
                size_text(row.peak_bytes),
                f"{100 * (self.ratio(row.name) - 1):+.0f} %" if row.name != NOTHING else "",
                predicted_text(row.predicted_bytes, row.backward_peak_bytes),
                f"{row.elapsed_ns / 1e6:,.0f} ms",
                f"{row.time_ratio.middle:.2f} ×" if row.name != NOTHING else "",
                "–" if row.predicted_ratio is None else f"{row.predicted_ratio:.2f} ×",
                row.bits if row.name != NOTHING or not row.same_gradients else "",
            ]
            for row in self.rows
        ]
        headings = ["way", "peak", "change", "predicted", "time", "time ratio", "predicted ratio", "gradients"]
        return [headings, *rows]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences below the table."""
        left_out = (f"{name} was left out: {why}" for name, why in self.refused.items())
        cut = ("The study was interrupted: ways or rounds are missing.",) if self.interrupted else ()
        return (*self._compared(), *self._of_plans_and_times(), *left_out, *cut)

    def _compared(self) -> Iterator[str]:
        if BELOW not in self or BLOCKS not in self:
            return
        below, blocks = self[BELOW], self[BLOCKS]
        less = 1 - below.peak_bytes / blocks.peak_bytes
        times = f"{below.ratio_text} of a step's time, checkpoints per block {blocks.ratio_text}"
        if abs(less) < _ALIKE:
            yield f"ts.recompute needs as much memory as checkpoints per block; it takes {times}."
        else:
            more = f"{percent_text(abs(less))} {'less' if less > 0 else 'more'} memory than checkpoints per block"
            yield f"ts.recompute needs {more}; it takes {times}."

    def _of_plans_and_times(self) -> Iterator[str]:
        for row in self.rows:
            if row.plan is not None and row.plan.left_alone is not None:
                yield f"{row.name}: {row.plan.left_alone}"
            elif row.plan is not None and row.peak_bytes > row.backward_peak_bytes:
                backward = size_text(row.backward_peak_bytes)
                yield f"{row.name}: the peak is in the forward, which no plan lowers; the backward's is {backward}."
        if not self[NOTHING].same_gradients:
            yield "The gradients of this model differ from run to run even without changes."
        times = [
            f"{row.name} {row.ratio_text}{', within noise' if row.time_ratio.spans(1.0) else ''}"
            for row in self.rows[1:]
            if len(row.times_ns) > 1
        ]
        if times:
            yield f"Time of a step relative to an unchanged one: {'; '.join(times)}. ± is half the interquartile range."

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per row, for `pandas.DataFrame(study.records())`."""
        return [
            {
                "workload": self.workload.name,
                "size": self.size,
                "way": row.name,
                "peak_bytes": row.peak_bytes,
                "backward_peak_bytes": row.backward_peak_bytes,
                "ratio": self.ratio(row.name),
                "predicted_bytes": row.predicted_bytes,
                "elapsed_ns": row.elapsed_ns,
                "time_ratio": row.time_ratio.middle,
                "time_ratio_low": row.time_ratio.low,
                "time_ratio_high": row.time_ratio.high,
                "predicted_ratio": row.predicted_ratio,
                "same_gradients": row.same_gradients,
                "same_state": row.same_state,
                "times_ns": list(row.times_ns),
            }
            for row in self.rows
        ]

    def __str__(self) -> str:
        return f"{self.title}\n\n{ShownAsTable.__str__(self)}"

    def __repr__(self) -> str:
        return f"<RecomputeStudy of {self.title}: {len(self.rows)} rows>"

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Return a plotly figure with a point for each way: time against peak, relative to an unchanged step."""
        return drawn("recomputation as a figure", self, theme)


def recompute_study(
    name: str | Workload,
    *,
    size: StudySize = "desk",
    device: torch.device | str = "cpu",
    repetitions: int = 5,
    seconds: float = 5.0,
    compiled: bool = True,
    progress: Callable[[str], object] | None = None,
    so_far: Callable[[RecomputeStudy], object] | None = None,
    **knobs: int,
) -> RecomputeStudy:
    """Compare memory, time and gradients of a model unchanged, under checkpoints, compiled, and under recompute plans.

    Memory is measured once. Whole steps are timed, forward and backward, in turns. There are three plans: MXNet's
    first rule, which recomputes every cheap operation; one within the default overhead; and one at the lowest cost with
    a peak 2 % below that of checkpoints per block (half of the peak if no block repeats).

    Args:
        name: a workload; or a function of your own, as `own_program(make_loss, name)`.
        size, knobs: as in `Workload.build`. The size "desk" lies between "small" and "full": two cores take seconds for
            a step.
        device: the device of the model.
        repetitions: number of timed steps of each way.
        seconds: time limit of each search for a plan.
        compiled: whether to include torch.compile, which takes a minute or more to compile.
        progress: a callback that is called with a description before each run, and an estimate of the time left.
        so_far: a callback that is called with the study so far, after each way's memory and after each round.

    Returns:
        The study. A way that could not be measured, such as torch.compile without a C++ compiler, is left out, and a
        sentence says why. An interrupt (Ctrl-C) after the first way returns the study so far; during the search for a
        plan it ends the search.

    Raises:
        ValueError: if the workload, size, knob or device is unknown, or `repetitions` is below 1.
        KeyboardInterrupt: if interrupted before the first way was measured.
    """
    expect(name, str | Workload, "name", 'a workload, such as ts.workload("rnn"), or its name')
    expect_number(repetitions, int, "repetitions", "the number of timed steps of each way")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    expect_choice(size, get_args(StudySize), "size")
    expect_seconds(seconds)
    expect_truth(compiled, "compiled")
    for callback, what in ((progress, "progress"), (so_far, "so_far")):
        if callback is not None:
            expect_callable(callback, 1, what, "a function of one argument")
    found = workload(name) if isinstance(name, str) else name
    used = {**_knobs(found, size), **knobs}
    place, machine = usable_device(device), this_machine()
    ways: list[MeasuredWay] = []
    refused: dict[str, str] = {}
    with ExitStack() as stack:
        sized: StudySize | None = size
        if isinstance(found, OwnProgram):
            found.refuse_knobs(knobs)
            world, sized = stack.enter_context(AsFound(found.make_loss, "tapescope bench recompute")), None
            own = OwnModules.of(world)
            bench = StepBench(own.model, world.make_loss, own.device, own.leaves, world)
            blocks, place, called = own.blocks, own.device, own.is_one
        else:
            built: Size = "small" if size == "small" else "full"
            bench = StepBench(*found.build(built, device=place, dtype=None, **used), place)
            blocks, called = found.blocks, True
        if compiled and not called:
            refused[COMPILED] = "the forward calls several modules, and none of them is the whole model."
        plans = _Plans(seconds, compiled and called)
        told = stack.enter_context(telling(progress, "measuring", timed=True))
        tell = TimeLeft(told, plans.weight(blocks, repetitions))

        def study(interrupted: bool = False) -> RecomputeStudy:
            return RecomputeStudy(found, sized, used, str(place), _rows(ways), refused, machine, interrupted)

        def show() -> None:
            if so_far is not None:
                so_far(study())

        try:
            for way in _ways_measured(found.name, bench, blocks, plans, refused, tell):
                ways.append(way)
                show()
            for number, round_ in enumerate(turns(ways, repetitions)):
                for way in round_:
                    tell(f"{found.name}: {way.name}, round {number + 1:,} of {repetitions:,}")
                    way.times_ns.append(bench.time(way))
                show()
        except KeyboardInterrupt:
            if not ways:
                raise
            return study(interrupted=True)
    return study()


class _Plans(NamedTuple):
    """Options: the time limit of each search for a plan, and whether to include torch.compile."""

    seconds: float
    compiled: bool

    def weight(self, blocks: tuple[type[nn.Module], ...], repetitions: int) -> float:
        """Return the number of steps that a study takes, for the estimate of the time left."""
        ways = 4 + 2 * bool(blocks) + self.compiled
        return ways * (_MEASURED + repetitions) + 2 * _PLANNED


def _ways_measured(
    name: str,
    bench: StepBench,
    blocks: tuple[type[nn.Module], ...],
    plans: _Plans,
    refused: dict[str, str],
    tell: TimeLeft,
) -> Iterator[MeasuredWay]:
    """Measure the memory of each way, the unchanged step first; note in `refused` why others are left out."""

    def measured(way: MeasuredWay) -> Iterator[MeasuredWay]:
        tell(f"{name}: {way.name}, memory", _MEASURED)
        try:
            bench.measure(way)
        except Exception as error:
            if way.plan is not None or way.name == NOTHING:
                raise
            lines = str(error).strip().splitlines() or ["no message"]
            refused[way.name] = f"{type(error).__name__}: {lines[0].rstrip('.')}."
        else:
            yield way

    yield from measured(MeasuredWay(NOTHING, nullcontext))
    asked: list[tuple[str, int | float | None]] = [(WITHIN, None), (HALF, 0.5)]
    if blocks:
        for way in measured(MeasuredWay(BLOCKS, partial(checkpointed, bench.model, blocks))):
            asked[1] = BELOW, int(_BELOW * way.peak_bytes)
            yield way
        yield from measured(MeasuredWay(SELECTIVE, partial(checkpointed, bench.model, blocks, selective)))
    else:
        refused |= dict.fromkeys((BLOCKS, SELECTIVE), "no module of this model repeats.")
    if plans.compiled:
        whole = torch.compile(bench.model.forward)
        yield from measured(MeasuredWay(COMPILED, partial(compiled_within_budget, bench.model, whole)))
    for title, budget in asked:
        tell(f"{name}: planning for {title}", _PLANNED)
        with bench.as_before():
            plan = plan_recompute(bench.make_loss, budget, seconds=plans.seconds, progress=False)
        if title == WITHIN:
            yield from measured(MeasuredWay(CHEAP, nullcontext, _cheap(plan)))
        yield from measured(MeasuredWay(title, nullcontext, plan))


def _cheap(plan: PlannedRecompute) -> PlannedRecompute:
    """Return the plan of MXNet's first mirroring, which drops every result of a cheap operation, whatever it saves.

    Its rule, `need_mirror` in MXNet's src/executor/graph_executor.cc (MXNET_BACKWARD_DO_MIRROR=1), excepts dropout,
    convolutions, fully connected layers, concatenation, batch norms and the softmax of the loss.
    """
    program = plan.program
    kept = {str(each).split(".")[1] for each in PRODUCTS} | _MXNET_KEPT
    cheap = {each.number for each in program.operations if each.name.split(".")[1] not in kept and not each.random}
    drop = [
        each.number
        for each in program.storages
        if each.program and cheap.issuperset(each.program) and each.obstacle is None and each.number not in plan.banned
    ]
    dropped = RecomputePlan.of(program, drop).dropped
    found = replanned(plan, FoundDrops(dropped, plan.memory.levels_if_dropped(dropped), 1, 0.0))
    nothing = None if dropped else "Nothing is dropped: no result of a cheap operation is saved."
    return replace(found, left_alone=nothing, left_alone_because=None)


def _rows(ways: Sequence[MeasuredWay]) -> tuple[StudiedWay, ...]:
    """Return the ways measured so far, with the times of the rounds in which all of them ran."""
    rounds = min(len(way.times_ns) for way in ways)
    times = [way.times_ns[:rounds] or [way.first_ns] for way in ways]
    return tuple(
        StudiedWay(
            way.name,
            way.peak_bytes,
            way.backward_peak_bytes,
            tuple(its),
            Spread.of([mine / nothing for mine, nothing in zip(its, times[0], strict=True)]),
            way.same_gradients,
            way.same_state,
            way.plan,
        )
        for way, its in zip(ways, times, strict=True)
    )


def save_studies(studies: Sequence[RecomputeStudy], path: str | Path, title: str = "Recomputation") -> Path:
    """Write one page with the table and the figure of each study. It works offline.

    Raises:
        ValueError: if `studies` is empty.
        OSError: if the file cannot be written.
    """
    if not studies:
        raise ValueError("studies is empty; expected at least one study to save")
    return saved_page("recomputation as a page", path, studies, title)


def _knobs(found: Workload, size: StudySize) -> Mapping[str, int]:
    if isinstance(found, OwnProgram):
        return {}
    if size == "desk":
        if found.name not in DESK:
            raise ValueError(f'workload {found.name} has no size "desk"; expected one of {", ".join(DESK)}')
        return DESK[found.name]
    return found.small if size == "small" else found.full
