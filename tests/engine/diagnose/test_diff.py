from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor, nn

import tapescope as ts
from tapescope.__main__ import main
from tapescope.engine.diagnose.diff_gradients_and_memory import apart
from tapescope.engine.diagnose.diff_task_matching import aligned, longest_common
from tapescope.engine.memory.categories import Category
from tapescope.engine.recording.statistics import statistics
from tapescope.engine.recording.task_records import RecordedGradient
from tapescope.engine.session.direct_session import Stepper
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.graph.graph import TensorMeta
from tapescope.inspector.graph.graph_file import StoredOperation
from tapescope.inspector.text.sizes_and_counts import nth, percent_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of


class Repeated(nn.Module):
    """Adds a parameter 600 times: so many gradients of one size are summed, which bfloat16 can't."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        drift = torch.zeros_like(x)
        for _ in range(600):
            drift = drift + self.scale
        return x + (drift - drift.detach())


class Cancelling(nn.Module):
    """Normalises by E[x²] - E[x]²: the difference of two large numbers."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 30
        variance = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()
        scale = (variance + 1e-3).rsqrt()  # the culprit
        return (x - x.mean(-1, keepdim=True)) * scale


class Net(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.encoder, self.middle, self.head = nn.Linear(8, 8), middle, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.middle(self.encoder(x).tanh()))
        return found


def weighted(out: Tensor) -> Tensor:
    """A loss whose gradient does not depend on what comes out."""
    return (out * torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)).sum()


def run_of(model: nn.Module, x: Tensor, **options: Any) -> ts.Run:
    with ts.capture():
        loss = weighted(model(x))
    return ts.backward(loss, **{"trace": "cheap", **options})


def workload_run(name: str, dtype: torch.dtype | None = None, **options: Any) -> ts.Run:
    torch.manual_seed(0)
    _, make_loss = workload(name).build()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None), ts.capture():
        loss = make_loss()
    return ts.backward(loss, **{"trace": "cheap", **options})


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def line_of(text: str) -> str:
    (number,) = [
        number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(text)
    ]
    return f"{Path(__file__).name}:{number}"


@pytest.mark.parametrize("name", ["gpt2", "recommender"])
def test_two_policies_part_where_their_orders_do_and_agree_to_the_last_digit(name: str) -> None:
    runs = [workload_run(name, policy=policy) for policy in ("heap", "bfs")]
    difference = ts.diff(*runs)
    place = next(
        place for place, (mine, other) in enumerate(zip(*(run.order for run in runs), strict=True)) if mine != other
    )
    first = difference.first_in_order
    assert first is not None and first.common == place and first.places == (place, place)
    assert [task and task.id for task in first.tasks] == [run.order[place] for run in runs]
    assert difference.first_unequal is None and difference.first_in_values is None and difference.jump is None
    assert difference.only == ((), ())
    does = [run.graph.describe(run.order[place]) for run in runs]
    says(difference.sentences[0], place, "run_a", does[0], "run_b", does[1])
    says(difference, len(runs[0].graph))


def test_the_place_is_that_of_compare() -> None:
    _, make_loss = workload("lstm_cell").build()
    parted = ts.compare(make_loss, ["heap", "dfs"], repetitions=1).first_divergence("heap", "dfs")
    runs = [ts.backward(make_loss(), policy=policy) for policy in ("heap", "dfs")]
    first = ts.diff(*runs).first_in_order
    assert parted is not None and first is not None
    assert first.common == parted.place and first.tasks[0] is not None and first.tasks[0].id == parted.first.id  # type: ignore[union-attr]


def test_runs_of_one_order_say_so(snapshot: Snapshots) -> None:
    runs = [workload_run("recommender"), workload_run("recommender", engine="direct")]
    difference = ts.diff(*runs)
    assert difference.first_in_order is None and not difference.differs
    says(difference.sentences[0], "run_a", "run_b")
    snapshot("diff", difference.sentences[0])


