from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.task_outputs import of_shapes
from tapescope.engine.planning.policies import CLASSIC
from tapescope.engine.session.direct_session import Stepper

pytest.importorskip("autograd")

import autograd
import autograd.numpy as np
import numpy
from autograd.builtins import dict as box_dict
from autograd.builtins import list as box_list
from autograd.builtins import tuple as box_tuple
from autograd.extend import defvjp, primitive
from autograd.util import toposort

from tapescope.tests.says import Snapshots, raises, says

RULES = [
    ts.types.Accumulation(accumulate, release)
    for accumulate in ("inplace", "out_of_place", "list")
    for release in ("eager", "never")
]


def arrays(value: Any) -> Iterator[Any]:
    """The arrays in a value, in the order of its places."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, tuple | list):
        for each in value:
            yield from arrays(each)
    else:
        yield numpy.asarray(value)


def same_bits(one: Any, other: Any) -> bool:
    pairs = list(zip(arrays(one), arrays(other), strict=True))
    return type(one) is type(other) and all(
        (mine.shape, mine.dtype, mine.tobytes()) == (its.shape, its.dtype, its.tobytes()) for mine, its in pairs
    )


def close(one: Any, other: Any) -> bool:
    return all(numpy.allclose(mine, its) for mine, its in zip(arrays(one), arrays(other), strict=True))


def rnn(params: Any, xs: Any) -> Any:
    first, second, bias = params
    state = np.zeros((2, 3))
    for x in xs:
        state = np.tanh(np.dot(x, first) + np.dot(state, second) + bias)
    return np.sum(state)


draw = numpy.random.default_rng(0).normal
RNN = tuple(draw(size=shape) for shape in ((4, 3), (3, 3), (3,))), draw(size=(5, 2, 4))


def containers(params: Any) -> Any:
    pair = box_tuple((params["w"] * 2.0, params["rest"][1]))
    more = box_list([pair[0], params["w"]]) + [pair[0]]
    named = box_dict(a=more[0], b=params["rest"][0])
    return np.sum(pair[0] * named["a"]) * pair[1] + np.sum(named["b"]) + np.sum(more[2])


def indices(x: Any) -> Any:
    return np.sum(x[0] * x[1, ::-1]) + x[1, 2] + np.sum(x[:, numpy.array([0, 0, 1])] ** 2) + np.sum(np.sin(x))


def complex_numbers(z: Any) -> Any:
    return np.sum(np.real(np.exp(z) * np.conj(z)) + np.abs(z))


def second_derivative(x: Any) -> Any:
    return np.sum(autograd.grad(lambda y: np.sum(np.sin(y) * y[0]))(x) * x)


def of_containers(params: Any) -> Any:
    """A product of the Hessian of a dict with a vector: its tape has sparse gradients of the dict and of the list."""

    def inner(them: Any) -> Any:
        first, *rest = them["list"]
        return np.sum(np.tanh(first) * rest[0]) * them["scale"] + np.sum(them["list"][1:][0] ** 3)

    gradient = autograd.grad(inner)(params)
    return np.sum(gradient["list"][0] * 2.0) + np.sum(gradient["list"][1]) * gradient["scale"]


def scalars(x: float) -> Any:
    return x * x + np.sin(x) * x


def reads_a_value(x: Any) -> Any:
    return x * 3.0 if x > 1.0 else x


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (rnn, RNN),
    (containers, ({"w": draw(size=(2, 2)), "rest": [draw(size=3), 3.0]},)),
    (indices, (draw(size=(2, 3)),)),
    (complex_numbers, (draw(size=3) + 1j * draw(size=3),)),
    (second_derivative, (draw(size=3),)),
    (of_containers, ({"list": [draw(size=3), draw(size=3)], "scale": 2.0},)),
    (scalars, (0.7,)),
    (reads_a_value, (numpy.float32(2.0),)),
    (lambda x: np.sum(x.astype(numpy.float32) ** 2), (draw(size=3),)),
    (lambda x: x, (2.0,)),
]


@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_under_dfs_gradients_are_autograds_bit_for_bit(fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
    expected = autograd.grad(fun)(*args)
    tape = ts.hips.tape(fun, *args)
    session = ts.debug(tape, policy="dfs")
    session.run()
    assert same_bits(tape.gradient, expected)
    own = [tape.nodes.index(node) for node in toposort(tape.nodes[tape.end.id])]
    assert session.order == own


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name or "PyTorch's")
@pytest.mark.parametrize("policy", CLASSIC)
@pytest.mark.parametrize(("fun", "args"), PROGRAMS[:6])
def test_any_policy_and_any_rule_of_summing_gives_the_same_gradients(
    fun: Callable[..., Any], args: tuple[Any, ...], policy: str, rule: ts.types.Accumulation
) -> None:
    expected = autograd.grad(fun)(*args)
    tape = ts.hips.tape(fun, *args)
    with Stepper(tape, policy=policy, accumulation=rule) as session:
        session.run()
    assert close(tape.gradient, expected)


STEPS: list[Callable[..., Any]] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: np.dot(a, b),
    lambda a, b: a - np.sum(b),
    lambda a, b: np.tanh(a),
    lambda a, b: a[::-1] + b[0],
    lambda a, b: np.concatenate([a[:1], b[1:]]),
    lambda a, b: np.where(a > b, a, b),
    lambda a, b: np.transpose(a),
]
STEP = st.tuples(st.sampled_from(STEPS), st.integers(0, 99), st.integers(0, 99))


@settings(max_examples=40)
@given(
    steps=st.lists(STEP, max_size=12),
    policy=st.sampled_from(CLASSIC),
    rule=st.sampled_from(RULES),
    back=st.integers(0, 9),
)
def test_random_programs_have_autograds_gradients_also_after_going_back(
    steps: list[Any], policy: str, rule: ts.types.Accumulation, back: int
) -> None:
    def program(x: Any) -> Any:
        values = [x["a"], x["b"], x["a"][:, :2] @ x["b"][:2]]
        for step, one, other in steps:
            values.append(0.5 * step(values[one % len(values)], values[other % len(values)]))
        return np.sum(values[-1] * values[-2])

    numbers = numpy.random.default_rng(1).normal
    argument = {"a": numbers(size=(3, 3)), "b": numbers(size=(3, 3))}
    expected = autograd.grad(program)(argument)
    tape = ts.hips.tape(program, argument)
    with Stepper(tape, policy="dfs") as session:
        session.run()
    assert same_bits(tape.gradient, expected)
    with Stepper(tape, policy=policy, accumulation=rule, history=True) as session:
        session.run()
        if back:
            session.back(min(back, len(session.order)))
            session.run()
    assert close(tape.gradient, expected)


def test_a_tape_runs_any_number_of_times_and_holds_what_the_last_backward_found() -> None:
    tape = ts.hips.tape(rnn, *RNN)
    assert tape.gradient is None
    ts.backward(tape)
    first = tape.gradient
    ts.backward(tape, 2.0)
    assert close(tape.gradient, tuple(2.0 * each for each in first))
    with Stepper(tape, history=True) as session:
        session.run()
        session.back()
        assert close(tape.gradient, tuple(2.0 * each for each in first)), "put back"


def test_steps_back_and_on_by_hand_and_forks_end_in_the_same_gradients() -> None:
    tape = ts.hips.tape(rnn, *RNN)
    with Stepper(tape, policy="dfs", history=True, trace="full") as session:
        session.run()
        expected = tape.gradient
        session.back(20)
        assert tape.gradient is None
        session.policy = "bfs"
        session.run()
        assert close(tape.gradient, expected)
        session.goto(branch=1)
        assert same_bits(tape.gradient, expected)
        compared = session.compare_branches()
    assert [row.leaves[0].name for row in compared.rows] == ["params", "params"]
    assert max(row.leaves[0].relative or 0.0 for row in compared.rows) < 1e-12


@pytest.mark.parametrize("rule", RULES[::2], ids=lambda rule: rule.name)
def test_a_step_taken_back_leaves_every_buffer_as_it_was(rule: ts.types.Accumulation) -> None:
    def slices(parts: Any) -> Any:
        first, second, third = parts
        return sum(np.sum(np.sin(each) * each) for some in (parts[0:2], parts[1:3]) for each in some) + np.sum(
            first * second * third
        )

    parts = draw(size=3), draw(size=3), draw(size=3)
    tape = ts.hips.tape(slices, parts)

    def waiting(session: Stepper) -> list[list[float]]:
        found = (session.waiting(task) for task in session.graph.tasks)
        return [[0.0 if each is None else float(each.sum()) for each in gradients] for gradients in found]

    with Stepper(tape, policy="dfs", accumulation=rule, history=True) as session:
        while session.left:
            before = waiting(session)
            session.step()
            session.back()
            assert waiting(session) == before, f"before {session.current}"
            session.step()
    assert close(tape.gradient, autograd.grad(slices)(parts))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("fun", "args"), PROGRAMS[:3])
def test_policies_that_plan_by_memory_plan_for_a_tape_too(fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """They plan by the shapes of its gradients, and PyTorch's rule for sums."""
    tape = ts.hips.tape(fun, *args)
    shapes = of_shapes(tape.graph)
    peaks = {
        name: ts.simulate(tape.graph, name, shapes).peak_bytes
        for name in ("heap", "dfs", "bfs", "search(0.2)", "optimal")
    }
    assert peaks["optimal"] == min(peaks.values()), peaks
    for policy in ("optimal", "auto"):
        ts.backward(tape, policy=policy)
        assert close(tape.gradient, autograd.grad(fun)(*args))


