"""Memory of the direct engine, measured: PyTorch's to the byte under its own rule, and under others as predicted."""

from __future__ import annotations

import json
import random
from itertools import product

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.timeline import Keeper, Timeline
from tapescope.inspector.graph.kinds import Kind
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..memory_programs import Program
from ..sizes import built
from .test_predictions import deltas_by_task

SMALL = ("fan_out", "rnn", "unet", "recommender")
RULES = list(product(("inplace", "out_of_place", "list"), ("eager", "never")))


def assert_same(measured: Timeline, other: Timeline) -> None:
    assert other.order == measured.order
    assert other.start_bytes == measured.start_bytes
    assert deltas_by_task(other) == deltas_by_task(measured)
    assert other.end_bytes == measured.end_bytes
    assert (other.peak_bytes, other.peak_place) == (measured.peak_bytes, measured.peak_place)


def lists(timeline: Timeline) -> list[tuple[int, int, int]]:
    """Return the gradients waiting in lists: since which place, and for which input of which task."""
    return [(place, task, given) for place, _, task, given in timeline.listed]


@pytest.mark.parametrize("name", SMALL)
def test_under_pytorchs_rule_every_event_is_that_of_pytorchs_engine(name):
    model, make_loss = built(name)
    for policy in ("heap", "bfs"):
        runs = []
        for engine in ("native", "direct"):
            model.zero_grad()
            runs.append(ts.profile(make_loss, policy, engine=engine))
        native, direct = (run.timeline for run in runs)
        assert_same(native, direct)
        assert direct.category_levels == native.category_levels
        assert runs[1].engine == "direct"


@pytest.mark.parametrize("name", SMALL)
def test_every_event_of_every_rule_is_predicted_from_a_run_of_pytorchs_engine(name):
    model, make_loss = built(name)
    footprints = ts.profile(make_loss).footprints
    for (accumulate, release), policy in zip(RULES, ["heap", "bfs", "dfs"] * 2, strict=True):
        model.zero_grad()
        measured = ts.profile(make_loss, policy, engine="direct", accumulate=accumulate, release=release)
        predicted = ts.simulate(measured.graph, measured.order, footprints, accumulate=accumulate, release=release)
        assert_same(measured.timeline, predicted)
        assert predicted.category_levels == measured.timeline.category_levels
        assert lists(measured.timeline) == lists(predicted)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(RULES))
@example(231897, True, True, True, ("inplace", "eager"))  # a gradient with other strides for an existing .grad
def test_random_programs_take_what_they_take_on_pytorchs_engine_and_what_is_predicted(seed, graded, kept, hooked, rule):
    program = Program(seed, graded=graded, kept=kept, hooked=hooked)
    program.reset()
    native = ts.profile(program.make_loss)
    # Tensors that a node hides from Python are freed later if anything has hooks: a limitation of the direct engine.
    assume(all(task.kind is not Kind.COPY_SLICES for task in native.graph.tasks))
    program.reset()
    assert_same(native.timeline, ts.profile(program.make_loss, engine="direct").timeline)
    accumulate, release = rule
    chance = random.Random(seed)
    program.reset()
    measured = ts.profile(
        program.make_loss,
        lambda ready, state: chance.choice(ready),
        engine="direct",
        accumulate=accumulate,
        release=release,
    )
    predicted = ts.simulate(measured.graph, measured.order, native.footprints, accumulate=accumulate, release=release)
    if not predicted.estimates:
        assert_same(measured.timeline, predicted)


def test_a_backward_whose_forward_was_not_seen_is_measured_alike():
    timelines = []
    for engine in ("native", "direct"):
        _, make_loss = built("gpt2")
        run = ts.backward(make_loss(), engine=engine, memory=True)
        timelines.append(run.timeline)
        assert not run.footprints.limits
    assert_same(*timelines)
    assert timelines[1].before


def test_another_rules_footprints_predict_pytorchs():
    model, make_loss = built("recommender")
    footprints = ts.profile(make_loss, engine="direct", accumulate="list", release="never").footprints
    assert not footprints.limits
    model.zero_grad()
    measured = ts.profile(make_loss)
    assert_same(measured.timeline, ts.simulate(measured.graph, "heap", footprints))


def fan_out(uses: int) -> Tensor:
    x = torch.ones(1000, requires_grad=True)
    y = x * 1
    return torch.stack([(y * (use + 1)).sum() for use in range(uses)]).sum()


@pytest.mark.parametrize("kind", ["measured", "predicted"])
def test_what_waits_in_a_list_is_called_so_and_what_is_kept_too(kind):
    run = ts.profile(lambda: fan_out(5), engine="direct", accumulate="list", release="never")
    timeline = run.timeline
    if kind == "predicted":
        timeline = ts.simulate(run.graph, run.order, run.footprints, accumulate="list", release="never")
    (summed,) = (task.id for task in run.graph.tasks if len(run.graph.in_edges[task.id]) == 5)
    listed = [timeline.storage(number) for _, number, task, _ in timeline.listed if task == summed]
    assert [storage.nbytes for storage in listed] == [4000] * 5
    for storage in listed:
        assert storage.kept_by[0] == Keeper("list", summed, "0")
        assert Keeper("consumed", summed) in storage.kept_by
        before, after = timeline.starts[timeline.places[summed]], timeline.starts[timeline.places[summed] + 1]
        assert timeline.category_at(storage.number, before) is Category.LISTED
        assert timeline.category_at(storage.number, after) is Category.CONSUMED
        assert storage.died == len(timeline.order)
    assert timeline.category_levels[Category.LISTED][timeline.places[summed]] == 5 * 4000


