"""Backwards whose graph is not read: in PyTorch's own order, and in one planned for a graph that looked like it."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakSet, ref

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, save_on_cpu

import tapescope as ts
from tapescope.engine.planning import auto_policy
from tapescope.engine.planning.order_cache import CACHED_ORDERS, forget_orders
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.session import native_fast_path as unread
from tapescope.inspector.graph import operations_and_calls as facts
from tapescope.inspector.torch_private.nodes import notes_on
from tapescope.tests.says import raises, says

from ..backward_programs import random_program
from ..comparing import second_time

STATIC = [name for name in ts.orders.POLICIES if name not in ("comm_first", "search", "optimal")]


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor does a capture of another test say anything of these graphs."""
    monkeypatch.setattr(facts, "_alive", WeakSet())
    forget_orders()
    yield
    forget_orders()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of tasks of each graph that is read for a backward."""
    found: list[int] = []
    for module in ("tapescope.engine.session.native_fast_path", "tapescope.engine.execution.backward_arguments"):
        real = __import__(module, fromlist=["graph_of"]).graph_of

        def read(outputs: Any, real: Callable[..., ts.Graph] = real) -> ts.Graph:
            graph = real(outputs)
            found.append(len(graph))
            return graph

        monkeypatch.setattr(f"{module}.graph_of", read)
    return found


def branches(width: int = 4) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Some branches of unequal length below one sum."""
    torch.manual_seed(width)
    model = nn.ModuleList([nn.Sequential(*[nn.Linear(3, 3), nn.Tanh()] * (n + 1)) for n in range(width)])
    x = torch.randn(2, 3)
    return model, lambda: sum((branch(x).square().sum() for branch in model), start=torch.zeros(()))


def leaves_in_order(model: nn.Module, run: Callable[[], ts.Run]) -> tuple[ts.Run, list[str]]:
    """The leaves in the order in which they really got their gradients."""
    seen: list[str] = []
    names = {parameter: name for name, parameter in model.named_parameters()}
    handles = [
        each.register_post_accumulate_grad_hook(lambda leaf: seen.append(names[leaf])) for each in model.parameters()
    ]
    try:
        return run(), seen
    finally:
        for handle in handles:
            handle.remove()


def test_heap_reads_no_graph_until_it_is_asked_for(reads: list[int]) -> None:
    _, make_loss = branches()
    run = ts.backward(make_loss())
    with ts.policy("heap"):
        make_loss().backward()
    assert reads == []
    assert len(run.order) == len(run.graph) == len(run.planned)
    assert len(reads) == 1


def test_a_run_read_late_is_the_one_that_was_read_before() -> None:
    _, make_loss = branches()
    late = ts.backward(make_loss())
    with ts.capture():  # whose facts are read before
        read = ts.backward(make_loss())
    assert [task.name for task in late.graph.tasks] == [task.name for task in read.graph.tasks]
    assert (late.graph.edges, late.order, late.planned) == (read.graph.edges, read.order, read.planned)
    assert (late.policy, late.engine, late.note, late.trace) == (read.policy, read.engine, read.note, read.trace)
    says(repr(late), "Run", len(read.graph), "heap", "native")
    assert replace(ts.backward(make_loss()), note="mine").order == read.order
    with raises(AttributeError, "'Run'", "'ordre'"):
        late.ordre  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("policy", ["heap", "bfs"])
def test_what_was_saved_is_freed_as_ever(policy: str) -> None:
    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = torch.ones(3)
            watched.append(ref(ctx.kept))
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    watched: list[ref[Tensor]] = []
    w = torch.ones(3, requires_grad=True)
    for _ in range(2):
        run = ts.backward(Watched.apply(w.exp()).exp().sum(), policy=policy)
    del run
    gc.collect()
    assert [each() for each in watched] == [None, None]


def test_a_function_whose_class_is_made_in_each_forward_is_not_kept() -> None:
    def forward() -> tuple[Tensor, ref[Tensor]]:
        scale = torch.ones(3)

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * scale

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                return gradient * scale

        return Scale.apply(torch.ones(3, requires_grad=True)).exp().sum(), ref(scale)  # type: ignore[no-untyped-call]

    scales = []
    for _ in range(3):
        loss, scale = forward()
        ts.backward(loss, policy="bfs")
        scales.append(scale)
    del loss
    gc.collect()
    assert len(CACHED_ORDERS) == 3 and [scale() for scale in scales] == [None] * 3


