"""`ts.backward`, both engines, against `torch.autograd.backward`."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.planning.policies import CLASSIC
from tapescope.engine.recording.run import Engine
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import Swap, random_program
from ..comparing import ENGINES, assert_equal, engine_order, gradients_of
from ..sizes import LARGEST_SLOW, built

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_every_workload_has_pytorchs_gradients_under_every_policy_and_engine(name: str) -> None:
    model, make_loss = built(name)
    leaves = list(model.parameters())
    expected = gradients_of(leaves, lambda: make_loss().backward())
    for engine in ENGINES:
        for policy in CLASSIC:
            found = gradients_of(leaves, lambda: ts.backward(make_loss(), policy=policy, engine=engine))
            assert_equal(found, expected, bitwise=policy == "heap")


@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_native_executes_the_pinned_order_and_direct_heap_the_order_of_pytorch(name: str) -> None:
    _, make_loss = built(name)
    for policy in CLASSIC:
        run = ts.backward(make_loss(), policy=policy)
        assert run.order == run.planned and len(run.order) == len(run.graph)

    loss = make_loss()
    unpinned = engine_order(ts.graph(loss), loss.backward)
    for engine in ENGINES:
        assert list(ts.backward(make_loss(), policy="heap", engine=engine).order) == unpinned


@pytest.mark.skipif(sys.platform != "linux", reason="ties come in libstdc++'s order")
@pytest.mark.parametrize("engine", ENGINES)
def test_ties_come_in_the_order_of_pytorchs_queue(engine: Engine) -> None:
    """Sequence numbers count per thread, so a forward in several threads has many equal ones; leaves all have one."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    lstm = nn.LSTM(4, 4, 3, bidirectional=True)
    results: list[Tensor] = []
    for _ in range(5):
        thread = threading.Thread(target=lambda: results.append(layers(torch.ones(2, 4)).sum()))
        thread.start()
        thread.join()
    loss = torch.stack([*results, lstm(torch.ones(3, 2, 4))[0].sum()]).sum()
    graph = ts.graph(loss)
    expected = engine_order(graph, lambda: loss.backward(retain_graph=True))
    assert list(ts.backward(loss, policy="heap", engine=engine, retain_graph=True).order) == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(CLASSIC), st.sampled_from(ENGINES))
def test_random_programs_have_pytorchs_gradients(seed: int, policy: str, engine: Engine) -> None:
    leaves, loss = random_program(seed)
    loss.backward()
    expected = [leaf.grad for leaf in leaves]
    leaves, loss = random_program(seed)
    ts.backward(loss, policy=policy, engine=engine)
    assert_equal([leaf.grad for leaf in leaves], expected, bitwise=policy == "heap")


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_any_legal_order_by_hand_has_pytorchs_gradients(seed: int, pick: object) -> None:
    leaves, loss = random_program(seed)
    loss.backward()
    expected = [leaf.grad for leaf in leaves]
    leaves, loss = random_program(seed)
    session = ts.debug(loss)
    while session.ready:
        session.step(pick.choice(session.ready).task)
    assert_equal([leaf.grad for leaf in leaves], expected, bitwise=False)


