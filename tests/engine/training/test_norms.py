"""Norms of a loop: equal to PyTorch's own of the same gradients, whatever clips or scales them, and what they say."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional

import tapescope as ts
from tapescope.engine.training.norms import StepTable
from tapescope.tests.says import says

pytestmark = pytest.mark.filterwarnings("ignore:ts.training:UserWarning")


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 1))


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 6, generator=generator)
    return x, x.sum(1, keepdim=True)


def together(tensors: Any) -> float:
    return float(torch.cat([each.detach().flatten() for each in tensors]).norm())


def wanted_of(model: nn.Module, names: list[str], what: str = "grad") -> list[float]:
    parts = dict(model.named_modules())
    return [together(getattr(p, what) for p in parts[name].parameters(recurse=False)) for name in names]


def close(found: Tensor, wanted: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-4, atol=1e-7)


def test_norms_are_those_of_all_gradients_of_a_module_before_they_are_clipped() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clip = torch.nn.utils.clip_grad_norm_
    wanted: list[list[float]] = []
    with ts.training(model, optimizer) as training:
        for step in range(12):
            optimizer.zero_grad()
            for part in range(2):  # accumulated
                x, y = batch(2 * step + part)
                functional.mse_loss(model(x), y).backward()
            wanted.append(wanted_of(model, ["3", "2", "0"]))
            clip(model.parameters(), 0.01)
            torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)
            optimizer.step()
    norms = training.norms
    assert norms.modules == ["3", "2", "0"], "in the backward's order"
    assert norms.steps.tolist() == [[step, step] for step in range(12)]
    for found, each in zip(norms.gradients, wanted, strict=True):
        close(found, each)


def test_weights_and_updates_are_those_of_every_tenth_step() -> None:
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    names = ["3", "2", "0"]
    with ts.training(model, optimizer, every=5) as training:
        for step in range(11):
            optimizer.zero_grad()
            x, y = batch(step)
            functional.mse_loss(model(x), y).backward()
            before = copy.deepcopy(model)
            optimizer.step()
            if step == 5:
                weights = wanted_of(before, names, "data")
                with torch.no_grad():
                    for old, new in zip(before.parameters(), model.parameters(), strict=True):
                        old.copy_(new - old)
                updates = wanted_of(before, names, "data")
    norms = training.norms
    assert norms.sampled_steps[:, 0].tolist() == [0, 5, 10]
    close(norms.weights[1], weights)
    close(norms.updates[1], updates)
    close(norms.ratios[1], [u / w for u, w in zip(updates, weights, strict=True)])


def test_updates_of_a_large_model_are_looked_at_a_few_modules_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapescope.engine.training.norm_watch._MOST_COPIED_BYTES", 200)
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    names = ["3", "2", "0"]
    wanted = []
    with ts.training(model, optimizer, every=5) as training:
        for step in range(8):
            optimizer.zero_grad()
            x, y = batch(step)
            functional.mse_loss(model(x), y).backward()
            before = copy.deepcopy(model)
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(before.parameters(), model.parameters(), strict=True):
                    old.copy_(new - old)
            wanted.append(wanted_of(before, names, "data"))
    norms = training.norms
    assert norms.sampled_steps[:, 0].tolist() == [0, 1, 5, 6]
    for row, (step, modules) in enumerate([(0, ["0"]), (1, ["3", "2"]), (5, ["0"]), (6, ["3", "2"])]):
        places = [names.index(each) for each in modules]
        close(norms.updates[row][places], [wanted[step][each] for each in places])
        assert sum(norms.updates[row] >= 0) == sum(norms.weights[row] >= 0) == len(modules)


def test_copies_of_parameters_take_a_bounded_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapescope.engine.training.norm_watch._MOST_COPIED_BYTES", 2**16)
    model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(1, 128)

    def highest() -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
            for _ in range(3):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        level = peak = 0
        for event in sorted(found.profiler.kineto_results.events(), key=lambda each: each.start_ns()):
            if event.name() == "[memory]":
                level += event.nbytes()
                peak = max(peak, level)
        return peak

    alone = highest()
    optimizer.zero_grad()
    with ts.training(model, optimizer, every=1):
        assert highest() <= alone + 2**16 + 2**14  # of the parameters one in six, and the norms themselves


def test_gradients_of_a_scaled_loss_are_told_without_the_scale() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    wanted, losses = [], []
    with ts.training(model, optimizer) as training:
        for step in range(4):
            x, y = batch(step)
            if step == 2:
                x = x * 1e30  # overflows
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            losses.append(loss.item())
            plain = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
            scaler.scale(loss).backward()
            wanted.append([together(plain[4:6]), together(plain[2:4]), together(plain[0:2])])
            if step == 1:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    for step in (0, 1, 3):
        close(training.norms.gradients[step], wanted[step])
        assert training.norms.losses[step, 0] == pytest.approx(losses[step], rel=1e-4)
    assert training.norms.skipped.tolist() == [False, False, True, False]


def test_each_optimizer_of_a_gan_has_the_gradient_it_steps_with() -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 6), nn.Linear(6, 1)
    makes, judges = torch.optim.Adam(maker.parameters()), torch.optim.SGD(judge.parameters(), lr=0.01)
    wanted = []
    with ts.training([maker, judge], [makes, judges]) as training:
        for _ in range(3):
            judges.zero_grad()
            noise = torch.randn(8, 4)
            functional.softplus(judge(maker(noise).detach())).mean().backward()
            of_judge = together(p.grad for p in judge.parameters())
            judges.step()
            makes.zero_grad()
            functional.softplus(-judge(maker(noise))).mean().backward()  # adds to the judge's gradients, too
            wanted.append({"Linear": together(p.grad for p in maker.parameters()), "Linear_2": of_judge})
            makes.step()
    norms = training.norms
    for row, each in zip(norms.gradients, wanted, strict=True):
        assert dict(zip(norms.modules, row.tolist(), strict=True)) == pytest.approx(each, rel=1e-4)
    assert sorted(norms.optimizers) == ["Adam", "SGD"]
    assert norms.losses.isfinite().all()


def test_a_closure_and_gradients_put_there_by_hand_have_norms_too() -> None:
    model = perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x, y = batch(0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    with ts.training(model, optimizer) as training:
        for _ in range(3):
            optimizer.step(closure)
    assert (training.norms.gradients > 0).all() and len(training.norms) == 3

    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with ts.training(model, plain) as training:
        loss = functional.mse_loss(model(x), y)
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
        ):
            parameter.grad = gradient
        wanted = wanted_of(model, ["3", "2", "0"])
        plain.step()
    assert dict(zip(training.norms.modules, training.norms.gradients[0].tolist(), strict=True)) == pytest.approx(
        dict(zip(["3", "2", "0"], wanted, strict=True)), rel=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_gradients_of_any_dtype_have_norms(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    with ts.training(None, optimizer) as training:
        for _ in range(2):
            parameter.grad = torch.full((3,), 6e4, dtype=dtype)
            optimizer.step()
    (name,) = training.norms.modules
    says(name, "SGD")
    assert training.norms.gradients[0, 0] == pytest.approx(6e4 * math.sqrt(3), rel=0.01), "not infinite in float16"


def test_sparse_gradients_and_modules_without_any() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(10, 4, sparse=True), "unused": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ts.training(model, optimizer) as training:
        for _ in range(2):
            optimizer.zero_grad()
            model["table"](torch.tensor([1, 1, 3])).square().sum().backward()
            wanted = float(model["table"].weight.grad.to_dense().norm())
            optimizer.step()
    row = dict(zip(training.norms.modules, training.norms.gradients[-1].tolist(), strict=True))
    assert row == {"table": pytest.approx(wanted, rel=1e-4), "unused": -1.0}


def test_nothing_is_kept_alive_and_nothing_of_the_loop_is_altered() -> None:
    def train(watched: bool) -> tuple[list[Tensor], list[weakref.ref[Any]]]:
        model = perceptron()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        training = ts.training(model, optimizer, every=2)
        if watched:
            training.start()
        for step in range(6):
            optimizer.zero_grad()
            x, y = batch(step)
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        training.stop()
        kept.append(training)
        refs = [weakref.ref(each) for each in (*model.parameters(), loss, optimizer)]
        return [each.detach().clone() for each in model.parameters()], refs

    kept: list[object] = []
    plain, _ = train(False)
    gc.collect()
    gc.disable()
    try:
        seen, refs = train(True)
        gone = [each() is None for each in refs[:-1]]
    finally:
        gc.enable()
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))
    assert all(gone)


def test_a_table_is_bounded_and_the_older_the_coarser() -> None:
    table = StepTable(4 * 256)
    for start in range(0, 10_000, 8):
        steps = [*range(start, start + 8)]
        rows = torch.tensor([[float(step), -float(step), 0.0, -1.0] for step in steps])
        if start == 800:
            rows[3, 2] = math.nan
        table.add(steps, rows)
    assert table.count <= 256
    assert table.firsts[0] == 0 and table.lasts[-1] == 9_999
    assert torch.equal(table.firsts[1:], table.lasts[:-1] + 1), "each step is in one row"
    assert torch.equal(table.values[:, 0], table.lasts.float()), "the largest of each row"
    spans = table.lasts - table.firsts + 1
    assert (spans[-64:] == 1).all() and (spans.diff() <= 0).sum() > 0 and spans.max() <= 2 * 10_000 // 32
    bad = table.values[:, 2].isnan()
    assert bad.sum() == 1 and int(table.firsts[bad]) <= 803 <= int(table.lasts[bad]), "NaN wins"
    assert (table.values[:, 3] == -1).all()


def test_a_table_takes_modules_that_come_later() -> None:
    table = StepTable(1_000)
    table.add([0], torch.tensor([[1.0]]))
    table.add([1], torch.tensor([[2.0, 3.0]]))
    assert table.values.tolist() == [[1.0, -1.0], [2.0, 3.0]]


def test_a_frame_has_a_row_for_each_module_and_step() -> None:
    pytest.importorskip("pandas")
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ts.training(model, optimizer, every=2) as training:
        for step in range(4):
            optimizer.zero_grad()
            x, y = batch(step)
            functional.mse_loss(model(x), y).backward()
            optimizer.step()
    frame = training.norms.to_pandas()
    assert len(frame) == 4 * 3
    assert frame.weight_norm.notna().tolist() == [*[True] * 3, *[False] * 3] * 2
    at = frame[(frame.step == 2) & (frame.module == "2")].iloc[0]
    assert at.update_ratio == pytest.approx(at.update_norm / at.weight_norm)
    assert at.gradient_norm == pytest.approx(float(training.norms.gradients[2, 1]))


def test_an_optimizer_without_parameters_is_watched_like_others() -> None:
    model, empty = nn.Linear(4, 1), torch.optim.SGD([{"params": []}], 1e-2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with ts.training(model, every=1) as training:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            empty.step()
            optimizer.step()
    assert not training.notes and training.norms.updates.shape[0] == 2


def test_an_optimizer_may_have_parameters_in_parts_on_ranks_and_whole_ones(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        ranks = init_device_mesh("cpu", (1,))
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), ranks, [Shard(1)]))
        optimizer = torch.optim.SGD(model.parameters(), 1e-2, foreach=False)
        with ts.training(model, every=1) as training:
            (model.weight.full_tensor().sum() + model.bias.sum()).backward()
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    assert not training.notes and sorted(training.norms.updates[0].tolist()) == pytest.approx([1e-2, 2e-2], rel=1e-4)


class Wrapped(Tensor):
    """A user's wrapper subclass, which does what a step by hand needs and nothing else."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: object, stride: object) -> Wrapped:
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "foreach" in str(function) or "clone" in str(function):
            raise NotImplementedError(f"{function} is not for Wrapped")
        unwrapped = [each.inner if isinstance(each, Wrapped) else each for each in args]
        found = function(*unwrapped, **kwargs or {})
        if function in (torch.ops.aten.add_.Tensor, torch.ops.aten.sub_.Tensor):
            return args[0]
        return Wrapped(found) if isinstance(found, Tensor) and function is torch.ops.aten.detach.default else found


def test_updates_of_a_subclass_are_taken_of_the_tensors_inside() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.wrapped = nn.Linear(2, 1), nn.Module()
            self.wrapped.weight = nn.Parameter(Wrapped(torch.ones(3)))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    model = Model()
    parameter = model.wrapped.weight
    optimizer = torch.optim.SGD(model.parameters(), 0.5, foreach=False)
    with ts.training(model, optimizer, every=1) as training:
        for step in range(3):
            model(torch.ones(1, 2)).sum().backward()
            parameter.grad = Wrapped(torch.full((3,), step + 1.0))
            optimizer.step()
    assert not training.notes
    updates = training.norms.updates[:, training.norms.modules.index("wrapped")]
    close(updates, [0.5 * (step + 1) * 3**0.5 for step in range(3)])
