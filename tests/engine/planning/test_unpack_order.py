from __future__ import annotations

import doctest
import gc
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.planning import unpack_order
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import random_program
from ..comparing import second_time


class Numbered(saved_tensors_hooks):
    """Packs a tensor as a number, counted from 0, and notes in which order the numbers are unpacked."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.unpacked: list[int] = []
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor: Tensor) -> int:
        self.tensors.append(tensor.detach())
        return len(self.tensors) - 1

    def unpack(self, number: int) -> Tensor:
        self.unpacked.append(number)
        return self.tensors[number]


def by_lot(ready: Sequence[ts.Task], state: object) -> ts.Task:
    return random.Random(len(ready)).choice(ready)


POLICIES = ["bfs", "dfs", "heap", "random(7)", by_lot]


def each_once(tasks: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(tasks))


@pytest.mark.parametrize("engine", ["native", "direct"])
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(POLICIES))
def test_hooks_are_asked_for_what_was_said_before_the_backward(engine: Any, seed: int, policy: Any) -> None:
    hooks = Numbered()
    with hooks:
        _, loss = random_program(seed)
    order = ts.orders.unpack_order(loss, policy)
    task_of = {row.packed: row.task for row in order if row.packed_as is not None}
    ts.backward(loss, policy=policy, engine=engine)
    seen = each_once([task_of[number] for number in hooks.unpacked if number in task_of])
    assert order.hidden or task_of.keys() >= set(hooks.unpacked)
    assert seen == [task for task in order.tasks if task in seen]
    assert all(row.packed_as is not None for row in order), "hooks see neither numbers nor anything else unpacked"


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_in_one_thread_pytorch_unpacks_in_the_reverse_of_packing(seed: int) -> None:
    hooks = Numbered()
    with hooks:
        _, loss = random_program(seed)
    order = ts.orders.unpack_order(loss)
    assert order.out_of_order is None
    task_of = {row.packed: row.task for row in order if row.packed_as is not None}
    loss.backward()
    packed = each_once([task_of[number] for number in range(len(hooks.tensors)) if number in task_of])
    unpacked = each_once([task_of[number] for number in hooks.unpacked if number in task_of])
    assert unpacked == packed[::-1]
    assert packed == [task for task in order.packed_order or () if task in set(packed)]


@pytest.mark.parametrize("number", [2, 2.0, 2j])
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_a_python_number_is_left_out_and_a_tensor_of_its_type_is_not(number: complex, default: torch.dtype) -> None:
    widest = {int: torch.int64, float: torch.float64, complex: torch.complex128}[type(number)]
    torch.set_default_dtype(default)
    try:
        for factor in (number, torch.tensor(number), torch.tensor(number, dtype=widest)):
            x = torch.ones(3, requires_grad=True)
            hooks = Numbered()
            with hooks:
                x * factor
            assert len(ts.orders.unpack_order((x * factor).abs().sum())) == len(hooks.tensors) + 1  # and what abs saves
    finally:
        torch.set_default_dtype(torch.float32)


def branches() -> Tensor:
    """Two branches of two tasks each; the older one is ready as soon as the newer one."""
    x = torch.ones(3, requires_grad=True)
    return torch.stack([x.exp().sin(), x.exp().cos()]).sum()


def test_the_first_that_comes_out_of_order_is_named_with_what_was_packed_later(snapshot: Snapshots) -> None:
    loss = branches()
    assert ts.orders.unpack_order(loss, "heap").out_of_order is None
    order = ts.orders.unpack_order(loss, "bfs")
    names = [order.graph.tasks[task].short_name for task in order.tasks]
    assert names == ["Sin", "Cos", "Exp", "Exp"]
    assert order.out_of_order is not None
    row, expected = order.out_of_order
    assert (order.graph.tasks[row.task].short_name, order.graph.tasks[expected].short_name) == ("Sin", "Cos")
    says(order, "SinBackward0")
    snapshot("unpack_order", order)


@pytest.mark.parametrize("policy", ["bfs", "heap", "random(3)"])
@pytest.mark.parametrize("engine", ["native", "direct"])
def test_checkpointed_regions_are_unpacked_in_the_order_foretold(
    engine: Any, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    plain = saved_tensors_hooks.__init__

    def noting(self: saved_tensors_hooks, pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        def noted(packed: object) -> Any:
            asked.append(packed)
            return unpack(packed)

        plain(self, pack, noted)

    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with monkeypatch.context() as patch:
        patch.setattr(saved_tensors_hooks, "__init__", noting)
        made = [checkpoint(model, torch.randn(2, 3), use_reentrant=False) for _ in range(3)]
        loss = torch.stack(made).sum()
    order = ts.orders.unpack_order(loss, policy)
    packed = [row for row in order if row.packed_as is not None]
    assert len(packed) == 3 * (1 + 1 + 2)
    task_of = {row.packed: row.task for row in packed}
    ts.backward(loss, policy=policy, engine=engine)
    assert each_once([task_of[each] for each in asked]) == each_once([row.task for row in packed])


def test_a_forward_of_two_threads_is_in_order_of_time_where_captures_saw_it_and_else_unknown(
    snapshot: Snapshots,
) -> None:
    def in_thread(run: Callable[[], Any]) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(run()))
        thread.start()
        thread.join()
        return found[0]

    def forward(surroundings: Callable[[], Any]) -> Tensor:
        x = torch.ones(3, requires_grad=True)
        for _ in range(50):
            torch.ones(1, requires_grad=True).exp()  # this thread's numbers run ahead of a new one's

        def second(first: Tensor) -> Tensor:
            with surroundings(), hooks:
                return first.sin()

        with surroundings(), hooks:
            first = x.exp()
        later = in_thread(lambda: second(first))
        with surroundings(), hooks:
            return torch.stack([later, x.cos()]).sum()

    hooks = Numbered()
    unknown = ts.orders.unpack_order(forward(torch.enable_grad))
    assert unknown.packed_order is None
    assert unknown.out_of_order is None
    snapshot("unpack_order", unknown)
    hooks = Numbered()
    loss = forward(ts.capture)
    order = ts.orders.unpack_order(loss)
    task_of = {row.packed: row.task for row in order}
    assert order.packed_order == tuple(each_once([task_of[number] for number in range(len(hooks.tensors))]))
    loss.backward()
    assert list(order.tasks) == each_once([task_of[number] for number in hooks.unpacked])


def test_each_saved_tensor_has_its_task_slot_layout_module_and_line() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    with ts.capture():
        loss = model(torch.ones(3, 4)).sum()
    order = ts.orders.unpack_order(loss)
    found = [
        (order.graph.tasks[row.task].short_name, row.slot, row.shape, row.dtype, row.nbytes, row.module)
        for row in order
    ]
    assert found == [
        ("Tanh", "result", (3, 2), torch.float32, 24, "1"),
        ("Addmm", "mat1", (3, 4), torch.float32, 48, "0"),
    ]
    assert {row.source and row.source.short.partition(":")[0] for row in order} == {Path(__file__).name}
    assert order.records()[1]["nbytes"] == 48
    assert [row.place for row in order] == [1, 2]
    page = order._repr_html_()
    assert "3×4 float32" in page
    assert "Tanh" in page


def test_a_report_keeps_nothing_alive_that_a_backward_frees() -> None:
    class Packed:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    with saved_tensors_hooks(Packed, lambda packed: packed.tensor):
        loss = torch.ones(3, requires_grad=True).exp().sum()
    order = ts.orders.unpack_order(loss)
    (row,) = order
    assert isinstance(row.packed, Packed)
    saved = weakref.ref(row.packed.tensor)
    loss.backward()
    gc.collect()
    assert row.packed is None
    assert saved() is None
    assert row.packed_as == "Packed"


def test_what_can_not_be_seen_is_said(snapshot: Snapshots) -> None:
    x = torch.ones(4, requires_grad=True)
    y = x.exp()
    y[:2].mul_(x[2:])
    inside = checkpoint(torch.sin, y, use_reentrant=True)
    order = ts.orders.unpack_order(inside.sum())
    assert [order.graph.tasks[task].short_name for task in order.hidden] == ["CopySlices"]
    assert [order.graph.tasks[task].short_name for task in order.inside] == ["CheckpointFunction"]
    says(order, "CopySlices", "CheckpointFunctionBackward")
    snapshot("unpack_order", order)


def test_what_a_backward_has_freed_is_told_also_where_only_a_part_is_shared() -> None:
    x = torch.ones(2, requires_grad=True)
    shared = x.exp()
    loss, other = shared.sin().sum(), shared.cos().sum()
    loss.backward(retain_graph=True)
    assert [row.slot for row in ts.orders.unpack_order(loss)] == ["self", "result"]
    loss.backward()
    for of, name in ((loss, "SinBackward0"), (other, "ExpBackward0")):
        with raises(RuntimeError, name):
            ts.orders.unpack_order(of)
        with raises(RuntimeError, second_time()):
            of.backward()


def test_a_graph_that_saved_nothing_has_nothing_freed_either() -> None:
    x = torch.ones(2, requires_grad=True)
    loss = (x + 1).transpose(0, 0).sum()
    loss.backward()
    assert not len(ts.orders.unpack_order(loss))
    loss.backward()


def test_a_graph_from_a_file_is_refused(tmp_path: Path, snapshot: Snapshots) -> None:
    loss = branches()
    run = ts.backward(loss, trace="off")
    with raises(ValueError, "loss") as no_nodes:
        ts.orders.unpack_order(ts.load(run.save(tmp_path / "run.tape.json")).graph)
    dynamic = ts.Policy("by memory", "by memory", lambda task, arrival: (arrival,), dynamic=True)
    with raises(ValueError, "by memory") as by_memory:
        ts.orders.unpack_order(branches(), dynamic)
    for raised in (no_nodes, by_memory):
        snapshot("unpack_order", raised.value)


def test_the_example_in_the_documentation_runs() -> None:
    found = doctest.testmod(unpack_order)
    assert (found.failed, found.attempted > 0) == (0, True)
