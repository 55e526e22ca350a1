"""tapescope: a debugger for PyTorch's backward pass that you can look at.

A name loads its module when it is asked for, so that `import tapescope` takes no time: see `_MODULE_OF`.
"""

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING, Any

from .front_door import missing_in_torch, through_the_door

if TYPE_CHECKING:
    __version__: str

    from .engine.batching.group_search import groups
    from .engine.batching.groups import GroupRules, Groups
    from .engine.black_box.replay import StepReplay, replay
    from .engine.ensembles.advice import Advice, advise
    from .engine.finding.diff import diff
    from .engine.finding.difference import Difference
    from .engine.finding.find_nan import NanReport, find_nan
    from .engine.finding.find_unused import UnusedParameter, UnusedReport, find_unused
    from .engine.finding.order_dependence import Departure, GradientApart, OrderDependence
    from .engine.finding.order_dependent import order_dependent
    from .engine.hips.levels import hips_levels
    from .engine.measuring.step_levels import allocated_levels
    from .engine.memory.accumulation import Accumulation
    from .engine.memory.timeline import Category, Storage, Timeline
    from .engine.mirroring.mirror import MirrorReport, mirror
    from .engine.mirroring.mirrored import mirrored
    from .engine.mirroring.plan import MirrorPlan
    from .engine.mirroring.plan_mirror import plan_mirror
    from .engine.mirroring.planned_mirror import PlannedMirror
    from .engine.orders.order_check import Break, OrderCheck, check_order
    from .engine.orders.plan import OrderPlan, plan
    from .engine.orders.planning import PlannedOrder
    from .engine.orders.policies import CLASSIC, POLICIES
    from .engine.orders.precedence import constrained
    from .engine.orders.simulate import simulate
    from .engine.orders.unpack_order import Unpack, UnpackOrder, unpack_order
    from .engine.prediction.dry_run import dry_run
    from .engine.programs.backward import backward
    from .engine.programs.install import install, policy, uninstall
    from .engine.programs.profile import profile
    from .engine.programs.record_forward import record_forward
    from .engine.queue.pending import queue_lengths
    from .engine.queue.policy import Policy
    from .engine.queue.ready_queue import PolicyError
    from .engine.sessions.agreement import wait_for_ranks
    from .engine.sessions.native_session import NativeSession
    from .engine.sessions.stepper import Stepper
    from .engine.steps.fits import Fit, fits
    from .engine.steps.phases import PhasePeak
    from .engine.steps.record_steps import profile_step, record_steps
    from .engine.steps.remedies import Remedy
    from .engine.steps.step import StepPeak, TrainingStep
    from .engine.steps.step_timeline import StepTimeline
    from .engine.stops.stopped import Stop
    from .engine.studies.accumulation_study import accumulation_study
    from .engine.studies.compare import compare
    from .engine.studies.comparison import Comparison
    from .engine.studies.makespan import makespan
    from .engine.tasks.backward_call import BackwardCall
    from .engine.trace.batches import Batch, Batches, Fallback
    from .engine.trace.peak import PeakReport, peak_report
    from .engine.trace.run import Run
    from .engine.trace.run_reader import load
    from .engine.trace.statistics import Histogram, Statistics, statistics
    from .engine.trace.trace import TaskRecord, Trace
    from .engine.training.finding import Finding
    from .engine.training.record import Training
    from .engine.training.training import install_training, training, uninstall_training
    from .engine.words.sizes import percent_text, share_text, size_text
    from .engine.workloads.workloads import WORKLOADS, workload
    from .inspector.capturing.capture import capture
    from .inspector.capturing.walk import graph
    from .inspector.graph.graph import Edge, Graph, Task
    from .inspector.tapes.hips_tape import HipsTape, hips_tape
    from .widgets.deck.debug import debug, deck
    from .widgets.pages.with_picture import with_picture

