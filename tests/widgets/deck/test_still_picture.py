"""The picture of a deck where no page runs: what it shows, that it is small, and that its names are text."""

from __future__ import annotations

import itertools
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal
from xml.etree import ElementTree

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import tapescope as ts
from tapescope.engine.api.debug import debug
from tapescope.engine.memory.category_levels import forward_category_levels
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.timeline import Timeline
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.inspector.text.sizes_and_counts import nth, size_text
from tapescope.tests.says import Snapshots, says
from tapescope.widgets.deck import still_memory_chart as still_memory
from tapescope.widgets.deck import still_picture as still_module
from tapescope.widgets.deck.deck import Deck
from tapescope.widgets.deck.page_data import title_of
from tapescope.widgets.deck.still_picture import Moment, Still

pytestmark = pytest.mark.heavy

SIDES = ("width", "height")
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\"'& 🦩" + "long" * 3000


def in_theme(svg: str, theme: str) -> str:
    """Return a picture with the colours of one theme in place of its variables."""
    dark = re.compile(r"@media \(prefers-color-scheme:dark\)\{(.*?\})\}", re.DOTALL)
    sheets = "".join(re.findall(r"<style>.*?</style>|style=\"[^\"]*\"", svg, re.DOTALL))
    setting = re.compile(r"(--[\w-]+):([^;}]+)")
    colours = dict(setting.findall(dark.sub("", sheets)))
    if theme == "dark":
        colours |= setting.findall("".join(dark.findall(sheets)))
    return re.sub(r"var\((--[\w-]+)\)", lambda used: colours[used[1]], dark.sub("", svg))


def graph_of(name: str) -> ts.Graph:
    model, make_loss = WORKLOADS[name].build()
    with ts.capture(model):
        return ts.graph(make_loss())


def timelines_of(graph: ts.Graph, *policies: str) -> dict[str, Timeline]:
    footprints = dry_run(graph)
    return {policy: ts.simulate(graph, policy, footprints) for policy in policies}


def drawn(graph: ts.Graph, timelines: dict[str, Timeline] | None = None, ran: int = 0) -> str:
    moment = Moment(next(iter(timelines or ["heap"])), ran, len(graph), timelines or {})
    return Still("1f", title_of(graph), graph).svg(moment)


def words(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def line_with(said: list[str], fact: str) -> str:
    """The text of a picture that has this fact."""
    (found,) = (text for text in said if re.search(rf"\b{fact}\b", text))
    return found


@pytest.fixture(scope="module")
def linear50() -> ts.Graph:
    return graph_of("linear50")


def test_its_id_is_what_the_page_looks_for(linear50: ts.Graph) -> None:
    assert ElementTree.fromstring(drawn(linear50)).get("id") == "tapescope-still-1f"


def test_it_says_what_runs_how_far_and_what_each_policy_needs(linear50: ts.Graph, snapshot: Snapshots) -> None:
    timelines = timelines_of(linear50, "bfs", "heap")
    said = words(drawn(linear50, timelines, ran=12))
    assert "ReusedLinear" in said
    says(line_with(said, "104"), 12, "bfs")
    for policy, timeline in timelines.items():
        assert f"{policy.upper()} {size_text(timeline.peak_bytes)}" in said
    shown = timelines["bfs"]
    says(line_with(said, "peak"), size_text(shown.peak_bytes), nth(shown.peak_place + 1))
    snapshot("deck", "\n".join(said))
    assert {"1st", "20th", "task"} <= set(said), "a task is called by its place, as in the deck"


def test_of_a_backward_under_way_the_graph_shows_how_far_it_is(shell: InteractiveShell) -> None:
    loss = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))(torch.ones(2, 4)).sum()

    def states(svg: str) -> list[str]:
        return re.findall(r'data-state="(\w+)"', svg)

    with Deck(debug(loss)) as deck, capture_output():
        before = deck._still.svg(deck.moment())
        deck.step(count=3)
        under_way = deck._still.svg(deck.moment())
        ran, ready = len(deck.order), {entry.task.id for entry in deck.ready} - {deck.current_task}
        deck.run()
        after = deck._still.svg(deck.moment())
    found = Counter(states(under_way))
    assert found["running"] == 1 and found["done"] == ran == 3 and found["ready"] == len(ready) > 0
    assert found["waiting"] and not states(before) and not states(after)
    assert {"done", "running", "ready"} <= set(words(under_way))


