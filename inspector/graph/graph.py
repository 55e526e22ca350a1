"""The autograd graph below one or more tensors, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ...errors import ending_where_called
from ..files import write_svg
from ..renderers import GraphTheme, drawn, text_of
from ..text.sizes_and_counts import counted, dtype_name, nth, shape_text
from ..torch_private.nodes import leaf_of
from ..torch_private.thread_state import without_torch_function
from ..validation import a_kind
from .kinds import ARGUMENT, Kind, short_name
from .live_nodes import GONE, LiveNodes
from .saved_tensors import SavedTensors, saved_tensors

if TYPE_CHECKING:
    import graphviz

    from .module_summary import ModuleSummary
    from .operations_and_calls import Operation, StoredOperation
    from .source_lines import Source

Outputs = Tensor | GradientEdge | Sequence[Tensor | GradientEdge]
Fold = Literal["fit", "repeats", "none"] | int | Collection[str]
ParameterNames = torch.nn.Module | Mapping[str, Tensor]
UntrackedKind = Literal["input", "buffer", "frozen parameter", "tensor"]

_CPU = torch.device("cpu")
_IN_CPU_QUEUE = ("meta", "lazy")
_CELL_WIDTH = 900  # pixels; minimum width of a notebook's output cell on usual screens
_MOST_SHOWN = 20_000  # tasks; larger pictures make a notebook slow; save_svg has no such limit


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """The metadata of a gradient, which torch knows before the gradient exists.

    Attributes:
        shape: its shape; None for nested tensors, which do not have one.
        dtype, device: its dtype and device.
        any_dtype: the forward declared that the gradient is not cast (`ctx.set_output_grad_dtype(None)`). It may then
            have another dtype than the forward's output, which is `dtype`.
    """

    shape: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    any_dtype: bool = field(default=False, repr=False)

    @property
    def nbytes(self) -> int | None:
        """Bytes of a dense tensor of this shape."""
        return None if self.shape is None else prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = "any dtype" if self.any_dtype else dtype_name(self.dtype)
        return f"{shape_text(self.shape)} {dtype} {self.device}"


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge, along which a gradient passes from one task to another.

    Attributes:
        task, output: the id of the task that returns the gradient, and the number of its output, from 0.
        next_task, input: the id of the task that receives it, and the number of its input, from 0. The gradients of
            several edges to one input are summed.
    """

    task: int
    output: int
    next_task: int
    input: int


