"""Tools for orders: what is a legal one, constraints, queue lengths, and the policies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from ..engine.orders.order_check import check_order as check_order
    from ..engine.orders.policies import CLASSIC as CLASSIC
    from ..engine.orders.policies import POLICIES as POLICIES
    from ..engine.orders.precedence import constrained as constrained
    from ..engine.orders.unpack_order import unpack_order as unpack_order
    from ..engine.prediction.dry_run import dry_run as dry_run
    from ..engine.queue.pending import queue_lengths as queue_lengths

_MODULE_OF = {
    "CLASSIC": "engine.orders.policies",
    "POLICIES": "engine.orders.policies",
    "check_order": "engine.orders.order_check",
    "constrained": "engine.orders.precedence",
    "dry_run": "engine.prediction.dry_run",
    "queue_lengths": "engine.queue.pending",
    "unpack_order": "engine.orders.unpack_order",
}
"""By public name the module that has it, and its name there if that is another."""

__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:  # a name that is not there would be of any type
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
