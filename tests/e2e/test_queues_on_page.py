"""The ready queues on the page: one, with what runs then; and one for each device, with what each waits for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

import tapescope as ts
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots
from tapescope.widgets.deck.page_data import Document, schedule_content

from .posed import PosedDeck
from .shown import ShownDeck
from .tab import Tab

pytestmark = pytest.mark.e2e


def on_two_devices() -> ts.Graph:
    """PR #4746's (**), read as if the far chain had been on a GPU."""
    with ts.capture():
        loss = workload("two_devices").build(near_layers=4, far_layers=3)[1]()
    graph = ts.graph(loss)

    def moved(task: ts.Task) -> ts.Task:
        far = (task.parameter or graph.module(task) or "").startswith("far")
        inputs = tuple(replace(meta, device=torch.device("cuda:0")) for meta in task.inputs) if far else task.inputs
        return replace(task, inputs=inputs)

    return replace(graph, tasks=tuple(map(moved, graph.tasks)), nodes=())


def document_of(graph: ts.Graph, queues: str, position: int) -> Document:
    document = Document(graph, "two devices", "direct")
    document.content["queues"] = queues
    document.content["position"] = position
    for policy in ("heap", "bfs"):
        order = schedule(graph, policy, queues=queues)
        document.content["schedules"].append(schedule_content(graph, ts.orders.POLICIES[policy], order))
    return document


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab.open(viewport={"width": 1420, "height": 900})


def posed(page: Page, path: Path, queues: str, position: int = 12, live: bool = True) -> tuple[PosedDeck, ts.Graph]:
    graph = on_two_devices()
    document = document_of(graph, queues, position)
    return PosedDeck(page, path / "posed.html", document.packed(), document.metas, is_live=live), graph


def queue_of(deck: PosedDeck, device: str) -> Locator:
    return deck.root.locator(f".queue [data-device='{device}']")


def test_a_device_without_work_says_until_when_and_who_holds_it_up(
    page: Page, tmp_path: Path, snapshot: Snapshots
) -> None:
    deck, graph = posed(page, tmp_path, "per device")
    order = schedule(graph, "heap", queues="per device")
    first = next(place for place, task in enumerate(order) if str(graph.tasks[task].device) == "cuda:0")
    far = queue_of(deck, "cuda:0")
    still = far.locator(".still")
    expect(still).to_contain_text(f"{first + 1}th, {graph.tasks[order[first]].short_name}")
    near = queue_of(deck, "cpu")
    expect(near.locator(".now:not(.still)")).to_contain_text("13th")
    expect(near.locator(".why")).to_contain_text(re.compile(r"\bToCopy\b.*\bcuda:0\b"))
    snapshot("page", f"{still.inner_text()}\n{near.locator('.why').inner_text()}")
    copy = near.locator("li", has_text="ToCopy")
    expect(copy.locator(".k")).to_have_text(f"{first}th")
    expect(deck.root.locator(".queue .head .sub")).to_contain_text("cuda:0 0")


def test_under_bfs_both_devices_have_work_at_once(page: Page, tmp_path: Path) -> None:
    deck, graph = posed(page, tmp_path, "per device")
    deck.key("2")
    expect(deck.root).to_have_attribute("data-policy", "bfs")
    order = schedule(graph, "bfs", queues="per device")
    devices = [str(graph.tasks[task].device) for task in order[:12]]
    expect(queue_of(deck, "cuda:0").locator(".sub")).to_contain_text(f"{devices.count('cuda:0')} of ")
    assert "cuda:0" in devices


def test_a_devices_own_queue_is_stepped_by_its_button_and_by_a_key_in_it(page: Page, tmp_path: Path) -> None:
    deck, _ = posed(page, tmp_path, "per device")
    asked = "() => window.sent.filter(each => each.kind === 'step')"
    near, far = queue_of(deck, "cpu"), queue_of(deck, "cuda:0")
    expect(far.get_by_role("button", name="step cuda:0")).to_be_disabled()
    near.get_by_role("button", name="step cpu").click()
    assert page.evaluate(asked) == [{"kind": "step", "device": "cpu"}]
    near.locator("li .row").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(asked) == [{"kind": "step", "device": "cpu"}] * 2


def test_in_a_saved_deck_the_button_shows_the_moment_after_its_next_task(page: Page, tmp_path: Path) -> None:
    deck, _ = posed(page, tmp_path, "per device", live=False)
    queue_of(deck, "cpu").get_by_role("button", name="step cpu").click()
    expect(deck.root).to_have_attribute("data-t", "13")


def test_where_there_is_no_room_for_both_tabs_show_the_queues_or_the_task(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 1000, "height": 700})
    deck, _ = posed(page, tmp_path, "per device")
    inspector, queues = deck.root.locator(".insp"), queue_of(deck, "cpu")
    expect(queues).to_be_visible()
    expect(inspector).to_be_hidden()
    deck.root.get_by_role("tab", name="Task").click()
    expect(queues).to_be_hidden()
    expect(inspector).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(queues).to_be_visible()


