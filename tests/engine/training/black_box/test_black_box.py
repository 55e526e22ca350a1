"""The steps that the black box of a training loop keeps, and their replay bit for bit."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import stat
import subprocess
import sys
import weakref
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tapescope as ts
from tapescope.__main__ import main
from tapescope.engine.training.black_box.step_recorder import StepKeeper
from tapescope.tests.says import Snapshots, raises, says, says_none_of

SIZE = 8  # of a batch
pytestmark = pytest.mark.filterwarnings("ignore:ts.training")

Made = tuple[Tensor, Tensor]


class Net(nn.Module):
    """Its gradient is not finite where a row of what it is given is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(6, 1)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        length = (x * self.scale).pow(2).sum(1, keepdim=True).sqrt()
        result: Tensor = self.last(self.drop(self.norm(self.first(x)).relu())) * length
        return result


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    x = x * (1 + 0.1 * torch.rand_like(x) + 0.1 * random.random())
    return nn.functional.mse_loss(model(x), y)


def data(steps: int, bad: int | None, size: int = SIZE) -> Made:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(steps * size, 4, generator=generator), torch.randn(steps * size, 1, generator=generator)
    if bad is not None:
        x[bad * size + 1] = 0
    return x, y


def loader(steps: int, bad: int | None, **options: Any) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*data(steps, bad)), SIZE, **options)


def a_model(kind: Callable[[], nn.Module] = Net) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    random.seed(1)
    model = kind()
    return model, torch.optim.Adam(model.parameters(), 1e-2)


def train(
    box: Path, batches: Any, *, loss: Callable[[nn.Module, Any], Tensor] = loss_of, every: int = 1, **options: Any
) -> ts.types.Training:
    model, optimizer = a_model()
    with ts.training(model, optimizer, black_box=box, **options) as training:
        for number, batch in enumerate(batches):
            (loss(model, batch) / every).backward()
            if number % every == every - 1:
                optimizer.step()
                optimizer.zero_grad()
    return training


def steps_in(box: Path) -> list[str]:
    return sorted(each.name for each in box.iterdir()) if box.exists() else []


def is_same(again: ts.types.StepReplay) -> bool:
    assert again.same_loss is not None
    assert again.same_gradients is not None
    return again.same


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.2)
        self.last = nn.Linear(64, 1)

    def forward(self, x, scale):
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        length = (hidden * scale).pow(2).sum(1, keepdim=True).sqrt()
        return self.last(hidden / (1 + length))

def make_model():
    return Net()

def loss_of(model, batch):
    x, y, scale = batch
    return nn.functional.mse_loss(model(x + 0.01 * torch.randn_like(x), scale), y)

