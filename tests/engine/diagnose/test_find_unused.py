from __future__ import annotations

import inspect
import re
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor, nn
from torch.distributed._composable.replicate import replicate
from torch.nn.functional import one_hot
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.diagnose.find_unused import CUTS, _Paths
from tapescope.engine.diagnose.zero_gradients import Cause, ZeroOrigin
from tapescope.inspector.capture.gradient_cuts import Cut, Dataflow, Step
from tapescope.tests.says import Snapshots, raises, says, says_none_of


class Heads(nn.Module):
    """A trunk and two heads; `use` says what becomes of the second one's result."""

    def __init__(self, use: Callable[[Tensor], Tensor | float]) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x).tanh()
        found: Tensor = self.first(hidden) + self.use(self.second(hidden))
        return found


def line_of(function: Callable[..., Any], text: str) -> str:
    """`test_find_unused.py:40`: the only line of a function which has this text."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines, first) if text in line]
    return f"{Path(__file__).name}:{number}"


def unused_of(model: nn.Module, *shape: int) -> ts.types.UnusedReport:
    x = torch.randn(*(shape or (3, 4)))
    return ts.find_unused(lambda: model(x).square().sum(), model)


def in_full(report: ts.types.UnusedReport) -> str:
    """The text without line breaks in the table, which depend on the width."""
    return "\n".join([*report.sentences, *map(" | ".join, report.cells)])


def without_gradient(model: nn.Module, make_loss: Callable[[], Tensor]) -> set[str]:
    """Return the parameters whose .grad PyTorch leaves None or zero after a backward."""
    for parameter in model.parameters():
        parameter.grad = None
    loss = make_loss()
    if loss.requires_grad:
        loss.backward()
    found = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    }
    for parameter in model.parameters():
        parameter.grad = None
    return found


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what copies and converts tensors that require gradients
        yield


def test_one_detach_in_a_model_of_several_heads_is_found_with_its_line(snapshot: Snapshots) -> None:
    def use(out: Tensor) -> Tensor:
        scaled = out * 2
        return scaled.detach()  # the culprit

    model = Heads(use)
    report = unused_of(model)
    assert report.names == ("second.weight", "second.bias")
    found = report["second.weight"]
    assert (found.why, found.cut, found.module) == ("path cut", Cut.DETACH, "")
    assert found.source is not None and found.source.short == line_of(use, "the culprit")
    says(found.story, ".detach()", "Heads", line_of(use, "the culprit"))
    says(report.sentences[0], 2, 6)
    says(report, "second.weight", "second.bias", "path cut")
    snapshot("find_unused", in_full(report))


def leave_through_numpy(out: Tensor) -> Tensor:
    return torch.from_numpy(out.detach().numpy())


def overwrite_behind_its_back(out: Tensor) -> Tensor:
    kept = torch.zeros(3, 4)
    kept.data.copy_(out)
    return kept


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x * 2
        ctx.mark_non_differentiable(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def written_outside(out: Tensor) -> Tensor:
    with torch.no_grad():
        return out * 2


def decorated(out: Tensor) -> Tensor:
    double = torch.no_grad()(torch.mul)
    return double(out, 2)


def inferred(out: Tensor) -> Tensor:
    with torch.inference_mode():
        doubled = out * 2
    return doubled.clone()


def detached_in_place(out: Tensor) -> Tensor:
    twice = out * 2
    twice.detach_()
    return twice


CASES: dict[str, tuple[Callable[[Tensor], Tensor | float], Cut, str]] = {
    "detach": (lambda out: out.detach(), Cut.DETACH, "torch.Tensor.detach"),
    "detach_": (detached_in_place, Cut.DETACH, "torch.Tensor.detach_"),
    "data": (lambda out: out.data, Cut.DATA, "torch.Tensor.data.__get__"),
    "item": (lambda out: out.mean().item(), Cut.PYTHON, "torch.Tensor.item"),
    "float": (lambda out: float(out.mean()), Cut.PYTHON, "torch.Tensor.__float__"),
    "tolist": (lambda out: torch.tensor(out.tolist()), Cut.PYTHON, "torch.Tensor.tolist"),
    "numpy": (leave_through_numpy, Cut.DETACH, "torch.Tensor.detach"),
    "torch.tensor": (lambda out: torch.tensor(out), Cut.COPY, "torch.tensor"),
    "new_tensor": (lambda out: out.new_tensor(out), Cut.COPY, "torch.Tensor.new_tensor"),
    "no_grad": (written_outside, Cut.NO_GRAD, "torch.Tensor.mul"),
    "decorated no_grad": (decorated, Cut.NO_GRAD, "torch.mul"),
    "inference_mode": (inferred, Cut.INFERENCE, "torch.Tensor.mul"),
    "argmax": (lambda out: one_hot(out.argmax(-1), 4), Cut.INTEGER, "torch.Tensor.argmax"),
    "comparison": (lambda out: (out > 0).float(), Cut.INTEGER, "torch.Tensor.gt"),
    "long": (lambda out: out.long().float(), Cut.INTEGER, "torch.Tensor.long"),
    "topk": (lambda out: out.topk(1).indices, Cut.INTEGER, "torch.Tensor.topk"),
    "custom Function": (lambda out: Marked.apply(out), Cut.FUNCTION, "Marked"),
    "alias": (overwrite_behind_its_back, Cut.ALIAS, "torch.Tensor.copy_"),
    "branch": (lambda out: 1.0 if (out.sum() > 0).item() else 2.0, Cut.INTEGER, "torch.Tensor.gt"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_way_of_cutting_a_path_is_told_from_the_others(case: str, snapshot: Snapshots) -> None:
    use, cut, operation = CASES[case]
    model = Heads(use)
    x = torch.randn(3, 4)
    report = ts.find_unused(lambda: model(x).sum(), model)
    assert set(report.names) == {"second.weight", "second.bias"} == without_gradient(model, lambda: model(x).sum())
    for found in report:
        assert (found.why, found.cut, found.operation) == ("path cut", cut, operation)
        assert found.source is not None and found.source.file == __file__
        says(found.story, found.source.short)
    if case in ("data", "item", "torch.tensor", "argmax", "inference_mode", "custom Function", "alias"):
        snapshot("find_unused", report.parameters[0].story)


def test_every_way_of_cutting_a_path_has_its_words() -> None:
    assert set(CUTS) == set(Cut)
    for words in CUTS.values():
        words.format(operation="f", writer="g", off="")


def test_a_no_grad_block_is_named_with_the_line_at_which_it_begins(snapshot: Snapshots) -> None:
    def use(out: Tensor) -> Tensor:
        with torch.no_grad():  # off
            shifted = out + 1
            return shifted * 2

    found = unused_of(Heads(use))["second.bias"]
    assert found.cut is Cut.NO_GRAD
    says(found.story, ".add()", "Heads", line_of(use, "out + 1"), "torch.no_grad()", line_of(use, "# off"))
    snapshot("find_unused", found.story)


def enabled_inside(out: Tensor) -> Tensor:
    with torch.no_grad():  # the culprit
        with torch.enable_grad():
            out = out + 1
        return out * 2


def off_in_on_in_off(out: Tensor) -> Tensor:
    with torch.no_grad(), torch.enable_grad():
        out = out + 1
        with torch.no_grad():  # the culprit
            return out * 2


def set_inside(out: Tensor) -> Tensor:
    with torch.no_grad():  # the culprit
        with torch.set_grad_enabled(True):
            with torch.set_grad_enabled(False):
                out + 3
            out = out + 1
        return out * 2


def called_before(out: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    out + 1
    torch.set_grad_enabled(True)
    with torch.set_grad_enabled(True), torch.enable_grad():
        out = out + 1
    with torch.set_grad_enabled(False):  # the culprit
        return out * 2


@pytest.mark.parametrize("use", [enabled_inside, off_in_on_in_off, set_inside, called_before])
def test_of_nested_grad_modes_the_one_that_is_in_force_is_named(use: Callable[[Tensor], Tensor]) -> None:
    story = unused_of(Heads(use))["second.bias"].story
    says(story, "torch.no_grad()", line_of(use, "# the culprit"))
    assert len(re.findall(r"\.py:\d+", story)) == 2  # the operation's and this one


def test_where_gradients_were_switched_on_again_nothing_is_cut() -> None:
    def use(out: Tensor) -> Tensor:
        with torch.no_grad(), torch.enable_grad():
            return out * 2

    assert not unused_of(Heads(use))


def test_a_module_that_is_never_called_is_named_once_for_all_that_is_in_it(snapshot: Snapshots) -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "heads": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])})
    model["aux"] = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.randn(3, 4)
    report = ts.find_unused(lambda: model["heads"][0](model["used"](x)).sum(), model)
    assert [each.why for each in report] == ["never used"] * 6
    assert [(each.module, each.calls) for each in report] == [("heads.1", 0)] * 2 + [("aux", 0)] * 4
    says(report["heads.1.bias"].story, "heads.1", "Linear")
    says(report["aux.2.weight"].story, "aux", "Sequential")
    first, second = report.cells[1:]
    assert first[1:] == ["never used", report["heads.1.bias"].story]
    assert second[1:] == ["never used", report["aux.2.weight"].story]
    says(first[0], "heads.1.weight", "heads.1.bias")
    says(second[0], "aux.0.weight", "aux.0.bias", "aux.2.weight", 1)
    snapshot("find_unused", in_full(report))


def test_a_parameter_that_its_called_module_does_not_use_says_so(snapshot: Snapshots) -> None:
    class Gated(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.gate = nn.Parameter(torch.ones(4))

    model = nn.Sequential(Gated(), nn.Linear(4, 4))
    (found,) = unused_of(model)
    assert (found.name, found.module, found.calls) == ("0.gate", "0", 1)
    says(found.story, "module 0", "Gated")
    snapshot("find_unused", found.story)


def test_a_head_whose_output_is_dropped_is_named_with_its_last_operation(snapshot: Snapshots) -> None:
    def use(out: Tensor) -> float:
        out.exp().sum()  # dropped
        return 1.0

    found = unused_of(Heads(use))["second.weight"]
    assert (found.why, found.operation, found.cut) == ("led nowhere", "torch.Tensor.sum", None)
    says(found.story, ".sum()", "Heads", line_of(use, "# dropped"))
    snapshot("find_unused", found.story)


def test_of_an_output_that_is_only_logged_both_is_said() -> None:
    logged = []

    def use(out: Tensor) -> float:
        score = out.mean()
        logged.append(score.item())
        return 1.0

    found = unused_of(Heads(use))["second.weight"]
    assert (found.why, found.cut) == ("path cut", Cut.PYTHON)

    def watch(out: Tensor) -> float:
        logged.append(out.detach())
        return 1.0

    found = unused_of(Heads(watch))["second.weight"]
    assert (found.why, found.module) == ("led nowhere", "second")


def test_one_of_several_results_that_is_dropped_is_told_from_the_one_that_is_used(snapshot: Snapshots) -> None:
    attention = nn.MultiheadAttention(4, 2)
    query = torch.randn(3, 2, 4)
    report = ts.find_unused(lambda: attention(query, query, query)[1].square().sum(), attention)
    assert report.names == ("out_proj.weight", "out_proj.bias")
    assert {each.why for each in report} == {"led nowhere"}
    says(report["out_proj.bias"].story, 2, "multi_head_attention_forward")
    snapshot("find_unused", report["out_proj.bias"].story)


def test_what_is_written_into_a_part_of_a_tensor_is_followed() -> None:
    def use(out: Tensor) -> Tensor:
        canvas = torch.zeros(3, 8)
        canvas[:, 4:] = out
        return canvas.view(3, 2, 4)[:, 1].detach()

    found = unused_of(Heads(use))["second.weight"]
    assert (found.why, found.cut) == ("path cut", Cut.DETACH)

    def kept(out: Tensor) -> Tensor:
        canvas = torch.zeros(3, 8)
        canvas[:, 4:] = out
        return canvas.view(3, 2, 4)[:, 1]

    assert not unused_of(Heads(kept))


def test_a_parameter_frozen_while_it_was_taken_says_where(snapshot: Snapshots) -> None:
    model = Heads(lambda out: out)
    x = torch.randn(3, 4)

    def make_loss() -> Tensor:
        model.second.requires_grad_(False)
        model.trunk.requires_grad_(False)
        hidden = model.trunk(x)
        loss: Tensor = model.first(hidden).sum() + model.second(hidden).sum()
        model.requires_grad_(True)
        return loss

    report = ts.find_unused(make_loss, model)
    assert {each.cut for each in report} == {Cut.FROZEN}
    says(report["second.weight"].story, "requires_grad", "False", line_of(make_loss, "model.second(hidden)"))
    snapshot("find_unused", report["second.weight"].story)


def test_frozen_parameters_are_left_out_and_counted(snapshot: Snapshots) -> None:
    model = Heads(lambda out: out.detach())
    model.trunk.requires_grad_(False)
    report = unused_of(model)
    assert report.frozen == ("trunk.weight", "trunk.bias")
    assert report.count == 4 and report.names == ("second.weight", "second.bias")
    (left_out,) = [sentence for sentence in report.sentences if "trunk" in sentence]
    says(left_out, 2, "requires_grad=False", "trunk.weight", "trunk.bias")
    snapshot("find_unused", left_out)


class Reversible(torch.autograd.Function):
    """Its backward runs the layers again, and a separate backward: their parameters are in no graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: nn.Module) -> Tensor:
        ctx.x, ctx.layers = x.detach(), layers
        with torch.no_grad():
            return layers(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        with torch.enable_grad():
            x = ctx.x.requires_grad_()
            torch.autograd.backward(ctx.layers(x), gradient)
        return x.grad, None


def test_parameters_to_which_a_function_runs_a_backward_of_its_own_get_a_gradient() -> None:
    model = nn.ModuleDict({"layers": nn.Linear(4, 4), "shared": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    x = torch.randn(3, 4, requires_grad=True)
    layers = nn.Sequential(model["layers"], model["shared"])

    def make_loss() -> Tensor:
        return model["shared"](Reversible.apply(x, layers)).square().sum()

    assert ts.find_unused(make_loss, model).names == ("unused.weight", "unused.bias")
    assert ts.find_unused(lambda: Reversible.apply(x, layers).sum(), model).names == ("unused.weight", "unused.bias")
    assert all(parameter.grad is None for parameter in model.parameters())


class NoneForWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def test_a_function_that_returns_none_for_a_parameter_is_named(snapshot: Snapshots) -> None:
    weight = nn.Parameter(torch.ones(4))
    model = Heads(lambda out: NoneForWeight.apply(out, weight))
    model.weight = weight
    (found,) = unused_of(model)
    assert (found.name, found.why) == ("weight", "no gradient")
    says(found.story, "NoneForWeightBackward", "None")
    (origin,) = found.origins
    assert (origin.task, origin.undefined) == (found.task, True)
    snapshot("find_unused", found.story)


def dead(out: Tensor) -> Tensor:
    return (out - 1000).relu()


ZERO_CASES: dict[str, tuple[Callable[[Tensor], Tensor], str, Cause]] = {
    "dead ReLU": (dead, "Relu", "dead"),
    "times zero": (lambda out: out * 0, "Mul", "zero factor"),
    "round": (lambda out: out.round(), "Round", "flat"),
    "clamp": (lambda out: out.clamp(50, 60), "Clamp", "outside"),
    "masked": (lambda out: out.masked_fill(torch.ones(3, 4, dtype=torch.bool), 0.0), "MaskedFill", "masked"),
    "overwritten": (lambda out: out.mul(1).zero_(), "Zero", "overwritten"),
}


@pytest.mark.parametrize("case", ZERO_CASES)
def test_a_gradient_of_zeros_is_traced_to_the_task_where_they_begin(case: str, snapshot: Snapshots) -> None:
    use, kind, cause = ZERO_CASES[case]
    model = Heads(use)
    x = torch.randn(3, 4)
    report = ts.find_unused(lambda: model(x).sum(), model)
    assert set(report.names) == {"second.weight", "second.bias"} == without_gradient(model, lambda: model(x).sum())
    for found in report:
        assert found.why == "zero gradient" and found.task is not None and report.graph is not None
        assert report.graph.tasks[found.task].short_name == kind
        (origin,) = found.origins
        assert (origin.task, origin.cause, origin.in_part) == (found.task, cause, False)
        says(found.story, origin.reason)
        assert f"{kind}Backward" in found.story
    snapshot("find_unused", report.parameters[0].story)


def test_gradients_that_cancel_and_a_hook_that_makes_zeros_are_told_from_tasks_that_do(snapshot: Snapshots) -> None:
    found = unused_of(Heads(lambda out: out - out))["second.weight"]
    assert [(origin.how, origin.gradients) for origin in found.origins] == [("sum", 2)]
    says(found.story, 2, "AddmmBackward0")
    snapshot("find_unused", found.story)

    def hooked(out: Tensor) -> Tensor:
        doubled = out * 2
        doubled.register_hook(torch.zeros_like)
        return doubled

    found = unused_of(Heads(hooked))["second.weight"]
    assert [(origin.how, origin.gradients) for origin in found.origins] == [("sum", 1)]
    says(found.story, "MulBackward0")
    snapshot("find_unused", found.story)


class Given(nn.Module):
    """One parameter, and a loss of it."""

    def __init__(self, loss: Callable[[Tensor], Tensor], *values: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values or (-1.0, 1.0)))
        self.loss = loss

    def forward(self) -> Tensor:
        return self.loss(self.weight)

    def origin(self) -> tuple[ZeroOrigin, str]:
        """Return the task where the zeros begin, and the story."""
        (found,) = ts.find_unused(self, self)
        assert found.why == "zero gradient"
        (origin,) = found.origins
        return origin, found.story


IN_PART: dict[str, tuple[Callable[[Tensor], Tensor], Cause]] = {
    "relu": (lambda w: w.relu()[0], "dead"),
    "clamp": (lambda w: w.clamp(min=0)[0], "outside"),
    "mask": (lambda w: w.masked_fill(torch.tensor([True, False]), 0.0)[0], "masked"),
    "where": (lambda w: torch.where(w > 0, w, 0.0)[0], "masked"),
    "factor": (lambda w: (w * torch.tensor([0.0, 5.0]))[0], "zero factor"),
}


@pytest.mark.parametrize("case", IN_PART)
def test_where_some_elements_do_pass_it_is_not_said_that_none_does(case: str, snapshot: Snapshots) -> None:
    loss, cause = IN_PART[case]
    origin, story = Given(loss).origin()
    assert (origin.cause, origin.in_part) == (cause, True)
    says(story, origin.reason)
    snapshot("find_unused", story)


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_that_cancels_is_not_said_to_have_a_factor_of_zeros(bias: bool, snapshot: Snapshots) -> None:
    layer = nn.Linear(1, 1, bias=bias)
    x, signs = torch.ones(2, 1), torch.tensor([[1.0], [-1.0]])
    report = ts.find_unused(lambda: (layer(x) * signs).sum(), layer)
    assert len(report) == 1 + bias
    for found in report:
        assert [(origin.how, origin.cause) for origin in found.origins] == [("task", None)]
    snapshot("find_unused", report.parameters[0].story)
    report = ts.find_unused(lambda: layer(torch.zeros(2, 1)).sum(), layer)
    assert report.names == ("weight",)
    (origin,) = report["weight"].origins
    assert (origin.cause, origin.in_part) == ("zero factor", False)


def test_a_hook_of_a_node_that_makes_zeros_is_not_told_as_what_the_node_saved() -> None:
    def hooked(weight: Tensor) -> Tensor:
        result = weight.relu()
        assert result.grad_fn is not None
        result.grad_fn.register_hook(lambda given, taken: (given[0] * 0,))
        return result.sum()

    origin, story = Given(hooked, 1.0, 2.0).origin()
    assert (origin.how, origin.cause) == ("task", None)
    says(story, "ReluBackward0")


def test_a_hook_that_makes_zeros_of_a_sum_is_not_told_as_one_that_cancels() -> None:
    model = Given(lambda weight: (weight * 2).sum() + (weight * 3).sum())
    model.weight.register_hook(torch.zeros_like)
    origin, _ = model.origin()
    assert (origin.how, origin.gradients) == ("sum", 2)


def test_a_hook_that_makes_zeros_of_the_losss_gradient_is_named(snapshot: Snapshots) -> None:
    def hooked(weight: Tensor) -> Tensor:
        loss = weight.sum()
        loss.register_hook(torch.zeros_like)
        return loss

    origin, story = Given(hooked).origin()
    assert (origin.how, origin.gradients) == ("sum", 0)
    snapshot("find_unused", story)


def looked_at(model: nn.Module, make_loss: Callable[[], Tensor]) -> tuple[ts.types.UnusedReport, int]:
    """The report, and how many lines of the package ran for it: a measure of time that no other process disturbs."""
    package = str(Path(ts.__file__).parent)
    ran = 0

    def line(frame: Any, event: str, argument: object) -> Any:
        nonlocal ran
        ran += event == "line"
        return line

    def call(frame: Any, event: str, argument: object) -> Any:
        return line if frame.f_code.co_filename.startswith(package) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        return ts.find_unused(make_loss, model), ran
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("end", [lambda x: x * 0, lambda x: x.detach() + 0])
def test_twice_as_many_parameters_along_one_chain_take_twice_as_long(end: Callable[[Tensor], Tensor]) -> None:
    def lines(count: int) -> int:
        model = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(count)])

        def make_loss() -> Tensor:
            x = torch.ones(1)
            for weight in model:
                x = x * weight
            return end(x).sum() + 0 * model[0].sum()

        report, ran = looked_at(model, make_loss)
        assert len(report) == count
        return ran

    assert lines(200) < 2.5 * lines(100)


