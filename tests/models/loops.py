"""Training loops of transformers, Lightning and Accelerate: each trains a few steps, with something done at each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from of_peft import MODELS as PEFT
from of_transformers import MODELS as PLAIN
from stranger import seed
from torch import Tensor, nn

Way = Callable[[Callable[[], Tensor], nn.Module], Tensor]
"""Is called where the loop wants a loss, with what makes it and the model; gives the loss with which it goes on."""

_STEPS, _BATCH, _LENGTH, _WORDS = 4, 2, 16, 99
_RATE = 0.1


@dataclass(frozen=True, eq=False)
class Loop:
    """A training loop.

    Attributes:
        train: trains a fresh model and returns it.
        dtype: to which it rounds.
    """

    train: Callable[[Way], nn.Module]
    dtype: torch.dtype = torch.float32


def as_it_is(make_loss: Callable[[], Tensor], model: nn.Module) -> Tensor:
    return make_loss()


def _data(count: int) -> list[dict[str, Tensor]]:
    """Sentences, with their words as labels."""
    words = torch.randint(5, _WORDS, (count, _LENGTH), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": each, "labels": each.clone()} for each in words]


def _batches(count: int) -> list[dict[str, Tensor]]:
    data = _data(count * _BATCH)
    return [
        {key: torch.stack([each[key] for each in data[place : place + _BATCH]]) for key in data[0]}
        for place in range(0, len(data), _BATCH)
    ]


def _trainer(model: str, **options: Any) -> Callable[[Way], nn.Module]:
    """transformers.Trainer."""

    def train(way: Way) -> nn.Module:
        import transformers

        class Trainer(transformers.Trainer):
            def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                plain = super().compute_loss
                return way(lambda: plain(model, inputs, *args, **kwargs), model)

        stranger = (PLAIN[model] if model in PLAIN else PEFT[model]).build()
        accumulated = options.get("gradient_accumulation_steps", 1)
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                max_steps=_STEPS,
                per_device_train_batch_size=_BATCH,
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                seed=1,
                optim="sgd",  # Adam makes much of the rounding of small gradients
                learning_rate=_RATE,
                **options,
            )
            Trainer(stranger.model, arguments, train_dataset=_data(_STEPS * _BATCH * accumulated)).train()
        return stranger.model

    return train


def _lightning(manual: bool = False, **options: Any) -> Callable[[Way], nn.Module]:
    """Lightning's Trainer."""

    def train(way: Way) -> nn.Module:
        import pytorch_lightning

        inner = PLAIN["gpt2"].build().model

        class Module(pytorch_lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = inner
                self.automatic_optimization = not manual

            def training_step(self, batch: Any, number: int) -> Tensor | None:
                loss = way(lambda: self.model(**batch).loss, self)
                if not manual:
                    return loss
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
                optimizer.step()
                return None

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=_RATE)

        batches = _batches(_STEPS * options.get("accumulate_grad_batches", 1))
        seed()
        module = Module()
        pytorch_lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        ).fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
        return inner

    return train


def _accelerate(model: str, accumulated: int = 1, **options: Any) -> Callable[[Way], nn.Module]:
    """A loop with Accelerate, as its documentation writes it."""

    def train(way: Way) -> nn.Module:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # of the loop before
        stranger = (PLAIN[model] if model in PLAIN else PEFT[model]).build()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated, **options)
        trained = [each for each in stranger.model.parameters() if each.requires_grad]
        prepared, optimizer = accelerator.prepare(stranger.model, torch.optim.SGD(trained, lr=_RATE))
        seed()
        for batch in _batches(_STEPS * accumulated):
            with accelerator.accumulate(prepared):
                loss = way(lambda: prepared(**batch).loss, prepared)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(trained, 0.5)
                optimizer.step()
                optimizer.zero_grad()
        return stranger.model

    return train


TRAINER: Mapping[str, Loop] = {
    "gpt2": Loop(_trainer("gpt2")),
    "llama bfloat16 accumulated": Loop(_trainer("llama", bf16=True, gradient_accumulation_steps=2), torch.bfloat16),
    "gpt2 checkpointed": Loop(
        _trainer("gpt2", gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False})
    ),
    "lora llama": Loop(_trainer("lora llama")),
}
LIGHTNING: Mapping[str, Loop] = {
    "gpt2": Loop(_lightning()),
    "gpt2 bfloat16 accumulated": Loop(_lightning(precision="bf16-mixed", accumulate_grad_batches=2), torch.bfloat16),
    "gpt2 by hand": Loop(_lightning(manual=True)),
}
ACCELERATE: Mapping[str, Loop] = {
    "gpt2": Loop(_accelerate("gpt2")),
    "mixtral bfloat16 accumulated": Loop(_accelerate("mixtral", 2, mixed_precision="bf16"), torch.bfloat16),
    "lora gpt2": Loop(_accelerate("lora gpt2")),
}
