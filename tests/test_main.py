from __future__ import annotations

import argparse
import base64
import gzip
import io
import json
import platform
import re
import shlex
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import tapescope as ts
import tapescope.commands.demo
from tapescope.__main__ import COMMANDS, command_line, main
from tapescope.engine.memory.categories import Category
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.says import Snapshots, says

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 1)

    def forward(self, x):
        return self.second(self.first(x).relu())
"""
SCRIPT = """
import torch
from net import Net

def loss():
    return Net()(torch.ones(2, 4)).sum()

def loss_and_model():
    model = Net()
    return model(torch.ones(2, 4)).sum(), model

def raises_halfway():
    model = Net()
    hidden = model.first(torch.ones(2, 4)).relu()
    return model.second(hidden[:, :3]).sum()  # here

loss_class, called = Net, Net()

def raises_at_once():
    raise KeyError("no data")

def number():
    return 3

def without_grad():
    return torch.ones(2).sum()
"""


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's script beside a module which it imports, in a folder that is not the current one."""
    folder = tmp_path / "users"
    folder.mkdir()
    (folder / "net.py").write_text(MODEL)
    (folder / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    return folder / "train.py"


def texts_of(svg: Path) -> str:
    root = ElementTree.parse(svg).getroot()
    assert root.tag.endswith("svg")
    return " ".join(root.itertext())


def rows(printed: str) -> list[list[str]]:
    """The cells of the demo's table, the policy filled in where the table leaves it out."""
    policy = ""
    found = []
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if cells[1:2] == ["direct"]:
            policy = cells[0]
            found.append(cells)
        elif cells[:1] == ["native"]:
            found.append([policy, *cells])
    return found


def assert_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Assert that bad input gives one sentence and exit code 2."""
    try:
        code: object = main(arguments)
    except SystemExit as exit_of_argparse:
        code = exit_of_argparse.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("tapescope")
    assert captured.err.count("\n") == 1
    return captured.err


def assert_refused_late(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The same for what shows only when the user's function has run, after the title."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("tapescope") and error.count("\n") == 1
    return error


def test_the_demo_runs_three_policies_on_both_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    answer = tmp_path / "answer.json"
    assert main(["demo", "linear50", "--out", str(tmp_path), "--json", str(answer)]) == 0
    printed = capsys.readouterr().out
    found = rows(printed)
    assert [cells[:3] for cells in found] == [
        [policy, engine, "104"] for policy in ("bfs", "dfs", "heap") for engine in ("direct", "native")
    ]
    told = json.loads(answer.read_text(encoding="utf-8"))
    assert [(each["policy"], each["engine"]) for each in told["results"]] == [(cells[0], cells[1]) for cells in found]
    assert told["right"] and all(each["in_order"] for each in told["results"])
    assert [each["largest_difference"] for each in told["results"] if each["policy"] == "heap"] == [0, 0]
    snapshot("demo", "\n".join(f"{cells[0]}, {cells[1]}: {cells[-1]}, {cells[-2]}" for cells in found[-2:]))
    says(printed, "Sum, Stack, Addmm ×50", "PR #4746")


def test_the_longest_queue_shows_how_policies_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "ensemble", "--out", str(tmp_path), "--policy", "bfs", "heap"])
    longest = {(cells[0], cells[1]): int(cells[3]) for cells in rows(capsys.readouterr().out)}
    assert longest["bfs", "direct"] == longest["bfs", "native"] > longest["heap", "direct"] == longest["heap", "native"]


def test_the_demo_draws_the_graph_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "linear50", "--out", str(tmp_path / "new" / "folder"), "--policy", "heap"])
    svg = tmp_path / "new" / "folder" / "linear50.svg"
    assert str(svg) in capsys.readouterr().out
    assert "linear" in texts_of(svg)


def test_the_demo_ends_with_a_page_that_plays_the_backward_under_three_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["demo", "linear50", "--out", str(tmp_path), "--policy", "heap"])
    page = tmp_path / "linear50.html"
    says(capsys.readouterr().out.splitlines()[-1], page)
    packed = re.search(r'id="document">([^<]+)<', page.read_text(encoding="utf-8"))
    assert packed
    schedules = json.loads(gzip.decompress(base64.b64decode(packed[1])))["schedules"]
    assert {"bfs", "dfs", "heap"} <= {each["policy"] for each in schedules if each["memory"]}


def test_the_demo_keeps_the_gradients_of_the_fastest_backwards_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = tapescope.commands.demo._gradients
    taken: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def counted(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        found = take(model)
        taken.append(weakref.ref(next(iter(found.values()))))
        alive.append(sum(each() is not None for each in taken))
        return found

    monkeypatch.setattr(tapescope.commands.demo, "_gradients", counted)
    assert main(["demo", "linear50", "--policy", "heap", "--out", str(tmp_path)]) == 0
    assert len(taken) == 10 and max(alive) <= 5  # PyTorch's, those of both engines, the last and the new ones


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Makes the demo see changed gradients of the native engine."""
    native = tapescope.commands.demo._native

    def spoiled(*arguments: object) -> tapescope.commands.demo.Result:
        result = native(*arguments)
        name = next(iter(result.gradients))
        result.gradients[name] = change(result.gradients[name])
        return result

    monkeypatch.setattr(tapescope.commands.demo, "_native", spoiled)


@pytest.mark.parametrize(
    "change", [lambda gradient: gradient * 1.01, lambda gradient: gradient * float("nan")], ids=["wrong", "nan"]
)
def test_a_wrong_gradient_fails_the_demo(
    change: Callable[[torch.Tensor], torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: Snapshots,
) -> None:
    spoil(monkeypatch, change)
    answer = tmp_path / "answer.json"
    assert main(["demo", "linear50", "--policy", "heap", "--out", str(tmp_path), "--json", str(answer)]) == 1
    captured = capsys.readouterr()
    told = json.loads(answer.read_text(encoding="utf-8"))
    assert not told["right"]
    assert [each["largest_difference"] == 0 for each in told["results"]] == [True, False]
    right, wrong = (cells[-2] for cells in rows(captured.out))
    assert right != wrong
    says(captured.err, "PyTorch")
    snapshot("demo", captured.err)


def test_an_unknown_workload_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    says(assert_refused(["demo", "resnet"], capsys), "'resnet'", *WORKLOADS)


def test_an_unknown_policy_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    says(assert_refused(["demo", "linear50", "--policy", "heap", "best"], capsys), "'best'", "bfs", "dfs", "heap")


def test_other_bad_input_is_one_sentence_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "'tiny'" in assert_refused(["demo", "--size", "tiny"], capsys)
    assert "'play'" in assert_refused(["play"], capsys)
    assert "file" in assert_refused(["demo", "linear50", "--out", str(tmp_path / "file")], capsys)


def test_without_a_command_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "workloads" in capsys.readouterr().out


def test_without_rich_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert "pip install rich" in assert_refused(["workloads"], capsys)


def test_workloads_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads"]) == 0
    printed = capsys.readouterr().out
    for found in WORKLOADS.values():
        assert found.name in printed
        assert found.source in printed


def test_python_runs_the_package() -> None:
    done = subprocess.run([sys.executable, "-m", "tapescope", "workloads"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "linear50" in done.stdout


def test_a_pipe_that_is_closed_early_ends_a_command_without_a_traceback() -> None:
    command = [sys.executable, "-m", "tapescope", "workloads"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.parametrize("function", ["loss", "loss_and_model"])
def test_the_graph_of_a_users_function_is_drawn(
    function: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path_before = list(sys.path)
    svg = tmp_path / "pictures" / "graph.svg"
    assert main(["graph", f"{script}:{function}", "--svg", str(svg), "--fold", "none"]) == 0
    printed = capsys.readouterr().out
    assert "10 tasks" in printed
    assert str(svg) in printed
    assert "first.weight" in texts_of(svg)
    assert sys.path == path_before


@pytest.mark.parametrize("fold", ["repeats", "none", "0", "first,second"])
def test_modules_can_be_folded(fold: str, script: Path, tmp_path: Path) -> None:
    assert main(["graph", f"{script}:loss", "--svg", str(tmp_path / "graph.svg"), "--fold", fold]) == 0


def test_a_module_that_is_not_there_cannot_be_folded(
    script: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    sentence = assert_refused(["graph", f"{script}:loss", "--fold", "third"], capsys)
    says(sentence, "'third'", "first", "second")
    snapshot("graph", sentence)


@pytest.mark.parametrize("given", [["--groups"], ["--groups", "forward"]], ids=["backward", "forward"])
def test_the_groups_of_a_users_function_are_outlined_and_printed(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    script = tmp_path / "members.py"
    script.write_text(
        "import torch\n"
        "def loss():\n"
        "    members = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(5))\n"
        "    x = torch.ones(2, 4)\n"
        "    return torch.stack([member(x) for member in members]).sum(), members\n"
    )
    svg = tmp_path / "groups.svg"
    assert main(["graph", f"{script}:loss", "--svg", str(svg), *given]) == 0
    direction = given[-1].removeprefix("--groups") or "backward"
    printed = capsys.readouterr().out
    says(printed, direction, "5 of 5")
    if direction == "forward":
        snapshot("graph", printed)
    picture = svg.read_text(encoding="utf-8")
    assert "5 × addmm" in picture and 'class="ts-tag ts-hue0' in picture
    assert ("ts-dashed" in picture.partition("</style>")[2]) == (direction == "forward")


def test_a_script_that_raises_shows_its_own_frames_and_the_graph_until_then(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    svg = tmp_path / "graph.svg"
    assert main(["graph", f"{script}:raises_halfway", "--svg", str(svg)]) == 1
    error = capsys.readouterr().err
    assert "return model.second(hidden[:, :3]).sum()  # here" in error
    assert error.count('File "') == 1
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in error
    sentence = error.splitlines()[-1]
    says(sentence, f"{script}:raises_halfway", "RuntimeError")
    snapshot("graph", sentence)
    assert "Relu" in texts_of(svg)


@pytest.mark.parametrize("inputs", ["torch.ones(3, 4)", "(torch.ones(3, 4),)", '{"input": torch.ones(3, 4)}'])
@pytest.mark.parametrize("width", [8, 9])
def test_the_forward_of_a_model_and_its_inputs_is_drawn_also_if_it_raises(
    inputs: str, width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "models.py"
    layers = f"torch.nn.Linear(4, 8), torch.nn.Linear({width}, 2)"
    script.write_text(f"import torch\ndef make_model():\n    return torch.nn.Sequential({layers}), {inputs}\n")
    svg = tmp_path / "forward.svg"
    assert main(["graph", f"{script}:make_model", "--svg", str(svg), "--fold", "none"]) == (0 if width == 8 else 1)
    printed = capsys.readouterr()
    says(printed.out, "Linear", "3×8", svg)
    if width == 9:
        says(printed.out, "linear(3×8, 2×9, 2) in module 1")
        says(printed.err, "RuntimeError: mat1 and mat2 shapes cannot be multiplied", f"{script}:make_model")
    assert ("linear(3×8, 2×9, 2)" in texts_of(svg)) == (width == 9)


def test_a_model_without_inputs_or_without_a_graph_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "models.py"
    script.write_text(
        "import torch\n"
        "def bare(): return torch.nn.Linear(2, 2)\n"
        "def frozen(): return torch.nn.Linear(2, 2).requires_grad_(False), torch.ones(1, 2)\n"
        "def pair(): return torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
    )
    says(assert_refused(["graph", f"{script}:bare"], capsys), "Linear", "(model, x)")
    says(assert_refused(["graph", f"{script}:frozen"], capsys), "Linear", "2 parameters")
    says(assert_refused(["graph", f"{script}:pair", "--groups"], capsys), "--groups", "(loss, model)")


def test_a_script_that_raises_before_any_graph_leaves_no_picture(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    svg = tmp_path / "graph.svg"
    assert main(["graph", f"{script}:raises_at_once", "--svg", str(svg)]) == 1
    sentence = capsys.readouterr().err.splitlines()[-1]
    says(sentence, f"{script}:raises_at_once", "KeyError")
    snapshot("graph", sentence)
    assert not svg.exists()


@pytest.mark.parametrize("line", ["1 / 0", "def f(:"])
def test_a_script_that_cannot_be_loaded_shows_where(
    line: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(f"import torch\n{line}\n")
    assert main(["graph", f"{script}:loss"]) == 1
    error = capsys.readouterr().err
    assert error.count('File "') == 1
    assert 'train.py", line 2' in error
    assert line in error


def test_what_the_function_returns_is_checked(
    script: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    for function, facts in (("number", ("int",)), ("without_grad", ("torch.no_grad()", ".detach()"))):
        sentence = assert_refused(["graph", f"{script}:{function}"], capsys)
        says(sentence, f"{function}()", *facts)
        snapshot("graph", sentence)


def test_a_target_that_is_not_there_is_named(
    script: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    for target, facts in (
        (str(script), ("SCRIPT.py:FUNCTION",)),
        ("missing.py:loss", ("missing.py",)),
        (f"{script}:los", ("train.py", "'los'", "loss", "loss_and_model")),
    ):
        sentence = assert_refused(["graph", target], capsys)
        says(sentence, *facts)
        assert "loss_class" not in sentence and "called" not in sentence, "only functions are listed"
        snapshot("graph", sentence)


@pytest.mark.parametrize("before", ["def make_loss():\n    ", ""], ids=["in the function", "as it is imported"])
def test_a_script_that_exits_is_told_like_one_that_raises(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import sys\n\n{before}sys.exit('no data')\n")
    assert main(["graph", f"{script}:make_loss", "--svg", str(tmp_path / "out.svg")]) == 1
    error = capsys.readouterr().err
    says(error, "SystemExit: no data")
    says(error.splitlines()[-1], f"{script}:make_loss", "SystemExit")
    assert not (tmp_path / "out.svg").exists()


def test_a_path_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\ndef make_loss():\n    return torch.ones(1, requires_grad=True).sum()\n")
    svg = tmp_path / "run[bold]" / "[/b]c.svg"
    assert main(["graph", f"{script}:make_loss", "--svg", str(svg)]) == 0
    assert svg.exists() and str(svg) in capsys.readouterr().out.replace("\n", "")
    assert main(["graph", f"{script}:make_loss", "--svg", str(tmp_path / "picture.png")]) == 2
    says(capsys.readouterr().err, "picture.png", ".svg")


def test_compare_prints_the_table_and_the_peak_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "linear50", "--out", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    peaks = {cells[0]: cells[1:3] for cells in map(str.split, printed.splitlines()) if _is_row(cells)}
    assert peaks == {"bfs": ["51.0", "MiB"], "dfs": ["3.0", "MiB"], "heap": ["3.0", "MiB"]}
    says(printed, "51.0 MiB", "TBackward0 (linear, workload_models.py", "linear.weight")
    page = tmp_path / "new" / "linear50-compare.html"
    assert str(page) in printed.replace("\n", "")
    assert f"{WORKLOADS['linear50'].title} (linear50, small)" in page.read_text(encoding="utf-8")


def _is_row(cells: list[str]) -> bool:
    """Return whether a line is a row of the table: a policy and its peak."""
    return len(cells) > 2 and cells[0] in ("bfs", "dfs", "heap") and cells[2] in ("B", "KiB", "MiB")


def test_compare_takes_the_policies_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "lstm_lm", "--policy", "heap", "bfs", "--out", str(tmp_path)]) == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith(("ms", "ms  "))]
    assert lines == ["heap", "bfs"]


def test_compare_takes_rules_of_accumulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = ["--accumulate", "inplace", "list", "--release", "never"]
    answer = tmp_path / "answer.json"
    arguments = ["compare", "recommender", "--policy", "heap", *rules]
    assert main([*arguments, "--out", str(tmp_path), "--json", str(answer)]) == 0
    page = (tmp_path / "recommender-compare.html").read_text(encoding="utf-8")
    inplace, listed = (each["policy"] for each in json.loads(answer.read_text(encoding="utf-8"))["policies"])
    assert inplace.startswith("heap, ") and listed.startswith("heap, list, ")
    assert inplace in page and listed in page
    assert Category.CONSUMED.title in capsys.readouterr().out


def test_compare_takes_graph_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "fan_out", "--policy", "heap", "--graph", "freed", "kept", "--out", str(tmp_path)]
    assert main([*arguments, "--json=-"]) == 0
    freed, kept = json.loads(capsys.readouterr().out)["policies"]
    assert (freed["policy"], kept["policy"]) == ("heap", "heap, graph kept")
    assert freed["average_bytes"] < kept["average_bytes"] and freed["peak_bytes"] < kept["peak_bytes"]
    assert "heap, graph kept" in (tmp_path / "fan_out-compare.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("function", ["loss", "loss_and_model"])
def test_compare_runs_a_users_function(
    function: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path_before = list(sys.path)
    assert main(["compare", f"{script}:{function}", "--policy", "bfs", "heap", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"train.py:{function}\n")
    assert [cells[0] for cells in map(str.split, printed.splitlines()) if _is_row(cells)] == ["bfs", "heap"]
    page = tmp_path / "out" / f"train-{function}-compare.html"
    assert str(page) in printed.replace("\n", "") and page.exists()
    assert sys.path == path_before


def test_compare_says_in_a_sentence_that_a_policy_has_no_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", "din", "--policy", "optimal(0.001)", "--out", str(tmp_path)]
    says(assert_refused_late(arguments, capsys), "optimal", "62 tasks", '"search(0.001)"')


def test_compare_tells_what_a_users_function_does_wrong(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    says(assert_refused_late(["compare", f"{script}:number"], capsys), "number()", "int")
    says(assert_refused(["compare", f"{script}:los"], capsys), "train.py", "'los'")
    says(assert_refused(["compare", str(script)], capsys), "SCRIPT.py:FUNCTION")
    script.write_text(SCRIPT.replace("Net()(torch.ones(2, 4)).sum()", "Net()(torch.ones(2, 4))"))
    sentence = assert_refused_late(["compare", f"{script}:loss"], capsys)
    says(sentence, "loss()", "2×1", ".sum()")
    snapshot("compare", sentence)
    says(assert_refused(["debug", f"{script}:loss"], capsys), "loss()", "2×1", ".sum()")
    assert main(["compare", f"{script}:raises_halfway", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count('File "') == 1 and "# here" in error
    says(error.splitlines()[-1], f"{script}:raises_halfway", "RuntimeError")


def test_compare_refuses_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "linear50" in assert_refused(["compare", "linear51"], capsys)
    says(assert_refused(["compare", "linear50", "--policy", "lifo"], capsys), "'lifo'", "heap")
    (tmp_path / "file").touch()
    assert "file" in assert_refused(["compare", "linear50", "--out", str(tmp_path / "file")], capsys)


def test_compare_writes_its_page_without_plotly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert main(["compare", "mnist", "--policy", "heap", "--out", str(tmp_path)]) == 0
    (page,) = tmp_path.iterdir()
    assert page.name in capsys.readouterr().out and "<svg" in page.read_text(encoding="utf-8")


def test_advise_prints_what_it_tried_and_the_code_that_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tmp_path / "answer.json"
    assert main(["advise", "ensemble", "--json", str(answer)]) == 0
    captured = capsys.readouterr()
    ensemble = WORKLOADS["ensemble"]
    assert captured.out.startswith(f"{ensemble.title} (ensemble, small)\n{ensemble.source}")
    says(captured.out, "pytorch issue #18157", "torch.baddbmm", "torch.vmap", "129 tensors")
    gains = any(item["verdict"] == "gain" for item in json.loads(answer.read_text(encoding="utf-8"))["items"])
    assert ("members = list(model.members)" in captured.out) == gains
    (written,) = (line for line in captured.err.splitlines() if line)
    says(written, answer)


@pytest.mark.parametrize("function", ["loss", "loss_and_model"])
def test_advise_runs_a_users_function(
    function: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = tmp_path / "answer.json"
    assert main(["advise", f"{script}:{function}", "--json", str(answer)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"train.py:{function}\n")
    found = json.loads(answer.read_text(encoding="utf-8"))
    says(printed, f"{found['forward_peak_bytes']} B", f"{found['peak_bytes']} B")


def test_advise_refuses_in_a_sentence(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "linear50" in assert_refused(["advise", "linear51"], capsys)
    says(assert_refused(["advise", f"{script}:los"], capsys), "train.py", "'los'")
    assert main(["advise", f"{script}:number"]) == 2
    says(capsys.readouterr().err, "tapescope", "number()", "int")
    assert main(["advise", f"{script}:raises_halfway"]) == 1
    error = capsys.readouterr().err
    assert error.count('File "') == 1 and "# here" in error
    says(error.splitlines()[-1], f"{script}:raises_halfway", "RuntimeError")


def test_a_function_that_can_not_be_measured_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    train = tmp_path / "train.py"
    train.write_text(
        "import torch\nw = torch.ones(2, requires_grad=True)\ndef wants(batch): return (w * batch).sum()\n"
        "def whole_step():\n    loss = (w * w).sum()\n    loss.backward()\n    return loss\n"
    )
    sentence = assert_refused(["graph", f"{train}:wants"], capsys)
    says(sentence, "wants")
    snapshot("graph", sentence)
    assert main(["advise", f"{train}:whole_step"]) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    says(sentence, "whole_step()")
    snapshot("advise", sentence)


def test_a_misspelt_choice_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    before_all_choices, _, _ = assert_refused(["bench", "ordres"], capsys).partition("(choose from")
    assert re.findall(r"'(\w+)'", before_all_choices) == ["ordres", "orders"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("comprae", ["tapescope compare"]),
        ("train.py", ["tapescope run train.py", "tapescope debug train.py"]),
        ("train.py:make_loss", ["tapescope compare train.py:make_loss", "tapescope graph train.py:make_loss"]),
        ("profile", ["tapescope compare"]),
        ("find_nan", ["tapescope debug --watch nan"]),
    ],
)
def test_an_unknown_command_is_answered_with_commands_that_exist(
    typed: str, meant: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.findall("`(.+?)`", assert_refused([typed], capsys)) == meant
    known = command_line()
    for line in meant:
        words = shlex.split(line)[1:]
        known.parse_args([*words, *(["train.py"] if len(words) == 1 or words[-1] == "nan" else [])])


def test_a_word_that_resembles_no_command_is_answered_with_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    says(assert_refused(["list"], capsys), "'list'", *COMMANDS)


@pytest.mark.parametrize(
    "typed",
    [
        "--help",
        "--version",
        "train.py",
        "bench ordres",
        "compare",
        "debug --engine no",
        "debug no.py",
        "demo --policy bsf",
        "advise resnet05",
        f"fits {__file__}:main --memory 8",
        "view no.tape.json",
        "workloads",
        "graph no.py:f",
        "replay a no.py:f no.py:g",
    ],
)
def test_help_and_mistakes_in_arguments_are_answered_without_torch(typed: str) -> None:
    code = (
        "import sys\nfrom tapescope.__main__ import main\n"
        f"try: main({typed.split()!r})\nexcept SystemExit: pass\n"
        "sys.exit(any(name == 'torch' for name in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout + ran.stderr


def test_a_script_without_its_ending_is_answered_with_the_ending(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{script.with_suffix('')}.py:loss" in assert_refused(["graph", f"{script.with_suffix('')}:loss"], capsys)


def test_what_has_no_graph_and_what_is_no_loss_is_told_why_and_what_to_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    script = tmp_path / "cut.py"
    script.write_text(
        "import torch\n"
        "def cut(): return torch.ones(3, requires_grad=True).sum().detach()\n"
        "def named(): return {'loss': torch.ones(3, requires_grad=True).sum()}\n"
    )
    for function, facts in (("cut", ("torch.no_grad()", ".detach()")), ("named", ('["loss"]',))):
        sentence = assert_refused_late(["compare", f"{script}:{function}"], capsys)
        says(sentence, f"{function}()", *facts)
        snapshot("compare", sentence)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["missing.py"], ["missing.py"]),
        (["--policy", "lifo", "x.py"], ["'lifo'", "bfs", "dfs", "heap"]),
        (["--watch", "nann", "x.py"], ['"nann"', "nan"]),
        (["--break", ", 1 +", "x.py"], ["'1 +'"]),
        (["x.py:make", "3"], ["x.py:make", "'3'"]),
        (["--batch", "auto", "--engine", "native", "x.py"], ["(--batch)", "--engine direct"]),
        (["--accumulate", "list", "--engine", "native", "x.py"], ["(list)", "--engine direct"]),
    ],
)
def test_debug_refuses_what_it_does_not_know(
    arguments: list[str],
    facts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: Snapshots,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    sentence = assert_refused(["debug", *arguments], capsys)
    says(sentence, *facts)
    snapshot("debug", sentence)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--engine", "other", "x.py"], ["--engine", "'other'"]),
        (["--release", "late", "x.py"], ["--release", "'late'"]),
        (["--queues", "two", "x.py"], ["--queues", "'two'"]),
        ([], ["SCRIPT.py"]),
    ],
)
def test_debug_refuses_options_as_argparse_does(
    arguments: list[str], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    says(assert_refused(["debug", *arguments], capsys), *facts)


def test_debug_runs_products_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    (tmp_path / "many.py").write_text(
        "import torch\n\n\ndef loss():\n    weights = [torch.ones(3, 3, requires_grad=True) for _ in range(5)]\n"
        "    return torch.stack([torch.ones(2, 3) @ weight for weight in weights]).sum()\n"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("s 3\nback\nc\nc\n"))
    assert main(["debug", "--batch", "auto", f"{tmp_path / 'many.py'}:loss"]) == 0
    printed = capsys.readouterr().out
    says(printed, "5 tasks")
    snapshot("debug", printed)


def test_debug_opens_a_prompt_on_the_loss_of_a_function(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    path_before = list(sys.path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("c\nwhere\nc\n"))
    assert main(["debug", "--break", "second.bias", f"{script}:loss_and_model"]) == 0
    printed = capsys.readouterr().out
    says(printed.splitlines()[1], "1", "second.bias", "AccumulateGrad")
    says(printed, "(second.bias, 3rd, net.py:12)")
    snapshot("debug", printed)
    assert sys.path == path_before and torch._C._len_torch_function_stack() == 0


def test_debug_tells_what_a_users_function_does_wrong(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", f"{script}:raises_at_once"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "KeyError: 'no data'"
    says(assert_refused(["debug", f"{script}:number"], capsys), "number()", "int")
    says(assert_refused(["debug", f"{script}:without_grad"], capsys), "without_grad()", "without a graph", "no_grad")


@pytest.mark.parametrize("command", [["view", "--no-open"], ["diff"]])
def test_a_file_that_is_missing_or_a_folder_is_said_to_be_in_words(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        sentence = assert_refused([*command, *[str(path)] * (2 if command == ["diff"] else 1)], capsys)
        says(sentence, path)
        snapshot(command[0], sentence.replace(str(path), path.suffix or "FOLDER"))


def test_the_versions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == (
        f"tapescope {ts.__version__}, torch {torch.__version__}, Python {platform.python_version()}\n"
    )


def test_the_examples_of_each_command_are_read_by_it() -> None:
    parsers = [command_line()]
    for parser in parsers:
        for action in parser._actions:
            parsers.extend(action.choices.values() if isinstance(action, argparse._SubParsersAction) else ())
    assert [each.prog for each in parsers if "\n  tapescope " not in (each.epilog or "")] == []
    examples = [line for each in parsers for line in (each.epilog or "").splitlines()[1:]]
    for example in examples:
        _, _, arguments = example.partition("tapescope ")
        command_line().parse_args(shlex.split(arguments))


def test_unknown_options_and_misplaced_ones_are_answered_with_what_to_do(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for typed, *facts in (
        (["compare", "linear50", "--polcy", "bfs"], "--polcy", "did you mean --policy?"),
        (["advise", "linear50", "--policy", "bfs"], "--policy", "tapescope advise --help"),
        (["graph", "--groups", f"{script}:loss"], "--groups", "before the option"),
        (["fits", f"{script}:loss", "--memory", "1GB"], "--limit"),
    ):
        with suppress(SystemExit):  # of argparse
            main(typed)
        says(capsys.readouterr().err, *facts)
