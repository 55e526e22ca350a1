"""The magics: `%load_ext tapehead`, then `%tapehead` and `%%tapehead`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display
from torch import nn

from ..engine.policies import POLICIES, AnyPolicy, Policy
from ..inspector.capture import capture
from ..inspector.tape import Tape
from .debug import debug
from .display import latest_deck

ENGINES = ("direct", "native")
VERBS = ("step", "back", "run", "stop", "compare", "export")


@dataclass(frozen=True, slots=True)
class Options:
    """What `%%tapehead` and `%tapehead LOSS` were given."""

    loss: str
    policy: str = "heap"
    engine: str = "direct"
    names: str | None = None


def parse(line: str) -> Options:
    """Reads the options in front of an expression.

    Raises:
        UsageError: an unknown option, or one without its value.
    """
    found: dict[str, str] = {}
    rest = line.strip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        name, given, value = word[2:].partition("=")
        if name not in ("policy", "engine", "names"):
            raise UsageError(f"%tapehead has no option --{name}; it has --policy, --engine and --names")
        if not given:
            value, _, rest = rest.strip().partition(" ")
        if not value:
            raise UsageError(f"--{name} needs a value")
        found[name] = value
        rest = rest.strip()
    return Options(rest, **found)


@magics_class
class DeckMagics(Magics):
    """`%tapehead` and `%%tapehead`."""

    @line_cell_magic
    def tapehead(self, line: str, cell: str | None = None) -> Any:
        """Steps through a backward and shows it: PyTorch's autograd graph, ready queue, gradients and memory.

        %%tapehead [--policy P] [--engine E] [--names MODEL] LOSS
                            run the cell, watch its forward, and open the deck on LOSS
        %tapehead [--policy P] [--engine E] LOSS
                            open the deck on a loss that is there already
        %tapehead step [N]  run one task, or N
        %tapehead run       run to the next breakpoint, or the end
        %tapehead stop      make what runs end before its next task
        %tapehead back [N]  show the deck as it was one task before, or N
        %tapehead compare P P ...
                            the memory that the graph would take under these policies
        %tapehead export FILE
                            the deck as a page (.html), what has run as a trace (.json), or the graph (.svg)

        P is "heap" (PyTorch's own), "bfs", "dfs", or the name of a variable with a policy or function of yours.
        E is "direct" (any ready task may run next; the default) or "native" (PyTorch's own engine runs, and stops).
        LOSS is an expression, looked at when the cell has run. MODEL is the module below which parameters are named;
        without it, each outermost module that the cell calls. The verbs are those of the deck shown last.

        Examples:

        %%tapehead --policy bfs loss
        loss = model(x).sum()
        """
        if cell is not None:
            return self._open(parse(line), cell)
        verb, _, rest = line.strip().partition(" ")
        if verb in VERBS and verb not in self.shell.user_ns:
            return getattr(self, f"_{verb}")(rest.split())
        if not verb:
            raise UsageError("%tapehead needs the name of a loss, or a verb: %tapehead? shows them all")
        return self._open(parse(line), None)

    def _open(self, options: Options, cell: str | None) -> None:
        if not options.loss:
            raise UsageError("which tensor? Give the loss: %%tapehead loss")
        if options.engine not in ENGINES:
            raise UsageError(f"there is no engine {options.engine!r}; known are {', '.join(ENGINES)}")
        policy = self._policy(options.policy)
        if cell is not None:
            module = None if options.names is None else self._value(options.names, "--names")
            if not isinstance(module, nn.Module | None):
                raise UsageError(f"--names {options.names}: a module is needed, not a {type(module).__name__}")
            run_captured(self.shell, cell, module)
        debug(self._value(options.loss, "the loss"), policy=policy, engine=options.engine)  # type: ignore[arg-type]

    def _value(self, expression: str, what: str) -> Any:
        try:
            return eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except Exception as error:
            raise UsageError(f"{what}, {expression!r}, raised {type(error).__name__}: {error}") from None

    def _policy(self, name: str) -> AnyPolicy:
        if name in POLICIES:
            return name
        found = self.shell.user_ns.get(name)
        if isinstance(found, Policy) or callable(found):
            return found
        raise UsageError(f"there is no policy {name!r}; known are {', '.join(POLICIES)}, and policies in variables")

    def _step(self, words: list[str]) -> Any:
        return latest_deck().step(count=_count("step", words))

    def _back(self, words: list[str]) -> None:
        latest_deck().back(_count("back", words))

    def _run(self, words: list[str]) -> Any:
        _no_words("run", words)
        return latest_deck().run()

    def _stop(self, words: list[str]) -> None:
        _no_words("stop", words)
        latest_deck().stop()

    def _compare(self, words: list[str]) -> Any:
        policies = [self._policy(word) for word in words] or list(POLICIES)
        return latest_deck().compare(policies)

    def _export(self, words: list[str]) -> Path:
        if len(words) != 1:
            raise UsageError("%tapehead export takes one file name, ending in .svg, .html or .json")
        deck, path = latest_deck(), Path(words[0]).expanduser()
        save: dict[str, Callable[[Path], Path]] = {
            ".html": deck.save_html,
            ".json": deck.save_trace,
            ".svg": deck.graph.save_svg,
        }
        if path.suffix not in save:
            raise UsageError(f"{path.name}: %tapehead export writes .svg, .html and .json files")
        return save[path.suffix](path)


def _count(verb: str, words: list[str]) -> int:
    if not words:
        return 1
    if len(words) > 1 or not words[0].isdecimal() or not int(words[0]):
        raise UsageError(f"%tapehead {verb} takes a number of tasks, not {' '.join(words)!r}")
    return int(words[0])


def _no_words(verb: str, words: list[str]) -> None:
    if words:
        raise UsageError(f"%tapehead {verb} takes nothing else, not {' '.join(words)!r}")


def run_captured(shell: InteractiveShell, cell: str, module: nn.Module | None) -> None:
    """Runs a cell's code under capture. If it raises, shows the graph that had been built, and raises it again."""
    failures: list[tuple[BaseException, list[str]]] = []

    def keep(*args: Any, **kwargs: Any) -> None:
        kind, error, frames = sys.exc_info()
        assert error is not None
        failures.append((error, shell.InteractiveTB.structured_traceback(kind, error, frames, tb_offset=1)))

    with suppress(BaseException), capture(module) as tape:
        vars(shell)["showtraceback"] = keep  # run_cell would print it, and the magic would end as if all were well
        try:
            result = shell.run_cell("\n" + cell)  # the line of the magic counts: lines are numbered as they are seen
        finally:
            del vars(shell)["showtraceback"]
        if failures:
            raise failures[0][0]
    if failures:
        error, lines = failures[0]
        _show_part(tape)
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
        raise error
    if not result.success:  # a syntax error, which has been shown
        raise UsageError("the cell did not run")


def _show_part(tape: Tape) -> None:
    """The graph of a forward that raised, where there was one."""
    with suppress(ValueError):
        display(tape.graph())


def complete(shell: InteractiveShell, event: Any) -> list[str]:
    """What may come next on a line of `%tapehead`."""
    words = event.line.split()
    before = words[-1] if event.line.endswith(" ") else (words[-2] if len(words) > 1 else "")
    if before == "--policy" or (len(words) > 1 and words[1] == "compare"):
        return list(POLICIES)
    if before == "--engine":
        return list(ENGINES)
    tensors = [name for name, value in shell.user_ns.items() if not name.startswith("_") and _is_loss(value)]
    if before in ("%tapehead", "%%tapehead"):
        return [*VERBS, "--policy", "--engine", "--names", *tensors]
    return ["--policy", "--engine", "--names", *tensors]


def _is_loss(value: object) -> bool:
    return getattr(value, "grad_fn", None) is not None


def load(shell: InteractiveShell) -> None:
    """`%load_ext tapehead`."""
    shell.register_magics(DeckMagics)
    shell.set_hook("complete_command", complete, re_key=r"%{1,2}tapehead")
