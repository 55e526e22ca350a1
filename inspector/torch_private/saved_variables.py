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
    """A tensor that a node keeps. `tensor` is the node's: the user's own, but of an output another one on its storage.

    `maker` is the tensor's `grad_fn`, None where the tensor was modified in place since it was saved.
    """

    name: str
    tensor: Tensor
    maker: Node | None
    modified: bool


def saved_slots(node: Node) -> Iterator[SavedSlot]:
    """The tensors which a node keeps.

    None for a node that was freed, and for what was packed by `saved_tensors_hooks` (checkpoint, save_on_cpu): looking
    at it would run the user's hooks. CopySlices and custom C++ nodes show nothing of what they keep.
    """
    for name, shown_name, raws in _kept_slots(node):
        modified = False
        try:
            with unobserved():  # a saved result is detached as it is read
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
    """A slot whose tensor was written since: `tensor` is None where the slot has several, and it isn't certain which.

    `version` is the tensor's when it was saved, `now` the one it has.
    """

    name: str
    tensor: Tensor | None
    version: int
    now: int


def written_slots(node: Node) -> Iterator[WrittenSlot]:
    """The slots of a node for which PyTorch would raise "modified by an inplace operation". Runs no hook."""
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
    """Per tensor that `saved_tensors_hooks` packed, the slot's name and what the pack hook gave. Runs no hook."""
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
    """Of each slot that is neither freed nor packed its name, the attribute that shows its tensors, and what torch
    keeps in it."""
    # A Function's class may be made anew in each forward: only those of C++ nodes are worth remembering.
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
    """By slot of a C++ node its name, and those of the attributes with what torch keeps and with the tensor."""
    names = [raw_name.removeprefix("_raw_saved_") for raw_name in _raw_slots(kind)]
    return tuple(
        (name, f"_raw_saved_{name}", "saved_tensors" if name == "tensors" else f"_saved_{name}") for name in names
    )


def _has_hooks(raws: Iterable[Any]) -> bool:
    """Return whether a saved tensor was packed by hooks, or is freed."""
    hooks = [each.unpack_hook for each in raws if each is not None]  # `any` would take twice as long
    return hooks.count(None) < len(hooks)


def saved_numbers(node: Node) -> dict[str, float]:
    """The numbers which a C++ node keeps beside its tensors: an exponent, an epsilon."""
    if isinstance(node, BackwardCFunction):
        return {}
    tensors = {name.replace("_raw_saved_", "_saved_") for name in _raw_slots(type(node))}  # to unpack them runs hooks
    found = {}
    for name in _kept_names(type(node)):
        value = None if name in tensors else getattr(node, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name.removeprefix("_saved_")] = value
    return found


def saved_value(node: Node, name: str, otherwise: Any = None) -> Any:
    """What a C++ node keeps under this name that is no tensor: alpha, stride, sizes. Unpacks nothing."""
    return getattr(node, f"_saved_{name}", otherwise)


def saved_tensor(node: Node, name: str) -> Tensor:
    """What a C++ node has saved under this name. Raises torch's error where it was freed or modified since."""
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
    """The pre-hook of a node that has run and still keeps what it saved: see `SpentNodes`."""
    raise RuntimeError(FREED)


def saved_variables(node: Node) -> list[Any]:
    """What a C++ node keeps, as torch's SavedTensor objects. Empty for a node that hides it: see `hides_saved`."""
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
    """What does `saved_variables` for nodes of this one's type, see `all_saved`. None where they have no slots."""
    names = _raw_slots(type(node))
    if not names:
        return None
    if _has_lists(node, names):
        return saved_variables
    return attrgetter(*names) if len(names) > 1 else lambda node: (getattr(node, names[0]),)


def all_saved(node: Node, read: SavedReader) -> Sequence[Any]:
    """What a reader of its type finds in the node; nothing in one that was freed."""
    try:
        return read(node)
    except RuntimeError:
        return ()


def _has_lists(node: Node, names: Sequence[str]) -> bool:
    """Whether a slot has several tensors, as far as that can be told."""
    try:
        return tuple in [type(getattr(node, name)) for name in names]
    except RuntimeError:  # freed
        return True


def free_saved(saved: Sequence[Any]) -> None:
    """Lets go of saved tensors as the engine does after a task (`release_variables`): a second use raises its error.

    Hooks take the tensor's place, since Python can't reset it. What has hooks of the user's stays as it is.
    """
    if not saved:
        return
    if torch._C._len_torch_dispatch_stack():  # hooks are given a detached tensor
        with unobserved():
            _free(saved)
    else:
        _free(saved)


def _free(saved: Sequence[Any]) -> None:
    for each in saved:
        try:  # noqa: SIM105  (a context for each would cost more than the rest)
            each.register_hooks(id, _freed)
        except RuntimeError:  # has hooks, or is an optional tensor that was never there
            pass


