"""Runs the tours and stores what they show: `python notebooks/store.py [01_first_look ...]`; without names: all.

What is stored says of which code it is, and a test asks whether that is today's.
"""

from __future__ import annotations

import sys
import time
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).parent


def code_hash(notebook: NotebookNode) -> str:
    """Of a notebook's cells of code, in their order."""
    cells = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return sha256(cells.encode()).hexdigest()[:16]


def merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return copies of a cell's outputs, with the pieces in which a text arrived joined."""
    found: list[NotebookNode] = []
    for output in deepcopy(outputs):
        if output.output_type == "stream" and found and output.get("name") == found[-1].get("name"):
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def store(path: Path) -> None:
    """Runs a tour from top to bottom, in a kernel of its own. Where a cell raises, what was stored stays."""
    notebook = nbformat.read(path, as_version=4)
    shown: dict[int, list[NotebookNode]] = {}

    def freeze(cell: NotebookNode, cell_index: int, **_: object) -> None:
        """Copy a cell's outputs when it ends, because later cells update the still pictures of its decks."""
        shown[cell_index] = merged(cell.get("outputs", []))

    client = NotebookClient(
        notebook,
        kernel_name="python3",
        store_widget_state=False,  # decks need a kernel, so only their pictures are stored
        on_cell_executed=freeze,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    for number, outputs in shown.items():
        notebook.cells[number].outputs = outputs
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when each began and ended, which is never the same twice
    notebook.metadata["tapescope"] = {"code": code_hash(notebook)}
    nbformat.write(notebook, path)


def main(names: list[str]) -> None:
    for path in sorted(HERE.glob("*.ipynb")):
        if not names or path.stem in names:
            begun = time.monotonic()
            store(path)
            print(f"{path.stem}: {time.monotonic() - begun:.0f} s, {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
