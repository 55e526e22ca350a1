"""The deck's debugger: what stops it, going back, branches and edits, from Python and from the page."""

from __future__ import annotations

import gc
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.recording.run import Engine
from tapescope.inspector.text.sizes_and_counts import nth
from tapescope.tests.says import Snapshots, raises, says
from tapescope.widgets.deck.deck import Deck

from ..models import ENGINES, Branches, deck_on, expected_gradients, forward, gradients
from ..page_side import Page, settle, unpacked


def opened(page: Page, model: nn.Module | None = None, **given: Any) -> Deck:
    deck = deck_on(forward(model or Branches()), **given)
    page.open(deck)
    return deck


def agree(page: Page) -> None:
    """The page shows what the session has done, what it stands before, and what it is going to do."""
    deck = page.deck
    assert deck is not None
    assert page.position == deck.position == len(deck.order)
    assert page.order[: page.position] == deck.order
    assert page.replay.queue(page.position) == [each.task.id for each in deck.ready]
    assert [page.replay.key(each.task.id) for each in deck.ready] == [each.label for each in deck.ready]
    assert deck.current_task == page.replay.running(page.position)
    assert deck.trace is not None
    seen = {str(task_id) for task_id in deck.trace.order}
    assert seen <= set(page.document["records"]) <= seen | {str(each.task.id) for each in deck.ready}
    assert page.document["records"] == deck._live.document.content["records"]
    rows = [(row["number"], row["enabled"], row["hits"]) for row in deck._stops]
    assert rows == [(each.number, each.enabled, each.hits) for each in deck.stops]


def held_in_first_task(loss: Tensor) -> tuple[threading.Event, threading.Event]:
    """Hold the backward in its first task. Return an event for the task's start, and one that lets the task end."""
    begun, go_on = threading.Event(), threading.Event()
    loss.grad_fn.register_prehook(lambda gradients: (begun.set(), go_on.wait(30), None)[-1])
    return begun, go_on


# Breakpoints


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_stops_before_a_modules_tasks_and_says_why(page: Page, engine: Engine) -> None:
    deck = opened(page, engine=engine)
    made = deck.break_at("down")
    deck.run()
    assert deck.current is not None and deck.current.id in made.tasks
    assert deck.graph.calls[deck.current.call].path == "down"
    assert deck.stopped is not None and (deck.stopped.why, deck.stopped.task) == ("breakpoint", deck.current.id)
    assert deck.why_stopped == page.last["stopped"]["text"]
    assert page.last["stopped"]["text"].startswith(
        f"breakpoint {made.number} (down), before AddmmBackward0 (down, {nth(deck.position + 1)}, "
    )
    assert page.last["stopped"] | {"text": ""} == {
        "why": "breakpoint", "number": made.number, "task": deck.current.id, "text": "", "lines": []
    }  # fmt: skip
    (row,) = deck._stops
    told = {"number": 1, "kind": "break", "text": "down", "enabled": True, "hits": 1, "tasks": sorted(made.tasks)}
    assert row | told == row
    assert row["calls"] == [deck.current.call] * len(made.tasks), "before its first task, the page can tell"
    agree(page)
    deck.stops.disable(made.number)
    deck.run()
    assert deck.status == "finished" and deck.why_stopped == "" and page.last["stopped"] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_the_trait_and_the_stops_are_one_truth(page: Page, engine: Engine) -> None:
    deck = opened(page, engine=engine)
    heard: list[list[int]] = []
    deck.observe(lambda change: heard.append(change["new"]), "breakpoints")
    deck.breakpoints = [9, 5]
    settle(deck)
    assert [(each.number, each.tasks) for each in deck.stops] == [(1, {9}), (2, {5})]
    deck.break_at(7)
    deck.break_at("down")
    assert deck.breakpoints == [9, 5, 7], "of single tasks alone"
    deck.stops.disable(2)
    assert deck.breakpoints == [9, 7]
    assert [each.number for each in deck.stops] == [1, 2, 3, 4], "a disabled one stays"
    deck.breakpoints = [9, 7, 5]
    settle(deck)
    assert len(deck.stops) == 4 and deck.stops[2].enabled, "no second one for its task"
    deck.stops.delete(1)
    assert sorted(deck.breakpoints) == [5, 7]
    deck.breakpoints = []
    settle(deck)
    assert [each.text for each in deck.stops] == ["down"]
    assert heard == [[9, 5], [9, 5, 7], [9, 7], [9, 7, 5], [5, 7], []], "each change is told once"
    agree(page)


