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
from ...inspector.graph.phrases import joined
from ...inspector.renderers import GraphTheme, drawn, saved_page
from ...inspector.text.durations import time_text
from ...inspector.text.progress import TimeLeft, telling
from ...inspector.text.report import ShownAsTable, row_called
from ...inspector.text.sizes_and_counts import dtype_name, percent_text, size_text
from ...inspector.validation import expect, expect_callable, expect_choice, expect_number
from ..api.backward import backward
from ..api.environment import Machine, this_machine
from ..api.make_loss import MakeLoss, own_gradients, real_loss_of
from ..api.profile import profile
from ..api.restore_state import AsFound
from ..api.time_backwards import Spread, time_backward, turns
from ..execution.accumulation_rule import PYTORCHS, Accumulate, Accumulation, GraphRule, Release
from ..execution.unsupported import refuse_tasks
from ..memory.function_levels import StepLevels, allocated_levels, levels_of
from ..planning.policies import POLICIES
from ..planning.simulate import simulate
from ..session.hips.levels import hips_levels, hips_time
from .compare import chosen_graphs
from .comparison import GRAPH_KEPT, predicted_text
from .ready_workload import OwnProgram, Size, Workload
from .workloads import workload

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ..memory.task_memory import Footprints

STUDIED = ("rnn", "fan_out", "elementwise", "needless")
RULES = tuple(Accumulation(accumulate, release) for release in get_args(Release) for accumulate in get_args(Accumulate))
"""Every combination of a summing and a release rule, PyTorch's own first."""

