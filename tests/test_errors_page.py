"""The reference's page of errors says what beginners' mistakes say."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

import tapescope as ts

PAGE = Path(ts.__file__).parent / "docs" / "reference" / "errors.md"
MISTAKES = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_shows_ten_mistakes() -> None:
    assert len(MISTAKES) == 10


@pytest.mark.parametrize(("code", "said"), MISTAKES, ids=[code.splitlines()[-1] for code, _ in MISTAKES])
def test_a_mistake_says_what_the_page_shows(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAPESCOPE_TRACEBACKS", raising=False)
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    names = {"ts": ts, "torch": torch, "model": model, "x": x, "loss": model(x).sum()}
    with pytest.raises(Exception) as caught:  # noqa: PT011 what it says is compared below
        exec(compile(code, "<page>", "exec"), names)
    lines = "".join(traceback.format_exception_only(caught.value))
    assert re.fullmatch(".*".join(map(re.escape, said.strip().split("..."))), lines.strip(), re.DOTALL), lines
    ours = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)[1:]}
    assert ours == {"<page>"}
