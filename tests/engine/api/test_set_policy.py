"""Whole training loops under `ts.policy`, held against the same loops under PyTorch alone, logged side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.autograd import backward as backward_by_name
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.says import Snapshots, raises, says
from tapescope.tests.warm_python import WarmPython

from ..comparing import assert_equal, gradients_of
from ..interrupts import interrupted, lines_run

TORCH_BACKWARD = torch.autograd.backward


@pytest.fixture(autouse=True)
def _nothing_stays_installed() -> Iterator[None]:
    yield
    x = torch.ones(1, requires_grad=True)
    seen: list[ts.Run] = []
    with ts.policy("bfs", on_run=seen.append):
        x.exp().backward()
    x.exp().backward()
    assert len(seen) == 1
    assert torch.autograd._engine_run_backward.__module__ == "torch.autograd.graph"


def two_branches(x: Tensor) -> Tensor:
    """Leaf first under heap, last under bfs: the policies differ."""
    return (x.exp() + x.sin().cos()).sum()


def orders_in(work: Callable[[], object], *policies: str) -> list[tuple[str, tuple[int, ...]]]:
    found: list[tuple[str, tuple[int, ...]]] = []
    for policy in policies:
        with ts.policy(policy, on_run=lambda run: found.append((run.policy, run.order))):
            work()
    return found


# Training loops


class Net(nn.Module):
    def __init__(self, checkpointed: str | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3))
        self.head = nn.Linear(8, 16)
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            if self.checkpointed is None:
                x = x + block(x)
            else:
                x = x + checkpoint(block, x, use_reentrant=self.checkpointed == "reentrant")
        return self.head(x)


class Trainer:
    """Like the trainers of Lightning and Hugging Face: the model's step returns a loss, the trainer does everything
    else."""

    def __init__(self, checkpointed: str | None, autocast: bool, accumulate: int) -> None:
        torch.manual_seed(0)
        self.model = Net(checkpointed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=1e-2, total_steps=6)
        self.autocast = autocast
        self.accumulate = accumulate
        self.log: list[dict[str, Any]] = []

    def training_step(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits = self.model(tokens[:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def fit(self, batches: int = 6) -> list[dict[str, Any]]:
        torch.manual_seed(1)  # dropout; a checkpoint must draw the same again
        for batch in range(batches):
            loss = self.training_step(torch.randint(16, (4, 9)))
            assert (loss / self.accumulate).backward() is None
            entry: dict[str, Any] = {"loss": loss.item()}
            if (batch + 1) % self.accumulate == 0:
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
                entry |= {"norm": norm.item(), "rate": self.scheduler.get_last_lr()[0]}
            self.log.append(entry)
        return self.log


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("checkpointed", [None, "reentrant", "not reentrant"])
@pytest.mark.parametrize("policy", ["heap", "bfs", "dfs"])
def test_a_trainer_logs_what_it_logs_without(
    policy: str, checkpointed: str | None, autocast: bool, accumulate: int
) -> None:
    plain, ours = Trainer(checkpointed, autocast, accumulate), Trainer(checkpointed, autocast, accumulate)
    expected = plain.fit()
    with ts.policy(policy) as installation:
        found = ours.fit()
    tolerance = 2e-2 if autocast else 1e-5  # other orders sum in another order
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=tolerance)
    if policy == "heap":
        assert found == expected
        assert_equal(list(ours.model.parameters()), list(plain.model.parameters()), bitwise=True)
    inner = 3 * 6 if checkpointed == "reentrant" else 0  # each block's own backward
    assert installation.backwards == 6 + inner


def test_a_gradient_scaler_skips_the_steps_it_skips_without() -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        log = []
        for step in range(5):
            loss = model(torch.randn(8, 4)).square().mean() * (torch.inf if step == 2 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            log += [scaler.get_scale(), model.weight.norm().item()]
        return log

    expected = train()
    with ts.policy("bfs") as installation:
        assert train() == pytest.approx(expected)
    assert installation.backwards == 5


def gradient_penalty(inputs: bool) -> list[Tensor | None]:
    """A penalty whose own backward goes through the graph of the first one."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1))
    x = torch.randn(5, 3, requires_grad=True)
    score = critic(x).sum()
    score.backward(create_graph=True, inputs=[x] if inputs else None)
    assert x.grad is not None and x.grad.grad_fn is not None
    penalty = (x.grad.norm(dim=1) - 1).square().mean()
    penalty.backward()
    found = [parameter.grad.detach() for parameter in critic.parameters() if parameter.grad is not None]
    x.grad = None
    for parameter in critic.parameters():  # create_graph leaves cycles of a parameter and its gradient
        parameter.grad = None
    return found


