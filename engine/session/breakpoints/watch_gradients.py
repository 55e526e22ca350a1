"""Evaluation of a session's watchpoints on each gradient, and the texts of their stops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from ....inspector.graph.graph import Graph, Task, unique_name
from ....inspector.graph.operations_and_calls import Operation
from ....inspector.text.sizes_and_counts import counted
from ....inspector.torch_private.nodes import leaf_of
from ....inspector.torch_private.tensors import version_of
from ....inspector.torch_private.thread_state import unobserved
from ...recording.task_records import Trace
from ...schedule.find_tasks import knows_forward
from .breakpoints import Stop, error_text
from .gradient_readings import FINITE, LateReadings, Need, Reading, read_now, why_unread
from .nan_origin import Earlier, Origin, about, origin_of, shown
from .nan_remedies import NanCause
from .watch_conditions import Condition, Output
from .watchpoints import Watchpoint, say, say_late, say_ratio, stop_at, unread_text


class BadGradients:
    """The NaN and infinite gradients that watchpoints, and the trace before them, have seen.

    Attributes:
        trace: returns the records so far; None if nothing is recorded.
        causes: by task, the cause of its infinite gradient, if the gradient is infinite first there and did not stop.
    """

    def __init__(self, trace: Callable[[], Trace] | None) -> None:
        self.trace = trace
        self._of_task: dict[int, bool] = {}  # whether a task returned a non-finite gradient
        self._outputs: set[tuple[int, int]] = set()  # non-finite outputs read before the next task
        self.causes: dict[int, NanCause] = {}

    def note(self, task_id: int, read: Reading, number: int | None = None) -> None:
        """Record a reading.

        Args:
            task_id: id of the task.
            read: the reading.
            number: the output's number, if it was read before the next task ran.
        """
        bad = read.nan or read.inf
        self._of_task[task_id] = self._of_task.get(task_id, False) or bad
        if bad and number is not None:
            self._outputs.add((task_id, number))

    def forget(self, task_id: int) -> None:
        """Forget a task that runs again or was undone."""
        self._of_task.pop(task_id, None)
        self.causes.pop(task_id, None)

    def earlier(self) -> Earlier:
        """Return the readings of watchpoints, and those of the trace for tasks that watchpoints have not read."""
        trace: list[Trace] = []  # created at most once, on demand, because it copies all records

        def is_bad(task_id: int) -> bool | None:
            if task_id in self._of_task or self.trace is None:
                return self._of_task.get(task_id)
            if not trace:
                trace.append(self.trace())
            record = trace[0].of(task_id)
            if record is None:
                return None
            found = [None if each is None else each.statistics for each in record.outputs]
            if any(each is not None and (each.nan_count or each.inf_count) for each in found):
                return True
            return False if any(each is not None and each.nan_count is not None for each in found) else None

        return Earlier(is_bad, self._of_task.keys(), self.causes)

    def reaches(self, graph: Graph, task_id: int) -> bool:
        """Return whether a task that feeds this one returned a non-finite gradient, as far as watchpoints saw it."""
        return any(self._of_task.get(edge.task) for edge in graph.in_edges[task_id])

    def reaching_leaves(self, graph: Graph, unread: Collection[int]) -> frozenset[int]:
        """Return ids of the tasks whose non-finite gradients eventually reach a leaf.

        Gradients of `unread` tasks may also be non-finite.
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
    """The result of the watchpoints at the last task, or at earlier tasks on accelerators since the last report.

    Args:
        hint: the hint of the first stop.

    Attributes:
        stop: the stop; None if nothing was found.
        ran: the number of tasks watched.
        reported: by task, the watchpoints and outputs that were reported.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self.stop: Stop | None = None
        self.ran = 0
        self.reported: dict[int, set[tuple[int, int]]] = {}

    def next_task(self, task_id: int) -> None:
        """Clear the result for the next task."""
        self.stop = None
        self.ran += 1
        self.reported.pop(task_id, None)

    def add(self, watchpoint: Watchpoint, stop: Stop) -> None:
        """Add a stop; if a task has several, the others are lines of the first."""
        if stop.task is not None:
            watchpoint.hit(stop.task)
        if self.stop is None:
            self.stop, self._hint = replace(stop, hint=self._hint), ""  # the hint appears once per session
        else:
            text = stop.clause if stop.number == self.stop.number and stop.clause else stop.text
            self.stop = replace(self.stop, lines=(*self.stop.lines, f"also {text}"))

    def add_late(self, watchpoint: Watchpoint, task_id: int, clause: str, known: Iterable[str], ran: int) -> None:
        """Add a stop for a gradient requested when `ran` tasks had been watched; one stop covers all requests up to
        now."""
        reported = self.stop is not None and self.stop.task == task_id
        if ran <= watchpoint.muted_until and not reported:
            watchpoint.hit(task_id)
            return
        watchpoint.muted_until = self.ran
        since = self.ran - ran
        lines = list(known)
        if since:
            lines.append(
                f"{since} task{'s have' if since > 1 else ' has'} run since, because the run did not wait for the "
                "accelerator, and the task's inputs are freed; watch(..., synchronize=True) stops in time and finds "
                "the origin"
            )
        self.add(watchpoint, stop_at(watchpoint, task_id, clause, lines=tuple(lines), since=since))

    def forget_undone(self, task_ids: Collection[int]) -> None:
        """Forget tasks that were undone."""
        self.stop = None
        for task_id in task_ids:
            self.reported.pop(task_id, None)


_NORM: frozenset[Need] = frozenset({"norm"})


class Watching:
    """The evaluation of the enabled watchpoints on each task's outputs. None of its methods raises, see `Stops`.

    Args:
        graph: the graph.
        trace: returns the records so far, which cover tasks that ran before the first watchpoint.

    Attributes:
        bad: the gradients known to be non-finite.
    """

    def __init__(self, graph: Graph, trace: Callable[[], Trace] | None) -> None:
        self.bad = BadGradients(trace)
        self._graph = graph
        self._order: Sequence[int] = ()
        self._watchpoints: tuple[Watchpoint, ...] = ()
        known = graph.is_tape or knows_forward(graph)
        hint = "" if known else "its module and line are unknown; run the forward under `with ts.capture():`"
        self._found = FoundStop(hint)
        self._late = LateReadings()
        self._judged: dict[int, _Judged] = {}  # by leaf: the gradient last read on its way there
        self._got: dict[int, bool] = {}  # by leaf: whether it received a gradient

    def enable(self, watchpoints: tuple[Watchpoint, ...]) -> None:
        """Set the enabled watchpoints, from any thread."""
        self._watchpoints = watchpoints
        if not watchpoints:
            self._found.stop = None  # without watchpoints `produced` is not called and would not clear it

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
        except Exception as error:  # an unusual tensor may raise anything, which must not end the backward
            where = self._graph_in_order(task_id).describe(task_id)
            text = f"the outputs of {where} cannot be read: {error_text(error)}"
            self._found.stop = Stop("watchpoint", None, task_id, text, clause=text)

    def found(self, wait: bool) -> Stop | None:
        """See `Stops.found`."""
        if self._late:
            self._late.look(wait)
        return self._found.stop

    def missing(self, order: Sequence[int]) -> Stop | None:
        """Return the stop for leaves without a gradient after the last task, if a watchpoint asks for them."""
        for each in self._watchpoints:
            if each.conditions.missing:
                missing = [task for task in order if each.watches(task) and self._got_nothing(task)]
                covers_graph = each.tasks is None and len(order) == len(self._graph.tasks)
                outside = self._outside() if covers_graph else []
                if missing or outside:
                    each.hit(*missing)
                    return self._say_missing(each, missing, outside)
        return None

    def _outside(self) -> list[str]:
        """Return the names of parameters of captured modules that require a gradient and are not in the graph."""
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
                clause = (
                    f"the gradients of {len(unread)} of {counted(watched, 'task')} cannot be read "
                    f"({unread_text(each.unread)})"
                )
                return stop_at(each, unread[0], clause, unread=tuple(unread))
        return None

    def forget_undone(self, task_ids: Collection[int]) -> None:
        """Forget tasks that were undone."""
        self._late.forget()
        self._found.forget_undone(task_ids)
        for task_id in task_ids:
            self._forget(task_id)
            self._got.pop(task_id, None)

    def _forget(self, task_id: int) -> None:
        self.bad.forget(task_id)
        for watchpoint in self._watchpoints:
            watchpoint.unread.pop(task_id, None)

    def use_order(self, order: Sequence[int]) -> None:
        """See `Stops.use_order`."""
        self._order = order

    def _graph_in_order(self, task_id: int) -> Graph:
        """Return the graph with the tasks' positions in the run; a task that is still running comes next."""
        return self._graph.in_order(self._order if task_id in self._order else [*self._order, task_id])

    def close(self) -> None:
        """Release the graph's nodes."""
        self._late.forget()
        self.bad.trace = None
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
            self.bad.note(task.id, FINITE)
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
        """Evaluate watchpoints on a gradient at once; return the reason why it cannot be read, or ""."""
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
        reported = False
        for watchpoint in watching:
            for condition in watchpoint.conditions.of_gradients:
                if unread and any(term.needs for term in condition):
                    continue
                if not all(term.holds is None or term.holds(read) for term in condition):
                    continue
                if self._looks(watchpoint, condition, output):
                    self._report(watchpoint, condition, output, inputs, read)
                    reported = True
                    break
        if (read.nan or read.inf) and not reported and not self.bad.reaches(self._graph, task_id):
            # A later stop may name this task as the origin, when its saved tensors are freed.
            cause = origin_of(self._graph, inputs, output, self.bad.earlier()).advice
            self.bad.causes.update({} if cause is None else {task_id: cause})
        return unread

    def _looks(self, watchpoint: Watchpoint, condition: Condition, output: Output) -> bool:
        """Return whether the terms about the gradient itself hold.

        If a predicate raises, add a stop that says so.
        """
        for term in condition:
            if term.looks is None:
                continue
            try:
                if not term.looks(output):
                    return False
            except Exception as error:
                text = f"the condition {term.text} of watchpoint {watchpoint.number} raised {error_text(error)}"
                after = self._graph_in_order(output.task.id).describe(output.task)
                self._found.add(
                    watchpoint, Stop("watchpoint", watchpoint.number, output.task.id, f"{text} after {after}")
                )
                return False
        return True

    def _report(
        self,
        watchpoint: Watchpoint,
        condition: Condition,
        output: Output,
        inputs: Sequence[Tensor | None],
        read: Reading,
    ) -> None:
        task = output.task
        if self._was_reported(watchpoint, condition, task, output.number):
            return
        graph = self._graph_in_order(task.id)
        clause = say(graph, condition, output, read)
        if self._found.stop is not None:
            self._found.add(watchpoint, stop_at(watchpoint, task.id, clause))
            return
        if _spreads(condition):
            origin = origin_of(graph, inputs, output, self.bad.earlier())
        else:
            tensors = {f"input {number}": each for number, each in enumerate(inputs) if each is not None}
            origin = Origin((*about(graph, task), *_norms_of(inputs, condition)), tensors)
        tensors = origin.tensors
        if not task.is_leaf:
            tensors = {f"output {output.number}": shown(output), **tensors}
        # without its graph, so that a stop does not keep the forward alive
        tensors = {name: each if each.grad_fn is None else each.detach() for name, each in tensors.items()}
        stop = stop_at(watchpoint, task.id, clause, origin.advice, lines=origin.lines, tensors=tensors)
        self._found.add(watchpoint, stop)

    def _judge_later(self, watching: list[Watchpoint], output: Output) -> str:
        """Evaluate watchpoints on a gradient when its reading has been copied; return as `_judge_now`."""
        open_conditions = []
        for watchpoint in watching:
            for condition in watchpoint.conditions.of_gradients:
                if self._looks(watchpoint, condition, output):
                    if all(term.holds is None for term in condition):
                        self._report(watchpoint, condition, output, (), FINITE)
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
        """Evaluate conditions on a reading copied from an accelerator; `ran` counts the tasks up to its own."""
        self.bad.note(task_id, read)
        task = self._graph.tasks[task_id]
        for watchpoint, condition in asked:
            holds = all(term.holds is None or term.holds(read) for term in condition)
            if holds and not self._was_reported(watchpoint, condition, task, number):
                graph = self._graph_in_order(task_id)
                clause = say_late(graph, condition, task_id, number, read)
                self._found.add_late(watchpoint, task_id, clause, about(graph, task), ran)

    def _was_reported(self, watchpoint: Watchpoint, condition: Condition, task: Task, number: int) -> bool:
        """Record this output as reported. Return whether a task that feeds this one was reported already.

        Only tasks that feed leaves count, and those with NaN or infinite gradients, which spread to all later tasks and
        are reported where they begin.
        """
        reported_by_givers = _spreads(condition) or task.is_leaf
        givers = self._graph.in_edges[task.id] if reported_by_givers else ()
        reported = self._found.reported
        was_reported = any((watchpoint.number, edge.output) in reported.get(edge.task, ()) for edge in givers)
        reported.setdefault(task.id, set()).add((watchpoint.number, number))
        return was_reported

    def _follow(self, watchpoint: Watchpoint, task: Task, gradients: Sequence[Tensor | None], entered: bool) -> None:
        """Track the norms of gradients that enter or leave module calls here."""
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
        for call, came, left in watchpoint.flow.record(port, read.norm, entered):
            ratio = left / came if came else float("inf") if left else float("nan")
            if any(bound.beyond(ratio) for bound in watchpoint.conditions.ratios):
                self._found.add_late(watchpoint, port[0], say_ratio(self._graph, call, came, left), (), ran)

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
            givers = " and ".join(unique_name(graph, edge.task) for edge in graph.in_edges[task_id])
            lines.append(f"{name}: {givers} returned no gradient")
        lines += [f"{name} is not in the graph; ts.find_unused(make_loss, model) says why" for name in outside]
        clause = f"{count} received no gradient: {', '.join([*names, *outside])}"
        return stop_at(watchpoint, missing[0] if missing else None, clause, lines=tuple(lines))


