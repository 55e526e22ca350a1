from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.storage_sentences import StorageWords
from tapescope.engine.memory.timeline import GRADIENT_GRAPH, RANDOM_STATE, Keeper, Maker
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.recording.peak_report import PeakReport, peak_report
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.graph.phrases import joined
from tapescope.inspector.text.sizes_and_counts import nth, size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..backward_programs import OnCtx
from ..timelines import Told

NASTY = "[bold]x</b><script>alert(1)</script>$y$"


def measured(name: str, policy: str = "heap") -> PeakReport:
    _, make_loss = workload(name).build()
    timeline = ts.profile(make_loss, policy).timeline
    assert timeline is not None
    return peak_report(timeline)


def chain() -> ts.Graph:
    """Sum, Mul, Exp, and the leaf."""
    leaf = torch.ones(4, requires_grad=True)
    with ts.capture():
        loss = (leaf.exp() * 2).sum()
    return ts.graph(loss, {"leaf": leaf})


def keepers(report: PeakReport, number: int) -> list[Keeper]:
    """Return the keepers of the storage with this number."""
    return [*report.timeline.storage(number).kept_by]


def tasks(graph: ts.Graph) -> dict[str, int]:
    return {task.short_name: task.id for task in graph.tasks}


def printed(report: PeakReport) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(report)
    return capture.get()


def test_fifty_weight_gradients_that_wait_are_the_answer(snapshot: Snapshots) -> None:
    report = measured("linear50", "bfs")
    graph = report.timeline.graph
    where = graph.describe(report.timeline.peak_task)
    says(report.answer[0], "51.0 MiB", where, 104)
    says(report.answer[1], "100 %", Category.BUFFER.plural, "linear", "workload_models.py")
    says(report.answer[1], 49, "linear.weight", "49 × TBackward0")
    snapshot("peak", re.sub(r"models\.py:\d+", "models.py", "\n".join(report.answer)))
    for text in (str(report), printed(report)):
        says(text.partition("\n")[0], "51.0 MiB")
        says(text, "Hint", "49 × TBackward0")
    assert repr(report).count("\n") == 0


@pytest.mark.parametrize("name", ["resnet50", "gpt2", "recommender"])
def test_the_groups_are_the_peak_and_each_storage_is_in_one(name: str) -> None:
    report = measured(name)
    timeline = report.timeline
    assert sum(group.nbytes for group in report.groups) == timeline.peak_bytes == report.nbytes
    numbers = [storage.number for group in report.groups for storage in group.storages]
    assert sorted(numbers) == [number for number in timeline.alive() if timeline.nbytes[number]]
    totals = [report.categories[category] for category in report.categories]
    assert totals == sorted(totals, reverse=True) and sum(totals) == report.nbytes
    for group in report.groups:
        died = [storage.died for storage in group.storages]
        assert died == sorted(died, key=lambda place: -len(timeline) if place is None else -place)


def test_records_are_a_data_frame_with_a_row_per_storage() -> None:
    report = measured("resnet50")
    frame = pd.DataFrame(report.records())
    assert len(frame) == sum(len(group.storages) for group in report.groups)
    assert frame["bytes"].sum() == report.nbytes
    assert frame["share"].sum() == pytest.approx(1)
    by_category = frame.groupby("category")["bytes"].sum().to_dict()
    assert by_category == {category.title: nbytes for category, nbytes in report.categories.items()}
    graph, order = report.timeline.graph, report.timeline.order
    ended = frame[frame["died"] < len(order)]
    assert len(ended)
    for record in ended.to_dict("records"):
        place = int(record["died"])
        assert graph.describe(order[place], place) in record["freed_by"]
    grads = frame[frame["category"] == Category.GRADIENT.title]
    assert len(grads) and grads["died"].isna().all()
    says(" ".join(set(grads["freed_by"])), ".grad")
    leaves = {task.parameter for task in graph.tasks if task.is_leaf}
    assert all(".grad" in kept and not leaves.isdisjoint(kept.split()) for kept in grads["kept_by"])


def test_who_keeps_what_is_saved_are_the_tasks_still_to_come() -> None:
    report = measured("gpt2")
    timeline = report.timeline
    place = {task: at for at, task in enumerate(timeline.order)}
    words = StorageWords(timeline)
    for group in report.groups:
        if group.category is Category.SAVED:
            for storage in group.storages:
                keepers = words.keepers(storage, timeline.peak_place)
                to_come = {task for task, _ in timeline.saved[storage.number] if place[task] >= timeline.peak_place}
                assert {keeper.task for keeper in keepers if keeper.kind == "saved"} == to_come != set()


