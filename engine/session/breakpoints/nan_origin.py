"""The origin of a NaN or infinite gradient: the incoming gradients, the saved tensors, and the operations that made
those."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ....inspector.graph.graph import Graph, Task, unique_name
from ....inspector.graph.phrases import joined
from ....inspector.text.sizes_and_counts import dtype_name, index_text, nth, number_text
from ....inspector.torch_private.nodes import leaf_of
from ....inspector.torch_private.saved_variables import SavedSlot, saved_numbers, saved_slots
from ....inspector.torch_private.tensors import (
    SPARSE,
    computable,
    computes_itself,
    elements_of,
    is_abstract,
    local_of,
    storage_of,
)
from .nan_remedies import TAKES_MASKS, BadElement, NanCause, Numbers, advice_on, discarding_task
from .watch_conditions import Output

FORMULAS: dict[str, tuple[str, ...]] = {
    "Acos": ("-gradient / sqrt(1 - self²)",),
    "Acosh": ("gradient / sqrt(self² - 1)",),
    "Asin": ("gradient / sqrt(1 - self²)",),
    "Atanh": ("gradient / (1 - self²)",),
    "Cosh": ("gradient * sinh(self)",),
    "Div": ("gradient / other", "-gradient * self / other²"),
    "Exp": ("gradient * result",),
    "Expm1": ("gradient * (result + 1)",),
    "LinalgVectorNorm": ("gradient * self / result",),
    "Log": ("gradient / self",),
    "Log10": ("gradient / (self * log(10))",),
    "Log1P": ("gradient / (self + 1)",),
    "Log2": ("gradient / (self * log(2))",),
    "Mul": ("gradient * other", "gradient * self"),
    "Norm": ("gradient * self / result",),
    "Pow": ("gradient * exponent * self ** (exponent - 1)",),
    "Reciprocal": ("-gradient * result²",),
    "Rsqrt": ("-gradient / 2 * result³",),
    "Sinh": ("gradient * cosh(self)",),
    "Sqrt": ("gradient / (2 * result)",),
    "Tan": ("gradient * (1 + result²)",),
}
"""For each output, the formula of an elementwise node in terms of its saved tensors (derivatives.yaml)."""

_NAMES = {"gradient", "self", "other", "result", "exponent"}
_WORD = re.compile("[a-z]+")
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cosh": torch.cosh,
    "log": math.log,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
}
"""Functions used in the formulas. Evaluating a formula's text ensures that the text shown is the one computed."""


class Earlier(NamedTuple):
    """The readings of earlier tasks.

    Attributes:
        is_bad: tells whether a task returned a non-finite gradient; None if its gradients were not read.
        as_received: the tasks for which that is known after the engine's sums and casts.
        causes: by task, the known cause of a non-finite gradient that begins there.
    """

    is_bad: Callable[[int], bool | None]
    as_received: Collection[int]
    causes: Mapping[int, NanCause]


@dataclass(frozen=True, slots=True)
class Origin:
    """The known origin of a bad gradient: sentences, the tensors they refer to by name, and the remedy."""

    lines: tuple[str, ...]
    tensors: dict[str, Tensor]
    advice: NanCause | None = None


