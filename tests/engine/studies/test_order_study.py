from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pandas as pd
import pytest
import torch
from rich.console import Console

from tapescope.engine.api.profile import profile
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.dependencies import queue_lengths
from tapescope.engine.studies.order_study import order_study
from tapescope.engine.studies.ready_workload import Parts, Workload
from tapescope.engine.studies.studied_orders import OrderStudy, ratio_text
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

LINEAR = replace(workload("linear50"), small={"uses": 8, "width": 64, "batch": 2})
ENSEMBLE = replace(
    workload("ensemble"), small={"members": 3, "layers": 3, "batch": 4, "width": 8, "separate_inputs": 0}
)
POLICIES = ("bfs", "dfs", "heap")


@pytest.fixture(scope="module")
def study() -> OrderStudy:
    return order_study([LINEAR, ENSEMBLE], repetitions=2)


def raising(name: str, error: BaseException) -> Workload:
    def make(width: int) -> Parts:
        raise error

    return Workload(name, "Raises", "nowhere", make, {"width": 1}, {"width": 1})


def timed(times: dict[str, tuple[int, ...]]) -> OrderStudy:
    """A study in which the times are these."""
    found = order_study([LINEAR], list(times), repetitions=1)
    (row,) = found.rows
    rows = tuple(replace(each, times_ns=times[each.policy]) for each in row.comparison.rows)
    measured = replace(row, comparison=replace(row.comparison, rows=rows))
    return replace(found, rows=(measured,), repetitions=len(next(iter(times.values()))))


@pytest.mark.parametrize("number", [0, 1])
def test_peaks_and_queues_are_those_of_a_single_run(study: OrderStudy, number: int) -> None:
    row = study.rows[number]
    for policy in POLICIES:
        run = profile(row.workload.build()[1], policy)
        assert run.timeline is not None
        assert row.comparison[policy].peak_bytes == run.peak_bytes
        assert row.start_bytes(policy) == run.timeline.start_bytes
        assert row.rise_bytes(policy) == run.peak_bytes - run.timeline.start_bytes
        graph = row.comparison.graph
        assert row.comparison[policy].longest_queue == max(queue_lengths(graph, schedule(graph, policy)))
        assert len(row.comparison[policy].times_ns) == 2 and min(row.comparison[policy].times_ns) > 0


def test_breadth_first_holds_every_weight_gradient_of_a_reused_linear(study: OrderStudy) -> None:
    assert study["linear50"].peak_ratio("bfs", "heap") > 2
    assert study["linear50"].peak_ratio("dfs", "heap") == 1
    says(study.sentences[0], "bfs", "heap", "linear50", ratio_text(study["linear50"].peak_ratio("bfs", "heap")))
    alike = [each for each in study.sentences if "ensemble" in each and "bfs" not in each and "dfs" not in each]
    assert bool(alike) == (study["ensemble"].peak_ratio("bfs", "heap") == 1)


def test_times_are_compared_round_by_round_so_that_a_slow_machine_cancels_out(snapshot: Snapshots) -> None:
    study = timed({"bfs": (20, 90, 2000, 40, 200, 60, 60), "heap": (10, 30, 1000, 20, 100, 30, 30)})
    row = study["linear50"]
    assert (row.time("heap").middle, row.time("bfs").middle) == (30, 60)
    ratio = row.time_ratio("bfs", "heap")
    assert (ratio.low, ratio.middle, ratio.high) == (2.0, 2.0, 2.0)
    says(study.sentences[0], "bfs", "heap", "linear50", "2.00× ± 0 %")
    snapshot("studies", study.sentences[0])


def test_a_difference_that_is_not_in_all_of_the_middle_half_is_not_called_one(snapshot: Snapshots) -> None:
    study = timed({"bfs": (10, 20, 10, 20, 10, 20), "heap": (20, 10, 20, 8, 20, 8)})
    assert study["linear50"].time_ratio("bfs", "heap").middle > 1.1
    snapshot("studies", "\n".join(study.sentences))


def test_of_a_few_rounds_no_difference_is_claimed() -> None:
    study = timed({"bfs": (200,), "heap": (100,)})
    says_none_of(study.sentences[0], "2.00×")
    says(study, "2.00×")


@pytest.fixture(scope="module")
def two_devices() -> OrderStudy:
    small = {**workload("two_devices").small, "width": 128, "batch": 256, "far_layers": 3, "near_layers": 3}
    policies = ["bfs", "heap", "lpmf"]
    return order_study([LINEAR, replace(workload("two_devices"), small=small)], policies, repetitions=1)


