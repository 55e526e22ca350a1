"""Each way to a gradient is measured alone, predicted from another one, and compared with the gradient by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.function_levels import allocated_levels
from tapescope.engine.studies import accumulation_study as module
from tapescope.engine.studies.accumulation_study import (
    BY_HAND,
    FUSED,
    HIPS,
    IN_PLACE,
    PYTORCH,
    RULES,
    STUDIED,
    AccumulationStudy,
    _rule_name,
    accumulation_study,
    save_studies,
)
from tapescope.engine.studies.comparison import GRAPH_KEPT
from tapescope.engine.studies.ready_workload import own_program
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, raises, says

REPEATED = {"rnn": "steps", "fan_out": "uses", "elementwise": "uses", "needless": "additions"}
OURS = tuple(map(_rule_name, RULES))
_, OUT_OF_PLACE, LIST, NEVER, _, LIST_NEVER = OURS


@pytest.fixture(scope="module")
def studies() -> dict[str, AccumulationStudy]:
    return {name: accumulation_study(name, repetitions=2, **{knob: 20}) for name, knob in REPEATED.items()}


def test_all_ways_are_there_and_by_hand_is_first(studies: dict[str, AccumulationStudy]) -> None:
    pytest.importorskip("autograd")
    for study in studies.values():
        assert tuple(row.name for row in study.rows) == (BY_HAND, FUSED, PYTORCH, *OURS, HIPS)
        assert [row.rule for row in study.rows if row.kind == "direct"] == list(RULES)
        assert all(len(row.times_ns) == 2 and row.elapsed_ns > 0 for row in study.rows)
        assert study.ratio(BY_HAND) == 1


@pytest.mark.parametrize("name", STUDIED)
def test_in_place_and_let_go_the_peak_is_at_most_a_twentieth_above_that_by_hand(
    studies: dict[str, AccumulationStudy], name: str
) -> None:
    study = studies[name]
    assert study.ratio(IN_PLACE) < 1.05 and study.ratio(PYTORCH) < 1.05
    assert study[IN_PLACE].levels == study[PYTORCH].levels, "the rule of PyTorch's engine, task by task"


@pytest.mark.parametrize("name", STUDIED)
def test_each_peak_is_predicted_from_the_run_of_another_to_the_byte(
    studies: dict[str, AccumulationStudy], name: str
) -> None:
    predicted = {row.name: row.error for row in studies[name].rows if row.predicted_bytes is not None}
    assert predicted == dict.fromkeys((PYTORCH, *OURS), 0.0)


def test_a_list_keeps_each_gradient_of_the_weight_until_the_last_has_come(
    studies: dict[str, AccumulationStudy],
) -> None:
    study = studies["rnn"]
    weight = workload("rnn").small["width"] ** 2 * 4
    assert study[LIST].peak_bytes > 20 * weight
    assert study[OUT_OF_PLACE].peak_bytes - study[IN_PLACE].peak_bytes == pytest.approx(weight, rel=0.05)
    assert study[NEVER].peak_bytes < study[LIST].peak_bytes <= study[LIST_NEVER].peak_bytes
    assert max(study.rows, key=lambda row: row.peak_bytes).name == LIST_NEVER


def test_what_is_never_let_go_can_only_be_more(studies: dict[str, AccumulationStudy]) -> None:
    for study in studies.values():
        for eager, never in zip(map(study.__getitem__, OURS[:3]), map(study.__getitem__, OURS[3:]), strict=True):
            assert all(most >= least for most, least in zip(never.levels.peaks, eager.levels.peaks, strict=True))


@pytest.fixture(scope="module")
def both_graphs() -> dict[str, AccumulationStudy]:
    graphs = ("freed", "kept")
    return {name: accumulation_study(name, graph=graphs, repetitions=3, uses=20) for name in ("fan_out", "elementwise")}


def test_with_the_graph_kept_the_peak_is_that_of_plain_autograd_with_retain_graph(
    both_graphs: dict[str, AccumulationStudy],
) -> None:
    for name, study in both_graphs.items():
        for graph in ("freed", "kept"):
            _, make_loss = workload(name).build(uses=20)

            def compute(step, make_loss=make_loss, graph=graph):
                loss = make_loss()
                step()
                loss.backward(retain_graph=graph == "kept")
                step()

            row = study[PYTORCH + (GRAPH_KEPT if graph == "kept" else "")]
            assert row.graph == graph and row.peak_bytes == allocated_levels(compute)[1].peak_bytes
        assert {row.error for row in study.rows if row.predicted_bytes is not None} == {0.0}


def test_freeing_the_graph_lowers_pytorchs_average_but_with_lists_also_the_peak(
    both_graphs: dict[str, AccumulationStudy],
) -> None:
    for study in both_graphs.values():
        freed, kept = study[PYTORCH], study[PYTORCH + GRAPH_KEPT]
        assert kept.peak_bytes < 1.07 * freed.peak_bytes and kept.average_bytes > 1.2 * freed.average_bytes
        assert study[LIST + GRAPH_KEPT].peak_bytes > 1.7 * study[LIST].peak_bytes
        *_, average, higher = study.sentences
        says(average, PYTORCH, f"{100 * (kept.average_bytes / freed.average_bytes - 1):+.0f} %")
        says(higher, f"{LIST} ({size_text(study[LIST].peak_bytes)}")
        assert f"{PYTORCH} (" not in higher


def test_an_unknown_graph_rule_is_refused() -> None:
    for graph, facts in (("freed",) * 2, ["freed"]), ((), ["graph", "freed", "kept"]), ("gone", ["'gone'", "kept"]):
        with raises(ValueError, *facts):
            accumulation_study("rnn", graph=graph)


def test_an_addition_makes_no_gradient_of_its_own_so_no_rule_costs_anything(
    studies: dict[str, AccumulationStudy],
) -> None:
    peaks = {studies["needless"][name].peak_bytes for name in OURS}
    assert len(peaks) == 1 and studies["needless"].sentences[1:] != (), "HIPS autograd's own objects are more"


def test_the_rows_are_those_of_single_runs(studies: dict[str, AccumulationStudy]) -> None:
    _, make_loss = workload("rnn").build(steps=20)
    run = ts.profile(make_loss, engine="direct", accumulate="list")
    assert studies["rnn"][LIST].peak_bytes == run.peak_bytes
    _, compute = workload("rnn").by_hand(steps=20, fused=True)
    assert studies["rnn"][FUSED].levels == allocated_levels(compute)[1]


def test_the_gradients_of_the_model_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = module.Workload.build

    def kept(self, *args, **knobs):
        model, make_loss = build(self, *args, **knobs)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 3)
        built.append(model)
        return model, make_loss

    monkeypatch.setattr(module.Workload, "build", kept)
    accumulation_study("rnn", repetitions=1, steps=2)
    (model,) = built
    assert all((parameter.grad == 3).all() for parameter in model.parameters())


def test_without_the_package_autograd_its_row_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    study = accumulation_study("needless", repetitions=1, additions=3)
    assert [row.kind for row in study.rows].count("HIPS") == 0 and len(study.rows) == 9


def test_float64_takes_twice_the_bytes() -> None:
    peaks = [
        accumulation_study("fan_out", dtype=dtype, repetitions=1, uses=5)[BY_HAND].peak_bytes
        for dtype in (torch.float32, torch.float64)
    ]
    assert peaks[1] == 2 * peaks[0]


def test_progress_says_what_comes(snapshot: Snapshots) -> None:
    told: list[str] = []
    accumulation_study("needless", repetitions=2, additions=3, dtype=torch.float64, progress=told.append)
    says(told[0], "needless, float64", BY_HAND)
    assert len(told) == len(set(told))
    (timed,) = [line for line in told if IN_PLACE in line and NEVER not in line and "2 of 2" in line]
    snapshot("studies", f"{told[0]}\n{timed}")


def test_table_text_and_records_say_the_same(studies: dict[str, AccumulationStudy]) -> None:
    study = studies["rnn"]
    console = Console(width=120)
    with console.capture() as capture:
        console.print(study)
    for lines in (str(study).splitlines(), capture.get().splitlines()):
        for row in study.rows:
            start, ratio = row.name[:12], f"{study.ratio(row.name):.2f} ×"  # long names are wrapped
            assert any(line.startswith(start) and ratio in line for line in lines)
    says(study, "rnn, float32", "batch=4")
    frame = pd.DataFrame(study.records()).set_index("gradient")
    assert frame.loc[LIST, "predicted_bytes"] == frame.loc[LIST, "peak_bytes"] == study[LIST].peak_bytes
    says(repr(study), "AccumulationStudy", study.title, len(study.rows))


def test_the_sentences_name_what_takes_most(studies: dict[str, AccumulationStudy], snapshot: Snapshots) -> None:
    said = studies["rnn"].sentences
    rnn = studies["rnn"]
    says(said[0], size_text(rnn[IN_PLACE].peak_bytes), BY_HAND)
    says(said[1], size_text(rnn[LIST_NEVER].peak_bytes), LIST_NEVER)
    says(said[1], f"{rnn.ratio(LIST_NEVER):.1f}")
    snapshot("studies", "\n".join(said))
    alike = replace(studies["rnn"], rows=tuple(studies["rnn"][name] for name in (BY_HAND, PYTORCH, IN_PLACE)))
    assert len(alike.sentences) == 1, "no row takes more"


def test_a_prediction_that_is_off_is_shown_with_how_far(studies: dict[str, AccumulationStudy]) -> None:
    study = studies["rnn"]
    peak = study[LIST].peak_bytes
    off = replace(study, rows=(study[BY_HAND], replace(study[LIST], predicted_bytes=round(0.99 * peak))))
    assert off[LIST].error == pytest.approx(-0.01, abs=1e-4)
    column = off.cells[0].index("predicted")
    assert off.cells[2][column].endswith("(-1.00 %)") and off.cells[1][column] == "–"


def test_levels_end_where_the_gradients_are(studies: dict[str, AccumulationStudy]) -> None:
    study = studies["fan_out"]
    matrix = workload("fan_out").small["width"] ** 2 * 4
    assert study[BY_HAND].levels.end_bytes == pytest.approx(matrix, abs=8)
    assert study[LIST_NEVER].levels.end_bytes == pytest.approx(matrix, abs=8), "the backward is over"
    falls = [later <= sooner for sooner, later in pairwise(study[BY_HAND].levels.peaks)]
    assert all(falls[1:]), "each step frees the z it has used"


@pytest.mark.parametrize(
    ("name", "facts"),
    [("linear50", ("linear50", "rnn, fan_out, elementwise")), ("zzz", ("'zzz'", "resnet50"))],
)
def test_bad_input_is_a_sentence(name: str, facts: tuple[str, ...], snapshot: Snapshots) -> None:
    with raises(ValueError, *facts) as raised:
        accumulation_study(name)
    snapshot("studies", raised.value)


def test_what_cannot_be_counted_or_found_is_a_sentence(
    studies: dict[str, AccumulationStudy], snapshot: Snapshots
) -> None:
    with raises(ValueError, "repetitions", 1, 0) as none:
        accumulation_study("rnn", repetitions=0)
    with raises(ValueError, "'zzz'", BY_HAND, FUSED, PYTORCH):
        studies["rnn"]["zzz"]
    with raises(ValueError) as nothing:
        save_studies([], "page.html")
    for error in (none, nothing):
        snapshot("studies", error.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_program_with_nested_gradients_is_refused_with_what_runs_it() -> None:
    linear, parts = nn.Linear(4, 3), [torch.ones(2, 4), torch.ones(3, 4)]

    def make_loss() -> Tensor:
        nested = torch.nested.nested_tensor(parts, layout=torch.strided)
        return torch.nested.to_padded_tensor(linear(nested), 0.0).square().sum()

    with raises(NotImplementedError, "ts.studies.accumulation", "nested", "ts.compare(make_loss)"):
        accumulation_study(own_program(make_loss, "own"))
    assert linear.weight.grad is None
