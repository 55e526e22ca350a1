"""What `th.plan_mirror` gives: a plan for mirroring, with the memory and the time that it should come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..inspector.forward_program import ForwardProgram
from .mirror_footprint import MirroredMemory
from .mirror_plan import MirrorPlan
from .policies import Policy
from .simulate import difference
from .sizes import percent_text, share_text, size_text
from .storage_words import pattern
from .timeline import Timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.table import Table

    from .mirror_frontier import MirrorFrontier
    from .problem import Problem

_MOST_ROWS = 12  # of modules in the table; the others in one


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PlannedMirror(MirrorPlan):
    """A plan for mirroring with what it was made from. In a notebook the table shows itself.

    `save` writes what `th.mirror` needs; the timelines and the table are not in the file.

    Attributes:
        plain, timeline: the memory of the backward without and with it, predicted.
        left_alone: why nothing is dropped, as a sentence; None: something is.
        notes: what else is to be known, in sentences.
        order: of the backward that it was planned for; `policy` is what runs it.
        met: whether what was asked for is reached.
        solver: what found it; `evaluations`: among how many choices; `seconds`: in what time.
        program, memory: what it was judged by; recording_ns: what a step takes longer under a plan that drops nothing.
    """

    plain: Timeline
    timeline: Timeline
    left_alone: str | None
    notes: tuple[str, ...]
    order: tuple[int, ...]
    order_name: str
    met: bool
    solver: str
    evaluations: int
    seconds: float
    program: ForwardProgram
    memory: MirroredMemory
    recording_ns: float

    @property
    def peak_bytes(self) -> int:
        """The highest level of the backward with the plan, predicted."""
        return self.timeline.peak_bytes

    @property
    def plain_peak_bytes(self) -> int:
        """The same without."""
        return self.plain.peak_bytes

    @property
    def policy(self) -> str | Policy:
        """What the backward is to run under: `th.backward(loss, policy=plan.policy)`; "heap": by `loss.backward()`."""
        if self.order_name == "heap":
            return "heap"

        def planned(problem: Problem, ran: Sequence[int]) -> list[int]:
            if (other := difference(problem.graph, self.plain.graph)) is not None:
                raise ValueError(f"this order was planned for another graph: {other}; plan again")
            gone, runs = set(ran), set(problem.tasks)
            return [*ran, *(task for task in self.order if task in runs and task not in gone)]

        return Policy(f"planned {self.order_name}", f"{self.order_name}, for a mirrored forward", plan=planned)

    def explore(self, seconds: float = 5.0) -> MirrorFrontier:
        """What other budgets would buy: plans from the plain peak to the lowest, with a slider through them.

        The forward does not run again.

        Args:
            seconds: how long to search.

        Raises:
            ValueError: that is no time.
        """
        from .mirror_frontier import explored

        return explored(self, seconds)

    @property
    def sentences(self) -> list[str]:
        """What the table says."""
        if self.left_alone is not None:
            return [self.left_alone, *self.notes]
        predicted, before, after = self.predicted, self.plain_peak_bytes, self.peak_bytes
        found = [
            f"The backward's peak falls from {size_text(before)} to {size_text(after)}, by "
            f"{share_text(before - after, before)}. Predicted."
        ]
        if predicted is not None:
            more = predicted.seconds / predicted.plain_seconds - 1
            found.append(
                f"A step takes {percent_text(more)} longer than {_ms(predicted.plain_seconds)}: "
                f"{_ms(predicted.replay_seconds)} for replays, {_ms(predicted.recording_seconds)} for recording the "
                "forward."
            )
        if self.order_name != "heap":
            found.append(f"It is for the order of {self.order_name}: th.backward(loss, policy=plan.policy).")
        return [*found, *self.notes]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first: by module, those that differ in a number in one row.

        What a step was measured to take longer for replays is told to the modules as their operations take time.
        """
        found = [["module", "let go", "newly kept", "replays", "made again in", "operations"]]
        if self.left_alone is not None:
            return found
        rows: dict[str, _Row] = {}
        measured = 1.0  # of what the operations take by themselves, in which each has its share
        if self.predicted is not None and self.replay_seconds:
            measured = self.predicted.replay_seconds / self.replay_seconds
        for each in self.storages:
            if each.is_dropped or each.fate == "newly kept":
                rows.setdefault(pattern(each.module or ""), _Row()).add(
                    each.operation, each.nbytes, measured * each.seconds, each.fate
                )
        ranked = sorted(rows.items(), key=lambda item: -item[1].saved)
        for name, row in ranked[:_MOST_ROWS]:
            found.append(row.cells(name or "outside any module"))
        if rest := ranked[_MOST_ROWS:]:
            total = _Row()
            for _, row in rest:
                total.merge(row)
            found.append(total.cells(f"{len(rest)} others"))
        return found

    @property
    def table(self) -> Table:
        """The rows as a table of rich."""
        from rich.table import Table
        from rich.text import Text

        headings, *rows = self.cells
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading in headings:
            table.add_column(heading, justify="left" if heading in _LEFT else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        return table

    def __rich__(self) -> Table:
        return self.table

    def __str__(self) -> str:
        rows = self.cells
        if len(rows) == 1:
            return "\n".join(self.sentences)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows]
        return "\n".join([*lines, "", *self.sentences])

    def __repr__(self) -> str:
        if self.left_alone is not None:
            return "<PlannedMirror: left alone>"
        count = sum(each.fate == "dropped" for each in self.storages)
        return f"<PlannedMirror: {count:,} dropped, {size_text(self.plain_peak_bytes)} to {size_text(self.peak_bytes)}>"

    def _repr_html_(self) -> str:
        from ..widgets.report_html import cells_html

        return cells_html(self.cells if self.left_alone is None else [[]], self.sentences, _RIGHT)

    def figure(self, theme: Literal["light", "dark"] = "light") -> go.Figure:
        """The level over the tasks without and with the plan, the peaks marked. Needs plotly."""
        from ..widgets.memory_figures import memory_figure

        return memory_figure({"without": self.plain, "mirrored": self.timeline}, theme)


_LEFT = ("module", "operations")
_RIGHT = ("let go", "newly kept", "replays", "made again in")


class _Row:
    """What is dropped and kept of the modules of one pattern."""

    def __init__(self) -> None:
        self.saved = self._kept = self._replays = 0
        self._seconds = 0.0
        self._operations: dict[str, int] = {}

    def add(self, operation: str, nbytes: int, seconds: float, fate: str) -> None:
        if fate == "newly kept":
            self._kept += nbytes
            return
        self.saved += nbytes if fate == "dropped" else 0
        self._replays += 1
        self._seconds += seconds
        name = operation.split(".")[1]
        self._operations[name] = self._operations.get(name, 0) + 1

    def merge(self, other: _Row) -> None:
        self.saved += other.saved
        self._kept += other._kept
        self._replays += other._replays
        self._seconds += other._seconds
        for name, count in other._operations.items():
            self._operations[name] = self._operations.get(name, 0) + count

    def cells(self, module: str) -> list[str]:
        most = sorted(self._operations.items(), key=lambda item: -item[1])
        names = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in most[:3])
        return [
            module,
            size_text(self.saved),
            size_text(self._kept) if self._kept else "",
            f"{self._replays:,}",
            _ms(self._seconds),
            f"{names}, …" if len(most) > 3 else names,
        ]


def _ms(seconds: float) -> str:
    """`5.2 ms`, `0.04 ms`."""
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e3 * seconds:.2g} ms"