@pytest.mark.parametrize("inputs", [False, True])
def test_a_gradient_penalty_is_what_it_is_without(inputs: bool) -> None:
    expected = gradient_penalty(inputs)
    with ts.policy("bfs") as installation:
        found = gradient_penalty(inputs)
    assert_equal(found, expected, bitwise=False)
    assert installation.backwards == 2


def test_a_graph_shared_by_two_backwards() -> None:
    def work() -> list[Tensor]:
        x = torch.arange(3.0, requires_grad=True)
        shared = x.exp().sin()
        first, second = (shared * 2).sum(), (shared * x).sum()
        first.backward(retain_graph=True)
        once = x.grad.clone()
        torch.autograd.backward([second, shared], [None, torch.ones(3)])
        with pytest.raises(RuntimeError, match="retain_graph=True"):
            first.backward()
        return [once, x.grad]

    expected = work()
    with ts.policy("bfs"):
        assert_equal(work(), expected, bitwise=False)


# What is redirected


def test_each_way_to_call_backward_takes_the_order_of_the_policy() -> None:
    x = torch.ones(3, requires_grad=True)
    weight = torch.ones(3)
    ways: list[Callable[[], object]] = [
        lambda: two_branches(x).backward(),
        lambda: torch.autograd.backward(two_branches(x)),
        lambda: backward_by_name([two_branches(x)]),
        lambda: TORCH_BACKWARD(get_gradient_edge(two_branches(x))),
        lambda: two_branches(x).backward(torch.tensor(2.0), inputs=[x]),
        lambda: Tensor.backward(two_branches(x)),
        lambda: torch.autograd.backward(two_branches(x), inputs={"x": x}),
    ]
    with suppress(RuntimeError):  # before 2.13 PyTorch takes no dict
        ways.pop()()
        ways.append(lambda: torch.autograd.backward(two_branches(x), inputs={"x": x}))
    expected = [ts.backward(two_branches(x), policy=policy).order for policy in ("bfs", "dfs")]
    assert expected[0] != expected[1]
    for way in ways:
        assert way() is None
        assert orders_in(way, "bfs", "dfs") == [("bfs", expected[0]), ("dfs", expected[1])]
    with ts.policy("bfs") as installation:
        torch.autograd.grad(two_branches(x), x)
        (x * weight).sum()
    assert installation.backwards == 0


def test_the_deprecated_argument_still_warns_and_counts() -> None:
    x = torch.ones(3, requires_grad=True)
    with ts.policy("bfs") as installation, pytest.warns(FutureWarning, match="grad_variables"):
        torch.autograd.backward(x.exp(), grad_variables=torch.full((3,), 2.0))
    assert torch.equal(x.grad, 2 * x.detach().exp()) and installation.backwards == 1


BAD: dict[str, Callable[[Tensor], object]] = {
    "not a scalar": lambda x: (x * 2).backward(),
    "no graph": lambda x: torch.autograd.backward([two_branches(x), torch.ones(1)]),
    "no inputs": lambda x: two_branches(x).backward(inputs=[]),
    "wrong shape": lambda x: (x * 2).backward(torch.ones(4)),
    "too few gradients": lambda x: torch.autograd.backward([x * 2, x * 3], [torch.ones(3)]),
    "an unreachable input": lambda x: two_branches(x).backward(inputs=[torch.ones(1)]),
    "inside functorch": lambda x: torch.func.grad(lambda y: (y.sum().backward(), y.sum())[1])(x),
}


@pytest.mark.parametrize("case", BAD)
def test_what_pytorch_refuses_is_refused_in_its_words(case: str) -> None:
    with pytest.raises((RuntimeError, TypeError)) as expected:
        BAD[case](torch.ones(3, requires_grad=True))
    with ts.policy("bfs"), pytest.raises(type(expected.value)) as found:
        BAD[case](torch.ones(3, requires_grad=True))
    assert str(found.value).startswith(str(expected.value)[:40])


def test_backwards_of_nothing_pass() -> None:
    expected: list[object] = []
    for context in (nullcontext(), ts.policy("bfs")):
        with context:
            try:
                expected.append(torch.autograd.backward([]))
            except RuntimeError as error:
                expected.append(str(error))
    assert expected[0] == expected[1]


def test_a_backward_inside_a_backward_is_redirected_too() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2

    def inner(gradient: Tensor) -> None:
        with torch.enable_grad():
            two_branches(x).backward()

    y.register_hook(inner)
    seen: list[int] = []
    with ts.policy("bfs", on_run=lambda run: seen.append(len(run.graph))):
        y.sum().backward()
    assert seen == [len(ts.graph(two_branches(x))), 3]  # the inner one ends first
    torch.testing.assert_close(x.grad, 2 + x.detach().exp() - x.detach().sin().sin() * x.detach().cos())


