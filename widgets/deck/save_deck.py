"""Saves a deck: as one HTML page that needs neither kernel nor network, or as a picture of its graph."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Protocol

from ...engine.schedule.ready_queue import ReadyTask
from ...inspector.drawing.progress_states import states_of
from ...inspector.drawing.svg import graph_to_svg
from ...inspector.files import write_file
from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.source_lines import PACKAGE
from ..pages.html_page import html_page
from ..pages.png import png_of

_HEAD_BYTES = 4096  # the start of a page, which contains its meta elements

CODE = PACKAGE / "widgets" / "static" / "deck.js"

_STYLE = """
body{padding:0;font-size:14px;line-height:20px}
.said{margin:24px;max-width:72ch}
#deck{--page:calc(100vh - 16px)}
"""

# Shown if no script runs.
_NEEDS_SCRIPT = "This deck needs JavaScript. Enable it for this file; the page needs no network."
# In the syntax of old browsers, which cannot parse the page's own script.
_CHECK = """
var said = document.getElementById("said");
if (window.DecompressionStream && [].toSorted) {
  said.hidden = true;
  window.onload = function () {
    if (said.dataset.whole) return;  // set by the last script of the page
    said.hidden = false;
    said.textContent = "This file is incomplete: its end is missing. Copy or download it again, or save it again.";
  };
} else said.textContent = "This deck needs a newer browser: Chrome 110, Firefox 115, Safari 16.4, or a later one.";
"""

_SCRIPT = """
document.getElementById("said").dataset.whole = "true";
const bytes = id => {  // a loop: Uint8Array.from calls a function for each byte, and there may be millions
  const text = atob(document.getElementById(id).textContent);
  const found = new Uint8Array(text.length);
  for (let at = 0; at < found.length; at++) found[at] = text.charCodeAt(at);
  return found;
};
if (document.getElementById("said").hidden) {
  const unpacked = new Blob([bytes("code")]).stream().pipeThrough(new DecompressionStream("gzip"));
  const code = new Blob([await new Response(unpacked).text()], {type: "text/javascript"});
  const address = URL.createObjectURL(code);
  const {show} = await import(address);
  URL.revokeObjectURL(address);
  const host = document.getElementById("deck");
  await show(host, bytes("document"));
  const deck = host.shadowRoot?.querySelector(".deck");
  if (deck) {
    const paint = () => { document.documentElement.style.background = getComputedStyle(deck).backgroundColor; };
    new MutationObserver(paint).observe(deck, {attributeFilter: ["data-theme"]});
    paint();
    deck.focus({preventScroll: true, focusVisible: false});  // its keys work at once
    const sheet = document.head.appendChild(document.createElement("style"));
    addEventListener("beforeprint", () => {  // the paper is as large as the deck, which is not drawn anew for it
      const {width, height} = deck.getBoundingClientRect();
      sheet.textContent = `@page{size:${Math.ceil(width)}px ${Math.ceil(height)}px;margin:0}`;
    });
  }
}
"""


def save_page(document: bytes, path: str | Path, title: str, source: str = "") -> Path:
    """Write a deck as a page and return its path.

    Args:
        document: the deck's data, from `Document.packed`.
        path: the file to write.
        title: the title of the page.
        source: the name of the file that the deck was made from, for `is_page_of`.
    """
    # The name of a file, and so a title, may contain a lone surrogate, which UTF-8 cannot encode.
    return write_file(path, page_html(document, title, source).encode("utf-8", "replace"))


def is_page_of(path: Path, source: str) -> bool:
    """Return whether a file is a page that `save_page` wrote for this source."""
    with path.open("rb") as file:
        return _source_line(source).encode("utf-8", "replace") in file.read(_HEAD_BYTES)


def _source_line(source: str) -> str:
    return f'<meta name="tapescope-source" content="{escape(source)}">\n'


def page_html(document: bytes, title: str, source: str = "") -> str:
    """Return the page as HTML. Code and data are in base64, so that nothing in them can end their element."""
    code = gzip.compress(CODE.read_bytes(), mtime=0)
    body = f"""<div class="tapescope-deck" id="deck"></div>
<p class="said" id="said">{_NEEDS_SCRIPT}</p>
<script>{_CHECK}</script>
<script type="application/octet-stream" id="code">{_base64(code)}</script>
<script type="application/octet-stream" id="document">{_base64(document)}</script>
<script type="module">{_SCRIPT}</script>"""
    return html_page(title, body, _STYLE, _source_line(source) if source else "")


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


ENDINGS = (".svg", ".png")


class Drawable(Protocol):
    """A session or a deck, as far as its picture needs it."""

    @property
    def graph(self) -> Graph: ...

    @property
    def order(self) -> Sequence[int]: ...

    @property
    def ready(self) -> Sequence[ReadyTask]: ...

    @property
    def current(self) -> Task | None: ...


def save_picture(session: Drawable, path: str | Path) -> Path:
    """Write the graph with finished, current and ready tasks as .svg or .png, and return the path.

    Raises:
        ValueError: if the file has another extension.
        ModuleNotFoundError: if the file is a PNG, and resvg-py is not installed.
    """
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise ValueError(f"the extension of {path.name} is not one of a picture; expected {' or '.join(ENDINGS)}")
    current = session.current
    ready = [entry.task.id for entry in session.ready]
    states = states_of(len(session.graph), session.order, ready, None if current is None else current.id)
    picture = graph_to_svg(session.graph, states=states)
    return write_file(path, png_of(picture) if path.suffix == ".png" else picture)
