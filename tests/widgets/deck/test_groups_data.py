"""Groups of products in the page's data: found before a task runs, or when the page asks for them."""

from __future__ import annotations

import re
from threading import Event

import pytest
from torch.autograd.graph import get_gradient_edge

import tapescope as ts
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, says
from tapescope.widgets.deck import live_predictions as foresight
from tapescope.widgets.deck.deck import Deck
from tapescope.widgets.deck.groups_data import group_content
from tapescope.widgets.deck.page_data import Document
from tapescope.widgets.deck.run_page_data import run_document

from ..models import deck_on
from ..page_side import Page, settle, unpacked


def captured(name: str, **knobs: int) -> ts.Graph:
    model, make_loss = workload(name).build(**knobs)
    with ts.capture(model):
        loss = make_loss()
    return ts.graph(get_gradient_edge(loss))  # it keeps the nodes after the loss is freed


def ensemble_deck() -> Deck:
    model, make_loss = workload("ensemble").build(members=16, batch=4, width=8)
    with ts.capture(model):
        loss = make_loss()
    return deck_on(loss)


def test_an_ensemble_has_an_outline_for_each_layer_forward_and_backward(snapshot: Snapshots) -> None:
    graph = captured("ensemble", members=16, batch=4, width=8)
    content = group_content(graph)
    for direction in ("backward", "forward"):
        says(content["said"][direction], direction, "4 groups", "64 of 64")
        snapshot("deck", content["said"][direction])
        found = [group for group in content["found"] if group["direction"] == direction]
        assert [len(group["tasks"]) for group in found] == [16] * 4
        assert {group["where"] for group in found} == {f"members.*.{layer}" for layer in (0, 2, 4, 6)}
    assert content["refused"] == []
    for group, found in zip(content["found"], ts.find_batches(graph), strict=True):
        assert (group["tasks"], group["title"]) == (list(found.tasks), found.label)
        assert group["launches"] == [found.launches_before, found.launches_after]
        assert group["copied"] == found.stacked_bytes


def test_what_is_refused_comes_with_its_reason(snapshot: Snapshots) -> None:
    content = group_content(captured("mixture_of_experts"))
    assert content["found"] == []
    (backward,) = [each for each in content["refused"] if each["direction"] == "backward"]
    says(backward["title"], 16, "addmm", "experts.each.*.*")
    assert len(backward["tasks"]) == 16
    snapshot("deck", backward["why"])


def test_of_a_tape_it_is_said_why_there_is_nothing_to_outline(snapshot: Snapshots) -> None:
    pytest.importorskip("autograd")
    content = group_content(ts.graph(ts.hips.tape(lambda x: x * x, 2.0)))
    assert (content["found"], content["refused"]) == ([], [])
    assert [*content["said"]] == ["backward"]
    says(content["said"]["backward"], "HIPS")
    snapshot("deck", content["said"]["backward"])


def test_without_a_capture_the_forward_is_said_to_be_unknown(snapshot: Snapshots) -> None:
    content = group_content(ts.graph(workload("ensemble").build(members=4, batch=4, width=8)[1]()))
    says(content["said"]["forward"], "ts.capture()")
    snapshot("deck", content["said"]["forward"])
    assert {group["direction"] for group in content["found"]} == {"backward"}


def test_a_deck_has_found_its_groups_before_their_factors_are_gone(page: Page) -> None:
    deck = ensemble_deck()
    page.open(deck)
    expected = page.document["groups"]
    assert [len(group["tasks"]) for group in expected["found"]] == [16] * 8
    deck.run()
    assert unpacked(deck.packed())["groups"] == expected


def test_of_a_large_graph_groups_are_looked_for_when_the_page_asks(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "_MOST_UNASKED", 0)
    deck = ensemble_deck()
    page.open(deck)
    assert page.document["groups"] is None
    page.send(kind="groups")
    settle(deck)
    assert len(page.document["groups"]["found"]) == 8
    told = len(page.told)
    page.send(kind="groups")
    settle(deck)
    assert len(page.told) == told, "they are known"
    page.send(kind="hello", revision=-1)
    assert page.last["groups"] == page.document["groups"]


def test_where_they_cannot_be_told_the_page_hears_why(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "_MOST_UNASKED", 0)
    deck = ensemble_deck()
    page.open(deck)
    monkeypatch.setattr("tapescope.widgets.deck.live_session.group_content", fails)
    page.send(kind="groups")
    settle(deck)
    assert "no factors here" in page.last["trouble"]
    says(page.document["groups"]["said"]["backward"], "no factors here")
    deck.step()
    assert deck.position == 1


