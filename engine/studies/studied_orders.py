"""The result of a study of orders: its table, its sentences and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...inspector.files import write_file
from ...inspector.graph.phrases import joined
from ...inspector.renderers import GraphTheme, drawn, saved_page
from ...inspector.text.durations import time_text
from ...inspector.text.report import ShownAsTable, row_called
from ...inspector.text.sizes_and_counts import size_text
from ...inspector.text.text_columns import lines_of
from ..api.environment import Machine
from ..api.time_backwards import Spread
from .comparison import Comparison
from .gantt import MakespanReport
from .ready_workload import Size, Workload

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.table import Table

_REFERENCE = "heap"
_MORE, _LESS = "needs more memory than", "needs less memory than"
_RISE = "rise: the peak minus the level at the start of the backward."
_BESIDE = 4  # policies side by side in the table
TIMED_RUNS = 5  # runs that measure the times of tasks
_ENOUGH = 6  # rounds needed for a meaningful middle half
_ALIKE = 0.005  # a ratio closer to 1 is printed as 1.00
_STYLES = {1: "red", 0: "dim", -1: "green"}
_FILE = "tapescope order study"


@dataclass(frozen=True, slots=True, eq=False)
class StudiedWorkload:
    """The results of one workload under all orders.

    Attributes:
        workload: the workload.
        size: "small" or "full"; None for a user's program.
        comparison: the measurements, with the whole timeline of each order.
        makespans: the time of each order if each of the workload's devices has its own queue, simulated with measured
            times of the tasks; None for a single device.
    """

    workload: Workload
    size: Size | None
    comparison: Comparison
    makespans: MakespanReport | None = None

    @property
    def name(self) -> str:
        """The workload's name."""
        return self.workload.name

    @property
    def knobs(self) -> Mapping[str, int]:
        """The arguments that the workload was built with."""
        return self.workload.small if self.size == "small" else self.workload.full

    @property
    def sentence(self) -> str:
        """A description: `One Linear used 50 times … · pytorch PR #4746, 2018 · small: uses=50 … · 104 tasks`."""
        knobs = " ".join(f"{knob}={value}" for knob, value in self.knobs.items())
        sized = "" if self.size is None else f"{self.size}: {knobs}"
        tasks = f"{len(self.comparison.graph):,} tasks"
        return " · ".join(filter(None, (self.workload.title, self.workload.source, sized, tasks)))

    def time(self, policy: str) -> Spread:
        """Return the backward's time in nanoseconds: the median and the ends of the middle half.

        Raises:
            ValueError: if the policy is not in the study. The other methods raise it too.
        """
        return Spread.of(self.comparison[policy].times_ns)

    def time_ratio(self, policy: str, reference: str) -> Spread:
        """Return the time divided by another policy's, per round, because a disturbance slows both runs of a round."""
        pairs = zip(self.comparison[policy].times_ns, self.comparison[reference].times_ns, strict=True)
        return Spread.of([over / under for over, under in pairs])

    def peak_ratio(self, policy: str, reference: str) -> float:
        """Return the peak divided by another policy's peak."""
        return self.comparison[policy].peak_bytes / max(self.comparison[reference].peak_bytes, 1)

    def start_bytes(self, policy: str) -> int:
        """Return the level at the start of the backward, after the forward."""
        return self.comparison[policy].timeline.start_bytes

    def rise_bytes(self, policy: str) -> int:
        """Return the peak of the backward minus the level at its start."""
        return self.comparison[policy].peak_bytes - self.start_bytes(policy)

    def makespan_ns(self, policy: str) -> int | None:
        """Return the policy's makespan; None for a policy that decides while the backward runs."""
        rows = () if self.makespans is None else self.makespans.rows
        return next((row.makespan_ns for row in rows if row.policy == policy), None)

    def measured_text(self, policies: Sequence[str]) -> str:
        """Return the measured times relative to the shortest, to compare with the makespans on real devices."""
        times = {policy: self.time(policy).middle for policy in policies}
        best = min(times, key=times.__getitem__)
        others = [
            f"{policy} took {self.time_ratio(policy, best).middle:.2f} times as long"
            for policy in policies
            if policy != best and self.makespan_ns(policy) is not None
        ]
        return f" Measured on those devices, against {best}: {joined(others)}." if others else ""

    @property
    def devices(self) -> str:
        """The devices of the simulation, such as `cpu and cuda:0`."""
        return "" if self.makespans is None else " and ".join(self.makespans.devices)

    def records(self, reference: str) -> Iterator[dict[str, Any]]:
        """Return one flat dict per policy."""
        for row in self.comparison.rows:
            time, ratio = self.time(row.policy), self.time_ratio(row.policy, reference)
            yield {
                "workload": self.name,
                "size": self.size,
                "tasks": len(self.comparison.graph),
                "policy": row.policy,
                "elapsed_ns": time.middle,
                "elapsed_low_ns": time.low,
                "elapsed_high_ns": time.high,
                "time_ratio": ratio.middle,
                "time_ratio_low": ratio.low,
                "time_ratio_high": ratio.high,
                "peak_bytes": row.peak_bytes,
                "peak_ratio": self.peak_ratio(row.policy, reference),
                "start_bytes": self.start_bytes(row.policy),
                "rise_bytes": self.rise_bytes(row.policy),
                "predicted_bytes": row.dry_run_bytes,
                "longest_queue": row.longest_queue,
                "makespan_ns": self.makespan_ns(row.policy),
                "times_ns": list(row.times_ns),
            }


