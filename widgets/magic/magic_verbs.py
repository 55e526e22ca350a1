"""The verbs of `%tapescope VERB ...`, which act on the most recent deck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from ...engine.diagnose.advise import Advice, advise
from ...engine.execution.accumulation_rule import Accumulate, Release
from ...engine.planning.policies import TABS, find_policy, policy_names
from ...engine.recording.perfetto import ENDINGS
from ...engine.schedule.policy import AnyPolicy, Choice, Policy
from ...inspector.graph.graph import Task
from ...inspector.text.option_form import as_options
from ...inspector.validation import did_you_mean
from ..deck.auto_display import latest_deck
from ..deck.deck import Deck
from ..deck.stop_tables import BranchesView, StopsView
from ..deck.task_and_stop_syntax import is_typed_task, run_of, typed_task
from ..deck.verbs import MAGICS
from ..terminal.completion import completions
from ..terminal.console import step_words
from ..terminal.stops import Test, read_break, read_watch

RULES = {"--accumulate": get_args(Accumulate), "--release": get_args(Release)}
"""The options of `compare`, with their values."""


@dataclass(frozen=True, slots=True)
class MagicLine:
    """A line of `%tapescope`: its verb, and the text after the verb."""

    shell: InteractiveShell
    verb: str
    text: str

    @property
    def count(self) -> int:
        """The argument as a number of tasks; 1 if there is none."""
        if not self.text:
            return 1
        if not self.text.isdecimal() or not int(self.text):
            raise UsageError(f"%tapescope {self.verb} needs a number of tasks, got {self.text!r}")
        return int(self.text)

    @property
    def number(self) -> int:
        """The argument as the number of a breakpoint, watchpoint or branch."""
        if not self.text.isdecimal():
            raise UsageError(f"%tapescope {self.verb} needs a number, got {self.text!r}")
        return int(self.text)

    @property
    def factor(self) -> float:
        try:
            return float(self.text)
        except ValueError:
            raise UsageError(f"%tapescope {self.verb} needs a number, got {self.text!r}") from None

    def task(self, deck: Deck) -> Task:
        """Return the task at a position of this run, such as 53rd or 53."""
        if not is_typed_task(self.text):
            raise UsageError(f"%tapescope {self.verb} needs a task such as 53rd, got {self.text!r}")
        return typed_task(self.text, deck.graph, run_of(deck))

    def check_no_argument(self) -> None:
        if self.text:
            raise UsageError(f"%tapescope {self.verb} takes no argument, got {self.text!r}")


_deck: Callable[[], Deck] = latest_deck
"""Return the most recent deck."""


def policy_of(shell: InteractiveShell, name: str) -> AnyPolicy:
    """Return the policy with this name, or in a variable with this name."""
    name = name.strip("'\"")
    if name in policy_names() or "(" in name:
        with _usage():
            find_policy(name)
        return name
    found = shell.user_ns.get(name)
    if isinstance(found, Policy):
        return found
    if callable(found):
        choice: Choice = found
        return choice
    near = did_you_mean(name, policy_names())
    raise UsageError(
        f"unknown policy {name!r}{near} expected one of {', '.join(policy_names())}, or a variable with a policy"
    )


@contextmanager
def _usage() -> Iterator[None]:
    """Convert errors about the request into UsageError, which has no traceback.

    Errors raised by a task have a note that names it. They are raised unchanged, because they need a traceback.
    """
    try:
        yield
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        if getattr(error, "__notes__", None):
            raise
        raise UsageError(as_options(error)) from None


def _why_stopped(deck: Deck) -> None:
    stop = deck.stopped
    if stop is not None and stop.why != "asked":
        print(stop)


def _step(line: MagicLine) -> Task:
    words, device = step_words(line.text)
    line = replace(line, text=words)
    names_task = is_typed_task(words) and not words.isdecimal()
    count, deck = 1 if names_task else line.count, _deck()
    if deck.status == "finished":
        raise UsageError(f"there is no task left to run: all {deck.position} have run")
    # Only a device can be invalid here; an error of the task itself needs its traceback.
    with nullcontext() if device is None else _usage():
        task = deck.step(line.task(deck) if names_task else None, count=count, device=device)
    _why_stopped(deck)
    return task


def _run(line: MagicLine) -> Any:
    line.check_no_argument()
    deck = _deck()
    run = deck.run()
    _why_stopped(deck)
    return run


def _stops(line: MagicLine) -> StopsView:
    """Set a breakpoint or watchpoint, change one by its number, or list them."""
    deck = _deck()
    with _usage():
        match line.verb:
            case "break":
                read_break(line.text, partial(_test, line.shell, "task, gradients"))(deck)
            case "watch":
                read_watch(line.text, partial(_test, line.shell, "gradient, task"))(deck)
            case "stops":
                line.check_no_argument()
            case "enable" | "disable" | "delete":
                getattr(deck.stops, line.verb)(line.number)
    return deck.stops


def _do(line: MagicLine, method: str, read: Callable[[MagicLine, Deck], tuple[Any, ...]] | None = None) -> Any:
    """Call a method of the deck and print why a run stopped.

    `read` returns the method's arguments; None means that it has none.
    """
    if read is None:
        line.check_no_argument()
    deck = _deck()
    with _usage():
        result = getattr(deck, method)(*(() if read is None else read(line, deck)))
    if method in ("step_over", "step_out", "goto"):
        _why_stopped(deck)
    return result


def _test(shell: InteractiveShell, parameters: str, expression: str) -> Test:
    """Compile an expression into a function. The user's variables are its globals, so that comprehensions see them."""
    try:
        compile(expression.strip(), "<tapescope>", "eval")
    except (SyntaxError, ValueError) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{expression.strip()!r} is not an expression: {message}") from None
    # The parentheses and line breaks allow a comment at the end of the expression.
    test: Test = eval(f"lambda {parameters}: (\n{expression.strip()}\n)", shell.user_ns)
    return test