def origin_of(graph: Graph, inputs: Sequence[Tensor | None], output: Output, earlier: Earlier) -> Origin:
    """Trace a gradient with NaN or infinite elements, just returned by a task, back to its origin.

    Saved tensors are read before they are freed. Tensors packed by `saved_tensors_hooks` (checkpoints) are not
    unpacked, because that would run the user's code. Must be called `unobserved`, before the task's node is freed.

    Args:
        graph: the graph.
        inputs: the task's input buffer.
        output: the gradient; for a leaf's task, the gradient it receives.
        earlier: the readings of earlier tasks.
    """
    task = output.task
    if task.is_leaf:
        came_from = _where_it_came_from(graph, task, earlier)
        return Origin((*about(graph, task), *came_from), {"input 0": output.gradient})
    if graph.is_tape:
        return _on_a_tape(graph, inputs, task, earlier)
    node = graph.nodes[task.id]
    slots = list(saved_slots(node))
    tensors = {f"input {number}": each for number, each in enumerate(inputs) if each is not None}
    tensors.update((f"saved {slot.name}", slot.tensor) for slot in slots)
    lines = list(about(graph, task))
    values, explained = _at_first_bad(node, inputs, {slot.name: slot.tensor for slot in slots}, output)
    if values:
        lines.append(values)
    came = next((each for each in inputs if each is not None and is_bad(each)), None)
    if came is not None:
        lines.append(f"the incoming gradient already had {what_is_bad(came)}")
        lines += _where_it_came_from(graph, task, earlier)
    bad_slots = [slot for slot in slots if is_bad(slot.tensor)]
    walk = _ForwardWalk(graph)
    for slot in bad_slots:
        lines.append(f"the saved tensor `{slot.name}` has {what_is_bad(slot.tensor)}")
        lines += walk.back_from(slot, node)
    on_the_way = _on_the_way(output)
    lines += on_the_way
    if came is None and not bad_slots and not explained and not on_the_way:
        lines += _overflow(inputs, slots, shown(output))
    advice = None
    if came is None and not on_the_way and all(_begins_here(node, task, slot) for slot in bad_slots):
        advice = _advice(graph, node, inputs, slots, output)
    return Origin(tuple(lines), tensors, advice)


def _begins_here(node: Node, task: Task, slot: SavedSlot) -> bool:
    """Return whether a bad saved tensor is the operation's own result, data, or an intended -inf."""
    if slot.maker is None or slot.maker is node:
        return True
    return task.short_name in TAKES_MASKS and _is_mask(slot.tensor)


def _is_mask(tensor: Tensor) -> bool:
    """Return whether its only bad values are -inf."""
    values = computable(tensor)
    return bool((values.isfinite() | values.isneginf()).all())


def _advice(
    graph: Graph, node: Node, inputs: Sequence[Tensor | None], slots: Sequence[SavedSlot], output: Output
) -> NanCause | None:
    """Return the cause and the remedy of a bad gradient that begins at this task, see `nan_remedies`."""
    bad = bad_part(shown(output))
    if bad is None:
        return None
    index = first_bad(bad)
    tensors = {slot.name: slot.tensor for slot in slots}
    if inputs and inputs[0] is not None:
        tensors["gradient"] = inputs[0]
    at = Numbers(saved_numbers(node))
    for name, each in tensors.items():
        value = value_at(each, index, bad.shape)
        if isinstance(value, int | float):
            at[name] = value
    is_nan = not bool(computable(bad)[index].isinf())
    discarded = discarding_task(graph, output.task) if at["gradient"] == 0 and is_nan else ""
    name = output.task.short_name.lower()
    return advice_on(BadElement(name, at, tensors, bad.dtype, is_nan, False, discarded))


def _advice_on_forward(task: Task, node: Node, result: Tensor, inputs: Mapping[str, Tensor]) -> NanCause | None:
    """Return the cause and the remedy of a bad result of the forward, whose inputs are finite."""
    index, at = first_bad(result), Numbers(saved_numbers(node))
    for name, each in inputs.items():
        if isinstance(value := value_at(each, index, result.shape), int | float):
            at[name] = value
    is_nan = not bool(computable(result)[index].isinf())
    return advice_on(BadElement(task.short_name.lower(), at, inputs, result.dtype, is_nan, True))


def _on_a_tape(graph: Graph, inputs: Sequence[Tensor | None], task: Task, earlier: Earlier) -> Origin:
    """Return the origin for a tape's node, whose saved values are unknown."""
    tensors = {f"input {number}": each for number, each in enumerate(inputs) if each is not None}
    lines = list(about(graph, task))
    came = next((each for each in tensors.values() if is_bad(each)), None)
    if came is None:
        lines.append(
            "the incoming gradients are finite, so its formula, or a value of the forward in it, is the origin"
        )
    else:
        lines.append(f"the incoming gradient already had {what_is_bad(came)}")
        lines += _where_it_came_from(graph, task, earlier)
    return Origin(tuple(lines), tensors)


