"""Each figure of memory that a verb gives is what an allocator below torch counts, or says in which way it is off.

`python tests/memory_meter` prints them all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .memory_meter.meter import COMPILER, build, metered
from .memory_meter.programs import PROGRAMS

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the counter is preloaded"),
]

FOLDER = Path(__file__).parent / "memory_meter"
VERBS = ("profile", "memory=True", "simulate", "plan", "compare", "record_steps", "profile_step", "fits")
SAMPLE = ("checkpoints", "interpolated_penalty", "main_gradients", "sharpness_aware")
DRY = ("simulate", "plan", "compare")

OLDER = "storages from before the recording, to a few bytes"

WRONG: dict[tuple[str, str], str] = {
    ("distributed_data_parallel", "record_steps"): OLDER,
    ("gradients_as_bucket_views", "record_steps"): OLDER,
}
"""What is known to be wrong, until it is mended."""


@cache
def cells(sampled: bool) -> Mapping[tuple[str, str], dict[str, object]]:
    """Return the results of all programs of the sample, or of all others, in one process."""
    chosen = [name for name in PROGRAMS if (name in SAMPLE) == sampled]
    with TemporaryDirectory() as folder:
        ran = metered(build(Path(folder)), str(FOLDER), "--counted", "--json", "--only", *chosen)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {cell["program"] for cell in found} == {*chosen}, ran.stderr
    return {(cell["program"], cell["verb"]): cell for cell in found}


def every_cell() -> Iterator[object]:
    for program in PROGRAMS:
        for verb in VERBS:
            marks = [] if program in SAMPLE else [pytest.mark.slow]
            if why := WRONG.get((program, verb)):
                marks.append(pytest.mark.xfail(reason=why, strict=why != OLDER))
            yield pytest.param(program, verb, marks=marks, id=f"{program}-{verb}")


@pytest.mark.parametrize(("program", "verb"), [*every_cell()])
def test_a_figure_is_exact_or_says_in_which_direction_it_may_be_off(program: str, verb: str) -> None:
    cell = cells(program in SAMPLE).get((program, verb))
    if cell is None:
        pytest.skip("the program's step is not one that the verb runs")
    assert cell["outcome"] in ("exact", "flagged", "refused"), cell
