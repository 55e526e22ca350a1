"""What a capture writes down of a forward. Nodes refer to it, so nothing in it may lead back to a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident
from time import perf_counter_ns
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

from ..torch_internals.sequence_numbers import sequence_nr
from ..torch_internals.tensors import FollowedStorage, storage_of
from .kept_inputs import KeptInputs, writes_first_argument
from .source import Place, Source, source_at

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
    """One call of a torch function in the forward; of a custom Function, or of a whole module where no more is seen.

    It made the nodes whose sequence numbers lie in [start, end) of its thread. The line it was
    called from is looked up when `source` is asked for.

    Attributes:
        function: what was called; a class for a custom Function or a module.
        inputs: what it was called with, where the capture kept that.
        began_ns, created_ns: when it was called and had returned, of `time.perf_counter_ns`; both are the latter where
            its call was not seen.
        stream: of an accelerator, the one on which it was put: that of the nodes that it made.
    """

    __slots__ = (
        "_place",
        "_source",
        "_was_resolved",
        "began_ns",
        "call",
        "created_ns",
        "end",
        "facts",
        "function",
        "inputs",
        "start",
        "stream",
    )

    def __init__(
        self,
        facts: Facts,
        function: Callable[..., Any] | type,
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
        self._place = place
        self._source: Source | None = None
        self._was_resolved = place is None

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    @property
    def name(self) -> str:
        """`torch.nn.functional.linear`, `torch.Tensor.add`; the class of a custom Function or module."""
        function = self.function
        return function.__qualname__ if isinstance(function, type) else _function_name(function)

    @property
    def writes_in_place(self) -> bool:
        """Whether it changes its first argument."""
        name: str = getattr(self.function, "__name__", "")
        return name[-1:] == "_" and writes_first_argument(name)

    @property
    def source(self) -> Source | None:
        """The user's line that called it."""
        if not self._was_resolved:
            resolve_sources([self])
        return self._source

    @property
    def place(self) -> Place | None:
        """The instruction in the user's code that called it."""
        return self._place


@lru_cache(maxsize=4096)
def _function_name(function: Callable[..., Any]) -> str:
    """torch looks for it among all of its functions: ten microseconds."""
    return resolve_name(function) or str(getattr(function, "__name__", function))


def resolve_sources(operations: Iterable[Operation]) -> None:
    """Finds the lines of many operations at once, which is faster than one by one."""
    known: dict[tuple[int, int], tuple[Place, Source | None]] = {}  # code is compared by all that is in it
    for operation in operations:
        if not operation._was_resolved and (place := operation._place) is not None:
            code, instruction = place
            key = id(code), instruction
            if key not in known:
                known[key] = place, source_at(place)
            operation._source = known[key][1]
            operation._was_resolved = True


class Facts:
    """What was seen in one captured forward, of the thread that entered the capture.

    Attributes:
        thread: the thread; sequence numbers are counted per thread.
        first: the sequence number of the first node that could be made in the capture.
        allocations: by address the storages that operations without a node allocated (masks, noise, leaves made in the
            forward, tensors kept outside the graph), each with the number of nodes that this thread had made by then.
    """

    def __init__(self) -> None:
        _alive.add(self)
        self.thread = get_ident()
        self.first = sequence_nr()
        self.allocations: dict[int, tuple[FollowedStorage, int]] = {}
        self._buffers: dict[int, ref[Tensor]] = {}  # of the modules, by id()
        # Parameters by id(), in columns: a tuple for each would be one more object for the garbage collector.
        self._leaves: dict[int, ref[Tensor]] = {}
        self._leaf_roots: dict[int, int] = {}  # their outermost modules
        self._leaf_names: dict[int, str] = {}
        self._root_classes: list[tuple[str, bool]] = []  # of each outermost module, and whether it has parameters
        self._unnamed_root: int | None = None

    def __repr__(self) -> str:
        return f"<Facts of {', '.join(name for name, _ in self._root_classes) or 'no module'}>"

    @staticmethod
    def alive() -> bool:
        """Whether any capture's facts are left, so that looking for marks is worth it."""
        return bool(_alive)

    def add_root(self, module: nn.Module, unnamed: bool = False) -> tuple[int, dict[nn.Module, str]]:
        """Takes down an outermost module and the names of its parameters. Returns its number and its modules' paths.

        Paths below an `unnamed` one never start with its class.
        """
        root = len(self._root_classes)
        paths = _paths_below(module)
        leaves, names = self._leaves, self._leaf_names
        before = len(leaves)
        for part, path in paths.items():
            for name, parameter in part._parameters.items():
                if parameter is not None and (key := id(parameter)) not in leaves:
                    leaves[key] = ref(parameter)
                    names[key] = f"{path}.{name}" if path else name
                    self._leaf_roots[key] = root
            for buffer in part._buffers.values():
                if buffer is not None:
                    self._buffers[id(buffer)] = ref(buffer)
        self._root_classes.append((type(module).__name__, len(leaves) > before))
        if unnamed:
            self._unnamed_root = root
        return root, paths

    def model_tensors(self) -> list[Tensor]:
        """The parameters and buffers of the modules seen, of those that are alive."""
        references = (*self._leaves.values(), *self._buffers.values())
        return [tensor for reference in references if (tensor := reference()) is not None]

    def leaf_name(self, leaf: Tensor) -> str | None:
        """The name of a parameter of one of the modules seen."""
        key = id(leaf)
        found = self._leaves.get(key)
        if found is None or found() is not leaf:
            return None
        return self.full_path(self._leaf_roots[key], self._leaf_names[key])

    def name_below(self, view: Tensor) -> str | None:
        """The name of a parameter of which this is a view."""
        storage = storage_of(view)
        for key, reference in self._leaves.items() if storage is not None else ():
            leaf = reference()
            if leaf is not None and storage_of(leaf) == storage:
                return self.full_path(self._leaf_roots[key], self._leaf_names[key])
        return None

    def place_below(self, root: int, names: Mapping[int, Sequence[str]], classes: Mapping[str, str]) -> str | None:
        """The path of outermost module `root` in a model; None: it has no parameter there, or it may be one of several.

        Args:
            root: its number.
            names: of the model's parameters by id(); of tied ones all.
            classes: of the model's modules by path.
        """
        for key, of in self._leaf_roots.items():
            if of == root and key in names and self._leaves[key]() is not None:
                own = self._leaf_names[key]
                above = [name[: -len(own) - 1] for name in names[key] if f".{name}".endswith(f".{own}")]
                places = [place for place in above if classes.get(place) == self._root_classes[root][0]]
                if len(places) == 1:
                    return places[0]
        return None

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


def _paths_below(module: nn.Module) -> dict[nn.Module, str]:
    """What `named_modules()` gives, without its generator for each level above each module."""
    paths: dict[nn.Module, str] = {}
    waiting = [("", module)]
    while waiting:
        path, part = waiting.pop()
        if part in paths:
            continue
        paths[part] = path
        prefix = f"{path}." if path else ""
        for name, below in reversed(part._modules.items()):
            if below is not None:
                waiting.append((path if name == "_orig_mod" else prefix + name, below))  # what torch.compile wraps in
    return paths


@dataclass(frozen=True, slots=True, eq=False)
class StoredOperation:
    """A forward operation as a file keeps it.

    Attributes:
        name: what was called, as torch calls it.
        source: the user's line; None where it was not seen.
    """

    name: str
    source: Source | None
