"""`python tests/structure/plain_words.py [FILE ...]`: texts of the product that are hard to read at first.

Finds docstrings, comments and messages that begin with a stand-in for a noun ("What ...", "Of each ...") or contain a
phrase that PyTorch's documentation would not use. A single text can be a false positive. The share of all texts shows
whether new text is written plainly; `make lint` limits it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PRODUCT = ("inspector", "engine", "widgets", "commands", "public")
_FEWEST = 4  # words of a text
_STAND_IN = re.compile(
    r"(What|Whatever|Who|Whom|Whose|Which|Where|Whether|Of|By|How|That|Those|As|From here on|In which)\b(?! well\b)"
)
_PHRASES = re.compile(
    "|".join(
        rf"\b{phrase}\b"
        for phrase in (
            r"(?<!there )(?:is|are|was|were) no (?!longer|more than)\w+",
            r"lets? (?:\w+ ){0,3}go(?: of)?",
            r"(?:made|makes?|making) (?:\w+ ){0,3}again",
            r"(?:is|are|was|were) told",
            r"tells? (?:of|whom)",
            r"comes? of (?:it|this|that)",
            r"what there is",
            r"in vain",
            r"spoiled",
            r"born",
            r"as (?:ever|it is|they are)",
            r"of (?:its|their) own",
            r"that (?:is|are|was|were) there",
            r"for good",
            r"says? of",
            r"(?:is|are) said",
            r"nor (?:is|are|was|does)",
            r"(?:strangers?|rooms?|leftovers?)",
        )
    )
    + r"|, too[.,)]"
)


def hard_texts(paths: list[Path]) -> tuple[list[str], int]:
    """Return the texts of these files that a rule matches, as `file:line: text`, and the number of all texts."""
    texts = [(path, line, text) for path in paths for line, text in _texts(path) if len(text.split()) >= _FEWEST]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:100]}"
        for path, line, text in texts
        if _STAND_IN.match(text) or _PHRASES.search(text)
    ]
    return found, len(texts)


def product_files() -> list[Path]:
    """Return the product's Python and TypeScript files."""
    python = [path for folder in _PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    return [*sorted(ROOT.glob("*.py")), *python, *sorted((ROOT / "widgets" / "js" / "src").rglob("*.ts"))]


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of docstrings, comments and, in Python, strings."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".ts":
        for match in re.finditer(r"/\*\*(.*?)\*/|(?<=\s)//([^\n]*)", content, re.DOTALL):
            yield content.count("\n", 0, match.start()) + 1, " ".join((match[1] or match[2]).replace("*", " ").split())
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


if __name__ == "__main__":
    hard, count = hard_texts([Path(each).resolve() for each in sys.argv[1:]] or product_files())
    print(*hard, sep="\n")
    print(f"{len(hard):,} of {count:,} texts, {1000 * len(hard) / max(count, 1):.0f} of 1,000")
