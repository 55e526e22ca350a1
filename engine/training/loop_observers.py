"""Observers of a training loop, and the hooks of torch that call them step by step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from traceback import walk_tb
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer

from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import is_library
from ...inspector.torch_private.allocators import not_the_programs
from ...inspector.torch_private.optimizer_steps import has_hooks, optimizers_alive, stepping_for
from ...inspector.torch_private.tensors import beneath_all_transforms
from ...inspector.torch_private.thread_state import autocast_is_on, unobserved
from ..api.environment import autocast_now
from ..memory.out_of_memory import explain_out_of_memory
from .follow_loop import BackwardGiven, LoopFollower, RunBackward
from .training_result import Training

_MOST_NAMES = 3


def explain_inference_tensors(error: BaseException, modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Adds the note, once; other errors stay as they are.

    Args:
        modules: those that may have such tensors, by path.
    """
    if not isinstance(error, RuntimeError) or not str(error).startswith(_ERRORS):
        return
    if any(_MADE in note for note in getattr(error, "__notes__", ())):
        return
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    places = [place for place in places if not is_library(place[0])]
    at = f" at {os.path.basename(places[-1][0])}:{places[-1][1]}" if places else ""
    names = list(_names(modules))
    several = len(names) > 1
    it, each = ("them", "each") if several else ("it", "it")
    which = f"{joined(names[:_MOST_NAMES])} {'were' if several else 'was'}" if names else "a tensor that it takes was"
    error.add_note(
        f"tapescope: the forward fails{at}: {which} {_MADE}, as a cache that an evaluation has filled. Make "
        f"{it} under torch.no_grad() instead, or take .clone() of {each} in training"
    )


_ERRORS = "Inference tensors", "Inplace update to inference tensor"
_MADE = "made under torch.inference_mode()"


