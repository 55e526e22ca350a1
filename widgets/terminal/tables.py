"""Views of sessions, tasks, gradients and stops at the prompt, drawn with rich.

Names, code and messages come from the user, so all of them pass through `plain`, which disables markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ...engine.recording.statistics import Statistics, statistics
from ...engine.recording.task_records import RecordedGradient, TaskRecord
from ...engine.schedule.find_tasks import calls_of
from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.breakpoints.stop_list import Entry
from ...engine.session.direct_session import Stepper
from ...inspector.graph.graph import Task, TensorMeta, module_name, whose
from ...inspector.graph.saved_tensors import SavedTensor
from ...inspector.graph.source_lines import Source
from ...inspector.text.sizes_and_counts import counted, nth, size_text
from ...inspector.torch_private.tensors import storage_of
from ..deck.task_and_stop_syntax import run_of, told
from .console import plain
from .stops import PromptStop, Session

if TYPE_CHECKING:
    from ...engine.session.branches import Branch


_ABOVE, _BELOW = 5, 5  # source lines shown around the requested one


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return a table without rules, which is also readable through a pipe."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    numbers = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def stop_view(stop: Stop) -> Group:
    """Return the reason why a run stopped, with the path to its origin."""
    return Group(plain(stop.text, "bold yellow"), *(plain(f"  {line}") for line in stop.all_lines))


def ended_text(session: Session) -> str:
    """Return why no task will run: all have run, or an error or the user ended the session."""
    ran, left = len(session.order), session.left
    if session.over is None or not left:
        return f"all {ran} tasks have run"
    return f"the session is over ({session.over}): {ran} of {ran + left} tasks have run"


def place_view(session: Session) -> Group:
    """Return the session's position in three lines: the next task, its source code, and the session's state."""
    task = session.current
    if task is None:
        return Group(plain(f"  {ended_text(session)}", "dim"))
    lines = [plain(f"> {told(session).describe(task, len(session.order))}", "bold")]
    code = _code(task.source)
    if code:
        lines.append(Text.assemble("-> ", plain(code)))
    ran, nbytes = len(session.order), waiting_bytes(session)
    state = f"{ran} of {ran + session.left} tasks have run under {session.policy}, {len(session.ready)} ready"
    if nbytes is not None:
        state += f", {size_text(nbytes)} of gradients wait"
    lines.append(plain(f"   {state}", "dim"))
    return Group(*lines)


def where_view(session: Session, task: Task) -> Group:
    """Return a task with the module calls around it and its source line."""
    graph = session.graph
    lines = [plain(f"> {told(session).describe(task)}", "bold")]
    for depth, call_id in enumerate(reversed(calls_of(graph, task.id))):
        call = graph.calls[call_id]
        nth = f", call {call.index + 1} of it" if call.index else ""
        name = f"{module_name(call.path)} ({call.class_name})" if call.path else call.class_name
        lines.append(plain(f"  {'  ' * depth}in {name}{nth}", "dim"))
    source = task.source
    if source is not None:
        lines.append(plain(f"  {source.file}:{source.line} in {source.function}", "dim"))
        if code := _code(source):
            lines.append(Text.assemble("-> ", plain(code)))
    elif not graph.calls:
        lines.append(plain("  modules and source lines are unknown, because the forward was not captured", "dim"))
    return Group(*lines)


def source_view(source: Source) -> Group:
    """Return the source code around a line."""
    above = min(_ABOVE, source.line - 1)
    lines = source.code(above, _BELOW)
    if not lines:
        return Group(plain(f"the source of {source.file} cannot be read"))
    first = source.line - above
    shown = [plain(f"{source.file}, in {source.function}", "dim")]
    for number, line in enumerate(lines, first):
        mark, style = ("->", "bold") if number == source.line else ("  ", "")
        shown.append(Text.assemble(plain(f"{number:5} {mark} ", "dim"), plain(line.expandtabs(4), style)))
    return Group(*shown)


def gradients_table(gradients: Sequence[Tensor | None], inputs: Sequence[TensorMeta]) -> RenderableType:
    """Return the gradients waiting for a task, with statistics. Synchronizes with an accelerator."""
    if not inputs:
        return plain("  it has no inputs")
    found = [None if each is None else statistics(each, "cheap") for each in gradients]
    return _statistics_table("input", inputs, found)


def recorded_table(what: str, gradients: Sequence[RecordedGradient | None]) -> RenderableType:
    """Return a task's inputs or outputs as recorded in the trace."""
    metas = [None if each is None else each.meta for each in gradients]
    found = [None if each is None else each.statistics for each in gradients]
    if any(found):
        return _statistics_table(what, metas, found)
    made = table(what, "gradient")
    for number, meta in enumerate(metas):
        made.add_row(str(number), plain("none" if meta is None else meta))
    return made


