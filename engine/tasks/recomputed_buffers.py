"""What checkpointed regions write when they are computed again (the statistics of a BatchNorm), for going back."""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ...inspector.torch_internals.checkpoints import is_recomputed, region_code
from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.tensors import equal_elements, set_version, version_of
from .hook_state import tensors_below


class RecomputedBuffers:
    """Buffers, and tensors that the code refers to, before a task that has regions computed again, and after it.

    PyTorch computes a region once in a backward. After going back it is computed once more if the task that had it
    computed was not taken back; then it finds what it found the first time, and what it writes is taken back at once.

    Known limitations. A task may have an outer region computed once more, and one inside of it for the first time: then
    what the inner one writes is taken back, too. Counters in Python stay as the forward left them.

    Args:
        regions: those that the task may have computed again.
        first: by region what it found when it was computed first, as far as that was not taken back.
        number: that of the backward, in a checkpoint's eyes.
    """

    def __init__(
        self, regions: Sequence[Hashable], first: MutableMapping[Hashable, RecomputedBuffers], number: int
    ) -> None:
        self._regions = list(regions)
        self._first = first
        self._number = number
        with unobserved():
            self._noted = [
                _Noted(names, name, tensor, tensor.detach().clone(), version_of(tensor))
                for names, name, tensor in tensors_below(chain.from_iterable(map(region_code, regions)))
            ]
            self._again = [first[region] for region in regions if region in first]
            for each in self._again:
                each._put_back()

    def end(self) -> None:
        """The task has run."""
        computed = [region for region in self._regions if is_recomputed(region, self._number)]
        self._regions.clear()
        with unobserved():
            if self._again:
                self._put_back()
                self._again.clear()
                self._noted.clear()
                return
            self._noted = [each for each in self._noted if not each.is_there()]
            for each in self._noted:
                each.leave()
        for region in computed:
            self._first[region] = self

    def undo(self) -> None:
        """Puts back what there was before the task, but where somebody else has written since."""
        for region in [region for region, each in self._first.items() if each is self]:
            del self._first[region]
        with unobserved():
            for each in self._noted:
                if each.left is None or each.left.is_there():
                    each.put_back()

    def _put_back(self) -> None:
        for each in self._noted:
            each.put_back()


@dataclass(slots=True)
class _Noted:
    """A tensor under its name, and what it held then; and the same after the task."""

    names: MutableMapping[str, Tensor | None] | None
    name: str
    tensor: Tensor
    copy: Tensor
    version: int
    left: _Noted | None = None

    def is_there(self) -> bool:
        now = self._now()
        return now is self.tensor and now.shape == self.copy.shape and _same(now, self.copy)

    def leave(self) -> None:
        now = self._now()
        if now is not None:
            self.left = _Noted(self.names, self.name, now, now.detach().clone(), version_of(now))

    def put_back(self) -> None:
        if self.names is not None and self._now() is not self.tensor:
            self.names[self.name] = self.tensor
        if not _same(self.tensor, self.copy):
            self.tensor.detach().copy_(self.copy)
            set_version(self.tensor, self.version)  # who saved it before is to find it as it was

    def _now(self) -> Tensor | None:
        return self.tensor if self.names is None else self.names.get(self.name)


def _same(one: Tensor, other: Tensor) -> bool:
    """NaN is the same as NaN: statistics that have become so are put back, too."""
    return torch.equal(one, other) or bool(equal_elements(one, other).all())
