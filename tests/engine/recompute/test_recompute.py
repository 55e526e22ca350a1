"""`ts.recompute`: the same bits from less memory; one test for each way in which a replay could go wrong."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.recompute.follow_forward import ForwardFollower, state_of
from tapescope.engine.recompute.plan import RecomputePlan
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.engine.recompute.replay_operations import Bytes
from tapescope.inspector.torch_private.tensors import FollowedStorage
from tapescope.tests.says import Snapshots, raises, says

from ..memory_programs import Program
from ..recomputed_programs import agrees, everything, gradients, nothing_left, plan_all, same, some

x = torch.randn(8, 4)


def parameter(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


weight = parameter(4, 4)


def chain() -> Tensor:
    return (x @ weight).tanh().exp().sin().sum()


def kinds_kept(make_loss: Callable[[], Tensor]) -> list[str]:
    """The operations whose results are saved and can't be dropped."""
    return [each.operation for each in plan_all(make_loss).storages if each.obstacle is not None]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(x, y)
        return y.exp()

    @staticmethod
    def backward(ctx, gradient):
        _, y = ctx.saved_tensors
        return gradient * y.exp() * 2


# A dropped tensor is freed, and recomputed.


def test_what_is_dropped_is_gone_after_the_forward_and_made_again_in_the_backward(snapshot: Snapshots) -> None:
    plan = plan_all(chain)
    with ts.recompute(plan):  # the first keeps all until its end
        chain()
    with ts.recompute(plan) as recomputed:
        h = (x @ weight).tanh()
        followed = FollowedStorage(h)
        h = h.exp()
        assert not followed.alive
        loss = h.sin().sum()
    assert recomputed.report.dropped == 2 and recomputed.report.replayed == 0
    assert recomputed.report.dropped_bytes == 2 * x.nbytes
    loss.backward()
    # The results of tanh and exp, which exp and sin save, too; and on the way the product.
    assert recomputed.report.replayed == recomputed.report.operations == 3
    says(recomputed.report, 2, 3, "256 B", "384 B")
    snapshot("recompute", recomputed.report)


def test_gradients_of_a_chain_are_the_same_bits() -> None:
    assert agrees(chain, [weight]).report.dropped == 2


def test_nothing_is_alive_after_the_backward_without_the_collector() -> None:
    plan = plan_all(chain)
    for _ in range(2):
        gc.collect()
        gc.disable()
        try:
            before = sum(isinstance(each, Bytes) for each in gc.get_objects())
            with ts.recompute(plan):
                loss = chain()
            assert sum(isinstance(each, Bytes) for each in gc.get_objects()) > before
            loss.backward()
            del loss
            assert sum(isinstance(each, Bytes) for each in gc.get_objects()) == before
        finally:
            gc.enable()


def test_a_loss_that_is_thrown_away_takes_all_with_it_without_the_collector() -> None:
    def make_loss() -> Tensor:  # dropout's mask is made in place
        return functional.dropout((x @ weight).tanh(), 0.5).sin().sum()

    plan = plan_all(make_loss)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, Bytes) for each in gc.get_objects())
        for _ in range(2):
            with ts.recompute(plan):
                loss = make_loss()
            del loss
            assert sum(isinstance(each, Bytes) for each in gc.get_objects()) == before
    finally:
        gc.enable()


def test_what_a_replay_was_made_of_goes_as_it_is_done() -> None:
    model = nn.Sequential(*(nn.Tanh() for _ in range(40)))
    plan = plan_all(lambda: model(x @ weight).sum())
    numbers = [each.number for each in plan.storages if each.is_dropped]
    assert len(numbers) == 41
    with ts.recompute(plan):
        model(x @ weight).sum().backward()
    with ts.recompute(plan):
        loss = model(x @ weight).sum()
    gc.collect()
    before = sum(isinstance(each, Bytes) for each in gc.get_objects())
    loss.backward(retain_graph=True)
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, Bytes) and each.calls is not None]
    assert before >= 41 and left == []


def added(h: Tensor, other: Tensor) -> Tensor:
    return h.add_(other)


def test_what_was_a_leaf_when_a_replay_came_to_need_it_does_not_hold_the_graph() -> None:
    """A scripted function makes it part of the graph without notice; held as it is, it would hold its own holder."""
    scripted, late, states = torch.jit.script(added), [], [torch.zeros(8, 4) for _ in range(20)]

    def make_loss() -> Tensor:
        state = states.pop()
        y = (x @ weight + state).tanh().exp().sin()
        return (scripted(state, y) if late else state).sum() + y.sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [weight], plan)
    late.append(1)
    gc.collect()
    before = sum(isinstance(each, Bytes) for each in gc.get_objects())
    for _ in range(2):
        with ts.recompute(plan) as recomputed:
            make_loss()
    assert recomputed.report.dropped == 2
    gc.collect()
    assert sum(isinstance(each, Bytes) for each in gc.get_objects()) == before


