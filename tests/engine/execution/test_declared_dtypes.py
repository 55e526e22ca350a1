"""Gradients whose dtype the forward declared: `ctx.set_output_grad_dtype` and `Tensor.grad_dtype`.

The numbers are such that a cast to bfloat16 on the way changes them, and that float64 holds all sums exactly, whatever
their order. The gradients that a custom Function's backward gets are compared, and not only its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.function import FunctionCtx

import tapescope as ts
from tapescope.engine.recording.run import Engine
from tapescope.tests.says import raises

from ..comparing import ENGINES, gradients_of

POLICIES = ("heap", "bfs", "dfs", "delay_accumulate")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64

declares = pytest.mark.skipif(
    not hasattr(FunctionCtx, "set_output_grad_dtype"), reason="needs ctx.set_output_grad_dtype (torch 2.14)"
)

Declared = Sequence[torch.dtype | None] | None


class Several(torch.autograd.Function):
    """Multiples of its input, of the given dtypes. Its backward notes what it gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtypes: Sequence[torch.dtype], declared: Declared, got: list[object]) -> Any:
        if declared is not None:
            ctx.set_output_grad_dtype(*declared)
        ctx.dtype, ctx.got = x.dtype, got
        return tuple((x * (number + 1)).to(dtype) for number, dtype in enumerate(dtypes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.got.append([(each.dtype, each.detach().clone()) for each in gradients])
        total = sum((number + 1) * each.double() for number, each in enumerate(gradients))
        return total.to(ctx.dtype), None, None, None


@dataclass
class Program:
    """A leaf, `Several` of it, and what uses its outputs.

    Attributes:
        dtypes: of its outputs.
        declared: for their gradients; None: nothing is declared.
        uses: by output the dtypes of the factors with which it is multiplied: their gradients come in the wider dtype.
    """

    dtypes: Sequence[torch.dtype]
    declared: Declared
    uses: Sequence[Sequence[torch.dtype]]
    got: list[list[tuple[torch.dtype, Tensor]]] = field(default_factory=list)
    leaf: Tensor = field(default_factory=lambda: (torch.arange(1, 7, dtype=DOUBLE) / 8).requires_grad_())

    def loss(self) -> Tensor:
        outputs = Several.apply(self.leaf * 1.5, self.dtypes, self.declared, self.got)
        factors = 1 + torch.arange(1, 7, dtype=DOUBLE) / 512
        terms = [
            (output * (factors + place / 1024).to(dtype)).sum().double()
            for output, dtypes in zip(outputs, self.uses, strict=True)
            for place, dtype in enumerate(dtypes)
        ]
        return torch.stack([*terms, self.leaf.sum().double()]).sum()

    def run(self, backward: Callable[[Tensor], object]) -> tuple[list[Tensor | None], list[Any]]:
        """The gradients that it leaves, and what the Function's backward got."""
        self.got.clear()
        found = gradients_of([self.leaf], lambda: backward(self.loss()))
        return found, [*self.got]

    def assert_as_pytorchs(self, engine: Engine, policy: str) -> None:
        assert_same(self.run(lambda loss: ts.backward(loss, engine=engine, policy=policy)), self.run(Tensor.backward))


def assert_same(found: Any, expected: Any) -> None:
    """Equal to the bit, dtypes included."""
    if isinstance(expected, Tensor):
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


OF_PROGRAMS: dict[str, tuple[Sequence[torch.dtype], Declared, Sequence[Sequence[torch.dtype]]]] = {
    "float32": ([HALF], [SINGLE], [[SINGLE]]),
    "float64": ([HALF], [DOUBLE], [[DOUBLE]]),
    "narrower than it comes": ([HALF], [SINGLE], [[DOUBLE]]),
    "wider than it comes": ([HALF], [DOUBLE], [[HALF]]),
    "narrower than the output": ([SINGLE], [HALF], [[DOUBLE]]),
    "its own": ([HALF], [HALF], [[DOUBLE]]),
    "None": ([HALF], [None], [[DOUBLE]]),
    "not declared": ([HALF], None, [[DOUBLE]]),
    "two consumers": ([HALF], [SINGLE], [[SINGLE, DOUBLE]]),
    "two consumers, float64": ([HALF], [DOUBLE], [[SINGLE, DOUBLE]]),
    "two consumers, None": ([HALF], [None], [[DOUBLE, DOUBLE]]),
    "several outputs": ([HALF, HALF, SINGLE], [SINGLE, DOUBLE, None], [[DOUBLE], [DOUBLE, SINGLE], [DOUBLE]]),
    "unused output": ([HALF, HALF], [SINGLE, DOUBLE], [[DOUBLE], []]),
}


@declares
@pytest.mark.parametrize("name", OF_PROGRAMS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_gets_its_gradients_in_the_dtypes_that_it_declared(engine: Engine, policy: str, name: str) -> None:
    Program(*OF_PROGRAMS[name]).assert_as_pytorchs(engine, policy)


@declares
def test_the_numbers_would_be_others_without_the_declaration() -> None:
    (with_it,), got = Program([HALF], [SINGLE], [[SINGLE]]).run(Tensor.backward)
    (without,), _ = Program([HALF], None, [[SINGLE]]).run(Tensor.backward)
    assert with_it is not None and without is not None and not torch.equal(with_it, without)
    assert got[0][0][0] is SINGLE


@declares
@given(st.data())
def test_any_declared_dtypes(data: st.DataObject) -> None:
    """Draw for each output whether a dtype is declared, which one or None, and zero to two consumers."""
    count = data.draw(st.integers(1, 3))
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=count, max_size=count))
    declared = data.draw(st.none() | st.lists(st.none() | st.sampled_from(DTYPES), min_size=count, max_size=count))
    uses = [data.draw(st.lists(st.sampled_from(DTYPES), max_size=2)) for _ in dtypes]
    if not any(uses):
        uses[0] = [DOUBLE]
    program = Program(dtypes, declared, uses)
    policy = data.draw(st.sampled_from(POLICIES))
    native = program.run(lambda loss: ts.backward(loss, engine="native", policy=policy))
    assert_same(program.run(lambda loss: ts.backward(loss, engine="direct", policy=policy)), native)
    # In another order a sum of different dtypes has another dtype where None was declared: the first to come decides.
    mixed = any(dtype is None and len(set(use)) > 1 for dtype, use in zip(declared or (), uses, strict=False))
    if policy == "heap" or not mixed:
        assert_same(native, program.run(Tensor.backward))


@declares
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("name", [name for name in OF_PROGRAMS if name != "unused output"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_double_backward(engine: Engine, policy: str, name: str) -> None:
    def of(backward: Callable[..., object]) -> Any:
        program = Program(*OF_PROGRAMS[name])
        backward(program.loss() * program.leaf.square().sum(), create_graph=True)
        first = program.leaf.grad
        assert first is not None
        program.leaf.grad = None
        backward((first * torch.arange(6, dtype=DOUBLE)).sum())
        return first.detach(), program.leaf.grad, program.got

    found = of(lambda loss, **options: ts.backward(loss, engine=engine, policy=policy, **options))
    assert_same(found, of(Tensor.backward))


def changed_in_place(declared: torch.dtype | None, part: bool) -> tuple[Tensor, Callable[[], Tensor], list[object]]:
    """A leaf, a loss by way of a bfloat16 buffer that an operation modified in place, and gradients of that buffer.

    Args:
        declared: the `grad_dtype` of the buffer.
        part: whether only a view of it was modified.
    """
    leaf = (torch.arange(1, 7, dtype=DOUBLE) / 8).requires_grad_()
    got: list[object] = []

    def loss() -> Tensor:
        buffer = torch.ones(6, dtype=HALF)
        buffer.grad_dtype = declared
        (buffer[:4] if part else buffer).mul_((leaf[:4] if part else leaf).to(HALF))
        buffer.register_hook(lambda gradient: got.append(gradient.clone()))
        factors = 1 + torch.arange(1, 7, dtype=DOUBLE) / 512
        return (buffer * factors).sum() + (buffer * (factors * 2)).sum()

    return leaf, loss, got


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="needs Tensor.grad_dtype")
@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("declared", [SINGLE, DOUBLE, HALF, None], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_tensor_modified_in_place_has_the_gradient_dtype_that_it_had_as_a_leaf(
    engine: Engine, policy: str, declared: torch.dtype | None, part: bool
) -> None:
    leaf, loss, got = changed_in_place(declared, part)
    expected = gradients_of([leaf], lambda: loss().backward()), [*got]
    got.clear()
    assert_same((gradients_of([leaf], lambda: ts.backward(loss(), engine=engine, policy=policy)), got), expected)


def test_the_graph_says_which_dtype_a_gradient_is_going_to_have() -> None:
    for declared in (SINGLE, DOUBLE, HALF):
        _, loss, got = changed_in_place(declared, part=False)
        result = loss()
        graph = ts.graph(result)
        (task,) = [task for task in graph.tasks if task.name == "MulBackward0" and task.id == 1]
        result.backward()
        assert task.inputs[0].dtype is got[0].dtype is declared


def test_buffers_of_declared_dtypes_are_predicted_to_the_byte() -> None:
    """Against the allocator: of a gradient in float64 four times as many bytes wait as of one in bfloat16."""
    peaks = {}
    for declared in (HALF, SINGLE, DOUBLE):
        for policy in POLICIES:
            leaf = torch.nn.Parameter(torch.ones(1000, dtype=DOUBLE))
            wide, narrow = torch.ones(1000, dtype=DOUBLE), torch.ones(1000)

            def loss(leaf: Tensor = leaf, declared: torch.dtype = declared) -> Tensor:
                buffer = torch.ones(1000, dtype=HALF)
                buffer.grad_dtype = declared
                buffer.mul_(leaf.to(HALF))
                return (buffer * wide).sum() + (buffer * narrow).sum()

            predicted = ts.simulate(ts.graph(loss()), policy)
            assert not predicted.estimates
            assert predicted.peak_bytes == ts.profile(loss, policy=policy).timeline.peak_bytes
            peaks[declared, policy] = predicted.peak_bytes
    assert peaks[DOUBLE, "heap"] > peaks[SINGLE, "heap"] > peaks[HALF, "heap"]


def test_a_prediction_says_that_it_is_an_estimate_where_gradients_of_different_dtypes_are_summed() -> None:
    buffer = torch.ones(6, dtype=HALF)
    buffer.grad_dtype = None
    buffer.mul_(torch.ones(6, dtype=HALF, requires_grad=True))
    loss = (buffer * torch.ones(6, dtype=DOUBLE)).sum() + (buffer * torch.ones(6)).sum()
    assert any("dtypes" in why for why in ts.simulate(ts.graph(loss)).estimates)


@declares
def test_a_session_shows_changes_and_takes_back_declared_gradients() -> None:
    program = Program([HALF, HALF], [SINGLE, None], [[DOUBLE, SINGLE], [DOUBLE]])
    expected, got = program.run(Tensor.backward)
    program.got.clear()
    session = ts.debug(program.loss(), history=True, trace="full")
    (task,) = [task for task in session.graph.tasks if task.name == "SeveralBackward"]
    assert [(meta.dtype, meta.any_dtype) for meta in task.inputs] == [(SINGLE, False), (HALF, True)]
    session.run_to(task.id)
    gradients = session.gradients
    assert_same([(each.dtype, each) for each in gradients], got[0])
    with raises(ValueError, "dtype", SINGLE, HALF):
        session.replace([gradients[0].to(HALF), gradients[1]])
    session.replace([gradients[0] * 2, gradients[1]])
    session.step()
    assert_same(program.got[-1], [(SINGLE, got[0][0][1] * 2), got[0][1]])
    session.back()
    session.restore()
    session.run()
    assert_same(program.got[-1], got[0])
    assert_same([program.leaf.grad], expected)
    (record,) = [each for each in session.trace if each.task is task]
    assert [each.meta.dtype for each in record.inputs if each is not None] == [SINGLE, DOUBLE]


@declares
def test_a_file_keeps_what_was_declared(tmp_path: Path) -> None:
    run = ts.backward(Program([HALF, HALF], [SINGLE, None], [[DOUBLE], [DOUBLE]]).loss(), trace="cheap")
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert [task.inputs for task in loaded.graph.tasks] == [task.inputs for task in run.graph.tasks]
    assert any(meta.any_dtype for task in loaded.graph.tasks for meta in task.inputs)
    assert [each.inputs for each in loaded.trace] == [each.inputs for each in run.trace]


class Square(torch.autograd.Function):
    """The square of its input in another dtype. Its backward refuses a gradient that is not of the declared one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, declared: torch.dtype) -> Tensor:
        ctx.set_output_grad_dtype(declared)
        ctx.declared = declared
        ctx.save_for_backward(x)
        return x.square().to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if gradient.dtype is not ctx.declared:
            raise TypeError(f"got {gradient.dtype}")
        (x,) = ctx.saved_tensors
        return (2 * x * gradient).to(x.dtype), None, None


@declares
@pytest.mark.parametrize("engine", ENGINES)
def test_a_check_gives_a_backward_gradients_of_the_declared_dtype(engine: Engine) -> None:
    x = torch.linspace(0.5, 1.5, 6, dtype=DOUBLE, requires_grad=True)
    with ts.capture(keep_inputs=True):
        loss = (Square.apply(x * 1.5, SINGLE, DOUBLE) * torch.ones(6, dtype=DOUBLE)).sum()
    with ts.debug(loss, engine=engine) as session:
        (task,) = [task for task in session.graph.tasks if task.name == "SquareBackward"]
        assert session.check(task.id).ok  # of random gradients
        session.run_to(task.id)
        assert session.check().ok
        session.run()


class Net(torch.nn.Module):
    """Layers in bfloat16, whose products go through `Square` with gradients in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = (Square.apply(layer(x), HALF, SINGLE) * torch.full((8,), 1 + 1 / 512)).tanh()
        return x


@declares
def test_a_recomputed_forward_has_pytorchs_gradients() -> None:
    net, x = Net(), torch.linspace(-1, 1, 4096).reshape(512, 8)
    expected = gradients_of([*net.parameters()], lambda: net(x).sum().backward())
    planned = ts.plan_recompute(lambda: net(x).sum(), 0.7, seconds=0.1, repetitions=1)
    assert planned.dropped
    for policy in POLICIES:
        for engine in ENGINES:

            def backward(engine: Engine = engine, policy: str = policy) -> None:
                with ts.recompute(planned):
                    loss = net(x).sum()
                ts.backward(loss, engine=engine, policy=policy)

            assert_same(gradients_of([*net.parameters()], backward), expected)


@declares
def test_products_that_run_as_one_have_pytorchs_gradients() -> None:
    nets, x = [Net() for _ in range(5)], torch.linspace(-1, 1, 64).reshape(8, 8)
    leaves = [leaf for net in nets for leaf in net.parameters()]

    def loss() -> Tensor:
        return torch.stack([net(x) for net in nets]).sum()

    expected = gradients_of(leaves, lambda: loss().backward())
    found = gradients_of(leaves, lambda: ts.backward(loss(), engine="direct", batch="auto"))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


class WithAnInfiniteGradient(Net):
    def __init__(self) -> None:
        super().__init__()
        self.zero = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.zero.sqrt()


@declares
@pytest.mark.filterwarnings("ignore:ts.training")
def test_a_recorded_step_is_replayed_to_the_bit(tmp_path: Path) -> None:
    net = WithAnInfiniteGradient()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with ts.training(net, optimizer, black_box=tmp_path):
        net(torch.linspace(-1, 1, 64).reshape(8, 8)).sum().backward()
        optimizer.step()
    with pytest.warns(UserWarning, match="DataLoader"):
        again = ts.replay(tmp_path / "step_0", WithAnInfiniteGradient, lambda model, batch: model(*batch).sum())
    assert again.same_gradients
    assert sum(bool(each.isfinite().all()) for each in again.gradients.values()) == 8
    assert again.find_nan().where == "backward"
