from __future__ import annotations

import pytest
import torch

import tapescope as ts
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.studies.ready_workload import Workload
from tapescope.engine.studies.workloads import WORKLOADS, workload
from tapescope.inspector.graph.kinds import Kind
from tapescope.tests.says import Snapshots, raises

from ..sizes import LARGEST_SLOW

pytestmark = pytest.mark.heavy

NAMES = list(WORKLOADS)
Tensors = dict[str, torch.Tensor]


def loss_and_gradients(name: str, seed: int = 0) -> tuple[Tensors, torch.Tensor, Tensors]:
    model, make_loss = WORKLOADS[name].build("small", seed=seed)
    loss = make_loss()
    loss.backward()
    parameters = dict(model.named_parameters())
    gradients = {key: parameter.grad for key, parameter in parameters.items() if parameter.grad is not None}
    return parameters, loss.detach(), gradients


@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_two_builds_are_equal_to_the_bit(name: str) -> None:
    parameters, loss, gradients = loss_and_gradients(name)
    again_parameters, again_loss, again_gradients = loss_and_gradients(name)
    assert torch.equal(loss, again_loss)
    assert parameters.keys() == again_parameters.keys() == gradients.keys() == again_gradients.keys()
    for key in parameters:
        assert torch.equal(parameters[key], again_parameters[key]), key
        assert torch.equal(gradients[key], again_gradients[key]), key


@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_every_parameter_gets_a_gradient_that_tells_something(name: str) -> None:
    parameters, loss, gradients = loss_and_gradients(name)
    assert loss.dim() == 0 and loss.isfinite()
    assert gradients.keys() == parameters.keys()
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert max(gradient.abs().max().item() for gradient in gradients.values()) > 1e-4


@pytest.mark.parametrize("name", LARGEST_SLOW)
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


@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_the_users_random_numbers_are_left_alone(name: str) -> None:
    before = torch.get_rng_state()
    _, make_loss = WORKLOADS[name].build()
    make_loss()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_the_full_size_runs_on_meta_without_memory(name: str) -> None:
    long = {"lstm_cell": {"steps": 3}, "seq2seq": {"steps": 3}, "two_devices": {"far_layers": 3}}
    knobs = long.get(name, {})
    model, make_loss = WORKLOADS[name].build("full", device="meta", **knobs)
    loss = make_loss()
    loss.backward()
    assert loss.is_meta and loss.shape == ()
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in model.parameters())


# torchvision's ResNets, GPT-2 small with its tied head, the U-Net paper's network for one channel and two classes,
# pytorch/examples' for MNIST, and twice the 11.378 M of a generator and the 2.765 M of a discriminator which
# junyanz/pytorch-CycleGAN-and-pix2pix prints
@pytest.mark.parametrize(
    ("name", "tensors", "values"),
    [
        ("resnet50", 161, 25_557_032),
        ("resnet152", 467, 60_192_808),
        ("gpt2", 148, 124_439_808),
        ("unet", 46, 31_030_658),
        ("mnist", 8, 21_840),
        ("cyclegan", 2 * 48 + 2 * 10, 2 * 11_378_179 + 2 * 2_764_737),
    ],
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


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet152", "gpt2", "cyclegan")),
        *("recommender", "din", "ensemble", "linear50"),
    ],
)
def test_small_and_full_have_the_same_tasks_but_for_the_number_of_members(name: str) -> None:
    knobs = {"members": 16} if name == "ensemble" else {}
    graphs = [ts.graph(WORKLOADS[name].build(size, device="meta", **knobs)[1]()) for size in ("small", "full")]
    small, full = ([task.name for task in graph.tasks] for graph in graphs)
    assert small == full


def changed_by(model: torch.nn.Module, inputs: list[torch.Tensor], which: int, at: object) -> torch.Tensor:
    """Return where the model's output changes if one number of one input does."""
    other = [each.clone() for each in inputs]
    other[which][at] = (other[which][at] + 1) % 500
    with torch.no_grad():
        return model(*inputs) != model(*other)


def test_seq2seq_attends_to_the_whole_source_and_sees_no_token_of_the_target_that_comes_later() -> None:
    model, _ = WORKLOADS["seq2seq"].build()
    random = torch.Generator().manual_seed(0)
    sentences = [torch.randint(500, (8, 4), generator=random) for _ in range(2)]
    assert changed_by(model, sentences, 0, (7, 0)).any(dim=2).tolist() == [[True, False, False, False]] * 8
    assert changed_by(model, sentences, 1, (5, 0)).any(dim=2)[:, 0].tolist() == [False] * 5 + [True] * 3