@pytest.mark.parametrize("policy", ["heap", "bfs", "lpmf", "random"])
def test_in_inference_mode_gradients_are_those_of_pytorch(policy: str) -> None:
    model, make_loss = branches()

    def gradients(backward: Callable[[Tensor], object]) -> list[Tensor]:
        model.zero_grad()
        loss = make_loss()
        with torch.inference_mode():
            backward(loss)
            return [each.grad.clone() for each in model.parameters() if each.grad is not None]

    expected = gradients(Tensor.backward)
    for _ in range(2):
        found = gradients(partial(ts.backward, policy=policy))
        assert len(found) == len(expected)
        for mine, torchs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, torchs)


@pytest.mark.parametrize("policy", STATIC)
def test_the_kept_order_is_the_one_that_was_planned(policy: str, reads: list[int]) -> None:
    model, make_loss = branches()
    orders = []
    for step in range(4):
        model.zero_grad()
        run, seen = leaves_in_order(model, lambda: ts.backward(make_loss(), policy=policy))
        orders.append((run.order, run.policy, run.note, seen))
        if step == 1:
            reads.clear()
    model.zero_grad()
    direct, seen = leaves_in_order(model, lambda: ts.backward(make_loss(), policy=policy, engine="direct"))
    assert orders[1:] == orders[:1] * 3
    assert (direct.order, seen) == (orders[0][0], orders[0][3])
    assert len(reads) == 2  # of two late runs whose order was asked for


def test_a_loop_reads_its_graph_once_however_the_policy_is_entered(reads: list[int]) -> None:
    model, make_loss = branches()
    with ts.policy("lpmf"):
        for _ in range(3):
            model.zero_grad()
            make_loss().backward()
    for _ in range(3):
        model.zero_grad()
        with ts.policy("lpmf"):
            make_loss().backward()
    assert len(reads) == 1
    forget_orders()
    model.zero_grad()
    with ts.policy("lpmf"):
        make_loss().backward()
    assert len(reads) == 2


def test_what_hooks_packed_makes_another_plan_for_what_plans_memory() -> None:
    def run(packs: bool) -> list[int]:
        x = torch.ones(64, 64, requires_grad=True)
        with save_on_cpu() if packs else nullcontext():
            branches = []
            for _ in range(3):
                y = x * 1
                for _ in range(3):
                    y = (y * y).exp()
                branches.append(y.sum())
            loss = torch.stack([*branches, (x @ x).relu().sum()]).sum()
        return list(ts.backward(loss, policy="lpmf").order)

    alone = []
    for packs in (True, False):
        forget_orders()
        alone.append(run(packs))
    assert alone[0] != alone[1], "the program is one in which it matters"
    forget_orders()
    assert [run(packs) for packs in (True, False, True)] == [alone[0], alone[1], alone[0]]


def test_gradients_that_are_there_make_another_plan_for_what_plans_memory(reads: list[int]) -> None:
    _, make_loss = branches()
    for policy, graphs in (("bfs", 1), ("lpmf", 2)):
        reads.clear()
        for parameter in (branches()[0]).parameters():
            parameter.grad = None
        model, make_loss = branches()
        for _ in range(3):
            ts.backward(make_loss(), policy=policy)
        assert len(reads) == graphs
        model.zero_grad()


def test_an_attribute_of_a_custom_function_is_not_a_leaf() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.variable = 2.0
            return x * ctx.variable

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * ctx.variable

    w = torch.ones(3, requires_grad=True)
    for step in range(1, 4):
        ts.backward(Scaled.apply(w.exp()).sum(), policy="lpmf")
        torch.testing.assert_close(w.grad, step * 2 * w.detach().exp())


@pytest.mark.parametrize("seed", range(12))
def test_gradients_are_those_of_pytorch_over_many_steps(seed: int) -> None:
    policy = random.Random(seed).choice(["bfs", "dfs", "lpmf", "postorder", "random", "delay_accumulate", "auto"])
    leaves, loss = random_program(seed)
    expected = torch.autograd.grad(loss, leaves, allow_unused=True)
    for _ in range(4):
        leaves, loss = random_program(seed)
        ts.backward(loss, policy=policy)
        for leaf, gradient in zip(leaves, expected, strict=True):
            torch.testing.assert_close(leaf.grad, gradient)


