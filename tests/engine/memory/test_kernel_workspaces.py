"""Workspaces of kernels are found by running each kernel alone, without side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

import tapescope as ts
from tapescope.engine.memory import kernel_workspaces as kernel_runs
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.estimates import WORKSPACE
from tapescope.inspector.torch_private import operators
from tapescope.tests.says import says, says_none_of

from ..convnext import small_convnext
from ..sizes import built

MakeLoss = Callable[[], Tensor]


def step(model: nn.Module, *shape: int) -> MakeLoss:
    x = torch.randn(*shape)

    def make_loss() -> Tensor:
        model.zero_grad(set_to_none=True)
        made = model(x)
        return (made[0] if isinstance(made, tuple) else made).square().mean()

    return make_loss


def convnext() -> MakeLoss:
    return step(small_convnext(), 4, 3, 64, 64)


def residual() -> MakeLoss:
    def block() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())

    return step(nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), block(), block()), 4, 3, 32, 32)


def unet() -> MakeLoss:
    model, forward = built("unet")

    def make_loss() -> Tensor:
        model.zero_grad(set_to_none=True)
        return forward()

    return make_loss


@pytest.fixture(autouse=True)
def nothing_found_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_runs, "_found", {})


@pytest.mark.parametrize("make", [unet, residual, convnext])
def test_convolutions_pooling_and_norms_are_predicted_to_the_byte_without_a_backward(make: Any) -> None:
    make_loss = make()
    loss = make_loss()
    graph = ts.graph(loss)
    footprints = dry_run(graph)
    for policy in ("heap", "bfs"):
        predicted = ts.simulate(graph, policy, footprints)
        run = ts.profile(make_loss, policy)
        assert run.timeline is not None and run.timeline.workspace_share > 0.01
        assert not predicted.estimates and predicted.peak_bytes == run.peak_bytes
        assert predicted.end_bytes == run.timeline.end_bytes
    for note in ts.plan_order(graph).notes:
        says_none_of(note, "estimate")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_so_are_other_dtypes(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten(), nn.Linear(288, 8)).to(dtype)
    x = torch.randn(4, 4, 8, 8, dtype=dtype)

    def make_loss() -> Tensor:
        model.zero_grad(set_to_none=True)
        return nn.functional.cross_entropy(model(x).float(), torch.zeros(4, dtype=torch.long))

    loss = make_loss()
    predicted = ts.simulate(ts.graph(loss))
    assert (predicted.peak_bytes, predicted.estimates) == (ts.profile(make_loss).peak_bytes, ())


def test_an_lstm_is_an_estimate_which_names_the_operator_that_is_not_run() -> None:
    make_loss = step(nn.LSTM(8, 16, batch_first=True), 4, 10, 8)
    loss = make_loss()
    predicted = ts.simulate(ts.graph(loss))
    assert predicted.estimates[0] == WORKSPACE
    says(predicted.estimates[1], "mkldnn_rnn_layer_backward", "MkldnnRnnLayerBackward0")
    assert kernel_runs.NOT_LISTED in predicted.estimates[1]
    assert predicted.peak_bytes < ts.profile(make_loss).peak_bytes
    assert any("mkldnn_rnn_layer_backward" in note for note in ts.plan_order(loss).notes)


def test_a_model_of_fake_tensors_is_predicted_as_the_real_one_is_measured() -> None:
    with FakeTensorMode():
        make_loss = residual()
        loss = make_loss()
    predicted = ts.simulate(ts.graph(loss))
    assert (predicted.peak_bytes, predicted.estimates) == (ts.profile(residual()).peak_bytes, ())


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operator is not torch.ops.aten.detach.default  # which reading what is saved calls
        return operator(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += torch.overrides.resolve_name(function) is not None and "convolution" in str(function)
        return function(*args, **(kwargs or {}))


def test_nothing_of_the_users_takes_part() -> None:
    make_loss = residual()
    graph = ts.graph(make_loss())
    state, weights = torch.get_rng_state(), [leaf.clone() for leaf in graph.leaves.values()]
    with Seen() as seen, SeenFunctions() as functions, torch.autocast("cpu", torch.bfloat16):
        footprints = dry_run(graph)
        assert torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    assert (seen.count, functions.count) == (0, 0) and not footprints.limits
    assert torch.equal(torch.get_rng_state(), state)
    assert all(leaf.grad is None for leaf in graph.leaves.values())
    assert all(map(torch.equal, graph.leaves.values(), weights))
    with profile():  # none is left at work
        pass


def runs_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return the number of kernels that have run."""
    count = 0
    run = kernel_runs._run

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return run(*arguments)

    monkeypatch.setattr(kernel_runs, "_run", counted)
    while True:
        yield count


def test_each_kernel_runs_once_in_a_process_for_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_in(monkeypatch)
    next(runs)
    graph = ts.graph(residual()())
    dry_run(graph)
    first = next(runs)
    assert 0 < first < len(graph)
    dry_run(graph)
    dry_run(ts.graph(residual()()))
    assert next(runs) == first
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        dry_run(graph)
    finally:
        torch.set_num_threads(threads)
    assert next(runs) == 2 * first


