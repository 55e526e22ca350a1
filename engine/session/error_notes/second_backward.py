"""The note on a second backward through a graph: the tensor that leads into the earlier graph, and its line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from torch import Tensor, nn

from ....inspector.graph.frame_variables import variables_of
from ....inspector.graph.freed_nodes import begun_by_session
from ....inspector.graph.source_lines import Source, is_users, tensors_within
from ...execution.saved_tensor_errors import freed_graph
from .raised_error import RaisedError, segment_at
from .source_search import FunctionSource, methods_of

_DEPTH = 3


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor with a graph that lives from step to step.

    Attributes:
        expression: its name where the backward is called: `net.hidden`.
        own_expression: its name where it is assigned: `self.hidden`.
        detaching: the statement that detaches it there.
        is_earlier: whether it is itself a result of the earlier graph; else the step has replaced it already.
        assigned: the line that assigns it.
        loop: the first line of the loop around the backward that does not assign it; None if it is assigned inside.
        stores_elements: whether it is a container that the line extends.
    """

    expression: str
    own_expression: str
    detaching: str
    is_earlier: bool
    assigned: Source
    loop: int | None = None
    stores_elements: bool = False


def second_backward(raised: RaisedError) -> str | None:
    """Return the cause: an open session, a value from before the loop, a state carried from step to step, or the same
    loss again; and the tasks of the graph that lead into the freed one."""
    if raised.graph is None:
        return None
    freed = freed_graph(raised.graph, raised.ran, raised.since, raised.maker)
    uses = () if freed is None else freed.crossings
    if sessions := [*begun_by_session(raised.graph)]:
        return "; ".join([f"the backward{raised.at} needs freed tensors", *uses, *sessions])
    cause = _cause(raised) if raised.places else None
    if freed is None:
        return cause or _same_loss(raised)
    if cause is None and uses:
        return f"the backward{raised.at} goes back into an earlier graph, which an earlier backward has freed: {freed}"
    if cause is None:
        same = _same_loss(raised)
        return (
            f"the backward{raised.at} needs freed tensors: {freed}"
            if same is None
            else f"{same}. In the graph, {freed.extent}"
        )
    return f"{cause}. In the graph, {'; '.join(uses)}" if uses else cause


def _cause(raised: RaisedError) -> str | None:
    at = raised.at
    found = [] if _runs_again(raised) else [*_variables(raised), *_attributes(raised)]
    if not found:
        return None
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
            f"detach it there: {kept.detaching}"
        )
    return (
        f"{kept.expression} carries the graph of the previous step into this one: it is assigned at "
        f"{kept.assigned.short}{quoted}, and the backward{at} reaches the earlier graph, which is freed. Detach it "
        f"there: {kept.detaching}"
    )


def _same_loss(raised: RaisedError) -> str | None:
    if raised.backward is None or not raised.places:
        return None
    frame, instruction, line = raised.places[-1]
    outputs = [each for each in raised.backward[0] if isinstance(each, Tensor)]
    name = (raised.name_in_code(outputs[0]) if outputs else None) or "the loss"
    source = FunctionSource(frame.f_code)
    earlier = [each for verb in ("backward", "grad") for each in source.calls(verb) if each.line < line]
    by = f" at {max(earlier, key=lambda each: each.line).short}" if earlier else ""
    is_new = raised.since is not None and all(each.grad_fn not in raised.earlier_nodes for each in outputs)
    shared = f"; {name} itself is new" if is_new else ""
    verb = (
        "autograd.grad"
        if "grad(" in segment_at(frame, instruction) and "backward" not in segment_at(frame, instruction)
        else "backward"
    )
    return (
        f"the {verb}{raised.at} runs a second time through a graph of {name} that an earlier backward{by} has "
        f"freed{shared}. Compute the loss again in each step, add the losses and run one backward, or pass "
        "retain_graph=True to the earlier one"
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
            yield from _kept_variable(raised, source, loops, name, value)


def _kept_variable(
    raised: RaisedError, source: FunctionSource, loops: list[tuple[int, int]], name: str, value: object
) -> Iterator[_Kept]:
    lines = source.assignments(name)
    inside = [each for each in lines if any(first <= each.line <= last for first, last in loops)]
    innermost = [each for each in inside if loops[-1][0] <= each.line <= loops[-1][1]]
    is_carried = bool(innermost) and _is_read_first(source, name, loops[-1], innermost[0].line)
    stored = source.mutations(name)
    for expression, tensor in tensors_within(name, value, _DEPTH):
        if tensor is None or tensor.grad_fn is None:
            continue
        is_earlier, detaching = tensor.grad_fn in raised.earlier_nodes, _detaching(name, value, expression)
        if is_earlier and stored:
            yield _Kept(name, name, detaching, True, stored[-1], stores_elements=True)
        elif lines and not inside:
            if is_earlier:
                yield _Kept(expression, expression, detaching, True, lines[-1], loops[-1][0])
        elif is_carried and (is_earlier or _has_sibling(raised, tensor)):
            yield _Kept(expression, expression, detaching, False, innermost[-1])


def _detaching(name: str, value: object, expression: str) -> str:
    """Return the statement that detaches a tensor, or all elements of the tuple that contains it."""
    if type(value) is tuple:  # an element of it cannot be assigned
        return f"{name} = tuple(each.detach() for each in {name})"
    return f"{expression} = {expression}.detach()"


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
            detaching = _detaching(f"{own}.{name}", value, f"{own}.{expression}")
            yield _Kept(f"{title}.{expression}", f"{own}.{expression}", detaching, is_earlier, lines[-1])


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
        and any(is_users(each.code.co_filename) for each in methods_of(type(value)))
    ]
