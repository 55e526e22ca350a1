"""The comparison with PyTorch: the gradients of a step, and side effects of a verb."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from comparing import is_ours
from leftovers import Leftovers
from results import Cell
from stranger import Stranger
from torch import Tensor
from world.programs import Program
from world.snapshot import bits, differences, snapshot

import tapescope as ts

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11, torch.bfloat16: 5e-2}
"""By how much of its largest element a gradient may differ in another order, whose sums round otherwise."""

_OF_ALL = 1e-2  # of the largest gradient in the model: of less than that, a part may cancel out
_MOST = 3  # facts that are named


OFF = 0.005
"""Of the measured peak: by that much a prediction may be off which does not call itself an estimate."""


class WrongError(Exception):
    """A verb's error, in words."""


REFUSALS = (NotImplementedError, ts.PolicyError)


def refusal(error: Exception) -> str | None:
    """The sentence of a refusal that is one of ours; None: it is another error."""
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return str(error) if isinstance(error, REFUSALS) and is_ours(raised_in) and str(error) else None


def difference(
    found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None], dtype: torch.dtype | None = None
) -> float:
    """The largest difference of two sets of gradients, as a share of what is tolerated; 0: all bits are equal.

    Args:
        found, expected: by name.
        dtype: to which was rounded, should that be another one than theirs.

    Raises:
        WrongError: there are others, or of another kind.
    """
    largest = max((_size(each) for each in expected.values() if each is not None), default=0.0)
    worst = 0.0
    for name, right in expected.items():
        one = found[name]
        if (one is None) != (right is None):
            raise WrongError(f"{name} got {'no' if one is None else 'a'} gradient")
        if one is None or right is None or bits(one.to_dense()) == bits(right.to_dense()):
            continue
        if (one.dtype, one.layout, one.shape) != (right.dtype, right.layout, right.shape):
            raise WrongError(
                f"the gradient of {name} is {one.dtype} {tuple(one.shape)}, not {right.dtype} {tuple(right.shape)}"
            )
        allowed = TOLERANCE[dtype or right.dtype] * max(_size(right), _OF_ALL * largest)
        off = _size(one - right)
        worst = max(worst, off / allowed if allowed else float("inf"))
    return worst


def tolerated(
    policy: str,
    found: Mapping[str, Tensor | None],
    expected: Mapping[str, Tensor | None],
    dtype: torch.dtype | None = None,
) -> float:
    """The difference, where it may be: under heap there is none, elsewhere that of rounding. Arguments as above.

    Raises:
        WrongError: it is larger.
    """
    off = difference(found, expected, dtype)
    if off > (0 if policy == "heap" else 1):
        raise WrongError(f"{policy}: {off:.2g} of what is tolerated")
    return off


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().to_dense().abs().max()) if tensor.numel() else 0.0


def gradients_of(stranger: Stranger, step: Callable[[], object]) -> tuple[dict[str, Tensor | None], dict[str, object]]:
    """The gradients of a step from the start, and what else it leaves: buffers, parameters and generators."""
    stranger.put_back()
    step()
    left: dict[str, object] = {name: bits(each) for name, each in stranger.model.state_dict().items()}
    left["torch's random numbers"] = bits(torch.get_rng_state())
    return stranger.gradients(), left


@contextmanager
def nothing_changes(stranger: Stranger) -> Iterator[None]:
    """A verb that is asked for a prediction or a finding.

    Raises:
        WrongError: what has changed.
    """
    program = Program(stranger.model, stranger.make_loss)
    leftovers, before = Leftovers(), snapshot(program)
    yield
    changed = [*differences(before, snapshot(program)), *leftovers.sentences()]
    if changed:
        raise WrongError(f"changed: {', '.join(changed[:_MOST])}")


@contextmanager
def nothing_left() -> Iterator[None]:
    """A verb that runs a backward: no hook, mode or thread stays.

    Raises:
        WrongError: what is left.
    """
    leftovers = Leftovers()
    yield
    if left := leftovers.sentences():
        raise WrongError(f"left behind: {', '.join(left)}")


def held(what: str, found: ts.types.Timeline, measured: int) -> Cell:
    """A predicted peak against a measured one."""
    off = found.peak_bytes / measured - 1
    text = f"{what} {ts.size_text(measured)} {100 * off:+.2f} %".strip()
    if found.estimates:
        return Cell("estimate", text)
    return Cell("right" if abs(off) <= OFF else "wrong", text)
