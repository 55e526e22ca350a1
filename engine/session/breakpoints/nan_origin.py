"""Where a NaN or an infinite gradient came from: what came in, what the forward saved, and what made that."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ....inspector.graph.graph import Graph, Task, told_apart
from ....inspector.text.sizes_and_counts import dtype_name, nth
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
"""Per output how a node computes it from what it saved, where each value comes from one value (derivatives.yaml)."""

_NAMES = {"gradient", "self", "other", "result", "exponent"}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cosh": torch.cosh,
    "log": math.log,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
}
"""What the formulas call. To compute one from its own text shows that it is what is told."""

Known = Callable[[int], bool | None]
"""Whether a task that has run gave a gradient that is not finite; None: nobody looked."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of where a bad gradient came from: sentences, and by name the tensors they speak of."""

    lines: tuple[str, ...]
    tensors: dict[str, Tensor]


def origin_of(
    graph: Graph, inputs: Sequence[Tensor | None], output: Output, known: Known, as_received: Collection[int]
) -> Origin:
    """Walks back from a gradient with NaN or infinite elements, which a task has just given.

    What nodes saved is looked at while it is there. What `saved_tensors_hooks` packed (checkpoints) is not unpacked:
    that would run the user's code. To be called `unobserved`, before the task's node is freed.

    Args:
        inputs: the task's input buffer.
        output: the gradient; of a leaf's task what it gets.
        known: what is known of the tasks that ran before.
        as_received: those of which that is known after the engine had summed and cast what they gave.
    """
    task = output.task
    if task.is_leaf:
        came_from = _where_it_came_from(graph, task, known, as_received)
        return Origin((*about(graph, task), *came_from), {"input 0": output.gradient})
    if graph.is_tape:
        return _on_a_tape(graph, inputs, task, known, as_received)
    node = graph.nodes[task.id]
    slots = list(saved_slots(node))
    tensors = {f"input {number}": each for number, each in enumerate(inputs) if each is not None}
    tensors.update((f"saved {slot.name}", slot.tensor) for slot in slots)
    lines = list(about(graph, task))
    told, explained = _at_first_bad(node, inputs, {slot.name: slot.tensor for slot in slots}, output)
    if told:
        lines.append(told)
    came = next((each for each in inputs if each is not None and is_bad(each)), None)
    if came is not None:
        lines.append(f"the gradient that came in already had {what_is_bad(came)}")
        lines += _where_it_came_from(graph, task, known, as_received)
    bad_slots = [slot for slot in slots if is_bad(slot.tensor)]
    walk = _ForwardWalk(graph)
    for slot in bad_slots:
        lines.append(f"what the forward saved as `{slot.name}` has {what_is_bad(slot.tensor)}")
        lines += walk.back_from(slot, node)
    on_the_way = _on_the_way(output)
    lines += on_the_way
    if came is None and not bad_slots and not explained and not on_the_way:
        lines += _overflow(inputs, slots, shown(output))
    return Origin(tuple(lines), tensors)


def _on_a_tape(
    graph: Graph, inputs: Sequence[Tensor | None], task: Task, known: Known, as_received: Collection[int]
) -> Origin:
    """Of a tape's node it is known what came in, and not what it keeps of the forward."""
    tensors = {f"input {number}": each for number, each in enumerate(inputs) if each is not None}
    lines = list(about(graph, task))
    came = next((each for each in tensors.values() if is_bad(each)), None)
    if came is None:
        lines.append(
            "the gradients that came in are finite: its own formula made it, or a value of the forward in that"
        )
    else:
        lines.append(f"the gradient that came in already had {what_is_bad(came)}")
        lines += _where_it_came_from(graph, task, known, as_received)
    return Origin(tuple(lines), tensors)


def shown(output: Output) -> Tensor:
    """The gradient as the node gave it, if that is bad already: it has the places. Else as it is received."""
    return output.raw if is_bad(output.raw) else output.gradient


def _on_the_way(output: Output) -> list[str]:
    """What PyTorch made of a finite gradient between the node that gave it and the next task."""
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
        return ["what the node gave was finite: a hook made it"]
    limit = number_text(torch.finfo(received.dtype).max)
    return [
        f"what the node gave was finite, up to {largest}, and PyTorch has it {' and '.join(made)} on its way: "
        f"{dtype} holds at most {limit}"
    ]


def is_bad(tensor: Tensor) -> bool:
    """Whether an element is NaN or infinite. What can't be read is not."""
    return bad_part(tensor) is not None


def bad_part(tensor: Tensor) -> Tensor | None:
    """The first of its `dense_parts` that has an element which is NaN or infinite."""
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
    """`NaN in 3 of 64 elements, first at [0, 2]`; `-inf at [3]`; `NaN` of a scalar."""
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
    return f"{listed(words)} of {count:,} elements{_of_part(tensor)}{first}"


