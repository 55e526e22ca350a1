"""Which batch a forward takes: the one that a DataLoader has just handed out, or of several an earlier one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import ref

from torch import Tensor

from ....inspector.graph.phrases import joined
from ....inspector.torch_private.tensors import bytes_below, version_of
from .batch import ToldBatch, own_copy, tell, tensors_in, why_not_kept

_MOST_EARLIER = 64

INPUTS = "the inputs of "

Place = tuple[str, Tensor, int]
"""Where in a batch a tensor is, `['labels']`, the tensor, and its version as it came."""


@dataclass(slots=True)
class Fetched:
    """A batch, by reference.

    Attributes:
        batch: it, or what was told of it.
        origin: where it is from: "a DataLoader", "the inputs of Net".
        places: its tensors.
        copies: of these by id, where they were copied as they came; else they are kept by reference.
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
        """The same of what a module is given: graphs that lead to its tensors are not held."""
        of = {id(each): (place, version_of(each)) for place, each in tensors_in(batch)}
        told = tell(batch)
        bare = [each if each.grad_fn is None else each.detach() for each in told.tensors]
        places = [(of[id(each)][0], kept, of[id(each)][1]) for each, kept in zip(told.tensors, bare, strict=True)]
        copies = {id(each): own_copy(each) for each in bare} if copied else {}
        return cls(ToldBatch(told.json, bare, told.left_out), origin, places, copies)

    @property
    def written(self) -> list[str]:
        """Where it was written in place since it came, and was not copied."""
        return [
            place
            for place, tensor, version in self.places
            if version_of(tensor) != version and id(tensor) not in self.copies
        ]

    @property
    def storages(self) -> set[int]:
        return _storages(tensor for _, tensor, _ in self.places)

    def told(self) -> ToldBatch:
        """As JSON and tensors."""
        return self.batch if isinstance(self.batch, ToldBatch) else tell(self.batch)

    def content(self, tensor: Tensor) -> Tensor:
        """What one of its tensors held as it came, as far as that is known."""
        return self.copies.get(id(tensor), tensor)


class _Earlier:
    """A batch whose tensors are held weakly."""

    def __init__(self, fetched: Fetched) -> None:
        told = fetched.told()
        self._json, self._left_out, self._origin = told.json, told.left_out, fetched.origin
        self._tensors = [ref(each) for each in told.tensors]
        self._versions = {id(tensor): (place, version) for place, tensor, version in fetched.places}

    def again(self) -> Fetched | None:
        """It, if all its tensors live."""
        tensors = [each for kept in self._tensors if (each := kept()) is not None]
        if len(tensors) < len(self._tensors):
            return None
        places = [(place, each, version) for each in tensors for place, version in [self._versions[id(each)]]]
        return Fetched(ToldBatch(self._json, tensors, self._left_out), self._origin, places)


class Fetching:
    """Batches that were handed out.

    The last one is held. Of earlier ones, which a loop has left out or has fetched ahead, it is not known whether it
    still wants them: they are held weakly.
    """

    def __init__(self) -> None:
        self._last: Fetched | None = None
        self._last_taken = False
        self._earlier: deque[_Earlier] = deque(maxlen=_MOST_EARLIER)
        self._waiting = 0  # handed out since a forward took one
        self._ahead: bool | None = None  # whether the loop fetches more than one before its first forward

    @property
    def waiting(self) -> int:
        """How many were handed out since a forward took one."""
        return self._waiting

    def add(self, fetched: Fetched) -> None:
        """It was handed out."""
        if self._last is not None and not self._last_taken:
            self._earlier.append(_Earlier(self._last))
        self._last, self._last_taken = fetched, False
        self._waiting += 1

    def take(self, inputs: Iterable[Tensor]) -> Fetched | None:
        """The batch of a forward with these inputs; None: it is not known.

        It is the one whose bytes are among the inputs. If there is none such (they were moved to another device, or
        augmented), it is the last, unless the loop fetches ahead.
        """
        wanted = _storages(inputs)
        if self._ahead is None:
            self._ahead = self._waiting > 1
        self._waiting = 0
        last = self._last
        if last is None or wanted & last.storages:
            self._last_taken = True
            return last
        for each in reversed(self._earlier):
            earlier = each.again()
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
    """The class of the module whose inputs stand for the batch; None: a DataLoader handed it out."""
    return origin.removeprefix(INPUTS) if origin.startswith(INPUTS) else None


def inputs_alone(origins: Iterable[str]) -> str | None:
    """What a batch lacks that no DataLoader handed out, in words; None where one has handed out all."""
    called = [name for origin in dict.fromkeys(origins) if (name := inputs_of(origin)) is not None]
    if not called:
        return None
    return (
        f"Its batch is what {joined(called)} was called with, and nothing else: no DataLoader was seen to hand it out, "
        "so what the loss takes besides, such as labels, is not there, and loss_of(model, batch) has to do without."
    )
