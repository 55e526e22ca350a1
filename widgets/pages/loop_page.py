"""A training loop as a page: losses, learning rates, norms by module and step, findings. It needs no kernel."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ...engine.training.training_file import DATA_BEGINS, PAGE_BEGINS, document_of
from ...engine.training.training_result import Training
from ...inspector.drawing.svg_style import COLOURS
from ...inspector.graph.source_lines import PACKAGE
from .html_page import html_page
from .report_html import cells_html
from .theme import DARK, FONT, LIGHT, variables

CODE = PACKAGE / "widgets" / "static" / "loop.js"
"""Script of the page, bundled from widgets/js/src/loop."""

_MOST_NUMBERS = 2_000_000  # gradient norms in a saved page: 10,000 steps of 200 modules
_MOST_IN_NOTEBOOK = 100_000  # fewer, because they are stored in the notebook's file
_MOST_ROWS = 20_000

_SIGNS = ("accent-ink", "bad", "warn")  # the deck's colours for errors and warnings, which figures do not use

_LIGHT, _DARK = (
    f"color-scheme:{theme};{variables({**colours, **{name: COLOURS[f'deck {theme}'][name] for name in _SIGNS}})}"
    for theme, colours in (("light", LIGHT), ("dark", DARK))
)
_STYLE = f"""
.ts-loop{{{_LIGHT};max-width:1720px;margin:0 auto}}
@media (prefers-color-scheme:dark){{.ts-loop:not([data-theme=light]){{{_DARK}}}}}
.ts-loop[data-theme=dark]{{{_DARK}}}
.ts-loop .still{{padding:12px 16px;color:var(--ink);background:var(--panel);font:400 12px/17px {FONT}}}
.ts-loop[data-ready] .still,.ts-loop:not([data-ready]) .moving{{display:none}}
.ts-loop.away .moving,.ts-loop:not(.away) .back{{display:none}}
.ts-loop .back{{height:24px;margin:4px 0;padding:0 8px;border:1px solid var(--line);border-radius:4px;
  background:var(--panel);color:var(--ink2);font:400 12px/15px {FONT};cursor:pointer}}
.ts-loop .back:hover{{color:var(--ink);border-color:var(--line2)}}
"""
_PAGE = ":root{--loop-height:max(620px,100vh - 16px)}"


def page_html(training: Training, title: str) -> str:
    """Return the page that `Training.save_html` writes."""
    return html_page(title, _loop_html(training, title, _MOST_NUMBERS), _PAGE)


def training_html(training: Training) -> str:
    """Return the loop as HTML for a notebook. Without scripts it is shown as a table.

    In a long loop several steps share a row.
    """
    return _loop_html(training, "Training loop", _MOST_IN_NOTEBOOK)


def live_html(training: Training, title: str, opens: Iterable[int]) -> str:
    """Return the HTML for a widget that can open these steps. The script is left out; the widget runs it."""
    return _root_html(training, title, _MOST_IN_NOTEBOOK, f'data-live="{" ".join(map(str, opens))}"')


def _loop_html(training: Training, title: str, most: int) -> str:
    return f"{_root_html(training, title, most)}<script>{CODE.read_text(encoding='utf-8')}</script>"


def _root_html(training: Training, title: str, most: int, attributes: str = "") -> str:
    document = document_of(training, min(most, _MOST_ROWS * max(1, len(training.norms.modules))))
    # "<" is escaped because text in the JSON could otherwise close the <script> element.
    content = document.to_json().replace("<", "\\u003c")
    still = cells_html(training.cells, training.sentences, training.right)
    return (
        f'{PAGE_BEGINS} data-title="{escape(title)}" {attributes}><style>{_STYLE}</style>'
        f'<div class="still">{still}</div>'
        f'<div class="moving"></div>{DATA_BEGINS}{content}</script></div>'
    )
