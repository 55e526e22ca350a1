"""Search of the source of a loss without a graph for the statement that cuts its path. Runs no code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

from torch import nn

from .raised_error import RaisedError
from .source_search import FunctionSource, is_users

_METHODS = {
    "item": ".item() converts it to a Python number, which autograd cannot track. Use the tensor itself",
    "tolist": ".tolist() converts it to Python numbers, which autograd cannot track. Use the tensor itself",
    "numpy": ".numpy() leaves PyTorch, so autograd cannot track it. Use torch's functions on the tensor",
    "detach": ".detach() cuts the graph. Remove it where gradients are needed",
    "argmax": "argmax returns integers, which have no gradient. Use softmax, or a loss on the logits",
    "argmin": "argmin returns integers, which have no gradient. Use softmin, or a loss on the logits",
    "argsort": "argsort returns integers, which have no gradient. Use the sorted values",
    "long": ".long() converts it to integers, which have no gradient. Keep a floating-point dtype",
    "int": ".int() converts it to integers, which have no gradient. Keep a floating-point dtype",
    "bool": ".bool() converts it to booleans, which have no gradient. Use a smooth function",
    "from_numpy": "torch.from_numpy() begins without a graph. Use torch's functions on the tensor",
}
_COPIES = {"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.FloatTensor", "torch.Tensor"}
_COPY = "{} copies values without the graph. Use torch.stack or torch.cat on the tensors"
_OFF = {"no_grad", "inference_mode", "set_grad_enabled"}
_DEPTH = 3


def cut_of_loss(raised: RaisedError, name: str) -> str | None:
    """Return what cuts the path of the loss in the code that computes it, with the line and the remedy; None if
    nothing that is known does."""
    if not raised.places:
        return None
    frame, _, line = raised.places[-1]
    variables = {name.partition(".")[0].partition("[")[0]}
    source = FunctionSource(frame.f_code)
    if name == "the loss":
        variables = {
            each.id
            for node in source.nodes()
            if getattr(node, "lineno", 0) == line
            for each in [node]
            if isinstance(each, ast.Name)
        }
    return next(_cuts(source, variables, line, frame, _DEPTH), None)


def _cuts(
    source: FunctionSource, variables: set[str], line: int, scope: FrameType | FunctionType, depth: int
) -> Iterator[str]:
    """Yield the cuts in the statements that compute these variables before a line, the last statement first."""
    statements = [
        node
        for node in source.nodes()
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr) and node.lineno <= line
    ]
    off = [
        node
        for node in source.nodes()
        if isinstance(node, ast.With) and any(_is_off(each.context_expr) for each in node.items)
    ]
    wanted = set(variables)
    for node in sorted(statements, key=lambda each: -each.lineno):
        value, targets = node.value, _names(node)
        if value is None or not (targets & wanted or (isinstance(node, ast.Return) and not variables)):
            if not (isinstance(node, ast.Expr) and node.lineno == line):
                continue
        block = next((each for each in off if each.lineno <= node.lineno <= (each.end_lineno or 0)), None)
        if block is not None:
            yield f"it is computed under {ast.unparse(block.items[0].context_expr)} (entered at {source.at(block).short}). Leave that block first"
        for cut in _cuts_in(value):
            yield f"at {source.at(node).short}, {cut}"
        wanted |= {each.id for each in ast.walk(value) if isinstance(each, ast.Name)} if value is not None else set()
        if depth and value is not None:
            yield from _cuts_in_calls(value, scope, depth)


def _cuts_in_calls(value: ast.expr, scope: FrameType | FunctionType, depth: int) -> Iterator[str]:
    """Yield the cuts in the functions and modules that an expression calls, from what they return."""
    for each in ast.walk(value):
        if not isinstance(each, ast.Call):
            continue
        called = _value_of(each.func, scope)
        function: Any = type(called).forward if isinstance(called, nn.Module) else called
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType) and is_users(function.__code__.co_filename):
            yield from _cuts(FunctionSource(function), set(), 10**9, function, depth - 1)


def _value_of(node: ast.expr, scope: FrameType | FunctionType) -> Any:
    if isinstance(node, ast.Name):
        if isinstance(scope, FrameType):
            return scope.f_locals.get(node.id, scope.f_globals.get(node.id))
        return scope.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        holder = _value_of(node.value, scope)
        if isinstance(holder, nn.Module):
            return holder._modules.get(node.attr, getattr(type(holder), node.attr, None))
    return None


def _cuts_in(value: ast.expr | None) -> Iterator[str]:
    for node in () if value is None else ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr == "data":
            yield ".data takes the values without the graph. Use the tensor itself"
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        method = function.rpartition(".")[2]
        if function in _COPIES:
            yield _COPY.format(f"{function}()")
        elif function in ("float", "int", "bool", "math.sqrt", "math.log", "math.exp"):
            yield f"{function}() converts it to a Python number, which autograd cannot track. Use the tensor itself"
        elif function.startswith(("np.", "numpy.")):
            yield f"{function}() leaves PyTorch, so autograd cannot track it. Use torch's functions on the tensor"
        elif method in _METHODS and isinstance(node.func, ast.Attribute):
            yield _METHODS[method]
        elif method == "checkpoint" and any(
            each.arg == "use_reentrant" and getattr(each.value, "value", None) is True for each in node.keywords
        ):
            yield (
                "the reentrant checkpoint has no input that requires grad. Pass use_reentrant=False, or let its input "
                "require grad (model.enable_input_require_grads())"
            )
        elif (
            method == "grad"
            and "autograd" in function
            and not any(each.arg == "create_graph" for each in node.keywords)
        ):
            yield "torch.autograd.grad without create_graph=True returns gradients without a graph. Pass create_graph=True"
    if value is not None:
        yield from _comparisons(value)


def _comparisons(value: ast.expr) -> Iterator[str]:
    """Yield the comparisons whose result is computed with; not those that select: an index, or a condition."""
    selecting: set[ast.AST] = set()
    for node in ast.walk(value):
        inner = node.slice if isinstance(node, ast.Subscript) else node.test if isinstance(node, ast.IfExp) else None
        selecting |= set() if inner is None else set(ast.walk(inner))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "where":
            selecting |= {each for argument in node.args[:1] for each in ast.walk(argument)}
        is_value = not isinstance(node, ast.Compare) or isinstance(node.ops[0], ast.In | ast.Is | ast.IsNot | ast.NotIn)
        if not is_value and node not in selecting:
            yield f"`{ast.unparse(node)}` returns booleans, which have no gradient. Use a smooth function, such as sigmoid"


def _is_off(context: ast.expr) -> bool:
    return isinstance(context, ast.Call) and ast.unparse(context.func).rpartition(".")[2] in _OFF


def _names(node: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
