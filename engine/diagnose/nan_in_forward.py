"""Watches a forward for values that are NaN or infinite, and says what made them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from torch import Tensor, nn
from torch.autograd.graph import Node

from ...inspector.capture.capture import capture
from ...inspector.graph.graph import TensorMeta, module_name
from ...inspector.graph.source_lines import Source
from ...inspector.torch_private.compiled import uncompiled
from ...inspector.torch_private.tensors import computable, computes_itself
from ...inspector.torch_private.thread_state import unobserved
from ..session.breakpoints.nan_origin import (
    dense_parts,
    has_element,
    index_text,
    is_bad,
    number_text,
    value_at,
    what_is_bad,
)
from .nan_provenance import BadOperation, Chain, How, ValueFlow, ValueLink, What, kept_in
from .torch_calls import BadResult, FunctionCalls, GivenTensor


@dataclass(frozen=True, slots=True)
class ForwardFind:
    """An operation of the forward that gave NaN, or infinite values.

    Attributes:
        what: which of the two.
        how: "made" by an operation out of finite ones; "put" there as it was written down; "given": it was there before
            the operation, in data or a parameter.
        operation: what the operation is called; in a backward inside of the forward the name of its node.
        module: the path of the module that called it; None outside of modules.
        source: the user's line.
        text: what is in the result.
        lines: what is known of what the operation was given.
    """

    what: What
    how: How
    operation: str
    module: str | None
    source: Source | None
    text: str
    lines: tuple[str, ...]

    @property
    def place(self) -> str:
        """`log (blocks.3, model.py:41)`."""
        where = [part for part in (self.module and module_name(self.module), self.source and self.source.short) if part]
        return f"{self.operation} ({', '.join(where)})" if where else self.operation


@dataclass(frozen=True, slots=True)
class Story:
    """How a value became NaN or infinite.

    Attributes:
        step: the operation that is to blame.
        maker: what there is to say of it.
        before: where the infinite value was put that it could not take.
        after: what made NaN of the infinite value that it made.
    """

    step: BadOperation
    maker: ForwardFind
    before: ForwardFind | None
    after: ForwardFind | None


class ForwardWatch:
    """Watches a forward, and if asked what is computed after it.

    Args:
        model: what names modules, as in `ts.capture`.

    Attributes:
        flow: the operations that gave bad values.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._names = capture(model, every_call=True)
        self._calls = FunctionCalls()
        self.flow = ValueFlow(self._names, self._calls)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Watches the forward that runs meanwhile."""
        with ExitStack() as stack:
            stack.enter_context(uncompiled())
            stack.enter_context(self._names)
            stack.callback(self.flow.forward_is_over)
            stack.enter_context(self._calls)
            stack.enter_context(self.flow)
            yield

    @property
    def finds(self) -> list[ForwardFind]:
        """The first of each kind, in the order in which they came."""
        steps = sorted(self.flow.firsts.items(), key=lambda item: item[1].number)
        return [self.find(step, what, how) for (what, how), step in steps if step.call is None or step.call.bad]

    def story(self, tensor: Tensor, index: tuple[int, ...]) -> Story | None:
        """How an element of a tensor became NaN or infinite; None where no operation is known to have made it so.

        To blame is what the way began with, or, where that is an infinite value which somebody has chosen (a mask), the
        first operation that made something else of it.
        """
        with unobserved():
            chain = self.flow.chain_to(tensor, index)
            if not chain.links:
                return None
            links = chain.links[::-1]
            how: How = "put" if links[0].step.puts else "made"
            if chain.given is not None and not links[0].step.puts_number:
                how = "given"
            first = 0
            if (meant := _meant(chain, how)) is not None:
                first = next((number for number, each in enumerate(links) if each.value != meant), 0)
            maker = links[first]
            then = next((each for each in links[first + 1 :] if _is_nan(each.value)), None)
            return Story(
                maker.step,
                self._of_link(maker, how if not first else "made"),
                self._of_link(links[0], how) if first and not _is_one_call(links[0], maker) else None,
                None
                if then is None or _is_nan(maker.value) or _is_one_call(then, maker)
                else self._of_link(then, "made"),
            )

    def maker_of_gradient(
        self, gradient: Tensor, place: tuple[int, ...], tasks: Mapping[Node, int]
    ) -> tuple[int | None, ForwardFind | None]:
        """How an element of a gradient became NaN or infinite: the task that first had it, and the operation of the
        forward from whose result it had it. None for what is not known, or not so."""
        with unobserved():
            chain = self.flow.chain_to(gradient, place)
            found = [
                tasks.get(each.step.node) for each in chain.links if each.step.operation is None and each.step.node
            ]
            if not chain.links or chain.links[-1].step.operation is None:
                return (found[-1] if found else None), None
            how: How = "put" if chain.links[-1].step.puts else "made" if chain.given is None else "given"
            return (found[-1] if found else None), self._of_link(chain.links[-1], how)

    def _of_link(self, link: ValueLink, how: How) -> ForwardFind:
        return self.find(link.step, "nan" if _is_nan(link.value) else "inf", how)

    def find(self, step: BadOperation, what: What, how: How) -> ForwardFind:
        """What there is to say of an operation."""
        with unobserved():
            operation, node = step.operation, step.node
            bad = step.call.bad if step.call is not None and node is None else None
            if bad is not None and step.call is not None:
                lines = self._arguments(step, bad)
            else:
                bad = None
                with suppress(Exception):  # its caller may have changed the arguments since
                    bad = BadResult.of(step.results({})) if step.only_computes else None
                kept = {id(each): each.tensor for each in kept_in((step.args, step.kwargs))}
                lines = [f"an argument ({_meta(each)}){_state(each, bad)}" for each in kept.values()]
            title = str(step.operator) if step.call is None else step.call.title
            if node is not None:
                title = node.name()
                lines.append("that was in a backward which the forward ran")
            call = None if operation is None else operation.call
            return ForwardFind(
                what,
                how,
                title,
                None if call is None else call.full_path or call.module_class.__name__,
                None if operation is None else operation.source,
                "NaN or infinite elements" if bad is None else bad.text,
                tuple(lines),
            )

    def _arguments(self, step: BadOperation, bad: BadResult) -> list[str]:
        """What the arguments of the function were like."""
        lines = []
        facts = None if step.operation is None else step.operation.facts
        for label, value, own in (step.call.arguments or ()) if step.call is not None else ():
            if not isinstance(value, GivenTensor):
                lines.append(f"{label} was {number_text(value)}")
                continue
            tensor, given = value.tensor, None if own is None else own()
            name = None if facts is None or given is None else facts.leaf_name(given)
            if name is None and facts is not None:
                name = facts.name_below(tensor)
            lines.append(f"{label} ({f'{name}, ' if name else ''}{_meta(tensor)}){_state(tensor, bad)}")
        return lines


def _meant(chain: Chain, how: How) -> complex | None:
    """The infinite value with which a way begins, if somebody has written it there; -inf in data is a mask."""
    if how == "given" and chain.given is not None:
        given, index = chain.given
        value: complex = given.tensor[index].item()
        return value if value == -math.inf and not given.kept.requires_grad else None
    value = chain.links[-1].value
    return value if how == "put" and not _is_nan(value) else None


def _is_one_call(first: ValueLink, second: ValueLink) -> bool:
    return first.step.call is not None and first.step.call is second.step.call


def _is_nan(value: complex) -> bool:
    return value != value


def _meta(tensor: Tensor) -> TensorMeta:
    return TensorMeta(None if tensor.is_nested else tuple(tensor.shape), tensor.dtype, tensor.device)


def _state(given: Tensor, bad: BadResult | None) -> str:
    """What was in an argument, and what stood in it at the place of the first bad element."""
    parts = dense_parts(given)
    for part in parts:
        if is_bad(part):
            line = _whole_line(part, bad.place) if bad is not None and tuple(part.shape) == bad.shape else ""
            return f" had {what_is_bad(part)}{line}"
    if len(parts) == 1 and computes_itself(given):  # a DTensor's part, as `bad` is of the result's
        given = parts[0]
    if not has_element(given) or given.is_complex():
        return ""
    at = None if bad is None else value_at(given, bad.place, bad.shape)
    index = () if bad is None else bad.place
    where = "" if at is None else f", and {f'at {index_text(index)} ' if index else ''}it was {number_text(at)}"
    low, high = (number_text(bound.item()) for bound in computable(given).aminmax())
    return f" was finite, from {low} to {high}{where}"


def _whole_line(given: Tensor, index: Sequence[int]) -> str:
    """Whether all along one dimension is -inf at this place: a softmax over it has nothing left."""
    place = tuple(index)
    if given.is_complex():
        return ""
    for dimension in reversed(range(given.dim())):
        line = computable(given).movedim(dimension, -1)[place[:dimension] + place[dimension + 1 :]]
        if line.numel() > 1 and bool(line.isneginf().all()):
            where = [str(each) for each in place]
            where[dimension] = ":"
            return f", and all of [{', '.join(where)}] was -inf"
    return ""
