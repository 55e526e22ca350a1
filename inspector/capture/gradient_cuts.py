"""Following a model's parameters through a forward: the operations that depend on them, and where gradients are cut.

The autograd graph contains only paths that gradients can take. This module also records results that were detached,
rounded to integers, computed under no_grad, or converted to Python values.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.autograd.graph import Node
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakTensorKeyDictionary

from ..graph.node_metadata import tensors_of
from ..graph.operations_and_calls import CallRecord, Operation
from ..graph.source_lines import Place, users_place
from ..torch_private.call_watchers import around_function_apply, watching_modules
from ..torch_private.compiled import watching_functions
from ..torch_private.nodes import leaf_if_any
from ..torch_private.sequence_numbers import UNNUMBERED, number_of, sequence_nr
from ..torch_private.tensors import FollowedStorage, beneath_transforms, storage_of
from ..torch_private.thread_state import grad_mode_switch, in_function_forward, without_torch_function
from .capture import capture
from .capture_record import Observer
from .interrupt_safe_stack import Opened


class Cut(StrEnum):
    """The ways in which an operation cuts the path of the gradients.

    Attributes:
        FROZEN: the parameter did not require gradients when it was used.
        DETACH: any form of `detach`.
        DATA: `Tensor.data`, read or set.
        PYTHON: a conversion to Python or NumPy: item, tolist, numpy, `if tensor:`.
        COPY: `torch.tensor(x)`, which copies the values.
        GRADIENT: `torch.autograd.grad` without `create_graph=True`.
        INTEGER: the result has an integer or boolean dtype.
        INFERENCE, NO_GRAD: it ran under `torch.inference_mode()` or `torch.no_grad()`.
        ALIAS: it reads bytes that were modified in place through .data or a detached tensor, unseen by autograd.
        FUNCTION: a custom Function marks the result as not differentiable.
        OTHER: none of these.
    """

    FROZEN = "frozen"
    DETACH = "detach"
    DATA = "data"
    PYTHON = "python"
    COPY = "copy"
    GRADIENT = "gradient"
    INTEGER = "integer"
    INFERENCE = "inference_mode"
    NO_GRAD = "no_grad"
    ALIAS = "alias"
    FUNCTION = "function"
    OTHER = "other"


_CUTS = {
    "torch.Tensor.detach": Cut.DETACH,
    "torch.Tensor.detach_": Cut.DETACH,
    "torch.detach": Cut.DETACH,
    "torch.detach_": Cut.DETACH,
    "torch.detach_copy": Cut.DETACH,
    "torch.Tensor.data.__get__": Cut.DATA,
    "torch.Tensor.data.__set__": Cut.DATA,
    "torch.tensor": Cut.COPY,
    "torch.as_tensor": Cut.COPY,
    "torch.asarray": Cut.COPY,
    "torch.scalar_tensor": Cut.COPY,
    "torch.full": Cut.COPY,
    "torch.full_like": Cut.COPY,
    "torch.Tensor.new_tensor": Cut.COPY,
    "torch.Tensor.new_full": Cut.COPY,
}
_TO_PYTHON = frozenset(
    {
        *("item", "tolist", "numpy", "__array__", "__float__", "__int__", "__index__", "__complex__", "__bool__"),
        *("__dlpack__", "to_dlpack", "is_nonzero", "equal", "allclose"),
    }
)
_NOT_COMPUTED = frozenset({"requires_grad_", "share_memory_"})  # their names end like those of in-place operations


@dataclass(slots=True, eq=False)
class Step:
    """One result of an operation with an argument that depends on a parameter.

    Attributes:
        operation: the operation; None where a capture can't see it, as inside of a scripted module.
        takes: the steps whose results are its arguments. The value is None if gradients flow back to that step,
            else the kind of cut.
        result: the position of this result, and the operation's number of results.
        to_python: whether the result is a Python value, whose further use can't be followed.
        off: the code that disabled gradients, if that is the cut.
    """

    operation: Operation | None
    takes: list[tuple[int, Cut | None]] = field(default_factory=list)
    result: tuple[int, int] = (0, 1)
    to_python: bool = False
    off: Operation | None = None


class Taken(NamedTuple):
    """A tensor's state when it was passed to an operation, which may write to it afterwards."""

    tensor: Tensor
    node: Node | None
    output: int  # output number of the node
    requires_grad: bool

    @classmethod
    def now(cls, tensor: Tensor) -> Taken:
        return cls(tensor, tensor.grad_fn, tensor.output_nr, tensor.requires_grad)


