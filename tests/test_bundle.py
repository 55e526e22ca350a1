"""The scripts of the pages: their sources are sound, and the committed bundles are what they give."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

WIDGETS = Path(__file__).parents[1] / "widgets"
MOST_BYTES = {"deck.js": 300 * 1024, "frontier.js": 150_000, "loop.js": 100_000, "figures.js": 30_000}


def run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-5000:]}"


def test_the_types_agree(page_sources: Path) -> None:
    run(page_sources, "npm", "run", "check")


def test_the_pages_own_tests_pass(page_sources: Path) -> None:
    assert list((page_sources / "tests").glob("*.test.ts"))
    run(page_sources, "npm", "test")


def test_the_committed_bundles_are_what_the_sources_give(page_sources: Path) -> None:
    static = page_sources.parent / "static"
    static.mkdir()
    run(page_sources, "npm", "run", "build")
    assert {path.name for path in static.iterdir()} == MOST_BYTES.keys()
    for name in MOST_BYTES:
        built, committed = (folder / name for folder in (static, WIDGETS / "static"))
        assert built.read_bytes() == committed.read_bytes(), "`npm run build` in widgets/js, and commit widgets/static"


@pytest.mark.parametrize("name", MOST_BYTES)
def test_a_bundle_is_small_and_asks_for_nothing_else(name: str) -> None:
    text = (WIDGETS / "static" / name).read_text(encoding="utf-8")
    assert len(text.encode()) <= MOST_BYTES[name]
    assert "</script" not in text.lower(), "a page that has it inside would end there"
    assert not re.search(r"(^|[;}\s])import\b\s*[\w{*(\"']", text), "the page would load another module"
    for word in ("importScripts", "fetch(", "XMLHttpRequest", "WebSocket", "sourceMappingURL"):
        assert word not in text, f"the page would load something: {word}"
