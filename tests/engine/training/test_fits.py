"""Predictions on fake tensors compared with the allocator's events, and the remedies."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

import tapescope as ts
from tapescope.__main__ import main
from tapescope.commands.fits import fit_content
from tapescope.engine.memory import kernel_workspaces
from tapescope.engine.memory.estimates import direction_of
from tapescope.engine.training import simulated_step
from tapescope.engine.training.fits import repeated_layers
from tapescope.tests.says import Snapshots, raises, says

from .small_models import (
    MODELS,
    OPTIMIZERS,
    Block,
    Gpt,
    UNet,
    cross_entropy,
    images,
    measured,
    pairs,
    perceptron,
    tokens,
)

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_each_phase_has_what_the_allocator_was_seen_to_give(name: str, optimizer: str) -> None:
    make_model, make_batch, loss_of = MODELS[name]
    fit = ts.fits(make_model, make_batch, OPTIMIZERS[optimizer], "1GiB", loss_of)
    found = {each.phase: each.nbytes for each in fit.phases}
    wanted = measured(make_model, make_batch, OPTIMIZERS[optimizer], loss_of)
    assert fit.estimates == ()
    assert found == pytest.approx(wanted, rel=0.001)
    assert fit.peak_bytes == pytest.approx(max(wanted.values()), rel=0.0005)
    for phase in fit.phases:
        assert sum(phase.parts.values()) == phase.nbytes


def test_categories_are_what_walking_finds() -> None:
    fit = ts.fits(perceptron, pairs, OPTIMIZERS["adam"], "1GiB", cross_entropy)
    model = perceptron()
    weights = sum(each.numel() * 4 for each in model.parameters())
    optimizer = fit.parts["optimizer"]
    assert optimizer["parameters"] == optimizer["gradients"] == weights
    assert optimizer["optimizer state"] == 2 * weights + 4 * len(list(model.parameters()))  # and a step count for each
    assert optimizer["batch"] == 64 * 32 * 4 + 64 * 8
    assert fit.parts["backward"]["activations"] > 64 * 256 * 4


def test_it_has_a_curve_from_what_was_there_before_to_the_end_of_the_step() -> None:
    fit = ts.fits(perceptron, pairs, OPTIMIZERS["adam"], "1GiB", cross_entropy)
    timeline, parts = fit.timeline, fit.parts["optimizer"]
    assert timeline.peak_bytes == fit.peak_bytes == max(timeline.levels)
    assert [each.name for each in timeline.phases] == ["forward", "backward", "optimizer"]
    standing = {kind: parts[kind] for kind in ("parameters", "optimizer state", "batch")}
    assert {kind: timeline.baseline.parts[kind] for kind in standing} == standing
    assert "gradients" not in timeline.baseline.parts, "zero_grad() comes before"
    assert timeline.parts_at(len(timeline.events))["gradients"] == parts["gradients"]
    says(repr(timeline), "predicted", f"{fit.peak_bytes:,}")


def test_its_figure_has_the_levels_of_each_kind_and_the_phases() -> None:
    pytest.importorskip("plotly")
    fit = ts.fits(perceptron, pairs, OPTIMIZERS["adam"], "1GiB", cross_entropy)
    figure = fit.figure()
    assert {each.name for each in figure.data} == set(fit.timeline.category_levels)
    assert len(figure.layout.shapes) == len(fit.phases)
    assert all(len(each.x) == len(fit.timeline.events) + 2 for each in figure.data)


class Scaled(nn.Module):
    """Multiplies real and complex tensors by Python numbers, which the graph keeps as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.inner(x) * 2 * 0.5 / 3) * 2 * 2j * 0.5)


def test_numbers_that_the_graph_keeps_count() -> None:
    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]).sum()

    fit = ts.fits(Scaled, pairs, OPTIMIZERS["sgd"], "1GiB", loss_of)
    assert {each.phase: each.nbytes for each in fit.phases} == measured(Scaled, pairs, OPTIMIZERS["sgd"], loss_of)
    kept = [fit.timeline.nbytes[number] for number, kind in enumerate(fit.timeline.kinds) if kind == "activations"]
    assert (kept.count(8), kept.count(16)) == (5, 1)