def test_of_what_no_later_operation_takes_little_is_kept() -> None:
    count = 3_000
    flow = Dataflow(torch.ones(1) for _ in range(count))
    for number in range(count):
        flow.add(Step(None, [(number, None), *([(count + number - 1, None)] if number else [])]))
    flow.add(Step(None, [(2 * count - 1, Cut.DETACH)]))
    tracemalloc.start()
    paths = _Paths(flow, [2 * count], [True] * count)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * count * count / 8  # bytes, were a bit kept for each step and parameter
    for number in (0, count - 1):
        found = paths.story(number, ("weight", (), (1,)))
        assert found is not None and found.cut is Cut.DETACH


class Residual(nn.Module):
    """A block whose skip connection passes through `skip`."""

    def __init__(self, skip: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.skip = nn.Linear(4, 4), nn.Linear(4, 4), skip

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        found: Tensor = self.second(hidden) + self.skip(hidden)
        return found


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


@pytest.mark.parametrize(
    ("skip", "cut"),
    [
        (lambda h: h.detach(), Cut.DETACH),
        (lambda h: h.data, Cut.DATA),
        (without_grad, Cut.NO_GRAD),
        (lambda h: torch.as_tensor(h.tolist()) + torch.tensor(h.mean()), Cut.COPY),
        (lambda h: h * 2, None),
        (lambda h: h.argmax(), None),
        (lambda h: (h.round() - h).detach() + h, Cut.DETACH),
    ],
)
@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_path_that_is_cut_beside_another_is_named(skip: Callable[[Tensor], Tensor], cut: Cut | None) -> None:
    torch.manual_seed(0)
    model = Residual(skip)
    x = torch.randn(3, 4)
    report = ts.find_unused(lambda: model(x).sum(), model)
    assert not report and [each.cut for each in report.cuts] == ([] if cut is None else [cut])
    if cut is not None:
        (only,) = report.cuts
        assert only.source is not None and only.source.file == __file__
        says(report.sentences[1], only.source.short)


def test_cuts_that_are_listed_do_not_hide_a_parameter_behind_a_full_cut() -> None:
    report = unused_of(Heads(lambda out: out.detach()))
    assert report and not report.cuts  # its rows tell of that cut


def test_a_shared_parameter_is_listed_once_with_both_names() -> None:
    model = Heads(lambda out: out.detach())
    model.tied = model.second
    report = unused_of(model)
    assert report.names == ("second.weight", "second.bias") and report.count == 6
    assert report["tied.weight"] is report["second.weight"] and report["tied.weight"].also == ("tied.weight",)
    assert "second.weight = tied.weight" in repr(report)


def test_a_loss_without_a_graph_says_so_and_still_where_each_path_was_cut(snapshot: Snapshots) -> None:
    model = nn.LSTM(4, 4)
    report = ts.find_unused(lambda: model(torch.randn(3, 2, 4))[0].detach().sum(), model)
    assert len(report) == report.count == 4 and report.graph is None
    assert {each.cut for each in report} == {Cut.DETACH}
    snapshot("find_unused", "\n".join(report.sentences))


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_counts(reentrant: bool, snapshot: Snapshots) -> None:
    class Checkpointed(Heads):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    model = Checkpointed(lambda out: out.detach())
    x = torch.randn(3, 4, requires_grad=True)
    report = ts.find_unused(lambda: model(x).sum(), model)
    assert set(report.names) == {"second.weight", "second.bias"} == without_gradient(model, lambda: model(x).sum())
    assert {each.why for each in report} == {"not seen" if reentrant else "path cut"}
    if reentrant:
        snapshot("find_unused", report.parameters[0].story)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_scripted_module_is_said_not_to_be_seen() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.dropped = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + self.dropped(x).detach()  # type: ignore[no-any-return]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(Inner())
    report = unused_of(nn.Sequential(scripted, nn.Linear(4, 4)))
    assert report.names == ("0.dropped.weight", "0.dropped.bias")
    assert {each.why for each in report} == {"not seen"}


def test_gradients_random_numbers_and_functions_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), Heads(lambda out: out.detach()))
    x = torch.randn(3, 4)
    model(x).sum().backward()
    before = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    grads = [each.grad for each in model.parameters()]
    state, apply = torch.get_rng_state(), torch.autograd.Function.__dict__["apply"]
    prepares = DistributedDataParallel._pre_forward
    fired = []
    hook = model[0].weight.register_post_accumulate_grad_hook(fired.append)
    ts.find_unused(lambda: model(x).sum(), model)
    hook.remove()
    assert not fired
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.autograd.Function.__dict__["apply"] is apply and DistributedDataParallel._pre_forward is prepares
    for parameter, grad, value in zip(model.parameters(), grads, before, strict=True):
        assert parameter.grad is grad
        assert grad is None or torch.equal(grad, value)