def _branch(line: MagicLine) -> BranchesView | Task | None:
    deck = _deck()
    with _usage():
        return deck.goto(branch=line.number) if line.text else deck.branches


def _compare(line: MagicLine) -> Any:
    words: dict[str, list[str]] = {"": []}
    option = ""
    for word in line.text.split():
        if not word.startswith("--"):
            words[option].append(word)
            continue
        option, _, value = word.partition("=")
        if option not in RULES:
            raise UsageError(f"unknown option {option}; expected one of {', '.join(RULES)}")
        words[option] = [value] if value else []
    if empty := next((option for option in words if option and not words[option]), None):
        raise UsageError(f"{empty} needs a value: {', '.join(RULES[empty])}")
    policies = [policy_of(line.shell, word) for word in words.pop("")] or list(TABS)
    with _usage():
        rules: dict[str, Any] = {option[2:]: values for option, values in words.items()}
        return _deck().compare(policies, **rules)


def _advise(line: MagicLine) -> Advice:
    """Return advice about a function that returns the loss, passed as an expression. It needs no deck."""
    if not line.text:
        raise UsageError("%tapescope advise needs a function that returns the loss: %tapescope advise make_loss")
    try:
        make_loss = eval(line.text, line.shell.user_global_ns, line.shell.user_ns)
    except Exception as error:
        raise UsageError(f"{line.text!r} raised {type(error).__name__}: {error}") from None
    with _usage():
        return advise(make_loss)


def _export(line: MagicLine) -> Path:
    if len(line.text.split()) != 1:
        raise UsageError("%tapescope export needs one file name, which ends in .svg, .png, .html or .json")
    deck, path = _deck(), Path(line.text).expanduser()
    save: dict[str, Callable[[Path], Path]] = {
        ".html": deck.save_html,
        ".json": deck.save_trace,
        ".svg": deck.save_picture,
        ".png": deck.save_picture,
    }
    if path.name.endswith(ENDINGS):
        save[path.suffix] = deck.save_perfetto
    if path.suffix not in save:
        raise UsageError(f"unknown file type {path.name!r}; %tapescope export writes .svg, .png, .html and .json files")
    try:
        return save[path.suffix](path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ModuleNotFoundError as error:
        raise UsageError(str(error)) from None


CALLS: dict[str, Callable[[MagicLine], Any]] = {
    "step": _step,
    "over": partial(_do, method="step_over"),
    "out": partial(_do, method="step_out"),
    "continue": _run,
    "back": partial(_do, method="back", read=lambda line, deck: (line.count,)),
    "goto": partial(_do, method="goto", read=lambda line, deck: (line.task(deck),)),
    "branch": _branch,
    "check": partial(_do, method="check", read=lambda line, deck: (line.task(deck),) if line.text else ()),
    **dict.fromkeys(("break", "watch", "stops", "enable", "disable", "delete"), _stops),
    "stop": partial(_do, method="stop"),
    "zero": partial(_do, method="zero"),
    "scale": partial(_do, method="scale", read=lambda line, deck: (line.factor,)),
    "clip": partial(_do, method="clip", read=lambda line, deck: (line.factor,)),
    "restore": partial(_do, method="restore"),
    "compare": _compare,
    "predict": partial(_do, method="predict_memory"),
    "advise": _advise,
    "export": _export,
}
"""The function that runs each verb. `widgets/deck/verbs.py` defines the verbs' names, syntax and help."""


def complete_verb(shell: InteractiveShell, verb: str, word: str, line: str) -> list[str]:
    """Return the completions of the word after a verb."""
    if verb == "compare":
        options = [each for each in line[: len(line) - len(word)].split() if each in RULES]
        return [*(RULES[options[-1]] if options else policy_names()), *RULES]
    if MAGICS[verb].takes not in ("place", "condition", "stop", "task"):
        return []
    try:
        deck = _deck()
    except UsageError:
        return []
    before = line[: len(line) - len(word)].partition(verb)[2]
    words = completions(verb, deck, deck.stops, lambda: shell.user_ns, word, before)
    return [each.rstrip() for each in words]  # only the terminal needs the space after a completed word