def test_of_a_backward_under_way_the_queue_and_the_reasons_are_shown(
    shell: InteractiveShell, snapshot: Snapshots
) -> None:
    model, make_loss = WORKLOADS["linear50"].build()
    with ts.capture(model):
        loss = make_loss()
    with Deck(debug(loss, policy="bfs")) as deck, capture_output():
        assert "Ready queue" not in " ".join(words(deck._still.svg(deck.moment()))), "nothing has run"
        deck.break_at(deck.planned[53])
        deck.run()
        said = words(deck._still.svg(deck.moment()))
        assert [entry.task.short_name for entry in deck.ready].count("T") == 49
        by_name = deck.graph.describe(deck.current)
        deck.run()
        assert "Ready queue" not in " ".join(words(deck._still.svg(deck.moment()))), "all have run"
    assert any(text.startswith("Ready queue50 ready") for text in said)  # two spans of one text
    assert {"48 × T (linear)", "AccumulateGrad (linear.bias)", "T (linear)", by_name} <= {*said}
    says(line_with(said, "first of"), 50, "bfs")
    says(line_with(said, "Stopped"), "breakpoint", "TBackward0", "54th")
    snapshot("deck", "\n".join(said[said.index(line_with(said, "Stopped")) :][:12]))


def test_a_task_run_by_hand_and_a_long_queue_are_shown(linear50: ts.Graph) -> None:
    alike = itertools.count()
    tasks = tuple(replace(task, name=f"{task.name}{HOSTILE}{next(alike)}") for task in linear50.tasks)
    graph = replace(linear50, tasks=tasks)
    order = timelines_of(linear50, "bfs")["bfs"].order
    chosen = order[5]
    svg = Still("1f", "title", graph).svg(Moment("bfs", 3, len(graph), {}, [*order[:3], *order[3:]], chosen, HOSTILE))
    said = words(svg)
    says(line_with(said, "by hand"), 50)
    assert any(re.fullmatch(r"and \d+ more", text) for text in said)
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}script")) and all(len(text) < 200 for text in said)


def test_without_memory_there_is_the_graph_alone(linear50: ts.Graph) -> None:
    svg = drawn(linear50)
    assert "Memory" not in "".join(words(svg))
    assert any("Linear" in text for text in words(svg)), "fifty calls of one module, as a row"


# Four networks called eight times.
TOO_LARGE = ("cyclegan",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("resnet") else [])
        for name in WORKLOADS
        if name not in TOO_LARGE
    ],
)
def test_of_each_ready_model_it_is_small_and_can_be_read(name: str) -> None:
    graph = graph_of(name)
    svg = drawn(graph, timelines_of(graph, "heap", "bfs", "dfs"))
    assert len(svg.encode()) < 150_000
    assert float(ElementTree.fromstring(svg).get("width", "")) <= 900
    scales = [float(each) for each in re.findall(r"scale\(([\d.]+)\)", svg)]
    assert scales and all(11 * scale >= 7.5 for scale in scales)


@pytest.mark.parametrize("name", TOO_LARGE)
def test_where_the_graph_is_too_large_the_deck_is_named_instead(name: str, snapshot: Snapshots) -> None:
    graph = graph_of(name)
    svg = drawn(graph, timelines_of(graph, "heap"))
    assert "scale(" not in svg
    snapshot("deck", "\n".join(words(svg)))


