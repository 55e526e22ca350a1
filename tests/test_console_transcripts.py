"""Transcripts of the shell on docs pages: a page's commands, run on its scripts, print what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .shown_outputs import assert_shown, matches

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted(DOCS.rglob("*.md")) if path.relative_to(DOCS).parts[0][0] != "_"),
]
PROMPT = "(tapescope) "

SCRIPTS = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```", re.DOTALL | re.MULTILINE)
CONSOLES = re.compile(r"^```console\n\$ (.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)

TRANSCRIPTS = [
    (page.relative_to(ROOT).as_posix(), number, *found)
    for page in PAGES
    for number, found in enumerate(CONSOLES.findall(page.read_text(encoding="utf-8")))
]


def test_outputs_match_but_for_times_and_what_is_left_out() -> None:
    assert matches("peak 3.0 MiB in 2 ms\nof 104 tasks", "peak  3.0 MiB in 17.25 ms of 104 tasks\n")
    assert matches("first ... last", "first\nsecond\nlast")
    assert not matches("peak 3.0 MiB", "peak 51.0 MiB")
    assert not matches("first", "first and second")


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("page", "command", "shown"),
    [(page, command, shown) for page, _, command, shown in TRANSCRIPTS],
    ids=[f"{page}-{number}" for page, number, _, _ in TRANSCRIPTS],
)
def test_a_transcript_is_what_the_command_prints(page: str, command: str, shown: str, tmp_path: Path) -> None:
    for script, name in SCRIPTS.findall((ROOT / page).read_text(encoding="utf-8")):
        (tmp_path / name).write_text(script, encoding="utf-8")
    program, *arguments = shlex.split(command)
    assert program == "tapescope"
    ran = subprocess.run(
        [sys.executable, "-m", "tapescope", *arguments],
        input="".join(re.findall(rf"^{re.escape(PROMPT)}(.*\n)", shown, re.MULTILINE)),
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT.parent), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert_shown(shown, ran.stdout, f"{page}, {command}")
