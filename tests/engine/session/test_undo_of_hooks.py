"""Going back with every kind of hook: each call finds what it would have found, and gradients are PyTorch's."""

from __future__ import annotations

import array
import functools
import io
import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tapescope.engine.execution import undo_python_state as hook_state
from tapescope.engine.session.direct_session import Stepper
from tapescope.tests.says import Snapshots, raises

pytestmark = pytest.mark.leaves_hooks  # those on several tensors, and on retained ones that stand in their own lists

Calls = list[tuple[str, Any]]
Program = Callable[[Tensor, Calls], Tensor]
"""Takes a leaf and where its hooks write down what they are called with."""


def noted(gradients: Any) -> Any:
    if isinstance(gradients, Tensor):
        return gradients.tolist()
    return [noted(each) for each in gradients] if isinstance(gradients, tuple | list) else gradients


def queue(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def module_hooks(w: Tensor, calls: Calls) -> Tensor:
    inner, outer = nn.Tanh(), nn.Sequential(nn.Identity(), nn.Tanh())

    def after(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        calls.append((type(module).__name__, noted((inputs, outputs))))
        return tuple(each * 10 for each in inputs)

    def before(module: nn.Module, outputs: Any) -> Any:
        calls.append(("before", noted(outputs)))
        return tuple(each * 3 for each in outputs)

    for module in (inner, outer, outer[1]):
        module.register_full_backward_hook(after)
        module.register_full_backward_pre_hook(before)
    return (outer(inner(w * 2)) * w).sum()


def old_module_hooks(w: Tensor, calls: Calls) -> Tensor:
    first, second = w.modules = nn.Tanh(), nn.Sequential(nn.Identity(), nn.Tanh())  # else they are gone by then

    def hook(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        module.count = getattr(module, "count", 0) + 1
        calls.append((type(module).__name__, module.count, noted((inputs, outputs))))
        return tuple(None if each is None else each * module.count for each in inputs)

    first.register_backward_hook(hook)
    second[1].register_backward_hook(hook)
    handle = nn.modules.module.register_module_backward_hook(hook)
    try:
        return (second(first(w * 2)) * w).sum()
    finally:
        handle.remove()


def tensor_hooks(w: Tensor, calls: Calls) -> Tensor:
    def hook(gradient: Tensor) -> Tensor:
        calls.append(("tensor", noted(gradient)))
        return gradient * len(calls)

    hidden = w.sin()
    for tensor in (w, hidden):
        tensor.register_hook(hook)
    hidden.register_hook(hook)
    return (hidden.exp() + hidden * w).sum()


def node_hooks(w: Tensor, calls: Calls) -> Tensor:
    state = SimpleNamespace(count=0)

    def before(gradients: Any) -> Any:
        state.count += 1
        calls.append(("pre", noted(gradients)))
        return tuple(each * state.count for each in gradients)

    def after(inputs: Any, outputs: Any) -> Any:
        calls.append(("post", noted((inputs, outputs))))
        return tuple(None if each is None else each + state.count for each in inputs)

    hidden = w.sin()
    for node in (hidden.grad_fn, hidden.exp().grad_fn):
        node.register_prehook(before)
        node.register_hook(after)
    return (hidden.exp() + hidden).sum()


def several_all(w: Tensor, calls: Calls) -> Tensor:
    hidden, other = w.sin(), w.cos()
    register_multi_grad_hook((hidden, other, w), lambda grads: calls.append(("all", noted(grads))))
    return (hidden * other + other).sum()


def several_any(w: Tensor, calls: Calls) -> Tensor:
    hidden, other = w.sin(), w.cos()
    register_multi_grad_hook((hidden, other, w), lambda grad: calls.append(("any", noted(grad))), mode="any")
    return (hidden * other + other).sum()


def several_and_checkpoints(w: Tensor, calls: Calls) -> Tensor:
    hidden = checkpoint(torch.sin, w, use_reentrant=False)
    other = checkpoint(torch.cos, hidden, use_reentrant=False)
    register_multi_grad_hook((hidden, other, w), lambda grads: calls.append(("all", noted(grads))))
    register_multi_grad_hook((hidden, other), lambda grad: calls.append(("any", noted(grad))), mode="any")
    return (hidden * other).sum()


def callbacks(w: Tensor, calls: Calls) -> Tensor:
    def hook(gradient: Tensor) -> None:
        calls.append(("queues", noted(gradient)))
        queue(lambda: calls.append(("end", None)))

    hidden = w.sin()
    hidden.register_hook(hook)
    w.register_hook(hook)
    hidden.exp().register_hook(hook)
    return (hidden.exp() * hidden).sum()


def leaf_hooks(w: Tensor, calls: Calls) -> Tensor:
    totals: dict[str, list[float]] = defaultdict(list)

    def accumulated(leaf: Tensor) -> None:
        totals["norm"].append(leaf.grad.norm().item())
        calls.append(("accumulated", noted(leaf.grad)))
        leaf.grad = leaf.grad * len(totals["norm"])

    w.register_post_accumulate_grad_hook(accumulated)
    return (w.sin() * w).sum()


def retained(w: Tensor, calls: Calls) -> Tensor:
    hidden = w.sin()
    hidden.retain_grad()
    hidden.register_hook(lambda gradient: calls.append(("retained", hidden.grad is None)))
    return (hidden * hidden.exp()).sum()


def once(w: Tensor, calls: Calls) -> Tensor:
    hidden = w.sin()

    def hook(gradient: Tensor) -> Tensor:
        handle.remove()
        calls.append(("once", noted(gradient)))
        return gradient * 2

    handle = hidden.register_hook(hook)
    hidden.register_hook(lambda gradient: gradient + 1)
    return hidden.exp().sum()


def packed_on_a_stack(w: Tensor, calls: Calls) -> Tensor:
    stack: deque[Tensor] = deque()

    def unpack(number: int) -> Tensor:
        calls.append(("unpack", number))
        return stack.pop()

    with saved_tensors_hooks(lambda tensor: (stack.append(tensor), len(stack))[1], unpack):
        return w.sin().exp().tanh().sum()


class Counting(torch.autograd.Function):
    """Its backward uses up what its context has."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, calls: Calls) -> Tensor:
        ctx.factors, ctx.count, ctx.calls = [2.0, 3.0], 0, calls
        ctx.seen = {"first": True}
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.count += 1
        ctx.calls.append(("function", (ctx.count, noted(gradient))))
        first = ctx.seen.pop("first", False)
        return gradient * ctx.factors.pop() * ctx.count * (1 if first else -1), None


def function_state(w: Tensor, calls: Calls) -> Tensor:
    return (Counting.apply(w.sin(), calls) * Counting.apply(w, calls)).sum()


class Base(torch.autograd.Function):
    inherited = 0


class OfTheClass(Base):
    """A counter that is stored only on its class."""

    count = 0
    seen: ClassVar[list[float]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, calls: Calls) -> Tensor:
        ctx.calls = calls
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        kept: Any = OfTheClass
        kept.count += 1
        Base.inherited += 2
        kept.seen.append(float(gradient.sum()))
        kept.added = getattr(kept, "added", 0) + 3
        ctx.calls.append(("class", (kept.count, Base.inherited, kept.added, *kept.seen)))
        return gradient * kept.count * Base.inherited * kept.added, None


def attributes_of_a_function(w: Tensor, calls: Calls) -> Tensor:
    OfTheClass.count = Base.inherited = 0
    OfTheClass.seen.clear()
    if hasattr(OfTheClass, "added"):
        del OfTheClass.added
    return (OfTheClass.apply(w.sin(), calls) * OfTheClass.apply(w, calls)).sum()


class Keeper(nn.Module):
    """A module whose own method is a hook."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls, self.count, self.by_sign = calls, 0, Counter[bool]()

    def hook(self, scale: float, gradient: Tensor) -> Tensor:
        self.count += 1
        self.by_sign[bool(gradient.sum() > 0)] += 1
        self.calls.append(("method", (self.count, dict(self.by_sign))))
        return gradient * self.count * scale


def methods(w: Tensor, calls: Calls) -> Tensor:
    keeper = Keeper(calls)
    hidden = w.sin()
    hidden.register_hook(functools.partial(keeper.hook, 0.5))
    w.register_hook(functools.partial(keeper.hook, 2.0))
    return (hidden * w).sum()


COUNT = 0


def counted_globally(gradient: Tensor) -> Tensor:
    global COUNT
    COUNT += 1
    return gradient * COUNT


def globals_by_name(w: Tensor, calls: Calls) -> Tensor:
    global COUNT
    COUNT = 0
    hidden = w.sin()
    for tensor in (hidden, w):
        tensor.register_hook(counted_globally)
        tensor.register_hook(lambda gradient: calls.append(("global", noted(gradient))))
    return (hidden * w).sum()


class Slotted:
    """A counter that is stored in a slot, and on its class."""

    total = 0
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def hook(self, gradient: Tensor) -> Tensor:
        self.count += 1
        type(self).total += 2
        return gradient * self.count * Slotted.total


def slots_and_classes(w: Tensor, calls: Calls) -> Tensor:
    Slotted.total = 0
    slotted, hidden = Slotted(), w.sin()
    for tensor in (hidden, w):
        tensor.register_hook(slotted.hook)
        tensor.register_hook(lambda gradient: calls.append(("slots", (slotted.count, Slotted.total))))
    return (hidden * w).sum()


def random_numbers(w: Tensor, calls: Calls) -> Tensor:
    random.seed(0)
    numpy.random.seed(0)
    own, numpys, torchs = random.Random(1), numpy.random.default_rng(1), torch.Generator().manual_seed(1)

    def hook(gradient: Tensor) -> Tensor:
        drawn = (random.random(), numpy.random.rand(), own.random(), numpys.random())
        calls.append(("random", drawn))
        return gradient * sum(drawn) + torch.rand(3, generator=torchs)

    hidden = w.sin()
    for tensor in (hidden, w):
        tensor.register_hook(hook)
    return (hidden * w).sum()


def arrays(w: Tensor, calls: Calls) -> Tensor:
    sums, counts, bits = numpy.zeros(3), array.array("q", [0]), bytearray(1)
    named, lines = numpy.array([None, None], dtype=object), io.StringIO()

    def hook(gradient: Tensor) -> Tensor:
        sums[...] += gradient.numpy()
        counts[0] += 1
        counts.append(counts[0])
        bits.append(counts[0])
        named[counts[0] % 2] = str(counts[0])
        lines.write(f"{counts[0]};")
        calls.append((sums.tolist(), counts.tolist(), bytes(bits), named.tolist(), lines.getvalue()))
        return gradient * len(counts)

    hidden = w.sin()
    hidden.register_hook(hook)
    w.register_hook(hook)
    return (hidden.exp() + hidden * w).sum()


PROGRAMS = [
    slots_and_classes,
    random_numbers,
    arrays,
    module_hooks,
    old_module_hooks,
    tensor_hooks,
    node_hooks,
    several_all,
    several_any,
    several_and_checkpoints,
    callbacks,
    leaf_hooks,
    retained,
    once,
    packed_on_a_stack,
    function_state,
    attributes_of_a_function,
    methods,
    globals_by_name,
]


def plain_run(program: Program) -> tuple[Tensor, Calls]:
    w, calls = torch.linspace(0.1, 1, 3, requires_grad=True), []
    program(w, calls).backward()
    return w.grad, calls


@pytest.mark.parametrize("budget", [1 << 30, 0])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_going_back_between_every_two_tasks_changes_no_gradient_and_no_call(program: Program, budget: int) -> None:
    expected, calls_expected = plain_run(program)
    count = len(Stepper(program(torch.ones(3, requires_grad=True), [])).graph)
    w, calls = torch.linspace(0.1, 1, 3, requires_grad=True), []
    session = Stepper(program(w, calls), history=budget)
    marks = []
    for stop in range(1, count + 1):
        marks.append(list(calls))
        session.step()
        session.back()
        assert calls == marks[-1], f"before task {stop}"
        session.step()
    for back in range(1, count + 1):
        session.back(back)
        assert calls == marks[-back], f"{back} back"
        session.run()
        assert torch.equal(w.grad, expected), f"{back} back, and on"
        assert calls == calls_expected, f"{back} back, and on"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_wandering_through_a_session_changes_no_gradient_and_no_call(program: Program) -> None:
    expected, calls_expected = plain_run(program)
    for seed in range(5):
        w, calls = torch.linspace(0.1, 1, 3, requires_grad=True), []
        session = Stepper(program(w, calls), history=random.Random(seed).choice([0, 300, 1 << 30]))
        chance = random.Random(seed)
        for _ in range(12):
            if session.order and chance.random() < 0.4:
                session.back(chance.randint(1, len(session.order)))
            elif session.left and chance.random() < 0.8:
                session.step(chance.choice(session.ready))
            else:
                session.goto(branch=chance.choice(session.branches).number)
        if session.order:
            session.back(len(session.order))
        assert calls == []
        session.run()
        assert torch.equal(w.grad, expected)
        assert calls == calls_expected


def test_a_tensor_that_a_hook_changed_in_place_is_not_put_back_but_told(snapshot: Snapshots) -> None:
    w = torch.ones(3, requires_grad=True)
    total = torch.zeros(3)

    def add(gradient: Tensor) -> None:
        total.add_(gradient)

    hidden = w * 2
    hidden.register_hook(add)
    session = Stepper(hidden.sum(), history=True)
    session.run()
    with raises(ValueError, 1, "MulBackward0 (2nd)", ".add`", "test_undo_of_hooks.py:", "`total`") as raised:
        session.back(2)
    snapshot("debug", raised.value)


def batches() -> Iterator[int]:
    for _ in [1, 1, 1, 1]:
        yield 1


def opened(folder: Path) -> Any:
    path = folder / "numbers"
    path.write_text("1\n1\n1\n1\n")
    return path.open()


ITERATORS: dict[str, Callable[[], Iterator[Any]]] = {
    "count": itertools.count,
    "generator": batches,
    "of a list": lambda: iter([1, 1, 1, 1]),
    "backwards": lambda: reversed([1, 1, 1, 1]),
    "of a range": lambda: iter(range(4)),
    "of a dict": lambda: iter(dict.fromkeys(range(4))),
    "zip": lambda: zip([1, 1, 1], [1, 1, 1], strict=True),
    "map": lambda: map(abs, [1, 1, 1]),
    "enumerate": lambda: enumerate([1, 1, 1]),
    "chain": lambda: itertools.chain([1], [1, 1, 1]),
    "islice": lambda: itertools.islice([1, 1, 1], 2),
    "repeat": lambda: itertools.repeat(1, 4),
    "generator of a generator": lambda: (each for each in batches()),
    "cycle": lambda: itertools.cycle([1, 1]),
    "permutations": lambda: itertools.permutations([1, 1]),
}


def hooked(hook: Callable[[Tensor], object]) -> Tensor:
    """A loss of three tasks, the second with a hook."""
    hidden = torch.ones(3, requires_grad=True) * 2
    hidden.register_hook(hook)
    return hidden.sum()


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
def test_an_iterator_that_a_hook_advances_is_not_wound_back_but_told(
    make: Callable[[], Iterator[Any]], snapshot: Snapshots
) -> None:
    numbers = make()

    def hook(gradient: Tensor) -> None:
        next(numbers)

    session = Stepper(hooked(hook), history=True)
    session.run()
    kind = type(numbers).__name__
    with raises(ValueError, ".hook`", "test_undo_of_hooks.py:", "`numbers`") as raised:
        session.back(2)
    kinds = (kind, "list_iterator", "tuple_iterator")  # an iterator of iterators may be told by one of these
    assert any(f"({each})" in str(raised.value) for each in kinds)
    if kind in ("count", "cycle"):
        snapshot("debug", raised.value)


def test_a_file_that_a_hook_reads_is_not_wound_back_but_told(tmp_path: Path) -> None:
    with opened(tmp_path) as lines:
        session = Stepper(hooked(lambda gradient: lines.readline() and None), history=True)
        session.run()
        with raises(ValueError, "`lines`", "(TextIOWrapper)"):
            session.back(2)


@pytest.mark.parametrize("name", [each for each in ITERATORS if each not in ("cycle", "permutations")])
def test_an_iterator_that_is_only_kept_stands_in_no_way(name: str) -> None:
    numbers, calls = ITERATORS[name](), []
    session = Stepper(hooked(lambda gradient: calls.append(numbers)), history=True)
    session.run()
    session.back(3)
    assert calls == []


def test_a_generator_without_a_state_of_its_own_goes_back_with_what_it_keeps() -> None:
    calls = []

    def noting() -> Iterator[None]:
        while True:
            calls.append("called")
            yield

    notes = noting()
    next(notes)
    session = Stepper(hooked(lambda gradient: next(notes)), history=True)
    session.run()
    session.back(3)
    assert calls == ["called"]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: [0.0] * 10**6, "1,000,000"),
        (lambda: [[] for _ in range(10**5)], "100,000"),
        (lambda: numpy.zeros(10**6), "8,000,000 bytes"),
    ],
    ids=["numbers", "lists", "an array"],
)
def test_a_hook_that_leads_to_very_much_is_told_and_not_looked_through(
    make: Callable[[], Any], size: str, snapshot: Snapshots
) -> None:
    log = make()

    def hook(gradient: Tensor) -> None:
        log[0] = None if isinstance(log, list) else 1

    session = Stepper(hooked(hook), history=True)
    session.run()
    with raises(ValueError, ".hook`", "test_undo_of_hooks.py:", "`log`", size) as raised:
        session.back(2)
    if size == "100,000":
        snapshot("debug", raised.value)


def test_how_much_a_hook_leads_to_does_not_slow_a_task_without_limit() -> None:
    looked_at = []
    for length in (10**4, 10**6):
        log = [[] for _ in range(length)]
        looked_at.append(len(list(hook_state.reach([lambda log=log: log.clear()], hook_state._MANY))))
    assert max(looked_at) <= hook_state._MANY


def test_what_callbacks_at_the_end_have_done_to_tensors_and_iterators_is_told(snapshot: Snapshots) -> None:
    numbers = itertools.count()

    def end() -> None:
        next(numbers)

    session = Stepper(hooked(lambda gradient: queue(end)), history=True)
    session.run()
    with raises(RuntimeError, ".end`", "test_undo_of_hooks.py:", "`numbers`", "(count)") as raised:
        session.back(1)
    snapshot("debug", raised.value)


def test_what_the_user_has_changed_since_stays_as_he_left_it() -> None:
    w, calls = torch.ones(3, requires_grad=True), []
    hidden = w * 2
    hidden.register_hook(lambda gradient: calls.append("hook"))
    session = Stepper(hidden.sum(), history=True)
    session.run()
    calls.append("mine")
    session.back(3)
    assert calls == ["hook", "mine"]
