"""Commands of the prompt: inspect, run, undo, change, stop and save. `do_VERB` runs the verb of that name."""

from __future__ import annotations

import pprint
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType

from ...engine.planning.policies import find_policy, policy_names
from ...engine.recording.perfetto import ENDINGS
from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.verbs import expect_count
from ...inspector.text.sizes_and_counts import counted
from ..deck.save_deck import save_picture
from ..deck.task_and_stop_syntax import told
from . import tables as tables
from .console import Interrupt, one_number, plain, say, show, step_words
from .expressions import statements
from .prompt_session import Debuggee, error_text
from .stops import PromptStops, Session, read_break, read_watch

_MOST_FOUND = 50


def do_zero(at: Debuggee, arg: str) -> None:
    task = at.task_or_current(arg)
    at.session.zero(task)
    at.show_gradients(task)


def _scale_or_clip(verb: Literal["scale", "clip"], at: Debuggee, arg: str) -> None:
    number, task = at.factor(arg)
    getattr(at.session, verb)(number, task)
    at.show_gradients(task)


do_scale, do_clip = partial(_scale_or_clip, "scale"), partial(_scale_or_clip, "clip")


def do_replace(at: Debuggee, arg: str) -> None:
    task = at.task_or_current("")
    at.session.replace(at.value(arg))
    at.show_gradients(task)


def do_restore(at: Debuggee, arg: str) -> None:
    task = at.task_or_current(arg)
    at.direct("restore").restore(task)
    at.show_gradients(task)


def do_execute(at: Debuggee, arg: str) -> None:
    code = statements(arg)
    if code is None:
        value = at.value(arg)
        if value is not None:
            say(*repr(value).splitlines())
        return
    try:
        at.names.run(code, at.own_names())
    except Exception as error:
        raise ValueError(error_text(error)) from error


def do_save(at: Debuggee, arg: str) -> None:
    path = Path(arg).expanduser()
    session = at.session
    save: dict[str, Callable[[Path], Path]] = {
        ".json": lambda path: session.result().save(path),
        ".html": lambda path: session.result().save_html(path),
        ".svg": lambda path: save_picture(session, path),
        ".png": lambda path: save_picture(session, path),
    }
    if path.name.endswith(ENDINGS):
        save[path.suffix] = lambda path: session.result().save_perfetto(path)
    if path.suffix not in save:
        raise ValueError(f"unknown file type {arg!r}; expected a name ending in .json, .html, .svg or .png")
    say(f"saved in {save[path.suffix](path)}")


def do_close(at: Debuggee, arg: str) -> bool:
    at.session.close()
    return True


def do_quit(at: Debuggee, arg: str) -> bool:
    return True


def do_where(at: Debuggee, arg: str) -> None:
    task = at.task_or_current(arg)
    show(tables.where_view(at.session, task))
    at.show_gradients(task)


def do_list(at: Debuggee, arg: str) -> None:
    task = at.task_to_show(arg)
    if task.source is None:
        about = told(at.session).describe(task)
        raise ValueError(
            f"the source line of {about} is unknown; run the forward under ts.capture() to record source lines"
        )
    show(tables.source_view(task.source))


def do_info(at: Debuggee, arg: str) -> None:
    if arg == "stops":
        show(tables.stops_table(list(at.stops), at.session))
        return
    task = at.task_to_show(arg)
    show(tables.where_view(at.session, task))
    show(tables.task_facts(at.session, task))
    record = None if at.session.trace is None else at.session.trace.of(task)
    if record is None and task.id in at.session.order:
        say("  its inputs and outputs were not recorded", style="dim")
        return
    if record is None:
        at.show_gradients(task)
        return
    show(tables.recorded_table("input", record.inputs))
    if record.outputs:
        show(tables.recorded_table("output", record.outputs))


def _show_table(table: Callable[[Session], RenderableType], at: Debuggee, arg: str) -> None:
    show(table(at.session))


do_queue, do_memory = partial(_show_table, tables.queue_table), partial(_show_table, tables.memory_table)


def do_find(at: Debuggee, arg: str) -> None:
    text = arg.lower()
    graph = at.session.graph
    found = [task for task in graph.tasks if text in graph.describe(task).lower()]
    if not found:
        raise ValueError(f"no task has {arg!r} in its name, module, parameter or source line")
    show(tables.tasks_table(at.session, found[:_MOST_FOUND]))
    if len(found) > _MOST_FOUND:
        say(f"and {len(found) - _MOST_FOUND:,} more", style="dim")


def _print(as_text: Callable[[object], str], at: Debuggee, arg: str) -> None:
    say(*as_text(at.value(arg)).splitlines())


do_print, do_pp = partial(_print, repr), partial(_print, pprint.pformat)


def do_saved(at: Debuggee, arg: str) -> None:
    task = at.task_to_show(arg)
    found = [each for each in at.session.graph.saved if each.task == task.id]
    if found:
        show(tables.saved_table(found, at.session))
    elif task.id in at.session.order:
        say(f"{told(at.session).describe(task)} has run and released its saved tensors")
    else:
        say(f"{told(at.session).describe(task)} has no saved tensors that can be shown")


