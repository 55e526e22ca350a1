"""The slice that `make test` runs: so many entries of each kind, drawn with a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from fnmatch import fnmatchcase
from hashlib import sha256

_SEED = 0

KINDS: tuple[tuple[str, int], ...] = (
    # several outputs
    ("split*", 1),
    ("unbind", 1),
    ("topk", 1),
    ("std_mean*", 1),
    # complex
    ("view_as_*", 1),
    ("polar", 1),
    ("angle", 1),
    # sparse
    ("sparse.*", 1),
    ("to_sparse", 1),
    ("masked.*", 2),
    # views
    ("as_strided*", 1),
    ("expand*", 1),
    ("diagonal*", 1),
    ("unfold", 1),
    ("squeeze*", 1),
    # in place
    ("add*", 1),
    ("sub", 1),
    ("*clamp*", 1),
    ("cum*", 1),
    # indices
    ("index_*", 3),
    ("scatter*", 2),
    ("gather", 1),
    ("take*", 1),
    ("linalg.*", 6),
    ("fft.*", 3),
    ("*norm", 4),
    ("nn.functional.conv*", 3),
    ("nn.functional.*pool*", 2),
    ("nn.functional.*loss", 2),
    ("nn.functional.embedding*", 2),
    ("nn.functional.*attention*", 1),
    ("[a-z]*", 12),
    # modules
    ("nn.*RNN*", 1),
    ("nn.*LSTM*", 1),
    ("nn.*GRU*", 1),
    ("nn.*Norm*", 2),
    ("nn.*Conv*", 2),
    ("nn.*Loss", 2),
    ("nn.Multihead*", 1),
    ("nn.TransformerEncoderLayer", 1),
    ("nn.Embedding", 1),
    ("nn.[A-Z]*", 4),
)


def sample(operators: Iterable[str], count: int) -> list[str]:
    """So many operators, the same ones wherever PyTorch has them: those with the smallest digests of their names."""
    return sorted(sorted(operators, key=lambda name: sha256(name.encode()).digest())[:count])


def selected(entries: Iterable[str]) -> list[str]:
    """The slice, in the order of `KINDS`. No entry is drawn twice."""
    generator = random.Random(_SEED)
    left = sorted(entries)
    chosen: list[str] = []
    for pattern, count in KINDS:
        drawn = generator.sample([name for name in left if fnmatchcase(name, pattern)], count)
        chosen.extend(drawn)
        left = [name for name in left if name not in drawn]
    return chosen