def test_seq2seq_feeds_what_it_attended_to_into_the_next_step() -> None:
    model, _ = WORKLOADS["seq2seq"].build()
    tokens, memory = torch.zeros(2, 1, 64), torch.randn(3, 1, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = [(torch.zeros(1, 64), torch.zeros(1, 64)) for _ in range(2)]
        first, second = model.decoder(tokens, list(states), memory)
        alone = model.decoder(tokens[1:], list(states), memory)[0]
        (hidden, _), cell = model.decoder.cells[0](torch.cat([tokens[0], 0 * first], 1), states[0]), states[1]
        top, _ = model.decoder.cells[1](hidden, cell)
        scores = (memory[:, 0] @ model.decoder.attention.linear_in(top)[0]).softmax(0)
        mixed = torch.cat([scores @ memory[:, 0], top[0]])
        torch.testing.assert_close(first[0], model.decoder.attention.linear_out(mixed).tanh())
        assert not torch.allclose(second, alone)


def test_cyclegan_judges_patches_of_70_by_70_pixels() -> None:
    model, _ = WORKLOADS["cyclegan"].build("full", device="meta")
    assert model.judge_a(torch.empty(1, 3, 256, 256, device="meta")).shape == (1, 1, 30, 30)
    reach = 1
    for layer in reversed([each for each in model.judge_a if isinstance(each, torch.nn.Conv2d)]):
        reach = (reach - 1) * layer.stride[0] + layer.kernel_size[0]
    assert reach == 70


def test_cyclegan_goes_through_all_four_networks_as_often_as_the_loss_asks() -> None:
    _, make_loss = WORKLOADS["cyclegan"].build()
    with ts.capture():
        loss = make_loss()
    calls: dict[str, int] = {}
    for call in ts.graph(loss).calls:
        calls[call.path] = calls.get(call.path, 0) + 1
    networks = ("a_to_b", "b_to_a", "judge_a", "judge_b")
    assert {path: calls[path] for path in networks} == {"a_to_b": 3, "b_to_a": 3, "judge_a": 1, "judge_b": 1}


def test_the_labeler_hears_the_whole_sentence_and_steps_from_left_to_right() -> None:
    model, make_loss = WORKLOADS["sequence_labeler"].build()
    tokens = torch.randint(500, (8, 2), generator=torch.Generator().manual_seed(0))
    assert changed_by(model, [tokens], 0, (7, 0)).any(dim=2).tolist() == [[True, False]] * 8
    tasks = [task.name for task in ts.graph(make_loss()).tasks]
    assert tasks.count("ReluBackward0") == 2 * 8 and tasks.count("EmbeddingBackward0") == 1 + 2 * (8 - 1)


def test_the_multiplicative_cell_is_the_papers() -> None:
    cell = WORKLOADS["mlstm"].build()[0].cell
    x, hidden, memory = (torch.randn(1, width, generator=torch.Generator().manual_seed(0)) for width in (32, 64, 64))
    product = (cell.input_to_product.weight @ x[0]) * (cell.state_to_product.weight @ hidden[0])
    gates = cell.input_to_gates.weight @ x[0] + cell.product_to_gates.weight @ product
    opened, kept, new, shown = gates.reshape(4, 64)
    expected = kept.sigmoid() * memory[0] + opened.sigmoid() * new
    found_hidden, found_memory = cell(x, (hidden, memory))
    torch.testing.assert_close(found_memory[0], expected)
    torch.testing.assert_close(found_hidden[0], torch.tanh(expected * shown.sigmoid()))


def test_din_weighs_the_history_by_the_offer_and_shares_its_tables() -> None:
    model, make_loss = WORKLOADS["din"].build()
    tasks = [task.name for task in ts.graph(make_loss(), model).tasks]
    assert tasks.count("EmbeddingBackward0") == 5 and len(list(model.children())) == 5
    inputs = [torch.zeros(2, dtype=torch.long) for _ in range(3)] + [torch.zeros(2, 10, dtype=torch.long)] * 2
    assert changed_by(model, inputs, 3, (0, 4)).tolist() == [True, False]


def test_of_two_devices_one_starts_after_the_other_under_heap_and_dfs_and_at_once_under_bfs() -> None:
    _, make_loss = WORKLOADS["two_devices"].build()
    with ts.capture():
        graph = ts.graph(make_loss())
    (copy,) = [task.id for task in graph.tasks if task.name == "ToCopyBackward0"]
    near = {task.id for task in graph.tasks if (graph.module(task) or "").startswith("near")}

    def before_the_copy(policy: str) -> int:
        order = schedule(graph, policy)
        return len(near.intersection(order[: order.index(copy)]))

    assert [before_the_copy(policy) for policy in ("heap", "dfs", "bfs")] == [len(near), len(near), 0]


def test_of_two_devices_one_half_stays_on_the_cpu(accelerator: torch.device) -> None:
    model, make_loss = WORKLOADS["two_devices"].build(device=str(accelerator))
    assert {str(each.device) for each in model.near.parameters()} == {"cpu"}
    assert {each.device for each in model.far.parameters()} == {accelerator}
    graph = ts.graph(make_loss(), model)
    assert set(graph.devices) == {torch.device("cpu"), accelerator}
    assert all((task.device == accelerator) == task.parameter.startswith("far") for task in graph.tasks if task.is_leaf)


def test_mlp_norm_has_the_4001_tasks_of_the_benchmarks() -> None:
    assert len(ts.graph(WORKLOADS["mlp_norm"].build()[1]())) == 4001


def test_linear50_uses_one_weight_50_times() -> None:
    tasks = ts.graph(WORKLOADS["linear50"].build()[1]()).tasks
    assert [task.name for task in tasks].count("AddmmBackward0") == 50
    assert [task.kind for task in tasks].count(Kind.ACCUMULATE_GRAD) == 2


@pytest.mark.parametrize("separate_inputs", [0, 1])
def test_an_ensemble_has_one_network_per_member_on_the_same_input_or_on_its_own(separate_inputs: int) -> None:
    model, make_loss = WORKLOADS["ensemble"].build(members=3, layers=2, separate_inputs=separate_inputs)
    assert [task.name for task in ts.graph(make_loss()).tasks].count("AddmmBackward0") == 3 * 2
    x = torch.randn(3, 32, 64, generator=torch.Generator().manual_seed(0))
    made = model(x if separate_inputs else x[0])
    for member, network in enumerate(model.members):
        torch.testing.assert_close(made[member], network(x[member if separate_inputs else 0]))


def test_experts_get_different_numbers_of_tokens_and_do_with_each_what_the_router_weighs() -> None:
    model, make_loss = WORKLOADS["mixture_of_experts"].build()
    rows = [task.inputs[0].shape for task in ts.graph(make_loss()).tasks if task.name == "AddmmBackward0"]
    assert len(rows) == 2 * 8 and len(set(rows)) > 2 * 3
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for token, made in zip(x, model(x), strict=True):
            ratings, experts = model.router(token).topk(2)
            weighed = zip(ratings.softmax(0), experts, strict=True)
            torch.testing.assert_close(
                made, sum(weight * model.experts.each[expert](token) for weight, expert in weighed)
            )


def test_grouped_experts_are_the_same_with_one_product_a_layer_and_are_refused_where_torch_cannot(
    snapshot: Snapshots,
) -> None:
    (looped, looped_loss), (grouped, grouped_loss) = (
        WORKLOADS["mixture_of_experts"].build(grouped=grouped) for grouped in (0, 1)
    )
    loss = grouped_loss()
    torch.testing.assert_close(loss, looped_loss())
    assert [task.name for task in ts.graph(loss).tasks].count("GroupedMmBackward0") == 2
    loss.backward()
    looped_loss().backward()
    torch.testing.assert_close(grouped.router.weight.grad, looped.router.weight.grad)
    each = torch.stack([expert[0].weight.grad.T for expert in looped.experts.each])
    torch.testing.assert_close(grouped.experts.weights[0].grad, each)
    for knobs, facts in (({"width": 30}, ("16 bytes", "width=30")), ({"device": "meta"}, ("bfloat16",))):
        with raises(ValueError, "grouped=1", *facts, "grouped=0") as refused:
            WORKLOADS["mixture_of_experts"].build(grouped=1, **knobs)
        snapshot("workload", refused.value)


def test_steps_of_the_unrolled_cell_multiply_its_tasks() -> None:
    sizes = [len(ts.graph(WORKLOADS["lstm_cell"].build(steps=steps)[1]())) for steps in (50, 51, 1500)]
    per_step = sizes[1] - sizes[0]
    assert per_step >= 10
    assert sizes[2] == sizes[0] + 1450 * per_step


def test_an_unknown_name_lists_the_known_ones() -> None:
    with raises(ValueError, "'resnet'", "'resnet50'", "resnet152", "gpt2", "linear50"):
        workload("resnet")


def test_an_unknown_knob_or_size_names_the_known_ones(snapshot: Snapshots) -> None:
    with raises(ValueError, "resnet50", "'pixel'", "batch", "pixels") as refused:
        WORKLOADS["resnet50"].build(pixel=64)
    snapshot("workload", refused.value)
    with raises(ValueError, "'tiny'", "gpt2", "small", "full") as refused:
        WORKLOADS["gpt2"].build("tiny")  # type: ignore[arg-type]
    snapshot("workload", refused.value)


@pytest.mark.parametrize("found", WORKLOADS.values(), ids=NAMES)
def test_each_workload_names_its_source(found: Workload) -> None:
    assert found.title and found.source
    assert found.small.keys() == found.full.keys()


@pytest.mark.parametrize("name", [name for name in NAMES if WORKLOADS[name].blocks])
def test_the_blocks_are_modules_of_the_model(name: str) -> None:
    model, _ = WORKLOADS[name].build(device="meta")
    for kind in WORKLOADS[name].blocks:
        assert any(isinstance(module, kind) for module in model.modules())
