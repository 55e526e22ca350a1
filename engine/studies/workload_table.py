"""The names, sources and sizes of the ready models, without torch: the command line lists and checks them at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...inspector.validation import did_you_mean, expect


class WorkloadFacts(NamedTuple):
    """A ready model's title, the paper or repository that it is from, and the arguments of its two sizes."""

    title: str
    source: str
    small: Mapping[str, int]
    full: Mapping[str, int]


WORKLOAD_TABLE = {
    "resnet50": WorkloadFacts(
        "ResNet-50, ImageNet",
        "He et al., Deep Residual Learning for Image Recognition, 2015",
        small={"batch": 4, "pixels": 64},
        full={"batch": 32, "pixels": 224},
    ),
    "resnet152": WorkloadFacts(
        "ResNet-152, ImageNet",
        "He et al., Deep Residual Learning for Image Recognition, 2015",
        small={"batch": 2, "pixels": 64},
        full={"batch": 32, "pixels": 224},
    ),
    "gpt2": WorkloadFacts(
        "GPT-2 small, tied head",
        "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
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
    ),
    "lstm_lm": WorkloadFacts(
        "Word language model, two LSTM layers",
        "pytorch/examples, word_language_model, 2017",
        small={"vocabulary": 1000, "width": 64, "steps": 35, "batch": 4},
        full={"vocabulary": 33278, "width": 200, "steps": 35, "batch": 20},
    ),
    "lstm_cell": WorkloadFacts(
        "One LSTMCell, unrolled step by step",
        "Hochreiter and Schmidhuber, Long Short-Term Memory, 1997",
        small={"steps": 50, "batch": 4, "width": 32},
        full={"steps": 1500, "batch": 16, "width": 256},
    ),
    "seq2seq": WorkloadFacts(
        "Sequence to sequence with attention and input feeding",
        "Luong et al., Effective Approaches to Attention-based Neural Machine Translation, 2015; Klein et al., "
        "OpenNMT, 2017",
        small={"vocabulary": 500, "width": 64, "steps": 8, "batch": 4, "layers": 2},
        full={"vocabulary": 50_004, "width": 500, "steps": 30, "batch": 64, "layers": 2},
    ),
    "cyclegan": WorkloadFacts(
        "CycleGAN, the generators' step through all four networks",
        "Zhu et al., Unpaired Image-to-Image Translation using Cycle-Consistent Adversarial Networks, 2017",
        small={"batch": 1, "pixels": 32, "channels": 8, "blocks": 9},
        full={"batch": 1, "pixels": 256, "channels": 64, "blocks": 9},
    ),
    "mnist": WorkloadFacts(
        "Two convolutions and two Linear on MNIST",
        "pytorch/examples, mnist, 2017",
        small={"batch": 8},
        full={"batch": 64},
    ),
    "sequence_labeler": WorkloadFacts(
        "A tagger: bidirectional GRU, then word by word, each step with the label before",
        "pytorch/benchmark, rnns/benchmarks/sequence_labeler.py, 2018, after a gist of hal3's",
        small={"vocabulary": 500, "labels": 45, "sentences": 2, "words": 8},
        full={"vocabulary": 5000, "labels": 45, "sentences": 5, "words": 25},
    ),
    "mlstm": WorkloadFacts(
        "Multiplicative LSTM, unrolled",
        "Krause et al., Multiplicative LSTM for sequence modelling, 2016; pytorch/benchmark, "
        "rnns/benchmarks/mlstm.py, 2018",
        small={"steps": 20, "batch": 1, "inputs": 32, "width": 64},
        full={"steps": 20, "batch": 1, "inputs": 205, "width": 1900},
    ),
    "unet": WorkloadFacts(
        "U-Net, unpadded",
        "Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, 2015",
        small={"batch": 1, "pixels": 188, "channels": 8},
        full={"batch": 1, "pixels": 572, "channels": 64},
    ),
    "recommender": WorkloadFacts(
        "DLRM: 26 embedding tables, dot interaction",
        "Naumov et al., Deep Learning Recommendation Model, 2019 (tables of equal size, dense gradients)",
        small={"rows": 1000, "batch": 32, "tables": 26, "dense": 13, "width": 16},
        full={"rows": 100_000, "batch": 2048, "tables": 26, "dense": 13, "width": 64},
    ),
    "din": WorkloadFacts(
        "Deep Interest Network: tables for history and offer",
        "Zhou et al., Deep Interest Network for Click-Through Rate Prediction, 2018 (tables as long as for "
        "Amazon's books, dense gradients)",
        small={"users": 6037, "goods": 3680, "categories": 16, "width": 32, "history": 10, "batch": 8},
        full={"users": 603_668, "goods": 367_983, "categories": 1600, "width": 64, "history": 50, "batch": 32},
    ),
    "ensemble": WorkloadFacts(
        "Small networks of one shape, called in a loop",
        "pytorch issue #18157, 2019",
        small={"members": 16, "layers": 4, "batch": 32, "width": 64, "separate_inputs": 0},
        full={"members": 64, "layers": 4, "batch": 256, "width": 256, "separate_inputs": 0},
    ),
    "mixture_of_experts": WorkloadFacts(
        "A router and experts that get different numbers of tokens",
        "Shazeer et al., Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer, 2017",
        small={"experts": 8, "per_token": 2, "tokens": 64, "width": 32, "hidden": 64, "grouped": 0},
        full={"experts": 64, "per_token": 2, "tokens": 4096, "width": 512, "hidden": 2048, "grouped": 0},
    ),
    "linear50": WorkloadFacts(
        "One Linear used 50 times independently",
        "pytorch PR #4746, 2018",
        small={"uses": 50, "width": 512, "batch": 8},
        full={"uses": 50, "width": 2048, "batch": 8},
    ),
    "rnn": WorkloadFacts(
        "A vanilla RNN, unrolled",
        "HIPS/autograd issue #219 and its benchmarks/bench_rnn.py, 2017",
        small={"batch": 4, "width": 128, "steps": 50},
        full={"batch": 16, "width": 1024, "steps": 50},
    ),
    "fan_out": WorkloadFacts(
        "One matrix, used 100 times in a row",
        "HIPS/autograd issue #219, 2017 (scaled, so that its powers do not overflow)",
        small={"width": 64, "uses": 100},
        full={"width": 1000, "uses": 100},
    ),
    "elementwise": WorkloadFacts(
        "One matrix, multiplied element by element 100 times in a row",
        "HIPS/autograd issue #219, 2017: its second program",
        small={"width": 64, "uses": 100},
        full={"width": 1000, "uses": 100},
    ),
    "needless": WorkloadFacts(
        "100 additions whose values no gradient needs",
        "HIPS/autograd, benchmarks/bench_mem.py, 2017",
        small={"width": 64, "additions": 100},
        full={"width": 1000, "additions": 100},
    ),
    "two_devices": WorkloadFacts(
        "Two chains on two devices: the later one starves the other",
        "after pytorch PR #4746, 2018: its example of a graph on which creation order loses",
        small={"width": 256, "batch": 128, "far_layers": 12, "near_layers": 12},
        full={"width": 1024, "batch": 1024, "far_layers": 200, "near_layers": 6},
    ),
    "mlp_norm": WorkloadFacts(
        "500 × (Linear, ReLU, LayerNorm): many short tasks",
        "tapescope's own benchmark of the cost per task",
        small={"layers": 500, "width": 64, "batch": 16},
        full={"layers": 500, "width": 256, "batch": 64},
    ),
}
"""The facts of each workload by name; `workloads.py` has the functions that make them."""


def check_workload(name: str) -> None:
    """Check that a workload has this name.

    Raises:
        ValueError: no workload has this name; the message lists the names.
        TypeError: `name` is not a string.
    """
    expect(name, str, "name", "the name of a workload, such as resnet50")
    if name not in WORKLOAD_TABLE:
        near, known = did_you_mean(name, WORKLOAD_TABLE), ", ".join(WORKLOAD_TABLE)
        raise ValueError(f"unknown workload {name!r}{near} expected one of {known}")
