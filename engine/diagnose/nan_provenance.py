"""Traces NaN and infinite values through a forward and its backwards, back to the operations that caused them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.capture.capture import capture
from ...inspector.capture.operator_traits import traits_of, written_by
from ...inspector.graph.node_metadata import operation_of, tensors_of
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.torch_private.engine import current_node
from ...inspector.torch_private.operators import EveryOperation, is_operator
from ...inspector.torch_private.tensors import LIFT, FollowedStorage, View, computable, is_abstract, storage_of
from ...inspector.torch_private.thread_state import unobserved
from ..session.breakpoints.nan_origin import dense_parts, has_element, is_bad
from .torch_calls import FunctionCall, FunctionCalls, GivenTensor, KeptTensors

What = Literal["nan", "inf"]
How = Literal["made", "put", "given"]

_STAND_INS = (0.5, 2.0)
"""Replacements for bad values in a trial run. Any usual function is defined for at least one of them, with no pole
nearby."""
_OVERWRITING = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_"}
"""Operations whose result does not depend on the previous content of the tensor that they write to."""
_PUTS = {
    *("fill", "fill_", "full", "full_like", "masked_fill", "masked_fill_", "masked_scatter", "new_full", "new_tensor"),
    *("pad", "scatter", "scatter_", "tensor", "where", "__setitem__", "index_fill", "index_fill_", "as_tensor"),
    *("from_numpy", "empty", "empty_like", "new_empty"),
}
"""Functions that write a constant, which may be infinite on purpose, as in a mask."""


class _Write(NamedTuple):
    """A write of bad values by a step, with the view of the bytes in its result number `output`."""

    view: View
    step: BadOperation
    output: int


class _Bytes:
    """The record of bad values written to a storage, kept while the storage or a step that read it is alive."""

    def __init__(self, tensor: Tensor) -> None:
        self.followed = FollowedStorage(tensor)
        self.writes: list[_Write] = []


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A bad tensor among an operation's inputs: a dense one, or a dense part of a sparse or nested one.

    Attributes:
        part: the number of the dense part.
        view: the tensor's view of its bytes at that time.
        below: the record of its storage, if operations are known to have written bad values to it.
        writes: the number of these writes so far.
    """

    kept: GivenTensor
    part: int
    view: View
    below: _Bytes | None
    writes: int

    @property
    def tensor(self) -> Tensor:
        return dense_parts(self.kept.tensor)[self.part]

    def writer(self, index: tuple[int, ...]) -> tuple[BadOperation, int, tuple[int, ...]] | None:
        """Return the step that wrote an element, the number of its result, and the index in the result."""
        view = self.view
        place = view.offset + sum(at * stride for at, stride in zip(index, view.strides, strict=True))
        place *= view.dtype.itemsize  # the byte offset of the element in its storage
        for view, step, output in reversed(self.below.writes[: self.writes] if self.below is not None else ()):
            found = _index_at(view, place)
            if found is not None:
                return step, output, found
        return None


@dataclass(frozen=True, slots=True, eq=False)
class BadOperation:
    """An operation that returned NaN or infinite values, with its arguments.

    Attributes:
        number: its position among all such operations.
        operation: the forward operation that it belongs to; None in a backward after the forward.
        call: the torch function that the user's code was calling.
        node: the node whose backward it belongs to.
        given: the bad tensors among its arguments.
    """

    number: int
    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operation: Operation | None
    call: FunctionCall | None
    node: Node | None
    given: tuple[Given, ...]

    @property
    def puts(self) -> bool:
        """True if the operation writes a constant."""
        if self.node is not None or self.call is None:
            return False
        return self.call.title in _PUTS or (is_operator(self.operator) and traits_of(self.operator).leaves_empty)

    @property
    def puts_number(self) -> bool:
        """True if it writes a constant and no other argument is bad, as in `x[0] = math.nan`."""
        return self.puts and all(each.below is None and not each.kept.tensor.dim() for each in self.given)

    @property
    def only_computes(self) -> bool:
        """True if it may run again. An operator outside ATen may communicate or keep state."""
        return is_operator(self.operator) and self.operator.namespace == "aten"

    def results(self, instead: Mapping[GivenTensor, Tensor]) -> list[Tensor]:
        """Run the operation with some arguments replaced and return its results."""
        writes = traits_of(self.operator).may_write
        args, kwargs = (_given_again(each, instead, writes) for each in (self.args, self.kwargs))
        with torch.random.fork_rng(()):
            result = self.operator(*args, **kwargs)
        return _parts(result, written_by(self.operator, args, kwargs) if writes else [])


