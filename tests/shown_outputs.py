"""Outputs that a docs page shows, compared with those of a fresh run."""

from __future__ import annotations

import re

_OF_TIME = re.compile(r"\d[\d,]*(?:\.\d+)?(?=\s(?:ns|µs|ms|s|% longer)\b)")
_NOISE = re.compile(r"(?<= ms) ± \d+ %")
"""Figures that differ from run to run: times, and the share by which a step takes longer. Noise is printed if large."""


def matches(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed.

    Lines may be wrapped differently, times differ from run to run, and `...` on the page stands for any text.
    """
    shown, printed = (_OF_TIME.sub("TIME", _NOISE.sub("", text)) for text in (shown, printed.strip()))
    pattern = r"\s*".join(re.escape(word).replace(r"\.\.\.", ".*") for word in shown.split())
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def assert_shown(shown: str, printed: str, where: str) -> None:
    """Raise AssertionError with both texts if a page shows something else than what was printed."""
    assert matches(shown, printed), f"{where} shows\n{shown}\nand its code printed\n{printed}"
