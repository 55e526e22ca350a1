"""A backward under way as a picture: its graph, with what has run, what runs next, and what is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ...engine.queue.ready_queue import ReadyTask
from ...inspector.drawing.states import states_of
from ...inspector.drawing.svg import graph_to_svg
from ...inspector.graph.graph import Graph, Task
from ..pages.png import png_of

ENDINGS = (".svg", ".png")


class Stands(Protocol):
    """A session, or a deck."""

    @property
    def graph(self) -> Graph: ...

    @property
    def order(self) -> Sequence[int]: ...

    @property
    def ready(self) -> Sequence[ReadyTask]: ...

    @property
    def current(self) -> Task | None: ...


def save_picture(session: Stands, path: str | Path) -> Path:
    """Writes the graph as it stands now, as SVG or PNG: by the ending of the file.

    Raises:
        ValueError: it ends otherwise.
        ModuleNotFoundError: PNG, and resvg-py is not installed.
    """
    path = Path(path)
    write: dict[str, Callable[[], object]] = {
        ".svg": lambda: path.write_text(picture_of(session), encoding="utf-8"),
        ".png": lambda: path.write_bytes(png_of(picture_of(session))),
    }
    if path.suffix not in write:
        raise ValueError(f"{path.name}: a picture is written as {' or '.join(ENDINGS)}")
    write[path.suffix]()
    return path


def picture_of(session: Stands) -> str:
    """The same as SVG."""
    current = session.current
    ready = [entry.task.id for entry in session.ready]
    states = states_of(len(session.graph), session.order, ready, None if current is None else current.id)
    return graph_to_svg(session.graph, states=states)
