"""Trains a small GPT on characters: argparse, warm-up and decay, micro-batches, clipping, tied weights."""

import argparse
import math
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--max-iters", type=int, default=6)
parser.add_argument("--profile", action="store_true")
parser.add_argument("words", nargs="*")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.attn(self.ln_1(x)).chunk(3, -1))
        x = x + self.proj(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width=16, length=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return nn.functional.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), targets.flatten())


torch.manual_seed(1337)
text = torch.randint(0, 30, (200,))
model = GPT(30)
optimizer = torch.optim.AdamW(
    [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ],
    lr=1e-3,
    betas=(0.9, 0.95),
)
started = time.time()
for step in range(args.max_iters):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * min((step + 1) / 2, 0.5 * (1 + math.cos(math.pi * step / args.max_iters)))
    for _ in range(2):
        places = torch.randint(len(text) - 13, (4,))
        x, y = (torch.stack([text[i + shift : i + shift + 12] for i in places]) for shift in (0, 1))
        loss = model(x, y) / 2
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {step}: loss {loss.item() * 2:.6f}, norm {norm.item():.6f}, {args.words}, {args.profile}")
assert time.time() >= started
torch.save(model.state_dict(), "model.pt")
