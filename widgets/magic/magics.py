"""The magics `%tapescope` and `%%tapescope`, available after `%load_ext tapescope`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from types import TracebackType
from typing import Any, get_args
from weakref import ref

import IPython
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display
from torch import Tensor, nn

from ...engine.execution.accumulation_rule import Accumulate, Accumulation, Release
from ...engine.planning.policies import policy_names
from ...engine.schedule.device_queues import QUEUES
from ...inspector.capture.capture import capture
from ...inspector.graph.freed_nodes import is_freed
from ...inspector.graph.source_lines import OWN_CODE
from ...inspector.text.option_form import as_options, options_named
from ...inspector.torch_private.operators import warm_up_fakes
from ...inspector.validation import a_kind, did_you_mean
from ..deck.open_deck import debug, in_notebook, with_model
from ..deck.verbs import MAGICS, magic_help
from .cell_functions import CELL_VERBS, run_cell_verb
from .magic_verbs import CALLS, MagicLine, complete_verb, policy_of

ENGINES = ("direct", "native")
OPTIONS = ("policy", "engine", "accumulate", "release", "batch", "queues", "model")
FLAGS = ("keep-inputs",)

_OPTION = re.compile(rf" --({'|'.join((*OPTIONS, *FLAGS, *CELL_VERBS))})\b")
_NEAR = 50  # nodes; most freed graphs are detected close to the loss
_SOON_S = 0.2  # lets a waiting cell start first

_NOT_THE_USERS = (
    *OWN_CODE,
    *(str(Path(file).parent) + os.sep for file in (IPython.__file__, concurrent.futures.__file__)),
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options and loss expression of `%%tapescope` and `%tapescope LOSS`."""

    loss: str
    policy: str = "heap"
    engine: str = "direct"
    batch: str | None = None
    queues: str | None = None
    model: str | None = None
    keep_inputs: bool = False
    verb: str | None = None
    accumulate: str = "inplace"
    release: str = "eager"


def parse(line: str) -> Options:
    """Parse the options before an expression.

    Raises:
        UsageError: an option is unknown or has no value.
    """
    found: dict[str, Any] = {}
    rest = line.strip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        rest = rest.strip()
        name, equals, value = word[2:].partition("=")
        if name in CELL_VERBS and not equals:
            if "verb" in found:
                raise UsageError(f"--{found['verb']} and --{name} cannot be combined; use two cells")
            found["verb"] = name
            continue
        if name in FLAGS and not equals:
            found[name.replace("-", "_")] = True
            continue
        if name not in OPTIONS:
            raise UsageError(
                f"unknown option --{name}; expected one of {', '.join(f'--{each}' for each in OPTIONS)} with a value, "
                f"or {', '.join(f'--{each}' for each in (*FLAGS, *CELL_VERBS))}"
            )
        if not equals:
            value, _, rest = rest.strip().partition(" ")
        if not value:
            raise UsageError(f"--{name} needs a value")
        found[name] = value
        rest = rest.strip()
    return Options(rest, **found)


