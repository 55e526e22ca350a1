"""The question of PyTorch #18157, measured: who runs the products of an ensemble as one?"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter_ns
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ...inspector.graph.phrases import joined
from ...inspector.renderers import text_of
from ...inspector.text.progress import TimeLeft, telling
from ...inspector.text.report import ShownAsTable, row_called
from ...inspector.torch_private.allocators import quiet_kineto
from ...inspector.validation import expect, expect_callable, expect_number, expect_truth
from ..api.backward import backward
from ..api.environment import Machine, this_machine
from ..api.time_backwards import Spread, turns
from ..recording.run import Run
from .measured_steps import same_tensors
from .workload_models import Ensemble

Program = Literal["Linear", "x.mm(w)"]

MEMBERS_STUDIED = (4, 10)
"""The thread asks about ten members. TorchScript joins products of one input from eight on, so none of four."""

EAGER, SCRIPT, COMPILED, GROUPS = "eager", "TorchScript", "torch.compile", "ts groups"

_BATCH, _WIDTH, _LAYERS = 32, 64, 4  # as the workload "ensemble" in its small size
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_WARM_UPS = 3  # TorchScript optimizes a program after it has run twice
_TOLERANCE = 1e-3, 1e-6  # relative and absolute: products joined are summed in another order
_COMPILING = 500  # runs that take as long as compiling


@dataclass(frozen=True, slots=True)
class BatchedWay:
    """One way to run a step of an ensemble.

    Attributes:
        name: its name, such as `TorchScript`.
        products: the product kernels that forward and backward launched, by name, as torch's profiler counted them.
        times_ns: nanoseconds of each step, forward and backward. Of tapescope's groups, these are the forward and the
            tasks of the backward.
        agrees: whether the gradients equal those of eager execution, within rounding.
        search_ns: the median time that tapescope takes per step to read the graph, and to find groups and hooks.
        launches: the kernel launches of the joined tasks before and after joining, with sums and copies; None for other
            ways.
    """

    name: str
    products: Mapping[str, int]
    times_ns: tuple[int, ...]
    agrees: bool
    search_ns: float = 0.0
    launches: tuple[int, int] | None = None

    @property
    def launched(self) -> int:
        """The number of products launched."""
        return sum(self.products.values())

    @property
    def time(self) -> Spread:
        """The median of its times in nanoseconds, and the quartiles."""
        return Spread.of(self.times_ns)


@dataclass(frozen=True, slots=True)
class StudiedEnsemble:
    """The results of one ensemble.

    Attributes:
        program: "Linear": members of four Linear layers; "x.mm(w)": members that are one product each.
        members: the number of members.
        ways: the results, eager execution first.
        refused: the reason for each way that could not run.
    """

    program: Program
    members: int
    ways: tuple[BatchedWay, ...]
    refused: Mapping[str, str]

    @property
    def name(self) -> str:
        """`10 × Linear`."""
        return f"{self.members} × {self.program}"

    def __getitem__(self, name: str) -> BatchedWay:
        """Return one row of the study by its name.

        Raises:
            ValueError: there is none of this name.
        """
        return row_called(name, ((way.name, way) for way in self.ways))

    def __contains__(self, name: object) -> bool:
        return any(way.name == name for way in self.ways)


@dataclass(frozen=True, slots=True, eq=False)
class BatchingStudy(ShownAsTable):
    """Ensembles under each way to run them, displayed as a table in a notebook.

    Attributes:
        rows: the results, in the order of measurement.
        machine: the machine that ran the study.
        interrupted: whether ensembles are missing because the study was interrupted.
    """

    rows: tuple[StudiedEnsemble, ...]
    machine: Machine
    interrupted: bool = False

    words = ("ensemble", "")

    def __getitem__(self, name: str) -> StudiedEnsemble:
        """Return a row by its name, such as "10 × Linear".

        Raises:
            ValueError: if there is none.
        """
        return row_called(name, ((row.name, row) for row in self.rows))

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first: for each ensemble the launched products and the time of a step."""
        names = list(dict.fromkeys(way.name for row in self.rows for way in row.ways))
        cells = [["ensemble", "", *names]]
        for row in self.rows:
            found = {way.name: way for way in row.ways}
            ways = [found.get(name) for name in names]
            cells.append([row.name, "products", *("–" if way is None else f"{way.launched:,}" for way in ways)])
            cells.append(["", "time", *("–" if way is None else f"{way.time.middle / 1e6:.2f} ms" for way in ways)])
        return cells

    @property
    def sentences(self) -> tuple[str, ...]:
        """The table's content in sentences."""
        return (*self._compared(), *self._of_refused())

    def _compared(self) -> Iterator[str]:
        for name in dict.fromkeys(way.name for row in self.rows for way in row.ways if way.name != EAGER):
            pairs = [(row, row[name], row[EAGER]) for row in self.rows if name in row]
            fewer = [f"{row.name}: {way.launched:,}" for row, way, eager in pairs if way.launched < eager.launched]
            same = [row.name for row, way, eager in pairs if way.launched >= eager.launched]
            said = []
            if fewer:
                said.append(f"launches fewer products than eager execution ({'; '.join(fewer)})")
            if same:
                said.append(f"joins no products of {joined(same, most=8)}")
            wrong = [row.name for row, way, _ in pairs if not way.agrees]
            yield f"{name} {' and '.join(said)}." + (f" Its gradients of {joined(wrong)} differ." if wrong else "")
        found = [(row.name, row[GROUPS].launches, row[GROUPS].search_ns) for row in self.rows]
        fallen = [f"{launches[0]} → {launches[1]} ({name})" for name, launches, _ in found if launches is not None]
        if fallen:
            search_ms = max(each for _, _, each in found) / 1e6
            yield (
                "ts groups joins products of the backward. With sums and copies its launches fall: "
                f"{joined(fallen, most=8)}. Its time is that of the forward and of the direct engine's tasks, in "
                f"Python; reading the graph and looking for groups and hooks takes up to {search_ms:,.0f} ms more."
            )

    def _of_refused(self) -> Iterator[str]:
        for row in self.rows:
            for name, why in row.refused.items():
                yield f"{name} of {row.name} was left out: {why}"
        if self.interrupted:
            yield "The study was interrupted: ensembles are missing."

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per ensemble and way, for `pandas.DataFrame(study.records())`."""
        return [
            {
                "program": row.program,
                "members": row.members,
                "way": way.name,
                "products": way.launched,
                "kernels": dict(way.products),
                "elapsed_ns": way.time.middle,
                "times_ns": list(way.times_ns),
                "search_ns": way.search_ns,
                "launches": way.launches,
                "agrees": way.agrees,
            }
            for row in self.rows
            for way in row.ways
        ]

    def __repr__(self) -> str:
        return f"<BatchingStudy of {', '.join(row.name for row in self.rows)}>"

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", self.cells, self.sentences, self._numbers(self.cells[0]))


def batching_study(
    members: Iterable[int] = MEMBERS_STUDIED,
    *,
    compiled: bool = True,
    repetitions: int = 12,
    progress: Callable[[str], object] | None = None,
) -> BatchingStudy:
    """Count the products that eager execution, TorchScript, torch.compile and tapescope's groups launch, and time them.

    There are two ensembles for each number of members: networks of four Linear layers on one input, as in PyTorch
    #18157, and members that are one product `x.mm(w)` each, which TorchScript's rule was written for. Products of the
    forward and the backward are counted by torch's profiler. Times are of whole steps, in turns. An interrupt (Ctrl-C)
    after the first ensemble returns the study so far.

    Args:
        members: numbers of members.
        compiled: whether to include torch.compile, which compiles for about 15 s per ten members.
        repetitions: how often to time each way.
        progress: a callback that is called with a description before each run, and an estimate of the time left.

    Raises:
        TypeError, ValueError: if there is no number of members, one is not an integer of at least 1 or repeated, or
            `repetitions` is below 1.
        KeyboardInterrupt: if interrupted before the first ensemble was measured.
    """
    expect(members, Iterable, "members", "a list of numbers of members")
    expect_truth(compiled, "compiled")
    members = list(members)
    for name, number in (("repetitions", repetitions), *(("members", each) for each in members)):
        expect_number(number, int, name, "an integer of at least 1")
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    if not members or len(set(members)) < len(members):
        raise ValueError(f"members must be different numbers, at least one, got {members}")
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function of one text, called before each run")
    rows: list[StudiedEnsemble] = []
    programs: list[tuple[int, Program]] = [(each, program) for program in get_args(Program) for each in members]
    with telling(progress, "measuring", timed=True) as told:
        runs = len(programs) * ((3 + compiled) * (1 + repetitions) + compiled * _COMPILING)
        tell = TimeLeft(told, runs)
        try:
            for each, program in programs:
                rows.append(_studied(program, each, compiled, repetitions, tell))
        except KeyboardInterrupt:
            if not rows:
                raise
            return BatchingStudy(tuple(rows), this_machine(), interrupted=True)
    return BatchingStudy(tuple(rows), this_machine())


class _Products(nn.Module):
    """Members that are one product each, of the same input and separate weights."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(_WIDTH, _WIDTH) / _WIDTH for _ in range(members))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.mm(weight) for weight in self.weights])


