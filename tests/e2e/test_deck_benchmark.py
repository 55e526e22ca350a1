"""Run the benchmark of the deck on tiny models, without checking times."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from .lab import Notebook

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # as those of the other benchmarks


def test_each_measurement_of_the_deck_gives_its_row(
    browser: Browser, notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    for name in ("deck", "measure"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    deck = importlib.import_module("deck")
    effort = importlib.import_module("measure").Effort(repetitions=1, tiny=True)
    pages = [*deck.page_rows(browser, tmp_path, effort), *deck.large_page_rows(browser, tmp_path, effort)]
    rows = [*pages, *deck.live_rows(notebook, effort)]
    assert [row.goal for row in rows] == [17, 17, None, 4000, 8, 200, 1000, 500, None, 500, 100, 4000, 10_000]
    assert all(row.values and min(row.values) >= 0 for row in rows)
