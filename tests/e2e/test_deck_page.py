"""The deck as a saved page: it plays from a file, without a kernel and without a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from torch import Tensor

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.planning.simulate import schedule, simulate
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, says
from tapescope.widgets.deck.page_data import VERSION, Document, packed, schedule_content
from tapescope.widgets.deck.save_deck import save_page

from .chromium import trouble_of
from .shown import ShownDeck
from .tab import Tab

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved page, and what is on it."""

    graph: ts.Graph
    orders: dict[str, list[int]]
    path: Path

    @property
    def order(self) -> list[int]:
        return self.orders["heap"]


def save(
    path: Path, loss: Tensor, title: str, record: bool = False, memory: bool = True, policy: str = "heap"
) -> Saved:
    """A backward that ran under one policy, and what others would do: orders, predicted memory, maybe records."""
    graph = ts.graph(loss)
    document = Document(graph, title, "direct")
    footprints = dry_run(graph) if memory else None
    orders = {name: list(schedule(graph, name)) for name in dict.fromkeys((policy, "heap", "bfs", "dfs"))}
    document.content["position"] = len(graph)
    for name, order in orders.items():
        timeline = None if footprints is None else simulate(graph, order, footprints)
        content = schedule_content(graph, ts.orders.POLICIES[name], order, timeline=timeline)
        document.content["schedules"].append(content)
    if record:
        with ts.debug(loss, trace="full") as session:
            session.run()
            document.content["records"] = document.records(session.trace, range(len(session.trace)))
    return Saved(graph, orders, save_page(document.packed(), path, title))


def captured(name: str, **knobs: int) -> Tensor:
    make_loss = workload(name).build(**knobs)[1]
    with ts.capture():
        return make_loss()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    path = tmp_path_factory.mktemp("page") / "gpt.html"
    return save(path, captured("gpt2", layers=3), "small GPT", record=True)


@pytest.fixture
def open_page(tab: Tab) -> Iterator[Callable[..., Page]]:
    """Opens a file. At the end no page may have had trouble or asked for another file."""
    troubles: list[list[str]] = []

    def open_page(path: Path, **options: object) -> Page:
        page = tab.open(**{"viewport": {"width": 1360, "height": 1000}, **options})
        trouble = trouble_of(page)
        troubles.append(trouble)
        page.on("request", lambda request: trouble.append(request.url) if _leaves(request.url, path) else None)
        page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield open_page
    tab.leave()
    assert troubles == [[]] * len(troubles)


def _leaves(url: str, path: Path) -> bool:
    return not url.startswith(("blob:", "data:")) and url.partition("#")[0] != path.as_uri()


@pytest.fixture
def gpt(open_page: Callable[..., Page], saved: Saved) -> ShownDeck:
    return ShownDeck(open_page(saved.path))


def test_a_saved_page_opens_at_the_start_and_plays_to_the_end(gpt: ShownDeck, saved: Saved) -> None:
    order = saved.order
    gpt.expect(t=0, running=order[0], status="trace", policy="heap")
    gpt.speed(1000)
    gpt.press("play")
    gpt.expect(t=len(order), running=-1)
    expect(gpt.root.get_by_role("button", name=re.compile("^Play"))).to_be_visible()
    gpt.speed(12)
    gpt.press("play")  # at the end it begins again
    gpt.root.get_by_role("button", name=re.compile("^Pause")).click()
    assert 0 <= int(gpt.data("t")) < len(order)


