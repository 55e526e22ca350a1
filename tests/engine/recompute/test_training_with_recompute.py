"""Training under `ts.recompute`: the same bits after 20 steps of every workload, and beside what else trains models."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tapescope as ts
from tapescope.engine.api.profile import profile
from tapescope.engine.recompute.plan import RecomputePlan
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.engine.studies.workload_models import Bottleneck
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.warm_python import WarmPython

from ..ranks import run_ranks
from ..recomputed_programs import MakeLoss, plan_all, same, trained

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

STEPS = 20
FEWER_STEPS = {"cyclegan": 3}
TINY = {
    "gpt2": {"vocabulary": 32, "context": 8, "width": 16, "batch": 2, "heads": 2, "layers": 2},
    "lstm_lm": {"vocabulary": 20, "width": 8, "steps": 4, "batch": 2},
    "lstm_cell": {"steps": 6, "batch": 2, "width": 8},
    "seq2seq": {"vocabulary": 20, "width": 8, "steps": 3, "batch": 2, "layers": 1},
    "cyclegan": {"pixels": 24, "channels": 1, "blocks": 1},
    "unet": {"channels": 1},
    "recommender": {"rows": 20, "batch": 4, "tables": 3, "dense": 4, "width": 4},
    "din": {"users": 20, "goods": 20, "categories": 4, "width": 4, "history": 3, "batch": 2},
    "ensemble": {"members": 3, "layers": 2, "batch": 4, "width": 8},
    "mixture_of_experts": {"experts": 3, "tokens": 8, "width": 8, "hidden": 8},
    "linear50": {"uses": 5, "width": 8},
    "rnn": {"width": 8, "steps": 6},
    "fan_out": {"width": 8, "uses": 8},
    "elementwise": {"width": 8, "uses": 8},
    "needless": {"width": 8, "additions": 8},
    "two_devices": {"width": 8, "batch": 4, "far_layers": 2, "near_layers": 2},
    "mlp_norm": {"layers": 5, "width": 8, "batch": 4},
    "mnist": {"batch": 2},
    "sequence_labeler": {"vocabulary": 20, "labels": 4, "sentences": 2, "words": 5},
    "mlstm": {"steps": 4, "batch": 2, "inputs": 4, "width": 8},
}


def add_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.ReLU):
            module.register_forward_hook(lambda module, args, result: functional.dropout(result, 0.1))


def small_resnet() -> tuple[nn.Module, MakeLoss]:
    """ResNet-50's blocks, narrow: convolutions, batch-norms in training, ReLU in place, dropout at the end."""
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        Bottleneck(8, 4),
        Bottleneck(16, 4, stride=2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 16, 5),
    )
    pictures, labels = torch.randn(4, 3, 16, 16, generator=generator), torch.tensor([0, 1, 2, 3])
    return model, lambda: functional.cross_entropy(model(pictures), labels)


def test_no_workload_is_left_out() -> None:
    assert set(TINY) == {name for name in WORKLOADS if not name.startswith("resnet")}  # of which there is a small one


@pytest.mark.parametrize("name", [*TINY, "resnet"])
def test_every_workload_is_trained_to_the_same_bits(name: str) -> None:
    if name == "resnet":
        model, make_loss = small_resnet()
    else:
        model, make_loss = WORKLOADS[name].build(**TINY[name])
        add_dropout(model)
    plan, steps = plan_all(make_loss), FEWER_STEPS.get(name, STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recomputed = trained(model, make_loss, steps, plan)
    plain = trained(model, make_loss, steps, None)
    assert list(recomputed) == list(plain)
    assert same(list(recomputed.values()), list(plain.values()))


@pytest.mark.gpu
def test_a_model_on_the_gpu_is_trained_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = small_resnet()[0].cuda()
    pictures, labels = torch.randn(4, 3, 16, 16, device="cuda"), torch.arange(4, device="cuda")

    def make_loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return functional.cross_entropy(model(pictures), labels)

    plan = plan_all(make_loss)
    recomputed, plain = (trained(model, make_loss, STEPS, each) for each in (plan, None))
    assert same([each.cpu() for each in recomputed.values()], [each.cpu() for each in plain.values()])


def test_mixed_precision_with_a_scaler_and_gradient_accumulation() -> None:
    model, make_loss = small_resnet()

    def cast() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return make_loss()

    plan = plan_all(cast)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def train(recomputed: bool) -> list[Tensor]:
        model.load_state_dict(before)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cpu")
        torch.manual_seed(3)
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                with ts.recompute(plan) if recomputed else nullcontext():
                    loss = cast()
                scaler.scale(loss / 2).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return [value.clone() for value in model.state_dict().values()]

    expected = train(False)
    assert same(train(True), expected)


@pytest.mark.parametrize("graded", [False, True])
def test_the_measured_peak_falls(graded: bool) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Tanh(), nn.LayerNorm(64)) for _ in range(4)))
    x = torch.randn(512, 64)

    def make_loss() -> Tensor:
        return model(x).square().sum()

    def recomputed() -> Tensor:
        with ts.recompute(plan):
            return make_loss()

    program = record_forward(make_loss, 1)
    product = {number for each in program.operations if each.name == "aten.addmm.default" for number, _ in each.makes}
    cheap = [each.number for each in program.storages if each.obstacle is None and each.number not in product]
    plan = RecomputePlan.of(program, cheap)
    recomputed()  # to be verified
    peaks = []
    for each in (make_loss, recomputed):
        model.zero_grad()
        if graded:
            make_loss().backward()
        peaks.append(profile(each).peak_bytes)
    assert peaks[1] < 0.7 * peaks[0]


needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
)


@needs_gloo
@pytest.mark.slow
def test_two_ranks_of_distributed_data_parallel_are_trained_to_the_same_bits(
    fresh_python: WarmPython, tmp_path: Path
) -> None:
    run_ranks(fresh_python, Path(__file__).with_name("recompute_ddp_program.py"), tmp_path)
    for rank in range(2):
        plain, recomputed, dropped = torch.load(tmp_path / f"{rank}.pt")
        assert dropped > 0 and same(recomputed, plain)