def test_each_kind_of_keeper_has_its_words(snapshot: Snapshots) -> None:
    graph = chain()
    at = tasks(graph)
    told = Told(graph)
    saved = told.left(400, maker=Maker(None, graph.tasks[at["Exp"]].operation, ""), saved=[(at["Exp"], "result")])
    output = told.left(300, Category.FORWARD, held=True)
    told.task(at["Sum"])
    root = told.born(200)
    told.task(at["Mul"])
    gradient = told.born(100)
    told.waits_in(at["Exp"], gradient)
    workspace = told.born(50, Category.WORKSPACE)
    told.dies(workspace)
    told.task(at["Exp"])
    told.dies(saved)
    told.task(at["AccumulateGrad"])
    told.becomes(gradient, Category.GRADIENT)
    told.grads[gradient] = at["AccumulateGrad"]
    timeline = told.done(root)
    report = peak_report(timeline)
    records = {record["number"]: record for record in report.records()}
    kept = {number: record["kept_by"] for number, record in records.items()}
    freed = {number: record["freed_by"] for number, record in records.items()}
    exp, mul = graph.describe(at["Exp"], 2), graph.describe(at["Mul"], 1)
    says(report.answer[0], "1.0 KiB", graph.describe(at["Mul"]), 4)
    said = {number: [keeper.kind for keeper in keepers(report, number)] for number in records}
    assert said == {saved: ["saved"], output: ["user"], root: ["backward"], gradient: ["buffer", "grad"], workspace: []}
    says(kept[saved], "ExpBackward0")
    says(freed[saved], exp)
    says(records[saved]["made_by"], "exp")
    says(f"{kept[root]} {freed[root]}", "backward()")
    says(kept[gradient], "leaf", "ExpBackward0")
    says(freed[gradient], ".grad")
    says(freed[workspace], mul)
    assert records[output]["died"] is records[gradient]["died"] is None
    snapshot("peak", "\n".join(f"{kept[number]} | {freed[number]}" for number in records))


