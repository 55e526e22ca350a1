"""From a function that makes a loss to a plan: its prediction against what is measured, its limits, what it says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn import functional

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.recompute.module_table import module_cells, ms_text
from tapescope.engine.recompute.plan import RecomputePlan
from tapescope.engine.recompute.trial_runs import Extra, Runs
from tapescope.inspector.text.sizes_and_counts import bytes_of, size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

MakeLoss = Callable[[], Tensor]


class Block(nn.Module):
    """Attention and an MLP with dropout, as in a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(self.norm(x)).chunk(3, -1)
        scores = functional.dropout(functional.softmax(query @ key.transpose(-1, -2), -1), 0.1)
        x = x + self.out(scores @ value)
        return x + self.mlp(x)


def blocks() -> MakeLoss:
    model, x = nn.Sequential(*[Block() for _ in range(3)]), torch.randn(4, 48, 32)
    return lambda: model(x).pow(2).mean()


def convolutions() -> MakeLoss:
    layers: list[nn.Module] = []
    for channels in (3, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    model, x = nn.Sequential(*layers), torch.randn(4, 3, 24, 24)
    return lambda: functional.max_pool2d(model(x), 2).pow(2).mean()


def cells() -> MakeLoss:
    cell, inputs = nn.LSTMCell(32, 32), torch.randn(12, 16, 32)

    def make_loss() -> Tensor:
        state, given = (torch.zeros(16, 32), torch.zeros(16, 32)), []
        for each in inputs:
            state = cell(each, state)
            given.append(state[0])
        return torch.stack(given).pow(2).mean()

    return make_loss


def planned(make_loss: MakeLoss, **wanted: object) -> ts.types.PlannedRecompute:
    return ts.plan_recompute(make_loss, seconds=0.1, repetitions=1, **wanted)  # type: ignore[arg-type]


def measured(make_loss: MakeLoss, plan: ts.types.RecomputePlan, policy: object = "heap") -> ts.types.Timeline:
    """Return the measured peak of a step after zero_grad()."""

    def recomputed() -> Tensor:
        with ts.recompute(plan):
            return make_loss()

    for leaf in ts.graph(recomputed()).leaves.values():  # each plan is verified once, with all of it kept
        leaf.grad = None
    timeline = ts.profile(recomputed, policy).timeline  # type: ignore[arg-type]
    assert timeline is not None
    return timeline


@pytest.mark.parametrize("workload", [blocks, convolutions, cells])
def test_the_predicted_peak_is_the_measured_one(workload: Callable[[], MakeLoss]) -> None:
    make_loss = workload()
    for share in (0.8, 0.6):
        plan = planned(make_loss, budget=share)
        assert plan.peak_bytes < plan.plain_peak_bytes
        peak = measured(make_loss, plan).peak_bytes
        assert abs(plan.peak_bytes - peak) <= 0.005 * peak
        assert plan.predicted is not None
        assert plan.predicted.peak_bytes == plan.peak_bytes
        assert plan.predicted.plain_peak_bytes == plan.plain_peak_bytes


def test_a_plan_is_for_a_step_after_zero_grad_also_where_there_is_a_grad() -> None:
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())])
    x = torch.randn(64, 64)

    def make_loss() -> Tensor:
        return model(x).pow(2).mean()

    before = planned(make_loss, budget=0.6)
    make_loss().backward()
    after = planned(make_loss, budget=0.6)
    assert after.plain_peak_bytes == before.plain_peak_bytes
    peak = measured(make_loss, after).peak_bytes
    assert abs(after.peak_bytes - peak) <= 0.005 * peak


def test_a_budget_is_reached_if_it_can_be(snapshot: Snapshots) -> None:
    make_loss = blocks()
    half = planned(make_loss, budget=0.5)
    assert half.met and half.peak_bytes <= half.plain_peak_bytes // 2
    least = planned(make_loss, budget=1)
    assert not least.met and least.peak_bytes <= half.peak_bytes
    above = size_text(least.peak_bytes - 1)  # how far the search comes depends on the machine
    says(least.notes[0], "1 B", above)
    snapshot("plan_recompute", least.notes[0].replace(above, "SIZE"))


def test_where_a_budget_is_out_of_reach_it_is_said_how_much_plans_can_let_go_of(snapshot: Snapshots) -> None:
    plan = planned(blocks(), budget=1)
    saved = plan.plain.category_levels[Category.SAVED][plan.plain.peak_place]
    assert 0 < plan.within_reach_bytes <= saved
    says(plan.sentences[-1], size_text(plan.plain_peak_bytes), size_text(plan.within_reach_bytes))
    snapshot("plan_recompute", plan.sentences[-1])
    reached = planned(blocks(), budget=0.8)
    says_none_of("\n".join(reached.sentences), size_text(reached.within_reach_bytes))

    weight, x = torch.randn(256, 256, requires_grad=True), torch.randn(4, 256)
    beyond = planned(lambda: (x @ weight).tanh().sum(), budget=0.5)
    assert beyond.left_alone is not None and beyond.within_reach_bytes < 0.1 * beyond.plain_peak_bytes


