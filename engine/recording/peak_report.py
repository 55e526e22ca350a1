"""The report on a peak: the storages alive at it, their makers and holders, and when they are freed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from ...inspector.graph.graph import Graph
from ...inspector.graph.phrases import folded, joined, module_title, operation_title, pattern, was_captured
from ...inspector.graph.source_lines import Source
from ...inspector.references.find_referrers import who_holds
from ...inspector.renderers import GraphTheme, drawn, text_of
from ...inspector.text.sizes_and_counts import nth, share_text, size_text
from ...inspector.torch_private.tensors import address_below
from ...inspector.validation import expect, expect_choice
from ..memory.baseline import constants_sentence
from ..memory.categories import Category
from ..memory.category_levels import forward_peak_event
from ..memory.estimates import bounded_size, estimate_sentence
from ..memory.storage_sentences import StorageWords
from ..memory.timeline import Storage, Timeline
from .peak_facts import Hint, Peak, Reference
from .peak_hints import hints
from .task_records import Trace

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.console import RenderableType
    from torch import Tensor


Phase = Literal["backward", "forward"]

_MOST_SHOWN = 4  # groups per category in a text; `groups` has all, and `records()` has all storages
_LEAST_SHARE = 0.005  # of the peak
_MOST_HELD = 16  # storages whose holders are searched
_MOST_TENSORS = 4  # on each of them
_MOST_LOOKED_AT = 5_000  # objects examined on the way to a name
_LEAST_BYTES = 16  # the widest scalar: nearly all programs hold the loss
_Alike = tuple[Category, bool, str | None, Source | None, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class PeakGroup:
    """Storages of one category alive at the peak, allocated at one line of one module, or of several equal modules.

    Attributes:
        category: their category at the peak.
        stays: whether these input buffers become a .grad; others are freed soon.
        module, source: the module and line of the forward that allocated them; in the backward, those of the forward
            operation whose task did.
        modules: the number of modules. Equal modules of a list form one group, and `module` has a `*` where their paths
            differ: `blocks.*.mlp`.
        nbytes: their total size.
        storages: the storages, the last to be freed first.
        made_by, kept_by, freed_by: their makers, their holders from the peak on, and when they are freed, in words.
        variables: the variables to which the forward assigned them, see `Maker`.
        holders: the program's references to the largest of them when the report is created: `trainer.outputs[3]`.
    """

    category: Category
    stays: bool
    module: str | None
    source: Source | None
    modules: int
    nbytes: int
    storages: tuple[Storage, ...]
    made_by: str
    kept_by: str
    freed_by: str
    variables: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PeakReport:
    """The storages alive at the peak of one backward, or of the forward before it.

    Attributes:
        timeline: the memory of that backward.
        answer: the peak, its moment, and its largest part, in sentences.
        groups: the storages by category, module and source line; largest categories first, and largest groups first in
            each.
        hints: ways to lower the peak.
        phase: the phase of the peak.
        forward: the report on the forward's peak if it is higher than the backward's.
    """

    timeline: Timeline
    answer: tuple[str, ...]
    groups: tuple[PeakGroup, ...]
    hints: tuple[Hint, ...] = field(default=())
    phase: Phase = "backward"
    forward: PeakReport | None = None

    @property
    def nbytes(self) -> int:
        """The peak in bytes, see `Timeline`."""
        return self.timeline.levels[_moment(self.timeline, self.phase)[0]]

    @cached_property
    def categories(self) -> dict[Category, int]:
        """Bytes by category, largest first."""
        found: dict[Category, int] = {}
        for group in self.groups:
            found[group.category] = found.get(group.category, 0) + group.nbytes
        return found

    def title(self, group: PeakGroup) -> str:
        """Return the origin of a group: `layer1.0, model.py:120`, `12 × blocks.*.mlp, model.py:33 → .grad`."""
        return title_of(self.timeline.graph, group)

    def module_title(self, group: PeakGroup) -> str:
        """Return the module or modules of a group: `layer1.0`, `12 × blocks.*.mlp`."""
        return _module_title(self.timeline.graph, group)

    def sentences(self, group: PeakGroup) -> list[tuple[str, str]]:
        """Return the sentences about a group as (label, sentence)."""
        many = f", {len(group.storages):,} storages" if len(group.storages) > 1 else ""
        assigned = [("assigned to", joined(group.variables))] if group.variables else []
        held = (
            [("held as", "; ".join(group.holders))] if group.holders and group.holders[0] not in group.kept_by else []
        )
        return [("made by", group.made_by + many), *assigned, ("kept", group.kept_by), *held, ("freed", group.freed_by)]

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per storage, for `pandas.DataFrame(report.records())`.

        The keys include `bytes`; `share` of the peak, 0 to 1; `born` and `died`, places in the order (-1 for before the
        backward, None for never); `source`, such as `file.py:120`; `variable`, to which the forward assigned it, or
        None; `made_by`, `kept_by` and `freed_by` in words.
        """
        words = StorageWords(self.timeline)
        _, since = _moment(self.timeline, self.phase)
        return [
            {
                "number": storage.number,
                "bytes": storage.nbytes,
                "share": storage.nbytes / self.nbytes,
                "category": group.category.title,
                "module": storage.made_by.module,
                "source": None if group.source is None else group.source.short,
                "variable": storage.made_by.variable or None,
                "made_by": words.made_by([storage]),
                "kept_by": words.kept_by([storage], group.category, since),
                "freed_by": words.freed_by([storage]),
                "born": storage.born,
                "died": storage.died,
                "born_ns": storage.born_ns,
                "died_ns": storage.died_ns,
            }
            for group in self.groups
            for storage in group.storages
        ]

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Return a treemap of the peak by category, module and source line. Needs plotly."""
        return drawn("peak as a figure", self, theme)

    def __repr__(self) -> str:
        hints = {0: " no hint", 1: " 1 hint"}.get(len(self.hints), f" {len(self.hints)} hints")
        return f"<PeakReport: {self.answer[0]}{hints}>"

    def __str__(self) -> str:
        lines = [*self.answer, ""]
        for category, groups, rest in self.shown(_MOST_SHOWN):
            lines.append(f"{category.title}: {self._amount(self.categories[category])}")
            for group in groups:
                lines.append(f"  {self._amount(group.nbytes)}  {self.title(group)}")
                lines += [f"    {word}: {sentence}" for word, sentence in self.sentences(group)]
            if rest:
                lines.append(f"  {rest}")
        lines += ["", *(f"Hint: {hint}" for hint in self.hints)] if self.hints else []
        lines += ["", str(self.forward)] if self.forward else []
        return "\n".join(lines)

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("bytes", justify="right", no_wrap=True)
        table.add_column("share", justify="right", no_wrap=True)
        table.add_column("what, made where", ratio=2)
        table.add_column("made by, kept, freed", ratio=3)
        for category, groups, rest in self.shown(_MOST_SHOWN):
            nbytes = self.categories[category]
            table.add_row(
                Text(size_text(nbytes), "bold"),
                Text(share_text(nbytes, self.nbytes), "bold"),
                Text(category.title, "bold"),
            )
            for group in groups:
                story = Text("\n").join(
                    Text.assemble((f"{word} ", "dim"), said) for word, said in self.sentences(group)
                )
                share = share_text(group.nbytes, self.nbytes)
                table.add_row(size_text(group.nbytes), share, Text(f"  {self.title(group)}"), story)
            if rest:
                table.add_row("", "", Text(f"  {rest}", "dim"))
        parts: list[RenderableType] = [Text(self.answer[0], "bold"), *map(Text, self.answer[1:]), Text(), table]
        for hint in self.hints:
            parts.append(Padding(Text.assemble(("Hint  ", "bold"), str(hint)), (1, 0, 0, 0)))
        if self.forward:
            parts.append(Padding(self.forward.__rich__(), (1, 0, 0, 0)))
        return Group(*parts)

    def _repr_html_(self) -> str:
        return text_of("peak as HTML", self)

    def _amount(self, nbytes: int) -> str:
        return f"{size_text(nbytes)} ({share_text(nbytes, self.nbytes)})"

    def shown(self, most: int) -> Iterator[tuple[Category, list[PeakGroup], str]]:
        """Yield each category with its `most` largest relevant groups, and a line on the others."""
        for category, nbytes in self.categories.items():
            if nbytes < _LEAST_SHARE * self.nbytes:
                if nbytes > _LEAST_BYTES:
                    yield category, [], ""
                continue
            groups = [group for group in self.groups if group.category is category]
            large = [
                group for group in groups[:most] if group is groups[0] or group.nbytes >= _LEAST_SHARE * self.nbytes
            ]
            rest = nbytes - sum(group.nbytes for group in large)
            left = len(groups) - len(large)
            more = f"+{left:,} smaller group{f's, {size_text(rest)} together' if left > 1 else f', {size_text(rest)}'}"
            yield category, large, more if left and rest > _LEAST_BYTES else ""


def peak_report(
    timeline: Timeline,
    others: Mapping[str, int] | None = None,
    trace: Trace | None = None,
    elsewhere: tuple[Timeline, ...] = (),
    phase: Phase = "backward",
) -> PeakReport:
    """Report on the peak of a backward, or of the forward before it.

    Args:
        timeline: its memory, measured or predicted.
        others: the known peaks under other policies, in bytes, by name; hints mention them.
        trace: the record of it, or of another backward of the same graph, for hints that use its statistics.
        elsewhere: the memory of other devices in the same backward.
        phase: the phase of the peak. The report on a backward's peak includes the forward's if that is higher.

    Raises:
        TypeError: If `timeline` is not a timeline.
        ValueError: If `phase` is "forward" and the forward was not recorded.
    """
    expect(timeline, Timeline, "timeline", "a Timeline: `run.timeline`, or the result of ts.simulate")
    if others is not None:
        expect(others, Mapping, "others", "the peaks in bytes under other policies, by name")
    if trace is not None:
        expect(trace, Trace, "trace", "a Trace: `run.trace`")
    expect(elsewhere, tuple, "elsewhere", "a tuple of the timelines of other devices")
    for each in elsewhere:
        expect(each, Timeline, "each of elsewhere", "the Timeline of another device")
    expect_choice(phase, get_args(Phase), "phase")
    if phase == "forward" and forward_peak_event(timeline) is None:
        raise ValueError(
            "the memory of the forward was not recorded; ts.profile(make_loss) measures a forward and its backward"
        )
    storages = _alive(timeline, phase)
    references = _references(timeline, [storage for storage, _ in storages])
    groups = groups_of(timeline, storages, phase, references)
    peak = Peak(timeline, storages, others or {}, trace, phase, _moment(timeline, phase)[0], references)
    if phase == "forward":
        return PeakReport(timeline, tuple(_forward_answer(timeline, groups)), groups, hints(peak), phase=phase)
    event = forward_peak_event(timeline)
    is_higher = event is not None and timeline.levels[event] > timeline.peak_bytes
    return PeakReport(
        timeline,
        tuple(_answer(timeline, groups, elsewhere)),
        groups,
        hints(peak),
        forward=peak_report(timeline, phase="forward") if is_higher else None,
    )


def _moment(timeline: Timeline, phase: Phase) -> tuple[int, int]:
    """Return the event before which memory is at the peak, and the place in the order from then on: -1 in the
    forward."""
    event = forward_peak_event(timeline)
    if phase == "forward" and event is not None:
        return event, -1
    return timeline.peak_event, max(timeline.peak_place, 0)


def _alive(timeline: Timeline, phase: Phase) -> list[tuple[Storage, Category]]:
    """Return the storages alive at the peak, with the category of each at that time."""
    event, _ = _moment(timeline, phase)
    place = -1 if phase == "forward" else timeline.peak_place
    return [(timeline.storage(number), timeline.category_at(number, event, place)) for number in timeline.alive(event)]


def groups_of(
    timeline: Timeline,
    storages: list[tuple[Storage, Category]],
    phase: Phase = "backward",
    references: Mapping[int, Reference] | None = None,
) -> tuple[PeakGroup, ...]:
    """Group storages by category at the peak, module and source line; largest categories first."""
    holders = {number: each.text for number, each in (references or {}).items()}
    words = StorageWords(timeline, holders)
    _, since = _moment(timeline, phase)
    found: dict[tuple[Category, bool, str | None, Source | None], list[Storage]] = {}
    totals: dict[Category, int] = {}
    for storage, category in storages:
        if not storage.nbytes:
            continue
        maker = storage.made_by
        stays = category is Category.BUFFER and storage.number in timeline.grads
        found.setdefault((category, stays, maker.module, maker.source), []).append(storage)
        totals[category] = totals.get(category, 0) + storage.nbytes
    alike: dict[_Alike, list[tuple[str | None, list[Storage]]]] = {}
    for (category, stays, module, source), each in found.items():
        made = sorted((words.made_by([storage]), storage.nbytes) for storage in each)
        key = (category, stays, module and pattern(module), source, tuple(made))
        alike.setdefault(key, []).append((module, each))
    end = len(timeline.order) + 1
    groups = []
    for (category, stays, _, source, _), equal in alike.items():
        module = equal[0][0] and folded(path or "" for path, _ in equal)
        each = [storage for _, storages in equal for storage in storages]
        each.sort(key=lambda storage: (-(end if storage.died is None else storage.died), storage.born, storage.number))
        groups.append(
            PeakGroup(
                category,
                stays,
                module,
                source,
                len(equal),
                sum(storage.nbytes for storage in each),
                tuple(each),
                words.made_by(each),
                words.kept_by(each, category, since),
                words.freed_by(each),
                tuple(dict.fromkeys(storage.made_by.variable for storage in each if storage.made_by.variable)),
                tuple(holders[storage.number] for storage in each if storage.number in holders),
            )
        )
    return tuple(sorted(groups, key=lambda group: (-totals[group.category], group.category, -group.nbytes)))


def _references(timeline: Timeline, storages: Sequence[Storage]) -> dict[int, Reference]:
    """Return the program's references to the largest storages that it holds, by number of the storage."""
    least = _LEAST_SHARE * timeline.peak_bytes
    held = [each for each in storages if each.number in timeline.tensors and each.nbytes >= max(least, _LEAST_BYTES)]
    numbers: list[int] = []
    tensors: list[Tensor] = []
    for storage in sorted(held, key=lambda storage: -storage.nbytes)[:_MOST_HELD]:
        address, references = timeline.tensors[storage.number]
        alive = [tensor for each in references if (tensor := each()) is not None]
        there = [tensor for tensor in alive if address_below(tensor) == address][-_MOST_TENSORS:]
        numbers += [storage.number] * len(there)
        tensors += there
    sizes = {storage.number: storage.nbytes for storage in held}
    found: dict[int, Reference] = {}
    for number, tensor, holder in zip(
        numbers, tensors, who_holds(tensors, _MOST_LOOKED_AT) if tensors else (), strict=True
    ):
        if holder.kind == "named":
            share = tensor.nbytes / sizes[number]
            known = found.get(number)
            found[number] = Reference(
                holder.text if known is None else known.text, max(share, known.share if known else 0)
            )
    return found


