"""Finds the batch that a forward uses among those that a DataLoader returned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import ref

from torch import Tensor

from ....inspector.graph.phrases import joined
from ....inspector.torch_private.tensors import bytes_below, version_of
from .batch import JsonBatch, json_of_batch, own_copy, tensors_in, why_not_kept

_MOST_EARLIER = 64

INPUTS = "the inputs of "

Place = tuple[str, Tensor, int]
"""A tensor's place in a batch, such as `['labels']`, the tensor, and its version at that time."""


@dataclass(slots=True)
class Fetched:
    """A batch, held by reference.

    Attributes:
        batch: the batch, or its JSON.
        origin: its source: "a DataLoader", "the inputs of Net".
        places: its tensors.
        copies: copies of tensors by id, if they were copied immediately; other tensors are held by reference.
    """

    batch: object
    origin: str
    places: list[Place]
    copies: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: object, origin: str, copied: bool = False) -> Fetched:
        places = [(place, each, version_of(each)) for place, each in tensors_in(batch)]
        kept = [each for _, each, _ in places if copied and not why_not_kept(each)]
        return cls(batch, origin, places, {id(each): own_copy(each) for each in kept})

    @classmethod
    def without_graphs(cls, batch: object, origin: str, copied: bool = False) -> Fetched:
        """Record a module's inputs without holding the graphs of its tensors."""
        if type(batch) is tuple and all(type(each) is Tensor and each.grad_fn is None for each in batch):
            return cls.of(batch, origin, copied)  # its JSON can be made later, since a tuple does not change
        of = {id(each): (place, version_of(each)) for place, each in tensors_in(batch)}
        json_batch = json_of_batch(batch)
        bare = [each if each.grad_fn is None else each.detach() for each in json_batch.tensors]
        places = [(of[id(each)][0], kept, of[id(each)][1]) for each, kept in zip(json_batch.tensors, bare, strict=True)]
        copies = {id(each): own_copy(each) for each in bare} if copied else {}
        return cls(JsonBatch(json_batch.json, bare, json_batch.left_out), origin, places, copies)

    @property
    def written(self) -> list[str]:
        """Return the places that were modified in place since and were not copied."""
        return [
            place
            for place, tensor, version in self.places
            if version_of(tensor) != version and id(tensor) not in self.copies
        ]

    @property
    def storages(self) -> set[int]:
        return _storages(tensor for _, tensor, _ in self.places)

    def as_json(self) -> JsonBatch:
        """Return the batch as JSON and tensors."""
        return self.batch if isinstance(self.batch, JsonBatch) else json_of_batch(self.batch)

    def content(self, tensor: Tensor) -> Tensor:
        """Return the original content of one of its tensors, as far as it is known."""
        return self.copies.get(id(tensor), tensor)


class _Earlier:
    """A batch whose tensors are held weakly."""

    def __init__(self, fetched: Fetched) -> None:
        json_batch = fetched.as_json()
        self._json, self._left_out, self._origin = json_batch.json, json_batch.left_out, fetched.origin
        self._tensors = [ref(each) for each in json_batch.tensors]
        self._versions = {id(tensor): (place, version) for place, tensor, version in fetched.places}

    def if_alive(self) -> Fetched | None:
        """Return the batch if all its tensors are alive."""
        tensors = [each for kept in self._tensors if (each := kept()) is not None]
        if len(tensors) < len(self._tensors):
            return None
        places = [(place, each, version) for each in tensors for place, version in [self._versions[id(each)]]]
        return Fetched(JsonBatch(self._json, tensors, self._left_out), self._origin, places)


class Fetching:
    """Batches that a DataLoader returned.

    The last one is held. Earlier ones, which the loop skipped or prefetched, are held weakly, because it is unknown
    whether the loop still needs them.
    """

    def __init__(self) -> None:
        self._last: Fetched | None = None
        self._last_taken = False
        self._earlier: deque[_Earlier] = deque(maxlen=_MOST_EARLIER)
        self._waiting = 0  # batches returned since a forward used one
        self._ahead: bool | None = None  # whether the loop fetches more than one before its first forward

    @property
    def waiting(self) -> int:
        """The number of batches returned since a forward used one."""
        return self._waiting

    def add(self, fetched: Fetched) -> None:
        """Add a batch that a DataLoader returned."""
        if self._last is not None and not self._last_taken:
            self._earlier.append(_Earlier(self._last))
        self._last, self._last_taken = fetched, False
        self._waiting += 1

    def take(self, inputs: Iterable[Tensor]) -> Fetched | None:
        """Return the batch of a forward with these inputs; None if it is unknown.

        It is the batch that shares storages with the inputs. If none does (after augmentation or a move to another
        device), it is the last batch, unless the loop prefetches.
        """
        if self._ahead is None:
            self._ahead = self._waiting > 1
        self._waiting = 0
        last = self._last
        if last is None:  # no DataLoader returned one
            return None
        wanted = _storages(inputs)
        if wanted & last.storages:
            self._last_taken = True
            return last
        for each in reversed(self._earlier):
            earlier = each.if_alive()
            if earlier is not None and wanted & earlier.storages:
                return earlier
        self._last_taken = not self._ahead
        return None if self._ahead else last

    def forget(self) -> None:
        self._last = None
        self._earlier.clear()


def _storages(tensors: Iterable[Tensor]) -> set[int]:
    return {found._cdata for each in tensors if (found := bytes_below(each)) is not None}


def inputs_of(origin: str) -> str | None:
    """Return the class of the module whose inputs replace the batch; None if a DataLoader returned the batch."""
    return origin.removeprefix(INPUTS) if origin.startswith(INPUTS) else None


def inputs_alone(origins: Iterable[str]) -> str | None:
    """Return a note on what a batch lacks if no DataLoader returned it; None if one returned every batch."""
    called = [name for origin in dict.fromkeys(origins) if (name := inputs_of(origin)) is not None]
    if not called:
        return None
    return (
        f"Its batch consists of the arguments of {joined(called)} only, because it did not come from a DataLoader. "
        "Other inputs of the loss, such as labels, are not recorded. To record them, pass them to the model as "
        "arguments, as in model(x, y), or use a DataLoader; otherwise loss_of(model, batch) has to do without them."
    )