def test_nothing_is_allocated_and_the_generators_are_as_they_were() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()

    def huge() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(*(nn.Linear(100_000, 100_000) for _ in range(3)))  # 112 GiB

    fit = ts.fits(huge, lambda size=1: torch.randn(size, 100_000), OPTIMIZERS["adam"], "80GB", lambda m, b: m(b).sum())
    assert not fit.fits and fit.peak_bytes > 4 * 3 * 4 * 10**10
    assert torch.equal(torch.get_rng_state(), before)


def test_a_real_model_is_left_alone_and_counts_as_one_that_is_made() -> None:
    model = Gpt()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    of_real = ts.fits(model, tokens, OPTIMIZERS["adam"], "1GiB")
    of_made = ts.fits(Gpt, tokens, OPTIMIZERS["adam"], "1GiB")
    assert of_real.peak_bytes == of_made.peak_bytes
    assert all(each.grad is None and type(each) is nn.Parameter for each in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Teacher(nn.Module):
    """Has a copy of itself, as self-distillation does."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.tied = copy.deepcopy([self.student[1].running_mean] * 2)

    def forward(self, batch: Tensor) -> Tensor:
        return self.student(batch) - self.teacher(batch)


@pytest.mark.parametrize("deep_copy", [False, True])
def test_a_model_may_be_a_deep_copy_and_hold_deep_copies(deep_copy: bool) -> None:
    model = Teacher()
    assert model.tied[0] is model.tied[1]
    before = {name: each.clone() for name, each in model.state_dict().items()}
    fit = ts.fits(
        (lambda: copy.deepcopy(model)) if deep_copy else Teacher,
        lambda: torch.randn(4, 8),
        partial(torch.optim.SGD, lr=0.1),
        "1GB",
        total,
    )
    assert fit.parts["forward"]["parameters"] == sum(each.nbytes for each in model.parameters())
    assert fit.parts["forward"]["buffers"] == sum(each.nbytes for each in model.buffers())
    assert all(torch.equal(before[name], each) and type(each) is Tensor for name, each in model.state_dict().items())


def test_in_a_notebook_it_is_a_table() -> None:
    shown = ts.fits(perceptron, pairs, OPTIMIZERS["adam"], "4MiB", cross_entropy)._repr_html_()
    assert "<p>It fits" in shown
    assert shown.count("<table>") == 1


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    def fits_in(memory: str, batch: Callable[..., Any] = pairs, **options: Any) -> ts.types.Fit:
        return ts.fits(perceptron, batch, OPTIMIZERS["adam"], memory, cross_entropy, **options)

    largest = fits_in("3MiB").largest_batch
    assert largest is not None and largest > 64  # which has a peak of other tensors than batches of 1 and 2
    assert fits_in("3MiB", batch_size=largest).fits and not fits_in("3MiB", batch_size=largest + 1).fits
    assert fits_in("1MiB").largest_batch == 0
    assert fits_in("1MiB", lambda: pairs(4)).largest_batch is None


class Carrying(nn.Module):
    """Carries its hidden state on, which has the size of one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.state = nn.GRU(8, 16), torch.zeros(1, 4, 16)

    def forward(self, batch: Tensor) -> Tensor:
        out, self.state = self.rnn(batch, self.state.detach())
        return out


def test_a_program_that_takes_one_size_alone_is_answered_for_that_size(snapshot: Snapshots) -> None:
    def fit(memory: str) -> ts.types.Fit:
        return ts.fits(Carrying, lambda size=4: torch.randn(5, size, 8), partial(Adam, lr=1e-3), memory, total)

    large = fit("1GB")
    assert large.fits and large.batch_size == 4
    says(large, 4, "Expected hidden size (1, 1, 16), got [1, 4, 16]")
    snapshot("fits", large)
    small = fit("3KB")  # which looks for remedies, too: smaller batches are none
    assert "Expected hidden size (1, 1, 16), got [1, 4, 16]" in str(small)
    assert "accumulation" not in {each.name for each in small.remedies}
    assert fit_content(small)["largest_batch"] is None
    with pytest.raises(RuntimeError, match="Expected hidden size") as raised:
        _ = small.largest_batch
    (note,) = raised.value.__notes__
    says(note, 1)


@pytest.mark.parametrize("memory", ["2KB", "1GB"])
def test_batches_that_end_with_the_data_are_not_called_larger(memory: str) -> None:
    data = torch.randn(64, 8)
    fit = ts.fits(nn.Linear(8, 1), lambda size=4: data[:size], partial(Adam, lr=1e-3), memory, total)
    assert "64×8" in str(fit)
    with pytest.raises(ValueError, match=r"make_batch\(\d+\) .* 64×8"):
        _ = fit.largest_batch


DATA = torch.randn(64, 8)


def sliced(size: int) -> Tensor:
    return DATA[:size].clone()


def fixed(size: int) -> tuple[Tensor, Tensor]:
    return DATA, DATA[:, 0]


def sequences(size: int) -> Tensor:
    """The size is the second dimension, and the data end with 8."""
    return DATA.reshape(8, 8, 8)[:, :size].clone()


def padded(size: int) -> Tensor:
    """To a multiple of 8."""
    return torch.zeros(-(-size // 8) * 8, 8)


def fit_of(make_batch: Callable[..., Any], size: int) -> ts.types.Fit:
    first = lambda model, batch: total(model, batch[0] if isinstance(batch, tuple) else batch)  # noqa: E731
    return ts.fits(nn.Linear(8, 1), make_batch, partial(Adam, lr=1e-3), "1GB", first, batch_size=size)


@pytest.mark.parametrize(
    ("make_batch", "size", "shapes"),
    [
        (sliced, 65, ["64×8"]),
        (sliced, 512, ["64×8"]),
        (fixed, 1, ["64×8", "64"]),
        (fixed, 8, ["64×8"]),
        (sequences, 9, ["8×8×8"]),
    ],
)
def test_a_batch_that_does_not_follow_its_size_is_refused(make_batch: Any, size: int, shapes: list[str]) -> None:
    """The function, its line, the size, and the shape are named."""
    line = make_batch.__code__.co_firstlineno
    for each in (make_batch, partial(make_batch)):
        with raises(ValueError, make_batch.__name__, f"test_fits.py:{line}", f"make_batch({size})", *shapes):
            fit_of(each, size)


@pytest.mark.parametrize(
    ("make_batch", "size"), [(sliced, 64), (sliced, 1), (sequences, 8), (sequences, 3), (padded, 1), (padded, 13)]
)
def test_a_batch_that_follows_it_in_its_own_way_is_taken(make_batch: Any, size: int) -> None:
    fit = fit_of(make_batch, size)
    batch = make_batch(size)
    assert fit.batch_size == size and fit.parts["forward"]["batch"] == batch.numel() * 4


def test_the_largest_batch_of_a_function_that_pads_is_found() -> None:
    fit = ts.fits(nn.Linear(8, 1), padded, partial(Adam, lr=1e-3), "16KB", total)
    assert fit.largest_batch is not None
    assert fit.largest_batch % 8 == 0 and fit_of(padded, fit.largest_batch).peak_bytes <= 16_000
    assert fit_of(padded, fit.largest_batch + 1).peak_bytes > 16_000


def test_a_batch_in_parts_is_no_remedy_where_its_sparse_gradients_cannot_be_added() -> None:
    model = nn.EmbeddingBag(50, 8, sparse=True)
    fit = ts.fits(model, lambda size=6: torch.zeros(size, 3, dtype=torch.long), torch.optim.SparseAdam, "1KB", total)
    assert not fit.fits and "accumulation" not in {each.name for each in fit.remedies}


def test_each_batch_is_run_once_that_of_the_default_size_too() -> None:
    asked = Mock()  # what is appended to a list is taken out again

    def batches(size: int = 2) -> tuple[Tensor, Tensor]:
        asked(size)
        return pairs(size)

    fit = ts.fits(perceptron, batches, OPTIMIZERS["adam"], "3MiB", cross_entropy)
    assert fit.batch_size == 2 and "with a batch of 2: " in str(fit)
    assert fit.largest_batch is not None and fit.largest_batch > 2
    sizes = [call.args[0] for call in asked.call_args_list]
    assert {1, 2, fit.largest_batch} <= set(sizes)
    assert len(sizes) == len(set(sizes))


def test_a_next_size_that_is_on_a_line_is_not_simulated() -> None:
    asked = Mock()

    def batches(size: int = 1, pad: int = 1) -> tuple[Tensor, Tensor]:
        asked(size)
        return pairs(-(-size // pad) * pad)

    def sizes_asked(pad: int) -> tuple[int, set[int]]:
        asked.reset_mock()
        make_batch = lambda size=1: batches(size, pad)  # noqa: E731
        largest = ts.fits(perceptron, make_batch, OPTIMIZERS["adam"], "3MiB", cross_entropy).largest_batch
        assert largest is not None
        return largest, {call.args[0] for call in asked.call_args_list}

    largest, sizes = sizes_asked(1)
    assert sizes == {1, 2, largest}
    assert not ts.fits(perceptron, pairs, OPTIMIZERS["adam"], "3MiB", cross_entropy, batch_size=largest + 1).fits
    padded, sizes = sizes_asked(7)  # sizes 1 and 2 are alike, and on no line with larger ones
    assert {padded, padded + 1} <= sizes and padded % 7 == 0 and padded <= largest < padded + 7


def test_what_large_kernels_take_is_told_by_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = ts.fits(UNet, images, OPTIMIZERS["sgd"], "1GiB", batch_size=6)
    monkeypatch.setattr(kernel_workspaces, "_found", {})  # kernels that have run at this size are not too large
    monkeypatch.setattr(simulated_step, "_MOST_BYTES_WHERE_SLOW", 700_000)  # a batch of 2 stays below
    told = ts.fits(UNet, images, OPTIMIZERS["sgd"], "1GiB", batch_size=6)
    assert exact.estimates == ()
    says(told.estimates[0], "convolution_backward", "extrapolated")
    assert told.peak_bytes == pytest.approx(exact.peak_bytes, rel=0.005)


@pytest.mark.slow
def test_remedies_take_as_much_as_they_say() -> None:
    fit = ts.fits(Gpt, lambda size=8: tokens(size), OPTIMIZERS["adam, foreach"], "6MiB")
    assert not fit.fits
    found = {each.name: each for each in fit.remedies}
    assert {"accumulation", "checkpoints"} <= set(found)

    class Checkpointed(Gpt):
        def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
            x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # type: ignore[assignment]
            return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

    wanted = measured(Checkpointed, lambda: tokens(8), OPTIMIZERS["adam, foreach"], None)
    assert found["checkpoints"].peak_bytes == pytest.approx(max(wanted.values()), rel=0.005)
    says(found["checkpoints"].price, "forward", "%")
    for each in fit.remedies:
        assert each.saved_bytes == fit.peak_bytes - each.peak_bytes > 0
        assert each.fits == (each.peak_bytes <= fit.memory and each.name != "recompute")
        assert each.how in str(fit)


def test_a_fused_optimizer_is_a_remedy_where_the_optimizer_is_the_peak() -> None:
    fit = ts.fits(perceptron, lambda size=2: pairs(size), OPTIMIZERS["adam, foreach"], "1MiB", cross_entropy)
    assert fit.highest.phase == "optimizer"
    fused = next(each for each in fit.remedies if each.name == "fused")
    wanted = ts.fits(perceptron, lambda size=2: pairs(size), lambda p: Adam(p, fused=True), "1MiB", cross_entropy)
    assert fused.peak_bytes == wanted.peak_bytes
    assert "torch.optim.Adam(..., fused=True)" in fused.how


def test_the_layers_a_model_is_made_of() -> None:
    assert [type(each) for each in repeated_layers(Gpt())] == [Block] * 3
    assert repeated_layers(perceptron()) == []


def test_batches_and_outputs_of_all_kinds() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            out = self.layer(x).squeeze(-1)
            return {"loss": functional.mse_loss(out, labels), "logits": out} if labels is not None else out

    sgd = OPTIMIZERS["sgd"]
    as_dict = ts.fits(WithLoss, lambda n: {"x": torch.randn(n, 4), "labels": torch.randn(n)}, sgd, "1MB")
    as_tuple = ts.fits(WithLoss, lambda n: (torch.randn(n, 4), torch.randn(n)), sgd, "1MB")
    assert as_dict.batch_size == as_tuple.batch_size == 1
    assert as_dict.peak_bytes == as_tuple.peak_bytes
    with raises(ValueError, "(3,)", "lambda model, batch"):
        ts.fits(WithLoss, lambda: torch.randn(3, 4), sgd, "1MB")


def test_what_has_no_answer_on_fakes_is_named_with_its_line(snapshot: Snapshots) -> None:
    def with_item(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = cross_entropy(model, batch)
        return loss * (1 if loss.item() > 0 else 2)

    def with_mask(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        return out[out > 0].sum()  # type: ignore[no-any-return]

    line = with_item.__code__.co_firstlineno
    with raises(NotImplementedError, f"test_fits.py:{line + 2}", ".item()") as raised:
        ts.fits(perceptron, pairs, OPTIMIZERS["sgd"], "1GB", with_item)
    snapshot("fits", raised.value)
    line = with_mask.__code__.co_firstlineno
    with raises(NotImplementedError, f"test_fits.py:{line + 2}") as raised:
        ts.fits(perceptron, pairs, OPTIMIZERS["sgd"], "1GB", with_mask)
    snapshot("fits", raised.value)
    with pytest.raises(NotImplementedError, match="LBFGS"):
        ts.fits(perceptron, pairs, torch.optim.LBFGS, "1GB", cross_entropy)
    if not torch.backends.cuda.is_built():
        with raises(NotImplementedError, "cuda"):
            ts.fits(lambda: perceptron().to("cuda"), pairs, OPTIMIZERS["sgd"], "1GB", cross_entropy)


@pytest.mark.parametrize(
    "convert", [nn.Module.double, lambda model: model.to("cpu"), lambda model: model.to(torch.float64)]
)
def test_a_model_that_is_converted_as_it_is_made_counts_as_what_it_has_become(convert: Any) -> None:
    def make_model() -> nn.Module:
        model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 32))
        model[2].weight.data_of = model[0]  # type: ignore[union-attr] # an attribute of its own
        return convert(model)  # type: ignore[no-any-return]

    def make_batch(size: int = 64) -> Tensor:
        return torch.randn(size, 32, dtype=make_model()[0].weight.dtype)  # type: ignore[index, union-attr]

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).sum()  # type: ignore[no-any-return]

    fit = ts.fits(make_model, make_batch, OPTIMIZERS["adam"], "1GiB", loss_of)
    wanted = measured(make_model, make_batch, OPTIMIZERS["adam"], loss_of)
    assert {each.phase: each.nbytes for each in fit.phases} == pytest.approx(wanted, rel=0.001)
    assert torch.utils.swap_tensors.__module__ == "torch.utils"


def total(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).sum()


class WithBuffer(nn.Module):
    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("kept", make(torch.eye(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class OfFunction(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


def through_nested(x: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(torch.nested.nested_tensor([x, x[:1]]), 0.0)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: x.to_sparse_csr().to_dense(), "_to_sparse_csr"),
        (lambda x: x.to_mkldnn().to_dense(), "to_mkldnn"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "cond"),
        (through_nested, "_nested_tensor_from_tensor_list"),
    ],
    ids=["csr", "mkldnn", "cond", "nested"],
)
def test_what_does_not_run_on_fakes_is_named_with_its_line(function: Callable[[Tensor], Tensor], named: str) -> None:
    with raises(NotImplementedError, "test_fits.py:", "ts.profile_step") as raised:
        ts.fits(OfFunction(function), lambda: torch.ones(3, 4), lambda p: torch.optim.SGD(p, 0.1), "1GB", total)
    assert named in str(raised.value)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Tensor.to_sparse, "sparse_coo"),
        (Tensor.to_sparse_csr, "sparse_csr"),
        (Tensor.to_mkldnn, "_mkldnn"),
        (lambda eye: torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8), "quantized"),
        (lambda eye: torch.nested.nested_tensor([eye, eye[:1]]), "nested"),
    ],
)
def test_a_buffer_of_which_there_is_no_fake_is_named(make: Callable[[Tensor], Tensor], kind: str) -> None:
    model = WithBuffer(make)
    with raises(NotImplementedError, "WithBuffer.kept", kind, "ts.profile_step"):
        ts.fits(model, lambda: torch.ones(3, 4), lambda p: torch.optim.SGD(p, 0.1), "1GB", total)


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_an_estimate_or_refused_by_name(
    make: Callable[..., nn.Module], snapshot: Snapshots
) -> None:
    model, ids = make(100, 4, sparse=True), lambda: torch.tensor([[1, 2], [2, 3]])
    for optimizer in (torch.optim.SGD, torch.optim.SparseAdam):
        fit = ts.fits(model, ids, lambda p, kind=optimizer: kind(p, 0.1), "1GB", total)
        (estimate,) = fit.estimates
        assert direction_of(fit.estimates) == "at least"
        says(fit, estimate)
        if make is nn.Embedding and optimizer is torch.optim.SGD:
            snapshot("fits", estimate)
    with raises(NotImplementedError, "mul_", "sparse=False"):
        ts.fits(model, ids, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "1GB", total)
    assert all(each.grad is None for each in model.parameters())


def test_numbers_by_which_a_model_is_made_are_known() -> None:
    made: list[object] = []

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = [each.item() for each in torch.linspace(0, 0.2, 3)]
            self.sizes = (torch.arange(3) * 8 + 8).tolist()
            made.append((self.rates, self.sizes))
            self.layers = nn.ModuleList(nn.Linear(32, size) for size in self.sizes)

        def forward(self, x: Tensor) -> Tensor:
            parts = [functional.dropout(layer(x), rate) for layer, rate in zip(self.layers, self.rates, strict=True)]
            return torch.cat(parts, 1).sum()

    fit = ts.fits(Dropped, lambda: torch.randn(64, 32), OPTIMIZERS["sgd"], "1GiB")
    Dropped()
    assert made[0] == made[-1]
    wanted = measured(Dropped, lambda: torch.randn(64, 32), OPTIMIZERS["sgd"], lambda model, batch: model(batch))
    assert fit.peak_bytes == pytest.approx(max(wanted.values()), rel=0.001)

    def asks(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch) * torch.arange(3)[1].item()  # type: ignore[no-any-return]

    with raises(NotImplementedError, ".item()"):
        ts.fits(lambda: nn.Linear(3, 1), lambda: torch.randn(2, 3), OPTIMIZERS["sgd"], "1GiB", asks)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"memory": "24"}, ["memory", "'24'"]),
        ({"memory": 0}, ["memory", 0]),
        ({"make_batch": lambda a, b: None}, ["make_batch", "make_batch(size)"]),
        ({"make_batch": lambda: torch.ones(1, 32), "batch_size": 3}, ["batch_size", "make_batch(size)"]),
        ({"make_model": lambda: 3}, ["make_model()", "int"]),
        ({"make_optimizer": lambda parameters: None}, ["make_optimizer(...)", "None"]),
        ({"loss_of": lambda model, batch: 1.0}, ["loss_of(model, batch)", "float"]),
        ({"batch_size": 0}, ["batch_size", 0, 1]),
    ],
)
def test_wrong_arguments_get_a_sentence(arguments: dict[str, Any], facts: list[object], snapshot: Snapshots) -> None:
    given = {
        "make_model": perceptron,
        "make_batch": pairs,
        "make_optimizer": OPTIMIZERS["sgd"],
        "memory": "1GB",
        "loss_of": cross_entropy,
    }
    with raises((TypeError, ValueError), *facts) as raised:
        ts.fits(**{**given, **arguments})
    snapshot("fits", raised.value)


