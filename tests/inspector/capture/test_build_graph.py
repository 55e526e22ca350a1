from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

import tapescope as ts
from tapescope.inspector.graph.kinds import Kind, short_name
from tapescope.tests.says import Snapshots, raises, says

from ..programs import Twice


def test_ids_count_in_order_of_creation_and_leaves_come_last_in_order_of_first_use() -> None:
    first, second = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    loss = (second * 3 + first.exp()).sum()
    graph = ts.graph(loss, {"first": first, "second": second})
    assert [task.name for task in graph.tasks] == [
        "MulBackward0",
        "ExpBackward0",
        "AddBackward0",
        "SumBackward0",
        "torch::autograd::AccumulateGrad",
        "torch::autograd::AccumulateGrad",
    ]
    assert [task.parameter for task in graph.tasks[4:]] == ["second", "first"]
    numbers = [task.sequence_nr for task in graph.tasks]
    assert numbers == sorted(numbers)
    assert [node.name() for node in graph.nodes] == [task.name for task in graph.tasks]


def test_two_forwards_of_one_program_have_equal_graphs() -> None:
    def forward() -> ts.Graph:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        return ts.graph(model(torch.ones(2, 4)).sum(), model)

    first, second = forward(), forward()
    assert first.edges == second.edges
    assert [(task.name, task.parameter, task.inputs) for task in first.tasks] == [
        (task.name, task.parameter, task.inputs) for task in second.tasks
    ]


def test_edges_are_those_of_next_functions_with_output_and_input_numbers() -> None:
    left, _, right = torch.ones(6, requires_grad=True).mul(1).split(2)
    graph = ts.graph((left * right).sum())
    assert {
        (graph.nodes[edge.task], edge.output): (graph.nodes[edge.next_task], edge.input) for edge in graph.edges
    } == {
        (node, output): (child, number)
        for node in graph.nodes
        for output, (child, number) in enumerate(node.next_functions)
        if child is not None
    }
    assert {edge.input for edge in graph.edges if "Split" in graph.tasks[edge.next_task].name} == {0, 2}
    assert list(graph.edges) == sorted(graph.edges, key=lambda edge: (edge.task, edge.output))
    assert sum(map(len, graph.out_edges)) == sum(map(len, graph.in_edges)) == len(graph.edges)


def test_a_square_has_two_edges_to_its_leaf() -> None:
    x = torch.ones(3, requires_grad=True)
    graph = ts.graph(x * x)
    assert [(edge.output, edge.input) for edge in graph.in_edges[1]] == [(0, 0), (1, 0)]


def test_input_metadata_is_shape_dtype_and_device_of_each_gradient() -> None:
    x = torch.ones(2, 6, dtype=torch.float64, requires_grad=True)
    a, b = x.mul(1).split(3, dim=1)
    graph = ts.graph((a + b).sum())
    (split,) = [task for task in graph.tasks if task.name.startswith("Split")]
    assert [meta.shape for meta in split.inputs] == [(2, 3), (2, 3)]
    assert split.inputs[0].dtype == torch.float64 and split.inputs[0].device.type == "cpu"
    assert split.inputs[0].nbytes == 2 * 3 * 8
    assert str(split.inputs[0]) == "2×3 float64 cpu"


def test_kinds_tell_nodes_apart() -> None:
    x = torch.ones(4, requires_grad=True)
    y = Twice.apply(x).clone()
    y[:2] = x[:2] * 3
    graph = ts.graph(torch.utils.checkpoint.checkpoint(torch.exp, y, use_reentrant=True))
    kinds = {short_name(task.name): task.kind for task in graph.tasks}
    assert kinds == {
        "AccumulateGrad": Kind.ACCUMULATE_GRAD,
        "CheckpointFunction": Kind.CHECKPOINT,
        "Clone": Kind.CPP,
        "CopySlices": Kind.COPY_SLICES,
        "Mul": Kind.CPP,
        "Slice": Kind.CPP,
        "Twice": Kind.FUNCTION,
    }


def test_a_users_function_that_is_named_like_one_of_torchs_is_a_users_function() -> None:
    named = type("CompiledFunction", (Twice,), {"__module__": __name__})
    graph = ts.graph(named.apply(torch.ones(2, requires_grad=True)))
    assert graph.tasks[0].name == "CompiledFunctionBackward" and graph.tasks[0].kind is Kind.FUNCTION


def test_a_module_with_backward_hooks_has_their_identity_nodes() -> None:
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    graph = ts.graph(layer(torch.ones(1, 2, requires_grad=True)).sum())
    assert sum(task.kind is Kind.MODULE_HOOK for task in graph.tasks) == 2


def test_a_compiled_region_is_one_task() -> None:
    x = torch.ones(4, requires_grad=True)
    graph = ts.graph(torch.compile(lambda x: x.sin().exp().sum(), backend="aot_eager")(x))
    assert [task.kind for task in graph.tasks] == [Kind.COMPILED, Kind.ACCUMULATE_GRAD]