class Dataflow:
    """The operations of a forward that depend on parameters, recorded while `follow` was open.

    Attributes:
        parameters: the followed parameters. Step i stands for parameter i; the other steps come after these.
        steps: the steps, in the order in which they ran.
        calls: the number of calls of each module.
        unseen: the modules that were called inside of a custom Function, where operations are not recorded.
        without_input_grad: by module the line of the reentrant checkpoint around its call, none of whose inputs
            requires grad, so that autograd records nothing of it.
        replaced: by module and name the line of a call during which another tensor was in a parameter's place.
    """

    def __init__(self, parameters: Iterable[Tensor], module: nn.Module | None = None) -> None:
        self.parameters = tuple(parameters)
        self.steps = [Step(None) for _ in self.parameters]
        self.calls: Counter[nn.Module] = Counter()
        self.unseen: set[nn.Module] = set()
        self.without_input_grad: dict[nn.Module, Place | None] = {}
        self.replaced: dict[tuple[nn.Module, str], Place | None] = {}
        self._own = {} if module is None else {each: dict(each._parameters) for each in module.modules()}
        self._reentrant: list[Place | None] = []  # of the reentrant checkpoint under way
        self._numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        self._made: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        self._written: dict[int, tuple[FollowedStorage, int]] = {}  # by address: the last step that wrote

    def called(self, module: nn.Module) -> None:
        """Note that a module is called, and the reason if its parameters cannot get a gradient from this call."""
        self.calls[module] += 1
        if in_function_forward():
            self.unseen.add(module)
            if self._reentrant:
                self.without_input_grad[module] = self._reentrant[-1]
        for name, parameter in self._own.get(module, {}).items():
            if parameter is not None and module._parameters.get(name, parameter) is not parameter:
                self.replaced[module, name] = users_place()

    def checkpoint_begins(self, given: list[Taken]) -> None:
        """Note a reentrant checkpoint, unless one of its inputs requires grad."""
        if torch.is_grad_enabled() and not any(each.requires_grad for each in given):
            self._reentrant.append(users_place())

    def checkpoint_ends(self) -> None:
        self._reentrant.clear()

    def steps_of(self, taken: Taken) -> list[tuple[int, bool]]:
        """Return the steps that produced a tensor, and whether gradients flow back from it to each of them."""
        tensor = taken.tensor
        found: list[tuple[int, bool]] = []
        parameter = self._numbers.get(id(tensor))
        if parameter is not None:
            found.append((parameter, taken.requires_grad))
        step = self._made.get(tensor)
        if step is not None:
            found.append((step, taken.requires_grad))
        if self._written and (storage := storage_of(tensor)) is not None:
            known, written = self._written.get(storage.address, (None, -1))
            if known is not None and known.alive and written > (step or 0):
                found.append((written, taken.node is not None))
        if not found and tensor._base is not None and (step := self._made.get(tensor._base)) is not None:
            found.append((step, taken.requires_grad))  # vmap returns this view of its result, for out_dims
        if not found and taken.node is not None:
            # The parameters in the graph of a tensor from before the capture, or from code that it cannot see.
            _, leaves = _reached(taken.node, 0, 0)
            below = [number for leaf in leaves if (number := self._numbers.get(leaf)) is not None]
            if below:
                self._made[tensor] = len(self.steps)
                found.append((len(self.steps), True))
                self.steps.append(Step(None, [(number, None) for number in below]))
        return found

    def add(self, step: Step, result: Tensor | None = None, writes: bool = False) -> None:
        """Add a step with its result or the tensor it modified in place."""
        if result is not None:
            self._made[result] = len(self.steps)
            if writes and (storage := storage_of(result)) is not None:
                self._written[storage.address] = FollowedStorage(result), len(self.steps)
        self.steps.append(step)


