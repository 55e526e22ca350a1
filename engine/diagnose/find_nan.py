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
from ...inspector.graph.graph import Graph, Task, told_apart
from ...inspector.graph.source_lines import Source
from ...inspector.hips.observers import looking_at_values
from ...inspector.hips.tape import HipsTape, not_native
from ...inspector.renderers import text_of
from ...inspector.text.progress import telling
from ...inspector.text.report import findings_rich, findings_text
from ...inspector.text.sizes_and_counts import counted
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
from ..session.breakpoints.nan_origin import bad_part, first_bad, number_text
from ..session.breakpoints.watchpoints import unread_text
from ..session.direct_session import Stepper
from ..session.native_session import NativeSession
from .nan_in_forward import ForwardFind, ForwardWatch

if TYPE_CHECKING:
    from rich.console import RenderableType


def value_of(tape: HipsTape) -> float:
    """The function's value; of an array the first that is bad, else the first: a sum may be infinite where none is."""
    import numpy as np  # only tapes need it

    values = np.ravel(tape.value)
    if not values.size:
        return 0.0
    finite = np.isfinite(values)
    value = float(np.real(values[np.argmin(finite)]))
    return value if finite.all() or not math.isfinite(value) else math.nan  # of a complex one the other part is bad


def first_stop(tape: HipsTape) -> Stop | None:
    """What first gave a bad gradient, in autograd's own order. The tape's gradient is left as it was."""
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


LEAVES_LAST = Policy("leaves last", "leaves last, else last created first", lambda task, _: _leaf_last(task))
"""So that all gradients are there before one is put into a .grad."""

NAMED = 3  # leaves, in a sentence that may have to speak of a whole model's


