"""Find the torch function that a bytecode instruction calls, to name an operation where no function mode is open."""

from __future__ import annotations

import builtins
import dis
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from inspect import unwrap
from types import CodeType, ModuleType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional
from torch.overrides import get_overridable_functions

Called = Callable[..., Any] | str
"""A function of torch's, or the name of one that can't be had."""

CALLS_ITSELF = "an operator of torch.ops"
"""Stands for the operator whose `__call__` is running: only its frame says which one that is."""

_OPERATORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "@": "matmul",
    "%": "remainder",
    "//": "__floordiv__",
    "**": "__pow__",
    "+=": "add_",
    "-=": "sub_",
    "*=": "mul_",
    "/=": "div_",
    "[]": "__getitem__",
}
"""Maps each binary operator of Python to the method of torch.Tensor that a function mode would report for it."""

_INSTRUCTIONS = {
    "UNARY_NEGATIVE": "neg",
    "BINARY_SUBSCR": "__getitem__",
    "BINARY_SLICE": "__getitem__",
    "STORE_SUBSCR": "__setitem__",
    "STORE_SLICE": "__setitem__",
}
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "PRECALL")
_KIND = re.compile(r"Backward\d*$")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_MOST_PLACES = 20_000
_known: dict[tuple[int, int], tuple[CodeType, Called | None]] = {}  # by id: the hash of a code object is a slow one


def called_at(code: CodeType, instruction: int, names: Mapping[str, object]) -> Called | None:
    """Return the function of torch that the instruction at this offset calls; None where the code does not say it.

    Args:
        code, instruction: where the call is under way.
        names: the globals of the code.
    """
    key = id(code), instruction
    found = _known.get(key)
    if found is None or found[0] is not code:
        if len(_known) >= _MOST_PLACES:
            _known.clear()
        found = _known[key] = code, _look_up(code, instruction, names)
    return found[1]


def _look_up(code: CodeType, instruction: int, names: Mapping[str, object]) -> Called | None:
    steps = [step for step in dis.get_instructions(code) if step.offset <= instruction]
    if not steps:
        return None
    step = steps[-1]
    if step.opname in _CALLS:
        return _callee(steps, step, names)
    if step.opname == "LOAD_ATTR":
        attribute = getattr(torch.Tensor, step.argval, None)
        return getattr(attribute, "__get__", None)  # a property: `x.T`
    name = _OPERATORS.get(step.argrepr) if step.opname == "BINARY_OP" else _INSTRUCTIONS.get(step.opname)
    return None if name is None else getattr(torch.Tensor, name)


def _callee(steps: list[dis.Instruction], call: dis.Instruction, names: Mapping[str, object]) -> Called | None:
    """The function that a call is of: what is loaded from where the call begins in the source, the longest of it."""
    loads = [step for step in steps if step.opname.startswith("LOAD_") and _begins_with(call, step)]
    if not loads:
        return None
    chain: list[str] = []
    end = max(_end(step) for step in loads)
    last = next(step for step in reversed(loads) if _end(step) == end)
    for step in [*(step for step in loads if _end(step) < end), last]:
        chain.append(str(step.argval))
    root = loads[0]
    if root.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        found: object = names.get(chain[0], getattr(builtins, chain[0], None))
        for name in chain[1:]:
            if not isinstance(found, ModuleType | type):  # a tensor: looking further could compute something
                return _by_name(chain[-1])
            found = getattr(found, name, None)
        return _of_torch(found, chain)
    return _by_name(chain[-1]) if len(chain) > 1 else None


def _of_torch(found: object, chain: list[str]) -> Called | None:
    """A function if it is one of torch's; the name under which torch has it, where a library has put its own there."""
    if not callable(found):
        return None
    module = getattr(found, "__module__", None) or getattr(getattr(found, "__objclass__", None), "__module__", "")
    if str(module).partition(".")[0] == "torch":
        return found
    name = chain[-1]
    if type(found).__name__ in ("builtin_function_or_method", "method_descriptor"):
        return found if found is getattr(torch, name, None) or found is getattr(functional, name, None) else None
    return _by_name(name) if hasattr(torch, name) else None


def _by_name(name: str) -> Called | None:
    return next(
        (found for owner in (torch.Tensor, torch, functional) if callable(found := getattr(owner, name, None))), None
    )


def _begins_with(call: dis.Instruction, step: dis.Instruction) -> bool:
    one, other = call.positions, step.positions
    if one is None or other is None or one.lineno is None or step.offset >= call.offset:
        return False
    return (one.lineno, one.col_offset) == (other.lineno, other.col_offset) and _end(step) < _end(call)


def _end(step: dis.Instruction) -> tuple[int, int]:
    assert step.positions is not None
    return step.positions.end_lineno or 0, step.positions.end_col_offset or 0


@lru_cache(maxsize=4096)
def by_kind(kind: str) -> Called:
    """The function after which a node's kind is named: `torch.Tensor.sin` for SinBackward0."""
    name = _CAPITAL.sub("_", _KIND.sub("", kind)).lower()
    return _by_name(name) or name


@cache
def overridable_codes() -> Mapping[int, Called]:
    """Map ids of code objects to the torch functions, written in Python, that a function mode sees as one call."""
    seen: dict[int, Any] = {id(each): each for found in get_overridable_functions().values() for each in found}
    codes: dict[int, list[Callable[..., Any]]] = {}
    for function in [*seen.values(), torch.autograd.grad, torch.autograd.backward]:
        code = getattr(unwrap(function), "__code__", None)
        if code is not None:
            codes.setdefault(id(code), []).append(function)
    alone: dict[int, Called] = {code: found[0] for code, found in codes.items() if len(found) == 1}  # else a wrapper
    return alone | {id(kind.__call__.__code__): CALLS_ITSELF for kind in (OpOverload, OpOverloadPacket)}