@dataclass(frozen=True, eq=False)
class OrderStudy(ShownAsTable):
    """Workloads under several orders, displayed as a table in a notebook.

    Attributes:
        rows: the results, in the order of measurement.
        policies: the names of the policies.
        repetitions: how often each was timed.
        machine: the machine that ran the study.
        device: the device of the models.
        refused: the reason for each workload that could not be measured.
        interrupted: whether workloads are missing because the study was interrupted.
    """

    rows: tuple[StudiedWorkload, ...]
    policies: tuple[str, ...]
    repetitions: int
    machine: Machine
    device: str = "cpu"
    refused: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False

    html = "orders as HTML"

    def __getitem__(self, name: str) -> StudiedWorkload:
        """Return the row of a workload.

        Raises:
            ValueError: if the workload is not in the study.
        """
        return row_called(name, ((row.name, row) for row in self.rows))

    @property
    def reference(self) -> str:
        """The policy that ratios refer to: HEAP, PyTorch's own, or else the first."""
        return _REFERENCE if _REFERENCE in self.policies else self.policies[0]

    @property
    def others(self) -> tuple[str, ...]:
        """The policies other than the reference."""
        return tuple(policy for policy in self.policies if policy != self.reference)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The table's content in sentences: orders that need more memory or time, or make no difference."""
        left_out = (f"{name} was left out: {why}" for name, why in self.refused.items())
        cut = ("The study was interrupted: workloads are missing.",) if self.interrupted else ()
        return (*(self._compared() if self.others else ()), *self._of_makespans(), *left_out, *cut)

    def within_noise(self, policy: str) -> dict[str, Spread]:
        """Return the time ratio of each workload where a policy is neither faster nor slower than the reference.

        It is empty after fewer than 6 rounds, which are too few to tell.
        """
        if self.repetitions < _ENOUGH:
            return {}
        ratios = {row.name: row.time_ratio(policy, self.reference) for row in self.rows}
        differs = {row.name for row in self.rows if _time(self, row, policy).sign}
        return {name: ratio for name, ratio in ratios.items() if name not in differs and ratio.spans(1.0)}

    def _compared(self) -> Iterator[str]:
        reference = self.reference
        for policy in self.others:
            peaks = {row.name: row.peak_ratio(policy, reference) for row in self.rows}
            ratios = {row.name: row.time_ratio(policy, reference) for row in self.rows}
            times = {row.name: ratios[row.name] for row in self.rows if _time(self, row, policy).sign}
            said = [
                f"{how} {reference}{of} on {_listed(found)}"
                for how, of, found in (
                    (_MORE, "", {name: ratio for name, ratio in peaks.items() if ratio >= 1 + _ALIKE}),
                    (_LESS, "", {name: ratio for name, ratio in peaks.items() if ratio <= 1 - _ALIKE}),
                    ("takes longer than", "", {name: ratio for name, ratio in times.items() if ratio.middle > 1}),
                    ("is faster than", "", {name: ratio for name, ratio in times.items() if ratio.middle < 1}),
                    ("is within noise of", "'s time", self.within_noise(policy)),
                )
                if found
            ]
            if said:
                yield f"{policy} {'; it '.join(said)}."
        alike = [
            row.name
            for row in self.rows
            if all(abs(row.peak_ratio(policy, reference) - 1) < _ALIKE for policy in self.others)
        ]
        if alike:
            yield f"The order makes no difference to the peak of {joined(alike)}."

    def _of_makespans(self) -> Iterator[str]:
        for row in self.rows:
            if row.makespans is not None:
                measured = row.measured_text(self.policies) if len(row.comparison.graph.devices) > 1 else ""
                yield f"{row.name}, with a queue for each device. {' '.join(row.makespans.sentences)}{measured}"

    @property
    def how_measured(self) -> tuple[str, ...]:
        """Explain the table's numbers in sentences."""
        against = f" Ratios are against {self.reference}." if self.others else ""
        each = "1 backward" if self.repetitions == 1 else f"the median of {self.repetitions:,} backwards"
        half = "" if self.repetitions == 1 else "; ± is half the width of their middle half"
        rounds = ""
        if self.others and self.repetitions > 1:
            rounds = " A ratio of times is the median over the rounds; if their middle half contains 1, it is noise."
        return (
            f"time: {each} alone, each after a new forward, with the policies alternating{half}.{against}{rounds}",
            "peak: the highest level in the backward of memory allocated since the start of the forward, measured "
            "once. Parameters, inputs and earlier .grad are not counted.",
            _RISE,
            "longest queue: the largest number of tasks ready at once.",
            *(
                f"makespan: the time of {row.name} on {row.devices} if each has its own queue, simulated with the "
                f"times of the tasks in {TIMED_RUNS} backwards."
                for row in self.rows
                if row.makespans is not None
            ),
        )

    def lines(self, row: StudiedWorkload) -> Iterator[tuple[str, list[Cell]]]:
        """Yield the lines of a workload: the heading, and a cell for each policy."""
        for what, of in _LINES.items():
            cells = [of(self, row, policy) for policy in self.policies]
            if any(cell.value for cell in cells):
                yield what, cells

    @property
    def blocks(self) -> tuple[list[str], list[Block]]:
        """The table: the headings of its columns, and the lines of each workload.

        Up to four policies have a column each, with time, peak and so on below each other. More would not fit side by
        side, so each has a line.
        """
        lines = [dict(self.lines(row)) for row in self.rows]
        if len(self.policies) <= _BESIDE:
            return list(self.policies), list(map(list, map(dict.items, lines)))
        headings = [what for what in _LINES if any(what in each for each in lines)]
        missing = [Cell("")] * len(self.policies)
        return headings, [
            [
                (policy, [each.get(what, missing)[number] for what in headings])
                for number, policy in enumerate(self.policies)
            ]
            for each in lines
        ]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, headings first; several lines for each workload."""
        headings, blocks = self.blocks
        found = [["workload", "", *headings]]
        for row, block in zip(self.rows, blocks, strict=True):
            for number, (label, cells) in enumerate(block):
                texts = (" ".join(filter(None, (cell.value, cell.ratio))) for cell in cells)
                found.append(["" if number else row.name, label, *texts])
        return found

    @property
    def table(self) -> Table:
        """The table, as a rich Table."""
        return self._table(named_beside=True)

    @property
    def narrow_table(self) -> Table:
        """Return a narrower table for 80 columns, with each workload's name above its rows."""
        return self._table(named_beside=False)

    def _table(self, named_beside: bool) -> Table:
        from rich.table import Table
        from rich.text import Text

        headings, blocks = self.blocks
        with_ratio = [
            any(block[at][1][place].ratio for block in blocks for at in range(len(block)))
            for place in range(len(headings))
        ]
        gap = 2 if named_beside else 1
        table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=named_beside)
        table.add_column("workload", no_wrap=True)
        if named_beside:
            table.add_column("", no_wrap=True)
        for heading, ratio in zip(headings, with_ratio, strict=True):
            table.add_column(Text(heading), justify="right", no_wrap=True)
            if ratio:
                table.add_column("", no_wrap=True)
        for row, block in zip(self.rows, blocks, strict=True):
            if not named_beside:
                table.add_row(Text(row.name, "bold"))
            for number, (label, cells) in enumerate(block):
                texts: list[Text] = []
                for cell, ratio in zip(cells, with_ratio, strict=True):
                    texts += [Text(cell.value), *([Text(cell.ratio, _STYLES[cell.sign])] if ratio else [])]
                beside = [Text("" if number else row.name, "bold")] if named_beside else []
                table.add_row(*beside, Text(label if named_beside else f"  {label}", "dim"), *texts)
            if row is not self.rows[-1]:
                table.add_row()
        return table

    def __str__(self) -> str:
        about = [f"{row.name}: {row.sentence}" for row in self.rows]
        return "\n".join(
            [
                *lines_of(self.cells, numbers=self.cells[0]),
                "",
                *self.sentences,
                "",
                *about,
                "",
                *self.how_measured,
                str(self.machine),
            ]
        )

    def __repr__(self) -> str:
        return f"<OrderStudy of {', '.join(row.name for row in self.rows) or 'nothing'}: {', '.join(self.policies)}>"

    @property
    def markdown(self) -> str:
        """The table as Markdown: a row per workload, with time and peak of each policy."""
        headings = ["workload"]
        for policy in self.policies:
            headings += [f"{policy}, time", "peak"]
        headings.append(f"longest queue ({' / '.join(self.policies)})" if len(self.policies) > 1 else "longest queue")
        lines = [headings, ["---", *["---:"] * (len(headings) - 1)]]
        for row in self.rows:
            cells = [row.name]
            for policy in self.policies:
                for of in (_time, _peak):
                    cell = of(self, row, policy)
                    cells.append(f"{cell.value} ({cell.ratio})" if cell.ratio else cell.value)
            cells.append(" / ".join(f"{row.comparison[policy].longest_queue:,}" for policy in self.policies))
            lines.append(cells)
        table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        about = "\n".join(f"- {row.name}: {row.sentence}{self._makespans_text(row)}" for row in self.rows)
        said = (sentence for sentence in self.how_measured if sentence != _RISE)
        return f"{table}\n\n{about}\n\nMeasured on {self.machine}. {' '.join(said)}\n"

    def _makespans_text(self, row: StudiedWorkload) -> str:
        if row.makespans is None:
            return ""
        cells = {policy: _makespan(self, row, policy) for policy in self.policies}
        spans = [
            f"{policy} {cell.value}{f' ({cell.ratio})' if cell.ratio else ''}"
            for policy, cell in cells.items()
            if cell.value
        ]
        return f". Makespan on {row.devices}: {', '.join(spans)}"

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per workload and policy, for `pandas.DataFrame(study.records())`."""
        return [record for row in self.rows for record in row.records(self.reference)]

    def content(self) -> dict[str, Any]:
        """Return all measurements, including every single time, as JSON."""
        return {
            "format": _FILE,
            "version": 1,
            "machine": asdict(self.machine),
            "device": self.device,
            "policies": self.policies,
            "reference": self.reference,
            "repetitions": self.repetitions,
            "workloads": [
                {
                    "name": row.name,
                    "title": row.workload.title,
                    "source": row.workload.source,
                    "size": row.size,
                    "knobs": dict(row.knobs),
                    "tasks": len(row.comparison.graph),
                }
                for row in self.rows
            ],
            "refused": dict(self.refused),
            "rows": self.records(),
        }

    def save_json(self, path: str | Path) -> Path:
        """Write all measurements, including every single time, as JSON and return the path."""
        return write_file(path, json.dumps(self.content(), indent=1, ensure_ascii=False) + "\n")

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Draw peak and time of each order relative to the reference, per workload. Needs plotly."""
        return drawn("orders as a figure", self, theme)

    def save_html(self, path: str | Path, title: str = "Orders of the backward") -> Path:
        """Write one page with the table and the figure. It works offline."""
        return saved_page("orders as a page", path, self, title)