def test_out_of_place_a_sum_and_what_it_adds_to_are_there_together():
    peaks = {
        accumulate: ts.profile(lambda: fan_out(6), engine="direct", accumulate=accumulate).peak_bytes
        for accumulate in ("inplace", "out_of_place", "list")
    }
    assert peaks["out_of_place"] - peaks["inplace"] >= 3900
    assert peaks["list"] - peaks["inplace"] >= 4 * 4000


def test_a_trace_is_recorded_in_the_same_run():
    run = ts.profile(lambda: fan_out(3), engine="direct", accumulate="list", trace="off")
    assert run.trace.order == run.order
    assert run.timeline.order == run.order


def test_pytorchs_engine_has_one_rule():
    with raises(NotImplementedError, "list", 'engine="direct"'):
        ts.profile(lambda: fan_out(3), accumulate="list")
    with raises(ValueError, "release", "'late'", "'eager'", "'never'"):
        ts.simulate(ts.graph(fan_out(3)), release="late")


def test_a_backward_that_raises_leaves_nothing_measuring():
    x = torch.ones(3, requires_grad=True)

    def stop(gradient: Tensor) -> None:
        raise KeyError("no")

    def make_loss() -> Tensor:
        y = x * 2
        y.register_hook(stop)
        return y.sum()

    with pytest.raises(KeyError):
        ts.profile(make_loss, engine="direct")
    assert ts.profile(lambda: fan_out(3), engine="direct").peak_bytes


def test_the_peak_says_what_waits_in_lists_and_what_is_never_let_go(snapshot: Snapshots):
    run = ts.profile(lambda: fan_out(5), engine="direct", accumulate="list", release="never", policy="bfs")
    report = run.peak()
    listed = next(group for group in report.groups if group.category is Category.LISTED)
    says(listed.kept_by, 5, "MulBackward0")
    says(report.answer[1], size_text(listed.nbytes))
    snapshot("peak", report.answer[1])
    (hint,) = (hint for hint in report.hints if hint.fact == listed.kept_by)
    assert 'accumulate="inplace"' in hint.advice
    run = ts.profile(lambda: chain(6), engine="direct", release="never")
    report = run.peak()
    consumed = next(group for group in report.groups if group.category is Category.CONSUMED)
    says(consumed.kept_by, 4, "MulBackward0")
    says_none_of(consumed.kept_by, "backward()")
    says(consumed.freed_by, "backward()")
    snapshot("peak", f"{consumed.kept_by}\n{consumed.freed_by}")
    assert any('release="eager"' in hint.advice for hint in report.hints)


def chain(length: int) -> Tensor:
    x = torch.ones(1000, requires_grad=True)
    for _ in range(length):
        x = x * 2
    return x.sum()


def test_a_file_keeps_the_rule_and_the_lists(tmp_path):
    run = ts.profile(lambda: fan_out(4), engine="direct", accumulate="list", release="never")
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert loaded.accumulation == loaded.timeline.accumulation == ts.types.Accumulation("list", "never")
    assert list(loaded.timeline.listed) == list(run.timeline.listed)
    assert loaded.timeline.category_levels == run.timeline.category_levels
    assert str(loaded.peak()).splitlines()[0] == str(run.peak()).splitlines()[0]
    assert [loaded.timeline.storage(number).kept_by for number in range(len(run.timeline))] == [
        storage.kept_by for storage in run.timeline
    ]
    plain = json.loads(ts.profile(lambda: fan_out(4)).save(tmp_path / "plain.json").read_text())
    assert not {"accumulate", "release", "listed_place"} & {*plain, *plain["timeline"]}, "as in older files"


@pytest.mark.parametrize(
    ("name", "change", "facts"),
    [
        ("listed_task", lambda column: [999, *column[1:]], ["timeline.listed_task"]),
        ("listed_input", lambda column: [5, *column[1:]], ["timeline.listed_input", 5, 1]),
        ("listed_place", lambda column: column[:-1], ["timeline.listed_storage"]),
        ("accumulate", lambda rule: "piles", ["timeline.accumulate", "inplace", "out_of_place", "list"]),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, name, change, facts, snapshot: Snapshots):
    path = ts.profile(lambda: fan_out(4), engine="direct", accumulate="list").save(tmp_path / "run.json")
    content = json.loads(path.read_text())
    content["timeline"][name] = change(content["timeline"][name])
    path.write_text(json.dumps(content))
    with raises(ValueError, *facts) as raised:
        ts.load(path)
    if name == "listed_input":
        snapshot("load", raised.value)
