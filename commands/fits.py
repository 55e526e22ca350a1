"""`tapescope fits`: predicts whether a training step fits into memory, without allocating it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from ..inspector.text.option_form import as_options
from .command_arguments import Commands, refuse, script_raised
from .json_output import tell

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.training.fits import Fit


_OURS = TypeError, ValueError, NotImplementedError  # raised by tapescope about the arguments

EXAMPLES = """\
examples:
  tapescope fits train.py:setup --memory 24GB
  tapescope fits train.py:setup --memory 24GB --batch-size 8 --device cuda
  tapescope fits train.py:make_loss --limit 24GB --optimizer AdamW

In train.py:
  def setup():                                              # Net is a class, or a function that returns the model
      make_batch = lambda size=32: (torch.randn(size, 784), torch.randint(10, (size,)))
      make_optimizer = lambda parameters: torch.optim.Adam(parameters, 1e-3)   # called with a list
      return Net, make_batch, make_optimizer, lambda model, batch: cross_entropy(model(batch[0]), batch[1])
"""


def add_fits(commands: Commands) -> None:
    """Add `tapescope fits`."""
    fits = commands.add_parser(
        "fits",
        help="predict whether a training step fits into memory, without allocating it",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fits.add_argument(
        "target",
        metavar="SCRIPT.py:FUNCTION",
        help="a function without arguments that returns (make_model, make_batch, make_optimizer[, loss_of]) or a dict; "
        "with --limit, one that returns a loss",
    )
    sizes = fits.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--memory", metavar="SIZE", help="available memory: 24GB (10^9) or 24GiB (2^30)")
    sizes.add_argument("--limit", metavar="SIZE", help="the highest peak of a function that returns a loss")
    fits.add_argument("--optimizer", metavar="NAME", help="with --limit: an optimizer of torch.optim (default: none)")
    fits.add_argument("--batch-size", type=int, metavar="N", help="the batch size to predict (default: make_batch's)")
    fits.add_argument("--device", help='the device of that memory: "cuda" works without a GPU (default: the model\'s)')
    fits.add_argument(
        "--reserve", metavar="SIZE", help="memory to keep free (default: 1GiB, at most half, on a GPU; 0 on the CPU)"
    )
    fits.set_defaults(command=_fits)


@contextmanager
def _users_errors() -> Iterator[None]:
    """Raise errors of the user's functions as `UserError`. Those that tapescope raises about arguments pass."""
    from ..inspector.graph.source_lines import OWN_CODE, is_library
    from .user_script import UserError

    try:
        yield
    except Exception as error:
        files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
        if isinstance(error, _OURS) and all(is_library(each) or each.startswith(OWN_CODE) for each in files):
            raise
        raise UserError(error) from error


def _fits(options: argparse.Namespace, console: Console) -> int:
    from ..engine.training.fits import fits
    from ..engine.training.training_recipe import recipe_of
    from .user_script import UserError, made_by

    if options.limit is not None:
        return _within_limit(options, console)
    try:
        with made_by(options.target) as made:
            parts = recipe_of(made, options.target.rpartition(":")[2])
            with _users_errors():
                fit = fits(
                    **parts,  # type: ignore[arg-type]
                    memory=options.memory,
                    batch_size=options.batch_size,
                    device=options.device,
                    reserve=options.reserve,
                )
                sentences = [as_options(each) for each in fit.sentences]
    except UserError as error:
        return script_raised(error.error, f"{options.target} raised {type(error.error).__name__}")
    except _OURS as error:
        return refuse(error)
    tell(lambda: fit_content(fit) | {"sentences": sentences})
    console.print(fit.table)
    for sentence in sentences:
        console.print(f"\n{sentence}", markup=False)
    return 0 if fit.fits else 1


def _within_limit(options: argparse.Namespace, console: Console) -> int:
    import torch

    from ..engine.training.fits import named_device
    from ..engine.training.peak_limit.assert_peak import NOT_COUNTED, limit_of, over_limit
    from ..engine.training.peak_limit.simulated_function import simulate_function
    from ..inspector.text.sizes_and_counts import both_units
    from .user_script import UserError, functions_of

    try:
        device = str(named_device(options.device or "cuda"))
        limit = limit_of(options.limit)
        if options.batch_size is not None or options.reserve is not None:
            raise ValueError("--batch-size and --reserve belong to --memory; --limit takes the batch of the function")
        optimizer = None if options.optimizer is None else getattr(torch.optim, options.optimizer, None)
        if options.optimizer is not None and not callable(optimizer):
            raise ValueError(f"torch.optim has no optimizer {options.optimizer!r}; expected a name such as AdamW")
        with functions_of(options.target) as (make_loss,), _users_errors():
            found = simulate_function(make_loss, "tapescope fits --limit", device, optimizer, has_loss=True)
    except UserError as error:
        return script_raised(error.error, f"{options.target} raised {type(error.error).__name__}")
    except _OURS as error:
        return refuse(error)
    fits = found.peak_bytes <= limit
    peak = f"the predicted peak is {both_units(found.peak_bytes)} of {both_units(limit)}"
    sentence = f"{peak}, in the {found.timeline.peak_phase.name}" if fits else over_limit(found, limit)
    tell(
        lambda: {
            "fits": fits,
            "memory_bytes": limit,
            "peak_bytes": found.peak_bytes,
            "batch_size": None,
            "largest_batch": None,
            "phases": [
                {"phase": each.phase, "bytes": each.nbytes, "parts": each.parts} for each in found.timeline.peaks
            ],
            "device": device,
            "reserve_bytes": 0,
            "estimates": [NOT_COUNTED],
            "direction": NOT_COUNTED.direction,
            "sentences": [sentence, str(NOT_COUNTED)],
        }
    )
    for each in (sentence, NOT_COUNTED):
        console.print(each, markup=False, soft_wrap=True)
    return 0 if fits else 1


def fit_content(fit: Fit) -> dict[str, Any]:
    """Return the prediction as JSON content."""
    from ..engine.memory.estimates import direction_of

    largest = None
    with suppress(Exception):  # the program may accept only one size; the sentences report that
        largest = fit.largest_batch
    return {
        "fits": fit.fits,
        "memory_bytes": fit.memory,
        "peak_bytes": fit.peak_bytes,
        "batch_size": fit.batch_size,
        "largest_batch": largest,
        "phases": [{"phase": each.phase, "bytes": each.nbytes, "parts": each.parts} for each in fit.phases],
        "device": str(fit.device),
        "reserve_bytes": fit.reserve,
        "estimates": fit.estimates,
        "direction": direction_of(fit.estimates),
        "sentences": fit.sentences,
    }
