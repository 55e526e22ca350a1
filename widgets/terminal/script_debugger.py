"""`tapescope debug SCRIPT.py`: a prompt at each `.backward()` call of a script."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...engine.api.debug import debug
from ...engine.execution.accumulation_rule import PYTORCHS, Accumulation
from ...engine.execution.backward_arguments import BackwardCall
from ...engine.planning.policies import find_policy
from ...engine.recording.run import Engine
from ...engine.recording.statistics import Level
from ...engine.schedule.device_queues import Queues
from ...engine.schedule.policy import AnyPolicy
from ...engine.session.batching.batch_argument import AnyBatch
from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.native_engine import Plan, run_native
from ...inspector.capture.capture import capture
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.distributed import world
from ...inspector.torch_private.engine import EngineRun, redirect_backward
from ...inspector.torch_private.sequence_numbers import pins_open
from .commands import do_close, do_continue
from .console import say
from .expressions import Names, users_frame
from .prompt import Prompt
from .prompt_session import Debuggee, message_of
from .stops import Session, read_break, read_watch


def ended_well(error: BaseException) -> bool:
    """Return whether the error is a successful exit: `sys.exit()` or `sys.exit(0)`."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


class Quit(SystemExit):
    """Raised in the script after `quit` at the prompt. It ends the script as `sys.exit()` does."""


class InScript(Debuggee):
    """The current backward of a script. Its heading is printed once, before its first output."""

    def __init__(self) -> None:
        super().__init__(Names(None))
        self.heading = ""
        self.runs_on = False
        self.was_shown = False

    def greet(self) -> None:
        self._head()
        super().greet()

    def show_stop(self, stop: Stop | None) -> None:
        if stop is None and not self.session.left:
            if not self.runs_on:
                say(f"all {len(self.session.order)} tasks have run; type continue to resume the script", style="dim")
            return
        self._head()
        super().show_stop(stop)

    def _head(self) -> None:
        self.was_shown = True
        if self.heading:
            say(f"{self.heading}:")
            self.heading = ""


class ScriptPrompt(Prompt):
    """The prompt that debugs the backwards of a running script, one after the other."""

    at: InScript
    surface = "script"

    def __init__(self, first: Sequence[str]) -> None:
        super().__init__(InScript(), first)
        self.detached = False
        self.has_quit = False
        self._closed = False

    def set_stops(self, places: Sequence[str], conditions: Sequence[str]) -> None:
        """Set breakpoints and watchpoints in every backward that has a matching task.

        Raises:
            ValueError: the syntax of one is invalid.
        """
        for text in places:
            self.at.stops.add_for_later("break", text, read_break(text, self.at.test))
        for text in conditions:
            self.at.stops.add_for_later("watch", text, read_watch(text, self.at.watch_test))

    def debug(self, session: Session, what: str, names: Names) -> None:
        """Debug a backward: open the prompt at its first stop, or before the first task if there are no stops.

        Raises:
            Quit: the user typed `quit`.
        """
        self.at.names, self.at.heading, self._closed = names, what, False
        try:
            self.at.enter(session)
            if not self.at.stops.wait:
                self.at.greet()
                self.talk()
            elif (stop := session.stop_here()) is not None:
                self.at.show_stop(stop)
                self.talk()
            elif not self.run_on():
                self.talk()
            if self.at.error is not None:
                raise self.at.error
            if self.has_quit:
                raise Quit
            if self.detached:
                for each in session.stops:
                    session.stops.disable(each.number)
            # The script needs the gradients, so the rest of the backward runs without a prompt.
            if session.left and not self._closed:
                session.run()
        finally:
            self.at.names = Names(None)  # a reference to the frame would keep its variables alive

    def run_on(self) -> bool:
        """Run to a stop or to the end of the backward. Return whether the end was reached."""
        self.at.runs_on = True
        try:
            do_continue(self.at, "")
        finally:
            self.at.runs_on = False
        return self.at.error is None and not self.at.session.left and self.at.session.stopped is None

    def do_continue(self, arg: str) -> bool:
        if self.at.session.over is None and self.at.session.left:
            return self.run_on()
        return True

    def do_close(self, arg: str) -> bool:
        self._closed = do_close(self.at, arg)
        return self._closed

    def do_detach(self, arg: str) -> bool:
        self.detached = True
        return True

    def do_quit(self, arg: str) -> bool:
        self.has_quit = True
        return True


