"""The modules of the ready workloads, as a user would write them: torch.nn alone, no data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Bottleneck(nn.Module):
    """ResNet's 1×1, 3×3, 1×1 block; the stride is on the 3×3 convolution, as in torchvision."""

    expansion = 4

    def __init__(self, in_planes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        out_planes = planes * self.expansion
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, out_planes, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_planes != out_planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_planes, out_planes, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out_planes),
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A ResNet of bottlenecks with torchvision's parameter names; `depths` are the numbers of blocks by stage."""

    def __init__(self, depths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._stage(64, 64, depths[0], stride=1)
        self.layer2 = self._stage(256, 128, depths[1], stride=2)
        self.layer3 = self._stage(512, 256, depths[2], stride=2)
        self.layer4 = self._stage(1024, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2048, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _stage(in_planes: int, planes: int, blocks: int, stride: int) -> nn.Sequential:
        rest = (Bottleneck(planes * Bottleneck.expansion, planes) for _ in range(blocks - 1))
        return nn.Sequential(Bottleneck(in_planes, planes, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class ResNet50(ResNet):
    """161 tensors, 25,557,032 values for 1,000 classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__((3, 4, 6, 3), classes)


class ResNet152(ResNet):
    """467 tensors, 60,192,808 values for 1,000 classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__((3, 8, 36, 3), classes)


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        query, key, value = split
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._dropped(self.attn(self.ln_1(x)))
        return x + self._dropped(self.mlp(self.ln_2(x)))

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class GPT2(nn.Module):
    """A GPT-2 decoder whose output head shares the token embedding's weight. Dropout, where there is any, is in the
    embeddings, the attention and both branches of a block, as Radford et al. have it with 0.1.

    Takes tokens (batch, length), gives logits (batch, length, vocabulary).
    """

    def __init__(
        self, vocabulary: int, context: int, width: int, heads: int, layers: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        if self.dropout:
            x = functional.dropout(x, self.dropout, self.training)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class WordLanguageModel(nn.Module):
    """The `RNNModel` of pytorch/examples with LSTM layers. Takes tokens (length, batch), gives logits."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, embedding)
        self.rnn = nn.LSTM(embedding, hidden, layers)
        self.decoder = nn.Linear(hidden, vocabulary)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.rnn(self.encoder(tokens))
        return self.decoder(output)


class UnrolledLSTM(nn.Module):
    """One LSTMCell applied step by step. Takes (steps, batch, features), gives one prediction per sequence."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(features, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        state = None
        for x in sequence:
            state = self.cell(x, state)
        assert state is not None, "the sequence is empty"
        hidden, _ = state
        return self.head(hidden).squeeze(-1)


class DoubleConvolution(nn.Sequential):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, channels, kernel_size=3),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, kernel_size=3),
            nn.ReLU(inplace=True),
        )


class UpBlock(nn.Module):
    """Doubles the resolution, joins the middle of the skipped features, convolves."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * channels, channels, kernel_size=2, stride=2)
        self.convolutions = DoubleConvolution(2 * channels, channels)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        x = self.up(x)
        height, width = x.shape[-2:]
        top, left = (skipped.shape[-2] - height) // 2, (skipped.shape[-1] - width) // 2
        middle = skipped[..., top : top + height, left : left + width]
        return self.convolutions(torch.cat([middle, x], dim=1))


class UNet(nn.Module):
    """U-Net with the paper's unpadded convolutions: 572 px in, 388 px out; in general 16 n + 188 in, 16 n + 4 out."""

    def __init__(self, in_channels: int, classes: int, channels: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(5)]
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in pairwise([in_channels, *widths]))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(UpBlock(width) for width in reversed(widths[:-1]))
        self.head = nn.Conv2d(channels, classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        for convolutions in self.down:
            x = convolutions(self.pool(x) if skipped else x)
            skipped.append(x)
        for block, features in zip(self.up, reversed(skipped[:-1]), strict=True):
            x = block(x, features)
        return self.head(x)


class PerceptronStack(nn.Sequential):
    """Linear layers of the given widths with ReLU between them (and after the last one, with `last_relu`)."""

    def __init__(self, widths: Sequence[int], *, last_relu: bool = False) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*(layers if last_relu else layers[:-1]))


class DLRM(nn.Module):
    """Embedding tables and a dense tower, their pairwise dot products, a top tower.

    Takes numbers (batch, dense) and categories (batch, tables), gives one logit per row of the batch.
    """

    def __init__(self, dense: int, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bottom = PerceptronStack([dense, 512, 256, 64, width], last_relu=True)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        pairs = tables * (tables + 1) // 2
        self.top = PerceptronStack([width + pairs, 512, 256, 1])

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(numbers)
        columns = zip(self.tables, categories.chunk(len(self.tables), dim=1), strict=True)
        features = torch.stack([x, *(table(column) for table, column in columns)], dim=1)
        products = features @ features.transpose(1, 2)
        row, column = torch.tril_indices(features.shape[1], features.shape[1], offset=-1, device=x.device)
        return self.top(torch.cat([x, products[:, row, column]], dim=1)).squeeze(-1)


class DeepInterestNetwork(nn.Module):
    """A user's clicked items, weighted by the candidate item: three embedding tables, two of them used for both.

    Takes users (batch), the candidate's item and category (batch) and those of the history (batch, length); gives one
    logit per row of the batch. The weights of the history are not normalized, as in the paper.
    """

    def __init__(self, users: int, goods: int, categories: int, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.goods = nn.Embedding(goods, width)
        self.categories = nn.Embedding(categories, width)
        self.activation = nn.Sequential(
            nn.Linear(4 * 2 * width, 80), nn.PReLU(), nn.Linear(80, 40), nn.PReLU(), nn.Linear(40, 1)
        )
        self.top = nn.Sequential(
            nn.Linear(5 * width, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 1)
        )

    def forward(
        self, user: Tensor, good: Tensor, category: Tensor, past_goods: Tensor, past_categories: Tensor
    ) -> Tensor:
        offer = torch.cat([self.goods(good), self.categories(category)], dim=-1)
        history = torch.cat([self.goods(past_goods), self.categories(past_categories)], dim=-1)
        query = offer.unsqueeze(1).expand_as(history)
        weights = self.activation(torch.cat([query, history, query - history, query * history], dim=-1))
        interest = (weights * history).sum(dim=1)
        return self.top(torch.cat([self.users(user), interest, offer], dim=-1)).squeeze(-1)


class Ensemble(nn.Module):
    """Networks of one shape, called one after the other.

    Takes (batch, features) for all members, or (members, batch, features), one input for each; gives (members, batch,
    outputs).
    """

    def __init__(self, members: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.members = nn.ModuleList(PerceptronStack(widths) for _ in range(members))

    def forward(self, x: Tensor) -> Tensor:
        inputs = x if x.dim() == 3 else [x] * len(self.members)
        return torch.stack([member(each) for member, each in zip(self.members, inputs, strict=True)])


class Experts(nn.Module):
    """Two-layer networks of one shape, each for its own rows, called one after the other.

    Takes rows (rows, width) sorted by expert, and the number of rows for each expert.
    """

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(PerceptronStack([width, hidden, width]) for _ in range(experts))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        parts = torch.split(rows, counts)
        return torch.cat([expert(part) for expert, part in zip(self.each, parts, strict=True)])


class GroupedExperts(nn.Module):
    """The same networks with the weights of each layer in one tensor, run as two grouped products.

    Needs `torch.nn.functional.grouped_mm`, which supports no float64 and needs rows of a multiple of 16 bytes.
    """

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        layers = [[expert.get_submodule(name) for expert in experts.each] for name in ("0", "2")]
        weights = ([each.get_parameter("weight").detach().T for each in layer] for layer in layers)
        biases = ([each.get_parameter("bias").detach() for each in layer] for layer in layers)
        self.weights = nn.ParameterList(map(torch.stack, weights))
        self.biases = nn.ParameterList(map(torch.stack, biases))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        numbers = torch.tensor(counts, device=rows.device)
        ends = numbers.cumsum(0, dtype=torch.int32)
        first, second = (bias.repeat_interleave(numbers, 0, output_size=len(rows)) for bias in self.biases)
        hidden = (functional.grouped_mm(rows, self.weights[0], offs=ends) + first).relu()
        return functional.grouped_mm(hidden, self.weights[1], offs=ends) + second


class MixtureOfExperts(nn.Module):
    """A router that sends each token to the experts it rates highest, and sums their weighted outputs.

    The experts get different numbers of rows. Takes and gives (tokens, width). On "meta", where the ratings have no
    values, all get the same number.
    """

    def __init__(self, width: int, hidden: int, experts: int, per_token: int, grouped: bool) -> None:
        super().__init__()
        self.per_token = per_token
        self.router = nn.Linear(width, experts, bias=False)
        looped = Experts(experts, width, hidden)
        self.experts = GroupedExperts(looped) if grouped else looped

    def forward(self, x: Tensor) -> Tensor:
        ratings, chosen = self.router(x).topk(self.per_token, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        tokens = order // self.per_token
        made = self.experts(x[tokens], self._counts(chosen))
        weights = ratings.softmax(-1).flatten()[order]
        return torch.zeros_like(x).index_add(0, tokens, made * weights.unsqueeze(-1))

    def _counts(self, chosen: Tensor) -> list[int]:
        """Return the number of rows for each expert."""
        experts = self.router.out_features
        if not chosen.is_meta:
            return chosen.flatten().bincount(minlength=experts).tolist()
        each, rest = divmod(chosen.numel(), experts)
        return [each + (number < rest) for number in range(experts)]


class ReusedLinear(nn.Module):
    """One Linear applied to the same input several times; no use depends on another."""

    def __init__(self, width: int, uses: int) -> None:
        super().__init__()
        self.uses = uses
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.linear(x) for _ in range(self.uses)])


class NormedPerceptron(nn.Sequential):
    """A deep chain of Linear, ReLU and LayerNorm, with eight short tasks per layer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__(
            *(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(layers))
        )
