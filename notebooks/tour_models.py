"""The models of the tours, in plain PyTorch."""

from __future__ import annotations

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
