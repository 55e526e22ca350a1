"""The commands of the prompt: look, run, undo, change, stop, save."""

from __future__ import annotations

import pprint
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from ...engine.planning.policies import POLICIES
from ...engine.recording.perfetto import ENDINGS
from ...engine.session.breakpoints.breakpoints import Stop
from ...inspector.text.sizes_and_counts import counted
from ..deck.save_deck import save_picture
from ..deck.task_and_stop_syntax import told
from . import tables as tables
from .console import Interrupt, count, nothing, numbers, one_number, plain, say, show, something, step_words
from .prompt_session import Debuggee, said, statements
from .stops import read_break, read_watch

Command = Callable[[str], "bool | None"]
"""Gets what stands behind it; whether it leaves the prompt. Its docstring is its help."""


class Commands:
    """A group of commands, a method `do_` each."""

    def __init__(self, at: Debuggee) -> None:
        self.at = at


def commands_of(groups: Iterable[object]) -> dict[str, Command]:
    """By name the commands of these groups."""
    return {
        name.removeprefix("do_"): getattr(group, name)
        for group in groups
        for name in dir(group)
        if name.startswith("do_")
    }


class ChangeCommands(Commands):
    """Changing gradients and variables."""

    def do_zero(self, arg: str) -> None:
        """zero [TASK]: make the gradients that wait for the task zero"""
        task = self.at.about(arg)
        self.at.session.zero(task)
        self.at.show_gradients(task)

    def do_scale(self, arg: str) -> None:
        """scale FACTOR [TASK]: multiply the gradients that wait for the task"""
        factor, task = self.at.factor(arg, "scale FACTOR [TASK]")
        self.at.session.scale(factor, task)
        self.at.show_gradients(task)

    def do_clip(self, arg: str) -> None:
        """clip NORM [TASK]: scale the gradients that wait for the task, so that their norm is at most that"""
        norm, task = self.at.factor(arg, "clip NORM [TASK]")
        self.at.session.clip(norm, task)
        self.at.show_gradients(task)

    def do_replace(self, arg: str) -> None:
        """replace EXPRESSION: give the current task this gradient, or these, one per input"""
        task = self.at.about("")
        self.at.session.replace(self.at.value(something(arg, "replace EXPRESSION")))
        self.at.show_gradients(task)

    def do_restore(self, arg: str) -> None:
        """restore [TASK]: undo what was changed of the gradients that wait for the task"""
        task = self.at.about(arg)
        self.at.direct("restore").restore(task)
        self.at.show_gradients(task)

    def do_execute(self, arg: str) -> None:
        """execute STATEMENT  (!STATEMENT, or just x = 3): run it among your variables, where .backward() was called

        What it assigns to is your script's. Of an expression it prints what it gives, unless that is None.
        """
        code = statements(something(arg, "!STATEMENT"))
        if code is None:
            value = self.at.value(arg)
            if value is not None:
                say(*repr(value).splitlines())
            return
        try:
            self.at.names.run(code, self.at.own_names())
        except Exception as error:
            raise ValueError(said(error)) from error


class EndCommands(Commands):
    """The end of a session, and of the prompt."""

    def do_save(self, arg: str) -> None:
        """save FILE: what has run as a trace (.json, .perfetto.json) or a page (.html), or the graph (.svg, .png)"""
        path = Path(something(arg, "save FILE")).expanduser()
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
        """close: end the session here; the tasks that are left do not run"""
        nothing(arg, "close")
        self.at.session.close()
        return True

    def do_quit(self, arg: str) -> bool:
        """quit  (q, exit, Ctrl-D): leave the prompt; the session stays as it is"""
        return True


_MOST_FOUND = 50


