"""tapescope: a debugger for PyTorch's backward pass that you can look at.

A name loads its module when it is first used, so that `import tapescope` takes no time: see `_MODULE_OF`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .public.lazy_names import lazy_names

if TYPE_CHECKING:
    __version__: str

    from .engine.batching.group_search import find_batches as find_batches
    from .engine.black_box.replay import replay as replay
    from .engine.ensembles.advice import advise as advise
    from .engine.finding.diff import diff as diff
    from .engine.finding.find_nan import find_nan as find_nan
    from .engine.finding.find_order_dependence import find_order_dependence as find_order_dependence
    from .engine.finding.find_unused import find_unused as find_unused
    from .engine.mirroring.plan_recompute import plan_recompute as plan_recompute
    from .engine.mirroring.recompute import recompute as recompute
    from .engine.orders.plan import plan_order as plan_order
    from .engine.orders.simulate import simulate as simulate
    from .engine.programs.backward import backward as backward
    from .engine.programs.profile import profile as profile
    from .engine.programs.record_forward import record_forward as record_forward
    from .engine.programs.set_policy import policy as policy
    from .engine.programs.set_policy import set_policy as set_policy
    from .engine.queue.policy import Policy as Policy
    from .engine.queue.ready_queue import PolicyError as PolicyError
    from .engine.sessions.agreement import wait_for_ranks as wait_for_ranks
    from .engine.steps.fits import fits as fits
    from .engine.steps.record_steps import profile_step as profile_step
    from .engine.steps.record_steps import record_steps as record_steps
    from .engine.studies.compare import compare as compare
    from .engine.studies.makespan import makespan as makespan
    from .engine.trace.peak import peak_report as peak_report
    from .engine.trace.run import Run as Run
    from .engine.trace.run_reader import load as load
    from .engine.trace.statistics import statistics as statistics
    from .engine.training.training import training as training
    from .engine.words.sizes import percent_text as percent_text
    from .engine.words.sizes import share_text as share_text
    from .engine.words.sizes import size_text as size_text
    from .engine.workloads.workloads import WORKLOADS as WORKLOADS
    from .engine.workloads.workloads import workload as workload
    from .inspector.capturing.capture import capture as capture
    from .inspector.capturing.walk import graph as graph
    from .inspector.graph.graph import Graph as Graph
    from .inspector.graph.graph import Task as Task
    from .public import hips as hips
    from .public import orders as orders
    from .public import studies as studies
    from .public import types as types
    from .widgets.deck.debug import debug as debug
    from .widgets.deck.debug import deck as deck
    from .widgets.deck.deck import Deck as Deck
    from .widgets.pages.notebook_figure import with_picture as with_picture

_MODULE_OF = {
    "Deck": "widgets.deck.deck",
    "Graph": "inspector.graph.graph",
    "Policy": "engine.queue.policy",
    "PolicyError": "engine.queue.ready_queue",
    "Run": "engine.trace.run",
    "Task": "inspector.graph.graph",
    "WORKLOADS": "engine.workloads.workloads",
    "advise": "engine.ensembles.advice",
    "backward": "engine.programs.backward",
    "capture": "inspector.capturing.capture",
    "compare": "engine.studies.compare",
    "debug": "widgets.deck.debug",
    "deck": "widgets.deck.debug",
    "diff": "engine.finding.diff",
    "find_batches": "engine.batching.group_search",
    "find_nan": "engine.finding.find_nan",
    "find_order_dependence": "engine.finding.find_order_dependence",
    "find_unused": "engine.finding.find_unused",
    "fits": "engine.steps.fits",
    "graph": "inspector.capturing.walk",
    "load": "engine.trace.run_reader",
    "makespan": "engine.studies.makespan",
    "peak_report": "engine.trace.peak",
    "percent_text": "engine.words.sizes",
    "plan_order": "engine.orders.plan",
    "plan_recompute": "engine.mirroring.plan_recompute",
    "policy": "engine.programs.set_policy",
    "profile": "engine.programs.profile",
    "profile_step": "engine.steps.record_steps",
    "recompute": "engine.mirroring.recompute",
    "record_forward": "engine.programs.record_forward",
    "record_steps": "engine.steps.record_steps",
    "replay": "engine.black_box.replay",
    "set_policy": "engine.programs.set_policy",
    "share_text": "engine.words.sizes",
    "simulate": "engine.orders.simulate",
    "size_text": "engine.words.sizes",
    "statistics": "engine.trace.statistics",
    "training": "engine.training.training",
    "wait_for_ranks": "engine.sessions.agreement",
    "with_picture": "widgets.pages.notebook_figure",
    "workload": "engine.workloads.workloads",
}
"""By public name the module that has it."""

_NAMESPACES = ("hips", "orders", "studies", "types")

__all__ = sorted([*_MODULE_OF, *_NAMESPACES])

if not TYPE_CHECKING:  # a name that is not there would be of any type
    for _name in _NAMESPACES:  # public/types.py, not types.py: in a clone's folder Python would take that for its own
        globals()[_name] = sys.modules[f"{__name__}.{_name}"] = import_module(f".public.{_name}", __name__)

    _get, _names = lazy_names(__name__, _MODULE_OF)

    def __getattr__(name: str) -> Any:
        return _version() if name == "__version__" else _get(name)

    def __dir__() -> list[str]:
        return sorted({*_names(), *_NAMESPACES})


def _version() -> str:
    """The installed version. In a folder that is none, as a path to a clone: that this is so."""
    from importlib.metadata import PackageNotFoundError, version  # which takes longer than all else here

    try:
        return version(__name__)
    except PackageNotFoundError:
        return "not installed"


def load_ipython_extension(shell: object) -> None:
    """`%load_ext tapescope`: the magics `%tapescope` and `%%tapescope`."""
    from .widgets.magic.magics import load

    load(shell)  # type: ignore[arg-type]
