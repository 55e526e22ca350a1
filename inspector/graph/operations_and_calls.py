"""Records that a capture makes of a forward. Nodes refer to them, so no record may lead back to a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

from ..torch_private.sequence_numbers import sequence_nr
from ..torch_private.tensors import FollowedStorage, storage_of
from .source_lines import Place, Source, source_at

if TYPE_CHECKING:
    from .operation_inputs import KeptInputs

_alive: WeakSet[Facts] = WeakSet()


class CallRecord:
    """One call of a module, as it happens. `root` numbers the outermost modules; `path` is the name below that one."""

    __slots__ = ("facts", "index", "module_class", "parent", "path", "root")

    def __init__(
        self, facts: Facts, root: int, path: str, module_class: type[nn.Module], parent: CallRecord | None, index: int
    ) -> None:
        self.facts = facts
        self.root = root
        self.path = path
        self.module_class = module_class
        self.parent = parent
        self.index = index

    @property
    def full_path(self) -> str:
        return self.facts.full_path(self.root, self.path)


class Operation:
    """One call of a torch function or custom Function in the forward, or of a module if its inside is not visible.

    It made the nodes of its thread with sequence numbers in [start, end). If torch reported each node, this interval is
    empty and each node has a mark instead. `source` is looked up when it is read.

    Attributes:
        function: the called function; a class for a custom Function or a module; a name if only that is known.
        inputs: its arguments, if the capture kept them.
        place: the instruction in the user's code that called it.
        began_ns, created_ns: the times of the call and of its return, by `time.perf_counter_ns`. Without a record of
            the call itself, they are the times at which torch reported its first and its last node.
        stream: the accelerator's stream on which it ran, and on which the backwards of its nodes run.
    """

    __slots__ = (
        "_source",
        "began_ns",
        "call",
        "created_ns",
        "end",
        "facts",
        "function",
        "inputs",
        "place",
        "start",
        "stream",
    )

    def __init__(
        self,
        facts: Facts,
        function: Callable[..., Any] | type | str,
        start: int,
        end: int,
        call: CallRecord | None,
        place: Place | None,
        inputs: KeptInputs | None = None,
        began_ns: int | None = None,
    ) -> None:
        self.facts = facts
        self.start = start
        self.end = end
        self.created_ns = perf_counter_ns()
        self.began_ns = self.created_ns if began_ns is None else began_ns
        self.call = call
        self.function = function
        self.inputs = inputs
        self.stream: torch.Stream | None = None
        self.place = place
        self._source: Source | None = None

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    @property
    def name(self) -> str:
        """`torch.nn.functional.linear`, `torch.Tensor.add`; the class of a custom Function or module."""
        function = self.function
        if isinstance(function, str):
            return function
        return function.__qualname__ if isinstance(function, type) else _function_name(function)

    @property
    def writes_in_place(self) -> bool:
        """Return whether it modifies its first argument."""
        from .operation_inputs import writes_first_argument

        name: str = getattr(self.function, "__name__", "")
        return name[-1:] == "_" and writes_first_argument(name)

    @property
    def source(self) -> Source | None:
        """The user's line that called it."""
        if self._source is None and self.place is not None:
            resolve_sources([self])
        return self._source


@lru_cache(maxsize=4096)
def _function_name(function: Callable[..., Any]) -> str:
    """Return the function's name. torch searches all of its functions, which takes ten microseconds."""
    return resolve_name(function) or str(getattr(function, "__name__", function))


def resolve_sources(operations: Iterable[Operation]) -> None:
    """Find the lines of many operations at once, which is faster than one by one."""
    known: dict[tuple[int, int], tuple[Place, Source | None]] = {}  # by id, since code objects are compared by content
    for operation in operations:
        if operation._source is None and (place := operation.place) is not None:
            code, instruction = place
            key = id(code), instruction
            if key not in known:
                known[key] = place, source_at(place)
            operation._source = known[key][1]


