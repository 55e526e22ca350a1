"""The holders of earlier steps' graphs are named correctly, a healthy loop has no finding, and the search keeps nothing
alive."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import Snapshots, says

pytestmark = pytest.mark.filterwarnings("ignore:ts.training")

BEGIN = """\
import collections, contextlib, dataclasses, functools, sys, threading, types, weakref
import torch
from torch import nn

class Trainer:
    last = None
    def keep(self, y): pass

class Slot:
    __slots__ = ("y",)

@dataclasses.dataclass
class Metric:
    value: object

def noted(y):
    return lambda *ignored: y and None

def failing(y):
    raise ValueError

def waits(y):
    yield

trainer = Trainer()
trainer.store = []
slot = Slot()
slot.y = 0
model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
hidden = torch.zeros(1)

def train(training, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    total, outs = 0, []
    with training(model, optimizer) as watched:
        for step in range(steps):
            optimizer.zero_grad()
            y = model(torch.ones(2, 3))
            loss = y.square().mean()
            loss.backward()
            optimizer.step()
            KEEP
    return watched

"""


def line(text: str) -> int:
    """The line of the program with this text."""
    return next(number for number, each in enumerate(BEGIN.splitlines(), 1) if text in each)


TRAIN = line("def train(")
END = BEGIN.count("\n") + 1  # where what a case adds begins
HELD: dict[str, tuple[str, str, str | tuple[str, ...]]] = {
    "a list": ("", "trainer.store.append(y)", "trainer.store[0]"),
    "a list of dicts": ("", "trainer.store.append({'o': y})", "trainer.store[0]['o']"),
    "a dict by step": ("seen = {}", "seen[step] = loss", "seen[0]"),
    "a deque": ("last = collections.deque(maxlen=3)", "last.append(y)", "last[0]"),
    "a default dict": ("log = collections.defaultdict(list)", "log['loss'].append(loss)", "log['loss'][0]"),
    "a set": ("kept = set()", "kept.add(y)", ("kept",)),
    "a tuple that grows": ("", "trainer.store = (*trainer.store, loss)", "trainer.store[0]"),
    "a dataclass": ("metrics = []", "metrics.append(Metric(loss))", "metrics[0].value"),
    "an attribute": ("", "trainer.hidden = getattr(trainer, 'hidden', 0) + y.sum()", "trainer.hidden"),
    "a class": ("", "Trainer.last = (Trainer.last or 0) + loss", "Trainer.last"),
    "a slot": ("", "slot.y = slot.y + loss", "slot.y"),
    "a module's attribute": ("", "model[1].seen = getattr(model[1], 'seen', 0) + y", "model[1].seen"),
    "a buffer": ("model.register_buffer('ema', torch.zeros(1))", "model.ema = 0.9 * model.ema + loss", "model.ema"),
    "a partial": ("calls = []", "calls.append(functools.partial(print, y))", "calls[0].args[0]"),
    "a bound method": (
        "calls = []",
        "t = Trainer(); t.y = y; calls.append(t.keep); del t",
        "calls[0].__self__.y",
    ),
    "a default": ("calls = []", "calls.append(lambda kept=y: 0)", "calls[0].__defaults__[0]"),
    "a node": ("nodes = []", "nodes.append(loss.grad_fn)", "nodes[0]"),
    "a local variable's list": ("", "outs.append(y)", ("outs", "train()", f"program.py:{TRAIN}", "outs[0]")),
    "a local variable": ("", "total += loss", ("total", "train()", f"program.py:{TRAIN}")),
    "one of the first step": (
        "",
        "first = y if step == 0 else first",
        ("first", "train()", f"program.py:{TRAIN}"),
    ),
    "a forward hook's closure": (
        "hooks = []",
        "hooks.append(model[1].register_forward_hook(noted(loss)))",
        ("y", "noted.<locals>.<lambda>()", f"program.py:{line('return lambda')}", "model[1]._forward_hooks[*]"),
    ),
    "a parameter hook's closure": (
        "",
        "model[0].weight.register_hook(noted([loss]))",
        (
            "noted.<locals>.<lambda>()",
            f"program.py:{line('return lambda')}",
            "y[0]",
            "model[0].weight._backward_hooks[*]",
        ),
    ),
    "a generator": (
        "its = []",
        "its.append(waits(y)); next(its[-1])",
        ("y", "waits()", f"program.py:{line('yield')}", "its[0]"),
    ),
    "a traceback": (
        "errors = []",
        "try: failing(y)\n            except ValueError as error: errors.append(error)",
        ("y", "failing()", f"program.py:{line('raise ValueError')}", "errors[0].__traceback__.tb_next.tb_frame"),
    ),
    "a local of the thread": ("tl = threading.local(); tl.seen = []", "tl.seen.append(y)", "tl.seen[0]"),
    "a cache": (
        "@functools.lru_cache\ndef double(step, y=None): return MADE.pop() * 2\nMADE = []",
        "MADE.append(loss); double(step)",
        ("double",),
    ),
    "IPython's results": ("_oh = {}; _ = 0", "_ = _oh[step] = y", "_oh[0]"),
    "a gradient with a graph": (
        "grads = []",
        "grads.append(torch.autograd.grad(model(torch.ones(2, 3)).exp().sum(), model[0].weight, create_graph=True))",
        "grads[0][0]",
    ),
    "a dict of dicts": ("seen = {'loss': {}}", "seen['loss'][step] = loss", "seen['loss'][0]"),
    "a coroutine": (
        "@types.coroutine\ndef pause(): yield\nasync def job(y): await pause()\njobs = []",
        "jobs.append(job(y)); jobs[-1].send(None)",
        ("y", "job()", f"program.py:{END + 2}", "jobs[0]"),
    ),
    "a queue": ("import queue\nwaiting = queue.Queue()", "waiting.put(y)", "waiting.queue[0]"),
    "a context variable": (
        "import contextvars\ncurrent = contextvars.ContextVar('current', default=())",
        "current.set((*current.get(), loss))",
        ("current", "[0]"),
    ),
    "a NumPy array of objects": ("import numpy\nlog = numpy.empty(9, object)", "log[step] = loss", "log[0]"),
    "a grid of objects": ("import numpy\ngrid = numpy.empty((9, 2), object)", "grid[step, 1] = loss", "grid.flat[1]"),
    "a local NumPy array": (
        "import numpy",
        "if step == 0: total = numpy.empty(9, object)\n            total[step] = loss",
        ("total", "train()", f"program.py:{TRAIN}", "total[0]"),
    ),
    "an optimizer's state": (
        "",
        "optimizer.state[model[0].weight].setdefault('seen', []).append(y)",
        ("train()", f"program.py:{TRAIN}", "optimizer.state[<Parameter>]['seen'][0]"),
    ),
    "a logger's list": (
        "import logging\nclass Keeps(logging.Handler):\n    records = []\n"
        "    def emit(self, record): self.records.append(record)\n"
        "log = logging.Logger('train'); log.addHandler(Keeps())",
        "log.warning('loss %s', loss)",
        "Keeps.records[0].args[0]",
    ),
    "a counter's nonlocal": (
        "def counter():\n    total = 0\n    def add(y):\n        nonlocal total\n        total = total + y\n"
        "    return add\nadd = counter()",
        "add(loss)",
        ("total", "counter.<locals>.add()", f"program.py:{END + 2}", "add"),
    ),
    "a future": (
        "from concurrent.futures import Future\ndone = []",
        "done.append(Future()); done[-1].set_result(y)",
        "done[0]._result",
    ),
    "a heap": ("import heapq\nworst = []", "heapq.heappush(worst, (-step, y))", "worst[1][1]"),
    "a cached property": (
        "class Result:\n    @functools.cached_property\n    def loss(self): return MADE.pop() * 2\n"
        "results, MADE = [], []",
        "MADE.append(loss); results.append(Result()); results[-1].loss",
        "results[0].loss",
    ),
    "a custom Function's ctx": (
        "class Keep(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x, store): ctx.store = store; return x * 1\n"
        "    @staticmethod\n    def backward(ctx, g): return g, None\n"
        "nodes = []",
        "nodes.append(Keep.apply(torch.ones(2, requires_grad=True), [y]).grad_fn)",
        "nodes[0].store[0]",
    ),
}


SHOWN = {
    "a list",
    "a set",
    "a local variable's list",
    "a forward hook's closure",
    "a generator",
    "a traceback",
    "a cache",
    "a coroutine",
    "a context variable",
}
"""Those whose whole text is stored: one for each way to say who holds it."""

PARAMETER = re.compile(r"[^;]*optimizer\.param_groups\[0\]\['params'\]\[0\]")  # where else it has no name


@pytest.fixture
def program() -> Iterator[ModuleType]:
    """A module of the user's, `program.py`."""
    module = ModuleType("program")
    sys.modules["program"] = module
    yield module
    sys.modules.pop("program", None)
    vars(module).clear()


def run(module: ModuleType, before: str, keep: str) -> None:
    exec(compile(BEGIN.replace("KEEP", keep) + before, "/tmp/program.py", "exec"), vars(module))


def plain(text: str) -> str:
    text = re.sub(r"_hooks\[\d+\]", "_hooks[*]", re.sub(r"\bprogram\.(?!py)", "", text))
    return PARAMETER.sub("model[0].weight", text)


def leaks_of(training: ts.types.Training) -> list[ts.types.Finding]:
    return [each for each in training.findings if each.kind == "leak"]


def _case(name: str) -> object:
    return pytest.param(name, marks=[pytest.mark.leaves_hooks] if name.startswith("a parameter hook") else [])


@pytest.mark.parametrize("case", [_case(name) for name in HELD])
def test_the_holder_is_named_after_the_third_step(case: str, program: ModuleType, snapshot: Snapshots) -> None:
    before, keep, expected = HELD[case]
    run(program, before, keep)
    (leak,) = leaks_of(program.train(ts.training))
    if isinstance(expected, str):
        assert plain(str(leak.tensor)) == expected
    facts = (expected,) if isinstance(expected, str) else expected
    says(plain(str(leak.tensor)), *facts)
    says(plain(leak.sentence), *facts)
    if case in SHOWN:
        snapshot("training", plain(leak.sentence))
    assert leak.step in (2, 3) and leak.certain and leak.size is not None
    places = [each for each in facts if each.startswith("program.py:")]
    assert not places or leak.at == places[0]


def test_a_leak_goes_on(program: ModuleType, snapshot: Snapshots) -> None:
    run(program, "", "trainer.store.append(y)")
    training = program.train(ts.training, 12)
    (leak,) = leaks_of(training)
    assert (leak.step, leak.last_step) == (2, 11)
    assert leak.alike == 10
    says(leak, 0, 9)
    snapshot("training", leak)


def test_a_leak_lasts_to_the_last_step_although_its_function_has_returned() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(dropped: int) -> None:
        kept: list[Tensor] = []
        for step in range(15):
            optimizer.zero_grad()
            y = model(torch.ones(2, 3)).square().sum()
            y.backward()
            optimizer.step()
            kept.append(y)
            if step == dropped:
                kept.clear()

    for dropped, last in ((99, 14), (12, 12)):
        training = ts.training(model, optimizer).start()
        train(dropped)
        training.stop()
        (leak,) = leaks_of(training)
        assert (leak.step, leak.last_step) == (2, last)
        # The last search is the one after step 8. Later graphs were alive too, and none is now.
        says(leak, f"0 to {last - 2}", f"step {last}", "0 to 6", "step 8")
        assert leak.sentence.count("were alive") == 2 and "are alive" not in leak.sentence


def test_a_local_variable_of_another_thread_is_named_with_it(program: ModuleType) -> None:
    run(program, "lists = []", "lists[0].append(y)")
    going, done = threading.Event(), threading.Event()

    def log() -> None:
        held: list[object] = []
        program.lists.append(held)
        going.set()
        done.wait()
        del held

    thread = threading.Thread(target=log, name="logger")
    thread.start()
    try:
        going.wait()
        program.lists[:] = [ListOf(program.lists[0])]
        (leak,) = leaks_of(program.train(ts.training))
    finally:
        done.set()
        thread.join()
    says(leak.tensor, "held", "log()", "test_leaks.py:", "logger", "held[0]")


class ListOf:
    """Hands on to a list that it refers to by its number alone."""

    def __init__(self, held: list[object]) -> None:
        self._number = id(held)

    def append(self, value: object) -> None:
        next(each for each in gc.get_objects() if id(each) == self._number).append(value)  # type: ignore[attr-defined]


def test_what_is_let_go_of_is_not_searched_for_again(program: ModuleType) -> None:
    run(program, "", "trainer.store.append(y)\n            if step == 3: trainer.store.clear()")
    (leak,) = leaks_of(program.train(ts.training, 6))
    assert (leak.step, leak.last_step) == (2, 3)


def test_searches_come_after_2_4_8_steps(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    module = sys.modules["tapescope.engine.training.leaks.graph_leaks"]
    held_graphs = module.held_graphs
    monkeypatch.setattr(module, "held_graphs", lambda *given: looked.append(1) or held_graphs(*given))  # type: ignore[func-returns-value]
    run(program, "", "trainer.store.append(y)")
    program.train(ts.training, 20)
    assert len(looked) == 5  # after steps 2, 4, 8 and 16, and at the end


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.usefixtures("collector_off")
def test_a_cycle_is_shown_until_it_is_collected(program: ModuleType, snapshot: Snapshots) -> None:
    run(program, "", "y.itself = [y]")
    (leak,) = leaks_of(program.train(ts.training))
    says(leak.tensor, "<Tensor>.itself[0]")
    says(leak, "Python", ".detach()")
    snapshot("training", leak)


@pytest.mark.leaves_hooks
def test_a_hook_that_keeps_its_own_graph_is_said_to_be_immortal(program: ModuleType, snapshot: Snapshots) -> None:
    run(program, "", "y.register_hook(noted(loss))")
    training = program.train(ts.training)
    gc.collect()
    (leak,) = leaks_of(training)
    assert leak.at == f"program.py:{line('return lambda')}"
    says(leak, "y", "noted.<locals>.<lambda>()", ".detach()")
    snapshot("training", str(leak).replace(str(leak.tensor), "HOLDER"))


@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize(
    "case", ["a list", "a local variable", "a traceback", "a generator", "a forward hook's closure"]
)
def test_looking_keeps_nothing_alive(case: str, program: ModuleType) -> None:
    before, keep, _ = HELD[case]
    run(program, "alive = []\n" + before, f"alive.append(weakref.ref(y))\n            {keep}")
    training = program.train(ts.training)
    assert leaks_of(training)
    for name in ("trainer", "errors", "its", "hooks"):
        vars(program).pop(name, None)
    program.model[1]._forward_hooks.clear()
    assert [each() for each in program.alive] == [None] * 4


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.state: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.cell(x, self.state)
        return self.state[0]


def regression(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 8) -> Iterator[Tensor]:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3)).square().mean()
        loss.backward()
        optimizer.step()
        yield loss


