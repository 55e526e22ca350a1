"""Run by test_torch_private.py: the events of DistributedDataParallel's reducer for its buckets."""

from __future__ import annotations

import os
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tapescope.inspector.torch_private.distributed import reducer_buckets, reductions_are_delayed

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
layer = nn.Linear(4, 2)
wrapper = DistributedDataParallel(layer, static_graph=True)
((parameters, nbytes),) = reducer_buckets(wrapper)
assert {id(each) for each in parameters} == {id(layer.weight), id(layer.bias)} and nbytes == 40
assert reductions_are_delayed(wrapper)
wrapper(torch.ones(1, 4)).sum().backward()
assert not reductions_are_delayed(wrapper)
os._exit(0)
