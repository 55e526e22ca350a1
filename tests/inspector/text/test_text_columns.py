"""A table is as wide as a terminal at most: names lose their front, figures nothing."""

from __future__ import annotations

import io
from typing import Generic, TypeVar

from rich.console import Console

from tapescope.inspector.text.report import ShownAsFindings, ShownAsTable, cells_table
from tapescope.inspector.text.text_columns import WIDTH, cut_at_front, fitted, lines_of

Row = TypeVar("Row")

PATH = "model.encoder.layers.11.attention.self.query.projection.weight"
CELLS = [
    ["parameter", "peak", "longest queue", "what happened"],
    [PATH, "1,234.5 MiB", "1,024", "it was never called in any of the forwards that were seen"],
    ["bias", "1.0 MiB", "3", "nothing"],
]
NUMBERS = ("peak", "longest queue")


def test_what_fits_stays_as_it_is() -> None:
    cells = [["name", "a long heading"], ["x", "1"]]
    assert fitted(cells, ["a long heading"]) == cells
    assert lines_of(cells, ["a long heading"]) == ["name  a long heading", "x                  1"]


def test_a_table_that_is_too_wide_keeps_its_figures_and_the_ends_of_its_names() -> None:
    lines = lines_of(CELLS, NUMBERS)
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert "1,234.5 MiB" in text and "1,024" in text
    assert "…" in text and ".projection.weight" in text
    assert set(CELLS[1][3].split()) <= set(text.split())  # words go on below
    assert PATH not in text


def test_headings_give_way_before_anything_else_does() -> None:
    cells = [["policy", *["a rather long heading"] * 4], ["delay_accumulate", "1", "2", "3", "4"]]
    lines = lines_of(cells, cells[0][1:])
    assert max(map(len, lines)) <= WIDTH and "delay_accumulate" in lines[-1]
    assert len(lines) > 2 and lines[-1].split()[1:] == ["1", "2", "3", "4"]


def test_a_table_of_nothing_but_figures_keeps_all_of_them() -> None:
    cells = [["n", *map(str, range(12))], ["row", *["1,234.5 MiB"] * 12]]
    assert lines_of(cells, cells[0])[-1].count("1,234.5 MiB") == 12


def test_a_terminal_shows_the_same_in_its_own_width() -> None:
    for width in (60, 80, 200):
        console = Console(width=width, file=io.StringIO())
        console.print(cells_table(CELLS, NUMBERS))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= width
        assert "1,234.5 MiB" in text and ".weight" in text and (PATH in text) is (width == 200)


def test_a_name_is_cut_at_its_front() -> None:
    assert cut_at_front("encoder.layers.0", 9) == "…layers.0" and cut_at_front("fc", 9) == "fc"


def test_what_is_shown_as_a_table_may_be_a_sequence_of_any_type() -> None:
    class Rows(ShownAsTable, Generic[Row]):
        pass

    class Found(ShownAsFindings, Generic[Row]):
        pass

    assert str(Rows[int]).endswith("Rows[int]") and str(Found[int]).endswith("Found[int]")