def test_an_order_that_ended_early_is_one_that_parts(snapshot: Snapshots) -> None:
    model, x = Net(nn.Identity()), torch.randn(3, 8)
    whole = run_of(model, x)
    with ts.capture():
        loss = weighted(model(x))
    with Stepper(loss, trace="cheap") as session:
        for _ in range(4):
            session.step()
        part = session.trace
    first = ts.diff(whole, part).first_in_order
    assert first is not None and (first.common, first.places) == (4, (4, None))
    assert first.tasks[0] is not None and first.tasks[1] is None
    says(ts.diff(whole, part).sentences[0], 4, "run_a", whole.graph.describe(first.tasks[0]), "run_b")
    snapshot("diff", ts.diff(whole, part).sentences[0])
    turned = ts.diff(part, whole)
    assert turned.first_in_order is not None and turned.first_in_order.tasks[0] is None
    snapshot("diff", turned.sentences[0])


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm", "unet", "recommender"])
def test_float32_and_autocast_have_the_same_tasks_but_for_the_casts_and_agree(name: str) -> None:
    try:
        runs = [workload_run(name), workload_run(name, torch.bfloat16)]
    except RuntimeError as error:
        if name == "lstm_lm" and "could not create a primitive descriptor" in str(error):
            pytest.skip("oneDNN has no LSTM in bfloat16 for this CPU")
        raise
    difference = ts.diff(*runs)
    assert difference.only[0] == () and {task.name for task in difference.only[1]} == {"ToCopyBackward0"}
    assert len(difference.only[1]) == len(runs[1].graph) - len(runs[0].graph) > 0
    for pair in difference.tasks:
        mine, other = pair.tasks
        assert (mine.name, mine.parameter) == (other.name, other.parameter)
        assert runs[0].graph.module(mine) == runs[1].graph.module(other) and mine.source == other.source
    assert difference.dtype is torch.bfloat16 and difference.tolerance == math.sqrt(torch.finfo(torch.bfloat16).eps)
    assert difference.first_in_values is None and difference.first_unequal is not None
    says(difference, percent_text(max(each.share for each in difference.values)), "8.8 %", "bfloat16")


def test_of_permuted_gradients_only_what_was_compared_is_said_to_agree(snapshot: Snapshots) -> None:
    def weights(*factors: float) -> ts.Run:
        weight = nn.Parameter(torch.ones(3))
        return ts.backward((weight * torch.tensor(factors)).sum(), trace="cheap")

    permuted = ts.diff(weights(1, 2, 3), weights(3, 1, 2))
    assert not permuted.differs and permuted.first_unequal is None
    snapshot("diff", permuted)
    close = ts.diff(weights(1, 2, 3), weights(3, 1, 2.00001))
    assert not close.differs and close.first_unequal is not None and close.first_in_values is None
    says(close, percent_text(max(each.share for each in close.values)), percent_text(close.tolerance))
    snapshot("diff", "\n".join(close.sentences))


@pytest.mark.parametrize("policy", ["heap", "bfs"])
def test_the_direct_engine_and_pytorchs_agree_on_one_graph(policy: str, snapshot: Snapshots) -> None:
    """They record what is broadcast differently: the direct engine before it is summed to the shape taken."""
    model, x = Net(nn.Identity()), torch.randn(5, 8)
    scale, shift = torch.ones(4, requires_grad=True), torch.ones(5, 1, requires_grad=True)
    with ts.capture():
        loss = weighted(model(x) * scale + shift)
    native = ts.backward(loss, trace="cheap", retain_graph=True)
    direct = ts.backward(loss, trace="cheap", engine="direct", policy=policy, retain_graph=True)
    for pair in ((native, direct), (direct, native)):
        difference = ts.diff(*pair)
        assert difference.first_unequal is None and difference.only == ((), ())
        assert difference.first_in_order is None or policy != "heap"
    if policy == "bfs":
        snapshot("diff", difference)


