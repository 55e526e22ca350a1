"""Evaluates the watchpoints of a session on each gradient, and words the stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from ....inspector.graph.capture_records import Operation
from ....inspector.graph.graph import Edge, Graph, Task, told_apart
from ....inspector.text.sizes_and_counts import counted
from ....inspector.torch_private.nodes import leaf_of
from ....inspector.torch_private.tensors import version_of
from ....inspector.torch_private.thread_state import unobserved
from ...recording.task_records import Trace
from ...schedule.find_tasks import knows_forward
from .breakpoints import Stop, said
from .gradient_readings import FINITE, LateReadings, Need, Reading, read_now, why_unread
from .nan_origin import Known, Origin, about, origin_of, shown
from .watch_conditions import Condition, Output
from .watchpoints import Watchpoint, head, say, say_late, say_ratio, unread_text


class BadGradients:
    """What watchpoints, and the trace before them, have seen of NaN and infinite gradients.

    Args:
        trace: gives what has been recorded so far; None: nothing is.
    """

    def __init__(self, trace: Callable[[], Trace] | None) -> None:
        self._trace = trace
        self._of_task: dict[int, bool] = {}  # whether it gave a gradient that is not finite
        self._outputs: set[tuple[int, int]] = set()  # of those that were looked at in time

    @property
    def as_received(self) -> Collection[int]:
        """The tasks whose gradients watchpoints have looked at, as the next tasks get them."""
        return self._of_task.keys()

    def note(self, task_id: int, read: Reading, number: int | None = None) -> None:
        """A gradient was read.

        Args:
            number: which output of its task it is, where it was looked at before the next task ran.
        """
        bad = read.nan or read.inf
        self._of_task[task_id] = self._of_task.get(task_id, False) or bad
        if bad and number is not None:
            self._outputs.add((task_id, number))

    def gave_none(self, task_id: int) -> None:
        self._of_task[task_id] = False

    def forget(self, task_id: int) -> None:
        """The task runs anew, or has not run after all."""
        self._of_task.pop(task_id, None)

    def let_go(self) -> None:
        self._trace = None

    def known(self) -> Known:
        """What tells whether a task that has run gave a gradient that is not finite; None: nobody looked."""
        trace: list[Trace] = []  # made when it is asked for, and once: it copies all that was recorded

        def known(task_id: int) -> bool | None:
            if task_id in self._of_task or self._trace is None:
                return self._of_task.get(task_id)
            if not trace:
                trace.append(self._trace())
            record = trace[0].of(task_id)
            if record is None:
                return None
            found = [None if each is None else each.statistics for each in record.outputs]
            if any(each is not None and (each.nan_count or each.inf_count) for each in found):
                return True
            return False if any(each is not None and each.nan_count is not None for each in found) else None

        return known

    def reaching_leaves(self, graph: Graph, unread: Collection[int]) -> frozenset[int]:
        """Return the ids of tasks whose non-finite gradients reach a leaf in the end.

        Gradients of `unread` tasks may not be finite either.
        """
        stack = [task.id for task in graph.tasks if task.is_leaf]
        found: set[int] = set()
        while stack:
            for edge in graph.in_edges[stack.pop()]:
                may_be_bad = (edge.task, edge.output) in self._outputs or edge.task in unread
                if may_be_bad and edge.task not in found:
                    found.add(edge.task)
                    stack.append(edge.task)
        return frozenset(found)


class FoundStop:
    """What the watchpoints have found at the last task, or of earlier ones on accelerators since they last said so.

    Args:
        hint: what the first stop says at its end.

    Attributes:
        stop: what there is to say; None: nothing.
        ran: how many tasks were watched.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self.stop: Stop | None = None
        self.ran = 0
        self._told: dict[int, set[tuple[int, int]]] = {}  # by task: watchpoints that held of one of its outputs

    def next_task(self, task_id: int) -> None:
        """What the task before brought has been read."""
        self.stop = None
        self.ran += 1
        self._told.pop(task_id, None)

    def add(self, watchpoint: Watchpoint, stop: Stop) -> None:
        """Of several that one task brings the first is the stop; the others are mentioned."""
        if stop.task is not None:
            watchpoint.hit(stop.task)
        if self.stop is None:
            self.stop, self._hint = replace(stop, hint=self._hint), ""  # said once
        else:
            self.stop = replace(self.stop, lines=(*self.stop.lines, f"also {stop.text}"))

    def add_late(self, watchpoint: Watchpoint, task_id: int, text: str, known: Iterable[str], ran: int) -> None:
        """What was asked for when `ran` tasks had been watched is found now: once for all that was asked by then."""
        told = self.stop is not None and self.stop.task == task_id
        if ran <= watchpoint.muted_until and not told:
            watchpoint.hit(task_id)
            return
        watchpoint.muted_until = self.ran
        since = self.ran - ran
        lines = list(known)
        if since:
            lines.append(
                f"{since} task{'s have' if since > 1 else ' has'} run since: the accelerator was not waited for, and "
                "what the task saw is gone; watch(..., synchronize=True) stops in time and looks for the origin"
            )
        stop = Stop("watchpoint", watchpoint.number, task_id, text, tuple(lines), since=since)
        self.add(watchpoint, stop)

    def is_told(self, watchpoint: Watchpoint, task_id: int, number: int, givers: Iterable[Edge]) -> bool:
        """Whether the same has been told of one of these givers. Takes down that it holds of this output, too."""
        told = any((watchpoint.number, edge.output) in self._told.get(edge.task, ()) for edge in givers)
        self._told.setdefault(task_id, set()).add((watchpoint.number, number))
        return told

    def taken_back(self, task_ids: Collection[int]) -> None:
        """These tasks have not run after all."""
        self.stop = None
        for task_id in task_ids:
            self._told.pop(task_id, None)


