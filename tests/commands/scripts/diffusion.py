"""A denoising diffusion model on points of a circle, with an average of its weights."""

import copy
import math

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(20, 16)
        self.first, self.second = nn.Linear(2, 16), nn.Linear(16, 2)

    def forward(self, x, t):
        return self.second(nn.functional.silu(self.first(x) + self.time(t)))


torch.manual_seed(17)
model = Denoiser()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.2, 20), 0)
for step in range(12):
    angle = torch.rand(32) * 2 * math.pi
    clean, noise, t = torch.stack([angle.cos(), angle.sin()], 1), torch.randn(32, 2), torch.randint(0, 20, (32,))
    noisy = kept[t, None].sqrt() * clean + (1 - kept[t, None]).sqrt() * noise
    loss = nn.functional.mse_loss(model(noisy, t), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 0.1)
    if step % 4 == 0:
        print(step, loss.item())
torch.save({"model": model.state_dict(), "average": average.state_dict()}, "model.pt")