def main():
    import tapescope as ts
    torch.manual_seed(0)
    scale = torch.ones(50 * 64, 1)
    scale[37 * 64 + 5] = 0
    rows = TensorDataset(torch.randn(50 * 64, 32), torch.randn(50 * 64, 1), scale)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with ts.training(model, optimizer, black_box="box"):
        for batch in DataLoader(rows, 64, num_workers=2):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_nan_at_step_37_of_50_runs_again_in_a_new_process_and_is_named_to_the_line(tmp_path: Path) -> None:
    """With dropout, batch norm, Adam, an augmentation and two workers: loss and all gradients bit for bit."""
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(ts.__file__).parent.parent)}
    run = [sys.executable, "train.py"]
    subprocess.run(run, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    assert steps_in(tmp_path / "box") == ["step_37"]
    replay = [sys.executable, "-m", "tapescope", "replay", "box/step_37", "train.py:make_model", "train.py:loss_of"]
    done = subprocess.run(replay, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    says(done.stdout, "6 gradients", "SqrtBackward0", "train.py:14", "inf", 1, 64, "[5, 0]")


def test_the_loop_is_the_same_with_the_box_and_without(tmp_path: Path) -> None:
    """Parameters, buffers and random numbers come out alike, bit for bit."""

    def trained(box: Path | None) -> tuple[dict[str, Tensor], float, Tensor]:
        model, optimizer = a_model()
        with ts.training(model, optimizer, black_box=box):
            for batch in loader(5, None, shuffle=True):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
        return model.state_dict(), random.random(), torch.rand(3)

    plain, boxed = trained(None), trained(tmp_path)
    torch.testing.assert_close(boxed, plain, rtol=0, atol=0)


def test_of_several_bad_steps_in_a_row_the_first_is_written(tmp_path: Path) -> None:
    training = train(tmp_path, loader(6, 2))
    assert steps_in(tmp_path) == ["step_2"]
    assert [each.kind for each in training.findings if each.kind == "black box"] == ["black box"]
    again = ts.replay(tmp_path / "step_2", Net, loss_of)
    assert is_same(again)
    assert set(again.gradients) == {name for name, _ in Net().named_parameters()}
    found = again.find_nan()
    assert found.where == "backward" and found.source is not None and found.source.file == __file__


def test_an_exception_in_the_forward_is_raised_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    def broken() -> Iterator[list[Tensor]]:
        for number, (x, y) in enumerate(loader(5, None)):
            yield [x[:, :3] if number == 3 else x, y]

    with pytest.raises(RuntimeError, match="must match the size") as raised:
        train(tmp_path, broken())
    assert any("step_3" in note and "tapescope replay" in note for note in raised.value.__notes__)
    says((tmp_path / "step_3" / "README.md").read_text(), "Step 3", "RuntimeError", raised.value)
    again = ts.replay(tmp_path / "step_3", Net, lambda model, batch: loss_of(model, [batch[0][:, :3], batch[1]]))
    assert again.same and str(again.error) == str(raised.value)
    says(again, "Step 3", "RuntimeError", raised.value)
    snapshot("replay", again)
    script = tmp_path / "cut.py"
    script.write_text(
        f"from {__name__} import Net, loss_of\n\ndef cut(model, batch):\n"
        "    return loss_of(model, [batch[0][:, :3], batch[1]])\n"
    )
    words = [str(tmp_path / "step_3"), f"{script}:Net", f"{script}:cut", "--page", str(tmp_path / "step.html")]
    assert main(["replay", *words]) == 0
    snapshot("replay", capsys.readouterr().err)
    traced = json.loads((tmp_path / "step_3" / "facts.json").read_text())["why"]["traceback"]
    assert "must match the size" in traced


def test_gradients_that_are_summed_over_four_micro_batches(tmp_path: Path) -> None:
    train(tmp_path, loader(12, 5), every=4)
    again = ts.replay(tmp_path / "step_1", Net, lambda model, batch: loss_of(model, batch) / 4)
    assert len(again.losses) == 2, "kept as soon as it is bad"
    assert is_same(again)
    assert again.find_nan().where == "backward"


def test_gradients_are_kept_as_they_were_before_clipping_spoils_them(tmp_path: Path) -> None:
    model, optimizer = a_model()
    with ts.training(black_box=tmp_path):
        for batch in loader(4, 2):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    again = ts.replay(tmp_path / "step_2", Net, loss_of)
    assert is_same(again)
    assert not again.gradients["scale"].isfinite().any() and again.gradients["last.weight"].isfinite().all()


def test_what_was_in_grad_before_is_added_to_again(tmp_path: Path) -> None:
    """The loop does not clear all gradients, or sets them to zeros."""
    model, optimizer = a_model()
    with ts.training(model, optimizer, black_box=tmp_path):
        for number, batch in enumerate(loader(4, 2)):
            if number == 1:
                optimizer.zero_grad(set_to_none=False)
            loss_of(model, batch).backward()
            optimizer.step()
    assert is_same(ts.replay(tmp_path / "step_2", Net, loss_of))


def test_a_scaler_looks_for_its_scale_unseen_and_a_bad_loss_is_kept_with_it(tmp_path: Path) -> None:
    def small(model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch) * (float("nan") if batch[0][1].abs().sum() == 0 else 1)

    model, optimizer = a_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with ts.training(model, optimizer, black_box=tmp_path):
        for batch in loader(9, 6):
            optimizer.zero_grad()
            scaler.scale(small(model, batch)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert steps_in(tmp_path) == ["step_6"]
    again = ts.replay(tmp_path / "step_6", Net, small)
    assert is_same(again)


def test_a_closure_of_lbfgs_is_replayed_with_the_parameters_of_its_call(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0] + torch.rand(1)) - batch[1]).pow(2).mean()

    with ts.training(model, optimizer, black_box=tmp_path):
        for batch in loader(3, None):

            def closure() -> Tensor:
                nonlocal calls
                calls += 1
                optimizer.zero_grad()
                found = loss(model, batch) * (float("nan") if calls == 7 else 1)
                found.backward()
                return found

            optimizer.step(closure)
    (folder,) = tmp_path.iterdir()
    again = ts.replay(
        folder,
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)),
        lambda model, batch: loss(model, batch) * float("nan"),
    )
    assert is_same(again) and len(again.losses) == 1