def test_keys_do_what_the_help_says(gpt: ShownDeck, saved: Saved) -> None:
    order = saved.order
    for key, t in (("ArrowRight", 1), ("Shift+ArrowRight", 11), ("ArrowLeft", 10), ("Shift+ArrowLeft", 0)):
        gpt.key(key)
        gpt.expect(t=t)
    gpt.key("End")
    gpt.expect(t=len(order))
    gpt.key("Home")
    gpt.expect(t=0)
    gpt.key("2")
    gpt.expect(policy="bfs")
    gpt.key("1")
    gpt.expect(policy="heap")
    gpt.scrub(20)
    gpt.key("b")
    gpt.key("Home")
    gpt.key("r")
    gpt.expect(t=20, running=order[20])
    gpt.key("p")
    fresh = ts.graph(captured("gpt2", layers=3))
    peak = simulate(fresh, order, dry_run(fresh)).peak_place
    gpt.expect(t=peak, running=order[peak])
    gpt.key("/")
    gpt.root.page.keyboard.type("addmm")
    expect(gpt.root.get_by_role("listbox", name="matching tasks")).to_be_visible()
    gpt.root.page.keyboard.press("Escape")
    gpt.key("?")
    expect(gpt.root.get_by_role("dialog", name="keys")).to_contain_text("breakpoint")
    gpt.root.page.keyboard.press("Escape")
    expect(gpt.root.get_by_role("dialog", name="keys")).to_have_count(0)
    gpt.key("Space")
    expect(gpt.root.get_by_role("button", name=re.compile("^Pause"))).to_be_visible()


