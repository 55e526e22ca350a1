"""`ts.find_nan` follows values: what is discarded made nothing, and what reaches the loss is followed to its maker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tapescope as ts
from tapescope.engine.diagnose.nan_in_forward import ForwardWatch
from tapescope.inspector.graph.kinds import Kind
from tapescope.tests.says import Snapshots, says, says_none_of

INF = math.inf


def position_buckets(length: int = 6, buckets: int = 8, furthest: int = 16) -> Tensor:
    """T5's: beyond half of the buckets a logarithm, which is that of zero where `where` takes the distance itself."""
    distance = (torch.arange(length) - torch.arange(length)[:, None]).abs()
    exact = buckets // 2
    logs = torch.log(distance.float() / exact) / math.log(furthest / exact)
    far = (exact + logs * (buckets - exact)).long().clamp(max=buckets - 1)
    return torch.where(distance < exact, distance, far)


def attention(spoil: Callable[[Tensor], Tensor]) -> Tensor:
    torch.manual_seed(0)
    bias, layer, x = nn.Embedding(8, 1), nn.Linear(4, 4), torch.randn(6, 4)
    h = layer(x)
    found: Tensor = functional.softmax(h @ h.T + bias(position_buckets()).squeeze(-1), -1) @ h
    return spoil(found).sum()


def test_position_buckets_whose_logarithm_of_zero_is_discarded_are_not_blamed(snapshot: Snapshots) -> None:
    report = ts.find_nan(lambda: attention(lambda h: h))
    assert not report and report.maker is None
    assert [(find.operation, find.what, find.how) for find in report.finds] == [("log", "inf", "made")]
    says(report.sentences[1], "log", "-inf")
    snapshot("find_nan", report.sentences[1])
    report = ts.find_nan(lambda: attention(lambda h: (h / 0) * 0))
    assert report.operation == "div" and report.maker is not None
    assert (report.maker.what, report.maker.how) == ("inf", "made")
    says(report.sentences[0], "div", "inf")
    says_none_of(report, "log")


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, requires_grad=True)


def bad(y: Tensor) -> Tensor:
    """An infinity that a division makes, and NaN of it."""
    return (y / 0) * 0


def infinite(y: Tensor) -> Tensor:
    return torch.log(y * 0)


DISCARDED: dict[str, Callable[[Tensor], Tensor]] = {
    "where": lambda y: torch.where(y > 2, infinite(y), y) + bad(y),
    "where, the other way": lambda y: bad(y) + torch.where(y < 2, y, infinite(y)),
    "clamp": lambda y: infinite(y).clamp(min=-3) + bad(y),
    "divided by": lambda y: y / infinite(y) + bad(y),
    "exp": lambda y: infinite(y).exp() + bad(y),
    "maximum": lambda y: torch.maximum(torch.full((3,), -INF), y) + bad(y),
    "amax": lambda y: torch.stack([infinite(y), y]).amax(0) + bad(y),
    "indexed away": lambda y: torch.stack([infinite(y), y])[1] + bad(y),
    "gathered": lambda y: torch.cat([infinite(y), y]).index_select(0, torch.tensor([3, 4, 5])) + bad(y),
    "masked_fill": lambda y: infinite(y).masked_fill(y > 0, 0.0) + bad(y),
    "nan_to_num": lambda y: infinite(y).nan_to_num() + bad(y),
    "sigmoid": lambda y: infinite(y).sigmoid() + bad(y),
    "softmax": lambda y: functional.softmax(torch.cat([infinite(y), y]), 0)[:3] + bad(y),
    "logsumexp": lambda y: torch.logsumexp(torch.cat([infinite(y), y]), 0) + bad(y),
    "overwritten": lambda y: infinite(y).copy_(y) + bad(y),
    "in the same tensor": lambda y: torch.cat([infinite(y), bad(y)])[3:],
    "in the same tensor, in place": lambda y: torch.zeros(6).index_copy(0, torch.arange(3), infinite(y))[3:] + bad(y),
    "sorted": lambda y: torch.cat([infinite(y), y]).topk(3).values + bad(y),
    "under vmap": lambda y: torch.vmap(lambda a: torch.where(a > 2, torch.log(a * 0), a))(y) + bad(y),
    "in a comparison": lambda y: (infinite(y) > 0).float() + bad(y),
}


@pytest.mark.parametrize("case", DISCARDED)
def test_a_discarded_infinity_is_not_the_maker(case: str) -> None:
    make = DISCARDED[case]
    report = ts.find_nan(lambda: make(ones(3)).sum())
    assert report.where == "forward" and report.operation == "div", repr(report)
    assert report.source is not None and report.source.function == "bad"