@contextmanager
def follow(
    module: nn.Module | None, parameters: Iterable[Tensor], observer: Observer | None = None
) -> Iterator[Dataflow]:
    """Follow parameters through the forward that runs inside the block; a capture with the observer must be open.

    Following does not keep tensors alive. Operations inside a custom Function's forward, a compiled region or a
    scripted module are not followed.
    """
    flow = Dataflow(parameters, module)
    thread = get_ident()

    def called(called_module: nn.Module, arguments: object) -> None:
        if not is_dynamo_compiling() and get_ident() == thread:
            flow.called(called_module)

    newest: list[Operation] = []

    def observe(made: Operation | CallRecord, result: object, arguments: Sequence[object]) -> None:
        if isinstance(made, Operation):
            newest.append(made)
        if observer is not None:
            observer(made, result, arguments)

    def enter(stack: ExitStack) -> None:
        watched = capture(module, observe)
        stack.enter_context(watched)
        stack.enter_context(watching_modules(called))
        follower = _Follower(flow, watched, newest)
        stack.enter_context(around_function_apply(follower.around_apply))
        stack.enter_context(watching_functions(follower))

    owner = set[None]()  # dies with this frame, which closes the contexts if Ctrl-C ends it before `close`
    opened = Opened(owner, enter)
    try:
        yield flow
    except BaseException as error:
        opened.close(type(error), error, error.__traceback__)
        raise
    opened.close(None, None, None)


class _Follower(TorchFunctionMode):
    """A function mode that records each operation with an argument that depends on a parameter."""

    def __init__(self, flow: Dataflow, watched: capture, newest: list[Operation]) -> None:
        super().__init__()
        self._flow = flow
        self._watched = watched
        self._newest = newest  # the newest operation recorded by the capture
        self._thread = get_ident()
        self._switches: list[Operation | None] = []  # calls that disabled gradients, innermost last; None: enabled

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if is_dynamo_compiling() or in_function_forward():
            return function(*args, **(kwargs or {}))
        if function is grad_mode_switch:
            self._switch(on=bool(args[0]))
            return function(*args)
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__", "__delete__") and function not in _ATTRIBUTES:
            return function(*args)
        with without_torch_function():
            given = [Taken.now(beneath_transforms(each)) for each in tensors_of((args, kwargs), depth=5)]
            start = sequence_nr()
        self._newest.clear()
        result = function(*args, **kwargs) if kwargs else function(*args)
        if name in _NOT_COMPUTED:
            return result
        with without_torch_function():
            results = list(map(beneath_transforms, tensors_of(result, depth=4)))
            written = _written(name, args, kwargs)
            if results or written is not None or name in _TO_PYTHON:
                operation = self._newest[-1] if self._newest else None
                self._note(function, operation, given, results, written, start)
        return result

    def around_apply(
        self, function: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[object], None] | None:
        """Record a custom Function, which the function mode does not see."""
        if get_ident() != self._thread or is_dynamo_compiling() or in_function_forward():
            return None
        with without_torch_function():
            given = [Taken.now(beneath_transforms(each)) for each in tensors_of((args, kwargs), depth=4)]
            start = sequence_nr()
        if function is CheckpointFunction:
            self._flow.checkpoint_begins(given)

        def applied(result: object) -> None:
            self._flow.checkpoint_ends()
            with without_torch_function():
                results = list(map(beneath_transforms, tensors_of(result)))
                self._note(function, None, given, results, None, start)

        return applied

    @property
    def _off(self) -> Operation | None:
        """Return the code that disabled gradients."""
        return self._switches[-1] if self._switches else None

    def _switch(self, on: bool) -> None:
        if _leaves_grad_mode():
            # `with set_grad_enabled()` switches twice on entry; a plain call is never undone by an exit.
            del self._switches[-1:]
            while self._switches and (self._off is None) != on:
                self._switches.pop()
        elif on or self._off is not None:
            self._switches.append(None if on else self._off)
        else:
            self._switches.append(self._watched.operation(torch.no_grad))

    def _note(
        self,
        function: Callable[..., Any] | type[Function],
        operation: Operation | None,
        given: list[Taken],
        results: list[Tensor],
        written: Tensor | None,
        start: int,
    ) -> None:
        """Record an operation if it read or overwrote a tensor that depends on a parameter."""
        flow = self._flow
        before = {id(taken.tensor) for taken in given}
        new: list[Tensor] = []
        for result in results:
            if id(result) not in before:
                new.append(result)
            elif isinstance(function, type) and result.grad_fn is not None and number_of(result.grad_fn) >= start:
                written = result  # mark_dirty
        if not new and written is None and results:
            return  # it returned its argument
        sources = [(taken, flow.steps_of(taken)) for taken in given]
        if not any(steps for _, steps in sources):
            return
        operation = operation or self._watched.operation(function)
        made: list[Tensor | None] = [*new] if written is None else [*new, written]
        for number, each in enumerate(made or [None]):
            cut = self._cut(function, operation, each)
            off = self._off if cut is Cut.NO_GRAD else None
            takes = self._takes(sources, each, cut, start)
            if len(made) > 1 and cut is None:  # the other results may depend on other arguments
                takes = [(taken, how) for taken, how in takes if how is not Cut.OTHER]
            flow.add(Step(operation, takes, (number, len(made)), not made, off), each, writes=each is written)

    def _takes(
        self, sources: list[tuple[Taken, list[tuple[int, bool]]]], result: Tensor | None, cut: Cut | None, start: int
    ) -> list[tuple[int, Cut | None]]:
        """Return the steps on which a result depends."""
        edges, leaves = set[tuple[Node, int]](), set[int]()
        if result is not None and result.grad_fn is not None:
            edges, leaves = _reached(result.grad_fn, result.output_nr, start)
        takes: list[tuple[int, Cut | None]] = []
        for taken, steps in sources:
            leaf = taken.node is None
            arrives = id(taken.tensor) in leaves if leaf else (taken.node, taken.output) in edges
            for step, own in steps:
                if own:
                    takes.append((step, None if arrives else cut or Cut.OTHER))
                else:
                    takes.append((step, Cut.FROZEN if step < len(self._flow.parameters) else Cut.ALIAS))
        return takes

    def _cut(
        self, function: Callable[..., Any] | type[Function], operation: Operation, result: Tensor | None
    ) -> Cut | None:
        """Return how the paths of a result without a graph are cut."""
        if result is None:
            return Cut.PYTHON
        found = Cut.FUNCTION if isinstance(function, type) else _CUTS.get(operation.name, Cut.OTHER)
        if result.requires_grad:
            return found if found is Cut.COPY else None  # torch.tensor(x, requires_grad=True) is a new leaf
        if function is torch.autograd.grad:
            return Cut.GRADIENT
        if found not in (Cut.OTHER, Cut.FUNCTION):
            return found
        if not result.is_floating_point() and not result.is_complex():
            return Cut.INTEGER
        if torch.is_inference_mode_enabled():
            return Cut.INFERENCE
        return found if torch.is_grad_enabled() else Cut.NO_GRAD