class ValueLink(NamedTuple):
    """One element in a chain: the operation that returned it, the number of the result, its index and its value."""

    step: BadOperation
    output: int
    place: tuple[int, ...]
    value: complex


class Chain(NamedTuple):
    """The chain of operations behind a bad element.

    Attributes:
        links: the links from the last operation to the earliest.
        given: the tensor and index of the earliest operation's bad input, if no operation produced it.
    """

    links: tuple[ValueLink, ...]
    given: tuple[Given, tuple[int, ...]] | None


class ValueFlow(EveryOperation):  # type: ignore[no-untyped-call]
    """A mode that checks each operation's results and keeps the operations that returned NaN or infinite values.

    An operation is kept as long as its values, or values computed from them, can be read. The mode synchronizes
    accelerators.

    Attributes:
        firsts: the first operation of the forward that returned NaN without a NaN input, and the first that returned
            infinite values without an infinite input, each with its kind.
    """

    def __init__(self, names: capture, calls: FunctionCalls) -> None:
        super().__init__()
        self.firsts: dict[tuple[What, How], BadOperation] = {}
        self._names: capture | None = names
        self._calls = calls
        self._count = 0
        self._kept = KeptTensors()
        self._bytes: dict[int, _Bytes] = {}  # by address
        self._limit = 256  # number of entries above which the dead ones are removed

    def forward_is_over(self) -> None:
        """Mark the end of the forward. Later operations have no line in it."""
        self._names = None

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written: list[Tensor] = []
        if is_operator(operator) and traits_of(operator).may_write:
            written = written_by(operator, args, kwargs)
        before: dict[int, GivenTensor] = {}
        try:
            with unobserved():
                for tensor in written:
                    self._kept.about_to_write(tensor)
                    if operator._opname not in _OVERWRITING and any(map(has_element, dense_parts(tensor))):
                        before[id(tensor)] = kept = GivenTensor(tensor)
                        kept.copy()
        except Exception:  # a tensor subclass may raise anything; the forward must continue
            pass
        result = operator(*args, **kwargs)
        try:
            with unobserved():
                self._look(operator, args, kwargs, _parts(result, written), before, bool(written))
        except Exception:  # as above
            pass
        return result

    def _look(
        self,
        operator: Any,
        args: Any,
        kwargs: Any,
        results: Sequence[Tensor],
        before: Mapping[int, GivenTensor],
        writes: bool,
    ) -> None:
        lifts = operator is LIFT
        if lifts and self._calls.current is None:
            return  # data from NumPy
        inputs = {id(each): each for each in tensors_of((args, kwargs)) if not lifts and not is_abstract(each)}
        bad = [(number, each) for number, each in enumerate(results) if is_bad(each)]
        if not bad:
            return
        storage = storage_of(bad[0][1])
        if (
            not writes
            and storage is not None
            and id(bad[0][1]) not in inputs
            and any(storage == storage_of(part) for each in inputs.values() for part in dense_parts(each))
        ):
            return  # a view of the same elements
        keeps = {number: before.get(number) or self._kept.keep(each) for number, each in inputs.items()}
        given = tuple(each for number, kept in keeps.items() for each in self._given(kept, inputs[number]))
        node, call = current_node(), self._calls.current
        operation = None
        if self._names is not None:
            operation = (None if node is None else operation_of(node)) or self._names.operation(operator)
            if call is not None:
                call.keep(self._kept)
        step = BadOperation(
            self._count, operator, _kept(args, keeps), _kept(kwargs, keeps), operation, call, node, given
        )
        self._count += 1
        if self._names is not None and node is None:
            for what, is_what in (("nan", torch.isnan), ("inf", torch.isinf)):
                if not any(bool(is_what(computable(each)).any()) for _, each in bad):
                    continue
                had = any(bool(is_what(computable(each.tensor)).any()) for each in given)
                if had and any(each.below is not None for each in given):
                    continue  # the bad value came from a recorded operation
                how: How = "given" if had and not step.puts_number else "put" if step.puts else "made"
                self.firsts.setdefault(("nan" if what == "nan" else "inf", how), step)
        for number, each in bad:
            if (below := self._bytes_of(each, creates=True)) is not None:
                below.writes.append(_Write(View.of(each), step, number))

    def _given(self, kept: GivenTensor, own: Tensor) -> Iterator[Given]:
        """Yield the bad parts of an argument. If a copy was kept, the bytes are still the original's."""
        for number, (part, original) in enumerate(zip(dense_parts(kept.tensor), dense_parts(own), strict=True)):
            if is_bad(part):
                below = self._bytes_of(original)
                yield Given(kept, number, View.of(original), below, 0 if below is None else len(below.writes))

    def _bytes_of(self, tensor: Tensor, *, creates: bool = False) -> _Bytes | None:
        """Return the record of a tensor's storage. Without one, return None, or create it."""
        storage = storage_of(tensor)
        found = None if storage is None else self._bytes.get(storage.address)
        if found is not None and found.followed.alive:
            return found
        if storage is None or not creates:
            return None
        if len(self._bytes) >= self._limit:
            self._bytes = {address: each for address, each in self._bytes.items() if each.followed.alive}
            self._limit = max(256, 2 * len(self._bytes))
        self._bytes[storage.address] = made = _Bytes(tensor)
        return made

    def chain_to(self, tensor: Tensor, index: tuple[int, ...]) -> Chain:
        """Return the chain of operations behind an element; it has no links if no operation is known.

        The operations run again with bad values replaced: an element of an argument belongs to the chain if replacing
        it changes the result.
        """
        with unobserved():
            links: list[ValueLink] = []
            (source,) = self._given(GivenTensor(tensor), tensor)
            while (found := source.writer(index)) is not None:
                step, output, place = found
                link = ValueLink(step, output, place, source.tensor[index].item())
                links.append(link)
                came = cause_of(link)
                if came is None:
                    return Chain(tuple(links), None)
                source, index = came
            return Chain(tuple(links), (source, index))


