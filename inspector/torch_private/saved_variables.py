"""Saved tensors of nodes: reading them, freeing them, and detecting saved-tensor hooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from ..garbage_collector import all_objects
from .tensors import computes_itself, is_fake
from .thread_state import unobserved


class SavedSlot(NamedTuple):
    """A saved tensor of a node. `tensor` is the user's tensor, or for a saved output another tensor on its storage.

    `maker` is the tensor's `grad_fn`; None if the tensor was modified in place since it was saved.
    """

    name: str
    tensor: Tensor
    maker: Node | None
    modified: bool


def saved_slots(node: Node) -> Iterator[SavedSlot]:
    """Yield the saved tensors of a node.

    Freed nodes yield nothing. Tensors packed by `saved_tensors_hooks` (checkpoint, save_on_cpu) are omitted, because
    reading them would run the user's hooks. CopySlices and custom C++ nodes hide their saved tensors.
    """
    for name, shown_name, raws in _kept_slots(node):
        modified = False
        try:
            with unobserved():  # reading a saved result detaches it
                found = getattr(node, shown_name)
                many = isinstance(found, tuple | list)
                makers = [None if each is None else each.grad_fn for each in (found if many else (found,))]
        except RuntimeError as error:
            if MODIFIED not in str(error):  # freed
                continue
            makers = [None] * len(raws)
            modified = True
        found = None
        for each, maker in zip(raws, makers, strict=True):
            if each is not None and isinstance(each.data, Tensor):
                yield SavedSlot(name, each.data, maker, modified)


class WrittenSlot(NamedTuple):
    """A slot whose tensor was modified in place; `tensor` is None if the slot has several and it is not known which.

    `version` is the version at which the tensor was saved, `now` its current version.
    """

    name: str
    tensor: Tensor | None
    version: int
    now: int


def written_slots(node: Node) -> Iterator[WrittenSlot]:
    """Yield the slots for which PyTorch would raise "modified by an inplace operation". Runs no hooks."""
    for name, shown_name, raws in _kept_slots(node):
        try:
            getattr(node, shown_name)
        except RuntimeError as error:
            versions = _VERSIONS.search(str(error))
            if versions is None:  # freed
                continue
            now, version = int(versions[1]), int(versions[2])
            tensors = [each.data for each in raws if each is not None and isinstance(each.data, Tensor)]
            if len(tensors) > 1:
                tensors = [each for each in tensors if each._version == now]
            yield WrittenSlot(name, tensors[0] if len(tensors) == 1 else None, version, now)


MODIFIED = "modified by an inplace operation"
_VERSIONS = re.compile(MODIFIED + r".* is at version (\d+); expected version (\d+)", re.DOTALL)


def packed_slots(node: Node) -> Iterator[tuple[str, object]]:
    """Yield slot name and packed object of each tensor packed by `saved_tensors_hooks`. Runs no hooks."""
    slots = ("_raw_saved_tensors",) if isinstance(node, BackwardCFunction) else _raw_slots(type(node))
    for raw_name in slots:
        try:
            raw = getattr(node, raw_name)
        except RuntimeError:  # freed
            continue
        for each in raw if isinstance(raw, tuple | list) else (raw,):
            if each is not None and each.unpack_hook is not None and each.unpack_hook is not _freed:
                yield raw_name.removeprefix("_raw_saved_"), each.data


@cache
def _raw_slots(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _kept_slots(node: Node) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Yield the name, the attribute that returns the tensors, and torch's SavedTensor objects of each readable slot.

    Freed and packed slots are omitted.
    """
    # A Function's class may be created in each forward, so only the slots of C++ nodes are cached.
    slots = _SLOTS_OF_FUNCTIONS if isinstance(node, BackwardCFunction) else _slots(type(node))
    for name, raw_name, shown_name in slots:
        try:
            raw = getattr(node, raw_name)
        except RuntimeError:  # freed
            continue
        raws = raw if isinstance(raw, tuple | list) else (raw,)
        if not _has_hooks(raws):
            yield name, shown_name, raws


_SLOTS_OF_FUNCTIONS = (("tensors", "_raw_saved_tensors", "saved_tensors"),)


@cache
def _slots(kind: type) -> tuple[tuple[str, str, str], ...]:
    """Return (name, attribute with the SavedTensor, attribute with the tensor) of each slot of a C++ node."""
    names = [raw_name.removeprefix("_raw_saved_") for raw_name in _raw_slots(kind)]
    return tuple(
        (name, f"_raw_saved_{name}", "saved_tensors" if name == "tensors" else f"_saved_{name}") for name in names
    )


def _has_hooks(raws: Iterable[Any]) -> bool:
    """Return whether a saved tensor was packed by hooks, or is freed."""
    hooks = [each.unpack_hook for each in raws if each is not None]  # `any` would take twice as long
    return hooks.count(None) < len(hooks)


def saved_numbers(node: Node) -> dict[str, float]:
    """Return the numbers saved by a C++ node, such as an exponent or an epsilon."""
    if isinstance(node, BackwardCFunction):
        return {}
    tensors = {
        name.replace("_raw_saved_", "_saved_") for name in _raw_slots(type(node))
    }  # unpacking tensors would run hooks
    found = {}
    for name in _kept_names(type(node)):
        value = None if name in tensors else getattr(node, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name.removeprefix("_saved_")] = value
    return found


