"""Support for the autograd package (HIPS): tapes, and memory after each step of a backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lazy_names

if TYPE_CHECKING:
    from ..engine.session.hips.levels import hips_levels as levels
    from ..inspector.hips.tape import hips_tape as tape

_MODULE_OF = {
    "levels": "engine.session.hips.levels:hips_levels",
    "tape": "inspector.hips.tape:hips_tape",
}
"""The defining module of each public name, with the name there if it differs."""

__all__ = ["levels", "tape"]

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
