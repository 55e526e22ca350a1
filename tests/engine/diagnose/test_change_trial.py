from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.api.time_backwards import Spread
from tapescope.engine.diagnose.change_trial import Cost, Deviation, Trial, try_change
from tapescope.engine.diagnose.find_ensembles import Ensemble
from tapescope.engine.diagnose.generated_code import Change, changes
from tapescope.tests.says import says

from ..ensemble_programs import WIDTH, Members, batch, only, perceptron


def ensemble_of(make: Callable[[], nn.Module] = perceptron, x: Any = None, combine: Any = torch.stack) -> Ensemble:
    model, given = Members(make, combine=combine), batch() if x is None else x
    return only(lambda: model(given).square().sum(), model)


@pytest.mark.parametrize("combine", [torch.stack, torch.cat, sum, lambda outputs: torch.stack(list(outputs)).mean(0)])
@pytest.mark.parametrize("how", ["shared", "sliced", "stacked"])
def test_a_right_change_passes_on_outputs_and_gradients_of_parameters_and_inputs(how: str, combine: Any) -> None:
    x = batch(4).requires_grad_()
    given = {"shared": x[0], "sliced": x.unbind(0), "stacked": [each.clone() for each in x]}[how]
    ensemble = ensemble_of(x=given, combine=combine)
    inputs = 4 if how == "stacked" else 1
    for change in changes(ensemble):
        trial = try_change(ensemble, change, rounds=1)
        assert trial.check.ok and trial.check.tensors == 1 + 4 * 4 + inputs
        assert trial.check.share < 1e-5 and trial.check.tolerance == torch.finfo(torch.float32).eps ** 0.5
        assert trial.before is not None and trial.after is not None and trial.rounds == 1
        assert trial.parameter_bytes == 4 * sum(each.nbytes for each in ensemble.members[0].parameters())


WRONG: dict[str, tuple[str, str, tuple[object, ...]]] = {
    "other outputs": ("return outputs", "return outputs + 0.01", ("outputs",)),
    "no gradient": (
        "return outputs",
        "return outputs.detach() + 0 * parameters['0.weight'].sum()",
        ("'0.bias'", 0),
    ),
    "another gradient": (
        "return outputs",
        "return outputs + (g := parameters['2.bias'].sum()) - g.detach()",
        ("'2.bias'",),
    ),
    "not a number": ("return outputs", "return outputs * float('nan')", ("outputs",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_change_does_not_pass_and_is_not_measured(name: str) -> None:
    before, after, facts = WRONG[name]
    ensemble = ensemble_of()
    change = next(changes(ensemble))
    trial = try_change(ensemble, replace(change, code=change.code.replace(before, after)))
    assert not trial.check.ok and trial.before is None and trial.after is None
    says(trial.check.where, *facts)
    assert not trial.gains and trial.speedup == 1


@pytest.mark.parametrize("made", ["outputs[:1]", "outputs.unbind(0)"])
def test_outputs_of_another_shape_or_number_are_refused(made: str) -> None:
    ensemble = ensemble_of()
    change = next(changes(ensemble))
    with pytest.raises(RuntimeError, match="shape|lengths|tensors"):
        try_change(ensemble, replace(change, code=change.code.replace("return outputs", f"return {made}")))


def test_what_an_unused_parameter_lacks_is_zeros_in_a_stack() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x)
            return out

    ensemble = ensemble_of(Unused)
    (change,) = changes(ensemble)
    assert try_change(ensemble, change, rounds=1).check.ok


class Attention(nn.Module):
    """The gradient of the keys' bias is zero, but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.key(x).mT).softmax(-1) @ self.value(x)


def test_what_should_be_zero_may_be_any_noise() -> None:
    ensemble = ensemble_of(Attention)
    (change,) = changes(ensemble)
    assert try_change(ensemble, change, rounds=1).check.ok
    halved = change.code.replace(
        "return outputs", "return outputs + 0.1 * (b := parameters['key.bias'].sum()) - 0.1 * b.detach()"
    )
    check = try_change(ensemble, replace(change, code=halved), rounds=1).check
    assert not check.ok
    says(check.where, "'key.bias'")


def test_precision_decides_what_is_allowed() -> None:
    ensemble = ensemble_of(lambda: perceptron().double(), batch().double())
    trial = try_change(ensemble, next(changes(ensemble)), rounds=1)
    assert trial.check.ok and trial.check.tolerance < 2e-8


def test_memory_is_that_of_a_forward_and_backward_as_it_is_measured_elsewhere() -> None:
    model, x = Members(perceptron), batch()
    weights = torch.randn(4, 3, WIDTH)
    ensemble = only(lambda: (model(x) * weights).sum(), model)
    trial = try_change(ensemble, next(changes(ensemble)), rounds=1)
    model.zero_grad()
    run = ts.profile(lambda: (model(x) * weights).sum())
    assert trial.before is not None and run.timeline is not None
    # The whole program also computes the product with the weights and its gradient, and frees the outputs.
    assert abs(run.timeline.peak_bytes - trial.before.peak_bytes) <= weights.nbytes
    assert trial.before.peak_bytes > 4 * sum(each.nbytes for each in model.members[0].parameters())


@pytest.mark.parametrize("fails", [False, True])
def test_gradients_and_random_numbers_are_put_back(fails: bool) -> None:
    ensemble = ensemble_of()
    parameters = [each for member in ensemble.members for each in member.parameters()]
    for number, parameter in enumerate(parameters):
        parameter.grad = None if number % 2 else torch.full_like(parameter, number)
    grads = [parameter.grad for parameter in parameters]
    copies = [None if grad is None else grad.clone() for grad in grads]
    state, pythons = torch.get_rng_state(), random.getstate()
    change = next(changes(ensemble))
    if fails:
        code = change.code.replace("return outputs", "torch.rand(3); raise KeyError('of the change')")
        with pytest.raises(KeyError, match="of the change"):
            try_change(ensemble, replace(change, code=code))
    else:
        try_change(ensemble, change, rounds=1)
    for parameter, grad, copy in zip(parameters, grads, copies, strict=True):
        assert parameter.grad is grad
        assert grad is None or (copy is not None and torch.equal(grad, copy))
    assert torch.equal(state, torch.get_rng_state()) and pythons == random.getstate()


def test_it_runs_where_gradients_are_off() -> None:
    ensemble = ensemble_of()
    with torch.no_grad():
        assert try_change(ensemble, next(changes(ensemble)), rounds=1).check.ok


def cost(low: float, middle: float, high: float) -> Cost:
    spread = Spread(low, middle, high)
    return Cost(spread, spread, spread, 100, 200)


def trial_of(before: Cost, after: Cost) -> Trial:
    return Trial(Change("vmap", "", "model"), Deviation(0.0, "outputs", 1e-3, 1), before, after, 7, 0)


@pytest.mark.parametrize(
    ("before", "after", "gains", "steady"),
    [
        ((90, 100, 110), (45, 50, 55), True, True),
        ((99, 100, 101), (96, 97, 98), False, True),  # 3 % are not worth a change
        ((80, 100, 110), (60, 80, 85), False, True),  # the middle halves overlap
        ((90, 100, 110), (95, 105, 115), False, True),
        ((40, 100, 200), (10, 20, 30), True, False),
    ],
)
def test_a_gain_is_more_than_the_times_spread(before: Any, after: Any, gains: bool, steady: bool) -> None:
    trial = trial_of(cost(*before), cost(*after))
    assert (trial.gains, trial.steady) == (gains, steady)
    assert trial.speedup == before[1] / after[1]
