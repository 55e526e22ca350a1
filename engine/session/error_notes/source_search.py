"""Search of the user's source for the lines that assign a variable, change state, or call a function. Runs no code."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from ....inspector.graph.source_lines import Source, is_users

_CHANGING = frozenset(
    [
        "append",
        "extend",
        "insert",
        "pop",
        "popleft",
        "appendleft",
        "update",
        "add",
        "setdefault",
        "remove",
        "clear",
        "discard",
        "popitem",
    ]
)
_MOST_FUNCTIONS = 200
_RANDOM = frozenset({"random", "np.random", "numpy.random"})


@dataclass(frozen=True)
class FunctionSource:
    """The parsed source of a function. `function` may also be the code of a running frame."""

    function: FunctionType | CodeType

    @property
    def code(self) -> CodeType:
        return self.function if isinstance(self.function, CodeType) else self.function.__code__

    @cached_property
    def tree(self) -> ast.AST | None:
        """The function's syntax tree, or the module's for code at its top level; None if the file cannot be read."""
        code = self.code
        whole = _parsed("".join(linecache.getlines(code.co_filename)))
        if whole is None or code.co_name == "<module>":
            return whole
        for node in ast.walk(whole):
            if isinstance(node, _FUNCTIONS):
                decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
                first = min([node.lineno, *(each.lineno for each in decorators)])
                if first == code.co_firstlineno and getattr(node, "name", "<lambda>") == code.co_name:
                    return node
        return None

    @property
    def at_start(self) -> Source:
        """The line on which the function begins."""
        line = getattr(self.tree, "lineno", self.code.co_firstlineno)  # the latter is a decorator's
        return Source(self.code.co_filename, line, self.code.co_name)

    def at(self, node: ast.AST) -> Source:
        return Source(self.code.co_filename, getattr(node, "lineno", self.code.co_firstlineno), self.code.co_name)

    def nodes(self) -> Iterator[ast.AST]:
        """Yield the nodes of the function's own code, without the functions and classes defined in it."""
        waiting = [] if self.tree is None else [self.tree]
        while waiting:
            node = waiting.pop(0)
            yield node
            inner = ast.iter_child_nodes(node)
            waiting += [each for each in inner if not isinstance(each, _DEFINITIONS)]

    def assignments(self, expression: str) -> list[Source]:
        """Return the lines that assign this variable or attribute, `self.hidden`, or an element of it."""
        found = []
        for node in self.nodes():
            targets = list(_targets(node))
            targets += [each.value for each in targets if isinstance(each, ast.Subscript)]
            if any(ast.unparse(each) == expression for each in targets):
                found.append(self.at(node))
        return sorted(found, key=lambda each: each.line)

    def mutations(self, expression: str) -> list[Source]:
        """Return the lines that extend or change a container by one of its methods: `outputs.append(y)`."""
        found = []
        for node in self.nodes():
            called = node.func if isinstance(node, ast.Call) else None
            if (
                isinstance(called, ast.Attribute)
                and called.attr in _CHANGING
                and ast.unparse(called.value) == expression
            ):
                found.append(self.at(node))
        return found

    def loops_around(self, line: int) -> list[tuple[int, int]]:
        """Return the first and last lines of the loops in which a line is."""
        loops = (node for node in self.nodes() if isinstance(node, ast.For | ast.AsyncFor | ast.While))
        return [(node.lineno, node.end_lineno or 0) for node in loops if node.lineno <= line <= (node.end_lineno or 0)]

    def changes(self) -> Iterator[tuple[str, Source]]:
        """Yield the state outside this function that it changes, with the line: `self.keys`, `cache`, `state['n']`.

        A generator that it advances and Python's and NumPy's random numbers are also state.
        """
        code = self.code
        own = set(code.co_varnames) - set(code.co_varnames[: code.co_argcount])
        for node in self.nodes():
            for target in _targets(node):
                if _is_outside(target, own, code):
                    yield ast.unparse(target), self.at(node)
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Attribute):
                holder = ast.unparse(called.value)
                if holder in _RANDOM:
                    yield f"{holder}.{called.attr}()", self.at(node)
                elif called.attr in _CHANGING and _is_state(called.value, own, code):
                    yield holder, self.at(node)
            elif (
                isinstance(called, ast.Name)
                and called.id == "next"
                and node.args
                and _is_state(node.args[0], own, code)
            ):
                yield ast.unparse(node.args[0]), self.at(node)

    def conditions(self) -> Iterator[tuple[str, Source]]:
        """Yield the state outside this function on which a branch depends: `self.fast`."""
        code = self.code
        own = set(code.co_varnames)
        for node in self.nodes():
            if isinstance(node, ast.If | ast.IfExp | ast.While):
                for each in ast.walk(node.test):
                    outside = isinstance(each, ast.Attribute) and _root(each) == "self"
                    outside |= isinstance(each, ast.Name | ast.Subscript) and _root(each) not in {*own, "self", ""}
                    if outside and not _is_called(each, node.test):
                        yield ast.unparse(each), self.at(node)

    def calls(self, name: str) -> list[Source]:
        """Return the lines that call a function of this name."""
        found = []
        for node in self.nodes():
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
                found.append(self.at(node))
        return found


