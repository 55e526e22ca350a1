"""Recomputation beside checkpoints per block, selective ones and torch.compile's memory budget: memory and time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from measure import Effort, Row

from tapescope.engine.studies.recompute_study import (
    BELOW,
    BLOCKS,
    NOTHING,
    STUDIED,
    WITHIN,
    RecomputeStudy,
    StudiedWay,
    recompute_study,
    save_studies,
)

_BEATEN = ("gpt2", "resnet50", "resnet152", "unet")
_LOWER = {"resnet152": 30.0, "gpt2": 45.0}
"""Percent of the peak by which it is to fall at 6 % overhead."""

_PEAK_ERROR = 0.5  # percent
_TIME_ERROR = 10.0  # percent
_MOST_ROUNDS = 7


def rows(effort: Effort) -> Iterator[Row]:
    yield from _rows(effort, "cpu")


def rows_cuda(effort: Effort) -> Iterator[Row]:
    """The same on CUDA, with full models; small ones if `tiny`."""
    if torch.cuda.is_available():
        yield from _rows(effort, "cuda")
    else:
        yield Row("recomputation on CUDA", "×", outcome="no CUDA here")


def _rows(effort: Effort, device: str) -> Iterator[Row]:
    studies = []
    size = "small" if effort.tiny else "desk" if device == "cpu" else "full"
    for name in ("unet",) if effort.tiny else STUDIED:
        study = recompute_study(
            name,
            size=size,
            device=device,
            repetitions=min(effort.repetitions, _MOST_ROUNDS),
            seconds=0.2 if effort.tiny else 5.0,
            compiled=not effort.tiny,
        )
        yield from _of_study(study)
        studies.append(study)
    effort.folder.mkdir(parents=True, exist_ok=True)
    path = save_studies(studies, effort.folder / f"recompute-{device}.html")
    yield Row("recompute: tables and figures", "×", outcome=f"in {path}")


def _of_study(study: RecomputeStudy) -> Iterator[Row]:
    """A row for each way; of time, those of its rounds; then what was to be reached."""
    name = study.workload.name
    nothing = study[NOTHING]
    for way, (what, peak, change, predicted, time, *_) in zip(study.rows, study.cells[1:], strict=True):
        if way is nothing:
            yield Row(f"{name}: {what}", "MiB", (way.peak_bytes / 2**20,), note=time)
            continue
        ratios = tuple(mine / its for mine, its in zip(way.times_ns, nothing.times_ns, strict=True))
        said = f"{peak}, {change}; predicted {predicted}" if way.plan is not None else f"{peak}, {change}"
        yield Row(f"{name}: time, {what} / {NOTHING}", "×", ratios, note=f"{said}; {time}, {way.bits}")
    for what, why in study.refused.items():
        yield Row(f"{name}: {what}", "×", outcome=why)
    yield from _goals(study)


def _goals(study: RecomputeStudy) -> Iterator[Row]:
    name = study.workload.name
    recomputed = [row for row in study.rows if row.plan is not None]
    highest = max(study.ratio(row.name) for row in recomputed)
    yield Row(f"{name}: the higher peak of both recompute plans / {NOTHING}", "×", (highest,), 1.0)
    if name in _BEATEN and BLOCKS in study:
        memory, time = _over(study[BELOW], study[BLOCKS])
        yield Row(f"{name}: peak, recompute / {BLOCKS}", "×", (memory,), 1.0)
        yield Row(f"{name}: time, recompute / {BLOCKS}", "×", (time,), 1.0)
    if name in _LOWER:
        lower = 100 * (1 - study.ratio(WITHIN))
        goal = _LOWER[name]
        yield Row(f"{name}: peak lower at 6 % overhead by", "%", (lower,), goal, at_least=True)
    errors = [(100 * abs(row.error or 0.0), 100 * abs(row.time_error or 0.0)) for row in recomputed]
    peaks, times = zip(*errors, strict=True)
    yield Row(f"{name}: predicted peak off by", "%", (max(peaks),), _PEAK_ERROR)
    yield Row(f"{name}: predicted time off by", "%", (max(times),), _TIME_ERROR)


def _over(one: StudiedWay, other: StudiedWay) -> tuple[float, float]:
    """The peak over that of another way, and the time."""
    return one.peak_bytes / other.peak_bytes, one.time_ratio.middle / other.time_ratio.middle
