"""Memory on CUDA: measured against predicted for each workload, what blocks take on top, and what measuring costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from measure import Effort, Row, ratios, seconds

import tapescope as ts
from tapescope.engine.studies.workloads import WORKLOADS

_GOAL = 1.3


def rows(effort: Effort) -> Iterator[Row]:
    """`full` models; small ones if `tiny`. Each is calibrated in the order of dfs and measured in that of heap."""
    if not torch.cuda.is_available():
        yield Row("memory on CUDA", "×", outcome="no CUDA here")
        return
    for name in ["linear50"] if effort.tiny else WORKLOADS:
        try:
            yield from _workload_rows(name, effort)
        except torch.cuda.OutOfMemoryError as error:
            yield Row(name, "×", outcome=f"error: {str(error).partition('.')[0]}")
        torch.cuda.empty_cache()


def _workload_rows(name: str, effort: Effort) -> Iterator[Row]:
    model, make_loss = WORKLOADS[name].build("small" if effort.tiny else "full", device="cuda")

    def timed(step: Callable[[], object]) -> Callable[[], float]:
        def step_and_wait() -> None:
            step()
            torch.cuda.synchronize()

        def once() -> float:
            model.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            return seconds(step_and_wait)

        return once

    def profiled(policy: str) -> ts.Run:
        model.zero_grad(set_to_none=True)
        return ts.profile(make_loss, policy)

    plain = timed(lambda: make_loss().backward())
    plain()
    ts.backward(make_loss())  # libraries have taken their workspaces
    footprints = profiled("dfs").footprints
    run = profiled("heap")
    timeline = run.timeline
    assert timeline is not None and timeline.blocks is not None
    predicted = ts.simulate(run.graph, run.order, footprints).peak_bytes
    blocks = timeline.blocks
    sizes = {
        "measured": timeline.peak_bytes,
        "predicted": predicted,
        "allocated with what was before": max(blocks.allocated),
        "reserved": max(blocks.reserved),
    }
    said = "; ".join(f"{what} {nbytes / 2**20:.3f} MiB" for what, nbytes in sizes.items())
    off = predicted - timeline.peak_bytes
    yield Row(f"{name}: peak", "MiB", outcome=f"{said}; off by {off:,} bytes, {off / timeline.peak_bytes:+.4%}")
    measuring = timed(lambda: ts.profile(make_loss))
    yield Row(f"ts.profile / a plain step, {name}", "×", ratios(measuring, plain, effort.repetitions), _GOAL)
