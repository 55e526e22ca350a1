"""Watchpoints: what stops a run, after which task, and where the bad value came from."""

from __future__ import annotations

import gc
import inspect
import math
import re
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.recording.run import Engine
from tapescope.engine.session.breakpoints.gradient_readings import FINITE, LateReadings, Need, Reading, read_now
from tapescope.engine.session.breakpoints.nan_origin import FORMULAS, _is_the_value
from tapescope.inspector.torch_private.saved_variables import saved_numbers, saved_slots
from tapescope.inspector.torch_private.thread_state import unobserved
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ...backward_programs import random_program
from ...comparing import ENGINES, assert_equal, gradients_of

both = pytest.mark.parametrize("engine", ENGINES)
ALL: frozenset[Need] = frozenset({"finite", "inf", "zero", "norm"})


def captured(make_loss: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(0)
    with ts.capture():
        return make_loss()


def stopped(
    engine: Engine,
    make_loss: Callable[[], Tensor],
    *conditions: object,
    at: str | int | None = None,
    synchronize: bool | None = None,
) -> ts.types.Stop | None:
    with ts.debug(captured(make_loss), engine=engine) as session:
        session.watch(*conditions, at=at, synchronize=synchronize)  # type: ignore[arg-type]
        session.run()
        return session.stopped


def found(engine: Engine, make_loss: Callable[[], Tensor], *conditions: object, **options: object) -> ts.types.Stop:
    stop = stopped(engine, make_loss, *conditions, **options)  # type: ignore[arg-type]
    assert stop is not None and stop.why == "watchpoint" and stop.number == 1
    return stop


def once(snapshot: Snapshots, engine: Engine, text: object) -> None:
    """Compare a text with the stored one, which stands for both engines."""
    if engine == "direct":
        snapshot("watch", text)


def line_of(function: Callable[..., object], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines, first) if text in line]
    return f"{Path(__file__).name}:{number}"


def entropy(logits: Tensor) -> Tensor:
    p = logits.softmax(-1)
    p = torch.where(p > 0.2, p, 0.0)
    return torch.where(p > 0, p * torch.log(p), p).sum()


@both
def test_a_nan_is_walked_back_to_the_forward_value_that_made_it(engine: Engine, snapshot: Snapshots) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 6, requires_grad=True)
    stop = found(engine, lambda: entropy(logits), "nan")
    place = line_of(entropy, "torch.log")
    says(stop.text, "MulBackward0", "3rd", place, "NaN")
    told = " ".join(stop.lines)
    says(told, "gradient * other = 0 * (-inf) = NaN", "`other`", "-inf", "LogBackward0", place, "`self`", 0)
    says(told, "return torch.where(p > 0, p * torch.log(p), p)")
    once(snapshot, engine, stop)
    assert set(stop.tensors) == {"output 0", "input 0", "saved other", "saved self"}
    assert stop.tensors["output 0"].isnan().any() and stop.tensors["saved other"].isneginf().any()


@both
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda x: x.sqrt(), "gradient / (2 * result) = 1 / (2 * 0) = inf"),
        (lambda x: x.log(), "gradient / self = 1 / 0 = inf"),
        (lambda x: 1 / x, "-gradient * result² = -1 * inf² = -inf"),
        (lambda x: x**0.5, "gradient * exponent * self ** (exponent - 1) = 1 * 0.5 * 0 ** (0.5 - 1) = inf"),
        (lambda x: x.rsqrt(), "-gradient / 2 * result³ = -1 / 2 * inf³ = -inf"),
        (lambda x: torch.where(x > 0, x.sqrt(), x), "gradient / (2 * result) = 0 / (2 * 0) = NaN"),
        (lambda x: torch.tensor([1.0, 2.0]) / x, "-gradient * self / other² = -1 * 1 / 0² = -inf"),
        (lambda x: torch.linalg.vector_norm(x.expand(2, 2) * torch.zeros(2), dim=-1), None),
    ],
)
def test_a_derivative_that_has_no_value_is_written_out(
    engine: Engine, make: Callable[[Tensor], Tensor], told: str | None
) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    stop = stopped(engine, lambda: make(leaf * 1).sum(), "nan", "inf")
    leaf.grad = None
    make(leaf * 1).sum().backward()
    assert leaf.grad is not None
    assert (stop is None) == bool(leaf.grad.isfinite().all())
    assert (None if stop is None else any(told in line for line in stop.lines if told)) == (told and True)


