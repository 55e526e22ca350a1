"""A check of a task's backward: `session.check(task)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite, isnan

import torch
from torch import Tensor
from torch.autograd.function import Function

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.kinds import Kind
from ...inspector.graph.operation_inputs import KeptInputs
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.graph.phrases import as_sentence, joined, uncapitalized
from ...inspector.torch_private.operators import InFloat64
from ...inspector.torch_private.tensors import dense
from .check_custom_function import (
    Returned,
    ask_backward,
    gradients_for,
    line_of_backward,
    same_values,
    wrong_form,
    wrong_gradients,
)
from .check_finite_differences import (
    ALLOWED,
    DIRECTIONS,
    STEP,
    Element,
    FiniteDifferences,
    furthest_element,
    is_symmetric,
)
from .check_precision import compare_own, inputs_with_gradient
from .check_saved_on_ctx import changed_on_ctx, check_attributes, modified_since, other_random_numbers, written_unmarked
from .check_second_derivative import second_derivative_faults
from .float64_replay import OperationReplay, SharedChecks, UncheckableError, accelerators_of, in_a_clean_thread

_WORDS = {True: "right", False: "wrong", None: "not checked"}
_KEEPING = (
    "`with ts.capture(model, keep_inputs=True):`, `%%tapescope --keep-inputs LOSS` or `tapescope debug --keep-inputs` "
    "keep them (but not inside a transform of torch.func)"
)
_ATTEMPTS = 3
_OTHER_NUMBERS = 2  # a seed that no replay uses
_NOTHING_TO_CHECK = {
    Kind.ACCUMULATE_GRAD: "it accumulates its gradient into the .grad of its leaf, which is not a derivative",
    Kind.COMPILED: "it is a region compiled by torch.compile; check the tasks of the module without compiling it",
    Kind.CHECKPOINT: "it is a reentrant checkpoint, which runs a nested backward; check the tasks without it",
    Kind.MODULE_HOOK: "it calls a module's full backward hooks and passes the gradients on",
    Kind.ERROR: "it raises whenever it runs",
}


@dataclass(frozen=True, slots=True, repr=False)
class Check:
    """The result of checking a task's backward.

    Attributes:
        task: id of the task.
        what: a description of the task.
        ok: whether its gradients are right; None if that could not be decided.
        lines: what is wrong, what was compared and how large the difference is, or why it could not be compared; one
            sentence each.
        warnings: those of the lines about problems that do not make a gradient wrong, such as memory kept too long.
        elements: the elements whose gradients differ most from finite differences, one per wrong gradient.
    """

    task: int
    what: str
    ok: bool | None
    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    elements: tuple[Element, ...] = ()

    @property
    def verdict(self) -> str:
        """The verdict: `right`, `wrong`, `not checked`, or `right, but it keeps x as ctx.x, outside
        ctx.save_for_backward`."""
        if self.ok is False or not self.warnings:
            return _WORDS[self.ok]
        heads = [each.partition(": ")[0].rstrip(".") for each in self.warnings]
        return f"{_WORDS[self.ok]}, but {', and '.join(uncapitalized(head) for head in heads)}"

    def __repr__(self) -> str:
        return f"<Check of {self.what}: {self.verdict}>"

    def __str__(self) -> str:
        return "\n".join([f"{self.what}: {self.verdict}", *(f"  {line}" for line in self.lines)])

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(line)}</li>" for line in self.lines)
        return f"<div><p><b>{escape(self.what)}: {escape(self.verdict)}</b></p><ul>{lines}</ul></div>"


@dataclass(slots=True)
class _Findings:
    """Faults, warnings and notes, without capital letters and full stops."""

    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)

    def add(self, other: _Findings) -> None:
        self.faults += other.faults
        self.warnings += other.warnings
        self.notes += other.notes
        self.elements += other.elements


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of an operation with finite differences; `reason` says why it could not be compared."""

    findings: _Findings
    at_kink: bool
    reason: UncheckableError | None