def test_a_breakpoint_of_no_task_is_refused(page: Page) -> None:
    deck = opened(page)
    with raises(ValueError, 999, 0, len(deck.graph) - 1):
        deck.breakpoints = [999]
    assert deck.breakpoints == [] and len(deck.stops) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_breakpoint_of_the_page_is_the_sessions(page: Page, engine: Engine) -> None:
    deck = opened(page, engine=engine)
    for task, on in ((9, True), (5, True), (9, False)):
        deck._handle_custom_msg({"kind": "breakpoint", "task": task, "on": on}, [])
    settle(deck)
    assert [each.tasks for each in deck.stops] == [{5}] and deck.breakpoints == [5]
    deck.stops.disable(2)
    deck._handle_custom_msg({"kind": "breakpoint", "task": 5, "on": True}, [])
    settle(deck)
    assert [(each.number, each.enabled) for each in deck.stops] == [(2, True)], "no second one for its task"
    agree(page)


@pytest.mark.parametrize("engine", ENGINES)
def test_breakpoints_that_come_while_it_runs_stop_it(page: Page, engine: Engine) -> None:
    loss = forward(Branches())
    planned = ts.backward(loss, retain_graph=True, policy="heap").order
    loss = forward(Branches())
    begun, go_on = held_in_first_task(loss)
    deck = deck_on(loss, engine=engine)
    page.open(deck)
    page.send(kind="run")
    assert begun.wait(30)
    waiting = threading.Thread(target=lambda: deck.break_at(planned[8]))
    waiting.start()
    deck.breakpoints = [planned[4]]
    page.send(kind="break", where=f"#{planned[6]}")
    assert deck.status == "running" and len(deck.stops) == 0, "listing does not wait"
    go_on.set()
    waiting.join(30)
    settle(deck)
    assert deck.order == list(planned[:4])
    for position in (6, 8):
        deck.run()
        assert deck.position == position
    agree(page)


