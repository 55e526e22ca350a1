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
"""The kernels that torch functions of these names run."""
_NEAR = 3  # similar names in an error
_SHOWN = 6  # operations, and modules, in an error


def plain_name(operation: ForwardOperation) -> str:
    """Return `softmax` for aten._softmax.default, `relu` for aten.relu_.default, `layer_norm` for native_layer_norm."""
    return operation_name(operation.name).strip("_").removeprefix("native_")


def operations_called(program: ForwardProgram, which: str | int) -> list[ForwardOperation]:
    """Return the operations that `which` selects, among those that create or write a storage.

    Args:
        which: a module's path and an operation, such as "attn.softmax"; a path alone, which selects its submodules,
            too; an operation alone; or an operation's number. The front of the path may be left out ("attn" for
            "blocks.0.attn"), and it may be a pattern ("blocks.*.attn").

    Raises:
        ValueError: if no operation matches; the message lists similar names.
        TypeError: if `which` is neither a string nor a number.
    """
    if isinstance(which, bool) or not isinstance(which, str | int):
        raise TypeError(
            'which must be a string such as "attn.softmax" (a module\'s path and an operation) or a number, got a '
            f"{type(which).__name__}"
        )
    count = len(program.operations)
    does = [each for each in program.operations if each.makes or each.writes]
    text = str(which).strip()
    is_number = isinstance(which, int) or (text.isdecimal() and not any(_is_in(each.module, text) for each in does))
    if is_number:
        if not 0 <= int(which) < count:
            raise ValueError(f"unknown operation {which}; expected a number from 0 to {count - 1}")
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
    """Return whether a module is the one at `path` or inside it; the front of its path may be missing in `path`."""
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
    said = f'unknown operation "{which}"'
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
        return f"{said}; similar names are {', '.join(lower.get(each, each) for each in near)}"
    plain = list(dict.fromkeys(map(plain_name, does)))
    modules = list(dict.fromkeys(each.module for each in does if each.module))
    shown = [f"{', '.join(each[:_SHOWN])}{', ...' if len(each) > _SHOWN else ''}" for each in (plain, modules) if each]
    return f"{said}; this forward has {' in '.join(shown)}"


Because = Literal[
    "recomputed",
    "intermediate",
    "not saved",
    "not recomputable",
    "bits differ",
    "no gain",
    "after the peak",
    "time",
    "budget reached",
    "not found",
]

_MOST_SHOWN = 8  # operations printed by RecomputeReasons
_WORTH_IT = 0.002  # of the peak: less is not a gain


@dataclass(frozen=True, slots=True)
class RecomputeReason:
    """The reason why the result of one operation is recomputed in the backward or kept.

    Attributes:
        number: the operation's number in the forward.
        name: its name, such as `softmax`.
        module, source: the module and the source line that called it.
        because: one of

            - "recomputed";
            - "intermediate": not saved by a node, but recomputed as an input of others;
            - "not saved": no node saves it, so there is nothing to drop;
            - "not recomputable";
            - "bits differ": recomputing it was tried and gave different bits;
            - "no gain": dropping it would not lower the peak;
            - "after the peak": it is already freed at the peak;
            - "time": recomputing it takes more time than is allowed;
            - "budget reached": the budget is reached without it;
            - "not found": dropping it would help, but the search did not choose it.
        nbytes: bytes of it that nodes save.
        saved_by: the (task, slot) pairs that save it.
        newly_kept_bytes: bytes that are kept, or would be kept, only to recompute it.
        seconds: time that recomputing it takes or would take, including recording and the operations before it.
        peak_bytes: predicted peak of the backward with the opposite choice: if it were kept, or if it were recomputed.
        text: the reason in words.
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
    """The result of `PlannedRecompute.why`: a sequence of reasons, displayed as text in a notebook.

    Attributes:
        reasons: one for each selected operation.
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
            shown.append(f"{more:,} more operations match.")
        return "\n".join(shown)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan together with the data it was chosen by.

    Attributes:
        program, memory: the recorded forward and its predicted memory.
        dropped: numbers of the storages that the plan drops.
        ratio, banned, wanted: as in `PlannedRecompute`.
        plain_seconds: time of a step without the plan.
    """

    program: ForwardProgram
    memory: RecomputedMemory
    dropped: Collection[int]
    ratio: float
    banned: Mapping[int, str]
    wanted: Wanted | None
    plain_seconds: float


def reasons(plan: Decided, which: str | int) -> RecomputeReasons:
    """Explain the selected operations; see `PlannedRecompute.why`."""
    judge = _Judge(plan)
    return RecomputeReasons(tuple(judge.reason(each) for each in operations_called(plan.program, which)))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The effect of dropping more storages: bytes dropped, storages newly kept, time, and predicted levels."""

    dropped_bytes: int
    kept: tuple[int, ...]
    kept_bytes: int
    seconds: float
    levels: RecomputedLevels


