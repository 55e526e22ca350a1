"""What a training loop does, told by torch's own hooks: where each phase of a step begins, and where each step ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...inspector.torch_private.call_watchers import watching_modules
from ...inspector.torch_private.engine import surround_backward
from ...inspector.torch_private.optimizer_steps import watching_optimizers
from ..memory.census import Place
from ..memory.lifetimes import GRADIENTS, STATE, Kind
from .memory_census import Holders, Walked
from .step_timeline import AFTER_BACKWARD, BACKWARD, BETWEEN, FORWARD, OPTIMIZER

RunBackward = Callable[[], tuple[Tensor, ...]]
BackwardGiven = tuple[Any, ...]
"""Tensors, gradients, retain_graph, create_graph and inputs of a backward."""


@dataclass(slots=True)
class PhaseStart:
    """Where a phase begins.

    Attributes:
        phase: its name.
        mark: the number of the allocator's mark there.
        walked: what the loop held then, as far as it was looked at.
        optimizer: whose step begins here or has ended.
        ended: where storages were that have gone since the phase before began.
    """

    phase: str
    mark: int
    walked: Walked
    optimizer: str = ""
    ended: Sequence[Place] = ()


@dataclass(slots=True)
class SeenStep:
    """A step as it was seen.

    Attributes:
        first: the number of its first moment.
        optimizers: the class names of the optimizers that stepped in it, in order.
        skipped: those whose steps a gradient scaler left out.
    """

    first: int
    optimizers: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


class LoopListener(Protocol):
    """Is told of what a `LoopWatch` sees."""

    def mark(self) -> int:
        """Marks the allocator's events, and gives the number of the mark."""

    def backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        """Runs a backward that is none of another one's inside."""

    def forward_begins(self) -> None: ...

    def stepped(self) -> None:
        """An optimizer has."""

    def step_begins(self, number: int) -> None: ...

    def complete(self) -> None:
        """All steps are there that are wanted."""


