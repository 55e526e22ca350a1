"""A dry run against torch.profiler's view of a real backward; and the dry run changes nothing."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.estimates import (
    COMPILED,
    HIDDEN,
    HOOKED,
    NEED_VALUES,
    NOT_CALLED,
    OF_A_SUBCLASS,
    OTHER_FORMULAS,
    REENTRANT,
    UNLISTED_HOOKS,
    WORKSPACE,
    limit_sentence,
)
from tapescope.engine.memory.kernel_workspaces import NOT_LISTED
from tapescope.engine.planning.simulate import schedule, simulate
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.says import Snapshots, raises, says

from ..comparing import compiled_loss
from ..profiled import profiled
from ..sizes import LARGEST_SLOW, built

# Why the prediction is none to the byte, and by how much it may be off.
ESTIMATES: dict[str, tuple[tuple[str, ...], float]] = {
    "lstm_lm": (("mkldnn_rnn_layer_backward", NOT_LISTED), 0.2),
    "seq2seq": (("mkldnn_rnn_layer_backward", NOT_LISTED), 0.11),
    # An instance norm gives a view, and so a ReLU in place behind it is a CopySlices.
    "cyclegan": ((HIDDEN,), 0.04),
    "recommender": ((OTHER_FORMULAS["BinaryCrossEntropy"],), 0.01),
    "din": ((OTHER_FORMULAS["BinaryCrossEntropy"],), 0.01),
}


def order_of(graph: ts.Graph, policy: str) -> list[int]:
    pick = random.Random(policy)
    return schedule(graph, (lambda ready, state: pick.choice(ready)) if policy.startswith("random") else policy)


@pytest.mark.heavy
@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_workloads_peak_as_a_dry_run_says(name: str) -> None:
    model, forward = built(name)

    def make_loss() -> Tensor:
        model.zero_grad(set_to_none=True)
        return forward()

    loss = make_loss()
    graph = ts.graph(loss)
    footprints = dry_run(graph)
    why, off = ESTIMATES.get(name, ((), 0.0))
    told = [limit for limit in footprints.limits if limit != WORKSPACE]
    assert len(told) == bool(why) and all(part in limit for limit in told for part in why)
    assert (WORKSPACE in footprints.limits) is (NOT_LISTED in why)
    for policy in ("bfs", "dfs", "heap", "random 1", "random 2"):
        expected = profiled(make_loss, lambda graph, policy=policy: order_of(graph, policy))
        found = simulate(graph, expected.order, footprints)
        assert found.start_bytes == expected.start
        if name == "cyclegan":  # what a CopySlices keeps is not seen, and so taken to be held by the user to the end
            assert found.end_bytes >= expected.end
        else:
            assert found.end_bytes == expected.end
        assert found.peak_bytes == pytest.approx(expected.peak, rel=off, abs=0)


def test_equal_tasks_share_one_footprint() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8)) for _ in range(20)])
    graph = ts.graph(model(torch.randn(4, 8)).sum())
    tasks = dry_run(graph).tasks
    of_linear = [tasks[task.id] for task in graph.tasks if task.name == "AddmmBackward0"]
    assert len(of_linear) == 20
    assert len(set(map(id, of_linear))) == 2  # the first takes an input that needs no gradient


def test_tasks_that_differ_in_what_is_saved_do_not_share_one() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    graph = ts.graph((x.sum(0, keepdim=True) + x.sum(1, keepdim=True)).sum())
    tasks = dry_run(graph).tasks
    sums = {task.id: tasks[task.id] for task in graph.tasks if task.name == "SumBackward1"}
    layouts = {each.outputs[0].layout.strides for each in sums.values() if each and each.outputs[0]}
    assert layouts == {(0, 1), (1, 0)}


def test_temporaries_of_a_formula_come_in_their_true_order() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    graph = ts.graph(x.pow(3).sum())
    power = next(task.id for task in graph.tasks if task.name == "PowBackward0")
    footprint = dry_run(graph).tasks[power]
    assert footprint is not None
    # x ** 2, 3 * that, the 3 as a tensor of 8 bytes and then of 4, and their product with the gradient
    assert footprint.blocks == (16384, 16384, 12, 16384)
    assert footprint.trace == (0, 1, 2, ~2, 3, ~1, ~0)
    expected = profiled(lambda: x.pow(3).sum(), lambda graph: schedule(graph, "heap"))
    measured = expected.tasks[expected.order.index(power)]
    assert [change for change in measured if abs(change) > 8][:5] == [16384, 16384, 16384, -16384, -16384]
    assert simulate(graph, expected.order).peak_bytes == expected.peak


def test_nothing_changes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.BatchNorm1d(8), nn.Linear(8, 1))
    called = []
    x = torch.randn(16, 8, requires_grad=True)
    x.register_hook(called.append)
    hidden = model[0](x)
    hidden.register_hook(called.append)
    hidden.retain_grad()
    loss = Scaled.apply(model[3](model[2](model[1](hidden)))).sum()
    loss.grad_fn.register_hook(lambda *gradients: called.append(gradients))
    model[0].bias.grad = torch.ones(8)
    model[3].weight.register_post_accumulate_grad_hook(called.append)
    graph = ts.graph(loss)
    saved = {(each.task, each.slot): each for each in graph.saved}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state, numbers = torch.get_rng_state(), [node._sequence_nr() for node in graph.nodes]
    footprints = dry_run(graph)
    assert not called and hidden.grad is None and x.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    assert [node._sequence_nr() for node in graph.nodes] == numbers
    assert torch.equal(model[0].bias.grad, torch.ones(8))
    assert all(leaf.grad is None for name, leaf in model.named_parameters() if name != "0.bias")
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert {(each.task, each.slot): each for each in ts.graph(loss).saved} == saved
    assert torch.is_grad_enabled()
    assert type(x * 1) is Tensor  # no mode is left
    assert any(HOOKED in limit for limit in footprints.limits)
    loss.backward()
    assert called and torch.isfinite(x.grad).all() and not torch.equal(model[0].bias.grad, torch.ones(8))
    called.clear()  # it holds a parameter, whose hook holds it


class Scaled(torch.autograd.Function):
    """A custom Function whose backward draws random numbers, and writes into a tensor at hand."""

    touched = torch.zeros(3)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Scaled.touched.add_(1)
        return gradient * torch.rand_like(gradient)


def test_a_custom_functions_code_is_not_called_and_a_measured_run_knows_what_it_does(snapshot: Snapshots) -> None:
    Scaled.touched.zero_()
    x = weight(32, 32)

    def make_loss() -> Tensor:
        x.grad = None
        return Scaled.apply(x).sum()

    graph = ts.graph(make_loss())
    footprints = dry_run(graph)
    assert torch.equal(Scaled.touched, torch.zeros(3)) and x.grad is None
    (task_id,) = [task.id for task in graph.tasks if task.name == "ScaledBackward"]
    (limit,) = footprints.limits
    assert NOT_CALLED in limit
    says(limit, graph.describe(task_id))
    snapshot("simulate", limit)
    assert footprints.tasks[task_id] is not None and footprints.tasks[task_id].blocks == (4096,)
    assert footprints.limits == simulate(graph, "heap", footprints).estimates
    run = ts.profile(make_loss)
    assert torch.equal(Scaled.touched, torch.ones(3))
    assert simulate(graph, "heap", run.footprints).peak_bytes == run.peak_bytes > 2 * 4096


class InPlace(torch.autograd.Function):
    called = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        InPlace.called += 1
        return gradient * 2


class Counting(Tensor):
    """Counts the operations on it."""

    called = 0

    @staticmethod
    def __new__(cls, inner: Tensor) -> Counting:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.called += 1
        return operator(*(each.inner if isinstance(each, Counting) else each for each in args), **(kwargs or {}))


def test_a_custom_function_that_slices_hide_is_not_called() -> None:
    InPlace.called = 0
    x = torch.randn(32, 32, requires_grad=True)
    y = x.clone()
    InPlace.apply(y[:4])
    loss = y.sum()
    other = Scaled.apply(x * 2)  # is not hidden there
    limits = " ".join(dry_run(ts.graph(loss)).limits)
    assert NOT_CALLED in limits
    says(limits, "torch::autograd::CopySlices")
    assert not InPlace.called
    z = x.clone()
    z[:4] = 1
    assert NOT_CALLED not in " ".join(dry_run(ts.graph(z.sum())).limits)
    del other
    loss.backward()
    assert InPlace.called == 1


class Named(Tensor):
    """A subclass that runs operations as any tensor does."""


@pytest.mark.parametrize("kind", [Tensor, Named])
def test_the_operations_of_a_subclass_are_not_called(kind: type[Tensor]) -> None:
    x, weight = torch.randn(4, 4).as_subclass(kind).requires_grad_(), Counting(torch.randn(4, 4)).requires_grad_()
    loss = (weight * x).sum()
    Counting.called = 0
    (limit,) = [each for each in dry_run(ts.graph(loss)).limits if OF_A_SUBCLASS in each]
    says(limit, "MulBackward0")
    assert not Counting.called


def test_what_module_hooks_pass_on_is_known() -> None:
    module = nn.Linear(64, 64)
    called = []
    module.register_full_backward_hook(lambda *told: called.append(told))
    x = torch.randn(32, 64, requires_grad=True)

    def make_loss() -> Tensor:
        x.grad = None
        module.zero_grad()
        return module(x * 2).sum()

    loss = make_loss()
    footprints = dry_run(ts.graph(loss))
    assert not called and NOT_CALLED not in " ".join(footprints.limits)
    run = ts.profile(make_loss)
    assert called and simulate(ts.graph(loss), "heap", footprints).peak_bytes == run.peak_bytes


def test_hooks_that_pack_are_not_asked_to_unpack() -> None:
    x = torch.randn(32, 32, requires_grad=True)
    asked, forwards = [], []

    def region(x: Tensor) -> Tensor:
        forwards.append(1)
        y = x.tanh() * x
        y[:2] = 0  # CopySlices hides the node inside, whose saved tensors are packed, too
        return y

    def unpack(tensor: Tensor) -> Tensor:
        asked.append(1)
        return tensor

    for use_reentrant in (False, True):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            packed = x.exp() * x
        loss = (checkpoint(region, packed, use_reentrant=use_reentrant) * 3).sum()
        forwards.clear()
        graph = ts.graph(loss)
        footprints = dry_run(graph)
        assert not asked and not forwards
        words = " ".join(footprints.limits)
        says(words, "saved_tensors_hooks")
        assert (HIDDEN in words) is not use_reentrant  # the CopySlices of a region that is recorded
        assert (REENTRANT in words) is use_reentrant
        # The .grad, the loss, and of two more one: of the result of exp it is not known that only a pack holds it, and
        # of `packed`, the input of the region, it is assumed that nothing but the region does (a lower bound). Of a
        # reentrant one there is no telling; on its ctx is the state of the generator.
        more = torch.get_rng_state().nbytes if use_reentrant else 0
        assert simulate(graph, "heap", footprints).end_bytes == 2 * 4096 + 4 + more
        loss.backward()
        assert forwards and asked
        asked.clear()


def test_a_compiled_region_is_not_run() -> None:
    x = torch.randn(8, 8, requires_grad=True)
    loss = compiled_loss(x)
    footprints = dry_run(ts.graph(loss))
    assert any(COMPILED in limit for limit in footprints.limits)
    loss.backward()


def test_sparse_gradients_are_an_estimate() -> None:
    embedding = nn.Embedding(100, 16, sparse=True)
    words = torch.randint(100, (8,))
    graph = ts.graph(embedding(words).sum())
    footprints = dry_run(graph)
    assert any("sparse" in limit for limit in footprints.limits)
    assert simulate(graph, "heap", footprints).estimates
    assert embedding.weight.grad is None


@pytest.mark.parametrize("steps", [1, 2])
def test_a_sparse_embedding_used_twice_peaks_as_is_measured(steps: int) -> None:
    """Where two sparse gradients meet, or one meets a sparse .grad, their entries are concatenated."""
    embedding = nn.Embedding(50, 8, sparse=True)
    some, more = torch.arange(5), torch.arange(3)

    def make_loss() -> Tensor:
        return embedding(some).sum() + embedding(more).sum()

    for _ in range(steps - 1):
        make_loss().backward()
    predicted = ts.simulate(ts.graph(make_loss()), "heap")
    run = ts.profile(make_loss)
    assert predicted.peak_bytes == run.timeline.peak_bytes
    assert ts.simulate(run.graph, "bfs", run.footprints).peak_bytes == run.timeline.peak_bytes


LEAVES = {
    "coo": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "mkldnn": lambda: torch.eye(4).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("layout", LEAVES)
def test_leaves_of_every_layout_are_predicted(layout: str) -> None:
    leaf, w = LEAVES[layout]().requires_grad_(), torch.rand(4, 4, requires_grad=True)
    loss = (leaf.to_dense() * w).sin().sum()
    timeline = ts.simulate(ts.graph(loss), "heap")
    assert timeline.peak_bytes >= w.nbytes
    assert len(ts.plan_order(loss).rows) > 1
    (wanted,) = torch.autograd.grad((leaf.to_dense() * w).sin().sum(), w)
    if layout in ("coo", "csr", "mkldnn"):  # torch accumulates no gradient of the others
        ts.backward(loss, policy="lpmf")
        assert w.grad is not None and torch.equal(w.grad, wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_nested_leaf_is_predicted() -> None:
    leaf = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], requires_grad=True)
    loss = torch.nested.to_padded_tensor(nn.Linear(4, 3)(leaf), 0.0).square().sum()
    assert ts.simulate(ts.graph(loss), "heap").estimates and str(ts.plan_order(loss))


def test_nested_tensors_are_an_estimate() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    nested = torch.nested.as_nested_tensor([x, x[:2]], layout=torch.strided)
    graph = ts.graph(torch.nested.to_padded_tensor(nested * 2, 0.0).sum())
    footprints = dry_run(graph)
    assert any("nested" in limit for limit in footprints.limits)
    assert simulate(graph, "heap", footprints).estimates


def test_slices_written_in_place_are_asked() -> None:
    x, y = weight(32, 32), weight(4, 32)

    def make_loss() -> Tensor:
        x.grad = y.grad = None
        z = x.clone()
        z[:4] = y
        return z.sum()

    graph = ts.graph(make_loss())
    footprints = dry_run(graph)
    assert footprints.limits == ()
    for policy in ("heap", "bfs"):
        expected = profiled(make_loss, lambda graph, policy=policy: schedule(graph, policy))
        assert simulate(graph, policy, footprints).peak_bytes == expected.peak


def test_what_slices_alone_keep_is_said_to_be_hidden() -> None:
    x, y = torch.randn(32, 32, requires_grad=True), torch.randn(4, 32, requires_grad=True)
    z = x.clone()
    z[:4].mul_(y.exp() + 1)  # the node inside keeps the product's other factor, which nothing else does
    graph = ts.graph(z.sum())
    slices = next(task.id for task in graph.tasks if "CopySlices" in task.name)
    hidden = limit_sentence(graph, HIDDEN, [slices])
    footprints = dry_run(graph)
    assert hidden in footprints.limits and hidden in footprints.unsure


def test_what_counts_as_made_by_the_forward() -> None:
    held, weight = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)

    def make_loss() -> Tensor:
        weight.grad = None
        hidden = held @ weight.t()  # held and weight were there before, and so was the view of weight
        mask = torch.rand(64, 64) > 0.5  # no graph, and nothing but the product holds it
        return (hidden.exp() * mask).sum()

    with ts.capture():
        graph = ts.graph(make_loss())
    start = dry_run(graph).start
    found = {(storage.nbytes, storage.held): storage for storage in start}
    assert sorted(storage.nbytes for storage in start) == [4, 4096, 16384]
    result, loss = found[16384, False], found[4, True]
    assert [graph.tasks[task].name for task, _ in result.keepers] == ["ExpBackward0"]
    assert result.made_by.operation.name == "torch.Tensor.exp"
    assert loss.keepers == () and loss.made_by.operation.name == "torch.Tensor.sum"
    expected = profiled(make_loss, lambda graph: schedule(graph, "heap"))
    assert simulate(graph).start_bytes == expected.start


def test_an_output_that_is_the_root_and_saved_is_there_once() -> None:
    x = torch.randn((), requires_grad=True)
    loss = x.exp()
    assert [storage.nbytes for storage in dry_run(ts.graph(loss)).start] == [4]


def test_the_gradient_of_a_root_that_is_no_scalar_is_the_callers() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    scalar, matrix = x.exp().sum(), x.tanh()
    assert [layout is None for layout in dry_run(ts.graph([scalar, matrix])).roots] == [False, True]


def test_graphs_that_cannot_be_asked(tmp_path: Path, snapshot: Snapshots) -> None:
    x = torch.randn(4, requires_grad=True)
    loss = x.exp().sum()
    graph = ts.graph(loss)
    run = ts.backward(loss)
    with raises(RuntimeError, "ExpBackward0") as freed:
        dry_run(graph)
    with raises(ValueError) as without_nodes:
        dry_run(ts.load(run.save(tmp_path / "run.tape.json")).graph)
    snapshot("simulate", f"{freed.value}\n{without_nodes.value}")


def test_memory_of_another_device_is_counted_apart() -> None:
    _, forward = WORKLOADS["linear50"].build(device="meta", uses=3)
    graph = ts.graph(forward())
    on_meta, on_cpu = dry_run(graph, "meta"), dry_run(graph, "cpu")
    _, real_forward = WORKLOADS["linear50"].build(uses=3)
    expected = profiled(real_forward, lambda graph: schedule(graph, "bfs"))
    assert simulate(graph, "bfs", on_meta).peak_bytes == pytest.approx(expected.peak, abs=64)
    assert len(simulate(graph, "bfs", on_cpu)) == 0


def weight(*shape: int) -> Tensor:
    return nn.Parameter(torch.randn(*shape))


# The kernel's workspace is at the peak of each. BLAS cannot read an expanded gradient; a matrix that is
# transposed is copied by blocks; what is summed in another dtype is cast first.
KERNELS: dict[str, tuple[Any, ...]] = {  # what is done to leaves, and their shapes
    "product, summed": (lambda w: (torch.ones(512, 64) @ w).sum(), (64, 64)),
    "both factors, summed": (lambda x, w: (x @ w).sum(), (512, 64), (64, 64)),
    "product, summed over rows": (lambda x, w: (x @ w).sum(0).exp().sum(), (512, 64), (64, 64)),
    "product, summed over columns": (lambda x, w: (x @ w).sum(1).exp().sum(), (512, 64), (64, 64)),
    "layer of one output": (lambda w, b: linear(torch.ones(512, 64), w, b).sum(), (1, 64), (1,)),
    "layer": (lambda w, b: linear(torch.ones(512, 64), w, b).sum(), (64, 64), (64,)),
    "layers": (lambda v, w: linear(linear(torch.ones(512, 64), v).relu(), w).sum(), (64, 64), (10, 64)),
    "layer in three dimensions": (lambda x, w: linear(x, w).sum(), (8, 16, 64), (64, 64)),
    "batch of products": (lambda x, w: (x @ w).sum(), (8, 16, 64), (8, 64, 32)),
    "batch of small products": (lambda x, w: (x @ w).sum(), (8, 4, 4), (8, 4, 4)),
    "product of every other column": (lambda w: (torch.ones(64, 128)[:, ::2] @ w).sin().sum(), (64, 64)),
    "vector": (lambda w, v: (w @ v).sum(), (64, 64), (64,)),
    "transposed, for .grad": (lambda w: (w.t() * torch.ones(64, 64)).sum(), (64, 64)),
    "transposed, too small": (lambda w: (w.t() * torch.ones(59, 59)).sum(), (59, 59)),
    "count of what is largest": (lambda w: (w * 2).amax(0).exp().sum(), (256, 64)),
    "indexed": (lambda w: w[[1, 2, 1]].sin().sum(), (32, 64)),
    "gathered": (lambda w: w.gather(0, torch.zeros(3, 64, dtype=torch.long)).sin().sum(), (32, 64)),
    "selected": (lambda w: w.index_select(0, torch.tensor([1, 2, 1])).sin().sum(), (32, 64)),
    "largest": (lambda w: w.max(0)[0].sin().sum(), (32, 64)),
    "sorted": (lambda w: w.sort(0)[0].sin().sum(), (32, 64)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_kernels_take_for_themselves_is_known_where_layouts_decide_it(name: str) -> None:
    compute, *shapes = KERNELS[name]
    leaves = [weight(*shape) for shape in shapes]

    def make_loss() -> Tensor:
        for leaf in leaves:
            leaf.grad = None
        return compute(*leaves)

    run = ts.profile(make_loss)
    loss = make_loss()
    found = simulate(ts.graph(loss))
    assert found.peak_bytes == run.peak_bytes
    assert not found.estimates


def test_operators_and_formulas_of_which_less_is_known_are_named() -> None:
    loss = nn.LSTM(4, 4)(weight(2, 4, 4).cumprod(2))[0].sum()
    limits = simulate(ts.graph(loss)).estimates
    assert any("mkldnn_rnn_layer_backward" in limit and NOT_LISTED in limit for limit in limits)
    (limit,) = [limit for limit in limits if OTHER_FORMULAS["CumprodBackward"] in limit]
    says(limit, "CumprodBackward0")


def test_hooks_of_tensors_are_seen_whether_the_tensors_live_or_not() -> None:
    kept: list[object] = []
    x = weight(32, 32)
    y = x * 2
    y.register_hook(kept.append)
    loss = y.sin().sum()
    graph = ts.graph(loss)
    (task_id,) = [task.id for task in graph.tasks if task.name == "MulBackward0"]
    (limit,) = [limit for limit in dry_run(graph).limits if HOOKED in limit]
    says(limit, graph.describe(task_id))
    gone = x * 3
    gone.register_hook(kept.append)
    loss = gone.exp().sum()
    del gone, y
    graph = ts.graph(loss)
    assert UNLISTED_HOOKS in dry_run(graph).limits
    assert not kept


def retained_and_held(x: Tensor, y: Tensor, kept: list[Tensor]) -> Tensor:
    product = x @ y
    product.retain_grad()
    kept.append(product)
    after = product.t() * 2
    after.retain_grad()
    kept.append(after[0])
    kept[-1].retain_grad()
    return (kept[-1] * kept[-1]).sum() + after.sum()


def retained_and_let_go(x: Tensor, y: Tensor, kept: list[Tensor]) -> Tensor:
    product = x * y
    product.retain_grad()
    after = product.exp()
    after.retain_grad()
    return (product * after).sum()


def held_and_saved_by_none(x: Tensor, y: Tensor, kept: list[Tensor]) -> Tensor:
    kept += [x @ y, x + y]
    return (kept[0] + kept[1].t()).sum()


@pytest.mark.parametrize("forward", [retained_and_held, retained_and_let_go, held_and_saved_by_none])
def test_what_variables_hold_of_the_forward_is_known(forward: Any) -> None:
    kept: list[Tensor] = []
    x, y = weight(64, 64), torch.randn(64, 64)

    def make_loss() -> Tensor:
        x.grad = None
        kept.clear()
        return forward(x, y, kept)

    run = ts.profile(make_loss)
    assert run.timeline is not None
    loss = make_loss()
    found = simulate(ts.graph(loss))
    assert (found.start_bytes, found.peak_bytes) == (run.timeline.start_bytes, run.peak_bytes)
    assert found.end_bytes == run.timeline.end_bytes
    assert found.estimates == () or found.estimates[0] == UNLISTED_HOOKS


class KeepsOnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, constant: Tensor) -> Tensor:
        ctx.x, ctx.constant = x, constant
        ctx.more = [x.clone(), {"exp": x.exp()}]
        return x + x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.made = gradient * ctx.more[0]
        return gradient + ctx.more[1]["exp"], None


def test_what_custom_functions_keep_on_their_context() -> None:
    leaf, constant = weight(32, 32), torch.randn(32, 32)

    def make_loss() -> Tensor:
        leaf.grad = None
        return KeepsOnContext.apply(leaf * leaf, constant).sum()

    run = ts.profile(make_loss)
    assert run.timeline is not None
    loss = make_loss()
    graph = ts.graph(loss)
    assert simulate(graph).start_bytes == run.timeline.start_bytes == 3 * 4096 + 4 + 4  # not the constant, nor the leaf
    found = simulate(graph, "heap", run.footprints)
    assert (found.peak_bytes, found.end_bytes) == (run.peak_bytes, run.timeline.end_bytes)


def test_what_custom_functions_outside_the_graph_keep_on_their_context() -> None:
    leaf, constant, kept = weight(32, 32), torch.randn(32, 32), []

    def make_loss() -> Tensor:
        leaf.grad = None
        hidden = leaf * leaf
        kept[:] = [KeepsOnContext.apply(hidden, constant)]  # an auxiliary output, which the loss does not reach
        return (hidden * hidden).sum()

    run = ts.profile(make_loss)
    assert run.timeline is not None
    loss = make_loss()
    assert simulate(ts.graph(loss)).start_bytes == run.timeline.start_bytes == 4 * 4096 + 4 + 4


def test_what_torch_can_not_do_without_values_is_an_estimate_and_no_red_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)
    x, weights = torch.randn(8, 16, requires_grad=True), torch.randn(2, 16, 16, requires_grad=True)
    ends = torch.tensor([3, 8], dtype=torch.int32)
    graph = ts.graph(torch._grouped_mm(x, weights, offs=ends).sum())
    footprints = dry_run(graph)
    assert any(NEED_VALUES in limit for limit in footprints.limits)
    assert not caplog.records
    log = logging.getLogger("torch._subclasses.fake_tensor")
    assert not log.filters


class Subclass(Tensor):
    """A subclass that defines no operations."""


def of_complex(weight: Tensor) -> Tensor:
    return torch.view_as_complex(weight.view(2, 2))


@pytest.mark.parametrize(
    "forward",
    [
        lambda weight: weight.to(torch.float8_e4m3fn).float() * 2,
        lambda weight: weight.to(torch.bfloat16).float() / 3,
        lambda weight: weight * 2.5,
        lambda weight: torch.vdot(weight.to(torch.complex64), weight.to(torch.complex64).conj()).real,
        lambda weight: of_complex(weight).conj().imag * of_complex(weight).real,
        lambda weight: torch._neg_view(weight) * weight,
        lambda weight: weight.new_ones(300, 4).as_subclass(Subclass) * weight,
        lambda weight: linear(torch.ones(3, 4), weight.view(1, 4).as_subclass(Subclass)),
    ],
    ids=["float8", "bfloat16", "number", "vdot", "conj", "neg", "subclass", "subclass of a parameter"],
)
def test_small_temporaries_and_lazy_gradients_are_counted_to_the_byte(forward: Any) -> None:
    weight = nn.Parameter(torch.randn(4))
    loss = forward(weight).sum()
    graph = ts.graph(loss)
    predicted = simulate(graph, "heap", footprints=dry_run(graph))
    assert not predicted.estimates
    assert predicted.peak_bytes == ts.backward(loss, memory=True).peak_bytes
