"""Search of the source of a loss without a graph for the statement that cuts its path. Runs no code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Set
from types import FrameType, FunctionType
from typing import Any

from torch import Tensor, nn

from ....inspector.graph.frame_variables import variables_of
from ....inspector.graph.source_lines import is_users
from .raised_error import RaisedError
from .source_search import FunctionSource

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
    """Return the likely reason why the loss has no path, from the code that computes it, with the line and the remedy;
    None if no statement there is known to cut a path. A value may cut one path and leave others."""
    if not raised.places:
        return None
    frame, _, line = raised.places[-1]
    source = FunctionSource(frame.f_code)
    variables = {name.partition(".")[0].partition("[")[0]}
    if name == "the loss":  # the backward is called on an expression
        names = (node for node in source.nodes() if isinstance(node, ast.Name) and node.lineno == line)
        variables = {each.id for each in names}
    found = list(_cuts(source, variables, line, frame, _DEPTH))
    return next((each for each in found if _OFF_TEXT in each), found[0] if found else None)


def _cuts(
    source: FunctionSource, variables: set[str], line: int, scope: FrameType | FunctionType, depth: int
) -> Iterator[str]:
    """Yield the cuts in the statements that compute these variables before a line, the last statement first.

    Without variables, those are the statements that compute what the function returns.
    """
    kinds = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr
    statements = [node for node in source.nodes() if isinstance(node, kinds) and node.lineno <= line]
    wanted = set(variables)
    for node in sorted(statements, key=lambda each: -each.lineno):
        is_asked = isinstance(node, ast.Expr) and node.lineno == line
        is_returned = isinstance(node, ast.Return) and not variables
        if node.value is None or not (_names(node) & wanted or is_asked or is_returned):
            continue
        if (off := _grad_mode_off(source, node)) is not None:
            yield off
        for cut in _cuts_in(node.value, scope):
            yield f"at {source.at(node).short}, {cut}"
        wanted |= {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
        if depth:
            yield from _cuts_in_calls(node.value, scope, depth)


_OFF_TEXT = "it is computed under "


def _grad_mode_off(source: FunctionSource, statement: ast.stmt) -> str | None:
    """Return the block or decorator that disables gradients around a statement."""
    for node in source.nodes():
        if isinstance(node, ast.FunctionDef):
            found = [each for each in node.decorator_list if _is_off(each)]
        elif isinstance(node, ast.With) and node.lineno <= statement.lineno <= (node.end_lineno or 0):
            found = [each.context_expr for each in node.items if _is_off(each.context_expr)]
        else:
            continue
        if found:
            return f"{_OFF_TEXT}{ast.unparse(found[0])} (entered at {source.at(node).short}). Leave that block first"
    return None


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
            return variables_of(scope).get(node.id, scope.f_globals.get(node.id))
        return scope.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        holder = _value_of(node.value, scope)
        if isinstance(holder, nn.Module):
            return holder._modules.get(node.attr, getattr(type(holder), node.attr, None))
    return None


def cut_behind(model: nn.Module, path: str, frames: Iterable[FrameType]) -> str | None:
    """Return the likely cut of the path from a module's result to the loss, with the line and the remedy; None if no
    statement that uses the result is known to cut a path.

    Args:
        model: the model.
        path: the module's path in it.
        frames: running functions of the user's, which may call the module and compute the loss.
    """
    if not path:  # all that uses the loss uses the model
        return None
    parts = path.split(".")
    for length in reversed(range(len(parts))):
        forward = type(model.get_submodule(".".join(parts[:length]))).forward
        if isinstance(forward, FunctionType) and is_users(forward.__code__.co_filename):
            used = _expressions("self", parts[length])
            for found in _cuts_behind(FunctionSource(forward), used, forward, 10**9):
                return found
    for frame in frames:
        names = [name for name, value in variables_of(frame).items() if value is model]
        used = {each for name in names for each in _expressions(name, parts[0])}
        for found in _cuts_behind(FunctionSource(frame.f_code), used, frame, frame.f_lineno):
            return found
    return None


def _expressions(holder: str, name: str) -> set[str]:
    return {f"{holder}.{name}", f"{holder}[{name}]" if name.isdigit() else f"{holder}[{name!r}]"}


def _cuts_behind(source: FunctionSource, used: Set[str], scope: FrameType | FunctionType, line: int) -> Iterator[str]:
    """Yield the cuts in the statements until a line that use these expressions, or variables computed from them.

    The statements after the backward, such as those that log the loss, do not belong to the path.
    """
    known = set(used)

    def uses(node: ast.AST) -> bool:
        parts = (each for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute | ast.Subscript))
        return any(ast.unparse(each) in known for each in parts)

    kinds = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr
    for node in sorted((each for each in source.nodes() if isinstance(each, kinds)), key=lambda each: each.lineno):
        if node.lineno > line or node.value is None or not uses(node.value):
            continue
        if (off := _grad_mode_off(source, node)) is not None:
            yield off
        for cut in _cuts_in(node.value, scope, uses):
            yield f"at {source.at(node).short}, {cut}"
        known |= _names(node)


def _cuts_in(
    value: ast.expr, scope: FrameType | FunctionType, counts: Callable[[ast.AST], bool] = lambda _: True
) -> Iterator[str]:
    """Yield the cuts in an expression. `counts` tells which of its parts to look at."""
    for node in filter(counts, ast.walk(value)):
        receiver = (
            node.func.value
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else getattr(node, "value", None)
        )
        held = _value_of(receiver, scope) if isinstance(receiver, ast.Name) else None
        if isinstance(held, Tensor) and not held.requires_grad:  # such as a target: cutting it changes nothing
            continue
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
            yield (
                "torch.autograd.grad without create_graph=True returns gradients without a graph. Pass "
                "create_graph=True"
            )
    yield from _comparisons(value, counts)


def _comparisons(value: ast.expr, counts: Callable[[ast.AST], bool]) -> Iterator[str]:
    """Yield the comparisons whose result is computed with; not those that select: an index, or a condition."""
    selecting: set[ast.AST] = set()
    for node in ast.walk(value):
        inner = node.slice if isinstance(node, ast.Subscript) else node.test if isinstance(node, ast.IfExp) else None
        selecting |= set() if inner is None else set(ast.walk(inner))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "where":
            selecting |= {each for argument in node.args[:1] for each in ast.walk(argument)}
        is_value = not isinstance(node, ast.Compare) or isinstance(node.ops[0], ast.In | ast.Is | ast.IsNot | ast.NotIn)
        if not is_value and node not in selecting and counts(node):
            yield (
                f"`{ast.unparse(node)}` returns booleans, which have no gradient. Use a smooth function, such as "
                "sigmoid"
            )


def _is_off(context: ast.expr) -> bool:
    """Return whether a context turns gradients off, whatever its variables are."""
    if not isinstance(context, ast.Call) or (name := ast.unparse(context.func).rpartition(".")[2]) not in _OFF:
        return False
    modes = [each.value if isinstance(each, ast.Constant) else None for each in context.args]
    modes += [each.value.value if isinstance(each.value, ast.Constant) else None for each in context.keywords]
    return modes == [False] if name == "set_grad_enabled" else modes in ([], [True])


def _names(node: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
