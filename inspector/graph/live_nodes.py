"""The nodes of a graph, held no longer than the tensors that the graph was read from."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from types import CodeType, FrameType
from weakref import ref

from torch import Tensor
from torch.autograd.graph import Node

from ..torch_private.compiled import keep_compiler_out
from ..torch_private.nodes import leaf_of
from .source_lines import OWN_CODE

GONE = "the loss that this graph was read from no longer exists, and its nodes and saved tensors were freed with it"
"""The reason why a graph has no nodes any more."""


class LiveNodes(list[Node]):
    """Nodes by task id. The list becomes empty when one of the tensors that the graph was read from is freed.

    A node that Python holds keeps its saved tensors alive, and torch has no weak references to nodes. So all copies of
    a graph share one list, and a run, a timeline or a plan that is kept does not keep the saved tensors alive.

    Attributes:
        is_watching: whether the list becomes empty with a tensor. It is False for a graph read from a `GradientEdge`,
            which has no weak references, or from a temporary, as in `ts.graph(make_loss())`: such a graph holds its
            nodes.
        leaves: the leaves by the id of their AccumulateGrad task, once the nodes are gone.
    """

    __slots__ = ("__weakref__", "_call", "_called", "_tensors", "is_watching", "leaves")

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self._tensors: tuple[ref[Tensor], ...] = ()
        self._called: frozenset[CodeType] = frozenset()
        self._call: tuple[CodeType, int] | None = None
        self.is_watching = False
        self.leaves: dict[int, ref[Tensor]] = {}

    def forget(self) -> None:
        """Release the nodes. Weak references to the leaves, which belong to the program, remain."""
        leaves = ((number, node) for number, node in enumerate(self) if type(node).__name__ == "AccumulateGrad")
        self.leaves = {number: ref(leaf_of(node)) for number, node in leaves}
        self.clear()

    def watch(self, roots: Sequence[object]) -> None:
        """Empty the list when one of these is freed, if all of them are tensors."""
        if all(isinstance(each, Tensor) for each in roots):
            forget = partial(_forget, ref(self))
            self._tensors = tuple(ref(each, forget) for each in roots if isinstance(each, Tensor))
            self.is_watching = True

    def hold_for_temporaries(self) -> None:
        """Keep the nodes if a tensor is freed within the current call: then it was a temporary.

        Only the function that the user calls may call this.
        """
        # Up to Python 3.11 the arguments die in the frame of the called function, later in the caller's.
        frame: FrameType | None = sys._getframe(1)
        own = set()
        while frame is not None and frame.f_code.co_filename.startswith(OWN_CODE):
            own.add(frame.f_code)
            frame = frame.f_back
        self._called = frozenset(own)
        self._call = None if frame is None else (frame.f_code, frame.f_lasti)


def _forget(nodes_ref: ref[LiveNodes], tensor: object) -> None:
    nodes = nodes_ref()
    if nodes is None or not nodes.is_watching:
        return
    frame = sys._getframe(0).f_back  # the frame in which the tensor is freed; None while the interpreter exits
    if frame is not None and (frame.f_code in nodes._called or (frame.f_code, frame.f_lasti) == nodes._call):
        nodes.is_watching = False  # the tensor was a temporary
    else:
        nodes.forget()


keep_compiler_out(_forget)  # runs when a tensor is freed, possibly in compiled code
