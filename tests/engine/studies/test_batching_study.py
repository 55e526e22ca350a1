"""torch's profiler counts the launches of each way to run an ensemble; gradients equal those of eager execution."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import tapescope as ts
from tapescope.engine.studies import batching_study as module
from tapescope.engine.studies.batching_study import EAGER, GROUPS, SCRIPT, BatchingStudy, batching_study
from tapescope.tests.says import raises, says


@pytest.fixture(scope="module")
def study() -> BatchingStudy:
    return batching_study([4, 10], compiled=False, repetitions=2)


def test_torchscript_joins_bare_products_and_no_linear_layers(study: BatchingStudy) -> None:
    linear, bare = study["10 × Linear"], study["10 × x.mm(w)"]
    assert linear[EAGER].products == linear[SCRIPT].products == {"addmm": 40, "mm": 70}
    assert bare[EAGER].launched == 20 and bare[SCRIPT].launched == 2
    assert study["4 × x.mm(w)"][SCRIPT].launched == 8, "fewer than TorchScript's rule joins"


def test_the_groups_launch_one_product_per_layer_and_gradient(study: BatchingStudy) -> None:
    for members in (4, 10):
        row = study[f"{members} × Linear"]
        assert row[GROUPS].products == {"addmm": 4 * members, "bmm": 6, "mm": 1}
    assert study["10 × Linear"][GROUPS].launches == (110, 21)
    assert study["10 × Linear"][EAGER].launches is None and study["10 × Linear"][GROUPS].search_ns > 0


def test_all_have_the_gradients_of_eager_execution(study: BatchingStudy) -> None:
    assert all(way.agrees and len(way.times_ns) == 2 for row in study.rows for way in row.ways)


def test_table_sentences_and_records_say_the_same(study: BatchingStudy) -> None:
    assert study.cells[0] == ["ensemble", "", EAGER, SCRIPT, GROUPS]
    assert study.cells[3][:4] == ["10 × Linear", "products", "110", "110"]
    script, groups, launches = study.sentences
    says(script, SCRIPT, "10 × x.mm(w): 2", "10 × Linear")
    says(groups, GROUPS, "10 × Linear: 47")
    says(launches, "110 → 21 (10 × Linear)")
    frame = pd.DataFrame(study.records()).set_index(["program", "members", "way"])
    assert frame.loc[("Linear", 10, GROUPS), "products"] == 47
    assert "<table" in study._repr_html_() and "x.mm(w)" in study._repr_html_()


def test_a_way_that_fails_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(model):
        def fail(x):
            raise RuntimeError("no C++ compiler.\nand so on")

        return fail

    monkeypatch.setattr(module.torch, "compile", no_compiler)
    found = batching_study([2], repetitions=1)
    says(found.sentences[-1], "torch.compile", "2 × x.mm(w)", "RuntimeError: no C++ compiler.")
    assert "torch.compile" not in found.cells[0]


def test_an_interrupt_returns_the_study_so_far_and_random_numbers_are_left() -> None:
    before = torch.get_rng_state()

    def stop(said: str) -> None:
        if said.startswith("2 × x.mm(w)"):
            raise KeyboardInterrupt

    found = ts.studies.batching([2], compiled=False, repetitions=1, progress=stop)
    assert found.interrupted and [row.name for row in found.rows] == ["2 × Linear"]
    says(found.sentences[-1], "interrupted")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("members", "fact"), [([], "members"), ([2, 2], "[2, 2]"), ([0], "0")])
def test_bad_numbers_of_members_are_refused(members: list[int], fact: str) -> None:
    with raises(ValueError, "members", fact):
        batching_study(members)
