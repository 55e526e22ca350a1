"""A DataLoader whose spawned workers import this script, and a pool of processes."""

import multiprocessing
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.rand(4)  # from the worker's own generator
        return x, (x * x).sum() + index


def double(number):
    return 2 * number


if __name__ == "__main__":
    torch.manual_seed(19)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print(pool.map(double, range(3)))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.RMSprop(model.parameters())
    for method in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=6, shuffle=True, num_workers=2, multiprocessing_context=method)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
            print(loss.item())
    child = os.fork()
    if child == 0:
        raise SystemExit(0)
    os.waitpid(child, 0)
    torch.save(model.state_dict(), "model.pt")