def shown(output: Output) -> Tensor:
    """Return the gradient as the node returned it if that is bad already, since it has the original indices; otherwise
    as received."""
    return output.raw if is_bad(output.raw) else output.gradient


def _on_the_way(output: Output) -> list[str]:
    """Explain how PyTorch turned a finite gradient into a bad one between the node and the next task."""
    raw, received = output.raw, output.gradient
    if raw is received or not has_element(raw) or is_bad(raw):
        return []
    largest = number_text(float(computable(raw).abs().max()))
    dtype = dtype_name(received.dtype)
    made = []
    if raw.shape != received.shape:
        made.append(f"summed from shape {tuple(raw.shape)} to {tuple(received.shape)}")
    if raw.dtype != received.dtype:
        made.append(f"cast from {dtype_name(raw.dtype)} to {dtype}")
    if not made:
        return ["the node returned a finite gradient, and a hook changed it"]
    limit = number_text(torch.finfo(received.dtype).max)
    return [
        f"the node returned a finite gradient, up to {largest}, which PyTorch then {' and '.join(made)}; "
        f"the largest {dtype} is {limit}"
    ]


def is_bad(tensor: Tensor) -> bool:
    """Return whether an element is NaN or infinite; False for tensors that cannot be read."""
    return bad_part(tensor) is not None


def bad_part(tensor: Tensor) -> Tensor | None:
    """Return the first of the `dense_parts` with a NaN or infinite element."""
    return next((part for part in dense_parts(tensor) if _has_bad(part)), None)


def _has_bad(values: Tensor) -> bool:
    if not (values.is_floating_point() or values.is_complex()) or not values.numel():
        return False
    values = computable(values)
    return not bool(values.sum().isfinite()) and not bool(values.isfinite().all())


def dense_parts(tensor: Tensor) -> Sequence[Tensor]:
    """Return the tensors that hold its elements: itself, a sparse or nested one's values, a wrapper's inner tensors."""
    return elements_of(tensor).parts


def what_is_bad(tensor: Tensor | None) -> str:
    """Describe the bad elements: `NaN in 3 of 64 elements, first at [0, 2]`; `-inf at [3]`; `NaN` for a scalar."""
    parts = () if tensor is None else dense_parts(tensor)
    bad = next(filter(_has_bad, parts), None)
    if tensor is None or bad is None:
        return "NaN or infinite elements"
    if not tensor.dim() and len(parts) == 1:
        return number_text(bad.item())
    found = [computable(each) for each in parts]
    nan, inf = (sum(int(is_what(each).sum()) for each in found) for is_what in (torch.isnan, torch.isinf))
    below = sum(int(each.isneginf().sum()) for each in found if not each.is_complex())
    counts = [("NaN", nan), ("inf", inf - below), ("-inf", below)]
    words = [f"{word} in {count:,}" for word, count in counts if count]
    count = sum(each.numel() for each in found)
    first = f", first at {index_text(first_bad(bad))}" if bad.shape == tensor.shape and len(parts) == 1 else ""
    part = ""  # names the elements that were read, if they are not the tensor's own
    if not computes_itself(tensor) or tensor.is_nested:
        part = " that it stores" if tensor.layout in SPARSE else ""
    else:
        local = local_of(tensor) is not tensor
        part = " of this rank's part" if local else f" of the {type(tensor).__name__}'s tensors"
    return f"{joined(words)} of {count:,} elements{part}{first}"


def first_bad(tensor: Tensor) -> tuple[int, ...]:
    """Return the index of the first element that is NaN or infinite."""
    place = int(computable(tensor).isfinite().logical_not().flatten().to(torch.uint8).argmax())
    return tuple(int(each) for each in torch.unravel_index(torch.tensor(place, device="cpu"), tensor.shape))


