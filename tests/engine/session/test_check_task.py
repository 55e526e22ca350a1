from __future__ import annotations

import gc
import re
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.session import check_task as check_task_file
from tapescope.engine.session.check_task import Check, check_task
from tapescope.engine.session.float64_replay import OperationReplay
from tapescope.inspector.graph.node_metadata import tensors_of
from tapescope.tests.says import Snapshots, says, says_none_of

pytestmark = pytest.mark.heavy

kept: list[Any] = [None]  # the latest result: in torch 2.11 the node of a custom Function goes with what it made
DTYPES = [torch.float32, torch.bfloat16]


def captured(make: Callable[..., Any], *args: Any) -> ts.Graph:
    with ts.capture(keep_inputs=True):
        kept[0] = result = make(*args)
    return ts.graph([each for each in tensors_of(result) if each.requires_grad])


def applied(function: type[torch.autograd.Function], *args: Any) -> ts.Graph:
    return captured(lambda: function.apply(*args))


def checks(graph: ts.Graph) -> dict[str, Check]:
    return {task.name: check_task(graph, task) for task in graph.tasks if not task.is_leaf}


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def rows(count: int, high: int) -> Tensor:
    return torch.arange(count) % high


def added_in_place(x: Tensor) -> Tensor:
    y = x * 1
    y.add_(x)
    return y


def written_into(x: Tensor) -> Tensor:
    y = x * 1
    y[1:] = x[:-1]
    y[:, 0].mul_(3)
    return y


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda x: x @ x.T,
    "addmm": lambda x: torch.addmm(x[0], x, x[:, :6].T @ x),
    "linear": lambda x: functional.linear(x, x[:3], x[0, :3]),
    "conv2d": lambda x: functional.conv2d(x.reshape(1, 1, 8, 6), x[:2, :4].reshape(2, 1, 2, 2), x[0, :2]),
    "layer_norm": lambda x: functional.layer_norm(x, (6,), x[0], x[1]),
    "softmax": lambda x: x.softmax(1),
    "gather": lambda x: x.gather(1, rows(8, 6)[:, None]),
    "cumsum": lambda x: x.cumsum(0),
    "dropout": lambda x: functional.dropout(x, 0.4),
    "max_pool": lambda x: functional.max_pool1d(x, 2),
    "embedding": lambda x: functional.embedding(rows(5, 8), x),
    "getitem": lambda x: x[rows(9, 4), 1:],
    "add_": added_in_place,
    "setitem": written_into,
    "cat": lambda x: torch.cat([x, 2 * x, x[:1]]),
    "where": lambda x: torch.where(x > 0, x, x * 3),
    "attention": lambda x: functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "attention with a mask": lambda x: ((x @ x.T).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)).softmax(1),
    "batch_norm": lambda x: functional.batch_norm(x, torch.zeros(6), torch.ones(6), training=True),
    "cross_entropy": lambda x: functional.cross_entropy(x, rows(8, 6)),
    "split": lambda x: x.split(4),
    "cast": lambda x: x.to(torch.float64).exp(),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_pytorchs_own_operations_are_right(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for check in checks(captured(OPERATIONS[name], leaf(8, 6, dtype=dtype))).values():
        assert check.ok is True, str(check)
        assert any("float64" in line for line in check.lines)


def test_a_model_and_its_autocast_forward_are_right() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 3))

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.cross_entropy(model(torch.randn(2, 1, 4, 4)), torch.tensor([0, 2]))

    found = checks(captured(forward))
    assert len(found) > 6
    assert all(check.ok for check in found.values()), "\n".join(str(each) for each in found.values() if not each.ok)


FUZZED = ["addcmul", "atan2", "baddbmm", "clamp", "cummax", "index_add", "kron", "lerp", "linalg.cholesky", "logsumexp"]
FUZZED += ["masked_scatter", "nn.functional.gelu", "nn.functional.pad", "prod", "std", "take_along_dim", "tril", "var"]