def test_no_more_time_is_taken_than_is_allowed() -> None:
    plan = planned(blocks(), overhead=20.0)
    assert plan.predicted is not None and plan.left_alone is None and plan.met
    assert plan.plain_peak_bytes > plan.peak_bytes
    assert plan.predicted.seconds <= 21 * plan.predicted.plain_seconds


@pytest.mark.parametrize("share", [0.2, 1.0, 4.0])
def test_what_replays_are_measured_to_take_counts(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """If recomputation is faster than estimated, the plan may drop more; if it is slower, less."""
    found = {}
    for each in (1.0, share):

        def extra(runs: Runs, plan: RecomputePlan, each: float = each) -> Extra:
            runs.plain_ns = 1e7
            return Extra(0.0, each * sum(runs.storages[number].replay_ns for number in plan.dropped))

        monkeypatch.setattr(Runs, "extra", extra)
        monkeypatch.setattr(Runs, "_prices", lambda runs: (0.0, 1e4))
        found[each] = planned(blocks(), overhead=0.05)
        assert found[each].met and found[each].predicted is not None
        assert 0 < found[each].predicted.replay_seconds <= 0.05 * found[each].predicted.plain_seconds
    difference = found[share].peak_bytes - found[1.0].peak_bytes
    assert (difference > 0) - (difference < 0) == (share > 1) - (share < 1)


def test_operations_too_small_are_left_alone(snapshot: Snapshots) -> None:
    plan = planned(cells(), overhead=0.001)
    assert plan.left_alone is not None and not plan.dropped
    assert plan.left_alone_because == "too small"
    says(plan.left_alone, "0.1 %", size_text(plan.plain_peak_bytes))
    assert plan.peak_bytes == plan.plain_peak_bytes
    assert str(plan) == plan.left_alone
    snapshot("plan_recompute", repr(plan))


def test_what_fits_the_budget_is_left_alone(snapshot: Snapshots) -> None:
    plan = planned(cells(), budget=2**40)
    assert plan.left_alone_because == "within budget"
    says(plan.left_alone, size_text(plan.plain_peak_bytes), "1.0 TiB (1.1 TB)")
    snapshot("plan_recompute", plan.left_alone)


def test_a_budget_is_a_size_as_people_write_it(snapshot: Snapshots) -> None:
    for text, nbytes in (("8GB", 8 * 10**9), ("8 GiB", 8 * 2**30), ("1.5 mib", 3 * 2**19), ("100 B", 100)):
        assert bytes_of(text, "budget", "bytes") == nbytes
    with raises(ValueError, "budget", "'0.5'", 0.5, '"8GB"') as raised:
        planned(cells(), budget="0.5")
    snapshot("plan_recompute", raised.value)
    make_loss = blocks()
    plan = planned(make_loss, budget="1 MB")
    assert plan.met and plan.peak_bytes <= 10**6 < plan.plain_peak_bytes
    beyond = planned(make_loss, budget="1 kB")
    assert not beyond.met
    says(beyond, "1000 B", size_text(beyond.peak_bytes - 1000))
    frontier = plan.explore(0.2)
    assert frontier.within("1 MB").peak_bytes <= 10**6
    with raises(ValueError, "2 KiB (2.0 kB)"):
        frontier.within("2KiB")


def test_what_gains_nothing_is_left_alone(snapshot: Snapshots) -> None:
    x, weight = torch.randn(16, 16), torch.randn(16, 16, requires_grad=True)
    plan = planned(lambda: (x @ weight).sum(), overhead=100.0)
    assert plan.left_alone_because == "no lower peak"
    says(plan.left_alone, size_text(plan.plain_peak_bytes), "1 %")
    snapshot("plan_recompute", plan.left_alone)
    assert plan.predicted is not None and 0 < plan.predicted.plain_seconds < 60  # a step was timed all the same


def test_all_is_put_back() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)), torch.randn(64, 8)
    model(x).sum().backward()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    gradients = [each.grad for each in model.parameters()]
    copies = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    state = torch.get_rng_state()
    planned(lambda: model(x).pow(2).sum(), budget=0.8)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is gradient for each, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(each.grad, copy) for each, copy in zip(model.parameters(), copies, strict=True))  # type: ignore[arg-type]


