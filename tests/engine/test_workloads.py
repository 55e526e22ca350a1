from __future__ import annotations

import pytest
import torch

import tapehead as th
from tapehead.engine.workloads import WORKLOADS, Workload, workload
from tapehead.inspector.kinds import Kind

NAMES = list(WORKLOADS)
Tensors = dict[str, torch.Tensor]


def loss_and_gradients(name: str, seed: int = 0) -> tuple[Tensors, torch.Tensor, Tensors]:
    model, make_loss = WORKLOADS[name].build("small", seed=seed)
    loss = make_loss()
    loss.backward()
    parameters = dict(model.named_parameters())
    gradients = {key: parameter.grad for key, parameter in parameters.items() if parameter.grad is not None}
    return parameters, loss.detach(), gradients


@pytest.mark.parametrize("name", NAMES)
def test_two_builds_are_equal_to_the_bit(name: str) -> None:
    parameters, loss, gradients = loss_and_gradients(name)
    again_parameters, again_loss, again_gradients = loss_and_gradients(name)
    assert torch.equal(loss, again_loss)
    assert parameters.keys() == again_parameters.keys() == gradients.keys() == again_gradients.keys()
    for key in parameters:
        assert torch.equal(parameters[key], again_parameters[key]), key
        assert torch.equal(gradients[key], again_gradients[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient_that_tells_something(name: str) -> None:
    parameters, loss, gradients = loss_and_gradients(name)
    assert loss.dim() == 0 and loss.isfinite()
    assert gradients.keys() == parameters.keys()
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert max(gradient.abs().max().item() for gradient in gradients.values()) > 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_a_second_forward_gives_the_same_loss_and_a_graph_of_its_own(name: str) -> None:
    _, make_loss = WORKLOADS[name].build()
    first, second = make_loss(), make_loss()
    assert torch.equal(first, second)
    first.backward()
    second.backward()


def test_another_seed_gives_another_model() -> None:
    _, first, _ = loss_and_gradients("ensemble", seed=0)
    _, second, _ = loss_and_gradients("ensemble", seed=1)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", NAMES)
def test_the_users_random_numbers_are_left_alone(name: str) -> None:
    before = torch.get_rng_state()
    _, make_loss = WORKLOADS[name].build()
    make_loss()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_the_full_size_runs_on_meta_without_memory(name: str) -> None:
    knobs = {"steps": 3} if name == "lstm_cell" else {}
    model, make_loss = WORKLOADS[name].build("full", device="meta", **knobs)
    loss = make_loss()
    loss.backward()
    assert loss.is_meta and loss.shape == ()
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in model.parameters())


# torchvision's resnet50, GPT-2 small with its tied head, and the U-Net paper's network for one channel and two classes
@pytest.mark.parametrize(
    ("name", "tensors", "values"),
    [("resnet50", 161, 25_557_032), ("gpt2", 148, 124_439_808), ("unet", 46, 31_030_658)],
)
def test_the_full_size_has_the_published_number_of_parameters(name: str, tensors: int, values: int) -> None:
    model, _ = WORKLOADS[name].build("full", device="meta")
    parameters = list(model.parameters())
    assert len(parameters) == tensors
    assert sum(parameter.numel() for parameter in parameters) == values


def test_resnet50_has_the_names_of_torchvision() -> None:
    model, _ = WORKLOADS["resnet50"].build(device="meta")
    names = [name for name, _ in model.named_parameters()]
    assert names[:6] == [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "layer1.0.conv1.weight",
        "layer1.0.bn1.weight",
        "layer1.0.bn1.bias",
    ]
    assert {"layer1.0.downsample.0.weight", "layer3.5.bn3.bias", "layer4.2.conv3.weight"} <= set(names)
    assert names[-2:] == ["fc.weight", "fc.bias"]


def test_gpt2_shares_the_embedding_with_the_head() -> None:
    model, _ = WORKLOADS["gpt2"].build("full", device="meta")
    weights = dict(model.named_parameters(remove_duplicate=False))
    assert weights["lm_head.weight"] is weights["wte.weight"]


def test_gpt2_sees_no_token_that_comes_later() -> None:
    model, _ = WORKLOADS["gpt2"].build()
    tokens = torch.randint(512, (1, 8), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 512
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize(("pixels", "mapped"), [(572, 388), (188, 4)])
def test_unet_maps_as_many_pixels_as_the_paper_says(pixels: int, mapped: int) -> None:
    model, _ = WORKLOADS["unet"].build("full", device="meta", pixels=pixels)
    assert model(torch.empty(1, 1, pixels, pixels, device="meta")).shape == (1, 2, mapped, mapped)


@pytest.mark.parametrize("name", ["resnet50", "gpt2", "recommender", "ensemble", "linear50"])
def test_small_and_full_have_the_same_tasks_but_for_the_number_of_members(name: str) -> None:
    knobs = {"members": 16} if name == "ensemble" else {}
    graphs = [th.graph(WORKLOADS[name].build(size, device="meta", **knobs)[1]()) for size in ("small", "full")]
    small, full = ([task.name for task in graph.tasks] for graph in graphs)
    assert small == full


def test_mlp_norm_has_the_4001_tasks_of_the_benchmarks() -> None:
    assert len(th.graph(WORKLOADS["mlp_norm"].build()[1]())) == 4001


def test_linear50_uses_one_weight_50_times() -> None:
    tasks = th.graph(WORKLOADS["linear50"].build()[1]()).tasks
    assert [task.name for task in tasks].count("AddmmBackward0") == 50
    assert [task.kind for task in tasks].count(Kind.ACCUMULATE_GRAD) == 2


def test_steps_of_the_unrolled_cell_multiply_its_tasks() -> None:
    sizes = [len(th.graph(WORKLOADS["lstm_cell"].build(steps=steps)[1]())) for steps in (50, 51, 1500)]
    per_step = sizes[1] - sizes[0]
    assert per_step >= 10
    assert sizes[2] == sizes[0] + 1450 * per_step


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown workload 'resnet'; known: resnet50, gpt2, .*linear50"):
        workload("resnet")


def test_an_unknown_knob_or_size_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="resnet50 has no knob 'pixel'; known: batch, pixels"):
        WORKLOADS["resnet50"].build(pixel=64)
    with pytest.raises(ValueError, match="unknown size 'tiny' of workload gpt2; known: small, full"):
        WORKLOADS["gpt2"].build("tiny")  # type: ignore[arg-type]


@pytest.mark.parametrize("found", WORKLOADS.values(), ids=NAMES)
def test_each_workload_names_its_source(found: Workload) -> None:
    assert found.title and found.source
    assert found.small.keys() == found.full.keys()
