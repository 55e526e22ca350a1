"""The other models on which PyTorch's PR #4746 compared orders: translation of sentences and of pictures, digits, a
tagger, a multiplicative LSTM, and a graph on two devices. They are written as a user would write them, with torch.nn
alone, without dropout and data."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .workload_models import NormedPerceptron

State = tuple[Tensor, Tensor]


class GlobalAttention(nn.Module):
    """Luong's attention with the "general" score. Takes a query (batch, width) and a memory (length, batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_in = nn.Linear(width, width, bias=False)
        self.linear_out = nn.Linear(2 * width, width, bias=False)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        memory = memory.transpose(0, 1)
        scores = memory @ self.linear_in(query).unsqueeze(2)
        context = memory.transpose(1, 2) @ scores.softmax(dim=1)
        return torch.tanh(self.linear_out(torch.cat([context.squeeze(2), query], dim=1)))


class InputFeedDecoder(nn.Module):
    """A stack of LSTM cells, unrolled: each step also takes the attention's output of the step before.

    Takes embedded tokens (length, batch, width), the encoder's states by layer, and its outputs (length, batch, width);
    gives the attention's outputs (length, batch, width).
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        inputs = [2 * width, *[width] * (layers - 1)]
        self.cells = nn.ModuleList(nn.LSTMCell(features, width) for features in inputs)
        self.attention = GlobalAttention(width)

    def forward(self, tokens: Tensor, states: list[State], memory: Tensor) -> Tensor:
        fed = torch.zeros_like(memory[0])
        outputs = []
        for token in tokens:
            x = torch.cat([token, fed], dim=1)
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, states[layer])
                x = states[layer][0]
            fed = self.attention(x, memory)
            outputs.append(fed)
        return torch.stack(outputs)


class Seq2Seq(nn.Module):
    """OpenNMT's default: LSTM encoder, LSTM decoder with global attention and input feeding.

    Takes sentences (length, batch) of the source and of the target language, gives logits (length, batch, vocabulary).
    The sentences of a batch have one length, so nothing is padded.
    """

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, layers)
        self.target = nn.Embedding(vocabulary, width)
        self.decoder = InputFeedDecoder(width, layers)
        self.generator = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (hidden, cell) = self.encoder(self.source(source))
        states = list(zip(hidden, cell, strict=True))
        return self.generator(self.decoder(self.target(target), states, memory))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, kernel_size=3),
            nn.InstanceNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, kernel_size=3),
            nn.InstanceNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class ResNetGenerator(nn.Sequential):
    """Two steps down, residual blocks, two steps up: a picture (batch, 3, pixels, pixels) of the other kind."""

    def __init__(self, channels: int, blocks: int) -> None:
        layers: list[nn.Module] = [nn.ReflectionPad2d(3), *self._normed(nn.Conv2d(3, channels, kernel_size=7))]
        for wide in (channels, 2 * channels):
            layers += self._normed(nn.Conv2d(wide, 2 * wide, kernel_size=3, stride=2, padding=1))
        layers += [ResidualBlock(4 * channels) for _ in range(blocks)]
        for wide in (4 * channels, 2 * channels):
            up = nn.ConvTranspose2d(wide, wide // 2, kernel_size=3, stride=2, padding=1, output_padding=1)
            layers += self._normed(up)
        super().__init__(*layers, nn.ReflectionPad2d(3), nn.Conv2d(channels, 3, kernel_size=7), nn.Tanh())

    @staticmethod
    def _normed(convolution: nn.Conv2d | nn.ConvTranspose2d) -> list[nn.Module]:
        return [convolution, nn.InstanceNorm2d(convolution.out_channels), nn.ReLU(inplace=True)]


class PatchDiscriminator(nn.Sequential):
    """The 70×70 PatchGAN: one judgement for each patch of a picture (batch, 3, pixels, pixels)."""

    def __init__(self, channels: int) -> None:
        layers: list[nn.Module] = [self._convolution(3, channels, stride=2), nn.LeakyReLU(0.2, inplace=True)]
        for wide, stride in ((channels, 2), (2 * channels, 2), (4 * channels, 1)):
            layers += [self._convolution(wide, 2 * wide, stride), nn.InstanceNorm2d(2 * wide)]
            layers.append(nn.LeakyReLU(0.2, inplace=True))
        super().__init__(*layers, self._convolution(8 * channels, 1, stride=1))

    @staticmethod
    def _convolution(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, kernel_size=4, stride=stride, padding=1)


class Translated(NamedTuple):
    """The results of the four networks for images a and b: translations, cycles, identities and scores."""

    fake_b: Tensor
    again_a: Tensor
    fake_a: Tensor
    again_b: Tensor
    same_a: Tensor
    same_b: Tensor
    judged_b: Tensor
    judged_a: Tensor


class CycleGAN(nn.Module):
    """Both generators and both discriminators in the generators' step. Takes pictures (batch, 3, pixels, pixels)."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.a_to_b = ResNetGenerator(channels, blocks)
        self.b_to_a = ResNetGenerator(channels, blocks)
        self.judge_a = PatchDiscriminator(channels)
        self.judge_b = PatchDiscriminator(channels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, a: Tensor, b: Tensor) -> Translated:
        fake_b = self.a_to_b(a)
        again_a = self.b_to_a(fake_b)
        fake_a = self.b_to_a(b)
        again_b = self.a_to_b(fake_a)
        same_b, same_a = self.a_to_b(b), self.b_to_a(a)
        return Translated(fake_b, again_a, fake_a, again_b, same_a, same_b, self.judge_b(fake_b), self.judge_a(fake_a))


