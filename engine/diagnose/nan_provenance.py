"""Follows NaN and infinite values through the operations of a forward and its backwards, back to what made them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.capture.capture import capture
from ...inspector.capture.operator_traits import leaves_empty, may_write, written_by
from ...inspector.graph.capture_records import Operation
from ...inspector.graph.node_metadata import operation_of, tensors_of
from ...inspector.torch_private.engine import current_node
from ...inspector.torch_private.operators import EveryOperation, is_operator
from ...inspector.torch_private.tensors import FollowedStorage, View, computable, is_abstract, is_lift, storage_of
from ...inspector.torch_private.thread_state import unobserved
from ..session.breakpoints.nan_origin import dense_parts, has_element, is_bad
from .torch_calls import FunctionCall, FunctionCalls, GivenTensor, KeptTensors

What = Literal["nan", "inf"]
How = Literal["made", "put", "given"]

_STAND_INS = (0.5, 2.0)
"""By what bad values are replaced to see what comes out without them: what is defined for one number at all is defined
for one of these, near which no usual function has a pole."""
_OVERWRITING = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_"}
"""What was in the tensor that these write into does not matter to what is there afterwards."""
_PUTS = {
    *("fill", "fill_", "full", "full_like", "masked_fill", "masked_fill_", "masked_scatter", "new_full", "new_tensor"),
    *("pad", "scatter", "scatter_", "tensor", "where", "__setitem__", "index_fill", "index_fill_", "as_tensor"),
    *("from_numpy", "empty", "empty_like", "new_empty"),
}
"""Functions which put a value into a tensor that somebody has chosen: an infinite one on purpose, as in a mask."""


class _Write(NamedTuple):
    """Bytes into which a step wrote bad values: as its result number `output` sees them."""

    view: View
    step: BadOperation
    output: int


class _Bytes:
    """A storage into which bad values were written. It lives as long as the storage, and as those who read it."""

    def __init__(self, tensor: Tensor) -> None:
        self.followed = FollowedStorage(tensor)
        self.writes: list[_Write] = []


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A bad tensor that an operation was given: a dense one, or one of those that keep a sparse or nested one's values.

    Attributes:
        part: which of those.
        view: how it saw its bytes then.
        below: its bytes, where operations are known to have written bad values into them.
        writes: how many of these writes had been.
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
        """What wrote this element: the step, which of its results, and the index there."""
        view = self.view
        place = view.offset + sum(at * stride for at, stride in zip(index, view.strides, strict=True))
        place *= view.dtype.itemsize  # where in its storage the element begins
        for view, step, output in reversed(self.below.writes[: self.writes] if self.below is not None else ()):
            found = _index_at(view, place)
            if found is not None:
                return step, output, found
        return None


@dataclass(frozen=True, slots=True, eq=False)
class BadOperation:
    """One operation that gave NaN or infinite values, and what it was called with.

    Attributes:
        number: counts them in the order in which they ran.
        operation: what it belongs to in the forward; None in a backward after that.
        call: the function of torch that the user's code was calling.
        node: the node whose backward it belongs to.
        given: the bad ones among its arguments.
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
        """Whether it writes down what somebody has chosen."""
        if self.node is not None or self.call is None:
            return False
        return self.call.title in _PUTS or (is_operator(self.operator) and leaves_empty(self.operator))

    @property
    def puts_number(self) -> bool:
        """The same where that is all that is bad in what it was given: `x[0] = math.nan`."""
        return self.puts and all(each.below is None and not each.kept.tensor.dim() for each in self.given)

    @property
    def only_computes(self) -> bool:
        """Whether it may run again: what is not ATen's may communicate, or count."""
        return is_operator(self.operator) and self.operator.namespace == "aten"

    def results(self, instead: Mapping[GivenTensor, Tensor]) -> list[Tensor]:
        """What it gives with other values in the place of some that it was given."""
        writes = may_write(self.operator)
        args, kwargs = (_given_again(each, instead, writes) for each in (self.args, self.kwargs))
        with torch.random.fork_rng(()):
            result = self.operator(*args, **kwargs)
        return _parts(result, written_by(self.operator, args, kwargs) if writes else [])


class ValueLink(NamedTuple):
    """One element on its way: the operation that gave it, in which of its results, where, and its value."""

    step: BadOperation
    output: int
    place: tuple[int, ...]
    value: complex


class Chain(NamedTuple):
    """The way of a bad element back through the operations.

    Attributes:
        links: from the one that gave it to the earliest.
        given: where no operation made what the earliest was given: in which tensor, and at which index.
    """

    links: tuple[ValueLink, ...]
    given: tuple[Given, tuple[int, ...]] | None