@pytest.mark.parametrize("policy", ["heap", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfs", "dfs"))])
def test_at_every_place_the_page_agrees_with_a_session_in_python(
    open_page: Callable[..., Page], tmp_path: Path, policy: str
) -> None:
    """Running task, ready queue in its order, and the state of each task."""
    saved = save(tmp_path / "page.html", captured("linear50", width=8, uses=4), "four uses", policy=policy)
    shown = ShownDeck(open_page(saved.path))
    shown.key("f")
    session = ts.debug(captured("linear50", width=8, uses=4), policy=policy)
    while session.current is not None:
        ready = [each.task.id for each in session.ready]
        states = {task.id: "waiting" for task in saved.graph.tasks}
        states |= dict.fromkeys(session.order, "done") | dict.fromkeys(ready, "ready") | {ready[0]: "running"}
        shown.expect(t=len(session.order), running=ready[0])
        shown.settles(lambda shown: shown.queue, ready[1:])
        shown.settles(lambda shown: shown.states, states)
        session.step()
        shown.key("ArrowRight")
    shown.expect(t=len(saved.graph), running=-1)


def test_modules_fold_by_keyboard_and_by_click(gpt: ShownDeck) -> None:
    block = gpt.box("h.2")
    gpt.activate(block)
    expect(block).to_have_attribute("aria-expanded", "false")
    gpt.activate(block)
    expect(block).to_have_attribute("aria-expanded", "true")
    gpt.rests()  # what is clicked must stand still
    x, y = place_of(gpt, "h.2")
    gpt.root.locator(".graph canvas").first.click(position={"x": x, "y": y})
    expect(block).to_have_attribute("aria-expanded", "false")


def test_equal_layers_are_drawn_once_and_show_the_one_that_runs(gpt: ShownDeck, saved: Saved) -> None:
    layers = gpt.mirror.locator("[data-path^='h.']").first
    expect(layers).to_have_attribute("data-path", "h.2")
    expect(gpt.mirror.locator("[data-path^='h.'][aria-expanded]").filter(has_text="×3")).to_have_count(1)
    for t in (len(saved.order) // 2, len(saved.order) - 40):
        gpt.scrub(t)
        running = saved.order[t]
        module = saved.graph.module(saved.graph.tasks[running]) or ""
        if module.startswith("h."):
            expect(layers).to_have_attribute("data-path", ".".join(module.split(".")[:2]))
    pinned = gpt.mirror.get_by_role("button", name=re.compile(r"^show h\.1"))
    gpt.activate(pinned)
    expect(layers).to_have_attribute("data-path", "h.1")
    gpt.key("ArrowRight")
    expect(layers).not_to_have_attribute("data-path", "h.1")


@pytest.mark.slow
def test_a_drag_along_equal_layers_shows_each_on_its_way(gpt: ShownDeck) -> None:
    page, layers = gpt.root.page, gpt.mirror.locator("[data-path^='h.']").first
    box = gpt.root.locator(".graph canvas").first.bounding_box()
    at: dict[str, tuple[float, float]] = {}
    for y in range(int(box["y"]) + 4, int(box["y"]) + 160, 6):
        for x in range(int(box["x"]) + 4, int(box["x"] + box["width"]), 12):
            page.mouse.move(x, y)
            said = re.search(r"show h\.(\d)", " ".join(gpt.root.locator(".tip").all_inner_texts()))
            if said:
                at.setdefault(said[1], (x, y))
        if at:
            break
    assert set(at) == {"0", "1", "2"}
    page.mouse.move(*at["2"])
    page.mouse.down()
    for layer in ("1", "0"):
        page.mouse.move(at[layer][0], at[layer][1] + 30)  # above or below them, too
        expect(layers).to_have_attribute("data-path", f"h.{layer}")
    page.mouse.up()
    expect(layers).to_have_attribute("data-path", "h.0")


SEEN_WHILE_IT_OPENS = """() => {
    window.seen = new Set();
    const look = () => {
        const deck = document.querySelector(".tapescope-deck")?.shadowRoot?.querySelector(".deck");
        const listed = [...deck?.querySelectorAll("[data-mirror] [data-key]") ?? []].map(each => each.dataset.key);
        const map = deck?.querySelector(".mini")?.clientWidth ? "with a map" : "";
        if (listed.length) window.seen.add([map, ...listed].join());
        requestAnimationFrame(look);
    };
    look();
}"""


def test_the_first_view_is_there_at_once_and_nothing_of_it_moves(browser: Browser, saved: Saved) -> None:
    page = browser.new_page(viewport={"width": 1360, "height": 1000})
    page.add_init_script(f"({SEEN_WHILE_IT_OPENS})()")
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 4})
    page.goto(saved.path.as_uri())
    ShownDeck(page)
    assert page.evaluate("window.seen.size") == 1
    page.close()


KEEP = """deck => {
    const { width, height } = window.picture = deck.querySelector('.graph canvas');
    window.kept = window.picture.getContext('2d').getImageData(0, 0, width, height).data;
}"""
DIFFERENT = """() => {
    const { width, height } = window.picture;
    const { data } = window.picture.getContext('2d').getImageData(0, 0, width, height);
    return data.reduce((count, value, at) => count + (Math.abs(value - window.kept[at]) > 60 ? 1 : 0), 0);
}"""


@pytest.mark.slow
def test_what_is_drawn_step_by_step_is_what_is_drawn_at_once(open_page: Callable[..., Page], tmp_path: Path) -> None:
    """A step draws what it changes anew, a change of theme all. Two chains of equal layers, begun from afar."""
    torch.manual_seed(0)
    left, right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    one = other = torch.randn(5, 4)
    with ts.capture():
        for _ in range(3):
            one, other = left(one).tanh(), right(other).tanh()
        loss = one.double().sum() + other.double().sum()
    saved = save(tmp_path / "page.html", loss, "chains", policy="bfs")
    shown, random = ShownDeck(open_page(saved.path)), Random(0)
    page = shown.root.page
    for _ in range(20):
        shown.scrub(random.randrange(len(saved.order) + 1))
        shown.rests()
        shown.evaluate(KEEP)
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            shown.expect(theme=scheme)
            shown.rests()
        assert page.evaluate(DIFFERENT) <= 8, "pixels at the seams"


def test_all_is_folded_unfolded_and_as_at_first_by_key_and_by_button(gpt: ShownDeck) -> None:
    first = gpt.boxes.count()
    gpt.key("Shift+BracketLeft")
    expect(gpt.mirror.locator("[aria-expanded='true']")).to_have_count(0)
    gpt.root.get_by_role("button", name="unfold all").click()
    expect(gpt.mirror.locator("[aria-expanded='false']")).to_have_count(0)
    gpt.key("f")
    expect(gpt.boxes).to_have_count(first)


def test_the_list_of_what_is_in_view_is_one_tab_stop_in_which_arrows_move(gpt: ShownDeck) -> None:
    page = gpt.root.page
    gpt.scrub(5)
    expect(gpt.mirror.locator("button[tabindex='0']")).to_have_count(1)
    gpt.root.locator(".graph canvas").first.focus()
    page.keyboard.press("Tab")
    focused = gpt.mirror.locator("button:focus")
    first = focused.get_attribute("data-key")
    page.keyboard.press("ArrowDown")
    expect(focused).not_to_have_attribute("data-key", first)
    page.keyboard.press("ArrowUp")
    expect(focused).to_have_attribute("data-key", first)
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    gpt.expect(t=5)  # nothing has stepped
    gpt.box("h.2").focus()
    ring = gpt.root.locator(".graph .focused")
    expect(ring).to_be_visible()
    page.keyboard.press("Tab")
    expect(gpt.mirror.locator("button:focus")).to_have_count(0)
    expect(ring).to_be_hidden()
    page.keyboard.press("Shift+Tab")
    expect(focused).to_have_attribute("data-path", "h.2")
    page.keyboard.press("Enter")
    expect(focused).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Escape")
    expect(ring).to_be_hidden()
    page.keyboard.press("ArrowRight")
    gpt.expect(t=6)


def test_a_picture_that_cannot_be_made_is_said_to_be_so(gpt: ShownDeck) -> None:
    gpt.root.page.evaluate("() => { HTMLCanvasElement.prototype.toBlob = give => give(null); }")
    for _ in range(2):
        gpt.save_picture("png seen")
        banner = gpt.root.locator(".trouble")
        expect(banner).to_contain_text("PNG")
        banner.get_by_role("button", name="dismiss").click()
        expect(banner).to_be_hidden()


def place_of(shown: ShownDeck, path: str) -> tuple[float, float]:
    """Return the position of a module's label on the canvas, read from the picture of the view."""
    page = shown.root.page
    with page.expect_download() as download:
        shown.save_picture("svg seen")
    picture = ElementTree.parse(download.value.path()).getroot()
    left, top, width, _ = map(float, picture.attrib["viewBox"].split())
    scale = float(picture.attrib["width"]) / width
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        if next(text.itertext()) in (path, path.rpartition(".")[2]):
            return (float(text.attrib["x"]) - left) * scale + 4, (float(text.attrib["y"]) - top) * scale - 3
    raise AssertionError(f"nothing in the picture is called {path}")


def test_search_marks_what_it_finds_and_enter_selects(gpt: ShownDeck, saved: Saved, snapshot: Snapshots) -> None:
    found = gpt.search("gelu")
    expect(found).to_have_count(sum("Gelu" in task.name for task in saved.graph.tasks))
    gpt.root.page.keyboard.press("ArrowDown")
    second = int(found.nth(1).get_attribute("data-task"))
    gpt.root.page.keyboard.press("Enter")
    expect(gpt.inspector).to_contain_text(saved.graph.tasks[second].name)
    expect(gpt.task(second)).to_have_attribute("aria-pressed", "true")
    expect(gpt.search("no such task")).to_have_count(0)
    snapshot("page", gpt.root.get_by_role("listbox", name="matching tasks").inner_text())


def test_what_is_typed_stays_readable_and_each_hit_is_one_line(gpt: ShownDeck) -> None:
    found = gpt.search("layernorm weight")
    field = gpt.root.get_by_label("find a task")
    assert field.evaluate("each => each.scrollWidth <= each.clientWidth")
    heights = found.evaluate_all("all => all.map(each => each.offsetHeight)")
    assert heights and max(heights) < 30


def test_a_click_on_a_visible_task_leaves_the_graph_in_place(gpt: ShownDeck, saved: Saved) -> None:
    page, canvas = gpt.root.page, gpt.root.locator(".graph canvas").first

    def running() -> list[int]:
        gpt.rests()
        return canvas.evaluate(RUNNING)

    box = canvas.bounding_box()
    gpt.activate(gpt.task(saved.order[0]))
    canvas.focus()
    left, top, width = running()
    empty = (box["x"] + box["width"] / 2, box["y"] + box["height"] - 12)
    page.mouse.move(*empty)
    page.mouse.down()
    page.mouse.move(empty[0] - left / 2, empty[1])
    page.mouse.move(empty[0] - left + 6, empty[1] - top + 6)
    page.mouse.up()
    gpt.key("Escape")
    assert running() == [6, 6, width]
    page.mouse.click(box["x"] + 6 + width / 2, box["y"] + 14)
    expect(gpt.task(saved.order[0])).to_have_attribute("aria-pressed", "true")
    assert running() == [6, 6, width]


def test_a_search_lets_go_when_it_is_over(gpt: ShownDeck, saved: Saved) -> None:
    count = sum("Gelu" in task.name for task in saved.graph.tasks)
    found = gpt.search("gelu")
    expect(gpt.root.locator(".hits")).to_have_text(f"{count} found")
    first = int(found.first.get_attribute("data-task"))
    gpt.root.page.keyboard.press("Enter")
    expect(gpt.task(first)).to_have_attribute("aria-pressed", "true")
    expect(gpt.root).to_be_focused()
    expect(gpt.root.locator(".hits")).to_have_text(f"{count} found")  # they keep their ring
    gpt.root.page.keyboard.press("ArrowRight")
    gpt.expect(t=1)
    gpt.root.page.keyboard.press("Escape")
    expect(gpt.root.locator(".hits")).to_be_empty()
    expect(gpt.root.get_by_label("find a task")).to_have_value("")


def test_a_saved_page_takes_keys_at_once(gpt: ShownDeck) -> None:
    gpt.expect(t=0)
    gpt.root.page.keyboard.press("ArrowRight")
    gpt.expect(t=1)
    assert gpt.evaluate("() => scrollY") == 0


def test_where_what_has_the_focus_goes_away_the_deck_takes_it(gpt: ShownDeck) -> None:
    page = gpt.root.page
    for gone in ("each => each.remove()", "each => { each.hidden = true; }", "each => { each.disabled = true; }"):
        button = gpt.root.locator(".grp button").last
        button.focus()
        button.evaluate(gone)
        expect(gpt.root).to_be_focused()
    theme = gpt.root.get_by_role("button", name=re.compile("^theme"))
    theme.focus()
    theme.evaluate("each => each.blur()")
    page.wait_for_timeout(50)
    expect(gpt.root).not_to_be_focused()  # it was not lost: the reader has gone


def test_a_histograms_axis_stays_from_task_to_task(gpt: ShownDeck) -> None:
    labels = set()
    for t in (3, 9, 21, 40):
        gpt.scrub(t)
        shown = gpt.inspector.locator("svg.histogram")
        expect(shown.first).to_be_visible()
        for each in shown.all():
            labels.add(tuple(each.locator("text").all_text_contents()))
    assert len(labels) == 1, labels


@pytest.mark.slow
def test_a_thousand_tasks_a_second_are_played_or_the_speed_says_how_many(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    loss = torch.ones(2, requires_grad=True)
    with ts.capture():
        for _ in range(3000):
            loss = loss * 1.0
        loss = loss.sum()
    shown = ShownDeck(open_page(save(tmp_path / "long.html", loss, "long", memory=False).path))
    shown.speed(1000)
    shown.press("play")
    shown.root.page.wait_for_timeout(2500)
    speed = shown.root.get_by_label(re.compile("^speed"))
    if int(shown.data("t")) <= 1800:
        expect(speed.locator("option:checked")).to_have_text(re.compile("of 1,000 / s$"))
    shown.press("pause")
    assert speed.evaluate(HAS_ROOM, "888 of 1,000 / s")


HAS_ROOM = """(select, text) => {
    const { font, paddingLeft, paddingRight } = getComputedStyle(select);
    const context = document.createElement('canvas').getContext('2d');
    context.font = font;
    return context.measureText(text).width + parseFloat(paddingLeft) + parseFloat(paddingRight) <= select.clientWidth;
}"""


def test_the_source_of_a_task_is_shown_with_its_code(gpt: ShownDeck, saved: Saved) -> None:
    task = next(each for each in saved.graph.tasks if each.source is not None and "gelu" in each.name.lower())
    gpt.search(f"#{task.id}").first.click()
    (line,) = task.source.code(0, 0)
    expect(gpt.inspector).to_contain_text(line.strip())
    expect(gpt.inspector).to_contain_text(task.source.short)


def test_a_long_line_of_the_source_goes_on_between_its_arguments(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    x = torch.rand(3, 4, requires_grad=True)
    with ts.capture():
        if x is not None:
            loss = torch.nn.functional.layer_norm(x,(4,),weight=None,bias=None,eps=1.0e-5).exp().log().sum(-1,keepdim=True).mean()  # noqa: E501 # fmt: skip
    saved = save(tmp_path / "page.html", loss, "long")
    shown = ShownDeck(open_page(saved.path, viewport={"width": 1100, "height": 1000}))
    line = shown.inspector.locator(".code .on")
    expect(line).to_contain_text("loss = torch.nn.functional.layer_norm(x,(4,),weight=None,bias=None,eps=1.0e-5)")
    rows = line.evaluate(ROWS)
    assert rows[0].startswith("loss ="), "it is beside its number"
    assert len(rows) > 1
    assert all(re.search(r"[\s,(]$", row) for row in rows[:-1]), rows


# Return the text of a line of code as broken into rows.
ROWS = """line => {
    const rows = [], walker = document.createTreeWalker(line.lastChild, NodeFilter.SHOW_TEXT);
    let below = line.getBoundingClientRect().top - 5;
    for (let node; (node = walker.nextNode());) for (let at = 0; at < node.length; at++) {
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        const { top } = range.getBoundingClientRect();
        const isSpace = !node.data[at].trim();
        if (!isSpace && top > below + 4) { rows.push(''); below = top; }
        if (rows.length) rows[rows.length - 1] += node.data[at];
    }
    return rows;
}"""


@pytest.mark.parametrize(
    "width", [360, 700, 1600, *(pytest.param(width, marks=pytest.mark.slow) for width in (480, 1100))]
)
def test_at_every_width_nothing_is_cut_or_overlaps(open_page: Callable[..., Page], saved: Saved, width: int) -> None:
    page = open_page(saved.path, viewport={"width": width, "height": 2600})
    shown = ShownDeck(page)
    shown.scrub(30)
    shown.rests()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert shown.evaluate(OUTSIDE) == []
    assert shown.evaluate(OVERLAPS, CONTROLS) == []


OUTSIDE = """deck => {
    const { left, right } = deck.getBoundingClientRect();
    return [...deck.querySelectorAll('button, input, select, h3, canvas')].filter(each => {
        const box = each.getBoundingClientRect();
        return box.width && !each.closest('.sr, .found, .menu') && (box.left < left - 1 || box.right > right + 1);
    }).map(each => each.outerHTML.slice(0, 80));
}"""
CONTROLS = ".bar button, .bar select, .bar input, .key button"
OVERLAPS = """(deck, controls) => [...deck.querySelectorAll(controls)].filter(control => {
    const box = control.getBoundingClientRect();
    const list = control.closest('.tabs')?.getBoundingClientRect() ?? deck.getBoundingClientRect();
    const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
    if (!box.width || x < list.left || x > list.right) return false; // hidden, or scrolled away
    const hit = deck.getRootNode().elementFromPoint(x, y);
    return !(control.contains(hit) || hit.contains(control));
}).map(each => each.outerHTML.slice(0, 80))"""


def test_the_theme_is_the_readers_and_can_be_chosen(gpt: ShownDeck) -> None:
    page = gpt.root.page
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        gpt.expect(theme=scheme)
    gpt.key("t")
    gpt.expect(theme="dark")
    gpt.key("t")
    gpt.expect(theme="light")


@pytest.mark.parametrize(
    "where", ["document.body.dataset.theme = ", "document.documentElement.attributes.theme.value = "]
)
def test_the_theme_of_marimo_and_of_colab_is_the_decks_too(gpt: ShownDeck, where: str) -> None:
    gpt.root.page.emulate_media(color_scheme="light")
    gpt.evaluate("() => document.documentElement.setAttribute('theme', '')")
    for theme in ("dark", "light"):
        gpt.evaluate(f"() => {{ {where}'{theme}'; }}")
        gpt.expect(theme=theme)
    gpt.evaluate("() => { delete document.body.dataset.theme; document.documentElement.removeAttribute('theme'); }")


@pytest.mark.parametrize("media", [{"reduced_motion": "reduce"}, {"forced_colors": "active"}], ids=str)
def test_with_less_motion_or_forced_colours_it_works_as_well(gpt: ShownDeck, media: dict[str, str]) -> None:
    gpt.root.page.emulate_media(**media)
    gpt.press("step")
    gpt.expect(t=1)
    assert gpt.canvas_is_drawn(".graph canvas")


SYSTEM_COLOURS = """(deck, names) => {
    const canvas = deck.querySelector('.graph canvas');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const drawn = new Set();
    for (let at = 0; at < data.length; at += 4) drawn.add(data.slice(at, at + 3).join(', '));
    const probe = document.createElement('span');
    probe.style.forcedColorAdjust = 'none';
    return names.filter(name => {
        deck.append(probe);
        probe.style.color = name;
        const { color } = getComputedStyle(probe);
        probe.remove();
        return !drawn.has(color.match(/[0-9]+, [0-9]+, [0-9]+/)[0]);
    });
}"""


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_forced_colours_are_those_of_the_graph(gpt: ShownDeck, scheme: str) -> None:
    gpt.root.page.emulate_media(color_scheme=scheme, forced_colors="active")
    gpt.settles(lambda shown: shown.evaluate(SYSTEM_COLOURS, ["Canvas", "CanvasText"]), [])


NAMED = "button, input, select, canvas:not([aria-hidden], [aria-hidden] *), [role=listbox], [role=menu], section"
UNNAMED = f"""deck => [...deck.querySelectorAll('{NAMED}')]
    .filter(each => !(each.ariaLabel || each.textContent.trim() || each.title || each.hidden))
    .map(each => each.outerHTML.slice(0, 100))"""


def test_every_control_has_a_name_and_steps_are_announced(gpt: ShownDeck, saved: Saved) -> None:
    assert gpt.evaluate(UNNAMED) == []
    gpt.press("step")
    first, second, *_ = saved.order
    said = gpt.root.get_by_role("status").first
    expect(said).to_contain_text(f"{saved.graph.tasks[second].name}, ")
    expect(said).to_contain_text(re.compile(rf"\b2nd .*\b{len(saved.graph)}\b"))
    assert saved.graph.tasks[first].name not in said.inner_text()


def test_the_wheel_scrolls_the_page_until_the_graph_is_clicked(gpt: ShownDeck) -> None:
    page = gpt.root.page
    page.set_viewport_size({"width": 1360, "height": 500})
    box = gpt.root.locator(".graph canvas").first.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.wheel(0, 120)
    gpt.settles(lambda _: page.evaluate("scrollY > 50"), True)


RUNNING = """canvas => {
    const { data, width } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const [xs, ys] = [[], []];
    for (let at = 0; at < data.length; at += 4) {
        if (data[at] < 170 || data[at + 1] > 90 || data[at + 2] > 60) continue;
        xs.push(at / 4 % width);
        ys.push(Math.floor(at / 4 / width));
    }
    const least = some => some.reduce((a, b) => Math.min(a, b));
    const most = some => some.reduce((a, b) => Math.max(a, b));
    return [least(xs), least(ys), most(xs) - least(xs)];
}"""


def test_a_drag_moves_the_graph_and_is_no_click_and_wheel_and_pinch_scale_it(gpt: ShownDeck, saved: Saved) -> None:
    page, canvas = gpt.root.page, gpt.root.locator(".graph canvas").first

    def running() -> list[int]:
        """Return the position of the running task: left, top, width."""
        gpt.rests()
        return canvas.evaluate(RUNNING)

    box = canvas.bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] - 12)
    gpt.activate(gpt.task(saved.order[0]))
    canvas.focus()
    left, top, width = running()
    selected = gpt.inspector.inner_text()
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 30, middle[1] + 5)
    page.mouse.move(middle[0] + 60, middle[1] + 40)  # outside of the graph
    page.mouse.up()
    assert running() == [left + 60, top + 40, width]
    assert gpt.inspector.inner_text() == selected
    beside = (box["x"] + left + 60 + width + 30, box["y"] + top + 50)
    page.mouse.move(*beside)
    page.mouse.wheel(0, -120)
    _, _, wider = running()
    assert wider == pytest.approx(width * 2**0.24, abs=3)
    touches = page.context.new_cdp_session(page)
    for kind, apart in (("touchStart", 40), ("touchMove", 60), ("touchMove", 80), ("touchEnd", None)):
        points = [] if apart is None else [{"x": beside[0] + way * apart, "y": beside[1]} for way in (-0.5, 0.5)]
        touches.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert running()[2] > 1.3 * wider


