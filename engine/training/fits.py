"""`ts.fits`: predicts whether a training step fits into memory, and which changes reduce the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from ...inspector.renderers import GraphTheme, drawn, saved_page
from ...inspector.text.report import ShownAsTable
from ...inspector.text.sizes_and_counts import (
    SIZES,
    both_units,
    bytes_of,
    percent_text,
    refuse_bare_size,
    share_text,
    size_text,
)
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.torch_private.optimizer_steps import is_fused
from ...inspector.validation import expect, expect_number
from ..execution.unsupported import refuse_transforms
from ..memory.estimates import Estimate, bounded_size, estimate_sentence
from .simulated_step import FakeStep, FakeTraining, Workspaces, as_found, fake_step
from .step_memory import OPTIMIZER, PhasePeak, StepTimeline, cells_of
from .training_recipe import LossOf, MakeBatch, MakeModel, MakeOptimizer, Recipe, model_on_fakes
from .tried_batches import LARGEST_TRIED, TriedBatches

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of the training step that reduces its peak.

    Attributes:
        name: "fused", "recompute", "accumulation" or "checkpoints".
        how: the code to write.
        peak_bytes: the peak of a steady step with it; for a recompute plan, an upper bound.
        saved_bytes: the bytes that it saves.
        fits: whether the step fits into the memory with it, its preparation included.
        price: its cost, in words.
    """

    name: str
    how: str
    peak_bytes: int
    saved_bytes: int
    fits: bool
    price: str

    def __str__(self) -> str:
        verdict = "would fit" if self.fits else "not enough alone"
        saved = share_text(self.saved_bytes, self.peak_bytes + self.saved_bytes)
        peak = f"{'at most ' if self.name == 'recompute' else ''}{size_text(self.peak_bytes)}"
        return f"{self.how}: {peak}, {saved} less, {verdict}. Price: {self.price}."


def remedies_for(recipe: Recipe, plain: FakeStep, learned: Sequence[Workspaces], memory: int) -> tuple[Remedy, ...]:
    """Return the remedies that need less memory than the plain step: those that fit first, sorted by cost.

    Args:
        recipe: model, batch, optimizer and loss.
        plain: the step without a remedy.
        learned: see `FakeTraining`.
        memory: the available bytes.
    """
    flops = fake_step(recipe, count=True).flops
    found = [
        Remedy(name, how, peak, plain.peak_bytes - peak, max(peak, first) <= memory, price)
        for name, how, peak, price, first in (
            *_fused(recipe, learned),
            *_recomputation(recipe, plain, flops),
            *_accumulated(recipe, learned, memory),
            *_checkpointed(recipe, learned, flops),
        )
        if peak < plain.peak_bytes
    ]
    return tuple(sorted(found, key=lambda each: not each.fits))


Found = tuple[str, str, int, str, int]
"""Name, how, the peak of a steady step, price, and the least that the first steps need."""


def _fused(recipe: Recipe, learned: Sequence[Workspaces]) -> Iterator[Found]:
    """Try the optimizer's fused kernel, which makes no copies of its inputs."""
    kinds: list[type[Optimizer]] = []

    def fuse(model: nn.Module, optimizer: Optimizer) -> None:
        if "fused" in optimizer.defaults and not is_fused(optimizer):
            kinds.append(type(optimizer))
        for group in optimizer.param_groups:
            group.update(foreach=False, fused=True)

    try:
        step = fake_step(recipe, learned=learned, change=fuse)
    except (RuntimeError, TypeError):  # an optimizer without a fused kernel
        return
    if kinds:
        yield (
            "fused",
            f"torch.optim.{kinds[0].__name__}(..., fused=True)",
            step.peak_bytes,
            "none; it is usually faster",
            0,
        )