def test_on_two_devices_the_order_of_creation_starves_one_of_them(two_devices: OrderStudy) -> None:
    row = two_devices["two_devices"]
    assert row.makespans is not None and row.devices == "cpu and cuda:0"
    assert not row.makespans.best.estimated, "times are measured"
    assert row.makespan_ns("lpmf") > 0, "what is planned by memory, too"
    assert row.makespan_ns("heap") > row.makespan_ns("bfs") >= row.makespans.lower_bound_ns
    assert any(each.startswith("two_devices") and row.makespans.sentences[0] in each for each in two_devices.sentences)


def test_makespans_are_in_the_table_where_there_are_several_devices(two_devices: OrderStudy, tmp_path: Path) -> None:
    assert two_devices["linear50"].makespans is None
    assert [line[1] for line in two_devices.cells[1:]].count("makespan") == 1
    devices = two_devices["two_devices"].devices
    assert sum(devices in line and "bfs" in line for line in two_devices.markdown.splitlines()) == 1
    spans = {(each["workload"], each["policy"]): each["makespan_ns"] for each in two_devices.records()}
    assert spans["linear50", "bfs"] is None and spans["two_devices", "heap"] > spans["two_devices", "bfs"]


def test_where_there_are_two_accelerators_each_chain_is_on_its_own_and_times_are_of_real_threads(
    accelerators: tuple[torch.device, torch.device],
) -> None:
    tiny = {**workload("two_devices").small, "width": 16, "batch": 4, "far_layers": 2, "near_layers": 2}
    chosen = replace(workload("two_devices"), small=tiny)
    study = order_study([chosen], ["bfs", "heap"], device=accelerators[0], repetitions=1)
    assert not study.refused
    row = study["two_devices"]
    assert row.devices.split(" and ")[-2:] == list(map(str, accelerators))
    (said,) = (each for each in study.sentences if each.startswith("two_devices"))
    measured = row.measured_text(["bfs", "heap"])
    says(measured, "bfs", "heap")
    assert re.search(r"\d\.\d\d", measured) and said.endswith(measured)


def test_the_table_is_text_markdown_and_a_data_frame(study: OrderStudy, snapshot: Snapshots) -> None:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(study)
    for text in (capture.get(), str(study)):
        lines = text.splitlines()
        assert lines[0].split() == ["workload", *POLICIES]
        assert lines[1].split()[:2] == ["linear50", "time"]
        assert [line.split()[0] for line in lines[2:5]] == ["peak", "rise", "longest"]
        ratio = ratio_text(study["linear50"].peak_ratio("bfs", "heap"))
        assert lines[2].split()[3] == ratio and lines[4].split()[-3:] == ["9", "8", "8"]
    says(repr(study), "OrderStudy", "linear50, ensemble", "bfs, dfs, heap")
    head, dashes, first, second = study.markdown.splitlines()[:4]
    says(head, "bfs", "dfs", "heap", "bfs / dfs / heap")
    snapshot("studies", head)
    assert {line.count("|") for line in (head, dashes, first, second)} == {9}
    assert first.startswith("| linear50 | ") and first.endswith("| 9 / 8 / 8 |") and f"({ratio})" in first
    says(study.markdown, f"- linear50: {LINEAR.title} · {LINEAR.source} · small: uses=8 width=64")
    frame = pd.DataFrame(study.records())
    assert len(frame) == 6
    assert frame.query("policy == 'heap'")[["peak_ratio", "time_ratio"]].to_numpy().tolist() == [[1.0, 1.0]] * 2


def test_of_many_policies_the_table_has_a_line_for_each(snapshot: Snapshots) -> None:
    policies = ("bfs", "dfs", "heap", "random(1)", "random(2)")
    study = order_study([LINEAR, ENSEMBLE], policies, repetitions=1)
    snapshot("studies", " | ".join(study.cells[0]))
    assert [cells[:2] for cells in study.cells[1:]] == [
        [name if number == 0 else "", policy]
        for name in ("linear50", "ensemble")
        for number, policy in enumerate(policies)
    ]
    bfs = study["linear50"].comparison["bfs"]
    assert study.cells[1][3].startswith(size_text(bfs.peak_bytes)) and study.cells[1][5] == f"{bfs.longest_queue}"
    console = Console(width=90)
    with console.capture() as capture:
        console.print(study)
    assert "…" not in capture.get()