def has_element(tensor: Tensor) -> bool:
    """Return whether the tensor is dense and its elements can be read one by one."""
    return (
        not is_abstract(tensor)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and tensor.device.type != "meta"
        and (tensor.is_floating_point() or tensor.is_complex())
        and not computes_itself(tensor)
        and tensor.numel() > 0
    )


def _at_first_bad(
    node: Node, inputs: Sequence[Tensor | None], saved: dict[str, Tensor], output: Output
) -> tuple[str, bool]:
    """Describe the values at the index of the first bad element, if shapes allow it; return also whether they explain
    it."""
    bad = shown(output)
    gradient = next((each for each in inputs if each is not None), None)
    if gradient is None or not has_element(bad) or not is_bad(bad) or _on_the_way(output):
        return "", False
    index = first_bad(bad)
    found = value_at(gradient, index, bad.shape)
    if found is None:
        return "", False
    values = {"gradient": found, **saved_numbers(node)}
    said = [f"the incoming gradient is {number_text(found)}"]
    for name, each in saved.items():
        value = value_at(each, index, bad.shape)
        if value is not None:
            values[name] = value
            said.append(f"saved `{name}` is {number_text(value)}")
    formulas = FORMULAS.get(output.task.short_name, ())
    formula = formulas[output.number] if output.number < len(formulas) else None
    result = bad[index]
    is_formula = formula is not None and _is_the_value(formula, values, result)
    if len(said) == 1 and not is_formula:
        return "", False
    text = f"{f'at {index_text(index)} ' if index else ''}{joined(said, len(said))}"
    if not is_formula or formula is None:
        return text, False
    filled = _WORD.sub(lambda word: _number_of(word[0], values), formula)
    return f"{text}: {formula} = {filled} = {number_text(result.item())}", True


def _number_of(word: str, values: Mapping[str, object]) -> str:
    """Return a variable of a formula as its number, in parentheses if it is negative; other words as they are."""
    text = number_text(values[word]) if word in _NAMES else word
    return f"({text})" if text.startswith("-") else text


def _is_the_value(formula: str, values: Mapping[str, object], result: Tensor) -> bool:
    """Return whether a formula yields this value; a node may use another formula, as norms of other orders do."""
    if not all(word in values for word in _WORD.findall(formula) if word in _NAMES):
        return False
    if any(values.get(name, 2.0) != 2.0 for name in ("ord", "p")):  # FORMULAS has only the 2-norm's formula
        return False
    result = result.cpu()
    for dtype in (
        result.dtype,
        torch.complex128 if result.is_complex() else torch.float64,
    ):  # kernels may compute in a wider dtype
        numbers = {
            name: torch.tensor(value, dtype=dtype, device="cpu") for name, value in values.items() if name in _NAMES
        }
        value = eval(formula.replace("²", "**2").replace("³", "**3"), {"__builtins__": {}, **_FUNCTIONS}, numbers)
        if bool(torch.isclose(value.to(result.dtype), result, equal_nan=True)):
            return True
    return False


def value_at(tensor: Tensor, index: tuple[int, ...], shape: tuple[int, ...]) -> object | None:
    """Return the element at this index of a tensor of `shape`, if the tensor has that shape or broadcasts to it."""
    if not has_element(tensor) and (
        tensor.layout is not torch.strided or not tensor.numel() or tensor.dtype.is_complex
    ):
        return None
    if tensor.dim() > len(shape):
        return None
    own = index[len(index) - tensor.dim() :] if tensor.dim() else ()
    sizes = zip(own, tensor.shape, shape[len(shape) - tensor.dim() :], strict=True) if tensor.dim() else ()
    place = []
    for at, size, wanted in sizes:
        if size not in (1, wanted):
            return None
        place.append(0 if size == 1 else at)
    return tensor[tuple(place)].item()


