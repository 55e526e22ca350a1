"""A still picture of a deck, for viewers that run no page: GitHub, nbconvert, a notebook without its kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import RLock, Timer

from IPython import get_ipython
from IPython.display import display, update_display

from ...engine.memory.estimates import main_reason
from ...engine.memory.timeline import Timeline
from ...engine.schedule.dependencies import Pending
from ...inspector.drawing.fit_to_size import MOST_TRIED, first_view
from ...inspector.drawing.layout import Layout
from ...inspector.drawing.progress_states import State, states_of
from ...inspector.drawing.svg import draw_layout
from ...inspector.drawing.svg_style import style_sheet
from ...inspector.drawing.svg_text import escaped, shorten, text_width
from ...inspector.graph.graph import Graph
from ...inspector.text.sizes_and_counts import counted, size_text
from ..pages.png import bundle_of
from ..pages.theme import DARK, FONT, LIGHT, variables
from . import still_memory_chart as still_memory
from .page_data import peak_words
from .still_memory_chart import number
from .still_queue import queue_elements

_WIDTH = 900.0  # pixels; an output cell of a notebook is at least as wide on a usual screen
_MARGIN = 20.0
_INSIDE = _WIDTH - 2 * _MARGIN
_HEADER = 52.0
_FOOTER = 34.0

_ROOM = (_INSIDE / 0.9, 560.0)  # pixels at full scale; the graph is folded until it fits into them
_LEAST_SCALE = 0.72  # 11 pixels of text become 8
_MOST_HEIGHT = 1000.0  # of the graph at full scale: about a screen
_MOST_BYTES = 200_000
_LONGEST_BASIS = 560.0  # pixels
_MOST_DRAWN = 30_000  # tasks; laying out more would delay the cell
_MOST_TRIED = 8  # boxes of a large graph that are unfolded one by one, each in a tenth of a second
_LARGE = 5_000  # tasks
_STANDS_S = 1.0  # seconds without news before the deck is drawn; drawing each step would slow it down

_MARK = (
    '<g class="ts-mark"><circle cx="5.5" cy="8" r="3.2"/><circle cx="14.5" cy="8" r="3.2"/>'
    '<path d="M2.6 13.5h4.6l1.2-1.6h3.2l1.2 1.6h4.6"/><path class="ts-head-of-mark" d="M8.6 15.5h2.8v2H8.6z"/></g>'
)
_FOOTNOTE = "A still picture of tapescope’s deck. Run the cell to play it and step through it."
_STYLE = f"""
.ts-still text{{font-family:{FONT}}}
.ts-still .ts-mark{{fill:none;stroke:var(--accent);stroke-width:1.6;stroke-linejoin:round}}
.ts-still .ts-head-of-mark{{fill:var(--accent);stroke:none}}
.ts-still .ts-headline{{font-size:14px;font-weight:600}}
.ts-still .ts-larger{{font-size:12px}}
.ts-still .ts-bold{{font-weight:600}}
.ts-still .ts-second{{fill:var(--ink2)}}
.ts-still .ts-rule,.ts-still .ts-grid{{fill:none;stroke:var(--line)}}
.ts-still .ts-frame{{fill:none;stroke:var(--line)}}
.ts-still .ts-level{{fill:none;stroke:var(--ink);stroke-width:1.2}}
.ts-still .ts-other{{fill:none;stroke:var(--ink2);stroke-width:1.2}}
.ts-still .ts-leader{{fill:none;stroke:var(--line2)}}
.ts-still .ts-chosen{{fill:var(--ink)}}
.ts-still .ts-ring{{fill:var(--panel);stroke:var(--ink);stroke-width:1.6}}
.ts-still{{{variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{.ts-still{{{variables(DARK)}}}}}
""".strip()


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of a deck that a picture shows.

    Attributes:
        policy: the name of the policy.
        ran, of: the number of tasks that have run, and of all tasks.
        timelines: memory by policy, this policy's first; empty if unknown.
        order: the ids of all tasks, those that have run first. If some but not all have run, the graph shows which.
        current: the id of the task that runs next.
        stopped: the reason why the last run stopped early, or "".
        begins: for a step, the number of its first event, see `memory_elements`.
    """

    policy: str
    ran: int
    of: int
    timelines: Mapping[str, Timeline]
    order: Sequence[int] = field(default=(), compare=False)
    current: int | None = field(default=None, compare=False)
    stopped: str = ""
    begins: int | None = None

    def ready(self, graph: Graph) -> Sequence[int]:
        """Return the ids of the ready tasks, in the order in which they run; empty if none or all have run."""
        if not 0 < self.ran < len(self.order):
            return ()
        pending = Pending(graph)
        ready = set(pending.start())
        for task_id in self.order[: self.ran]:
            ready.update(pending.run(task_id))
        return [task_id for task_id in self.order[self.ran :] if task_id in ready]

    def states(self, graph: Graph) -> Sequence[State]:
        """Return the state of each task; empty if none or all have run."""
        ready = self.ready(graph)
        return states_of(len(graph), self.order[: self.ran], ready, self.current) if ready else ()


class Still:
    """The still picture of one deck, and its output in the notebook, which the live page hides by its `id`.

    The notebook stores the deck's last state. The picture is drawn again when a cell ends, when the deck has not
    changed for a second, and when it closes.
    """

    def __init__(self, deck_id: str, title: str, graph: Graph) -> None:
        self.id = f"tapescope-still-{deck_id}"
        self._title = title
        self._graph = graph
        self._is_shown = False
        self._shown: Moment | None = None
        self._wanted: tuple[Moment, str] | None = None
        self._timer: Timer | None = None
        self._drawing = RLock()  # reentrant: the garbage collector may close a deck while another is drawn

    def show(self, moment: Moment, text: str) -> None:
        """Display the picture below the deck. `text` is shown where pictures cannot be."""
        if not self._is_shown and (shell := get_ipython()) is not None:
            shell.events.register("post_run_cell", self._draw_now)
        self._is_shown = True
        self._shown = moment
        data, metadata = bundle_of(self.svg(moment), text)
        display(data, metadata=metadata, raw=True, display_id=self.id)

    def update(self, moment: Moment, text: str) -> None:
        """Note the deck's new state. It is drawn later, or at once if its memory has become known."""
        if not self._is_shown or self._shown is None:
            return
        last = self._shown if self._wanted is None else self._wanted[0]
        had_memory = bool(last.timelines)
        if had_memory and not moment.timelines:  # it was released with the session
            moment = replace(moment, timelines=last.timelines)
        if moment == last:
            return
        self._wanted = (moment, text)
        if moment.timelines and not had_memory:
            self._draw_now()
            return
        self._rest()
        self._timer = Timer(_STANDS_S, self._draw_now)
        self._timer.name, self._timer.daemon = "tapescope still", True
        self._timer.start()

    def end(self) -> None:
        """Draw the last state, and stop following the deck."""
        self._rest()
        self._draw_now()
        self.release()

    def release(self) -> None:
        """Stop following the deck, because it is closed or its output is gone."""
        self._rest()
        if self._is_shown and (shell := get_ipython()) is not None:
            with suppress(ValueError):  # another extension has removed all callbacks
                shell.events.unregister("post_run_cell", self._draw_now)
        with self._drawing:  # a drawing under way would set these again
            self._is_shown = False
            self._shown = self._wanted = None

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _draw_now(self, *_: object) -> None:
        """Draw the picture again if the state has changed.

        It is sent in an empty context, so that IPython attributes it to the cell that is running. The current context
        may be an earlier cell's.
        """
        with self._drawing:
            wanted, self._wanted = self._wanted, None
            if wanted is None:
                return
            self._shown, text = wanted
            data, metadata = bundle_of(self.svg(self._shown), text)
            Context().run(update_display, data, metadata=metadata, raw=True, display_id=self.id)

    def svg(self, moment: Moment) -> str:
        """Return the picture: header, graph, ready queue and memory, one below the other."""
        parts, y = [self._header(moment)], _HEADER
        for elements, height in (self._graph_part(moment), self._queue_part(moment), _memory_part(moment)):
            if height:
                parts.append(f'<path class="ts-rule" d="M0 {number(y + 0.5)}H{number(_WIDTH)}"/>')
                parts.append(f'<g transform="translate({number(_MARGIN)} {number(y + _MARGIN)})">')
                parts += [*elements, "</g>"]
                y += height + 2 * _MARGIN
        height = y + _FOOTER
        size = f"{number(_WIDTH)} {number(height)}"
        about = f"{self._title}: {_counted(moment)}"
        frame = f'width="{number(_WIDTH - 1)}" height="{number(height - 1)}" x=".5" y=".5" rx="8"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" id="{escaped(self.id)}" class="ts-auto ts-still" role="img" '
                f'viewBox="0 0 {size}" width="{number(_WIDTH)}" height="{number(height)}">',
                f"<title>{escaped(about)}</title>",
                f"<style>{style_sheet('auto')}\n{_STYLE}</style>",
                f'<rect class="ts-page" {frame}/>',
                *parts,
                f'<path class="ts-rule" d="M0 {number(y + 0.5)}H{number(_WIDTH)}"/>',
                f'<text class="ts-soft" x="{number(_MARGIN)}" y="{number(y + 21)}">{_FOOTNOTE}</text>',
                f'<rect class="ts-frame" {frame}/>',
                "</svg>",
            ]
        )

    def _header(self, moment: Moment) -> str:
        counted = _counted(moment)
        room = _INSIDE - 34 - text_width(counted, 12) - 24
        peaks = _peaks(moment.timelines, room - text_width(self._title, 14, bold=True))
        title = shorten(self._title, room - text_width(peaks, 12), 14, bold=True)
        after = 34 + text_width(title, 14, bold=True) + 12
        return (
            f'<g transform="translate({number(_MARGIN)} 16)">{_MARK}'
            f'<text class="ts-headline" x="32" y="15">{escaped(title)}</text>'
            f'<text class="ts-second ts-larger" x="{number(after)}" y="15">{escaped(counted)}</text>'
            f'<text class="ts-second ts-larger" x="{number(_INSIDE)}" y="15" text-anchor="end">{escaped(peaks)}</text>'
            "</g>"
        )

    @cached_property
    def _placed(self) -> Layout | None:
        """The layout with as many modules unfolded as can be read; None if even the outermost are too many.

        It is computed once for all updates.
        """
        graph = self._graph
        if len(graph) > _MOST_DRAWN:
            return None
        placed = first_view(graph, *_ROOM, most_tried=_MOST_TRIED if len(graph) > _LARGE else MOST_TRIED)
        drawing = draw_layout(graph, placed)
        small = drawing.width * _LEAST_SCALE <= _INSIDE and drawing.height <= _MOST_HEIGHT
        return placed if small and sum(map(len, drawing.elements)) <= _MOST_BYTES else None

    def _graph_part(self, moment: Moment) -> tuple[Sequence[str], float]:
        """Return the elements of the graph and their height."""
        if self._placed is None:
            said = f"The graph of {len(self._graph):,} tasks is too large for a still picture; the live deck shows it."
            return [f'<text class="ts-second ts-larger" y="4">{said}</text>'], 8.0
        drawing = draw_layout(self._graph, self._placed, states=moment.states(self._graph))
        scale = min(1.0, _INSIDE / drawing.width)
        left = (_INSIDE - scale * drawing.width) / 2
        start = f'<g transform="translate({number(left)} 0) scale({scale:.4g})">'
        return [start, *drawing.elements, "</g>"], (drawing.height - 10) * scale  # the legend ends with 10 free pixels

    def _queue_part(self, moment: Moment) -> tuple[Sequence[str], float]:
        """Return the elements of the ready queue and the next task, and their height; empty unless under way."""
        ready = moment.ready(self._graph)
        if not ready or moment.current is None:
            return [], 0.0
        return queue_elements(self._graph, ready, moment.current, moment.policy, moment.stopped, _INSIDE)


