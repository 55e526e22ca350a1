"""The user's line of a call, compared with `traceback` on the same stack."""

from __future__ import annotations

import _thread
import functools
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.inspector.graph.operations_and_calls import Operation, resolve_sources
from tapescope.inspector.graph.source_lines import OVERRIDES, Place, is_library, users_place
from tapescope.inspector.torch_private.nodes import TELLS_OF_NEW_NODES


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def forward(self, x: Tensor) -> Tensor:
        return (
            self.inner(x).exp()  # a call over several lines
            * 2
        )


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Own(Tensor):
    """A subclass, whose own __torch_function__ stands between the operation and its caller."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


def decorated(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def wrapper(x: Tensor) -> Tensor:
        return function(x).cos()

    return wrapper


def modules(x: Tensor) -> Tensor:
    return Scaled()(x)


def hooked(x: Tensor) -> Tensor:
    layer = nn.Linear(4, 4)
    layer.register_forward_pre_hook(lambda module, args: (args[0].tanh(),))
    layer.register_forward_hook(lambda module, args, result: result.sin())
    return layer(x)


def generator(x: Tensor) -> Tensor:
    def steps() -> Iterator[Tensor]:
        y = x
        for _ in range(3):
            y = y.sin()
            yield y

    *_, last = steps()
    return sum((each.exp() for each in steps()), last)


@decorated
@torch.enable_grad()
def decorators(x: Tensor) -> Tensor:
    return functools.partial(torch.mul, x)(x)


def comprehension(x: Tensor) -> Tensor:
    return torch.stack([(lambda y: y * 2)(each) for each in x.unbind()]).sum(0) + max([x, x], key=lambda y: y.sum())


def recomputed(x: Tensor) -> Tensor:
    return checkpoint(lambda y: y.exp().sin(), x, use_reentrant=False)  # type: ignore[no-any-return]


def custom_function(x: Tensor) -> Tensor:
    y = Doubled.apply(x)
    y.register_hook(lambda gradient: gradient * 3)
    return y  # type: ignore[no-any-return]


def long_function(x: Tensor) -> Tensor:
    scope: dict[str, Any] = {}
    lines = ["def f(x):", *("    x = x.sin()" for _ in range(300)), "    return x"]
    exec(compile("\n".join(lines), "ipykernel_7/1234.py", "exec"), scope)
    return scope["f"](x)  # type: ignore[no-any-return]


def subclass(x: Tensor) -> Tensor:
    return (x.as_subclass(Own) * 2).exp()  # type: ignore[type-var]


def patched_forward(x: Tensor) -> Tensor:
    layer = nn.Linear(4, 4)
    layer.forward = lambda y: nn.Linear.forward(layer, y) + 1  # type: ignore[method-assign]
    return nn.Sequential(layer)(x)


def transforms(x: Tensor) -> Tensor:
    return torch.func.functional_call(Scaled(), {}, (x,)) + torch.vmap(lambda row: row.sin())(x)


SHAPES = [
    *(modules, hooked, generator, decorators, comprehension, recomputed, custom_function, long_function, subclass),
    *(patched_forward, transforms),
]


def assert_lines_are_those_of_torch(loss: Tensor) -> None:
    """Compare each line with the innermost one outside torch in the stack that anomaly mode notes at the node."""
    graph = ts.graph(loss)
    made = [(task, node) for task, node in zip(graph.tasks, graph.nodes, strict=True) if not task.is_leaf]
    assert len(made) > 1
    unseen = [task.name for task, _ in made if task.source is None]
    assert unseen == [] or (unseen == ["AliasBackward0"] and not TELLS_OF_NEW_NODES), "made by torch.vmap itself"
    for task, node in [pair for pair in made if pair[0].source is not None]:
        frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', "".join(node.metadata["traceback_"]))
        users = [(file, int(line)) for file, line, name in frames if not is_library(file) and name not in OVERRIDES]
        expected = users[-1]
        assert task.source is not None and (task.source.file, task.source.line) == expected


@pytest.mark.parametrize("every_call", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_line_is_the_one_that_torch_notes(shape: Callable[[Tensor], Tensor], every_call: bool) -> None:
    with torch.autograd.set_detect_anomaly(True), ts.capture(every_call=every_call):
        loss = shape(torch.randn(4, 4, requires_grad=True)).sum()
        assert_lines_are_those_of_torch(loss)
        loss.backward()  # what a checkpoint recomputes is called from the engine


def test_the_line_in_another_thread_is_the_one_that_torch_notes() -> None:
    losses = []

    def run() -> None:
        with torch.autograd.set_detect_anomaly(True), ts.capture():
            losses.append(modules(torch.randn(4, 4)).sum())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert_lines_are_those_of_torch(losses[0])


def test_where_there_is_no_users_code_there_is_no_line() -> None:
    places: list[Place | None] = []
    names = {"found": places.append, "users_place": users_place}
    call = eval(compile("lambda: found(users_place())", "<frozen call>", "eval"), names)
    _thread.start_new_thread(call, ())  # where no frame is below it
    while not places:
        time.sleep(0.001)
    assert places == [None]


def test_a_noted_line_keeps_nothing_of_its_function_alive() -> None:
    def forward(x: Tensor) -> tuple[Tensor, weakref.ref[Tensor]]:
        local = torch.zeros(3)
        return x.exp(), weakref.ref(local)

    with ts.capture():
        y, local = forward(torch.ones(3, requires_grad=True))
    assert local() is None
    operation = ts.graph(y).tasks[0].operation
    assert isinstance(operation, Operation) and operation.source is not None and operation.source.function == "forward"


def test_lines_of_many_operations_are_those_of_each() -> None:
    losses = []
    for _ in range(2):
        with ts.capture():
            losses.append(modules(torch.ones(4, 4)).sum())
    together, alone = (
        [task.operation for task in ts.graph(loss).tasks if isinstance(task.operation, Operation)] for loss in losses
    )
    resolve_sources([*together, *together])
    assert [each.source for each in together] == [each.source for each in alone]
    assert len({each.source for each in alone}) > 1


def passing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not args:
            raise TypeError("no arguments")
        return function(*args, **kwargs)

    return wrapper


def test_the_line_is_the_users_where_a_library_has_wrapped_torchs_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((torch, "sub"), (Tensor, "sin"), (nn.functional, "linear"), (Tensor, "sum")):
        monkeypatch.setattr(owner, name, passing_on(passing_on(getattr(owner, name))))
    with ts.capture():
        y = torch.sub(torch.ones(4, 4, requires_grad=True), 2).sin()  # the line of two wrapped functions
        loss = Scaled()(y).sum()
    lines = {task.name: task.source for task in ts.graph(loss).tasks if not task.is_leaf}
    assert all(source is not None and source.function != "wrapper" for source in lines.values())
    for name in ("SubBackward0", "SinBackward0"):
        assert "# the line of two wrapped functions" in lines[name].code()[0]
    assert "# a call over several lines" in lines["AddmmBackward0"].code()[0]


def test_a_wrapper_that_computes_is_a_users_line() -> None:
    def twice(*args: Tensor) -> Tensor:
        return torch.add(*[each * 2 for each in args])  # the line of the wrapper

    with ts.capture():
        loss = twice(torch.ones(2, requires_grad=True), torch.ones(2))
    for task in ts.graph(loss).tasks[:2]:
        assert task.source is not None and "# the line of the wrapper" in task.source.code()[0]


def test_a_wrapper_without_a_caller_is_the_line_itself() -> None:
    places: list[Place | None] = []
    names = {"found": places.append, "users_place": users_place}
    call = eval(compile("lambda *args: found(users_place())", "<frozen call>", "eval"), names)
    _thread.start_new_thread(passing_on(call), (1,))  # where no frame is below it
    while not places:
        time.sleep(0.001)
    (place,) = places
    assert place is not None and place[0].co_name == "wrapper"


def test_the_line_is_the_users_inside_a_mode_of_theirs() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    with ts.capture(), Mode():
        y = torch.ones(2, requires_grad=True).exp()  # the line inside a mode
    source = ts.graph(y).tasks[0].source
    assert source is not None and "# the line inside a mode" in source.code()[0]
