"""A GAN: two models, two optimizers, the critic trained twice for each step of the generator."""

import torch
from torch import nn

torch.manual_seed(11)
generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
for step in range(10):
    for _ in range(2):
        of_critic.zero_grad()
        real = critic(torch.randn(16, 2) * 0.5 + 1)
        criterion(real, torch.ones_like(real)).backward()
        fake = critic(generator(torch.randn(16, 4)).detach())
        criterion(fake, torch.zeros_like(fake)).backward()
        of_critic.step()
    of_generator.zero_grad()
    fooled = critic(generator(torch.randn(16, 4)))
    loss = criterion(fooled, torch.ones_like(fooled))
    loss.backward()
    of_generator.step()
    print(f"[{step}/10] loss of the generator {loss.item():.6f}")
torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, "model.pt")
