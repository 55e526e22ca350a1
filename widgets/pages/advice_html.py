"""Advice as HTML: what was found, a table, and each change as code to paste."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from .report_html import cells_html

if TYPE_CHECKING:
    from ...engine.ensembles.advice import Advice

_STYLE = """
.ts-advice h4{font-size:1em;margin:16px 0 4px}
.ts-advice ul{margin:0;padding-left:18px}
.ts-advice li{margin:0 0 4px;max-width:110ch}
.ts-advice details{margin:6px 0 0}
.ts-advice summary{cursor:pointer}
.ts-advice pre{margin:6px 0 0;padding:10px 12px;overflow-x:auto;font-size:12px;line-height:1.45;
border:1px solid rgba(128,134,145,.28);border-radius:4px}
"""


def advice_html(advice: Advice) -> str:
    """A table, what it stands on item by item, and the code of each change: that of the largest gain is open. It brings
    its own style."""
    cells = [[text.replace(" ×", "\u00a0×") for text in row] for row in advice.cells]
    parts = [cells_html(cells, advice.sentences, ("forward + backward", "peak", "differs by"))]
    for item in advice:
        facts = "".join(f"<li>{escape(fact)}</li>" for fact in item.facts)
        parts.append(f"<h4>{escape(item.title)}: {escape(item.said)}</h4><ul>{facts}</ul>")
        if item.code is not None:
            opened = " open" if item is advice.best else ""
            code = f"<pre><code>{escape(item.code)}</code></pre>"
            parts.append(f"<details{opened}><summary>the code</summary>{code}</details>")
    return f'<div class="ts-advice"><style>{_STYLE}</style>{"".join(parts)}</div>'