def _statistics_table(
    what: str, metas: Sequence[TensorMeta | None], found: Sequence[Statistics | None]
) -> RenderableType:
    numbers = ("min", "max", "mean", "norm", "NaN", "inf", "zero")
    made = table(what, "gradient", *numbers, right=numbers)
    for number, (meta, each) in enumerate(zip(metas, found, strict=True)):
        if each is None:
            made.add_row(str(number), "none" if meta is None else plain(f"not yet computed ({meta})", "dim"))
            continue
        shown = TensorMeta(each.shape, each.dtype, each.device)
        if each.unavailable is not None:
            made.add_row(str(number), plain(shown), plain(each.unavailable, "dim"))
            continue
        values = (each.min, each.max, each.mean, each.norm)
        floats = ["–" if value is None else f"{value:.4g}" for value in values]
        bad = [Text(f"{count:,}", style="bold red" if count else "dim") for count in _counts(each)]
        made.add_row(str(number), plain(shown), *floats, *bad, f"{each.zero_count or 0:,}")
    if any(each is not None and any(_counts(each)) for each in found):
        return Group(made, plain("min, max, mean and norm cover the finite elements only", "dim"))
    return made


def _counts(found: Statistics) -> tuple[int, int]:
    return found.nan_count or 0, found.inf_count or 0


def queue_table(session: Session) -> RenderableType:
    """Return the ready queue in the order in which it runs if no task is added, and why its first task is next."""
    entries = session.ready
    if not entries:
        return plain("no task is ready: all have run" if not session.left else "no task is ready")
    made = table("task", "module or parameter", "line", "inputs", "runs", right=("inputs", "runs"))
    places = _places(session)
    for index, entry in enumerate(entries):
        task = entry.task
        style = "bold" if not index else ""
        made.add_row(
            plain(task.short_name, style),
            plain(whose(session.graph, task), style),
            plain(task.source.short if task.source else "", style),
            _waiting_text(session, task),
            _nth(places, task.id),
        )
    count = len(entries)
    first = "it is the only ready task" if count == 1 else f"the first of {count} under {session.policy}"
    return Group(made, plain(f"{entries[0].task.short_name} is next: {first}", "dim"))


def _places(session: Session) -> dict[int, int]:
    """Return each task's position in this run, as far as it is known."""
    return {task_id: place for place, task_id in enumerate(run_of(session))}


def _nth(places: dict[int, int], task_id: int) -> str:
    return nth(places[task_id] + 1) if task_id in places else ""


def _named(places: dict[int, int], task: Task) -> str:
    """Return a task's name and position, such as `Addmm, 53rd`."""
    return ", ".join(filter(None, (task.short_name, _nth(places, task.id))))


def tasks_table(session: Session, tasks: Sequence[Task]) -> RenderableType:
    made = table("task", "module or parameter", "line", "state")
    places, ran = _places(session), len(session.order)
    ready = {entry.task.id for entry in session.ready}
    for task in tasks:
        place = places.get(task.id)
        runs = "" if place is None else f"{'ran' if place < ran else 'will run'} {nth(place + 1)}"
        state = (
            "not needed"
            if session.needed is not None and task.id not in session.needed
            else f"ready, {runs}".rstrip(", ")
            if task.id in ready
            else runs or "waiting"
        )
        made.add_row(
            plain(task.short_name),
            plain(whose(session.graph, task)),
            plain(task.source.short if task.source else ""),
            state,
        )
    return made


def stops_table(stops: Iterable[PromptStop], session: Session) -> RenderableType:
    """Return the breakpoints and watchpoints as a table."""
    made = table("number", "kind", "place or condition", "enabled", "hits", "tasks", right=("number", "hits", "tasks"))
    for each in stops:
        entry = each.entry
        tasks = "pending" if entry is None else "any" if entry.tasks is None else f"{len(entry.tasks):,}"
        made.add_row(
            str(each.number),
            each.kind + (", once" if each.once else ""),
            plain(each.text if entry is None else entry_text(entry, session)),
            "yes" if (each if entry is None else entry).enabled else "no",
            "" if entry is None else f"{entry.hits:,}",
            tasks,
        )
    return made


def entry_text(entry: Entry, session: Session) -> str:
    """Return the text of a stop. A breakpoint set by a task's id is described by its task."""
    if entry.tasks is not None and len(entry.tasks) == 1 and entry.text.startswith("#"):
        return told(session).describe(next(iter(entry.tasks)))
    return entry.text


def branches_table(branches: Sequence[Branch]) -> RenderableType:
    made = table("", "branch", "tasks", "policy", "forked", "edits", right=("branch", "tasks", "edits"))
    for branch in branches:
        parted = "" if branch.parent is None else f"from {branch.parent} after {branch.forked_at:,}"
        made.add_row(
            ">" if branch.is_current else "",
            str(branch.number),
            str(len(branch.order)),
            plain(branch.policy),
            parted,
            str(len(branch.edits)),
        )
    return made


