"""Ready models to step through, measure and draw: `WORKLOADS["resnet50"].build()`.

Each is named with its source, seeded, and comes in two sizes: "small" has the graph of "full" where a narrower model
can have it, and runs forward and backward in a second on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from .workload_models import (
    DLRM,
    GPT2,
    Ensemble,
    NormedPerceptron,
    ResNet50,
    ReusedLinear,
    UNet,
    UnrolledLSTM,
    WordLanguageModel,
)

Size = Literal["small", "full"]


@dataclass(frozen=True, slots=True)
class Parts:
    """A model, what to feed it, and what makes a scalar of its output: `criterion(model(*inputs), *targets)`."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    criterion: Callable[..., Tensor]
    targets: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """A ready model. `small` and `full` hold the arguments that `make` is called with for either size."""

    name: str
    title: str
    source: str
    make: Callable[..., Parts] = field(repr=False)
    small: Mapping[str, int]
    full: Mapping[str, int]

    def build(
        self, size: Size = "small", seed: int = 0, device: torch.device | str = "cpu", **knobs: int
    ) -> tuple[nn.Module, Callable[[], Tensor]]:
        """Makes the model and its data.

        Args:
            size: "small" or "full".
            seed: of parameters and data; the random numbers are drawn on the CPU, so they are the same on any device.
                torch's own generators are left as they were.
            device: where the model lives. On "meta" nothing is allocated.
            knobs: replace single arguments of the size, such as `batch=8, pixels=64` of resnet50.

        Returns:
            The model, and a function that runs one fresh forward on the same data and returns the scalar loss.

        Raises:
            ValueError: an unknown size or knob.
        """
        device = torch.device(device)
        parts = self._make(self._arguments(size, knobs), seed, torch.device("meta" if device.type == "meta" else "cpu"))
        model = parts.model.to(device)
        inputs = [tensor.to(device) for tensor in parts.inputs]
        targets = [tensor.to(device) for tensor in parts.targets]

        def make_loss() -> Tensor:
            return parts.criterion(model(*inputs), *targets)

        return model, make_loss

    def _arguments(self, size: str, knobs: Mapping[str, int]) -> dict[str, int]:
        if size not in ("small", "full"):
            raise ValueError(f"unknown size {size!r} of workload {self.name}; known: small, full")
        for knob in knobs:
            if knob not in self.full:
                raise ValueError(f"workload {self.name} has no knob {knob!r}; known: {', '.join(self.full)}")
        return {**(self.small if size == "small" else self.full), **knobs}

    def _make(self, arguments: Mapping[str, int], seed: int, device: torch.device) -> Parts:
        # torch.manual_seed would also seed the generators of all GPUs, which the fork does not restore.
        with torch.random.fork_rng(devices=[]), device:
            torch.default_generator.manual_seed(seed)
            return self.make(**arguments)


def workload(name: str) -> Workload:
    """The workload of this name. Raises ValueError, listing the known ones, if there is none."""
    try:
        return WORKLOADS[name]
    except KeyError:
        raise ValueError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}") from None


def _classification(logits: Tensor, classes: Tensor) -> Tensor:
    """Cross entropy of logits (..., classes) and class numbers (...)."""
    return functional.cross_entropy(logits.flatten(0, -2), classes.flatten())


def _resnet50(batch: int, pixels: int) -> Parts:
    return Parts(
        ResNet50(classes=1000),
        (torch.randn(batch, 3, pixels, pixels),),
        functional.cross_entropy,
        (torch.randint(1000, (batch,)),),
    )


def _gpt2(vocabulary: int, context: int, width: int, batch: int, heads: int, layers: int) -> Parts:
    tokens = torch.randint(vocabulary, (batch, context + 1))
    model = GPT2(vocabulary, context, width, heads, layers)
    return Parts(model, (tokens[:, :-1],), _classification, (tokens[:, 1:],))


def _lstm_lm(vocabulary: int, width: int, steps: int, batch: int) -> Parts:
    tokens = torch.randint(vocabulary, (steps + 1, batch))
    model = WordLanguageModel(vocabulary, embedding=width, hidden=width, layers=2)
    return Parts(model, (tokens[:-1],), _classification, (tokens[1:],))


def _lstm_cell(steps: int, batch: int, width: int) -> Parts:
    sequence = torch.randn(steps, batch, width)
    return Parts(UnrolledLSTM(width, width), (sequence,), functional.mse_loss, (torch.randn(batch),))


