"""The data of a deck's page: one backward as columns of numbers, in gzipped JSON."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from torch import nn

from ...engine.execution.run_hooks import Hook
from ...engine.memory.categories import Category
from ...engine.memory.estimates import main_reason
from ...engine.memory.storage_sentences import MADE_IN_FORWARD, StorageWords
from ...engine.memory.timeline import Storage, Timeline
from ...engine.planning.policies import CLASSIC
from ...engine.recording.peak_report import peak_report
from ...engine.recording.run import Engine
from ...engine.recording.statistics import Statistics
from ...engine.recording.task_records import RecordedGradient, Trace
from ...engine.schedule.dependencies import Pending
from ...engine.schedule.policy import Choice, Policy, policy_name
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.graph import Graph, TensorMeta, module_name
from ...inspector.graph.operations_and_calls import Operation, resolve_sources
from ...inspector.graph.phrases import folded, joined, operation_title, pattern
from ...inspector.graph.source_lines import Source
from ...inspector.text.sizes_and_counts import counted, dtype_name, share_text
from ...inspector.torch_private.nodes import leaf_if_any
from .recompute_data import FIRST_DROPPED, RecomputeContent

_MOST_ROWS = 24
_MOST_BARS = 4  # bars of a row; with more, one bar is drawn from the first allocation to the last release
_MOST_IN_WORDS = 200  # storages of a row whose makers and holders are listed

_STAYS = (Category.PARAMETER, Category.STATE)  # alive across steps, without a lifetime in one

Alike = tuple[str, str, int, int]
"""The maker and module of a storage without numbers, its bytes, and its category."""


def lifetime_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Return rows of storages, sorted by bytes × time, where time counts memory events of the backward.

    Each row has `name` and `module`, the maker and its module with `*` for differing numbers; `count`, and the `nbytes`
    of one storage; `storages` in order of allocation, or the first allocated and the last freed of more than four; and
    the texts `made_by`, `kept_by` and `freed_by`.
    """
    first, end = timeline.starts[0], len(timeline.events)
    births, deaths = timeline.births, timeline.deaths
    groups: dict[Alike, list[int]] = {}
    areas: dict[Alike, int] = {}
    makers = _Makers(timeline)
    for number, nbytes in enumerate(timeline.nbytes):
        area = nbytes * (deaths.get(number, end) - max(births[number], first))
        if area > 0 and timeline.born_as[number] not in _STAYS:
            key = (*makers.of(number), nbytes, int(timeline.category_at(number)))
            groups.setdefault(key, []).append(number)
            areas[key] = areas.get(key, 0) + area
    words = StorageWords(timeline)
    largest = sorted(groups, key=lambda key: (-areas[key], groups[key][0]))[:_MOST_ROWS]
    return [_row(key, groups[key], timeline, words) for key in largest]


def _row(key: Alike, numbers: Sequence[int], timeline: Timeline, words: StorageWords) -> dict[str, Any]:
    name, _, nbytes, category = key
    storages = [timeline.storage(number) for number in numbers[:_MOST_IN_WORDS]]
    drawn = list(numbers)
    if len(numbers) > _MOST_BARS:  # only the first allocated and the last freed
        deaths, never = timeline.deaths, len(timeline.events)
        last = max(numbers, key=lambda number: deaths.get(number, never))
        drawn = list(dict.fromkeys((numbers[0], last)))
    kept_by = words.kept_by(storages, Category(category))
    if name == MADE_IN_FORWARD and any(storage.kept_by for storage in storages):
        name = kept_by.partition(";")[0]  # only their holders differ
    return {
        "name": name,
        "module": module_name(folded(_path(storage, timeline) for storage in storages)),
        "count": len(numbers),
        "nbytes": nbytes,
        "storages": drawn,
        "made_by": words.made_by(storages),
        "kept_by": kept_by,
        "freed_by": words.freed_by(storages),
    }


def _path(storage: Storage, timeline: Timeline) -> str:
    """Return the module that made a storage; for a .grad, the module of the parameter."""
    leaf = timeline.grads.get(storage.number)
    parameter = None if leaf is None else timeline.graph.tasks[leaf].parameter
    return (storage.made_by.module or "") if parameter is None else parameter.rpartition(".")[0]


