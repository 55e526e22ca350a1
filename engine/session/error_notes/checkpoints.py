"""Notes on PyTorch's errors about checkpoints whose recomputation differs from the forward."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from torch import nn

from ....inspector.graph.graph import unique_name
from ....inspector.graph.phrases import joined
from ....inspector.torch_private.saved_variables import packed_slots
from .raised_error import RaisedError
from .source_search import functions_of

_REMEDY = (
    "The recomputation must repeat the forward: do not change such state inside the checkpointed function; pass it as "
    "an argument, or change it outside"
)


def differing_recomputation(raised: RaisedError) -> str:
    """Return the first saved tensor that differs, and the state that the checkpointed function changes."""
    frame = raised.local("self", _frame_class()) or raised.local("frame", _frame_class())
    if frame is None:
        return f"a checkpoint's recomputation differs from its forward. {_REMEDY}"
    function = _checkpointed(frame)
    title = _title(raised, function)
    difference = _first_difference(raised, frame)
    changed = _changed_state(function)
    if changed:
        cause = (
            f"{joined([f'{name} at {line}' for name, line in changed])}, so its recomputation differs from its forward"
        )
        cause = f"the checkpoint of {title} changes {cause}"
    else:
        depends = [
            f"{name} at {source.short}" for _, each in functions_of(function) for name, source in each.conditions()
        ]
        hint = f"; it depends on {joined(list(dict.fromkeys(depends)))}, which may have changed" if depends else ""
        cause = f"the recomputation of the checkpoint of {title} differs from its forward{hint}"
    return f"{cause}: {difference}. {_REMEDY}"


def _title(raised: RaisedError, function: object) -> str:
    if isinstance(function, nn.Module):
        return raised.title(function)
    return str(getattr(function, "__qualname__", "a function"))


def _frame_class() -> type[Any]:
    from torch.utils.checkpoint import _CheckpointFrame

    return _CheckpointFrame


def _checkpointed(frame: Any) -> Callable[..., Any]:
    code, closure = frame.recompute_fn.__code__, frame.recompute_fn.__closure__ or ()
    cells = dict(zip(code.co_freevars, closure, strict=True))
    found: Callable[..., Any] = cells["fn"].cell_contents
    return found


def _first_difference(raised: RaisedError, frame: Any) -> str:
    """Describe the first saved tensor that differs: its number, its metadata in both runs, and the task that saved
    it."""
    index, both = _compare(frame)
    holder = frame.weak_holders[index]() if index < len(frame.weak_holders) else None
    task = ""
    if holder is not None and raised.graph is not None:
        for task_id, node in enumerate(raised.graph.nodes):
            if any(packed is holder for _, packed in packed_slots(node)):
                task = f", saved for {unique_name(raised.graph, task_id)},"
                break
    if both is not None:
        return f"saved tensor {index}{task} {both}"
    recomputed = max(frame.recomp_counter.values(), default=0)
    if recomputed > len(frame.weak_holders):
        return f"the recomputation saves more than the {len(frame.weak_holders)} tensors that the forward saved"
    return (
        f"the forward saved {len(frame.weak_holders)} tensors, the recomputation {recomputed}; number {index}{task} is "
        "missing"
    )


def _compare(frame: Any) -> tuple[int, str | None]:
    recomputed = max(frame.recomp_counter.values(), default=0)
    for index in range(min(recomputed, len(frame.weak_holders), len(frame.x_metadatas))):
        holder = frame.weak_holders[index]()
        if holder is None:
            continue
        for graph_id, tensors in frame.recomputed.items():
            handle = holder.handles.get(graph_id)
            tensor = None if handle is None else tensors.get(handle)
            before = frame.x_metadatas[index]
            if tensor is None or before is None or not isinstance(before, dict):
                continue
            now = frame.metadata_fn(tensor)
            for key in before:
                if before[key] != now[key]:
                    is_shape = key == "shape"
                    old, new = (tuple(each[key]) if is_shape else each[key] for each in (before, now))
                    return index, f"has {key} {old} in the forward and {new} in the recomputation"
    return min(recomputed, len(frame.weak_holders)), None


def _changed_state(function: Callable[..., Any]) -> list[tuple[str, str]]:
    found = [(name, source.short) for _, each in functions_of(function) for name, source in each.changes()]
    return [*islice(dict.fromkeys(found), 4)]


def reentrant_gradient(raised: RaisedError) -> str:
    """Return the note on `autograd.grad`, or `inputs=`, with a reentrant checkpoint."""
    return (
        "the graph has a checkpoint with use_reentrant=True, which cannot run under autograd.grad or "
        f"inputs={raised.in_backward}. Call checkpoint(..., use_reentrant=False)"
    )


def nothing_to_recompute(raised: RaisedError) -> str:
    """Return the note on a reentrant checkpoint none of whose outputs requires grad when it is recomputed."""
    ctx = raised.local("ctx", object)
    function = getattr(ctx, "run_function", None)
    title = _title(raised, function)
    return (
        f"no output of the reentrant checkpoint of {title} requires grad: the function detaches them or runs them "
        f"under no_grad{raised.in_backward}. Remove this checkpoint, or the detach() inside it, or pass "
        "use_reentrant=False"
    )
