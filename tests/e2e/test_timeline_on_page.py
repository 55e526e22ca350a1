"""The timeline of a saved page: one axis for phases, devices, memory and lifetimes; the deck's grid around it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.planning.simulate import schedule, simulate
from tapescope.engine.recording.run import Run
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text.sizes_and_counts import nth
from tapescope.tests.says import Snapshots, says, says_none_of
from tapescope.widgets.deck.page_data import Document, schedule_content
from tapescope.widgets.deck.run_page_data import run_document
from tapescope.widgets.deck.save_deck import save_page

from .shown import ShownDeck

pytestmark = pytest.mark.e2e

STILL = "stands still 1.20 ms: ToCopy waits behind 96 tasks of cpu"


@dataclass(frozen=True, slots=True)
class Played:
    run: Run
    path: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    torch.manual_seed(0)
    run = ts.profile(workload("gpt2").build(layers=3)[1], trace="cheap")
    return Played(run, run.save_html(tmp_path_factory.mktemp("timeline") / "run.html"))


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Change the document as if a part had run on another device, which was idle at first."""
    run = ts.profile(workload("two_devices").build()[1])
    document = run_document(run)
    content = document.content
    content["devices"] = ["cpu", "cuda:0"]
    order = content["schedules"][0]["order"]
    later = {task for task in order[len(order) // 2 :] if run.graph.module(run.graph.tasks[task])}
    content["tasks"]["device"] = [int(task in later) for task in range(len(run.graph))]
    clock = content["schedules"][0]["clock"]
    clock["still"] = [{"device": 1, "from": 0, "to": clock["start"][len(order) // 2], "text": STILL}]
    return save_page(document.packed(), tmp_path_factory.mktemp("two") / "two.html", "two")


@pytest.fixture(scope="module")
def on_five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Change the document as if each part had run on a separate device."""
    run = ts.profile(workload("gpt2").build(layers=4)[1])
    content = (document := run_document(run)).content
    content["devices"] = ["cpu", *(f"cuda:{number}" for number in range(4))]
    content["queues"] = "per device"
    paths = [run.graph.module(task) or "" for task in run.graph.tasks]
    found = [re.match(r"h\.(\d)", path) for path in paths]
    content["tasks"]["device"] = [0 if each is None else int(each[1]) + 1 for each in found]
    return save_page(document.packed(), tmp_path_factory.mktemp("five") / "five.html", "five")


def opened(page: Page, path: Path, width: int = 1420, height: int = 900) -> ShownDeck:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(path.as_uri())
    deck = ShownDeck(page)
    deck.settles(lambda deck: deck.canvas_is_drawn(".time .still canvas"), True)
    return deck


def box(deck: ShownDeck, selector: str) -> dict[str, float]:
    deck.rests()  # what is drawn anew has other elements
    found = deck.root.locator(selector).first.bounding_box()
    assert found is not None, selector
    return dict(found)


def hover(deck: ShownDeck, phase: str, share: float) -> None:
    """Over this share of a phase, in the middle of the timeline."""
    bar, time = box(deck, f"[data-phase={phase}]"), box(deck, ".time")
    deck.root.page.mouse.move(bar["x"] + share * bar["width"], time["y"] + time["height"] / 2)


def widths(deck: ShownDeck) -> dict[str, float]:
    found: dict[str, float] = deck.evaluate(
        "deck => Object.fromEntries([...deck.querySelectorAll('[data-phase]')]"
        ".map(each => [each.dataset.phase, each.getBoundingClientRect().width]))"
    )
    return found


def test_phases_and_devices_are_text_and_the_page_opens_at_the_backwards_first_task(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    deck.expect(t=0, running=played.run.order[0])
    expect(deck.root.locator("[data-phase=forward]")).to_have_text(re.compile(r"^forward [\d.]+ (µs|ms|s)$"))
    expect(deck.root.locator("[data-phase=backward]")).to_have_text(re.compile(r"^backward [\d.]+ (µs|ms|s)$"))
    expect(deck.root.locator("[data-phase]")).to_have_count(2)  # no optimizer was recorded
    longest = played.run.longest_queue
    expect(deck.root.locator("[data-device=cpu]")).to_have_text(f"cpuqueue, longest {longest}")
    expect(deck.root.locator("[data-busy=cpu]")).to_have_text(re.compile(r"^busy \d+ %$"))
    found = widths(deck)
    assert found["forward"] / sum(found.values()) == pytest.approx(0.2, abs=0.01)
    deck.show_policy("bfs")  # simulated: the backward's time and the device's share are of the measured order
    expect(deck.root.locator("[data-phase=backward]")).to_have_text("backward")
    expect(deck.root.locator("[data-phase=forward]")).to_contain_text("s")
    expect(deck.root.locator("[data-busy]")).to_have_count(0)


def test_memory_is_read_from_the_forwards_first_byte(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    timeline = played.run.timeline
    assert timeline is not None
    total = deck.root.locator(".memory .tot")
    expect(total).to_have_attribute("data-bytes", str(timeline.task_peaks[0]))
    forward = [str(level) for level in timeline.levels[: timeline.starts[0] + 1]]
    for share in (0.01, 0.3, 0.6, 0.99):
        hover(deck, "forward", share)
        expect(total).to_have_attribute("title", re.compile(r"\bforward$"))
        event = min(int(share * len(forward)), len(forward) - 1)
        assert total.get_attribute("data-bytes") in forward[max(0, event - 2) : event + 3]
        expect(deck.root.locator(".time .tip.on")).to_have_text(re.compile(r"^forward: .*\d [KM]?i?B\b"))
    hover(deck, "backward", 0.5)
    words = re.compile(r"\b(\d+)[a-z]{2} task")
    expect(total).to_have_attribute("title", words)
    place = int(words.search(total.get_attribute("title") or "")[1]) - 1  # type: ignore[index]
    expect(total).to_have_attribute("data-bytes", str(timeline.task_peaks[place]))
    task = played.run.graph.tasks[played.run.order[place]]
    expect(deck.root.locator(".time .tip.on")).to_contain_text(f"{nth(place + 1)} {task.name}")


def test_a_drag_scrubs_and_a_click_in_the_forward_goes_to_the_first_task(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    hover(deck, "backward", 0.25)
    page.mouse.down()
    hover(deck, "backward", 0.5)
    half = len(played.run.order) // 2
    deck.settles(lambda deck: abs(int(deck.data("t")) - half) <= 1, True)
    page.mouse.up()
    hover(deck, "backward", 0.9)
    assert abs(int(deck.data("t")) - half) <= 1
    hover(deck, "forward", 0.5)
    page.mouse.down()
    page.mouse.up()
    deck.expect(t=0)
    hover(deck, "backward", 0.999)
    page.mouse.down()
    page.mouse.up()
    deck.expect(t=len(played.run.order) - 1)


def shown_tasks(deck: ShownDeck) -> list[int]:
    deck.rests()
    return [int(each.get_attribute("data-task") or "") for each in deck.tasks.all()]


def test_a_finger_scrubs_the_timeline_and_taps_a_task_and_then_moves_the_graph(
    browser: Browser, played: Played
) -> None:
    page = browser.new_page(has_touch=True)
    touches = page.context.new_cdp_session(page)

    def drag(x: float, y: float, across: float) -> None:
        for kind, share in (("touchStart", 0.0), ("touchMove", 0.4), ("touchMove", 1.0), ("touchEnd", None)):
            points = [] if share is None else [{"x": x + share * across, "y": y}]
            touches.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def middle() -> tuple[float, float]:
        """Return the middle of the task that has just been reached."""
        entry.focus()
        ring = box(deck, ".graph .focused")
        return ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2

    deck = opened(page, played.path)
    bar, time = box(deck, "[data-phase=backward]"), box(deck, ".time")
    drag(bar["x"] + 9, time["y"] + time["height"] / 2, bar["width"] / 2)
    deck.settles(lambda deck: abs(int(deck.data("t")) - len(played.run.order) / 2) < 4, True)
    deck.unfold_all()
    task = shown_tasks(deck)[0]
    entry = deck.task(task)
    x, y = middle()
    page.touchscreen.tap(x, y)
    expect(deck.inspector).to_have_attribute("data-task", str(task))
    x, y = middle()
    page.touchscreen.tap(x, y)
    drag(x, y, 90)
    assert middle()[0] > x + 40
    page.close()


def test_the_peaks_sentence_is_a_button_that_leads_to_it(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    deck.root.get_by_role("button", name=re.compile(r"^peak [\d.]+ ")).click()
    deck.expect(t=played.run.timeline.peak_place)


def test_a_click_draws_no_focus_ring_and_a_changed_axis_leaves_no_tooltip(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    hover(deck, "backward", 0.5)
    tip = deck.root.locator(".time .tip")
    expect(tip).to_have_class(re.compile(r"\bon\b"))
    page.mouse.down()
    page.mouse.up()
    expect(deck.root.locator("input.position")).to_be_focused()
    assert not deck.root.locator("input.position").evaluate("each => each.matches(':focus-visible')")
    page.keyboard.press("c")
    expect(tip).not_to_have_class(re.compile(r"\bon\b"))


def test_what_has_run_is_not_called_a_prediction(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    says_none_of(deck.root.locator(".queue").inner_text(), "predicted")
    deck.show_policy("bfs")
    says(deck.root.locator(".queue").inner_text(), "then, as predicted")


def test_in_a_notebook_queue_task_source_and_histograms_are_visible_at_once(page: Page, tmp_path: Path) -> None:
    run = ts.profile(workload("gpt2").build(layers=3)[1], trace="full")
    deck = opened(page, run.save_html(tmp_path / "full.html"), width=970)
    deck.scrub(12)
    deck.rests()
    side = box(deck, ".side")
    assert side["y"] + side["height"] == pytest.approx(box(deck, ".time")["y"] + box(deck, ".time")["height"], abs=2)
    for part in (".queue .now", ".insp .ttl", ".insp .code", ".insp .gr svg"):
        found = box(deck, part)
        assert found["y"] + found["height"] <= side["y"] + side["height"], part
    assert box(deck, ".graph")["x"] + box(deck, ".graph")["width"] <= side["x"]


def test_it_is_the_slider_and_arrow_keys_step(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    slider = deck.root.locator("input.position")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    deck.expect(t=2)
    count = len(played.run.order)
    expect(slider).to_have_attribute("aria-valuetext", re.compile(rf"\b3rd .*\b{count}\b"))
    page.keyboard.press("End")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(rf"\b{count} tasks"))


def test_the_clock_axis_shows_phases_in_proportion(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    timeline = played.run.timeline
    assert timeline is not None
    deck.key("c")
    clock = deck.root.get_by_role("group", name="axis").get_by_role("button", name="clock")
    expect(clock).to_have_attribute("aria-pressed", "true")
    forward = timeline.forward_ns[-1]
    backward = timeline.task_ns[-1] - timeline.task_ns[0]
    deck.settles(lambda deck: abs(widths(deck)["forward"] / widths(deck)["backward"] - forward / backward) < 0.02, True)
    gap = timeline.event_ns[timeline.starts[0]] - timeline.event_ns[0] - forward
    assert gap > 0, "what tapescope does between them is not drawn"
    deck.key("c")
    expect(clock).to_have_attribute("aria-pressed", "false")


def test_without_times_there_is_no_clock_axis(page: Page, tmp_path: Path, snapshot: Snapshots) -> None:
    run = ts.backward(workload("linear50").build(width=8, uses=4)[1]())
    deck = opened_without_memory(page, run.save_html(tmp_path / "run.html"))
    expect(deck.root.get_by_role("button", name="clock")).to_be_disabled()
    deck.key("c")
    snapshot("page", deck.root.locator(".tip.on").inner_text())
    expect(deck.root.locator("[data-phase]")).to_have_count(1)
    expect(deck.root.locator(".time .note")).to_contain_text("ts.profile(")
    timeline, whole = (each.bounding_box() for each in (deck.root.locator(".time"), deck.root))
    assert timeline is not None and whole is not None and timeline["height"] < whole["height"] / 4


def opened_without_memory(page: Page, path: Path) -> ShownDeck:
    page.goto(path.as_uri())
    return ShownDeck(page)


def test_the_wheel_zooms_about_the_pointer_and_shift_pans(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    whole = deck.root.get_by_role("button", name="whole")
    expect(whole).to_be_hidden()
    before = widths(deck)["backward"]
    hover(deck, "backward", 0.5)
    total = deck.root.locator(".memory .tot")
    expect(total).to_have_attribute("title", re.compile("^while"))
    pointed = total.get_attribute("title")
    page.mouse.wheel(0, -240)
    expect(whole).to_be_visible()
    deck.settles(lambda deck: "forward" in widths(deck), False)
    assert widths(deck)["backward"] >= before * 0.99, "it fills the plot"
    page.mouse.move(*[value + 1 for value in centre(deck)])
    page.mouse.move(*centre(deck))
    assert whole.is_visible()
    page.keyboard.down("Shift")
    page.mouse.wheel(0, -100_000)
    page.keyboard.up("Shift")
    deck.settles(lambda deck: "forward" in widths(deck), True)
    deck.key("0")
    expect(whole).to_be_hidden()
    deck.key("+")
    expect(whole).to_be_visible()
    deck.key("-")
    expect(whole).to_be_hidden()
    hover(deck, "backward", 0.5)
    expect(total).to_have_attribute("title", pointed or "")


def centre(deck: ShownDeck) -> tuple[float, float]:
    time = box(deck, ".time")
    return time["x"] + time["width"] / 2, time["y"] + time["height"] / 2


def test_a_double_click_on_a_phase_zooms_to_it_and_back(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    before = widths(deck)
    deck.root.locator("[data-phase=forward]").dblclick()
    deck.settles(lambda deck: widths(deck).get("forward", 0) > 0.95 * sum(before.values()), True)
    deck.root.locator("[data-phase=forward]").dblclick()
    deck.settles(widths, before)


def test_equal_layers_are_one_lifetime_and_the_heading_folds_them(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    rows = deck.root.locator(".lives li")
    counts = rows.evaluate_all("rows => rows.map(row => Number(row.dataset.count))")
    assert 3 <= len(counts) <= 12 and 3 in counts, "three layers"
    expect(rows.filter(has_text="3 ×").first).to_contain_text("h.*.")
    heading = deck.root.get_by_role("button", name="Lifetimes")
    expect(heading).to_have_attribute("aria-expanded", "true")
    heading.click()
    expect(rows).to_have_count(0)
    expect(heading).to_have_attribute("aria-expanded", "false")
    heading.click()
    expect(rows).to_have_count(len(counts))
    row = rows.first.bounding_box()
    assert row is not None
    page.mouse.move(row["x"] + 40, row["y"] + row["height"] / 2)
    expect(deck.root.locator(".time .tip.on")).to_contain_text("Backward0")


def test_each_device_has_a_lane_and_says_why_it_stands_still(page: Page, on_two: Path) -> None:
    deck = opened(page, on_two)
    assert deck.root.locator("[data-device]").evaluate_all("all => all.map(each => each.dataset.device)") == [
        "cpu",
        "cuda:0",
    ]
    expect(deck.root.get_by_text(STILL)).to_have_count(0)
    deck.key("c")
    expect(deck.root.get_by_text(STILL)).to_be_visible()


@pytest.mark.slow
def test_the_grip_shares_the_height_and_remembers_how(page: Page, played: Played) -> None:
    deck = opened(page, played.path)
    grip = deck.root.get_by_role("separator")
    first = box(deck, ".time")["height"]
    now = int(grip.get_attribute("aria-valuenow") or 0)
    assert now == pytest.approx(box(deck, ".graph")["height"], abs=1)
    grip.focus()
    page.keyboard.press("ArrowUp")
    deck.settles(lambda deck: box(deck, ".time")["height"], first + 24)
    expect(grip).to_have_attribute("aria-valuenow", str(now - 24))
    deck.expect(t=0)
    for _ in range(40):
        page.keyboard.press("ArrowDown")
    deck.settles(lambda deck: box(deck, ".time")["height"], 230)
    page.reload()
    deck = ShownDeck(page)
    deck.settles(lambda deck: box(deck, ".time")["height"], 230)
    grip = deck.root.get_by_role("separator")
    grip.focus()
    page.keyboard.press("Home")
    deck.settles(lambda deck: box(deck, ".time")["height"], first)
    edge = box(deck, ".grip")
    page.mouse.move(edge["x"] + 300, edge["y"] + 4)
    page.mouse.down()
    page.mouse.move(edge["x"] + 300, edge["y"] - 10_000)
    page.mouse.up()
    deck.settles(lambda deck: box(deck, ".graph")["height"], 190)
    grip.dblclick()
    deck.settles(lambda deck: box(deck, ".time")["height"], first)


def test_page_and_full_window_give_the_graph_most_and_that_one_holds_the_focus(page: Page, played: Played) -> None:
    deck = opened(page, played.path, 1420, 720)
    graph, time = (box(deck, name)["height"] for name in (".main", ".time"))
    page.set_viewport_size({"width": 1420, "height": 1004})
    for full, high in ((False, 988), (True, 1004)):
        if full:
            deck.key("w")
        deck.settles(lambda deck: box(deck, ".frame")["height"], high)
        assert box(deck, ".main")["height"] - graph == pytest.approx(0.6 * (high - 704), abs=6)
        assert box(deck, ".time")["height"] - time == pytest.approx(0.4 * (high - 704), abs=6)
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "no scroll bar"
    frame = box(deck, ".frame")
    assert (frame["x"], frame["y"], frame["width"]) == (0, 0, 1420)
    assert page.evaluate("getComputedStyle(document.documentElement).overflow") == "hidden"
    inside = "deck => deck.contains(deck.getRootNode().activeElement)"
    for key in ("Tab", "Shift+Tab"):
        for _ in range(60):
            page.keyboard.press(key)
            assert deck.evaluate(inside)
    page.keyboard.press("Escape")
    deck.settles(lambda deck: box(deck, ".frame")["height"], 988)
    button = deck.root.get_by_role("button", name="full window")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    button.click()
    deck.settles(lambda deck: box(deck, ".frame")["height"], 988)


@pytest.mark.parametrize(
    ("width", "height", "frame"), [(1420, 900, 884), (1216, 720, 704), (1000, 700, 684), (916, 700, 684)]
)
def test_from_900_pixels_on_the_deck_is_one_screen(
    page: Page, on_two: Path, width: int, height: int, frame: int
) -> None:
    deck = opened(page, on_two, width, height)
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "no scroll bar"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert box(deck, ".frame")["height"] == frame
    queue, task = box(deck, ".queue"), box(deck, ".insp")
    assert (queue["y"] == task["y"]) == (width >= 1216), "side by side, or one above the other"
    assert task["height"] >= 120
    assert box(deck, ".graph")["height"] >= 190 and box(deck, ".time")["height"] >= 230
    bar = box(deck, ".bar")
    assert bar["height"] <= 46, "one row"
    assert deck.evaluate("deck => { const { scrollWidth, clientWidth } = deck.querySelector('.policies .tabs');"
                         " return scrollWidth <= clientWidth; }"), "no policy is cut"  # fmt: skip


OF_DEVICES = ".time [data-device], .time [data-busy], .queue .head .sub, .queue-head .device, .queue-head .sub"


@pytest.mark.parametrize(("width", "height", "frame"), [(1420, 900, 884), (1000, 700, 684)])
def test_of_five_devices_each_has_a_lane_and_a_queue_and_nothing_is_cut(
    page: Page, on_five: Path, width: int, height: int, frame: int
) -> None:
    deck = opened(page, on_five, width, height)
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "no scroll bar"
    assert box(deck, ".frame")["height"] == frame
    time = box(deck, ".time")
    names = ["cpu", *(f"cuda:{number}" for number in range(4))]
    lanes = [box(deck, f".time [data-device='{name}']") for name in names]
    for one, next_ in pairwise(lanes):
        assert one["y"] + one["height"] <= next_["y"] + 1, "one below the other"
    assert time["y"] <= lanes[0]["y"] and lanes[-1]["y"] + lanes[-1]["height"] <= box(deck, ".memory")["y"] + 1
    memory = box(deck, ".memory")
    assert memory["y"] + memory["height"] <= time["y"] + time["height"]
    assert box(deck, ".graph")["height"] >= 190
    queue = box(deck, ".queue")
    for name in names:
        deck.root.locator(f".queue [data-device='{name}']").scroll_into_view_if_needed()
        section = box(deck, f".queue [data-device='{name}']")
        assert queue["x"] <= section["x"] and section["x"] + section["width"] <= queue["x"] + queue["width"]
    assert deck.evaluate(CUT, OF_DEVICES) == []
    one = deck.root.locator(".queue .device[aria-expanded='true']")
    expect(one).to_have_count(1)  # each has one line, but for the one that is open
    deck.root.locator(".queue .device").last.click()
    expect(one).to_have_text(names[-1])


@pytest.mark.parametrize(("height", "time_height"), [(500, 160), (600, 160), (800, 240)])
def test_below_900_pixels_the_timeline_stays_in_view(page: Page, played: Played, height: int, time_height: int) -> None:
    deck = opened(page, played.path, 700, height)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visible = height - time_height
    assert box(deck, ".graph")["y"] + box(deck, ".graph")["height"] < visible, "the graph is whole"
    assert box(deck, ".queue")["y"] < visible - 30, "and the queue begins above the timeline"
    for top in (0, 100, 10_000):
        page.evaluate("top => scrollTo(0, top)", top)
        time = box(deck, ".time")
        assert time["height"] == time_height and time["y"] + time["height"] <= height + 1
    assert box(deck, ".queue")["y"] == box(deck, ".insp")["y"]


LANES = """deck => {
    const canvas = deck.querySelector('.time .still canvas');
    const { top } = deck.querySelector('.time .memory').style;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, Number.parseInt(top) * devicePixelRatio);
    return data.join();
}"""


def test_another_policys_level_above_the_scale_is_cut_and_the_key_says_where_it_has_no_effect(
    page: Page, tmp_path: Path
) -> None:
    graph = ts.graph(workload("linear50").build()[1]())
    footprints, document = dry_run(graph), Document(graph, "linear50", "direct")
    for policy in ("heap", "bfs"):
        order = schedule(graph, policy)
        timeline = simulate(graph, order, footprints)
        document.content["schedules"].append(
            schedule_content(graph, ts.orders.POLICIES[policy], order, timeline=timeline)
        )
    deck = opened(page, save_page(document.packed(), tmp_path / "deck.html", "linear50"))
    scale, tip = deck.root.locator(".time .scale"), deck.root.locator(".view .tip.on")
    before = deck.evaluate(LANES)
    deck.key("y")
    expect(scale).to_have_text("this policy")
    deck.rests()
    assert deck.evaluate(LANES) == before, "BFS does not run through the lanes"
    expect(tip).to_have_count(0)
    deck.show_policy("bfs")  # the higher one
    expect(scale).to_be_hidden()
    deck.key("y")
    expect(tip).to_contain_text("higher peak")


@pytest.mark.parametrize("width", [1420, 1000, 700, 400])
@pytest.mark.parametrize("axis", ["task", "clock"])
def test_no_label_of_the_timeline_is_cut(page: Page, played: Played, width: int, axis: str) -> None:
    deck = opened(page, played.path, width, 900)
    if axis == "clock":
        deck.key("c")
    deck.rests()
    deck.evaluate("deck => deck.querySelectorAll('.busy').forEach(each => (each.textContent = 'busy 100 %'))")
    names = ".lane b, .lane span, .busy, .phase, .time h3, .axes button, .tot, .lives .many, .more, .unit"
    names += ", .lg div > span:nth-child(2), .lg b"
    assert deck.evaluate(CUT, names) == []
    named = deck.root.locator(".lg div > span:nth-child(2)").all_inner_texts()
    page.set_viewport_size({"width": 1420, "height": 900})
    deck.rests()
    assert len(named) > 2 and {*named} <= {*deck.root.locator(".lg div > span:nth-child(2)").all_inner_texts()}


CUT = """(deck, names) => [...deck.querySelectorAll(names)].filter(each => {
    const { width } = each.getBoundingClientRect();
    return width > 1 && !each.matches('.sr') && each.scrollWidth > each.clientWidth + 1 && each.clientWidth;
}).map(each => `${each.className} ${each.textContent}: ${each.scrollWidth} > ${each.clientWidth}`)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("axis", ["task", "clock"])
def test_texts_of_the_timeline_have_contrast(page: Page, on_two: Path, scheme: Any, axis: str) -> None:
    page.emulate_media(color_scheme=scheme)
    deck = opened(page, on_two)
    if axis == "clock":
        deck.key("c")
        expect(deck.root.get_by_text(STILL)).to_be_visible()
    found = deck.evaluate(CONTRASTS)
    assert len(found) > 20
    assert [each for each in found if each[1] < 4.5] == []


# The text of each element in the timeline, and its contrast to the ground that is painted below it.
CONTRASTS = """deck => {
    const channels = colour => colour.match(/[0-9.]+/g).map(Number);
    const light = colour => {
        const [red, green, blue] = channels(colour).slice(0, 3).map(value => value / 255)
            .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const ground = element => {
        for (let at = element; at; at = at.parentElement) {
            const { backgroundColor } = getComputedStyle(at);
            const [,,, alpha = 1] = channels(backgroundColor);
            if (alpha === 1) return backgroundColor;
        }
    };
    return [...deck.querySelectorAll('.time *')].filter(each =>
        [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()) && each.getClientRects().length &&
        !each.closest('.tip, .sr, :disabled')
    ).map(each => {
        const [one, other] = [light(getComputedStyle(each).color), light(ground(each))].sort((a, b) => b - a);
        return [each.textContent, (one + 0.05) / (other + 0.05)];
    });
}"""
