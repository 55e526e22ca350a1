"""Around code that torch.compile has compiled: it stays so, is not compiled again, and is what the figures are of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import utils as higher_order_utils
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.inspector.graph.kinds import Kind
from tapescope.tests.says import Snapshots, raises

pytestmark = pytest.mark.heavy

Program = Callable[[], tuple[nn.Module, Callable[[], Tensor]]]
Step = tuple[Tensor, ...]
WIDTH = 8


graphs_compiled = 0


def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    """The backend "aot_eager"; counts what it is given."""
    global graphs_compiled
    graphs_compiled += 1
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    global graphs_compiled
    torch._dynamo.reset()
    graphs_compiled = 0
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(self.norm(self.first(x)).relu()))


class Around(nn.Module):
    """A module in eager code."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.inner = inner
        self.after = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x).tanh()).tanh())


class Broken(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(self.drop(x.relu()))


@torch.compiler.disable
def kept_out(x: Tensor) -> Tensor:
    return x.sin()


class PartlyDisabled(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(kept_out(self.first(x))))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * gradient * x


class WithFunction(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(Square.apply(self.first(x)))  # type: ignore[no-untyped-call]


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, use_reentrant: bool) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.inner = inner
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, self.before(x), use_reentrant=self.use_reentrant)


def compiled(what: Any, **knobs: Any) -> Any:
    return torch.compile(what, backend=counting, **knobs)


def data(rows: int = 4) -> Tensor:
    return torch.randn(rows, WIDTH)


def program(model: nn.Module, forward: Callable[[Tensor], Tensor]) -> tuple[nn.Module, Callable[[], Tensor]]:
    x = data()
    return model, lambda: forward(x).square().mean()


def whole(model: nn.Module, **knobs: Any) -> Program:
    return lambda: program(model, compiled(model, **knobs))


def compiled_in_place() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = Around(Net())
    model.compile(backend=counting)
    return program(model, model)


def part_in_place() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = Around(Net())
    model.inner.compile(backend=counting)
    return program(model, model)


def part() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = Around(compiled(Net()))
    return program(model, model)


def compiled_loss() -> tuple[nn.Module, Callable[[], Tensor]]:
    model, x, y = Net(), data(), data()
    loss = compiled(lambda found, wanted: nn.functional.mse_loss(found, wanted) + found.abs().mean())
    return model, lambda: loss(model(x), y)


def with_loss() -> tuple[nn.Module, Callable[[], Tensor]]:
    model, x = Net(), data()
    return model, compiled(lambda: model(x).square().mean())


def two_sizes() -> tuple[nn.Module, Callable[[], Tensor]]:
    model, one, other = Net(), data(4), data(7)
    run = compiled(model, dynamic=True)
    return model, lambda: run(one).square().mean() + run(other).square().mean()


def in_checkpoint(use_reentrant: bool) -> Program:
    def made() -> tuple[nn.Module, Callable[[], Tensor]]:
        model = Checkpointed(compiled(Net()), use_reentrant)
        return program(model, model)

    return made


def around_checkpoint() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = Checkpointed(Net(), use_reentrant=False)
    return program(model, compiled(model))


PROGRAMS: dict[str, Program] = {
    "whole": lambda: whole(Net())(),
    "fullgraph": lambda: whole(Net(), fullgraph=True)(),
    "part": part,
    "in place": compiled_in_place,
    "part in place": part_in_place,
    "graph break": lambda: whole(Broken())(),
    "disabled part": lambda: whole(PartlyDisabled())(),
    "custom Function": lambda: whole(WithFunction())(),
    "loss alone": compiled_loss,
    "model with loss": with_loss,
    "dynamic": two_sizes,
    "in a checkpoint": in_checkpoint(use_reentrant=False),
    "in a reentrant checkpoint": in_checkpoint(use_reentrant=True),
    "around a checkpoint": around_checkpoint,
}

SHORT = ("part", "custom Function")
"""What stands for all of them where time is short."""


def captured(make_loss: Callable[[], Tensor], **knobs: Any) -> Tensor:
    with ts.capture(**knobs):
        return make_loss()


