"""Groups of products on a page: outlined, listed, pointed at, and refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Locator, expect
from torch.autograd.graph import get_gradient_edge

import tapescope as ts
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots
from tapescope.widgets.deck.groups_data import group_content
from tapescope.widgets.deck.page_data import Document, schedule_content
from tapescope.widgets.deck.save_deck import save_page

from .chromium import trouble_of
from .posed import PosedDeck
from .shown import ShownDeck
from .tab import Tab

pytestmark = pytest.mark.e2e

SVG = "{http://www.w3.org/2000/svg}"


def document_of(name: str, with_groups: bool = True, **knobs: int) -> tuple[ts.Graph, Document]:
    model, make_loss = workload(name).build(**knobs)
    with ts.capture(model):
        loss = make_loss()
    graph = ts.graph(get_gradient_edge(loss))  # it keeps the nodes, as a session does, after the loss is freed
    document = Document(graph, name, "direct")
    order = ts.simulate(graph, "heap").order
    document.content["schedules"].append(schedule_content(graph, ts.orders.POLICIES["heap"], order))
    document.content["groups"] = group_content(graph) if with_groups else None
    return graph, document


Open = Callable[..., ShownDeck]


@pytest.fixture
def show(tab: Tab, tmp_path: Path) -> Iterator[Open]:
    """Opens a saved deck of a ready model. At the end no page may have had trouble."""
    trouble = []

    def show(name: str, with_groups: bool = True, across: int = 1360, **knobs: int) -> ShownDeck:
        _, document = document_of(name, with_groups, **knobs)
        page = tab.open(viewport={"width": across, "height": 1000})
        trouble.append(trouble_of(page))
        page.goto(save_page(document.packed(), tmp_path / "page.html", name).as_uri())
        return ShownDeck(page)

    yield show
    tab.leave()
    assert trouble == [[]] * len(trouble)


def panel(shown: ShownDeck) -> Locator:
    return shown.root.get_by_role("region", name="groups of products")


def rows(shown: ShownDeck) -> Locator:
    return panel(shown).locator("[data-group]")


def picture(shown: ShownDeck, what: str = "seen") -> str:
    """Return the view, or the whole graph, as SVG."""
    with shown.root.page.expect_download() as download:
        shown.save_picture(f"svg {what}")
    return Path(download.value.path()).read_text(encoding="utf-8")


def outlined(svg: str, colours: Sequence[str]) -> list[list[float]]:
    """Return the width of each outline by colour."""
    rects = list(ElementTree.fromstring(svg).iter(f"{SVG}rect"))
    return [[float(each.get("stroke-width", "1")) for each in rects if each.get("stroke") == hue] for hue in colours]


def hues(shown: ShownDeck) -> list[str]:
    script = "deck => [0, 1, 2, 3].map(at => getComputedStyle(deck).getPropertyValue(`--hue${at}`))"
    return shown.evaluate(script)


def test_groups_are_outlined_when_asked_for_and_one_stands_out_that_is_pointed_at(show: Open) -> None:
    shown = show("ensemble", members=4, batch=4, width=8)
    shown.unfold_all()
    shown.expect(groups="off")
    assert not any(outlined(picture(shown, "whole"), hues(shown)))
    expect(panel(shown)).to_be_hidden()
    shown.root.get_by_role("button", name="groups", exact=True).click()
    shown.expect(groups="backward")
    expect(panel(shown)).to_contain_text(re.compile(r"\bbackward\b.*\b4 groups .*\b16 of 16\b"))
    expect(rows(shown)).to_have_count(4)
    shown.rests()  # the graph has got lower
    widths = outlined(picture(shown, "whole"), hues(shown))
    assert [len(each) for each in widths] == [1] * 4  # of four equal members one is drawn
    others = shown.mirror.get_by_role("button", name=re.compile("^show "))
    expect(others).to_have_count(4)
    hidden = shown.mirror.get_by_text(re.compile(r"\bA: 3 of 4\b"))
    expect(hidden).to_have_count(1)
    shown.activate(others.nth(2))
    assert [len(each) for each in outlined(picture(shown, "whole"), hues(shown))] == [1] * 4
    rows(shown).nth(2).hover()
    expect(rows(shown).nth(2)).to_have_class("gp lit")
    rows(shown).nth(1).focus()
    expect(rows(shown).nth(1)).to_have_class("gp lit")
    shown.root.page.keyboard.press("Enter")
    expect(rows(shown).nth(1)).to_have_attribute("aria-pressed", "true")
    shown.root.page.mouse.move(1, 1)
    picked = outlined(picture(shown, "whole"), hues(shown))
    assert picked[1][0] > widths[1][0] * 1.5
    assert [len(each) for each in picked] == [1] * 4
    assert {width for hue in (0, 2, 3) for width in picked[hue]} == {width for each in widths for width in each}
    shown.key("m")
    shown.expect(groups="off")
    expect(panel(shown)).to_be_hidden()
    expect(hidden).to_have_count(0)


def test_a_task_says_its_groups_and_points_them_out(show: Open) -> None:
    # With four members, copies would cost as many launches in the forward as joining saves.
    shown = show("ensemble", members=8, batch=4, width=8)
    shown.key("m")
    shown.key("f")
    task = shown.search("addmm").first
    number = int(task.get_attribute("data-task") or "")
    task.click()
    section = shown.inspector.locator("[data-part=groups] [data-group]")
    expect(section).to_have_count(2)
    expect(section.first).to_contain_text("8 × addmm")
    expect(shown.task(number)).to_contain_text(", group ")
    shown.task(number).focus()  # as the pointer would
    expect(panel(shown).locator(".lit")).to_have_count(1)
    section.nth(1).click()
    shown.expect(groups="forward")
    expect(panel(shown).locator("[aria-pressed=true][data-group]")).to_have_count(1)
    expect(panel(shown)).to_contain_text(re.compile(r"\bforward\b.*\b4 groups\b"))


def test_what_is_refused_says_why(show: Open, snapshot: Snapshots) -> None:
    shown = show("mixture_of_experts")
    shown.key("m")
    expect(panel(shown)).to_contain_text("17 products")
    expect(rows(shown)).to_have_count(1)
    expect(rows(shown)).to_contain_text("16 × addmm")
    expect(rows(shown)).to_contain_text("experts.each.*.*")
    snapshot("page", panel(shown).inner_text())
    shown.search("addmm").first.click()
    joined = shown.inspector.locator("[data-part=groups] .gp")
    expect(joined).to_have_count(2)
    snapshot("page", "\n".join(joined.all_inner_texts()))


def test_a_tree_is_one_group_of_chips_with_its_name_once(show: Open) -> None:
    shown = show("linear50", width=8)
    shown.key("m")
    expect(rows(shown)).to_contain_text("50 × addmm")
    shown.unfold_all()
    shown.rests()
    found = picture(shown, "whole")
    assert [len(each) for each in outlined(found, hues(shown))] == [50, 0, 0, 0]
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(found).iter(f"{SVG}text")]
    assert texts.count("A") == 1


@pytest.mark.parametrize(("name", "across"), [("ensemble", 1100), ("ensemble", 1600), ("linear50", 1100)])
def test_names_of_groups_overlap_no_label(show: Open, name: str, across: int) -> None:
    knobs = {"members": 16, "batch": 4, "width": 8} if name == "ensemble" else {"width": 8}
    shown = show(name, across=across, **knobs)
    shown.key("m")
    shown.rests()
    boxes = shown.root.page.evaluate(BOXES, picture(shown))
    names = [box for box in boxes if len(box["text"]) == 1 and box["text"].isupper()]
    labels = [box for box in boxes if box not in names]
    assert names and labels
    assert [(one["text"], other["text"]) for one in names for other in labels if overlap(one, other)] == []


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    apart = one["right"] <= other["left"] or other["right"] <= one["left"]
    return not (apart or one["bottom"] <= other["top"] or other["bottom"] <= one["top"])


# Return the extent of the ink of each text, since a line is higher than its letters.
BOXES = """text => {
    const host = document.createElement('div');
    host.innerHTML = text;
    document.body.append(host);
    const found = [...host.querySelectorAll('text')].map(each => {
        const { left, right, top, bottom } = each.getBoundingClientRect();
        const air = (bottom - top) * 0.22;
        return { text: each.textContent, left, right, top: top + air, bottom: bottom - air };
    });
    host.remove();
    return found;
}"""


def test_where_nobody_looked_the_button_says_so(show: Open) -> None:
    shown = show("linear50", with_groups=False, width=8, uses=2)
    button = shown.root.get_by_role("button", name="groups", exact=True)
    expect(button).to_have_attribute("aria-disabled", "true")
    button.click(force=True)
    shown.key("m")
    shown.expect(groups="off")


def test_a_large_live_graph_is_looked_through_when_asked(tab: Tab, tmp_path: Path, snapshot: Snapshots) -> None:
    graph, document = document_of("ensemble", with_groups=False, members=4, batch=4, width=8)
    page = tab.open(viewport={"width": 1360, "height": 1000})
    trouble = trouble_of(page)
    shown = PosedDeck(page, tmp_path / "posed.html", document.packed(), document.metas)
    shown.key("m")
    expect(panel(shown)).to_be_visible()
    expect(rows(shown)).to_have_count(0)
    snapshot("page", panel(shown).inner_text())
    assert shown.asked() == [{"kind": "groups"}]
    shown.tell(groups=group_content(graph))
    expect(rows(shown)).to_have_count(4)
    tab.leave()
    assert trouble == []
