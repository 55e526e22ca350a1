"""Studies of whole programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lazy_names

if TYPE_CHECKING:
    from ..engine.memory.function_levels import allocated_levels as allocated_levels
    from ..engine.studies.accumulation_study import accumulation_study as accumulation

_MODULE_OF = {
    "accumulation": "engine.studies.accumulation_study:accumulation_study",
    "allocated_levels": "engine.memory.function_levels",
}
"""The defining module of each public name, with the name there if it differs."""

__all__ = ["accumulation", "allocated_levels"]

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
