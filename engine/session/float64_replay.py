"""Replay of a forward operation in float64 on the inputs that a capture kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from threading import Event, local
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.graph import Graph
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.operation_inputs import KeptInputs, KeptTensor
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.threads import DaemonThread
from ...inspector.torch_private.operators import in_float64
from ...inspector.torch_private.random_states import same_random_states, seed
from ...inspector.torch_private.sequence_numbers import current_number, sequence_nr

_MOST_ELEMENTS = 2**26  # of all inputs; with the float64 results this takes a few gigabytes
_MOST_KEPT = 2**20  # input elements of a replay that is kept for the next task; its graph is a multiple of them
_MOST_NAMED = 4
_PHASES = "eigenvectors are unique only up to factors, so finite differences do not approximate a derivative"
_BY_CONVENTION = {
    "ctc_loss": "PyTorch's gradient of ctc_loss is right only behind a log_softmax",
    "normal": "PyTorch returns zeros for the parameters of random numbers",
    "as_strided": "it reads memory outside its input, which is not kept",
    "as_strided_scatter": "it reads memory outside its input, which is not kept",
    "eig": _PHASES,
    "svd": _PHASES,
}

T = TypeVar("T")


class UncheckableError(Exception):
    """The reason why a derivative cannot be checked, in a sentence."""


@dataclass(frozen=True)
class Outcome:
    """The result of one replay.

    Attributes:
        outputs: the tensors that have a derivative.
        start: the sequence number before the operation.
        args: its positional arguments.
        result: its return value.
    """

    outputs: list[Tensor]
    start: int
    args: tuple[Any, ...]
    result: object

    @property
    def node(self) -> Node | None:
        """The first output's node; None if that output is an input passed on."""
        return self.outputs[0].grad_fn

    @cached_property
    def nodes(self) -> dict[int, Node]:
        """The nodes of the replay by their sequence numbers; leaves share one number."""
        stack, seen = [each.grad_fn for each in self.outputs], set[Node]()
        while stack:
            node = stack.pop()
            if node is not None and node not in seen:
                seen.add(node)
                stack += [child for child, _ in node.next_functions]
        return {current_number(node): node for node in seen}


class OperationReplay:
    """Runs an operation again, with the same random numbers each time. Must be used `InFloat64`, in a clean thread.

    Attributes:
        operation: the operation.
        varied: the inputs that require a gradient.
        points: their values, in float64.
        random: whether it draws random numbers.
        unused: places of the outputs that get no gradient: a backward that refuses one is called without it.

    Raises:
        UncheckableError: the operation cannot be replayed.
    """

    def __init__(self, operation: Operation, inputs: KeptInputs) -> None:
        self.operation = operation
        self._inputs = inputs
        if (reason := _BY_CONVENTION.get(operation.name.rpartition(".")[2])) is not None:
            raise UncheckableError(reason)
        _expect_values(inputs)
        self.varied = [each for each in inputs.tensors if each.requires_grad]
        if not self.varied:
            raise UncheckableError("none of its input tensors requires grad")
        if (count := sum(each.tensor.numel() for each in inputs.tensors)) > _MOST_ELEMENTS:
            raise UncheckableError(
                f"its inputs have {count:,} elements, and at most {_MOST_ELEMENTS:,} are copied to float64; "
                "capture a forward of a smaller batch or model"
            )
        self._values = {id(each): in_float64(each.tensor) for each in inputs.tensors}
        self.points = [self._values[id(each)] for each in self.varied]
        self._devices = accelerators_of(inputs)
        self.unused: frozenset[int] = frozenset()
        self._seed = 0
        self._places: list[int] | None = (
            None  # indices of the outputs with a derivative, among all tensors of the result
        )
        first, again = self.run(self.points).outputs, self.run(self.points).outputs
        if not _same(first, again):
            raise UncheckableError(
                "its forward returns another result each time, although torch's random numbers are the same: it "
                "depends on more than its inputs"
            )
        self._seed = 1
        self.random = not _same(first, self.run(self.points).outputs)

    @cached_property
    def at_points(self) -> Outcome:
        """The result of one replay on the kept inputs."""
        return self.run(self.points)

    @property
    def is_function(self) -> bool:
        """True if it is a custom Function."""
        return isinstance(self.operation.function, type)

    @property
    def described_inputs(self) -> str:
        """A description of the inputs, `input (32×64) and weight (16×64)`."""
        named = [
            f"{each.name} ({'×'.join(map(str, each.tensor.shape)) or 'scalar'})" for each in self.varied[:_MOST_NAMED]
        ]
        more = len(self.varied) - len(named)
        last = f"{more} more" if more else named.pop()
        return f"{', '.join(named)} and {last}" if named else last

    @property
    def written(self) -> list[str]:
        """Names of the inputs that the operation modified in place, of which no earlier copy exists."""
        return [each.name for each in self._inputs.tensors if each.written]

    def run(self, points: Sequence[Tensor]) -> Outcome:
        """Run it on these values of the varied inputs, which become leaves of a new graph."""
        leaves = [each.detach().requires_grad_() for each in points]
        return self.run_on(leaves)

    def run_on(self, leaves: Sequence[Tensor]) -> Outcome:
        """Run it on tensors that have a graph or are leaves already."""
        values = dict(zip(map(id, self.varied), leaves, strict=True))

        def value_of(kept: KeptTensor) -> Tensor:
            value = values.get(id(kept))
            if value is None:
                value = self._values[id(kept)]
            return value.clone() if self.is_function or kept.is_copy or kept.written else value

        try:
            args, kwargs = self._inputs.rebuilt(value_of)
        except LookupError as error:
            raise UncheckableError(str(error.args[0])) from None
        function: Any = self.operation.function
        self.draw_from(self._seed)
        start = sequence_nr()
        try:
            result = function.apply(*args, **kwargs) if self.is_function else function(*args, **kwargs)
        except Exception as error:
            message = str(error).partition("\n")[0]
            raise UncheckableError(f"its forward does not run in float64: {type(error).__name__}: {message}") from error
        found = list(tensors_of(args[0] if result is None and args else result))
        if self._places is None:
            self._places = [place for place, each in enumerate(found) if _has_derivative(each)]
        outputs = [found[place] for place in self._places if place < len(found)]
        if not outputs or not all(map(_has_derivative, outputs)):
            raise UncheckableError("its replay returns no tensor with a derivative")
        if any(each.layout is not torch.strided for each in outputs):
            raise UncheckableError(
                "it returns a tensor that is not dense, and only derivatives of dense tensors are checked"
            )
        return Outcome(outputs, start, args, result)

    def draw_from(self, number: int) -> None:
        """Seed the random number generators until the next run."""
        if _asked.to_stop.is_set():
            raise _StoppedError
        for device in (torch.device("cpu"), *self._devices):
            seed(device, number)


