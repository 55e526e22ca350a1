"""The magics: `%load_ext tapescope`, then `%tapescope` and `%%tapescope`."""

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
from ...engine.planning.policies import POLICIES
from ...engine.schedule.device_queues import QUEUES
from ...inspector.capture.capture import Tape, capture
from ...inspector.graph.freed_nodes import first_over
from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import OWN_CODE
from ...inspector.torch_private.operators import warm_up_fakes
from ...inspector.validation import a_kind, did_you_mean
from ..deck.open_deck import debug, in_notebook
from ..deck.verbs import MAGICS, magic_help
from .magic_verbs import CALLS, Told, complete_verb, policy_of

ENGINES = ("direct", "native")
OPTIONS = ("policy", "engine", "accumulate", "release", "batch", "queues", "model")
FLAGS = ("keep-inputs",)

_OPTION = re.compile(rf" --({'|'.join((*OPTIONS, *FLAGS))})\b")
_NEAR = 50  # nodes
_SOON_S = 0.2  # a cell that is waiting begins first

_NOT_THE_USERS = (
    *OWN_CODE,
    *(str(Path(file).parent) + os.sep for file in (IPython.__file__, concurrent.futures.__file__)),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What `%%tapescope` and `%tapescope LOSS` were given."""

    loss: str
    policy: str = "heap"
    engine: str = "direct"
    batch: str | None = None
    queues: str | None = None
    model: str | None = None
    keep_inputs: bool = False
    accumulate: str = "inplace"
    release: str = "eager"


def parse(line: str) -> Options:
    """Reads the options in front of an expression.

    Raises:
        UsageError: an unknown option, or one without its value.
    """
    found: dict[str, Any] = {}
    rest = line.strip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        rest = rest.strip()
        name, given, value = word[2:].partition("=")
        if name in FLAGS and not given:
            found[name.replace("-", "_")] = True
            continue
        if name not in OPTIONS:
            raise UsageError(
                f"%tapescope has no option --{name}; it has {joined([f'--{each}' for each in OPTIONS], len(OPTIONS))}, "
                "which take a value, and --keep-inputs"
            )
        if not given:
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
        """Step through a backward and show it: PyTorch's autograd graph, ready queue, gradients and memory.

        %%tapescope [--policy P] [--engine E] [--batch auto] [--accumulate A] [--release R] [--queues Q]
                   [--model MODEL] [--keep-inputs] LOSS
                            run the cell, watch its forward, and open the deck on LOSS
        %tapescope [--policy P] [--engine E] [--batch auto] [--accumulate A] [--release R] [--queues Q] LOSS
                            open the deck on a loss that is there already; deck = %tapescope loss keeps it

        P is "heap" (PyTorch's own), "bfs", "dfs", or the name of a variable with a policy or function of yours.
        E is "direct" (any ready task may run next; the default) or "native" (PyTorch's own engine runs, and stops).
        --batch auto runs products of several tasks as one where they can; it takes no task back.
        A is "inplace" (gradients that meet are summed as PyTorch does), "out_of_place" or "list"; R is "eager" (what a
        task has consumed is let go, as PyTorch does) or "never". Others than PyTorch's need E "direct".
        Q is "one" (ready queue for all devices) or "per-device", as PyTorch's engine has them.
        LOSS is an expression, looked at when the cell has run. MODEL is the module below which parameters are named;
        without it, each outermost module that the cell calls. --keep-inputs keeps what operations were called with.
        The verbs act on the deck shown last; advise needs none. back, goto, branch and restore need E "direct".

        Examples:

        %%tapescope --policy bfs loss
        loss = model(x).sum()
        """
        if cell is not None:
            return self._open(line, cell)
        verb, _, rest = line.strip().partition(" ")
        if verb in MAGICS and not (_is_expression(line) and _is_loss(self.shell.user_ns.get(verb))):
            try:
                return CALLS[MAGICS[verb].name](Told(self.shell, verb, rest.strip()))
            except UsageError:
                raise
            except BaseException as error:  # of a task: a hook, a custom Function
                raise _with_users_lines(self.shell, error) from None
        if not verb:
            raise UsageError("%tapescope needs the name of a loss, or a verb: %tapescope? shows them all")
        self._expect_loss(verb, line)
        return self._open(line, None)

    def _expect_loss(self, word: str, line: str) -> None:
        """Refuses a word that is neither a verb nor a variable: it was meant to be one of them."""
        if not word.isidentifier() or (word in self.shell.user_ns and (_is_expression(line) or " --" in line)):
            return
        if word == "help":
            raise UsageError("%tapescope? shows all verbs and options")
        losses = (name for name, value in self.shell.user_ns.items() if _is_loss(value))
        neither = "no verb" if word in self.shell.user_ns else "neither a verb nor a variable"
        near = did_you_mean(word, [*MAGICS, *losses])
        python = f"; ts.{word} is called in Python" if word in sys.modules[__name__.partition(".")[0]].__all__ else ""
        raise UsageError(f"there is {neither} {word!r}{near} verbs are {', '.join(MAGICS)}{python}")

    def _open(self, line: str, cell: str | None) -> object:
        if not in_notebook():
            raise UsageError(
                "a deck needs a notebook, with anywidget (pip install 'tapescope[notebook]'); "
                "session = ts.debug(loss) steps through the backward anywhere"
            )
        options, from_before = parse(line), None
        if behind := _OPTION.search(options.loss):
            given = f"{options.loss[behind.start() :].strip()} {options.loss[: behind.start()].strip()}"
            raise UsageError(f"options stand before the loss: {'%' if cell is None else '%%'}tapescope {given}")
        if not options.loss:
            raise UsageError("which tensor? Give the loss: %%tapescope loss")
        if options.engine not in ENGINES:
            raise UsageError(f"there is no engine {options.engine!r}; known are {', '.join(ENGINES)}")
        if options.batch not in (None, "auto"):
            raise UsageError(f"there is no --batch {options.batch}; known is auto")
        if options.queues is not None and options.queues not in QUEUES:
            raise UsageError(f"there is no --queues {options.queues}; known are {joined([*QUEUES])}")
        policy = policy_of(self.shell, options.policy)
        try:
            rule = Accumulation(options.accumulate, options.release)  # type: ignore[arg-type]
            if options.engine == "native":
                rule.check_native()
        except (ValueError, NotImplementedError) as error:
            raise UsageError(str(error)) from None
        if cell is None and options.keep_inputs:
            raise UsageError("--keep-inputs is for a cell that computes the loss: %%tapescope --keep-inputs loss")
        if cell is not None:
            looked_up = "; --model is looked up before the cell runs: make the model in a cell above"
            module = None if options.model is None else self._value(options.model, "--model", looked_up)
            if not isinstance(module, nn.Module | None):
                raise UsageError(f"--model {options.model}: a module is needed, not {a_kind(module)}")
            before = self.shell.user_ns.get(options.loss)
            from_before = ref(before) if isinstance(before, Tensor) else None
            del before  # the cell's forward may need its memory
            run_captured(self.shell, line, cell, module, options.keep_inputs)
        loss = self._value(options.loss, "the loss", "" if cell is None else "; the cell did not assign it")
        if isinstance(loss, Tensor) and _is_freed(loss):
            if from_before is not None and from_before() is loss:
                raise UsageError(
                    f"the cell did not assign {options.loss}: it is the tensor from before, whose graph a backward "
                    "has freed"
                )
            raise UsageError(
                f"a backward has run through {options.loss} and freed its graph; make the loss again, and leave the "
                "backward to the deck"
            )
        try:
            return debug(
                loss,
                policy=policy,
                engine=options.engine,  # type: ignore[arg-type]
                batch=options.batch,  # type: ignore[arg-type]
                queues=None if options.queues is None else QUEUES[options.queues],
                accumulate=rule.accumulate,
                release=rule.release,
            )
        except (TypeError, ValueError, RuntimeError) as error:  # nothing has run: it is about what was given
            notes = (note.removeprefix("tapescope: ") for note in getattr(error, "__notes__", ()))
            raise UsageError("; ".join([str(error), *notes])) from None

    def _value(self, expression: str, what: str, if_unknown: str) -> Any:
        try:
            return eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except Exception as error:
            hint = if_unknown if isinstance(error, NameError) else ""
            if isinstance(error, SyntaxError) and " --" in expression:
                hint = "; options stand before the loss"
            raise UsageError(f"{what}, {expression!r}, raised {type(error).__name__}: {error}{hint}") from None


DeckMagics.tapescope.__doc__ = f"{inspect.cleandoc(DeckMagics.tapescope.__doc__ or '')}\n\n{magic_help()}"


def run_captured(
    shell: InteractiveShell, line: str, cell: str, module: nn.Module | None, keep_inputs: bool = False
) -> None:
    """Runs a cell's code under capture. If it raises, shows the graph that had been built, and raises it again.

    Args:
        line: what stands behind `%%tapescope`. Like that line, a comment with it comes first: lines are numbered, and
            shown in tracebacks, as the user sees them.

    Raises:
        UsageError: the cell waits for something at its top level, which only the kernel itself can do.
    """
    if not cell.lstrip().startswith("%%"):  # another magic of the whole cell
        cell = f"# %%tapescope {line}\n{cell}"
    _refuse_await(shell, cell)
    show = shell._showtraceback

    def keep(kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
        if isinstance(error, SyntaxError):  # IPython would show the frames of the magic with it
            show(kind, error, lines)

    with suppress(BaseException), capture(module, keep_inputs=keep_inputs, every_call=True) as tape:
        vars(shell)["_showtraceback"] = keep  # run_cell would print it, and the magic would end as if all were well
        count = shell.execution_count
        shell.execution_count = _prompt(shell)
        try:
            result = shell.run_cell(cell)
        finally:
            shell.execution_count = count
            del vars(shell)["_showtraceback"]
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            raise error
    if isinstance(error, SyntaxError):
        raise UsageError("there is no deck: the cell has an error")
    if error is not None:
        _show_part(tape)
        raise _with_users_lines(shell, error)


def _prompt(shell: InteractiveShell) -> int:
    """The number of the cell that runs. The shell may count the next one already, and lists of the past be longer."""
    number = getattr(shell.displayhook.exec_result, "execution_count", None)
    return shell.execution_count if number is None else int(number)


def _refuse_await(shell: InteractiveShell, cell: str) -> None:
    try:
        transformed, failed = shell.transform_cell(cell), None
    except Exception:
        transformed, failed = cell, sys.exc_info()
    if not shell.should_run_async(cell, transformed_cell=transformed, preprocessing_exc_tuple=failed):
        return
    with suppress(RuntimeError):  # no loop runs: IPython outside a notebook
        asyncio.get_running_loop()
        raise UsageError(
            "%%tapescope can't wait at the top level of its cell (await, async for, async with); wait in another cell, "
            "or capture with `with ts.capture(model):` and open the deck with ts.debug(loss)"
        )


def _with_users_lines(shell: InteractiveShell, error: BaseException) -> BaseException:
    """The error, which is going to be shown with lines of the user's alone."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    for each in reversed(frames):
        if not each.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            traceback = TracebackType(traceback, each.tb_frame, each.tb_lasti, each.tb_lineno)
    lines = shell.InteractiveTB.structured_traceback(type(error), error, traceback, tb_offset=0)
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
    return error


def _show_part(tape: Tape) -> None:
    """The graph of a forward that raised, where there was one."""
    with suppress(ValueError):
        display(tape.graph())


def complete(shell: InteractiveShell, event: Any) -> list[str]:
    """What may come next on a line of `%tapescope`."""
    words = event.line.split()
    last = "" if event.line.endswith(" ") else words.pop()
    option = last.partition("=")[0] if "=" in last else words[-1] if words else ""
    if option == "--policy" or words[1:2] == ["compare"]:
        return list(POLICIES)
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
    return [*(MAGICS if len(words) == 1 else ()), *(f"--{name}" for name in (*OPTIONS, *FLAGS)), *tensors]


def _is_loss(value: object) -> bool:
    return getattr(value, "grad_fn", None) is not None


def _is_expression(line: str) -> bool:
    """Whether Python could read it as one: `step` and `step * 2`, not `step 2`."""
    try:
        compile(line.strip(), "", "eval")
    except (SyntaxError, ValueError):
        return False
    return True


def _is_freed(loss: Tensor) -> bool:
    """Whether a backward has freed a node near the loss, so that another one would raise there."""
    found = [] if loss.grad_fn is None else [loss.grad_fn]
    seen = set(found)
    for node in found:
        if first_over([node]) is not None:
            return True
        nexts = [each for each, _ in node.next_functions if each is not None and each not in seen]
        if len(found) < _NEAR:
            found += nexts
            seen.update(nexts)
    return False


def load(shell: InteractiveShell) -> None:
    """`%load_ext tapescope`. What the first deck needs of torch is loaded once the kernel has nothing to do.

    A thread could not do it meanwhile: beside an import of the user's, one of the two would find modules half loaded.
    """
    with suppress(RuntimeError):  # no kernel, whose loop would run
        asyncio.get_running_loop().call_later(_SOON_S, warm_up_fakes)
    shell.register_magics(DeckMagics)
    shell.set_hook("complete_command", complete, re_key=r"%{1,2}tapescope")
