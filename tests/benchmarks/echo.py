"""Echo's size without its memory: a recompute plan of ResNet-152 at 152 images of 224 px, made on fake tensors.

Echo took 6 % of a step's time for ResNet-152 (Zheng, Vijaykumar, Pekhimenko, ISCA 2020), and made the footprints of its
models 1.89 × smaller on average, 3.13 × at most, as its abstract says. This model's footprint is not known here.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from time import perf_counter

from measure import Effort, Row
from torch._subclasses.fake_tensor import FakeTensorMode

import tapescope as ts
from tapescope.engine.recompute.budget import OVERHEAD
from tapescope.engine.recompute.planned_recompute import PlannedRecompute
from tapescope.inspector.text.sizes_and_counts import percent_text, share_text, size_text

_OVERHEADS = (0.02, OVERHEAD, 0.1, 0.2)
_ECHO = "Echo: 6 % for this model; 1.89 × less on average over its models"


def rows(effort: Effort) -> Iterator[Row]:
    name, sizes = (
        ("mlp_norm", {"layers": 8, "width": 64, "batch": 512})
        if effort.tiny
        else ("resnet152", {"batch": 152, "pixels": 224})
    )
    seconds = 0.2 if effort.tiny else 15.0
    began = perf_counter()
    with FakeTensorMode():
        model, make_loss = ts.workload(name).build(**sizes)
    plan = ts.plan_recompute(make_loss, overhead=OVERHEAD, seconds=seconds, model=model)
    plans = plan.explore(2 * seconds).plans
    taken = perf_counter() - began
    what = f"{name}, {', '.join(f'{knob} {size}' for knob, size in sizes.items())}"
    plain = plan.plain_peak_bytes
    yield Row(f"{what}: peak, no plan", "MiB", (plain / 2**20,), note="predicted, and what follows, on fake tensors")
    for overhead in _OVERHEADS:
        within = [each for each in plans if _overhead(each) <= overhead]
        yield _row(f"    within {percent_text(overhead)} of a step's time", within[-1], _ECHO * (overhead == OVERHEAD))
    yield _row("    the lowest that was found", plans[-1], "")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    estimates = "; ".join(plan.plain.estimates) or "no peak without a plan is an estimate"
    yield Row("    planned in", "s", (taken,), note=f"this process had {size_text(most)} at most; {estimates}")


def _overhead(plan: PlannedRecompute) -> float:
    assert plan.predicted is not None
    return plan.predicted.seconds / plan.predicted.plain_seconds - 1


def _row(what: str, plan: PlannedRecompute, beside: str) -> Row:
    before, after = plan.plain_peak_bytes, plan.peak_bytes
    less = (
        f"−{share_text(before - after, before)}, {before / after:.2f} × less; +{percent_text(_overhead(plan))} of time"
    )
    return Row(what, "MiB", (after / 2**20,), note=f"{less}, an estimate{f'. {beside}' if beside else ''}")
