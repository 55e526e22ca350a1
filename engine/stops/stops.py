"""The breakpoints and watchpoints of one session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.weak import TensorWeakRef

from ...inspector.graph.graph import Graph, Task
from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.nodes import leaf_of
from ...inspector.torch_internals.tensors import version_of
from ..trace.trace import Trace
from .breakpoints import Breakpoint, Gradients, Predicate, Where, make_breakpoint, said
from .conditions import Condition, GradientPredicate, Output
from .origin import Known, Origin, about, origin_of, shown
from .readings import FINITE, LateReadings, Need, Reading, read_now
from .stopped import Stop
from .watchpoints import Watchpoint, head, make_watchpoint, say, say_late, say_ratio

Entry: TypeAlias = Breakpoint | Watchpoint

_NORM: frozenset[Need] = frozenset({"norm"})


class Stops:
    """The breakpoints and watchpoints of one session, numbered together from 1 in the order in which they were made.

    Iterating gives them all, `stops[number]` one. What changes them may be called from any thread.

    An engine calls `before` before each task while `asks`, `produced` after each while `watches`, `found` after that,
    and at last `at_end`. None of them raises, whatever a user's predicate does.

    Args:
        needed: the ids of the tasks that run at all; None: all.
        trace: gives what has been recorded so far, which knows of tasks that ran before anything was watched.
    """

    def __init__(
        self, graph: Graph, needed: Collection[int] | None = None, trace: Callable[[], Trace] | None = None
    ) -> None:
        self._graph = graph
        self._needed = needed
        self._trace = trace
        self._entries: dict[int, Entry] = {}
        self._made = 0
        self._ran = 0  # tasks that were watched
        self._found: Stop | None = None
        self._late = LateReadings()
        self._bad: dict[int, bool] = {}  # by task: whether it gave a gradient that is not finite
        self._bad_outputs: set[tuple[int, int]] = set()  # of those that were looked at in time
        self._told: dict[int, set[tuple[int, int]]] = {}  # by task: watchpoints that held of one of its outputs
        self._judged: dict[int, _Judged] = {}  # by leaf: what was last looked at on its way there
        self._got: dict[int, bool] = {}  # by leaf: whether a gradient came
        self._arrange()

    def __repr__(self) -> str:
        return f"<Stops: {', '.join(f'{each.number} {each.kind} {each.text}' for each in self) or 'none'}>"

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, number: int) -> Entry:
        found = self._entries.get(number)
        if found is None:
            known = ", ".join(map(str, self._entries)) or "none"
            raise ValueError(f"there is no breakpoint or watchpoint {number!r}; there is {known}")
        return found

    @property
    def asks(self) -> bool:
        """Whether a breakpoint is enabled: `before` has to be called."""
        return bool(self._breakpoints)

    @property
    def first_watch(self) -> Watchpoint | None:
        """The watchpoint that is enabled, the first of them."""
        return next(iter(self._watchpoints), None)

    @property
    def watches(self) -> bool:
        """Whether a watchpoint is enabled: `produced` has to be called."""
        return bool(self._watchpoints)

    def break_at(self, where: Where, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Makes a breakpoint; see `Verbs.break_at`."""
        made = make_breakpoint(self._graph, self._made + 1, where, hit, when)
        self._add(made)
        return made

    def watch(
        self, *conditions: str | GradientPredicate, at: str | int | None = None, synchronize: bool | None = None
    ) -> Watchpoint:
        """Makes a watchpoint; see `Verbs.watch`."""
        made = make_watchpoint(self._graph, self._needed, self._made + 1, conditions, at, synchronize)
        self._add(made)
        return made

    def number_from(self, number: int) -> None:
        """The next one made gets this number, if none has had it: the numbers go on from an earlier session's."""
        self._made = max(self._made, number - 1)

    def enable(self, number: int) -> None:
        self[number].enabled = True
        self._arrange()

    def disable(self, number: int) -> None:
        """It stays, and stops nothing."""
        self[number].enabled = False
        self._arrange()

    def delete(self, number: int) -> None:
        """Takes it away; its number is not given again."""
        self[number]
        entries = dict(self._entries)
        del entries[number]
        self._entries = entries
        self._arrange()

    def before(self, task_id: int, order: Sequence[int], gradients: Callable[[], Gradients]) -> Stop | None:
        """The breakpoint before this task, if there is one. Changes nothing, but calls the user's predicates.

        Args:
            order: the ids of the tasks that have run.
            gradients: what the task is about to get; only asked for where a predicate wants it.
        """
        first = None
        for each in self._breakpoints:  # all of them: each counts its hits
            found = each.stops(self._graph, task_id, order, gradients)
            first = first or found
        return first

    def breakpoint_at(self, task_id: int) -> Breakpoint | None:
        """The breakpoint that may stop before this task, if there is one: others would have to be asked then."""
        return next((each for each in self._breakpoints if each.tasks is None or task_id in each.tasks), None)

    def produced(
        self,
        task_id: int,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        node: Node,
        raw: Sequence[Tensor | None] | None = None,
    ) -> None:
        """A task has run, and its node still has what it saved. A leaf's task is about to run: .grad takes the gradient
        away from its input buffer.

        Args:
            inputs: its input buffer, after the hooks that run before it.
            outputs: what it gave, one per entry of the node's `next_functions`, as the next tasks get it.
            raw: the same before the engine summed and cast it; None where the engine does not show that.
        """
        self._found = None
        self._ran += 1
        self._bad.pop(task_id, None)
        self._told.pop(task_id, None)
        try:
            with unobserved():
                self._look(self._graph.tasks[task_id], inputs, outputs, raw or outputs)
        except Exception as error:  # a strange tensor may raise anything; the backward must not end
            where = self._graph.describe(task_id)
            self._found = Stop("watchpoint", None, task_id, f"what {where} gave can't be looked at: {said(error)}")

    def found(self, wait: bool = False) -> Stop | None:
        """What the watchpoints have found at the last task, or of earlier ones on accelerators since they last said so.

        Args:
            wait: for what is still on its way from an accelerator.
        """
        if self._late:
            self._late.look(wait)
        return self._found

    def at_end(self, order: Sequence[int]) -> Stop | None:
        """What there is to say once all tasks have run: what `found` says after waiting, or which leaves got nothing.

        Args:
            order: the ids of the tasks that have run.
        """
        if (found := self.found(wait=True)) is not None:
            return found
        for each in self._watchpoints:
            if each.conditions.missing:
                missing = [task for task in order if each.watches(task) and self._got_nothing(task)]
                if missing:
                    each.hit(*missing)
                    return self._say_missing(each, missing)
        return None

    def reaching_leaves(self) -> frozenset[int]:
        """The ids of tasks that gave gradients which are not finite, of which such ones came to a leaf in the end."""
        stack = [task.id for task in self._graph.tasks if task.is_leaf]
        found: set[int] = set()
        while stack:
            for edge in self._graph.in_edges[stack.pop()]:
                if (edge.task, edge.output) in self._bad_outputs and edge.task not in found:
                    found.add(edge.task)
                    stack.append(edge.task)
        return frozenset(found)

    def taken_back(self, task_ids: Collection[int]) -> None:
        """These tasks have not run after all: the session went back."""
        self._late.forget()
        self._found = None
        back = frozenset(task_ids)
        for task_id in back:
            self._bad.pop(task_id, None)
            self._got.pop(task_id, None)
            self._told.pop(task_id, None)
        for each in self:
            if isinstance(each, Breakpoint):
                each.taken_back()
            elif each.flow is not None:
                each.flow.forget(back)

    def let_go(self) -> None:
        """The session is over: holds nothing of the graph's nodes any more."""
        self._late.forget()
        self._graph = replace(self._graph, nodes=())
        self._trace = None

    def _add(self, entry: Entry) -> None:
        self._made = entry.number
        self._entries = {**self._entries, entry.number: entry}
        self._arrange()

    def _arrange(self) -> None:
        """Sorts out what is asked for each task: the engine may look at any time."""
        self._breakpoints = tuple(each for each in self if isinstance(each, Breakpoint) and each.enabled)
        self._watchpoints = tuple(each for each in self if isinstance(each, Watchpoint) and each.enabled)
        if not self._watchpoints:
            self._found = None  # the next task would not make it forgotten: nobody looks at that

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
            self._bad[task.id] = False
        if not watching:
            return
        for number, (gradient, before) in enumerate(zip(outputs, raw, strict=True)):
            if gradient is None or before is None:
                continue
            output = Output.of(self._graph, task, number, gradient, before)
            now = [each for each in watching if _at_once(each, gradient)]
            if now:
                self._judge_now(now, inputs, output)
            if len(now) < len(watching):
                self._judge_later([each for each in watching if each not in now], output)
            if output.receiver is not None and output.receiver.is_leaf:
                self._judged[output.receiver.id] = _Judged(gradient, watching)

    def _judge_now(self, watching: list[Watchpoint], inputs: Sequence[Tensor | None], output: Output) -> None:
        task_id = output.task.id
        needs = watching[0].needs.union(*(each.needs for each in watching))
        read = FINITE
        if needs:
            elements = read_now(output.gradient, needs)
            if elements is None:
                return
            read = elements
            if needs != _NORM:
                self._bad[task_id] = self._bad.get(task_id, False) or read.nan or read.inf
                if read.nan or read.inf:
                    self._bad_outputs.add((task_id, output.number))
        for watchpoint in watching:
            for condition in watchpoint.conditions.of_gradients:
                if not all(term.holds is None or term.holds(read) for term in condition):
                    continue
                if self._looks(watchpoint, condition, output):
                    self._tell(watchpoint, condition, output, inputs, read)
                    break

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
                after = self._graph.describe(output.task)
                self._add_stop(
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
        if self._is_told(watchpoint, condition, task.id, output.number):
            return
        text = say(self._graph, watchpoint, condition, output, read)
        if self._found is not None:
            self._add_stop(watchpoint, Stop("watchpoint", watchpoint.number, task.id, text))
            return
        if _spreads(condition):
            origin = origin_of(self._graph, inputs, output, self._known(), self._bad)
        else:
            tensors = {f"input {number}": each for number, each in enumerate(inputs) if each is not None}
            origin = Origin((*about(self._graph, task), *_what_came(inputs, condition)), tensors)
        tensors = origin.tensors
        if not task.is_leaf:
            tensors = {f"output {output.number}": shown(output), **tensors}
        tensors = {name: _without_graph(each) for name, each in tensors.items()}
        self._add_stop(watchpoint, Stop("watchpoint", watchpoint.number, task.id, text, origin.lines, tensors))

    def _judge_later(self, watching: list[Watchpoint], output: Output) -> None:
        open_conditions = []
        for watchpoint in watching:
            for condition in watchpoint.conditions.of_gradients:
                if self._looks(watchpoint, condition, output):
                    if all(term.holds is None for term in condition):
                        self._tell(watchpoint, condition, output, (), FINITE)
                        break
                    open_conditions.append((watchpoint, condition))
        if open_conditions:
            needs = frozenset[Need]().union(*(term.needs for _, condition in open_conditions for term in condition))
            judge = partial(self._judge, open_conditions, output.task.id, output.number, self._ran)
            self._late.ask(output.gradient, needs, judge)

    def _judge(
        self, asked: list[tuple[Watchpoint, Condition]], task_id: int, number: int, ran: int, read: Reading
    ) -> None:
        """What was asked of a gradient on an accelerator has come; `ran` counts the tasks up to its own."""
        self._bad[task_id] = self._bad.get(task_id, False) or read.nan or read.inf
        for watchpoint, condition in asked:
            holds = all(term.holds is None or term.holds(read) for term in condition)
            if holds and not self._is_told(watchpoint, condition, task_id, number):
                text = say_late(self._graph, watchpoint, condition, task_id, number, read)
                self._add_late(watchpoint, task_id, text, about(self._graph, self._graph.tasks[task_id]), ran)

    def _add_late(self, watchpoint: Watchpoint, task_id: int, text: str, known: Iterable[str], ran: int) -> None:
        told = self._found is not None and self._found.task == task_id
        if ran <= watchpoint.muted_until and not told:
            watchpoint.hit(task_id)
            return
        watchpoint.muted_until = self._ran
        since = self._ran - ran
        lines = list(known)
        if since:
            lines.append(
                f"{since} task{'s have' if since > 1 else ' has'} run since: the accelerator was not waited for, and "
                "what the task saw is gone; watch(..., synchronize=True) stops in time and looks for the origin"
            )
        stop = Stop("watchpoint", watchpoint.number, task_id, text, tuple(lines), since=since)
        self._add_stop(watchpoint, stop)

    def _follow(self, watchpoint: Watchpoint, task: Task, gradients: Sequence[Tensor | None], entered: bool) -> None:
        """Takes down the norms of what comes into module calls here, or leaves them."""
        flow = watchpoint.flow
        assert flow is not None, "it watches a ratio"
        for number, gradient in enumerate(gradients):
            port = task.id, number
            if not (flow.asks_input(port) if entered else flow.asks_output(port)):
                continue
            arrived = partial(self._compare, watchpoint, port, entered, self._ran)
            if gradient is None:
                arrived(Reading(norm=0.0))
            elif _at_once(watchpoint, gradient):
                arrived(read_now(gradient, _NORM) or FINITE)
            else:
                self._late.ask(gradient, _NORM, arrived)

    def _compare(self, watchpoint: Watchpoint, port: tuple[int, int], entered: bool, ran: int, read: Reading) -> None:
        assert watchpoint.flow is not None, "it watches a ratio"
        for call, came, left in (watchpoint.flow.came if entered else watchpoint.flow.left)(port, read.norm):
            ratio = left / came if came else float("inf") if left else float("nan")
            if any(bound.beyond(ratio) for bound in watchpoint.conditions.ratios):
                self._add_late(watchpoint, port[0], say_ratio(self._graph, watchpoint, call, came, left), (), ran)

    def _add_stop(self, watchpoint: Watchpoint, stop: Stop) -> None:
        """Of several that one task brings the first is the stop; the others are mentioned."""
        if stop.task is not None:
            watchpoint.hit(stop.task)
        if self._found is None:
            self._found = stop
        else:
            self._found = replace(self._found, lines=(*self._found.lines, f"also {stop.text}"))

    def _is_told(self, watchpoint: Watchpoint, condition: Condition, task_id: int, number: int) -> bool:
        """Whether this has been told of one of its givers: of a leaf's, or of a NaN, which goes through all that
        follows and is told where it begins. Takes down that it holds of this task, too."""
        told = (_spreads(condition) or self._graph.tasks[task_id].is_leaf) and any(
            (watchpoint.number, edge.output) in self._told.get(edge.task, ()) for edge in self._graph.in_edges[task_id]
        )
        self._told.setdefault(task_id, set()).add((watchpoint.number, number))
        return told

    def _known(self) -> Known:
        """What tells whether a task that has run gave a gradient that is not finite; None: nobody looked."""
        trace: list[Trace] = []  # made when it is asked for, and once: it copies all that was recorded

        def known(task_id: int) -> bool | None:
            if task_id in self._bad or self._trace is None:
                return self._bad.get(task_id)
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

    def _got_nothing(self, task_id: int) -> bool:
        task, graph = self._graph.tasks[task_id], self._graph
        if not task.is_leaf:
            return False
        if task_id in self._got:
            return not self._got[task_id]
        return bool(graph.nodes) and leaf_of(graph.nodes[task_id]).grad is None

    def _say_missing(self, watchpoint: Watchpoint, missing: Sequence[int]) -> Stop:
        graph = self._graph
        names = [graph.tasks[task_id].parameter or graph.describe(task_id) for task_id in missing]
        count = f"{len(missing)} leaf" if len(missing) == 1 else f"{len(missing)} leaves"
        lines = []
        for task_id, name in zip(missing, names, strict=True):
            givers = " and ".join(graph.describe(edge.task) for edge in graph.in_edges[task_id])
            lines.append(f"{name}: {givers} gave no gradient")
        text = f"{head(watchpoint)}: no gradient came to {count}: {', '.join(names)}"
        return Stop("watchpoint", watchpoint.number, missing[0], text, tuple(lines))


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
