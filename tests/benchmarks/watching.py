"""The cost of watching a ResNet-50's backward for NaN, beside `torch.autograd.detect_anomaly` in the same run.

Each backward begins with a fresh forward, which is not measured; a session's time is that from `ts.debug` to its end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from measure import Effort, Row, ratios, seconds
from torch import Tensor

import tapescope as ts
from tapescope.engine.recording.run import Engine
from tapescope.engine.studies.workloads import workload

Prepare = Callable[[Tensor], Callable[[], Any]]


def rows(effort: Effort) -> Iterator[Row]:
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        yield from rows_on(device, effort)


def rows_on(device: str, effort: Effort) -> Iterator[Row]:
    size = {"batch": 2, "pixels": 32} if effort.tiny else {"batch": 32 if device == "cuda" else 2, "pixels": 224}
    model, make_loss = workload("resnet50").build(device=device, **size)
    repetitions = max(effort.repetitions // 2, 1)

    def timed(prepare: Prepare, anomaly: bool = False) -> Callable[[], float]:
        def run_through(backward: Callable[[], Any]) -> None:
            backward()
            if device == "cuda":
                torch.cuda.synchronize()

        def once() -> float:
            model.zero_grad(set_to_none=True)
            with _anomaly() if anomaly else nullcontext():
                backward = prepare(make_loss())
                if device == "cuda":
                    torch.cuda.synchronize()
                return seconds(lambda: run_through(backward))

        return once

    plain = timed(lambda loss: loss.backward)
    shape = f"resnet50 {size['batch']}×3×{size['pixels']}×{size['pixels']}, {device}"

    def ratio(what: str, prepare: Prepare, goal: float | None = None, anomaly: bool = False) -> Row:
        return Row(f"{what} / loss.backward(), {shape}", "×", ratios(timed(prepare, anomaly), plain, repetitions), goal)

    yield ratio("torch.autograd.detect_anomaly()", lambda loss: loss.backward, anomaly=True)
    for engine in ("native", "direct"):
        yield ratio(f'{engine} session, watch("nan")', watched(engine, "nan"), 1.3)
        yield ratio(f"{engine} session, nothing watched", watched(engine))
    many = ("nan", "inf", "zero", "norm>1e6", "upcast", "missing")
    yield ratio(f"direct session, watch({', '.join(many)})", watched("direct", *many))


def watched(engine: Engine, *conditions: str) -> Prepare:
    def prepare(loss: Tensor) -> Callable[[], None]:
        def run() -> None:
            with ts.debug(loss, engine=engine, trace=None) as session:
                if conditions:
                    session.watch(*conditions)
                while session.left:
                    session.run()

        return run

    return prepare


def _anomaly() -> torch.autograd.detect_anomaly:
    with warnings.catch_warnings(action="ignore"):
        return torch.autograd.detect_anomaly()