def _of_part(tensor: Tensor) -> str:
    """Return a phrase for the elements that were read, if they are not the tensor's own."""
    if not computes_itself(tensor) or tensor.is_nested:
        return " that it stores" if tensor.layout in SPARSE else ""
    return " of this rank's part" if local_of(tensor) is not tensor else f" of the {type(tensor).__name__}'s tensors"


def first_bad(tensor: Tensor) -> tuple[int, ...]:
    """The index of the first element that is NaN or infinite."""
    place = int(computable(tensor).isfinite().logical_not().flatten().to(torch.uint8).argmax())
    return tuple(int(each) for each in torch.unravel_index(torch.tensor(place, device="cpu"), tensor.shape))


def has_element(tensor: Tensor) -> bool:
    """Whether it is a dense tensor whose elements can be read one by one."""
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
    """What stood at the place of the first bad element, where shapes allow to say so; and whether that explains it."""
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
    told = formula is not None and _is_the_value(formula, values, result)
    if len(said) == 1 and not told:
        return "", False
    text = f"{f'at {index_text(index)} ' if index else ''}{listed(said)}"
    if not told or formula is None:
        return text, False
    return f"{text}: {formula} = {_filled(formula, values)} = {number_text(result.item())}", True


def _is_the_value(formula: str, values: Mapping[str, object], result: Tensor) -> bool:
    """Whether a formula has this value: a node may compute it otherwise, as that of a norm of another order does."""
    if not all(word in values for word in _words(formula) if word in _NAMES):
        return False
    if any(values.get(name, 2.0) != 2.0 for name in ("ord", "p")):  # of norms only the 2-norm's is written down
        return False
    result = result.cpu()
    for dtype in (result.dtype, torch.complex128 if result.is_complex() else torch.float64):  # kernels compute in wider
        numbers = {
            name: torch.tensor(value, dtype=dtype, device="cpu") for name, value in values.items() if name in _NAMES
        }
        value = eval(formula.replace("²", "**2").replace("³", "**3"), {"__builtins__": {}, **_FUNCTIONS}, numbers)
        if bool(torch.isclose(value.to(result.dtype), result, equal_nan=True)):
            return True
    return False


def _words(formula: str) -> list[str]:
    return "".join(each if each.isalpha() else " " for each in formula).split()


def _filled(formula: str, values: Mapping[str, object]) -> str:
    parts, word = [], ""
    for each in f"{formula}\0":
        if each.isalpha():
            word += each
            continue
        parts += [_factor(values[word]) if word in _NAMES else word, each]
        word = ""
    return "".join(parts).rstrip("\0")


def _factor(value: object) -> str:
    text = number_text(value)
    return f"({text})" if text.startswith("-") else text


def value_at(tensor: Tensor, index: tuple[int, ...], shape: tuple[int, ...]) -> object | None:
    """The element that stands at this index of a tensor of `shape`, if the tensor is of it or broadcasts to it."""
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


def _where_it_came_from(graph: Graph, task: Task, known: Known, as_received: Collection[int]) -> Iterator[str]:
    """Along the gradients: the earliest task known to have given a bad one."""
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
        yield f"the first task known to have given one is {about}"
    if any(root.task == current for root in graph.roots) and all(known(giver) is False for giver in givers):
        if current == task.id:
            yield "it is the gradient with which the backward began (grad_tensors)"
        return
    if current == task.id and givers and all(known(giver) is False for giver in givers):
        made = "a hook made it"
        if len(givers) > 1:
            made = f"their sum overflowed, or {made}"
        if not all(giver in as_received for giver in givers):
            made = f"PyTorch's sum over what was broadcast, or its cast, overflowed, or {made}"
        yield f"what {listed([told_apart(graph, giver) for giver in givers])} gave was finite: {made}"
    elif any(known(giver) is None for giver in givers):
        yield (
            "nobody looked at the gradients before that: watch all of them from the start, or record them "
            '(trace="cheap")'
        )