def test_one_queue_says_what_waits_what_runs_when_and_what_comes_then(
    page: Page, tmp_path: Path, snapshot: Snapshots
) -> None:
    deck, graph = posed(page, tmp_path, "one", position=0, live=False)
    order = schedule(graph, "heap")
    assert deck.root.locator(".queue [data-device]").count() == 0
    while not (ready := deck.queue):
        deck.key("ArrowRight")
        deck.rests()
    position = int(deck.data("t"))
    headings = deck.root.locator(".qh, .then-head")
    expect(headings).to_have_count(2)
    snapshot("page", "\n".join(headings.all_inner_texts()))
    later = deck.root.locator(".queue [data-later]")
    assert later.count() == 14 - len(ready)
    shown = [int(each) for each in later.evaluate_all("all => all.map(row => row.dataset.later)")]
    assert shown == [task for task in order[position + 1 :] if task not in ready][: len(shown)]
    later.first.click()
    expect(deck.inspector).to_contain_text(graph.tasks[shown[0]].short_name)
    deck.key("End")
    expect(deck.root.locator(".why")).to_contain_text("empty")
    expect(deck.root.locator(".qh")).to_be_hidden()  # it would stand above nothing


WHOLE = """queue => {
    const { bottom } = queue.getBoundingClientRect();
    return [...queue.querySelectorAll('.then > *')].filter(each => each.getClientRects().length)
        .every(each => each.getBoundingClientRect().bottom <= bottom);
}"""


def test_what_comes_then_is_shown_in_whole_rows_(page: Page, tmp_path: Path) -> None:
    deck, graph = posed(page, tmp_path, "one", position=0)
    queue, grip = deck.root.locator(".queue"), deck.root.get_by_role("separator")
    later = queue.locator("[data-later]:visible")
    expect(queue.locator(".qh")).to_be_visible()
    expect(queue.locator(".then-head")).to_have_count(0)  # the only ready task runs
    expect(later.first).to_contain_text(graph.tasks[schedule(graph, "heap")[1]].short_name)
    shown = {later.count()}
    for _ in range(8):
        grip.focus()
        page.keyboard.press("ArrowUp")
        deck.rests()
        # A ResizeObserver hides what does not fit, with the next frame: later than the layout that a script asks for.
        page.wait_for_function(WHOLE, arg=queue.element_handle())
        shown.add(later.count())
    assert len(shown) > 2, "as many as there is room for"


def test_of_three_devices_the_one_that_runs_is_brought_into_view(page: Page, tmp_path: Path) -> None:
    document = document_of(on_two_devices(), "per device", 12)
    names = document.content["devices"] = [*document.content["devices"], "cuda:1"]
    device = document.content["tasks"]["device"]
    last = document.content["schedules"][0]["order"][-1]
    device[last] = names.index("cuda:1")
    deck = PosedDeck(page, tmp_path / "posed.html", document.packed(), document.metas, is_live=False)
    panel, far = deck.root.locator(".queue"), queue_of(deck, "cuda:1")
    page.set_viewport_size({"width": 1250, "height": 800})
    panel.evaluate("panel => Object.assign(panel.style, {height: '200px', minHeight: 0, flex: 'none'})")
    deck.scrub(len(device) - 1)
    expect(far.locator(".now:not(.still)")).to_be_in_viewport()
    assert panel.evaluate("panel => panel.scrollTop > 0 && document.scrollingElement.scrollTop === 0")
    expect(panel.locator(".head .sub")).to_have_text("0 more ready")
    expect(far).to_have_class("queue-of runs")


def test_simulated_devices_play_task_by_task_with_a_queue_each(page: Page, tmp_path: Path) -> None:
    program = workload("two_devices")
    with ts.capture():
        loss = program.build(near_layers=4, far_layers=3)[1]()
    report = ts.makespan(loss, policies=["heap", "bfs"], device_of=program.device_of)
    page.goto(report.save_html(tmp_path / "devices.html").as_uri())
    deck = ShownDeck(page)
    assert [tab.get_attribute("data-policy") for tab in deck.tabs.all()] == ["heap", "bfs"]
    for policy in ("heap", "bfs"):
        deck.show_policy(policy)
        deck.key("Home")
        found = report[policy]
        for t, task in enumerate(found.order[:8]):
            deck.expect(t=t, running=task)
            running = deck.root.locator(f".queue [data-device='{found.device_of[task]}']")
            expect(running).to_have_class(re.compile(r"\bruns\b"))
            expect(running.locator(".now:not(.still)")).to_contain_text(re.compile("simulated"))
            for gradient in deck.inspector.locator(".gr.not").all():
                expect(gradient).to_contain_text(re.compile("simulation computes no values|no gradient needed"))
            expect(deck.inspector.locator(".gr.not").first).to_contain_text("simulation")
            deck.key("ArrowRight")
    busy = round(100 * report["bfs"].busy["cuda:0"])
    expect(deck.root.locator("[data-busy='cuda:0']")).to_have_text(f"busy {busy} %")
