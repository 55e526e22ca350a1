"""tapescope: a visual debugger for PyTorch's backward pass.

The first use of a name imports its module (see `_MODULE_OF`), which keeps `import tapescope` fast.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .public import lazy_names

if TYPE_CHECKING:
    __version__: str

    from .engine.api.backward import backward as backward
    from .engine.api.graph import graph as graph
    from .engine.api.profile import profile as profile
    from .engine.api.set_policy import policy as policy
    from .engine.api.set_policy import set_policy as set_policy
    from .engine.diagnose.advise import advise as advise
    from .engine.diagnose.diff import diff as diff
    from .engine.diagnose.find_nan import find_nan as find_nan
    from .engine.diagnose.find_order_dependence import find_order_dependence as find_order_dependence
    from .engine.diagnose.find_unused import find_unused as find_unused
    from .engine.planning.plan_order import plan_order as plan_order
    from .engine.planning.simulate import simulate as simulate
    from .engine.recompute.plan_recompute import plan_recompute as plan_recompute
    from .engine.recompute.recompute import recompute as recompute
    from .engine.recompute.record_forward import record_forward as record_forward
    from .engine.recording.peak_report import peak_report as peak_report
    from .engine.recording.run import Run as Run
    from .engine.recording.run_file import load as load
    from .engine.recording.statistics import statistics as statistics
    from .engine.recording.trace_ready import trace_ready as trace_ready
    from .engine.schedule.policy import Policy as Policy
    from .engine.schedule.ready_queue import PolicyError as PolicyError
    from .engine.session.batching.find_batches import find_batches as find_batches
    from .engine.session.rank_agreement import wait_for_ranks as wait_for_ranks
    from .engine.studies.compare import compare as compare
    from .engine.studies.makespan import makespan as makespan
    from .engine.studies.workloads import WORKLOADS as WORKLOADS
    from .engine.studies.workloads import workload as workload
    from .engine.training.black_box.replay import replay as replay
    from .engine.training.fits import fits as fits
    from .engine.training.peak_limit.assert_peak import assert_peak as assert_peak
    from .engine.training.record_steps import profile_step as profile_step
    from .engine.training.record_steps import record_steps as record_steps
    from .engine.training.training import training as training
    from .inspector.capture.capture import capture as capture
    from .inspector.graph.graph import Graph as Graph
    from .inspector.graph.graph import Task as Task
    from .inspector.text.sizes_and_counts import percent_text as percent_text
    from .inspector.text.sizes_and_counts import share_text as share_text
    from .inspector.text.sizes_and_counts import size_text as size_text
    from .public import hips as hips
    from .public import orders as orders
    from .public import studies as studies
    from .public import types as types
    from .widgets.deck.deck import Deck as Deck
    from .widgets.deck.open_deck import debug as debug
    from .widgets.deck.open_deck import deck as deck
    from .widgets.pages.notebook_figure import with_picture as with_picture

_MODULE_OF = {
    "Deck": "widgets.deck.deck",
    "Graph": "inspector.graph.graph",
    "Policy": "engine.schedule.policy",
    "PolicyError": "engine.schedule.ready_queue",
    "Run": "engine.recording.run",
    "Task": "inspector.graph.graph",
    "WORKLOADS": "engine.studies.workloads",
    "advise": "engine.diagnose.advise",
    "assert_peak": "engine.training.peak_limit.assert_peak",
    "backward": "engine.api.backward",
    "capture": "inspector.capture.capture",
    "compare": "engine.studies.compare",
    "debug": "widgets.deck.open_deck",
    "deck": "widgets.deck.open_deck",
    "diff": "engine.diagnose.diff",
    "find_batches": "engine.session.batching.find_batches",
    "find_nan": "engine.diagnose.find_nan",
    "find_order_dependence": "engine.diagnose.find_order_dependence",
    "find_unused": "engine.diagnose.find_unused",
    "fits": "engine.training.fits",
    "graph": "engine.api.graph",
    "load": "engine.recording.run_file",
    "makespan": "engine.studies.makespan",
    "peak_report": "engine.recording.peak_report",
    "percent_text": "inspector.text.sizes_and_counts",
    "plan_order": "engine.planning.plan_order",
    "plan_recompute": "engine.recompute.plan_recompute",
    "policy": "engine.api.set_policy",
    "profile": "engine.api.profile",
    "profile_step": "engine.training.record_steps",
    "recompute": "engine.recompute.recompute",
    "record_forward": "engine.recompute.record_forward",
    "record_steps": "engine.training.record_steps",
    "replay": "engine.training.black_box.replay",
    "set_policy": "engine.api.set_policy",
    "share_text": "inspector.text.sizes_and_counts",
    "simulate": "engine.planning.simulate",
    "size_text": "inspector.text.sizes_and_counts",
    "statistics": "engine.recording.statistics",
    "trace_ready": "engine.recording.trace_ready",
    "training": "engine.training.training",
    "wait_for_ranks": "engine.session.rank_agreement",
    "with_picture": "widgets.pages.notebook_figure",
    "workload": "engine.studies.workloads",
}
"""The defining module of each public name."""

_NAMESPACES = ("hips", "orders", "studies", "types")

__all__ = sorted([*_MODULE_OF, *_NAMESPACES])

if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__
    # The files are in public/, because a types.py here would hide Python's own module in a clone's folder.
    for _name in _NAMESPACES:
        globals()[_name] = sys.modules[f"{__name__}.{_name}"] = import_module(f".public.{_name}", __name__)

    _get, _names = lazy_names(__name__, _MODULE_OF)

    def __getattr__(name: str) -> Any:
        if name != "__version__":
            return _get(name)
        from importlib.metadata import PackageNotFoundError, version  # slow to import

        try:
            return version(__name__)
        except PackageNotFoundError:  # the package is only on sys.path
            return "not installed"

    def __dir__() -> list[str]:
        return sorted({*_names(), *_NAMESPACES})


def load_ipython_extension(shell: object) -> None:
    """Register the magics `%tapescope` and `%%tapescope` for `%load_ext tapescope`."""
    from .inspector.garbage_collector import collector_paused

    with collector_paused():  # see `lazy_names`
        from .widgets.magic.magics import load

    load(shell)  # type: ignore[arg-type]
