"""`ts.policy` and `ts.set_policy`: run every `.backward()` of the program in the order of a policy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...inspector.torch_private.engine import EngineRun, redirect_backward, run_completed
from ...inspector.validation import expect_callable, expect_choice
from ..execution.backward_arguments import BackwardCall
from ..planning.policies import find_policy
from ..recording.run import Engine, Run
from ..recording.statistics import Level
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy, policy_name
from ..session.error_notes.explain_error import explain_error
from .backward import check_choices, run_backward

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

_lock = threading.Lock()
_installed: list[Installation] = []
_set: Installation | None = None
_end_redirect: Callable[[], None] | None = None


class Installation:
    """A policy in force until it is removed; `with` removes it at the end of the block.

    Attributes:
        engine: "native" or "direct".
        backwards: the number of backwards that ended without an error. No run is kept, because a graph holds its nodes,
            which hold their hooks and leaves; use `on_run` to receive each run.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        engine: Engine,
        trace: Level | None,
        queues: Queues,
        on_run: Callable[[Run], object] | None,
    ) -> None:
        _expect_choices(policy, engine, trace, queues, on_run)
        self.backwards = 0
        self.engine: Engine = engine
        self._policy = find_policy(policy)
        self._trace = trace
        self._queues = queues
        self._on_run = on_run

    def put_in_force(self, *, below_others: bool = False) -> None:
        """Start to run backwards. With `below_others`, policies already in force take precedence until they end."""
        global _end_redirect
        try:
            with _lock:
                if _end_redirect is None:  # redirect_backward may raise, and then no policy is in force
                    _end_redirect = redirect_backward(_run_installed)
                _installed.insert(0 if below_others else len(_installed), self)
        except BaseException:  # including Ctrl-C
            self.remove()
            raise

    @property
    def policy(self) -> str:
        """The policy's name."""
        return policy_name(self._policy)

    def __repr__(self) -> str:
        state = (
            "removed" if self not in _installed else "in force" if _installed[-1] is self else "covered by a later one"
        )
        return f"<Installation of {self.policy}, {self.engine} engine, {state}: {self.backwards} backwards>"

    def remove(self) -> None:
        """Remove the policy; installations may be removed in any order. A backward under way ends as it began."""
        try:
            self._remove()
        except BaseException:  # Ctrl-C; removing it twice does no harm
            self._remove()
            raise

    def _remove(self) -> None:
        global _end_redirect
        with _lock:
            if self in _installed:
                _installed.remove(self)
            if not _installed and _end_redirect is not None:
                _end_redirect()
                _end_redirect = None

    def __enter__(self) -> Installation:
        try:
            self.put_in_force()
            return self
        except BaseException:  # after Ctrl-C here, `with` does not call __exit__
            self.remove()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.remove()
        except BaseException:  # Ctrl-C just before the call
            self.remove()
            raise
        if error is not None:
            explain_error(error)


def _run_installed(
    run: EngineRun,
    tensors: Sequence[Tensor | GradientEdge],
    grad_tensors: Sequence[Tensor | None],
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Any],
) -> None:
    with _lock:
        innermost = _installed[-1] if _installed else None
    if innermost is None or not tensors:  # another thread has removed it, or there is nothing to order
        run_completed(run, tensors, grad_tensors, retain_graph, create_graph, inputs)
        return
    call = BackwardCall.completed(run, tensors, grad_tensors, retain_graph, create_graph, inputs)
    # The policy may run in less time than the checks of ts.backward take. Its arguments were checked when it was
    # installed, and torch has checked the others.
    try:
        made = run_backward(call, innermost._policy, innermost.engine, innermost._trace, innermost._queues)
        with _lock:
            innermost.backwards += 1
        if innermost._on_run is not None:
            innermost._on_run(made())
    except Exception as error:
        explain_error(error)
        raise


def set_policy(
    policy: AnyPolicy | None,
    *,
    engine: Engine = "native",
    trace: Level | None = None,
    queues: Queues = "one",
    on_run: Callable[[Run], object] | None = None,
) -> None:
    """Run every `.backward()` from now on as `ts.backward` with this policy, so that a training loop needs no change.

    This applies to `Tensor.backward` and `torch.autograd.backward` in all threads of the process, including nested
    backwards (reentrant checkpoints, hooks); they still return None. `torch.autograd.grad` does not change, and an
    explicit `ts.backward` keeps its own policy. Inside `with ts.policy(...)`, that policy takes precedence. If several
    processes train together, each must set the same policy, because an order other than PyTorch's runs only if all
    ranks run it (`ts.wait_for_ranks`).

    Args:
        policy: as for `ts.backward`; replaces the one set before. None restores PyTorch's own engine.
        engine, trace, queues: as for `ts.backward`.
        on_run: called with the `Run` of each backward, in that backward's thread.

    Raises:
        ValueError: unknown policy or engine.
    """
    global _set
    new = None if policy is None else Installation(policy, engine, trace, queues, on_run)
    with _lock:
        old, _set = _set, new
    try:
        if new is not None:
            new.put_in_force(below_others=True)
    finally:
        if old is not None:
            old.remove()


def policy(
    policy: AnyPolicy,
    *,
    engine: Engine = "native",
    trace: Level | None = None,
    queues: Queues = "one",
    on_run: Callable[[Run], object] | None = None,
) -> _GeneratorContextManager[Installation]:
    """Run every `.backward()` in a block in the order of a policy: `with ts.policy("bfs"): trainer.fit(model)`.

    It is also a decorator: `@ts.policy("bfs")` above a training step. For the arguments and the backwards covered, see
    `ts.set_policy`.
    """
    _expect_choices(
        policy, engine, trace, queues, on_run
    )  # here and not at the start of the block, so that the traceback ends at the user's call
    return _meanwhile(policy, engine, trace, queues, on_run)


@contextmanager
def _meanwhile(
    policy: AnyPolicy,
    engine: Engine,
    trace: Level | None,
    queues: Queues,
    on_run: Callable[[Run], object] | None,
) -> Iterator[Installation]:
    with Installation(policy, engine, trace, queues, on_run) as installation:
        yield installation


def _expect_choices(
    policy: AnyPolicy, engine: Engine, trace: Level | None, queues: Queues, on_run: Callable[[Run], object] | None
) -> None:
    check_choices(engine, trace)
    expect_choice(queues, get_args(Queues), "queues")
    if on_run is not None:
        expect_callable(on_run, 1, "on_run", "a function that accepts each Run")
    find_policy(policy)
