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
        fetched: the batch.
        random: the random number states when the loop began with this batch.
        at_model: the state of torch's CPU generator at the first module's call.
        autocast: the autocast settings at that time.
        buffers: copies of the models' buffers at that time.
        loss: the tensor whose `backward` was called, if it has one element.
        scale: the factor by which a gradient scaler multiplied the loss.
        unscaled: the loss before that multiplication.
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
    """The part of a loop between two optimizer steps.

    Attributes:
        micro_batches: one micro-batch, or several whose gradients are summed.
        dropped: the number of earlier micro-batches that are not kept.
        gradients_before: copies of the .grads when the first backward began, by name.
        parameters: copies of the parameters at that time; None: they are unchanged since then.
    """

    micro_batches: list[MicroBatch] = field(default_factory=list)
    dropped: int = 0
    gradients_before: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] | None = None


class StepKeeper:
    """Follows the loop and records the current unit. Its methods are called in the loop's thread, `unobserved`.

    Args:
        modules: the modules that the user passed; others are found when they are called.

    Attributes:
        models: the models.
        unit: the current unit.
        lasting: whether a unit must be available after the next one has begun, because its check is read a step late.
            Parameters are then copied, and buffers are stored twice.
        stepping: whether an optimizer's step is running, which may call closures.

    Known limitations: a large buffer is assumed to be unchanged if its version is, except in torch's batch norms.
    Random generators created by the user are not recorded.
    """

    def __init__(self, modules: Sequence[nn.Module] = ()) -> None:
        self.models = Models(modules)
        self.unit = Unit()
        self.lasting = False
        self._parity = 0
        self._fetching = Fetching()
        self._copies_batches = False
        self._random: RandomNumbers | None = None  # the state before the next forward
        self._copies: dict[tuple[int, int], BufferCopies] = {}
        self._shadow: list[dict[str, Tensor]] = [{}, {}]
        self._before: dict[str, Tensor] = {}
        self._scaled: tuple[ref[Tensor], Tensor, Tensor] | None = None
        self.stepping = False
        self._has_closures = False
        self._stepped: list[ref[Any]] = []

    def batch_fetched(self, batch: object) -> None:
        """Note a batch that a DataLoader returned."""
        self._note_written()
        self._fetching.add(Fetched.of(batch, "a DataLoader", self._copies_batches))
        self._random = RandomNumbers.now()

    def scaled(self, loss: object, scaled: Any, scale: Tensor) -> None:
        """Note a loss that a gradient scaler has multiplied. Several losses in one call are ignored."""
        if isinstance(loss, Tensor):
            self._scaled = ref(scaled), scale.detach().clone(), loss.detach()

    def forward_begins(self, module: nn.Module, given: tuple[object, ...], autocast: Autocast) -> None:
        """Note the call of an outermost module, and begin a micro-batch if one is due."""
        new = self.models.add(module)
        self.models.note_forward()
        last = self.unit.micro_batches[-1] if self.unit.micro_batches else None
        if last is not None and not last.done and not self._fetching.waiting:
            if new:
                last.buffers.take(self.models.buffers(), known=True)
            return
        if not any(module is each for each in self.models.modules) and not has_tensors(module):
            return  # a loss function
        if last is not None and not last.done:
            self.unit.micro_batches.pop()  # its backward never ran
        if self.stepping:  # each call of a closure has other parameters
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
        fetched = self._fetching.take(tensor for _, tensor in tensors_in((given, named)))
        if fetched is not None:
            return fetched
        batch = named if not given else given if not named else (given, named)
        return Fetched.without_graphs(batch, f"{INPUTS}{type(module).__name__}", self._copies_batches)

    def backward_begins(self, tensors: object) -> None:
        """Note the start of an outermost backward of these tensors."""
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
        # Two sets of copies alternate: a check that is read a step late needs the previous step's parameters.
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
