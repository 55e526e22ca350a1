"""What a watchpoint may ask of a gradient: a flat table of words, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

import torch
from torch import Tensor

from ....inspector.graph.graph import Graph, Task, TensorMeta
from ....inspector.validation import a_kind
from .breakpoints import name_of
from .gradient_readings import Need, Reading

GradientPredicate: TypeAlias = Callable[[Tensor, Task], object]


_ELEMENTWISE = {
    *("Add", "Addcdiv", "Addcmul", "Atan2", "Copysign", "Div", "Fmax", "Fmin", "Fmod", "Hypot", "Lerp", "Logaddexp"),
    *("Logaddexp2", "Maximum", "Minimum", "Mul", "Pow", "Remainder", "Rsub", "Sub", "Where", "Xlogy"),
}
"""Nodes whose gradients have the shape of the forward's result, which the engine then sums to that of each operand."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a task that has run; of a leaf's task, which gives nothing, what it gets.

    Attributes:
        gradient: as its receiver gets it.
        raw: as the node gave it, before the engine summed and cast it, where the engine shows that.
        receiver: the task it goes to.
        takes: what that expects.
    """

    task: Task
    number: int
    gradient: Tensor
    raw: Tensor
    receiver: Task | None
    takes: TensorMeta | None

    @staticmethod
    def of(graph: Graph, task: Task, number: int, gradient: Tensor, raw: Tensor) -> Output:
        for edge in graph.out_edges[task.id]:
            if edge.output == number:
                receiver = graph.tasks[edge.next_task]
                return Output(task, number, gradient, raw, receiver, receiver.inputs[edge.input])
        return Output(task, number, gradient, raw, None, None)

    @property
    def summed_from(self) -> tuple[int, ...] | None:
        """The shape which a broadcast of the forward gave the gradient, where its receiver, no leaf, takes another.

        PyTorch's own engine has summed it before anybody sees it: of elementwise operations what came in tells. Losses
        expand their arguments themselves.
        """
        if self.receiver is None or self.receiver.is_leaf or self.takes is None or self.takes.shape is None:
            return None
        name, came = self.task.short_name, self.task.inputs[0].shape if self.task.inputs else None
        operation = self.task.operation
        if name in _ELEMENTWISE or (name == "Expand" and operation is not None and operation.name.endswith("_loss")):
            return came if came != self.takes.shape else None
        shape = tuple(self.raw.shape)
        return shape if shape != self.takes.shape else None


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that may be so of a gradient: told by what was read of its elements, or by looking at it."""

    text: str
    needs: frozenset[Need] = frozenset()
    holds: Callable[[Reading], object] | None = None
    looks: Callable[[Output], object] | None = None


Condition: TypeAlias = tuple[Term, ...]
"""All of its terms are so."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`norm>1e3`: what is beyond it."""

    text: str
    above: bool
    or_equal: bool
    limit: float

    def beyond(self, value: float) -> bool:
        """NaN is beyond nothing."""
        if value == self.limit:
            return self.or_equal
        return value > self.limit if self.above else value < self.limit