def test_a_graph_that_only_looks_alike_gets_its_gradients_and_is_told_as_it_ran() -> None:
    def make_loss(swapped: bool) -> tuple[list[Tensor], Tensor]:
        leaves = [torch.full((2,), float(n), requires_grad=True) for n in range(1, 4)]
        a, b, c = (leaf.exp() for leaf in leaves)
        first, last = (c, a) if swapped else (a, c)
        return leaves, ((first * b) * last).sum()

    for swapped in (False, False, True, True, False):
        leaves, loss = make_loss(swapped)
        expected = torch.autograd.grad(loss, leaves, retain_graph=True)
        run = ts.backward(loss, policy="bfs")
        assert all(leaf.grad is not None and leaf.grad.equal(g) for leaf, g in zip(leaves, expected, strict=True))
        pending = {task.id: len(run.graph.in_edges[task.id]) for task in run.graph.tasks}
        for task_id in run.order:
            assert pending[task_id] == 0
            for edge in run.graph.out_edges[task_id]:
                pending[edge.next_task] -= 1


def test_an_order_that_the_edges_do_not_allow_is_told_as_it_ran() -> None:
    first, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def make_loss(crossed: bool) -> Tensor:
        x = torch.ones(2, 4)
        a, b = first(x), last(x)
        c = a.tanh()
        d, e = (b, c) if crossed else (c, b)
        return (d.tanh() * 1).sum() + (e.tanh() * 1).sum()

    for crossed in (False, False, False, True, True, True):  # the edges are not compared at the third use
        loss = make_loss(crossed)
        ran: list[Node] = []

        def note(node: Node, *gradients: object, ran: list[Node] = ran) -> None:
            ran.append(node)

        handles = [node.register_hook(partial(note, node)) for node in ts.graph(loss).nodes]
        run = ts.backward(loss, policy="dfs")
        for handle in handles:
            handle.remove()
        assert [run.graph.nodes[task_id] for task_id in run.order] == ran


def test_threads_that_ask_for_the_order_at_once_get_one() -> None:
    _, make_loss = branches(8)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            run = ts.backward(make_loss(), policy="bfs")
            with ThreadPoolExecutor(4) as pool:
                graphs, orders = zip(*pool.map(lambda _, run=run: (run.graph, run.order), range(4)), strict=True)
            assert len(set(map(id, graphs))) == len(set(orders)) == 1
    finally:
        sys.setswitchinterval(before)


def test_where_devices_have_queues_of_their_own_the_graph_is_read(reads: list[int]) -> None:
    _, make_loss = branches()
    for policy in ("heap", "bfs"):
        ts.backward(make_loss(), policy=policy, queues="per device")
    assert len(reads) == 2


def test_shapes_that_change_are_noticed_in_time(reads: list[int]) -> None:
    w = torch.ones(3, requires_grad=True)
    for size in (1, 1, 2, 2):
        ts.backward((w * torch.ones(size, 1)).exp().sum(), policy="bfs")
    assert len(reads) == 2


def test_a_hook_on_the_loss_is_called_once_also_where_nothing_was_planned() -> None:
    _, make_loss = branches()
    calls: list[float] = []
    for _ in range(3):
        loss = make_loss()
        loss.register_hook(lambda gradient: calls.append(gradient.item()))
        ts.backward(loss, policy="bfs")
    assert calls == [1.0] * 3


