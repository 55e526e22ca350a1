"""`%%tapescope --profile LOSS` and its like: a cell that a verb runs as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from traceback import extract_tb
from types import CodeType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from torch import nn

from ...engine.api.profile import profile
from ...engine.diagnose.find_nan import find_nan
from ...engine.recompute.plan_recompute import plan_recompute
from ...engine.training.record_steps import profile_step
from ...inspector.text.progress import quiet


@dataclass(frozen=True, slots=True)
class CellVerb:
    """A verb for a cell.

    Attributes:
        help: its result in words.
        run: calls the verb with the cell as a function, and the model that names modules.
        takes_loss: whether an expression for the loss follows; the cell is a whole training step otherwise.
    """

    help: str
    run: Callable[[Callable[[], Any], nn.Module | None], Any]
    takes_loss: bool = True


def _profile(make_loss: Callable[[], Any], model: nn.Module | None) -> Any:
    run = profile(make_loss, model=model)
    display(run.peak())
    return run


def _plan(make_loss: Callable[[], Any], model: nn.Module | None) -> Any:
    with quiet():
        return plan_recompute(make_loss, model=model)


CELL_VERBS = {
    "profile": CellVerb("measure the memory of the cell's forward and its backward", _profile),
    "step": CellVerb(
        "measure the memory of a training step, which is the cell, and runs several times",
        lambda step, model: profile_step(step, model=model),
        takes_loss=False,
    ),
    "find-nan": CellVerb(
        "find the first NaN or infinite value", lambda make_loss, model: find_nan(make_loss, model=model)
    ),
    "plan": CellVerb("plan which saved tensors to recompute", _plan),
}
"""The verbs for a cell, by option."""


def run_cell_verb(shell: InteractiveShell, name: str, line: str, cell: str, loss: str, model: nn.Module | None) -> Any:
    """Run a cell as the function of a verb, and return the verb's result.

    Args:
        shell: the shell, in whose variables the cell runs.
        name: the verb's option.
        line: the text after `%%tapescope`. A comment with it stands for the magic's line, so that line numbers match
            the cell that the user sees.
        cell: the code.
        loss: the expression for the loss.
        model: the module that names modules and parameters.

    Raises:
        UsageError: the cell or the verb raised. The message is one line, with the line of the cell.
    """
    verb = CELL_VERBS[name]
    if verb.takes_loss != bool(loss):
        wanted = (
            f"the loss after it: %%tapescope --{name} loss" if verb.takes_loss else "no loss, because it runs the cell"
        )
        raise UsageError(f"--{name} needs {wanted}")
    source = shell.transform_cell(f"# %%tapescope {line}\n{cell}")
    file = shell.compile.cache(source, shell.execution_count)
    try:
        code = compile(source, file, "exec")
        value: CodeType | None = compile(loss, f"the loss {loss!r}", "eval") if loss else None
    except SyntaxError as error:
        raise UsageError(f"line {error.lineno} of the cell: {error.msg}: {(error.text or '').strip()}") from None

    def function() -> Any:
        exec(code, shell.user_global_ns, shell.user_ns)
        return None if value is None else eval(value, shell.user_global_ns, shell.user_ns)

    try:
        return verb.run(function, model)
    except Exception as error:
        raise UsageError(_in_one_line(error, file)) from None


def _in_one_line(error: Exception, file: str) -> str:
    """Return an error's text, with the innermost line of the cell in its traceback."""
    text = str(error).partition("\n")[0]
    places = [frame for frame in extract_tb(error.__traceback__) if frame.filename == file]
    if not places:
        return text
    notes = "".join(f"; {note.removeprefix('tapescope: ')}" for note in getattr(error, "__notes__", ())[:1])
    return f"line {places[-1].lineno} of the cell, {places[-1].line}: {type(error).__name__}: {text}{notes}"
