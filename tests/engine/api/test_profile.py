"""Measured memory is what PyTorch's own profiler sees, byte for byte; each storage has a maker, keepers and an end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.memory import measure_backward
from tapescope.engine.memory.build_timeline import Lives, lives_of
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.timeline import Keeper, Storage, Timeline
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.says import Snapshots, raises
from tapescope.tests.warm_python import WarmPython

from ..backward_programs import random_policy
from ..memory_programs import Program

SMALL = ("gpt2", "lstm_cell", "unet", "recommender", "ensemble", "linear50")


def seen_by_torch(make_loss: Callable[[], Tensor]) -> list[int]:
    """Return the bytes that torch's profiler reports for a forward and its backward, in order, without hooks of
    tapescope.

    Blocks that were there before may be reported as they are freed; they are left out.
    """
    activities = [ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        loss = make_loss()
        loss.backward()
    rows = []
    todo = list(profiler.profiler.kineto_results.experimental_event_tree())
    while todo:
        event = todo.pop()
        todo.extend(event.children)
        if event.name == "[memory]":
            rows.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    alive = set()
    found = []
    for _, address, nbytes in sorted(rows):
        if nbytes > 0:
            alive.add(address)
            found.append(nbytes)
        elif address in alive:
            alive.remove(address)
            found.append(nbytes)
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("name", SMALL)
def test_measuring_does_not_change_what_is_measured(name):
    model, make_loss = WORKLOADS[name].build()
    seen_by_torch(make_loss)  # the first run of a process may allocate more
    model.zero_grad()
    expected = seen_by_torch(make_loss)
    model.zero_grad()
    assert list(ts.profile(make_loss).timeline.deltas) == expected


@pytest.mark.parametrize("policy", ["bfs", "heap"])
@pytest.mark.parametrize("name", SMALL)
def test_the_bytes_balance(name, policy):
    model, make_loss = WORKLOADS[name].build()
    losses = []

    def kept_loss() -> Tensor:
        losses.append(make_loss())
        return losses[0]

    timeline = ts.profile(kept_loss, policy).timeline
    held = [parameter.grad for parameter in model.parameters() if parameter.grad is not None] + losses
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    assert timeline.end_bytes == sum(storages.values())
    assert (
        sum(timeline.nbytes[number] for number in timeline.grads)
        + sum(timeline.nbytes[number] for number in timeline.held)
        == timeline.end_bytes
    )
    for place, peak in enumerate(timeline.task_peaks):
        assert sum(column[place] for column in timeline.category_levels.values()) == peak


def test_one_linear_used_fifty_times():
    _, make_loss = WORKLOADS["linear50"].build()
    mebibyte = 2**20
    assert ts.profile(make_loss, "bfs").peak_bytes / mebibyte == pytest.approx(51.0, abs=0.05)
    _, make_loss = WORKLOADS["linear50"].build()
    assert ts.profile(make_loss, "heap").peak_bytes / mebibyte == pytest.approx(3.0, abs=0.05)


class Steps(nn.Module):
    """Each tensor has a different size, so that bytes identify storages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5, bias=False)
        self.second = nn.Linear(5, 7, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        return self.second(hidden).exp()


def steps() -> tuple[nn.Module, Callable[[], Tensor]]:
    model, x = Steps(), torch.randn(11, 3)
    return model, lambda: model(x).sum()


def only(timeline: Timeline, nbytes: int, category: Category) -> Storage:
    (found,) = [each for each in timeline if each.nbytes == nbytes and each.category is category]
    return found


def test_a_saved_activation_has_its_maker_keepers_and_end():
    _, make_loss = steps()
    run = ts.profile(make_loss)
    storage = only(run.timeline, 11 * 5 * 4, Category.SAVED)
    assert storage.made_by.module == ""
    assert storage.made_by.operation.name == "torch.Tensor.tanh"
    assert storage.made_by.source.code()[0].strip() == "hidden = self.first(x).tanh()"
    names = {(run.graph.tasks[keeper.task].name, keeper.slot) for keeper in storage.kept_by}
    assert names == {("TanhBackward0", "result"), ("MmBackward0", "self")}
    assert storage.born == -1
    assert run.graph.tasks[run.order[storage.died]].name == "TanhBackward0"
    assert storage.born_ns < 0 < storage.died_ns


def test_a_gradient_waits_and_becomes_the_parameters():
    _, make_loss = steps()
    run = ts.profile(make_loss, "bfs")
    timeline = run.timeline
    storage = only(timeline, 7 * 5 * 4, Category.GRADIENT)
    maker = run.graph.tasks[storage.made_by.task]
    assert (maker.name, storage.made_by.module) == ("MmBackward0", "second")
    leaf = next(task for task in run.graph.tasks if task.parameter == "second.weight")
    assert storage.kept_by[-2:] == (Keeper("buffer", leaf.id), Keeper("grad", leaf.id))
    assert storage.died is None
    assert timeline.category_at(storage.number, timeline.starts[storage.born + 1]) is Category.BUFFER


def test_a_storage_saved_by_three_nodes_counts_once():
    x = torch.randn(13, requires_grad=True)

    def make_loss() -> Tensor:
        y = x * 2
        return (y.exp() + y.sin() + y.cos() + y * y).sum()

    run = ts.profile(make_loss)
    (storage,) = [each for each in run.timeline if each.born == -1 and sum(k.kind == "saved" for k in each.kept_by) > 1]
    savers = {run.graph.tasks[keeper.task].name for keeper in storage.kept_by}
    assert savers == {"SinBackward0", "CosBackward0", "MulBackward0"}
    assert storage.nbytes == 13 * 4
    assert run.order[storage.died] == max((keeper.task for keeper in storage.kept_by), key=run.order.index)


@pytest.mark.parametrize("policy", ["bfs", "dfs", "heap"])
def test_lifetimes_are_those_of_weak_references(policy):
    widths = [3, 5, 7, 9, 11, 13]
    layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths))
    x = torch.randn(17, 3)
    followed: dict[int, StorageWeakRef] = {}  # by bytes
    held = []

    def make_loss() -> Tensor:
        h, total = x, 0
        for layer in layers:
            h = torch.tanh(layer(h))
            followed[h.untyped_storage().nbytes()] = StorageWeakRef(h.untyped_storage())
            total = total + (h * h).sum()
        held.append(h)
        return total

    alive_at: list[set[int]] = []

    def note(gradients) -> None:
        alive_at.append({nbytes for nbytes, reference in followed.items() if not reference.expired()})

    def noted_loss() -> Tensor:
        loss = make_loss()
        for node in ts.graph(loss).nodes:
            node.register_prehook(note)
        return loss

    timeline = ts.profile(noted_loss, policy).timeline
    storages = {nbytes: only(timeline, nbytes, Category.SAVED) for nbytes in followed if nbytes != 17 * 13 * 4}
    storages[17 * 13 * 4] = next(timeline.storage(n) for n in timeline.held if timeline.nbytes[n] == 17 * 13 * 4)
    assert len(alive_at) == len(timeline.order)
    for place, alive in enumerate(alive_at):
        expected = {nbytes for nbytes, each in storages.items() if each.died is None or each.died >= place}
        assert alive == expected, f"before place {place}"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.booleans())