def check_task(
    graph: Graph,
    task: Task | int,
    gradients: Sequence[Tensor | None] | None = None,
    known: SharedChecks | None = None,
    second: bool = False,
) -> Check:
    """Compare a task's backward with finite differences of its forward operation, and its precision with float64.

    The operation is replayed in float64 on the inputs kept by a capture (`ts.capture(keep_inputs=True)`), each time
    with the same random numbers. Its derivative is compared with finite differences along random directions, and for
    small operations also element by element with `torch.autograd.gradcheck`. Then the task's own node is called and
    compared with the corresponding node of the replay. No hook is called, nothing is freed, no random number is
    consumed, and .grad does not change. A custom Function's forward and backward do run, with their side effects.

    For a custom Function, the check finds which gradient is wrong and how: in the wrong place, missing, or of a wrong
    shape. It also finds tensors kept outside `save_for_backward`, and a backward that depends on more than its saved
    tensors. For a wrong gradient it shows the element that differs most from finite differences.

    Args:
        graph: the graph, with its nodes.
        task: the task or its number.
        gradients: the task's input buffer; random gradients replace missing ones.
        known: the state shared by checks of this graph's tasks; this call adds to it.
        second: whether to also compare its second derivative.

    Returns:
        The result.
    """
    task = graph.task(task)
    findings = _Findings()
    compared = False
    try:
        operation, inputs = _what_to_replay(graph, task, findings)
        _compare_in_thread(graph, task, operation, inputs, gradients, findings, known or SharedChecks(graph), second)
        compared = True
    except UncheckableError as reason:
        findings.notes.insert(0, f"its derivative is not checked: {reason}")
    ok = False if findings.faults else True if compared else None
    warnings = tuple(map(as_sentence, findings.warnings))
    lines = (*map(as_sentence, findings.faults), *warnings, *map(as_sentence, findings.notes))
    return Check(task.id, graph.describe(task), ok, lines, warnings, tuple(findings.elements))


def _what_to_replay(graph: Graph, task: Task, findings: _Findings) -> tuple[Operation, KeptInputs]:
    """Return the operation and its kept inputs; faults visible on the node are added to `findings`."""
    if task.kind is Kind.CHECKPOINT and not getattr(graph.nodes[task.id], "preserve_rng_state", True):
        findings.warnings.append(
            "its region is recomputed without the forward's random state (preserve_rng_state=False): gradients through "
            "dropout in it are of another mask; pass preserve_rng_state=True to checkpoint()"
        )
    if task.kind in _NOTHING_TO_CHECK:
        raise UncheckableError(_NOTHING_TO_CHECK[task.kind])
    if graph.is_tape:
        raise UncheckableError(
            "it belongs to HIPS autograd, and its forward is not kept; use autograd.test_util.check_grads"
        )
    if not graph.nodes:
        raise UncheckableError(graph.why_no_nodes)
    node, operation = graph.nodes[task.id], task.operation
    inputs = operation.inputs if isinstance(operation, Operation) else None
    findings.faults += modified_since(node, inputs)
    if task.kind is Kind.FUNCTION:
        faults, warnings, others = check_attributes(node, inputs)
        findings.faults += faults
        findings.warnings += warnings
        if others:
            names = " and ".join(f"ctx.{name}" for name in others)
            findings.notes.append(f"it keeps other tensors as {names}, which stay in memory as long as the graph")
    if not isinstance(operation, Operation):
        raise UncheckableError(f"its forward was not captured, so its inputs were not kept: {_KEEPING}")
    if isinstance(operation.function, type) and not issubclass(operation.function, Function):
        raise UncheckableError(
            f"it was created inside a {operation.name} that captures cannot see into: scripted or compiled code, or a "
            "torch function that calls modules"
        )
    if inputs is None:
        raise UncheckableError(f"the forward's inputs were not kept: {_KEEPING}")
    return operation, inputs


def _compare_in_thread(
    graph: Graph,
    task: Task,
    operation: Operation,
    inputs: KeptInputs,
    gradients: Sequence[Tensor | None] | None,
    findings: _Findings,
    known: SharedChecks,
    second: bool,
) -> None:
    """Run the comparison in a separate thread.

    A custom Function may run a backward inside; what that adds to .grad is removed.
    """
    leaves = [(leaf, leaf.grad) for leaf in graph.leaves.values()] if task.kind is Kind.FUNCTION else []

    def compare() -> None:
        with InFloat64():
            replay = known.replay(operation, inputs)
        made = known.created[operation]
        compared: Compared | None = known.compared.get((operation, second))
        findings.faults += other_random_numbers(graph.nodes[task.id], replay)
        if compared is None:
            compared = _compared(replay, made, second)
            if task.kind is Kind.FUNCTION and compared.reason is not None and compared.reason.__cause__ is not None:
                arrived = {number for number, each in enumerate(gradients or ()) if each is not None}
                compared = _compare_used(arrived or inputs_with_gradient(graph, task), replay, made) or compared
            if len(made) > 1:
                known.compared[operation, second] = compared
        findings.add(compared.findings)
        if not findings.faults:
            own = compare_own(graph, task, replay, gradients)
            is_fault = own.ok is False and not compared.at_kink
            (findings.faults if is_fault else findings.notes).append(own.line)
        if compared.reason is not None:
            raise compared.reason

    try:
        for leaf, _ in leaves:
            leaf.grad = None
        in_a_clean_thread(compare, accelerators_of(inputs))
    finally:
        for leaf, gradient in leaves:
            leaf.grad = gradient