_NORM: frozenset[Need] = frozenset({"norm"})


class Watching:
    """Looks at what each task gave, for the watchpoints that are enabled. None of it raises, see `Stops`.

    Args:
        trace: gives what has been recorded so far, which knows of tasks that ran before anything was watched.

    Attributes:
        bad: which gradients are known not to be finite.
    """

    def __init__(self, graph: Graph, trace: Callable[[], Trace] | None) -> None:
        self.bad = BadGradients(trace)
        self._graph = graph
        self._order: Sequence[int] = ()
        self._watchpoints: tuple[Watchpoint, ...] = ()
        self._found = FoundStop(_hint(graph))
        self._late = LateReadings()
        self._judged: dict[int, _Judged] = {}  # by leaf: what was last looked at on its way there
        self._got: dict[int, bool] = {}  # by leaf: whether a gradient came

    @property
    def watchpoints(self) -> tuple[Watchpoint, ...]:
        """Those that are enabled. The engine may look at them at any time."""
        return self._watchpoints

    @watchpoints.setter
    def watchpoints(self, enabled: tuple[Watchpoint, ...]) -> None:
        self._watchpoints = enabled
        if not enabled:
            self._found.stop = None  # the next task would not make it forgotten: nobody looks at that

    def produced(
        self,
        task_id: int,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        raw: Sequence[Tensor | None] | None,
    ) -> None:
        """See `Stops.produced`."""
        self._found.next_task(task_id)
        self._forget(task_id)
        try:
            with unobserved():
                self._look(self._graph.tasks[task_id], inputs, outputs, raw or outputs)
        except Exception as error:  # a strange tensor may raise anything; the backward must not end
            where = self._told(task_id).describe(task_id)
            self._found.stop = Stop("watchpoint", None, task_id, f"what {where} gave can't be looked at: {said(error)}")

    def found(self, wait: bool) -> Stop | None:
        """See `Stops.found`."""
        if self._late:
            self._late.look(wait)
        return self._found.stop

    def missing(self, order: Sequence[int]) -> Stop | None:
        """Once all tasks have run: which leaves got nothing, where a watchpoint asks for that."""
        for each in self._watchpoints:
            if each.conditions.missing:
                missing = [task for task in order if each.watches(task) and self._got_nothing(task)]
                is_whole = each.tasks is None and len(order) == len(self._graph.tasks)
                outside = self._outside() if is_whole else []
                if missing or outside:
                    each.hit(*missing)
                    return self._say_missing(each, missing, outside)
        return None

    def _outside(self) -> list[str]:
        """The parameters of modules that captures saw which require a gradient and are not in the graph."""
        operations = (task.operation for task in self._graph.tasks)
        facts = dict.fromkeys(each.facts for each in operations if isinstance(each, Operation))
        inside = set(map(id, self._graph.leaves.values()))
        wanted = (
            (each, tensor) for each in facts for tensor in each.model_tensors() if isinstance(tensor, nn.Parameter)
        )
        names = (each.leaf_name(tensor) for each, tensor in wanted if tensor.requires_grad and id(tensor) not in inside)
        return list(dict.fromkeys(name for name in names if name is not None))

    def unread(self, order: Sequence[int]) -> Stop | None:
        """Return the stop after the last task for gradients that a watchpoint could not read."""
        for each in self._watchpoints:
            if unread := [task for task in order if task in each.unread]:
                watched = sum(map(each.watches, order))
                text = (
                    f"{head(each)}: the gradients of {len(unread)} of {counted(watched, 'task')} cannot be read "
                    f"({unread_text(each.unread)})"
                )
                return Stop("watchpoint", each.number, unread[0], text, unread=tuple(unread))
        return None

    def taken_back(self, task_ids: Collection[int]) -> None:
        """These tasks have not run after all."""
        self._late.forget()
        self._found.taken_back(task_ids)
        for task_id in task_ids:
            self._forget(task_id)
            self._got.pop(task_id, None)

    def _forget(self, task_id: int) -> None:
        self.bad.forget(task_id)
        for watchpoint in self._watchpoints:
            watchpoint.unread.pop(task_id, None)

    def speak_of(self, order: Sequence[int]) -> None:
        """See `Stops.speak_of`."""
        self._order = order

    def _told(self, task_id: int) -> Graph:
        """The graph that says where tasks stand in the run; this one may be under way, and comes next then."""
        return self._graph.in_order(self._order if task_id in self._order else [*self._order, task_id])

    def let_go(self) -> None:
        """Holds nothing of the graph's nodes any more."""
        self._late.forget()
        self.bad.let_go()
        self._graph = replace(self._graph, nodes=())

    def _look(
        self,
        task: Task,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        raw: Sequence[Tensor | None],
    ) -> None:
        flows = [each for each in self._watchpoints if each.flow is not None]
        for watchpoint in flows:
            self._follow(watchpoint, task, inputs, entered=True)
            self._follow(watchpoint, task, outputs, entered=False)
        watching = [each for each in self._watchpoints if each.conditions.of_gradients and each.watches(task.id)]
        if task.is_leaf:
            self._got[task.id] = inputs[0] is not None
            outputs = raw = inputs
            if (judged := self._judged.pop(task.id, None)) is not None:
                watching = [each for each in watching if not judged.by(each, inputs[0])]
        elif all(each is None for each in outputs):
            self.bad.gave_none(task.id)
        if not watching:
            return
        for number, (gradient, before) in enumerate(zip(outputs, raw, strict=True)):
            if gradient is None or before is None:
                continue
            output = Output.of(self._graph, task, number, gradient, before)
            now = [each for each in watching if _at_once(each, gradient)]
            unread = ""
            if now:
                unread = self._judge_now(now, inputs, output)
            if len(now) < len(watching):
                unread = self._judge_later([each for each in watching if each not in now], output) or unread
            if unread:
                _note_unread(watching, task.id, unread)
            elif output.receiver is not None and output.receiver.is_leaf:
                self._judged[output.receiver.id] = _Judged(gradient, watching)

    def _judge_now(self, watching: list[Watchpoint], inputs: Sequence[Tensor | None], output: Output) -> str:
        """Returns why the gradient can't be read; "" where it is, or nothing has to be read of it."""
        task_id = output.task.id
        needs = watching[0].needs.union(*(each.needs for each in watching))
        read, unread = FINITE, ""
        if needs:
            elements = read_now(output.gradient, needs)
            if elements is None:
                unread = why_unread(output.gradient)
            else:
                read = elements
                if needs != _NORM:
                    self.bad.note(task_id, read, output.number)
        for watchpoint in watching:
            for condition in watchpoint.conditions.of_gradients:
                if unread and any(term.needs for term in condition):
                    continue
                if not all(term.holds is None or term.holds(read) for term in condition):
                    continue
                if self._looks(watchpoint, condition, output):
                    self._tell(watchpoint, condition, output, inputs, read)
                    break
        return unread

    def _looks(self, watchpoint: Watchpoint, condition: Condition, output: Output) -> bool:
        """Whether what is asked of the gradient itself is so. A predicate that raises stops the run and says so."""
        for term in condition:
            if term.looks is None:
                continue
            try:
                if not term.looks(output):
                    return False
            except Exception as error:
                text = f"the condition {term.text} of watchpoint {watchpoint.number} raised {said(error)}"
                after = self._told(output.task.id).describe(output.task)
                self._found.add(
                    watchpoint, Stop("watchpoint", watchpoint.number, output.task.id, f"{text} after {after}")
                )
                return False
        return True

    def _tell(
        self,
        watchpoint: Watchpoint,
        condition: Condition,
        output: Output,
        inputs: Sequence[Tensor | None],
        read: Reading,
    ) -> None:
        task = output.task
        if self._is_told(watchpoint, condition, task, output.number):
            return
        graph = self._told(task.id)
        text = say(graph, watchpoint, condition, output, read)
        if self._found.stop is not None:
            self._found.add(watchpoint, Stop("watchpoint", watchpoint.number, task.id, text))
            return
        if _spreads(condition):
            origin = origin_of(graph, inputs, output, self.bad.known(), self.bad.as_received)
        else:
            tensors = {f"input {number}": each for number, each in enumerate(inputs) if each is not None}
            origin = Origin((*about(graph, task), *_what_came(inputs, condition)), tensors)
        tensors = origin.tensors
        if not task.is_leaf:
            tensors = {f"output {output.number}": shown(output), **tensors}
        tensors = {name: _without_graph(each) for name, each in tensors.items()}
        self._found.add(watchpoint, Stop("watchpoint", watchpoint.number, task.id, text, origin.lines, tensors))

    def _judge_later(self, watching: list[Watchpoint], output: Output) -> str:
        """Returns what `_judge_now` does."""
        open_conditions = []
        for watchpoint in watching:
            for condition in watchpoint.conditions.of_gradients:
                if self._looks(watchpoint, condition, output):
                    if all(term.holds is None for term in condition):
                        self._tell(watchpoint, condition, output, (), FINITE)
                        break
                    open_conditions.append((watchpoint, condition))
        if not open_conditions:
            return ""
        needs = frozenset[Need]().union(*(term.needs for _, condition in open_conditions for term in condition))
        judge = partial(self._judge, open_conditions, output.task.id, output.number, self._found.ran)
        return self._late.ask(output.gradient, needs, judge)

    def _judge(
        self, asked: list[tuple[Watchpoint, Condition]], task_id: int, number: int, ran: int, read: Reading
    ) -> None:
        """What was asked of a gradient on an accelerator has come; `ran` counts the tasks up to its own."""
        self.bad.note(task_id, read)
        task = self._graph.tasks[task_id]
        for watchpoint, condition in asked:
            holds = all(term.holds is None or term.holds(read) for term in condition)
            if holds and not self._is_told(watchpoint, condition, task, number):
                graph = self._told(task_id)
                text = say_late(graph, watchpoint, condition, task_id, number, read)
                self._found.add_late(watchpoint, task_id, text, about(graph, task), ran)

    def _is_told(self, watchpoint: Watchpoint, condition: Condition, task: Task, number: int) -> bool:
        """Whether this has been told of one of its givers: of a leaf's, or of a NaN, which goes through all that
        follows and is told where it begins."""
        tells_of_givers = _spreads(condition) or task.is_leaf
        givers = self._graph.in_edges[task.id] if tells_of_givers else ()
        return self._found.is_told(watchpoint, task.id, number, givers)

    def _follow(self, watchpoint: Watchpoint, task: Task, gradients: Sequence[Tensor | None], entered: bool) -> None:
        """Takes down the norms of what comes into module calls here, or leaves them."""
        flow = watchpoint.flow
        assert flow is not None, "it watches a ratio"
        for number, gradient in enumerate(gradients):
            port = task.id, number
            if not flow.asks(port, entered):
                continue
            arrived = partial(self._compare, watchpoint, port, entered, self._found.ran)
            if gradient is None:
                arrived(Reading(norm=0.0))
                continue
            if _at_once(watchpoint, gradient):
                read = read_now(gradient, _NORM)
                unread = why_unread(gradient) if read is None else ""
                arrived(read or FINITE)
            else:
                unread = self._late.ask(gradient, _NORM, arrived)
            if unread:
                _note_unread([watchpoint], task.id, unread)

    def _compare(self, watchpoint: Watchpoint, port: tuple[int, int], entered: bool, ran: int, read: Reading) -> None:
        assert watchpoint.flow is not None, "it watches a ratio"
        for call, came, left in (watchpoint.flow.came if entered else watchpoint.flow.left)(port, read.norm):
            ratio = left / came if came else float("inf") if left else float("nan")
            if any(bound.beyond(ratio) for bound in watchpoint.conditions.ratios):
                self._found.add_late(watchpoint, port[0], say_ratio(self._graph, watchpoint, call, came, left), (), ran)

    def _got_nothing(self, task_id: int) -> bool:
        task, graph = self._graph.tasks[task_id], self._graph
        if not task.is_leaf:
            return False
        if task_id in self._got:
            return not self._got[task_id]
        return bool(graph.nodes) and leaf_of(graph.nodes[task_id]).grad is None

    def _say_missing(self, watchpoint: Watchpoint, missing: Sequence[int], outside: Sequence[str]) -> Stop:
        graph = self._graph.in_order(self._order)
        names = [graph.tasks[task_id].parameter or graph.describe(task_id) for task_id in missing]
        leaves = len(missing) + len(outside)
        count = f"{leaves} leaf" if leaves == 1 else f"{leaves} leaves"
        lines = []
        for task_id, name in zip(missing, names, strict=True):
            givers = " and ".join(told_apart(graph, edge.task) for edge in graph.in_edges[task_id])
            lines.append(f"{name}: {givers} gave no gradient")
        lines += [f"{name} is not in the graph: ts.find_unused(make_loss, model) says why" for name in outside]
        text = f"{head(watchpoint)}: no gradient came to {count}: {', '.join([*names, *outside])}"
        return Stop("watchpoint", watchpoint.number, missing[0] if missing else None, text, tuple(lines))


