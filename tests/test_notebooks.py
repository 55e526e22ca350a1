"""The tours run from top to bottom, and are committed as a reader without a kernel should see them."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from .public_names import NAMESPACES

if TYPE_CHECKING:
    from nbformat import NotebookNode

pytestmark = pytest.mark.heavy

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
FIGURE = "application/vnd.plotly.v1+json"
DECK = "application/vnd.jupyter.widget-view+json"
MOST_BYTES = 1_500_000

CLAIMS = {
    "01_first_look": """
peaks = {policy: ts.profile(make_loss, policy=policy).peak_bytes for policy in ("bfs", "heap")}
assert peaks["bfs"] > 1.9 * peaks["heap"] and peaks["heap"] <= 256 * 1024 < peaks["bfs"]
assert (run.trace[8].choice, run.trace[10].choice) == ("first", "hand")
""",
    "02_why_heap": """
bfs, heap = (prediction[policy].peak_bytes for policy in ("bfs", "heap"))
assert bfs > 15 * heap and prediction["dfs"].peak_bytes == heap
assert max(lots) < bfs / 2 and min(lots) > 2 * heap
assert all(comparison[policy].peak_bytes == prediction[policy].peak_bytes for policy in CLASSIC)
ratios = peaks["bfs"] / peaks["heap"]
assert ratios["linear50"] > 15 and ratios["cyclegan"] < 0.98 and ratios.drop("linear50").between(0.9, 1.1).all()
assert ts.profile(make_loss, policy=lambda ready, state: ready[-1]).peak_bytes <= 4 * 2**20 < peak
""",
    "04_debugging": """
assert deck.trace[49].task.name == "MulBackward0" and not any(gradient.isnan().any() for gradient in tried)
assert "log()" in str(_2) and "-inf" in str(_2)

def repaired(self, weights):
    return -(weights * torch.where(weights > 0, weights, 1.0).log()).sum(-1).mean()

EntropyAttention.entropy_of = repaired
model.zero_grad()
make_loss().backward()
torch.testing.assert_close(tried, [parameter.grad for parameter in model.parameters()])
assert not ts.find_nan(make_loss)
""",
    "05_schedules": """
assert list(rows)[0] == "din" and {*list(rows)[1:3]} == {"cyclegan", "unet"} and gain("cyclegan") > 0.1
above = {name: plan.above(plan["heap"]) for name, plan in plans.items()}
nothing = ["mlp_norm", "lstm_lm", "elementwise", "two_devices", "linear50", "ensemble"]
assert all(above[name] < 0.01 for name in nothing) and all(above[name] > 0.01 for name in set(plans) - set(nothing))
assert all(rows[name]["queue"] <= 5 for name in nothing[:4]) and all(rows[name]["queue"] > 15 for name in nothing[4:])
assert plans["linear50"]["bfs"].peak_bytes > 15 * plans["linear50"]["heap"].peak_bytes
assert all(plans[name].above(plans[name].best) > 0.05 for name in ("lstm_cell", "seq2seq"))
assert all(gain(name) > 0.01 for name in ("unet", "gpt2", "seq2seq"))
tables = {}
for policy in ("heap", plans["din"].best.policy):
    order, tasks = plans["din"][policy].order, plans["din"].graph.tasks
    modules = [plans["din"].graph.module(tasks[task]) for task in order if tasks[task].name == "EmbeddingBackward0"]
    tables[policy] = [module for module in modules if module != "categories"]
assert list(tables.values()) == [["users", "goods", "goods"], ["goods", "goods", "users"]]
assert comparison["heap"].peak_bytes > 1.25 * comparison["auto"].peak_bytes
assert exact.best.policy == "optimal" and exact.proven
assert exact.best.peak_bytes < min(row.peak_bytes for row in exact.rows[:-1])
assert exact.bound_bytes > ts.plan_order(exact.graph, "heap", footprints=exact.footprints).bound_bytes
assert installed.backwards == 5
""",
    "06_accumulation": """