class Chain(nn.Module):
    """One module in a list, and three of another size."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(64, 48), (48, 64), (64, 64), (64, 64)]
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(*size), nn.Tanh()) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def of_chain() -> PeakReport:
    model = Chain()
    x = torch.randn(1000, 64)
    return ts.profile(lambda: model(x).square().sum()).peak()


def test_equal_modules_are_told_together(snapshot: Snapshots) -> None:
    report = of_chain()
    saved = [group for group in report.groups if group.category is Category.SAVED and "tanh" in group.made_by]
    titles = {report.module_title(group): group for group in saved}
    assert list(titles) == ["3 × blocks.*.1", "blocks.0.1"]
    three = titles["3 × blocks.*.1"]
    assert three.modules == len(three.storages) == 3 and three.nbytes == 3 * 64_000 * 4
    says(three.made_by, "3 × tanh")
    says(three.kept_by, "3 × TanhBackward0 (blocks.*.1)", "2 × AddmmBackward0 (blocks.*.0)")
    says(report.answer[1], "750 KiB", "3 × blocks.*.1", three.source.short)
    snapshot("peak", report)
    assert {record["module"] for record in report.records()} >= {"blocks.1.1", "blocks.2.1", "blocks.3.1"}


def test_tasks_and_operations_are_counted_not_the_storages_of_each(snapshot: Snapshots) -> None:
    x = torch.randn(1000, 64, requires_grad=True)
    norm = nn.LayerNorm(64)
    report = ts.profile(lambda: norm(x).exp().sum()).peak()
    (group,) = [group for group in report.groups if "layer_norm" in group.made_by]
    assert len(group.storages) == 2  # mean and reciprocal deviation; its result goes, exp saves its own
    says(group.kept_by, "NativeLayerNormBackward0")
    says_none_of(f"{group.made_by} {group.kept_by}", 2)
    says(report.sentences(group)[0][1], "layer_norm", 2)
    snapshot("peak", "\n".join(map(": ".join, report.sentences(group))))


def test_a_gradient_waits_for_the_first_task_that_gets_it() -> None:
    x = torch.randn(1000, requires_grad=True)
    report = ts.profile(lambda: x.repeat(8).view(80, 100).flatten().view(8, 1000).exp().sum()).peak()
    made = [record for record in report.records() if "ExpBackward0" in record["made_by"]]
    assert [re.findall(r"\w+Backward0", record["kept_by"]) for record in made] == [["ViewBackward0"]]


def test_what_a_checkpointed_region_computes_again_is_called_that(snapshot: Snapshots) -> None:
    x = torch.randn(1000, requires_grad=True)

    def region(x: torch.Tensor) -> torch.Tensor:
        return x.exp().tanh()

    def made_by(make_loss: Callable[[], torch.Tensor]) -> set[str]:
        records = ts.profile(make_loss).peak().records()
        return {record["made_by"] for record in records if record["category"] == Category.SAVED.title}

    again = made_by(lambda: checkpoint(region, x, use_reentrant=False).sum())
    (tanh,) = [words for words in again if "TanhBackward0" in words]
    snapshot("peak", tanh)
    says_none_of(made_by(lambda: region(x).sum()), "TanhBackward0")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_the_random_state_of_a_checkpoint_is_not_said_to_be_made_by_an_operation(
    use_reentrant: bool, snapshot: Snapshots
) -> None:
    x, layer = torch.randn(4, 8, requires_grad=True), nn.Linear(8, 8)
    nbytes = torch.get_rng_state().nbytes
    region = partial(checkpoint, layer, use_reentrant=use_reentrant)
    report = ts.profile(lambda: region(region(x)).sum()).peak()
    states = [
        record
        for record in report.records()
        if record["bytes"] == nbytes and record["category"] == Category.SAVED.title
    ]
    assert len(states) == 2
    for record in states:
        assert record["module"] == "torch.utils.checkpoint"
        says(record["made_by"], "get_rng_state")
        slots = {keeper.slot for keeper in keepers(report, record["number"])}
        assert (RANDOM_STATE in slots) is not use_reentrant
    snapshot("peak", "\n".join(record["kept_by"] for record in states))
    assert not any("get_rng_state" in str(hint) for hint in report.hints)


def test_what_nobody_would_miss_is_a_line_without_a_story(snapshot: Snapshots) -> None:
    x = torch.randn(100_000, requires_grad=True)
    kept = []

    def make_loss() -> torch.Tensor:
        kept.append(x[:10] + 1)
        return x.exp().sum()

    report = ts.profile(make_loss).peak()
    says(str(report).splitlines()[-1], Category.FORWARD.title, "44 B")
    assert [groups for category, groups, _ in report.shown(4) if category is Category.FORWARD] == [[]]
    snapshot("peak", report)


def test_the_loss_itself_is_not_worth_a_line() -> None:
    report = of_chain()
    assert sum(record["bytes"] for record in report.records() if record["category"] == Category.FORWARD.title) == 4
    for text in (str(report), printed(report), report._repr_html_()):
        says_none_of(text, Category.FORWARD.title, "4 B")


def test_a_backward_that_starts_with_its_peak_says_so(snapshot: Snapshots) -> None:
    graph = chain()
    told = Told(graph)
    told.left(4096, saved=[(tasks(graph)["Exp"], "result")])
    told.task(tasks(graph)["Sum"])
    report = peak_report(told.done())
    assert report.timeline.peak_task is None and report.timeline.peak_place < 0
    says(report.answer[0], "4 KiB")
    snapshot("peak", report.answer[0])


def test_a_prediction_is_called_one(snapshot: Snapshots) -> None:
    _, make_loss = workload("linear50").build()
    run = ts.profile(make_loss, "heap")
    report = peak_report(simulate(run.graph, "bfs", run.footprints))
    judge = measured("linear50", "bfs")
    assert (report.timeline.basis, judge.timeline.basis) == ("calibrated", "measured")
    assert report.answer[0] == judge.answer[0]
    (basis,) = [sentence for sentence in report.answer if sentence not in judge.answer]
    snapshot("peak", basis)


def test_the_text_needs_no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    report = measured("linear50")
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError):
        report.__rich__()
    says(report, Category.BUFFER.title)


def test_names_are_data() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(NASTY, nn.Linear(64, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(self, NASTY)(x)

    model = Model()
    timeline = ts.profile(lambda: model(torch.ones(2, 64)).tanh().sum()).timeline
    assert timeline is not None
    report = peak_report(timeline)
    assert NASTY in str(report)
    assert NASTY in printed(report).replace("\n", "") or "[bold]x</b>" in printed(report)
    html = report._repr_html_()
    assert "<script>" not in html and "</b><" not in html.replace("</b></td>", "").replace("</b></p>", "")
    assert "[bold]x&lt;/b&gt;&lt;script&gt;" in html


def test_long_lists_end_in_how_many_more() -> None:
    assert joined(["a"]) == "a"
    assert joined(["a", "b"]) == "a and b"
    says(joined(["a", "b", "c", "d", "e"]), "a", "b", "c", 2)
    assert [nth(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 111, 112, 1003)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th", "112th", "1,003rd")
    ]


def test_the_forward_is_told_where_its_peak_is_higher(snapshot: Snapshots) -> None:
    frozen = nn.Sequential(nn.Linear(64, 8192), nn.ReLU(), nn.Linear(8192, 64)).requires_grad_(False)
    last, x = nn.Linear(64, 64), torch.randn(128, 64)
    run = ts.profile(lambda: last(frozen(x)).sum())
    forward = run.timeline.forward_peak_bytes
    assert forward >= 2 * 128 * 8192 * 4 > run.peak_bytes
    report = run.peak()
    assert report.forward is not None and report.forward.nbytes == forward
    says(" ".join(report.answer), size_text(forward))
    snapshot("peak", "\n".join(report.answer))
    assert of_chain().forward is None


class Scores(nn.Module):
    """For a batch of 64 x 64, its forward holds two tensors of 64 x 4,096 at once, which no node saves."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4096)).requires_grad_(False)
        self.narrow = nn.Linear(4096, 16).requires_grad_(False)
        self.last = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.wide(x)
        self.kept = scores.exp()
        low = self.narrow(self.kept * 2)
        del self.kept
        return self.last(low).sum()


