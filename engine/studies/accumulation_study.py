"""The benchmark of HIPS/autograd #219: memory of every accumulation rule, compared with a hand-written gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from ...inspector.capture.build_graph import graph
from ...inspector.renderers import GraphTheme, drawn, saved_page
from ...inspector.text.progress import telling
from ...inspector.text.report import ShownAsTable, row_called
from ...inspector.text.sizes_and_counts import dtype_name, percent_text, size_text
from ...inspector.validation import expect, expect_callable, expect_number
from ..api.backward import backward
from ..api.environment import Machine, this_machine
from ..api.make_loss import MakeLoss, own_gradients, real_loss_of
from ..api.profile import profile
from ..api.restore_state import AsFound
from ..api.time_backwards import Spread, time_backward, turns
from ..execution.accumulation_rule import PYTORCHS, Accumulate, Accumulation, Release
from ..execution.unsupported import refuse_tasks
from ..memory.function_levels import StepLevels, allocated_levels, levels_of
from ..planning.policies import POLICIES
from ..planning.simulate import simulate
from ..session.hips.levels import hips_levels, hips_time
from .ready_workload import OwnProgram, Size, Workload
from .workloads import workload

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ..memory.task_memory import Footprints

STUDIED = ("rnn", "fan_out", "needless")
RULES = tuple(Accumulation(accumulate, release) for release in get_args(Release) for accumulate in get_args(Accumulate))
"""Every combination of a summing and a release rule, PyTorch's own first."""

BY_HAND, FUSED = "by hand", "by hand, fused"
PYTORCH, HIPS, IN_PLACE = "PyTorch", "HIPS autograd", "in place"

_Around = Callable[[], AbstractContextManager[object]]
Kind = Literal["by hand", "PyTorch", "direct", "HIPS"]


@dataclass(frozen=True, slots=True)
class StudiedRule:
    """The results of computing the gradient in one way.

    Attributes:
        name: the name of the way, such as `list, never released`.
        kind: what computed it: a hand-written gradient, PyTorch's engine, the direct engine, or HIPS autograd.
        levels: the measured memory.
        times_ns: nanoseconds of each backward alone, after a new forward and without recording.
        predicted_bytes: the peak simulated from another row's run; None if it was not predicted.
        rule: the accumulation rule of the direct engine.
    """

    name: str
    kind: Kind
    levels: StepLevels
    times_ns: tuple[int, ...]
    predicted_bytes: int | None = None
    rule: Accumulation | None = None

    @property
    def peak_bytes(self) -> int:
        """The highest level of the backward."""
        return self.levels.peak_bytes

    @property
    def elapsed_ns(self) -> float:
        """The median of its times."""
        return median(self.times_ns)

    @property
    def time_text(self) -> str:
        """The time as text, such as `1.5 ms ± 4 %`, where 4 % is half the width of the middle half."""
        spread = Spread.of(self.times_ns)
        noise = f" ± {100 * spread.half_width:.0f} %" if len(self.times_ns) > 1 else ""
        return f"{self.elapsed_ns / 1e6:,.1f} ms{noise}"

    @property
    def error(self) -> float | None:
        """The error of the prediction, as a share of the measured peak."""
        return None if self.predicted_bytes is None else self.predicted_bytes / self.peak_bytes - 1


