"""Small ensembles, in all the ways in which members are made and called."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tapescope.engine.diagnose.find_ensembles import Ensemble, RefusedEnsemble, find_ensembles
from tapescope.engine.diagnose.similar_modules import CallLog
from tapescope.inspector.capture.build_graph import graph
from tapescope.inspector.capture.capture import capture

WIDTH = 6
Combine = Callable[[Sequence[Tensor]], Tensor]


class Members(nn.Module):
    """Calls its members one by one. Takes what all of them get, or a sequence of what each gets."""

    def __init__(self, make: Callable[[], nn.Module], members: int = 4, combine: Combine = torch.stack) -> None:
        super().__init__()
        self.members = nn.ModuleList(make() for _ in range(members))
        self.combine = combine

    def forward(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        each = [x] * len(self.members) if isinstance(x, Tensor) else x
        return self.combine([member(part) for member, part in zip(self.members, each, strict=True)])


def perceptron(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(between or (nn.ReLU(),)), nn.Linear(WIDTH, WIDTH))


def batch(*more: int) -> Tensor:
    """Rows that are always the same."""
    return torch.randn(*more, 3, WIDTH, generator=torch.Generator().manual_seed(1))


def searched(
    make_loss: Callable[[], Tensor], model: nn.Module | None = None
) -> tuple[list[Ensemble], list[RefusedEnsemble]]:
    """Return the ensembles found in a forward, and the refused ones."""
    log = CallLog()
    with capture(model), log.watched():
        loss = make_loss()
    return find_ensembles(make_loss, log, graph(loss, model), model, lambda loss: loss.backward())


def only(make_loss: Callable[[], Tensor], model: nn.Module | None = None) -> Ensemble:
    (found,), refused = searched(make_loss, model)
    assert not refused
    return found