def _unet(batch: int, pixels: int, channels: int) -> Parts:
    mask = torch.randint(2, (batch, pixels - 184, pixels - 184))
    image = torch.randn(batch, 1, pixels, pixels)
    return Parts(UNet(1, 2, channels), (image,), functional.cross_entropy, (mask,))


def _recommender(rows: int, batch: int, tables: int, dense: int, width: int) -> Parts:
    numbers, categories = torch.randn(batch, dense), torch.randint(rows, (batch, tables))
    clicked = torch.randint(2, (batch,)).to(torch.get_default_dtype())
    model = DLRM(dense, tables, rows, width)
    return Parts(model, (numbers, categories), functional.binary_cross_entropy_with_logits, (clicked,))


def _ensemble(members: int, batch: int, width: int) -> Parts:
    model = Ensemble(members, [width, width, width, width, 1])
    return Parts(model, (torch.randn(batch, width),), functional.mse_loss, (torch.randn(members, batch, 1),))


def _linear50(uses: int, width: int, batch: int) -> Parts:
    return Parts(ReusedLinear(width, uses), (torch.randn(batch, width),), torch.sum)


def _mlp_norm(layers: int, width: int, batch: int) -> Parts:
    # A sum would give no gradient: what LayerNorm puts out sums to zero.
    target = torch.randn(batch, width)
    return Parts(NormedPerceptron(width, layers), (torch.randn(batch, width),), functional.mse_loss, (target,))


WORKLOADS: dict[str, Workload] = {
    found.name: found
    for found in (
        Workload(
            "resnet50",
            "ResNet-50, ImageNet",
            "He et al., Deep Residual Learning for Image Recognition, 2015",
            _resnet50,
            small={"batch": 4, "pixels": 64},
            full={"batch": 32, "pixels": 224},
        ),
        Workload(
            "gpt2",
            "GPT-2 small, tied head",
            "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
            _gpt2,
            small={"vocabulary": 512, "context": 32, "width": 96, "batch": 2, "heads": 12, "layers": 12},
            full={"vocabulary": 50257, "context": 1024, "width": 768, "batch": 2, "heads": 12, "layers": 12},
        ),
        Workload(
            "lstm_lm",
            "Word language model, two LSTM layers",
            "pytorch/examples, word_language_model, 2017",
            _lstm_lm,
            small={"vocabulary": 1000, "width": 64, "steps": 35, "batch": 4},
            full={"vocabulary": 33278, "width": 200, "steps": 35, "batch": 20},
        ),
        Workload(
            "lstm_cell",
            "One LSTMCell, unrolled step by step",
            "Hochreiter and Schmidhuber, Long Short-Term Memory, 1997",
            _lstm_cell,
            small={"steps": 50, "batch": 4, "width": 32},
            full={"steps": 1500, "batch": 16, "width": 256},
        ),
        Workload(
            "unet",
            "U-Net, unpadded",
            "Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, 2015",
            _unet,
            small={"batch": 1, "pixels": 188, "channels": 8},
            full={"batch": 1, "pixels": 572, "channels": 64},
        ),
        Workload(
            "recommender",
            "DLRM: 26 embedding tables, dot interaction",
            "Naumov et al., Deep Learning Recommendation Model, 2019 (tables of equal size, dense gradients)",
            _recommender,
            small={"rows": 1000, "batch": 32, "tables": 26, "dense": 13, "width": 16},
            full={"rows": 100_000, "batch": 2048, "tables": 26, "dense": 13, "width": 64},
        ),
        Workload(
            "ensemble",
            "Small networks of one shape, called in a loop",
            "pytorch issue #18157, 2019",
            _ensemble,
            small={"members": 16, "batch": 32, "width": 64},
            full={"members": 64, "batch": 256, "width": 256},
        ),
        Workload(
            "linear50",
            "One Linear used 50 times independently",
            "pytorch PR #4746, 2018",
            _linear50,
            small={"uses": 50, "width": 512, "batch": 8},
            full={"uses": 50, "width": 2048, "batch": 8},
        ),
        Workload(
            "mlp_norm",
            "500 × (Linear, ReLU, LayerNorm): many short tasks",
            "tapehead's own benchmark of the cost per task",
            _mlp_norm,
            small={"layers": 500, "width": 64, "batch": 16},
            full={"layers": 500, "width": 256, "batch": 64},
        ),
    )
}