@example(190513, False, False)  # halves a tensor down to two rows, which could not be viewed as four
@example(190513, True, True)
def test_lifetimes_in_random_programs_are_those_of_weak_references(seed, kept, regions):
    """Views, in-place operations, shared and held tensors, regions: each tensor's bytes, as Python sees them go."""
    made: list[tuple[int, StorageWeakRef]] = []
    program = Program(
        seed,
        kept=kept,
        regions=regions,
        visit=lambda tensor: made.append((tensor.data_ptr(), StorageWeakRef(tensor.untyped_storage()))),
    )
    alive_at: list[list[bool]] = []

    def make_loss() -> Tensor:
        made.clear()
        loss = program.make_loss()
        for node in ts.graph(loss).nodes:
            node.register_prehook(lambda gradients: alive_at.append([not each.expired() for _, each in made]))
        return loss

    found: list[Lives] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_backward, "lives_of", lambda measured: found.append(lives_of(measured)) or found[0])
        timeline = ts.profile(make_loss, random_policy(seed)).timeline
    (lives,) = found
    born = {lives.rows[birth].address: number for number, birth in enumerate(lives.births) if birth < lives.first}
    assert len(alive_at) == len(timeline.order)
    checked = 0
    for place, alive in enumerate(alive_at):
        for (address, _), is_alive in zip(made, alive, strict=True):
            if address in born and all(alive_at[0][i] for i, (other, _) in enumerate(made) if other == address):
                death = lives.deaths[born[address]]
                assert is_alive == (death is None or lives.place_of(death) >= place)
                checked += 1
    assume(checked >= len(timeline.order))  # else nearly all that it made lies where something else had lain