def test_a_plan_that_drops_nothing_does_nothing() -> None:
    depth = torch._C._len_torch_dispatch_stack()
    plan = RecomputePlan.of(record_forward(chain, 1), ())
    with ts.recompute(plan) as recomputed:
        assert torch._C._len_torch_dispatch_stack() == depth
        assert (weight * 2).exp().grad_fn._raw_saved_result.unpack_hook is None
    assert recomputed.report.dropped == 0


@pytest.mark.parametrize(
    "like",
    [
        torch.zeros_like,
        torch.ones_like,
        lambda y: torch.zeros_like(y.t()),
        lambda y: y.new_zeros(8, 4),
        lambda y: y.new_ones(8, 4, dtype=torch.float64),
        lambda y: torch.empty_like(y).fill_(2.0),
        lambda y: y.new_empty(8, 4).fill_(2.0),
        lambda y: y.new_empty_strided((8, 4), (1, 8)).fill_(2.0),
    ],
)
def test_what_asks_for_a_shape_alone_is_made_again_of_nothing(like: Callable[[Tensor], Tensor]) -> None:
    def make_loss() -> Tensor:
        y = x @ weight
        return (like(y) * y.sum()).cos().sum()

    program = record_forward(make_loss, 1)
    alone = [each for each in program.saved if not program.inputs_of(each.number)]
    assert [each.obstacle for each in alone] == [None]
    assert agrees(make_loss, [weight]).report.dropped >= 2


# The traps.


def test_a_batch_norm_updates_its_statistics_once() -> None:
    norm = nn.BatchNorm1d(4)
    before = {name: value.clone() for name, value in norm.state_dict().items()}

    def make_loss() -> Tensor:
        norm.load_state_dict(before)
        return norm(x @ weight).relu_().sum()

    plan = plan_all(make_loss)
    expected = gradients(make_loss, [weight, *norm.parameters()])
    statistics = norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.clone()
    for _ in range(2):
        assert same(gradients(make_loss, [weight, *norm.parameters()], plan), expected)
        assert same((norm.running_mean, norm.running_var, norm.num_batches_tracked), statistics)
    norm.eval()
    agrees(lambda: norm(x @ weight).exp().sum(), [weight, *norm.parameters()])


