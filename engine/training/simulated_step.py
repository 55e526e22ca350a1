"""A whole training step on tensors without bytes: two are run, since an optimizer makes its state in the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ...inspector.capture.capture import capture
from ...inspector.graph.capture_records import Operation
from ...inspector.graph.node_metadata import operation_of
from ...inspector.graph.phrases import joined, operation_title
from ...inspector.graph.source_lines import innermost_user_line
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.call_watchers import watching_modules
from ...inspector.torch_private.engine import current_node
from ...inspector.torch_private.fake_tensors import NEEDS_NUMBERS, unsupported_on_fakes
from ...inspector.torch_private.hooks import leaf_hooks, post_accumulate_hooks
from ...inspector.torch_private.operators import Operator, leaves_of
from ...inspector.torch_private.random_states import watching_states_taken
from ...inspector.validation import a_kind
from ..api.restore_state import AsFound, same_versions
from ..memory.estimates import Estimate
from ..memory.kernel_workspaces import STORES_UNKNOWN, TOO_LARGE, FakeKernels, KernelRun, kernel_run, name_of
from ..memory.lifetimes import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE
from .step_timeline import BACKWARD, FORWARD, OPTIMIZER, PhasePeak, StepTimeline, predicted_step
from .training_recipe import Recipe, model_on_fakes, refuse_wrapper

_CPU = torch.device("cpu")

Change = Callable[[nn.Module, Optimizer], object]

_GRAIN = {"cuda": 512}
"""The size to which the allocator rounds its blocks up, in bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""

_MOST_BYTES = 2**30
_MOST_BYTES_WHERE_SLOW = 2**26
_SLOW = "conv", "mkldnn", "slow_conv", "scaled_dot_product", "grid_sampler", "mm", "addmm", "bmm", "baddbmm"
"""What an operator that is run alone may come to, and one that does much with each byte: larger ones are told from
smaller batches."""

_TAKE_NOTHING = frozenset(
    (
        *("_local_scalar_dense", "_record_function_enter_new", "_record_function_exit", "lift_fresh", "set_data"),
        *("uniform_", "normal_", "randn", "rand", "randint", "randperm", "bernoulli_", "random_", "exponential_"),
        *("randn_like", "rand_like", "randint_like", "bernoulli", "native_dropout", "native_dropout_backward"),
        *("eye", "linspace", "one_hot", "multinomial", "isnan", "isinf", "nonzero_static", "trunc_normal_"),
    )
)
"""Operators whose kernels allocate what they return and nothing else, and which are not run alone: they draw numbers,
or are none."""
_MANY_AT_ONCE = ("_foreach_", "_fused_")  # an optimizer's, on lists of tensors: one kernel after the other, in place

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
_READ_BY_BLAS = (torch.float32, torch.float64)
"""Dtypes for which the workspace of products follows from the layouts of the matrices, see `FakeKernels`."""


@dataclass(frozen=True, slots=True)
class Workspaces:
    """The workspace of each kernel in two steps, by its position among the calls; None if unknown.

    Attributes:
        size: of the batch.
        nbytes: by call.
    """

    size: int
    nbytes: Sequence[int | None]


