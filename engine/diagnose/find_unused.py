"""`ts.find_unused`: finds parameters without a gradient and the place where the path from the loss to them ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import UninitializedParameter

from ...inspector.capture.build_graph import read_graph
from ...inspector.capture.gradient_cuts import Cut, Dataflow, Taken, follow
from ...inspector.graph.graph import Graph, module_name
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.graph.phrases import joined, operation_title
from ...inspector.graph.source_lines import Place, Source, source_at
from ...inspector.text.progress import telling
from ...inspector.text.report import ShownAsFindings
from ...inspector.text.sizes_and_counts import counted, nth
from ...inspector.torch_private.compiled import keep_compiler_out, uncompiled
from ...inspector.torch_private.distributed import is_fully_sharded, sharded_parameters
from ...inspector.validation import a_kind
from ..api.make_loss import MakeLoss, expect_make_loss, loss_of
from ..api.restore_state import AsFound
from ..schedule.ddp_buckets import nothing_reduced
from .zero_gradients import Arrived, ZeroOrigin, arrived_at, describe_origin

Why = Literal["never used", "not seen", "path cut", "led nowhere", "no gradient", "zero gradient"]

CUTS = {
    Cut.FROZEN: "{operation} used it while its requires_grad was False",
    Cut.DETACH: "{operation} detaches its result from the graph",
    Cut.DATA: "{operation} detaches it from the graph",
    Cut.PYTHON: "{operation} converts its result to Python numbers, which autograd cannot track",
    Cut.COPY: "{operation} copies its values without the graph (torch.stack and torch.cat keep it)",
    Cut.GRADIENT: "{operation} returns gradients without a graph; pass create_graph=True to train through them",
    Cut.INTEGER: "{operation} returns integers or booleans, which have no gradient",
    Cut.INFERENCE: "{operation} runs under torch.inference_mode()",
    Cut.NO_GRAD: "{operation} runs under torch.no_grad(){off}",
    Cut.ALIAS: "{writer} writes outside the graph, through .data or a detached tensor, and {operation} reads it",
    Cut.FUNCTION: "{operation} marks its result as not differentiable",
    Cut.OTHER: "{operation} does not propagate a gradient to it",
}
"""The sentence for each way in which a path is cut."""

_SHOWN = {
    "torch.Tensor.data.__get__": ".data",
    "torch.Tensor.data.__set__": ".data =",
    "torch.Tensor.__setitem__": "tensor[...] =",
    "torch.Tensor.__bool__": "bool()",
    "torch.Tensor.__float__": "float()",
    "torch.Tensor.__int__": "int()",
    "torch.Tensor.__index__": "int()",
    "torch.Tensor.__array__": "numpy.asarray()",
}
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_NAMES = 3  # parameters named in a row of the table, and cuts in a sentence
_PARTIAL = {Cut.DETACH, Cut.DATA, Cut.COPY, Cut.NO_GRAD, Cut.INFERENCE}  # the others are common in correct programs


@dataclass(frozen=True, slots=True)
class UnusedParameter:
    """A parameter that gets no gradient, or a gradient of zeros.

    Attributes:
        name: the parameter's name in the model.
        also: its other names, if it is shared.
        shape: its shape; None for a nested tensor or an uninitialized parameter of a lazy module.
        why: the kind of reason. "never used": no operation used it. "not seen": no recorded operation used it. "path
            cut": a result of it is in the loss or was converted to Python numbers, but the path between them does not
            propagate gradients. "led nowhere": no result of it is in the loss. "no gradient" and "zero gradient": it is
            in the graph, and this is the result of a backward.
        story: the explanation, in a sentence.
        cut: how the path is cut.
        operation, module, source: the operation where the path ends, its module and its line. For "led nowhere" it is
            the last operation. None if unknown.
        task: the id of the task where the zeros start, if the parameter is in the graph.
        origins: the tasks where a missing or zero gradient starts, if the parameter is in the graph.
        calls: how many times its module ran, if the parameter was never used.
    """

    name: str
    also: tuple[str, ...]
    shape: tuple[int, ...] | None
    why: Why
    story: str
    cut: Cut | None = None
    operation: str | None = None
    module: str | None = None
    source: Source | None = None
    task: int | None = None
    origins: tuple[ZeroOrigin, ...] = ()
    calls: int | None = None


@dataclass(frozen=True, slots=True)
class PathCut:
    """A place where one of several paths from the loss to some parameters is cut: their gradient lacks a part.

    Attributes:
        story: the explanation, in a sentence.
        cut: how the path is cut.
        operation, module, source: the operation that cuts it, its module and its line; None if unknown.
    """

    story: str
    cut: Cut
    operation: str | None
    module: str | None
    source: Source | None


@dataclass(frozen=True, eq=False, repr=False)
class UnusedReport(ShownAsFindings):
    """The parameters that get no gradient from a loss, with reasons, displayed as a table in a notebook.

    The report is true if there are any: `assert not ts.find_unused(make_loss, model)`.

    Attributes:
        parameters: the parameters without a gradient, in the model's order.
        count: the number of the model's parameters that require gradients; shared ones count once.
        frozen: the names of parameters with `requires_grad=False`, which are not examined.
        graph: the loss's graph without its nodes; None if the loss has no graph.
        is_sharded: whether parameters of the model are under `fully_shard` (FSDP2).
        unread: the reason for each parameter whose gradient cannot be read and so may be zero.
        cuts: the places where a path to parameters with a gradient is cut by a detach, `.data`, a copy, no_grad or
            inference_mode. They may be intended, so the report is not true because of them.
    """

    parameters: tuple[UnusedParameter, ...]
    count: int
    frozen: tuple[str, ...]
    graph: Graph | None
    is_sharded: bool = False
    unread: Mapping[str, str] = field(default_factory=dict)
    cuts: tuple[PathCut, ...] = ()

    def __len__(self) -> int:
        return len(self.parameters)

    def __iter__(self) -> Iterator[UnusedParameter]:
        return iter(self.parameters)

    def __getitem__(self, name: str) -> UnusedParameter:
        """Return the entry of a parameter.

        Raises:
            KeyError: if the parameter gets a gradient, or the model has no parameter of this name.
        """
        for parameter in self.parameters:
            if name == parameter.name or name in parameter.also:
                return parameter
        raise KeyError(f"{name!r} is not among the parameters without a gradient")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters without a gradient, in the model's order."""
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The table's content in sentences."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if not self.count:
            yield "The model has no parameter that requires a gradient."
        elif not self.parameters:
            gets = "The parameter gets" if self.count == 1 else f"All {self.count:,} parameters get"
            yield f"{gets} a gradient."
        elif self._none_takes_part():
            yield (
                f"None of this model's {self.count:,} parameters takes part in the loss. Check that it is the model "
                "that make_loss calls."
            )
        else:
            gets = "gets" if len(self) == 1 else "get"
            yield f"{len(self):,} of {counted(self.count, 'parameter')} {gets} no gradient, or one of zeros."
        if self.unread:
            it = "it" if len(self.unread) == 1 else "they"
            yield (
                f"The {'gradient' if len(self.unread) == 1 else 'gradients'} of {joined(list(self.unread))} cannot be "
                f"read, so {it} may be zero ({'; '.join(dict.fromkeys(self.unread.values()))})."
            )
        if self.cuts:
            more = f"; {len(self.cuts) - _NAMES:,} more" if len(self.cuts) > _NAMES else ""
            paths, them = ("One path is", "it") if len(self.cuts) == 1 else (f"{len(self.cuts):,} paths are", "them")
            yield (
                f"{paths} cut, and parameters behind {them} get the gradient of their other paths only: "
                f"{'; '.join(cut.story for cut in self.cuts[:_NAMES])}{more}."
            )
        if self.frozen:
            yield f"{counted(len(self.frozen), 'parameter')} with requires_grad=False left out: {joined(self.frozen)}."
        if self._none_takes_part():
            return
        if self.parameters and self.graph is None:
            yield "The loss has no graph at all: a backward from it raises."
        elif unreached := [each for each in self.parameters if each.why not in ("no gradient", "zero gradient")]:
            if len(unreached) == self.count:
                yield "All of them are outside the graph, so a backward from this loss does not train the model."
                return
            which = "the one" if len(unreached) == 1 else f"the {len(unreached):,}"
            if self.is_sharded:
                yield (
                    f"With {which} outside the graph, fully_shard reduces only the others. All ranks must omit the "
                    "same ones, or call model.set_reduce_scatter_unused_params(True) to reduce zeros for them."
                )
                return
            yield (
                f"With {which} outside the graph, DistributedDataParallel needs find_unused_parameters=True; "
                "otherwise its next forward raises."
            )

    def _none_takes_part(self) -> bool:
        everything = self.graph is not None and len(self) == self.count
        return everything and all(each.why == "never used" for each in self.parameters)

    @cached_property
    def cells(self) -> list[list[str]]:
        """Return the table as rows of text, the headings first. Parameters with the same explanation share a row."""
        rows: dict[tuple[str, str], list[str]] = {}
        for each in self.parameters:
            rows.setdefault((each.why, each.story), []).append(" = ".join((each.name, *each.also)))
        return [
            ["parameter", "why", "what happened"],
            *([joined(names, _NAMES), why, story] for (why, story), names in rows.items()),
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per parameter, for `pandas.DataFrame(report.records())`."""
        return [
            {
                "parameter": each.name,
                "also": ", ".join(each.also),
                "shape": each.shape,
                "why": each.why,
                "story": each.story,
                "cut": each.cut and each.cut.value,
                "operation": each.operation,
                "module": each.module,
                "source": each.source and each.source.short,
                "task": each.task,
            }
            for each in self.parameters
        ]

    __repr__ = ShownAsFindings.__str__


def find_unused(make_loss: MakeLoss, model: nn.Module) -> UnusedReport:
    """Find the parameters that get no gradient from a loss, and the place where the path to each of them ends.

    The forward is traced to find all values that depend on a parameter, even where autograd does not track them: after
    a detach, an argmax, or under no_grad. Then a backward of the loss shows the gradients of the parameters that are in
    its graph.

    No .grad changes. Random number generators and tensors that the program modifies (a BatchNorm's running statistics)
    are restored, see `AsFound`. Tensor hooks run in the backward. Hooks that need .grad run only if the graph has a
    reentrant checkpoint. DistributedDataParallel does not reduce and does not expect this backward to be finished, so
    each rank can call this alone.

    Args:
        make_loss: a function that runs the forward and returns the loss, one element.
        model: the module whose parameters are examined.

    Known limitations: operations inside a custom Function or a scripted module are not traced, and compiled regions run
    uncompiled. Values converted to Python numbers are not traced, so the report cannot say whether they reach the loss.

    Raises:
        TypeError: if `make_loss` cannot be called or does not return a tensor, or `model` is not a module.
        ValueError: if the loss has more than one element.
    """
    expect_make_loss(make_loss, "ts.find_unused")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {a_kind(model)}")
    gathered = _gathered(model)
    names: dict[Tensor, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        names.setdefault(gathered.get(id(each), each), []).append(name)
    with (
        telling(None, "looking for gradients") as tell,
        AsFound(make_loss, "ts.find_unused") as world,
        nothing_reduced(),
    ):
        tell("a forward that records writes in place")
        world.watch(backward=False)
        tell("a traced forward and its backward")
        with world.run(), uncompiled():  # including the backward: a checkpoint must recompute its forward as it ran
            with follow(model, names) as flow:
                loss = loss_of(world.make_loss())
                ends = [step for step, _ in flow.steps_of(Taken.now(loss))]
            drawn = read_graph(loss, {of[0]: each for each, of in names.items()}) if loss.requires_grad else None
            wanted = [parameter for parameter in flow.parameters if parameter.requires_grad]
            with world.watched():
                arrived = [Arrived(None)] * len(wanted) if drawn is None else arrived_at(loss, drawn, wanted)
    inside = set() if drawn is None else set(map(id, drawn.leaves.values()))
    without = {id(each): come for each, come in zip(wanted, arrived, strict=True) if not come.state}
    paths = _Paths(flow, ends, [id(each) in without and id(each) not in inside for each in flow.parameters])
    modules = _Modules(model, flow)
    found = []
    for number, parameter in enumerate(flow.parameters):
        name, *also = names[parameter]
        if (come := without.get(id(parameter))) is None:
            continue
        shapeless = isinstance(parameter, UninitializedParameter) or parameter.is_nested
        label = (name, tuple(also), None if shapeless else tuple(parameter.shape))
        if drawn is not None and id(parameter) in inside:
            found.append(_of_graph(label, drawn, come))
        else:
            found.append(modules.replaced(label, paths.story(number, label)) or modules.never_used(label))
    frozen = tuple(names[parameter][0] for parameter in flow.parameters if not parameter.requires_grad)
    return UnusedReport(
        tuple(found),
        len(wanted),
        frozen,
        drawn and replace(drawn, nodes=()),
        any(map(is_fully_sharded, model.modules())),
        {names[each][0]: come.unread for each, come in zip(wanted, arrived, strict=True) if come.unread},
        paths.partial([id(each) in inside for each in flow.parameters]),
    )


keep_compiler_out(find_unused)


def _gathered(model: nn.Module) -> dict[int, Tensor]:
    """Return the graph's leaf for the `id` of each shard of `fully_shard` (FSDP2) in the model.

    Raises:
        NotImplementedError: if no forward has run yet; the first one creates the leaves.
    """
    own = set(map(id, model.parameters()))
    found = {id(each.shard): each.gathered for each in sharded_parameters() if id(each.shard) in own}
    if None in found.values():
        raise NotImplementedError(
            "fully_shard creates the leaves of the graph in the model's first forward; run a forward before "
            "ts.find_unused"
        )
    return {shard: leaf for shard, leaf in found.items() if leaf is not None}


_Label = tuple[str, tuple[str, ...], tuple[int, ...] | None]
"""The name, other names and shape of a parameter."""


@dataclass(frozen=True, slots=True)
class _CutAt:
    """A step at which the path to some parameters is cut."""

    parameters: int  # a bit set
    number: int
    taken: int  # the step whose result it used
    how: Cut


class _Paths:
    """The ends of the paths of parameters that are not in the graph."""

    def __init__(self, flow: Dataflow, ends: Sequence[int], wanted: Sequence[bool]) -> None:
        self._steps = flow.steps
        self._cuts: list[_CutAt] = []
        self._ends: list[tuple[int, int]] = []  # parameters, as bits, and the last step that depends on them
        self._follow(wanted)
        self._in_loss = set(ends)
        self._python: dict[int, int] = {}  # by step, the step that converts its result to Python numbers
        for number in range(len(flow.steps) - 1, -1, -1):
            if flow.steps[number].to_python:
                self._python[number] = number
            for taken, _ in flow.steps[number].takes:
                if number in self._in_loss:
                    self._in_loss.add(taken)
                if number in self._python:
                    self._python[taken] = self._python[number]

    def _follow(self, wanted: Sequence[bool]) -> None:
        # Bits per step: the requested parameters that a gradient of the step's result could reach. Each is freed
        # after the last step that uses it, because it is long for many parameters.
        carried: dict[int, int] = {}
        last = {taken: number for number, step in enumerate(self._steps) for taken, _ in step.takes}
        goes_on = set(range(len(wanted)))
        for number, step in enumerate(self._steps):
            for taken, cut in step.takes:
                bits = wanted[taken] << taken if taken < len(wanted) else carried.get(taken, 0)
                if not bits:
                    continue
                if cut is None:
                    carried[number] = carried.get(number, 0) | bits
                    goes_on.add(taken)
                else:
                    self._cuts.append(_CutAt(bits, number, taken, cut))
            for done in {taken for taken, _ in step.takes if last[taken] == number} | ({number} - last.keys()):
                bits = carried.pop(done, 0)
                if bits and done not in goes_on:
                    self._ends.append((bits, done))

    def story(self, parameter: int, label: _Label) -> UnusedParameter | None:
        """Return the end of a parameter's path; None if no operation used it."""
        bit = 1 << parameter
        cuts = [cut for cut in self._cuts if cut.parameters & bit]
        in_loss = [cut for cut in cuts if cut.number in self._in_loss]
        to_python = [cut for cut in cuts if cut.number in self._python]
        if in_loss or to_python:
            return self._cut(label, in_loss or to_python)
        ends = [number for bits, number in self._ends if bits & bit]
        if not ends:
            return self._cut(label, cuts) if cuts else None
        last = self._steps[max(ends)]
        number, count = last.result
        which = f"{nth(number + 1)} of the {count} results of" if count > 1 else "result of"
        story = f"the {which} {_of(last.operation)} is not in the loss"
        return UnusedParameter(*label, "led nowhere", story, None, *_where(last.operation))

    def partial(self, inside: Sequence[bool]) -> tuple[PathCut, ...]:
        """Return the cuts of paths in the loss to the parameters that are in the graph, without those of `story`."""
        carries = list(inside)  # by step: a gradient of its result could reach one of these parameters
        told = {cut.number for cut in self._cuts}
        found: dict[str, PathCut] = {}
        for number, step in enumerate(self._steps):
            if number >= len(inside):
                carries.append(any(cut is None and carries[taken] for taken, cut in step.takes))
            for taken, cut in step.takes if number in self._in_loss and number not in told else ():
                if cut in _PARTIAL and carries[taken]:
                    story = self._story(cut, number, taken)
                    found.setdefault(story, PathCut(story, cut, *_where(step.operation)))
        return tuple(found.values())

    def _story(self, cut: Cut, number: int, taken: int) -> str:
        step, writer = self._steps[number], self._steps[taken]
        off = f", entered at {step.off.source.short}" if step.off is not None and step.off.source else ""
        return CUTS[cut].format(operation=_of(step.operation), writer=_of(writer.operation), off=off)

    def _cut(self, label: _Label, cuts: Sequence[_CutAt]) -> UnusedParameter:
        cut = cuts[0]
        step, writer = self._steps[cut.number], self._steps[cut.taken]
        story = self._story(cut.how, cut.number, cut.taken)
        python = self._python.get(cut.number)
        if cut.number in self._in_loss:
            pass
        elif python is None:
            story += "; no result of it is in the loss either"
        elif python != cut.number:
            story += f"; then {_of(self._steps[python].operation)} converts it to Python numbers"
        others = len({each.number for each in cuts}) - 1
        story += f"; the same happens at {counted(others, 'more place')}" if others else ""
        culprit = writer if cut.how is Cut.ALIAS else step
        return UnusedParameter(*label, "path cut", story, cut.how, *_where(culprit.operation))


class _Modules:
    """The modules whose parameters no operation used."""

    def __init__(self, model: nn.Module, flow: Dataflow) -> None:
        self._flow = flow
        self._modules = dict(model.named_modules(remove_duplicate=False))
        # The paths of the called modules and of the modules that contain them.
        self._reached = {
            path[:end]
            for path, module in self._modules.items()
            if flow.calls[module]
            for end in (*(place for place, letter in enumerate(path) if letter == "."), len(path))
        }

    def replaced(self, label: _Label, found: UnusedParameter | None) -> UnusedParameter | None:
        """Add to a report that another tensor was in the parameter's place, as by torch.func.functional_call."""
        path, _, name = label[0].rpartition(".")
        module = self._modules[path]
        if (module, name) not in self._flow.replaced:
            return found
        source = _source(self._flow.replaced[module, name])
        ran = f"{_title(path, module)} ran with another tensor in its place{_at(source)} (torch.func.functional_call)"
        if found is not None:
            return replace(found, story=f"{found.story}; {ran}")
        story = f"{ran}, which was not computed from it; compute it from the parameter, or train that tensor"
        return UnusedParameter(*label, "never used", story, module=path, source=source)

    def never_used(self, label: _Label) -> UnusedParameter:
        """Report whether the parameter's module was called, or the outermost containing module that was not."""
        path = label[0].rpartition(".")[0]
        while path and isinstance(self._modules[path], _NEVER_CALLED):
            path = path.rpartition(".")[0]
        module, unseen = self._modules[path], self._flow.unseen
        if module in self._flow.without_input_grad:
            source = _source(self._flow.without_input_grad[module])
            story = (
                f"{_title(path, module)} ran in the reentrant checkpoint{_at(source)}, none of whose inputs requires "
                "grad, so it is not in the graph; call checkpoint(..., use_reentrant=False), or let an input require "
                "grad (x.requires_grad_(); in transformers, model.enable_input_require_grads())"
            )
            return UnusedParameter(*label, "not seen", story, module=path, source=source)
        if isinstance(module, torch.jit.ScriptModule) or module in unseen:
            inside = "a custom Function or a reentrant checkpoint" if module in unseen else "torch.jit"
            story = f"{_title(path, module)} ran inside {inside}, where operations are not recorded"
            return UnusedParameter(*label, "not seen", story, module=path)
        if calls := self._flow.calls[module]:
            times = "once" if calls == 1 else f"{calls:,} times"
            story = f"{_title(path, module)} was called {times}, but no operation used it"
            return UnusedParameter(*label, "never used", story, module=path, calls=calls)
        while path:
            around = path.rpartition(".")[0]
            if not around or around in self._reached:
                break
            path = around
        story = f"{_title(path, self._modules[path])} was never called"
        return UnusedParameter(*label, "never used", story, module=path, calls=0)


def _of_graph(label: _Label, drawn: Graph, arrived: Arrived) -> UnusedParameter:
    why: Why = "no gradient" if arrived.state is None else "zero gradient"
    stories = [describe_origin(drawn, origin) for origin in arrived.origins]
    task = drawn.tasks[arrived.origins[0].task]
    name = None if task.operation is None else task.operation.name
    return UnusedParameter(
        *label, why, joined(stories, 2), None, name, drawn.module(task), task.source, task.id, arrived.origins
    )


def _source(place: Place | None) -> Source | None:
    return None if place is None else source_at(place)


def _at(source: Source | None) -> str:
    return "" if source is None else f" at {source.short}"


def _of(operation: Operation | None) -> str:
    """Describe an operation: `.detach() in encoder at model.py:12`."""
    if operation is None:
        return "an operation that was not recorded"
    _, module, source = _where(operation)
    call = operation.call
    shown = _SHOWN.get(operation.name)
    if shown is None:
        title = operation_title(operation.name)
        shown = f".{title}()" if operation.name.startswith("torch.Tensor.") and not title.startswith("__") else title
    inside = "" if call is None else f" in {module_name(module or '') or call.module_class.__name__}"
    return f"{shown}{inside}{f' at {source.short}' if source else ''}"


def _where(operation: Operation | None) -> tuple[str | None, str | None, Source | None]:
    """Return an operation's name, its module's path and its source line."""
    if operation is None:
        return None, None, None
    return operation.name, None if operation.call is None else operation.call.full_path, operation.source


def _title(path: str, module: nn.Module) -> str:
    return f"{module_name(path)} ({type(module).__name__})" if path else type(module).__name__
