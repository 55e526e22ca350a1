"""A live session besides running: predicted memory, the plan, and graphs of a hundred thousand tasks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, raises, says
from tapescope.widgets.deck import live_predictions as foresight
from tapescope.widgets.deck.deck import Deck
from tapescope.widgets.deck.page_data import packed

from ..models import ENGINES, Branches, deck_on, expected_gradients, forward, gradients
from ..page_side import Page, listening, settle, unpacked


def test_memory_is_predicted_before_anything_runs_and_equals_a_simulation(page: Page) -> None:
    loss = forward(Branches())
    graph = ts.graph(loss)
    footprints = dry_run(graph)
    page.open(deck_on(loss))
    assert page.deck is not None
    page.send(kind="step", count=1)
    settle(page.deck)
    for content in page.document["schedules"]:
        expected = simulate(graph, content["policy"], footprints)
        assert content["order"] == list(expected.order)
        assert content["memory"]["events"] == list(expected.events)
        assert content["memory"]["nbytes"] == list(expected.nbytes)
        assert content["memory"]["estimates"] == []
        assert content["memory_note"] == ""
    assert page.deck.position == 1
    found = page.deck.compare(["bfs", "heap"])
    assert {name: each.peak_bytes for name, each in found.timelines.items()} == {
        name: simulate(graph, name, footprints).peak_bytes for name in ("bfs", "heap")
    }


def test_run_says_that_it_stopped_at_a_breakpoint_set_in_the_deck() -> None:
    deck = deck_on(forward(Branches()))
    place = 5
    deck.breakpoints = [deck.planned[place]]
    run = deck.run()
    assert len(run.order) == place and run.stopped == deck.why_stopped
    says(repr(run), "stopped", "breakpoint 1")
    assert deck.run().stopped == ""


def test_memory_is_predicted_under_the_rule_by_which_the_session_sums(page: Page) -> None:
    _, make_loss = workload("rnn").build(steps=6)
    loss = make_loss()
    expected = simulate(ts.graph(loss), "heap", accumulate="list", release="never")
    page.open(Deck(ts.debug(loss, accumulate="list", release="never"), policy="heap"))
    content = page.document["schedules"][0]["memory"]
    assert content["nbytes"] == list(expected.nbytes) and content["events"] == list(expected.events)
    assert page.deck is not None
    assert page.deck.compare(["heap"]).timelines["heap"].peak_bytes == expected.peak_bytes
    assert expected.peak_bytes > 2 * simulate(ts.graph(loss)).peak_bytes


def test_a_prediction_changes_nothing_of_the_users() -> None:
    calls: list[str] = []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            calls.append(type(gradient).__name__)
            return gradient * 2

    model = Branches()
    loss = Seen.apply(forward(model))
    loss.grad_fn.register_prehook(lambda gradients: calls.append("hook"))
    state = torch.random.get_rng_state()
    deck = deck_on(loss)
    deck.predict_memory()
    assert "hook" not in calls and set(calls) <= {"FakeTensor"}
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    deck.run()
    assert calls[-2:] == ["hook", "Tensor"]
    assert all(map(torch.equal, gradients(model), [2 * each for each in expected_gradients()]))
    deck.close()


def test_a_node_that_can_not_be_asked_breaks_nothing(page: Page) -> None:
    class Untouchable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            if type(gradient) is not Tensor:
                raise SystemExit("no fakes")
            return gradient

    model = Branches()
    deck = deck_on(Untouchable.apply(forward(model)))
    page.open(deck)
    settle(page.deck)
    known = [each["memory"] for each in page.document["schedules"]]
    notes = {each["memory_note"] for each in page.document["schedules"]}
    assert all(known) or (known == [None] * 3 and all("SystemExit" in note for note in notes))
    deck.run()
    assert all(map(torch.equal, gradients(model), expected_gradients()))


def test_a_dry_run_that_fails_is_told_and_breaks_nothing(
    page: Page, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
) -> None:
    def fail(graph: object) -> None:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(foresight, "dry_run", fail)
    deck = deck_on(forward(Branches()))
    page.open(deck)
    settle(page.deck)
    notes = {each["memory_note"] for each in page.document["schedules"]}
    (note,) = notes
    says(note, "ZeroDivisionError: no luck")
    snapshot("deck", note)
    with raises(ValueError, note):
        deck.compare(["bfs"])
    with pytest.raises(ZeroDivisionError):
        deck.predict_memory()
    deck.run()
    assert deck.status == "finished"


def test_a_simulation_that_fails_is_told_and_breaks_nothing(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **more: object) -> None:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(foresight, "simulate", fail)
    deck = deck_on(forward(Branches()))
    page.open(deck)
    settle(page.deck)
    (note,) = {each["memory_note"] for each in page.document["schedules"]}
    says(note, "ZeroDivisionError: no luck")
    deck.switch("bfs")
    deck.run()
    assert deck.status == "finished"


def test_after_a_step_memory_can_not_be_predicted_any_more(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
) -> None:
    monkeypatch.setattr(foresight, "_MOST_UNASKED", 0)
    with deck_on(forward(Branches())) as deck:
        deck.step()
        with raises(ValueError) as raised:
            deck.predict_memory()
    snapshot("deck", raised.value)


def test_memory_that_was_predicted_stays_known(page: Page, snapshot: Snapshots) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    deck.step()
    told = len(page.told)
    deck.predict_memory()
    assert len(page.told) == told
    with raises(ValueError, "compare") as raised:
        deck.compare([])
    snapshot("deck", raised.value)
    with raises(ValueError, "policy", "'no'"):
        deck.compare(["no"])
    assert deck.compare(["bfs"]).rows[0].peak_bytes > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_create_graph_is_not_predicted_and_says_why(page: Page, engine: Any, snapshot: Snapshots) -> None:
    model = Branches()
    deck = deck_on(forward(model), engine=engine, create_graph=True)
    page.open(deck)
    settle(page.deck)
    (note,) = {each["memory_note"] for each in page.document["schedules"]}
    says(note, "create_graph=True")
    if engine == "direct":
        snapshot("deck", note)
    deck.run()
    assert all(parameter.grad is not None and parameter.grad.requires_grad for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.grad = None  # breaks the cycle


def test_retain_graph_keeps_what_is_saved_in_the_prediction_too(page: Page) -> None:
    loss = forward(Branches())
    page.open(deck_on(loss, retain_graph=True))
    settle(page.deck)
    memory = page.document["schedules"][0]["memory"]
    expected = simulate(ts.graph(loss), "heap", retain_graph=True)
    assert memory["events"] == list(expected.events)
    assert page.deck is not None
    page.deck.run()
    loss.backward()  # all is still there


def test_a_forward_under_autocast_runs_and_is_predicted(page: Page) -> None:
    model, plain = Branches(), Branches()
    with torch.autocast("cpu", torch.bfloat16):
        loss, expected = forward(model), forward(plain)
    expected.backward()
    deck = deck_on(loss)
    page.open(deck)
    settle(page.deck)
    assert all(each["memory"] for each in page.document["schedules"])
    deck.run()
    assert all(map(torch.equal, gradients(model), gradients(plain)))


def test_with_inputs_what_is_left_out_is_an_estimate(page: Page, snapshot: Snapshots) -> None:
    model = Branches()
    deck = deck_on(forward(model), inputs=[model.up.weight])
    page.open(deck)
    settle(page.deck)
    memory = page.document["schedules"][0]["memory"]
    assert len(memory["starts"]) == len(page.order) + 1
    snapshot("deck", "\n".join(memory["estimates"]))


def test_only_what_changed_is_sent(page: Page) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    settle(page.deck)
    before = len(page.told)
    deck.step()
    assert [(each["live"], each["others"]) for each in page.told[before:]] == [(None, None)]
    while len(deck.ready) < 2:
        deck.step()
    deck.step(deck.ready[-1])
    assert page.last["live"] is not None and page.last["others"] is None


def chain(length: int) -> Tensor:
    y = torch.ones(4, requires_grad=True)
    with ts.capture():
        for _ in range(length):
            y = y.sin()
        return y.sum()


def test_a_large_graph_opens_with_its_own_schedule_and_gets_the_others_later(page: Page, snapshot: Snapshots) -> None:
    loss = chain(foresight._MOST_UNASKED)
    first: list[int] = []
    deck = deck_on(loss)
    first.append(len(deck._live.document.content["schedules"]))
    page.open(deck)
    settle(page.deck)
    assert page.told[0]["live"] is None and len(page.told[0]["others"]) == 2
    assert [each["policy"] for each in page.document["schedules"]] == ["heap", "bfs", "dfs"]
    assert page.document["schedules"][0]["memory"] is None
    note = page.document["schedules"][0]["memory_note"]
    says(note, "5,002 tasks", "deck.predict_memory()", "%tapescope predict")
    snapshot("deck", note)
    with raises(ValueError, "5,002 tasks"):
        deck.compare(["bfs"])
    deck.predict_memory()
    assert all(each["memory"] for each in page.document["schedules"])


def test_the_document_of_a_large_graph_is_small() -> None:
    with Deck(ts.debug(chain(20_000), trace="full")) as deck:
        data = deck.packed()
    assert len(unpacked(data)["tasks"]["name"]) == 20_002
    assert len(data) < 2e6, "10 MB for five times as many"


def test_news_is_json_whatever_a_gradient_is() -> None:
    model = Branches()
    loss = forward(model) * torch.tensor(float("nan"))
    with listening() as page:
        deck = deck_on(loss)
        page.open(deck)
        deck.run()
        first = page.document["records"][str(deck.order[1])]["outputs"][0]
        assert first["nan"] > 0 and first["max"] is None
        unpacked(packed({"records": page.document["records"]}))
        deck.close()
