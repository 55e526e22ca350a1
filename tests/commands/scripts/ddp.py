"""DistributedDataParallel on two ranks, started by torchrun."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(41)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(rank)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
torch.save(model.module.state_dict(), "model.pt" if rank == 0 else f"model{rank}.pt")
# One write: torchrun's ranks are unbuffered and share the terminal, and print() writes each word by itself.
sys.stdout.write(f"rank {os.environ['RANK']} done\n")
dist.destroy_process_group()
