"""Steps that modify parameters without a version: backwards with wrong gradients are found, with the size of PyTorch's
own difference; others are not reported."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.training import unversioned_writes as data_writes
from tapescope.tests.says import Snapshots, says

MODIFIED = "inplace operation"  # of PyTorch's error


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ts.training")
        yield


def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)),
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
    )


def gan(steps: int, kind: type[Any] = Adam, lr: float = 0.1, **options: Any) -> tuple[nn.Module, nn.Module]:
    """Train a GAN whose discriminator steps between the generator's forward and its backward."""
    made, judge = pair()
    of_judge, of_made = kind(judge.parameters(), lr, **options), kind(made.parameters(), lr, **options)
    for _ in range(steps):
        fake = made(torch.randn(8, 4))
        g_loss = -judge(fake).mean()
        d_loss = judge(fake.detach()).mean() - judge(torch.randn(8, 4)).mean()
        of_judge.zero_grad()
        d_loss.backward()
        of_judge.step()
        of_made.zero_grad()
        g_loss.backward()
        of_made.step()
    return made, judge


def silent(training: ts.types.Training) -> list[Any]:
    return [each for each in training.findings if each.kind == "silent write"]


def numbers(found: object) -> list[str]:
    """Return the numbers in the text that are not part of a name or a place: of other parameters, and of the
    differences."""
    return re.findall(r"(?<![\w.:-])\d+(?:\.\d+)?(?:e[+-]\d+)?(?![\w.])|(?<![\w.:-])\d+\.\d+", str(found))


@pytest.mark.parametrize("kind", [Adam, SGD])
def test_a_gan_whose_discriminator_steps_fused_before_the_generators_backward(
    kind: type[Any], snapshot: Snapshots
) -> None:
    with ts.training() as training:
        gan(2, kind, fused=True)
    (found,) = silent(training)
    assert found.certain and found.step == 0 and found.last_step == 1
    assert found.tensor == "Sequential_2.2.weight" and found.module == "Sequential_2.2"
    assert found.at is not None and found.at.startswith("test_unversioned_writes.py:")
    says(found, f"{kind.__name__}.step()", "fused", found.at, "Sequential_2.2.weight", 1)
    says(found, "AddmmBackward0", "Sequential", "mat2", "foreach=True")
    if kind is Adam:
        snapshot("training", found)
    assert not training.notes


def test_that_gradient_is_wrong_and_the_training_leaves_it_as_it_was() -> None:
    plain = gan(3, fused=True)
    with ts.training():
        watched = gan(3, fused=True)
    for one, other in zip(plain, watched, strict=True):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine, theirs) and torch.equal(mine.grad, theirs.grad)
    made, judge = pair()
    optimizer = Adam(judge.parameters(), 0.1, fused=True)
    with ts.training() as training:
        fake = made(torch.ones(8, 4))
        g_loss = -judge(fake).mean()
        right = torch.autograd.grad(g_loss, list(made.parameters()), retain_graph=True)
        judge(fake.detach()).mean().backward()
        optimizer.step()
        g_loss.backward()
    assert len(silent(training)) == 1
    off = max(
        float((parameter.grad - gradient).norm() / gradient.norm())
        for parameter, gradient in zip(made.parameters(), right, strict=True)
    )
    assert off > 0.1, "PyTorch gives another gradient, and says nothing"


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}])
@pytest.mark.parametrize("kind", [Adam, SGD])
def test_where_pytorch_raises_the_step_is_named_in_its_error(kind: type[Any], options: dict[str, bool]) -> None:
    with ts.training() as training, pytest.raises(RuntimeError, match=MODIFIED):
        gan(2, kind, **options)
    assert silent(training) == []


