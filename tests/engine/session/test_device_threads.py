"""PyTorch's own engine with a queue for each device, stepped: each thread stands still before its next task."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function, Variable
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.inspector.torch_private.engine import devices_are_held
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..comparing import assert_equal
from .test_queues_per_device import branches, pytorchs_gradients

Devices = tuple[torch.device, torch.device]
Session = ts.types.NativeSession

POLICIES = ("heap", "bfs", "dfs")
ENDS_WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A session that has ended leaves no thread, and the process's switches as they were."""
    engine, multithreading = Variable._execution_engine, torch._C._is_multithreading_enabled()
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    yield
    for thread in threading.enumerate():
        if thread.name == "tapescope backward":
            thread.join(ENDS_WITHIN_S)
            assert not thread.is_alive()
    assert not devices_are_held()
    assert Variable._execution_engine is engine
    assert torch._C._is_multithreading_enabled() == multithreading
    assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == anomaly


def lanes(loss: Tensor, **options: Any) -> Session:
    return ts.debug(loss, engine="native", queues="per device", **options)


def apart(devices: Devices, middle: Callable[[Tensor], Tensor] = lambda x: x) -> tuple[list[nn.Linear], Tensor]:
    """A chain on either device, which meet on the CPU; in the midst of the first one is this."""
    torch.manual_seed(0)
    first, second = ([nn.Linear(6, 6).to(device) for _ in range(4)] for device in devices)
    x = torch.randn(3, 6)
    left, right = x.to(devices[0]), x.to(devices[1])
    for place, (near, far) in enumerate(zip(first, second, strict=True)):
        left, right = near(left).tanh(), far(right).tanh()
        if place == 1:
            left = middle(left)
    return [*first, *second], (left.cpu() + right.cpu()).sum()


def run_all_of(session: Session, device: str | torch.device) -> str:
    """Step a device until it has no task to run, and return the message."""
    while True:
        try:
            assert str(session.step(device=device).device) == str(device)
        except ValueError as error:
            return str(error)


def named(session: Session, part: str) -> ts.Task:
    return next(task for task in session.graph.tasks if part in task.name)


def step_up_to(session: Session, task: ts.Task) -> None:
    """The CPU's tasks, then those of the task's device, until it is the one that device has taken."""
    run_all_of(session, "cpu")
    while session.next_on(task.device) is not task:
        session.step(device=task.device)


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("policy", POLICIES)
def test_stepped_or_run_the_gradients_are_pytorchs(accelerators: Devices, policy: str) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    for runs in (False, True):
        model.zero_grad()
        with lanes(model(x), policy=policy) as session:
            assert session.queues == "per device"
            while not runs and session.current is not None:
                current = session.current
                assert session.ready[0].task is current
                assert session.planned[len(session.order)] == current.id
                assert session.step() is current
            session.run()
            assert session.left == 0
        assert_equal(gradients_of(model), expected, bitwise=policy == "heap")


