"""The classes of arguments and results, for annotations and isinstance: `ts.types.Timeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from ..engine.batching.groups import GroupRules as GroupRules
    from ..engine.batching.groups import Groups as Groups
    from ..engine.black_box.replay import StepReplay as StepReplay
    from ..engine.ensembles.advice import Advice as Advice
    from ..engine.finding.difference import Difference as Difference
    from ..engine.finding.find_nan import NanReport as NanReport
    from ..engine.finding.find_unused import UnusedParameter as UnusedParameter
    from ..engine.finding.find_unused import UnusedReport as UnusedReport
    from ..engine.finding.order_dependence import Departure as Departure
    from ..engine.finding.order_dependence import GradientApart as GradientApart
    from ..engine.finding.order_dependence import OrderDependence as OrderDependence
    from ..engine.memory.accumulation import Accumulation as Accumulation
    from ..engine.memory.timeline import Category as Category
    from ..engine.memory.timeline import Storage as Storage
    from ..engine.memory.timeline import Timeline as Timeline
    from ..engine.mirroring.apply_plan import RecomputeReport as RecomputeReport
    from ..engine.mirroring.plan import RecomputePlan as RecomputePlan
    from ..engine.mirroring.planned_recompute import PlannedRecompute as PlannedRecompute
    from ..engine.orders.order_check import Break as Break
    from ..engine.orders.order_check import OrderCheck as OrderCheck
    from ..engine.orders.plan import OrderPlan as OrderPlan
    from ..engine.orders.planning import PlannedOrder as PlannedOrder
    from ..engine.orders.unpack_order import Unpack as Unpack
    from ..engine.orders.unpack_order import UnpackOrder as UnpackOrder
    from ..engine.sessions.native_session import NativeSession as NativeSession
    from ..engine.sessions.stepper import Stepper as Stepper
    from ..engine.steps.fits import Fit as Fit
    from ..engine.steps.phases import PhasePeak as PhasePeak
    from ..engine.steps.remedies import Remedy as Remedy
    from ..engine.steps.step import StepPeak as StepPeak
    from ..engine.steps.step import TrainingStep as TrainingStep
    from ..engine.steps.step_timeline import StepTimeline as StepTimeline
    from ..engine.stops.stopped import Stop as Stop
    from ..engine.studies.comparison import Comparison as Comparison
    from ..engine.tasks.backward_call import BackwardCall as BackwardCall
    from ..engine.trace.batches import Batch as Batch
    from ..engine.trace.batches import Batches as Batches
    from ..engine.trace.batches import Fallback as Fallback
    from ..engine.trace.peak import PeakReport as PeakReport
    from ..engine.trace.statistics import Histogram as Histogram
    from ..engine.trace.statistics import Statistics as Statistics
    from ..engine.trace.trace import TaskRecord as TaskRecord
    from ..engine.trace.trace import Trace as Trace
    from ..engine.training.finding import Finding as Finding
    from ..engine.training.record import Training as Training
    from ..inspector.graph.graph import Edge as Edge
    from ..inspector.tapes.hips_tape import HipsTape as HipsTape

_MODULE_OF = {
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
    "GroupRules": "engine.batching.groups",
    "Groups": "engine.batching.groups",
    "HipsTape": "inspector.tapes.hips_tape",
    "Histogram": "engine.trace.statistics",
    "NanReport": "engine.finding.find_nan",
    "NativeSession": "engine.sessions.native_session",
    "OrderCheck": "engine.orders.order_check",
    "OrderDependence": "engine.finding.order_dependence",
    "OrderPlan": "engine.orders.plan",
    "PeakReport": "engine.trace.peak",
    "PhasePeak": "engine.steps.phases",
    "PlannedOrder": "engine.orders.planning",
    "PlannedRecompute": "engine.mirroring.planned_recompute",
    "RecomputePlan": "engine.mirroring.plan",
    "RecomputeReport": "engine.mirroring.apply_plan",
    "Remedy": "engine.steps.remedies",
    "Statistics": "engine.trace.statistics",
    "StepPeak": "engine.steps.step",
    "StepReplay": "engine.black_box.replay",
    "StepTimeline": "engine.steps.step_timeline",
    "Stepper": "engine.sessions.stepper",
    "Stop": "engine.stops.stopped",
    "Storage": "engine.memory.timeline",
    "TaskRecord": "engine.trace.trace",
    "Timeline": "engine.memory.timeline",
    "Trace": "engine.trace.trace",
    "Training": "engine.training.record",
    "TrainingStep": "engine.steps.step",
    "Unpack": "engine.orders.unpack_order",
    "UnpackOrder": "engine.orders.unpack_order",
    "UnusedParameter": "engine.finding.find_unused",
    "UnusedReport": "engine.finding.find_unused",
}
"""By public name the module that has it, and its name there if that is another."""

__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:  # a name that is not there would be of any type
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