QUICK = ("addcmul", "kron", "linalg.cholesky", "prod", "take_along_dim")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FUZZED]
)
def test_torchs_samples_of_operations_are_right(name: str) -> None:
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    torch.manual_seed(0)
    for operation in op_db:
        if operation.name == name:
            for sample in list(operation.sample_inputs("cpu", torch.float64, requires_grad=True))[:3]:
                with ts.capture(keep_inputs=True):
                    result = operation.op(sample.input, *sample.args, **sample.kwargs)
                outputs = [each for each in tensors_of(result) if each.requires_grad]
                if outputs:
                    graph = ts.graph(outputs)
                    for check in checks(graph).values():
                        assert check.ok is True, f"{sample}\n{check}"


def saving(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(ctx: Any, *args: Any) -> Tensor:
        ctx.save_for_backward(*(each for each in args if isinstance(each, Tensor)))
        return function(*args)

    return forward


def product(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
    ctx.save_for_backward(a, b)
    return a * b


def matrix_product(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
    ctx.save_for_backward(a, b)
    return a @ b


def scaled(ctx: Any, x: Tensor, on: bool, w: Tensor) -> Tensor:
    ctx.save_for_backward(x, w)
    return x * w


def square(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x)
    return x * x


def custom(forward: Callable[..., Any], backward: Callable[..., Any]) -> type[torch.autograd.Function]:
    """`backward` gets the gradient and what was saved."""

    def method(ctx: Any, gradient: Tensor) -> Any:
        return backward(gradient, *ctx.saved_tensors)

    members = {"forward": staticmethod(forward), "backward": staticmethod(method)}
    return type("Custom", (torch.autograd.Function,), members)


def check_of(function: type[torch.autograd.Function], *args: Any) -> Check:
    torch.manual_seed(0)
    return checks(applied(function, *args))["CustomBackward"]


WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[Any, ...]], tuple[object, ...]]] = {
    "sign": (product, lambda g, a, b: (-g * b, g * a), lambda: (leaf(4), leaf(4)), ("a", "-1 ×")),
    "half": (product, lambda g, a, b: (g * b, g * a / 2), lambda: (leaf(4), leaf(4)), ("b", "0.5 ×")),
    "large": (product, lambda g, a, b: (g * b, -g * a), lambda: (leaf(300, 300), leaf(300, 300)), ("b", "-1 ×")),
    "tiny": (square, lambda g, x: 3 * g * x, lambda: (1e-9 * leaf(5).detach().requires_grad_(),), ("x", "1.5 ×")),
    "transposed": (
        matrix_product,
        lambda g, a, b: ((g @ b.T).T, a.T @ g),
        lambda: (leaf(3, 3), leaf(3, 3)),
        ("a", "transpose"),
    ),
    "swapped": (product, lambda g, a, b: (g * a, g * b), lambda: (leaf(4), leaf(4)), ("a", "b")),
    "shifted": (scaled, lambda g, x, w: (g * w, g * x, None), lambda: (leaf(4), True, leaf(4)), ("w", "on")),
    "no tensor": (scaled, lambda g, x, w: (g * w, g, g * x), lambda: (leaf(4), True, leaf(4)), ("on", "bool")),
    "missing": (product, lambda g, a, b: (g * b, None), lambda: (leaf(4), leaf(4)), ("None", "b")),
    "too few": (scaled, lambda g, x, w: (g * w, g * x), lambda: (leaf(4), True, leaf(4)), (2, 3, "(x, on, w)")),
    "too many": (square, lambda g, x: (2 * g * x, g), lambda: (leaf(4),), (2, 1, "(x)")),
    "shape": (matrix_product, lambda g, a, b: (g @ b.T, g), lambda: (leaf(2, 3), leaf(3, 4)), ("2×4", "b", "3×4")),
    "no tensor given": (square, lambda g, x: 2.0, lambda: (leaf(4),), ("float", "x")),
    "not multiplied": (square, lambda g, x: 2 * x, lambda: (leaf(4),), ("x",)),
    "another": (saving(lambda x: x**3), lambda g, *_: g, lambda: (leaf(4),), ("args[0]", "0.93")),
    "straight through": (saving(torch.round), lambda g, x: g, lambda: (leaf(4),), ("args[0]", 0)),
    "not summed": (
        lambda ctx, x, w: (ctx.save_for_backward(x, w), x * w[:, None])[1],
        lambda g, x, w: (g * w[:, None], g * x),
        lambda: (leaf(3, 4), leaf(3)),
        ("w", "dim 1"),
    ),
    "random": (square, lambda g, x: 2 * g * x + torch.rand_like(x), lambda: (leaf(4),), ("ctx",)),
    "raises": (square, lambda g, x: g @ x.nothing, lambda: (leaf(4),), ("AttributeError", "'nothing'")),
    "NaN": (square, lambda g, x: 2 * g * x * x / x, lambda: (torch.tensor([0.0, 1.0]).requires_grad_(),), ("NaN",)),
}
SECOND_LINE_COUNTS = ("sign", "shifted", "too few", "raises")


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_custom_backward_is_named(name: str, snapshot: Snapshots) -> None:
    forward, backward, args, facts = WRONG[name]
    torch.manual_seed(0)
    check = check_of(custom(forward, backward), *args())
    assert check.ok is False
    said = "\n".join(check.lines[: 2 if name in SECOND_LINE_COUNTS else 1])
    says(said, *facts)
    snapshot("check", said)


