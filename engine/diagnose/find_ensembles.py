"""Finds ensembles in a forward: modules of equal structure, none of which depends on another one's result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from keyword import iskeyword
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.compiler import is_dynamo_compiling

from ...inspector.capture.gradient_cuts import Dataflow, Taken, follow
from ...inspector.graph.graph import Graph
from ...inspector.graph.operation_inputs import argument_names, names_by_place
from ...inspector.graph.operations_and_calls import CallRecord, Operation
from ...inspector.graph.phrases import joined
from ...inspector.text.sizes_and_counts import shape_text
from ...inspector.torch_private.hooks import leaf_hooks, post_accumulate_hooks
from ...inspector.torch_private.random_states import accelerators_awake, random_states
from ...inspector.torch_private.tensors import StorageBytes, storage_of, version_of
from ...inspector.torch_private.thread_state import functorch_is_active, without_torch_function
from ..api.make_loss import MakeLoss, loss_of
from .output_combination import Combination, combination_of
from .similar_modules import CallLog, Family, class_name, families_of, folded_paths, structure

How = Literal["shared", "sliced", "stacked", "plain"]


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """One argument of the members.

    Attributes:
        name: an identifier for it in the code.
        keyword: the keyword used by the forward; None if it was passed by position.
        how: "shared": all members get the same tensor. "sliced": each gets a slice of one tensor, which is `value` with
            the member as its first dimension. "stacked": each gets a separate tensor; `value` lists them in order.
            "plain": the argument is not a tensor and is equal for all.
        value: detached copies of the values passed by the forward.
        requires_grad: whether it requires a gradient.
    """

    name: str
    keyword: str | None
    how: How
    value: Any
    requires_grad: bool = False

    def of(self, member: int) -> Any:
        """Return the value passed to one member."""
        return self.value[member] if self.how in ("sliced", "stacked") else self.value


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """Members that can be called as one, with their inputs in the forward.

    Attributes:
        members: the modules in the order of their calls.
        paths: their module paths relative to `root`; empty if `root` is None.
        root: the module that contains them; None if they were called outside any module.
        arguments: their arguments.
        combination: the operation that combines their outputs.
        gradients: the gradient of each member's output.
        ranges: for each member's call, the sequence numbers of the nodes that it created.
        differing: names of plain attributes that are not equal in all members.
        more: paths of similar ensembles, such as `layers.*.attention`.
    """

    members: tuple[nn.Module, ...]
    paths: tuple[str, ...]
    root: nn.Module | None
    arguments: tuple[Argument, ...]
    combination: Combination
    gradients: tuple[Tensor, ...]
    ranges: tuple[tuple[int, int], ...]
    differing: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.members)

    @property
    def title(self) -> str:
        """`16 × members.*`."""
        return _title(self.members, self.paths)


@dataclass(frozen=True, slots=True)
class RefusedEnsemble:
    """Modules that look like an ensemble, with the reason why they cannot be called as one."""

    title: str
    why: str


@dataclass(slots=True, eq=False)
class _Taken:
    """The inputs and the output of one member's call in the second forward."""

    names: tuple[str, ...] = ()
    values: list[object] = field(default_factory=list)
    keywords: tuple[str, ...] = ()
    depends: int = 0  # a bit set with one bit per leaf
    before: _State | None = None
    output: object = None
    end_of: tuple[Node | None, int] = (None, 0)  # the output's node then; a later write in place replaces it
    gradients: list[Tensor] = field(default_factory=list)  # the output's gradient, once the backward has run
    refused: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """A copy of a tensor passed to a member."""

    tensor: Tensor
    requires_grad: bool
    storage: StorageBytes | None
    version: int
    offset: int
    stride: tuple[int, ...]


