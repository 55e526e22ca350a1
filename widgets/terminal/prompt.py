"""A prompt in the terminal, like pdb's, over a backward: `session.interact()`, `tapehead debug SCRIPT.py`."""

from __future__ import annotations

import pprint
import sys
from cmd import Cmd
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeGuard

from ...engine.orders.policies import POLICIES
from ...engine.sessions.stepper import Stepper
from ...engine.sessions.verbs import Verbs
from ...engine.stops.stopped import Stop
from ...engine.words.phrases import counted
from ...inspector.graph.graph import Task
from ..deck.picture import save_picture
from ..deck.typed_tasks import is_typed_task, run_of, told, typed_task
from . import prompt_tables as tables
from .prompt_completion import offered, whole
from .prompt_names import Names, assigns, compiled, statements, test_of, users_frame
from .prompt_stops import PromptStops, Session, read_break, read_watch
from .prompt_terminal import Interrupt, first_interrupt, say, show, whole_words
from .prompt_text import plain, step_words
from .user_traceback import users_traceback

SHORT = {
    "s": "step",
    "n": "over",
    "next": "over",
    "step_over": "over",
    "finish": "out",
    "r": "out",
    "return": "out",
    "step_out": "out",
    "c": "continue",
    "cont": "continue",
    "run": "continue",
    "u": "until",
    "unt": "until",
    "run_to": "until",
    "w": "where",
    "bt": "where",
    "l": "list",
    "i": "info",
    "ready": "queue",
    "p": "print",
    "!": "execute",
    "b": "break",
    "cl": "delete",
    "clear": "delete",
    "history": "memory",
    "q": "quit",
    "exit": "quit",
    "EOF": "quit",
    "h": "help",
}

GROUPS = {
    "run": ("step", "over", "out", "until", "continue", "policy"),
    "go back": ("back", "goto", "branch", "branches"),
    "look": ("where", "list", "info", "queue", "find", "print", "pp", "saved", "memory", "check"),
    "stop": ("break", "tbreak", "watch", "stops", "enable", "disable", "delete", "stop"),
    "change": ("zero", "scale", "clip", "replace", "restore", "execute"),
    "end": ("save", "close", "quit", "help"),
}

REPEATED = frozenset(("step", "over", "out", "until", "continue", "back"))
"""What Enter alone does again. A change of a gradient is not among them."""


def interact(session: Verbs) -> None:
    """A prompt over a session. `quit` leaves it, and the session as it then is.

    Raises:
        RuntimeError: the session is over.
    """
    assert isinstance(session, Session)
    session._check_open()
    if _goes_back(session) and session.history is None:
        session.keep_history()
    prompt = Prompt(Names(users_frame()))
    prompt.enter(session)
    prompt.greet()
    prompt.talk()


