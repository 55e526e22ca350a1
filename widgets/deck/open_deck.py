"""`ts.debug`: a backward that runs one task at a time, as a deck where there is a notebook to show it in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, ParamSpec, cast

from torch import Tensor

from ...engine.api.debug import AnyHistory
from ...engine.api.debug import debug as debug_in_python
from ...engine.execution.accumulation_rule import Accumulate, Accumulation, Release
from ...engine.execution.backward_arguments import BackwardCall, Inputs
from ...engine.recompute.plan_by_task import check_fits, dropped_saves
from ...engine.recording.run import Engine
from ...engine.recording.statistics import Level
from ...engine.schedule.device_queues import Queues
from ...engine.schedule.policy import AnyPolicy
from ...engine.session.batching.run_batches import AnyBatch
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.graph import Outputs
from ...inspector.hips.tape import HipsTape

if TYPE_CHECKING:
    from ...engine.recompute.plan import RecomputePlan
    from .deck import Deck

Given = ParamSpec("Given")

_ALWAYS = ContextVar("tapescope_always_a_deck", default=False)


def debug(
    tensors: Outputs | HipsTape,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Inputs | None = None,
    *,
    policy: AnyPolicy = "heap",
    engine: Engine = "direct",
    trace: Level | Literal["auto"] | None = "auto",
    history: AnyHistory = "auto",
    accumulate: Accumulate = "inplace",
    release: Release = "eager",
    batch: AnyBatch = None,
    queues: Queues | None = None,
    recompute: RecomputePlan | None = None,
) -> Stepper | NativeSession | Deck:
    """Starts a backward that runs one task at a time. Arguments as for `ts.backward`; `trace` may be None.

    In a notebook (Jupyter, marimo) it is a `Deck`, which shows itself at the end of the cell. It closes when its last
    output is closed, unless a variable holds it: itself, in a list or dict, or in another widget. One that only an
    attribute of an object holds (`self.deck`) closes with its output. Elsewhere it is the bare session, with the same
    verbs, but those that need a screen. With engine="direct" any ready task may run next: see `Stepper` for what the
    session can do and what it refuses. With "native" PyTorch's own engine runs everything, and stops: see
    `NativeSession`. A session keeps the graph and what the backward has not freed of its saved tensors until it is
    closed, even if the loss is deleted; the run that it returns does not.

    session = ts.debug(loss, policy="bfs")
    session.ready           # the ready queue in the order in which it will pop, with keys
    session.step()          # runs the next task; session.step(task) runs any other ready one
    session.run()           # runs the rest; the gradients are where loss.backward() puts them

    Args:
        tensors: or a tape (`ts.hips.tape`), which "direct" runs as autograd does; "dfs" is autograd's own order.
        trace: how much of the gradients is recorded. "auto": in a notebook their statistics and, on the CPU, histograms
            ("full"; on accelerators, where those would wait for each task, "cheap"); else nothing of them ("off").
        history: whether tasks can be taken back with `back` and `goto`, or how many bytes of gradients may be kept for
            that (a number, or "2GiB"). "auto": in a deck with engine="direct", which says what it takes; else not.
            Nodes then keep what they saved until the end, and gradients are kept by reference, up to 1 GiB.
        accumulate: how gradients that meet are summed: "inplace", as PyTorch does; "out_of_place", each time into a new
            tensor; "list": all are kept, and summed when the task runs.
        release: when a gradient that a task has consumed is let go: "eager", as PyTorch does; "never": when the
            backward ends. See `ts.types.Accumulation`.
        batch: "auto" runs products of several tasks as one, in one step, where `ts.find_batches` finds that they can,
            see `Stepper`. A history wants single tasks, and so there is none where it is "auto".
        queues: where the graph is on several devices, "one" ready queue for all of them, or one "per device", which the
            policy sorts each by itself, see `Stepper` and `NativeSession`. None: what PyTorch's engine does, a queue
            for each device; with engine="native", for the sake of a total order, one.
        recompute: the plan that the forward ran under (`with ts.recompute(plan):`). A deck then shows its curve
            and the one without it, and what each replay should take beside what it took.

    Raises:
        TypeError, ValueError: if `recompute` is not a plan, or the forward did not run under it.
        NotImplementedError: a history is asked for with engine="native": PyTorch's engine can't take tasks back; or
            another accumulation than its own, or batch=; or a queue per device with what needs one for all.
    """
    shown = in_notebook()
    if history == "auto" and shown and engine == "direct" and batch is None:
        history = True
    call = BackwardCall(tensors, grad_tensors, retain_graph, create_graph, inputs)
    level = _usual_level(call, shown) if trace == "auto" else trace
    with collector_paused():
        session = debug_in_python(
            call,
            policy=policy,
            engine=engine,
            trace=level,
            history=history,
            accumulation=Accumulation(accumulate, release),
            batch=batch,
            queues=queues,
        )
        if recompute is not None and not shown:
            check_fits(recompute, session.graph, dropped_saves(session.graph))
        keep_graph = isinstance(tensors, HipsTape) or call.keep_graph
        return _deck(session, policy, keep_graph, create_graph, recompute) if shown else session


def _deck(
    session: Stepper | NativeSession,
    policy: AnyPolicy,
    keep_graph: bool,
    create_graph: bool,
    recompute: RecomputePlan | None,
) -> Deck:
    from .auto_display import show_after_cell
    from .deck import Deck

    deck = Deck(session, policy=policy, retain_graph=keep_graph, create_graph=create_graph, recompute=recompute)
    show_after_cell(deck)
    return deck


def _usual_level(call: BackwardCall, shown: bool) -> Level:
    if not shown:
        return "off"
    if isinstance(call.tensors, HipsTape):
        return "full"
    on_cpu = all(root.device.type == "cpu" for root in call.outputs if isinstance(root, Tensor))
    return "full" if on_cpu else "cheap"


def _always_shown(start: Callable[Given, object]) -> Callable[Given, Deck]:
    @wraps(start, assigned=())
    def deck(*args: Given.args, **kwargs: Given.kwargs) -> Deck:
        """Starts a backward as `ts.debug` does, and always gives a `Deck`, wherever this runs.

        It is an anywidget: what a front end shows that knows those (JupyterLab, Notebook, VS Code, Colab, marimo). In a
        script there is nothing to show it in; its verbs and `save_html` work.

        Raises:
            ModuleNotFoundError: anywidget is missing.
        """
        if find_spec("anywidget") is None:
            raise ModuleNotFoundError(
                "a deck is an anywidget, which is not installed: pip install 'tapescope[notebook]'", name="anywidget"
            )
        token = _ALWAYS.set(True)
        try:
            return cast("Deck", start(*args, **kwargs))
        finally:
            _ALWAYS.reset(token)

    return deck


def in_notebook() -> bool:
    """Whether this runs where a deck can be shown: in a Jupyter kernel or in marimo."""
    if _ALWAYS.get():
        return True
    ipython, marimo = sys.modules.get("IPython"), sys.modules.get("marimo")
    shell = None if ipython is None else ipython.get_ipython()
    is_notebook = getattr(shell, "kernel", None) is not None or (marimo is not None and marimo.running_in_notebook())
    return is_notebook and find_spec("anywidget") is not None


deck = _always_shown(debug)
