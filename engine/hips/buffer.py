"""Input buffers of tasks of HIPS autograd's: all sums are autograd's own (core.py, add_outgrads)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ...inspector.tapes.hips_nodes import arrays_in, is_sparse, rebuilt, spaces_in, vspace
from ...inspector.torch_internals.references import owned_alone
from ..memory.accumulation import Accumulate
from ..tasks.input_buffer import InputBuffer, ListBuffer
from .values import REST, carry, is_sum, value_of


class HipsBuffer(InputBuffer):
    """The gradients that wait for one task, one for each array of its node's value.

    The first waits as it came. The second is summed with it into a new array, to which the next ones are added in
    place. That of an index adds to zeros of the full size, which become a sum. A sum that somebody else looks at is
    copied first.
    """

    __slots__ = ("_space",)

    def __init__(self, space: Any, count: int) -> None:
        super().__init__(count)
        self._space = space

    def add(self, number: int, gradient: Tensor) -> bool:
        value = value_of(gradient)
        if value is REST:
            return False
        if is_sparse(value):
            self._add_sparse(value)
            return False
        if self.gradients[number] is None:
            self.gradients[number] = gradient
            return True
        alone = self._alone(number)  # as long as no other name has it here
        waiting = self.gradients[number]
        assert waiting is not None
        before = value_of(waiting)
        if is_sum(waiting):
            self._keep(number, vspace(value).mut_add(before if alone else np.copy(before), value))
        else:
            self._keep(number, vspace(value).add(before, value))
        return False

    def _add_sparse(self, gradient: Any) -> None:
        alone = [self._alone(number) for number in range(len(self.gradients))]
        bases = []
        for number, space in enumerate(spaces_in(self._space)):
            waiting = self.gradients[number]
            if waiting is not None and is_sum(waiting):
                before = value_of(waiting)
                bases.append(before if alone[number] else np.copy(before))
            else:
                bases.append(space.mut_add(None, space.zeros() if waiting is None else value_of(waiting)))
        for number, value in enumerate(arrays_in(self._space, gradient.mut_add(rebuilt(self._space, iter(bases))))):
            self._keep(number, value)

    def _keep(self, number: int, value: Any) -> None:
        """A sum. Added to in place, it is the same array, and the tensor on it stays."""
        waiting = self.gradients[number]
        if waiting is None or value_of(waiting) is not value:
            self.gradients[number] = carry(value, is_sum=True)

    def _alone(self, number: int) -> bool:
        """Whether nobody else holds what waits."""
        return owned_alone(self.gradients, number)


class HipsOutOfPlaceBuffer(HipsBuffer):
    """Each sum is a new array."""

    __slots__ = ()

    def _alone(self, number: int) -> bool:
        return False


class HipsListBuffer(ListBuffer):
    """All that comes waits, a sparse gradient as it is. When the task runs it is summed as above, by array.

    autograd did so before its #219 (vsum).
    """

    __slots__ = ("_space",)

    def __init__(self, space: Any, count: int) -> None:
        super().__init__(count)
        self._space = space

    def add(self, number: int, gradient: Tensor) -> bool:
        return value_of(gradient) is not REST and super().add(number, gradient)

    def take(self) -> list[Tensor | None]:
        taken = list(self.shown())
        self.gradients.clear()
        self._more.clear()
        return taken

    def shown(self) -> tuple[Tensor | None, ...]:
        total = HipsBuffer(self._space, len(self.gradients))
        for number, tensors in enumerate(self.waiting()):
            for tensor in tensors:
                total.add(number, tensor)
        return total.shown()


HIPS_BUFFERS: dict[Accumulate, type[HipsBuffer] | type[HipsListBuffer]] = {
    "inplace": HipsBuffer,
    "out_of_place": HipsOutOfPlaceBuffer,
    "list": HipsListBuffer,
}
