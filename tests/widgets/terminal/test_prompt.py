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
from tapescope.inspector.graph.words import nth
from tapescope.widgets.terminal.debuggee import Debuggee
from tapescope.widgets.terminal.prompt import SHORT, Prompt
from tapescope.widgets.terminal.prompt_completion import offered
from tapescope.widgets.terminal.prompt_names import Names
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
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it: what is said would be wrapped

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
    """That .grad is, bit for bit, what a backward of PyTorch's gives."""
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


def test_a_prompt_shows_where_it_stands(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    said = talk(session, "step 2")[0]
    current = session.current
    assert current is not None
    first, second, third = said.splitlines()
    assert first == f"> {session.graph.describe(current, 2)}" and ", 3rd, " in first
    assert second == f"-> {current.source.code()[0].strip()}"  # type: ignore[union-attr]
    assert third.startswith(f"   2 of {len(session.graph)} tasks have run under heap, {len(session.ready)} ready")


def test_step_runs_the_task_it_is_told_and_refuses_one_that_is_not_ready(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    talk(session, "step 4")
    chosen = session.ready[-1].task
    last = max(session.graph.tasks, key=lambda task: (session.graph.in_edges[task.id] != (), -task.sequence_nr))
    place = session.planned.index(last.id)
    said = talk(session, f"s #{chosen.id}", f"s {nth(place + 1)}", "s #999", "s 999th", "s first")
    assert session.order[-1] == chosen.id and len(session.order) == 5
    assert said[1].startswith(f"*** {session.graph.describe(last, place)} is not ready: it waits for")
    assert said[2].startswith("*** there is no task 999")
    assert said[3].startswith("*** no task runs 999th")
    assert said[4].startswith("*** which task? 'first'")


def test_step_on_a_device_runs_its_tasks_and_says_which_devices_there_are(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    said = talk(session, "step on cpu", "s 2 on cpu", "step on cuda:3")
    assert len(session.order) == 3
    assert said[2].startswith("*** no task of this backward runs on cuda:3; it runs on cpu")


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


def test_a_run_stops_at_breakpoints_until_they_are_disabled_or_deleted(model: Model, talk: Talk) -> None:
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
    assert said[0].startswith("breakpoint 1: blocks.1.down, at 4 tasks")
    assert re.match(rf"breakpoint 2: {line}, at \d+ tasks", said[1])
    assert said[2].startswith(f"breakpoint 2 ({line}), before ")
    rows = [row.split() for row in said[5].splitlines()[1:]]
    assert [(row[0], row[1], row[3]) for row in rows] == [("1", "break", "no"), ("2", "break", "yes")]
    assert said[8].startswith("no breakpoint or watchpoint")
    assert session.left == 0


def test_a_breakpoint_may_have_a_condition_on_the_users_variables(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    WANTED.add("blocks.0.up.weight")
    lines = "b grad:*weight, task.parameter in WANTED and all(each.norm() > 0 for each in gradients)", "c"
    assert "breakpoint 1 (grad:*weight when task.parameter in WANTED" in talk(session, *lines)[1]
    assert session.current is task_named(session, "blocks.0.up.weight")


WANTED: set[str] = set()


def test_a_condition_may_stand_alone_and_one_that_raises_stops_with_its_error(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    lines = "break if task.is_leaf", "b Addmm, 1 +", "b nowhere", "b *.weight if nothing", "c", "delete 1", "c"
    said = talk(session, *lines)
    assert said[1].startswith("*** '1 +' is no expression")
    assert said[2].startswith('*** nothing in this graph is called "nowhere"')
    assert said[4].startswith("breakpoint 1 (task.is_leaf), before AccumulateGrad (")
    assert "breakpoint 2 raised NameError: name 'nothing' is not defined" in said[6]


def test_a_breakpoint_may_wait_for_its_nth_hit_and_one_for_once_goes(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    said = talk(session, "break Addmm, hit 2", "tbreak Relu", "c", "c", "stops", "b Addmm, hit 0", "c")
    assert said[2].startswith("breakpoint 1 (Addmm), hit 2, before AddmmBackward0 (")
    assert said[3].startswith("breakpoint 2 (Relu), before ReluBackward0 (")
    assert [row.split()[0] for row in said[4].splitlines()[1:]] == ["1"]
    assert said[5].startswith("*** hit counts from 1")
    assert session.left == 0


@pytest.mark.parametrize("typed", ["53rd", "53", "#26"])
def test_a_breakpoint_at_a_task_is_typed_as_it_is_said(typed: str, model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    wanted = task_named(session, "blocks.0.down.bias")
    place = session.planned.index(wanted.id) + 1
    words = {"53rd": nth(place), "53": str(place), "#26": f"#{wanted.id}"}
    said = talk(session, f"b {words[typed]}", "c")[:2]
    assert session.current is wanted
    assert all(f"AccumulateGrad (blocks.0.down.bias, {nth(place)}" in each for each in said), said
    assert f"the {nth(place)}" not in said[1] and f"task {place}" not in said[1] and f"#{wanted.id}" not in said[1]


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
def test_a_nan_is_found_with_the_line_that_made_it(engine: str, talk: Talk) -> None:
    session = ts.debug(guarded_loss(), engine=engine)
    said = talk(session, "watch nan", "c", "list")
    assert said[0].startswith("watchpoint 1: nan, at ")
    assert said[1].startswith("watchpoint 1 (nan): LogBackward0 (") and "LogBackward0" in said[1].splitlines()[0]
    assert f"test_prompt.py:{line_of('# log(0) is masked')}" in said[1].splitlines()[0]
    assert session.stopped is not None and session.stopped.why == "watchpoint"
    assert f"{line_of('# log(0) is masked'):5} -> " in said[2]
    session.close()


def test_a_watchpoint_may_be_an_expression_or_several_words_and_at_a_module(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    said = talk(
        session, "watch if gradient.shape[-1] == 8 at blocks.0.*", "c", "watch nan or norm>1e9", "watch", "watch nann"
    )
    stopped = session.stopped
    assert stopped is not None and stopped.task is not None
    assert (session.graph.module(stopped.task) or "").startswith("blocks.0.")
    assert said[2].startswith("watchpoint 2: ")
    assert said[3].startswith("*** watch for what?") and said[4].startswith("*** unknown condition")


def test_going_back_and_another_way_is_a_branch(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    said = talk(session, "s 6", "back 3", "zero", "s 2", "branches", "branch 1", "goto #" + str(session.current.id))
    order = len(session.order)
    assert order == 0, "goto went back to the first task"
    assert "2 (current)" in said[4] and "from 1" in said[4] and "after 3" in said[4]
    assert said[4].startswith("branch ") and said[4].count("heap") == 2, "one table has all"
    assert "6 of " in said[5]
    talk(session, "branch", "c")
    session.close()
    assert_as_in_pytorch(model)


def test_what_only_the_direct_engine_can_is_refused_in_one_line(model: Model, talk: Talk) -> None:
    with ts.debug(loss_of(model), engine="native") as session:
        for answer in talk(session, "s 2", "back", "goto #0", "branches", "branch 2", "restore")[1:-1]:
            assert answer.startswith("*** ") and "direct engine" in answer and answer.count("\n") == 1
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


def test_a_change_may_name_another_task_that_waits(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    talk(session, "step 3")
    other = session.ready[-1].task
    before = [each.clone() for each in session.waiting(other) if each is not None]
    talk(session, f"scale 2 ** 3 {nth(session.planned.index(other.id) + 1)}")
    for old, new in zip(before, session.waiting(other), strict=True):
        assert new is not None and torch.equal(old * 8, new)
    assert talk(session, "scale 'two'")[0].startswith("*** scale FACTOR [TASK]: a number is needed")


def test_the_queue_is_shown_in_its_order_and_a_policy_may_take_over(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    session.run_to(task_named(session, "head.bias"))
    said = talk(session, "policy bfs", "queue", "policy", "policy nothing")
    assert session.policy == "bfs"
    shown = [row.split()[-1] for row in said[1].splitlines()[1:-1]]
    waited = [entry.task.id for entry in session.ready]
    places = [session.planned.index(task_id) + 1 for task_id in waited]
    assert shown == [nth(place) for place in places] and len(shown) > 1
    assert said[1].splitlines()[-1].endswith(f"the first of {len(shown)} under bfs")
    assert said[2].startswith("bfs picks; known are bfs, dfs, heap")
    assert said[3].startswith("*** NameError: name 'nothing' is not defined")
    talk(session, "policy last", "s")
    assert session.policy == "last" and session.order[-1] == waited[-1]


def last(ready: Any, state: object) -> Any:
    return ready[-1]


def test_print_sees_the_callers_variables_and_what_is_debugged(model: Model, talk: Talk) -> None:
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

    # The innermost caller that is not tapescope's is the fixture's function, so its variables are seen, too.
    said = asks()
    assert said[2] == "True\n"
    assert said[3] == "*** ZeroDivisionError: division by zero\n"
    assert said[4].startswith("*** '(' is no expression")
    assert said[5] == "tensor([1., 1.])\n"
    assert mine


def test_statements_run_in_the_function_that_called_and_change_its_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Model
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
    assert said[8].startswith("*** ValueError: session is a name of the prompt's own")
    assert said[9].startswith("*** '1 +' is no Python") and said[10] == "*** KeyError: 'key'\n"
    assert said[12] == "5\n" and session.order == []


def test_numbers_of_a_gradient_with_nan_are_said_to_be_of_its_finite_part(talk: Talk) -> None:
    start = torch.tensor([1.0, float("nan"), 3.0])
    w = torch.ones(3, requires_grad=True)
    said = talk(ts.debug(w.exp() * 1, start), "where")[0]
    row, note = said.splitlines()[-2:]
    assert row.split()[-7:] == ["1", "3", "2", "3.162", "1", "0", "0"]
    assert note == "min, max, mean and norm are of the finite part"
    assert "finite part" not in talk(ts.debug(w.exp() * 1, torch.ones(3)), "where")[0]


def test_what_find_info_and_list_say_is_in_the_graph(model: Model, talk: Talk) -> None:
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
    assert "in blocks.1 (Block)" in said[1] and "in blocks.1.down (Linear)" in said[1]
    assert "waits for 1 more gradient" in said[1] and "torch.nn.functional.linear" in said[1]
    record = session.trace.of(task)  # type: ignore[union-attr]
    assert record is not None and record.outputs[0] is not None and record.outputs[0].statistics is not None
    assert (
        f"ran {nth(session.order.index(task.id) + 1)}" in said[4]
        and f"{record.outputs[0].statistics.norm:.4g}" in said[4]
    )
    assert f"{task.source.line:5} -> " in said[5]  # type: ignore[union-attr]
    assert said[6].startswith("*** no task has 'x'") or "task" in said[6]


def test_saved_tensors_and_memory_are_those_of_the_session(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    task = task_named(session, "Relu", "blocks.0")
    said = talk(session, f"saved #{task.id}", "memory", "s", "history", "saved #0", f"saved #{len(session.graph) - 1}")
    assert "result" in said[0] and "2×8 float32 cpu" in said[0]
    assert "gradients that wait in input buffers" in said[1]
    assert session.history is not None and "held to go back as far as the start" in said[3]
    assert "keeps no tensor" in said[5]


def test_enter_repeats_a_step_and_never_a_change(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    talk(session, "s 2", "", "", "scale 2", "", "where", "")
    assert len(session.order) == 6
    assert session.trace is None or len(session.trace.edits) == 1


def test_what_it_does_not_understand_gets_one_line(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    lines = ["stpe", "model", "back x", "until", "delete", "find", "print", "save", "save deck.gif", "branch x"]
    lines += [f"{command} 5" for command in TAKES_NOTHING]
    for line, answer in zip(lines, talk(session, *lines), strict=False):
        assert answer.startswith("*** ") and answer.count("\n") == 1, line
    assert "step" in talk(session, "stpe")[0]
    assert "p model shows a variable" in talk(session, "model")[0]
    assert session.order == []


def test_each_command_has_its_help_and_is_listed(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    prompt = Prompt(Debuggee(Names(None)))
    methods = set(prompt.commands)
    listed = {name for names in prompt.groups.values() for name in names}
    assert listed == methods
    assert set(SHORT.values()) <= methods
    overview, *each = talk(session, "help", *(f"help {name}" for name in sorted(listed)), "help foo")
    for name, answer in zip(sorted(listed), each, strict=False):
        usage, colon, does = answer.partition(": ")
        assert usage.startswith(name) and colon and does and usage in overview
    assert each[len(listed)].startswith("*** there is no command 'foo'")


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
    assert "[red]up[/red]" in said and "[link=x]?[31mw" in said and "[bold]a comment[/bold]" in said
    assert "'[red]x[/red]'" in said and "\x1b" not in said and "\r" not in said


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def test_a_wrong_backward_is_named_by_check(talk: Talk) -> None:
    x = torch.ones(2, requires_grad=True)
    with ts.capture(keep_inputs=True):
        loss = Doubles.apply(x).sum()
    said = talk(ts.debug(loss), "check", "s", "check")
    assert ": right" in said[0].splitlines()[0] and "SumBackward0" in said[0]
    assert ": wrong" in said[2].splitlines()[0] and "DoublesBackward" in said[2]


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("of the user's")  # where the backward raises


def test_what_a_task_raises_shows_the_users_lines_and_ends_the_session(talk: Talk) -> None:
    x = torch.ones(2, requires_grad=True)
    session = ts.debug(Raises.apply(x).sum())
    said = talk(session, "s", "c", "c", "info #0", "p 1 + 1", "back")
    assert f'test_prompt.py", line {line_of("# where the backward raises")}, in backward' in said[1]
    assert said[1].count("File ") == 1 and "ValueError: of the user's" in said[1]
    assert said[1].splitlines()[-1].startswith("*** the session is over: ValueError in RaisesBackward (2nd")
    assert said[2].startswith("*** this session is over")
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
    assert "interrupted" in said[0] and re.match(r"> Add\w*Backward0 \(Sequential.1", said[1])
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
    assert "KeyboardInterrupt" in said[0] and said[1].startswith("*** this session is over")


def test_a_prompt_begins_a_history_and_refuses_a_session_that_is_over(model: Model, talk: Talk) -> None:
    session = ts.debug(loss_of(model))
    assert session.history is None
    talk(session, "s 3", "back 2")
    assert len(session.order) == 1
    said = talk(session, "close")
    assert said == [""] and session.over == "closed"
    with pytest.raises(RuntimeError, match="this session is over"):
        session.interact()


def offers(session: ts.types.Stepper, line: str, **names: Any) -> list[str]:
    prompt = Prompt(Debuggee(Names(None)))
    prompt.at.enter(session)
    begin = len(line) - len(line.split(" ")[-1])
    command = prompt.parseline(line)[0] or ""
    known = {"session": session, **names}
    return offered(command, session, prompt.at.stops, lambda: known, line[begin:], line[:begin].partition(" ")[2])


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