def cause_of(link: ValueLink) -> tuple[Given, tuple[int, ...]] | None:
    """Return the argument and the index of the element that made it bad; None if the operation itself did."""
    step = link.step
    if not step.given:
        return None
    places = [torch.nonzero(computable(each.tensor).isfinite().logical_not()) for each in step.given]
    trial = _Trial(link, places)
    if not trial.works:
        # The operation cannot be repeated. The likely cause is a bad element at the same index, if there is one.
        for given in step.given:
            index = _broadcast(link.place, tuple(given.tensor.shape))
            if index is not None and not bool(computable(given.tensor[index]).isfinite()):
                return given, index
        return step.given[0], tuple(places[0][0].tolist())
    if trial.is_own:
        return None
    at = trial.needed()
    for each, found in zip(step.given, places, strict=True):
        if at < len(found):
            return each, tuple(found[at].tolist())
        at -= len(found)
    raise AssertionError("an element of one of them")


class _Trial:
    """Runs an operation again with bad values replaced. Bad elements are numbered across all arguments."""

    def __init__(self, link: ValueLink, places: Sequence[Tensor]) -> None:
        self._link = link
        self._places = places
        self._count = sum(map(len, places))
        self._stand_in = _STAND_INS[0]
        self.works = link.step.only_computes and self._comes(self._count)
        self.is_own = self.works and all(self._comes(0, each) for each in _STAND_INS)
        if self.works and not self.is_own:
            self._stand_in = next(each for each in _STAND_INS if not self._comes(0, each))

    def needed(self) -> int:
        """Return the number of an element whose replacement changes the result."""
        first = 0
        # For an elementwise operation, the element at the same index is enough.
        for given, found in zip(self._link.step.given, self._places, strict=True):
            index = _broadcast(self._link.place, tuple(given.tensor.shape))
            if index is not None:
                same = (found == torch.tensor(index, device=found.device)).all(-1).nonzero()
                if len(same) and self._comes(1, start=first + int(same[0])):
                    return first + int(same[0])
            first += len(found)
        return bisect_left(range(1, self._count), True, key=self._comes)

    def _comes(self, count: int, stand_in: float | None = None, start: int = 0) -> bool:
        """Return whether the result is the same if only `count` bad elements, from number `start` on, are kept."""
        instead: dict[GivenTensor, Tensor] = {}
        first = 0
        for given, found in zip(self._link.step.given, self._places, strict=True):
            begin, end = (min(max(each - first, 0), len(found)) for each in (start, start + count))
            replaced = torch.cat([found[:begin], found[end:]])
            first += len(found)
            if not len(replaced):
                continue
            if given.tensor is not given.kept.tensor:
                return False  # parts of sparse or nested tensors are not replaced
            tensor = instead.get(given.kept)
            if tensor is None:
                tensor = instead[given.kept] = given.tensor.clone(memory_format=torch.contiguous_format)
            values = computable(tensor)  # float8 has no kernels that write single elements
            values[tuple(replaced.unbind(-1))] = self._stand_in if stand_in is None else stand_in
            if values is not tensor:
                tensor.copy_(values)
        try:
            results = self._link.step.results(instead)
            value, before = results[self._link.output][self._link.place].item(), self._link.value
            return bool(value == before or (value != value and before != before))  # both may be NaN
        except Exception:  # an argument may have been modified since, or cannot be copied
            return False