def _widens(output: Output) -> bool:
    """A complex gradient is as wide as its parts."""
    if output.task.is_leaf:
        return False
    came = [real_dtype(meta.dtype).itemsize for meta in output.task.inputs]
    dtype, takes = real_dtype(output.raw.dtype), output.takes
    is_cast = takes is not None and not takes.any_dtype and real_dtype(takes.dtype) != dtype
    return (bool(came) and dtype.itemsize > max(came)) or is_cast


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of a complex dtype that of its parts."""
    return dtype.to_real() if dtype.is_complex else dtype


WORDS: dict[str, Term] = {
    term.text: term
    for term in (
        Term("nan", frozenset({"finite"}), lambda read: read.nan),
        Term("inf", frozenset({"inf"}), lambda read: read.inf),
        Term("zero", frozenset({"zero"}), lambda read: read.zero),
        Term("upcast", looks=_widens),
        Term("shape", looks=lambda output: output.summed_from is not None),
    )
}

MISSING = "missing"
_KNOWN = (*WORDS, "norm>1e3", "norm<1e-8", "ratio>100", "ratio<0.01", MISSING)
_BOUND = re.compile(r"(norm|ratio)\s*([<>]\s*=?)\s*([0-9.]+(?:e[+-]?[0-9]+)?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What one watchpoint watches for: any of these.

    Attributes:
        of_gradients: what is asked of each gradient.
        ratios: the bounds of what a module's call makes of its gradients' norm.
        missing: whether a parameter that gets no gradient is one.
    """

    of_gradients: tuple[Condition, ...]
    ratios: tuple[Bound, ...]
    missing: bool

    @property
    def needs(self) -> frozenset[Need]:
        """What has to be read of each gradient."""
        return frozenset().union(*(term.needs for condition in self.of_gradients for term in condition))


def as_conditions(given: tuple[str | GradientPredicate, ...]) -> Conditions:
    """Reads conditions as a person writes them.

    Raises:
        ValueError: one is unknown, or can't be combined with "and"; the message lists what there is.
        TypeError: one is neither a text nor a function.
    """
    if not given:
        raise ValueError(f"watch() needs something to watch for: {', '.join(_KNOWN)}, or a function (gradient, task)")
    conditions: list[Condition] = []
    ratios: list[Bound] = []
    missing = False
    for each in given:
        if callable(each):
            conditions.append((_called(each),))
        elif not isinstance(each, str):
            raise TypeError(f"a condition is a text or a function (gradient, task) -> bool, not {a_kind(each)}")
        elif each.strip().lower() == MISSING:
            missing = True
        elif (bound := _bound(each)) is not None and bound.text.startswith("ratio"):
            ratios.append(bound)
        else:
            conditions.append(tuple(_term(part, each) for part in re.split(r"\s+and\s+", each.strip())))
    return Conditions(_without_second_look(conditions), tuple(ratios), missing)


def _without_second_look(conditions: list[Condition]) -> tuple[Condition, ...]:
    """Next to "nan" it does not matter whether a gradient with a NaN has an infinite element, too: that is one more
    kernel less on an accelerator."""
    if (WORDS["nan"],) not in conditions:
        return tuple(conditions)
    either = Term("inf", frozenset({"finite"}), lambda read: read.inf)
    return tuple((either,) if each == (WORDS["inf"],) else each for each in conditions)


def _term(part: str, whole: str) -> Term:
    word = part.strip().lower()
    if word in WORDS:
        return WORDS[word]
    bound = _bound(word)
    if bound is not None and bound.text.startswith("norm"):
        return Term(bound.text, frozenset({"norm"}), lambda read: bound.beyond(read.norm))
    if bound is not None or word == MISSING:
        about = "a module's call" if bound is not None else "a parameter at the end"
        raise ValueError(f'"{part.strip()}" in "{whole}" is about {about}, not about one gradient: watch for it alone')
    near = get_close_matches(word, _KNOWN, 1)
    hint = f', did you mean "{near[0]}"?' if near else ":"
    raise ValueError(
        f'unknown condition "{part.strip()}"{hint} there are {", ".join(_KNOWN)} (with any number), several joined by '
        '" and ", and functions (gradient, task) -> bool'
    )


def _bound(text: str) -> Bound | None:
    match = _BOUND.fullmatch(text.strip())
    if match is None:
        return None
    what, sign, limit = match.groups()
    try:
        number = float(limit)
    except ValueError:
        return None
    sign = "".join(sign.split())
    return Bound(f"{what.lower()}{sign}{limit}", sign[0] == ">", sign.endswith("="), number)


def _called(predicate: GradientPredicate) -> Term:
    return Term(name_of(predicate), looks=lambda output: predicate(output.gradient, output.task))
