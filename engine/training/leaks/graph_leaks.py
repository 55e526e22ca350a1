"""Leaks: graphs of earlier steps that are still alive, and their holders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

from ....inspector.graph.source_lines import users_place
from ....inspector.references.find_referrers import Holder
from ....inspector.text.sizes_and_counts import counted, size_text
from ....inspector.torch_private.optimizer_steps import parameters_of
from ..findings import Finding
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..pending_graphs import at
from ..training_result import Training
from .held_graphs import GRAD_OF, ON_CTX, HeldGraphs, alike, held_graphs
from .step_tokens import StepTokens

_FIRST_LOOK = 2  # the step after which graphs are first checked
_LAG = 2  # a loop may compare a step with the previous one


@dataclass(slots=True)
class _Lasting:
    """A leak of the last search, and the last step in which a graph that it keeps was alive.

    Attributes:
        leak: the finding of that search.
        held: the graphs that it found.
        last: the last step in which one of them was alive.
        alive: the steps whose graphs were alive then. To know them costs little; to know their holders takes a search.
    """

    leak: Finding
    held: HeldGraphs
    last: int
    alive: tuple[int, ...]


class Leaks(LoopPart):
    """Checks after each step whether a graph of an earlier one is alive, which costs little. If one is, it searches for
    the holders, which takes tenths of a second and is repeated after 2, 4, 8, ... steps while the leak lasts.

    The loop may need the graphs of a step until all optimizers that stepped in it have stepped again. If a critic steps
    five times for each step of the generator, the generator's graphs are five steps old and not a leak.
    """

    def __init__(self) -> None:
        self._tokens = StepTokens()
        self._last: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._number = 0
        self._needed: set[int] = set()  # steps whose graphs the loop may still need
        self._wait = 1
        self._next_look = _FIRST_LOOK
        self._looked_at = 0
        self._lasting: list[_Lasting] = []  # the leaks of the last search
        self._known: dict[str, Holder] = {}  # the first of several similar holders
        self._with_graph: str | None = None  # the place of the last backward(create_graph=True): " at train.py:12"

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        if number > 0 and number & (number - 1) == 0:  # 1, 2, 4, 8, ..., because it visits all objects
            self._tokens.mark_alive(self._training.alive.tensors(number))
        self._number = number
        self._tokens.begin()
        self._training.marks[self._tokens.key] = self._tokens.token

    def backward_begins(self, given: BackwardGiven) -> None:
        self._tokens.mark(given[0])
        if given[3]:  # create_graph
            self._with_graph = at(users_place())

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._last[optimizer] = self._number
        if self._lasting:  # the last step ends with the loop, when the variables of its function may be gone
            self._note_lasting()

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        self._last[optimizer] = self._number

    def step_ends(self, number: int) -> None:
        self._needed = set(self._last.values())
        if not self._note_lasting():
            self._wait = 1
            self._next_look = max(number + 1, _FIRST_LOOK)
            self._training.earlier_bytes, self._training.earlier_storages = 0, frozenset()
        elif number >= self._next_look:
            self._look(number)
            self._wait *= 2
            self._next_look = number + self._wait

    def _is_old(self, step: int) -> bool:
        return step <= self._number - _LAG and step not in self._needed

    def _look(self, number: int) -> None:
        self._looked_at = number
        optimized = (each for optimizer in self._last for each in parameters_of(optimizer))
        found = held_graphs(self._tokens, self._is_old, self._training.watched.parameters(), optimized)
        self._training.earlier_bytes = sum(held.nbytes for held in found)
        self._training.earlier_storages = frozenset().union(*(held.storages for held in found))
        self._extend()
        for held in found:
            first = self._known.setdefault(alike(held.holder.text), held.holder)
            known = replace(held, holder=first)
            said = leak_sentence(known, self._with_graph)
            leak = Finding("leak", number, said, None, first.text, held.nbytes, first.at, alike=held.alike)
            self._training.update(leak)
            self._lasting.append(_Lasting(leak, known, number, known.steps))

    def _note_lasting(self) -> bool:
        """Note which known leaks are still alive. Return whether any graph of an earlier step is."""
        old = tuple(filter(self._is_old, self._tokens.alive()))
        for each in self._lasting:
            if not set(old).isdisjoint(each.held.steps):
                each.last, each.alive = self._number, old
        return bool(old)

    def _extend(self) -> None:
        """Extend the leaks of the last search to the last step in which they were alive: a variable of a function that
        has returned is not found any more.
        """
        for each in self._lasting:
            if each.last > each.leak.step:
                sentence = leak_sentence(each.held, self._with_graph, each)
                self._training.update(replace(each.leak, sentence=sentence, last_step=each.last))
        self._lasting = []

    def ends(self) -> None:
        self._extend()
        if self._known and self._looked_at < self._number and any(map(self._is_old, self._tokens.alive())):
            self._look(self._number)
        self._tokens.end()
        self._last.clear()


def leak_sentence(held: HeldGraphs, with_graph: str | None = None, lasting: _Lasting | None = None) -> str:
    """Return a sentence about graphs that are alive: their holders, bytes and the remedy.

    Args:
        held: the graphs.
        with_graph: the place of a backward(create_graph=True), such as ` at train.py:12`; None if there was none.
        lasting: the leak, if it lasted for some steps after the search that found these graphs. The sentence is then in
            the past tense, with the step of the search and all graphs that were alive at the end.
    """
    text, kind = held.holder.text, held.holder.kind
    graphs = _graphs_of(held.steps)
    are, keeps = ("are" if len(held.steps) > 1 else "is"), "keeps"
    before, begins = "", f"T{graphs[1:]}"
    if lasting is not None:
        are, keeps = ("were" if len(held.steps) > 1 else "was"), "kept"
        if lasting.alive != held.steps:
            were = "were" if len(lasting.alive) > 1 else "was"
            before = f"T{_graphs_of(lasting.alive)[1:]} {were} alive after step {lasting.last:,}. "
            begins = f"After step {lasting.leak.step:,}, {graphs}"
    size = f"{'at least ' if held.is_bounded else ''}{size_text(held.nbytes)} in {counted(held.nodes, 'node')}"
    more = f" and {held.alike - 1:,} more like it" if held.alike > 1 else ""
    if kind == "cycle" and text.startswith(ON_CTX):
        return (
            f"{before}{text}, is the Function's own output: call ctx.save_for_backward(...) instead. This reference "
            f"cycle {keeps} {graphs} alive until Python's garbage collector runs ({size})."
        )
    if text.startswith(GRAD_OF) and with_graph is not None:
        more = more.replace("like it", "parameters" if held.alike > 2 else "parameter")
        return (
            f"{before}backward(create_graph=True){with_graph} leaves a graph in {text}{more}, which {keeps} "
            f"{graphs} alive ({size}): {_OF_GRADIENTS}"
        )
    how = f"held by {text}"
    if kind == "named":
        carries = "carries" if lasting is None else "carried"
        how = f"held as {text}{f', which {carries} the graph from step to step' if held.crosses else ''}"
    return f"{before}{begins} {are} alive, {how}{more} ({size}): {_advice(held)}"


def _graphs_of(steps: Sequence[int]) -> str:
    return f"the graph{'s' if len(steps) > 1 else ''} of {steps_text(steps)}"


def steps_text(steps: Sequence[int]) -> str:
    """`step 3`, `steps 0 and 1`, `steps 0 to 7`, `7 of the steps 0 to 30`."""
    first, last = steps[0], steps[-1]
    if len(steps) < 3:
        return f"step{'s' if len(steps) > 1 else ''} {' and '.join(map(str, steps))}"
    of = "" if len(steps) == last - first + 1 else f"{len(steps):,} of the "
    return f"{of}steps {first:,} to {last:,}"


def _advice(held: HeldGraphs) -> str:
    """Return advice on how to release the graphs."""
    text, kind = held.holder.text, held.holder.kind
    if kind == "cycle":
        return "only Python's garbage collector frees a cycle; break it, or keep a .detach() of the tensor."
    if kind == "unnamed" and _CLOSURE in text:
        return (
            "a hook in the graph holds the graph, a cycle that Python's garbage collector cannot see, so it is never "
            "freed; pass the hook a .detach() of the tensor, or remove it."
        )
    for part, advice in _ADVICE.items():
        if part in text:
            return advice
    if held.crosses:
        return (
            "call .detach() on a value that one step passes to the next, or compute it under torch.no_grad(); for a "
            "number, .item()."
        )
    return "keep a .detach() of it, or the .item() of a number."


_CLOSURE = "closure variable "
_OF_GRADIENTS = (
    "compute the gradients with torch.autograd.grad(loss, parameters, create_graph=True), or clear them with "
    "optimizer.zero_grad(set_to_none=True) before the next forward."
)
_ADVICE = {
    GRAD_OF: ".detach() a gradient before you assign it to .grad, or clear it with "
    "optimizer.zero_grad(set_to_none=True).",
    ".tb_frame": "a traceback keeps the variables of the functions that raised; release the exception.",
    " generator ": "a suspended generator keeps its variables; close it, or del the variable before the yield.",
    "the coroutine ": "a suspended coroutine keeps its variables; let it end, or close it.",
    "<the context variable ": "set the context variable to a .detach() of it, or reset() it by its token.",
    "a result in the cache of ": "cache a .detach() of it, or clear the cache.",
    _CLOSURE: "pass the function a .detach() of it; if it is a hook, remove() it after its last use.",
}
"""Advice by a fragment of the holder's text."""
