"""What can be seen of a deck's backward, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ...engine.queue.policy import AnyPolicy
from ...engine.queue.ready_queue import ReadyTask
from ...engine.sessions.stepper import Stepper
from ...engine.stops.stopped import Stop
from ...engine.tasks.history import History
from ...engine.trace.batches import Batches
from ...engine.trace.trace import Trace
from ...front_door import verbs_end_where_called
from ...inspector.graph.graph import Task
from .deck_traits import DeckTraits
from .page import save_page
from .picture import save_picture
from .prediction import Prediction
from .stop_tables import BranchesView


@verbs_end_where_called
class Looking(DeckTraits):
    """How the backward stands, what waits, and what is foreseen. Runs nothing; hooks and observers may look, too."""

    @property
    def engine(self) -> str:
        """`direct` or `native`."""
        return self._live.at.engine

    @property
    def order(self) -> list[int]:
        """The ids of the tasks that have run."""
        return list(self._live.session.order)

    @property
    def planned(self) -> list[int]:
        """The ids of all tasks in the order in which they ran and are going to."""
        return list(self._live.plan.order)

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it would pop."""
        return self._asking.look(lambda: self._live.session.ready)

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The gradients which the current task is going to get, its input buffer, of the shapes in `current.inputs`."""
        return self._asking.look(lambda: self._live.session.gradients)

    @property
    def trace(self) -> Trace | None:
        """What has been recorded so far."""
        return self._asking.look(lambda: self._live.session.trace)

    @property
    def batches(self) -> Batches | None:
        """What ran as one so far, and what did not and why; None without `batch=`."""
        session = self._live.session
        return self._asking.look(lambda: session.batches if isinstance(session, Stepper) else None)

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, one per input number, of the shapes in `task.inputs`; None where
        nothing has come yet.

        Raises:
            NotImplementedError: the native engine shows those of the current task alone.
        """
        return self._asking.look(lambda: self._live.session.waiting(task))

    @property
    def stopped(self) -> Stop | None:
        """Why the last run ended before its end: a breakpoint, a watchpoint, or somebody called `stop`."""
        return self._live.at.stopped

    @property
    def branches(self) -> BranchesView:
        """The ways in which the session went, those that were left included: a table of `Branch`."""
        return BranchesView(self._asking.look(lambda: self._live.branches.all))

    @property
    def history(self) -> History | None:
        """What going back costs, in bytes, and how far it can go; None where no task can be taken back."""
        return self._live.at.history

    def compare(self, policies: Sequence[AnyPolicy] | AnyPolicy) -> Prediction:
        """The memory that this graph would take under several policies, from the start on. Nothing runs.

        Raises:
            ValueError: the memory was not predicted, see `predict_memory`; or a policy decides as the backward runs.
        """
        return self._asking.look(lambda: self._live.plan.compare(policies))

    def save_html(self, path: str | Path) -> Path:
        """Writes the deck as it is now as one page that plays without a kernel or a network."""
        document = self._live.document
        return save_page(document.packed(), Path(path), document.content["title"])

    def save_picture(self, path: str | Path) -> Path:
        """Writes the graph as it stands now, what has run, runs next and is ready, as .svg or .png.

        Raises:
            ValueError: the file ends otherwise.
            ModuleNotFoundError: PNG, and resvg-py is not installed.
        """
        return save_picture(self, path)

    def save_trace(self, path: str | Path) -> Path:
        """Writes what has run as a trace file, for `ts.load` and `tapescope view`; see `Run.save`."""
        return self._asking.look(self._live.session.result).save(path)

    def save_perfetto(self, path: str | Path) -> Path:
        """Writes what has run as a trace that ui.perfetto.dev and chrome://tracing open; see `Run.save_perfetto`."""
        return self._asking.look(self._live.session.result).save_perfetto(path)
