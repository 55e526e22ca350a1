"""Programs that log what a backward does, run by PyTorch and by both engines: the logs must be the same."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import Node, register_multi_grad_hook, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.warm_python import WarmPython

from ..comparing import ENGINES, compiled_loss

Backward = Callable[..., object]
Log = list[Any]
Program = Callable[[Backward, Log], object]

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def outcome(program: Program, backward: Backward) -> Log:
    """Return the program's log, its result or error, and the warnings."""
    log: Log = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        try:
            log.append(program(backward, log))
        except Exception as error:
            log.append((type(error), str(error)))
    log += [
        line for each in warned if "reference cycle" not in (line := str(each.message).splitlines()[0])
    ]  # told once
    return [each.tolist() if isinstance(each, Tensor) else each for each in log]


class Pair(torch.autograd.Function):
    """Two outputs; says what its backward got."""

    @staticmethod
    def forward(ctx, x, log, materialize):
        ctx.set_materialize_grads(materialize)
        ctx.save_for_backward(x)
        ctx.log = log
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        ctx.log.append([None if each is None else each.tolist() for each in (first, second)])
        (x,) = ctx.saved_tensors
        return sum(each * factor for each, factor in ((first, 2), (second, 3)) if each is not None) + x * 0, None, None


def leaf(*values: float) -> Tensor:
    return torch.tensor(values or (1.0, 2.0), requires_grad=True)


@program
def every_kind_of_hook_in_its_order(backward: Backward, log: Log) -> object:
    x = leaf()
    y = x.exp()
    z = y * x

    def noted(name: str) -> Callable[..., None]:
        return lambda *gradients: log.append((name, str(gradients)))

    y.retain_grad()
    for name, tensor in (("x", x), ("y", y), ("z", z)):
        tensor.register_hook(noted(f"tensor {name}"))
        node = tensor.grad_fn or z.grad_fn.next_functions[1][0]
        node.register_hook(noted(f"post {name}"))
        node.register_prehook(noted(f"pre {name}"))
    x.register_post_accumulate_grad_hook(lambda leaf: log.append(("accumulated", leaf.grad.tolist())))
    y.register_hook(lambda gradient: gradient * 2)
    loss = z.sum()
    del z
    backward(loss)
    return [x.grad.tolist(), y.grad.tolist()]


@program
def hooks_of_modules(backward: Backward, log: Log) -> object:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    for name, module in model.named_modules():
        module.register_full_backward_hook(
            lambda module, given, taken, name=name: log.append((name, str(given), str(taken)))
        )
        module.register_full_backward_pre_hook(lambda module, taken, name=name: log.append((name, "pre", str(taken))))
    backward(model(torch.ones(4, 2, requires_grad=True)).sum())
    return [parameter.grad.tolist() for parameter in model.parameters()]


@program
def hooks_on_several_tensors(backward: Backward, log: Log) -> object:
    x, unused = leaf(), leaf()
    a, b, c = x.exp(), x.sin(), x.cos()
    handles = [
        register_multi_grad_hook((a, b, x, unused), lambda gradients: log.append(str(gradients))),
        register_multi_grad_hook((a, c), lambda gradient: log.append(str(gradient)), mode="any"),
    ]
    backward((a * b).sum())
    backward((x.exp() * 2).sum())
    for handle in handles:  # torch never frees them
        handle.remove()
    return x.grad


@program
def callbacks_at_the_end(backward: Backward, log: Log) -> object:
    x = leaf()
    y = x.exp()

    def last() -> None:
        log.append("last callback")

    def callback() -> None:
        log.append(("callback", x.grad.tolist()))
        Variable._execution_engine.queue_callback(last)

    y.register_hook(lambda gradient: (log.append("hook"), Variable._execution_engine.queue_callback(callback))[0])
    x.register_post_accumulate_grad_hook(lambda leaf: log.append("accumulated"))
    return backward((y * 2).sum())


