"""The memory of a function that trains, predicted by running it on fake tensors, and its parts by module and line."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ....inspector.graph.source_lines import is_users
from ....inspector.text.sizes_and_counts import size_text
from ....inspector.torch_private.engine import current_node
from ....inspector.torch_private.fake_tensors import NEEDS_NUMBERS, unsupported_on_fakes
from ....inspector.torch_private.sequence_numbers import number_of, sequence_nr
from ....inspector.torch_private.tensors import storage_of
from ....inspector.validation import a_kind
from ...api.restore_state import AsFound, same_versions
from ...memory.categories import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE
from ..follow_loop import BackwardGiven, LoopFollower, RunBackward
from ..simulated_step import FakeTraining, rounded
from ..step_memory import BACKWARD, BETWEEN, FORWARD, OPTIMIZER, StepTimeline, predicted_step
from ..training_recipe import numbers_sentence, unfakeable_sentence

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True, slots=True)
class Part:
    """The memory of a module at the peak.

    Attributes:
        nbytes: its bytes.
        kinds: these bytes by category, see `lifetimes.Kind`.
        line: `file:line` of the user's code that allocates most of it; "" if unknown.
    """

    nbytes: int
    kinds: Mapping[str, int]
    line: str

    def __str__(self) -> str:
        kinds = sorted(self.kinds.items(), key=lambda each: -each[1])
        named = ", ".join(f"{kind} {size_text(nbytes)}" for kind, nbytes in kinds)
        return f"{size_text(self.nbytes)} ({named}){f' at {self.line}' if self.line else ''}"


@dataclass(frozen=True)
class SimulatedFunction:
    """The predicted memory of a function, from its first tensor to its end.

    Attributes:
        timeline: the memory over the function.
        lines: for each block, `file:line` of the user's code that allocates it.
        modules: for each block, the path of its module; "" outside of modules.
    """

    timeline: StepTimeline
    lines: Sequence[str]
    modules: Sequence[str]

    @property
    def peak_bytes(self) -> int:
        return self.timeline.peak_bytes

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The memory at the peak by module, the largest first."""
        timeline = self.timeline
        alive = set(range(timeline.before))
        for event in timeline.events[: timeline.peak_event]:
            (alive.add if event >= 0 else alive.discard)(max(event, ~event))
        kinds: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        lines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for block in alive:
            path, nbytes = self.modules[block], timeline.nbytes[block]
            kinds[path][timeline.kinds[block]] += nbytes
            # The line that allocates gradients and state is that of the optimizer, for every module.
            if self.lines[block] and timeline.kinds[block] not in (GRADIENTS, STATE):
                lines[path][self.lines[block]] += nbytes
        found = {
            path: Part(sum(each.values()), dict(each), max(lines[path], key=lines[path].__getitem__, default=""))
            for path, each in kinds.items()
        }
        return dict(sorted(found.items(), key=lambda part: -part[1].nbytes))


def simulate_function(
    function: Callable[[], Any],
    verb: str,
    device: str = "cuda",
    make_optimizer: MakeOptimizer | None = None,
    *,
    has_loss: bool = False,
) -> SimulatedFunction:
    """Run a function on fake tensors and return the memory that it would need.

    Nothing is computed, and its tensors are not allocated. Tensors that exist already count from the start. Workspaces
    of kernels are not counted: they differ between devices, and the result should not depend on this machine.

    Args:
        function: the function.
        verb: the verb that runs it, for messages.
        device: the device of the memory, which decides how sizes are rounded.
        make_optimizer: a function that returns the optimizer of the parameters of the first module called. A steady
            step is then simulated: the optimizer has its state before the forward.
        has_loss: whether the function returns a loss, or a pair of a loss and the model; its backward is then run, and
            a step of the optimizer.

    Raises:
        NotImplementedError: the function reads a number from a tensor, or runs an operation that fake tensors lack.
        ValueError: the function should return a loss and does not, or there is an optimizer and no module is called.
        Exception: errors of the function.
    """
    fakes = _FakeFunction()
    follower = _Follower(fakes, device, make_optimizer)
    try:
        with AsFound(function, verb) as found, found.run(), same_versions(found.carried.tensors), fakes, fakes.making():
            with ExitStack() as stack:
                follower.install_hooks(stack)
                follower.run(function, has_loss)
            return follower.simulated()
    except NEEDS_NUMBERS as error:
        raise NotImplementedError(numbers_sentence(error, "", verb)) from error
    except (RuntimeError, AssertionError) as error:
        if (operation := unsupported_on_fakes(error)) is None:
            raise
        raise NotImplementedError(unfakeable_sentence(error, operation, verb)) from error


