"""The debugger's verbs on the page: what it asks of a kernel, and how it shows what the kernel says.

The kernel is the test, see `posed.py`; `test_deck_in_lab.py` has the real one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import expect

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.planning.simulate import schedule, simulate
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text.sizes_and_counts import nth
from tapescope.tests.says import Snapshots, says, says_none_of
from tapescope.widgets.deck.page_data import Document, schedule_content

from .chromium import trouble_of
from .posed import PosedDeck
from .tab import Tab
from .test_deck_page import CONTROLS, OUTSIDE, OVERLAPS, UNNAMED

pytestmark = pytest.mark.e2e

AT = 12  # the position at which most tests stand
BRANCH = {"number": 1, "parent": None, "forked_at": 5, "ran": 20, "policy": "bfs", "edits": 1, "current": False}
SIDES = """(deck, name) => {
    const { left, right } = deck.querySelector(name).getBoundingClientRect();
    return [left, right];
}"""
HISTORY = {"bytes": 3 << 20, "gradient_bytes": 2 << 20, "saved_bytes": 1 << 20, "reach": 4}


class Graph:
    """A small GPT, the order in which it runs, and what was recorded. At `crowded` two tasks wait besides the next."""

    def __init__(self) -> None:
        with ts.capture(keep_inputs=True):
            loss = workload("gpt2").build(layers=2)[1]()
        self.graph = ts.graph(loss)
        self.order = list(schedule(self.graph, "heap"))
        footprints = dry_run(self.graph)
        self.document = Document(self.graph, "small GPT", "direct")
        for policy in ("heap", "bfs"):
            order = schedule(self.graph, policy)
            timeline = simulate(self.graph, order, footprints)
            content = schedule_content(self.graph, ts.orders.POLICIES[policy], order, timeline=timeline)
            self.document.content["schedules"].append(content)
        with ts.debug(loss, trace="full") as session:
            while len(session.ready) < 3:
                session.step()
            self.crowded = len(session.order)
            session.run()
            self.records = self.document.records(session.trace, range(len(session.trace)))

    def module(self, path: str) -> list[int]:
        """The tasks of a module's calls, and of the calls in them."""
        paths = {call.id: call.path for call in self.graph.calls}
        inside = re.compile(rf"{re.escape(path)}(\.|$)")
        return [each.id for each in self.graph.tasks if each.call is not None and inside.match(paths[each.call])]

    def others(self) -> list[Any]:
        """BFS, and the branch, which ran as BFS."""
        _, bfs = self.document.content["schedules"]
        return [bfs, {**bfs, "policy": "branch 1", "title": "branch 1"}]


@pytest.fixture(scope="module")
def gpt() -> Graph:
    return Graph()


@pytest.fixture
def deck(tab: Tab, gpt: Graph, tmp_path: Path) -> Iterator[PosedDeck]:
    """A live deck at its start."""
    page = tab.open(viewport={"width": 1360, "height": 1100})
    trouble = trouble_of(page)
    deck = PosedDeck(page, tmp_path / "posed.html", gpt.document.packed(), gpt.document.metas)
    yield deck
    tab.leave()
    assert trouble == []


def stand(deck: PosedDeck, gpt: Graph, position: int = AT, **news: Any) -> None:
    """So many tasks have run."""
    ran = {str(task): gpt.records[str(task)] for task in gpt.order[:position]}
    deck.tell(position=position, current=gpt.order[position], records=ran, **news)
    deck.expect(t=position)


def test_what_stops_a_run_is_listed_and_can_be_switched_off_and_deleted(deck: PosedDeck, gpt: Graph) -> None:
    block = gpt.module("h.1")
    entry = {"number": 1, "kind": "break", "text": "h.1", "tasks": block, "calls": [7] * len(block)}
    deck.stops(
        {**entry, "hits": 2},
        {"number": 4, "kind": "watch", "text": "nan"},
    )
    deck.expect(stops=2)
    deck.root.get_by_role("button", name="stops: 2").click()
    panel = deck.root.get_by_role("dialog", name="stops")
    module, watch = panel.locator("[data-stop='1']"), panel.locator("[data-stop='4']")
    expect(module).to_contain_text(re.compile(r"\b1 call\b.*\b2 times"))
    expect(watch).to_contain_text("nan")
    module.get_by_role("checkbox").uncheck()
    panel.get_by_role("button", name="delete watchpoint 4").click()
    assert deck.asked() == [{"kind": "enable", "number": 1, "on": False}, {"kind": "delete", "number": 4}]
    deck.stops({**entry, "enabled": False})
    expect(module).to_have_attribute("data-enabled", "false")
    expect(watch).to_have_count(0)
    module.get_by_role("button", name="show").click()
    expect(deck.inspector).to_have_attribute("data-task", str(min(block, key=gpt.order.index)))


