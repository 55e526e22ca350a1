"""Simulated backwards on several devices, compared with brute force and with threads of PyTorch's engine."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tapescope as ts
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.dependencies import dependencies
from tapescope.engine.schedule.policy import Policy
from tapescope.engine.studies.gantt import Gantt
from tapescope.engine.studies.makespan import makespan, task_times
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.inspector.text.durations import time_text
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import random_program

POLICIES = ("bfs", "dfs", "heap")


def two_devices() -> ts.Graph:
    _, make_loss = WORKLOADS["two_devices"].build()
    with ts.capture():
        loss = make_loss()
    return ts.graph(loss)


def fan() -> ts.Graph:
    """(exp, sin, cos of one leaf) stacked: tasks 0, 1, 2; 3 is the stack, 4 the leaf's."""
    x = torch.ones(1, requires_grad=True)
    return ts.graph(torch.stack([x.exp(), x.sin(), x.cos()]))


def bars(gantt: Gantt) -> dict[str, list[tuple[int, int, int]]]:
    return {device: [(bar.task, bar.start_ns, bar.end_ns) for bar in row] for device, row in gantt.rows.items()}


def test_a_fan_on_two_devices_by_hand() -> None:
    gantt = ts.makespan(fan(), "heap", [5, 3, 4, 2, 1], lambda task: "b" if task.id == 0 else "a")
    assert bars(gantt) == {
        "a": [(3, 0, 2), (2, 2, 6), (1, 6, 9), (4, 9, 10)],
        "b": [(0, 2, 7)],
    }
    assert gantt.order == (3, 2, 0, 1, 4)
    assert (gantt.makespan_ns, gantt.lower_bound_ns) == (10, 10)
    assert gantt.critical_path == (3, 0, 4)
    assert gantt.busy_ns == {"a": 10, "b": 5} and gantt.idle_ns == {"a": 0, "b": 5} and gantt.busy["b"] == 0.5
    assert [(idle.start_ns, idle.end_ns, idle.before) for idle in gantt.idle["b"]] == [(0, 2, 0), (7, 10, None)]
    assert gantt.idle["a"] == () and not gantt.estimated

    first_come = ts.makespan(fan(), "bfs", [5, 3, 4, 2, 1], lambda task: "b" if task.id == 0 else "a")
    assert bars(first_come)["a"] == [(3, 0, 2), (1, 2, 5), (2, 5, 9), (4, 9, 10)]


def test_heap_and_dfs_starve_one_of_two_devices_and_bfs_does_not() -> None:
    graph = two_devices()
    (copy,) = [task.id for task in graph.tasks if task.name == "ToCopyBackward0"]
    report = ts.makespan(graph, policies=POLICIES, durations=[1000] * len(graph), device_of={"far": "cuda:0"})
    far, near = len(report["heap"].rows["cuda:0"]), len(report["heap"].rows["cpu"])
    assert far + near == len(graph) and near == far + 5, "the loss, the sum and the copy are not the far chain's"
    assert {row.policy: row.makespan_ns // 1000 for row in report.rows} == {
        "bfs": max(5 + far, near),
        "dfs": near + far,
        "heap": near + far,
    }
    assert report.lower_bound_ns == report["bfs"].makespan_ns and report.best.policy == "bfs"
    for policy in ("dfs", "heap"):
        starved = report[policy].starved
        assert starved is not None and starved.blocker == copy
        assert (starved.device, starved.elapsed_ns, starved.waited_ns) == ("cuda:0", 1000 * near, 1000 * (near - 5))
        assert report[policy].passed_by(copy) == near - 5
    assert report["bfs"].starved is None


def test_with_measured_times_too() -> None:
    model, make_loss = WORKLOADS["two_devices"].build()
    runs = []
    for _ in range(3):
        model.zero_grad()
        with ts.capture():
            loss = make_loss()
        runs.append(ts.backward(loss, trace="off"))
    report = ts.makespan(runs[0].graph, policies=POLICIES, durations=runs, device_of={"far": "far"})
    ratios = {row.policy: row.makespan_ns / report["bfs"].makespan_ns for row in report.rows}
    assert ratios["heap"] > 1.1 and ratios["dfs"] > 1.1
    assert not report.best.estimated
    for task in range(len(runs[0].graph)):
        measured = [run.trace.of(task).elapsed_ns for run in runs]
        assert task_times(*runs)[task] == median(measured)


