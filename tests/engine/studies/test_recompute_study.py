"""Each way to save memory is measured alone, has PyTorch's gradients, and is compared with the plan's prediction."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import nn

from tapescope.engine.memory.function_levels import allocated_levels
from tapescope.engine.studies import recompute_study as module
from tapescope.engine.studies.measured_steps import same_tensors
from tapescope.engine.studies.ready_workload import Parts, Workload
from tapescope.engine.studies.recompute_study import (
    BELOW,
    BLOCKS,
    CHEAP,
    COMPILED,
    DESK,
    NOTHING,
    SELECTIVE,
    WITHIN,
    RecomputeStudy,
    recompute_study,
    save_studies,
)
from tapescope.engine.studies.torch_alternatives import checkpointed
from tapescope.engine.studies.workloads import WORKLOADS, workload
from tapescope.inspector.text.sizes_and_counts import percent_text
from tapescope.inspector.torch_private.compiled import activation_memory_budget
from tapescope.tests.says import Snapshots, raises, says, says_none_of

pytestmark = pytest.mark.heavy


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 3, kernel_size=3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True))


def _normed(blocks: int) -> Parts:
    return Parts(nn.Sequential(*(Normed() for _ in range(blocks))), (torch.randn(2, 3, 16, 16),), torch.sum)


NORMED = Workload(
    "normed", "Blocks with batch-norm", "these tests", _normed, {"blocks": 4}, {"blocks": 4}, None, None, (Normed,)
)


def studied(name: str | Workload, **knobs: int) -> RecomputeStudy:
    return recompute_study(name, size="small", repetitions=2, seconds=0.3, compiled=False, **knobs)


@pytest.fixture(scope="module")
def study() -> RecomputeStudy:
    return studied("gpt2", layers=2, context=64, batch=4)


def test_all_ways_are_there_and_nothing_is_first(study: RecomputeStudy) -> None:
    assert [row.name for row in study.rows] == [NOTHING, BLOCKS, SELECTIVE, CHEAP, WITHIN, BELOW]
    assert all(len(row.times_ns) == 2 and row.elapsed_ns > 0 for row in study.rows)
    assert study.ratio(NOTHING) == 1 and study[NOTHING].time_ratio.middle == 1
    assert BLOCKS in study and COMPILED not in study and study.refused == {}


def test_mxnets_first_rule_recomputes_every_cheap_operation_and_no_product(study: RecomputeStudy) -> None:
    plan = study[CHEAP].plan
    again = {each.operation.split(".")[1] for each in plan.storages if each.is_dropped}
    assert {"gelu", "native_layer_norm", "add"} <= again and not again & {"addmm", "mm", "bmm", "_log_softmax"}
    saved = [each for each in plan.storages if each.saved_by and each.obstacle is None and not each.is_dropped]
    assert {each.operation.split(".")[1] for each in saved} <= {"addmm", "mm", "bmm", "cat", "_log_softmax"} | {
        "nll_loss_forward",
        "_scaled_dot_product_flash_attention_for_cpu",
    }
    assert study[CHEAP].error == 0 and study[CHEAP].same_gradients
    assert study[CHEAP].peak_bytes < study[NOTHING].peak_bytes


def test_an_interrupt_returns_the_study_so_far() -> None:
    seen: list[int] = []

    def stop(part: RecomputeStudy) -> None:
        seen.append(len(part.rows))
        if len(seen) == 3:
            raise KeyboardInterrupt

    found = recompute_study("rnn", size="small", repetitions=3, seconds=0.1, compiled=False, so_far=stop)
    assert seen == [1, 2, 3] and found.interrupted and len(found.rows) == 3
    assert all(len(row.times_ns) == 1 and row.peak_bytes > 0 for row in found.rows)
    says(found.sentences[-1], "interrupted")
    with pytest.raises(KeyboardInterrupt):
        recompute_study("rnn", size="small", seconds=0.1, compiled=False, progress=interrupt)


def interrupt(said: str) -> None:
    raise KeyboardInterrupt


def test_the_gradients_are_those_without(study: RecomputeStudy) -> None:
    assert all(row.same_gradients and row.same_state for row in study.rows)


def test_the_peak_is_that_of_a_step(study: RecomputeStudy) -> None:
    _, make_loss = workload("gpt2").build(layers=2, context=64, batch=4)

    def step(mark):
        loss = make_loss()
        mark()
        loss.backward()
        mark()

    _, levels = allocated_levels(step)
    assert study[NOTHING].backward_peak_bytes == levels.peak_bytes
    assert study[NOTHING].peak_bytes == max(levels.peak_bytes, levels.forward_peak_bytes)


def test_checkpoints_take_less_and_a_recompute_plan_at_their_price_no_more(study: RecomputeStudy) -> None:
    assert study.ratio(BLOCKS) < 0.9
    assert study[BELOW].peak_bytes < study[BLOCKS].peak_bytes
    assert all(study.ratio(name) <= 1 for name in (WITHIN, BELOW))
    assert abs(study[BELOW].error or 0) < 0.005
    less = 1 - study[BELOW].peak_bytes / study[BLOCKS].peak_bytes
    says(study.sentences[0], percent_text(less), study[BELOW].ratio_text, study[BLOCKS].ratio_text)


def test_a_checkpoint_updates_running_statistics_twice_and_a_recompute_context_once(snapshot: Snapshots) -> None:
    study = studied(NORMED)
    assert study[BLOCKS].same_gradients and not study[BLOCKS].same_state
    assert study[BELOW].same_gradients and study[BELOW].same_state and study[NOTHING].same_state
    snapshot("studies", f"{study[BLOCKS].bits}\n{study[BELOW].bits}")


def test_tiny_operations_are_left_alone_with_a_word() -> None:
    study = studied("lstm_cell", steps=5)
    assert study[WITHIN].plan is not None and study[WITHIN].plan.left_alone is not None
    assert any(sentence.startswith(f"{WITHIN}: {study[WITHIN].plan.left_alone}") for sentence in study.sentences)
    assert study[WITHIN].peak_bytes == study[NOTHING].peak_bytes


def test_what_cannot_be_measured_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
) -> None:
    def no_compiler(forward):
        def run(*inputs):
            raise RuntimeError("no working C++ compiler found.\nand much more")

        return run

    monkeypatch.setattr(module.torch, "compile", no_compiler)
    study = recompute_study("unet", size="small", repetitions=1, seconds=0.1, channels=2)
    (said,) = [each for each in study.sentences if each.startswith(COMPILED)]
    says(said, "RuntimeError: no working C++ compiler found.")
    says_none_of(said, "and much more")
    snapshot("studies", said)
    assert "has been mutated" in study.refused[SELECTIVE], "a ReLU in place"  # PyTorch's words
    assert COMPILED not in study and SELECTIVE not in study
    study = studied("rnn", steps=3)
    assert study.refused.keys() == {BLOCKS, SELECTIVE}
    snapshot("studies", study.refused[BLOCKS])


def test_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = module.Workload.build

    def kept(self, *args, **knobs):
        model, make_loss = build(self, *args, **knobs)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 3)
        built.append((model, {name: buffer.clone() for name, buffer in model.named_buffers()}))
        return model, make_loss

    monkeypatch.setattr(module.Workload, "build", kept)
    studied(NORMED)
    ((model, buffers),) = built
    assert all((parameter.grad == 3).all() for parameter in model.parameters())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert all("forward" not in part.__dict__ for part in model.modules())


def test_of_nested_blocks_the_outermost_is_a_checkpoint() -> None:
    model, _ = workload("unet").build(device="meta")
    with checkpointed(model, WORKLOADS["unet"].blocks):
        found = [name for name, part in model.named_modules() if "forward" in part.__dict__]
    assert found == [*(f"down.{level}" for level in range(5)), *(f"up.{level}" for level in range(4))]


def test_gradients_that_differ_are_said_to() -> None:
    ones = [torch.ones(2), None]
    assert same_tensors(ones, [torch.ones(2), None])
    assert not same_tensors(ones, [torch.ones(2), torch.ones(1)])
    assert not same_tensors(ones, [torch.tensor([1.0, 1.0 + 1e-6]), None])


def test_table_text_and_records_say_the_same(study: RecomputeStudy) -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(study)
    words = set(str(study).split())  # in 80 columns a row takes several lines
    for row, cells in zip(study.rows, study.cells[1:], strict=True):
        assert any(
            line.startswith(row.name) and all(cell in line for cell in cells) for line in capture.get().splitlines()
        )
        assert all(words.issuperset(text.split()) for text in (row.name, *cells))
    says(study, "gpt2", "vocabulary=512 context=64")
    frame = pd.DataFrame(study.records()).set_index("way")
    assert frame.loc[BELOW, "predicted_bytes"] == study[BELOW].predicted_bytes
    assert frame.loc[BLOCKS, "ratio"] == study.ratio(BLOCKS)
    says(repr(study), study.title, 6)


def test_words_for_what_differs(study: RecomputeStudy, snapshot: Snapshots) -> None:
    row = study[BLOCKS]
    assert row.same_gradients and row.same_state and row.error is None and row.time_error is None
    snapshot("studies", replace(row, same_gradients=False).bits)
    unsteady = replace(study, rows=(replace(study[NOTHING], same_gradients=False), row))
    (said,) = unsteady.sentences[:-1]
    snapshot("studies", said)
    as_much = replace(study, rows=(study[NOTHING], row, replace(row, name=BELOW)))
    says(as_much.sentences[0], row.ratio_text)
    snapshot("studies", as_much.sentences[0].replace(row.ratio_text, "RATIO"))


def test_where_the_forward_needs_most_that_is_said(study: RecomputeStudy, snapshot: Snapshots) -> None:
    row = replace(study[BELOW], peak_bytes=3 * 2**20, backward_peak_bytes=2**20)
    said = replace(study, rows=(study[NOTHING], row)).sentences
    (peak,) = said[:-1]
    says(peak, BELOW, "1.0 MiB")
    says(said[-1], f"{BELOW} {row.ratio_text}")
    snapshot("studies", peak)
    row = replace(row, backward_peak_bytes=row.peak_bytes)
    assert replace(study, rows=(study[NOTHING], row)).sentences == said[1:]


def test_the_sizes_for_a_desk_are_those_of_the_workloads() -> None:
    for name, knobs in DESK.items():
        assert knobs.keys() == workload(name).full.keys()
        model, _ = workload(name).build("full", device="meta", **knobs)
        assert isinstance(model, nn.Module)


@pytest.mark.parametrize(
    ("name", "given", "facts"),
    [
        ("zzz", {}, ("'zzz'", "resnet50")),
        ("linear50", {}, ("linear50", '"desk"', "rnn, lstm_cell")),
        ("rnn", {"size": "tiny"}, ("size", "'tiny'", "'small' or 'desk' or 'full'")),
        ("rnn", {"repetitions": 0}, ("repetitions", 1, 0)),
        ("rnn", {"device": "nowhere"}, ("device", "'nowhere'")),
        ("rnn", {"device": "meta"}, ("device", "meta")),
    ],
)
def test_bad_input_is_a_sentence(
    name: str, given: dict[str, object], facts: tuple[object, ...], snapshot: Snapshots
) -> None:
    with raises(ValueError, *facts) as raised:
        recompute_study(name, **given)
    if name == "linear50" or given.get("device", "nowhere") != "nowhere":
        snapshot("studies", raised.value)


def test_what_cannot_be_found_is_a_sentence(study: RecomputeStudy, snapshot: Snapshots) -> None:
    with raises(ValueError, "'zzz'", NOTHING, BLOCKS) as unknown:
        study["zzz"]
    with raises(ValueError) as nothing:
        save_studies([], "page.html")
    for error in (unknown, nothing):
        snapshot("studies", error.value)


def test_the_partitioner_is_given_its_budget_for_as_long() -> None:
    config = pytest.importorskip("torch._functorch.config")
    before = config.activation_memory_budget
    with activation_memory_budget(0.25):
        assert config.activation_memory_budget == 0.25
    assert config.activation_memory_budget == before
