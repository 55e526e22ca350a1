"""`ts.find_nan`: the first NaN or infinite value of a forward and its backward, and its cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from ...inspector.capture.build_graph import read_graph as graph_of
from ...inspector.capture.build_graph import why_no_graph
from ...inspector.graph.graph import Graph, Task, unique_name
from ...inspector.graph.source_lines import Source
from ...inspector.hips.observers import looking_at_values
from ...inspector.hips.tape import HipsTape, not_native
from ...inspector.renderers import text_of
from ...inspector.text.progress import telling
from ...inspector.text.report import findings_rich, findings_text
from ...inspector.text.sizes_and_counts import counted, number_text
from ...inspector.torch_private.compiled import keep_compiler_out, uncompiled
from ...inspector.torch_private.hooks import leaf_hooks, node_hooks, post_accumulate_hooks
from ...inspector.torch_private.nodes import leaf_of
from ...inspector.torch_private.sequence_numbers import sequence_nr
from ...inspector.torch_private.tensors import elements_of
from ...inspector.torch_private.thread_state import unobserved
from ...inspector.validation import expect_choice, expect_model
from ..api.make_loss import MakeLoss, expect_make_loss, loss_or_tape, refuse_whole_step
from ..api.restore_state import AsFound
from ..execution.unsupported import refuse_tasks
from ..planning.simulate import schedule
from ..recording.run import Engine
from ..schedule.ddp_buckets import nothing_reduced
from ..schedule.fsdp_stages import is_sharded
from ..schedule.policy import Policy
from ..session.breakpoints.breakpoints import Stop
from ..session.breakpoints.nan_origin import bad_part, first_bad
from ..session.breakpoints.watchpoints import unread_text
from ..session.direct_session import Stepper
from ..session.native_session import NativeSession
from .nan_in_forward import ForwardFind, ForwardWatch

if TYPE_CHECKING:
    from rich.console import RenderableType


def value_of(tape: HipsTape) -> float:
    """Return the function's value; for an array, its first bad element, or its first if none is bad.

    The elements are not summed, because a sum of finite numbers may be infinite.
    """
    import numpy as np  # imported here because only tapes need it

    values = np.ravel(tape.value)
    if not values.size:
        return 0.0
    finite = np.isfinite(values)
    value = float(np.real(values[np.argmin(finite)]))
    # A complex value whose imaginary part is bad has a finite real part.
    return value if finite.all() or not math.isfinite(value) else math.nan


def first_stop(tape: HipsTape) -> Stop | None:
    """Return the first task that returns a bad gradient, in autograd's order. The tape's gradient is not changed."""
    import numpy as np

    before = tape.gradient
    try:
        with Stepper(tape, policy="dfs") as session, np.errstate(all="ignore"):
            session.watch("nan", "inf")
            session.run()
            stopped = session.stopped
            return stopped if stopped is not None and stopped.why == "watchpoint" else None
    finally:
        tape.gradient = before


LEAVES_LAST = Policy(
    "leaves last",
    "leaves last, else last created first",
    lambda task, _: (1, task.id) if task.is_leaf else (0, -task.sequence_nr),
)
"""Runs the leaves last, when all gradients have been computed and none has been added to a .grad."""

NAMED = 3  # a sentence names at most this many leaves


@dataclass(frozen=True, eq=False, repr=False)
class NanReport:
    """The first NaN or infinite value of a forward and its backward. True if there is one, or gradients cannot be read:
    `assert not ts.find_nan(make_loss)` passes if all gradients are known to be finite.

    Attributes:
        where: "forward" or "backward"; None if all values that could be read are finite.
        sentences: the findings: the value first, then its cause.
        operation: the operation of the forward that produced it, or the name of the task's node.
        module: the path of its module.
        source: the user's line.
        loss: the loss's value.
        finds: the first NaN and infinite values of the forward, whether or not they reached the loss.
        stop: the stop of the watchpoint in the backward; it holds the tensors that it describes.
        graph: the backward's graph without its nodes; None if the loss has none.
        unread: the ids of the tasks whose gradients could not be read, as on the meta device.
        maker: the operation of the forward that caused the value, also for a bad gradient; None if unknown.
        before: the operation of the forward that wrote the infinite value on which `maker` failed.
        after: the operation of the forward that turned `maker`'s infinite value into NaN.
        harmless: the ids of the tasks that returned a bad gradient which reached no leaf.
        not_run: the ids of the leaves whose hooks did not run.
        sums: the number of leaves with a sum of gradients that PyTorch's engine does not expose.
    """

    where: Literal["forward", "backward"] | None
    sentences: tuple[str, ...]
    operation: str | None
    module: str | None
    source: Source | None
    loss: float
    finds: tuple[ForwardFind, ...]
    stop: Stop | None
    graph: Graph | None
    unread: tuple[int, ...] = ()
    maker: ForwardFind | None = None
    before: ForwardFind | None = None
    after: ForwardFind | None = None
    harmless: tuple[int, ...] = ()
    not_run: tuple[int, ...] = ()
    sums: int = 0

    def __bool__(self) -> bool:
        return self.where is not None or bool(self.unread)

    @property
    def task(self) -> int | None:
        """The id of the task that returned the first bad gradient."""
        return None if self.stop is None else self.stop.task

    def __repr__(self) -> str:
        return findings_text(self.sentences, [[]])

    def __rich__(self) -> RenderableType:
        return findings_rich(self.sentences, [[]])

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", [[]], self.sentences)


def find_nan(make_loss: MakeLoss, model: nn.Module | None = None, *, engine: Engine = "direct") -> NanReport:
    """Find the first NaN or infinite value of a forward and its backward, and the operation that caused it.

    Every operation of the forward is checked, including those in nested backwards and in torch.func's transforms. If
    the loss is bad, one of its bad elements is traced back to the first operation that produced it; bad values
    discarded by `where`, a clamp or a division by infinity are not reported as the cause. If the loss is finite, its
    backward runs to the end with a watchpoint on NaN and infinite gradients, which are traced back in the same way. The
    report names the first task with a bad gradient that reached a leaf, or else the first task with a bad gradient.

    No .grad changes, and no hook stays. Random number generators and tensors that the program modifies (a BatchNorm's
    running statistics) are restored, see `AsFound`. Hooks on tensors and nodes run. Hooks on leaves, which need a
    .grad, run only inside a reentrant checkpoint; a report without findings names those that did not run.
    DistributedDataParallel does not reduce.

    Args:
        make_loss: a function that runs the forward and returns the loss, one element, or a tape (`ts.hips.tape`). For a
            tape, the report names the first primitive of its forward that returned a bad value.
        model: the module that names modules and parameters, for a forward that calls only parts of it. Pass several
            models as one `nn.ModuleDict({"G": generator, "D": critic})`. None: names start at each outermost module.
        engine: "direct"; graphs that it does not support run with "native".

    Known limitations: compiled regions run uncompiled, so values that only their kernels produce are not found. Values
    converted to Python numbers are not traced. Custom operators are not run again; their outputs are assumed to depend
    on all inputs. An infinite constant (`masked_fill(..., -inf)`), or -inf in data, is assumed to be intended; the
    cause is the operation that turned it into something else. Operations with bad results are kept as long as these are
    alive. PyTorch's engine does not expose the sum that a leaf receives before the leaf's hooks run; with "native" the
    report says how many leaves this concerns.

    Raises:
        TypeError: if `make_loss` cannot be called or does not return a tensor.
        ValueError: if the loss has more than one element.
    """
    expect_make_loss(make_loss, "ts.find_nan")
    expect_model(model)
    expect_choice(engine, get_args(Engine), "engine")
    watch = ForwardWatch(model)
    world = AsFound(make_loss, "ts.find_nan")
    # Anomaly mode would end the run at the first NaN, before its cause is known.
    no_anomaly_mode = torch.autograd.set_detect_anomaly(False)
    with no_anomaly_mode, telling(None, "looking for NaN") as tell, world, world.watched(), nothing_reduced():
        tell("the forward's operations")
        try:
            since = sequence_nr()
            with watch.forward(), looking_at_values():
                loss = loss_or_tape(world.make_loss())
            refuse_whole_step(loss, since)
        except Exception as error:
            for find in watch.finds:
                error.add_note(f"tapescope: before that, {_said(find)}")
            raise
        if isinstance(loss, HipsTape):
            if engine == "native":
                raise not_native()
            return _of_tape(loss)
        with unobserved():
            value, bad = float(loss.real), bad_part(loss)
        graph = graph_of(loss) if loss.requires_grad else None
        if bad is not None or not isfinite(value) or graph is None:
            return _of_forward(watch, loss, value, bad, graph)
        hooked = _hooked_leaves(graph)
        tell(f"the backward, {len(graph):,} tasks")
        backward = _run_backward(watch, loss, engine)
    return _of_backward(watch.finds, value, backward, hooked)


keep_compiler_out(find_nan)


def _of_tape(tape: HipsTape) -> NanReport:
    graph, value = tape.graph, value_of(tape)
    if isfinite(value):
        return _of_backward([], value, _Backward(graph, first_stop(tape), None, (), 0, {}), ())
    said = f"The value of {tape.function} is {number_text(value)}"
    task_id = next((number for number, node in enumerate(tape.nodes) if node.bad), None)
    if task_id is None:
        return NanReport("forward", (f"{said}, like its arguments.",), None, None, None, value, (), None, graph)
    made_by, size = tape.nodes[task_id], sum(prod(meta.shape or ()) for meta in graph.tasks[task_id].inputs)
    what = f"returned NaN or infinite values in {made_by.bad:,} of {counted(size, 'element')}"
    sentences = (f"{said}: in the forward, {graph.describe(task_id)} {what}.", *_code(made_by.source))
    return NanReport("forward", sentences, made_by.name, None, made_by.source, value, (), None, graph)


@dataclass(frozen=True, slots=True)
class _Backward:
    """The findings in a backward.

    Attributes:
        stop: the first bad gradient that reached a leaf; if no leaf's gradient is bad, the first bad gradient.
        maker: the operation of the forward that caused it.
        harmless: bad gradients that reached no leaf.
        sums: the number of leaves with a sum that PyTorch's engine does not expose.
        unread: the reason for each task whose gradients could not be read.
        direct_works: whether `engine="direct"` would expose those sums.
    """

    graph: Graph
    stop: Stop | None
    maker: ForwardFind | None
    harmless: tuple[Stop, ...]
    sums: int
    unread: dict[int, str]
    direct_works: bool = False


def _hooked_leaves(graph: Graph) -> list[Task]:
    """Return the leaves whose hooks will not run. Under FSDP2 all hooks run."""
    if is_sharded(graph):
        return []
    hooked = []
    for task in graph.tasks:
        node = graph.nodes[task.id]
        if task.is_leaf and (leaf_hooks(leaf := leaf_of(node)) or post_accumulate_hooks(leaf) or any(node_hooks(node))):
            hooked.append(task)
    return hooked


def _run_backward(watch: ForwardWatch, loss: Tensor, engine: Engine) -> _Backward:
    """Run all tasks except the leaves', and check the gradients in the leaves' input buffers."""
    # Uncompiled, because a checkpoint must recompute the forward as it ran.
    with uncompiled(), watch.flow, _session(loss, engine) as session:
        # The leaves run last here, but the report gives a task's position in PyTorch's own order.
        session.stops.use_order(schedule(session.graph, "heap", session.needed))
        session.watch("nan", "inf", synchronize=True)
        runs_leaves = is_sharded(session.graph)  # FSDP2 ends the step in its leaves' hooks
        if not runs_leaves and any(task.is_leaf for task in session.graph.tasks):
            session.break_at("kind:AccumulateGrad")
        stops: list[Stop] = []
        while session.current is not None and (runs_leaves or not session.current.is_leaf):
            session.run()
            stopped = session.stopped
            if stopped is not None and stopped.why == "watchpoint" and not stopped.unread:
                stops.append(stopped)
        graph, reaching = session.graph, session.stops.reaching_leaves()
        reached = [stop for stop in stops if stop.task in reaching or graph.tasks[stop.task or 0].is_leaf]
        harmless = tuple(stop for stop in stops if stop not in reached)
        leaves = [task for task in graph.tasks if task.is_leaf]
        if isinstance(session, NativeSession) or runs_leaves:
            sums = 0 if runs_leaves else sum(len(graph.in_edges[task.id]) > 1 for task in leaves)
            stop = next(iter([*reached, *harmless]), None)
            direct_works = engine == "native"
            if direct_works:
                try:
                    refuse_tasks(graph)
                except NotImplementedError:
                    direct_works = False
            return _Backward(graph, stop, None, harmless, sums, _unread_tasks(session, leaves), direct_works)
        task_id, maker = _maker_at_leaves(watch, session, leaves)
        at_leaves = None  # a sum of finite gradients in a leaf's input buffer may overflow
        for task in leaves:
            session.stops.produced(task.id, session.waiting(task), ())
            at_leaves = at_leaves or session.stops.found(wait=True)
        stop = next((stop for stop in reached if stop.task == task_id), reached[0] if reached else None)
        stop = stop or at_leaves or next(iter(harmless), None)
        return _Backward(graph, stop, maker, harmless, 0, _unread_tasks(session, leaves))


def _maker_at_leaves(
    watch: ForwardWatch, session: Stepper, leaves: Sequence[Task]
) -> tuple[int | None, ForwardFind | None]:
    """Return the maker of the first bad element in a leaf's input buffer, see `ForwardWatch.maker_of_gradient`."""
    with unobserved():
        for task in leaves:
            for waiting in session.waiting(task):
                part = None if waiting is None else bad_part(waiting)
                if part is not None:
                    ids = {node: number for number, node in enumerate(session.graph.nodes)}
                    return watch.maker_of_gradient(part, first_bad(part), ids)
    return None, None