def test_gradients_on_the_way_are_seen_on_numpys_own_memory_and_can_be_edited() -> None:
    tape = ts.hips.tape(lambda x: np.sum(np.sin(x)), numpy.ones(3))
    session = ts.debug(tape, policy="dfs")
    session.step()
    (gradient,) = session.gradients
    assert gradient is not None and gradient.dtype is torch.float64 and gradient.tolist() == [1.0, 1.0, 1.0]
    session.scale(3.0)
    session.run()
    assert numpy.array_equal(tape.gradient, 3.0 * numpy.cos(numpy.ones(3)))


def test_an_index_gives_what_it_would_add_where_a_trace_reads_it() -> None:
    tape = ts.hips.tape(lambda x: x[1] * 2.0, numpy.ones(3))
    run = ts.backward(tape, policy="dfs", trace="cheap")
    assert run.trace is not None
    taken = next(record for record in run.trace if record.task.name == "getitem" or "item" in record.task.name)
    statistics = taken.outputs[0].statistics
    assert statistics is not None and (statistics.max, statistics.zero_count) == (2.0, 2)
    assert tape.gradient.tolist() == [0.0, 2.0, 0.0]


def test_a_watchpoint_stops_where_a_gradient_gets_of_rnn(snapshot: Snapshots) -> None:
    tape = ts.hips.tape(lambda x: np.sum(np.sqrt(x * 2.0)), numpy.zeros(2))
    session = ts.debug(tape, policy="dfs")
    session.watch("inf")
    with numpy.errstate(divide="ignore"):
        session.run()
    assert session.stopped is not None and session.stopped.task is not None
    assert tape.graph.tasks[session.stopped.task].name == "sqrt"
    snapshot("hips", "\n".join(session.stopped.lines))


