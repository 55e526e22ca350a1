"""What is told of products that ran as one."""

from __future__ import annotations

import html
import io

from rich.console import Console

import tapescope as ts

STACK = ts.types.Batch("bmm", (7, 3, 5), 9, 5, 2048, 0, 30_000)
TREE = ts.types.Batch("tree", (7, 8), 3, 3, 1024, 512, 20_000)


def test_sums_are_of_all_and_each_task_knows_its_own() -> None:
    found = ts.types.Batches((STACK, TREE))
    assert (found.launches_saved, found.copied_bytes, found.elapsed_ns) == (4, 3072, 50_000)
    assert found.of(7) == (STACK, TREE)
    assert found.of(8) == (TREE,)
    assert found.of(1) == ()
    assert found.steps == [[7, 3, 5]]


def test_it_is_said_in_words_everywhere() -> None:
    why = ts.types.Fallback("bmm", (11, 12), "<b> (2nd) has the hook note, which sees that task alone")
    found = ts.types.Batches((STACK, TREE), (why,) * 7)
    assert found.sentences[0] == "2 batches took 4 tasks: 12 launches became 8, in 0.05 ms, for 3 KiB of copies."
    assert found.sentences[1].startswith("Not as one: 2 tasks: <b> (2nd) has the hook note")
    assert found.sentences[-1] == "2 more groups in .fallbacks."
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(found)
    for shown in (repr(found), console.export_text()):
        assert "9 → 5" in shown and "512 B" in shown
    page = found._repr_html_()
    assert html.escape("<b>") in page and "<b> has" not in page


def test_nothing_is_said_to_be_nothing() -> None:
    assert ts.types.Batches().sentences == ("Nothing ran as one.",)
    assert not ts.types.Batches()
    many = ts.types.Batches((STACK,) * 50)
    assert many.cells[-1][0] == "and 10 more"