def written_in_part(first: Tensor, second: Tensor) -> Tensor:
    result = first * 1
    result[:2] = second[:2]
    return result


def without_gradients(first: Tensor, second: Tensor) -> Tensor:
    with torch.no_grad():
        return first * second


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.mul,
    lambda first, second: first.detach() + second,
    lambda first, second: first.argmax() + second.round(),
    lambda first, second: torch.cat([first, second]).chunk(2)[0],
    lambda first, second: torch.stack([first, second]).topk(1, 0).values[0],
    lambda first, second: torch.where(first > second, first, 0.5),
    lambda first, second: first.data.mul_(1) + Marked.apply(second),
    lambda first, second: first.clone().zero_() + second.exp(),
    written_in_part,
    without_gradients,
)


@given(
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=14)
)
@settings(deadline=None, max_examples=40)
def test_of_any_program_those_are_found_that_pytorch_gives_none_and_each_has_its_story(
    program: list[tuple[Callable[[Tensor, Tensor], Tensor], int, int]],
) -> None:
    model = nn.ParameterList([nn.Parameter(torch.linspace(0.1 + number, 1.3, 4)) for number in range(4)])

    def make_loss() -> Tensor:
        values: list[Tensor] = list(model)
        for operation, first, second in program:
            values.append(operation(values[first % len(values)], values[second % len(values)]))
        return values[-1].sum()

    report = ts.find_unused(make_loss, model)
    assert set(report.names) == without_gradient(model, make_loss)
    for parameter in model.parameters():
        parameter.grad = None
    loss = make_loss()
    if loss.requires_grad:
        loss.backward()
    for name, parameter in model.named_parameters():
        outside = report.graph is None or all(task.parameter != name for task in report.graph.tasks)
        if outside:
            assert report[name].why in ("never used", "path cut", "led nowhere") and report[name].story
        elif parameter.grad is None:
            assert report[name].why == "no gradient"
        elif not parameter.grad.any():
            assert report[name].why == "zero gradient"


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm", "recommender"])
def test_a_healthy_model_has_none(name: str, snapshot: Snapshots) -> None:
    from tapescope.engine.studies.workloads import workload

    model, make_loss = workload(name).build()
    report = ts.find_unused(make_loss, model)
    assert not report and report.count == len(list(model.parameters()))
    says(repr(report), f"{report.count:,}")
    if name == "gpt2":
        snapshot("find_unused", report)


