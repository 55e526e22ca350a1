"""The overlap of parts of a storage, and the storages that can be recomputed."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from tapescope.engine.recompute.record_forward import record_forward
from tapescope.inspector.capture.forward_program import ForwardProgram, ForwardStorage, overlap
from tapescope.inspector.torch_private.tensors import View
from tapescope.tests.says import Snapshots, says

x = torch.randn(6, 4)
weight = torch.randn(4, 4, requires_grad=True)


def saved_by(program: ForwardProgram, task: str, slot: str) -> ForwardStorage:
    """The storage that the first task of this name saves in this slot."""
    number = next(each.id for each in program.graph.tasks if each.name == task)
    (found,) = [each for each in program.storages if (number, slot) in each.saved_by]
    return found


@given(st.data())
def test_views_overlap_where_they_share_an_element(data: st.DataObject) -> None:
    whole = torch.arange(24)

    def view() -> Tensor:
        shape = data.draw(st.lists(st.integers(0, 3), max_size=2))
        strides = [data.draw(st.integers(0, 4)) for _ in shape]
        return whole.as_strided(shape, strides, data.draw(st.integers(0, 8)))

    first, second = view(), view()
    expected = bool(set(first.flatten().tolist()) & set(second.flatten().tolist()))
    if first.numel() or View.of(first) != View.of(second):
        assert overlap(View.of(first), View.of(second), whole.nbytes) == expected


def test_a_chain_of_elementwise_operations_can_be_made_again() -> None:
    program = record_forward(lambda: (x @ weight).tanh().exp().sum(), 1)
    tanh, exp = saved_by(program, "TanhBackward0", "result"), saved_by(program, "ExpBackward0", "result")
    assert tanh.obstacle is None and exp.obstacle is None
    assert program.inputs_of(exp.number) == (tanh.number,)
    assert [program.operations[each].name for each in exp.program] == ["aten.exp.default"]
    assert exp.nbytes == x.nbytes and not exp.written_by
    assert program.saved == [tanh, exp]


def test_a_storage_is_the_operation_that_made_it_and_those_which_wrote_into_it(snapshot: Snapshots) -> None:
    def make_loss() -> Tensor:
        h = (x @ weight).relu_()
        h[:, :2].mul_(2)
        return (h * h).sum()

    program = record_forward(make_loss, 1)
    storage = saved_by(program, "MulBackward0", "self")
    names = [program.operations[each].name for each in storage.program]
    assert names == ["aten.mm.default", "aten.relu_.default", "aten.mul_.Tensor"]
    snapshot("record_forward", storage.obstacle)  # relu_, whose backward is going to raise, overwrites it


def test_parts_that_do_not_meet_may_be_written_one_after_the_other() -> None:
    def make_loss() -> Tensor:
        first, second = torch.unsafe_chunk(x @ weight, 2, 1)
        return (first.sigmoid_() * second.tanh_()).sum()

    program = record_forward(make_loss, 1)
    first, second = saved_by(program, "SigmoidBackward0", "result"), saved_by(program, "TanhBackward0", "result")
    assert first == second and first.obstacle is None


def test_what_reads_a_value_that_is_overwritten_later_stays(snapshot: Snapshots) -> None:
    def make_loss() -> Tensor:
        h = x @ weight
        early = h.exp()
        h.add_(1)
        return (early * h.tanh()).sum()

    program = record_forward(make_loss, 1)
    obstacle = saved_by(program, "ExpBackward0", "result").obstacle
    says(obstacle, "aten.exp.default")
    snapshot("record_forward", obstacle)
    assert saved_by(program, "TanhBackward0", "result").obstacle is None


def test_storages_that_are_made_of_each_other_stay(snapshot: Snapshots) -> None:
    def make_loss() -> Tensor:
        h = x @ weight
        part = h[:, :2].exp()
        h[:, 2:].mul_(part.detach())
        return part.sum() + h.tanh().sum()

    program = record_forward(make_loss, 1)
    part = saved_by(program, "ExpBackward0", "result")
    says(part.obstacle, "aten.exp.default")
    snapshot("record_forward", part.obstacle)


def test_what_reads_a_buffer_that_the_forward_writes_stays(snapshot: Snapshots) -> None:
    buffer = torch.zeros(4)

    def make_loss() -> Tensor:
        buffer.add_(1)
        return (x @ weight + buffer).exp().sum()

    program = record_forward(make_loss, 1)
    (add,) = [each for each in program.operations if each.name == "aten.add.Tensor"]
    ((storage, _),) = add.makes
    obstacle = program.storages[storage].obstacle
    says(obstacle, "aten.add.Tensor")
    snapshot("record_forward", obstacle)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(y)
        return y.exp()

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y.exp() * 2


def test_what_a_custom_function_made_stays(snapshot: Snapshots) -> None:
    program = record_forward(lambda: Doubled.apply(x @ weight).sum(), 1)
    storage = saved_by(program, "DoubledBackward", "tensors")
    says(storage.obstacle, "aten.mul.Tensor", "no_grad")
    snapshot("record_forward", storage.obstacle)


def test_what_nobody_is_seen_to_fill_stays(snapshot: Snapshots) -> None:
    def make_loss() -> Tensor:
        mask = torch.empty(6, 4)
        mask.numpy()[:] = 1
        return ((x @ weight) * mask).sum()

    program = record_forward(make_loss, 1)
    obstacle = saved_by(program, "MulBackward0", "other").obstacle
    assert obstacle is not None
    snapshot("record_forward", obstacle)


def test_a_batch_norm_can_be_made_again_although_it_writes_its_statistics() -> None:
    norm = nn.BatchNorm1d(4)
    program = record_forward(lambda: norm(x @ weight).exp().sum(), 1)
    (operation,) = [each for each in program.operations if each.name == "aten.native_batch_norm.default"]
    assert not operation.writes
    assert all(program.storages[storage].obstacle is None for storage, _ in operation.makes)
    read = {reading.storage for reading in operation.reads}
    assert not any(program.storages[each].written_by for each in read)
    norm.eval()
    program = record_forward(lambda: norm(x @ weight).exp().sum(), 1)
    assert saved_by(program, "ExpBackward0", "result").obstacle is None


def test_what_copy_slices_hides_is_found() -> None:
    def make_loss() -> Tensor:
        h = (x @ weight).clone()
        h[:, :2] = h[:, :2].exp()
        h[:, 2:].mul_(weight[:1, 2:])
        return h.sum()

    program = record_forward(make_loss, 1)
    kept = {(program.graph.tasks[task].name, slot) for each in program.storages for task, slot in each.saved_by}
    assert ("torch::autograd::CopySlices", "hidden") in kept


def test_the_fingerprint_is_that_of_operations_and_sizes() -> None:
    def of(rows: int, name: str = "tanh") -> str:
        return record_forward(lambda: getattr(torch.ones(rows, 4) @ weight, name)().sum(), 1).fingerprint

    assert of(3) == of(3)
    assert len({of(3), of(4), of(3, "sigmoid")}) == 3


def test_times_are_of_its_own_program() -> None:
    program = record_forward(lambda: functional.dropout((x @ weight).relu_(), 0.5).exp().sum(), 2)
    for storage in program.saved:
        assert program.seconds_of(storage.number) == sum(program.operations[each].seconds for each in storage.program)
        assert program.seconds_of(storage.number) > 0
    assert any(each.random for each in program.operations)