def title_of(graph: Graph, group: PeakGroup) -> str:
    """Return the origin of a group, see `PeakReport.title`."""
    module = _module_title(graph, group)
    return (f"{module}, {group.source.short}" if group.source else module) + (" → .grad" if group.stays else "")


def _module_title(graph: Graph, group: PeakGroup) -> str:
    title = module_title(graph, group.module)
    return title if group.modules == 1 else f"{group.modules:,} × {title}"


def _forward_answer(timeline: Timeline, groups: tuple[PeakGroup, ...]) -> Iterator[str]:
    event, _ = _moment(timeline, "forward")
    nbytes = timeline.levels[event]
    whose = "The peak before the backward" if timeline.is_of_step else "The forward's peak"
    maker = timeline.maker(timeline.events[event - 1]) if event else None  # the allocation that reached the peak
    when = ""
    if maker is not None and maker.operation is not None:
        at = f" at {maker.source.short}" if maker.source else ""
        when = f", in {operation_title(maker.operation.name)}{at}"
    yield f"{whose} is {size_text(nbytes)}{when}."
    yield from _most_of_it(timeline, groups, nbytes)


def _most_of_it(timeline: Timeline, groups: tuple[PeakGroup, ...], peak_bytes: int) -> Iterator[str]:
    """Yield a sentence on the largest category, with the maker and holder of its largest group."""
    if not groups:
        return
    first = groups[0]
    alike = [group for group in groups if group.category is first.category]
    nbytes = sum(group.nbytes for group in alike)
    group = f"; the largest group of them, {size_text(first.nbytes)}, was" if len(alike) > 1 else ","
    where = "" if first.module is None else "in "
    where += _module_title(timeline.graph, first)
    source = f" at {first.source.short}" if first.source else ""
    made = f"{group} made {where}{source}" if was_captured(timeline.graph) else ""
    share = share_text(nbytes, peak_bytes)
    yield f"{size_text(nbytes)} of it ({share}) are {first.category.plural}{made}: {first.kept_by}."


