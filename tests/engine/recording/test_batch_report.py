"""The report on products that ran as one batch."""

from __future__ import annotations

import html
import io

from rich.console import Console

import tapescope as ts
from tapescope.tests.says import Snapshots, says

STACK = ts.types.Batch("bmm", (7, 3, 5), 9, 5, 2048, 0, 30_000)
TREE = ts.types.Batch("tree", (7, 8), 3, 3, 1024, 512, 20_000)


def test_sums_are_of_all_and_each_task_knows_its_own() -> None:
    found = ts.types.Batches((STACK, TREE))
    assert (found.launches_saved, found.copied_bytes, found.elapsed_ns) == (4, 3072, 50_000)
    assert found.of(7) == (STACK, TREE)
    assert found.of(8) == (TREE,)
    assert found.of(1) == ()
    assert found.steps == [[7, 3, 5]]


def test_it_is_said_in_words_everywhere(snapshot: Snapshots) -> None:
    why = ts.types.Fallback("bmm", (11, 12), "<b> (2nd) has a hook")
    found = ts.types.Batches((STACK, TREE), (why,) * 7)
    says(found.sentences[0], "2 batches", "4 tasks", 12, 8, "0.05 ms", "3 KiB")
    says(found.sentences[1], "2 tasks", why.why)
    says(found.sentences[-1], 2, ".fallbacks")
    snapshot("batch", found)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(found)
    for shown in (repr(found), console.export_text()):
        says(shown, "9 → 5", "512 B")
    page = found._repr_html_()
    assert html.escape("<b>") in page and "<b> has" not in page


def test_nothing_is_said_to_be_nothing(snapshot: Snapshots) -> None:
    assert not ts.types.Batches()
    snapshot("batch", ts.types.Batches())
    many = ts.types.Batches((STACK,) * 50)
    says(many.cells[-1][0], 10)
