"""Gradients of wrapper subclasses and rare layouts: what can be read is read, and what cannot is never called clean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

import tapescope as ts
from tapescope.engine.recording.run import Engine
from tapescope.tests.says import Snapshots, says

from ..comparing import ENGINES

both = pytest.mark.parametrize("engine", ENGINES)


class Opaque(Tensor):
    """A wrapper subclass that does not say which tensors it wraps."""

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = False) -> Opaque:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=requires_grad)

    def __init__(self, inner: Tensor, requires_grad: bool = False) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        def unwrapped(value):  # type: ignore[no-untyped-def]
            return value.inner if isinstance(value, Opaque) else value

        args, kwargs = torch.utils._pytree.tree_map(unwrapped, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, Opaque, function(*args, **kwargs))


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[torch.distributed.device_mesh.DeviceMesh]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()


def twice(values: Tensor) -> Tensor:
    return TwoTensor(values.clone(), values.clone())


def root_at_zero(weight: Tensor) -> Tensor:
    return (weight.sqrt() * 0 + weight).sum()  # the derivative of the root at 0 is infinite, and 0 times that is NaN


WRAPPED: dict[str, Callable[[Tensor], Tensor]] = {
    "two tensors": twice,
    "two of two": lambda values: TwoTensor(twice(values), twice(values)),
    "one of two is bad": lambda values: TwoTensor(torch.ones(2), values.clone()),
}


@both
@pytest.mark.parametrize("kind", WRAPPED)
def test_nan_in_the_gradients_of_a_wrapper_subclass_is_found(kind: str, engine: Engine) -> None:
    weight = nn.Parameter(WRAPPED[kind](torch.tensor([1.0, 0.0])))
    report = ts.find_nan(lambda: root_at_zero(weight), engine=engine)
    assert (report.where, report.operation, report.unread) == ("backward", "SqrtBackward0", ())
    with ts.debug(root_at_zero(weight), engine=engine) as session:
        session.watch("nan")
        session.run()
        assert session.stopped is not None and session.stopped.task is not None
        assert session.graph.tasks[session.stopped.task].name == "SqrtBackward0"


def test_nan_in_the_gradients_of_a_dtensor_is_found(mesh: torch.distributed.device_mesh.DeviceMesh) -> None:
    weight = nn.Parameter(distribute_tensor(torch.tensor([1.0, 0.0]), mesh, [Shard(0)]))
    for make_loss in (lambda: root_at_zero(weight), lambda: root_at_zero(weight).full_tensor()):
        report = ts.find_nan(make_loss)
        assert (report.where, report.operation) == ("backward", "SqrtBackward0")
    bad = nn.Parameter(distribute_tensor(torch.tensor([1.0, -1.0]), mesh, [Shard(0)]))
    for make_loss in (lambda: (bad.sqrt() * bad).sum(), lambda: (bad.sqrt() * bad).sum().full_tensor()):
        report = ts.find_nan(make_loss)
        assert (report.where, report.operation) == ("forward", "sqrt")
        assert report.source is not None and report.source.file == __file__


def test_direct_is_not_advised_where_it_is_refused(mesh: torch.distributed.device_mesh.DeviceMesh) -> None:
    weight = torch.ones(2, requires_grad=True)
    for engine in ENGINES:
        report = ts.find_nan(lambda: (weight * weight.exp()).sum(), engine=engine)
        assert not report and "direct" not in str(report)


@both
def test_nan_in_nested_gradients_is_blamed_on_the_task_that_made_it(engine: Engine) -> None:
    weight = torch.tensor([1.0, 0.0], requires_grad=True)

    def make_loss() -> Tensor:
        rows = [weight[:1].expand(2) * 0, weight[1:].expand(3) * 0]
        return (torch.nested.as_nested_tensor(rows, layout=torch.jagged).sqrt() * 0 + 1).values().sum()

    assert ts.find_nan(make_loss, engine=engine).operation == "SqrtBackward0"


@both
@pytest.mark.parametrize("bad", [False, True])
def test_gradients_that_cannot_be_read_are_counted_and_never_called_clean(
    engine: Engine, bad: bool, snapshot: Snapshots
) -> None:
    weight = nn.Parameter(Opaque(torch.tensor([1.0, 0.0 if bad else 2.0])))
    report = ts.find_nan(lambda: root_at_zero(weight), engine=engine)
    assert report and report.where is None and report.graph is not None
    assert set(report.unread) == {task.id for task in report.graph.tasks}
    says(report, len(report.unread), len(report.graph), "Opaque")
    if engine == "direct" and not bad:
        snapshot("find_nan", report)


@both
def test_a_watchpoint_says_at_the_end_what_it_could_not_read(engine: Engine) -> None:
    for condition in ("nan", "norm>10", "zero"):
        weight = nn.Parameter(Opaque(torch.tensor([1.0, 0.0])))
        with ts.debug(root_at_zero(weight), engine=engine) as session:
            watchpoint = session.watch(condition)
            session.run()
            assert session.current is None and session.stopped is not None
            assert set(session.stopped.unread) == set(watchpoint.unread) and "Opaque" in session.stopped.text
            assert len(watchpoint.unread) == len(session.graph) and not watchpoint.hits


def test_a_watchpoint_on_the_meta_device_says_that_there_is_nothing_to_read() -> None:
    weight = torch.ones(2, device="meta", requires_grad=True)
    with ts.debug(root_at_zero(weight)) as session:
        session.watch("nan")
        session.run()
        assert session.stopped is not None and "meta" in session.stopped.text
        assert len(session.stopped.unread) == len(session.graph)


def test_a_bad_gradient_that_goes_through_unread_ones_is_not_called_harmless() -> None:
    class Wrap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            return x * 1

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
            return Opaque(gradient)

    class Unwrap(Wrap):
        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
            return gradient.inner if isinstance(gradient, Opaque) else gradient

    weight = torch.tensor([1.0, 0.0], requires_grad=True)
    report = ts.find_nan(lambda: (Wrap.apply(Unwrap.apply(weight)).sqrt() * 0).sum())
    assert report.operation == "SqrtBackward0" and report.unread
    assert report.harmless == ()


def test_a_nan_loss_of_unread_operations_says_so() -> None:
    weight = nn.Parameter(Opaque(torch.tensor([1.0, -1.0])))
    report = ts.find_nan(lambda: weight.sqrt().sum())
    assert report.where == "forward" and math.isnan(report.loss) and "Opaque" in str(report)


@pytest.mark.parametrize("level", ["cheap", "full"])
def test_numbers_of_unread_gradients_are_missing_in_tables(level: ts.Level) -> None:
    weight = nn.Parameter(Opaque(torch.tensor([1.0, 0.0])))
    frame = ts.backward(root_at_zero(weight), trace=level).to_pandas()
    assert frame[["input_norm", "output_norm"]].isna().all(axis=None)
    given = frame[frame.name != "AccumulateGrad"]
    assert given[["output_nan", "output_inf"]].isna().all(axis=None)
    two = nn.Parameter(twice(torch.tensor([1.0, 0.0])))
    frame = ts.backward(root_at_zero(two), trace=level).to_pandas()
    assert frame.set_index("name").output_nan["SqrtBackward0"] == 2


def test_statistics_of_nested_gradients_come_back_from_a_file(tmp_path: Path) -> None:
    weight = torch.tensor([1.0, 0.0], requires_grad=True)
    nested = torch.nested.as_nested_tensor([weight[:1], weight], layout=torch.jagged)
    run = ts.backward((nested * 2).values().sum(), trace="cheap", engine="native")
    run.save(tmp_path / "run.json")
    again = ts.load(tmp_path / "run.json")
    assert run.trace is not None and again.trace is not None
    for mine, other in zip(run.trace, again.trace, strict=True):
        assert [each and each.statistics for each in mine.outputs] == [
            each and each.statistics for each in other.outputs
        ]
    counts = {each.statistics.count for record in run.trace for each in record.outputs if each and each.statistics}
    assert 3 in counts


class Scale(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, factor: float) -> Tensor:
        return (self.weight * factor).sum()


def trained(model: Scale, **how: object) -> ts.types.Training:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer, **how) as training:  # type: ignore[arg-type]
        for step in range(6):
            optimizer.zero_grad()
            model(math.nan if step == 3 else 1.0).backward()
            optimizer.step()
    return training


def test_training_finds_nan_in_wrapper_subclasses_and_names_what_it_cannot_read(tmp_path: Path) -> None:
    found = [each for each in trained(Scale(twice(torch.ones(2)))).findings if each.kind == "non-finite"]
    assert [each.step for each in found] == [3]
    (found,) = [each for each in trained(Scale(Opaque(torch.ones(2)))).findings if each.kind == "unread"]
    assert (found.step, found.module) == (0, "weight") and "Opaque" in found.sentence
    kept = trained(Scale(twice(torch.ones(2))), black_box=tmp_path)
    assert any(each.kind == "black box" and each.step == 3 for each in kept.findings)


def test_zero_gradients_of_wrapper_subclasses_are_seen(mesh: torch.distributed.device_mesh.DeviceMesh) -> None:
    for wrap in (twice, lambda values: distribute_tensor(values, mesh, [Shard(0)])):
        model = nn.Module()
        model.used, model.zero = nn.Parameter(wrap(torch.ones(2))), nn.Parameter(wrap(torch.ones(2)))
        report = ts.find_unused(lambda: (model.used * model.used + model.zero * 0).sum(), model)
        assert [(each.name, each.why) for each in report] == [("zero", "zero gradient")] and not report.unread
    model = nn.Module()
    model.hidden = nn.Parameter(Opaque(torch.ones(2)))
    report = ts.find_unused(lambda: (model.hidden * 0).sum(), model)
    assert set(report.unread) == {"hidden"} and "Opaque" in str(report)


def test_a_part_of_zeros_is_no_zero_gradient() -> None:
    from tapescope.inspector.torch_private.distributed import is_partly_here

    class Mesh:
        def size(self) -> int:
            return 2

    class Part:
        device_mesh = Mesh()
        placements = (Shard(0),)

    class Whole(Part):
        placements = (Replicate(),)

    assert is_partly_here(Part()) and not is_partly_here(Whole()) and not is_partly_here(torch.ones(2))  # type: ignore[arg-type]


class Counts(torch.autograd.Function):
    """Its gradient depends on how many of its kind have run."""

    ran = 0

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return x * 1

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        Counts.ran += 1
        return gradient * Counts.ran


def counted(weight: Tensor) -> Callable[[], Tensor]:
    def make_loss() -> Tensor:
        Counts.ran = 0
        return (Counts.apply(weight) * 2).sum() + (Counts.apply(weight) * 3).sum()

    return make_loss


def test_order_dependence_of_wrapper_subclasses_is_seen_and_unread_gradients_are_not_called_equal(
    snapshot: Snapshots,
) -> None:
    assert [
        each.how != "rounding"
        for each in ts.find_order_dependence(counted(nn.Parameter(twice(torch.ones(2))))).departures
    ]
    report = ts.find_order_dependence(counted(nn.Parameter(Opaque(torch.ones(2)))))
    assert report and not report.same_bits and report.unread
    snapshot("find_order_dependence", "\n".join(report.sentences))


def test_diff_says_which_gradients_it_does_not_compare(snapshot: Snapshots) -> None:
    runs = []
    for value in (1.0, 2.0):
        weight = nn.Parameter(Opaque(torch.tensor([1.0, value])))
        runs.append(ts.backward((weight * weight).sum(), trace="cheap"))
    found = ts.diff(*runs)
    assert len(found.unread) == len(runs[0].graph) and found.first_unequal is None
    snapshot("diff", "\n".join(found.sentences))
    two = [
        ts.backward(((w := nn.Parameter(twice(torch.tensor([1.0, value])))) * w).sum(), trace="cheap")
        for value in (1.0, 2.0)
    ]
    assert ts.diff(*two).first_in_values is not None
