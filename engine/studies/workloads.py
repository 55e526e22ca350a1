"""Ready models to step through, measure and draw: `WORKLOADS["resnet50"].build()`.

Each is named with its source, seeded, and comes in two sizes: "small" has the graph of "full" where a narrower model
can have it, and runs forward and backward in a second on two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...inspector.text.sizes_and_counts import dtype_name
from .ready_workload import Parts, Workload
from .workload_models import (
    DLRM,
    GPT2,
    Block,
    Bottleneck,
    DeepInterestNetwork,
    DoubleConvolution,
    Ensemble,
    MixtureOfExperts,
    NormedPerceptron,
    ResNet50,
    ResNet152,
    ReusedLinear,
    UNet,
    UnrolledLSTM,
    UpBlock,
    WordLanguageModel,
)
from .workload_models_autograd import (
    Elementwise,
    FanOut,
    NeedlessAdditions,
    VanillaRNN,
    elementwise_by_hand,
    elementwise_program,
    fan_out_by_hand,
    fan_out_program,
    logistic_loss,
    needless_by_hand,
    needless_program,
    rnn_by_hand,
    rnn_program,
)
from .workload_models_translation import (
    CycleGAN,
    DigitNetwork,
    GlobalAttention,
    MultiplicativeLSTM,
    MultiplicativeLSTMCell,
    ResidualBlock,
    Seq2Seq,
    SequenceLabeler,
    Translated,
    TwoDevices,
)
from .workload_table import WORKLOAD_TABLE, check_workload


def workload(name: str) -> Workload:
    """Return the ready model or program of this name.

    Raises:
        ValueError: if no workload has this name; the message lists the names.
        TypeError: if `name` is not a string.
    """
    check_workload(name)
    return WORKLOADS[name]


def _classification(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the cross entropy of logits (..., classes) and class numbers (...)."""
    return functional.cross_entropy(logits.flatten(0, -2), classes.flatten())


def _of_images(model: nn.Module, batch: int, pixels: int) -> Parts:
    images = torch.randn(batch, 3, pixels, pixels)
    return Parts(model, (images,), functional.cross_entropy, (torch.randint(1000, (batch,)),))


def _gpt2(vocabulary: int, context: int, width: int, batch: int, heads: int, layers: int, dropout: int) -> Parts:
    """Return GPT-2 with its data; `dropout` is in percent."""
    tokens = torch.randint(vocabulary, (batch, context + 1))
    model = GPT2(vocabulary, context, width, heads, layers, dropout / 100)
    return Parts(model, (tokens[:, :-1],), _classification, (tokens[:, 1:],))


def _lstm_lm(vocabulary: int, width: int, steps: int, batch: int) -> Parts:
    tokens = torch.randint(vocabulary, (steps + 1, batch))
    model = WordLanguageModel(vocabulary, embedding=width, hidden=width, layers=2)
    return Parts(model, (tokens[:-1],), _classification, (tokens[1:],))


def _lstm_cell(steps: int, batch: int, width: int) -> Parts:
    sequence = torch.randn(steps, batch, width)
    return Parts(UnrolledLSTM(width, width), (sequence,), functional.mse_loss, (torch.randn(batch),))


def _seq2seq(vocabulary: int, width: int, steps: int, batch: int, layers: int) -> Parts:
    source, target = torch.randint(vocabulary, (steps, batch)), torch.randint(vocabulary, (steps + 1, batch))
    return Parts(Seq2Seq(vocabulary, width, layers), (source, target[:-1]), _classification, (target[1:],))


def _sequence_labeler(vocabulary: int, labels: int, sentences: int, words: int) -> Parts:
    tokens, truth = torch.randint(vocabulary, (words, sentences)), torch.randint(labels, (words, sentences))
    costs = 1 - functional.one_hot(truth, labels).to(torch.get_default_dtype())
    return Parts(SequenceLabeler(vocabulary, labels), (tokens,), _error_where_made, (costs,))