def _memory_part(moment: Moment) -> tuple[Sequence[str], float]:
    """Return the elements of the memory chart and their height; empty if memory is unknown."""
    if not any(timeline.peak_bytes for timeline in moment.timelines.values()):
        return [], 0.0
    shown = next(iter(moment.timelines.values()))
    subtitle = f"{_basis(shown)} · the stack is {_name(moment.policy).upper()}"
    heading = (
        '<text y="6"><tspan class="ts-bold">Memory</tspan>'
        f'<tspan class="ts-soft" dx="8">{escaped(subtitle)}</tspan></text>'
    )
    chart = still_memory.memory_elements(moment.timelines, peak_words(shown), _INSIDE, moment.begins)
    return [heading, '<g transform="translate(0 22)">', *chart, "</g>"], still_memory.HEIGHT + 22


def _basis(timeline: Timeline) -> str:
    if timeline.basis == "measured":
        return "measured"
    if not timeline.estimates:
        return "predicted" if timeline.basis == "dry run" else "predicted from a measured run"
    return shorten(f"predicted, an estimate: {main_reason(timeline.estimates)}", _LONGEST_BASIS)


def _counted(moment: Moment) -> str:
    tasks = counted(moment.of, "task")
    policy = _name(moment.policy)
    if moment.ran == moment.of:
        return f"{tasks}, all have run under {policy}"
    ran = f"{moment.ran:,} of " if moment.ran else ""
    return f"{ran}{tasks} {'have run' if moment.ran else 'to run'} under {policy}"


def _peaks(timelines: Mapping[str, Timeline], room: float) -> str:
    """Return as many peaks as fit, at least the first; the chart names all."""
    peaks = [f"{_name(policy).upper()} {size_text(timeline.peak_bytes)}" for policy, timeline in timelines.items()]
    said = peaks[:4]
    while len(said) > 1 and text_width("  ·  ".join(said), 12) > room:
        said.pop()
    return "  ·  ".join(said)


def _name(policy: str) -> str:
    """Return a policy's name, cut off if a user's policy has a long one."""
    return shorten(policy, 100)