def _session(loss: Tensor, engine: Engine) -> Stepper | NativeSession:
    if engine == "direct":
        try:
            return Stepper(loss, policy=LEAVES_LAST)
        except NotImplementedError:
            pass
    return NativeSession(loss, policy=LEAVES_LAST)


def _unread_tasks(session: Stepper | NativeSession, leaves: Sequence[Task]) -> dict[int, str]:
    """Return the reason for each task whose gradients cannot be read; a leaf that has not run shares its inputs'."""
    unread = session.stops.unread()
    for leaf in leaves:
        for edge in session.graph.in_edges[leaf.id]:
            if edge.task in unread:
                unread.setdefault(leaf.id, unread[edge.task])
    return unread


def _of_forward(watch: ForwardWatch, result: Tensor, loss: float, bad: Tensor | None, graph: Graph | None) -> NanReport:
    """Return the report on a forward. bad: the bad part of the loss; None if it is finite or cannot be read."""
    node_free = None if graph is None else replace(graph, nodes=())
    finds = watch.finds
    if bad is None and isfinite(loss):
        said = f"The loss is {number_text(loss)} and has no graph, so there is no backward to check"
        sentences = (f"{said}; {why_no_graph(result)}.", *_passing(finds))
        return NanReport(None, sentences, None, None, None, loss, tuple(finds), None, node_free)
    story = None if bad is None else watch.story(bad, first_bad(bad))
    if story is None:
        said = f"The loss is {number_text(loss)}, but the operation that caused it was not recorded"
        with unobserved():
            unread = elements_of(result).unread
        sentences = (f"{said}{f': it cannot be read ({unread})' if unread else ''}.", *_passing(finds))
        return NanReport("forward", sentences, None, None, None, loss, tuple(finds), None, node_free)
    first = story.maker
    sentences = (
        f"The loss is {number_text(loss)}: {_said(first)}{first.advice or ''}.",
        *_code(first.source),
        *(f"{line[0].upper()}{line[1:]}." for line in first.lines),
        *(() if story.before is None else (f"Before that, {_said(story.before)}.",)),
        *(() if story.after is None else (f"Then {_said(story.after)}.",)),
    )
    where = first.operation, first.module, first.source
    before, after = story.before, story.after
    return NanReport(
        "forward", sentences, *where, loss, tuple(finds), None, node_free, maker=first, before=before, after=after
    )