def tick_by_tick(graph: ts.Graph, policy: str, times: Sequence[int], devices: Sequence[int]) -> dict[int, int]:
    """When each task starts: the engine's rule once more, as plainly as can be."""
    missing = dependencies(graph)
    queues: dict[int, list[int]] = {device: [] for device in sorted(set(devices), key=str)}
    running: dict[int, int] = {}
    starts: dict[int, int] = {}

    def arrive(task: int) -> None:
        missing[task] -= 1
        if not missing[task]:
            queues[devices[task]].append(task)

    for root in graph.roots:
        arrive(root.task)
    now = 0
    while len(starts) < len(graph) or running:
        for task in [
            task for task in starts if running.get(devices[task]) == task and now == starts[task] + times[task]
        ]:
            del running[devices[task]]
            for edge in graph.out_edges[task]:
                arrive(edge.next_task)
        for device, queue in queues.items():
            if queue and device not in running:
                if policy == "heap":
                    task = max(queue, key=lambda task: (graph.tasks[task].sequence_nr, -queue.index(task)))
                else:
                    task = queue[0 if policy == "bfs" else -1]
                queue.remove(task)
                running[device], starts[task] = task, now
        now += 1
    return starts


def drawn(seed: int, number: int) -> tuple[ts.Graph, list[int], list[int]]:
    """A random program's graph, and for its tasks random times and devices."""
    graph = ts.graph(random_program(seed)[1])
    pick = random.Random(seed)
    return graph, [pick.randint(1, 9) for _ in graph.tasks], [pick.randrange(number) for _ in graph.tasks]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(("bfs", "dfs")))
def test_each_task_starts_when_brute_force_says(seed: int, number: int, policy: str) -> None:
    graph, times, devices = drawn(seed, number)
    gantt = makespan(graph, policy, times, lambda task: devices[task.id])
    expected = tick_by_tick(graph, policy, times, devices)
    assert {bar.task: bar.start_ns for bar in gantt.bars.values()} == expected


def test_under_heap_too_where_no_two_numbers_are_equal() -> None:
    graph = two_devices()
    assert sum(task.is_leaf for task in graph.tasks) == 96, "leaves have one number, but never wait together here"
    pick = random.Random(0)
    times = [pick.randint(1, 9) for _ in graph.tasks]
    devices = [int((graph.module(task) or "").startswith("far")) for task in graph.tasks]
    gantt = makespan(graph, "heap", times, {"far": "other"})
    expected = tick_by_tick(graph, "heap", times, devices)
    inner = {task.id for task in graph.tasks if not task.is_leaf}
    assert {bar.task: bar.start_ns for bar in gantt.bars.values() if bar.task in inner} == {
        task: start for task, start in expected.items() if task in inner
    }


def longest_way(graph: ts.Graph, times: Sequence[int]) -> int:
    ends: dict[int, int] = {}
    for task in schedule(graph, "bfs"):
        ends[task] = times[task] + max((ends[edge.task] for edge in graph.in_edges[task]), default=0)
    return max(ends.values())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from((*POLICIES, "delay_accumulate", "random(3)")))
def test_no_worker_waits_while_its_queue_has_any_and_no_policy_goes_below_the_bound(
    seed: int, number: int, policy: str
) -> None:
    graph, times, devices = drawn(seed, number)
    times = [time - 1 for time in times]  # some take none
    gantt = makespan(graph, policy, times, lambda task: devices[task.id])
    assert sorted(gantt.order) == list(range(len(graph)))
    for device, row in gantt.rows.items():
        spans = [(bar.start_ns, bar.end_ns) for bar in row]
        assert spans == sorted(spans) and all(one[1] <= other[0] for one, other in pairwise(spans))
        for bar in row:
            assert devices[bar.task] == int(device) and bar.end_ns - bar.start_ns == times[bar.task]
            ends = [gantt.bars[edge.task].end_ns for edge in graph.in_edges[bar.task]]
            assert bar.ready_ns == max(ends, default=0) <= bar.start_ns
            assert not any(
                idle.start_ns < bar.start_ns and bar.ready_ns < idle.end_ns for idle in gantt.idle[device]
            ), "it was ready, and its device stood still"
        assert sum(idle.elapsed_ns for idle in gantt.idle[device]) == gantt.idle_ns[device]
    work = [sum(time for time, device in zip(times, devices, strict=True) if device == each) for each in set(devices)]
    bound = max(longest_way(graph, times), *work)
    assert bound <= gantt.lower_bound_ns <= gantt.makespan_ns <= sum(times)
    assert sum(times[task] for task in gantt.critical_path) == longest_way(graph, times)