from tapescope.engine.studies.accumulation_study import BY_HAND, FUSED, IN_PLACE, PYTORCH
from tapescope.engine.execution.accumulation_rule import Accumulation
from tapescope.engine.memory.categories import Category
summed = {row.rule: row for row in study.rows if row.kind == "direct"}
doubled_rule = Accumulation("list", "never")
kept = summed[doubled_rule].peak_bytes
listed = summed[Accumulation("list")].peak_bytes
all_studies = (study, *programs.values())
assert all(1 <= each.ratio(name) < 1.05 for each in all_studies for name in (IN_PLACE, PYTORCH))
assert all(not row.error for each in all_studies for row in each.rows if row.predicted_bytes is not None)
assert study[IN_PLACE].levels == study[PYTORCH].levels
weight, state = 4 * 1024**2, 4 * 16 * 1024
assert abs(study[BY_HAND].peak_bytes - (50 * state + 2 * weight)) < state
assert abs(study[FUSED].peak_bytes - (50 * state + weight)) < 2 * state
assert listed > 50 * weight and kept < 1.05 * listed
assert summed[Accumulation(release="never")].peak_bytes - study[IN_PLACE].peak_bytes < weight
assert waiting.categories[Category.LISTED] > 5 * 4 * 128**2
assert then.peak_bytes > kept > 15 * study[BY_HAND].peak_bytes
assert 1.5 * study[BY_HAND].peak_bytes < today.peak_bytes < then.peak_bytes / 5
assert max(today.peaks[:10]) - today.start_bytes < weight / 50 and today.peaks[10] - today.start_bytes > weight
assert today.start_bytes > 2 * 50 * state and min(today.peaks) > today.start_bytes
for each in (programs["fan_out"], programs["elementwise"]):
    for row in (row for row in each.rows if row.rule is not None):
        costly = (row.rule.lists, row.rule.keeps, row.graph == "kept")
        least = max(1, sum(costly))
        assert least - 0.1 < each.ratio(row.name) < least + 0.1, row.name
    assert each["PyTorch, graph kept"].average_bytes > 1.2 * each[PYTORCH].average_bytes
    assert each["PyTorch, graph kept"].peak_bytes < 1.02 * each[PYTORCH].peak_bytes
assert len({row.peak_bytes for row in programs["needless"].rows if row.rule is not None}) == 1
for each in (hips_run.timeline, torch_run.timeline):
    assert each.before == 0 and each.forward_ns and 0 < each.forward_peak_bytes <= each.peak_bytes
for figure in (study.figure(forward=True), study.figure(clock=True)):
    assert len(figure.data) == len(study.rows) and figure.still()
assert study[PYTORCH].levels.forward_peak_bytes < 1.1 * study[BY_HAND].levels.forward_peak_bytes
assert today.forward_peak_bytes > 1.5 * study[PYTORCH].levels.forward_peak_bytes
""",
    "07_batching": """
linear, bare = question["10 × Linear"], question["10 × x.mm(w)"]
assert [linear[name].launched for name in ("eager", "TorchScript", "ts groups")] == [110, 110, 47]
assert "torch.compile" not in linear or linear["torch.compile"].launched == 110
assert bare["TorchScript"].launched == 2 and linear["ts groups"].launches == (110, 21)
assert all(way.agrees for row in question.rows for way in row.ways)
assert [len(group) for group in groups.forward] == [len(group) for group in groups.backward] == [16] * 4
assert len(run.batches) == 4 and run.batches.launches_saved > 150
assert set(table["as one"][1:]) == {21} and table["as one"].iloc[0] == "–"
assert len(tree) == 50 and (run50.batches[0].launches_before, run50.batches[0].launches) == (99, 3)
bfs, heap, as_one = peaks.values()
assert bfs > 15 * heap and as_one < heap / 2
assert not refused and "grouped_mm" in refused.sentences[-1]
assert all(item.trial.check.ok and item.code for item in advice) and len(advice) == 2
assert len(gains) == 2 and all(list(found) == [2, 4, 8, 16, 32] for found in gains.values())
""",
    "08_recompute": """
assert cell.loc["tanh", "newly kept"] == cell.loc["tanh", "dropped"]
assert cell.loc["tanh, add", "newly kept"] == 2 * cell.loc["tanh, add", "dropped"]
assert min(cell["peak"]) == cell.loc["nothing", "peak"] < 0.8 * cell.loc["tanh, add", "peak"]
squares, chain = on_the_way.loc["pow"], on_the_way.loc["addmm, sigmoid, pow"]
assert squares["newly kept"] == 0 and squares["peak"] < 0.7 * on_the_way.loc["nothing", "peak"]
assert chain["held"] == 0 and chain["peak"] > 0.99 * on_the_way.loc["nothing", "peak"]
cheap = old_rule["all cheap operations (MXNet)"]
assert cheap.peak_bytes >= old_rule["nothing"].peak_bytes and cheap.same_gradients
assert stones.met and any(each.operation.startswith("aten.addmm") and each.is_dropped for each in stones.storages)
assert attention.loc["tanh", "peak"] >= attention.loc["nothing", "peak"] > 2 * attention.loc["tanh, add", "peak"]
assert same and plan.met and all(abs(peaks[name] / each.peak_bytes - 1) < 0.005 for name, each in plans.items())
assert plans[AS_LOW].met and peaks[AS_LOW] <= 1.005 * peaks["checkpoint per block"] < 0.5 * peaks["nothing"]
assert abs(chosen_peak / chosen.peak_bytes - 1) < 0.005 and chosen.peak_bytes <= 0.4 * plan.plain_peak_bytes
assert plan.left_alone is None and alone.left_alone is not None
""",
    "09_what_holds_memory": """