def stepped(make_loss: Callable[[], Tensor], engine: Any) -> None:
    with ts.debug(captured(make_loss), engine=engine) as session:
        session.run()


def under_policy(make_loss: Callable[[], Tensor]) -> None:
    with ts.policy("bfs"):
        make_loss().backward()


def refused(make_loss: Callable[[], Tensor]) -> None:
    with raises(NotImplementedError, "torch.compile"):
        ts.plan_recompute(make_loss, 0.5, seconds=0.1)


Verb = Callable[[nn.Module, Callable[[], Tensor]], object]
VERBS: dict[str, Verb] = {
    "capture": lambda model, make_loss: captured(make_loss),
    "capture(keep_inputs=True)": lambda model, make_loss: captured(make_loss, keep_inputs=True),
    "graph": lambda model, make_loss: ts.graph(make_loss()),
    "backward": lambda model, make_loss: ts.backward(make_loss(), policy="bfs", memory=True),
    "backward(auto)": lambda model, make_loss: ts.backward(make_loss(), policy="auto"),
    "policy": lambda model, make_loss: under_policy(make_loss),
    "profile": lambda model, make_loss: ts.profile(make_loss),
    "profile(direct)": lambda model, make_loss: ts.profile(make_loss, engine="direct"),
    "debug": lambda model, make_loss: stepped(make_loss, "direct"),
    "debug(native)": lambda model, make_loss: stepped(make_loss, "native"),
    "simulate": lambda model, make_loss: ts.simulate(ts.graph(make_loss()), "bfs"),
    "plan": lambda model, make_loss: ts.plan_order(make_loss()),
    "find_nan": lambda model, make_loss: ts.find_nan(make_loss),
    "find_unused": lambda model, make_loss: ts.find_unused(make_loss, model),
    "groups": lambda model, make_loss: ts.find_batches(make_loss()),
    "compare": lambda model, make_loss: ts.compare(make_loss, repetitions=1),
    "advise": lambda model, make_loss: ts.advise(make_loss),
    "plan_recompute": lambda model, make_loss: refused(make_loss),
}


def step(model: nn.Module, make_loss: Callable[[], Tensor]) -> Step:
    """The loss and all gradients of a step with the same dropout each time."""
    model.zero_grad()
    torch.manual_seed(1)
    loss = make_loss()
    loss.backward()
    return loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)


def assert_bitwise_equal(found: Step, expected: Step) -> None:
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_what_is_compiled_is_not_compiled_again_and_computes_the_same_bits(name: str) -> None:
    model, make_loss = PROGRAMS[name]()
    step(model, make_loss)
    expected = step(model, make_loss)
    before = graphs_compiled
    assert before
    again = {}
    for verb, run in VERBS.items():
        for _ in range(2):
            run(model, make_loss)
        if graphs_compiled != before:
            again[verb] = graphs_compiled - before
            before = graphs_compiled
    assert again == {}
    assert_bitwise_equal(step(model, make_loss), expected)
    assert graphs_compiled == before


@pytest.mark.parametrize("name", ["disabled part", "custom Function"])
@pytest.mark.parametrize("verb", ["capture", "find_nan", "advise"])
def test_what_is_compiled_first_under_a_verb_is_compiled_as_by_itself(name: str, verb: str) -> None:
    model, make_loss = PROGRAMS[name]()
    step(model, make_loss)
    by_itself = graphs_compiled
    torch._dynamo.reset()
    before = graphs_compiled
    model, make_loss = PROGRAMS[name]()
    VERBS[verb](model, make_loss)
    step(model, make_loss)
    assert graphs_compiled - before == by_itself


@pytest.mark.parametrize("verb", ["profile", "find_unused", pytest.param("compare", marks=pytest.mark.slow)])
def test_more_calls_than_the_recompile_limit_leave_the_model_compiled(verb: str) -> None:
    model, make_loss = PROGRAMS["whole"]()
    step(model, make_loss)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(torch._dynamo.config.recompile_limit + 2):
            VERBS[verb](model, make_loss)
    assert Kind.COMPILED in {task.kind for task in ts.graph(make_loss()).tasks}


