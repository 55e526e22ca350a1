"""A task's own backward, in its own precision, compared with the same node of a float64 replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from ...inspector.graph.graph import Graph, Task, TensorMeta
from ...inspector.text.sizes_and_counts import dtype_name
from ...inspector.torch_private.operators import InFloat64, in_float64
from ...inspector.torch_private.saved_variables import hides_saved, is_packed
from ...inspector.torch_private.tensors import computable
from .check_custom_function import call_quietly
from .check_saved_on_ctx import changed_on_ctx
from .float64_replay import OperationReplay, Outcome

_UNITS = 8  # multiples of the dtype's eps that count as rounding of the inputs


@dataclass(frozen=True, slots=True)
class Own:
    """The comparison of a task's own backward with float64.

    Attributes:
        ok: whether they agree; None if they could not be compared.
        line: one sentence, without capital letter and full stop.
    """

    ok: bool | None
    line: str


def compare_own(graph: Graph, task: Task, replay: OperationReplay, gradients: Sequence[Tensor | None] | None) -> Own:
    """Call the task's own node and the corresponding node of a replay with the same gradients, and compare."""
    node = graph.nodes[task.id]
    if why := _why_not(node, task, replay):
        return Own(None, f"its own gradients are not compared with float64's: {why}")
    with InFloat64():
        outcome = replay.at_points
    twin = _twin(task, replay, outcome)
    if twin is None:
        return Own(None, "its own gradients are not compared with float64's: PyTorch created other nodes in the replay")
    waiting = gradients is not None and any(each is not None for each in gradients)
    used = inputs_with_gradient(graph, task)
    random = [_random(meta) if number in used else None for number, meta in enumerate(task.inputs)]
    given = list(gradients or ()) if waiting else random
    if isinstance(node, BackwardCFunction) and not replay.unused:
        given = _with_zeros(given, task, outcome)
    if any(each is not None and each.layout is not torch.strided for each in given):
        return Own(None, "its own gradients are not compared with float64's: an incoming gradient is sparse")
    if changed := _changes_of_ctx(node, given, task, replay):
        return Own(
            None,
            f"its own gradients are not compared with float64's: its backward changes {' and '.join(changed)}, and the "
            "coming backward would use the changed value (so would a second one, if the graph is retained)",
        )
    try:
        own = call_quietly(node, [None if each is None else each.detach().clone() for each in given])
    except Exception as error:
        return _refused(error, waiting or isinstance(node, BackwardCFunction))
    try:
        with InFloat64():
            reference = call_quietly(twin, [None if each is None else in_float64(each) for each in given])
    except Exception:
        return Own(None, "its own gradients are not compared with float64's: its backward does not run in float64")
    dtype = _coarsest([*given, *own, *(kept.tensor for kept in replay.varied)])
    name = dtype_name(dtype)
    on = "the gradients in its input buffer" if waiting else "random gradients"
    found = list(_distances(own, reference))
    if any(each is None for each in found):
        return Own(False, f"its own backward in {name} returns gradients of other shapes than in float64")
    distances = [each for each in found if each is not None]
    if lost := sum(each.lost for each in distances):
        line = f"its own backward in {name}, on {on}, returns NaN or Inf in {lost:,} elements where float64 does not"
        return Own(False, line)
    off, allowed = max((each.relative for each in distances), default=0.0), _rounding(dtype, given)
    least = _UNITS * torch.finfo(dtype).eps * _largest(given)  # as small as the rounding of the inputs
    if all(each.relative <= allowed or each.absolute <= least for each in distances):
        line = f"its own backward in {name}, on {on}, differs from float64 by at most {off:.1g}, relatively"
        return Own(True, f"{line} (up to {allowed:.1g} is rounding)")
    line = f"its own backward in {name}, on {on}, differs from float64 by {off:.2g}, relatively"
    return Own(False, f"{line}: more than rounding ({allowed:.2g}), although the formula is right")


def _changes_of_ctx(node: Node, given: Sequence[Tensor | None], task: Task, replay: OperationReplay) -> Sequence[str]:
    """Return what a custom Function's backward changes on its ctx; a replay is run, not the task itself."""
    if not isinstance(node, BackwardCFunction):
        return ()
    with InFloat64():
        twin = _twin(task, replay, replay.run(replay.points))
        if twin is None:
            return ()
        wide = [None if each is None else in_float64(each) for each in given]
        try:
            return changed_on_ctx(twin, lambda: call_quietly(twin, wide))
        except Exception:  # the comparison reports it
            return ()


def _why_not(node: Node, task: Task, replay: OperationReplay) -> str | None:
    if replay.random:
        return "they depend on the forward's random numbers, which are not kept"
    if hides_saved(node):
        return "its node hides its saved tensors from Python"
    if is_packed(node):
        return "its saved tensors are packed (by a checkpoint, or other saved_tensors_hooks), so reading unpacks them"
    if any(meta.shape is None for meta in task.inputs):
        return "they are nested tensors"
    return None


