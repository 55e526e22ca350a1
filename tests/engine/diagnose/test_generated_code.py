from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tapescope.engine.diagnose.find_ensembles import Ensemble
from tapescope.engine.diagnose.generated_code import Change, changes
from tapescope.tests.says import Snapshots

from ..ensemble_programs import WIDTH, Members, batch, only, perceptron


def pasted(change: Change, **given: object) -> dict[str, Any]:
    """The names that a user has who pastes the code below a model or a list of members."""
    assert set(given) == {change.needs}
    namespace: dict[str, Any] = dict(given)
    exec(change.code, namespace)
    return namespace


def found_in(model: nn.Module, x: Tensor | Sequence[Tensor]) -> Ensemble:
    return only(lambda: model(x).square().sum(), model)


BETWEEN: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU("tanh"),
    "elu": lambda: nn.ELU(0.5),
    "leaky relu": lambda: nn.LeakyReLU(0.2),
    "softplus": lambda: nn.Softplus(2, 3),
    "identity": nn.Identity,
}


@pytest.mark.parametrize("between", BETWEEN)
def test_pasted_below_a_model_both_ways_give_what_the_model_gives(between: str) -> None:
    model, x = Members(lambda: perceptron(BETWEEN[between]())), batch()
    found = list(changes(found_in(model, x)))
    assert [change.way for change in found] == ["vmap", "bmm"]
    for change in found:
        torch.testing.assert_close(pasted(change, model=model)["batched"](x), model(x))


def test_the_text_is_what_a_person_would_write(snapshot: Snapshots) -> None:
    model = Members(lambda: perceptron(nn.ReLU()))
    vmap, bmm = changes(found_in(model, batch()))
    for change in (vmap, bmm):
        snapshot("advise", change.code)
    assert "    outputs = torch.vmap(member, in_dims=(0, 0, None))(parameters, buffers, x)\n" in vmap.code
    assert '    x = torch.baddbmm(parameters["0.bias"].unsqueeze(1), x, parameters["0.weight"].mT)\n' in bmm.code
    assert "    x = x.expand(4, *x.shape)" in bmm.code


@pytest.mark.parametrize("combine", [torch.stack, torch.cat, sum, lambda outputs: torch.stack(list(outputs), 1)])
@pytest.mark.parametrize("rows", [(), (2, 5)], ids=["rows", "more dimensions"])
def test_whatever_becomes_of_the_outputs_and_however_many_dimensions(combine: Any, rows: tuple[int, ...]) -> None:
    model, x = Members(perceptron, combine=combine), batch(*rows)
    for change in changes(found_in(model, x)):
        torch.testing.assert_close(pasted(change, model=model)["batched"](x), model(x))


def test_each_its_own_input_is_given_as_a_list_or_as_the_tensor_of_which_they_are_parts() -> None:
    model, x = Members(perceptron), batch(4)
    for change in changes(found_in(model, x.unbind(0))):
        torch.testing.assert_close(pasted(change, model=model)["batched"](x), model(x.unbind(0)))
    own = [each.clone() for each in x]
    for change in changes(found_in(model, own)):
        torch.testing.assert_close(pasted(change, model=model)["batched"](own), model(own))


class Scaled(nn.Module):
    """Its arguments are named as names of the code are, and as words of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, parameters: Tensor, members: Tensor, *, torch: float = 1.0) -> Tensor:
        out: Tensor = self.linear(parameters) * members * torch + self.get_buffer("shift")
        return out


class Scaling(Members):
    def forward(self, x: Any) -> Tensor:
        return torch.stack([member(x, members=x + 1, torch=2.0) for member in self.members])


def test_arguments_by_keyword_and_buffers_are_passed_on_and_taken_names_are_others() -> None:
    model, x = Scaling(Scaled), batch()
    (change,) = changes(found_in(model, x))
    assert '(input_0,), {"members": input_1, "torch": input_2}' in change.code
    # Each member received a separate x + 1.
    torch.testing.assert_close(pasted(change, model=model)["batched"](x, [x + 1] * 4, 2.0), model(x))


def test_members_without_a_root_are_a_list_of_the_users(snapshot: Snapshots) -> None:
    members, x = [perceptron() for _ in range(3)], batch()
    vmap, _ = changes(only(lambda: torch.stack([member(x) for member in members]).sum()))
    snapshot("advise", vmap.code)
    expected = torch.stack([member(x) for member in members])
    torch.testing.assert_close(pasted(vmap, members=tuple(members))["batched"](x), expected)


def test_stacks_of_more_than_linear_layers_are_not_written_by_hand() -> None:
    frozen = Members(perceptron)
    for member in frozen.members:
        member.get_parameter("0.weight").requires_grad_(False)
    for model in (Members(lambda: perceptron(nn.LayerNorm(WIDTH))), Members(lambda: perceptron(nn.PReLU())), frozen):
        assert [change.way for change in changes(found_in(model, batch()))] == ["vmap"]


NASTY = (
    "a b",
    "x;import os",
    "__import__('os')",
    '"""',
    "\\",
    "]#",
    "class",
    "None",
    "_",
    "state_dict_",
    "name\nraise SystemExit",
    "ℌ",
    "5",
    "{x}",
)


class Odd(nn.Module):
    """Members and parameters whose names are not Python identifiers, or have another meaning in Python."""

    def __init__(self, name: str) -> None:
        super().__init__()
        holder = nn.Module()
        for number in range(3):
            member = nn.Sequential()
            member._modules[name] = nn.Linear(WIDTH, WIDTH)
            holder._modules[f"{name}{number}"] = member
        self._modules[name] = holder

    def forward(self, x: Tensor) -> Tensor:
        (holder,) = self._modules.values()
        assert holder is not None
        return torch.stack([member(x) for member in holder.children()])


@pytest.mark.parametrize("name", NASTY)
def test_names_of_modules_are_data_never_code(name: str) -> None:
    model, x = Odd(name), batch()
    found = list(changes(only(lambda: model(x).sum())))
    assert [change.way for change in found] == ["vmap", "bmm"]
    for change in found:
        torch.testing.assert_close(pasted(change, model=model)["batched"](x), model(x))


@pytest.mark.parametrize("name", ["forward", "training", "__import__('os').abort()", "a.b"])
def test_what_get_submodule_can_not_reach_raises_its_error(name: str) -> None:
    model, x = Odd(name), batch()  # add_module() refuses such names
    ensemble = only(lambda: model(x).sum())
    for change in changes(ensemble):
        with pytest.raises(AttributeError, match="has no attribute|is not an nn.Module"), change.run(ensemble):
            pass


def test_names_of_classes_are_data_too() -> None:
    kind = type("Odd\nraise SystemExit('code')  #", (nn.Linear,), {})
    model, x = Members(lambda: kind(WIDTH, WIDTH)), batch()
    for change in changes(found_in(model, x)):
        torch.testing.assert_close(pasted(change, model=model)["batched"](x), model(x))


def test_tracebacks_find_the_lines_while_it_runs_and_nothing_is_left() -> None:
    before = set(linecache.cache)
    model = Members(perceptron)
    ensemble = found_in(model, batch())
    change = next(changes(ensemble))
    with change.run(ensemble) as namespace:
        with pytest.raises(RuntimeError) as raised:
            namespace["batched"](torch.ones(2, 2))
        shown = "".join(traceback.format_exception(raised.value))
    assert "outputs = torch.vmap(member" in shown and "<tapescope's change" in shown
    assert not [name for name in set(linecache.cache) - before if "tapescope's change" in name]
