"""`ts.debug` and `ts.deck`: a backward that runs one task at a time, as a deck in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, ParamSpec, cast

from torch import Tensor, nn

from ...engine.api.debug import AnyHistory
from ...engine.api.debug import debug as debug_in_python
from ...engine.execution.accumulation_rule import Accumulate, Accumulation, Release
from ...engine.execution.backward_arguments import BackwardCall, Inputs
from ...engine.recompute.plan_by_task import check_fits, dropped_saves
from ...engine.recording.run import Engine
from ...engine.recording.statistics import Level
from ...engine.schedule.device_queues import Queues
from ...engine.schedule.policy import AnyPolicy
from ...engine.session.batching.batch_argument import AnyBatch
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
_MODEL: ContextVar[nn.Module | None] = ContextVar("tapescope_model_of_deck", default=None)


@contextmanager
def with_model(model: nn.Module | None) -> Iterator[None]:
    """Pass the forward's model to the decks that are opened in the context, see `Deck`."""
    token = _MODEL.set(model)
    try:
        yield
    finally:
        _MODEL.reset(token)


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
    """Start a backward that runs one task at a time. Takes the arguments of `ts.backward`; `trace` may be None.

    In a notebook (Jupyter, marimo) the result is a `Deck`, which is displayed at the end of the cell. It closes with
    its last output, unless a variable holds it: directly, in a list or dict, or in another widget. A deck held only by
    an attribute of an object (`self.deck`) closes with its output. Elsewhere the result is a session with the same
    methods, except those that need a screen.

    With engine="direct" any ready task may run next; `Stepper` documents the session and what it refuses. With "native"
    PyTorch's own engine runs everything and stops between tasks; see `NativeSession`. A session keeps the graph, and
    saved tensors that the backward has not freed, until it is closed, even if the loss is deleted. The run that it
    returns does not.

    session = ts.debug(loss, policy="bfs")
    session.ready           # the ready queue in the order in which it will be popped, with keys
    session.step()          # run the next task; session.step(task) runs another ready task
    session.run()           # run the rest; the gradients are where loss.backward() puts them

    Args:
        tensors: the outputs, or a tape (`ts.hips.tape`), which "direct" runs as autograd does; "dfs" is autograd's
            order.
        trace: the level of recorded statistics of gradients. "auto": in a notebook "full", with histograms, on the CPU,
            and "cheap" on accelerators, where histograms would wait for each task; elsewhere "off".
        history: whether tasks can be undone with `back` and `goto`, or the budget of bytes of gradients kept for that
            (a number, or "2GiB"). "auto": yes in a deck with engine="direct", otherwise no. With a history, nodes keep
            their saved tensors until the end, and gradients are kept by reference, up to 1 GiB.
        accumulate: the rule for summing gradients: "inplace", as PyTorch does; "out_of_place", a new tensor for each
            sum; "list": all are kept, and summed when the task runs.
        release: when a consumed gradient is freed: "eager", as PyTorch does; "never": at the end of the backward. See
            `ts.types.Accumulation`.
        batch: "auto" runs groups of products found by `ts.find_batches` as one product in one step, see `Stepper`. A
            history needs single tasks, so that history="auto" is then off.
        queues: for a graph on several devices, "one" ready queue for all, or one "per device", each sorted by the
            policy, see `Stepper` and `NativeSession`. None: as in PyTorch's engine, a queue for each device; with
            engine="native", one queue, because it needs a total order.
        recompute: the plan that the forward ran under (`with ts.recompute(plan):`). A deck then shows the memory with
            and without the plan, and predicted and measured recompute times.

    Raises:
        TypeError, ValueError: if `recompute` is not a plan, or the forward did not run under it.
        NotImplementedError: engine="native" with a history, since PyTorch's engine cannot undo tasks, with another
            accumulation rule, or with batch=; or a queue per device with an option that needs a single queue.
    """
    shown = in_notebook()
    if history == "auto" and shown and engine == "direct" and batch is None:
        history = True
    call = BackwardCall(tensors, grad_tensors, retain_graph, create_graph, inputs)
    level = trace
    if level == "auto":
        roots = [] if isinstance(call.tensors, HipsTape) or not shown else call.outputs
        on_cpu = all(root.device.type == "cpu" for root in roots if isinstance(root, Tensor))
        level = "off" if not shown else "full" if on_cpu else "cheap"
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
        if not shown:
            return session
        from .auto_display import show_after_cell
        from .deck import Deck

        made = Deck(
            session,
            policy=policy,
            retain_graph=keep_graph,
            create_graph=create_graph,
            recompute=recompute,
            model=_MODEL.get(),
        )
        show_after_cell(made)
        return made


def _always_shown(start: Callable[Given, object]) -> Callable[Given, Deck]:
    @wraps(start, assigned=())
    def deck(*args: Given.args, **kwargs: Given.kwargs) -> Deck:
        """Start a backward as `ts.debug` does, and return a `Deck` in any environment.

        A deck is an anywidget, which JupyterLab, Notebook, VS Code, Colab and marimo display. A script cannot display
        it, but its methods and `save_html` work.

        Raises:
            ModuleNotFoundError: anywidget is not installed.
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
    """Return whether a deck can be displayed: in a Jupyter kernel or in marimo."""
    if _ALWAYS.get():
        return True
    ipython, marimo = sys.modules.get("IPython"), sys.modules.get("marimo")
    shell = None if ipython is None else ipython.get_ipython()
    is_notebook = getattr(shell, "kernel", None) is not None or (marimo is not None and marimo.running_in_notebook())
    return is_notebook and find_spec("anywidget") is not None


deck = _always_shown(debug)