@program
def one_backward_has_one_number(backward: Backward, log: Log) -> object:
    x = leaf()
    y = x.exp()
    numbers = set()
    for tensor in (x, y):
        tensor.register_hook(lambda gradient: numbers.add(torch._C._current_graph_task_id()))
    y.grad_fn.register_prehook(lambda gradients: numbers.add(torch._C._current_graph_task_id()))
    backward(y.sum())
    return len(numbers), torch._C._current_graph_task_id()


@program
def a_backward_inside_a_hook(backward: Backward, log: Log) -> object:
    x = leaf()
    y = x.exp()

    def inner(gradient: Tensor) -> None:
        outer = torch._C._current_graph_task_id()
        other = leaf()
        other.register_hook(lambda gradient: log.append(torch._C._current_graph_task_id() != outer))
        with torch.enable_grad():
            (other * x).sum().backward()
        log.append(torch._C._current_graph_task_id() == outer)

    y.register_hook(inner)
    backward(y.sum())
    return x.grad


@program
def functions_with_missing_gradients(backward: Backward, log: Log) -> object:
    x = leaf()
    for materialize in (True, False):
        for used in ([0], [1], [0, 1]):
            outputs = Pair.apply(x * 1, log, materialize)
            outputs[0].grad_fn.register_hook(lambda given, taken: log.append((str(given), str(taken))))
            backward(sum(outputs[each].sum() for each in used))
    return x.grad


@program
def a_function_that_gets_no_gradient_at_all(backward: Backward, log: Log) -> object:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return None

    x = leaf()
    for materialize in (True, False):
        first, second = Pair.apply(x * 1, log, materialize)
        backward(Nothing.apply(first + second).sum())
    return x.grad


@program
def a_second_backward(backward: Backward, log: Log) -> object:
    x = leaf()
    loss = (x.exp() * x).sum()
    backward(loss)
    return backward(loss)


@program
def a_second_backward_of_a_function(backward: Backward, log: Log) -> object:
    first, second = Pair.apply(leaf(), log, True)
    loss = (first + second).sum()
    backward(loss)
    return backward(loss)


@program
def a_retained_graph(backward: Backward, log: Log) -> object:
    x = leaf()
    loss = (x.exp() * x).sum()
    backward(loss, retain_graph=True)
    backward(loss)
    return x.grad


@program
def saved_tensors_are_freed_task_by_task(backward: Backward, log: Log) -> object:
    x = leaf()
    with torch.no_grad():
        kept = [torch.ones(2) for _ in range(4)]
    y = x
    for tensor in kept:
        y = y * tensor
    alive = [weakref.ref(tensor) for tensor in kept]
    kept.clear()
    del tensor
    y = y.clone()
    node: Node | None = y.grad_fn
    while node is not None and "Accumulate" not in node.name():
        node.register_prehook(lambda gradients: log.append([each() is not None for each in alive]))
        node = node.next_functions[0][0]
    loss = y.sum()
    backward(loss)
    return [each() is not None for each in alive], loss.grad_fn is not None


@program
def a_graph_of_the_backward(backward: Backward, log: Log) -> object:
    x = leaf()
    backward((x**3 * Pair.apply(x, log, True)[0]).sum(), create_graph=True)
    first = x.grad
    (second,) = torch.autograd.grad(first.sum(), x)
    x.grad = None
    return first.tolist(), second.tolist()


@program
def a_penalty_on_the_gradient(backward: Backward, log: Log) -> object:
    model = nn.Sequential(nn.Linear(2, 4), nn.Softplus(), nn.Linear(4, 1))
    x = leaf().reshape(1, 2)
    x.retain_grad()
    backward(model(x).sum(), create_graph=True)
    backward((x.grad**2).sum())
    gradients = [parameter.grad.tolist() for parameter in model.parameters()]
    model.zero_grad()
    return gradients