def test_data_written_behind_torchs_back_is_found_and_kept_from_then_on(snapshot: Snapshots) -> None:
    def make_loss() -> Tensor:
        mask = torch.zeros_like(x)
        mask.numpy()[:] = x.numpy() > 0
        return ((x @ weight).tanh() * mask).sum()

    plan = plan_all(make_loss)
    with pytest.warns(UserWarning, match="ts.recompute") as warned:
        first = gradients(make_loss, [weight], plan)
    says(warned[0].message, "ts.recompute", 1, "aten.zeros_like.default")
    snapshot("recompute", warned[0].message)
    assert same(first, gradients(make_loss, [weight]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recomputed = agrees(make_loss, [weight], plan)
    (banned,) = recomputed.report.banned
    assert banned[0].operation == "aten.zeros_like.default"
    says(warned[0].message, banned[1])
    says(recomputed.report, 1, "aten.zeros_like.default", banned[1])
    assert recomputed.report.dropped == 1


def test_fused_lstm_layers_never_run_again() -> None:
    lstm = nn.LSTM(4, 4)

    def make_loss() -> Tensor:
        return lstm((x @ weight).tanh().view(2, 4, 4))[0].exp().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert agrees(make_loss, [weight, *lstm.parameters()]).report.replayed


def test_what_raises_when_it_runs_again_is_found_and_kept_from_then_on(snapshot: Snapshots) -> None:
    fails: list[bool] = []

    def once(x: Tensor) -> Tensor:
        if fails and fails.pop():
            raise KeyError("mine")
        return x.exp()

    library = torch.library.Library("tapescope_tests", "FRAGMENT")
    library.define("once(Tensor x) -> Tensor")
    library.impl("once", once, "CPU")

    def make_loss() -> Tensor:
        return ((x @ weight).tanh() * torch.ops.tapescope_tests.once(x)).sum()

    plan = plan_all(make_loss)
    fails[:] = [True, False]  # not in the forward, but in the replay
    with pytest.warns(UserWarning, match="ts.recompute") as warned:
        gradients(make_loss, [weight], plan)
    says(warned[0].message, "tapescope_tests.once.default", "KeyError", "'mine'")
    snapshot("recompute", warned[0].message)
    agrees(make_loss, [weight], plan)


def test_what_empty_gives_and_nobody_fills_is_never_dropped() -> None:
    def make_loss() -> Tensor:
        mask = torch.empty_like(x)
        mask.numpy()[:] = x.numpy() > 0
        return ((x @ weight).tanh() * mask).sum()

    assert kinds_kept(make_loss) == ["aten.empty_like.default"]
    agrees(make_loss, [weight])


def test_custom_functions_are_never_run_again() -> None:
    calls: list[int] = []

    class Counted(Doubled):
        @staticmethod
        def forward(ctx, x):
            calls.append(1)
            return Doubled.forward(ctx, x)

    def make_loss() -> Tensor:
        return (Counted.apply((x @ weight).tanh()).sin() * 2).sum()

    plan = plan_all(make_loss)
    assert [each.operation for each in plan.storages if each.obstacle] == ["aten.mul.Tensor", "aten.exp.default"]
    calls.clear()
    recomputed = agrees(make_loss, [weight], plan)
    assert len(calls) == 3  # forwards
    assert recomputed.report.replayed


def test_a_value_that_is_overwritten_after_it_was_read() -> None:
    def make_loss() -> Tensor:
        h = x @ weight
        early = h.exp()
        h.add_(1)
        return (early * h.tanh()).sum()

    agrees(make_loss, [weight])


def test_a_value_that_is_overwritten_only_in_later_forwards() -> None:
    late: list[int] = []

    def make_loss() -> Tensor:
        h, other = x @ weight, x @ weight
        early = h.exp()
        (h if late else other).add_(1)
        return (early.sin() * h.tanh() * other).sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [weight], plan)
    late.append(1)
    agrees(make_loss, [weight], plan)


def test_a_part_that_is_written_while_another_is_saved() -> None:
    def make_loss() -> Tensor:
        first, second, third, last = torch.unsafe_chunk(torch.cat([x @ weight] * 4, 1), 4, 1)
        gates = first.sigmoid_(), second.sigmoid_(), third.tanh_(), last.sigmoid_()
        state = gates[0] * gates[2] + gates[1]
        return (state.tanh() * gates[3]).sum()

    assert agrees(make_loss, [weight]).report.dropped >= 2


def test_storages_made_of_each_other() -> None:
    def make_loss() -> Tensor:
        h = x @ weight
        part = h[:, :2].exp()
        h[:, 2:].mul_(part.detach())
        return part.sin().sum() + h.tanh().sum()

    agrees(make_loss, [weight])


def test_slices_written_in_place_and_views() -> None:
    def make_loss() -> Tensor:
        h = x @ weight
        a, b = h.chunk(2, 1)
        a = a.sigmoid()
        h2 = h * 2
        h2[:, :1] = 1.0
        h2[:, 1:3].mul_(a)
        c = h2.t().contiguous().view(4, -1).tanh()
        c = (c * 2).relu_()
        return (c * c).sum() + a.sum() + b.exp().sum()

    agrees(make_loss, [weight])


@pytest.mark.parametrize("changed", ["weight", "input"])
def test_what_a_replay_needs_and_was_modified_since_the_forward_is_an_error(changed: str, snapshot: Snapshots) -> None:
    given, factor = x.clone(), parameter(4, 4)

    def make_loss() -> Tensor:
        return (given.tanh() @ factor.exp()).sin().sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [factor], plan)
    with ts.recompute(plan):
        loss = make_loss()
    with torch.no_grad():
        (factor if changed == "weight" else given).add_(1)
    operation = "aten.exp.default" if changed == "weight" else "aten.tanh.default"
    with raises(RuntimeError, "ts.recompute", operation, "version 1", "version 0") as raised:
        loss.backward()
    snapshot("recompute", raised.value)


def test_what_is_kept_and_was_modified_since_the_forward_is_an_error() -> None:
    def make_loss() -> tuple[Tensor, Tensor]:
        h = (x @ weight).tanh()
        return h, h.exp().sum() + (x @ weight).cos().sin().sum()

    program = record_forward(lambda: make_loss()[1], 1)
    made_by = [program.operations[each.made_by or 0].name for each in program.saved]
    plan = RecomputePlan.of(program, [program.saved[made_by.index("aten.cos.default")].number])
    for _ in range(2):  # followed operation by operation, and by calls: there PyTorch says so itself
        with ts.recompute(plan):
            h, loss = make_loss()
        h.detach().add_(1)
        with raises(RuntimeError, "version 1"):
            loss.backward()