def _where_it_came_from(graph: Graph, task: Task, earlier: Earlier) -> Iterator[str]:
    """Follow the gradients back to the earliest task known to have returned a bad one."""
    known = earlier.is_bad
    current, seen = task.id, {task.id}
    while True:
        givers = [edge.task for edge in graph.in_edges[current]]
        bad = next((giver for giver in givers if known(giver) and giver not in seen), None)
        if bad is None:
            break
        seen.add(bad)
        current = bad
    about = graph.describe(current)
    givers = [edge.task for edge in graph.in_edges[current]]
    if current != task.id:
        yield f"the first task known to have returned one is {about}{earlier.causes.get(current, '')}"
    if any(root.task == current for root in graph.roots) and all(known(giver) is False for giver in givers):
        if current == task.id:
            yield "it is the root gradient passed to the backward (grad_tensors)"
        return
    if current == task.id and givers and all(known(giver) is False for giver in givers):
        made = "a hook changed one"
        if len(givers) > 1:
            made = f"their sum overflowed, or {made}"
        if not all(giver in earlier.as_received for giver in givers):
            made = f"PyTorch's sum over broadcast dimensions, or its cast, overflowed, or {made}"
        names = joined([unique_name(graph, giver) for giver in givers], len(givers))
        yield f"the gradients returned by {names} were finite: {made}"
    elif any(known(giver) is None for giver in givers):
        yield ('earlier gradients were not read; watch all of them from the start, or record them (trace="cheap")')


class _ForwardWalk:
    """A walk back through the forward, as far as nodes that are not freed have saved its values."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ids = {node: task_id for task_id, node in enumerate(graph.nodes)}
        self._made: dict[Node, list[Tensor]] | None = None

    def back_from(self, slot: SavedSlot, keeper: Node) -> Iterator[str]:
        """Describe how a bad saved value was created."""
        maker, graph = slot.maker, self._graph
        if maker is None or maker not in self._ids:
            yield self._from_outside(slot)
            return
        first, value, clean, outside = self._earliest(maker, slot.tensor)
        if outside is not None:
            node, given = outside
            task = graph.tasks[self._ids[node]]
            code = code_of(task)
            yield (
                f"the earliest bad value that is still saved was the input `{given.name}` of "
                f"{unique_name(graph, task)} in the forward, which has "
                f"{what_is_bad(given.tensor)}{f': {code}' if code else ''}"
            )
            yield self._from_outside(given)
            return
        task = graph.tasks[self._ids[first]]
        code = code_of(task)
        described = f"{unique_name(graph, task)}{f': {code}' if code else ''}"
        if task.is_leaf:
            yield f"{task.parameter or 'a leaf'} itself has {what_is_bad(value)}"
        elif first is keeper:
            yield "this task's operation created it in the forward" + ("" if clean else "; its inputs were not saved")
        else:
            unknown = "" if clean else "; its inputs were not saved and may have been bad"
            value_name = "it" if first is maker else "the earliest bad value that is still saved"
            yield f"{value_name} was created in the forward by {described}{unknown}"
        for name, each in clean:
            index = first_bad(value)
            at = value_at(each, index, value.shape)
            where = "" if at is None else f": {f'at {index_text(index)} ' if index else ''}it is {number_text(at)}"
            yield f"its input `{name}` is finite{where}"
        if clean and (cause := _advice_on_forward(task, first, value, dict(clean))) is not None:
            yield f"{cause.cause}: {cause.remedy}"

    def _from_outside(self, slot: SavedSlot) -> str:
        if slot.modified:
            return "it has been modified in place since, so its origin is unknown"
        for task_id, leaf in self._graph.leaves.items():
            if storage_of(leaf) == storage_of(slot.tensor) is not None:
                return f"that is {self._graph.tasks[task_id].parameter or 'a leaf'} itself"
        return "no operation of this graph created it: it is data, or was computed without a graph (no_grad, detach)"

    def _place(self, node: Node) -> int:
        """Return a node's position in the forward; leaves come first."""
        task_id = self._ids[node]
        return -1 if self._graph.tasks[task_id].is_leaf else task_id

    def _earliest(
        self, maker: Node, bad: Tensor
    ) -> tuple[Node, Tensor, list[tuple[str, Tensor]], tuple[Node, SavedSlot] | None]:
        """Return the earliest operation whose visible result is bad, that result, and its visible inputs if finite.

        The last element is a bad input of an operation on the way that no node of the graph created, if there is one.
        """
        first, value = maker, bad
        stack, seen = [maker], {maker}
        while stack:
            node = stack.pop()
            for child, _ in node.next_functions:
                if child is None or child in seen or child not in self._ids:
                    continue
                seen.add(child)
                results = self._results(child)
                worse = next((each for each in results if is_bad(each)), None)
                if worse is not None:
                    if self._place(child) < self._place(first):
                        first, value = child, worse
                    stack.append(child)
                elif not results:  # unknown result: the origin may lie before
                    stack.append(child)
        clean = [
            (slot.name, slot.tensor)
            for slot in saved_slots(first)
            if slot.maker is not first and all(map(has_element, (value, slot.tensor))) and not is_bad(slot.tensor)
        ]
        return first, value, clean, self._from_before(first, seen)

    def _from_before(self, first: Node, on_the_way: Collection[Node]) -> tuple[Node, SavedSlot] | None:
        """Return the earliest operation, not after `first`, with a bad input that no node of the graph created."""
        for node in sorted(on_the_way, key=self._place):
            if self._place(node) > self._place(first):
                break
            for slot in saved_slots(node):
                if (slot.maker is None or slot.maker not in self._ids) and is_bad(slot.tensor):
                    return node, slot
        return None

    def _results(self, node: Node) -> list[Tensor]:
        """Return the saved values of this operation's result; for a leaf, the leaf itself."""
        if self._graph.tasks[self._ids[node]].is_leaf:
            return [leaf_of(node)]
        if self._made is None:
            self._made = {}
            for each in self._graph.nodes:
                for slot in saved_slots(each):
                    if slot.maker is not None:
                        self._made.setdefault(slot.maker, []).append(slot.tensor)
        return self._made.get(node, [])