def test_right_custom_backwards_are_right() -> None:
    assert check_of(custom(product, lambda g, a, b: (g * b, g * a)), leaf(4, 3), leaf(3)).ok is True
    assert check_of(custom(scaled, lambda g, x, w: (g * w, None, g * x)), leaf(4), True, leaf(4)).ok is True

    class Custom(torch.autograd.Function):
        """Several outputs, one of them of whole numbers; an input written in place; the style with setup_context."""

        @staticmethod
        def forward(x, places, factor=3.0):
            return x.mul_(factor), places + 1, x.sum()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[2]
            ctx.mark_dirty(output[0])
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx, gradient, of_places, of_sum):
            return (gradient + of_sum) * ctx.factor, None, None

    x = leaf(4)
    check = checks(captured(lambda: Custom.apply(x * 1, torch.ones(3).long())))["CustomBackward"]
    assert check.ok is True, str(check)


class ReliesOnNone(Function):
    """A backward that is right, and takes no gradient for its second output."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.set_materialize_grads(False)
        ctx.factor = factor
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        assert second is None
        return ctx.factor * first, None


@pytest.mark.parametrize("factor", [2, 5])
def test_a_backward_that_relies_on_none_for_an_unused_output_is_checked_without_it(factor: int) -> None:
    with ts.capture(keep_inputs=True):
        kept[0] = ReliesOnNone.apply(leaf(3), factor)
        loss = kept[0][0].sum()
    check = checks(ts.graph(loss))["ReliesOnNoneBackward"]
    assert check.ok is (factor == 2), str(check)
    assert factor == 5 or any("output 1" in line for line in check.lines), str(check)


def test_an_input_on_ctx_is_named_and_one_that_was_modified_since(snapshot: Snapshots) -> None:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mine = x
        return x * x

    class Custom(torch.autograd.Function):
        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.mine * gradient

    Custom.forward = staticmethod(forward)
    check = check_of(Custom, leaf(4))
    assert check.ok is True
    says(check.lines[1], 0.001)  # how far its numbers may be from finite differences
    assert check.warnings == check.lines[:1]
    for text in (check.lines[0], check.verdict, repr(check)):
        says(text, "x", "ctx.mine", "ctx.save_for_backward")
    snapshot("check", f"{check.verdict}\n{check.lines[0]}")
    x = leaf(4) * 1
    graph = applied(Custom, x)
    x.detach().mul_(2)
    check = checks(graph)["CustomBackward"]
    assert check.ok is False and not check.warnings
    says(check.lines[0], "x", "ctx.mine", "ctx.save_for_backward")
    snapshot("check", check.lines[0])


def test_an_output_on_ctx_is_a_leak_and_named_and_a_tensor_of_its_own_is_not(snapshot: Snapshots) -> None:
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, detached):
            y = x.exp()
            ctx.mine = y.clone() if detached else y
            return y

        @staticmethod
        def backward(ctx, gradient):
            return ctx.mine * gradient, None

    check = check_of(Custom, leaf(4), False)
    assert check.ok is True
    says(check.warnings[0], "ctx.mine", "ctx.save_for_backward")
    snapshot("check", check.warnings[0])
    check = check_of(Custom, leaf(4), True)
    assert check.ok is True and not check.warnings
    says(check.lines[0], "ctx.mine")
    says_none_of(check.lines[0], "ctx.save_for_backward")
    snapshot("check", check.lines[0])
    gc.collect()
    gc.disable()
    try:  # the first sentence's fact about memory
        output = Custom.apply(leaf(4), False)
        gone = weakref.ref(output)
        del output
        assert gone() is not None
    finally:
        gc.enable()
    gc.collect()
    assert gone() is None


def test_a_saved_tensor_that_was_modified_is_named_also_of_a_c_node_and_without_kept_inputs(
    snapshot: Snapshots,
) -> None:
    for keep in (True, False):
        with ts.capture(keep_inputs=keep):
            y = leaf(4) * 1
            loss = y.exp().sum() + custom(square, lambda g, x: 2 * g * x).apply(y).sum()
        y.detach().add_(1)
        check = checks(ts.graph(loss))["CustomBackward"]
        assert check.ok is False
        (says if keep else says_none_of)(check.lines[0], "x")
        snapshot("check", check.lines[0])


def test_a_right_backward_that_writes_into_its_gradient_is_right_but(snapshot: Snapshots) -> None:
    check = check_of(custom(square, lambda g, x: g.mul_(2 * x)), leaf(4))
    assert check.ok is True and len(check.warnings) == 1
    says(check.verdict, "Custom.backward", "test_check_task.py")
    snapshot("check", f"{check.verdict}\n{check.warnings[0]}")


def test_the_line_of_a_wrong_backward_is_said() -> None:
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            return gradient

    code = Custom.backward.__wrapped__.__code__
    says(check_of(Custom, leaf(4)).lines[0], "Custom.backward", f"test_check_task.py:{code.co_firstlineno + 2}")


@pytest.mark.parametrize("shape", [(5, 7), (70, 50)])
def test_the_one_element_that_is_wrong_is_shown(shape: tuple[int, int]) -> None:
    def backward(g: Tensor, x: Tensor) -> Tensor:
        found = 2 * g * x
        found[4, 6] += 1
        return found

    x = leaf(*shape)
    check = check_of(custom(square, backward), x)
    assert check.ok is False
    value = x[4, 6].item()
    (element,) = check.elements
    assert element.index == (4, 6)
    assert element.value == pytest.approx(value, rel=1e-2, abs=1e-2)
    assert element.expected == pytest.approx(2 * value, rel=1e-2, abs=1e-2)
    assert element.given == pytest.approx(2 * value + 1, rel=1e-2, abs=1e-2)
    says(check.lines[1], "[4, 6]", "x", *(f"{each:.4g}" for each in (element.value, element.given, element.expected)))


def test_where_a_backward_is_wrong_for_negative_numbers_one_is_shown() -> None:
    check = check_of(custom(square, lambda g, x: 2 * g * x.relu()), leaf(40, 40))
    (element,) = check.elements
    assert element.value < 0 and element.given == 0 and element.expected < 0
    says(check.lines[1], "x", f"{element.value:.4g}", 0, f"{element.expected:.4g}")


def test_an_output_whose_gradient_is_ignored_is_named(snapshot: Snapshots) -> None:
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x)
            return x * x, x.exp()

        @staticmethod
        def backward(ctx, of_square, of_exp):
            (x,) = ctx.saved_tensors
            return Custom.factor * of_square * x, None

    for factor in (2, 3):
        Custom.factor = factor
        check = checks(captured(lambda: Custom.apply(leaf(4), 1)))["CustomBackward"]
        assert check.ok is False
        says(check.lines[0], "output 1")
        (says if factor == 3 else says_none_of)(check.lines[1], "1.5 ×")  # what else is wrong
    snapshot("check", check.lines[0])


def test_a_forward_that_writes_into_its_input_has_to_mark_it(snapshot: Snapshots) -> None:
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(2)
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            return 3 * gradient

    check = checks(captured(lambda: Custom.apply(leaf(4) * 1)))["CustomBackward"]
    assert check.ok is True
    says(check.verdict, "x", "ctx.mark_dirty(x)")
    snapshot("check", f"{check.verdict}\n{check.warnings[0]}")


def test_what_is_on_ctx_is_said_without_the_inputs_of_the_forward(snapshot: Snapshots) -> None:
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mine = x
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.mine * gradient

    kept[0] = loss = Custom.apply(leaf(4))
    check = checks(ts.graph(loss))["CustomBackward"]
    assert check.ok is None and len(check.warnings) == 1
    says(check.verdict, "ctx.mine", "ctx.save_for_backward")
    snapshot("check", check.verdict)


def test_what_is_kept_outside_of_ctx_is_found(snapshot: Snapshots) -> None:
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            Custom.latest = x.detach().clone()
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * Custom.latest * gradient

    check = check_of(Custom, leaf(4))
    assert check.ok is False
    says(check.lines[0], "Custom.backward", "ctx")
    snapshot("check", check.lines[0])


def test_a_kink_is_no_fault_and_said(snapshot: Snapshots) -> None:
    x = torch.tensor([0.0, 1.0, -1.0], requires_grad=True)
    check = checks(captured(torch.relu, x))["ReluBackward0"]
    assert check.ok is True
    snapshot("check", check.lines[0])
    check = checks(captured(lambda: x.log()))["LogBackward0"]
    assert check.ok is not False, "0 is at the edge, and -1 outside"
    wrong = custom(saving(torch.relu), lambda g, x: g * (x < 0))
    assert check_of(wrong, x).ok is False


def test_lost_precision_is_a_fault(snapshot: Snapshots) -> None:
    x = torch.full((4,), 3e-4, dtype=torch.float16).requires_grad_()
    check = checks(captured(lambda: 1 / x**2))["PowBackward0"]
    assert check.ok is True or "NaN" in check.lines[0]
    steep = custom(saving(lambda x: x.log()), lambda g, x: (g / x**3) * x**2)
    check = check_of(steep, torch.full((4,), 1e-20).requires_grad_())
    assert check.ok is False
    says(check.lines[0], "float32", "NaN", 4)
    snapshot("check", check.lines[0])


def test_why_a_task_is_not_checked_is_said(snapshot: Snapshots) -> None:
    x, linear = leaf(2, 3), nn.Linear(3, 3)

    def reason(graph: ts.Graph, name: str) -> str:
        check = next(check_task(graph, task) for task in graph.tasks if task.name.startswith(name))
        assert check.ok is None
        reasons.append(check.lines[0])
        return check.lines[0]

    reasons: list[str] = []
    ways = ("ts.capture(model, keep_inputs=True)", "%%tapescope --keep-inputs LOSS", "tapescope debug --keep-inputs")
    says(reason(ts.graph(x.exp()), "Exp"), *ways)
    with ts.capture():
        loss = x.exp()
    says(reason(ts.graph(loss), "Exp"), *ways)
    graph = captured(linear, x)
    says(reason(graph, "torch::autograd::AccumulateGrad"), ".grad")
    with torch.no_grad():
        linear.bias.add_(1)
    says(reason(graph, "AddmmBackward0"), "bias")
    says(reason(captured(lambda: checkpoint(linear, x, use_reentrant=True)), "CheckpointFunction"), "checkpoint")
    graph = captured(torch.exp, x)
    reason(ts.Graph(graph.tasks, graph.edges, graph.roots), "Exp")

    calling = custom(lambda ctx, x, function: x + function(), lambda g: (g, None))
    graph = applied(calling, x, lambda: torch.ones(3))
    says(reason(graph, "Custom"), "function")
    seen: list[int] = []
    counting = custom(lambda ctx, x: x * (seen.append(0) or len(seen)), lambda g: g)
    reason(applied(counting, x), "Custom")
    narrow = custom(lambda ctx, x: {torch.float32: 2.0}[x.dtype] * x, lambda g: g * 2)
    says(reason(applied(narrow, x), "Custom"), "float64")
    assert len(set(reasons)) == len(reasons)
    snapshot("check", "\n".join(reasons))


def test_a_check_shows_itself_and_names_are_data() -> None:
    evil = type("<b>Custom", (torch.autograd.Function,), dict(vars(custom(square, lambda g, x: -2 * g * x))))
    graph = applied(evil, leaf(3))
    check = check_task(graph, 0)
    assert check.ok is False
    says(repr(check), "<b>CustomBackward", check.verdict)
    assert str(check).splitlines()[1].strip() == check.lines[0]
    assert "<b>Custom" in check.lines[0] and "<b>Custom" not in check._repr_html_()
    assert "&lt;b&gt;Custom" in check._repr_html_()


class Program:
    """A loss over many kinds of node, and everything that a check might disturb."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.LayerNorm(8), nn.Linear(8, 2))
        self.called: list[object] = []
        self.handles = [each.register_hook(self.called.append) for each in self.model.parameters()]

    def loss(self) -> Tensor:
        torch.manual_seed(1)
        hidden = self.model(torch.randn(5, 6))
        self.handles.append(hidden.register_hook(lambda gradient: self.called.append(0)))
        product = custom(product_of, lambda g, a, b: (g * b, g * a)).apply(hidden, self.model[4].bias)
        return (checkpoint(torch.tanh, product, use_reentrant=False) + hidden.exp()).sum()

    def gradients(self) -> list[Tensor]:
        return [parameter.grad.clone() for parameter in self.model.parameters()]


