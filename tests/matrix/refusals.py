"""The documentation's table of refusals, made from the matrix: docs/reference/refusals.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from run import Result

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "refusals.md"

_HEAD = """# Refusals and alternatives

`python tests/matrix --write-docs` writes this page. It runs each of {kinds} kinds of programs under each of {verbs}
verbs, and compares gradients and the program's state with plain PyTorch's, bit for bit. The tables list the pairs that
a verb refuses: it raises an error that names an alternative, and changes nothing. Every other pair gives plain
PyTorch's results, or the verb does not apply to the program. Names and numbers in the messages are those of the test
programs in `tests/matrix/kinds`.
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
        parts.append(f"\n## {topic.capitalize()}\n\n| program | verbs | error message |\n|---|---|---|\n")
        parts += [
            f"| `{kind}` | {', '.join(f'`{verb}`' for verb in found)} | {said} |\n"
            for (kind, said), found in rows.items()
        ]
    return "".join(parts)


def _sentence(text: str) -> str:
    """Return the message without the exception's name and places in files, safe inside a table of Markdown."""
    said = re.sub(r"^\w+: ", "", text)
    said = re.sub(r"^\S+\.py:\d+: | \(\S+\.py:\d+\)|(\s|\()(at|of|in) \S+\.py:\d+\)?", "", said)
    said = re.sub(r"0x[0-9a-f]+", "0x...", said)
    said = said.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return re.sub(r"(?<!`)(__\w+__|\*)", r"`\1`", said)