Block: TypeAlias = "list[tuple[str, list[Cell]]]"
"""The lines of one workload: their labels, and a cell for each column."""


class Cell(NamedTuple):
    """A number of the table, and its ratio to the reference's.

    Attributes:
        value: the number, such as `12.3 ms ± 3 %`.
        ratio: the ratio, such as `1.04×`; empty if there is none.
        sign: 1 if it is worse by at least 5 %, -1 if it is better by as much, else 0. For times, the middle half of the
            rounds must be worse or better, because on a busy machine medians alone differ by 5 %. With fewer than 6
            rounds it is 0.
    """

    value: str
    ratio: str = ""
    sign: int = 0


def _time(study: OrderStudy, row: StudiedWorkload, policy: str) -> Cell:
    spread = row.time(policy)
    varies = f" ± {100 * spread.half_width:.0f} %" if study.repetitions > 1 else ""
    said = f"{time_text(spread.middle)}{varies}"
    if policy == study.reference:
        return Cell(said)
    ratio = row.time_ratio(policy, study.reference)
    sign = _sign(ratio.low, ratio.high) if study.repetitions >= _ENOUGH else 0
    return Cell(said, ratio_text(ratio.middle), sign)


def _peak(study: OrderStudy, row: StudiedWorkload, policy: str) -> Cell:
    said = size_text(row.comparison[policy].peak_bytes)
    if policy == study.reference:
        return Cell(said)
    ratio = row.peak_ratio(policy, study.reference)
    return Cell(said, ratio_text(ratio), _sign(ratio, ratio))