class FakeTraining(FakeKernels):  # type: ignore[no-untyped-call]
    """Fake operations under which a program trains. Storages of all devices are noted.

    Args:
        learned: of two smaller batches what kernels took; larger ones are on a line with these.
        size: of the batch; None: not known.

    Attributes:
        workspaces: what each kernel takes, as in `Workspaces`.
    """

    grad = True

    def __init__(self, learned: Sequence[Workspaces] = (), size: int | None = None) -> None:
        super().__init__(_CPU)
        self.workspaces: list[int | None] = []
        self.failed_in: Node | None = None  # the node in whose backward an operation wanted numbers
        self._learned, self._size = learned, size
        self._elsewhere: dict[int, torch.device] = {}  # the device of each storage that is not on the CPU
        self._states: set[int] = set()  # storages of random states: on the CPU wherever the model is

    def is_noted(self, device: torch.device) -> bool:
        return True

    def sizes_on(self, device: torch.device, memory: torch.device) -> list[int]:
        """Bytes that each storage on this device would occupy of such memory; 0 for storages on other devices."""
        grain = _GRAIN.get(memory.type, 1)
        left_out = set() if memory == _CPU else self._states
        return [
            -(-nbytes // grain) * grain if self._elsewhere.get(number, _CPU) == device and number not in left_out else 0
            for number, nbytes in enumerate(self.nbytes)
        ]

    def note_state(self, state: Tensor) -> None:
        """Notes a state of a random generator, which a checkpoint keeps: no fake is made of it."""
        self._note(state)
        self._states.add(self.number(state))

    def _note(self, tensor: Tensor) -> None:
        first = len(self.nbytes)
        super()._note(tensor)
        if tensor.device != _CPU:
            self._elsewhere.update((number, tensor.device) for number in range(first, len(self.nbytes)))

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.lift_fresh.default:  # a number of torch.tensor(0.0): fakes know some of them
            result = operator(*args)
            self._note(result)
            return result
        try:
            result = super().__torch_dispatch__(operator, types, args, kwargs)
        except NEEDS_NUMBERS:
            self.failed_in = current_node()
            raise
        for each in leaves_of(result):
            if isinstance(each, Tensor):
                expect_built(each.device)
        return result

    def kernel_run(
        self, operator: Operator, args: Any, kwargs: Any, results: Sequence[Tensor]
    ) -> KernelRun | str | None:
        name = name_of(operator)
        found: KernelRun | str | None = None
        if name in _PRODUCTS and results[0].dtype in _READ_BY_BLAS and results[0].device == _CPU:
            pass
        elif name not in _TAKE_NOTHING and not name.startswith(_MANY_AT_ONCE):
            most = _MOST_BYTES_WHERE_SLOW if name.lstrip("_").startswith(_SLOW) else _MOST_BYTES
            found = kernel_run(operator, args, kwargs, results, most)
        if found is TOO_LARGE:
            found = self._from_smaller()
        known = not isinstance(found, str)
        self.workspaces.append((found.workspace_bytes if isinstance(found, KernelRun) else 0) if known else None)
        return found

    def _from_smaller(self) -> KernelRun | str:
        """Return the workspace of the current operator, extrapolated from two smaller batches."""
        if len(self._learned) < 2 or self._size is None:
            return TOO_LARGE
        call = len(self.workspaces)
        (small, first), (large, second) = (
            (each.size, each.nbytes[call] if call < len(each.nbytes) else None) for each in self._learned
        )
        if first is None or second is None:
            return TOO_LARGE
        return KernelRun(max(0, first + (second - first) * (self._size - small) // (large - small)), ())


def expect_built(device: torch.device) -> None:
    """Refuses fakes of an accelerator that this build of torch is not for: their first backward ends the process.

    Raises:
        NotImplementedError: it is none that it was built for.
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
    """Simulate two steps and return the second, in which the optimizer already has its state.

    Attributes:
        timeline: its memory.
        device: whose memory.
        too_large: whether kernels were too large to be run alone, and nothing told of them.
        estimates: why the figures are estimates; empty if nothing is known to be missing.
        workspaces: what kernels took.
        flops: additions and multiplications of both steps; 0 unless they were counted.
    """

    timeline: StepTimeline
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
    """Runs two steps on fake tensors; nothing of the model is allocated.

    Args:
        recipe: what to train with.
        learned: see `FakeTraining`.
        micro_batches: how many forwards and backwards a step has.
        change: is given model and optimizer before the first step, and may change them.
        count: counts the arithmetic of products, convolutions and attention (torch.utils.flop_counter), which keeps
            some tensors for longer: then `flops` alone is right.

    Raises:
        NotImplementedError: the program asks for a number, or for a shape that depends on numbers; it runs what torch
            can't run on fake tensors; it trains on a device that this torch was not built for, with an optimizer that
            wants a closure, or with tensors that compute by themselves (DTensor).
        TypeError, ValueError: what the functions of the recipe give is none of what they are to give.
        Exception: what the program raises.
    """
    fakes = FakeTraining(learned, recipe.size)
    counter = FlopCounterMode(display=False) if count else None
    states = watching_states_taken(fakes.note_state)
    with as_found(recipe), fakes, states, counter or nullcontext(), watching_modules(refuse_wrapper):
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
            raise NotImplementedError(_unfakeable(error, operation)) from error
    try:
        raise NotImplementedError(_sentence(needed, "" if node is None else _place_of(recipe, change))) from needed
    finally:
        del needed  # else it would hold itself through this frame


@contextmanager
def as_found(recipe: Recipe) -> Iterator[None]:
    """Keep the objects that the recipe's functions refer to as they are, without fake tensors in them."""
    world = AsFound(recipe.loss_of, "ts.fits", also=(recipe.make_model, recipe.make_batch, recipe.make_optimizer))
    with world, world.run(), same_versions(world.carried.tensors):
        yield


def _place_of(recipe: Recipe, change: Change | None) -> str:
    """Return the forward's place of the task in which the backward ended: runs two steps again, under a capture."""
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
    """A model and its optimizer on fakes, while these are open."""

    def __init__(self, recipe: Recipe, fakes: FakeTraining, change: Change | None) -> None:
        model = model_on_fakes(recipe, fakes)
        parameters = [each for each in model.parameters() if each.requires_grad]
        if not parameters:
            raise ValueError(
                "make_model() gave a model without parameters that require gradients: expected one to train"
            )
        try:
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
            raise NotImplementedError("LBFGS runs forward and backward itself, as often as it likes: not predicted")
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
            raise TypeError(f"make_batch() returned {a_kind(batches[0])} without a tensor in it; expected a batch")
        self._recipe.refuse_unsized(batches[0])
        with torch.autograd.set_detect_anomaly(False):  # anomaly mode asks fake gradients whether they are NaN
            for _ in range(2):  # the first step allocates the optimizer's state; the second one is steady
                fakes.workspaces.clear()
                self._starts.clear()
                self._step(batches)
        self._name(BATCH, tree_leaves(batches))
        self._name(BUFFERS, self._model.buffers())
        self._name(PARAMETERS, self._model.parameters())
        self._name(STATE, tree_leaves(list(self._optimizer.state.values())))
        device = next((each.device for each in self._model.parameters()), _CPU)
        memory = self._recipe.device or device
        sizes = fakes.sizes_on(device, memory)
        timeline = predicted_step(str(memory), fakes.events, sizes, self._starts, self._kinds)
        too_large = any(why is TOO_LARGE for why, _ in fakes.unknown)
        return FakeStep(timeline, memory, too_large, tuple(_reasons(fakes)), tuple(fakes.workspaces))

    def _step(self, batches: Sequence[Any]) -> None:
        fakes = self._fakes
        self._optimizer.zero_grad()
        for batch in batches:
            self._enter(FORWARD)
            first = len(fakes.nbytes)
            self._loss = self._recipe.loss_of(self._model, batch)  # as in a loop, the one before is alive until then
            _expect_loss(self._loss)
            self._kinds.update((each, ACTIVATIONS) for each in fakes.alive() if each >= first)
            self._enter(BACKWARD)
            self._loss.backward()  # type: ignore[no-untyped-call]
            _expect_gradients(self._model)
        self._name(GRADIENTS, (each.grad for each in self._model.parameters()))
        self._enter(OPTIMIZER)
        self._optimizer.step()

    def _enter(self, phase: str) -> None:
        self._starts.append((phase, len(self._fakes.events)))

    def _name(self, kind: str, values: Iterable[object]) -> None:
        """The storages of these tensors are of this category."""
        numbers = (self._fakes.number(each) for each in values if isinstance(each, Tensor))
        self._kinds.update((number, kind) for number in numbers if number >= 0)


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
            "loss_of(model, batch) returned a loss in which no parameter of `model` is; it has to use its argument, a "
            "model on fake tensors: lambda model, batch: criterion(model(batch[0]), batch[1])"
        )


def _expect_loss(loss: object) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_of(model, batch) returned {a_kind(loss)}; expected the loss, a tensor")
    if loss.numel() != 1:
        raise ValueError(f"loss_of(model, batch) returned a tensor of shape {tuple(loss.shape)}; expected one element")


def _reasons(fakes: FakeTraining) -> Iterable[Estimate]:
    """Why it is not all known."""
    names: dict[str, list[str]] = {}
    for why, name in fakes.unknown:
        names.setdefault(why, []).append(name)
    for why, found in names.items():
        named = f"{joined(found[:3])}{' and others' * (len(found) > 3)}"
        if why is STORES_UNKNOWN:
            yield Estimate(f"the bytes of sparse tensors (made by {named}) are not counted: {why}", "at least")
            continue
        yield Estimate(f"the workspace of the kernels of {named} is unknown: {why}", "at least")


def _sentence(error: Exception, place: str) -> str:
    """Return the sentence about a value that fake tensors lack, with its line; `place`: of a backward's operation."""
    line = innermost_user_line(frame for frame in extract_tb(error.__traceback__) if not _is_ours(frame.filename))
    where = "" if line is None or place else f"{line.short}: "
    operator = str(error).removeprefix("aten.").partition(".")[0]
    what = (
        "a number of a tensor, as .item() does"
        if "scalar_dense" in operator
        else f"as many elements as {operator} finds"
    )
    return (
        f"{where}{place or 'the program'} asks for {what}, and fake tensors have no numbers. Give ts.fits a version "
        "without it, or measure a step that fits with ts.profile"
    )


def _unfakeable(error: Exception, operation: str) -> str:
    """Return the sentence about an operation that does not run on fake tensors, with its line."""
    frames = extract_tb(error.__traceback__)
    line = innermost_user_line(frame for frame in frames if not _is_ours(frame.filename))
    steps = any(Path(frame.filename).is_relative_to(_OPTIMIZERS) for frame in frames)
    where = "in the optimizer's step: " if steps else "" if line is None else f"{line.short}: "
    return (
        f"{where}ts.fits trains on fake tensors, on which {operation} does not run; few operations on sparse, nested, "
        "quantized and MKL-DNN tensors do, and torch.cond and its like do not. Give ts.fits a version without it (of "
        "nn.Embedding one with sparse=False), or measure a step with ts.profile_step"
    )


_OPTIMIZERS = Path(torch.optim.__file__).parent


def _is_ours(filename: str) -> bool:
    return any(Path(filename).is_relative_to(folder) for folder in _OURS)


_OURS = Path(__file__).parents[1], Path(__file__).parents[2] / "inspector"