@dataclass(frozen=True, slots=True)
class Root:
    """A start of the backward.

    Attributes:
        task, input: the id of the task that receives an initial gradient, and the number of its input, from 0.
    """

    task: int
    input: int


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of one module in the forward.

    Attributes:
        id: the index in `Graph.calls`.
        path: the module's name below the model, "encoder.layer.3"; "" for the model itself.
        class_name: the name of the module's class.
        parent: the id of the enclosing call; None for an outermost call.
        index: counts the calls of the same module, from 0.
    """

    id: int
    path: str
    class_name: str
    parent: int | None
    index: int

    @property
    def name(self) -> str:
        """The name to show: the last part of the path, or the class if the path is empty."""
        return self.path.rsplit(".", 1)[-1] or self.class_name


@dataclass(frozen=True, slots=True)
class Untracked:
    """A tensor that the forward used and that gets no gradient. It has no task; pictures show it as a grey pill.

    Attributes:
        kind: "input", "buffer", "frozen parameter", or "tensor" for any other.
        name: its name in the model or among the arguments of `forward`; "detached tensor" if it shares the memory of a
            tensor that requires grad; for any other tensor, the name of the operation's argument.
        meta: its shape, dtype and device.
        users: the ids of the tasks whose operations used it; `len(graph.tasks)` stands for the failed call.
    """

    kind: UntrackedKind
    name: str
    meta: TensorMeta
    users: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailedCall:
    """The call that ended a forward with an error. It has no task; pictures show it in red.

    Attributes:
        name: the torch function that raised, or the class of the module whose own code raised.
        shapes: the shapes of its tensor arguments.
        call: the id of the innermost module call around it; None outside of modules.
        edges: from this call, as task `len(graph.tasks)`, to the tasks that made its arguments, and to the leaves among
            them.
    """

    name: str
    shapes: tuple[tuple[int, ...] | None, ...]
    call: int | None
    edges: tuple[Edge, ...]

    @property
    def title(self) -> str:
        """The call with its shapes: `linear(2×3, 4×5)`."""
        return f"{self.name}({', '.join(map(shape_text, self.shapes))})"


@dataclass(frozen=True, slots=True, repr=False)
class Task:
    """The execution of one node in the backward.

    Attributes:
        id: the index in `Graph.tasks`.
        name: torch's name of the node, such as "AddmmBackward0".
        kind: the kind of node.
        sequence_nr: torch's sequence number of the node, which counts the nodes of a thread in order of creation.
            AccumulateGrad has the highest possible number (accumulate_grad.cpp), so HEAP runs it as soon as it is
            ready.
        inputs: the metadata of the input gradients, by input number.
        parameter: the name of an AccumulateGrad's leaf; None if the leaf has no name, and for all other tasks.
        call: the id of the innermost module call in which the node was made; None if no capture saw one.
        operation: the forward operation that made the node, which several tasks may share; None if no capture saw it.
        created_ns: nanoseconds from the start of the forward to the creation of the node, by `time.perf_counter_ns`.
            The forward starts with the call of the first operation that made a task of this graph. From torch 2.14 on,
            it is the time at which torch reports the node to a creation hook: after the operation's kernel, and before
            the operation returns. The start is then the first such report, unless the capture recorded every call.
            Before torch 2.14, it is the time at which the operation returned, which all nodes that it made share.
            Recording an operation adds some microseconds to the forward. On an accelerator, the kernel may still be
            running at that time. None for AccumulateGrad, which belongs to its leaf, and if no capture saw the
            operation.
    """

    id: int
    name: str
    kind: Kind
    sequence_nr: int
    inputs: tuple[TensorMeta, ...]
    parameter: str | None = None
    call: int | None = None
    operation: Operation | StoredOperation | None = None
    created_ns: int | None = field(default=None, compare=False)  # another root may lead to an earlier operation

    @property
    def is_leaf(self) -> bool:
        """True if the task is an AccumulateGrad, which writes a leaf's .grad."""
        return self.kind is Kind.ACCUMULATE_GRAD

    @property
    def short_name(self) -> str:
        """The name without the suffix of all nodes: `Addmm` for `AddmmBackward0`, `AccumulateGrad`."""
        return short_name(self.name)

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.short_name}{f' of {self.parameter}' if self.parameter else ''}>"

    @property
    def device(self) -> torch.device:
        """The device on which PyTorch runs it: the first device of its gradients that is not the CPU (node.h,
        Node::device). Tasks on "meta" or "lazy" go into the CPU's queue (engine.cpp, should_run_in_cpu_ready_queue)."""
        for meta in self.inputs:
            if (kind := meta.device.type) != "cpu":
                return _CPU if kind in _IN_CPU_QUEUE else meta.device
        return _CPU

    @property
    def source(self) -> Source | None:
        """The user's line that made the node in the forward; None if no capture saw it."""
        return None if self.operation is None else self.operation.source


