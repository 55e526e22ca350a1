"""The imports of each module, read from the code, including those in functions and for type checkers."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("inspector", "engine", "widgets", "commands", "integrations")


def _layers() -> Iterator[str]:
    """Yield the packages as pyproject.toml has them for import-linter: each imports only from those before it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {each["containers"][0]: each["layers"] for each in contracts if "containers" in each}
    packages = next(each["layers"] for each in contracts if "containers" not in each)
    for package in reversed(packages):
        name = package.removeprefix("tapescope.")
        yield from (f"{name}.{each}" for each in reversed(layers[package])) if package in layers else (name,)


LAYERS = tuple(_layers())

Imports = Mapping[str, frozenset[str]]
"""By module, with dots and without "tapescope.", the modules that it imports."""


def module_name(path: Path) -> str:
    """Return `engine.schedule.policy`; for a folder's `__init__.py`, the folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, Path]:
    """Return the file of each module, including the public `__init__.py` and `__main__.py`."""
    paths = [*ROOT.glob("__*__.py"), *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]
    return {module_name(path) or "tapescope": path for path in sorted(paths)}


def imports_of(sources: Mapping[str, Path]) -> Imports:
    """Return the modules that each module imports."""
    return {name: frozenset(_imported(name, path, sources)) - {name} for name, path in sources.items()}


def _imported(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.ImportFrom) and node.level):
            continue
        folder = path.relative_to(ROOT).parts[:-1]
        base = [*folder[: len(folder) - (node.level - 1)], *(node.module.split(".") if node.module else ())]
        for alias in node.names:
            for parts in ([*base, alias.name], base):
                if (found := ".".join(parts)) in known:
                    yield found
                    break


def package_of(module: str) -> str:
    """Return `engine.schedule` for `engine.schedule.policy`; a module outside of the packages is its own package."""
    parts = module.split(".")
    if parts[0] == "commands":
        return "commands"
    return ".".join(parts[:2]) if parts[0] in PACKAGES else module


def cycles(imports: Imports) -> list[list[str]]:
    """Return the cycles of imports, each as all of its modules (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    on_it: set[str] = set()
    found = []
    for start in imports:
        if start in number:
            continue
        number[start] = low[start] = len(number)
        waiting.append(start)
        on_it.add(start)
        path = [(start, iter(sorted(imports[start])))]
        while path:
            module, others = path[-1]
            other = next(others, None)
            if other is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[module])
                if low[module] == number[module]:
                    at = waiting.index(module)
                    component, waiting = waiting[at:], waiting[:at]
                    on_it.difference_update(component)
                    if len(component) > 1:
                        found.append(sorted(component))
            elif other not in number:
                number[other] = low[other] = len(number)
                waiting.append(other)
                on_it.add(other)
                path.append((other, iter(sorted(imports.get(other, ())))))
            elif other in on_it:
                low[module] = min(low[module], number[other])
    return sorted(found, key=len, reverse=True)
