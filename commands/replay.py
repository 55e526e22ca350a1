"""`tapescope replay`: runs a step that a black box has kept again, and says whether it is the same and what was bad."""

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

The folder is one that ts.training(..., black_box="black_box") has written. In train.py:
  def make_model(): return Net()                            # any values: it gets the recorded ones
  def loss_of(model, batch): return mse(model(batch[0]), batch[1])   # what the loop calls .backward() of
"""


def add_replay(commands: Commands) -> None:
    """Adds `tapescope replay`."""
    replay = commands.add_parser(
        "replay",
        help="run a training step again that a black box has kept, and say what was bad in it",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.add_argument("folder", type=Path, metavar="FOLDER", help="of the step, such as black_box/step_37")
    replay.add_argument(
        "make_model", metavar="SCRIPT.py:MAKE_MODEL", help="a function without arguments that makes the model"
    )
    replay.add_argument(
        "loss_of", metavar="SCRIPT.py:LOSS_OF", help="a function of model and batch that gives the loss"
    )
    replay.add_argument("--page", type=Path, metavar="FILE", help="write its backward as a page that plays, too")
    replay.add_argument("--prompt", action="store_true", help="open a prompt before the first task of its backward")
    replay.set_defaults(command=_replay)


def _replay(options: argparse.Namespace, console: Console) -> int:
    from ..engine.training.black_box.replay import replay
    from .user_script import UserError, functions_of

    raised: list[BaseException] = []  # by the user's functions, whichever came last
    try:
        place_for("--page", options.page)
        with functions_of(options.make_model, options.loss_of) as functions, warnings.catch_warnings():
            warnings.showwarning = _say_warning
            try:
                again = replay(options.folder, *(_noted(each, raised) for each in functions))
                return _show(again, options, console)
            except Exception as error:
                if error in raised:
                    raise UserError(error) from error
                raise
    except UserError as error:
        return script_raised(error.error, f"the script raised {type(error.error).__name__}")
    except (TypeError, ValueError, NotImplementedError, OSError) as error:
        return refuse(error)


def _noted(function: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    """The same function; what it raises is noted."""

    @wraps(function)
    def noted(*given: Any) -> Any:
        try:
            return function(*given)
        except Exception as error:
            raised.append(error)
            raise

    return noted


def _say_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    print(f"tapescope: {message}", file=sys.stderr)


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
            print("tapescope: there is neither page nor prompt of a step that raises", file=sys.stderr)
        return 0 if again.same else 1
    console.print()
    for sentence in nan.sentences:
        console.print(sentence, markup=False, soft_wrap=True)
    if options.page is not None:
        page = again.backward().save_html(options.page)
        console.print(f"\nIts backward plays in {page}", markup=False, soft_wrap=True)
    if options.prompt:
        from ..widgets.terminal.prompt import interact

        interact(again.debug())
    return 0 if again.same else 1