@both
def test_what_was_bad_already_is_followed_along_the_gradients(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    with ts.debug(captured(lambda: (leaf * 1).sqrt().mul(1.0).sum()), engine=engine) as session:
        session.watch("nan", "inf")
        session.run()
        first = session.stopped
        session.watch("nan", "inf")  # it has been told of nothing yet
        session.run()
        second = session.stopped
    assert first is not None and second is not None
    says(" ".join(second.lines), "inf", "2 of 2", "[0]", session.graph.describe(first.task, 2))
    once(snapshot, engine, second)


@both
@pytest.mark.parametrize("level", ["off", "cheap"])
def test_of_tasks_that_nobody_watched_the_trace_knows(engine: Engine, level: str, snapshot: Snapshots) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    loss = captured(lambda: ((leaf * 1).sqrt() * 3).sum())
    with ts.debug(loss, engine=engine, trace=level) as session:  # type: ignore[arg-type]
        session.run_to(session.graph.tasks[0])
        session.watch("nan", "inf")
        session.run()
        assert session.stopped is not None
        told = " ".join(session.stopped.lines)
        once(snapshot, engine, session.stopped)
    assert ("SqrtBackward0 (3rd, " in told) == (level == "cheap")


@both
def test_a_gradient_that_was_given_bad_is_said_to_be(engine: Engine, snapshot: Snapshots) -> None:
    made = torch.ones(2, requires_grad=True).exp()
    with ts.debug(made, torch.tensor([1.0, math.nan]), engine=engine) as session:
        session.watch("nan")
        session.run()
        assert session.stopped is not None
        says("\n".join(session.stopped.lines), "grad_tensors")
        once(snapshot, engine, session.stopped)


@both
def test_a_sum_that_overflows_is_told_from_what_was_summed(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.ones(2, requires_grad=True)

    def make_loss() -> Tensor:
        x = leaf * 1
        return (x * 3e38).sum() * 0.9 + (x * 3e38).sum() * 0.9

    stop = found(engine, make_loss, "inf")
    says(stop.text, "MulBackward0")
    says(stop.lines[-1], "MulBackward0", "hook")
    once(snapshot, engine, stop)


@both
def test_an_overflow_of_16_bits_says_how_large_the_values_were(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.full((1, 3), 100.0, dtype=torch.float16, requires_grad=True)
    weight = torch.full((3, 2), 400.0, dtype=torch.float16)
    stop = found(engine, lambda: ((leaf * 1) @ weight).float().sum() * 300, "inf")
    (told,) = [line for line in stop.lines if "65504" in line]
    says(told, 300, "`mat2`", 400, "float16")
    once(snapshot, engine, stop)


@both
def test_the_maker_of_a_nan_is_told_apart_from_a_task_that_is_named_alike(engine: Engine) -> None:
    logits = torch.randn(3, 6, requires_grad=True)
    stop = found(engine, lambda: entropy(logits) + entropy(logits), "nan")
    (said,) = [line for line in stop.lines if "LogBackward0" in line]
    says(said, line_of(entropy, "torch.log"), "return torch.where(p > 0, p * torch.log(p), p)")
    assert re.search(r"#\d+ LogBackward0", said)


@both
def test_a_row_that_is_all_masked_makes_the_softmax_nan(engine: Engine, snapshot: Snapshots) -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 4, requires_grad=True)
    keep = torch.ones(3, 4, dtype=torch.bool)
    keep[1] = False

    def attention() -> Tensor:
        p = functional.softmax((scores * 1).masked_fill(~keep, -math.inf), -1)
        return (p @ torch.randn(4, 2)).sum()

    stop = found(engine, attention, "nan")
    says(stop.text, "SoftmaxBackward0", "3rd", line_of(attention, "softmax"), "NaN", "4 of 12", "[1, 0]")
    assert any("`result`" in line and "NaN" in line and "4 of 12" in line and "[1, 0]" in line for line in stop.lines)
    once(snapshot, engine, stop)


def test_a_bad_parameter_or_input_is_named(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 1] = math.nan
    inner = nn.Sequential(nn.Linear(2, 2), model)
    stop = found("direct", lambda: inner(torch.ones(1, 2)).nan_to_num().sum(), "nan")
    says("\n".join(stop.lines), "1.weight")
    snapshot("watch", stop)
    data = torch.tensor([1.0, math.inf])
    leaf = torch.ones(2, requires_grad=True)
    stop = found("direct", lambda: ((leaf * 1) * data).nan_to_num(posinf=1.0).sum(), "nan", "inf")
    says("\n".join(stop.lines), "no_grad", "detach")
    snapshot("watch", stop)


@both
def test_what_a_checkpoint_packed_is_not_computed_again_to_be_looked_at(engine: Engine) -> None:
    ran = []

    def region(x: Tensor) -> Tensor:
        ran.append(None)
        return x.sqrt()

    leaf = torch.zeros(2, requires_grad=True)
    stop = found(engine, lambda: checkpoint(region, leaf * 1, use_reentrant=False).sum(), "inf")
    assert "SqrtBackward0" in stop.text and len(ran) == 2
    assert not any("saved" in name for name in stop.tensors)


class Recurrent(nn.Module):
    def __init__(self, growth: float) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.cell.weight.copy_(torch.eye(4) * growth)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(10):
            x = self.cell(x)
        return x.sum()


@both
def test_exploding_gradients_of_an_rnn_stop_at_the_step_at_which_they_do(engine: Engine, snapshot: Snapshots) -> None:
    model = Recurrent(3.0)
    x = torch.full((1, 4), 1e-6, requires_grad=True)  # so that weights' gradients stay small
    stop = found(engine, lambda: model(x), "norm>1000")
    # The loss gives a gradient of norm 2, and each step makes it three times larger: the sixth goes beyond 1000.
    assert 2 * 3**6 > 1000 > 2 * 3**5
    says(stop.text, "norm", 1458)
    says("\n".join(stop.lines), "5th", 10, "cell", "Linear", 486)
    once(snapshot, engine, stop)
    vanishing = Recurrent(0.1).requires_grad_(False)
    stop = found(engine, lambda: vanishing(x), "norm<1e-4")
    says(stop.text, "norm", "2e-05")
    says("\n".join(stop.lines), "6th", 10, "cell", "Linear")


def test_a_call_after_others_of_another_graph_is_told_by_its_place_alone(snapshot: Snapshots) -> None:
    class Judge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 0).sqrt().sum()

    models = nn.Sequential(nn.Linear(2, 2), Judge())

    def loss() -> Tensor:
        models(torch.ones(1, 2)).detach()
        return models(torch.ones(1, 2))

    (line,) = [line for line in str(ts.find_nan(loss, model=models)).splitlines() if "module 1 (Judge)" in line]
    says(line, "2nd")
    snapshot("find_nan", line)


@both
@pytest.mark.parametrize("synchronize", [None, False])
def test_a_module_that_makes_gradients_larger_is_named_with_its_call(
    engine: Engine, synchronize: bool | None, snapshot: Snapshots
) -> None:
    model, x = Recurrent(3.0), torch.ones(1, 4, requires_grad=True)
    stop = found(engine, lambda: model(x * 1), "ratio>2.9", at="cell", synchronize=synchronize)
    says(stop.text, "cell", "Linear", 10, 6, 2, 3)
    assert stopped(engine, lambda: model(x * 1), "ratio>3.1", at="cell") is None
    whole = found(engine, lambda: model(x * 1), "ratio>50000")
    says(whole.text, "Recurrent", f"{2 * 3**10:.4g}", 1)
    if synchronize is None:
        once(snapshot, engine, stop)
        once(snapshot, engine, whole)


def test_ratios_compare_norms_that_hooks_measure_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1))
    norms: dict[str, tuple[float, float]] = {}
    for name, module in model.named_modules():
        module.register_full_backward_hook(
            lambda module, into, out, name=name: norms.__setitem__(name, (float(out[0].norm()), float(into[0].norm())))
        )
    x = torch.randn(3, 4, requires_grad=True)
    model(x * 1).sum().backward()
    for module in model.modules():
        module._backward_hooks.clear()
    with ts.debug(captured(lambda: model(x * 1).sum())) as session:
        session.watch("ratio>0")
        said: list[str] = []
        while session.left:
            session.run()
            if session.stopped is not None:
                said += [session.stopped.text, *session.stopped.lines]
    for name, (out, into) in norms.items():
        if name:
            assert any(f"{name} (" in each and f"{into:.4g}" in each and f"{out:.4g}" in each for each in said)


