"""Fake tensors work without loading torch's compiler, give the same results as with it, and leave it unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tapescope.tests.warm_python import WarmPython

PREDICTED = """
import torch
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.studies.workloads import WORKLOADS
import tapescope as ts

for name in ("rnn", "mixture_of_experts", "unet", "mlp_norm"):
    torch.manual_seed(0)
    graph = ts.graph(WORKLOADS[name].build("small", **({"layers": 3} if name == "mlp_norm" else {}))[1]())
    for _ in range(2):
        print(dry_run(graph))
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

FORMULAS = """
import torch
import torch.nn.functional as F
from tapescope.engine.memory.dry_run import dry_run
import tapescope as ts

def x(*sizes):
    return torch.ones(sizes, requires_grad=True)

some = torch.tensor([0, 1])
for formula in (
    lambda: x(4, 4).square(),
    lambda: x(4, 4) ** 3,
    lambda: x(2, 3, 4).permute(2, 0, 1).contiguous(),
    lambda: torch.einsum("bij,bjk->bik", x(2, 3, 4), x(2, 4, 5)),
    lambda: x(4).bfloat16().float(),
    lambda: F.rms_norm(x(4, 4), (4,), x(4)),
    lambda: F.cross_entropy(x(4, 4), torch.zeros(4, dtype=torch.long)),
    lambda: x(4, 4).masked_fill(torch.ones(4, dtype=torch.bool), 0.0),
    lambda: x(4, 4).tril().t().expand(3, 4, 4).reshape(12, 4)[some],
    lambda: F.conv2d(x(1, 3, 8, 8).to(memory_format=torch.channels_last), x(4, 3, 3, 3)).relu(),
    lambda: F.group_norm(x(2, 4, 4), 2),  # from here on DTensors are loaded
    lambda: x(4, 4).amax(1),
):
    print(dry_run(ts.graph(formula().sum())))
"""

FIRST_DECK = """
import sys
import torch
import tapescope as ts
from tapescope.widgets.deck.deck import Deck

model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1))
with Deck(ts.debug(model(torch.randn(8, 16)).square().mean(), trace="full", history=True)) as deck:
    assert deck.compare(["heap", "bfs"])
print(*(name for name in ("torch._dynamo", "torch.distributed.tensor") if name in sys.modules))
"""

Alone = Callable[[str], str]


FITTED = """
import torch
import tapescope as ts

def fit(kind, **options):
    return ts.fits(
        lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1)),
        lambda size=4: torch.randn(size, 8),
        lambda parameters: kind(parameters, **options),
        "1GB",
        lambda model, batch: model(batch).sum(),
    )

for kind in (torch.optim.Adam, torch.optim.ASGD, torch.optim.Adafactor):
    print([(each.phase, each.nbytes) for each in fit(kind, foreach=False).phases])
print([(each.phase, each.nbytes) for each in fit(torch.optim.NAdam, foreach=True).phases])
"""


@pytest.fixture
def alone(fresh_python: WarmPython) -> Alone:
    """Run a script in a separate process; return its output."""

    def alone(script: str) -> str:
        done = fresh_python.run("-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return alone


def test_a_dry_run_loads_no_compiler_tells_what_it_does_with_one_and_code_is_compiled_afterwards(alone: Alone) -> None:
    told = alone(PREDICTED + NOT_LOADED + COMPILED_AFTERWARDS + PREDICTED).splitlines()
    assert len(told) == 16 and told[:8] == told[8:]


@pytest.mark.slow
def test_a_dry_run_tells_what_it_tells_where_a_compiler_was_loaded_first(alone: Alone) -> None:
    loaded = alone("import torch._dynamo\n" + PREDICTED)
    assert len(loaded.splitlines()) == 8 and loaded == alone(PREDICTED + NOT_LOADED)


@pytest.mark.slow
def test_formulas_are_predicted_as_where_a_compiler_and_dtensors_were_loaded_first(alone: Alone) -> None:
    without = alone(FORMULAS + FORMULAS)
    loaded = alone("import torch._dynamo\nimport torch.distributed.tensor\n" + FORMULAS)
    assert len(loaded.splitlines()) == 12 and without == 2 * loaded


def test_a_first_deck_with_its_prediction_loads_neither_compiler_nor_dtensors(alone: Alone) -> None:
    assert alone(FIRST_DECK).split() == []


def test_a_step_is_simulated_without_the_compiler_as_with_it(alone: Alone) -> None:
    """Optimizers load it: as they are created and cleared, and as they step."""
    told = alone(FITTED + NOT_LOADED + COMPILED_AFTERWARDS + FITTED).splitlines()
    assert len(told) == 8 and told[:4] == told[4:]