@magics_class
class DeckMagics(Magics):
    """`%tapescope` and `%%tapescope`."""

    shell: InteractiveShell

    @line_cell_magic
    def tapescope(self, line: str, cell: str | None = None) -> Any:
        """Step through a backward and show its autograd graph, ready queue, gradients and memory.

        %%tapescope [--policy P] [--engine E] [--batch auto] [--accumulate A] [--release R] [--queues Q]
                   [--model MODEL] [--keep-inputs] LOSS
                            run the cell, capture its forward, and open the deck on LOSS
        %tapescope [--policy P] [--engine E] [--batch auto] [--accumulate A] [--release R] [--queues Q] LOSS
                            open the deck on an existing loss; deck = %tapescope loss assigns the deck
        %%tapescope --profile | --find-nan | --plan [--model MODEL] LOSS
                            run the cell as a function: memory of forward and backward; the first NaN or infinite value;
                            a plan of the saved tensors to recompute
        %%tapescope --step [--model MODEL]
                            memory of a training step, which is the cell, and runs several times
        %tapescope --help   a summary

        P is "heap" (PyTorch's order), "bfs", "dfs", or the name of a variable with a policy or function.
        E is "direct" (any ready task can run next; the default) or "native" (PyTorch's engine runs step by step).
        --batch auto runs matrix products of several tasks together if possible; such runs cannot be undone.
        A is "inplace" (gradients are summed as in PyTorch), "out_of_place" or "list"; R is "eager" (a consumed input
        buffer is freed, as in PyTorch) or "never". Values other than PyTorch's need E "direct".
        Q is "one" (a single ready queue for all devices) or "per-device", as in PyTorch's engine.
        LOSS is an expression, evaluated after the cell has run. MODEL is the module whose parameters are named;
        without it, each outermost module that the cell calls. --keep-inputs keeps the inputs of operations.
        The verbs act on the most recent deck; advise needs none. back, goto, branch and restore need E "direct".

        Examples:

        %%tapescope --policy bfs loss
        loss = model(x).sum()
        """
        with options_named(OPTIONS):
            return self._open(line, cell) if cell is not None else self._run_line(line)

    def _run_line(self, line: str) -> Any:
        verb, _, rest = line.strip().partition(" ")
        if line.split()[:1] in (["--help"], ["-h"]):
            print(summary())
            return None
        if verb in MAGICS and not (_is_expression(line) and _is_loss(self.shell.user_ns.get(verb))):
            try:
                return CALLS[MAGICS[verb].name](MagicLine(self.shell, verb, rest.strip()))
            except UsageError:
                raise
            except BaseException as error:  # raised by a task, in a hook or a custom Function
                raise _with_users_lines(self.shell, error) from None
        if not verb:
            raise UsageError("%tapescope needs the name of a loss, or a verb; %tapescope? lists the verbs")
        self._expect_loss(verb, line)
        return self._open(line, None)

    def _expect_loss(self, word: str, line: str) -> None:
        """Raise UsageError if a word is neither a verb nor a variable. It is probably misspelled."""
        if not word.isidentifier() or (word in self.shell.user_ns and (_is_expression(line) or " --" in line)):
            return
        if word == "help":
            raise UsageError("%tapescope --help shows a summary, %tapescope? all verbs and options")
        losses = (name for name, value in self.shell.user_ns.items() if _is_loss(value))
        expected = "not a verb" if word in self.shell.user_ns else "neither a verb nor a variable"
        near = did_you_mean(word, [*MAGICS, *losses])
        python = f"; ts.{word} is a Python function" if word in sys.modules[__name__.partition(".")[0]].__all__ else ""
        raise UsageError(f"{word!r} is {expected}{near} verbs are {', '.join(MAGICS)}{python}")

    def _cell_verb(self, line: str, cell: str, options: Options) -> Any:
        if options != Options(options.loss, model=options.model, verb=options.verb):
            raise UsageError(f"--{options.verb} takes no other option than --model")
        _refuse_await(self.shell, cell)
        module = None if options.model is None else self._value(options.model, "--model", "")
        assert options.verb is not None
        return run_cell_verb(self.shell, options.verb, line, cell, options.loss, module)

    def _open(self, line: str, cell: str | None) -> object:
        options, from_before = parse(line), None
        if options.verb is not None:
            if cell is None:
                raise UsageError(f"--{options.verb} needs a cell: %%tapescope {line.strip()}")
            return self._cell_verb(line, cell, options)
        if not in_notebook():
            raise UsageError(
                "a deck needs a notebook, with anywidget (pip install 'tapescope[notebook]'); "
                "session = ts.debug(loss) steps through the backward anywhere"
            )
        if after_loss := _OPTION.search(options.loss):
            corrected = f"{options.loss[after_loss.start() :].strip()} {options.loss[: after_loss.start()].strip()}"
            raise UsageError(f"options come before the loss: {'%' if cell is None else '%%'}tapescope {corrected}")
        if not options.loss:
            raise UsageError("missing loss; usage: %%tapescope loss")
        if options.engine not in ENGINES:
            raise UsageError(f"unknown engine {options.engine!r}; expected one of {', '.join(ENGINES)}")
        if options.batch not in (None, "auto"):
            raise UsageError(f"unknown --batch {options.batch}; expected auto")
        if options.queues is not None and options.queues not in QUEUES:
            raise UsageError(f"unknown --queues {options.queues}; expected one of {', '.join(QUEUES)}")
        policy = policy_of(self.shell, options.policy)
        try:
            rule = Accumulation(options.accumulate, options.release)  # type: ignore[arg-type]
            if options.engine == "native":
                rule.check_native()
        except (ValueError, NotImplementedError) as error:
            raise UsageError(as_options(error)) from None
        if cell is None and options.keep_inputs:
            raise UsageError("--keep-inputs needs a cell that computes the loss: %%tapescope --keep-inputs loss")
        module = None
        if cell is not None:
            looked_up = "; --model is evaluated before the cell runs, so create the model in an earlier cell"
            module = None if options.model is None else self._value(options.model, "--model", looked_up)
            if not isinstance(module, nn.Module | None):
                raise UsageError(f"--model {options.model} must be a module, got {a_kind(module)}")
            before = self.shell.user_ns.get(options.loss)
            from_before = ref(before) if isinstance(before, Tensor) else None
            del before  # the old loss keeps its graph alive, and the cell's forward may need that memory
            run_captured(self.shell, line, cell, module, options.keep_inputs)
        loss = self._value(options.loss, "the loss", "" if cell is None else "; the cell did not assign it")
        if isinstance(loss, Tensor) and _is_freed(loss):
            if from_before is not None and from_before() is loss:
                raise UsageError(
                    f"the cell did not assign {options.loss}; it is still the earlier tensor, whose graph a backward "
                    "has freed"
                )
            raise UsageError(
                f"a backward has freed the graph of {options.loss}; compute the loss again without calling "
                "backward(), which the deck runs"
            )
        try:
            with with_model(module):
                return debug(
                    loss,
                    policy=policy,
                    engine=options.engine,  # type: ignore[arg-type]
                    batch=options.batch,  # type: ignore[arg-type]
                    queues=None if options.queues is None else QUEUES[options.queues],
                    accumulate=rule.accumulate,
                    release=rule.release,
                )
        except (TypeError, ValueError, RuntimeError) as error:  # no task has run, so the error is about the arguments
            notes = (note.removeprefix("tapescope: ") for note in getattr(error, "__notes__", ()))
            raise UsageError(as_options("; ".join([str(error), *notes]))) from None

    def _value(self, expression: str, what: str, if_unknown: str) -> Any:
        try:
            return eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except Exception as error:
            hint = if_unknown if isinstance(error, NameError) else ""
            if isinstance(error, SyntaxError) and " --" in expression:
                hint = "; options come before the loss"
            raise UsageError(f"{what}, {expression!r}, raised {type(error).__name__}: {error}{hint}") from None