@dataclass(frozen=True, slots=True, eq=False)
class AccumulationStudy(ShownAsTable):
    """One program's gradient computed in every way, displayed as a table in a notebook.

    Attributes:
        workload, size, knobs, dtype: the workload and its settings; a user's program has its loss's dtype and no size.
        rows: the results, the hand-written gradient first if there is one.
        machine: the machine that ran the study.
    """

    workload: Workload
    size: Size | None
    knobs: dict[str, int]
    dtype: torch.dtype
    rows: tuple[StudiedRule, ...]
    machine: Machine

    words = ("gradient",)
    html = "accumulation as HTML"

    def __getitem__(self, name: str) -> StudiedRule:
        """Return a row by its name.

        Raises:
            ValueError: if there is no row of this name.
        """
        return row_called(name, ((row.name, row) for row in self.rows), between="; ")

    @property
    def reference(self) -> str:
        """The row that ratios refer to: the hand-written gradient, or PyTorch's own if there is none."""
        return BY_HAND if any(row.name == BY_HAND for row in self.rows) else PYTORCH

    def ratio(self, name: str) -> float:
        """Return a row's peak divided by the reference's peak."""
        return self[name].peak_bytes / max(self[self.reference].peak_bytes, 1)

    @property
    def name(self) -> str:
        """`rnn, float32`."""
        return _name_of(self.workload, self.dtype)

    @property
    def title(self) -> str:
        """`rnn, float32: batch=16 width=1024 steps=50`."""
        knobs = " ".join(f"{knob}={value}" for knob, value in self.knobs.items())
        return f"{self.name}: {knobs}" if knobs else self.name

    @property
    def cells(self) -> list[list[str]]:
        """Return the table as rows of text, the headings first."""
        rows = [
            [
                row.name,
                size_text(row.peak_bytes),
                f"{self.ratio(row.name):.2f} ×",
                _predicted(row),
                row.time_text,
            ]
            for row in self.rows
        ]
        return [["gradient", "peak", f"over {self.reference}", "predicted", "time"], *rows]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The table's content in sentences."""
        highest = max(self.rows, key=lambda row: row.peak_bytes)
        own, hand = self[IN_PLACE], self[self.reference]
        whose = "of the gradient by hand" if self.reference == BY_HAND else "of PyTorch's own engine"
        more = own.peak_bytes / max(hand.peak_bytes, 1) - 1
        said = [
            f"If gradients are added in place and freed at once, the peak is {size_text(own.peak_bytes)}, "
            + (f"{percent_text(more)} above that" if more > 0 else "that")
            + f" {whose}."
        ]
        if highest.peak_bytes > 1.05 * own.peak_bytes:
            ratio = highest.peak_bytes / max(hand.peak_bytes, 1)
            said.append(f"The highest peak is {size_text(highest.peak_bytes)}, {ratio:.1f} times that: {highest.name}.")
        return tuple(said)

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per row, for `pandas.DataFrame(study.records())`."""
        return [
            {
                "workload": self.workload.name,
                "dtype": dtype_name(self.dtype),
                "gradient": row.name,
                "kind": row.kind,
                "peak_bytes": row.peak_bytes,
                "reference": self.reference,
                "ratio": self.ratio(row.name),
                "predicted_bytes": row.predicted_bytes,
                "start_bytes": row.levels.start_bytes,
                "forward_peak_bytes": row.levels.forward_peak_bytes,
                "elapsed_ns": row.elapsed_ns,
            }
            for row in self.rows
        ]

    def __str__(self) -> str:
        return f"{self.title}\n\n{ShownAsTable.__str__(self)}"

    def __repr__(self) -> str:
        return f"<AccumulationStudy of {self.title}: {len(self.rows)} rows>"

    def figure(self, theme: GraphTheme = "auto", *, forward: bool = False, clock: bool = False) -> go.Figure:
        """Draw each row's memory level over the backward, above the hand-written gradient's. Needs plotly.

        Args:
            forward: start at the first byte of the forward.
            clock: draw over milliseconds instead of steps. Measured runs are slower than others.
        """
        return drawn("accumulation as a figure", self, theme, forward=forward, clock=clock)


def accumulation_study(
    name: str | Workload,
    *,
    size: Size = "small",
    dtype: torch.dtype = torch.float32,
    repetitions: int = 3,
    progress: Callable[[str], object] | None = None,
    **knobs: int,
) -> AccumulationStudy:
    """Compute a gradient by hand, with PyTorch's engine, under each rule of the direct engine, and with HIPS autograd.

    Memory is measured once, and each row's peak is predicted from another row's run. The ways alternate when timed.

    Args:
        name: a workload with a hand-written gradient ("rnn", "fan_out" or "needless"), or your own function as
            `own_program(make_loss, name)`, whose rows are compared with PyTorch's own.
        size, dtype, knobs: as in `Workload.build`; not used for your own function.
        repetitions: how often to time each backward.
        progress: a function that is called with a text before each run.

    Returns:
        The study. It has no row for HIPS autograd if the package autograd is not installed.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the workload, size or knob is unknown, the workload has no hand-written gradient, or
            `repetitions` is below 1.
        NotImplementedError: if the direct engine cannot run your function, for example because of nested gradients.
    """
    expect(name, str | Workload, "name", 'a workload, such as ts.workload("rnn"), or its name')
    expect(dtype, torch.dtype, "dtype", "a torch.dtype")
    expect_number(repetitions, int, "repetitions", "the number of timed runs of each backward")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function of one text, called before each run")
    found = workload(name) if isinstance(name, str) else name
    with ExitStack() as stack:
        tell = stack.enter_context(telling(progress, "measuring", timed=True))
        if isinstance(found, OwnProgram):
            found.refuse_knobs(knobs)
            world = stack.enter_context(AsFound(found.make_loss, "ts.studies.accumulation"))
            loss = real_loss_of(world.watch())
            _refuse_native_alone(loss)
            dtype = loss.dtype
            del loss
            ways: list[_Way] = [_Torch(world.run, world.make_loss, rule) for rule in (None, *RULES)]
            used = None
        else:
            used = {**(found.small if size == "small" else found.full), **knobs}
            ways = list(_ways(found, {"size": size, "dtype": dtype, **knobs}))
        rows = tuple(_measured(ways, _name_of(found, dtype), repetitions, tell))
    return AccumulationStudy(found, None if used is None else size, used or {}, dtype, rows, this_machine())


def _refuse_native_alone(loss: Tensor) -> None:
    """Raise NotImplementedError for a program that the direct engine cannot run."""
    try:
        refuse_tasks(graph(loss))
    except NotImplementedError as error:
        reason = str(error).partition(";")[0]
        raise NotImplementedError(
            f"ts.studies.accumulation compares how the direct engine sums gradients, and {reason}; "
            "ts.compare(make_loss) runs in PyTorch's own engine"
        ) from None


def _measured(
    ways: Sequence[_Way], head: str, repetitions: int, tell: Callable[[str], object]
) -> Iterator[StudiedRule]:
    """Measure each way and return the rows."""
    measured = []
    for way in ways:
        tell(f"{head}: {way.name}, its memory")
        measured.append(way.measure())
    times: dict[str, list[int]] = {way.name: [] for way in ways}
    for number, round_ in enumerate(turns(ways, repetitions)):
        for way in round_:
            tell(f"{head}: {way.name}, round {number + 1:,} of {repetitions:,}")
            times[way.name].append(way.time())
    predicted = _predictions(ways)
    for way, levels in zip(ways, measured, strict=True):
        yield StudiedRule(way.name, way.kind, levels, tuple(times[way.name]), predicted.get(way.name), way.rule)


def save_studies(studies: Sequence[AccumulationStudy], path: str | Path, title: str = "Accumulation") -> Path:
    """Write one page with the table and the curves of each study. It works offline.

    Raises:
        ValueError: if `studies` is empty.
        OSError: if the file cannot be written.
    """
    if not studies:
        raise ValueError("studies must contain at least one study")
    return saved_page("accumulation as a page", path, studies, title)


class _Way(Protocol):
    """A way to compute the gradient that can run repeatedly."""

    name: str
    kind: Kind
    rule: Accumulation | None

    def measure(self) -> StepLevels:
        """Measure the memory of a forward and its backward."""

    def time(self) -> int:
        """Return the time of a backward after a new forward, in nanoseconds."""


class _ByHand:
    kind: Kind = "by hand"
    rule: Accumulation | None = None

    def __init__(self, found: Workload, given: dict[str, Any], fused: bool) -> None:
        self.name = FUSED if fused else BY_HAND
        _, self._compute = found.by_hand(**given, fused=fused)

    def measure(self) -> StepLevels:
        return allocated_levels(self._compute)[1]

    def time(self) -> int:
        told: list[int] = []
        self._compute(lambda: told.append(perf_counter_ns()))
        return told[-1] - told[0]


class _Torch:
    """PyTorch's engine if there is no rule, otherwise the direct engine."""

    def __init__(self, as_before: _Around, make_loss: MakeLoss, rule: Accumulation | None) -> None:
        self.kind: Kind = "PyTorch" if rule is None else "direct"
        self.name = PYTORCH if rule is None else _rule_name(rule)
        self.rule = rule
        self._as_before, self._make_loss = as_before, make_loss
        self._how: dict[str, Any] = {"engine": "native"}
        if rule is not None:
            self._how = {"engine": "direct", "accumulate": rule.accumulate, "release": rule.release}

    def measure(self) -> StepLevels:
        with self._as_before():
            run = profile(self._make_loss, **self._how)
        assert run.timeline is not None
        assert run.footprints is not None
        node_free = replace(run.graph, nodes=())  # nodes keep the tensors on a custom Function's ctx
        self.footprints, self._order = replace(run.footprints, graph=node_free), run.order
        return levels_of(run.timeline)

    def predict(self, footprints: Footprints) -> int:
        """Predict the peak in bytes from another run."""
        rule = self.rule or PYTORCHS
        found = simulate(footprints.graph, self._order, footprints, accumulate=rule.accumulate, release=rule.release)
        return found.peak_bytes

    def time(self) -> int:
        with self._as_before():
            if self.rule is None:
                return time_backward(self._make_loss, POLICIES["heap"])
            return backward(self._make_loss(), **self._how).elapsed_ns


