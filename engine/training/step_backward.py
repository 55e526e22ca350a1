"""A step's backward traced task by task, and the step's memory as a timeline of that backward."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.operations_and_calls import CallRecord, Operation
from ...inspector.torch_private.engine import is_redirected
from ...inspector.torch_private.thread_state import unobserved
from ..execution.backward_arguments import BackwardCall
from ..memory.allocator_events import AllocatorRecording, Instant
from ..memory.build_timeline import Kinds, Measured, lives_of, maker_of, timeline_of, variables_of
from ..memory.categories import BUFFERS, GRADIENTS, PARAMETERS, STATE, TEMPORARIES, Category
from ..memory.task_boundaries import MemoryWatch, SavedBlocks, TaskMoment, Visit, kept_by, look
from ..memory.timeline import Maker, Timeline
from ..planning.policies import POLICIES
from ..recording.run import Run
from ..session.native_engine import Plan, Watch
from .follow_loop import BackwardGiven, RunBackward
from .step_memory import StepTimeline
from .step_phases import Window

_STANDING = {PARAMETERS: Category.PARAMETER, BUFFERS: Category.PARAMETER, STATE: Category.STATE}
"""Maps categories of a step to those of a backward's timeline. The others are taken from the backward."""


@dataclass(frozen=True, slots=True)
class Made:
    """An operation or module call of the forward: the mark at its end, and the addresses of the tensors it returned."""

    mark: int
    made: Operation | CallRecord
    returned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FollowedBackward:
    """The recording of one backward.

    Attributes:
        graph: the graph, without its nodes.
        forward_end, begin, end: the recording's marks at the end of the forward, before the first task, and when
            backward() returned.
        marks: the recording's marks of `moments`.
        made: the operations and module calls of the loop; the first `count` of them ran before this backward.
    """

    graph: Graph
    kept: SavedBlocks
    moments: Sequence[tuple[int, TaskMoment]]
    visits: Sequence[Visit]
    marks: Sequence[int]
    made: Sequence[Made]
    count: int
    forward_end: int
    begin: int
    end: int
    keep_graph: bool
    create_graph: bool


class _Marks:
    """Marks a recording that is shared by several watches."""

    def __init__(self, mark: Callable[[], int]) -> None:
        self._mark = mark
        self.numbers: list[int] = []

    def start(self) -> None: ...

    def mark(self) -> None:
        self.numbers.append(self._mark())

    def stop(self) -> AllocatorRecording:
        raise NotImplementedError


class BackwardFollower:
    """Follows the backwards of a loop in one recording.

    Args:
        mark: marks the recording and returns the mark's number.

    Attributes:
        followed: the backwards in order; None for one that could not be followed, for the reason in `why`.
        apart: pairs of marks around allocations that are not the loop's.
    """

    def __init__(self, mark: Callable[[], int]) -> None:
        self._mark = mark
        self._made: list[Made] = []
        self._written: dict[Operation, set[int]] = {}
        self.followed: list[FollowedBackward | None] = []
        self.apart: list[tuple[int, int]] = []
        self.why = ""

    def observe(self, made: Operation | CallRecord, result: object, arguments: Sequence[object]) -> None:
        """Record an operation or module call of the forward that has just returned this result."""
        with unobserved():
            found = tuple(seen.address for each in tensors_of(result) if (seen := look(each)) is not None)
            if isinstance(made, Operation) and made.writes_in_place:
                self._written[made] = {seen.address for each in tensors_of(arguments) if (seen := look(each))}
        self._made.append(Made(self._mark(), made, found))

    def backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        """Run the backward, and follow it if possible."""
        forward_end = self._mark()
        watch = self._watch(given)
        begin = self._mark()
        self.apart.append((forward_end, begin))
        if watch is None:
            self.followed.append(None)
            return run()
        followed, memory, marks, kept, call = watch
        with followed:
            result = run()
        memory.over()
        self.followed.append(
            FollowedBackward(
                graph=replace(followed.graph, nodes=()),
                kept=kept,
                moments=memory.marks,
                visits=memory.visits,
                marks=marks.numbers,
                made=self._made,
                count=len(self._made),
                forward_end=forward_end,
                begin=begin,
                end=marks.numbers[-1],
                keep_graph=call.keep_graph,
                create_graph=call.create_graph,
            )
        )
        return result

    def _watch(self, given: BackwardGiven) -> tuple[Watch, MemoryWatch, _Marks, SavedBlocks, BackwardCall] | None:
        if is_redirected():
            self.why = "a policy was in force, so its tasks were not traced; record it outside ts.policy"
            return None
        tensors, gradients, keep_graph, create_graph, inputs = given
        try:
            call = BackwardCall(tuple(tensors), tuple(gradients), keep_graph, create_graph, tuple(inputs) or None)
            watch = Watch(Plan.of(call, POLICIES["heap"]), None)
            kept = kept_by(watch.graph, self._written)
        except (NotImplementedError, ValueError, RuntimeError) as error:  # PyTorch judges the call itself
            self.why = str(error)
            return None
        marks = _Marks(self._mark)
        watch.memory = MemoryWatch(watch.graph, marks)
        return watch, watch.memory, marks, kept, call


