"""The notes on a saved tensor that was modified in place: who saved it, the statement that modified it, the remedy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType

from torch import Tensor, nn

from ....inspector.graph.frame_variables import variables_of
from ....inspector.graph.graph import Graph, unique_name
from ....inspector.graph.phrases import joined
from ....inspector.graph.source_lines import Source, tensors_within
from ....inspector.torch_private.saved_variables import WrittenSlot, written_slots
from ....inspector.torch_private.tensors import share_storage
from ...execution.saved_tensor_errors import recorded_writes
from .raised_error import RaisedError
from .source_search import FunctionSource, functions_of, is_users

_MOST_LINES = 3


def modified_in_place(raised: RaisedError) -> str | None:
    """Return the saved tensor, the task that saved it and the statement that modified it."""
    graph = raised.graph
    if graph is None:
        return None
    for task_id in reversed(range(len(graph))):
        for slot in written_slots(graph.nodes[task_id]):
            return _sentence(raised, graph, task_id, slot)
    return None


def _sentence(raised: RaisedError, graph: Graph, task_id: int, slot: WrittenSlot) -> str:
    saver = unique_name(graph, task_id)
    named = _variable(raised, slot)
    name = "a tensor" if named is None else named[0]
    recorded = recorded_writes(slot)
    leaf = None if slot.tensor is None else _leaf_name(raised, slot.tensor)
    if leaf is None and name in raised.parameter_names.values():
        leaf = name
    if leaf is not None:
        by = recorded or ", probably by optimizer.step(),"
        return (
            f"{leaf} was modified in place{by} after {saver} had saved it{raised.in_backward}. Run the backward before "
            "the parameter is modified, or run the forward again"
        )
    lines = [*_recorded(graph, task_id)]
    possible = [] if lines or recorded else [*dict.fromkeys(_in_source(raised, named))]
    seen = f"; the program modifies tensors in place by {joined(possible, _MOST_LINES)}" if possible else ""
    by = recorded or (f" by {joined(list(dict.fromkeys(lines)))}" if lines else "")
    return (
        f"{name} was modified in place{by} after {saver} had saved its {slot.name} for the "
        f"backward{raised.in_backward}{seen}. Write it out of place (y = y * 2, not y *= 2; inplace=False), or modify "
        "y.clone()"
    )


def _leaf_name(raised: RaisedError, tensor: Tensor) -> str | None:
    for model in raised.models:
        for _, each in model.named_parameters():
            if share_storage(tensor, each):
                return raised.parameter_names[id(each)]
    return None


def _variable(raised: RaisedError, slot: WrittenSlot) -> tuple[str, FrameType] | None:
    if slot.tensor is None:
        return None
    for frame, _, _ in reversed(raised.places):
        for name, value in list(variables_of(frame).items()):
            for expression, each in tensors_within(name, value, 2):
                if each is not None and share_storage(slot.tensor, each):
                    return expression, frame
    return None


def _recorded(graph: Graph, task_id: int) -> Iterator[str]:
    """Yield the in-place operations of the graph that took the tensor which this task saved."""
    around = {task_id, *(edge.next_task for edge in graph.out_edges[task_id])}
    for task in graph.tasks:
        name = "" if task.operation is None else task.operation.name.rpartition(".")[2]
        is_in_place = (
            (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
        )
        if is_in_place and task.id != task_id and any(edge.next_task in around for edge in graph.out_edges[task.id]):
            yield f"{name} at {task.source.short}" if task.source else name


def _in_frame(frame: FrameType, name: str) -> Iterator[str]:
    for expression, line in in_place_statements(FunctionSource(frame.f_code)):
        if expression == name:
            yield f"`{line.code()[0].strip()}` at {line.short}" if line.code() else f"the statement at {line.short}"


def _in_source(raised: RaisedError, named: tuple[str, FrameType] | None) -> Iterator[str]:
    """Yield the in-place statements on a variable; if no variable leads to the tensor, those of the known models."""
    if named is not None and (found := [*_in_frame(named[1], named[0])]):
        yield from found
        return
    for model in raised.models:
        for _, function in functions_of(model):
            for _, line in in_place_statements(function):
                code = line.code()
                yield f"`{code[0].strip() if code else '?'}` at {line.short}"
        for module in model.modules():
            if getattr(module, "inplace", False) is True and not is_users(type(module).forward.__code__.co_filename):
                yield f"{raised.title(module)} with inplace=True"
    for frame, _, _ in raised.places:
        for value in list(variables_of(frame).values()):
            if callable(value) and not isinstance(value, nn.Module | type):
                for _, function in functions_of(value):
                    for _, line in in_place_statements(function):
                        yield f"`{line.code()[0].strip()}` at {line.short}" if line.code() else line.short


def in_place_statements(source: FunctionSource) -> Iterator[tuple[str, Source]]:
    """Yield the expressions that a function modifies in place as tensors, with the line: `y` of `y.mul_(2)`."""
    for node in source.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.endswith("_") and not name.endswith("__") and name not in ("requires_grad_", "zero_grad_"):
                if _is_unseen(node.func.value):
                    continue
                is_function = ast.unparse(node.func.value) in ("torch", "F", "nn.functional", "torch.nn.functional")
                target = node.args[0] if is_function and node.args else node.func.value
                yield ast.unparse(target), source.at(node)
            elif node.args and any(
                each.arg == "inplace" and getattr(each.value, "value", False) is True for each in node.keywords
            ):
                yield ast.unparse(node.args[0]), source.at(node)
        elif isinstance(node, ast.AugAssign):
            target = node.target.value if isinstance(node.target, ast.Subscript) else node.target
            yield ast.unparse(target), source.at(node)
        elif isinstance(node, ast.Assign):
            for each in node.targets:
                if isinstance(each, ast.Subscript):
                    yield ast.unparse(each.value), source.at(node)


def _is_unseen(target: ast.expr) -> bool:
    """Return whether autograd does not count a write to this, which goes through .data."""
    text = ast.unparse(target)
    return text.endswith(".data")
