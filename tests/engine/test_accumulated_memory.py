"""Memory of the direct engine, measured: PyTorch's to the byte under its own rule, and under others as predicted."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tapehead as th
from tapehead.engine.timeline import Category, Keeper, Timeline
from tapehead.inspector.kinds import Kind

from .memory_programs import Program
from .sizes import built
from .test_prediction import deltas_by_task

SMALL = ("fan_out", "rnn", "unet", "recommender", "linear50")
RULES = list(product(("inplace", "out_of_place", "list"), ("eager", "never")))


def assert_same(measured: Timeline, other: Timeline) -> None:
    assert other.order == measured.order
    assert other.start_bytes == measured.start_bytes
    assert deltas_by_task(other) == deltas_by_task(measured)
    assert other.end_bytes == measured.end_bytes
    assert (other.peak_bytes, other.peak_place) == (measured.peak_bytes, measured.peak_place)


def lists(timeline: Timeline) -> list[tuple[int, int, int]]:
    """What waits in lists: from which place on, for which input of which task."""
    return [(place, task, given) for place, _, task, given in timeline.listed]


@pytest.mark.parametrize("name", SMALL)
def test_under_pytorchs_rule_every_event_is_that_of_pytorchs_engine(name):
    model, make_loss = built(name)
    for policy in ("heap", "bfs"):
        runs = []
        for engine in ("native", "direct"):
            model.zero_grad()
            runs.append(th.profile(make_loss, policy, engine=engine))
        native, direct = (run.timeline for run in runs)
        assert_same(native, direct)
        assert direct.category_levels == native.category_levels
        assert runs[1].engine == "direct"


@pytest.mark.parametrize("name", SMALL)
def test_every_event_of_every_rule_is_predicted_from_a_run_of_pytorchs_engine(name):
    model, make_loss = built(name)
    footprints = th.profile(make_loss).footprints
    for (accumulate, release), policy in zip(RULES, ["heap", "bfs", "dfs"] * 2, strict=True):
        model.zero_grad()
        measured = th.profile(make_loss, policy, engine="direct", accumulate=accumulate, release=release)
        predicted = th.simulate(measured.graph, measured.order, footprints, accumulate=accumulate, release=release)
        assert_same(measured.timeline, predicted)
        assert predicted.category_levels == measured.timeline.category_levels
        assert lists(measured.timeline) == lists(predicted)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(RULES))
def test_random_programs_take_what_they_take_on_pytorchs_engine_and_what_is_predicted(seed, graded, kept, hooked, rule):
    program = Program(seed, graded=graded, kept=kept, hooked=hooked)
    program.reset()
    native = th.profile(program.make_loss)
    # What a node hides from Python is freed later where anything has hooks: a limitation of the direct engine.
    assume(all(task.kind is not Kind.COPY_SLICES for task in native.graph.tasks))
    program.reset()
    assert_same(native.timeline, th.profile(program.make_loss, engine="direct").timeline)
    accumulate, release = rule
    chance = random.Random(seed)
    program.reset()
    measured = th.profile(
        program.make_loss,
        lambda ready, state: chance.choice(ready),
        engine="direct",
        accumulate=accumulate,
        release=release,
    )
    predicted = th.simulate(measured.graph, measured.order, native.footprints, accumulate=accumulate, release=release)
    if not predicted.estimates:
        assert_same(measured.timeline, predicted)


def test_a_backward_whose_forward_was_not_seen_is_measured_alike():
    timelines = []
    for engine in ("native", "direct"):
        _, make_loss = built("gpt2")
        run = th.backward(make_loss(), engine=engine, memory=True)
        timelines.append(run.timeline)
        assert not run.footprints.limits
    assert_same(*timelines)
    assert timelines[1].before


def test_another_rules_footprints_predict_pytorchs():
    model, make_loss = built("fan_out")
    footprints = th.profile(make_loss, engine="direct", accumulate="list", release="never").footprints
    assert not footprints.limits
    model.zero_grad()
    measured = th.profile(make_loss)
    assert_same(measured.timeline, th.simulate(measured.graph, "heap", footprints))


def fan_out(uses: int) -> Tensor:
    x = torch.ones(1000, requires_grad=True)
    y = x * 1
    return torch.stack([(y * (use + 1)).sum() for use in range(uses)]).sum()


@pytest.mark.parametrize("kind", ["measured", "predicted"])
def test_what_waits_in_a_list_is_called_so_and_what_is_kept_too(kind):
    run = th.profile(lambda: fan_out(5), engine="direct", accumulate="list", release="never")
    timeline = run.timeline
    if kind == "predicted":
        timeline = th.simulate(run.graph, run.order, run.footprints, accumulate="list", release="never")
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
        accumulate: th.profile(lambda: fan_out(6), engine="direct", accumulate=accumulate).peak_bytes
        for accumulate in ("inplace", "out_of_place", "list")
    }
    assert peaks["out_of_place"] - peaks["inplace"] >= 3900
    assert peaks["list"] - peaks["inplace"] >= 4 * 4000


def test_a_trace_is_recorded_in_the_same_run():
    run = th.profile(lambda: fan_out(3), engine="direct", accumulate="list", trace="off")
    assert run.trace.order == run.order
    assert run.timeline.order == run.order


def test_pytorchs_engine_has_one_rule():
    with pytest.raises(NotImplementedError, match=r'\(list\), use engine="direct"'):
        th.profile(lambda: fan_out(3), accumulate="list")
    with pytest.raises(ValueError, match="there is no release='late'"):
        th.simulate(th.graph(fan_out(3)), release="late")


def test_a_backward_that_raises_leaves_nothing_measuring():
    x = torch.ones(3, requires_grad=True)

    def stop(gradient: Tensor) -> None:
        raise KeyError("no")

    def make_loss() -> Tensor:
        y = x * 2
        y.register_hook(stop)
        return y.sum()

    with pytest.raises(KeyError):
        th.profile(make_loss, engine="direct")
    assert th.profile(lambda: fan_out(3), engine="direct").peak_bytes
