"""Tools for orders: checks, constraints, queue lengths, and the policies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lazy_names

if TYPE_CHECKING:
    from ..engine.memory.dry_run import dry_run as dry_run
    from ..engine.planning.check_order import check_order as check_order
    from ..engine.planning.constraints import constrained as constrained
    from ..engine.planning.policies import CLASSIC as CLASSIC
    from ..engine.planning.policies import POLICIES as POLICIES
    from ..engine.planning.unpack_order import unpack_order as unpack_order
    from ..engine.schedule.dependencies import queue_lengths as queue_lengths

_MODULE_OF = {
    "CLASSIC": "engine.planning.policies",
    "POLICIES": "engine.planning.policies",
    "check_order": "engine.planning.check_order",
    "constrained": "engine.planning.constraints",
    "dry_run": "engine.memory.dry_run",
    "queue_lengths": "engine.schedule.dependencies",
    "unpack_order": "engine.planning.unpack_order",
}
"""The defining module of each public name, with the name there if it differs."""

__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
