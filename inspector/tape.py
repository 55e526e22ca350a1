"""What a capture writes down of a forward, and how a node finds its line in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import resolve_name

from .source import Source, innermost_user_line
from .torch_internals import UNNUMBERED, Traceback, notes_on, traceback_frames

if TYPE_CHECKING:
    from .graph import Graph

_alive: WeakSet[Tape] = WeakSet()
_MARK = "tapehead"  # the key in a node's own metadata dict under which its Operation stands


class CallRecord:
    """One call of a module, as it happens. `root` numbers the outermost modules; `path` is the name below that one."""

    __slots__ = ("index", "module_class", "parent", "path", "root", "tape")

    def __init__(
        self, tape: Tape, root: int, path: str, module_class: type[nn.Module], parent: CallRecord | None, index: int
    ) -> None:
        self.tape = tape
        self.root = root
        self.path = path
        self.module_class = module_class
        self.parent = parent
        self.index = index

    @property
    def full_path(self) -> str:
        return self.tape.full_path(self.root, self.path)


class Operation:
    """One call of a torch function in the forward; of a custom Function, or of a whole module where no more is seen.

    It made the nodes whose sequence numbers lie in [start, end) of its thread. Of its traceback nothing is resolved
    until `source` is asked for.
    """

    __slots__ = ("_function", "_source", "_traceback", "call", "created_ns", "end", "start", "tape")

    def __init__(
        self,
        tape: Tape,
        function: Callable[..., Any] | type,
        start: int,
        end: int,
        call: CallRecord | None,
        traceback: Traceback | None,
    ) -> None:
        self.tape = tape
        self.start = start
        self.end = end
        self.created_ns = time.perf_counter_ns()
        self.call = call
        self._function = function
        self._traceback = traceback
        self._source: Source | None = None

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    @property
    def name(self) -> str:
        """`torch.nn.functional.linear`, `torch.Tensor.add`; the class of a custom Function or module."""
        function = self._function
        if isinstance(function, type):
            return function.__qualname__
        return resolve_name(function) or str(getattr(function, "__name__", function))

    @property
    def source(self) -> Source | None:
        """The user's line that called it."""
        if self._traceback is not None:
            self._source = innermost_user_line(traceback_frames(self._traceback))
            self._traceback = None
        return self._source


class SavedRecord:
    """What autograd holds of a tensor that was saved during a capture: the tensor, and its version then."""

    __slots__ = ("__weakref__", "sequence_nr", "tensor", "version")

    def __init__(self, tensor: Tensor, sequence_nr: int) -> None:
        self.sequence_nr = sequence_nr
        # An output saved by its own node would be a cycle. A leaf is none, and autograd keeps leaves themselves, too.
        self.tensor = tensor if tensor.is_leaf else tensor.detach()
        self.version = tensor._version

    def unpack(self) -> Tensor:
        """The tensor, checked as autograd checks it where no hooks are in the way (saved_variable.cpp, unpack)."""
        now = self.tensor._version
        if now != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.tensor.type()} {list(self.tensor.shape)}] is at version {now}; expected version "
                f"{self.version} instead. Hint: enable anomaly detection to find the operation that failed to compute "
                "its gradient, with torch.autograd.set_detect_anomaly(True)."
            )
        return self.tensor