def find_ensembles(
    make_loss: MakeLoss, log: CallLog, drawn: Graph, model: nn.Module | None, backward: Callable[[Tensor], object]
) -> tuple[list[Ensemble], list[RefusedEnsemble]]:
    """Look for ensembles among the modules that a first forward called; run a second forward and its backward.

    Members are modules of one class that compute matrix products and are called from the same place: within one call
    of a module, or outside any. A member's input must not depend on another member's parameters, not even through a
    detach. To find out, the forward is traced as in `ts.find_unused`.

    Args:
        make_loss: runs the same forward as the first one.
        log: the module calls of the first forward.
        drawn: its graph, read before its backward.
        model: the module that names the others; None: the first called module that contains them.
        backward: runs the backward of a loss. The caller restores .grad and random number generators.
    """
    families = list(families_of(log, drawn, model))
    if not families:
        return [], []
    leaves = list(drawn.leaves.values())
    with _Follower(families, model).watched(leaves) as follower:
        loss = loss_of(make_loss())
        follower.note_written()
    second = follower.graph(loss)
    backward(loss)
    found: list[Ensemble] = []
    refused: list[RefusedEnsemble] = []
    for family in families:
        if any(_within(family, ensemble) for ensemble in found):
            continue
        for each in follower.ensembles_of(family, second):
            (found if isinstance(each, Ensemble) else refused).append(each)  # type: ignore[arg-type]
    return found, refused


def _within(family: Family, ensemble: Ensemble) -> bool:
    outer = set(ensemble.members)
    call = family.calls[0].parent
    while call is not None:
        if call.module in outer:
            return True
        call = call.parent
    return False


_PLAIN = (bool, int, float, str, type(None))