class ValueFlow(EveryOperation):  # type: ignore[no-untyped-call]
    """A mode that looks at what each operation gives, and keeps those that gave NaN or infinite values.

    It keeps one as long as anybody can read its values, or what came of them: what a program discards is let go. It
    waits for accelerators.

    Attributes:
        firsts: of the forward the first operation that gave NaN out of none, and infinite values out of none; how.
    """

    def __init__(self, names: capture, calls: FunctionCalls) -> None:
        super().__init__()
        self.firsts: dict[tuple[What, How], BadOperation] = {}
        self._names: capture | None = names
        self._calls = calls
        self._count = 0
        self._kept = KeptTensors()
        self._bytes: dict[int, _Bytes] = {}  # by address
        self._limit = 256  # of these, before the dead are looked for

    def forward_is_over(self) -> None:
        """What comes now has no line in the forward."""
        self._names = None

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written: list[Tensor] = []
        if is_operator(operator) and may_write(operator):
            written = written_by(operator, args, kwargs)
        before: dict[int, GivenTensor] = {}
        try:
            with unobserved():
                for tensor in written:
                    self._kept.about_to_write(tensor)
                    if operator._opname not in _OVERWRITING and any(map(has_element, dense_parts(tensor))):
                        before[id(tensor)] = kept = GivenTensor(tensor)
                        kept.copy()
        except Exception:  # a strange tensor may raise anything; the forward must not end
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
        lifts = is_lift(operator)
        if lifts and self._calls.current is None:
            return  # NumPy's numbers: data
        inputs = {id(each): each for each in tensors_of((args, kwargs)) if not lifts and not is_abstract(each)}
        bad = [(number, each) for number, each in enumerate(results) if is_bad(each)]
        if not bad or (not writes and _shares_bytes(bad[0][1], inputs.values()) and id(bad[0][1]) not in inputs):
            return  # the same elements once more
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
            self._note_first(step, [each for _, each in bad])
        for number, each in bad:
            if (below := self._bytes_of(each) or self._new_bytes(each)) is not None:
                below.writes.append(_Write(View.of(each), step, number))

    def _given(self, kept: GivenTensor, own: Tensor) -> Iterator[Given]:
        """What is bad in an argument; its bytes are its own also where a copy of it is kept."""
        for number, (part, original) in enumerate(zip(dense_parts(kept.tensor), dense_parts(own), strict=True)):
            if is_bad(part):
                below = self._bytes_of(original)
                yield Given(kept, number, View.of(original), below, 0 if below is None else len(below.writes))

    def _bytes_of(self, tensor: Tensor) -> _Bytes | None:
        storage = storage_of(tensor)
        found = None if storage is None else self._bytes.get(storage.address)
        return found if found is not None and found.followed.alive else None

    def _new_bytes(self, tensor: Tensor) -> _Bytes | None:
        storage = storage_of(tensor)
        if storage is None:
            return None
        if len(self._bytes) >= self._limit:
            self._bytes = {address: each for address, each in self._bytes.items() if each.followed.alive}
            self._limit = max(256, 2 * len(self._bytes))
        self._bytes[storage.address] = made = _Bytes(tensor)
        return made

    def _note_first(self, step: BadOperation, bad: Sequence[Tensor]) -> None:
        for what, is_what in (("nan", torch.isnan), ("inf", torch.isinf)):
            if not any(bool(is_what(computable(each)).any()) for each in bad):
                continue
            had = any(bool(is_what(computable(each.tensor)).any()) for each in step.given)
            if had and any(each.below is not None for each in step.given):
                continue  # it came from an operation that was seen
            how: How = "given" if had and not step.puts_number else "put" if step.puts else "made"
            self.firsts.setdefault(("nan" if what == "nan" else "inf", how), step)

    def chain_to(self, tensor: Tensor, index: tuple[int, ...]) -> Chain:
        """The way of an element of a tensor back to where it came from; of no links where no operation is known.

        Operations on the way run again with bad values replaced: an element of an argument is on the way where the
        result is another one without it.
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
    """Which element of which argument made it bad; None: the operation itself did."""
    step = link.step
    if not step.given:
        return None
    places = [torch.nonzero(computable(each.tensor).isfinite().logical_not()) for each in step.given]
    trial = _Trial(link, places)
    if not trial.works:
        return _likely(link, places)
    if trial.is_own:
        return None
    at = trial.needed()
    for each, found in zip(step.given, places, strict=True):
        if at < len(found):
            return each, tuple(found[at].tolist())
        at -= len(found)
    raise AssertionError("an element of one of them")


class _Trial:
    """Runs an operation again with bad values replaced. Bad elements are numbered through all arguments."""

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
        """The number of an element without which the result is another one."""
        if (alone := self._at_the_same_place()) is not None:
            return alone
        return bisect_left(range(1, self._count), True, key=self._comes)

    def _at_the_same_place(self) -> int | None:
        """Of what works element by element the element there is enough."""
        first = 0
        for given, found in zip(self._link.step.given, self._places, strict=True):
            index = _broadcast(self._link.place, tuple(given.tensor.shape))
            if index is not None:
                same = (found == torch.tensor(index, device=found.device)).all(-1).nonzero()
                if len(same) and self._comes(1, start=first + int(same[0])):
                    return first + int(same[0])
            first += len(found)
        return None

    def _comes(self, count: int, stand_in: float | None = None, start: int = 0) -> bool:
        """Whether the same value comes out where `count` bad elements, from number `start` on, are left as they are."""
        instead: dict[GivenTensor, Tensor] = {}
        first = 0
        for given, found in zip(self._link.step.given, self._places, strict=True):
            begin, end = (min(max(each - first, 0), len(found)) for each in (start, start + count))
            replaced = torch.cat([found[:begin], found[end:]])
            first += len(found)
            if not len(replaced):
                continue
            if given.tensor is not given.kept.tensor:
                return False  # a sparse or nested one: nothing is put into its parts
            tensor = instead.get(given.kept)
            if tensor is None:
                tensor = instead[given.kept] = given.tensor.clone(memory_format=torch.contiguous_format)
            values = computable(tensor)  # no kernel writes into single elements of float8
            values[tuple(replaced.unbind(-1))] = self._stand_in if stand_in is None else stand_in
            if values is not tensor:
                tensor.copy_(values)
        try:
            results = self._link.step.results(instead)
            return _same(results[self._link.output][self._link.place].item(), self._link.value)
        except Exception:  # what its caller has changed since, or what takes no copies
            return False


def _likely(link: ValueLink, places: Sequence[Tensor]) -> tuple[Given, tuple[int, ...]]:
    """Of an operation that can't be run again, or gives something else each time: the bad element at the same place, if
    there is one."""
    for given in link.step.given:
        index = _broadcast(link.place, tuple(given.tensor.shape))
        if index is not None and not bool(computable(given.tensor[index]).isfinite()):
            return given, index
    return link.step.given[0], tuple(places[0][0].tolist())


def _parts(result: object, written: Iterable[Tensor] = ()) -> list[Tensor]:
    """The dense tensors in what an operation gave and wrote."""
    found = {id(each): each for each in [*tensors_of(result), *written]}
    return [part for each in found.values() for part in dense_parts(each)]


def _shares_bytes(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    storage = storage_of(tensor)
    return storage is not None and any(storage == storage_of(part) for each in others for part in dense_parts(each))


def _kept(value: Any, keeps: Mapping[int, GivenTensor]) -> Any:
    """The value with what is kept of its tensors in their place."""
    if isinstance(value, Tensor):
        return keeps.get(id(value), value)
    if isinstance(value, tuple | list):
        return type(value)(_kept(each, keeps) for each in value)
    if isinstance(value, dict):
        return {name: _kept(each, keeps) for name, each in value.items()}
    return value


def kept_in(value: Any) -> Iterator[GivenTensor]:
    """What is kept of the tensors in a step's arguments."""
    if isinstance(value, GivenTensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from kept_in(each)


def _given_again(value: Any, instead: Mapping[GivenTensor, Tensor], copies: bool) -> Any:
    """The value with tensors in the place of what was kept of them; what may be written into is a copy."""
    if isinstance(value, GivenTensor):
        return instead[value] if value in instead else value.tensor.clone() if copies else value.tensor
    if isinstance(value, tuple | list):
        return type(value)(_given_again(each, instead, copies) for each in value)
    if isinstance(value, dict):
        return {name: _given_again(each, instead, copies) for name, each in value.items()}
    return value


def _index_at(view: View, place: int) -> tuple[int, ...] | None:
    """Which element has this byte of the storage; None: none."""
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
    """The place of an element of a result in an argument of this shape that is spread over it."""
    if len(shape) > len(index):
        return None
    own = [0 if size == 1 else at for at, size in zip(index[len(index) - len(shape) :], shape, strict=True)]
    return tuple(own) if all(at < size for at, size in zip(own, shape, strict=True)) else None


def _same(first: complex, second: complex) -> bool:
    return first == second or (first != first and second != second)
