"""Outputs that a docs page shows, compared with those of a fresh run."""

from __future__ import annotations

import re

_OF_TIME = re.compile(r"\d[\d,]*(?:\.\d+)?(?=\s(?:ns|µs|ms|s|% longer)\b)|± \d+ %")
"""Figures that differ from run to run: times, their noise, and the share by which a step takes longer."""


def matches(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed.

    Lines may be wrapped differently, times differ from run to run, and `...` on the page stands for any text.
    """
    words = (re.escape(word) for word in _OF_TIME.sub("TIME", shown).split())
    pattern = r"\s*".join(word.replace(r"\.\.\.", ".*") for word in words)
    return re.fullmatch(pattern, _OF_TIME.sub("TIME", printed.strip()), re.DOTALL) is not None


def assert_shown(shown: str, printed: str, where: str) -> None:
    """Raise AssertionError with both texts if a page shows something else than what was printed."""
    assert matches(shown, printed), f"{where} shows\n{shown}\nand its code printed\n{printed}"