def test_a_sum_of_many_small_values_that_bfloat16_loses_is_where_the_difference_jumps() -> None:
    model, x = Net(Repeated()), torch.randn(16, 8)
    in_bfloat16 = copy.deepcopy(model).bfloat16()  # a run does not keep the leaves that are looked at below
    first, second = run_of(model, x), run_of(in_bfloat16, x.bfloat16())
    difference = ts.diff(first, second)
    jump = difference.jump
    assert jump is not None and jump is difference.first_in_values
    assert (jump.how, jump.apart.by) == ("takes", "norm") and jump.before < 0.01 < 0.3 < jump.share
    task = jump.task.tasks[0]
    assert task.parameter == "middle.scale" and task.source is not None
    assert task.source.short == line_of("drift = drift + self.scale")
    says(" ".join(difference.sentences), 600, "middle.scale")
    assert difference.leaves[0].tasks[0].parameter == "middle.scale"
    assert difference.cells[1][0] == "middle.scale"
    true = (second.graph.leaves[jump.task.tasks[1].id].grad, first.graph.leaves[task.id].grad)
    assert jump.apart.second == pytest.approx(float(true[0].float().norm()), rel=1e-3)  # type: ignore[union-attr]
    assert jump.apart.first == pytest.approx(float(true[1].norm()), rel=1e-3)  # type: ignore[union-attr]


def test_a_cancellation_in_float32_is_named_where_its_result_is_first_used() -> None:
    model, x = Net(Cancelling()), torch.randn(16, 8)
    first, second = run_of(model, x), run_of(copy.deepcopy(model).double(), x.double())
    difference = ts.diff(first, second)
    assert difference.dtype is torch.float32
    jump = difference.jump
    assert jump is not None and jump.how == "gives" and jump.before < 1e-6 < difference.tolerance < jump.share
    (task, other) = jump.task.tasks
    assert task.name == other.name == "RsqrtBackward0" and first.graph.module(task) == "middle"
    assert task.source is not None and task.source.short == line_of("# the culprit")
    place = nth(jump.task.places[0] + 1)
    assert f"RsqrtBackward0 (middle, {place}, {line_of('# the culprit')})" in " ".join(difference.sentences)


MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.inner(x).tanh()
        hidden = {change}
        return x + self.outer(hidden)

