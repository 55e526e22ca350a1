"""Each program under tests/questions/peaks gets the hint that it needs, and a healthy one gets none of that kind.

A file has `case()`, which measures a forward and its backward and returns the report on a peak. FINDS is the kind of
the hint that the program needs, SAYS are facts that the hint has to say. SILENT is the kind that a healthy program must
not get. A line with the comment `# named` has to be among the facts, as `file.py:12`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from tapescope.tests.says import says

HERE = Path(__file__).parent / "peaks"
CASES = sorted(path.relative_to(HERE).with_suffix("") for path in HERE.glob("*/*.py") if path.stem != "__init__")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_peak_gets_the_hint_that_it_needs(case: Path) -> None:
    module = import_module(f"{__package__}.peaks.{'.'.join(case.parts)}")
    torch.manual_seed(0)
    report = module.case()
    kind = getattr(module, "FINDS", None)
    if kind is None:
        assert not [str(hint) for hint in report.hints if hint.kind == module.SILENT]
        return
    lines = (HERE / case).with_suffix(".py").read_text().splitlines()
    named = [f"{case.name}.py:{number}" for number, line in enumerate(lines, 1) if line.endswith("# named")]
    says("\n".join(str(hint) for hint in report.hints if hint.kind == kind), *module.SAYS, *named)