def _generators_loss(made: Translated, a: Tensor, b: Tensor) -> Tensor:
    """Return the loss of CycleGAN's generators: the adversarial, the cycle-consistency and the identity losses."""
    judged = [functional.mse_loss(each, torch.ones_like(each)) for each in (made.judged_b, made.judged_a)]
    cycles = functional.l1_loss(made.again_a, a) + functional.l1_loss(made.again_b, b)
    identities = functional.l1_loss(made.same_a, a) + functional.l1_loss(made.same_b, b)
    return sum(judged, 10.0 * cycles + 5.0 * identities)


def _cyclegan(batch: int, pixels: int, channels: int, blocks: int) -> Parts:
    a, b = (torch.rand(batch, 3, pixels, pixels) * 2 - 1 for _ in range(2))
    return Parts(CycleGAN(channels, blocks), (a, b), _generators_loss, (a, b))


def _unet(batch: int, pixels: int, channels: int) -> Parts:
    mask = torch.randint(2, (batch, pixels - 184, pixels - 184))
    image = torch.randn(batch, 1, pixels, pixels)
    return Parts(UNet(1, 2, channels), (image,), functional.cross_entropy, (mask,))


def _recommender(rows: int, batch: int, tables: int, dense: int, width: int) -> Parts:
    numbers, categories = torch.randn(batch, dense), torch.randint(rows, (batch, tables))
    clicked = torch.randint(2, (batch,)).to(torch.get_default_dtype())
    model = DLRM(dense, tables, rows, width)
    return Parts(model, (numbers, categories), functional.binary_cross_entropy_with_logits, (clicked,))


def _din(users: int, goods: int, categories: int, width: int, history: int, batch: int) -> Parts:
    rows = (users, goods, categories)
    offered = [torch.randint(each, (batch,)) for each in rows]
    past = [torch.randint(each, (batch, history)) for each in rows[1:]]
    clicked = torch.randint(2, (batch,)).to(torch.get_default_dtype())
    model = DeepInterestNetwork(*rows, width)
    return Parts(model, (*offered, *past), functional.binary_cross_entropy_with_logits, (clicked,))


def _ensemble(members: int, layers: int, batch: int, width: int, separate_inputs: int) -> Parts:
    model = Ensemble(members, [width] * layers + [1])
    x = torch.randn(members, batch, width) if separate_inputs else torch.randn(batch, width)
    return Parts(model, (x,), functional.mse_loss, (torch.randn(members, batch, 1),))


def _mixture_of_experts(experts: int, per_token: int, tokens: int, width: int, hidden: int, grouped: int) -> Parts:
    if grouped and (why := _why_not_grouped(width, hidden)):
        raise ValueError(f"mixture_of_experts with grouped={grouped}: {why}; grouped=0 calls one expert after another")
    # The second term is common to all tokens, so some experts get more of them than others.
    x = torch.randn(tokens, width) + torch.randn(width)
    model = MixtureOfExperts(width, hidden, experts, per_token, grouped=bool(grouped))
    return Parts(model, (x,), _error_where_made, (torch.randn(tokens, width),))


def _why_not_grouped(width: int, hidden: int) -> str | None:
    """Return why torch.nn.functional.grouped_mm cannot multiply these experts; None if it can."""
    if not hasattr(functional, "grouped_mm"):
        return f"torch {torch.__version__} has no torch.nn.functional.grouped_mm"
    dtype = torch.get_default_dtype()
    if dtype is torch.float64:
        return "grouped_mm supports float32, bfloat16 and float16, not float64"
    if torch.empty(0).is_meta and dtype is not torch.bfloat16:
        return f'on "meta" grouped_mm supports only bfloat16, not {dtype_name(dtype)}'
    for name, size in (("width", width), ("hidden", hidden)):
        if size * dtype.itemsize % 16:
            return f"grouped_mm needs rows of a multiple of 16 bytes; {name}={size} gives {size * dtype.itemsize}"
    return None


