"""The note on a second backward through a graph: the tensor that leads into the earlier graph, and its line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from torch import Tensor, nn

from ....inspector.graph.frame_variables import variables_of
from ....inspector.graph.freed_nodes import begun_by_session, is_freed
from ....inspector.graph.source_lines import Source, tensors_within
from .raised_error import RaisedError, segment_at
from .source_search import FunctionSource, is_users, methods_of

_DEPTH = 3


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor with a graph that lives from step to step.

    Attributes:
        expression: its name where the backward is called: `net.hidden`.
        own_expression: its name where it is assigned: `self.hidden`.
        is_earlier: whether it is itself a result of the earlier graph; else the step has replaced it already.
        assigned: the line that assigns it.
        loop: the first line of the loop around the backward that does not assign it; None if it is assigned inside.
        stores_elements: whether it is a container that the line extends.
    """

    expression: str
    own_expression: str
    is_earlier: bool
    assigned: Source
    loop: int | None = None
    stores_elements: bool = False


def second_backward(raised: RaisedError) -> str | None:
    """Return the cause: a value from before the loop, a state carried from step to step, or the same loss again."""
    if raised.graph is None or not raised.places:
        return None
    if any(begun_by_session(raised.graph)):  # it is said below that an open session has freed the tensors
        return None
    at = raised.at
    found = [] if _runs_again(raised) else [*_variables(raised), *_attributes(raised)]
    if not found:
        return _same_loss(raised, at)
    kept = next((each for each in found if each.loop is not None), found[0])
    code = kept.assigned.code()
    quoted = f" (`{code[0].strip()}`)" if code else ""
    if kept.loop is not None:
        return (
            f"{kept.expression} is computed once, at {kept.assigned.short}{quoted}, before the loop at line "
            f"{kept.loop}; the first backward freed its graph, and the backward{at} needs it again. Compute "
            f"{kept.own_expression} inside the loop, in each step; if it needs no gradient, use "
            f"{kept.own_expression}.detach()"
        )
    if kept.is_earlier and kept.stores_elements:
        return (
            f"{kept.expression}, extended at {kept.assigned.short}{quoted}, keeps tensors with the graph of earlier "
            f"steps, which an earlier backward has freed; the backward{at} needs them again. Store detached tensors "
            "there (.detach()), or clear it in each step"
        )
    if kept.is_earlier:
        return (
            f"{kept.expression}, assigned at {kept.assigned.short}{quoted}, still has the graph of an earlier forward, "
            f"which an earlier backward has freed; the backward{at} needs it again. Compute it again in each step, or "
            f"detach it there: {kept.own_expression} = {kept.own_expression}.detach()"
        )
    return (
        f"{kept.expression} carries the graph of the previous step into this one: it is assigned at "
        f"{kept.assigned.short}{quoted}, and the backward{at} reaches the earlier graph, which is freed. Detach it "
        f"there: {kept.own_expression} = {kept.own_expression}.detach()"
    )


def _same_loss(raised: RaisedError, at: str) -> str | None:
    frame, instruction, line = raised.places[-1]
    if raised.backward is None:
        return None
    outputs = [each for each in raised.backward[0] if isinstance(each, Tensor)]
    name = (raised.name_in_code(outputs[0]) if outputs else None) or "the loss"
    source = FunctionSource(frame.f_code)
    earlier = [each for verb in ("backward", "grad") for each in source.calls(verb) if each.line < line]
    by = f" at {max(earlier, key=lambda each: each.line).short}" if earlier else ""
    shared = f"; {name} itself is new" if not _is_over(raised, outputs) else ""
    verb = (
        "autograd.grad"
        if "grad(" in segment_at(frame, instruction) and "backward" not in segment_at(frame, instruction)
        else "backward"
    )
    return (
        f"the {verb}{at} runs a second time through a graph of {name} that an earlier backward{by} has freed{shared}. "
        "Compute the loss again in each step, add the losses and run one backward, or pass retain_graph=True to the "
        "earlier one"
    )


def _runs_again(raised: RaisedError) -> bool:
    """Return whether the function has run a backward of the same variable before, without assigning it in between."""
    frame, _, line = raised.places[-1]
    source = FunctionSource(frame.f_code)
    outputs = [] if raised.backward is None else raised.backward[0]
    name = raised.name_in_code(outputs[0]) if outputs and isinstance(outputs[0], Tensor) else None
    if name is None:
        return False
    before = [
        node.lineno
        for node in source.nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{name}.backward" and node.lineno < line
    ]
    return any(not any(first < each.line < line for each in source.assignments(name)) for first in before)


def _is_over(raised: RaisedError, outputs: list[Tensor]) -> bool:
    return any(each.grad_fn is not None and is_freed(each.grad_fn) for each in outputs)