def model():
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(4)], nn.Linear(8, 4))
"""


@pytest.fixture
def commit(tmp_path: Path) -> Callable[[str, str], Path]:
    """Saves the run of a model at a commit, in which one line of `model.py` is this."""

    def save(name: str, change: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.py").write_text(MODEL.format(change=change))
        spec = importlib.util.spec_from_file_location(f"commit_{name}", folder / "model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model = module.model()
        return run_of(model, torch.ones(3, 8)).save(tmp_path / f"{name}.tape.json")

    return save


def test_of_two_commits_saved_traces_the_line_that_changed_is_named(
    commit: Callable[[str, str], Path], snapshot: Snapshots
) -> None:
    before, after = ts.load(commit("before", "hidden * 1.0")), ts.load(commit("after", "hidden * 1.5"))
    difference = ts.diff(before, after)
    assert difference.first_in_order is None and difference.only == ((), ())
    first, jump = difference.first_in_values, difference.jump
    # Later layers received other values in the forward, so their weights' gradients differ. The gradient that is passed
    # on first differs here.
    assert first is not None and first.task.tasks[0].name == "AddmmBackward0" and first.before == 0
    assert jump is not None and jump.task.tasks[0].name == "MulBackward0" and jump.before == 0
    assert jump.share == pytest.approx(1 / 3) and jump.apart.by == "norm"
    for task, run in zip(jump.task.tasks, (before, after), strict=True):
        assert task.source is not None and task.source.short == "model.py:12" and run.graph.module(task) == "3"
    says(" ".join(difference.sentences), "MulBackward0", "model.py:12", percent_text(jump.share))
    snapshot("diff", "\n".join(difference.sentences))


def test_of_two_commits_what_one_has_more_is_listed_and_passed_over(commit: Callable[[str, str], Path]) -> None:
    before, after = ts.load(commit("before", "hidden")), ts.load(commit("after", "hidden.sin().clone()"))
    difference = ts.diff(before, after)
    kinds = sorted(task.name for task in difference.only[1])
    assert kinds == ["CloneBackward0"] * 4 + ["SinBackward0"] * 4 and difference.only[0] == ()
    says(difference.sentences[-1], "run_b", "4 × CloneBackward0", "4 × SinBackward0")
    assert len(difference.tasks) == len(before.graph)
    for pair in difference.tasks:
        assert before.graph.module(pair.tasks[0]) == after.graph.module(pair.tasks[1])
        assert pair.tasks[0].parameter == pair.tasks[1].parameter


def test_nan_in_one_of_them_is_found_where_it_begins(snapshot: Snapshots) -> None:
    class Risky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * x).sqrt()  # of zero

    model = Net(Risky())
    x = torch.randn(16, 8)
    good = run_of(model, x)
    with torch.no_grad():
        model.encoder.weight[0] = 0
        model.encoder.bias[0] = 0
    bad = run_of(model, x)
    difference = ts.diff(good, bad, tolerance=1e6)
    first = difference.first_in_values
    assert first is not None and first.apart[:4] == (math.inf, "infinite", 0, 16)  # and times zero NaN
    assert bad.trace is not None
    given = {record.task: [each.statistics for each in record.outputs if each is not None] for record in bad.trace}
    direct = next(task for task, all_of in given.items() if any(each and each.inf_count for each in all_of))
    assert first.task.tasks[1].id == direct.id and direct.name == "SqrtBackward0" and direct.source is not None
    assert direct.source.short == line_of("# of zero")
    assert first is difference.jump
    says(" ".join(difference.sentences), "SqrtBackward0", 0, 16, "run_a", "run_b")
    snapshot("diff", difference.sentences[1])
    later = next(each for each in difference.values if each.apart.by == "NaN")
    assert later.task.tasks[0].name == "MulBackward0"


def test_gradients_that_are_missing_or_of_another_shape_are_said_to_be() -> None:
    model, x = Net(nn.Identity()), torch.randn(16, 8)
    shapes = ts.diff(run_of(model, x), run_of(model, x[:4])).first_in_values
    assert shapes is not None and shapes.apart[:4] == (math.inf, "shape", "16×4", "4×4")

    class Half(torch.autograd.Function):
        give = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor | None:
            return gradient if Half.give else None

    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = Half.apply(x)
            return found

    model = Net(Halves())
    whole = run_of(model, x)
    Half.give = False
    missing = ts.diff(whole, run_of(model, x)).first_in_values
    assert missing is not None and missing.apart[:4] == (math.inf, "missing", "a gradient", "none")
    assert missing.task.tasks[0].name == "HalfBackward"


def test_a_sum_that_cancels_is_no_difference(snapshot: Snapshots) -> None:
    """The gradient of a key's bias is zero but for rounding, since softmax does not see what is added to all scores."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).mT
            found: Tensor = scores.softmax(-1) @ self.value(x)
            return found

    model, x = Net(Attention()), torch.randn(4, 16, 8)
    first, second = run_of(model, x), run_of(copy.deepcopy(model).bfloat16(), x.bfloat16())
    difference = ts.diff(first, second)
    (key,) = [each for each in difference.leaves if each.tasks[0].parameter == "middle.key.bias"]
    found = key.takes[0]
    assert found is not None and found.share > difference.tolerance
    assert difference.first_in_values is None
    assert 0 in key.small_inputs and difference.leaves[-1] is key
    alone = replace(difference, tasks=(key,))
    name, share, *_ = alone.cells[1]
    assert name == "middle.key.bias"
    says_none_of(share, "%")
    snapshot("diff", share)


def test_runs_without_statistics_say_how_to_have_them(snapshot: Snapshots) -> None:
    model, x = Net(nn.Identity()), torch.randn(3, 8)
    measured = run_of(model, x)
    for other in (run_of(model, x, trace=None), run_of(model, x, trace="off")):
        difference = ts.diff(measured, other)
        assert difference.first_in_order is None and difference.first_in_values is None and not difference.tasks
        assert difference.measured == (True, False)
        says(difference.sentences[1], "run_b", 'ts.backward(loss, trace="cheap")')
    snapshot("diff", difference)


