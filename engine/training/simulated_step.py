"""Simulation of a training step on fake tensors. It runs two, since the first one allocates the optimizer's state."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from ...inspector.capture.capture import capture
from ...inspector.graph.node_metadata import operation_of
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.graph.phrases import joined, operation_title
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.call_watchers import watching_modules
from ...inspector.torch_private.engine import current_node, in_backward
from ...inspector.torch_private.fake_tensors import NEEDS_NUMBERS, step_without_compiler, unsupported_on_fakes
from ...inspector.torch_private.hooks import leaf_hooks, post_accumulate_hooks
from ...inspector.torch_private.operators import Operator, leaves_of, operator_named, span, zeros_shared
from ...inspector.torch_private.random_states import watching_states_taken
from ...inspector.torch_private.saved_variables import saved_slots
from ...inspector.torch_private.sequence_numbers import number_of, sequence_nr, youngest_first
from ...inspector.torch_private.tensors import View, is_fake
from ...inspector.validation import a_kind
from ..api.restore_state import AsFound, same_versions
from ..memory.categories import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE
from ..memory.estimates import Estimate
from ..memory.kernel_workspaces import STORES_UNKNOWN, TOO_LARGE, FakeKernels, KernelRun, kernel_run, name_of
from .step_memory import BACKWARD, FORWARD, OPTIMIZER, PhasePeak, StepTimeline, predicted_step
from .training_recipe import Recipe, model_on_fakes, numbers_sentence, refuse_wrapper, unfakeable_sentence

_CPU = torch.device("cpu")

Change = Callable[[nn.Module, Optimizer], object]

_GRAIN = {"cuda": 512}
"""The size to which the allocator rounds its blocks up, in bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""

_MOST_BYTES = 2**30
_MOST_BYTES_WHERE_SLOW = 2**26
_SLOW = "conv", "mkldnn", "slow_conv", "scaled_dot_product", "grid_sampler", "mm", "addmm", "bmm", "baddbmm"
"""The largest total of arguments and results with which an operator is run alone, in bytes, and the same for operators
that compute much with each byte, not counting bytes between elements. Workspaces of larger ones are extrapolated from
smaller batches."""

_TAKE_NOTHING = frozenset(
    (
        *("_local_scalar_dense", "_record_function_enter_new", "_record_function_exit", "lift_fresh", "set_data"),
        *("uniform_", "normal_", "randn", "rand", "randint", "randperm", "bernoulli_", "random_", "exponential_"),
        *("randn_like", "rand_like", "randint_like", "bernoulli", "native_dropout", "native_dropout_backward"),
        *("eye", "linspace", "one_hot", "multinomial", "isnan", "isinf", "nonzero_static", "trunc_normal_"),
    )
)
"""Operators that are not run alone, because they draw random numbers or have no kernel. They allocate only their
results."""
_MANY_AT_ONCE = ("_foreach_", "_fused_")  # optimizers' operators on lists of tensors, which work in place

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
_READ_BY_BLAS = (torch.float32, torch.float64)
"""Dtypes for which the workspace of products follows from the layouts of the matrices, see `FakeKernels`."""


