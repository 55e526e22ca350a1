"""Where modules of version 0.1 stand now. Their old paths go on working for one version, with a DeprecationWarning.

Public names are in `tapescope` itself (`ts.workload`, `ts.Policy`, ...); what is in here is for who imported from
inside, and for what was pickled. Modules that came after commit 2827cf9 and before the rooms have no row: no release
had them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_PACKAGE = __name__.rpartition(".")[0]

MOVED = {
    "demo": "commands.demo",
    "engine.accumulate": "engine.tasks.accumulate",
    "engine.accumulation": "engine.memory.accumulation",
    "engine.accumulation_study": "engine.studies.accumulation_study",
    "engine.advice": "engine.ensembles.advice",
    "engine.agenda": "engine.batching.agenda",
    "engine.aligning": "engine.finding.aligned_tasks",
    "engine.allocator": "engine.measuring.allocator",
    "engine.anomaly": "engine.tasks.anomaly",
    "engine.attribution": "engine.measuring.attribution",
    "engine.auto": "engine.orders.auto",
    "engine.backward": "engine.programs.backward",
    "engine.batched_products": "engine.batching.batched_products",
    "engine.batches": "engine.trace.batches",
    "engine.binary_heap": "engine.queue.binary_heap",
    "engine.block_state": "engine.orders.block_state",
    "engine.branch_comparison": "engine.sessions.branch_comparison",
    "engine.branches": "engine.sessions.branches",
    "engine.breakpoints": "engine.stops.breakpoints",
    "engine.buckets": "engine.trace.buckets",
    "engine.calibration": "engine.measuring.calibration",
    "engine.certain_memory": "engine.orders.unavoidable_memory",
    "engine.change_trial": "engine.ensembles.change_trial",
    "engine.check_task": "engine.checking.check_task",
    "engine.closing": "engine.sessions.session_base",
    "engine.combination": "engine.ensembles.combination",
    "engine.commuting": "engine.orders.commuting",
    "engine.compare": "engine.studies.compare engine.studies.comparison",
    "engine.conditions": "engine.stops.conditions",
    "engine.cp_sat": "engine.orders.cp_sat",
    "engine.cuda_allocator": "engine.measuring.cuda_allocator",
    "engine.debug": "engine.programs.debug",
    "engine.derivative": "engine.checking.derivative",
    "engine.diff": "engine.finding.diff engine.finding.difference",
    "engine.direct": "engine.sessions.stepper",
    "engine.dry_run": "engine.prediction.dry_run engine.prediction.dry_run_limits",
    "engine.edits": "engine.tasks.edits",
    "engine.ensemble_change": "engine.ensembles.ensemble_change",
    "engine.ensembles": "engine.ensembles.ensembles engine.ensembles.families",
    "engine.exact": "engine.orders.exact engine.orders.optimal",
    "engine.fake_kernels": "engine.prediction.fake_kernels",
    "engine.find_nan": "engine.finding.find_nan",
    "engine.find_unused": "engine.finding.find_unused",
    "engine.findings": "engine.words.findings",
    "engine.footprint": "engine.memory.footprint",
    "engine.footprint_program": "engine.prediction.footprint_program",
    "engine.forward_watch": "engine.finding.forward_watch engine.finding.value_flow",
    "engine.function_backward": "engine.checking.function_backward",
    "engine.furthest_element": "engine.checking.furthest_element",
    "engine.gantt": "engine.studies.gantt",
    "engine.gradient_difference": "engine.finding.gradient_difference",
    "engine.gradient_holders": "engine.trace.gradient_holders",
    "engine.graph_order": "engine.orders.graph_order",
    "engine.graph_task": "engine.tasks.graph_task",
    "engine.group_runner": "engine.batching.group_runner",
    "engine.group_search": "engine.batching.group_search",
    "engine.groups": "engine.batching.groups engine.trace.batches engine.batching.group_search",
    "engine.hints": "engine.trace.hints",
    "engine.hips_buffer": "engine.hips.buffer",
    "engine.hips_levels": "engine.hips.levels",
    "engine.hips_memory": "engine.hips.memory",
    "engine.hips_runner": "engine.hips.runner",
    "engine.hips_values": "engine.hips.values",
    "engine.history": "engine.tasks.history",
    "engine.holding": "engine.orders.group_queues",
    "engine.hook_watch": "engine.tasks.hook_watch",
    "engine.input_buffer": "engine.tasks.input_buffer",
    "engine.install": "engine.programs.install",
    "engine.kept": "engine.measuring.saved_blocks",
    "engine.kept_on_ctx": "engine.checking.kept_on_ctx",
    "engine.layouts": "engine.memory.layouts",
    "engine.limit_search": "engine.orders.limit_search",
    "engine.listed": "engine.memory.waiting_in_lists",
    "engine.live_numbers": "engine.orders.live_sequence_numbers",
    "engine.local_search": "engine.orders.local_search",
    "engine.longest_common": "engine.finding.longest_common",
    "engine.lower_bound": "engine.orders.lower_bound",
    "engine.machine": "engine.words.machine",
    "engine.make_loss": "engine.programs.make_loss engine.trace.buckets",
    "engine.makespan": "engine.studies.makespan",
    "engine.measured_device": "engine.memory.measured_device",
    "engine.measurement": "engine.measuring.measurement",
    "engine.memory_state": "engine.orders.memory_state",
    "engine.memory_watch": "engine.measuring.memory_watch",
    "engine.mirror": "engine.mirroring.mirror",
    "engine.mirror_calls": "engine.mirroring.calls",
    "engine.mirror_footprint": "engine.mirroring.footprint engine.mirroring.storages",
    "engine.mirror_frontier": "engine.mirroring.planned_mirror",
    "engine.mirror_milp": "engine.mirroring.milp",
    "engine.mirror_modules": "engine.mirroring.modules",
    "engine.mirror_plan": "engine.mirroring.plan",
    "engine.mirror_planners": "engine.mirroring.planners engine.mirroring.candidates",
    "engine.mirror_replay": "engine.mirroring.replay",
    "engine.mirror_saves": "engine.mirroring.saves",
    "engine.mirror_study": "engine.studies.mirror_study",
    "engine.mirror_tasks": "engine.mirroring.tasks",
    "engine.mirror_watch": "engine.mirroring.watch",
    "engine.module_flow": "engine.stops.module_flow",
    "engine.native": "engine.sessions.native engine.tasks.backward_call",
    "engine.needed": "engine.tasks.backward_inputs",
    "engine.not_counted": "engine.memory.not_counted",
    "engine.operation_replay": "engine.checking.operation_replay",
    "engine.order_study": "engine.studies.order_study engine.studies.studied_orders",
    "engine.origin": "engine.stops.origin",
    "engine.own_backward": "engine.checking.own_backward",
    "engine.peak": "engine.trace.peak",
    "engine.places": "engine.queue.named_tasks",
    "engine.plan": "engine.orders.plan engine.orders.policies engine.orders.planning",
    "engine.plan_mirror": "engine.mirroring.plan_mirror",
    "engine.planned_mirror": "engine.mirroring.planned_mirror",
    "engine.planners": "engine.orders.planners",
    "engine.plans": "engine.orders.kept_plans engine.orders.auto",
    "engine.policies": "engine.orders.policies engine.queue.policy engine.orders.planning",
    "engine.precedence": "engine.orders.precedence engine.orders.order_check",
    "engine.problem": "engine.orders.problem",
    "engine.profile": "engine.programs.profile",
    "engine.programs_hips219": "engine.workloads.programs_hips219",
    "engine.readings": "engine.stops.readings",
    "engine.ready_queue": "engine.queue.ready_queue",
    "engine.record_forward": "engine.programs.record_forward",
    "engine.recorder": "engine.trace.recorder",
    "engine.replay": "engine.trace.replay",
    "engine.rewinding": "engine.sessions.rewinding engine.sessions.going_back",
    "engine.roots": "engine.tasks.roots",
    "engine.run": "engine.trace.run",
    "engine.runner": "engine.tasks.runner",
    "engine.schedule": "engine.orders.schedule engine.queue.pending engine.orders.planning engine.queue.chosen_order",
    "engine.series_parallel": "engine.orders.series_parallel",
    "engine.session": "engine.sessions.native_session engine.sessions.worker",
    "engine.simulate": "engine.prediction.simulation engine.orders.simulate",
    "engine.sizes": "engine.words.sizes",
    "engine.statistics": "engine.trace.statistics",
    "engine.statistics_table": "engine.trace.statistics_table",
    "engine.step_levels": "engine.measuring.step_levels",
    "engine.stop": "engine.stops.stopped",
    "engine.stops": "engine.stops.stops",
    "engine.storage_words": "engine.memory.storage_words engine.words.phrases",
    "engine.task_hooks": "engine.tasks.task_hooks",
    "engine.task_runner": "engine.tasks.task_runner engine.tasks.function_nodes engine.tasks.refusals",
    "engine.tensor_hooks": "engine.tasks.tensor_hooks",
    "engine.timeline": "engine.memory.timeline",
    "engine.timeline_file": "engine.memory.timeline_file",
    "engine.timing": "engine.programs.timing",
    "engine.trace": "engine.trace.trace",
    "engine.trace_columns": "engine.trace.trace_columns engine.tasks.task_hooks",
    "engine.trace_file": "engine.trace.trace_file engine.trace.run_reader",
    "engine.unpack_order": "engine.orders.unpack_order",
    "engine.verbs": "engine.sessions.verbs",
    "engine.watchpoints": "engine.stops.watchpoints",
    "engine.workload_models": "engine.workloads.workload_models",
    "engine.workload_models_hips219": "engine.workloads.workload_models_hips219",
    "engine.workload_models_pr4746": "engine.workloads.workload_models_pr4746",
    "engine.workloads": "engine.workloads.workloads",
    "engine.zero_gradients": "engine.finding.zero_gradients",
    "engine.zero_reasons": "engine.finding.zero_reasons",
    "inspector.arrangement": "inspector.drawing.arrangement",
    "inspector.capture": "inspector.capturing.capture",
    "inspector.cells": "inspector.drawing.cells",
    "inspector.collector": "inspector.graph.collector",
    "inspector.dataflow": "inspector.capturing.dataflow",
    "inspector.dot": "inspector.drawing.dot",
    "inspector.facts": "inspector.graph.facts",
    "inspector.fold": "inspector.drawing.fold",
    "inspector.forward_program": "inspector.capturing.forward_program",
    "inspector.forward_recorder": "inspector.capturing.forward_recorder",
    "inspector.graph": "inspector.graph.graph inspector.shown",
    "inspector.graph_file": "inspector.graph.graph_file inspector.graph.facts",
    "inspector.hips_nodes": "inspector.tapes.hips_nodes",
    "inspector.hips_tape": "inspector.tapes.hips_tape",
    "inspector.json_columns": "inspector.graph.json_columns",
    "inspector.kept_inputs": "inspector.graph.kept_inputs",
    "inspector.kinds": "inspector.graph.kinds",
    "inspector.layered": "inspector.drawing.layered",
    "inspector.layout": "inspector.drawing.layout",
    "inspector.marks": "inspector.graph.marks",
    "inspector.net": "inspector.drawing.net",
    "inspector.operators": "inspector.capturing.operators",
    "inspector.outlines": "inspector.drawing.outlines",
    "inspector.packing": "inspector.drawing.packing",
    "inspector.products": "inspector.graph.products",
    "inspector.ranks": "inspector.graph.ranks",
    "inspector.repeats": "inspector.graph.repeats",
    "inspector.routes": "inspector.drawing.routes",
    "inspector.saved": "inspector.graph.saved",
    "inspector.signs": "inspector.drawing.signs",
    "inspector.source": "inspector.graph.source",
    "inspector.svg": "inspector.drawing.svg",
    "inspector.svg_style": "inspector.drawing.svg_style",
    "inspector.tape": "inspector.capturing.tape",
    "inspector.text_width": "inspector.drawing.text_width",
    "inspector.to_json": "inspector.drawing.to_json",
    "inspector.torch_internals": (
        "inspector.torch_internals.allocators inspector.torch_internals.applied_functions "
        "inspector.torch_internals.checkpoints inspector.torch_internals.compiled "
        "inspector.torch_internals.engine inspector.torch_internals.frames inspector.torch_internals.hooks "
        "inspector.torch_internals.modes inspector.torch_internals.module_calls "
        "inspector.torch_internals.nodes inspector.torch_internals.sequence_numbers "
        "inspector.torch_internals.operators inspector.torch_internals.ranks "
        "inspector.torch_internals.references inspector.torch_internals.saved "
        "inspector.torch_internals.tensors"
    ),
    "inspector.walk": "inspector.capturing.walk",
    "inspector.wiring": "inspector.drawing.wiring",
    "script": "commands.script",
    "widgets.accumulation_page": "widgets.pages.accumulation_page",
    "widgets.advice_html": "widgets.pages.advice_html",
    "widgets.comparison_page": "widgets.pages.comparison_page",
    "widgets.debug": "widgets.deck.debug",
    "widgets.deck": "widgets.deck.deck",
    "widgets.display": "widgets.deck.display",
    "widgets.document": "widgets.deck.document",
    "widgets.driver": "widgets.deck.live.driver",
    "widgets.every_backward": "widgets.terminal.every_backward",
    "widgets.figure_page": "widgets.pages.figure_page",
    "widgets.foresight": "widgets.deck.live.foresight",
    "widgets.frontier_page": "widgets.pages.frontier_page",
    "widgets.gantt_figure": "widgets.pages.gantt_figure",
    "widgets.glossary": "widgets.pages.glossary",
    "widgets.group_content": "widgets.deck.group_content",
    "widgets.live": "widgets.deck.live.live",
    "widgets.live_branches": "widgets.deck.live.branches",
    "widgets.live_stops": "widgets.deck.live.stops",
    "widgets.magic_verbs": "widgets.magic.magic_verbs",
    "widgets.magics": "widgets.magic.magics",
    "widgets.memory_figures": "widgets.pages.memory_figures widgets.pages.drawing",
    "widgets.mirror_content": "widgets.deck.mirror_content",
    "widgets.mirror_page": "widgets.pages.mirror_page",
    "widgets.mirrored_comparison": "widgets.pages.mirrored_comparison",
    "widgets.news": "widgets.deck.live.news",
    "widgets.order_study_page": "widgets.pages.order_study_page",
    "widgets.page": "widgets.deck.page",
    "widgets.played": "widgets.deck.played",
    "widgets.prediction": "widgets.deck.prediction",
    "widgets.prompt": "widgets.terminal.prompt",
    "widgets.prompt_completion": "widgets.terminal.prompt_completion",
    "widgets.prompt_names": "widgets.terminal.prompt_names",
    "widgets.prompt_stops": "widgets.terminal.prompt_stops",
    "widgets.prompt_tables": "widgets.terminal.prompt_tables widgets.terminal.prompt_stops",
    "widgets.prompt_terminal": "widgets.terminal.prompt_terminal",
    "widgets.prompt_text": "widgets.terminal.prompt_text",
    "widgets.recording": "widgets.deck.recording",
    "widgets.report_html": "widgets.pages.report_html",
    "widgets.run_document": "widgets.deck.run_document",
    "widgets.still": "widgets.deck.still",
    "widgets.still_memory": "widgets.deck.still_memory",
    "widgets.stop_tables": "widgets.deck.stop_tables",
    "widgets.stop_words": "widgets.deck.stop_words",
    "widgets.terms": "widgets.deck.live.terms",
    "widgets.theme": "widgets.pages.theme",
    "widgets.trouble": "widgets.deck.live.trouble",
    "widgets.user_traceback": "widgets.terminal.user_traceback",
}
"""By old module the new ones, that which most of its names went to first."""

RENAMED = {
    "engine.auto.forget": "forget_plans",
    "engine.closing.Closing": "SessionBase",
    "engine.rewinding.Rewinding": "GoesBack",
    "inspector.graph.Theme": "GraphTheme",
    "engine.agenda.Batch": "ReadyBatch",
    "engine.allocator.Recording": "AllocatorRecording",
    "engine.allocator.Row": "AllocatorEvent",
    "engine.certain_memory.Block": "CertainBlock",
    "engine.change_trial.Check": "Deviation",
    "engine.footprint.Layout": "TensorLayout",
    "engine.footprint.Output": "TaskOutput",
    "engine.history.Kept": "KeepsGradients",
    "engine.kept.Kept": "SavedBlocks",
    "engine.local_search.Found": "SearchResult",
    "engine.memory_watch.Moment": "TaskMoment",
    "engine.mirror_planners.Found": "FoundDrops",
    "engine.mirror_replay.Call": "FollowedCall",
    "engine.mirror_replay.Part": "StorageView",
    "engine.mirror_replay.Tally": "ReplayTally",
    "engine.native.Call": "BackwardCall",
    "engine.plans.Kept": "Latest",
    "engine.statistics.Measurement": "PendingStatistics",
    "engine.trace_columns.Term": "PolicyTerm",
    "engine.zero_gradients.Origin": "ZeroOrigin",
    "inspector.cells.Pending": "UnplacedBox",
    "inspector.cells.Row": "ChipRow",
    "inspector.fold.Group": "FoldedCalls",
    "inspector.forward_program.Reading": "StorageRead",
    "inspector.repeats.Part": "RepeatedPart",
    "inspector.torch_internals.Storage": "StorageBytes",
}
"""Names that are others now, most of them since they stood for several things."""


class _Forwarder(MetaPathFinder, Loader):
    """Finds an old path that is no module any more, and makes one that forwards."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        return ModuleSpec(name, self) if package == _PACKAGE and module in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__.partition(".")[2]
        names = ", ".join(f"{_PACKAGE}.{new}" for new in MOVED[old].split())
        warnings.warn(
            f"{module.__name__} is now {names}; the old path goes with the next version",
            DeprecationWarning,
            stacklevel=2,
        )
        vars(module)["__getattr__"] = _getter(old)


