"""Callbacks of frameworks: they train as without, find as in a bare loop, and write to the user's loggers."""

from __future__ import annotations

import csv
import gc
import importlib.util
import math
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tapescope as ts
from tapescope.integrations.loop_callback import LoopCallback
from tapescope.tests.says import says

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]

STEPS = 6


class Net(nn.Module):
    """A regression. It keeps the graphs of its losses if it leaks, and raises in a forward."""

    def __init__(self, leaks: bool = False, raises_at: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
        self.leaks, self.raises_at = leaks, raises_at
        self.losses: list[Tensor] = []
        self.calls = 0

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        if self.calls == self.raises_at:
            torch.empty(2**60)  # more than any machine has
        self.calls += 1
        loss = (self.net(x) - y).square().mean()
        if self.leaks:
            self.losses.append(loss)
        return {"loss": loss}


def data(steps: int) -> TensorDataset:
    x = torch.randn(4 * steps, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        x, y = data(STEPS)[place]
        return {"x": x, "y": y}


def transformers(net: Net, folder: Path, callbacks: Sequence[Any], steps: int, resumes: bool) -> None:
    library = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="accelerate is missing: make full installs it")
    has_board = importlib.util.find_spec("tensorboard") is not None
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_steps=STEPS // 2,
        report_to=["tensorboard"] if has_board else [],
        disable_tqdm=True,
        use_cpu=True,
    )

    class Stop(library.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step >= steps

    stop = [Stop()] if steps < STEPS else []
    trainer = library.Trainer(model=net, args=arguments, train_dataset=Rows(), callbacks=[*stop, *callbacks])
    trainer.train(resume_from_checkpoint=resumes)


def lightning(net: Net, folder: Path, callbacks: Sequence[Any], steps: int, resumes: bool) -> None:
    library = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is missing: make full installs it")

    class Module(library.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def training_step(self, batch: Any, number: int) -> Tensor:
            loss: Tensor = self.inner(*batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    library.seed_everything(0, verbose=False)
    saving = library.callbacks.ModelCheckpoint(folder / "saved", every_n_train_steps=STEPS // 2, save_top_k=-1)
    library.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        logger=library.loggers.CSVLogger(folder, "logs", version=int(resumes)),
        log_every_n_steps=1,
        callbacks=[saving, *callbacks],
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(
        Module(),
        DataLoader(data(STEPS), 4),
        ckpt_path=next((folder / "saved").glob(f"*step={STEPS // 2}.ckpt")) if resumes else None,
    )


def accelerate(net: Net, folder: Path, callbacks: Sequence[Any], steps: int, resumes: bool) -> None:
    library = pytest.importorskip("accelerate", reason="accelerate is missing: make full installs it")
    library.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = library.Accelerator(cpu=True, log_with=list(callbacks), project_dir=str(folder))
    accelerator.init_trackers("run")
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), 1e-3), DataLoader(data(STEPS), 4)
    )
    if resumes:
        accelerator.load_state(folder / "state")
    torch.manual_seed(2 + resumes)
    for step, (x, y) in enumerate(loader):
        if (step >= STEPS // 2) != resumes and (resumes or steps < STEPS):
            continue
        loss = model(x, y)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss.item()}, step=step)
    if steps < STEPS:
        accelerator.save_state(folder / "state")
    accelerator.end_training()


Train = Callable[[Net, Path, Sequence[Any], int, bool], None]

FRAMEWORKS: dict[str, Train] = {"transformers": transformers, "lightning": lightning, "accelerate": accelerate}


def callback_of(framework: str, **options: Any) -> LoopCallback:
    pytest.importorskip({"lightning": "pytorch_lightning"}.get(framework, framework))
    module = importlib.import_module(f"tapescope.integrations.{framework}")
    name = "TapescopeTracker" if framework == "accelerate" else "TapescopeCallback"
    made: LoopCallback = getattr(module, name)(**options)
    return made


def trained(
    framework: str, folder: Path, *callbacks: Any, steps: int = STEPS, resumes: bool = False, **of_net: Any
) -> Net:
    net = Net(**of_net)
    FRAMEWORKS[framework](net, folder, callbacks, steps, resumes)
    return net


def expect_equal(one: Net, other: Net) -> None:
    values = other.state_dict()
    assert all(torch.equal(value, values[name]) for name, value in one.state_dict().items())


def logged(framework: str, folder: Path) -> dict[str, dict[int, float]]:
    """Read the numbers by tag and step from the files of the framework's own logger."""
    found: dict[str, dict[int, float]] = {}
    if framework == "lightning":
        for row in csv.DictReader((folder / "metrics.csv").open()):
            for tag, value in row.items():
                if value and tag != "step":
                    found.setdefault(tag, {})[int(row["step"])] = float(value)
        return found
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for file in sorted(folder.rglob("events*")):
        board = events.EventAccumulator(str(file))
        board.Reload()
        for tag in board.Tags()["scalars"]:
            found.setdefault(tag, {}).update({each.step: each.value for each in board.Scalars(tag)})
    return found