class Prompt(Cmd):
    """The commands, a method each; its docstring is its help.

    Args:
        names: what expressions can name.
        commands: are run first, as if they had been typed.

    Attributes:
        session: what is debugged, of either engine.
        error: what a task raised, which ended the session.
    """

    prompt = "(tapehead) "
    session: Session

    def __init__(self, names: Names, commands: Sequence[str] = ()) -> None:
        super().__init__()
        self.names = names
        self.stops = PromptStops()
        self.error: BaseException | None = None
        self.groups = GROUPS
        self._spoken_of: int | None = None  # the id of the task that a watchpoint has just stopped a run for
        self._first = list(commands)

    def enter(self, session: Session) -> None:
        """From now on the commands are about this session."""
        self.session, self.error, self._spoken_of = session, None, None
        for line in self.stops.enter(session):
            print(f"tapehead: {line}", file=sys.stderr)

    def greet(self) -> None:
        """Says what is debugged, and where it stands."""
        engine = "direct" if _goes_back(self.session) else "native"
        count = len(self.session.graph)
        say(f"{count:,} tasks under {self.session.policy}, {engine} engine; help lists the commands", style="dim")
        show(tables.place_view(self.session))

    def talk(self) -> None:
        """Reads commands and runs them, until one leaves."""
        while self._first:
            line = self._first.pop(0)
            print(f"{self.prompt}{line}")
            if self.onecmd(line):
                return
        while True:
            try:
                with whole_words():
                    self.cmdloop()
            except KeyboardInterrupt:
                print("\ninterrupted")
            else:
                return

    def show_stop(self, stop: Stop | None) -> None:
        """Why it stands where it stands, and where that is."""
        if stop is not None:
            show(tables.stop_view(stop))
            self.stops.met(stop.number)
        self._spoken_of = stop.task if stop is not None and stop.why == "watchpoint" else None
        show(tables.place_view(self.session))

    # Running

    def do_step(self, arg: str) -> None:
        """step [N | TASK] [on DEVICE]  (s): run one task, or N, or the ready task TASK

        Stops early for a breakpoint or watchpoint. TASK, as 53rd, may be any task of the ready queue, with the direct
        engine. On a device (`step on cuda:0`): its tasks alone, in the order of its own queue.
        """
        arg, device = step_words(arg)
        count, task = (int(arg), None) if arg.isdecimal() else (1, self._task(arg) if arg else None)
        if device is not None:
            self.session.next_on(device)  # raises before anything runs

        def steps(interrupt: Interrupt) -> Stop | None:
            stop = None
            for _ in range(count):
                ran = len(self.session.order)
                self.session.step(task, device=device)
                if (together := len(self.session.order) - ran) > 1:
                    say(f"{counted(together, 'task')} ran as one", style="dim")
                stop = self.session.stop_here()
                if stop is not None or interrupt.asked or not self.session.left:
                    break
            return stop

        self._go(steps, stops_itself=True)

    def do_over(self, arg: str) -> None:
        """over  (n, next, step_over): run until all tasks of the current task's module call have run

        The calls inside of it included. Where no capture saw the forward it is one task.
        """
        _nothing(arg, "over")
        self._run(self.session.step_over)

    def do_out(self, arg: str) -> None:
        """out  (r, return, finish, step_out): the same for the module call around it; at the top to the end"""
        _nothing(arg, "out")
        self._run(self.session.step_out)

    def do_until(self, arg: str) -> None:
        """until TASK  (u, unt, run_to): run what comes before that task

        TASK is its place in this run, 53rd or 53, as all that is said of tasks has it; or #26, the one created as that.
        """
        task = self._task(arg)
        self._run(lambda: self.session.run_to(task))

    def do_continue(self, arg: str) -> bool:
        """continue  (c, cont, run): run to the next breakpoint or watchpoint, or to the end

        Ctrl-C stops before the next task; a second Ctrl-C raises KeyboardInterrupt, and ends the session.
        """
        _nothing(arg, "continue")
        self._run(self.session.run)
        return False

    def do_policy(self, arg: str) -> None:
        """policy [NAME]: let another policy pick from here on

        NAME is heap (PyTorch's own), bfs, dfs, ..., or a variable of yours: a Policy or a function.
        """
        if arg:
            self.session.policy = arg if arg.partition("(")[0] in POLICIES else self._value(arg)
        say(f"{self.session.policy} picks; known are {', '.join(POLICIES)}")

    # Going back

    def do_back(self, arg: str) -> None:
        """back [N]: take back the last task, or the last N

        Going on from there with the same tasks is the same branch; anything else begins a new one.
        """
        count = _count(arg)
        self._direct("back").back(count)
        self.show_stop(None)

    def do_goto(self, arg: str) -> None:
        """goto TASK: go back to before that task, or run to it"""
        task = self._task(arg)
        session = self._direct("goto")
        self._run(lambda: session.goto(task))

    def do_branch(self, arg: str) -> None:
        """branch N: go to where that branch ended; branch alone lists them"""
        if not arg:
            self.do_branches("")
            return
        number = _number(arg, "branch N")
        session = self._direct("branch")
        self._run(lambda: session.goto(branch=number))

    def do_branches(self, arg: str) -> None:
        """branches: the ways this session went, and in what they differ"""
        _nothing(arg, "branches")
        session = self._direct("branches")
        if len(session.branches) > 1:
            say(*str(session.compare_branches()).splitlines())
        else:
            show(tables.branches_table(session.branches))

    # Looking

    def do_where(self, arg: str) -> None:
        """where [TASK]  (w, bt): the task to come, its module calls and source line, the gradients that wait for it"""
        task = self._about(arg)
        show(tables.where_view(self.session, task))
        self._show_gradients(task)

    def do_list(self, arg: str) -> None:
        """list [TASK]  (l): the source around the line that made the task

        Without a task it is the one which a watchpoint has just found, else the current one; so it is for info, saved
        and check.
        """
        task = self._looked_at(arg)
        if task.source is None:
            raise ValueError(
                f"the line that made {told(self.session).describe(task)} is not known: th.capture() around the forward "
                "sees it"
            )
        show(tables.source_view(task.source))

    def do_info(self, arg: str) -> None:
        """info [TASK | stops]  (i): all that is known of a task; or the breakpoints and watchpoints"""
        if arg == "stops":
            self.do_stops("")
            return
        task = self._looked_at(arg)
        show(tables.where_view(self.session, task))
        show(tables.task_facts(self.session, task))
        record = None if self.session.trace is None else self.session.trace.of(task)
        if record is None and task.id in self.session.order:
            say("  what it got and gave was not recorded", style="dim")
            return
        if record is None:
            self._show_gradients(task)
            return
        show(tables.recorded_table("got", record.inputs))
        if record.outputs:
            show(tables.recorded_table("gave", record.outputs))

    def do_queue(self, arg: str) -> None:
        """queue  (ready): the ready tasks, in the order in which the policy would run them"""
        _nothing(arg, "queue")
        show(tables.queue_table(self.session))

    def do_find(self, arg: str) -> None:
        """find TEXT: the tasks whose name, module, parameter or source line has it"""
        text = _something(arg, "find TEXT").lower()
        graph = self.session.graph
        found = [task for task in graph.tasks if text in graph.describe(task).lower()]
        if not found:
            raise ValueError(f"no task has {arg!r} in its name, module, parameter or line")
        show(tables.tasks_table(self.session, found[:_MOST_FOUND]))
        if len(found) > _MOST_FOUND:
            say(f"and {len(found) - _MOST_FOUND:,} more", style="dim")

    def do_print(self, arg: str) -> None:
        """print EXPRESSION  (p): what it gives

        It can name your variables, and session, task and gradients: the current task, and what waits for it. t is
        torch, unless you have a t.
        """
        say(*repr(self._value(_something(arg, "print EXPRESSION"))).splitlines())

    def do_pp(self, arg: str) -> None:
        """pp EXPRESSION: the same, over several lines where it is long"""
        say(*pprint.pformat(self._value(_something(arg, "pp EXPRESSION"))).splitlines())

    def do_saved(self, arg: str) -> None:
        """saved [TASK]: what the task's node keeps from the forward"""
        task = self._looked_at(arg)
        found = [each for each in self.session.graph.saved if each.task == task.id]
        if found:
            show(tables.saved_table(found, self.session))
        elif task.id in self.session.order:
            say(f"{told(self.session).describe(task)} has run, and keeps nothing any more")
        else:
            say(f"{told(self.session).describe(task)} keeps no tensor that can be looked at")

    def do_memory(self, arg: str) -> None:
        """memory  (history): what this backward keeps alive, and what going back costs"""
        _nothing(arg, "memory")
        show(tables.memory_table(self.session))

    def do_check(self, arg: str) -> None:
        """check [TASK]: compare the task's backward with finite differences of its forward operation

        Needs the operation's inputs: th.capture(keep_inputs=True), tapehead debug --keep-inputs.
        """
        say(*str(self.session.check(self._looked_at(arg))).splitlines())

    # Stopping

    def do_break(self, arg: str) -> None:
        """break WHERE [, hit N] [, CONDITION]  (b): stop before tasks; break alone lists what there is

        WHERE is a task (53rd), a node's name (Addmm), a module (encoder.layer.3: as it is entered), a parameter (before
        its gradient is accumulated), a line (model.py:120). Names may be patterns (encoder.*.norm*). task:, kind:,
        module:, grad: and line: in front say which is meant. CONDITION is an expression, see print; break if CONDITION
        asks it before each task. hit N stops at the Nth only.
        """
        if arg:
            self._ask("break", arg, read_break(arg, self._test))
        else:
            self.do_stops("")

    def do_tbreak(self, arg: str) -> None:
        """tbreak WHERE ...: a breakpoint that is deleted when it has stopped a run"""
        self._ask("break", _something(arg, "tbreak WHERE"), read_break(arg, self._test), once=True)

    def do_watch(self, arg: str) -> None:
        """watch CONDITION [at MODULE]: stop where a gradient is produced that is so

        nan, inf, zero, norm>1e3, norm<1e-8, ratio>100 (of a module's output to input gradients), upcast, shape, missing
        (a parameter has no gradient at the end), or if EXPRESSION of gradient and task. One or another: nan or inf;
        both: zero and norm<1. MODULE may be a pattern: watch norm>1e3 or ratio>100 at encoder.*
        """
        self._ask("watch", arg, read_watch(arg, self._watch_test))

    def do_stops(self, arg: str) -> None:
        """stops: the breakpoints and watchpoints"""
        _nothing(arg, "stops")
        found = list(self.stops)
        show(
            tables.stops_table(found, self.session)
            if found
            else plain("no breakpoint or watchpoint; help break, help watch")
        )

    def do_enable(self, arg: str) -> None:
        """enable N: let it stop runs again"""
        for number in _numbers(arg, "enable N"):
            self.stops.enable(number, True)

    def do_disable(self, arg: str) -> None:
        """disable N: it stays, and stops nothing"""
        for number in _numbers(arg, "disable N"):
            self.stops.enable(number, False)

    def do_delete(self, arg: str) -> None:
        """delete N  (clear, cl): take a breakpoint or watchpoint away"""
        for number in _numbers(arg, "delete N"):
            self.stops.delete(number)

    def do_stop(self, arg: str) -> None:
        """stop: nothing runs while the prompt waits; Ctrl-C stops what does"""
        _nothing(arg, "stop")
        say("nothing runs while the prompt waits; Ctrl-C stops a run before its next task, close ends the session")

    # Changing

    def do_zero(self, arg: str) -> None:
        """zero [TASK]: make the gradients that wait for the task zero"""
        task = self._about(arg)
        self.session.zero(task)
        self._show_gradients(task)

    def do_scale(self, arg: str) -> None:
        """scale FACTOR [TASK]: multiply the gradients that wait for the task"""
        factor, task = self._factor(arg, "scale FACTOR [TASK]")
        self.session.scale(factor, task)
        self._show_gradients(task)

    def do_clip(self, arg: str) -> None:
        """clip NORM [TASK]: scale the gradients that wait for the task, so that their norm is at most that"""
        norm, task = self._factor(arg, "clip NORM [TASK]")
        self.session.clip(norm, task)
        self._show_gradients(task)

    def do_replace(self, arg: str) -> None:
        """replace EXPRESSION: give the current task this gradient, or these, one per input"""
        task = self._about("")
        self.session.replace(self._value(_something(arg, "replace EXPRESSION")))
        self._show_gradients(task)

    def do_restore(self, arg: str) -> None:
        """restore [TASK]: undo what was changed of the gradients that wait for the task"""
        task = self._about(arg)
        self._direct("restore").restore(task)
        self._show_gradients(task)

    def do_execute(self, arg: str) -> None:
        """execute STATEMENT  (!STATEMENT, or just x = 3): run it among your variables, where .backward() was called

        What it assigns to is your script's. Of an expression it prints what it gives, unless that is None.
        """
        code = statements(_something(arg, "!STATEMENT"))
        if code is None:
            value = self._value(arg)
            if value is not None:
                say(*repr(value).splitlines())
            return
        try:
            self.names.run(code, self._own_names())
        except Exception as error:
            raise ValueError(_said(error)) from error

    # Ending

    def do_save(self, arg: str) -> None:
        """save FILE: what has run as a trace (.json) or a page that plays it (.html), or the graph (.svg, .png)"""
        path = Path(_something(arg, "save FILE")).expanduser()
        session = self.session
        save: dict[str, Callable[[Path], Path]] = {
            ".json": lambda path: session.result().save(path),
            ".html": lambda path: session.result().save_html(path),
            ".svg": lambda path: save_picture(session, path),
            ".png": lambda path: save_picture(session, path),
        }
        if path.suffix not in save:
            raise ValueError(f"save writes .json, .html, .svg and .png, and can't tell what {arg} is to be")
        say(f"saved in {save[path.suffix](path)}")

    def do_close(self, arg: str) -> bool:
        """close: end the session here; the tasks that are left do not run"""
        _nothing(arg, "close")
        self.session.close()
        return True

    def do_quit(self, arg: str) -> bool:
        """quit  (q, exit, Ctrl-D): leave the prompt; the session stays as it is"""
        return True

    def do_help(self, arg: str) -> None:
        """help [COMMAND]  (h, ?): what there is, or what a command does"""
        if arg:
            name = SHORT.get(arg, arg)
            if name not in self._commands():
                self.default(arg)
            say(*(line.removeprefix(" " * 8) for line in self._help(name)))
            return
        made = tables.table("", "", "")
        made.show_header = False
        for group, names in self.groups.items():
            for place, name in enumerate(names):
                usage, _, does = self._help(name)[0].partition(": ")
                made.add_row(plain("" if place else group, "dim"), plain(usage), plain(does))
        show(made)

    # Cmd's own ways

    def precmd(self, line: str) -> str:
        if not sys.stdin.isatty():  # a terminal has shown it
            print("" if line == "EOF" else line)
        return line

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        if line.startswith("!") or assigns(line):
            return "execute", line.removeprefix("!"), line
        command, argument, line = super().parseline(line)
        return SHORT.get(command, command) if command else command, argument, line

    def onecmd(self, line: str) -> bool:
        command = self.parseline(line)[0]
        try:
            leaves = bool(super().onecmd(line))
        except BrokenPipeError:  # nobody reads what is said
            raise
        except (ValueError, TypeError, RuntimeError, NotImplementedError, OSError) as error:
            say(f"*** {_sentence(error)}", style="red")
            leaves = False
        if command is not None:
            self.lastcmd = line if command in REPEATED else ""
        return leaves

    def emptyline(self) -> bool:
        return self.onecmd(self.lastcmd) if self.lastcmd else False

    def default(self, line: str) -> None:
        word, *rest = line.split()
        near = get_close_matches(word, [*self._commands(), *SHORT], 3)
        hint = f"the nearest are {', '.join(near)}" if near else "help lists them"
        if not rest and word.isidentifier() and not near:
            hint += f"; p {word} shows a variable"
        raise ValueError(f"there is no command {word!r}: {hint}")

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        if text.startswith("!"):
            return offered("execute", self.session, self.stops, self._known, text, "")
        words = {*self._commands(), *(word for word in SHORT if len(word) > 2 and word != "EOF")}
        return whole(sorted(word for word in words if word.startswith(text)))

    def completedefault(self, *given: Any) -> list[str]:
        text, line, begin, _ = given
        command = self.parseline(line)[0] or ""
        before = line[:begin].partition(" ")[2]
        return offered(command, self.session, self.stops, self._known, text, before)

    def complete_help(self, text: str, *ignored: Any) -> list[str]:
        return self.completenames(text)

    def _commands(self) -> list[str]:
        return [name for names in self.groups.values() for name in names]

    def _help(self, name: str) -> list[str]:
        return (getattr(self, f"do_{name}").__doc__ or "").rstrip().splitlines()

    # What commands share

    def _run(self, verb: Callable[[], object]) -> None:
        """Runs tasks until something stops it."""

        def run(interrupt: Interrupt) -> Stop | None:
            verb()
            return self.session.stopped

        self._go(run)

    def _go(self, run: Callable[[Interrupt], Stop | None], stops_itself: bool = False) -> None:
        """Runs tasks while Ctrl-C stops them, and shows where they stopped and why. `run` gives that.

        Args:
            stops_itself: it asks between two tasks whether Ctrl-C was pressed.
        """
        session = self.session
        was_over = session.over
        stop = None
        try:
            with first_interrupt(_do_nothing if stops_itself else session.stop) as interrupt:
                stop = run(interrupt)
        except BaseException as error:
            if was_over is not None or session.over is None:
                raise  # nothing ran
            self.error = error
            say(*users_traceback(error).splitlines(), style="red")
            say(f"*** the session is over: {session.over}; what has run can still be looked at", style="red")
            return
        if interrupt.asked and (stop is None or stop.why == "asked"):
            say("interrupted", style="bold yellow")
            stop = None
        self.show_stop(stop)

    def _ask(self, kind: Literal["break", "watch"], text: str, make: Any, once: bool = False) -> None:
        asked = self.stops.ask(kind, text.strip(), make, once=once)
        entry = asked.entry
        assert entry is not None, "it was just made"
        tasks = "any task" if entry.tasks is None else counted(len(entry.tasks), "task")
        what = "breakpoint" if kind == "break" else "watchpoint"
        say(f"{what} {asked.number}: {tables.entry_text(entry, self.session)}, at {tasks}")

    def _show_gradients(self, task: Task) -> None:
        try:
            gradients = self.session.waiting(task)
        except (NotImplementedError, RuntimeError) as error:
            say(f"  {_sentence(error)}", style="dim")
        else:
            show(tables.gradients_table(gradients, task.inputs))

    def _direct(self, what: str) -> Stepper:
        if not _goes_back(self.session):
            raise NotImplementedError(
                f"{what} needs the direct engine: PyTorch's own can't take a step back. th.debug(loss), tapehead debug "
                "--engine direct"
            )
        return self.session

    def _task(self, text: str) -> Task:
        return typed_task(text, self.session.graph, run_of(self.session))

    def _about(self, text: str) -> Task:
        """The task that is meant: the current one if none is named."""
        if text:
            return self._task(text)
        current = self.session.current
        if current is None:
            raise ValueError(f"{tables.ended_text(self.session)}, so none is the current one; name one, as 53rd")
        return current

    def _looked_at(self, text: str) -> Task:
        """The task that is meant: if none is named the one that a watchpoint has just found, or the current one."""
        return self._about(text or ("" if self._spoken_of is None else f"#{self._spoken_of}"))

    def _factor(self, arg: str, usage: str) -> tuple[float, Task]:
        expression, *rest = _split_task(_something(arg, usage))
        value = self._value(expression)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{usage}: a number is needed, not {value!r}")
        return value, self._about(rest[0] if rest else "")

    def _value(self, expression: str) -> Any:
        code = compiled(expression)
        try:
            return self.names.value(code, self._own_names())
        except Exception as error:
            raise ValueError(_said(error)) from error

    def _known(self) -> dict[str, Any]:
        return self.names.all(self._own_names())

    def _own_names(self) -> dict[str, Any]:
        session = self.session
        current = session.current if session.over is None else None
        gradients = () if current is None else session.gradients
        return {"session": session, "task": current, "gradients": gradients}

    def _test(self, expression: str) -> Callable[..., Any]:
        return test_of(compiled(expression), lambda: self.names, "task", "gradients")

    def _watch_test(self, expression: str) -> Callable[..., Any]:
        return test_of(compiled(expression), lambda: self.names, "gradient", "task")