def test_the_file_has_every_single_time(study: OrderStudy, tmp_path: Path) -> None:
    written = json.loads(study.save_json(tmp_path / "study.json").read_text(encoding="utf-8"))
    assert (written["format"], written["version"], written["reference"]) == ("tapescope order study", 1, "heap")
    assert written["machine"]["torch"] == torch.__version__
    assert [each["tasks"] for each in written["workloads"]] == [len(row.comparison.graph) for row in study.rows]
    assert [(each["workload"], each["policy"], each["times_ns"]) for each in written["rows"]] == [
        (row.name, each.policy, list(each.times_ns)) for row in study.rows for each in row.comparison.rows
    ]


def test_one_policy_alone_has_no_ratios_and_no_figure(snapshot: Snapshots) -> None:
    study = order_study([LINEAR], ["dfs"], repetitions=1)
    assert study.sentences == () and "×" not in str(study) and "±" not in str(study)
    snapshot("studies", study.markdown.splitlines()[0])
    with raises(ValueError) as raised:
        study.figure()
    snapshot("studies", raised.value)


def test_a_workload_that_cannot_be_measured_is_left_out_with_its_reason() -> None:
    study = order_study([raising("hopeless", NotImplementedError("no such kernel")), LINEAR], ["heap"], repetitions=1)
    assert [row.name for row in study.rows] == ["linear50"]
    (said,) = study.sentences
    says(said, "hopeless", "no such kernel")
    assert study.refused == {"hopeless": "no such kernel"}


def test_an_interrupt_ends_the_study_with_what_has_been_measured(snapshot: Snapshots) -> None:
    stopped = raising("stopped", KeyboardInterrupt())
    study = order_study([LINEAR, stopped, ENSEMBLE], ["heap"], repetitions=1)
    assert [row.name for row in study.rows] == ["linear50"] and study.interrupted
    (said,) = study.sentences
    snapshot("studies", said)
    with pytest.raises(KeyboardInterrupt):
        order_study([stopped, LINEAR], ["heap"], repetitions=1)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"workloads": ["resnet"]}, ("workload", "'resnet'", "'resnet50'")),
        ({"workloads": []}, ()),
        ({"workloads": [LINEAR, LINEAR]}, ("linear50, linear50",)),
        ({"policies": ["bfs", "zzz"]}, ("'zzz'", "bfs")),
        ({"policies": []}, ()),
        ({"repetitions": 0}, ("repetitions", 1, 0)),
        ({"size": "huge"}, ("size", "'huge'", "small", "full")),
        ({"device": "meta"}, ("device", "meta")),
        ({"device": "banana"}, ("device", "'banana'")),
    ],
)
def test_what_cannot_be_studied_is_refused_before_anything_runs(
    arguments: dict[str, object], facts: tuple[object, ...], snapshot: Snapshots
) -> None:
    told: list[str] = []
    with raises(ValueError, *facts) as raised:
        order_study(**{"workloads": [LINEAR], **arguments}, progress=told.append)
    if arguments.get("device") != "banana":  # PyTorch's own words follow
        snapshot("studies", raised.value)
    assert told == []


def test_progress_says_which_workload_and_which_round(snapshot: Snapshots) -> None:
    told: list[str] = []
    order_study([LINEAR, ENSEMBLE], ["heap"], repetitions=1, progress=told.append)
    says(told[0], "linear50 (1 of 2)")
    says(told[-1], "ensemble (2 of 2)", "heap", "1 of 1")
    snapshot("studies", f"{told[0]}\n{told[-1]}")


@pytest.mark.parametrize(("ratio", "text"), [(1.0, "1.00×"), (9.99, "9.99×"), (9.999, "10.0×"), (123.4, "123×")])
def test_ratios_have_three_digits(ratio: float, text: str) -> None:
    assert ratio_text(ratio) == text


def test_names_and_sources_are_text_on_the_page_and_in_the_notebook(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    study = order_study([replace(LINEAR, name=evil, title=evil, source=evil)], ["bfs", "heap"], repetitions=1)
    assert evil not in study._repr_html_() and escape(evil) in study._repr_html_()
    page = study.save_html(tmp_path / "page.html", evil).read_text(encoding="utf-8")
    assert evil not in page and "alert(1)" in page