def named(report: PeakReport) -> dict[str, tuple[int, str]]:
    """Return the bytes assigned to each variable, and the operation that frees them."""
    return {record["variable"]: (record["bytes"], record["freed_by"]) for record in report.records()}


def named_bytes(report: PeakReport) -> dict[str, int]:
    return {variable: nbytes for variable, (nbytes, _) in named(report).items()}


def test_the_forwards_peak_has_the_names_of_what_was_alive(tmp_path: Path, snapshot: Snapshots) -> None:
    model, x = Scores(), torch.randn(64, 64)
    run = ts.profile(lambda: model(x))
    line = Scores.forward.__code__.co_firstlineno
    report = run.peak(phase="forward")
    large, low = 64 * 4096 * 4, 64 * 16 * 4
    assert report.phase == "forward" and report.nbytes == run.timeline.forward_peak_bytes == 3 * large + low
    assert sum(group.nbytes for group in report.groups) == report.nbytes
    assert named_bytes(report) == {"scores": large, "self.kept": large, None: large, "low": low}
    says(named(report)["scores"][1], "sum", f"test_peak_report.py:{line + 5}")
    for variable in ("self.kept", None):  # self.kept * 2
        says(named(report)[variable][1], "linear", f"test_peak_report.py:{line + 3}")
    snapshot("peak", report)
    assert {(record["module"], record["source"]) for record in report.records() if record["variable"] == "scores"} == {
        ("wide.2", f"test_peak_report.py:{line + 1}")
    }
    says(report.answer[0], "linear", f"test_peak_report.py:{line + 3}")
    whole = run.peak()
    assert whole.forward is not None and named(whole.forward) == named(report)
    for text in (str(whole), printed(whole)):
        assert "self.kept" in text and report.answer[0][:30] in text
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert named(loaded.peak(phase="forward")) == named(report)


def test_a_variable_is_that_of_the_result_alone() -> None:
    def make_loss() -> torch.Tensor:
        chosen = nn.functional.gumbel_softmax(x, hard=True)  # makes several
        left, right = chosen.exp(), chosen.sin()  # the first waits for the second
        both = first = left + right
        values, _places = both.sort()
        first = nn.Sequential(nn.Tanh(), nn.Flatten(0), nn.Tanh())(values)
        return (last := (first * 2).square()).sum() + last.mean()

    x = torch.randn(64, 64, requires_grad=True)
    large = 64 * 64 * 4
    alive: dict[str | None, int] = {}
    for storage in ts.profile(make_loss).timeline:
        if storage.born < 0 and storage.nbytes >= large:
            alive[storage.made_by.variable] = alive.get(storage.made_by.variable, 0) + storage.nbytes
    del alive[""]
    once = dict.fromkeys(("chosen", "right", "both", "first", "last"), large)
    assert alive == {**once, "values, _places": 3 * large}  # places are int64