@dataclass(frozen=True, eq=False, repr=False)
class NanReport:
    """The first NaN or infinite value of a forward and its backward. True if there is one, or gradients cannot be read:
    `assert not ts.find_nan(make_loss)` passes if all gradients are known to be finite.

    Attributes:
        where: "forward" or "backward"; None if all that could be read is finite.
        sentences: what was found: first what it is, then how it came about.
        operation: what made it: of the forward, or the name of the task's node.
        module: the path of the module it belongs to.
        source: the user's line.
        loss: the loss's value.
        finds: the first NaN and infinite values of the forward, whatever became of them.
        stop: of the backward what a watchpoint stopped at; holds the tensors it speaks of.
        graph: the backward's graph without its nodes; None where the loss has none.
        unread: the ids of the tasks whose gradients could not be read, as on the meta device.
        maker: the operation of the forward that is to blame, also for a bad gradient of the backward; None: none, or
            not known.
        before: the operation of the forward that put the infinite value there which `maker` could not take.
        after: the operation of the forward that made NaN of the infinite value which `maker` made.
        harmless: the ids of the tasks that gave a bad gradient which got into no leaf's gradient.
        not_run: the ids of the leaves whose hooks did not run.
        sums: how many leaves get a sum of gradients that PyTorch's engine does not show.
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
        """The id of the task that gave the first bad gradient."""
        return None if self.stop is None else self.stop.task

    def __repr__(self) -> str:
        return findings_text(self.sentences, [[]])

    def __rich__(self) -> RenderableType:
        return findings_rich(self.sentences, [[]])

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", [[]], self.sentences)


def find_nan(make_loss: MakeLoss, *, engine: Engine = "direct", model: nn.Module | None = None) -> NanReport:
    """Finds the first NaN or infinite value of a forward and its backward, and says what made it.

    The forward is watched operation by operation, also in the backwards that it runs and inside of torch.func's
    transforms. If the loss comes out bad, one of its bad elements is followed back to the first operation that made it
    so: what `where`, a clamp or a division by infinity has discarded is not to blame. If it comes out finite, its
    backward runs to the end with a watchpoint on NaN and infinite gradients, which walks back to the values that made
    them, and what first gave one that is in a leaf's gradient is named; if none is, what first gave one at all.

    No .grad changes, no hook stays; random numbers, and the tensors that the program writes (the running statistics of
    a BatchNorm), are put back: see `AsFound`. Hooks of tensors and nodes run; those of leaves, which wait for
    a .grad, do not, but inside of a reentrant checkpoint: a report that all is finite names them.
    DistributedDataParallel reduces nothing.

    Args:
        make_loss: runs the forward and returns the loss, one element, or a tape (`ts.hips.tape`), of whose forward
            the first primitive that gave a bad value is named.
        engine: "direct"; what it refuses runs with "native".
        model: names modules and parameters after this module, where the forward calls parts of it and never itself;
            several are one `nn.ModuleDict({"G": generator, "D": critic})`. None: after each outermost module that is
            called.

    Known limitations: a compiled region runs as it was written meanwhile, so what only its kernels make is not seen;
    nor is a value that went to Python, and of a custom operator, which is not run again, what goes in is taken to reach
    what comes out. An infinite value that was written down (`masked_fill(..., -inf)`), or -inf in data, is taken to be
    meant: to blame is what made something else of it. What gave bad values is kept as long as they live. PyTorch's own
    engine does not show what a leaf gets in sum before the leaf's hooks run: "native" says of how many it can't tell.

    Raises:
        TypeError: `make_loss` can't be called, or returns no tensor.
        ValueError: the loss has more than one element.
    """
    expect_make_loss(make_loss, "ts.find_nan")
    expect_model(model)
    expect_choice(engine, get_args(Engine), "engine")
    watch = ForwardWatch(model)
    world = AsFound(make_loss, "ts.find_nan")
    # Anomaly mode would end the run at the first NaN, before anything is known of where it came from.
    no_anomaly_mode = torch.autograd.set_detect_anomaly(False)
    with no_anomaly_mode, telling(None, "looking for NaN") as tell, world, world.watched(), nothing_reduced():
        tell("the forward, operation by operation")
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
        return NanReport("forward", (f"{said}, as its arguments are.",), None, None, None, value, (), None, graph)
    made_by, size = tape.nodes[task_id], sum(prod(meta.shape or ()) for meta in graph.tasks[task_id].inputs)
    what = f"made {made_by.bad:,} of {counted(size, 'element')} NaN or infinite"
    told = (f"{said}: in the forward, {graph.describe(task_id)} {what}.", *_code(made_by.source))
    return NanReport("forward", told, made_by.name, None, made_by.source, value, (), None, graph)


@dataclass(frozen=True, slots=True)
class _Backward:
    """What was found in a backward.

    Attributes:
        stop: what first gave what is bad in a leaf's gradient; where no leaf's is bad, what first gave a bad one.
        maker: the operation of the forward that had made it.
        harmless: what was bad and got into no leaf's gradient.
        sums: of how many leaves nobody sees what waits: PyTorch's engine keeps the sums to itself.
        unread: per task whose gradients could not be read, the reason.
        direct_works: whether `engine="direct"` would see those sums.
    """

    graph: Graph
    stop: Stop | None
    maker: ForwardFind | None
    harmless: tuple[Stop, ...]
    sums: int
    unread: dict[int, str]
    direct_works: bool = False


def _hooked_leaves(graph: Graph) -> list[Task]:
    """The leaves whose hooks will not run. Under FSDP2 all do."""
    if is_sharded(graph):
        return []
    hooked = []
    for task in graph.tasks:
        node = graph.nodes[task.id]
        if task.is_leaf and (leaf_hooks(leaf := leaf_of(node)) or post_accumulate_hooks(leaf) or any(node_hooks(node))):
            hooked.append(task)
    return hooked


def _run_backward(watch: ForwardWatch, loss: Tensor, engine: Engine) -> _Backward:
    """Runs all tasks but the leaves', and looks at what waits for those."""
    with uncompiled(), watch.flow, _session(loss, engine) as session:  # as the forward ran that checkpoints repeat
        # Leaves run last here: said is where a task stands in the backward as PyTorch runs it.
        session.stops.speak_of(schedule(session.graph, "heap", session.needed))
        session.watch("nan", "inf", synchronize=True)
        whole = is_sharded(session.graph)  # its leaves' hooks end the step
        if not whole and any(task.is_leaf for task in session.graph.tasks):
            session.break_at("kind:AccumulateGrad")
        stops: list[Stop] = []
        while session.current is not None and (whole or not session.current.is_leaf):
            session.run()
            stopped = session.stopped
            if stopped is not None and stopped.why == "watchpoint" and not stopped.unread:
                stops.append(stopped)
        graph, reaching = session.graph, session.stops.reaching_leaves()
        reached = [stop for stop in stops if stop.task in reaching or graph.tasks[stop.task or 0].is_leaf]
        harmless = tuple(stop for stop in stops if stop not in reached)
        leaves = [task for task in graph.tasks if task.is_leaf]
        if isinstance(session, NativeSession) or whole:
            sums = 0 if whole else sum(len(graph.in_edges[task.id]) > 1 for task in leaves)
            stop = next(iter([*reached, *harmless]), None)
            direct_works = engine == "native" and _is_for_direct(graph)
            return _Backward(graph, stop, None, harmless, sums, _unread_tasks(session, leaves), direct_works)
        task_id, maker = _maker_at_leaves(watch, session, leaves)
        at_leaves = _bad_at_leaves(session, leaves)
        stop = next((stop for stop in reached if stop.task == task_id), reached[0] if reached else None)
        stop = stop or at_leaves or next(iter(harmless), None)
        return _Backward(graph, stop, maker, harmless, 0, _unread_tasks(session, leaves))


