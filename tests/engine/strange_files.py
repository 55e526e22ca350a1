"""Files in which something is not as it should be."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

STRANGE = st.sampled_from([None, True, -1, 0, 1, 5, 64, 10**6, 2**62, 2**70, 0.5, "", "x", [], [0], [[]], {}, {"a": 1}])


def change_somewhere(inner: Any, data: Any) -> None:
    """Puts something strange in the place of any part of what a file holds; `data` draws which and what."""
    while True:
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        deeper = inner[key]
        if not isinstance(deeper, dict | list) or not deeper or data.draw(st.integers(0, 3)) == 0:
            break
        inner = deeper
    inner[key] = data.draw(STRANGE)