def saved_value(node: Node, name: str, otherwise: Any = None) -> Any:
    """Return a value other than a tensor saved by a C++ node: alpha, stride, sizes. Unpacks nothing."""
    return getattr(node, f"_saved_{name}", otherwise)


def saved_tensor(node: Node, name: str) -> Tensor:
    """Return a C++ node's saved tensor. Raises torch's error if it was freed or modified in place."""
    found: Tensor = getattr(node, f"_saved_{name}")
    return found


FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


def _freed(packed: int) -> Tensor:
    raise RuntimeError(FREED)


def refuse_spent(*gradients: Any) -> None:
    """Raise torch's error: the pre-hook of a node that has run but keeps its saved tensors; see `SpentNodes`."""
    raise RuntimeError(FREED)


def saved_variables(node: Node) -> list[Any]:
    """Return a C++ node's SavedTensor objects; empty for a node that hides them (see `hides_saved`)."""
    found: list[Any] = []
    try:
        for name in _raw_slots(type(node)):
            raw = getattr(node, name)
            if type(raw) is tuple:
                found.extend([each for each in raw if each is not None])
            elif raw is not None:
                found.append(raw)
    except RuntimeError:  # freed
        return []
    return found


SavedReader = Callable[[Node], Sequence[Any]]


def saved_reader(node: Node) -> SavedReader | None:
    """Return a reader of SavedTensor objects for this node's type (see `all_saved`); None if it has no slots."""
    names = _raw_slots(type(node))
    if not names:
        return None
    try:
        has_lists = tuple in [type(getattr(node, name)) for name in names]
    except RuntimeError:  # freed, so it is unknown
        has_lists = True
    if has_lists:
        return saved_variables
    return attrgetter(*names) if len(names) > 1 else lambda node: (getattr(node, names[0]),)


def all_saved(node: Node, read: SavedReader) -> Sequence[Any]:
    """Return a node's SavedTensor objects, using the reader for its type; empty if it was freed."""
    try:
        return read(node)
    except RuntimeError:
        return ()


def free_saved(saved: Sequence[Any]) -> None:
    """Free saved tensors as the engine does after a task (`release_variables`); a second use then raises the engine's
    error. Python cannot reset a saved tensor, so hooks replace it. Saved tensors with the user's hooks are
    unchanged.
    """
    if not saved:
        return
    free_saved_now()(saved)


def free_saved_now() -> Callable[[Sequence[Any]], None]:
    """Return the fastest function that frees saved tensors as `free_saved` does while this thread's modes stay."""
    # Registering hooks detaches the tensor, which a dispatch mode would see.
    return _free_unobserved if torch._C._len_torch_dispatch_stack() else _free


def _free_unobserved(saved: Sequence[Any]) -> None:
    with unobserved():
        _free(saved)


def _free(saved: Sequence[Any]) -> None:
    for each in saved:
        try:  # noqa: SIM105  (a context for each would cost more than the rest)
            each.register_hooks(id, _freed)
        except RuntimeError:  # has hooks, or is an optional tensor that was not passed
            pass


