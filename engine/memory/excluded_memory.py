"""Memory that no level counts: the model, and tensors older than the forward, as far as leaves show them."""

from __future__ import annotations

from dataclasses import dataclass

from ...inspector.text.sizes_and_counts import size_text
from .task_memory import Footprints

OLDER_THAN_RECORDING = (
    "Not counted is what is older than the recording and is neither a parameter, a buffer, a gradient nor optimizer "
    "state of the loop: a batch, an average of the weights (EMA), DistributedDataParallel's buckets. So a step takes "
    "at least what is said."
)
"""The memory that recorded steps leave out: an allocator does not report blocks that were there before."""


def constants_sentence(nbytes: int) -> str:
    """Say what `Timeline.constant_bytes` may add; "" where it is 0."""
    if not nbytes:
        return ""
    return (
        f"Not counted are {size_text(nbytes)} of tensors without a gradient that nodes saved and something else holds: "
        "inputs, buffers, constants. For those that the forward itself made the true figure may be higher by up to as "
        "much; a forward under ts.capture() shows which these are."
    )


@dataclass(frozen=True, slots=True)
class NotCounted:
    """The model's parameters and tensors older than the forward, which no level counts.

    Attributes:
        leaf_bytes: of the graph's leaves, parameters and inputs, without leaves that count.
        grad_bytes: of the .grad which they had as the backward started.
        bucket_bytes: of the buckets to which DistributedDataParallel copies gradients.
    """

    leaf_bytes: int
    grad_bytes: int
    bucket_bytes: int = 0

    @property
    def what(self) -> str:
        """`parameters, inputs (this graph's leaves take 1.0 MiB) and .grad (1.0 MiB, to which the backward adds)`."""
        grads = f"{size_text(self.grad_bytes)}, to which the backward adds" if self.grad_bytes else "there was none"
        leaves = f"parameters, inputs (this graph's leaves take {size_text(self.leaf_bytes)})"
        if self.bucket_bytes:
            leaves += f", the buckets of DistributedDataParallel ({size_text(self.bucket_bytes)})"
        return f"{leaves} and .grad ({grads})"

    @property
    def older_gradients(self) -> str:
        """A sentence to put beside a peak: what zero_grad() would add to it. "" where there was no .grad."""
        if not self.grad_bytes:
            return ""
        return (
            f"That is without the .grad that was there before ({size_text(self.grad_bytes)}), to which the backward "
            "adds; after zero_grad() the backward allocates it, and it counts."
        )

    @property
    def sentence(self) -> str:
        """The note in words."""
        return (
            f"Not counted is what was there before the forward, such as {self.what}. Parameters and buffers never "
            "count, also where make_loss makes the model."
        )


def not_counted(footprints: Footprints) -> NotCounted:
    """What the run from which these are found on its device."""
    tasks = footprints.graph.tasks
    leaves = [
        leaf for task, leaf in footprints.leaves.items() if str(tasks[task].inputs[0].device) == footprints.device
    ]
    return NotCounted(
        sum(leaf.layout.nbytes for leaf in leaves if not leaf.counts),
        sum(leaf.layout.nbytes for leaf in leaves if leaf.has_grad and leaf.bucketed != "view"),
        sum(leaf.layout.nbytes for leaf in leaves if leaf.bucketed != "no"),
    )
