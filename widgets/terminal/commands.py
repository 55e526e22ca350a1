"""The commands of the prompt: look, run, undo, change, stop, save."""

from __future__ import annotations

import pprint
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ...engine.planning.policies import POLICIES
from ...engine.recording.perfetto import ENDINGS
from ...engine.session.breakpoints.breakpoints import Stop
from ...inspector.text.sizes_and_counts import counted
from ..deck.save_deck import save_picture
from ..deck.task_and_stop_syntax import told
from . import tables as tables
from .console import Interrupt, one_number, plain, say, show, step_words
from .prompt_session import Debuggee, said, statements
from .stops import read_break, read_watch

_MOST_FOUND = 50


class Commands:
    """A method `do_VERB` for each verb of the prompt; it gets the argument, and returns True to leave the prompt."""

    def __init__(self, at: Debuggee) -> None:
        self.at = at

    def do_zero(self, arg: str) -> None:
        task = self.at.about(arg)
        self.at.session.zero(task)
        self.at.show_gradients(task)

    def do_scale(self, arg: str) -> None:
        factor, task = self.at.factor(arg)
        self.at.session.scale(factor, task)
        self.at.show_gradients(task)

    def do_clip(self, arg: str) -> None:
        norm, task = self.at.factor(arg)
        self.at.session.clip(norm, task)
        self.at.show_gradients(task)

    def do_replace(self, arg: str) -> None:
        task = self.at.about("")
        self.at.session.replace(self.at.value(arg))
        self.at.show_gradients(task)

    def do_restore(self, arg: str) -> None:
        task = self.at.about(arg)
        self.at.direct("restore").restore(task)
        self.at.show_gradients(task)

    def do_execute(self, arg: str) -> None:
        code = statements(arg)
        if code is None:
            value = self.at.value(arg)
            if value is not None:
                say(*repr(value).splitlines())
            return
        try:
            self.at.names.run(code, self.at.own_names())
        except Exception as error:
            raise ValueError(said(error)) from error

    def do_save(self, arg: str) -> None:
        path = Path(arg).expanduser()
        session = self.at.session
        save: dict[str, Callable[[Path], Path]] = {
            ".json": lambda path: session.result().save(path),
            ".html": lambda path: session.result().save_html(path),
            ".svg": lambda path: save_picture(session, path),
            ".png": lambda path: save_picture(session, path),
        }
        if path.name.endswith(ENDINGS):
            save[path.suffix] = lambda path: session.result().save_perfetto(path)
        if path.suffix not in save:
            raise ValueError(f"save writes .json, .html, .svg and .png, and can't tell what {arg} is to be")
        say(f"saved in {save[path.suffix](path)}")

    def do_close(self, arg: str) -> bool:
        self.at.session.close()
        return True

    def do_quit(self, arg: str) -> bool:
        return True

    def do_where(self, arg: str) -> None:
        task = self.at.about(arg)
        show(tables.where_view(self.at.session, task))
        self.at.show_gradients(task)

    def do_list(self, arg: str) -> None:
        task = self.at.looked_at(arg)
        if task.source is None:
            about = told(self.at.session).describe(task)
            raise ValueError(f"the line that made {about} is not known: ts.capture() around the forward sees it")
        show(tables.source_view(task.source))

    def do_info(self, arg: str) -> None:
        if arg == "stops":
            show(tables.stops_table(list(self.at.stops), self.at.session))
            return
        task = self.at.looked_at(arg)
        show(tables.where_view(self.at.session, task))
        show(tables.task_facts(self.at.session, task))
        record = None if self.at.session.trace is None else self.at.session.trace.of(task)
        if record is None and task.id in self.at.session.order:
            say("  what it got and gave was not recorded", style="dim")
            return
        if record is None:
            self.at.show_gradients(task)
            return
        show(tables.recorded_table("got", record.inputs))
        if record.outputs:
            show(tables.recorded_table("gave", record.outputs))

    def do_queue(self, arg: str) -> None:
        show(tables.queue_table(self.at.session))

    def do_find(self, arg: str) -> None:
        text = arg.lower()
        graph = self.at.session.graph
        found = [task for task in graph.tasks if text in graph.describe(task).lower()]
        if not found:
            raise ValueError(f"no task has {arg!r} in its name, module, parameter or line")
        show(tables.tasks_table(self.at.session, found[:_MOST_FOUND]))
        if len(found) > _MOST_FOUND:
            say(f"and {len(found) - _MOST_FOUND:,} more", style="dim")

    def do_print(self, arg: str) -> None:
        say(*repr(self.at.value(arg)).splitlines())

    def do_pp(self, arg: str) -> None:
        say(*pprint.pformat(self.at.value(arg)).splitlines())

    def do_saved(self, arg: str) -> None:
        task = self.at.looked_at(arg)
        found = [each for each in self.at.session.graph.saved if each.task == task.id]
        if found:
            show(tables.saved_table(found, self.at.session))
        elif task.id in self.at.session.order:
            say(f"{told(self.at.session).describe(task)} has run, and keeps nothing any more")
        else:
            say(f"{told(self.at.session).describe(task)} keeps no tensor that can be looked at")

    def do_memory(self, arg: str) -> None:
        show(tables.memory_table(self.at.session))

    def do_check(self, arg: str) -> None:
        say(*str(self.at.session.check(self.at.looked_at(arg))).splitlines())

    def do_step(self, arg: str) -> None:
        arg, device = step_words(arg)
        count, task = (int(arg), None) if arg.isdecimal() else (1, self.at.task(arg) if arg else None)
        if device is not None:
            self.at.session.next_on(device)  # raises before anything runs

        def steps(interrupt: Interrupt) -> Stop | None:
            stop = None
            for _ in range(count):
                ran = len(self.at.session.order)
                self.at.session.step(task, device=device)
                if (together := len(self.at.session.order) - ran) > 1:
                    say(f"{counted(together, 'task')} ran as one", style="dim")
                stop = self.at.session.stop_here()
                if stop is not None or interrupt.asked or not self.at.session.left:
                    break
            return stop

        self.at.go(steps, stops_itself=True)

    def do_over(self, arg: str) -> None:
        self.at.run(self.at.session.step_over)

    def do_out(self, arg: str) -> None:
        self.at.run(self.at.session.step_out)

    def do_until(self, arg: str) -> None:
        task = self.at.task(arg)
        self.at.run(lambda: self.at.session.run_to(task))

    def do_continue(self, arg: str) -> bool:
        self.at.run(self.at.session.run)
        return False

    def do_policy(self, arg: str) -> None:
        if arg:
            self.at.session.policy = arg if arg.partition("(")[0] in POLICIES else self.at.value(arg)
        say(f"{self.at.session.policy} picks; known are {', '.join(POLICIES)}")

    def do_back(self, arg: str) -> None:
        steps = one_number(arg) if arg else 1
        self.at.direct("back").back(steps)
        self.at.show_stop(None)

    def do_goto(self, arg: str) -> None:
        task = self.at.task(arg)
        session = self.at.direct("goto")
        self.at.run(lambda: session.goto(task))

    def do_branch(self, arg: str) -> None:
        if not arg:
            self.do_branches("")
            return
        which = one_number(arg)
        session = self.at.direct("branch")
        self.at.run(lambda: session.goto(branch=which))

    def do_branches(self, arg: str) -> None:
        session = self.at.direct("branches")
        if len(session.branches) > 1:
            say(*str(session.compare_branches()).splitlines())
        else:
            show(tables.branches_table(session.branches))

    def do_break(self, arg: str) -> None:
        if arg:
            self._ask("break", arg, read_break(arg, self.at.test))
        else:
            self.do_stops("")

    def do_tbreak(self, arg: str) -> None:
        self._ask("break", arg, read_break(arg, self.at.test), once=True)

    def do_watch(self, arg: str) -> None:
        self._ask("watch", arg, read_watch(arg, self.at.watch_test))

    def do_stops(self, arg: str) -> None:
        found = list(self.at.stops)
        show(
            tables.stops_table(found, self.at.session)
            if found
            else plain("no breakpoint or watchpoint; help break, help watch")
        )

    def do_enable(self, arg: str) -> None:
        for number in map(one_number, arg.replace(",", " ").split()):
            self.at.stops.enable(number, True)

    def do_disable(self, arg: str) -> None:
        for number in map(one_number, arg.replace(",", " ").split()):
            self.at.stops.enable(number, False)

    def do_delete(self, arg: str) -> None:
        for number in map(one_number, arg.replace(",", " ").split()):
            self.at.stops.delete(number)

    def do_stop(self, arg: str) -> None:
        say("nothing runs while the prompt waits; Ctrl-C stops a run before its next task, close ends the session")

    def _ask(self, kind: Literal["break", "watch"], text: str, make: Any, once: bool = False) -> None:
        asked = self.at.stops.ask(kind, text.strip(), make, once=once)
        entry = asked.entry
        assert entry is not None, "it was just made"
        tasks = "any task" if entry.tasks is None else counted(len(entry.tasks), "task")
        what = "breakpoint" if kind == "break" else "watchpoint"
        say(f"{what} {asked.number}: {tables.entry_text(entry, self.at.session)}, at {tasks}")