class LoopWatch:
    """Follows the loop of one thread.

    A step ends where the first forward after its last optimizer begins: which one is the last shows when one of those
    that have stepped is to step again, or, from the second step on, when all of the first one have. `begin_step` says
    it otherwise, for a function that is one step.

    Args:
        holders: learns of modules and optimizers.
        listener: is told of all.
        wanted: how many steps; None: they begin where `begin_step` says.

    Attributes:
        moments: where phases begin, in order.
        steps: those that have begun.
    """

    def __init__(self, holders: Holders, listener: LoopListener, wanted: int | None) -> None:
        self.moments: list[PhaseStart] = []
        self.steps: list[SeenStep] = []
        self._holders = holders
        self._listener = listener
        self.wanted = wanted
        self._thread = get_ident()
        self._calls = 0  # of modules, one inside of the other
        self._backwards = 0
        self._stepping: list[int] = []  # optimizers by id, one inside of the other
        self._around_closures: list[list[int]] = []
        self._stepped: set[int] = set()  # optimizers by id, in this step
        self._known: set[int] = set()  # in the first step
        self._may_end: int | None = None  # the moment with which the next step may begin
        self._over = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it is open phases are noted."""
        with ExitStack() as stack:
            stack.callback(surround_backward(self._surround))
            stack.enter_context(watching_modules(self._entered, self._left))
            stack.enter_context(watching_optimizers(self))
            yield

    def begin(self) -> None:
        """The first step begins."""
        self.steps.append(SeenStep(0))
        self._enter(BETWEEN)

    def begin_step(self) -> None:
        """The step before is over, and another one begins."""
        self._listener.step_begins(len(self.steps))
        self.steps.append(SeenStep(len(self.moments)))
        self._enter(BETWEEN)

    def end(self) -> None:
        """All is over."""
        if not self._over:
            self._over = True
            self._enter("", GRADIENTS, STATE)

    @property
    def phase(self) -> str:
        return self.moments[-1].phase

    def _enter(self, phase: str, *walk: Kind, optimizer: str = "") -> None:
        ended = self._holders.ended()  # before others may be at the same places
        of = {GRADIENTS: self._holders.gradients, STATE: self._holders.state}
        walked: Walked = {name: of[name]() for name in walk}
        if phase == FORWARD:  # parameters may have been moved since, as by `.data = ...`
            walked.update(self._holders.parameters())
        elif phase == BACKWARD:
            walked.update(self._holders.new_parameters())
        self.moments.append(PhaseStart(phase, self._listener.mark(), walked, optimizer, ended))

    @property
    def _deaf(self) -> bool:
        return self._over or get_ident() != self._thread

    def _entered(self, module: nn.Module, given: object) -> None:
        if self._deaf or torch.compiler.is_compiling():
            return
        self._calls += 1
        if self._calls > 1 or self._backwards or self._stepping or not torch.is_grad_enabled():
            return
        self._holders.add_module(module)
        if self.phase == FORWARD:
            return
        if self._may_end is not None and self.wanted is not None and self._stepped >= self._known and self._known:
            self._next_step(len(self.moments))
            if self._over:
                return
        self._listener.forward_begins()
        self._enter(FORWARD, GRADIENTS)
        if self._may_end is not None and self.moments[self._may_end].phase != FORWARD:
            self._may_end = len(self.moments) - 1

    def _left(self, module: nn.Module, given: object, result: object) -> None:
        if not self._deaf and not torch.compiler.is_compiling():
            self._calls = max(self._calls - 1, 0)

    def _surround(self, run: RunBackward, *given: Any) -> tuple[Tensor, ...]:
        if self._deaf or self._backwards:
            return run()
        self._backwards += 1
        self._enter(BACKWARD)
        try:
            return self._listener.backward(run, given)
        finally:
            self._backwards -= 1
            self._enter(AFTER_BACKWARD, GRADIENTS)

    def step_begins(self, optimizer: Optimizer, has_closure: bool) -> None:
        if self._deaf:
            return
        self._holders.add_optimizer(optimizer)
        if self.wanted is not None and id(optimizer) in self._stepped and not self._stepping:
            self._next_step(self._may_end)
            if self._over:
                return
        if id(optimizer) in self._stepping:  # its last step raised
            self._stepping.clear()
        self._stepping.append(id(optimizer))
        if len(self._stepping) > 1:  # one optimizer calls another one
            return
        self.steps[-1].optimizers.append(type(optimizer).__name__)
        self._enter(OPTIMIZER, GRADIENTS, STATE, optimizer=type(optimizer).__name__)

    def step_ends(self, optimizer: Optimizer) -> None:
        if self._deaf or id(optimizer) not in self._stepping:
            return
        del self._stepping[self._stepping.index(id(optimizer)) :]
        if not self._stepping:
            self._step_is_over(optimizer)

    def _step_is_over(self, optimizer: Optimizer) -> None:
        self._stepped.add(id(optimizer))
        self._enter(BETWEEN, GRADIENTS, STATE, optimizer=type(optimizer).__name__)
        self._may_end = len(self.moments) - 1
        self._listener.stepped()

    def step_skipped(self, optimizer: Optimizer) -> None:
        if self._deaf:
            return
        self._holders.add_optimizer(optimizer)
        if self.wanted is not None and id(optimizer) in self._stepped:
            self._next_step(self._may_end)
            if self._over:
                return
        self.steps[-1].skipped.append(type(optimizer).__name__)
        self._step_is_over(optimizer)

    def closure_begins(self, optimizer: Optimizer) -> None:
        if not self._deaf:
            self._around_closures.append(self._stepping)
            self._stepping = []
            self._listener.forward_begins()
            self._enter(FORWARD, GRADIENTS)

    def closure_ends(self, optimizer: Optimizer) -> None:
        if not self._deaf:
            self._stepping = self._around_closures.pop() if self._around_closures else []
            self._enter(OPTIMIZER, GRADIENTS, optimizer=type(optimizer).__name__)

    def _next_step(self, moment: int | None) -> None:
        """The next step has begun with this moment; None: with the next one."""
        if not self._known:
            self._known = set(self._stepped)
        self._stepped.clear()
        self._may_end = None
        self.steps.append(SeenStep(len(self.moments) if moment is None else moment))
        if self.wanted is not None and len(self.steps) > self.wanted:
            self.end()
            self._listener.complete()
        else:
            self._listener.step_begins(len(self.steps) - 1)


def with_forwards(moments: Sequence[PhaseStart], starts: Sequence[int]) -> list[PhaseStart]:
    """The moments, where what a step without modules does before its first backward is its forward.

    Args:
        starts: the moments with which steps begin.
    """
    found = list(moments)
    for start, end in zip(starts, (*starts[1:], len(found)), strict=True):
        first = next((place for place in range(start, end) if found[place].phase in (FORWARD, BACKWARD)), start)
        if first > start and found[first].phase == BACKWARD:
            found[first - 1] = replace(found[first - 1], phase=FORWARD)
    return found
