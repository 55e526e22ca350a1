"""The page of the deck: its sources are sound, and the committed bundle is what they give."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

WIDGETS = Path(__file__).parents[1] / "widgets"
BUNDLE = WIDGETS / "static" / "deck.js"
MOST_BYTES = 300_000


def run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-5000:]}"


def test_the_types_agree(page_sources: Path) -> None:
    run(page_sources, "npm", "run", "check")


def test_the_pages_own_tests_pass(page_sources: Path) -> None:
    assert list((page_sources / "tests").glob("*.test.ts"))
    run(page_sources, "npm", "test")


def test_the_committed_bundle_is_what_the_sources_give(page_sources: Path) -> None:
    (page_sources.parent / "static").mkdir()
    run(page_sources, "npm", "run", "build")
    built = (page_sources.parent / "static" / "deck.js").read_bytes()
    assert built == BUNDLE.read_bytes(), "run `npm run build` in widgets/js and commit widgets/static/deck.js"


def test_the_bundle_is_small_and_asks_for_nothing_else() -> None:
    text = BUNDLE.read_text(encoding="utf-8")
    assert len(text.encode()) <= MOST_BYTES
    assert not re.search(r"(^|[;}\s])import\b\s*[\w{*(\"']", text), "the page would load another module"
    for word in ("importScripts", "fetch(", "XMLHttpRequest", "WebSocket", "sourceMappingURL"):
        assert word not in text, f"the page would load something: {word}"