class LookCommands(Commands):
    """Looking at tasks, gradients, memory and source."""

    def do_where(self, arg: str) -> None:
        """where [TASK]  (w, bt): the task to come, its module calls and source line, the gradients that wait for it"""
        task = self.at.about(arg)
        show(tables.where_view(self.at.session, task))
        self.at.show_gradients(task)

    def do_list(self, arg: str) -> None:
        """list [TASK]  (l): the source around the line that made the task

        Without a task it is the one which a watchpoint has just found, else the current one; so it is for info, saved
        and check.
        """
        task = self.at.looked_at(arg)
        if task.source is None:
            about = told(self.at.session).describe(task)
            raise ValueError(f"the line that made {about} is not known: ts.capture() around the forward sees it")
        show(tables.source_view(task.source))

    def do_info(self, arg: str) -> None:
        """info [TASK | stops]  (i): all that is known of a task; or the breakpoints and watchpoints"""
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
        """queue  (ready): the ready tasks, in the order in which the policy would run them"""
        nothing(arg, "queue")
        show(tables.queue_table(self.at.session))

    def do_find(self, arg: str) -> None:
        """find TEXT: the tasks whose name, module, parameter or source line has it"""
        text = something(arg, "find TEXT").lower()
        graph = self.at.session.graph
        found = [task for task in graph.tasks if text in graph.describe(task).lower()]
        if not found:
            raise ValueError(f"no task has {arg!r} in its name, module, parameter or line")
        show(tables.tasks_table(self.at.session, found[:_MOST_FOUND]))
        if len(found) > _MOST_FOUND:
            say(f"and {len(found) - _MOST_FOUND:,} more", style="dim")

    def do_print(self, arg: str) -> None:
        """print EXPRESSION  (p): what it gives

        It can name your variables, and session, task and gradients: the current task, and what waits for it. t is
        torch, unless you have a t.
        """
        say(*repr(self.at.value(something(arg, "print EXPRESSION"))).splitlines())

    def do_pp(self, arg: str) -> None:
        """pp EXPRESSION: the same, over several lines where it is long"""
        say(*pprint.pformat(self.at.value(something(arg, "pp EXPRESSION"))).splitlines())

    def do_saved(self, arg: str) -> None:
        """saved [TASK]: what the task's node keeps from the forward"""
        task = self.at.looked_at(arg)
        found = [each for each in self.at.session.graph.saved if each.task == task.id]
        if found:
            show(tables.saved_table(found, self.at.session))
        elif task.id in self.at.session.order:
            say(f"{told(self.at.session).describe(task)} has run, and keeps nothing any more")
        else:
            say(f"{told(self.at.session).describe(task)} keeps no tensor that can be looked at")

    def do_memory(self, arg: str) -> None:
        """memory  (history): what this backward keeps alive, and what going back costs"""
        nothing(arg, "memory")
        show(tables.memory_table(self.at.session))

    def do_check(self, arg: str) -> None:
        """check [TASK]: compare the task's backward with finite differences of its forward operation

        Needs the operation's inputs: ts.capture(keep_inputs=True), tapescope debug --keep-inputs.
        """
        say(*str(self.at.session.check(self.at.looked_at(arg))).splitlines())


class RunCommands(Commands):
    """Running on."""

    def do_step(self, arg: str) -> None:
        """step [N | TASK] [on DEVICE]  (s): run one task, or N, or the ready task TASK

        Stops early for a breakpoint or watchpoint. TASK, as 53rd, may be any task of the ready queue, with the direct
        engine. On a device (`step on cuda:0`): its tasks alone, in the order of its own queue.
        """
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
        """over  (n, next, step_over): run until all tasks of the current task's module call have run

        The calls inside of it included. Where no capture saw the forward it is one task.
        """
        nothing(arg, "over")
        self.at.run(self.at.session.step_over)

    def do_out(self, arg: str) -> None:
        """out  (r, return, finish, step_out): the same for the module call around it; at the top to the end"""
        nothing(arg, "out")
        self.at.run(self.at.session.step_out)

    def do_until(self, arg: str) -> None:
        """until TASK  (u, unt, run_to): run what comes before that task

        TASK is its place in this run, 53rd or 53, as all that is said of tasks has it; or #26, the one created as that.
        """
        task = self.at.task(arg)
        self.at.run(lambda: self.at.session.run_to(task))

    def do_continue(self, arg: str) -> bool:
        """continue  (c, cont, run): run to the next breakpoint or watchpoint, or to the end

        Ctrl-C stops before the next task; a second Ctrl-C raises KeyboardInterrupt, and ends the session.
        """
        nothing(arg, "continue")
        self.at.run(self.at.session.run)
        return False

    def do_policy(self, arg: str) -> None:
        """policy [NAME]: let another policy pick from here on

        NAME is heap (PyTorch's own), bfs, dfs, ..., or a variable of yours: a Policy or a function.
        """
        if arg:
            self.at.session.policy = arg if arg.partition("(")[0] in POLICIES else self.at.value(arg)
        say(f"{self.at.session.policy} picks; known are {', '.join(POLICIES)}")


