"""The table of tasks beside Kineto's trace, compared with the events of that trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile, record_function, schedule

import tapescope as ts


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        with record_function("first"):
            hidden = self.encoder(x).tanh()
        return self.head(hidden).sum()  # type: ignore[no-any-return]


def files(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the tables, and the traces that they name."""
    tables = [json.loads(path.read_text()) for path in sorted(folder.glob("*.tapescope.json"))]
    return tables, [json.loads((folder / each["kineto"]).read_text()) for each in tables]


@pytest.mark.filterwarnings("ignore:.*Profiler")
def test_the_table_lists_the_engines_tasks_with_the_range_around_their_operation(tmp_path: Path) -> None:
    net = Net()
    folder = tmp_path / "new" / "traces"
    with profile(
        on_trace_ready=ts.trace_ready(folder),
        schedule=schedule(wait=1, warmup=0, active=1, repeat=2),
        profile_memory=True,
    ) as profiler:
        for _ in range(4):
            net(torch.ones(4, 8)).backward()
            profiler.step()
    tables, traces = files(folder)
    assert len(tables) == 2
    for table, trace in zip(tables, traces, strict=True):
        tasks = table["tasks"]
        ran = [each for each in trace["traceEvents"] if "evaluate_function" in each.get("name", "")]
        assert [f"autograd::engine::evaluate_function: {name}" for name in tasks["name"]] == [
            each["name"].replace("torch::autograd::", "") for each in sorted(ran, key=lambda each: each["ts"])
        ]
        assert tasks["elapsed_us"] == pytest.approx([each["dur"] for each in ran], abs=0.01)
        by_module = {(name, module) for name, module in zip(tasks["name"], tasks["module"], strict=True)}
        assert {("TanhBackward0", "first"), ("AddmmBackward0", "first"), ("AddmmBackward0", "")} <= by_module
        assert dict(zip(tasks["name"], tasks["operation"], strict=True))["TanhBackward0"] == "aten::tanh"
        tanh = tasks["name"].index("TanhBackward0")
        assert len(tasks["cpu_bytes"]) == len(tasks["name"]) and tasks["sequence_nr"][tanh] >= 0


def test_each_task_of_a_stepped_run_is_a_range_named_by_its_module(tmp_path: Path) -> None:
    net = Net()
    plain = ts.backward(net(torch.ones(4, 8)), engine="direct", trace="cheap")
    expected = [each.grad.clone() for each in net.parameters() if each.grad is not None]
    net.zero_grad()
    with profile(on_trace_ready=ts.trace_ready(tmp_path)):
        with ts.capture(net):
            loss = net(torch.ones(4, 8))
        session = ts.debug(loss)
        session.run()
        session.close()
    (table,), (trace,) = files(tmp_path)
    names = {each["name"] for each in trace["traceEvents"] if each.get("cat") == "user_annotation"}
    assert {"tapescope: encoder: AddmmBackward0", "tapescope: head: AddmmBackward0"} <= names
    tasks = table["tasks"]
    assert [
        module for name, module in zip(tasks["name"], tasks["module"], strict=True) if name == "AddmmBackward0"
    ] == [
        "head",
        "encoder",
    ]
    assert "cpu_bytes" not in tasks and len(tasks["name"]) >= len(plain.order) - 4  # without nodes of leaves
    assert all(torch.equal(each.grad, other) for each, other in zip(net.parameters(), expected, strict=True))  # type: ignore[arg-type]


def profiled_and_traced(net: Net, loss: Tensor) -> None:
    with ts.policy("bfs", trace="off"):
        loss.backward()  # type: ignore[no-untyped-call]


def profiled_in_steps(net: Net, loss: Tensor) -> None:
    session = ts.debug(loss, engine="native")
    session.step()
    session.run()
    session.close()


@pytest.mark.parametrize("backward", [profiled_and_traced, profiled_in_steps])
def test_tasks_of_pytorchs_engine_have_ranges_in_sessions_and_with_a_trace(
    backward: Callable[[Net, Tensor], None], tmp_path: Path
) -> None:
    net = Net()
    # A native session has a thread of its own.
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(on_trace_ready=ts.trace_ready(tmp_path), experimental_config=config):
        with ts.capture(net):
            loss = net(torch.ones(4, 8))
        backward(net, loss)
    (table,), (trace,) = files(tmp_path)
    events = [each for each in trace["traceEvents"] if each.get("ph") == "X"]
    ranges = {each["name"]: each for each in events if each["name"].startswith("tapescope: ")}
    for module in ("encoder", "head"):
        around = ranges[f"tapescope: {module}: AddmmBackward0"]
        inside = [
            each["name"]
            for each in events
            if around["ts"] <= each["ts"] and each["ts"] + each["dur"] <= around["ts"] + around["dur"]
        ]
        assert inside.count("AddmmBackward0") == 1
    modules = dict(zip(table["tasks"]["name"], table["tasks"]["module"], strict=True))
    assert modules["TanhBackward0"] == ""  # the whole model's; without ranges of tasks it would be "first"


def test_the_folder_is_checked() -> None:
    with pytest.raises(TypeError, match="trace_ready"):
        ts.trace_ready(3)  # type: ignore[arg-type]