def test_toggles_from_many_threads_end_as_one_truth(page: Page) -> None:
    deck = opened(page)
    count = len(deck.graph)

    def toggle(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            numbers = [each.number for each in deck.stops]
            match chance.randrange(4):
                case 0:
                    deck.breakpoints = [*deck.breakpoints, chance.randrange(count)]
                case 1:
                    deck.breakpoints = deck.breakpoints[1:]
                case 2:
                    page.send(kind="break", where=str(chance.randrange(count)))
                case 3 if numbers:
                    page.send(kind="enable", number=chance.choice(numbers), on=chance.random() < 0.5)
                case _ if numbers:
                    page.send(kind="delete", number=chance.choice(numbers))

    threads = [threading.Thread(target=toggle, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    settle(deck)
    own = {next(iter(each.tasks)) for each in deck.stops if each.enabled and each.tasks}
    assert set(deck.breakpoints) == own == {task for row in deck._stops if row["enabled"] for task in row["tasks"]}
    agree(page)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_count_of_steps_ends_at_a_breakpoint(page: Page, engine: Engine) -> None:
    deck = opened(page, engine=engine)
    third = page.order[3]
    deck.breakpoints = [third]
    assert deck.step(count=10).id == deck.order[-1]
    assert deck.position == 3 and deck.current_task == third
    assert deck.step(count=2) and deck.position == 5, "further on"


@pytest.mark.parametrize("engine", ENGINES)
def test_step_over_and_out_end_where_a_sessions_do(page: Page, engine: Engine) -> None:
    found = []
    for _ in range(2):
        reached = []
        session = ts.debug(forward(Branches()), engine=engine) if not found else opened(page, engine=engine)
        session.run_to(next(task for task in session.graph.tasks if session.graph.module(task) == "down"))
        for verb in (session.step_over, session.step_out):
            current = verb()
            reached.append((len(session.order), current and current.id))
        found.append(reached)
        if not isinstance(session, Deck):
            session.close()
    assert found[0] == found[1]
    agree(page)


def test_the_page_can_stop_what_steps_over(page: Page) -> None:
    loss = forward(Branches())
    begun, go_on = held_in_first_task(loss)
    deck = deck_on(loss)
    page.open(deck)
    page.send(kind="step_out")
    assert begun.wait(30)
    page.send(kind="stop")
    go_on.set()
    settle(deck)
    assert deck.position == 1 and deck.stopped is not None and deck.stopped.why == "asked"
    says(page.last["stopped"]["text"], deck.graph.describe(deck.current_task, deck.position))


# Watchpoints


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


def nan_loss() -> Tensor:
    """log(0) inside of a product with 0: its backward makes NaN of an infinite gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), Logarithm())
    with ts.capture(model):
        x = torch.randn(4, 3)
        return (model(x) * torch.zeros(4, 3)).sum()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_watchpoint_stops_it_after_the_task_that_made_nan(page: Page, engine: Engine) -> None:
    deck = deck_on(nan_loss(), engine=engine)
    page.open(deck)
    page.send(kind="watch", condition="nan, inf at module:2")
    page.send(kind="run")
    settle(deck)
    assert deck.stopped is not None and deck.stopped.why == "watchpoint"
    assert deck.order[-1] == deck.stopped.task == page.last["stopped"]["task"]
    assert deck.graph.tasks[deck.stopped.task].name == "LogBackward0"
    assert deck.graph.describe(deck.stopped.task, deck.position - 1) in deck.why_stopped
    assert page.last["stopped"]["lines"] and page.last["stopped"]["number"] == 1
    assert [row["kind"] for row in deck._stops] == ["watch"] and deck._stops[0]["hits"] == 1
    agree(page)


def test_what_a_stop_speaks_of_lives_until_it_goes_on(page: Page) -> None:
    deck = deck_on(nan_loss(), history=False)
    page.open(deck)
    deck.watch("nan")
    deck.run()
    assert deck.stopped is not None and deck.stopped.tensors
    tensors = [ref(each) for each in deck.stopped.tensors.values()]
    deck.run()
    gc.collect()
    assert not any(each() is not None and not each().is_leaf for each in tensors)
    assert deck.stopped is None


def test_a_watchpoint_that_is_switched_off_stops_nothing_any_more(page: Page) -> None:
    deck = deck_on(nan_loss())
    page.open(deck)
    made = deck.watch("nan")
    deck.run()
    assert deck.stopped is not None
    deck.stops.disable(made.number)
    deck.run()
    assert deck.status == "finished" and deck.stopped is None


# Going back


def test_back_takes_tasks_back_and_the_page_forgets_them(page: Page) -> None:
    model = Branches()
    deck = opened(page, model)
    planned = page.order
    deck.run()
    assert deck.status == "finished"
    before = {id(parameter): parameter.grad for parameter in model.parameters()}
    assert all(each is not None for each in before.values())
    assert deck.back(6) == deck.graph.tasks[planned[-6]]
    assert deck.status == "stopped" and deck.position == len(planned) - 6 and deck.current_task == planned[-6]
    assert set(page.last["forgotten"]) >= set(planned[-6:])
    agree(page)
    deck.back(deck.position)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert set(page.document["records"]) == {str(planned[0])}
    agree(page)
    deck.run()
    assert page.order == planned
    assert all(map(torch.equal, gradients(model), expected_gradients()))


def test_what_the_page_knew_of_waiting_tasks_is_forgotten_too(page: Page) -> None:
    deck = opened(page)
    deck.step(count=6)
    waiting = [each.task.id for each in deck.ready]
    for task in waiting:
        page.send(kind="inspect", task=task)
    settle(deck)
    assert {str(task) for task in waiting} <= set(page.document["records"])
    deck.back(4)
    ran = {str(task) for task in deck.order}
    assert set(page.document["records"]) == ran | {str(deck.current_task)}


def test_going_back_takes_the_policy_back(page: Page) -> None:
    deck = opened(page, policy="bfs")
    deck.step(count=3)
    deck.switch("dfs")
    deck.step(count=3)
    deck.switch("heap")
    assert re.findall("heap|bfs|dfs", page.document["schedules"][0]["policy"]) == ["bfs", "dfs", "heap"]
    page.send(kind="rewind", position=5)
    settle(deck)
    assert deck.policy == "dfs"
    assert re.findall("heap|bfs|dfs", page.document["schedules"][0]["policy"]) == ["bfs", "dfs"]
    agree(page)
    deck.back(3)
    assert deck.policy == "bfs" and page.document["schedules"][0]["policy"] == "bfs"
    agree(page)
    deck.run()
    assert deck.order == page.order == list(ts.backward(forward(Branches()), policy="bfs").order)


def test_a_policy_that_is_defined_again_is_the_one_that_its_name_means(page: Page) -> None:
    deck = opened(page)
    reach = []
    for place in (0, -1):

        def mine(ready: Any, state: Any, place: int = place) -> Any:
            return ready[place]

        deck.switch(mine)
        reach.append(page.order)
        deck.switch("heap")
    deck.switch("mine")
    assert reach[0] != reach[1] == page.order


def test_goto_goes_back_and_on(page: Page) -> None:
    deck = opened(page)
    planned = page.order
    deck.breakpoints = [planned[4]]
    assert deck.goto(planned[7]) == deck.graph.tasks[planned[4]], "a breakpoint stops it on the way"
    assert deck.goto(planned[7]) == deck.graph.tasks[planned[7]]
    assert deck.goto(planned[2]) == deck.graph.tasks[planned[2]] and deck.position == 2
    agree(page)
    with raises(ValueError, "task", "branch="):
        deck.goto()
    with raises(ValueError, "branch", 7):
        deck.goto(branch=7)
    assert deck.position == 2


def test_the_news_says_what_history_holds(page: Page) -> None:
    deck = opened(page)
    deck.step(count=5)
    history = deck.history
    assert history is not None
    assert page.last["history"] == {
        "bytes": history.nbytes,
        "gradient_bytes": history.gradient_bytes,
        "saved_bytes": history.saved_bytes,
        "reach": 0,
    }
    assert history.gradient_bytes > 0
    deck.run()
    deck.back(15)
    deck.zero()
    deck.step(count=15)
    left = sum(branch.gradient_bytes for branch in deck.branches)
    assert left > 0 and page.last["history"]["gradient_bytes"] == history.gradient_bytes + left
    deck.close()
    assert deck.history is None and page.last["history"] is None


def test_without_a_history_nothing_goes_back(page: Page, snapshot: Snapshots) -> None:
    deck = opened(page, history=False)
    deck.step(count=2)
    with raises(RuntimeError, "history") as raised:
        deck.back()
    snapshot("deck", raised.value)
    assert page.last["history"] is None and deck.position == 2
    assert len(deck.branches) == 0


def test_pytorchs_engine_takes_nothing_back_and_says_so(page: Page, snapshot: Snapshots) -> None:
    deck = opened(page, engine="native")
    deck.step(count=3)
    verbs: list[Callable[[], object]] = [deck.back, deck.restore, deck.compare_branches, lambda: deck.goto(branch=1)]
    for verb in verbs:
        with raises(NotImplementedError, "PyTorch's", 'engine="direct"') as raised:
            verb()
        snapshot("deck", raised.value)
    page.send(kind="rewind", position=1)
    settle(deck)
    says(page.last["trouble"], "PyTorch's", 'engine="direct"')
    assert deck.position == 3 and deck.status == "stopped"
    assert deck.goto(page.order[6]) == deck.graph.tasks[page.order[6]], "on it can go"
    with raises(NotImplementedError, "history") as raised:
        ts.debug(forward(Branches()), engine="native", history=True)
    snapshot("deck", raised.value)


def test_a_page_that_opened_before_hears_what_was_taken_back(page: Page) -> None:
    deck = opened(page)
    deck.run()
    late = {**page.document, "records": dict(page.document["records"])}
    deck.back(8)
    page.send(kind="hello", revision=late["revision"])
    for task in page.last["forgotten"]:
        late["records"].pop(str(task), None)
    assert late["records"] | page.last["records"] == page.document["records"]


def test_files_and_pictures_are_of_where_it_stands(page: Page, tmp_path: Path) -> None:
    deck = opened(page)
    deck.run()
    deck.back(5)
    count = len(page.order)
    says(repr(deck), f"{count - 5} of {count}", "stopped")
    moment = deck.moment()
    assert (moment.ran, moment.of) == (count - 5, count)
    assert ts.load(deck.save_trace(tmp_path / "run.tape.json")).order == tuple(deck.order)
    assert deck.save_html(tmp_path / "run.html").stat().st_size > 10_000


# Branches


def test_what_is_done_differently_is_a_branch_and_the_old_one_a_schedule(page: Page) -> None:
    model = Branches()
    deck = opened(page, model)
    planned = page.order
    footprints = deck._live.foresight.footprints
    assert footprints is not None
    deck.step(count=6)
    deck.back(3)
    assert not [each for each in page.document["schedules"] if "branch" in each["policy"]], "nothing differs yet"
    deck.zero()
    deck.step(deck.ready[-1])
    assert [(row["number"], row["current"], row["ran"]) for row in page.last["branches"]] == [
        (1, False, 6),
        (2, True, 4),
    ]
    assert page.last["branches"][1]["parent"] == 1 and page.last["branches"][1]["forked_at"] == 3
    assert page.last["branches"][1]["edits"] == 1
    assert unpacked(deck.packed())["branches"] == page.last["branches"], "a saved page has them, too"
    kept = page.document["schedules"][-1]
    assert (kept["policy"], kept["title"]) == ("branch 1", deck.branches[0].describe())
    assert kept["order"] == planned, "what ran, and what its policy would have run"
    assert kept["memory"]["events"] == list(simulate(footprints.graph, planned, footprints).events)
    agree(page)
    deck.run()
    assert not all(map(torch.equal, gradients(model), expected_gradients()))

    page.send(kind="branch", number=1)
    settle(deck)
    assert deck.order == planned[:6] and deck.status == "stopped"
    assert [row["current"] for row in page.last["branches"]] == [True, False]
    assert page.document["schedules"][-1]["policy"] == "branch 2"
    agree(page)
    deck.run()
    assert all(map(torch.equal, gradients(model), expected_gradients()))


def test_branches_that_differ_in_an_edit_alone_are_told_apart(page: Page) -> None:
    deck = opened(page)
    deck.run()
    last = str(deck.order[-1])
    first = page.document["records"][last]
    deck.back(deck.position)
    deck.scale(2)
    deck.run()
    second = page.document["records"][last]
    assert deck.branches[0].order == deck.branches[1].order
    assert second["inputs"][0]["norm"] == pytest.approx(2 * first["inputs"][0]["norm"], rel=1e-4)
    deck.goto(branch=1)
    assert page.document["records"][last]["inputs"] == first["inputs"]
    assert [row["current"] for row in page.last["branches"]] == [True, False]
    agree(page)


def test_branches_are_compared_in_order_gradients_and_predicted_memory(page: Page, snapshot: Snapshots) -> None:
    deck = opened(page, policy="bfs")
    deck.run()
    bfs = deck.order
    deck.back(len(bfs) - 2)
    deck.switch("dfs")
    deck.run()
    compared = deck.compare_branches()
    assert [row.branch.number for row in compared.rows] == [1, 2]
    expected = {each["policy"]: each["memory"]["peak"] for each in page.document["schedules"]}
    assert expected.keys() >= {"branch 1"}
    predicted = deck.compare(["bfs"]).timelines["bfs"].peak_bytes
    assert compared.rows[0].peak_bytes == predicted
    assert compared.current.branch.number == 2
    assert "<table" in compared._repr_html_() and deck.branches._repr_html_().count("<tr>") == 3
    assert [row.split()[0] for row in repr(deck.branches).splitlines()[1:]] == ["1", "2"]
    snapshot("deck", repr(deck.branches))


# Edits


@pytest.mark.parametrize("engine", ENGINES)
def test_edits_of_the_page_change_the_gradients_and_what_it_shows(page: Page, engine: Engine) -> None:
    deck = opened(page, engine=engine)
    deck.step(count=2)
    (before,) = (each.clone() for each in deck.gradients if each is not None)

    def told(edited: bool = True) -> float:
        settle(deck)
        record = page.document["records"][str(deck.current_task)]
        assert record.get("edited", False) is edited
        (found,) = (each for each in record["inputs"] if each is not None)
        return found["norm"]

    assert told(edited=False) == pytest.approx(before.norm().item(), rel=1e-4)

    page.send(kind="edit", how="scale", value=3)
    assert told() == pytest.approx(3 * before.norm().item(), rel=1e-4)
    assert torch.equal(deck.gradients[0], 3 * before)
    page.send(kind="edit", how="clip", value=0.5)
    assert told() == pytest.approx(0.5, rel=1e-4)
    page.send(kind="edit", how="zero", value=None)
    assert told() == 0.0
    if engine == "direct":
        page.send(kind="edit", how="restore", value=None)
        assert told(edited=False) == pytest.approx(before.norm().item(), rel=1e-4)
        assert torch.equal(deck.gradients[0], before)
    else:
        deck.step()
        assert deck.trace is not None and deck.trace.of(deck.order[-1]).edits
        assert page.document["records"][str(deck.order[-1])]["edited"] is True


# Wrong messages from the page


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("message", "facts"),
    [
        ({"kind": "break", "where": "dwon"}, ["dwon", "down"]),
        ({"kind": "break", "where": "  "}, ["break"]),
        ({"kind": "break", "where": "#999"}, [999]),
        ({"kind": "break", "where": "<img src=x onerror=alert(1)>"}, ["<img src=x onerror=alert(1)>"]),
        ({"kind": "watch", "condition": "nana"}, ["nana", "nan"]),
        ({"kind": "watch", "condition": ""}, ["watch"]),
        ({"kind": "watch", "condition": "nan at dwon"}, ["dwon"]),
        ({"kind": "enable", "number": 99, "on": True}, [99]),
        ({"kind": "delete", "number": 99}, [99]),
        ({"kind": "edit", "how": "scale", "value": "a lot"}, ["scale", "'a lot'"]),
        ({"kind": "edit", "how": "clip", "value": None}, ["clip", None]),
        ({"kind": "edit", "how": "clip", "value": -1}, [0, -1]),
        ({"kind": "edit", "how": "double", "value": 2}, ["'double'"]),
        ({"kind": "rewind", "position": 99}, [99]),
        ({"kind": "rewind", "position": -1}, [-1]),
        ({"kind": "check", "task": 999}, [999]),
        ({"kind": "inspect", "task": 999}, [999]),
    ],
    ids=lambda value: str(list(value.values())[:2]) if isinstance(value, dict) else "",
)
def test_what_can_not_be_done_is_told_and_ends_nothing(
    page: Page, engine: Engine, message: dict[str, Any], facts: list[object], snapshot: Snapshots
) -> None:
    model = Branches()
    deck = opened(page, model, engine=engine)
    deck.step()
    page.send(**message)
    settle(deck)
    says(page.last["trouble"], *facts)
    if engine == "direct":
        snapshot("deck", page.last["trouble"])
    assert deck.status == "stopped" and len(deck.stops) == 0
    assert page.heard == 1
    deck.step()
    assert page.last["trouble"] == ""
    deck.run()
    assert all(map(torch.equal, gradients(model), expected_gradients()))


def test_what_the_page_types_is_never_evaluated(page: Page, tmp_path: Path) -> None:
    deck = opened(page)
    proof = tmp_path / "ran"
    for text in (f"down if open({str(proof)!r}, 'w')", f"if open({str(proof)!r}, 'w')"):
        page.send(kind="break", where=text)
        page.send(kind="watch", condition=text)
    settle(deck)
    deck.run()
    assert not proof.exists() and deck.status == "finished"


# The end


def always(task: object, gradients: object) -> bool:
    return True


class Token:
    """Lives as long as the node in whose metadata it is: nodes themselves take no weak references."""


@pytest.mark.parametrize("when", ["stopped", "back", "forked", "running"])
def test_closing_leaves_nothing_of_the_graph(page: Page, when: str) -> None:
    loss = forward(Branches())
    begun, go_on = held_in_first_task(loss)
    deck = deck_on(loss)
    page.open(deck)
    token = Token()
    loss.grad_fn.next_functions[0][0].metadata["token"] = token
    node = ref(token)
    del token
    deck.break_at("down", when=always)
    deck.watch("nan", "norm>1e9")
    if when == "running":
        page.send(kind="run")
        assert begun.wait(30)
    else:
        go_on.set()
        deck.run()
        gradient = ref(deck.gradients[0])
        if when != "stopped":
            deck.run()
            deck.back(4)
        if when == "forked":
            deck.zero()
            deck.run()
    closing = threading.Thread(target=deck.close)
    closing.start()
    go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    del loss
    gc.collect()
    assert node() is None
    assert when == "running" or gradient() is None
    breakpoint_, watchpoint = (each.text for each in deck.stops)  # of a session that is over
    says(breakpoint_, "down", "always")
    assert watchpoint == "nan, norm>1e9"
    assert deck.branches._repr_html_() and deck.history is None


def test_observers_can_look_and_make_breakpoints_but_not_run(page: Page) -> None:
    deck = opened(page)
    planned, raised = page.order, []

    def observe(change: Any) -> None:
        if change["new"] == 2:
            deck.break_at(planned[5])
            deck.breakpoints = [*deck.breakpoints, planned[7]]
            raised.append(repr(deck.stops))
            for verb in (deck.back, deck.step_over, deck.zero, lambda: deck.goto(0)):
                with raises(RuntimeError, "thread", "hook", "deck.stop()"):
                    verb()

    deck.observe(observe, "position")
    deck.step(count=2)
    assert len(raised) == 1
    deck.run()
    assert deck.position == 5
    deck.run()
    assert deck.position == 7


def test_a_table_of_stops_escapes_what_was_typed(page: Page, snapshot: Snapshots) -> None:
    deck = opened(page)

    def evil(task: object, gradients: object) -> bool:
        return False

    evil.__name__ = "<script>alert(1)</script>"
    deck.break_at(evil)
    assert "<script>alert" not in deck.stops._repr_html_() and "&lt;script&gt;" in deck.stops._repr_html_()
    assert "<script>alert(1)</script>" in repr(deck.stops)
    deck.stops.delete(1)
    assert len(deck.stops) == 0
    snapshot("deck", f"{deck.stops!r}\n{deck.stops._repr_html_().rpartition('</style>')[2]}")
