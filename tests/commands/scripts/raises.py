"""Fails in a backward of its third step."""

import torch


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step):
        ctx.step = step
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.step == 2:
            raise RuntimeError("no gradient here")
        return gradient, None


def train(model, optimizer):
    for step in range(5):
        loss = Broken.apply(model(torch.randn(4, 3)), step).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step)
        torch.save(model.state_dict(), "model.pt")


torch.manual_seed(31)
model = torch.nn.Linear(3, 1)
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
