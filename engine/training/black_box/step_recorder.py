"""Records the state at the start of a training step until the next one starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ....inspector.graph.frame_variables import variables_of
from ....inspector.torch_private.call_watchers import frame_of_call
from ....inspector.torch_private.tensors import beneath_all_transforms
from ...api.environment import Autocast
from .batch import tensors_in, why_not_kept
from .batch_source import INPUTS, Fetched, Fetching
from .models import BufferCopies, Models, has_tensors
from .random_state import RandomNumbers

MOST_MICRO_BATCHES = 64
"""The most micro-batches per unit; bounds a loop whose optimizer steps are not observed."""


@dataclass(slots=True)
class MicroBatch:
    """One forward with its backward.

    Attributes:
        fetched: what it was given.
        random: the random numbers as the loop began with it.
        at_model: torch's, as the first module was called.
        autocast: as it was then.
        buffers: the models', copied then.
        loss: what `backward` was called of, if that is one number.
        scale: what a gradient scaler had multiplied the loss with before.
        unscaled: the loss as it was before that.
        done: whether a backward has run.
    """

    fetched: Fetched
    random: RandomNumbers
    at_model: Tensor
    autocast: Autocast
    buffers: BufferCopies
    loss: Tensor | None = None
    scale: Tensor | None = None
    unscaled: Tensor | None = None
    done: bool = False


@dataclass(slots=True)
class Unit:
    """What runs between two steps of optimizers.

    Attributes:
        micro_batches: one, or several whose gradients are summed.
        dropped: how many were before these, and are not kept.
        gradients_before: copies of what was in .grad as the first backward began, by name.
        parameters: copies of these as they were then; None: they still are so.
    """

    micro_batches: list[MicroBatch] = field(default_factory=list)
    dropped: int = 0
    gradients_before: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] | None = None


class StepKeeper:
    """Follows the loop and holds the running unit. Its methods are called in the loop's thread, `unobserved`.

    Args:
        modules: the modules that the user named; others are found when they are called.

    Attributes:
        models: they.
        unit: what runs.
        lasting: whether a unit is to outlive the next one's beginning, as it must where it is known late that one was
            bad: parameters are copied then, and buffers twice.
        stepping: whether an optimizer's step has begun: closures may be called in it.

    Known limitations: a large buffer of a module that is no norm of torch's is taken to be as it was where its version
    is. Generators of the user's own are not seen.
    """

    def __init__(self, modules: Sequence[nn.Module] = ()) -> None:
        self.models = Models(modules)
        self.unit = Unit()
        self.lasting = False
        self._parity = 0
        self._fetching = Fetching()
        self._copies_batches = False
        self._random: RandomNumbers | None = None  # as the loop goes on with the next forward
        self._copies: dict[tuple[int, int], BufferCopies] = {}
        self._shadow: list[dict[str, Tensor]] = [{}, {}]
        self._before: dict[str, Tensor] = {}
        self._scaled: tuple[ref[Tensor], Tensor, Tensor] | None = None
        self.stepping = False
        self._has_closures = False
        self._stepped: list[ref[Any]] = []

    def batch_fetched(self, batch: object) -> None:
        """A DataLoader hands it out."""
        self._note_written()
        self._fetching.add(Fetched.of(batch, "a DataLoader", self._copies_batches))
        self._random = RandomNumbers.now()

    def scaled(self, loss: object, scaled: Any, scale: Tensor) -> None:
        """A gradient scaler has multiplied a loss. Several at once are not noted."""
        if isinstance(loss, Tensor):
            self._scaled = ref(scaled), scale.detach().clone(), loss.detach()

    def forward_begins(self, module: nn.Module, given: tuple[object, ...], autocast: Autocast) -> None:
        """An outermost module is called, under this autocast."""
        new = self.models.add(module)
        self.models.grow_older()
        last = self.unit.micro_batches[-1] if self.unit.micro_batches else None
        if last is not None and not last.done and not self._fetching.waiting:
            if new:
                last.buffers.take(self.models.buffers(), known=True)
            return
        if not has_tensors(module):
            return  # a loss function
        if last is not None and not last.done:
            self.unit.micro_batches.pop()  # the loop has left it out
        if self.stepping:  # each call of a closure is with parameters of its own
            self._has_closures = True
            self._renew()
        self._begin_micro_batch(module, given, autocast)

    def _begin_micro_batch(self, module: nn.Module, given: tuple[object, ...], autocast: Autocast) -> None:
        micro_batches = self.unit.micro_batches
        if len(micro_batches) >= MOST_MICRO_BATCHES:
            micro_batches.pop(0)
            self.unit.dropped += 1
        fetched = self._taken_by(module, given)
        at_model = torch.get_rng_state()
        from_loader = fetched.origin == "a DataLoader"
        random = self._random if from_loader and self._random is not None else RandomNumbers.now()
        self._random = None
        place = self._parity, (len(micro_batches) + self.unit.dropped) % MOST_MICRO_BATCHES
        buffers = self._copies.setdefault(place, BufferCopies())
        buffers.take(self.models.buffers())
        micro_batches.append(MicroBatch(fetched, random, at_model, autocast, buffers))

    def _taken_by(self, module: nn.Module, given: tuple[object, ...]) -> Fetched:
        frame = frame_of_call()
        named = {} if frame is None else beneath_all_transforms(variables_of(frame).get("kwargs") or {})
        inputs = [tensor for _, tensor in tensors_in((given, named))]
        fetched = self._fetching.take(inputs)
        if fetched is not None:
            return fetched
        batch = named if not given else given if not named else (given, named)
        return Fetched.without_graphs(batch, f"{INPUTS}{type(module).__name__}", self._copies_batches)

    def backward_begins(self, tensors: object) -> None:
        """An outermost backward, of these."""
        unit = self.unit
        self.models.backward_begins()
        if not any(each.done for each in unit.micro_batches):
            self._copy_gradients()
        if not unit.micro_batches:
            return
        micro_batch = unit.micro_batches[-1]
        roots = tensors if isinstance(tensors, Sequence) else (tensors,)
        micro_batch.loss = micro_batch.scale = micro_batch.unscaled = None
        if len(roots) == 1 and isinstance(roots[0], Tensor) and roots[0].numel() == 1 and not why_not_kept(roots[0]):
            micro_batch.loss = roots[0].detach().clone()
            if self._scaled is not None and self._scaled[0]() is roots[0]:
                _, micro_batch.scale, micro_batch.unscaled = self._scaled

    def _copy_gradients(self) -> None:
        """Copy the existing gradients. There are none if the loop sets them to None in zero_grad()."""
        there = {name: each.grad for name, each in self.models.parameters if each.grad is not None}
        there = {name: grad for name, grad in there.items() if not why_not_kept(grad)}
        kept = self.unit.gradients_before = {}
        ours, theirs = [], []
        for name, grad in there.items():
            copy = self._before.get(name)
            if copy is None or copy.shape != grad.shape or copy.dtype != grad.dtype or self.lasting:
                kept[name] = self._before[name] = grad.detach().clone()
            else:
                kept[name] = copy
                ours.append(copy)
                theirs.append(grad.detach())
        if ours:
            torch._foreach_copy_(ours, theirs)

    def backward_ends(self) -> None:
        """Note that a backward has ended."""
        if self.unit.micro_batches:
            self.unit.micro_batches[-1].done = True
        self._scaled = None
        if self._fetching.waiting or self.stepping:
            self._random = RandomNumbers.now()

    def optimizer_begins(self, optimizer: object, leaves_out: bool = False) -> None:
        """Note the start of an optimizer's step. leaves_out: whether it skips the update if the step is bad."""
        if self.lasting and not leaves_out:
            self._copy_parameters()
        self.stepping = True
        if self._has_closures:
            self._random = RandomNumbers.now()

    def _copy_parameters(self) -> None:
        shadow = self._shadow[self._parity]
        ours, theirs = [], []
        for name, each in self.models.parameters:
            copy = shadow.get(name)
            if copy is None or copy.shape != each.shape or copy.dtype != each.dtype or copy.device != each.device:
                shadow[name] = each.detach().clone()
            else:
                ours.append(copy)
                theirs.append(each.detach())
        if ours:
            torch._foreach_copy_(ours, theirs)
        self.unit.parameters = shadow

    def optimizer_ends(self, optimizer: object) -> None:
        """Note the end of an optimizer's step, which may have been skipped."""
        self.stepping = False
        if not any(each() is optimizer for each in self._stepped):
            self._stepped = [each for each in self._stepped if each() is not None] + [ref(optimizer)]
        self.renew()

    def renew(self) -> None:
        """Start a new unit."""
        self._note_written()
        self._renew()
        if len(self._stepped) > 1:  # the next optimizer's forward may be on the same batch
            self._random = RandomNumbers.now()

    def _renew(self) -> None:
        self.unit = Unit()
        # Two sets of copies take turns: a verdict that comes a step late needs the parameters of the step before.
        self._parity ^= self.lasting

    def _note_written(self) -> None:
        """Copy later batches if one was modified in place."""
        if not self._copies_batches:
            self._copies_batches = any(each.fetched.written for each in self.unit.micro_batches)

    def forget(self) -> None:
        """Release everything."""
        self._fetching.forget()
        self.unit = Unit()
        self._copies.clear()
        self._shadow = [{}, {}]
        self._before.clear()
        self._random = self._scaled = None
        self.models = Models()
