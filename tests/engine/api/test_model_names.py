"""Names where parts of a model are called and never the model itself: a VAE's, a GAN's, a `training_step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import raises


class Autoencoder(nn.Module):
    """Nobody calls it: what trains it calls its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))

    def training_step(self, x: Tensor) -> Tensor:
        return (self.decoder(self.encoder(x)) - x).square().mean()


def parts() -> tuple[nn.Module, Callable[[], Tensor]]:
    model, x = Autoencoder(), torch.randn(32, 8)
    return model, lambda: model.training_step(x)


def paths(graph: ts.Graph) -> set[str]:
    return {call.path for call in graph.calls if call.path}


def test_a_profile_and_a_comparison_name_things_after_the_model() -> None:
    model, make_loss = parts()
    assert any("Sequential#1" in each for each in paths(ts.profile(make_loss).graph))
    run = ts.profile(make_loss, model=model)
    assert {"encoder", "encoder.0", "decoder", "decoder.2"} <= paths(run.graph)
    assert {task.parameter for task in run.graph.tasks if task.is_leaf} == {
        name for name, _ in model.named_parameters()
    }
    found = ts.compare(make_loss, "heap", repetitions=1, model=model)
    assert "encoder.0" in paths(found.rows[0].timeline.graph)


def test_find_nan_names_the_module_of_the_model() -> None:
    model, make_loss = parts()
    assert isinstance(model.decoder, nn.Sequential)
    with torch.no_grad():
        model.decoder[2].bias[0] = float("inf")  # type: ignore[union-attr, operator, index]
    assert ts.find_nan(make_loss).module != "decoder.2"
    found = ts.find_nan(make_loss, model=model)
    assert found.graph is not None and "decoder.2" in paths(found.graph)
    assert found.finds and "Sequential" not in str(found)


def test_find_unused_names_parameters_and_modules_after_it() -> None:
    model, x = Autoencoder(), torch.randn(32, 8)
    found = ts.find_unused(lambda: model.encoder(x).sum(), model)
    assert {each.name for each in found} == {f"decoder.{name}" for name, _ in model.decoder.named_parameters()}
    assert found.graph is not None and "encoder.0" in paths(found.graph)


@pytest.mark.heavy
def test_a_plan_for_recomputation_names_its_rows_and_answers_by_the_model() -> None:
    model, make_loss = parts()
    plan = ts.plan_recompute(make_loss, 0.99, seconds=0.1, repetitions=1, model=model)
    assert plan.why("encoder.tanh")[0].module == "encoder.1"
    program = ts.record_forward(make_loss, 1, model=model)
    assert "decoder.0" in {each.module for each in program.operations}


def test_of_a_loss_that_is_there_parts_are_named_after_the_model_too() -> None:
    model, make_loss = parts()
    with ts.capture():
        loss = make_loss()
    assert any("Sequential#1" in each for each in paths(ts.graph(loss)))
    graph = ts.graph(loss, model=model)
    assert {"encoder", "encoder.0", "decoder", "decoder.2"} <= paths(graph)
    assert {task.parameter for task in graph.tasks if task.is_leaf} == {name for name, _ in model.named_parameters()}
    assert "encoder.0" in paths(ts.plan_order(loss, model=model).graph)
    assert "encoder.0" in paths(ts.find_batches(loss, model=model).graph)
    gantt = ts.makespan(loss, device_of={"encoder": "cuda:0"}, model=model)
    assert set(gantt.rows) == {"cpu", "cuda:0"}
    with raises(ValueError, '"encoder"'):
        ts.makespan(loss, device_of={"encoder": "cuda:0"})
    with raises(ValueError, "model="):
        ts.plan_order(graph, model=model)
    other = nn.Sequential(nn.Linear(1, 1))
    assert paths(ts.graph(loss, model=other)) == paths(ts.graph(loss))


def test_a_part_is_not_named_after_another_whose_weight_it_shares() -> None:
    model = nn.ModuleDict({"encoder": nn.Embedding(10, 4), "decoder": nn.Linear(4, 10, bias=False)})
    model["decoder"].weight = model["encoder"].weight
    with ts.capture():
        loss = model["decoder"](torch.ones(2, 4)).sum()
    assert [call.path for call in ts.graph(loss, model=model).calls] == ["decoder"]


def test_a_recorded_step_names_modules_after_the_model() -> None:
    model, make_loss = parts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        make_loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def followed(found: ts.types.TrainingStep) -> set[str]:
        return paths(found.run.graph)

    assert "encoder.0" not in followed(ts.profile_step(step))
    assert {"encoder.0", "decoder.2"} <= followed(ts.profile_step(step, model=model))
    with ts.record_steps(steps=2, model=model) as steps:
        for _ in range(3):
            step()
    assert "encoder.0" in followed(steps[1])


def test_several_models_are_one_of_parts() -> None:
    generator, critic = nn.Sequential(nn.Linear(4, 8)), nn.Sequential(nn.Linear(8, 1))
    noise = torch.randn(16, 4)
    run = ts.profile(lambda: critic(generator(noise)).mean(), model=nn.ModuleDict({"G": generator, "D": critic}))
    assert {"G.0", "D.0"} <= paths(run.graph)


@pytest.mark.parametrize(
    "verb", [ts.profile, ts.find_nan, ts.plan_recompute, ts.compare, ts.record_forward, ts.profile_step]
)
def test_what_is_no_module_is_refused_before_anything_runs(verb: Callable[..., Any]) -> None:
    def make_loss() -> Tensor:
        raise AssertionError("nothing has run by then")

    with raises(TypeError, "model", "dict"):
        verb(make_loss, model={"G": nn.Linear(1, 1)})