def saved_table(saved: Sequence[SavedTensor], session: Session) -> RenderableType:
    """Return the saved tensors of tasks as a table."""
    made = table("task", "slot", "tensor", "storage", "made by", "", right=("storage",))
    graph, places = session.graph, _places(session)
    for each in saved:
        task = graph.tasks[each.task]
        made_by = f"parameter {each.parameter}" if each.parameter else ""
        if not made_by and each.made_by is not None:
            made_by = _named(places, graph.tasks[each.made_by])
        notes = [
            *(["modified in place since"] if each.version is None else []),
            *(["also held elsewhere"] if each.held else []),
        ]
        made.add_row(
            plain(_named(places, task)),
            plain(each.slot),
            plain(TensorMeta(each.shape, each.dtype, each.device)),
            "" if each.storage_bytes is None else size_text(each.storage_bytes),
            plain(made_by),
            ", ".join(notes),
        )
    return made


def task_facts(session: Session, task: Task) -> RenderableType:
    """Return a table of a task's operation, device, neighbours, state, hooks and edits."""
    graph = session.graph
    made = table("", "")
    made.show_header = False
    operation = task.operation
    if operation is not None:
        made.add_row("forward", plain(operation.name))
    made.add_row("sequence number", "the maximum, as for all leaf tasks" if task.is_leaf else str(task.sequence_nr))
    made.add_row("runs on", plain(task.device))
    froms = sorted({edge.task for edge in graph.in_edges[task.id]})
    tos = sorted({edge.next_task for edge in graph.out_edges[task.id]})
    made.add_row("inputs from", _tasks(session, froms) if froms else plain("the caller, because it is a root"))
    if not task.is_leaf:
        made.add_row("outputs to", _tasks(session, tos) if tos else plain("no task"))
    record = None if session.trace is None else session.trace.of(task)
    made.add_row("state", plain(_state(session, task, record)))
    if record is not None:
        if record.hooks:
            made.add_row("hooks", plain(", ".join(hook.name for hook in record.hooks)))
        if record.edits:
            made.add_row("edited", plain(f"{counted(len(record.edits), 'input')}, by the user before it ran"))
    return made


_MOST_NAMED = 6  # neighbours


def _tasks(session: Session, ids: Sequence[int]) -> Text:
    places = _places(session)
    names = "; ".join(_named(places, session.graph.tasks[task_id]) for task_id in ids[:_MOST_NAMED])
    return plain(names + (f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""))


def _state(session: Session, task: Task, record: TaskRecord | None) -> str:
    current = session.current
    if current is not None and current.id == task.id:
        return "next"
    if task.id in session.order:
        text = f"ran {nth(list(session.order).index(task.id) + 1)}"
        if record is None:
            return text
        elapsed = "" if record.elapsed_ns is None else f", in {record.elapsed_ns / 1e3:,.1f} µs"
        return f"{text}{elapsed}: {record.reason}"
    if any(entry.task.id == task.id for entry in session.ready):
        return "ready"
    if session.needed is not None and task.id not in session.needed:
        return "not needed: no path leads from it to inputs="
    ran = set(session.order)
    missing = sum(edge.task not in ran for edge in session.graph.in_edges[task.id])
    return f"waits for {counted(missing, 'more gradient')}"


def memory_table(session: Session) -> RenderableType:
    """Return a table of the memory that this backward keeps alive."""
    made = table("bytes", "kind", right=("bytes",))
    nbytes = waiting_bytes(session)
    made.add_row("unknown" if nbytes is None else size_text(nbytes), "gradients in input buffers")
    ran = set(session.order)
    storages = {
        each.storage: each.storage_bytes
        for each in session.graph.saved
        if each.task not in ran and each.storage is not None and each.storage_bytes is not None
    }
    made.add_row(size_text(sum(storages.values())), "saved tensors of tasks that have not run")
    history = session.history if isinstance(session, Stepper) else None
    if history is not None:
        reach = "the start" if not history.reach else f"the {nth(history.reach + 1)} task"
        made.add_row(
            size_text(history.nbytes),
            f"held to undo tasks back to {reach} ({size_text(history.gradient_bytes)} of gradients, "
            f"{size_text(history.saved_bytes)} of saved tensors)",
        )
    for device in sorted(session.graph.devices, key=str):
        # The CPU has no allocator statistics.
        counter = None if device.type == "cpu" else getattr(torch.get_device_module(device), "memory_allocated", None)
        if counter is not None:
            made.add_row(size_text(counter(device)), f"allocated on {device} in total")
    return made


def waiting_bytes(session: Session) -> int | None:
    """Return the bytes of all gradients in input buffers, counting each storage once.

    Return None if the engine shows only the input buffer of the current task.
    """
    ran = set(session.order)
    storages: dict[int, int] = {}
    try:
        for task in session.graph.tasks:
            if task.id not in ran:
                for gradient in session.waiting(task):
                    storage = None if gradient is None else storage_of(gradient)
                    if storage is not None:
                        storages[storage.address] = storage.nbytes
    except (NotImplementedError, RuntimeError):  # the native engine; a session that is over
        return None
    return sum(storages.values())


def _waiting_text(session: Session, task: Task) -> str:
    try:
        gradients = session.waiting(task)
    except (NotImplementedError, RuntimeError):
        return ""
    storages = (storage_of(each) for each in gradients if each is not None)
    return size_text(sum(each.nbytes for each in storages if each is not None))


def _code(source: Source | None) -> str:
    lines = () if source is None else source.code()
    return lines[0].strip() if lines else ""