def _maker_at_leaves(
    watch: ForwardWatch, session: Stepper, leaves: Sequence[Task]
) -> tuple[int | None, ForwardFind | None]:
    """See `ForwardWatch.maker_of_gradient`: of the first bad element that waits for a leaf."""
    with unobserved():
        for task in leaves:
            for waiting in session.waiting(task):
                part = None if waiting is None else bad_part(waiting)
                if part is not None:
                    ids = {node: number for number, node in enumerate(session.graph.nodes)}
                    return watch.maker_of_gradient(part, first_bad(part), ids)
    return None, None


def _bad_at_leaves(session: Stepper, leaves: Sequence[Task]) -> Stop | None:
    """What waits for the leaves may be bad where all that was given is finite: sums overflow."""
    first = None
    for task in leaves:
        session.stops.produced(task.id, session.waiting(task), ())
        first = first or session.stops.found(wait=True)
    return first


def _session(loss: Tensor, engine: Engine) -> Stepper | NativeSession:
    if engine == "direct":
        try:
            return Stepper(loss, policy=LEAVES_LAST)
        except NotImplementedError:
            pass
    return NativeSession(loss, policy=LEAVES_LAST)


def _unread_tasks(session: Stepper | NativeSession, leaves: Sequence[Task]) -> dict[int, str]:
    """Return the reason per task whose gradients cannot be read. A leaf, which has not run, has its inputs' reason."""
    unread = session.stops.unread()
    for leaf in leaves:
        for edge in session.graph.in_edges[leaf.id]:
            if edge.task in unread:
                unread.setdefault(leaf.id, unread[edge.task])
    return unread


def _is_for_direct(graph: Graph) -> bool:
    try:
        refuse_tasks(graph)
    except NotImplementedError:
        return False
    return True


def _leaf_last(task: Task) -> tuple[int, int]:
    return (1, task.id) if task.is_leaf else (0, -task.sequence_nr)


def _of_forward(watch: ForwardWatch, result: Tensor, loss: float, bad: Tensor | None, graph: Graph | None) -> NanReport:
    """`bad`: the part of the loss that is NaN or infinite; None where that is finite, or cannot be read."""
    bare = None if graph is None else _without_nodes(graph)
    finds = watch.finds
    if bad is None and isfinite(loss):
        said = f"The loss is {number_text(loss)} and has no graph: no backward can run, so there is none to look at"
        sentences = (f"{said}; {why_no_graph(result)}.", *_passing(finds))
        return NanReport(None, sentences, None, None, None, loss, tuple(finds), None, bare)
    story = None if bad is None else watch.story(bad, first_bad(bad))
    if story is None:
        said = f"The loss is {number_text(loss)}, and no operation was seen to make it so"
        with unobserved():
            unread = elements_of(result).unread
        sentences = (f"{said}{f': it cannot be read ({unread})' if unread else ''}.", *_passing(finds))
        return NanReport("forward", sentences, None, None, None, loss, tuple(finds), None, bare)
    first = story.maker
    sentences = (
        f"The loss is {number_text(loss)}: {_said(first)}.",
        *_code(first.source),
        *(f"{line[0].upper()}{line[1:]}." for line in first.lines),
        *(() if story.before is None else (f"Before that, {_said(story.before)}.",)),
        *(() if story.after is None else (f"Then {_said(story.after)}.",)),
    )
    where = first.operation, first.module, first.source
    before, after = story.before, story.after
    return NanReport(
        "forward", sentences, *where, loss, tuple(finds), None, bare, maker=first, before=before, after=after
    )


