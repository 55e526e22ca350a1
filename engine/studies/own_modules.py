"""What a study has to know of a user's program: its modules, its leaves, what it writes, and which blocks repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...inspector.capturing.walk import read_graph
from ..programs.as_found import AsFound
from ..programs.make_loss import real_loss_of

_HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True, slots=True)
class OwnModules:
    """Of one program.

    Attributes:
        model: the module that its forward calls; where it calls several, these in a list of their own.
        is_one: whether it is one.
        leaves: what its graph has a gradient for, beside the model's parameters.
        device: where the loss is.
    """

    model: nn.Module
    is_one: bool
    leaves: tuple[Tensor, ...]
    device: torch.device

    @staticmethod
    def of(world: AsFound) -> OwnModules:
        """Runs forward and backward once, watched.

        Raises:
            TypeError, ValueError: the program makes no loss.
        """
        world.watch()
        with world.run():
            loss = real_loss_of(world.make_loss())
            leaves, device = list(read_graph(loss).leaves.values()), loss.device
            del loss
        called = world.modules
        within = {id(below) for each in called for below in each.modules() if below is not each}
        outermost = [each for each in called if id(each) not in within]
        model = outermost[0] if len(outermost) == 1 else nn.ModuleList(outermost)
        known = {id(parameter) for parameter in model.parameters()}
        others = tuple(leaf for leaf in leaves if id(leaf) not in known)
        return OwnModules(model, len(outermost) == 1, others, device)

    @property
    def blocks(self) -> tuple[type[nn.Module], ...]:
        """The classes that a user would put under torch.utils.checkpoint: modules of modules, several in one list."""
        return tuple(dict.fromkeys(self._repeated()))

    def _repeated(self) -> Iterator[type[nn.Module]]:
        for holder in self.model.modules():
            if isinstance(holder, _HOLDERS):
                counts = Counter(type(each) for each in holder.children() if any(True for _ in each.children()))
                yield from (kind for kind, count in counts.items() if count > 1 and not issubclass(kind, _HOLDERS))