assert fit.peak_bytes == step.peak_bytes and not fit.fits and fit.largest_batch < 8
assert step.peak().phase == "backward" and max(step.peak().categories, key=step.peak().categories.get) == "activations"
assert step.peak().categories["optimizer state"] > step.peak().categories["parameters"]
remedy = next(each for each in fit.remedies if each.name == "checkpoints")
mine = LanguageModel(checkpointed=True)
checkpointed = second_step(mine, AdamW(mine.parameters()))
assert remedy.fits and abs(checkpointed.peak_bytes / remedy.peak_bytes - 1) < 0.005
assert second_step(mine, AdamW(mine.parameters()), 4).peak_bytes <= 24 * 2**20 < peak
assert not ts.profile(lambda: loss_of(model, make_batch()), model=model).peak().hints
""",
    "10_orders_and_traces": """
assert not check and [number for number, _ in asked][:2] == [0, 1]
assert hooks.asked == sorted((number for number, _ in asked), reverse=True)
assert again.order == in_chain.order != as_always.order and len(tasks) == len(again.order)
assert len(tracks) > 1 and any(each.endswith("cpu") for each in tracks) and counters
""",
    "11_training_loop": """
assert {each.kind for each in training.findings} == {"silent write", "leak", "black box", "non-finite"}
assert next(each for each in training.findings if each.kind == "leak").tensor == "samples[0]"
assert 0.05 < float((wrong - right).norm() / right.norm()) < 0.07
models = make_gan()
of_maker, of_judge = (Adam(each.parameters(), 1e-3, fused=True) for each in models)
with ts.training(models, [of_maker, of_judge], black_box="black_box", found_inf=True) as repaired:
    for real in DataLoader(gan_rows(), batch_size=32):
        _, judge_loss, _ = gan_losses(models, real)
        of_judge.zero_grad()
        judge_loss.backward()
        of_judge.step()
        maker_loss, _, fake = gan_losses(models, real)
        of_maker.zero_grad()
        maker_loss.backward()
        of_maker.step()
        samples.append(fake.detach())