def _variables(raised: RaisedError) -> Iterator[_Kept]:
    """Yield variables that are assigned before the loop around the backward, or carried from one pass to the next."""
    for frame, _, line in reversed(raised.places):
        source = FunctionSource(frame.f_code)
        loops = source.loops_around(line)
        if not loops:
            continue
        for name, value in list(variables_of(frame).items()):
            if isinstance(value, nn.Module):
                continue
            for expression, tensor in tensors_within(name, value, _DEPTH):
                if tensor is None or tensor.grad_fn is None:
                    continue
                if (kept := _kept_variable(raised, source, loops, expression, name, tensor)) is not None:
                    yield kept


def _kept_variable(
    raised: RaisedError,
    source: FunctionSource,
    loops: list[tuple[int, int]],
    expression: str,
    name: str,
    tensor: Tensor,
) -> _Kept | None:
    lines = source.assignments(name)
    inside = [each for each in lines if any(first <= each.line <= last for first, last in loops)]
    is_earlier = tensor.grad_fn in raised.earlier_nodes
    if is_earlier and (stored := source.mutations(name)):
        return _Kept(name, name, True, stored[-1], stores_elements=True)
    if lines and not inside:
        return _Kept(expression, expression, True, lines[-1], loops[-1][0]) if is_earlier else None
    innermost = [each for each in inside if loops[-1][0] <= each.line <= loops[-1][1]]
    if not innermost or not _is_read_first(source, name, loops[-1], innermost[0].line):
        return None
    if not is_earlier and not _has_sibling(raised, tensor):
        return None
    return _Kept(expression, expression, False, innermost[-1])


def _is_read_first(source: FunctionSource, name: str, loop: tuple[int, int], assigned: int) -> bool:
    """Return whether a pass of the loop reads the variable before assigning it, so that it is carried over."""
    reads = [
        node.lineno
        for node in source.nodes()
        if isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Load)
        and loop[0] <= node.lineno <= loop[1]
    ]
    return bool(reads) and min(reads) <= assigned


def _has_sibling(raised: RaisedError, tensor: Tensor) -> bool:
    """Return whether the graph has a node of the kind that made this tensor: the same result, of an earlier step."""
    node = tensor.grad_fn
    return node is not None and any(each.name() == node.name() for each in raised.earlier_nodes)


def _attributes(raised: RaisedError) -> Iterator[_Kept]:
    """Yield tensors with a graph that are attributes of modules, or of the objects whose methods called backward."""
    holders: list[tuple[str, str, object]] = []
    for frame, _, _ in reversed(raised.places):
        holders += _objects_in(frame)
    for model in raised.models:
        holders += [(path or type(model).__name__, "self", module) for path, module in model.named_modules()]
    seen = set[int]()
    for title, own, holder in holders:
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in list(vars(holder).items()):
            if isinstance(value, nn.Module) or name in ("_parameters", "_modules"):
                continue
            inner = value.items() if name == "_buffers" else [(name, value)]
            for key, each in list(inner):
                yield from _kept_attributes(raised, title, own, holder, key, each)


def _kept_attributes(
    raised: RaisedError, title: str, own: str, holder: object, name: str, value: object
) -> Iterator[_Kept]:
    for expression, tensor in tensors_within(name, value, _DEPTH):
        if tensor is None or tensor.grad_fn is None:
            continue
        is_earlier = tensor.grad_fn in raised.earlier_nodes
        if not is_earlier and not _has_sibling(raised, tensor):
            continue
        lines = _assigning(raised, holder, name)
        if lines:
            yield _Kept(f"{title}.{expression}", f"{own}.{expression}", is_earlier, lines[-1])


def _assigning(raised: RaisedError, holder: object, name: str) -> list[Source]:
    """Return the lines that assign an attribute; those outside __init__, which run more often, come last."""
    found: list[Source] = []
    for method in methods_of(type(holder)):
        changed = [line for state, line in method.changes() if state == f"self.{name}"]
        lines = [*method.assignments(f"self.{name}"), *changed]
        found = [*lines, *found] if method.code.co_name == "__init__" else [*found, *lines]
    for frame, _, _ in raised.places:
        for key in [key for key, value in list(variables_of(frame).items()) if value is holder]:
            found += FunctionSource(frame.f_code).assignments(f"{key}.{name}")
    return found


def _objects_in(frame: FrameType) -> list[tuple[str, str, object]]:
    """Return the user's own objects in a frame's variables, which may hold a state."""
    return [
        (name, "self", value)
        for name, value in list(variables_of(frame).items())
        if not isinstance(value, nn.Module | Tensor | type)
        and hasattr(value, "__dict__")
        and _is_users_class(type(value))
    ]


def _is_users_class(kind: type) -> bool:
    return any(is_users(each.code.co_filename) for each in methods_of(kind))
