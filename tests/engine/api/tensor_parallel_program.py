"""Started on two ranks by test_tensor_parallel.py: backwards of a model whose layers are split over them.

argv: the rank and the folder for what each logs.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tapescope as ts

SIZE = 2
LIMIT_S = 10.0
POLICIES = ("bfs", "dfs", "auto")


class Branches(nn.Module):
    """Branches of equal shapes over one input, so that the collectives of one could pair up with another's."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(8, 16, dtype=torch.float64) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(16, 8, dtype=torch.float64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        made = [
            down(up(x).tanh()) * 10.0**number for number, (up, down) in enumerate(zip(self.up, self.down, strict=True))
        ]
        return torch.stack([branch.sin().sum() for branch in made]).sum()


def gradients_of(model: nn.Module) -> dict[str, list[Any]]:
    """In whole, for which each rank must have the same part of the same sum."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        found[name] = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).tolist()
    return found


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=SIZE)
    ts.wait_for_ranks(LIMIT_S)
    torch.manual_seed(0)
    model, x = Branches(), torch.randn(4, 8, dtype=torch.float64)
    model(x).backward()
    results: dict[str, Any] = {"one process": {"gradients": gradients_of(model)}}
    plan = {"up.*": ColwiseParallel(), "down.*": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (SIZE,)), plan)

    def step(policy: str | None) -> dict[str, Any]:
        model.zero_grad()
        loss = model(x)
        run = None
        if policy is None:
            loss.backward()
        else:
            run = ts.backward(loss, policy=policy)
        said = {} if run is None else {"policy": run.policy, "note": run.note, "order": run.order}
        return {"gradients": gradients_of(model), **said}

    results["plain"] = step(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, policy in enumerate(POLICIES):
            results[f"{policy} on both"] = step(policy)
            other = POLICIES[(number + 1) % len(POLICIES)]
            results[f"{policy} against {other}"] = step((policy, other)[rank])
    (folder / f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # gloo's destructor may wait for a thread which waits for the GIL


if __name__ == "__main__":
    main()
