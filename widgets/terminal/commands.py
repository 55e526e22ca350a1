"""Commands of the prompt: inspect, run, undo, change, stop and save. `do_VERB` runs the verb of that name."""

from __future__ import annotations

import pprint
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ...engine.planning.policies import POLICIES
from ...engine.recording.perfetto import ENDINGS
from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.verbs import expect_count
from ...inspector.text.sizes_and_counts import counted
from ..deck.save_deck import save_picture
from ..deck.task_and_stop_syntax import told
from . import tables as tables
from .console import Interrupt, one_number, plain, say, show, step_words
from .prompt_session import Debuggee, error_text, statements
from .stops import read_break, read_watch

_MOST_FOUND = 50


def do_zero(at: Debuggee, arg: str) -> None:
    task = at.task_or_current(arg)
    at.session.zero(task)
    at.show_gradients(task)


def do_scale(at: Debuggee, arg: str) -> None:
    factor, task = at.factor(arg)
    at.session.scale(factor, task)
    at.show_gradients(task)


def do_clip(at: Debuggee, arg: str) -> None:
    norm, task = at.factor(arg)
    at.session.clip(norm, task)
    at.show_gradients(task)


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


def do_queue(at: Debuggee, arg: str) -> None:
    show(tables.queue_table(at.session))


def do_find(at: Debuggee, arg: str) -> None:
    text = arg.lower()
    graph = at.session.graph
    found = [task for task in graph.tasks if text in graph.describe(task).lower()]
    if not found:
        raise ValueError(f"no task has {arg!r} in its name, module, parameter or source line")
    show(tables.tasks_table(at.session, found[:_MOST_FOUND]))
    if len(found) > _MOST_FOUND:
        say(f"and {len(found) - _MOST_FOUND:,} more", style="dim")


def do_print(at: Debuggee, arg: str) -> None:
    say(*repr(at.value(arg)).splitlines())


def do_pp(at: Debuggee, arg: str) -> None:
    say(*pprint.pformat(at.value(arg)).splitlines())


def do_saved(at: Debuggee, arg: str) -> None:
    task = at.task_to_show(arg)
    found = [each for each in at.session.graph.saved if each.task == task.id]
    if found:
        show(tables.saved_table(found, at.session))
    elif task.id in at.session.order:
        say(f"{told(at.session).describe(task)} has run and released its saved tensors")
    else:
        say(f"{told(at.session).describe(task)} has no saved tensors that can be shown")


def do_memory(at: Debuggee, arg: str) -> None:
    show(tables.memory_table(at.session))


def do_slowest(at: Debuggee, arg: str) -> None:
    if at.session.trace is None:
        raise ValueError('this session records no times; open it with trace="cheap"')
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


def do_over(at: Debuggee, arg: str) -> None:
    at.run(at.session.step_over)


def do_out(at: Debuggee, arg: str) -> None:
    at.run(at.session.step_out)


def do_until(at: Debuggee, arg: str) -> None:
    task = at.task(arg)
    at.run(lambda: at.session.run_to(task))


def do_continue(at: Debuggee, arg: str) -> bool:
    at.run(at.session.run)
    return False


def do_policy(at: Debuggee, arg: str) -> None:
    if arg:
        at.session.policy = arg if arg.partition("(")[0] in POLICIES else at.value(arg)
    say(f"policy: {at.session.policy}; available: {', '.join(POLICIES)}")


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


def do_enable(at: Debuggee, arg: str) -> None:
    for number in map(one_number, arg.replace(",", " ").split()):
        at.stops.enable(number, True)


def do_disable(at: Debuggee, arg: str) -> None:
    for number in map(one_number, arg.replace(",", " ").split()):
        at.stops.enable(number, False)


def do_delete(at: Debuggee, arg: str) -> None:
    for number in map(one_number, arg.replace(",", " ").split()):
        at.stops.delete(number)


def do_stop(at: Debuggee, arg: str) -> None:
    say("no task runs while the prompt waits; Ctrl-C stops a run before its next task, close ends the session")


def _add_stop(at: Debuggee, kind: Literal["break", "watch"], text: str, make: Any, once: bool = False) -> None:
    stop = at.stops.add(kind, text.strip(), make, once=once)
    entry = stop.entry
    assert entry is not None, "PromptStops.add sets the entry or raises"
    tasks = "any task" if entry.tasks is None else counted(len(entry.tasks), "task")
    what = "breakpoint" if kind == "break" else "watchpoint"
    say(f"{what} {stop.number}: {tables.entry_text(entry, at.session)}, at {tasks}")
