"""Samples the bytes that a loop holds, by category, in few steps, because a sample walks the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...inspector.graph.node_metadata import tensors_of
from ...inspector.references.find_referrers import Holder
from ...inspector.text.sizes_and_counts import percent_text, size_text
from ...inspector.torch_private.call_watchers import watching_batches
from ...inspector.torch_private.optimizer_steps import parameters_of
from ...inspector.torch_private.reference_counts import kept_by_others
from ...inspector.torch_private.saved_variables import saved_slots
from ...inspector.torch_private.sequence_numbers import youngest_first
from ..memory.categories import ACTIVATIONS, BATCH, BUFFERS, EARLIER, GRADIENTS, PARAMETERS, STATE
from ..memory.census import Place, StorageCensus, optimizers_of, state_tensors, storages_of
from .findings import Finding
from .follow_loop import BackwardGiven
from .leaks.held_graphs import alike
from .leaks.held_tensors import HeldTensors, OldTensors, held_tensors
from .loop_observers import LoopPart
from .pending_graphs import roots_of

if TYPE_CHECKING:
    from .training_result import Training

HELD = PARAMETERS, STATE, GRADIENTS, BATCH, ACTIVATIONS, EARLIER
"""The columns of `Training.memory`, all at one moment: the start of the step's backward, or of the one with the most
memory if the step has several. They are parameters and buffers, the optimizers' state, gradients, the batch (the loop's
tensors that the graph saved, and batches of a DataLoader that are alive), activations (the graph's other saved
tensors), and memory of earlier steps that is alive until the step ends: graphs, and tensors without a graph."""

BASELINE = PARAMETERS, BUFFERS, STATE, GRADIENTS, BATCH
"""The columns of `Training.baselines`: the memory when the first forward of the step began. Gradients are those that
zero_grad() did not set to None. The batch is that forward's inputs and the loop's tensors that it saved."""

_EARLIER = HELD.index(EARLIER)
_SELDOM = 10  # memory is sampled once in this many samples of weights
_RECENT = 2  # a batch may be fetched this many steps before its own


class HeldMemory(LoopPart):
    """Sums the bytes of storages, each once, in the steps 1, 2, 4, 8, ... and every hundredth (`every=10`).

    Graphs of earlier steps are counted in every step with a leak check. Tensors of earlier steps are counted in the
    steps 1, 2, 4, 8, ... only, because finding them visits all objects of the process. Workspace of operators is not
    included.
    """

    def __init__(self) -> None:
        self._number = 0
        self._is_looking = False
        self._row = [0.0] * len(HELD)
        self._given: set[Place] = set()  # storages of the inputs of this step's forwards
        self._batch: set[Place] = set()  # those, and storages of the loop's tensors that its graphs saved
        self._fetched: dict[int, list[ref[Tensor]]] = {}  # tensors that DataLoaders returned, by recent step
        self._stack = ExitStack()
        self._before: StorageCensus | None = None  # of this step's baseline, from its first forward on
        self._stepped: WeakSet[Optimizer] = WeakSet()
        self._is_power = False
        self._old: OldTensors | None = None  # known from the first forward on
        self._is_before_backward = True
        self._old_bytes = 0  # bytes of tensors of earlier steps in the last sample
        self._known: dict[str, Holder] = {}  # the first of several similar holders

    def begins(self, training: Training) -> None:
        self._training = training
        self._thread = get_ident()
        self._stack.enter_context(watching_batches(self._batch_fetched))

    def _batch_fetched(self, batch: object) -> None:
        if get_ident() == self._thread and torch.is_grad_enabled():  # else it is for an evaluation
            alive = [each for each in self._fetched.get(self._number, ()) if each() is not None]
            self._fetched[self._number] = [*alive, *map(ref, tensors_of(batch))]

    def _fetched_tensors(self) -> list[Tensor | None]:
        """Return the tensors of this step's batches from DataLoaders, and of those fetched in advance."""
        return [each() for fetched in self._fetched.values() for each in fetched]

    def step_begins(self, number: int) -> None:
        self._number = number
        self._fetched = {step: each for step, each in self._fetched.items() if step >= number - _RECENT}
        self._is_power = number > 0 and number & (number - 1) == 0
        self._is_looking = self._is_power or (number > 0 and number % (_SELDOM * self._training.every) == 0)
        if self._is_power and self._old is not None:
            self._old.step_begins(self._training, self._training.alive.tensors(number))
        if self._is_looking:
            self._row[:_EARLIER] = [0.0] * _EARLIER
            self._given.clear()
            self._batch.clear()
            self._before, self._is_before_backward = None, True

    def forward_begins(self, module: torch.nn.Module, given: tuple[object, ...]) -> None:
        if self._old is None:  # `tapescope run` begins when torch is imported, before the script loads its data
            self._old = OldTensors(self._training.alive.tensors(self._number))
        if not self._is_looking:
            return
        inputs = [each for each in tensors_of(given) if each.grad_fn is None]
        self._given.update(storages_of(inputs))
        if self._before is None:
            self._before = self._census()
            self._before.add(BATCH, inputs)

    def backward_begins(self, given: BackwardGiven) -> None:
        if not self._is_looking:
            return
        census = self._census()
        slots = [slot for _, node in youngest_first(roots_of(given[0])) for slot in saved_slots(node)]
        saved, computed = [slot.tensor for slot in slots], [slot.maker is not None or slot.modified for slot in slots]
        slots.clear()
        held = kept_by_others(saved)
        batch = self._given | storages_of(tensor for tensor, is_held in zip(saved, held, strict=True) if is_held).keys()
        batch -= storages_of(tensor for tensor, is_computed in zip(saved, computed, strict=True) if is_computed).keys()
        self._batch |= batch
        of_batch = [each for each in saved if batch.intersection(storages_of([each]))]
        if self._before is not None and self._is_before_backward:
            self._before.add(BATCH, of_batch)
        self._is_before_backward = False
        census.add(BATCH, [*of_batch, *self._fetched_tensors()])
        census.add(ACTIVATIONS, saved)
        parts = census.parts()
        parts[PARAMETERS] = parts.get(PARAMETERS, 0) + parts.get(BUFFERS, 0)
        row = [float(parts.get(kind, 0)) for kind in HELD[:_EARLIER]]
        if sum(row) > sum(self._row[:_EARLIER]):
            self._row[:_EARLIER] = row

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        if optimizer not in self._stepped:
            self._stepped.add(optimizer)

    def step_ends(self, number: int) -> None:
        growth = self._look_at_tensors(number, self._old) if self._is_power and self._old is not None else None
        self._training.alive.clear()
        earlier = float(self._training.earlier_bytes + self._old_bytes)
        if self._is_looking or earlier != self._row[_EARLIER]:
            self._row[_EARLIER] = earlier
            self._training.memory.add([number], torch.tensor([self._row], dtype=torch.float32, device="cpu"))
        if self._is_looking and self._before is not None:
            parts = self._before.parts()
            row = torch.tensor([[parts.get(kind, 0) for kind in BASELINE]], dtype=torch.float64, device="cpu")
            self._training.baselines.add([number], row)
        self._is_looking = self._is_power = False
        if growth is not None:
            self._training.update(growth)

    def _census(self) -> StorageCensus:
        """Count the memory of the models and their optimizers."""
        watched, census = self._training.watched, StorageCensus()
        parameters: list[Tensor] = [each for _, each in watched.parameters()]
        optimizers = optimizers_of(parameters, self._optimizers())
        parameters += [each for optimizer in optimizers for each in parameters_of(optimizer)]
        census.add(PARAMETERS, parameters)
        census.add(BUFFERS, (each for _, module in watched.modules() for each in module.buffers(recurse=False)))
        census.add(STATE, (each for optimizer in optimizers for each in state_tensors(optimizer)))
        census.add(GRADIENTS, (each.grad for each in parameters))
        return census

    def _optimizers(self) -> list[Optimizer]:
        """Return the optimizers that were alive at the last visit of all objects, and those that have stepped since."""
        return list(dict.fromkeys([*self._training.alive.optimizers(), *self._stepped]))

    def _look_at_tensors(self, number: int, old: OldTensors) -> Finding | None:
        """Sum the tensors of earlier steps, and return a finding if they grow steadily."""
        batches = storages_of(self._fetched_tensors()).keys()
        known = {*self._training.earlier_storages, *self._given, *self._batch, *batches}
        for tensors in self._own_tensors():
            known |= storages_of(tensors).keys()
        left = old.storages(known)
        self._old_bytes = sum(nbytes for nbytes, _ in left.values())
        held = sum(self._row[:_EARLIER]) + self._training.earlier_bytes + self._old_bytes
        growth = old.growth(number, self._old_bytes, held)
        found = None if growth is None else held_tensors(left.values())
        if growth is None or found is None:
            return None
        first = self._known.setdefault(alike(found.holder.text), found.holder)
        said = growth_sentence(replace(found, holder=first), growth, number)
        return Finding("leak", number, said, None, first.text, found.nbytes, first.at, certain=False, alike=found.alike)

    def _own_tensors(self) -> Iterator[Iterable[Tensor]]:
        """Yield the tensors that the models and the optimizers hold."""
        for _, module in self._training.watched.modules():
            yield _own_of(module)
        parameters: list[Tensor] = [each for _, each in self._training.watched.parameters()]
        for optimizer in self._optimizers():
            yield state_tensors(optimizer)
            parameters += parameters_of(optimizer)
        yield parameters
        yield (each.grad for each in parameters if each.grad is not None)

    def ends(self) -> None:
        self._stack.close()
        self._fetched.clear()
        if self._old is not None:
            self._old.end()


def growth_sentence(held: HeldTensors, growth: int, number: int) -> str:
    """Return a sentence about tensors of earlier steps: their size, their holder and the remedy."""
    more = f" and {held.alike - 1:,} more like it" if held.alike > 1 else ""
    by = "as" if held.holder.kind == "named" else "by"
    advice = "drop references that are no longer needed; a buffer with a limit stops growing by itself."
    if held.share < 1:
        advice = f"it is a view, and keeps the whole storage for {percent_text(held.share)} of it; keep a .clone()."
    return (
        f"Tensors of earlier steps, without a graph, add {size_text(growth)} a step, held {by} {held.holder}{more} "
        f"(after step {number:,} {size_text(held.nbytes)}): {advice}"
    )


def _own_of(module: torch.nn.Module) -> Iterable[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
