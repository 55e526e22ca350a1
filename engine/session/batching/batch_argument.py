"""The argument `batch`, without importing the code that runs batches, which most sessions do not need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from ...recording.run import Engine

if TYPE_CHECKING:
    from .product_groups import GroupRules

AnyBatch: TypeAlias = "GroupRules | Literal['auto'] | None"
"""The batches to run: those of `find_batches` with its default rules or with these; None for no batches."""


def check_batch(batch: AnyBatch, engine: Engine = "direct") -> None:
    """Raise unless `batch` is valid for the engine.

    Raises:
        ValueError: `batch` is unknown.
        NotImplementedError: PyTorch's own engine cannot batch tasks.
    """
    if batch is not None and engine == "native":
        raise NotImplementedError(
            'PyTorch\'s own engine runs one node at a time; to run products as one (batch=), use engine="direct"'
        )
    if batch in (None, "auto"):
        return
    from .product_groups import GroupRules

    if not isinstance(batch, GroupRules):
        raise ValueError(
            f'unknown batch={batch!r}; expected "auto", a ts.types.GroupRules, or None to run each task alone'
        )
