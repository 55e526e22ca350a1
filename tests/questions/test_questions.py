"""Each program under tests/questions gets the answer that its file asks for, and a healthy one gets none.

A file has `case()`, which runs a loop and returns the training, or asks another verb and returns the sentence that a
user reads first, "" for none. FINDS is the kind of finding that the program needs, SAYS are facts that it has to say.
No finding of another kind may be there, except those that ALSO lists. A line with the comment `# named` has to be among
the facts, as `file.py:12`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tapescope.tests.says import says

HERE = Path(__file__).parent
CASES = sorted(path.relative_to(HERE).with_suffix("") for path in HERE.glob("*/*.py") if path.stem != "__init__")

pytestmark = pytest.mark.filterwarnings("ignore")


def module_of(case: Path) -> ModuleType:
    return import_module(f"{__package__}.{'.'.join(case.parts)}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_program_gets_the_answer_that_it_needs(case: Path) -> None:
    module = module_of(case)
    torch.manual_seed(0)
    answer = module.case()
    kind, also = getattr(module, "FINDS", None), getattr(module, "ALSO", ())
    if isinstance(answer, str):
        asked, others = ([answer], []) if kind else ([], [answer] if answer else [])
    else:
        assert not answer.notes
        asked = [each for each in answer.findings if each.kind == kind]
        others = [str(each) for each in answer.findings if each.kind != kind and each.kind not in also]
    assert not others
    if kind is not None:
        lines = (HERE / case).with_suffix(".py").read_text().splitlines()
        if isinstance(answer, str) and "what_went_wrong.md" in answer:
            assert f"#{kind}" in answer  # a note on an error names its section of that page
        named = [f"{case.name}.py:{number}" for number, line in enumerate(lines, 1) if line.endswith("# named")]
        text = " ".join(map(str, asked))
        for line in lines:  # a fact that stands only in a quoted line of the program was not found out
            text = text.replace(f"`{line.strip()}`", "")
        says(text, *module.SAYS, *named)


@pytest.mark.parametrize("kind", sorted({case.parts[0] for case in CASES}))
def test_each_kind_has_faults_and_healthy_programs(kind: str) -> None:
    found = [hasattr(module_of(case), "FINDS") for case in CASES if case.parts[0] == kind]
    assert True in found and False in found
