"""`python tests/structure/wordings.py [FILE ...]`: the strings of tests that repeat words of tapescope's texts.

Such a test fails with each better wording. Tests assert facts instead, and whole texts stand in tests/snapshots: see
tests/says.py.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FEWEST = 4  # number of successive words that count as a repetition
_PRODUCT = ("inspector", "engine", "widgets", "commands", "public")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_WORD = re.compile(r"""[("'`]*([A-Za-z]+(?:'[a-z]+)?)[.,;:!?)"'`]*""")  # `ts.profile(make_loss)` is code, no word
_CODE = re.compile(r"^\s*(import|from|def|class|with|for|%|<)|[=(\[]\s*\n|\n\s+\w+ = |\n(import|from) ", re.MULTILINE)


def wordings(paths: list[Path]) -> Iterator[str]:
    """Yield each string of these files that repeats words of a product text, as `file:line: words`."""
    known = _product_runs()
    for path in paths:
        for line, text in _strings(path):
            run = next((run for run in _runs(text) if run in known), None)
            if run is not None and not _CODE.search(text):
                yield f"{path.relative_to(ROOT)}:{line}: {' '.join(run)}"


def test_files() -> list[Path]:
    return [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name.startswith("test_")]


def _product_runs() -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for path in [*ROOT.glob("*.py"), *(path for folder in _PRODUCT for path in (ROOT / folder).rglob("*.py"))]:
        for _, text in _strings(path):
            found.update(_runs(text))
    for path in (ROOT / "widgets" / "js" / "src").rglob("*.ts"):
        for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`', path.read_text(encoding="utf-8")):
            found.update(_runs(re.sub(r"\$\{[^}]*\}", " | ", "".join(text))))
    return found


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield each sequence of `FEWEST` successive words of a text; anything that is not a word ends a sequence."""
    row: list[str] = []
    for token in re.sub(r" \| |[{}]", " | ", text).split():
        word = _WORD.fullmatch(token)
        row = [*row, word[1].lower()] if word else []
        if len(row) >= FEWEST:
            yield tuple(row[-FEWEST:])


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the string constants of a file without docstrings; for an f-string its constant parts, joined by " | "."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            skipped.add(id(node.body[0].value))  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else " | " for each in node.values]
            skipped.update(id(each) for each in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


if __name__ == "__main__":
    asked = [Path(each).resolve() for each in sys.argv[1:]]
    found = [*wordings(asked or test_files())]
    print(*found, f"{len(found)} strings repeat {FEWEST} words of a text", sep="\n")