def _note_unread(watching: Iterable[Watchpoint], task_id: int, why: str) -> None:
    for each in watching:
        if each.needs or each.flow is not None:
            each.unread[task_id] = why


def _hint(graph: Graph) -> str:
    if graph.is_tape or knows_forward(graph):
        return ""
    return "its module and line are not known: run the forward under `with ts.capture():`"


class _Judged:
    """What watchpoints have looked at when a leaf's giver gave it: the leaf mostly gets just that."""

    __slots__ = ("_by", "_gradient", "_version")

    def __init__(self, gradient: Tensor, watching: Iterable[Watchpoint]) -> None:
        self._gradient = TensorWeakRef(gradient)
        self._version = version_of(gradient)
        self._by = frozenset(each.number for each in watching)

    def by(self, watchpoint: Watchpoint, gradient: Tensor | None) -> bool:
        """Whether this watchpoint has looked at this gradient, which nobody has changed since."""
        if gradient is None or self._gradient() is not gradient:
            return False
        return watchpoint.number in self._by and self._version == version_of(gradient) >= 0


def _without_graph(tensor: Tensor) -> Tensor:
    """The same values: what a person holds must not hold the forward."""
    return tensor if tensor.grad_fn is None else tensor.detach()


def _at_once(watchpoint: Watchpoint, gradient: Tensor) -> bool:
    """Whether the gradient is looked at before the next task runs."""
    if watchpoint.synchronize is None:
        return gradient.device.type == "cpu"
    return watchpoint.synchronize


def _spreads(condition: Condition) -> bool:
    """Whether it holds of nearly all that is computed from what it holds of."""
    return any(term.text in ("nan", "inf") for term in condition)


def _what_came(inputs: Sequence[Tensor | None], condition: Condition) -> Iterator[str]:
    """Of a gradient whose size is watched, the sizes of what came in."""
    if any("norm" in term.needs for term in condition):
        for number, each in enumerate(inputs):
            read = None if each is None else read_now(each, _NORM)
            if read is not None:
                which = f" to input {number}" if len(inputs) > 1 else ""
                yield f"the gradient that came in{which} has norm {read.norm:.4g}"