def test_what_the_forward_writes_of_what_was_there_before() -> None:
    buffer = torch.zeros(4)

    def make_loss() -> Tensor:
        buffer.zero_()
        h = (x @ weight + buffer).tanh()
        buffer.add_(1)
        return (h * (h.exp() + buffer).sin()).sum()

    agrees(make_loss, [weight])


def test_an_address_that_is_used_again_is_not_mistaken() -> None:
    def make_loss() -> Tensor:
        h = x @ weight
        for _ in range(20):
            h = h.tanh().exp().log1p()
        return h.sum()

    agrees(make_loss, [weight])


def test_random_numbers_are_those_of_the_forward_and_go_on_as_without() -> None:
    own = torch.Generator()

    def make_loss() -> Tensor:
        own.manual_seed(1)
        noise = torch.rand(8, 4, generator=own)
        y = functional.dropout((x @ weight).tanh(), 0.5)
        return (functional.rrelu(y, training=True) * (torch.rand_like(x) + noise)).sum()

    expected = gradients(make_loss, [weight])
    next_number, own_next = torch.rand(1), torch.rand(1, generator=own)
    plan = plan_all(make_loss)
    for _ in range(2):
        assert same(gradients(make_loss, [weight], plan), expected)
        assert torch.equal(torch.rand(1), next_number) and torch.equal(torch.rand(1, generator=own), own_next)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(1), nn.Tanh())
    parameters = [*model.parameters()]

    def make_loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().sum()

    plan = plan_all(make_loss)

    def backward(recomputed: bool) -> list[Tensor | None]:
        model.zero_grad()
        if recomputed:
            with ts.recompute(plan):
                loss = make_loss()
        else:
            loss = make_loss()
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            loss.backward()
            assert torch.is_autocast_enabled("cpu") == inside
        return [each.grad for each in parameters]

    expected = backward(False)
    for _ in range(2):
        assert same(backward(True), expected)


# The place where it is used.


def test_backwards_in_any_order_twice_and_of_the_second_derivative() -> None:
    plan = plan_all(chain)
    expected = gradients(chain, [weight])[1]
    weight.grad = None
    with ts.recompute(plan):
        first = chain()
    with ts.recompute(plan):
        second = chain()
    second.backward(retain_graph=True)
    first.backward()
    second.backward()
    assert torch.equal(weight.grad, 3 * expected)

    def of_second(recomputed: bool) -> Tensor:
        if recomputed:
            with ts.recompute(plan):
                loss = chain()
        else:
            loss = chain()
        (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), weight)[0]

    assert torch.equal(of_second(True), of_second(False))


def test_a_loop_inside_of_one_block() -> None:
    plan = plan_all(chain)
    agrees(chain, [weight], plan)
    own = parameter(4, 4)
    optimizer = torch.optim.SGD([own], 0.1)

    def step() -> None:
        optimizer.zero_grad()
        (x @ own).tanh().exp().sin().sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
    expected, own.data = own.detach().clone(), parameter(4, 4).data
    with ts.recompute(plan) as recomputed:
        for _ in range(3):
            step()
    assert torch.equal(own, expected)
    assert recomputed.report.forwards == 3 and recomputed.report.dropped == 6 and recomputed.report.replayed == 9


def test_the_first_forward_inside_of_a_block_with_its_backward() -> None:
    expected = gradients(chain, [weight])[1]
    weight.grad = None
    with ts.recompute(plan_all(chain)) as recomputed:
        chain().backward(torch.ones(()))
        assert recomputed.report.dropped == 2  # freed before the backward began
    assert torch.equal(weight.grad, expected)


def test_a_loss_that_is_computed_after_the_block() -> None:
    plan = plan_all(chain)
    for _ in range(2):
        weight.grad = None
        with ts.recompute(plan) as recomputed:
            h = (x @ weight).tanh().exp()
        h.sin().sum().backward()
        assert recomputed.report.dropped == 2
        assert torch.equal(weight.grad, gradients(chain, [weight])[1])


def test_the_users_own_checkpoint() -> None:
    first, second = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)), nn.Linear(4, 4)
    for reentrant in (False, True):

        def make_loss(reentrant: bool = reentrant) -> Tensor:
            h = checkpoint(first, (x @ weight).tanh(), use_reentrant=reentrant)
            return (second(h).tanh().exp() * h).sum()

        agrees(make_loss, [weight, *first.parameters(), *second.parameters()])