def test_traces_alone_and_runs_of_sessions_will_do() -> None:
    model, x = Net(nn.Identity()), torch.randn(3, 8)
    run = run_of(model, x)
    assert run.trace is not None
    with ts.capture():
        loss = weighted(model(x))
    session = ts.debug(loss, history=False)
    session.run()
    for other in (run.trace, session.result() if hasattr(session, "result") else run):
        assert not ts.diff(run, other).differs


def test_what_is_no_run_is_refused_in_a_sentence(snapshot: Snapshots) -> None:
    run = run_of(Net(nn.Identity()), torch.randn(3, 8))
    with raises(TypeError, "ts.diff", "str", "ts.load") as refused:
        ts.diff(run, "run.tape.json")  # type: ignore[arg-type]
    snapshot("diff", refused.value)
    for tolerance in (0.0, -1.0, math.nan, math.inf):
        with raises(ValueError, "tolerance", repr(tolerance)) as refused:
            ts.diff(run, run, tolerance=tolerance)
    snapshot("diff", refused.value)


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_the_tolerance_decides_what_is_looked_at(share: float) -> None:
    model, x = Net(nn.Identity()), torch.randn(3, 8)
    first = run_of(model, x)
    with torch.no_grad():
        model.head.weight *= 1.1
    difference = ts.diff(first, run_of(model, x), tolerance=share)
    assert (difference.first_in_values is None) == (share > 0.1)
    assert difference.dtype is None
    says(difference, f"{100 * share:.2g} %")


def test_models_of_other_names_or_without_a_capture_are_compared_by_the_kinds_of_their_nodes() -> None:
    model, x = Net(Repeated()), torch.randn(3, 8)
    captured = run_of(model, x)
    bare = ts.backward(weighted(model(x)), trace="cheap")
    wrapped = nn.Sequential()
    wrapped.add_module("other", copy.deepcopy(model))
    renamed = run_of(wrapped, x)
    for other in (bare, renamed):
        pairs = aligned(captured.graph, other.graph)
        assert len(pairs) == len(captured.graph) and all(mine == twin for mine, twin in pairs.items())


def test_other_kernels_nodes_of_one_operation_belong_together() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    with ts.capture():
        loss = model(torch.randn(2, 1, 6, 6)).sum()
    graph = ts.graph(loss)
    stored = []
    for task in graph.tasks:
        assert task.operation is not None
        stored.append(replace(task, operation=StoredOperation(task.operation.name, None)))
    other = [replace(task, name=task.name.replace("NativeBatchNorm", "CudnnBatchNorm")) for task in stored]
    assert other != stored
    pairs = aligned(replace(graph, tasks=tuple(stored)), replace(graph, tasks=tuple(other)))
    assert pairs == {number: number for number in range(len(graph))}


def recorded(tensor: Tensor) -> RecordedGradient:
    meta = TensorMeta(tuple(tensor.shape), tensor.dtype, tensor.device)
    return RecordedGradient(meta, tensor.layout, statistics(tensor, "full"))


finite = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20))
def test_what_is_said_of_two_gradients_never_exceeds_their_relative_difference(
    values: list[tuple[float, float]],
) -> None:
    first, second = torch.tensor(values, dtype=torch.float64).T.contiguous()
    found = apart(recorded(first), recorded(second))
    norm = float(max(first.norm(), second.norm()))
    assert found is not None
    true = float((first - second).norm()) / norm if norm else 0.0
    assert found.share <= true * (1 + 1e-6) + 1e-9
    assert apart(recorded(first), recorded(first.clone()))[:4] == (0.0, "norm", None, None)


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_a_longest_common_subsequence_is_common_and_as_long_as_the_table_says(
    first: list[int], second: list[int]
) -> None:
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for row, mine in enumerate(first):
        for column, other in enumerate(second):
            above = max(table[row][column + 1], table[row + 1][column])
            table[row + 1][column + 1] = table[row][column] + 1 if mine == other else above
    pairs = longest_common(first, second)
    assert len(pairs) == table[-1][-1] and all(first[mine] == second[other] for mine, other in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))