def _sign(low: float, high: float) -> int:
    return 1 if low >= 1.05 else -1 if high <= 0.95 else 0


def _makespan(study: OrderStudy, row: StudiedWorkload, policy: str) -> Cell:
    span, reference = row.makespan_ns(policy), row.makespan_ns(study.reference)
    if span is None:
        return Cell("")
    if policy == study.reference or not reference:
        return Cell(time_text(span))
    return Cell(time_text(span), ratio_text(span / reference), _sign(span / reference, span / reference))


_LINES: Mapping[str, Callable[[OrderStudy, StudiedWorkload, str], Cell]] = {
    "time": _time,
    "peak": _peak,
    "rise": lambda study, row, policy: Cell(size_text(row.rise_bytes(policy))),
    "longest queue": lambda study, row, policy: Cell(f"{row.comparison[policy].longest_queue:,}"),
    "makespan": _makespan,
}


def ratio_text(ratio: float) -> str:
    """Format a ratio with three digits: `1.04×`, `17.0×`."""
    return f"{ratio:.{2 if ratio < 9.995 else 1 if ratio < 99.95 else 0}f}×"


def _listed(ratios: Mapping[str, float] | Mapping[str, Spread]) -> str:
    """Return `linear50 (17.0×), seq2seq (1.20× ± 3 %)`, the largest difference first; times have their noise."""
    middles = {name: ratio.middle if isinstance(ratio, Spread) else ratio for name, ratio in ratios.items()}
    ordered = sorted(middles, key=lambda name: max(middles[name], 1 / middles[name]), reverse=True)
    noise = {name: f" ± {100 * ratio.half_width:.0f} %" for name, ratio in ratios.items() if isinstance(ratio, Spread)}
    return ", ".join(f"{name} ({ratio_text(middles[name])}{noise.get(name, '')})" for name in ordered)
