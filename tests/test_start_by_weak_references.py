"""The storages alive at the start of a backward are those that weak references to the forward's storages find."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import dropout
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.recording.peak_report import peak_report
from tapescope.tests.says import Snapshots, says

from .memory_meter.programs import PROGRAMS

GRADIENT = 4  # bytes of the loss's own gradient


class Storages(TorchDispatchMode):
    """Follows each storage that an operator returns and was not given."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        given = {storage._cdata for storage in storages_of([args, kwargs])}
        for storage in storages_of(result):
            if storage._cdata not in given and storage._cdata not in self._found:  # no address while followed is reused
                self._found[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def alive_bytes(self) -> int:
        gc.collect()
        return sum(nbytes for reference, nbytes in self._found.values() if not reference.expired())


def storages_of(value: Any) -> Iterator[torch.UntypedStorage]:
    return (each.untyped_storage() for each in tree_leaves(value) if isinstance(each, Tensor))


def followed(make_loss: Callable[[], Tensor], captured: bool) -> tuple[Tensor, int]:
    """A loss and what is alive of its forward, by weak references."""
    make_loss().backward()
    with Storages() as storages, ts.capture() if captured else nullcontext():
        loss = make_loss()
    return loss, storages.alive_bytes()


def holds(loss: Tensor, alive: int) -> None:
    assert ts.simulate(ts.graph(loss)).start_bytes == alive + GRADIENT
    assert ts.backward(loss, memory=True).timeline.start_bytes == alive + GRADIENT


NAMES = ("perceptron", "attention", "convolution_and_batch_norm", "dropout", "tied_weights", "penalty_at_real_samples")


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_backward_starts_with_what_lives_of_its_forward(name: str, captured: bool) -> None:
    program = PROGRAMS[name]()
    holds(*followed(program.make_loss, captured))


X = torch.randn(16, 32)
DOWN, UP = nn.Linear(32, 64), nn.Linear(64, 32)
HELD: list[Tensor] = []


class KeepsOnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.noise = torch.randn(100)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def region(function: Callable[..., Tensor], *args: Tensor, **kwargs: Tensor) -> Tensor:
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def masked(x: Tensor, mask: Tensor) -> Tensor:
    return UP(DOWN(x).relu() * mask.repeat(2, 1))


def held_result() -> Tensor:
    HELD[:] = [UP(DOWN(X).relu())]
    return HELD[0].sum()


def on_context() -> Tensor:
    return KeepsOnContext.apply(UP(DOWN(X))).sin().sum()


def mask_of_a_region() -> Tensor:
    return region(masked, UP(DOWN(X)), torch.rand(8, 64)).sum()


def keyword_of_a_region() -> Tensor:
    return region(masked, UP(DOWN(X)), mask=torch.rand(8, 64)).sum()


def regions_in_a_region() -> Tensor:
    def outer(x: Tensor) -> Tensor:
        return region(UP, DOWN(x).relu())

    return region(outer, region(outer, X) + 1).sum()


def regions_of_one_input() -> Tensor:
    shared = UP(DOWN(X))
    return (region(DOWN, shared) + region(DOWN, shared)).sum()


def auxiliary_output() -> Tensor:
    hidden = DOWN(X).relu()
    HELD[:] = [UP(hidden).sigmoid().exp()]
    return hidden.sin().sum()


def auxiliary_output_of_the_batch() -> Tensor:
    first = DOWN(X).relu()
    HELD[:] = [dropout(DOWN(X).tanh(), 0.5)]
    return first.sin().sum()


def loss_of_an_auxiliary_output() -> Tensor:
    hidden = DOWN(X).relu()
    loss = hidden.sin().sum()
    HELD[:] = [UP(hidden.exp()).square().sum()]
    return loss


KEPT = (
    *(held_result, on_context, mask_of_a_region, keyword_of_a_region, regions_in_a_region, regions_of_one_input),
    *(auxiliary_output, auxiliary_output_of_the_batch, loss_of_an_auxiliary_output),
)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("make_loss", KEPT, ids=lambda each: each.__name__)
def test_what_code_contexts_and_checkpoints_keep_of_it_is_part_of_that(
    make_loss: Callable[[], Tensor], captured: bool
) -> None:
    holds(*followed(make_loss, captured))


@pytest.mark.parametrize("reentrant", [False, True])
def test_states_of_random_generators_that_checkpoints_keep_are_part_of_that(reentrant: bool) -> None:
    def make_loss(**options: bool) -> Tensor:
        return checkpoint(UP, DOWN(X), use_reentrant=reentrant, **options).sum()

    _, alive = followed(lambda: make_loss(preserve_rng_state=False), captured=False)
    run = ts.backward(make_loss(), memory=True)
    assert run.timeline.start_bytes == alive + torch.get_rng_state().nbytes + GRADIENT


def packed_by_hooks() -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: [x.clone()], lambda packed: packed[0]):
        return UP(DOWN(X).sin()).sum()


