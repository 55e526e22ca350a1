"""`make versions`: a version's environment, what is counted, and that the docs and `--version` agree with it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tapescope.__main__ import main
from tapescope.inspector.torch_private.private_names import NEWEST_TESTED, OLDEST_TESTED, is_untested
from tapescope.tests.says import says

ROOT = Path(__file__).parents[1]


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with its results and environments in a folder of the test's."""
    spec = importlib.util.spec_from_file_location("versions_table", ROOT / "tests" / "versions" / "__main__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "versions_table", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "out" / "versions.json")
    monkeypatch.setattr(module, "PAGE", tmp_path / "versions.md")
    return module


def an_environment(folder: Path, torch_version: str, stamp: str) -> Path:
    (folder / "lib" / "python3.11" / "site-packages" / f"torch-{torch_version}.dist-info").mkdir(parents=True)
    (folder / stamp).touch()
    return folder / "bin" / "python"


def test_a_version_is_run_by_developments_environment_or_by_its_own(versions: ModuleType, tmp_path: Path) -> None:
    development = an_environment(tmp_path / ".venv", "2.13.0+cpu", "dev.stamp")
    own = an_environment(tmp_path / ".venv" / "versions" / "2.14", "2.14.1", "tapescope.stamp")
    assert [versions.environment_of(version) for version in ("2.13", "2.14")] == [development, own]


def test_an_environment_is_made_without_the_pinned_torch(
    versions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\ntorchvision==1\nsetuptools==81\nrich==15\n")
    ran: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, int("timm" in command))

    monkeypatch.setattr(subprocess, "run", run)
    folder = tmp_path / ".venv" / "versions" / "2.15"
    assert "timm" in str(versions.environment_of("2.15")) and not (folder / "tapescope.stamp").exists()
    assert (folder.parent / "constraints.txt").read_text() == "torchvision==1\nrich==15\n"
    assert ["torch==2.15.*" in command for command in ran] == [False, True, True, False]


def test_tests_are_counted_with_failures_and_reasons(versions: ModuleType, tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 1 == 2, 'one is not two'\n"
        "@pytest.mark.skip(reason='needs a GPU')\ndef test_left_out(): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(tests)]
    part = versions.run_part("quick", command, report, {})
    assert (part.passed, part.failed, part.skipped) == (1, 1, {"needs a GPU": 1})
    assert "test_bad" in part.failures[0] and "one is not two" in part.failures[0]


def test_a_part_without_a_report_has_failed_and_says_how_it_ended(versions: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no module named torch'); raise SystemExit(4)"]
    part = versions.run_part("quick", command, tmp_path / "report.xml", {})
    assert part.failed == 1 and "4" in part.failures[0] and "no module named torch" in part.failures[0]


def test_operators_are_counted_by_entry(versions: ModuleType, tmp_path: Path) -> None:
    def found(entry: str, outcome: str) -> dict[str, str]:
        return {"entry": entry, "program": f"{entry} #0", "check": "any", "outcome": outcome, "reason": "no output"}

    report = tmp_path / "operators.json"
    unexplained = [found("sin", "failed"), found("sin", "failed"), found("normal", "not compared")]
    entries = ["abs", "exp", "sin", "normal", "one_hot"]
    report.write_text(json.dumps({"entries": entries, "explained": ["one_hot"], "unexplained": unexplained}))
    part = versions.operators("operators", report)
    assert (part.passed, part.failed) == (2, 1) and part.failures[0].startswith("sin #0")
    assert part.skipped == {"a known exception": 1, "no gradient to compare": 1}


def test_results_of_one_version_join_those_that_are_kept(
    versions: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(version: str) -> object:
        failed = int(version == "2.15")
        parts = [versions.Part("quick", 3, failed, {"needs a GPU": 2}, 7.0, ["test_x: not equal"] * failed)]
        return versions.Result(f"{version}.1", "2026-01-02", "abc", parts)

    monkeypatch.setattr(versions, "run_version", run)
    assert versions.main(["--only=2.14"]) == 0
    assert versions.main(["--only=2.15", "--write-docs"]) == 1
    assert "torch 2.15.1: test_x: not equal" in capsys.readouterr().out
    text = versions.PAGE.read_text()
    assert "| 2.14.1 | quick | 3 | 0 | 2 (needs a GPU) | 7 |" in text and "| 2.15.1 | quick | 3 | 1 |" in text
    assert set(json.loads(versions.RESULTS.read_text())) == {"2.14", "2.15"} and "2026-01-02" in text


def test_the_tested_versions_are_those_of_the_constants_and_the_package(versions: ModuleType) -> None:
    assert (versions.VERSIONS[0], versions.VERSIONS[-1]) == (OLDEST_TESTED, NEWEST_TESTED)
    assert f'"torch>={OLDEST_TESTED}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_newer_torch_is_called_untested(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_untested(f"{NEWEST_TESTED}.9+cu130") and not is_untested("2.9.1")
    major, minor = map(int, NEWEST_TESTED.split("."))
    newer = f"{major}.{minor + 1}.0a0+git"
    monkeypatch.setattr("tapescope.__main__.version", lambda package: newer)
    with pytest.raises(SystemExit):
        main(["--version"])
    _, warned = capsys.readouterr().out.splitlines()
    says(warned, f"torch {newer}", NEWEST_TESTED)


def test_the_page_has_supported_versions_without_a_failure(versions: ModuleType) -> None:
    page = (ROOT / "docs" / "reference" / "versions.md").read_text(encoding="utf-8")
    rows = [[each.strip() for each in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| 2.")]
    assert [(row[0].rpartition(".")[0], row[1]) for row in rows] == [
        (version, part)
        for version in versions.VERSIONS
        for part in ("engine and inspector", "side effects", "operators", "second device")
    ]
    assert all(int(row[2].replace(",", "")) > 100 and row[3] == "0" for row in rows)