def test_a_plan_leaves_the_gradients_as_they_are_and_is_read_from_its_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 48, 32)

    def gradients(plan: ts.types.RecomputePlan | None) -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        if plan is None:
            loss = model(x).pow(2).mean()
        else:
            with ts.recompute(plan):
                loss = model(x).pow(2).mean()
        loss.backward()
        return [each.grad for each in model.parameters() if each.grad is not None]

    plan = planned(lambda: model(x).pow(2).mean(), budget=0.6)
    read = ts.types.RecomputePlan.load(plan.save(tmp_path / "plan.json"))
    assert read.dropped == plan.dropped and read.predicted == plan.predicted
    expected = gradients(None)
    for each in (plan, read):
        for _ in range(2):
            assert all(map(torch.equal, gradients(each), expected))


def test_what_is_written_behind_torch_is_not_dropped(snapshot: Snapshots) -> None:
    weight = torch.randn(64, 64, requires_grad=True)

    def make_loss() -> Tensor:
        table = torch.zeros(64, 64)
        table.numpy()[:] = np.arange(64)
        return (weight * table).tanh().exp().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = planned(make_loss, budget=0.1)
    (zeros,) = [each for each in plan.storages if each.operation.startswith("aten.zeros")]
    assert zeros.fate == "kept"
    assert list(plan.banned) == [zeros.number]
    (said,) = [each for each in plan.notes if "aten.zeros" in each]
    says(said, plan.banned[zeros.number])
    snapshot("plan_recompute", said)


def test_the_order_is_searched_again_for_the_recomputed_backward_and_saved(tmp_path: Path, snapshot: Snapshots) -> None:
    shared, inputs = nn.Linear(64, 64), torch.randn(6, 256, 64)

    def make_loss() -> Tensor:
        return torch.stack([shared(each).tanh().sin().exp() for each in inputs]).sum()

    plan = planned(make_loss, budget=0.9, policy="dfs")
    assert plan.order_name == "dfs" and plan.policy != "heap"
    (said,) = [each for each in plan.sentences if "ts.backward(loss, policy=plan.policy)" in each]
    says(said, "dfs")
    says(plan.sentences[0], size_text(plan.plain_peak_bytes), size_text(plan.peak_bytes), "dfs")
    snapshot("plan_recompute", said)
    best = planned(make_loss, budget=0.9, policy="auto")
    assert best.peak_bytes <= plan.peak_bytes
    for each in (plan, best):
        read = ts.types.RecomputePlan.load(each.save(tmp_path / "plan.json"))
        assert read.planned_order == each.planned_order
        timeline = measured(make_loss, read, read.policy)
        assert timeline.order == each.order
        assert abs(each.peak_bytes - timeline.peak_bytes) <= 0.005 * timeline.peak_bytes


def test_the_plan_is_printed_as_a_table_and_what_it_says() -> None:
    plan = planned(blocks(), budget=0.6)
    assert plan.cells == module_cells(plan)
    assert any(row[0].startswith("*.") for row in plan.cells[1:]), "equal blocks are one row"
    text = str(plan)
    words = set(text.split())  # a cell whose times need more space takes two lines
    assert all(words.issuperset(cell.split()) for row in plan.cells for cell in row)
    assert all(sentence in text for sentence in plan.sentences)
    says(text, size_text(plan.plain_peak_bytes), size_text(plan.peak_bytes))
    assert plan.predicted is not None
    says(plan.sentences[1], ms_text(plan.predicted.plain_seconds), ms_text(plan.predicted.replay_seconds))


def test_names_from_user_code_are_escaped() -> None:
    model = nn.Sequential()
    model.add_module("<b>", Block())
    x = torch.randn(4, 48, 32)
    html = planned(lambda: model(x).sum(), budget=0.7)._repr_html_()
    assert "<b>." not in html and "&lt;b&gt;" in html


@pytest.mark.parametrize(
    ("wanted", "error", "facts"),
    [
        ({"budget": 1.5}, ValueError, ("budget", 1.5)),
        ({"budget": 0}, ValueError, ("budget", 0, 0.5)),
        ({"budget": "0 GiB"}, ValueError, ("budget", "'0 GiB'")),
        ({"budget": "half"}, ValueError, ("budget", "'half'")),
        ({"budget": "8G"}, ValueError, ("budget", "'8G'", "GB", "GiB")),
        ({"budget": [8]}, TypeError, ("budget", "list")),
        ({"budget": True}, TypeError, ("budget", True)),
        ({"overhead": -0.1}, ValueError, ("overhead", -0.1, 0.06)),
        ({"solver": "luck"}, ValueError, ("solver", "'luck'", "'search'", "'greedy'")),
        ({"policy": "nonesuch"}, ValueError, ("nonesuch",)),
    ],
)
def test_what_makes_no_sense_is_refused(
    wanted: dict[str, object], error: type[Exception], facts: tuple[object, ...], snapshot: Snapshots
) -> None:
    def make_loss() -> Tensor:
        raise AssertionError("nothing has run by then")

    with raises(error, *facts) as raised:
        planned(make_loss, **wanted)
    if "policy" not in wanted and wanted.get("budget") in (None, 1.5, "8G"):
        snapshot("plan_recompute", raised.value)


