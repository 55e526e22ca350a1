"""The deck in JupyterLab: one session, which the page and the kernel both drive and both see."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, expect

from tapescope.tests.says import Snapshots, says

from .chromium import trouble_of
from .conftest import GRADIENTS_AGREE, REMEMBER
from .lab import Lab, Notebook
from .shown import ShownDeck

pytestmark = pytest.mark.e2e

MODEL = """
%load_ext tapescope
import threading
import ipywidgets, torch, tapescope as ts
from tapescope.widgets.deck.auto_display import latest_deck
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.blocks(x))

torch.manual_seed(0)
model, x, hooks = Net(), torch.randn(5, 4), []

def captured():
    with ts.capture(model):
        return model(x).square().mean()

model(x).square().mean().backward()
expected = [parameter.grad.clone() for parameter in model.parameters()]
planned = ts.backward(captured(), policy="heap", retain_graph=True).order
"""


@pytest.fixture(scope="module")
def model(open_notebook: Notebook) -> None:
    """The model in the kernel, once for all tests."""
    open_notebook.run(MODEL)


@pytest.fixture
def lab_page(notebook: Notebook, model: None) -> Notebook:
    notebook.kernel("model.zero_grad()\nwhile hooks: hooks.pop().remove()")
    return notebook


def test_the_magic_opens_a_deck_on_what_its_cell_computes(lab_page: Notebook) -> None:
    cell = lab_page.run("%%tapescope --policy bfs --model model loss\nloss = model(x).square().mean()")
    shown = ShownDeck(cell.element)
    shown.expect(t=0, status="stopped", policy="bfs", running=lab_page.value("latest_deck().current_task"))
    expect(shown.task(int(shown.data("running")))).to_have_attribute("data-state", "running")
    assert "blocks.1.up" in shown.search("blocks.1.up").first.inner_text()
    assert lab_page.value("[getattr(latest_deck(), name) for name in ('position', 'status', 'policy', 'engine')]") == [
        0,
        "stopped",
        "bfs",
        "direct",
    ]


def test_an_error_in_the_magics_cell_is_told_as_always_with_the_graph_so_far(lab_page: Notebook) -> None:
    cell = lab_page.add("%%tapescope loss\nhalf = model.blocks(x)\nraise RuntimeError('<i>no loss</i>')")
    with pytest.raises(AssertionError, match="RuntimeError: <i>no loss</i>"):
        cell.run()
    assert [output.get("ename") for output in cell.outputs if output["output_type"] == "error"] == ["RuntimeError"]
    assert any("image/svg+xml" in kinds for kinds in cell.kinds)
    expect(cell.element.locator(".tapescope-deck")).to_have_count(0)


def test_line_magics_drive_the_deck_shown_last(lab_page: Notebook) -> None:
    lab_page.kernel("loss = captured()")
    shown = ShownDeck(lab_page.run("%tapescope --engine native loss").element)
    lab_page.run("%tapescope step 3")
    shown.expect(t=3)
    said = lab_page.run("%tapescope compare bfs dfs heap")
    assert "text/html" in said.kinds[0] and all(name in said.text for name in ("bfs", "dfs", "heap"))
    lab_page.run("%tapescope run")
    shown.expect(status="finished")
    for name in ("run.svg", "run.html", "run.json"):
        lab_page.run(f"%tapescope export {name}")
    assert lab_page.value("ts.load('run.json').order == planned")
    assert (lab_page.folder / "run.svg").read_text(encoding="utf-8").startswith("<svg")
    assert lab_page.value(GRADIENTS_AGREE)


def test_where_no_page_runs_there_is_a_picture_which_the_page_hides(lab_page: Notebook) -> None:
    cell = lab_page.run("deck = ts.debug(captured())")
    ShownDeck(cell.element)
    assert any("image/svg+xml" in kinds for kinds in cell.kinds)
    expect(cell.element.locator(".jp-RenderedSVG")).to_be_hidden()


def test_a_page_that_is_loaded_anew_shows_the_session_where_it_is(lab_page: Notebook, shown: ShownDeck) -> None:
    lab_page.kernel("deck.step(count=4); deck.breakpoints = [planned[6]]")
    shown.expect(t=4)
    lab_page.reload()
    shown = ShownDeck(lab_page.page)
    shown.expect(t=4, status="stopped")
    shown.press("breakpoint")
    shown.expect(t=6, running=lab_page.value("planned[6]"))
    lab_page.wait_for("deck.position == 6")


@pytest.mark.parametrize("engine", [pytest.param("direct", marks=pytest.mark.slow), "native"])
def test_a_step_on_the_page_and_one_in_python_drive_the_same_session(lab_page: Notebook, engine: str) -> None:
    shown = ShownDeck(lab_page.run(f"deck = ts.debug(captured(), engine={engine!r})").element)
    shown.press("step")
    shown.expect(t=1, status="stopped")
    lab_page.wait_for("deck.position == 1")
    lab_page.run("deck.step(count=2)")
    shown.expect(t=3, running=lab_page.value("deck.current_task"))
    shown.key("ArrowRight")
    shown.expect(t=4)
    lab_page.wait_for("deck.position == 4")
    ran = lab_page.value("deck.order")
    assert [shown.state(task) for task in ran] == ["done"] * 4
    assert shown.state(lab_page.value("deck.current_task")) == "running"
    assert shown.queue == lab_page.value("[each.task.id for each in deck.ready if each.task != deck.current]")
    lab_page.kernel("deck.run()")
    shown.expect(status="finished", t=lab_page.value("len(deck.order)"))
    assert lab_page.value(GRADIENTS_AGREE)


@pytest.mark.slow
def test_arrows_look_back_and_leave_what_has_run(lab_page: Notebook, shown: ShownDeck) -> None:
    lab_page.kernel("deck.step(count=5)")
    shown.expect(t=5)
    shown.press("back")
    shown.key("ArrowLeft")
    shown.expect(t=3, running=lab_page.value("deck.order[3]"))
    shown.key("ArrowLeft")
    shown.key("ArrowLeft")
    shown.expect(t=1)
    assert lab_page.value("[deck.position, len(deck.order)]") == [5, 5]
    shown.press("step")
    shown.expect(t=2)
    assert lab_page.value("deck.position") == 5, "it is played, not run"
    shown.root.get_by_role("button", name="back to now").click()
    shown.expect(t=5)
    shown.press("step")
    shown.expect(t=6)
    lab_page.wait_for("deck.position == 6")


@pytest.mark.slow
def test_playing_runs_the_backward_to_its_end(lab_page: Notebook, shown: ShownDeck) -> None:
    shown.speed(30)
    shown.press("play")
    lab_page.wait_for("0 < deck.position < 20")
    shown.root.get_by_role("button", name=re.compile("^Pause")).click()
    lab_page.wait_for("deck.status == 'stopped'")
    paused = lab_page.value("deck.position")
    lab_page.page.wait_for_timeout(150)
    assert lab_page.value("deck.position") == paused
    shown.press("play")
    shown.expect(status="finished", running=-1)
    assert lab_page.value("[deck.status, deck.current]") == ["finished", None]
    assert lab_page.value(GRADIENTS_AGREE)


@pytest.mark.slow
def test_the_slider_shows_any_place_and_runs_nothing(lab_page: Notebook, shown: ShownDeck) -> None:
    lab_page.kernel("deck.step(count=8)")
    shown.expect(t=8)
    for t in (2, 7, 0):
        shown.scrub(t)
        shown.expect(t=t, running=lab_page.value(f"deck.order[{t}]"))
    assert lab_page.value("deck.position") == 8


def test_a_tab_shows_another_policy_and_the_trait_switches_what_runs(lab_page: Notebook, shown: ShownDeck) -> None:
    lab_page.kernel("deck.step(count=4)")
    shown.expect(t=4)
    shown.show_policy("bfs")
    shown.expect(policy="bfs", t=4)
    assert lab_page.value("deck.policy") == "heap"
    expect(shown.tabs.first).to_contain_text("live")
    lab_page.kernel("deck.policy = 'dfs'")
    lab_page.wait_for("deck.trace is not None and deck.policy == 'dfs'")
    shown.show_policy("dfs")
    shown.expect(policy="dfs")
    expect(shown.tabs.first).to_contain_text("DFS")
    shown.show_policy("bfs")
    shown.root.locator(".run-on button", has_text="BFS").click()
    lab_page.wait_for("deck.policy == 'bfs'")
    lab_page.kernel("deck.run()")
    assert lab_page.value(GRADIENTS_AGREE)


def test_an_unknown_policy_is_refused_and_the_old_one_stays(lab_page: Notebook, shown: ShownDeck) -> None:
    cell = lab_page.run("try:\n    deck.policy = 'fastest'\nexcept Exception as error:\n    print(error)")
    assert "heap" in cell.text and "bfs" in cell.text
    assert lab_page.value("deck.policy") == "heap"
    shown.expect(policy="heap")


@pytest.mark.slow
def test_modules_fold_and_unfold(lab_page: Notebook, shown: ShownDeck) -> None:
    shown.key("Shift+BracketRight")
    block = shown.mirror.locator("[data-path^='blocks.']").first
    expect(block).to_have_attribute("aria-expanded", "true")
    tasks = shown.tasks.count()
    for expanded in ("false", "true"):
        shown.activate(block)
        expect(block).to_have_attribute("aria-expanded", expanded)
        if expanded == "true":
            expect(shown.tasks).to_have_count(tasks)
        else:
            expect(shown.tasks).not_to_have_count(tasks)


@pytest.mark.slow
def test_search_finds_a_task_and_its_source_is_read(lab_page: Notebook, shown: ShownDeck) -> None:
    found = shown.search("tanh")
    expect(found.first).to_contain_text("TanhBackward0")
    found.first.click()
    task = lab_page.value("next(each.id for each in deck.graph.tasks if each.name == 'TanhBackward0')")
    lab_page.wait_for("deck.selection is not None")
    selected = lab_page.value("deck.selection")
    assert lab_page.value(f"deck.graph.tasks[{selected}].name") == "TanhBackward0"
    expect(shown.inspector).to_contain_text("TanhBackward0")
    expect(shown.inspector).to_contain_text("self.down(torch.tanh(self.up(x)))")
    lab_page.kernel(f"deck.selection = {task}")
    expect(shown.inspector).to_contain_text("blocks.0")
    lab_page.kernel("deck.selection = None")
    expect(shown.inspector).to_contain_text(lab_page.value("deck.current.name"))


def test_breakpoints_of_either_side_stop_the_session(lab_page: Notebook, shown: ShownDeck) -> None:
    third, eighth = lab_page.value("[planned[3], planned[8]]")
    lab_page.kernel(f"deck.breakpoints = [{third}]")
    shown.press("breakpoint")
    shown.expect(t=3, running=third, status="stopped")
    lab_page.wait_for("deck.position == 3")
    lab_page.kernel(f"deck.selection = {eighth}")
    shown.key("b")
    lab_page.wait_for(f"sorted(deck.breakpoints) == {sorted([third, eighth])}")
    lab_page.kernel("deck.run()")
    shown.expect(t=8, running=eighth, status="stopped")
    lab_page.kernel("deck.breakpoints = []; deck.run_to(planned[12])")
    shown.expect(t=12, running=lab_page.value("planned[12]"))


@pytest.mark.slow
def test_gradients_of_what_has_run_are_on_the_page(lab_page: Notebook, shown: ShownDeck) -> None:
    lab_page.kernel("deck.run()")
    shown.expect(status="finished")
    weight = lab_page.value("next(each.id for each in deck.graph.tasks if each.parameter == 'head.weight')")
    lab_page.kernel(f"deck.selection = {weight}")
    norm = lab_page.value("float(f'{expected[-2].norm().item():.3g}')")
    expect(shown.inspector).to_contain_text("head.weight")
    expect(shown.inspector).to_contain_text(str(norm))


@pytest.mark.slow
def test_what_is_on_the_screen_is_saved_as_a_picture(lab_page: Notebook, shown: ShownDeck) -> None:
    lab_page.kernel("deck.step(count=3)")
    shown.expect(t=3)
    with lab_page.page.expect_download() as saved:
        shown.save_picture("svg whole")
    assert re.fullmatch(r"Net-heap-task-4\.svg", saved.value.suggested_filename)
    drawn = ElementTree.parse(saved.value.path())
    texts = "".join(drawn.getroot().itertext())
    assert "blocks" in texts and "Tanh" in texts and "head" in texts
    with lab_page.page.expect_download() as saved:
        shown.save_picture("png seen")
    assert saved.value.suggested_filename.endswith(".png")
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_saved_page_plays_without_a_kernel(lab_page: Notebook, shown: ShownDeck) -> None:
    lab_page.kernel("deck.step(count=5); saved = deck.save_html('saved deck.html')")
    page = lab_page.page.context.browser.new_page()
    trouble = trouble_of(page)
    page.goto((lab_page.folder / "saved deck.html").as_uri())
    saved = ShownDeck(page)
    saved.expect(policy="heap")
    saved.scrub(0)
    saved.press("step")
    saved.expect(t=1, running=lab_page.value("deck.order[1]"))
    page.close()
    assert trouble == []


SLOW = """
loss = captured()
go_on = threading.Event()
hooks.append(model.blocks[1].up.weight.register_hook(lambda gradient: (go_on.wait(60), None)[1]))
deck = ts.debug(loss)
"""


def test_an_interrupt_stops_python_and_leaves_the_deck_usable(lab_page: Notebook) -> None:
    shown = ShownDeck(lab_page.run(SLOW).element)
    cell = lab_page.add("deck.run()")
    cell.start()
    shown.expect(status="running")
    lab_page.interrupt()
    lab_page.wait_until_idle()
    assert [output["ename"] for output in cell.outputs if output["output_type"] == "error"] == ["KeyboardInterrupt"]
    lab_page.kernel("go_on.set()")
    shown.expect(status="stopped")
    position = lab_page.value("deck.position")
    assert 0 < position < lab_page.value("len(planned)")
    shown.press("step")
    lab_page.wait_for(f"deck.position == {position + 1}")
    lab_page.kernel("deck.run()")
    shown.expect(status="finished")
    assert lab_page.value(GRADIENTS_AGREE)


def test_a_run_of_the_pages_leaves_the_kernel_free_and_can_be_stopped(lab_page: Notebook) -> None:
    shown = ShownDeck(lab_page.run(SLOW).element)
    shown.press("breakpoint")
    shown.expect(status="running")
    assert lab_page.value("[1 + 1, deck.status]") == [2, "running"], "answered while the hook waits"
    shown.root.get_by_role("button", name=re.compile("^Stop")).click()
    lab_page.wait_for("deck._live.driver.stop_asked")
    lab_page.kernel("go_on.set()")
    shown.expect(status="stopped")
    assert 0 < lab_page.value("deck.position") < lab_page.value("len(planned)")


@pytest.mark.slow
def test_a_hook_that_raises_is_told_on_both_sides(lab_page: Notebook) -> None:
    lab_page.kernel("loss = captured()\ndef wrong(gradient): raise ValueError('<b>no such gradient</b>')")
    lab_page.kernel("hooks.append(model.blocks[1].up.weight.register_hook(wrong))")
    shown = ShownDeck(lab_page.run("deck = ts.debug(loss)").element)
    shown.press("breakpoint")
    shown.expect(status="failed")
    expect(shown.root).to_contain_text("ValueError: <b>no such gradient</b>")
    over = lab_page.run("try: deck.step()\nexcept RuntimeError as error: print(error)").text
    says(over, "ValueError", "AccumulateGrad", "blocks.1.up.weight", "ts.debug(loss)")


@pytest.mark.slow
def test_after_a_restart_the_page_says_so_and_the_cell_can_be_run_again(
    lab_page: Notebook, shown: ShownDeck, snapshot: Snapshots
) -> None:
    lab_page.restart()
    shown.expect(status="closed")  # without a click
    trouble = shown.root.locator(".trouble")
    expect(trouble).to_contain_text("kernel")
    snapshot("page", trouble.inner_text())
    shown.expect(t=0)
    lab_page.run(MODEL)
    lab_page.kernel(REMEMBER)
    shown = ShownDeck(lab_page.run("deck = ts.debug(captured())").element)
    shown.press("step")
    lab_page.wait_for("deck.position == 1")


@pytest.mark.slow
def test_after_shift_enter_a_key_leads_to_the_deck_and_a_shutdown_is_shown(lab: Lab, browser: Browser) -> None:
    notebook = Notebook(browser.new_page(viewport={"width": 1400, "height": 1000}), lab, "shift_enter")
    notebook.kernel(MODEL.replace("%load_ext tapescope\n", ""))
    cell = notebook.add("deck = ts.debug(captured())")
    cell.element.locator(".cm-content").click()
    notebook.page.keyboard.press("Shift+Enter")
    shown = ShownDeck(cell.element)
    notebook.page.keyboard.press("Alt+Shift+KeyD")
    expect(shown.root).to_be_focused()
    notebook.page.keyboard.press("ArrowRight")
    shown.expect(t=1)
    notebook.page.keyboard.press("Escape")
    expect(shown.root).not_to_be_focused()
    assert notebook.page.evaluate("document.activeElement.closest('.jp-Cell') !== null"), "JupyterLab's keys work again"
    notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    shown.expect(status="closed")
    expect(shown.root.locator(".trouble")).to_contain_text("shut down")
    notebook.page.close()


COUNT_FRAMES = """duration => new Promise(resolve => {
    const request = window.requestAnimationFrame;
    let count = 0;
    window.requestAnimationFrame = callback => { count++; return request.call(window, callback); };
    setTimeout(() => { window.requestAnimationFrame = request; resolve(count); }, duration);
})"""


def test_a_closed_output_stops_playing_and_leaves_a_deck_that_can_be_shown_again(
    lab_page: Notebook, shown: ShownDeck
) -> None:
    shown.press("play")
    lab_page.wait_for("deck.position > 0")
    assert lab_page.page.evaluate(COUNT_FRAMES, 500) > 1
    lab_page.clear()
    expect(lab_page.page.locator(".tapescope-deck")).to_have_count(0)
    lab_page.page.wait_for_timeout(300)  # a step that was under way
    position = lab_page.value("deck.position")
    # JupyterLab asks for a frame now and then; what plays asks for them all the time.
    assert any(lab_page.page.evaluate(COUNT_FRAMES, 500) == 0 for _ in range(4))
    assert lab_page.value("deck.position") == position < lab_page.value("len(planned)")
    lab_page.kernel("deck.step()")
    again = ShownDeck(lab_page.run("deck").element)
    again.expect(t=position + 1, status="stopped")
    again.press("step")
    again.expect(t=position + 2)


def test_a_deck_that_nobody_can_reach_any_more_closes_itself(lab_page: Notebook) -> None:
    ShownDeck(lab_page.run("ts.debug(captured(), engine='native');").element).press("step")
    lab_page.kernel("unnamed = __import__('weakref').ref(latest_deck())")
    lab_page.wait_for("unnamed().position == 1")
    lab_page.clear()
    lab_page.wait_for("unnamed() is None or unnamed().status == 'closed'")


def test_two_decks_at_once_keep_apart(lab_page: Notebook) -> None:
    lab_page.kernel("first_loss, second_loss = captured(), captured()")
    first = ShownDeck(lab_page.run("first = ts.debug(first_loss, policy='bfs')").element)
    second = ShownDeck(lab_page.run("second = ts.debug(second_loss, engine='native')").element)
    first.press("step")
    second.press("step")
    second.press("step")
    second.expect(t=2)
    first.expect(t=1)
    lab_page.kernel("first.close()")
    first.root.wait_for(state="detached")
    lab_page.kernel("second.run()")
    second.expect(status="finished")


@pytest.mark.slow
def test_a_second_view_of_a_deck_shows_the_same(lab_page: Notebook, shown: ShownDeck) -> None:
    cell = lab_page.run("deck")
    second = ShownDeck(cell.element)
    shown.press("step")
    second.expect(t=1)
    second.key("ArrowRight")
    shown.expect(t=2)
    lab_page.wait_for("deck.position == 2")
    cell.run()  # closes the view, and makes another
    shown.press("step")
    ShownDeck(cell.element).expect(t=3)


@pytest.mark.slow
def test_in_boxes_and_tabs_a_deck_is_a_widget_like_others(lab_page: Notebook) -> None:
    cell = lab_page.run("deck = ts.debug(captured())\nipywidgets.HBox([deck, ipywidgets.Button(description='mine')])")
    expect(cell.element.locator(".tapescope-deck .deck")).to_have_count(1)
    in_box = ShownDeck(cell.element)
    assert in_box.root.bounding_box()["width"] > 300
    in_box.press("step")
    lab_page.wait_for("deck.position == 1")
    tabs = lab_page.run(
        "count = ipywidgets.IntText()\nother = ts.debug(captured())\n"
        "link = __import__('traitlets').dlink((other, 'position'), (count, 'value'))\n"
        "ipywidgets.Tab([count, other], titles=['count', 'deck'])"
    )
    tabs.element.get_by_role("tab", name="deck", exact=True).click()
    in_tab = ShownDeck(tabs.element)
    expect(in_tab.root).to_be_visible()
    in_tab.press("step")
    in_tab.press("step")
    lab_page.wait_for("count.value == 2")
    assert in_tab.canvas_is_drawn(".graph canvas")


def test_the_theme_of_jupyterlab_is_followed_live(lab_page: Notebook, shown: ShownDeck) -> None:
    shown.expect(theme="light")
    light = shown.evaluate("deck => getComputedStyle(deck).backgroundColor")
    lab_page.theme("JupyterLab Dark")
    try:
        shown.expect(theme="dark")
        assert shown.evaluate("deck => getComputedStyle(deck).backgroundColor") != light
    finally:
        lab_page.theme("JupyterLab Light")
    shown.expect(theme="light")


def test_the_decks_keys_are_not_those_of_jupyterlab(lab_page: Notebook, shown: ShownDeck) -> None:
    cells = lab_page.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell")
    before = cells.count()
    for key in (
        "b",
        "b",
        "d",
        "d",
        "x",
        "Shift+Enter",
        "a",
    ):  # insert below, delete, cut, run, insert above
        shown.key(key)
    shown.search("ddxx")
    expect(cells).to_have_count(before)
    assert lab_page.value("deck.breakpoints") == []


STRANGE = """
import linecache
source = "def strange(x):\\n    return torch.tanh(x)  # </script><script>alert(1)</script> \\"quoted\\" 🦆\\n"
name = "<img src=x onerror=alert(2)>.py"
linecache.cache[name] = (len(source), None, source.splitlines(True), name)
scope = {"torch": torch}
exec(compile(source, name, "exec"), scope)

