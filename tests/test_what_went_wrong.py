"""Each example of the docs page "What went wrong?" gives the answer that the page shows."""

from __future__ import annotations

import gc
import re
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.session.error_notes.pytorch_errors import ERROR_NOTES
from tapescope.tests.questions.asking import leave_process_group

PAGE = (Path(ts.__file__).parent / "docs" / "guides" / "what_went_wrong.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
EXAMPLES = re.findall(r"```python\n(.*?)```\n```text\n(.*?)\n```", PAGE, re.DOTALL)


def test_each_note_points_to_a_section() -> None:
    anchors = {title.lower().replace(" ", "-") for title in SECTIONS}
    assert {row.anchor for row in ERROR_NOTES} <= anchors


@pytest.mark.parametrize(("code", "answer"), EXAMPLES, ids=[answer[:30] for _, answer in EXAMPLES])
def test_an_example_gives_its_answer(
    code: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(code, encoding="utf-8")
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            runpy.run_path(str(script), {"torch": torch, "nn": nn, "ts": ts, "checkpoint": checkpoint})
        except Exception as error:
            notes = [each.removeprefix("tapescope: ") for each in error.__notes__]
            error.with_traceback(None)
        finally:
            if torch.distributed.is_initialized():
                leave_process_group()
            gc.collect()  # the script's variables and functions hold each other
    assert answer in [*notes, capsys.readouterr().out.strip()]