class _Makers:
    """Descriptions of makers of storages and their modules, without numbers."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._tasks = timeline.graph.tasks
        self._known: dict[object, tuple[str, str]] = {}

    def of(self, number: int) -> tuple[str, str]:
        timeline = self._timeline
        leaf = timeline.grads.get(number)
        maker = timeline.maker(number)
        if leaf is None and timeline.is_of_step and timeline.births[number] >= timeline.starts[-1]:
            return "made after the backward", ""
        key = (leaf, maker.task, maker.operation if maker.task is None else None, maker.module)
        if key not in self._known:
            self._known[key] = self._words(leaf, maker.task, maker.operation, maker.module)
        return self._known[key]

    def _words(self, leaf: int | None, task: int | None, operation: Any, module: str | None) -> tuple[str, str]:
        if leaf is not None:
            path, _, last = (self._tasks[leaf].parameter or "").rpartition(".")
            return f"{last}.grad" if last else "gradient of a leaf", pattern(path)
        where = pattern(module or "")
        if task is not None:
            return f"{self._tasks[task].short_name} gradient", where  # "relu" is the activation
        return operation_title(operation.name) if operation else MADE_IN_FORWARD, where


FORMAT = "tapescope.deck"
VERSION = 2

NONE = -1
_MOST_LINES = 4  # before and after a source line


_HOOKS = {
    "tensor": "tensor hook",
    "retain_grad": "retain_grad",
    "pre": "pre-hook",
    "post": "hook",
    "post_accumulate": "post-accumulate-grad hook",
}

Json = dict[str, Any]


class Document:
    """The page's data of one graph, with numbered strings and shapes.

    `recompute` describes the recomputation in its forward; without it, it is derived from the graph's nodes.

    One thread may pack the document while another adds to it: strings and shapes get numbers before records use them.
    """

    @collector_paused()
    def __init__(self, graph: Graph, title: str, engine: Engine, recompute: RecomputeContent | None = None) -> None:
        recompute = recompute or RecomputeContent(graph)
        self._texts: dict[str, int] = {}
        self._metas: dict[TensorMeta, int] = {}
        self._forms: dict[tuple[int, ...], int] = {}
        self._lines: dict[Source, int] = {}
        self.content: Json = {
            "format": FORMAT,
            "version": VERSION,
            "title": title,
            "engine": engine,
            "devices": sorted(map(str, graph.devices)),
            "phases": [{"name": "backward", "elapsed_ns": None}],
            "keeps_graph": False,
            "keeps_inputs": any(
                isinstance(task.operation, Operation) and task.operation.inputs is not None for task in graph.tasks
            ),
            "tasks": self._tasks(graph),
            "edges": {
                "task": [edge.task for edge in graph.edges],
                "output": [edge.output for edge in graph.edges],
                "next": [edge.next_task for edge in graph.edges],
                "input": [edge.input for edge in graph.edges],
            },
            "roots": [[root.task, root.input] for root in graph.roots],
            "calls": {
                "path": [self.text(call.path) for call in graph.calls],
                "class": [self.text(call.class_name) for call in graph.calls],
                "parent": [NONE if call.parent is None else call.parent for call in graph.calls],
                "index": [call.index for call in graph.calls],
            },
            "saved": self._saved(graph, recompute),
            "groups": None,
            "schedules": [],
            "position": 0,
            "revision": 0,
            "records": {},
        }

    def text(self, text: str | None) -> int:
        """Return the number of a string; -1 for None."""
        return NONE if text is None else self._texts.setdefault(text, len(self._texts))

    def meta(self, meta: TensorMeta) -> int:
        """Return the number of a shape, dtype and device."""
        return self._metas.setdefault(meta, len(self._metas))

    @property
    def metas(self) -> list[Json]:
        """The shapes that records refer to; more are added as tasks run."""
        return [
            {
                "shape": None if meta.shape is None else list(meta.shape),
                "dtype": dtype_name(meta.dtype),
                "device": str(meta.device),
                "bytes": meta.nbytes,
            }
            for meta in list(self._metas)
        ]

    def note_missing(self, graph: Graph, model: nn.Module) -> None:
        """Note how many of a model's parameters that require grad are not in the graph, for example after a detach."""
        wanted = {id(each) for each in model.parameters() if each.requires_grad}
        missing = wanted - {
            id(leaf_if_any(node)) for task, node in zip(graph.tasks, graph.nodes, strict=True) if task.is_leaf
        }
        if missing:
            self.content["note"] = (
                f"{len(missing):,} of {counted(len(wanted), 'parameter')} of the model that require grad "
                f"{'is' if len(missing) == 1 else 'are'} not in this graph; ts.find_unused(make_loss, model) says why"
            )

    def packed(self) -> bytes:
        """Return the document as gzipped JSON."""
        content = self.content.copy()  # the revision first: the page requests news that arrive meanwhile
        # News are added to these, so they are copied before the texts and shapes that they refer to.
        for name in ("records", "checks", "replayed"):
            if name in content:
                content[name] = content[name].copy()
        return packed(
            content
            | {
                "texts": list(self._texts),
                "metas": self.metas,
                "forms": list(self._forms),
                "lines": [_line(source) for source in self._lines],
            }
        )

    def _tasks(self, graph: Graph) -> Json:
        text, tasks = self.text, graph.tasks
        resolve_sources(task.operation for task in tasks if isinstance(task.operation, Operation))
        devices = {device: number for number, device in enumerate(sorted(graph.devices, key=str))}
        return {
            "name": [text(task.name) for task in tasks],
            "kind": [text(task.kind.value) for task in tasks],
            "call": [NONE if task.call is None else task.call for task in tasks],
            "line": [self._line(task.source) for task in tasks],
            "operation": [text(None if task.operation is None else task.operation.name) for task in tasks],
            "parameter": [text(task.parameter) for task in tasks],
            "device": [devices[task.device] for task in tasks],
            "takes": self._takes(graph),
            **_creation(graph),
        }

    def _line(self, source: Source | None) -> int:
        return NONE if source is None else self._lines.setdefault(source, len(self._lines))

    def _takes(self, graph: Graph) -> list[int]:
        """Return the form of each task's inputs. Equal shapes of a graph are mostly one object."""
        seen: dict[tuple[int, ...], int] = {}
        found = []
        for task in graph.tasks:
            key = tuple(map(id, task.inputs))
            if key not in seen:
                seen[key] = self._forms.setdefault(tuple(map(self.meta, task.inputs)), len(self._forms))
            found.append(seen[key])
        return found

    def _saved(self, graph: Graph, recompute: RecomputeContent) -> Json:
        saved = graph.known_saved
        content: Json = {
            "task": [each.task for each in saved],
            "slot": [self.text(each.slot) for each in saved],
            "storage": [NONE if each.storage is None else each.storage for each in saved],
            "bytes": [each.storage_bytes or 0 for each in saved],
            "meta": [self.meta(TensorMeta(each.shape, each.dtype, each.device)) for each in saved],
            "parameter": [self.text(each.parameter) for each in saved],
            "held": [int(each.held) for each in saved],
        }
        return self.with_dropped(content, recompute)

    def with_dropped(self, saved: Json, recompute: RecomputeContent) -> Json:
        """Return the rows of saved tensors, with those that the forward dropped."""
        dropped = recompute.saves
        if not dropped:
            return saved
        there = len(saved["task"])
        added: Json = {
            "task": [each.task for each in dropped],
            "slot": [self.text(each.slot) for each in dropped],
            "storage": [FIRST_DROPPED + each.storage for each in dropped],
            "bytes": [each.nbytes for each in dropped],
            "meta": [NONE if each.meta is None else self.meta(each.meta) for each in dropped],
            "parameter": [NONE] * len(dropped),
            "held": [0] * len(dropped),
        }
        made_by = [NONE] * there + [self.text(each.made_by) for each in dropped]
        return {name: column + added[name] for name, column in saved.items()} | {"made_by": made_by}

    def record(
        self,
        inputs: Iterable[RecordedGradient | None],
        outputs: Iterable[RecordedGradient | None] = (),
        elapsed_ns: int | None = None,
        hooks: Iterable[Hook] = (),
        edited: bool = False,
    ) -> Json:
        """Return the data of a task's gradients, of edits of its inputs, and of the hooks that ran."""
        found: Json = {
            "inputs": [self._gradient(each) for each in inputs],
            "outputs": [self._gradient(each) for each in outputs],
            "elapsed_ns": elapsed_ns,
        }
        ran = [f"{_HOOKS.get(hook.kind, hook.kind)} {hook.name}".strip() for hook in hooks]
        return found | ({"hooks": ran} if ran else {}) | ({"edited": True} if edited else {})

    def records(self, trace: Trace, places: Iterable[int]) -> dict[str, Json]:
        """Return the data of a trace's records, by task id."""
        found, edited = {}, {edit.task for edit in trace.edits}
        for place in places:
            record = trace[place]
            task_id = record.task.id
            found[str(task_id)] = self.record(
                record.inputs, record.outputs, record.elapsed_ns, record.hooks, task_id in edited
            )
        return found

    def _gradient(self, gradient: RecordedGradient | None) -> Json | None:
        if gradient is None:
            return None
        return {"meta": self.meta(gradient.meta), **_numbers(gradient.statistics)}


