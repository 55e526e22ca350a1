"""A loop as a document: written and read again it is the same, and what is damaged is refused."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.training import training_file as document
from tapescope.engine.training.memory_samples import HELD
from tapescope.engine.training.training_file import TrainingDocument, document_of, read_document
from tapescope.engine.training.training_result import Training
from tapescope.tests.says import Snapshots, raises

pytestmark = pytest.mark.filterwarnings("ignore:ts.training:UserWarning")

STEPS = 24
BAD = 13


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A loop whose loss is NaN in one step, which the black box keeps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ts.training(model, optimizer, every=5, black_box=tmp_path_factory.mktemp("box")) as training:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), step + 1.0)).square().mean()
            (loss * math.nan if step == BAD else loss).backward()
            if step == BAD:
                for parameter in model.parameters():
                    parameter.grad = torch.where(torch.isnan(parameter.grad), 0, parameter.grad)
            optimizer.step()
    return training


def assert_same(one: TrainingDocument, other: TrainingDocument) -> None:
    for each in fields(TrainingDocument):
        left, right = getattr(one, each.name), getattr(other, each.name)
        if isinstance(left, Tensor):
            assert left.dtype == right.dtype, each.name
            assert torch.equal(left.nan_to_num(-7.0), right.nan_to_num(-7.0)), each.name
            assert torch.equal(left.isnan(), right.isnan()), each.name
        else:
            assert left == right, each.name


def test_a_document_that_is_written_and_read_is_the_same(trained: Training) -> None:
    document = document_of(trained)
    assert_same(document, read_document(document.to_json()))
    assert document.steps == STEPS and document.every == 5
    assert torch.equal(document.gradients.nan_to_num(-7.0), trained.norms.gradients.nan_to_num(-7.0))
    assert torch.equal(document.weights, trained.norms.weights) and document.weights.shape[0] > 3
    assert document.modules == tuple(trained.norms.modules) == ("2", "0")
    assert document.classes == {"2": "Linear", "0": "Linear"}
    assert list(document.findings) == trained.findings


def test_which_steps_the_black_box_keeps_is_in_it(trained: Training) -> None:
    [(step, folder)] = document_of(trained).kept
    assert step == BAD and Path(folder).is_dir() and document_of(trained).black_box


def test_its_numbers_are_float32_little_endian_row_by_row(trained: Training) -> None:
    found = json.loads(document_of(trained).to_json())
    content = b64decode(found["gradients"])
    numbers = struct.unpack(f"<{len(content) // 4}f", content)
    wanted = trained.norms.gradients
    assert len(numbers) == wanted.numel()
    assert all(
        one == other or (math.isnan(one) and math.isnan(other))
        for one, other in zip(numbers, wanted.flatten().tolist(), strict=True)
    )


@pytest.mark.parametrize("most", [1, 5, 12, 47])
def test_pooled_rows_hold_the_largest_of_their_steps_and_cover_them_all(trained: Training, most: int) -> None:
    document = document_of(trained, most)
    whole = document_of(trained)
    assert document.gradients.numel() <= max(most, len(document.modules))
    covered = [step for first, last in document.rows.tolist() for step in range(first, last + 1)]
    assert covered == list(range(STEPS))
    for row, (first, last) in enumerate(document.rows.tolist()):
        for name in ("gradients", "losses", "learning_rates"):
            wanted = getattr(whole, name)[first : last + 1].amax(0)
            found = getattr(document, name)[row]
            assert torch.equal(found.nan_to_num(-7.0), wanted.nan_to_num(-7.0)), name
    assert_same(document, read_document(document.to_json()))


def test_a_loop_without_a_step_has_a_document(trained: Training) -> None:
    document = document_of(ts.training(nn.Linear(1, 1)))
    assert document.steps == 0 and document.rows.shape == (0, 2) and document.kept == ()
    assert_same(document, read_document(document.to_json()))


def damaged(text: str, **parts: object) -> str:
    return json.dumps(json.loads(text) | parts)


def test_a_document_of_version_1_has_no_batch(trained: Training) -> None:
    document = document_of(trained)
    at = HELD.index("batch")
    kept = [number for number in range(len(HELD)) if number != at]
    content = document.memory[:, kept].contiguous().numpy().tobytes()
    older = read_document(damaged(document.to_json(), version=1, memory=b64encode(content).decode()))
    assert document.memory[:, at].any() and not older.memory[:, at].any()
    assert torch.equal(older.memory[:, kept], document.memory[:, kept])


def test_a_document_from_before_baselines_has_none(trained: Training) -> None:
    text = document_of(trained).to_json()
    older = {name: value for name, value in json.loads(text).items() if not name.startswith("baseline")}
    assert document_of(trained).baselines.any() and read_document(json.dumps(older)).baselines.shape == (0, 5)


def test_what_is_no_document_or_does_not_fit_together_is_refused(
    trained: Training, tmp_path: Path, snapshot: Snapshots
) -> None:
    text = document_of(trained).to_json()
    cases: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("{", ("line 1",)),
        ("[]", ("object",)),
        (damaged(text, format="tapescope.run"), ("tapescope.training",)),
        (damaged(text, version=3), ("version", 3, 2)),
        (damaged(text, gradients=""), ("gradients", STEPS)),
        (damaged(text, rows=[0, 1] * 9999), ("9,999",)),
        (damaged(text, modules=["a"]), ("gradients", STEPS, 1)),
        (damaged(text, skipped=[STEPS]), (STEPS,)),
        (damaged(text, findings=[{}]), ("missing",)),
        (damaged(text, rows=[0]), ("rows",)),
        (damaged(text, kept=None), ("another type",)),
        (damaged(text, baselines=[1.5]), ("baselines", "whole numbers")),
    )
    said = []
    for given, facts in cases:
        page = tmp_path / "loop.html"
        page.write_text(f"{document.PAGE_BEGINS}>{document.DATA_BEGINS}{given}</script>", encoding="utf-8")
        with raises(ValueError, "loop.html", *facts) as raised:
            document.read_page(page)
        said.append(str(raised.value))
    snapshot("training", "\n".join(dict.fromkeys(said)))


def test_of_a_page_no_more_is_read_than_a_loop_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "loop.html"
    Training(1, False, None, 0, False).save_html(page)
    assert document.read_page(page).steps == 0
    monkeypatch.setattr(document, "_MOST_BYTES", page.stat().st_size - 1)
    with raises(ValueError, "loop.html", f"{page.stat().st_size - 1:,} bytes"):
        document.read_page(page)