class EveryBackward:
    """Context manager that opens a prompt at each `.backward()` of this thread, with a captured forward.

    If all stops are watchpoints, no statistics are recorded, and with the native engine no trace.

    One capture covers the whole script; it is renewed after each backward. PyTorch runs the backwards of other threads,
    of forked processes, and inside another backward (reentrant checkpoints, hooks), without a prompt.

    Args:
        engine: "direct" or "native"; None uses the direct engine, or the native one if the direct engine refuses.
        policy: the policy of every session.
        skip: number of backwards to run without a prompt first.
        rank: the rank of a process group that has the prompt. The other ranks run in the same order without a prompt.
        commands: commands to run at the first prompt.
        keep_inputs: whether to keep the inputs of forward operations, which `check` needs.
        batch: tasks that the direct engine runs together, as for `ts.debug`.
        accumulation: the accumulation rule of every session; rules other than PyTorch's need the direct engine.
        queues: the ready queues of sessions with the direct engine, as for `ts.debug`.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        policy: AnyPolicy = "heap",
        skip: int = 0,
        commands: Sequence[str] = (),
        keep_inputs: bool = False,
        batch: AnyBatch = None,
        accumulation: Accumulation = PYTORCHS,
        rank: int = 0,
        queues: Queues | None = None,
    ) -> None:
        self._queues = queues
        self._accumulation = accumulation
        self._rank = rank
        self._printed_rank = False
        self.prompt = ScriptPrompt(commands)
        self._batch = batch
        self._engine = engine
        self._policy = policy
        self._skip = skip
        self._capture = capture(keep_inputs=keep_inputs, every_call=True)
        self._here = os.getpid(), threading.get_ident()
        self._count = 0
        self._optimizer_steps = 0
        self._inside = False
        self._exits = ExitStack()

    def __enter__(self) -> EveryBackward:
        with ExitStack() as stack:
            stack.enter_context(self._capture)
            # If this raises, the stack closes the capture.
            stack.callback(redirect_backward(self._backward))
            stack.callback(register_optimizer_step_post_hook(self._count_optimizer_step).remove)
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.__exit__(None, None, None)  # passing the error would make the capture keep its frames
        if not self.prompt.detached and not self.prompt.has_quit and (error is None or ended_well(error)):
            if not self._count:
                messages = ["the script did not call .backward() in its main thread"]
            elif self._count <= self._skip:
                called = f"the script called .backward() {self._count} times"
                messages = [f"{called}, so --skip {self._skip} left none to debug"]
            else:
                messages = [*self.prompt.at.stops.unmatched_messages()]
                if self.prompt.at.stops.has_matched and not self.prompt.at.was_shown:
                    ran = counted(self._count - self._skip, "backward")
                    messages.append(f"{ran} ran to the end, and no breakpoint or watchpoint stopped one")
            for line in messages:
                print(f"tapescope: {line}", file=sys.stderr)

    @property
    def matched_nothing(self) -> bool:
        """True if there were breakpoints or watchpoints, and none of them matched in any backward."""
        return self.prompt.at.stops.matched_nothing and not self.prompt.detached and not self.prompt.has_quit

    def _count_optimizer_step(self, *given: Any) -> None:
        self._optimizer_steps += (os.getpid(), threading.get_ident()) == self._here

    @property
    def _title(self) -> str:
        """The backward's number, from 1, and the steps before it: a training step may have several backwards."""
        after = f", after {counted(self._optimizer_steps, 'optimizer step')}" if self._optimizer_steps else ""
        return f"backward {self._count}{after}"

    def _backward(
        self,
        run: EngineRun,
        tensors: Sequence[Tensor | GradientEdge],
        grad_tensors: Sequence[Tensor | None],
        retain_graph: bool,
        create_graph: bool,
        inputs: Sequence[Any],
    ) -> None:
        call = BackwardCall.completed(run, tensors, grad_tensors, retain_graph, create_graph, inputs)
        # Hooks and reentrant checkpoints call backward() inside of a backward; these run without a prompt.
        if (os.getpid(), threading.get_ident()) != self._here or self._inside or not tensors or pins_open():
            call.run()
            return
        if self.prompt.has_quit:  # the script caught Quit and called backward() again
            raise Quit
        self._count += 1
        self._inside = True
        try:
            if self._count <= self._skip or self.prompt.detached:
                call.run()
            elif self._is_others():
                # Collectives in hooks have to run in the same order on all ranks, so every rank runs under the policy.
                run_native(call, Plan.of(call, find_policy(self._policy)))
            else:
                self._debug(call)
        finally:
            self._inside = False
            # Records of the finished forward would otherwise stay in memory for the whole script.
            self._capture.renew()

    def _is_others(self) -> bool:
        """Return whether another rank has the prompt. The first call prints which rank has it."""
        group = world()
        if group is None:
            return False
        here = group.rank() == self._rank
        if not self._printed_rank and here:
            say(
                f"rank {self._rank} of {group.size()} has the prompt. The other ranks wait for it in collectives until "
                "the timeout of their process group, which init_process_group(timeout=...) sets",
                style="yellow",
            )
        elif not self._printed_rank:
            say(f"rank {group.rank()} runs without a prompt; rank {self._rank} has it (--rank)", style="dim")
        self._printed_rank = True
        return not here

    def _debug(self, call: BackwardCall) -> None:
        try:
            session, why_not = self._session(call), ""
        except (RuntimeError, NotImplementedError) as error:
            session, why_not = None, message_of(error)
        if session is None:
            call.run()  # raises PyTorch's own error if the call is invalid
            say(f"{self._title} ran without a prompt: {why_not}", style="yellow")
            return
        with session:
            self.prompt.debug(session, self._title, Names(users_frame()))

    def _session(self, call: BackwardCall) -> Session:
        if self._engine != "native":
            try:
                return self._session_of(call, "direct")
            except NotImplementedError as error:
                if self._engine == "direct" or self._accumulation != PYTORCHS:
                    raise
                say(f"{self._title}: {message_of(error)}; this backward does so", style="yellow")
        return self._session_of(call, "native")

    def _session_of(self, call: BackwardCall, engine: Engine) -> Session:
        level: Level | None = "cheap"
        if self.prompt.at.stops.only_watch:  # most backwards then run to the end without a prompt
            level = "off" if engine == "direct" else None
        return debug(
            call,
            policy=self._policy,
            engine=engine,
            trace=level,
            history=True if engine == "direct" and self._batch is None else "auto",
            batch=self._batch if engine == "direct" else None,
            accumulation=self._accumulation,
            queues=self._queues if engine == "direct" or self._engine == "native" else None,
        )
