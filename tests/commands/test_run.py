"""`tapescope run` against `python`: parameters bit for bit, output, exit status; and what it reports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tapescope.__main__ import main
from tapescope.tests.says import says
from tapescope.tests.warm_python import WarmPython

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29613")

pytestmark = pytest.mark.heavy


@dataclass
class Ran:
    """A finished process, without the lines of tapescope, which are `own`."""

    status: int
    printed: str
    errors: str
    own: str
    saved: dict[str, Any]


def ran(folder: Path, *command: str) -> Ran:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=folder, env=environment, input="a line\n", capture_output=True, text=True, timeout=240
    )
    return parsed(folder, process)


def parsed(folder: Path, process: subprocess.CompletedProcess[str]) -> Ran:
    own = re.findall(r"^tapescope: .*\n", process.stderr, re.MULTILINE)
    # A finding's warning has the source line below it.
    errors = re.sub(r"^tapescope: .*\n|^.*: UserWarning: ts\.training: .*\n(?:  .*\n)?", "", process.stderr, flags=re.M)
    errors = re.sub(r"[\d.]+(?=it/s|s/it| seconds)|\d\d:\d\d|0x\w+|\b[\d.]+s\b|\d{4}-\d\d-\d\d.*", "_", errors)
    saved = {each.name: torch.load(each) for each in sorted(folder.glob("*.pt"))}
    for each in folder.glob("*.pt"):
        each.unlink()
    return Ran(process.returncode, process.stdout, errors, "".join(own), saved)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return torch.equal(one, other)


@pytest.mark.parametrize(
    ("script", "arguments", "status", "watched"),
    [
        pytest.param("no_trainer", (), 0, "6 steps", marks=pytest.mark.slow),
        pytest.param("gan", (), 0, "20 steps", marks=pytest.mark.slow),
        pytest.param("ppo", (), 0, "24 steps", marks=pytest.mark.slow),
        pytest.param("diffusion", (), 0, "12 steps", marks=pytest.mark.slow),
        ("nanogpt", ("--max-iters", "4", "--profile", "--", "-m", "--out"), 0, "4 steps"),
        pytest.param("workers", (), 0, "8 steps", marks=pytest.mark.slow),
        pytest.param("exits", ("--every", "2"), 3, "4 steps", marks=pytest.mark.slow),
        pytest.param("environment", (), 0, "3 steps", marks=pytest.mark.slow),
        pytest.param("raises", (), 1, "2 steps", marks=pytest.mark.slow),
        ("interrupted", (), None, "3 steps"),
        pytest.param(
            "trainer_glue",
            ("--output_dir", "out", "--num_train_epochs", "2", "--report_to", "none"),
            0,
            "6 steps",
            marks=pytest.mark.slow,
        ),
        pytest.param("lightning_basic", (), 0, "8 steps", marks=pytest.mark.slow),
        pytest.param("accelerate_basic", (), 0, "6 steps", marks=pytest.mark.slow),
    ],
)
def test_a_script_trains_prints_and_ends_as_under_python(
    script: str, arguments: tuple[str, ...], status: int | None, watched: str, tmp_path: Path
) -> None:
    library = {"trainer_glue": "accelerate", "lightning_basic": "pytorch_lightning", "accelerate_basic": "accelerate"}
    if script in library and find_spec(library[script]) is None:
        pytest.skip(f"{library[script]} is not installed")
    path = tmp_path / f"{script}.py"
    path.write_text((SCRIPTS / path.name).read_text())
    plain = ran(tmp_path, sys.executable, path.name, *arguments)
    assert plain.saved, plain.errors
    assert plain.status == status or (status is None and "KeyboardInterrupt" in plain.errors)
    watching = ran(tmp_path, sys.executable, "-m", "tapescope", "run", path.name, *arguments)
    assert watching.status == plain.status
    assert same(plain.saved, watching.saved)
    if script != "trainer_glue":  # prints its running time
        assert watching.printed == plain.printed
        assert watching.errors == plain.errors
    assert not plain.own
    says(watching.own, f"{watched} of {script}.py watched", f"tapescope-{script}.html")
    says((tmp_path / f"tapescope-{script}.html").read_text(), f"Training loop of {script}.py")


@pytest.mark.slow
def test_each_rank_of_torchrun_trains_as_alone_and_writes_its_own_page(tmp_path: Path) -> None:
    (tmp_path / "ddp.py").write_text((SCRIPTS / "ddp.py").read_text())
    plain = ran(tmp_path, *TORCHRUN, "ddp.py")
    watching = ran(tmp_path, *TORCHRUN, "-m", "tapescope", "run", "--json", "found.json", "ddp.py")
    assert plain.status == watching.status == 0, watching.errors
    assert same(plain.saved, watching.saved) and len(plain.saved) == 2
    assert sorted(plain.printed.splitlines()) == sorted(watching.printed.splitlines())
    for rank in (0, 1):
        assert (tmp_path / f"tapescope-ddp-rank{rank}.html").is_file()
        assert json.loads((tmp_path / f"found-rank{rank}.json").read_text())["steps"] == 5


LEAKING = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
losses = []
for step in range(12):
    loss = model(torch.randn(8, 4)).square().mean()
    losses.append(loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


MAIN = "import runpy; runpy.run_module('tapescope', run_name='__main__', alter_sys=True)"

Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, fresh_python: WarmPython) -> Run:
    """Run `tapescope run` on a script in a process that has already imported torch."""

    def run(text: str, *options: str) -> Ran:
        (tmp_path / "train.py").write_text(text)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = ("-c", MAIN, "run", *options, "train.py")
        started = fresh_python.start(*command, environment=environment, cwd=tmp_path, typed="a line\n")
        return parsed(tmp_path, started.end(240))

    return run


def run_anew(folder: Path, text: str, *options: str) -> Ran:
    (folder / "train.py").write_text(text)
    return ran(folder, sys.executable, "-m", "tapescope", "run", *options, "train.py")


def test_findings_fail_a_successful_script_only_and_are_written_as_json(tmp_path: Path, run: Run) -> None:
    found = run(LEAKING, "--fail-on", "leaks", "--no-page", "--json", "new/found.json")
    assert found.status == 70
    says(found.own, "12 steps", "1 finding", "losses[0]")
    content = json.loads((tmp_path / "new" / "found.json").read_text())
    assert content["schema"] == "run/1" and content["exit_code"] == 70 and content["page"] is None
    assert [(each["kind"], each["last_step"]) for each in content["findings"]] == [("leak", 11)]
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.slow
def test_other_findings_and_other_exit_codes_do_not_become_70(tmp_path: Path, run: Run) -> None:
    assert run(LEAKING, "--fail-on", "nan,wrong-gradients", "--no-page").status == 0
    assert run(f"{LEAKING}\nraise SystemExit(4)", "--fail-on", "leaks", "--no-page").status == 4
    healthy = LEAKING.replace("losses.append(loss)", "losses.append(loss.detach())")
    assert run(healthy, "--fail-on", "leaks,nan,wrong-gradients", "--no-page").status == 0


PRINTING = """
import sys, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.25)
    print("step", step, "of mine")