class _Follower:
    """Traces a forward and records the inputs and outputs of the members of families."""

    def __init__(self, families: Sequence[Family], model: nn.Module | None) -> None:
        self._families = families
        self._model = model
        self._wanted: dict[tuple[nn.Module, int], _Taken] = {
            (call.module, call.index): _Taken() for family in families for call in family.calls
        }
        self._counts: Counter[nn.Module] = Counter()
        self._copies: dict[tuple[int, int], tuple[Tensor, _Copy]] = {}
        self._bits: list[int] = []
        self._flow: Dataflow | None = None
        self._leaves: dict[int, int] = {}
        self._zeros_added: set[int] = set()

    @contextmanager
    def watched(self, leaves: Sequence[Tensor]) -> Iterator[_Follower]:
        self._leaves = {id(leaf): number for number, leaf in enumerate(leaves)}
        modules = dict.fromkeys(module for module, _ in self._wanted)
        with ExitStack() as stack:
            self._flow = stack.enter_context(follow(self._model, leaves, self._note_zeros))
            for module in modules:
                before = module.register_forward_pre_hook(self._entered, with_kwargs=True)
                after = module.register_forward_hook(self._left, with_kwargs=True, prepend=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            yield self

    def _note_zeros(self, made: Operation | CallRecord, result: object, arguments: Sequence[object]) -> None:
        if not isinstance(made, Operation) or made.name != "torch.Tensor.add":
            return
        if any(isinstance(each, int | float) and each == 0 for each in arguments):
            self._zeros_added.add(made.start)

    def _entered(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if functorch_is_active() or is_dynamo_compiling():
            return
        taken = self._wanted.get((module, self._counts[module]))
        if taken is None:
            return
        with without_torch_function():
            names = names_by_place(argument_names(type(module).forward), len(args) + 1)[1:]
            taken.names, taken.keywords = (*names, *kwargs), tuple(kwargs)
            values = [*args, *kwargs.values()]
            taken.depends = self._depends(values)
            taken.values = [self._copy(value) if isinstance(value, Tensor) else value for value in values]
            taken.before = _State.of(module, values)

    def _left(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        if functorch_is_active() or is_dynamo_compiling():
            return
        index = self._counts[module]
        self._counts[module] += 1
        taken = self._wanted.get((module, index))
        if taken is None:
            return
        with without_torch_function():
            if taken.before is not None:
                taken.refused = taken.before.refused(_State.of(module, [*args, *kwargs.values()]))
            taken.output = output
            if isinstance(output, Tensor) and output.requires_grad:
                taken.end_of = output.grad_fn, output.output_nr
                # The hook holds only the list: `taken` refers to the output, which would then keep itself alive.
                output.register_hook(partial(_keep, taken.gradients))  # type: ignore[no-untyped-call]

    def _copy(self, value: Tensor) -> _Copy:
        key = id(value), version_of(value)
        if key not in self._copies:
            with torch.no_grad():
                copy = value.detach().clone()
            self._copies[key] = (
                value,
                _Copy(
                    copy, value.requires_grad, storage_of(value), key[1], int(value.storage_offset()), value.stride()
                ),
            )
        return self._copies[key][1]

    def _depends(self, values: Iterable[object]) -> int:
        """Return, as bits, the leaves that these tensors depend on."""
        assert self._flow is not None
        bits = 0
        for value in values:
            if isinstance(value, Tensor):
                steps = [step for step, _ in self._flow.steps_of(Taken.now(value))]
                for number in range(len(self._bits), len(self._flow.steps)):
                    own = 1 << number if number < len(self._leaves) else 0
                    for taken, _ in self._flow.steps[number].takes:
                        own |= self._bits[taken]
                    self._bits.append(own)
                for step in steps:
                    bits |= self._bits[step]
        return bits

    def note_written(self) -> None:
        """Release the tensors of the finished forward, keeping only the copies of the members' inputs."""
        self._copies = {key: (copy.tensor, copy) for key, (_, copy) in self._copies.items()}
        self._flow = None

    def graph(self, loss: Tensor) -> Graph:
        from ...inspector.capture.build_graph import read_graph

        self._second = read_graph(loss)
        self._tasks = {node: task for task, node in enumerate(self._second.nodes)}
        return self._second

    def ensembles_of(self, family: Family, drawn: Graph) -> Iterator[Ensemble | RefusedEnsemble]:
        """Yield the ensembles of a family, or the reasons why it has none."""
        title = _title([call.module for call in family.calls], family.paths)
        taken = [self._wanted[call.module, call.index] for call in family.calls]
        calls = Counter(call.module for call in family.calls)
        most = max(calls.values())
        levels = self._levels(family, taken)
        if len(levels) == len(family.calls):
            if len({structure(call.module) for call in family.calls}) < len(family.calls):
                yield RefusedEnsemble(title, "each uses the result of another one, so they have to run one by one")
            return
        if most > 1:
            modules = list(dict.fromkeys(call.module for call in family.calls))
            title = _title(modules, tuple(dict.fromkeys(family.paths)))
            yield RefusedEnsemble(title, f"a member is called {most:,} times in one forward; each must be called once")
            return
        for level in levels:
            alike: dict[Hashable, list[int]] = {}
            for number in level:
                alike.setdefault(structure(family.calls[number].module), []).append(number)
            if len(level) > 1 and len(alike) == len(level):
                yield RefusedEnsemble(title, _unequal([family.calls[number].module for number in level]))
            for numbers in alike.values():
                if len(numbers) > 1:
                    yield self._ensemble(family, numbers, [taken[number] for number in numbers], drawn)

    def _levels(self, family: Family, taken: Sequence[_Taken]) -> list[list[int]]:
        """Return the calls by level: calls of one level do not depend on each other."""
        own = [
            sum(1 << number for each in call.module.parameters() if (number := self._leaves.get(id(each))) is not None)
            for call in family.calls
        ]
        level: list[int] = []
        for number, each in enumerate(taken):
            after = [level[other] + 1 for other in range(number) if each.depends & own[other] & ~own[number]]
            level.append(max(after, default=0))
        return [[number for number, at in enumerate(level) if at == depth] for depth in range(max(level) + 1)]

    def _ensemble(
        self, family: Family, numbers: Sequence[int], taken: Sequence[_Taken], drawn: Graph
    ) -> Ensemble | RefusedEnsemble:
        members = tuple(family.calls[number].module for number in numbers)
        paths = tuple(family.paths[number] for number in numbers) if family.paths else ()
        title = _title(members, paths)
        why = _reason(members) or next((each.refused for each in taken if each.refused), None)
        if why is not None:
            return RefusedEnsemble(title, why)
        if any(each.before is None for each in taken):
            return RefusedEnsemble(
                title,
                "the second forward does not call these modules, because make_loss creates a new model or branches "
                "differently. Create the model once, outside make_loss",
            )
        arguments = _arguments(taken)
        if isinstance(arguments, str):
            return RefusedEnsemble(title, arguments)
        outputs: list[Tensor] = []
        for each in taken:
            if not isinstance(each.output, Tensor):
                what = type(each.output).__name__
                return RefusedEnsemble(
                    title, f"a member returns a {what}; only members that return one tensor can be stacked"
                )
            outputs.append(each.output)
        if len({(each.shape, each.dtype) for each in outputs}) > 1:
            shapes = joined(list(dict.fromkeys(shape_text(each.shape) for each in outputs)))
            return RefusedEnsemble(title, f"the members return tensors of different shapes: {shapes}")
        if not all(each.gradients for each in taken):
            return RefusedEnsemble(title, "a member's output gets no gradient from the loss")
        ends = [
            (None if node is None else self._tasks.get(node), output)
            for node, output in (each.end_of for each in taken)
        ]
        # One member's forward, which runs for all, would use only its own values of these attributes.
        differing: dict[str, None] = {}
        for (name, first), *others in zip(*(member.named_modules() for member in members), strict=True):
            for attribute, value in vars(first).items():
                if isinstance(value, _PLAIN) and any(vars(other).get(attribute) != value for _, other in others):
                    differing[f"{name}.{attribute}" if name else attribute] = None
        return Ensemble(
            members,
            paths,
            family.root,
            arguments,
            combination_of(drawn, ends, self._zeros_added),
            tuple(each.gradients[-1] for each in taken),
            tuple((call.start, call.end) for call in (family.calls[number] for number in numbers)),
            tuple(differing),
            family.more,
        )


def _keep(into: list[Tensor], gradient: Tensor) -> None:
    into.append(gradient.detach())


def _title(members: Sequence[nn.Module], paths: Sequence[str]) -> str:
    name = folded_paths(paths) if paths else class_name(members[0])
    return f"{len(members):,} × {name}"


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """State that a member's call must not change: its buffers, its inputs, and the random number generators."""

    buffers: tuple[tuple[str, int, int], ...]
    inputs: tuple[int, ...]
    random: tuple[Tensor, ...]

    @staticmethod
    def of(module: nn.Module, values: Iterable[object]) -> _State:
        return _State(
            tuple((name, id(each), version_of(each)) for name, each in module.named_buffers()),
            tuple(version_of(each) for each in values if isinstance(each, Tensor)),
            tuple(random_states(accelerators_awake()).values()),
        )

    def refused(self, after: _State) -> str | None:
        """Return why a call that changed this state into `after` cannot be merged with others; None if it can."""
        written = [name for (name, *was), (_, *now) in zip(self.buffers, after.buffers, strict=False) if was != now]
        if written or len(self.buffers) != len(after.buffers):
            what = f"the buffer {written[0]!r}" if written else "a buffer"
            return f"a member's forward writes {what}, as BatchNorm does in training; these writes would be lost"
        if self.inputs != after.inputs:
            return "a member modifies its input in place, which others may use too"
        if not all(map(torch.equal, self.random, after.random)):
            return (
                'a member draws random numbers, as Dropout does in training. Under vmap (randomness="different") the '
                "numbers differ, so the results cannot be compared; use eval() mode"
            )
        return None


def _reason(members: Sequence[nn.Module]) -> str | None:
    """Return why these members cannot be called as one, whatever their inputs; None if they can."""
    owners: dict[int, int] = {}
    for number, member in enumerate(members):
        for name, module in member.named_modules():
            if any(getattr(module, kind, None) for kind in _HOOKS):
                where = f"{class_name(module)} {name!r} of a member" if name else "a member"
                return f"{where} has hooks, which would be called for all members at once"
        for name, parameter in member.named_parameters():
            if leaf_hooks(parameter) or post_accumulate_hooks(parameter):
                return f"the parameter {name!r} of a member has hooks, which the stacked parameter would not have"
            if owners.setdefault(id(parameter), number) != number:
                return f"members share the parameter {name!r}; stacking would copy it for each"
    return None


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _unequal(members: Sequence[nn.Module]) -> str:
    """Return why modules of one class cannot be stacked."""
    first = dict(members[0].named_parameters())
    for member in members[1:]:
        for name, parameter in member.named_parameters():
            if name in first and parameter.shape != first[name].shape:
                shapes = f"{shape_text(first[name].shape)} and {shape_text(parameter.shape)}"
                grouped = ""
                if hasattr(nn.functional, "grouped_mm") and parameter.dtype != torch.float64:
                    grouped = "; torch.nn.functional.grouped_mm can run their products as one if only one size differs"
                return f"the members' parameters have different shapes: {name} is {shapes}{grouped}"
    return "the members have different submodules, modes, dtypes or devices"


def _arguments(taken: Sequence[_Taken]) -> tuple[Argument, ...] | str:
    """Return the members' arguments, or why they cannot be passed at once."""
    first = taken[0]
    if any((len(each.values), each.keywords) != (len(first.values), first.keywords) for each in taken):
        return "the members are called with different arguments"
    found = []
    by_place = len(first.values) - len(first.keywords)
    tensors = sum(isinstance(value, _Copy) for value in first.values)
    for place, name in enumerate(first.names):
        values = [each.values[place] for each in taken]
        keyword = first.keywords[place - by_place] if place >= by_place else None
        alone = tensors == 1 and isinstance(values[0], _Copy) and (name == "input" or not _usable(name))
        known = "x" if alone else name if _usable(name) else f"input_{place}"
        made = _argument(known, keyword, values)
        if isinstance(made, str):
            return made
        found.append(made)
    return tuple(found)


def _argument(name: str, keyword: str | None, values: Sequence[object]) -> Argument | str:
    copies = [value for value in values if isinstance(value, _Copy)]
    if len(copies) < len(values):
        if copies or any(isinstance(value, list | tuple | dict | set) for value in values):
            return f"the argument {name!r} is neither a tensor nor a plain value"
        try:
            equal = all(value is values[0] or bool(value == values[0]) for value in values[1:])
        except Exception:  # a user's __eq__ may raise anything
            equal = False
        if not equal:
            return f"the members get different values for {name!r}"
        return Argument(name, keyword, "plain", values[0])
    first = copies[0]
    wants = first.requires_grad and (first.tensor.is_floating_point() or first.tensor.is_complex())
    if all(each is first or _is_same(each, first) for each in copies):
        return Argument(name, keyword, "shared", first.tensor, wants)
    if len({(each.tensor.shape, each.tensor.dtype, each.tensor.device) for each in copies}) > 1:
        shapes = joined(list(dict.fromkeys(shape_text(each.tensor.shape) for each in copies)), most=8)
        grouped = " (torch.nn.functional.grouped_mm takes them)" if hasattr(nn.functional, "grouped_mm") else ""
        return (
            f"the members get tensors of different shapes for {name!r}: {shapes}. One product needs equal shapes: pad "
            f"them, or use a product of unequal rows{grouped}"
        )
    if len({each.requires_grad for each in copies}) > 1:
        return f"some members' {name!r} requires a gradient, and others' does not"
    # The tensors may be consecutive parts of one tensor, as returned by x.unbind(0) and x.chunk(n).
    storages = {(each.storage, each.version, each.stride) for each in copies}
    steps = {after.offset - before.offset for before, after in pairwise(copies)}
    is_even = len(storages) == 1 and copies[0].storage is not None and len(steps) == 1 and min(steps) > 0
    how: How = "sliced" if is_even else "stacked"
    tensors = [each.tensor for each in copies]
    return Argument(name, keyword, how, torch.stack(tensors) if how == "sliced" else tensors, wants)


def _is_same(one: _Copy, other: _Copy) -> bool:
    """Return whether two copies are of the same bytes."""
    where = [(each.storage, each.version, each.offset, each.stride, each.tensor.shape) for each in (one, other)]
    return one.storage is not None and where[0] == where[1]


_TAKEN_NAMES = (
    *("members", "member", "parameters", "buffers", "batched", "outputs", "model", "torch", "name"),
    *("functional_call", "stack_module_state"),
)


def _usable(name: str) -> bool:
    """Return whether an argument's name can be used in the code without clashing with the code's names."""
    return name.isidentifier() and not iskeyword(name) and name not in _TAKEN_NAMES