@program
def only_some_inputs(backward: Backward, log: Log) -> object:
    x, y = leaf(), leaf()
    a, b = x.exp(), y.sin()
    for name, tensor in (("a", a), ("b", b), ("x", x), ("y", y)):
        tensor.register_hook(lambda gradient, name=name: log.append((name, gradient.tolist())))
    a.grad_fn.register_prehook(lambda gradients: log.append("pre a"))
    b.grad_fn.register_prehook(lambda gradients: log.append("pre b"))
    loss = (a * b).sum()
    backward(loss, inputs=[x, b], retain_graph=True)
    log.append([None if each.grad is None else each.grad.tolist() for each in (x, y)])
    backward(loss, inputs=y)
    return y.grad


@program
def hooks_of_roots_from_which_no_input_is_reached(backward, log):
    other = leaf()
    for make in (lambda x: x.exp().sum(), lambda x: x):
        for count in (1, 2):
            x = torch.ones((), requires_grad=True)
            root = make(x)
            root.register_hook(lambda gradient: log.append(gradient.tolist()))
            root.retain_grad()
            if root.grad_fn is not None:
                root.grad_fn.register_prehook(lambda gradients: log.append("not this one"))
            backward([root] * count, inputs=[other])
            log.append((x.grad, root.grad))


@program
def inputs_that_are_not_there(backward: Backward, log: Log) -> object:
    x, other = leaf(), leaf()
    backward(x.sum(), inputs=[other])
    return x.grad, other.grad


@program
def no_inputs(backward: Backward, log: Log) -> object:
    return backward(leaf().sum(), inputs=[])


@program
def an_input_without_gradient(backward: Backward, log: Log) -> object:
    return backward(leaf().sum(), inputs=[torch.ones(2)])


@program
def a_reentrant_checkpoint_with_inputs(backward: Backward, log: Log) -> object:
    x = leaf()
    return backward(checkpoint(torch.exp, x, use_reentrant=True).sum(), inputs=[x])


@program
def checkpoints_recompute_once(backward: Backward, log: Log) -> object:
    x = leaf()

    def region(x: Tensor) -> Tensor:
        log.append("recomputed")
        return x.exp().sin().cos() * x

    for reentrant in (True, False):
        y = checkpoint(region, x * 1, use_reentrant=reentrant)
        backward((checkpoint(region, y, use_reentrant=reentrant) * y).sum())
    return x.grad


@program
def a_checkpoint_with_an_unused_output(backward: Backward, log: Log) -> object:
    x = leaf()
    for reentrant in (True, False):
        first, _ = checkpoint(lambda x: (x.exp(), x.sin()), x * 1, use_reentrant=reentrant)
        backward(first.sum())
    return x.grad


@program
def saved_tensors_hooks_unpack_once(backward: Backward, log: Log) -> object:
    x = leaf()
    packed = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor.detach())
        return len(packed) - 1

    with saved_tensors_hooks(pack, lambda number: (log.append(number), packed[number])[1]):
        loss = (x.exp() * x).sin().sum()
    backward(loss)
    return x.grad


@program
def nan_in_anomaly_mode(backward: Backward, log: Log) -> object:
    with torch.autograd.detect_anomaly():
        return backward((leaf(0.0, 1.0).sqrt() * 0).sum())


@program
def an_error_in_anomaly_mode(backward: Backward, log: Log) -> object:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("bad")

    with torch.autograd.detect_anomaly():
        return backward(Bad.apply(leaf()).sum())


@program
def compiled_regions(backward: Backward, log: Log) -> object:
    x = leaf(0.0, 1.0, 2.0)
    loss = compiled_loss(x)
    backward(loss)
    log.append(x.grad.tolist())
    return backward(loss)