class Logged(Tensor):
    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "backward" in getattr(function, "__name__", ""):
            cls.calls.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_tensor_subclass_has_its_say_as_often_as_without() -> None:
    logs = []
    for context in (nullcontext(), ts.policy("bfs")):
        Logged.calls.clear()
        x = torch.ones(3).as_subclass(Logged).requires_grad_()
        with context as installation:
            two_branches(x).backward()
            torch.autograd.backward(two_branches(x))
        logs.append(list(Logged.calls))
        assert installation is None or installation.backwards == 2
    assert logs[0] == logs[1] and logs[0]


def test_an_explicit_backward_keeps_its_own_policy_and_is_not_counted() -> None:
    x = torch.ones(3, requires_grad=True)
    expected = ts.backward(two_branches(x), policy="dfs").order
    with ts.policy("bfs") as installation:
        run = ts.backward(two_branches(x), policy="dfs")
    assert (run.policy, run.order) == ("dfs", expected) and installation.backwards == 0


def test_a_policy_of_the_users_own() -> None:
    x = torch.ones(3, requires_grad=True)
    with ts.policy(lambda ready, state: ready[-1]) as installation:
        two_branches(x).backward()
    assert "lambda" in installation.policy and x.grad is not None


def test_the_direct_engine_refuses_inside_as_outside() -> None:
    x = torch.ones(3, requires_grad=True)
    with ts.policy("bfs", engine="direct") as installation:
        two_branches(x).backward()
        torch.testing.assert_close(x.grad, gradients_of([x], lambda: TORCH_BACKWARD(two_branches(x)))[0])
    assert installation.engine == "direct"


def test_what_is_unknown_is_refused_at_once(snapshot: Snapshots) -> None:
    with raises(ValueError, "'bsf'", "bfs") as raised:
        ts.set_policy("bsf")
    snapshot("policy", raised.value)
    with raises(ValueError, "engine", "'indirect'"), ts.policy("bfs", engine="indirect"):  # type: ignore[arg-type]
        raise AssertionError("never entered")


# Setting it


def test_a_policy_that_is_set_holds_until_another_is_set_and_under_those_of_blocks(snapshot: Snapshots) -> None:
    x = torch.ones(3, requires_grad=True)
    runs: list[str] = []

    def backward() -> str | None:
        runs.clear()
        two_branches(x).backward()
        return runs[0] if runs else None

    def note(run: ts.Run) -> None:
        runs.append(run.policy)

    with ts.policy("heap", on_run=note):
        ts.set_policy("bfs", on_run=note)
        assert backward() == "heap"
        with ts.policy("dfs", on_run=note) as inner:
            assert backward() == "dfs"
            snapshot("policy", repr(inner))
    assert backward() == "bfs"
    ts.set_policy("dfs", on_run=note)
    assert backward() == "dfs"
    with raises(ValueError, "'bsf'"):
        ts.set_policy("bsf")
    assert backward() == "dfs"
    ts.set_policy(None)
    ts.set_policy(None)
    assert backward() is None


def test_an_exception_in_the_block_or_in_a_hook_leaves_nothing_installed() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()

    def fail(gradient: Tensor) -> None:
        raise KeyError("of the hook")

    y.register_hook(fail)
    with pytest.raises(KeyError, match="of the hook"), ts.policy("bfs") as installation:
        y.sum().backward()
    assert installation.backwards == 0
    with ts.policy("bfs") as installation:
        with pytest.raises(KeyError, match="of the hook"):
            (x.exp() + y * 0).sum().backward()
        two_branches(x).backward()
    assert installation.backwards == 1


def test_it_decorates_a_training_step() -> None:
    seen: list[str] = []

    @ts.policy("bfs", on_run=lambda run: seen.append(run.policy))
    def step(x: Tensor) -> None:
        two_branches(x).backward()

    x = torch.ones(3, requires_grad=True)
    step(x)
    two_branches(x).backward()
    step(x)
    assert seen == ["bfs", "bfs"]


def test_a_removal_inside_the_backward_lets_it_end() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    runs: list[ts.Run] = []
    ts.set_policy("bfs", on_run=runs.append)
    y.register_hook(lambda gradient: ts.set_policy(None))
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().exp()) and [run.policy for run in runs] == ["bfs"]