product_of = product


@pytest.mark.parametrize("engine", ["direct", "native"])
def test_checks_at_every_stop_leave_the_session_as_it_is(engine: str) -> None:
    program = Program()
    program.loss().backward()
    expected, calls = program.gradients(), len(program.called)
    program.model.zero_grad()
    program.called.clear()
    with ts.capture(program.model, keep_inputs=True):
        loss = program.loss()
    session = (ts.types.Stepper if engine == "direct" else ts.types.NativeSession)(loss)
    random = torch.get_rng_state()
    verdicts = set()
    while session.left:
        called = len(program.called)
        before = [(each.grad, None if each.grad is None else each.grad.clone()) for each in program.model.parameters()]
        for task in session.graph.tasks if len(session.order) % 10 == 0 else [session.current]:
            verdicts.add(session.check(task).ok)
        assert len(program.called) == called
        for parameter, (grad, values) in zip(program.model.parameters(), before, strict=True):
            assert parameter.grad is grad and (grad is None or torch.equal(grad, values))
        session.step()
    assert verdicts == {True, None}
    assert torch.equal(torch.get_rng_state(), random)
    assert all(map(torch.equal, program.gradients(), expected))
    assert len(program.called) == calls
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    for handle in program.handles:  # after an error in a checkpoint, torch never frees its graph
        handle.remove()