def test_a_capture_does_not_make_torch_warn_of_global_hooks() -> None:
    _, make_loss = PROGRAMS["whole"]()
    make_loss()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured(make_loss)
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, result: None)
    try:
        with pytest.warns(UserWarning, match="global hooks"):
            captured(make_loss)
    finally:
        handle.remove()


def test_hooks_and_modes_of_the_user_stay_in_their_order() -> None:
    class Counts(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return function(*args, **(kwargs or {}))

    called: list[str] = []

    def hook(name: str) -> Any:
        return nn.modules.module.register_module_forward_pre_hook(lambda module, given: called.append(name))

    run = compiled(lambda x: x.sin())
    x = torch.ones(3, requires_grad=True)
    handles = [hook("before")]
    with Counts() as outer, ts.capture(), Counts() as inner:
        handles.append(hook("after"))
        modes = torch.overrides._get_current_function_mode_stack()
        hooks = list(nn.modules.module._global_forward_pre_hooks.items())
        run(x)
        assert torch.overrides._get_current_function_mode_stack() == modes
        assert list(nn.modules.module._global_forward_pre_hooks.items()) == hooks
        called.clear()  # they see the compiled graph, too
        nn.Identity()(x).cos()
    for handle in handles:
        handle.remove()
    assert called == ["before", "after"]
    assert outer.calls and inner.calls


def test_nothing_of_dynamos_stays_replaced() -> None:
    switch = torch._C._dynamo.eval_frame.set_eval_frame
    _, make_loss = PROGRAMS["whole"]()
    make_loss()
    with suppress(ZeroDivisionError), ts.capture():
        make_loss()
        1 / 0  # noqa: B018
    module = torch._dynamo.eval_frame
    assert torch._C._dynamo.eval_frame.set_eval_frame is switch
    assert module.set_eval_frame is switch and module._maybe_set_eval_frame is switch


# What is reported


def test_the_compiled_region_has_its_modules_path() -> None:
    model, make_loss = PROGRAMS["part"]()
    make_loss()
    with ts.capture():
        loss = make_loss()
    graph = ts.graph(loss)
    (region,) = [task for task in graph.tasks if task.kind is Kind.COMPILED]
    assert graph.module(region) == "inner"
    named = {name.replace("_orig_mod.", "") for name, _ in model.named_parameters()}
    assert {task.parameter for task in graph.tasks} - {None} == named


def test_what_runs_uncompiled_inside_is_captured_operation_by_operation() -> None:
    _, make_loss = PROGRAMS["disabled part"]()
    make_loss()
    with ts.capture():
        loss = make_loss()
    (sin,) = [task for task in ts.graph(loss).tasks if task.name == "SinBackward0"]
    assert sin.source is not None and sin.source.function == "kept_out"


def test_a_nan_of_a_compiled_module_is_its_own() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - 9).sqrt()

    model = Around(compiled(Root()))
    x = data()
    report = ts.find_nan(lambda: model(x).sum())
    assert report.where == "forward" and report.module == "inner"


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("verb", ["find_nan", "find_unused"])
def test_what_looks_inside_repeats_a_checkpoint_as_its_forward_ran(verb: str, use_reentrant: bool) -> None:
    """The forward ran uncompiled, to be looked into: the compiled one saves other tensors."""
    model, make_loss = in_checkpoint(use_reentrant)()
    expected = step(model, make_loss)
    before = graphs_compiled
    assert not VERBS[verb](model, make_loss)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_bitwise_equal(step(model, make_loss), expected)
    assert graphs_compiled == before


# Recomputation


def test_a_plan_of_compiled_code_is_refused_before_any_of_it_has_run(snapshot: Snapshots) -> None:
    model, make_loss = PROGRAMS["part"]()
    step(model, make_loss)
    before = [each.clone() for each in (*model.parameters(), *model.buffers())]
    random = torch.get_rng_state()
    with raises(NotImplementedError, "Net", "test_compiled.py:", "torch.compile") as raised:
        ts.plan_recompute(make_loss, 0.5)
    snapshot("plan_recompute", raised.value)
    assert all(map(torch.equal, before, [*model.parameters(), *model.buffers()]))
    assert torch.equal(random, torch.get_rng_state())