class Tape:
    """The record of one captured forward. Made by `th.capture()`; `th.graph(loss)` finds it through the nodes.

    Facts hold for the thread that entered the capture; sequence numbers are counted per thread, so a node is matched by
    a mark in its own metadata or by lying inside the operation whose output it leads to, never by its number alone.

    Attributes:
        started_ns: `time.perf_counter_ns()` when the capture began.
        error: the exception that ended it, if one did. Then `graph()` gives the graph up to it.
        saves_seen: False where the saved tensors could not be watched: `torch.autograd.graph.saved_tensors_hooks` of
            the user were active around the capture (they keep working, untouched), or such hooks were disabled.
    """

    def __init__(self) -> None:
        _alive.add(self)
        self.thread = threading.get_ident()
        self.started_ns = time.perf_counter_ns()
        self.error: BaseException | None = None
        self.saves_seen = True
        self.saved: list[ref[SavedRecord]] = []
        self._leaves: dict[int, tuple[ref[Tensor], int, str]] = {}  # by id(): the parameter, its outermost module, name
        self.frontier: tuple[Node, ...] = ()
        self._root_classes: list[tuple[str, bool]] = []  # of each outermost module, and whether it has parameters
        self._unnamed_root: int | None = None

    def __repr__(self) -> str:
        ended = f", ended by {type(self.error).__name__}" if self.error else ""
        return f"<Tape of {', '.join(name for name, _ in self._root_classes) or 'no module'}{ended}>"

    @staticmethod
    def alive() -> bool:
        """Whether any capture's record is left, so that looking for marks is worth it."""
        return bool(_alive)

    def graph(self) -> Graph:
        """The graph which a forward that raised had built when it raised.

        Raises:
            ValueError: the forward did not raise (pass its loss to `th.graph` instead), or had built nothing.
        """
        from .walk import graph_of_nodes

        if self.error is None:
            raise ValueError("the captured forward did not raise: pass its result to th.graph(loss)")
        if not self.frontier:
            raise ValueError(f"the forward raised {type(self.error).__name__} before it had built any graph")
        return graph_of_nodes(self.frontier)

    def add_root(self, module: nn.Module, unnamed: bool = False) -> tuple[int, dict[nn.Module, str]]:
        """Takes down an outermost module and the names of its parameters. Returns its number and its modules' paths.

        Paths below an `unnamed` one never start with its class.
        """
        root = len(self._root_classes)
        paths = {}
        before = len(self._leaves)
        for path, part in module.named_modules():
            path = path.replace("_orig_mod.", "").removesuffix("_orig_mod")  # what torch.compile wraps a module in
            paths[part] = path
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    name = f"{path}.{name}" if path else name
                    self._leaves.setdefault(id(parameter), (ref(parameter), root, name))
        self._root_classes.append((type(module).__name__, len(self._leaves) > before))
        if unnamed:
            self._unnamed_root = root
        return root, paths

    def leaf_name(self, leaf: Tensor) -> str | None:
        """The name of a parameter of one of the modules seen."""
        found = self._leaves.get(id(leaf))
        if found is None or found[0]() is not leaf:
            return None
        return self.full_path(found[1], found[2])

    def saved_by_number(self) -> dict[int, list[SavedRecord]]:
        """What is still saved, by the sequence number of the node that saved it."""
        grouped: dict[int, list[SavedRecord]] = {}
        for reference in self.saved:
            record = reference()
            if record is not None:  # else freed, or saved by a node that nothing leads to
                grouped.setdefault(record.sequence_nr, []).append(record)
        return grouped

    def names_of_storages(self) -> dict[int, str]:
        """The names of the parameters that still live, by the address of their storage."""
        names: dict[int, str] = {}
        for reference, root, name in self._leaves.values():
            parameter = reference()
            if parameter is not None:
                names.setdefault(parameter.untyped_storage()._cdata, self.full_path(root, name))
        return names

    def full_path(self, root: int, path: str) -> str:
        """The path below outermost module `root`, which is named only where several have parameters or it has none."""
        prefix = self._prefix(root)
        return f"{prefix}.{path}" if prefix and path else prefix or path

    def _prefix(self, root: int) -> str:
        class_name, has_parameters = self._root_classes[root]
        alone = len(self._root_classes) == 1 or (has_parameters and sum(has for _, has in self._root_classes) == 1)
        if alone or root == self._unnamed_root:
            return ""
        twins = [index for index, (name, _) in enumerate(self._root_classes) if name == class_name]
        return class_name if len(twins) == 1 else f"{class_name}#{twins.index(root) + 1}"


def nodes_of(value: object, depth: int = 3) -> Iterator[Node]:
    """The nodes of the tensors in a value: a tensor, or tuples, lists and mappings of them."""
    if isinstance(value, Tensor):
        node = value.grad_fn
        if node is not None:
            yield node
    elif depth and isinstance(value, tuple | list):
        for each in value:
            yield from nodes_of(each, depth - 1)
    elif depth and isinstance(value, Mapping):
        for each in list(value.values()):
            yield from nodes_of(each, depth - 1)


def mark(nodes: Iterable[Node], operation: Operation) -> None:
    """Marks the nodes. A mark that is there already, of an inner call, stays."""
    for node in nodes:
        notes_on(node).setdefault(_MARK, operation)


def mark_result(result: object, operation: Operation) -> None:
    """`mark` for what a torch function returned: nearly always one tensor."""
    if isinstance(result, Tensor):
        node = result.grad_fn
        if node is not None:
            notes_on(node).setdefault(_MARK, operation)
    else:
        mark(nodes_of(result), operation)


def unmarked_nodes(result: object) -> list[Node]:
    """The nodes of a function's result that no operation has claimed yet."""
    return [node for node in nodes_of(result) if _MARK not in notes_on(node)]


def seen_by(tape: Tape, node: Node) -> bool:
    """Whether the node was made in the tape's capture."""
    operation = notes_on(node).get(_MARK)
    return operation is not None and operation.tape is tape


def operations_of(
    found: Mapping[Node, tuple[tuple[Node | None, int], ...]], oldest_first: Collection[Node]
) -> dict[Node, Operation]:
    """The operation that made each node, for those that a capture saw.

    Only nodes of an operation's results carry a mark. What lies below them within the operation's own interval of
    sequence numbers (the TBackward0 of a linear) was made by it too, and takes it over from its user, which is newer. A
    leaf's AccumulateGrad was made by the first operation that used the leaf.
    """
    operations: dict[Node, Operation] = {}
    for node in reversed(list(oldest_first)):
        operation = notes_on(node).get(_MARK) or operations.get(node)
        if operation is None:
            continue
        operations[node] = operation
        for child, _ in found[node]:
            if child is None:
                continue
            number = child._sequence_nr()
            if operation.start <= number < operation.end:
                operations.setdefault(child, operation)
            elif number == UNNUMBERED:
                operations[child] = operation  # the last to say so is the oldest user
    return operations
