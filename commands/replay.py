"""`tapescope replay`: runs a step kept by a black box again, and reports differences, NaN and inf."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .command_arguments import Commands, place_for, refuse, script_raised
from .json_output import tell

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.training.black_box.replay import StepReplay

EXAMPLES = """\
examples:
  tapescope replay black_box/step_37 train.py:make_model train.py:loss_of
  tapescope replay black_box/step_37 train.py:make_model train.py:loss_of --page step_37.html
  tapescope replay black_box/step_37 train.py:make_model train.py:loss_of --prompt

FOLDER was written by ts.training(..., black_box="black_box"). In train.py:
  def make_model(): return Net()                            # the recorded values are loaded into it
  def loss_of(model, batch): return mse(model(batch[0]), batch[1])   # the loss of which the loop calls .backward()
"""


def add_replay(commands: Commands) -> None:
    """Add `tapescope replay`."""
    replay = commands.add_parser(
        "replay",
        help="run a training step kept by a black box again, and find NaN and inf in it",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the step, such as black_box/step_37")
    replay.add_argument(
        "make_model", metavar="SCRIPT.py:MAKE_MODEL", help="a function without arguments that returns the model"
    )
    replay.add_argument(
        "loss_of", metavar="SCRIPT.py:LOSS_OF", help="a function of model and batch that returns the loss"
    )
    replay.add_argument("--page", type=Path, metavar="FILE", help="also write a page that plays its backward")
    replay.add_argument("--prompt", action="store_true", help="open a prompt before the first task of its backward")
    replay.set_defaults(command=_replay)


def _replay(options: argparse.Namespace, console: Console) -> int:
    from ..engine.training.black_box.replay import replay
    from .user_script import UserError, functions_of

    raised: list[BaseException] = []  # errors of the user's functions
    try:
        place_for("--page", options.page)
        with functions_of(options.make_model, options.loss_of) as functions, warnings.catch_warnings():
            warnings.showwarning = lambda message, *where, **more: print(f"tapescope: {message}", file=sys.stderr)
            try:
                again = replay(options.folder, *(_recording_errors(each, raised) for each in functions))
                return _show(again, options, console)
            except Exception as error:
                if error in raised:
                    raise UserError(error) from error
                raise
    except UserError as error:
        return script_raised(error.error, f"the script raised {type(error.error).__name__}")
    except (TypeError, ValueError, NotImplementedError, OSError) as error:
        return refuse(error)


def _recording_errors(function: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    """Wrap a function and append the errors that it raises to `raised`."""

    @wraps(function)
    def wrapped(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raised.append(error)
            raise

    return wrapped


def _show(again: StepReplay, options: argparse.Namespace, console: Console) -> int:
    for sentence in again.sentences:
        console.print(sentence, markup=False, soft_wrap=True)
    nan = None if again.error is not None else again.find_nan()
    tell(
        lambda: {
            "folder": again.folder,
            "step": again.step,
            "same": again.same,
            "differences": again.differences,
            "losses": [each.detach().cpu().item() for each in again.losses],
            "raised": None if again.error is None else f"{type(again.error).__name__}: {again.error}",
            "sentences": again.sentences,
            "nan": None if nan is None else nan.sentences,
        }
    )
    if nan is None:
        if options.page is not None or options.prompt:
            print("tapescope: --page and --prompt are ignored, because the step raised an error", file=sys.stderr)
        return 0 if again.same else 1
    console.print()
    for sentence in nan.sentences:
        console.print(sentence, markup=False, soft_wrap=True)
    if options.page is not None:
        page = again.backward().save_html(options.page)
        console.print(f"\nPage that plays its backward: {page}", markup=False, soft_wrap=True)
    if options.prompt:
        from ..widgets.terminal.prompt import interact

        interact(again.debug())
    return 0 if again.same else 1