def test_a_deck_that_is_hidden_for_a_while_goes_on(gpt: ShownDeck) -> None:
    for width in (700, 1360):
        gpt.root.page.set_viewport_size({"width": width, "height": 900})
        gpt.evaluate("deck => { deck.getRootNode().host.style.display = 'none'; }")
        gpt.root.page.wait_for_timeout(100)
        before = int(gpt.data("t"))
        gpt.evaluate("deck => deck.querySelector('[data-act=step]').click()")
        gpt.evaluate("deck => { deck.getRootNode().host.style.display = ''; }")
        gpt.expect(t=before + 1)
        gpt.rests()
        assert gpt.canvas_is_drawn(".graph canvas")


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"no gzip", ["JSON"]),
        (packed({"format": "tapescope.trace", "version": 1}), ["tapescope"]),
        (packed({"format": "tapescope.deck", "version": 7}), ["tapescope", 7]),
        (packed({"format": "tapescope.deck", "version": 1}), ["tapescope", 1]),
        (packed({"format": "tapescope.deck", "version": VERSION}), ["tasks", "edges", "schedules"]),
    ],
    ids=["damaged", "other", "newer", "older", "empty"],
)
def test_data_that_cannot_be_shown_is_said_to_be_so(
    open_page: Callable[..., Page], tmp_path: Path, content: bytes, facts: list[object], snapshot: Snapshots
) -> None:
    page = open_page(save_page(content, tmp_path / "broken.html", "broken"))
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(str(facts[0]))
    says(alert.inner_text(), *facts)
    snapshot("page", alert.inner_text())


def test_names_in_the_page_are_text(open_page: Callable[..., Page], tmp_path: Path) -> None:
    loss = captured("linear50", width=8, uses=2)
    page = open_page(save(tmp_path / "names.html", loss, "</title><script>alert(1)</script>").path)
    shown = ShownDeck(page)
    expect(shown.root).to_contain_text("</title><script>alert(1)</script>")
    assert page.title().startswith("</title><script>")


def chain(length: int) -> Tensor:
    """Some `length` tasks, each the only user of the one before."""
    x = torch.ones(4, requires_grad=True)
    for _ in range(length // 2):
        x = x * 1.0001 + 0.1
    return x.sum()


def test_twenty_thousand_tasks_open_folded_and_are_searched_and_scrubbed(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    saved = save(tmp_path / "page.html", chain(20_000), "a long chain", memory=False)
    count = len(saved.graph)
    assert count > 20_000
    shown = ShownDeck(open_page(saved.path))
    assert shown.mirror.locator("button").count() <= 300
    shown.search(f"#{count // 2}").first.click()
    shown.scrub(count - 1)
    shown.expect(t=count - 1, running=saved.order[-1])
    shown.press("step")
    shown.expect(t=count)
