"""What each part of `ts.training` is told of the loop."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from ..steps.loop_watch import BackwardGiven
from .record import Training


class LoopPart:
    """An observer of a training loop. Its methods are called in the loop's thread, `unobserved`; an error is noted once
    and never raised into the loop.

    A part is made anew for each training, without arguments. What it holds of the loop's tensors past the call that
    told it of them keeps them alive: it holds weak references, or none.
    """

    def begins(self, training: Training) -> None:
        """The training is watched from here on: hooks go in."""

    def step_begins(self, number: int) -> None:
        """Steps are counted from 0. The end of the first is seen late where the optimizers were not given and one is
        alive that does not step: when one of the others is to step again."""

    def forward_begins(self, module: nn.Module, given: tuple[object, ...]) -> None:
        """An outermost module is called, with grad mode on; also inside of an optimizer's closure, and of transforms of
        torch.func: then it is given what they wrap."""

    def forward_ends(self, module: nn.Module, result: object) -> None: ...

    def module_ends(self, module: nn.Module, result: object) -> None:
        """Any module, of those inside of others, too, and whether or not it was given: only parts are told that have
        this. It is called very often, so with the user's modes in force."""

    def backward_begins(self, given: BackwardGiven) -> None:
        """An outermost backward; with its tensors, gradients, retain_graph, create_graph and inputs."""

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None: ...

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """Gradients are there, parameters not yet written: of a step with a closure, after that has run once."""

    def optimizer_ends(self, optimizer: Optimizer) -> None: ...

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """A gradient scaler left its step out."""

    def step_ends(self, number: int) -> None: ...

    def failed(self, error: BaseException) -> None:
        """It leaves the block or a backward."""

    def ends(self) -> None:
        """Hooks go out, and nothing is kept that was the loop's."""
