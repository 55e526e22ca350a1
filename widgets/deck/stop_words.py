"""Breakpoints and watchpoints as people type them, on the page and after a magic."""

from __future__ import annotations

import re

_TASK = re.compile(r"\s*#(\d+)\s*")
_OPERATOR = re.compile(r"\s*([<>])\s*")


def place(text: str) -> str:
    """Where to break. The page gives tasks by their ids, as #12.

    Raises:
        ValueError: nothing was typed.
    """
    if not text.strip():
        raise ValueError(
            "break where? Give a task (53rd), a node (Addmm), a module (encoder.layer.3), a parameter (head.weight) "
            "or a line (model.py:120)"
        )
    found = _TASK.fullmatch(text)
    return text.strip() if found is None else f"task:{found[1]}"


def watched(text: str) -> tuple[list[str], str | None]:
    """What to watch for, and where: `nan, inf`, `norm > 1e3 and upcast at encoder.*`. None: everywhere.

    Raises:
        ValueError: nothing was typed.
    """
    what, _, where = re.sub(r"\s+", " ", f" {text} ").partition(" at ")
    words = _OPERATOR.sub(r"\1", what).replace(",", " ").replace(" or ", " ").split()
    conditions: list[str] = []
    joined = False
    for word in words:
        if word == "and" and conditions:
            joined = True
        elif joined:
            conditions[-1] += f" and {word}"
            joined = False
        else:
            conditions.append(word)
    if not conditions or joined:
        raise ValueError(
            "watch for what? Give conditions, as nan, inf, zero, norm>1e3, ratio<0.01, upcast, shape or missing, and "
            "after `at` a module where it is not everywhere"
        )
    return conditions, where.strip() or None
