"""Studies of whole programs that few users need."""

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
"""By public name the module that has it, and its name there if that is another."""

__all__ = ["accumulation", "allocated_levels"]

if not TYPE_CHECKING:  # a name that is not there would be of any type
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
