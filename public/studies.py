"""Studies of whole programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lazy_names

if TYPE_CHECKING:
    from ..engine.memory.function_levels import allocated_levels as allocated_levels
    from ..engine.studies.accumulation_study import accumulation_study as accumulation
    from ..engine.studies.batching_study import batching_study as batching
    from ..engine.studies.order_study import order_study as orders
    from ..engine.studies.ready_workload import own_program as own_program
    from ..engine.studies.recompute_study import recompute_study as recompute

_MODULE_OF = {
    "accumulation": "engine.studies.accumulation_study:accumulation_study",
    "allocated_levels": "engine.memory.function_levels",
    "batching": "engine.studies.batching_study:batching_study",
    "orders": "engine.studies.order_study:order_study",
    "own_program": "engine.studies.ready_workload",
    "recompute": "engine.studies.recompute_study:recompute_study",
}
"""The defining module of each public name, with the name there if it differs."""

__all__ = ["accumulation", "allocated_levels", "batching", "orders", "own_program", "recompute"]

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
