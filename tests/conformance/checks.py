"""The checks against PyTorch: engines and policies, for gradients, double backward, and inputs=."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from gradients import Result, difference
from program import Forward, Program
from results import Finding
from torch import Tensor

import tapescope as ts

Way = Literal["gradients", "second gradients", "inputs="]

Backward = Callable[[Sequence[Tensor], Sequence[Tensor], bool, Sequence[Tensor] | None], object]
"""outputs, their gradients, create_graph, inputs"""

_SEED = 1


@dataclass(frozen=True, slots=True)
class Check:
    """One way to run a backward through an engine of ours. Under PyTorch's own order all bits must be equal."""

    way: Way
    engine: Literal["direct", "native"]
    policy: str

    @property
    def name(self) -> str:
        return f"{self.way}: {self.engine} {self.policy}"

    @property
    def digits(self) -> float:
        """The share of a number's digits that must agree. Sums in another order round differently, and some second
        derivatives multiply that: those of decompositions where two values lie close together.
        """
        if self.policy == "heap":
            return 1
        return 0.5 if self.way == "second gradients" else 0.7

    def backward(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        create_graph: bool,
        inputs: Sequence[Tensor] | None,
    ) -> None:
        policy = _any_order(random.Random(_SEED)) if self.policy == "random" else self.policy
        ts.backward(outputs, gradients, create_graph=create_graph, inputs=inputs, policy=policy, engine=self.engine)


CHECKS = (
    Check("gradients", "direct", "heap"),
    Check("gradients", "direct", "random"),
    Check("gradients", "native", "bfs"),
    Check("gradients", "native", "random"),
    Check("second gradients", "direct", "heap"),
    Check("second gradients", "native", "bfs"),
    Check("inputs=", "direct", "heap"),
    Check("inputs=", "native", "bfs"),
)


def findings(program: Program, checks: Sequence[Check] = CHECKS) -> Iterator[Finding]:
    """Runs a program's backward under PyTorch and under each check, and says how they compare."""
    for way in dict.fromkeys(check.way for check in checks):
        expected = _result(program, way, _plain)
        again = difference(_result(program, way, _plain), expected)
        for check in checks:
            if check.way != way:
                continue
            if again:
                yield Finding(program.name, check.name, "nondeterministic", f"two runs of PyTorch's: {again}")
                continue
            found = _result(program, way, check.backward)
            differs = difference(found, expected, check.digits)
            if not differs:
                yield Finding(program.name, check.name, "same error" if found.error else "equal")
            elif found.error and found.error.startswith("NotImplementedError") and 'engine="native"' in found.error:
                yield Finding(program.name, check.name, "refused", found.error)
            else:
                yield Finding(program.name, check.name, "failed", differs)


def _plain(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], create_graph: bool, inputs: Sequence[Tensor] | None
) -> None:
    torch.autograd.backward(outputs, gradients, create_graph=create_graph, inputs=inputs)


def _any_order(generator: random.Random) -> Callable[[Sequence[ts.Task], object], ts.Task]:
    return lambda ready, state: ready[generator.randrange(len(ready))]


def _result(program: Program, way: Way, backward: Backward) -> Result:
    forward = program.forward()
    try:
        return _run(forward, way, backward)
    finally:
        for leaf in forward.leaves:
            leaf.grad = None  # with create_graph it refers to the graph, and the graph to the leaf


def _run(forward: Forward, way: Way, backward: Backward) -> Result:
    generator = torch.Generator().manual_seed(_SEED)
    gradients = [_random_like(output, generator) for output in forward.outputs]
    inputs = forward.leaves[:1] if way == "inputs=" else None
    error = _raised(backward, forward.outputs, gradients, way == "second gradients", inputs)
    found = tuple(leaf.grad for leaf in forward.leaves)
    if error or way != "second gradients":
        return Result(() if error else found, error)
    for leaf in forward.leaves:
        leaf.grad = None
    again = [gradient for gradient in found if gradient is not None and gradient.requires_grad]
    if again:
        error = _raised(backward, again, [_random_like(gradient, generator) for gradient in again], False, None)
    firsts = (None if gradient is None else gradient.detach() for gradient in found)
    return Result(() if error else (*firsts, *(leaf.grad for leaf in forward.leaves)), error)


def _raised(
    backward: Backward,
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    create_graph: bool,
    inputs: Sequence[Tensor] | None,
) -> str | None:
    """Runs a backward; its error, if it raises one."""
    try:
        backward(outputs, gradients, create_graph, inputs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _random_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A gradient for it to start from; one of a sparse tensor has its pattern."""
    if tensor.layout is torch.strided:
        return torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
    gradient = tensor.detach().clone()
    values = gradient._values() if gradient.layout is torch.sparse_coo else gradient.values()
    values.copy_(torch.randn(values.shape, dtype=values.dtype, generator=generator))
    return gradient