class _ForwardWalk:
    """Goes back through the forward, as far as nodes that have not been freed still keep its values."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ids = {node: task_id for task_id, node in enumerate(graph.nodes)}
        self._made: dict[Node, list[Tensor]] | None = None

    def back_from(self, slot: SavedSlot, keeper: Node) -> Iterator[str]:
        """What is known of how a bad value came to be."""
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
                f"the earliest bad value that can still be seen went into {told_apart(graph, task)} in the forward as "
                f"`{given.name}`, which has {what_is_bad(given.tensor)}{f': {code}' if code else ''}"
            )
            yield self._from_outside(given)
            return
        task = graph.tasks[self._ids[first]]
        code = code_of(task)
        described = f"{told_apart(graph, task)}{f': {code}' if code else ''}"
        if task.is_leaf:
            yield f"{task.parameter or 'a leaf'} itself has {what_is_bad(value)}"
        elif first is keeper:
            yield "this task's own operation made it in the forward" + ("" if clean else "; nobody keeps what went in")
        else:
            unknown = "" if clean else "; nobody keeps what went in, which may have been bad"
            what = "it" if first is maker else "the earliest bad value that can still be seen"
            yield f"{what} was made in the forward by {described}{unknown}"
        for name, each in clean:
            index = first_bad(value)
            at = value_at(each, index, value.shape)
            where = "" if at is None else f": {f'at {index_text(index)} ' if index else ''}it is {number_text(at)}"
            yield f"what went into that as `{name}` is finite{where}"

    def _from_outside(self, slot: SavedSlot) -> str:
        if slot.modified:
            return "it has been modified in place since: what made it can't be told"
        for task_id, leaf in self._graph.leaves.items():
            if storage_of(leaf) == storage_of(slot.tensor) is not None:
                return f"that is {self._graph.tasks[task_id].parameter or 'a leaf'} itself"
        return "no operation of this graph made it: it is data, or was made without a graph (no_grad, detach)"

    def _place(self, node: Node) -> int:
        """In the order of the forward: leaves were there before."""
        task_id = self._ids[node]
        return -1 if self._graph.tasks[task_id].is_leaf else task_id

    def _earliest(
        self, maker: Node, bad: Tensor
    ) -> tuple[Node, Tensor, list[tuple[str, Tensor]], tuple[Node, SavedSlot] | None]:
        """The earliest operation whose visible result is bad, that result, and what is seen to have gone into it; and
        what went into one of those on the way was bad already, and made by none of them."""
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
                elif not results:  # not seen: it may lie before
                    stack.append(child)
        clean = [
            (slot.name, slot.tensor)
            for slot in saved_slots(first)
            if slot.maker is not first and all(map(has_element, (value, slot.tensor))) and not is_bad(slot.tensor)
        ]
        return first, value, clean, self._from_before(first, seen)

    def _from_before(self, first: Node, on_the_way: Collection[Node]) -> tuple[Node, SavedSlot] | None:
        """The earliest operation, not after `first`, that was given a bad value which none of the graph made."""
        for node in sorted(on_the_way, key=self._place):
            if self._place(node) > self._place(first):
                break
            for slot in saved_slots(node):
                if (slot.maker is None or slot.maker not in self._ids) and is_bad(slot.tensor):
                    return node, slot
        return None

    def _results(self, node: Node) -> list[Tensor]:
        """The values of this operation's result that nodes keep; of a leaf itself."""
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
    """The forward's line, and of a module that was called several times which call it was."""
    if code := code_of(task):
        yield f"the forward's line: {code}"
    if task.call is not None:
        call = graph.calls[task.call]
        same = [each.index for each in graph.calls if each.path == call.path]
        if call.index or len(same) > 1:
            # calls without a task here, such as those of other backwards, are numbered, too
            called = f"of {len(same)} calls" if max(same) < len(same) else "call"
            path = f"module {call.path}" if call.path.isdigit() else call.path or "the model"
            yield f"it belongs to the {nth(call.index + 1)} {called} of {path} ({call.class_name})"


def code_of(task: Task) -> str:
    """The forward's line, where it can be read: `y = torch.log(p)`."""
    code = () if task.source is None else task.source.code()
    return code[0].strip() if code else ""


def _overflow(inputs: Sequence[Tensor | None], slots: Sequence[SavedSlot], output: Tensor) -> Iterator[str]:
    """All that went in is finite, and nothing shows how it could become infinite but its size."""
    if not has_element(output) or not bool(computable(output).isinf().any()):
        return
    sizes = []
    reach = 1.0  # what a product of them all, summed, may come to; what divides by a small number goes beyond it
    for name, each in [("the incoming gradient", inputs[0] if inputs else None)] + [
        (f"saved `{slot.name}`", slot.tensor) for slot in slots
    ]:
        if each is not None and has_element(each):
            largest = float(computable(each).abs().max())
            sizes.append(f"{name} up to {number_text(largest)}")
            reach *= max(largest, 1.0)
    reach *= max((each.numel() for each in inputs if each is not None), default=1)
    if sizes:
        text = f"all that went in is finite ({listed(sizes)})"
        limit = torch.finfo(output.dtype).max
        yield f"{text}: {dtype_name(output.dtype)} holds at most {number_text(limit)}" if reach > limit else text


def number_text(value: object) -> str:
    """A value in six digits."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return f"{value:.6g}"
    return str(value)


def index_text(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