DeckMagics.tapescope.__doc__ = f"{inspect.cleandoc(DeckMagics.tapescope.__doc__ or '')}\n\n{magic_help()}"


def summary() -> str:
    """Return the text of `%tapescope --help`."""
    verbs = ", ".join(MAGICS)
    return "\n".join(
        [
            "%%tapescope [OPTION ...] LOSS    run the cell, and open the deck on its loss",
            "%tapescope [OPTION ...] LOSS     open the deck on an existing loss",
            "%tapescope VERB [ARGUMENT ...]   drive the deck shown last",
            "",
            "instead of the deck, with %%tapescope:",
            *(
                f"  --{name}{' LOSS' if each.takes_loss else ''}".ljust(18) + f" {each.help}"
                for name, each in CELL_VERBS.items()
            ),
            "",
            "options of the deck:",
            f"  --policy P         {', '.join(policy_names())}, or a variable with a policy",
            f"  --engine E         {', '.join(ENGINES)}",
            f"  --accumulate A     {', '.join(get_args(Accumulate))};  --release R  {', '.join(get_args(Release))}",
            f"  --batch auto;  --queues Q  {', '.join(QUEUES)};  --model MODEL;  --keep-inputs",
            "",
            *wrap(verbs, 100, initial_indent="verbs: ", subsequent_indent="       "),
            "%tapescope? describes each option and verb",
        ]
    )


