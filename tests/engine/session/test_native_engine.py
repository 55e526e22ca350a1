"""PyTorch's engine under a pinned order: its behaviour, and that nothing is left behind."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import tapescope as ts
from tapescope.engine.planning.policies import CLASSIC
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.dependencies import Pending
from tapescope.engine.schedule.policy import Policy
from tapescope.engine.session.native_engine import LiveNumbers
from tapescope.inspector.torch_private.hooks import node_hooks
from tapescope.inspector.torch_private.sequence_numbers import Pin
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import random_program
from ..comparing import assert_equal, compiled_loss, engine_order, gradients_of, second_time


def heavy_first(ready: Sequence[ts.Task], state: object) -> ts.Task:
    return max(ready, key=lambda task: (sum(meta.nbytes or 0 for meta in task.inputs), -task.id))


ALL_POLICIES = [*CLASSIC, heavy_first]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(ALL_POLICIES), st.booleans())
def test_the_order_is_what_the_engine_does_although_nobody_watches(seed: int, policy: object, limited: bool) -> None:
    leaves, loss = random_program(seed)
    inputs = leaves[seed % 6 : seed % 6 + 2] if limited else None
    graph = ts.graph(loss)
    runs: list[ts.Run] = []
    ran = engine_order(graph, lambda: runs.append(ts.backward(loss, inputs=inputs, policy=policy, retain_graph=True)))
    assert list(runs[0].order) == list(runs[0].planned) == ran
    assert limited or sorted(ran) == list(range(len(graph)))
    traced = ts.backward(loss, inputs=inputs, policy=policy, trace="off")
    assert list(traced.order) == ran and traced.trace is not None and list(traced.trace.order) == ran


def test_several_roots_with_inputs_below_only_one_of_them() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    for inputs in ([x], [y], [x, y], {"x": x}, x):
        for policy in CLASSIC:
            losses = [x.exp().sum(), (y.sin() * x).sum(), y.cos().sum()]
            graph = ts.graph(losses)
            runs: list[ts.Run] = []
            ran = engine_order(graph, lambda: runs.append(ts.backward(losses, inputs=inputs, policy=policy)))
            assert list(runs[0].order) == ran


def test_an_input_which_is_no_leaf_keeps_its_gradient_and_its_own_task_runs() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    loss = y.sin().sum()
    graph = ts.graph(loss)
    runs: list[ts.Run] = []
    ran = engine_order(graph, lambda: runs.append(ts.backward(loss, inputs=[y], policy="bfs")))
    assert list(runs[0].order) == ran and x.grad is None
    assert torch.equal(y.grad, y.detach().cos())


def test_nothing_is_hooked_into_the_graph_without_a_trace() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    handles = RemovableHandle.next_id
    ts.backward(y.sum(), policy="bfs")
    assert RemovableHandle.next_id == handles
    ts.backward(x.exp().sum(), policy="bfs", trace="off")
    assert RemovableHandle.next_id > handles


def test_a_generator_of_inputs_and_of_gradients_is_read_once() -> None:
    x = torch.ones(3, requires_grad=True)
    ts.backward(iter([x * 2, x * 3]), (torch.ones(3) for _ in range(2)), inputs=(each for each in [x]), policy="bfs")
    assert torch.equal(x.grad, torch.full((3,), 5.0))


def test_native_retains_and_creates_graphs_as_pytorch_does() -> None:
    x = torch.full((3,), 2.0, requires_grad=True)
    loss = (x**3).sum()
    ts.backward(loss, retain_graph=True)
    x.grad = None
    ts.backward(loss, create_graph=True, policy="bfs")
    (second,) = torch.autograd.grad(x.grad.sum(), x)
    assert torch.equal(second, torch.full((3,), 12.0))


def test_native_frees_the_graph_unless_told_otherwise() -> None:
    loss = torch.ones(3, requires_grad=True).exp().sum()
    ts.backward(loss)
    with raises(RuntimeError, second_time()):
        loss.backward()


def test_pinned_numbers_and_hooks_are_gone_afterwards() -> None:
    x = torch.ones(3, requires_grad=True)
    loss = (x.exp() + x.sin()).sum()
    graph = ts.graph(loss)
    numbers = [node._sequence_nr() for node in graph.nodes]
    ts.backward(loss, policy="bfs", retain_graph=True)
    assert [node._sequence_nr() for node in graph.nodes] == numbers
    assert [node_hooks(node) for node in graph.nodes] == [([], [])] * len(graph)


def test_an_interrupt_leaves_numbers_and_hooks_as_they_were() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    loss = (y + x.sin()).sum()
    graph = ts.graph(loss)
    numbers = [node._sequence_nr() for node in graph.nodes]

    def interrupt(gradient: Tensor) -> None:
        raise KeyboardInterrupt

    handle = y.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        ts.backward(loss, policy="bfs", retain_graph=True)
    handle.remove()
    assert [node._sequence_nr() for node in graph.nodes] == numbers
    x.grad = None
    ts.backward(loss, policy="dfs")
    torch.testing.assert_close(x.grad, x.detach().exp() + x.detach().cos())


def test_numbers_of_shared_leaves_come_back_after_backwards_in_several_threads() -> None:
    layer = nn.Linear(8, 8)
    leaves = [node for node, _ in layer(torch.ones(1, 8)).grad_fn.next_functions if node is not None]
    runs: list[ts.Run] = []

    def work() -> None:
        for _ in range(20):
            runs.append(ts.backward(layer(torch.ones(4, 8)).sum(), policy="bfs"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {node._sequence_nr() for node in leaves if "Accumulate" in node.name()} == {2**64 - 1}
    assert all(sorted(run.order) == list(range(len(run.graph))) for run in runs)


def test_the_order_leaves_out_what_a_backward_inside_the_backward_runs() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2

    def inner(gradient: Tensor) -> None:
        with torch.enable_grad():
            (x * 3).sum().backward()

    y.register_hook(inner)
    run = ts.backward(y.sum())
    assert run.order == run.planned and torch.equal(x.grad, torch.full((2,), 5.0))


@pytest.mark.parametrize("outer", CLASSIC)
@pytest.mark.parametrize("inner", CLASSIC)
def test_a_pinned_backward_inside_a_pinned_one_spoils_no_order(outer: str, inner: str) -> None:
    """The inner one shares the leaves, of which some wait in the outer one's queue."""
    leaves = [torch.ones(2, requires_grad=True) for _ in range(5)]
    numbers = [torch.autograd.graph.get_gradient_edge(leaf).node._sequence_nr() for leaf in leaves]
    nodes = [torch.autograd.graph.get_gradient_edge(leaf).node for leaf in leaves]
    y = torch.stack([leaf * leaf for leaf in leaves])
    inner_runs: list[ts.Run] = []

    def backward_inside(gradients: object) -> None:
        with torch.enable_grad():
            inner_runs.append(ts.backward(torch.stack([leaf.exp() for leaf in leaves]).sum(), policy=inner))

    product = y.grad_fn.next_functions[2][0]
    product.register_prehook(backward_inside)
    loss = y.sum()
    runs: list[ts.Run] = []
    ran = engine_order(ts.graph(loss), lambda: runs.append(ts.backward(loss, policy=outer, trace="off")))
    own = [task for position, task in enumerate(ran) if task not in ran[:position]]  # leaves run twice
    assert len(inner_runs) == 1 and len(ran) == len(own) + len(leaves)
    assert list(runs[0].order) == list(runs[0].planned)
    assert [node._sequence_nr() for node in nodes] == numbers
    for leaf in leaves:
        torch.testing.assert_close(leaf.grad, 2 * leaf.detach() + leaf.detach().exp())