def _answer(timeline: Timeline, groups: tuple[PeakGroup, ...], elsewhere: Sequence[Timeline]) -> Iterator[str]:
    count, place = len(timeline.order), timeline.peak_place
    of = f" of {timeline.device}" if elsewhere else ""
    of += " in this run" if timeline.event_places else ""
    peak = bounded_size(timeline.peak_bytes, timeline.estimates)
    if timeline.peak_task is not None:
        where = timeline.graph.describe(timeline.peak_task)
        yield f"The peak{of} is {peak}, in {where}, the {nth(place + 1)} of {count:,} tasks."
    else:
        when = "before the first task: the backward starts with it" if place < 0 else "as backward() ended"
        yield f"The peak{of} is {peak}, {when}."
    if timeline.baseline.grad_bytes:
        yield timeline.baseline.older_gradients
    yield from _most_of_it(timeline, groups, timeline.peak_bytes)
    event = forward_peak_event(timeline)
    if event is not None and (nbytes := timeline.levels[event]) > timeline.peak_bytes:
        whose = "The level before the backward" if timeline.is_of_step else "The forward's own peak"
        yield f"{whose} is higher, {size_text(nbytes)}, and no order of the backward changes that."
    blocks = timeline.blocks
    if blocks is not None and timeline.peak_task is not None:
        rounding, unused = max(0, blocks.rounding[place]), blocks.unused[place]
        yield (
            f"All blocks on {timeline.device}, including older ones, reached {size_text(blocks.allocated[place])} in "
            f"this task, {size_text(rounding)} of it by rounding; the allocator had reserved "
            f"{size_text(blocks.reserved[place])}, {size_text(unused)} of it outside blocks."
        )
    if elsewhere:
        peaks = [f"that of {each.device} is {size_text(each.peak_bytes)}" for each in elsewhere]
        yield f"Each device has its own peak: {', '.join(peaks)}."
    if timeline.basis != "measured":
        basis = "one calibrated run" if timeline.basis == "calibrated" else "a dry run; nothing was executed"
        yield f"Predicted from {basis}."
    if estimate := estimate_sentence(timeline.estimates, most=len(timeline.estimates)):
        yield estimate
    if before := timeline.baseline.sentence(timeline.peak_bytes):
        yield before
    if timeline.constant_bytes:
        yield constants_sentence(timeline.constant_bytes)
    if not was_captured(timeline.graph):
        yield ("The modules and lines are not known; run the forward under ts.capture(), or use ts.profile(make_loss).")
