"""The context of a raised error, read from its traceback: the line, the module, the tensors there, the backward."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain, islice
from textwrap import dedent
from types import FrameType, FunctionType, MethodType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node
from torch.optim import Optimizer

from ....inspector.capture.build_graph import read_graph
from ....inspector.graph.frame_variables import running_modules, variables_of
from ....inspector.graph.graph import Graph, module_name
from ....inspector.graph.source_lines import Source, is_users, tensors_within

Named = tuple[str, Tensor]
"""A tensor, and the expression that leads to it: `self.cache`."""

_EXPRESSION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[(?:\d+|'[^']*'|\"[^\"]*\")\])*")
_PART = re.compile(r"\.?([^\W\d]\w*)|\[(\d+)\]|\[['\"]([^'\"]*)['\"]\]")
_MOST_TENSORS = 2_000
_DEPTH = 3
_MOST_CALLERS = 4
_BACKWARDS = {torch.autograd.backward.__code__: "tensors", torch.autograd.grad.__code__: "outputs"}


class RaisedError:
    """The context of an error. Nothing of the user's code is called to read it.

    Args:
        error: the error.
        modules: modules that may contain the cause, outermost ones; those in the traceback are added.
        graph: the graph of the backward that raised; None: it is read from the traceback.
        ran: the tasks that the backward has run; None if unknown.
        since: the sequence number from which on nodes are newer than the previous backward; None if unknown.
        maker: returns the operation that created a node, in words; None if unknown.

    Attributes:
        places: the frames of the user's own code, the outermost first, each with the instruction's offset and line.
    """

    def __init__(
        self,
        error: BaseException,
        modules: Iterable[nn.Module] = (),
        graph: Graph | None = None,
        ran: Collection[int] | None = None,
        since: int | None = None,
        maker: Callable[[Node], object] | None = None,
    ) -> None:
        self.error = error
        self.text = str(error)
        self._given = list(modules)
        self._graph = graph
        self.ran, self.since, self.maker = ran, since, maker
        # While the error passes a hook of ours, the frames that it has not reached yet are missing in its traceback.
        entries = list(_entries(error))
        outer = [] if not entries else list(_callers(entries[0].tb_frame))
        raising = [(each.tb_frame, each.tb_lasti, each.tb_lineno) for each in entries]
        self.frames: list[tuple[FrameType, int, int]] = [*reversed(outer), *raising]
        self.places = [each for each in self.frames if is_users(each[0].f_code.co_filename)]

    @property
    def source(self) -> Source | None:
        """The user's innermost line."""
        if not self.places:
            return None
        frame, _, line = self.places[-1]
        return Source(frame.f_code.co_filename, line, frame.f_code.co_name)

    @cached_property
    def module(self) -> nn.Module | None:
        """The innermost module whose forward raised."""
        return next(reversed(self._running), None)

    @cached_property
    def _running(self) -> list[nn.Module]:
        return running_modules(frame for frame, _, _ in self.frames)

    @cached_property
    def models(self) -> list[nn.Module]:
        """The outermost modules that are known: given, running, or in a variable of the traceback's functions."""
        found = [*self._given, *self._running[:1]]
        for frame, _, _ in reversed(self.places):
            for each in variables_of(frame).values():
                inner = each if isinstance(each, list | tuple) else (each,)
                found += [one for one in inner if isinstance(one, nn.Module)]
        inside = {id(inner) for each in found for inner in each.modules() if inner is not each}
        return list({id(each): each for each in found if id(each) not in inside}.values())

    def title(self, module: nn.Module) -> str:
        """Return a module's path and class: `act (ReLU)`."""
        for model in self.models:
            for path, each in model.named_modules():
                if each is module and path:
                    return f"{module_name(path)} ({type(module).__name__})"
        return type(module).__name__

    @cached_property
    def parameter_names(self) -> Mapping[int, str]:
        """The names of parameters by id, with the model's class if several models are known."""
        several = len(self.models) > 1
        return {
            id(each): f"{type(model).__name__}.{name}" if several else name
            for model in reversed(self.models)
            for name, each in model.named_parameters()
        }

    @property
    def at(self) -> str:
        """` at model.py:18`, the user's innermost line; "" if unknown."""
        return f" at {self.source.short}" if self.source else ""

    @property
    def in_backward(self) -> str:
        """` (backward at train.py:45)`; "" if unknown."""
        return f" (backward{self.at})" if self.at else ""

    @property
    def where(self) -> str:
        """` at model.py:18 in act (ReLU)`; "" if unknown."""
        return f"{self.at} in {self.title(self.module)}" if self.module is not None else self.at

    def operands(self) -> Iterator[Named]:
        """Yield the tensors that the failing expression names, then the other tensors of that function."""
        if self.places:
            frame, instruction, _ = self.places[-1]
            for expression in dict.fromkeys(_EXPRESSION.findall(segment_at(frame, instruction))):
                yield from _resolved(expression, frame)
            yield from _variables(frame)

    def _operands_inside(self) -> Iterator[Named]:
        """Yield the tensors of torch functions that the failing line called. Their names there mean nothing to the
        user."""
        for frame, _, _ in reversed(self.frames):
            if self.places and frame is self.places[-1][0]:
                return
            yield from (("a tensor", tensor) for _, tensor in _variables(frame))

    def find(self, wanted: Callable[[Tensor], bool]) -> Named | None:
        """Return the first such tensor among the operands, then among the models' attributes, with its name."""
        for expression, tensor in islice(chain(self.operands(), self._operands_inside()), _MOST_TENSORS):
            if wanted(tensor):
                return self.name_of(tensor) or expression, tensor
        for model in self.models:
            for expression, each in tensors_within(type(model).__name__, model, 6):
                if each is not None and wanted(each):
                    return self.name_of(each) or expression, each
        return None

    def name_in_code(self, tensor: Tensor) -> str | None:
        """Return the variable or expression that leads to a tensor in the user's innermost function."""
        return next((name for name, each in self.operands() if each is tensor), None)

    def name_of(self, tensor: Tensor) -> str | None:
        """Return the name of a parameter, or of a tensor that a module has as an attribute."""
        if (name := self.parameter_names.get(id(tensor))) is not None:
            return name
        for model in self.models:
            for path, module in model.named_modules():
                for name, each in {**vars(module), **module._buffers}.items():
                    if each is tensor:
                        return f"{path or type(module).__name__}.{name}"
        return None

    @cached_property
    def backward(self) -> tuple[tuple[Tensor | GradientEdge, ...], FrameType] | None:
        """The outputs of the outermost backward in the traceback, and the frame of torch's function that ran it."""
        for frame, _, _ in self.frames:
            if (name := _BACKWARDS.get(frame.f_code)) is not None and name in variables_of(frame):
                found = variables_of(frame)[name]
                outputs = (found,) if isinstance(found, Tensor | GradientEdge) else found
                if isinstance(outputs, Sequence):
                    return tuple(outputs), frame
        return None

    @cached_property
    def graph(self) -> Graph | None:
        """The graph of the backward; None if it has none, or there was no backward."""
        if self._graph is not None or self.backward is None:
            return self._graph
        outputs = [
            each for each in self.backward[0] if not isinstance(each, Tensor) or (each.requires_grad and each.grad_fn)
        ]
        if not outputs:
            return None
        return read_graph(outputs, {name: each for each, name in self._parameters()})

    @cached_property
    def earlier_nodes(self) -> Set[Node]:
        """The graph's nodes that are older than the previous backward; all of its nodes if that one is unknown."""
        if self.graph is None:
            return frozenset()
        since = self.since
        tasks = zip(self.graph.tasks, self.graph.nodes, strict=True)
        return {node for task, node in tasks if since is None or task.sequence_nr < since}

    def _parameters(self) -> Iterator[tuple[Tensor, str]]:
        for model in self.models:
            for _, each in model.named_parameters():
                yield each, self.parameter_names[id(each)]

    def local(self, name: str, kind: type[Any]) -> Any:
        """Return the innermost frame's variable of this name and kind, torch's own frames included."""
        for frame, _, _ in reversed(self.frames):
            if isinstance(value := variables_of(frame).get(name), kind):
                return value
        return None

    def value_of_kind(self, kind: type[Any]) -> Any:
        """Return the first object of this kind in a variable of the traceback's functions."""
        for frame, _, _ in reversed(self.frames):
            for value in list(variables_of(frame).values()):
                if isinstance(value, kind):
                    return value
        return None

    @property
    def optimizer(self) -> Optimizer | None:
        found: Optimizer | None = self.value_of_kind(Optimizer)
        return found