class BackCommands(Commands):
    """Going back, and between branches."""

    def do_back(self, arg: str) -> None:
        """back [N]: take back the last task, or the last N

        Going on from there with the same tasks is the same branch; anything else begins a new one.
        """
        steps = count(arg)
        self.at.direct("back").back(steps)
        self.at.show_stop(None)

    def do_goto(self, arg: str) -> None:
        """goto TASK: go back to before that task, or run to it"""
        task = self.at.task(arg)
        session = self.at.direct("goto")
        self.at.run(lambda: session.goto(task))

    def do_branch(self, arg: str) -> None:
        """branch N: go to where that branch ended; branch alone lists them"""
        if not arg:
            self.do_branches("")
            return
        which = one_number(arg, "branch N")
        session = self.at.direct("branch")
        self.at.run(lambda: session.goto(branch=which))

    def do_branches(self, arg: str) -> None:
        """branches: the ways this session went, and in what they differ"""
        nothing(arg, "branches")
        session = self.at.direct("branches")
        if len(session.branches) > 1:
            say(*str(session.compare_branches()).splitlines())
        else:
            show(tables.branches_table(session.branches))


class StopCommands(Commands):
    """What stops a run."""

    def do_break(self, arg: str) -> None:
        """break WHERE [, hit N] [, CONDITION]  (b): stop before tasks; break alone lists what there is

        WHERE is a task (53rd), a node's name (Addmm), a module (encoder.layer.3: as it is entered), a parameter (before
        its gradient is accumulated), a line (model.py:120). Names may be patterns (encoder.*.norm*). task:, kind:,
        module:, grad: and line: in front say which is meant. CONDITION is an expression, see print; break if CONDITION
        asks it before each task. hit N stops at the Nth only.
        """
        if arg:
            self._ask("break", arg, read_break(arg, self.at.test))
        else:
            self.do_stops("")

    def do_tbreak(self, arg: str) -> None:
        """tbreak WHERE ...: a breakpoint that is deleted when it has stopped a run"""
        self._ask("break", something(arg, "tbreak WHERE"), read_break(arg, self.at.test), once=True)

    def do_watch(self, arg: str) -> None:
        """watch CONDITION [at MODULE]: stop where a gradient is produced that is so

        nan, inf, zero, norm>1e3, norm<1e-8, ratio>100 (of a module's output to input gradients), upcast, shape, missing
        (a parameter has no gradient at the end), or if EXPRESSION of gradient and task. One or another: nan or inf;
        both: zero and norm<1. MODULE may be a pattern: watch norm>1e3 or ratio>100 at encoder.*
        """
        self._ask("watch", arg, read_watch(arg, self.at.watch_test))

    def do_stops(self, arg: str) -> None:
        """stops: the breakpoints and watchpoints"""
        nothing(arg, "stops")
        found = list(self.at.stops)
        show(
            tables.stops_table(found, self.at.session)
            if found
            else plain("no breakpoint or watchpoint; help break, help watch")
        )

    def do_enable(self, arg: str) -> None:
        """enable N: let it stop runs again"""
        for number in numbers(arg, "enable N"):
            self.at.stops.enable(number, True)

    def do_disable(self, arg: str) -> None:
        """disable N: it stays, and stops nothing"""
        for number in numbers(arg, "disable N"):
            self.at.stops.enable(number, False)

    def do_delete(self, arg: str) -> None:
        """delete N  (clear, cl): take a breakpoint or watchpoint away"""
        for number in numbers(arg, "delete N"):
            self.at.stops.delete(number)

    def do_stop(self, arg: str) -> None:
        """stop: nothing runs while the prompt waits; Ctrl-C stops what does"""
        nothing(arg, "stop")
        say("nothing runs while the prompt waits; Ctrl-C stops a run before its next task, close ends the session")

    def _ask(self, kind: Literal["break", "watch"], text: str, make: Any, once: bool = False) -> None:
        asked = self.at.stops.ask(kind, text.strip(), make, once=once)
        entry = asked.entry
        assert entry is not None, "it was just made"
        tasks = "any task" if entry.tasks is None else counted(len(entry.tasks), "task")
        what = "breakpoint" if kind == "break" else "watchpoint"
        say(f"{what} {asked.number}: {tables.entry_text(entry, self.at.session)}, at {tasks}")
