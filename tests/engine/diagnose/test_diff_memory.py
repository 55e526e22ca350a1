"""The sentences and figures of `ts.diff` about memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.__main__ import main
from tapescope.engine.memory.categories import Category
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, says, says_none_of


class Net(nn.Module):
    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x.square().mean()


def measured(checkpointed: bool) -> ts.Run:
    torch.manual_seed(0)
    model, x = Net(checkpointed=checkpointed), torch.randn(256, 16)
    return ts.profile(lambda: model(x), trace="cheap")


def test_with_checkpoints_and_without_the_gradients_are_equal_and_memory_is_what_differs(
    tmp_path: Path, snapshot: Snapshots
) -> None:
    plain, saving = (ts.load(measured(each).save(tmp_path / "run")) for each in (False, True))
    difference = ts.diff(plain, saving, names=("plain", "saving"))
    memory = difference.memory
    assert difference.first_unequal is None and memory is not None and difference.differs
    assert memory.peaks == (plain.peak_bytes, saving.peak_bytes) and memory.peaks[0] > memory.peaks[1]
    assert memory.first is not None and memory.first.tasks is None, "they start the backward apart"
    assert plain.timeline is not None and saving.timeline is not None
    assert memory.first.nbytes == (plain.timeline.start_bytes, saving.timeline.start_bytes)
    for timeline, groups in zip((plain.timeline, saving.timeline), memory.only, strict=True):
        alive = set(timeline.alive())
        assert {storage.number for group in groups for storage in group.storages} <= alive
    gap = [sum(group.nbytes for group in groups) for groups in memory.only]
    assert gap[0] - gap[1] == memory.peaks[0] - memory.peaks[1], "what is alive at both is as large in both"
    said = " ".join(difference.sentences)
    says(said, "plain", "saving", "TanhBackward0", "blocks.2.1", *map(size_text, memory.peaks))
    says(said, Category.SAVED.plural, *map(size_text, memory.first.nbytes))
    for shown in (difference._repr_html_(), repr(difference)):
        says(shown, *map(size_text, memory.first.nbytes))
    snapshot("diff", "\n".join(difference.sentences))


def test_equal_runs_have_one_peak_and_nothing_is_alive_in_one_alone(snapshot: Snapshots) -> None:
    first, second = measured(False), measured(False)
    difference = ts.diff(first, second)
    assert difference.memory is not None and not difference.differs
    assert difference.memory.first is None and difference.memory.only == ((), ())
    snapshot("diff", difference.sentences[-1])


def test_another_order_holds_other_buffers(snapshot: Snapshots) -> None:
    x = torch.randn(64, 16)
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(4)]
    runs = []
    for policy in ("heap", "bfs"):
        for weight in weights:
            weight.grad = None
        loss = torch.stack([(x @ weight).sum() for weight in weights]).sum()
        runs.append(ts.backward(loss, policy=policy, memory=True))
    difference = ts.diff(*runs)
    memory = difference.memory
    assert memory is not None and memory.peaks == (runs[0].peak_bytes, runs[1].peak_bytes)
    first = memory.first
    assert first is not None and first.tasks is not None and first.nbytes[0] != first.nbytes[1]
    snapshot("diff", difference)


def test_where_one_was_not_measured_that_is_said_and_where_none_was_nothing(snapshot: Snapshots) -> None:
    loss = torch.ones(2, requires_grad=True).sum()
    bare = ts.backward(loss, retain_graph=True)
    known = ts.backward(loss, retain_graph=True, memory=True)
    difference = ts.diff(known, bare)
    assert difference.memory is None and difference.memory_known == (True, False)
    says(difference, "run_b", "ts.backward(loss, memory=True)", "ts.profile(make_loss)")
    snapshot("diff", difference.sentences[-1])
    says_none_of(ts.diff(bare, bare), "memory=True", "ts.profile(make_loss)")


def test_the_command_line_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [measured(each) for each in (False, True)]
    paths = [str(run.save(tmp_path / f"{number}.json")) for number, run in enumerate(runs)]
    assert main(["diff", paths[0], paths[0]]) == 0
    says(capsys.readouterr().out, size_text(runs[0].peak_bytes))
    assert main(["diff", *paths]) == 1
    says(capsys.readouterr().out, *(size_text(run.peak_bytes) for run in runs))
