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
from torch import nn

import tapescope as ts
from tapescope.inspector.text.sizes_and_counts import size_text
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


def test_a_backward_for_each_part_lowers_the_peak_as_the_hint_says() -> None:
    """Measured with one backward for each micro-batch, as the hint asks for."""
    net = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    batches = [torch.randn(512, 64) for _ in range(6)]
    together = ts.profile(lambda: torch.stack([net(x).square().mean() for x in batches]).mean())
    (hint,) = [hint for hint in together.peak().hints if hint.kind == "sum of parts"]
    each = [ts.profile(lambda x=x: net(x).square().mean() / len(batches)).peak_bytes for x in batches]
    assert max(each) <= together.peak_bytes - hint.nbytes < together.peak_bytes / 2
    says(hint, size_text(together.peak_bytes - hint.nbytes))