@program
def the_first_gradient_of_a_leaf_is_not_copied(backward: Backward, log: Log) -> object:
    def stolen(keep: bool, post_hook: bool) -> bool:
        x, addresses, kept = torch.ones(64, requires_grad=True), [], []
        y = x.exp()

        def note(given: Any, taken: Any) -> None:
            addresses.append(given[0].data_ptr())
            kept.extend(given if keep else ())

        y.grad_fn.register_hook(note)
        if post_hook:
            y.grad_fn.next_functions[0][0].register_hook(lambda given, taken: None)
        backward(y.sum())
        return x.grad.data_ptr() == addresses[0]

    return [stolen(keep, post_hook) for keep in (False, True) for post_hook in (False, True)]


@program
def gradients_are_added_in_place_where_nobody_sees_it(backward: Backward, log: Log) -> object:
    def in_place(keep: bool) -> bool:
        x, addresses, kept, arrived = torch.ones(64, requires_grad=True), [], [], []
        y = x.exp()

        def note(given: Any, taken: Any) -> None:
            addresses.append(given[0].data_ptr())
            kept.extend(given if keep else ())

        products = [y * 2, y * 3, y * 4]
        for product in products:
            product.grad_fn.register_hook(note)
        y.grad_fn.register_prehook(lambda taken: arrived.append(taken[0].data_ptr()))
        backward(sum(products).sum())
        return arrived[0] in addresses

    return in_place(False), in_place(True)


@program
def a_leaf_shared_by_threads(backward: Backward, log: Log) -> object:
    x = leaf()
    layouts = []
    for shape in ((2, 3), (3, 2)):
        y = torch.ones(shape, requires_grad=True)
        weight = torch.ones(2, 3).t().contiguous().t() if shape == (2, 3) else torch.ones(3, 2)
        backward((y * weight).sum() + x.sum())
        layouts.append(y.grad.stride())
    return layouts


@program
def leaves_that_were_frozen_since_the_forward(backward: Backward, log: Log) -> object:
    x, y = leaf(), leaf()
    z = (x * y).exp()
    x.register_hook(lambda gradient: log.append("hook of the tensor"))
    x.register_post_accumulate_grad_hook(lambda tensor: log.append("hook of its .grad"))
    x.requires_grad_(False)
    backward(z.sum())
    return x.grad is None, y.grad.tolist()


@program
def several_roots(backward: Backward, log: Log) -> object:
    x = leaf()
    y = x.exp()
    z = y * 2
    backward([z, y, z.sum()], [torch.ones(2), torch.full((2,), 3.0), None])
    return x.grad


@program
def a_root_gradient_of_the_wrong_shape(backward: Backward, log: Log) -> object:
    return backward(leaf().exp(), torch.ones(3))


@program
def a_hook_that_raises(backward: Backward, log: Log) -> object:
    x, z = leaf(), leaf()
    y = x.exp()

    def bad(gradient: Tensor) -> None:
        raise ValueError("bad hook")

    y.register_hook(bad)
    try:
        backward(y.sum() + (z * 2).sum())
    finally:
        log.append([each.grad is None for each in (x, z)])


@program
def the_mode_that_the_tasks_see(backward: Backward, log: Log) -> object:
    x = leaf()
    y = x.exp()
    y.register_hook(lambda gradient: log.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        backward(y.sum(), retain_graph=True)
    backward(y.sum(), create_graph=True)
    x.grad = None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_logs_what_it_logs_under_pytorch(name: str, engine: str) -> None:
    expected = outcome(PROGRAMS[name], torch.autograd.backward)

    def run(*args: Any, **kwargs: Any) -> None:
        ts.backward(*args, **kwargs, engine=engine)

    assert outcome(PROGRAMS[name], run) == expected


def test_what_nodes_hide_is_freed_where_no_hooks_are_about(fresh_python: WarmPython) -> None:
    script = Path(__file__).with_name("hidden_saved.py")  # a separate process, since other tests leave hooks
    done = fresh_python.run(script)
    assert done.returncode == 0, done.stderr
