"""Verbs called in a watched loop: what they undo is not the loop's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.training.loop_observers import TrainingWatch

STEPS = 12
AT = 5  # the step in which a verb is called
X = torch.randn(STEPS, 8, 8, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, x: Tensor = X[0]) -> Tensor:
    return 3 * model(x).square().mean()


def fits(model: nn.Module) -> object:
    return ts.fits(model, lambda size=8: X[0, :size], lambda each: torch.optim.Adam(each), "8GB", loss_of=loss_of)


VERBS: dict[str, Callable[[nn.Module], object]] = {
    "advise": lambda model: ts.advise(lambda: loss_of(model)),
    "assert_peak": lambda model: ts.assert_peak(lambda: loss_of(model), "8 MiB", optimizer=torch.optim.Adam),
    "compare": lambda model: ts.compare(lambda: loss_of(model), repetitions=1),
    "find_nan": lambda model: ts.find_nan(lambda: loss_of(model)),
    "find_order_dependence": lambda model: ts.find_order_dependence(lambda: loss_of(model)),
    "find_unused": lambda model: ts.find_unused(lambda: loss_of(model), model),
    "fits": fits,
    "plan_recompute": lambda model: ts.plan_recompute(lambda: loss_of(model), budget=0.5),
    "record_forward": lambda model: ts.record_forward(lambda: loss_of(model)),
}


def watched(verb: Callable[[nn.Module], object] = lambda model: None, backward: str = "torch") -> ts.types.Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with ts.training() as training:
        for step in range(STEPS):
            if step == AT:
                verb(model)
            loss = loss_of(model, X[step])
            if backward == "torch":
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                with ts.debug(loss, engine=backward) as session:  # type: ignore[arg-type]
                    session.run()
            if step == AT:
                verb(model)
            optimizer.step()
            optimizer.zero_grad()
            if step == AT:
                verb(model)
    return training


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_undoes_its_runs_changes_nothing_that_is_found_or_measured(verb: str) -> None:
    plain, beside = watched(), watched(VERBS[verb])
    assert beside.steps == plain.steps == STEPS
    assert beside.findings == plain.findings == []
    assert beside.notes == plain.notes == []
    for table in ("norms", "steps"):
        expected, found = plain.to_pandas(table), beside.to_pandas(table)
        assert len(expected) >= STEPS and expected.equals(found)


@pytest.mark.parametrize("verb", VERBS)
def test_modules_that_a_verb_calls_are_not_followed(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str] = []
    for name in ("_forward_begins", "_module_ends"):
        original = getattr(TrainingWatch, name)
        monkeypatch.setattr(
            TrainingWatch, name, lambda *given, name=name, original=original: followed.append(name) or original(*given)
        )
    watched()
    plain = followed.copy()
    followed.clear()
    watched(VERBS[verb])
    assert len(plain) == STEPS * (1 + 4)  # each forward calls the model and its three modules
    assert followed == plain


@pytest.mark.parametrize("engine", ["direct", "native"])
def test_norms_of_stepped_backwards_are_those_of_the_bare_loop(engine: str) -> None:
    plain, stepped = watched(), watched(backward=engine)
    assert stepped.steps == STEPS and not stepped.findings and not stepped.notes
    assert plain.to_pandas("norms").equals(stepped.to_pandas("norms"))
