"""Fake tensors load no compiler of torch's, tell the same as with it, and leave it as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PREDICTED = """
import dataclasses
import torch
from tapehead.engine.prediction.dry_run import dry_run
from tapehead.engine.workloads.workloads import WORKLOADS
import tapehead as th

for name in ("rnn", "mixture_of_experts", "unet", "mlp_norm"):
    torch.manual_seed(0)
    graph = th.graph(WORKLOADS[name].build("small", **({"layers": 3} if name == "mlp_norm" else {}))[1]())
    for _ in range(2):
        print(dataclasses.replace(dry_run(graph), graph=None))
"""

NOT_LOADED = """
import sys
assert "torch._dynamo" not in sys.modules
"""

COMPILED_AFTERWARDS = """
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensorMode

graphs = []
def backend(module, inputs):
    graphs.append(module)
    return module.forward

def compute(x):
    return (x.relu() / 3).sum()

x = torch.randn(3, 3)
assert torch.equal(torch.compile(compute, backend=backend, fullgraph=True)(x), compute(x)) and len(graphs) == 1
assert type(FakeTensorMode()) is FakeTensorMode
with FakeTensorMode():
    assert torch.nn.functional.gelu(torch.ones(2, 3) / 2).shape == (2, 3)
assert torch._dynamo.disable(compute)(x) == compute(x)
"""


def alone(script: str) -> str:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_dry_run_loads_no_compiler_tells_what_it_does_with_one_and_code_is_compiled_afterwards() -> None:
    without = alone(PREDICTED + NOT_LOADED + COMPILED_AFTERWARDS + PREDICTED)
    loaded = alone("import torch._dynamo\n" + PREDICTED)
    assert len(loaded.splitlines()) == 8 and without == 2 * loaded
