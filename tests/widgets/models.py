"""Small forwards, and decks on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.api.debug import debug
from tapescope.engine.execution.backward_arguments import BackwardCall
from tapescope.engine.recording.run import Engine
from tapescope.widgets.deck.deck import Deck

ENGINES: tuple[Engine, ...] = ("direct", "native")


class Branches(nn.Module):
    """A parameter used twice, a residual connection, and a loss in two parts: several tasks are ready at once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(4, 4)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.shared(x).tanh())
        return x + self.down(self.up(x).sigmoid())


def forward(model: nn.Module) -> Tensor:
    torch.manual_seed(1)
    with ts.capture(model):
        out = model(torch.randn(3, 4))
        return out.square().mean() + out.abs().sum()


def expected_gradients() -> list[Tensor]:
    model = Branches()
    forward(model).backward()
    return gradients(model)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def deck_on(loss: Tensor, *, engine: Engine = "direct", policy: object = "heap", **more: object) -> Deck:
    """A deck as `ts.debug` makes it in a notebook."""
    given = {name: more.pop(name) for name in ("retain_graph", "create_graph", "inputs") if name in more}
    call = BackwardCall(loss, **given)  # type: ignore[arg-type]
    history = more.pop("history", engine == "direct")
    session = debug(call, policy=policy, engine=engine, trace="full", history=history)  # type: ignore[arg-type]
    kept = {name: bool(value) for name, value in given.items() if name != "inputs"}
    return Deck(session, policy=policy, **kept, **more)  # type: ignore[arg-type]
