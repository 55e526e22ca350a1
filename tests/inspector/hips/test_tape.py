from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tapescope as ts
from tapescope.inspector.graph.kinds import Kind

pytest.importorskip("autograd")

import autograd.numpy as np
import numpy
from autograd.builtins import dict as box_dict
from autograd.builtins import tuple as box_tuple

from tapescope.tests.says import Snapshots, raises, says


def rnn(params: Any, xs: Any) -> Any:
    first, second, bias = params
    state = np.zeros((2, 3))
    for x in xs:
        state = np.tanh(np.dot(x, first) + np.dot(state, second) + bias)
    return np.sum(state)


RNN = (np.ones((4, 3)), np.ones((3, 3)), np.ones(3)), np.ones((2, 2, 4))


def test_a_tape_has_a_task_for_each_node_that_autograd_makes_and_an_edge_for_each_parent() -> None:
    tape = ts.hips.tape(rnn, *RNN)
    graph = ts.graph(tape)
    step = ["dot", "dot", "add", "add", "tanh"]
    assert [task.name for task in graph.tasks] == ["container_take"] * 3 + step * 2 + ["sum", "Argument"]
    ids = {id(node): task_id for task_id, node in enumerate(tape.nodes)}
    parents = [(task_id, ids[id(parent)]) for task_id, node in enumerate(tape.nodes) for parent in node.parents]
    assert [(edge.task, edge.next_task) for edge in graph.edges] == parents
    numbers = [task.sequence_nr for task in graph.tasks]
    assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers)
    assert [graph.tasks[root.task].name for root in graph.roots] == ["sum"]
    assert tape.value == rnn(*RNN)
    assert [call.name for call in graph.calls] == ["rnn"], "the function is what a module is elsewhere"


def test_a_task_tells_shape_dtype_and_the_users_line() -> None:
    def loss(x: Any) -> Any:
        small = x.astype(numpy.float32)
        return np.sum(np.log2(small))

    graph = ts.graph(ts.hips.tape(loss, np.ones((2, 3))))
    assert [(task.short_name, str(task.inputs[0])) for task in graph.tasks] == [
        ("astype", "2×3 float32 cpu"),
        ("log2", "2×3 float32 cpu"),
        ("sum", "scalar float32 cpu"),
        ("Argument", "2×3 float64 cpu"),
    ]
    first = loss.__code__.co_firstlineno
    lines = [(task.source.line, task.source.function) for task in graph.tasks[:3] if task.source is not None]
    assert lines == [(first + 1, "loss"), (first + 2, "loss"), (first + 2, "loss")]
    assert graph.describe(1) == f"log2 (test_tape.py:{first + 2})"
    assert graph.describe(3) == "Argument (x)"


def test_a_containers_arrays_are_inputs_of_its_task_and_an_index_leads_to_its_own() -> None:
    def loss(params: Any) -> Any:
        pair = box_tuple((params["w"] * 2.0, params["rest"][1]))
        return np.sum(pair[0]) + pair[1]

    graph = ts.graph(ts.hips.tape(loss, {"rest": [numpy.ones(5), 3.0], "w": numpy.ones((2, 2))}))
    leaf = graph.tasks[-1]
    assert [meta.shape for meta in leaf.inputs] == [(5,), (), (2, 2)]
    makes = next(task for task in graph.tasks if task.name == "make_sequence")
    assert [meta.shape for meta in makes.inputs] == [(2, 2), ()]
    first = [edge for edge in graph.edges if edge.next_task == leaf.id]
    assert [graph.tasks[edge.task].source.line for edge in first if graph.tasks[edge.task].source] == [
        line(loss, 1)
    ] * 3
    assert [edge.input for edge in first] == [2, 0, 1]  # params["w"], and params["rest"], in which there are two
    assert [edge.input for edge in graph.in_edges[makes.id]] == [0, 1]


def test_several_arguments_are_one_leaf_with_an_input_for_each() -> None:
    graph = ts.graph(
        ts.hips.tape(lambda x, scale, y: np.sum(x * y) * scale, np.ones(2), 3.0, np.ones(2), argnum=(0, 2))
    )
    assert [task.parameter for task in graph.tasks if task.is_leaf] == ["x, y"]
    assert sorted((edge.next_task, edge.input) for edge in graph.in_edges[len(graph) - 1]) == [
        (len(graph) - 1, 0),
        (len(graph) - 1, 1),
    ]


def test_a_value_that_is_the_argument_is_a_graph_of_the_leaf_alone() -> None:
    graph = ts.graph(ts.hips.tape(lambda x: x, 3.0))
    assert [task.name for task in graph.tasks] == ["Argument"] and graph.edges == ()