def _studied(program: Program, members: int, compiled: bool, repetitions: int, tell: TimeLeft) -> StudiedEnsemble:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        linear = program == "Linear"
        model: nn.Module = Ensemble(members, [_WIDTH] * _LAYERS + [1]) if linear else _Products(members)
        x = torch.randn(_BATCH, _WIDTH)
    name = f"{members} × {program}"
    refused: dict[str, str] = {}
    measured: list[_Way] = []
    for way in _ways(model, x, compiled):
        tell(f"{name}: {way.name}, its products", _COMPILING if way.name == COMPILED else 1.0)
        try:
            for _ in range(_WARM_UPS):
                way.step()
            way.gradients = [parameter.grad for parameter in model.parameters()]
            way.products = _counted(way.step)
        except Exception as error:
            if way.name in (EAGER, GROUPS):
                raise
            refused[way.name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0].rstrip('.')}."
        else:
            measured.append(way)
    for number, round_ in enumerate(turns(measured, repetitions)):
        for way in round_:
            tell(f"{name}: {way.name}, round {number + 1:,} of {repetitions:,}")
            way.time()
    return StudiedEnsemble(program, members, tuple(way.studied(measured[0].gradients) for way in measured), refused)


class _Way:
    """A way to run a step of one model. `backward` returns the `Run` of tapescope's groups."""

    def __init__(
        self, name: str, model: nn.Module, loss_of: Callable[[], Tensor], backward: Callable[[Tensor], Run | None]
    ) -> None:
        self.name = name
        self._model, self._loss_of, self._backward = model, loss_of, backward
        self.gradients: list[Tensor | None] = []
        self.products: Mapping[str, int] = {}
        self._times_ns: list[int] = []
        self._searches_ns: list[int] = []
        self._launches: tuple[int, int] | None = None

    def step(self) -> tuple[int, Run | None]:
        """Run forward and backward. Return the time at which the forward ended, and the run."""
        self._model.zero_grad()
        loss = self._loss_of()
        ended_ns = perf_counter_ns()
        return ended_ns, self._backward(loss)

    def time(self) -> None:
        self._model.zero_grad()
        began_ns = perf_counter_ns()
        forward_ns, run = self.step()
        whole_ns = perf_counter_ns() - began_ns
        own_ns = whole_ns if run is None else forward_ns - began_ns + run.elapsed_ns
        self._times_ns.append(own_ns)
        self._searches_ns.append(whole_ns - own_ns)
        if run is not None and run.batches:
            batches = list(run.batches)
            self._launches = sum(each.launches_before for each in batches), sum(each.launches for each in batches)

    def studied(self, expected: Sequence[Tensor | None]) -> BatchedWay:
        agrees = same_tensors(self.gradients, expected, lambda one, other: torch.allclose(one, other, *_TOLERANCE))
        search_ns = median(self._searches_ns)
        return BatchedWay(self.name, self.products, tuple(self._times_ns), agrees, search_ns, self._launches)


def _ways(model: nn.Module, x: Tensor, compiled: bool) -> Iterator[_Way]:
    def way(name: str, forward: Callable[[Tensor], Tensor], batched: bool = False) -> _Way:
        def run(loss: Tensor) -> Run | None:
            if batched:
                return backward(loss, engine="direct", batch="auto")
            loss.backward()  # type: ignore[no-untyped-call]
            return None

        return _Way(name, model, lambda: forward(x).square().mean(), run)

    @cache
    def traced() -> Callable[[Tensor], Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            script: Callable[[Tensor], Tensor] = torch.jit.trace(model, (x,))  # type: ignore[no-untyped-call]
        return script

    yield way(EAGER, model)
    yield way(SCRIPT, lambda x: traced()(x))
    if compiled:
        yield way(COMPILED, torch.compile(model))
    yield way(GROUPS, model, batched=True)


def _counted(step: Callable[[], object]) -> dict[str, int]:
    """Count the product kernels that a step launches."""
    with quiet_kineto(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        step()
    counts = Counter(event.name for event in recorded.events() if event.name in _PRODUCTS)
    return {name.removeprefix("aten::"): count for name, count in sorted(counts.items())}