@pytest.mark.parametrize("policy", [*POLICIES, lambda ready, state: ready[len(state.order) % len(ready)]])
def test_on_one_device_all_run_in_the_policys_order(policy: object) -> None:
    graph = two_devices()
    gantt = makespan(graph, policy, range(len(graph)))
    assert list(gantt.order) == schedule(graph, policy)
    assert gantt.makespan_ns == sum(range(len(graph))) and list(gantt.rows) == ["cpu"]


def test_a_policy_that_plans_knows_the_times() -> None:
    seen: list[Sequence[float]] = []

    def plan(problem: Problem, ran: Sequence[int]) -> list[int]:
        seen.append(problem.durations)
        return schedule(problem.graph, "bfs")

    graph = two_devices()
    planned = makespan(graph, Policy("planned", "as BFS", plan=plan), [7] * len(graph), {"far": "other"})
    assert list(seen[0]) == [7] * len(graph)
    assert planned.makespan_ns == makespan(graph, "bfs", [7] * len(graph), {"far": "other"}).makespan_ns


def test_the_report_says_who_waits_for_whom(snapshot: Snapshots) -> None:
    graph = two_devices()
    report = ts.makespan(graph, policies=POLICIES, durations=[10_000] * len(graph), device_of={"far": "cuda:0"})
    says(report.sentences[0], "1.97 ms", "dfs", "heap", 1.95, "bfs", "1.01 ms")
    tasks = "NativeLayerNormBackward0", "far.11.2", "102nd", "ToCopyBackward0", "101st"
    says(report.sentences[1], "dfs", "cuda:0", "1.01 ms", "1.97 ms", *tasks, "960 µs", "cpu", 96)
    headings = " | ".join(report.cells[0])
    says(headings, "cpu", "cuda:0")
    snapshot("makespan", "\n".join([*(re.sub(r"\.py:\d+", ".py:LINE", each) for each in report.sentences), headings]))
    assert report.cells[2] == ["dfs", "1.97 ms", "1.95", "1.95", "960 µs (49 %)", "1.01 ms (51 %)"]
    assert str(report).splitlines()[-1].split()[:3] == ["heap", "1.97", "ms"]
    assert report["bfs"].cells[1][:3] == ["cpu", "101", "1.01 ms"]
    assert "ts-report" in report._repr_html_() and "ts-report" in report["bfs"]._repr_html_()
    assert report.records()[0]["idle_ns cuda:0"] == 50_000
    says(repr(report), "MakespanReport", 197, "bfs 1.01 ms", "dfs 1.97 ms", "heap 1.97 ms")
    says(repr(report["bfs"]), "Gantt", 197, 2, "bfs", "1.01 ms")


def test_a_loss_is_taken_as_its_graph_is() -> None:
    x = torch.ones(1, requires_grad=True)
    loss = torch.stack([x.exp(), x.sin(), x.cos()]).sum()
    graph, times = ts.graph(loss), [5, 3, 4, 2, 1, 1]
    for policy in POLICIES:
        assert ts.makespan(loss, policy, times).rows == ts.makespan(graph, policy, times).rows
    report = ts.makespan(loss, policies=POLICIES, durations=ts.backward(loss, policy="bfs", trace="off"))
    assert [row.policy for row in report.rows] == [*POLICIES] and not report.best.estimated


def test_guessed_times_are_called_so(snapshot: Snapshots) -> None:
    report = ts.makespan(fan(), policies=("heap", "bfs"))
    assert report.best.estimated and report["heap"].estimated
    assert repr(report["heap"]) != repr(replace(report["heap"], estimated=False))
    snapshot("makespan", "\n".join(report.sentences))


def test_wrong_times_devices_and_policies_are_told(snapshot: Snapshots) -> None:
    graph = fan()
    with raises(TypeError, "str"):
        ts.makespan("loss")  # type: ignore[call-overload]
    with raises(ValueError, 3, 5) as too_few:
        ts.makespan(graph, durations=[1, 2, 3])
    with raises(ValueError, "durations", "#4", "AccumulateGrad"):
        ts.makespan(graph, durations={0: 1, 1: 1, 2: 1, 3: 1})
    with raises(ValueError, "SinBackward0", "-3 ns"):
        ts.makespan(graph, durations=[1, -3, 1, 1, 1])
    with pytest.raises(ValueError, match="far"):
        ts.makespan(graph, device_of={"far": "cuda:0"})
    with raises(ValueError, "'best'", "bfs"):
        ts.makespan(graph, "best")
    with raises(ValueError, "bfs") as twice:
        ts.makespan(graph, policies=("bfs", "heap", "bfs"))
    with raises(ValueError, 'ts.makespan(loss, policies=("bfs", "dfs", "heap"))') as no_policy:
        ts.makespan(graph, policies=())
    with raises(ValueError, "'lifo'", "bfs") as not_compared:
        ts.makespan(graph, policies=["bfs"])["lifo"]
    with raises(ValueError, "live") as dynamic:
        ts.makespan(graph, Policy("live", "by what is known then", lambda task, arrival: (0,), dynamic=True))
    for error in (too_few, twice, no_policy, not_compared, dynamic):
        snapshot("makespan", error.value)