def _creation(graph: Graph) -> Json:
    """Return the column of creation times, NONE for tasks without one; no column if no time is known."""
    found = [NONE if task.created_ns is None else task.created_ns for task in graph.tasks]
    return {"created": found} if max(found) > NONE else {}


def packed(content: Mapping[str, Any]) -> bytes:
    """Return content as gzipped JSON."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode("utf-8", "surrogatepass"), compresslevel=4, mtime=0)


def schedule_content(
    graph: Graph,
    policy: Policy | Choice,
    order: Sequence[int],
    *,
    by_hand: Sequence[int] = (),
    timeline: Timeline | None = None,
    note: str = "",
    clock: Json | None = None,
) -> Json:
    """Return a policy's order with its memory; without memory, `note` gives the reason.

    `clock` has `start` and `duration` by place, in nanoseconds since the first task's start, for the tasks with known
    times.
    """
    return {
        "policy": policy_name(policy),
        "title": policy.title if isinstance(policy, Policy) else "chosen by a user's function",
        "order": list(order),
        "keys": _keys(graph, policy, order),
        "by_hand": list(by_hand),
        "clock": clock,
        "memory": None if timeline is None else memory_content(timeline),
        "memory_note": note,
    }


def lane_levels(graph: Graph, timelines: Mapping[str, Timeline]) -> list[Json]:
    """Return the highest level of each device while each task ran; empty for a single device."""
    names = sorted(map(str, graph.devices))
    if len(timelines) < 2:
        return []
    return [
        {"device": names.index(device), "levels": list(timeline.task_peaks)}
        for device, timeline in timelines.items()
        if device in names
    ]


def _keys(graph: Graph, policy: Policy | Choice, order: Sequence[int]) -> str | list[str]:
    """Return the kind of labels in the queue, or the label of each task if there is no common kind."""
    name = policy_name(policy)
    if name == "heap":
        return "created"
    if name in CLASSIC or not isinstance(policy, Policy):
        return "arrival"
    if policy.plan is not None:
        places = {task_id: place for place, task_id in enumerate(order, 1)}
        return [f"{places[task.id]}." if task.id in places else "" for task in graph.tasks]
    arrivals = arrivals_of(graph, order)
    return [policy.label(task, arrivals.get(task.id, 0)) for task in graph.tasks]


def arrivals_of(graph: Graph, order: Sequence[int]) -> dict[int, int]:
    """Return each task's number in the order of arrival, if tasks run in this order."""
    pending = Pending(graph, set(order))
    arrived = list(pending.start())
    for task_id in order:
        arrived += pending.run(task_id)
    return {task_id: number for number, task_id in enumerate(arrived)}