def _parts(result: object, written: Iterable[Tensor] = ()) -> list[Tensor]:
    """Return the dense tensors among an operation's results and the tensors it wrote to."""
    found = {id(each): each for each in [*tensors_of(result), *written]}
    return [part for each in found.values() for part in dense_parts(each)]


def _kept(value: Any, keeps: Mapping[int, GivenTensor]) -> Any:
    """Return a value with its tensors replaced by their records."""
    if isinstance(value, Tensor):
        return keeps.get(id(value), value)
    if isinstance(value, tuple | list):
        return type(value)(_kept(each, keeps) for each in value)
    if isinstance(value, dict):
        return {name: _kept(each, keeps) for name, each in value.items()}
    return value


def kept_in(value: Any) -> Iterator[GivenTensor]:
    """Yield the records of tensors in a step's arguments."""
    if isinstance(value, GivenTensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from kept_in(each)


def _given_again(value: Any, instead: Mapping[GivenTensor, Tensor], copies: bool) -> Any:
    """Return a value with records replaced by tensors; tensors that may be written to are copied."""
    if isinstance(value, GivenTensor):
        return instead[value] if value in instead else value.tensor.clone() if copies else value.tensor
    if isinstance(value, tuple | list):
        return type(value)(_given_again(each, instead, copies) for each in value)
    if isinstance(value, dict):
        return {name: _given_again(each, instead, copies) for name, each in value.items()}
    return value


def _index_at(view: View, place: int) -> tuple[int, ...] | None:
    """Return the index of the element at a byte of the storage; None if the view does not contain it."""
    itemsize = view.dtype.itemsize
    left = place - view.offset * itemsize
    index = [0] * len(view.shape)
    for dimension in sorted(range(len(index)), key=lambda each: -view.strides[each]):
        stride = view.strides[dimension] * itemsize
        if stride > 0 and left >= 0:
            index[dimension] = min(left // stride, view.shape[dimension] - 1)
            left -= index[dimension] * stride
    return tuple(index) if 0 <= left < itemsize else None


def _broadcast(index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the index of a result's element in an argument of this shape that was broadcast."""
    if len(shape) > len(index):
        return None
    own = [0 if size == 1 else at for at, size in zip(index[len(index) - len(shape) :], shape, strict=True)]
    return tuple(own) if all(at < size for at, size in zip(own, shape, strict=True)) else None