@pytest.mark.parametrize("asks", ["after the close", "before the close", "never"])
def test_a_closed_deck_of_a_large_graph_says_why_it_has_no_groups(
    page: Page, monkeypatch: pytest.MonkeyPatch, asks: str, snapshot: Snapshots
) -> None:
    monkeypatch.setattr(foresight, "_MOST_UNASKED", 0)
    deck = ensemble_deck()
    page.open(deck)
    settle(deck)
    live = deck._live
    if asks == "before the close":  # which drops what has not begun
        entered, leave = Event(), Event()
        live.driver.do(lambda: entered.set() or leave.wait(30))
        assert entered.wait(30)
        page.send(kind="groups")
        closing = live.close(lambda: None)
        leave.set()
        closing.result(30)
    else:
        live.close(lambda: None).result(30)
    if asks == "after the close":
        page.send(kind="groups")
        settle(deck)
    groups = page.document["groups"]
    assert groups["found"] == groups["refused"] == []
    says(groups["said"]["backward"], "closed")
    if asks == "never":
        snapshot("deck", groups["said"]["backward"])
    assert page.last["status"] == "closed"


def test_a_deck_that_failed_says_why_it_has_no_groups(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "_MOST_UNASKED", 0)
    deck = ensemble_deck()
    page.open(deck)
    settle(deck)
    monkeypatch.setattr("tapescope.engine.session.direct_engine.DirectBackward.execute", fails)
    with pytest.raises(ValueError, match="no factors here"):
        deck.step()
    page.send(kind="groups")
    settle(deck)
    assert page.last["status"] == "failed"
    says(page.document["groups"]["said"]["backward"], "ValueError")


def fails(*given: object, **options: object) -> None:
    raise ValueError("no factors here")


def test_what_ran_as_one_is_outlined_as_it_runs(page: Page, snapshot: Snapshots) -> None:
    model, make_loss = workload("ensemble").build(members=4, batch=4, width=8)
    with ts.capture(model):
        loss = make_loss()
    deck = Deck(ts.debug(loss, batch="auto", trace="cheap"))
    page.open(deck)
    assert "ran" not in page.document["groups"]["said"]
    while not page.document["groups"]["said"].get("ran"):
        deck.step()
    assert [group["direction"] for group in page.document["groups"]["found"]].count("ran") == 1
    deck.run()
    assert deck.trace is not None
    batches = deck.trace.batches
    ran = [group for group in page.document["groups"]["found"] if group["direction"] == "ran"]
    assert [group["tasks"] for group in ran] == [list(batch.tasks) for batch in batches]
    assert len(ran) == 4
    says(ran[0]["title"], 4, "addmm", "bmm")
    says(page.document["groups"]["said"]["ran"], "launches")
    snapshot("deck", ran[0]["title"])
    snapshot("deck", page.document["groups"]["said"]["ran"])
    assert len(page.document["groups"]["found"]) == 8, "those of the forward would save no launch"


def test_what_could_not_run_as_one_is_said_with_the_reason(page: Page, snapshot: Snapshots) -> None:
    deck = Deck(ts.debug(workload("ensemble").build(members=4, batch=4, width=8)[1](), batch="auto", history=True))
    page.open(deck)
    deck.run()
    content = page.document["groups"]
    by_itself = [each for each in content["refused"] if each["direction"] == "ran"]
    assert len(by_itself) == 4
    says(by_itself[0]["why"], "history", "AddmmBackward0")
    assert re.search(r"#\d+", by_itself[0]["why"])
    snapshot("deck", f"{by_itself[0]['why']}\n{content['said']['ran']}")


def test_a_run_says_what_ran_as_one_and_what_did_not() -> None:
    model, make_loss = workload("ensemble").build(members=4, batch=4, width=8)
    with ts.capture(model):
        loss = make_loss()
    run = ts.backward(loss, engine="direct", batch="auto")
    content = unpacked(run_document(run).packed())["groups"]
    assert run.batches is not None
    assert [group["tasks"] for group in content["found"]] == [list(batch.tasks) for batch in run.batches]
    assert list(content["said"]) == ["ran"]
    assert unpacked(run_document(ts.backward(make_loss())).packed())["groups"] is None


def test_a_document_alone_has_none() -> None:
    graph = captured("ensemble", members=4, batch=4, width=8)
    assert unpacked(Document(graph, "t", "direct").packed())["groups"] is None
