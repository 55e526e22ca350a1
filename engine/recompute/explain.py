"""`plan.why("attn.softmax")`: why an operation's results are recomputed or kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from ...inspector.capture.forward_program import ForwardOperation, ForwardProgram, ForwardStorage
from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import Source
from ...inspector.text.sizes_and_counts import both_units, counted, percent_text, size_text
from .budget import Wanted
from .module_table import ms_text, operation_name
from .plan import filled_by
from .predicted_memory import RecomputedLevels, RecomputedMemory
from .solvers import Candidates

_CALLED = {
    "linear": ("addmm", "mm", "bmm"),
    "matmul": ("mm", "bmm", "addmm", "mv", "dot"),
    "conv1d": ("convolution",),
    "conv2d": ("convolution",),
    "conv3d": ("convolution",),
    "conv": ("convolution",),
    "lstm": ("mkldnn_rnn_layer", "cudnn_rnn", "miopen_rnn"),
    "gru": ("mkldnn_rnn_layer", "cudnn_rnn", "miopen_rnn"),
    "scaled_dot_product_attention": ("safe_softmax", "softmax"),
    "dropout": ("native_dropout", "bernoulli"),
}
"""What the kernels are called that torch's functions of these names run."""
_NEAR = 3  # names in an error
_SHOWN = 6


def plain_name(operation: ForwardOperation) -> str:
    """`softmax` of aten._softmax.default, `relu` of aten.relu_.default, `layer_norm` of aten.native_layer_norm."""
    return operation_name(operation.name).strip("_").removeprefix("native_")


def operations_called(program: ForwardProgram, which: str | int) -> list[ForwardOperation]:
    """The operations that a person means: those that make or write something.

    Args:
        which: "attn.softmax", a module's path and an operation; a path alone, with the modules in it; an operation
            alone; or an operation's number. A path may begin inside of the model's ("softmax" of "blocks.0.attn"), and
            have patterns in it ("blocks.*.attn").

    Raises:
        ValueError: there is none by that name; it has the nearest ones.
        TypeError: it is neither a text nor a number.
    """
    if isinstance(which, bool) or not isinstance(which, str | int):
        raise TypeError(
            'an operation is a module\'s path and its name, as in "attn.softmax", or its number, not a '
            f"{type(which).__name__}"
        )
    count = len(program.operations)
    does = [each for each in program.operations if each.makes or each.writes]
    text = str(which).strip()
    is_number = isinstance(which, int) or (text.isdecimal() and not any(_is_in(each.module, text) for each in does))
    if is_number:
        if not 0 <= int(which) < count:
            raise ValueError(f"there is no operation {which}: this forward has 0 to {count - 1}")
        return [program.operations[int(which)]]
    path, _, name = text.rpartition(".")
    found = (
        [each for each in does if _is_in(each.module, text)]
        or [each for each in does if _is_called(each, name) and (not path or _is_in(each.module, path))]
        or [each for each in does if text in (each.name, operation_name(each.name))]
        or [each for each in does if name in plain_name(each) and (not path or _is_in(each.module, path))]
    )
    if not found:
        raise ValueError(_nothing_called(does, text))
    return found


def _is_in(module: str | None, path: str) -> bool:
    """Whether a module's path is this one, or below it; the front of the model's own may be left out."""
    if module is None:
        return False
    return any(fnmatchcase(module, pattern) for pattern in (path, f"{path}.*", f"*.{path}", f"*.{path}.*"))


def _is_called(operation: ForwardOperation, name: str) -> bool:
    plain = plain_name(operation)
    wanted = name.lower()
    if fnmatchcase(plain, wanted) or plain.removesuffix("_backward") in _CALLED.get(wanted, ()):
        return True
    return wanted == "scaled_dot_product_attention" and plain.startswith(wanted)


