"""The classes of arguments and results, for annotations and isinstance: `ts.types.Timeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lazy_names

if TYPE_CHECKING:
    from ..engine.diagnose.advise import Advice as Advice
    from ..engine.diagnose.diff_report import Difference as Difference
    from ..engine.diagnose.find_nan import NanReport as NanReport
    from ..engine.diagnose.find_unused import PathCut as PathCut
    from ..engine.diagnose.find_unused import UnusedParameter as UnusedParameter
    from ..engine.diagnose.find_unused import UnusedReport as UnusedReport
    from ..engine.diagnose.order_dependence import Departure as Departure
    from ..engine.diagnose.order_dependence import GradientApart as GradientApart
    from ..engine.diagnose.order_dependence import OrderDependence as OrderDependence
    from ..engine.execution.accumulation_rule import Accumulation as Accumulation
    from ..engine.execution.backward_arguments import BackwardCall as BackwardCall
    from ..engine.memory.categories import Category as Category
    from ..engine.memory.timeline import Storage as Storage
    from ..engine.memory.timeline import Timeline as Timeline
    from ..engine.planning.check_order import Break as Break
    from ..engine.planning.check_order import OrderCheck as OrderCheck
    from ..engine.planning.plan_order import OrderPlan as OrderPlan
    from ..engine.planning.policy_orders import PlannedOrder as PlannedOrder
    from ..engine.planning.unpack_order import Unpack as Unpack
    from ..engine.planning.unpack_order import UnpackOrder as UnpackOrder
    from ..engine.recompute.plan import RecomputePlan as RecomputePlan
    from ..engine.recompute.planned_recompute import PlannedRecompute as PlannedRecompute
    from ..engine.recompute.recompute_report import RecomputeReport as RecomputeReport
    from ..engine.recording.batch_report import Batch as Batch
    from ..engine.recording.batch_report import Batches as Batches
    from ..engine.recording.batch_report import Fallback as Fallback
    from ..engine.recording.peak_report import PeakReport as PeakReport
    from ..engine.recording.run import Report as Report
    from ..engine.recording.slowest import Slowest as Slowest
    from ..engine.recording.statistics import Histogram as Histogram
    from ..engine.recording.statistics import Statistics as Statistics
    from ..engine.recording.task_records import TaskRecord as TaskRecord
    from ..engine.recording.task_records import Trace as Trace
    from ..engine.session.batching.product_groups import GroupRules as GroupRules
    from ..engine.session.batching.product_groups import Groups as Groups
    from ..engine.session.breakpoints.breakpoints import Stop as Stop
    from ..engine.session.direct_session import Stepper as Stepper
    from ..engine.session.native_session import NativeSession as NativeSession
    from ..engine.studies.comparison import Comparison as Comparison
    from ..engine.training.black_box.replay import StepReplay as StepReplay
    from ..engine.training.findings import Finding as Finding
    from ..engine.training.fits import Fit as Fit
    from ..engine.training.fits import Remedy as Remedy
    from ..engine.training.step import StepPeak as StepPeak
    from ..engine.training.step import TrainingStep as TrainingStep
    from ..engine.training.step_memory import PhasePeak as PhasePeak
    from ..engine.training.step_memory import StepTimeline as StepTimeline
    from ..engine.training.training_result import Training as Training
    from ..inspector.graph.graph import Edge as Edge
    from ..inspector.hips.tape import HipsTape as HipsTape

_MODULE_OF = {
    "Accumulation": "engine.execution.accumulation_rule",
    "Advice": "engine.diagnose.advise",
    "BackwardCall": "engine.execution.backward_arguments",
    "Batch": "engine.recording.batch_report",
    "Batches": "engine.recording.batch_report",
    "Break": "engine.planning.check_order",
    "Category": "engine.memory.categories",
    "Comparison": "engine.studies.comparison",
    "Departure": "engine.diagnose.order_dependence",
    "Difference": "engine.diagnose.diff_report",
    "Edge": "inspector.graph.graph",
    "Fallback": "engine.recording.batch_report",
    "Finding": "engine.training.findings",
    "Fit": "engine.training.fits",
    "GradientApart": "engine.diagnose.order_dependence",
    "GroupRules": "engine.session.batching.product_groups",
    "Groups": "engine.session.batching.product_groups",
    "HipsTape": "inspector.hips.tape",
    "Histogram": "engine.recording.statistics",
    "NanReport": "engine.diagnose.find_nan",
    "NativeSession": "engine.session.native_session",
    "OrderCheck": "engine.planning.check_order",
    "OrderDependence": "engine.diagnose.order_dependence",
    "OrderPlan": "engine.planning.plan_order",
    "PathCut": "engine.diagnose.find_unused",
    "PeakReport": "engine.recording.peak_report",
    "PhasePeak": "engine.training.step_memory",
    "PlannedOrder": "engine.planning.policy_orders",
    "PlannedRecompute": "engine.recompute.planned_recompute",
    "RecomputePlan": "engine.recompute.plan",
    "RecomputeReport": "engine.recompute.recompute_report",
    "Remedy": "engine.training.fits",
    "Report": "engine.recording.run",
    "Slowest": "engine.recording.slowest",
    "Statistics": "engine.recording.statistics",
    "StepPeak": "engine.training.step",
    "StepReplay": "engine.training.black_box.replay",
    "StepTimeline": "engine.training.step_memory",
    "Stepper": "engine.session.direct_session",
    "Stop": "engine.session.breakpoints.breakpoints",
    "Storage": "engine.memory.timeline",
    "TaskRecord": "engine.recording.task_records",
    "Timeline": "engine.memory.timeline",
    "Trace": "engine.recording.task_records",
    "Training": "engine.training.training_result",
    "TrainingStep": "engine.training.step",
    "Unpack": "engine.planning.unpack_order",
    "UnpackOrder": "engine.planning.unpack_order",
    "UnusedParameter": "engine.diagnose.find_unused",
    "UnusedReport": "engine.diagnose.find_unused",
}
"""The defining module of each public name, with the name there if it differs."""

__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