def test_the_gradients_that_wait_are_what_the_nodes_are_compared_on(snapshot: Snapshots) -> None:
    graph = captured(lambda x: (x.exp() * 2).sum(), leaf(4))
    task = next(each for each in graph.tasks if each.name == "ExpBackward0")
    waiting = torch.randn(4)
    values, version = waiting.clone(), waiting._version
    on_waiting = check_task(graph, task, [waiting]).lines[-1]
    assert torch.equal(waiting, values) and waiting._version == version
    on_random = check_task(graph, task, [None]).lines[-1]
    snapshot("check", re.sub(r"\b\d\S*", "N", f"{on_waiting}\n{on_random}"))  # rounding
    assert check_task(graph, task, [torch.tensor([1.0, torch.nan, torch.inf, 0.0])]).ok is True


def test_a_task_that_has_run_is_checked_but_for_what_was_freed(snapshot: Snapshots) -> None:
    with ts.capture(keep_inputs=True):
        loss = leaf(4).exp().sum()
    graph = ts.graph(loss)
    loss.backward()
    check = checks(graph)["ExpBackward0"]
    assert check.ok is True
    snapshot("check", check.lines[-1])


def test_a_backward_inside_of_a_function_adds_to_no_grad() -> None:
    linear = nn.Linear(3, 3)

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            with torch.no_grad():
                return linear.double()(x.double()).to(x.dtype)

        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach().double().requires_grad_()
            with torch.enable_grad():
                y = linear(x)
            y.backward(gradient.double())
            return x.grad.to(gradient.dtype)

    linear.weight.requires_grad_()
    graph = captured(lambda x: Custom.apply(x) + linear(x.double()).to(x.dtype), leaf(2, 3))
    linear.weight.grad = before = torch.ones(3, 3, dtype=torch.float64)
    assert checks(graph)["CustomBackward"].ok is True
    assert linear.weight.grad is before and torch.equal(before, torch.ones_like(before))


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_sparse_gradients_are_checked_with_their_zeros(factor: float) -> None:
    ids = torch.tensor([1, 2, 2, 4])

    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx, table):
            ctx.shape = table.shape
            return table[ids]

        @staticmethod
        def backward(ctx, gradient):
            return torch.sparse_coo_tensor(ids[None], gradient * factor, ctx.shape, check_invariants=True)

    table = leaf(6, 3)
    graph = captured(lambda: Rows.apply(table) * functional.embedding(ids, table, sparse=True))
    found = checks(graph)
    assert found["EmbeddingBackward0"].ok is True
    assert found["RowsBackward"].ok is (factor == 1)
    bag = captured(lambda: functional.embedding_bag(ids[None], table, sparse=True, mode="sum"))
    assert checks(bag)["EmbeddingBagBackward0"].ok is True