def kept_tensors(node: Node | None, saved: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors among what a C++ node has `saved`, and those of a custom Function's node. Unpacks nothing."""
    if isinstance(node, BackwardCFunction) and not function_is_freed(node):
        saved = [each for each in node._raw_saved_tensors if each is not None]
    for each in saved:
        if each.unpack_hook is None and isinstance(each.data, Tensor):
            yield each.data


def packed_by_user(saved: Sequence[Any]) -> bool:
    """Whether `saved_tensors_hooks` were at work when the node saved these: checkpoint, save_on_cpu.

    They are at work for all that a node saves, or for nothing; but what was never there is not packed.
    """
    for each in saved:  # `any` would take twice as long
        hook = each.unpack_hook
        if hook is not None and hook is not _freed:
            return True
    return False


def unpacking(node: Node) -> Iterator[object]:
    """What `saved_tensors_hooks` unpack a node's tensors with: the hooks, and what they packed. Runs none."""
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
    """Whether one of these is a tensor that runs operations in its own way (see `computes_itself`), of other code than
    torch's own: a fake tensor runs none."""
    for each in saved:
        if each.unpack_hook is not None or type(tensor := each.data) in _PLAIN:
            continue
        if isinstance(tensor, Tensor) and computes_itself(tensor) and not is_fake(tensor):
            return True
    return False


_PLAIN = Tensor, torch.nn.Parameter, type(None)


def hidden_functions(nodes: Collection[Node]) -> dict[Node, BackwardCFunction]:
    """By CopySlices among these the node of the custom Function that wrote the slices in place, and is hidden in it.

    They are found among what Python's garbage collector tracks. The CopySlices has their edges, but that the first one
    leads to what the tensor was before, and theirs leads there through views.
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
    """Return whether a custom Function's object still has its node. Before torch 2.13 whoever refers to the object (a
    kept ctx, say) does not keep the node."""
    try:
        function.next_functions  # noqa: B018
    except RuntimeError:
        return False
    return True


_MOST_VIEWS = 64  # one of the other


def _leads(edges: Sequence[tuple[Node | None, int]], to: Node | None) -> bool:
    """Whether the first edges lead to a node."""
    for _ in range(_MOST_VIEWS):
        if not edges or edges[0][0] is to:
            break
        edges = () if edges[0][0] is None else edges[0][0].next_functions
    return bool(edges) and edges[0][0] is to


def is_packed(node: Node) -> bool:
    """`packed_by_user` of all that a C++ or custom Function's node keeps."""
    if isinstance(node, BackwardCFunction):
        try:
            return packed_by_user([each for each in node._raw_saved_tensors if each is not None])
        except RuntimeError:  # freed
            return False
    return packed_by_user(saved_variables(node))


def hides_saved(node: Node) -> bool:
    """Whether Python can't see what the node keeps: the one inside a CopySlices, and C++ nodes of extensions."""
    kind = type(node)
    return kind.__name__ in ("CopySlices", "CppFunction")


def holds_saved(node: Node) -> bool:
    """Whether a node keeps a tensor that a backward would free, so that a second one would raise there. Of what hides
    it that is taken for granted. Runs no hook."""
    if hides_saved(node):
        return True
    if isinstance(node, BackwardCFunction):
        return not function_is_freed(node) and any(each is not None for each in node._raw_saved_tensors)
    return any(each.unpack_hook not in (None, _freed) or _is_there(each) for each in saved_variables(node))


def _is_there(saved: Any) -> bool:
    """Of a tensor without hooks: whether there is one. An optional one may never have been."""
    return saved.unpack_hook is None and saved.data is not None


def free_function(node: Node) -> None:
    """Lets a custom Function's node free what it saved, unless the backward under way keeps the graph."""
    node.maybe_clear_saved_tensors()  # type: ignore[attr-defined]


def function_is_freed(node: Node) -> bool:
    """Whether a custom Function's node has freed what it saved. Runs no hooks of `saved_tensors_hooks`."""
    try:
        node._raw_saved_tensors  # type: ignore[attr-defined]  # noqa: B018
    except RuntimeError:
        return True
    return False


def first_freed(nodes: Iterable[Node]) -> Node | None:
    """The first of the nodes that kept something, if it has been freed: in this order, the first that can complain.

    None if it has not, or if this can't be told of it or one before. Custom Functions complain from Python.
    """
    for node in islice(nodes, 50):
        if hides_saved(node):
            return None
        if isinstance(node, BackwardCFunction):
            continue
        try:
            for slot in _raw_slots(type(node)):
                raw = getattr(node, slot)
                if type(raw) is tuple and not raw:
                    continue
                if any(each is not None and each.unpack_hook is _freed for each in _all_of(raw)):
                    return node
                if type(raw) is tuple or raw.unpack_hook is not None or raw.data is not None:
                    return None
                getattr(node, f"_saved_{slot.removeprefix('_raw_saved_')}")  # None, of one that was never there
        except RuntimeError:
            return node
    return None


def _all_of(raw: Any) -> tuple[Any, ...]:
    return raw if type(raw) is tuple else (raw,)


def saved_facts(node: Node) -> tuple[Any, ...] | None:
    """What a C++ node keeps, as values that can be compared: layouts of tensors, and what else it shows.

    None where this can't be told. Not for nodes whose tensors were packed: the user's hooks would run.
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
"""Where a custom Function's `save_for_forward` puts its tensors, among the attributes."""


def attributes_of(node: Node) -> Mapping[str, object]:
    """What a custom Function put on its `ctx` by itself; it goes with the node, not when the node has run."""
    return vars(node) if isinstance(node, BackwardCFunction) else {}