def test_an_error_of_the_program_leaves_nothing_behind() -> None:
    class Raising(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"):
        ts.fits(lambda: Raising(3, 3), lambda: torch.ones(1, 3), OPTIMIZERS["sgd"], "1GB")
    assert torch.is_grad_enabled()
    assert type(torch.empty(2)) is Tensor
    gc.collect()


SETUP = """
import torch
from torch import nn

def setup():
    return (
        lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)),
        lambda size=16: torch.randn(size, 8),
        lambda parameters: torch.optim.Adam(parameters),
        lambda model, batch: model(batch).sum(),
    )

def wrong():
    return 5
"""


def test_the_command_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SETUP)
    assert main(["fits", f"{script}:setup", "--memory", "1MB"]) == 0
    said = capsys.readouterr().out
    says(said, 16, "1.0 MB", "1,240")
    assert main(["fits", f"{script}:setup", "--memory", "10kB", "--batch-size", "32"]) == 1
    says(capsys.readouterr().out, 32, "10.0 kB")
    assert main(["fits", f"{script}:wrong", "--memory", "1MB"]) == 2
    says(capsys.readouterr().err, "wrong()", "int")


def test_an_optimizer_that_is_made_of_the_model_is_told_that_it_gets_the_parameters(snapshot: Snapshots) -> None:
    with pytest.raises(AttributeError, match="no attribute 'parameters'") as caught:
        ts.fits(nn.Linear(2, 2), lambda: torch.ones(1, 2), lambda model: Adam(model.parameters()), memory="1GB")
    says(caught.value.__notes__[0], "make_optimizer")
    snapshot("fits", caught.value.__notes__[0])