def plainly() -> None:
    model = nn.Linear(3, 3)
    running, history = 0.0, []
    for loss in regression(model, torch.optim.Adam(model.parameters())):
        running += loss.item()
        history.append(loss.detach())


def gan(critic_steps: int) -> None:
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    for step in range(12):
        of_critic.zero_grad()
        made = generator(torch.randn(2, 2))
        critic_loss = critic(made.detach()).mean() - critic(torch.randn(2, 3)).mean()
        critic_loss.backward()
        of_critic.step()
        if step % critic_steps == critic_steps - 1:
            of_generator.zero_grad()
            generator_loss = -critic(generator(torch.randn(2, 2))).mean()
            generator_loss.backward()
            of_generator.step()


def accumulated() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(20):
        loss = model(torch.randn(2, 3)).square().mean() / 4
        loss.backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def recurrent() -> None:
    model = Recurrent()
    for _ in regression(model, torch.optim.SGD(model.parameters(), 0.1)):
        assert model.state is not None
        model.state = (model.state[0].detach(), model.state[1].detach())


def averaged() -> None:
    model = nn.Linear(3, 3)
    ema = torch.optim.swa_utils.AveragedModel(model)
    for _ in regression(model, torch.optim.SGD(model.parameters(), 0.1)):
        ema.update_parameters(model)