REACHING: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "times zero": (lambda y: torch.where(y > 2, bad(y), y) + infinite(y) * 0, "log"),
    "a minus of itself": (lambda y: infinite(y) - infinite(y).detach(), "log"),
    "picked": (lambda y: torch.stack([(y - 9).sqrt(), infinite(y)])[1] * 0, "log"),
    "chosen by where": (lambda y: torch.where(y > 2, (y - 9).sqrt(), infinite(y)) * 0, "log"),
    "one row of a product": (lambda y: (torch.stack([bad(y), y, y]) @ torch.stack([y, y, y]))[0], "div"),
    "in place": (lambda y: (y * 1).log_().sub_(9).sqrt_(), "sqrt_"),
    "written into a part": (
        lambda y: torch.zeros(2, 3).index_add(0, torch.tensor([1]), infinite(y)[None])[1] * 0,
        "log",
    ),
    "dropped out": (lambda y: functional.dropout(infinite(y), 0.5) * 0, "log"),
    "complex": (lambda y: torch.view_as_real(torch.complex(y, infinite(y)))[:, 1] * 0, "log"),
    "under vmap": (lambda y: torch.vmap(lambda a: (a / 0).log().sum())(y), "div"),
    "a derivative under torch.func": (lambda y: torch.func.grad(lambda a: (a * 0).sqrt().sum())(y), "SqrtBackward0"),
    "forward mode": (lambda y: torch.func.jvp(lambda a: (a * 0).sqrt(), (y,), (y,))[1], "sqrt"),
    "float16": (lambda y: (y.half() * 300).square().float(), "square"),
    "a number": (lambda y: y * torch.tensor([1.0, math.nan, 2.0]), "tensor"),
    "an item": (lambda y: torch.cat([y, y]).index_fill(0, torch.tensor([1]), math.nan), "index_fill"),
    "sparse": (lambda y: torch.sparse.mm(torch.eye(3).to_sparse() * math.nan, y[:, None]), "mul"),
}


@pytest.mark.parametrize("case", REACHING)
def test_what_reaches_the_loss_is_followed_to_its_maker(case: str) -> None:
    make, operation = REACHING[case]
    report = ts.find_nan(lambda: make(ones(3)).sum())
    assert report.where == "forward" and report.operation == operation, repr(report)


def scores() -> Tensor:
    return torch.arange(16.0).view(4, 4).requires_grad_() * 1


def masked() -> Tensor:
    return scores().masked_fill(torch.eye(4)[[0, 0, 0, 3]] * 0 + torch.tensor([[0.0], [0], [1], [0]]) > 0, -INF)


@pytest.mark.parametrize(
    ("make", "operation", "before"),
    [
        (lambda: functional.softmax(masked(), -1), "softmax", "masked_fill"),
        (lambda: masked() - masked().amax(-1, keepdim=True), "sub", "masked_fill"),
        (lambda: masked() * 0, "mul", "masked_fill"),
        (lambda: masked().exp().log().cos(), "log", None),
        (lambda: masked().logsumexp(-1), "masked_fill", None),
        (lambda: masked(), "masked_fill", None),
    ],
)
def test_of_an_infinity_that_was_chosen_to_blame_is_what_could_not_take_it(
    make: Callable[[], Tensor], operation: str, before: str | None
) -> None:
    report = ts.find_nan(lambda: make().sum())
    assert report.operation == operation, repr(report)
    assert (None if report.before is None else report.before.operation) == before
    if report.before is not None:
        says(report, report.before.place)


def test_a_mask_of_minus_infinity_in_data_is_no_fault_but_that_a_row_is_empty(snapshot: Snapshots) -> None:
    mask = torch.zeros(4, 4)
    mask[2] = -INF
    report = ts.find_nan(lambda: functional.softmax(scores() + mask, -1).sum())
    assert report.operation == "softmax"
    assert report.before is not None and report.before.operation == "add"
    says(report, "[2, :]", "-inf", report.before.place)
    snapshot("find_nan", report)


def test_tensors_given_by_keyword_are_looked_at() -> None:
    q, mask = torch.randn(1, 2, 4, 8, requires_grad=True), torch.zeros(4, 4)
    mask[1, 1] = math.nan
    report = ts.find_nan(lambda: functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum())
    assert report.operation == "scaled_dot_product_attention"
    assert report.maker is not None and report.maker.how == "given"
    (named,) = [each for each in report.sentences if "4×4 float32 cpu" in each]
    says(named, "attn_mask", "NaN", 1, 16, "[1, 1]")