def about(graph: Graph, task: Task) -> Iterator[str]:
    """Yield the forward's line, and for a module called several times the number of the call."""
    if code := code_of(task):
        yield f"the forward's line: {code}"
    if task.call is not None:
        call = graph.calls[task.call]
        same = [each.index for each in graph.calls if each.path == call.path]
        if call.index or len(same) > 1:
            # calls without a task here, such as those of other backwards, are also counted
            called = f"of {len(same)} calls" if max(same) < len(same) else "call"
            path = f"module {call.path}" if call.path.isdigit() else call.path or "the model"
            yield f"it belongs to the {nth(call.index + 1)} {called} of {path} ({call.class_name})"


def code_of(task: Task) -> str:
    """Return the forward's line if it can be read: `y = torch.log(p)`."""
    code = () if task.source is None else task.source.code()
    return code[0].strip() if code else ""


def _overflow(inputs: Sequence[Tensor | None], slots: Sequence[SavedSlot], output: Tensor) -> Iterator[str]:
    """Yield the sizes of the inputs if all are finite and only their sizes can explain an infinite output."""
    if not has_element(output) or not bool(computable(output).isinf().any()):
        return
    sizes = []
    reach = 1.0  # bound of a summed product of all inputs; divisions by small numbers may exceed it
    for name, each in [("the incoming gradient", inputs[0] if inputs else None)] + [
        (f"saved `{slot.name}`", slot.tensor) for slot in slots
    ]:
        if each is not None and has_element(each):
            largest = float(computable(each).abs().max())
            sizes.append(f"{name} up to {number_text(largest)}")
            reach *= max(largest, 1.0)
    reach *= max((each.numel() for each in inputs if each is not None), default=1)
    if sizes:
        text = f"all inputs are finite ({joined(sizes, len(sizes))})"
        limit = torch.finfo(output.dtype).max
        yield f"{text}; the largest {dtype_name(output.dtype)} is {number_text(limit)}" if reach > limit else text