def _note_unread(watching: Iterable[Watchpoint], task_id: int, why: str) -> None:
    for each in watching:
        if each.needs or each.flow is not None:
            each.unread[task_id] = why


class _Judged:
    """A gradient that watchpoints have read on its way to a leaf, which usually receives it unchanged."""

    __slots__ = ("_by", "_gradient", "_version")

    def __init__(self, gradient: Tensor, watching: Iterable[Watchpoint]) -> None:
        self._gradient = TensorWeakRef(gradient)
        self._version = version_of(gradient)
        self._by = frozenset(each.number for each in watching)

    def by(self, watchpoint: Watchpoint, gradient: Tensor | None) -> bool:
        """Return whether this watchpoint has read this gradient, and it has not been modified since."""
        if gradient is None or self._gradient() is not gradient:
            return False
        return watchpoint.number in self._by and self._version == version_of(gradient) >= 0


def _at_once(watchpoint: Watchpoint, gradient: Tensor) -> bool:
    """Return whether the gradient is read before the next task runs."""
    if watchpoint.synchronize is None:
        return gradient.device.type == "cpu"
    return watchpoint.synchronize


def _spreads(condition: Condition) -> bool:
    """Return whether the condition also holds for nearly everything computed from the gradient."""
    return any(term.text in ("nan", "inf") for term in condition)


def _norms_of(inputs: Sequence[Tensor | None], condition: Condition) -> Iterator[str]:
    """Yield the norms of the inputs, if the condition is about a norm."""
    if any("norm" in term.needs for term in condition):
        for number, each in enumerate(inputs):
            read = None if each is None else read_now(each, _NORM)
            if read is not None:
                which = f" to input {number}" if len(inputs) > 1 else ""
                yield f"the incoming gradient{which} has norm {read.norm:.4g}"