def test_a_ratio_needs_a_capture(snapshot: Snapshots) -> None:
    with (
        ts.debug(torch.ones(2, requires_grad=True).exp().sum()) as session,
        raises(ValueError, "ratio", "ts.capture()") as raised,
    ):
        session.watch("ratio>10")
    snapshot("watch", raised.value)


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.linear(x) - y).square().mean()


@both
def test_a_broadcast_of_column_and_row_is_a_surprise_and_that_of_a_bias_is_none(
    engine: Engine, snapshot: Snapshots
) -> None:
    model, x = Regression(), torch.randn(5, 3)
    stop = found(engine, lambda: model(x, torch.randn(5)), "shape")
    says(stop.text, "SubBackward0", "3rd", line_of(Regression.forward, "self.linear"), "(5, 5)", "(5, 1)")
    once(snapshot, engine, stop)
    assert stopped(engine, lambda: model(x, torch.randn(5, 1)), "shape") is None
    bias = torch.zeros(3, requires_grad=True)
    assert stopped(engine, lambda: (x * 2 + bias).sum(), "shape") is None
    with warnings.catch_warnings(action="ignore"):
        loss = found(engine, lambda: functional.mse_loss(model.linear(x), torch.randn(5)), "shape")
    assert "ExpandBackward0" in loss.text


