"""The benchmark of HIPS/autograd #219: the memory of every rule of accumulation, beside the gradient by hand."""

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
"""Every way to sum and to let go; first PyTorch's own."""

BY_HAND, FUSED = "by hand", "by hand, fused"
PYTORCH, HIPS, IN_PLACE = "PyTorch", "HIPS autograd", "in place"

_Around = Callable[[], AbstractContextManager[object]]
Kind = Literal["by hand", "PyTorch", "direct", "HIPS"]


@dataclass(frozen=True, slots=True)
class StudiedRule:
    """One way to the gradient.

    Attributes:
        name: `list, never released`.
        kind: who computed it: nobody but torch's operations; PyTorch's engine; the direct engine; HIPS autograd.
        levels: the memory measured.
        times_ns: nanoseconds of each backward alone, after a fresh forward, with nothing recorded.
        predicted_bytes: the peak simulated from the run of another row; None where nothing was predicted.
        rule: how the direct engine summed.
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
        """`1.5 ms ± 4 %`: with half the width of the middle half, of several times."""
        spread = Spread.of(self.times_ns)
        noise = f" ± {100 * spread.half_width:.0f} %" if len(self.times_ns) > 1 else ""
        return f"{self.elapsed_ns / 1e6:,.1f} ms{noise}"

    @property
    def error(self) -> float | None:
        """How far the prediction is off, as a share of what was measured."""
        return None if self.predicted_bytes is None else self.predicted_bytes / self.peak_bytes - 1


@dataclass(frozen=True, slots=True, eq=False)
class AccumulationStudy(ShownAsTable):
    """One program, its gradient computed in every way. In a notebook the table shows itself.

    Attributes:
        workload, size, knobs, dtype: what was run; of a program of a user's the dtype of its loss, and no size.
        rows: by hand first, where there is such a gradient.
        machine: on which.
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
        """A row by its name.

        Raises:
            ValueError: there is no such row.
        """
        return row_called(name, ((row.name, row) for row in self.rows), between="; ")

    @property
    def reference(self) -> str:
        """The row which ratios are against: the gradient by hand; PyTorch's own where nobody wrote one."""
        return BY_HAND if any(row.name == BY_HAND for row in self.rows) else PYTORCH

    def ratio(self, name: str) -> float:
        """The peak over that of the reference."""
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
        """The table as text, its headings first."""
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
        """What the table says, in words."""
        highest = max(self.rows, key=lambda row: row.peak_bytes)
        own, hand = self[IN_PLACE], self[self.reference]
        whose = "of the gradient by hand" if self.reference == BY_HAND else "of PyTorch's own engine"
        more = own.peak_bytes / max(hand.peak_bytes, 1) - 1
        said = [
            f"Summed in place and let go at once, the peak is {size_text(own.peak_bytes)}, "
            + (f"{percent_text(more)} above that" if more > 0 else "that")
            + f" {whose}."
        ]
        if highest.peak_bytes > 1.05 * own.peak_bytes:
            ratio = highest.peak_bytes / max(hand.peak_bytes, 1)
            said.append(f"The most, {size_text(highest.peak_bytes)} or {ratio:.1f} times that, takes: {highest.name}.")
        return tuple(said)

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per row, for `pandas.DataFrame(study.records())`."""
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
        """The level over the backward for each row, above that of the gradient by hand. Needs plotly.

        forward: from the forward's first byte on.
        clock: from there over milliseconds, not over steps. A run that is measured is slower than one that isn't.
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
    """Computes a gradient by hand, by PyTorch's engine, under each rule of the direct engine, and by HIPS autograd.

    Memory is measured once; each row's peak is predicted from the run of another one. Times are taken in turns.

    Args:
        name: a workload with a gradient by hand: "rnn", "fan_out" or "needless"; or a function of yours, as
            `own_program(make_loss, name)`, whose rows are against PyTorch's own.
        size, dtype, knobs: as in `Workload.build`; a function of yours has its own.
        repetitions: how often each backward is timed.
        progress: called before each run with what comes.

    Returns:
        The study. Without the package autograd its row is left out.

    Raises:
        TypeError: an argument is of another type.
        ValueError: no such workload, size or knob; it has no gradient by hand; `repetitions` is below 1.
        NotImplementedError: the direct engine can't run a function of yours: it has nested gradients, say.
    """
    expect(name, str | Workload, "name", 'a workload, such as ts.workload("rnn"), or its name')
    expect(dtype, torch.dtype, "dtype", "a torch.dtype")
    expect_number(repetitions, int, "repetitions", "how often each backward is timed")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, not {repetitions}")
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function of what comes: progress(text)")
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
    """Raises NotImplementedError for a program that the direct engine can't run."""
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
    """A row for each way."""
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
        ValueError: there is no study.
        OSError: the file can't be written.
    """
    if not studies:
        raise ValueError("there is no study to save")
    return saved_page("accumulation as a page", path, studies, title)


class _Way(Protocol):
    """One way to the gradient, which can be run again and again."""

    name: str
    kind: Kind
    rule: Accumulation | None

    def measure(self) -> StepLevels:
        """The memory of a forward and its backward."""

    def time(self) -> int:
        """Nanoseconds of a backward after a fresh forward."""


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
    """PyTorch's engine, if there is no rule, or the direct one."""

    def __init__(self, as_before: _Around, make_loss: MakeLoss, rule: Accumulation | None) -> None:
        self.kind: Kind = "PyTorch" if rule is None else "direct"
        self.name = PYTORCH if rule is None else _rule_name(rule)
        self.rule = rule
        self._as_before, self._make_loss = as_before, make_loss

    @property
    def _how(self) -> dict[str, Any]:
        if self.rule is None:
            return {"engine": "native"}
        return {"engine": "direct", "accumulate": self.rule.accumulate, "release": self.rule.release}

    def measure(self) -> StepLevels:
        with self._as_before():
            run = profile(self._make_loss, **self._how)
        assert run.timeline is not None
        assert run.footprints is not None
        bare = replace(run.graph, nodes=())  # nodes keep what a custom Function put on its ctx
        self.footprints, self._order = replace(run.footprints, graph=bare), run.order
        return levels_of(run.timeline)

    def predict(self, footprints: Footprints) -> int:
        """The peak in bytes, from what another run has taught."""
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
    """PyTorch's rule is not its own name here: `in place, never released`."""
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
    """Each is predicted from the run of PyTorch's engine, and that one from the direct engine's."""
    native, *direct = (way for way in ways if isinstance(way, _Torch))
    return {way.name: way.predict((native if way is not native else direct[0]).footprints) for way in (native, *direct)}


def _predicted(row: StudiedRule) -> str:
    if row.error is None:
        return "–"
    return "exact" if not row.error else f"{size_text(row.predicted_bytes or 0)} ({100 * row.error:+.2f} %)"
