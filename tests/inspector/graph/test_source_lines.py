from __future__ import annotations

from pathlib import Path
from traceback import FrameSummary
from types import SimpleNamespace

import IPython
import pytest
import torch
from IPython.core.compilerop import CachingCompiler
from torch import Tensor, nn

import tapescope as ts
from tapescope.inspector.graph.source_lines import Source, innermost_user_line


def test_the_innermost_line_outside_torch_is_the_users() -> None:
    linear = str(Path(torch.__file__).parent / "nn" / "modules" / "linear.py")
    frames = [FrameSummary("train.py", 3, "main"), FrameSummary("model.py", 7, "forward"), FrameSummary(linear, 1, "f")]
    assert innermost_user_line(frames) == Source("model.py", 7, "forward")
    assert innermost_user_line(frames[2:]) is None
    vision = str(Path(torch.__file__).parent) + "vision/models/resnet.py"
    assert innermost_user_line([FrameSummary(vision, 1, "forward")]) == Source(vision, 1, "forward")


def test_code_comes_with_its_neighbours_and_is_empty_where_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("one\ntwo\nthree\nfour\n")
    assert Source(str(path), 2, "f").code() == ("two",)
    assert Source(str(path), 1, "f").code(before=2, after=1) == ("one", "two")
    assert Source("<string>", 1, "f").code() == ()


def test_a_line_is_named_by_file_or_as_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Source("/home/user/model.py", 120, "forward").short == "model.py:120"
    assert Source("ipykernel_12/345.py", 3, "<module>").short == "cell:3"
    compiler = CachingCompiler()
    cell = Source(compiler.cache("x = 1", 2), 3, "<module>")
    assert cell.short == "cell:3"
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(compile=compiler))
    assert cell.short == "In[2]:3"
    assert Source("ipykernel_12/345.py", 3, "<module>").short == "cell:3"  # of another process


def test_what_a_recompute_context_passes_on_is_still_the_users_line() -> None:
    layers, rows = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.ones(256, 64)

    def make_loss() -> Tensor:
        return layers(rows).square().sum()  # type: ignore[no-any-return]

    plan = ts.plan_recompute(make_loss, 0.8, solver="greedy", seconds=0.1, repetitions=1)
    assert plan.dropped
    for _ in range(2):
        with ts.capture(layers), ts.recompute(plan):
            loss = make_loss()
    sources = {task.source.file for task in ts.graph(loss).tasks if task.source is not None}
    assert sources == {__file__}