class _Judge:
    """Explains single operations of a plan, by comparing it with plans that drop one storage more or less."""

    def __init__(self, plan: Decided) -> None:
        self._plan = plan
        self._program = plan.program
        self._memory = plan.memory
        self._dropped = plan.memory.reached(plan.dropped)
        self._levels = plan.memory.levels_if_dropped(plan.dropped)
        self._newly = plan.memory.newly_kept(self._dropped)

    def reason(self, operation: ForwardOperation) -> RecomputeReason:
        """Explain one operation."""
        program = self._program
        numbers = [number for number, _ in operation.makes]
        numbers += [number for number in operation.writes if program.storages[number].made_by is not None]
        saved = [number for number in numbers if program.storages[number].saved_by]
        intermediate = [number for number in numbers if number in self._dropped]
        number = max(saved or intermediate or numbers, key=lambda each: program.storages[each].nbytes, default=None)
        storage = None if number is None else program.storages[number]
        keepers = () if storage is None else storage.saved_by
        if number is None or storage is None or not (saved or intermediate):
            return self._of(
                operation, "not saved", 0, (), 0, 0.0, self._levels.peak_bytes, self._explain_not_saved(operation)
            )
        if number in self._dropped:
            because: Because = "recomputed" if saved else "intermediate"
            without = self._memory.levels_if_dropped(self._dropped - {number})
            kept = self._kept_for(number)
            nbytes = sum(program.storages[each].nbytes for each in kept)
            seconds = self._seconds(self._memory.storages[number].replay_ns)
            said = self._explain_recomputed(number, storage, kept, seconds, without.peak_bytes)
            return self._of(operation, because, storage.nbytes, keepers, nbytes, seconds, without.peak_bytes, said)
        because, choice, said = self._explain_kept(number, storage)
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
        verdict = "recomputed" if because in ("recomputed", "intermediate") else "not recomputed"
        return RecomputeReason(
            operation.number, name, operation.module, operation.source, because, nbytes, saved_by, newly_kept_bytes,
            seconds, peak_bytes, f"{head}: {verdict}. {said}",
        )  # fmt: skip

    def _seconds(self, estimated_ns: float) -> float:
        """Scale an estimated time by the ratio of measured to estimated times of the plan."""
        return self._plan.ratio * estimated_ns / 1e9

    def _made_by(self, number: int) -> str:
        """Return the name of the operation that made a storage, such as `addmm`."""
        storage = self._program.storages[number]
        return "an input" if storage.made_by is None else plain_name(filled_by(self._program, storage))

    def _results(self, numbers: tuple[int, ...]) -> str:
        """Return `the result of addmm (512 KiB)` or `the results of mm and add (1.0 MiB)`."""
        names = list(dict.fromkeys(map(self._made_by, numbers)))
        nbytes = sum(self._program.storages[each].nbytes for each in numbers)
        return f"the result{'s' if len(numbers) > 1 else ''} of {joined(names)} ({size_text(nbytes)})"

    def _savers(self, storage: ForwardStorage) -> str:
        """Return `TanhBackward0 (mlp, model.py:3) saves as `result``."""
        tasks = list(dict.fromkeys(storage.saved_by))
        first = self._program.graph.describe(tasks[0][0])
        more = f" (and {counted(len(tasks) - 1, 'other task')}, too)" if len(tasks) > 1 else ""
        return f"{first} saves as `{tasks[0][1]}`{more}"

    def _kept_for(self, number: int) -> tuple[int, ...]:
        """Return the newly kept storages that the recomputation of a storage reads, directly or through others."""
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

    def _explain_recomputed(
        self, number: int, storage: ForwardStorage, kept: tuple[int, ...], seconds: float, without: int
    ) -> str:
        """Explain why a storage is recomputed; `without` is the peak if it were kept."""
        size, time, peak = size_text(storage.nbytes), ms_text(seconds), size_text(self._levels.peak_bytes)
        said = f"No node saves its {size}, but recomputing others reads them, so they are also recomputed, in {time}"
        if storage.saved_by:
            said = f"The {size} that {self._savers(storage)} are dropped and recomputed in {time}"
        again = tuple(each for each in self._memory.storages[number].needs if each in self._dropped)
        if again:
            said += f", after {self._results(again)}"
        said += "."
        if kept:
            users = [each for each in self._dropped if kept[0] in self._kept_for(each)]
            users = [each for each in users if self._program.storages[each].saved_by]
            nbytes = sum(self._program.storages[each].nbytes for each in users)
            said += f" Newly kept for that: {self._results(kept)}"
            said += f", shared by {len(users):,} storages of {size_text(nbytes)}." if len(users) > 1 else "."
        if without > self._levels.peak_bytes:
            return f"{said} Keeping them would raise the peak from {peak} to {size_text(without)}."
        return f"{said} Keeping only these would leave the peak at {peak}."

    def _explain_not_saved(self, operation: ForwardOperation) -> str:
        """Explain that no node saves its result, and which of its inputs its own node saves."""
        program = self._program
        reads = dict.fromkeys(each.storage for each in operation.reads)
        kept = [
            (number, task, slot)
            for number in reads
            for task, slot in program.storages[number].saved_by
            if slot != "result" and self._is_of(task, operation)
        ]
        said = "No node saves its result, so there is nothing to drop and no reason to recompute it."
        if not kept:
            return said
        number, task, slot = kept[0]
        storage = program.storages[number]
        what = "an input of the forward" if storage.made_by is None else f"the result of {self._made_by(number)}"
        fate = ""
        if number in self._dropped:
            fate = ", which is recomputed without it"
        return (
            f"{said} Its own backward, {program.graph.describe(task)}, reads one of its inputs (`{slot}`, "
            f"{size_text(storage.nbytes)}): {what}{fate}."
        )

    def _is_of(self, task_id: int, operation: ForwardOperation) -> bool:
        """Return whether a task is the operation's backward, judged by name, module and source line."""
        graph = self._program.graph
        task = graph.tasks[task_id]
        place = graph.module(task) == operation.module and task.source == operation.source
        return place and task.short_name.lower().removeprefix("native") == plain_name(operation).replace("_", "")

    def _explain_kept(self, number: int, storage: ForwardStorage) -> tuple[Because, _Choice | None, str]:
        """Explain why a saved storage is kept."""
        plan, memory = self._plan, self._memory
        head = f"The {size_text(storage.nbytes)} that {self._savers(storage)} are kept"
        if number in plan.banned:
            return "bits differ", None, f"{head}. Recomputing was tried: {plan.banned[number]}."
        if storage.obstacle is not None:
            return "not recomputable", None, f"{head}. They cannot be recomputed, since {storage.obstacle}."
        if not memory.storages[number].droppable or memory.held[number]:
            return (
                "not recomputable",
                None,
                f"{head}. A variable, a hook or another graph also holds them, so dropping them frees nothing.",
            )
        # Drop it alone, with its inputs up to products, or with all its inputs.
        candidates = Candidates(self._memory)
        found = {
            frozenset({number}),
            frozenset(candidates.with_makers(number, self._dropped, stop_at_products=True)),
            frozenset(candidates.with_makers(number, self._dropped)),
        }
        best, *others = sorted(
            [self._choice(each) for each in found], key=lambda each: (each.levels.peak_bytes, each.seconds)
        )
        gain = self._levels.peak_bytes - best.levels.peak_bytes
        figures = self._figures(best)
        peak = memory.plain_peak_bytes
        budget = None if plan.wanted is None else plan.wanted.peak_bytes(peak)
        if budget is not None and self._levels.peak_bytes <= budget:
            return (
                "budget reached",
                best,
                f"{head}. The budget of {both_units(budget)} is reached without dropping them. {figures}.",
            )
        if gain <= _WORTH_IT * peak:
            return self._no_gain(number, head, best, others)
        if plan.wanted is None:
            return "not found", best, f"{head}. {figures}; another plan may do that."
        allowed = plan.wanted.extra_ns(1e9 * plan.plain_seconds) / 1e9
        taken = self._seconds(self._levels.replay_ns)
        if taken + best.seconds <= allowed:
            return "not found", best, f"{head}. {figures}; the search did not find it: increase seconds=."
        share = f" ({percent_text(plan.wanted.overhead)})"
        spent = f", of which the plan already takes {ms_text(taken)}" if taken else ""
        if useless := self._describe_useless(others):
            head += f". On its own this gains nothing: {useless}. Together with the operations before it"
            figures = f", {figures[0].lower()}{figures[1:]}"
            said = f"{head}{figures}. A step may take {ms_text(allowed)} longer{share}{spent}."
        else:
            said = f"{head}. {figures}. A step may take {ms_text(allowed)} longer{share}{spent}."
        itself = self._program.seconds_of(number)
        both = self._seconds(memory.storages[number].replay_ns)
        if both >= 2 * itself:
            said += f" Alone the operation takes {ms_text(itself)}; recording and calling it takes "
            said += f"{ms_text(both - itself)}."
        return "time", best, said

    def _describe_useless(self, choices: list[_Choice]) -> str:
        """Describe the choices that newly keep at least as much as they drop; "" if there are none."""
        said = {
            f"to recompute {size_text(each.dropped_bytes)}, {self._results(each.kept)} would have to be kept"
            for each in choices
            if each.kept_bytes >= each.dropped_bytes
        }
        return "; or ".join(sorted(said))

    def _choice(self, more: frozenset[int]) -> _Choice:
        memory = self._memory
        dropped = memory.reached(self._dropped | more)
        kept = tuple(sorted(memory.newly_kept(dropped) - self._newly))
        gone = sum(memory.storages[each].nbytes for each in dropped - self._dropped if memory.places[each])
        levels = memory.levels_if_dropped(dropped)
        return _Choice(
            gone,
            kept,
            sum(memory.storages[each].nbytes for each in kept),
            self._seconds(max(0.0, levels.replay_ns - self._levels.replay_ns)),
            levels,
        )

    def _figures(self, choice: _Choice) -> str:
        """Return `Recomputing would take 1.2 ms and lower the peak by 3.0 MiB`."""
        gain = self._levels.peak_bytes - choice.levels.peak_bytes
        kept = f", and {self._results(choice.kept)} would be newly kept" if choice.kept else ""
        lower = f"lower the peak by {size_text(gain)}" if gain > 0 else "not lower the peak"
        return f"Recomputing would take {ms_text(choice.seconds)} and {lower}{kept}"

    def _no_gain(
        self, number: int, head: str, best: _Choice, others: list[_Choice]
    ) -> tuple[Because, _Choice | None, str]:
        """Explain that dropping a storage, in the best way found, does not lower the peak."""
        memory = self._memory
        places = memory.places[number]
        if said := self._describe_useless([best, *others]):
            others = [each for each in (best, *others) if not each.kept]
            more = (
                f"; recomputing also the operations before it would take {ms_text(others[0].seconds)}" if others else ""
            )
            return "no gain", best, f"{head}. Nothing is gained: {said}{more}."
        plain = memory.plain
        place = self._levels.peak_place
        if places and places[-1] < place:
            where = plain.graph.describe(plain.order[place], place)
            return (
                "after the peak",
                best,
                f"{head}. They are freed before the peak, in {where}. {self._figures(best)}.",
            )
        if places and place >= 0 and places[0] <= place:
            return "no gain", best, f"{head}. They would be recomputed before the peak or at it. {self._figures(best)}."
        return "no gain", best, f"{head}. {self._figures(best)}."