class Strange(nn.Module):
    def __init__(self):
        super().__init__()
        for each in ("<script>alert(3)</script>", "\\"' onclick='alert(4)'", "🦆" * 40, "n" * 10_000):
            self.add_module(each, type("<b>Bold</b>", (nn.Linear,), {})(4, 4))
    def forward(self, x):
        for each in self.children():
            x = scope["strange"](each(x))
        return x

strange = Strange()
with ts.capture(strange):
    loss = strange(x).sum()
deck = ts.debug(loss)
"""


def test_names_of_the_users_are_shown_as_text(lab_page: Notebook) -> None:
    dialogs: list[str] = []
    lab_page.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    shown = ShownDeck(lab_page.run(STRANGE).element)
    for words in ("<script>alert(3)", "onclick='alert(4)", "🦆", "nnnn"):
        shown.search(words).first.click()
        expect(shown.inspector).to_contain_text(words)
    lab_page.kernel("deck.selection = next(each.id for each in deck.graph.tasks if each.name == 'TanhBackward0')")
    expect(shown.inspector).to_contain_text('</script><script>alert(1)</script> "quoted" 🦆')
    assert shown.root.locator("script, img, b:text('Bold'), [onclick]").count() == 0
    assert shown.evaluate("deck => deck.scrollWidth <= deck.clientWidth"), "a long name widens nothing"
    lab_page.kernel("deck.run()")
    shown.expect(status="finished")
    assert dialogs == []


WITHIN = "deck => { const { x, y, width, height } = deck.getBoundingClientRect(); return [x, y, width, height]; }"
ON_TOP = """deck => {
    const { host } = deck.getRootNode(), { innerWidth: w, innerHeight: h } = window;
    return [[3, 3], [w - 3, 3], [3, h - 3], [w - 3, h - 3], [w / 2, h / 2]]
        .every(([x, y]) => document.elementFromPoint(x, y) === host);
}"""
HAS_FOCUS = "deck => deck.contains(deck.getRootNode().activeElement) || deck.getRootNode().activeElement === deck"


def test_over_the_whole_window_the_deck_lies_on_all_of_jupyterlab_and_goes_on(lab_page: Notebook) -> None:
    cell = lab_page.run("deck = ts.debug(captured(), policy='heap')")
    shown, page = ShownDeck(cell.element), lab_page.page
    before, size = shown.evaluate(WITHIN), page.viewport_size
    assert size is not None and before[0] > 10, "in a cell"
    assert not shown.evaluate(ON_TOP)
    shown.key("w")
    shown.settles(lambda shown: shown.evaluate(WITHIN), [0, 0, size["width"], size["height"]])
    assert shown.evaluate(ON_TOP), "no bar of JupyterLab's is over it"
    page.keyboard.press("ArrowRight")
    shown.expect(t=1, status="stopped")
    assert lab_page.value("deck.position") == 1
    for key in ("Tab", "Shift+Tab", "Shift+Tab"):
        page.keyboard.press(key)
        assert shown.evaluate(HAS_FOCUS)
    page.keyboard.press("Escape")
    shown.settles(lambda shown: shown.evaluate(WITHIN)[2:], before[2:])
    assert not shown.evaluate(ON_TOP) and shown.evaluate(HAS_FOCUS), "and its keys still work"
    page.keyboard.press("ArrowRight")
    shown.expect(t=2)
    assert page.evaluate("document.documentElement.style.overflow") == ""


def test_a_cell_that_is_run_again_under_a_full_window_gives_the_window_back(lab_page: Notebook) -> None:
    cell = lab_page.run("deck = ts.debug(captured(), policy='heap')")
    shown = ShownDeck(cell.element)
    shown.key("w")
    shown.settles(lambda shown: shown.evaluate(ON_TOP), True)
    cell.run()
    again = ShownDeck(cell.element)
    again.expect(t=0, status="stopped")
    again.settles(lambda shown: shown.evaluate(ON_TOP), False)
    assert lab_page.page.evaluate("document.documentElement.style.overflow") == ""