def test_around_a_ctc_loss_the_rest_is_recomputed() -> None:
    """Under a mode, PyTorch computes it by another overload, which creates another node."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 20))
    x, targets = torch.randn(50, 8, 32), torch.randint(1, 20, (8, 10))
    lengths = torch.full((8,), 50), torch.full((8,), 10)

    def make_loss() -> Tensor:
        return functional.ctc_loss(model(x).log_softmax(-1), targets, *lengths)

    plan = ts.plan_recompute(make_loss, 0.9, seconds=1.0)
    assert plan.met and plan.left_alone is None
    make_loss().backward()
    expected = [each.grad for each in model.parameters()]
    model.zero_grad()
    with ts.recompute(plan) as recomputed:
        loss = make_loss()
    loss.backward()
    assert recomputed.report.dropped > 0
    assert all(torch.equal(each.grad, other) for each, other in zip(model.parameters(), expected, strict=True))


def test_a_sparse_gradient_that_is_there_stands_in_no_way() -> None:
    table, out = nn.Embedding(40, 16, sparse=True), nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    ids = torch.randint(0, 40, (32, 4))

    def make_loss() -> Tensor:
        return out(table(ids)).square().mean()

    make_loss().backward()
    wanted = [parameter.grad.to_dense() for parameter in (*table.parameters(), *out.parameters())]
    plan = ts.plan_recompute(make_loss, budget=0.7)
    assert plan.peak_bytes < plan.plain_peak_bytes
    for parameter in (*table.parameters(), *out.parameters()):
        parameter.grad = None
    with ts.recompute(plan):
        loss = make_loss()
    loss.backward()
    found = [parameter.grad.to_dense() for parameter in (*table.parameters(), *out.parameters())]
    assert all(map(torch.equal, found, wanted))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_around_nested_tensors_the_rest_is_recomputed() -> None:
    linear, mlp = nn.Linear(4, 3), nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
    parts, x = [torch.randn(2, 4), torch.randn(3, 4)], torch.randn(256, 64)

    def make_loss() -> Tensor:
        nested = torch.nested.nested_tensor(parts, layout=torch.strided)
        return torch.nested.to_padded_tensor(linear(nested).sin(), 0.0).square().sum() + mlp(x).square().mean()

    plan = ts.plan_recompute(make_loss, budget=0.8)
    assert plan.dropped
    leaves = [*linear.parameters(), *mlp.parameters()]
    wanted = torch.autograd.grad(make_loss(), leaves)
    with ts.recompute(plan):
        loss = make_loss()
    assert all(map(torch.equal, torch.autograd.grad(loss, leaves), wanted))


def test_what_repeats_one_element_is_compared_as_any_other() -> None:
    """For example `ones_like` of an expanded gradient, in a backward inside the forward."""
    net = nn.Sequential(nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 1))
    x = torch.randn(8, 32)

    def make_loss() -> Tensor:
        z = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(net(z).sum(), z, create_graph=True)
        return net(x).mean() + gradient.square().sum()

    assert not ts.plan_recompute(make_loss, budget=0.7).banned


def test_hooks_that_are_disabled_are_refused_by_name(snapshot: Snapshots) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)

    def make_loss() -> Tensor:
        return net(x).sum()

    def disabling() -> Tensor:
        with disable_saved_tensors_hooks("not in here"):
            return net(x).sum()

    def differentiating() -> Tensor:
        return torch.func.grad(lambda each: net(each).sum())(x).sum() + net(x).sum()

    plan = ts.plan_recompute(lambda: (net(x) * 1).sum(), overhead=1.0)
    with disable_saved_tensors_hooks("not here"):
        with raises(NotImplementedError, "ts.plan_recompute", "saved_tensors_hooks", "(not here)") as raised:
            ts.plan_recompute(make_loss)
        snapshot("plan_recompute", raised.value)
        if plan.dropped:
            with raises(NotImplementedError, "ts.recompute", "saved_tensors_hooks"), ts.recompute(plan):
                make_loss()
    for forward in (disabling, differentiating):
        line = forward.__code__.co_firstlineno + 1
        with raises(NotImplementedError, f"test_plan_recompute.py:{line}"):
            ts.plan_recompute(forward)
    assert not any(parameter.grad is not None for parameter in net.parameters())