_WORTH_SAYING = 0.0005  # share of a peak; smaller differences count as equal
_WORTH_NAMING = 1.05  # ratio of two peaks; rows that differ by less are not named in sentences

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
        graph: whether nodes freed their saved tensors as they ran, or kept them until the backward ended. HIPS
            autograd's nodes keep theirs.
    """

    name: str
    kind: Kind
    levels: StepLevels
    times_ns: tuple[int, ...]
    predicted_bytes: int | None = None
    rule: Accumulation | None = None
    graph: GraphRule = "freed"

    @property
    def peak_bytes(self) -> int:
        """The highest level of the backward."""
        return self.levels.peak_bytes

    @property
    def average_bytes(self) -> float | None:
        """The mean level of the backward, in which each level counts for as long as it lasted: the median of the
        measured runs. None if the allocator's events have no times."""
        return self.levels.average_bytes

    @property
    def elapsed_ns(self) -> float | None:
        """The median of its times; None if the study was interrupted before it was timed."""
        return median(self.times_ns) if self.times_ns else None

    @property
    def time_text(self) -> str:
        """The time as text, such as `1.50 ms ± 4 %`, where 4 % is half the width of the middle half."""
        if self.elapsed_ns is None:
            return "–"
        spread = Spread.of(self.times_ns)
        noise = f" ± {100 * spread.half_width:.0f} %" if len(self.times_ns) > 1 else ""
        return time_text(self.elapsed_ns) + noise

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
        interrupted: whether rows or rounds are missing because the study was interrupted.
    """

    workload: Workload
    size: Size | None
    knobs: dict[str, int]
    dtype: torch.dtype
    rows: tuple[StudiedRule, ...]
    machine: Machine
    interrupted: bool = False

    words = ("gradient",)
    html = "accumulation as HTML"

    def __getitem__(self, name: str) -> StudiedRule:
        """Return a row by its name.

        Raises:
            ValueError: if there is no row of this name.
        """
        return row_called(name, ((row.name, row) for row in self.rows), between="; ")

    def __contains__(self, name: object) -> bool:
        return any(row.name == name for row in self.rows)

    @property
    def reference(self) -> str:
        """The row that ratios refer to: the hand-written gradient, or PyTorch's own if there is none."""
        return BY_HAND if BY_HAND in self else self._first(PYTORCH)

    def _first(self, name: str) -> str:
        """Return the name of the first row of an engine or rule; "graph kept" is in it if no graph was freed."""
        return next(row.name for row in self.rows if row.name in (name, name + GRAPH_KEPT))

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
                "–" if row.average_bytes is None else size_text(round(row.average_bytes)),
                predicted_text(row.predicted_bytes, row.peak_bytes),
                row.time_text,
            ]
            for row in self.rows
        ]
        return [["gradient", "peak", f"over {self.reference}", "average", "predicted", "time"], *rows]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The table's content in sentences."""
        cut = ("The study was interrupted: rows or rounds are missing.",) if self.interrupted else ()
        return (*self._of_rules(), *self._of_graphs(), *cut)

    def _of_graphs(self) -> Iterator[str]:
        """Yield sentences on the peak and the average if the graph is kept, compared with if it is freed."""
        rows = {row.name: row for row in self.rows}
        pairs = [(row, rows[row.name + GRAPH_KEPT]) for row in self.rows if row.name + GRAPH_KEPT in rows]
        if not pairs:
            return
        freed, kept = pairs[0]
        peak = f"{100 * (kept.peak_bytes / freed.peak_bytes - 1):+.1f} %"
        average = ""
        if freed.average_bytes and kept.average_bytes:
            average = f" and its average by {100 * (kept.average_bytes / freed.average_bytes - 1):+.0f} %"
        yield f"Keeping the graph until the end changes the peak of {freed.name} by {peak}{average}."
        higher = [
            f"{freed.name} ({size_text(freed.peak_bytes)} → {size_text(kept.peak_bytes)})"
            for freed, kept in pairs
            if kept.peak_bytes > _WORTH_NAMING * freed.peak_bytes
        ]
        if higher:
            yield f"It raises the peak by more than 5 % under: {joined(higher, most=6)}."

    def _of_rules(self) -> tuple[str, ...]:
        if not any(row.name.startswith(IN_PLACE) for row in self.rows):
            return ()  # interrupted before
        highest = max(self.rows, key=lambda row: row.peak_bytes)
        own, hand = self[self._first(IN_PLACE)], self[self.reference]
        whose = "of the gradient by hand" if self.reference == BY_HAND else "of PyTorch's own engine"
        more = own.peak_bytes / max(hand.peak_bytes, 1) - 1
        said = [
            f"If gradients are added in place and freed at once, the peak is {size_text(own.peak_bytes)}, "
            + (f"{percent_text(more)} above that" if more > _WORTH_SAYING else "equal to that")
            + f" {whose}."
        ]
        if highest.peak_bytes > _WORTH_NAMING * own.peak_bytes:
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
                "graph": row.graph,
                "peak_bytes": row.peak_bytes,
                "average_bytes": row.average_bytes,
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
            clock: draw the whole run, the forward first, over milliseconds, with a linear axis of bytes. Measured runs
                are slower than others.
        """
        return drawn("accumulation as a figure", self, theme, forward=forward, clock=clock)


def accumulation_study(
    name: str | Workload,
    *,
    size: Size = "small",
    dtype: torch.dtype = torch.float32,
    graph: Sequence[GraphRule] | GraphRule = "freed",
    repetitions: int = 3,
    progress: Callable[[str], object] | None = None,
    so_far: Callable[[AccumulationStudy], object] | None = None,
    **knobs: int,
) -> AccumulationStudy:
    """Compute a gradient by hand, with PyTorch's engine, under each rule of the direct engine, and with HIPS autograd.

    Each row's peak is predicted from another row's run. The average of memory is the median of `repetitions` measured
    runs. The ways alternate when timed.

    Args:
        name: a workload with a hand-written gradient ("rnn", "fan_out", "elementwise" or "needless"), or your own
            function as `own_program(make_loss, name)`, whose rows are compared with PyTorch's own.
        size, dtype, knobs: as in `Workload.build`; not used for your own function.
        graph: "freed": nodes free their saved tensors as they run. "kept": they keep them until the backward has ended
            (`retain_graph=True`). For both, each of PyTorch's and the direct engine's rows has one more, such as
            "list, graph kept".
        repetitions: how often to measure and to time each backward.
        progress: a function that is called with a text before each run, and an estimate of the time left.
        so_far: a function that is called with the study so far, after each row's memory and after each round.

    Returns:
        The study. It has no row for HIPS autograd if the package autograd is not installed. An interrupt (Ctrl-C) after
        the first row returns the study so far.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the workload, size, knob or graph rule is unknown, the workload has no hand-written gradient, or
            `repetitions` is below 1.
        NotImplementedError: if the direct engine cannot run your function, for example because of nested gradients.
        KeyboardInterrupt: if interrupted before the first row was measured.
    """
    expect(name, str | Workload, "name", 'a workload, such as ts.workload("rnn"), or its name')
    expect(dtype, torch.dtype, "dtype", "a torch.dtype")
    expect_choice(size, get_args(Size), "size")
    expect_number(repetitions, int, "repetitions", "the number of timed runs of each backward")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function of one text, called before each run")
    if so_far is not None:
        expect_callable(so_far, 1, "so_far", "a function of one study, called as results come")
    found = workload(name) if isinstance(name, str) else name
    graphs = chosen_graphs(graph)
    with ExitStack() as stack:
        told = stack.enter_context(telling(progress, "measuring", timed=True))
        if isinstance(found, OwnProgram):
            found.refuse_knobs(knobs)
            world = stack.enter_context(AsFound(found.make_loss, "ts.studies.accumulation"))
            loss = real_loss_of(world.watch())
            _refuse_native_alone(loss)
            dtype = loss.dtype
            del loss
            ways: list[_Way] = [*_engines(world.run, world.make_loss, graphs)]
            used = None
        else:
            used = {**(found.small if size == "small" else found.full), **knobs}
            ways = list(_ways(found, {"size": size, "dtype": dtype, **knobs}, graphs))
        machine, measuring = this_machine(), _Measuring(ways)

        def study(interrupted: bool = False) -> AccumulationStudy:
            sized = None if used is None else size
            return AccumulationStudy(found, sized, used or {}, dtype, measuring.rows(), machine, interrupted)

        try:
            for _ in measuring.run(_name_of(found, dtype), repetitions, told):
                if so_far is not None:
                    so_far(study())
        except KeyboardInterrupt:
            if not measuring.levels:
                raise
            return study(interrupted=True)
        return study()


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


class _Measuring:
    """The measurements of all ways, as far as they have been made."""

    def __init__(self, ways: Sequence[_Way]) -> None:
        self._ways = ways
        self.levels: list[StepLevels] = []
        self._times: dict[str, list[int]] = {way.name: [] for way in ways}

    def run(self, head: str, repetitions: int, told: Callable[[str], object]) -> Iterator[None]:
        """Measure each way, then time all in rounds; yield after each way and each round."""
        tell = TimeLeft(told, 2 * repetitions * len(self._ways))
        for way in self._ways:
            tell(f"{head}: {way.name}, its memory", repetitions)
            levels = [way.measure() for _ in range(repetitions)]
            # Levels are equal in each run; how long they last is not, on a machine that does other work.
            averages = [each.average_bytes for each in levels if each.average_bytes is not None]
            self.levels.append(replace(levels[0], average_bytes=median(averages) if averages else None))
            yield
        for number, round_ in enumerate(turns(self._ways, repetitions)):
            for way in round_:
                tell(f"{head}: {way.name}, round {number + 1:,} of {repetitions:,}")
                self._times[way.name].append(way.time())
            yield

    def rows(self) -> tuple[StudiedRule, ...]:
        """Return the ways measured so far, with the times of the rounds in which all of them ran."""
        measured = self._ways[: len(self.levels)]
        rounds = min(map(len, self._times.values()))
        predicted = _predictions(measured)
        return tuple(
            StudiedRule(
                *(way.name, way.kind, levels, tuple(self._times[way.name][:rounds])),
                *(predicted.get(way.name), way.rule, way.graph),
            )
            for way, levels in zip(measured, self.levels, strict=True)
        )


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
    graph: GraphRule

    def measure(self) -> StepLevels:
        """Measure the memory of a forward and its backward."""

    def time(self) -> int:
        """Return the time of a backward after a new forward, in nanoseconds."""


class _ByHand:
    kind: Kind = "by hand"
    rule: Accumulation | None = None
    graph: GraphRule = "freed"

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

    def __init__(self, as_before: _Around, make_loss: MakeLoss, rule: Accumulation | None, graph: GraphRule) -> None:
        self.kind: Kind = "PyTorch" if rule is None else "direct"
        self.graph = graph
        self.name = (PYTORCH if rule is None else _rule_name(rule)) + (GRAPH_KEPT if graph == "kept" else "")
        self.rule = rule
        self._as_before, self._make_loss = as_before, make_loss

    @property
    def _how(self) -> dict[str, Any]:
        how = {"retain_graph": self.graph == "kept"}
        if self.rule is None:
            return how | {"engine": "native"}
        return how | {"engine": "direct", "accumulate": self.rule.accumulate, "release": self.rule.release}

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
        found = simulate(
            footprints.graph,
            self._order,
            footprints,
            retain_graph=self.graph == "kept",
            accumulate=rule.accumulate,
            release=rule.release,
        )
        return found.peak_bytes

    def time(self) -> int:
        with self._as_before():
            if self.rule is None:
                return time_backward(self._make_loss, POLICIES["heap"], retain_graph=self.graph == "kept")
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
    graph: GraphRule = "kept"

    def __init__(self, found: Workload, given: dict[str, Any]) -> None:
        self._fun, self._args = found.in_numpy(**given)

    def measure(self) -> StepLevels:
        return hips_levels(self._fun, *self._args)[1]

    def time(self) -> int:
        return hips_time(self._fun, *self._args)


def _ways(found: Workload, given: dict[str, Any], graphs: Sequence[GraphRule]) -> Iterator[_Way]:
    for fused in (False, True):
        yield _ByHand(found, given, fused)
    model, make_loss = found.build(**given)
    yield from _engines(partial(own_gradients, list(model.parameters())), make_loss, graphs)
    if find_spec("autograd"):
        yield _Hips(found, given)


def _engines(as_before: _Around, make_loss: MakeLoss, graphs: Sequence[GraphRule]) -> Iterator[_Torch]:
    """Yield PyTorch's engine and each rule of the direct engine, under each graph rule."""
    for graph_rule in graphs:
        for rule in (None, *RULES):
            yield _Torch(as_before, make_loss, rule, graph_rule)


def _predictions(ways: Sequence[_Way]) -> dict[str, int]:
    """Predict each row from the run of PyTorch's engine, and that row from the direct engine's run."""
    engines = [way for way in ways if isinstance(way, _Torch)]
    if len(engines) < 2:
        return {}  # interrupted before
    native, *direct = engines
    return {way.name: way.predict((native if way is not native else direct[0]).footprints) for way in (native, *direct)}
