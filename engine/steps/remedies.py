"""What would take less memory, tried on fakes, with what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from ...inspector.torch_internals.optimizer_steps import is_fused
from ..mirroring.plan_recompute import plan_recompute
from ..words.sizes import percent_text, share_text, size_text
from .fake_model import model_on_fakes
from .fake_step import FakeStep, FakeTraining, Workspaces, as_found, fake_step
from .phases import OPTIMIZER
from .recipe import Recipe


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to need less memory.

    Attributes:
        name: "fused", "mirror", "accumulation" or "checkpoints".
        how: the code to write.
        peak_bytes: of a steady step with it; of a mirror plan, which is made for this peak, the most.
        saved_bytes: the bytes that it saves.
        fits: whether the step fits into the memory with it, its preparation included.
        price: what it costs, in words.
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
        peak = f"{'at most ' if self.name == 'mirror' else ''}{size_text(self.peak_bytes)}"
        return f"{self.how}: {peak}, {saved} less, {verdict}. Price: {self.price}."


def remedies_for(recipe: Recipe, plain: FakeStep, learned: Sequence[Workspaces], memory: int) -> tuple[Remedy, ...]:
    """All that take less than the step as it is; those that would fit first, of these the cheapest.

    Args:
        recipe: what to train with.
        plain: the step as it is.
        learned: see `FakeTraining`.
        memory: the bytes that there are.
    """
    flops = fake_step(recipe, count=True).flops
    found = [
        Remedy(name, how, peak, plain.peak_bytes - peak, max(peak, first) <= memory, price)
        for name, how, peak, price, first in (
            *_fused(recipe, learned),
            *_mirrored(recipe, plain, flops),
            *_accumulated(recipe, learned, memory),
            *_checkpointed(recipe, learned, flops),
        )
        if peak < plain.peak_bytes
    ]
    return tuple(sorted(found, key=lambda each: not each.fits))


Found = tuple[str, str, int, str, int]
"""Name, how, the peak of a steady step, price, and the least that the first steps need."""


def _fused(recipe: Recipe, learned: Sequence[Workspaces]) -> Iterator[Found]:
    """The optimizer's fused kernel, which makes no copies of what it reads."""
    kinds: list[type[Optimizer]] = []

    def fuse(model: nn.Module, optimizer: Optimizer) -> None:
        if "fused" in optimizer.defaults and not is_fused(optimizer):
            kinds.append(type(optimizer))
        for group in optimizer.param_groups:
            group.update(foreach=False, fused=True)

    try:
        step = fake_step(recipe, learned=learned, change=fuse)
    except (RuntimeError, TypeError):  # an optimizer without one
        return
    if kinds:
        yield (
            "fused",
            f"torch.optim.{kinds[0].__name__}(..., fused=True)",
            step.peak_bytes,
            "none, it is faster mostly",
            0,
        )


def _accumulated(recipe: Recipe, learned: Sequence[Workspaces], memory: int) -> Iterator[Found]:
    """The batch in parts, whose gradients are added up: the fewest parts that fit, else the most."""
    size = recipe.size
    if size is None or size < 2:
        return
    parts = 2
    while parts <= size:
        try:
            peak = fake_step(recipe.sized(-(-size // parts)), learned=learned, micro_batches=2).peak_bytes
        except Exception:  # e.g. a state of one batch size, sparse gradients that meet: no smaller parts
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
    """Checkpoints around the layers of which there are most."""
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


def _mirrored(recipe: Recipe, plain: FakeStep, flops: int) -> Iterator[Found]:
    """A plan for mirroring, made on fakes of the CPU: each operation is run alone on real tensors, to be timed."""
    if plain.device.type != "cpu" or not 0 < flops <= _MOST_FLOPS:
        return
    fakes = FakeTraining()
    with as_found(recipe):
        with fakes:
            model, batch = model_on_fakes(recipe, fakes), recipe.batch()
        try:
            with fakes.mode:
                plan = plan_recompute(
                    lambda: recipe.loss_of(model, batch), overhead=_OVERHEAD, seconds=_SECONDS, model=model
                )
        except (NotImplementedError, RuntimeError, ValueError):  # of what it can't be planned, e.g. under checkpoints
            return
    saved = plan.plain_peak_bytes - plan.peak_bytes
    peak = max(each.nbytes - (0 if each.phase == OPTIMIZER else saved) for each in plain.phases)
    predicted = plan.predicted
    if plan.dropped and predicted is not None:
        extra = (predicted.replay_seconds + predicted.recording_seconds) / predicted.plain_seconds
        yield (
            "mirror",
            f"with ts.recompute(ts.plan_recompute(make_loss, {plan.peak_bytes})) around the forward",
            peak,
            f"{percent_text(extra)} of forward and backward, as planned; planning, and the first step, which tries the "
            "plan, take more than without",
            plain.peak_bytes,
        )


_OVERHEAD = 0.1
_SECONDS = 1.0
_MOST_FLOPS = 2 * 10**11
"""Of two steps: more would take minutes to be timed, operation by operation."""


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that a model is mostly made of: of those of one class that stand side by side the ones with the most
    parameters, two at least, and none of them within another."""
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