sys.stderr.write("a bar without an end")
for step in range(2):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.25)
print()
assert "write" not in vars(sys.stdout) or sys.stdout.isatty()
"""


def on_a_terminal(folder: Path, *command: str) -> str:
    """Run a command whose streams are a terminal, and return everything that it writes there."""
    ours, its = os.openpty()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its)
    os.close(its)
    written = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # Linux's answer to a terminal whose other end is closed
            break
        if not read:
            break
        written += read
    os.close(ours)
    assert process.wait(60) == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


def test_a_progress_line_on_a_terminal_leaves_the_scripts_output_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINTING)
    written = on_a_terminal(tmp_path, sys.executable, "-m", "tapescope", "run", "--no-page", "train.py")
    shown = re.findall(r"\r\x1b\[K(tapescope: step \d+ of train\.py, 0 findings[^\r\n]*)", written)
    assert 2 <= len(shown) <= 4, written
    # A terminal removes a line before the text that follows the two codes.
    left = re.sub(r"\r\x1b\[K(tapescope: step [^\r\n]*)?", "", written)
    plain = "".join(f"step {step} of mine\n" for step in range(4)) + "a bar without an end\n"
    assert left.startswith(plain)
    says(left.removeprefix(plain), "6 steps of train.py watched")


def test_a_failed_script_still_writes_its_findings(tmp_path: Path, run: Run) -> None:
    failed = run(f"{LEAKING}\nraise KeyError('late')", "--json", "found.json", "--black-box", "kept")
    assert failed.status == 1
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["exit_code"] == 1 and content["findings"] and Path(content["page"]).is_file()
    says(content["error"]["sentence"], "KeyError", "late")


def test_a_step_is_recorded_as_a_deck_and_steps_are_selected(tmp_path: Path, run: Run) -> None:
    found = run(LEAKING, "--profile", "5", "--steps", "3:8", "--json", "found.json")
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["steps"] == 8
    says(found.own, "8 steps", "memory of step 5")
    assert Path(content["profile_page"]).read_text().count("<script") and content["peak_bytes"] > 0
    assert "step 5:\n" in "\n".join(content["sentences"])  # the heading of the table is on a line of its own
    # Adam's state of 5 parameters exists at the peak: two moments each, and a step count of each parameter.
    says("\n".join(content["sentences"]), f"optimizer state  {4 * (2 * 5 + 2)} B")
    ending = "import atexit, sys\natexit.register(print, 'at exit')\nprint('read', input(), sys.argv)\nsys.exit(4)"
    late = run(f"{LEAKING}\n{ending}", "--profile", "40", "--no-page")
    says(late.own, "step 40 was not recorded", "made 12 steps")
    assert (late.status, late.printed) == (4, "read a line ['train.py']\nat exit\n")


def test_findings_and_their_exit_code_stay_if_the_page_cannot_be_written(tmp_path: Path, run: Run) -> None:
    late = f"{LEAKING}\nimport os\nos.mkdir('page.html')"
    found = run(late, "--fail-on", "leaks", "--out", "page.html")
    assert found.status == 70
    says(found.own, "1 finding", "losses[0]", "page.html")


def test_torch_is_watched_if_a_finder_of_its_own_finds_it(tmp_path: Path) -> None:
    finder = (
        "import sys\nfrom importlib.machinery import PathFinder\n"
        "class Editable:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return PathFinder.find_spec(name, [SITE]) if path is None else None\n"
        "import importlib.util\n"
        "SITE = importlib.util.find_spec('torch').submodule_search_locations[0].removesuffix('/torch')\n"
        "sys.path[:] = [each for each in sys.path if each != SITE]\n"
        "sys.meta_path.append(Editable())\n"
    )
    says(run_anew(tmp_path, f"{finder}{LEAKING}", "--no-page").own, "12 steps")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("print(3)", ("import torch",)),
        ("import torch\nimport not_installed", ("ModuleNotFoundError", "before its first backward()")),
        ("import torch", ("never called backward()", "tapescope run")),
        (
            "import torch\nw = torch.ones(2, requires_grad=True)\n(w * w).sum().backward()\nw.data -= w.grad",
            ("1 time", "torch.optim.Optimizer"),
        ),
        (
            "import threading, torch\nw = torch.ones(2, requires_grad=True)\n"
            "thread = threading.Thread(target=lambda: (w * w).sum().backward())\nthread.start(); thread.join()",
            ("other threads",),
        ),
    ],
)
def test_a_script_without_steps_is_explained_in_one_sentence(
    text: str, facts: tuple[str, ...], tmp_path: Path, run: Run
) -> None:
    found = run(text) if "torch.ones" in text else run_anew(tmp_path, text)  # which is said depends on imports
    assert found.own.count("\n") == 1
    says(found.own, "train.py", *facts)
    assert not list(tmp_path.glob("*.html"))


def test_a_loop_whose_backwards_a_session_steps_is_reported(run: Run) -> None:
    stepped = LEAKING.replace("loss.backward()", "ts.debug(loss).run()").replace(
        "torch\n", "torch, tapescope as ts\n", 1
    )
    says(run(stepped, "--no-page").own, "12 steps of train.py watched", "losses[0]")


@pytest.mark.slow
def test_a_module_runs_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(
        f"import sys\n{LEAKING}\nprint(sys.argv, __package__, __spec__.name, __file__, sys.path[0])\n"
        "torch.save(model.state_dict(), 'model.pt')"
    )
    command = ("-m", "project.train", "--", "-x")
    plain = ran(tmp_path, sys.executable, *command)
    watching = ran(tmp_path, sys.executable, "-m", "tapescope", "run", *command)
    assert watching.printed == plain.printed and "project" in plain.printed
    assert watching.status == plain.status == 0 and same(plain.saved, watching.saved)
    assert (tmp_path / "tapescope-project.train.html").is_file()
    for name in ("project.missing", "missing"):
        plain, watching = (
            ran(tmp_path, sys.executable, *more, "-m", name) for more in ((), ("-m", "tapescope", "run"))
        )
        assert (watching.status, watching.errors) == (plain.status, plain.errors)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["nowhere.py"], ("nowhere.py", "does not exist")),
        (["."], ("folder", "-m")),
        (["--steps", "8:3", "train.py"], ("--steps", "'8:3'", "100:200")),
        (["--every", "0", "train.py"], ("--every", "'0'")),
        (["--fail-on", "leak", "train.py"], ("'leak'", "leaks, nan, wrong-gradients")),
        ([], ("SCRIPT.py",)),
    ],
)
def test_invalid_options_are_refused(
    arguments: list[str], facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["run", *arguments])
    except SystemExit as end:
        status = end.code
    printed = capsys.readouterr().err
    assert status == 2 and printed.count("\n") == 1
    says(printed, *facts)
