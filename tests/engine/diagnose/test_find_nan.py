"""`ts.find_nan`: the first bad value of a forward and its backward is named, and nothing is left behind."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.diagnose import find_nan as find_nan_file
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.recording.run import Engine
from tapescope.inspector.torch_private.hooks import node_hooks
from tapescope.tests.says import Snapshots, raises, says

from ..comparing import ENGINES

both = pytest.mark.parametrize("engine", ENGINES)


def line_of(function: Callable[..., object], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines, first) if text in line]
    return f"{Path(__file__).name}:{number}"


class Attention(nn.Module):
    """`weigh` says what becomes of the attention's weights."""

    def __init__(self, width: int, weigh: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.weigh = weigh

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = functional.softmax(q @ k.transpose(-1, -2), -1)
        if self.weigh is not None:
            weights = self.weigh(weights)
        found: Tensor = self.out(weights @ v)
        return found


class Layer(nn.Module):
    def __init__(self, width: int, weigh: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, weigh)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        found: Tensor = x + self.mlp(x)
        return found


class Transformer(nn.Module):
    """Six layers, of which the fourth is given `weigh`."""

    def __init__(self, weigh: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(8, weigh if number == 3 else None) for number in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def sparse_log(p: Tensor) -> Tensor:
    p = torch.where(p > 0.25, p, 0.0)
    return torch.log(p)


def sparse_entropy(p: Tensor) -> Tensor:
    p = torch.where(p > 0.25, p, 0.0)
    return torch.where(p > 0, p * torch.log(p), p)


def transformer(weigh: Callable[[Tensor], Tensor] | None) -> tuple[Transformer, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model, x = Transformer(weigh), torch.randn(2, 5, 8)
    return model, lambda: model(x)


@both
def test_a_log_of_zero_deep_in_a_transformer_is_found_with_its_line(engine: Engine) -> None:
    model, make_loss = transformer(sparse_log)
    report = ts.find_nan(make_loss, engine=engine)
    assert ts.find_nan(make_loss, model).sentences == report.sentences  # the model is second, as in find_unused
    assert report and report.where == "forward" and math.isnan(report.loss)
    assert (report.operation, report.module) == ("log", "layers.3.attention")
    assert report.source is not None and report.source.short == line_of(sparse_log, "torch.log")
    first, line, argument, then = report.sentences
    says(first, "NaN", f"log (layers.3.attention, {report.source.short})", "-inf")
    says(line, "sparse_log", "return torch.log(p)")
    says(argument, 0)
    says(then, f"matmul (layers.3.attention, {line_of(Attention.forward, 'weights @ v')})", "NaN")
    assert report.maker is not None and report.before is None and report.after is not None
    assert (report.maker.operation, report.maker.what, report.maker.how) == ("log", "inf", "made")
    assert (report.after.operation, report.after.what) == ("matmul", "nan")
    assert report.stop is None and report.task is None


@both
def test_a_nan_of_the_backward_alone_is_walked_back_to_the_log(engine: Engine) -> None:
    _, make_loss = transformer(sparse_entropy)
    assert make_loss().isfinite()
    report = ts.find_nan(make_loss, engine=engine)
    assert report.where == "backward" and math.isfinite(report.loss)
    assert (report.operation, report.module) == ("MulBackward0", "layers.3.attention")
    place = line_of(sparse_entropy, "torch.log")
    assert report.source is not None and report.source.short == place
    assert report.graph is not None and report.graph.nodes == () and report.task is not None
    told = repr(report)
    order = schedule(report.graph, "heap")
    (log,) = [task.id for task in report.graph.tasks if task.short_name == "Log"]
    for task in (report.task, log):
        says(told, report.graph.describe(task, order.index(task)))  # its place as PyTorch runs it
    says(told, "gradient * other = 0 * (-inf) = NaN")
    find = report.finds[0]
    assert (find.operation, find.what, find.how) == ("log", "inf", "made")
    says(told, f"log (layers.3.attention, {place})", "-inf")
    with warnings.catch_warnings(action="ignore"), torch.autograd.detect_anomaly():
        loss = make_loss()
        with raises(RuntimeError, "'MulBackward0'", "nan"):
            loss.backward()


@both
def test_where_all_is_finite_it_says_so(engine: Engine, snapshot: Snapshots) -> None:
    _, make_loss = transformer(None)
    report = ts.find_nan(make_loss, engine=engine)
    assert not report and report.where is None and report.stop is None and report.finds == ()
    says(report, f"{report.loss:.6g}", len(report.graph))
    if engine == "direct":
        snapshot("find_nan", repr(report).replace(f"{report.loss:.6g}", "LOSS"))


def masked(row_is_empty: bool) -> Callable[[], Tensor]:
    scores = torch.randn(3, 4, requires_grad=True)
    keep = torch.ones(3, 4, dtype=torch.bool).tril()
    keep[1] = not row_is_empty

    def make_loss() -> Tensor:
        return functional.softmax((scores * 1).masked_fill(~keep, -math.inf), -1).square().sum()

    return make_loss


def test_a_mask_is_meant_but_not_that_it_leaves_a_row_empty() -> None:
    assert not ts.find_nan(masked(row_is_empty=False))
    report = ts.find_nan(masked(row_is_empty=True))
    assert report.where == "forward" and report.operation == "softmax"
    assert report.maker is not None and (report.maker.what, report.maker.how) == ("nan", "made")
    says(report.sentences[0], "NaN", 4, 12, "[1, 0]")
    says(report, "[1, :]", "-inf")


@pytest.mark.parametrize(
    ("make_loss", "operation", "facts"),
    [
        (lambda x: (x * 0).sqrt().sum(), "SqrtBackward0", ("gradient / (2 * result) = 1 / (2 * 0) = inf",)),
        (lambda x: torch.where(x > 9, (x * 0).reciprocal(), x).sum(), "ReciprocalBackward0", ("= -0 * inf² = NaN",)),
        (lambda x: (x / 0 * 0).sum(), "div", (1, 0)),
        (lambda x: (x * 1e30).square().sum(), "square", ("1e+30",)),
        (lambda x: (x * float("nan")).sum(), "mul", (1, "NaN")),
        (lambda x: torch.cat([x, x.log() - x.log(), (x - 1).log()]).sum(), "log", ("[0]", 0)),
    ],
    ids=["sqrt", "reciprocal", "div", "square", "mul", "log"],
)
def test_usual_culprits_are_named(
    make_loss: Callable[[Tensor], Tensor], operation: str, facts: tuple[object, ...], snapshot: Snapshots
) -> None:
    x = torch.ones(3, requires_grad=True)
    report = ts.find_nan(lambda: make_loss(x))
    assert report and report.operation == operation
    # Without the quoted line of the forward, which has these facts as strings.
    says("\n".join(each for each in report.sentences if "lambda" not in each), *facts)
    snapshot("find_nan", report)


def test_a_bad_parameter_and_bad_data_are_named_and_no_operation_blamed_for_them(snapshot: Snapshots) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    with torch.no_grad():
        model[1].weight[0, 2] = math.nan
    report = ts.find_nan(lambda: model(torch.ones(4, 2)).sum())
    assert report.operation == "linear" and report.module == "1"
    assert report.maker is not None and report.maker.how == "given"
    (named,) = [each for each in report.sentences if "1.weight" in each]
    says(named, "1×3 float32 cpu", "NaN", 1, 3, "[0, 2]")
    data = torch.tensor([[1.0, math.nan]])
    report = ts.find_nan(lambda: model[0](data).nansum() + model[0](data).sum())
    assert report.maker is not None and report.maker.how == "given"
    (named,) = [each for each in report.sentences if "1×2 float32 cpu" in each]
    says(named, 0, "NaN", 1, 2, "[0, 1]")
    snapshot("find_nan", f"{report.sentences[0]}\n{named}")


def test_what_is_in_place_is_no_other_operation() -> None:
    x = torch.zeros(2, requires_grad=True)

    def make_loss() -> Tensor:
        y = x * 1
        y.log_()
        y.mul_(2)
        return y.sum()

    report = ts.find_nan(make_loss)
    assert report.operation is not None and report.operation.endswith("log_")


@both
@pytest.mark.parametrize("kind", ["tensor", "accumulated", "before the node", "after the node"])
def test_what_hooks_of_leaves_make_is_not_called_finite(kind: str, engine: Engine, snapshot: Snapshots) -> None:
    layer = nn.Linear(3, 2)
    other, leaf = layer.weight, layer.bias

    def make_loss() -> Tensor:
        output: Tensor = layer(torch.ones(1, 3))
        return output.tanh().sum()

    def spoil(*_: object) -> None:
        assert leaf.grad is not None
        leaf.grad.fill_(math.nan)

    assert ts.find_nan(make_loss, engine=engine).not_run == ()
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    if kind == "tensor":
        handle = leaf.register_hook(lambda gradient: gradient * math.nan)
    elif kind == "accumulated":
        handle = leaf.register_post_accumulate_grad_hook(spoil)
    elif kind == "before the node":
        handle = node.register_prehook(lambda gradients: tuple(each * math.nan for each in gradients))
    else:
        handle = node.register_hook(spoil)
    make_loss().backward()
    assert leaf.grad is not None and leaf.grad.isnan().all() and other.grad is not None and other.grad.isfinite().all()

    report = ts.find_nan(make_loss, engine=engine)
    assert not report  # hooks do not run: they may step an optimizer
    handle.remove()
    assert report.graph is not None and [report.graph.tasks[task].parameter for task in report.not_run] == ["bias"]
    (said,) = [line for line in report.sentences if "AccumulateGrad" in line]
    assert said.count("AccumulateGrad") == 1 and "AccumulateGrad (bias, " in said
    if (kind, engine) == ("tensor", "direct"):
        snapshot("find_nan", said)


def test_no_gradient_hook_or_random_number_is_left_changed() -> None:
    model, make_loss = transformer(sparse_entropy)
    first, *others = model.parameters()
    first.grad = kept = torch.ones_like(first)
    stepped: list[Tensor] = []
    first.register_post_accumulate_grad_hook(stepped.append)
    made = Mock()  # what is appended to a list would be taken out again

    def with_dropout() -> Tensor:
        loss = functional.dropout(make_loss().expand(3), 0.5).sum() + make_loss()
        made(loss)
        return loss

    state = torch.get_rng_state()
    assert ts.find_nan(with_dropout)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.grad is kept and torch.equal(kept, torch.ones_like(first)) and stepped == []
    assert all(each.grad is None for each in others)
    assert not nn.modules.module._global_forward_pre_hooks and not nn.modules.module._global_forward_hooks
    assert all(node_hooks(node) == ([], []) for node in ts.graph(made.call_args.args[0]).nodes)


def test_a_checkpoint_that_runs_a_backward_of_its_own_accumulates_nothing() -> None:
    inner, outer = nn.Linear(3, 3), nn.Linear(3, 1)
    inner.weight.grad = kept = torch.ones(3, 3)
    x = torch.ones(2, 3, requires_grad=True)

    def make_loss() -> Tensor:
        found: Tensor = outer(checkpoint(inner, x * 1, use_reentrant=True)).sum()
        return found

    report = ts.find_nan(make_loss)
    assert not report
    assert inner.weight.grad is kept and torch.equal(kept, torch.ones(3, 3)) and inner.bias.grad is None
    assert outer.weight.grad is None and x.grad is None


def test_inside_of_a_checkpoint_without_reentry_the_task_is_found() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    report = ts.find_nan(lambda: checkpoint(lambda y: y.sqrt(), x * 1, use_reentrant=False).sum())
    assert report.where == "backward" and report.operation == "SqrtBackward0"


def test_what_the_direct_engine_refuses_runs_with_pytorchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise NotImplementedError("refused")

    monkeypatch.setattr(find_nan_file, "Stepper", refuse)
    x = torch.zeros(2, requires_grad=True)
    assert ts.find_nan(lambda: (x * 1).sqrt().sum()).operation == "SqrtBackward0"


def test_a_forward_that_raises_says_what_it_had_made_before(snapshot: Snapshots) -> None:
    x = torch.zeros(2, requires_grad=True)

    def make_loss() -> Tensor:
        y = (x * 1).log()
        if not y.isfinite().all():
            raise ValueError("mine")
        return y.sum()

    with raises(ValueError, "mine") as raised:
        ts.find_nan(make_loss)
    (note,) = [note for note in raised.value.__notes__ if "log" in note]
    says(note, "tapescope", "-inf", 2)
    snapshot("find_nan", note)


def test_a_loss_without_a_graph_and_things_that_are_none(snapshot: Snapshots) -> None:
    x = torch.zeros(2)
    report = ts.find_nan(lambda: x.sum())
    assert not report and report.graph is None
    snapshot("find_nan", report)
    assert ts.find_nan(lambda: x.log().sum()).operation == "log"
    leaf = torch.ones((), requires_grad=True)
    assert not ts.find_nan(lambda: leaf) and leaf.grad is None
    with raises(TypeError, "make_loss", "Tensor"):
        ts.find_nan(x)  # type: ignore[arg-type]
    with raises(ValueError, "make_loss()"):
        ts.find_nan(lambda: x)


def test_the_report_is_shown_as_text_rich_and_html_with_the_users_words_escaped() -> None:
    x = torch.zeros(2, requires_grad=True)
    report = ts.find_nan(lambda: (x * 1 if "<b>" < "<i>" else x).log().sum())  # this line is shown
    html = report._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html.replace('<b>"', "")
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report)
    assert "<b>" in console.export_text() and "<b>" in repr(report)


def test_complex_and_integer_values_are_no_trouble() -> None:
    z = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    assert not ts.find_nan(lambda: (z * torch.arange(3)).abs().sum() + torch.ones(3, dtype=torch.long).sum())
    report = ts.find_nan(lambda: ((z * 0).log() * 0).real.sum())
    assert report and "log" in repr(report)


@both
def test_what_waits_for_a_leaf_is_looked_at_or_not_spoken_of(engine: Engine, snapshot: Snapshots) -> None:
    leaf = torch.ones(3, dtype=torch.float16, requires_grad=True)

    def make_loss() -> Tensor:
        return (leaf * 60000.0).float().sum() + (leaf * 60000.0).float().sum()

    report = ts.find_nan(make_loss, engine=engine)
    assert leaf.grad is None
    if engine == "direct":
        assert report.where == "backward" and report.operation == "torch::autograd::AccumulateGrad"
        says(report.sentences[0], "AccumulateGrad", "inf", 3)
        assert report.harmless == () and report.maker is None
        snapshot("find_nan", report)
    else:
        assert not report and report.sums == 1
        (said,) = report.sentences
        says(said, 1, 'engine="direct"')
        snapshot("find_nan", said)
    make_loss().backward()
    assert leaf.grad is not None and leaf.grad.isinf().all()


@both
def test_a_broadcast_sum_that_overflows_on_its_way_to_a_leaf_is_found(engine: Engine) -> None:
    bias = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    x = torch.zeros(4, dtype=torch.float16)
    report = ts.find_nan(lambda: ((x + bias) * 40000.0).float().sum(), engine=engine)
    assert report.where == "backward" and "AddBackward0" in report.sentences[0]


@both
def test_a_bad_gradient_that_is_discarded_is_not_blamed_for_one_that_is_not(
    engine: Engine, snapshot: Snapshots
) -> None:
    x, y = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)

    def discarded() -> Tensor:
        return torch.where(x > 0, x, 0.0).sqrt().sum()

    def reaching() -> Tensor:
        return y.reciprocal().reciprocal().nansum()

    for make_loss in (lambda: reaching() + discarded(), lambda: discarded() + reaching()):
        report = ts.find_nan(make_loss, engine=engine)
        assert report.where == "backward" and report.operation == "ReciprocalBackward0", repr(report)
        assert report.graph is not None and report.task not in report.harmless
        assert [report.graph.tasks[task].name for task in report.harmless] == ["SqrtBackward0"]
        (also,) = [each for each in report.sentences if "SqrtBackward0" in each]
    report = ts.find_nan(discarded, engine=engine)
    assert report.operation == "SqrtBackward0" and report.harmless == (report.task,)
    if engine == "direct":
        snapshot("find_nan", f"{report}\n{also}")
    discarded().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_a_bad_gradient_is_followed_to_the_operation_of_the_forward_that_made_it(snapshot: Snapshots) -> None:
    x = torch.full((3,), 0.5, requires_grad=True)

    def make_loss() -> Tensor:
        harmless = torch.where(x > 0, x, (x * 0).log())
        return (x * (x * 0).reciprocal().detach()).nan_to_num().mul(0).sum() + harmless.sum()

    report = ts.find_nan(make_loss)
    assert report.where == "backward" and report.maker is not None
    assert (report.maker.operation, report.maker.what, report.maker.how) == ("reciprocal", "inf", "made")
    says(report, "gradient * other = 0 * inf = NaN", report.maker.place)
    says(report.maker.text, "inf", 3)
    snapshot("find_nan", report)


def test_a_view_elsewhere_of_which_torch_makes_no_node_is_no_leaf() -> None:
    base = torch.ones(4, requires_grad=True) * 1
    view = base.unbind(0)[0]
    with torch.no_grad():
        base.add_(1)
    with pytest.raises(RuntimeError):
        _ = view.is_leaf
    model = nn.Linear(2, 2)
    assert not ts.find_nan(lambda: model(torch.ones(1, 2)).sum())


def test_anomaly_mode_does_not_end_the_search() -> None:
    w = torch.zeros(3, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        report = ts.find_nan(lambda: (w.sqrt() * 0).sum())
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert report.task is not None
    says(report, "SqrtBackward0")