def rounded(nbytes: int, device: torch.device) -> int:
    """Return the bytes that the device's allocator takes for a storage."""
    grain = _GRAIN.get(device.type, 1)
    return -(-nbytes // grain) * grain


@dataclass(frozen=True, slots=True)
class Workspaces:
    """The workspace of each kernel in two steps, by its position among the calls; None if unknown.

    Attributes:
        size: the batch size.
        nbytes: the bytes of each call.
    """

    size: int
    nbytes: Sequence[int | None]


_NUMBERS = int, float, complex


class FakeTraining(FakeKernels):  # type: ignore[no-untyped-call]
    """Fake operations for a whole training step. Storages of all devices are recorded.

    Args:
        learned: the workspaces of two smaller batches, from which those of large kernels are extrapolated.
        size: the batch size; None if it is not known.

    Attributes:
        workspaces: the workspace of each kernel, as in `Workspaces`.
        names: by storage, the operation that allocated it, with its module: `mm in layers.0`.
        modules: the path of each module, by its id.
        has_assumed_values: whether the optimizer read a value that is not known.
    """

    grad = True

    def __init__(self, learned: Sequence[Workspaces] = (), size: int | None = None) -> None:
        super().__init__(_CPU)
        self.workspaces: list[int | None] = []
        self.names: list[str] = []
        self.modules: dict[int, str] = {}
        self._calls: list[str] = []  # paths of the modules under way, outermost first
        self._path_of: dict[int, str] = {}  # by sequence number of an operation's node: its module
        self.failed_in: Node | None = None  # the node in whose backward an operation wanted numbers
        self._learned, self._size = learned, size
        self._is_stepping = False
        self.has_assumed_values = False
        self._elsewhere: dict[int, torch.device] = {}  # the device of each storage that is not on the CPU
        self._on_cpu: set[int] = set()  # storages of random states and numbers: on the CPU wherever the model is
        self._after_numbers: dict[
            int, int
        ] = {}  # by sequence number of an operation's node: the place of the next event

    def is_noted(self, device: torch.device) -> bool:
        return True

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Know the optimizer's counts, and assume the other values that it reads: they scale its update."""
        self._is_stepping = True
        try:
            with super().stepping():
                yield
        finally:
            self._is_stepping = False

    def sizes_on(self, device: torch.device, memory: torch.device) -> list[int]:
        """Return the bytes of each storage that is in `memory` if this device's tensors are; 0 for the others."""
        left_out = set() if memory == _CPU else self._on_cpu
        return [
            nbytes if self._elsewhere.get(number, _CPU) == device and number not in left_out else 0
            for number, nbytes in enumerate(self.nbytes)
        ]

    def module_begins(self, module: nn.Module, given: object) -> None:
        """Enter a module, whose operations are named after it. Refuse wrappers."""
        self._calls.append(self.modules.get(id(module), ""))  # `module_ends` is called even if this raises
        refuse_wrapper(module)

    def module_ends(self, module: nn.Module, given: object, result: object) -> None:
        self._calls.pop()

    def note_state(self, state: Tensor) -> None:
        """Record the state of a random generator that a checkpoint saves; it is a real tensor."""
        self._note(state)
        self._name_new("state of a random generator")
        self._on_cpu.add(self.number(state))

    def note_saved_numbers(self, loss: Tensor) -> None:
        """Record the Python numbers that nodes of this forward saved as tensors: `x * 2` saves 8 bytes.

        A mode sees only the number; its tensor is a real one. It counts from the end of its operation on, as the
        operation's workspace includes it.
        """
        roots = [] if loss.grad_fn is None else [loss.grad_fn]
        for number, node in youngest_first(roots) if self._after_numbers else ():
            if (event := self._after_numbers.get(number)) is None:
                continue
            for slot in saved_slots(node):
                if slot.tensor.dim() == 0 and not is_fake(slot.tensor) and self.number(slot.tensor) < 0:
                    self._note(slot.tensor)
                    self._name_new("Python number")
                    self._on_cpu.add(self.number(slot.tensor))
                    self.events.insert(event, self.events.pop())  # places of older nodes do not move
        self._after_numbers.clear()

    def _note(self, tensor: Tensor) -> None:
        first = len(self.nbytes)
        super()._note(tensor)
        if tensor.device != _CPU:
            self._elsewhere.update((number, tensor.device) for number in range(first, len(self.nbytes)))

    def _name_new(self, operation: str) -> None:
        """Name the storages that were allocated since the last call after an operation and its module."""
        if new := len(self.nbytes) - len(self.names):
            node = current_node()
            path = self._path_of.get(number_of(node), "") if node is not None else (self._calls or [""])[-1]
            self.names += [f"{operation} in {path}" if path else operation] * new

    def call(self, operator: Any, args: Any, kwargs: Any) -> Any:
        if operator is torch.ops.aten.lift_fresh.default:  # a number of torch.tensor(0.0): fakes know some of them
            result = operator(*args)
            self._note(result)
            self._name_new("tensor")
            return result
        try:
            result = super().call(operator, args, kwargs)
        except NEEDS_NUMBERS:
            if self._is_stepping and operator is _VALUE and (assumed := _assumed(args[0])) is not None:
                self.has_assumed_values = True
                return assumed
            self.failed_in = current_node()
            raise
        for each in leaves_of(result):
            if isinstance(each, Tensor):
                expect_built(each.device)
        self._name_new(name_of(operator) if isinstance(operator, Operator) else str(operator))
        if torch.is_grad_enabled() and not in_backward():
            number = sequence_nr() - 1
            if self._calls:
                self._path_of[number] = self._calls[-1]
            if any(isinstance(each, _NUMBERS) for each in args):
                self._after_numbers[number] = len(self.events)
        return result

    def kernel_run(
        self, operator: Operator, args: Any, kwargs: Any, results: Sequence[Tensor]
    ) -> KernelRun | str | None:
        name = name_of(operator)
        found: KernelRun | str | None = None
        if name in _PRODUCTS and results[0].dtype in _READ_BY_BLAS and results[0].device == _CPU:
            pass
        elif name.startswith(_MANY_AT_ONCE):
            found = _with_number(operator, args)
        elif name not in _TAKE_NOTHING:
            most = _MOST_BYTES
            if name.lstrip("_").startswith(_SLOW):
                tensors = [each for each in leaves_of((args, kwargs, results)) if isinstance(each, Tensor)]
                gaps = sum(max(span(View.of(each)) - each.numel(), 0) * each.element_size() for each in tensors)
                most = _MOST_BYTES_WHERE_SLOW + gaps
            found = kernel_run(operator, args, kwargs, results, most)
        if found is TOO_LARGE:
            found = self._from_smaller(operator)
        known = not isinstance(found, str)
        self.workspaces.append((found.workspace_bytes if isinstance(found, KernelRun) else 0) if known else None)
        return found

    def _from_smaller(self, operator: Operator) -> KernelRun | str:
        """Return the workspace of the current operator, extrapolated from two smaller batches."""
        if len(self._learned) < 2 or self._size is None:
            return TOO_LARGE
        call = len(self.workspaces)
        # A workspace grows linearly with the batch, unless the kernel uses another algorithm for another size.
        (small, first), (large, second) = (
            (each.size, each.nbytes[call] if call < len(each.nbytes) else None) for each in self._learned
        )
        if first is None or second is None:
            return TOO_LARGE
        self.unknown[EXTRAPOLATED, name_of(operator)] = None
        return KernelRun(max(0, first + (second - first) * (self._size - small) // (large - small)), ())


EXTRAPOLATED = "extrapolated from smaller batches, as it is too large to be measured"

_VALUE = torch.ops.aten._local_scalar_dense.default


def _assumed(tensor: Tensor) -> float | bool | None:
    """Return a value for a tensor without one; None for integers, on which shapes could depend."""
    return True if tensor.dtype is torch.bool else 1.0 if tensor.is_floating_point() else None


def _with_number(operator: Operator, args: Any) -> KernelRun | str | None:
    """Return the workspace of an operator on a list of tensors and a number, which becomes a tensor for each of them.

    On the CPU it is the operator on one tensor, called for each. Others work in place on their arguments.
    """
    if operator._schema.overload_name not in ("Scalar", "ScalarList") or len(args) != 2 or not args[0]:
        return None
    single = operator_named(f"aten.{name_of(operator).removeprefix('_foreach_')}.Scalar")
    tensor, number = args[0][0], args[1][0] if isinstance(args[1], list | tuple) else args[1]
    return None if single is None else kernel_run(single, (tensor, number), {}, [tensor])


def expect_built(device: torch.device) -> None:
    """Refuse fake tensors on a device that this torch was not built for: their first backward ends the process.

    Raises:
        NotImplementedError: torch was not built for the device.
    """
    if device.type == "cuda" and not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise NotImplementedError(_ELSEWHERE.format(device))


_NOT_BUILT = "PyTorch is not linked with support for"
_ELSEWHERE = (
    "the model or its batch is put on {}, for which this torch was not built: a backward would end the process. Make "
    'them on the CPU, and give ts.fits device="cuda"'
)


@dataclass(frozen=True, slots=True)
class FakeStep:
    """The second of two simulated steps, in which the optimizer already has its state.

    Attributes:
        timeline: the memory over the step.
        exact_bytes: the size of each block of the timeline, before the allocator rounds it up.
        device: the device of that memory.
        too_large: whether the workspace of a kernel is unknown because it was too large to be run alone.
        estimates: the reasons why the figures are estimates; empty if nothing is known to be missing.
        workspaces: the workspace of each kernel.
        flops: additions and multiplications of both steps; 0 unless they were counted.
    """

    timeline: StepTimeline
    exact_bytes: Sequence[int]
    device: torch.device
    too_large: bool
    estimates: tuple[str, ...]
    workspaces: Sequence[int | None]
    flops: int = 0

    @property
    def phases(self) -> tuple[PhasePeak, ...]:
        """The peaks of forward, backward and optimizer."""
        return self.timeline.peaks

    @property
    def peak_bytes(self) -> int:
        """The highest of the three."""
        return self.timeline.peak_bytes


def fake_step(
    recipe: Recipe,
    *,
    learned: Sequence[Workspaces] = (),
    micro_batches: int = 1,
    change: Change | None = None,
    count: bool = False,
) -> FakeStep:
    """Run two steps on fake tensors and return the second; nothing of the model is allocated.

    Args:
        recipe: model, batch, optimizer and loss.
        learned: see `FakeTraining`.
        micro_batches: the number of forwards and backwards in a step.
        change: a function that may change model and optimizer before the first step.
        count: count the arithmetic of products, convolutions and attention (torch.utils.flop_counter). This keeps some
            tensors alive for longer, so that only `flops` is right.

    Raises:
        NotImplementedError: the program asks for a number outside the optimizer, or for a shape that depends on
            numbers; it runs what torch can't run on fake tensors; it trains on a device that this torch was not built
            for, with an optimizer that wants a closure, or with tensors that compute by themselves (DTensor).
        TypeError, ValueError: a function of the recipe returns something unexpected.
        Exception: errors of the program.
    """
    fakes = FakeTraining(learned, recipe.size)
    counter = FlopCounterMode(display=False) if count else None
    states = watching_states_taken(fakes.note_state)
    modules = watching_modules(fakes.module_begins, fakes.module_ends)
    with as_found(recipe), zeros_shared(), fakes, states, counter or nullcontext(), modules:
        try:
            step = _Trained(recipe, fakes, change).steps(micro_batches)
            return step if counter is None else replace(step, flops=counter.get_total_flops())
        except NEEDS_NUMBERS as error:
            needed, node = error, fakes.failed_in
        except (RuntimeError, AssertionError) as error:
            if _NOT_BUILT in str(error):
                raise NotImplementedError(_ELSEWHERE.format("an accelerator")) from error
            if (operation := unsupported_on_fakes(error)) is None:
                raise
            raise NotImplementedError(unfakeable_sentence(error, operation)) from error
    try:
        raise NotImplementedError(
            numbers_sentence(needed, "" if node is None else _place_of(recipe, change))
        ) from needed
    finally:
        del needed  # breaks a reference cycle through this frame


@contextmanager
def as_found(recipe: Recipe) -> Iterator[None]:
    """Keep the objects that the recipe's functions refer to as they are, without fake tensors in them."""
    world = AsFound(recipe.loss_of, "ts.fits", also=(recipe.make_model, recipe.make_batch, recipe.make_optimizer))
    with world, world.run(), same_versions(world.carried.tensors):
        yield


def _place_of(recipe: Recipe, change: Change | None) -> str:
    """Return the forward operation in whose backward the step failed, as text. Run the steps again, under a capture."""
    fakes = FakeTraining((), recipe.size)
    with as_found(recipe), fakes, suppress(*NEEDS_NUMBERS), capture(every_call=True):
        _Trained(recipe, fakes, change).steps(1)
    operation = None if fakes.failed_in is None else operation_of(fakes.failed_in)
    if fakes.failed_in is None or not isinstance(operation, Operation):
        return ""
    module = operation.call.full_path if operation.call is not None else ""
    where = ", ".join(filter(None, (module, operation.source.short if operation.source is not None else "")))
    return f"the backward of {operation_title(operation.name)}{f' ({where})' if where else ''}"


class _Trained:
    """A model and its optimizer on fake tensors, inside their mode."""

    def __init__(self, recipe: Recipe, fakes: FakeTraining, change: Change | None) -> None:
        model = model_on_fakes(recipe, fakes)
        fakes.modules = {id(module): path for path, module in model.named_modules()}
        parameters = [each for each in model.parameters() if each.requires_grad]
        if not parameters:
            raise ValueError(
                "make_model() returned a model without parameters that require gradients; expected a model to train"
            )
        try:
            with fakes.stepping():
                optimizer = recipe.make_optimizer(parameters)
        except (AttributeError, TypeError) as error:  # as of `lambda model: Adam(model.parameters())`
            error.add_note(
                "tapescope: make_optimizer gets the list of the model's parameters, not the model: "
                "lambda parameters: torch.optim.Adam(parameters, 1e-3)"
            )
            raise
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"make_optimizer(...) returned {a_kind(optimizer)}; expected a torch.optim.Optimizer")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise NotImplementedError(
                "LBFGS runs forward and backward an unknown number of times, so its step cannot be predicted"
            )
        _expect_own(optimizer, parameters)
        if change is not None:
            change(model, optimizer)
        self._recipe, self._fakes, self._model, self._optimizer = recipe, fakes, model, optimizer
        self._loss: Tensor | None = None
        self._kinds: dict[int, str] = {}
        self._starts: list[tuple[str, int]] = []

    def steps(self, micro_batches: int) -> FakeStep:
        fakes = self._fakes
        batches = [self._recipe.batch() for _ in range(micro_batches)]
        if not any(isinstance(each, Tensor) for each in tree_leaves(batches)):
            one = ", such as next(iter(loader))" if isinstance(batches[0], DataLoader) else ""
            raise TypeError(f"make_batch() returned {a_kind(batches[0])} without a tensor in it; expected a batch{one}")
        self._recipe.refuse_unsized(batches[0])
        with torch.autograd.set_detect_anomaly(False):  # anomaly mode asks fake gradients whether they are NaN
            for _ in range(2):  # the first step allocates the optimizer's state; the second one is steady
                fakes.workspaces.clear()
                self._starts.clear()
                self._step(batches)
        self._name(BATCH, (("batch", each) for each in tree_leaves(batches)))
        self._name(BUFFERS, self._model.named_buffers())
        self._name(PARAMETERS, self._model.named_parameters())
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        for parameter, state in self._optimizer.state.items():
            of, parts = (
                names.get(id(parameter), "other parameters"),
                state.items() if isinstance(state, Mapping) else (),
            )
            self._name(STATE, (("state", each) for each in tree_leaves(state)))
            self._name(STATE, ((f"{key} of {of}", each) for key, part in parts for each in tree_leaves(part)))
        device = next((each.device for each in self._model.parameters()), _CPU)
        memory = self._recipe.device or device
        sizes = fakes.sizes_on(device, memory)
        timeline = predicted_step(str(memory), fakes.events, sizes, self._starts, self._kinds, fakes.names)
        exact, taken = timeline.nbytes, array("q", (rounded(each, memory) for each in timeline.nbytes))
        timeline = replace(timeline, nbytes=taken)
        too_large = any(why is TOO_LARGE for why, _ in fakes.unknown)
        return FakeStep(
            timeline, exact, memory, too_large, tuple(_reasons(fakes, self._optimizer)), tuple(fakes.workspaces)
        )

    def _step(self, batches: Sequence[Any]) -> None:
        fakes = self._fakes
        self._optimizer.zero_grad()
        for batch in batches:
            self._enter(FORWARD)
            first = len(fakes.nbytes)
            self._loss = self._recipe.loss_of(self._model, batch)  # as in a loop, the previous loss is alive until then
            _expect_loss(self._loss)
            fakes.note_saved_numbers(self._loss)
            self._kinds.update((each, ACTIVATIONS) for each in fakes.alive() if each >= first)
            self._enter(BACKWARD)
            self._loss.backward()  # type: ignore[no-untyped-call]
            _expect_gradients(self._model)
        self._name(GRADIENTS, ((f"{name}.grad", each.grad) for name, each in self._model.named_parameters()))
        self._enter(OPTIMIZER)
        with fakes.stepping():
            step_without_compiler(self._optimizer)()

    def _enter(self, phase: str) -> None:
        self._starts.append((phase, len(self._fakes.events)))

    def _name(self, kind: str, values: Iterable[tuple[str, object]]) -> None:
        """Give the storages of these tensors their category and their names."""
        for name, value in values:
            if isinstance(value, Tensor) and (number := self._fakes.number(value)) >= 0:
                self._kinds[number] = kind
                self._fakes.names[number] = name


def _expect_own(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    own = set(map(id, parameters))
    others = [each for group in optimizer.param_groups for each in group["params"] if id(each) not in own]
    if others:
        raise ValueError(
            f"make_optimizer(parameters) returned an optimizer of {counted(len(others), 'parameter')} that it was not "
            "given; it has to use its argument, the parameters of a model on fake tensors: "
            "lambda parameters: torch.optim.Adam(parameters, 1e-3)"
        )


def _expect_gradients(model: nn.Module) -> None:
    """Raise if the loss is of another model. A hook may have consumed the gradients."""
    parameters = list(model.parameters())
    if not any(each.grad is not None or leaf_hooks(each) or post_accumulate_hooks(each) for each in parameters):
        raise ValueError(
            "loss_of(model, batch) returned a loss that depends on no parameter of `model`; it has to use its "
            "argument, a model on fake tensors: lambda model, batch: criterion(model(batch[0]), batch[1])"
        )


def _expect_loss(loss: object) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_of(model, batch) returned {a_kind(loss)}; expected the loss, a tensor")
    if loss.numel() != 1:
        raise ValueError(f"loss_of(model, batch) returned a tensor of shape {tuple(loss.shape)}; expected one element")


def _reasons(fakes: FakeTraining, optimizer: Optimizer) -> Iterable[Estimate]:
    """Return the reasons why the figures are estimates."""
    if fakes.has_assumed_values:
        name = type(optimizer).__name__
        yield Estimate(f"{name} reads values of tensors in its step, as .item() does; 1 is assumed for each", "unknown")
    names: dict[str, list[str]] = {}
    for why, name in fakes.unknown:
        names.setdefault(why, []).append(name)
    for why, found in names.items():
        named = f"{joined(found[:3])}{' and others' * (len(found) > 3)}"
        if why is STORES_UNKNOWN:
            yield Estimate(f"the bytes of sparse tensors (made by {named}) are not counted: {why}", "at least")
            continue
        if why is EXTRAPOLATED:
            yield Estimate(f"the workspace of the kernels of {named} is {why}", "unknown")
            continue
        yield Estimate(f"the workspace of the kernels of {named} is unknown: {why}", "at least")