def test_runs_that_have_no_times_are_told(snapshot: Snapshots) -> None:
    def loss() -> torch.Tensor:
        return nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)).sum()

    graph = ts.graph(loss())
    with raises(ValueError) as no_run:
        task_times()
    with raises(ValueError, "heap", 'ts.backward(loss, policy="bfs", trace="off")', "durations=") as untimed:
        ts.makespan(graph, durations=ts.backward(loss()))
    x = torch.ones(1, requires_grad=True)
    other = ts.backward((x.exp() + x.sin()).sum(), trace="off")
    with raises(ValueError, 5, 4) as of_another:
        ts.makespan(graph, durations=other)
    kept = x.exp()
    partly = ts.backward((kept * torch.ones(1, requires_grad=True)).sum(), inputs=[x], trace="off")
    with raises(ValueError, "AccumulateGrad", "heap") as partial:
        task_times(partly)
    for error in (no_run, untimed, of_another, partial):
        snapshot("makespan", error.value)


@pytest.mark.parametrize(
    ("elapsed_ns", "text"),
    [
        (0, "0 ns"),
        (812, "812 ns"),
        (9_870, "9.87 µs"),
        (999_600, "1.00 ms"),
        (12_340_000, "12.3 ms"),
        (1.24e9, "1.24 s"),
    ],
)
def test_times_have_three_digits(elapsed_ns: float, text: str) -> None:
    assert time_text(elapsed_ns) == text


@pytest.mark.parametrize("policy", POLICIES)
def test_on_threads_too_a_device_starts_beside_the_other_under_bfs_alone(
    policy: str, accelerator: torch.device
) -> None:
    _, make_loss = WORKLOADS["two_devices"].build(device=str(accelerator))
    graph = ts.graph(loss := make_loss())
    near = {task.id for task in graph.tasks if task.device.type == "cpu"}
    far_begins = threading.Event()
    began: list[int] = []

    def before(task: int) -> None:
        if task not in near:
            began.append(task)
            far_begins.set()
            return
        if policy == "bfs" and near.issubset([*began, task]):  # the last of them: it begins after the other device
            assert far_begins.wait(60), "the other device does not begin before the end of this one's tasks"
        began.append(task)

    for task, node in enumerate(graph.nodes):
        node.register_prehook(lambda gradients, task=task: before(task))
    ts.backward(loss, policy=policy, queues="per device", trace=None)
    assert sorted(began) == list(range(len(graph)))
    first_far = next(place for place, task in enumerate(began) if task not in near)
    beside = near.intersection(began[first_far:])
    assert bool(beside) == (policy == "bfs")


def test_a_device_that_stands_still_for_an_order_says_behind_what(snapshot: Snapshots) -> None:
    graph = two_devices()
    assert makespan(graph, "bfs", None, {"far": "cuda:0"}).starved_text == ""
    simulated = makespan(graph, "heap", None, {"far": "cuda:0"})
    idle = simulated.starved
    times = time_text(idle.elapsed_ns), time_text(idle.waited_ns)
    says(simulated.starved_text, *times, "ToCopy", simulated.passed_by(idle.blocker), "cpu")
    snapshot("makespan", simulated.starved_text)


def test_times_of_a_run_give_the_bars_of_the_simulation_from_which_they_are(accelerators: object) -> None:
    _, make_loss = WORKLOADS["two_devices"].build(device=str(accelerators[0]))
    graph = ts.graph(make_loss())
    simulated = makespan(graph, "heap")
    bars = [simulated.bars[task] for task in simulated.order]
    starts, ends = [bar.start_ns for bar in bars], [bar.end_ns for bar in bars]
    measured = Gantt.of(graph, "heap", simulated.order, starts, ends)
    assert measured.rows == simulated.rows
    assert measured.starved == simulated.starved and measured.starved_text == simulated.starved_text != ""
