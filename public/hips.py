"""Backwards of the package autograd: tapes, and memory after each step."""

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
"""By public name the module that has it, and its name there if that is another."""

__all__ = ["levels", "tape"]

if not TYPE_CHECKING:  # a name that is not there would be of any type
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