def _nothing_called(does: list[ForwardOperation], which: str) -> str:
    said = f'no operation of this forward is called "{which}"'
    names: dict[str, None] = {}
    for each in does:
        if each.module:
            names[each.module] = None
        names[f"{each.module}.{plain_name(each)}" if each.module else plain_name(each)] = None
    lower = {name.lower(): name for name in names}
    tail = which.rpartition(".")[2].lower()
    near = get_close_matches(which.lower(), lower, _NEAR, cutoff=0.5)
    near = near or [each for each in lower if each.rpartition(".")[2] == tail][:_NEAR]
    near = near or get_close_matches(tail, {plain_name(each): None for each in does}, _NEAR, cutoff=0.5)
    if near:
        return f"{said}; the nearest names are {', '.join(lower.get(each, each) for each in near)}"
    plain = list(dict.fromkeys(map(plain_name, does)))
    modules = list(dict.fromkeys(each.module for each in does if each.module))
    shown = [f"{', '.join(each[:_SHOWN])}{', ...' if len(each) > _SHOWN else ''}" for each in (plain, modules) if each]
    return f"{said}; there are {' in '.join(shown)}"


Because = Literal[
    "recomputed",
    "on the way",
    "not saved",
    "can't be",
    "not the same",
    "no gain",
    "after the peak",
    "time",
    "enough",
    "not found",
]

_MOST_SHOWN = 8  # operations
_WORTH_IT = 0.002  # of the peak


@dataclass(frozen=True, slots=True)
class RecomputeReason:
    """Why what one operation gives is made again in the backward, or is not.

    Attributes:
        number: the operation's in the forward.
        name: what it is called, `softmax`.
        module, source: where it was called.
        because: "recomputed", or "on the way": nodes save nothing of it, but what is recomputed is made of it. Not:
            "not saved", "can't be" made again, "not the same" bits when it is, "no gain", "after the peak" (its node
            has run by then), "time": more than is allowed; "enough": the budget is reached without; "not found".
        nbytes: what nodes save of it.
        saved_by: the (task, slot) pairs of these.
        newly_kept_bytes: what is, or would be, kept for making it again, and would have died in the forward.
        seconds: what making it again takes, or would take: recording, replay, and those of what it needs.
        peak_bytes: of the backward without recomputation it, where it is; with it, where it is not.
        text: all that in words.
    """

    number: int
    name: str
    module: str | None
    source: Source | None
    because: Because
    nbytes: int
    saved_by: tuple[tuple[int, str], ...]
    newly_kept_bytes: int
    seconds: float
    peak_bytes: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, repr=False)
class RecomputeReasons:
    """The answers of `PlannedRecompute.why`: a sequence of them. In a notebook it shows itself.

    Attributes:
        reasons: one for each operation that is meant.
    """

    reasons: tuple[RecomputeReason, ...]

    def __len__(self) -> int:
        return len(self.reasons)

    def __iter__(self) -> Iterator[RecomputeReason]:
        return iter(self.reasons)

    def __getitem__(self, place: int) -> RecomputeReason:
        return self.reasons[place]

    def __str__(self) -> str:
        shown = [each.text for each in self.reasons[:_MOST_SHOWN]]
        if (more := len(self) - len(shown)) > 0:
            shown.append(f"And {more:,} more.")
        return "\n".join(shown)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Decided:
    """What a plan was decided by.

    Attributes:
        dropped: the numbers of the storages that it drops.
        ratio, banned, wanted: as in `PlannedRecompute`.
        plain_seconds: what a step takes without it.
    """

    program: ForwardProgram
    memory: RecomputedMemory
    dropped: Collection[int]
    ratio: float
    banned: Mapping[int, str]
    wanted: Wanted | None
    plain_seconds: float


def reasons(plan: Decided, which: str | int) -> RecomputeReasons:
    """See `PlannedRecompute.why`."""
    judge = _Judge(plan)
    return RecomputeReasons(tuple(judge.reason(each) for each in operations_called(plan.program, which)))


@dataclass(frozen=True, slots=True)
class _Choice:
    """What dropping some more would do to a plan: what goes, what is kept for that, what it takes, and the peak."""

    gone_bytes: int
    kept: tuple[int, ...]
    kept_bytes: int
    seconds: float
    levels: RecomputedLevels