def test_what_the_user_holds_is_said_to_be_held():
    model, x = Steps(), torch.randn(11, 3)
    kept = []

    def make_loss() -> Tensor:
        kept.append(model.first(x))
        return model.second(kept[0].tanh()).sum()

    timeline = ts.profile(make_loss).timeline
    storage = next(each for each in timeline if each.number in timeline.held and each.nbytes == 11 * 5 * 4)
    assert storage.died is None
    assert Keeper("user") in storage.kept_by
    assert storage.category is Category.FORWARD


def test_held_gradients():
    model, x = Steps(), torch.randn(11, 3)
    kept, hidden = [], []

    def make_loss() -> Tensor:
        h = model.first(x)
        h.retain_grad()
        hidden.append(h)
        y = model.second(h.tanh())
        y.register_hook(kept.append)
        return (y * y).sum()

    timeline = ts.profile(make_loss).timeline
    held = {each.nbytes for each in timeline if each.category is Category.HELD}
    assert held == {11 * 5 * 4, 11 * 7 * 4}
    assert (
        timeline.end_bytes
        == sum(
            tensor.untyped_storage().nbytes()
            for tensor in [*kept, hidden[0], hidden[0].grad, *(p.grad for p in model.parameters())]
        )
        + 4
    )


def test_a_hooks_memory_is_of_the_task_before_which_it_runs():
    x = torch.randn(100, requires_grad=True)

    def make_loss() -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: torch.empty(1000).fill_(1)[:100] * gradient)
        return y.exp().sum()

    run = ts.profile(make_loss)
    (storage,) = [each for each in run.timeline if each.nbytes == 4000]
    assert run.graph.tasks[run.order[storage.born]].name == "MulBackward0"
    assert storage.category is Category.WORKSPACE
    assert any("hook" in limit for limit in run.footprints.limits)


def test_a_checkpointed_region_is_recomputed_inside_a_task():
    x, w = torch.randn(8, 16), torch.randn(16, 16, requires_grad=True)
    run = ts.profile(lambda: checkpoint(lambda y: (y @ w).tanh().exp(), x, use_reentrant=False).sum())
    timeline = run.timeline
    recomputed = [each for each in timeline if each.category is Category.SAVED and each.born >= 0]
    assert recomputed
    assert all(each.died > each.born for each in recomputed)
    assert timeline.end_bytes == w.grad.untyped_storage().nbytes() + 4


def test_a_reentrant_checkpoint_and_a_nested_backward():
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)

    def make_loss() -> Tensor:
        y = checkpoint(lambda y: (y @ w).tanh(), x, use_reentrant=True)
        y.register_hook(torch.enable_grad()(lambda gradient: (w * 2).sum().backward()))
        return (y * y).sum()

    timeline = ts.profile(make_loss).timeline
    grads = sum(each.grad.untyped_storage().nbytes() for each in (x, w))
    (generator_state,) = [
        each for each in timeline if any(keeper.slot == "ctx.fwd_cpu_state" for keeper in each.kept_by)
    ]
    assert generator_state.nbytes == torch.get_rng_state().nbytes
    assert timeline.end_bytes == grads + 4 + generator_state.nbytes


def test_an_optimizer_inside_the_backward_frees_gradients():
    model, x = Steps(), torch.randn(11, 3)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    run = ts.profile(lambda: model(x).sum())
    assert run.timeline.end_bytes == 4
    assert not run.timeline.grads


def test_sparse_gradients_are_measured_and_prediction_says_estimate():
    embedding = nn.Embedding(1000, 8, sparse=True)
    tokens = torch.randint(1000, (16,))
    run = ts.profile(lambda: embedding(tokens).exp().sum())
    gradient = embedding.weight.grad
    stored = {part.untyped_storage().data_ptr(): part for part in (gradient._values(), gradient._indices())}
    nbytes = sum(part.untyped_storage().nbytes() for part in stored.values() if part.data_ptr() != tokens.data_ptr())
    assert run.timeline.end_bytes >= nbytes
    assert ts.simulate(run.graph, "bfs", run.footprints).estimates


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
@pytest.mark.parametrize("how", [{"retain_graph": True}, {"create_graph": True}])
def test_a_kept_graph(how):
    _, make_loss = steps()
    timeline = ts.profile(make_loss, **how).timeline
    (saved,) = [each for each in timeline if each.nbytes == 11 * 5 * 4 and each.born == -1 and each.died is None]
    assert saved.category is Category.SAVED
    assert all(keeper.kind == "saved" for keeper in saved.kept_by)


