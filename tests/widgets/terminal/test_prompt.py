from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.inspector.text.sizes_and_counts import nth
from tapescope.tests.says import Snapshots, raises, says, says_none_of
from tapescope.widgets.deck.verbs import SHORT
from tapescope.widgets.terminal.completion import completions
from tapescope.widgets.terminal.expressions import Names
from tapescope.widgets.terminal.prompt import Prompt
from tapescope.widgets.terminal.prompt_session import Debuggee
from tapescope.widgets.terminal.user_traceback import users_traceback

PROMPT = "(tapescope) "
TAKES_NOTHING = ("over", "out", "continue", "branches", "queue", "memory", "stops", "stop", "close")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)).square().sum()  # the line of the square


Talk = Callable[..., list[str]]


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    """Gives a prompt over a session these lines, through a pipe. What each was answered."""
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it, which would wrap the output

    def answers(session: ts.types.Stepper | ts.types.NativeSession, *lines: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        capsys.readouterr()
        session.interact()
        greeting, *said = capsys.readouterr().out.split(PROMPT)
        assert [each.partition("\n")[0] for each in said] == [*lines, ""][: len(said)]
        return [each.partition("\n")[2] for each in (greeting, *said)][1 if greeting else 0 :]

    return answers


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def loss_of(model: Model) -> Tensor:
    with ts.capture():
        return model(torch.arange(8.0).reshape(2, 4) / 10)


def gradients_of(model: nn.Module) -> list[Tensor | None]:
    return [each.grad for each in model.parameters()]


def assert_as_in_pytorch(model: Model) -> None:
    """Assert that .grad equals, bit for bit, that of a backward of PyTorch."""
    found = gradients_of(model)
    model.zero_grad()
    loss_of(model).backward()
    for mine, theirs in zip(found, gradients_of(model), strict=True):
        assert mine is not None and theirs is not None and torch.equal(mine, theirs)


def task_named(session: ts.types.Stepper | ts.types.NativeSession, name: str, module: str = "") -> ts.Task:
    graph = session.graph
    return next(
        task
        for task in graph.tasks
        if task.parameter == name or (task.short_name == name and module == (graph.module(task) or ""))
    )


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize("engine", ["direct", "native"])
def test_stepping_and_looking_through_a_prompt_leaves_pytorchs_gradients(engine: str, model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model), engine=engine, trace="cheap")
    talk(session, "s", "where", "queue", "info", "step 3", "", "p gradients", "n", "saved", "memory", "c")
    assert session.left == 0
    session.close()
    assert_as_in_pytorch(model)


