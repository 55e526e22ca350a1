"""The text that a user reads: the note of an error, or a report on parameters without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

import tapescope as ts


def note_of(program: Callable[[], Any]) -> str:
    """Run a program and return the note of the error that it raises; "" without an error or a note."""
    try:
        program()
    except Exception as error:
        return "\n".join(each for each in getattr(error, "__notes__", ()) if "what_went_wrong.md" in each)
    return ""


def unused(make_loss: Callable[[], Any], model: nn.Module) -> str:
    """Return what `ts.find_unused` reports; "" if each parameter gets a gradient."""
    report = ts.find_unused(make_loss, model)
    return " ".join([*report.sentences, *(f"{each.name}: {each.story}." for each in report)]) if report else ""