def _accumulated(recipe: Recipe, learned: Sequence[Workspaces], memory: int) -> Iterator[Found]:
    """Try gradient accumulation, with the fewest parts that fit, or the most possible."""
    size = recipe.size
    if size is None or size < 2:
        return
    parts = 2
    while parts <= size:
        try:
            # From the second micro-batch on, .grad exists and memory repeats: two show the peak of any number.
            peak = fake_step(recipe.sized(-(-size // parts)), learned=learned, micro_batches=2).peak_bytes
        except Exception:  # e.g. state of a fixed batch size, or sparse gradients
            return
        if peak <= memory or 2 * parts > size:
            yield (
                "accumulation",
                f"{parts} batches of {-(-size // parts)} before each optimizer.step()",
                peak,
                f"{parts} times as many kernels, each on a part; batch norm sees the parts",
                0,
            )
            return
        parts *= 2


def _checkpointed(recipe: Recipe, learned: Sequence[Workspaces], plain_flops: int) -> Iterator[Found]:
    """Try checkpoints around the most frequent layers."""
    kinds: list[str] = []

    def wrap(model: nn.Module, optimizer: Optimizer) -> None:
        for each in repeated_layers(model):
            kinds.append(type(each).__name__)
            each.forward = partial(checkpoint, each.forward, use_reentrant=False)

    try:
        peak = fake_step(recipe, learned=learned, change=wrap).peak_bytes
    except Exception:  # layers that can't run in a checkpoint
        return
    count = len(kinds)
    if count:
        more_flops = fake_step(recipe, change=wrap, count=True).flops
        how = f"torch.utils.checkpoint.checkpoint(..., use_reentrant=False) around each of {count} {kinds[0]}"
        more = f", {percent_text(more_flops / plain_flops - 1)} more arithmetic" if plain_flops else ""
        yield "checkpoints", how, peak, f"the forward of these runs twice{more}", 0


def _recomputation(recipe: Recipe, plain: FakeStep, flops: int) -> Iterator[Found]:
    """Yield a recompute plan made on fake CPU tensors; each operation is timed alone on real tensors."""
    if plain.device.type != "cpu" or not 0 < flops <= _MOST_FLOPS:
        return
    from ..recompute.plan_recompute import plan_recompute  # here, as it loads a fifth of the package

    fakes = FakeTraining()
    with as_found(recipe):
        with fakes:
            model, batch = model_on_fakes(recipe, fakes), recipe.batch()
        try:
            with fakes.mode:
                plan = plan_recompute(
                    lambda: recipe.loss_of(model, batch), overhead=_OVERHEAD, seconds=_SECONDS, model=model
                )
        except (NotImplementedError, RuntimeError, ValueError):  # such as a forward with checkpoints
            return
    saved = plan.plain_peak_bytes - plan.peak_bytes
    peak = max(each.nbytes - (0 if each.phase == OPTIMIZER else saved) for each in plain.phases)
    predicted = plan.predicted
    if plan.dropped and predicted is not None:
        extra = (predicted.replay_seconds + predicted.recording_seconds) / predicted.plain_seconds
        yield (
            "recompute",
            f"with ts.recompute(ts.plan_recompute(make_loss, {plan.peak_bytes})) around the forward",
            peak,
            f"{percent_text(extra)} of forward and backward, as planned; planning, and the first step, which "
            "verifies the plan, need at least as much memory as a step without it",
            plain.peak_bytes,
        )


_OVERHEAD = 0.1
_SECONDS = 1.0
_MOST_FLOPS = 2 * 10**11
"""The most flops of two steps for which operations are timed; timing more would take minutes."""


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that make up most of a model: among siblings of the same class, those with the most parameters.

    There are at least two, and none is inside another.
    """
    best: list[nn.Module] = []
    most = 0
    for module in model.modules():
        children = [each for each in module.children() if any(True for _ in each.children())]
        for kind, count in Counter(map(type, children)).items():
            layers = [each for each in children if type(each) is kind]
            weight = sum(parameter.numel() for each in layers for parameter in each.parameters())
            if count > 1 and weight > most:
                best, most = layers, weight
    return best


@dataclass(frozen=True, repr=False)
class Fit(ShownAsTable):
    """The result of `ts.fits`: whether a training step fits into memory. It prints as a table, and displays itself in a
    notebook with its memory over the step.

    Attributes:
        memory: the available bytes.
        device: the device of that memory.
        reserve: bytes of it that have to stay free.
        batch_size: the requested batch size, or the default of `make_batch`; None if it takes no size.
        timeline: the predicted memory over a steady step.
        estimates: the reasons why the figures are estimates, each an `Estimate` with its direction; empty if nothing is
            known to be missing.
    """

    memory: int
    device: torch.device
    reserve: int
    batch_size: int | None
    timeline: StepTimeline
    estimates: tuple[str, ...]
    _recipe: Recipe = field(repr=False)
    _tried: TriedBatches = field(repr=False)

    @property
    def phases(self) -> tuple[PhasePeak, ...]:
        """The peaks of forward, backward and optimizer in a steady step, each with bytes by category."""
        return self.timeline.peaks

    @property
    def highest(self) -> PhasePeak:
        """The phase with the highest peak."""
        return max(self.phases, key=lambda each: each.nbytes)

    @property
    def peak_bytes(self) -> int:
        """The peak of a steady step: parameters, buffers, optimizer state, gradients, the batch, and all tensors that
        forward, backward and optimizer create."""
        return self.highest.nbytes

    @property
    def fits(self) -> bool:
        """True if the peak fits into the memory minus the reserve."""
        return self.peak_bytes <= self.usable_bytes

    @property
    def usable_bytes(self) -> int:
        """The memory without the reserve."""
        return self.memory - self.reserve

    @property
    def parts(self) -> dict[str, Mapping[str, int]]:
        """The bytes of each category at the peak of each phase."""
        return {each.phase: each.parts for each in self.phases}

    @cached_property
    def largest_batch(self) -> int | None:
        """The largest batch that fits; it was tried. 0 if no batch fits.

        None if `make_batch` takes no size, or 2²⁰ still fits. The next size does not fit. It was tried as well, unless
        each tensor's size grows by the same bytes from one batch size to the next; this is checked at three sizes,
        the largest among them. Computing it simulates two to five more steps, once.

        Raises:
            ValueError: `make_batch` ignores the size it is passed, as `data[:size]` does beyond the data.
            Exception: errors of the program with another batch size; a note names the size.
        """
        return self._tried.largest(self.usable_bytes) if self._recipe.takes_size else None

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """Ways to need less memory, each tried on fake tensors, sorted by cost: a fused optimizer, a recompute plan (if
        operations are small enough to be timed here), accumulation, checkpoints.

        They are computed once, on first use.
        """
        step = self._tried.step(self.batch_size)
        return remedies_for(self._recipe, step, self._tried.known, self.usable_bytes)

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Draw the memory over a steady step by category, with its phases. Needs plotly."""
        return drawn("step as a figure", self, theme)

    def lifetimes_figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Draw one bar per block of memory, the largest by bytes × time first. Needs plotly."""
        return drawn("lifetimes of a step as a figure", self, theme)

    def save_html(self, path: str | Path, title: str = "Memory of a training step") -> Path:
        """Write one page with the table, the memory over the step and the lifetimes, which works offline."""
        return saved_page("fit as a page", path, self, title)

    @property
    def cells(self) -> list[list[str]]:
        return cells_of(self.phases)

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return (
            f"<Fit: {size_text(self.peak_bytes)} in the {self.highest.phase}, of {both_units(self.memory)}: {verdict}>"
        )

    words = ("",)
    html = "fit as HTML"

    @property
    def sentences(self) -> list[str]:
        remedies = () if self.fits else self.remedies
        return [each for each in (self._verdict(), self._batches(), *map(str, remedies)) if each]

    def _verdict(self) -> str:
        largest = max(self.highest.parts.items(), key=lambda part: part[1])
        of = "" if self.batch_size is None else f" with a batch of {self.batch_size:,}"
        peak, there = bounded_size(self.peak_bytes, self.estimates), both_units(self.memory)
        kept = f" less {size_text(self.reserve)} in reserve" if self.reserve else ""
        on = "" if self.device.type == "meta" else f" of {self.device.type.upper()} memory"
        verdict = (
            f"It fits{of}: {peak} of {there}{on}{kept}"
            if self.fits
            else f"It does not fit{of}: it needs {peak} of {there}{on}{kept}"
        )
        share = share_text(largest[1], self.peak_bytes)
        where = f"at its highest in the {self.highest.phase}, where {share} is {largest[0]}"
        elsewhere = "" if self.device.type not in ("cpu", "meta") else ' For the memory of a GPU give device="cuda".'
        return f"{verdict}, {where}. {estimate_sentence(self.estimates)}".rstrip() + elsewhere

    def _batches(self) -> str:
        if not self._recipe.takes_size:
            return ""
        try:
            largest = self.largest_batch
        except Exception as error:  # another batch size may fail; the prediction for this one is still valid
            said = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")
            return f"The largest batch that fits is unknown, because another size raised {said}."
        if largest is None:
            return f"Even a batch of {LARGEST_TRIED:,} fits."
        return f"The largest batch that fits: {largest:,}." if largest else "Not even a batch of 1 fits."


def fits(
    make_model: MakeModel,
    make_batch: MakeBatch,
    make_optimizer: MakeOptimizer,
    memory: int | str,
    loss_of: LossOf | None = None,
    *,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    reserve: int | str | None = None,
) -> Fit:
    """Predict whether a training step fits into memory, by running forward, backward and optimizer on fake tensors.

    Nothing of the model is allocated, and no values are computed. Two steps are run, since an optimizer creates its
    state in the first; the result is the peak of the second, including everything alive then. Workspaces of kernels are
    measured by running each distinct kernel once on real CPU tensors of its shapes, of up to 1 GiB (64 MiB for
    products, convolutions and attention). This takes real memory and the time of these kernels. Larger ones are
    extrapolated from two smaller batches. Random generators, and the state that the functions reach, are restored
    afterwards (see `AsFound`).

    Args:
        make_model: a function that returns the model, or the model. An existing model is copied to fake tensors and
            left unchanged.
        make_batch: `make_batch(size)` or `make_batch()`; a default of `size` is the requested size.
        make_optimizer: a function of a list of parameters, such as `lambda p: torch.optim.Adam(p, 1e-3)`.
        memory: the available bytes, as a number, or as "24GB" (10⁹) or "24GiB" (2³⁰).
        loss_of: a function of model and batch that returns the loss. None: the model's output, or its `.loss`; a dict
            is passed as `model(**batch)`, a tuple as `model(*batch)`.
        batch_size: the requested batch size. None: the default of `make_batch`, or 1.
        device: the device of the memory, such as "cuda", even if model and batch are created on the CPU. Allocations
            are then rounded up to 512 bytes, as CUDA's allocator does. None: the device of the parameters. On the meta
            device nothing is rounded or reserved.
        reserve: bytes of `memory` to keep free for memory that is not predicted, in the same form: a GPU's context
            (about 0.5 GiB), cuBLAS and cuDNN, and fragmentation. None: 1 GiB of a GPU's memory, but at most half of it,
            and 0 of other memory.

    Returns:
        A `Fit` with `fits`, `peak_bytes`, `parts`, `largest_batch` and `remedies`.

    Raises:
        TypeError, ValueError: an argument has a wrong type or value, or a function returns something unexpected.
        NotImplementedError: the program reads a number from a tensor (`.item()`) outside the optimizer, or has shapes
            that depend on values (boolean masks); it runs an operation that does not support fake tensors (most
            operations on sparse and nested tensors, torch.cond); it runs on a device that this torch was not built for,
            or trains with LBFGS.
        Exception: errors of the program.

    Known limitations: an optimizer's step may read values, such as norms; 1 is assumed for each, and the result is an
    estimate. Python numbers that the graph saves as tensors (`x * 2`), 8 bytes each, are not counted where a checkpoint
    recomputes them, or where the loss does not depend on the result.
    """
    wanted = "a number of bytes above 0"
    if isinstance(memory, str):
        limit = bytes_of(memory, "memory", wanted)
    else:
        expect_number(memory, int, "memory", f"{wanted}, or a size {SIZES}")
        refuse_bare_size(memory, "memory")
        limit = int(memory)
    if limit <= 0:
        raise ValueError(f"memory is {memory!r}; expected {wanted}, or a size {SIZES}")
    kept = None if reserve is None else _reserve(reserve, limit)
    refuse_transforms("ts.fits")
    recipe = replace(
        Recipe.of(make_model, make_batch, make_optimizer, loss_of, batch_size),
        device=None if device is None else named_device(device),
    )
    tried = TriedBatches(recipe)
    step = tried.step(recipe.size)
    gpu = step.device.type not in ("cpu", "meta")  # a meta model does not name its later device
    if kept is None:
        kept = min(RESERVE_BYTES, limit // 2) if gpu else 0
    estimates = (*step.estimates, *((Estimate(_OF_A_GPU, "unknown"),) if gpu else ()))
    return Fit(limit, step.device, kept, recipe.size, step.timeline, estimates, recipe, tried)


RESERVE_BYTES = 2**30
"""The default reserve of a GPU's memory: PyTorch's context takes some 0.5 GiB, cuBLAS up to 32 MiB; the rest is for
cuDNN and fragmentation. An assumption, not measured on the GPU in question."""

_OF_A_GPU = (
    "the workspace of a GPU's kernels is assumed to equal that of the CPU's; the GPU's context and fragmentation are "
    "not predicted, and the reserve is meant for them"
)


def _reserve(reserve: int | str, memory: int) -> int:
    wanted = "a number of bytes from 0 on, less than memory"
    if isinstance(reserve, str):
        found = bytes_of(reserve, "reserve", wanted)
    else:
        expect_number(reserve, int, "reserve", f"{wanted}, or a size {SIZES}")
        found = int(reserve)
    if not 0 <= found < memory:
        raise ValueError(f"reserve is {reserve!r}; expected {wanted}, or a size {SIZES}")
    return found


def named_device(device: torch.device | str) -> torch.device:
    """Return a device by its name. Raise TypeError or ValueError if it is not one."""
    expect(device, torch.device | str, "device", 'a device or its name, such as "cuda"')
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(f'device is {device!r}; expected a device or its name, such as "cuda"') from error


keep_compiler_out(fits)