def test_exports_take_a_tapes_graph_as_any_other() -> None:
    graph = ts.graph(ts.hips.tape(rnn, *RNN))
    svg = graph.to_svg()
    assert "tanh" in svg and "HIPS autograd" in svg and "AccumulateGrad" not in svg
    assert '"tanh"' in graph.to_json()
    pytest.importorskip("graphviz")
    assert "container_take" in str(graph.to_graphviz())


def line(function: Any, below: int) -> int:
    return int(function.__code__.co_firstlineno) + below


def aux(x: Any) -> Any:
    return np.sum(x), x * 2.0


@pytest.mark.parametrize(
    ("make", "error", "facts"),
    [
        (lambda: ts.hips.tape(lambda x: 1.0, 2.0), ValueError, ["<lambda>", "x", "autograd.numpy"]),
        (lambda: ts.hips.tape(lambda x: numpy.float64(x._value) * 2, 2.0), ValueError, ["x", "autograd.numpy"]),
        (lambda: ts.hips.tape(aux, np.ones(2)), TypeError, ["aux", "tuple"]),
        (lambda: ts.hips.tape(lambda x: box_dict(a=x), np.ones(2)), TypeError, ["<lambda>", "dict"]),
        (lambda: ts.hips.tape(lambda x: x * 2.0, 3), TypeError, ["x", "int", "float"]),
        (lambda: ts.hips.tape(lambda x: x * 2.0, torch.ones(2)), TypeError, ["x", "Tensor", "float"]),
        (lambda: ts.hips.tape(torch.ones(2)), TypeError, ["ts.hips.tape(fun, *args)", "Tensor", "ts.graph(loss)"]),
        (lambda: ts.hips.tape(lambda x: x * 2.0, 3.0, argnum=1), IndexError, ["argnum is 1", "<lambda>"]),
        (lambda: ts.hips.tape(lambda x: x * 2.0, 3.0, argnum="x"), TypeError, ["argnum is 'x'"]),  # type: ignore[arg-type]
    ],
)
def test_what_gives_no_tape_is_told_in_a_sentence(
    make: Callable[[], object], error: type[Exception], facts: list[str], snapshot: Snapshots
) -> None:
    with raises(error, *facts) as refused:
        make()
    snapshot("hips", refused.value)


def test_values_of_a_dtype_that_torch_has_not_are_named() -> None:
    value = numpy.longdouble(3)
    with raises(TypeError, str(value.dtype)):
        ts.hips.tape(lambda x: x * 2.0, value)


@pytest.mark.parametrize(
    ("fun", "argument", "facts"),
    [
        (lambda x: torch.tanh(x).sum(), np.ones(2), ["<lambda>", "autograd.numpy", "ts.graph(loss)"]),
        (lambda x: np.sum(x * 2), np.ones(2, int), ["<lambda>", "floats"]),
    ],
)
def test_what_autograd_itself_refuses_has_a_note_that_says_what_to_do(
    fun: Callable[[Any], Any], argument: object, facts: list[str], snapshot: Snapshots
) -> None:
    with pytest.raises(TypeError) as caught:
        ts.hips.tape(fun, argument)
    note = caught.value.__notes__[-1]
    says(note, *facts)
    snapshot("hips", note)


def test_a_box_or_a_node_alone_is_refused_and_says_what_to_record() -> None:
    seen: list[Any] = []

    def loss(x: Any) -> Any:
        seen.append(x)
        return np.sum(x)

    tape = ts.hips.tape(loss, np.ones(2))
    for part in (seen[0], tape.nodes[0]):
        with raises(TypeError, type(part).__name__, "ts.graph(ts.hips.tape(fun, *args))"):
            ts.graph(part)


def test_a_function_that_raises_leaves_no_trace_open() -> None:
    from autograd.tracer import trace_stack

    def fails(x: Any) -> Any:
        raise ArithmeticError("in the forward")

    before = trace_stack.top
    with pytest.raises(ArithmeticError):
        ts.hips.tape(fails, 1.0)
    assert trace_stack.top == before


def test_without_autograd_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import tapescope.inspector.hips as package

    monkeypatch.setitem(sys.modules, "autograd", None)
    monkeypatch.delitem(sys.modules, "tapescope.inspector.hips.tape_nodes")
    monkeypatch.delattr(package, "tape_nodes")
    with raises(ModuleNotFoundError, "pip install 'tapescope[hips]'"):
        ts.hips.tape(lambda x: x, 1.0)


def test_primitives_have_a_kind_of_their_own() -> None:
    graph = ts.graph(ts.hips.tape(rnn, *RNN))
    assert {task.kind for task in graph.tasks} == {Kind.PRIMITIVE, Kind.ACCUMULATE_GRAD}
