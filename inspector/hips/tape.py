"""`ts.hips.tape`: the tape of the package `autograd` (HIPS), which differentiates functions of numpy arrays."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from torch import nn

from ..graph.graph import Edge, Graph, ModuleCall, Root, Task, TensorMeta
from ..graph.kinds import Kind
from ..graph.operations_and_calls import StoredOperation
from ..torch_private.sequence_numbers import UNNUMBERED
from ..validation import a_kind, expect

if TYPE_CHECKING:
    from types import ModuleType

    from .tape_nodes import RecordedNode


class HipsTape:
    """A function call recorded by autograd. `ts.graph`, `ts.debug` and `ts.backward` accept it like a loss.

    A backward computes the gradients with autograd's formulas and sums. It may run any number of times.

    Attributes:
        function: name of the function.
        value: the function's result.
        nodes: autograd's node for each task id, with its `name`, its vector space `space` and its `source` line. The
            last one belongs to the argument.
        gradient: the argument's gradient from the last backward: an array, a container of arrays, or a tuple for
            several argnums. None before the first backward.
    """

    def __init__(self, function: str, value: Any, nodes: Sequence[RecordedNode], arguments: str) -> None:
        self.function = function
        self.value = value
        self.nodes = tuple(nodes)
        self.gradient: Any = None
        self._arguments = arguments

    def __repr__(self) -> str:
        shape = self.end.inputs[0]
        return f"<HipsTape of {self.function}: {len(self.nodes)} tasks from {self.end.name}, {shape}>"

    @property
    def end(self) -> Task:
        """The task of the function's value, from which a backward starts."""
        return self.graph.tasks[self.graph.roots[0].task]

    @cached_property
    def graph(self) -> Graph:
        """The graph of a backward, with one task per node.

        The input of a task is the gradient of its node's value; for a container (a tuple, list or dict), one gradient
        per array. The argument's task is the leaf. The function is the only module call, and contains all other tasks.
        The graph has no `nodes`, because those of autograd are in the tape.
        """
        ids = {node: task_id for task_id, node in enumerate(self.nodes)}
        hips = _hips_nodes()
        metas: dict[TensorMeta, TensorMeta] = {}
        operations: dict[tuple[object, ...], StoredOperation] = {}  # equal operations share an object
        tasks, edges = [], []
        leaf = len(self.nodes) - 1
        for task_id, node in enumerate(self.nodes):
            operation = operations.setdefault((node.name, node.source), StoredOperation(node.name, node.source))
            is_leaf = task_id == leaf
            tasks.append(
                Task(
                    task_id,
                    node.name,
                    Kind.ACCUMULATE_GRAD if is_leaf else Kind.PRIMITIVE,
                    UNNUMBERED if is_leaf else node.number,
                    tuple(metas.setdefault(meta, meta) for meta in hips.metas_of(node.space)),
                    self._arguments if is_leaf else None,
                    call=None if is_leaf else 0,
                    operation=None if is_leaf else operation,
                )
            )
            number = 0
            for parent in node.parents:
                for place in hips.places(node, parent):
                    edges.append(Edge(task_id, number, ids[parent], place))
                    number += 1
        end = max(leaf - 1, 0)  # the last node made; all others lead to it
        graph = Graph(tuple(tasks), tuple(edges), (Root(end, 0),), (ModuleCall(0, "", self.function, None, 0),))
        _tapes[graph] = ref(self)
        return graph


_tapes: WeakKeyDictionary[Graph, ref[HipsTape]] = WeakKeyDictionary()


def tape_of(graph: Graph) -> HipsTape | None:
    """Return the tape of this graph if it is alive."""
    found = _tapes.get(graph)
    return None if found is None else found()