@pytest.mark.parametrize("name", SMALL)
def test_attached_after_the_forward_it_measures_the_same(name):
    model, make_loss = WORKLOADS[name].build()
    expected = ts.profile(make_loss).timeline
    model.zero_grad()
    loss = make_loss()
    timeline = ts.backward(loss, memory=True).timeline
    assert timeline.peak_bytes == expected.peak_bytes
    assert timeline.end_bytes == expected.end_bytes
    assert timeline.task_peaks[1:] == expected.task_peaks[1:]
    assert timeline.forward_peak_bytes is None


def test_gradients_are_those_of_pytorch():
    model, make_loss = steps()
    make_loss().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    ts.profile(make_loss, "heap")
    assert all(map(torch.equal, expected, (parameter.grad for parameter in model.parameters())))


def _raises_in_forward() -> Tensor:
    raise ZeroDivisionError


def _raises_in_backward() -> Tensor:
    y = torch.randn(3, requires_grad=True) * 2
    y.register_hook(lambda gradient: 1 / 0)
    return y.sum()


def _interrupted() -> Tensor:
    def interrupt(gradient: Tensor) -> None:
        raise KeyboardInterrupt

    y = torch.randn(3, requires_grad=True) * 2
    y.register_hook(interrupt)
    return y.sum()


@pytest.mark.parametrize(
    ("make_loss", "error"),
    [
        (_raises_in_forward, ZeroDivisionError),
        (_raises_in_backward, ZeroDivisionError),
        (_interrupted, KeyboardInterrupt),
        (lambda: [torch.ones(1)], TypeError),
        (lambda: torch.ones(1), RuntimeError),
    ],
)
def test_after_an_error_nothing_is_left(make_loss, error):
    with pytest.raises(error):
        ts.profile(make_loss)
    assert not torch.autograd._profiler_enabled()
    _, make_loss = steps()
    assert ts.profile(make_loss).peak_bytes


def test_bad_arguments_are_sentences(snapshot: Snapshots):
    loss = torch.randn(3, requires_grad=True).sum()
    with raises(TypeError, "make_loss", "Tensor") as raised:
        ts.profile(loss)
    snapshot("profile", raised.value)
    with raises(ValueError, "engine", "'python'", "native", "direct"):
        ts.profile(lambda: loss, engine="python")
    with raises(ValueError, "ts.backward(..., memory=True)") as raised:
        _ = ts.backward(loss).peak_bytes
    snapshot("profile", raised.value)


def test_a_whole_step_that_returns_nothing_is_told_what_measures_it(snapshot: Snapshots):
    x = torch.ones(3, requires_grad=True)
    with raises(TypeError, "make_loss()", "None", "ts.profile_step") as raised:
        ts.profile(lambda: (x * x).sum().backward())
    snapshot("profile", raised.value)


def test_one_profiler_at_a_time():
    _, make_loss = steps()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]), ThreadPoolExecutor(1) as other:
        with raises(RuntimeError, "torch.profiler.profile()"):
            ts.profile(make_loss)
        with raises(RuntimeError, "torch.profiler.profile()"):
            other.submit(ts.profile, make_loss).result()
        assert torch.autograd._profiler_enabled()


def test_one_measurement_at_a_time(snapshot: Snapshots):
    _, make_loss = steps()
    inside = Barrier(2, timeout=60)  # seconds: where no measurement begins, none would come

    def slow_loss() -> Tensor:
        inside.wait()
        inside.wait()
        return make_loss()

    with ThreadPoolExecutor(1) as other:
        running = other.submit(ts.profile, slow_loss)
        inside.wait()
        with raises(RuntimeError, "ts.profile") as raised:
            ts.profile(make_loss)
        snapshot("profile", raised.value)
        inside.wait()
        assert running.result().peak_bytes == ts.profile(make_loss).peak_bytes
    with raises(RuntimeError, "ts.profile"):
        ts.profile(lambda: ts.profile(make_loss) and make_loss())
    assert ts.profile(make_loss).peak_bytes


