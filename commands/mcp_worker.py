"""The worker process of `tapescope mcp`, which reads files, and runs a script and its session.

Requests and answers are lines of JSON. Output of a script cannot mix with answers. A script that ends the process ends
only its own session, and the server ends a process that exceeds the time limit.
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
from typing import Any, NoReturn

from torch import nn

from ..engine.session.direct_session import Stepper
from ..widgets.deck.verbs import SHORT, verbs_on
from ..widgets.terminal.expressions import Names
from ..widgets.terminal.prompt import Prompt
from ..widgets.terminal.prompt_session import Debuggee
from ..widgets.terminal.user_traceback import users_traceback
from .json_output import plain
from .user_script import UserError, made_by, make_loss_of

COMMANDS = verbs_on("mcp")

Answered = dict[str, Any]


class _WithoutExpressions(Debuggee):
    """A debuggee that does not evaluate expressions. Only built-in conditions are allowed."""

    def __init__(self) -> None:
        super().__init__(Names(None))

    def value(self, expression: str) -> NoReturn:
        raise ValueError(f"unknown word {expression!r}; expressions are not evaluated here")

    test = watch_test = value


class McpWorker:
    """Answers requests. It has at most one open session."""

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
        """Answer a request. Text from the user's program or a file is under the key `untrusted`."""
        try:
            return self._requests[request](**arguments)
        except UserError as error:
            lines = [f"the script raised {type(error.error).__name__}", *users_traceback(error.error).splitlines()]
        except (TypeError, ValueError, RuntimeError, NotImplementedError, OSError) as error:
            lines = [str(error) or type(error).__name__]
        except (Exception, SystemExit) as error:
            lines = traceback.format_exception_only(error)
        return {"failed": True, "untrusted": lines}

    def _open(self, target: str, policy: str) -> Answered:
        from ..engine.api.debug import debug
        from ..inspector.capture.capture import capture

        self._script.close()
        make_loss = self._script.enter_context(make_loss_of(target))
        with capture(every_call=True):
            loss = make_loss()
        session = debug(loss, policy=policy)
        self._prompt = Prompt(_WithoutExpressions())
        if isinstance(session, Stepper):
            session.keep_history()
        lines = _printed(lambda: self._entered(session))
        return {"tasks": len(session.graph), "untrusted": lines}

    def _entered(self, session: Any) -> None:
        assert self._prompt is not None
        self._prompt.at.enter(session)
        self._prompt.at.greet()

    def _command(self, line: str) -> Answered:
        prompt = self._prompt
        if prompt is None:
            raise ValueError("no session is open; open one first")
        if "\n" in line or "\r" in line:
            raise ValueError("a command must be a single line")
        command, _, _ = prompt.parseline(line)
        if command not in COMMANDS:
            short = sorted(name for name, verb in SHORT.items() if verb in COMMANDS)
            raise ValueError(
                f"unknown command {line!r}; expected one of {', '.join(sorted(COMMANDS))} (short: {', '.join(short)})"
            )
        lines = _printed(lambda: prompt.onecmd(line))
        session = prompt.at.session
        current = session.current if session.over is None else None
        stop = session.stopped
        return {
            "ran": len(session.order),
            "left": len(session.graph) - len(session.order),
            "current": None if current is None else current.id,
            "stopped": None if stop is None else stop.why,
            "over": session.over is not None or current is None,
            "untrusted": lines,
        }


def _printed(do: Callable[[], object]) -> list[str]:
    lines = io.StringIO()
    with redirect_stdout(lines), redirect_stderr(lines):
        do()
    return lines.getvalue().splitlines()


def _why(run: str, task: str) -> Answered:
    from ..engine.recording.run_file import load
    from ..widgets.deck.task_and_stop_syntax import typed_task

    found = load(run)
    if found.trace is None:
        raise ValueError(f"{Path(run).name} has no trace; record one with ts.backward(loss, trace='cheap')")
    chosen = typed_task(task, found.graph, found.order)
    record = found.trace.of(chosen)
    if record is None:
        raise ValueError(f"{task} did not run")
    graph = record.trace.graph
    others = [(other, key) for other, key in record.queue_before if other != chosen.id]
    waits = [f"waits: {graph.describe(graph.tasks[other])}{f', {key}' if key else ''}" for other, key in others]
    return {
        "task": chosen.id,
        "place": record.place + 1,
        "ready": len(record.queue_before),
        "untrusted": [f"{found.graph.describe(chosen)}: {record.reason}", *waits],
    }


def _peak(run: str) -> Answered:
    from ..engine.recording.run_file import load

    report = load(run).peak()
    lines = list(report.answer)
    for group in report.groups:
        content = "; ".join(f"{what} {words}" for what, words in report.sentences(group))
        lines.append(f"{group.nbytes:,} bytes, {group.category.title}, {report.title(group)}: {content}")
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

    with make_loss_of(target, needs_graph=False) as make_loss:  # a NaN of a forward without a graph is found too
        report = find_nan(make_loss)
    return {
        "found": _known(report.where is not None, len(report.unread)),
        "where": report.where,
        "unread": len(report.unread),
        "untrusted": list(report.sentences),
    }


def _known(found: bool, unread: int) -> bool | None:
    """Return whether something was found, or None if nothing was found but some gradients could not be read."""
    return None if unread and not found else found


def _find_unused(target: str) -> Answered:
    from ..engine.diagnose.find_unused import find_unused

    with made_by(target) as made:
        match made:
            case (make_loss, nn.Module() as model) if callable(make_loss):
                report = find_unused(make_loss, model)
            case _:
                raise ValueError(f"{target} must return (make_loss, model)")
    found, unread = bool(report), len(report.unread)
    return {"found": _known(found, unread), "unread": unread, "untrusted": str(report).splitlines()}


def _fits(target: str, memory: str, batch_size: int | None) -> Answered:
    from ..engine.training.fits import fits
    from ..engine.training.training_recipe import recipe_of
    from .fits import fit_content

    with made_by(target) as made:
        fit = fits(**recipe_of(made, target.rpartition(":")[2]), memory=memory, batch_size=batch_size)  # type: ignore[arg-type]
        content = fit_content(fit)
    lines = list(content.pop("sentences"))
    return content | {"untrusted": lines + list(content.pop("estimates"))}


def main() -> None:
    """Answer requests from standard input until it is closed."""
    # Requests and answers use duplicates of descriptors 0 and 1. The originals are redirected, so that neither a script
    # nor C code or a child process can read requests or write between answers.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    worker = McpWorker()
    for line in requests:
        request = json.loads(line)
        with redirect_stdout(sys.stderr):
            content = worker.answer(request["request"], request["arguments"])
        answers.write(json.dumps(plain(content)).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