def do_slowest(at: Debuggee, arg: str) -> None:
    if at.session.trace is None:
        raise ValueError(
            'this session records no times: pass trace="cheap" to ts.debug, or add a breakpoint to tapescope debug, '
            "which records none with watchpoints alone"
        )
    found = at.session.trace.slowest(one_number(arg) if arg else 5)
    show(found.table)
    say(*found.sentences)


def do_check(at: Debuggee, arg: str) -> None:
    say(*str(at.session.check(at.task_to_show(arg))).splitlines())


def do_step(at: Debuggee, arg: str) -> None:
    arg, device = step_words(arg)
    count, task = (int(arg), None) if arg.isdecimal() else (1, at.task(arg) if arg else None)
    expect_count(count)
    if device is not None:
        at.session.next_on(device)  # reports an unknown device before any task runs

    def steps(interrupt: Interrupt) -> Stop | None:
        stop = None
        # Run task by task, to check for stops and Ctrl-C in between.
        for _ in range(count):
            ran = len(at.session.order)
            at.session.step(task, device=device)
            if (batched := len(at.session.order) - ran) > 1:
                say(f"{counted(batched, 'task')} ran as one batch", style="dim")
            stop = at.session.stop_here()
            if stop is not None or interrupt.pressed or not at.session.left:
                break
        return stop

    at.go(steps, stops_itself=True)


def _step_over_or_out(verb: Literal["step_over", "step_out"], at: Debuggee, arg: str) -> None:
    at.run(getattr(at.session, verb))


do_over, do_out = partial(_step_over_or_out, "step_over"), partial(_step_over_or_out, "step_out")


def do_until(at: Debuggee, arg: str) -> None:
    task = at.task(arg)
    at.run(lambda: at.session.run_to(task))


def do_continue(at: Debuggee, arg: str) -> bool:
    at.run(at.session.run)
    return False


def do_policy(at: Debuggee, arg: str) -> None:
    if arg:
        named = arg.partition("(")[0] in policy_names()
        if not named and arg.isidentifier() and arg not in at.known():
            find_policy(arg)  # raises, and lists the names
        at.session.policy = arg if named else at.value(arg)
    say(f"policy: {at.session.policy}; available: {', '.join(policy_names())}")


def do_back(at: Debuggee, arg: str) -> None:
    steps = one_number(arg) if arg else 1
    at.direct("back").back(steps)
    at.show_stop(None)


def do_goto(at: Debuggee, arg: str) -> None:
    task = at.task(arg)
    session = at.direct("goto")
    at.run(lambda: session.goto(task))


def do_branch(at: Debuggee, arg: str) -> None:
    if not arg:
        do_branches(at, "")
        return
    which = one_number(arg)
    session = at.direct("branch")
    at.run(lambda: session.goto(branch=which))


def do_branches(at: Debuggee, arg: str) -> None:
    session = at.direct("branches")
    if len(session.branches) > 1:
        say(*str(session.compare_branches()).splitlines())
    else:
        show(tables.branches_table(session.branches))


def do_break(at: Debuggee, arg: str) -> None:
    if arg:
        _add_stop(at, "break", arg, read_break(arg, at.test))
    else:
        do_stops(at, "")


def do_tbreak(at: Debuggee, arg: str) -> None:
    _add_stop(at, "break", arg, read_break(arg, at.test), once=True)


def do_watch(at: Debuggee, arg: str) -> None:
    _add_stop(at, "watch", arg, read_watch(arg, at.watch_test))


def do_stops(at: Debuggee, arg: str) -> None:
    found = list(at.stops)
    show(
        tables.stops_table(found, at.session)
        if found
        else plain("no breakpoints or watchpoints; see help break, help watch")
    )


def _change_stops(change: Callable[[PromptStops, int], None], at: Debuggee, arg: str) -> None:
    for number in map(one_number, arg.replace(",", " ").split()):
        change(at.stops, number)


do_enable = partial(_change_stops, partial(PromptStops.enable, on=True))
do_disable = partial(_change_stops, partial(PromptStops.enable, on=False))
do_delete = partial(_change_stops, PromptStops.delete)


def do_stop(at: Debuggee, arg: str) -> None:
    say("no task runs while the prompt waits; Ctrl-C stops a run before its next task, close ends the session")


def _add_stop(at: Debuggee, kind: Literal["break", "watch"], text: str, make: Any, once: bool = False) -> None:
    stop = at.stops.add(kind, text.strip(), make, once=once)
    entry = stop.entry
    assert entry is not None, "PromptStops.add sets the entry or raises"
    tasks = "any task" if entry.tasks is None else counted(len(entry.tasks), "task")
    what = "breakpoint" if kind == "break" else "watchpoint"
    say(f"{what} {stop.number}: {tables.entry_text(entry, at.session)}, at {tasks}")
