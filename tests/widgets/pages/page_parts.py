"""The parts of a saved page of figures."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from typing import Any


def hover_data(page: str) -> dict[str, Any]:
    """Return what the page's script says under the pointer: texts, lists, and figures that refer to them."""
    (packed,) = re.findall(r'id="hover-data">(.*?)</script>', page)
    return json.loads(gzip.decompress(b64decode(packed)))  # type: ignore[no-any-return]


def figures_told(page: str) -> dict[str, Any]:
    """Return what each figure says, by its name."""
    return hover_data(page)["figures"]  # type: ignore[no-any-return]


def said_of(page: str, figure: str, trace: int, at: int) -> str:
    """Return the hover text of one point, composed as the script does it."""
    data = hover_data(page)
    told = data["figures"][figure]["traces"][trace]

    def text(column: int) -> str:
        cell = data["lists"][told["columns"][column]][at]
        return "\n".join(data["texts"][each] for each in (cell if isinstance(cell, list) else [cell]))

    return re.sub(r"%\{customdata(?:\[(\d+)\])?\}", lambda found: text(int(found[1] or 0)), told["say"])
