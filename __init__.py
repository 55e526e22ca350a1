"""tapehead: a debugger for PyTorch's backward pass that you can look at."""

from .engine.backward import backward
from .engine.compare import Comparison, compare
from .engine.diff import Difference, diff
from .engine.direct import Stepper
from .engine.find_nan import NanReport, find_nan
from .engine.find_unused import UnusedParameter, UnusedReport, find_unused
from .engine.install import install, policy, uninstall
from .engine.makespan import makespan
from .engine.peak import PeakReport, peak_report
from .engine.policies import POLICIES, Policy
from .engine.profile import profile
from .engine.ready_queue import PolicyError
from .engine.run import Run
from .engine.session import NativeSession
from .engine.simulate import simulate
from .engine.statistics import Histogram, Statistics, statistics
from .engine.stop import Stop
from .engine.timeline import Category, Storage, Timeline
from .engine.trace import TaskRecord, Trace
from .engine.trace_file import load
from .inspector.capture import capture
from .inspector.graph import Edge, Graph, Task
from .inspector.walk import graph
from .widgets.debug import debug


def load_ipython_extension(shell: object) -> None:
    """`%load_ext tapehead`: the magics `%tapehead` and `%%tapehead`."""
    from .widgets.magics import load

    load(shell)  # type: ignore[arg-type]


__all__ = [
    "POLICIES",
    "Category",
    "Comparison",
    "Difference",
    "Edge",
    "Graph",
    "Histogram",
    "NanReport",
    "NativeSession",
    "PeakReport",
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
    "UnusedParameter",
    "UnusedReport",
    "backward",
    "capture",
    "compare",
    "debug",
    "diff",
    "find_nan",
    "find_unused",
    "graph",
    "install",
    "load",
    "makespan",
    "peak_report",
    "policy",
    "profile",
    "simulate",
    "statistics",
    "uninstall",
]
