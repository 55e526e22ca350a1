"""A queue for each device in the direct engine: each runs what it does in PyTorch's own engine, in that order."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.studies.makespan import makespan
from tapescope.engine.studies.workload_models_translation import TwoDevices
from tapescope.tests.says import Snapshots, raises, says, says_none_of
from tapescope.widgets.deck.run_page_data import run_document

from ..comparing import assert_equal, engine_order

Devices = tuple[torch.device, torch.device]

POLICIES = ("heap", "bfs", "dfs")


class Branches(nn.Module):
    """A branch on either device, which exchange what they have halfway, and meet on the CPU."""

    def __init__(self, devices: Devices) -> None:
        super().__init__()
        self.devices = devices
        first, second = devices
        self.left, self.left_after = self._part().to(first), self._part().to(first)
        self.right, self.right_after = self._part().to(second), self._part().to(second)
        self.head = nn.Linear(8, 1)

    @staticmethod
    def _part() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.devices
        left, right = self.left(x.to(first)), self.right(x.to(second))
        left, right = self.left_after(left + right.to(first)), self.right_after(right * left.to(second))
        return self.head(left.cpu() + right.cpu()).sum()


def branches(devices: Devices) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Branches(devices), torch.randn(4, 8)


def two_chains(far: torch.device, *, far_last: bool) -> Tensor:
    """A chain on the CPU and one on another device, of which one is made after the other."""
    torch.manual_seed(0)
    model = TwoDevices(8, 4, 4)
    model.far.to(far)
    x = torch.randn(2, 8)
    if far_last:
        return (model.near(x) + model.far(x.to(far)).cpu()).sum()
    return model(x).sum()


def by_device(graph: ts.Graph, order: Sequence[int]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for task in order:
        found[str(graph.tasks[task].device)].append(task)
    return found


def step_until_it_waits(session: ts.types.Stepper, device: str | torch.device) -> str:
    """Return the message when no task of the device is ready any more."""
    while True:
        try:
            ran = session.step(device=device)
        except ValueError as error:
            return str(error)
        assert str(ran.device) == str(device)


def pytorchs_gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    twin = copy.deepcopy(model)
    twin(x).backward()
    return [parameter.grad for parameter in twin.parameters()]


@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_are_pytorchs_whatever_the_policy(accelerators: Devices, policy: str) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    with ts.debug(model(x), policy=policy) as session:
        assert session.queues == "per device"
        session.run()
    assert_equal([parameter.grad for parameter in model.parameters()], expected, bitwise=policy == "heap")


@pytest.mark.parametrize("far_last", [False, True])
def test_each_device_runs_its_tasks_in_pytorchs_own_order(accelerators: Devices, far_last: bool) -> None:
    loss = two_chains(accelerators[0], far_last=far_last)
    graph = ts.graph(loss)
    theirs = engine_order(graph, lambda: loss.backward(retain_graph=True))
    with ts.debug(loss) as session:
        ours = session.run().order
    assert by_device(graph, ours) == by_device(graph, theirs)
    as_one = list(ours) == schedule(graph, "heap")
    assert as_one != far_last, "what lets the far device start waits behind the near one's tasks, but where it is last"


@pytest.mark.parametrize("policy", POLICIES)
def test_tasks_run_in_the_order_in_which_a_simulation_of_devices_starts_them(
    accelerators: Devices, policy: str
) -> None:
    model, x = branches(accelerators)
    loss = model(x)
    expected = makespan(ts.graph(loss), policy).order
    with ts.debug(loss, policy=policy) as session:
        foretold, steps = session.planned, []
        while session.current is not None:
            assert session.ready[0].task is session.current
            steps.append(session.step().id)
            assert session.planned[: len(steps)] == steps
    assert tuple(steps) == tuple(foretold) == expected


def test_one_queue_is_the_policys_total_order(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    loss = model(x)
    graph = ts.graph(loss)
    with ts.debug(loss, queues="one", policy="bfs") as session:
        assert session.queues == "one"
        assert list(session.run().order) == schedule(graph, "bfs")
    run = ts.backward(model(x), policy="bfs", engine="direct")
    assert list(run.order) == schedule(graph, "bfs"), "ts.backward has one queue, unless it is told"
    run = ts.backward(model(x), policy="bfs", engine="direct", queues="per device")
    assert run.order == makespan(graph, "bfs").order


def test_a_device_goes_ahead_until_it_waits_for_another(accelerators: Devices, snapshot: Snapshots) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    first, second = map(str, accelerators)
    with ts.debug(model(x), history=True) as session:
        coming = next(task for task in session.planned if str(session.graph.tasks[task].device) == first)
        with raises(ValueError, first, "cpu", session.graph.describe(coming)) as stands_still:
            session.step(device=first)
        snapshot("debug", str(stands_still.value).replace(first, "DEVICE"))
        said = step_until_it_waits(session, "cpu")
        says(said, "cpu")
        says_none_of(said, first, second)
        snapshot("debug", said)
        says(step_until_it_waits(session, accelerators[1]), second, first)
        session.run()
        with raises(ValueError, first) as all_run:
            session.step(device=first)
        says_none_of(all_run.value, second, "cpu")
    assert_equal([parameter.grad for parameter in model.parameters()], expected, bitwise=False)


def test_several_steps_of_a_device_run_so_many(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    with ts.debug(model(x)) as session:
        while session.current.device != accelerators[0]:
            session.step()
        before = len(session.order)
        session.step(device=accelerators[0], count=3)
        assert [session.graph.tasks[task].device for task in session.order[before:]] == [accelerators[0]] * 3


@pytest.mark.parametrize("policy", POLICIES)
def test_going_back_finds_the_queues_as_they_were(accelerators: Devices, policy: str) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    with ts.debug(model(x), policy=policy, history=True) as session:
        while len({each.task.device for each in session.ready}) < 2 or len(session.order) < 12:
            session.step()
        ready, planned, begun = session.ready, session.planned, len(session.order)
        session.step(count=9)
        session.back(9)
        assert [repr(each) for each in session.ready] == [repr(each) for each in ready]
        assert session.planned == planned
        session.step(device=next(each.task.device for each in ready if each.task.device != session.current.device))
        session.run()
        other = list(session.order)
        session.goto(branch=1)
        assert session.order == planned[: begun + 9]
        session.goto(branch=2)
        assert session.order == other
    assert_equal([parameter.grad for parameter in model.parameters()], expected, bitwise=False)


def test_another_policy_takes_the_queues_over(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    with ts.debug(model(x), policy="heap") as session:
        session.step(count=10)
        session.policy = "bfs"
        assert session.ready[0].task is session.current
        assert list(session.run().order) == schedule(session.graph, "bfs", ran=session.order[:10], queues="per device")


def test_breakpoints_and_watchpoints_stop_as_with_one_queue(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    with ts.capture(model):
        loss = model(x)
    with ts.debug(loss) as session:
        session.break_at("head.weight")
        session.run()
        assert session.current.parameter == "head.weight" and session.stopped.why == "breakpoint"
        session.watch("norm>0")
        session.run()
        assert session.stopped.why == "watchpoint"


def test_a_users_policy_is_offered_the_tasks_of_one_device(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    offered = set()

    def latest(ready: Sequence[ts.Task], state: object) -> ts.Task:
        offered.add(len({task.device for task in ready}))
        return ready[-1]

    with ts.debug(model(x), policy=latest) as session:
        session.run()
    assert offered == {1}
    assert_equal([parameter.grad for parameter in model.parameters()], expected, bitwise=False)


def test_what_several_queues_do_not_do_is_refused(accelerators: Devices, snapshot: Snapshots) -> None:
    model, x = branches(accelerators)
    loss = model(x)
    with raises(NotImplementedError, "batch=") as raised:
        ts.debug(loss, batch="auto", queues="per device")
    snapshot("debug", raised.value)
    with ts.debug(loss, batch="auto") as session:
        assert session.queues == "one"
    with ts.debug(model(x), engine="native") as session:
        assert session.queues == "one"
        with raises(NotImplementedError, session.current.name, accelerators[0], 'queues="per device"'):
            session.step(device=accelerators[0])


def test_on_the_cpu_there_is_one_queue_whatever_is_asked_for() -> None:
    x = torch.ones(2, requires_grad=True)
    for queues in (None, "one", "per device"):
        with ts.debug(x.exp().sum(), queues=queues) as session:
            assert session.queues == "one"
            session.step(device="cpu")
            session.run()


def test_a_wrong_device_or_number_of_queues_is_told_in_a_sentence(snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    with raises(ValueError, "queues", "'two'", "'one'", "'per device'") as no_number:
        ts.debug(x.exp().sum(), queues="two")
    with raises(ValueError, "queues", "'two'", "'one'", "'per device'"):
        ts.debug(x.exp().sum(), queues="two", engine="native")
    snapshot("debug", no_number.value)
    with ts.debug(x.exp().sum()) as session:
        with raises(ValueError, "cuda:3", "cpu") as nothing_there:
            session.step(device="cuda:3")
        with raises(TypeError, "device", "int", '"cuda:0"') as no_device:
            session.step(device=3)
        with raises(ValueError, "step()", "task", "device") as two:
            session.step(session.current, device="cpu")
    for raised in (nothing_there, no_device, two):
        snapshot("debug", raised.value)


def test_the_page_of_a_run_says_why_a_device_stood_still_and_what_other_policies_would_do(
    accelerators: Devices,
) -> None:
    for _ in range(9):  # the times are measured: on a busy machine a device may wait for something else, or not at all
        run = ts.backward(two_chains(accelerators[0], far_last=False), queues="per device", trace="off")
        content = run_document(run).content
        own, *others = content["schedules"]
        if any("ToCopy" in each["text"] for each in own["clock"]["still"]):
            break
    assert content["queues"] == "per device"
    (still,) = own["clock"]["still"]
    assert content["devices"][still["device"]] == str(accelerators[0])
    says(still["text"], "ToCopy", "cpu")
    assert re.search(r"\d+ \w*s\b.*\d+ \w*s\b", still["text"]), "two times"
    bfs = next(each for each in others if each["policy"] == "bfs")
    assert bfs["order"] == list(makespan(run.graph, "bfs", run).order)
    assert len(bfs["clock"]["start"]) == len(run.graph)
    with ts.debug(two_chains(accelerators[0], far_last=False), trace="off") as session:
        assert run_document(session.run()).content["queues"] == "one", "which ran in one thread, one after the other"
