"""The memory that a loop holds, by category: to the byte, in the sampled steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tapescope as ts
from tapescope.engine.training.memory_samples import BASELINE, HELD
from tapescope.tests.says import says

pytestmark = pytest.mark.filterwarnings("ignore:ts.training")

WEIGHTS = 4 * (4 * 8 + 8 + 8 + 1)


def trained(keep: bool, steps: int = 9) -> ts.types.Training:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    with ts.training(model, optimizer) as training:
        for _ in range(steps):
            optimizer.zero_grad()
            out = model(torch.ones(3, 4))
            out.sum().backward()
            optimizer.step()
            if keep:
                kept.append(out)
    return training


def test_bytes_are_those_of_the_loops_own_tensors_when_the_backward_begins() -> None:
    training = trained(keep=False)
    assert training.memory.firsts.tolist() == [1, 2, 4, 8]
    held = dict(zip(HELD, training.memory.values[-1].tolist(), strict=True))
    assert held == {
        "parameters": WEIGHTS,
        "optimizer state": 2 * WEIGHTS + 4 * 4,  # two moments, and a step of each parameter
        "gradients": 0,  # zero_grad() has set them to None
        "batch": 4 * 3 * 4,
        "activations": 4 * 3 * 8,  # the result of tanh
        "earlier steps": 0,
    }


def test_the_sum_is_that_of_one_moment_with_the_gradients_of_earlier_micro_batches() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer) as training:
        for _ in range(3):
            for rows in (3, 5):
                model(torch.ones(rows, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    held = dict(zip(HELD, training.memory.values[-1].tolist(), strict=True))
    # The second backward begins with more: its batch is larger, and the first one's gradients are there.
    assert (held["gradients"], held["batch"], held["activations"]) == (WEIGHTS, 4 * 5 * 4, 4 * 5 * 8)


def test_a_loop_that_drops_each_loss_holds_nothing_of_earlier_steps() -> None:
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    optimizer = torch.optim.Adam(model.parameters())
    with ts.training(model, optimizer) as training:
        for _ in range(18):
            tokens = torch.randint(16, (4, 9))
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del loss
    assert training.memory.values[:, HELD.index("earlier steps")].tolist() == [0, 0, 0, 0, 0]  # steps 1 to 16


def test_batches_that_a_loader_has_fetched_in_advance_are_the_batch() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rows, labels, unused = torch.randn(40, 4), torch.randint(2, (40,)), torch.randn(40, 6)

    def prefetched(loader: Iterable[list[Tensor]]) -> Iterator[list[Tensor]]:
        batches = iter(loader)
        following = next(batches)
        for batch in batches:
            current, following = following, batch
            yield current

    with ts.training(model, optimizer) as training:
        loader = DataLoader(TensorDataset(rows, labels, unused), batch_size=4)
        for x, y, _ in prefetched(loader):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert training.memory.firsts.tolist() == [1, 2, 4, 8]
    each = 4 * (4 * 4 + 8 + 6 * 4)
    held = [dict(zip(HELD, row, strict=True)) for row in training.memory.values.tolist()]
    assert [(row["batch"], row["earlier steps"]) for row in held] == [(2 * each, 0)] * 4


@pytest.mark.parametrize("by_name", [False, True])
def test_the_batch_is_not_among_the_activations_and_what_the_forward_makes_is(by_name: bool) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, rows: Tensor) -> Tensor:
            return self.outer(self.inner(rows) * torch.rand(3, 8))

    model, batch, target = Masked(), torch.ones(3, 4), torch.ones(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer) as training:
        for _ in range(4):
            out = model(rows=batch) if by_name else model(batch)
            nn.functional.mse_loss(out, target).backward()
            optimizer.step()
            optimizer.zero_grad()
    held = dict(zip(HELD, training.memory.values[-1].tolist(), strict=True))
    mask = product = 4 * 3 * 8
    assert (held["batch"], held["activations"]) == (batch.nbytes + target.nbytes, mask + product + 4 * 3)


@pytest.mark.parametrize("clears_late", [False, True])
def test_a_baseline_is_to_the_byte_what_a_recording_of_the_steps_has(clears_late: bool) -> None:
    model = nn.Sequential(
        nn.Linear(64, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 10)
    )
    optimizer = torch.optim.Adam(model.parameters())
    with ts.training(model, optimizer) as training, ts.record_steps(steps=3) as recorded:
        for _ in range(4):
            images, labels = torch.randn(128, 64), torch.randint(10, (128,))
            out = model(images)
            if clears_late:  # the gradients of the last step exist while the forward runs
                optimizer.zero_grad()
            nn.functional.cross_entropy(out, labels).backward()
            optimizer.step()
            if not clears_late:
                optimizer.zero_grad()
    assert training.baselines.firsts.tolist() == [1, 2]
    for step, row in zip((1, 2), training.baselines.values.tolist(), strict=True):
        parts = recorded[step].timeline.baseline.parts
        assert dict(zip(BASELINE, row, strict=True)) == {kind: parts.get(kind, 0) for kind in BASELINE}
        assert row[BASELINE.index("optimizer state")] > 2**24, "more than float32 counts to the byte"
        assert (row[BASELINE.index("gradients")] > 0) == clears_late


def test_a_baseline_has_what_a_profile_of_the_same_forward_has() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer, batch = torch.optim.Adam(model.parameters()), torch.ones(3, 4)
    with ts.training(model, optimizer) as training:
        for _ in range(2):
            model(batch).sum().backward()
            optimizer.step()
    assert training.baselines.firsts.tolist() == [1]
    profile = ts.profile(lambda: model(batch).sum())
    assert profile.timeline is not None
    before = dict(zip(BASELINE, training.baselines.values[0].tolist(), strict=True))
    assert before == profile.timeline.baseline.parts and before["gradients"] == before["parameters"]


def test_what_earlier_steps_keep_is_in_it_where_leaks_are_looked_for() -> None:
    training = trained(keep=True)
    earlier = training.memory.values[:, HELD.index("earlier steps")].tolist()
    leak = next(each for each in training.findings if each.kind == "leak")
    assert earlier[0] == 0 and earlier == sorted(earlier) and 0 < earlier[-1] <= (leak.size or 0)


def test_each_hundredth_step_is_looked_at_and_what_is_seldom_asked_for_costs_no_walk() -> None:
    training = trained(keep=False, steps=205)
    assert training.memory.firsts.tolist() == [1, 2, 4, 8, 16, 32, 64, 100, 128, 200]


def kept_in_a_loop(keep: Callable[[list[object], Tensor], object], steps: int = 20) -> tuple[ts.types.Training, int]:
    """The training, and how many bytes a step's features take."""
    encoder, head = nn.Linear(8, 1024), nn.Linear(1024, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=1e-3)
    kept: list[object] = []
    with ts.training([encoder, head], optimizer) as training:
        for _ in range(steps):
            features = encoder(torch.ones(64, 8))
            head(features).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            keep(kept, features)
    return training, features.nbytes


