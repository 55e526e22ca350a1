"""The short slice of `make conformance`, and that the sweep finds what is wrong."""

from __future__ import annotations

import importlib
import io
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import Tensor

pytestmark = pytest.mark.heavy

FOLDER = Path(__file__).parents[2] / "conformance"
MODULES = ("program", "results", "gradients", "checks", "exceptions", "report", "selection")


@pytest.fixture
def conformance(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The folder's modules as `python tests/conformance` finds them, but for those which read the databases.

    Reading those forbids the whole process to set flags of torch.backends.
    """
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})


@pytest.fixture
def cube(conformance: SimpleNamespace) -> object:
    return conformance.program.Program("cube float32 #0", lambda: _cube(conformance, torch.tensor([1.0, 2.0])))


def _cube(conformance: SimpleNamespace, start: Tensor) -> object:
    leaf = start.clone().requires_grad_()
    return conformance.program.Forward((leaf * leaf * leaf,), (leaf,))


@pytest.mark.slow
def test_operators_and_modules_of_each_kind_go_backward_as_in_pytorch() -> None:
    ran = subprocess.run(
        [sys.executable, str(FOLDER), "--slice", "--jobs", "1"], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "78 entries, 78 of them compared" in ran.stdout


def test_engines_that_do_as_pytorch_are_equal_in_each_check(conformance: SimpleNamespace, cube: object) -> None:
    checks = [check for check in conformance.checks.CHECKS if check.way == "gradients"]
    found = list(conformance.checks.findings(cube, checks))
    assert [finding.outcome for finding in found] == ["equal"] * 4


@pytest.mark.parametrize(
    ("factor", "failed"),
    [(1 + torch.finfo(torch.float32).eps, {"heap"}), (1.01, {"heap", "bfs", "random"})],
    ids=["one bit", "one percent"],
)
def test_wrong_bits_fail_under_pytorchs_order_and_wrong_gradients_under_any(
    conformance: SimpleNamespace, cube: object, monkeypatch: pytest.MonkeyPatch, factor: float, failed: set[str]
) -> None:
    def wrong(outputs: list[Tensor], gradients: list[Tensor], **options: object) -> None:
        torch.autograd.backward(outputs, [gradient * factor for gradient in gradients])

    monkeypatch.setattr(conformance.checks.ts, "backward", wrong)
    checks = [check for check in conformance.checks.CHECKS if check.way == "gradients"]
    found = list(conformance.checks.findings(cube, checks))
    outcomes = {check.policy: finding.outcome for check, finding in zip(checks, found, strict=True)}
    assert {policy for policy, outcome in outcomes.items() if outcome == "failed"} == failed


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("way", ["second gradients", "inputs="])
def test_an_engine_that_ignores_an_argument_fails(
    conformance: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def forward() -> object:
        a, b = (torch.full((2,), 3.0, requires_grad=True) for _ in range(2))
        return conformance.program.Forward((a * b,), (a, b))

    def ignores(outputs: list[Tensor], gradients: list[Tensor], **options: object) -> None:
        torch.autograd.backward(outputs, gradients)

    monkeypatch.setattr(conformance.checks.ts, "backward", ignores)
    checks = [check for check in conformance.checks.CHECKS if check.way == way]
    found = list(conformance.checks.findings(conformance.program.Program("product", forward), checks))
    assert {finding.outcome for finding in found} == {"failed"} and len(found) == 2


def test_refusals_errors_and_chance_are_told_apart(
    conformance: SimpleNamespace, cube: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = conformance.checks.CHECKS[:1]

    def outcome(program: object) -> str:
        (finding,) = conformance.checks.findings(program, checks)
        return finding.outcome

    def raising() -> object:
        forward = _cube(conformance, torch.ones(2))
        forward.outputs[0].grad_fn.register_prehook(_raise)
        return forward

    def by_chance() -> object:
        return _cube(conformance, torch.tensor([random.random()]))

    program = conformance.program.Program
    assert outcome(program("raises", raising)) == "same error"
    assert outcome(program("random", by_chance)) == "nondeterministic"

    def refuses(*arguments: object, **options: object) -> None:
        raise NotImplementedError('use engine="native"')

    monkeypatch.setattr(conformance.checks.ts, "backward", refuses)
    assert outcome(cube) == "refused"
    assert outcome(program("raises", raising)) == "refused"


def _raise(gradients: object) -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("found", "expected", "differs"),
    [
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), None),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "1 of 1 values differ"),
        (torch.tensor([1.0 + 0j]), torch.tensor([complex(1.0, -0.0)]).conj(), None),
        (torch.ones(2, 3), torch.ones(3, 2).t(), "strides [3, 1], not [1, 2]"),
        (torch.ones(2, 1).expand(2, 1), torch.ones(1, 2).t(), None),
        (torch.eye(2).to_sparse(), torch.eye(2), "torch.sparse_coo"),
        (torch.eye(2).to_sparse(), torch.eye(2).flip(0).to_sparse(), "values differ"),
        (None, torch.ones(1), "None, not torch.float32"),
        (None, None, None),
        (torch.ones(1), torch.ones(1).double(), "torch.float32"),
    ],
)
def test_gradients_are_compared_by_bits_kind_and_strides(
    conformance: SimpleNamespace, found: Tensor | None, expected: Tensor | None, differs: str | None
) -> None:
    result = conformance.gradients.Result
    said = conformance.gradients.difference(result((found,)), result((expected,)))
    assert said is None if differs is None else differs in said


def test_the_report_tells_known_from_unexplained_and_names_what_is_not_needed(conformance: SimpleNamespace) -> None:
    known = conformance.exceptions.Known
    found = conformance.results.Finding
    explained = known("abs*", "inputs=*", "failed", "abs is odd")
    needless = known("sin*", "*", "refused", "it was so once")
    odd = found("abs float32 #0", "inputs=: direct heap", "failed", "None, not a tensor")
    other = found("abs float32 #0", "gradients: direct heap", "failed", "[1] and [2] differ")

    def printed(*findings: object, whole: bool = True) -> tuple[bool, str]:
        counts = Counter((each.check, each.outcome) for each in findings)
        swept = conformance.results.Swept("abs", Counter(compared=1), counts, findings)
        console = Console(file=io.StringIO(), width=200)
        good = conformance.report.report([swept], console, whole, (explained, needless))
        return good, console.file.getvalue()

    good, said = printed(odd)
    assert good and "abs is odd" in said and "not needed any more" in said and "it was so once" in said
    assert "not needed" not in printed(odd, whole=False)[1]
    good, said = printed(odd, other)
    assert not good and "[1] and [2] differ" in said


def test_a_sample_is_the_same_wherever_pytorch_has_the_operators(conformance: SimpleNamespace) -> None:
    names = [f"operator{number}" for number in range(50)]
    chosen = conformance.selection.sample(names, 10)
    assert len(set(chosen)) == 10 and conformance.selection.sample(reversed(names), 10) == chosen
    others = set(names) - set(chosen)
    assert conformance.selection.sample([name for name in names if name not in sorted(others)[:20]], 10) == chosen
    assert set(chosen[1:]) < set(conformance.selection.sample([name for name in names if name != chosen[0]], 10))


def test_the_report_for_programs_has_entries_and_what_is_unexplained(conformance: SimpleNamespace) -> None:
    found = conformance.results.Finding("abs float32 #0", "inputs=: direct heap", "failed", "None, not a tensor")
    known = conformance.results.Finding("sin float32 #0", "inputs=: direct heap", "failed", "sin is odd")
    swept = [
        conformance.results.Swept(name, Counter(), Counter(), (each,))
        for name, each in (("abs", found), ("sin", known))
    ]
    exceptions = (conformance.exceptions.Known("sin*", "*", "failed", "it is"),)
    said = conformance.report.as_json(swept, exceptions)
    assert said["entries"] == ["abs", "sin"] and said["explained"] == ["sin"]
    assert [each["program"] for each in said["unexplained"]] == ["abs float32 #0"]
