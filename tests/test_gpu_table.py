"""`make gpu`: what its table is made of, and what it says where there is no GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tapescope.tests.warm_python import WarmPython

from . import second_device

SCRIPT = Path(__file__).parent / "gpu" / "__main__.py"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_table"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_why_there_is_nothing_to_run(fresh_python: WarmPython) -> None:
    ran = fresh_python.run(SCRIPT)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.startswith("nothing to run: ")


def test_without_pytest_it_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pytest'] = None\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"make gpu needs pytest in {sys.executable}\n"


@pytest.mark.heavy
@pytest.mark.skipif(second_device.why_not() is not None, reason=str(second_device.why_not()))
def test_its_one_table_can_be_had_of_the_second_device_too(tmp_path: Path) -> None:
    only = "tests/second_device/test_second_device.py"
    values = tmp_path / "table.json"
    command = [sys.executable, str(SCRIPT), "--second-device", "--no-benchmarks", f"--only={only}", f"--json={values}"]
    ran = subprocess.run([*command, f"--out={tmp_path}"], capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    title, stage, line = ran.stdout.splitlines()[-3:]
    assert title.endswith("2 × the second device") and stage.startswith("only: ") and "test_second_device" in line
    (found,) = json.loads(values.read_text())["lines"]
    assert found["good"] and "passed" in found["found"] and "failed" not in found["found"]
    assert json.loads((tmp_path / "only.json").read_text())["lines"] == [found]
    assert (tmp_path / "table.txt").read_text().splitlines() == [title, stage, line]


def in_stages(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> list[str]:
    """Run stages whose commands are Python programs; return what each stage found."""
    programs = {"first": "raise SystemExit(3)", "second": "print('at work', flush=True); import time; time.sleep(600)"}
    programs["third"] = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{\"rows\": []}')"
    stages = tuple(gpu.Stage(name, 2.0 if name == "second" else 60.0) for name in programs)
    monkeypatch.setattr(gpu, "STAGES", stages)
    limited = gpu._limited

    def run(command: list[str], log: Path, environment: dict[str, str], limit_s: float) -> str:
        program, values = programs[log.stem], command[-1].partition("=")[2]
        return limited([sys.executable, "-c", program, values], log, environment, limit_s)

    monkeypatch.setattr(gpu, "_limited", run)
    options = gpu._parser().parse_args(arguments)
    return [line.found for line in gpu._run(options, out, "a machine", dict(os.environ))]


def test_a_stage_that_fails_or_hangs_does_not_end_the_rest(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = in_stages(gpu, monkeypatch, tmp_path)
    assert found == ["ended with 3; see first.log", "stopped after 2 s, at KeyboardInterrupt"]
    assert [json.loads((tmp_path / f"{name}.json").read_text())["stage"] for name in ("first", "second", "third")]


def test_a_run_goes_on_from_a_stage_and_ends_with_its_minutes(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert in_stages(gpu, monkeypatch, tmp_path, "--from=third") == []
    assert not (tmp_path / "first.json").exists() and (tmp_path / "third.json").exists()
    found = in_stages(gpu, monkeypatch, tmp_path, "--minutes=0")
    assert found == [
        f"left out: the 0 minutes are over; go on with --from {name}" for name in ("first", "second", "third")
    ]


def test_each_file_that_asks_for_an_accelerator_is_in_one_stage(gpu: ModuleType) -> None:
    def asks(text: str) -> bool:
        return "accelerator" in text or "mark.gpu" in text

    files = [name for stage in gpu.STAGES for name in gpu.files_of(stage, asks)]
    root = SCRIPT.parents[2]
    every = [path for path in (root / "tests").rglob("test_*.py") if asks(path.read_text(encoding="utf-8"))]
    assert sorted(files) == sorted(path.relative_to(root).as_posix() for path in every)


def test_tests_are_counted_by_file_and_failures_named(gpu: ModuleType, tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 1 == 2, 'one is not two'\n"
        "@pytest.mark.skip\ndef test_left_out(): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    subprocess.run([*command, f"--junitxml={report}", str(tests)], capture_output=True, cwd=tmp_path)
    whole, failed = gpu.counted(report)
    assert whole.what == "test_some" and not whole.good
    assert sorted(whole.found.split(", ")) == ["1 failed", "1 passed", "1 skipped"]
    assert failed.what == "test_some: test_bad" and "one is not two" in failed.found
    assert gpu.table([whole, failed])[0].startswith("✗ test_some ")
