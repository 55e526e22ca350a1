from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tapescope.engine.diagnose.output_combination import Combination

from ..ensemble_programs import Members, batch, only, perceptron

COMBINED: dict[str, tuple[Callable[[Sequence[Tensor]], Tensor], Combination]] = {
    "stacked": (torch.stack, Combination("stacked")),
    "stacked along the last": (lambda outputs: torch.stack(list(outputs), -1), Combination("stacked", 2)),
    "one below the other": (torch.cat, Combination("concatenated")),
    "side by side": (lambda outputs: torch.cat(list(outputs), -1), Combination("concatenated", 1)),
    "summed": (sum, Combination("summed")),  # type: ignore[dict-item]
    "summed in a tree": (lambda o: (o[0] + o[1]) + (o[2] + o[3]), Combination("summed")),
    "averaged": (lambda outputs: torch.stack(list(outputs)).mean(0), Combination("averaged")),
    "averaged over rows": (lambda outputs: torch.stack(list(outputs)).mean(1), Combination("stacked")),
    "kept dimension": (lambda outputs: torch.stack(list(outputs)).mean(0, keepdim=True), Combination("stacked")),
    "in another order": (lambda outputs: torch.stack(list(outputs)[::-1]), Combination("listed")),
    "among others": (lambda outputs: torch.stack([*outputs, torch.ones(3, 6)]), Combination("listed")),
    "a part of them": (lambda o: torch.stack(list(o)[:2]).sum() + o[2].sum() + o[3].sum(), Combination("listed")),
    "one counted twice": (lambda o: sum(o) + o[0], Combination("listed")),
    "one weighted": (lambda o: torch.add(o[0] + o[1] + o[2], o[3], alpha=2), Combination("listed")),
    "with a constant": (lambda o: (o[0] + torch.ones(6)) + o[1] + o[2] + o[3], Combination("listed")),
    "with a number": (lambda o: (o[0] + 1) + o[1] + o[2] + o[3], Combination("listed")),
    "side by side with others": (lambda o: torch.cat([*o, torch.ones(1, 6)]), Combination("listed")),
    "then a constant": (lambda o: o[0] + o[1] + o[2] + o[3] + torch.ones(5, 3, 6), Combination("summed")),
}


@pytest.mark.parametrize("name", COMBINED)
def test_what_a_forward_makes_of_outputs_is_read_from_its_graph(name: str) -> None:
    combine, expected = COMBINED[name]
    model = Members(perceptron, combine=combine)
    assert only(lambda: model(batch()).square().sum()).combination == expected


@pytest.mark.parametrize("name", [name for name, (_, made) in COMBINED.items() if made.made != "listed"])
def test_its_code_makes_the_same_of_one_tensor_and_its_gradient_is_autograds(name: str) -> None:
    found = COMBINED[name][1]
    outputs = [torch.randn(3, 6, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    made = found.of(outputs)
    assert isinstance(made, Tensor)
    assert torch.equal(made, eval(found.code("x"), {"x": torch.stack(outputs)}))
    weights = torch.randn_like(made)
    given = torch.autograd.grad(made, outputs, weights)
    (gradient,) = found.gradient(given)
    torch.testing.assert_close(gradient, weights)