def hidden_in_slices() -> Tensor:
    y = DOWN(X).clone()
    y[:, :8] *= torch.rand(16, 8)
    return y.sum()


def auxiliary_output_of_a_region() -> Tensor:
    hidden = DOWN(X).relu()
    HELD[:] = [region(masked, UP(hidden), torch.rand(8, 64)).sin()]
    return hidden.sum()


@pytest.mark.parametrize(
    ("make_loss", "facts"),
    [
        (packed_by_hooks, ("saved_tensors_hooks", "AddmmBackward0")),
        (hidden_in_slices, ("CopySlices",)),
        (auxiliary_output_of_a_region, ("SumBackward0",)),
    ],
)
def test_what_a_measured_backward_cannot_find_is_named_and_makes_it_a_lower_bound(
    make_loss: Callable[[], Tensor], facts: tuple[str, ...], snapshot: Snapshots
) -> None:
    loss, alive = followed(make_loss, captured=False)
    timeline = ts.backward(loss, memory=True).timeline
    assert timeline.start_bytes < alive + GRADIENT and timeline.direction == "at least"
    (estimate,) = timeline.estimates
    says(estimate, *facts)
    snapshot("profile", estimate)


def test_what_another_forward_left_is_not_part_of_that() -> None:
    other = DOWN(X).relu().exp()
    loss, alive = followed(held_result, captured=False)
    HELD.append(UP(DOWN(X)).exp())
    assert ts.simulate(ts.graph(loss)).start_bytes == alive + GRADIENT
    del other


def computed_in_half() -> Tensor:
    return UP(DOWN(X).relu()).float().square().sum()


@pytest.mark.parametrize("is_cached", [False, True])
def test_casts_in_the_cache_of_autocast_are_part_of_that_if_this_forward_made_them(is_cached: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        computed_in_half()
        if not is_cached:
            torch.clear_autocast_cache()
        with Storages() as storages, ts.capture():
            loss = computed_in_half()
        predicted, alive = ts.simulate(ts.graph(loss)), storages.alive_bytes() + GRADIENT
    assert (predicted.start_bytes, predicted.estimates) == (alive, ())


@pytest.mark.parametrize("is_cached", [False, True])
def test_without_a_capture_casts_in_the_cache_of_autocast_make_it_an_upper_bound(is_cached: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        computed_in_half()
        if not is_cached:
            torch.clear_autocast_cache()
        loss, storages = computed_in_half(), Storages()
        predicted = ts.simulate(ts.graph(loss))
        measured = ts.backward(loss, memory=True).timeline
        if not is_cached:
            torch.clear_autocast_cache()
        with storages:
            loss = computed_in_half()
        alive = storages.alive_bytes() + GRADIENT
    assert predicted.start_bytes > alive if is_cached else predicted.start_bytes == alive
    assert predicted.direction == "at most" and measured.direction == "unknown"


def test_a_comparison_under_an_open_autocast_runs_each_forward_without_casts_of_earlier_ones() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        (row,) = ts.compare(computed_in_half, "heap", repetitions=1).rows
        with Storages() as storages:
            loss = computed_in_half()
        alive = storages.alive_bytes() + GRADIENT
    assert row.dry_run_start_bytes == row.timeline.start_bytes == alive
    assert row.dry_run_bytes == row.peak_bytes
    del loss


FROZEN = nn.Parameter(torch.ones(16, 64), requires_grad=False)


def held_constant() -> Tensor:
    HELD[:] = [torch.rand(16, 64)]
    return (DOWN(X) * HELD[0] * FROZEN).sin().sum()


def test_without_a_capture_bytes_of_constants_are_named_that_the_forward_may_have_made() -> None:
    loss, alive = followed(held_constant, captured=False)
    predicted, measured = ts.simulate(ts.graph(loss)), ts.backward(loss, memory=True).timeline
    for timeline in predicted, measured:
        assert timeline.start_bytes == alive + GRADIENT - HELD[0].nbytes
        assert (timeline.estimates, timeline.constant_bytes) == ((), X.nbytes + HELD[0].nbytes)
        says(repr(timeline), f"{timeline.constant_bytes:,}")
        says("\n".join(peak_report(timeline).answer), "6 KiB", "ts.capture()")


def test_under_a_capture_constants_of_the_forward_count_and_inputs_do_not() -> None:
    loss, alive = followed(held_constant, captured=True)
    timeline = ts.simulate(ts.graph(loss))
    assert (timeline.start_bytes, timeline.constant_bytes) == (alive + GRADIENT, 0)
