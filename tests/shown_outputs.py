"""Outputs that a docs page shows, compared with those of a fresh run."""

from __future__ import annotations

import re

_TIME = r"\d[\d,]*(?:\.\d+)?(?= (?:ns|µs|ms|s)\b)"


def matches(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed.

    Lines may be wrapped differently, times differ from run to run, and `...` on the page stands for any text.
    """
    pieces = [re.sub(r"\\\.\\\.\\\.", ".*", re.escape(re.sub(_TIME, "TIME", word))) for word in shown.split()]
    return re.fullmatch(r"\s*".join(pieces), re.sub(_TIME, "TIME", printed.strip()), re.DOTALL) is not None


def assert_shown(shown: str, printed: str, where: str) -> None:
    """Assert that a page shows what was printed.

    Raises:
        AssertionError: it shows something else; the message has both texts.
    """
    assert matches(shown, printed), f"{where} shows\n{shown}\nand its code printed\n{printed}"
