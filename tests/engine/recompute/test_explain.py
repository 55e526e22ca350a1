"""Why an operation is recomputed or not: Echo's three cases, what stands in the way, and what decides, in figures."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.recompute.module_table import ms_text
from tapescope.engine.recompute.trial_runs import Extra, Runs
from tapescope.inspector.text.sizes_and_counts import both_units, size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from .test_plan_recompute import Block, MakeLoss, blocks, planned

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]


class Cell(nn.Module):
    """h = tanh(W x + U h), the first case of MXNet #18228: tanh saves its result, the products nothing of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.on_input, self.on_state = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.on_input(x) + self.on_state(h))


def scores(steps: int) -> MakeLoss:
    """The second: all that was read, with what is asked at each step added, through tanh: steps × steps × 128."""
    read, asked = nn.Linear(32, 128), nn.Linear(32, 128)
    source, queries = torch.randn(steps, 32), torch.randn(steps, 1, 32)

    def make_loss() -> Tensor:
        keys = read(source)
        return torch.stack([torch.tanh(keys + asked(query)).sum() for query in queries]).sum()

    return make_loss


class Connected(nn.Module):
    """The third: FC(tanh(tanh(x))). The backward of FC reads what it was given, not what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.fc(torch.tanh(torch.tanh(x)))] * 32, 1).exp()


def test_echos_first_case_an_rnn_cell_keeps_as_much_for_its_replay_as_it_lets_go_of(snapshot: Snapshots) -> None:
    cell, x, h = Cell(), torch.randn(64, 128), torch.randn(64, 128)
    plan = planned(lambda: cell(x, h).sum(), overhead=0.0)
    (tanh,) = plan.why("tanh")
    assert tanh.because in ("no gain", "time") and tanh.nbytes == 64 * 128 * 4 and tanh.saved_by
    says(tanh, "32 KiB", "add (32 KiB)", "addmm (64 KiB)")
    (add,) = plan.why("add")
    assert add.because == "not saved"
    assert add.nbytes == 0 and not add.saved_by
    snapshot("plan_recompute", add)


def test_echos_second_case_attention_scores_go_together_for_one_input_that_is_newly_kept() -> None:
    gone, kept = [], []
    for steps in (16, 32):
        plan = planned(scores(steps), budget=0.65)
        recomputed = [each for each in plan.why("tanh") if each.because == "recomputed"]
        told = [each for each in recomputed if f"addmm ({size_text(each.newly_kept_bytes)})" in each.text]
        assert len(told) > steps / 4
        gone.append(plan.dropped_bytes)
        kept.append(max(each.newly_kept_bytes for each in recomputed))
    assert gone[1] > 3 * gone[0], "steps × steps are dropped"
    assert kept[1] < 2.5 * kept[0], "and steps are kept"


def test_echos_third_case_a_layer_is_not_run_again_where_what_it_was_given_is_made_again(snapshot: Snapshots) -> None:
    model, x = Connected(), torch.randn(256, 256, requires_grad=True)
    plan = planned(lambda: model(x).sum(), overhead=100.0)
    (fc,) = plan.why("fc")
    assert fc.because == "not saved" and fc.module == "fc" and fc.source is not None
    says(fc, f"AddmmBackward0 (fc, {fc.source.short})", "`mat1`", "256 KiB", "tanh")
    fates = {each.because for each in plan.why("tanh")}
    assert "recomputed" in fates
    snapshot("plan_recompute", fc)


def test_an_operation_is_meant_by_module_and_name_by_either_or_by_number(snapshot: Snapshots) -> None:
    plan = planned(blocks(), budget=0.6)
    (gelu,) = plan.why("1.mlp.gelu")
    assert gelu.name == "gelu" and gelu.module == "1.mlp.2"
    assert plan.why(gelu.number)[0] == gelu == plan.why(str(gelu.number))[0]
    assert [each.number for each in plan.why("1.mlp.2")] == [gelu.number]
    assert len(plan.why("gelu")) == 3 and len(plan.why("mlp.gelu")) == 3
    assert {each.module for each in plan.why("*.mix")} == {"0.mix", "1.mix", "2.mix"}
    assert {each.name for each in plan.why("mix.linear")} == {"addmm"}
    assert plan.why("softmax")[0].name == "softmax"
    assert gelu.text in str(plan.why("1.mlp")) and len(plan.why("1")) > len(plan.why("1.mlp"))
    with raises(ValueError, '"mlp.gela"', "1.mlp.2.gelu") as near:
        plan.why("mlp.gela")
    with raises(ValueError, '"qqq"', "layer_norm, addmm, bmm", "0.norm, 0.mix, 0") as far:
        plan.why("qqq")
    with raises(ValueError, 9999, len(plan.program.operations) - 1) as number:
        plan.why(9999)
    with raises(TypeError, '"attn.softmax"', "NoneType") as neither:
        plan.why(None)  # type: ignore[arg-type]
    for error in (near, far, number, neither):
        snapshot("plan_recompute", error.value)


def test_the_figures_are_those_of_the_plan_with_it_and_without() -> None:
    plan = planned(blocks(), budget=0.6)
    for each in plan.why("*"):
        if each.because == "recomputed":
            (number,) = [s.number for s in plan.storages if s.nbytes == each.nbytes and s.saved_by == each.saved_by]
            assert each.peak_bytes == plan.memory.levels_if_dropped(plan.dropped - {number}).peak_bytes
            assert each.seconds > 0
    kept = [each for each in plan.why("*") if each.because == "budget reached"]
    assert kept
    says(kept[0], both_units(int(0.6 * plan.plain_peak_bytes)), ms_text(kept[0].seconds))


def test_no_other_operation_of_the_same_line_is_taken_for_its_own_backward() -> None:
    x = torch.randn(64, 64, requires_grad=True)

    def make_loss() -> Tensor:
        return (0.5 * torch.tanh(x + 0.1 * torch.pow(x.exp(), 3.0))).sum()

    plan = planned(make_loss, budget=0.9)
    (add,) = plan.why("add")
    assert add.because in ("not saved", "intermediate") and "PowBackward0" not in add.text


def test_where_time_is_what_decides_it_is_said_with_its_figures() -> None:
    plan = planned(blocks(), overhead=1e-6)
    (gelu,) = plan.why("1.mlp.gelu")
    assert gelu.because == "time" and gelu.peak_bytes < plan.peak_bytes
    says(gelu, size_text(plan.peak_bytes - gelu.peak_bytes), ms_text(gelu.seconds), "0.0001 %")


@pytest.mark.parametrize("call_ns", [1e3, 1e8])
def test_too_small_is_said_where_noting_takes_longer_than_the_operations(
    call_ns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extra(runs: Runs, plan: ts.types.RecomputePlan) -> Extra:
        runs.plain_ns = 1e7
        return Extra(0.0, sum(runs.storages[number].replay_ns for number in plan.dropped))

    monkeypatch.setattr(Runs, "extra", extra)
    monkeypatch.setattr(Runs, "_prices", lambda runs: (0.0, call_ns))
    model, x = nn.Sequential(Block(), Block()), torch.randn(16, 192, 32)
    plan = planned(lambda: model(x).sum(), overhead=1e-6)
    assert plan.left_alone_because == ("too small" if call_ns == 1e8 else "time")
    if call_ns == 1e3:
        says(plan.left_alone, "1 %", "1e-05 ms", "overhead=")


def test_a_fused_kernel_is_named_with_what_to_do(snapshot: Snapshots) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.LSTM(32, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.encoder(x)[0]

    model, x = Model(), torch.randn(20, 8, 32)
    plan = planned(lambda: model(x).pow(2).mean())
    assert plan.left_alone_because == "no lower peak"
    (said,) = plan.notes
    says(plan, said)
    says(said, "mkldnn_rnn_layer (encoder)", "torch.backends.mkldnn.flags(enabled=False)", "nn.LSTMCell")
    snapshot("plan_recompute", re.sub(r"\d+ KiB", "SIZE", said))  # what the kernel keeps differs with the CPU
    (layer,) = plan.why("encoder.lstm")
    assert layer.because == "not recomputable"
    snapshot("plan_recompute", re.sub(r"\d+ KiB", "SIZE", layer.text))
    with torch.backends.mkldnn.flags(enabled=False):
        single = planned(lambda: model(x).pow(2).mean(), budget=0.9)
    says_none_of(single, "mkldnn_rnn_layer")
    assert single.dropped


@pytest.mark.parametrize("switch", [True, False])
def test_with_checkpoints_on_it_is_said_to_turn_them_off(switch: bool, snapshot: Snapshots) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(torch.tanh(self.up(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer() for _ in range(3)])
            if switch:
                self.gradient_checkpointing_disable = lambda: None  # as transformers' models have it

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    model, x = Model(), torch.randn(64, 32)
    plan = planned(lambda: model(x).sum())
    assert plan.left_alone_because == "no lower peak"
    (said,) = plan.notes
    says(plan, said)
    says(said, 3, "torch.utils.checkpoint")
    says(said, *(("model.gradient_checkpointing_disable()", "Model") if switch else ("Layer",)))
    snapshot("plan_recompute", said)
    says_none_of(planned(blocks()), "torch.utils.checkpoint")


def test_what_does_not_come_out_the_same_is_told_with_what_differed(snapshot: Snapshots) -> None:
    weight = torch.randn(64, 64, requires_grad=True)

    def make_loss() -> Tensor:
        table = torch.zeros(64, 64)
        table.numpy()[:] = np.arange(64)
        return (weight * table).tanh().exp().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = planned(make_loss, budget=0.1)
    (zeros,) = plan.why("zeros")
    assert zeros.because == "bits differ"
    says(zeros, *plan.banned.values())
    snapshot("plan_recompute", zeros)


def test_plans_of_a_frontier_answer_too() -> None:
    frontier = planned(blocks(), budget=0.6).explore(0.3)
    assert all(len(plan.why("gelu")) == 3 for plan in frontier.plans)
    assert {each.because for each in frontier.plans[-1].why("gelu")} <= {"recomputed", "no gain", "after the peak"}
    assert isinstance(frontier.plans[0], ts.types.PlannedRecompute)
