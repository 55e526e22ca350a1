"""Started twice by test_training_with_recompute.py: steps of DistributedDataParallel, with a plan and without.

argv: the rank, and the folder for what came of it.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import tapescope as ts
from tapescope.engine.recompute.plan import RecomputePlan
from tapescope.engine.recompute.record_forward import record_forward

STEPS = 3  # buckets are made up anew in the second


def train(rank: int, recomputed: bool) -> tuple[list[Tensor], int]:
    """Return parameters and buffers after some steps of two backwards each, and the number of dropped storages."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(16, 16), nn.Tanh()
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = torch.randn(STEPS, 2, 12, 8, generator=torch.Generator().manual_seed(rank))
    first = data[0, 0]
    program = record_forward(lambda: model(first).square().sum(), 1)
    plan = RecomputePlan.of(program, [each.number for each in program.storages if each.obstacle is None])
    dropped = 0
    torch.manual_seed(rank)
    for batches in data:
        optimizer.zero_grad()
        for number, batch in enumerate(batches):
            with model.no_sync() if number == 0 else nullcontext():
                with ts.recompute(plan) if recomputed else nullcontext() as context:
                    loss = model(batch).square().sum()
                loss.backward()
            dropped += context.report.dropped if context is not None else 0
        optimizer.step()
    return [value.clone() for value in net.state_dict().values()], dropped


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
    plain, _ = train(rank, recomputed=False)
    recomputed, dropped = train(rank, recomputed=True)
    torch.save((plain, recomputed, dropped), folder / f"{rank}.pt")
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may hang at the end