class SharedChecks:
    """The state that checks of one graph's tasks share.

    An operation such as an LSTM creates a task for each of its steps. Replaying it anew for each of them would take
    time quadratic in their number, so its last replay is kept until another operation is checked.

    Attributes:
        created: by operation, the names of the tasks that it created, without leaves.
        compared: comparisons with finite differences, by operation and by whether its second derivative was compared.
        differentiated_twice: whether a backward recorded a part of the graph, as with `grad(..., create_graph=True)`.
    """

    def __init__(self, graph: Graph) -> None:
        self.created: dict[Operation, list[str]] = {}
        for task in graph.tasks:
            if isinstance(task.operation, Operation) and not task.is_leaf:
                self.created.setdefault(task.operation, []).append(task.name)
        self.compared: dict[tuple[Operation, bool], Any] = {}
        names = {task.operation.name for task in graph.tasks if task.operation is not None}
        self.differentiated_twice = any(name.rpartition(".")[2] == "grad" for name in names)
        self._last: OperationReplay | None = None

    def replay(self, operation: Operation, inputs: KeptInputs) -> OperationReplay:
        """Return a replay of the operation. Must be used like `OperationReplay`.

        Raises:
            UncheckableError: the operation cannot be replayed.
        """
        if self._last is not None and self._last.operation is operation:
            _expect_values(inputs)  # they may have been modified in place since the last check
            return self._last
        self._last = None  # before the next one takes memory
        replay = OperationReplay(operation, inputs)
        is_small = sum(each.tensor.numel() for each in inputs.tensors) <= _MOST_KEPT
        if is_small and len(self.created[operation]) > 1 and not replay.is_function:
            self._last = replay
        return replay


def _expect_values(inputs: KeptInputs) -> None:
    if inputs.subclassed:
        raise UncheckableError(f"its {inputs.subclassed[0]}, and only derivatives of plain tensors are checked")
    for kept in inputs.tensors:
        if kept.tensor.is_meta:
            raise UncheckableError(f"its {kept.name} is on the meta device and has no values")
        if kept.tensor.layout is not torch.strided or kept.tensor.is_quantized:
            raise UncheckableError(f"its {kept.name} is not a dense tensor, and only derivatives of these are checked")
        if kept.modified:
            raise UncheckableError(
                f"its {kept.name} was modified in place since the forward, so its original value is lost"
            )


def accelerators_of(inputs: KeptInputs) -> set[torch.device]:
    """Return the devices of an operation's inputs, except the CPU."""
    return {each.tensor.device for each in inputs.tensors if each.tensor.device.type not in ("cpu", "meta")}


def in_a_clean_thread(work: Callable[[], T], devices: set[torch.device]) -> T:
    """Do the work in a separate thread, and return or raise its result.

    Such a thread has none of the caller's modes, autocast, `saved_tensors_hooks`, transforms or graph task, and counts
    its own sequence numbers. Random number generators are restored afterwards. If the caller is interrupted, the thread
    stops before its next replay and is waited for, because it must not restore generators that later code uses.
    """
    to_stop = Event()
    done: list[T] = []
    raised: list[BaseException] = []
    default = torch.get_default_device()
    factories = nullcontext() if default.type == "cpu" else default

    def main() -> None:
        _asked.to_stop = to_stop
        try:
            if to_stop.is_set():
                return
            with same_random_states(devices), factories:
                done.append(work())
        except BaseException as error:
            raised.append(error)

    # The new thread starts on the default stream, which does not wait for the caller's.
    for device in devices:
        torch.accelerator.synchronize(device)
    thread = DaemonThread(main, "tapescope check")
    try:
        thread.start()
        thread.join()
    except BaseException:
        to_stop.set()
        if thread.begun.is_set():  # otherwise it sees `to_stop` when it starts
            thread.join_in_any_case()
        raise
    for error in raised:
        raise error
    return done[0]


class _StoppedError(BaseException):
    """Raised in the thread when its caller was interrupted; not an Exception, so that user code does not catch it."""


class _Asked(local):
    """The event that tells this thread to stop."""

    def __init__(self) -> None:
        self.to_stop = Event()


_asked = _Asked()


def _has_derivative(tensor: Tensor) -> bool:
    return tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(
        one.shape == other.shape and torch.allclose(one, other, rtol=1e-9, atol=0, equal_nan=True)
        for one, other in zip(some, others, strict=True)
    )