def saved_content(document: Document, timeline: Timeline) -> Json:
    """Return the saved tensors of a graph from a measured run, which has no shapes and dtypes."""
    rows = sorted((task, slot, number) for number, slots in timeline.saved.items() for task, slot in slots)
    return {
        "task": [task for task, _, _ in rows],
        "slot": [document.text(slot) for _, slot, _ in rows],
        "storage": [number for _, _, number in rows],
        "bytes": [timeline.nbytes[number] for _, _, number in rows],
        "meta": [NONE] * len(rows),
        "parameter": [NONE] * len(rows),
        "held": [int(number in timeline.held) for _, _, number in rows],
    }


def memory_content(timeline: Timeline) -> Json:
    """Return a timeline's columns, the sentence at its peak, and rows of its storages, see `lifetime_rows`."""
    # Changes also have a place, because many tasks may run between two events.
    changes = [
        (event, place, number, int(category))
        for number, found in timeline.changes_of.items()
        for event, place, category in found
    ]
    changes.sort(key=itemgetter(0, 1))
    return {
        "device": timeline.device,
        "basis": timeline.basis,
        "estimates": list(timeline.estimates),
        "main_reason": main_reason(timeline.estimates),
        "before": timeline.before,
        "nbytes": list(timeline.nbytes),
        "events": list(timeline.events),
        "starts": list(timeline.starts),
        "born_as": list(timeline.born_as),
        "changes": [number for change in changes for number in change],
        "peak": peak_words(timeline),
        "forward_ns": list(timeline.forward_ns),
        "rows": lifetime_rows(timeline),
        **({"event_places": list(timeline.event_places)} if timeline.event_places else {}),
    }