def _names(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[str]:
    """Yields the names of the inference tensors that modules have as attributes, buffers or parameters."""
    for path, module in modules:
        for name, each in {**vars(module), **module._buffers, **module._parameters}.items():
            if isinstance(each, Tensor) and each.is_inference():
                yield f"{path or type(module).__name__}.{name}"


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


class TrainingWatch(LoopFollower):
    """Follows a loop and calls its observers.

    A step ends where an optimizer that has stepped in it is to step again; earlier, where the first forward after it
    begins, if all optimizers that are known have stepped by then. Known are those that were given; else those that were
    seen, and in the first step all that are alive. `next_step` ends it otherwise, and then nothing else does.

    Args:
        training: what is watched.
        parts: are told, in this order; one that raises is told no more but that it ends.
        modules: those given; without any all are told of.
        optimizers: those given, wrappers among them; without any all are.

    Attributes:
        number: of the step that is under way, the first is 0.
        stepped: the optimizers that have stepped in it, or whose step was left out.
    """

    def __init__(
        self,
        training: Training,
        parts: Sequence[LoopPart],
        modules: Iterable[nn.Module] = (),
        optimizers: Iterable[Optimizer] = (),
    ) -> None:
        super().__init__()
        self.number = 0
        self.stepped: WeakSet[Optimizer] = WeakSet()
        self._has_stepped = False  # an optimizer, which may be gone by now
        self._training = training
        self._parts, self._all_parts = list(parts), list(parts)
        self._told_of_modules = [each for each in parts if type(each).module_ends is not LoopPart.module_ends]
        self._modules: WeakSet[nn.Module] = WeakSet(each for module in modules for each in module.modules())
        self._around: WeakSet[nn.Module] = WeakSet()  # modules that have given ones in them
        self._strangers: WeakSet[nn.Module] = WeakSet()
        # By each that was given those whose steps are its own.
        self._given: list[WeakSet[Optimizer]] = [WeakSet(stepping_for(each)) for each in optimizers]
        self._known: WeakSet[Optimizer] = WeakSet()
        self._alive: WeakSet[Optimizer] | None = None
        self._by_hand = False
        self._is_to_tell = False  # that an optimizer begins, once its closure has run
        self._last_failure = 0  # an exception by id, until the next backward

    def start(self, stack: ExitStack) -> None:
        """Begins; what is put in place is taken away by the stack."""
        stack.callback(self._told_the_end)
        self._tell("begins", self._training)
        self.install_hooks(stack)
        self._tell("step_begins", self.number)

    def _told_the_end(self) -> None:
        self._over = True
        with unobserved():
            for part in self._all_parts:
                self._tell_one(part, "ends")
        self._all_parts.clear()
        self._parts.clear()
        self._told_of_modules.clear()

    def end(self, error: BaseException | None) -> None:
        """All is over; a step that has begun ends, if an optimizer has stepped in it. `error`: which ended the loop."""
        if error is not None:
            self._failed(error)
        if not self._over:
            if self._has_stepped:
                self._tell("step_ends", self.number)
                self.number += 1
            self._over = True

    def next_step(self) -> None:
        """The step ends here, and from now on no other does by itself."""
        self._by_hand = True
        self._step_is_over()

    def _failed(self, error: BaseException) -> None:
        """Parts are told once of one that leaves a backward and then the block."""
        if id(error) != self._last_failure:
            self._last_failure = id(error)
            explain_out_of_memory(error)
            with unobserved():
                explain_inference_tensors(error, self._training.watched.modules())
            self._tell("failed", error)

    def _tell(self, what: str, *told: object) -> None:
        with unobserved(), not_the_programs():
            for part in tuple(self._parts):
                if not self._tell_one(part, what, *told):
                    self._tell_no_more(part)

    def _tell_no_more(self, part: LoopPart) -> None:
        self._parts.remove(part)
        if part in self._told_of_modules:
            self._told_of_modules.remove(part)

    def _tell_one(self, part: LoopPart, what: str, *told: object) -> bool:
        """Whether it did not raise."""
        try:
            getattr(part, what)(*told)
        except Exception as error:
            since = f"{type(part).__name__} is watched no more since step {self.number}"
            self._training.note(f"{since}: {type(error).__name__}: {error}")
            return False
        return True

    def _is_meant(self, module: nn.Module) -> bool:
        """Whether it is of the modules given, or around one of them."""
        if not self._modules or module in self._modules or module in self._around:
            return True
        if module in self._strangers:
            return False
        found = any(each in self._modules for each in module.modules())
        (self._around if found else self._strangers).add(module)
        return found

    def _step_is_over(self) -> None:
        self._tell("step_ends", self.number)
        self._known.update(self.stepped)
        self.stepped.clear()
        self._has_stepped = False
        self.number += 1
        self._tell("step_begins", self.number)

    def _may_be_over(self) -> None:
        """A forward begins, or a backward: if all have stepped it is that of the next step."""
        if not self._by_hand and self._has_stepped and self._all_have_stepped:
            self._step_is_over()

    @property
    def _all_have_stepped(self) -> bool:
        if self._given:
            return not any(each and each.isdisjoint(self.stepped) for each in self._given)
        if self._known:
            return self._known <= self.stepped
        if self._alive is None:
            self._alive = WeakSet(each for each in optimizers_alive() if has_hooks(each))
        return self._alive == self.stepped  # they differ where one is hidden by gc.freeze: then others may be, too

    def _forward_begins(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        if self._is_meant(module):
            self._may_be_over()
            self._training.watched.add(module)
            self._training.autocast = autocast_now() if autocast_is_on() else {}  # observers are called without it
            self._tell("forward_begins", module, beneath_all_transforms(given))

    def _module_ends(self, module: nn.Module, result: object, is_forward: bool) -> None:
        result = beneath_all_transforms(result)
        for part in self._told_of_modules:
            if not self._tell_one(part, "module_ends", module, result):
                self._tell_no_more(part)
                break
        if is_forward and self._is_meant(module):
            self._tell("forward_ends", module, result)

    def _backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        if not self._calls and not self._stepping:
            self._may_be_over()
        self._last_failure = 0
        try:
            self._tell("backward_begins", given)
            result = run()
        except BaseException as error:
            self._tell("backward_ends", given, error)
            self._failed(error)
            raise
        self._tell("backward_ends", given, None)
        return result

    def _is_watched(self, optimizer: Optimizer) -> bool:
        return not self._is_ignored and (not self._given or any(optimizer in each for each in self._given))

    def _before_step(self, optimizer: Optimizer, is_nested: bool) -> None:
        if optimizer in self.stepped and not is_nested and not self._by_hand:
            self._step_is_over()

    def _optimizer_begins(self, optimizer: Optimizer, has_closure: bool) -> None:
        self._is_to_tell = True
        if not has_closure:
            self._tell_of_beginning(optimizer)

    def _tell_of_beginning(self, optimizer: Optimizer) -> None:
        """Call `optimizer_begins` once; of a step with a closure after its first run, which makes the gradients."""
        if self._is_to_tell:
            self._is_to_tell = False
            self._tell("optimizer_begins", optimizer)

    def _optimizer_ends(self, optimizer: Optimizer, is_skipped: bool) -> None:
        self.stepped.add(optimizer)
        self._has_stepped = True
        if is_skipped:
            self._tell("optimizer_skipped", optimizer)
        else:
            self._tell_of_beginning(optimizer)
            self._tell("optimizer_ends", optimizer)

    def _closure_ends(self, optimizer: Optimizer) -> None:
        if len(self._stepping) == 1:
            self._tell_of_beginning(optimizer)