@pytest.mark.parametrize(
    ("keep", "name"),
    [
        (lambda kept, features: kept.append(features.detach()), "kept[0]"),
        (lambda kept, features: kept.append(features.detach()[:1]), "kept[0]"),
        (lambda kept, features: kept.append({"x": features.detach().clone()}), "kept[0]['x']"),
    ],
    ids=["detached", "a view", "a copy"],
)
def test_tensors_without_a_graph_that_a_loop_keeps_are_in_it_and_named(
    keep: Callable[[list[object], Tensor], object], name: str
) -> None:
    training, nbytes = kept_in_a_loop(keep)
    earlier = training.memory.values[:, HELD.index("earlier steps")]
    firsts = training.memory.firsts
    assert firsts.tolist() == [1, 2, 4, 8, 16]
    assert (earlier - firsts * nbytes).abs().max() < nbytes  # one of each step before
    (leak,) = training.findings
    assert (leak.kind, leak.step, leak.last_step, leak.certain) == ("leak", 8, 16, False)
    assert leak.tensor is not None and leak.tensor.endswith(name) and leak.alike == 16
    assert leak.size is not None and abs(leak.size - 16 * nbytes) < nbytes
    says(leak, f"{nbytes // 2**10} KiB")


@pytest.mark.parametrize(
    "keep",
    [
        lambda kept, features: kept.append(features.detach().mean()),
        lambda kept, features: kept.__setitem__(slice(None), [features.detach()]),
        lambda kept, features: kept or kept.append(features.detach()),
        lambda kept, features: kept.__setitem__(slice(None), [*kept[-3:], features.detach()]),
    ],
    ids=["numbers", "the last", "the first", "the last four"],
)
def test_what_a_loop_keeps_and_does_not_add_to_is_not_found(keep: Callable[[list[object], Tensor], object]) -> None:
    training, _ = kept_in_a_loop(keep)
    assert training.findings == []


def test_data_loaded_after_the_watching_began_is_not_memory_of_earlier_steps() -> None:
    with ts.training() as training:  # as `tapescope run` does, before the script's first line
        model, data = nn.Linear(8, 1), torch.randn(64, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        kept = []
        for step in range(9):
            out = model(data[step : step + 4])
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(out.detach())
    earlier = training.memory.values[:, HELD.index("earlier steps")].tolist()
    assert max(earlier) < data.nbytes and earlier[-1] == pytest.approx(8 * out.nbytes, abs=out.nbytes)


@pytest.mark.parametrize(
    "together",
    [
        lambda parts: nn.ModuleDict(parts),
        lambda parts: nn.ModuleDict({"all": nn.ModuleDict(parts)}),
        lambda parts: nn.ModuleList(parts.values()),
    ],
    ids=["dict", "dict in a dict", "list"],
)
def test_a_container_that_only_the_call_holds_names_its_parts(
    together: Callable[[dict[str, nn.Module]], nn.Module],
) -> None:
    parts: dict[str, nn.Module] = {"encoder": nn.Linear(4, 8), "head": nn.Linear(8, 1)}
    names = [name for name, _ in together(parts).named_parameters()]
    optimizer = torch.optim.SGD([each for part in parts.values() for each in part.parameters()], lr=0.1)
    with ts.training(together(parts), optimizer) as training:
        for _ in range(3):
            parts["head"](parts["encoder"](torch.ones(2, 4))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert [name for name, _ in training.watched.parameters()] == names
    assert training.memory.values[0, HELD.index("parameters")] == 4 * (4 * 8 + 8 + 8 + 1)