class Rating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(50, 4, padding_idx=0, sparse=True)
        self.out = nn.Linear(4, 1)

    def forward(self, items: Tensor) -> Tensor:
        return self.out(self.items(items).mean(1))  # type: ignore[no-any-return]


def test_what_a_backward_asks_numbers_of_is_named_with_module_and_line(snapshot: Snapshots) -> None:
    line = Rating.forward.__code__.co_firstlineno + 1
    with raises(NotImplementedError, "embedding", "items", f"test_fits.py:{line}") as raised:
        ts.fits(Rating, lambda: torch.zeros(3, 2, dtype=torch.long), OPTIMIZERS["sgd"], "1GB", lambda m, b: m(b).mean())
    snapshot("fits", raised.value)


def test_a_model_on_the_meta_device_is_on_no_gpu() -> None:
    def make_model(device: str) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16, device=device), nn.Linear(16, 4, device=device))

    def fit_on(device: str) -> ts.types.Fit:
        model = make_model(device)
        return ts.fits(model, lambda: torch.ones(2, 8, device=device), lambda p: torch.optim.SGD(p, 0.1), "1GB", total)

    meta, cpu = fit_on("meta"), fit_on("cpu")
    assert meta.fits and (meta.reserve, meta.estimates, meta.peak_bytes) == (0, (), cpu.peak_bytes)
    assert "META" not in str(meta) and 'device="cuda"' in str(meta)


