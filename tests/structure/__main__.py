"""`python tests/structure`: counts properties of the code, from imports and definitions; part of `make lint`.

Exit 1 if a count is above its limit. `--picture FILE` draws the packages instead, see `picture.py`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[1])  # tests/, which has no package above it
from structure.imports import LAYERS, PACKAGES, ROOT, cycles, imports_of, package_of, sources
from structure.plain_words import hard_texts, product_files
from structure.wordings import test_files, wordings

MOST_MODULES = 28  # in a folder
MOST_LINES = 550  # in a file
MOST_BODY = 65  # lines of a function below its docstring
MOST_METHODS = 30  # in a class

T = TypeVar("T", ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Count:
    """A counted property: its title, the places found, and the most that are allowed."""

    title: str
    found: list[str]
    most: int = 0

    @property
    def is_met(self) -> bool:
        return len(self.found) <= self.most

    def __str__(self) -> str:
        return "\n    ".join([f"{self.title}: {len(self.found)} (at most {self.most})", *self.found])


def counts(modules: Mapping[str, Path]) -> list[Count]:
    """Return all counts."""
    imports = imports_of(modules)
    inside = {name: targets for name, targets in imports.items() if name.partition(".")[0] in PACKAGES}
    return [
        Count("cycles", [f"{len(cycle)}: {', '.join(cycle)}" for cycle in cycles(imports)]),
        Count(
            "imports up",
            [f"{name} -> {other}" for name in inside for other in sorted(inside[name]) if imports_upwards(name, other)],
        ),
        Count("imports that a package's __init__.py does not name", sorted(undeclared_imports(imports))),
        Count(
            "packages without a layer",
            sorted({package for package in map(package_of, inside) if is_package(package)} - set(LAYERS)),
        ),
        Count(f"folders with more than {MOST_MODULES} modules", large_folders(modules)),
        Count(f"files over {MOST_LINES} lines", long_files(modules)),
        Count(f"functions over {MOST_BODY} lines", [*long_functions(modules)]),
        Count(f"classes with more than {MOST_METHODS} methods", [*wide_classes(modules)]),
        Count("public class names that occur twice", repeated_names(modules), most=1),
        Count("strings of tests that repeat words of a text", [*wordings(test_files())], most=14),
        Count("texts with a phrase that is hard to read at first", hard_texts(product_files())[0], most=100),
    ]


def is_package(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).is_dir() and name not in PACKAGES


def undeclared_imports(imports: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield the imports between packages that a package's docstring does not name.

    A package names those of its own folder; other folders it names as a whole.
    """
    for package in LAYERS:
        path = ROOT / package.replace(".", "/") / "__init__.py"
        if not path.exists():
            continue
        said = set(
            re.findall(r"\w+", (ast.get_docstring(ast.parse(path.read_text())) or "").partition("May import")[2])
        )
        folder = package.partition(".")[0]
        modules = [module for module in imports if package_of(module) == package]
        for other in {package_of(each) for module in modules for each in imports[module]}:
            name = other.rpartition(".")[2] if other.startswith(f"{folder}.") else other.partition(".")[0]
            if other != package and name not in said:
                yield f"{package} -> {other}"


def imports_upwards(module: str, other: str) -> bool:
    """Return whether the first module imports from a package above its own."""
    here, there = package_of(module), package_of(other)
    if here == there or here not in LAYERS or there not in LAYERS:
        return (
            here != there
            and module.partition(".")[0] != other.partition(".")[0]
            and folder_imports_upwards(module, other)
        )
    return LAYERS.index(there) > LAYERS.index(here)


def folder_imports_upwards(module: str, other: str) -> bool:
    """Return the same for modules outside of these packages, by their folders."""
    return PACKAGES.index(other.partition(".")[0]) > PACKAGES.index(module.partition(".")[0])


def large_folders(modules: Mapping[str, Path]) -> list[str]:
    folders: dict[Path, int] = defaultdict(int)
    for path in modules.values():
        folders[path.parent] += path.name != "__init__.py"
    return [f"{folder.relative_to(ROOT)}: {count}" for folder, count in folders.items() if count > MOST_MODULES]


def long_files(modules: Mapping[str, Path]) -> list[str]:
    lines = {path: len(path.read_text().splitlines()) for path in modules.values()}
    return [f"{path.relative_to(ROOT)}: {count}" for path, count in lines.items() if count > MOST_LINES]


def definitions(modules: Mapping[str, Path], kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield all definitions of this kind, including nested ones, with their places."""
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield f"{module}.{node.name}", node


def long_functions(modules: Mapping[str, Path]) -> Iterator[str]:
    for where, function in definitions(modules, ast.FunctionDef):
        body = function.body[ast.get_docstring(function) is not None :]
        lines = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if lines > MOST_BODY:
            yield f"{where}: {lines}"


def wide_classes(modules: Mapping[str, Path]) -> Iterator[str]:
    for where, found in definitions(modules, ast.ClassDef):
        methods = sum(isinstance(node, ast.FunctionDef) for node in found.body)
        if methods > MOST_METHODS:
            yield f"{where}: {methods}"


def repeated_names(modules: Mapping[str, Path]) -> list[str]:
    where: dict[str, list[str]] = defaultdict(list)
    for module, path in modules.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(module)
    return [f"{name}: {', '.join(places)}" for name, places in sorted(where.items()) if len(places) > 1]


def main() -> int:
    if sys.argv[1:2] == ["--picture"]:
        from structure.picture import draw  # drawn by tapescope itself

        Path(sys.argv[2]).write_text(draw(imports_of(sources())), encoding="utf-8")
        return 0
    found = counts(sources())
    print(*found, sep="\n")
    return 0 if all(count.is_met for count in found) else 1


if __name__ == "__main__":
    sys.exit(main())
