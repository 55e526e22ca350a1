"""Commands that look, and change nothing."""

from __future__ import annotations

import pprint

from ..deck.typed_tasks import told
from . import prompt_tables as tables
from .prompt_arguments import nothing, something
from .prompt_commands import Commands
from .prompt_terminal import say, show

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