def test_several_roots_keep_their_order_and_input_numbers() -> None:
    x = torch.ones(4, requires_grad=True)
    first, second = x.mul(1).split(2)
    total = first.sum()
    graph = ts.graph([second, total])
    assert [(graph.tasks[root.task].name, root.input) for root in graph.roots] == [
        ("SplitBackward0", 1),
        ("SumBackward0", 0),
    ]


def test_a_gradient_edge_and_a_leaf_can_be_roots() -> None:
    x = torch.ones(4, requires_grad=True)
    assert len(ts.graph(get_gradient_edge(x.exp()))) == 2
    assert [task.kind for task in ts.graph(x).tasks] == [Kind.ACCUMULATE_GRAD]


def test_a_module_names_its_parameters_and_a_tied_one_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.decoder.weight = self.encoder.weight

    model = Tied()
    graph = ts.graph(model.decoder(model.encoder(torch.ones(1, 3))).sum(), model)
    assert [task.parameter for task in graph.tasks if task.kind is Kind.ACCUMULATE_GRAD] == ["encoder.weight"]


@pytest.mark.heavy
def test_a_chain_of_100_000_operations_is_walked_without_recursion() -> None:
    y = x = torch.ones(1, requires_grad=True)
    for _ in range(50_000):
        y = (y * 1).view(1)
    graph = ts.graph(y)
    assert len(graph) == 100_001 and len(graph.edges) == 100_000
    assert graph.nodes[-1].variable is x


def test_a_nested_tensor_has_no_shape() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True)
    graph = ts.graph(nested * 2)
    assert {meta.shape for task in graph.tasks for meta in task.inputs} == {None}


def test_a_tensor_without_a_graph_is_named_with_the_likely_reasons(snapshot: Snapshots) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with torch.no_grad():
        y = x * 2
    with raises(RuntimeError, "element 1", "(2, 3)", "torch.no_grad()") as refused:
        ts.graph([x.sum(), y])
    snapshot("graph", refused.value)


def test_what_is_no_tensor_is_named(snapshot: Snapshots) -> None:
    for outputs, facts in (
        ([3.0], ("element 0", "float")),
        (None, ("None",)),
        (nn.Linear(1, 1), ("Linear", "input", "ts.graph(model, *inputs)", "ts.graph(loss)")),
        ({"loss": torch.ones(1, requires_grad=True)}, ("dict", "'loss'")),
        ({"loss": 3.0}, ("dict",)),
        (3, ("int",)),
        ("loss", ("str",)),
        (torch.ones(1).numpy(), ("ndarray",)),
    ):
        with raises(TypeError, *facts) as refused:
            ts.graph(outputs)  # type: ignore[arg-type]
        snapshot("graph", refused.value)
    with raises(ValueError, "tensor") as refused_for_its_value:
        ts.graph([])
    snapshot("graph", refused_for_its_value.value)


def test_a_task_that_is_not_there_is_named(snapshot: Snapshots) -> None:
    graph = ts.graph(torch.ones(1, requires_grad=True).exp())
    for wrong in (2, -1):
        with raises(ValueError, f"task {wrong}", "0 to 1") as refused:
            graph.describe(wrong)
        snapshot("graph", refused.value)
    with raises(TypeError, "task", "str"):
        graph.describe("exp")  # type: ignore[arg-type]
    says(repr(graph), "2 tasks", "1 edge", "ExpBackward0")
    assert repr(graph.tasks[0]) == "<Task 0 Exp>"


def test_describe_names_parameter_module_and_line() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with ts.capture():
        loss = model(torch.ones(1, 2)).sum()
    graph = ts.graph(loss)
    (weight,) = [task for task in graph.tasks if task.parameter == "0.weight"]
    assert graph.describe(weight).startswith("AccumulateGrad (0.weight, test_build_graph.py:")
    assert graph.describe(weight, 52).startswith("AccumulateGrad (0.weight, 53rd, test_build_graph.py:")
    assert (
        graph.in_order([9, weight.id])
        .describe(weight)
        .startswith("AccumulateGrad (0.weight, 2nd, test_build_graph.py:")
    )


@pytest.mark.heavy
def test_a_long_chain_is_freed_without_overflowing_the_stack() -> None:
    """A stack of 2 MiB has 84 bytes for each of its nodes: no recursion does with so little."""
    script = (
        "import torch, tapescope as ts\n"
        "for last in ('graph', 'loss', 'other root'):\n"
        "    x = torch.ones(1, requires_grad=True)\n"
        "    y = x * 2\n"
        "    for _ in range(25_000):\n"
        "        y = y * 1\n"
        "    roots = [y, y.exp()]\n"
        "    graph = ts.graph(roots)\n"
        "    if last == 'graph':\n"
        "        del y, roots\n"
        "    if last == 'other root':\n"
        "        del y, roots[0]\n"
        "    del graph\n"
        "    y = roots = None\n"
        "    print('freed after the', last, flush=True)\n"
    )

    def with_little_stack() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (2 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, preexec_fn=with_little_stack)
    assert done.stdout.splitlines() == [f"freed after the {last}" for last in ("graph", "loss", "other root")]
    assert done.returncode == 0
