"""A node of HIPS autograd's that tells when it is made. Needs the package `autograd`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autograd.core import VJPNode
from autograd.tracer import notrace_primitives


class ToldNode(VJPNode):  # type: ignore[misc]
    """A node as autograd's own `grad` makes it, and nothing is kept of it besides. The root is given whom to tell."""

    __slots__ = ("_tell",)
    _tell: Callable[[], None]

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self._tell = self.parents[0]._tell
        self._tell()

    def initialize_root(self, tell: Callable[[], None]) -> None:
        super().initialize_root()
        self._tell = tell


# What is not to be traced is told by class of node, and there is one set for each.
notrace_primitives[ToldNode] = notrace_primitives[VJPNode]