def test_a_view_of_a_bad_parameter_is_named_after_it() -> None:
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight[1, 2] = math.nan

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.inner.weight.T

    report = ts.find_nan(lambda: Product()(torch.ones(2, 3)).sum())
    assert report.operation == "matmul"
    says(report, "(inner.weight, 3×3 float32 cpu)", "NaN", 1, 9)


def test_a_backward_inside_of_the_forward_is_looked_into(snapshot: Snapshots) -> None:
    leaf = torch.zeros(3, requires_grad=True)

    def penalty() -> Tensor:
        (slope,) = torch.autograd.grad(leaf.sqrt().sum(), leaf, create_graph=True)
        return slope.square().sum()

    def adapted() -> Tensor:
        fast = torch.zeros(3, requires_grad=True)
        fast.sqrt().sum().backward()
        assert fast.grad is not None
        return (leaf - fast.grad).sum()

    for make_loss in (penalty, adapted):
        report = ts.find_nan(make_loss)
        assert report.where == "forward" and report.operation == "SqrtBackward0"
        assert report.maker is not None and report.maker.operation == "SqrtBackward0"
        if make_loss is penalty:
            snapshot("find_nan", report)
        assert report.source is not None and report.source.function == make_loss.__name__
    assert leaf.grad is None


def nested(layout: torch.layout) -> Tensor:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    return torch.nested.nested_tensor(parts, layout=layout, requires_grad=True)


class Wrapped(Tensor):
    """A subclass that computes as every tensor does."""


def clean() -> Iterator[Callable[[], Tensor]]:
    y = torch.ones(3, requires_grad=True)
    yield lambda: (nested(torch.jagged) * 2).sin().values().sum()
    yield lambda: torch.nested.to_padded_tensor(nested(torch.strided) * 2, 0.0).sum()
    yield lambda: torch.sparse.mm(torch.eye(3).to_sparse(), y[:, None]).sum()
    yield lambda: torch.sparse.mm(torch.eye(3).to_sparse_csr(), y[:, None]).sum()
    yield lambda: torch.fft.fft(y).abs().sum()
    yield lambda: y.to(torch.float8_e4m3fn).float().sum()
    yield lambda: (torch.empty(3, device="meta").sin(), y.sum())[1]
    yield lambda: (y * torch.arange(3)).sum()
    yield lambda: (y.as_subclass(Wrapped) * 2).sum().as_subclass(Tensor)
    yield lambda: torch.vmap(lambda a: (a * 2).sin())(y).sum()
    yield lambda: torch.func.grad(lambda a: (a * 2).sin().sum())(y).sum()
    yield lambda: torch.func.jvp(lambda a: (a * 2).sin(), (y,), (y,))[1].sum()
    yield lambda: torch.func.hessian(lambda a: (a * 2).sin().sum())(y).sum()
    yield lambda: torch.func.functional_call(LINEAR, dict(LINEAR.named_parameters()), (y,)).sum()


LINEAR = nn.Linear(3, 3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("number", range(len(list(clean()))))
def test_tensors_of_all_kinds_are_clean_where_they_are(number: int) -> None:
    make_loss = list(clean())[number]
    expected = make_loss().item()
    report = ts.find_nan(make_loss)
    assert not report, repr(report)
    assert report.stop is None and (number < 2 or report.loss == pytest.approx(expected))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_looked_into() -> None:
    assert ts.find_nan(lambda: (nested(torch.jagged) * 0).log().values().sum()).operation == "log"
    report = ts.find_nan(lambda: torch.nested.to_padded_tensor((nested(torch.strided) * INF) * 0, 0.0).sum())
    assert report.operation == "mul" and report.maker is not None and report.after is not None
    assert (report.maker.what, report.after.what) == ("inf", "nan")


def test_what_is_discarded_is_let_go() -> None:
    watch = ForwardWatch()
    with watch.forward():
        kept = ones(3) * 1
        for _ in range(20):
            kept = torch.where(kept > 2, infinite(kept), kept)
    firsts = set(map(id, watch.flow.firsts.values()))
    alive = [each for each in watch.flow._bytes.values() if each.followed.alive]
    assert len(firsts) == 1 and alive == []


def test_what_was_compiled_stays_so_and_is_looked_into() -> None:
    def step(x: Tensor) -> Tensor:
        return (x * 0).log().cos()

    compiled = torch.compile(step, backend="aot_eager")
    x = ones(3)
    compiled(x).sum()
    assert ts.find_nan(lambda: compiled(x).sum()).operation == "log"
    assert any(task.kind is Kind.COMPILED for task in ts.graph(compiled(x).sum()).tasks)
