"""Finds parameters whose gradient is all zero in many consecutive steps, and the task that makes it zero."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ....inspector.capture.build_graph import read_graph
from ....inspector.capture.capture import capture
from ....inspector.graph.graph import Graph
from ....inspector.graph.phrases import joined
from ....inspector.torch_private.saved_variables import saved_slots
from ....inspector.torch_private.tensors import storage_of, version_of
from ....inspector.torch_private.thread_state import function_modes_open
from ...diagnose.zero_gradients import State, ZeroOrigin, ZeroWatch, describe_origin
from ..findings import Finding
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..norm_watch import rate_of
from ..norms import TensorNorms
from ..training_result import Training

# Consecutive steps with a zero gradient after which a backward is followed and the gradient reported, by cause.
_SURE = 4
_SURE_OF_DATA = 20  # the data may be the cause: a mask, padding
_SURE_OF_PARTS = 50  # the forward may be the cause: an expert that gets no tokens, a gate that is closed
_SURE_OF_UNITS = 6  # units that have been off since the first step
_LATER = 4  # factor by which the number of steps before the next followed backward grows
_MOST_NODES = 50_000  # nodes of a graph that is followed
_MOST_COUNTED = 2**20  # elements of a buffer or frozen parameter whose zeros are counted
_PRODUCTS = ("Mul", "Mm", "Bmm", "Addmm", "Baddbmm", "Convolution")
_MOST_IDLE = 64  # steps without an optimizer step that are stored until their norms have been computed
_BY_DATA = ("masked", "padding_idx", "ignore_index", "zero factor")
_BY_UNITS = ("dead", "outside")


@dataclass(slots=True)
class _Streak:
    """Consecutive steps in which a parameter's gradient was all zero.

    Attributes:
        first, last: the first and the last of these steps.
        count: the number of these steps.
        next_look: the count at which a backward is followed.
        is_since_start: whether the parameter has never had a gradient other than zero.
    """

    parameter: ReferenceType[Tensor]
    first: int
    last: int
    count: int
    next_look: int
    is_since_start: bool


@dataclass(slots=True)
class _Followed:
    """A backward followed by hooks.

    Attributes:
        leaves: the task of each parameter, by the parameter's id.
        constants: tasks that multiply by a single number that gets no gradient.
        by_data: tasks that multiply by another tensor that gets no gradient.
        factors: the parameters and buffers that a task multiplies by. Each is the parameter's id, or 0 for a buffer,
            and a function that counts its non-zero elements.
        states: whether a parameter's gradient has a non-zero element after the backward, by the parameter's id.
    """

    step: int
    graph: Graph
    watch: ZeroWatch
    leaves: dict[int, int]
    constants: frozenset[int]
    by_data: frozenset[int]
    factors: dict[int, list[tuple[int, Callable[[], int]]]]
    states: dict[int, Callable[[], State]] = field(default_factory=dict)


class ZeroGradients(LoopPart):
    """Counts the steps in which a parameter's gradient is all zero, using the norms that `NormWatch` computes.

    After several consecutive steps, one forward is captured and hooks follow its backward, to find the task that makes
    the gradient zero. Zeros that depend on the data must last longer to be reported. A single constant number that is
    zero, such as the weight of a loss that is switched on later, is intended.
    """

    def __init__(self) -> None:
        self._number = 0
        self._streaks: dict[int, _Streak] = {}
        # Parameters that have had a non-zero gradient, by id; None for a tensor outside the models.
        self._ever_nonzero: dict[int, ReferenceType[Tensor] | None] = {}
        self._reported: set[int] = set()
        self._pending: deque[tuple[int, list[TensorNorms]]] = deque()
        self._in_step: dict[int, bool] = {}  # whether a gradient is zero after the step's backwards so far, by id
        self._step_of_these = 0
        self._capture = ExitStack()
        self._modes: int | None = None  # number of open function modes, including the capture's; None: no capture
        self._followed: _Followed | None = None
        self._is_wanted = False
        self._has_moved = False  # whether an optimizer has stepped in this step with a learning rate other than 0
        self._idle_steps: deque[int] = deque(maxlen=_MOST_IDLE)  # steps in which none has
        self._versions: dict[int, int] = {}  # versions of the parameters with zero gradients after the last step

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number
        self._has_moved = False
        self._is_wanted = any(each.count >= each.next_look for each in self._streaks.values())
        if self._is_wanted and self._followed is None and self._modes is None and not function_modes_open():
            models = dict(self._training.watched)
            model = next(iter(models.values())) if len(models) == 1 else nn.ModuleDict(models) if models else None
            self._capture.enter_context(capture(model))
            self._modes = function_modes_open()

    def _close_capture(self) -> None:
        """Close the capture, but not from inside a call that its function mode handles, such as Tensor.backward()."""
        if self._modes is not None and function_modes_open() == self._modes:
            self._modes = None
            self._capture.close()

    def backward_begins(self, given: BackwardGiven) -> None:
        if not self._is_wanted or self._followed is not None:
            return
        outputs = [each for each in given[0] if isinstance(each, Tensor) and each.grad_fn is not None]
        names = dict(self._training.watched.parameters())
        graph = read_graph(outputs, names) if outputs else None
        if graph is None or len(graph) > _MOST_NODES:
            return
        wanted = {key for key, streak in self._streaks.items() if streak.count >= streak.next_look}
        leaves = {id(leaf): task for task, leaf in graph.leaves.items() if id(leaf) in wanted}
        if leaves:
            watch = ZeroWatch(graph)
            factors = self._factors(graph, watch.counts.of)
            self._followed = _Followed(self._number, graph, watch, leaves, *_products(graph), factors)
            watch.open()

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        if self._followed is not None and self._followed.step == self._number:
            self._followed.watch.close()
            streaks = {key: self._streaks.get(key) for key in self._followed.leaves}
            parameters = {key: streak.parameter() for key, streak in streaks.items() if streak is not None}
            state = self._followed.watch.counts.state
            self._followed.states = {key: state(each.grad) for key, each in parameters.items() if each is not None}
            self._followed.graph = replace(self._followed.graph, nodes=())  # they would keep the step's graph alive
            self._is_wanted = False
        taken = self._training.taken_norms
        if error is None and taken is not None:
            self._pending.append((self._number, taken.norms))

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._close_capture()
        self._versions, versions = {}, self._versions
        for key, version in versions.items():
            streak = self._streaks.get(key)
            parameter = None if streak is None else streak.parameter()
            if parameter is not None and version_of(parameter) != version:  # other code updates it, such as a hook
                self._reported.add(key)
                del self._streaks[key]

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._has_moved = self._has_moved or any(rate_of(group) != 0 for group in optimizer.param_groups)
        if self._streaks:
            found = ((key, streak.parameter()) for key, streak in self._streaks.items())
            self._versions = {key: version_of(each) for key, each in found if each is not None}

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        self._close_capture()

    def step_ends(self, number: int) -> None:
        self._close_capture()
        if not self._has_moved:
            self._idle_steps.append(number)
        self._read(number)
        followed = self._followed
        if self._is_wanted and followed is None:  # no backward of the step reached these parameters
            for streak in self._streaks.values():
                if streak.count >= streak.next_look:
                    streak.next_look *= _LATER
        # On an accelerator the numbers are read a step later, when its kernels have finished.
        if followed is not None and (number > followed.step or not torch.accelerator.is_available()):
            self._followed = None
            self._judge(followed)

    def ends(self) -> None:
        self._capture.close()
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.watch.close()
        self._streaks.clear()
        self._pending.clear()

    def _read(self, number: int) -> None:
        """Read the pending norms that have been computed."""
        while self._pending and all(each.is_ready() for each in self._pending[0][1]):
            step, taken = self._pending.popleft()
            if step != self._step_of_these:
                self._count()
                self._step_of_these = step
            for each in taken:
                is_usual = len(each.keys) == len(self._ever_nonzero) and all(each.norms)
                if is_usual and not self._in_step and not self._streaks:
                    continue
                for key, norm in zip(each.keys, each.norms, strict=True):
                    self._in_step[key] = not norm and self._in_step.get(key, True)
        if self._step_of_these == number and not self._pending:
            self._count()

    def _count(self) -> None:
        """Count the parameters whose gradient was zero in a step."""
        in_step, self._in_step = self._in_step, {}
        if self._step_of_these in self._idle_steps:  # no optimizer step could have changed a factor that is zero
            return
        if self._ever_nonzero and all(in_step.values()):  # such as a margin loss that is satisfied
            return
        new = [key for key, is_zero in in_step.items() if is_zero and key not in self._streaks]
        parameters: dict[int, Tensor] = {}
        if new or len(self._ever_nonzero) < len(in_step):
            parameters = {id(each): each for _, each in self._training.watched.parameters()}
        for key, is_zero in in_step.items():
            known = self._ever_nonzero.get(key)
            if not is_zero:
                self._streaks.pop(key, None)
                if key not in self._ever_nonzero:
                    self._ever_nonzero[key] = ref(parameters[key]) if key in parameters else None
            elif key in self._streaks:
                streak = self._streaks[key]
                streak.last, streak.count = self._step_of_these, streak.count + 1
            elif key in parameters and key not in self._reported:
                had = known is not None and known() is parameters[key]
                look = _SURE_OF_DATA if had else _SURE
                step = self._step_of_these
                self._streaks[key] = _Streak(ref(parameters[key]), step, step, 1, look, not had)

    def _factors(
        self, graph: Graph, count: Callable[[Tensor], Callable[[], int]]
    ) -> dict[int, list[tuple[int, Callable[[], int]]]]:
        """Return the models' tensors that tasks multiply by and that stay zero if they are; see `_Followed.factors`.

        These are buffers, frozen parameters, and parameters whose gradient is zero.
        """
        buffers = [each for _, module in self._training.watched.modules() for each in module.buffers(recurse=False)]
        own = [(0, each) for each in buffers if each.numel() <= _MOST_COUNTED]
        for _, each in self._training.watched.parameters():
            if id(each) in self._streaks or (not each.requires_grad and each.numel() <= _MOST_COUNTED):
                own.append((id(each), each))
        stored = {storage.address: pair for pair in own if (storage := storage_of(pair[1])) is not None}
        found: dict[int, list[tuple[int, Callable[[], int]]]] = {}
        for task, node in zip(graph.tasks, graph.nodes, strict=True):
            if task.short_name in _PRODUCTS:
                for slot in saved_slots(node):
                    storage = storage_of(slot.tensor)
                    if storage is not None and storage.address in stored:
                        key, tensor = stored[storage.address]
                        found.setdefault(task.id, []).append((key, count(tensor.detach())))
        return found

    def _judge(self, followed: _Followed) -> None:
        """Report the parameters whose zero gradients have a cause that is not intended."""
        followed.watch.read()
        found: dict[tuple[tuple[ZeroOrigin, ...], int], list[_Streak]] = {}
        left: list[tuple[int, _Streak, tuple[ZeroOrigin, ...], int]] = []
        stuck: set[int] = set()  # ids of all-zero parameters that a task multiplies by
        for key, task in followed.leaves.items():
            streak = self._streaks.get(key)
            parameter = None if streak is None else streak.parameter()
            if streak is None or parameter is None or key not in followed.states:
                continue
            streak.next_look *= _LATER
            if followed.states[key]():  # not zero, although its squared norm underflowed to 0
                continue
            origins = followed.watch.origins(task)
            if not origins or any(each.task in followed.constants for each in origins):
                continue
            if parameter.dim() <= 1 and all(each.how == "sum" and each.task == task for each in origins):
                continue  # a bias that the loss does not depend on, such as the last one of a Wasserstein critic
            zeros = [factor for each in origins for factor, count in followed.factors.get(each.task, ()) if not count()]
            stuck.update(zeros)
            left.append(
                (
                    key,
                    streak,
                    origins,
                    _SURE if zeros else max(_sure_of(each, followed, streak.is_since_start) for each in origins),
                )
            )
        for key, streak, origins, sure in left:
            if key in stuck or streak.count >= sure:
                found.setdefault((origins, streak.first), []).append(streak)
            else:
                streak.next_look = sure
        for (origins, _), streaks in found.items():
            self._report(followed, origins, streaks)

    def _report(self, followed: _Followed, origins: Sequence[ZeroOrigin], streaks: list[_Streak]) -> None:
        for streak in streaks:
            key = id(streak.parameter())
            self._reported.add(key)
            self._streaks.pop(key, None)
        name_of = self._training.watched.name_of
        names = [name for streak in streaks if (name := name_of(streak.parameter())) is not None]  # type: ignore[arg-type]
        first, last = streaks[0].first, streaks[0].last
        several = len(names) > 1
        task = followed.graph.tasks[origins[0].task]
        because = joined([describe_origin(followed.graph, each) for each in origins], 2)
        self._training.add(
            Finding(
                "zero gradient",
                first,
                f"The gradient{'s' if several else ''} of {joined(names)} {'are' if several else 'is'} all zero in "
                f"every step from {first} to {last}, so {'they are' if several else 'it is'} not trained: {because}. "
                f"What to do: {_advice(origins[0])}. ts.find_unused(make_loss, model) shows this for one loss.",
                module=followed.graph.module(task),
                tensor=names[0] if names else None,
                at=None if task.source is None else task.source.short,
                last_step=last,
            )
        )


def _sure_of(origin: ZeroOrigin, followed: _Followed, is_since_start: bool) -> int:
    """Return the number of consecutive steps after which zeros from this origin are reported."""
    if origin.cause in _BY_UNITS:
        return _SURE_OF_UNITS if is_since_start else _SURE_OF_DATA
    if origin.empty is not None or (origin.cause == "zero factor" and origin.task not in followed.by_data):
        return _SURE_OF_PARTS
    return _SURE_OF_DATA if origin.cause in _BY_DATA else _SURE


def _products(graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Return the tasks that multiply by a constant number, and those that multiply by another constant tensor."""
    constants: set[int] = set()
    by_data: set[int] = set()
    for task, node in zip(graph.tasks, graph.nodes, strict=True):
        if task.short_name in _PRODUCTS and any(child is None for child, _ in node.next_functions):
            is_number = task.short_name == "Mul" and all(each.tensor.numel() == 1 for each in saved_slots(node))
            (constants if is_number else by_data).add(task.id)
    return frozenset(constants), frozenset(by_data)


def _advice(origin: ZeroOrigin) -> str:
    if origin.cause == "flat":
        return "use a straight-through estimator, x + (x.round() - x).detach(), or a smooth function"
    if origin.cause == "dead":
        return "use a lower learning rate, another initialization, or an activation with a slope, such as nn.LeakyReLU"
    if origin.cause == "zero factor":
        return "initialize at most one of two multiplied factors with zeros (torch.nn.init), or check the mask"
    if origin.how == "sum":
        return "check the terms of the loss that cancel, or the hook"
    if origin.empty is not None:
        return "check how inputs are assigned to this module"
    return "check the values that reach this operation"