def _refused(error: Exception, is_fault: bool) -> Own:
    message = str(error).partition("\n")[0]
    if "second time" in message:
        return Own(None, "its own gradients are not compared with float64's: a backward has run and freed it")
    if "modified by an inplace operation" in message:
        return Own(False, "its own backward raises: a saved tensor was modified in place since")
    if not is_fault:  # some nodes accept only gradients of a real loss
        return Own(None, "its own gradients are not compared with float64's: it refuses random gradients")
    return Own(False, f"its own backward raises {type(error).__name__}: {message.rstrip('.')}")


def _twin(task: Task, replay: OperationReplay, outcome: Outcome) -> Node | None:
    """Return the replay's node for this task: the one at the same distance from the operation's first sequence
    number."""
    node = outcome.nodes.get(outcome.start + task.sequence_nr - replay.operation.start)
    return node if node is not None and node.name() == task.name else None


def inputs_with_gradient(graph: Graph, task: Task) -> set[int]:
    """Return the numbers of the task's inputs that get a gradient in this graph's backward."""
    return {each.input for each in graph.in_edges[task.id]} | {
        root.input for root in graph.roots if root.task == task.id
    }


def _random(meta: TensorMeta) -> Tensor:
    narrow = meta.dtype.itemsize == 1 or meta.dtype is torch.complex32  # torch draws no random numbers in these
    dtype = (torch.complex64 if meta.dtype.is_complex else torch.float32) if narrow else meta.dtype
    return torch.randn(meta.shape or (), dtype=dtype, device=meta.device).to(meta.dtype)


def _with_zeros(given: list[Tensor | None], task: Task, outcome: Outcome) -> list[Tensor | None]:
    """Replace missing gradients by zeros, as for a custom Function; outputs without a derivative receive none."""
    results = outcome.result if isinstance(outcome.result, tuple) else (outcome.result,)
    found: list[Tensor | None] = []
    for value, meta, result in zip(given, task.inputs, results, strict=False):
        has = isinstance(result, Tensor) and result.requires_grad
        if value is not None and has:
            found.append(value)
        elif isinstance(result, Tensor):
            dtype = meta.dtype if has else result.dtype
            found.append(torch.zeros(result.shape, dtype=dtype, device=result.device))
        else:
            found.append(None)
    return found


@dataclass(frozen=True, slots=True)
class _Distance:
    """The difference between a gradient and its reference where both are finite.

    Attributes:
        absolute: the largest absolute difference.
        relative: the same, relative to the reference's largest element.
        lost: how many of its elements are NaN or infinite while the reference's are not.
    """

    absolute: float
    relative: float
    lost: int


def _distances(own: Sequence[Any], reference: Sequence[Any]) -> Iterator[_Distance | None]:
    """Yield the distance of each gradient; None for one of another shape."""
    if len(own) != len(reference):
        yield None
        return
    for one, other in zip(own, reference, strict=True):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            if (one is None) != (other is None):
                yield None
            continue
        one, other = (each.to_dense() if each.layout is not torch.strided else each for each in (one, other))
        if one.shape != other.shape:
            yield None
            continue
        one, other = computable(one), computable(other)
        finite = one.isfinite() & other.isfinite()
        lost = int((~one.isfinite() & other.isfinite()).sum())
        size = other[finite].abs().max().item() if finite.any() else 0.0
        off = (one.to(other.dtype) - other)[finite].abs().max().item() if finite.any() else 0.0
        yield _Distance(off, off / size if size else float(off > 0), lost)


def _largest(gradients: Sequence[Tensor | None]) -> float:
    values = [computable(each) for each in gradients if each is not None and each.numel()]
    floats = [each for each in values if each.is_floating_point() or each.is_complex()]
    return float(max((each.abs().nan_to_num(0, 0, 0).max().item() for each in floats), default=0.0))


def _coarsest(values: Sequence[Any]) -> torch.dtype:
    dtypes = {each.dtype for each in values if isinstance(each, Tensor) and each.is_floating_point()}
    dtypes |= {each.dtype.to_real() for each in values if isinstance(each, Tensor) and each.is_complex()}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def _rounding(dtype: torch.dtype, given: Sequence[Tensor | None]) -> float:
    """Return the relative error a node may have: a third of its dtype's digits."""
    eps = torch.finfo(dtype).eps
    cuda = any(each is not None and each.is_cuda for each in given)
    if dtype is torch.float32 and cuda and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32):
        eps = 2.0**-11  # TensorFloat-32
    return float(eps ** (2 / 3))