_MODULE_OF = {
    "CLASSIC": "engine.orders.policies",
    "POLICIES": "engine.orders.policies",
    "WORKLOADS": "engine.workloads.workloads",
    "Accumulation": "engine.memory.accumulation",
    "Advice": "engine.ensembles.advice",
    "BackwardCall": "engine.tasks.backward_call",
    "Batch": "engine.trace.batches",
    "Batches": "engine.trace.batches",
    "Break": "engine.orders.order_check",
    "Category": "engine.memory.timeline",
    "Comparison": "engine.studies.comparison",
    "Departure": "engine.finding.order_dependence",
    "Difference": "engine.finding.difference",
    "Edge": "inspector.graph.graph",
    "Fallback": "engine.trace.batches",
    "Finding": "engine.training.finding",
    "Fit": "engine.steps.fits",
    "GradientApart": "engine.finding.order_dependence",
    "Graph": "inspector.graph.graph",
    "GroupRules": "engine.batching.groups",
    "Groups": "engine.batching.groups",
    "HipsTape": "inspector.tapes.hips_tape",
    "Histogram": "engine.trace.statistics",
    "MirrorPlan": "engine.mirroring.plan",
    "MirrorReport": "engine.mirroring.mirror",
    "NanReport": "engine.finding.find_nan",
    "NativeSession": "engine.sessions.native_session",
    "OrderCheck": "engine.orders.order_check",
    "OrderDependence": "engine.finding.order_dependence",
    "OrderPlan": "engine.orders.plan",
    "PeakReport": "engine.trace.peak",
    "PhasePeak": "engine.steps.phases",
    "PlannedMirror": "engine.mirroring.planned_mirror",
    "PlannedOrder": "engine.orders.planning",
    "Policy": "engine.queue.policy",
    "PolicyError": "engine.queue.ready_queue",
    "Remedy": "engine.steps.remedies",
    "Run": "engine.trace.run",
    "Statistics": "engine.trace.statistics",
    "StepPeak": "engine.steps.step",
    "StepReplay": "engine.black_box.replay",
    "StepTimeline": "engine.steps.step_timeline",
    "Stepper": "engine.sessions.stepper",
    "Stop": "engine.stops.stopped",
    "Storage": "engine.memory.timeline",
    "Task": "inspector.graph.graph",
    "TaskRecord": "engine.trace.trace",
    "Timeline": "engine.memory.timeline",
    "Trace": "engine.trace.trace",
    "Training": "engine.training.record",
    "TrainingStep": "engine.steps.step",
    "Unpack": "engine.orders.unpack_order",
    "UnpackOrder": "engine.orders.unpack_order",
    "UnusedParameter": "engine.finding.find_unused",
    "UnusedReport": "engine.finding.find_unused",
    "accumulation_study": "engine.studies.accumulation_study",
    "advise": "engine.ensembles.advice",
    "allocated_levels": "engine.measuring.step_levels",
    "backward": "engine.programs.backward",
    "capture": "inspector.capturing.capture",
    "check_order": "engine.orders.order_check",
    "compare": "engine.studies.compare",
    "constrained": "engine.orders.precedence",
    "debug": "widgets.deck.debug",
    "deck": "widgets.deck.debug",
    "diff": "engine.finding.diff",
    "dry_run": "engine.prediction.dry_run",
    "find_nan": "engine.finding.find_nan",
    "find_unused": "engine.finding.find_unused",
    "fits": "engine.steps.fits",
    "graph": "inspector.capturing.walk",
    "groups": "engine.batching.group_search",
    "hips_levels": "engine.hips.levels",
    "hips_tape": "inspector.tapes.hips_tape",
    "install": "engine.programs.install",
    "install_training": "engine.training.training",
    "load": "engine.trace.run_reader",
    "makespan": "engine.studies.makespan",
    "mirror": "engine.mirroring.mirror",
    "mirrored": "engine.mirroring.mirrored",
    "order_dependent": "engine.finding.order_dependent",
    "peak_report": "engine.trace.peak",
    "percent_text": "engine.words.sizes",
    "plan": "engine.orders.plan",
    "plan_mirror": "engine.mirroring.plan_mirror",
    "policy": "engine.programs.install",
    "profile": "engine.programs.profile",
    "profile_step": "engine.steps.record_steps",
    "queue_lengths": "engine.queue.pending",
    "record_forward": "engine.programs.record_forward",
    "record_steps": "engine.steps.record_steps",
    "replay": "engine.black_box.replay",
    "share_text": "engine.words.sizes",
    "simulate": "engine.orders.simulate",
    "size_text": "engine.words.sizes",
    "statistics": "engine.trace.statistics",
    "training": "engine.training.training",
    "uninstall": "engine.programs.install",
    "uninstall_training": "engine.training.training",
    "unpack_order": "engine.orders.unpack_order",
    "wait_for_ranks": "engine.sessions.agreement",
    "with_picture": "widgets.pages.with_picture",
    "workload": "engine.workloads.workloads",
}
"""By public name the module that has it."""