def _compared(replay: OperationReplay, made: Sequence[str], second: bool = False) -> Compared:
    """Compare an operation with finite differences; `made` are the names of the tasks it created."""
    findings, reason = _Findings(), None
    comparison = _Comparison(replay, findings, second)
    try:
        with InFloat64():
            comparison.compare()
        _say_what_was_replayed(replay, made, findings)
    except UncheckableError as error:
        reason = error
    return Compared(findings, comparison.at_kink, reason)


def _compare_used(used: set[int], replay: OperationReplay, made: Sequence[str]) -> Compared | None:
    """Compare the outputs that get a gradient in this backward; None if that changes nothing or fails too.

    After `ctx.set_materialize_grads(False)` a correct backward may raise where an unused output gets a gradient.
    """
    with InFloat64():
        numbers = [each.output_nr for each in replay.run(replay.points).outputs]
    unused = {place: each for place, each in enumerate(numbers) if each not in used}
    replay.unused = frozenset(unused)
    compared = _compared(replay, made) if 0 < len(unused) < len(numbers) else None
    if compared is None or compared.reason is not None:
        replay.unused = frozenset()
        return None
    which = joined([f"output {number}" for number in unused.values()])
    compared.findings.notes.append(f"no gradient reaches {which} in this backward, so that part is not compared")
    return compared


def _say_what_was_replayed(replay: OperationReplay, made: Sequence[str], findings: _Findings) -> None:
    operation = replay.operation
    if len(made) > 1:
        findings.notes.append(
            f"{operation.name} created {len(made)} tasks ({', '.join(made[:5])}{', ...' if len(made) > 5 else ''}); "
            "their combined derivative is compared with finite differences"
        )
    if replay.random:
        findings.notes.append("it draws random numbers, which are the same in each replay")
    if replay.written:
        unmarked = written_unmarked(replay)
        findings.warnings += [
            f"its forward modifies {name} in place without ctx.mark_dirty({name}): other nodes that saved {name} do "
            "not detect that"
            for name in unmarked
        ]
        findings.notes.append(
            f"it modified {' and '.join(replay.written)} in place, so it is replayed on the modified values"
        )


