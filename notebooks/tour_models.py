"""The models of the tours, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Causal self-attention, written out so that each of its operations is in the graph."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * key.shape[-1] ** -0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return self.out(self.read(weights, value).transpose(1, 2).flatten(2))

    def read(self, weights: Tensor, value: Tensor) -> Tensor:
        return functional.dropout(weights, self.dropout, self.training) @ value


class EntropyAttention(Attention):
    """Attention that also computes the mean entropy of its weights. Its author knew that 0 * log(0) is NaN."""

    def read(self, weights: Tensor, value: Tensor) -> Tensor:
        self.entropy = self.entropy_of(weights)
        return super().read(weights, value)

    def entropy_of(self, weights: Tensor) -> Tensor:
        surprise = weights * weights.log()
        return -torch.where(weights > 0, surprise, 0.0).sum(-1).mean()


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, attention: Attention, dropout: float) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), attention
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class LanguageModel(nn.Module):
    """A small language model. With `checkpointed`, each block keeps its input alone and is recomputed."""

    def __init__(
        self,
        blocks: int = 6,
        width: int = 128,
        heads: int = 4,
        vocabulary: int = 500,
        dropout: float = 0.0,
        attention: type[Attention] = Attention,
        checkpointed: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, attention(width, heads, dropout), dropout) for _ in range(blocks)))
        self.head = nn.Linear(width, vocabulary)
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the cross entropy of predicting each token from those before it."""
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Maker(nn.Sequential):
    """The generator of a small adversarial training."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


class Judge(nn.Module):
    """The discriminator. It also looks at how far the samples of a batch are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(65, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        spread = h.var(0).sqrt().mean().expand(len(h), 1)
        return self.head(torch.cat([h, spread], 1))


def make_gan() -> list[nn.Module]:
    """Return a Maker and a Judge, always with the same parameters."""
    torch.manual_seed(0)
    return [Maker(), Judge()]


def gan_rows() -> Tensor:
    """Return the data of 64 batches of 32 rows. In batch 37, all rows are the same one."""
    rows = torch.randn(64 * 32, 8, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 9)
    rows[37 * 32 : 38 * 32] = rows[0]
    return rows


def gan_losses(models: list[nn.Module], real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of the maker, the loss of the judge, and the samples that the maker made."""
    maker, judge = models
    fake = maker(torch.randn(len(real), 4))
    maker_loss = -judge(fake).mean()
    judge_loss = judge(fake.detach()).mean() - judge(real).mean()
    return maker_loss, judge_loss, fake


@dataclass(frozen=True)
class State:
    """A state of a cache, by the number of the chunk that wrote it."""

    number: int


class Rebuilt(torch.autograd.graph.saved_tensors_hooks):
    """Keeps the last state of a cache, and the rows that each chunk has overwritten."""

    def __init__(self) -> None:
        super().__init__(self.pack, self.unpack)
        self.states: list[Tensor] = []
        self.undo: list[tuple[Tensor, Tensor]] = []
        self.asked: list[int] = []

    def write(self, cache: Tensor, rows: Tensor, values: Tensor) -> Tensor:
        self.undo.append((rows, cache.detach()[rows].clone()))
        self.states.append(cache.index_copy(0, rows, values))
        return self.states[-1]

    def pack(self, tensor: Tensor) -> Tensor | State:
        found = (number for number, state in enumerate(self.states) if state.data_ptr() == tensor.data_ptr())
        number = next(found, None)
        return tensor if number is None else State(number)

    def close(self) -> None:
        self.at, self.now = len(self.states) - 1, self.states[-1].detach().clone()
        self.states.clear()

    def unpack(self, packed: Tensor | State) -> Tensor:
        if not isinstance(packed, State):
            return packed
        self.asked.append(packed.number)
        if packed.number > self.at:
            raise RuntimeError(f"state {packed.number} is gone: the cache is back at state {self.at}")
        while self.at > packed.number:
            rows, values = self.undo[self.at]
            self.now[rows] = values
            self.at -= 1
        return self.now.clone()


class Chunked(nn.Module):
    """Attends to a cache after each chunk. At the end a critic reads all states, from the last to the first."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.key, self.query = nn.Linear(width, width), nn.Linear(width, width)
        self.value = nn.Linear(width, width, bias=False)

    def forward(self, chunks: Tensor, hooks: Rebuilt) -> Tensor:
        cache, states, losses = torch.zeros(6, chunks.shape[-1]), [], []
        for number, chunk in enumerate(chunks):
            rows = torch.arange(2 * number, 2 * number + 2) % len(cache)
            cache = hooks.write(cache, rows, self.key(chunk))
            states.append(cache)
            scores = (cache * self.query(chunk[-1])).sum(dim=1)
            losses.append((scores.softmax(0)[:, None] * cache).sum(0).square().mean())
        for number in reversed(range(len(states))):
            losses.append((states[number] * self.value(chunks[number][0])).sum())
        return torch.stack(losses).sum()
