"""The memory that one graph would take under several policies, predicted: `deck.compare(["bfs", "heap"])`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...engine.memory.timeline import Timeline
from ...engine.queue.pending import queue_lengths
from ...engine.words.estimates import bounded_size, estimate_sentence
from ...engine.words.sizes import share_text, size_text
from ...engine.words.tables import ShownAsTable
from ...inspector.shown import GraphTheme

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ShownAsTable):
    """The memory that a graph would take under several policies. `ts.compare` measures the same on fresh forwards.

    Attributes:
        timelines: by policy its memory, simulated.
    """

    timelines: Mapping[str, Timeline]

    words = ("policy", "peak in")

    @property
    def rows(self) -> tuple[Timeline, ...]:
        """The timelines, the highest peak first."""
        return tuple(self.timelines.values())

    @property
    def highest(self) -> Timeline:
        """The one with the highest peak, the first of several."""
        return max(self.rows, key=lambda timeline: timeline.peak_bytes)

    @property
    def cells(self) -> list[list[str]]:
        """The table, its headings first."""
        found = [["policy", "peak", "peak in", "longest queue"]]
        for policy, timeline in self.timelines.items():
            task = timeline.peak_task
            where = "before the first task" if task is None else timeline.graph.describe(task, timeline.peak_place)
            longest = max(queue_lengths(timeline.graph, timeline.order), default=0)
            found.append([policy, size_text(timeline.peak_bytes), where, f"{longest:,}"])
        return found

    @property
    def sentences(self) -> list[str]:
        """What the table says."""
        lowest = min(self.timelines, key=lambda policy: self.timelines[policy].peak_bytes)
        low, high = self.timelines[lowest].peak_bytes, self.highest.peak_bytes
        basis = "Predicted; nothing was run."
        reasons = [reason for timeline in self.rows for reason in timeline.estimates]
        estimate = estimate_sentence(reasons)
        why = [estimate] if estimate else []
        if low == high:
            return [f"The order makes no difference to the peak: {bounded_size(high, reasons)}. {basis}", *why]
        return [
            f"{lowest} needs least, {bounded_size(low, reasons)}: {share_text(low, high)} of the most. {basis}",
            *why,
        ]

    def __repr__(self) -> str:
        peaks = ", ".join(f"{policy} {size_text(each.peak_bytes)}" for policy, each in self.timelines.items())
        return f"<Prediction: {peaks}>"

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """The level over the tasks for each policy, the peaks marked. Needs plotly."""
        from ..pages.memory_figures import memory_figure

        return memory_figure(self.timelines, theme)
