from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tapescope.engine.diagnose.find_ensembles import Ensemble
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, says

from ..ensemble_programs import WIDTH, Members, batch, only, perceptron, searched


def of(model: nn.Module, x: Tensor | Sequence[Tensor] | None = None) -> Callable[[], Tensor]:
    given = batch() if x is None else x
    return lambda: model(given).square().sum()


def test_the_ensemble_of_the_thread_is_found_with_all_that_its_members_took() -> None:
    model, make_loss = workload("ensemble").build()
    found = only(make_loss, model)
    assert len(found) == 16 and found.title == "16 × members.*" and found.root is model
    assert found.members == tuple(model.get_submodule("members"))
    assert found.paths == tuple(f"members.{number}" for number in range(16))
    (argument,) = found.arguments
    assert (argument.name, argument.how, argument.keyword) == ("x", "shared", None)
    assert argument.value.shape == (32, 64) and not argument.requires_grad
    assert [gradient.shape for gradient in found.gradients] == [(32, 1)] * 16
    assert all(end > start for start, end in found.ranges)


def test_the_outermost_module_is_the_root_and_without_one_members_go_by_their_class() -> None:
    model = nn.Sequential(Members(perceptron))
    found = only(of(model))
    assert found.root is model and found.paths[1] == "0.members.1"
    members = [perceptron() for _ in range(3)]
    alone = only(lambda: torch.stack([member(batch()) for member in members]).sum())
    assert alone.root is None and alone.paths == () and alone.title == "3 × Sequential"


HOW: dict[str, tuple[Callable[[Tensor], Sequence[Tensor]], str]] = {
    "unbind": (lambda x: x.unbind(0), "sliced"),
    "chunk": (lambda x: x.flatten(0, 1).chunk(4), "sliced"),
    "columns": (lambda x: x.transpose(0, 1).flatten(1).chunk(4, 1), "sliced"),
    "backwards": (lambda x: x.unbind(0)[::-1], "stacked"),
    "copies": (lambda x: [part.clone() for part in x], "stacked"),
    "overlapping": (lambda x: [x[0]] * 4, "shared"),
    "views of one": (lambda x: [x[0] for _ in range(4)], "shared"),
    "a list of one": (lambda x: [x[0], x[1], x[0], x[1]], "stacked"),
}


@pytest.mark.parametrize("name", HOW)
def test_members_share_one_input_take_its_parts_or_each_their_own(name: str) -> None:
    split, how = HOW[name]
    x = batch(4).requires_grad_()
    parts = list(split(x))
    model = Members(perceptron)
    found = only(lambda: model(parts).square().sum())
    (argument,) = found.arguments
    assert argument.how == how and argument.requires_grad
    for number, part in enumerate(parts):
        assert torch.equal(argument.of(number), part)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, features: Tensor, *, lambda_: Tensor, power: int = 1) -> Tensor:
        out: Tensor = self.linear(features) * lambda_**power
        return out


def test_arguments_keep_their_names_and_how_they_were_given() -> None:
    members = nn.ModuleList(Scaled() for _ in range(3))
    scale = torch.full((), 2.0, requires_grad=True)
    x = batch()
    found = only(lambda: torch.stack([member(x, lambda_=scale, power=2) for member in members]).sum(), members)
    names = [(each.name, each.keyword, each.how, each.requires_grad) for each in found.arguments]
    assert names == [
        ("features", None, "shared", False),
        ("lambda_", "lambda_", "shared", True),
        ("power", "power", "plain", False),
    ]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT
        return x + scores.softmax(-1) @ self.value(x)


def test_projections_side_by_side_are_an_ensemble_told_once_for_all_layers() -> None:
    model = nn.Sequential(*(Layer() for _ in range(3)))
    found = only(of(model))
    assert found.title == "3 × 0.query, 0.key and 0.value"
    assert found.more == ("1.query, 1.key and 1.value", "2.query, 2.key and 2.value")


class Tied(Members):
    """Its second and third members see what the first made."""

    def forward(self, x: Any) -> Tensor:
        first, second, third, fourth = self.members
        made = first(x)
        return made + second(made) + third(made.detach()) + fourth(x)


def test_what_depends_on_a_member_through_a_detach_too_is_no_ensemble_with_it() -> None:
    model = Tied(perceptron)
    found, refused = searched(of(model))
    assert not refused
    assert [ensemble.paths for ensemble in found] == [("members.0", "members.3"), ("members.1", "members.2")]


def test_members_inside_of_members_are_not_told_again() -> None:
    found = only(of(Members(lambda: Members(perceptron, 2))))
    assert len(found) == 4


def test_a_chain_in_a_sequential_is_nothing_to_tell() -> None:
    assert searched(of(nn.Sequential(perceptron(), perceptron(), perceptron()))) == ([], [])


class OneByOne(Members):
    def forward(self, x: Any) -> Tensor:
        for member in self.members:
            x = member(x)
        out: Tensor = x
        return out


class Twice(Members):
    def forward(self, x: Any) -> Tensor:
        return torch.stack([member(x) for member in (*self.members, *self.members)])


class Unwrapping(Members):
    def forward(self, x: Any) -> Tensor:
        return torch.stack([member(x)[0] for member in self.members])


class WithWeights(Members):
    def forward(self, x: Any) -> Tensor:
        return torch.stack([member(x, lambda_=number) for number, member in enumerate(self.members)])


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return self.linear(x), 1


class Aside(nn.Linear):
    """Its output is not the value that reaches the loss."""

    def forward(self, input: Tensor) -> Tensor:
        self.aside = super().forward(input)
        return self.aside.detach()