@pytest.mark.parametrize("engine", ENGINES)
class TestBoth:
    def check(self, engine: Engine, make: Callable[[], tuple[Sequence[Tensor], Tensor | Sequence[Tensor]]]) -> None:
        """Both engines leave in .grad what PyTorch leaves there."""
        leaves, loss = make()
        expected = gradients_of(leaves, lambda: torch.autograd.backward(loss))
        for policy in CLASSIC:
            leaves, loss = make()
            found = gradients_of(leaves, lambda: ts.backward(loss, policy=policy, engine=engine))
            assert_equal(found, expected, bitwise=policy == "heap")

    def test_a_second_backward_adds_to_grad(self, engine: Engine) -> None:
        x = torch.ones(3, requires_grad=True)
        ts.backward((x * 2).sum(), engine=engine)
        first = x.grad
        ts.backward((x * 3).sum(), engine=engine)
        assert x.grad is first and torch.equal(x.grad, torch.full((3,), 5.0))

    def test_gradients_that_alias_each_other_are_never_summed_in_place(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
            a, b = Swap.apply(x + y, x + x)
            return [x, y], (a + b + a * b + (x + x) + y.expand(2, 3).sum(0)).sum()

        self.check(engine, make)

    def test_broadcast_operands_are_summed_for(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            torch.manual_seed(0)
            leaves = [torch.randn(shape, requires_grad=True) for shape in ((3,), (1, 3), (4, 1), ())]
            a, b, c, d = leaves
            return leaves, (torch.where(b > 0, a, c) * d + a / (c.exp() + b.exp()) - torch.maximum(a, c)).sum()

        self.check(engine, make)

    def test_several_roots_one_of_them_inside_the_other(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], list[Tensor]]:
            x = torch.ones(3, requires_grad=True)
            y = (x * 2).sum()
            return [x], [y, y.exp(), y]

        self.check(engine, make)

    def test_a_leaf_as_root(self, engine: Engine) -> None:
        x = torch.ones((), requires_grad=True)
        ts.backward(x, engine=engine)
        assert torch.equal(x.grad, torch.ones(()))

    def test_given_gradients(self, engine: Engine) -> None:
        x = torch.ones(3, requires_grad=True)
        ts.backward([x * 2, (x * 3).sum()], [torch.tensor([1.0, 2.0, 3.0]), None], engine=engine)
        assert torch.equal(x.grad, torch.tensor([5.0, 7.0, 9.0]))

    def test_embeddings_with_sparse_gradients(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            torch.manual_seed(0)
            table = nn.Embedding(10, 3, sparse=True)
            return [table.weight], (table(torch.tensor([1, 2, 2])).exp() + table(torch.tensor([2, 3, 4]))).sum()

        self.check(engine, make)

    def test_a_sparse_and_a_dense_gradient_for_one_leaf(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            torch.manual_seed(0)
            table = nn.Embedding(10, 3, sparse=True)
            return [table.weight], table(torch.tensor([1, 2])).sum() + (table.weight * 2).sum()

        self.check(engine, make)

    def test_mixed_precision(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            torch.manual_seed(0)
            layer = nn.Linear(4, 4)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return list(layer.parameters()), layer(torch.randn(3, 4)).float().sum()

        self.check(engine, make)

    def test_complex_numbers(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
            y = torch.tensor([0.5, 2.0], requires_grad=True)
            return [x, y], (x * y + torch.view_as_complex(torch.stack([y, y], -1))).abs().sum()

        self.check(engine, make)

    @pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="needs Tensor.grad_dtype")
    def test_a_leafs_wish_for_another_gradient_dtype(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            x = torch.ones(3, requires_grad=True)
            x.grad_dtype = torch.float64
            return [x], (x * 2).sum()

        self.check(engine, make)

    def test_a_module_made_half_after_its_forward(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            torch.manual_seed(0)
            layer = nn.Linear(2, 1)
            loss = layer(torch.full((1, 2), 1e5)).sum()
            layer.half()
            return list(layer.parameters()), loss

        self.check(engine, make)

    def test_a_generator_of_tensors(self, engine: Engine) -> None:
        x = torch.ones(3, requires_grad=True)
        ts.backward((loss for loss in [x.sum(), (x * 2).sum()]), engine=engine)
        assert torch.equal(x.grad, torch.full((3,), 3.0))

    def test_given_gradients_that_require_grad_are_summed_without_a_graph(self, engine: Engine) -> None:
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        seen = []
        y.register_hook(lambda gradient: seen.append(gradient.requires_grad))
        gradient = torch.ones(2, requires_grad=True)
        ts.backward([y, y], [gradient, gradient], engine=engine)
        assert seen == [False]

    @pytest.mark.parametrize("where", ["leaf", "before", "after"])
    @pytest.mark.parametrize(
        "give",
        [
            lambda gradient: torch.ones(5),
            lambda gradient: gradient.double(),
            lambda gradient: (gradient, gradient),
            lambda gradient: 3,
        ],
    )
    def test_hooks_that_return_nonsense_raise_what_they_raise_in_pytorch(
        self, engine: Engine, where: str, give: Callable[[Tensor], object]
    ) -> None:
        def raised(backward: Callable[[Tensor], object]) -> type[BaseException] | None:
            x = torch.ones(3, requires_grad=True)
            y = x * 2
            if where == "leaf":
                x.register_hook(give)
            elif where == "before":
                y.grad_fn.register_prehook(lambda gradients: (give(gradients[0]),))
            else:
                y.grad_fn.register_hook(lambda gradients, _: (give(gradients[0]), None))
            try:
                backward(y.sum())
            except Exception as error:
                return type(error)
            return None

        expected = raised(Tensor.backward)
        assert expected is not None
        assert raised(lambda loss: ts.backward(loss, engine=engine)) is expected

    def test_a_node_hook_must_return_a_tuple(self, engine: Engine) -> None:
        y = torch.ones(3, requires_grad=True) * 2
        y.grad_fn.register_prehook(lambda gradients: gradients[0])
        with pytest.raises(TypeError, match="expected tuple"):
            ts.backward(y.sum(), engine=engine)

    def test_recurrent_and_attention_modules(self, engine: Engine) -> None:
        def make() -> tuple[list[Tensor], Tensor]:
            torch.manual_seed(0)
            lstm, attention = nn.LSTM(4, 4, 2), nn.MultiheadAttention(4, 2)
            hidden, _ = lstm(torch.randn(5, 2, 4))
            out, _ = attention(hidden, hidden, hidden)
            return [*lstm.parameters(), *attention.parameters()], out.square().mean()

        self.check(engine, make)

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_checkpoints_recompute_once(self, engine: Engine, reentrant: bool) -> None:
        calls = 0
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        x = torch.randn(2, 4, requires_grad=True)

        def forward(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return layer(layer(x).tanh()).exp()

        expected = gradients_of([x, layer.weight], lambda: forward(x).sum().backward())
        calls = 0
        found = gradients_of(
            [x, layer.weight], lambda: ts.backward(checkpoint(forward, x, use_reentrant=reentrant).sum(), engine=engine)
        )
        assert_equal(found, expected, bitwise=True)
        assert calls == 2

    @pytest.mark.parametrize("large", [False, True])
    def test_hooks_run_as_often_and_in_the_same_order_with_the_same_gradients(
        self, engine: Engine, large: bool
    ) -> None:
        def run(backward: Callable[[Tensor], object]) -> tuple[list[object], list[Tensor | None]]:
            log: list[object] = []

            def note(name: str, factor: float | None = None) -> Callable[..., Tensor | None]:
                def hook(gradient: Tensor) -> Tensor | None:
                    log.append((name, gradient.tolist()))
                    return None if factor is None else gradient * factor

                return hook

            def note_all(name: str) -> Callable[..., None]:
                def hook(*gradients: tuple[Tensor | None, ...]) -> None:
                    log.append(
                        (name, [[each if each is None else each.tolist() for each in group] for group in gradients])
                    )

                return hook

            x = torch.tensor([1.0, 2.0], requires_grad=True)
            y = x * 2
            z = y
            for _ in range(1200 if large else 1):
                z = z * 1
            z = z.exp()
            layer = nn.Linear(2, 2)
            with torch.no_grad():
                layer.weight.copy_(torch.eye(2))
                layer.bias.zero_()
            layer.register_full_backward_hook(
                lambda module, inputs, outputs: log.append(("module", inputs[0].tolist()))
            )
            loss = (layer(z) + y.repeat(2, 1)[0]).sum()
            y.register_hook(note("tensor", 3.0))
            y.register_hook(note("tensor again"))
            y.retain_grad()
            x.register_hook(note("leaf", 0.5))
            x.register_post_accumulate_grad_hook(lambda leaf: log.append(("accumulated", leaf.grad.tolist())))
            y.grad_fn.register_prehook(note_all("before"))
            y.grad_fn.register_hook(note_all("after"))
            y.grad_fn.register_prehook(lambda gradients: tuple(gradient * 2 for gradient in gradients))
            z.register_hook(note("a tensor that is gone", 2.0))
            del z
            backward(loss)
            return log, [x.grad, y.grad, layer.weight.grad, layer.bias.grad]

        log, gradients = run(Tensor.backward)
        assert len(log) == 8
        found_log, found = run(lambda loss: ts.backward(loss, engine=engine))
        assert found_log == log
        assert_equal(found, gradients, bitwise=True)

    def test_a_node_that_gives_no_gradient_still_lets_the_next_ones_run(self, engine: Engine) -> None:
        class Stop(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return None

        x = torch.ones(2, requires_grad=True)
        y = torch.ones(2, requires_grad=True)
        seen = []
        x.register_hook(seen.append)
        run = ts.backward((Stop.apply(x.exp()) + y).sum(), engine=engine)
        assert x.grad is None and seen == [None]
        assert torch.equal(y.grad, torch.ones(2))
        assert len(run.order) == len(run.graph)

    def test_an_exception_of_a_hook_keeps_its_type_and_names_the_task(self, engine: Engine) -> None:
        x = torch.ones(2, requires_grad=True)
        with ts.capture():
            y = x.exp()
            loss = y.sin().sum()

        def fail(gradient: Tensor) -> None:
            raise KeyError("mine")

        y.register_hook(fail)
        numbers = [node._sequence_nr() for node in ts.graph(loss).nodes]
        with pytest.raises(KeyError, match="mine") as caught:
            ts.backward(loss, engine=engine, trace="off")
        assert any("ExpBackward0" in note and "test_backward.py" in note for note in caught.value.__notes__)
        assert [node._sequence_nr() for node in ts.graph(loss).nodes] == numbers
        assert torch._C._current_graph_task_id() == -1 and torch.is_grad_enabled()

    def test_a_freed_graph_is_named(self, engine: Engine) -> None:
        x = torch.ones(2, requires_grad=True)
        loss = x.exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="retain_graph=True") as caught:
            ts.backward(loss, engine=engine)
        assert any("ExpBackward0" in note for note in caught.value.__notes__)

    def test_errors_of_a_wrong_backward_are_pytorchs(self, engine: Engine) -> None:
        class Wrong(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, give):
                ctx.give = give
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return ctx.give(gradient)

        def message(backward: Callable[[Tensor], object], give: Callable[[Tensor], object]) -> str:
            x = torch.ones(3, requires_grad=True)
            with pytest.raises((RuntimeError, TypeError)) as caught:
                backward(Wrong.apply(x * 1, give).sum())
            return str(caught.value)

        for give in (
            lambda gradient: (torch.ones(4), None),
            lambda gradient: (torch.ones(1), None),
            lambda gradient: (torch.ones(()), None),
            lambda gradient: (torch.ones(3, device="meta"), None),
            lambda gradient: gradient,
            lambda gradient: (gradient, None, gradient),
            lambda gradient: (gradient, gradient),
            lambda gradient: (gradient.reshape(1, 3).to_sparse_csr(), None),
        ):
            expected = message(Tensor.backward, give)
            found = message(lambda loss: ts.backward(loss, engine=engine), give)
            assert found.split(" at ")[0].split(" for ")[0] == expected.split(" at ")[0].split(" for ")[0]
        for give in (lambda gradient: (torch.ones(3, dtype=torch.complex64), None), lambda gradient: (3, None)):
            message(Tensor.backward, give)
            message(lambda loss: ts.backward(loss, engine=engine), give)

    def test_what_fits_a_gradient_is_done_as_pytorch_does_it(self, engine: Engine) -> None:
        class Give(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, give):
                ctx.give = give
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return ctx.give, None

        for give in (
            torch.ones(5, 3),
            torch.ones(3, dtype=torch.float64),
            torch.ones(3, dtype=torch.int64),
            torch.ones(3, dtype=torch.float16),
        ):

            def make(give: Tensor = give) -> tuple[list[Tensor], Tensor]:
                x = torch.ones(3, requires_grad=True)
                return [x], Give.apply(x * 1, give).sum()

            self.check(engine, make)

    def test_a_loss_that_is_no_scalar_is_named(self, engine: Engine) -> None:
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="scalar outputs") as caught:
            ts.backward(x * 2, engine=engine)
        says(caught.value.__notes__[0], "output 0", "(3,)", "loss.sum()")

    def test_a_wrong_number_of_gradients_is_named(self, engine: Engine) -> None:
        x = torch.ones(3, requires_grad=True)
        with raises(RuntimeError, 1, 2):
            ts.backward([x * 2], [torch.ones(3), torch.ones(3)], engine=engine)

    def test_an_unknown_policy_executes_nothing(self, engine: Engine) -> None:
        x = torch.ones(3, requires_grad=True)
        loss = x.exp().sum()
        with raises(ValueError, "'best'", "bfs", "dfs", "heap"):
            ts.backward(loss, policy="best", engine=engine)
        loss.backward()

    def test_a_users_policy_runs(self, engine: Engine) -> None:
        x = torch.ones(3, requires_grad=True)
        loss = torch.stack([x.exp(), x.sin(), x.cos()]).sum()
        run = ts.backward(loss, policy=lambda ready, state: min(ready, key=lambda task: task.name), engine=engine)
        names = [run.graph.tasks[task].name for task in run.order]
        assert names[2:5] == ["CosBackward0", "ExpBackward0", "SinBackward0"]
        assert run.policy == "<lambda>" and run.engine == engine and run.longest_queue == 3

    def test_nothing_is_left_alive(self, engine: Engine) -> None:
        freed = []

        class Token:
            def __del__(self) -> None:
                freed.append(1)

        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.grad_fn.metadata["token"] = Token()
        loss = y.sum()
        ts.backward(loss, engine=engine)
        del y, loss
        gc.collect()
        assert freed == [1]


@pytest.mark.parametrize("start", [ts.backward, ts.debug])
def test_an_unknown_level_of_a_trace_is_told_with_those_there_are(
    start: Callable[..., object], snapshot: Snapshots
) -> None:
    for wrong in ("high", True, 3):
        with raises(ValueError, "trace", repr(wrong), "'off'", "'cheap'", "'full'", "None"):
            start(torch.ones(1, requires_grad=True).sum(), trace=wrong)
    with raises(ValueError, "trace", "'high'") as raised:
        ts.set_policy("bfs", trace="high")
    if start is ts.backward:
        snapshot("backward", raised.value)


def test_an_unknown_engine_is_told_with_those_there_are(snapshot: Snapshots) -> None:
    with raises(ValueError, "engine", "'turbo'", "native", "direct") as raised:
        ts.backward(torch.ones(1, requires_grad=True).exp(), engine="turbo")  # type: ignore[arg-type]
    snapshot("backward", raised.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_on_an_accelerator_and_across_devices(engine: Engine, accelerator: torch.device) -> None:
    torch.manual_seed(0)
    far, near = nn.Linear(64, 64, device=accelerator), nn.Linear(64, 64)
    leaves = [*far.parameters(), *near.parameters()]
    x = torch.randn(8, 64, device=accelerator)

    def loss() -> Tensor:
        hidden = far(x).relu()
        return near(hidden.cpu()).sum() + far(hidden).square().mean().cpu()

    expected = gradients_of(leaves, lambda: loss().backward())
    for policy in CLASSIC:
        runs = []
        found = gradients_of(leaves, lambda: runs.append(ts.backward(loss(), policy=policy, engine=engine)))
        assert_equal(found, expected, bitwise=False)
        assert runs[0].order == runs[0].planned


@pytest.mark.parametrize("engine", ["native", "direct"])
def test_the_memory_of_a_backward_that_reaches_no_input_is_what_the_forward_left(
    engine: Engine,
) -> None:
    x, other = torch.ones(100, requires_grad=True), torch.ones(1, requires_grad=True)
    run = ts.backward((x * 2).sum(), memory=True, inputs=[other], engine=engine)
    assert run.order == () and run.timeline is not None and run.timeline.peak_bytes <= 16
    assert x.grad is None and other.grad is None
