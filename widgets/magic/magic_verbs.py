"""What `%tapescope VERB ...` does with the deck shown last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from ...engine.diagnose.advise import Advice, advise
from ...engine.planning.policies import POLICIES, TABS, find_policy
from ...engine.recording.perfetto import ENDINGS
from ...engine.schedule.policy import AnyPolicy, Choice, Policy
from ...inspector.graph.graph import Task
from ...inspector.validation import did_you_mean
from ..deck.auto_display import latest_deck
from ..deck.deck import Deck
from ..deck.stop_tables import BranchesView, StopsView
from ..deck.task_and_stop_syntax import is_typed_task, run_of, typed_task
from ..deck.verbs import MAGICS
from ..terminal.completion import offered
from ..terminal.console import step_words
from ..terminal.stops import Test, read_break, read_watch


@dataclass(frozen=True, slots=True)
class Told:
    """A line of `%tapescope`: the verb, and the text behind it."""

    shell: InteractiveShell
    verb: str
    text: str

    @property
    def count(self) -> int:
        """A number of tasks; 1 where none is given."""
        if not self.text:
            return 1
        if not self.text.isdecimal() or not int(self.text):
            raise UsageError(f"%tapescope {self.verb} takes a number of tasks, not {self.text!r}")
        return int(self.text)

    @property
    def number(self) -> int:
        """Of a breakpoint, a watchpoint or a branch."""
        if not self.text.isdecimal():
            raise UsageError(f"%tapescope {self.verb} takes a number, not {self.text!r}")
        return int(self.text)

    @property
    def factor(self) -> float:
        try:
            return float(self.text)
        except ValueError:
            raise UsageError(f"%tapescope {self.verb} takes a number, not {self.text!r}") from None

    def task(self, deck: Deck) -> Task:
        """A task by its place in this run, as 53rd or 53."""
        if not is_typed_task(self.text):
            raise UsageError(f"%tapescope {self.verb} takes a task, as 53rd, not {self.text!r}")
        return typed_task(self.text, deck.graph, run_of(deck))

    def nothing(self) -> None:
        if self.text:
            raise UsageError(f"%tapescope {self.verb} takes nothing else, not {self.text!r}")


def _deck() -> Deck:
    """The one made last."""
    return latest_deck()  # type: ignore[no-any-return]


def policy_of(shell: InteractiveShell, name: str) -> AnyPolicy:
    """The policy of this name, or in a variable of this name."""
    name = name.strip("'\"")
    if name in POLICIES or "(" in name:
        with _usage():
            find_policy(name)
        return name
    found = shell.user_ns.get(name)
    if isinstance(found, Policy):
        return found
    if callable(found):
        choice: Choice = found
        return choice
    near = did_you_mean(name, POLICIES)
    raise UsageError(f"there is no policy {name!r}{near} known are {', '.join(POLICIES)}, and policies in variables")


@contextmanager
def _usage() -> Iterator[None]:
    """What is wrong with what was asked for needs no traceback; what a task raises does, and has a note of it."""
    try:
        yield
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        if getattr(error, "__notes__", None):
            raise
        raise UsageError(str(error)) from None


def _why_stopped(deck: Deck) -> None:
    stop = deck.stopped
    if stop is not None and stop.why != "asked":
        print(stop)


def _step(told: Told) -> Task:
    words, device = step_words(told.text)
    told = replace(told, text=words)
    names_task = is_typed_task(words) and not words.isdecimal()
    count, deck = 1 if names_task else told.count, _deck()
    if deck.status == "finished":
        raise UsageError(f"no task is left: all {deck.position} have run")
    with nullcontext() if device is None else _usage():
        task = deck.step(told.task(deck) if names_task else None, count=count, device=device)
    _why_stopped(deck)
    return task


def _run(told: Told) -> Any:
    told.nothing()
    deck = _deck()
    run = deck.run()
    _why_stopped(deck)
    return run


def _stops(told: Told) -> StopsView:
    """Set a breakpoint or watchpoint, change one by its number, or only list them."""
    deck = _deck()
    with _usage():
        match told.verb:
            case "break":
                read_break(told.text, partial(_test, told.shell, "task, gradients"))(deck)
            case "watch":
                read_watch(told.text, partial(_test, told.shell, "gradient, task"))(deck)
            case "stops":
                told.nothing()
            case "enable" | "disable" | "delete":
                getattr(deck.stops, told.verb)(told.number)
    return deck.stops


def _do(told: Told, method: str, read: Callable[[Told, Deck], tuple[Any, ...]] | None = None) -> Any:
    """Call a method of the deck and print why a run stopped. `read` finds its arguments; None: it has none."""
    if read is None:
        told.nothing()
    deck = _deck()
    with _usage():
        result = getattr(deck, method)(*(() if read is None else read(told, deck)))
    if method in ("step_over", "step_out", "goto"):
        _why_stopped(deck)
    return result


def _test(shell: InteractiveShell, parameters: str, expression: str) -> Test:
    """Compile an expression into a function. The user's variables are global to it, so that loops see all."""
    try:
        compile(expression.strip(), "<tapescope>", "eval")
    except (SyntaxError, ValueError) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{expression.strip()!r} is no expression: {message}") from None
    test: Test = eval(f"lambda {parameters}: (\n{expression.strip()}\n)", shell.user_ns)
    return test