def test_the_heap_of_a_graph_whose_leaves_are_pinned_is_pytorchs() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    found = []

    def look(gradient: Tensor) -> None:
        with torch.enable_grad():
            loss = (x.exp() + x.sin()).sum()
        graph = ts.graph(loss)
        assert [task.sequence_nr for task in graph.tasks if task.is_leaf] == [2**64 - 1]
        found.append((schedule(graph, "heap"), engine_order(graph, lambda: ts.backward(loss))))

    y.register_hook(look)
    ts.backward(y.sum(), policy="bfs")
    assert len(found) == 1 and found[0][0] == found[0][1]


def test_an_order_that_another_backward_spoils_is_told(snapshot: Snapshots) -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    z = x * 2

    def spoil(gradients: object) -> None:
        nodes = [torch.autograd.graph.get_gradient_edge(leaf).node for leaf in (y, x)]
        Pin(nodes).during(lambda: Pin(nodes[::-1]).during(lambda: None))

    z.grad_fn.register_prehook(spoil)
    with pytest.warns(UserWarning, match='trace="off"') as told:
        ts.backward((z + y).sum(), policy="bfs")
    snapshot("backward", told[0].message)
    assert [each.filename for each in told] == [__file__]
    assert x.grad is not None


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("bad")


def test_a_custom_function_that_raises_is_named_although_nobody_watches() -> None:
    x = torch.ones(2, requires_grad=True)
    with ts.capture():
        loss = (Bad.apply(x.exp()) + Bad.apply(x.sin())).sum()
    with pytest.raises(ZeroDivisionError, match="bad") as caught:
        ts.backward(loss, policy="bfs")
    (note,) = caught.value.__notes__
    says(note, "tapescope", "BadBackward", "3rd", "test_native_engine.py:")