def test_a_recompute_context_refuses_what_was_compiled_since(snapshot: Snapshots) -> None:
    model = Around(Net())
    x = data(64)
    plan = ts.plan_recompute(lambda: model(x).square().mean(), 0.5, seconds=0.1)
    assert plan.dropped
    run = compiled(model)
    for _ in range(2):
        with raises(NotImplementedError, "torch.compile") as raised, ts.recompute(plan):
            run(x)
    snapshot("recompute", raised.value)
    assert Kind.COMPILED in {task.kind for task in ts.graph(run(x).sum()).tasks}


def test_under_force_eager_compiled_code_is_recomputed_as_it_runs() -> None:
    model = Around(Net())
    run = compiled(model)
    x = data(64)

    def make_loss() -> Tensor:
        return run(x).square().mean()

    torch.manual_seed(1)
    with torch.compiler.set_stance("force_eager"):
        expected = step(model, make_loss)
        plan = ts.plan_recompute(make_loss, 0.5, seconds=0.1)
        assert plan.dropped

        def recomputed() -> Tensor:
            with ts.recompute(plan):
                return make_loss()

        for _ in range(2):
            assert_bitwise_equal(step(model, recomputed), expected)
    assert Kind.COMPILED in {task.kind for task in ts.graph(make_loss()).tasks}


def cond(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda w: (w * 2).sin(), lambda w: w.cos(), (weight,))


def scan(x: Tensor, weight: Tensor) -> Tensor:
    return torch_scan(lambda carry, each: (carry * each, (carry * each).clone()), x, weight.expand(3, -1))[1]


def mapped(x: Tensor, weight: Tensor) -> Tensor:
    found = torch_map(torch.sin, weight)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize(
    ("verb", "operator"),
    [
        pytest.param(verb, operator, marks=() if operator is cond or verb == once else pytest.mark.slow)
        for verb in ("find_nan", "compare", "find_order_dependence", "advise", "find_unused")
        for operator, once in ((cond, ""), (mapped, "find_nan"), (scan, ""))
    ],
)
def test_operators_that_take_functions_run_as_in_the_program(verb: str, operator: Callable[..., Tensor]) -> None:
    x, weight = torch.ones(WIDTH), nn.Parameter(torch.rand(WIDTH))

    def make_loss() -> Tensor:
        return operator(x, weight).square().sum()

    make_loss().backward()
    wanted, first = weight.grad, weight.grad.clone()
    prepare = higher_order_utils._set_compilation_env
    model = (nn.ParameterList([weight]),) if verb == "find_unused" else ()
    str(getattr(ts, verb)(make_loss, *model))
    assert weight.grad is wanted and wanted.equal(first)
    assert higher_order_utils._set_compilation_env is prepare
    make_loss().backward()
    assert weight.grad.equal(2 * first)


def test_a_nan_that_such_an_operator_makes_is_its_own() -> None:
    weight = torch.zeros(WIDTH, requires_grad=True)

    def make_loss() -> Tensor:
        return torch.cond(weight.sum() > -1, lambda w: w.sqrt() * 0, torch.cos, (weight,)).sum()

    assert "CondAutogradOp" in str(ts.find_nan(make_loss))


@pytest.mark.parametrize("operator", [cond, scan, mapped])
def test_a_plan_of_such_an_operator_is_refused_with_its_name_and_line(operator: Callable[..., Tensor]) -> None:
    x, weight = torch.ones(WIDTH), torch.rand(WIDTH, requires_grad=True)
    name = "map" if operator is mapped else operator.__name__
    line = operator.__code__.co_firstlineno + 1
    with pytest.raises(NotImplementedError, match=rf"^{name} \(test_compiled.py:{line}\)"):
        ts.plan_recompute(lambda: operator(x, weight).sum(), budget=0.5)
    assert weight.grad is None
