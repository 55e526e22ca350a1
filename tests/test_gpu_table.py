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
def test_without_a_gpu_it_says_why_there_is_nothing_to_run() -> None:
    ran = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
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
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    title, line = ran.stdout.splitlines()[-2:]
    assert title.endswith("2 × the second device") and "test_second_device" in line
    (found,) = json.loads(values.read_text())["lines"]
    assert found["good"] and "passed" in found["found"] and "failed" not in found["found"]


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