def checked(loss: Tensor, name: str) -> ts.Check:
    """The check of the task with this name, right before it runs."""
    with ts.debug(loss) as session:
        session.break_at(name)
        session.run()
        found = session.check()
        session.run()
    return found


class ManyResults(Function):
    """Gives, next to a float, what has no derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x, x > 0, torch.arange(4), None, 3

    @staticmethod
    def backward(ctx, gradient, *others):
        return 2 * gradient * ctx.saved_tensors[0]


def test_results_without_a_derivative_are_no_hindrance() -> None:
    leaf = torch.randn(4, requires_grad=True)
    with ts.capture(keep_inputs=True):
        loss = ManyResults.apply(leaf)[0].sum()
    assert checked(loss, "ManyResultsBackward").ok


def test_casts_to_float8_are_checked() -> None:
    leaf = torch.randn(4, requires_grad=True)
    with ts.capture(keep_inputs=True):
        loss = (leaf.to(torch.float8_e4m3fn).float() * 2).sum()
    with ts.debug(loss) as session:
        while session.current is not None and not session.current.is_leaf:
            assert session.check().ok
            session.step()


def test_meta_tensors_and_wrapper_subclasses_are_not_checked_and_named() -> None:
    for leaf, named in (
        (torch.ones(2, device="meta", requires_grad=True), "meta"),
        (torch.nn.Parameter(TwoTensor(torch.ones(2), torch.ones(2))), "TwoTensor"),
    ):
        with ts.capture(keep_inputs=True):
            loss = leaf.sin().sum()
        with ts.debug(loss) as session:
            found = session.check()
        assert found.ok is None and named in found.lines[0]


class ChangesItsContext(Function):
    """Its backward is right once; `how` says what it leaves on ctx."""

    @staticmethod
    def forward(ctx, x, how):
        ctx.how, ctx.factor, ctx.factors, ctx.buffer = how, 2.0, [2.0], torch.full_like(x, 2.0)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        factor = ctx.factor
        if ctx.how == "factor":
            ctx.factor = 3 * factor
        elif ctx.how == "deleted":
            del ctx.factor
        elif ctx.how == "factors":
            factor = ctx.factors.pop()
        elif ctx.how == "buffer":
            return ctx.buffer.mul_(gradient), None
        return gradient * factor, None


@pytest.mark.parametrize("how", ["factor", "deleted", "factors", "buffer"])
def test_a_backward_that_changes_its_ctx_is_named_and_runs_as_if_nobody_had_looked(
    how: str, snapshot: Snapshots
) -> None:
    leaf = torch.ones(3, requires_grad=True)
    with ts.capture(keep_inputs=True):
        loss = ChangesItsContext.apply(leaf, how).sum()
    found = checked(loss, "ChangesItsContextBackward")
    assert found.ok and any(f"ctx.{'factor' if how == 'deleted' else how}" in each for each in found.warnings)
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0] * 3
    if how == "factor":
        snapshot("check", found.warnings[0])


def test_an_operation_of_many_tasks_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rnn = torch.nn.RNN(2, 2)
    with ts.capture(keep_inputs=True):
        loss = rnn(torch.randn(3, 1, 2))[0].square().sum()
    compared = []
    compare = check_task_file._Comparison.compare
    monkeypatch.setattr(
        check_task_file._Comparison, "compare", lambda self: compared.append(self._replay.operation) or compare(self)
    )
    with ts.debug(loss) as session:
        while session.current is not None:
            assert session.check().ok is not False
            session.step()
    assert len(set(compared)) == len(compared) < len(session.graph)


def test_an_operation_of_many_tasks_is_replayed_as_often_as_for_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rnn = nn.RNN(2, 2)
    x = torch.randn(8, 1, 2)
    with ts.capture(keep_inputs=True):
        result = rnn(x)[0]
    replayed: list[int] = []
    run = OperationReplay.run_on
    monkeypatch.setattr(OperationReplay, "run_on", lambda *given: replayed.append(1) or run(*given))
    with ts.debug(result, torch.ones_like(result)) as session:
        first, *others = (task for task in session.graph.tasks if not task.is_leaf)
        assert session.check(first).ok
        once = len(replayed)
        checked = [session.check(task) for task in others]
        assert len(others) > 20 and len(replayed) == once > 0
        assert all(each.ok for each in checked)
        assert all("differs from float64" in each.lines[-1] for each in checked)  # each of its own node
        x.add_(1)
        says(str(session.check(first)), "modified in place", "not checked")


class Signals(Function):
    """The first time that its forward runs in another thread, it interrupts the main one."""

    ran: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread() and not Signals.ran:
            Signals.ran.append(1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return x * torch.rand(3, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_an_interrupted_check_has_ended_and_draws_no_more() -> None:
    graph = captured(lambda: Signals.apply(torch.ones(3, requires_grad=True)))
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        check_task(graph, 0)
    assert Signals.ran and not [each for each in threading.enumerate() if "check" in each.name]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_task_of_a_transform_is_not_said_to_want_the_capture_that_it_had(snapshot: Snapshots) -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    graph = captured(lambda: torch.func.vmap(lambda row: (weight @ row).tanh())(torch.randn(4, 3)).sum())
    check = checks(graph)["TanhBackward0"]
    assert check.ok is None
    says(check.lines[0], "torch.func")
    snapshot("check", check.lines[0])
