"""Known causes of NaN and infinite values, with what to do about each: one table for forwards and backwards.

A row of `_CASES` names operations, tests the values at the first bad element, and gives the cause and the remedy. The
values have the names of saved tensors in derivatives.yaml (`self`, `other`, `result`, `exponent`); a forward's first
and second arguments are `self` and `other`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ....inspector.graph.graph import Graph, Task, unique_name
from ....inspector.text.sizes_and_counts import dtype_name
from ....inspector.torch_private.tensors import computable, computes_itself

_ALIASES = {
    "div": "truediv rtruediv truedivide divide reciprocal itruediv",
    "pow": "floatpower rpow ipow square",
    "mul": "multiply rmul imul",
    "sub": "rsub isub subtract",
    "add": "radd iadd",
    "acos": "arccos",
    "asin": "arcsin",
    "atanh": "arctanh",
    "acosh": "arccosh",
    "atan2": "arctan2",
    "norm": "linalgvectornorm vectornorm",
    "xlogy": "specialxlogy",
    "expm1": "specialexpm1",
    "erfinv": "specialerfinv",
    "linalgeigh": "eigh",
    "linalgsvd": "svd",
    "linalgeig": "eig",
    "linalgqr": "qr",
    "linalginvex": "inv inverse solve linalgsolveex",
    "linalgslogdet": "logdet slogdet det linalgdet",
    "softmax": "multiheadattentionforward safesoftmax specialsoftmax",
    "std": "stdmean",
    "var": "varmean",
    "nllloss": "nllloss2d nlllossnd",
}
_NAMES = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
"""Names that share a case with another operation, in lower case without underscores."""

_DISCARDING = {"Where", "MaskedFill", "MaskedScatter", "MaskedSelect", "Index", "IndexSelect", "Gather", "NanToNum"}
"""Nodes that return a gradient of 0 for the elements that their operation discarded."""

TAKES_MASKS = {"Softmax", "LogSoftmax", "Logsumexp", "Logcumsumexp", "Logaddexp", "Logaddexp2"}
"""Nodes of operations for which -inf is a usual input."""

_MOST_TASKS = 64  # tasks searched for the one that discards an element, the nearest first


class Numbers(dict[str, float]):
    """Values by name; one that is missing is NaN, with which no comparison holds."""

    def __missing__(self, name: str) -> float:
        return math.nan


class NanCause(NamedTuple):
    """A known cause of a NaN or infinite value.

    Attributes:
        cause: a clause, `the derivative of sqrt is infinite at 0`.
        remedy: an imperative, `clamp its input, as in x.clamp(min=eps).sqrt()`.
    """

    cause: str
    remedy: str

    def __str__(self) -> str:
        return f", because {self.cause}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class BadElement:
    """The first bad element of a result, and the values that it was computed from.

    Attributes:
        name: the operation's name, in lower case without underscores: `linalgvectornorm`.
        at: numbers at that element: `gradient`, `self`, `other`, `result`, `exponent`, as far as they are known.
        tensors: the whole tensors, by name.
        dtype: the dtype of the result.
        is_nan: whether the result is NaN, not infinite.
        is_forward: whether it is a forward's.
        discarded_by: a backward's task that discards the element in the forward, so that its gradient is 0.
    """

    name: str
    at: Numbers
    tensors: Mapping[str, Tensor]
    dtype: torch.dtype
    is_nan: bool
    is_forward: bool
    discarded_by: str = ""

    def of(self, *names: str) -> Tensor | None:
        """Return the first of these tensors that is known and can be read."""
        found = (self.tensors.get(name) for name in names)
        return next((each for each in found if each is not None and not computes_itself(each)), None)

    def equals(self, name: str, *values: float) -> bool:
        return self.at[name] in values

    def has_nan(self, name: str) -> bool:
        return name in self.at and math.isnan(self.at[name])


@dataclass(frozen=True, slots=True)
class _Case:
    """One known cause.

    Attributes:
        names: the operations, separated by spaces.
        holds: whether it is the cause; a text replaces `{found}` in the cause.
        cause: a clause; `{name}` is the operation.
        remedy: an imperative.
        safe: the input with which the operation and its derivative are finite; "" if there is none.
    """

    names: str
    holds: Callable[[BadElement], bool | str | None]
    cause: str
    remedy: str
    safe: str = ""


def _zero(*names: str) -> Callable[[BadElement], bool]:
    return lambda bad: any(bad.equals(name, 0.0) for name in names)


def _is_fractional_power(bad: BadElement) -> bool:
    exponent = bad.at["exponent"] if "exponent" in bad.at else bad.at["other"]
    return exponent == exponent and exponent % 1 != 0


def _zero_to_power(bad: BadElement) -> bool:
    exponent = bad.at["exponent"] if "exponent" in bad.at else bad.at["other"]
    return bad.equals("self", 0.0) and exponent < 1


def _divides_by_zero(bad: BadElement) -> bool:
    if bad.name == "reciprocal":
        return bad.equals("self", 0.0) or bad.equals("result", math.inf, -math.inf)
    return bad.equals("other", 0.0)


def _tiny_pair(bad: BadElement) -> bool:
    return bad.at["self"] ** 2 + bad.at["other"] ** 2 < torch.finfo(bad.dtype).tiny


def _overflows(bad: BadElement) -> bool:
    return bad.equals("result", math.inf) or bad.at["self"] > math.log(torch.finfo(bad.dtype).max) - 1


def line_of(
    tensor: Tensor,
    value: Callable[[Tensor], Tensor],
    place: Sequence[int] | None = None,
    along: int | None = None,
) -> str | None:
    """Return a line of a tensor, `[1, 2, :]`, whose elements all satisfy `value`; None if there is none.

    Args:
        tensor: the tensor; the last dimension is tried first.
        value: a function from the tensor to a mask.
        place: the index of an element that the line must contain; None: the first line found.
        along: the dimension of the line; None for any.
    """
    if tensor.is_complex() or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    holds = value(computable(tensor))
    for dimension in reversed(range(tensor.dim())):
        if tensor.shape[dimension] < 2 or along not in (None, dimension, dimension - tensor.dim()):
            continue
        whole = holds.all(dimension, keepdim=True)
        if place is None:
            found = whole.nonzero()
            at = found[0].tolist() if len(found) else None
        else:
            index = [0 if number == dimension else each for number, each in enumerate(place)]
            at = index if bool(whole[tuple(index)]) else None
        if at is not None:
            return f"[{', '.join(':' if number == dimension else str(each) for number, each in enumerate(at))}]"
    return None


def _dimension(bad: BadElement) -> int:
    """Return the dimension of a softmax. Nodes save it as an unsigned number."""
    given = bad.at["dim"] if "dim" in bad.at else bad.at["other"]
    number = -1 if math.isnan(given) or "other" in bad.tensors else int(given)
    return number - 2**64 if number >= 2**63 else number


def _masked_line(bad: BadElement) -> str | None:
    """Return the line over which a softmax is NaN, as far as the inputs or the saved result tell."""
    if (result := bad.of("result")) is not None and not bad.is_forward:
        line = line_of(result, torch.isnan, None, _dimension(bad))
        return None if line is None else f"row {line} of its result is all NaN, as where every score is -inf"
    for each in bad.tensors.values():
        along = min(1, each.dim() - 1) if bad.name == "crossentropy" else _dimension(bad)
        if each.is_floating_point() and (line := line_of(each, torch.isneginf, None, along)) is not None:
            return f"every element of row {line} of its input is -inf"
    return None


def _empty_line(bad: BadElement) -> str | None:
    given, result = bad.of("self"), bad.of("result")
    line = None if given is None or not given.is_floating_point() else line_of(given, torch.isneginf)
    if line is not None:
        return f"all of {line} of its input is -inf"
    return "its result is -inf" if result is not None and bool(result.isneginf().any()) else None


def _masked_target(bad: BadElement) -> str | None:
    """Return the first target whose class has a score of -inf."""
    scores, targets = bad.of("self"), bad.of("other", "target")
    if scores is None or targets is None or targets.is_floating_point() or scores.dim() != 2 or targets.dim() != 1:
        return None
    kept = (targets >= 0) & (targets < scores.shape[1])
    chosen = scores.gather(1, targets.clamp(0, scores.shape[1] - 1)[:, None])[:, 0]
    masked = (kept & chosen.isneginf()).nonzero()
    if not len(masked):
        return None
    row = int(masked[0])
    return f"the score of class {int(targets[row])}, the target of row {row}, is -inf"


def _no_target(bad: BadElement) -> bool:
    targets = bad.of("other", "target")
    return targets is not None and not targets.is_floating_point() and bool((targets < 0).all())


def _impossible_target(bad: BadElement) -> str | None:
    """Return the first target of a CTC loss that needs more time steps than its input has."""
    targets, inputs, lengths = bad.of("other", "targets"), bad.of("argument 2"), bad.of("argument 3")
    found = bad.of("result0")
    if targets is None or inputs is None or lengths is None or inputs.dim() != 1 or lengths.dim() != 1:
        infinite = found is None or bool(found.isinf().any())
        return "a target has more labels and repeats than its input has time steps" if infinite else None
    start = 0
    for number, (steps, length) in enumerate(zip(inputs.tolist(), lengths.tolist(), strict=False)):
        labels = targets[number, :length] if targets.dim() == 2 else targets[start : start + length]
        start += length
        repeats = int((labels[1:] == labels[:-1]).sum())
        if steps < length + repeats:
            again = f" with {repeats} repeated" if repeats else ""
            return f"target {number} has {length} labels{again}, more than the {steps} time steps of its input allow"
    return None


def _equal_values(bad: BadElement) -> str | None:
    """Return two equal eigenvalues or singular values, which the derivative of the vectors divides by."""
    values = bad.of("eigenvalues", "S", "L")
    if values is None or not values.numel():
        return None
    order = values.reshape(-1, values.shape[-1]) if values.is_complex() else values.sort(-1).values
    order = order.reshape(-1, order.shape[-1])
    limit = 4 * torch.finfo(values.dtype).eps * order.abs().amax(-1, keepdim=True)
    close = (order.diff(dim=-1).abs() <= limit).nonzero()
    if len(close):
        row, place = close[0].tolist()
        value = order[row, place].item()
        return f"two of its {'singular values' if bad.name == 'linalgsvd' else 'eigenvalues'} are equal ({value:.4g})"
    if bad.name == "linalgsvd" and bool((order == 0).any()):
        return "one of its singular values is 0"
    return None


def _one_value(bad: BadElement) -> bool:
    """Return whether a variance is taken of one value."""
    given = bad.of("self")
    return given is not None and (given.numel() <= 1 or 1 in given.shape) and bad.is_nan


def _cancels(bad: BadElement) -> bool:
    return math.isinf(bad.at["self"]) and math.isinf(bad.at["other"])


def _zero_times_infinity(bad: BadElement) -> bool:
    factors = [bad.at[name] for name in ("gradient", "self", "other")]
    return bad.is_nan and 0.0 in factors and any(map(math.isinf, factors))


def _beyond_one(bad: BadElement) -> bool:
    return abs(bad.at["self"]) > 1


_CASES = (
    _Case("sqrt", lambda bad: bad.at["self"] < 0 or bad.has_nan("result"), "sqrt of a negative number is NaN",
          "clamp its input, as in x.clamp(min=eps).sqrt()", "1"),
    _Case("sqrt", _zero("self", "result"), "the derivative of sqrt is infinite at 0",
          "keep its input above 0, as in (x + eps).sqrt() or x.clamp(min=eps).sqrt()", "1"),
    _Case("rsqrt", lambda bad: bad.equals("self", 0.0) or bad.equals("result", math.inf), "rsqrt of 0 is infinite",
          "add an eps, as in (x + eps).rsqrt()", "1"),
    _Case("rsqrt", lambda bad: bad.at["self"] < 0 or bad.has_nan("result"), "rsqrt of a negative number is NaN",
          "clamp its input, as in x.clamp(min=eps).rsqrt()", "1"),
    _Case("pow", _zero_to_power, "the derivative of a power below 1 is infinite at 0",
          "keep its input above 0, as in x.clamp(min=eps).pow(p)", "torch.where(mask, x, 1).pow(p)"),
    _Case("pow", lambda bad: bad.at["self"] < 0 and _is_fractional_power(bad), "a negative number to a fractional "
          "power is NaN", "clamp its input, as in x.clamp(min=eps).pow(p), or take x.abs().pow(p) * x.sign()",
          "torch.where(mask, x, 1).pow(p)"),
    _Case("log log2 log10", _zero("self"), "{name} and its derivative are infinite at 0",
          "keep its input above 0, as in x.clamp(min=eps).log(), or take log_softmax or logsigmoid of the logits", "1"),
    _Case("log log2 log10", lambda bad: bad.at["self"] < 0, "{name} of a negative number is NaN",
          "clamp its input, as in x.clamp(min=eps).log()", "1"),
    _Case("log1p", lambda bad: bad.at["self"] <= -1, "log1p is not finite at -1 and below",
          "clamp its input, as in x.clamp(min=-1 + eps).log1p()", "0"),
    _Case("xlogy", lambda bad: bad.equals("other", 0.0), "xlogy and its derivative are not finite where the second "
          "argument is 0", "clamp that argument, as in torch.xlogy(x, y.clamp(min=eps))",
          "torch.xlogy(x, torch.where(mask, y, 1))"),
    _Case("div", _divides_by_zero, "it divides by 0",
          "add an eps to the denominator, or replace it where it is 0, as in a / torch.where(b == 0, 1, b)",
          "a / torch.where(mask, b, 1)"),
    _Case("norm", lambda bad: (r := bad.of("result")) is not None and not bad.is_forward and bool((r == 0).any()),
          "the derivative of this norm is not finite at 0",
          "keep the norm above 0, as in (x.square().sum(-1) + eps).sqrt()", "1"),
    _Case("atan2", _tiny_pair,
          "the derivative of atan2 divides by the sum of the squares of its arguments, which is 0",
          "replace one argument where both are 0, as in torch.atan2(y, torch.where(both_zero, 1, x))", "1"),
    _Case("acos asin atanh", lambda bad: bad.equals("self", 1.0, -1.0), "the derivative of {name} is infinite at 1 "
          "and -1", "clamp its input, as in x.clamp(-1 + eps, 1 - eps), or take torch.atan2 for an angle", "0"),
    _Case("acos asin atanh erfinv", _beyond_one, "{name} is not defined beyond 1 and -1",
          "clamp its input, as in x.clamp(-1 + eps, 1 - eps)", "0"),
    _Case("erfinv", lambda bad: bad.equals("self", 1.0, -1.0), "erfinv is infinite at 1 and -1",
          "clamp its input, as in x.clamp(-1 + eps, 1 - eps)", "0"),
    _Case("acosh", lambda bad: bad.at["self"] <= 1, "the derivative of acosh is not finite at 1 and below",
          "clamp its input, as in x.clamp(min=1 + eps)", "2"),
    _Case("logit", lambda bad: bad.at["self"] <= 0 or bad.at["self"] >= 1, "logit is not finite at 0 and 1",
          "pass an eps, as in torch.logit(x, eps=1e-6)", "0.5"),
    _Case("exp expm1 sinh cosh exp2", _overflows, "{name} overflows in {dtype}",
          "clamp its input, or subtract the maximum first, as softmax and logsumexp do", "0"),
    _Case("crossentropy nllloss", _masked_target, "{found}", "do not mask the class of the target"),
    _Case("softmax logsoftmax crossentropy", _masked_line, "{found} (fully masked)",
          "leave one position of each row unmasked, as in mask | ~mask.any(-1, keepdim=True), or take "
          "torch.nn.functional.scaled_dot_product_attention, which returns 0 there"),
    _Case("crossentropy nllloss", _no_target, "every target is negative, as ignore_index is, so it is a mean of no "
          "element", 'skip such a batch, or take reduction="sum" and divide by the count clamped to 1'),
    _Case("logsumexp logcumsumexp", _empty_line, "{found}, and the derivative of {name} subtracts -inf from -inf",
          "mask with torch.finfo(x.dtype).min in place of -inf, or leave out such rows before {name}"),
    _Case("logaddexp logaddexp2", _cancels,
          "both of its arguments are infinite, and the derivative of {name} subtracts one from the other",
          "start from torch.finfo(x.dtype).min in place of -inf"),
    _Case("ctcloss", _impossible_target, "{found}", "pass zero_infinity=True, or drop such targets"),
    _Case("linalgeigh linalgsvd linalgeig", _equal_values,
          "{found}, and the derivative of the vectors divides by their difference",
          "use only torch.linalg.eigvalsh or svdvals, or separate the values, as in A + eps * torch.arange(n).diag()"),
    _Case("linalgqr", lambda bad: (r := bad.of("R")) is not None and bool((r.diagonal(0, -2, -1) == 0).any()),
          "the matrix does not have full rank, and the derivative of qr solves with R", "add eps * torch.eye(n)"),
    _Case("linalgslogdet linalginvex", lambda bad: True,
          "the matrix is singular, or nearly", "add eps * torch.eye(n), or take torch.linalg.lstsq or pinv"),
    _Case("std var", _one_value, "the variance of one value is 0 / 0", "pass correction=0, or a larger batch"),
    _Case("mean", lambda bad: (given := bad.of("self")) is not None and not given.numel(), "it is the mean of no "
          "element", "check for elements first, as in x.sum() / max(x.numel(), 1)"),
    _Case("sub add", lambda bad: bad.is_nan and _cancels(bad), "its arguments are both infinite",
          "mask with torch.finfo(x.dtype).min in place of -inf"),
    _Case("mul", _zero_times_infinity, "0 * inf is NaN", "replace the infinite factor first, as in "
          "torch.where(x.isinf(), 0, x), not by a product with 0", "torch.where(mask, x, 0) * y"),
)  # fmt: skip


def advice_on(bad: BadElement) -> NanCause | None:
    """Return the cause of a bad element and the remedy; None if the cause is not in the table."""
    name = _NAMES.get(bad.name, bad.name)
    for case in _CASES:
        found = name in case.names.split() and case.holds(bad)
        if not found:
            continue
        filled = {"found": found, "name": name, "dtype": dtype_name(bad.dtype)}
        cause, remedy = case.cause.format(**filled), case.remedy.format(**filled)
        if bad.discarded_by and case.safe:
            cause += f", and {bad.discarded_by} gives that element a gradient of 0, which becomes NaN"
            example = case.safe if "where" in case.safe else f"torch.where(mask, x, {case.safe}).{name}()"
            remedy = f"also replace the input of {name}, as in {example}"
        elif bad.dtype is torch.float16 and 0.0 in [bad.at[each] for each in ("self", "other", "result")]:
            cause += ", and an eps of 1e-8 is 0 in float16"
            remedy = f"compute it in float32, as in x.float(), or {remedy}"
        return NanCause(cause, remedy)
    return _on_overflow(bad)


def _on_overflow(bad: BadElement) -> NanCause | None:
    """Return the advice on an infinite result of finite inputs."""
    if bad.is_nan or not bad.tensors or not bad.dtype.is_floating_point:
        return None
    largest = [abs(bad.at[each]) for each in ("self", "other") if each in bad.at]
    if not bad.is_forward or not largest:
        inputs = [each for each in bad.tensors.values() if each.is_floating_point() and each.numel()]
        largest = [float(computable(each).abs().max()) for each in inputs]
    reach = math.prod(max(each, 1.0) for each in largest) * max(each.numel() for each in bad.tensors.values())
    if bad.name == "square":
        reach *= reach
    if not torch.finfo(bad.dtype).max < reach < math.inf:  # else an input is infinite, or the formula has a pole
        return None
    cause = f"its result is above {torch.finfo(bad.dtype).max:.6g}, the largest {dtype_name(bad.dtype)}"
    if bad.dtype is not torch.float16:
        return NanCause(cause, "lower the learning rate, clip gradients, or normalize the values that grow")
    own = "compute it in float32, as in x.float(), or in bfloat16"
    return NanCause(cause, own if bad.is_forward else f"lower the loss scale, as torch.amp.GradScaler does, or {own}")


def discarding_task(graph: Graph, task: Task) -> str:
    """Return the nearest task that gives discarded elements a gradient of 0, `WhereBackward0 (3rd, m.py:4)`; or ""."""
    todo, seen = [task.id], {task.id}
    for number in todo:
        for edge in graph.in_edges[number]:
            if graph.tasks[edge.task].short_name in _DISCARDING:
                found = graph.tasks[edge.task]
                name = "torch.where" if found.short_name == "Where" else unique_name(graph, found)
                where = "" if found.source is None or name != "torch.where" else f" ({found.source.short})"
                return f"{name}{where}"
            if edge.task not in seen and len(todo) < _MOST_TASKS:
                seen.add(edge.task)
                todo.append(edge.task)
    return ""