def _of_backward(finds: Sequence[ForwardFind], loss: float, found: _Backward, hooked: Sequence[Task]) -> NanReport:
    graph, stop, sums = found.graph, found.stop, found.sums
    node_free = replace(graph, nodes=())
    unread = tuple(sorted(found.unread))
    if stop is None or stop.task is None:
        said = f"The loss is {number_text(loss)}, and all gradients of its {len(graph)} tasks are finite"
        if unread:
            read = len(graph) - len(unread)
            others = (
                f"those of the other {counted(read, 'task')} are finite" if read else "so nothing is known about them"
            )
            said = f"The loss is {number_text(loss)}; {_unread(found)}, {others}"
        if sums:
            leaves = "1 leaf gets" if sums == 1 else f"{sums} leaves get"
            said += f", except that {leaves} a sum of gradients, which PyTorch's engine does not expose"
            said += '; engine="direct" checks them too' if found.direct_works else ""
        skipped: list[str] = []
        if hooked:
            named = ", ".join(unique_name(graph, task) for task in hooked[:NAMED])
            more = f" and {len(hooked) - NAMED} more" if len(hooked) > NAMED else ""
            said_of = "Hooks of leaves did not run, so the gradients they return were not checked"
            skipped = [f"{said_of}: {named}{more}."]
        sentences = (f"{said}.", *skipped, *_passing(finds))
        not_run = tuple(task.id for task in hooked)
        return NanReport(
            None, sentences, None, None, None, loss, tuple(finds), stop, node_free, unread, not_run=not_run, sums=sums
        )
    task = graph.tasks[stop.task]
    maker, gave = found.maker, f"{stop.clause}{stop.cause or ''}"
    remedy = None if maker is None or maker.advice is None else maker.advice.remedy
    if maker is not None and stop.cause is None:
        gave += f", because in the forward {_said(maker)}{'' if remedy is None else f': {remedy}'}"
        maker = None
    sentences = (
        f"The loss is {number_text(loss)}; in the backward, {gave}.",
        *(f"{line[0].upper()}{line[1:]}." for line in stop.lines if remedy is None or not line.endswith(remedy)),
        *([] if maker is None else [f"The cause is in the forward: {_said(maker)}."]),
        *(["It reached no leaf's gradient, because a later task discarded it."] if stop in found.harmless else []),
        *(f"Also {each.clause}, which reached no leaf's gradient." for each in found.harmless if each is not stop),
        *([f"It may have started earlier: {_unread(found)}."] if unread else []),
        *_passing(finds),
    )
    module, finds = graph.module(task), tuple(finds)
    return NanReport(
        "backward",
        sentences,
        task.name,
        module,
        task.source,
        loss,
        finds,
        stop,
        node_free,
        unread,
        maker=found.maker,
        harmless=tuple(each.task for each in found.harmless if each.task is not None),
    )


def _unread(found: _Backward) -> str:
    count = f"{len(found.unread)} of its {len(found.graph)} tasks"
    return f"the gradients of {count} cannot be read ({unread_text(found.unread)})"


def _passing(finds: Sequence[ForwardFind]) -> Iterator[str]:
    """Yield sentences about bad values of the forward that did not reach the loss."""
    for each in finds:
        if each.how == "made":
            yield f"In the forward {_said(each)}; this did not reach the loss."


def _said(find: ForwardFind) -> str:
    """Return a find in words: `log (blocks.3, model.py:41) returned inf in 3 of 64 elements, first at [0, 2]`."""
    if find.how == "given":
        return f"{find.place} received bad values that no recorded operation produced, and returned {find.text}"
    return f"{find.place} {'returned' if find.how == 'made' else 'wrote'} {find.text}"


def _code(source: Source | None) -> Iterator[str]:
    code = () if source is None else source.code()
    if source is not None and code and code[0].strip():
        yield f"The line, in {source.function}: {code[0].strip()}"