def _of_backward(finds: Sequence[ForwardFind], loss: float, found: _Backward, hooked: Sequence[Task]) -> NanReport:
    graph, stop, sums = found.graph, found.stop, found.sums
    bare = _without_nodes(graph)
    unread = tuple(sorted(found.unread))
    if stop is None or stop.task is None:
        said = f"The loss is {number_text(loss)}, and all gradients of its {len(graph)} tasks are finite"
        if unread:
            read = len(graph) - len(unread)
            others = f"those of the other {counted(read, 'task')} are finite" if read else "nothing is known of them"
            said = f"The loss is {number_text(loss)}; {_unread(found)}, {others}"
        if sums:
            leaves = "1 leaf gets" if sums == 1 else f"{sums} leaves get"
            said += f", but for what {leaves} in sum from several: PyTorch's engine does not show it"
            said += '; engine="direct" does' if found.direct_works else ""
        skipped: list[str] = []
        if hooked:
            named = ", ".join(told_apart(graph, task) for task in hooked[:NAMED])
            more = f" and {len(hooked) - NAMED} more" if len(hooked) > NAMED else ""
            said_of = "Hooks of leaves were not run, and what they make of a gradient was not looked at"
            skipped = [f"{said_of}: {named}{more}."]
        sentences = (f"{said}.", *skipped, *_passing(finds))
        not_run = tuple(task.id for task in hooked)
        return NanReport(
            None, sentences, None, None, None, loss, tuple(finds), stop, bare, unread, not_run=not_run, sums=sums
        )
    task = graph.tasks[stop.task]
    _, _, gave = stop.text.partition(": ")
    sentences = (
        f"The loss is {number_text(loss)}; in the backward, {gave}.",
        *(f"{line[0].upper()}{line[1:]}." for line in stop.lines),
        *([] if found.maker is None else [f"It came of the forward: there {_said(found.maker)}."]),
        *(["It got into no leaf's gradient: what came after it has discarded it."] if stop in found.harmless else []),
        *(
            f"Also {each.text.partition(': ')[2]}, which got into no leaf's gradient."
            for each in found.harmless
            if each is not stop
        ),
        *([f"It may have begun before that: {_unread(found)}."] if unread else []),
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
        bare,
        unread,
        maker=found.maker,
        harmless=tuple(each.task for each in found.harmless if each.task is not None),
    )


def _unread(found: _Backward) -> str:
    count = f"{len(found.unread)} of its {len(found.graph)} tasks"
    return f"the gradients of {count} cannot be read ({unread_text(found.unread)})"


def _passing(finds: Sequence[ForwardFind]) -> Iterator[str]:
    """What was seen in the forward and did not get into the loss."""
    for each in finds:
        if each.how == "made":
            yield f"In the forward {_said(each)}; it did not get into the loss."


def _said(find: ForwardFind) -> str:
    """A find in words: `log (blocks.3, model.py:41) made inf in 3 of 64 elements, first at [0, 2]`."""
    if find.how == "given":
        return f"{find.place} was given what was bad before any operation, and gave {find.text}"
    return f"{find.place} {'made' if find.how == 'made' else 'put'} {find.text}"


def _code(source: Source | None) -> Iterator[str]:
    code = () if source is None else source.code()
    if source is not None and code and code[0].strip():
        yield f"The line, in {source.function}: {code[0].strip()}"


def _without_nodes(graph: Graph) -> Graph:
    return replace(graph, nodes=())