class _Comparison:
    """The comparison of one operation's derivative with finite differences.

    Attributes:
        at_kink: whether the operation has no derivative at its inputs.
        ctx_changes: the attributes a custom Function's backward changes on its ctx.
    """

    def __init__(self, replay: OperationReplay, findings: _Findings, second: bool = False) -> None:
        self._replay = replay
        self._second = second
        self._findings = findings
        function = replay.operation.function
        name = function.__name__ if isinstance(function, type) else replay.operation.name
        self.at_kink = False
        self.ctx_changes: list[str] = []
        at = line_of_backward(function) if isinstance(function, type) else None
        where = "" if at is None else f" ({at.short})"
        self._subject = f"{name}.backward{where}" if replay.is_function else f"the backward of {name}"

    def compare(self) -> None:
        """Compare, and add the faults to the findings."""
        here = FiniteDifferences(self._replay, self._replay.points)
        gradients, returned = self._gradients(here)
        if returned is not None and self._is_bad_on_its_own(here, returned):
            return
        off = _relative_errors(here, gradients)
        if all(each <= ALLOWED for each in off):
            self._is_right(here, max(off), "")
            return
        if not self._replay.is_function and any(map(is_symmetric, self._replay.points)):
            symmetric = FiniteDifferences(self._replay, self._replay.points, symmetric=True)
            off = _relative_errors(symmetric, gradients)
            if all(each <= ALLOWED for each in off):
                self._findings.notes.append("it assumes a symmetric input, and so does its derivative")
                self._is_right(symmetric, max(off), " in symmetric directions")
                return
        for number in range(_ATTEMPTS):  # among many elements some may be close to a kink, so try smaller steps
            nearby = FiniteDifferences(self._replay, here.nearby(number), step=STEP / 10**number)
            near_gradients, near_returned = self._gradients(nearby)
            near_off = _relative_errors(nearby, near_gradients)
            if all(each <= ALLOWED for each in near_off):
                self._note_wrong_at_inputs(here, gradients, off, nearby, max(near_off))
                return
        if any(each > ALLOWED for each in near_off):
            self._findings.faults += self._gradient_faults(nearby, near_gradients, near_returned)
            self._findings.notes.append(self._how_compared(nearby, ""))
            return
        counts = [(kept.name, int((~kept.tensor.isfinite()).sum())) for kept in self._replay.varied]
        bad = " and ".join(f"{name} has {count:,} elements that are NaN or infinite" for name, count in counts if count)
        raise UncheckableError(f"its finite differences are NaN or infinite at these inputs{bad and f': {bad}'}")

    def _gradients(self, at: FiniteDifferences) -> tuple[list[Tensor | None], Returned | None]:
        """Return the backward's gradient of each varied input, and the raw values a custom Function returned."""
        leaves = [each.detach().requires_grad_() for each in at.points]
        outcome = self._replay.run_on(leaves)
        try:
            returned = ask_backward(self._replay, outcome, at.cotangents)
            if returned is not None:
                return gradients_for(self._replay, returned), returned
            found = torch.autograd.grad(outcome.outputs, leaves, at.cotangents, allow_unused=True)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
            raise UncheckableError(f"{self._subject} does not run in float64: {why}") from error
        return [None if each is None else dense(each) for each in found], None

    def _is_bad_on_its_own(self, at: FiniteDifferences, returned: Returned) -> bool:
        """Return whether a custom Function's returned values are faulty in themselves, and add the faults."""
        faults = [f"{self._subject} {fault}" for fault in wrong_form(returned, self._replay.run(at.points).args)]
        again = self._asked_after_another_forward(at)
        if again is not None and not same_values(*again):
            faults.append(
                f"{self._subject} returns other values if another forward runs in between: it depends on state that "
                "is not on its ctx (a global or a class attribute), or on random numbers"
            )
        elif faults:
            faults += self._gradient_faults(at, gradients_for(self._replay, returned), returned)
        if self.ctx_changes:
            self._findings.warnings.append(
                f"{self._subject} changes {' and '.join(self.ctx_changes)}: a second backward through a "
                "retained graph uses the changed value"
            )
        if returned.wrote:
            self._findings.warnings.append(
                f"{self._subject} modifies its incoming gradient in place: other nodes may also use that tensor"
            )
        self._findings.faults += faults
        return bool(faults)

    def _asked_after_another_forward(self, at: FiniteDifferences) -> tuple[Returned, Returned] | None:
        """Return the backward's values right after its forward, and after another forward in between."""
        outcome = self._replay.run(at.points)
        first = None
        if (node := outcome.node) is not None:

            def ask() -> None:
                nonlocal first
                first = ask_backward(self._replay, outcome, at.cotangents)

            self.ctx_changes = changed_on_ctx(node, ask)
        again = self._replay.run(at.points)
        self._replay.run(at.nearby())
        self._replay.draw_from(_OTHER_NUMBERS)
        second = ask_backward(self._replay, again, at.cotangents)
        return None if first is None or second is None else (first, second)

    def _gradient_faults(
        self, at: FiniteDifferences, gradients: Sequence[Tensor | None], returned: Returned | None
    ) -> list[str]:
        found: list[str] = []
        if returned is not None and (unused := self._unused_outputs(at, returned)):
            these = " and ".join(f"output {number}" for number in unused.values())
            found.append(
                f"{self._subject} ignores the gradient of {these}: its result does not depend on it, although finite "
                "differences do"
            )
            at = at.of_cotangents(
                [torch.zeros_like(each) if place in unused else each for place, each in enumerate(at.cotangents)]
            )
            gradients, returned = self._gradients(at)
        doubled = [2 * each for each in at.cotangents]
        twice = None if returned is None else ask_backward(self._replay, self._replay.run(at.points), doubled)
        ignores = returned is not None and twice is not None and same_values(returned, twice)
        for wrong in wrong_gradients(self._replay, at, gradients, returned, ignores):
            found.append(f"{self._subject} {wrong.text}")
            if wrong.place is not None:
                found += self._element(at, wrong.place)
        return found

    def _unused_outputs(self, at: FiniteDifferences, returned: Returned) -> dict[int, int]:
        """Return the outputs whose gradients the backward ignores although it should not, with their numbers."""
        outputs = self._replay.run(at.points).outputs
        unused = {}
        for place, output in enumerate(outputs if len(outputs) > 1 else []):
            parts = [each if other == place else torch.zeros_like(each) for other, each in enumerate(at.cotangents)]
            more = [each + part for each, part in zip(at.cotangents, parts, strict=True)]
            again = ask_backward(self._replay, self._replay.run(at.points), more)
            alone = at.of_cotangents(parts)
            if (
                again is not None
                and same_values(returned, again)
                and not all(map(alone.is_flat, range(len(at.points))))
            ):
                unused[place] = output.output_nr
        return {} if len(unused) == len(outputs) else unused

    def _element(self, at: FiniteDifferences, place: int) -> list[str]:
        """Describe the element of an input for which backward and finite differences differ most."""
        ones = at.of_cotangents([torch.ones_like(each) for each in at.cotangents])
        for incoming, differences in (("1 everywhere", ones), ("random", at)):
            try:
                gradient = self._gradients(differences)[0][place]
                element = None if gradient is None else furthest_element(differences, place, gradient)
            except UncheckableError:  # the fault itself is already known
                continue
            if element is not None:
                self._findings.elements.append(element)
                name = self._replay.varied[place].name
                where = f"at {list(element.index)}, where {name} is {element.value:.4g}" if element.index else "there"
                return [
                    f"{where}, the backward gives {element.given:.4g} and finite differences {element.expected:.4g} "
                    f"(where the incoming gradient is {incoming})"
                ]
        return []

    def _is_right(self, at: FiniteDifferences, off: float, where: str) -> None:
        takes_each_element = at.takes_each_element and not self.ctx_changes  # gradcheck runs a backward several times
        fault, wrong_at = at.each_element() if takes_each_element else None, at
        if fault is not None and not self.at_kink:
            nearby = FiniteDifferences(self._replay, at.nearby())
            if nearby.takes_each_element:
                wrong_at = nearby
                if nearby.each_element() is None:
                    self._note_kink()
                    fault = None
        if fault is not None:
            self._findings.faults.append(f"torch.autograd.gradcheck finds {self._subject} wrong: {fault}")
            for place in range(len(at.points)):
                self._findings.faults += self._element(wrong_at, place)
        self._findings.notes.append(
            f"its derivative differs from finite differences{where} by at most {off:.1g}, relatively ({ALLOWED:g} is "
            "allowed)"
        )
        each = "element by element with torch.autograd.gradcheck, and " if takes_each_element else ""
        self._findings.notes.append(self._how_compared(at, each))
        if self._second and not self._findings.faults:
            faults, line = second_derivative_faults(self._replay, at, self._subject)
            self._findings.faults += faults
            self._findings.notes.append(line)

    def _note_wrong_at_inputs(
        self,
        here: FiniteDifferences,
        gradients: Sequence[Tensor | None],
        off: Sequence[float],
        nearby: FiniteDifferences,
        near_off: float,
    ) -> None:
        """Record gradients that are wrong at the inputs but right a small step away: a fault unless there is a kink."""
        smooth = [
            place
            for place, each in enumerate(off)
            if not each <= ALLOWED
            and not here.left_out
            and all(map(isfinite, here.slopes(place).middle))  # the operation is finite on both sides
            and not here.has_kink(place, gradients[place])
        ]
        for place in smooth:
            name = self._replay.varied[place].name
            given = (
                "NaN or Inf"
                if isnan(off[place])
                else f"a gradient that differs from finite differences by {off[place]:.2g}"
            )
            self._findings.faults.append(
                f"{self._subject} gives {given} for {name} at exactly these inputs, although it is right a small "
                "step away"
            )
            self._findings.faults += self._element(here, place)
        if not smooth:
            self._note_kink()
        self._is_right(nearby, near_off, " there")

    def _note_kink(self) -> None:
        self.at_kink = True
        self._findings.notes.append(
            "it has no derivative at exactly these inputs (a kink, as of relu at 0 or max of equal elements, or the "
            "edge of its domain), so it is compared at inputs shifted by a thousandth of their size"
        )

    def _how_compared(self, at: FiniteDifferences, each: str) -> str:
        left_out = f"; {at.left_out:,} of {at.count:,} outputs are NaN or infinite and ignored" if at.left_out else ""
        return (
            f"{self._replay.operation.name} was replayed in float64 on {self._replay.described_inputs}, and compared "
            f"{each}along {DIRECTIONS} random directions per input{left_out}"
        )


def _relative_errors(at: FiniteDifferences, gradients: Sequence[Tensor | None]) -> list[float]:
    return [at.relative_error(place, gradient) for place, gradient in enumerate(gradients)]
