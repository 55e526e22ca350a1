"""Finds parameters whose gradient is all zero in step after step, and the reason in the backward."""

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
from ...diagnose.find_unused import describe_origin
from ...diagnose.zero_gradients import State, ZeroOrigin, ZeroWatch
from ..findings import Finding
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..norm_watch import rate_of
from ..norms import TensorSquares
from ..training_result import Training

_SURE = 4  # steps in a row, before the one whose backward is looked at
_SURE_OF_DATA = 20  # if the data decide: a mask, padding
_LATER = 4  # times as many steps in a row before the next look
_MOST_NODES = 50_000  # of a graph that is looked at
_MOST_COUNTED = 2**20  # elements of a buffer or frozen parameter
_PRODUCTS = ("Mul", "Mm", "Bmm", "Addmm", "Baddbmm", "Convolution")
_MOST_IDLE = 64  # steps that are remembered until their norms have come
_SURE_OF_PARTS = 50  # if the forward decides: an expert that gets no tokens, a gate that is closed
_SURE_OF_UNITS = 6  # if units have been off since the first step
_BY_DATA = ("masked", "padding_idx", "ignore_index", "zero factor")
_BY_UNITS = ("dead", "outside")


@dataclass(slots=True)
class _Run:
    """Steps in a row in which a parameter's gradient was all zero.

    Attributes:
        first, last: the first and last step of them.
        count: how many.
        next_look: the count at which its backward is looked at.
        has_begun_at_once: whether it never had another gradient.
    """

    parameter: ReferenceType[Tensor]
    first: int
    last: int
    count: int
    next_look: int
    has_begun_at_once: bool


