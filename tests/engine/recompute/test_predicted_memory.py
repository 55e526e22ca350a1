"""The predicted memory of a recomputed backward: levels, events, and storages that only recomputation needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import tapescope as ts
from tapescope.engine.memory.task_memory import Footprints
from tapescope.engine.memory.timeline import Timeline
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.recompute.droppable_storages import FOR_RECOMPUTATION, footprints_for, recompute_storages
from tapescope.engine.recompute.predicted_memory import INSIDE, RecomputedMemory, recomputed_footprints
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.inspector.capture.forward_program import ForwardProgram
from tapescope.tests.says import Snapshots, raises

torch.manual_seed(0)
x = torch.randn(64, 32)
weight = torch.randn(32, 32, requires_grad=True)
KB = x.nbytes


class Model(nn.Module):
    """Views, operations in place, several outputs, random numbers, one value used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(32)
        self.first, self.second = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        left, middle, right = self.first(x).relu_().chunk(3, -1)
        mixed = functional.dropout(torch.sigmoid(left) * middle.tanh(), 0.3) + right
        values, _ = self.norm(self.second(mixed)).sort(-1)
        return (values.exp() * functional.softmax(mixed, -1)).sum()


def chain() -> Tensor:
    """A product, and three element-wise operations which each save their result, of 8 KiB each."""
    return (x @ weight).tanh().exp().sigmoid().sum()


def memory_of(make_loss: Callable[[], Tensor]) -> tuple[ForwardProgram, RecomputedMemory]:
    program, memory, _ = recorded(make_loss)
    return program, memory


def recorded(make_loss: Callable[[], Tensor]) -> tuple[ForwardProgram, RecomputedMemory, Footprints]:
    program = record_forward(make_loss, 1)
    measured = ts.profile(make_loss).footprints
    assert measured is not None
    footprints = footprints_for(program, measured)
    storages = recompute_storages(program, footprints)
    return program, RecomputedMemory(storages, simulate(footprints.graph, "heap", footprints)), footprints


def made_by(program: ForwardProgram, name: str) -> int:
    return next(each.makes[0][0] for each in program.operations if name in each.name)


def levels(timeline: Timeline) -> tuple[int, list[int]]:
    return timeline.start_bytes, list(timeline.task_peaks)


_model = Model()
PROGRAM, MEMORY, FOOTPRINTS = recorded(lambda: _model(x))
DROPPABLE = [number for number, each in enumerate(MEMORY.storages) if each.droppable]


def test_every_saved_storage_is_found_in_the_measured_backward() -> None:
    program, memory = PROGRAM, MEMORY
    assert program.saved
    for each in program.saved:
        found = memory.storages[each.number]
        assert found.start >= 0 and found.nbytes == memory.plain.nbytes[found.start]
        assert found.keepers == tuple(sorted({task for task, _ in each.saved_by}))


def test_with_nothing_dropped_it_is_the_plain_backward() -> None:
    memory = MEMORY
    found = memory.levels_if_dropped([])
    assert (found.start_bytes, found.peaks) == levels(memory.plain)
    assert found.peak_bytes == memory.plain_peak_bytes and not found.replay_ns
    assert memory.timeline([]).events == memory.plain.events


@given(st.sets(st.sampled_from(DROPPABLE)))
@settings(max_examples=60, deadline=None)
def test_the_levels_are_those_of_its_events(drop: set[int]) -> None:
    memory = MEMORY
    found, timeline = memory.levels_if_dropped(drop), memory.timeline(drop)
    assert (found.start_bytes, found.peaks) == levels(timeline)
    assert found.peak_bytes == timeline.peak_bytes
    assert timeline.end_bytes == memory.plain.end_bytes
    alive = set(range(timeline.before))
    for number in timeline.events:  # each is allocated once and freed once
        if number >= 0:
            assert number not in alive
            alive.add(number)
        else:
            alive.remove(~number)
    columns = timeline.category_levels.values()
    assert [sum(each) for each in zip(*columns, strict=True)] == found.peaks
    for changes in timeline.changes_of.values():
        for event, place, _ in changes:
            assert timeline.starts[place] <= event <= timeline.starts[place + 1], "in its own task, not after replays"


def test_what_is_dropped_is_made_again_by_the_first_task_that_needs_it() -> None:
    program, memory = memory_of(chain)
    tanh, exp, sigmoid = (made_by(program, name) for name in ("tanh", "exp", "sigmoid"))
    assert [memory.storages[each].nbytes for each in (tanh, exp, sigmoid)] == [KB] * 3
    found = memory.levels_if_dropped({exp})  # of tanh, which its own node keeps anyway
    assert found.start_bytes == memory.plain.start_bytes - KB
    assert found.replay_ns == memory.storages[exp].replay_ns > 0
    timeline = memory.timeline({exp})
    keepers = memory.plain.saved[memory.storages[exp].start]
    (again,) = [timeline.storage(number) for number, pairs in timeline.saved.items() if pairs == keepers]
    assert again.nbytes == KB and again.born == again.died == timeline.places[keepers[0][0]]


