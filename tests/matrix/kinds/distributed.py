"""Data-parallel wrappers and distributed tensors, in a process group of one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from program import Program, kind, mlp, simple
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


def join_group() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def ddp(model: nn.Module, **how: Any) -> Program:
    join_group()
    return simple(DistributedDataParallel(model, **how), torch.randn(3, 4), is_repeatable=False)


@kind
def ddp_plain() -> Program:
    return ddp(mlp(nn.BatchNorm1d(8)))


@kind
def ddp_buckets_as_views() -> Program:
    return ddp(mlp(), gradient_as_bucket_view=True)


@kind
def ddp_static_graph() -> Program:
    return ddp(mlp(), static_graph=True)


@kind
def ddp_without_sync() -> Program:
    program = ddp(mlp())
    synced, model = program.make_loss, program.model

    def loss() -> Any:
        with model.no_sync():
            return synced()

    program.make_loss = loss
    return program


@kind
def fully_sharded() -> Program:
    join_group()
    model = mlp()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return simple(model, torch.randn(3, 4), is_repeatable=False)


def distributed_tensors(*placements: Any) -> Program:
    join_group()
    mesh = init_device_mesh("cpu", (1,))
    w = nn.Parameter(distribute_tensor(torch.randn(4, 4), mesh, placements))
    x = distribute_tensor(torch.randn(2, 4), mesh, [Replicate()])
    return Program(lambda: (x @ w).sin().sum().full_tensor(), {"w": w})


@kind
def dtensor_sharded() -> Program:
    return distributed_tensors(Shard(0))


@kind
def dtensor_replicated() -> Program:
    return distributed_tensors(Replicate())


@kind
def data_parallel_wrapper() -> Program:
    return simple(nn.DataParallel(mlp()), torch.randn(3, 4))
