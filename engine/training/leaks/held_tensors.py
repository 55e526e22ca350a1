"""Finds tensors of earlier steps, without a graph, that are still alive, and their holders."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from weakref import ref

from torch import Tensor, strided

from ....inspector.references.find_referrers import Holder, who_holds
from ....inspector.torch_private.tensors import is_fake
from ....inspector.torch_private.thread_state import unobserved
from ...memory.census import Place, storages_of
from .held_graphs import alike

_LOOKS = 3  # observations needed to report a growth
_FIRST_SURE = 8  # number of the step by which a loop has allocated its initial tensors
_STEADY = 0.75  # least ratio of successive increases; a buffer that fills up adds less and less
_LEAST_BYTES = 2**16
_LEAST_SHARE = 0.01  # smallest growth to report, as a share of all bytes held by the loop
_OURS = f"{__name__.partition('.')[0]}."
_CONTAINERS = (dict, list, tuple, set, deque)
_MOST_TENSORS_SEARCHED = 64  # tensors whose holders are searched at once


@dataclass(frozen=True, slots=True)
class HeldTensors:
    """Tensors of earlier steps that are alive.

    Attributes:
        holder: the first of the holders that hold most of them.
        alike: the number of holders that differ from it at most by an index.
        nbytes: bytes of all their storages.
        share: the share of its storage that the first tensor uses; less than 1 for a view of a larger tensor.
    """

    holder: Holder
    alike: int
    nbytes: int
    share: float


class OldTensors:
    """Finds tensors without a graph that are older than the current step and younger than the loop.

    Args:
        tensors: those that are alive before the loop's first forward.

    Known limitations: a storage held only by C++ is not found, unless a node saves it (see `old_graphs`).
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        with unobserved():
            self._before_loop = dict(_without_graph(tensors))
        self._before_step: list[ref[Tensor]] = []
        self._looks: list[tuple[int, int]] = []

    def step_begins(self, watching: object, tensors: Iterable[Tensor]) -> None:
        """Note the tensors that are alive, without those of the observers."""
        with unobserved():
            own = set(map(id, _tensors_below(watching)))
            self._before_step = [each for number, each in _without_graph(tensors) if number not in own]

    def storages(self, known: Container[Place]) -> dict[Place, tuple[int, ref[Tensor]]]:
        """Return, by place, the size and a tensor of each storage left by earlier steps, without the known ones."""
        before = {place for each in self._before_loop.values() for place in _storage(each)}
        storages = {}
        for each in self._before_step:
            for place, nbytes in _storage(each).items():
                if place not in before and place not in known:
                    storages[place] = nbytes, each
        return storages

    def growth(self, number: int, nbytes: int, held: float) -> int | None:
        """Return the bytes added per step if the last three observations grow steadily.

        Args:
            held: all bytes held by the loop.
        """
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
    """Return the tensors and their main holder; None if no tensor is alive."""
    found = sorted(storages, key=lambda pair: -pair[0])
    with unobserved():
        targets = [each() for _, each in found[:_MOST_TENSORS_SEARCHED]]
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


def _without_graph(tensors: Iterable[Tensor]) -> Iterator[tuple[int, ref[Tensor]]]:
    """Yield the id and a weak reference of each tensor without a graph."""
    for each in tensors:
        if not is_fake(each) and not _has_graph(each):
            yield id(each), ref(each)


def _has_graph(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # one of several views whose base was modified in place
        return True


def _tensors_below(owner: object) -> list[Tensor]:
    """Return the tensors held by one of tapescope's objects, directly or through its objects and containers."""
    found: list[Tensor] = []
    seen = {id(owner): owner}
    waiting = [owner]
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            kind = type(each)
            if issubclass(kind, Tensor):
                found += [each] if each._base is None else [each, each._base]  # C++ alone holds the base of a view
            elif id(each) not in seen and (kind in _CONTAINERS or str(kind.__module__).startswith(_OURS)):
                seen[id(each)] = each
                waiting.append(each)
    return found


def _storage(tensor: ref[Tensor]) -> dict[Place, int]:
    """Return the bytes of a strided tensor's storage, by place; empty if it was freed or has no strides."""
    found = tensor()
    return {} if found is None or found.layout is not strided or found.is_nested else storages_of([found])
