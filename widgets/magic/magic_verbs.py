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
from ..deck.task_and_stop_syntax import is_typed_task, run_of, typed_task, watched
from ..terminal.completion import offered
from ..terminal.console import step_words
from ..terminal.stops import Test, read_break


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
    count, deck = replace(told, text=words).count, _deck()
    if deck.status == "finished":
        raise UsageError(f"no task is left: all {deck.position} have run")
    with nullcontext() if device is None else _usage():
        task = deck.step(count=count, device=device)
    _why_stopped(deck)
    return task


def _run(told: Told) -> Any:
    told.nothing()
    deck = _deck()
    run = deck.run()
    _why_stopped(deck)
    return run


def _over(told: Told, out: bool = False) -> Task | None:
    told.nothing()
    deck = _deck()
    with _usage():
        current = deck.step_out() if out else deck.step_over()
    _why_stopped(deck)
    return current


def _stop(told: Told) -> None:
    told.nothing()
    _deck().stop()


def _break(told: Told) -> StopsView:
    deck = _deck()
    with _usage():
        make = read_break(told.text, partial(_test, told.shell))
        make(deck)
    return deck.stops


def _test(shell: InteractiveShell, expression: str) -> Test:
    """A function of a task and its gradients. The user's own variables are global to it, so that loops see all."""
    try:
        compile(expression.strip(), "<tapescope>", "eval")
    except (SyntaxError, ValueError) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{expression.strip()!r} is no expression: {message}") from None
    test: Test = eval(f"lambda task, gradients: (\n{expression.strip()}\n)", shell.user_ns)
    return test


def _watch(told: Told) -> StopsView:
    deck = _deck()
    with _usage():
        conditions, at = watched(told.text)
        deck.watch(*conditions, at=at)
    return deck.stops


def _stops(told: Told) -> StopsView:
    told.nothing()
    return _deck().stops


def _change(told: Told, change: Callable[[StopsView, int], None]) -> StopsView:
    deck = _deck()
    with _usage():
        change(deck.stops, told.number)
    return deck.stops


def _back(told: Told) -> Task | None:
    count = told.count
    with _usage():
        return _deck().back(count)


def _goto(told: Told) -> Task | None:
    deck = _deck()
    with _usage():
        current = deck.goto(told.task(deck))
    _why_stopped(deck)
    return current


def _branch(told: Told) -> BranchesView | Task | None:
    deck = _deck()
    with _usage():
        return deck.goto(branch=told.number) if told.text else deck.branches


def _edit(told: Told, edit: Callable[[Deck, Told], None]) -> None:
    with _usage():
        edit(_deck(), told)


def _zero(deck: Deck, told: Told) -> None:
    told.nothing()
    deck.zero()


def _restore(deck: Deck, told: Told) -> None:
    told.nothing()
    deck.restore()


def _check(told: Told) -> Any:
    deck = _deck()
    with _usage():
        return deck.check(told.task(deck) if told.text else None)


def _compare(told: Told) -> Any:
    policies = [policy_of(told.shell, word) for word in told.text.split()] or list(TABS)
    with _usage():
        return _deck().compare(policies)


def _predict(told: Told) -> None:
    told.nothing()
    with _usage():
        _deck().predict_memory()


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


VERBS: dict[str, Callable[[Told], Any]] = {
    "step": _step,
    "run": _run,
    "continue": _run,
    "over": _over,
    "out": partial(_over, out=True),
    "stop": _stop,
    "break": _break,
    "watch": _watch,
    "stops": _stops,
    "enable": partial(_change, change=StopsView.enable),
    "disable": partial(_change, change=StopsView.disable),
    "delete": partial(_change, change=StopsView.delete),
    "back": _back,
    "goto": _goto,
    "branch": _branch,
    "zero": partial(_edit, edit=_zero),
    "scale": partial(_edit, edit=lambda deck, told: deck.scale(told.factor)),
    "clip": partial(_edit, edit=lambda deck, told: deck.clip(told.factor)),
    "restore": partial(_edit, edit=_restore),
    "check": _check,
    "compare": _compare,
    "predict": _predict,
    "advise": _advise,
    "export": _export,
}


def complete_verb(shell: InteractiveShell, verb: str, word: str, line: str) -> list[str]:
    """What may come next behind a verb."""
    if verb == "compare":
        return list(POLICIES)
    if verb not in ("break", "watch", "enable", "disable", "delete", "goto", "check"):
        return []
    try:
        deck = _deck()
    except UsageError:
        return []
    before = line[: len(line) - len(word)].partition(verb)[2]
    words = offered(verb, deck, deck.stops, lambda: shell.user_ns, word, before)
    return [each.rstrip() for each in words]  # a space behind a whole word is for the terminal
