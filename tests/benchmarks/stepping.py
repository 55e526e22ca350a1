"""What the two engines cost against `loss.backward()`, each on a fresh forward and with gradients set to None."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from measure import Effort, Row, ratios, seconds
from torch import Tensor

import tapehead as th
from tapehead.engine.workloads import workload


def rows(effort: Effort) -> Iterator[Row]:
    model, make_loss = workload("mlp_norm").build(layers=2 if effort.tiny else 500)

    def timed(prepare: Callable[[Tensor], Callable[[], Any]]) -> Callable[[], float]:
        def once() -> float:
            model.zero_grad(set_to_none=True)
            return seconds(prepare(make_loss()))

        return once

    def row(what: str, prepare: Callable[[Tensor], Callable[[], Any]], goal: float | None = None) -> Row:
        plain = timed(lambda loss: loss.backward)
        return Row(f"{what} / loss.backward(), mlp_norm", "×", ratios(timed(prepare), plain, effort.repetitions), goal)

    yield row("session.run()", lambda loss: th.debug(loss).run, 1.6)
    yield row("th.backward(engine='direct')", lambda loss: lambda: th.backward(loss, engine="direct"))
    yield row("th.backward(engine='native')", lambda loss: lambda: th.backward(loss, engine="native"))
