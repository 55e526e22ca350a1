"""The worker process of `tapescope mcp`, which reads files and runs a script with its session.

It is told requests as lines of JSON, and answers each with a line. What a script prints can't get among them, one that
ends the process ends its session alone, and one that takes too long is ended by whoever asked.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from ..engine.session.direct_session import Stepper
from ..widgets.deck.verbs import SHORT, verbs_on
from ..widgets.terminal.prompt import Prompt
from ..widgets.terminal.prompt_session import Debuggee, Names
from ..widgets.terminal.user_traceback import users_traceback
from .json_output import plain
from .user_script import UserError, made_by, make_loss_of

if TYPE_CHECKING:
    from ..engine.recording.task_records import TaskRecord

COMMANDS = verbs_on("mcp")

Answered = dict[str, Any]


class _Words(Debuggee):
    """A debuggee whose conditions are the debugger's words: nothing that is typed is evaluated."""

    def __init__(self) -> None:
        super().__init__(Names(None))

    def value(self, expression: str) -> NoReturn:
        raise ValueError(f"{expression!r} is no word of the debugger's, and expressions are not evaluated here")

    def test(self, expression: str) -> NoReturn:
        self.value(expression)

    def watch_test(self, expression: str) -> NoReturn:
        self.value(expression)


class McpWorker:
    """Answers requests. At most one session is open in it."""

    def __init__(self) -> None:
        self._script = ExitStack()
        self._prompt: Prompt | None = None
        self._requests: dict[str, Callable[..., Answered]] = {
            "why": _why,
            "peak": _peak,
            "diff": _diff,
            "findings": _findings,
            "page_findings": _page_findings,
            "fits": _fits,
            "find_nan": _find_nan,
            "find_unused": _find_unused,
            "open": self._open,
            "command": self._command,
        }

    def answer(self, request: str, arguments: dict[str, Any]) -> Answered:
        """What is found: facts, and the key `untrusted` with what the user's program or a file has written."""
        try:
            return self._requests[request](**arguments)
        except UserError as error:
            said = [f"the script raised {type(error.error).__name__}", *users_traceback(error.error).splitlines()]
        except (TypeError, ValueError, RuntimeError, NotImplementedError, OSError) as error:
            said = [str(error) or type(error).__name__]
        except (Exception, SystemExit) as error:
            said = traceback.format_exception_only(error)
        return {"failed": True, "untrusted": said}

    def _open(self, target: str, policy: str) -> Answered:
        from ..engine.api.debug import debug
        from ..inspector.capture.capture import capture

        self._script.close()
        make_loss = self._script.enter_context(make_loss_of(target))
        with capture(every_call=True):
            loss = make_loss()
        session = debug(loss, policy=policy)
        self._prompt = Prompt(_Words())
        if isinstance(session, Stepper):
            session.keep_history()
        said = _printed(lambda: self._entered(session))
        return {"tasks": len(session.graph), "untrusted": said}

    def _entered(self, session: Any) -> None:
        assert self._prompt is not None
        self._prompt.at.enter(session)
        self._prompt.at.greet()

    def _command(self, line: str) -> Answered:
        prompt = self._prompt
        if prompt is None:
            raise ValueError("no script is open: open one first")
        if "\n" in line or "\r" in line:
            raise ValueError("a command is one line")
        command, _, _ = prompt.parseline(line)
        if command not in COMMANDS:
            short = sorted(name for name, meant in SHORT.items() if meant in COMMANDS)
            raise ValueError(
                f"{line!r} is none of the commands here: {', '.join(sorted(COMMANDS))} (short: {', '.join(short)})"
            )
        said = _printed(lambda: prompt.onecmd(line))
        session = prompt.at.session
        current = session.current if session.over is None else None
        stop = session.stopped
        return {
            "ran": len(session.order),
            "left": len(session.graph) - len(session.order),
            "current": None if current is None else current.id,
            "stopped": None if stop is None else stop.why,
            "over": session.over is not None or current is None,
            "untrusted": said,
        }


def _printed(do: Callable[[], object]) -> list[str]:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        do()
    return said.getvalue().splitlines()