class DigitNetwork(nn.Module):
    """pytorch/examples' network for MNIST. Takes pictures (batch, 1, 28, 28), gives logarithms of probabilities (batch,
    10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(functional.max_pool2d(self.conv2(x), 2))
        x = torch.relu(self.fc1(x.flatten(1)))
        return functional.log_softmax(self.fc2(x), dim=1)


class SequenceLabeler(nn.Module):
    """A tagger of words from left to right, whose state depends on a bidirectional GRU's output and the last label.

    Takes sentences (words, sentences), gives costs (words, sentences, labels); the lowest cost is the label. It has the
    benchmark's widths and labels one sentence after the other, as the benchmark does."""

    def __init__(self, vocabulary: int, labels: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, 50)
        self.gru = nn.GRU(50, 51, bidirectional=True)
        self.labels = nn.Embedding(labels, 5)
        self.combine = nn.Linear(5 + 2 * 51 + 52, 52)
        self.costs = nn.Linear(52, labels)
        self.first_state = nn.Parameter(torch.zeros(1, 52))
        self.first_label = nn.Parameter(torch.zeros(1, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        encoded, _ = self.gru(self.words(tokens))
        found = []
        for sentence in encoded.unbind(1):
            state: Tensor = self.first_state
            label: Tensor = self.first_label
            costs: list[Tensor] = []
            for word in sentence.unsqueeze(1):
                state = torch.relu(self.combine(torch.cat([label, state, word], dim=1)))
                costs.append(self.costs(state))
                label = self.labels(costs[-1].argmin(dim=1))
            found.append(torch.cat(costs))
        return torch.stack(found, dim=1)


class MultiplicativeLSTMCell(nn.Module):
    """An LSTM cell whose gates depend on the product of input and state. The output gate is applied before the tanh, as
    in the paper. Takes an input (batch, inputs) and a state, two tensors (batch, width); gives the next state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.input_to_product = nn.Linear(inputs, width, bias=False)
        self.state_to_product = nn.Linear(width, width, bias=False)
        self.input_to_gates = nn.Linear(inputs, 4 * width, bias=False)
        self.product_to_gates = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor, state: State) -> State:
        hidden, cell = state
        product = self.input_to_product(x) * self.state_to_product(hidden)
        opened, kept, new, shown = (self.input_to_gates(x) + self.product_to_gates(product)).chunk(4, dim=1)
        cell = kept.sigmoid() * cell + opened.sigmoid() * new
        return torch.tanh(cell * shown.sigmoid()), cell


class MultiplicativeLSTM(nn.Module):
    """The cell, unrolled. Takes a sequence (steps, batch, inputs), gives the last state (batch, width). The first state
    is a parameter, because with zeros all products of the first step would be zero."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.cell = MultiplicativeLSTMCell(inputs, width)
        self.hidden, self.memory = (nn.Parameter(torch.randn(1, width)) for _ in range(2))

    def forward(self, sequence: Tensor) -> Tensor:
        hidden, memory = (each.expand(sequence.shape[1], -1) for each in (self.hidden, self.memory))
        for x in sequence:
            hidden, memory = self.cell(x, (hidden, memory))
        return hidden


class TwoDevices(nn.Module):
    """Two chains that do not depend on each other, each where its parameters are: `near` on the CPU, `far` on the GPU.

    `far` runs first, and its output is copied to `near`'s device, where the two are added. In the backward this copy
    must run before `far`'s device can start, but it waits in a queue with `near`'s tasks, which were created later.
    """

    def __init__(self, width: int, far_layers: int, near_layers: int) -> None:
        super().__init__()
        self.far = NormedPerceptron(width, far_layers)
        self.near = NormedPerceptron(width, near_layers)

    def forward(self, x: Tensor) -> Tensor:
        far_device, near_device = (next(chain.parameters()).device for chain in (self.far, self.near))
        # copy=True, so that on a single device the graph also has the task that the far chain waits for.
        copied = self.far(x.to(far_device)).to(near_device, copy=True)
        return copied + self.near(x.to(near_device))