@lru_cache(64)
def _parsed(text: str) -> ast.AST | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda
_DEFINITIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that a statement assigns, tuples one by one."""
    waiting: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        waiting = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.AsyncFor):
        waiting = [node.target]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, ast.Tuple | ast.List):
            waiting = [*each.elts, *waiting]
        else:
            yield each.value if isinstance(each, ast.Starred) else each


def _root(node: ast.AST) -> str:
    """Return the variable at which an expression begins: `self` for `self.cache[0].x`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_outside(target: ast.expr, own: set[str], code: CodeType) -> bool:
    """Return whether an assignment changes something that lives on after the call."""
    if isinstance(target, ast.Name):
        return target.id in code.co_freevars or (target.id not in code.co_varnames and target.id in code.co_names)
    root = _root(target)
    return root not in own and root != "" and root != "ctx"


def _is_state(node: ast.expr, own: set[str], code: CodeType) -> bool:
    if isinstance(node, ast.Name):
        return node.id not in code.co_varnames
    return isinstance(node, ast.Attribute | ast.Subscript) and _root(node) not in own and _root(node) != ""


def _is_called(node: ast.AST, within: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and each.func is node for each in ast.walk(within))


def functions_of(function: Callable[..., Any]) -> Iterator[tuple[nn.Module | None, FunctionSource]]:
    """Yield the user's functions that a call may run: forwards of a module's submodules, and functions that it refers
    to, each with its module."""
    seen: set[object] = set()
    waiting: list[tuple[nn.Module | None, Any]] = [(None, function)]
    while waiting and len(seen) < _MOST_FUNCTIONS:
        module, each = waiting.pop(0)
        if isinstance(each, partial):
            waiting.append((module, each.func))
        elif isinstance(each, nn.Module):
            waiting += [(inner, type(inner).forward) for inner in each.modules()]
        elif isinstance(each, MethodType):
            owner = each.__self__ if isinstance(each.__self__, nn.Module) else module
            inner = list(owner.modules())[1:] if owner is not None else []
            waiting += [(owner, each.__func__), *((one, type(one).forward) for one in inner)]
        elif isinstance(each, FunctionType) and each.__code__ not in seen:
            seen.add(each.__code__)
            if is_users(each.__code__.co_filename):
                yield module, FunctionSource(each)
                waiting += [(module, found) for found in _referred(each, module)]


def _referred(function: FunctionType, module: nn.Module | None) -> Iterator[Any]:
    """Yield the functions and modules in a function's closure, its globals and its module's class."""
    names = function.__code__.co_names
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for cell in cells.values():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names:
        found = function.__globals__.get(name)
        if isinstance(found, FunctionType | nn.Module):
            yield found
        if module is not None and isinstance(method := getattr(type(module), name, None), FunctionType):
            yield method


def methods_of(kind: type) -> Iterator[FunctionSource]:
    """Yield the user's methods of a class and its bases."""
    for base in kind.__mro__:
        for each in vars(base).values():
            if isinstance(each, FunctionType) and is_users(each.__code__.co_filename):
                yield FunctionSource(each)