def peak_words(timeline: Timeline) -> str:
    """Describe most of the peak: the tasks that gradients wait for, or the share of the largest category."""
    groups = peak_report(timeline).groups
    if not groups:
        return ""
    first = groups[0]
    if first.category in (Category.BUFFER, Category.LISTED):
        return first.kept_by.partition(";")[0]
    nbytes = sum(group.nbytes for group in groups if group.category is first.category)
    verb = "holds" if first.category.plural == first.category.title else "hold"
    return f"{first.category.plural} {verb} {share_text(nbytes, timeline.peak_bytes)}"


def _line(source: Source) -> Json:
    code = source.code(_MOST_LINES, _MOST_LINES)
    return {
        "file": source.file,
        "short": source.short,
        "line": source.line,
        "function": source.function,
        "first": max(source.line - _MOST_LINES, 1),
        "code": [line[:400] for line in code],
    }


def _numbers(statistics: Statistics | None) -> Json:
    """Return a gradient's statistics without non-finite values, which JSON lacks."""
    if statistics is None:
        return {}
    if statistics.unavailable is not None:
        return {"why": statistics.unavailable}
    found: Json = {
        "min": _rounded(statistics.min),
        "max": _rounded(statistics.max),
        "mean": _rounded(statistics.mean),
        "norm": _rounded(statistics.norm),
        "nan": statistics.nan_count,
        "inf": statistics.inf_count,
        "zero": statistics.zero_count,
    }
    if statistics.histogram is not None:
        counts = statistics.histogram.counts
        used = [index for index, count in enumerate(counts) if count]
        if used:
            found |= {"first_bin": used[0], "bins": list(counts[used[0] : used[-1] + 1])}
    return found


def _rounded(number: float | None) -> float | None:
    """Return a number with six digits; None for infinite sums, which JSON lacks."""
    if number is None or number != number or number in (float("inf"), float("-inf")):
        return None
    return float(f"{number:.6g}")


def title_of(graph: Graph) -> str:
    """Return the class of the captured model or models, or the name of the first task."""
    outermost = {call.path: call for call in graph.calls if call.parent is None}
    if not outermost:
        return graph.tasks[graph.roots[0].task].short_name
    with_parts = {call.parent for call in graph.calls}
    models = {path: call for path, call in outermost.items() if call.id in with_parts} or outermost
    classes = Counter(call.class_name for call in models.values())
    return joined([name if count == 1 else f"{count:,} × {name}" for name, count in classes.most_common()], most=2)