def _mlp_norm(layers: int, width: int, batch: int) -> Parts:
    # Not a sum as the loss: the outputs of LayerNorm sum to zero, so its gradient would be zero.
    target = torch.randn(batch, width)
    return Parts(NormedPerceptron(width, layers), (torch.randn(batch, width),), functional.mse_loss, (target,))


def _rnn(batch: int, width: int, steps: int) -> Parts:
    x, label = 0.01 * torch.randn(batch, width), (torch.rand(batch, 1) > 0.5).to(torch.get_default_dtype())
    return Parts(VanillaRNN(width, steps), (x,), logistic_loss, (label,))


def _two_devices(width: int, batch: int, far_layers: int, near_layers: int) -> Parts:
    model = TwoDevices(width, far_layers, near_layers)
    target = torch.randn(batch, width)
    return Parts(model, (torch.randn(batch, width),), _error_where_made, (target,), on_cpu=(model.near,))


def _error_where_made(made: Tensor, target: Tensor) -> Tensor:
    return (made - target.to(made.device)).square().mean()


def _row(name: str, make: Callable[..., Parts], **more: Any) -> Workload:
    title, source, small, full = WORKLOAD_TABLE[name]
    return Workload(name, title, source, make, small, full, **more)


WORKLOADS: dict[str, Workload] = {
    found.name: found
    for found in (
        _row("resnet50", lambda batch, pixels: _of_images(ResNet50(classes=1000), batch, pixels), blocks=(Bottleneck,)),
        _row(
            "resnet152", lambda batch, pixels: _of_images(ResNet152(classes=1000), batch, pixels), blocks=(Bottleneck,)
        ),
        _row("gpt2", _gpt2, blocks=(Block,)),
        _row("lstm_lm", _lstm_lm, blocks=(nn.LSTM,)),
        _row("lstm_cell", _lstm_cell, blocks=(nn.LSTMCell,)),
        _row("seq2seq", _seq2seq, blocks=(nn.LSTM, nn.LSTMCell, GlobalAttention)),
        _row("cyclegan", _cyclegan, blocks=(ResidualBlock,)),
        _row(
            "mnist",
            lambda batch: Parts(
                DigitNetwork(), (torch.randn(batch, 1, 28, 28),), functional.nll_loss, (torch.randint(10, (batch,)),)
            ),
        ),
        _row("sequence_labeler", _sequence_labeler),
        _row(
            "mlstm",
            lambda steps, batch, inputs, width: Parts(
                MultiplicativeLSTM(inputs, width), (torch.randn(steps, batch, inputs),), torch.sum
            ),
            blocks=(MultiplicativeLSTMCell,),
        ),
        _row("unet", _unet, blocks=(DoubleConvolution, UpBlock)),
        _row("recommender", _recommender),
        _row("din", _din),
        _row("ensemble", _ensemble),
        _row("mixture_of_experts", _mixture_of_experts),
        _row(
            "linear50",
            lambda uses, width, batch: Parts(ReusedLinear(width, uses), (torch.randn(batch, width),), torch.sum),
        ),
        _row("rnn", _rnn, gradient=rnn_by_hand, program=rnn_program),
        _row(
            "fan_out",
            lambda width, uses: Parts(FanOut(width, uses), (torch.randn(width, width),), torch.sum),
            gradient=fan_out_by_hand,
            program=fan_out_program,
        ),
        _row(
            "elementwise",
            lambda width, uses: Parts(Elementwise(width, uses), (torch.randn(width, width),), torch.sum),
            gradient=elementwise_by_hand,
            program=elementwise_program,
        ),
        _row(
            "needless",
            lambda width, additions: Parts(NeedlessAdditions(width, additions), (), torch.sum),
            gradient=needless_by_hand,
            program=needless_program,
        ),
        _row("two_devices", _two_devices, device_of={"far": "cuda:0"}),
        _row("mlp_norm", _mlp_norm),
    )
}