def test_a_prompt_shows_where_it_stands(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(loss_of(model))
    said = talk(session, "step 2")[0]
    current = session.current
    assert current is not None
    first, second, third = said.splitlines()
    assert first == f"> {session.graph.describe(current, 2)}"
    says(first, "3rd")
    assert second == f"-> {current.source.code()[0].strip()}"  # type: ignore[union-attr]
    says(third, 2, len(session.graph), "heap", len(session.ready))
    snapshot("prompt", said)


def test_step_runs_the_task_it_is_told_and_refuses_one_that_is_not_ready(
    model: Model, talk: Talk, snapshot: Snapshots
) -> None:
    session = ts.debug(loss_of(model))
    talk(session, "step 4")
    chosen = session.ready[-1].task
    last = max(session.graph.tasks, key=lambda task: (session.graph.in_edges[task.id] != (), -task.sequence_nr))
    place = session.planned.index(last.id)
    said = talk(session, f"s #{chosen.id}", f"s {nth(place + 1)}", "s #999", "s 999th", "s first")
    assert session.order[-1] == chosen.id and len(session.order) == 5
    for answer, fact in zip(said[1:], (session.graph.describe(last, place), 999, "999th", "'first'"), strict=False):
        assert answer.startswith("*** ")
        says(answer, fact)
    snapshot("prompt", "".join(said[1:]))


def test_step_on_a_device_runs_its_tasks_and_says_which_devices_there_are(
    model: Model, talk: Talk, snapshot: Snapshots
) -> None:
    session = ts.debug(loss_of(model))
    said = talk(session, "step on cpu", "s 2 on cpu", "step on cuda:3")
    assert len(session.order) == 3
    assert said[2].startswith("*** ")
    says(said[2], "cuda:3", "cpu")
    snapshot("prompt", said[2])


def test_over_and_out_run_what_the_sessions_verbs_run(model: Model, talk: Talk) -> None:
    session, other = ts.debug(loss_of(model)), ts.debug(loss_of(model))
    down = task_named(session, "Addmm", "blocks.1.down")
    talk(session, f"until #{down.id}", "over")
    other.run_to(down.id)
    other.step_over()
    assert session.order == other.order and session.left
    talk(session, "finish")
    other.step_out()
    assert session.order == other.order


def test_a_run_stops_at_breakpoints_until_they_are_disabled_or_deleted(
    model: Model, talk: Talk, snapshot: Snapshots
) -> None:
    session = ts.debug(loss_of(model))
    line = f"{Path(__file__).name}:{line_of('# the line of the square')}"
    said = talk(
        session,
        "break blocks.1.down",
        f"b {line}",
        "c",
        "disable 1",
        "c",
        "stops",
        "enable 1",
        "delete 1, 2",
        "stops",
        "c",
    )
    says(said[0], "breakpoint 1", "blocks.1.down", "4 tasks")
    says(said[1], "breakpoint 2", line)
    assert re.search(r"\b\d+ tasks", said[1])
    says(said[2], "breakpoint 2", line)
    snapshot("prompt", "".join(said[:3]))
    rows = [row.split() for row in said[5].splitlines()[1:]]
    assert [(row[0], row[1], row[3]) for row in rows] == [("1", "break", "no"), ("2", "break", "yes")]
    says(said[8], "help break", "help watch")
    snapshot("prompt", said[8])
    assert session.left == 0


def test_a_breakpoint_may_have_a_condition_on_the_users_variables(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    WANTED.add("blocks.0.up.weight")
    lines = "b grad:*weight, task.parameter in WANTED and all(each.norm() > 0 for each in gradients)", "c"
    says(talk(session, *lines)[1], "breakpoint 1", "grad:*weight", "task.parameter in WANTED")
    assert session.current is task_named(session, "blocks.0.up.weight")


WANTED: set[str] = set()


def test_a_condition_may_stand_alone_and_one_that_raises_stops_with_its_error(
    model: Model, talk: Talk, snapshot: Snapshots
) -> None:
    session = ts.debug(loss_of(model))
    lines = "break if task.is_leaf", "b Addmm, 1 +", "b nowhere", "b *.weight if nothing", "c", "delete 1", "c"
    said = talk(session, *lines)
    assert said[1].startswith("*** ") and said[2].startswith("*** ")
    says(said[1], "'1 +'")
    says(said[2], "nowhere")
    says(said[4], "breakpoint 1", "task.is_leaf", "AccumulateGrad")
    says(said[6], "breakpoint 2", "NameError", "'nothing'")
    snapshot("prompt", said[2])
    snapshot("prompt", said[4] + said[6])


def test_a_breakpoint_may_wait_for_its_nth_hit_and_one_for_once_goes(
    model: Model, talk: Talk, snapshot: Snapshots
) -> None:
    session = ts.debug(loss_of(model))
    said = talk(session, "break Addmm, hit 2", "tbreak Relu", "c", "c", "stops", "b Addmm, hit 0", "c")
    says(said[2], "breakpoint 1", "Addmm", "hit 2", "AddmmBackward0")
    says(said[3], "breakpoint 2", "Relu", "ReluBackward0")
    assert [row.split()[0] for row in said[4].splitlines()[1:]] == ["1"]
    assert said[5].startswith("*** ")
    says(said[5], "hit", 1, 0)
    snapshot("prompt", said[5])
    assert session.left == 0


@pytest.mark.parametrize("typed", ["53rd", "53", "#26"])
def test_a_breakpoint_at_a_task_is_typed_as_it_is_said(typed: str, model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    wanted = task_named(session, "blocks.0.down.bias")
    place = session.planned.index(wanted.id) + 1
    words = {"53rd": nth(place), "53": str(place), "#26": f"#{wanted.id}"}
    said = talk(session, f"b {words[typed]}", "c")[:2]
    assert session.current is wanted
    for each in said:
        says(each, "AccumulateGrad", "blocks.0.down.bias", nth(place))
    says_none_of(said[1], f"the {nth(place)}", f"task {place}", f"#{wanted.id}")


class Guarded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x).relu()
        return torch.where(hidden > 0, hidden.log(), hidden)  # log(0) is masked, but not its gradient


def guarded_loss() -> Tensor:
    torch.manual_seed(0)
    with ts.capture():
        return Guarded()(torch.randn(8, 4)).sum()


@pytest.mark.parametrize("engine", ["direct", "native"])
def test_a_nan_is_found_with_the_line_that_made_it(engine: str, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(guarded_loss(), engine=engine)
    said = talk(session, "watch nan", "c", "list")
    says(said[0], "watchpoint 1", "nan")
    says(
        said[1].splitlines()[0],
        *("watchpoint 1", "nan", "LogBackward0", f"test_prompt.py:{line_of('# log(0) is masked')}"),
    )
    assert session.stopped is not None and session.stopped.why == "watchpoint"
    if engine == "direct":
        snapshot("prompt", said[0] + said[1])
    assert f"{line_of('# log(0) is masked'):5} -> " in said[2]
    session.close()


def test_a_watchpoint_may_be_an_expression_or_several_words_and_at_a_module(
    model: Model, talk: Talk, snapshot: Snapshots
) -> None:
    session = ts.debug(loss_of(model))
    said = talk(
        session, "watch if gradient.shape[-1] == 8 at blocks.0.*", "c", "watch nan or norm>1e9", "watch", "watch nann"
    )
    stopped = session.stopped
    assert stopped is not None and stopped.task is not None
    assert (session.graph.module(stopped.task) or "").startswith("blocks.0.")
    says(said[2], "watchpoint 2")
    assert said[3].startswith("*** ") and said[4].startswith("*** ")
    says(said[4], "nann")
    snapshot("prompt", said[3] + said[4])


def test_going_back_and_another_way_is_a_branch(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(loss_of(model))
    said = talk(session, "s 6", "back 3", "zero", "s 2", "branches", "branch 1", "goto #" + str(session.current.id))
    order = len(session.order)
    assert order == 0, "goto went back to the first task"
    says(said[4], "2 (current)")
    assert said[4].count("heap") == 2, "one table has all"
    snapshot("prompt", said[4])
    says(said[5], 6, len(session.graph))
    talk(session, "branch", "c")
    session.close()
    assert_as_in_pytorch(model)


def test_what_only_the_direct_engine_can_is_refused_in_one_line(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    with ts.debug(loss_of(model), engine="native") as session:
        said = talk(session, "s 2", "back", "goto #0", "branches", "branch 2", "restore")[1:-1]
        for answer in said:
            assert answer.startswith("*** ") and answer.count("\n") == 1
            says(answer, "direct", "ts.debug(loss)")
        snapshot("prompt", "".join(said))
        assert len(session.order) == 2


@pytest.mark.parametrize(
    ("command", "change"),
    [
        ("zero", lambda gradient: gradient * 0),
        ("scale -0.5", lambda gradient: gradient * -0.5),
        ("clip 0.25", lambda gradient: gradient * (0.25 / gradient.norm())),
        ("replace gradients[0] + 1", lambda gradient: gradient + 1),
    ],
)
def test_gradients_are_changed_as_told_and_restored(
    command: str, change: Callable[[Tensor], Tensor], model: Model, talk: Talk
) -> None:
    session = ts.debug(loss_of(model))
    session.step()
    (before,) = session.gradients
    assert before is not None
    said = talk(session, command)
    (after,) = session.gradients
    torch.testing.assert_close(after, change(before))
    assert f"{after.norm():.4g}" in said[0]
    talk(session, "restore")
    assert session.gradients[0] is before


def test_a_change_may_name_another_task_that_waits(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(loss_of(model))
    talk(session, "step 3")
    other = session.ready[-1].task
    before = [each.clone() for each in session.waiting(other) if each is not None]
    talk(session, f"scale 2 ** 3 {nth(session.planned.index(other.id) + 1)}")
    for old, new in zip(before, session.waiting(other), strict=True):
        assert new is not None and torch.equal(old * 8, new)
    said = talk(session, "scale 'two'")[0]
    assert said.startswith("*** ")
    says(said, "scale FACTOR [TASK]", "'two'")
    snapshot("prompt", said)
    says(talk(session, "scale torch.ones(40, 40)")[0], "got a Tensor")


def test_the_queue_is_shown_in_its_order_and_a_policy_may_take_over(
    model: Model, talk: Talk, snapshot: Snapshots
) -> None:
    session = ts.debug(loss_of(model))
    session.run_to(task_named(session, "head.bias"))
    said = talk(session, "policy bfs", "queue", "policy", "policy nothing")
    assert session.policy == "bfs"
    shown = [row.split()[-1] for row in said[1].splitlines()[1:-1]]
    waited = [entry.task.id for entry in session.ready]
    places = [session.planned.index(task_id) + 1 for task_id in waited]
    assert shown == [nth(place) for place in places] and len(shown) > 1
    says(said[1].splitlines()[-1], len(shown), "bfs")
    says(said[2], "bfs", "bfs, dfs, heap")
    says(said[3], "*** unknown policy", "'nothing'", "bfs, dfs, heap")
    snapshot("prompt", said[1] + said[2])
    talk(session, "policy last", "s")
    assert session.policy == "last" and session.order[-1] == waited[-1]


def last(ready: Any, state: object) -> Any:
    return ready[-1]


def test_print_sees_the_callers_variables_and_what_is_debugged(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(loss_of(model))
    mine = [2, 3]

    def asks() -> list[str]:
        return talk(
            session,
            "p mine",
            "p [each * mine[0] for each in mine]",
            "p session.current is task",
            "p 1/0",
            "p (",
            "pp t.ones(2)",
        )

    # The innermost caller outside tapescope is the fixture's function, so its variables are visible as well.
    said = asks()
    assert said[2] == "True\n"
    assert said[3] == "*** ZeroDivisionError: division by zero\n"
    assert said[4].startswith("*** ")
    says(said[4], "'('")
    snapshot("prompt", said[4])
    assert said[5] == "tensor([1., 1.])\n"
    assert mine


def test_statements_run_in_the_function_that_called_and_change_its_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Model, snapshot: Snapshots
) -> None:
    session = ts.debug(loss_of(model))
    typed = [
        "rate = 3",
        "!rate += len(names)",
        "p rate",
        "!names.append('c')",
        "!names[0]",
        "!for name in names: print(name, t.ones(1).item())",
        "!del gone",
        "p sorted(locals())",
        "session = 3",
        "!1 +",
        "!{}['key']",
        "s = 5",
        "p s",
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in typed)))

    def train(rate: int) -> int:
        names, gone, change = ["a", "b"], 1, lambda: rate  # a closure sees what was assigned
        session.interact()
        assert names == ["a", "b", "c"] and change() == rate
        with pytest.raises(UnboundLocalError):
            print(gone)
        return rate

    assert train(1) == 5
    said = [each.partition("\n")[2] for each in capsys.readouterr().out.split(PROMPT)[1:]]
    assert said[2] == "5\n" and said[4] == "'a'\n" and said[5] == "a 1.0\nb 1.0\nc 1.0\n"
    assert said[7] == "['change', 'name', 'names', 'rate']\n", "the function's own, and what was assigned"
    assert said[8].startswith("*** ") and said[9].startswith("*** ") and said[10] == "*** KeyError: 'key'\n"
    says(said[8], "ValueError", "session")
    says(said[9], "'1 +'")
    snapshot("prompt", said[8] + said[9])
    assert said[12] == "5\n" and session.order == []


def test_numbers_of_a_gradient_with_nan_are_said_to_be_of_its_finite_part(talk: Talk, snapshot: Snapshots) -> None:
    start = torch.tensor([1.0, float("nan"), 3.0])
    w = torch.ones(3, requires_grad=True)
    said = talk(ts.debug(w.exp() * 1, start), "where")[0]
    row, note = said.splitlines()[-2:]
    assert row.split()[-7:] == ["1", "3", "2", "3.162", "1", "0", "0"]
    says(note, "min", "max", "mean", "norm", "finite")
    snapshot("prompt", said)
    says_none_of(talk(ts.debug(w.exp() * 1, torch.ones(3)), "where")[0], "finite")


def test_what_find_info_and_list_say_is_in_the_graph(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(loss_of(model), trace="cheap")
    task = task_named(session, "Addmm", "blocks.1.down")
    said = talk(
        session,
        "find BLOCKS.1.DOWN",
        f"info #{task.id}",
        f"until {session.planned.index(task.id) + 1}",
        "s",
        f"i #{task.id}",
        f"l #{task.id}",
        "find x",
    )
    shown = sorted(row.split()[0] for row in said[0].splitlines()[1:])
    found = [each for each in session.graph.tasks if "blocks.1.down" in session.graph.describe(each)]
    assert shown == sorted(each.short_name for each in found)
    says(said[1], "blocks.1", "Block", "blocks.1.down", "Linear", 1, "torch.nn.functional.linear")
    snapshot("prompt", re.sub(rf"\b{task.sequence_nr}\b", "NUMBER", said[1]))
    record = session.trace.of(task)  # type: ignore[union-attr]
    assert record is not None and record.outputs[0] is not None and record.outputs[0].statistics is not None
    says(said[4], nth(session.order.index(task.id) + 1), f"{record.outputs[0].statistics.norm:.4g}")
    assert f"{task.source.line:5} -> " in said[5]  # type: ignore[union-attr]
    assert said[6].startswith("*** ") or said[6].splitlines()
    says(said[6], "task")


def test_saved_tensors_and_memory_are_those_of_the_session(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(loss_of(model))
    task = task_named(session, "Relu", "blocks.0")
    said = talk(session, f"saved #{task.id}", "memory", "s", "history", "saved #0", f"saved #{len(session.graph) - 1}")
    says(said[0], "result", "2×8 float32 cpu")
    says(said[1], "gradients", "input buffers")
    assert session.history is not None
    for answer in (said[1], said[3], said[5]):
        snapshot("prompt", answer)


def test_enter_repeats_a_step_and_never_a_change(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    talk(session, "s 2", "", "", "scale 2", "", "where", "")
    assert len(session.order) == 6
    assert session.trace is None or len(session.trace.edits) == 1


def test_what_it_does_not_understand_gets_one_line(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(loss_of(model))
    lines = ["stpe", "model", "back x", "until", "delete", "find", "print", "save", "save deck.gif", "branch x"]
    lines += [f"{command} 5" for command in TAKES_NOTHING]
    answers = talk(session, *lines)
    for line, answer in zip(lines, answers, strict=False):
        assert answer.startswith("*** ") and answer.count("\n") == 1, line
    says(answers[0], "stpe", "step")
    says(answers[1], "'model'", "p model")
    snapshot("prompt", "".join(answers[: -len(TAKES_NOTHING)]))
    assert session.order == []


def test_each_command_has_its_help_and_is_listed(model: Model, talk: Talk, snapshot: Snapshots) -> None:
    session = ts.debug(loss_of(model))
    prompt = Prompt(Debuggee(Names(None)))
    methods = set(prompt.commands)
    listed = set(prompt.verbs)
    assert listed == methods
    assert set(SHORT.values()) <= methods
    overview, *each = talk(session, "help", *(f"help {name}" for name in sorted(listed)), "help foo")
    for name, answer in zip(sorted(listed), each, strict=False):
        usage, colon, does = answer.partition(": ")
        assert usage.startswith(name) and colon and does and usage in overview
    assert each[len(listed)].startswith("*** ")
    says(each[len(listed)], "'foo'")
    snapshot("prompt", overview + each[len(listed)])


def test_what_ran_is_saved_as_a_trace_a_page_and_a_picture(model: Model, talk: Talk, tmp_path: Path) -> None:
    session = ts.debug(loss_of(model))
    names = [tmp_path / f"run{ending}" for ending in (".json", ".html", ".svg", ".png")]
    talk(session, "s 3", *(f"save {name}" for name in names))
    assert ts.load(names[0]).order == tuple(session.order)
    assert "<html" in names[1].read_text(encoding="utf-8")
    drawn = names[2].read_text(encoding="utf-8")
    assert drawn.startswith("<svg") and drawn.count('data-state="done"') == 3 and 'data-state="running"' in drawn
    assert names[3].read_bytes().startswith(b"\x89PNG")


def test_names_of_the_users_are_shown_as_they_are(talk: Talk) -> None:
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("[red]up[/red]", nn.Linear(2, 2))
            self.register_parameter("[link=x]\x1b[31mw\r", nn.Parameter(torch.ones(2)))

        def forward(self, x: Tensor) -> Tensor:
            up, weight = self._modules["[red]up[/red]"], self._parameters["[link=x]\x1b[31mw\r"]
            assert up is not None
            return (up(x) * weight).sum()  # [bold]a comment[/bold]

    with ts.capture():
        loss = Strange()(torch.ones(1, 2))
    session = ts.debug(loss)
    said = "".join(
        talk(session, "s", "where", "list", "queue", "find link", "p '[red]x[/red]'", "b *up*", "stops", "c")
    )
    says(said, "[red]up[/red]", "[link=x]?[31mw", "[bold]a comment[/bold]", "'[red]x[/red]'")
    assert "\x1b" not in said and "\r" not in said


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def test_a_wrong_backward_is_named_by_check(talk: Talk, snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    with ts.capture(keep_inputs=True):
        loss = Doubles.apply(x).sum()
    said = talk(ts.debug(loss), "check", "s", "check")
    says(said[0].splitlines()[0], "right", "SumBackward0")
    says(said[2].splitlines()[0], "wrong", "DoublesBackward")
    snapshot("prompt", re.sub(r"\b[\d.]+e-\d+\b", "SMALL", said[0] + said[2]))


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("of the user's")  # where the backward raises


def test_what_a_task_raises_shows_the_users_lines_and_ends_the_session(talk: Talk, snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)
    session = ts.debug(Raises.apply(x).sum())
    said = talk(session, "s", "c", "c", "info #0", "p 1 + 1", "back")
    assert f'test_prompt.py", line {line_of("# where the backward raises")}, in backward' in said[1]
    assert said[1].count("File ") == 1 and "ValueError: of the user's" in said[1]
    last, over = said[1].splitlines()[-1], said[2]
    assert last.startswith("*** ") and over.startswith("*** ")
    says(last, "ValueError", "RaisesBackward", "2nd")
    says(over, "ValueError", "RaisesBackward", "ts.debug(loss)")
    snapshot("prompt", f"{last}\n{over}")
    assert "RaisesBackward" in said[3] and said[4] == "2\n" and said[5].startswith("*** ")


@pytest.mark.parametrize("engine", ["direct", "native"])
@pytest.mark.parametrize("command", ["continue", "step 1000", "until #0", "out"])
def test_ctrl_c_stops_what_runs_before_its_next_task(
    command: str, engine: str, model: Model, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(gradient: Tensor) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        if engine == "native" and not command.startswith("step"):
            asked.wait()  # the hook is in another thread than the one which hears of signals

    def stop() -> None:
        type(session).stop(session)
        asked.set()

    with ts.capture():
        hidden = model.blocks(torch.ones(2, 4))
        hidden.register_hook(interrupt)
        loss = model.head(hidden).sum()
    before = signal.getsignal(signal.SIGINT)
    session, asked = ts.debug(loss, engine=engine), threading.Event()
    monkeypatch.setattr(session, "stop", stop)
    said = talk(session, command, "where")
    says(said[0], "interrupted")
    assert re.match(r"> Add\w*Backward0 \(Sequential.1", said[1])
    assert session.over is None and 0 < len(session.order) < len(session.graph) - 1
    assert signal.getsignal(signal.SIGINT) is before
    talk(session, "c")
    assert session.left == 0


def test_a_second_ctrl_c_ends_the_session(model: Model, talk: Talk) -> None:
    def interrupt(gradient: Tensor) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with ts.capture():
        hidden = model.blocks(torch.ones(2, 4))
        hidden.register_hook(interrupt)
        loss = model.head(hidden).sum()
    session = ts.debug(loss)
    said = talk(session, "c", "s")
    assert said[1].startswith("*** ")
    says(said[0], "KeyboardInterrupt")
    says(said[1], "KeyboardInterrupt", "ts.debug(loss)")


def test_a_prompt_begins_a_history_and_refuses_a_session_that_is_over(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    assert session.history is None
    talk(session, "s 3", "back 2")
    assert len(session.order) == 1
    said = talk(session, "close")
    assert said == [""] and session.over == "closed"
    with raises(RuntimeError, "closed", "ts.debug(loss)"):
        session.interact()


def offers(session: ts.types.Stepper, line: str, **names: Any) -> list[str]:
    prompt = Prompt(Debuggee(Names(None)))
    prompt.at.enter(session)
    begin = len(line) - len(line.split(" ")[-1])
    command = prompt.parseline(line)[0] or ""
    known = {"session": session, **names}
    return completions(command, session, prompt.at.stops, lambda: known, line[begin:], line[:begin].partition(" ")[2])


def test_tab_offers_what_can_stand_there(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ts.debug(loss_of(model))
    session.step()
    session.break_at("Relu")
    here = Path(__file__).name
    places = [nth(session.planned.index(entry.task.id) + 1) for entry in session.ready]
    assert [each.strip() for each in offers(session, "s ")] == places
    assert offers(session, "until 1")[:2] == ["10th", "11th"], "the first has run"
    assert offers(session, "break blocks.1.d") == ["blocks.1.down", "blocks.1.down.bias", "blocks.1.down.weight"]
    assert offers(session, "b Rel") == ["Relu "]
    assert offers(session, "b module:head") == ["module:head "]
    assert f"{here}:{line_of('# the line of the square')}" in offers(session, f"b {here}:")
    assert offers(session, "b head, gradients and mod", model=model) == ["model"]
    assert offers(session, "watch n") == ["nan", "norm<", "norm>"]
    assert offers(session, "watch norm>") == ["norm>"], "a number goes on"
    assert offers(session, "watch nan at hea") == ["head "]
    assert offers(session, "policy df") == ["dfs "]
    assert offers(session, "delete ") == ["1 "]
    assert offers(session, "p model.bl", model=model) == ["model.blocks"]
    assert offers(session, "p len(model.bl", model=model) == ["len(model.blocks"]
    assert offers(session, "find blocks.0.u")[0] == "blocks.0.up"
    assert offers(session, "info st") == ["stops "]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert offers(session, "save ru") == ["runs/", "ru.json", "ru.html", "ru.svg", "ru.png"]
    prompt = Prompt(Debuggee(Names(None)))
    assert prompt.completenames("st") == ["step", "step_out", "step_over", "stop", "stops"]
    assert prompt.complete_help("wat") == ["watch "]
    prompt.at.names = Names(sys._getframe())
    prompt.at.enter(session)
    assert prompt.completenames("!len(model.bl") == ["!len(model.blocks"]


def test_a_prompt_needs_nothing_of_jupyter_and_no_terminal(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, tapescope as ts\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "def train():\n"
        "    mine = 41\n"
        "    session = ts.debug((w * 2).sum())\n"
        "    session.interact()\n"
        "    assert not {'IPython', 'ipywidgets', 'anywidget', 'traitlets'} & set(sys.modules)\n"
        "    return session\n"
        "print('left', train().left)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, script],
        input="p mine + 1\np w.sum().item()\ns\nwhere\nq\n",
        capture_output=True,
        text=True,
        env=environment | {"TERM": "dumb"},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.split(PROMPT)
    assert said[1] == "p mine + 1\n42\n" and said[2].endswith("3.0\n")
    assert "\x1b" not in done.stdout and not any(line != line.rstrip() for line in done.stdout.splitlines())
    assert said[-1] == "q\nleft 2\n"


def test_of_errors_in_a_group_the_users_frames_alone_are_shown_too() -> None:
    found = []
    for text in ("{", "["):
        try:
            json.loads(text)
        except ValueError as error:
            found.append(error)
    shown = users_traceback(ExceptionGroup("several", found))
    assert shown.count("json.loads(text)") == 2 and "decoder.py" not in shown