def kept_tensors(node: Node | None, saved: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the tensors in a C++ node's `saved` objects, or those of a custom Function's node. Unpacks nothing."""
    if isinstance(node, BackwardCFunction) and not function_is_freed(node):
        saved = [each for each in node._raw_saved_tensors if each is not None]
    for each in saved:
        if each.unpack_hook is None and isinstance(each.data, Tensor):
            yield each.data


def packed_by_user(saved: Sequence[Any]) -> bool:
    """Return whether `saved_tensors_hooks` (checkpoint, save_on_cpu) were open when the node saved these.

    Hooks apply to all saved tensors of a node or none, except that an optional tensor that is missing is not packed.
    """
    for each in saved:  # `any` would take twice as long
        hook = each.unpack_hook
        if hook is not None and hook is not _freed:
            return True
    return False


def unpacking(node: Node) -> Iterator[object]:
    """Yield a node's unpack hooks and the packed objects, without running any hook."""
    if not isinstance(node, BackwardCFunction):
        saved = saved_variables(node)
    else:
        saved = () if function_is_freed(node) else node._raw_saved_tensors
    for each in saved:
        hook = None if each is None else each.unpack_hook
        if hook is not None and hook is not _freed:
            yield hook
            yield each.data


def saves_subclass(saved: Sequence[Any]) -> bool:
    """Return whether one of these is a tensor subclass with its own operations (see `computes_itself`).

    Fake tensors do not count.
    """
    for each in saved:
        if each.unpack_hook is not None or type(tensor := each.data) in _PLAIN:
            continue
        if isinstance(tensor, Tensor) and computes_itself(tensor) and not is_fake(tensor):
            return True
    return False


_PLAIN = Tensor, torch.nn.Parameter, type(None)


def hidden_functions(nodes: Collection[Node]) -> dict[Node, BackwardCFunction]:
    """Return for each CopySlices node the hidden node of the custom Function that wrote to the slices in place.

    These nodes are searched among the objects tracked by Python's garbage collector, by their edges: they equal those
    of the CopySlices, except that the first edge leads to the base through views.
    """
    slices = {node: node.next_functions for node in nodes if type(node).__name__ == "CopySlices"}
    if not slices:
        return {}
    with all_objects() as objects:
        functions = [each for each in objects if issubclass(type(each), BackwardCFunction) and has_edges(each)]
    return {
        node: function
        for node, (base, *others) in slices.items()
        for function in functions
        if list(function.next_functions[1:]) == others and _leads(function.next_functions[:1], base[0])
    }


def has_edges(function: BackwardCFunction) -> bool:
    """Return whether a custom Function's object still has its node.

    Before torch 2.13 a reference to the object, such as a kept ctx, does not keep the node alive.
    """
    try:
        function.next_functions  # noqa: B018
    except RuntimeError:
        return False
    return True


_MOST_VIEWS = 64  # views of views to follow


def _leads(edges: Sequence[tuple[Node | None, int]], to: Node | None) -> bool:
    """Return whether the first edges lead to a node."""
    for _ in range(_MOST_VIEWS):
        if not edges or edges[0][0] is to:
            break
        edges = () if edges[0][0] is None else edges[0][0].next_functions
    return bool(edges) and edges[0][0] is to


def is_packed(node: Node) -> bool:
    """Return `packed_by_user` for all saved tensors of a C++ or custom Function's node."""
    if isinstance(node, BackwardCFunction):
        try:
            return packed_by_user([each for each in node._raw_saved_tensors if each is not None])
        except RuntimeError:  # freed
            return False
    return packed_by_user(saved_variables(node))


def hides_saved(node: Node) -> bool:
    """Return whether Python cannot see the saved tensors: for CopySlices and for C++ nodes of extensions."""
    kind = type(node)
    return kind.__name__ in ("CopySlices", "CppFunction")


def holds_saved(node: Node) -> bool:
    """Return whether a node has a saved tensor that a backward would free, so that a second one would raise.

    For nodes that hide their saved tensors this is assumed. Runs no hooks.
    """
    if hides_saved(node):
        return True
    if isinstance(node, BackwardCFunction):
        return not function_is_freed(node) and any(each is not None for each in node._raw_saved_tensors)
    # Without hooks, an optional saved tensor may be missing.
    return any(
        each.data is not None if each.unpack_hook is None else each.unpack_hook is not _freed
        for each in saved_variables(node)
    )


def free_function(node: Node) -> None:
    """Free a custom Function's saved tensors, unless the running backward retains the graph."""
    node.maybe_clear_saved_tensors()  # type: ignore[attr-defined]


def function_is_freed(node: Node) -> bool:
    """Return whether a custom Function's node has freed its saved tensors. Runs no hooks."""
    try:
        node._raw_saved_tensors  # type: ignore[attr-defined]  # noqa: B018
    except RuntimeError:
        return True
    return False


def first_freed(nodes: Iterable[Node]) -> Node | None:
    """Return the first node with saved tensors if they were freed; a second backward in this order raises there.

    Return None if they were not freed, or if that is unknown for this node or an earlier one. Custom Functions are
    skipped, since they raise from Python.
    """
    for node in islice(nodes, 50):
        if isinstance(node, BackwardCFunction):
            continue
        slots = _raw_slots(type(node))
        if not slots and hides_saved(node):
            return None
        try:
            for slot in slots:
                raw = getattr(node, slot)
                if type(raw) is tuple:
                    if any(each is not None and each.unpack_hook is _freed for each in raw):
                        return node
                    if raw:
                        return None
                    continue
                hook = raw.unpack_hook
                if hook is _freed:
                    return node
                if hook is not None or raw.data is not None:
                    return None
                getattr(node, f"_saved_{slot.removeprefix('_raw_saved_')}")  # None for a missing optional tensor
        except RuntimeError:
            return node
    return None


def saved_facts(node: Node) -> tuple[Any, ...] | None:
    """Return a C++ node's saved values in a comparable form: layouts of tensors, and other values.

    Return None if they are unknown. Do not call this for nodes with packed tensors, whose hooks would run.
    """
    try:
        facts = tuple([_fact(getattr(node, name)) for name in _kept_names(type(node))])
        hash(facts)
    except (RuntimeError, TypeError):  # freed; can't be hashed
        return None
    return facts


@cache
def _kept_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def _fact(value: Any) -> Any:
    if isinstance(value, Tensor):
        strides = value.stride() if value.layout is torch.strided and not value.is_nested else None
        return value.shape, strides, value.dtype, value.device, value.layout
    if isinstance(value, tuple | list):
        return tuple([_fact(each) for each in value])
    return type(value), value


SAVED_FOR_FORWARD = "saved_for_forward"
"""The attribute in which `save_for_forward` stores a custom Function's tensors."""


def attributes_of(node: Node) -> Mapping[str, object]:
    """Return the attributes that a custom Function set on its `ctx`; they live as long as the node."""
    return vars(node) if isinstance(node, BackwardCFunction) else {}
