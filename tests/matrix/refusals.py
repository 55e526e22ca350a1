"""The documentation's table of refusals, made from the matrix: docs/reference/refusals.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from run import Result

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "refusals.md"

_HEAD = """# What is refused, and what to do instead

Each of {kinds} kinds of programs was run under each of {verbs} verbs, and compared with plain PyTorch to the bit
(`python tests/matrix --write-docs`, which writes this page). Listed are the pairs that a verb refuses: it raises an
error that says what works instead, and leaves everything as it was. All other pairs give what plain PyTorch gives.
Names and numbers in the sentences are those of the test programs, which are in `tests/matrix/kinds`.
"""


def pairs_of_page(text: str) -> set[tuple[str, str]]:
    """Read the pairs back from the page."""
    found = set()
    for row in re.finditer(r"^\| `(?P<kind>\w+)` \| (?P<verbs>[^|]+) \|", text, re.MULTILINE):
        found |= {(row["kind"], verb) for verb in re.findall(r"`([^`]+)`", row["verbs"])}
    return found


def page(results: Sequence[Result], topics: Mapping[str, Sequence[str]]) -> str:
    """Return the page's text: a table per topic, a row per kind and sentence."""
    verbs = {each.verb for each in results}
    parts = [_HEAD.format(kinds=sum(map(len, topics.values())), verbs=len(verbs))]
    for topic, kinds in topics.items():
        rows: dict[tuple[str, str], list[str]] = {}
        for each in results:
            if each.outcome == "refused" and each.kind in kinds:
                rows.setdefault((each.kind, _sentence(each.text)), []).append(each.verb)
        if not rows:
            continue
        parts.append(f"\n## {topic.capitalize()}\n\n| program | verbs | what it says |\n|---|---|---|\n")
        parts += [
            f"| `{kind}` | {', '.join(f'`{verb}`' for verb in found)} | {said} |\n"
            for (kind, said), found in rows.items()
        ]
    return "".join(parts)


def _sentence(text: str) -> str:
    """Return the refusal without the exception's name and places in files, safe inside a table of Markdown."""
    said = re.sub(r"^\w+: ", "", text)
    said = re.sub(r"(\s|\()(at|of|in) \S+\.py:\d+\)?", "", said)
    said = re.sub(r"0x[0-9a-f]+", "0x...", said)
    said = said.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return re.sub(r"(?<!`)(__\w+__|\*)", r"`\1`", said)
