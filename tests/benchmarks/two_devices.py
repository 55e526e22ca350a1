"""PyTorch PR #4746's example of a graph for which creation order is slow (**), on real threads, beside `ts.makespan`.

Each device has a ready queue and a thread of its own. A kernel that computes says little on a machine with few cores:
here the backward of each Linear sleeps instead, without Python's lock. The devices are CUDA's, or those of
`tests/second_device`, in a process of their own that ends by `os._exit`, as that one wants.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measure import Effort, Row
from torch import Tensor, nn
from torch.autograd import Function

POLICIES = ("bfs", "dfs", "heap")

_SLEEPS_S = 0.03
_LAYERS = 15
_GOAL = 10.0  # per cent by which what is measured differs from what is simulated
_MOST = 5  # repetitions


def rows(effort: Effort) -> Iterator[Row]:
    what = "(**) on two devices"
    repetitions = 1 if effort.tiny else min(effort.repetitions, _MOST)
    command = [sys.executable, __file__, str(repetitions), str(3 if effort.tiny else _LAYERS)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        yield Row(what, "×", outcome=(ran.stderr.strip().splitlines() or ["it ended"])[-1])
        return
    for found in json.loads(ran.stdout):
        yield from _rows_of(f"{what}, {found['near']} and {found['far']}", found)


def _rows_of(where: str, found: dict[str, Any]) -> Iterator[Row]:
    measured, simulated = found["measured"], found["simulated"]
    for policy in ("dfs", "heap"):
        ratios = tuple(over / under for over, under in zip(measured[policy], measured["bfs"], strict=True))
        says = simulated[policy] / simulated["bfs"]
        yield Row(f"{where}: time, {policy} / bfs", "×", ratios, note=f"ts.makespan says {says:.2f} ×")
        off = abs(min(measured[policy]) / min(measured["bfs"]) / says - 1)
        yield Row(f"{where}: {policy} / bfs off makespan's", "%", (100 * off,), _GOAL)


class _Sleeps(Function):
    """The identity, whose backward takes a while."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(_SLEEPS_S)
        return gradient


def _measured(near: torch.device, far: torch.device, repetitions: int, layers: int) -> dict[str, Any]:
    """Nanoseconds of each backward by policy, in turns; and what the simulation makes of the tasks' own times."""
    import tapescope as ts
    from tapescope.engine.api.time_backwards import turns
    from tapescope.engine.studies.workload_models_translation import TwoDevices

    torch.manual_seed(0)
    model = TwoDevices(32, layers, layers)
    model.near.to(near)
    model.far.to(far)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, args, output: _Sleeps.apply(output))
    x = torch.randn(8, 32)

    def run(policy: str) -> ts.Run:
        model.zero_grad()
        return ts.backward(model(x).square().mean(), policy=policy, queues="per device", trace="off")

    run("bfs")
    runs: dict[str, list[ts.Run]] = {policy: [] for policy in POLICIES}
    for turn in turns(POLICIES, repetitions):
        for policy in turn:
            runs[policy].append(run(policy))
    report = ts.makespan(runs["bfs"][0].graph, policies=list(POLICIES), durations=runs["bfs"])
    return {
        "near": str(near),
        "far": str(far),
        "measured": {policy: [each.elapsed_ns for each in found] for policy, found in runs.items()},
        "simulated": {policy: report[policy].makespan_ns for policy in POLICIES},
    }


def main() -> None:
    repetitions, layers = map(int, sys.argv[1:])
    name, count = "cuda", torch.cuda.device_count()
    if not count:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import second_device

        if why := second_device.why_not():
            sys.exit(why)
        second_device.load()
        name, count = second_device.NAME, second_device.COUNT
    far = torch.device(name, count - 1)
    nears = [torch.device("cpu"), *([torch.device(name, 0)] if count > 1 else [])]
    print(json.dumps([_measured(near, far, repetitions, layers) for near in nears]))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