_MOST_FOUND = 50


def _goes_back(session: Session) -> TypeGuard[Stepper]:
    return isinstance(session, Stepper)


def _do_nothing() -> None: ...


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__


def _said(error: Exception) -> str:
    message = str(error)
    return f"{type(error).__name__}{': ' if message else ''}{message}"


def _nothing(arg: str, usage: str) -> None:
    if arg:
        raise ValueError(f"{usage} takes nothing behind it, so not {arg!r}")


def _something(arg: str, usage: str) -> str:
    if not arg.strip():
        raise ValueError(f"{usage}: something is missing")
    return arg.strip()


def _count(arg: str) -> int:
    return _number(arg, "back N") if arg else 1


def _number(arg: str, usage: str) -> int:
    if not arg.isdecimal():
        raise ValueError(f"{usage}: {arg!r} is no number")
    return int(arg)


def _numbers(arg: str, usage: str) -> list[int]:
    return [_number(word, usage) for word in _something(arg, usage).replace(",", " ").split()]


def _split_task(text: str) -> list[str]:
    """An expression, and behind it the task that is meant, `53rd` or `#26`, if one is."""
    expression, _, last = text.rpartition(" ")
    named = last.startswith("#") or last.endswith(("st", "nd", "rd", "th"))
    return [expression, last] if expression and named and is_typed_task(last) else [text]