class Trainer:
    def __init__(self) -> None:
        self.outputs: list[Any] = [None, {}]
        self.model = nn.Sequential(nn.Linear(64, 256), nn.Tanh())

    def make_loss(self) -> torch.Tensor:
        hidden = self.model(torch.ones(64, 64))
        self.outputs[1]["hidden"] = hidden.detach()
        self.model.cache = (hidden * 2).view(-1)
        return hidden.exp().sum()


def test_what_the_program_holds_has_the_name_of_its_holder(tmp_path: Path) -> None:
    trainer, rows = Trainer(), list[torch.Tensor]()

    def make_loss() -> torch.Tensor:
        loss = trainer.make_loss()
        rows.append(loss * torch.ones(5000))
        return rows[0].sum()

    def holders(run: ts.Run) -> list[str]:
        return [holder for group in run.peak().groups for holder in group.holders]

    run = ts.profile(make_loss)
    gc.collect()
    gc.disable()
    try:
        said = str(run.peak())
        assert "trainer.outputs[1]['hidden']" in said and "trainer.model.cache" in said and "rows[0]" in said
        kept = [ref(trainer.outputs[1]["hidden"]), ref(trainer.model.cache), ref(rows[0])]
        assert holders(ts.load(run.save(tmp_path / "run.json"))) == []
        trainer.outputs[1].clear()
        rows.clear()
        del trainer.model.cache
        assert [each() for each in kept] == [None] * 3 and holders(run) == []
    finally:
        gc.enable()


def test_a_tensor_with_other_data_is_not_the_holder() -> None:
    def make_loss() -> torch.Tensor:
        hidden = trainer.make_loss() * torch.ones(5000)
        trainer.outputs[0] = hidden.detach()
        storages.append(hidden.detach().untyped_storage())
        return hidden.sum()

    trainer, storages = Trainer(), list[Any]()
    run = ts.profile(make_loss)
    assert "trainer.outputs[0]" in str(run.peak())
    trainer.outputs[0].data = torch.zeros(5000)
    assert "trainer.outputs[0]" not in str(run.peak())


def test_a_forward_that_was_not_recorded_has_no_peak(snapshot: Snapshots) -> None:
    run = ts.backward((nn.Linear(4, 4)(torch.ones(2, 4))).sum(), memory=True)
    with raises(ValueError, "ts.profile(make_loss)") as refused:
        run.peak(phase="forward")
    snapshot("peak", refused.value)
    with raises(ValueError, "'optimizer'", "'forward'"):
        run.peak(phase="optimizer")  # type: ignore[arg-type]


def test_a_step_has_the_names_of_its_forward_too() -> None:
    model, x = Scores(), torch.randn(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()

    recorded = ts.profile_step(step)
    report = recorded.run.peak()
    assert report.forward is not None and report.forward.nbytes == recorded.peak_bytes > report.nbytes
    assert {"scores", "self.kept", "low"} <= named(report.forward).keys()


def test_what_was_there_before_is_said_not_to_be_counted(snapshot: Snapshots) -> None:
    model, x = nn.Linear(512, 256), torch.randn(8, 512)
    parameters = size_text(sum(each.numel() * 4 for each in model.parameters()))

    def answer() -> str:
        return "\n".join(ts.profile(lambda: model(x).square().sum()).peak().answer)

    first, second = answer(), answer()
    for said, facts in ((first, ["parameters"]), (second, ["parameters", ".grad"])):
        says(said, *(f"{fact} {parameters}" for fact in facts))
        snapshot("peak", said)
    assert ("zero_grad()" in first, "zero_grad()" in second) == (False, True)
    assert first.count(parameters) < second.count(parameters)


def test_buffers_that_stay_as_grad_are_told_from_those_that_go() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), torch.randn(8, 64)
    report = ts.profile(lambda: model(x).square().sum()).peak()
    buffers = [group for group in report.groups if group.category is Category.BUFFER]
    assert {group.stays for group in buffers} == {True, False}
    for group in buffers:
        assert all((storage.number in report.timeline.grads) == group.stays for storage in group.storages)
        assert report.title(group).endswith(" → .grad") == group.stays
        assert (".grad" in group.freed_by) == group.stays


