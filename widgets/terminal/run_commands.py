"""Commands that run tasks, and that take them back."""

from __future__ import annotations

from ...engine.orders.policies import POLICIES
from ...engine.stops.stopped import Stop
from ...engine.words.phrases import counted
from . import prompt_tables as tables
from .prompt_arguments import count, nothing, number
from .prompt_commands import Commands
from .prompt_terminal import Interrupt, say, show
from .prompt_text import step_words


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
        which = number(arg, "branch N")
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
