"""Watches a forward for NaN and infinite values and explains their causes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from ...inspector.capture.capture import capture
from ...inspector.graph.graph import TensorMeta, module_name
from ...inspector.graph.source_lines import Source
from ...inspector.text.sizes_and_counts import index_text, number_text
from ...inspector.torch_private.compiled import uncompiled
from ...inspector.torch_private.tensors import computable, computes_itself
from ...inspector.torch_private.thread_state import unobserved
from ..session.breakpoints.nan_origin import (
    dense_parts,
    has_element,
    is_bad,
    value_at,
    what_is_bad,
)
from ..session.breakpoints.nan_remedies import BadElement, NanCause, Numbers, advice_on, line_of
from .nan_provenance import BadOperation, Chain, How, ValueFlow, ValueLink, What, kept_in
from .torch_calls import BadResult, FunctionCall, FunctionCalls, GivenTensor


@dataclass(frozen=True, slots=True)
class ForwardFind:
    """An operation of the forward that returned NaN or infinite values.

    Attributes:
        what: "nan" or "inf".
        how: "made": computed from finite values. "put": written as a constant. "given": already in the inputs, as data
            or a parameter.
        operation: the operation's name; in a backward within the forward, the node's name.
        module: the path of the module that called it; None outside modules.
        source: the user's line.
        text: a description of the result.
        lines: descriptions of the operation's inputs.
        advice: the cause and the remedy, for known causes.
    """

    what: What
    how: How
    operation: str
    module: str | None
    source: Source | None
    text: str
    lines: tuple[str, ...]
    advice: NanCause | None = None

    @property
    def place(self) -> str:
        """The operation with its module and line: `log (blocks.3, model.py:41)`."""
        where = [part for part in (self.module and module_name(self.module), self.source and self.source.short) if part]
        return f"{self.operation} ({', '.join(where)})" if where else self.operation


@dataclass(frozen=True, slots=True)
class Story:
    """The cause of a NaN or infinite value.

    Attributes:
        step: the operation that caused it.
        maker: a description of that operation.
        before: the operation that wrote the infinite value on which `maker` failed.
        after: the operation that turned `maker`'s infinite value into NaN.
    """

    step: BadOperation
    maker: ForwardFind
    before: ForwardFind | None
    after: ForwardFind | None


class ForwardWatch:
    """Watches a forward and, while `flow` is open, the operations after it.

    Args:
        model: the module that names the others, as in `ts.capture`.

    Attributes:
        flow: the operations that returned bad values.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._names = capture(model, every_call=True)
        self._calls = FunctionCalls()
        self.flow = ValueFlow(self._names, self._calls)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Watch the forward that runs in this context."""
        with ExitStack() as stack:
            stack.enter_context(uncompiled())
            stack.enter_context(self._names)
            stack.callback(self.flow.forward_is_over)
            stack.enter_context(self._calls)
            stack.enter_context(self.flow)
            yield

    @property
    def finds(self) -> list[ForwardFind]:
        """Return the first find of each kind, in order of occurrence."""
        steps = sorted(self.flow.firsts.items(), key=lambda item: item[1].number)
        return [self.find(step, what, how) for (what, how), step in steps if step.call is None or step.call.bad]

    def story(self, tensor: Tensor, index: tuple[int, ...]) -> Story | None:
        """Return the cause of a NaN or infinite element; None if no recorded operation caused it.

        The cause is the first operation of the chain. If the chain starts with an intended infinite value (a mask), it
        is the first operation that turned this value into something else.
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
        """Return the cause of a NaN or infinite element of a gradient.

        Returns the task that first had it, and the forward operation whose result caused it. Either is None if unknown.
        """
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
        """Describe an operation and its inputs."""
        with unobserved():
            operation, node = step.operation, step.node
            bad, advice = step.call.bad if step.call is not None and node is None else None, None
            if bad is not None and step.call is not None:
                lines = self._arguments(step, bad)
                advice = _advice(step.call, bad) if how == "made" else None
            else:
                bad = None
                with suppress(Exception):  # the arguments may have been modified since
                    bad = BadResult.of(step.results({})) if step.only_computes else None
                kept = {id(each): each.tensor for each in kept_in((step.args, step.kwargs))}
                lines = [f"an argument ({_meta(each)}){_state(each, bad)}" for each in kept.values()]
            title = str(step.operator) if step.call is None else step.call.title
            if node is not None:
                title = node.name()
                lines.append("this happened in a backward that the forward ran")
            call = None if operation is None else operation.call
            return ForwardFind(
                what,
                how,
                title,
                None if call is None else call.full_path or call.module_class.__name__,
                None if operation is None else operation.source,
                "NaN or infinite elements" if bad is None else bad.text,
                tuple(lines),
                advice,
            )

    def _arguments(self, step: BadOperation, bad: BadResult) -> list[str]:
        """Describe the function's arguments (shape, dtype, NaN or inf)."""
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
    """Return the infinite value that a chain starts with, if it is intended: a constant, or -inf in data (a mask)."""
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
    """Describe an argument's values, and its value at the position of the first bad element."""
    parts = dense_parts(given)
    for part in parts:
        if is_bad(part):
            line = _infinite_line(part, bad.place) if bad is not None and tuple(part.shape) == bad.shape else ""
            return f" had {what_is_bad(part)}{line}"
    if len(parts) == 1 and computes_itself(given):  # a DTensor: `bad` describes the result's local part too
        given = parts[0]
    if not has_element(given) or given.is_complex():
        return ""
    at = None if bad is None else value_at(given, bad.place, bad.shape)
    index = () if bad is None else bad.place
    where = "" if at is None else f", and {f'at {index_text(index)} ' if index else ''}it was {number_text(at)}"
    low, high = (number_text(bound.item()) for bound in computable(given).aminmax())
    return f" was finite, from {low} to {high}{where}"


def _infinite_line(given: Tensor, index: Sequence[int]) -> str:
    """Return a text if a whole line at this position is -inf, over which a softmax is NaN; "" otherwise."""
    line = line_of(given, torch.isneginf, index)
    return "" if line is None else f", and all of {line} was -inf"


def _advice(call: FunctionCall, bad: BadResult) -> NanCause | None:
    """Return the cause and the remedy of a function's bad result, see `nan_remedies`."""
    name, at = call.title.replace("_", "").lower(), Numbers()
    tensors: dict[str, Tensor] = {}
    names = ("self", "other")
    if call.title.startswith("__r"):  # __rtruediv__(b, a) is a / b
        names = names[::-1]
    for label, value, _ in call.arguments or ():
        place = label.removeprefix("argument ")
        key = names[int(place)] if place in ("0", "1") else label if place.isdecimal() else place
        key = {"input": "self"}.get(key, key)
        number: object = value
        if isinstance(value, GivenTensor):
            tensors.setdefault(key, value.tensor)
            number = value_at(value.tensor, bad.place, bad.shape)
        if isinstance(number, int | float):
            at[key] = number
    return advice_on(BadElement(name, at, tensors, bad.dtype, bad.is_nan, True))