def _branch(told: Told) -> BranchesView | Task | None:
    deck = _deck()
    with _usage():
        return deck.goto(branch=told.number) if told.text else deck.branches


def _compare(told: Told) -> Any:
    policies = [policy_of(told.shell, word) for word in told.text.split()] or list(TABS)
    with _usage():
        return _deck().compare(policies)


def _advise(told: Told) -> Advice:
    """What it is about needs no deck: a function that makes the loss, as an expression."""
    if not told.text:
        raise UsageError("%tapescope advise takes a function that makes the loss: %tapescope advise make_loss")
    try:
        make_loss = eval(told.text, told.shell.user_global_ns, told.shell.user_ns)
    except Exception as error:
        raise UsageError(f"{told.text!r} raised {type(error).__name__}: {error}") from None
    with _usage():
        return advise(make_loss)


def _export(told: Told) -> Path:
    if len(told.text.split()) != 1:
        raise UsageError("%tapescope export takes one file name, ending in .svg, .png, .html or .json")
    deck, path = _deck(), Path(told.text).expanduser()
    save: dict[str, Callable[[Path], Path]] = {
        ".html": deck.save_html,
        ".json": deck.save_trace,
        ".svg": deck.save_picture,
        ".png": deck.save_picture,
    }
    if path.name.endswith(ENDINGS):
        save[path.suffix] = deck.save_perfetto
    if path.suffix not in save:
        raise UsageError(f"{path.name}: %tapescope export writes .svg, .png, .html and .json files")
    try:
        return save[path.suffix](path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ModuleNotFoundError as error:
        raise UsageError(str(error)) from None


CALLS: dict[str, Callable[[Told], Any]] = {
    "step": _step,
    "over": partial(_do, method="step_over"),
    "out": partial(_do, method="step_out"),
    "continue": _run,
    "back": partial(_do, method="back", read=lambda told, deck: (told.count,)),
    "goto": partial(_do, method="goto", read=lambda told, deck: (told.task(deck),)),
    "branch": _branch,
    "check": partial(_do, method="check", read=lambda told, deck: (told.task(deck),) if told.text else ()),
    **dict.fromkeys(("break", "watch", "stops", "enable", "disable", "delete"), _stops),
    "stop": partial(_do, method="stop"),
    "zero": partial(_do, method="zero"),
    "scale": partial(_do, method="scale", read=lambda told, deck: (told.factor,)),
    "clip": partial(_do, method="clip", read=lambda told, deck: (told.factor,)),
    "restore": partial(_do, method="restore"),
    "compare": _compare,
    "predict": partial(_do, method="predict_memory"),
    "advise": _advise,
    "export": _export,
}
"""The call of each verb of `%tapescope`. `widgets/deck/verbs.py` has their names, syntax and help."""


def complete_verb(shell: InteractiveShell, verb: str, word: str, line: str) -> list[str]:
    """What may come next behind a verb."""
    if verb == "compare":
        return list(POLICIES)
    if MAGICS[verb].takes not in ("place", "condition", "stop", "task"):
        return []
    try:
        deck = _deck()
    except UsageError:
        return []
    before = line[: len(line) - len(word)].partition(verb)[2]
    words = offered(verb, deck, deck.stops, lambda: shell.user_ns, word, before)
    return [each.rstrip() for each in words]  # a space behind a whole word is for the terminal
