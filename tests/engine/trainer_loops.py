"""Loops of Trainers that nobody here wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Train = Callable[[Path, int], nn.Module]
"""Trains so many steps, with a folder for what it writes."""


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))


def batches(count: int) -> DataLoader[tuple[Tensor, ...]]:
    x = torch.randn(4 * count, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=True)


def hugging_face(**options: Any) -> Train:
    def train(folder: Path, steps: int) -> nn.Module:
        transformers = pytest.importorskip("transformers", reason="transformers is missing: make full installs it")
        pytest.importorskip("accelerate", reason="accelerate is missing: make full installs it")
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **sizes))
        data = [
            {"input_ids": torch.randint(50, (12,), generator=torch.Generator().manual_seed(i)), "labels": i % 2}
            for i in range(4 * steps)
        ]
        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=2,
            eval_strategy="steps",
            eval_steps=80,
            logging_steps=10,
            warmup_steps=20,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            **options,
        )
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
        trainer.train()
        return model  # type: ignore[no-any-return]

    return train


def lightning(by_hand: bool = False, **options: Any) -> Train:
    def train(folder: Path, steps: int) -> nn.Module:
        lightning = pytest.importorskip(
            "pytorch_lightning", reason="pytorch-lightning is missing: make full installs it"
        )

        class Model(lightning.LightningModule):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = net()
                self.automatic_optimization = not by_hand

            def training_step(self, batch: Any, number: int) -> Tensor | None:
                loss: Tensor = (self.net(batch[0]) - batch[1]).square().mean()
                self.log("loss", loss)
                if not by_hand:
                    return loss
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                return None

            def validation_step(self, batch: Any, number: int) -> None:
                self.log("mean", self.net(batch[0]).mean())

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        module = Model()
        lightning.seed_everything(0, verbose=False)
        lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        ).fit(module, batches(100), batches(5))
        return module

    return train


def accelerated(folder: Path, steps: int) -> nn.Module:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is missing: make full installs it")
    state = pytest.importorskip("accelerate.state")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    bare = net()
    model, optimizer, loader = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters()), batches(2 * steps))
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = (model(x) - y).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return bare


LOOPS = {
    "transformers": hugging_face(),
    "transformers, accumulated and checkpointed": hugging_face(
        gradient_accumulation_steps=2, gradient_checkpointing=True
    ),
    "lightning": lightning(),
    "lightning, accumulated and clipped": lightning(accumulate_grad_batches=2, gradient_clip_val=0.5),
    "lightning by hand": lightning(by_hand=True),
    "accelerate": accelerated,
}
