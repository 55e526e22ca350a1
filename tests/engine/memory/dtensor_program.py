"""Started on two ranks by test_dtensor_memory.py: backwards of DTensors and of fully_shard, predicted and measured.

argv: the rank and the folder for what each logs.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Shard

import tapescope as ts

SIZE = 2
LIMIT_S = 20.0
WIDTH = 64
POLICIES = ("heap", "bfs")

MakeLoss = Callable[[], Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(WIDTH, 16)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().sum()  # type: ignore[no-any-return]


def tensor_parallel(mesh: DeviceMesh) -> MakeLoss:
    net, x = Net(), torch.randn(128, WIDTH)
    parallelize_module(net, mesh, {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()})
    return lambda: net(x)


def sums_of_dtensors(mesh: DeviceMesh) -> MakeLoss:
    """Gradients that meet are DTensors, to which the engine adds nothing in place."""
    x = distribute_tensor(torch.randn(64, WIDTH), mesh, [Shard(0)]).requires_grad_()

    def make_loss() -> Tensor:
        y = x * 2
        total = y.tanh() + y.sin() + y.exp() + y.cos()
        loss: Tensor = total.to_local().sum()  # type: ignore[attr-defined]
        return loss

    return make_loss


def sharded(mesh: DeviceMesh) -> MakeLoss:
    net, x = Net(), torch.randn(128, WIDTH)
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return lambda: net(x)  # type: ignore[no-any-return]


PROGRAMS = (tensor_parallel, sums_of_dtensors, sharded)


def levels(timeline: ts.types.Timeline) -> tuple[int, int, int]:
    return timeline.start_bytes, timeline.peak_bytes, timeline.end_bytes


def seen(make_loss: MakeLoss, policy: str) -> dict[str, Any]:
    """The levels that were predicted and measured, on fresh gradients."""

    def fresh() -> Tensor:
        for leaf in leaves:
            leaf.grad = None
        return make_loss()

    loss = make_loss()
    leaves = list(ts.graph(loss).leaves.values())
    loss.backward()
    drawn = ts.graph(loss := fresh())
    dry = ts.simulate(drawn, policy)
    plan = ts.plan_order(drawn, "heap")
    loss.backward()
    # gloo's threads may hold for a moment what was sent.
    run = min((ts.profile(fresh, policy) for _ in range(4)), key=lambda run: run.peak_bytes)
    assert run.timeline is not None
    again = ts.simulate(run.graph, policy, run.footprints)
    return {
        "dry": levels(dry),
        "measured": levels(run.timeline),
        "calibrated": levels(again),
        "why": [dry.estimates, again.estimates],
        "words": [str(ts.peak_report(dry)), "\n".join(plan.sentences)],
    }


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=SIZE)
    ts.wait_for_ranks(LIMIT_S)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (SIZE,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = {
            f"{program.__name__} {policy}": seen(make_loss, policy)
            for program in PROGRAMS
            for make_loss in [program(mesh)]
            for policy in POLICIES
        }
    (folder / f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # gloo's destructor may wait for a thread which waits for the GIL


if __name__ == "__main__":
    main()
