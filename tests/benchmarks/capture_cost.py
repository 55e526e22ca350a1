"""The cost of `ts.capture()`: the time of a forward inside it relative to a plain forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from measure import Effort, Row, ratios, seconds
from torch import Tensor

import tapescope as ts
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.torch_private.nodes import TELLS_OF_NEW_NODES


def rows(effort: Effort) -> Iterator[Row]:
    _, resnet50 = workload("resnet50").build(batch=2 if effort.tiny else 8, pixels=32 if effort.tiny else 64)
    yield _row("capture / plain forward, ResNet-50, batch 8, 64 px", resnet50, 1.1, effort)
    _, mlp_norm = workload("mlp_norm").build(layers=2 if effort.tiny else 500)
    yield _row("capture / plain forward, mlp_norm", mlp_norm, 1.6 if TELLS_OF_NEW_NODES else 1.8, effort)


def _row(what: str, forward: Callable[[], Tensor], goal: float, effort: Effort) -> Row:
    def captured() -> Tensor:
        with ts.capture():
            return forward()

    return Row(what, "×", ratios(lambda: seconds(captured), lambda: seconds(forward), effort.repetitions), goal)