shutil.rmtree("black_box")
assert {each.kind for each in repaired.findings} == {"black box", "non-finite"}
""",
}
"""What the words of a tour say of its numbers, asked in its kernel when all has run."""

QUICK = ("01_first_look",)

each_tour = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
each_tour_some_slow = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem in QUICK else pytest.mark.slow) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)


# nbformat is imported in functions: it costs four seconds, and each test process imports this file to collect tests.
def read(path: Path) -> NotebookNode:
    import nbformat

    return nbformat.read(path, as_version=4)


def code_cell(source: str) -> NotebookNode:
    from nbformat.v4 import new_code_cell

    return new_code_cell(source)


def execute(notebook: NotebookNode, folder: Path | None = None) -> None:
    """Runs the cells, in this folder if one is given."""
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}} if folder is not None else {}
    NotebookClient(notebook, kernel_name="python3", resources=resources).execute()


def outputs_of(notebook: NotebookNode) -> list[list[NotebookNode]]:
    """Return the outputs of each code cell."""
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def shown(outputs: list[NotebookNode]) -> list[set[str]]:
    """The MIME types of each thing shown, what is printed left out: that may come in any number of pieces."""
    return [set(output.data) for output in outputs if "data" in output]


def pictures(notebook: NotebookNode) -> list[str]:
    return [
        output.data["image/svg+xml"]
        for outputs in outputs_of(notebook)
        for output in outputs
        if "image/svg+xml" in output.get("data", {})
    ]


def figures(notebook: NotebookNode) -> list[dict[str, object]]:
    return [
        output.data[FIGURE]
        for outputs in outputs_of(notebook)
        for output in outputs
        if FIGURE in output.get("data", {})
    ]


COURSE = ("01_first_look", "04_debugging", "11_training_loop", "09_what_holds_memory", "02_why_heap")
"""The lessons in their order. The other tours are notes on research questions."""

each_lesson = pytest.mark.parametrize("name", COURSE)


def lesson(name: str) -> NotebookNode:
    return read(NOTEBOOKS[0].parent / f"{name}.ipynb")


@each_lesson
def test_a_lesson_is_short_and_soon_shows_something(name: str) -> None:
    cells = lesson(name).cells
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    code = [cell for cell in cells if cell.cell_type == "code"]
    lines = [sum(1 for line in cell.source.splitlines() if line.strip()) for cell in code]
    first = next(number for number, cell in enumerate(code) if cell.outputs)
    assert words <= 300 and sum(lines) <= 60 and sum(lines[: first + 1]) < 20


@each_lesson
def test_a_lesson_ends_with_an_exercise_that_is_not_solved_and_leads_to_the_next(name: str) -> None:
    *_, task, check, then = lesson(name).cells
    assert "## Exercise" in task.source and check.cell_type == "code" and '"solved"' in check.source
    assert not any("solved" in output.text for output in check.outputs)
    following = [*COURSE[1:], "05_schedules"][COURSE.index(name)]
    assert f"]({following}.ipynb)" in then.source


def test_every_other_tour_says_that_it_is_a_research_note() -> None:
    notes = [read(path) for path in NOTEBOOKS if path.stem not in COURSE]
    assert len(notes) + len(COURSE) == len(NOTEBOOKS)
    assert all(
        "research note" in note.cells[0].source and "(01_first_look.ipynb)" in note.cells[0].source for note in notes
    )


@each_tour
def test_a_tour_is_a_story_it_begins_with_a_question_and_is_short(path: Path) -> None:
    first, *cells, last = read(path).cells
    assert first.cell_type == last.cell_type == "markdown"
    assert first.source.startswith("# ") and "?" in first.source
    assert len(cells) + 2 < 15


def test_tours_and_readme_import_public_names_alone() -> None:
    texts = {path.name: "\n".join(cell.source for cell in read(path).cells) for path in NOTEBOOKS}
    texts["README.md"] = (NOTEBOOKS[0].parents[1] / "README.md").read_text()
    others = rf"^\s*(?:from|import) tapescope\.(?!(?:{'|'.join(NAMESPACES)})\b).*"
    inside = {name: re.findall(others, text, re.MULTILINE) for name, text in texts.items()}
    assert len(texts) > 5 and not any(inside.values()), inside


def test_the_readmes_first_cells_run_as_they_stand_and_nothing_is_warned_of() -> None:
    from nbformat.v4 import new_notebook

    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2]
    assert cells[0].startswith("%load_ext tapescope") and cells[1].startswith("%%tapescope")
    then = "deck = _; deck.run(); assert deck.status == 'finished' and model[0].weight.grad is not None"
    notebook = new_notebook(cells=[code_cell(cell) for cell in (*cells, then)])
    execute(notebook)
    opened, shown_deck, _ = outputs_of(notebook)
    assert not opened
    assert any(DECK in output.get("data", {}) for output in shown_deck)
    assert not any(output.output_type == "stream" for output in shown_deck), "a warning"


@each_tour_some_slow
def test_a_tour_runs_and_shows_what_is_committed(path: Path) -> None:
    committed = read(path)
    notebook = read(path)
    notebook.cells.append(code_cell(CLAIMS.get(path.stem, "")))
    execute(notebook, path.parent)
    notebook.cells.pop()
    assert pictures(notebook) or figures(notebook)
    for today, before in zip(outputs_of(notebook), outputs_of(committed), strict=True):
        assert not any(output.output_type == "error" for output in today)
        assert shown(today) == shown(before)


@each_tour
def test_a_tour_is_committed_with_its_outputs_and_small(path: Path) -> None:
    notebook = read(path)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert "widgets" not in notebook.metadata
    assert path.stat().st_size < MOST_BYTES


def store_module() -> ModuleType:
    """notebooks/store.py, which is in no package."""
    spec = spec_from_file_location("store", NOTEBOOKS[0].parent / "store.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored(path: Path) -> NotebookNode:
    """A tour that stores which code its outputs belong to."""
    notebook = read(path)
    if "tapescope" not in notebook.metadata:
        pytest.skip("stored before tours said of which code they are; python notebooks/store.py")
    return notebook


@each_tour
def test_what_is_stored_of_a_tour_is_of_todays_code(path: Path) -> None:
    notebook = stored(path)
    assert notebook.metadata["tapescope"]["code"] == store_module().code_hash(notebook), "python notebooks/store.py"


@each_tour
def test_each_deck_and_figure_of_a_tour_has_a_picture_that_any_reader_shows(path: Path) -> None:
    for outputs in outputs_of(stored(path)):
        for place, output in enumerate(outputs):
            if DECK in output.get("data", {}):
                assert "image/png" in outputs[place + 1].data
                assert outputs[place + 1].data["text/plain"] == output.data["text/plain"], "not as its cell left it"
            if FIGURE in output.get("data", {}):
                assert "image/png" in output.data


@each_tour
def test_each_deck_of_a_tour_has_its_picture_with_the_memory(path: Path) -> None:
    for outputs in outputs_of(read(path)):
        decks = [place for place, output in enumerate(outputs) if DECK in output.get("data", {})]
        for place in decks:
            picture = outputs[place + 1].data["image/svg+xml"]
            assert 'id="tapescope-still-' in picture
            assert 'class="ts-level"' in picture
