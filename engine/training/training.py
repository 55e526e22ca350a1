"""`ts.training` watches an unchanged training loop while it runs, and writes its numbers to a logger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from os import PathLike, fspath
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...inspector.text.sizes_and_counts import SIZES, bytes_of
from ...inspector.torch_private.optimizer_steps import is_optimizer
from ...inspector.torch_private.thread_state import unobserved
from ...inspector.validation import a_kind, expect, expect_number, expect_truth
from .black_box.black_box import USUAL, BlackBox, kinds_of
from .freed_graphs import InvalidGraphs
from .leaks.graph_leaks import Leaks
from .leaks.retained_graphs import RetainedGraphs
from .ledger.clearing import Clearing
from .ledger.clipping import Clipping
from .ledger.movement import Movement
from .ledger.never_stepped import NeverStepped
from .ledger.zero_gradients import ZeroGradients
from .logger import Logger, expect_depth, numbers_of
from .loop_observers import LoopPart, TrainingWatch
from .memory_samples import HeldMemory
from .norm_watch import NormWatch
from .optimizer_checks import SkippedSteps, StaleCasts
from .step_times import StepTimes
from .training_result import Training


class Writer(LoopPart):
    """Writes new norms and findings to a logger once a step.

    Norms are read a step late, so that nothing waits for an accelerator. Each is written with its own step's number.

    Args:
        logger: the logger to write to.
        depth: see `numbers_of`.
    """

    def __init__(self, logger: Logger, depth: int) -> None:
        self._logger = logger
        self._depth = depth
        self._next = 0  # the first step not yet written
        self._findings = 0  # findings already written
        self._raised = False

    def begins(self, training: Training) -> None:
        self._training = training
        self._logger.begin()

    def step_ends(self, number: int) -> None:
        self._write()

    def ends(self) -> None:
        """Write the last step. The loop calls its own `log` no more."""
        if not self._raised:
            self._logger.commit()  # else the last step would replace the one before it
            self._write()

    def _write(self) -> None:
        self._raised = True  # reset below; `ends` is called even after an error here
        numbers = numbers_of(self._training.norms, self._depth, self._next)
        found = self._training.findings
        new, self._findings = found[self._findings :], len(found)
        self._next = max(numbers, default=self._next - 1) + 1
        self._logger.write(numbers, new)
        self._raised = False


PARTS: list[Callable[[], LoopPart]] = [
    NormWatch,
    Leaks,
    RetainedGraphs,
    HeldMemory,
    SkippedSteps,
    InvalidGraphs,
    Clearing,
    NeverStepped,
    Movement,
    ZeroGradients,
    Clipping,
    StaleCasts,
    StepTimes,
    BlackBox,
]
"""The observers, in the order in which they are called. The black box is last: it writes what the others find."""

Models = nn.Module | Sequence[nn.Module] | None
Optimizers = Optimizer | Sequence[Optimizer] | None


def _listed(value: Any, is_one: Callable[[object], bool], name: str, wanted: str) -> list[Any]:
    """Return one or several objects as a list; None gives an empty one."""
    if value is None:
        return []
    found = [value] if is_one(value) else value
    expect(found, list | tuple, name, wanted)
    for each in found:
        if not is_one(each):
            raise TypeError(f"{name} has {a_kind(each)} in it; expected {wanted}")
    if not found:
        raise ValueError(f"{name} is empty; expected {wanted}")
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
    found_inf: bool = False,
    writer: Any = None,
    depth: int = 1,
) -> Training:
    """Watch a training loop without changing it: `with ts.training(model, optimizer) as training:`.

    Each finding is reported as a warning when it is found, and stays in `training.findings`. A step ends when an
    optimizer that has stepped in it steps again, which covers several optimizers (GANs), several steps of one of them,
    gradient accumulation, closures (LBFGS) and steps skipped by a gradient scaler; or by `training.step()`. The loop is
    that of the thread that opens the block.

    In every `every`-th step, parameters are copied while their optimizer steps, at most 64 MiB at once, or one module
    if it is larger. The updates of a larger model are measured module by module, in this step and the following ones.
    If a graph waits for its backward while an optimizer steps that increments no version counters (`fused=True`), the
    parameters with gradients are copied. The black box has its own limit.

    Args:
        model: the model, or a list of models; None: the models that are called.
        optimizer: the optimizer, or a list of optimizers; None: those that step. A wrapper (Accelerate's, Lightning's,
            your own) stands for the optimizers that it steps.
        every: the interval of expensive measurements, in steps.
        writes: whether to record each in-place write with its line.
        black_box: a folder for bad steps, which `ts.replay` can run again: parameters, the batch, random states. These
            are your data, readable by you only.
        black_box_on: the occasions: "non-finite" (the loss or a gradient), "exception" (one that leaves the loop or a
            backward), or the kind of a finding, such as "norm".
        limit: the bytes that these steps may take, as a number, or as "2GB" (10⁹) or "2GiB" (2³⁰).
        synchronize: whether the loop may wait for an accelerator once a step.
        found_inf: skip the parameter update of a non-finite step, on the device, as GradScaler does. Fused optimizers
            only; requires `black_box=`. This changes what the loop computes.
        writer: a logger that gets norms, losses, learning rates and findings once a step, one step late: an object with
            `add_scalar(tag, value, step)`, such as TensorBoard's SummaryWriter, with `log_metrics(values, step=)`, such
            as Lightning's loggers, or with `log(values, commit=)`, such as the result of `wandb.init()`.
        depth: the number of parts of a module's path in the logger's tags, such as 1 for "encoder" and "head"; 0: only
            the whole loop is written. With more than 100 modules it is reduced.

    Raises:
        TypeError, ValueError: an argument has a wrong type or value.
    """
    models = _listed(
        model,
        lambda each: isinstance(each, nn.Module),
        "model",
        "a module, a list of modules, or None for all that are called",
    )
    optimizers = _listed(
        optimizer, is_optimizer, "optimizer", "an optimizer, a list of optimizers, or None for all that step"
    )
    expect_number(every, int, "every", "a number of steps, 1 or more")
    if every < 1:
        raise ValueError(f"every is {every}; expected a number of steps, 1 or more")
    expect_truth(writes, "writes")
    expect_truth(synchronize, "synchronize")
    expect_truth(found_inf, "found_inf")
    if found_inf and black_box is None:
        raise ValueError("found_inf needs the black box; pass a folder as black_box=")
    kinds = kinds_of(black_box_on)
    parts = [make() for make in PARTS]
    expect_depth(depth)
    if writer is not None:
        parts.append(Writer(Logger(writer), depth))
    if black_box is not None:
        expect(black_box, str | PathLike, "black_box", "the path of a folder")
    folder = None if black_box is None else fspath(black_box)
    with unobserved():
        made = Training(int(every), bool(writes), folder, _limit(limit), bool(synchronize), kinds)
    made.is_written, made.found_inf = writer is not None, bool(found_inf)
    for each in models:
        made.watched.add(each)
    watch = TrainingWatch(made, parts, models, optimizers)
    made.clock = watch.loop_ns
    made.watch_by(watch)
    return made