def timeline_in_step(followed: FollowedBackward, window: Window, step: StepTimeline, start: int, end: int) -> Timeline:
    """Return the backward's timeline on one device, extended by the step's memory before its forward and after its end.

    Args:
        followed: the backward.
        window: the recording of the steps on this device.
        step: the step's memory.
        start, end: the first and the last moment of the step.
    """
    recording = window.recording
    events, whole, first = window.events(start, end), window.rows(start, end), window.moments[start].mark

    def place(mark: int) -> int:
        """Return the number of rows before a mark."""
        return step.before + window.events_before(events, mark)

    begin = place(followed.begin)
    made = [each for each in followed.made[: followed.count] if first <= each.mark < followed.forward_end]
    marks = [each.mark for each in made] + [followed.forward_end]
    returned: dict[int, list[int]] = {}
    for number, each in enumerate(made):
        for address in each.returned:
            returned.setdefault(address, []).append(number)
    forward = AllocatorRecording(whole[:begin], [Instant(place(mark), recording.marks[mark].ns) for mark in marks], [])
    backward = AllocatorRecording(
        whole[begin:], [Instant(place(mark) - begin, recording.marks[mark].ns) for mark in followed.marks], []
    )
    measured = Measured(
        followed.graph,
        step.device,
        forward,
        True,
        [*(maker_of(each.made) for each in made), Maker(None, None, None)],
        returned,
        followed.kept,
        backward,
        followed.moments,
        followed.visits,
        followed.keep_graph,
        followed.create_graph,
        variables=variables_of([each.made for each in made]),
    )
    lives = lives_of(measured)
    kinds = Kinds(measured, lives)
    return replace(_standing(timeline_of(measured, lives, kinds), step), grads=kinds.taken)


def _standing(timeline: Timeline, step: StepTimeline) -> Timeline:
    """Set the categories that only the step knows: parameters, optimizer state, and the optimizer's allocations."""
    if len(timeline) != len(step):
        raise AssertionError(f"{len(timeline)} blocks of the backward are {len(step)} of the step")
    births = timeline.births
    first, last = timeline.starts[0], timeline.starts[-1]
    makers = [Maker(None, None, None)] * step.before + list(timeline.makers[step.before :])
    born_as = array("b", timeline.born_as)
    fixed = set()
    for number, kind in enumerate(step.kinds):
        if kind in _STANDING:
            born_as[number] = _STANDING[kind]
            fixed.add(number)
        elif kind == GRADIENTS and births[number] < first:
            born_as[number] = Category.GRADIENT
            fixed.add(number)
        elif births[number] >= last:
            born_as[number] = Category.WORKSPACE if kind == TEMPORARIES else Category.FORWARD
        elif births[number] < step.before:
            born_as[number] = Category.FORWARD
    changes = [each for each in timeline.changes if each[1] not in fixed]
    return replace(timeline, born_as=born_as, changes=changes, makers=makers, is_of_step=True)


@dataclass(frozen=True, slots=True)
class StepBackwards:
    """The backwards of a step. Any of them can be returned as a run.

    Attributes:
        windows: the recording of the steps by device, the default device first.
        timelines: the step's memory by device.
        start, end: the first and the last moment of the step.
        follower: the follower that recorded the backwards.
        why_not: the reason why they were not followed; "" if they were to be followed.
    """

    windows: Mapping[str, Window]
    timelines: Mapping[str, StepTimeline]
    start: int
    end: int
    follower: BackwardFollower
    why_not: str = ""

    @property
    def _window(self) -> Window:
        return next(iter(self.windows.values()))

    @property
    def followed(self) -> list[FollowedBackward]:
        """The followed backwards of this step."""
        first, last = (self._window.moments[moment].mark for moment in (self.start, self.end))
        return [each for each in self.follower.followed if each is not None and first <= each.begin < last]

    @property
    def why_none(self) -> str:
        """Return why no backward of the wanted step could be followed; "" if one was, or another step was wanted."""
        if self.why_not or self.followed:
            return ""
        return self.follower.why or "no backward in it ended without an error"

    def at_peak(self) -> Run:
        """Return the backward that contains the step's peak, else the last one before it, else the first one after it.

        Raises:
            ValueError: no backward was followed.
        """
        found = [] if self.why_not else self.followed
        if not found:
            raise ValueError(f"this step has no graph: {self.why_not or self.why_none}")
        window = self._window
        events = window.events(self.start, self.end)
        peak = self.timelines[str(window.device)].peak_event
        before = [each for each in found if window.events_before(events, each.forward_end) <= peak]
        chosen = (before or found[:1])[-1]
        timeline, *others = (
            timeline_in_step(chosen, self.windows[device], step, self.start, self.end)
            for device, step in self.timelines.items()
        )
        marks, order = window.recording.marks, timeline.order
        elapsed = marks[chosen.end][1] - marks[chosen.begin][1]
        elsewhere = tuple((each, None) for each in others)
        return Run(chosen.graph, "heap", "native", order, order, elapsed, timeline=timeline, elsewhere=elsewhere)