if not TYPE_CHECKING:  # a name that is not there would be of any type

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return _version()
        if name not in _MODULE_OF:
            me = modules[__name__]  # Python looks in it for a name that was meant
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=me)
        try:
            found = through_the_door(name, getattr(import_module(f".{_MODULE_OF[name]}", __name__), name))
        except (AttributeError, ImportError) as error:
            if (sentence := missing_in_torch(error)) is not None:
                raise RuntimeError(sentence) from error
            raise
        globals()[name] = found
        return found


def _version() -> str:
    """The installed version. In a folder that is none, as a path to a clone: that this is so."""
    from importlib.metadata import PackageNotFoundError, version  # which takes longer than all else here

    try:
        return version(__name__)
    except PackageNotFoundError:
        return "not installed"


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def load_ipython_extension(shell: object) -> None:
    """`%load_ext tapescope`: the magics `%tapescope` and `%%tapescope`."""
    from .widgets.magic.magics import load

    load(shell)  # type: ignore[arg-type]


__all__ = [
    "CLASSIC",
    "POLICIES",
    "WORKLOADS",
    "Accumulation",
    "Advice",
    "BackwardCall",
    "Batch",
    "Batches",
    "Break",
    "Category",
    "Comparison",
    "Departure",
    "Difference",
    "Edge",
    "Fallback",
    "Finding",
    "Fit",
    "GradientApart",
    "Graph",
    "GroupRules",
    "Groups",
    "HipsTape",
    "Histogram",
    "MirrorPlan",
    "MirrorReport",
    "NanReport",
    "NativeSession",
    "OrderCheck",
    "OrderDependence",
    "OrderPlan",
    "PeakReport",
    "PhasePeak",
    "PlannedMirror",
    "PlannedOrder",
    "Policy",
    "PolicyError",
    "Remedy",
    "Run",
    "Statistics",
    "StepPeak",
    "StepReplay",
    "StepTimeline",
    "Stepper",
    "Stop",
    "Storage",
    "Task",
    "TaskRecord",
    "Timeline",
    "Trace",
    "Training",
    "TrainingStep",
    "Unpack",
    "UnpackOrder",
    "UnusedParameter",
    "UnusedReport",
    "accumulation_study",
    "advise",
    "allocated_levels",
    "backward",
    "capture",
    "check_order",
    "compare",
    "constrained",
    "debug",
    "deck",
    "diff",
    "dry_run",
    "find_nan",
    "find_unused",
    "fits",
    "graph",
    "groups",
    "hips_levels",
    "hips_tape",
    "install",
    "install_training",
    "load",
    "makespan",
    "mirror",
    "mirrored",
    "order_dependent",
    "peak_report",
    "percent_text",
    "plan",
    "plan_mirror",
    "policy",
    "profile",
    "profile_step",
    "queue_lengths",
    "record_forward",
    "record_steps",
    "replay",
    "share_text",
    "simulate",
    "size_text",
    "statistics",
    "training",
    "uninstall",
    "uninstall_training",
    "unpack_order",
    "wait_for_ranks",
    "with_picture",
    "workload",
]