def test_without_a_capture_modules_and_lines_are_not_known(snapshot: Snapshots) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.randn(64, 64)
    report = ts.backward(model(x).square().sum(), memory=True).peak()
    says(report.answer[-1], "ts.capture()", "ts.profile(make_loss)")
    unknown = {report.module_title(group) for group in report.groups}
    with ts.capture():
        loss = model(x).square().sum()
    captured = ts.backward(loss, memory=True).peak()
    outside = {captured.module_title(group) for group in captured.groups if group.module is None}
    assert len(unknown) == len(outside) == 1
    says(report, *unknown)
    says_none_of(report, *outside)
    says(captured, *outside)
    says_none_of(captured, *unknown)
    snapshot("peak", report)


def test_modules_called_by_a_number_are_not_taken_for_a_count() -> None:
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), torch.randn(64, 64)
    report = ts.profile(lambda: model(x).square().sum()).peak()
    assert {report.module_title(group) for group in report.groups} & {"module 0", "module 1", "3 × module *"}
    for text in (str(report), " ".join(report.answer)):
        assert not re.search(r"\((\d|\*)[,)]|in \d+[ ,](?!×)|\d+ × [\d*]+[,) ]|^  .*\)  \d,", text, re.MULTILINE), text


def test_leaves_are_called_as_they_are_everywhere() -> None:
    model, x = nn.Linear(512, 256), torch.randn(8, 512)
    make_loss = lambda: model(x).square().sum()  # noqa: E731
    ts.profile(make_loss)
    report = ts.profile(make_loss).peak()  # what is added to a .grad is freed by the leaf's task
    says(report, "2 × AccumulateGrad")
    says_none_of(report, "torch::autograd")


def test_the_root_s_gradient_is_made_by_the_backward_and_not_by_the_forward() -> None:
    x = torch.randn(100, requires_grad=True)
    records = ts.profile(lambda: x.exp().sum()).peak().records()
    (root,) = [record for record in records if record["category"] == Category.BUFFER.title and record["bytes"] == 4]
    says(root["made_by"], "backward()")


def test_what_nodes_hold_is_theirs_and_goes_with_the_graph(snapshot: Snapshots) -> None:
    x = torch.randn(1000, requires_grad=True)
    said = []

    def kept_by_nodes(report: PeakReport) -> list[tuple[dict[str, Any], list[Keeper]]]:
        records = [(record, keepers(report, record["number"])) for record in report.records()]
        found = [each for each in records if any(keeper.kind == "node" for keeper in each[1])]
        said.extend(f"{record['kept_by']} | {record['freed_by']}" for record, _ in found)
        return found

    ((held, _),) = kept_by_nodes(ts.profile(lambda: OnCtx.apply(x.repeat(8))).peak())
    says(held["made_by"], "mul")
    says(held["kept_by"], "OnCtxBackward", "ctx")
    assert held["died"] is None
    other = torch.randn(1000, requires_grad=True)
    loss = (x.exp() * other.tanh()).sum()
    kept = kept_by_nodes(ts.backward(loss, inputs=[x], memory=True).peak())
    assert any("TanhBackward0" in record["kept_by"] for record, _ in kept)
    double = ts.profile(lambda: (x.exp() * other).sum(), create_graph=True)
    kept = [each for each in kept_by_nodes(double.peak()) if any(keeper.slot == GRADIENT_GRAPH for keeper in each[1])]
    assert kept and not any(keeper.kind == "user" for _, keepers in kept for keeper in keepers)
    snapshot("peak", "\n".join(dict.fromkeys(said)))


def test_a_runs_repr_names_its_peak_where_it_was_measured() -> None:
    x = torch.randn(1024, requires_grad=True)
    run = ts.profile(lambda: x.exp().sum())
    says(repr(run), size_text(run.peak_bytes))
    says_none_of(repr(ts.backward(x.exp().sum())), "KiB", "B")


def test_a_peak_beside_an_older_grad_says_what_zero_grad_would_add() -> None:
    x = torch.randn(1024, requires_grad=True)
    first, second = (ts.profile(lambda: x.exp().sum()) for _ in range(2))
    says_none_of(str(first.peak()), "zero_grad()")
    says_none_of(repr(first), ".grad")
    says(repr(second), "4 KiB", ".grad")
    says(second.peak().answer[1], "4 KiB", ".grad", "zero_grad()")
    x.grad = None
    assert ts.profile(lambda: x.exp().sum()).peak_bytes == first.peak_bytes
