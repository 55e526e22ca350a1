"""Who wrote which tensors, noted while somebody watches for it: a backward that finds a saved tensor written asks."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from ..torch_internals.tensors import FollowedStorage, local_of
from .source import Place, source_at


class Write(NamedTuple):
    """One call that wrote a tensor's bytes.

    Attributes:
        what: the function's name.
        place: where it was called.
        storage: which bytes. It keeps none.
        before, after: the versions which it found and left.
        is_silent: whether the versions are of another tensor on the bytes (`.data`), so that autograd doesn't notice.
    """

    what: str
    place: Place | None
    storage: FollowedStorage
    before: int
    after: int
    is_silent: bool

    def __str__(self) -> str:
        """`add_ at train.py:45`."""
        source = None if self.place is None else source_at(self.place)
        return f"{self.what} at {source.short}" if source is not None else self.what


_MOST = 10_000  # an optimizer's step may be some hundreds; each keeps 300 bytes
_log: deque[Write] = deque(maxlen=_MOST)  # of all threads


def note_write(
    what: str, place: Place | None, tensor: Tensor, before: int, after: int, is_silent: bool = False
) -> None:
    """This call wrote the tensor."""
    try:
        storage = FollowedStorage(local_of(tensor))
    except (NotImplementedError, RuntimeError, ValueError):  # has none of its own: sparse, nested
        return
    _log.append(Write(what, place, storage, before, after, is_silent))


def writes_between(address: int, version: int, now: int) -> list[Write]:
    """What took the bytes at this address, which live, from one version to another; empty where not all is known."""
    found: list[Write] = []
    for write in tuple(_log):
        if write.storage.address == address and not write.is_silent and version <= write.before and write.after <= now:
            while found and write.before <= found[-1].before:  # what a call called itself, or what two watched
                found.pop()
            found.append(write)
    ends = [(version, version), *((write.before, write.after) for write in found), (now, now)]
    return found if all(one[1] == other[0] for one, other in pairwise(ends)) else []
