"""Watches a forward for the first values that are NaN or infinite, and what made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import ref

from torch import Tensor

from ..inspector.facts import CallRecord, Facts, Operation
from ..inspector.graph import TensorMeta, module_name
from ..inspector.marks import tensors_of
from ..inspector.source import Source
from ..inspector.torch_internals import unobserved
from .origin import first_bad, has_element, index_text, is_bad, number_text, value_at, what_is_bad
from .storage_words import operation_title

What = Literal["nan", "inf"]
How = Literal["made", "put", "given"]

_PUTS = {
    *("fill", "fill_", "full", "full_like", "masked_fill", "masked_fill_", "masked_scatter", "new_full", "new_tensor"),
    *("pad", "scatter", "scatter_", "tensor", "where", "__setitem__", "index_fill", "index_fill_", "as_tensor"),
    *("from_numpy", "empty", "empty_like", "new_empty"),
}
"""Operations which put a value into a tensor that somebody has chosen: an infinite one on purpose, as in a mask."""


@dataclass(frozen=True, slots=True)
class ForwardFind:
    """A value of the forward that is the first NaN, or the first infinite one.

    Attributes:
        what: which of the two.
        how: "made" by an operation out of finite ones; "put" there as it was written down; "given": it was there before
            the operation, in data or a parameter.
        operation: what the operation is called.
        module: the path of the module that called it; None outside of modules.
        source: the user's line.
        text: what is in the result.
        lines: what is known of what the operation was given.
        from_infinite: whether a NaN came of an infinite value.
    """

    what: What
    how: How
    operation: str
    module: str | None
    source: Source | None
    text: str
    lines: tuple[str, ...]
    from_infinite: bool

    @property
    def place(self) -> str:
        """`log (blocks.3, model.py:41)`."""
        where = [part for part in (self.module and module_name(self.module), self.source and self.source.short) if part]
        return f"{self.operation} ({', '.join(where)})" if where else self.operation


class ForwardWatch:
    """An observer for `capture`, which looks at what each operation gives. It waits for accelerators.

    Attributes:
        finds: the first of each kind, in the order in which they came.
    """

    def __init__(self) -> None:
        self.finds: list[ForwardFind] = []
        self._known: dict[int, ref[Tensor]] = {}  # by id(): tensors that are bad, as of an operation that was seen

    def __call__(self, operation: Operation | CallRecord, result: object, arguments: Sequence[object]) -> None:
        with unobserved():
            bad = [each for each in tensors_of(result) if is_bad(each)]
            if not bad:
                return
            if isinstance(operation, Operation):
                self._note(operation, bad, arguments)
            elif not self.finds:  # a module whose inside nobody sees: scripted or compiled
                self._add("nan" if _has_nan(bad) else "inf", "made", operation, bad, (), False)
            for each in bad:
                self._known[id(each)] = ref(each)

    def _note(self, operation: Operation, bad: list[Tensor], arguments: Sequence[object]) -> None:
        given = [each for each in tensors_of(tuple(arguments)) if all(each is not own for own in bad)]
        wrote = [each for each in bad if self._is_known(each)]  # in place, into what was bad before
        before = [*given, *wrote]
        had_nan, had_inf = _has_nan(before), _has_inf(before)
        kinds: tuple[tuple[What, bool, bool], ...] = (
            ("nan", _has_nan(bad), had_nan),
            ("inf", _has_inf(bad), had_inf),
        )
        for what, has, had in kinds:
            if not has:
                continue
            how: How = "made"
            if had:
                how = "given"
                if any(self._is_known(each) for each in before):
                    continue  # it came from an operation that was seen
            elif operation_title(operation.name).rsplit(".", 1)[-1] in _PUTS:
                how = "put"
            self._add(what, how, operation, bad, arguments, had_inf and not had_nan)

    def _is_known(self, tensor: Tensor) -> bool:
        found = self._known.get(id(tensor))
        return found is not None and found() is tensor

    def _add(
        self,
        what: What,
        how: How,
        operation: Operation | CallRecord,
        bad: Sequence[Tensor],
        arguments: Sequence[object],
        from_infinite: bool,
    ) -> None:
        if any(each.what == what and each.how == how for each in self.finds):
            return
        call = operation if isinstance(operation, CallRecord) else operation.call
        self.finds.append(
            ForwardFind(
                what,
                how,
                operation.module_class.__name__
                if isinstance(operation, CallRecord)
                else operation_title(operation.name),
                None if call is None else call.full_path or call.module_class.__name__,
                None if isinstance(operation, CallRecord) else operation.source,
                what_is_bad(bad[0]),
                tuple(_given(operation.facts, arguments, bad)),
                from_infinite,
            )
        )


def _has_nan(tensors: Sequence[Tensor]) -> bool:
    return any(is_bad(each) and bool(each.isnan().any()) for each in tensors)


def _has_inf(tensors: Sequence[Tensor]) -> bool:
    return any(is_bad(each) and bool(each.isinf().any()) for each in tensors)


def _given(facts: Facts, arguments: Sequence[object], bad: Sequence[Tensor]) -> Iterator[str]:
    """What the arguments were like. What the operation wrote into is not as it was."""
    for number, argument in enumerate(arguments):
        if isinstance(argument, int | float) and len(arguments) == 2:
            yield f"argument {number} was {number_text(argument)}"
        for each in tensors_of(argument):
            if all(each is not own for own in bad):
                name = facts.leaf_name(each)
                meta = TensorMeta(tuple(each.shape), each.dtype, each.device)
                yield f"argument {number} ({f'{name}, ' if name else ''}{meta}){_state(each, bad[0])}"


def _state(given: Tensor, bad: Tensor) -> str:
    """What was in an argument, and what stood in it at the place of the first bad element."""
    index = first_bad(bad)
    if not has_element(given) or given.is_complex():
        return ""
    if is_bad(given):
        return f" had {what_is_bad(given)}{_whole_line(given, index) if given.shape == bad.shape else ''}"
    at = value_at(given, index, bad.shape)
    where = "" if at is None else f", and {f'at {index_text(index)} ' if index else ''}it was {number_text(at)}"
    low, high = (number_text(bound.item()) for bound in given.aminmax())
    return f" was finite, from {low} to {high}{where}"


def _whole_line(given: Tensor, index: tuple[int, ...]) -> str:
    """Whether all along one dimension is -inf at this place: a softmax over it has nothing left."""
    for dimension in reversed(range(given.dim())):
        line = given.movedim(dimension, -1)[index[:dimension] + index[dimension + 1 :]]
        if line.numel() > 1 and bool(line.isneginf().all()):
            where = [str(place) for place in index]
            where[dimension] = ":"
            return f", and all of [{', '.join(where)}] was -inf"
    return ""