def test_a_breakpoint_is_made_from_a_name_that_is_offered_and_what_is_wrong_is_said(deck: PosedDeck) -> None:
    deck.key("s")
    panel = deck.root.get_by_role("dialog", name="stops")
    field = panel.get_by_role("combobox", name="where")
    expect(field).to_be_focused()
    deck.page.keyboard.type("h.1.ml")
    expect(panel.locator(".place").first).to_have_attribute("data-where", "h.1.mlp")
    for key in ("ArrowDown", "Enter", "Enter"):
        deck.page.keyboard.press(key)
    assert deck.asked() == [{"kind": "break", "where": "h.1.mlp"}]
    expect(panel.get_by_role("listbox")).to_have_count(0)
    deck.tell(trouble='ValueError: wrong: "h.1.mlp"')
    expect(panel.get_by_role("alert")).to_have_text('wrong: "h.1.mlp"')
    expect(deck.root.locator(".trouble")).to_be_hidden()
    panel.get_by_role("combobox", name="kind").select_option("watch")
    field.fill("norm>1e3")
    panel.get_by_role("button", name="add").click()
    assert deck.asked() == [{"kind": "watch", "condition": "norm>1e3"}]
    deck.stops({"number": 1, "kind": "watch", "text": "norm>1e3"})
    expect(field).to_have_value("")
    field.press("ArrowDown")
    field.press("Escape")  # what was marked is not wanted
    expect(field).to_be_focused()
    field.press("Escape")
    expect(panel).to_have_count(0)
    expect(deck.root.get_by_role("button", name="stops: 1")).to_be_focused()


def test_a_task_by_its_number_is_a_breakpoint_of_that_task(deck: PosedDeck, gpt: Graph) -> None:
    deck.key("s")
    for typed in ("#7", "53", "54th"):
        deck.page.keyboard.type(typed)
        deck.page.keyboard.press("Enter")
    tasks = (7, gpt.order[52], gpt.order[53])
    assert deck.asked() == [{"kind": "breakpoint", "task": task, "on": True} for task in tasks]


def test_tasks_at_which_a_run_may_stop_are_marked_where_they_are_listed(deck: PosedDeck, gpt: Graph) -> None:
    stand(deck, gpt, gpt.crowded)
    next_one = deck.queue[0]
    entry = {"number": 1, "kind": "break", "text": "some", "tasks": [next_one]}
    for enabled, said in ((True, ", breakpoint"), (False, ", disabled breakpoint")):
        deck.stops({**entry, "enabled": enabled})
        mark = deck.root.locator(f".queue [data-task='{next_one}'] .bp")
        expect(mark).to_be_visible()
        expect(mark).to_have_class("bp" if enabled else "bp off")
        deck.unfold_all()
        expect(deck.task(next_one)).to_have_text(re.compile(f"{said}$"))
    deck.stops()
    expect(mark).to_be_hidden()


def test_a_stop_says_why_until_it_moves_on(deck: PosedDeck, gpt: Graph) -> None:
    task, origin = gpt.order[AT], gpt.order[3]
    text = f"watchpoint 2 (nan): output 0 of {gpt.graph.describe(task, AT)}"
    lines = [f"it came from {gpt.graph.describe(origin, 3)}", "and Mul (99999th) is no task"]
    stop = {"text": text, "task": task, "number": 2, "why": "watchpoint"}
    stand(deck, gpt, stopped={**stop, "lines": lines})
    deck.expect(stopped="watchpoint")
    banner = deck.root.locator(".stopped")
    expect(banner).to_contain_text(text)
    expect(deck.root.get_by_role("status").first).to_contain_text("watchpoint 2")
    expect(banner.get_by_role("listitem").nth(1)).to_have_text("and Mul (99999th) is no task")
    banner.get_by_role("button", name="4th", exact=True).click()
    expect(deck.inspector).to_have_attribute("data-task", str(origin))
    banner.locator("> div > button", has_text=nth(AT + 1)).click()
    expect(deck.inspector).to_have_attribute("data-task", str(task))
    banner.get_by_role("button", name="dismiss").click()
    deck.tell()  # the same again: it stays dismissed
    expect(banner).to_be_hidden()
    deck.tell(position=AT + 1, stopped={**stop, "lines": [], "why": "breakpoint"})
    deck.expect(stopped="breakpoint")
    expect(banner).to_be_visible()
    deck.tell(position=AT + 2, stopped=None)
    deck.expect(stopped="")
    expect(banner).to_be_hidden()


