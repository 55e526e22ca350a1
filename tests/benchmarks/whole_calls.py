"""The cost of whole calls relative to `loss.backward()`, and of a captured forward relative to a plain one.

On 4,001 tiny tasks (500 x Linear, LayerNorm, ReLU), where nothing hides what a task costs beside its arithmetic, and on
ResNet-50. A million objects more can be put into the process first, as large libraries do: a look through all objects
of the process would show.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from measure import Effort, Row, ratios, seconds
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import BaseTorchFunctionMode

import tapescope as ts
from tapescope import workload
from tapescope.engine.recording.statistics import Level
from tapescope.inspector.torch_private.nodes import TELLS_OF_NEW_NODES

_CROWD = 1_000_000  # objects
_STEPS = 22  # of a loop under a policy
_LAYERS = 81  # of a perceptron, whose backward has 206 tasks


@dataclass(frozen=True, slots=True)
class Call:
    """One whole call.

    Attributes:
        what: as people write it.
        call: it.
        chain, resnet50: at most so many times a `loss.backward()`.
    """

    what: str
    call: Callable[[Tensor], object]
    chain: float
    resnet50: float


def under(policy: str) -> Callable[[Tensor], object]:
    def step(loss: Tensor) -> None:
        with ts.policy(policy):
            loss.backward()

    return step


CALLS = (
    Call("ts.backward(loss)", ts.backward, 1.05, 1.05),
    Call('ts.policy("heap")', under("heap"), 1.05, 1.05),
    Call('ts.policy("bfs")', under("bfs"), 1.15, 1.05),
    Call('ts.policy("lpmf")', under("lpmf"), 1.15, 1.05),
    Call('direct: ts.backward(loss, engine="direct")', lambda loss: ts.backward(loss, engine="direct"), 2.5, 1.15),
    Call('direct, trace="off"', lambda loss: ts.backward(loss, engine="direct", trace="off"), 3.5, 1.2),
    Call("ts.debug(loss).run()", lambda loss: ts.debug(loss).run(), 3.5, 1.2),
    Call('direct, trace="cheap"', lambda loss: ts.backward(loss, engine="direct", trace="cheap"), 7, 1.4),
    Call('native, trace="off"', lambda loss: ts.backward(loss, trace="off"), 5, 1.3),
)


def rows(effort: Effort) -> Iterator[Row]:
    yield from rows_quick(effort)
    crowd = [[] for _ in range(1_000 if effort.tiny else _CROWD)]
    gc.collect()
    yield from _calls(effort, f", among {len(crowd):,} objects more")


def rows_quick(effort: Effort) -> Iterator[Row]:
    """Without the crowd."""
    yield from _calls(effort)
    yield from _added(effort)
    yield from _few_tasks(effort)


def _calls(effort: Effort, where: str = "") -> Iterator[Row]:
    tiny = effort.tiny
    model, make_loss = workload("mlp_norm").build(layers=2 if tiny else 500)
    yield from _rows(effort, model, make_loss, "tiny tasks" + where, {each.what: each.chain for each in CALLS})
    yield from _captured(effort, make_loss, "tiny tasks" + where, 1.6 if TELLS_OF_NEW_NODES else 1.8)
    model, make_loss = workload("resnet50").build(batch=2 if tiny else 8, pixels=32 if tiny else 64)
    yield from _rows(effort, model, make_loss, "ResNet-50" + where, {each.what: each.resnet50 for each in CALLS})
    yield from _captured(effort, make_loss, "ResNet-50" + where, 1.1)


def _added(effort: Effort) -> Iterator[Row]:
    """Measure what a loop under a policy adds to each backward of a small model, which ratios of large ones hide."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    x = torch.randn(16, 32)
    for name, model, make_loss in (
        ("an MLP", mlp, lambda: mlp(x).square().mean()),
        ("MNIST", *workload("mnist").build()),
    ):
        for policy, goal in (("heap", 150), ("auto", 200), ("bfs", 400)):
            pairs, what = _under_policy(effort, model, make_loss, policy)
            added = tuple(1e6 * (under_policy - plain) for under_policy, plain in pairs)
            share = median(under_policy / plain for under_policy, plain in pairs)
            note = f"{share:.2f} × of loss.backward()"
            yield Row(f'ts.policy("{policy}"), added per backward, {name}, {what}', "µs", added, goal, note=note)
    for name, (model, make_loss) in (
        ("a GPT of 4 blocks", workload("gpt2").build(layers=4)),
        ("an LSTM", workload("lstm_cell").build()),
    ):
        for policy in ("heap", "auto"):
            pairs, what = _under_policy(effort, model, make_loss, policy)
            values = tuple(under_policy / plain for under_policy, plain in pairs)
            yield Row(f'a loop under ts.policy("{policy}") / loss.backward(), {name}, {what}', "×", values, 1.15)