@pytest.fixture
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("needs gloo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone_in_a_group")
def test_those_of_distributed_data_parallel_are_the_ones_it_complains_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    torch.distributed.set_debug_level_from_env()
    model = DistributedDataParallel(Heads(lambda out: out.detach()))
    x = torch.randn(3, 4)
    early = ts.find_unused(lambda: model(x).sum(), model)
    model(x).sum().backward()
    with raises(RuntimeError, "find_unused_parameters=True") as error:
        model(x)
    said = re.search(r"did not receive grad for rank 0: ([\w., ]+)", str(error.value))
    assert said is not None
    late = ts.find_unused(lambda: model(x).sum(), model)  # where such a forward raises
    for report in (early, late):
        assert {name.removeprefix("module.") for name in report.names} == set(said[1].replace(" ", "").split(","))
        says(report, "DistributedDataParallel", "find_unused_parameters=True")


@pytest.mark.usefixtures("alone_in_a_group")
def test_replicate_prepares_no_reduction_either() -> None:
    model = replicate(Heads(lambda out: out.detach()))
    x = torch.randn(3, 4)
    early = ts.find_unused(lambda: model(x).sum(), model)
    model(x).sum().backward()
    with raises(RuntimeError, "find_unused_parameters=True"):
        model(x)
    late = ts.find_unused(lambda: model(x).sum(), model)  # where such a forward raises
    assert early.names == late.names == ("second.weight", "second.bias")


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_distributed_data_parallel_trains_on_as_if_nothing_had_been_looked_for(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Heads(lambda out: out.detach()), **options)
    torch.manual_seed(0)
    other = Heads(lambda out: out.detach())
    x = torch.randn(3, 4)
    for _ in range(3):
        assert len(ts.find_unused(lambda: model(x).sum(), model)) == 2
        model(x).sum().backward()
        other(x).sum().backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        assert theirs.grad is None or torch.allclose(mine.grad, theirs.grad)


