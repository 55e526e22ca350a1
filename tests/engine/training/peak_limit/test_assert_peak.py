"""`ts.assert_peak`: the memory of a step on fake tensors, against real steps and against counting by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.__main__ import main
from tapescope.engine.training.peak_limit.assert_peak import growth, stored_parts
from tapescope.engine.training.peak_limit.simulated_function import simulate_function
from tapescope.tests.says import says
from tapescope.tests.warm_python import WarmPython


class Net(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.layers:
            x = each(x).tanh()
        return self.head(x)


def make_loss(layers: int = 3) -> tuple[torch.Tensor, nn.Module]:
    model = Net(layers)
    return nn.functional.cross_entropy(model(torch.randn(200, 64)), torch.zeros(200, dtype=torch.long)), model


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_the_peak_is_that_of_a_real_step(optimizer: type[torch.optim.Optimizer]) -> None:
    model, x, target = Net(), torch.randn(200, 64), torch.zeros(200, dtype=torch.long)
    trained = optimizer(model.parameters())

    def step() -> None:
        trained.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        trained.step()

    measured = ts.profile_step(step).peak_bytes
    predicted = ts.assert_peak(make_loss, "1 GiB", optimizer=optimizer, device="cpu")
    assert predicted == measured + x.nbytes  # the real batch is older than the recording


def test_a_linear_layer_is_counted_by_hand() -> None:
    def loss() -> torch.Tensor:
        return nn.Linear(256, 256, bias=False)(torch.randn(512, 256)).sum()

    # Weight, batch and the weight's gradient; the output is freed by the sum, whose gradient of 4 bytes is expanded,
    # and copied for the product where a kernel cannot read it.
    found = simulate_function(loss, "test", "cpu", has_loss=True)
    weight, batch = 256 * 256 * 4, 512 * 256 * 4
    assert found.parts[""].kinds["activations" if "activations" in found.parts[""].kinds else "batch"] <= batch + 64
    assert 2 * weight + batch <= found.peak_bytes <= 2 * weight + 2 * batch + 64
    assert sum(each.nbytes for each in found.parts.values()) == found.peak_bytes


def test_cuda_rounds_up_to_512_bytes_and_state_is_allocated_before_the_step() -> None:
    def loss() -> torch.Tensor:
        return nn.Linear(3, 1)(torch.ones(2, 3)).sum()

    found = simulate_function(loss, "test", "cuda", torch.optim.Adam, has_loss=True)
    assert {nbytes % 512 for nbytes in found.timeline.nbytes} == {0}
    start = found.timeline.parts_at(0)
    # Weight and bias, and two moments of each; their step counts are on the CPU.
    assert start["parameters"] == 2 * 512 and start["optimizer state"] >= 4 * 512


def test_a_peak_above_the_limit_names_modules_and_lines() -> None:
    with pytest.raises(AssertionError) as raised:
        ts.assert_peak(make_loss, "100 KiB", optimizer=torch.optim.Adam)
    says(raised.value, "exceeds 100 KiB", "layers.0", "optimizer state", "test_assert_peak.py:")


def test_the_module_that_grew_is_named_alone() -> None:
    small, large = (
        simulate_function(lambda count=count: make_loss(count), "test", "cuda", torch.optim.Adam, has_loss=True)
        for count in (3, 4)
    )
    said, of_root = growth(stored_parts(small.parts), large)
    says(said, "layers.3", "new", "test_assert_peak.py:")
    says(of_root, "activations", 200 * 64 * 4 // 1024)  # the result of tanh, in the forward of Net itself
    assert growth(stored_parts(large.parts), large) == growth(stored_parts(large.parts), small) == []


def test_existing_models_count_and_stay_as_they_are() -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()

    def step() -> None:
        model(torch.randn(200, 64)).square().mean().backward()
        optimizer.step()

    found = simulate_function(step, "test", "cpu")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters()) and not optimizer.state
    assert torch.equal(torch.get_rng_state(), random)
    parameters = sum(each.nbytes for each in model.parameters())
    assert found.timeline.peaks[-1].parts["parameters"] == parameters
    assert found.timeline.peaks[-1].parts["optimizer state"] == 2 * parameters + 8 * 4


@pytest.mark.parametrize(
    ("function", "error", "facts"),
    [
        (lambda: 3, ValueError, ("int", "(loss, model)")),
        (lambda: torch.ones(3, requires_grad=True).sum(), ValueError, ("torch.nn.Module",)),
        (lambda: nn.Linear(1, 1)(torch.ones(1)) * torch.ones(1).item(), NotImplementedError, (".item()", "line")),
    ],
)
def test_other_functions_are_refused(function: object, error: type[Exception], facts: tuple[str, ...]) -> None:
    with pytest.raises(error) as raised:
        ts.assert_peak(function, "1 GiB", optimizer=torch.optim.SGD)  # type: ignore[arg-type]
    says(
        raised.value,
        *(f"test_assert_peak.py:{function.__code__.co_firstlineno}" if each == "line" else each for each in facts),
    )  # type: ignore[attr-defined]


def test_limits_are_sizes() -> None:
    for limit in (0, "2 G", 16):
        with pytest.raises(ValueError, match="limit"):
            ts.assert_peak(make_loss, limit)


@pytest.mark.parametrize(("limit", "status"), [("1GB", 0), ("100KiB", 1)])
def test_the_command_compares_a_loss_with_a_limit(
    limit: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\ndef make_loss():\n    return torch.nn.Linear(256, 256)(torch.ones(8, 256)).sum()\n"
    )
    target = f"{tmp_path / 'train.py'}:make_loss"
    assert main(["fits", target, "--limit", limit, "--optimizer", "AdamW"]) == status
    printed = capsys.readouterr().out
    says(printed, *(("exceeds", "train.py:3") if status else ("predicted peak", "optimizer")))
    assert main(["fits", target, "--limit", limit, "--optimizer", "Nothing"]) == 2
    says(capsys.readouterr().err, "'Nothing'", "AdamW")


def test_the_command_shows_the_place_of_an_error_in_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("import torch\ndef make_loss():\n    return torch.nn.Linear(3, 3)(5).sum()\n")
    assert main(["fits", f"{tmp_path / 'train.py'}:make_loss", "--limit", "1GB"]) == 1
    says(capsys.readouterr().err, "train.py", "line 3", "TypeError")


@pytest.mark.heavy
def test_a_small_gpt2_takes_less_than_two_seconds(fresh_python: WarmPython) -> None:
    pytest.importorskip("transformers")
    program = """
import time, torch, tapescope as ts
from transformers import GPT2Config, GPT2LMHeadModel
def make_loss():
    tokens = torch.randint(0, 50257, (2, 512))
    return GPT2LMHeadModel(GPT2Config())(input_ids=tokens, labels=tokens).loss
ts.assert_peak(lambda: torch.nn.Linear(1, 1)(torch.ones(1)).sum(), "1 GiB", optimizer=torch.optim.AdamW)
started = time.process_time()
ts.assert_peak(make_loss, "8 GiB", optimizer=torch.optim.AdamW)
print(time.process_time() - started)
"""
    ran = fresh_python.run("-c", program)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 2
