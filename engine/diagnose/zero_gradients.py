"""Finds leaves with no gradient or only zeros, the tasks where this starts, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.graph import Graph
from ...inspector.graph.kinds import Kind
from ...inspector.text.sizes_and_counts import dtype_name
from ...inspector.torch_private.distributed import is_partly_here
from ...inspector.torch_private.engine import torch_backward
from ...inspector.torch_private.hooks import register_post_hook
from ...inspector.torch_private.saved_variables import saved_numbers, saved_slots
from ...inspector.torch_private.tensors import computable, computes_itself, elements_of
from ...inspector.torch_private.thread_state import unobserved
from ..api.make_loss import own_gradients

_Kept = Mapping[str, Tensor | float]
"""A node's saved values, by name."""


Cause = Literal[
    "dead", "outside", "masked", "zero factor", "flat", "overwritten", "padding_idx", "ignore_index", "underflow"
]
"""The name of a reason why a task returns zeros."""

_SCALING = {"Mul", "Div", "Mean", "ToCopy"}
"""Nodes whose first output is the gradient times non-zero factors, or a cast of it, element by element."""


@dataclass(frozen=True, slots=True)
class ZeroReason:
    """A reason why all of an output may be zero.

    Attributes:
        cause: its name.
        everywhere: the sentence where no element passes the gradient on.
        where: the sentence where no element with a non-zero gradient passes it on; None: the gradient and the saved
            tensor do not have the same elements, as in a product of matrices.
        stops: from the node's saved values the mask of elements that pass nothing on; None: no element ever does.
    """

    cause: Cause
    everywhere: str
    where: str | None = None
    stops: Callable[[_Kept], Tensor | bool] | None = None


