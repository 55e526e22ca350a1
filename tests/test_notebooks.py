"""The tours run from top to bottom, and are committed as a reader without a kernel should see them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
DECK = "application/vnd.jupyter.widget-view+json"
MOST_BYTES = 1_500_000

each_tour = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs_of(notebook: NotebookNode) -> list[list[NotebookNode]]:
    """By cell of code what it shows."""
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def shown(outputs: list[NotebookNode]) -> list[set[str]]:
    """The MIME types of each thing shown, what is printed left out: that may come in any number of pieces."""
    return [set(output.data) for output in outputs if "data" in output]


def pictures(notebook: NotebookNode) -> list[str]:
    return [
        output.data["image/svg+xml"]
        for outputs in outputs_of(notebook)
        for output in outputs
        if "image/svg+xml" in output.get("data", {})
    ]


def test_there_are_tours() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, len(NOTEBOOKS) + 1)]


@each_tour
def test_a_tour_runs_and_shows_what_is_committed(path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
    assert pictures(notebook)
    for today, before in zip(outputs_of(notebook), outputs_of(committed), strict=True):
        assert not any(output.output_type == "error" for output in today)
        assert shown(today) == shown(before)


@each_tour
def test_a_tour_is_committed_with_its_outputs_and_small(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert "widgets" not in notebook.metadata
    assert path.stat().st_size < MOST_BYTES


@each_tour
def test_each_deck_of_a_tour_has_its_picture_with_the_memory(path: Path) -> None:
    for outputs in outputs_of(nbformat.read(path, as_version=4)):
        decks = [place for place, output in enumerate(outputs) if DECK in output.get("data", {})]
        for place in decks:
            picture = outputs[place + 1].data["image/svg+xml"]
            assert 'id="tapehead-still-' in picture
            assert 'class="th-level"' in picture
