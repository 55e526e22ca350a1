"""PyTorch's engine: runs of it, and backwards of our own that answer in its place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge, register_multi_grad_hook
from torch.autograd.variable import Variable
from torch.utils._python_dispatch import TorchDispatchMode

from .compiled import keep_compiler_out
from .hooks import own
from .nodes import input_metadata_of_each
from .saved_variables import refuse_spent
from .thread_state import unobserved, without_torch_function

EngineRun = Callable[..., tuple[Tensor, ...]]
Redirect = Callable[[Sequence[Tensor | GradientEdge], Sequence[Tensor | None], bool, bool, Sequence[Any]], None]
"""Gets tensors, gradients, retain_graph, create_graph and inputs of a backward, as torch completed them."""

Surround = Callable[..., tuple[Tensor, ...]]
"""Gets what runs the backward, and then what a `Redirect` gets. It gives what that gives."""

_DOOR = "_engine_run_backward"


class _Passage(threading.local):
    """Whether the next backward of this thread goes past the redirect; and whether it may hold devices' threads."""

    granted = False
    has_devices = False


_passage = _Passage()
_redirected = False


def redirect_backward(redirect: Redirect) -> Callable[[], None]:
    """From now on all backwards of the process call `redirect` in the engine's place. Returns what ends that.

    It stands in front of the engine, behind `torch.autograd.backward`: torch has then completed the arguments, tensor
    subclasses have had their say, and those who imported `backward` by name are redirected too. `torch.autograd.grad`
    is not.
    """
    global _redirected
    ended = False

    def run_redirected(outputs: Sequence[Tensor | GradientEdge], *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        if ended:  # others wrapped the engine meanwhile, and have this in their chain for good
            return layer.beneath(outputs, *args, **kwargs)
        if _passage.granted or not kwargs["accumulate_grad"]:
            _passage.granted = False
            return layer.beneath(outputs, *args, **kwargs)
        redirect(outputs, *args)
        return ()

    def end() -> None:
        nonlocal ended
        global _redirected
        ended = True
        _redirected = False
        layer.leave()

    layer = _Layer(run_redirected)
    try:
        layer.stand()
        _redirected = True
        return _despite_interrupts(end)
    except BaseException:  # Ctrl-C: the caller gets nothing by which to end it
        end()
        raise


def is_redirected() -> bool:
    """Whether `redirect_backward` is in force."""
    return _redirected


def surround_backward(surround: Surround) -> Callable[[], None]:
    """From now on all backwards of the process are run by `surround`, on the engine or on what redirects them.

    It stands where `redirect_backward` does. Returns what ends that.
    """
    ended = False

    def run_surrounded(outputs: Sequence[Tensor | GradientEdge], *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        if ended or not kwargs["accumulate_grad"]:
            return layer.beneath(outputs, *args, **kwargs)
        return surround(lambda: layer.beneath(outputs, *args, **kwargs), outputs, *args)

    def end() -> None:
        nonlocal ended
        ended = True
        layer.leave()

    layer = _Layer(run_surrounded)
    try:
        layer.stand()
        return _despite_interrupts(end)
    except BaseException:  # Ctrl-C, as in `redirect_backward`
        end()
        raise


def _despite_interrupts(end: Callable[[], None]) -> Callable[[], None]:
    """The same function, which begins again if an interrupt (Ctrl-C) comes while it runs."""

    def end_twice_if_interrupted() -> None:
        try:
            end()
        except BaseException:
            end()
            raise

    return end_twice_if_interrupted


class _Layer:
    """A function that replaces the call of the engine between `stand` and `leave`.

    Attributes:
        run: the function that is called in place of `beneath`.
        beneath: the engine, or the function that had replaced it before.
    """

    # torch.compiler's own replacement takes the engine from the one module and puts it back into both.
    _doors = torch.autograd, torch.autograd.graph
    _standing: ClassVar[list[_Layer]] = []

    def __init__(self, run: EngineRun) -> None:
        self.run = run
        self.beneath: EngineRun = getattr(torch.autograd, _DOOR)
        keep_compiler_out(run)

    def stand(self) -> None:
        self.beneath = getattr(torch.autograd, _DOOR)
        for module in self._doors:
            setattr(module, _DOOR, self.run)
        self._standing.append(self)

    def leave(self) -> None:
        """What was there stands there again: at the door, or beneath the layer that came after this one. Where somebody
        else has wrapped this one it stays in that chain."""
        if self in self._standing:
            self._standing.remove(self)
        for module in self._doors:
            if getattr(module, _DOOR) is self.run:
                setattr(module, _DOOR, self.beneath)
        for each in self._standing:
            if each.beneath is self.run:
                each.beneath = self.beneath


def torch_backward(*args: Any, **kwargs: Any) -> None:
    """`torch.autograd.backward` past `redirect_backward`. What runs inside of it is redirected again."""
    _passage.granted = _redirected
    try:
        torch.autograd.backward(*args, **kwargs)
    finally:
        _passage.granted = False


T = TypeVar("T")


def run_engine(
    roots: Sequence[GradientEdge],
    gradients: Sequence[Tensor],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[GradientEdge] = (),
    accumulate: bool = False,
) -> tuple[Tensor | None, ...]:
    """One run of the engine (`THPEngine_run_backward`). With `inputs` it gives their gradients, or accumulates them."""
    with _beside_held_devices():
        return calling_engine(roots, gradients, keep_graph, create_graph, inputs, accumulate)


def calling_engine(
    roots: Sequence[GradientEdge],
    gradients: Sequence[Tensor],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[GradientEdge],
    accumulate: bool,
) -> tuple[Tensor | None, ...]:
    """What Python functions run in such a run of the engine, hooks alone, see this one as their caller."""
    found: tuple[Tensor | None, ...] | None = _real_engine.run_backward(
        tuple(roots), tuple(gradients), keep_graph, create_graph, tuple(inputs), True, accumulate
    )
    return found or ()


class _Retains(BaseException):
    """A gradient is retained."""


class _NoClones(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where a tensor would be copied, as the engine does for a gradient that is retained."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in InFloat64

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.clone.default:
            raise _Retains
        return operator(*args, **(kwargs or {}))


def retains_any(nodes: Sequence[Node]) -> bool:
    """Whether a tensor that one of these nodes made is told to retain its gradient (`Tensor.retain_grad`).

    torch lists no such tensors. Each node is shown zeros, as root and wanted input of a run of the engine of its own,
    which executes nothing: with several at once those between two of them would run. It would call hooks of tensors,
    too: only for where there are none.
    """
    try:
        with _NoClones():  # type: ignore[no-untyped-call]
            for node, metas in zip(nodes, input_metadata_of_each(nodes), strict=True):
                edges, zeros = [], []
                for number, (shape, dtype, device, _) in enumerate(metas):
                    if shape is not None:
                        edges.append(GradientEdge(node, number))
                        zeros.append(torch.zeros((), dtype=dtype, device=device).expand(shape))
                if edges:
                    run_engine(edges, zeros, True, False, edges)
    except _Retains:
        return True
    return False


class StandIn(Protocol):
    """A backward of our own, which answers in the engine's place what user code asks about the one under way."""

    number: int | None
    first_number: int | None  # before it was said to be another backward
    node: Node | None
    limited: bool  # by inputs=
    accumulated_inside: bool  # user code ran a backward inside, which added to .grad

    def body(self) -> None: ...

    def will_execute(self, node: Node) -> bool: ...

    def execution_order(self) -> list[Node]: ...

    def queue_callback(self, callback: Callable[[], None]) -> None: ...


class _Thread(threading.local):
    """Of one thread: who answers, innermost last, None where a real backward runs inside; and a leaf to start from."""

    def __init__(self) -> None:
        self.answering: list[StandIn | None] = []
        with unobserved(), torch.enable_grad():
            self.leaf = torch.zeros((), requires_grad=True, device="cpu")
            self.edge = get_gradient_edge(self.leaf)
            self.one = torch.ones((), device="cpu")
        own(self.edge.node.register_prehook(_run_body))

    def stand_in(self) -> StandIn | None:
        return self.answering[-1] if self.answering else None


def _run_body(gradients: tuple[Tensor | None, ...]) -> tuple[None]:
    stand_in = _thread.stand_in()
    if stand_in is not None:
        stand_in.body()
    return (None,)


class _Start(threading.local):
    """Of one thread: a leaf to be given as one more root, which the engine runs first of all."""

    def __init__(self) -> None:
        self.begin: Callable[[list[Node]], object] | None = None
        with unobserved(), torch.enable_grad():
            self.edge = get_gradient_edge(torch.zeros((), requires_grad=True, device="cpu"))
            self.one = torch.ones((), device="cpu")
        own(self.edge.node.register_prehook(_first_of_all(vars(self))))


def _first_of_all(start: dict[str, Any]) -> Callable[[tuple[Tensor | None, ...]], tuple[None]]:
    """The hook of a start. A backward deep inside of others runs in a thread of the engine's, not in the start's."""

    def begin(gradients: tuple[Tensor | None, ...]) -> tuple[None]:
        begins, start["begin"] = start["begin"], None
        if begins is not None:
            with torch.autograd.set_multithreading_enabled(False):  # torch lists the order of one queue alone
                _, *nodes = _real_execution_order()
            begins(nodes)
        return (None,)

    return begin


def backward_with_start(
    begin: Callable[[list[Node]], object],
    tensors: Sequence[Tensor | GradientEdge],
    gradients: Sequence[Tensor | None],
    keep_graph: bool | None,
    create_graph: bool,
) -> None:
    """`torch_backward`, in which `begin` is called before anything runs, the hooks of the roots included.

    What it raises ends the backward as if it had not begun.

    Args:
        begin: gets all nodes that will run, in the engine's own order (`_current_graph_task_execution_order`).
        tensors: the roots, none of them a leaf: leaves run in any order.
        gradients: one for each; None: ones.
        keep_graph, create_graph: as in `torch.autograd.backward`.
    """
    start = _start
    before, start.begin = start.begin, begin
    try:
        torch_backward([*tensors, start.edge], [*gradients, start.one], keep_graph, create_graph)
    finally:
        start.begin = before


def is_own(hooks: Mapping[int, Any]) -> bool:
    """Whether all of these are ours: of a leaf from which we start the engine, or of a node that is spent."""
    # Codes are equal once the module has been reloaded, too.
    codes = _run_body.__code__, refuse_spent.__code__, _first_of_all({}).__code__
    return all(getattr(hook, "__code__", None) in codes for hook in hooks.values())


_real_graph_task_id = torch._C._current_graph_task_id
_real_current_node = torch._C._current_autograd_node
_real_will_execute = torch._C._will_engine_execute_node
_real_execution_order = torch._C._current_graph_task_execution_order  # type: ignore[attr-defined]
_real_engine = Variable._execution_engine


def _graph_task_id() -> int:
    stand_in = _thread.stand_in()
    if stand_in is None or stand_in.number is None:
        return _real_graph_task_id()
    counts = sys._getframe(1).f_globals.get("__name__") == _MULTI_GRAD_HOOKS
    return stand_in.first_number if counts and stand_in.first_number is not None else stand_in.number


_MULTI_GRAD_HOOKS = register_multi_grad_hook.__module__
"""Hooks on several tensors count within one backward, also where checkpoints are told that it is another one."""


def current_node() -> Node | None:
    """The node whose backward this thread runs, in a backward of PyTorch's engine or of our own."""
    stand_in = _thread.stand_in()
    return _real_current_node() if stand_in is None else stand_in.node


def _will_execute(node: Node) -> bool:
    stand_in = _thread.stand_in()
    return _real_will_execute(node) if stand_in is None else stand_in.will_execute(node)


def _execution_order() -> list[Node]:
    stand_in = _thread.stand_in()
    return _real_execution_order() if stand_in is None else stand_in.execution_order()


class _Engine(type(_real_engine)):  # type: ignore[misc]
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        depth = len(_thread.answering)
        stand_in = _thread.stand_in()
        if stand_in is not None and bool(args[6] if len(args) > 6 else kwargs.get("accumulate_grad")):
            stand_in.accumulated_inside = True
        try:
            _thread.answering.append(None)
            with _beside_held_devices():
                return _real_engine.run_backward(*args, **kwargs)
        finally:
            del _thread.answering[depth:]

    def is_checkpoint_valid(self) -> bool:
        stand_in = _thread.stand_in()
        return bool(_real_engine.is_checkpoint_valid()) and (stand_in is None or not stand_in.limited)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        stand_in = _thread.stand_in()
        if stand_in is None:
            _real_engine.queue_callback(callback)
        else:
            stand_in.queue_callback(callback)


_engine = _Engine()


def run_as_backward(stand_in: StandIn, keep_graph: bool, create_graph: bool) -> None:
    """Calls `stand_in.body` inside a run of the engine, from the pre-hook of a leaf of this thread.

    Meanwhile the stand-in answers in this thread: which graph task runs, which node, will that node run, and takes
    callbacks for the end of the backward. `register_multi_grad_hook`, checkpoints and FSDP ask for these. The functions
    that they ask are replaced as long as any thread has a stand-in; where none answers, torch's own do. So it does no
    harm if an interrupt leaves them in place.
    """
    depth = len(_thread.answering)
    try:
        try:
            with _standing_lock:
                _standing.append(stand_in)
                _answer(_graph_task_id, current_node, _will_execute, _execution_order, _engine)
            _thread.answering.append(stand_in)
            with _beside_held_devices():
                calling_engine([_thread.edge], [_thread.one], keep_graph, create_graph, (), accumulate=True)
        finally:
            _stands_no_more(stand_in, depth)
    finally:
        _stands_no_more(stand_in, depth)  # again: an interrupt may come at any line, and it holds the graph


def _stands_no_more(stand_in: StandIn, depth: int) -> None:
    del _thread.answering[depth:]
    with _standing_lock:
        if stand_in in _standing:
            _standing.remove(stand_in)
        if not _standing:
            _let_torch_answer()


_standing: list[StandIn] = []
_standing_lock = threading.Lock()
_holding: set[int] = set()
"""The thread whose backward holds the threads of devices still, if any does."""


def _let_torch_answer() -> None:
    engine = _engine if _holding else _real_engine
    _answer(_real_graph_task_id, _real_current_node, _real_will_execute, _real_execution_order, engine)


def devices_are_held() -> bool:
    """Whether a backward may hold the threads of devices still."""
    return bool(_holding)


@contextmanager
def holding_devices() -> Iterator[None]:
    """While it is open, the next backward of this thread may hold the threads of devices still, in its hooks.

    They are the process's own: another backward would wait for them. So every other one, those that user code begins
    inside of this one among them, runs in the thread that calls it, with one queue for all devices.

    Known limitations. A backward that was under way on these devices before waits until they go on; so does one that
    C++ begins without Python.

    Raises:
        RuntimeError: another thread's may do so already.
    """
    with _standing_lock:
        if _holding:
            raise RuntimeError("another session steps the devices' own queues; close it first")
        _holding.add(threading.get_ident())
        if not _standing:
            _let_torch_answer()
    _passage.has_devices = True
    try:
        yield
    finally:
        _passage.has_devices = False
        with _standing_lock:
            _holding.clear()
            if not _standing:
                _let_torch_answer()


def _beside_held_devices() -> AbstractContextManager[object]:
    """Around a run of the engine."""
    if not _holding:
        return nullcontext()
    has_devices, _passage.has_devices = _passage.has_devices, False
    return nullcontext() if has_devices else torch.autograd.set_multithreading_enabled(False)


def _answer(number: Any, node: Any, will_execute: Any, order: Any, engine: Any) -> None:
    """Has torch's questions answered by these."""
    torch._C._current_graph_task_id = number
    torch._C._current_autograd_node = node
    torch._C._will_engine_execute_node = will_execute
    torch._C._current_graph_task_execution_order = order  # type: ignore[attr-defined]
    Variable._execution_engine = engine


def real_graph_task_id() -> int:
    """Which run of the engine this is, whatever a stand-in says. -1 outside."""
    return _real_graph_task_id()


def queue_engine_callback(callback: Callable[[], None]) -> None:
    """Lets the engine call this at the end of the run which is under way."""
    _real_engine.queue_callback(callback)


def first_gradients(
    outputs: Sequence[Tensor | GradientEdge], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The gradients with which `torch.autograd.backward` would start: checked, and ones for scalars without one."""
    with without_torch_function():  # in torch's own backward the loss's .backward has left the modes
        return torch.autograd._make_grads(outputs, gradients, is_grads_batched=False)  # type: ignore[arg-type]


def gradient_dtypes(leaves: Sequence[Node], usual: Sequence[torch.dtype]) -> dict[int, torch.dtype | None]:
    """To which dtypes the user wants gradients cast (`Tensor.grad_dtype`): by place among these AccumulateGrad, where
    it is neither the usual one nor the leaf's; None where they are not to be cast."""
    if not hasattr(Tensor, "grad_dtype"):
        return {}
    nodes: Sequence[Any] = leaves
    unusual = [
        (place, node.variable)
        for place, (node, dtype) in enumerate(zip(nodes, usual, strict=True))
        if node.variable.grad_dtype is not dtype
    ]
    return {place: leaf.grad_dtype for place, leaf in unusual if leaf.grad_dtype is not leaf.dtype}


def in_backward() -> bool:
    """Whether this thread runs a backward of PyTorch's engine."""
    return torch._C._current_graph_task_id() != -1


_thread = _Thread()
_start = _Start()