def test_a_long_reason_of_a_stop_leaves_the_graph_its_room_and_its_task_is_unfolded(
    tab: Tab, gpt: Graph, tmp_path: Path
) -> None:
    page = tab.open(viewport={"width": 1010, "height": 760})
    deck = PosedDeck(page, tmp_path / "posed.html", gpt.document.packed(), gpt.document.metas)
    deck.key("Shift+BracketLeft")  # all modules are folded
    task = next(task for task in gpt.module("h.1.attn") if task in gpt.order[: len(gpt.order) // 2])
    place = gpt.order.index(task)
    expect(deck.task(task)).to_have_count(0)
    lines = [f"line {number}: {'a gradient of an input ' * 6}" for number in range(9)]
    stop = {"text": "watchpoint 1 (nan): " + "a long reason " * 30, "task": task, "number": 1, "why": "watchpoint"}
    stand(deck, gpt, place + 1, stopped={**stop, "lines": lines})
    banner, graph = deck.root.locator(".stopped"), deck.root.locator(".graph")
    expect(banner).to_be_visible()
    deck.rests()
    high = graph.bounding_box()["height"]
    assert banner.bounding_box()["height"] <= max(72, 0.3 * high) + 1
    assert banner.evaluate("each => each.scrollHeight > each.clientHeight"), "the rest is scrolled to"
    expect(deck.task(task)).to_have_count(1)
    button = banner.get_by_role("button", name="more")
    says(button.get_attribute("title"), "origin")
    tab.leave()


def test_a_note_on_the_graph_is_shown_until_it_is_dismissed_and_is_text(tab: Tab, gpt: Graph, tmp_path: Path) -> None:
    said = "4 of 8 parameters of the model are <b>not</b> in this graph"
    gpt.document.content["note"] = said
    try:
        deck = PosedDeck(tab.open(), tmp_path / "posed.html", gpt.document.packed(), gpt.document.metas)
    finally:
        del gpt.document.content["note"]
    note = deck.root.locator(".trouble")
    expect(note).to_have_text(said)
    note.get_by_role("button", name="dismiss").click()
    stand(deck, gpt)
    expect(note).to_be_hidden()
    tab.leave()


def test_a_failed_task_is_named_and_marked_wherever_it_is_shown(deck: PosedDeck, gpt: Graph) -> None:
    task = gpt.order[AT]
    deck.unfold_all()
    stand(deck, gpt, status="failed", trouble="ValueError: no such gradient")
    banner = deck.root.locator(".trouble")
    says(banner.inner_text(), gpt.graph.tasks[task].name, nth(AT + 1), "ValueError: no such gradient")
    assert re.search(r"\w+\.py:\d+", banner.inner_text())
    deck.settles(lambda deck: deck.state(task), "failed")
    assert "running" not in deck.states.values()
    bad, accent = (
        deck.evaluate("(deck, name) => getComputedStyle(deck).getPropertyValue(name)", name)
        for name in ("--bad", "--accent")
    )
    assert bad != accent
    expect(deck.root.locator(".queue .now.failed path")).to_have_attribute("stroke", "var(--bad)")
    expect(deck.inspector.locator(".ttl path")).to_have_attribute("stroke", "var(--bad)")


def test_a_restart_of_the_kernel_is_shown_without_a_click(deck: PosedDeck) -> None:
    deck.expect(status="stopped")
    deck.lose_kernel()
    deck.expect(status="closed")
    expect(deck.root.locator(".trouble")).to_contain_text("restarted")
    expect(deck.root.locator("[data-act=step]")).to_have_attribute("aria-disabled", "true")


def test_a_shutdown_of_the_kernel_is_shown_without_a_click(deck: PosedDeck) -> None:
    deck.kernel_status("idle")
    expect(deck.tabs.first).to_contain_text("live")
    deck.kernel_status("dead")
    deck.expect(status="closed")
    expect(deck.root.locator(".trouble")).to_contain_text("shut down")
    expect(deck.tabs.first).to_contain_text("closed")
    expect(deck.tabs.first).not_to_contain_text("live")


def test_the_hint_of_the_keys_covers_neither_the_graph_nor_a_tab(deck: PosedDeck) -> None:
    hint, bar, tabs = (deck.root.locator(each) for each in (".entry", ".bar", ".tabs[role=tablist]"))
    for width in (620, 970, 1420):
        deck.page.set_viewport_size({"width": width, "height": 900})
        deck.rests()
        shown, around = hint.bounding_box(), bar.bounding_box()
        assert shown and around
        assert around["y"] < shown["y"] and shown["y"] + shown["height"] < around["y"] + around["height"]
        assert tabs.evaluate("tabs => tabs.scrollWidth <= tabs.clientWidth")
    before = [tabs.bounding_box(), bar.bounding_box()]
    deck.root.focus()
    expect(hint).to_have_count(0)
    assert [tabs.bounding_box(), bar.bounding_box()] == before, "nothing moves below the pointer when the hint ends"


def test_a_key_leads_from_the_notebook_to_the_deck_and_escape_back(deck: PosedDeck) -> None:
    hint = deck.root.locator(".entry")
    expect(hint).to_be_visible()
    deck.page.evaluate("document.body.prepend(document.createElement('input'))")
    cell = deck.page.locator("body > input")
    cell.focus()
    deck.page.keyboard.press("ArrowRight")
    assert deck.asked() == [], "the notebook keeps its keys"
    deck.page.keyboard.press("Alt+Shift+KeyD")
    expect(deck.root).to_be_focused()
    expect(hint).to_have_count(0)
    expect(cell).to_have_value("")
    deck.page.keyboard.press("ArrowRight")
    assert deck.asked() == [{"kind": "step", "count": 1}]
    deck.page.keyboard.press("Escape")
    expect(cell).to_be_focused()


def test_playback_goes_on_once_a_busy_kernel_answers(deck: PosedDeck, gpt: Graph) -> None:
    deck.page.clock.install()
    deck.speed(5)
    deck.press("play")
    deck.page.clock.run_for(6_000)
    assert deck.asked() == [{"kind": "step", "count": 1}]
    expect(deck.root.locator(".trouble")).to_contain_text("does not answer")
    expect(deck.root.get_by_role("button", name=re.compile("^Pause"))).to_be_visible()
    deck.tell(position=1)
    deck.expect(t=1)
    expect(deck.root.locator(".trouble")).to_be_hidden()
    deck.page.clock.run_for(1_000)
    assert deck.asked()[0]["kind"] == "step"


@pytest.mark.parametrize(
    ("why", "lines", "seen", "more"),
    [("watchpoint", 8, 8, ""), ("watchpoint", 9, 8, "1"), ("breakpoint", 2, 0, "")],
)
def test_where_a_watchpoints_find_came_from_is_seen_at_once(
    deck: PosedDeck, gpt: Graph, why: str, lines: int, seen: int, more: str
) -> None:
    said = [f"line {n}" for n in range(lines)]
    stand(deck, gpt, stopped={"text": "stop", "task": None, "number": 1, "why": why, "lines": said})
    banner = deck.root.locator(".stopped")
    items, how = banner.get_by_role("listitem"), banner.locator("button[aria-expanded]")
    expect(how).to_contain_text(more)
    expect(items).to_have_count(seen)
    is_open = seen == lines
    expect(how).to_have_attribute("aria-expanded", str(is_open).lower())
    how.click()
    expect(items).to_have_count(0 if is_open else lines)
    banner.locator("button[aria-expanded]").click()
    expect(items).to_have_count(seen)


def test_after_a_change_of_theme_at_rest_everything_has_its_colours(deck: PosedDeck, gpt: Graph) -> None:
    """JupyterLab hides everything until the next frame; the test does the same."""
    deck.page.emulate_media(color_scheme="light")
    deck.tell(position=len(gpt.order), records=gpt.records, status="finished")
    deck.expect(t=len(gpt.order), theme="light")
    deck.unfold_all()  # there is a map where not all is in view
    deck.rests()
    deck.evaluate(CHANGE_THEME)
    deck.expect(theme="dark")
    for canvas in (".graph canvas", ".mini", ".time .still canvas", ".time .moving"):
        deck.settles(lambda shown, canvas=canvas: shown.evaluate(LIGHT_INK, canvas), [])
        deck.settles(lambda shown, canvas=canvas: shown.canvas_is_drawn(canvas), True)


CHANGE_THEME = """async deck => {
    const { host } = deck.getRootNode();
    document.body.dataset.jpThemeLight = 'false';
    for (let turn = 0; turn < 5; turn++) await null; // the deck has asked for a frame
    host.style.display = 'none';
    requestAnimationFrame(() => { host.style.display = ''; });
}"""
# Colours of the light theme that the dark one does not have.
LIGHT_INK = """(deck, selector) => {
    const canvas = deck.querySelector(selector);
    if (!canvas.width) return ['nothing'];
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const drawn = new Set();
    for (let at = 0; at < data.length; at += 4) drawn.add(data.slice(at, at + 3).join(' '));
    return ['194 59 16', '47 102 179', '42 165 140'].filter(colour => drawn.has(colour));
}"""


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


def test_where_inputs_were_not_kept_custom_functions_alone_can_be_checked(tab: Tab, tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    with ts.capture():
        loss = Twice.apply(x).sum()
    graph = ts.graph(loss)
    document = Document(graph, "twice", "direct")
    order = list(schedule(graph, "heap"))
    document.content["schedules"].append(schedule_content(graph, ts.orders.POLICIES["heap"], order))
    page = tab.open()
    deck = PosedDeck(page, tmp_path / "twice.html", document.packed(), document.metas)
    check = deck.inspector.get_by_role("button", name="check")
    for position, name in enumerate(("SumBackward0", "TwiceBackward")):
        deck.tell(position=position, current=order[position])
        expect(deck.inspector).to_contain_text(name)
        expect(check).to_be_enabled(enabled=name == "TwiceBackward")
        assert ("--keep-inputs" in check.get_attribute("title")) == (name == "SumBackward0")


def test_no_row_of_the_bar_is_empty_when_the_deck_has_finished(deck: PosedDeck, gpt: Graph) -> None:
    deck.tell(position=len(gpt.order), records=gpt.records, status="finished", history=HISTORY)
    deck.expect(t=len(gpt.order))
    gap = "deck => deck.querySelector('.tabs').getBoundingClientRect().top - "
    gap += "deck.querySelector('.pick').getBoundingClientRect().bottom"
    for width in range(560, 700, 4):
        deck.page.set_viewport_size({"width": width, "height": 1000})
        assert 0 < deck.evaluate(gap) < 16, width


def test_who_looks_back_may_take_the_session_back(deck: PosedDeck, gpt: Graph, snapshot: Snapshots) -> None:
    stand(deck, gpt, history=HISTORY)
    held = deck.root.locator(".held")
    expect(held).to_contain_text("3.0 MiB")
    says(held.get_attribute("title"), "gradients", "2.0 MiB", "saved tensors", "1.0 MiB")
    snapshot("page", f"{held.inner_text()}\n{held.get_attribute('title')}")
    take_back = deck.root.locator(".rewind")
    expect(take_back).to_be_hidden()
    deck.scrub(HISTORY["reach"] - 1)
    expect(take_back).to_be_hidden()
    deck.scrub(6)
    take_back.click()
    assert deck.asked() == [{"kind": "rewind", "position": 6}]
    gone = gpt.order[7]
    deck.tell(position=6, current=gpt.order[6], forgotten=gpt.order[6:AT], history=HISTORY)
    expect(take_back).to_be_hidden()
    expect(deck.root).to_be_focused()
    deck.expect(t=6, running=gpt.order[6])
    deck.search(f"#{gone}").first.click()
    expect(deck.inspector).to_have_attribute("data-task", str(gone))
    parts = deck.inspector.locator("[data-part^='gradients']").all_inner_texts()
    says_none_of("\n".join(parts), "norm")
    snapshot("page", "\n".join(parts))


def test_a_kept_branch_has_a_tab_and_can_be_gone_on_from(deck: PosedDeck, gpt: Graph) -> None:
    stand(deck, gpt, others=gpt.others(), branches=[{**BRANCH, "text": "branch 1, 20 tasks under bfs, 1 edit"}])
    tab = deck.root.locator("[role=tab][data-branch='1']")
    expect(tab).to_have_attribute("title", "branch 1, 20 tasks under bfs, 1 edit")
    tab.click()
    deck.expect(policy="branch 1")
    ran = gpt.others()[1]["order"][AT - 1]
    deck.unfold_all()
    deck.settles(lambda shown: shown.state(ran), "done")
    deck.root.locator(".run-on button").click()
    assert deck.asked() == [{"kind": "branch", "number": 1}]
    deck.expect(policy="heap")
    expect(deck.root).to_be_focused()


def test_the_gradients_that_wait_can_be_changed_where_the_session_stands(deck: PosedDeck, gpt: Graph) -> None:
    stand(deck, gpt)
    edits = deck.inspector.locator(".edits")
    restore = edits.get_by_role("button", name="restore")
    expect(restore).to_be_hidden()
    edits.get_by_role("button", name="zero").click()
    edits.get_by_label("factor").fill("0.5")
    edits.get_by_role("button", name="×").click()
    edits.get_by_label("largest norm").fill("2")
    edits.get_by_label("largest norm").press("Enter")
    task = str(gpt.order[AT])
    deck.tell(records={task: {**gpt.records[task], "outputs": [], "edited": True}})
    expect(deck.inspector.locator("[data-edited]")).to_contain_text("edited")
    restore.click()
    assert [(each["how"], each["value"]) for each in deck.asked()] == [
        ("zero", None), ("scale", 0.5), ("clip", 2), ("restore", None),
    ]  # fmt: skip
    deck.key("ArrowLeft")
    expect(edits).to_be_hidden()


@pytest.mark.parametrize(
    ("ok", "warns", "shown"),
    [
        (True, False, "ok"),
        (True, True, "but"),
        (False, False, "wrong"),
        (None, False, "unknown"),
    ],
)
def test_a_task_is_checked_and_the_answer_is_read(
    deck: PosedDeck, gpt: Graph, ok: bool | None, warns: bool, shown: str
) -> None:
    stand(deck, gpt)
    task = gpt.order[AT]
    deck.inspector.get_by_role("button", name="check").click()
    section = deck.inspector.locator("[data-check]")
    expect(section).to_have_attribute("data-check", "pending")
    assert deck.asked() == [{"kind": "check", "task": task}]
    lines = [f"compared with {gpt.graph.describe(gpt.order[0], 0)}"]
    deck.tell(checks={str(task): {"ok": ok, "warns": warns, "lines": lines}})
    expect(section).to_have_attribute("data-check", shown)
    section.get_by_role("button", name="1st", exact=True).click()
    expect(deck.inspector).to_have_attribute("data-task", str(gpt.order[0]))


def test_stepping_over_and_out_of_a_module_is_the_kernels_at_the_front_and_the_pages_before(
    deck: PosedDeck, gpt: Graph, snapshot: Snapshots
) -> None:
    last = max(gpt.order.index(task) for task in gpt.module("h.1"))
    first = min(gpt.order.index(task) for task in gpt.module("h.1.mlp"))
    stand(deck, gpt, last + 5)
    deck.key("o")
    deck.key("Shift+O")
    deck.press("over")
    assert [each["kind"] for each in deck.asked()] == ["step_over", "step_out", "step_over"]
    deck.scrub(first)
    deck.key("Shift+O")
    innermost = gpt.graph.calls[gpt.graph.tasks[gpt.order[first]].call]
    around = gpt.module(gpt.graph.calls[innermost.parent].path)
    deck.expect(t=1 + max(gpt.order.index(task) for task in around))
    ahead = last + 20
    deck.scrub(ahead)  # what is planned: the session stays where it is
    deck.press("step")
    deck.key("Shift+ArrowRight")
    deck.key("ArrowLeft")
    deck.expect(t=ahead + 10)
    expect(deck.root.locator(".key").get_by_text("planned")).to_be_visible()
    for width in (1360, 1010, 970, 930, 500):
        deck.page.set_viewport_size({"width": width, "height": 1100})
        legend, tools = (deck.evaluate(SIDES, f".key .{name}") for name in ("states", "tools"))
        assert legend[1] <= tools[0] and tools[1] <= deck.evaluate(SIDES, ".graph")[1], width
    deck.page.set_viewport_size({"width": 1360, "height": 1100})
    step = deck.root.locator("button[data-act=step]")
    expect(step).to_have_attribute("title", re.compile(rf"^Step \(→\).*\b{nth(last + 6)}\b"))
    expect(deck.root.get_by_role("status")).to_contain_text(re.compile(rf"\b{nth(last + 6)}\b"))
    snapshot("page", step.get_attribute("title"))
    assert deck.asked() == []
    deck.inspector.get_by_role("button", name="run to it").click()
    assert deck.asked() == [{"kind": "run_to", "task": gpt.order[ahead + 10]}]


@pytest.mark.parametrize("width", [700, 1100, 1420, 1600])
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_at_every_width_nothing_of_it_is_cut_or_overlaps(deck: PosedDeck, gpt: Graph, width: int, scheme: str) -> None:
    deck.page.set_viewport_size({"width": width, "height": 2200})
    deck.page.emulate_media(color_scheme=scheme)
    stop = {"text": "breakpoint 1 (h.1)", "lines": ["one"], "task": gpt.order[AT], "number": 1, "why": "breakpoint"}
    stand(deck, gpt, history=HISTORY, others=gpt.others(), branches=[{**BRANCH, "text": "branch 1"}], stopped=stop)
    height = deck.evaluate("deck => deck.querySelector('.bar').offsetHeight")
    deck.scrub(6)
    assert deck.evaluate("deck => deck.querySelector('.bar').offsetHeight") == height, "to look back moves nothing"
    assert deck.evaluate(OUTSIDE) == []
    assert deck.evaluate(OVERLAPS, f"{CONTROLS}, .stopped button, .insp button") == []
    deck.stops(*({"number": n, "kind": "break", "text": f"h.{n}." * 30, "tasks": [n]} for n in range(1, 9)))
    deck.key("s")
    assert deck.evaluate(OUTSIDE) == []
    assert deck.evaluate(OVERLAPS, ".panel h3 button, .panel .add button, .panel li:first-child button") == []
    assert deck.evaluate(UNNAMED) == []


def test_a_saved_page_stops_before_tasks_alone(tab: Tab, gpt: Graph, tmp_path: Path, snapshot: Snapshots) -> None:
    page = tab.open()
    deck = PosedDeck(page, tmp_path / "saved.html", gpt.document.packed(), [], is_live=False)
    deck.key("s")
    panel = deck.root.get_by_role("dialog", name="stops")
    expect(panel.get_by_role("combobox", name="kind").get_by_role("option")).to_have_count(1)
    field = panel.get_by_role("combobox", name="where")
    field.fill("h.1.mlp")
    field.press("ArrowDown")
    field.press("Enter")
    task = gpt.order[int(field.input_value()[:-2]) - 1]
    assert task in gpt.module("h.1.mlp")
    field.press("Enter")
    field.fill("no such module")
    panel.get_by_role("button", name="add").click()
    expect(panel.get_by_role("alert")).to_contain_text("kernel")
    snapshot("page", panel.get_by_role("alert").inner_text())
    panel.get_by_role("button", name="close").click()
    deck.key("r")
    deck.expect(t=gpt.order.index(task), running=task)


def test_the_clock_is_there_from_the_first_task_on_that_has_run(deck: PosedDeck, gpt: Graph) -> None:
    deck.tell(position=0)
    clock = deck.root.get_by_role("group", name="axis").get_by_role("button", name="clock")
    expect(clock).to_be_disabled()
    stand(deck, gpt, 1)
    expect(clock).to_be_enabled()
    expect(deck.root.locator("[data-busy]")).to_have_count(0)  # the time between the tasks is not recorded
    clock.click()
    expect(clock).to_have_attribute("aria-pressed", "true")


def test_a_button_has_the_memory_of_a_large_graph_predicted(
    tab: Tab, gpt: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above 5,000 tasks it is not done unasked; here the kernel says so of a small one."""
    page = tab.open(viewport={"width": 1360, "height": 1000})
    own, *others = gpt.document.content["schedules"]
    unknown = {**own, "memory": None, "predict_s": 3.2}
    monkeypatch.setitem(gpt.document.content, "schedules", [unknown, *others])
    deck = PosedDeck(page, tmp_path / "posed.html", gpt.document.packed(), gpt.document.metas)
    button = deck.root.get_by_role("button", name=re.compile("^predict"))
    expect(button).to_contain_text(re.compile(r"\b3 s\b"))
    button.click()
    assert deck.asked() == [{"kind": "predict"}]
    expect(button).to_have_text("predicting…")
    expect(button).to_be_disabled()
    expect(deck.root).to_be_focused()
    deck.tell(live=own)
    expect(button).to_be_hidden()
    expect(deck.root.locator(".peak")).to_contain_text(re.compile(r"^peak [\d.]+ [KM]iB"))