def test_each_devices_tasks_run_in_its_own_thread(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    loss = model(x)
    graph = ts.graph(loss)
    threads: dict[str, set[int]] = {}
    handles = [
        node.register_prehook(
            lambda gradients, device=str(task.device): threads.setdefault(device, set()).add(threading.get_ident())
        )
        for task, node in zip(graph.tasks, graph.nodes, strict=True)
    ]
    with lanes(loss) as session:
        while session.current is not None:
            session.step()
    for handle in handles:
        handle.remove()
    assert len(threads) == 3 and all(len(found) == 1 for found in threads.values())
    assert len(set.union(*threads.values())) == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_devices_stepped_in_turn_give_pytorchs_gradients(accelerators: Devices, policy: str) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    with lanes(model(x), policy=policy) as session:
        turn = 0
        while session.left:
            devices = {str(each.task.device): each.task for each in session.ready}
            name = sorted(devices)[turn % len(devices)]
            turn += 1
            task = session.next_on(name)
            assert session.step(device=name) is task
    assert_equal(gradients_of(model), expected, bitwise=policy == "heap")


def test_a_device_goes_ahead_until_it_waits_for_another(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    first, second = map(str, accelerators)
    with lanes(model(x)) as session:
        with raises(ValueError, first, "cpu"):
            session.step(device=first)
        said = run_all_of(session, "cpu")
        says(said, "cpu")
        says_none_of(said, first, second)
        says(run_all_of(session, second), second, first)
        session.run()
    assert_equal(gradients_of(model), expected, bitwise=False)


def test_what_another_device_holds_is_seen_and_edited(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    with lanes(model(x)) as session:
        run_all_of(session, "cpu")
        held = [session.next_on(device) for device in accelerators]
        assert session.current in held
        assert all(session.waiting(task)[0] is not None for task in held)
        assert session.waiting(session.current) == session.gradients
        later = next(task for task in session.graph.tasks if task not in held and task.id not in session.order)
        with raises(NotImplementedError, later.name, 'engine="direct"'):
            session.waiting(later)
        with raises(NotImplementedError, later.device, later.name, 'engine="direct"'):
            session.step(later)
        session.zero(held[1])
        assert not session.waiting(held[1])[0].any()
        session.step(held[1])
        session.run()
    assert not any(gradient.any() for gradient in gradients_of(model.right_after))
    assert any(gradient.any() for gradient in gradients_of(model.left_after))


def test_tasks_of_two_devices_run_at_once(accelerators: Devices) -> None:
    layers, loss = apart(accelerators)
    both = threading.Barrier(2)
    for layer in (layers[0], layers[4]):
        layer.weight.register_hook(lambda gradient: (both.wait(ENDS_WITHIN_S), None)[1])
    with lanes(loss) as session:
        session.run()
    assert not both.broken


def test_at_a_breakpoint_all_devices_stop(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    with ts.capture(model):
        loss = model(x)
    with lanes(loss) as session:
        session.break_at("right_after.2.weight")
        session.run()
        assert session.stopped.why == "breakpoint"
        assert session.current.parameter == "right_after.2.weight"
        ran = len(session.order)
        time.sleep(0.05)
        assert len(session.order) == ran
        session.watch("norm>0", synchronize=True)
        session.run()
        assert session.stopped.why == "watchpoint"
        session.stops.delete(2)
        target = session.graph.tasks[session.planned[-1]]
        assert session.run_to(target) is target
        session.run()
    assert_equal(gradients_of(model), expected, bitwise=False)


def test_stop_asked_for_in_a_hook_stops_all_devices(accelerators: Devices) -> None:
    layers, loss = apart(accelerators)
    with lanes(loss) as session:
        layers[1].weight.register_hook(lambda gradient: session.stop())
        session.run()
        assert session.stopped.why == "asked" and session.left
        session.run()
        assert not session.left


class Same(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)


class Raises(Same):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("by the task itself")


class RaisesBelow(Same):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient @ gradient  # 3 by 6


@pytest.mark.parametrize(("kind", "error"), [(Raises, ValueError), (RaisesBelow, RuntimeError)])
def test_an_error_ends_the_session_while_another_device_is_held(
    accelerators: Devices, kind: type[Function], error: type[Exception]
) -> None:
    layers, loss = apart(accelerators, kind.apply)
    nodes = ts.graph(loss).nodes
    with lanes(loss) as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        step_up_to(session, named(session, kind.__name__))
        held = session.next_on(accelerators[1])
        with pytest.raises(error) as raised:
            session.step(device=accelerators[0])
        says("\n".join(raised.value.__notes__), "tapescope", f"{kind.__name__}Backward")
        assert held.id not in session.order
        says(session.over, error.__name__)
    assert not any("traceback_" in node.metadata for node in nodes)
    assert all(layer.weight.grad is None for layer in layers[4:])
    layers, loss = apart(accelerators)
    with lanes(loss) as session:
        session.run()
        assert not session.left


def test_an_error_in_a_hook_is_raised_as_it_is_and_says_where(accelerators: Devices) -> None:
    for kind in (KeyError, KeyboardInterrupt):
        layers, loss = apart(accelerators)

        def hook(gradient: Tensor, kind: type[BaseException] = kind) -> None:
            raise kind("in a hook")

        handle = layers[2].weight.register_hook(hook)
        with lanes(loss) as session:
            run_all_of(session, "cpu")
            with pytest.raises(kind) as raised:
                session.step(device=accelerators[0], count=20)
            if kind is KeyError:
                says("\n".join(raised.value.__notes__), "hooks", "AccumulateGrad")
        handle.remove()


def test_an_error_after_the_task_itself_ends_the_session_too(accelerators: Devices) -> None:
    _, loss = apart(accelerators)
    node = next(node for node in ts.graph(loss).nodes if node.name() == "TanhBackward0")
    handles = []
    with lanes(loss) as session:
        run_all_of(session, "cpu")
        held = session.next_on(accelerators[1])

        def late(*gradients: object) -> None:
            raise ValueError("after the task")

        step_up_to(session, session.graph.tasks[session.graph.nodes.index(node)])
        handles.append(node.register_hook(late))
        with pytest.raises(ValueError, match="after the task") as raised:
            session.step(device=accelerators[0])
        told = "\n".join(raised.value.__notes__)
        says(told, "TanhBackward0")
        says_none_of(told, "hooks")
        assert held.id not in session.order
    for handle in handles:
        handle.remove()


class MakesNan(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * float("nan")


@pytest.mark.filterwarnings("ignore:Error detected")
def test_anomaly_mode_looks_for_nan_as_the_user_wants(accelerators: Devices) -> None:
    _, loss = apart(accelerators, MakesNan.apply)
    with torch.autograd.set_detect_anomaly(True), lanes(loss) as session:
        step_up_to(session, named(session, "MakesNan"))
        assert session.next_on(accelerators[1])
        with pytest.raises(RuntimeError, match="returned nan values"):
            session.step(device=accelerators[0])
    _, loss = apart(accelerators, MakesNan.apply)
    with lanes(loss) as session:
        session.run()
        assert not session.left


def test_closed_in_a_hook_it_does_not_wait_for_itself(accelerators: Devices) -> None:
    layers, loss = apart(accelerators)
    session = lanes(loss)

    def close(gradient: Tensor) -> None:
        assert session.runs_in_this_thread
        with raises(RuntimeError, "session.step()", "close()", "hook"):
            session.step()
        session.close()

    handle = layers[2].weight.register_hook(close)
    with session:
        session.run()
        assert session.over == "closed" and session.left
        with raises(RuntimeError, "closed", "ts.debug(loss)"):
            session.run()
    handle.remove()


def test_closed_by_another_thread_while_a_task_runs(accelerators: Devices) -> None:
    _, loss = apart(accelerators, Slow.apply)
    with lanes(loss) as session:
        step_up_to(session, named(session, "Slow"))
        timer = threading.Timer(0.05, session.close)
        timer.start()
        with suppress(RuntimeError):  # it may be closed by then
            session.step(device=accelerators[0])
        timer.join()
        assert session.over == "closed"


def test_devices_have_their_threads_where_the_user_has_switched_that_off(accelerators: Devices) -> None:
    layers, loss = apart(accelerators)
    both = threading.Barrier(2)
    handles = [
        layer.weight.register_hook(lambda gradient: (both.wait(ENDS_WITHIN_S), None)[1])
        for layer in (layers[0], layers[4])
    ]
    with torch.autograd.set_multithreading_enabled(False), lanes(loss) as session:
        session.run()
    assert not both.broken
    for handle in handles:
        handle.remove()


def test_the_users_own_anomaly_mode_goes_on_to_speak(accelerators: Devices) -> None:
    with torch.autograd.set_detect_anomaly(True):
        _, loss = apart(accelerators, Raises.apply)
    nodes = ts.graph(loss).nodes
    traces = [node.metadata.get("traceback_") for node in nodes]
    assert any(traces)
    with (
        torch.autograd.set_detect_anomaly(True),
        lanes(loss) as session,
        pytest.warns(UserWarning, match="Error detected in RaisesBackward(.|\n)*in apart"),
        pytest.raises(ValueError, match="by the task itself"),
    ):
        session.run()
    assert [node.metadata.get("traceback_") for node in nodes] == traces


class Slow(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(0.3)
        return gradient


def test_an_interrupt_ends_the_session_while_another_device_is_held(accelerators: Devices) -> None:
    _, loss = apart(accelerators, Slow.apply)
    with lanes(loss) as session:
        step_up_to(session, named(session, "Slow"))
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            session.step(device=accelerators[0])
        timer.join()
        says(session.over, "KeyboardInterrupt")


@pytest.mark.parametrize("steps", [0, 1, 5, 20])
def test_closed_in_the_midst_nothing_is_left(accelerators: Devices, steps: int) -> None:
    module = torch.get_device_module(accelerators[0])
    layers, loss = apart(accelerators)
    loss.backward()
    for layer in layers:
        layer.zero_grad()
    del loss, layers, layer
    gc.collect()
    before = [module.memory_allocated(device.index) for device in accelerators]
    layers, loss = apart(accelerators)
    nodes = len(ts.graph(loss))
    session = lanes(loss)
    del loss
    for _ in range(steps):
        session.step()
    assert session.left == nodes - steps
    session.close()
    session.close()
    with raises(RuntimeError, "closed", "ts.debug(loss)"):
        session.step()
    del session, layers
    gc.collect()
    until = time.monotonic() + 10  # threads of devices free their tensors later
    while (left := [module.memory_allocated(device.index) for device in accelerators]) != before:
        assert time.monotonic() < until, (left, before)
        time.sleep(0.01)


def test_a_session_that_is_let_go_ends_by_itself(accelerators: Devices) -> None:
    _, loss = apart(accelerators)
    session = lanes(loss)
    session.step()
    del session


class Reenters(nn.Module):
    """A checkpoint whose backward runs a nested one, over both devices."""

    def __init__(self, devices: Devices) -> None:
        super().__init__()
        self.devices = devices
        self.near, self.far = nn.Linear(6, 6).to(devices[0]), nn.Linear(6, 6).to(devices[1])

    def inner(self, x: Tensor) -> Tensor:
        return self.near(self.far(x.to(self.devices[1])).tanh().to(self.devices[0]))

    def forward(self, x: Tensor) -> Tensor:
        first = checkpoint(self.inner, x.to(self.devices[0]), use_reentrant=True)
        return first.cpu().sum() + self.far(x.to(self.devices[1])).tanh().cpu().sum()


@pytest.mark.parametrize("steps", [False, True])
def test_a_backward_inside_a_task_does_not_wait_for_a_device_that_is_held(accelerators: Devices, steps: bool) -> None:
    torch.manual_seed(0)
    model, x = Reenters(accelerators), torch.randn(3, 6, requires_grad=True)
    twin = copy.deepcopy(model)
    twin(x).backward()
    with lanes(model(x)) as session:
        if steps:
            task = named(session, "CheckpointFunction")
            step_up_to(session, task)
            assert session.next_on(accelerators[1])
            session.step(task)
        session.run()
    assert_equal(gradients_of(model), gradients_of(twin), bitwise=False)


def test_other_backwards_run_meanwhile_in_any_thread(accelerators: Devices) -> None:
    model, x = branches(accelerators)
    expected = pytorchs_gradients(model, x)
    other = copy.deepcopy(model)
    with lanes(model(x)) as session:
        run_all_of(session, "cpu")
        assert len({session.next_on(device).id for device in accelerators}) == 2
        multithreading = torch._C._is_multithreading_enabled()
        other(x).backward()
        assert_equal(gradients_of(other), expected, bitwise=True)
        found = []
        thread = threading.Thread(
            target=lambda: found.extend(torch.autograd.grad(other(x), list(other.parameters()))), daemon=True
        )
        thread.start()
        thread.join(ENDS_WITHIN_S)
        assert_equal(found, expected, bitwise=True)
        other.zero_grad()
        with ts.debug(other(x)) as direct:
            direct.run()
        ts.backward(other(x), queues="per device", trace="off")
        assert torch._C._is_multithreading_enabled() == multithreading
        session.run()
    assert_equal(gradients_of(model), expected, bitwise=True)


def test_devices_are_stepped_by_one_session_at_a_time(accelerators: Devices, snapshot: Snapshots) -> None:
    _, loss = apart(accelerators)
    _, another = apart(accelerators)
    with lanes(loss) as session:
        session.step()
        with lanes(another) as second:
            with raises(RuntimeError, "session") as raised:
                second.step()
            snapshot("debug", raised.value)
            session.run()
            session.close()
            second.run()
            assert not second.left


def test_what_needs_one_queue_is_refused(accelerators: Devices, snapshot: Snapshots) -> None:
    model, x = branches(accelerators)
    loss = model(x)
    dynamic = ts.Policy("dynamic", "by arrival", key=lambda task, arrival: (arrival,), dynamic=True)
    for options, fact in (({"policy": dynamic}, "dynamic"), ({"create_graph": True}, "create_graph=True")):
        with raises(NotImplementedError, fact, 'queues="one"') as raised:
            lanes(loss, **options)
        snapshot("debug", raised.value)
    with lanes(loss) as session:
        session.policy = "bfs"
        session.step()
        with raises(NotImplementedError, "policy", 'engine="direct"') as raised:
            session.policy = "heap"
        snapshot("debug", raised.value)
        assert session.policy == "bfs"
        with raises(ValueError, "meta", "cpu", *accelerators):
            session.step(device="meta")
        session.run()


def test_on_one_device_alone_there_is_one_queue() -> None:
    x = torch.ones(2, requires_grad=True)
    with lanes(x.exp().sum()) as session:
        assert session.queues == "one"
        session.step(device="cpu")
        session.run()


def test_a_record_says_which_thread_ran_what(accelerators: Devices) -> None:
    from tapescope.widgets.deck.run_page_data import run_document

    _, loss = apart(accelerators)
    with lanes(loss, trace="cheap") as session:
        run = session.run()
    assert run_document(run).content["queues"] == "per device"
    assert sorted(run.order) == list(range(len(run.graph)))


def test_a_deck_has_the_same_fields_as_of_the_direct_engine(accelerators: Devices) -> None:
    from tapescope.widgets.deck.live_session import Live

    contents = []
    for engine in ("direct", "native"):
        _, loss = apart(accelerators)
        session = ts.debug(loss, engine=engine, queues="per device", trace="off")
        live = Live(session, "heap", "", False, False, lambda content, buffers: None, lambda news: None)
        run_all_of(session, "cpu")
        last = live.running.step(device=accelerators[1])
        assert last.device == accelerators[1]
        live.running.run()
        content = live.document.content
        contents.append({key: content[key] for key in ("queues", "devices")} | {"schedules": len(content["schedules"])})
        live.close(lambda: None).result(ENDS_WITHIN_S)
    assert contents[0] == contents[1]
    assert contents[1]["queues"] == "per device"