def closures() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(4, 3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (model(x) - x).square().mean()
        loss.backward()
        return loss

    for _ in range(6):
        loss = optimizer.step(closure)
    assert loss is not None


def scaled() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3)).square().mean() * (torch.inf if step == 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def checkpointed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        optimizer.zero_grad()
        out = torch.utils.checkpoint.checkpoint(model, torch.randn(2, 3), use_reentrant=False)
        out.square().mean().backward()
        optimizer.step()


def compared_with_the_step_before() -> None:
    model = nn.Linear(3, 3)
    before = torch.zeros(())
    for loss in regression(model, torch.optim.SGD(model.parameters(), 0.1)):
        assert loss != before
        before = loss


def of_functions() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(6):
        loss = (torch.randn(2, 3) @ weight).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


HEALTHY = [
    plainly,
    lambda: gan(1),
    lambda: gan(5),
    accumulated,
    recurrent,
    averaged,
    closures,
    scaled,
    checkpointed,
    compared_with_the_step_before,
    of_functions,
]


@pytest.mark.parametrize("loop", HEALTHY)
def test_a_healthy_loop_is_left_in_peace(loop: Any) -> None:
    with ts.training() as training:
        loop()
    assert training.steps >= 5
    assert not leaks_of(training), training
    assert not training.notes


def test_a_graph_without_modules_is_seen_by_its_loss() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    total = torch.zeros(())
    with ts.training() as training:
        for _ in range(5):
            loss = weight.square().sum()
            loss.backward()
            optimizer.step()
            total = total + loss
    (leak,) = leaks_of(training)
    says(leak, "total", "test_a_graph_without_modules_is_seen_by_its_loss()")


def test_two_trainings_at_once_don_t_disturb_each_other(program: ModuleType) -> None:
    run(program, "", "trainer.store.append(y)")
    with ts.training() as around:
        inner = program.train(ts.training)
    assert [each.tensor for each in leaks_of(around)] == [each.tensor for each in leaks_of(inner)]
    assert ref(inner)


def test_graphs_that_another_thread_made_are_not_taken_for_old_ones_beside_a_leak() -> None:
    first, second = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.01)
    kept = []
    with ThreadPoolExecutor(1) as other, ts.training([first, second], optimizer) as training:
        for number in range(20):
            given = other.submit(first, torch.ones(2, 3)).result()
            loss = second(given).sum()
            optimizer.zero_grad()
            loss.backward()
            if number == 1:
                kept.append(second(torch.ones(2, 3)).sum())
            optimizer.step()
    (leak,) = [each for each in training.findings if each.kind == "leak"]
    says(leak, "step 1", "kept[0]")


