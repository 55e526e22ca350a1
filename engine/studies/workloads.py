"""Ready models to step through, measure and draw: `WORKLOADS["resnet50"].build()`.

Each is named with its source, seeded, and comes in two sizes: "small" has the graph of "full" where a narrower model
can have it, and runs forward and backward in a second on two cores.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...inspector.text.sizes_and_counts import dtype_name
from ...inspector.validation import did_you_mean, expect
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


def workload(name: str) -> Workload:
    """Return the ready model or program of this name.

    Raises:
        ValueError: if no workload has this name; the message lists the names.
        TypeError: if `name` is not a string.
    """
    expect(name, str, "name", "the name of a workload, such as resnet50")
    if name not in WORKLOADS:
        known = ", ".join(WORKLOADS)
        raise ValueError(f"unknown workload {name!r}{did_you_mean(name, WORKLOADS)} expected one of {known}")
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


WORKLOADS: dict[str, Workload] = {
    found.name: found
    for found in (
        Workload(
            "resnet50",
            "ResNet-50, ImageNet",
            "He et al., Deep Residual Learning for Image Recognition, 2015",
            lambda batch, pixels: _of_images(ResNet50(classes=1000), batch, pixels),
            small={"batch": 4, "pixels": 64},
            full={"batch": 32, "pixels": 224},
            blocks=(Bottleneck,),
        ),
        Workload(
            "resnet152",
            "ResNet-152, ImageNet",
            "He et al., Deep Residual Learning for Image Recognition, 2015",
            lambda batch, pixels: _of_images(ResNet152(classes=1000), batch, pixels),
            small={"batch": 2, "pixels": 64},
            full={"batch": 32, "pixels": 224},
            blocks=(Bottleneck,),
        ),
        Workload(
            "gpt2",
            "GPT-2 small, tied head",
            "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
            _gpt2,
            small={"vocabulary": 512, "context": 32, "width": 96, "batch": 2, "heads": 12, "layers": 12, "dropout": 0},
            full={
                "vocabulary": 50257,
                "context": 1024,
                "width": 768,
                "batch": 2,
                "heads": 12,
                "layers": 12,
                "dropout": 0,
            },
            blocks=(Block,),
        ),
        Workload(
            "lstm_lm",
            "Word language model, two LSTM layers",
            "pytorch/examples, word_language_model, 2017",
            _lstm_lm,
            small={"vocabulary": 1000, "width": 64, "steps": 35, "batch": 4},
            full={"vocabulary": 33278, "width": 200, "steps": 35, "batch": 20},
            blocks=(nn.LSTM,),
        ),
        Workload(
            "lstm_cell",
            "One LSTMCell, unrolled step by step",
            "Hochreiter and Schmidhuber, Long Short-Term Memory, 1997",
            _lstm_cell,
            small={"steps": 50, "batch": 4, "width": 32},
            full={"steps": 1500, "batch": 16, "width": 256},
            blocks=(nn.LSTMCell,),
        ),
        Workload(
            "seq2seq",
            "Sequence to sequence with attention and input feeding",
            "Luong et al., Effective Approaches to Attention-based Neural Machine Translation, 2015; Klein et al., "
            "OpenNMT, 2017",
            _seq2seq,
            small={"vocabulary": 500, "width": 64, "steps": 8, "batch": 4, "layers": 2},
            full={"vocabulary": 50_004, "width": 500, "steps": 30, "batch": 64, "layers": 2},
            blocks=(nn.LSTM, nn.LSTMCell, GlobalAttention),
        ),
        Workload(
            "cyclegan",
            "CycleGAN, the generators' step through all four networks",
            "Zhu et al., Unpaired Image-to-Image Translation using Cycle-Consistent Adversarial Networks, 2017",
            _cyclegan,
            small={"batch": 1, "pixels": 32, "channels": 8, "blocks": 9},
            full={"batch": 1, "pixels": 256, "channels": 64, "blocks": 9},
            blocks=(ResidualBlock,),
        ),
        Workload(
            "mnist",
            "Two convolutions and two Linear on MNIST",
            "pytorch/examples, mnist, 2017",
            lambda batch: Parts(
                DigitNetwork(), (torch.randn(batch, 1, 28, 28),), functional.nll_loss, (torch.randint(10, (batch,)),)
            ),
            small={"batch": 8},
            full={"batch": 64},
        ),
        Workload(
            "sequence_labeler",
            "A tagger: bidirectional GRU, then word by word, each step with the label before",
            "pytorch/benchmark, rnns/benchmarks/sequence_labeler.py, 2018, after a gist of hal3's",
            _sequence_labeler,
            small={"vocabulary": 500, "labels": 45, "sentences": 2, "words": 8},
            full={"vocabulary": 5000, "labels": 45, "sentences": 5, "words": 25},
        ),
        Workload(
            "mlstm",
            "Multiplicative LSTM, unrolled",
            "Krause et al., Multiplicative LSTM for sequence modelling, 2016; pytorch/benchmark, "
            "rnns/benchmarks/mlstm.py, 2018",
            lambda steps, batch, inputs, width: Parts(
                MultiplicativeLSTM(inputs, width), (torch.randn(steps, batch, inputs),), torch.sum
            ),
            small={"steps": 20, "batch": 1, "inputs": 32, "width": 64},
            full={"steps": 20, "batch": 1, "inputs": 205, "width": 1900},
            blocks=(MultiplicativeLSTMCell,),
        ),
        Workload(
            "unet",
            "U-Net, unpadded",
            "Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, 2015",
            _unet,
            small={"batch": 1, "pixels": 188, "channels": 8},
            full={"batch": 1, "pixels": 572, "channels": 64},
            blocks=(DoubleConvolution, UpBlock),
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
            "din",
            "Deep Interest Network: tables for history and offer",
            "Zhou et al., Deep Interest Network for Click-Through Rate Prediction, 2018 (tables as long as for "
            "Amazon's books, dense gradients)",
            _din,
            small={"users": 6037, "goods": 3680, "categories": 16, "width": 32, "history": 10, "batch": 8},
            full={"users": 603_668, "goods": 367_983, "categories": 1600, "width": 64, "history": 50, "batch": 32},
        ),
        Workload(
            "ensemble",
            "Small networks of one shape, called in a loop",
            "pytorch issue #18157, 2019",
            _ensemble,
            small={"members": 16, "layers": 4, "batch": 32, "width": 64, "separate_inputs": 0},
            full={"members": 64, "layers": 4, "batch": 256, "width": 256, "separate_inputs": 0},
        ),
        Workload(
            "mixture_of_experts",
            "A router and experts that get different numbers of tokens",
            "Shazeer et al., Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer, 2017",
            _mixture_of_experts,
            small={"experts": 8, "per_token": 2, "tokens": 64, "width": 32, "hidden": 64, "grouped": 0},
            full={"experts": 64, "per_token": 2, "tokens": 4096, "width": 512, "hidden": 2048, "grouped": 0},
        ),
        Workload(
            "linear50",
            "One Linear used 50 times independently",
            "pytorch PR #4746, 2018",
            lambda uses, width, batch: Parts(ReusedLinear(width, uses), (torch.randn(batch, width),), torch.sum),
            small={"uses": 50, "width": 512, "batch": 8},
            full={"uses": 50, "width": 2048, "batch": 8},
        ),
        Workload(
            "rnn",
            "A vanilla RNN, unrolled",
            "HIPS/autograd issue #219 and its benchmarks/bench_rnn.py, 2017",
            _rnn,
            small={"batch": 4, "width": 128, "steps": 50},
            full={"batch": 16, "width": 1024, "steps": 50},
            gradient=rnn_by_hand,
            program=rnn_program,
        ),
        Workload(
            "fan_out",
            "One matrix, used 100 times in a row",
            "HIPS/autograd issue #219, 2017 (scaled, so that its powers do not overflow)",
            lambda width, uses: Parts(FanOut(width, uses), (torch.randn(width, width),), torch.sum),
            small={"width": 64, "uses": 100},
            full={"width": 1000, "uses": 100},
            gradient=fan_out_by_hand,
            program=fan_out_program,
        ),
        Workload(
            "elementwise",
            "One matrix, multiplied element by element 100 times in a row",
            "HIPS/autograd issue #219, 2017: its second program",
            lambda width, uses: Parts(Elementwise(width, uses), (torch.randn(width, width),), torch.sum),
            small={"width": 64, "uses": 100},
            full={"width": 1000, "uses": 100},
            gradient=elementwise_by_hand,
            program=elementwise_program,
        ),
        Workload(
            "needless",
            "100 additions whose values no gradient needs",
            "HIPS/autograd, benchmarks/bench_mem.py, 2017",
            lambda width, additions: Parts(NeedlessAdditions(width, additions), (), torch.sum),
            small={"width": 64, "additions": 100},
            full={"width": 1000, "additions": 100},
            gradient=needless_by_hand,
            program=needless_program,
        ),
        Workload(
            "two_devices",
            "Two chains on two devices: the later one starves the other",
            "after pytorch PR #4746, 2018: its example of a graph on which creation order loses",
            _two_devices,
            small={"width": 256, "batch": 128, "far_layers": 12, "near_layers": 12},
            full={"width": 1024, "batch": 1024, "far_layers": 200, "near_layers": 6},
            device_of={"far": "cuda:0"},
        ),
        Workload(
            "mlp_norm",
            "500 × (Linear, ReLU, LayerNorm): many short tasks",
            "tapescope's own benchmark of the cost per task",
            _mlp_norm,
            small={"layers": 500, "width": 64, "batch": 16},
            full={"layers": 500, "width": 256, "batch": 64},
        ),
    )
}