def test_what_cannot_be_meant_is_refused_in_a_sentence(snapshot: Snapshots) -> None:
    model = nn.Linear(4, 4)
    with raises(TypeError, "make_loss", "Tensor") as of_loss:
        ts.find_unused(model(torch.ones(1, 4)).sum(), model)  # type: ignore[arg-type]
    with raises(TypeError, "model", "list") as of_model:
        ts.find_unused(lambda: model(torch.ones(1, 4)).sum(), list(model.parameters()))  # type: ignore[arg-type]
    with raises(ValueError, "make_loss") as of_shape:
        ts.find_unused(lambda: model(torch.ones(1, 4)), model)
    with raises(KeyError, "'weight'") as of_name:
        ts.find_unused(lambda: model(torch.ones(1, 4)).sum(), model)["weight"]
    snapshot("find_unused", "\n".join(str(each.value) for each in (of_loss, of_model, of_shape, of_name)))


def test_the_report_is_a_data_frame_a_table_in_a_terminal_and_escaped_html() -> None:
    model = Heads(lambda out: out.detach())
    model.register_parameter("<script>alert(1)</script>", nn.Parameter(torch.ones(1)))
    report = unused_of(model)
    frame = pd.DataFrame(report.records())
    assert list(frame["parameter"]) == list(report.names) and len(frame) == len(report) == 3
    assert frame["cut"].tolist()[1:] == ["detach", "detach"]
    page = report._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "second.weight" in page
    console = Console(width=100)
    with console.capture() as capture:
        console.print(report)
    says(capture.get(), "path cut", report.sentences[0])