class _Judge:
    """What decides, for single operations of a plan."""

    def __init__(self, plan: Decided) -> None:
        self._plan = plan
        self._program = plan.program
        self._memory = plan.memory
        self._dropped = plan.memory.reached(plan.dropped)
        self._levels = plan.memory.levels_if_dropped(plan.dropped)
        self._newly = plan.memory.newly_kept(self._dropped)

    def reason(self, operation: ForwardOperation) -> RecomputeReason:
        """The answer for one operation."""
        program = self._program
        numbers = [number for number, _ in operation.makes]
        numbers += [number for number in operation.writes if program.storages[number].made_by is not None]
        saved = [number for number in numbers if program.storages[number].saved_by]
        on_the_way = [number for number in numbers if number in self._dropped]
        number = max(saved or on_the_way or numbers, key=lambda each: program.storages[each].nbytes, default=None)
        storage = None if number is None else program.storages[number]
        keepers = () if storage is None else storage.saved_by
        if number is None or storage is None or not (saved or on_the_way):
            return self._of(operation, "not saved", 0, (), 0, 0.0, self._levels.peak_bytes, self._not_saved(operation))
        if number in self._dropped:
            because: Because = "recomputed" if saved else "on the way"
            without = self._memory.levels_if_dropped(self._dropped - {number})
            kept = self._kept_for(number)
            nbytes = sum(program.storages[each].nbytes for each in kept)
            seconds = self._seconds(self._memory.storages[number].replay_ns)
            said = self._said_recomputed(number, storage, kept, seconds, without.peak_bytes)
            return self._of(operation, because, storage.nbytes, keepers, nbytes, seconds, without.peak_bytes, said)
        because, choice, said = self._kept(number, storage)
        figures = (0, 0.0, self._levels.peak_bytes)
        if choice is not None:
            figures = choice.kept_bytes, choice.seconds, choice.levels.peak_bytes
        return self._of(operation, because, storage.nbytes, keepers, *figures, said)

    def _of(
        self,
        operation: ForwardOperation,
        because: Because,
        nbytes: int,
        saved_by: tuple[tuple[int, str], ...],
        newly_kept_bytes: int,
        seconds: float,
        peak_bytes: int,
        said: str,
    ) -> RecomputeReason:
        where = [each for each in (operation.module, operation.source and operation.source.short) if each]
        name = plain_name(operation)
        head = f"{name}, operation {operation.number}" + (f" ({', '.join(where)})" if where else "")
        verdict = "recomputed" if because in ("recomputed", "on the way") else "not recomputed"
        return RecomputeReason(
            operation.number, name, operation.module, operation.source, because, nbytes, saved_by, newly_kept_bytes,
            seconds, peak_bytes, f"{head}: {verdict}. {said}",
        )  # fmt: skip

    def _seconds(self, reckoned_ns: float) -> float:
        """What it takes of a step, as far as was measured."""
        return self._plan.ratio * reckoned_ns / 1e9

    def _made_by(self, number: int) -> str:
        """`addmm`: what made a storage."""
        storage = self._program.storages[number]
        return "an input" if storage.made_by is None else plain_name(filled_by(self._program, storage))

    def _results(self, numbers: tuple[int, ...]) -> str:
        """`the result of addmm (512 KiB)`, `the results of mm and add (1.0 MiB)`."""
        names = list(dict.fromkeys(map(self._made_by, numbers)))
        nbytes = sum(self._program.storages[each].nbytes for each in numbers)
        return f"the result{'s' if len(numbers) > 1 else ''} of {joined(names)} ({size_text(nbytes)})"

    def _savers(self, storage: ForwardStorage) -> str:
        """`TanhBackward0 (mlp, model.py:3) saves as `result``."""
        tasks = list(dict.fromkeys(storage.saved_by))
        first = self._program.graph.describe(tasks[0][0])
        more = f" and {counted(len(tasks) - 1, 'other')} save" if len(tasks) > 1 else ""
        return f"{first} saves as `{tasks[0][1]}`{more}"

    def _kept_for(self, number: int) -> tuple[int, ...]:
        """What is newly kept, of that from which it is made again."""
        found: dict[int, None] = {}
        seen, ahead = {number}, [number]
        while ahead:
            for need in self._memory.storages[ahead.pop()].needs:
                if need in self._newly:
                    found[need] = None
                elif need in self._dropped and need not in seen:
                    seen.add(need)
                    ahead.append(need)
        return tuple(found)

    def _said_recomputed(
        self, number: int, storage: ForwardStorage, kept: tuple[int, ...], seconds: float, without: int
    ) -> str:
        size, time, peak = size_text(storage.nbytes), ms_text(seconds), size_text(self._levels.peak_bytes)
        said = f"No node saves its {size}, but what is made again reads them, so it is run again, in {time}"
        if storage.saved_by:
            said = f"{size} are let go of, which {self._savers(storage)}, and made again in {time}"
        again = tuple(each for each in self._memory.storages[number].needs if each in self._dropped)
        if again:
            said += f", once {self._results(again)} {'are' if len(again) > 1 else 'is'}"
        said += "."
        if kept:
            users = [each for each in self._dropped if kept[0] in self._kept_for(each)]
            users = [each for each in users if self._program.storages[each].saved_by]
            nbytes = sum(self._program.storages[each].nbytes for each in users)
            said += f" Newly kept for that: {self._results(kept)}"
            said += f", once for {len(users):,} storages of {size_text(nbytes)}." if len(users) > 1 else "."
        if without > self._levels.peak_bytes:
            return f"{said} Kept, it would raise the peak from {peak} to {size_text(without)}."
        return f"{said} By itself it does not move the peak of {peak}: with others it does."

    def _not_saved(self, operation: ForwardOperation) -> str:
        """Nothing of its result is kept: what its node keeps is something else."""
        program = self._program
        reads = dict.fromkeys(each.storage for each in operation.reads)
        kept = [
            (number, task, slot)
            for number in reads
            for task, slot in program.storages[number].saved_by
            if slot != "result" and self._is_of(task, operation)
        ]
        said = "No node saves its result, so there is nothing to let go of, and no reason to run it again."
        if not kept:
            return said
        number, task, slot = kept[0]
        storage = program.storages[number]
        what = "an input of the forward" if storage.made_by is None else f"the result of {self._made_by(number)}"
        fate = ""
        if number in self._dropped:
            fate = ", which is made again without it"
        return (
            f"{said} Its own backward, {program.graph.describe(task)}, reads what it was given (`{slot}`, "
            f"{size_text(storage.nbytes)}): {what}{fate}."
        )

    def _is_of(self, task_id: int, operation: ForwardOperation) -> bool:
        """Whether a task is that of the operation, as far as its name and its place tell."""
        graph = self._program.graph
        task = graph.tasks[task_id]
        place = graph.module(task) == operation.module and task.source == operation.source
        return place and task.short_name.lower().removeprefix("native") == plain_name(operation).replace("_", "")

    def _kept(self, number: int, storage: ForwardStorage) -> tuple[Because, _Choice | None, str]:
        """Why what a node saves is kept."""
        plan, memory = self._plan, self._memory
        head = f"{size_text(storage.nbytes)} stay, which {self._savers(storage)}"
        if number in plan.banned:
            return "not the same", None, f"{head}. Making it again was tried: {plan.banned[number]}."
        if storage.obstacle is not None:
            return "can't be", None, f"{head}. It can't be made again, since {storage.obstacle}."
        if not memory.storages[number].droppable or memory.held[number]:
            return (
                "can't be",
                None,
                f"{head}. Something besides keeps it (a variable, a hook, another graph), so it would stay.",
            )
        best, *others = sorted(self._choices(number), key=lambda each: (each.levels.peak_bytes, each.seconds))
        gain = self._levels.peak_bytes - best.levels.peak_bytes
        figures = self._figures(best)
        peak = memory.plain_peak_bytes
        budget = None if plan.wanted is None else plan.wanted.peak_bytes(peak)
        if budget is not None and self._levels.peak_bytes <= budget:
            return "enough", best, f"{head}. The budget of {both_units(budget)} is reached without. {figures}."
        if gain <= _WORTH_IT * peak:
            return self._no_gain(number, head, best, others)
        if plan.wanted is None:
            return "not found", best, f"{head}. {figures}; another plan may do so."
        allowed = plan.wanted.extra_ns(1e9 * plan.plain_seconds) / 1e9
        taken = self._seconds(self._levels.replay_ns)
        if taken + best.seconds <= allowed:
            return "not found", best, f"{head}. {figures}; the search did not come to it: give it more seconds=."
        share = f" ({percent_text(plan.wanted.overhead)})"
        spent = f", and the plan takes {ms_text(taken)} of that already" if taken else ""
        if vain := self._in_vain(others):
            head += f". By itself nothing is gained: {vain}. With what makes that"
            figures = f", {figures[0].lower()}{figures[1:]}"
            said = f"{head}{figures}. A step may take {ms_text(allowed)} longer{share}{spent}."
        else:
            said = f"{head}. {figures}. A step may take {ms_text(allowed)} longer{share}{spent}."
        return "time", best, f"{said}{self._price(number)}"

    def _in_vain(self, choices: list[_Choice]) -> str:
        """The choices that keep as much as they let go of; "": none does."""
        said = {
            f"to make {size_text(each.gone_bytes)} again, {self._results(each.kept)} would have to be kept"
            for each in choices
            if each.kept_bytes >= each.gone_bytes
        }
        return "; or ".join(sorted(said))

    def _price(self, number: int) -> str:
        """What is the most of it, where that is not the operation itself."""
        itself = self._program.seconds_of(number)
        whole = self._seconds(self._memory.storages[number].replay_ns)
        if whole < 2 * itself:
            return ""
        return (
            f" The operation itself takes {ms_text(itself)}; to note it and call it again, {ms_text(whole - itself)}."
        )

    def _choices(self, number: int) -> list[_Choice]:
        """The ways to drop one more: by itself; with its makers up to products; with all of them."""
        candidates = Candidates(self._memory)
        found = {
            frozenset({number}),
            frozenset(candidates.with_makers(number, self._dropped, stop_at_products=True)),
            frozenset(candidates.with_makers(number, self._dropped)),
        }
        return [self._choice(each) for each in found]

    def _choice(self, more: frozenset[int]) -> _Choice:
        memory = self._memory
        dropped = memory.reached(self._dropped | more)
        kept = tuple(sorted(memory.newly_kept(dropped) - self._newly))
        gone = sum(memory.storages[each].nbytes for each in dropped - self._dropped if memory.places[each])
        recomputed = memory.levels_if_dropped(dropped)
        return _Choice(
            gone,
            kept,
            sum(memory.storages[each].nbytes for each in kept),
            self._seconds(max(0.0, recomputed.replay_ns - self._levels.replay_ns)),
            recomputed,
        )

    def _figures(self, choice: _Choice) -> str:
        """`To make it again would take 1.2 ms and lower the peak by 3.0 MiB`."""
        gain = self._levels.peak_bytes - choice.levels.peak_bytes
        kept = f", and {self._results(choice.kept)} would be newly kept" if choice.kept else ""
        lower = f"lower the peak by {size_text(gain)}" if gain > 0 else "not lower the peak"
        return f"To make it again would take {ms_text(choice.seconds)} and {lower}{kept}"

    def _no_gain(
        self, number: int, head: str, best: _Choice, others: list[_Choice]
    ) -> tuple[Because, _Choice | None, str]:
        memory = self._memory
        places = memory.places[number]
        if said := self._in_vain([best, *others]):
            others = [each for each in (best, *others) if not each.kept]
            more = f"; or {ms_text(others[0].seconds)} paid for what makes that, and no lower peak" if others else ""
            return "no gain", best, f"{head}. Nothing is gained: {said}{more}."
        plain = memory.plain
        place = self._levels.peak_place
        if places and places[-1] < place:
            where = plain.graph.describe(plain.order[place], place)
            return (
                "after the peak",
                best,
                f"{head}. It has gone by the time of the peak, in {where}: {self._figures(best)}.",
            )
        if places and place >= 0 and places[0] <= place:
            return "no gain", best, f"{head}, where the peak is or before. {self._figures(best)}."
        return "no gain", best, f"{head}. {self._figures(best)}."