def test_a_graph_that_cannot_be_read_so_small_is_folded_deeper(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("gpt2")
    usual = ElementTree.fromstring(drawn(graph))
    monkeypatch.setattr(still_module, "_ROOM", (800.0, 240.0))
    smaller = ElementTree.fromstring(drawn(graph))
    tasks = [sum("data-task" in each.attrib for each in root.iter(f"{SVG}g")) for root in (usual, smaller)]
    assert 0 < tasks[1] < tasks[0]


def test_a_graph_that_is_too_large_is_named_and_left_out(
    linear50: ts.Graph, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
) -> None:
    monkeypatch.setattr(still_module, "_MOST_DRAWN", 100)
    svg = drawn(linear50)
    assert len(svg) < 20_000 and "data-task" not in svg
    assert [text for text in words(svg) if "104 tasks" in text] != ["0 of 104 tasks"]
    snapshot("deck", "\n".join(words(svg)))


def test_equal_steps_by_the_thousand_are_drawn_once() -> None:
    x = torch.ones(2, requires_grad=True)
    for _ in range(5_500):
        x = x.sin() * 1.01
    svg = drawn(ts.graph(x.sum()))
    assert len(svg) < 30_000 and svg.count("data-task") < 20
    assert any(text.endswith("×5,499") for text in words(svg))


def test_the_sentence_of_the_peak_stands_above_all_lines(linear50: ts.Graph, snapshot: Snapshots) -> None:
    """It used to be at the height of its own peak, across the line of a policy with a higher one."""
    svg = drawn(linear50, timelines_of(linear50, "heap", "bfs"))
    texts = {"".join(each.itertext()): each for each in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    (said,) = (text for text in texts if text.startswith("peak"))
    says(said, "3.0 MiB", "6th", "T", "linear.weight")
    snapshot("deck", said)
    assert float(texts[said].get("y", "")) < still_memory._TOP - 10


def test_a_long_name_in_the_peaks_sentence_leaves_what_the_peak_is_made_of(linear50: ts.Graph) -> None:
    tasks = tuple(replace(task, name="ScaledDotProductFlashAttentionForCpu" * 3) for task in linear50.tasks)
    timeline = replace(timelines_of(linear50, "heap")["heap"], graph=replace(linear50, tasks=tasks))
    (said,) = (text for text in words(drawn(linear50, {"heap": timeline})) if text.startswith("peak"))
    says(said, "3.0 MiB", "6th", "linear.weight")
    assert re.search(r"\bScaledDotP\w*…", said)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_of_it_has_contrast(
    theme: Literal["light", "dark"], linear50: ts.Graph, texts_in: Callable[[str], list[Any]]
) -> None:
    timelines = timelines_of(linear50, "heap", "bfs")
    order = timelines["heap"].order
    moment = Moment("heap", 30, len(linear50), timelines, order, order[30])
    read = texts_in(in_theme(Still("1f", title_of(linear50), linear50).svg(moment), theme))
    assert len(read) > 30 and not [each for each in read if each.contrast < 4.5]


def test_a_long_title_stands_before_the_peaks_of_other_policies(linear50: ts.Graph) -> None:
    timelines = timelines_of(linear50, "heap", "bfs", "dfs", "lpmf")
    moment = Moment("heap", 52, len(linear50), timelines)
    title = "WhisperForConditionalGeneration"
    said = words(Still("1f", title, linear50).svg(moment))
    assert title in said and "HEAP 3.0 MiB" in " ".join(said)
    assert any(text.startswith("HEAP 3.0 MiB  ·  BFS") for text in words(Still("1f", "GPT", linear50).svg(moment)))


def test_names_are_text_and_cut_to_their_room(linear50: ts.Graph) -> None:
    calls = tuple(replace(call, path=HOSTILE, class_name=HOSTILE) for call in linear50.calls)
    graph = replace(linear50, calls=calls)
    timelines = {f"{HOSTILE}{n}": each for n, each in enumerate(timelines_of(graph, "bfs", "heap").values())}
    moment = Moment(next(iter(timelines)), 0, len(graph), timelines)
    svg = Still("1f", HOSTILE, graph).svg(moment)
    root = ElementTree.fromstring(svg)
    assert not list(root.iter(f"{SVG}script"))
    assert all(len(text) < 150 for text in words(svg))


def path_of(svg: str, kind: str) -> str:
    (path,) = (each for each in ElementTree.fromstring(svg).iter(f"{SVG}path") if each.get("class") == kind)
    return path.get("d", "")


def test_the_line_of_levels_is_as_high_as_the_levels(linear50: ts.Graph) -> None:
    timeline = timelines_of(linear50, "bfs")["bfs"]
    path = path_of(drawn(linear50, {"bfs": timeline}), "ts-level")
    heights = [float(y) for y in re.findall(r"(?:M[\d.]+ |V)([\d.]+)", path)]
    bottom, top = still_memory._BOTTOM, still_memory._TOP
    highest = timeline.peak_bytes * still_memory._HEADROOM
    changes = [peak for at, peak in enumerate(timeline.task_peaks) if at == 0 or peak != timeline.task_peaks[at - 1]]
    expected = [bottom - (bottom - top) * peak / highest for peak in changes]
    assert heights == pytest.approx(expected, abs=0.06)


def test_memory_begins_with_the_forward_where_that_was_measured(linear50: ts.Graph) -> None:
    _, make_loss = WORKLOADS["linear50"].build()
    timeline = ts.profile(make_loss).timeline
    assert timeline is not None and timeline.starts[0] > 0
    by_category = zip(*forward_category_levels(timeline).values(), strict=True)
    assert [*map(sum, by_category)] == [*timeline.levels[: timeline.starts[0] + 1]]
    svg = drawn(timeline.graph, {"heap": timeline})
    assert "forward" in words(svg)
    first = re.match(r"M([\d.]+) ([\d.]+)", path_of(svg, "ts-level"))
    assert first is not None and float(first[1]) == still_memory._LEFT
    assert float(first[2]) > still_memory._BOTTOM - 10, "the forward starts with next to nothing"
    assert "forward" not in words(drawn(linear50, timelines_of(linear50, "heap"))), "a graph alone has none"


def test_thousands_of_tasks_make_no_more_columns_than_can_be_seen() -> None:
    graph = graph_of("mlp_norm")
    timeline = timelines_of(graph, "heap")["heap"]
    columns = list(still_memory._columns(timeline))
    assert columns[0][0] == 0 and len(columns) <= 500
    assert max(timeline.task_peaks[highest] for _, highest in columns) == max(timeline.task_peaks)


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def svgs(outputs: list[Any]) -> list[str]:
    return [output.data["image/svg+xml"] for output in outputs if "image/svg+xml" in output.data]


class Watched:
    """Something of which the memory gets known."""

    def __init__(self, graph: ts.Graph) -> None:
        self.still = Still("1f", "watched", graph)
        self.timelines: dict[str, Timeline] = {}

    def now(self) -> Moment:
        return Moment("heap", 0, 104, self.timelines)


def test_the_picture_is_drawn_once_more_when_its_memory_is_known(shell: InteractiveShell, linear50: ts.Graph) -> None:
    watched = Watched(linear50)
    with capture_output() as captured:
        watched.still.show(watched.now(), "text")
        watched.still.update(watched.now(), "text")
        watched.timelines = timelines_of(linear50, "heap")
        for _ in range(2):
            watched.still.update(watched.now(), "text")
    assert ['class="ts-level"' in svg for svg in svgs(captured.outputs)] == [False, True]


def test_a_deck_knows_its_memory_at_once(shell: InteractiveShell) -> None:
    model, make_loss = WORKLOADS["linear50"].build()
    with ts.capture(model):
        loss = make_loss()
    with Deck(debug(loss)) as deck, capture_output() as captured:
        deck._ipython_display_()
    (picture,) = svgs(captured.outputs)
    assert 'class="ts-level"' in picture


def test_a_recorded_run_shows_what_was_measured(shell: InteractiveShell, snapshot: Snapshots) -> None:
    _, make_loss = WORKLOADS["linear50"].build()
    run = ts.profile(make_loss, policy="bfs")
    recording = run.deck()
    with capture_output() as captured:
        recording._ipython_display_()
    (picture,) = svgs(captured.outputs)
    said = words(picture)
    assert any(text.startswith("Memory") and "measured" in text for text in said)
    says(line_with(said, "104"), "bfs")
    snapshot("deck", line_with(said, "104"))
    recording.close()


def opened(shell: InteractiveShell) -> Deck:
    """A deck on a ready model, as a cell makes it."""
    model, make_loss = WORKLOADS["linear50"].build()
    with ts.capture(model):
        return Deck(debug(make_loss()))


def said_last(outputs: list[Any]) -> list[str]:
    return words(svgs(outputs)[-1])


def test_what_is_kept_has_png_beside_svg_and_text(shell: InteractiveShell) -> None:
    with opened(shell) as deck, capture_output() as captured:
        deck._ipython_display_()
    picture = next(output for output in captured.outputs if "image/svg+xml" in output.data)
    assert set(picture.data) == {"image/svg+xml", "image/png", "text/plain"}
    assert b64decode(picture.data["image/png"]).startswith(b"\x89PNG")
    width, height = (float(ElementTree.fromstring(picture.data["image/svg+xml"]).get(each)) for each in SIDES)
    assert picture.metadata["image/png"] == {"width": width, "height": height}


def test_without_resvg_there_is_svg_alone(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapescope.widgets.pages.png.can_draw_png", lambda: False)
    with opened(shell) as deck, capture_output() as captured:
        deck._ipython_display_()
    assert set(captured.outputs[-1].data) == {"image/svg+xml", "text/plain"}


def test_when_a_cell_ends_the_picture_is_the_decks_state(shell: InteractiveShell) -> None:
    with opened(shell) as deck, capture_output() as captured:
        deck._ipython_display_()
        deck.step(count=5)
        assert len(svgs(captured.outputs)) == 1, "to draw each step would hold it up"
        shell.events.trigger("post_run_cell", None)
        says(line_with(said_last(captured.outputs), "104"), 5, "heap")
        shell.events.trigger("post_run_cell", None)
        assert len(svgs(captured.outputs)) == 2, "nothing has changed"


def test_a_deck_that_stands_is_drawn_and_one_that_is_closed_leaves_its_last_state(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Any] = []

    class Held(still_module.Timer):
        def start(self) -> None:
            timers.append(self)

    monkeypatch.setattr(still_module, "Timer", Held)
    with capture_output() as captured:
        deck = opened(shell)
        deck._ipython_display_()
        deck.step()
        deck.step()
        waiting = [timer for timer in timers if not timer.finished.is_set()]
        assert len(waiting) == 1, "each step puts it off"
        waiting[0].function()
        says(line_with(said_last(captured.outputs), "104"), 2, "heap")
        deck.run()
        deck.close()
    says(line_with(said_last(captured.outputs), "104"), "all", "heap")
    assert 'class="ts-level"' in svgs(captured.outputs)[-1], "without the session's memory"
    assert not [each for each in shell.events.callbacks["post_run_cell"] if "draw" in str(each)]