def test_with_a_reentrant_checkpoint_no_grad_of_an_input_or_a_parameter_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(3, 4, requires_grad=True)
    checkpointed = torch.utils.checkpoint.checkpoint
    for grad in (None, torch.ones(3, 4)):
        x.grad = grad
        ts.find_unused(lambda: checkpointed(model, x, use_reentrant=True).sum() + x.sum(), model)
        assert x.grad is grad and (grad is None or torch.equal(grad, torch.ones(3, 4)))
        assert all(parameter.grad is None for parameter in model.parameters())


def test_a_closure_of_a_reentrant_checkpoint_leaves_the_grad_of_all_that_it_takes() -> None:
    weight, outside = nn.Parameter(torch.ones(4)), torch.ones(4, requires_grad=True)
    x = torch.randn(3, 4, requires_grad=True)
    used = nn.ParameterList([weight])
    for grad in (None, torch.full((4,), 2.0)):
        weight.grad = outside.grad = grad
        report = ts.find_unused(
            lambda: checkpoint(lambda rows: rows * weight * outside, x, use_reentrant=True).sum(), used
        )
        assert not report and weight.grad is grad and outside.grad is grad
        assert grad is None or torch.equal(grad, torch.full((4,), 2.0))


def vmapped(module: nn.Module, x: Tensor) -> Tensor:
    return torch.vmap(module)(x)  # type: ignore[no-any-return]