class Asides(Members):
    def forward(self, x: Any) -> Tensor:
        super().forward(x)
        return torch.stack([member.aside for member in self.members])


class Overwriting(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.mul_(2))


class Cloning(Members):
    def forward(self, x: Any) -> Tensor:
        return super().forward([x.clone() for _ in self.members])


def hooked(register: Callable[[nn.Linear], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = Members(perceptron)
        register(model.get_submodule("members.1.0"))  # type: ignore[arg-type]
        return model

    return make


def _sharing() -> nn.Module:
    shared = nn.Linear(WIDTH, WIDTH)
    return Members(lambda: perceptron(nn.ReLU(), shared))


def _of_widths() -> nn.Module:
    width = count(8, 8)

    def make() -> nn.Module:
        hidden = next(width)
        return nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH))

    return Members(make)


def _unlike() -> nn.Module:
    kinds = iter([nn.ReLU, nn.Tanh, nn.SiLU, nn.GELU])
    return Members(lambda: perceptron(next(kinds)()))


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[object, ...]]] = {
    "different shapes": (_of_widths, ("0.weight", "8×6", "16×6", "torch.nn.functional.grouped_mm")),
    "unlike": (_unlike, ()),
    "one by one": (lambda: OneByOne(perceptron), ()),
    "called twice": (lambda: Twice(perceptron), (2,)),
    "a pair": (lambda: Unwrapping(Pair), ("tuple",)),
    "other values": (lambda: WithWeights(Scaled), ("'lambda_'",)),
    "no gradient": (lambda: Asides(lambda: Aside(WIDTH, WIDTH)), ()),
    "dropout": (
        lambda: Members(lambda: perceptron(nn.Dropout(0.5))),
        ("Dropout", 'randomness="different"', "eval()"),
    ),
    "batch norm": (
        lambda: Members(lambda: perceptron(nn.BatchNorm1d(WIDTH))),
        ("'1.num_batches_tracked'", "BatchNorm"),
    ),
    "writes its input": (
        lambda: Cloning(lambda: Overwriting(WIDTH, WIDTH)),
        (),
    ),
    "a forward hook": (
        hooked(lambda linear: linear.register_forward_hook(lambda *given: None)),
        ("Linear '0'",),
    ),
    "a backward hook": (
        hooked(lambda linear: linear.register_full_backward_pre_hook(lambda *given: None)),
        ("Linear '0'",),
    ),
    "a parameter's hook": (
        hooked(lambda linear: linear.weight.register_hook(lambda gradient: None)),  # type: ignore[no-untyped-call]
        ("'0.weight'",),
    ),
    "a hook after accumulation": (
        hooked(lambda linear: linear.bias.register_post_accumulate_grad_hook(lambda parameter: None)),
        ("'0.bias'",),
    ),
    "a shared parameter": (_sharing, ("'2.weight'",)),
}


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("name", REFUSED)
def test_what_looks_like_an_ensemble_and_is_none_is_refused_with_the_reason(name: str, snapshot: Snapshots) -> None:
    make, facts = REFUSED[name]
    found, (refused,) = searched(of(make()))
    assert not found
    says(refused.why, *facts)
    snapshot("advise", refused.why)
    assert refused.title == "4 × members.*"


def test_experts_that_take_unequal_rows_are_refused_with_what_takes_them(snapshot: Snapshots) -> None:
    model, make_loss = workload("mixture_of_experts").build()
    found, (refused,) = searched(make_loss, model)
    assert not found and refused.title == "8 × experts.each.*"
    says(refused.why, "'x'", "torch.nn.functional.grouped_mm")
    snapshot("advise", re.sub(r"\d+×32((, | and )\d+×32)*", "SHAPES", refused.why))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Members(lambda: perceptron(nn.Dropout(0.5)).eval()),
        lambda: Members(lambda: perceptron(nn.BatchNorm1d(WIDTH)).eval()),
        lambda: Members(lambda: perceptron(nn.LayerNorm(WIDTH))),
        lambda: Members(lambda: weight_norm(nn.Linear(WIDTH, WIDTH))),  # a separate class for each
    ],
    ids=["dropout in eval", "batch norm in eval", "layer norm", "weight norm"],
)
def test_what_only_reads_its_buffers_and_draws_nothing_is_an_ensemble(make: Callable[[], nn.Module]) -> None:
    assert len(only(of(make()))) == 4


class Named(nn.Linear):
    name = ""


def test_plain_attributes_that_differ_are_named() -> None:
    model = Members(lambda: Named(WIDTH, WIDTH))
    for number, member in enumerate(model.members):
        member.name = f"member {number}"
    assert only(of(model)).differing == ("name",)
    assert only(of(Members(perceptron))).differing == ()


def test_nothing_stays_on_the_members() -> None:
    model = Members(perceptron)
    only(of(model))
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._backward_hooks
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks


def test_what_the_members_made_goes_with_the_search_and_waits_for_no_collector() -> None:
    made: list[weakref.ref[Tensor]] = []
    model = Members(perceptron)
    for member in model.children():
        for each in member.modules():
            each.register_forward_hook(lambda module, given, output: made.append(weakref.ref(output)))
    gc.collect()
    gc.disable()
    try:
        searched(of(model), model)
        assert made and not any(output() is not None for output in made)
    finally:
        gc.enable()


def test_what_was_given_is_a_copy() -> None:
    x = batch()
    found: Ensemble = only(of(Members(perceptron), x))
    x.zero_()
    assert found.arguments[0].value.count_nonzero() and not found.arguments[0].value.requires_grad
