"""The conditions of watchpoints: a flat table of words, and their parser."""

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
"""Nodes whose gradients have the shape of the forward's result; the engine then sums them to each operand's shape."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a task that has run; for a leaf's task, the gradient it receives.

    Attributes:
        task: the task.
        number: the output's number.
        gradient: the gradient as its receiver gets it.
        raw: the gradient as the node returned it, before the engine summed and cast it, if the engine shows that.
        receiver: the task that receives it.
        takes: the shape, dtype and device the receiver expects.
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
        """The shape that a broadcast in the forward gave the gradient, if its receiver expects another one and is not a
        leaf.

        PyTorch's own engine sums the gradient before a hook sees it. For elementwise operations the shape of the task's
        input shows it. Losses expand their arguments themselves.
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
    """One property of a gradient, decided from values read from its elements or from the gradient itself."""

    text: str
    needs: frozenset[Need] = frozenset()
    holds: Callable[[Reading], object] | None = None
    looks: Callable[[Output], object] | None = None


Condition: TypeAlias = tuple[Term, ...]
"""A condition holds if all of its terms hold."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound such as `norm>1e3`."""

    text: str
    above: bool
    or_equal: bool
    limit: float

    def beyond(self, value: float) -> bool:
        """Return whether the value exceeds the bound; NaN never does."""
        if value == self.limit:
            return self.or_equal
        return value > self.limit if self.above else value < self.limit


def _widens(output: Output) -> bool:
    """Return whether a gradient is wider than the inputs, or is cast; a complex gradient counts by its real dtype."""
    if output.task.is_leaf:
        return False
    came = [real_dtype(meta.dtype).itemsize for meta in output.task.inputs]
    dtype, takes = real_dtype(output.raw.dtype), output.takes
    is_cast = takes is not None and not takes.any_dtype and real_dtype(takes.dtype) != dtype
    return (bool(came) and dtype.itemsize > max(came)) or is_cast


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the real dtype of a complex one; other dtypes unchanged."""
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
    """The conditions of one watchpoint, any of which triggers it.

    Attributes:
        of_gradients: conditions on each gradient.
        ratios: bounds on the norm ratio of a module's call.
        missing: whether a parameter without a gradient triggers it.
    """

    of_gradients: tuple[Condition, ...]
    ratios: tuple[Bound, ...]
    missing: bool

    @property
    def needs(self) -> frozenset[Need]:
        """The values to read from each gradient."""
        return frozenset().union(*(term.needs for condition in self.of_gradients for term in condition))


def as_conditions(given: tuple[str | GradientPredicate, ...]) -> Conditions:
    """Parse conditions.

    Raises:
        ValueError: a condition is unknown, or cannot be combined with "and"; the message lists the known ones.
        TypeError: a condition is neither a string nor a function.
    """
    if not given:
        raise ValueError(f"watch() needs a condition: {', '.join(_KNOWN)}, or a function (gradient, task)")
    conditions: list[Condition] = []
    ratios: list[Bound] = []
    missing = False
    for each in given:
        if callable(each):
            conditions.append((_called(each),))
        elif not isinstance(each, str):
            raise TypeError(f"a condition must be a string or a function (gradient, task) -> bool, got {a_kind(each)}")
        elif each.strip().lower() == MISSING:
            missing = True
        elif (bound := _bound(each)) is not None and bound.text.startswith("ratio"):
            ratios.append(bound)
        else:
            conditions.append(tuple(_term(part, each) for part in re.split(r"\s+and\s+", each.strip())))
    if (WORDS["nan"],) in conditions:  # one reading decides both, which saves a kernel on an accelerator
        either = Term("inf", frozenset({"finite"}), lambda read: read.inf)
        conditions = [(either,) if each == (WORDS["inf"],) else each for each in conditions]
    return Conditions(tuple(conditions), tuple(ratios), missing)


def _term(part: str, condition: str) -> Term:
    word = part.strip().lower()
    if word in WORDS:
        return WORDS[word]
    bound = _bound(word)
    if bound is not None and bound.text.startswith("norm"):
        return Term(bound.text, frozenset({"norm"}), lambda read: bound.beyond(read.norm))
    if bound is not None or word == MISSING:
        about = "a module's call" if bound is not None else "a parameter at the end of the backward"
        raise ValueError(
            f'"{part.strip()}" in "{condition}" describes {about}, not one gradient; pass it as a separate condition'
        )
    near = get_close_matches(word, _KNOWN, 1)
    hint = f' (did you mean "{near[0]}"?)' if near else ""
    raise ValueError(
        f'unknown condition "{part.strip()}"{hint}; expected one of {", ".join(_KNOWN)} (with any number), several '
        'joined by " and ", or a function (gradient, task) -> bool'
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
