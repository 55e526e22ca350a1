from __future__ import annotations

import dataclasses
import gc
import re
import sys
import weakref
from collections.abc import Callable
from itertools import count
from typing import ClassVar
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.api.profile import profile
from tapescope.engine.execution.accumulation_rule import Accumulation
from tapescope.engine.memory.baseline import Baseline
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.estimates import Estimate
from tapescope.engine.planning.policies import POLICIES
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.studies.compare import compare
from tapescope.engine.studies.comparison import Comparison
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text.sizes_and_counts import nth, size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..backward_programs import OnCtx
from ..profiled import profiled
from ..sizes import built


def compared(name: str) -> Comparison:
    return compare(workload(name).build()[1])


@pytest.fixture(scope="module")
def linear50() -> Comparison:
    return compared("linear50")


def small_model() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(8, 4)
    return model, lambda: model(x).sum()


@pytest.mark.parametrize("name", ["linear50", "ensemble", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_the_peaks_are_those_of_torchs_own_profiler(name: str) -> None:
    model, make_loss = built(name)
    comparison = compare(make_loss)
    assert [row.policy for row in comparison.rows] == ["bfs", "dfs", "heap"]
    for row in comparison.rows:
        model.zero_grad()
        expected = profiled(make_loss, lambda graph, policy=row.policy: schedule(graph, policy))
        assert list(row.timeline.order) == expected.order
        assert row.peak_bytes == expected.peak


@pytest.mark.parametrize("name", ["linear50", "ensemble", "lstm_lm", "recommender"])
def test_each_policy_is_predicted_to_the_byte_from_anothers_run(name: str) -> None:
    comparison = compared(name)
    assert [row.calibrated_by for row in comparison.rows] == ["dfs", "bfs", "bfs"]
    for row in comparison.rows:
        assert row.predicted is not None and row.predicted.basis == "calibrated"
        assert row.predicted.order == row.timeline.order
        assert row.predicted_bytes == row.peak_bytes


def test_the_prediction_before_any_backward_is_near(linear50: Comparison) -> None:
    for row in linear50.rows:
        assert row.dry_run_bytes == pytest.approx(row.peak_bytes, rel=0.01)


def test_one_policy_alone_has_nothing_to_be_predicted_from() -> None:
    comparison = compare(small_model()[1], ["heap"])
    (row,) = comparison.rows
    assert row.predicted is None and row.calibrated_by is None
    assert comparison.sentences == ()
    assert "–" in comparison.cells[1]


def test_the_words_say_who_needs_how_much_and_where_the_orders_part(linear50: Comparison, snapshot: Snapshots) -> None:
    first, second = linear50.sentences
    says(first, "bfs", "51.0 MiB", 17.0, "dfs", "3.0 MiB")
    parted = linear50.first_divergence("bfs", "dfs")
    assert parted is not None and str(parted) == second
    orders = [linear50[policy].timeline.order for policy in ("bfs", "dfs")]
    assert orders[0][: parted.place] == orders[1][: parted.place]
    assert parted.first is linear50.graph.tasks[orders[0][parted.place]]
    assert parted.second is linear50.graph.tasks[orders[1][parted.place]]
    assert parted.first != parted.second
    says(second, "bfs", "dfs", parted.place, "AddmmBackward0 (linear, ", nth(orders[1].index(parted.first.id) + 1))
    snapshot("compare", re.sub(r"\.py:\d+", ".py:LINE", f"{first}\n{second}"))
    report = str(linear50.peak("bfs"))
    assert "heap" in report or "dfs" in report


def test_a_chain_leaves_nothing_to_choose(snapshot: Snapshots) -> None:
    x = torch.ones(1000, requires_grad=True)
    comparison = compare(lambda: x.exp().tanh().sum())
    assert comparison.first_divergence("bfs", "heap") is None
    (said,) = comparison.sentences
    snapshot("compare", said)


def test_a_policy_of_ones_own_is_compared_by_its_name() -> None:
    def leaves_last(ready, state):
        return min(ready, key=lambda task: (task.is_leaf, task.id))

    comparison = compare(small_model()[1], ["heap", leaves_last])
    assert list(comparison["leaves_last"].timeline.order) == schedule(comparison.graph, leaves_last)
    assert comparison["leaves_last"].predicted_bytes == comparison["leaves_last"].peak_bytes


def test_the_table_is_text_rows_and_a_data_frame(linear50: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=140)
    with console.capture() as capture:
        console.print(linear50)
    for text in (capture.get(), str(linear50)):
        lines = text.splitlines()
        assert lines[0].split()[:3] == ["policy", "peak", "predicted"]
        first = next(line for line in lines if line.startswith("bfs"))
        assert first.split()[:4] == ["bfs", "51.0", "MiB", "exact"]
    says(repr(linear50), "Comparison", 104, "bfs 51.0 MiB", "dfs 3.0 MiB", "heap 3.0 MiB")
    frame = pd.DataFrame(linear50.records())
    assert frame["peak_bytes"].tolist() == [row.peak_bytes for row in linear50.rows]
    assert frame["longest_queue"].tolist() == [51, 50, 50]
    monkeypatch.setitem(sys.modules, "rich.table", None)
    assert "51.0 MiB" in str(linear50)


def test_gradients_are_left_as_they_were() -> None:
    model, make_loss = small_model()
    first, *others = model.parameters()
    before = first.grad = torch.full_like(first, 3.0)
    compare(make_loss)
    assert first.grad is before
    assert torch.equal(before, torch.full_like(first, 3.0))
    assert all(parameter.grad is None for parameter in others)


def test_each_run_finds_the_gradients_that_were_there_and_adds_to_them() -> None:
    model, make_loss = small_model()
    make_loss().backward()
    comparison = compare(make_loss)
    assert {row.timeline.end_bytes for row in comparison.rows} == {4}, "the loss alone is new"
    model.zero_grad()
    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert {row.timeline.end_bytes for row in compare(make_loss).rows} == {4 + parameters}


def test_random_numbers_are_the_same_in_each_run_and_the_callers_stay() -> None:
    x = torch.ones(100, requires_grad=True)
    seen = Mock()  # what is appended to a list is taken out again

    def make_loss() -> Tensor:
        dropped = nn.functional.dropout(x)
        seen(dropped.detach())
        return dropped.sum()

    torch.manual_seed(5)
    before = torch.get_rng_state()
    compare(make_loss)
    assert torch.equal(torch.get_rng_state(), before)
    first, *others = [call.args[0] for call in seen.call_args_list]
    assert len(others) == 13 and all(torch.equal(each, first) for each in others)


def test_another_graph_each_time_is_refused_and_gradients_are_left(snapshot: Snapshots) -> None:
    x = torch.ones(4, requires_grad=True)
    calls = count()

    def longer() -> Tensor:
        y = x
        for _ in range(next(calls)):
            y = y * 2
        return y.sum()

    with raises(ValueError, "make_loss", 3, 4, "bfs") as raised:
        compare(longer)
    snapshot("compare", raised.value)
    assert x.grad is None

    def changing() -> Tensor:
        return (x.exp() if next(calls) % 2 else x.tanh()).sum()

    line = changing.__code__.co_firstlineno + 1
    with raises(ValueError, "make_loss", f"test_compare.py:{line}") as raised:
        compare(changing)
    assert "ExpBackward0" in str(raised.value) or "TanhBackward0" in str(raised.value)
    assert x.grad is None


def test_what_cannot_be_compared_is_said(snapshot: Snapshots) -> None:
    x = torch.ones(4, requires_grad=True)
    with raises(TypeError, "make_loss", "Tensor") as no_function:
        compare(x.sum())  # type: ignore[arg-type]
    with raises(ValueError, "'lifo'", "bfs, dfs, heap"):
        compare(lambda: x.sum(), ["lifo"])
    with raises(ValueError, "bfs, bfs"):
        compare(lambda: x.sum(), ["bfs", "bfs"])
    with raises(ValueError, "<lambda>, <lambda>", "__name__", "`def`") as same_name:
        compare(lambda: x.sum(), [lambda ready, state: ready[0], lambda ready, state: ready[-1]])
    with raises(ValueError) as no_policy:
        compare(lambda: x.sum(), [])
    with raises(TypeError, "policies", "Policy", None) as no_list:
        compare(lambda: x.sum(), None)  # type: ignore[arg-type]
    with raises(ValueError, "'lpmf'", "heap") as not_compared:
        compare(lambda: x.sum(), ["heap"])["lpmf"]
    with pytest.raises(ZeroDivisionError):
        compare(lambda: 1 / 0)
    for error in (no_function, same_name, no_policy, no_list, not_compared):
        snapshot("compare", error.value)


@pytest.mark.parametrize(
    ("made", "error", "fact"),
    [
        (None, TypeError, "None"),
        (3, TypeError, "int"),
        ((torch.ones(1), nn.Linear(1, 1)), TypeError, "(Tensor, Linear)"),
        (torch.ones(3, 4, requires_grad=True), ValueError, "3×4"),
    ],
)
def test_what_make_loss_returns_is_checked_by_all_who_call_it(
    made: object, error: type[Exception], fact: str, snapshot: Snapshots
) -> None:
    for caller in (compare, profile):
        with raises(error, "make_loss()", fact) as raised:
            caller(lambda: made)  # type: ignore[arg-type, return-value]
    if not isinstance(made, int):
        snapshot("compare", raised.value)


def test_one_policy_needs_no_list() -> None:
    for policies in ("bfs", POLICIES["bfs"], lambda ready, state: ready[0]):
        (row,) = compare(small_model()[1], policies, repetitions=1).rows
        assert row.policy in ("bfs", "<lambda>")


class Followed(OnCtx):
    """A Function whose saved tensors can be observed as long as they are kept."""

    seen: ClassVar[Mock] = Mock()  # what is appended to a list is taken out again

    @staticmethod
    def forward(ctx, x):
        result = OnCtx.forward(ctx, x)
        Followed.seen(weakref.ref(ctx.doubled))
        return result


def test_a_comparison_keeps_no_node_and_so_nothing_that_these_keep() -> None:
    x = torch.randn(100, requires_grad=True)
    alive = Mock()

    def still_there() -> list[Tensor]:
        return [found for call in Followed.seen.call_args_list if (found := call.args[0]()) is not None]

    def make_loss() -> Tensor:
        gc.collect()
        alive(len(still_there()))
        return Followed.apply(x.exp())

    comparison = compare(make_loss, repetitions=1)
    gc.collect()
    assert Followed.seen.call_count == 8 and not still_there()
    assert max(call.args[0] for call in alive.call_args_list) <= 1
    assert comparison.graph.nodes == () and not any(row.timeline.graph.nodes for row in comparison.rows)
    for row in comparison.rows:
        assert row.predicted is not None and row.predicted_bytes == row.peak_bytes
        says(comparison.peak(row.policy), "exp")
        assert comparison.peak(row.policy).records()


def test_the_forward_is_told_where_its_peak_is_higher(snapshot: Snapshots) -> None:
    frozen = nn.Sequential(nn.Linear(64, 8192), nn.ReLU(), nn.Linear(8192, 64)).requires_grad_(False)
    last, x = nn.Linear(64, 64), torch.randn(128, 64)
    comparison = compare(lambda: last(frozen(x)).sum(), repetitions=1)
    forward = comparison.rows[0].timeline.forward_peak_bytes
    assert forward is not None and forward > comparison.highest.peak_bytes
    (said,) = [sentence for sentence in comparison.sentences if size_text(forward) in sentence]
    says_none_of(said, "bfs", "dfs", "heap")
    snapshot("compare", said)
    assert comparison.records()[0]["forward_peak_bytes"] == forward


def test_what_was_there_before_is_in_each_report() -> None:
    model, make_loss = small_model()
    make_loss().backward()
    comparison = compare(make_loss, repetitions=1)
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert comparison.before == Baseline({"parameters": size, "gradients": size, "batch": 8 * 4 * 4})
    report = comparison.peak("bfs")
    assert comparison.before.sentence(report.nbytes) in report.answer


def test_a_dry_run_that_is_off_is_explained(snapshot: Snapshots) -> None:
    comparison = compare(small_model()[1], repetitions=1)
    silent = [dataclasses.replace(row, dry_run_bytes=None) for row in comparison.rows]
    assert comparison.sentences == Comparison(comparison.graph, tuple(silent)).sentences
    first, *others = comparison.rows
    off = dataclasses.replace(first, dry_run_bytes=first.peak_bytes * 9 // 10, dry_run_estimates=())
    missed = size_text(first.peak_bytes - first.peak_bytes * 9 // 10)
    said = Comparison(comparison.graph, (off, *others)).sentences
    assert len(said) == len(comparison.sentences) + 1
    says(said[-1], f"{100 - 100 * (first.peak_bytes * 9 // 10) / first.peak_bytes:.1f} %", "bfs", missed)
    snapshot("compare", said[-1])
    start = first.timeline.start_bytes - first.peak_bytes + off.dry_run_bytes
    left = dataclasses.replace(off, dry_run_start_bytes=start)
    snapshot("compare", Comparison(comparison.graph, (left, *others)).sentences[-1])
    known = dataclasses.replace(off, dry_run_estimates=(Estimate("hooks were not run", "at least"),))
    why = Comparison(comparison.graph, (known, *others)).sentences[-1]
    says(why, "bfs", *known.dry_run_estimates)
    snapshot("compare", why)


def test_times_are_those_of_backwards_that_nobody_recorded(snapshot: Snapshots) -> None:
    x = torch.randn(5, requires_grad=True)
    forwards = Mock()

    def make_loss() -> Tensor:
        forwards(torch.autograd._profiler_enabled())
        return x.exp().sum()

    found = compare(make_loss, ["bfs", "heap"], repetitions=5)
    assert [call.args[0] for call in forwards.call_args_list[-10:]] == [False] * 10
    noisy = Comparison(found.graph, (dataclasses.replace(found.rows[0], times_ns=(10**6, 2 * 10**6, 3 * 10**6)),))
    even = Comparison(found.graph, (dataclasses.replace(found.rows[0], times_ns=(10**6,) * 3),))
    assert noisy.cells[1][-1] == "2.0 ms ± 25 %" and even.cells[1][-1] == "1.0 ms"
    for row in found.rows:
        assert len(row.times_ns) == 5
        assert min(row.times_ns) <= row.elapsed_ns <= max(row.times_ns)
    with raises(ValueError, "repetitions", 1, 0) as raised:
        compare(make_loss, ["bfs"], repetitions=0)
    snapshot("compare", raised.value)


HEAP_LIST = Accumulation("list").of("heap")


def fan_out() -> Tensor:
    x = torch.ones(500, requires_grad=True)
    y = x * 1
    return torch.stack([(y * (use + 1)).sum() for use in range(6)]).sum()


def test_with_the_graph_kept_each_policy_has_one_more_row_and_an_average() -> None:
    _, make_loss = workload("fan_out").build(width=32, uses=20)
    found = compare(make_loss, ["heap", "bfs"], graph=["freed", "kept"], repetitions=1)
    assert [row.policy for row in found.rows] == ["heap", "heap, graph kept", "bfs", "bfs, graph kept"]
    for policy in ("heap", "bfs"):
        kept = profile(make_loss, policy, retain_graph=True)
        assert found[f"{policy}, graph kept"].peak_bytes == kept.peak_bytes
        assert found[f"{policy}, graph kept"].timeline.end_bytes > found[policy].timeline.end_bytes
    assert {row.predicted_bytes - row.peak_bytes for row in found.rows} == {0}
    assert {row.calibrated_by: row.predicted.estimates for row in found.rows} == {"bfs": (), "heap": ()}
    assert found.cells[0][:3] == ["policy", "peak", "average"]
    assert found.records()[1]["average_bytes"] == found["heap, graph kept"].timeline.average_bytes
    assert "average" not in compare(make_loss, "heap", repetitions=1).cells[0]


def test_a_tape_has_no_graph_rule() -> None:
    pytest.importorskip("autograd")
    fun, args = workload("fan_out").in_numpy(width=8, uses=3)
    with raises(ValueError, "graph", "tape"):
        compare(lambda: ts.hips.tape(fun, *args), "dfs", graph="kept")


def test_each_policy_under_each_rule_of_accumulation_is_a_row():
    found = compare(fan_out, ["heap", "bfs"], accumulate=["inplace", "list"], release=["eager", "never"], repetitions=1)
    rules = [Accumulation(), Accumulation("list"), Accumulation(release="never"), Accumulation("list", "never")]
    assert [row.policy for row in found.rows] == [rule.of(policy) for policy in ("heap", "bfs") for rule in rules]
    for row in found.rows:
        assert row.predicted_bytes == row.peak_bytes
        assert row.timeline.accumulation.of(row.policy.partition(",")[0]) == row.policy
        assert row.dry_run_bytes is not None
        assert len(row.times_ns) == 1
    assert found[HEAP_LIST].peak_bytes >= found["heap"].peak_bytes + 4 * 2000
    assert found["heap"].timeline.order == found[HEAP_LIST].timeline.order
    says(found, rules[-1].of("heap"))
    timeline = found[HEAP_LIST].timeline
    listed = timeline.category_levels[Category.LISTED][timeline.peak_place]
    assert listed
    says(found.peak(HEAP_LIST), size_text(listed))


def test_one_other_rule_alone_is_compared_by_policy():
    found = compare(fan_out, "heap", accumulate="list", repetitions=1)
    assert [row.policy for row in found.rows] == [HEAP_LIST]


def test_rules_that_can_not_be_compared_are_sentences(snapshot: Snapshots):
    with raises(ValueError, "accumulate", "'lists'") as unknown:
        compare(fan_out, accumulate=["inplace", "lists"])
    with raises(ValueError, "accumulate=list, list", "release=eager") as twice:
        compare(fan_out, accumulate=["list", "list"])
    with raises(ValueError, "accumulate", "release") as empty:
        compare(fan_out, release=[])
    with raises(NotImplementedError) as queues:
        compare(fan_out, accumulate="list", queues="per device")
    for error in (unknown, twice, empty, queues):
        snapshot("compare", error.value)