class Widening(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.double()


@both
def test_a_wider_gradient_is_an_upcast(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.ones(2, requires_grad=True)
    stop = found(engine, lambda: ((leaf * 1).half() * 2).float().sum(), "upcast")
    says(stop.text, "ToCopyBackward0", "float32", "float16")
    once(snapshot, engine, stop)
    assert stopped(engine, lambda: (leaf * 2).sum(), "upcast") is None


def test_a_cast_that_pytorch_does_silently_is_seen_by_the_direct_engine(snapshot: Snapshots) -> None:
    leaf = torch.ones(2, requires_grad=True)
    stop = found("direct", lambda: Widening.apply(leaf * 1).sum(), "upcast")
    says(stop.text, "WideningBackward", "float64", "float32")
    snapshot("watch", stop)


class OneOfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@both
def test_a_leaf_without_a_gradient_is_told_at_the_end(engine: Engine, snapshot: Snapshots) -> None:
    model = nn.ParameterDict({"used": torch.ones(2), "missed": torch.ones(2), "stale": torch.ones(2)})
    model["stale"].grad = torch.ones(2)  # of an earlier backward

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = model

        def forward(self) -> Tensor:
            sums = OneOfTwo.apply(self.values["used"], self.values["missed"])
            return OneOfTwo.apply(sums, self.values["stale"]).sum()

    both_of = Both()
    stop = found(engine, both_of, "missing")
    says(stop.text, "watchpoint 1", "missing", 2, "values.missed", "values.stale")
    assert len(stop.lines) == 2
    for name in ("values.missed", "values.stale"):
        (line,) = [line for line in stop.lines if name in line]
        says(line, "OneOfTwoBackward")
        says_none_of(line, "find_unused")
    once(snapshot, engine, stop)
    assert model["missed"].grad is None and model["used"].grad is not None
    assert stopped(engine, lambda: model["used"].exp().sum(), "missing") is None
    hooked = model["used"].register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", None))
    assert stopped(engine, lambda: model["used"].exp().sum(), "missing") is None  # an optimizer in the backward
    hooked.remove()


@both
def test_zeros_predicates_and_conditions_together(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.ones(3, requires_grad=True)
    zero = found(engine, lambda: (leaf * 0).sum(), "zero")
    says(zero.text, "MulBackward0", "zero", 3)
    once(snapshot, engine, zero)
    assert stopped(engine, lambda: (leaf * torch.tensor([1.0, -1.0, 0.0])).sum(), "zero") is None  # sums to zero
    between = found(engine, lambda: (leaf * 3 * 5).sum(), "norm>5 and norm<10")
    says(between.text, "norm>5 and norm<10", f"{5 * 3**0.5:.4g}")
    once(snapshot, engine, between)
    assert stopped(engine, lambda: (leaf * 3 * 5).sum(), "norm>9 and norm<10") is None
    seen = found(engine, lambda: (leaf * 3).sum(), "nan", lambda gradient, task: bool((gradient == 3).all()))
    says(seen.text, "MulBackward0", "lambda", "test_watchpoints.py:")
    once(snapshot, engine, seen)


@both
def test_a_predicate_that_raises_stops_the_run_and_says_so(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.ones(3, requires_grad=True)
    loss = (leaf * 2).sum()
    with ts.debug(loss, engine=engine) as session:
        session.watch(lambda gradient, task: 1 / 0)
        session.run()
        assert session.stopped is not None and session.over is None
        says(session.stopped.text, "watchpoint 1", "ZeroDivisionError", "division by zero", "SumBackward0 (1st)")
        once(snapshot, engine, session.stopped)
        while session.left:
            session.run()
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0] * 3


@both
def test_only_the_place_that_is_named_is_watched(engine: Engine) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    stop = found(engine, lambda: model(torch.ones(1, 2)).sum(), "norm>0", at="0")
    says(stop.text, "module 0")
    with raises(ValueError, '"1.2"', "1.1", "1.0"):
        stopped(engine, lambda: model(torch.ones(1, 2)).sum(), "nan", at="1.2")


@pytest.mark.parametrize(
    ("condition", "facts"),
    [
        ("nann", ('"nann"', '"nan"')),
        ("norm>big", ('"norm>big"', '"norm>1e3"')),
        ("loud", ('"loud"', "nan", "inf", "zero", "upcast", "shape", "norm>1e3")),
        ("nan and ratio>2", ('"ratio>2"', '"nan and ratio>2"')),
        ("nan and missing", ('"missing"', '"nan and missing"')),
    ],
    ids=["alike", "a bound", "unlike", "a ratio", "missing"],
)
def test_an_unknown_condition_is_told_with_those_there_are(
    condition: str, facts: tuple[str, ...], snapshot: Snapshots
) -> None:
    with ts.debug(torch.ones(2, requires_grad=True).sum()) as session:
        with raises(ValueError, *facts) as unknown:
            session.watch(condition)
        with raises(ValueError, "watch()", "nan", "inf", "norm>1e3") as nothing:
            session.watch()
        with raises(TypeError, "gradient", "task", "int") as no_condition:
            session.watch(3)  # type: ignore[arg-type]
    for raised in (unknown, nothing, no_condition) if condition == "loud" else (unknown,):
        snapshot("watch", raised.value)


@both
def test_several_watchpoints_at_one_task_are_one_stop(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    with ts.debug(captured(lambda: (leaf * 1).sqrt().sum()), engine=engine) as session:
        session.watch("inf")
        session.watch("norm>10")
        session.run()
        stop = session.stopped
        assert stop is not None and stop.number == 1
        says("\n".join(stop.lines), "watchpoint 2", "norm>10")
        once(snapshot, engine, stop)
        assert [each.hits for each in session.stops] == [1, 1]


def test_without_waiting_a_stop_comes_late_and_says_by_how_much(snapshot: Snapshots) -> None:
    leaf = torch.zeros(2, requires_grad=True)

    def make_loss() -> Tensor:
        x = leaf * 1
        for _ in range(100):
            x = x * 1
        x = x.sqrt()
        return x.sum()

    with ts.debug(captured(make_loss)) as session:
        session.watch("inf", synchronize=False)
        session.run()
        stop = session.stopped
        assert stop is not None and stop.task is not None
        ran = session.order.index(stop.task)
        assert session.graph.tasks[stop.task].short_name == "Sqrt"
        assert stop.since == len(session.order) - 1 - ran > 10
        assert stop.tensors == {}
        says(stop.lines[-1], stop.since, "synchronize=True")
        snapshot("watch", stop.lines[-1].replace(str(stop.since), "N"))
        session.run()  # what was on its way with it is of the same stop
        later = session.stopped
        assert later is None or session.order.index(later.task or 0) > ran + stop.since  # type: ignore[arg-type]


@both
def test_a_late_stop_comes_at_the_end_at_the_latest(engine: Engine) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    stop = found(engine, lambda: (leaf * 1).sqrt().sum(), "nan", "inf", synchronize=False)
    assert "SqrtBackward0" in stop.text and stop.since == 2


@both
def test_a_step_that_gave_a_nan_is_told_without_a_run(engine: Engine) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    with ts.debug((leaf * 1).sqrt().sum(), engine=engine) as session:
        session.watch("inf", synchronize=False)
        session.step()
        assert session.stop_here() is None
        session.step()
        here = session.stop_here()
        assert here is not None and "SqrtBackward0" in here.text and session.stop_here() is here


def test_going_back_takes_back_what_was_found() -> None:
    leaf = torch.zeros(2, requires_grad=True)
    with ts.debug(captured(lambda: (leaf * 1).sqrt().sum()), history=True) as session:
        session.watch("inf")
        session.run()
        assert session.stopped is not None
        session.back()
        assert session.stop_here() is None
        session.run()
        assert session.stopped is not None and session.stops[1].hits == 1


@both
@pytest.mark.parametrize("synchronize", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_watching_changes_no_gradient(engine: Engine, synchronize: bool, seed: int) -> None:
    leaves, loss = random_program(seed)
    expected = gradients_of(leaves, loss.backward)
    leaves, loss = random_program(seed)

    def watched() -> None:
        with ts.debug(loss, engine=engine) as session:
            session.watch("nan", "inf", "zero", "norm>1e3", "upcast", "shape", "missing", synchronize=synchronize)
            while session.left:
                session.run()

    assert_equal(gradients_of(leaves, watched), expected, bitwise=True)


@both
def test_a_graph_of_the_backward_does_not_see_that_it_was_watched(engine: Engine) -> None:
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    with ts.debug((leaf**3).sum(), create_graph=True, engine=engine) as session:
        session.watch("nan", "zero", "norm>1e9")
        session.run()
    assert leaf.grad is not None
    (second,) = torch.autograd.grad(leaf.grad.sum(), leaf)
    assert second.tolist() == [6.0, 12.0]
    leaf.grad = None


@both
def test_a_closed_session_holds_no_node_for_what_it_watched(engine: Engine) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    with ts.debug((leaf * 1).exp().sum(), engine=engine) as session:
        session.watch("nan", synchronize=False)
        session.run()
    watching = session.stops._watching
    assert session.stops._graph.nodes == watching._graph.nodes == () and not watching._late


VALUES = [
    [1.0, 2.0],
    [0.0, 0.0],
    [1.0, -1.0],
    [1.0, math.nan],
    [1.0, math.inf],
    [math.inf, -math.inf],
    [math.nan] * 2,
    [],
]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_both_ways_of_reading_agree_with_torch(values: list[float], dtype: torch.dtype) -> None:
    gradient = torch.tensor(values).to(dtype)
    late = LateReadings()
    came: list[Reading] = []
    with unobserved():
        now = read_now(gradient, ALL)
        late.ask(gradient, ALL, came.append)
        late.look(wait=True)
    norm = float(torch.linalg.vector_norm(gradient.to(torch.complex128 if dtype.is_complex else torch.float64)))
    for read in (now, *came):
        assert read is not None
        assert read.nan == bool(gradient.isnan().any()) and read.inf == bool(gradient.isinf().any())
        assert read.zero == (len(values) > 0 and not gradient.any())
        assert read.norm == pytest.approx(norm, nan_ok=True, rel=1e-6)


@pytest.mark.parametrize(
    "gradient",
    [
        torch.full((100_000,), 6e4, dtype=torch.float16),
        torch.full((100_000,), 3e38),
        torch.tensor([1e300, 1e300, 1e300], dtype=torch.float64) * 1e8,
    ],
)
def test_a_sum_that_overflows_is_no_infinite_gradient(gradient: Tensor) -> None:
    assert not gradient.sum().isfinite()
    with unobserved():
        assert read_now(gradient, frozenset({"finite"})) == FINITE


def test_strange_gradients_are_read_or_left_alone() -> None:
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, math.nan], (4,))
    integers = torch.tensor([3, 4])
    with unobserved():
        assert read_now(sparse, ALL) == Reading(nan=True, norm=math.nan) or read_now(sparse, ALL).nan  # type: ignore[union-attr]
        assert read_now(integers, ALL) == Reading(norm=5.0)
        assert read_now(torch.ones(2, device="meta"), ALL) is None
        assert read_now(torch.ones(2).to(torch.float8_e4m3fn), ALL) == Reading(norm=pytest.approx(2**0.5))


@both
@pytest.mark.parametrize("synchronize", [None, True])
def test_on_an_accelerator_nobody_waits_unless_told_to(
    engine: Engine, synchronize: bool | None, accelerator: torch.device
) -> None:
    leaf = torch.zeros(2, device=accelerator, requires_grad=True)

    def make_loss() -> Tensor:
        x = leaf * 1
        for _ in range(200):
            x = x * 1
        return x.sqrt().sum()

    stop = found(engine, make_loss, "nan", "inf", synchronize=synchronize)
    assert "SqrtBackward0" in stop.text
    assert (stop.since == 0) == (synchronize is True)
    assert any("gradient / (2 * result) = 1 / (2 * 0) = inf" in line for line in stop.lines) == (synchronize is True)


@pytest.mark.gpu
@both
def test_on_cuda_watching_asks_the_device_for_nothing_task_by_task(engine: Engine) -> None:
    leaf = torch.ones(2, device="cuda", requires_grad=True)
    x = leaf * 1
    for _ in range(20):
        x = x * 1
    with ts.debug(x.sum(), engine=engine) as session:
        session.watch("nan", "norm>1e9", "zero")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")  # a copy that waits raises
        try:
            for _ in range(15):
                session.step()
            assert session.stopped is None
        finally:
            torch.cuda.set_sync_debug_mode("default")
        session.run()
        assert session.stopped is None and not session.left


@both
def test_who_steps_to_the_end_is_told_of_missing_gradients_too(engine: Engine) -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with ts.debug(OneOfTwo.apply(x, y).sum(), engine=engine) as session:
        session.watch("missing")
        while session.left:
            assert session.stop_here() is None
            session.step()
        here = session.stop_here()
        assert here is not None
        says(here.text, "watchpoint 1", "missing", "AccumulateGrad")


def halves(*shape: int, value: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, value, dtype=torch.float16))


@both
@pytest.mark.parametrize("at", [None, "weight"])
def test_what_a_leaf_gets_in_sum_is_watched(engine: Engine, at: str | None, snapshot: Snapshots) -> None:
    model = nn.ParameterDict({"weight": halves(3)})

    with ts.capture(model):
        loss = (model["weight"] * 60000.0).float().sum() + (model["weight"] * 60000.0).float().sum()
    with ts.debug(loss, engine=engine) as session:
        session.watch("nan", "inf", at=at)
        session.run()
        stop = session.stopped
        assert stop is not None and stop.task is not None and session.graph.tasks[stop.task].parameter == "weight"
        says(stop.text, "inf", "3 of 3", "[0]")
        assert ("hook" in stop.lines[-1]) == (at is None)
        once(snapshot, engine, stop)
        session.run()
        assert session.stopped is None
    assert model["weight"].grad is not None and model["weight"].grad.isinf().all()


@both
@pytest.mark.parametrize("condition", ["nan", "inf", "norm>1e3", "norm<1e-8", "zero"])
def test_a_condition_may_be_watched_at_a_parameter(engine: Engine, condition: str) -> None:
    factor = {"nan": math.nan, "inf": math.inf, "norm>1e3": 1e4, "norm<1e-8": 1e-9, "zero": 0.0}[condition]
    model = nn.ParameterDict({"weight": nn.Parameter(torch.ones(2)), "bias": nn.Parameter(torch.ones(2))})
    with ts.capture(model):
        loss = (model["weight"] * factor + model["bias"]).sum()
    with ts.debug(loss, engine=engine) as session:
        watchpoint = session.watch(condition, at="grad:weight")
        session.run()
        stop = session.stopped
        assert stop is not None and session.graph.tasks[stop.task].parameter == "weight"
        assert watchpoint.hits == 1


@both
def test_a_bad_gradient_is_told_where_it_was_given_and_not_again_at_the_leaf(engine: Engine) -> None:
    leaf = torch.ones(2, requires_grad=True)

    def make_loss() -> Tensor:
        return (leaf * math.inf).sum() + (leaf * 2).sum()

    with ts.debug(captured(make_loss), engine=engine) as session:
        watchpoint = session.watch("nan", "inf")
        session.run()
        assert session.stopped is not None and "MulBackward0" in session.stopped.text
        session.run()
        assert session.stopped is None and watchpoint.hits == 1


@both
def test_what_hooks_of_a_leaf_make_is_watched(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda gradient: gradient * math.nan)
    stop = found(engine, lambda: (leaf * 2).sum(), "nan")
    says(stop.text, "AccumulateGrad")
    says(stop.lines[-1], "MulBackward0", "hook")
    once(snapshot, engine, stop)


@both
def test_a_predicate_sees_each_gradient_once(engine: Engine) -> None:
    one, two = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    seen: list[str] = []

    def look(gradient: Tensor, task: ts.Task) -> bool:
        seen.append(f"{task.name} {gradient.tolist()}")
        return False

    assert stopped(engine, lambda: (one * 2 + one * 3 + two).sum(), look) is None
    assert sorted(each for each in seen if "Accumulate" in each) == ["torch::autograd::AccumulateGrad [5.0, 5.0]"]


def test_watching_leaves_the_gradient_to_grad_without_a_copy() -> None:
    given: list[int] = []
    leaf = torch.ones(4, requires_grad=True)
    leaf.register_hook(lambda gradient: given.append(gradient.data_ptr()))
    with ts.debug((leaf * 2).sum()) as session:
        session.watch("nan", "norm>1e3")
        session.run()
    assert leaf.grad is not None and given == [leaf.grad.data_ptr()]


@both
def test_both_engines_see_broadcast_gradients_as_they_are_received(engine: Engine) -> None:
    leaf = torch.ones(1, requires_grad=True)
    signs = torch.tensor([1.0, -1.0])
    assert "AddBackward0" in found(engine, lambda: (leaf * 1 + torch.zeros(2)) @ signs, "zero").text
    many = torch.ones(3, requires_grad=True)
    says(found(engine, lambda: (many * 1 + torch.zeros(1000, 3)).sum(), "norm>1000").text, "norm", 1732)
    bias = halves(1)
    stop = found(engine, lambda: ((torch.zeros(4) + bias) * 40000.0).half().float().sum(), "inf")
    assert "AddBackward0" in stop.text or "ToCopyBackward0" in stop.text


def test_an_overflow_on_the_way_is_no_hooks_doing(snapshot: Snapshots) -> None:
    bias, x = halves(1), torch.zeros(4, dtype=torch.float16)
    stop = found("direct", lambda: ((x + bias.exp()) * 40000.0).float().sum(), "inf")
    says(stop.text, "AddBackward0")
    says(stop.lines[-1], 40000, "(4,)", "(1,)", "float16", 65504)
    snapshot("watch", stop)

    class Wide(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.float()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient * 1e6

    half = halves(3)
    stop = found("direct", lambda: Wide.apply(half * 2).sum(), "inf")
    assert "WideBackward" in stop.text
    says(stop.lines[-1], "float32", "float16", 65504)
    snapshot("watch", stop)
    with ts.debug(Wide.apply(half * 2).sum(), trace="cheap") as session:
        session.run_to(0)
        session.watch("inf")
        session.step()
        found_late = session.stop_here()
        assert found_late is not None
        says("\n".join(found_late.lines), "hook")
        snapshot("watch", found_late)


class OnlyTheFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, first: Tensor, second: Tensor) -> Tensor:
        return first * second

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def test_a_leaf_with_one_giver_that_has_nothing_is_not_missing_after_going_back() -> None:
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    with ts.debug((OnlyTheFirst.apply(other * 1, weight) + weight * 3).sum(), history=True) as session:
        session.watch("missing")
        session.run()
        assert session.stopped is None
        names = [session.graph.tasks[task_id].name for task_id in session.order]
        session.back(len(names) - names.index("OnlyTheFirstBackward"))
        session.run()
        assert session.stopped is None
    assert weight.grad is not None and weight.grad.tolist() == [3.0, 3.0]


def test_norms_are_compared_again_after_going_back() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    with ts.capture(model):
        loss = (model(torch.ones(1, 2)) * 1).sum()
    with ts.debug(loss, history=True) as session:
        session.watch("ratio>1e3", at="module:1")
        session.run()
        assert session.stopped is None
        session.back(len(session.order) - 3)
        session.scale(1.0)
        session.run()
        assert session.stopped is None
        session.back(len(session.order))
        session.stops.watch("ratio>0", at="module:1")
        session.run()
        assert session.stopped is not None and "(Linear)" in session.stopped.text


def test_what_has_been_recorded_is_copied_once_for_each_origin() -> None:
    leaf = torch.ones(2, requires_grad=True)
    x = leaf * 1
    for _ in range(30):
        x = x * 1.0
    with ts.debug(x.sum(), trace="cheap") as session:
        session.step()
        session.replace(torch.full((2,), math.nan))
        for _ in range(28):
            session.step()
        session.watch("nan")
        asked: list[object] = []
        bad = session.stops._watching.bad
        trace = bad.trace
        assert trace is not None
        bad.trace = lambda: asked.append(trace()) or asked[-1]  # type: ignore[assignment, func-returns-value, return-value]
        session.step()
        assert session.stop_here() is not None and len(asked) == 1


@both
def test_a_stop_does_not_keep_the_forward_alive(engine: Engine) -> None:
    class Token: ...

    class Holds(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.token = Token()
            tokens.append(weakref.ref(ctx.token))
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    tokens: list[weakref.ref[Token]] = []
    leaf = torch.zeros(2, requires_grad=True)
    stop = found(engine, lambda: Holds.apply(leaf).log().sum(), "inf")
    gc.collect()
    assert "saved self" in stop.tensors and tokens[0]() is None


def test_a_bound_may_be_reached() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert stopped("direct", lambda: (leaf * 0.0).sum(), "norm<0") is None
    says(found("direct", lambda: (leaf * 0.0).sum(), "norm <= 0").text, "norm", 0)
    says(found("direct", lambda: (leaf * 0.0).sum(), "norm<=0").text, "watchpoint 1", "norm<=0")
    assert stopped("direct", lambda: leaf[0] * 1, "norm>1") is None
    says(found("direct", lambda: leaf[0] * 1, "norm>=1").text, "watchpoint 1", "norm>=1")


def test_a_complex_gradient_is_as_wide_as_its_parts() -> None:
    leaf = torch.ones(3, requires_grad=True)
    assert stopped("direct", lambda: torch.fft.fft(leaf * 2).abs().sum(), "upcast") is None
    double = leaf.detach().double().requires_grad_()
    assert found("direct", lambda: torch.fft.fft(double * 2).to(torch.complex64).abs().sum(), "upcast")


@both
def test_an_empty_gradient_is_not_zero(engine: Engine) -> None:
    empty, some = torch.zeros(0, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    assert stopped(engine, lambda: (empty * 2).sum() + (some * 2).sum(), "zero") is None


def test_a_formula_that_does_not_give_the_value_is_not_told(snapshot: Snapshots) -> None:
    large = torch.tensor([1e20, 2e20], requires_grad=True)
    stop = found("direct", lambda: torch.linalg.vector_norm(large * 1.0, ord=3), "nan")
    assert not any("gradient * self / result" in line for line in stop.lines)
    says("\n".join(stop.lines), "`result`", "inf", "`self`", "1e+20")
    snapshot("watch", stop)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_each_formula_gives_what_pytorch_computes(name: str) -> None:
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "LinalgVectorNorm": torch.linalg.vector_norm,
        "Norm": lambda x: x.norm(),
        "Pow": lambda x: x**3,
        "Div": lambda x: x / (x.detach() * 2),
        "Mul": lambda x: x * (x.detach() * 2),
    }
    leaf = torch.tensor([1.5 if name == "Acosh" else 0.4], dtype=torch.float64, requires_grad=True)
    result = calls.get(name) or getattr(torch, name.lower())
    node = result(leaf * 1).grad_fn
    assert node is not None
    if node.name() != f"{name}Backward0":
        pytest.skip(f"this torch computes it with {node.name()}")
    (formula, *_) = FORMULAS[name]
    values: dict[str, object] = {"gradient": 3.0, **saved_numbers(node)}
    values.update((slot.name, slot.tensor.item()) for slot in saved_slots(node) if slot.tensor.numel() == 1)
    given: Any = node(torch.full(result(leaf).shape, 3.0, dtype=torch.float64))
    gradient = given[0] if isinstance(given, tuple) else given
    assert _is_the_value(formula, values, gradient.reshape(()))
    assert not _is_the_value(formula, values, gradient.reshape(()) * 1.01)


def test_a_giver_that_gave_nothing_is_no_unknown(snapshot: Snapshots) -> None:
    leaf, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> None:
            return None

    def make_loss() -> Tensor:
        x = leaf * 1
        x.register_hook(lambda gradient: gradient * math.nan)
        return (Nothing.apply(x) + x * 2).sum() + other.sum()

    stop = found("direct", make_loss, "nan")
    says("\n".join(stop.lines), "NothingBackward", "hook")
    snapshot("watch", stop)


def test_a_pole_is_not_said_to_be_an_overflow(snapshot: Snapshots) -> None:
    leaf = torch.ones(2, requires_grad=True)

    class ByZero(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient / 0.0

    stop = found("direct", lambda: ByZero.apply(leaf * 1).sum(), "inf")
    says_none_of("\n".join(stop.lines), "float32")
    snapshot("watch", stop)


@both
def test_a_nan_is_told_where_it_begins_and_not_at_all_that_follows(engine: Engine) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))
    x = torch.randn(3, 4)
    with ts.capture(model):
        hidden = model[:2](x)
        late = model[2:](hidden)
        loss = (late * torch.inf * 0).sum() + torch.sqrt(hidden[0, 0] * 0)
    with ts.debug(loss, engine=engine) as session:
        watchpoint = session.watch("nan", "inf")
        told = []
        while session.left:
            session.run()
            if session.stopped is not None:
                told.append(session.graph.tasks[session.stopped.task].short_name)
        assert told == ["Sqrt", "Mul"] or told == ["Mul", "Sqrt"]
        assert watchpoint.hits == 2


@both
def test_the_walk_goes_on_to_data_that_was_bad_before_the_forward(engine: Engine, snapshot: Snapshots) -> None:
    data, x = torch.tensor([1.0, math.nan]), torch.ones(2, requires_grad=True)
    stop = found(engine, lambda: (x * data).exp().tanh().nansum(), "nan")
    (went, whose) = stop.lines[-2:]
    says(went, "MulBackward0", "`other`", "NaN", "1 of 2", "[1]")
    says(whose, "no_grad", "detach")
    once(snapshot, engine, stop)
    stop = found(engine, lambda: ((x + data).sin() * (x * 2)).nansum(), "nan")
    says(stop.lines[-1], "AddBackward0")
    once(snapshot, engine, stop)


class Elsewhere(Tensor):
    """Stands for a tensor of a device which the CPU's can't be compared with."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.isclose:
            raise RuntimeError("Expected all tensors to be on the same device")
        found = super().__torch_function__(function, types, args, kwargs or {})
        return found.as_subclass(Tensor) if function is Tensor.cpu else found


def test_a_formula_is_computed_where_its_result_can_be_compared() -> None:
    values = {"gradient": 1.0, "result": 0.0}
    result = torch.tensor(math.inf).as_subclass(Elsewhere)
    assert _is_the_value("gradient / (2 * result)", values, result)
    with torch.device("meta"):  # a default device
        assert _is_the_value("gradient / (2 * result)", values, torch.tensor(math.inf, device="cpu"))


def test_where_no_capture_saw_the_forward_the_first_stop_says_once_what_would_name_the_line(
    snapshot: Snapshots,
) -> None:
    def stops_of(loss: Tensor) -> list[str]:
        with ts.debug(loss) as session:
            session.watch("norm > 0")
            said = []
            while session.current is not None:
                session.run()
                said.append(str(session.stopped))
            return said

    leaf = torch.ones(2, requires_grad=True)
    first, *others = stops_of((leaf.exp() * 2).sum())
    says(first, "ts.capture()")
    snapshot("watch", first)
    assert others and not any("ts.capture" in each for each in others)
    seen = captured(lambda: (leaf.exp() * 2).sum())
    assert not any("ts.capture" in each for each in stops_of(seen))


@pytest.mark.parametrize("engine", ["direct", "native"])
def test_a_parameter_outside_of_the_graph_is_missing_under_a_capture_of_the_model(engine: str) -> None:
    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Half()
    with ts.capture(model):
        loss = model(torch.ones(2, 3)).sum()
    with ts.debug(loss, engine=engine) as session:  # type: ignore[arg-type]
        session.watch("missing")
        session.run()
        assert session.stopped is not None and "unused.weight" in str(session.stopped)
        assert "used.bias" not in str(session.stopped).replace("unused", "")


@both
def test_a_nan_from_an_infinite_gradient_names_the_remedy_of_its_origin(engine: Engine) -> None:
    scores = torch.tensor([0.0, 200.0], requires_grad=True)
    stop = stopped(engine, lambda: torch.softmax(scores * 1, -1).log().sum(), "nan")
    assert stop is not None and stop.cause is None, "SoftmaxBackward0 only multiplies"
    says(stop.text, "SoftmaxBackward0", "NaN")
    origin = next(each for each in stop.lines if "LogBackward0" in each)
    says(origin, "infinite at 0", "x.clamp(min=eps).log()")


@both
def test_a_saved_infinity_names_the_remedy_of_the_forwards_operation_that_made_it(engine: Engine) -> None:
    weights = torch.tensor([0.0, 1.0], requires_grad=True)

    def guarded_too_late() -> Tensor:
        p = weights * 1
        return torch.where(p > 0, p * p.log(), 0.0).sum()

    stop = stopped(engine, guarded_too_late, "nan")
    assert stop is not None
    says(" ".join(stop.lines), "`other`", "-inf", "LogBackward0", "x.clamp(min=eps).log()")
