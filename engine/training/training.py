"""`th.training`: a whole training loop, watched while it runs, which stays as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from os import PathLike, fspath
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...inspector.arguments import SIZES, a_kind, bytes_of, expect, expect_number, expect_truth
from .black_box import USUAL, BlackBox, kinds_of
from .held_parameters import HeldParameters
from .leaks import Leaks
from .norm_watch import NormWatch
from .optimizer_findings import SkippedSteps
from .part import LoopPart
from .record import Training
from .spoiled_backwards import SpoiledBackwards
from .watch import TrainingWatch

PARTS: list[Callable[[], LoopPart]] = [
    NormWatch,
    Leaks,
    SkippedSteps,
    SpoiledBackwards,
    HeldParameters,
    BlackBox,
]
"""What is watched, in the order in which it is told of the loop. The black box is last: it keeps what others find."""

Models = nn.Module | Sequence[nn.Module] | None
Optimizers = Optimizer | Sequence[Optimizer] | None

_lock = threading.Lock()
_installed: list[Training] = []


def _models(value: Any) -> list[nn.Module]:
    wanted = "a module, a list of modules, or None: whatever is called is watched"
    found = [value] if isinstance(value, nn.Module) else value
    if found is None:
        return []
    expect(found, list | tuple, "model", wanted)
    for each in found:
        if not isinstance(each, nn.Module):
            raise TypeError(f"model has {a_kind(each)} in it; expected {wanted}")
    if not found:
        raise ValueError(f"model is empty; expected {wanted}")
    return list(found)


def _optimizers(value: Any) -> list[Optimizer]:
    wanted = "an optimizer, a list of optimizers, or None: whatever steps is watched"
    found = [value] if isinstance(value, Optimizer) else value
    if found is None:
        return []
    expect(found, list | tuple, "optimizer", wanted)
    for each in found:
        if not isinstance(each, Optimizer):
            raise TypeError(f"optimizer has {a_kind(each)} in it; expected {wanted}")
    if not found:
        raise ValueError(f"optimizer is empty; expected {wanted}")
    return list(found)


def _limit(value: str | int) -> int:
    wanted = "a number of bytes"
    if isinstance(value, str):
        return bytes_of(value, "limit", wanted)
    expect_number(value, int, "limit", f"{wanted}, or a size {SIZES}")
    if value < 0:
        raise ValueError(f"limit is {value}; expected {wanted}, or a size {SIZES}")
    return value


def training(
    model: Models = None,
    optimizer: Optimizers = None,
    *,
    every: int = 10,
    writes: bool = False,
    black_box: str | PathLike[str] | None = None,
    black_box_on: Collection[str] = USUAL,
    limit: str | int = "2GB",
    synchronize: bool = False,
) -> Training:
    """Watches a training loop that stays as it is: `with th.training(model, optimizer) as training:`.

    What is found is said in a sentence as it is found, and stays in `training.findings`. A step ends when an optimizer
    that has stepped in it steps again, so also with several optimizers (GANs), several steps of one of them,
    accumulation, closures (LBFGS) and steps that a gradient scaler leaves out; or by `training.step()`. The loop is
    that of the thread that opens the block.

    Args:
        model: the model, or a list of them; None: those that are called.
        optimizer: the optimizer, or a list of them; None: those that step.
        every: how often what is dear is looked at, in steps.
        writes: whether each write in place is noted, with its line.
        black_box: a folder into which a bad step is put, so that it can be run again, with `th.replay`: parameters,
            the batch, random numbers. These are data of yours; nobody else may look into it.
        black_box_on: on what: "non-finite" (the loss or a gradient), "exception" (one that leaves the loop or a
            backward), or the kind of a finding, such as "norm".
        limit: how many bytes these may take, as a number or as "2GB" (10⁹) or "2GiB" (2³⁰).
        synchronize: whether the loop may wait for an accelerator once a step.

    Raises:
        TypeError, ValueError: an argument is no such thing.
    """
    models, optimizers = _models(model), _optimizers(optimizer)
    expect_number(every, int, "every", "a number of steps, 1 or more")
    if every < 1:
        raise ValueError(f"every is {every}; expected a number of steps, 1 or more")
    expect_truth(writes, "writes")
    expect_truth(synchronize, "synchronize")
    kinds = kinds_of(black_box_on)
    if black_box is not None:
        expect(black_box, str | PathLike, "black_box", "the path of a folder")
    folder = None if black_box is None else fspath(black_box)
    made = Training(int(every), bool(writes), folder, _limit(limit), bool(synchronize), kinds)
    for each in models:
        made.watched.add(each)
    made.watch_by(TrainingWatch(made, [make() for make in PARTS], models, optimizers))
    return made


def install_training(
    model: Models = None,
    optimizer: Optimizers = None,
    *,
    every: int = 10,
    writes: bool = False,
    black_box: str | PathLike[str] | None = None,
    black_box_on: Collection[str] = USUAL,
    limit: str | int = "2GB",
    synchronize: bool = False,
) -> Training:
    """From now on watches whatever this thread trains, for Trainers: as `th.training`, until `th.uninstall_training()`
    or `training.close()`."""
    made = training(
        model,
        optimizer,
        every=every,
        writes=writes,
        black_box=black_box,
        black_box_on=black_box_on,
        limit=limit,
        synchronize=synchronize,
    )
    made.open()
    with _lock:
        _installed.append(made)
    return made


def uninstall_training() -> None:
    """Ends all that `th.install_training` began; the findings stay."""
    with _lock:
        installed = tuple(_installed)
        _installed.clear()
    for each in reversed(installed):
        each.close()
