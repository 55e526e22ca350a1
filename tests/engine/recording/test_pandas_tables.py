"""Tables for pandas: each number is the record's, and data that was not recorded has no column."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

import tapescope as ts
from tapescope.tests.says import Snapshots, raises

pytest.importorskip("pandas")

RECORDED = ["policy", "by_hand", "thread", "ready"]
CLOCK = ["started_s", "ended_s"]
STATISTICS = ["input_norm", "output_norm", "output_nan", "output_inf"]
MEMORY = ["bytes_before", "bytes_after", "peak_bytes", "allocated_bytes", "freed_bytes"]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 1))


@pytest.fixture
def make_loss(model: nn.Module) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        made: Tensor = model(torch.ones(4, 8)).sum()
        return made

    return loss


def step_of(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1)).backward()
    optimizer.step()


def test_a_run_has_a_row_for_each_task_as_its_records_have_them(make_loss: Callable[[], Tensor]) -> None:
    run = ts.profile(make_loss, "bfs", trace="cheap")
    frame, trace, timeline = run.to_pandas(), run.trace, run.timeline
    assert trace is not None and timeline is not None
    assert tuple(frame.task) == run.order and tuple(frame.ready) == run.queue_lengths
    for row, record in zip(frame.itertuples(), trace, strict=True):
        task, source = record.task, record.task.source
        assert (row.place, row.task, row.device, row.policy) == (record.place, task.id, "cpu", "bfs")
        assert row.name == ("AccumulateGrad" if task.is_leaf else task.name)
        assert source is not None and (row.file, row.line, row.function) == (source.file, source.line, source.function)
        assert (row.module if isinstance(row.module, str) else None) == run.graph.module(task)
        given = torch.tensor([each.statistics.norm for each in record.inputs if each is not None and each.statistics])
        assert row.input_norm == pytest.approx(float(given.norm()))
    assert tuple(frame.bytes_before[1:]) == tuple(frame.bytes_after[:-1])
    assert (frame.bytes_before + frame.allocated_bytes - frame.freed_bytes == frame.bytes_after).all()
    assert frame.peak_bytes.max() == run.peak_bytes
    assert (frame.started_s[1:].to_numpy() >= frame.ended_s[:-1].to_numpy()).all() and frame.started_s[0] == 0


def test_what_was_not_recorded_has_no_column(make_loss: Callable[[], Tensor]) -> None:
    plain = list(ts.backward(make_loss()).to_pandas())
    assert not {*RECORDED[:3], *CLOCK, *STATISTICS, *MEMORY} & {*plain} and "ready" in plain
    recorded = ts.backward(make_loss(), trace="off")
    assert recorded.trace is not None
    assert [*recorded.trace.to_pandas()] == [*recorded.to_pandas()] == [*plain[:-1], *RECORDED, *CLOCK]
    measured = ts.profile(make_loss)
    assert [*measured.to_pandas()] == [*plain, *CLOCK, *MEMORY]


def test_a_run_from_a_file_gives_the_same_table(make_loss: Callable[[], Tensor], tmp_path: Path) -> None:
    from pandas.testing import assert_frame_equal

    run = ts.profile(make_loss, trace="cheap")
    assert_frame_equal(ts.load(run.save(tmp_path / "run.json")).to_pandas(), run.to_pandas())


def test_a_session_that_was_left_early_has_what_has_run(make_loss: Callable[[], Tensor]) -> None:
    with ts.types.Stepper(make_loss()) as session:
        for _ in range(3):
            session.step()
        frame = session.result().to_pandas()
    assert len(frame) == 3 and frame.ended_s.notna().all()


def test_memory_of_a_device_that_was_not_measured_is_refused(
    make_loss: Callable[[], Tensor], snapshot: Snapshots
) -> None:
    run = ts.profile(make_loss)
    assert run.to_pandas("cpu").peak_bytes.max() == run.peak_bytes
    with raises(ValueError, "device='cuda:0'", "cpu"):
        run.to_pandas("cuda:0")
    with raises(ValueError, "device='cpu'") as refused:
        ts.backward(make_loss()).to_pandas("cpu")
    snapshot("to_pandas", refused.value)


def test_a_step_has_its_phases_blocks_and_tasks(model: nn.Module) -> None:
    optimizer = Adam(model.parameters())
    with ts.record_steps(3) as steps:
        for _ in range(3):
            step_of(model, optimizer)
    step = steps[1]
    phases, blocks, tasks = step.to_pandas(), step.to_pandas("blocks"), step.to_pandas("tasks")
    assert [*phases.phase] == [each.name for each in step.timeline.phases]
    assert phases.peak_bytes.max() == step.peak_bytes and (phases.step == 1).all()
    assert (phases.started_s[1:].to_numpy() == phases.ended_s[:-1].to_numpy()).all()
    highest = phases.loc[phases.peak_bytes.idxmax()]
    assert {kind: highest[kind] for kind in step.peak().categories} == step.peak().categories
    assert blocks[blocks.at_peak].bytes.sum() == step.peak_bytes and len(blocks) == len(step.records())
    assert tuple(tasks.task) == step.run.order
    assert [*dict.fromkeys(steps.to_pandas().step)] == [0, 1, 2]
    with raises(ValueError, "table", "'events'", "'phases'", "'blocks'", "'tasks'"):
        step.to_pandas("events")  # type: ignore[arg-type]


def test_a_training_has_norms_steps_and_findings(model: nn.Module) -> None:
    optimizer = Adam(model.parameters(), lr=0.5)
    model.register_parameter("late", nn.Parameter(torch.ones(3)))
    losses: list[float] = []

    def loop() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            late = model.get_parameter("late").sum()
            loss = functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1)) + late
            losses.append(loss.item())
            loss.backward()
            optimizer.step()

    with ts.training(model, optimizer, every=2) as training, pytest.warns(UserWarning, match="optimizer"):
        loop()
    norms, steps, findings = (training.to_pandas(each) for each in ("norms", "steps", "findings"))
    matrix = norms.pivot(index="step", columns="module", values="gradient_norm")
    assert {*matrix} == {"0", "1.1", "2"} and len(matrix) == 4
    assert steps.loss.tolist() == pytest.approx(losses) and (steps.learning_rate == 0.5).all()
    assert [*steps.optimizer.unique()] == ["Adam"] and not steps.skipped.any()
    whole = [float(row[row >= 0].norm()) for row in training.norms.gradients]
    assert steps.gradient_norm.tolist() == pytest.approx(whole)
    assert [*findings.sentence] == [str(each) for each in training.findings] and len(findings)
    with raises(ValueError, "table", "'loss'", "'norms'", "'steps'", "'findings'"):
        training.to_pandas("loss")  # type: ignore[arg-type]


def test_a_training_without_steps_gives_empty_tables() -> None:
    with ts.training() as training:
        pass
    assert all(training.to_pandas(each).empty for each in ("norms", "steps", "findings"))


def test_without_pandas_a_sentence_says_what_to_install(
    make_loss: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = ts.backward(make_loss(), trace="off")
    monkeypatch.setitem(sys.modules, "pandas", None)
    for made in (run, run.trace, ts.training()):
        with raises(ModuleNotFoundError, "'tapescope[notebook]'", "pandas"):
            made.to_pandas()
