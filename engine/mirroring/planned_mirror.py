"""What `th.plan_mirror` gives: a plan for mirroring, with the memory and the time that it should come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...inspector.capturing.forward_program import ForwardProgram
from ...inspector.graph.graph import Fold
from ...inspector.graph.graph import Theme as GraphTheme
from ...inspector.shown import drawn, text_of
from ..memory.timeline import Timeline
from ..words.sizes import percent_text, share_text, size_text
from .footprint import MirroredMemory
from .modules import RIGHT, module_cells, module_sentences, ms_text
from .plan import MirrorPlan

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.table import Table

    from .frontier import MirrorFrontier


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PlannedMirror(MirrorPlan):
    """A plan for mirroring with what it was made from. In a notebook the table shows itself.

    `save` writes what `th.mirror` needs, the prediction and the order; the timelines are not in the file.

    Attributes:
        plain, timeline: the memory of the backward without and with it, predicted.
        left_alone: why nothing is dropped, as a sentence; None: something is.
        notes: what else is to be known, in sentences.
        order: of the backward that it was planned for; `policy` is what runs it.
        met: whether what was asked for is reached.
        solver: what found it; `evaluations`: among how many choices; `seconds`: in what time.
        program, memory: what it was judged by.
        recording_ns: what the forward takes longer for each operation that is noted, to run again.
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

    def explore(self, seconds: float = 5.0) -> MirrorFrontier:
        """What other budgets would buy: plans from the plain peak to the lowest, with a slider through them.

        The forward does not run again.

        Args:
            seconds: how long to search.

        Raises:
            ValueError: that is no time.
        """
        from .frontier import explored

        return explored(self, seconds)

    def reckoned(self, dropped: Iterable[int], replay_ns: float) -> tuple[float, float]:
        """Seconds that recording and replays take of a step, as they were reckoned with before any was measured."""
        operations = {operation for number in dropped for operation in self.program.storages[number].program}
        recording = len(operations) * self.recording_ns
        return recording / 1e9, max(0.0, replay_ns - recording) / 1e9

    @property
    def within_reach_bytes(self) -> int:
        """What plans may let go of, of that which is there at the peak without any."""
        memory, peak = self.memory, self.plain.peak_place
        return sum(
            each.nbytes
            for each, places, held in zip(memory.storages, memory.places, memory.held, strict=True)
            if each.droppable and each.start >= 0 and not held and places and places[-1] >= peak
        )

    @property
    def sentences(self) -> list[str]:
        """What the table says."""
        notes = list(self.notes)
        if not self.met:
            notes.append(
                f"Of the peak without a plan, {size_text(self.plain_peak_bytes)}, "
                f"{size_text(self.within_reach_bytes)} are saved tensors that can be made again; no plan lets go of "
                "the rest, such as gradients."
            )
        if self.left_alone is not None:
            return [self.left_alone, *notes]
        predicted, before, after = self.predicted, self.plain_peak_bytes, self.peak_bytes
        where = "" if self.order_name == "heap" else f", in the order of {self.order_name}"
        found = [
            f"The backward's peak falls from {size_text(before)} to {size_text(after)}, by "
            f"{share_text(before - after, before)}{where}. Predicted."
        ]
        if predicted is not None:
            more = predicted.seconds / predicted.plain_seconds - 1
            found.append(
                f"A step takes {percent_text(more)} longer than {ms_text(predicted.plain_seconds)}: "
                f"{ms_text(predicted.replay_seconds)} for replays, {ms_text(predicted.recording_seconds)} for "
                "recording the forward."
            )
        if self.order_name != "heap":
            found.append(f"It is for the order of {self.order_name}: th.backward(loss, policy=plan.policy).")
        return [*found, *module_sentences(self), *notes]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first: see `module_cells`."""
        return module_cells(self)

    @property
    def table(self) -> Table:
        """The rows as a table of rich."""
        from rich.table import Table
        from rich.text import Text

        headings, *rows = self.cells
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading in headings:
            table.add_column(heading, justify="right" if heading in RIGHT else "left")
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
        right = [heading in RIGHT for heading in rows[0]]
        lines = [
            "  ".join(
                text.rjust(width) if number else text.ljust(width)
                for text, width, number in zip(cells, widths, right, strict=True)
            ).rstrip()
            for cells in rows
        ]
        return "\n".join([*lines, "", *self.sentences])

    def __repr__(self) -> str:
        if self.left_alone is not None:
            return "<PlannedMirror: left alone>"
        count = sum(each.fate == "dropped" for each in self.storages)
        return f"<PlannedMirror: {count:,} dropped, {size_text(self.plain_peak_bytes)} to {size_text(self.peak_bytes)}>"

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", self.cells if self.left_alone is None else [[]], self.sentences, RIGHT)

    def to_svg(self, *, fold: Fold = "repeats", theme: GraphTheme = "auto") -> str:
        """The graph with signs at tasks whose saved tensors are let go of, that make them again first, and that newly
        keep others for that. See `Graph.save_svg` for `fold` and `theme`."""
        from .tasks import mirror_signs

        return text_of("graph as SVG", self.plain.graph, fold=fold, theme=theme, signs=mirror_signs(self, self.order))

    def save_svg(self, path: str | Path, *, fold: Fold = "repeats", theme: GraphTheme = "auto") -> Path:
        """Writes `to_svg()` to a file."""
        path = Path(path)
        path.write_text(self.to_svg(fold=fold, theme=theme), encoding="utf-8")
        return path

    def figure(self, theme: Literal["light", "dark"] = "light") -> go.Figure:
        """The level over the tasks without and with the plan, the peaks marked. Needs plotly."""
        return drawn("levels as a figure", {"without": self.plain, "mirrored": self.timeline}, theme)