def _leaves_grad_mode() -> bool:
    """Return whether the end of `with torch.no_grad()`, or of a similar block, restores the grad mode."""
    frame: FrameType | None = sys._getframe(3)  # the caller of `_set_grad_enabled`
    while frame is not None and frame.f_globals.get("__name__") == torch.autograd.grad_mode.__name__:
        if frame.f_code.co_name == "__exit__":
            return True
        frame = frame.f_back
    return False


def _written(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Tensor | None:
    """Return the tensor that an operation writes to: its first argument, or `out`."""
    if kwargs and isinstance(out := kwargs.get("out"), Tensor):
        return beneath_transforms(out)
    if not args or not isinstance(args[0], Tensor):
        return None
    in_place = name.endswith("_") and not name.endswith("__")
    writes = in_place or name in ("__setitem__", "__set__") or _AUGMENTED.fullmatch(name)
    return beneath_transforms(args[0]) if writes else None


def _reached(node: Node, output: int, start: int) -> tuple[set[tuple[Node, int]], set[int]]:
    """Return edges and leaves (by id) reachable from a node's output through nodes made from `start` on."""
    edges: set[tuple[Node, int]] = set()
    leaves: set[int] = set()
    stack: list[tuple[Node | None, int]] = [(node, output)]
    seen: set[Node] = set()
    while stack:
        below, number = stack.pop()
        if below is None or below in seen:
            continue
        made = number_of(below)
        leaf = leaf_if_any(below) if made == UNNUMBERED else None
        if leaf is not None:
            leaves.add(id(leaf))
        elif made < start:
            edges.add((below, number))
        else:
            seen.add(below)
            stack += below.next_functions
    return edges, leaves


_AUGMENTED = re.compile("__i(add|sub|mul|matmul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift)__")
_ATTRIBUTES = frozenset(
    getattr(attribute, access)
    for attribute in (Tensor.data, Tensor.T, Tensor.mT, Tensor.H, Tensor.mH, Tensor.real, Tensor.imag)
    for access in ("__get__", "__set__")
)
"""Getters and setters of the attributes that are computed from a tensor's values."""
