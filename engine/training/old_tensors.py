"""Tensors of earlier steps that are alive and belong to no graph, and their holders if they become more and more."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from weakref import ref

from torch import Tensor
from torch.nn.parameter import is_lazy

from ...inspector.graph.collector import all_objects
from ...inspector.holding.search import Holder, who_holds
from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.tensors import StorageBytes, is_fake, storage_of
from .old_graphs import alike

_LOOKS = 3  # that a growth takes
_FIRST_SURE = 8  # the number of a step: what a loop makes at its start is there by then
_STEADY = 0.75  # of what a steady growth adds, at least: a buffer that fills up adds less and less
_LEAST_BYTES = 2**16
_LEAST_SHARE = 0.01  # of all that the loop holds
_OURS = f"{__name__.partition('.')[0]}."
_CONTAINERS = (dict, list, tuple, set, deque)
_MOST_TARGETS = 64  # whose holders are looked for at once


@dataclass(frozen=True, slots=True)
class HeldTensors:
    """Tensors of earlier steps.

    Attributes:
        holder: the first of those that hold most of them.
        alike: how many holders there are that differ from it by an index at most.
        nbytes: of all storages.
        share: the part of its storage that the first tensor needs; less than 1 for a view of a larger tensor.
    """

    holder: Holder
    alike: int
    nbytes: int
    share: float


class OldTensors:
    """Tensors that Python knows and that have no graph: which of them are older than a step, but not than the loop.

    Known limitations: a storage that only C++ holds is not seen, unless a node saves it (see `old_graphs`).
    """

    def __init__(self) -> None:
        with unobserved():
            self._before_loop = dict(_tensors_alive())
        self._before_step: list[ref[Tensor]] = []
        self._looks: list[tuple[int, int]] = []

    def step_begins(self, watching: object) -> None:
        """Note the tensors that exist, without those of the observers."""
        with unobserved():
            own = set(map(id, _tensors_below(watching)))
            self._before_step = [each for number, each in _tensors_alive() if number not in own]

    def storages(self, known: Container[int]) -> dict[int, tuple[int, ref[Tensor]]]:
        """Return, by address, the size and a tensor of each storage left by earlier steps, without the known ones."""
        before = {found.address for each in self._before_loop.values() if (found := _storage(each)) is not None}
        storages = {}
        for each in self._before_step:
            found = _storage(each)
            if found is not None and found.address not in before and found.address not in known:
                storages[found.address] = found.nbytes, each
        return storages

    def growth(self, number: int, nbytes: int, held: float) -> int | None:
        """Bytes that a step adds, if that is steady since three looks; `held`: all that the loop holds."""
        self._looks = [*self._looks, (number, nbytes)][-_LOOKS:]
        if len(self._looks) < _LOOKS or number < _FIRST_SURE:
            return None
        (start, first), (middle, second), (end, third) = self._looks
        before, now = (second - first) / (middle - start), (third - second) / (end - middle)
        grows = third - first >= max(_LEAST_BYTES, _LEAST_SHARE * held)
        return int(now) if grows and 0 < _STEADY * before <= now else None

    def end(self) -> None:
        self._before_loop.clear()
        self._before_step.clear()


def held_tensors(storages: Iterable[tuple[int, ref[Tensor]]]) -> HeldTensors | None:
    """Return the tensors and their main holder; None if none is alive any more."""
    found = sorted(storages, key=lambda pair: -pair[0])
    with unobserved():
        targets = [each() for _, each in found[:_MOST_TARGETS]]
        sizes = [0 if each is None else each.nbytes for each in targets]
        holders = who_holds(targets)
        targets.clear()
    groups: dict[str, list[int]] = {}
    for place, holder in enumerate(holders):
        if sizes[place]:
            groups.setdefault(alike(holder.text), []).append(place)
    if not groups:
        return None
    places = max(groups.values(), key=lambda group: sum(found[place][0] for place in group))
    first = min(places, key=lambda place: (len(holders[place].text), holders[place].text))
    more = len(found) - len(holders) if len(groups) == 1 else 0
    return HeldTensors(
        holders[first], len(places) + more, sum(each for each, _ in found), sizes[first] / found[first][0]
    )


def _tensors_alive() -> Iterator[tuple[int, ref[Tensor]]]:
    """Yield the id and a weak reference of each tensor without a graph."""
    kinds: dict[type, bool] = {}
    with all_objects() as objects:
        for each in objects:
            kind = type(each)
            if kind not in kinds:
                kinds[kind] = issubclass(kind, Tensor)
            if kinds[kind] and not is_lazy(each) and not is_fake(each) and not _has_graph(each):
                yield id(each), ref(each)


def _has_graph(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # a view that came with others and whose base was written since
        return True


def _tensors_below(owner: object) -> list[Tensor]:
    """The tensors that an object of tapescope's holds, itself or in other objects of tapescope's and containers."""
    found: list[Tensor] = []
    seen = {id(owner): owner}
    waiting = [owner]
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            kind = type(each)
            if issubclass(kind, Tensor):
                found.append(each)
            elif id(each) not in seen and (kind in _CONTAINERS or str(kind.__module__).startswith(_OURS)):
                seen[id(each)] = each
                waiting.append(each)
    return found


def _storage(tensor: ref[Tensor]) -> StorageBytes | None:
    found = tensor()
    return None if found is None else storage_of(found)
