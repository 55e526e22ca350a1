"""Every call of tapescope's that a message advises can be made."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tapescope as ts

ROOT = Path(ts.__file__).parent
FOLDERS = ("commands", "engine", "inspector", "widgets")
CALL = re.compile(r"\bts\.([A-Za-z_]+)\(")
PLACEHOLDER = "value"  # what stands in an f-string between braces


def messages(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the strings of a file that are not docstrings, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    skipped = {id(node.body[0]) for node in ast.walk(tree) if isinstance(node, documented) and node.body}
    skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    skipped |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and id(node) in skipped}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [str(each.value) if isinstance(each, ast.Constant) else PLACEHOLDER for each in node.values]
            yield "".join(parts), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def calls(text: str) -> Iterator[ast.Call]:
    for match in CALL.finditer(text):
        depth = 0
        for place in range(match.end() - 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            if not depth:
                try:
                    call = ast.parse(text[match.start() : place + 1], mode="eval").body
                except SyntaxError:
                    break
                if isinstance(call, ast.Call):
                    yield call
                break


def advised() -> Iterator[tuple[str, ast.Call]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for text, line in messages(path):
                for call in calls(text):
                    yield f"{path.relative_to(ROOT)}:{line}: {ast.unparse(call)}", call


def test_the_arguments_of_each_call_that_a_message_advises_fit() -> None:
    wrong, seen = [], 0
    for where, call in advised():
        assert isinstance(call.func, ast.Attribute)
        verb = getattr(ts, call.func.attr, None)
        if verb is None:
            wrong.append(f"{where}: unknown name")
            continue
        names = {each.arg for each in call.keywords}
        is_open = any(isinstance(each, ast.Constant) and each.value is ... for each in call.args)
        if not (call.args or names):  # the verb's name alone
            continue
        if is_open or None in names or any(isinstance(each, ast.Starred) for each in call.args):
            continue
        seen += 1
        try:
            bound = inspect.signature(verb).bind(*call.args, **{name: None for name in names if name})
        except TypeError as error:
            wrong.append(f"{where}: {error}")
            continue
        first = call.args[0] if call.args else None
        if "make_loss" in bound.arguments and isinstance(first, ast.Name) and first.id == "loss":
            wrong.append(f"{where}: make_loss is a loss here")
    assert seen > 50
    assert wrong == []


def test_the_arguments_are_read_from_the_midst_of_a_sentence() -> None:
    (call,) = calls("In their midst: ts.find_unused(loss), and more words.")
    with pytest.raises(TypeError):
        inspect.signature(ts.find_unused).bind(*call.args)
