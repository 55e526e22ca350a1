"""Known differences, with reasons. A full sweep reports an entry that is no longer needed."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Known:
    """One exception.

    Attributes:
        program: pattern of the programs' names.
        check: pattern of the checks' names.
        outcome: what comes out of it.
        reason: why that is right, or can't be helped.
    """

    program: str
    check: str
    outcome: str
    reason: str

    def explains(self, program: str, check: str, outcome: str) -> bool:
        return outcome == self.outcome and fnmatchcase(check, self.check) and fnmatchcase(program, self.program)


_ELSEWHERE = "PyTorch's database has no samples of it for the CPU in floating point"

KNOWN: tuple[Known, ...] = (
    Known("torch.ops.aten._flash_attention_forward", "any", "not compared", _ELSEWHERE),
    Known("torch.ops.aten._efficient_attention_forward", "any", "not compared", _ELSEWHERE),
    Known("nn.functional.batch_norm.without_cudnn", "any", "not compared", _ELSEWHERE),
    Known("nn.functional.one_hot", "any", "not compared", _ELSEWHERE),
    Known(
        "nn.functional.embedding_bag float* #*",
        "second gradients: native bfs",
        "failed",
        "PyTorch has neither of two second derivatives; which error comes depends on which task runs first",
    ),
    Known(
        "linalg.householder_product complex64 #*",
        "second gradients: native bfs",
        "failed",
        "ill-conditioned: PyTorch's own second gradient in complex64 is 2% off that in complex128, where both agree",
    ),
)