class Facts:
    """The record of one captured forward, in the thread that entered the capture.

    Attributes:
        thread: the thread's id; torch counts sequence numbers per thread.
        first: the sequence number of the first node that the capture could record.
        sees_every_call: whether operations without a node are recorded, so that `allocations` is complete.
        allocations: maps addresses to the storages that operations without a node allocated (masks, noise, leaves made
            in the forward, tensors kept outside the graph), each with the thread's sequence number at that time.
    """

    def __init__(self) -> None:
        _alive.add(self)
        self.thread = get_ident()
        self.first = sequence_nr()
        self.sees_every_call = False
        self.allocations: dict[int, tuple[FollowedStorage, int]] = {}
        self._buffers: list[ref[Tensor]] = []  # buffers of the modules
        self._unread: list[_Parameters] = []
        # Parameters by id(), in columns: a tuple for each would be one more object for the garbage collector.
        self._leaves: dict[int, ref[Tensor]] = {}
        self._leaf_roots: dict[int, int] = {}  # their outermost modules
        self._leaf_names: dict[int, str] = {}
        self._root_classes: list[str] = []  # of each outermost module
        self._roots_with_parameters: list[bool] = []
        self._known: dict[int, ref[Tensor]] = {}  # the references themselves, by id()
        self._unnamed_root: int | None = None

    def __repr__(self) -> str:
        return f"<Facts of {', '.join(self._root_classes) or 'no module'}>"

    @staticmethod
    def alive() -> bool:
        """Return whether the facts of a capture are alive, so that nodes can have marks."""
        return bool(_alive)

    def add_root(self, module: nn.Module, unnamed: bool = False) -> tuple[int, dict[nn.Module, str]]:
        """Add an outermost module and the names of its parameters. Return its number and its modules' paths.

        Paths below an `unnamed` module never start with its class.
        """
        root = len(self._root_classes)
        paths = {module: ""}
        holders: list[str] = []
        parameters: list[dict[str, Tensor | None]] = []
        buffers: list[dict[str, Tensor | None]] = []
        _walk(module, "", paths, holders, parameters, buffers)
        names = [found.keys() for found in parameters]  # iterating over a scripted module's dict raises TypeError
        self._unread.append(
            _Parameters(
                holders,
                [*map(len, parameters)],
                [*chain.from_iterable(names)],
                [None if each is None else ref(each) for found in parameters for each in found.values()],
            )
        )
        self._buffers += [ref(each) for found in buffers for each in found.values() if each is not None]
        self._root_classes.append(type(module).__name__)
        if unnamed:
            self._unnamed_root = root
        return root, paths

    def _read(self) -> None:
        """Name the parameters of the modules seen. This is delayed, so that the forward does not wait for it."""
        for root, parameters in enumerate(self._unread, len(self._roots_with_parameters)):
            before = len(self._known)
            names = iter(zip(parameters.names, parameters.references, strict=True))
            for path, count in zip(parameters.paths, parameters.counts, strict=True):
                for name, reference in islice(names, count):
                    if reference is None or id(reference) in self._known:  # torch has one for each living parameter
                        continue
                    self._known[id(reference)] = reference
                    if (parameter := reference()) is not None:
                        key = id(parameter)
                        self._leaves[key] = reference
                        self._leaf_names[key] = f"{path}.{name}" if path else name
                        self._leaf_roots[key] = root
            self._roots_with_parameters.append(len(self._known) > before)
        self._unread.clear()

    def model_tensors(self) -> list[Tensor]:
        """Return the living parameters and buffers of the modules seen."""
        self._read()
        references = (*self._leaves.values(), *self._buffers)
        tensors = (reference() for reference in references)
        return [*{id(tensor): tensor for tensor in tensors if tensor is not None}.values()]

    def leaf_name(self, leaf: Tensor) -> str | None:
        """Return the name of a leaf that is a parameter of one of the modules seen, or None."""
        self._read()
        key = id(leaf)
        found = self._leaves.get(key)
        if found is None or found() is not leaf:
            return None
        return self.full_path(self._leaf_roots[key], self._leaf_names[key])

    def name_below(self, view: Tensor) -> str | None:
        """Return the name of the parameter of which this tensor is a view, or None."""
        self._read()
        storage = storage_of(view)
        for key, reference in self._leaves.items() if storage is not None else ():
            leaf = reference()
            if leaf is not None and storage_of(leaf) == storage:
                return self.full_path(self._leaf_roots[key], self._leaf_names[key])
        return None

    def place_below(self, root: int, names: Mapping[int, Sequence[str]], classes: Mapping[str, str]) -> str | None:
        """Return the path of outermost module `root` in a model; None if it has no parameter there, or is ambiguous.

        Args:
            root: number of the module.
            names: all names of each of the model's parameters, by id().
            classes: classes of the model's modules, by path.
        """
        self._read()
        for key, of in self._leaf_roots.items():
            if of == root and key in names and self._leaves[key]() is not None:
                own = self._leaf_names[key]
                above = [name[: -len(own) - 1] for name in names[key] if f".{name}".endswith(f".{own}")]
                places = [place for place in above if classes.get(place) == self._root_classes[root]]
                if len(places) == 1:
                    return places[0]
        return None

    def full_path(self, root: int, path: str) -> str:
        """Return a path with the name of outermost module `root` if several have parameters, or this one has none."""
        self._read()
        prefix, have = "", self._roots_with_parameters
        is_alone = len(have) == 1 or (have[root] and sum(have) == 1)
        if not is_alone and root != self._unnamed_root:
            prefix = self._root_classes[root]
            twins = [index for index, name in enumerate(self._root_classes) if name == prefix]
            prefix += f"#{twins.index(root) + 1}" if len(twins) > 1 else ""
        return f"{prefix}.{path}" if prefix and path else prefix or path


class _Parameters(NamedTuple):
    """The parameters of an outermost module and those below it.

    Attributes:
        paths, counts: path and number of parameter names of each module with parameters.
        names: the names, in order.
        references: weak references to the parameters, in the same order; None if a name has no parameter.
    """

    paths: list[str]
    counts: list[int]
    names: list[str]
    references: list[ref[Tensor] | None]


def _walk(
    module: nn.Module,
    path: str,
    paths: dict[nn.Module, str],
    holders: list[str],
    parameters: list[dict[str, Tensor | None]],
    buffers: list[dict[str, Tensor | None]],
) -> None:
    """Collect the modules, parameters and buffers of a module and its submodules.

    Equivalent to `named_modules()`, `named_parameters()` and `named_buffers()`, but faster: it avoids nested generators
    and `Module.__getattr__`.
    """
    found: Any = module.__dict__
    if "_modules" not in found:  # a scripted module
        found = {name: getattr(module, name) for name in ("_modules", "_parameters", "_buffers")}
    if found["_parameters"]:
        holders.append(path)
        parameters.append(found["_parameters"])
    if found["_buffers"]:
        buffers.append(found["_buffers"])
    if found["_modules"]:
        prefix = f"{path}." if path else ""
        for name, below in found["_modules"].items():
            if below is not None and below not in paths:
                paths[below] = own = path if name == "_orig_mod" else prefix + name  # the wrapper of torch.compile
                _walk(below, own, paths, holders, parameters, buffers)


@dataclass(frozen=True, slots=True, eq=False)
class StoredOperation:
    """A forward operation read from a file.

    Attributes:
        name: torch's name of the function.
        source: the user's line; None if unknown.
    """

    name: str
    source: Source | None