def test_a_bad_batch_is_found_where_the_users_code_first_takes_it(tmp_path: Path, snapshot: Snapshots) -> None:
    model, optimizer = a_model(Net)
    x, y = data(1, None)
    x[3, 0] = math.nan
    with ts.training(model, optimizer, black_box=tmp_path):
        for batch in DataLoader(TensorDataset(x, y), batch_size=SIZE):
            nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
    again = ts.replay(tmp_path / "step_0", Net, lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
    found = again.find_nan()
    assert found.where == "forward" and found.operation == "linear" and found.module == "first"
    says(found.sentences[0], "linear", "test_black_box.py:", 6, 48, "[3, 0]")
    says_none_of(found, "replay.py")
    snapshot("find_nan", found.sentences[0])


def test_without_a_data_loader_it_is_said_that_labels_are_not_kept(tmp_path: Path, snapshot: Snapshots) -> None:
    model, optimizer = a_model(Net)
    x, y = data(1, None)
    with ts.training(black_box=tmp_path) as training:
        nn.functional.mse_loss(model(x), y * math.inf).backward()
        optimizer.step()
    (found,) = [each for each in training.findings if each.kind == "black box"]
    says(found, "Net", "DataLoader", "loss_of(model, batch)", "model(x, y)")
    readme = (tmp_path / "step_0" / "README.md").read_text()
    says(readme, "Net", "DataLoader")
    snapshot("training", found)
    snapshot("training", readme)


def test_without_a_data_loader_the_inputs_of_the_model_are_kept(tmp_path: Path) -> None:
    x, y = data(4, 2)

    class Whole(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
            found = super().forward(x)
            return found if labels is None else nn.functional.mse_loss(found, labels)

    def batches(call: Callable[[nn.Module, Tensor, Tensor], Tensor], box: Path) -> None:
        model, optimizer = a_model(Whole)
        with ts.training(black_box=box):
            for place in range(0, len(x), SIZE):
                optimizer.zero_grad()
                noisy = x[place : place + SIZE] * (1 + torch.rand(1))
                call(model, noisy, y[place : place + SIZE]).backward()
                optimizer.step()

    ways: list[tuple[Any, Any]] = [
        (lambda model, x, y: model(x, y), lambda model, batch: model(*batch)),
        (lambda model, x, y: model(x=x, labels=y), lambda model, batch: model(**batch)),
        (lambda model, x, y: model(x, labels=y), lambda model, batch: model(*batch[0], **batch[1])),
    ]
    for number, (call, again) in enumerate(ways):
        batches(call, tmp_path / str(number))
        with pytest.warns(UserWarning, match="Whole"):
            assert is_same(ts.replay(tmp_path / str(number) / "step_2", Whole, again))


def test_a_batch_that_the_loop_writes_in_place_is_said_and_later_ones_are_copied(tmp_path: Path) -> None:
    def doubled(model: nn.Module, batch: Any) -> Tensor:
        batch[0].mul_(2)
        return loss_of(model, batch)

    train(tmp_path / "late", loader(4, 2), loss=doubled)
    assert is_same(ts.replay(tmp_path / "late" / "step_2", Net, doubled))
    train(tmp_path / "first", loader(4, 0), loss=doubled)
    with pytest.warns(UserWarning, match=r"batch\[0\]"):
        assert not ts.replay(tmp_path / "first" / "step_0", Net, doubled).same


def test_a_loop_that_writes_its_parameters_by_hand_says_where_steps_end(tmp_path: Path) -> None:
    model, _ = a_model()
    with ts.training(model, black_box=tmp_path) as training:
        for batch in loader(4, 2):
            model.zero_grad()
            loss_of(model, batch).backward()
            with torch.no_grad():
                for each in model.parameters():
                    each -= 0.01 * each.grad
            training.step()
    again = ts.replay(tmp_path / "step_2", Net, loss_of)
    assert is_same(again) and len(again.losses) == 1


def test_an_optimizer_that_steps_second_on_one_batch(tmp_path: Path) -> None:
    """The first one's parameters are written by then, and its gradients are there."""
    torch.manual_seed(1)
    generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
    first, second = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())

    def loss_of_second(models: Any, batch: Any) -> Tensor:
        noise = torch.randn(len(batch[0]), 2)
        made = models[1](models[0](noise)) * batch[0].abs().sum(1, keepdim=True)
        return (made * made).sum(1).sqrt().mean()

    with ts.training([generator, critic], [first, second], black_box=tmp_path):
        for batch in loader(4, 2):
            first.zero_grad()
            (critic(batch[0]) - critic(generator(torch.randn(len(batch[0]), 2)).detach())).mean().backward()
            first.step()
            second.zero_grad()
            loss_of_second([generator, critic], batch).backward()
            second.step()
    again = ts.replay(tmp_path / "step_2", lambda: [nn.Linear(2, 4), nn.Linear(4, 1)], loss_of_second)
    assert is_same(again) and len(again.gradients) == 4


def test_autocast_that_the_loop_opens_around_the_loss_is_opened_again_and_said(
    tmp_path: Path, snapshot: Snapshots
) -> None:
    model, optimizer = a_model()
    with ts.training(model, optimizer, black_box=tmp_path):
        for batch in loader(3, 1):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
    again = ts.replay(tmp_path / "step_1", Net, loss_of)
    assert is_same(again)
    (said,) = again.differences
    says(said, "autocast", "bfloat16", "cpu", "loss_of")
    snapshot("replay", said)


def test_random_numbers_that_loss_of_does_not_draw_are_said(tmp_path: Path, snapshot: Snapshots) -> None:
    train(tmp_path, loader(3, 1))
    again = ts.replay(tmp_path / "step_1", Net, lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
    assert not again.same
    (said,) = again.differences
    says(said, "loss_of")
    says_none_of(said, "autocast")
    snapshot("replay", said)


def test_without_a_data_loader_random_numbers_that_loss_of_draws_are_said(tmp_path: Path) -> None:
    model, optimizer = a_model(Net)
    with ts.training(model, optimizer, black_box=tmp_path):
        x, _ = data(1, None)
        model(x).sum().mul(math.inf).backward()
        optimizer.step()
    given = ts.replay(tmp_path / "step_0", Net, lambda model, batch: model(batch[0]).sum() * math.inf)
    assert is_same(given)
    drawn = lambda model, batch: model(torch.rand_like(batch[0])).sum() * math.inf  # noqa: E731
    said = ts.replay(tmp_path / "step_0", Net, drawn).differences[-1]
    says(said, "loss_of", "DataLoader", "random states")


def test_a_finding_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    model, optimizer = a_model()
    with ts.training(model, optimizer, black_box=tmp_path, black_box_on=["norm"]) as training:
        for number, batch in enumerate(loader(4, 3)):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            if number == 1:
                training.add(ts.types.Finding("norm", 1, "The gradient of last is 9 times what it was."))
            optimizer.step()
    assert steps_in(tmp_path) == ["step_1"]
    assert is_same(ts.replay(tmp_path / "step_1", Net, loss_of))


def test_a_batch_fetched_ahead_is_the_one_that_the_model_takes(tmp_path: Path) -> None:
    def ahead() -> Iterator[Any]:
        waiting: list[Any] = []
        for batch in loader(6, 3):
            waiting.append(batch)
            if len(waiting) == 3:
                yield waiting.pop(0)
        yield from waiting

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    train(tmp_path, ahead(), loss=loss)
    assert steps_in(tmp_path) == ["step_3"]
    assert is_same(ts.replay(tmp_path / "step_3", Net, loss))


Pair = namedtuple("Pair", "x y")


@dataclass
class Batch:
    x: Tensor
    y: Tensor
    name: str = "a"


class Encoding(UserDict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self.data[name]


@pytest.mark.parametrize(
    ("collate", "parts"),
    [
        (lambda rows: Pair(*rows), lambda batch: (batch.x, batch.y)),
        (lambda rows: Batch(*rows), lambda batch: (batch.x, batch.y)),
        (lambda rows: {"x": rows[0], "more": [{"y": rows[1], "n": 3}]}, lambda b: (b["x"], b["more"][0]["y"])),
        (lambda rows: Encoding({"x": rows[0], "y": rows[1]}), lambda batch: (batch.x, batch["y"])),
        (lambda rows: (rows[0].numpy(), rows[1]), lambda batch: (torch.from_numpy(batch[0]), batch[1])),
    ],
)
def test_batches_of_many_kinds_come_back(tmp_path: Path, collate: Any, parts: Any) -> None:
    def together(rows: list[tuple[Tensor, Tensor]]) -> Any:
        return collate([torch.stack(column) for column in zip(*rows, strict=True)])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, parts(batch))

    train(tmp_path, loader(3, 1, collate_fn=together), loss=loss)
    assert is_same(ts.replay(tmp_path / "step_1", Net, loss))


def test_a_step_that_does_not_fit_is_not_written_and_a_sentence_says_so(tmp_path: Path, snapshot: Snapshots) -> None:
    training = train(tmp_path, loader(3, 1), limit="2kB")
    assert steps_in(tmp_path) == []
    (found,) = [each for each in training.findings if each.kind == "black box"]
    assert found.at is None
    says(found, "2.0 KiB", 'limit="8GB"')
    snapshot("training", found)


def test_there_are_no_more_than_so_many_folders(tmp_path: Path) -> None:
    for number in range(16):
        (tmp_path / f"step_{number}").mkdir()
    training = train(tmp_path, loader(3, 1))
    assert len(steps_in(tmp_path)) == 16
    (found,) = [each for each in training.findings if each.kind == "black box"]
    assert found.at is None
    says(found, 16, tmp_path)


def test_nobody_else_may_look_into_it_and_torch_opens_its_tensors(tmp_path: Path) -> None:
    box = tmp_path / "box"
    train(box, loader(3, 1))
    folder = box / "step_1"
    assert stat.S_IMODE(box.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
    tensors = torch.load(folder / "state.pt", weights_only=True)
    rows = data(3, 1)[0][SIZE : 2 * SIZE]
    assert torch.equal(tensors["0/batch/0"], rows)
    assert tensors["0/batch/0"].untyped_storage().nbytes() == rows.nbytes
    says((folder / "README.md").read_text(), "0/batch/...", "1 batch")


def test_nothing_is_kept_when_the_loop_has_ended(tmp_path: Path) -> None:
    model, optimizer = a_model()
    gc.disable()
    try:
        with ts.training(model, optimizer, black_box=tmp_path) as training:
            for batch in loader(3, 1):
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
        kept = [weakref.ref(each) for each in (model, model.first.weight, batch[0], loss)]
        del model, optimizer, batch, loss
        assert [each() for each in kept] == [None] * 4
        assert training.findings
    finally:
        gc.enable()


def test_the_graph_that_led_to_what_a_model_is_given_is_not_held(tmp_path: Path) -> None:
    """Also inside of dataclasses: where an encoder's output goes into a decoder, say."""

    class Decoder(nn.Linear):
        def forward(self, batch: Batch) -> Tensor:  # type: ignore[override]
            return super().forward(batch.x)

    encoder, decoder = nn.Linear(4, 4), Decoder(4, 1)
    gc.disable()
    try:
        with ts.training(decoder, black_box=tmp_path):
            scaled = encoder(torch.ones(2, 4)) * torch.ones(2, 4, requires_grad=True)
            kept = weakref.ref(scaled)
            decoder(Batch(scaled, scaled)).sum().backward()
            del scaled
            assert kept() is None
    finally:
        gc.enable()


def table_and_head() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList([nn.Embedding(40, 4, sparse=True), nn.Linear(4, 1)])


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_sparse_gradient_that_is_not_recorded_is_said_and_does_not_count_as_different(
    factor: float, tmp_path: Path
) -> None:
    ids = torch.arange(12).reshape(4, 3)

    def loss(net: nn.ModuleList, scale: float = 1.0) -> Tensor:
        return net[1](net[0](ids).mean(1)).square().mean() * scale

    net = table_and_head()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with ts.training(net, optimizer, black_box=tmp_path, synchronize=True):
        for step in range(3):
            optimizer.zero_grad()
            (loss(net) + (math.inf if step == 1 else 0)).backward()
            optimizer.step()
    (folder,) = steps_in(tmp_path)
    again = ts.replay(tmp_path / folder, table_and_head, lambda made, batch: loss(made, factor) + math.inf)
    assert again.unrecorded.keys() == {"0.weight"} and "sparse_coo" in again.unrecorded["0.weight"]
    assert again.same_gradients is (factor == 1)
    verdict = again.sentences[-1]
    assert "0.weight (sparse_coo" in verdict and ("1.weight" in verdict) is (factor != 1)


def test_another_model_is_refused_with_the_names_that_differ(tmp_path: Path, snapshot: Snapshots) -> None:
    train(tmp_path, loader(3, 1))
    with raises(ValueError, "make_model()", "scale", "first.weight") as raised:
        ts.replay(tmp_path / "step_1", lambda: nn.Linear(4, 1), loss_of)
    snapshot("replay", raised.value)

    def wider() -> nn.Module:
        model = Net()
        model.first = nn.Linear(5, 6)
        return model

    with raises(ValueError, "first.weight", "float32 6×4", "float32 6×5") as raised:
        ts.replay(tmp_path / "step_1", wider, loss_of)
    snapshot("replay", raised.value)


def test_a_model_made_on_the_meta_device_gets_the_recorded_values(tmp_path: Path) -> None:
    train(tmp_path, loader(3, 1))

    def without_values() -> nn.Module:
        with torch.device("meta"):
            return Net()

    assert is_same(ts.replay(tmp_path / "step_1", without_values, loss_of))


def test_threads_and_flags_are_as_they_were_and_put_back(tmp_path: Path) -> None:
    train(tmp_path, loader(3, 1))
    facts = tmp_path / "step_1" / "facts.json"
    told = json.loads(facts.read_text())
    told["flags"]["threads"] += 1
    told["machine"]["torch"] = "2.99"
    facts.write_text(json.dumps(told))
    threads, seen = torch.get_num_threads(), []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.append(torch.get_num_threads())
        return loss_of(model, batch)

    before = torch.get_rng_state(), random.getstate()
    with pytest.warns(UserWarning, match="step_1") as said:
        ts.replay(tmp_path / "step_1", Net, loss)
    texts = [str(each.message).partition("step_1: ")[2] for each in said]
    of_torch, of_threads = texts
    says(of_torch, "torch", "2.99", torch.__version__)
    says(of_threads, "threads", threads + 1, threads)
    assert seen == [threads + 1] and torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ("non-finite", ["str"]),
        (3, ["int"]),
        (["nan"], ["'nan'", "'non-finite'", "'exception'", "'leak'"]),
    ],
)
def test_what_is_no_reason_to_keep_a_step_is_refused(given: Any, facts: list[str]) -> None:
    with raises((TypeError, ValueError), "black_box_on", *facts):
        ts.training(black_box_on=given)


@pytest.mark.parametrize("synchronize", [False, True])
def test_on_an_accelerator_a_bad_step_is_known_a_step_later_or_waited_for(
    accelerator: torch.device, synchronize: bool, tmp_path: Path
) -> None:
    def moved(model: nn.Module, batch: Any) -> Tensor:
        x, y = (each.to(accelerator) for each in batch)
        return (model(x * (1 + torch.rand(1).to(accelerator))) - y).pow(2).mean() * (x[1] ** 2).sum().sqrt().log().exp()

    def make_model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    model = make_model().to(accelerator)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with ts.training(model, optimizer, black_box=tmp_path, synchronize=synchronize):
        for number, batch in enumerate(loader(5, None)):
            optimizer.zero_grad()
            (moved(model, batch) * (float("nan") if number == 2 else 1)).backward()
            optimizer.step()
    assert steps_in(tmp_path) == ["step_2"]
    again = ts.replay(tmp_path / "step_2", make_model, lambda model, batch: moved(model, batch) * float("nan"))
    assert again.same_loss and again.same_gradients is (True if synchronize else None)
    recorded = torch.load(tmp_path / "step_2" / "state.pt", weights_only=True)
    assert all(recorded[f"parameter/{name}"].isfinite().all() for name, _ in model.named_parameters())


def test_gradients_are_read_once_where_norms_are_taken_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read them takes as long as memory does."""
    seen: list[int] = []
    real = torch._foreach_norm

    def counted(tensors: Any, *given: Any) -> Any:
        seen.append(sum(each.numel() for each in tensors))
        return real(tensors, *given)

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    monkeypatch.setattr(torch, "_foreach_norm", counted)
    with ts.training(model, optimizer, black_box=tmp_path, every=1000):
        for number in range(3):
            if number == 1:
                seen.clear()
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            if number == 2:
                model.weight.grad.mul_(float("nan"))  # after the backward: they are read again
            optimizer.step()
    assert seen == [15, 1, 15, 1, 16]
    assert steps_in(tmp_path) == ["step_2"]


def bad_at_2(model: nn.Module, device: torch.device | str, make: Callable[[Any], Any]) -> list[list[Tensor]]:
    """The parameters after each of four steps, of which the third is bad."""
    optimizer = make(model.parameters())
    after = []
    for number in range(4):
        optimizer.zero_grad()
        x = torch.full((2, 4), 1.0 + number, device=device)
        (model(x).pow(2).mean() * (float("nan") if number == 2 else 1)).backward()
        optimizer.step()
        assert not hasattr(optimizer, "found_inf"), "it is taken back"
        after.append([each.detach().cpu().clone() for each in model.parameters()])
    return after


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_fused_optimizer_leaves_a_bad_update_out_where_that_is_asked_for(kind: type[Any], tmp_path: Path) -> None:
    model = small()
    with ts.training(model, black_box=tmp_path, found_inf=True) as training:
        after = bad_at_2(model, "cpu", lambda given: kind(given, 1e-2, fused=True))
    assert all(map(torch.equal, after[1], after[2])) and not any(map(torch.equal, after[2], after[3]))
    assert all(each.isfinite().all() for each in after[3])
    assert steps_in(tmp_path) == ["step_2"] and not training.notes
    with ts.training(model := small(), black_box=tmp_path) as training:
        after = bad_at_2(model, "cpu", lambda given: kind(given, 1e-2, fused=True))
    assert all(each.isnan().any() for each in after[3]), "nobody asked"


def test_what_is_not_fused_leaves_nothing_out_and_a_note_says_so(tmp_path: Path, snapshot: Snapshots) -> None:
    model = small()
    with ts.training(model, black_box=tmp_path, found_inf=True) as training:
        after = bad_at_2(model, "cpu", lambda given: torch.optim.SGD(given, 1e-2))
    assert all(each.isnan().any() for each in after[3])
    (note,) = training.notes
    says(note, "SGD", "found_inf")
    snapshot("training", note)
    with raises(ValueError, "found_inf", "black_box="):
        ts.training(model, found_inf=True)


def test_a_step_that_raised_leaves_no_flag_by_which_later_updates_would_go(tmp_path: Path) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, fused=True)
    with ts.training(model, black_box=tmp_path, found_inf=True):
        model(torch.ones(2, 4)).sum().backward()
        handle = optimizer.register_step_pre_hook(fail)
        with pytest.raises(RuntimeError, match="no step"):
            optimizer.step()
        handle.remove()
        after = bad_at_2(model, "cpu", lambda given: optimizer)
        optimizer.register_step_pre_hook(fail)
        with pytest.raises(RuntimeError, match="no step"):
            optimizer.step()
    assert all(map(torch.equal, after[1], after[2])) and all(each.isfinite().all() for each in after[3])
    assert not hasattr(optimizer, "found_inf")


def fail(*given: object) -> None:
    raise RuntimeError("no step")


def test_what_the_black_box_calls_bad_is_left_out_also_if_the_optimizers_own_gradients_are_finite(
    tmp_path: Path,
) -> None:
    """Else a step would be kept with parameters that its update has written already."""
    models = nn.ModuleList([small(), small()])
    optimizers = [torch.optim.SGD(each.parameters(), 1e-2, fused=True) for each in models]
    with ts.training(models, black_box=tmp_path, found_inf=True):
        for number, share in enumerate((1, float("nan"))):
            before = [each.detach().clone() for each in models.parameters()]
            models.zero_grad()
            x = torch.ones(2, 4)
            (models[0](x).sum() + models[1](x).sum() * share).backward()
            optimizers[0].step()
            stays = all(map(torch.equal, before, models.parameters()))
            assert stays == (number == 1), f"step {number}"


def test_on_an_accelerator_a_bad_update_is_left_out_without_a_copy(accelerator: torch.device, tmp_path: Path) -> None:
    model = small().to(accelerator)
    copied: list[object] = []
    real = StepKeeper._copy_parameters
    with pytest.MonkeyPatch.context() as patch, ts.training(model, black_box=tmp_path, found_inf=True):
        patch.setattr(StepKeeper, "_copy_parameters", lambda self: (copied.append(self), real(self))[1])
        after = bad_at_2(model, accelerator, lambda given: torch.optim.SGD(given, 1e-2, fused=True))
    assert all(map(torch.equal, after[1], after[2])) and all(each.isfinite().all() for each in after[3])
    assert copied == [] and steps_in(tmp_path) == ["step_2"]
    recorded = torch.load(tmp_path / "step_2" / "state.pt", weights_only=True)
    kept = [recorded[f"parameter/{name}"].cpu() for name, _ in model.named_parameters()]
    assert all(map(torch.equal, kept, after[1]))