def test_what_is_not_known_is_not_guessed(snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()

    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError("hook")

    y.register_hook(fail)
    with pytest.raises(ZeroDivisionError) as caught:
        ts.backward(y.sum(), policy="bfs")
    (note,) = caught.value.__notes__
    says(note, "tapescope", 'trace="off"')
    snapshot("backward", note)


@pytest.mark.parametrize("where", ["tensor", "leaf", "before", "inside", "after", "accumulated", "end"])
def test_a_watched_backward_says_exactly_where_it_raised(where: str, snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()

    def fail(*gradients: object) -> None:
        raise ZeroDivisionError(where)

    if where == "tensor":
        y.register_hook(fail)
    elif where == "leaf":
        x.register_hook(fail)
    elif where == "before":
        y.grad_fn.register_prehook(fail)
    elif where == "after":
        y.grad_fn.register_hook(fail)
    elif where == "accumulated":
        x.register_post_accumulate_grad_hook(fail)
    elif where == "end":
        y.register_hook(lambda gradient: torch.autograd.Variable._execution_engine.queue_callback(fail))
    loss = (Bad.apply(y) if where == "inside" else y * 1).sum()
    with pytest.raises(ZeroDivisionError) as caught:
        ts.backward(loss, policy="bfs", trace="off")
    (note,) = caught.value.__notes__
    task = {
        "tensor": "ExpBackward0 (3rd)",
        "leaf": "AccumulateGrad (4th)",
        "before": "ExpBackward0 (3rd)",
        "inside": "BadBackward (2nd)",
        "after": "ExpBackward0 (3rd)",
        "accumulated": "AccumulateGrad (4th)",
        "end": "AccumulateGrad (4th)",
    }[where]
    says(note, "tapescope", task)
    snapshot("backward", note)


def test_the_trace_has_the_hooks_of_the_user_and_none_of_ours() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()

    def before(gradients: object) -> None: ...

    def after(outputs: object, gradients: object) -> None: ...

    def leaf(gradient: object) -> None: ...

    y.grad_fn.register_prehook(before)
    y.grad_fn.register_hook(after)
    x.register_hook(leaf)
    x.register_post_accumulate_grad_hook(leaf)
    trace = ts.backward(y.sum(), policy="bfs", trace="off").trace
    found = [[(hook.kind, hook.name.rsplit(".", 1)[-1]) for hook in record.hooks] for record in trace]
    assert found == [[], [("pre", "before"), ("post", "after")], [("tensor", "leaf"), ("post_accumulate", "leaf")]]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_a_dynamic_policy_runs_the_least_key_of_what_is_ready(seed: int, limited: bool) -> None:
    leaves, loss = random_program(seed)
    inputs = leaves[seed % 6 : seed % 6 + 2] if limited else None
    graph = ts.graph(loss)
    before = [node._sequence_nr() for node in graph.nodes]
    pick = random.Random(seed)
    keys: dict[int, tuple[int, ...]] = {}

    def key(task: ts.Task, arrival: int) -> tuple[int, ...]:
        keys[task.id] = (pick.randrange(5), pick.randrange(2))
        return keys[task.id]

    run = ts.backward(loss, inputs=inputs, policy=Policy("random", "", key, dynamic=True), retain_graph=True)
    assert [node._sequence_nr() for node in graph.nodes] == before
    needed = set(run.order)
    pending = Pending(graph, needed)
    ready = pending.start()
    for task in run.order:
        assert task == min(ready, key=lambda each: (keys[each], ready.index(each)))
        ready.remove(task)
        ready.extend(pending.run(task))
    assert not ready and run.planned == run.order
    if inputs is None:
        leaf_gradients = [leaf.grad for leaf in leaves]
        assert_equal(gradients_of(leaves, lambda: loss.backward()), leaf_gradients, bitwise=False)


def test_live_numbers_are_numbered_anew_where_there_is_no_room_left() -> None:
    numbers: dict[int, int] = {}
    live = LiveNumbers(numbers.__setitem__)
    keys = {task: (-task,) for task in range(200)}  # each before all others
    keys.update({200 + task: (task, 1) for task in range(200)})
    for task, key in keys.items():
        live.add(task, key)
    assert live.tasks == sorted(keys, key=keys.__getitem__)
    assert live.tasks == sorted(numbers, key=numbers.__getitem__, reverse=True)
    assert len(set(numbers.values())) == 400 and min(numbers.values()) > 0 and max(numbers.values()) < 2**63


def test_a_policys_own_error_arrives_as_it_is() -> None:
    x = torch.ones(2, requires_grad=True)

    def key(task: ts.Task, arrival: int) -> tuple[int, ...]:
        return (1 // (2 - arrival),)

    with pytest.raises(ZeroDivisionError):
        ts.backward(x.exp().sin().cos().sum(), policy=Policy("broken", "", key, dynamic=True))


@pytest.mark.parametrize("trace", [None, "off"])
def test_nothing_is_left_alive_after_an_error_either(trace: str | None) -> None:
    freed = []

    class Token:
        def __del__(self) -> None:
            freed.append(1)

    x = torch.ones(3, requires_grad=True)
    y = Bad.apply(x.exp())
    y.grad_fn.metadata["token"] = Token()
    with pytest.raises(ZeroDivisionError) as caught:
        ts.backward(y.sum(), policy="bfs", trace=trace)
    del y, caught
    gc.collect()
    assert freed == [1]


@pytest.mark.parametrize("policy", CLASSIC)
def test_native_runs_compiled_regions(policy: str) -> None:
    x = torch.arange(3.0, requires_grad=True)
    expected = gradients_of([x], lambda: compiled_loss(x).backward())
    found = gradients_of([x], lambda: ts.backward(compiled_loss(x), policy=policy))
    assert_equal(found, expected, bitwise=False)


@pytest.mark.parametrize("queues", ["one", "per device"])
@pytest.mark.parametrize("policy", CLASSIC)
def test_on_several_devices_each_queue_follows_the_policy(queues: str, policy: str, accelerator: torch.device) -> None:
    torch.manual_seed(0)
    far, near = nn.Linear(64, 64, device=accelerator), nn.Linear(64, 64)
    leaves = [*far.parameters(), *near.parameters()]
    x = torch.randn(8, 64, device=accelerator)

    def loss() -> Tensor:
        hidden = far(x).relu()
        return near(hidden.cpu()).sum() + far(hidden).square().mean().cpu()

    expected = gradients_of(leaves, lambda: loss().backward())
    runs: list[ts.Run] = []
    found = gradients_of(leaves, lambda: runs.append(ts.backward(loss(), policy=policy, queues=queues, trace="off")))
    assert_equal(found, expected, bitwise=False)
    (run,) = runs
    assert sorted(run.order) == sorted(run.planned) and run.trace is not None
    if queues == "one":
        assert run.order == run.planned
        assert {record.thread for record in run.trace} == {0}
    else:
        assert len({record.thread for record in run.trace}) == 2


COMPILED = """
import torch
from torch._dynamo.utils import counters
import tapescope as ts

def step(x, use):
    y = (x * 2).sin()
    loss = y.sum()
    use(loss)
    del loss  # a run's graph is read as the loss dies, a graph's nodes go
    return y * 3

def compiled_frames(use):
    torch._dynamo.reset()
    counters.clear()
    x = torch.ones(3, requires_grad=True)
    torch.compile(step, backend="eager")(x, use)
    return counters["frames"]["total"], x.grad

frames, gradient = compiled_frames(torch._dynamo.disable(torch.autograd.backward))
runs, graphs = [], []
for use in (ts.backward, lambda loss: runs.append(ts.backward(loss)), lambda loss: graphs.append(ts.graph(loss))):
    found, found_gradient = compiled_frames(use if use is ts.backward else torch._dynamo.disable(use))
    assert found <= frames, (found, frames)
    assert graphs or torch.equal(found_gradient, gradient)
assert runs[0].order and not graphs[0].nodes
"""


@pytest.mark.slow
def test_compiled_code_that_calls_it_compiles_nothing_of_tapescope() -> None:
    """Runs in a separate process, because other tests affect torch's compiler."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