def passing(reason: ZeroReason, node: Node, gradient: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return two masks: the elements that pass a gradient on, and those of them with a non-zero gradient here.

    None if that is not known, as for a tensor that a checkpoint packed.
    """
    assert reason.stops is not None
    with unobserved():
        kept: dict[str, Tensor | float] = {**saved_numbers(node)}
        for slot in saved_slots(node):
            kept[slot.name] = slot.tensor
        if not all(map(_is_plain, (gradient, *(each for each in kept.values() if isinstance(each, Tensor))))):
            return None
        try:
            stops = reason.stops(kept)
        except KeyError:
            return None
        if not isinstance(stops, Tensor):
            return None
        through = ~stops
        return through, through if reason.where is None else through & (gradient != 0)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor can be read element by element."""
    if computes_itself(tensor) or tensor.is_quantized or tensor.is_nested:
        return False
    return tensor.layout is torch.strided and tensor.device.type != "meta"


def _clamped(kept: _Kept) -> Tensor | bool:
    below, above = kept.get("min"), kept.get("max")
    outside: Tensor | bool = False
    if below is not None:
        outside = outside | (kept["self"] < below)
    return outside if above is None else outside | (kept["self"] > above)


def _set(slot: str) -> Callable[[_Kept], Tensor | bool]:
    return lambda kept: kept[slot] != 0


def _unset(slot: str) -> Callable[[_Kept], Tensor | bool]:
    return lambda kept: kept[slot] == 0


def _elements(cause: Cause, what: str, more: str = "") -> tuple[Cause, str, str]:
    return cause, f"every element {what}{more}", f"every element with a non-zero gradient {what}"


_DEAD = _elements("dead", "was zero or below", " (a dead ReLU)")
_OUTSIDE = _elements("outside", "was outside the range in which it passes gradients")
_MASKED = _elements("masked", "was masked")
_FACTOR = "the other factor is all zero"
_FACTOR_THERE = "the other factor is zero wherever the gradient is not"
_FLAT = ZeroReason("flat", "its derivative is zero everywhere")
_OVERWRITTEN = ZeroReason("overwritten", "the value was overwritten")
_PADDING = ZeroReason(
    "padding_idx", "every index was the padding_idx", None, lambda kept: kept["indices"] == kept["padding_idx"]
)
_IGNORED = ZeroReason(
    "ignore_index", "every target was the ignore_index", None, lambda kept: kept["target"] == kept["ignore_index"]
)

_REASONS = {
    ("Relu", 0): ZeroReason(*_DEAD, lambda kept: kept["result"] <= 0),
    **{(name, 0): ZeroReason(*_OUTSIDE, _clamped) for name in ("Clamp", "ClampMin", "ClampMax")},
    ("Hardtanh", 0): ZeroReason(
        *_OUTSIDE, lambda kept: (kept["self"] <= kept["min_val"]) | (kept["self"] >= kept["max_val"])
    ),
    ("Hardsigmoid", 0): ZeroReason(*_OUTSIDE, lambda kept: (kept["self"] <= -3) | (kept["self"] >= 3)),
    ("Threshold", 0): ZeroReason(*_OUTSIDE, lambda kept: kept["self"] <= kept["threshold"]),
    ("MaskedFill", 0): ZeroReason(*_MASKED, _set("mask")),
    ("MaskedScatter", 0): ZeroReason(*_MASKED, _set("mask")),
    ("Where", 0): ZeroReason(*_MASKED, _unset("condition")),
    ("Where", 1): ZeroReason(*_MASKED, _set("condition")),
    ("NativeDropout", 0): ZeroReason(*_MASKED, _unset("result1")),
    ("Mul", 0): ZeroReason("zero factor", _FACTOR, _FACTOR_THERE, _unset("other")),
    ("Mul", 1): ZeroReason("zero factor", _FACTOR, _FACTOR_THERE, _unset("self")),
    **{
        (name, output): ZeroReason("zero factor", _FACTOR, None, _unset(slot))
        for name, factors in {
            "Mm": {0: "mat2", 1: "self"},
            "Bmm": {0: "mat2", 1: "self"},
            "Addmm": {1: "mat2", 2: "mat1"},
            "Baddbmm": {1: "batch2", 2: "batch1"},
            "Mv": {0: "vec", 1: "self"},
            "Addmv": {1: "vec", 2: "mat"},
            "Dot": {0: "tensor", 1: "self"},
            "Convolution": {0: "weight", 1: "input"},
        }.items()
        for output, slot in factors.items()
    },
    ("Embedding", 0): _PADDING,
    ("NllLoss", 0): _IGNORED,
    ("NllLoss2D", 0): _IGNORED,
    **{(name, 0): _FLAT for name in ("Round", "Floor", "Ceil", "Trunc", "Sign", "Sgn")},
    **{(name, 0): _OVERWRITTEN for name in ("Zero", "Fill", "CopyBackwards")},
}
"""Maps (short name of a node, number of its output) to the reason why that output may be zero.

A bias has no entry: its gradient is a sum, and nothing is multiplied with it.
"""


State = bool | None
"""The state of a gradient: None if it is undefined, else whether any element is, or may be, non-zero."""


@dataclass(frozen=True, slots=True)
class ZeroOrigin:
    """A task at which a missing or all-zero gradient begins.

    Attributes:
        task: the task.
        how: "task": it takes a non-zero gradient and returns none or zeros; "sum": its inputs are non-zero one by one,
            and their sum is zero, or a hook made it so.
        undefined: whether there is no gradient at all.
        gradients: how many gradients the task takes; 0: it is the loss's, where the backward starts.
        reason: why the task returns zeros, if its kind and its saved tensors tell.
        empty: the shape of the task's output, if that has no elements.
        cause: the reason's name.
        in_part: whether the reason holds only for the elements with a non-zero gradient.
    """

    task: int
    how: Literal["task", "sum"]
    undefined: bool
    gradients: int
    reason: str | None = None
    empty: tuple[int, ...] | None = None
    cause: Cause | None = None
    in_part: bool = False


@dataclass(frozen=True, slots=True)
class Arrived:
    """A leaf's gradient, as the backward gave it.

    Attributes:
        state: whether there is a gradient, and whether any element is non-zero.
        origins: the tasks at which a missing or zero gradient begins.
        unread: the reason why the elements cannot be read; "" if they can.
    """

    state: State
    origins: tuple[ZeroOrigin, ...] = ()
    unread: str = ""


def arrived_at(loss: Tensor, graph: Graph, leaves: Sequence[Tensor]) -> list[Arrived]:
    """Run the backward of a loss, which frees its graph, and return each leaf's gradient state. No .grad changes.

    Tensor hooks run. Hooks on .grad (`register_post_accumulate_grad_hook`, DistributedDataParallel's) do not, except in
    a graph with reentrant checkpoints, and on leaves for which a custom Function runs its own backward.
    """
    watch = ZeroWatch(graph)
    counts = watch.counts
    tasks = {id(leaf): task_id for task_id, leaf in graph.leaves.items()}
    try:
        watch.open()
        if any(task.kind is Kind.CHECKPOINT for task in graph.tasks):
            written = list({id(leaf): leaf for leaf in (*leaves, *graph.leaves.values())}.values())
            with own_gradients(written, zeroed=True):
                torch_backward(loss)
                found = [(counts.state(leaf.grad), _unread(leaf.grad)) for leaf in leaves]
        else:
            found = _looked_at(loss, list(graph.leaves.values()), leaves, counts)
    finally:
        watch.close()
    watch.read()
    arrived = []
    for leaf, (read, unread) in zip(leaves, found, strict=True):
        state = read()
        task_id = tasks.get(id(leaf))
        origins = () if state or task_id is None else watch.origins(task_id)
        arrived.append(Arrived(state, origins, unread))
    return arrived


def _looked_at(
    loss: Tensor, inside: Sequence[Tensor], leaves: Sequence[Tensor], counts: _Counts
) -> list[tuple[Callable[[], State], str]]:
    """Return the state of each leaf's gradient, and the reason why it can't be read; `inside`: the graph's leaves.

    Other leaves may get gradients too: a custom Function (of reversible layers, say) can run its own backward.
    """
    with own_gradients(leaves, zeroed=True):
        gradients = torch.autograd.grad(loss, inside, allow_unused=True) if inside else ()
        given = dict(zip(map(id, inside), gradients, strict=True))
        found = [(given.get(id(leaf)), leaf.grad) for leaf in leaves]
        return [(partial(_either, *map(counts.state, each)), _unread(*each)) for each in found]


def _unread(*gradients: Tensor | None) -> str:
    with unobserved():
        reasons = [is_unknown(each) for each in gradients if each is not None]
    return next(filter(None, reasons), "")


def _either(one: Callable[[], State], other: Callable[[], State]) -> State:
    return max((state for state in (one(), other()) if state is not None), default=None)


class _Counts:
    """Counts non-zero elements on the gradients' devices. The counts are read after the run, all of a device at once:
    no task waits for an accelerator."""

    def __init__(self) -> None:
        self._counts: dict[torch.device, list[Tensor]] = {}
        self._numbers: dict[torch.device, list[int]] = {}

    def of(self, values: Tensor) -> Callable[[], int]:
        """Count now; call the result after `read`."""
        counts = self._counts.setdefault(values.device, [])
        counts.append(values.count_nonzero())
        device, place = values.device, len(counts) - 1
        return lambda: self._numbers[device][place]

    def state(self, gradient: Tensor | None) -> Callable[[], State]:
        """Look at a gradient now; call the result after `read`."""
        if gradient is None:
            return lambda: None
        with unobserved():
            if is_unknown(gradient):
                return lambda: True  # an element may be non-zero
            numbers = [self.of(computable(part)) for part in elements_of(gradient).parts]
            return lambda: any(number() > 0 for number in numbers)

    def read(self) -> None:
        with unobserved():
            for device, counts in self._counts.items():
                self._numbers[device] = torch.stack(counts).tolist()


class ZeroWatch:
    """Hooks on all nodes of a backward that note undefined and zero gradients, and possible causes of zeros.

    Call `open` before the backward, `close` after it, and then `read`, which waits for an accelerator.

    Attributes:
        counts: the numbers of non-zero elements of all gradients.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.counts = _Counts()
        self._notes: list[tuple[dict[int, list[State]], int, list[Callable[[], State]]]] = []
        self._taken: dict[int, list[State]] = {}
        self._given: dict[int, list[State]] = {}
        self._passes: dict[tuple[int, int], tuple[Callable[[], int], Callable[[], int]]] = {}
        self._empty: dict[tuple[int, int], tuple[int, ...]] = {}
        self._dtypes: dict[int, torch.dtype] = {}  # of the first output, of the nodes in _SCALING
        self._origins: dict[int, tuple[ZeroOrigin, ...]] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def open(self) -> None:
        for task, node in zip(self._graph.tasks, self._graph.nodes, strict=True):
            if not task.is_leaf:
                self._handles.append(register_post_hook(node, partial(self._ran, task.id, task.short_name, node)))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()  # handles keep the nodes alive
        self._graph = replace(self._graph, nodes=())

    def _ran(
        self, task_id: int, name: str, node: Node, given: Sequence[Tensor | None], taken: Sequence[Tensor | None]
    ) -> None:
        self._notes.append((self._given, task_id, list(map(self.counts.state, given))))
        self._notes.append((self._taken, task_id, list(map(self.counts.state, taken))))
        for output, each in enumerate(given):
            if each is not None and not each.is_nested and not each.numel():
                self._empty[task_id, output] = tuple(each.shape)
        if name in _SCALING and given and given[0] is not None and given[0].is_floating_point():
            self._dtypes[task_id] = given[0].dtype
        gradient, *others = taken or (None,)
        if gradient is None or any(each is not None for each in others):
            return
        for output, each in enumerate(given):
            reason = None if each is None else _REASONS.get((name, output))
            if reason is None or reason.stops is None:
                continue
            # Compute now: the engine frees the saved tensors after this hook (engine.cpp, evaluate_function).
            masks = passing(reason, node, gradient)
            if masks is not None:
                with unobserved():
                    self._passes[task_id, output] = self.counts.of(masks[0]), self.counts.of(masks[1])

    def read(self) -> None:
        """Read the notes, once for all leaves."""
        self.counts.read()
        for states, task_id, noted in self._notes:
            states[task_id] = [read() for read in noted]
        self._notes.clear()

    def origins(self, leaf: int) -> tuple[ZeroOrigin, ...]:
        """Return the last tasks above a leaf that still took a non-zero gradient, the nearest first."""
        todo = [leaf]
        while todo:
            task_id = todo[-1]
            edges = self._graph.in_edges[task_id]
            above: list[int] = []  # the tasks whose origins this task shares and which are not known yet
            if task_id not in self._origins and not any(self._gives(edge.task, edge.output) for edge in edges):
                above = [edge.task for edge in edges if edge.task not in self._origins and not self._takes(edge.task)]
            if above:
                todo += above
                continue
            todo.pop()
            if task_id not in self._origins:
                self._origins[task_id] = self._origins_of(task_id)
        return self._origins[leaf]

    def _origins_of(self, task_id: int) -> tuple[ZeroOrigin, ...]:
        """Return a task's origins; those of the tasks above are known."""
        edges = self._graph.in_edges[task_id]
        if not edges or any(self._gives(edge.task, edge.output) for edge in edges):
            return (ZeroOrigin(task_id, "sum", False, len(edges)),)
        here: dict[ZeroOrigin, None] = {}
        # Keyed by id, so that a tuple which all tasks of a chain share is read once; this keeps the search linear.
        above: dict[int, tuple[ZeroOrigin, ...]] = {}
        for edge in edges:
            if self._takes(edge.task):
                undefined = self._gives(edge.task, edge.output) is None
                reason, cause, in_part = (None, None, False) if undefined else self._reason(edge.task, edge.output)
                empty = self._empty.get((edge.task, edge.output))
                gradients = len(self._taken[edge.task])
                here[ZeroOrigin(edge.task, "task", undefined, gradients, reason, empty, cause, in_part)] = None
            else:
                found = self._origins[edge.task]
                above[id(found)] = found
        if not here and len(above) == 1:
            return next(iter(above.values()))
        return tuple(dict.fromkeys([*here, *chain.from_iterable(above.values())]))

    def _gives(self, task_id: int, output: int) -> State:
        return self._given[task_id][output] if task_id in self._given else None

    def _takes(self, task_id: int) -> bool:
        return any(self._taken.get(task_id, ()))

    def _reason(self, task_id: int, output: int) -> tuple[str | None, Cause | None, bool]:
        """Return the reason why an output is zero, its name, and whether it holds in part. None: unknown."""
        reason = _REASONS.get((self._graph.tasks[task_id].short_name, output))
        if reason is not None and reason.stops is None:
            return reason.everywhere, reason.cause, False
        if reason is not None and (task_id, output) in self._passes:
            through, arriving = self._passes[task_id, output]
            if not through():
                return reason.everywhere, reason.cause, False
            if not arriving() and reason.where is not None:
                return reason.where, reason.cause, True
        elif reason is not None:
            return None, None, False
        dtype = self._dtypes.get(task_id) if output == 0 else None
        if dtype is None:
            return None, None, False
        smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        text = f"it is below {smallest:.0e}, the smallest {dtype_name(dtype)}; scale the loss (torch.amp.GradScaler)"
        return text, "underflow", False


def is_unknown(gradient: Tensor) -> str:
    """Return the reason why a gradient's elements cannot be read; "" if they can. To be called `unobserved`."""
    return "this rank has only a part of it" if is_partly_here(gradient) else elements_of(gradient).unread


def describe_origin(drawn: Graph, origin: ZeroOrigin) -> str:
    """Return where a missing or zero gradient begins, and why, as part of a sentence."""
    task = drawn.tasks[origin.task]
    where = drawn.describe(task)
    if origin.how == "sum" and origin.gradients > 1:
        which = f"the {origin.gradients:,} gradients received by {where}"
        return f"{which} sum to zero, or a hook zeroed their sum"
    if origin.how == "sum" and not origin.gradients:
        return "a hook zeroed the loss's gradient"
    if origin.how == "sum":
        return f"a hook zeroed the gradient received by {where}"
    if origin.undefined:
        what = "the backward of " if task.kind is Kind.FUNCTION else ""
        return f"{what}{where} returns None for it"
    if origin.empty is not None:
        return f"{where} returns an empty gradient of shape {origin.empty} because {_empty_input(drawn, origin.task)}"
    return f"{where} receives a non-zero gradient and returns zeros{f': {origin.reason}' if origin.reason else ''}"


def _empty_input(drawn: Graph, task_id: int) -> str:
    """Describe the input without elements: the selection that made it, if one is near, and what to do."""
    selecting, at = None, task_id
    for _ in range(_MOST_BETWEEN):
        if drawn.tasks[at].name.startswith(_SELECTING):
            selecting = drawn.describe(at)
            break
        if len(drawn.out_edges[at]) != 1:
            break
        at = drawn.out_edges[at][0].next_task
    made = f" ({selecting} selects no element)" if selecting else ""
    return f"its forward input had no elements{made}; check the mask or slice, or leave this term out when it is empty"


_SELECTING = ("IndexBackward", "MaskedSelectBackward", "SliceBackward", "IndexSelectBackward", "NarrowBackward")
_MOST_BETWEEN = 4  # tasks between a reduction and the selection of its input
