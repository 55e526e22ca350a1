"""Saves the decks that a tour shows, for the built documentation: `python docs/live_decks.py TOUR.ipynb FOLDER`.

It runs the tour's cells up to the last one with a deck, and saves each deck, as its cell left it, as a page that plays
without a kernel: FOLDER/TOUR_CELL_PLACE.html.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"
STILL = "image/svg+xml"


def shows_deck(output: dict[str, Any], as_type: str = VIEW) -> bool:
    """Return whether an output is a deck, and not a figure or another widget; `STILL` asks for a deck's still."""
    text = "".join(output.get("data", {}).get("text/plain", ""))
    return as_type in output.get("data", {}) and text.startswith(("<Deck", "<Recording", "<StepRecording"))


def save_decks(tour: Path, folder: Path) -> None:
    """Run a tour and save its decks. The files that the tour writes are in the current folder."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from ipywidgets.widgets.widget import _instances

    import tapescope.widgets.deck.open_deck as of_decks
    from tapescope.widgets.deck.auto_display import latest_deck

    sys.path.insert(0, str(tour.parent))  # as in a kernel, which finds the modules beside its notebook
    of_decks.in_notebook = lambda: True
    cells = json.loads(tour.read_text(encoding="utf-8"))["cells"]
    decks = [number for number, cell in enumerate(cells) if any(map(shows_deck, cell.get("outputs", ())))]
    shell = InteractiveShell.instance()
    for number, cell in enumerate(cells[: decks[-1] + 1]):
        if cell["cell_type"] != "code":
            continue
        with capture_output() as captured:
            shell.run_cell("".join(cell["source"]), store_history=True).raise_error()
        shown = [output.data for output in captured.outputs if VIEW in output.data]
        widgets = [_instances[data[VIEW]["model_id"]] for data in shown]
        found = [each for each in widgets if hasattr(each, "moment")]
        if not found and number in decks:  # a deck displays itself at the end of a cell only where there is a kernel
            found = [latest_deck()]
        for place, deck in enumerate(found):
            played = getattr(deck, "_run", None) or getattr(deck, "_step", None) or deck
            played.save_html(folder / f"{tour.stem}_{number}_{place}.html")


if __name__ == "__main__":
    save_decks(Path(sys.argv[1]), Path(sys.argv[2]))
