"""A run that is over, played again: as a widget, as a page, and from a file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.__main__ import main
from tapescope.engine.planning.policies import TABS
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.recording.run import Run
from tapescope.engine.schedule.policy import Policy, QueueState
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.graph.graph import Task
from tapescope.tests.says import Snapshots, raises, says
from tapescope.widgets.deck.run_page_data import other_policies, run_document
from tapescope.widgets.deck.run_player import Recording

from ..models import Branches, forward
from ..page_side import Replay, unpacked


def last_ready(ready: Sequence[Task], state: QueueState) -> Task:
    return ready[-1]


def content_of(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = unpacked(run_document(run).packed())
    return found


def through_a_file(run: Run, tmp_path: Path) -> Run:
    return ts.load(run.save(tmp_path / "run.tape.json"))


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("trace", [None, "off", "cheap", "full"])
def test_a_run_is_played_with_what_it_has(trace: Any, from_file: bool, tmp_path: Path, snapshot: Snapshots) -> None:
    run = ts.backward(forward(Branches()), policy="bfs", trace=trace)
    if from_file:
        run = through_a_file(run, tmp_path)
    content = content_of(run)
    assert [each["policy"] for each in content["schedules"]] == ["bfs", "dfs", "heap"]
    assert content["schedules"][0]["order"] == list(run.order) and content["position"] == len(run.order)
    assert len(content["records"]) == (0 if trace is None else len(run.order))
    if trace == "full":
        assert "bins" in content["records"][str(run.order[0])]["inputs"][0]
    assert content["schedules"][0]["memory"] is None
    says(content["schedules"][0]["memory_note"], "ts.profile")
    if trace is None and not from_file:
        snapshot("deck", content["schedules"][0]["memory_note"])
    assert content["saved"]["task"] == [], "the backward has freed it"


@pytest.mark.parametrize("from_file", [False, True])
def test_a_profiled_run_has_its_memory_and_the_others_have_theirs(from_file: bool, tmp_path: Path) -> None:
    run = ts.profile(lambda: forward(Branches()), policy="heap")
    timeline = run.timeline
    assert timeline is not None
    if from_file:
        run = through_a_file(run, tmp_path)
    content = content_of(run)
    own, *others = content["schedules"]
    assert own["memory"]["basis"] == "measured" and own["memory"]["nbytes"] == list(timeline.nbytes)
    assert own["memory"]["events"] == list(timeline.events)
    assert {each["memory"]["basis"] for each in others if each["memory"]} <= {"calibrated"}
    assert bool(run.footprints) == all(each["memory"] for each in others)
    assert content["saved"]["task"], "the measurement has what nodes kept, too"
    assert {*content["saved"]["meta"]} == {-1}, "but its shapes are not"


def test_a_run_with_inputs_leaves_tasks_out_of_every_schedule() -> None:
    model = Branches()
    run = ts.backward(forward(model), inputs=[model.down.weight], trace="off")
    content = content_of(run)
    assert len(run.order) < len(run.graph)
    assert {frozenset(each["order"]) for each in content["schedules"]} == {frozenset(run.order)}


def test_a_run_that_stopped_midway_plays_what_ran() -> None:
    session = ts.debug(forward(Branches()), trace="off")
    for _ in range(4):
        session.step()
    content = content_of(session.result())
    assert content["schedules"][0]["order"][:4] == session.order and content["position"] == 4
    session.close()


def test_a_run_that_stopped_midway_knows_what_was_left() -> None:
    loss = forward(Branches())
    whole = list(ts.backward(loss, policy="heap", retain_graph=True).order)
    session = ts.debug(loss)
    for _ in range(4):
        session.step()
    content = content_of(session.result())
    assert content["position"] == 4
    assert [len(each["order"]) for each in content["schedules"]] == [len(whole)] * 3
    assert content["schedules"][0]["order"] == whole
    session.close()


def test_a_users_policy_keeps_its_labels(tmp_path: Path) -> None:
    def key(task: Task, arrival: int) -> tuple[int, ...]:
        return (-task.id,)

    mine = Policy("mine", "latest number", key, lambda task, arrival: f"no. {task.id}")
    for run in (
        ts.backward(forward(Branches()), policy=mine, trace="off"),
        ts.backward(forward(Branches()), policy=last_ready, trace="off"),
    ):
        for each in (run, through_a_file(run, tmp_path)):
            own = content_of(each)["schedules"][0]
            assert own["policy"] == run.policy and own["order"] == list(run.order)
            replay = Replay(content_of(each), own)
            assert [replay.key(task) for task in run.order] == [
                f"no. {task}" if run.policy == "mine" else f"@{replay.arrival[task]}" for task in run.order
            ]


@pytest.mark.parametrize("engine", ["direct", "native"])
def test_a_session_that_switched_and_picked_by_hand_says_so(engine: Any, tmp_path: Path) -> None:
    session = ts.debug(forward(Branches()), policy="bfs", engine=engine, trace="off")
    while len(session.ready) < 2:
        session.step()
    by_hand = []
    if engine == "direct":
        by_hand = [session.step(session.ready[-1]).id]
    session.policy = "dfs"
    run = session.run()
    for each in (run, through_a_file(run, tmp_path)):
        own, *others = content_of(each)["schedules"]
        assert own["order"] == list(run.order) and own["by_hand"] == by_hand
        assert [other["policy"] for other in others][-1:] == ["heap"]
        assert all(own["keys"]) if isinstance(own["keys"], list) else own["keys"]
    assert run.trace is not None and re.findall("heap|bfs|dfs", run.trace.policy) == ["bfs", "dfs"]


def test_a_recording_is_a_widget_that_runs_nothing(tmp_path: Path) -> None:
    run = ts.backward(forward(Branches()), trace="full")
    recording = run.deck()
    assert isinstance(recording, Recording)
    says(repr(recording), "<Recording ", "<Run ")
    state = recording.get_state()
    assert state["_is_live"] is False and unpacked(state["_document"])["position"] == len(run.order)
    recording.breakpoints, recording.selection = [3], 2
    assert recording.get_state()["breakpoints"] == [3]
    for task, on in ((5, True), (1, True), (3, False), (5, True)):
        recording._handle_custom_msg({"kind": "breakpoint", "task": task, "on": on}, [])
    assert recording.breakpoints == [1, 5]
    assert run.save_html(tmp_path / "run.html").read_text().startswith("<!doctype html>")
    recording._handle_custom_msg({"kind": "unseen"}, [])
    assert recording.comm is None, "nobody can get at it any more"


def test_without_anywidget_the_page_is_pointed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_player", "player_widget"):
        monkeypatch.delitem(sys.modules, f"tapescope.widgets.deck.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with raises(ModuleNotFoundError, "save_html"):
        ts.backward(forward(Branches())).deck()


def view(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["view", str(path), "--no-open"])
    return code, capsys.readouterr().err


def test_view_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ts.backward(forward(Branches()), trace="off").save(tmp_path / "run.tape.json")
    assert view(path, capsys)[0] == 0
    assert list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("there", ["notes", "exported"])
def test_view_writes_over_its_own_page_alone(there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ts.backward(forward(Branches()), trace="off")
    path, page = run.save(tmp_path / 'a "<b>".json'), tmp_path / 'a "<b>".html'
    assert view(path, capsys)[0] == 0
    assert view(path, capsys)[0] == 0
    if there == "notes":
        page.write_text("my notes")
    else:
        run.save_html(page)
    mine = page.read_bytes()
    code, said = view(path, capsys)
    assert code == 2 and said.startswith("tapescope: ") and said.count("\n") == 1 and "--out" in said
    assert page.read_bytes() == mine
    assert main(["view", str(path), "--no-open", "--out", str(page)]) == 0
    assert page.read_bytes() != mine


@pytest.mark.parametrize("harm", ["missing", "empty", "text", "list", "cut", "future", "order", "folder"])
def test_a_file_that_can_not_be_played_is_one_sentence(
    harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ts.backward(forward(Branches()), trace="off").save(tmp_path / "run.tape.json")
    content = json.loads(path.read_text())
    match harm:
        case "missing":
            path.unlink()
        case "empty":
            path.write_text("")
        case "text":
            path.write_text("not a trace")
        case "list":
            path.write_text("[1, 2]")
        case "cut":
            path.write_bytes(path.read_bytes()[:300])
        case "future":
            path.write_text(json.dumps(content | {"version": 99}))
        case "order":
            path.write_text(json.dumps(content | {"order": [10_000]}))
        case "folder":
            path.unlink()
            path.mkdir()
    with pytest.raises((ValueError, OSError)):
        ts.load(path)
    code, said = view(path, capsys)
    assert code == 2
    assert said.startswith("tapescope: ") and said.count("\n") == 1 and "Traceback" not in said
    if harm == "future":
        assert "99" in said


def test_a_page_that_can_not_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ts.backward(forward(Branches()), trace="off").save(tmp_path / "run.tape.json")
    assert main(["view", str(path), "--no-open", "--out", str(path / "x.html")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tapescope: ") and said.count("\n") == 1


def test_view_works_as_a_command(tmp_path: Path) -> None:
    path = tmp_path / "none.tape.json"
    ran = subprocess.run(
        [sys.executable, "-m", "tapescope", "view", str(path), "--no-open"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.count("\n") == 1


def test_a_run_on_several_roots_plays() -> None:
    x = torch.ones(3, requires_grad=True)
    tensors: list[Tensor] = [(x * 2).sum(), x.exp().sum()]
    run = ts.backward(tensors, trace="cheap")
    content = content_of(run)
    assert len(content["roots"]) == 2
    assert Replay(content, content["schedules"][0]).queue(0)[0] == run.order[0]


def test_other_policies_are_simulated_under_the_runs_own_rule() -> None:
    _, make_loss = workload("rnn").build(steps=4)
    run = ts.profile(make_loss, engine="direct", accumulate="list", release="never")
    found = {name: timeline for name, _, timeline in other_policies(run)}
    expected = simulate(run.graph, "bfs", run.footprints, accumulate="list", release="never")
    assert found["bfs"] is not None and found["bfs"].nbytes == expected.nbytes
    assert found["bfs"].peak_bytes > 1.5 * simulate(run.graph, "bfs", run.footprints).peak_bytes


def test_other_policies_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ts.profile(lambda: forward(Branches()))
    simulated: list[object] = []

    def counting(*given: object, **more: object) -> object:
        simulated.append(given)
        return ts.simulate(*given, **more)

    monkeypatch.setattr("tapescope.widgets.deck.run_page_data.simulate", counting)
    recording = run.deck()
    assert set(recording.moment().timelines) == set(recording.moment().timelines) == set(TABS)
    assert len(simulated) == len(TABS) - 1
    recording.close()