class _FakeFunction(FakeTraining):  # type: ignore[no-untyped-call]
    """Fake operations with the user's line of each storage, and without workspaces."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.paths: list[str] = []
        self._line_of: dict[int, str] = {}  # by sequence number of an operation's node

    def kernel_run(self, operator: Any, args: Any, kwargs: Any, results: Any) -> None:
        return None

    def _take_scratch(self, sizes: list[int]) -> None: ...

    def _name_new(self, operation: str) -> None:
        node = current_node()
        line = _user_line() if node is None else self._line_of.get(number_of(node), "")
        if node is None and torch.is_grad_enabled():
            self._line_of[sequence_nr() - 1] = line
        super()._name_new(operation)
        new = len(self.names) - len(self.lines)
        self.lines += [line] * new
        self.paths += [each.partition(" in ")[2] for each in self.names[len(self.names) - new :]]


def _user_line() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _Follower.run.__code__:  # its callers are not the function's
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class _Follower(LoopFollower):
    """Notes the phases of the function, and the categories of its tensors."""

    def __init__(self, fakes: _FakeFunction, device: str, make_optimizer: MakeOptimizer | None) -> None:
        super().__init__()
        self._device = device
        self._fakes = fakes
        self._make_optimizer = make_optimizer
        self._optimizer: Optimizer | None = None
        self._starts: list[tuple[str, int]] = []
        self._kinds: dict[int, str] = {}
        self._parameters: dict[int, tuple[str, Tensor]] = {}
        self._first = 0  # the first storage of the current forward

    def run(self, function: Callable[[], Any], has_loss: bool) -> None:
        """Run the function, and if it has a loss, the loss's backward and a step of the optimizer."""
        if self._make_optimizer is None:
            self._enter(BETWEEN)
        result = function()
        if not has_loss:
            return
        loss = result[0] if isinstance(result, tuple) and result else result
        name = f"{getattr(function, '__name__', 'make_loss')}()"
        if not isinstance(loss, Tensor):
            raise ValueError(f"{name} returned {a_kind(loss)}; expected the loss, or a pair (loss, model)")
        if self._make_optimizer is not None and self._optimizer is None:
            raise ValueError(f"{name} calls no module, so the optimizer has no parameters; call a torch.nn.Module")
        loss.backward()  # type: ignore[no-untyped-call]
        if self._optimizer is not None:
            self._optimizer.step()

    def _enter(self, phase: str) -> None:
        self._starts.append((phase, len(self._fakes.events)))

    def _entered(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        if id(module) not in self._fakes.modules:
            self._fakes.modules |= {id(each): path for path, each in module.named_modules()}
            self._name(PARAMETERS, module.named_parameters())
            self._name(BUFFERS, module.named_buffers())
            self._parameters |= {id(each): (name, each) for name, each in module.named_parameters()}
        super()._entered(module, given)
        self._fakes.module_begins(module, given)

    def _left(self, module: nn.Module, given: object, result: object) -> None:
        self._fakes.module_ends(module, given, result)
        super()._left(module, given, result)

    def _forward_begins(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        if self._make_optimizer is not None and self._optimizer is None:
            parameters = [each for each in module.parameters() if each.requires_grad]
            self._optimizer = self._make_optimizer(parameters)
            for each in parameters:  # a first step creates the optimizer's state
                each.grad = torch.zeros_like(each)
            self._as_on_device(self._optimizer)
            self._over = True  # this step is not the function's
            self._optimizer.step()
            self._over = False
            self._optimizer.zero_grad()
        self._name(BATCH, (("batch", each) for each in tree_leaves(given)))
        self._enter(FORWARD)
        self._first = len(self._fakes.nbytes)

    def _backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        alive = self._fakes.alive()
        self._kinds |= {each: ACTIVATIONS for each in alive if each >= self._first and each not in self._kinds}
        self._enter(BACKWARD)
        result = run()
        self._name(GRADIENTS, ((name, each.grad) for name, each in self._parameters.values()))
        return result

    def _optimizer_begins(self, optimizer: Optimizer, has_closure: bool) -> None:
        self._enter(OPTIMIZER)
        self._as_on_device(optimizer)

    def _as_on_device(self, optimizer: Optimizer) -> None:
        """Choose the implementation that torch chooses on an accelerator (_default_to_fused_or_foreach)."""
        for group in optimizer.param_groups:
            if self._device != "cpu" and "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = True

    def _optimizer_ends(self, optimizer: Optimizer, is_skipped: bool) -> None:
        for parameter, state in optimizer.state.items():
            name = self._parameters.get(id(parameter), ("", parameter))[0]
            self._name(STATE, ((name, each) for each in tree_leaves(state)))
        self._enter(BETWEEN)

    def _name(self, kind: str, values: Iterable[tuple[str, object]]) -> None:
        """Give the storages of these tensors their category, and the module of the parameter with this name."""
        for name, value in values:
            if isinstance(value, Tensor) and (number := self._fakes.number(value)) >= 0:
                self._kinds[number] = kind
                self._fakes.paths[number] = name.rpartition(".")[0]

    def simulated(self) -> SimulatedFunction:
        """Return the result, when the function has run."""
        fakes = self._fakes
        real = list(fakes.given.values())  # tensors that exist already come first
        places = range(len(fakes.nbytes), len(fakes.nbytes) + len(real))
        fakes.nbytes += [each.nbytes for each in real]
        names = {storage.address: name for name, each in self._parameters.values() if (storage := storage_of(each))}
        for place, each in zip(places, real, strict=True):
            fakes.lines.append("")
            fakes.paths.append(names.get(each.address, "").rpartition(".")[0])
            if each.address in names:
                self._kinds[place] = PARAMETERS
        devices = {each.device for _, each in self._parameters.values()} or {torch.device("cpu")}
        memory = torch.device(self._device)
        sizes = [rounded(each, memory) for each in fakes.sizes_on(next(iter(devices)), memory)]
        starts = [(phase, event + len(real)) for phase, event in self._starts]
        if self._make_optimizer is None:
            starts[0] = BETWEEN, 0
        # predicted_step renumbers the storages; their names tell the numbers from before.
        numbers = [str(number) for number in range(len(sizes))]
        timeline = predicted_step(self._device, [*places, *fakes.events], sizes, starts, self._kinds, numbers)
        blocks = [int(name) for name in timeline.names]
        return SimulatedFunction(
            timeline, [fakes.lines[each] for each in blocks], [fakes.paths[each] for each in blocks]
        )