def test_forwards_of_another_size_use_the_same_plan() -> None:
    plan = plan_all(chain)

    def smaller() -> Tensor:
        return (x[:3] @ weight).tanh().exp().sin().sum()

    with raises(ValueError, "operation 0", "aten.slice.Tensor"):  # x[:3] is an operation
        gradients(smaller, [weight], plan)
    few = x[:3]
    recomputed = agrees(lambda: (few @ weight).tanh().exp().sin().sum(), [weight], plan)
    assert recomputed.report.dropped_bytes == 2 * few.nbytes


def test_a_plan_for_another_model_is_refused(snapshot: Snapshots) -> None:
    plan = plan_all(chain)
    facts = "operation 1", "aten.sigmoid.default", "aten.tanh.default", "ts.plan_recompute", "ts.recompute(budget=...)"
    with nothing_left(), raises(ValueError, *facts) as raised, ts.recompute(plan):
        (x @ weight).sigmoid().exp()
    snapshot("recompute", raised.value)
    agrees(chain, [weight], plan)
    other, scale = parameter(4, 4), parameter(4)
    with (
        nothing_left(),
        raises(ValueError, "operation 0", "aten.t.default"),
        ts.recompute(plan),
    ):
        functional.linear(x, other)
    with (
        nothing_left(),
        raises(ValueError, "operation 2", "aten.mul.Tensor"),
        ts.recompute(plan),
    ):
        (x @ other).tanh() * scale


def test_a_forward_that_takes_another_way_is_kept_from_there_on_with_a_warning(snapshot: Snapshots) -> None:
    other: list[int] = []

    def make_loss() -> Tensor:
        h = torch.tanh(x @ weight)
        if other:
            h = h.sigmoid().tanh()
            h = (h * 1).relu_()
        return (h.exp() * h).sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [weight], plan)
    other.append(1)
    expected = gradients(make_loss, [weight])
    with pytest.warns(UserWarning, match="ts.recompute") as warned:
        found = gradients(make_loss, [weight], plan)
    says(warned[0].message, "ts.recompute", "operation 2", "aten.sigmoid.default")
    snapshot("recompute", warned[0].message)
    assert same(found, expected)


def test_a_part_of_what_is_dropped_is_written_on_another_way() -> None:
    other: list[int] = []

    def make_loss() -> Tensor:
        h = (x @ weight) * 2
        early = h.exp()
        if other:
            h.sub_(1)
        return (early.sin() * h.tanh()).sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [weight], plan)
    other.append(1)
    expected = gradients(make_loss, [weight])
    with pytest.warns(UserWarning, match="ts.recompute") as warned:
        found = gradients(make_loss, [weight], plan)
    says(warned[0].message, "aten.sub_.Tensor")
    assert same(found, expected)


# Later forwards are followed in the calls alone in which the plan has something to do.


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * ctx.saved_tensors[0]).clone()