def test_a_saved_run_of_a_tape_plays_again_and_other_orders_are_predicted_from_shapes(
    tmp_path: Any, snapshot: Snapshots
) -> None:
    tape = ts.hips.tape(rnn, *RNN)
    run = ts.backward(tape, policy="dfs", trace="full")
    loaded = ts.load(run.save(tmp_path / "run.tape.json"))
    assert loaded.order == run.order and loaded.graph.is_tape
    assert loaded.save_html(tmp_path / "run.html").stat().st_size > 0
    timeline = ts.simulate(loaded.graph, "bfs")
    snapshot("simulate", timeline.estimates[1])
    weights = sum(each.nbytes for each in RNN[0])
    assert timeline.end_bytes == weights
    assert {storage.category for storage in timeline if storage.died is None} == {Category.GRADIENT}


def twice(x: Any) -> Any:
    return x * 2.0


def users(vjp: Callable[[Any], Any]) -> ts.types.HipsTape:
    function = primitive(lambda x: x * 2.0)
    function.__name__ = "doubled"
    defvjp(function, lambda ans, x: vjp)
    return ts.hips.tape(lambda x: np.sum(function(x)), numpy.ones(2))


def test_a_derivative_of_the_users_own_is_called_as_autograd_calls_it() -> None:
    tape = users(lambda g: 2.0 * g)
    ts.backward(tape)
    assert tape.gradient.tolist() == [2.0, 2.0]
    assert "doubled" in [task.name for task in tape.graph.tasks]