class WritesData(torch.optim.Optimizer):
    """An optimizer that writes through .data, as old ones do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in self.param_groups[0]["params"]:
            each.data.add_(each.grad.data, alpha=-0.1)


def test_an_optimizer_that_writes_through_data_is_found_too() -> None:
    made, judge = pair()
    optimizer = WritesData(judge.parameters())
    with ts.training() as training:
        g_loss = judge(made(torch.randn(8, 4))).mean()
        judge(torch.randn(8, 4)).mean().backward()
        optimizer.step()
        g_loss.backward()
    (found,) = silent(training)
    assert found.certain and "WritesData.step() at" in str(found)


def data(model: nn.Module) -> None:
    for each in model.parameters():
        each.data.mul_(2)


def rows_of_data(model: nn.Module) -> None:
    for each in model.parameters():
        each.data[0] = 3


def many_at_once(model: nn.Module) -> None:
    torch._foreach_mul_([each.data for each in model.parameters()], 2)


WRITES = {"mul_": data, "__setitem__": rows_of_data, "_foreach_mul_": many_at_once}


def between(write: Callable[[], object], keep: Any, **options: Any) -> tuple[ts.types.Training, float]:
    """Writes between forward and backward; also by how much the gradient is off then."""
    made, judge = pair()
    if keep is not None:
        kept = [each.detach().numpy() for each in judge.parameters()]
    x = torch.ones(8, 4)
    (right,) = torch.autograd.grad(judge(made(x)).mean(), [made[2].weight])
    with ts.training(**options) as training:
        if keep is not None:
            kept = [each.detach().numpy() for each in judge.parameters()]
        loss = judge(made(x)).mean()
        write(judge) if keep is None else write(kept)
        loss.backward()
    return training, float((made[2].weight.grad - right).abs().max())


@pytest.mark.parametrize("name", WRITES)
def test_a_write_through_data_before_the_backward_is_found_where_writes_are_watched(
    name: str, snapshot: Snapshots
) -> None:
    training, off = between(WRITES[name], None, writes=True)
    assert off > 0
    (found,) = silent(training)
    assert found.certain and found.tensor == "Sequential_2.2.weight"
    assert found.at is not None and found.at.startswith("test_unversioned_writes.py:")
    says(found, name, found.at, "Sequential_2.2.weight", "mat2", ".data", "torch.no_grad()")
    others, off_by = numbers(found)
    assert others == "1" and float(off_by) > 0
    if name == "mul_":
        snapshot("training", re.sub(re.escape(off_by), "NUMBER", str(found)))
    assert not training.notes
    assert silent(between(WRITES[name], None)[0]) == []


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_other_data_under_a_parameter_are_found_where_the_graph_takes_them() -> None:
    for model, is_off in ((Scale(), True), (nn.Linear(4, 4), False)):  # whose graph has a view, with the old bytes
        x = torch.ones(2, 4, requires_grad=True)
        (right,) = torch.autograd.grad(model(x).sum(), x)
        with ts.training(writes=True) as training:
            loss = model(x).sum()
            for each in model.parameters():
                each.data = each.data - 1
            loss.backward()
        assert torch.equal(x.grad, right) is not is_off
        found = silent(training)
        assert len(found) == is_off
        for each in found:
            says(each, ".data =", each.at)


def test_a_tensor_that_is_given_the_bytes_of_another_one_writes_nothing_into_these() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    x = torch.ones(2, 4, requires_grad=True)
    with ts.training(model, writes=True) as training:
        loss = model(x).sum()
        other.weight.data = model.weight.data
        loss.backward()
    assert not silent(training)


def test_other_data_are_found_wherever_in_their_bytes_they_are() -> None:
    weight = torch.ones(3, requires_grad=True)
    x = torch.ones(3, requires_grad=True)
    with ts.training(writes=True) as training:
        loss = (weight * x).sum()
        weight.data = torch.arange(6.0)[3:]
        loss.backward()
    (found,) = silent(training)
    says(found, ".data =", 4)
    assert numbers(found) == ["4"] and x.grad is not None and x.grad.tolist() == [3, 4, 5]


def test_a_mask_that_is_written_is_found_and_nobody_says_how_far_it_is_off(snapshot: Snapshots) -> None:
    weight, mask = torch.ones(3, requires_grad=True), torch.tensor([True, False, True])
    with ts.training(writes=True) as training:
        loss = torch.where(mask, weight, weight * 2).sum()
        mask.data.logical_not_()
        loss.backward()
    (found,) = silent(training)
    assert numbers(found) == [] and not training.notes
    snapshot("training", found)


def test_a_write_into_a_ranks_part_is_found(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        ranks = init_device_mesh("cpu", (1,))
        weight, x = (distribute_tensor(torch.ones(4), ranks, [Shard(0)]).requires_grad_() for _ in range(2))
        with ts.training(writes=True) as training:
            loss = (weight * x).sum()
            weight.data.mul_(3)
            loss.backward()
    finally:
        torch.distributed.destroy_process_group()
    assert numbers(silent(training)[0]) == ["2"] and not training.notes


def test_an_array_of_numpy_that_is_written_before_the_backward_is_found(snapshot: Snapshots) -> None:
    def write(kept: Any) -> None:
        for each in kept:
            each *= 2

    training, off = between(write, True, writes=True)
    assert off > 0
    (found,) = silent(training)
    assert found.certain
    says(found, "NumPy", "Sequential_2.2.weight", ".numpy().copy()")
    others, off_by = numbers(found)
    assert others == "1" and float(off_by) > 0
    snapshot("training", re.sub(re.escape(off_by), "NUMBER", str(found)))
    training, off = between(lambda kept: None, True, writes=True)
    assert off == 0 and silent(training) == []


def test_arrays_that_are_no_more_are_forgotten_also_where_no_module_runs() -> None:
    weight = torch.ones(3, requires_grad=True)
    with ts.training(writes=True) as training:
        parts = watched_parts(training)
        for _ in range(4):
            loss = (weight * weight).sum()
            float(loss.detach().numpy())
            loss.backward()
        assert not parts._arrays


def test_a_write_under_a_capture_is_found_too() -> None:
    made, judge = pair()
    with ts.training() as training:
        with ts.capture(every_call=True):
            loss = judge(made(torch.ones(8, 4))).mean()
            data(judge)
        loss.backward()
    assert len(silent(training)) == 1


def test_weights_that_were_put_back_before_the_backward_are_no_finding() -> None:
    """Like a loop that evaluates with averaged weights."""
    made, judge = pair()
    before = copy.deepcopy(judge.state_dict())
    with ts.training(writes=True) as training:
        loss = judge(made(torch.ones(8, 4))).mean()
        data(judge)
        with torch.no_grad():
            judge(torch.ones(8, 4))
        for name, each in judge.named_parameters():
            each.data.copy_(before[name])
        loss.backward()
    assert silent(training) == []


def test_copies_of_what_was_written_go_with_the_graph_and_are_bounded() -> None:
    _, judge = pair()
    with ts.training(writes=True) as training:
        kept = []
        parts = watched_parts(training)
        for _ in range(6):
            kept.append(judge(torch.ones(8, 4)))
            data(judge)
        copied = [each for step in parts.writes for each in step.written.values()]
        assert len(copied) == 2 * len(list(judge.parameters()))
        kept.clear()
        judge(torch.ones(8, 4)).mean().backward()
        assert not parts.writes


def watched_parts(training: ts.types.Training) -> Any:
    (part,) = [each for each in training._watcher._parts if type(each).__name__ == "InvalidGraphs"]  # type: ignore[union-attr]
    return part._silent.by_others  # type: ignore[union-attr]


def test_a_step_that_wrote_nothing_new_is_none() -> None:
    with ts.training() as training:
        gan(2, lr=0.0, fused=True)
    assert silent(training) == []


def test_a_convolution_of_data_does_not_read_its_weight_again() -> None:
    model = nn.Conv2d(1, 1, 3)
    optimizer = SGD(model.parameters(), 0.1, fused=True)
    x = torch.randn(1, 1, 5, 5)
    with ts.training() as training:
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        before = model.weight.grad.clone()
        loss.backward()
    assert torch.equal(model.weight.grad, 2 * before) and silent(training) == []


def test_what_leads_to_none_of_the_inputs_is_not_run() -> None:
    made, judge = pair()
    optimizer = SGD(judge.parameters(), 0.1, fused=True)
    with ts.training() as training:
        loss = judge(made(torch.randn(8, 4))).mean()
        judge(torch.randn(8, 4)).mean().backward()
        optimizer.step()
        loss.backward(inputs=[judge[2].bias], retain_graph=True)
        assert silent(training) == []
        loss.backward(inputs=list(made.parameters()))
        assert len(silent(training)) == 1


def test_without_modules_it_is_found_but_nobody_knows_what_was_there() -> None:
    w = torch.ones(3, requires_grad=True)
    optimizer = SGD([w], 0.1, fused=True)
    with ts.training() as training:
        for _ in range(2):
            x = torch.ones(3, requires_grad=True)
            first, second = (x * w).sum(), (x * w).pow(2).sum()
            first.backward()
            optimizer.step()
            second.backward()
    (found,) = silent(training)
    assert not found.certain and found.last_step is not None


def ordinary(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()


def accumulation(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    total = torch.zeros(())
    for number in range(6):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        total += loss.detach()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def critic_steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    made = nn.Linear(4, 4)
    other = Adam(made.parameters(), fused=True)
    for _ in range(3):
        for _ in range(3):
            optimizer.zero_grad()
            fake = made(torch.randn(8, 4)).detach()
            (model(fake).mean() - model(torch.randn(8, 4)).mean()).backward()
            optimizer.step()
        other.zero_grad()
        (-model(made(torch.randn(8, 4))).mean()).backward()
        other.step()


def moving_average(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    average = copy.deepcopy(model).requires_grad_(False)
    for _ in range(3):
        with torch.no_grad():
            target = average(torch.ones(8, 4))
        (model(torch.ones(8, 4)) - target).pow(2).mean().backward()
        optimizer.step()
        for mine, kept in zip(model.parameters(), average.parameters(), strict=True):
            kept.data.mul_(0.9).add_(mine.data, alpha=0.1)


def kept_outputs(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    kept = []
    for _ in range(4):
        out = model(torch.randn(8, 4))
        out.mean().backward()
        optimizer.step()
        kept.append(out)


def never_run(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    kept = []
    for _ in range(4):
        kept.append(model(torch.randn(8, 4)))
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()


def checkpointed(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        x = torch.randn(8, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def frozen(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[0].requires_grad_(False)
    ordinary(model, optimizer)
    model[0].requires_grad_(True)


def tied(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        loss = model(model(torch.randn(8, 4)).expand(8, 4)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for number in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).mean() * (float("inf") if number == 2 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def truncated(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    cell = nn.LSTMCell(4, 4)
    both = Adam([*cell.parameters(), *model.parameters()], fused=True)
    hidden = None
    for _ in range(3):
        hidden = cell(torch.randn(2, 4), hidden)
        model(hidden[0]).mean().backward()
        both.step()
        hidden = tuple(each.detach() for each in hidden)


def with_closure(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def newton_like(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with_closure(model, torch.optim.LBFGS(model.parameters(), max_iter=3))


def gradient_penalty(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        x = torch.randn(8, 4, requires_grad=True)
        out = model(x).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        (out + gradient.pow(2).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


HEALTHY: list[Callable[[nn.Module, torch.optim.Optimizer], None]] = [
    *(ordinary, accumulation, critic_steps, moving_average, kept_outputs, never_run, checkpointed, frozen, tied),
    *(scaled, truncated, with_closure, newton_like, gradient_penalty),
]


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("loop", HEALTHY, ids=lambda loop: loop.__name__)
def test_healthy_loops_are_left_alone_and_as_they_were(loop: Callable[..., None], fused: bool, writes: bool) -> None:
    def run() -> nn.Module:
        _, model = pair()
        loop(model, Adam(model.parameters(), 0.01, fused=fused))
        return model

    plain = run()
    with ts.training(writes=writes) as training:
        watched = run()
    assert silent(training) == [] and not training.notes
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)


def test_arrays_that_a_loop_keeps_are_not_all_copied_at_each_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Tensor] = []
    bytes_of = data_writes._bytes_of
    monkeypatch.setattr(data_writes, "_bytes_of", lambda tensor: copied.append(tensor) or bytes_of(tensor))
    model, kept = nn.Linear(2, 2), []
    with ts.training(model, writes=True):
        for _ in range(40):
            out = model(torch.ones(1, 2))
            kept.append(out.detach().numpy())
            out.sum().backward()
        copied.clear()
        model(torch.ones(1, 2)).sum().backward()
    assert 0 < len(copied) <= 32