def test_a_backward_inside_a_hook_has_a_plan_of_its_own() -> None:
    model, make_loss = branches()
    expected = torch.autograd.grad(make_loss(), list(model.parameters()))

    @torch.enable_grad()
    def inside() -> None:
        make_loss().backward()

    with ts.policy("bfs"):
        for _ in range(3):
            model.zero_grad()
            x = torch.ones(2, requires_grad=True)
            hidden = x.exp()
            hidden.register_hook(lambda gradient: inside())
            (hidden * 2).sum().backward()
            assert all(
                each.grad is not None and each.grad.equal(g)
                for each, g in zip(model.parameters(), expected, strict=True)
            )
            torch.testing.assert_close(x.grad, 2 * torch.ones(2).exp())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_a_hook_raises_leaves_all_numbers_as_they_were(error: type[BaseException]) -> None:
    model, make_loss = branches()
    ts.backward(make_loss(), policy="bfs")
    loss = make_loss()
    graph = ts.graph(loss)
    numbers = [node._sequence_nr() for node in graph.nodes]

    def stop(gradient: Tensor) -> None:
        raise error("enough")

    handle = next(model.parameters()).register_hook(stop)
    with pytest.raises(error, match="enough") as raised:
        ts.backward(loss, policy="bfs")
    handle.remove()
    assert [node._sequence_nr() for node in graph.nodes] == numbers
    if error is ValueError:
        says("\n".join(raised.value.__notes__), "tapescope")
    model.zero_grad()
    expected = torch.autograd.grad(make_loss(), list(model.parameters()))
    ts.backward(make_loss(), policy="bfs")
    assert all(
        each.grad is not None and each.grad.equal(g) for each, g in zip(model.parameters(), expected, strict=True)
    )


@pytest.mark.parametrize("policy", ["heap", "bfs"])
def test_a_second_backward_is_refused_with_the_task(policy: str) -> None:
    _, make_loss = branches()
    ts.backward(make_loss(), policy=policy)
    loss = make_loss()
    ts.backward(loss, policy=policy)
    with raises(RuntimeError, second_time()) as raised:
        ts.backward(loss, policy=policy)
    says("\n".join(raised.value.__notes__), "PowBackward0")


def test_threads_that_share_leaves_take_turns_or_read() -> None:
    model, make_loss = branches(6)
    expected = torch.autograd.grad(make_loss(), list(model.parameters()))
    numbers = [node._sequence_nr() for node in ts.graph(make_loss()).nodes if node.name().endswith("AccumulateGrad")]
    failed: list[BaseException] = []

    def train() -> None:
        try:
            for _ in range(10):
                ts.backward(make_loss(), policy="bfs")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for each, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(each.grad, 40 * gradient)
    after = [node._sequence_nr() for node in ts.graph(make_loss()).nodes if node.name().endswith("AccumulateGrad")]
    assert after == numbers == [2**64 - 1] * len(numbers)


def test_a_deep_graph_whose_order_is_kept_dies_node_by_node(monkeypatch: pytest.MonkeyPatch, reads: list[int]) -> None:
    """torch frees nodes that Python has seen by recursion, and overflows the stack; see `free_one_by_one`."""
    monkeypatch.setattr(unread, "DEEP", 10)
    _, make_loss = branches()
    for _ in range(2):
        loss = make_loss()
        ts.backward(loss, policy="bfs")
    assert len(reads) == 1 and loss.grad_fn is not None
    (dying,) = (each[::-1] for each in notes_on(loss.grad_fn).values())
    assert {loss.grad_fn, *dying} == set(ts.graph(loss).nodes)
    places = {node: place for place, node in enumerate(dying)}
    assert all(places[node] < places[child] for node in dying for child, _ in node.next_functions if child is not None)


@pytest.mark.slow
def test_the_second_of_two_deep_graphs_dies_without_a_stack_overflow() -> None:
    program = """
import torch
import tapescope as ts
for _ in range(2):
    x = weight = torch.ones(2, requires_grad=True)
    for _ in range(60_000):
        x = x + weight
    loss = x.sum()
    with ts.policy("bfs"):
        loss.backward()
    del x, loss
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr


def test_gradients_that_look_alike_are_kept_once() -> None:
    _, make_loss = branches()
    ts.backward(make_loss(), policy="bfs")
    (order,) = CACHED_ORDERS._found.values()
    assert len(set(map(id, order._metas))) == len(set(order._metas)) < len(order) / 4


def test_what_is_kept_is_bounded() -> None:
    for size in range(1, 200):
        x = torch.ones(2, requires_grad=True)
        for _ in range(size):
            x = x.exp()
        ts.backward(x.sum(), policy="bfs")
    found = CACHED_ORDERS
    assert len(found) > 0 and sum(map(found._weigh, found._found.values())) <= found._most


def test_a_policy_of_the_users_own_is_asked_each_time(reads: list[int]) -> None:
    _, make_loss = branches()
    mine = replace(ts.orders.POLICIES["bfs"], name="mine")
    for _ in range(3):
        ts.backward(make_loss(), policy=mine)
    assert len(reads) == 3
    assert unread.run_without_graph(ts.types.BackwardCall(make_loss()), mine, "one") is None


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of nodes of each order that is read inside a backward."""
    found: list[int] = []
    real = unread._Start.begin

    def begin(self: Any, nodes: list[Node]) -> None:
        found.append(len(nodes))
        real(self, nodes)

    monkeypatch.setattr(unread._Start, "begin", begin)
    return found


