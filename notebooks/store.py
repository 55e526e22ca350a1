"""Runs the tours and stores what they show: `python notebooks/store.py [01_first_look ...]`; without names: all.

What is stored says of which code it is, and a test asks whether that is today's.
"""

from __future__ import annotations

import sys
import time
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


def as_left(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """A cell's outputs as its page has them in the end: of a line that was written over, what came last."""
    found: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and found and output.get("name") == found[-1].get("name"):
            found[-1].text += output.text
        else:
            found.append(output)
    for output in found:
        if output.output_type == "stream":
            lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in output.text.split("\n"))
            output.text = "\n".join(lines)
    return [output for output in found if output.output_type != "stream" or output.text.strip()]


def store(path: Path) -> None:
    """Runs a tour from top to bottom, in a kernel of its own. Where a cell raises, what was stored stays."""
    notebook = nbformat.read(path, as_version=4)
    # Decks need a kernel: of them the pictures are kept, not what a widget would be made of.
    client = NotebookClient(
        notebook, kernel_name="python3", store_widget_state=False, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = as_left(cell.outputs)
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