@dataclass(frozen=True, eq=False)
class Graph:
    """The tasks of one backward and the edges between them.

    Task ids count from 0 in order of creation: ascending sequence number, and then the AccumulateGrad tasks, whose
    sequence number is the highest there is, in the order in which the forward first used their leaf.

    Attributes:
        tasks: the tasks, by id.
        edges: the edges, sorted by task and output.
        roots: the starts of the backward: one for each tensor that the graph was read from, in their order.
        calls: the module calls of the forward, by id; empty if no capture saw it.
        nodes: torch's node for each task id, as long as the loss exists. Afterwards it is empty, so that a graph keeps
            no saved tensors alive. A graph from a file (`ts.load`) has none. See `ts.graph` for graphs of a temporary
            or of a `GradientEdge`, which keep their nodes.
        raised: the exception that ended the forward and its place, if the graph was read from an unfinished forward
            (`Tape.graph`); otherwise None.
        failed: the call that raised it; None if the forward did not raise, or the call is unknown.
        untracked: the tensors without a gradient that the forward used, if the graph was read from a model's forward
            (`ts.graph(model, *inputs)`); for an unfinished forward, those of the failed call.
        forward: the class of that model; None if the graph was read from a loss.
    """

    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...]
    roots: tuple[Root, ...]
    calls: tuple[ModuleCall, ...] = ()
    nodes: Sequence[Node] = field(default=(), repr=False)
    raised: str | None = None
    failed: FailedCall | None = None
    untracked: tuple[Untracked, ...] = ()
    forward: str | None = None
    _order: Sequence[int] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        return (
            f"<Graph of {counted(len(self.tasks), 'task')} and {counted(len(self.edges), 'edge')} "
            f"from {self.tasks[self.roots[0].task].name}>"
        )

    @property
    def is_tape(self) -> bool:
        """True if the graph is that of a tape (`ts.hips.tape`), whose nodes are not torch's."""
        return self.tasks[-1].name == ARGUMENT

    @cached_property
    def devices(self) -> frozenset[torch.device]:
        """The devices on which PyTorch runs the tasks."""
        if all(device == _CPU for device in {meta.device for task in self.tasks for meta in task.inputs}):
            return frozenset([_CPU])
        return frozenset(task.device for task in self.tasks)

    @cached_property
    def out_edges(self) -> tuple[tuple[Edge, ...], ...]:
        """The edges of each task, by output number. Outputs without a reader have no edge."""
        grouped: list[list[Edge]] = [[] for _ in self.tasks]
        for edge in self.edges:
            grouped[edge.task].append(edge)
        return tuple(map(tuple, grouped))

    @property
    def like(self) -> Graph:
        """The cached graph with the same structure, without nodes; this graph itself if there is none.

        Tasks and edges have the same numbers in both.
        """
        found: Graph = vars(self).get(
            "_like", self
        )  # never the graph itself: a reference cycle would keep the nodes alive
        return found

    @property
    def leaves(self) -> dict[int, Tensor]:
        """The leaves by the id of their AccumulateGrad task. Empty for a graph from a file.

        After the loss was freed, these are only the leaves that are still alive.
        """
        if self.nodes:
            return {task.id: leaf_of(self.nodes[task.id]) for task in self.tasks if task.is_leaf}
        known = self.nodes.leaves if isinstance(self.nodes, LiveNodes) else {}
        return {task_id: leaf for task_id, each in known.items() if (leaf := each()) is not None}

    @cached_property
    def saved(self) -> SavedTensors:
        """The saved tensors of the nodes at the first access. A backward frees them.

        Tensors packed by `saved_tensors_hooks` (checkpoint, save_on_cpu) are not listed, since reading them would run
        the user's hooks; `saved.packed` counts them. Tensors saved by the node inside a CopySlices or by a custom C++
        node are not listed, since torch hides them. Nothing is listed for a graph from a file.

        Raises:
            RuntimeError: The loss no longer exists, and `saved` was not read before.
        """
        if not self.nodes:
            if isinstance(self.nodes, LiveNodes):
                raise RuntimeError(f"graph.saved is not known: {GONE}. Read it while the loss exists")
            return SavedTensors()
        with without_torch_function():
            return saved_tensors(self.nodes, {task.id: task.parameter for task in self.tasks if task.is_leaf})

    @property
    def known_saved(self) -> SavedTensors:
        """The same as `saved`; empty instead of an error if the nodes are gone and it was not read before."""
        return self.saved if self.nodes or "saved" in vars(self) else SavedTensors()

    @property
    def why_no_nodes(self) -> str:
        """The reason why `nodes` is empty, as part of a sentence."""
        if isinstance(self.nodes, LiveNodes):
            return GONE
        return "this graph has no nodes, because it is from a file or its session is over"

    @property
    def for_result(self) -> Graph:
        """The graph for a result to keep: without its nodes, unless they are released with the loss."""
        if not self.nodes or (isinstance(self.nodes, LiveNodes) and self.nodes.is_watching):
            return self
        if "_for_result" not in vars(self):
            nodes = LiveNodes(self.nodes)
            nodes.forget()
            vars(self)["_for_result"] = self._with_nodes(nodes)
        found: Graph = vars(self)["_for_result"]
        return found

    def owned(self) -> Graph:
        """Return a copy for a session, which holds the nodes itself. The copy's `for_result` is this graph's."""
        found = self._with_nodes(tuple(self.nodes))
        vars(found)["_for_result"] = self.for_result
        return found

    def _with_nodes(self, nodes: Sequence[Node]) -> Graph:
        found = copy(self)  # with all that was computed
        vars(found)["nodes"] = nodes
        return found

    @cached_property
    def in_edges(self) -> tuple[tuple[Edge, ...], ...]:
        """The edges that lead to each task."""
        grouped: list[list[Edge]] = [[] for _ in self.tasks]
        for edge in self.edges:
            grouped[edge.next_task].append(edge)
        return tuple(map(tuple, grouped))

    def module(self, task: Task | int) -> str | None:
        """Return the path of the innermost module whose call made the task's node; None if no capture saw it."""
        call = self.task(task).call
        return None if call is None else self.calls[call].path

    def in_order(self, order: Sequence[int]) -> Graph:
        """Return this graph for a run, so that `describe` includes the places in this order, which may grow."""
        found = copy(self)  # with all that was computed
        vars(found)["_order"] = order
        if "_for_result" in vars(found):
            vars(found)["_for_result"] = vars(found)["_for_result"].in_order(order)
        return found

    def describe(self, task: Task | int, place: int | None = None) -> str:
        """Return the task as a phrase: `MmBackward0 (encoder.layer.3, 53rd, model.py:120)`.

        The number is the task's place in the run. It is included if this is the graph of a run (see `in_order`), or if
        `place`, the number of tasks before it, is passed.
        """
        task = self.task(task)
        if place is None and task.id in self._order:
            place = self._order.index(task.id)
        where = (whose(self, task), "" if place is None else nth(place + 1), task.source and task.source.short)
        name = task.short_name if task.is_leaf else task.name
        said = ", ".join(part for part in where if part)
        return f"{name} ({said})" if said else name

    @ending_where_called
    def task(self, task: Task | int) -> Task:
        """Return the task with this id, or the task itself.

        Raises:
            ValueError: the graph does not have this task.
            TypeError: the argument is neither a number nor a task.
        """
        if not isinstance(task, Task | int):
            names = "; session.break_at(name) and run() go to a name or a line" if isinstance(task, str) else ""
            raise TypeError(f"expected a task or its number, got {a_kind(task)}{names}")
        number = task.id if isinstance(task, Task) else task
        if not 0 <= number < len(self.tasks):
            raise ValueError(f"there is no task {number}; this graph has tasks 0 to {len(self.tasks) - 1}")
        if isinstance(task, Task) and self.tasks[number] != task:  # another walk of the same nodes gives equal ones
            raise ValueError(f"{task!r} is a task of another graph; this one's task {number} is {self.tasks[number]!r}")
        return self.tasks[number]

    @ending_where_called
    def to_json(self) -> str:
        """Return the graph as a versioned JSON object; see the page of file formats for its fields."""
        return text_of("graph as JSON", self)

    def summary(self) -> ModuleSummary:
        """Return a table of the modules that the forward called: output shape, parameters and saved bytes.

        Modules that made no task of the graph are not in it, such as frozen ones before the first trainable one, and
        modules whose result is detached; their parameters do not count in the modules around them. Saved bytes are
        unknown for a graph from a file, and if the loss was freed before `saved` was read.
        """
        found: ModuleSummary = drawn("graph as a summary", self)
        return found

    @ending_where_called
    def to_svg(self, *, fold: Fold = "fit", theme: GraphTheme = "auto", shapes: bool | None = None) -> str:
        """Return the graph as a self-contained SVG. See `save_svg`."""
        return text_of("graph as SVG", self, fold=fold, theme=theme, shapes=shapes)

    @ending_where_called
    def save_svg(
        self, path: str | Path, *, fold: Fold = "fit", theme: GraphTheme = "auto", shapes: bool | None = None
    ) -> Path:
        """Draw the graph with tapescope's own layout and save it as an SVG.

        `fold` selects the tasks drawn as one row or box. "fit" folds until the whole graph fits on a page: first chains
        of views ("⋯ 7 views"), then modules without submodules ("fc Linear"), then others from the innermost outwards;
        equal blocks in a row are drawn once ("×12"). The legend lists what is folded. "repeats" draws equal blocks once
        and opens the rest. "none" opens everything. A number closes the modules from that depth on (0: the outermost).
        A collection of module paths closes those modules. Among more than 120 siblings, "fit" and "repeats" also fold
        runs of equal tasks outside of modules; the box shows their number. `theme` is "light", "dark" or "auto", which
        follows the viewer's settings. `shapes` writes the shapes of the forward's tensors on the edges, and those of
        parameters beside their names; None does so for the graph of a model's forward, and after an error.

        Raises:
            ValueError: `fold` or `theme` is unknown, more than 200,000 tasks would be drawn one by one, or the file's
                name ends in .pdf, .png or another suffix than .svg.
        """
        return write_svg(path, self.to_svg(fold=fold, theme=theme, shapes=shapes))

    @ending_where_called
    def to_graphviz(self) -> graphviz.Digraph:
        """Return the graph as a `graphviz.Digraph` with modules as clusters. Needs the `graphviz` package."""
        return drawn("graph for Graphviz", self)

    @ending_where_called
    def to_pandas(self) -> Any:
        """Return the tasks as a pandas.DataFrame, one row per task in order of creation.

        The columns are `task`, `name`, `parameter`, `module`, `operation`, `file`, `line`, `function`, `sequence_nr`,
        `device` and `created_s`: the seconds from the start of the forward to the creation of the node, see
        `Task.created_ns`. Without a capture of the forward, the module, operation, source line and time are missing.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        return drawn("graph as a table", self)

    def _repr_svg_(self) -> str | None:
        return text_of("graph as SVG", self, widest=_CELL_WIDTH) if len(self.tasks) <= _MOST_SHOWN else None


def unique_name(graph: Graph, task: Task | int) -> str:
    """Return the task as in `describe`, preceded by its id if another task has the same name: `#9 MulBackward0`."""
    task, described = graph.task(task), graph.describe(task)
    alike = (each for each in graph.tasks if each.name == task.name and each.id != task.id)
    return f"#{task.id} {described}" if any(graph.describe(each) == described for each in alike) else described


def module_name(path: str) -> str:
    """Return `blocks.3`, or `module 3` for a part of an nn.Sequential that is itself the model."""
    return f"module {path}" if path.isdecimal() or path == "*" else path


def whose(graph: Graph, task: Task) -> str:
    """Return the parameter that a leaf's task accumulates into, or the module of the task's node."""
    return task.parameter or module_name(graph.module(task) or "")