def test_the_reserve_that_nobody_asked_for_is_at_most_half_of_the_memory() -> None:
    arguments = (lambda: nn.Linear(8, 4), lambda: torch.ones(2, 8), lambda p: torch.optim.SGD(p, 0.1), "1GB", total)
    fit = ts.fits(*arguments, device="cuda")
    assert fit.fits and fit.reserve == 500_000_000
    says(fit, ts.size_text(fit.reserve))
    assert ts.fits(*arguments, device="cuda", reserve=0).usable_bytes == 10**9


def test_memory_of_a_gpu_is_in_blocks_of_512_bytes_and_keeps_a_reserve() -> None:
    arguments = (perceptron, lambda size=3: pairs(size), OPTIMIZERS["sgd"])
    plain = ts.fits(*arguments, "3GiB", cross_entropy)
    fit = ts.fits(*arguments, "3GiB", cross_entropy, device="cuda")
    assert (plain.reserve, plain.estimates, plain.device.type) == (0, (), "cpu") and 'device="cuda"' in str(plain)
    assert (fit.reserve, fit.usable_bytes, fit.device.type) == (2**30, 2**31, "cuda")
    sizes = [each.numel() * 4 for each in perceptron().parameters()]
    assert fit.parts["optimizer"]["parameters"] == sum(-(-size // 512) * 512 for size in sizes) > sum(sizes)
    assert direction_of(fit.estimates) == "unknown"
    says(fit, "1.0 GiB")
    tight = ts.fits(*arguments, 2 * fit.peak_bytes, cross_entropy, device="cuda", reserve=fit.peak_bytes)
    assert tight.fits
    more = ts.fits(*arguments, 2 * fit.peak_bytes, cross_entropy, device="cuda", reserve=fit.peak_bytes + 512)
    assert not more.fits


@pytest.mark.parametrize(
    ("wrap", "facts"),
    [
        (nn.DataParallel, [".module"]),
        (lambda model: nn.Sequential(nn.DataParallel(model)), [0]),
    ],
)
def test_wrappers_are_refused_and_say_what_to_pass(
    wrap: Callable[[nn.Module], nn.Module], facts: list[object], snapshot: Snapshots
) -> None:
    for given in (wrap(perceptron()), lambda: wrap(perceptron())):
        with raises(NotImplementedError, "DataParallel", *facts) as raised:
            ts.fits(given, pairs, OPTIMIZERS["sgd"], "1GB", cross_entropy)
    if wrap is nn.DataParallel:
        snapshot("fits", raised.value)
    wrapped = wrap(perceptron())
    with pytest.raises(NotImplementedError, match="DataParallel"):
        ts.fits(perceptron, pairs, OPTIMIZERS["sgd"], "1GB", lambda model, batch: cross_entropy(wrapped, batch))


@pytest.fixture
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone_in_a_group")
def test_data_parallel_wrappers_of_ranks_are_refused(snapshot: Snapshots) -> None:
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(32, 256))
    sharded = nn.Linear(32, 8)
    torch.distributed.fsdp.fully_shard(sharded)
    for given, facts in (
        (ddp, ["DistributedDataParallel", ".module", "33 KiB"]),
        (lambda: nn.parallel.DistributedDataParallel(nn.Linear(32, 8)), ["DistributedDataParallel", "make_model"]),
        (sharded, ["FSDPLinear"]),
    ):
        with raises(NotImplementedError, *facts) as raised:
            ts.fits(
                given, lambda: torch.randn(4, 32), OPTIMIZERS["sgd"], "1GB", lambda model, batch: model(batch).sum()
            )
        snapshot("fits", raised.value)
    with pytest.raises(NotImplementedError, match="buckets"):
        ts.fits(perceptron, pairs, OPTIMIZERS["sgd"], "1GB", lambda model, batch: ddp(batch[0]).sum())


@pytest.mark.slow
def test_each_remedy_followed_literally_takes_what_it_says() -> None:
    make_batch = lambda size=64: tokens(size)  # noqa: E731
    fit = ts.fits(Gpt, make_batch, OPTIMIZERS["sgd"], "10MiB")
    found = {each.name: each for each in fit.remedies}
    assert {"recompute", "accumulation", "checkpoints"} <= set(found)
    found_plan = found["recompute"]
    (budget,) = re.findall(r"plan_recompute\(make_loss, (\d+)\)", found_plan.how)
    batch = tokens(64)
    plan = ts.plan_recompute(partial(Gpt(), *batch), int(budget))

    def recomputed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with ts.recompute(plan):
            return model(*batch)  # type: ignore[no-any-return]

    taken = max(measured(Gpt, lambda: batch, OPTIMIZERS["sgd"], recomputed).values())
    assert 0.97 * found_plan.peak_bytes < taken <= found_plan.peak_bytes
    assert not found_plan.fits
    parts, size = map(int, re.findall(r"\d+", found["accumulation"].how)[:2])
    halves = [tokens(size) for _ in range(parts)]

    def accumulated(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        for each in halves[:-1]:
            model(*each).backward()
        return model(*halves[-1])  # type: ignore[no-any-return]

    assert parts * size == 64
    least = max(measured(Gpt, lambda: halves[-1], OPTIMIZERS["sgd"], accumulated).values())
    assert least <= found["accumulation"].peak_bytes * 1.005


def test_anomaly_mode_does_not_keep_a_step_from_being_simulated() -> None:
    make_model, make_batch, loss_of = MODELS["perceptron"]
    wanted = ts.fits(make_model, make_batch, OPTIMIZERS["sgd"], "1GiB", loss_of).peak_bytes
    with torch.autograd.set_detect_anomaly(True):
        assert ts.fits(make_model, make_batch, OPTIMIZERS["sgd"], "1GiB", loss_of).peak_bytes == wanted
        assert torch.is_anomaly_check_nan_enabled()


def test_a_thread_without_a_backward_before_may_ask() -> None:
    """Its state for backwards is then created inside `__torch_dispatch__`, where leaves have no nodes."""
    with ThreadPoolExecutor(1) as thread:
        fit = thread.submit(ts.fits, perceptron, pairs, OPTIMIZERS["sgd"], "1GiB", cross_entropy).result()
    assert fit.peak_bytes == ts.fits(perceptron, pairs, OPTIMIZERS["sgd"], "1GiB", cross_entropy).peak_bytes
