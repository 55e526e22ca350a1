"""The docstrings of public functions and classes, which are all that the reference contains."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import NamedTuple

import pytest

from .public_names import PUBLIC_NAMES, public

API = Path(__file__).parents[1] / "docs" / "reference" / "api"
FUNCTIONS = [name for name in PUBLIC_NAMES if inspect.isfunction(public(name))]
FEW = 2  # so many the first line tells

INSIDE = {
    "Change",
    "Columns",
    "Conditions",
    "EditRow",
    "Footprint",
    "ForwardOperation",
    "ForwardStorage",
    "GraphOrder",
    "Label",
    "LeafState",
    "RecomputedMemory",
    "ModuleFlow",
    "Moment",
    "Outline",
    "Parts",
    "PolicyTerm",
    "Ran",
    "StartStorage",
    "StatisticsTable",
    "TensorLayout",
}
"""What public classes are made of, and no reader of the reference asks for."""


def words_on(name: str) -> str:
    """Return the docstring of a function, and those of the functions that it refers to."""
    names = [name]
    for each in names:
        found = re.findall(r"`ts\.((?:[a-z]+\.)?\w+)", inspect.getdoc(public(each)) or "")
        names += [other for other in found if other in PUBLIC_NAMES and other not in names]
    return "\n".join(inspect.getdoc(public(each)) or "" for each in names)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_tells_of_each_argument_and_of_what_is_refused(name: str) -> None:
    first, _, _ = (inspect.getdoc(public(name)) or "").partition("\n")
    arguments, words = inspect.signature(public(name)).parameters, words_on(name)
    assert first.endswith((".", ":", "`"))
    if len(arguments) > FEW:
        assert [each for each in arguments if not re.search(rf"\b{each}\b", words)] == []
        assert "Raises:" in words


def found_at(path: str) -> object:
    """Return the object that `.. autoclass::` and the like mean by a path."""
    module, _, name = path.rpartition(".")
    public_name = path.removeprefix("tapescope.")
    return public(public_name) if public_name in PUBLIC_NAMES else getattr(import_module(module), name)


PATHS = [
    path
    for page in sorted(API.glob("*.md"))
    for path in re.findall(r"^\.\. auto\w+:: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
CLASSES = [kind for kind in map(found_at, PATHS) if inspect.isclass(kind)]


def is_ours(kind: object) -> bool:
    return inspect.isclass(kind) and kind.__module__.startswith("tapescope.")


class Attribute(NamedTuple):
    """An attribute that users can access."""

    name: str
    gives: str  # its type, as written
    module: str
    words: str  # all its documentation


def attributes_of(kind: type) -> Iterator[Attribute]:
    """Return the attributes of a class and of tapescope's bases; documentation of a base counts."""
    bases = [base for base in kind.__mro__ if is_ours(base)]
    entries = [entry for base in bases for entry in entries_of(inspect.getdoc(base) or "")]
    for base in bases:
        for name, gives, own in fields_of(base):
            said = [text for heads, text in entries if re.search(rf"\b{name}\b", heads)]
            yield Attribute(name, gives, base.__module__, "\n".join([own, *said]).strip())
        for name, member in vars(base).items():
            function = getter_of(member)
            if function is not None and not name.startswith("_"):
                words = next((doc for each in bases if (doc := doc_of(vars(each).get(name)))), "")
                gives = str(inspect.signature(function).return_annotation)
                yield Attribute(name, gives, base.__module__, words)


def getter_of(member: object) -> object:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    return member if inspect.isfunction(member) else None


def doc_of(member: object) -> str:
    function = getter_of(member)
    return "" if function is None else function.__doc__ or ""


@cache
def fields_of(kind: type) -> tuple[tuple[str, str, str], ...]:
    """Name, type and own docstring of each annotated field."""
    definition = ast.parse(dedent(inspect.getsource(kind))).body[0]
    assert isinstance(definition, ast.ClassDef)
    following = [*definition.body[1:], ast.Pass()]
    return tuple(
        (each.target.id, ast.unparse(each.annotation), text_of(after))
        for each, after in zip(definition.body, following, strict=True)
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id[0] != "_"
    )


def text_of(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return str(node.value.value) if is_text else ""  # type: ignore[attr-defined]


def entries_of(doc: str) -> Iterator[tuple[str, str]]:
    """The entries of the sections "Attributes" and "Args", each with the names that it is about."""
    for section in re.findall(r"^(?:Attributes|Args):\n((?:(?:    .*)?(?:\n|$))+)", doc, re.MULTILINE):
        for entry in re.split(r"\n(?=    \S)", section):
            heads, _, _ = entry.partition(":")
            yield " ".join([heads, *re.findall(r"(\w+): ", entry), *re.findall(r"`(\w+)`", entry)]), entry


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_says_what_it_is_and_what_each_attribute_is(kind: type) -> None:
    first, _, _ = (kind.__doc__ or "").partition("\n\n")
    assert first.rstrip().endswith((".", ":", "`"))  # which what a dataclass writes by itself does not
    assert [each.name for each in attributes_of(kind) if not each.words] == []


AMOUNT = re.compile(
    r"^size$|(?:^|_)(?:memory|levels?|peaks?|limit|budget|started|ended|elapsed|duration|times?|deltas)$"
)
UNIT = re.compile(r"byte|second|share|counted")
NUMBER = re.compile(r"\b(?:int|float)\b")
SHAPE = re.compile(r"\bshapes?\b|\bscalar\b|\bloss\b")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_amounts_have_a_unit_and_tensors_a_shape(kind: type) -> None:
    found = [*attributes_of(kind)]
    amounts = [each for each in found if AMOUNT.search(each.name) and NUMBER.search(each.gives)]
    tensors = [each for each in found if re.search(r"\bTensor\b", each.gives)]
    assert [each.name for each in amounts if not UNIT.search(each.words)] == []
    assert [each.name for each in tensors if not SHAPE.search(each.words)] == []


def test_what_public_classes_and_functions_give_is_in_the_reference() -> None:
    gives = [(each.gives, sys.modules[each.module]) for kind in CLASSES for each in attributes_of(kind)]
    for name in FUNCTIONS:
        function = inspect.unwrap(public(name))
        gives.append((str(inspect.signature(function).return_annotation), sys.modules[function.__module__]))
    given = {kind for text, module in gives for kind in named_in(text, module)}
    assert {kind.__name__ for kind in given - {*CLASSES}} == INSIDE


def named_in(text: str, module: ModuleType) -> Iterator[type]:
    """The classes of ours that a type names."""
    for name in re.findall(r"[A-Za-z]\w+", text):
        kind = getattr(module, name, None)
        if kind is None and name in imports_of(module):
            source, there = imports_of(module)[name]
            kind = getattr(import_module(source, module.__package__), there)
        if is_ours(kind):
            yield kind


@cache
def imports_of(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Return the imports of a module by name, including those for type checkers."""
    nodes = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
        for node in nodes
        for alias in node.names
    }