def test_what_a_dry_run_allocates_for_real_is_bounded_by_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    real_run = kernel_runs._run

    def noting(operator: Any, args: Any, kwargs: Any, fill: int, tiny: bool, *more: Any) -> Any:
        tensors = [] if tiny else kernel_runs._tensors_in((args, kwargs))
        ran.append(sum(each.untyped_storage().nbytes() for each in tensors))
        return real_run(operator, args, kwargs, fill, tiny, *more)

    monkeypatch.setattr(kernel_runs, "_found", {})
    monkeypatch.setattr(kernel_runs, "_run", noting)
    monkeypatch.setattr(kernel_runs, "MOST_BYTES", 100_000)
    loss = unet()()
    dry_run(ts.graph(loss))
    assert ran and max(ran) <= 100_000
    count = len(ran)
    dry_run(ts.graph(loss))
    assert len(ran) == count, "each distinct one once"
    assert kernel_runs.MOST_BYTES == 100_000 and "2 GiB" in (ts.simulate.__doc__ or "")


@pytest.mark.parametrize("limit", ["MOST_BYTES", "_free_bytes"])
def test_what_would_not_fit_is_not_run_and_the_prediction_says_so(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = 100_000 if limit == "MOST_BYTES" else lambda: 200_000
    monkeypatch.setattr(kernel_runs, limit, value)
    runs = runs_in(monkeypatch)
    next(runs)
    (said,) = [each for each in dry_run(ts.graph(unet()())).limits if kernel_runs.TOO_LARGE in each]
    says(said, "convolution_backward")
    assert next(runs) > 0, "those that do fit are"


def test_what_lies_between_the_elements_of_a_column_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_runs, "MOST_BYTES", 1 << 20)
    made: list[int] = []

    def on_storage(storage: torch.UntypedStorage, view: Any, real: Any = operators.on_storage) -> Tensor:
        made.append(storage.nbytes())
        return real(storage, view)

    monkeypatch.setattr(operators, "on_storage", on_storage)
    with FakeTensorMode():
        x = torch.empty(1_000, 10_000, requires_grad=True)
        loss = torch.cumsum(x[:, :1].T @ x[:, :1], 0).sum()
    assert any(kernel_runs.TOO_LARGE in each for each in dry_run(ts.graph(loss)).limits)
    assert max(made, default=0) <= 1 << 20


def test_with_ever_new_shapes_no_more_kernels_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_runs, "_MOST_FOUND", 5)
    for size in range(2, 9):
        dry_run(ts.graph(torch.cumsum(torch.ones(size, requires_grad=True), 0).sum()))
    assert 0 < len(kernel_runs._found) <= 5


def test_beside_a_profiler_of_the_users_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ts.graph(residual()())
    with profile():
        limits = dry_run(graph).limits
    assert limits[0] == WORKSPACE and kernel_runs.WATCHED in limits[1]
    assert not dry_run(graph).limits, "and it is found as soon as there is none"


def test_what_an_accelerator_takes_for_itself_stays_an_estimate() -> None:
    x = torch.randn(4, 4, device="meta", requires_grad=True)
    limits = dry_run(ts.graph((x @ x).sum())).limits
    assert limits[0] == WORKSPACE
    says(limits[1], "mm")


@pytest.mark.parametrize("reduce", ["amax", "amin", "sum", "mean", "prod"])
@pytest.mark.parametrize("operation", [Tensor.scatter_reduce, Tensor.index_reduce])
def test_formulas_that_work_out_of_place_are_known(operation: Callable[..., Tensor], reduce: str) -> None:
    if operation is Tensor.index_reduce and reduce == "sum":
        pytest.skip("there is none")
    torch.manual_seed(0)
    x, weight = torch.randn(40, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    rows = torch.randint(0, 10, (40,))
    index = rows if operation is Tensor.index_reduce else rows[:, None].expand(40, 16)

    def make_loss() -> Tensor:
        return operation(torch.zeros(10, 16), 0, index, x @ weight, reduce, include_self=False).square().sum()

    found = ts.simulate(ts.graph(make_loss()))
    assert found.estimates or found.peak_bytes == ts.profile(make_loss).peak_bytes


@pytest.mark.parametrize(
    "operation",
    [torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.clamp_max]
    + [lambda x, y: torch.clamp(x, y, y + 1), lambda x, y: x.clamp(-0.5, 0.5) * y],
    ids=["maximum", "minimum", "fmax", "fmin", "clamp_max", "clamp", "clamp of numbers"],
)
def test_formulas_that_fill_their_own_tensors_in_place_are_known(operation: Callable[..., Tensor]) -> None:
    """Torch 2.14 fills in place unless the tensor is of a subclass, as fake tensors are."""
    torch.manual_seed(0)
    x, y = nn.Parameter(torch.randn(10, 100)), nn.Parameter(torch.randn(10, 100))
    found = ts.simulate(ts.graph(operation(x, y).sum()))
    assert found.peak_bytes == ts.profile(lambda: operation(x, y).sum()).peak_bytes
