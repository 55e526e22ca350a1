"""Breakpoints: where a run stops, how places are named, and what step_over, step_out and edits do there."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.recording.run import Engine
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ...backward_programs import random_program
from ...comparing import ENGINES, assert_equal, gradients_of

pytestmark = pytest.mark.parametrize("engine", ENGINES)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.act(self.inner(x))
        return x + hidden


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x)
        return found


def model_and_loss() -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    model = Model()
    with ts.capture():
        loss = model(torch.randn(3, 4)).sum()
    return model, loss


def session_of(
    engine: Engine, loss: Tensor | None = None, **options: object
) -> ts.types.Stepper | ts.types.NativeSession:
    return ts.debug(model_and_loss()[1] if loss is None else loss, engine=engine, **options)


def stops_of(session: ts.types.Stepper | ts.types.NativeSession) -> Iterator[ts.Task]:
    """Runs to the end, from stop to stop."""
    while session.left:
        session.run()
        if session.stopped is not None:
            assert session.current is not None and session.current.id == session.stopped.task
            yield session.current


def names(tasks: Iterator[ts.Task]) -> list[str]:
    return [task.parameter or task.short_name for task in tasks]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("Tanh", ["Tanh"] * 3),
        ("TanhBackward0", ["Tanh"] * 3),
        ("T?nh", ["Tanh"] * 3),
        ("kind:Tanh", ["Tanh"] * 3),
        ("head.weight", ["head.weight"]),
        ("grad:blocks.*.inner.bias", [f"blocks.{number}.inner.bias" for number in (2, 1, 0)]),
        ("module:blocks.1.act", ["Tanh"]),
        ("blocks.*.inner", ["Addmm"] * 3),
        ("blocks.1", ["Add"]),
    ],
)
def test_a_run_stops_before_what_a_name_means(engine: Engine, where: str, found: list[str]) -> None:
    with session_of(engine) as session:
        breakpoint = session.break_at(where)
        assert names(stops_of(session)) == found
        assert breakpoint.hits == len(found) and breakpoint.kind == "break" and breakpoint.text == where


def test_a_breakpoint_on_a_module_stops_where_the_backward_enters_it(engine: Engine) -> None:
    with session_of(engine) as session:
        session.break_at("blocks.1")
        session.run()
        graph = session.graph
        assert [graph.module(task) for task in session.order if graph.module(task)] == [
            path for path in map(graph.module, session.order) if path and not path.startswith("blocks.1")
        ]
        assert session.current is not None and graph.module(session.current) == "blocks.1"


def test_the_run_that_a_session_returns_says_at_which_breakpoint_it_stopped(engine: Engine) -> None:
    with session_of(engine) as session:
        session.break_at("head.weight")
        run = session.run()
        assert session.stopped is not None and run.stopped == session.stopped.text
        says(repr(run), "stopped", "breakpoint 1", "head.weight")
        run = session.run()
        assert run.stopped == "" and "stopped" not in repr(run)


def test_a_run_stops_before_a_source_line_and_says_so(engine: Engine, snapshot: Snapshots) -> None:
    lines, first = inspect.getsourcelines(Block.forward)
    (number,) = [number for number, line in enumerate(lines, first) if "self.act" in line]
    place = f"{Path(__file__).name}:{number}"
    with session_of(engine) as session:
        session.break_at(place)
        session.run()
        assert session.current is not None and session.current.short_name == "Tanh"
        assert session.stopped is not None and session.stopped.why == "breakpoint" and session.stopped.number == 1
        described = session.graph.describe(session.current, len(session.order))
        assert place in described
        says(session.stopped, "breakpoint 1", place, described)
        if engine == "direct":
            snapshot("break_at", session.stopped)


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


def test_a_run_stops_before_the_task_that_receives_a_tensors_gradient(engine: Engine) -> None:
    leaf = torch.ones(3, requires_grad=True)
    hidden = (leaf * 2).tanh()
    with session_of(engine, hidden.exp().sum()) as session:
        session.break_at(hidden)
        session.break_at(leaf)
        assert names(stops_of(session)) == ["Tanh", "AccumulateGrad"]
        with raises(ValueError, "2 float32", "require grad"):
            session.break_at(torch.ones(2))
        with raises(ValueError, "3 float32", "backward"):
            session.break_at(leaf.exp())


def test_a_run_stops_before_the_function_whose_backward_has_a_line(engine: Engine) -> None:
    lines, first = inspect.getsourcelines(Gate.backward)
    (number,) = [number for number, line in enumerate(lines, first) if "x.cos()" in line]
    leaf = torch.ones(3, requires_grad=True)
    with session_of(engine, Gate.apply(leaf * 2).sum()) as session:
        session.break_at(f"{Path(__file__).name}:{number}")
        assert names(stops_of(session)) == ["Gate"]


def test_a_task_its_number_and_an_entry_of_the_queue_are_the_same_place(engine: Engine) -> None:
    with session_of(engine) as session:
        task = session.graph.tasks[3]
        assert session.break_at(task).tasks == session.break_at(3).tasks == session.break_at("task:3").tasks == {3}
        assert session.break_at(session.ready[0]).tasks == {session.ready[0].task.id}


def test_a_run_does_not_stop_before_the_task_at_which_it_begins(engine: Engine) -> None:
    with session_of(engine) as session:
        session.break_at("Tanh")
        session.run()
        first = session.current
        here = session.stop_here()
        assert here is not None and first is not None and here.task == first.id
        session.run()
        assert session.current is not first and session.stopped is not None
        session.stops.disable(1)
        session.run()
        assert session.stopped is None and not session.left and session.stop_here() is None


def test_the_first_task_of_all_is_where_the_first_run_begins(engine: Engine) -> None:
    leaf = torch.ones((), requires_grad=True)
    with session_of(engine, leaf) as session:
        session.break_at(0)
        assert session.stop_here() is not None
        session.run()
        assert session.stopped is None and not session.left


def test_only_the_nth_hit_stops(engine: Engine) -> None:
    with session_of(engine) as session:
        session.break_at("Tanh", hit=2)
        session.break_at(lambda task, gradients: task.short_name == "Tanh", hit=3)
        middle, last = stops_of(session)
        assert [session.graph.module(task) for task in (middle, last)] == ["blocks.1.act", "blocks.0.act"]


def test_a_predicate_sees_the_gradients_that_wait(engine: Engine, snapshot: Snapshots) -> None:
    seen: list[tuple[Tensor | None, ...]] = []

    def large(task: ts.Task, gradients: tuple[Tensor | None, ...]) -> bool:
        seen.append(gradients)
        return len(seen) == 2

    with session_of(engine) as session:
        session.break_at("AccumulateGrad", when=large)
        session.run()
        assert session.current is not None and session.current.is_leaf
        assert seen[-1][0] is not None and torch.equal(seen[-1][0], session.gradients[0])
        assert session.stopped is not None
        says(session.stopped.text, "AccumulateGrad", "large")
        if engine == "direct":
            snapshot("break_at", session.stopped)


def test_a_predicate_that_raises_stops_the_run_and_nothing_else(engine: Engine, snapshot: Snapshots) -> None:
    model, loss = model_and_loss()
    expected = gradients_of(list(model.parameters()), loss.backward)

    def broken(task: ts.Task, gradients: tuple[Tensor | None, ...]) -> bool:
        if task.short_name == "Tanh":
            raise KeyError("no such thing")
        return False

    model, loss = model_and_loss()

    def stepped() -> None:
        with session_of(engine, loss) as session:
            session.break_at(broken)
            session.run()
            assert session.stopped is not None and session.over is None
            says(session.stopped.text, "breakpoint 1", "KeyError", "'no such thing'")
            if engine == "direct":
                snapshot("break_at", session.stopped)
            while session.left:
                session.run()

    assert_equal(gradients_of(list(model.parameters()), stepped), expected, bitwise=True)


@pytest.mark.parametrize(
    ("where", "facts"),
    [
        ("blocks.1.innr", ('"blocks.1.innr"', "blocks.1.inner")),
        ("tanh", ('"tanh"', "Tanh")),
        ("999", ('"999"', 0, 22)),
        ("grad:head", ('"grad:head"', "head.bias", "head.weight")),
        (999, (999, 0, 22)),
    ],
    ids=["a module", "a kind", "a text", "a parameter", "a number"],
)
def test_where_nothing_is_the_nearest_names_are_told(
    engine: Engine, where: str | int, facts: tuple[object, ...], snapshot: Snapshots
) -> None:
    with session_of(engine) as session, raises(ValueError, *facts) as nothing:
        session.break_at(where)
    with session_of(engine) as session, raises(ValueError, "hit", 0, 1) as no_hit:
        session.break_at("Tanh", hit=0)
    with session_of(engine) as session, raises(TypeError, "task", "model.py:120", "float") as no_place:
        session.break_at(1.5)  # type: ignore[arg-type]
    if engine == "direct":
        for raised in (nothing, no_hit, no_place) if where == "tanh" else (nothing,):
            snapshot("break_at", raised.value)


def test_without_a_capture_the_error_says_what_a_capture_would_know(engine: Engine, snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    loss = x.exp().sum()
    for place, *facts in (("Expo", "Exp", "modules"), ("module:encoder", "modules"), ("line:model.py:3", "lines")):
        with session_of(engine, loss) as session, raises(ValueError, f'"{place}"', "ts.capture()", *facts) as raised:
            session.break_at(place)
        if engine == "direct":
            snapshot("break_at", raised.value)
    with ts.capture():
        captured = x.exp().sum()
    for of, place in ((captured, "Expo"), (loss, "kind:Expo"), (loss, "99")):
        with session_of(engine, of) as session, raises(ValueError, f'"{place}"') as raised:
            session.break_at(place)
        says_none_of(raised.value, "ts.capture()")


def test_stops_are_listed_switched_and_deleted_by_number(engine: Engine, snapshot: Snapshots) -> None:
    with session_of(engine) as session:
        session.break_at("Tanh")
        session.watch("nan")
        session.break_at("head.bias")
        stops = session.stops
        assert [(each.number, each.kind, each.enabled) for each in stops] == [
            *((1, "break", True), (2, "watch", True), (3, "break", True))
        ]
        assert stops.breakpoints and stops.watchpoints
        stops.disable(1)
        stops.delete(2)
        assert not stops.watchpoints and [each.number for each in stops] == [1, 3]
        assert session.break_at(0).number == 4
        stops.delete(4)
        assert names(stops_of(session)) == ["head.bias"]
        with raises(ValueError, "breakpoint", "watchpoint", 2, 1, 3) as raised:
            stops.enable(2)
        if engine == "direct":
            snapshot("break_at", raised.value)


def test_run_to_stops_at_a_breakpoint_on_the_way(engine: Engine) -> None:
    with session_of(engine) as session:
        session.break_at("blocks.2.act")
        target = session.graph.tasks[0]
        current = session.run_to(target)
        assert current is not None and current.short_name == "Tanh" and session.stopped is not None
        assert session.run_to(target) is target and session.stopped is None


def test_stop_says_that_it_was_asked_for(engine: Engine) -> None:
    with session_of(engine) as session:
        session.graph.nodes[session.graph.roots[0].task].register_prehook(lambda gradients: session.stop())
        session.run()
        assert session.stopped is not None and session.stopped.why == "asked" and session.left


def test_step_over_runs_a_module_call_and_step_out_the_one_around_it(engine: Engine) -> None:
    with session_of(engine) as session:
        graph = session.graph
        session.break_at("blocks.2.act")
        session.run()
        after = session.step_over()
        assert after is not None and graph.module(session.order[-1]) == "blocks.2.act"
        assert graph.module(after) == "blocks.2.inner"
        inner = session.step_over()
        paths = [graph.module(task) for task in session.order]
        assert paths.count("blocks.2.inner") == 4  # Addmm, T, and two parameters
        assert inner is not None and graph.module(inner) == "blocks.1"
        session.stops.delete(1)
        session.break_at("blocks.1.inner")
        session.run()
        out = session.step_out()
        assert out is not None and graph.module(out) == "blocks.0" and session.stopped is None


def test_step_out_at_the_top_runs_to_the_end_and_step_over_without_a_call_one_task(engine: Engine) -> None:
    with session_of(engine, torch.ones(2, requires_grad=True).exp().sum()) as session:
        session.step_over()
        assert len(session.order) == 1
        assert session.step_out() is None and not session.left
        with raises(RuntimeError, 3):
            session.step_over()


def test_step_over_stops_at_a_breakpoint_inside(engine: Engine) -> None:
    with session_of(engine) as session:
        session.break_at("blocks.2")
        session.run()
        session.break_at("blocks.2.inner.bias")
        session.step_over()
        assert session.current is not None and session.current.parameter == "blocks.2.inner.bias"
        assert session.stopped is not None and session.stopped.number == 2


def test_gradients_are_scaled_zeroed_and_clipped_at_a_stop_and_the_trace_says_so(engine: Engine) -> None:
    model, loss = model_and_loss()
    with session_of(engine, loss, trace="cheap") as session:
        session.break_at("grad:head.weight")
        session.run()
        before = session.gradients[0]
        assert before is not None
        expected = before.clone()
        session.scale(3.0)
        session.clip(float(expected.norm()) / 2)
        session.clip(1e9)  # leaves it
        session.stops.delete(1)
        session.break_at("grad:blocks.0.inner.bias")
        session.run()
        session.zero()
        session.stops.delete(2)
        session.run()
        assert session.trace is not None
        edits = {record.task.parameter: record.edits for record in session.trace if record.edits}
    zeroed = model.blocks[0].inner.bias.grad
    assert model.head.weight.grad is not None and zeroed is not None
    torch.testing.assert_close(model.head.weight.grad, expected / 2)
    assert not zeroed.any()
    assert {name: len(each) for name, each in edits.items()} == {"head.weight": 2, "blocks.0.inner.bias": 1}


def test_a_gradient_without_a_norm_is_not_clipped(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    with session_of(engine, (leaf * 1).sqrt().sum()) as session:
        session.run_to(session.graph.tasks[0])
        with raises(ValueError, "MulBackward0 (3rd)", "replace()", "zero()") as raised:
            session.clip(1.0)
        if engine == "direct":
            snapshot("debug", raised.value)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), limited=st.booleans())
def test_whatever_stops_a_run_the_gradients_are_pytorchs(engine: Engine, seed: int, limited: bool) -> None:
    leaves, loss = random_program(seed)
    inputs = leaves[seed % 6 : seed % 6 + 2] if limited else None
    expected = gradients_of(leaves, lambda: loss.backward(inputs=inputs))
    leaves, loss = random_program(seed)
    inputs = leaves[seed % 6 : seed % 6 + 2] if limited else None
    draw = random.Random(seed)

    def stop_and_go() -> None:
        with session_of(engine, loss, inputs=inputs) as session:
            chosen = {draw.randrange(len(session.graph)) for _ in range(5)}
            for task_id in chosen:
                session.break_at(task_id)
            session.watch("nan", "inf", "zero", "norm>1", synchronize=draw.choice([None, True, False]))
            while session.left:
                draw.choice([session.run, session.step_over, session.step_out, session.step])()

    assert_equal(gradients_of(leaves, stop_and_go), expected, bitwise=True)


def test_a_number_as_a_text_is_a_module_where_there_is_one(engine: Engine) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    with ts.capture(model):
        loss = model(torch.ones(1, 2)).sum()
    with session_of(engine, loss) as session:
        assert session.break_at("2").tasks == session.break_at("module:2").tasks != {2}
        assert session.break_at(2).tasks == session.break_at("task:2").tasks == {2}
        assert session.break_at("3").tasks == {3}  # no module has this name