def watched_by_hand(leaks: bool) -> ts.types.Training:
    net = Net(leaks)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with ts.training() as training:
        for batch in DataLoader(data(STEPS), 4):
            net(*batch)["loss"].backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    return training


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_trains_as_without_and_finds_what_a_bare_loop_finds(framework: str, tmp_path: Path) -> None:
    for leaks in (False, True):
        plain = trained(framework, tmp_path / "plain", leaks=leaks)
        bare = watched_by_hand(leaks)
        callback = callback_of(framework, page=tmp_path / "loop.html")
        expect_equal(plain, trained(framework, tmp_path / "watched", callback, leaks=leaks))
        assert callback.training is not None and callback.training.steps == bare.steps == STEPS
        facts = [[(each.kind, each.step, each.last_step) for each in one.findings] for one in (callback.training, bare)]
        assert facts[0] == facts[1] and [each[0] for each in facts[0]] == ["leak"] * leaks
        assert not callback.training.notes
        says((tmp_path / "loop.html").read_text(), "Training loop", *["leak"] * leaks)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_norms_go_to_the_loggers_under_the_frameworks_own_steps_also_after_a_resume(
    framework: str, tmp_path: Path
) -> None:
    half = STEPS // 2
    boards: list[Any] = []
    if framework == "accelerate":
        pytest.importorskip("accelerate", reason="accelerate is missing: make full installs it")
        boards = ["tensorboard"]
    if framework != "lightning":
        pytest.importorskip("tensorboard", reason="the numbers are read from TensorBoard's files")
    whole = trained(framework, tmp_path, *boards, steps=half)
    whole = trained(framework, tmp_path, *boards, resumes=True)
    folder = tmp_path / "watched"
    first = callback_of(framework)
    trained(framework, folder, first, *boards, steps=half)
    options = {"first_step": half} if framework == "accelerate" else {}
    second = callback_of(framework, **options)
    expect_equal(whole, trained(framework, folder, second, *boards, resumes=True))
    assert first.training is not None and second.training is not None
    assert first.training.steps == second.training.steps == half
    if framework == "lightning":
        parts = [logged(framework, folder / "logs" / f"version_{part}") for part in (0, 1)]
        numbers = {tag: {**parts[0].get(tag, {}), **parts[1].get(tag, {})} for tag in {*parts[0], *parts[1]}}
    else:
        numbers = logged(framework, folder)
    before = "train/" if framework == "transformers" else ""
    ours = numbers[f"{before}tapescope/gradient_norm"]
    theirs = numbers[f"{before}loss"]
    assert sorted(ours) == sorted(theirs) and len(ours) == STEPS
    losses = numbers[f"{before}tapescope/loss"]
    # Trainer rounds its loss to four digits.
    assert all(math.isclose(losses[step], value, rel_tol=1e-3, abs_tol=1e-4) for step, value in theirs.items())
    if framework == "transformers":  # of the whole model, before clipping
        norms = numbers["train/grad_norm"]
        assert all(math.isclose(ours[step], value, rel_tol=1e-3) for step, value in norms.items())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_error_in_a_forward_gets_the_report_on_memory_and_leaves_no_hook(
    framework: str, tmp_path: Path, left_behind: Callable[[], list[str]]
) -> None:
    callback = callback_of(framework)
    with pytest.raises(RuntimeError) as raised:
        trained(framework, tmp_path, callback, raises_at=2)
    says("\n".join(raised.value.__notes__), "CPU", "parameters", "ts.fits")
    assert callback.training is not None and callback.training.steps == 2
    freed = ref(callback)
    del callback, raised
    gc.collect()
    assert freed() is None
    assert not left_behind()


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_a_callback_can_be_used_again_and_pickled(framework: str, tmp_path: Path) -> None:
    callback = callback_of(framework, every=2)
    assert pickle.loads(pickle.dumps(callback))._options == {"every": 2}
    for _ in range(2):
        trained(framework, tmp_path, callback, steps=STEPS // 2)
        assert callback.training is not None and callback.training.steps == STEPS // 2


def test_options_are_checked_when_the_callback_is_made() -> None:
    for options in ({"every": 0}, {"model": nn.Linear(1, 1)}, {"evry": 3}):
        with pytest.raises((TypeError, ValueError)):
            LoopCallback(**options)  # type: ignore[arg-type]


def test_modules_of_missing_frameworks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("accelerate", "accelerate.tracking", "pytorch_lightning", "lightning.pytorch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    for framework in FRAMEWORKS:
        module = importlib.import_module(f"tapescope.integrations.{framework}")
        monkeypatch.delitem(vars(module), "TapescopeCallback", raising=False)
        monkeypatch.delitem(vars(module), "TapescopeTracker", raising=False)
        with warnings.catch_warnings(), pytest.raises(ImportError):
            getattr(module, "TapescopeTracker" if framework == "accelerate" else "TapescopeCallback")
        with pytest.raises(AttributeError):
            module.Nothing  # noqa: B018
