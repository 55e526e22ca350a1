"""Follows a training loop by PyTorch's hooks of modules, backwards and optimizers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer

from ...inspector.torch_private.call_watchers import following_module_calls
from ...inspector.torch_private.engine import surround_backward
from ...inspector.torch_private.optimizer_steps import watching_optimizers
from ..api.restore_state import open_contexts

_OPTIMIZER_FILE = sys.modules[Optimizer.__module__].__file__

RunBackward = Callable[[], tuple[Tensor, ...]]
BackwardGiven = tuple[Any, ...]
"""Tensors, gradients, retain_graph, create_graph and inputs of a backward."""


class LoopFollower:
    """Follows the loop of the thread that made it, and keeps track of the calls under way.

    Calls nest: a module calls modules, a backward runs a checkpoint's forward and backward, a wrapper's step calls
    another optimizer's, and a step with a closure runs forward and backward. Subclasses implement the methods with an
    underscore, which are called for the outermost of each, and decide where a training step ends.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        self._restoring: Collection[object] = ()  # contexts whose runs are undone
        self._restoring_depth = 0
        self._depth = 0  # the number of modules under way
        self._in_backward = False
        self._stepping: list[int] = []  # ids of the optimizers under way, outermost first
        self._seen_on_stack: set[int] = set()  # ids of optimizers whose step has been found on the stack
        self._around_closures: list[list[int]] = []  # `_stepping` as it was when each closure began
        self._over = False

    def install_hooks(self, stack: ExitStack) -> None:
        """Install the hooks; closing the stack removes them."""
        self._restoring = open_contexts()
        self._restoring_depth = len(self._restoring)  # not 0 if a verb follows its own runs, as ts.fits does
        stack.callback(surround_backward(self._surround, self._gradients_begin))
        if get_ident() == self._thread:
            stack.enter_context(following_module_calls(self._entered, self._left))
        stack.enter_context(watching_optimizers(self))

    def _forward_begins(self, module: nn.Module, given: tuple[Any, ...]) -> None: ...

    def _module_ends(self, module: nn.Module, result: object, is_forward: bool) -> None:
        """A module has returned. Unlike the others, this is called for inner modules too.

        Args:
            is_forward: whether it is the module with which `_forward_begins` was called.
        """

    def _backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _gradients_begin(self, outputs: Sequence[Tensor | GradientEdge]) -> None:
        """torch.autograd.grad is called with these outputs, or a backward inside a backward or of another thread."""

    def _is_watched(self, optimizer: Optimizer) -> bool:
        return not self._is_ignored

    def _before_step(self, optimizer: Optimizer, is_nested: bool) -> None:
        """An optimizer is about to step, or its step has been skipped: end the training step in which it has stepped.

        Args:
            is_nested: whether another optimizer's step calls it.
        """

    def _optimizer_begins(self, optimizer: Optimizer, has_closure: bool) -> None: ...

    def _optimizer_ends(self, optimizer: Optimizer, is_skipped: bool) -> None:
        """An optimizer has stepped, or a gradient scaler has skipped its step, which then never began."""

    def _closure_begins(self, optimizer: Optimizer) -> None: ...

    def _closure_ends(self, optimizer: Optimizer) -> None: ...

    @property
    def _is_ignored(self) -> bool:
        """True if the current call is another thread's, a verb's whose effects are undone, or comes after the end.

        `_entered` and `_left`, which are called most of all, check the last two themselves.
        """
        return self._over or get_ident() != self._thread or len(self._restoring) > self._restoring_depth

    @property
    def _may_be_forward(self) -> bool:
        """True if an outermost module called now is a forward of the loop, not a recomputation or an evaluation."""
        self._drop_raised_steps()
        return not (self._in_backward or self._stepping) and torch.is_grad_enabled()

    def _drop_raised_steps(self) -> None:
        """Forget optimizer steps that raised, for which torch calls no hook: their frames have left the stack."""
        if not self._stepping:
            return
        running = _optimizers_on_stack()
        for place, optimizer in enumerate(self._stepping):
            if optimizer in self._seen_on_stack and optimizer not in running:
                del self._stepping[place:]
                return

    def _entered(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        if self._over or len(self._restoring) > self._restoring_depth:
            return
        self._depth += 1
        if self._depth == 1 and self._may_be_forward and not torch.compiler.is_compiling():
            self._forward_begins(module, given)

    def _left(self, module: nn.Module, given: object, result: object) -> None:
        # at depth 0 an optimizer has stepped inside of it
        if not self._depth or self._over or len(self._restoring) > self._restoring_depth:
            return
        self._depth -= 1
        if self._depth or not torch.compiler.is_compiling():
            self._module_ends(module, result, not self._depth and self._may_be_forward)

    def _surround(self, run: RunBackward, *given: Any) -> tuple[Tensor, ...]:
        if self._is_ignored or self._in_backward:
            self._gradients_begin(given[0])
            return run()
        self._in_backward = True
        try:
            return self._backward(run, given)
        finally:
            self._in_backward = False

    def step_begins(self, optimizer: Optimizer, has_closure: bool) -> None:
        if not self._is_watched(optimizer):
            return
        self._drop_raised_steps()
        self._before_step(optimizer, bool(self._stepping))
        if self._over:
            return
        if id(optimizer) in self._stepping:  # its previous step raised
            self._stepping.clear()
        self._stepping.append(id(optimizer))
        if id(optimizer) not in self._seen_on_stack and id(optimizer) in _optimizers_on_stack():
            self._seen_on_stack.add(id(optimizer))
        if len(self._stepping) == 1:
            self._depth = 0  # a module that calls the optimizer is not part of a forward
            self._optimizer_begins(optimizer, has_closure)

    def step_ends(self, optimizer: Optimizer) -> None:
        if self._is_watched(optimizer) and id(optimizer) in self._stepping:
            del self._stepping[self._stepping.index(id(optimizer)) :]
            if not self._stepping:
                self._optimizer_ends(optimizer, is_skipped=False)

    def step_skipped(self, optimizer: Optimizer) -> None:
        if self._is_watched(optimizer):
            self._before_step(optimizer, False)
            if not self._over:
                self._optimizer_ends(optimizer, is_skipped=True)

    def closure_begins(self, optimizer: Optimizer) -> None:
        if self._is_watched(optimizer):
            self._around_closures.append(self._stepping)
            self._stepping = []
            self._closure_begins(optimizer)

    def closure_ends(self, optimizer: Optimizer) -> None:
        if self._is_watched(optimizer):
            self._stepping = self._around_closures.pop() if self._around_closures else []
            self._closure_ends(optimizer)


def _optimizers_on_stack() -> set[int]:
    """Return the ids of the optimizers whose step this thread runs (frames of torch/optim/optimizer.py)."""
    found = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_code.co_filename == _OPTIMIZER_FILE:
            found.add(id(frame.f_locals.get("self")))
        frame = frame.f_back
    return found