@pytest.mark.parametrize("policy", ["auto", "bfs"])
def test_a_loop_whose_graphs_keep_the_engines_order_is_seldom_read(policy: str, starts: list[int]) -> None:
    x = torch.ones(4).requires_grad_()
    runs: list[ts.Run] = []
    with ts.policy(policy, on_run=runs.append):
        for step in range(200):
            x.grad = None
            loss = x.mul(step / 200).exp().tanh().sum()
            (expected,) = torch.autograd.grad(loss, x, retain_graph=True)
            loss.backward()
            assert x.grad is not None and x.grad.equal(expected)
            assert list(runs[-1].order) == schedule(runs[-1].graph, "heap")
    assert 200 / 16 < len(starts) < 30
    assert len({run.policy for run in runs[1:]}) == 1
    unread = [run for run in runs if run.note]  # a run says if it was not planned
    assert len(unread) == 200 - len(starts)
    says(repr(unread[0]), "not planned", "PyTorch's own order")


@pytest.mark.parametrize("policy", ["auto", "bfs"])
def test_a_loop_that_registers_a_hook_in_each_step_plans_once(policy: str, reads: list[int]) -> None:
    """A hook that is new decides on "auto"; the loop's orders do not fill the cache."""
    model, make_loss = branches()
    called: list[Tensor] = []
    with ts.policy(policy):
        for step in range(8):
            model.zero_grad()
            if step == 2:
                reads.clear()
            loss = make_loss()
            next(model.parameters()).register_hook(called.append) if step == 0 else loss.register_hook(called.append)
            loss.backward()
    assert reads == [] and len(called) == 8 + 7
    assert len(CACHED_ORDERS) < 8


def test_an_order_planned_without_hooks_is_not_used_for_the_next_new_hook() -> None:
    model, make_loss = ts.workload("mixture_of_experts").build()
    names: list[str] = []
    with ts.policy("auto", on_run=lambda run: names.append(run.policy)):
        for has_hook in (None, False, True):
            model.zero_grad()
            loss = make_loss()
            if has_hook is not None:
                handle = torch.ones(1, requires_grad=True).register_hook(lambda gradient: None)
                handle.remove()
            with mock.patch.object(auto_policy, "no_hooks", return_value=not has_hook):
                loss.backward()
    assert names[0] == names[1] != "auto: heap" == names[2]


def of_a_chain(x: Tensor) -> Tensor:
    return x.exp().cos().sin()


def of_two_branches(x: Tensor) -> Tensor:
    return x.exp() + x.cos()


def test_graphs_whose_youngest_nodes_are_alike_keep_the_policys_order() -> None:
    """Both create the same number of nodes; in the second, the policy's order is not the engine's."""

    def ran(below: Callable[[Tensor], Tensor]) -> tuple[str, ...]:
        y = below(torch.ones(4).requires_grad_())
        for _ in range(10):
            y = y.tanh()
        loss = y.sum()
        run = ts.backward(loss, policy="bfs")
        return tuple(run.graph.tasks[task_id].name for task_id in run.order)

    first, second = ran(of_a_chain), ran(of_two_branches)
    assert second.index("ExpBackward0") < second.index("CosBackward0")
    seen = [(ran(of_a_chain), ran(of_two_branches)) for _ in range(20)]
    assert {chain for chain, _ in seen} == {first}
    assert {branches for _, branches in seen[2:]} == {second}
    for _ in range(20):
        ran(of_a_chain)
    assert ran(of_two_branches) == second


def test_another_batch_size_is_not_run_by_the_last_ones_look(starts: list[int]) -> None:
    for size in (4, 4, 4, 5):
        before = len(starts)
        ts.backward(torch.ones(size).requires_grad_().exp().tanh().sum(), policy="bfs")
    assert len(starts) == before + 1