def _getter(old: str) -> Callable[[str], Any]:
    """What finds a name of an old module where it stands now."""

    def get(name: str) -> Any:
        name = RENAMED.get(f"{old}.{name}", name)
        if not name.startswith("__"):
            for new in MOVED[old].split():
                module = import_module(f"{_PACKAGE}.{new}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module '{_PACKAGE}.{old}' has no attribute {name!r}")

    return get


def of_old_module(room: str) -> Callable[[str], Any]:
    """`__getattr__` for a room that is called as a module was: the names of that module are found in the room."""
    old = room.partition(".")[2]
    get = _getter(old)

    def forward(name: str) -> Any:
        # Python asks a package for a submodule's name before it imports it, and notebooks for `_repr_html_`.
        if name.startswith("_") or find_spec(f"{room}.{name}") is not None:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        found = get(name)
        names = " or ".join(f"{_PACKAGE}.{new}" for new in MOVED[old].split())
        warnings.warn(
            f"{name} is now in {names}; {room}.{name} goes with the next version", DeprecationWarning, stacklevel=2
        )
        return found

    return forward


def forward_old_paths() -> None:
    """From here on they can be imported. Only what Python finds nowhere else gets here."""
    if not any(isinstance(finder, _Forwarder) for finder in sys.meta_path):
        sys.meta_path.append(_Forwarder())