@dataclass(slots=True)
class _Watched:
    """A backward that is looked at.

    Attributes:
        leaves: by the id of a parameter its task.
        constants: tasks that multiply by a single number that has no gradient of its own.
        by_data: tasks that multiply by another tensor that has no gradient of its own.
        factors: the parameters and buffers that a task multiplies by, each as the parameter's id, or 0, and a function
            that counts its elements that are not zero.
        states: by the id of a parameter, whether its gradient has an element that is not zero after the backward.
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
    """Counts the steps in which a parameter's gradient is all zero, by the norms that are taken anyway.

    After some steps in a row, one forward is captured and its backward followed by hooks, which tell where the zeros
    begin. Zeros that the data decide have to last longer. A factor that is a single constant number, such as the weight
    of a loss that is switched on later, is intended.
    """

    def __init__(self) -> None:
        self._number = 0
        self._runs: dict[int, _Run] = {}
        self._had: dict[int, ReferenceType[Tensor] | None] = {}  # with another gradient than zeros; None: of no model
        self._told: set[int] = set()
        self._coming: deque[tuple[int, list[TensorSquares]]] = deque()
        self._in_step: dict[int, bool] = {}  # whether its gradient is zero after all backwards of the step so far
        self._step_of_these = 0
        self._capture = ExitStack()
        self._modes: int | None = None  # function modes that are open with the capture; None: it is not open
        self._watched: _Watched | None = None
        self._is_wanted = False
        self._has_moved = False  # whether an optimizer has stepped in this step, with a rate that is not 0
        self._idle_steps: deque[int] = deque(maxlen=_MOST_IDLE)  # in which none has
        self._versions: dict[int, int] = {}  # of the parameters with zeros, since the last step

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number
        self._has_moved = False
        self._is_wanted = any(each.count >= each.next_look for each in self._runs.values())
        if self._is_wanted and self._watched is None and self._modes is None and not function_modes_open():
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
        if not self._is_wanted or self._watched is not None:
            return
        outputs = [each for each in given[0] if isinstance(each, Tensor) and each.grad_fn is not None]
        names = dict(self._training.watched.parameters())
        graph = read_graph(outputs, names) if outputs else None
        if graph is None or len(graph) > _MOST_NODES:
            return
        wanted = {key for key, run in self._runs.items() if run.count >= run.next_look}
        leaves = {id(leaf): task for task, leaf in graph.leaves.items() if id(leaf) in wanted}
        if leaves:
            watch = ZeroWatch(graph)
            factors = self._factors(graph, watch.counts.of)
            self._watched = _Watched(self._number, graph, watch, leaves, *_products(graph), factors)
            watch.open()

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        if self._watched is not None and self._watched.step == self._number:
            self._watched.watch.close()
            runs = {key: self._runs.get(key) for key in self._watched.leaves}
            parameters = {key: run.parameter() for key, run in runs.items() if run is not None}
            state = self._watched.watch.counts.state
            self._watched.states = {key: state(each.grad) for key, each in parameters.items() if each is not None}
            self._watched.graph = replace(self._watched.graph, nodes=())  # which would keep the step's graph alive
            self._is_wanted = False
        taken = self._training.taken_norms
        if error is None and taken is not None:
            self._coming.append((self._number, taken.squares))

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._close_capture()
        self._versions, versions = {}, self._versions
        for key, version in versions.items():
            run = self._runs.get(key)
            parameter = None if run is None else run.parameter()
            if parameter is not None and version_of(parameter) != version:  # somebody else steps it: a hook took it
                self._told.add(key)
                del self._runs[key]

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._has_moved = self._has_moved or any(rate_of(group) != 0 for group in optimizer.param_groups)
        if self._runs:
            found = ((key, run.parameter()) for key, run in self._runs.items())
            self._versions = {key: version_of(each) for key, each in found if each is not None}

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        self._close_capture()

    def step_ends(self, number: int) -> None:
        self._close_capture()
        if not self._has_moved:
            self._idle_steps.append(number)
        self._read(number)
        watched = self._watched
        if self._is_wanted and watched is None:  # no backward of the step reached them
            for run in self._runs.values():
                if run.count >= run.next_look:
                    run.next_look *= _LATER
        # On an accelerator the numbers are read a step later, when its kernels have run.
        if watched is not None and (number > watched.step or not torch.accelerator.is_available()):
            self._watched = None
            self._take_up(watched)

    def ends(self) -> None:
        self._capture.close()
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.watch.close()
        self._runs.clear()
        self._coming.clear()

    def _read(self, number: int) -> None:
        """Take up the norms that have come."""
        while self._coming and all(each.squares.is_ready() for each in self._coming[0][1]):
            step, squares = self._coming.popleft()
            if step != self._step_of_these:
                self._count()
                self._step_of_these = step
            for tensors, values in squares:
                numbers = values.read()
                if not self._in_step and not self._runs and len(tensors) == len(self._had) and bool(numbers.all()):
                    continue
                for key, number in zip(tensors, numbers.tolist(), strict=True):
                    self._in_step[key] = not number and self._in_step.get(key, True)
        if self._step_of_these == number and not self._coming:
            self._count()

    def _count(self) -> None:
        """Count the parameters whose gradient was zero in a step."""
        in_step, self._in_step = self._in_step, {}
        if self._step_of_these in self._idle_steps:  # a factor of zeros had no chance to move
            return
        if self._had and all(in_step.values()):  # a margin loss that is satisfied, say
            return
        new = [key for key, is_zero in in_step.items() if is_zero and key not in self._runs]
        parameters: dict[int, Tensor] = {}
        if new or len(self._had) < len(in_step):
            parameters = {id(each): each for _, each in self._training.watched.parameters()}
        for key, is_zero in in_step.items():
            known = self._had.get(key)
            if not is_zero:
                self._runs.pop(key, None)
                if key not in self._had:
                    self._had[key] = ref(parameters[key]) if key in parameters else None
            elif key in self._runs:
                run = self._runs[key]
                run.last, run.count = self._step_of_these, run.count + 1
            elif key in parameters and key not in self._told:
                had = known is not None and known() is parameters[key]
                look = _SURE_OF_DATA if had else _SURE
                step = self._step_of_these
                self._runs[key] = _Run(ref(parameters[key]), step, step, 1, look, not had)

    def _factors(
        self, graph: Graph, count: Callable[[Tensor], Callable[[], int]]
    ) -> dict[int, list[tuple[int, Callable[[], int]]]]:
        """Return the models' own tensors that tasks multiply by, see `_Watched`: those that never move, if all zero.

        These are parameters without a gradient other than zeros, frozen ones, and buffers.
        """
        buffers = [each for _, module in self._training.watched.modules() for each in module.buffers(recurse=False)]
        own = [(0, each) for each in buffers if each.numel() <= _MOST_COUNTED]
        for _, each in self._training.watched.parameters():
            if id(each) in self._runs or (not each.requires_grad and each.numel() <= _MOST_COUNTED):
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

    def _take_up(self, watched: _Watched) -> None:
        """Report the parameters whose zeros have a reason that is not intended."""
        watched.watch.read()
        found: dict[tuple[tuple[ZeroOrigin, ...], int], list[_Run]] = {}
        left: list[tuple[int, _Run, tuple[ZeroOrigin, ...], int]] = []
        stuck: set[int] = set()  # parameters that are all zero, and by which other ones are multiplied
        for key, task in watched.leaves.items():
            run = self._runs.get(key)
            parameter = None if run is None else run.parameter()
            if run is None or parameter is None or key not in watched.states:
                continue
            run.next_look *= _LATER
            if watched.states[key]():  # not zero, but its square is
                continue
            origins = watched.watch.origins(task)
            if not origins or any(each.task in watched.constants for each in origins):
                continue
            if parameter.dim() <= 1 and all(each.how == "sum" and each.task == task for each in origins):
                continue  # a bias that the loss does not depend on, as the last one of a Wasserstein critic
            zeros = [factor for each in origins for factor, count in watched.factors.get(each.task, ()) if not count()]
            stuck.update(zeros)
            left.append(
                (
                    key,
                    run,
                    origins,
                    _SURE if zeros else max(_sure_of(each, watched, run.has_begun_at_once) for each in origins),
                )
            )
        for key, run, origins, sure in left:
            if key in stuck or run.count >= sure:
                found.setdefault((origins, run.first), []).append(run)
            else:
                run.next_look = sure
        for (origins, _), runs in found.items():
            self._tell(watched, origins, runs)

    def _tell(self, watched: _Watched, origins: Sequence[ZeroOrigin], runs: list[_Run]) -> None:
        for run in runs:
            key = id(run.parameter())
            self._told.add(key)
            self._runs.pop(key, None)
        name_of = self._training.watched.name_of
        names = [name for run in runs if (name := name_of(run.parameter())) is not None]  # type: ignore[arg-type]
        first, last = runs[0].first, runs[0].last
        several = len(names) > 1
        task = watched.graph.tasks[origins[0].task]
        because = joined([describe_origin(watched.graph, each) for each in origins], 2)
        self._training.add(
            Finding(
                "zero gradient",
                first,
                f"The gradient{'s' if several else ''} of {joined(names)} {'are' if several else 'is'} all zero in "
                f"every step from {first} to {last}, so {'they learn' if several else 'it learns'} nothing: {because}. "
                f"What to do: {_advice(origins[0])}. ts.find_unused(make_loss, model) shows this for one loss.",
                module=watched.graph.module(task),
                tensor=names[0] if names else None,
                at=None if task.source is None else task.source.short,
                last_step=last,
            )
        )


def _sure_of(origin: ZeroOrigin, watched: _Watched, has_begun_at_once: bool) -> int:
    """Return the number of steps in a row after which zeros from this origin are reported."""
    if origin.cause in _BY_UNITS:
        return _SURE_OF_UNITS if has_begun_at_once else _SURE_OF_DATA
    if origin.empty is not None or (origin.cause == "zero factor" and origin.task not in watched.by_data):
        return _SURE_OF_PARTS
    return _SURE_OF_DATA if origin.cause in _BY_DATA else _SURE


def _products(graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Return the tasks that multiply by one constant number, and those that multiply by another constant tensor."""
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