def hips_tape(fun: Callable[..., Any], *args: Any, argnum: int | Sequence[int] = 0, **kwargs: Any) -> HipsTape:
    """Call a function written with `autograd.numpy` and record its tape, as `autograd.grad` does. No backward runs.

    tape = ts.hips.tape(loss, weights, batch)
    deck = ts.debug(tape)       # steps through what autograd.grad(loss)(weights, batch) computes at once
    deck.run(); tape.gradient

    Args:
        fun: A function that returns one array or scalar.
        args, kwargs: Its arguments.
        argnum: The number of the argument to differentiate with respect to, or several. The argument may be a container
            of arrays.

    Raises:
        ModuleNotFoundError: The package `autograd` is not installed.
        TypeError: `fun` is not a function, `argnum` is not a number, or autograd cannot differentiate with respect to
            the argument, or differentiate the result.
        ValueError: The function's value does not depend on the argument.
        IndexError: `argnum` is out of range.
    """
    hips = _hips_nodes()
    if isinstance(fun, nn.Module) or not callable(fun):
        raise TypeError(
            "ts.hips.tape(fun, *args) takes a function written with autograd.numpy and its arguments, got "
            f"{a_kind(fun)}; a PyTorch loss needs no tape: ts.graph(loss)"
        )
    name = getattr(fun, "__name__", type(fun).__name__)
    expect(argnum, int | Iterable, "argnum", "the number of an argument, or several in a tuple")
    numbers = (argnum,) if isinstance(argnum, int) else tuple(argnum)
    if not all(isinstance(number, int) for number in numbers):
        raise TypeError(f"argnum is {argnum!r}; expected the number of an argument, or several in a tuple")
    if not numbers or not all(-len(args) <= number < len(args) for number in numbers):
        raise IndexError(
            f"argnum is {argnum!r}, but {name} is called with {len(args)} positional arguments, counted from 0"
        )
    numbers = tuple(number % len(args) for number in numbers)
    names = _names(fun, numbers)
    for number, each in zip(numbers, names, strict=True):
        if not hips.can_be_argument(args[number]):
            raise TypeError(
                f"autograd cannot differentiate with respect to {each}, {a_kind(args[number])}; expected a float, a "
                "numpy array, or tuples, lists and dicts of them"
            )

    def of_one(argument: Any) -> Any:
        given = list(args)
        for number, each in zip(numbers, (argument,) if isinstance(argnum, int) else argument, strict=True):
            given[number] = each
        return fun(*given, **kwargs)

    argument = args[numbers[0]] if isinstance(argnum, int) else tuple(args[number] for number in numbers)
    wanted = ", ".join(names)
    try:
        value, end, start = hips.trace(of_one, argument)
    except TypeError as error:
        if "Box" in str(error):
            error.add_note(
                f"tapescope: {name} was called with autograd's boxes, which only functions of autograd.numpy accept; "
                "a loss computed with PyTorch needs no tape: ts.graph(loss)"
            )
        elif "vector space" in str(error):
            error.add_note(f"tapescope: autograd differentiates floats only; call {name} with arrays of floats")
        raise
    if isinstance(value, tuple | list | dict):
        kind = type(value).__name__
        raise TypeError(f"{name} returned a {kind}; expected one array or scalar, from which a backward starts")
    if end is None:
        raise ValueError(
            f"autograd sees no dependence of the value of {name} on {wanted}, so there is nothing to run; check that "
            "every function it calls is from autograd.numpy"
        )
    nodes = [node for node in hips.below(end) if node is not start]
    for node in (*nodes, start):
        try:
            hips.metas_of(node.space)
        except TypeError as error:
            where = f" ({node.source.short})" if node.source else ""
            error.add_note(f"tapescope: it is the value of {node.name}{where}")
            raise
    return HipsTape(name, value, [*sorted(nodes, key=lambda node: node.number), start], wanted)


def not_native() -> NotImplementedError:
    """Return the error for a tape passed to PyTorch's engine."""
    return NotImplementedError(
        "PyTorch's engine runs only PyTorch's nodes; pass engine=\"direct\" for a tape of HIPS autograd"
    )


def refuse_parts(value: object) -> None:
    """Raise TypeError for a box or node of autograd, whose graph is only known if recorded from the start."""
    if "autograd.tracer" in sys.modules and _hips_nodes().is_part_of_trace(value):
        kind = type(value).__name__
        raise TypeError(
            f"a {kind} is only a part of autograd's tape; record all of it: ts.graph(ts.hips.tape(fun, *args))"
        )


def _hips_nodes() -> ModuleType:
    try:
        from . import tape_nodes as hips_nodes
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("autograd", "numpy"):
            raise
        raise ModuleNotFoundError(
            "ts.hips.tape needs HIPS autograd, which is not installed: pip install 'tapescope[hips]'", name=error.name
        ) from None
    return hips_nodes


def _names(fun: Callable[..., Any], numbers: Sequence[int]) -> list[str]:
    """Return the arguments' names from the function's signature if it can be read."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(fun).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [name for name, parameter in parameters.items() if parameter.kind in kinds]
    return [named[number] if number < len(named) else f"argument {number}" for number in numbers]
