"""A write that no version tells of: who made it, of which bytes, and what was there before."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor

from ...inspector.graph.source import Place
from ...inspector.torch_internals.tensors import View, equal_elements, local_of, on_storage


@dataclass(slots=True)
class WrittenBytes:
    """Bytes that were written.

    Attributes:
        copy: what was there before: of the parameter, or of all its storage; None: nobody kept it.
        parameter: whose copy that is; None: all the bytes of its storage were copied, in their order.
        is_other: whether that parameter was given these bytes in place of its own, and nothing was written into them.
    """

    copy: Tensor | None
    parameter: ref[Tensor] | None = None
    is_other: bool = False

    def is_of(self, saved: Tensor) -> bool:
        """Whether what a graph has saved on these bytes is among what was written."""
        return not self.is_other or (self.parameter is not None and self.parameter() is saved)

    def is_as_before(self, saved: Tensor) -> bool:
        """Whether what a graph has saved of it has the values that it had."""
        if self.parameter is not None:
            parameter = self.parameter()
            return parameter is None or (self.copy is not None and torch.equal(self.copy, parameter))
        saved = local_of(saved)
        before = self._before(saved)
        return before is None or bool(equal_elements(before, saved).all())

    def off(self, saved: Tensor) -> float | None:
        """By how much it differs at most; None: nobody knows, or truth values do."""
        now: Tensor | None = local_of(saved) if self.parameter is None else self.parameter()
        before = self._before(local_of(saved)) if self.parameter is None else self.copy
        if now is None or before is None or now.dtype is torch.bool:
            return None
        return float((now.detach() - before).abs().max())

    def _before(self, saved: Tensor) -> Tensor | None:
        return None if self.copy is None else on_storage(self.copy.untyped_storage(), View.of(saved))


@dataclass(slots=True, kw_only=True)
class SilentWords:
    """What is said of such a write.

    Attributes:
        noun: what it is.
        why: PyTorch does not notice it.
        instead: how it would.
        unnamed: what it wrote, if that is no parameter.
    """

    noun: str
    why: str
    instead: str
    unnamed: str = "a parameter"


@dataclass(slots=True)
class SilentStep:
    """One such write, or several by one line.

    Attributes:
        who: the optimizer's step, or the function.
        step: of the loop.
        number: what the next node was to be numbered.
        written: by the address of its bytes.
    """

    who: str
    place: Place | None
    step: int
    number: int
    written: dict[int, WrittenBytes]
    words: SilentWords