def test_who_wraps_the_engine_meanwhile_and_stays_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.compiler` replaces the engine in the same way."""
    x = torch.ones(3, requires_grad=True)
    wrapped: list[bool] = []
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward)
    with ts.policy("bfs") as first:
        inner = torch.autograd._engine_run_backward

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            wrapped.append(True)
            return inner(*args, **kwargs)

        torch.autograd._engine_run_backward = wrapper
        two_branches(x).backward()
    two_branches(x).backward()
    ts.backward(two_branches(x), policy="dfs")
    assert (first.backwards, len(wrapped)) == (1, 3)
    with ts.policy("dfs") as second:
        two_branches(x).backward()
    two_branches(x).backward()
    assert (first.backwards, second.backwards, len(wrapped)) == (1, 1, 5)
    torch.autograd._engine_run_backward = inner  # put back after its end
    two_branches(x).backward()
    with ts.policy("bfs") as third:
        two_branches(x).backward()
    assert third.backwards == 1
    found = x.grad
    (expected,) = gradients_of([x], lambda: [TORCH_BACKWARD(two_branches(x)) for _ in range(7)])
    torch.testing.assert_close(found, expected)


def test_no_graph_is_kept() -> None:
    with ts.policy("bfs"):
        x = torch.ones(3, requires_grad=True)
        loss = two_branches(x)
        died: list[bool] = []
        loss.grad_fn.register_hook(Dying(died))
        loss.backward()
        del loss
        assert died == [True]


class Dying:
    """A hook that notes when its node, and it with it, is gone."""

    def __init__(self, died: list[bool]) -> None:
        self._died = died

    def __call__(self, *gradients: object) -> None: ...

    def __del__(self) -> None:
        self._died.append(True)


def test_several_threads_at_once_and_installations_that_come_and_go() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    data = [torch.randn(4, 8) for _ in range(4)]
    expected = [torch.autograd.grad(layer(each).tanh().sum(), layer.weight)[0] for each in data]
    found: list[list[Tensor]] = [[] for _ in data]
    failures: list[BaseException] = []
    stop = threading.Event()

    def train(number: int) -> None:
        try:
            for _ in range(15):
                leaf = layer.weight.detach().clone().requires_grad_()
                nn.functional.linear(data[number], leaf, layer.bias).tanh().sum().backward(inputs=[leaf])
                found[number].append(leaf.grad)
        except BaseException as error:
            failures.append(error)

    def come_and_go() -> None:
        while not stop.is_set():
            with ts.policy("dfs"):
                stop.wait(0.001)

    with ts.policy("bfs"):
        threads = [threading.Thread(target=train, args=(number,)) for number in range(len(data))]
        visitor = threading.Thread(target=come_and_go)
        for thread in (*threads, visitor):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        visitor.join()
    assert not failures
    for gradients, wanted in zip(found, expected, strict=True):
        assert len(gradients) == 15
        for gradient in gradients:
            torch.testing.assert_close(gradient, wanted)


# torch.compile


def test_compiled_code_breaks_its_graph_no_more_often_than_without() -> None:
    def step(x: Tensor) -> Tensor:
        y = (x * 2).sin()
        y.sum().backward()
        return x.grad + 1

    def compiled(context: AbstractContextManager[Any]) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
        torch._dynamo.reset()
        counters.clear()
        with context:
            result = torch.compile(step, backend="aot_eager")(torch.ones(3, requires_grad=True))
        return dict(counters["graph_break"]), dict(counters["stats"]), result

    expected = compiled(nullcontext())
    found = compiled(ts.policy("bfs"))
    assert found[:2] == expected[:2]
    assert torch.equal(found[2], expected[2])


def test_installing_does_not_load_the_compiler(fresh_python: WarmPython) -> None:
    program = (
        "import sys, torch, tapescope as ts\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "with ts.policy('bfs'): x.exp().sum().backward()\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = fresh_python.run("-c", program)
    assert done.returncode == 0, done.stderr


def test_a_loss_of_several_elements_is_told_what_to_do() -> None:
    loss = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="scalar outputs") as caught, ts.policy("dfs"):
        loss.backward()
    (note,) = caught.value.__notes__
    says(note, "loss.sum()", "loss.mean()")


def test_a_policy_that_could_not_be_put_in_force_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tapescope.engine.api.set_policy.redirect_backward", fails)
        with pytest.raises(KeyboardInterrupt):
            ts.set_policy("bfs")
    runs: list[ts.Run] = []
    with ts.policy("dfs", on_run=runs.append):
        torch.ones(2, requires_grad=True).exp().sum().backward()
    assert [run.policy for run in runs] == ["dfs"]
    torch.ones(2, requires_grad=True).exp().sum().backward()
    assert len(runs) == 1


def test_an_interrupt_at_any_line_of_a_policys_begin_and_end_leaves_backwards_as_they_were(
    left_behind: Callable[[], list[str]],
) -> None:
    def program() -> None:
        with ts.policy("bfs"):
            pass

    program()
    lines = lines_run(program)
    assert lines > 20
    for at in range(1, lines + 1):
        place = interrupted(program, at)
        assert not left_behind(), f"interrupted at {place}: {left_behind()}"
        loss = torch.ones(2, requires_grad=True).exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="retain_graph=True"):
            loss.backward()