def run_captured(
    shell: InteractiveShell, line: str, cell: str, module: nn.Module | None, keep_inputs: bool = False
) -> None:
    """Run a cell's code under capture. If it raises, show the partial graph and raise the error again.

    Args:
        shell: the shell.
        line: the text after `%%tapescope`. A comment with this text replaces the magic's line, so that line numbers and
            tracebacks match the cell that the user sees.
        cell: the code.
        module: the module whose parameters are named.
        keep_inputs: whether to keep the inputs of operations.

    Raises:
        UsageError: the cell awaits at its top level, which only the kernel can run.
    """
    if not cell.lstrip().startswith("%%"):  # another cell magic, which has to stay on the first line
        cell = f"# %%tapescope {line}\n{cell}"
    _refuse_await(shell, cell)
    show = shell._showtraceback

    def keep(kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
        if isinstance(error, SyntaxError):  # raising it from here would add the magic's frames
            show(kind, error, lines)

    with suppress(BaseException), capture(module, keep_inputs=keep_inputs, every_call=True) as tape:
        vars(shell)["_showtraceback"] = keep  # run_cell prints errors and does not raise them
        count = shell.execution_count
        # run_cell names the code by this number in tracebacks. The shell's own counter may already be one higher.
        number = getattr(shell.displayhook.exec_result, "execution_count", None)
        shell.execution_count = count if number is None else int(number)
        try:
            result = shell.run_cell(cell)
        finally:
            shell.execution_count = count
            del vars(shell)["_showtraceback"]
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            raise error
    # IPython has already shown the syntax error.
    if isinstance(error, SyntaxError):
        raise UsageError("no deck was opened, because the cell has a syntax error")
    if error is not None:
        with suppress(ValueError):  # raised if the forward built no graph before the error
            display(tape.graph())
        raise _with_users_lines(shell, error)


def _refuse_await(shell: InteractiveShell, cell: str) -> None:
    try:
        transformed, failed = shell.transform_cell(cell), None
    except Exception:
        transformed, failed = cell, sys.exc_info()
    if not shell.should_run_async(cell, transformed_cell=transformed, preprocessing_exc_tuple=failed):
        return
    with suppress(RuntimeError):  # raised if no event loop runs, as in IPython outside of a notebook
        asyncio.get_running_loop()
        raise UsageError(
            "%%tapescope does not support await, async for or async with at the top level of its cell; await in "
            "another cell, or capture with `with ts.capture(model):` and open the deck with ts.debug(loss)"
        )


def _with_users_lines(shell: InteractiveShell, error: BaseException) -> BaseException:
    """Return the error, set up to be shown with the user's own lines only."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    for each in reversed(frames):
        if not each.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            traceback = TracebackType(traceback, each.tb_frame, each.tb_lasti, each.tb_lineno)
    lines = shell.InteractiveTB.structured_traceback(type(error), error, traceback, tb_offset=0)
    # IPython calls this method, if an error has it, in place of its own formatting.
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
    return error


def complete(shell: InteractiveShell, event: Any) -> list[str]:
    """Return the completions for a line of `%tapescope`."""
    words = event.line.split()
    last = "" if event.line.endswith(" ") else words.pop()
    option = last.partition("=")[0] if "=" in last else words[-1] if words else ""
    if words[1:2] == ["compare"]:
        return complete_verb(shell, "compare", last, event.line)
    if option == "--policy":
        return policy_names()
    if option == "--engine":
        return list(ENGINES)
    if option == "--accumulate":
        return list(get_args(Accumulate))
    if option == "--release":
        return list(get_args(Release))
    if option == "--batch":
        return ["auto"]
    if option == "--queues":
        return list(QUEUES)
    if words[1:2] and words[1] in MAGICS:
        return complete_verb(shell, words[1], last, event.line)
    tensors = [name for name, value in shell.user_ns.items() if not name.startswith("_") and _is_loss(value)]
    options = [*OPTIONS, *FLAGS, *(CELL_VERBS if words[0] == "%%tapescope" else ("help",))]
    return [*(MAGICS if len(words) == 1 else ()), *(f"--{name}" for name in options), *tensors]


def _is_loss(value: object) -> bool:
    return getattr(value, "grad_fn", None) is not None


def _is_expression(line: str) -> bool:
    """Return whether a line is a Python expression, as `step` and `step * 2` are, but not `step 2`."""
    try:
        compile(line.strip(), "", "eval")
    except (SyntaxError, ValueError):
        return False
    return True


def _is_freed(loss: Tensor) -> bool:
    """Return whether a backward has freed a node near the loss, where another backward would raise."""
    found = [] if loss.grad_fn is None else [loss.grad_fn]
    seen = set(found)
    for node in found:
        if is_freed(node):
            return True
        nexts = [each for each, _ in node.next_functions if each is not None and each not in seen]
        if len(found) < _NEAR:
            found += nexts
            seen.update(nexts)
    return False


def load(shell: InteractiveShell) -> None:
    """Register the magics for `%load_ext tapescope`.

    The parts of torch that the first deck needs are imported when the kernel is idle. A thread cannot import them,
    because imports in two threads can see partially initialized modules.
    """
    with suppress(RuntimeError):  # raised if no event loop runs, because there is no kernel
        asyncio.get_running_loop().call_later(_SOON_S, warm_up_fakes)
    shell.register_magics(DeckMagics)
    shell.set_hook("complete_command", complete, re_key=r"%{1,2}tapescope")