def _variables(frame: FrameType) -> Iterator[Named]:
    for name, value in list(variables_of(frame).items()):
        for expression, tensor in tensors_within(name, value, _DEPTH):
            if tensor is not None:
                yield expression, tensor


def _entries(error: BaseException) -> Iterator[TracebackType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _callers(frame: FrameType) -> Iterator[tuple[FrameType, int, int]]:
    """Yield the frames that called this one, innermost first, up to some of the user's."""
    count, caller = 0, frame.f_back
    while caller is not None and count < _MOST_CALLERS:
        yield caller, caller.f_lasti, caller.f_lineno
        count += is_users(caller.f_code.co_filename)
        caller = caller.f_back


def segment_at(frame: FrameType, instruction: int) -> str:
    """Return the source text of the expression that an instruction belongs to; the whole line if that is unknown."""
    positions = list(frame.f_code.co_positions())
    place = instruction // 2
    if instruction < 0 or place >= len(positions):
        return ""
    start, end, first, last = positions[place]
    if start is None:
        return ""
    lines = linecache.getlines(frame.f_code.co_filename)[start - 1 : end]
    if not lines or first is None or last is None:
        return dedent("".join(lines)).strip()
    lines[-1] = lines[-1].encode()[:last].decode(errors="ignore")
    lines[0] = lines[0].encode()[first:].decode(errors="ignore")
    return "".join(lines).strip()


def _resolved(expression: str, frame: FrameType) -> Iterator[Named]:
    """Yield the tensor that an expression leads to, or the tensors within its value. No property is run."""
    value: Any = None
    read = ""
    for part in _PART.finditer(expression):
        attribute, number, key = part.groups()
        if not read:
            if attribute not in variables_of(frame) and attribute not in frame.f_globals:
                return
            value = variables_of(frame).get(attribute, frame.f_globals.get(attribute))
        else:
            found = _step(value, attribute, number, key)
            if found is None:
                break
            value = found
        read += part[0]
    if isinstance(value, FunctionType | MethodType | type):
        return
    for name, tensor in tensors_within(read, value, 2):
        if tensor is not None:
            yield name, tensor


def _step(value: Any, attribute: str | None, number: str | None, key: str | None) -> Any:
    if attribute is not None:
        held = getattr(value, "__dict__", {})
        parts = (held, held.get("_parameters") or {}, held.get("_buffers") or {}, held.get("_modules") or {})
        return next((each[attribute] for each in parts if attribute in each), None)
    if number is not None and type(value) in (list, tuple) and int(number) < len(value):
        return value[int(number)]
    return value.get(key) if type(value) is dict else None