def vmapped_to_columns(module: nn.Module, x: Tensor) -> Tensor:
    return torch.vmap(module, out_dims=1)(x).T  # type: ignore[no-any-return]


def vmapped_twice(module: nn.Module, x: Tensor) -> Tensor:
    return torch.vmap(torch.vmap(module))(x[None])  # type: ignore[no-any-return]


def called_with_others_in_place(module: nn.Module, x: Tensor) -> Tensor:
    doubled = {name: parameter * 2 for name, parameter in module.named_parameters()}
    return torch.func.functional_call(module, doubled, x)  # type: ignore[no-any-return]


def gradient_of_it(module: nn.Module, x: Tensor) -> Tensor:
    return torch.vmap(torch.func.grad(lambda row: module(row).square().sum()))(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "transformed", [vmapped, vmapped_to_columns, vmapped_twice, called_with_others_in_place, gradient_of_it]
)
def test_a_detach_inside_of_a_functorch_transform_is_found_with_its_line(
    transformed: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    def use(out: Tensor) -> Tensor:
        return out.detach() * 2  # the culprit

    model, x = Heads(use), torch.randn(3, 4)
    report = ts.find_unused(lambda: transformed(model, x).square().sum(), model)
    assert set(report.names) == {"second.weight", "second.bias"}
    assert set(report.names) == without_gradient(model, lambda: transformed(model, x).square().sum())
    for found in report:
        assert (found.why, found.cut) == ("path cut", Cut.DETACH)
        assert found.source is not None and found.source.short == line_of(use, "the culprit")
        says(found.story, ".detach()", line_of(use, "the culprit"))


def test_what_is_written_behind_its_back_inside_of_vmap_is_followed() -> None:
    def row_of(row: Tensor) -> Tensor:
        kept = row.clone()
        kept.detach().copy_(model(row))  # the culprit
        return kept

    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    report = ts.find_unused(lambda: torch.vmap(row_of)(x).sum(), model)
    assert report.names == ("weight", "bias")
    for found in report:
        assert found.cut is Cut.ALIAS
        assert found.source is not None and found.source.short == line_of(row_of, "the culprit")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_parameter_that_is_a_nested_tensor_has_no_shape_and_its_story(layout: torch.layout) -> None:
    rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    model = nn.ParameterDict({"used": rows, "cut": rows.clone(), "left": rows.clone()})

    def make_loss() -> Tensor:
        return torch.nested.to_padded_tensor(model["used"] * 2 + model["cut"].detach(), 0.0).sum()

    report = ts.find_unused(make_loss, model)
    assert {each.name: (each.why, each.cut, each.shape) for each in report} == {
        "cut": ("path cut", Cut.DETACH, None),
        "left": ("never used", None, None),
    }


class Low(nn.Module):
    """A frozen layer and an addend of low rank."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.down = nn.Linear(4, 2, bias=False)
        self.up = nn.Linear(2, 4, bias=False)
        nn.init.constant_(self.up.weight, start)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


def test_of_an_adapter_that_starts_with_zeros_the_other_factor_gets_a_gradient_of_zeros() -> None:
    report = unused_of(Low(0.0))
    assert report.names == ("down.weight",) and report.frozen == ("base.weight", "base.bias")
    assert report["down.weight"].why == "zero gradient"
    assert not unused_of(Low(0.1))


def test_a_parametrization_is_named_by_the_parameters_that_it_has() -> None:
    model = nn.Sequential(*(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)) for _ in range(2)))
    assert not unused_of(model)
    x = torch.randn(3, 4)
    report = ts.find_unused(lambda: (model[0](x) + model[1](x).detach()).sum(), model)
    assert report.names == tuple(name for name, _ in model.named_parameters() if name.startswith("1."))
    assert {each.cut for each in report} == {Cut.DETACH}
    report = ts.find_unused(lambda: model[0](x).sum(), model)
    assert {each.why for each in report} == {"never used"} and len(report) == 3
    (outside,) = [each for each in report if "original" not in each.name]
    assert (outside.module, outside.calls) == ("1", 0)
    says(outside.story, "module 1", "ParametrizedLinear")


def test_of_modules_in_a_dict_and_parameters_in_a_list_each_is_told_apart() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ways = nn.ModuleDict({"left": nn.Linear(4, 4), "right": nn.Linear(4, 4)})
            self.scales = nn.ParameterList([torch.ones(4), torch.ones(4), torch.ones(4)])

        def forward(self, x: Tensor) -> Tensor:
            return self.ways["left"](x) * self.scales[0] + self.scales[1].detach()  # type: ignore[no-any-return]

    report = unused_of(Routed())
    assert {each.name: each.why for each in report} == {
        "ways.right.weight": "never used",
        "ways.right.bias": "never used",
        "scales.1": "path cut",
        "scales.2": "never used",
    }
    assert [(report[name].module, report[name].calls) for name in ("ways.right.bias", "scales.2")] == [
        ("ways.right", 0),
        ("", 1),
    ]
    says(report["ways.right.bias"].story, "ways.right", "Linear")
    says(report["scales.2"].story, "Routed")


@pytest.mark.parametrize("rows", [[0, 1], []])
def test_a_sparse_embedding_gets_a_gradient_where_it_has_rows(rows: list[int]) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    taken = torch.tensor(rows, dtype=torch.long)
    report = ts.find_unused(lambda: model(taken).sum(), model)
    assert [each.why for each in report] == ([] if rows else ["zero gradient"])
    report = ts.find_unused(lambda: model(taken).detach().sum(), model)
    assert [each.cut for each in report] == [Cut.DETACH]


def test_of_another_model_the_first_sentence_asks_whether_it_is_the_right_one(snapshot: Snapshots) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    report = ts.find_unused(lambda: model(torch.ones(1, 2)).sum(), other)
    assert len(report) == 2
    (sentence,) = report.sentences
    says(sentence, 2, "make_loss")
    snapshot("find_unused", sentence)


@pytest.mark.parametrize("how", ["mask", "narrow", "index"])
def test_zeros_of_a_tensor_without_elements_are_told_as_such(how: str, snapshot: Snapshots) -> None:
    model, x = nn.Linear(3, 2), torch.ones(4, 3)
    none = torch.zeros(4, dtype=torch.bool)
    pick = {"mask": lambda h: h[none], "narrow": lambda h: h[:0], "index": lambda h: h[torch.arange(0)]}[how]
    report = ts.find_unused(lambda: pick(model(x)).sum(), model)
    assert report.names == ("weight", "bias")
    for each in report:
        (origin,) = each.origins
        assert (origin.how, origin.empty) == ("task", (0, 2))
        says(each.story, "(0, 2)")
    if how == "mask":
        snapshot("find_unused", report.parameters[0].story)


def test_padding_and_ignored_targets_are_told_as_such() -> None:
    words = nn.Embedding(5, 3, padding_idx=0)
    report = ts.find_unused(lambda: words(torch.zeros(4, dtype=torch.long)).sum(), words)
    assert [origin.cause for origin in report["weight"].origins] == ["padding_idx"]
    says(report["weight"].story, "padding_idx")
    head = nn.Linear(3, 5)

    def make_loss() -> Tensor:
        ignored = torch.full((4,), -100)
        return nn.functional.cross_entropy(head(torch.ones(4, 3)), ignored, reduction="sum")

    report = ts.find_unused(make_loss, head)
    assert [origin.cause for origin in report["weight"].origins] == ["ignore_index"]
    says(report["weight"].story, "ignore_index")


def test_where_all_parameters_are_outside_of_the_graph_nothing_of_ddp_is_advised(snapshot: Snapshots) -> None:
    model, other = nn.Linear(2, 2), torch.ones(1, requires_grad=True)
    report = ts.find_unused(lambda: (model(torch.ones(1, 2)).detach() * other).sum(), model)
    assert len(report) == 2
    says_none_of(report, "DistributedDataParallel")
    snapshot("find_unused", "\n".join(report.sentences))
