"""PyTorch's engine: running it, replacing it, and backwards of our own that answer in its place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from operator import attrgetter
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge, register_multi_grad_hook
from torch.autograd.variable import Variable

from .compiled import keep_compiler_out
from .hooks import own
from .nodes import input_metadata_of_each
from .saved_variables import refuse_spent
from .thread_state import DispatchMode, unobserved, without_torch_function

EngineRun = Callable[..., tuple[Tensor, ...]]
Redirect = Callable[
    [EngineRun, Sequence[Tensor | GradientEdge], Sequence[Tensor | None], bool, bool, Sequence[Any]], None
]
"""Called with the replaced function, and with tensors, gradients, retain_graph, create_graph and inputs of a backward,
as completed by torch. `run_completed` passes these to that function."""

Surround = Callable[..., tuple[Tensor, ...]]
"""Called with the function that runs the backward and the arguments of a `Redirect`. Returns the function's result."""

_DOOR = "_engine_run_backward"


class _Passage(threading.local):
    """Whether the next backward of this thread bypasses the redirect, and whether it may block the device threads."""

    granted = False
    has_devices = False


_passage = _Passage()
_redirected = False


def redirect_backward(redirect: Redirect) -> Callable[[], None]:
    """Call `redirect` instead of the engine in all backwards of the process. Return a function that ends this.

    The call of the engine inside `torch.autograd.backward` is replaced. At that point torch has completed the
    arguments, and tensor subclasses have had their turn; code that imported `backward` by name is also redirected.
    `torch.autograd.grad` is not.
    """
    global _redirected

    def run_redirected(outputs: Sequence[Tensor | GradientEdge], *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        if layer.ended:  # another wrapper of the engine may have kept this function and still call it
            return layer.beneath(outputs, *args, **kwargs)
        if _passage.granted or not kwargs["accumulate_grad"]:
            _passage.granted = False
            return layer.beneath(outputs, *args, **kwargs)
        redirect(layer.beneath, outputs, *args)
        return ()

    def end() -> None:
        global _redirected
        layer.ended = True  # before the next line, so that no backward is redirected in between
        _redirected = False
        layer.leave()

    layer = _Layer(run_redirected)
    try:
        layer.stand()
        _redirected = True
        return _despite_interrupts(end)
    except BaseException:  # Ctrl-C: the caller never receives `end`
        end()
        raise


def is_redirected() -> bool:
    """Return whether `redirect_backward` is active."""
    return _redirected


def surround_backward(
    surround: Surround, gradients_begin: Callable[[Sequence[Tensor | GradientEdge]], None] | None = None
) -> Callable[[], None]:
    """Run all backwards of the process through `surround`, on the engine or its redirect. Return a function to end it.

    The same call is replaced as in `redirect_backward`. `gradients_begin` is called with the outputs before each
    torch.autograd.grad, which is not surrounded.
    """

    def run_surrounded(outputs: Sequence[Tensor | GradientEdge], *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        if layer.ended or not kwargs["accumulate_grad"]:
            if gradients_begin is not None and not layer.ended:
                gradients_begin(outputs)
            return layer.beneath(outputs, *args, **kwargs)
        return surround(lambda: layer.beneath(outputs, *args, **kwargs), outputs, *args)

    layer = _Layer(run_surrounded)
    try:
        layer.stand()
        return _despite_interrupts(layer.leave)
    except BaseException:  # Ctrl-C, as in `redirect_backward`
        layer.leave()
        raise


def _despite_interrupts(end: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `end`, and once more if Ctrl-C interrupts it."""

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
        run: the function called instead of `beneath`.
        beneath: the engine, or an earlier replacement of it.
        ended: whether it has left.
    """

    # Both modules: torch.compile's own replacement reads the engine from one, and restores it in both.
    _doors = torch.autograd, torch.autograd.graph
    _standing: ClassVar[list[_Layer]] = []

    def __init__(self, run: EngineRun) -> None:
        self.run = run
        self.ended = False
        self.beneath: EngineRun = getattr(torch.autograd, _DOOR)
        keep_compiler_out(run)

    def stand(self) -> None:
        self.beneath = getattr(torch.autograd, _DOOR)
        for module in self._doors:
            setattr(module, _DOOR, self.run)
        self._standing.append(self)

    def leave(self) -> None:
        """Restore the function beneath, in the modules or in the layer on top of this one.

        If someone else has wrapped this layer, it stays in that chain and only passes calls on.
        """
        self.ended = True
        if self in self._standing:
            self._standing.remove(self)
        for module in self._doors:
            if getattr(module, _DOOR) is self.run:
                setattr(module, _DOOR, self.beneath)
        for each in self._standing:
            if each.beneath is self.run:
                each.beneath = self.beneath


def torch_backward(*args: Any, **kwargs: Any) -> None:
    """Run `torch.autograd.backward` without the redirect. Backwards nested inside it are redirected again."""
    _passage.granted = _redirected
    try:
        torch.autograd.backward(*args, **kwargs)
    finally:
        _passage.granted = False


def run_completed(
    run: EngineRun,
    tensors: Sequence[Tensor | GradientEdge],
    gradients: Sequence[Tensor | None],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[Any] = (),
) -> None:
    """Run a backward with arguments that torch has checked and completed, as a `Redirect` receives them."""
    run(tensors, gradients, keep_graph, create_graph, inputs, allow_unreachable=True, accumulate_grad=True)


T = TypeVar("T")


def run_engine(
    roots: Sequence[GradientEdge],
    gradients: Sequence[Tensor],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[GradientEdge] = (),
    accumulate: bool = False,
) -> tuple[Tensor | None, ...]:
    """Run the engine (`THPEngine_run_backward`). With `inputs`, return their gradients, or accumulate them."""
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
    """Run the engine. Hooks see the frame of this function as their caller."""
    found: tuple[Tensor | None, ...] | None = _real_engine.run_backward(
        tuple(roots), tuple(gradients), keep_graph, create_graph, tuple(inputs), True, accumulate
    )
    return found or ()


class _Retains(BaseException):
    """Raised when the engine copies a retained gradient."""


class _NoClones(DispatchMode):  # type: ignore[no-untyped-call]
    """Raises when a tensor is cloned, as the engine does for a retained gradient."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.clone.default:
            raise _Retains
        return operator(*args, **(kwargs or {}))


def retains_any(nodes: Sequence[Node]) -> bool:
    """Return whether a tensor created by one of these nodes retains its gradient (`Tensor.retain_grad`).

    torch does not list these tensors. For each node, the engine runs separately with the node as both root and input,
    and zeros as gradients, so that no node is executed. With several at once, nodes between two of them would run.
    Tensor hooks would be called, so this is only for nodes without any.
    """
    try:
        with _NoClones():
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
    """A backward of our own that answers user code's queries about the running backward, in place of the engine."""

    number: int | None
    first_number: int | None  # the number before it was changed to make checkpoints recompute
    node: Node | None
    limited: bool  # by inputs=
    accumulated_inside: bool  # user code ran a backward inside, which added to .grad

    def body(self) -> None: ...

    def will_execute(self, node: Node) -> bool: ...

    def execution_order(self) -> list[Node]: ...

    def queue_callback(self, callback: Callable[[], None]) -> None: ...


class _Thread(threading.local):
    """A thread's stand-ins, innermost last (None for a nested backward of the engine), and a leaf to start from."""

    def __init__(self) -> None:
        self.answering: list[StandIn | None] = []
        self._start: tuple[GradientEdge, Tensor] | None = None
        with suppress(AttributeError):  # inside `__torch_dispatch__` leaves have no nodes; `start` is called again then
            self.start()

    def start(self) -> tuple[GradientEdge, Tensor]:
        """Return the root of this thread's backwards and its gradient.

        They are created as early as possible, before a backward whose memory is measured.
        """
        if self._start is None:
            with unobserved(), torch.enable_grad():
                edge = get_gradient_edge(torch.zeros((), requires_grad=True, device="cpu"))
                self._start = edge, torch.ones((), device="cpu")
            own(edge.node.register_prehook(_run_body))
        return self._start

    def stand_in(self) -> StandIn | None:
        return self.answering[-1] if self.answering else None


def _run_body(gradients: tuple[Tensor | None, ...]) -> tuple[None]:
    stand_in = _thread.stand_in()
    if stand_in is not None:
        stand_in.body()
    return (None,)


class _Start(threading.local):
    """A thread's leaf that is passed as an extra root, because the engine runs leaves first."""

    def __init__(self) -> None:
        self.begin: Callable[[list[Node]], object] | None = None
        with unobserved(), torch.enable_grad():
            self.edge = get_gradient_edge(torch.zeros((), requires_grad=True, device="cpu"))
            self.one = torch.ones((), device="cpu")
        own(self.edge.node.register_prehook(_first_of_all(vars(self))))


def _first_of_all(start: dict[str, Any]) -> Callable[[tuple[Tensor | None, ...]], tuple[None]]:
    """Return the hook of a start leaf. It binds the state, since a deeply nested backward runs in another thread."""

    def begin(gradients: tuple[Tensor | None, ...]) -> tuple[None]:
        begins, start["begin"] = start["begin"], None
        if begins is not None:
            with torch.autograd.set_multithreading_enabled(False):  # torch only lists the order of a single queue
                _, *nodes = _real_execution_order()
            begins(nodes)
        return (None,)

    return begin


def backward_with_start(begin: Callable[[list[Node]], object], run: Callable[[GradientEdge, Tensor], object]) -> None:
    """Run a backward, and call `begin` before anything else in it runs, including the hooks of the roots.

    An error raised by `begin` ends the backward before it has any effect.

    Args:
        begin: called with all nodes that will run, in the engine's order (`_current_graph_task_execution_order`).
        run: runs the backward, with an additional root and its gradient, which it is called with. No other root may be
            a leaf, since the engine orders leaves arbitrarily.
    """
    start = _start
    before, start.begin = start.begin, begin
    try:
        run(start.edge, start.one)
    finally:
        start.begin = before


def is_own(hooks: Mapping[int, Any]) -> bool:
    """Return whether all of these hooks are ours: those of a start leaf, or of a node that has run."""
    # Compare code objects, which stay equal when the module is reloaded.
    codes = _run_body.__code__, refuse_spent.__code__, _first_of_all({}).__code__
    return all(getattr(hook, "__code__", None) in codes for hook in hooks.values())


real_graph_task_id: Callable[[], int] = torch._C._current_graph_task_id
"""Return the id of the engine's graph task, ignoring stand-ins; -1 outside of a backward."""
_real_current_node = torch._C._current_autograd_node
_real_will_execute = torch._C._will_engine_execute_node
_real_execution_order = torch._C._current_graph_task_execution_order  # type: ignore[attr-defined]
_real_engine = Variable._execution_engine
queue_engine_callback: Callable[[Callable[[], None]], None] = _real_engine.queue_callback
"""Queue a callback for the end of the engine's current run."""


def _graph_task_id() -> int:
    stand_in = _thread.stand_in()
    if stand_in is None or stand_in.number is None:
        return real_graph_task_id()
    counts = sys._getframe(1).f_globals.get("__name__") == _MULTI_GRAD_HOOKS
    return stand_in.first_number if counts and stand_in.first_number is not None else stand_in.number


_MULTI_GRAD_HOOKS = register_multi_grad_hook.__module__
"""The module of `register_multi_grad_hook`, whose hooks count per backward. They get the first number, even if
checkpoints were given a new one."""


def current_node() -> Node | None:
    """Return the node that this thread is running, in a backward of PyTorch's engine or of our own."""
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
    """Call `stand_in.body` inside a run of the engine, from the pre-hook of a leaf of this thread.

    Meanwhile the stand-in answers this thread's queries: the current graph task and node, and whether a node will run.
    It also accepts callbacks for the end of the backward. `register_multi_grad_hook`, checkpoints and FSDP use these.
    The functions they call are replaced while any thread has a stand-in, and fall back to torch's own if this thread
    has none, so it is harmless if an interrupt leaves them in place.
    """
    depth = len(_thread.answering)
    try:
        try:
            with _standing_lock:
                _standing.append(stand_in)
                _answer(_graph_task_id, current_node, _will_execute, _execution_order, _engine)
            _thread.answering.append(stand_in)
            edge, one = _thread.start()
            with _beside_held_devices():
                calling_engine([edge], [one], keep_graph, create_graph, (), accumulate=True)
        finally:
            _remove_stand_in(stand_in, depth)
    finally:
        # Again: an interrupt may come at any line, and a leftover stand-in would keep the graph alive.
        _remove_stand_in(stand_in, depth)


def _remove_stand_in(stand_in: StandIn, depth: int) -> None:
    del _thread.answering[depth:]
    with _standing_lock:
        if stand_in in _standing:
            _standing.remove(stand_in)
        if not _standing:
            _restore_torchs_answers()


_standing: list[StandIn] = []
_standing_lock = threading.Lock()
_holding: set[int] = set()
"""The thread whose backward blocks the device threads, if there is one."""


def _restore_torchs_answers() -> None:
    engine = _engine if _holding else _real_engine
    _answer(real_graph_task_id, _real_current_node, _real_will_execute, _real_execution_order, engine)


def devices_are_held() -> bool:
    """Return whether a backward may be blocking the device threads."""
    return bool(_holding)


@contextmanager
def holding_devices() -> Iterator[None]:
    """Allow the next backward of this thread to block the device threads in its hooks.

    The whole process shares the device threads, so another backward would wait for them. Every other backward,
    including those nested in this one, therefore runs in its calling thread, with one queue for all devices.

    Known limitations: a backward that was already running on these devices waits until they continue, and so does one
    started by C++ without Python.

    Raises:
        RuntimeError: A backward of another thread may already block them.
    """
    with _standing_lock:
        if _holding:
            raise RuntimeError("another session steps the devices' own queues; close it first")
        _holding.add(threading.get_ident())
        if not _standing:
            _restore_torchs_answers()
    _passage.has_devices = True
    try:
        yield
    finally:
        _passage.has_devices = False
        with _standing_lock:
            _holding.clear()
            if not _standing:
                _restore_torchs_answers()


def _beside_held_devices() -> AbstractContextManager[object]:
    """Return a context for a run of the engine that avoids device threads while another backward blocks them."""
    if not _holding:
        return nullcontext()
    has_devices, _passage.has_devices = _passage.has_devices, False
    return nullcontext() if has_devices else torch.autograd.set_multithreading_enabled(False)


def _answer(number: Any, node: Any, will_execute: Any, order: Any, engine: Any) -> None:
    """Replace the functions with which torch queries the running backward."""
    torch._C._current_graph_task_id = number
    torch._C._current_autograd_node = node
    torch._C._will_engine_execute_node = will_execute
    torch._C._current_graph_task_execution_order = order  # type: ignore[attr-defined]
    Variable._execution_engine = engine


def first_gradients(
    outputs: Sequence[Tensor | GradientEdge], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return the initial gradients of `torch.autograd.backward`: checked, with ones for scalars without a gradient."""
    with without_torch_function():  # as in `Tensor.backward`, which leaves the modes first
        return torch.autograd._make_grads(outputs, gradients, is_grads_batched=False)  # type: ignore[arg-type]


def gradient_dtypes(leaves: Sequence[Any], usual: list[torch.dtype]) -> dict[int, torch.dtype | None]:
    """Return the dtypes to which gradients are cast (`Tensor.grad_dtype`), by index in `leaves`, AccumulateGrad nodes.

    Leaves whose `grad_dtype` is the usual one or their own dtype are omitted. None means no cast.
    """
    if not hasattr(Tensor, "grad_dtype"):
        return {}
    found: list[torch.dtype | None] = list(map(_gradient_dtype, leaves))
    if found == usual:
        return {}
    return {
        place: dtype
        for place, (node, dtype, own) in enumerate(zip(leaves, found, usual, strict=True))
        if dtype is not own and dtype is not node.variable.dtype
    }


_gradient_dtype: Callable[[Node], torch.dtype | None] = attrgetter("variable.grad_dtype")


def in_backward() -> bool:
    """Return whether this thread is running a backward of PyTorch's engine."""
    return torch._C._current_graph_task_id() != -1


_thread = _Thread()
_start = _Start()