def seen_in(make_loss: Callable[[], Tensor], plan: RecomputePlan, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that one more forward shows."""
    seen: list[str] = []
    run = ForwardFollower.run

    def noted(self: ForwardFollower, operator: object, args: object, kwargs: object) -> object:
        seen.append(str(operator))
        return run(self, operator, args, kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ForwardFollower, "run", noted)
        with ts.recompute(plan):
            make_loss()
    return seen


def test_later_forwards_look_at_nothing_but_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_loss() -> Tensor:
        h = x
        for _ in range(10):
            h = (h @ weight).sin() + h.shape[1]
        return h.tanh().exp().sum()

    program = record_forward(make_loss, 1)
    made_by = [program.operations[each.made_by or 0].name for each in program.saved]
    tanh = program.saved[made_by.index("aten.tanh.default")].number
    plan = RecomputePlan.of(program, [tanh])
    recomputed = agrees(make_loss, [weight], plan)
    assert recomputed.report.dropped == recomputed.report.replayed == 1
    assert seen_in(make_loss, plan, monkeypatch) == ["aten.tanh.default"]


def test_a_loss_outside_of_the_block_and_inside_of_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    program = record_forward(chain, 1)
    exponential = next(each for each in program.operations if each.name == "aten.exp.default")
    plan = RecomputePlan.of(program, [exponential.makes[0][0]])
    expected = gradients(chain, [weight])[1]

    def model() -> Tensor:
        return (x @ weight).tanh().exp()

    for _ in range(3):
        weight.grad = None
        with ts.recompute(plan) as recomputed:
            h = model()
        h.sin().sum().backward()
        assert torch.equal(weight.grad, expected) and recomputed.report.dropped == 1
    assert seen_in(model, plan, monkeypatch) == ["aten.exp.default"]
    for _ in range(3):
        assert agrees(chain, [weight], plan).report.dropped == 1
    calls = state_of(plan).calls
    assert calls is not None and calls.calls[-1].end == len(plan.operations)


def test_what_a_custom_function_saves_is_let_go_of_in_later_forwards_too() -> None:
    def make_loss() -> Tensor:
        return Split.apply((x @ weight).tanh() * 2)

    plan = plan_all(make_loss)
    for _ in range(3):
        recomputed = agrees(make_loss, [weight], plan)
        assert recomputed.report.dropped >= 1 and recomputed.report.replayed >= 1
    calls = state_of(plan).calls
    assert calls is not None and calls.saves_between


def doubled_tanh(h: Tensor) -> Tensor:
    return h.tanh() * 2


def test_operations_outside_of_any_call_are_followed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = torch.jit.script(doubled_tanh)

    def make_loss() -> Tensor:
        return scripted(x @ weight).exp().sum()

    make_loss()
    plan = plan_all(make_loss)
    for _ in range(3):
        agrees(make_loss, [weight], plan)
    assert state_of(plan).calls is None
    assert len(seen_in(make_loss, plan, monkeypatch)) >= len(plan.operations)


def test_a_write_that_no_call_shows_is_noticed() -> None:
    """A custom Function writes into what is dropped, in later forwards alone."""
    other: list[int] = []

    class Written(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            if other:
                h.mul_(3)
                ctx.mark_dirty(h)
            return h

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3 if other else gradient

    def make_loss() -> Tensor:
        h = Written.apply((x @ weight).sin() * 2)
        return (h.tanh() * h).exp().sum()

    plan = plan_all(make_loss)
    for _ in range(2):
        agrees(make_loss, [weight], plan)
    other.append(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agrees(make_loss, [weight], plan)


@pytest.mark.parametrize("how", ["without gradients", "inplace=True", "out=", "after another way"])
def test_what_a_replay_reads_is_written_in_later_forwards_alone(how: str) -> None:
    late: list[int] = []

    def make_loss() -> Tensor:
        h, k = x @ weight, x * 2
        early = (h.exp() + k).sin()
        if late and how == "without gradients":
            with torch.no_grad():
                k.add_(1)
        if late and how == "after another way":
            early = early.cos()
            h.add_(1)
        h = functional.relu(h, inplace=bool(late) and how == "inplace=True")
        return (early * h).sum() + torch.mul(x, 3, out=k if late and how == "out=" else None).sum()

    program = record_forward(make_loss, 1)
    dropped = [program.operations[place].makes[0][0] for place in (2, 3)]  # exp, and what sin saves
    plan = RecomputePlan.of(program, dropped)
    agrees(make_loss, [weight], plan)
    late.append(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of those that take another way
        assert agrees(make_loss, [weight], plan).report.dropped == 2


def test_a_write_into_what_is_saved_is_an_error_as_without(snapshot: Snapshots) -> None:
    late: list[int] = []

    def make_loss() -> Tensor:
        h = (x @ weight).tanh()
        if late:
            with torch.no_grad():
                h.mul_(2)
        return h.sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [weight], plan)
    late.append(1)
    for each, fact in ((None, "version 1"), (plan, "ts.recompute")):
        with raises(RuntimeError, fact) as raised:
            gradients(make_loss, [weight], each)
    snapshot("recompute", raised.value)


def test_a_write_that_fails_is_none() -> None:
    late: list[int] = []
    three = torch.ones(3)

    def make_loss() -> Tensor:
        h = (x @ weight).tanh()
        if late:
            with pytest.raises(RuntimeError, match="must match"):
                h.mul_(three)
        return h.exp().sin().sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [weight], plan)
    late.append(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is another way
        assert agrees(make_loss, [weight], plan).report.dropped == 1


def halved(h: Tensor) -> Tensor:
    return ((h @ weight).tanh() * (h @ weight).cos()).sin()


def test_a_checkpoint_that_comes_in_later_forwards() -> None:
    """It counts what is saved in it, so all of that must be its own."""
    late: list[int] = []

    def make_loss() -> Tensor:
        h = x @ weight
        h = checkpoint(halved, h, use_reentrant=False) if late else halved(h)
        return h.exp().sin().sum()

    program = record_forward(make_loss, 1)
    cosine = next(each for each in program.operations if each.name == "aten.cos.default")
    plan = RecomputePlan.of(program, [cosine.makes[0][0]])
    agrees(make_loss, [weight], plan)
    late.append(1)
    agrees(make_loss, [weight], plan)


def test_a_checkpoint_around_the_block() -> None:
    program = record_forward(lambda: halved(x).sum(), 1)
    cosine = next(each for each in program.operations if each.name == "aten.cos.default")
    plan = RecomputePlan.of(program, [cosine.makes[0][0]])

    def recomputed(h: Tensor) -> Tensor:
        with ts.recompute(plan):
            return halved(h).sum()

    start = x.clone().requires_grad_()
    expected = gradients(lambda: halved(start * 2).sum(), [start, weight])
    for _ in range(3):
        assert same(
            gradients(lambda: checkpoint(recomputed, start * 2, use_reentrant=False), [start, weight]), expected
        )
    assert state_of(plan).calls is not None


def test_several_forwards_in_the_first_block_tell_no_custom_functions_of_any() -> None:
    plan = plan_all(chain)
    with ts.recompute(plan):
        for _ in range(2):
            chain().backward()
    calls = state_of(plan).calls
    assert calls is not None and not calls.saves_between


def test_calls_that_run_nothing_may_come_and_go() -> None:
    asked: list[int] = []

    def make_loss() -> Tensor:
        h = (x @ weight).tanh()
        if asked:
            assert h.contiguous().numel() == h.stride()[0] * 8
            with torch.no_grad():
                assert float(h.sum()) < 1e9
        return h.exp().sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [weight], plan)
    asked.append(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recomputed = agrees(make_loss, [weight], plan)
    assert recomputed.report.dropped == 2 and not recomputed.report.notes


def test_the_model_is_known_by_its_parameters_where_a_forward_differs() -> None:
    """The first operation that differs has none; what comes after tells."""
    plan = plan_all(chain)
    for _ in range(2):
        agrees(chain, [weight], plan)
    other = parameter(4, 4)
    with (
        nothing_left(),
        raises(ValueError, "operation 0", "aten.mul.Tensor"),
        ts.recompute(plan),
    ):
        ((x * 2) @ other).tanh()
    with pytest.warns(UserWarning, match="ts.recompute") as warned, ts.recompute(plan):
        loss = ((x * 2) @ weight).tanh().sum()
    says(warned[0].message, "operation 0", "aten.mul.Tensor")
    assert warned[0].filename == __file__
    loss.backward()


def test_another_model_of_the_same_kind_is_known_once_it_has_run_as_planned() -> None:
    plan = plan_all(chain)
    agrees(chain, [weight], plan)
    other = parameter(4, 4)
    agrees(lambda: (x @ other).tanh().exp().sin().sum(), [other], plan)
    with pytest.warns(UserWarning, match="ts.recompute") as warned, ts.recompute(plan):
        (x @ other).sigmoid().sum().backward()
    says(warned[0].message, "operation 1", "aten.sigmoid.default")


# Exceptions.


def test_a_forward_that_catches_an_operations_error_is_recomputed_like_any_other() -> None:
    def make_loss() -> Tensor:
        h = (x @ weight).tanh()
        with suppress(RuntimeError):
            h = h.view(7, 7)
        return h.exp().sum()

    plan = plan_all(make_loss)
    for _ in range(2):
        assert agrees(make_loss, [weight], plan).report.dropped == 2


@pytest.mark.parametrize("times", range(4))
def test_an_exception_in_the_forward_leaves_nothing_behind(times: int) -> None:
    plan = plan_all(chain)
    if times % 2:
        agrees(chain, [weight], plan)
    gc.collect()
    before = sum(isinstance(each, Bytes) for each in gc.get_objects())

    def fails() -> None:
        with ts.recompute(plan):
            h = (x @ weight).tanh()
            if times < 2:
                raise KeyError("mine")
            torch.cat([h.exp(), None])

    with nothing_left(), pytest.raises((KeyError, TypeError), match="mine|expected Tensor"):
        fails()
    gc.collect()
    assert sum(isinstance(each, Bytes) for each in gc.get_objects()) == before
    agrees(chain, [weight], plan)


def test_an_exception_in_the_backward_leaves_nothing_behind() -> None:
    plan = plan_all(lambda: functional.dropout((x @ weight).tanh(), 0.5).exp().sum())
    gc.collect()
    before = sum(isinstance(each, Bytes) for each in gc.get_objects())

    def fails(gradient: Tensor) -> None:
        raise KeyError("mine")

    for _ in range(2):
        with ts.recompute(plan):
            h = (x @ weight).tanh()
            h.register_hook(fails)
            loss = functional.dropout(h, 0.5).exp().sum()
        del h
        with nothing_left(), pytest.raises(KeyError, match="mine"):
            loss.backward()
        del loss
        gc.collect()
        assert sum(isinstance(each, Bytes) for each in gc.get_objects()) == before


def test_a_replay_that_raises_puts_random_numbers_and_autocast_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_loss() -> Tensor:
        return functional.dropout((x @ weight).tanh(), 0.5).exp().sum()

    plan = plan_all(make_loss)
    agrees(make_loss, [weight], plan)
    with ts.recompute(plan):
        loss = make_loss()
    state = torch.get_rng_state()
    original = torch._ops.OpOverload.__call__

    def interrupted(self: object, *args: object, **kwargs: object) -> object:
        if str(self).startswith("aten.bernoulli_"):
            original(self, *args, **kwargs)
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch._ops.OpOverload, "__call__", interrupted)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.get_rng_state(), state) and torch.is_grad_enabled()
    monkeypatch.undo()
    agrees(make_loss, [weight], plan)


def test_what_is_no_plan_and_what_is_open_are_refused(snapshot: Snapshots) -> None:
    with raises(TypeError, "ts.recompute", "ts.plan_recompute", "Linear", "ts.recompute(budget=0.5)") as no_plan:
        ts.recompute(nn.Linear(1, 1))  # type: ignore[arg-type]
    recomputed = ts.recompute(plan_all(chain))
    with recomputed, raises(RuntimeError, "ts.recompute(plan)") as opened:
        recomputed.__enter__()
    snapshot("recompute", no_plan.value)
    snapshot("recompute", opened.value)
    with recomputed:
        chain()
    assert recomputed.report.forwards == 1


# Any program.


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**20), st.booleans(), st.booleans())
def test_any_program_with_views_and_in_place_operations(seed: int, kept: bool, regions: bool) -> None:
    program = Program(seed, kept=kept, regions=regions)
    recorded = record_forward(program.make_loss, 1)
    for plan in (everything(recorded), some(recorded, seed)):
        agrees(program.make_loss, program.leaves, plan)


In = Callable[[Tensor, Tensor], Tensor]
_STEPS: list[In] = [
    lambda a, b: a.tanh(),
    lambda a, b: a @ weight,
    lambda a, b: a * b,
    lambda a, b: a[:, 1:3].exp().repeat(1, 2).clamp(max=2),
    lambda a, b: a.mul_(0.5),
    lambda a, b: a.relu_(),
    lambda a, b: a[:, :2].mul_(b[:, 2:]).repeat(1, 2),
    lambda a, b: a.index_put_((torch.tensor([0, 2]),), b[:2]),
    lambda a, b: torch.unsafe_chunk(a * 1, 2, 1)[0].sigmoid_().repeat(1, 2),
    lambda a, b: a.t().contiguous().t(),
    lambda a, b: functional.dropout(a, 0.3),
    lambda a, b: functional.dropout(a, 0.3, inplace=True),
    lambda a, b: functional.batch_norm(a, None, None, training=True),
    lambda a, b: torch.view_as_real(torch.view_as_complex(a.reshape(8, 2, 2).contiguous()).conj() * 2j).reshape(8, 4),
    lambda a, b: a.copy_(b),
    lambda a, b: a.detach().add_(1),
    lambda a, b: Doubled.apply(a.clamp(-1, 1)),
    lambda a, b: a.sort(1)[0],
]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(_STEPS) - 1), st.integers(0, 5), st.integers(0, 5)), max_size=14),
    st.booleans(),
)
def test_any_sequence_of_steps_that_a_backward_takes(steps: list[tuple[int, int, int]], all_of_it: bool) -> None:
    def make_loss() -> Tensor:
        made = [x @ weight, x.clone(), (x @ weight).tanh()]
        for kind, one, other in steps:
            made.append(_STEPS[kind](made[one % len(made)], made[other % len(made)]))
        return sum((each.sum() for each in made), torch.zeros(()))

    try:
        expected = gradients(make_loss, [weight])
    except RuntimeError:  # a saved tensor was overwritten
        reject()
    recorded = record_forward(make_loss, 1)
    plan = everything(recorded) if all_of_it else some(recorded, len(steps))
    for _ in range(2):
        assert same(gradients(make_loss, [weight], plan), expected)