def test_a_chain_is_replayed_from_what_is_newly_kept() -> None:
    program, memory = memory_of(chain)
    tanh, exp, sigmoid, product = (made_by(program, name) for name in ("tanh", "exp", "sigmoid", "aten.mm"))
    drop = {tanh, exp, sigmoid}
    assert memory.newly_kept(drop) == {product}
    assert memory.kept_bytes([]) == 3 * KB and memory.kept_bytes(drop) == KB
    found = memory.levels_if_dropped(drop)
    assert found.start_bytes == memory.plain.start_bytes - 2 * KB
    timeline = memory.timeline(drop)
    kept = [
        number for number in range(timeline.before) if timeline.saved.get(number, ((0, ""),))[0][1] == FOR_RECOMPUTATION
    ]
    (newly,) = kept
    first = timeline.order.index(memory.storages[sigmoid].keepers[0])
    assert timeline.storage(newly).died == first  # all three are made there, the first of it, and then nobody needs it
    assert timeline.storage(newly).nbytes == KB
    # With the product dropped as well, nothing of the chain is alive when the backward starts.
    assert memory.levels_if_dropped(drop | {product}).start_bytes == memory.plain.start_bytes - 3 * KB


def test_what_nobody_needs_is_not_replayed() -> None:
    program, memory = memory_of(chain)
    product = made_by(program, "aten.mm")
    assert memory.reached({product}) == set()
    assert not memory.levels_if_dropped({product}).replay_ns


def test_a_kept_storage_lives_on_for_a_replay_that_comes_after_its_node() -> None:
    factor = torch.randn(64, 32, requires_grad=True)

    def make_loss() -> Tensor:
        product = x @ weight
        exp = product.exp()
        return exp.sum() + (product * factor).sum()  # its node saves the product, and is newer: it runs before exp's

    program, memory = memory_of(make_loss)
    exp, product = made_by(program, "exp"), made_by(program, "aten.mm")
    assert memory.storages[exp].needs == (product,) and not memory.newly_kept({exp})
    plain, timeline = memory.plain, memory.timeline({exp})
    start = memory.storages[product].start
    here = start - (memory.storages[exp].start < start)  # numbers are dense
    assert plain.storage(start).died == plain.places[memory.storages[product].keepers[0]]
    assert timeline.storage(here).died == plain.places[memory.storages[exp].keepers[0]] > plain.storage(start).died
    found = memory.levels_if_dropped({exp})
    assert (found.start_bytes, found.peaks) == levels(timeline)
    assert found.start_bytes == plain.start_bytes - KB


def test_random_operations_keep_the_state_of_their_generator() -> None:
    def make_loss() -> Tensor:
        return functional.dropout(x @ weight, 0.5).sum()

    program, memory = memory_of(make_loss)
    mask = next(each.number for each in program.saved if memory.storages[each.number].state_bytes)
    state = torch.get_rng_state().nbytes
    assert memory.storages[mask].state_bytes == state
    kept = sum(memory.storages[each].nbytes for each in memory.newly_kept({mask}))
    dropped = memory.storages[mask].nbytes
    assert memory.levels_if_dropped({mask}).start_bytes == memory.plain.start_bytes - dropped + kept + state


def test_what_one_random_call_makes_needs_the_state_of_its_generator_once() -> None:
    """Attention gives its result and the logarithms of its sums."""
    size = (1, 2, 16, 8)
    query = torch.randn(size, requires_grad=True)

    def make_loss() -> Tensor:
        return functional.scaled_dot_product_attention(query.sin(), query.cos(), query.exp()).tanh().sum()

    _, memory = memory_of(make_loss)
    both = [number for number, each in enumerate(memory.storages) if each.state_bytes]
    assert len(both) == 2 and all(memory.storages[number].siblings for number in both)
    kept = sum(memory.storages[each].nbytes for each in memory.newly_kept(set(both)))
    dropped = sum(memory.storages[each].nbytes for each in both)
    start = memory.plain.start_bytes - dropped + kept + torch.get_rng_state().nbytes
    assert memory.levels_if_dropped(both).start_bytes == memory.timeline(both).start_bytes == start
    assert INSIDE in memory.timeline(both).estimates and INSIDE not in memory.timeline(()).estimates


@pytest.mark.parametrize(("dtype", "known"), [(torch.float32, True), (torch.bfloat16, False)])
def test_products_in_half_precision_take_memory_that_is_not_known(dtype: torch.dtype, known: bool) -> None:
    def make_loss() -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            return ((x @ weight).tanh() @ weight).square().sum()

    program = record_forward(make_loss, 1)
    footprints = ts.profile(make_loss).footprints
    assert footprints is not None
    storages = recompute_storages(program, footprints_for(program, footprints))
    memory = RecomputedMemory(storages, simulate(program.graph, "heap", footprints_for(program, footprints)))
    products = [number for number, each in enumerate(memory.storages) if each.product and each.droppable]
    assert products
    assert (INSIDE in memory.timeline(products).estimates) is not known


def test_footprints_of_another_forward_are_refused(snapshot: Snapshots) -> None:
    footprints = ts.profile(lambda: (x @ weight).tanh().sum()).footprints
    assert footprints is not None
    with raises(ValueError, 4, 6) as raised:
        footprints_for(record_forward(chain, 1), footprints)
    snapshot("plan_recompute", raised.value)


@given(st.sets(st.sampled_from(DROPPABLE)))
@settings(max_examples=30, deadline=None)
def test_footprints_for_planners_are_high_by_what_goes_late_at_most(drop: set[int]) -> None:
    memory = MEMORY
    dropped = memory.reached(drop)
    exact = memory.levels_if_dropped(drop)
    simulated = simulate(memory.plain.graph, "heap", recomputed_footprints(memory, drop, FOOTPRINTS))
    states = sum(memory.storages[number].state_bytes for number in dropped)
    late = sum(memory.storages[each].nbytes for number in dropped for each in memory.storages[number].needs)
    assert exact.peak_bytes - states <= simulated.peak_bytes <= exact.peak_bytes + late
    assert simulated.end_bytes == memory.plain.end_bytes
