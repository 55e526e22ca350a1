"""tapehead: a debugger for PyTorch's backward pass that you can look at."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .engine.batching.group_search import groups
from .engine.batching.groups import GroupRules, Groups
from .engine.ensembles.advice import Advice, advise
from .engine.finding.diff import diff
from .engine.finding.difference import Difference
from .engine.finding.find_nan import NanReport, find_nan
from .engine.finding.find_unused import UnusedParameter, UnusedReport, find_unused
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
from .engine.stops.stopped import Stop
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
from .engine.words.sizes import percent_text, share_text, size_text
from .inspector.capturing.capture import capture
from .inspector.capturing.walk import graph
from .inspector.graph.graph import Edge, Graph, Task
from .inspector.tapes.hips_tape import HipsTape, hips_tape
from .moved import forward_old_paths
from .widgets.deck.debug import debug

forward_old_paths()

if TYPE_CHECKING:
    from .engine.hips.levels import hips_levels
    from .engine.measuring.step_levels import allocated_levels
    from .engine.studies.accumulation_study import accumulation_study
    from .engine.workloads.workloads import WORKLOADS, workload

_LATE = {
    "WORKLOADS": "engine.workloads.workloads",
    "accumulation_study": "engine.studies.accumulation_study",
    "allocated_levels": "engine.measuring.step_levels",
    "hips_levels": "engine.hips.levels",
    "workload": "engine.workloads.workloads",
}
"""By name the module, which is loaded when the name is asked for: no backward needs these."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module '{__name__}' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: object) -> None:
    """`%load_ext tapehead`: the magics `%tapehead` and `%%tapehead`."""
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
    "Difference",
    "Edge",
    "Fallback",
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
    "OrderPlan",
    "PeakReport",
    "PlannedMirror",
    "PlannedOrder",
    "Policy",
    "PolicyError",
    "Run",
    "Statistics",
    "Stepper",
    "Stop",
    "Storage",
    "Task",
    "TaskRecord",
    "Timeline",
    "Trace",
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
    "diff",
    "dry_run",
    "find_nan",
    "find_unused",
    "graph",
    "groups",
    "hips_levels",
    "hips_tape",
    "install",
    "load",
    "makespan",
    "mirror",
    "mirrored",
    "peak_report",
    "percent_text",
    "plan",
    "plan_mirror",
    "policy",
    "profile",
    "queue_lengths",
    "record_forward",
    "share_text",
    "simulate",
    "size_text",
    "statistics",
    "uninstall",
    "unpack_order",
    "wait_for_ranks",
    "workload",
]