def _name_of(found: Workload, dtype: torch.dtype) -> str:
    return f"{found.name}, {dtype_name(dtype)}"


def _rule_name(rule: Accumulation) -> str:
    """Return a rule's name with PyTorch's default spelled out, such as `in place, never released`."""
    return ", ".join(filter(None, (IN_PLACE if rule.accumulate == "inplace" else "", rule.name)))


class _Hips:
    kind: Kind = "HIPS"
    name = HIPS
    rule: Accumulation | None = None

    def __init__(self, found: Workload, given: dict[str, Any]) -> None:
        self._fun, self._args = found.in_numpy(**given)

    def measure(self) -> StepLevels:
        return hips_levels(self._fun, *self._args)[1]

    def time(self) -> int:
        return hips_time(self._fun, *self._args)


def _ways(found: Workload, given: dict[str, Any]) -> Iterator[_Way]:
    for fused in (False, True):
        yield _ByHand(found, given, fused)
    model, make_loss = found.build(**given)
    for rule in (None, *RULES):
        yield _Torch(partial(own_gradients, list(model.parameters())), make_loss, rule)
    if find_spec("autograd"):
        yield _Hips(found, given)


def _predictions(ways: Sequence[_Way]) -> dict[str, int]:
    """Predict each row from the run of PyTorch's engine, and that row from the direct engine's run."""
    native, *direct = (way for way in ways if isinstance(way, _Torch))
    return {way.name: way.predict((native if way is not native else direct[0]).footprints) for way in (native, *direct)}


def _predicted(row: StudiedRule) -> str:
    if row.error is None:
        return "–"
    return "exact" if not row.error else f"{size_text(row.predicted_bytes or 0)} ({100 * row.error:+.2f} %)"