def test_it_prints_nothing(fresh_python: WarmPython) -> None:
    program = (
        "import torch, tapescope as ts; x = torch.randn(9, requires_grad=True); held = [torch.ones(999)]\n"
        "ts.profile(lambda: x.exp().sum() + held.pop().sum())\n"
        "x.grad = None; ts.profile(lambda: x.exp().sum()).peak_bytes"
    )
    done = fresh_python.run("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_a_library_keeps_for_itself_is_not_attributed():
    """The first product of a process may leave scratch memory; here an operation keeps what it never returns."""
    kept = []

    class Cached(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            kept.append(torch.UntypedStorage(999))
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.randn(3, requires_grad=True)
    timeline = ts.profile(lambda: Cached.apply(x).sum()).timeline
    (storage,) = [each for each in timeline if each.nbytes == 999]
    assert storage.category is Category.UNKNOWN
    assert storage.kept_by == ()
    assert storage.died is None


class KeepsOnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.hidden = [x.exp()]
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.hidden[0]


def test_what_a_custom_function_keeps_on_ctx_is_its_nodes():
    x = torch.randn(13, requires_grad=True)
    run = ts.profile(lambda: KeepsOnContext.apply(x * 1).sum())
    storage = only(run.timeline, 13 * 4, Category.SAVED)
    (keeper,) = storage.kept_by
    assert (keeper.kind, keeper.slot) == ("node", "ctx.hidden")
    assert run.graph.tasks[keeper.task].name == "KeepsOnContextBackward"
    assert storage.died is None


def test_what_a_hook_lets_go_of_was_the_users():
    x = torch.randn(13, requires_grad=True)
    kept = []

    def make_loss() -> Tensor:
        kept.append(x.detach().exp())
        y = x * 2
        y.register_hook(lambda gradient: kept.clear())
        return y.sum()

    run = ts.profile(make_loss)
    (storage,) = [
        each for each in run.timeline if each.made_by.operation and each.made_by.operation.name.endswith("exp")
    ]
    assert storage.category is Category.FORWARD
    assert storage.kept_by == (Keeper("user"),)
    assert run.graph.tasks[run.order[storage.died]].name == "MulBackward0"


def test_what_did_not_run_keeps_what_it_saved():
    x, y = torch.randn(13, requires_grad=True), torch.randn(7, requires_grad=True)
    loss = x.exp().sum() + (y * 3).sum()
    run = ts.backward(loss, inputs=[y], memory=True)
    storage = only(run.timeline, 13 * 4, Category.SAVED)
    assert [keeper.kind for keeper in storage.kept_by] == ["node"]
    assert storage.died is None


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
def test_the_graph_of_the_gradients_keeps_them():
    x = torch.randn(13, requires_grad=True)
    run = ts.profile(lambda: x.exp().exp().sum(), create_graph=True)
    kept = [each for each in run.timeline if each.born >= 0 and each.died is None and each.category is Category.SAVED]
    assert kept
    assert all(each.kept_by[0].kind == "node" for each in kept)
    assert ts.simulate(run.graph, "heap", run.footprints).estimates


def test_views_saved_later_do_not_change_who_made_a_storage():
    x, y = torch.randn(4, 64, 64, requires_grad=True), torch.randn(4, 64, 16, requires_grad=True)
    with ts.capture():
        loss = (x.softmax(-1) @ y).pow(2).sum()
    timeline = ts.backward(loss, memory=True).timeline
    storage = only(timeline, 4 * 64 * 64 * 4, Category.SAVED)
    assert storage.made_by.operation.name == "torch.Tensor.softmax"


def test_the_call_of_backward_holds_the_roots_gradient_until_its_end():
    x = torch.randn(3, requires_grad=True)
    timeline = ts.profile(lambda: x.exp().sum()).timeline
    (root,) = [each for each in timeline if Keeper("backward") in each.kept_by]
    assert (root.nbytes, root.born, root.died) == (4, -1, len(timeline.order))


def test_what_several_hidden_slots_may_keep_makes_an_estimate(snapshot: Snapshots):
    x = torch.randn(100, requires_grad=True)
    factor = torch.rand(50)

    def make_loss() -> Tensor:
        shared = factor * 2
        copies = [x * number for number in range(3)]
        for copy in copies:
            copy[:50].mul_(shared)
        return torch.stack(copies).sum()

    run = ts.profile(make_loss)
    hidden = [each for each in run.timeline if any(keeper.slot == "hidden" for keeper in each.kept_by)]
    assert [each.nbytes for each in hidden if each.made_by.operation.name == "torch.Tensor.mul"] == [200]
    (limit,) = run.footprints.limits
    snapshot("profile", limit)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_leaf_without_bytes_of_its_own_is_profiled_and_named_among_the_limits(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout, requires_grad=True)
    run = ts.profile(lambda: (nested * 2).to_padded_tensor(0.0).sum())
    assert run.footprints is not None and any("AccumulateGrad" in each for each in run.footprints.limits)
    assert ts.simulate(run.graph, "bfs", run.footprints).peak_bytes > 0