def _under_policy(
    effort: Effort, model: nn.Module, make_loss: Callable[[], Tensor], policy: str
) -> tuple[list[tuple[float, float]], str]:
    """Time a loop's backwards under a policy and without, and say how many tasks run in whose order."""
    pairs = []
    for _ in range(effort.repetitions):
        plain = _backward_s(model, make_loss)
        with ts.policy(policy):
            pairs.append((_backward_s(model, make_loss), plain))
    model.zero_grad(set_to_none=True)  # as in the loop, since existing gradients decide on the order, too
    run = ts.backward(make_loss(), policy=policy)
    return pairs, f"{len(run.graph)} tasks, {run.policy}"


def _few_tasks(effort: Effort) -> Iterator[Row]:
    """Measure the direct engine where most models are, under a thousand tasks."""
    torch.manual_seed(0)
    pairs = 1 if effort.tiny else _LAYERS // 2
    layers = [layer for _ in range(pairs) for layer in (nn.Linear(32, 32), nn.ReLU())]
    model, x = nn.Sequential(*layers, nn.Linear(32, 10)), torch.randn(16, 32)
    goals: tuple[tuple[Level | None, float], ...] = ((None, 2.5), ("off", 4.0), ("cheap", 8.0))
    for trace, goal in goals:

        def once(trace: Level | None = trace) -> float:
            model.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            return 1e3 * seconds(lambda: ts.backward(loss, engine="direct", trace=trace))

        once()
        once()  # the first backward reads the graph and the hooks of the process
        what = f"direct, trace={trace!r}, {len(model)} layers"
        yield Row(what, "ms", tuple(once() for _ in range(effort.repetitions)), goal)


def _backward_s(model: nn.Module, make_loss: Callable[[], Tensor]) -> float:
    """The median time of a loop's backwards, without its first two, which plan."""
    times = []
    for _ in range(_STEPS):
        model.zero_grad(set_to_none=True)
        times.append(seconds(make_loss().backward))
    return median(times[2:])


def _rows(
    effort: Effort, model: nn.Module, make_loss: Callable[[], Tensor], where: str, goals: dict[str, float]
) -> Iterator[Row]:
    def timed(call: Callable[[Tensor], object]) -> Callable[[], float]:
        def once() -> float:
            model.zero_grad(set_to_none=True)
            loss = make_loss()
            return seconds(lambda: call(loss))

        return once

    for each in CALLS:
        values = ratios(timed(each.call), timed(Tensor.backward), effort.repetitions)
        yield Row(f"{each.what} / loss.backward(), {where}", "×", values, goals[each.what])


def _captured(effort: Effort, forward: Callable[[], Tensor], where: str, goal: float) -> Iterator[Row]:
    """The cost of a capture, and its least: an empty hook of new nodes (torch 2.14+), or an empty function mode with
    empty hooks of modules."""

    def captured() -> Tensor:
        with ts.capture():
            return forward()

    values = ratios(lambda: seconds(captured), lambda: seconds(forward), effort.repetitions)
    yield Row(f"ts.capture() / the forward alone, {where}", "×", values, goal)
    what, context = (
        ("node_creation_hook", _empty_hook) if TELLS_OF_NEW_NODES else ("mode and module hooks", _empty_mode)
    )

    def empty() -> Tensor:
        with context():
            return forward()

    values = ratios(lambda: seconds(empty), lambda: seconds(forward), effort.repetitions)
    yield Row(f"an empty {what} / the forward alone, {where}", "×", values)


def _empty_hook() -> AbstractContextManager[object]:
    return torch.autograd.graph.node_creation_hook(lambda node: None)


@contextmanager
def _empty_mode() -> Iterator[None]:
    before = register_module_forward_pre_hook(lambda module, args: None)
    after = register_module_forward_hook(lambda module, args, result: None, always_call=True)
    try:
        with BaseTorchFunctionMode():
            yield
    finally:
        before.remove()
        after.remove()