@pytest.mark.parametrize("steps", [pytest.param(70, marks=pytest.mark.slow), 150])
def test_a_long_list_of_losses_is_one_leak_however_many_nodes_are_known_to_python(
    steps: int, snapshot: Snapshots
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    history = []
    with ts.training() as training:
        for _ in range(steps):
            optimizer.zero_grad()
            out = model(torch.ones(1, 2))
            out.sum().backward()
            optimizer.step()
            history.append(out.sum() + out.mean())
    (leak,) = [each for each in training.findings if each.kind == "leak"]
    assert leak.alike == min(steps - 2, 128)
    says(leak, min(steps - 2, 128) - 1, "history[0]")
    snapshot("training", leak)  # the finding on the longer one says that there may be more


def test_a_view_of_a_parameter_that_a_step_has_spoiled_does_not_end_the_search() -> None:
    weight = nn.Parameter(torch.randn(8, 4))
    view = weight.chunk(2)[0]
    optimizer, kept = torch.optim.SGD([weight], 0.1), []
    with ts.training(None, optimizer) as training:
        for _ in range(4):
            loss = (torch.ones(2, 4) @ weight.t()).sum()
            kept.append(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with pytest.raises(RuntimeError, match="modified inplace"):
        _ = view.grad_fn
    assert [each.kind for each in training.findings] == ["leak"] and not training.notes


def test_a_graph_that_grew_in_another_thread_is_held_by_what_holds_its_result() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    futures = []
    with ThreadPoolExecutor(1) as pool, ts.training(model, optimizer) as training:
        for _ in range(8):
            out = model(torch.ones(2, 4))
            futures.append(pool.submit(lambda given: (given * 2).sum(), out))
            futures[-1].result()
            out.sum().backward()
            optimizer.step()
    (leak,) = [each for each in training.findings if each.kind == "leak"]
    assert leak.tensor is not None and leak.tensor.endswith("futures[0]._result")


@pytest.mark.filterwarnings("ignore:Using backward")
def test_graphs_that_gradients_hold_are_those_of_create_graph(snapshot: Snapshots) -> None:
    def findings(zero_grad: bool) -> list[ts.types.Finding]:
        model = nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with ts.training(model, optimizer) as training:
            for _ in range(6):
                if zero_grad:
                    optimizer.zero_grad()
                model(torch.randn(3, 4)).sum().backward(create_graph=True)
                optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None  # else the graphs are cycles
        return [each for each in training.findings if each.kind == "leak"]

    [leak] = findings(zero_grad=False)
    assert leak.alike == 3 and re.search(r"[02]\.(weight|bias)", str(leak.tensor))
    says(leak, ".grad", "create_graph=True", "torch.autograd.grad", "zero_grad(set_to_none=True)")
    snapshot("training", re.sub(r"[02]\.(weight|bias)", "PARAMETER", str(leak)))
    assert findings(zero_grad=True) == []


def test_no_weak_reference_to_a_tensor_of_the_program_is_left() -> None:
    """`torch.utils.swap_tensors` refuses tensors that have one, and so do `module.to()` with its flag."""
    other, model = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer) as training:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2)).sum().backward()
            optimizer.step()
    torch.utils.swap_tensors(other.weight, nn.Parameter(torch.zeros(2, 2)))
    assert not other.weight.any() and not training.findings