def test_a_derivative_that_raises_says_in_which_task_and_leaves_nothing_behind() -> None:
    def fails(g: Any) -> Any:
        raise ArithmeticError("no derivative")

    tape = users(fails)
    session = ts.debug(tape, policy="dfs")
    with pytest.raises(ArithmeticError) as raised:
        session.run()
    notes = " ".join(raised.value.__notes__)
    says(notes, "doubled", "2nd", "test_runner.py")
    assert session.over is not None and tape.gradient is None


def of_rnn() -> ts.types.HipsTape:
    return ts.hips.tape(rnn, *RNN)


@pytest.mark.parametrize(
    ("act", "error", "facts"),
    [
        (lambda: ts.backward(of_rnn(), engine="native"), NotImplementedError, ['engine="direct"']),
        (lambda: ts.debug(of_rnn(), engine="native"), NotImplementedError, ['engine="direct"']),
        (lambda: ts.debug(of_rnn(), retain_graph=False), NotImplementedError, ["retain_graph=False"]),
        (
            lambda: ts.debug(of_rnn(), create_graph=True),
            NotImplementedError,
            ["create_graph=True", "autograd.grad(rnn)"],
        ),
        (lambda: ts.debug(of_rnn(), batch="auto"), NotImplementedError, ["batch="]),
        (lambda: ts.plan_recompute(of_rnn), TypeError, ["make_loss()", "ts.profile", "ts.compare", "ts.find_nan"]),
        (lambda: ts.find_unused(of_rnn, torch.nn.Tanh()), TypeError, ["make_loss()", "ts.find_nan"]),
        (lambda: ts.find_batches(of_rnn()), ValueError, ["HIPS"]),
        (lambda: ts.debug(of_rnn(), inputs=[]), NotImplementedError, ["inputs=", "argnum="]),
        (lambda: ts.debug(of_rnn(), numpy.ones(2)), ValueError, ["rnn", "()", "grad_tensors", "(2,)"]),
        (lambda: ts.debug(of_rnn(), "one"), TypeError, ["grad_tensors", "str"]),
        (lambda: ts.debug(ts.hips.tape(twice, numpy.ones(3))), RuntimeError, ["twice", "(3,)", "grad_tensors="]),
        (lambda: ts.debug(ts.hips.tape(twice, 1j)), RuntimeError, ["twice", "complex", "grad_tensors="]),
        (lambda: ts.backward(users(lambda g: None)), TypeError, ["None"]),
    ],
)
def test_what_a_tape_cannot_do_is_told_in_a_sentence(
    act: Callable[[], object], error: type[Exception], facts: list[str], snapshot: Snapshots
) -> None:
    with raises(error, *facts) as refused:
        act()
    snapshot("hips", refused.value)


def test_a_gradient_that_is_text_is_refused_in_torchs_words() -> None:
    with raises(TypeError, "numpy.str_"):
        ts.backward(users(lambda g: numpy.array("x")))


def test_too_few_gradients_of_a_derivative_are_told(snapshot: Snapshots) -> None:
    from autograd.extend import defvjp_argnums

    function = primitive(lambda x, y: x * y)
    function.__name__ = "product"
    defvjp_argnums(function, lambda argnums, ans, args, kwargs: lambda g: (g * args[1],))
    tape = ts.hips.tape(lambda x: function(x, x), 2.0)
    with raises(ValueError, "product", "1", "2") as refused:
        ts.backward(tape)
    snapshot("hips", refused.value)


def test_an_array_output_goes_back_from_the_gradient_that_is_given() -> None:
    tape = ts.hips.tape(twice, numpy.ones(3))
    ts.backward(tape, numpy.array([1.0, 0.0, 5.0]))
    assert tape.gradient.tolist() == [2.0, 0.0, 10.0]
    ts.backward(tape, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    assert tape.gradient.tolist() == [0.0, 2.0, 0.0]


def test_a_check_says_whose_formula_it_is() -> None:
    session = ts.debug(ts.hips.tape(rnn, *RNN))
    assert "autograd.test_util.check_grads" in str(session.check())