@pytest.mark.slow
def test_twenty_thousand_tasks_and_those_that_were_put_between_them_are_told_apart() -> None:
    random = torch.Generator().manual_seed(0)
    first = torch.randint(8, (20_000,), generator=random).tolist()
    second = [label for each in first for label in ([each, 8] if each % 3 else [each])]
    pairs = longest_common(first, second)
    assert [mine for mine, _ in pairs] == list(range(20_000))
    longer = longest_common(first * 4, second * 4)  # in windows
    assert len(longer) == 80_000


def test_the_difference_is_a_data_frame_a_table_in_a_terminal_and_escaped_html() -> None:
    model = Net(nn.Identity())
    x = torch.randn(3, 8)
    first = run_of(model, x)
    with torch.no_grad():
        model.head.weight *= 2
    difference = ts.diff(first, run_of(model, x), names=("<b>old</b>", "new"))
    frame = pd.DataFrame(difference.records())
    assert len(frame) == len(first.graph) and frame["place"].is_monotonic_increasing
    assert frame.set_index("parameter").loc["encoder.weight", "takes"] == pytest.approx(0.5)
    page = difference._repr_html_()
    assert "<b>old</b>" not in page and "&lt;b&gt;old&lt;/b&gt;" in page and "encoder.weight" in page
    console = Console(width=100)
    with console.capture() as capture:
        console.print(difference)
    says(capture.get(), *difference.cells[0][:2], "encoder.weight")


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.usefixtures("wide_terminal")
def test_the_command_line_says_where_two_files_part(
    tmp_path: Path, commit: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = commit("before", "hidden * 1.0"), commit("after", "hidden * 1.5")
    assert main(["diff", str(before), str(before)]) == 0
    says(capsys.readouterr().out, "before.tape.json")
    assert main(["diff", str(before), str(after)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    says(printed, "before.tape.json", "after.tape.json", "AddmmBackward0", "MulBackward0", "model.py:12")
    assert main(["diff", str(before), str(after), "--tolerance", "10"]) == 0
    capsys.readouterr()
    assert main(["diff", str(before), str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    assert main(["diff", str(before), str(after), "--tolerance", "0"]) == 2
    says(capsys.readouterr().err, "tapescope:", "tolerance", 0.0)


def test_the_gradients_of_parameters_that_both_have_are_alive_at_both_peaks() -> None:
    blocks = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
    model, x = nn.Sequential(*blocks), torch.randn(8, 64)
    sizes = {each.nbytes for each in model.parameters() if each.dim() > 1}

    def in_bfloat16() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    runs = []
    for make_loss in (lambda: model(x).square().mean(), in_bfloat16):
        model.zero_grad()
        runs.append(ts.profile(make_loss, model=model))
    assert [each.timeline is not None for each in runs] == [True, True]
    memory = ts.diff(*runs).memory
    assert memory is not None
    for groups in memory.only:
        alone = [each for group in groups for each in group.storages if group.category is Category.GRADIENT]
        assert not any(each.nbytes in sizes for each in alone)


def test_a_weight_that_is_tied_in_one_run_alone_has_one_gradient_more_in_the_other() -> None:
    def run(is_tied: bool) -> ts.Run:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False))
        if is_tied:
            model[2].weight = model[0].weight
        kept.append(model)
        return ts.profile(lambda: model(torch.ones(2, 64)).square().mean(), model=model)

    kept: list[nn.Module] = []
    memory = ts.diff(run(True), run(False)).memory
    assert memory is not None
    untied = [each for group in memory.only[1] for each in group.storages if each.nbytes == 64 * 64 * 4]
    assert len(untied) == 1  # the second weight's: the first one's is alive in both