def _why(run: str, task: str) -> Answered:
    from ..engine.recording.run_file import load
    from ..widgets.deck.task_and_stop_syntax import typed_task

    found = load(run)
    if found.trace is None:
        raise ValueError(f"{Path(run).name} has no trace; ts.backward(loss, trace='cheap') keeps one")
    meant = typed_task(task, found.graph, found.order)
    record = found.trace.of(meant)
    if record is None:
        raise ValueError(f"{task} did not run")
    return {
        "task": meant.id,
        "place": record.place + 1,
        "ready": len(record.queue_before),
        "untrusted": [f"{found.graph.describe(meant)}: {record.reason}", *_waited(record)],
    }


def _waited(record: TaskRecord) -> list[str]:
    """What else was ready, and had to wait."""
    graph = record.trace.graph
    others = [(task, key) for task, key in record.queue_before if task != record.task.id]
    return [f"waits: {graph.describe(graph.tasks[task])}{f', {key}' if key else ''}" for task, key in others]


def _peak(run: str) -> Answered:
    from ..engine.recording.run_file import load

    report = load(run).peak()
    lines = list(report.answer)
    for group in report.groups:
        told = "; ".join(f"{what} {words}" for what, words in report.sentences(group))
        lines.append(f"{group.nbytes:,} bytes, {group.category.title}, {report.title(group)}: {told}")
    return {
        "peak_bytes": report.nbytes,
        "categories": {category.title: nbytes for category, nbytes in report.categories.items()},
        "untrusted": lines,
    }


def _diff(first: str, second: str) -> Answered:
    from ..engine.diagnose.diff import diff
    from ..engine.recording.run_file import load

    found = diff(load(first), load(second), names=(Path(first).name, Path(second).name))
    return {"differs": found.differs, "untrusted": list(found.sentences)}


def _findings(folder: str) -> Answered:
    from ..engine.training.black_box.read_step import read_step

    step = read_step(folder)
    raised = [] if step.error is None else [": ".join(step.error), *step.traceback.splitlines()]
    return {"step": step.step, "kind": step.kind, "untrusted": [step.sentence, *raised]}


def _page_findings(page: str) -> Answered:
    from ..engine.training.training_file import read_page

    found = read_page(Path(page))
    lines = [
        f"steps {each.step}-{each.last_step or each.step}, {each.kind}: {each.sentence}" for each in found.findings
    ]
    return {"steps": found.steps, "findings": len(found.findings), "untrusted": [*found.sentences, *lines]}


def _find_nan(target: str) -> Answered:
    from ..engine.diagnose.find_nan import find_nan

    with make_loss_of(target) as make_loss:
        report = find_nan(make_loss)
    return {
        "found": _known(report.where is not None, len(report.unread)),
        "where": report.where,
        "unread": len(report.unread),
        "untrusted": list(report.sentences),
    }


def _known(found: bool, unread: int) -> bool | None:
    """Return None where nothing was found, but some gradients could not be read."""
    return None if unread and not found else found


def _find_unused(target: str) -> Answered:
    from ..engine.diagnose.find_unused import find_unused

    with made_by(target) as made:
        match made:
            case (make_loss, nn.Module() as model) if callable(make_loss):
                report = find_unused(make_loss, model)
            case _:
                raise ValueError(f"{target} has to return (make_loss, model)")
    found, unread = bool(report), len(report.unread)
    return {"found": _known(found, unread), "unread": unread, "untrusted": str(report).splitlines()}


def _fits(target: str, memory: str, batch_size: int | None) -> Answered:
    from ..engine.training.fits import fits
    from ..engine.training.training_recipe import recipe_of
    from .fits import fit_told

    with made_by(target) as made:
        fit = fits(**recipe_of(made), memory=memory, batch_size=batch_size)  # type: ignore[arg-type]
        told = fit_told(fit)
    said = list(told.pop("sentences"))
    return told | {"untrusted": said + list(told.pop("estimates"))}


def main() -> None:
    """Reads requests until there are none."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    worker = McpWorker()
    for line in requests:
        asked = json.loads(line)
        with redirect_stdout(sys.stderr):
            told = worker.answer(asked["request"], asked["arguments"])
        answers.write(json.dumps(plain(told)).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
