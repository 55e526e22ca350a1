"""`ts.makespan`: simulates the time of a backward in which each device has its own queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import overload

import torch
from torch import nn

from ...inspector.capture.build_graph import graph_meant
from ...inspector.graph.graph import Graph, Outputs, Task
from ...inspector.text.progress import telling
from ...inspector.validation import a_kind, expect, expect_callable
from ..planning.policies import find_policy
from ..planning.policy_orders import bound
from ..planning.scheduling_problem import Problem
from ..recording.run import Run
from ..schedule.device_queues import DeviceQueues
from ..schedule.find_tasks import tasks_at
from ..schedule.greedy_order import allowed
from ..schedule.policy import AnyPolicy, Choice, Policy, is_dynamic, policy_name
from .gantt import Bar, Gantt, MakespanReport

Durations = Sequence[float] | Mapping[int, float] | Run | Sequence[Run] | None
DeviceOf = Callable[[Task], object] | Mapping[str, object] | None


@overload
def makespan(
    of: Outputs | Graph,
    policy: AnyPolicy = "heap",
    durations: Durations = None,
    device_of: DeviceOf = None,
    *,
    model: nn.Module | None = None,
) -> Gantt: ...


@overload
def makespan(
    of: Outputs | Graph,
    *,
    policies: Iterable[AnyPolicy],
    durations: Durations = None,
    device_of: DeviceOf = None,
    model: nn.Module | None = None,
) -> MakespanReport: ...


def makespan(
    of: Outputs | Graph,
    policy: AnyPolicy = "heap",
    durations: Durations = None,
    device_of: DeviceOf = None,
    *,
    policies: Iterable[AnyPolicy] | None = None,
    model: nn.Module | None = None,
) -> Gantt | MakespanReport:
    """Simulate PyTorch's engine with one ready queue and one worker per device. Nothing is executed.

    A task enters the queue of its device when its last gradient arrives, from whichever device. The device is that of
    its inputs, also for an AccumulateGrad (node.h, Node::device). A worker that finishes a task immediately starts the
    next one in its queue, in the policy's order. The time is O((tasks + edges) log tasks) per policy.

    Known limitations: a task keeps its worker busy for its whole duration. Kernels that run on after their launch,
    streams that wait for each other, and contention between workers (cores, memory, the interpreter's lock) are not
    simulated. Under a policy by arrival, each queue counts separately, as PyTorch's would, but `ts.backward(...,
    queues="per device")` gives all queues the order of a single queue.

    Args:
        of: a loss (as for `ts.graph`) or a graph.
        policy: the policy that sorts the queues.
        durations: nanoseconds of each task, by id, or a `Run` with a trace that measured them, or several runs, whose
            medians are used. None: estimated, see `Problem.durations`; the report says so.
        device_of: the tasks' devices, if they differ from those in this process: a function of the task, or a dict of
            devices by name (usually a module's path). If several names match a task, the last one counts. See
            `tasks_at` for the names.
        policies: the policies to compare.
        model: the module that names modules and parameters, for a captured forward that called only parts of it. Pass
            several models as one `nn.ModuleDict({"G": generator, "D": critic})`. None: names start at each outermost
            module.

    Returns:
        The schedule of all tasks; with `policies`, one for each.

    Raises:
        ValueError: if a policy is unknown, repeated, or decides while the backward runs; a time is missing or negative;
            runs are of another graph or have no times; or a name in `device_of` matches no task.
        TypeError: if the loss, a policy or a time has the wrong type.
        PolicyError: if a custom policy chose a task that was not ready on that device.
    """
    if policies is not None:
        expect(policies, Iterable, "policies", 'a list of policies, such as ("bfs", "dfs", "heap")')
    if isinstance(durations, str) or not isinstance(durations, Iterable | Run | None):
        raise TypeError(
            f"durations is {a_kind(durations)}; expected nanoseconds by the ids of tasks, a Run, or several"
        )
    if callable(device_of):
        expect_callable(device_of, 1, "device_of", "a function of the task that names its device")
    elif device_of is not None:
        expect(device_of, Mapping, "device_of", "a function of the task, or a dict of devices by name")
    graph = graph_meant(of, model)
    chosen = [find_policy(each) for each in ([policy] if policies is None else policies)]
    names = [policy_name(each) for each in chosen]
    if not chosen:
        raise ValueError('policies must not be empty, as in ts.makespan(loss, policies=("bfs", "dfs", "heap"))')
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ValueError(f"policy {name} is repeated")
    times = _times(graph, durations)
    devices = _devices(graph, device_of)
    problem = Problem(graph, durations=times)
    rows: list[Gantt] = []
    with telling(None, "simulating devices") as tell:
        for number, each in enumerate(chosen, 1):
            tell(f"{policy_name(each)} ({number} of {len(chosen)})")
            rows.append(_simulated(problem, each, times, devices, durations is None))
    return rows[0] if policies is None else MakespanReport(tuple(rows))


def task_times(*runs: Run) -> list[int]:
    """Return nanoseconds of each task with its hooks, by id: the median of several runs of the same graph.

    They are the worker's time from start to end of a task: on an accelerator, the time to launch its kernels.

    Raises:
        ValueError: if there are no runs, or one has no trace, did not run all tasks, or is of another graph.
    """
    if not runs:
        raise ValueError("durations must contain at least one run")
    graph = runs[0].graph
    for run in runs:
        if run.trace is None:
            raise ValueError(
                f"the run under {run.policy} has no times of its tasks: "
                'ts.backward(loss, policy="bfs", trace="off") records times, and durations= takes the run it returns'
            )
        if run.graph is not graph and not _alike(run.graph, graph):
            raise ValueError(f"the runs are of different graphs, with {len(graph):,} and {len(run.graph):,} tasks")
        for task in graph.tasks:
            if run.trace.columns.ended_ns[task.id] < 0:
                raise ValueError(f"{graph.describe(task)} did not run to its end under {run.policy}; it has no time")
    columns = [run.trace.columns for run in runs if run.trace is not None]
    return [
        round(median(each.ended_ns[task_id] - each.started_ns[task_id] for each in columns))
        for task_id in range(len(graph))
    ]


def _alike(graph: Graph, other: Graph) -> bool:
    """Return whether two graphs are of the same forward."""
    return graph.edges == other.edges and [task.name for task in graph.tasks] == [task.name for task in other.tasks]


def _times(graph: Graph, durations: Durations) -> list[int]:
    """Return integer nanoseconds by task id. Sums of integers do not depend on their order."""
    if durations is None:
        return list(map(round, Problem(graph).durations))
    if isinstance(durations, Mapping):
        times = dict(durations)
    else:
        given: list[float | Run] = [durations] if isinstance(durations, Run) else [*durations]
        runs = [each for each in given if isinstance(each, Run)]
        if runs and not _alike(graph, runs[0].graph):
            theirs = len(runs[0].graph)
            raise ValueError(f"the run is of another graph with {theirs:,} tasks; this one has {len(graph):,}")
        numbers = [each for each in given if not isinstance(each, Run)]
        if not runs and len(numbers) != len(graph):
            raise ValueError(f"there are times for {len(numbers):,} tasks; the graph has {len(graph):,}")
        times = dict(enumerate(task_times(*runs) if runs else numbers))
    for task in graph.tasks:
        if task.id not in times:
            raise ValueError(f"durations has no time for #{task.id}, {graph.describe(task)}")
        if not math.isfinite(times[task.id]) or times[task.id] < 0:
            raise ValueError(f"the time of {graph.describe(task)} must not be negative, got {times[task.id]} ns")
    return [round(times[task_id]) for task_id in range(len(graph))]


def _devices(graph: Graph, device_of: DeviceOf) -> list[str]:
    """Return the device of each task, by id."""
    if callable(device_of):
        found = [device_of(task) for task in graph.tasks]
        for device in found:
            expect(device, str | int | torch.device, "the result of device_of", "the name of a device")
        return list(map(str, found))
    devices = [str(task.device) for task in graph.tasks]
    for where, device in (device_of or {}).items():
        for task_id in tasks_at(graph, where):
            devices[task_id] = str(device)
    return devices


def _simulated(
    problem: Problem, policy: Policy | Choice, times: Sequence[int], devices: Sequence[str], estimated: bool
) -> Gantt:
    if is_dynamic(policy):
        raise ValueError(
            f"policy {policy_name(policy)} decides while the backward runs, so its order cannot be simulated"
        )
    policy = bound(policy, problem)
    graph = problem.graph
    order: list[int] = []
    queues = DeviceQueues(graph, policy, order, times, devices)
    rows: dict[str, list[Bar]] = {name: [] for name in queues.devices}
    pending = allowed(graph)
    for task_id in pending.start():
        queues.push(task_id)
    while queues:
        task_id = queues.choose()
        time = queues.remove(task_id)
        order.append(task_id)
        bar = Bar(task_id, time.ready_ns, time.start_ns, time.end_ns, time.after)
        rows[devices[task_id]].append(bar)
        for next_task in pending.run(task_id):
            queues.push(next_task)
    done = {name: tuple(row) for name, row in rows.items()}
    return Gantt(graph, policy_name(policy), tuple(order), done, estimated)
